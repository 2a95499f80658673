"""The rule for products of sharded matrices, held against JAX's types and its compiler.

`SPMD_MATMUL_CASES` is the number of programs that are compiled.
"""

import itertools
import math
import os
import random
import subprocess
import sys
from collections import Counter
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import spmd_helpers as spmd
from spmd_helpers._errors import (
    AxisUsedTwice,
    NotDivisible,
    NotUnderstood,
    TooManyEntries,
    UnknownAxis,
)
from spmd_helpers._matmul import rule
from spmd_helpers._matmul.matmul import matmul
from spmd_helpers._xray.xray import xray

COMPILED = int(os.environ.get("SPMD_MATMUL_CASES", "120"))
TYPED = (1500, 5000)  # in the short tier, and in both
SIZES = (8, 4, 2, (4, 2), (2, 4), (2, 2), (3, 2), (2, 3), (2, 2, 2), (1, 4), (2, 1, 4))
FACTORS = (2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32, 512)


def meshes(draw, sizes=SIZES):
    size = draw.choice(sizes)
    size = size if isinstance(size, tuple) else (size,)
    return dict(zip(draw.sample(("x", "y", "z"), len(size)), size, strict=True))


def spec(draw, mesh, weights=(1, 1, 1)):
    """The entries of a matrix: each axis cuts a dimension or none, in any order."""
    entries = [[], []]
    for axis in draw.sample(sorted(mesh), len(mesh)):
        place = draw.choices((0, 1, 2), weights)[0]
        if place < 2:
            entries[place].append(axis)
    return tuple(tuple(entry) for entry in entries)


def case(draw):
    mesh = meshes(draw)
    devices = math.prod(mesh.values())
    sizes = [devices * draw.choice(FACTORS) for _ in range(3)]
    if draw.random() < 0.4:  # two of them alike, so that ties are met
        sizes[draw.randrange(3)] = sizes[draw.randrange(3)]
    sizes = tuple(sizes)
    a, b, out = spec(draw, mesh), spec(draw, mesh), None
    if draw.random() < 0.3:
        out = matmul(sizes, a, b, mesh=mesh).explicit.entries
    elif draw.random() < 0.5:
        out = draw.choice((spec(draw, mesh), spec(draw, mesh), ()))
    return sizes, a, b, mesh, out


@cache
def _mesh(names, sizes, kind):
    devices = np.array(jax.devices()[: math.prod(sizes)])
    return Mesh(devices.reshape(sizes), names, (kind,) * len(names))


def real_mesh(mesh, kind=AxisType.Auto):
    return _mesh(tuple(mesh), tuple(mesh.values()), kind)


# --- The compiler ------------------------------------------------------------------


def seen_by_the_compiler(sizes, a, b, mesh, out):
    real = real_mesh(mesh)

    def on(shape, entries):
        place = NamedSharding(real, P(*entries))
        return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=place)

    i, j, k = sizes
    jit = {} if out is None else {"out_shardings": NamedSharding(real, P(*out))}
    return xray(lambda a, b: a @ b, on((i, j), a), on((j, k), b), jit=jit)


def in_use(entries, mesh):
    return tuple(tuple(x for x in entry if mesh[x] > 1) for entry in entries)


def differences(predicted, compiled_report):
    """What the rule says otherwise than the compiled program."""
    mesh = compiled_report.mesh_shape
    moved = []
    for move in predicted.moves:
        n = math.prod(mesh[axis] for axis in move.axes)
        sent = move.wire_bytes
        if move.kind == "reduce-scatter":  # on CPU it is an all-reduce and a slice
            sent = round(2 * move.operand_bytes * (n - 1) / n)
        size = (move.operand_bytes, move.result_bytes, sent)
        moved.append((move.kind, move.axes, *size))
    compiled = [
        (c.kind, c.axes, c.operand_bytes, c.result_bytes, c.wire_bytes)
        for c in compiled_report.collectives
    ]
    out = in_use(compiled_report.output_shardings.entries, mesh)
    pairs = {
        "moves": (sorted(moved), sorted(compiled)),
        "result": (in_use(predicted.c.entries, mesh), out),
        "shard": (
            predicted.c.shard_shape,
            compiled_report.output_shardings.shard_shape,
        ),
        "flops": (predicted.flops_per_device, compiled_report.flops_per_device),
        "redundancy": (predicted.redundancy, compiled_report.redundancy),
        "idle": (predicted.idle_axes, compiled_report.idle_axes),
    }
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


