"""The advice of each rule, followed: what `explain` says to write instead runs.

`@cure("code")` marks a program that does what the rule's `instead` says, on the
program of `cases` that raises.
"""

import os
from pathlib import Path

import flax.linen as nn
import flax.nnx as nnx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
from flax.training import common_utils
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding, auto_axes
from jax.sharding import PartitionSpec as P

import spmd_helpers as spmd

from .cases import (
    BOX,
    DEVICES,
    EXPLICIT,
    EXPLICIT_LINE,
    LINE,
    added_in_shard_map,
    added_three_times,
    annotated,
    blocks,
    constrain,
    kernel,
    kernel_of,
    on,
    on_the_host,
    put,
    rows_to_add,
    saved,
    shard_map,
    solved,
    target,
    zeros,
)

CURES = {}
DEVICES_START = "tests/test_devices.py::test_first_call_gives_eight_cpu_devices"
HERE = "tests/explain/test_explain.py::"
MEMORY = HERE + "test_what_is_held_and_needed"
LOG = HERE + "test_lines_of_the_log"
TWO = HERE + "test_errors_of_two_processes"
START = HERE + "test_a_cluster_that_does_not_start"
CHECKPOINT = HERE + "test_a_checkpoint_of_other_devices"
OF_PROCESSES = (
    "not-on-this-process",
    "closed-over-global-array",
    "processes-disagree",
    "device-put-of-a-global-array",
    "allgather-needs-tiled",
)
# Advice that is followed by a test elsewhere: where that test is.
ELSEWHERE = {
    "too-late-for-devices": DEVICES_START,
    "no-such-backend": DEVICES_START,
    "devices-do-not-fill-the-shape": DEVICES_START,
    "too-large-for-the-chip": MEMORY,
    "no-room-for-the-program": MEMORY,
    "recompute-is-not-enough": MEMORY,
    "one-device-rematerialization": LOG,
    "full-rematerialization": LOG,
    **dict.fromkeys(OF_PROCESSES, TWO),
    "distributed-too-late": TWO,
    "initialized-twice": TWO,
    "cluster-is-not-described": TWO,
    "a-process-did-not-come": START,
    "port-is-taken": START,
    "checkpoint-of-other-devices": CHECKPOINT,
    "checkpoint-of-other-devices-in-old-orbax": CHECKPOINT,
}


def cure(*codes: str):
    """Register a program under the rules whose advice it follows."""

    def register(program):
        for code in codes:
            CURES.setdefault(code, []).append(program)
        return program

    return register


@cure("mesh-rank", "make-mesh-arguments", "mesh-too-large", "make-mesh-keyword")
def sizes_and_names_by_position():
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    other = Mesh(np.array(jax.devices()).reshape(4, 2), ("data", "model"))
    assert mesh.shape == other.shape == {"data": 4, "model": 2}


@cure("axis-types-count", "axis-types-kind", "mesh-from-a-number")
def one_type_an_axis():
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    assert mesh.axis_types == (AxisType.Auto,)


@cure("set-mesh-argument", "set-mesh-inside-jit", "with-mesh-is-old")
@cure("use-mesh-is-gone", "thread-resources-is-old", "spec-without-mesh")
def a_mesh_set_outside_of_jit():
    x = zeros(8, at=LINE, spec=("x",))
    with jax.set_mesh(x.sharding.mesh):
        assert jax.sharding.get_abstract_mesh().shape == {"x": 8}
        y = jax.jit(lambda v: constrain(v + 1, P("x")))(x)
    assert y.sharding.spec == P("x")


@cure("unknown-axis", "axis-used-twice", "spec-axis-is-not-manual", "specs-are-not-P")
def names_of_the_mesh():
    first = BOX.axis_names[0]
    on(BOX, first, None)
    f = blocks(lambda v: v, P(first), P(first), BOX, axis_names={first})
    jax.jit(f, out_shardings=on(BOX, "data"))(jnp.zeros(8))


@cure("visualize-rank")
def a_drawing_of_any_rank():
    assert "data" in str(spmd.draw(zeros(8, 8, 8, at=BOX, spec=("data",))))


@cure("pcast-not-needed")
def the_type_says_that_it_varies():
    types = []
    blocks(lambda v: types.append(str(jax.typeof(v))) or v)(jnp.arange(8.0))
    assert types == ["float32[1]{V:x}"]


@cure("forgot-P", "named-sharding-arguments", "device-put-target", "has-no-sharding")
@cure("sharding-class-is-gone", "abstract-mesh-has-no-devices")
def a_mesh_and_a_spec():
    x = put(np.zeros((8, 2)), NamedSharding(BOX, P("data", None)))
    assert x.sharding.spec == P("data", None)


@cure("spec-is-no-sharding", "spec-longer-than-shape")
def zeros_with_a_sharding():
    x = jnp.zeros((16, 6), device=NamedSharding(BOX, P("data")))
    assert x.sharding.spec == P("data")


@cure("device-put-tree", "too-many-entries")
def one_sharding_a_leaf():
    tree = {"w": jnp.zeros((4, 4)), "b": jnp.zeros(4)}
    placed = put(tree, {"w": on(BOX, None, "model"), "b": on(BOX, "model")})
    assert placed["b"].sharding.spec == P("model")


