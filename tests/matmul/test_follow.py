"""What each device has at each stage of a product, held against JAX and NumPy.

Every device's data are followed: what it has after a move was on devices that take part
in it, in as many bytes as the move says; parts of a sum add up to the product.
"""

import math
import random
from functools import cache

import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from spmd_helpers._core.validate import as_integer
from spmd_helpers._errors import NotUnderstood
from spmd_helpers._matmul import rule
from spmd_helpers._matmul.matmul import matmul

from .test_matmul import case, meshes, real_mesh, spec

CASES = 150


def products(seed, count):
    """Random products that the rule covers, of small sizes."""
    draw, drawn = random.Random(seed), []
    while len(drawn) < count:
        mesh = meshes(draw, (8, 3, (4, 2), (2, 4), (2, 2), (3, 2), (2, 2, 2), (1, 4)))
        devices = math.prod(mesh.values())
        sizes = tuple(devices * draw.choice((1, 2, 3)) for _ in range(3))
        out = draw.choice((None, None, spec(draw, mesh), ()))
        product = matmul(sizes, spec(draw, mesh), spec(draw, mesh), mesh=mesh, out=out)
        if product.why_not is None:
            drawn.append((sizes, mesh, product))
    return drawn


@cache
def placed(shape, entries, names, counts):
    """Each device's part of an array, as JAX places it: ((first, end), …)."""
    mesh = real_mesh(dict(zip(names, counts, strict=True)))
    slices = NamedSharding(mesh, P(*entries)).devices_indices_map(shape)
    return [
        tuple(s.indices(n)[:2] for s, n in zip(slices[device], shape, strict=True))
        for device in mesh.devices.flat
    ]


def cells(region):
    """Every element of a part."""
    (first, end), (left, right) = region
    return {(i, j) for i in range(first, end) for j in range(left, right)}


def groups(mesh, axes):
    """The devices that exchange along these axes."""
    numbers = np.arange(math.prod(mesh.values())).reshape([*mesh.values()])
    along = [i for i, axis in enumerate(mesh) if axis in axes]
    moved = np.moveaxis(numbers, along, range(-len(along), 0))
    return moved.reshape(-1, math.prod(mesh[a] for a in axes)) if along else None


def faults(sizes, mesh, product):
    """What of a product's stages is not what devices can have."""
    i, j, k = sizes
    shapes = {"A": (i, j), "B": (j, k), "C": (i, k)}
    names, counts = tuple(mesh), tuple(mesh.values())
    devices = range(math.prod(counts))
    followed = [product.follow(device) for device in devices]
    itemsize, wrong = product.a.itemsize, []

    def has(number, of):
        return [getattr(one[number], of.lower()) for one in followed]

    for number, stage in enumerate(product.stages):
        for of in "ABC":
            entries = getattr(stage, of.lower())
            want = placed(shapes[of], entries, names, counts) if entries else None
            if want and has(number, of) != want:
                wrong.append(f"{of} is not where JAX places it, stage {number}")
        if not number:
            continue
        before = number - 1
        if stage.at == "slice":
            for of in "AB":
                pairs = zip(has(number, of), has(before, of), strict=True)
                if any(not cells(now) <= cells(own) for now, own in pairs):
                    wrong.append("a slice is not of what was there")
        elif stage.at == "multiply":
            wrong += _multiplied(mesh, product, stage, followed, number)
        else:
            move = product.moves[stage.move]
            now, own = has(number, move.of), has(before, move.of)
            for group in groups(mesh, move.axes):
                there = set().union(*(cells(own[d]) for d in group))
                if any(not cells(now[d]) <= there for d in group):
                    wrong.append(f"{move.kind} brings what no device of the group had")
            put = {len(cells(r)) * itemsize for r in own}
            if move.kind == "collective-permute":  # of what it has, what others need
                put = {min(*put, move.result_bytes)}
            if put != {move.operand_bytes}:
                wrong.append(f"{move.kind} puts in something else")
            if {len(cells(r)) * itemsize for r in now} != {move.result_bytes}:
                wrong.append(f"{move.kind} gets something else")
    last = product.stages[-1]
    if last.summed or any(one[-1].sums != 1 for one in followed):
        wrong.append("the end is a partial sum")
    used = tuple(tuple(x for x in e if mesh[x] > 1) for e in product.c.entries)
    if last.c != used:
        wrong.append("the end is not C")
    return wrong


