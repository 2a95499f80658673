"""Small programs that raise, and by which rule `explain` knows each error.

`@case("code")`: the error is explained by that rule, on both versions of JAX.
`@case("code", old="other")`: on jax 0.10.2 another rule knows it, and where that is
None nothing is raised there; `new=` likewise for jax 0.12.
"""

import functools
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
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
from jax.experimental import mesh_utils
from jax.experimental import pallas as pl
from jax.experimental.ode import odeint
from jax.sharding import (
    AbstractMesh,
    AxisType,
    Mesh,
    NamedSharding,
    auto_axes,
    reshard,
)
from jax.sharding import PartitionSpec as P

IS_OLD = tuple(map(int, jax.__version__.split(".")[:2])) < (0, 11)
SAME = object()


# Patterns, by rule and place in it, for what the other version says.
OTHER_VERSION = {
    True: {
        "too-many-entries": {2},
        "pvary-is-gone": {2},
        "dimension-must-be-unsharded": {1, 5},
        "scatter-is-ambiguous": {0},
    },
    False: {
        "too-many-entries": {3},
        "pvary-is-gone": {0},
        "donated-and-gone": {1},
        "contraction-is-ambiguous": {1},
        "dimension-must-be-unsharded": {6},
    },
}[IS_OLD]
# Rules whose message says too little alone, without type or traceback: what it is
# explained by then; "" for nothing.
NOT_ALONE = {
    "devices-do-not-fill-the-shape": "",
    "mesh-from-a-number": "",
    "spec-longer-than-shape": "",
    "wrong-axis-in-shard-map": "",
    "ppermute-numbers": "",
    "pmap-rows": "",
    "pmap-scalar": "",
    "pmap-out-axes": "",
    "nnx-tree-of-shardings": "",
    "optax-returns-two": "",
    "flax-shard-rows": "",
    "sharding-type": "",
    "named-pmap-under-set-mesh": "another-mesh-is-set",
    "pmap-of-a-placed-array": "in-shardings-differ",
    "get-metrics-of-scalars": "",
    "library-carry-varies": "carry-varies",
    "library-carry-on-explicit-axes": "carry-is-sharded-differently",
    "device-put-of-a-module": "",
    "logical-name-without-rule": "unknown-axis",
    "checkpoint-of-other-devices-in-old-orbax": "",
}


@dataclass(frozen=True)
class Case:
    """A program that raises, and the code of its explanation; None: it runs."""

    name: str
    program: Callable[[], object]
    code: str | None
    claims: tuple[int, ...]


CASES: dict[str, Case] = {}


def case(code: str, old=SAME, new=SAME, claims: tuple[int, ...] = ()):
    """Register a program. `claims` are those of the book that end in this error."""

    def register(program):
        here = old if IS_OLD else new
        expected = code if here is SAME else here
        assert program.__name__ not in CASES
        CASES[program.__name__] = Case(program.__name__, program, expected, claims)
        return program

    return register


def raised_by(program) -> BaseException | None:
    """The exception that a program raises; a warning is one too."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            program()
    except BaseException as error:
        return error
    return None


@functools.cache
def errors() -> dict[str, BaseException | None]:
    """Every case's exception, each raised once."""
    return {name: raised_by(case.program) for name, case in CASES.items()}


DEVICES = np.array(jax.devices())
LINE = Mesh(DEVICES, ("x",))
BOX = Mesh(DEVICES.reshape(4, 2), ("data", "model"))
EXPLICIT = jax.make_mesh((4, 2), ("data", "model"), (AxisType.Explicit,) * 2)
EXPLICIT_LINE = jax.make_mesh((8,), ("x",), (AxisType.Explicit,))
put, shard_map = jax.device_put, jax.shard_map
constrain = lax.with_sharding_constraint


def on(mesh, *spec):
    return NamedSharding(mesh, P(*spec))


def zeros(*shape, at, spec=()):
    return put(np.zeros(shape, np.float32), on(at, *spec))


X = P("x")


def blocks(f, in_specs=X, out_specs=X, mesh=LINE, **kwargs):
    return shard_map(f, mesh=mesh, in_specs=in_specs, out_specs=out_specs, **kwargs)


# Devices and meshes.


@case("too-late-for-devices")
def devices_after_the_first_array():
    jax.config.update("jax_num_cpu_devices", 16)


@case("no-such-backend")
def a_gpu_that_is_not_there():
    jax.devices("gpu")


@case("no-such-backend")
def a_tpu_that_is_not_there():
    jax.devices("tpu")


@case("devices-do-not-fill-the-shape")
def devices_in_a_shape_of_sixteen():
    np.array(jax.devices()).reshape(4, 4)


@case("mesh-too-large")
def a_mesh_of_sixteen():
    jax.make_mesh((4, 4), ("data", "model"), (AxisType.Auto,) * 2)


@case("mesh-too-large")
def a_device_mesh_of_sixteen():
    mesh_utils.create_device_mesh((4, 4))


@case("mesh-rank", claims=(6,))
def a_line_of_devices_and_two_names():
    Mesh(jax.devices(), ("data", "model"))


@case("axis-types-count")
def one_axis_type_for_two_axes():
    jax.make_mesh((4, 2), ("data", "model"), (AxisType.Auto,))


@case("axis-types-kind")
def axis_types_as_texts():
    jax.make_mesh((4, 2), ("data", "model"), ("auto", "auto"))


@case("make-mesh-arguments")
def a_mesh_from_a_dict():
    jax.make_mesh({"data": 4, "model": 2})


@case("mesh-from-a-number")
def a_mesh_from_a_number():
    jax.make_mesh(8, "x")


@case("abstract-mesh-has-no-devices")
def an_array_on_an_abstract_mesh():
    put(jnp.zeros(8), on(AbstractMesh((8,), ("x",)), "x"))


@case("set-mesh-argument")
def a_sharding_for_a_mesh():
    jax.set_mesh(on(LINE, "x"))


@case("set-mesh-argument")
def a_mesh_for_an_abstract_mesh():
    jax.sharding.use_abstract_mesh(LINE)


@case("set-mesh-inside-jit")
def set_mesh_inside_jit():
    def f(x):
        with jax.set_mesh(LINE):
            return x + 1

    jax.jit(f)(jnp.zeros(8))


# Specs.


@case("unknown-axis")
def a_misspelled_axis():
    on(BOX, "data", "modle")


@case("unknown-axis")
def an_axis_of_another_mesh():
    with jax.set_mesh(BOX):
        put(jnp.zeros((8, 8)), P("x"))


@case("axis-used-twice")
def an_axis_in_two_dimensions():
    on(BOX, "data", "data")


@case("forgot-P")
def a_tuple_for_a_spec():
    NamedSharding(LINE, ("x",))


@case("forgot-P")
def a_text_for_a_spec():
    NamedSharding(LINE, "x")


@case("named-sharding-arguments")
def spec_and_mesh_swapped():
    NamedSharding(P("x"), LINE)


@case("named-sharding-arguments")
def no_spec():
    NamedSharding(LINE)


@case("named-sharding-arguments")
def none_for_a_spec():
    jax.tree.map(lambda x, s: NamedSharding(LINE, s), {"w": 1}, {"w": None})


@case("spec-without-mesh")
def a_constraint_by_spec_alone():
    jax.jit(lambda v: constrain(v, P("x")))(jnp.zeros(8))


@case("spec-without-mesh")
def a_shape_by_spec_alone():
    str(jax.ShapeDtypeStruct((8,), jnp.float32, sharding=P("x")))


@case("spec-without-mesh")
def in_shardings_by_spec_alone():
    jax.jit(lambda v: v, in_shardings=P("x"))(jnp.zeros(8))


@case("spec-without-mesh")
def device_put_by_spec_alone():
    put(jnp.zeros(8), P("x"))