@cure("unconstrained-not-here")
def unconstrained_in_a_constraint():
    spec = P("data", P.UNCONSTRAINED)
    jax.jit(lambda y: constrain(y, NamedSharding(BOX, spec)))(jnp.zeros((8, 8)))


@cure("not-divisible")
def padded_to_sixteen():
    x = jnp.pad(jnp.zeros((10, 3)), ((0, 6), (0, 0)))
    assert put(x, on(LINE, "x")).shape == (16, 3)


@cure("result-does-not-fit-the-mesh")
def the_arrays_own_mesh_is_set():
    x = zeros(8, 4, at=BOX, spec=("data",))
    with jax.set_mesh(x.sharding.mesh):
        assert (x + 1).sharding.spec == P("data")


@cure("unbound-axis")
def a_mean_under_jit_and_a_name_under_pmap():
    x = put(jnp.arange(8.0), on(LINE, "x"))
    assert jax.jit(lambda v: v.mean())(x) == 3.5
    assert jax.pmap(lambda v: lax.pmean(v, "batch"), axis_name="batch")(x)[0] == 3.5


@cure("axis-index-under-jit")
def the_place_in_the_whole_array():
    f = jax.jit(lambda v: v + jnp.arange(v.shape[0]), in_shardings=on(LINE, "x"))
    np.testing.assert_array_equal(f(jnp.zeros(8)), np.arange(8))
    blocks(lambda v: v + lax.axis_index("x"))(jnp.zeros(8))


@cure("wrong-axis-in-shard-map")
def an_axis_of_the_mesh():
    f = blocks(lambda v: lax.psum(v, LINE.axis_names[0]), out_specs=P())
    assert f(jnp.arange(8.0)) == 28


@cure("collective-over-mixed-axes")
def the_axes_along_which_it_differs():
    x = jnp.arange(8.0)
    blocks(lambda v: lax.psum(v, "data"), P("data"), P(), BOX)(x)
    wide = lambda v: lax.pcast(v, "model", to="varying")  # noqa: E731
    blocks(lambda v: lax.psum(wide(v), ("data", "model")), P("data"), P(), BOX)(x)


@cure("all-to-all-size")
def eight_pieces():
    f = blocks(lambda v: lax.all_to_all(v, "x", 1, 0, tiled=True))
    assert f(jnp.zeros((24, 8))).shape == (192, 1)


@cure("scatter-size")
def eight_parts():
    f = blocks(lambda v: lax.psum_scatter(v, "x", tiled=True), P(None, "x"))
    assert f(jnp.zeros((16, 8))).shape == (16, 1)


@cure("ppermute-pairs", "ppermute-numbers")
def a_ring():
    def f(v):
        n = lax.axis_size("x")
        return lax.ppermute(v, "x", [(i, (i + 1) % n) for i in range(n)])

    np.testing.assert_array_equal(blocks(f)(jnp.arange(8.0)), np.roll(np.arange(8), 1))


@cure("shard-map-old-keyword", "shard-map-call", "shard-map-keyword-arguments")
@cure("shard-map-without-mesh", "axis-names-argument", "experimental-shard-map")
@cure("xmap-is-gone")
def shard_map_by_name():
    f = jax.shard_map(
        lambda batch: batch,
        mesh=BOX,
        in_specs=P("data"),
        out_specs=P("data"),
        check_vma=True,
        axis_names={"data"},
    )
    assert jax.jit(f)(jnp.zeros(8)).shape == (8,)


@cure("output-has-too-few-dimensions", "output-may-differ")
def a_number_a_device_or_one_sum():
    x = jnp.arange(8.0)
    assert blocks(lambda v: v.sum()[None])(x).shape == (8,)
    assert blocks(lambda v: lax.psum(v.sum(), "x"), out_specs=P())(x) == 28
    f = blocks(lambda v: v.sum(0), P("data", "model"), P(("data", "model")), BOX)
    f(jnp.zeros((16, 4)))


@cure("inputs-differ-from-in-specs")
def reshard_before_shard_map():
    x = zeros(8, 8, at=EXPLICIT, spec=(None, "data"))
    spec = P("data", None)
    with jax.set_mesh(EXPLICIT):
        shard_map(lambda v: v, in_specs=spec, out_specs=spec)(jax.reshard(x, spec))
        shard_map(lambda v: v, out_specs=P(None, "data"))(x)


@cure("closed-over-explicit-array")
def an_argument_more():
    v, w = (zeros(n, at=EXPLICIT_LINE, spec=("x",)) for n in (64, 64))
    blocks(lambda v, w: v + w, (P("x"), P("x")), mesh=EXPLICIT_LINE)(v, w)


@cure("constraint-on-a-manual-axis")
def a_constraint_on_the_axis_that_is_left():
    f = shard_map(
        lambda v: constrain(v * 2, P(None, "model")),
        in_specs=P("data"),
        out_specs=P("data"),
        axis_names={"data"},
    )
    with jax.set_mesh(BOX):
        jax.jit(f)(jnp.zeros((8, 8)))


