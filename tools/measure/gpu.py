"""Time collectives, matrix products and one training step on the GPUs of this machine.

    python -m tools.measure.gpu [--out FOLDER | --for-the-book] [--tiny]

Writes collectives_gpu.json and steps_gpu.json into my-measurements/, and a page,
hardware.md, of all rows that lie there. Every row names the card, the driver, the
machine, JAX's version, the date and this command. With one device there is nothing to
exchange: only matrix products are timed. `--tiny` is a rehearsal on any devices, with
small shapes; its times mean nothing. `--for-the-book` writes to the package's data in
place of that: `load_measured` reads it, chapters 10 and 14 speak of its rows, and
`make notebooks` makes book/hardware.md of them.
"""

import functools
import sys

from tools.measure import runner

if not runner.has_jax():
    sys.exit(runner.NO_JAX)

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import spmd_helpers as spmd
from tools.measure.clock import about as about_devices
from tools.measure.clock import exchanges, seconds, stepper
from tools.measure.model import BF16, F32, PARTS, adam, start_of
from tools.measure.runner import REPEATS, STEPS_AT_ONCE, clock, timed, write


def where(tiny: bool) -> dict:
    """What every row says of the machine."""
    values = about_devices() | runner.here()
    keys = ("device", "devices", "driver", "machine", "jax", "date")
    command = "tools/measure/gpu.py" + " --tiny" * tiny
    return {key: values[key] for key in keys} | {"command": command}


def one_axis(kind=AxisType.Auto):
    """A mesh of all devices."""
    devices = jax.devices()
    return jax.make_mesh(
        (len(devices),), ("data",), axis_types=(kind,), devices=devices
    )


# --- Collectives ------------------------------------------------------------------

KINDS = {
    # name: (what each device does, how the argument lies, how the result lies)
    "all-gather": (
        lambda x: lax.all_gather(x, "data", tiled=True),
        P("data"),
        P(),
    ),
    "reduce-scatter": (
        lambda x: lax.psum_scatter(x, "data", tiled=True),
        P(None, "data"),
        P("data", "data"),
    ),
    "all-reduce": (lambda x: lax.psum(x, "data"), P(None, "data"), P()),
    "all-to-all": (
        lambda x: lax.all_to_all(x, "data", 1, 0, tiled=True),
        P("data"),
        P(None, "data"),
    ),
    "collective-permute": (
        lambda x: lax.ppermute(x, "data", _ring(lax.axis_size("data"))),
        P("data"),
        P("data"),
    ),
}


def _ring(devices: int) -> list[tuple[int, int]]:
    return [(i, (i + 1) % devices) for i in range(devices)]


def one_collective(kind: str, full_bytes: int, mesh):
    """(jitted function, its argument) for a full array of bfloat16 of so many bytes."""
    f, shape, spec = jitted_collective(kind, full_bytes, mesh)
    place = NamedSharding(mesh, spec)
    return f, jax.jit(lambda: jnp.ones(shape, BF16), out_shardings=place)()


def jitted_collective(kind: str, full_bytes: int, mesh):
    """(jitted function, the shape of its argument, its spec).

    Where every device begins with an array of its own to be summed, each has the full
    array, and what is handed over is the stack of them.
    """
    does, before, after = KINDS[kind]
    columns = 1024
    rows = full_bytes // 2 // columns
    if before == P(None, "data"):
        columns *= mesh.size
    if after == P("data", "data"):
        after = P("data")
    mapped = jax.shard_map(
        does, mesh=mesh, in_specs=before, out_specs=after, check_vma=False
    )
    return jax.jit(mapped), (rows, columns), before


def collectives(mesh, sizes, about) -> list[dict]:
    rows = []
    for kind in KINDS:
        for size in sizes:
            run, x = one_collective(kind, size, mesh)
            compiled = spmd.xray(run, x, mesh=mesh).collectives
            rows.append(
                {
                    "kind": kind,
                    "bytes": size,
                    "dtype": "bfloat16",
                    "wire_bytes": sum(c.wire_bytes for c in compiled),
                    "seen": [c.kind for c in compiled],
                    **timed(seconds(run, x)),
                    **about,
                }
            )
            print(rows[-1]["kind"], size, f"{rows[-1]['median_s'] * 1e3:.3f} ms")
    return rows


def products(sizes, about) -> list[dict]:
    """[m, k] @ [k, n] on one card."""
    rows = []
    run = jax.jit(lambda x, w: x @ w)
    for m, k, n in sizes:
        x = jax.random.normal(jax.random.key(0), (m, k), BF16)
        w = jax.random.normal(jax.random.key(1), (k, n), BF16)
        timing = timed(seconds(run, x, w))
        shape = {"kind": "matmul", "m": m, "k": k, "n": n, "dtype": "bfloat16"}
        rows.append({**shape, **timing, **about, "devices": 1})
        share = 2 * m * k * n / timing["median_s"] / 1e12
        print("matmul", m, k, n, f"{share:.1f} TFLOP/s")
    return rows


# --- A training step: a stack of residual MLP layers, bfloat16 products, Adam -------


def forward(params, x, between, inside):
    def layer(h, weights):
        w1, w2 = (w.astype(BF16) for w in weights)
        hidden = inside(jax.nn.relu(h @ w1))
        return between(h + hidden @ w2), None

    h = lax.scan(layer, x, (params["w1"], params["w2"]))[0]
    return (h.astype(F32) ** 2).mean()


def same(value):
    return value