@case("spec-without-mesh")
def out_sharding_by_spec_alone():
    x, w = (
        zeros(16, 32, at=EXPLICIT, spec=("data", "model")),
        zeros(32, 8, at=EXPLICIT),
    )
    jnp.einsum("ij,jk->ik", x, w, out_sharding=P("data", None))


@case("spec-is-no-sharding")
def zeros_by_spec_alone():
    jnp.zeros(8, device=P("x"))


@case("spec-is-no-sharding")
def callback_by_spec_alone():
    jax.make_array_from_callback((8,), P("x"), lambda i: np.zeros(8)[i])


@case("device-put-target")
def device_put_onto_a_mesh():
    put(jnp.zeros(8), LINE)


@case("device-put-tree")
def device_put_onto_a_list():
    put(jnp.zeros(8), jax.devices())


@case("device-put-tree")
def device_put_with_other_keys():
    put({"a": jnp.zeros(8)}, {"b": on(LINE, "x")})


@case("too-many-entries", claims=(4,))
def one_spec_for_images_and_labels():
    put({"image": jnp.zeros((16, 4)), "label": jnp.zeros(16)}, on(BOX, "data", None))


@case("too-many-entries", claims=(18,))
def one_spec_for_weights_and_biases():
    put({"w": jnp.zeros((4, 4)), "b": jnp.zeros(4)}, on(BOX, None, "model"))


@case("too-many-entries")
def in_shardings_longer_than_the_shape():
    jax.jit(lambda v: v, in_shardings=on(BOX, "data", "model"))(jnp.zeros(8))


@case("too-many-entries")
def out_shardings_longer_than_the_shape():
    jax.jit(lambda v: v, out_shardings=on(BOX, "data", "model"))(jnp.zeros(8))


@case("too-many-entries")
def a_constraint_longer_than_the_shape():
    jax.jit(lambda v: constrain(v, on(BOX, "data", "model")))(jnp.zeros(8))


@case("too-many-entries")
def in_specs_longer_than_the_shape():
    f = blocks(lambda v: v, P("data", "model"), P("data"), BOX)
    f(jnp.zeros(8))


@case("too-many-entries")
def reshard_longer_than_the_shape():
    reshard(jnp.zeros(8), on(EXPLICIT, "data", "model"))


@case("too-many-entries")
def a_spec_for_a_scalar():
    put(1.0, on(LINE, "x"))


@case("spec-longer-than-shape")
def zeros_with_a_longer_spec():
    jnp.zeros(8, device=on(BOX, "data", "model"))


@case("unconstrained-not-here")
def unconstrained_in_out_shardings():
    spec = P("data", P.UNCONSTRAINED)
    jax.jit(lambda v: v * 2, out_shardings=NamedSharding(BOX, spec))(jnp.zeros((8, 8)))


@case("unconstrained-not-here")
def unconstrained_in_device_put():
    put(jnp.zeros((8, 8)), on(BOX, "data", P.UNCONSTRAINED))


# Sizes.


@case("not-divisible", claims=(5,))
def ten_rows_over_eight():
    put(jnp.arange(10.0), on(LINE, "x"))


@case("not-divisible", claims=(5,))
def ten_rows_out_over_eight():
    jax.jit(lambda v: v + 1, out_shardings=on(LINE, "x"))(jnp.arange(10.0))


@case("not-divisible")
def ten_columns_in_over_four():
    f = jax.jit(lambda v: v + 1, in_shardings=on(BOX, None, "data"))
    f(jnp.zeros((3, 10, 2)))


@case("not-divisible")
def twelve_rows_over_two_axes():
    put(jnp.zeros((12, 6)), on(BOX, ("data", "model"), None))


@case("not-divisible")
def ten_rows_in_a_shape_that_is_not_made():
    on(LINE, "x").shard_shape((10,))


@case("not-divisible")
def ten_rows_into_shard_map():
    blocks(lambda d: d, (P("x"),))({"a": jnp.zeros(16), "b": jnp.zeros((10, 4))})


@case("not-divisible")
def twelve_rows_into_shard_map_over_two_axes():
    blocks(lambda v: v, P(("data", "model")), P(), BOX)(jnp.zeros((12, 4)))


@case("not-divisible")
def ten_rows_resharded_over_eight():
    reshard(jnp.arange(10.0), on(EXPLICIT_LINE, "x"))


@case("not-divisible")
def seven_features_in_nnx_over_two():
    init = nnx.with_partitioning(nnx.initializers.zeros, (None, "model"))
    with jax.set_mesh(BOX):
        nnx.Linear(8, 7, kernel_init=init, rngs=nnx.Rngs(0))


@case("result-does-not-fit-the-mesh", old=None)
def a_constraint_that_does_not_divide():
    jax.jit(lambda v: constrain(v, on(LINE, "x")))(jnp.arange(10.0))


@case("result-does-not-fit-the-mesh")
def arrays_of_another_mesh_than_the_one_that_is_set():
    x = zeros(8, 4, at=BOX, spec=("data",))
    with jax.set_mesh(LINE):
        x + 1


@case("visualize-rank")
def a_drawing_of_three_dimensions():
    jax.debug.visualize_array_sharding(zeros(8, 8, 8, at=BOX, spec=("data",)))


@case("has-no-sharding")
def the_sharding_of_a_numpy_array():
    return np.zeros(3).sharding


@case("has-no-sharding")
def a_drawing_of_a_numpy_array():
    jax.debug.visualize_array_sharding(np.zeros((8, 8)))


# Collectives and axis names.


@case("unbound-axis", claims=(1,))
def psum_under_jit():
    jax.jit(lambda v: lax.psum(v, "x"), in_shardings=on(LINE, "x"))(jnp.arange(8.0))


@case("unbound-axis", claims=(2,))
def pmean_under_pmap_without_a_name():
    jax.pmap(lambda v: lax.pmean(v, "batch"))(jnp.arange(8.0))


@case("unbound-axis")
def psum_without_jit():
    lax.psum(jnp.arange(8.0), "x")


@case("axis-index-under-jit")
def axis_index_under_jit():
    jax.jit(lambda v: v + lax.axis_index("x"))(jnp.arange(8.0))


@case("unbound-axis")
def all_gather_over_an_unknown_axis():
    blocks(lambda v: lax.all_gather(v, "y"))(jnp.arange(8.0))


@case("wrong-axis-in-shard-map", claims=(29,))
def psum_over_an_unknown_axis_in_shard_map():
    blocks(lambda v: lax.psum(v, "y"), out_specs=P())(jnp.arange(8.0))


@case("wrong-axis-in-shard-map", claims=(29,))
def ppermute_over_an_unknown_axis_in_shard_map():
    jax.jit(blocks(lambda v: lax.ppermute(v, "y", [(0, 1)])))(jnp.arange(8.0))


@case("collective-over-mixed-axes")
def psum_over_one_axis_too_many():
    f = blocks(lambda v: lax.psum(v, ("data", "model")), P("data"), P(), BOX)
    f(jnp.arange(8.0))


@case("all-to-all-size")
def all_to_all_of_three_pieces():
    blocks(lambda v: lax.all_to_all(v, "x", 0, 1))(jnp.zeros((24, 4)))


@case("all-to-all-size")
def all_to_all_of_four_columns():
    blocks(lambda v: lax.all_to_all(v, "x", 1, 0, tiled=True))(jnp.zeros((24, 4)))


@case("scatter-size")
def psum_scatter_of_six_rows():
    f = blocks(lambda v: lax.psum_scatter(v, "x", tiled=True), P(None, "x"))
    f(jnp.zeros((6, 8)))


@case("scatter-size")
def psum_scatter_of_six_rows_untiled():
    blocks(lambda v: lax.psum_scatter(v, "x"), P(None, "x"))(jnp.zeros((6, 8)))