@cure("pmap-rows", "pmap-rows-not-divisible")
def eight_rows():
    x = jnp.zeros((16, 3))
    x = x.reshape(jax.device_count(), -1, *x.shape[1:])
    assert jax.pmap(lambda a, v: v * a, in_axes=(None, 0))(2.0, x).shape == (8, 2, 3)


@cure("pmap-nothing-mapped", "pmap-scalar", "pmap-axis-size", "pmap-out-axes")
def a_state_that_is_not_mapped():
    state = optax.adam(1e-3).init({"w": jnp.ones(3)})
    step = lambda state, x: (state[0].count, x)  # noqa: E731
    jax.pmap(step, in_axes=(None, 0), out_axes=0)(state, jnp.zeros((8, 3)))


@cure("nested-pmap")
def one_mesh_of_two_axes():
    spec = P("data", "model")
    assert blocks(lambda u: u + 1, spec, spec, BOX)(jnp.zeros((4, 2))).shape == (4, 2)


@cure("nested-shard-map")
def an_inner_one_without_a_mesh():
    inner = shard_map(
        lambda v: v * lax.axis_size("model"),
        in_specs=P(None, "model"),
        out_specs=P(None, "model"),
        axis_names={"model"},
    )
    outer = shard_map(
        inner, mesh=BOX, in_specs=P("data"), out_specs=P("data"), axis_names={"data"}
    )
    assert jax.jit(outer)(jnp.ones((8, 8)))[0, 0] == 2


@cure("another-mesh-is-set", "no-mesh-is-set")
def the_mesh_of_the_arrays_is_set():
    x = zeros(8, 4, at=EXPLICIT, spec=("data", None))
    with jax.set_mesh(EXPLICIT):
        jax.grad(lambda w: (x @ w).sum())(zeros(4, 4, at=EXPLICIT))


@cure("two-meshes")
def one_mesh_for_both():
    x = put(zeros(8, at=EXPLICIT, spec=("data",)), NamedSharding(BOX, P("data")))
    assert (zeros(8, at=BOX, spec=("data",)) + x).sharding.mesh == BOX


@cure("carry-varies")
def starts_that_vary():
    def along(axes):
        start = lambda: lax.pcast(0.0, axes, to="varying")  # noqa: E731
        return lambda v: lax.scan(lambda c, a: (c + a, None), start(), v)[0][None]

    blocks(along("x"))(jnp.arange(16.0))
    spec = P(("data", "model"))
    blocks(along(("data", "model")), spec, spec, BOX)(jnp.arange(16.0))


@cure("carry-stops-varying")
def an_end_that_varies():
    body = lambda i, c: lax.pcast(lax.psum(c, "x"), "x", to="varying")  # noqa: E731
    blocks(lambda v: lax.fori_loop(0, 3, body, v))(jnp.arange(16.0))


@cure("branches-vary", "pvary-is-gone", "pcast-outside")
def a_branch_of_zeros_that_vary():
    zero = lambda v: lax.pcast(jnp.zeros(2), "x", to="varying")  # noqa: E731
    blocks(lambda v: lax.cond(v[0] > 0, lambda v: v, zero, v))(jnp.arange(16.0))


@cure("custom-gradient-varies")
def a_gradient_rule_with_its_sum():
    @jax.custom_vjp
    def dot(w, v):
        return (w * v).sum()

    bwd = lambda res, g: (lax.psum(g * res[1].sum(), "x"), g * res[0] * res[1])  # noqa: E731
    dot.defvjp(lambda w, v: (dot(w, v), (w, v)), bwd)
    f = blocks(lambda w, v: jax.grad(dot)(w, v), (P(), P("x")), P())
    assert f(jnp.float32(2.0), jnp.arange(8.0)) == 28


@cure("contraction-is-ambiguous")
def a_product_with_its_sharding():
    x = zeros(16, 32, at=EXPLICIT, spec=("data", "model"))
    w = zeros(32, 8, at=EXPLICIT, spec=("model", None))
    with jax.set_mesh(EXPLICIT):
        y = jnp.matmul(x, w, out_sharding=P("data", None))
    assert y.sharding.spec == P("data", None)


@cure("axis-twice-in-result")
def a_weight_cut_over_the_other_axis():
    x = zeros(16, 32, at=EXPLICIT, spec=("data", None))
    w = zeros(32, 8, at=EXPLICIT, spec=(None, "data"))
    with jax.set_mesh(EXPLICIT):
        y = x @ jax.reshard(w, P(None, "model"))
    assert y.sharding.spec == P("data", "model")


@cure("shardings-differ")
def resharded_like_the_other():
    x = zeros(8, 8, at=EXPLICIT, spec=("data",))
    y = zeros(8, 8, at=EXPLICIT, spec=("model",))
    with jax.set_mesh(EXPLICIT):
        y = jax.reshard(y, jax.typeof(x).sharding.spec)
    assert (x + y).sharding.spec == P("data", None)