def train(state, x, between=same, inside=same, mean=same):
    def loss_fn(params):
        return forward(params, x, between, inside)

    loss, grads = mean(jax.value_and_grad(loss_fn)(state["params"]))
    return adam(state, grads, 1e-4), loss


def start(shape):
    layers, d, f = shape
    key = jax.random.key(0)
    params = {
        "w1": jax.random.normal(key, (layers, d, f), F32) / d**0.5,
        "w2": jax.random.normal(key, (layers, f, d), F32) / f**0.5 / 8,
    }
    return start_of(params)


# name: (kind of axes, specs of w1, w2, x and the hidden layer, constrained)
HALVES = P(None, "data")
WAYS = {
    "replicated": (AxisType.Auto, P(), P(), P("data"), P("data"), True),
    "fsdp plain": (AxisType.Auto, HALVES, HALVES, P("data"), P("data"), False),
    "fsdp constrained": (AxisType.Auto, HALVES, HALVES, P("data"), P("data"), True),
    "fsdp explicit": (AxisType.Explicit, HALVES, HALVES, P("data"), P("data"), False),
    "tensor parallel": (
        AxisType.Auto,
        P(None, None, "data"),
        HALVES,
        P(),
        HALVES,
        True,
    ),
}


def one_step(name, shape, batch):
    """(step, state, batch) of one way to lay it out."""
    d, devices = shape[1], jax.devices()
    if name == "pmap":
        mean = functools.partial(lax.pmean, axis_name="data")
        step = jax.pmap(
            functools.partial(train, mean=mean),
            axis_name="data",
            devices=devices,
            donate_argnums=0,
        )
        state = jax.pmap(lambda _: start(shape), devices=devices)(
            jnp.arange(len(devices))
        )
        x = jnp.ones((len(devices), batch // len(devices), d), BF16)
        return step, state, x
    kind, w1, w2, on_x, on_hidden, constrained = WAYS[name]
    mesh = one_axis(kind)
    on = functools.partial(NamedSharding, mesh)
    places = {part: {"w1": on(w1), "w2": on(w2)} for part in PARTS}
    with jax.set_mesh(mesh):
        state = jax.jit(lambda: start(shape), out_shardings=places)()
        x = jax.device_put(jnp.ones((batch, d), BF16), on(on_x))
    if constrained:

        def constrain(where):
            return lambda h: lax.with_sharding_constraint(h, on(where))

        step = jax.jit(
            functools.partial(
                train, between=constrain(on_x), inside=constrain(on_hidden)
            ),
            donate_argnums=0,
            out_shardings=(places, on(P())),
        )
    else:
        step = jax.jit(train, donate_argnums=0)
    return step, state, x


def steps(wanted, shape, about) -> list[dict]:
    layers, d, f = shape
    rows = []
    for name, batch in wanted:
        step, state, x = one_step(name, shape, batch)
        row = {
            **{"name": name, "layers": layers, "d_model": d, "d_ff": f},
            **{"batch": batch, "params": "float32", "compute": "bfloat16"},
        }
        try:
            # The compiler's word first: the state is donated at the first step.
            counted = spmd.xray(step, state, x)
            row["peak_bytes"] = counted.peak_memory
            row["flops_per_device"] = counted.flops_per_device
            row["collectives"] = exchanges(counted.collectives)
            kept = [state, x]
            state = x = None
            run = stepper(step, kept, STEPS_AT_ONCE)
            for _ in range(2):
                run()
            taken = [s / STEPS_AT_ONCE for s in clock(run, REPEATS, REPEATS)]
        except Exception as error:
            print(f"{name}, batch {batch}: {type(error).__name__}: {str(error)[:300]}")
            continue
        finally:
            state = x = step = kept = run = None
            jax.clear_caches()
        rows.append({**row, **timed(taken), **about})
        share = 12 * batch * d * f * layers / about["devices"] / rows[-1]["median_s"]
        print(
            name,
            batch,
            f"{rows[-1]['median_s'] * 1e3:.2f} ms, {share / 1e12:.0f} TFLOP/s a card",
            flush=True,
        )
    return rows


def main() -> None:
    given = runner.options(__doc__).parse_args()
    out = runner.place(given)
    devices = jax.devices()
    if not given.tiny and devices[0].platform != "gpu":
        sys.exit(runner.no_gpu(devices[0].device_kind))
    about = where(given.tiny)
    print(about)
    if given.tiny:
        sizes, shapes = (2**16,), ((8, 64, 96),)
        shape, batches, batch = (2, 64, 96), (64,), 32
    else:
        sizes = tuple(2**n for n in (20, 23, 26, 28, 29, 30))
        shapes = tuple((m, 8192, 8192) for m in (8, 32, 128, 256, 512, 2048, 8192))
        shape, batches, batch = (8, 4096, 16384), (512, 1024, 2048, 8192), 4096
    wanted = [(name, batch) for name in (*WAYS, "pmap")]
    wanted += [(n, b) for b in batches for n in ("fsdp constrained", "tensor parallel")]
    moved = []
    if len(devices) > 1:
        moved = collectives(one_axis(), sizes, about)
        write(out / "collectives_gpu.json", moved)
    else:
        print("1 device: collectives and strategies need two, they are left out")
    moved += products(shapes, about)
    write(out / "collectives_gpu.json", moved)
    if len(devices) > 1:
        write(out / "steps_gpu.json", steps(wanted, shape, about))


if __name__ == "__main__":
    main()