@case("ppermute-pairs")
def ppermute_from_one_to_two():
    blocks(lambda v: lax.ppermute(v, "x", [(0, 1), (0, 2)]))(jnp.zeros(8))


@case("ppermute-numbers")
def ppermute_to_a_ninth():
    blocks(lambda v: lax.ppermute(v, "x", [(0, 9)]))(jnp.zeros(8))


# Calling shard_map.


@case("shard-map-old-keyword")
def check_rep():
    blocks(lambda v: v, check_rep=False)


@case("shard-map-old-keyword")
def auto_axes_by_their_old_name():
    blocks(lambda v: v, P("data"), P("data"), BOX, auto=frozenset({"model"}))


@case("shard-map-call")
def shard_map_by_position():
    shard_map(lambda v: v, LINE, P("x"), P("x"))


@case("shard-map-call")
def shard_map_without_out_specs():
    shard_map(lambda v: v, mesh=LINE, in_specs=P("x"))


@case("shard-map-keyword-arguments")
def shard_map_called_by_name():
    blocks(lambda batch: batch)(batch=jnp.arange(8.0))


@case("shard-map-without-mesh")
def shard_map_without_a_mesh():
    shard_map(lambda v: v, in_specs=P("x"), out_specs=P("x"))(jnp.arange(8.0))


@case("axis-names-argument")
def axis_names_that_the_mesh_lacks():
    blocks(lambda v: v, P("data"), P("data"), BOX, axis_names={"x"})(jnp.zeros(8))


@case("axis-names-argument")
def axis_names_as_a_text():
    blocks(lambda v: v, P("data"), P("data"), BOX, axis_names="data")(jnp.zeros(8))


@case("spec-axis-is-not-manual")
def in_specs_with_an_unknown_axis():
    blocks(lambda v: v, P("y"))(jnp.zeros(8))


@case("spec-axis-is-not-manual")
def out_specs_with_an_automatic_axis():
    f = blocks(lambda v: v, P("data"), P("data", "model"), BOX, axis_names={"data"})
    f(jnp.zeros((8, 8)))


@case("specs-are-not-P")
def a_sharding_for_in_specs():
    blocks(lambda v: v, on(LINE, "x"))(jnp.zeros(8))


@case("specs-are-not-P")
def a_text_for_out_shardings():
    jax.jit(lambda v: v, out_shardings="x")(jnp.zeros(8))


@case("specs-are-not-P")
def a_tuple_for_a_constraint():
    jax.jit(lambda v: constrain(v, ("x",)))(jnp.zeros(8))


@case("output-has-too-few-dimensions")
def a_scalar_out_of_shard_map():
    blocks(lambda v: v.sum())(jnp.arange(8.0))


@case("output-has-too-few-dimensions")
def a_loss_in_a_tree_out_of_shard_map():
    blocks(lambda v: {"loss": v.sum(), "v": v})(jnp.arange(8.0))


@case("output-may-differ")
def a_partial_sum_as_replicated():
    blocks(lambda v: v.sum(), out_specs=P())(jnp.arange(8.0))


@case("output-may-differ")
def an_all_gather_as_replicated():
    blocks(lambda v: lax.all_gather(v, "x", tiled=True), out_specs=P())(jnp.arange(8.0))


@case("output-may-differ")
def sums_over_one_axis_of_two():
    f = blocks(lambda v: v.sum(0), P("data", "model"), P("data"), BOX)
    f(jnp.zeros((16, 4)))


@case("inputs-differ-from-in-specs")
def in_specs_unlike_an_explicit_input():
    x = zeros(8, 8, at=EXPLICIT, spec=(None, "data"))
    with jax.set_mesh(EXPLICIT):
        shard_map(lambda v: v, in_specs=P("data", None), out_specs=P("data", None))(x)


@case("closed-over-explicit-array")
def an_explicit_array_from_outside():
    w = zeros(8, at=EXPLICIT_LINE, spec=("x",))
    x = zeros(64, at=EXPLICIT_LINE, spec=("x",))
    blocks(lambda v: v + w, mesh=EXPLICIT_LINE)(x)


@case("constraint-on-a-manual-axis")
def a_constraint_inside_shard_map():
    f = shard_map(lambda v: constrain(v, P("x")), in_specs=P("x"), out_specs=P("x"))
    with jax.set_mesh(LINE):
        jax.jit(f)(jnp.zeros(8))


@case("auto-axis-in-a-manual-type")
def a_constraint_with_its_mesh_inside_shard_map():
    jax.jit(blocks(lambda v: constrain(v, on(LINE, "x"))))(jnp.zeros(8))


@case("auto-axis-in-a-manual-type")
def device_put_inside_shard_map():
    jax.jit(blocks(lambda v: put(v, on(LINE, "x"))))(jnp.zeros(8))


@case("constraint-on-a-manual-axis")
def a_constraint_inside_pmap():
    jax.pmap(lambda v: constrain(v, on(LINE, "x")))(jnp.zeros((8, 8)))


# pmap.


@case("pmap-rows")
def pmap_of_sixteen_rows():
    jax.pmap(lambda v: v)(jnp.zeros(16))


@case("pmap-rows")
def nnx_pmap_of_sixteen_rows():
    nnx.pmap(lambda v: v)(jnp.zeros((16, 2)))


@case("pmap-rows-not-divisible")
def pmap_of_nine_rows():
    jax.pmap(lambda v: v * 2)(jnp.zeros((9, 3)))


@case("pmap-rows-not-divisible")
def pmap_of_eight_and_four_rows():
    jax.pmap(lambda a, b: a + b)(jnp.zeros(8), jnp.zeros(4))


@case("pmap-nothing-mapped")
def pmap_of_nothing():
    jax.pmap(lambda v: v)(1.0)


@case("pmap-scalar")
def pmap_of_an_optimizer_state():
    state = optax.adam(1e-3).init({"w": jnp.ones((8, 3))})
    jax.pmap(lambda state, x: x)(state, jnp.zeros((8, 3)))


@case("pmap-axis-size")
def pmap_of_another_size():
    jax.pmap(lambda v: v, axis_size=4)(jnp.zeros(8))


@case("nested-pmap")
def pmap_in_pmap():
    jax.pmap(lambda v: jax.pmap(lambda u: u + 1)(v))(jnp.zeros((4, 2)))


# Meshes that meet.


@case("nested-shard-map")
def shard_map_in_shard_map():
    blocks(blocks(lambda v: v))(jnp.zeros(64))


@case("another-mesh-is-set")
def shard_map_under_another_mesh():
    with jax.set_mesh(BOX):
        blocks(lambda v: v)(jnp.zeros(64))


@case("another-mesh-is-set")
def explicit_arrays_under_another_mesh():
    x = zeros(8, 4, at=EXPLICIT, spec=("data",))
    with jax.set_mesh(LINE):
        x @ zeros(4, 4, at=EXPLICIT)


@case("two-meshes")
def an_auto_and_an_explicit_mesh():
    zeros(8, at=BOX, spec=("data",)) + zeros(8, at=EXPLICIT, spec=("data",))


@case("no-mesh-is-set")
def a_gradient_of_explicit_arrays_with_no_mesh_set():
    x = zeros(8, 4, at=EXPLICIT, spec=("data", None))
    jax.grad(lambda w: (x @ w).sum())(zeros(4, 4, at=EXPLICIT))


# Values that vary.


@case("carry-varies")
def a_scan_that_starts_with_zero():
    f = lambda v: lax.scan(lambda c, a: (c + a, None), 0.0, v)[0][None]  # noqa: E731
    blocks(f)(jnp.arange(16.0))