@cure("gather-is-ambiguous")
def a_lookup_with_its_sharding():
    x = zeros(64, 16, at=EXPLICIT, spec=(None, "model"))
    i = put(jnp.zeros(32, jnp.int32), on(EXPLICIT, "data"))
    with jax.set_mesh(EXPLICIT):
        assert x.at[i].get(out_sharding=P("data", None)).sharding.spec == P(
            "data", None
        )
        rows = zeros(8, 8, at=EXPLICIT, spec=("data", None))
        rows.at[:3].get(out_sharding=P(None, None))


@cure("scatter-is-ambiguous")
def an_update_with_its_sharding():
    x = zeros(8, 8, at=EXPLICIT, spec=("data",))
    with jax.set_mesh(EXPLICIT):
        v, spec = jnp.ones((3, 8)), jax.typeof(x).sharding.spec
        assert x.at[jnp.arange(3)].set(v, out_sharding=spec).sharding.spec == spec


@cure("reshape-is-ambiguous")
def a_reshape_with_its_sharding():
    x = zeros(8, 12, at=EXPLICIT, spec=(None, "data"))
    with jax.set_mesh(EXPLICIT):
        x.reshape((8, 2, 6), out_sharding=P(None, "model", None))


@cure("scan-over-sharded-layers")
def layers_cut_within():
    layers = zeros(3, 8, at=EXPLICIT, spec=(None, "data"))
    with jax.set_mesh(EXPLICIT):
        start = jnp.zeros(8, out_sharding=P("data"))
        lax.scan(lambda c, w: (c + w, None), start, layers)


@cure("vmap-over-a-sharded-axis")
def a_weight_that_is_whole():
    x = zeros(8, 4, at=EXPLICIT, spec=("data",))
    w = zeros(4, 4, at=EXPLICIT, spec=("data",))
    with jax.set_mesh(EXPLICIT):
        jax.vmap(lambda a, b: a @ b, (0, None))(x, jax.reshard(w, P()))


@cure("dimension-must-be-unsharded", "sharding-type", "auto-axes-out-sharding")
def a_roll_of_a_whole_array_or_left_to_xla():
    x = zeros(8, 8, at=EXPLICIT, spec=("data", None))
    with jax.set_mesh(EXPLICIT):
        jnp.roll(jax.reshard(x, P()), 1, 0)
        roll = lambda v: jnp.roll(v, 1, 0)  # noqa: E731
        assert auto_axes(roll, out_sharding=P("data"))(x).sharding.spec == P(
            "data", None
        )


@cure("branches-differ-in-sharding")
def a_branch_cut_alike():
    x = zeros(8, 4, at=EXPLICIT, spec=("data",))
    with jax.set_mesh(EXPLICIT):
        like = lambda v: jax.reshard(v, jax.typeof(x).sharding.spec)  # noqa: E731
        lax.cond(True, lambda v: like(jax.reshard(v, P())), lambda v: v, x)


@cure("constraint-on-explicit-axes")
def reshard_on_explicit_axes():
    x = zeros(8, 4, at=EXPLICIT, spec=("data", "model"))
    with jax.set_mesh(EXPLICIT):
        jax.jit(lambda v: jax.reshard(v, P("data", None)))(x)


@cure("explicit-sharding-on-auto-axes")
def a_constraint_on_auto_axes():
    x = zeros(8, 4, at=BOX, spec=("data", "model"))
    jax.jit(lambda y: constrain(y, NamedSharding(BOX, P("data", None))))(x)


@cure("incompatible-devices", "device-order-differs", "other-platforms")
def all_on_one_mesh():
    x = put(put(jnp.zeros(8), DEVICES[0]), NamedSharding(LINE, P()))
    x + zeros(8, at=LINE, spec=("x",))


@cure("in-shardings-differ", "keywords-with-in-shardings")
def placed_before_the_call():
    x = put(zeros(8, at=LINE, spec=("x",)), NamedSharding(LINE, P()))
    jax.jit(lambda v: v + 1, in_shardings=on(LINE))(x)
    jax.jit(lambda v: v + 1)(v=x)


@cure("compiled-for-another-sharding")
def placed_as_the_program_wants():
    x = jax.ShapeDtypeStruct((8,), jnp.float32, sharding=on(LINE, "x"))
    compiled = jax.jit(lambda v: v + 1).lower(x).compile()
    compiled(put(zeros(8, at=LINE), compiled.input_shardings[0][0]))


@cure("in-shardings-count")
def one_sharding_an_argument():
    step = jax.jit(lambda p, b: p * b, in_shardings=(on(LINE), on(LINE, "x")))
    step(jnp.float32(2), jnp.zeros(8))


@cure("tree-of-specs-differs")
def one_for_all_leaves_or_a_tree_built_alike():
    tree = {"w": jnp.zeros(8)}
    jax.jit(lambda t: t, out_shardings=NamedSharding(LINE, P()))(tree)
    alike = jax.tree.map(lambda x: NamedSharding(LINE, P()), tree)
    jax.jit(lambda t: t, out_shardings=alike)(tree)
    shard_map(lambda t: t, mesh=LINE, in_specs=P(), out_specs=P())(tree)


