"""X-rays of live programs on eight CPU devices, on whichever JAX is installed."""

import linecache
import re
from html.parser import HTMLParser

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import spmd_helpers._xray.xray as module
from spmd_helpers._aot.peak import peak_bytes
from spmd_helpers._errors import MeshMismatch, NotUnderstood
from spmd_helpers._xray.xray import xray

SLICED = "all-reduce + dynamic-slice"


def mesh_of(*shape, names=("data", "model", "pipe"), order=None):
    devices = np.array(jax.devices())[order or range(8)].reshape(shape)
    return Mesh(devices, names[: len(shape)])


M42 = mesh_of(4, 2)


def on(mesh, shape, *spec, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, P(*spec)))


def collectives(f, *args, **options):
    return [(c.kind, c.axes, c.count) for c in xray(f, *args, **options).collectives]


# --- The two steps of the first chapters ----------------------------------------

SIZES = {"w1": (784, 512), "b1": (512,), "w2": (512, 10), "b2": (10,)}
# One all-reduce carries the four gradients and the loss: 407,051 floats.
FLOATS = 784 * 512 + 512 + 512 * 10 + 10 + 1


def loss_of(params, batch):
    hidden = jax.nn.relu(batch["image"] @ params["w1"] + params["b1"])
    scores = jax.nn.log_softmax(hidden @ params["w2"] + params["b2"])
    return -jnp.mean(jnp.sum(scores * jax.nn.one_hot(batch["label"], 10), axis=-1))


def step(params, batch):
    loss, grads = jax.value_and_grad(loss_of)(params, batch)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss


def pmapped_step(params, batch):
    loss, grads = jax.value_and_grad(loss_of)(params, batch)
    loss, grads = lax.pmean((loss, grads), "batch")
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss


def abstract(sizes, batch, put):
    params = {name: put(size, False, jnp.float32) for name, size in sizes.items()}
    images = put((*batch, 784), True, jnp.float32)
    return params, {"image": images, "label": put(batch, True, jnp.int32)}


def test_the_pmap_step():
    args = abstract(
        {name: (8, *size) for name, size in SIZES.items()},
        (8, 16),
        lambda shape, _, dtype: jax.ShapeDtypeStruct(shape, dtype),
    )
    report = xray(jax.pmap(pmapped_step, axis_name="batch"), *args)
    (c,) = report.collectives
    assert (c.kind, c.axes, c.count, c.phase) == ("all-reduce", ("batch",), 1, None)
    assert c.operand_bytes == c.result_bytes == 4 * FLOATS
    assert c.wire_bytes == round(2 * 7 / 8 * 4 * FLOATS)
    assert re.fullmatch(r"test_xray\.py:\d+", c.source)
    assert report.mesh_shape == {"batch": 8}
    assert report.name == "pmapped_step"


def test_the_jit_step():
    mesh = mesh_of(8)
    args = abstract(
        SIZES,
        (128,),
        lambda shape, split, dtype: on(mesh, shape, *["data"] * split, dtype=dtype),
    )
    report = xray(step, *args)
    (c,) = report.collectives
    assert (c.kind, c.axes, c.count) == ("all-reduce", ("data",), 1)
    assert (c.operand_bytes, c.phase) == (4 * FLOATS, "backward")
    params, batch = report.input_shardings
    assert (params["w1"].replicas, batch["image"].shard_shape) == (8, (16, 784))
    assert report.output_shardings[0]["w1"].replicated_over == ("data",)
    assert report.output_shardings[1].shape == ()


def test_a_pmap_without_a_name():
    report = xray(jax.pmap(lambda x: x * 2), np.zeros((8, 3), np.float32))
    assert report.mesh_shape == {"(pmap axis)": 8}
    assert "_internal" not in repr(report) + repr(report.input_shardings)


# --- Each collective, over each axis --------------------------------------------


def mapped(f, spec, out, mesh=M42):
    return jax.shard_map(f, mesh=mesh, in_specs=spec, out_specs=out)


def summed(axis):
    return lambda x: lax.psum(x, axis)


