"""Work that devices repeat: against hand counts, JAX itself, and what devices hold."""

# ruff: noqa: E501

import json
import os
import subprocess
import sys
from math import prod

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from spmd_helpers._hlo import device_classes as classes
from spmd_helpers._hlo.integers import compute
from spmd_helpers._hlo.parser import parse
from spmd_helpers._hlo.replication import Walk
from spmd_helpers._hlo.work import Work, work
from tests.hlo.texts import HLO, M42, stored
from tests.mutants import answers_all
from tests.stand_ins import slice_of_v5e

F32 = jnp.float32
D, M, DM, NONE = (frozenset(axes) for axes in (["data"], ["model"], M42, []))


# --- The fixtures, counted by hand -------------------------------------------------

# Products of B × D × F or their like, 2 FLOPs each, times 8 layers where scanned.
# 12 · B · D · F · L is a whole training step of the 8-layer MLP on two cards.
STEP = 12 * 4096 * 4096 * 16384 * 8 // 2
LAYER = 2 * 1024 * 2048 * 8192  # one product of the fsdp_scan8_remat programs
COUNTED = {
    "dp_scan8_step.gpu_0.11.2": (STEP, 1.0, ()),
    "fsdp_explicit_scan8_step.gpu_0.11.2": (STEP, 1.0, ()),
    "tp_scan8_step.gpu_0.11.2": (STEP, 1.0, ()),
    # Forward 2, the weights' gradients 2, what goes back to the first layer 1.
    "dp_two_grads": (5 * 2 * 64 * 256 * 256, 1.0, ()),
    # Nothing is cut along model: both columns of the mesh do the same.
    "fsdp_one_matmul": (2 * 2 * 256 * 1024 * 1024, 2.0, ("model",)),
    "tp_mlp": (2 * 2 * 128 * 1024 * 2048, 1.0, ()),
    # A gather of rows is no product, nor is a change of sharding.
    "embed_vocab_sharded": (0, None, ()),
    "reshard_all_to_all": (0, None, ()),
    # 2 forward, 1 recomputed (the second's result isn't needed), 4 backward.
    "fsdp_scan8_remat": (7 * 8 * LAYER, 2.0, ("model",)),
    "fsdp_tp_grad": (5 * 2 * 1024 * 2048 * 4096, 1.0, ()),
    "scatter_over_model": (2 * 1024 * 1024 * 8192, 1.0, ()),
    "reduce_then_reshard.tpu_0.10.2": (2 * 4096 * 1024 * 2048, 1.0, ()),
    "nnx_linear_step": (2 * 2 * 8 * 24 * 16, 2.0, ("model",)),
}  # fmt: skip
# What jax 0.12's CPU texts no longer print: axes along which each argument is cut.
CUT = {
    "dp_two_grads": {0: NONE, 1: NONE, 2: DM},
    "fsdp_one_matmul": {0: D, 1: D},
    "tp_mlp": {0: M, 1: M, 2: D},
    "fsdp_scan8_remat": {0: D, 1: D, 2: D},
    "scatter_over_model": {0: DM, 1: M},
    "nnx_linear_step": {**{n: NONE for n in range(8)}, 8: D, 9: D},
}


def fixtures():
    for path in sorted(HLO.glob("*.hlo")):
        program = path.stem.partition(".")[0]
        if path.stem in COUNTED or program in COUNTED:
            yield path.stem, COUNTED.get(path.stem) or COUNTED[program]


FIXTURES = list(fixtures())


@pytest.mark.parametrize(("name", "want"), FIXTURES, ids=[name for name, _ in FIXTURES])
def test_fixtures_counted_by_hand(name, want):
    mesh = {"d": 2} if ".gpu_" in name else M42
    stored_cut = CUT.get(name.partition(".")[0]) if "cpu_0.12" in name else None
    counted = work(parse(stored(name)), mesh, stored_cut)
    assert (counted.flops, counted.redundancy, counted.idle_axes) == want
    assert counted.redundant_over == dict.fromkeys(want[2], 1.0)
    assert not counted.upper_bound


def test_every_count_has_a_text():
    assert {n for n in COUNTED if "." in n} <= dict(FIXTURES).keys()
    assert len(FIXTURES) >= 26


def test_a_step_on_two_cards_is_what_the_measured_share_of_peak_was_of():
    assert pytest.approx(2.64e13, rel=1e-3) == 2 * STEP


# --- Which devices hold the same ----------------------------------------------------


def test_along():
    assert classes.along(M42, ()) == (0,) * 8
    assert classes.along(M42, ["data"]) == (0, 0, 1, 1, 2, 2, 3, 3)
    assert classes.along(M42, ["model"]) == (0, 1) * 4
    assert classes.along(M42, ["model", "data"]) == tuple(range(8))
    assert classes.along({}, ()) == (0,)


def test_varies():
    halves = (0, 0, 0, 0, 1, 1, 1, 1)  # data = 0, 1 hold the same, and 2, 3
    assert [a for a in M42 if classes.varies(halves, M42, a)] == ["data"]
    assert [a for a in M42 if classes.varies((0,) * 8, M42, a)] == []
    # Device 5 alone holds something else: data=2, model=1.
    assert [a for a in M42 if classes.varies((0, 0, 0, 0, 0, 1, 0, 0), M42, a)] == [
        "data",
        "model",
    ]


ROWS, COLUMNS = ((0, 1), (2, 3), (4, 5), (6, 7)), ((0, 2, 4, 6), (1, 3, 5, 7))


EXCHANGED = (
    [
        ("all-gather", ["data"], COLUMNS, (0,) * 8),
        ("all-gather", ["data", "model"], COLUMNS, (0, 1) * 4),
        ("all-reduce", ["data", "model"], ROWS, (0, 0, 1, 1, 2, 2, 3, 3)),
        ("all-reduce", ["data"], ROWS, (0, 0, 1, 1, 2, 2, 3, 3)),
        # Over half an axis: it still varies, but in fewer ways.
        ("all-reduce", ["data"], ((0, 2), (4, 6), (1, 3), (5, 7)), (0, 0, 0, 0, 1, 1, 1, 1)),
        # Groups that follow no axis.
        ("all-gather", ["data"], ((0, 3), (2, 1), (4, 7), (6, 5)), (0, 1, 1, 0, 2, 3, 3, 2)),
        ("all-reduce", ["data"], ((0, 3), (2, 1), (4, 7), (6, 5)), (0, 0, 0, 0, 1, 1, 1, 1)),
        ("reduce-scatter", ["data", "model"], COLUMNS, tuple(range(8))),
        ("reduce-scatter", [], COLUMNS, (0, 0, 1, 1, 2, 2, 3, 3)),
        ("all-to-all", ["model"], ROWS, (0, 1) * 4),
        ("collective-broadcast", ["model"], ROWS, (0,) * 8),
        # Along a ring, everyone gets another's, and all are still alike …
        ("collective-permute", ["model"], ((0, 2), (2, 4), (4, 6), (6, 0), (1, 3), (3, 5), (5, 7), (7, 1)), (0, 1) * 4),
        # … and where the ring is open, the first ones get zeros.
        ("collective-permute", ["model"], ((0, 2), (2, 4), (4, 6), (1, 3), (3, 5), (5, 7)), (0, 0, 1, 2, 1, 2, 1, 2)),
        ("collective-permute", [], ((0, 1),), (0, 1, 0, 0, 0, 0, 0, 0)),
    ]
)  # fmt: skip


@pytest.mark.parametrize(("kind", "axes", "groups", "after"), EXCHANGED)
def test_exchanged(kind, axes, groups, after):
    assert classes.exchanged(kind, classes.along(M42, axes), groups) == after