@cure("nnx-tree-of-shardings")
def nnx_with_a_sharding():
    f = nnx.jit(lambda m, x: m(x), out_shardings=NamedSharding(BOX, P("data", None)))
    f(nnx.Linear(2, 2, rngs=nnx.Rngs(0)), jnp.ones((4, 2)))


@cure("tracer-has-no-sharding")
def the_type_of_a_tracer():
    types = []
    f = jax.jit(lambda v: types.append(jax.typeof(v)) or v)
    f(zeros(8, at=EXPLICIT, spec=("data",)))
    assert str(types[0].sharding.spec) == "P('data',)"


@cure("donated-and-gone", "donated-twice")
def one_name_and_a_copy():
    params = {"w": jnp.zeros(8)}
    ema = jax.tree.map(jnp.copy, params)
    step = jax.jit(lambda p, e: (p, e), donate_argnums=(0, 1))
    params, ema = step(params, ema)
    step(params, ema)


@cure("donation-not-used")
def results_that_lie_like_arguments():
    x = zeros(1024, at=LINE, spec=("x",))
    jax.jit(lambda v: v + 1, donate_argnums=0, out_shardings=x.sharding)(x)


@cure("out-of-memory")
def made_in_pieces():
    init = lambda key: {"w": jax.random.normal(key, (16, 4))}  # noqa: E731
    params = jax.jit(init, out_shardings=on(LINE, "x"))(jax.random.key(0))
    assert params["w"].addressable_shards[0].data.shape == (2, 4)


@cure("device-put-replicated-is-gone", "flax-shard-rows")
def copies_and_pieces():
    assert put(jnp.ones(3), NamedSharding(LINE, P())).sharding.is_fully_replicated
    put(jnp.ones((16, 3)), NamedSharding(LINE, P("x")))


@cure("pjit-is-jit", "config-flag-is-gone")
def jit_with_out_shardings():
    jax.jit(lambda v: v, out_shardings=NamedSharding(LINE, P()))(jnp.zeros(8))


@cure("tree-map-is-gone", "path-of-keys")
def trees_today():
    tree = {"w": {"b": jnp.zeros(8)}}
    jax.tree.map(lambda x: x[0], tree)
    text = lambda path: jax.tree_util.keystr(path, simple=True, separator="/")  # noqa: E731
    paths = [text(path) for path, _ in jax.tree_util.tree_leaves_with_path(tree)]
    assert paths == ["w/b"]


@cure("nnx-optimizer-wrt", "nnx-optimizer-update", "nnx-needs-a-mesh")
@cure("nnx-sharding-name")
def an_nnx_step():
    init = nnx.with_partitioning(nnx.initializers.zeros, (None, "model"))
    with jax.set_mesh(BOX):
        model = nnx.Linear(8, 8, kernel_init=init, rngs=nnx.Rngs(0))
        nnx.Param(jnp.ones((8, 8)), out_sharding=("data", "model"))
        optimizer = nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)
        grads = nnx.grad(lambda m: m(jnp.ones((4, 8))).sum())(model)
        optimizer.update(model, grads)


@cure("optax-arguments", "optax-needs-params", "optax-returns-two")
def an_optax_step():
    params, tx = {"w": jnp.ones(3)}, optax.adamw(1e-3)
    state, grads = tx.init(params), {"w": jnp.ones(3)}
    updates, state = tx.update(grads, state, params)
    optax.apply_updates(params, updates)


@cure("pmap-under-set-mesh", "named-pmap-under-set-mesh")
def pmap_after_the_mesh_and_jit_under_it():
    x = np.ones((8, 2), np.float32)
    with jax.set_mesh(BOX):
        assert jax.jit(jax.vmap(lambda v: v + 1))(x).shape == (8, 2)
        mean = jax.vmap(lambda v: lax.pmean(v, "batch"), axis_name="batch")
        assert jax.jit(mean)(x).shape == (8, 2)
    assert jax.pmap(lambda v: v + 1)(x).shape == (8, 2)
    jax.set_mesh(BOX)
    jax.set_mesh(None)
    assert jax.pmap(lambda v: v + 1)(x).shape == (8, 2)


@cure("pmap-of-a-placed-array")
def statistics_as_they_are_and_rows_of_the_host():
    stats = zeros(8, at=LINE)
    per_device = jax.pmap(lambda v: lax.pmean(v, "x"), "x")
    averaged = per_device(np.arange(8.0))  # what must not happen to 8 channels
    assert np.asarray(averaged).tolist() == [3.5] * 8
    assert jax.jit(lambda v: v * 2)(stats).shape == (8,)
    assert jax.pmap(lambda v: v)(np.asarray(stats)).shape == (8,)


@cure("pmap-argument-of-jit", "static-broadcasted-argnums")
def vmap_takes_the_mapped_axis_over():
    x = np.arange(16.0, dtype=np.float32).reshape(8, 2)
    body = lambda w, x: w - lax.pmean(x.mean(), "batch")  # noqa: E731
    old = jax.pmap(body, in_axes=(None, 0), axis_name="batch")(1.0, x)
    step = jax.jit(jax.vmap(body, in_axes=(None, 0), axis_name="batch"))
    np.testing.assert_allclose(step(1.0, x), old, rtol=2e-7)
    assert jax.jit(lambda w, x: w - x.mean())(1.0, x) == old[0]
    assert jax.jit(lambda x, n: x * n, static_argnums=(1,))(1.0, 2) == 2