@pytest.mark.parametrize(
    ("f", "expected", "result_bytes"),
    [
        (mapped(summed("data"), P("data"), P()), ("all-reduce", ("data",)), 256),
        (mapped(summed("model"), P("model"), P()), ("all-reduce", ("model",)), 512),
        (
            mapped(summed(("model", "data")), P(("data", "model")), P()),
            ("all-reduce", ("data", "model")),
            128,
        ),
        (
            mapped(
                lambda x: lax.all_gather(x, "data", tiled=True), P("data"), P("data")
            ),
            ("all-gather", ("data",)),
            1024,
        ),
        (
            mapped(
                lambda x: lax.psum_scatter(x, "model", tiled=True),
                P(None, "model"),
                P("model"),
            ),
            ("reduce-scatter", ("model",)),
            256,
        ),
        (
            mapped(
                lambda x: lax.all_to_all(x, "data", 1, 0, tiled=True),
                P("data"),
                P("data"),
            ),
            ("all-to-all", ("data",)),
            256,
        ),
        (
            mapped(
                lambda x: lax.ppermute(x, "model", [(0, 1), (1, 0)]),
                P("model"),
                P("model"),
            ),
            ("collective-permute", ("model",)),
            512,
        ),
    ],
)
def test_each_collective(f, expected, result_bytes):
    # 16 × 16 floats are 1024 bytes in all.
    (c,) = xray(f, jax.ShapeDtypeStruct((16, 16), jnp.float32)).collectives
    assert (c.kind, c.axes, c.count) == (*expected, 1)
    assert c.result_bytes == result_bytes
    assert c.lowered_as is None


@pytest.mark.parametrize("shape", [(4, 2), (2, 4), (2, 2, 2), (8, 1), (1, 8)])
@pytest.mark.parametrize("order", [None, [7, 3, 5, 1, 6, 2, 4, 0]])
def test_every_axis_of_every_mesh(shape, order):
    mesh = mesh_of(*shape, order=order)
    for axis, size in mesh.shape.items():
        f = mapped(summed(axis), P(axis), P(), mesh)
        expected = [("all-reduce", (axis,), 1)] if size > 1 else []
        assert collectives(f, jax.ShapeDtypeStruct((16,), jnp.float32)) == expected
    assert xray(f, jnp.ones(16)).mesh_shape == dict(mesh.shape)


def test_two_axes_of_a_cube():
    mesh = mesh_of(2, 2, 2)
    f = mapped(summed(("data", "pipe")), P(("pipe", "data")), P(), mesh)
    assert collectives(f, jnp.ones(16)) == [("all-reduce", ("data", "pipe"), 1)]


# --- The compiler's own ----------------------------------------------------------


def test_fsdp_matmul():
    def grad(w, x):
        return jax.grad(lambda w: jnp.mean(jnp.tanh(x @ w) ** 2))(w)

    w, x = on(M42, (64, 48), "data"), on(M42, (32, 64), "data")
    report = xray(grad, w, x, jit={"out_shardings": w.sharding})
    gather, scatter = report.collectives
    assert (gather.kind, gather.axes) == ("all-gather", ("data",))
    assert (gather.phase, scatter.phase) == ("forward", "backward")
    assert (gather.operand_bytes, gather.result_bytes) == (3072, 12288)
    assert (scatter.kind, scatter.axes) == ("reduce-scatter", ("data",))
    assert scatter.lowered_as == SLICED
    assert scatter.wire_bytes == 2 * 3 * 12288 // 4  # what an all-reduce sends
    assert "reduce-scatter*" in repr(report)
    assert f"* written by the compiler as {SLICED}" in repr(report)


def test_an_all_reduce_that_is_sliced_along_the_other_axis():
    x, w = on(M42, (32, 64), None, "model"), on(M42, (64, 48), "model")
    f = jax.jit(lambda x, w: x @ w, out_shardings=NamedSharding(M42, P("data")))
    assert collectives(f, x, w) == [("all-reduce", ("model",), 1)]


def layers(body):
    def loss(w, x):
        return jnp.mean(lax.scan(body, x, w)[0] ** 2)

    return jax.grad(loss)


def tanh_layer(h, w):
    return jnp.tanh(h @ w), None


STACK = on(M42, (6, 64, 64), None, "data"), on(M42, (32, 64), "data")