@case("carry-varies")
def a_scan_over_two_axes():
    f = lambda v: lax.scan(lambda c, a: (c + a, None), 0.0, v)[0][None]  # noqa: E731
    spec = P(("data", "model"))
    blocks(f, spec, spec, BOX)(jnp.arange(16.0))


@case("carry-varies")
def two_carries_that_start_with_zero():
    def f(v):
        step = lambda c, a: ((c[0] + a, c[1] - a), None)  # noqa: E731
        return lax.scan(step, (0.0, 0.0), v)[0][0][None]

    blocks(f)(jnp.arange(16.0))


@case("carry-varies")
def a_while_loop_that_starts_with_zeros():
    f = lambda v: lax.while_loop(lambda c: c[0] < 3, lambda c: c + v, jnp.zeros(2))  # noqa: E731
    blocks(f)(jnp.arange(16.0) + 1)


@case("carry-stops-varying")
def a_sum_in_a_loop():
    blocks(lambda v: lax.fori_loop(0, 3, lambda i, c: lax.psum(c, "x"), v))(
        jnp.arange(16.0)
    )


@case("branches-vary")
def a_branch_of_zeros():
    f = lambda v: lax.cond(v[0] > 0, lambda v: v, lambda v: jnp.zeros(2), v)  # noqa: E731
    blocks(f)(jnp.arange(16.0))


@case("custom-gradient-varies")
def a_gradient_rule_without_its_sum():
    @jax.custom_vjp
    def dot(w, v):
        return (w * v).sum()

    dot.defvjp(lambda w, v: (dot(w, v), v), lambda v, g: (g * v.sum(), g * v))
    f = blocks(lambda w, v: jax.grad(dot)(w, v)[None], (P(), P("x")))
    f(jnp.float32(2.0), jnp.arange(8.0))


@case("pcast-not-needed")
def pcast_of_what_varies():
    blocks(lambda v: lax.pcast(v, "x", to="varying"))(jnp.arange(8.0))


@case("pcast-outside")
def pcast_without_shard_map():
    lax.pcast(jnp.arange(8.0), "x", to="varying")


# Explicit axes.


@case("contraction-is-ambiguous", claims=(22,))
def a_product_over_a_cut_dimension():
    x = zeros(16, 32, at=EXPLICIT, spec=("data", "model"))
    x @ zeros(32, 8, at=EXPLICIT, spec=("model", None))


@case("contraction-is-ambiguous")
def a_product_cut_over_two_axes():
    x = zeros(16, 32, at=EXPLICIT, spec=(None, "model"))
    x @ zeros(32, 8, at=EXPLICIT, spec=("data", None))


@case("contraction-is-ambiguous")
def a_flax_layer_on_an_explicit_mesh():
    init = nnx.with_partitioning(nnx.initializers.zeros, ("model", None))
    with jax.set_mesh(EXPLICIT):
        layer = nnx.Linear(8, 8, kernel_init=init, rngs=nnx.Rngs(0))
        layer(put(jnp.ones((8, 8)), P("data", "model")))


@case("axis-twice-in-result", claims=(9,))
def a_product_that_needs_an_axis_twice():
    x = zeros(16, 32, at=EXPLICIT, spec=("data", None))
    x @ zeros(32, 8, at=EXPLICIT, spec=(None, "data"))


@case("shardings-differ")
def a_sum_of_arrays_cut_otherwise():
    x = zeros(8, 8, at=EXPLICIT, spec=("data",))
    x + zeros(8, 8, at=EXPLICIT, spec=("model",))


@case("shardings-differ")
def joined_arrays_cut_otherwise():
    x = zeros(8, 8, at=EXPLICIT, spec=("data",))
    jnp.concatenate([x, zeros(8, 8, at=EXPLICIT, spec=("model",))], 1)


@case("shardings-differ")
def an_update_cut_otherwise():
    x = zeros(8, 8, at=EXPLICIT, spec=(None, "data"))
    lax.dynamic_update_slice(x, jnp.zeros((1, 8)), (1, 0))


@case("shardings-differ")
def batches_cut_otherwise():
    x = zeros(8, 16, 32, at=EXPLICIT, spec=("data",))
    x @ zeros(8, 32, 8, at=EXPLICIT, spec=("model",))


@case("gather-is-ambiguous")
def an_embedding_lookup():
    table = zeros(64, 16, at=EXPLICIT, spec=(None, "model"))
    table[put(jnp.zeros(32, jnp.int32), on(EXPLICIT, "data"))]


@case("gather-is-ambiguous")
def three_rows_of_a_cut_array():
    zeros(8, 8, at=EXPLICIT, spec=("data", None))[:3]


@case("scatter-is-ambiguous", old="no-mesh-is-set")
def an_update_of_three_rows():
    zeros(8, 8, at=EXPLICIT, spec=("data",)).at[jnp.arange(3)].set(1.0)


@case("reshape-is-ambiguous", claims=(24,))
def heads_that_the_axis_does_not_divide():
    zeros(8, 12, at=EXPLICIT, spec=(None, "data")).reshape(8, 2, 6)


@case("scan-over-sharded-layers", claims=(14,))
def a_scan_over_cut_layers():
    lax.scan(lambda c, w: (c, None), 0.0, zeros(8, 4, at=EXPLICIT, spec=("data",)))


@case("vmap-over-a-sharded-axis")
def a_vmap_over_a_cut_axis():
    x = zeros(8, 4, at=EXPLICIT, spec=("data",))
    jax.vmap(lambda a, b: a @ b, (0, None))(x, zeros(4, 4, at=EXPLICIT, spec=("data",)))


@case("dimension-must-be-unsharded")
def a_roll_of_a_cut_dimension():
    jnp.roll(zeros(8, 8, at=EXPLICIT, spec=("data", None)), 1, 0)


@case("dimension-must-be-unsharded")
def a_cumsum_of_a_cut_dimension():
    jnp.cumsum(zeros(8, 8, at=EXPLICIT, spec=("data", None)), 0)


@case("dimension-must-be-unsharded")
def a_pad_of_a_cut_dimension():
    jnp.pad(zeros(8, 8, at=EXPLICIT, spec=("data", None)), 1)


@case("dimension-must-be-unsharded")
def a_slice_of_a_cut_dimension():
    lax.dynamic_slice(zeros(8, 8, at=EXPLICIT, spec=("data",)), (1, 0), (3, 8))


@case("dimension-must-be-unsharded")
def a_sort_of_a_cut_dimension():
    jnp.sort(zeros(8, 8, at=EXPLICIT, spec=("data",)), 0)


@case("dimension-must-be-unsharded")
def a_top_k_of_a_cut_dimension():
    lax.top_k(zeros(8, 8, at=EXPLICIT, spec=(None, "data")), 2)


@case("dimension-must-be-unsharded")
def a_tiled_cut_dimension():
    jnp.tile(zeros(8, 4, at=EXPLICIT, spec=("data",)), (2, 1))


@case("carry-is-sharded-differently")
def a_carry_that_is_cut_otherwise():
    step = lambda i, v: reshard(v, on(EXPLICIT, None, "model"))  # noqa: E731
    lax.fori_loop(0, 3, step, zeros(8, 4, at=EXPLICIT, spec=("data",)))


@case("branches-differ-in-sharding")
def a_branch_that_is_whole():
    x = zeros(8, 4, at=EXPLICIT, spec=("data",))
    lax.cond(True, lambda v: reshard(v, on(EXPLICIT)), lambda v: v, x)


@case("branches-differ-in-sharding")
def a_branch_that_is_cut():
    x = zeros(8, 4, at=EXPLICIT, spec=("data",))
    lax.cond(True, lambda v: v, lambda v: reshard(v, on(EXPLICIT)), x)


