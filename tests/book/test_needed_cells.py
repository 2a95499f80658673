"""The cells that an exercise needs, by known answers and by running what is left."""

import pytest

from .needed_cells import names_of, needed_cells

CELLS = [
    "import math\nfrom functools import partial as fix",  # 0
    "x = 1",  # 1
    "def f(y):\n    total = y + late\n    return total",  # 2
    "print(x)\nmath.sqrt(2)",  # 3
    "kept = [x]",  # 4
    "kept.append(2)",  # 5
    "kept[0] = 5",  # 6
    "x = 10",  # 7
    "late = fix(pow, 2)(3)",  # 8
    "seen = [math.pi]\nseen = [x for x in seen]",  # 9
]


@pytest.mark.parametrize(
    ("use", "indices"),
    [
        ("f(1)", {0, 2, 8}),  # what a body reads may be bound after it
        ("x", {7}),  # the last one that binds it
        ("kept", {1, 4, 5, 6}),  # and what changes it, and the x of its time
        ("seen = 3\nprint(seen)", set()),  # its own name
        ("seen = len(seen)", {0, 9}),
        ("seen = 3; seen", {0, 9}),  # one line: read to be on the safe side
        ("def g():\n    return seen\nseen = 1\ng()", set()),
        ("def g():\n    return seen\ng()", {0, 9}),
        ("{x: y for x, y in ()}; [x for x in ()]", set()),
        ("got = [x for x in ()]\nprint(x)", {7}),
        ("lambda x: x", set()),
        ("[x for x in ()]", set()),
        ("math", {0}),
    ],
)
def test_known(use, indices):
    assert needed_cells(CELLS, {len(CELLS) - 1: [use]}) == indices
    names = {}
    for i in sorted(indices):
        exec(CELLS[i], names)
    exec(use, names)


def test_a_use_sees_what_is_above_it():
    assert needed_cells(CELLS, {3: ["x"]}) == {1}
    assert needed_cells(CELLS, {3: ["x"], 9: ["x"]}) == {1, 7}


def test_names_of_a_class_and_a_handler():
    found = names_of(
        "class A(base):\n    size = width\n    def f(self):\n        return deep\n"
        "try:\n    pass\nexcept ValueError as error:\n    print(error)\n"
    )
    assert {"A", "error"} <= found.bound
    assert {"base", "width", "ValueError"} <= found.read
    assert "deep" in found.read_when_called
    assert not {"size", "self", "f"} & found.bound