def test_scan_multiplies():
    assert collectives(layers(tanh_layer), *STACK) == [
        ("all-gather", ("data",), 6),
        ("all-gather", ("data",), 6),
        ("all-reduce", ("data",), 6),
    ]


def test_phases_under_checkpoint():
    report = xray(layers(jax.checkpoint(tanh_layer)), *STACK)
    assert [(c.kind, c.phase, c.count) for c in report.collectives] == [
        ("all-gather", "forward", 6),
        ("all-gather", "recompute", 6),
        ("all-reduce", "backward", 6),
    ]


def test_nested_scans_multiply():
    def outer(h, w):
        def inner(h, _):
            h = jnp.tanh(h @ w)
            return lax.with_sharding_constraint(
                h, NamedSharding(M42, P("data", "model"))
            ), None

        return lax.scan(inner, h, None, length=3)[0], None

    w, x = on(M42, (5, 64, 64), None, None, "model"), on(M42, (32, 64), "data", "model")
    assert collectives(lambda w, x: lax.scan(outer, x, w)[0], w, x) == [
        ("all-gather", ("model",), 15)
    ]


def varying_sum(x):
    return lax.pcast(lax.psum(x, "data"), "data", to="varying")


def test_a_loop_of_unknown_length():
    def f(x, n):
        return lax.fori_loop(0, n, lambda _, x: varying_sum(x), x)

    f = jax.shard_map(f, mesh=M42, in_specs=(P("data"), P()), out_specs=P("data"))
    report = xray(f, jnp.ones((8, 6)), jnp.int32(3))
    (c,) = report.collectives
    assert (c.kind, c.count, c.total_wire_bytes) == ("all-reduce", None, None)
    assert "? unknown: in a loop that runs as often as the data say" in repr(report)


def test_a_branch_counts_as_an_upper_bound():
    def f(p, x):
        return lax.cond(p, varying_sum, lambda x: x, x)

    f = jax.shard_map(f, mesh=M42, in_specs=(P(), P("data")), out_specs=P("data"))
    report = xray(f, jnp.bool_(True), jnp.ones((8, 6)))
    (c,) = report.collectives
    assert (c.count, c.upper_bound) == (1, True)
    assert "≤1" in repr(report)
    assert "≤ at most: in a branch that may not be taken" in repr(report)


def test_half_precision_on_cpu_is_said():
    args = [on(M42, (32, 64), "data", dtype=jnp.bfloat16)]
    report = xray(lambda x: x.sum(0), *args)
    assert report.collectives[0].dtype == "float32"
    note = "The CPU compiler sends bfloat16 as float32: elsewhere such bytes are half."
    assert note in repr(report)
    assert note not in repr(xray(lambda x: x.sum(0), on(M42, (32, 64), "data")))


# --- Ways to call it -------------------------------------------------------------


def doubled_sum(x, scale=2.0):
    return scale * x.sum(0)


X = on(M42, (32, 64), "data")


@pytest.mark.parametrize(
    "f",
    [
        doubled_sum,
        jax.jit(doubled_sum),
        jax.jit(doubled_sum).trace(X),
        jax.jit(doubled_sum).lower(X),
        jax.jit(doubled_sum).lower(X).compile(),
    ],
    ids=["plain", "jitted", "traced", "lowered", "compiled"],
)
def test_every_stage(f):
    report = xray(f, X)
    assert report.name == "doubled_sum"
    assert [(c.kind, c.axes) for c in report.collectives] == [("all-reduce", ("data",))]
    assert report.input_shardings[0].shard_shape == (8, 64)


def test_nothing_is_run_and_no_data_is_needed():
    def f(x):
        jax.debug.callback(lambda: pytest.fail("it ran"))
        return x + 1

    x = jax.device_put(np.ones((8, 4), np.float32), NamedSharding(M42, P("data")))
    report = xray(f, x)
    x.delete()
    assert xray(f, x, jit={"donate_argnums": 0}).mesh_shape == report.mesh_shape


def test_terabytes_of_nothing():
    big = on(M42, (2**20, 2**18), "data", "model")
    report = xray(lambda x: x * 2, big)
    assert report.collectives == ()
    assert report.input_shardings[0].bytes_per_device == 2**37