@pytest.fixture(scope="module")
def compiled():
    """Seeded cases that the rule covers, and what the compiler made of each.

    First one of each sort: what the axes cut, what moves, whether C was asked for.
    """
    draw, kept, sorts, drawn = random.Random(20), [], Counter(), 0
    while len(kept) < COMPILED:
        sizes, a, b, mesh, out = case(draw)
        predicted = matmul(sizes, a, b, mesh=mesh, out=out)
        drawn += 1
        if predicted.why_not is None:
            moved = tuple(move.kind for move in predicted.moves)
            tied = "IK" in predicted.kinds.values() and sizes[0] == sizes[2]
            sort = (*sorted(predicted.kinds.values()), moved, out is None, tied)
            if sorts[sort] <= drawn // 2000:
                sorts[sort] += 1
                report = seen_by_the_compiler(sizes, a, b, mesh, out)
                kept.append(((sizes, a, b, mesh, out), report))
    return kept


def disagreeing(compiled):
    wrong = []
    for (sizes, a, b, mesh, out), report in compiled:
        product = matmul(sizes, a, b, mesh=mesh, out=out)
        if product.why_not or (off := differences(product, report)):
            wrong.append((sizes, a, b, mesh, out, product.why_not or off))
    return wrong


def test_the_rule_is_what_the_compiler_does(compiled):
    wrong = disagreeing(compiled)
    assert wrong == [], wrong[0]
    kinds = {c.kind for _, report in compiled for c in report.collectives}
    assert kinds >= {
        *("all-gather", "all-reduce", "reduce-scatter"),
        *("all-to-all", "collective-permute"),
    }


MUTANTS = {
    "case 4 gathers the larger": (
        "gathers_a",
        lambda sizes: sizes[0] > sizes[2],
    ),
    "a tie in case 4 gathers A": ("gathers_a", lambda sizes: sizes[0] <= sizes[2]),
    "wishes beside rows are all the same": ("_BESIDE_ROWS", {"JJ": "K", "-K": "K"}),
    "crossed axes keep C's columns": (
        "_RESULT",
        {"I-": "I", "IJ": "-", "-K": "K", "JK": "K"},
    ),
    "no axis is crossed": ("CROSSED", ()),
    "one-sided cuts are cases of the other side": ("ONE_SIDED", ("J-",)),
}
METHODS = {
    "what is cut is always gathered": ("_gathers_one_sided", lambda *_: True),
    "slices are always taken": ("_gathers_one_sided", lambda *_: False),
    "the order of J does not matter": ("_same_order", lambda self: None),
    "idle axes stay idle": ("_use_idle_axis", lambda self, target: None),
    "nothing is brought": ("_bring", lambda *_: None),
    "sums stay in parts": ("_finish", lambda *_: None),
}


@pytest.mark.parametrize("mutant", [*MUTANTS, *METHODS])
def test_the_compiler_catches_a_wrong_rule(mutant, compiled, monkeypatch):
    if mutant in MUTANTS:
        monkeypatch.setattr(rule, *MUTANTS[mutant])
    else:
        monkeypatch.setattr(rule._Work, *METHODS[mutant])
    assert disagreeing(compiled) != []


def test_the_domain_is_as_large_as_it_says():
    """All pairs of specs on two axes, and all on one, with wishes or without."""
    draw, covered, counts = random.Random(3), {}, {}
    for _ in range(4000):
        mesh = meshes(draw, (4, (4, 2), (2, 2, 2)))
        sizes = tuple(24 * draw.choice(FACTORS) for _ in range(3))
        out = spec(draw, mesh) if draw.random() < 0.5 else None
        product = matmul(sizes, spec(draw, mesh), spec(draw, mesh), mesh=mesh, out=out)
        key = len(mesh), out is not None
        counts[key] = counts.get(key, 0) + 1
        covered[key] = covered.get(key, 0) + (product.why_not is None)
    share = {key: covered[key] / counts[key] for key in counts}
    assert share[1, True] == share[1, False] == 1
    assert share[2, False] == 1
    assert 0.05 < share[3, False] < 0.5
    assert share[2, True] < 0.5