SPELLED = [
    ("{replicated}", (0,) * 8),
    ("{devices=[4,1,2]<=[8] last_tile_dim_replicate}", (0, 0, 1, 1, 2, 2, 3, 3)),
    ("{devices=[2,1,4]<=[4,2]T(1,0) last_tile_dim_replicate}", (0, 1) * 4),
    ("{devices=[4,2]<=[8]}, metadata={op_name=\"x\"}", tuple(range(8))),
    ("{devices=[2,4]<=[4,2]T(1,0)}", tuple(range(8))),
    ("{devices=[1,2,4]0,2,4,6,1,3,5,7 last_tile_dim_replicate}", (0, 1) * 4),
    ("{devices=[2,1,4]<=[8] last_tile_dims={replicated}}", (0, 0, 0, 0, 1, 1, 1, 1)),
    ("{mesh[], replicated}", (0,) * 8),
    ("{mesh['data'=4,'model'=2], [{'data'}, {}]}", (0, 0, 1, 1, 2, 2, 3, 3)),
    ("{mesh['data'=4,'model'=2], [{}, {'model'}]}", (0, 1) * 4),
    ("{mesh['data'=4,'model'=2], [{}, {'model','data'}]}", tuple(range(8))),
    ("{mesh['data'=4,'model'=2], [{}, {}], replicated={'data'}}", (0,) * 8),
    ("{mesh['x'=8], [{'x':(1)2}, {}]}", (0, 0, 0, 0, 1, 1, 1, 1)),
    ("{mesh['x'=8], [{'x':(4)2}, {}]}", (0, 1) * 4),
    ("{mesh['a'=2,'b'=4], device_ids=([4,2]T(1,0)), [{'a'}]}", (0, 1) * 4),
    ("{manual}", None),
    ("{maximal device=3}", None),
    ("{unknown}", None),
    ("{devices=[2,4]<=[8] last_tile_dims={manual}}", None),
    ("{mesh['x'=8], [{}], unreduced={'x'}}", None),
    ("{{replicated}, {replicated}}", None),
    ("{something else}", None),
]  # fmt: skip


@pytest.mark.parametrize(("text", "want"), SPELLED, ids=lambda x: str(x)[:40])
def test_printed_shardings(text, want):
    assert classes.of_sharding(text, 8) == want


def mesh_of(shape):
    return jax.make_mesh(
        tuple(shape.values()), tuple(shape), (AxisType.Auto,) * len(shape)
    )


def axes_in(spec):
    return frozenset(
        axis
        for entry in spec
        if entry
        for axis in (entry if isinstance(entry, tuple) else (entry,))
    )


def varying_axes(module, mesh, varying=None):
    """For every instruction, the mesh axes along which devices may differ in its value.

    (computation name, instruction name) → axis names, over all times that the
    computation is reached; of a tuple, those of its elements together.
    """
    axes = {}

    class Watched(Walk):
        def _enter(self, place, arguments, within):
            for i in place.computation.parameters.values():
                note(place, i, arguments[int(i.inside)])
            return super()._enter(place, arguments, within)

        def _result(self, place, i, *rest):
            value = super()._result(place, i, *rest)
            note(place, i, value)
            return value

    def note(place, i, tree):
        key = place.computation.name, i.name
        values = classes.flat(tree)
        differ = {a for a in mesh for v in values if classes.varies(v.classes, mesh, a)}
        axes[key] = axes.get(key, frozenset()) | differ

    known_classes = {
        n: classes.along(mesh, named) for n, named in (varying or {}).items()
    }
    Watched(module, prod(mesh.values()), known_classes)
    return axes


@pytest.mark.parametrize(
    "spec", [P(), P("data"), P(None, "model"), P(("model", "data")), P("model", "data")]
)
def test_what_this_jax_prints_of_an_argument(spec):
    x = jax.ShapeDtypeStruct((8, 8), F32, sharding=NamedSharding(mesh_of(M42), spec))
    text = jax.jit(lambda x: x * 2).lower(x).compile().as_text()
    axes_of = varying_axes(parse(text), M42)
    entry = parse(text).entry
    printed = "sharding=" in entry.parameters[0].rest
    # Without a printed sharding it may differ everywhere.
    want = axes_in(spec) if printed else DM
    assert axes_of[entry.name, entry.parameters[0].name] == want


# --- Programs compiled here --------------------------------------------------------


def compiled(f, mesh, *arrays, **options):
    """(text, the axes of each argument) of f, compiled for (shape, spec) arrays."""
    arguments = [
        jax.ShapeDtypeStruct(shape, F32, sharding=NamedSharding(mesh, spec))
        for shape, spec in arrays
    ]
    f = f if hasattr(f, "lower") else jax.jit(f, **options)
    text = f.lower(*arguments).compile().as_text()
    return text, {n: axes_in(spec) for n, (_, spec) in enumerate(arrays)}


def work_of(f, mesh, *arrays, read=work, **options):
    text, axes = compiled(f, mesh, *arrays, **options)
    return read(parse(text), dict(mesh.shape), axes)


B, K, N = 64, 96, 160


@pytest.mark.parametrize(
    ("x", "w", "redundancy", "idle"),
    [
        (P("data"), P(), 2.0, ("model",)),
        (P(), P(), 8.0, ("data", "model")),
        (P("data"), P(None, "model"), 1.0, ()),
        (P(), P(None, "model"), 4.0, ("data",)),
        (P(None, "model"), P("model"), 4.0, ("data",)),
        # The misplaced weight: gathered, and the model axis has nothing to do.
        (P("data"), P("data"), 2.0, ("model",)),
        # The axis that both want: one of them is gathered, and data idles.
        (P("model"), P(None, "model"), 4.0, ("data",)),
    ],
)
def test_one_matmul(x, w, redundancy, idle):
    work = work_of(jnp.matmul, mesh_of(M42), ((B, K), x), ((K, N), w))
    assert work.flops == 2 * B * K * N * redundancy / 8
    assert work == Work(
        int(work.flops), False, redundancy, idle, dict.fromkeys(idle, 1.0)
    )
    grid = np.array(work.pieces).reshape(4, 2)
    assert {*work.pieces} == {*range(int(8 / redundancy))}
    alike = {"data": (grid == grid[:1]).all(), "model": (grid == grid[:, :1]).all()}
    assert tuple(axis for axis, is_alike in alike.items() if is_alike) == idle


# Sixty-four devices don't fit beside the eight of this process.
MANY = """
import json, sys
import jax
jax.config.update("jax_num_cpu_devices", 64)
import jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from spmd_helpers._hlo.work import work
from spmd_helpers._hlo.parser import parse
for a, b in ((2, 2), (2, 4), (4, 2), (4, 4), (2, 8), (8, 2), (4, 8), (8, 4), (8, 8)):
    mesh = Mesh(np.array(jax.devices()[: a * b]).reshape(a, b), ("data", "model"))
    for x, w, axis in ((P("data"), P("data"), "data"), (P("model"), P(None, "model"), "model")):
        arguments = [
            jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, spec))
            for shape, spec in (((64, 128), x), ((128, 256), w))
        ]
        text = jax.jit(jnp.matmul).lower(*arguments).compile().as_text()
        axes = frozenset({axis})
        seen = work(parse(text), dict(mesh.shape), {0: axes, 1: axes})
        true = a * b * seen.flops / (2 * 64 * 128 * 256)
        print(json.dumps([axis, a, b, true, seen.redundancy, seen.idle_axes]))
"""