def _multiplied(mesh, product, stage, followed, number):
    """Each part of a sum once, and the same product on those that are named."""
    wrong = []
    at = [one[number] for one in followed]
    for device, one in enumerate(at):
        same = tuple(
            d
            for d, other in enumerate(at)
            if d != device and (other.a, other.b) == (one.a, one.b)
        )
        if one.same != same:
            wrong.append("others do the same work")
        if one.a[1] != one.b[0] or one.c != (one.a[0], one.b[1]):
            wrong.append("the parts do not fit")
        if one.sums != math.prod(mesh[axis] for axis in stage.summed):
            wrong.append("the number of summands")
    full = {range(product.a.shape[1])}
    for group in groups(mesh, stage.summed) if stage.summed else [[d] for d in [0]]:
        summed = sorted(at[d].a[1] for d in group)
        joined = [n for first, end in summed for n in range(first, end)]
        if {range(len(joined))} != full or joined != sorted(joined):
            wrong.append("the parts of the sum are not the sum")
        if len({at[d].c for d in group}) != 1:
            wrong.append("summands of different parts")
    return wrong


def test_every_stage_is_what_devices_can_have():
    given = products(1, CASES)
    kinds = {move.kind for _, _, product in given for move in product.moves}
    assert len(kinds) == 5
    for sizes, mesh, product in given:
        assert faults(sizes, mesh, product) == [], repr(product)


METHODS = {
    "an axis stays": ("_drop", lambda self, of, axes: None),
    "shards do not change the axis": ("_replace", lambda self, of, old, new: None),
    "no slice is taken": (
        "_multiply",
        lambda self: (
            self.now.update(C=[self.now["A"][0], self.now["B"][1]]),
            self._note("multiply"),
        ),
    ),
}


@pytest.mark.parametrize("mutant", METHODS)
def test_a_wrong_stage_is_noticed(mutant, monkeypatch):
    monkeypatch.setattr(rule._Work, *METHODS[mutant])
    wrong = []
    for sizes, mesh, product in products(1, 60):
        try:
            wrong += faults(sizes, mesh, product)
        except Exception as refused:  # JAX places nothing so
            wrong.append(str(refused))
    assert wrong


M42 = {"data": 4, "model": 2}


@pytest.mark.parametrize(
    ("a", "b", "words"),
    [
        (
            ("data", "model"),
            ("model",),
            [
                "Before. Device 5 has A[24:36, 20:40] and B[20:40, 0:24].",
                "Multiply. Device 5 multiplies A[24:36, 20:40] by B[20:40, 0:24] and "
                "has C[24:36, 0:24] as a partial sum, 1 of 2.",
                "All-reduce of C over model. Device 5 gets the sum over 2 devices: "
                "C[24:36, 0:24], complete.",
            ],
        ),
        (
            ("data",),
            ("data",),
            [
                "Before. Device 5 has A[24:36, 0:40] and B[20:30, 0:24].",
                "All-gather of B over data. Device 5 now has B[0:40, 0:24]; the rest "
                "was on devices 1, 3, 7.",
                "Multiply. Device 5 multiplies A[24:36, 0:40] by B[0:40, 0:24] and has "
                "C[24:36, 0:24]. Device 4 computes the same product.",
            ],
        ),
        (
            ("data", "model"),
            (),
            [
                "Before. Device 5 has A[24:36, 20:40] and B[0:40, 0:24].",
                "Slice. Device 5 needs only B[20:40, 0:24] of what it has.",
                "Multiply. Device 5 multiplies A[24:36, 20:40] by B[20:40, 0:24] and "
                "has C[24:36, 0:24] as a partial sum, 1 of 2.",
                "All-reduce of C over model. Device 5 gets the sum over 2 devices: "
                "C[24:36, 0:24], complete.",
            ],
        ),
    ],
)
def test_the_words_of_one_device(a, b, words):
    stages = matmul((48, 40, 24), a, b, mesh=M42).follow(5)
    assert [f"{stage.heading}. {stage.sentence}" for stage in stages] == words


@pytest.mark.parametrize("device", [-1, 8, 1.0, "1", True])
def test_no_such_device(device):
    assert as_integer(device, 0, 7) is None
    with pytest.raises(NotUnderstood, match="none of the 8 devices"):
        matmul((48, 40, 24), ("data",), (), mesh=M42).follow(device)


def test_nothing_is_followed_that_is_not_covered():
    mesh = {"x": 2, "y": 2, "z": 2}
    product = matmul((8, 8, 8), ("x", "y"), ("z",), mesh=mesh)
    assert product.why_not
    assert product.stages is None
    with pytest.raises(NotUnderstood, match=r"spmd\.xray"):
        product.follow(0)


def test_the_cases_are_those_of_the_rule():
    """Larger sizes, all sorts: bytes of every stage."""
    draw = random.Random(4)
    for _ in range(300):
        sizes, a, b, mesh, out = case(draw)
        product = matmul(sizes, a, b, mesh=mesh, out=out)
        for stage in product.follow(0) if product.stages else ():
            assert stage.heading
            assert stage.sentence.startswith("Device 0 ")