@cure("vmap-output-differs")
def a_step_under_vmap_with_its_pmean():
    x, mean = jnp.arange(16.0).reshape(8, 2), lax.pmean
    one = lambda w, x: w - mean(x.mean(), "batch")  # noqa: E731
    step = jax.vmap(one, in_axes=(None, 0), out_axes=None, axis_name="batch")
    assert step(1.0, x) == 1.0 - 7.5
    rows = jax.vmap(lambda w, x: w - x, (None, 0), out_axes=0, axis_name="batch")
    assert rows(1.0, x).shape == (8, 2)


@cure("key-array-for-one-key", "key-varies-less")
def one_key_or_one_draw_a_key():
    key = jax.random.key(0)
    keys = jax.random.split(key, 8)
    assert jax.jit(lambda k: jax.random.normal(k, (16,)))(key).shape == (16,)
    assert jax.vmap(lambda k: jax.random.normal(k, (4,)))(keys).shape == (8, 4)
    blocks(lambda k: jax.random.normal(k[0], (2,)))(keys)

    def drawn(v):
        own = jax.random.fold_in(key, lax.axis_index("x"))
        return jax.random.gamma(own, v)

    assert len(set(np.asarray(blocks(drawn)(jnp.ones(8))).tolist())) == 8


@cure("get-metrics-of-scalars")
def metrics_without_a_device_axis():
    metrics = [{"loss": put(float(i), on(LINE))} for i in range(3)]
    metrics = common_utils.stack_forest(jax.device_get(metrics))
    assert metrics["loss"].tolist() == [0, 1, 2]


@cure("auto-and-explicit-mixed")
def arrays_by_position_into_auto_axes():
    spec = P("data", None)
    with jax.set_mesh(EXPLICIT):
        x, q = zeros(16, 4, at=EXPLICIT, spec=("data",)), jnp.arange(4.0)
        for f in (lambda x, w: x + w, lambda x, w: jnp.searchsorted(w, x)):
            assert auto_axes(f, out_sharding=spec)(x, q).sharding.spec == spec


@cure("constraint-on-a-free-explicit-axis")
def reshard_along_the_axis_that_stays_explicit():
    f = shard_map(
        lambda v: jax.reshard(v * 2, P(None, "model")),
        in_specs=P("data"),
        out_specs=P("data"),
        axis_names={"data"},
    )
    with jax.set_mesh(EXPLICIT):
        y = jax.jit(f)(zeros(8, 8, at=EXPLICIT, spec=("data",)))
    assert y.sharding.spec == P("data", "model")


@cure("auto-axis-in-a-manual-type")
def vmap_without_an_axis_and_a_constraint_outside():
    a, b = rows_to_add()
    expected = np.asarray(a)[:, None] + np.asarray(b)
    np.testing.assert_array_equal(jax.vmap(added_in_shard_map)(a, b), expected)
    f = blocks(lambda v: v * 2)
    jax.jit(lambda v: constrain(f(v), on(LINE, "x")))(jnp.zeros(8))


@cure("spec-where-no-mesh-is")
def a_mesh_and_a_function_left_to_xla():
    x = zeros(16, at=EXPLICIT_LINE, spec=("x",))
    NamedSharding(EXPLICIT_LINE, P("x"))
    f = lambda v: jax.scipy.special.hyp1f1(1.0, 2.0, v)  # noqa: E731
    with jax.set_mesh(EXPLICIT_LINE):
        assert auto_axes(f, out_sharding=P("x"))(x).sharding.spec == P("x")


@cure("closed-over-explicit-array")
def a_key_by_position():
    with jax.set_mesh(EXPLICIT_LINE):
        draw = lambda v, w: v + jax.random.normal(w, v.shape)  # noqa: E731
        f = blocks(draw, (P("x"), P()), P("x"), EXPLICIT_LINE)
        f(zeros(64, at=EXPLICIT_LINE, spec=("x",)), jax.random.key(0))


@cure("shard-of-another-shape", "shards-for-the-devices", "process-local-data-shape")
def global_arrays():
    data, sharding = np.arange(64.0).reshape(16, 4), on(LINE, "x")
    arrays = [jax.make_array_from_callback((16, 4), sharding, lambda i: data[i])]
    indices = sharding.addressable_devices_indices_map((16, 4)).items()
    shards = [jax.device_put(data[i], d) for d, i in indices]
    arrays += [jax.make_array_from_single_device_arrays((16, 4), sharding, shards)]
    arrays += [jax.make_array_from_process_local_data(sharding, data)]
    for x in arrays:
        np.testing.assert_array_equal(x, data)
        assert x.sharding == sharding