def test_a_misplaced_weight_and_an_axis_used_twice_on_nine_meshes():
    done = subprocess.run(
        [sys.executable, "-c", MANY],
        env=dict(os.environ, JAX_PLATFORMS="cpu"),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(rows) == 18
    for axis, data, model, true, redundancy, idle in rows:
        if axis == "model":  # batch on model, columns on model
            want, named = data, ["data"]
        elif data > model:  # the weight cut along data like the batch: gathered
            want, named = model, ["model"]
        else:  # reduced instead
            want, named = 1, []
        assert (true, redundancy, idle) == (want, want, named)


def layer(h, w):
    return h + jnp.maximum(h @ w[0], 0) @ w[1], None


def loss(ws, h, step=layer):
    return jnp.square(lax.scan(step, h, ws)[0]).mean()


LAYERS, HIDDEN = 3, 128
WEIGHTS = (((LAYERS, K, HIDDEN), P()), ((LAYERS, HIDDEN, K), P()))
ONE = 2 * (B // 4) * K * HIDDEN  # one product, on one of 4 devices along data


def test_scanned_layers():
    mesh = mesh_of(M42)
    work = work_of(lambda a, b, h: loss((a, b), h), mesh, *WEIGHTS, ((B, K), P("data")))
    assert work == Work(LAYERS * 2 * ONE, False, 2.0, ("model",), {"model": 1.0})


def test_scans_in_a_scan():
    def twice(a, b, h):
        return lax.fori_loop(0, 5, lambda _, h: lax.scan(layer, h, (a, b))[0], h)

    work = work_of(twice, mesh_of(M42), *WEIGHTS, ((B, K), P("data")))
    assert work.flops == 5 * LAYERS * 2 * ONE


@pytest.mark.parametrize("recompute", [False, True])
def test_gradient_of_scanned_layers(recompute):
    step = jax.checkpoint(layer) if recompute else layer

    def f(a, b, h):
        # The barrier keeps the first product from being shared with the recomputed.
        return jax.grad(lambda ws: loss(ws, h, step))((a, b))

    work = work_of(f, mesh_of(M42), *WEIGHTS, ((B, K), P("data")))
    # Two forward and four backward a layer; of the first one's result, which the
    # relu and the second weight's gradient need, one more.
    assert work.flops == LAYERS * (7 if recompute else 6) * ONE
    assert (work.redundancy, work.idle_axes) == (2.0, ("model",))


def test_unrolled_layers_are_as_many():
    def unrolled(a, b, h):
        for n in range(LAYERS):
            h, _ = layer(h, (a[n], b[n]))
        return h

    work = work_of(unrolled, mesh_of(M42), *WEIGHTS, ((B, K), P("data")))
    assert work.flops == LAYERS * 2 * ONE


def test_fsdp_repeats_nothing():
    mesh = jax.make_mesh((8,), ("data",), (AxisType.Auto,))
    by_rows, rows = P(None, "data"), NamedSharding(mesh, P("data"))

    def f(a, b, h):
        def step(h, w):
            h, _ = layer(h, w)
            return lax.with_sharding_constraint(h, rows), None

        return jax.grad(lambda ws: loss(ws, h, step))((a, b))

    work = work_of(
        f, mesh, *[(shape, by_rows) for shape, _ in WEIGHTS], ((B, K), P("data")),
        out_shardings=(NamedSharding(mesh, by_rows),) * 2,
    )  # fmt: skip
    assert work == Work(LAYERS * 6 * ONE // 2, False, 1.0, (), {})


def test_one_device():
    text = jax.jit(jnp.matmul).lower(jnp.ones((6, 10)), jnp.ones((10, 4))).compile()
    assert work(parse(text.as_text()), {}) == Work(2 * 6 * 10 * 4, False, 1.0, (), {})


def test_an_axis_of_size_one_is_not_idle():
    mesh = jax.make_mesh((8, 1), ("data", "model"), (AxisType.Auto,) * 2)
    work = work_of(jnp.matmul, mesh, ((B, K), P("data")), ((K, N), P()))
    assert (work.redundancy, work.idle_axes) == (1.0, ())


TWO_PRODUCTS = """HloModule jit_f, num_partitions=4

ENTRY main {
  x = f32[6,10] parameter(0)
  w = f32[10,4] parameter(1)
  v = f32[10,2] parameter(2)
  y = f32[6,4] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  z = f32[6,2] dot(x, v), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT r = (f32[6,4], f32[6,2]) tuple(y, z)
}"""


def test_pieces_are_those_of_the_largest_product():
    along = {0: frozenset({"a"}), 1: frozenset(), 2: frozenset({"b"})}
    counted = work(parse(TWO_PRODUCTS), {"a": 2, "b": 2}, along)
    assert counted.pieces == (0, 0, 1, 1)
    nothing = TWO_PRODUCTS.replace("dot(x, w)", "abs(x)").replace("dot(x, v)", "abs(x)")
    assert work(parse(nothing), {"a": 2, "b": 2}, along).pieces == ()


def test_part_of_the_work_is_repeated():
    mesh = mesh_of(M42)
    work = work_of(
        lambda x, w, v: (x @ w, x @ v),
        mesh,
        ((B, K), P("data")), ((K, N), P(None, "model")), ((K, N), P()),
    )  # fmt: skip
    once, twice = 2 * B * K * N // 8, 2 * B * K * N // 4
    assert work.flops == once + twice
    assert work.redundancy == pytest.approx(8 * (once + twice) / (2 * 2 * B * K * N))
    assert work.redundant_over == {"model": pytest.approx(2 / 3)}
    assert work.idle_axes == ()
    assert work.pieces == (0, 0, 1, 1, 2, 2, 3, 3)  # those of the larger product


def test_shard_map():
    def f(x, w):  # x [16, 96], w [96, 80] on each device
        return jax.lax.psum(x @ w, "data")

    mesh = mesh_of(M42)
    mapped = jax.shard_map(
        f, mesh=mesh, in_specs=(P("data"), P(None, "model")), out_specs=P(None, "model")
    )
    work = work_of(mapped, mesh, ((B, K), P("data")), ((K, N), P(None, "model")))
    assert work == Work(2 * 16 * 96 * 80, False, 1.0, (), {})


def test_shard_map_where_each_device_takes_its_own_part():
    def f(x, w):  # everyone has all of x, and takes the rows of its place along data
        mine = lax.dynamic_slice(x, (lax.axis_index("data") * 16, 0), (16, K))
        return mine @ w

    mesh = mesh_of(M42)
    mapped = jax.shard_map(f, mesh=mesh, in_specs=(P(), P()), out_specs=P("data"))
    work = work_of(mapped, mesh, ((B, K), P()), ((K, N), P()))
    assert work == Work(2 * 16 * K * N, False, 2.0, ("model",), {"model": 1.0})


def test_pmap():
    mapped = jax.pmap(
        lambda x, w: lax.psum(x @ w, "i"), axis_name="i", in_axes=(0, None)
    )
    lowered = mapped.lower(jnp.ones((8, 4, 10)), jnp.ones((10, 6)))
    program = parse(lowered.compile().as_text())
    counted = work(program, {"i": 8}, {0: frozenset({"i"}), 1: NONE})
    assert counted == Work(2 * 4 * 10 * 6, False, 1.0, (), {})


def test_a_pipeline_in_which_one_stage_at_a_time_works():
    # Only the stage whose turn it is multiplies: nobody repeats another's work.
    def f(x, w):
        me = lax.axis_index("i")
        return lax.cond(me == 3, lambda: x @ w, lambda: jnp.zeros((B, N)))[None]

    mesh = jax.make_mesh((8,), ("i",), (AxisType.Auto,))
    mapped = jax.shard_map(
        f, mesh=mesh, in_specs=(P(), P()), out_specs=P("i"), check_vma=False
    )
    work = work_of(mapped, mesh, ((B, K), P()), ((K, N), P()))
    assert work == Work(2 * B * K * N, True, 1.0, (), {})


# --- Loops and branches whose length nobody knows -----------------------------------


def until_small(inside, outside):
    """A product before a loop of unknown length, and one in it."""

    def f(x, w, v):
        def body(state):
            h, n = state
            return jnp.tanh(h @ v), n + 1

        return lax.while_loop(lambda s: s[0].sum() > 1.0, body, (x @ w, 0))[0]

    mesh = mesh_of(M42)
    return work_of(f, mesh, ((B, K), P("data")), ((K, K), outside), ((K, K), inside),
                out_shardings=NamedSharding(mesh, P("data")))  # fmt: skip


def test_a_loop_of_unknown_length():
    # Everything is repeated along model, however often the loop runs.
    assert until_small(P(), P()) == Work(None, False, 2.0, ("model",), {"model": 1.0})


LOOP = """HloModule jit_f, num_partitions=8

%body (t: (f32[8,8], f32[8,8], s32[])) -> (f32[8,8], f32[8,8], s32[]) {{
  %t = (f32[8,8], f32[8,8], s32[]) parameter(0)
  %h = f32[8,8] get-tuple-element(%t), index=0
  %v = f32[8,8] get-tuple-element(%t), index=1
  %n = s32[] get-tuple-element(%t), index=2
  %one = s32[] constant(1)
  %next = s32[] add(%n, %one)
  %y = f32[8,8] dot(%h, %v), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  ROOT %o = (f32[8,8], f32[8,8], s32[]) tuple(%y, %v, %next)
}}

%test (t: (f32[8,8], f32[8,8], s32[])) -> pred[] {{
  %t = (f32[8,8], f32[8,8], s32[]) parameter(0)
  %n = s32[] get-tuple-element(%t), index=2
  %limit = s32[] {limit}
  {more}
  ROOT %c = pred[] compare(%n, %limit), direction=LT
}}

ENTRY %main (x: f32[8,8], w: f32[8,8], v: f32[8,8]) -> f32[8,8] {{
  %x = f32[8,8] parameter(0)
  %w = f32[8,8] parameter(1)
  %v = f32[8,8] parameter(2)
  %zero = s32[] constant({start})
  %before = f32[8,8] {before}
  %t = (f32[8,8], f32[8,8], s32[]) tuple(%before, %v, %zero)
  %l = (f32[8,8], f32[8,8], s32[]) while(%t), condition=%test, body=%body
  %r = f32[8,8] get-tuple-element(%l), index=0
  ROOT %z = f32[8,8] {after}
}}
"""
DOT = "dot({}), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}"


def loop(limit="constant(5)", start=0, before="copy(%x)", after="copy(%r)", more=""):
    return LOOP.format(limit=limit, start=start, more=more, before=before, after=after)


def looped(x, v, **changes):
    return work(parse(loop(**changes)), M42, {0: x, 1: DM, 2: v})


CUBE = 2 * 8**3


def test_loop_read_from_its_condition():
    assert looped(D, NONE) == Work(5 * CUBE, False, 2.0, ("model",), {"model": 1.0})
    assert looped(D, NONE, start=5) == Work(0, False, None, (), {})


def test_unknown_length_and_different_work_around():
    unknown, dot = "custom-call()", DOT.format("%x, %w")
    # The product before is different everywhere, and so, from it, is the one inside.
    assert looped(D, NONE, limit=unknown, before=dot) == Work(None, False, 1.0, (), {})
    # Before the loop 8 times the same, in it 2 times: what together depends on how
    # often it runs; at least the second is certain.
    text = loop(limit=unknown, after=DOT.format("%w, %w"))
    counted = work(parse(text), M42, {0: D, 1: NONE, 2: NONE})
    assert counted == Work(None, False, None, ("model",), {"model": 1.0})
    # Two loops' worth that agree need no count.
    counted = work(parse(text), M42, {0: D, 1: D, 2: NONE})
    assert counted == Work(None, False, 2.0, ("model",), {"model": 1.0})


def test_an_unknown_loop_without_products():
    text = loop(limit="custom-call()", after=DOT.format("%r, %w"))
    text = text.replace("dot(%h, %v)", "add(%h, %v)")
    assert work(parse(text), M42, {0: D, 1: NONE, 2: NONE}).flops == CUBE


def test_a_product_in_the_condition_runs_once_more():
    more = (
        "%q = f32[8,8] get-tuple-element(%t), index=1\n  %p = f32[8,8] "
        + DOT.format("%q, %q")
    )
    assert looped(D, NONE, more=more).flops == (5 + 6) * CUBE


def test_what_a_loop_carries_spreads_until_it_is_stable():
    # v is the same everywhere, h is cut: after one turn so is everything made of it.
    text = loop()
    text = text.replace("tuple(%y, %v, %next)", "tuple(%v, %y, %next)")
    axes_of = varying_axes(parse(text), M42, {0: NONE, 1: NONE, 2: D})
    assert axes_of["body", "h"] == axes_of["body", "v"] == D
    assert axes_of["main", "r"] == D


def test_what_a_loop_makes_replaces_what_was_there():
    text = loop()
    text = text.replace("tuple(%y, %v, %next)", "tuple(%v, %v, %next)")
    assert varying_axes(parse(text), M42, {0: D, 1: NONE, 2: NONE})["main", "z"] == NONE
    once = text.replace("constant(5)", "custom-call()")  # or it may not have run
    assert varying_axes(parse(once), M42, {0: D, 1: NONE, 2: NONE})["main", "z"] == D


def test_devices_that_leave_a_loop_at_different_times():
    more = "%me = u32[] partition-id()\n  %my = s32[] convert(%me)"
    text = loop(more=more).replace("compare(%n, %limit)", "compare(%n, %my)")
    axes_of = varying_axes(parse(text), M42, {0: NONE, 1: NONE, 2: NONE})
    assert axes_of["main", "z"] == axes_of["body", "next"] == DM
    assert axes_of["body", "v"] == NONE  # it passes through
    assert work(parse(text), M42, {0: NONE, 1: NONE, 2: NONE}).flops is None


BRANCHES = """HloModule jit_f, num_partitions=8

%some (p: (f32[8,8], f32[8,8])) -> f32[8,8] {{
  %p = (f32[8,8], f32[8,8]) parameter(0)
  %a = f32[8,8] get-tuple-element(%p), index=0
  %b = f32[8,8] get-tuple-element(%p), index=1
  ROOT %y = f32[8,8] {first}
}}

%none (p: (f32[8,8], f32[8,8])) -> f32[8,8] {{
  %p = (f32[8,8], f32[8,8]) parameter(0)
  ROOT %y = f32[8,8] get-tuple-element(%p), index={index}
}}

ENTRY %main (x: f32[8,8], w: f32[8,8], k: s32[]) -> f32[8,8] {{
  %x = f32[8,8] parameter(0)
  %w = f32[8,8] parameter(1)
  %k = s32[] parameter(2)
  %t = (f32[8,8], f32[8,8]) tuple(%x, %w)
  ROOT %r = f32[8,8] conditional(%k, %t, %t), {branches}
}}
"""


def branched(
    first=None, index=0, branches="branch_computations={%some, %none}", k=NONE
):
    first = first or DOT.format("%a, %b")
    program = parse(BRANCHES.format(first=first, index=index, branches=branches))
    axes = {0: D, 1: NONE, 2: k}
    return work(program, M42, axes), varying_axes(program, M42, axes)["main", "r"]


def test_of_a_conditional_the_branch_with_most():
    most = Work(CUBE, True, 2.0, ("model",), {"model": 1.0})
    assert branched() == (most, D)
    swapped = "true_computation=%none, false_computation=%some"
    assert branched(branches=swapped) == (most, D)
    same = "branch_computations={%some, %some}"
    assert branched(branches=same)[0] == Work(
        CUBE, False, 2.0, ("model",), {"model": 1.0}
    )


def test_what_a_conditional_makes():
    assert branched("copy(%b)", index=1) == (Work(0), NONE)
    assert branched("copy(%b)", index=0)[1] == D
    assert branched("copy(%b)", index=1, k=M)[1] == M
    # Nobody knows which of them take the branch; where they do it is the same work.
    assert branched(k=M)[0].redundancy == 1.0


def test_who_takes_a_branch():
    # Of 8 devices that all have the same, 0 and 1 multiply, then 0, then all but 0.
    named = "true_computation=%{}, false_computation=%{}"
    for which, branches, redundancy in (
        ("shift-right-logical(%me, %one)", "branch_computations={%some, %none}", 8 / 7),
        ("copy(%me)", "branch_computations={%some, %none}", 1),
        ("copy(%me)", "branch_computations={%none, %some}", 8 / 2),
        ("compare(%me, %one), direction=GT", named.format("some", "none"), 8 / 3),
        ("compare(%me, %one), direction=GT", named.format("none", "some"), 8 / 7),
    ):
        text = BRANCHES.format(first=DOT.format("%b, %b"), index=1, branches=branches)
        kind = "pred[]" if "compare" in which else "u32[]"
        selector = f"%me = u32[] partition-id()\n  %one = u32[] constant(1)\n  %q = {kind} {which}"
        text = text.replace("%k = s32[] parameter(2)", selector).replace("(%k,", "(%q,")
        counted = work(parse(text), M42, {0: NONE, 1: NONE})
        assert counted == Work(CUBE, True, pytest.approx(redundancy), (), {})


def test_a_kernel_that_says_nothing():
    first = 'custom-call(%a, %b), custom_call_target="tpu_custom_call"'
    assert branched(first)[0] == Work(None, False, None, (), {})


# --- Values -------------------------------------------------------------------------

SHOWN = """HloModule jit_f, num_partitions=8

%apply (q: f32[8]) -> f32[8] {{
  ROOT %q = f32[8] parameter(0)
}}

%gathered (q: f32[8]) -> f32[64] {{
  %q = f32[8] parameter(0)
  ROOT %g = f32[64] all-gather(%q), replica_groups={{}}, dimensions={{0}}
}}

%begins (q: f32[8]) -> (f32[8], f32[64], u32[]) {{
  %q = f32[8] parameter(0)
  %g = f32[64] all-gather(%q), replica_groups={{}}, frontend_attributes={{chain_id="0"}}
  ROOT %s = (f32[8], f32[64], u32[]) custom-call(%g), custom_call_target="AsyncCollectiveStart"
}}

%ends (q: f32[8], f: f32[64]) -> f32[64] {{
  %q = f32[8] parameter(0)
  %f = f32[64] parameter(1)
  %g = f32[64] all-gather(%q), replica_groups={{}}, frontend_attributes={{chain_id="0"}}
  ROOT %d = f32[64] custom-call(%q, %f, %g), custom_call_target="AsyncCollectiveDone"
}}

ENTRY %main (x: f32[8], y: f32[8]) -> f32[8] {{
  %x = f32[8] parameter(0)
  %y = f32[8] parameter(1)
  %one = u32[] constant(1)
  %table = u32[8] constant({{0, 0, 1, 1, 2, 2, 3, 3}})
  %me = u32[] partition-id()
  {lines}
}}
"""


VALUES = (
    [
        # x is cut along data, y is the same everywhere.
        ("add(%x, %y)", D), ("add(%y, %y)", NONE), ("iota(), iota_dimension=0", NONE),
        ("constant({1, 2})", NONE), ("rng-bit-generator(%y)", NONE), ("rng(%y)", DM),
        ("infeed(%y)", DM), ("copy(%x)", D), ("convert(%me)", DM),
        ('custom-call(%y), custom_call_target="f", custom_call_has_side_effect=true', DM),
        ('custom-call(%y), custom_call_target="f"', NONE),
        ("custom-call(), custom_call_target=\"AllocateBuffer\"", NONE),
        # Exchanges.
        ("all-gather(%x), replica_groups=[2,4]<=[4,2]T(1,0), dimensions={0}", NONE),
        ("all-gather(%x), replica_groups=[4,2]<=[8], dimensions={0}", D),
        ("all-reduce(%x), replica_groups={{0,2},{4,6},{1,3},{5,7}}, to_apply=%a", D),
        ("all-reduce(%x), replica_groups=mesh['a'=4,'b'=2] {'a'}, to_apply=%a", NONE),
        ("all-reduce(%x), replica_groups={}, to_apply=%a", NONE),
        ("reduce-scatter(%y), replica_groups=[4,2]<=[8], to_apply=%a", M),
        ("collective-permute(%x), source_target_pairs={{0,1},{1,0},{2,3},{3,2},{4,5},{5,4},{6,7},{7,6}}", D),
        ("collective-permute(%y), source_target_pairs={{0,1},{2,3},{4,5},{6,7}}", M),
        # Numbers made of the device's own.
        ("dynamic-slice(%table, %me), dynamic_slice_sizes={1}", D),
        ("shift-right-logical(%me, %one)", D), ("and(%me, %one)", M),
        ("compare(%me, %one), direction=LT", DM), ("remainder(%me, %one)", NONE),
        ("divide(%me, %one)", DM), ("multiply(%table, %me)", DM), ("negate(%me)", DM),
        ("broadcast(%me), dimensions={}", DM), ("replica-id()", NONE),
        ("fusion(%x), kind=kLoop, calls=%apply", D), ("call(%x), to_apply=%apply", D),
        ("fusion(%x), kind=kLoop, calls=%gathered", NONE),
    ]
)  # fmt: skip


@pytest.mark.parametrize(("line", "axes"), VALUES)
def test_axes_of_values(line, axes):
    kind = "f32[8]" if "%x" in line or "%y" in line else "u32[]"
    kind = {"dynamic-slice(%table": "u32[1]", "multiply(%table": "u32[8]"}.get(
        line.partition(",")[0], kind
    )
    assert shown([f"ROOT %r = {kind} {line}"]) == axes


def shown(lines):
    program = parse(SHOWN.format(lines="\n  ".join(lines)))
    return varying_axes(program, M42, {0: D, 1: NONE})["main", "r"]


def test_asynchronous_pairs():
    start = "%s = ((f32[8]), f32[64]) all-gather-start(%x), replica_groups={}"
    assert shown([start, "ROOT %r = f32[64] all-gather-done(%s)"]) == NONE
    two = "((f32[8], f32[8]), (f32[8], f32[8]))"
    start = f"%s = {two} all-reduce-start(%x, %y), replica_groups=[4,2]<=[8]"
    done = "%d = (f32[8], f32[8]) all-reduce-done(%s)"
    for index, axes in ((0, D), (1, NONE)):
        element = f"ROOT %r = f32[8] get-tuple-element(%d), index={index}"
        assert shown([start, done, element]) == axes
    start = "%s = ((f32[8]), f32[64]) async-start(%x), calls=%gathered"
    update = "%u = ((f32[8]), f32[64]) async-update(%s)"
    assert shown([start, update, "ROOT %r = f32[64] async-done(%u)"]) == NONE
    start = "%s = (f32[8], f32[8], u32[]) copy-start(%x)"
    assert shown([start, "ROOT %r = f32[8] copy-done(%s)"]) == D


def test_a_collective_that_tpu_prints_where_it_starts_and_where_it_ends():
    lines = [
        "%s = (f32[8], f32[64], u32[]) fusion(%x), kind=kCustom, calls=%begins",
        "%f = f32[64] get-tuple-element(%s), index=1",
        "ROOT %r = f32[64] fusion(%x, %f), kind=kCustom, calls=%ends",
    ]
    assert shown(lines) == NONE


def test_tuples_element_by_element():
    lines = ["%t = (f32[8], (f32[8], f32[8])) tuple(%x, %u)"]
    inner = "%u = (f32[8], f32[8]) tuple(%y, %x)"
    for path, axes in (((0,), D), ((1, 0), NONE), ((1, 1), D)):
        last, got = "t", [inner, *lines]
        for n, index in enumerate(path):
            got.append(f"%e{n} = f32[8] get-tuple-element(%{last}), index={index}")
            last = f"e{n}"
        assert shown([*got, f"ROOT %r = f32[8] copy(%{last})"]) == axes
    assert shown([inner, *lines, "ROOT %r = f32[8] custom-call(%t)"]) == D
    # A variadic exchange gives each its own, but for an all-to-all.
    mixed = "%b = (f32[8], f32[8]) all-to-all(%x, %y), replica_groups=[4,2]<=[8]"
    element = "ROOT %r = f32[8] get-tuple-element(%b), index=1"
    assert shown([mixed, element]) == DM
    both = "%b = (f32[8], f32[8]) all-reduce(%x, %y), replica_groups=[4,2]<=[8]"
    for index, axes in ((0, D), (1, NONE)):
        element = f"ROOT %r = f32[8] get-tuple-element(%b), index={index}"
        assert shown([both, element]) == axes


def test_an_argument_of_which_nothing_is_known_differs_everywhere():
    program = parse(SHOWN.format(lines="ROOT %r = f32[8] add(%x, %y)"))
    axes_of = varying_axes(program, M42, {1: M})
    assert (axes_of["main", "x"], axes_of["main", "y"]) == (DM, M)


PARTLY = """HloModule jit_f, num_partitions=8

ENTRY %main (x: f32[8,8], w: f32[8,8], v: f32[8,8]) -> f32[8,8] {
  %x = f32[8,8] parameter(0)
  %w = f32[8,8] parameter(1)
  %v = f32[8,8] parameter(2), sharding={replicated}
  %y = f32[8,8] dot(%x, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT %z = f32[8,8] dot(%x, %v), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
"""


def test_a_share_of_the_work():
    mesh = {**M42, "one": 1}
    counted = work(parse(PARTLY), mesh, {0: D, 1: M})
    # Of 16 products by 8 devices, 8 and 4 are different ones.
    assert counted == Work(2 * CUBE, False, pytest.approx(16 / 12), (), {"model": 0.5})


def test_replicas_have_numbers_too():
    text = SHOWN.format(lines="ROOT %r = u32[] {}").replace(
        "num_partitions=8", "replica_count=8"
    )
    for opcode, axes in (("replica-id()", DM), ("partition-id()", NONE)):
        program = parse(text.replace("ROOT %r = u32[] {}", f"ROOT %r = u32[] {opcode}"))
        assert varying_axes(program, M42)["main", "r"] == axes


# What NumPy makes of the same numbers, in the same type.
ARITHMETIC = {
    "add": np.add, "subtract": np.subtract, "multiply": np.multiply,
    "divide": lambda a, b: np.trunc(a.astype(np.int64) / b), "remainder": np.fmod,
    "minimum": np.minimum, "maximum": np.maximum, "and": np.bitwise_and,
    "or": np.bitwise_or, "xor": np.bitwise_xor, "negate": np.negative, "abs": np.abs,
    "sign": np.sign, "not": np.invert, "compare LT": np.less, "compare GE": np.greater_equal,
    "compare EQ": np.equal, "compare NE": np.not_equal, "clamp": lambda a, b: np.clip(a, 3, b),
    "select": lambda a, b: np.where(a != 0, a, b), "convert": lambda a: a,
    "shift-left": np.left_shift, "shift-right-logical": np.right_shift,
}  # fmt: skip
OF_ONE = ("negate", "abs", "sign", "not", "convert")
LOGIC = ("and", "or", "xor", "not", "convert", "select")
TYPES = {"s32": np.int32, "u32": np.uint32, "s8": np.int8, "pred": np.bool_}
CASES = [
    (name, t) for name in ARITHMETIC for t in TYPES if t != "pred" or name in LOGIC
]
NUMBERS = st.integers(-9, 9) | st.integers(-(2**31), 2**32 - 1)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    st.sampled_from(CASES),
    st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=4),
)
def test_integers_as_numpy_makes_them(case, pairs):
    (name, dtype), kind = case, TYPES[case[1]]
    left, right = np.array(pairs).astype(kind).T
    if name in ("divide", "remainder"):
        right = np.where(right == 0, kind(1), right)
    if name.startswith("shift"):  # of what is not negative, by less than the type has
        left, right = left & kind(127), right & kind(7)
    if name == "clamp":
        right = np.maximum(right, kind(3))
    operands = [left] if name in OF_ONE else [left, right]
    given = [tuple(int(n) for n in operand) for operand in operands]
    if name == "select":
        given.insert(0, tuple(int(n != 0) for n in left))
    if name == "clamp":
        given.insert(0, (3,) * len(left))
    opcode, _, order = name.partition(" ")
    line = f"{'pred' if order else dtype}[] {opcode}(%a, %b), direction={order}"
    text = f"HloModule m\n\nENTRY %e () -> s32[] {{\n  ROOT %r = {line}\n}}\n"
    with np.errstate(all="ignore"):
        want = ARITHMETIC[name](*operands).astype(np.bool_ if order else kind)
    assert compute(parse(text).entry.root, given) == tuple(int(n) for n in want)


@pytest.mark.parametrize(
    ("line", "given"),
    [
        ("u32[] divide(%a, %b)", [(3, 3), (1, 0)]),
        ("u32[] shift-left(%a, %b)", [(3, 3), (1, 64)]),
        ("s32[] shift-right-logical(%a, %b)", [(-3, 3), (1, 1)]),
        ("u32[4,2] broadcast(%a), dimensions={0}", [((1, 2, 3, 4), (1, 2, 3, 4))]),
        ("u32[4] add(%a, %b)", [((1, 2, 3, 4), (1, 2, 3, 4)), ((1, 2), (1, 2))]),
        ("u32[2] dynamic-slice(%a, %b), dynamic_slice_sizes={2}", [((1, 2, 3), (1, 2, 3)), (0, 1)]),
        ("f32[] convert(%a)", [(3, 3)]),
        ("u32[] popcnt(%a)", [(3, 3)]),
        ("pred[] compare(%a, %b), direction=XX", [(3, 3), (1, 0)]),
    ],
)  # fmt: skip
def test_integers_that_are_not_known(line, given):
    text = f"HloModule m\n\nENTRY %e () -> s32[] {{\n  ROOT %r = {line}\n}}\n"
    assert compute(parse(text).entry.root, given) is None


# --- Against the truth: how much there was to do ------------------------------------


@st.composite
def specs(draw, axes):
    """A PartitionSpec of rank 2, of axes in any order, some of them left out."""
    entries = ([], [])
    for axis in draw(st.permutations(axes)):
        where = draw(st.integers(0, 2))
        if where < 2:
            entries[where].append(axis)
    return P(*(tuple(entry) or None for entry in entries))


MESHES = [M42, {"data": 2, "model": 4}, {"a": 2, "b": 2, "c": 2}]


@st.composite
def matmuls(draw):
    shape = draw(st.sampled_from(MESHES))
    return shape, *(draw(specs(list(shape))) for _ in range(3))


@settings(
    max_examples=30,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
@given(matmuls(), st.booleans())
def test_random_matmuls_repeat_what_is_more_than_there_was_to_do(case, backward):
    shape, x, w, out = case
    mesh = mesh_of(shape)
    there = NamedSharding(mesh, out)
    if backward:

        def f(x, w):
            def loss(x, w):
                return jnp.square(lax.with_sharding_constraint(x @ w, there)).sum()

            return jax.grad(loss, (0, 1))(x, w)

        products, options = (
            3,
            {"out_shardings": tuple(NamedSharding(mesh, s) for s in (x, w))},
        )
    else:
        f, products, options = jnp.matmul, 1, {"out_shardings": there}
    work = work_of(f, mesh, ((B, K), x), ((K, N), w), **options)
    assert work.redundancy == pytest.approx(
        8 * work.flops / (products * 2 * B * K * N), rel=0.01
    )


# --- Against the truth: what the devices hold ---------------------------------------

NOISE = np.array([101, 7003, 90001, 1237, 55001, 310007, 40009, 8123], np.int32)


def ring(size, open_at=0):
    return [(i, (i + 1) % size) for i in range(size - open_at)]


STEPS = {
    "sum": lambda x, a, n: lax.psum(x, a),
    "most": lambda x, a, n: lax.pmax(x, a),
    "gather": lambda x, a, n: lax.all_gather(x, a).T @ jnp.arange(1, n + 1, dtype=jnp.int32),
    "scatter": lambda x, a, n: jnp.tile(lax.psum_scatter(x, a, tiled=True), n),
    "ring": lambda x, a, n: lax.ppermute(x, a, ring(n)),
    "open ring": lambda x, a, n: lax.ppermute(x, a, ring(n, 1)),
    "all to all": lambda x, a, n: lax.all_to_all(x.reshape(n, -1), a, 0, 0).reshape(8),
    "number": lambda x, a, n: x + lax.axis_index(a) * 17,
    "pairs": lambda x, a, n: x + lax.axis_index(a) // 2 * 1009,
    "slice": lambda x, a, n: jnp.tile(lax.dynamic_slice(x, (lax.axis_index(a) * (8 // n),), (8 // n,)), n),
    "first": lambda x, a, n: lax.psum(jnp.where(lax.axis_index(a) == 0, x, 0), a),
    "loop": lambda x, a, n: lax.fori_loop(0, 3, lambda _, y: y * 5 + lax.ppermute(y, a, ring(n)), x),
    "scan": lambda x, a, n: lax.scan(lambda y, _: (lax.psum(y, a) * 3 + NOISE, None), x, length=2)[0],
    "turns": lambda x, a, n: lax.fori_loop(0, lax.axis_index(a) % 3, lambda _, y: y * 5 + NOISE, x),
    "branch": lambda x, a, n: lax.cond(lax.axis_index(a) % 2 == 0, lambda v: v * 3, lambda v: v * 7, x),
}  # fmt: skip


@st.composite
def exchanges(draw):
    shape = draw(st.sampled_from([*MESHES, {"a": 8}]))
    some = st.lists(st.sampled_from(list(shape)), min_size=1, unique=True).map(tuple)
    step = st.tuples(st.sampled_from(sorted(STEPS)), some)
    cut = draw(st.lists(st.sampled_from(list(shape)), unique=True))
    return (
        shape,
        tuple(cut),
        draw(st.lists(step, min_size=1, max_size=3)),
        draw(st.integers(0, 99)),
    )


@settings(
    max_examples=20,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
@given(exchanges())
def test_devices_hold_the_same_exactly_where_it_says_so(case):
    shape, cut, steps, seed = case
    mesh = mesh_of(shape)

    def f(x):
        x = x.reshape(8)
        for name, axes in steps:
            if name in ("ring", "open ring", "loop"):  # JAX takes one order only
                axes = tuple(axis for axis in shape if axis in axes)
            x = STEPS[name](x, axes, prod(shape[a] for a in axes))
            x = x * x + NOISE  # no zeros, no symmetry by accident
        return x[(None,) * len(shape)]

    here = P(cut or None)
    mapped = jax.jit(
        jax.shard_map(f, mesh=mesh, in_specs=here, out_specs=P(*shape), check_vma=False)
    )
    data = np.random.default_rng(seed).integers(
        1, 10**6, (prod(shape[a] for a in cut), 8), dtype=np.int32
    )
    given = jax.device_put(data, NamedSharding(mesh, here))
    program = mapped.lower(given).compile()
    shards = np.asarray(program(given)).reshape(8, 8)
    walk = Walk(parse(program.as_text()), 8, {0: classes.along(shape, cut)})
    assert walk.result.classes == classes.numbered(row.tobytes() for row in shards)


# --- The TPU compiler ---------------------------------------------------------------

TPU = pytest.mark.compiler("tpu")


@pytest.fixture(scope="module")
def tpu():
    return jax.sharding.Mesh(np.array(slice_of_v5e()).reshape(4, 2), tuple(M42))


@TPU
@pytest.mark.parametrize(
    ("x", "w", "redundancy", "idle"),
    [
        (P("data"), P(), 2.0, ("model",)),
        (P(), P(), 8.0, ("data", "model")),
        (P("data", "model"), P("model"), 1.0, ()),
        (P("data"), P("data"), 2.0, ("model",)),
        (P("model"), P(None, "model"), 4.0, ("data",)),
    ],
)
def test_one_matmul_on_tpu(tpu, x, w, redundancy, idle):
    work = work_of(jnp.matmul, tpu, ((2048, 1024), x), ((1024, 4096), w))
    assert work.flops == 2 * 2048 * 1024 * 4096 * redundancy / 8
    assert (work.redundancy, work.idle_axes) == (redundancy, idle)


@TPU
def test_a_scanned_gradient_on_tpu(tpu):
    step = jax.checkpoint(layer)

    def f(a, b, h):
        return jax.grad(lambda ws: loss(ws, h, step))((a, b))

    weights = [
        ((LAYERS, 512, 2048), P(None, "data")),
        ((LAYERS, 2048, 512), P(None, None, "data")),
    ]
    work = work_of(f, tpu, *weights, ((1024, 512), P("data")))
    assert work.flops == LAYERS * 7 * 2 * 256 * 512 * 2048
    assert (work.redundancy, work.idle_axes) == (2.0, ("model",))


@TPU
def test_batched_products_on_tpu(tpu):
    def scores(q, k):
        return jnp.einsum("bshd,bthd->bhst", q, k)

    heads = P("data", None, "model")
    work = work_of(scores, tpu, ((8, 256, 6, 64), heads), ((8, 384, 6, 64), heads))
    assert work == Work(2 * 2 * 256 * 384 * 3 * 64, False, 1.0, (), {})


# --- Mutants: a walk broken in one place must miss some answer above ----------------

MUTANTS = [
    ("_hlo.opcodes:does", "'-done'", "'-never'"),
    ("_hlo.work:_largest", "max($flops, default=(0, ()))",
     "min($flops, default=(0, ()))"),
    ("_hlo.opcodes:base", "$opcode.removesuffix('-start')", "$opcode"),
    ("_hlo.replication:Walk._element", "$whole[$i.index]", "$whole[0]"),
    ("_hlo.replication:Walk._loop", "$result if $times else $state", "$state"),
    ("_hlo.replication:Walk._loop", "$result if $times else $state", "$result"),
    ("_hlo.replication:Walk._loop", "$after == $state", "True"),
    ("_hlo.replication:Walk._loop", "None if $times is None else $times + 1", "$times"),
    ("_hlo.replication:Tally.add", "$flops * (1 if $times is None else $times)",
     "$flops"),
    ("_hlo.replication:Tally.add", "($loop, *$loops)", "$loops"),
    ("_hlo.replication:Walk._loop",
     "$result = self._left_early($loop, $result, $goes_on)",
     "self._left_early($loop, $result, $goes_on)"),
    ("_hlo.replication:Walk._left_early",
     "$part if passes_on(self.module, $loop, $n) else self.pool.mix($part, $goes_on)",
     "self.pool.mix($part, $goes_on)"),
    ("_hlo.replication:Walk._branches", "$t.flops.total()", "-$t.flops.total()"),
    ("_hlo.replication:Walk._branches",
     "any(($t.flops != $most.flops for $t in $tallies))", "True"),
    ("_hlo.replication:Walk._branches",
     "self._spread(reduce(self.pool.either, $results), $which)",
     "reduce(self.pool.either, $results)"),
    ("_hlo.replication:Walk._branches", "reduce(self.pool.either, $results)",
     "$results[0]"),
    ("_hlo.replication:Walk._branches",
     "self.pool.mix($within, $which if $taken is None else $taken[$number])",
     "$within"),
    ("_hlo.replication:Walk._branches", "$which if $taken is None else $taken[$number]",
     "$which"),
    ("_hlo.replication:Walk._taken", "$chosen = [1 - $truth for $truth in $chosen]",
     "pass"),
    ("_hlo.replication:Walk._taken", "$k if 0 <= $k < $count else $count - 1", "$k"),
    ("_hlo.replication:Walk._taken", "$k == $n or ($d,)", "$k == $n"),
    ("_hlo.opcodes:OPCODES['infeed']", "Does.ELSEWHERE", "Does.CONSTANT"),
    ("_hlo.replication:Walk._result", "'side_effect=true' in $i.rest", "False"),
    ("_hlo.replication:Walk._result", "'AsyncCollectiveDone' in $i.rest", "False"),
    ("_hlo.replication:Walk._number", "$d // $partitions", "$d"),
    ("_hlo.replication:Walk._number", "$d % $partitions", "$d"),
    ("_hlo.replication:Walk._argument", "self.pool.of($told) if $told else self.apart",
     "self.apart"),
    ("_hlo.replication:Walk._argument", "self.apart", "self.alike"),
    ("_hlo.replication:Walk._exchanged", "$made[0] if len($made) == 1 else $made",
     "$made[0]"),
    ("_hlo.replication:Walk._exchanged", "$operands = [self.pool.mix(*$operands)]",
     "pass"),
    ("_hlo.replication:Walk._count", "$tally.partial = True", "pass"),
    ("_hlo.device_classes:Values.mix", "$value.classes is not $mixed.classes", "False"),
    ("_hlo.device_classes:Values.mix",
     "zip($mixed.classes, $value.classes, strict=True)", "$value.classes"),
    ("_hlo.device_classes:Values.either",
     "isinstance($first, tuple) and isinstance($second, tuple)"
     " and len($first) == len($second)",
     "False"),
    ("_hlo.device_classes:exchanged", "$made[$device] = $inside",
     "$made[$device] = tuple(sorted($inside))"),
    ("_hlo.device_classes:exchanged", "$made[$device] = tuple(sorted($inside))",
     "$made[$device] = $inside"),
    ("_hlo.device_classes:exchanged", "($place, tuple(sorted($inside)))",
     "tuple(sorted($inside))"),
    ("_hlo.device_classes:exchanged", "$made[$target] = $held[$source]",
     "$made[$source] = $held[$target]"),
    ("_hlo.device_classes:exchanged", "[()] * len($held)", "list($held)"),
    ("_hlo.device_classes:varies", "$d // $inner % $size * $inner", "$d % $size"),
    ("_hlo.device_classes:along", "$d // $step % $size", "$d // $size % $size"),
    ("_hlo.device_classes:_of_tiles", "$sizes[-1]", "1"),
    ("_hlo.device_classes:of_sharding", r"r'\b(manual|unreduced|maximal|unknown)\b'",
     r"r'\b(manual|maximal|unknown)\b'"),
    ("_hlo.device_classes:of_sharding", r"r'replicated=\{[^}]*\}'", "'never'"),
    ("_hlo.integers:_LONGEST", "4096", "0"),
    ("_hlo.integers:_wrapped", "($a - $low) % (1 << $bits)",
     "($a + 1 - $low) % (1 << 1)"),
    ("_hlo.integers:_sliced", "min(max($index, 0), len($table) - 1)", "0"),
    ("_hlo.integers:_EACH['negate']", "-$a", "0"),
    ("_hlo.work:_useful", "max($held) + 1", "len($held)"),
    ("_hlo.work:work", "min", "max"),
    ("_hlo.work:work", "$share >= _ALL", "$share > 0"),
    ("_hlo.work:work", "$size > 1", "$size"),
    ("_hlo.work:_redundancy", "max($each) - min($each) > _EQUAL * max($each)", "False"),
    ("_hlo.work:work", "not $tally.partial and all((not $loops for $loops in $parts))",
     "all((not $loops for $loops in $parts))"),
    ("_hlo.work:_repeated", "not classes.varies($held, $mesh, $axis)",
     "classes.varies($held, $mesh, $axis)"),
]  # fmt: skip


# What is checked of a broken copy: all of the above that compiles nothing.
CHECKS = [
    *((test_fixtures_counted_by_hand, row) for row in FIXTURES),
    *((test_exchanged, row) for row in EXCHANGED),
    *((test_printed_shardings, row) for row in SPELLED),
    *((test_axes_of_values, row) for row in VALUES),
    *(
        (check, ())
        for check in (
            test_along,
            test_pieces_are_those_of_the_largest_product,
            test_varies,
            test_loop_read_from_its_condition,
            test_unknown_length_and_different_work_around,
            test_an_unknown_loop_without_products,
            test_a_product_in_the_condition_runs_once_more,
            test_what_a_loop_carries_spreads_until_it_is_stable,
            test_what_a_loop_makes_replaces_what_was_there,
            test_devices_that_leave_a_loop_at_different_times,
            test_of_a_conditional_the_branch_with_most,
            test_what_a_conditional_makes,
            test_who_takes_a_branch,
            test_an_argument_of_which_nothing_is_known_differs_everywhere,
            test_a_share_of_the_work,
            test_a_kernel_that_says_nothing,
            test_asynchronous_pairs,
            test_a_collective_that_tpu_prints_where_it_starts_and_where_it_ends,
            test_tuples_element_by_element,
            test_replicas_have_numbers_too,
        )
    ),
]


NAMES = ("work", "Walk", "Work", "classes")  # what the checks call of the module


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_broken_walk_is_noticed(broken_package, monkeypatch, mutant):
    copy = broken_package(mutant, "_hlo.work")
    assert not answers_all(monkeypatch, __name__, copy, NAMES, CHECKS)


def test_an_unbroken_copy_passes(broken_package, monkeypatch):
    copy = broken_package(None, "_hlo.work")
    assert answers_all(monkeypatch, __name__, copy, NAMES, CHECKS)


CALLED_TWICE = """HloModule jit_f, num_partitions=2

g {
  q = f32[4] parameter(0)
  ROOT a = f32[8] all-gather(q), replica_groups={{0,1}}, dimensions={0}
}

ENTRY main {
  x = f32[4] parameter(0)
  y = f32[4] parameter(1)
  u = f32[8] call(x), to_apply=g
  ROOT v = f32[8] call(y), to_apply=g
}
"""


@pytest.mark.parametrize(
    ("first", "second", "alike"),
    [((), (), (0, 0)), ((), ("x",), (0, 1)), (("x",), (), (0, 1))],
)
def test_what_devices_put_into_a_collective(first, second, alike):
    """A collective that is reached twice has what both have in common."""
    varying = {0: frozenset(first), 1: frozenset(second)}
    exchanged = work(parse(CALLED_TWICE), {"x": 2}, varying).exchanged
    assert [*exchanged.values()] == [alike]