def test_keyword_arguments_and_unused_ones():
    report = xray(lambda x, y, *, z: x + z, X, X, z=X)
    used, unused, named = report.input_shardings
    assert (used, unused, named) == (named["z"], None, {"z": used})


def test_options_of_jit():
    f = jax.jit(lambda x, n: x * n, static_argnums=1)
    assert len(xray(f, X, 3).input_shardings) == 1
    report = xray(lambda x, n: x * n, X, 3, jit={"static_argnums": 1})
    assert len(report.input_shardings) == 1


def test_donation_lowers_the_peak():
    kept = xray(lambda x: x + 1, X)
    given = xray(lambda x: x + 1, X, jit={"donate_argnums": 0})
    assert (
        kept.peak_memory - given.peak_memory
        == X.sharding.shard_shape(X.shape)[0] * 64 * 4
    )


def test_peak_memory_counts_temporaries():
    def f(x):
        return (x @ x.T).sum()

    report = xray(f, on(M42, (512, 64), "data"))
    memory = jax.jit(f).lower(on(M42, (512, 64), "data")).compile().memory_analysis()
    temporary = memory.temp_size_in_bytes
    assert temporary >= 512 * 128 * 4
    arguments = 128 * 64 * 4
    assert report.peak_memory == arguments + 4 + temporary


def test_the_peak_field_is_taken_on_a_tpu():
    class Memory:
        argument_size_in_bytes = output_size_in_bytes = temp_size_in_bytes = 5
        alias_size_in_bytes, peak_memory_in_bytes = 0, 7

    assert peak_bytes(Memory(), "tpu") == 7
    Memory.peak_memory_in_bytes = 99  # of them 84 in vector memory
    assert peak_bytes(Memory(), "tpu") == 15
    assert peak_bytes(Memory(), "gpu") == peak_bytes(Memory(), "cpu") == 15
    Memory.peak_memory_in_bytes = None
    assert peak_bytes(Memory(), "tpu") is None
    assert peak_bytes(None, "cpu") is None


# --- Where the mesh comes from ---------------------------------------------------


def test_the_context_tells_the_mesh():
    with jax.set_mesh(M42):
        report = xray(lambda: jnp.zeros((8, 4)) + 1)
    assert report.mesh_shape == {"data": 4, "model": 2}


def test_the_program_tells_the_mesh_and_its_inputs_get_names():
    f = mapped(summed("data"), P(("model", "data"), None), P("model"))
    report = xray(f, jnp.ones((8, 4)))
    assert report.input_shardings[0].entries == (("model", "data"), ())
    assert report.output_shardings.replicated_over == ("data",)


def test_an_explicit_mesh():
    mesh = jax.make_mesh((4, 2), ("data", "model"), (AxisType.Explicit,) * 2)
    with jax.set_mesh(mesh):
        x = jax.device_put(jnp.ones((8, 6)), NamedSharding(mesh, P("data")))
        assert collectives(lambda x: x.sum(0), x) == [("all-reduce", ("data",), 1)]


def test_one_device():
    report = xray(lambda x: x @ x.T, jnp.ones((3, 4)))
    assert (report.collectives, report.mesh_shape) == ((), {})
    assert report.input_shardings[0].mesh_shape == {}
    assert repr(report).splitlines()[:2] == [
        "XRay of <lambda>, cpu, one device (bytes per device, each time)",
        "no collective: no device waits for another",
    ]


# --- What is shown ---------------------------------------------------------------


class Cells(HTMLParser):
    def __init__(self):
        super().__init__()
        self.lines, self.cell = [], None

    def handle_starttag(self, tag, attributes):
        if tag in ("tr", "caption", "p"):
            self.lines.append([])
        self.cell = tag if tag in ("th", "td", "caption", "p") else self.cell

    def handle_data(self, data):
        if self.cell and data.strip():
            self.lines[-1].append(data)


def test_text_and_html_say_the_same():
    report = xray(layers(tanh_layer), *STACK)
    bundle = report._repr_mimebundle_()
    assert bundle["text/plain"] == repr(report) == str(report)
    reader = Cells()
    reader.feed(bundle["text/html"])
    words = " ".join(" ".join(line) for line in reader.lines).split()
    assert words == repr(report).split()
    assert any(line[0].startswith("finding: ") for line in reader.lines)
    assert '<table class="spmd-xray"><caption ' in bundle["text/html"]
    assert bundle["text/html"].count('<th scope="col" ') == 7
    assert max(map(len, repr(report).splitlines())) <= 78