@case("constraint-on-explicit-axes")
def a_constraint_on_an_explicit_mesh():
    x = zeros(8, 4, at=EXPLICIT, spec=("data", "model"))
    jax.jit(lambda v: constrain(v, on(EXPLICIT, "data", None)))(x)


@case("explicit-sharding-on-auto-axes")
def reshard_on_an_auto_mesh():
    x = zeros(8, 4, at=BOX, spec=("data", "model"))
    jax.jit(lambda v: reshard(v, on(BOX, "data", None)))(x)


@case("explicit-sharding-on-auto-axes")
def out_sharding_on_an_auto_mesh():
    jnp.zeros((8, 4), out_sharding=on(BOX, "data"))


@case("auto-axes-out-sharding")
def auto_axes_without_out_sharding():
    jax.sharding.auto_axes(lambda v: v * 2)(zeros(8, 8, at=EXPLICIT, spec=("data",)))


@case("sharding-type")
def a_convolution_of_cut_arrays():
    x = zeros(8, 3, 8, 8, at=EXPLICIT, spec=("data",))
    lax.conv(x, zeros(4, 3, 3, 3, at=EXPLICIT, spec=("data",)), (1, 1), "SAME")


# Running.


@case("device-order-differs")
def the_same_devices_in_another_order():
    x = zeros(8, at=LINE, spec=("x",))
    x + zeros(8, at=Mesh(DEVICES[::-1], ("x",)), spec=("x",))


@case("incompatible-devices")
def an_array_on_one_device_and_one_on_eight():
    put(jnp.zeros(8), DEVICES[0]) + zeros(8, at=LINE, spec=("x",))


@case("incompatible-devices")
def arguments_on_two_devices():
    f = jax.jit(lambda p, q: p + q)
    f(put(jnp.zeros(8), DEVICES[0]), put(jnp.zeros(8), DEVICES[1]))


@case("incompatible-devices")
def a_constraint_to_other_devices():
    x = put(jnp.zeros(8), DEVICES[3])
    jax.jit(lambda q: constrain(q, on(LINE, "x")))(x)


@case("incompatible-devices")
def an_array_on_one_device_into_shard_map():
    blocks(lambda v: v)(put(jnp.zeros(8), DEVICES[0]))


@case("incompatible-devices")
def results_on_fewer_devices():
    fewer = on(Mesh(DEVICES[:4], ("x",)), "x")
    jax.jit(lambda v: v, in_shardings=on(LINE, "x"), out_shardings=fewer)(jnp.zeros(8))


@case("incompatible-devices")
def an_optimizer_state_left_on_one_device():
    tx = optax.adam(1e-3)
    state = put(tx.init({"w": jnp.ones(8)}), DEVICES[0])
    tx.update({"w": zeros(8, at=LINE, spec=("x",))}, state)


@case("in-shardings-differ")
def in_shardings_unlike_the_argument():
    jax.jit(lambda v: v + 1, in_shardings=on(LINE))(zeros(8, at=LINE, spec=("x",)))


@case("in-shardings-differ")
def in_shardings_for_a_new_array_under_set_mesh():
    with jax.set_mesh(LINE):
        jax.jit(lambda v: v + 1, in_shardings=P("x"))(jnp.arange(8.0))


@case("in-shardings-differ")
def in_shardings_for_an_array_on_one_device():
    f = jax.jit(lambda v: v + 1, in_shardings=on(LINE, "x"))
    f(put(jnp.zeros(8), DEVICES[0]))


@case("compiled-for-another-sharding")
def a_compiled_program_with_another_argument():
    x = jax.ShapeDtypeStruct((8,), jnp.float32, sharding=on(LINE, "x"))
    jax.jit(lambda v: v + 1).lower(x).compile()(zeros(8, at=LINE))


@case("keywords-with-in-shardings")
def keywords_with_in_shardings():
    f = jax.jit(lambda a, b: a + b, in_shardings=(on(LINE, "x"),) * 2)
    f(jnp.zeros(8), b=jnp.zeros(8))


@case("in-shardings-count")
def in_shardings_for_one_of_two():
    f = jax.jit(lambda a, b: a + b, in_shardings=(on(LINE, "x"),))
    f(jnp.zeros(8), jnp.zeros(8))


@case("in-shardings-count")
def in_shardings_as_a_dict():
    f = jax.jit(lambda tree: tree["w"], in_shardings={"w": on(LINE, "x")})
    f({"w": jnp.zeros(8)})


@case("tree-of-specs-differs")
def out_shardings_with_another_key():
    jax.jit(lambda t: t, out_shardings={"v": on(LINE, "x")})({"w": jnp.zeros(8)})


@case("tree-of-specs-differs")
def out_shardings_as_a_tuple():
    jax.jit(lambda v: v, out_shardings=(None,))(jnp.zeros(8))


@case("tree-of-specs-differs")
def in_specs_for_one_of_two():
    blocks(lambda a, b: a + b, (P("x"),))(jnp.zeros(8), jnp.zeros(8))


@case("tree-of-specs-differs")
def out_specs_of_none():
    blocks(lambda v: v, out_specs=None)(jnp.zeros(8))


@case("tree-of-specs-differs")
def in_axes_for_one_of_two():
    jax.pmap(lambda a, b: a + b, in_axes=(0,))(jnp.zeros(8), jnp.zeros(8))


@case("pmap-out-axes")
def out_axes_for_two_of_one():
    jax.pmap(lambda v: v, out_axes=(0, 0))(jnp.zeros(8))


@case("nnx-tree-of-shardings")
def nnx_out_shardings_as_a_tuple():
    f = nnx.jit(lambda m, x: m(x), out_shardings=(None,))
    f(nnx.Linear(2, 2, rngs=nnx.Rngs(0)), jnp.ones(2))


@case("tracer-has-no-sharding")
def the_sharding_of_a_tracer():
    jax.jit(lambda v: v.sharding)(jnp.zeros(8))


@case("tracer-has-no-sharding")
def the_shards_of_a_tracer():
    jax.jit(lambda v: v.addressable_shards)(jnp.zeros(8))


@case("tracer-has-no-sharding")
def the_devices_of_a_tracer():
    jax.jit(lambda v: v.devices())(jnp.zeros(8))


@case("donated-and-gone")
def a_sum_after_donation():
    x = zeros(1024, at=LINE, spec=("x",))
    jax.jit(lambda v: v + 1, donate_argnums=0)(x)
    x + 1


@case("donated-and-gone")
def a_step_run_twice():
    # One device: over several, jaxlib 0.10.2 ends the process (a segmentation fault).
    x, f = jnp.zeros(1024), jax.jit(lambda v: v + 1, donate_argnums=0)
    f(x)
    f(x)


@case("donated-twice")
def one_array_donated_as_two():
    x = jnp.zeros(1024)
    jax.jit(lambda a, b: (a + 1, b + 1), donate_argnums=(0, 1))(x, x)


@case("donated-twice")
def an_array_donated_and_used():
    x = jnp.zeros(1024)
    jax.jit(lambda a, b: (a + 1, b + 1), donate_argnums=0)(x, x)


@case("donation-not-used")
def a_donation_that_no_result_can_use():
    f = jax.jit(lambda v: v + 1, donate_argnums=0, out_shardings=on(LINE))
    f(zeros(1024, at=LINE, spec=("x",)))


@case("out-of-memory")
def an_array_larger_than_memory():
    jnp.zeros(1 << 44, jnp.float32)


@case("distributed-too-late")
def a_cluster_after_the_first_array():
    jax.distributed.initialize("127.0.0.1:12345", 2, 0)


# Names that are gone.


@case("make-mesh-keyword", old=None)
def sizes_by_their_old_name():
    jax.make_mesh(axis_shapes=(8,), axis_names=("x",), axis_types=(AxisType.Auto,))