def two_axis_specs():
    """Every way to shard a matrix over x and y."""
    specs = []
    for places in itertools.product((None, 0, 1), repeat=2):
        entries = [[], []]
        for axis, dim in zip("xy", places, strict=True):
            if dim is not None:
                entries[dim].append(axis)
        specs.append(tuple(map(tuple, entries)))
        if places[0] == places[1] is not None:
            specs.append(tuple(tuple(entry[::-1]) for entry in entries))
    return specs


def test_every_pair_of_specs_on_two_axes_is_covered():
    specs = two_axis_specs()
    pairs = list(itertools.product(specs, specs))
    assert len(set(pairs)) == 121
    for sizes in ((48, 48, 24), (24, 48, 96), (96, 24, 96)):
        for mesh in ({"x": 4, "y": 2}, {"x": 2, "y": 4}, {"x": 2, "y": 2}):
            for a, b in pairs:
                assert matmul(sizes, a, b, mesh=mesh).why_not is None, (a, b)


# Pairs in which an axis that shards J of one operand only meets one that shards two
# dimensions, or J of the other operand.
MET = [
    ({"x": one, "y": two}, sizes)
    for one, two in (
        ("J-", "-J"),
        ("J-", "IK"),
        ("J-", "IJ"),
        ("-J", "IK"),
        ("-J", "JK"),
    )
    for sizes in ((48, 40, 24), (24, 40, 48), (16, 16, 16))
]


LONG = pytest.mark.long("products on more meshes, compiled")
AXES = ["x=4 y=2", *(pytest.param(axes, marks=LONG) for axes in ("x=2 y=4", "x=2 y=2"))]


@pytest.mark.parametrize("axes", AXES)
def test_the_compiler_agrees_where_such_axes_meet(axes):
    mesh = {word[0]: int(word[2]) for word in axes.split()}
    for kinds, sizes in MET:
        a, b = [[], []], [[], []]
        for axis, (left, right) in kinds.items():
            if left != "-":
                a["IJ".index(left)].append(axis)
            if right != "-":
                b["JK".index(right)].append(axis)
        product = matmul(sizes, a, b, mesh=mesh)
        assert differences(product, seen_by_the_compiler(sizes, a, b, mesh, None)) == {}


def test_what_would_be_padded_is_not_covered():
    product = matmul((48, 40, 18), ("model",), (None, "model"), mesh=M42)
    assert product.why_not == (
        "shards along model (2) would be sent to the axis data (4), and would be "
        "padded there"
    )


# --- Explicit mode ------------------------------------------------------------------


def typed_by_jax(sizes, a, b, mesh, out):
    real = real_mesh(mesh, AxisType.Explicit)
    i, j, k = sizes

    def on(shape, entries):
        place = NamedSharding(real, P(*entries))
        return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=place)

    def product(a, b):
        types.append(jnp.matmul(a, b, out_sharding=None if out is None else P(*out)))
        types[0] = str(jax.typeof(types[0]))
        return a

    types: list = []
    with jax.set_mesh(real):
        jax.eval_shape(product, on((i, j), a), on((j, k), b))
    return types[0]


@pytest.mark.parametrize(
    "numbers",
    [
        range(TYPED[0]),
        pytest.param(
            range(*TYPED), marks=pytest.mark.long("more products, typed by JAX")
        ),
    ],
    ids=str,
)
def test_explicit_mode_says_the_same(numbers):
    draw, errors = random.Random(5), {}
    drawn = [case(draw) for _ in range(numbers.stop)]
    for sizes, a, b, mesh, out in drawn[numbers.start :]:
        said = matmul(sizes, a, b, mesh=mesh, out=out).explicit
        try:
            jax_type = typed_by_jax(sizes, a, b, mesh, out)
        except Exception as raised:
            errors.setdefault((said.error, said.code, type(raised).__name__), raised)
            jax_type = None
        assert said.type == jax_type, (sizes, a, b, mesh, out)
    assert {key[0] for key in errors} == {"ShardingTypeError"}
    for (ours, code, theirs), error in errors.items():
        assert ours == theirs
        assert spmd.explain(error).code == code
    assert len(errors) == 2


# --- The chapters, and bad input ----------------------------------------------------

M42 = {"data": 4, "model": 2}