def test_the_table():
    f = mapped(summed("data"), P("data"), P())
    lines = repr(xray(f, jnp.ones((16, 16)))).splitlines()
    line = summed.__code__.co_firstlineno + 1
    assert lines == [
        "XRay of <lambda>, cpu, data=4 × model=2 (bytes per device, each time)",
        "collective  over  times  dtype    result  sends  where",
        f"all-reduce  data      1  float32   256 B  384 B  test_xray.py:{line}",
        "peak memory: 512 B per device",
    ]


def test_angle_brackets_are_escaped():
    html = xray(lambda x: x, jnp.ones(3))._repr_mimebundle_()["text/html"]
    assert "&lt;lambda&gt;" in html
    assert "<lambda>" not in html


def notebook_cell(file, code):
    linecache.cache[file] = (len(code), None, code.splitlines(True), file)
    scope = {"lax": lax}
    exec(compile(code, file, "exec"), scope)
    return scope["f"]


CODE = "def f(x):\n    y = 2 * x\n    return lax.psum(y, 'data')\n"


def test_a_notebook_cell_is_named_without_its_file():
    f = notebook_cell("/var/tmp/ipykernel_4711/123456.py", CODE)
    report = xray(mapped(f, P("data"), P()), jnp.ones((8, 4)))
    assert report.collectives[0].source == "notebook cell, line 3"
    assert repr(report).splitlines()[2].endswith("  cell, line 3")


@pytest.mark.parametrize(
    ("history", "source"),
    [
        (["", "a = 1", CODE], "cell 2, line 3"),
        (["", "a = 1"], "notebook cell, line 3"),
        (["", "a = 1", ""], "notebook cell, line 3"),
    ],
)
def test_a_cell_with_a_number(monkeypatch, history, source):
    class Compiler:
        def format_code_name(self, name):
            return "Cell", "In[2]"

    class Shell:
        compile, user_ns = Compiler(), {"In": history}

    class IPython:
        get_ipython = staticmethod(Shell)

    monkeypatch.setitem(module.sys.modules, "IPython", IPython)
    f = notebook_cell("/var/tmp/ipykernel_4711/123456.py", CODE)
    report = xray(mapped(f, P("data"), P()), jnp.ones((8, 4)))
    assert report.collectives[0].source == source
    assert repr(report).splitlines()[2].endswith("  cell, line 3")


# --- Bad input -------------------------------------------------------------------


def message(error, *args, **options):
    with pytest.raises(error) as caught:
        xray(*args, **options)
    return str(caught.value)


def test_not_a_function():
    assert message(NotUnderstood, 3) == (
        "f=3 is not a function: give the function itself, xray(f, x), and not its "
        "result, xray(f(x))"
    )
    assert message(NotUnderstood, "HloModule jit_f") == (
        "f='HloModule jit_f' is a text: read_hlo(text, mesh_shape) reads those"
    )


def test_a_program_without_text():
    """JAX's `as_text` gives None where a backend has no text."""

    class Compiled:
        def __repr__(self):
            return "a program"

        def as_text(self):
            return None

        memory_analysis = as_text

    assert message(NotUnderstood, Compiled()) == (
        "f=a program: the compiler gives no text of this program, and xray reads "
        "nothing else; compile for cpu, gpu or tpu"
    )


def test_options_that_cannot_be_applied():
    assert message(NotUnderstood, doubled_sum, X, jit=True) == (
        "jit=True is not a dict of options for jax.jit: give for example "
        "jit={'donate_argnums': 0}"
    )
    assert message(NotUnderstood, jax.jit(doubled_sum), X, jit={}) == (
        "jit={} is of no use: f is already jitted. Give the plain function, or give "
        "these options where it was jitted"
    )