@case("make-mesh-keyword", new=None)
def sizes_by_their_new_name():
    jax.make_mesh(axis_sizes=(8,), axis_names=("x",), axis_types=(AxisType.Auto,))


@case("with-mesh-is-old")
def with_mesh():
    with LINE:
        pass


@case("use-mesh-is-gone")
def use_mesh():
    jax.sharding.use_mesh(LINE)


@case("use-mesh-is-gone")
def use_mesh_imported():
    from jax.sharding import use_mesh  # noqa: F401


@case("experimental-shard-map")
def shard_map_from_experimental():
    from jax.experimental.shard_map import shard_map  # noqa: F401


@case("pvary-is-gone")
def pvary():
    lax.pvary(jnp.zeros(8), "x")


@case("pvary-is-gone")
def pvary_imported():
    from jax.lax import pvary  # noqa: F401


@case("device-put-replicated-is-gone")
def device_put_replicated():
    jax.device_put_replicated(jnp.ones(3), jax.devices())


@case("device-put-replicated-is-gone")
def device_put_sharded():
    jax.device_put_sharded([jnp.ones(3)] * 8, jax.devices())


@case("sharding-class-is-gone", claims=(19,))
def positional_sharding():
    from jax.sharding import PositionalSharding  # noqa: F401


@case("sharding-class-is-gone")
def pmap_sharding():
    return jax.sharding.PmapSharding


@case("config-flag-is-gone")
def the_flag_of_the_old_pmap():
    jax.config.update("jax_pmap_shmap_merge", False)


@case("xmap-is-gone")
def xmap():
    from jax.experimental.maps import xmap  # noqa: F401


@case("xmap-is-gone")
def maps():
    from jax.experimental import maps  # noqa: F401


@case("xmap-is-gone")
def maps_of_the_module():
    import jax.experimental

    return jax.experimental.maps


@case("xmap-is-gone")
def soft_pmap():
    return jax.soft_pmap


@case("pjit-is-jit", claims=(21,))
def pjit():
    from jax.experimental.pjit import pjit  # noqa: F401


@case("pjit-is-jit")
def a_spec_from_where_it_was():
    from jax.experimental import PartitionSpec  # noqa: F401


@case("pjit-is-jit")
def a_constraint_from_where_it_was():
    from jax.experimental.pjit import with_sharding_constraint  # noqa: F401


@case("pjit-is-jit")
def a_spec_of_the_module():
    import jax.experimental.pjit

    return jax.experimental.pjit.PartitionSpec


@case("thread-resources-is-old")
def the_mesh_of_with_mesh():
    from jax.interpreters import pxla

    return pxla.thread_resources


@case("tree-map-is-gone")
def tree_map():
    jax.tree_map(lambda x: x[0], {"w": jnp.zeros(8)})


@case("path-of-keys", claims=(18,))
def keys_joined_as_texts():
    tree = {"w": jnp.zeros(8)}
    jax.tree_util.tree_map_with_path(lambda path, x: "/".join(path), tree)


# Flax and Optax.


@case("nnx-optimizer-wrt", claims=(16,))
def nnx_optimizer_without_wrt():
    nnx.Optimizer(nnx.Linear(4, 4, rngs=nnx.Rngs(0)), optax.adam(1e-3))


@case("nnx-optimizer-update", claims=(16,))
def nnx_update_without_model():
    model = nnx.Linear(4, 4, rngs=nnx.Rngs(0))
    nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param).update(nnx.state(model))


@case("nnx-optimizer-update")
def nnx_model_of_the_optimizer():
    model = nnx.Linear(4, 4, rngs=nnx.Rngs(0))
    return nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param).model


@case("nnx-needs-a-mesh")
def an_annotated_layer_with_no_mesh_set():
    init = nnx.with_partitioning(nnx.initializers.zeros, (None, "model"))
    nnx.Linear(8, 8, kernel_init=init, rngs=nnx.Rngs(0))


@case("nnx-sharding-name")
def an_annotation_by_its_old_name():
    with jax.set_mesh(BOX):
        nnx.Param(jnp.ones((8, 8)), sharding_names=("data", "model"))


@case("optax-arguments", claims=(17,))
def optax_update_with_params_for_the_state():
    params, tx = {"w": jnp.ones(3)}, optax.adam(1e-3)
    tx.update({"w": jnp.ones(3)}, params)


@case("optax-needs-params")
def optax_update_without_params():
    params, tx = {"w": jnp.ones(3)}, optax.adamw(1e-3)
    tx.update({"w": jnp.ones(3)}, tx.init(params))


@case("optax-returns-two", claims=(17,))
def optax_updates_with_the_state():
    params, tx = {"w": jnp.ones(3)}, optax.adam(1e-3)
    optax.apply_updates(params, tx.update({"w": jnp.ones(3)}, tx.init(params)))


@case("flax-shard-rows")
def flax_shard_of_ten_rows():
    common_utils.shard(jnp.ones((10, 3)))


# What is left of pmap.


@case("pmap-under-set-mesh")
def pmap_under_set_mesh():
    with jax.set_mesh(BOX):
        jax.pmap(lambda v: v + 1)(np.ones((8, 2)))


@case("pmap-under-set-mesh")
def pmap_after_a_bare_set_mesh():
    jax.set_mesh(LINE)
    try:
        jax.pmap(lambda v: v + 1)(np.ones((8, 2)))
    finally:
        jax.set_mesh(None)


@case("named-pmap-under-set-mesh")
def a_named_pmap_under_set_mesh():
    with jax.set_mesh(BOX):
        jax.pmap(lambda v: lax.pmean(v, "batch"), axis_name="batch")(np.ones((8, 2)))


@case("pmap-of-a-placed-array")
def a_pmapped_mean_of_statistics_that_are_ported():
    sync = jax.pmap(lambda x: lax.pmean(x, "x"), "x")
    sync(zeros(8, at=LINE))


@case("pmap-argument-of-jit")
def jit_with_an_axis_name():
    jax.jit(lambda x: x, axis_name="batch")


@case("pmap-argument-of-jit")
def jit_with_in_axes():
    jax.jit(lambda x: x, in_axes=(0,))


@case("static-broadcasted-argnums")
def jit_with_static_broadcasted_argnums():
    jax.jit(lambda x, n: x * n, static_broadcasted_argnums=(1,))


@case("vmap-output-differs")
def a_step_under_vmap_without_its_pmean():
    step = lambda w, x: w - x.mean()  # noqa: E731
    jax.vmap(step, in_axes=(None, 0), out_axes=None, axis_name="batch")(
        1.0, jnp.ones((8, 2))
    )


@case("key-array-for-one-key")
def keys_of_eight_devices_for_one_draw():
    jax.random.normal(jax.random.split(jax.random.key(0), 8), (4,))


@case("key-array-for-one-key")
def old_keys_of_eight_devices_for_one_draw():
    key = common_utils.shard_prng_key(jax.random.PRNGKey(0))
    jax.jit(lambda k: jax.random.normal(k, (4,)))(key)


@case("key-array-for-one-key")
def a_slice_of_keys_in_shard_map():
    keys = jax.random.split(jax.random.key(0), 8)
    blocks(lambda k: jax.random.normal(k, (2,)))(keys)


@case("get-metrics-of-scalars")
def get_metrics_of_a_jitted_step():
    common_utils.get_metrics([{"loss": put(1.0, on(LINE))}] * 3)


# Two modes, and what comes from outside.


@case("auto-and-explicit-mixed")
def an_array_closed_over_in_auto_axes():
    with jax.set_mesh(EXPLICIT):
        x, q = zeros(16, 4, at=EXPLICIT, spec=("data",)), jnp.arange(4.0)
        auto_axes(lambda x: x + q, out_sharding=P("data"))(x)