@cure("vmap-inputs-sharded-differently")
def vmap_of_arrays_that_are_sharded_alike():
    x = zeros(16, 4, at=EXPLICIT, spec=("data",))
    square = put(jnp.stack([jnp.eye(4)] * 16), on(EXPLICIT, "data"))
    with jax.set_mesh(EXPLICIT):
        w = jax.reshard(jnp.ones((16, 4)), P("data"))
        jax.vmap(lambda a, b: a * b)(x, w)
        auto_axes(jnp.linalg.inv, out_sharding=P("data"))(square)


@cure("repeat-needs-out-sharding", "no-sharding-rule")
def results_whose_sharding_is_stated():
    with jax.set_mesh(EXPLICIT):
        x = zeros(16, 4, at=EXPLICIT, spec=("data",))
        y = jnp.repeat(x, 2, axis=0, out_sharding=P("data", None))
        assert y.sharding.spec == P("data", None)
        w = zeros(16, 8, 4, at=EXPLICIT, spec=("data",))
        ragged = auto_axes(lax.ragged_dot, out_sharding=P())
        assert ragged(jnp.ones((32, 8)), w, jnp.full(16, 2)).shape == (32, 4)


@cure("gather-is-ambiguous", "scatter-is-ambiguous", "dimension-must-be-unsharded")
def functions_that_index_left_to_xla():
    x = zeros(16, 4, at=EXPLICIT, spec=("data",))
    i = put(np.arange(16), on(EXPLICIT, "data"))
    key = jax.random.key(0)
    functions = (
        lambda x, i: x[i],
        lambda x, i: jnp.take(x, i, axis=0),
        lambda x, i: jax.random.permutation(key, x),
        lambda x, i: jax.ops.segment_sum(x, i, 16),
        lambda x, i: jnp.bincount(i, length=16),
    )
    with jax.set_mesh(EXPLICIT):
        for f in functions:
            y = auto_axes(f, out_sharding=P("data"))(x, i)
            assert y.sharding.spec[0] == "data"
        assert x.at[x[:, 0] > 0].get(out_sharding=P(None, None)).shape == (0, 4)
        assert len(jnp.nonzero(jax.reshard(x, P()) > 0, size=4)) == 2


@cure("axis-twice-in-result", "sharding-type")
def products_with_itself_left_to_xla():
    x = put(jnp.eye(16), on(EXPLICIT, "data"))
    with jax.set_mesh(EXPLICIT):
        for f in (lambda x: x @ x.T, jnp.linalg.cholesky, jnp.linalg.inv):
            y = auto_axes(f, out_sharding=P("data"))(x)
            assert y.sharding.spec == P("data", None)


@cure("map-over-sharded-rows", "scan-over-sharded-layers")
def rows_without_a_loop_or_with_one_on_each_device():
    x = zeros(16, 4, at=EXPLICIT, spec=("data",))
    with jax.set_mesh(EXPLICIT):
        assert jax.vmap(lambda row: row * 2)(x).sharding.spec == P("data", None)
        mapped = lambda x: lax.map(lambda row: row * 2, x)  # noqa: E731
        spec = P("data", None)
        y = jax.shard_map(mapped, in_specs=spec, out_specs=spec)(x)
    assert y.sharding.spec == P("data", None)


@cure("carry-is-sharded-differently")
def a_carry_that_starts_as_the_body_gives_it():
    x, spec = zeros(16, 4, at=EXPLICIT, spec=("data",)), P("data", None)
    with jax.set_mesh(EXPLICIT):
        start = jax.reshard(jnp.zeros(x.shape), spec)
        assert lax.fori_loop(0, 3, lambda i, c: c + x, start).sharding.spec == spec
        back = lambda i, c: jax.reshard(c + x, P())  # noqa: E731
        y = lax.fori_loop(0, 3, back, jnp.zeros(x.shape))
        assert y.sharding.is_fully_replicated


@cure("library-carry-on-explicit-axes")
def a_loop_of_a_library_left_to_xla():
    x = zeros(16, at=EXPLICIT, spec=("data",))
    with jax.set_mesh(EXPLICIT):
        y = auto_axes(added_three_times, out_sharding=P("data"))(x)
    assert y.sharding.spec == P("data")


@cure("library-carry-varies", "library-mixes-varying", "kernel-output-varies")
def unchecked_axes_for_code_of_others():
    x = jnp.arange(16.0)
    y = blocks(solved, check_vma=False)(x)
    np.testing.assert_allclose(y, x * np.exp(-1), rtol=1e-4)
    series = lambda v: jax.scipy.special.hyp1f1(1.0, 2.0, v)  # noqa: E731
    blocks(series, check_vma=False)(x)
    ones = jnp.ones((64, 128))
    bare = lambda v: jax.ShapeDtypeStruct(v.shape, v.dtype)  # noqa: E731
    assert kernel(bare, check_vma=False)(ones)[0, 0] == 2


@cure("kernel-output-varies", "vma-is-gone")
def a_kernel_that_says_its_axes():
    """For a TPU, whose kernels are lowered without one; interpreted they are not."""
    varying = []

    def typed(v):
        axes = jax.typeof(v).manual_axis_type
        varying.append(axes.varying)
        return jax.ShapeDtypeStruct(v.shape, v.dtype, manual_axis_type=axes)

    x = jax.ShapeDtypeStruct((64, 128), jnp.float32)
    jax.export.export(kernel(typed, interpret=False), platforms=["tpu"])(x)
    assert varying[0] == {"x"}