def test_a_mesh_that_the_program_does_not_use():
    assert message(MeshMismatch, doubled_sum, jnp.ones((8, 4)), mesh=M42) == (
        "mesh={'data': 4, 'model': 2} has 8 devices, but the program was compiled for "
        "1: give arguments on this mesh, such as jax.ShapeDtypeStruct(shape, dtype, "
        "sharding=NamedSharding(mesh, spec))"
    )
    small = Mesh(np.array(jax.devices()[:2]), ("data",))
    assert "has 2 devices, but the program was compiled for 8: give" in (
        message(MeshMismatch, doubled_sum, X, mesh=small)
    )


def test_no_mesh_to_be_found():
    def hidden(f):
        compiled = jax.jit(f).lower(X).compile()

        class Compiled:
            as_text, memory_analysis = compiled.as_text, compiled.memory_analysis
            input_shardings = output_shardings = ()

        return Compiled()

    assert message(MeshMismatch, hidden(doubled_sum)) == (
        "mesh=None, and nothing tells the axes of the 8 devices that the program was "
        "compiled for: give mesh=, the Mesh that f uses"
    )


def test_jax_errors_come_through_with_a_note():
    def broken(x):
        return x @ jnp.ones((3, 3))

    with pytest.raises(TypeError) as caught:
        xray(broken, X)
    assert caught.value.__notes__[-1] == (
        "xray was tracing and compiling broken, not running it."
    )


# --- What a first user met -------------------------------------------------------


def test_none_among_the_arguments():
    f = jax.jit(lambda p, x, mask=None: x @ p["w"])
    x = on(M42, (64, 16), "data")
    for params in (
        {"b": None, "w": on(M42, (16, 8), None, "model")},
        {"w": on(M42, (16, 8), None, "model"), "z": None},
    ):
        for more in ({}, {"mask": None}):
            report = xray(f, params, x, **more)
            assert report.redundancy == 1.0
            assert report.input_shardings[1].shard_shape == (16, 16)
            assert report.input_shardings[0]["w"].shard_shape == (16, 4)
    state = {"a": on(M42, (8,), "data"), "none": None}
    report = xray(lambda s: {"a": s["a"] * 2, "none": None}, state, carry={0: 0})
    assert report.findings == ()


def test_a_branch_is_counted_as_an_upper_bound():
    def f(t, x, w):
        return lax.cond(t, lambda: x @ w, lambda: x @ w @ w)

    report = xray(f, jnp.array(True), jnp.ones((8, 8)), jnp.ones((8, 8)))
    assert report.upper_bound
    assert report.flops_per_device == 2 * 2 * 8**3
    assert "at most 2.05 kFLOPs per device" in repr(report)


def test_a_product_that_is_next_to_nothing_is_no_finding():
    def f(x, u):
        return x * jnp.vdot(u, u)

    assert xray(f, on(M42, (512, 64), "data"), on(M42, (3,))).findings == ()


def test_a_part_of_an_axis_that_repeats_is_told():
    def f(x):
        q = x.reshape(16, 32, 6, -1)
        return jnp.einsum("bshd,bthd->bhst", q, q)

    mesh = jax.make_mesh((8,), ("data",), (AxisType.Auto,))
    report = xray(f, on(mesh, (16, 32, 96), None, None, "data"))
    assert report.redundancy > 1.5
    assert "redundant-work" in [finding.code for finding in report.findings]


def test_the_map_of_work_is_that_of_the_program():
    mesh = mesh_of(4, 2)
    report = xray(jnp.matmul, on(mesh, (48, 40), "data"), on(mesh, (40, 24), "data"))
    assert report.pieces == (0, 0, 1, 1, 2, 2, 3, 3)
    assert report.redundancy == 8 / len({*report.pieces})
    (panel,) = report.draw_work()._picture.panels
    assert panel.shards == ((0, 0), (1, 1), (2, 2), (3, 3))
    assert str(report.draw_work()).startswith("matmul: the pieces of its largest")


def test_no_map_without_work():
    x = on(mesh_of(4, 2), (48, 40), "data")
    with pytest.raises(NotUnderstood, match="has no matrix product"):
        xray(lambda x: x + 1, x).draw_work()
    with pytest.raises(NotUnderstood, match="has no mesh"):
        xray(jnp.dot, jnp.ones((2, 3)), jnp.ones((3, 2))).draw_work()