@case("auto-and-explicit-mixed")
def an_array_by_name_into_auto_axes():
    with jax.set_mesh(EXPLICIT):
        x, q = zeros(16, 4, at=EXPLICIT, spec=("data",)), jnp.arange(4.0)
        auto_axes(lambda x, q: x + q, out_sharding=P("data"))(x, q=q)


@case("auto-and-explicit-mixed")
def an_array_closed_over_and_searched_in_auto_axes():
    with jax.set_mesh(EXPLICIT):
        x, q = zeros(16, 4, at=EXPLICIT, spec=("data",)), jnp.arange(4.0)
        auto_axes(lambda x: jnp.searchsorted(q, x), out_sharding=P("data"))(x)


@case("constraint-on-a-free-explicit-axis")
def a_constraint_on_the_axis_that_stays_explicit():
    f = shard_map(
        lambda v: constrain(v * 2, P(None, "model")),
        in_specs=P("data"),
        out_specs=P("data"),
        axis_names={"data"},
    )
    with jax.set_mesh(EXPLICIT):
        jax.jit(f)(zeros(8, 8, at=EXPLICIT, spec=("data",)))


def rows_to_add():
    rows = zeros(4, 2, at=BOX, spec=("data", "model"))
    return zeros(4, at=BOX, spec=("data",)), rows


def added_in_shard_map(a, b):
    rows = lambda b: jax.vmap(lambda row: a + row)(b)  # noqa: E731
    return blocks(rows, P("model"), P("model"), BOX)(b)


@case("auto-axis-in-a-manual-type")
def vmap_with_an_axis_of_a_shard_map_that_closes_over():
    jax.vmap(added_in_shard_map, spmd_axis_name="data")(*rows_to_add())


@case("auto-axis-in-a-manual-type")
def vmap_with_an_axis_of_a_shard_map_of_a_replicated_value():
    def f(a, b):
        rows = lambda a, b: jax.vmap(lambda row: a + row)(b)  # noqa: E731
        return blocks(rows, (P(), P("model")), P("model"), BOX)(a, b)

    jax.vmap(f, spmd_axis_name="data")(*rows_to_add())


@case("spec-where-no-mesh-is")
def a_sharding_on_an_empty_mesh():
    NamedSharding(Mesh(np.empty((), object), ()), P("x"))


@case("spec-where-no-mesh-is")
def a_function_of_jax_that_loses_the_mesh():
    with jax.set_mesh(EXPLICIT_LINE):
        jax.scipy.special.hyp1f1(1.0, 2.0, zeros(16, at=EXPLICIT_LINE, spec=("x",)))


@case("closed-over-explicit-array")
def a_key_closed_over_in_shard_map():
    with jax.set_mesh(EXPLICIT_LINE):
        key = jax.random.key(0)
        f = blocks(lambda v: v + jax.random.normal(key, v.shape), mesh=EXPLICIT_LINE)
        f(zeros(64, at=EXPLICIT_LINE, spec=("x",)))


@case("tracer-has-no-sharding")
def the_sharding_of_a_traced_key():
    jax.jit(lambda key: key.sharding)(jax.random.key(0))


# Global arrays.


@case("shard-of-another-shape")
def a_callback_that_returns_the_full_array():
    jax.make_array_from_callback((16, 4), on(LINE, "x"), lambda i: np.ones((16, 4)))


def from_shards(shards):
    return jax.make_array_from_single_device_arrays((16, 4), on(LINE, "x"), shards)


@case("shards-for-the-devices")
def shards_of_numpy():
    from_shards([np.ones((2, 4))] * 8)


@case("shards-for-the-devices")
def four_shards_for_eight_devices():
    from_shards([put(np.ones((2, 4)), device) for device in jax.devices()[:4]])


@case("shards-for-the-devices")
def eight_shards_on_one_device():
    from_shards([jnp.ones((2, 4))] * 8)


@case("shards-for-the-devices")
def shards_that_are_sharded():
    from_shards([zeros(16, 4, at=LINE, spec=("x",))] * 8)


@case("process-local-data-shape")
def a_global_shape_of_two_processes_in_one():
    jax.make_array_from_process_local_data(on(LINE, "x"), np.ones((16, 4)), (32, 4))


# Explicit axes: errors of other types.


@case("vmap-inputs-sharded-differently")
def vmap_of_a_sharded_and_a_replicated_array():
    x = zeros(16, 4, at=EXPLICIT, spec=("data",))
    with jax.set_mesh(EXPLICIT):
        jax.vmap(lambda a, b: a * b)(x, jnp.ones((16, 4)))


@case("vmap-inputs-sharded-differently")
def vmap_of_a_replicated_and_a_sharded_array():
    x = zeros(16, 4, at=EXPLICIT, spec=("data",))
    with jax.set_mesh(EXPLICIT):
        jax.vmap(lambda a, b: a * b)(jnp.ones((16, 4)), x)


@case("vmap-inputs-sharded-differently")
def the_inverse_of_sharded_matrices():
    x = put(jnp.stack([jnp.eye(4)] * 16), on(EXPLICIT, "data"))
    with jax.set_mesh(EXPLICIT):
        jax.jit(jnp.linalg.inv)(x)


@case("repeat-needs-out-sharding")
def repeat_of_a_sharded_array():
    with jax.set_mesh(EXPLICIT):
        jnp.repeat(zeros(16, 4, at=EXPLICIT, spec=("data",)), 2, axis=0)


@case("no-sharding-rule")
def a_ragged_product_of_sharded_experts():
    with jax.set_mesh(EXPLICIT_LINE):
        w = zeros(16, 8, 4, at=EXPLICIT_LINE, spec=("x",))
        lax.ragged_dot(jnp.ones((32, 8)), w, jnp.full(16, 2))


@case("dimension-must-be-unsharded")
def nonzero_of_a_sharded_array():
    with jax.set_mesh(EXPLICIT):
        jnp.nonzero(zeros(16, 4, at=EXPLICIT, spec=("data",)) > 0, size=4)


@case("map-over-sharded-rows")
def a_map_over_sharded_rows_in_batches():
    with jax.set_mesh(EXPLICIT):
        x = zeros(16, 4, at=EXPLICIT, spec=("data",))
        lax.map(lambda row: row * 2, x, batch_size=4)


@case("scan-over-sharded-layers")
def a_map_over_sharded_rows():
    with jax.set_mesh(EXPLICIT):
        lax.map(lambda row: row * 2, zeros(16, 4, at=EXPLICIT, spec=("data",)))


@case("carry-is-sharded-differently")
def a_carry_that_starts_replicated():
    with jax.set_mesh(EXPLICIT):
        x = zeros(16, 4, at=EXPLICIT, spec=("data",))
        lax.fori_loop(0, 3, lambda i, c: c + x, jnp.zeros(x.shape))


@case("carry-is-sharded-differently")
def a_carry_of_keys_that_is_replicated_in_the_loop():
    keys = put(jax.random.split(jax.random.key(0), 8), on(EXPLICIT, "data"))
    with jax.set_mesh(EXPLICIT):
        lax.fori_loop(0, 3, lambda i, c: reshard(c, P()), keys)


@case("library-carry-on-explicit-axes")
def a_loop_of_a_library_over_a_sharded_array():
    with jax.set_mesh(EXPLICIT):
        added_three_times(zeros(16, at=EXPLICIT, spec=("data",)))


# The source of a function that is a library's, by its file's path.
LIBRARY = """
def added_three_times(x):
    return lax.fori_loop(0, 3, lambda i, c: c + x, jnp.zeros(x.shape))
"""
exec(compile(LIBRARY, "/lib/site-packages/library.py", "exec"))
added_three_times = globals()["added_three_times"]


# Values that vary, in code of libraries and in kernels.