@cure("carry-varies", "carry-stops-varying")
def only_the_axes_that_are_missing():
    def f(v):
        start = lax.pcast(0.0, "data", to="varying")
        start = lax.pcast(start, "model", to="varying")
        return lax.scan(lambda c, a: (c + a, None), start, v)[0][None]

    spec = P(("data", "model"))
    blocks(f, spec, spec, BOX)(jnp.arange(16.0))


@cure("host-and-device-memory", "transfer-to-memory-kind-is-gone")
def from_the_host_to_the_device_inside():
    host, device = put(jnp.ones(8), on_the_host("x")), put(jnp.ones(8), on(LINE, "x"))
    moved = jax.jit(lambda a, b: put(a, jax.memory.Space.Device) + b)
    assert moved(host, device).sharding.memory_kind == "device"


@cure("memory-kind-of-an-argument", "no-such-memory-kind")
def memory_kinds_that_are_there():
    x = put(jnp.ones(8), on_the_host("x"))
    x = put(x, x.sharding.with_memory_kind("device"))
    jax.jit(lambda a: a * 2, in_shardings=on(LINE, "x"))(x)
    put(x, NamedSharding(LINE, P("x"), memory_kind="device"))


@cure("mesh-handed-to-jit", "module-handed-to-jit", "device-put-of-a-module")
def what_is_no_array_stays_outside():
    step = lambda x, mesh: constrain(x, NamedSharding(mesh, P("x")))  # noqa: E731
    x = jnp.zeros(8)
    assert jax.jit(step, static_argnames="mesh")(x, LINE).sharding.spec == P("x")
    assert jax.jit(lambda x: step(x, LINE))(x).sharding.spec == P("x")
    model, tx = nn.Dense(3), optax.adam(1e-3)
    params = model.init(jax.random.key(0), x)
    jax.jit(lambda params, x: model.apply(params, x))(params, x)
    jax.jit(lambda params: tx.init(params))(params)
    tree = {"w": x, "activation": jax.nn.relu}
    placed = jax.tree.map(
        lambda v: put(v, on(LINE, "x")) if isinstance(v, jax.Array) else v, tree
    )
    assert placed["w"].sharding.spec == P("x")


@cure("axis-resources-is-gone")
def out_shardings_for_out_axis_resources():
    y = jax.jit(lambda x: x, out_shardings=NamedSharding(BOX, P("data")))(jnp.zeros(8))
    assert y.sharding.spec == P("data")


@cure("boxed-parameter", "logical-name-without-rule", "logical-name-twice")
def logical_names_with_rules():
    variables = nn.unbox(annotated())
    assert (jnp.ones((16, 4)) @ kernel_of(variables)).shape == (16, 8)
    specs = nn.get_partition_spec(annotated())
    rules = [("in", "data"), ("out", "model")]
    shardings = nn.logical_to_mesh_sharding(specs, BOX, rules)
    assert put(kernel_of(variables), kernel_of(shardings)).sharding.spec == P(
        "data", "model"
    )
    init = nnx.with_partitioning(nnx.initializers.zeros, ("embed", "embed_out"))
    rules = [("embed", "data"), ("embed_out", "model")]
    with jax.set_mesh(BOX), nnx.logical_axis_rules(rules):
        model = nnx.Linear(8, 8, kernel_init=init, rngs=nnx.Rngs(0))
    assert model.kernel.get_value().sharding.spec == P("data", "model")
    assert nn.logical_to_mesh_axes(("embed", "embed_out"), rules) == P("data", "model")


@cure("nnx-mesh-is-empty")
def nnx_with_the_mesh_that_is_set():
    init = nnx.with_partitioning(nnx.initializers.zeros, ("data",))
    with jax.set_mesh(BOX):
        variable = nnx.Variable(init(nnx.Rngs(0).params(), (12,), jnp.float32))
    assert variable.get_value().shape == (12,)


@cure("checkpoint-has-another-shape", "checkpoint-has-another-tree")
@cure("checkpoint-exists", "checkpoint-path-is-relative")
def a_checkpoint_as_it_was_saved(tmp_path):
    checkpointer = ocp.StandardCheckpointer()
    printed = str(checkpointer.metadata(saved()).item_metadata)
    assert "'n'" in printed
    assert "(8, 8)" in printed
    tree = {"w": target(8, 8), "n": np.zeros(3)}
    assert checkpointer.restore(saved(), tree)["w"].sharding.spec == P("x")
    assert checkpointer.restore(saved())["n"].tolist() == [0, 1, 2]
    path = Path(os.path.relpath(tmp_path)).absolute() / "state"
    checkpointer.save(path, {"n": np.arange(3)})
    checkpointer.wait_until_finished()
    checkpointer.save(path, {"n": np.arange(4)}, force=True)
    checkpointer.wait_until_finished()
    assert checkpointer.restore(path)["n"].tolist() == [0, 1, 2, 3]