@pytest.mark.parametrize(
    ("a", "b", "out", "moves", "redundancy"),
    [
        (P("data"), P(None, "model"), None, [], 1),
        (P("data", "model"), P("model"), None, [("all-reduce", ("model",), 1152)], 1),
        (
            P("data", "model"),
            P("model"),
            P("data", "model"),
            [("reduce-scatter", ("model",), 576)],
            1,
        ),
        (
            P("data", "model"),
            P(None, "model"),
            None,
            [("all-gather", ("model",), 1920)],
            1,
        ),
        (P("data"), P(None, "data"), None, [("all-gather", ("data",), 3840)], 2),
        (P("data"), P("data"), None, [("all-gather", ("data",), 3840)], 2),
        (P("data"), P("data", "model"), None, [("all-gather", ("data",), 1920)], 1),
        (P(), P(), None, [], 8),
    ],
)
def test_the_products_of_the_chapters(a, b, out, moves, redundancy):
    product = matmul((48, 40, 24), a, b, mesh=M42, out=out)
    assert [(m.kind, m.axes, m.result_bytes) for m in product.moves] == moves
    assert product.redundancy == redundancy
    assert product.flops_per_device == 2 * 48 * 40 * 24 * redundancy // 8


def test_it_takes_a_mesh_and_says_all_of_it():
    product = matmul((192, 320, 256), P("model"), P(None, "model"), mesh=real_mesh(M42))
    assert product.idle_axes == ("data",)
    assert product.cases == {"data": 0, "model": 4}
    assert product.cuts == {"data": "-", "model": "K"}
    assert "25 % of the devices' work" in product.pitfalls[0]
    said = repr(product)
    for words in (product.sentence, *product.steps, *product.pitfalls, product.choice):
        assert words in said


def test_what_is_not_covered_says_why():
    mesh = {"data": 2, "model": 2, "pod": 2}
    product = matmul((48, 40, 24), (None, "model"), ("data",), mesh=mesh)
    assert product.why_not.startswith("of three axes or more it knows those that shard")
    assert product.c is product.moves is product.redundancy is product.block is None
    assert product.why_not in repr(product)
    assert product.steps[1:] == ("", "", "")
    assert "spmd.xray compiles it and shows what happens" in repr(product)
    assert product.explicit.code == "contraction-is-ambiguous"


def test_one_device():
    product = matmul((6, 10, 4), (), (), mesh={})
    assert (product.moves, product.redundancy, product.flops_per_device) == (
        (),
        1.0,
        480,
    )
    assert "on one device" in product.sentence


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        (dict(sizes=(48, 40)), NotUnderstood, r"sizes=\(48, 40\) are not three sizes"),
        (dict(sizes=(48, 0, 4)), NotUnderstood, "1 or more"),
        (dict(sizes=(48, 4.5, 4)), NotUnderstood, "integers, 1 or more"),
        (dict(sizes=(48, True, 4)), NotUnderstood, "integers, 1 or more"),
        (dict(sizes=7), NotUnderstood, "sizes=7"),
        (dict(a="data"), NotUnderstood, "A: 'data' is not a spec"),
        (dict(a=7), NotUnderstood, "A: 7 is not a spec"),
        (dict(b=(3,)), NotUnderstood, r"B: \(3,\) is not a spec"),
        (dict(a=("data", "data")), AxisUsedTwice, "^A: .* again for dimension 1"),
        (dict(b=("dada",)), UnknownAxis, "^B: .* Did you mean"),
        (dict(out=("data", None, None)), TooManyEntries, "^C: .* 3 entries"),
        (dict(sizes=(50, 40, 24)), NotDivisible, "^A: .* make it 48 or 52"),
        (dict(mesh={"data": 0}), NotUnderstood, "1 or more"),
        (dict(mesh=5), NotUnderstood, "mesh=5 is not a mesh"),
        (dict(dtype="float"), NotUnderstood, "dtype='float'"),
    ],
)
def test_bad_input_gets_a_sentence(given, error, words):
    good = dict(sizes=(48, 40, 24), a=("data",), b=(), mesh=M42)
    with pytest.raises(error, match=words):
        matmul(**(good | given))


def test_it_needs_no_jax():
    code = (
        "import sys; from spmd_helpers._matmul.matmul import matmul; "
        "matmul((4, 4, 4), ('x',), (), mesh={'x': 2}); sys.exit('jax' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