@case("library-carry-varies")
def a_solver_of_a_library_in_shard_map():
    blocks(solved)(jnp.arange(16.0))


def solved(v):
    return odeint(lambda y, t: -y, v, jnp.array([0.0, 1.0]))[1]


@case("library-carry-varies")
def a_series_of_jax_in_shard_map():
    blocks(lambda v: jax.scipy.special.hyp1f1(1.0, 2.0, v))(jnp.arange(16.0))


@case("carry-varies")
def a_carry_that_varies_along_one_axis_of_two():
    def f(v):
        start = lax.pcast(0.0, "data", to="varying")
        return lax.scan(lambda c, a: (c + a, None), start, v)[0][None]

    spec = P(("data", "model"))
    blocks(f, spec, spec, BOX)(jnp.arange(16.0))


@case("key-varies-less")
def one_key_for_the_parameters_of_each_device():
    key = jax.random.key(0)
    blocks(lambda v: jax.random.gamma(key, v + 1))(jnp.arange(16.0))


@case("key-varies-less")
def one_key_for_beta_in_shard_map():
    key = jax.random.key(0)
    blocks(lambda v: jax.random.beta(key, v + 1, v + 1))(jnp.arange(16.0))


def doubled(x_ref, out_ref):
    out_ref[...] = x_ref[...] * 2


def kernel(out_shape, interpret=True, **kwargs):
    """A kernel inside shard_map, its output's type as `out_shape` makes it."""

    def f(v):
        return pl.pallas_call(doubled, out_shape=out_shape(v), interpret=interpret)(v)

    return jax.jit(blocks(f, **kwargs))


@case("kernel-output-varies")
def a_kernel_whose_output_says_no_axes():
    kernel(lambda v: jax.ShapeDtypeStruct(v.shape, v.dtype))(jnp.ones((64, 128)))


@case("library-mixes-varying")
def a_kernel_that_is_interpreted():
    kernel(jax.typeof)(jnp.ones((64, 128)))


@case("vma-is-gone")
def the_axes_of_a_type_by_their_old_name():
    blocks(lambda v: jax.typeof(v).vma and v)(jnp.zeros(8))


@case("vma-is-gone")
def a_shape_with_the_old_name_of_its_axes():
    jax.ShapeDtypeStruct((8,), jnp.float32, vma=frozenset({"x"}))


# Memory kinds.


def on_the_host(*spec):
    return NamedSharding(LINE, P(*spec), memory_kind="pinned_host")


@case("host-and-device-memory")
def an_array_of_the_host_and_one_of_the_device():
    host, device = put(jnp.ones(8), on_the_host("x")), put(jnp.ones(8), on(LINE, "x"))
    jax.jit(lambda a, b: a + b)(host, device)


@case("memory-kind-of-an-argument")
def in_shardings_of_the_device_for_an_array_of_the_host():
    host = put(jnp.ones(8), on_the_host("x"))
    jax.jit(lambda a: a * 2, in_shardings=on(LINE, "x"))(host)


@case("no-such-memory-kind")
def a_memory_kind_of_another_chip():
    NamedSharding(LINE, P("x"), memory_kind="hbm")


@case("transfer-to-memory-kind-is-gone")
def transfer_to_a_memory_kind():
    jax.sharding.TransferToMemoryKind("device")


@case("transfer-to-memory-kind-is-gone")
def transfer_to_a_memory_kind_imported():
    exec("from jax.sharding import TransferToMemoryKind")


# Objects that are no arrays.


@case("mesh-handed-to-jit")
def a_mesh_handed_to_jit():
    jax.jit(lambda x, mesh: x)(jnp.zeros(8), LINE)


@case("mesh-handed-to-jit")
def a_sharding_handed_to_jit():
    jax.jit(lambda x, sharding: x)(jnp.zeros(8), on(LINE, "x"))


@case("mesh-handed-to-jit")
def a_spec_handed_to_jit():
    jax.jit(lambda x, spec: x)(jnp.zeros(8), P("x"))


@case("module-handed-to-jit")
def an_optimizer_handed_to_jit():
    jax.jit(lambda tx, x: x)(optax.adam(1e-3), jnp.zeros(8))


@case("module-handed-to-jit")
def a_linen_module_handed_to_jit():
    jax.jit(lambda model, x: x)(nn.Dense(3), jnp.zeros(8))


@case("device-put-of-a-module")
def device_put_of_a_tree_with_a_function():
    jax.device_put({"w": jnp.zeros(8), "activation": jax.nn.relu}, on(LINE))


@case("axis-resources-is-gone")
def jit_with_in_axis_resources():
    jax.jit(lambda x: x, in_axis_resources=P("x"))


# Flax's logical names.


class Annotated(nn.Module):
    """A layer whose weight has logical names."""

    @nn.compact
    def __call__(self, x):
        init = nn.with_logical_partitioning(nn.initializers.ones, ("in", "out"))
        return nn.Dense(8, kernel_init=init)(x)


@functools.cache
def annotated():
    return Annotated().init(jax.random.key(0), jnp.ones((16, 4)))


def kernel_of(variables):
    return variables["params"]["Dense_0"]["kernel"]


@case("boxed-parameter")
def a_product_with_a_boxed_weight():
    jnp.ones((16, 4)) @ kernel_of(annotated())


@case("boxed-parameter")
def the_shape_of_a_boxed_weight():
    return kernel_of(annotated()).shape


@case("boxed-parameter")
def the_sum_of_a_boxed_weight():
    jnp.sum(kernel_of(annotated()))


@case("logical-name-without-rule")
def logical_names_taken_for_axes():
    put(annotated(), nn.get_sharding(annotated(), BOX))


@case("logical-name-without-rule")
def a_rule_to_an_axis_that_is_not_there():
    specs = nn.get_partition_spec(annotated())
    nn.logical_to_mesh_sharding(specs, BOX, (("in", "dta"),))


@case("logical-name-without-rule")
def logical_names_in_nnx_without_rules():
    init = nnx.with_partitioning(nnx.initializers.zeros, ("embed", "mlp"))
    with jax.set_mesh(BOX):
        nnx.Linear(8, 8, kernel_init=init, rngs=nnx.Rngs(0))


@case("logical-name-twice")
def one_logical_name_in_two_dimensions():
    nn.logical_to_mesh_axes(("embed", "embed"), (("embed", "data"),))


@case("nnx-mesh-is-empty")
def nnx_with_the_mesh_of_with_mesh():
    init = nnx.with_partitioning(
        nnx.initializers.zeros, (None,), mesh=Mesh(np.empty((), object), ())
    )
    nnx.Variable(init(nnx.Rngs(0).params(), (12,), jnp.float32))


# Orbax.


@functools.cache
def saved():
    """Where a checkpoint of w (8, 8) and n (3,) is."""
    path = Path(tempfile.mkdtemp()) / "state"
    state = {"w": zeros(8, 8, at=LINE, spec=("x",)), "n": np.arange(3)}
    with warnings.catch_warnings(action="ignore"), ocp.StandardCheckpointer() as one:
        one.save(path, state)
    return path


def target(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=on(LINE, "x"))


@case("checkpoint-has-another-shape")
def a_target_of_another_shape():
    tree = {"w": target(8, 6), "n": np.zeros(3)}
    ocp.StandardCheckpointer().restore(saved(), tree)


@case("checkpoint-has-another-tree")
def a_target_with_another_key():
    ocp.StandardCheckpointer().restore(saved(), {"v": target(8, 8)})


@case("checkpoint-has-another-tree")
def a_target_that_is_a_list():
    ocp.StandardCheckpointer().restore(saved(), [target(8, 8)])


@case("checkpoint-exists")
def a_checkpoint_saved_twice():
    ocp.StandardCheckpointer().save(saved(), {"w": jnp.zeros(3)})
