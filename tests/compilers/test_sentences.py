"""Sentences of the chapters that name figures of a compiler, asked of that compiler."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import spmd_helpers as spmd
from tests.book.chapters import ROOT
from tests.book.test_pages import blocks


def prose(number):
    (path,) = (ROOT / "book" / "chapters").glob(f"{number}_*.md")
    return path.read_text("utf8")


def argument_bytes(mesh, shape):
    x = jax.ShapeDtypeStruct(shape, "float32", sharding=NamedSharding(mesh, P()))
    compiled = jax.jit(lambda x: x * 2).lower(x).compile()
    return compiled.memory_analysis().argument_size_in_bytes


@pytest.mark.compiler("tpu")
def test_a_tpu_pads_narrow_arrays():
    """Chapter 3."""
    mesh = spmd.tpu_mesh("v5e:1x1", data=1, anyhow=True)
    padded, plain = argument_bytes(mesh, (4096, 10)), 4096 * 10 * 4
    said = f"4096 × 10 takes {padded:,} bytes instead of {plain:,}"
    assert said in prose("03")
    size = argument_bytes(mesh, (1152,))
    vector = f"1152 numbers takes {size:,} bytes instead of {1152 * 4:,}"
    assert vector in prose("03")
    assert argument_bytes(mesh, (4096, 128)) == 4096 * 128 * 4


@pytest.mark.compiler("gpu")
def test_a_gpu_pads_nothing():
    mesh = spmd.gpu_mesh("h100:1", data=1)
    assert argument_bytes(mesh, (4096, 10)) == 4096 * 10 * 4


def exchanged(f, *arguments):
    """(kind, bytes of the result) of each collective."""
    return [(c.kind, c.result_bytes) for c in spmd.xray(f, *arguments).collectives]


def array(mesh, shape, *entries, **kind):
    sharding = NamedSharding(mesh, P(*entries), **kind)
    return jax.ShapeDtypeStruct(shape, "float32", sharding=sharding)


@pytest.mark.compiler("tpu")
def test_what_a_tpu_exchanges_otherwise():
    """Chapter 4: batch norm, half precision, and a device_put that is obeyed."""
    mesh = spmd.tpu_mesh("v5e:2x4", data=4, model=2, anyhow=True)

    def norm(x):
        return (x - x.mean(axis=0)) / jnp.sqrt(x.var(axis=0) + 1e-5)

    rows = array(mesh, (48, 40), "data")
    assert exchanged(norm, rows) == [("all-reduce", 160)] * 2
    assert "exchanges 160 bytes twice, instead of 160 and 320" in prose("04")

    x, w = array(mesh, (48, 40), "data", "model"), array(mesh, (40, 24), None, "model")
    with jax.default_matmul_precision("highest"):
        assert exchanged(jnp.matmul, x, w) == [("all-gather", 1920)]
    with jax.default_matmul_precision("default"):
        assert exchanged(jnp.matmul, x, w) == [("all-gather", 960)]
    assert "an all-gather of an operand has half the bytes" in prose("04")

    def running(x):
        return x.cumsum(axis=1)

    assert exchanged(running, x) == [("all-gather", 1920)]
    long = exchanged(running, array(mesh, (256, 8192), "data", "model"))
    assert [size for kind, size in long if kind == "all-gather"] == [16_384]
    assert "with [256, 8192] it all-gathers 16,384 bytes" in prose("04")

    columns = NamedSharding(mesh, P(None, "model"))
    kind = {"memory_kind": "pinned_host"}
    on_host = array(mesh, (48, 40), "data", "model", **kind)

    def f(x, h):
        return jax.device_put(2 * x + jax.device_put(h, x_sharding), columns)

    x_sharding = x.sharding
    assert exchanged(f, x, x) == []
    assert exchanged(f, x, on_host) == [("all-gather", 3840)]
    assert "an all-gather over `data` of 3,840 bytes" in prose("04")


def half_products(mesh):
    """The dtypes that jit, and a `pmean` in `shard_map`, all-reduce a gradient in."""

    def loss(w, x):
        y = x.astype("bfloat16") @ w.astype("bfloat16")
        return (y.astype("float32") ** 2).mean()

    def averaged(w, x):
        w = jax.lax.pcast(w, "data", to="varying")
        return jax.lax.pmean(jax.grad(loss)(w, x), "data")

    specs = {"in_specs": (P(), P("data")), "out_specs": P()}
    steps = jax.grad(loss), jax.shard_map(averaged, mesh=mesh, **specs)
    w, x = array(mesh, (64, 128)), array(mesh, (256, 64), "data")
    return [[c.dtype for c in spmd.xray(f, w, x).collectives] for f in steps]


@pytest.mark.compiler("gpu")
@pytest.mark.compiler("tpu")
def test_mixed_precision_all_reduces_in_the_dtype_of_the_product():
    """Chapter 2."""
    for mesh in (
        spmd.gpu_mesh("h100:8", data=8),
        spmd.tpu_mesh("v5e:2x4", data=8, anyhow=True),
    ):
        assert half_products(mesh) == [["bfloat16"], ["float32"]]
    assert "all-reduces the gradient in bfloat16, before its cast" in prose("02")


@pytest.mark.compiler("gpu")
def test_a_gpu_gathers_sums_for_a_cumsum():
    """Chapter 4."""
    mesh = spmd.gpu_mesh("h100:8", data=4, model=2)
    x = array(mesh, (48, 40), "data", "model")
    assert exchanged(lambda x: x.cumsum(axis=1), x) == [("all-gather", 96)]
    assert "with an all-gather of 96 bytes" in prose("04")


def on_host(mesh, *entries):
    return NamedSharding(mesh, P(*entries)).with_memory_kind("pinned_host")


@pytest.mark.compiler("tpu")
def test_a_stack_of_layers_in_the_memory_of_the_host():
    """Chapter 8."""
    mesh = spmd.tpu_mesh("v5e:2x4", data=8, anyhow=True)
    rows = NamedSharding(mesh, P("data"))

    def layers(stack, x):
        def layer(h, w):
            return jax.numpy.tanh(h @ jax.device_put(w, rows)), None

        return jax.lax.scan(layer, x, stack)[0]

    def peak(sharding):
        stack = jax.ShapeDtypeStruct((8, 2048, 2048), "float32", sharding=sharding)
        x = jax.ShapeDtypeStruct((256, 2048), "float32", sharding=rows)
        return spmd.xray(layers, stack, x).peak_memory

    before = peak(NamedSharding(mesh, P(None, "data")))
    after = peak(on_host(mesh, None, "data"))
    said = f"falls from {before / 1e6:.1f} MB to {after / 1e6:.1f} MB"
    assert said in prose("08")


@pytest.mark.compiler("tpu")
def test_device_put_with_an_array_on_the_host():
    """Chapter 8: ignored in a program without one, and applied in one that has one."""
    mesh = spmd.tpu_mesh("v5e:2x4", data=8, anyhow=True)
    rows = NamedSharding(mesh, P("data"))
    x = jax.ShapeDtypeStruct((64, 48), "float32", sharding=rows)
    state = jax.ShapeDtypeStruct((64, 48), "float32", sharding=on_host(mesh, "data"))

    def columns(x):
        sharding = NamedSharding(mesh, P(None, "data"))
        return jax.device_put(jax.numpy.tanh(x), sharding)

    def both(state, x):
        return jax.device_put(state, rows) + 1, columns(x)

    assert spmd.xray(columns, x).collectives == ()
    (exchange,) = spmd.xray(both, state, x).collectives
    assert exchange.kind == "all-to-all"


@pytest.mark.parametrize(
    "platform",
    [pytest.param(p, marks=pytest.mark.compiler(p)) for p in ("tpu", "gpu")],
)
def test_a_full_rematerialization_and_two_steps(platform):
    """Chapter 8: an accelerator replicates the value too, and not in two steps."""
    axes = {"data": 4, "model": 2}
    tpu = platform == "tpu"
    mesh = (
        spmd.tpu_mesh("v5e:2x4", anyhow=True, **axes)
        if tpu
        else spmd.gpu_mesh("h100:8", **axes)
    )

    def at(x, *entries):
        return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P(*entries)))

    def direct(x):
        return 2 * at(x + 1, None, ("data", "model"))

    def in_two_steps(x):
        return 2 * at(at(x + 1, "model", "data"), None, ("data", "model"))

    before = NamedSharding(mesh, P("model", None, "data"))
    cube = jax.ShapeDtypeStruct((32, 32, 32), "float32", sharding=before)
    codes = [finding.code for finding in spmd.xray(direct, cube).findings]
    assert codes == ["gathered-reshard"]
    repaired = spmd.xray(in_two_steps, cube)
    assert repaired.findings == ()
    assert [c.kind for c in repaired.collectives] == ["all-to-all"] * 2


def attention(q_ref, k_ref, v_ref, out_ref):
    scores = q_ref[...] @ k_ref[...].T
    out_ref[...] = jax.nn.softmax(scores) @ v_ref[...]


@pytest.mark.compiler("tpu")
def test_a_kernel_is_sharded_by_hand():
    """Chapter 12: without shard_map no compiler of a TPU takes it."""
    from jax.experimental import pallas as pl

    mesh = spmd.tpu_mesh("v5e:2x4", data=4, model=2, anyhow=True)
    spec = P("data", "model")
    q = jax.ShapeDtypeStruct(
        (8, 4, 128, 128), "float32", sharding=NamedSharding(mesh, spec)
    )

    def by_kernel(q, k, v):
        one = pl.BlockSpec((None, None, *q.shape[2:]), lambda b, h: (b, h, 0, 0))
        axes = jax.typeof(q).manual_axis_type
        out = jax.ShapeDtypeStruct(q.shape, q.dtype, manual_axis_type=axes)
        call = pl.pallas_call(
            attention,
            grid=q.shape[:2],
            in_specs=[one] * 3,
            out_specs=one,
            out_shape=out,
        )
        return call(q, k, v)

    with pytest.raises(NotImplementedError, match="Mosaic kernels cannot be autom"):
        jax.jit(by_kernel).lower(q, q, q)
    mapped = jax.shard_map(by_kernel, mesh=mesh, in_specs=spec, out_specs=spec)
    assert spmd.xray(mapped, q, q, q).collectives == ()


def ragged_products(mesh):
    """FLOPs per device of 24 rows of 10 by three matrices of 10 × 14."""
    rows, weights = array(mesh, (24, 10)), array(mesh, (3, 10, 14))
    sizes = jax.ShapeDtypeStruct((3,), "int32", sharding=NamedSharding(mesh, P()))
    return spmd.xray(jax.lax.ragged_dot, rows, weights, sizes).flops_per_device


def sends_ragged(mesh):
    """Send rows to the device that each is for, without padding."""

    def body(rows, out, counts):
        every = jax.lax.all_gather(counts[0], "expert")
        me = jax.lax.axis_index("expert")
        before = jnp.cumsum(every, axis=0) - every
        starts = jnp.cumsum(counts[0]) - counts[0]
        return jax.lax.ragged_all_to_all(
            rows, out, starts, counts[0], before[me], every[:, me], axis_name="expert"
        )

    n = mesh.shape["expert"]
    place = NamedSharding(mesh, P("expert"))
    rows, out = array(mesh, (6 * n, 10), "expert"), array(mesh, (12 * n, 10), "expert")
    counts = jax.ShapeDtypeStruct((n, n), "int32", sharding=place)
    f = jax.shard_map(body, mesh=mesh, in_specs=P("expert"), out_specs=P("expert"))
    return [c.kind for c in spmd.xray(f, rows, out, counts).collectives]


ONE_MATRIX = 24 * 2 * 10 * 14


@pytest.mark.compiler("tpu")
def test_a_tpu_multiplies_a_ragged_row_by_one_matrix():
    """Chapter 16, which also says what each compiler does with rows without padding."""
    assert "**On a TPU** `ragged_dot` multiplies each row by one" in prose("16")
    one = spmd.tpu_mesh("v5e:1x1", expert=1, anyhow=True)
    assert ragged_products(one) == ONE_MATRIX
    eight = spmd.tpu_mesh("v5e:2x4", expert=8, anyhow=True)
    assert "ragged-all-to-all" in sends_ragged(eight)


@pytest.mark.compiler("gpu")
def test_a_gpu_multiplies_a_ragged_row_by_every_matrix():
    assert "So does the compiler for an H100" in prose("16")
    assert ragged_products(spmd.gpu_mesh("h100:1", expert=1)) == 3 * ONE_MATRIX
    assert "ragged-all-to-all" in sends_ragged(spmd.gpu_mesh("h100:8", expert=8))


def test_cpu_devices_multiply_by_every_matrix_and_send_nothing_ragged():
    kind = (jax.sharding.AxisType.Auto,)
    one = jax.make_mesh((1,), ("expert",), axis_types=kind, devices=jax.devices()[:1])
    assert ragged_products(one) == 3 * ONE_MATRIX
    eight = jax.make_mesh((8,), ("expert",), axis_types=kind)
    with pytest.raises(jax.errors.JaxRuntimeError, match="ragged-all-to-all"):
        sends_ragged(eight)


def zero_steps(mesh):
    """What a step of ZeRO-1 and one of ZeRO-2 exchange, by the cheatsheet's code."""
    first, *others = blocks("cheatsheet.md")
    names: dict = {}
    (block,) = [b for b in others if "def stepper" in b]
    exec(first + block.split("\nrng = ")[0], names)
    data, sizes = P("data"), {"up": (64, 256), "down": (256, 128)}
    steps = []
    for grads in (None, data):
        step, places, _ = names["stepper"](mesh, P(), grads, data, data)
        state = {
            key: {
                name: jax.ShapeDtypeStruct(size, "float32", sharding=to[name])
                for name, size in sizes.items()
            }
            for key, to in places.items()
        }
        x, y = array(mesh, (64, 64), "data"), array(mesh, (64, 128), "data")
        steps.append(exchanged(step, state, x, y))
    return steps


def one_program(steps):
    first, second = steps
    kinds = {kind for kind, _ in first}
    return sorted(first) == sorted(second) and kinds == {"reduce-scatter", "all-gather"}


def test_zero_1_and_zero_2_are_one_program():
    """The cheatsheet says so of each compiler."""
    kind = (jax.sharding.AxisType.Auto,)
    assert one_program(zero_steps(jax.make_mesh((8,), ("data",), axis_types=kind)))


@pytest.mark.compiler("tpu")
def test_zero_1_and_zero_2_are_one_program_on_a_tpu():
    assert one_program(zero_steps(spmd.tpu_mesh("v5e:2x4", data=8)))


@pytest.mark.compiler("gpu")
def test_zero_1_and_zero_2_are_one_program_on_a_gpu():
    assert one_program(zero_steps(spmd.gpu_mesh("h100:8", data=8)))
