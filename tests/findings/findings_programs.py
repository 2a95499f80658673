"""Programs with and without a silent mistake, for the detectors of mistakes.

`GOOD` are written as they should be: they must yield no finding. Each of `BAD` has one
mistake and says which codes it must yield. Every array is large enough to be worth a
finding: more than 1 KiB on each device. `test_findings.py` compiles them for
eight CPU devices; with libtpu installed, for a v5e slice too.

B, S, D, F: batch, sequence, features, hidden features; H heads; L layers; V words.
"""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import spmd_helpers as spmd

B, S, D, F, H, L, V = 32, 16, 64, 128, 8, 4, 512


@dataclass(frozen=True)
class Program:
    """A function to compile and what is to be found in it.

    Attributes:
        build: given the mesh, gives (f, args) or (f, args, options of xray).
        codes: what must be found; () for a good program.
        also: what may be found too, which comes of the same mistake.
        only: 'cpu' where it can't be compiled for a TPU that isn't there.
        until: the first version of JAX that no longer makes the mistake.
        tpu: what must be found when compiled for TPU, where that differs.
        mesh: axis name → size; None for one that is given the devices.
    """

    name: str
    build: Callable[[Any], tuple]
    codes: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    only: str = ""
    until: tuple[int, ...] = (99,)
    tpu: tuple[str, ...] | None = None
    mesh: Mapping[str, int] | None = field(default_factory=lambda: {"data": 8})

    def on(self, devices: Any) -> tuple:
        """What is built for these devices."""
        devices = np.array(devices, object)
        return self.build(devices if self.mesh is None else auto(devices, **self.mesh))


GRID = {"data": 4, "model": 2}
GOOD: dict[str, Program] = {}
BAD: dict[str, Program] = {}


def good(build: Callable | None = None, **more: Any):
    def keep(build):
        GOOD[build.__name__] = Program(build.__name__, build, **more)
        return build

    return keep(build) if build else keep


def bad(*codes: str, **more: Any):
    def keep(build):
        BAD[build.__name__] = Program(build.__name__, build, codes, **more)
        return build

    return keep


@dataclass(frozen=True)
class Remedy:
    """A bad program, one that follows its finding's remedy, and what must be less."""

    bad: str
    program: Program
    saves: str | None


REMEDIES: dict[str, list[Remedy]] = {}


def remedy(code: str, bad: str, saves: str | None = None) -> Callable:
    """Register a program that does what the finding of a bad one says.

    `saves` names what must be less: 'peak' memory, bytes 'sent' or 'moved' by
    all-to-alls, bytes of the 'results', or 'flops', each of a device; None where the
    remedy makes numbers right, or the second step not compile again, and costs as much.
    """

    def keep(build):
        program = Program(build.__name__, build, mesh=BAD[bad].mesh)
        REMEDIES.setdefault(code, []).append(Remedy(bad, program, saves))
        return build

    return keep


def same_as(code: str, bad: str, good: str, saves: str | None = None) -> None:
    """A good program is the bad one with the remedy in it."""
    REMEDIES.setdefault(code, []).append(Remedy(bad, GOOD[good], saves))


def see(program: Program, devices: Any) -> Any:
    """The X-ray of a program on these devices."""
    f, args, *options = program.on(devices)
    options = dict(options[0]) if options else {}
    context = options.pop("context", None)
    with warnings.catch_warnings():
        # JAX itself tells of donated memory that can't be used.
        warnings.filterwarnings("ignore", "Some donated buffers", UserWarning)
        if context is None:
            return spmd.xray(f, *args, **options)
        with jax.set_mesh(context):
            return spmd.xray(f, *args, **options)


def auto(devices, **sizes):
    grid = devices[: int(np.prod([*sizes.values()]))].reshape(tuple(sizes.values()))
    return Mesh(grid, tuple(sizes), axis_types=(AxisType.Auto,) * len(sizes))


def explicit(devices, **sizes):
    grid = devices.reshape(tuple(sizes.values()))
    return Mesh(grid, tuple(sizes), axis_types=(AxisType.Explicit,) * len(sizes))


def to(mesh, *spec):
    return NamedSharding(mesh, P(*spec))


def on(mesh, shape, *spec, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(shape, dtype, sharding=to(mesh, *spec))


def ids(mesh, shape, *spec):
    return on(mesh, shape, *spec, dtype=jnp.int32)


def key(mesh):
    return jax.ShapeDtypeStruct((), jax.random.key(0).dtype, sharding=to(mesh))


def pin(x, mesh, *spec):
    return lax.with_sharding_constraint(x, to(mesh, *spec))


def like(tree):
    return jax.tree.map(lambda x: x.sharding, tree)


def mlp(mesh, first, second):
    return {"w1": on(mesh, (D, F), *first), "w2": on(mesh, (F, D), *second)}


def loss(params, x):
    return jnp.mean((jnp.tanh(x @ params["w1"]) @ params["w2"]) ** 2)


def pinned_loss(mesh, *spec):
    """The loss with its activations cut over the batch, as it should be."""

    def loss(params, x):
        h = pin(jnp.tanh(x @ params["w1"]), mesh, *spec)
        return jnp.mean(pin(h @ params["w2"], mesh, *spec) ** 2)

    return loss


def sgd(loss):
    def step(params, x):
        value, grads = jax.value_and_grad(loss)(params, x)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value

    return step


def layers(h, stack, remat=False, cut=lambda h: h):
    def layer(h, w):
        return cut(h + jnp.tanh(h @ w["w1"]) @ w["w2"]), None

    return lax.scan(jax.checkpoint(layer) if remat else layer, h, stack)[0]


def stack(mesh, first, second):
    return {"w1": on(mesh, (L, D, F), *first), "w2": on(mesh, (L, F, D), *second)}


def mapped(mesh, f, ins, out, **more):
    return jax.shard_map(f, mesh=mesh, in_specs=ins, out_specs=out, **more)


# --- Good programs: plain -----------------------------------------------------------


@good(only="cpu", mesh=None)
def one_device(devices):
    params = {
        "w1": jax.ShapeDtypeStruct((D, F), jnp.float32),
        "w2": jax.ShapeDtypeStruct((F, D), jnp.float32),
    }
    x = jax.ShapeDtypeStruct((B, D), jnp.float32)
    return sgd(loss), (params, x), {"carry": 1, "jit": {"donate_argnums": 0}}


@good(only="cpu", mesh=None)
def pmap_step(devices):
    def step(params, x):
        value, grads = jax.value_and_grad(loss)(params, x)
        value, grads = lax.pmean((value, grads), "batch")
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value

    params = {
        "w1": jax.ShapeDtypeStruct((8, D, F), jnp.float32),
        "w2": jax.ShapeDtypeStruct((8, F, D), jnp.float32),
    }
    x = jax.ShapeDtypeStruct((8, B, D), jnp.float32)
    return jax.pmap(step, axis_name="batch"), (params, x)


@good
def data_parallel(mesh):
    args = mlp(mesh, (), ()), on(mesh, (B, D), "data")
    return sgd(loss), args, {"carry": 1, "jit": {"donate_argnums": 0}}


@good(mesh=GRID)
def data_parallel_over_two_axes(mesh):
    args = mlp(mesh, (), ()), on(mesh, (B, D), ("data", "model"))
    return sgd(loss), args, {"carry": 1}


@good
def gradients_of_data_parallel(mesh):
    return jax.grad(loss), (mlp(mesh, (), ()), on(mesh, (B, D), "data"))


@good
def loss_alone(mesh):
    return loss, (mlp(mesh, (), ()), on(mesh, (B, D), "data"))


@good(mesh=GRID)
def evaluation(mesh):
    def evaluate(params, x, labels):
        scores = jnp.tanh(x @ params["w1"]) @ params["w2"]
        return (scores.argmax(-1) == labels).mean(), scores

    params = mlp(mesh, (None, "model"), ("model",))
    return evaluate, (params, on(mesh, (B, D), "data"), ids(mesh, (B,), "data"))


# --- Good programs: FSDP and tensor parallelism -------------------------------------


@good
def fsdp_constrained(mesh):
    params = mlp(mesh, ("data",), ("data",))
    step = sgd(pinned_loss(mesh, "data"))
    jit = {"out_shardings": (like(params), to(mesh)), "donate_argnums": 0}
    return step, (params, on(mesh, (B, D), "data")), {"carry": 1, "jit": jit}


@good
def fsdp_gradients_asked_for(mesh):
    params = mlp(mesh, (None, "data"), ("data",))
    grad = jax.grad(pinned_loss(mesh, "data"))
    jit = {"out_shardings": like(params)}
    return grad, (params, on(mesh, (B, D), "data")), {"jit": jit}


@good
def fsdp_with_biases(mesh):
    """A bias that is cut is gathered for use, as the weights are."""
    places = {"w1": to(mesh, "data"), "b1": to(mesh, "data"), "w2": to(mesh, "data")}

    def biased(params, x):
        h = jax.nn.relu(x @ params["w1"] + params["b1"])
        h = pin(h, mesh, "data")
        return (pin(h @ params["w2"], mesh, "data") ** 2).mean()

    shapes = {"w1": (D, 2048), "b1": (2048,), "w2": (2048, D)}
    params = {n: on(mesh, s, "data") for n, s in shapes.items()}
    step = jax.jit(jax.grad(biased), out_shardings=places)
    return step, (params, on(mesh, (B, D), "data"))


@good(mesh=None)
def fsdp_explicit(devices):
    mesh = explicit(devices, data=8)
    args = mlp(mesh, ("data",), ("data",)), on(mesh, (B, D), "data")

    def loss(params, x):
        h = jnp.tanh(x @ jax.reshard(params["w1"], P()))
        return jnp.mean((h @ jax.reshard(params["w2"], P())) ** 2)

    return sgd(loss), args, {"carry": 1, "context": mesh}


@good(mesh={"model": 8})
def tensor_parallel(mesh):
    args = mlp(mesh, (None, "model"), ("model",)), on(mesh, (B, D))
    return sgd(loss), args, {"carry": 1, "jit": {"donate_argnums": 0}}


@good(mesh=GRID)
def tensor_and_data_parallel(mesh):
    args = mlp(mesh, (None, "model"), ("model",)), on(mesh, (B, D), "data")
    return jax.grad(loss), args


@good(mesh=GRID)
def fsdp_and_tensor_parallel(mesh):
    params = mlp(mesh, ("data", "model"), ("model", "data"))

    def loss(params, x):
        h = pin(jnp.tanh(x @ params["w1"]), mesh, "data", "model")
        return jnp.mean(pin(h @ params["w2"], mesh, "data") ** 2)

    jit = {"out_shardings": (like(params), to(mesh)), "donate_argnums": 0}
    args = params, on(mesh, (B, D), "data")
    return sgd(loss), args, {"carry": 1, "jit": jit}


@good(mesh=GRID)
def column_parallel_square(mesh):
    args = on(mesh, (F, F), "data"), on(mesh, (F, F), None, "model")
    return lambda x, w: x @ w, args


@good(mesh={"model": 8})
def row_parallel_square(mesh):
    args = on(mesh, (F, F), None, "model"), on(mesh, (F, F), "model")
    return lambda x, w: x @ w, args


@good
def scanned_fsdp(mesh):
    ws = stack(mesh, (None, "data"), (None, None, "data"))

    def loss(ws, x):
        return jnp.mean(layers(x, ws, cut=lambda h: pin(h, mesh, "data")) ** 2)

    jit = {"out_shardings": (like(ws), to(mesh)), "donate_argnums": 0}
    return sgd(loss), (ws, on(mesh, (B, D), "data")), {"carry": 1, "jit": jit}


@good
def scanned_fsdp_remat(mesh):
    ws = stack(mesh, (None, "data"), (None, None, "data"))

    def loss(ws, x):
        cut = lambda h: pin(h, mesh, "data")  # noqa: E731
        return jnp.mean(layers(x, ws, remat=True, cut=cut) ** 2)

    args = ws, on(mesh, (B, D), "data")
    return jax.grad(loss), args, {"jit": {"out_shardings": like(ws)}}


@good(mesh=GRID)
def scanned_tensor_parallel(mesh):
    ws = stack(mesh, (None, None, "model"), (None, "model"))
    return layers, (on(mesh, (B, D), "data"), ws)


@good(mesh=None)
def scanned_fsdp_explicit(devices):
    mesh = explicit(devices, data=8)
    ws = stack(mesh, (None, "data"), (None, None, "data"))

    def loss(ws, x):
        def layer(h, w):
            w = jax.tree.map(lambda w: jax.reshard(w, P()), w)
            return h + jnp.tanh(h @ w["w1"]) @ w["w2"], None

        return jnp.mean(lax.scan(layer, x, ws)[0] ** 2)

    return jax.grad(loss), (ws, on(mesh, (B, D), "data")), {"context": mesh}


@good
def accumulated_in_a_shard_map(mesh):
    def gradients(params, batches):
        own = jax.tree.map(lambda p: lax.pcast(p, "data", to="varying"), params)

        def add(total, x):
            return jax.tree.map(jnp.add, total, jax.grad(loss)(own, x)), None

        total, _ = lax.scan(add, jax.tree.map(jnp.zeros_like, own), batches)
        return jax.tree.map(lambda g: lax.pmean(g, "data"), total)

    grads = mapped(mesh, gradients, (P(), P(None, "data")), P())

    def step(params, batches):
        new = grads(params, batches)
        return jax.tree.map(lambda p, g: p - 0.1 * g / 4, params, new)

    args = mlp(mesh, (), ()), on(mesh, (4, B, D), None, "data")
    return step, args, {"carry": {0: 0}, "jit": {"donate_argnums": 0}}


# --- Good programs: optimizers, initialization, Flax --------------------------------


@good
def adam_fsdp(mesh):
    params = mlp(mesh, ("data",), ("data",))
    adam = optax.adam(1e-3)

    def step(params, state, x):
        value, grads = jax.value_and_grad(pinned_loss(mesh, "data"))(params, x)
        updates, state = adam.update(grads, state, params)
        return optax.apply_updates(params, updates), state, value

    state = jax.tree.map(
        lambda x: on(mesh, x.shape, *["data"] * bool(x.shape), dtype=x.dtype),
        jax.eval_shape(adam.init, params),
    )
    jit = {
        "donate_argnums": (0, 1),
        "out_shardings": (like(params), like(state), to(mesh)),
    }
    args = params, state, on(mesh, (B, D), "data")
    return step, args, {"carry": 2, "jit": jit}


@good
def adam_zero_1(mesh):
    params = mlp(mesh, (), ())
    adam = optax.adam(1e-3)

    def step(params, state, x):
        grads = jax.grad(loss)(params, x)
        updates, state = adam.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    state = jax.tree.map(
        lambda x: on(mesh, x.shape, *["data"] * bool(x.shape), dtype=x.dtype),
        jax.eval_shape(adam.init, params),
    )
    args = params, state, on(mesh, (B, D), "data")
    return step, args, {"jit": {"out_shardings": (like(params), like(state))}}


@good
def optimizer_state_asked_for(mesh):
    params = mlp(mesh, ("data",), ("data",))
    adam = optax.adam(1e-3)
    where = jax.tree.map(
        lambda x: to(mesh, *["data"] * bool(x.shape)),
        jax.eval_shape(adam.init, params),
    )
    return adam.init, (params,), {"jit": {"out_shardings": where}}


@good(mesh=GRID)
def random_start_asked_for(mesh):
    def start(key):
        first, second = jax.random.split(key)
        return {
            "w1": jax.random.normal(first, (D, F)),
            "w2": jax.random.normal(second, (F, D)),
        }

    where = like(mlp(mesh, ("data", "model"), ("model", "data")))
    return start, (key(mesh),), {"jit": {"out_shardings": where}}


@good(only="cpu", mesh=GRID)
def nnx_step(mesh):
    with jax.set_mesh(mesh):
        cut = nnx.with_partitioning(nnx.initializers.lecun_normal(), (None, "model"))
        model = nnx.Linear(D, F, kernel_init=cut, rngs=nnx.Rngs(0))
        optimizer = nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)

    @nnx.jit
    def step(model, optimizer, x, y):
        grads = nnx.grad(lambda model: jnp.mean((model(x) - y) ** 2))(model)
        optimizer.update(model, grads)

    args = model, optimizer, on(mesh, (B, D), "data"), on(mesh, (B, F), "data")
    return step, args, {"context": mesh}


# --- Good programs: shard_map -------------------------------------------------------


@good
def psum_of_blocks(mesh):
    f = mapped(mesh, lambda x: lax.psum(x.sum(0), "data"), P("data"), P())
    return f, (on(mesh, (B, F), "data"),)


@good
def gathered_blocks(mesh):
    def f(x):
        gathered = lax.all_gather(x, "data", tiled=True)
        return gathered - lax.pmean(gathered.sum() / 2, "data")

    return mapped(mesh, f, P("data"), P("data")), (on(mesh, (B, F), "data"),)


@good
def counted_devices(mesh):
    def f(x):
        n = lax.psum(jnp.ones(()), "data") + lax.psum(1, "data")
        return x / n

    return mapped(mesh, f, P("data"), P("data")), (on(mesh, (B, F), "data"),)


def mapped_step(mesh, gradients, **more):
    def step(params, x):
        value, grads = gradients(params, x)
        new = jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)
        return new, lax.pmean(value, "data")

    f = mapped(mesh, step, (P(), P("data")), (P(), P()), **more)
    return f, (mlp(mesh, (), ()), on(mesh, (B, D), "data"))


@good
def gradients_of_cast_weights(mesh):
    def gradients(params, x):
        params = lax.pcast(params, "data", to="varying")
        value, grads = jax.value_and_grad(loss)(params, x)
        return value, lax.pmean(grads, "data")

    return mapped_step(mesh, gradients)


@good
def gradients_of_the_mean_loss(mesh):
    def gradients(params, x):
        return jax.value_and_grad(lambda p: lax.pmean(loss(p, x), "data"))(params)

    return mapped_step(mesh, gradients)


@good
def mean_loss_and_mean_gradients(mesh):
    def gradients(params, x):
        of = jax.value_and_grad(lambda p: lax.pmean(loss(p, x), "data"))
        value, grads = of(params)
        return value, lax.pmean(grads, "data")  # changes nothing, and harms nothing

    return mapped_step(mesh, gradients)


@good
def gradients_divided_by_hand(mesh):
    def gradients(params, x):
        value, grads = jax.value_and_grad(loss)(params, x)
        return value, jax.tree.map(lambda g: g / lax.axis_size("data"), grads)

    return mapped_step(mesh, gradients)


@good
def gradients_divided_and_averaged(mesh):
    def gradients(params, x):
        value, grads = jax.value_and_grad(loss)(params, x)
        grads = {"w1": grads["w1"] / 8, "w2": 0.125 * grads["w2"]}
        return value, lax.pmean(grads, "data")

    return mapped_step(mesh, gradients)


@good(mesh=GRID)
def gradients_divided_over_one_of_two_axes(mesh):
    def f(w, x):
        grads = jax.grad(lambda w: jnp.mean(jnp.tanh(x @ w) ** 2))(w)
        return lax.pmean(grads / 4, "data") / 2

    f = mapped(mesh, f, (P(), P(("data", "model"))), P())
    return f, (on(mesh, (D, F)), on(mesh, (B, D), ("data", "model")))


@good
def gradients_without_check_vma(mesh):
    def gradients(params, x):
        value, grads = jax.value_and_grad(loss)(params, x)
        return value, lax.pmean(grads, "data")

    return mapped_step(mesh, gradients, check_vma=False)


@good(mesh=GRID)
def means_over_both_axes(mesh):
    def f(x, w):
        local = jnp.tanh(x @ w)
        both = ("data", "model")
        rows = lax.psum((local**2).sum(), both) / lax.psum(local.size * 1.0, both)
        return lax.pmean(lax.psum(x.sum(), "data"), "model") + rows

    f = mapped(mesh, f, (P("data"), P(None, "model")), P())
    return f, (on(mesh, (B, D), "data"), on(mesh, (D, F), None, "model"))


@good(mesh=GRID)
def sums_that_cancel(mesh):
    def f(x):
        both = ("data", "model")
        return lax.psum((x**2).sum(), both) / lax.psum((x > 0).sum() * 1.0, both)

    f = mapped(mesh, f, P("data"), P(), check_vma=False)
    return f, (on(mesh, (B, D), "data"),)


@good
def synchronized_batch_norm(mesh):
    def f(x, running):
        mean = lax.pmean(x.mean(0), "data")
        running = 0.9 * running + 0.1 * mean
        return x - mean, lax.pmean(running, "data")

    f = mapped(mesh, f, (P("data"), P()), (P("data"), P()))
    return f, (on(mesh, (B, F), "data"), on(mesh, (F,)))


@good
def means_written_by_hand(mesh):
    def f(x, running):
        low = lax.psum(running, "data").astype(jnp.bfloat16) / 8
        return lax.psum(x.sum(0), "data"), low, 0.125 * lax.psum(running, "data")

    f = mapped(mesh, f, (P("data"), P()), (P(), P(), P()))
    return f, (on(mesh, (B, F), "data"), on(mesh, (F,)))


@good(mesh={"data": 8, "model": 1})
def an_axis_of_one_device(mesh):
    def f(x):
        x = lax.psum(x, "model")
        return lax.psum(x.sum(0), ("data", "model"))

    f = mapped(mesh, f, P("data", "model"), P(), check_vma=False)

    def g(x):
        return pin(x, mesh, "data", "model") * 2, f(x)

    return g, (on(mesh, (B, F), "data"),), {"carry": {0: 0}}


@good
def sums_within_groups(mesh):
    groups = [[0, 1, 2, 3], [4, 5, 6, 7]]

    def f(x):
        x = lax.psum(x, "data", axis_index_groups=groups)
        return lax.all_gather(x, "data", axis_index_groups=groups).sum(0)

    f = mapped(mesh, f, P("data"), P(), check_vma=False)
    return f, (on(mesh, (B, F), "data"),)


@good
def ring_without_check_vma(mesh):
    def f(x):
        total = x
        for _ in range(7):
            x = lax.ppermute(x, "data", [(i, (i + 1) % 8) for i in range(8)])
            total = total + x
        return total

    f = mapped(mesh, f, P("data"), P(), check_vma=False)
    return f, (on(mesh, (B, F), "data"),)


@good
def gathered_without_check_vma(mesh):
    def f(x):
        return lax.all_gather(x, "data", tiled=True)

    f = mapped(mesh, f, P("data"), P(), check_vma=False)
    return f, (on(mesh, (B, F), "data"),)


@good
def all_to_all_by_hand(mesh):
    def f(x):
        return lax.all_to_all(x, "data", 1, 0, tiled=True)

    f = mapped(mesh, f, P("data"), P(None, "data"))
    return f, (on(mesh, (B, F), "data"),)


@good
def loop_of_each_device(mesh):
    def f(x):
        return lax.while_loop(lambda x: (x < 2).any(), lambda x: x * 1.1 + 0.1, x)

    return mapped(mesh, f, P("data"), P("data")), (on(mesh, (8 * F, 2), "data"),)


@good
def loop_that_waits_on_purpose(mesh):
    def f(x):
        def unfinished(x):
            return lax.pmax(x.max(), "data") < 2

        return lax.while_loop(unfinished, lambda x: x * 1.1 + 0.1, x)

    return mapped(mesh, f, P("data"), P("data")), (on(mesh, (8 * F, 2), "data"),)


@good
def dropout_of_each_device(mesh):
    def f(key, x):
        key = jax.random.fold_in(key, lax.axis_index("data"))
        return jnp.where(jax.random.bernoulli(key, 0.9, x.shape), x, 0)

    f = mapped(mesh, f, (P(), P("data")), P("data"))
    return f, (key(mesh), on(mesh, (B, F), "data"))


@good
def one_mask_for_the_whole_batch(mesh):
    def f(key, x):
        return jnp.where(jax.random.bernoulli(key, 0.9, (F,)), x, 0)

    f = mapped(mesh, f, (P(), P("data")), P("data"))
    return f, (key(mesh), on(mesh, (B, F), "data"))


@good
def weights_drawn_alike(mesh):
    def f(key, x):
        w = jax.random.normal(key, (x.shape[0], x.shape[0]))
        return w @ x @ jax.random.normal(key, (F, F))

    f = mapped(mesh, f, (P(), P("data")), P("data"))
    return f, (key(mesh), on(mesh, (B, F), "data"))


# --- Good programs: what moves on purpose -------------------------------------------


def attend(q, k, v):
    scores = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k))
    return jnp.einsum("bhqk,bkhd->bqhd", scores, v)


@good(mesh=GRID)
def attention_cut_by_heads(mesh):
    def f(x, wq, wk, wv, wo):
        q = (x @ wq).reshape(B, S, H, -1)
        k = jnp.repeat((x @ wk).reshape(B, S, H // 4, -1), 4, axis=2)
        v = jnp.repeat((x @ wv).reshape(B, S, H // 4, -1), 4, axis=2)
        return attend(q, k, v).reshape(B, S, -1) @ wo

    columns = on(mesh, (D, H * 16), None, "model")
    narrow = on(mesh, (D, H * 4), None, "model")
    rows = on(mesh, (H * 16, D), "model")
    return f, (on(mesh, (B, S, D), "data"), columns, narrow, narrow, rows)


@good
def fsdp_attention(mesh):
    def loss(w, x):
        q = pin(x @ w, mesh, "data").reshape(B, S, 6, -1)
        return jnp.mean(attend(q, q, q) ** 2)

    w = on(mesh, (D, 96), "data")
    jit = {"out_shardings": w.sharding}
    return jax.grad(loss), (w, on(mesh, (B, S, D), "data")), {"jit": jit}


@good(mesh=GRID)
def rope_with_whole_heads(mesh):
    def f(x, angle):
        first, second = jnp.split(x, 2, axis=-1)
        return jnp.concatenate(
            [
                first * jnp.cos(angle) - second * jnp.sin(angle),
                second * jnp.cos(angle) + first * jnp.sin(angle),
            ],
            axis=-1,
        )

    return f, (on(mesh, (B, S, H, 16), "data", None, "model"), on(mesh, (S, 1, 8)))


@good(mesh={"data": 2, "model": 4})
def sequence_parallel_asked_for(mesh):
    def f(x, w):
        h = pin(x @ w, mesh, "data", "model")
        h = pin(h.reshape(B, S, H, -1), mesh, "data", None, "model")
        return pin(attend(h, h, h), mesh, "data", "model")

    return f, (on(mesh, (B, S, D), "data", "model"), on(mesh, (D, F)))


@good
def moved_by_out_shardings(mesh):
    jit = {"out_shardings": to(mesh, None, "data")}
    return lambda x: x * 2, (on(mesh, (F, F), "data"),), {"jit": jit}


@good
def gathered_by_out_shardings(mesh):
    return (
        lambda x: x * 2,
        (on(mesh, (B, F), "data"),),
        {"jit": {"out_shardings": to(mesh)}},
    )


@good
def gathered_by_a_constraint(mesh):
    return lambda x: pin(x * 2, mesh), (on(mesh, (B, F), "data"),)


@good
def gathered_by_a_constraint_and_reshaped(mesh):
    return lambda x: pin(x * 2, mesh).reshape(-1), (on(mesh, (B, F), "data"),)


@good
def gathered_by_a_constraint_and_changed(mesh):
    return lambda x: pin(x * 2, mesh) + 1, (on(mesh, (B, F), "data"),)


@good
def sum_of_products(mesh):
    return lambda x: x.T @ x, (on(mesh, (F, F), "data"),)


@good
def moving_average_beside_fsdp(mesh):
    def average(state, params):
        return jax.tree.map(lambda s, p: 0.9 * s + 0.1 * p, state, params)

    args = mlp(mesh, (), ()), mlp(mesh, ("data",), ("data",))
    return average, args, {"jit": {"out_shardings": like(args[0])}}


@good
def moved_by_a_jit_inside(mesh):
    inner = jax.jit(lambda x: x * 2, out_shardings=to(mesh))
    return lambda x: inner(x), (on(mesh, (B, F), "data"),)


@good
def transposed(mesh):
    return lambda x: x.T * 2, (on(mesh, (F, F), "data"),)


@good
def transposed_in_a_tree(mesh):
    return lambda tree: {"w": tree["w"].T * 2}, ({"w": on(mesh, (F, F), "data")},)


@good
def moved_by_a_constraint_and_changed(mesh):
    def f(tree):
        return {"w": pin(tree["w"], mesh, None, "data") * 2}

    return f, ({"w": on(mesh, (D, F), "data")},)


@good(mesh=GRID)
def left_to_the_compiler(mesh):
    def f(x):
        return pin(x * 2, mesh, "data", P.UNCONSTRAINED, "model").sum(0)

    return f, (on(mesh, (B, 10, F), "data", None, "model"),)


@good
def product_put_where_it_lies(mesh):
    f = lambda x, w: jax.device_put(x @ w, to(mesh, "data")) + 1  # noqa: E731
    return f, (on(mesh, (B, D), "data"), on(mesh, (D, F)))


@good
def moved_by_one_of_two_results_of_a_jit_inside(mesh):
    inner = jax.jit(lambda x: (x * 2, x + 1), out_shardings=(None, to(mesh)))
    return lambda x: inner(x), (on(mesh, (B, F), "data"),)


@good(mesh=None)
def resharded_on_explicit_axes(devices):
    mesh = explicit(devices, data=8)

    def f(x):
        moved = jax.device_put(x * 2, to(mesh, None, "data"))
        return jax.reshard(moved, P("data"))

    return f, (on(mesh, (B, F), "data"),), {"context": mesh}


@good
def put_where_it_lies(mesh):
    f = lambda x: jax.device_put(x * 2, to(mesh, "data")) + 1  # noqa: E731
    return f, (on(mesh, (B, F), "data"),)


@good
def put_into_other_memory(mesh):
    host = NamedSharding(mesh, P("data"), memory_kind="pinned_host")
    f = lambda x: jax.device_put(x * 2, host)  # noqa: E731
    return f, (on(mesh, (B, F), "data"),), {"jit": {"out_shardings": host}}


@good
def vocabulary_padded_a_little(mesh):
    def f(x, w):
        return jnp.mean(pin(x @ w, mesh, None, "data") ** 2)

    return f, (on(mesh, (B, D)), on(mesh, (D, 1001)))


# --- Good programs: embeddings, caches ----------------------------------------------


@good(mesh=GRID)
def embedding_cut_by_features(mesh):
    args = on(mesh, (V, D), None, "model"), ids(mesh, (B, S), "data")
    return lambda table, words: table[words], args


@good(mesh=GRID)
def embedding_cut_by_words(mesh):
    args = on(mesh, (V, D), "model"), ids(mesh, (B, S), "data")
    return lambda table, words: table[words], args


@good
def small_embedding_for_many_words(mesh):
    def f(table, words):
        return jnp.mean(pin(table[words], mesh, "data") ** 2)

    return f, (on(mesh, (64, D), "data"), ids(mesh, (8 * B, S), "data"))


@good
def tied_embedding(mesh):
    def f(table, words):
        pinned = pin(table, mesh)
        h = pin(pinned[words], mesh, "data")
        return jnp.mean(pin(h @ pinned.T, mesh, "data") ** 2)

    return f, (on(mesh, (V, D), "data"), ids(mesh, (B, S), "data"))


@good
def one_word_after_the_other(mesh):
    def f(table, words):
        pinned = pin(table, mesh)

        def read(total, word):
            return total + pinned[word], None

        return lax.scan(read, jnp.zeros(D), words)[0]

    return f, (on(mesh, (V, D), "data"), ids(mesh, (1000,)))


@good(mesh=GRID)
def key_value_cache(mesh):
    def step(cache, new, at):
        return lax.dynamic_update_slice_in_dim(cache, new, at, axis=1)

    cache = on(mesh, (B, 2 * S, H, 16), "data", None, "model")
    new = on(mesh, (B, 1, H, 16), "data", None, "model")
    at = ids(mesh, ())
    return step, (cache, new, at), {"carry": 1, "jit": {"donate_argnums": 0}}


@good
def dropout_in_jit(mesh):
    def f(key, x):
        return jnp.where(jax.random.bernoulli(key, 0.9, x.shape), x, 0)

    return f, (key(mesh), on(mesh, (B, F), "data"))


@good
def counted_loop(mesh):
    def f(x):
        return lax.fori_loop(0, 5, lambda i, x: x * 1.1 + i, x)

    return f, (on(mesh, (B, F), "data"),)


@good(mesh=GRID)
def softmax_over_a_cut_vocabulary(mesh):
    def f(x, w, labels):
        scores = jax.nn.log_softmax(x @ w)
        return -jnp.take_along_axis(scores, labels[:, None], axis=1).mean()

    args = on(mesh, (B, D), "data"), on(mesh, (D, V), None, "model")
    return f, (*args, ids(mesh, (B,), "data"))


# --- Good programs: too small to matter -----------------------------------------------


@good
def small_gradients(mesh):
    params = {"w1": on(mesh, (8, 16), "data"), "w2": on(mesh, (16, 8), "data")}
    return jax.grad(loss), (params, on(mesh, (16, 8), "data"))


@good
def small_results(mesh):
    def f(x):
        return x[:-1], jnp.concatenate([x, x[:2]]), jnp.cumsum(x, 0)

    return f, (on(mesh, (16, 4), "data"),)


@good(mesh=GRID)
def small_moves(mesh):
    def f(x, y):
        z = y + pin(x * 2, mesh, None, ("data", "model"), None)
        return z, (jnp.tanh(y).reshape(64, 2) ** 2).mean(0)

    x = on(mesh, (8, 8, 2), "model", "data")
    return f, (x, on(mesh, (8, 8, 2), None, ("data", "model")))


@good
def small_state(mesh):
    def f(x, scale):
        return jnp.zeros_like(x)

    jit = {"donate_argnums": 0, "out_shardings": to(mesh)}
    return f, (on(mesh, (16, 4), "data"), on(mesh, (4,))), {"jit": jit}


@good
def small_state_on_one_device(mesh):
    return jnp.zeros_like, (on(mesh, (16, 4), "data"),)


@good
def small_stack_and_table(mesh):
    def f(ws, table, word, x):
        h = lax.scan(lambda h, w: (h * w, None), x, ws)[0]
        return h, lax.dynamic_index_in_dim(table, word)

    args = on(mesh, (8, 4), "data"), on(mesh, (32, 4), "data"), ids(mesh, ())
    return f, (*args, on(mesh, (4,)))


# --- Bad programs: wrong numbers ----------------------------------------------------


@bad("summed-twice")
def pmean_of_summed_gradients(mesh):
    def gradients(params, x):
        value, grads = jax.value_and_grad(loss)(params, x)
        return value, lax.pmean(grads, "data")

    return mapped_step(mesh, gradients)


@bad("summed-twice", mesh={"data": 4})
def psum_of_summed_gradients(mesh):
    def gradients(params, x):
        value, grads = jax.value_and_grad(loss)(params, x)
        return value, lax.psum(grads, "data")

    return mapped_step(mesh, gradients)


@bad("summed-twice", mesh=GRID)
def pmean_over_one_of_two_axes(mesh):
    def f(w, x):
        grads = jax.grad(lambda w: jnp.mean(jnp.tanh(x @ w) ** 2))(w)
        return lax.pmean(grads, "data")

    f = mapped(mesh, f, (P(None, "model"), P("data")), P(None, "model"))
    return f, (on(mesh, (D, F), None, "model"), on(mesh, (B, D), "data"))


@bad("summed-twice", also=("gradients-each-iteration",))
def pmean_of_accumulated_gradients(mesh):
    def f(w, x):
        def add(total, x):
            return total + jax.grad(lambda w: jnp.mean((x @ w) ** 2))(w), None

        total, _ = lax.scan(add, jnp.zeros_like(w), x)
        return lax.pmean(total.astype(jnp.bfloat16), "data")

    f = mapped(mesh, f, (P(), P(None, "data")), P())
    return f, (on(mesh, (D, F)), on(mesh, (4, B, D), None, "data"))


@bad("summed-twice")
def pmean_of_gradients_of_a_scan(mesh):
    def f(ws, x):
        grads = jax.grad(lambda ws: jnp.mean(layers(x, ws, remat=True) ** 2))(ws)
        return lax.pmean(grads, "data")

    f = mapped(mesh, f, (P(), P("data")), P())
    return f, (stack(mesh, (), ()), on(mesh, (B, D), "data"))


@bad("summed-twice", mesh={"data": 4})
def psum_of_what_is_alike(mesh):
    def f(x, w):
        return lax.psum(lax.psum(x @ w, "data"), "data")

    f = mapped(mesh, f, (P(None, "data"), P("data")), P())
    return f, (on(mesh, (B, D), None, "data"), on(mesh, (D, F), "data"))


@bad("unchecked-output")
def block_sum_unchecked(mesh):
    f = mapped(mesh, lambda x: x.sum(0), P("data"), P(), check_vma=False)
    return f, (on(mesh, (B, F), "data"),)


@bad("unchecked-output")
def gradients_unchecked(mesh):
    def gradients(params, x):
        return jax.value_and_grad(lambda p: lax.pmean(loss(p, x), "data"))(params)

    return mapped_step(mesh, gradients, check_vma=False)


@bad("summed-twice", mesh=GRID)
def divided_over_the_other_axis(mesh):
    def f(w, x):
        grads = jax.grad(lambda w: jnp.mean(jnp.tanh(x @ w) ** 2))(w)
        return lax.pmean(grads / 4, "model")

    f = mapped(mesh, f, (P(), P(("data", "model"))), P())
    return f, (on(mesh, (D, F)), on(mesh, (B, D), ("data", "model")))


@bad("unchecked-output")
def turns_that_differ_unchecked(mesh):
    def f(x, total):
        def turn(state):
            return state[0] + 1, state[1] * 2

        return lax.while_loop(lambda state: state[0] < x[0, 0], turn, (0.0, total))[1]

    f = mapped(mesh, f, (P("data"), P()), P(), check_vma=False)
    return f, (on(mesh, (B, F), "data"), on(mesh, (F,)))


@bad("unchecked-output")
def branches_that_differ_unchecked(mesh):
    def f(x):
        first = lax.axis_index("data") == 0
        return lax.cond(first, lambda: x * 2, lambda: x)

    return mapped(mesh, f, P(), P(), check_vma=False), (on(mesh, (F, F)),)


@bad("unchecked-output", mesh=GRID)
def one_axis_unchecked(mesh):
    def f(x):
        return lax.psum(x, "data")

    f = mapped(mesh, f, P("data", "model"), P(), check_vma=False)
    return f, (on(mesh, (B, F), "data", "model"),)


@bad("same-randomness")
def same_noise_in_each_block(mesh):
    f = mapped(mesh, lambda key: jax.random.normal(key, (B, F)), P(), P("data"))
    return f, (key(mesh),)


@bad("same-randomness")
def same_dropout_in_each_block(mesh):
    def f(key, x):
        return jnp.where(jax.random.bernoulli(key, 0.9, x.shape), x, 0)

    f = mapped(mesh, f, (P(), P("data")), P("data"), check_vma=False)
    return f, (key(mesh), on(mesh, (B, F), "data"))


@bad("same-randomness", mesh=GRID)
def same_noise_along_one_axis(mesh):
    def f(key, x):
        key = jax.random.fold_in(key, lax.axis_index("model"))
        return x + 0.1 * jax.random.normal(key, x.shape)

    f = mapped(mesh, f, (P(), P("data", "model")), P("data", "model"))
    return f, (key(mesh), on(mesh, (B, F), "data", "model"))


# --- Bad programs: where results lie ------------------------------------------------


@bad("replicated-output", "resharded-output", "unrequested-reshard")
def fsdp_gradients_not_asked_for(mesh):
    args = mlp(mesh, ("data",), ("data",)), on(mesh, (B, D), "data")
    return jax.grad(loss), args


@bad("replicated-output", also=("resharded-output",))
def fsdp_gradients_with_activations_pinned_only(mesh):
    args = mlp(mesh, ("data",), ("data",)), on(mesh, (B, D), "data")
    return jax.grad(pinned_loss(mesh, "data")), args


@bad("replicated-output", mesh=GRID)
def fsdp_gradients_in_two_dimensions(mesh):
    params = mlp(mesh, ("data", "model"), ("model", "data"))
    return jax.grad(loss), (params, on(mesh, (B, D), "data"))


@bad("replicated-output", also=("resharded-output", "unrequested-reshard"))
def fsdp_gradients_beside_other_weights(mesh):
    def f(params, old, x):
        near = jnp.mean((params["w1"] - old["v1"]) ** 2)
        return jax.grad(lambda params: loss(params, x))(params), near

    old = {"v1": on(mesh, (D, F)), "v2": on(mesh, (F, D))}
    args = mlp(mesh, ("data",), ("data",)), old
    return f, (*args, on(mesh, (B, D), "data"))


@bad(
    "resharded-output",
    "unrequested-reshard",
    also=("replicated-output",),
    mesh={"data": 4},
)
def gradients_of_more_layers(mesh):
    def f(params, x):
        def loss(params):
            h = jnp.tanh(x @ params["w1"])
            h = jnp.tanh(h @ params["w2"])
            return jnp.mean((h @ params["w3"]) ** 2)

        return jax.grad(loss)(params)

    params = mlp(mesh, ("data",), ("data",)) | {"w3": on(mesh, (D, 2 * F), "data")}
    return f, (params, on(mesh, (B, D), "data"))


@bad("replicated-output", mesh=GRID)
def sum_of_two_shardings(mesh):
    args = on(mesh, (B, F), "data", "model"), on(mesh, (B, F), "model", "data")
    return lambda x, y: x + y, args


@bad("replicated-output", mesh={"data": 4})
def one_square_gradient(mesh):
    def f(w, x):
        return jax.grad(lambda w, x: jnp.tanh(x @ w).mean())(w, x)

    return f, (on(mesh, (D, D), "data"), on(mesh, (D, D), "data"))


@bad("single-device-output")
def optimizer_state_on_one_device(mesh):
    params = mlp(mesh, ("data",), ("data",))
    return optax.adam(1e-3).init, (params,)


@bad("single-device-output", mesh=GRID)
def zeros_like_on_one_device(mesh):
    return jnp.zeros_like, (on(mesh, (D, F), "data", "model"),)


@bad("gathered-output", also=("unrequested-reshard", "communicated-operand"), mesh=GRID)
def two_rows_more(mesh):
    f = lambda x: jnp.concatenate([x, x[:2]])  # noqa: E731
    return f, (on(mesh, (B, F), "data"),)


@bad("gathered-output")
def last_row_cut_off(mesh):
    return lambda x: x[:-1], (on(mesh, (B, F), "data"),)


@bad("gathered-output", mesh={"model": 8})
def heads_that_do_not_divide(mesh):
    f = lambda x: x.reshape(B, 4, 32) * 2  # noqa: E731
    return f, (on(mesh, (B, F), None, "model"),)


# --- Bad programs: moves that nobody asked for --------------------------------------


@bad("unrequested-reshard")
def fsdp_step_without_constraints(mesh):
    args = mlp(mesh, ("data",), ("data",)), on(mesh, (B, D), "data")
    return sgd(loss), args, {"carry": 1}


@bad("unrequested-reshard")
def scanned_fsdp_without_constraints(mesh):
    ws = stack(mesh, (None, "data"), (None, "data"))
    loss = lambda ws, x: jnp.mean(layers(x, ws) ** 2)  # noqa: E731
    jit = {"out_shardings": (like(ws), to(mesh))}
    return sgd(loss), (ws, on(mesh, (B, D), "data")), {"jit": jit}


@bad("communicated-operand", also=("unrequested-reshard",), mesh={"model": 8})
def rope_with_cut_heads(mesh):
    f = lambda x: jnp.concatenate([-x[..., 32:], x[..., :32]], -1)  # noqa: E731
    return f, (on(mesh, (32 * B, 64), None, "model"),)


@bad("unrequested-reshard")
def moved_into_a_shard_map(mesh):
    f = mapped(mesh, lambda x: x * 2, P("data"), P("data"))
    return f, (on(mesh, (F, F), None, "data"),)


@bad("gathered-reshard", mesh=GRID)
def constraint_by_way_of_the_whole(mesh):
    def f(x, y):
        return y + pin(x * 2, mesh, None, ("data", "model"), None)

    args = on(mesh, (B, B, B), "model", None, "data")
    return f, (args, on(mesh, (B, B, B), None, ("data", "model")))


@bad("gathered-reshard", mesh=GRID)
def features_to_batch_over_more_axes(mesh):
    def f(table, words):
        return jnp.mean(pin(table[words], mesh, "data") ** 2)

    args = on(mesh, (V, D), None, ("data", "model")), ids(mesh, (B, S), "data")
    return f, args


@bad("gathered-reshard", also=("padded-constraint",), mesh=GRID, tpu=())
def heads_that_the_compiler_replicates(mesh):
    """The compiled program shows no detour; the CPU and GPU compilers warn of it."""

    def f(x):
        heads = pin(x.reshape(D, 6, 8), mesh, "data", "model")
        return pin(jnp.sin(heads), mesh, None, ("model", "data")).sum(0)

    return f, (on(mesh, (D, 48), "data", "model"),)


@bad("redundant-work", also=("gathered-reshape", "gathered-output"))
def query_heads_cut_in_parts(mesh):
    """Six heads on eight devices: groups of devices do the same scores."""

    def f(x):
        q = x.reshape(16, 32, 6, -1)
        return jnp.einsum("bshd,bthd->bhst", q, q)

    return f, (on(mesh, (16, 32, 96), None, None, "data"),)


@bad("gathered-reshape", also=("redundant-work",), mesh={"data": 2, "model": 4})
def heads_that_do_not_divide_inside(mesh):
    def f(x, w):
        q = (x @ w).reshape(B, S, 6, -1)
        return attend(q, q, q).sum()

    return f, (on(mesh, (B, S, D), "data"), on(mesh, (D, 96), None, "model"))


@bad("gathered-reshape", tpu=(), mesh={"model": 8})
def sequence_merged_with_batch(mesh):
    def f(x, w):
        return (jnp.tanh(x @ w).reshape(-1, F) ** 2).mean(0)

    return f, (on(mesh, (B, S, D), None, "model"), on(mesh, (D, F)))


@bad("gathered-operand")
def cumsum_along_the_cut(mesh):
    return lambda x: jnp.cumsum(x, 0), (on(mesh, (B, F), "data"),)


@bad("gathered-operand", until=(0, 12), tpu=("redundant-work",))
def fft_along_the_other(mesh):
    jit = {"out_shardings": to(mesh, "data")}
    return lambda x: jnp.fft.fft(x, axis=1), (on(mesh, (D, F), "data"),), {"jit": jit}


@bad("gathered-operand", tpu=())
def fixed_rows_set(mesh):
    jit = {"out_shardings": to(mesh, "data")}
    return lambda x: x.at[0:3].set(1.0), (on(mesh, (B, F), "data"),), {"jit": jit}


@bad("gathered-operand", tpu=("gathered-operand", "redundant-work"))
def qr_of_a_sharded_matrix(mesh):
    jit = {"out_shardings": to(mesh, "data")}
    f = lambda x: jnp.linalg.qr(x)[0]  # noqa: E731
    return f, (on(mesh, (F, F), "data"),), {"jit": jit}


@bad("gathered-operand")
def callback_with_a_sharded_array(mesh):
    def f(x):
        same = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return pin(jax.pure_callback(np.sin, same, x * 2), mesh, "data")

    return f, (on(mesh, (B, F), "data"),)


@bad("gathered-operand")
def whole_in_a_shard_map(mesh):
    f = mapped(mesh, lambda x, w: x @ w, (P("data"), P()), P("data"))
    return f, (on(mesh, (B, D), "data"), on(mesh, (D, F), "data"))


@bad("communicated-operand")
def rows_sorted(mesh):
    jit = {"out_shardings": to(mesh, "data")}
    return lambda x: jnp.sort(x, 0), (on(mesh, (8 * B, D), "data"),), {"jit": jit}


@bad("communicated-operand")
def rows_joined(mesh):
    jit = {"out_shardings": to(mesh, "data")}
    f = lambda x, y: jnp.concatenate([x, y * 2])  # noqa: E731
    args = on(mesh, (8 * B, D), "data"), on(mesh, (8 * B, D), "data")
    return f, args, {"jit": jit}


@bad("communicated-operand", also=("replicated-output",))
def rows_permuted(mesh):
    f = lambda key, x: jax.random.permutation(key, x)  # noqa: E731
    return f, (key(mesh), on(mesh, (8 * B, D), "data"))


@good
def columns_sorted_and_joined(mesh):
    def f(x, y):
        return jnp.sort(x, 1), jnp.concatenate([x, y], 1), jnp.stack([x, y], 1)

    return f, (on(mesh, (B, F), "data"), on(mesh, (B, F), "data"))


@good(mesh=GRID)
def activations_of_scanned_layers(mesh):
    args = on(mesh, (3, D, D), None, None, "model"), on(mesh, (B, D), "data")
    return lambda ws, x: lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, ws)[0], args


# --- Bad programs: constraints without effect ---------------------------------------


@bad("padded-constraint")
def ten_rows_for_eight(mesh):
    return lambda x: (pin(x * 2, mesh, "data") ** 2).sum(), (on(mesh, (10, F)),)


@bad("padded-constraint", mesh={"data": 2, "model": 4})
def columns_that_do_not_divide(mesh):
    def f(x):
        h = pin(x * 2, mesh, "data", "model")
        return lax.fori_loop(
            0, 3, lambda i, h: pin(h * 2, mesh, "data", "model"), h
        ).sum()

    return f, (on(mesh, (6, 9)),)


@bad("dropped-constraint", also=("gathered-output",))
def nine_rows_returned(mesh):
    return lambda x: pin(x, mesh, "data"), (on(mesh, (9, F)),)


@bad("dropped-constraint")
def device_put_in_jit(mesh):
    f = lambda x: jax.device_put(x * 2, to(mesh, None, "data")) + 1  # noqa: E731
    return f, (on(mesh, (B, F), "data"),)


@bad("dropped-constraint")
def device_put_of_a_product(mesh):
    f = lambda x, w: jax.device_put(x @ w, to(mesh, None, "data")) + 1  # noqa: E731
    return f, (on(mesh, (B, D), "data"), on(mesh, (D, F)))


@bad("dropped-constraint")
def device_put_in_a_branch(mesh):
    def f(x):
        return lax.cond(
            x.sum() > 0,
            lambda x: jax.device_put(x, to(mesh, None, "data")),
            lambda x: x * 2,
            x,
        )

    return f, (on(mesh, (B, F), "data"),)


@bad("dropped-constraint", mesh=GRID)
def device_put_of_a_tree(mesh):
    def f(params, x):
        params = jax.device_put(params, to(mesh))
        return loss(params, x)

    return f, (mlp(mesh, (None, "model"), ("model",)), on(mesh, (B, D), "data"))


# --- Bad programs: loops and lookups ------------------------------------------------


@bad("gathered-stack", mesh=GRID)
def scan_over_cut_layers(mesh):
    ws = stack(mesh, ("data", None, "model"), ("data", "model"))
    return layers, (on(mesh, (B, D), "data"), ws)


@bad("gathered-stack", mesh={"data": 4})
def gradients_over_cut_layers(mesh):
    ws = stack(mesh, ("data",), ("data",))
    loss = lambda ws, x: jnp.mean(layers(x, ws, remat=True) ** 2)  # noqa: E731
    jit = {"out_shardings": like(ws)}
    return jax.grad(loss), (ws, on(mesh, (B, D), "data")), {"jit": jit}


@bad("gathered-stack")
def loop_over_cut_layers(mesh):
    def f(ws, x):
        return lax.fori_loop(0, 8, lambda i, h: jnp.tanh(h @ ws[i]), x)

    return f, (on(mesh, (8, D, D), "data"), on(mesh, (B, D), "data"))


@bad("gathered-stack")
def map_over_a_cut_batch(mesh):
    return lambda x: lax.map(jnp.sin, x), (on(mesh, (D, F), "data"),)


@bad("gathered-embedding")
def table_made_whole(mesh):
    args = on(mesh, (64 * V, D), "data"), ids(mesh, (B, S), "data")
    return lambda table, words: pin(table, mesh)[words], args


@bad("gathered-embedding", mesh={"model": 8})
def one_word_of_a_table(mesh):
    def f(table, word):
        return lax.dynamic_index_in_dim(table, word)

    return f, (on(mesh, (V, D), "model"), ids(mesh, ()))


# --- Arrays that a function closes over ---------------------------------------------


def placed(mesh, shape, *spec):
    return jax.device_put(np.ones(shape, np.float32), to(mesh, *spec))


@bad("closed-over", only="cpu", mesh=GRID)
def weights_closed_over(mesh):
    w1, w2 = placed(mesh, (D, F), None, "model"), placed(mesh, (F, D), "model")

    def f(x):
        return jnp.tanh(x @ w1) @ w2

    return f, (on(mesh, (B, D), "data"),)


@bad("closed-over", only="cpu")
def sharded_table_closed_over(mesh):
    table = placed(mesh, (V, D), "data")
    return lambda words: table[words], (ids(mesh, (B, S), "data"),)


@good(only="cpu")
def mask_closed_over(mesh):
    mask, scale = np.tril(np.ones((B, B), np.float32)), placed(mesh, (D,))
    return lambda x: (mask @ x) * scale, (on(mesh, (B, D), None, "data"),)


@bad("loop-collective")
def loop_until_all_are_done(mesh):
    def f(x):
        return lax.while_loop(lambda x: (x < 2).any(), lambda x: x + 0.1, x)

    return f, (on(mesh, (8 * F, 2), "data"),)


@bad("loop-collective", mesh=GRID)
def loop_until_small(mesh):
    def f(x):
        def unfinished(state):
            return jnp.linalg.norm(state[0]) > 1e-3

        return lax.while_loop(unfinished, lambda s: (s[0] / 2, s[1] + 1), (x, 0))

    return f, (on(mesh, (B, F), "data", "model"),)


@bad("gradients-each-iteration", tpu=())
def accumulated_gradients(mesh):
    def step(params, batches):
        def add(total, x):
            grads = jax.grad(loss)(params, x)
            return jax.tree.map(jnp.add, total, grads), None

        total, _ = lax.scan(add, jax.tree.map(jnp.zeros_like, params), batches)
        return jax.tree.map(lambda p, g: p - 0.1 * g / 4, params, total)

    args = mlp(mesh, (), ()), on(mesh, (4, B, D), None, "data")
    return step, args, {"carry": {0: 0}, "jit": {"donate_argnums": 0}}


@bad("gradients-each-iteration", tpu=())
def one_weight_for_all_steps(mesh):
    def f(w, xs):
        def loss(w):
            turn = lambda h, x: (jnp.tanh(h @ w + x), None)  # noqa: E731
            return (lax.scan(turn, jnp.zeros_like(xs[0]), xs)[0] ** 2).mean()

        return jax.grad(loss)(w)

    return f, (on(mesh, (D, D)), on(mesh, (6, B, D), None, "data"))


# --- Bad programs: state beside its parameters --------------------------------------


def adam_step(mesh, state_spec, key="opt"):
    params = mlp(mesh, ("data",), ("data",))
    adam = optax.adam(1e-3)
    state = jax.eval_shape(adam.init, params)
    state = jax.tree.map(
        lambda x: on(mesh, x.shape, *state_spec[: len(x.shape)], dtype=x.dtype), state
    )

    def step(params, opt, x):
        grads = jax.grad(pinned_loss(mesh, "data"))(params, x)
        updates, opt = adam.update(grads, opt, params)
        return optax.apply_updates(params, updates), opt

    jit = {"out_shardings": (like(params), like(state))}
    return step, (params, state, on(mesh, (B, D), "data")), {"jit": jit}


@bad("replicated-state")
def adam_state_replicated(mesh):
    return adam_step(mesh, ())


@bad("replicated-state")
def state_replicated_in_one_tree(mesh):
    step, (params, opt, x), _ = adam_step(mesh, ())

    def both(state, x):
        new = step(state["params"], state["opt_state"], x)
        return dict(zip(("params", "opt_state"), new, strict=True))

    state = {"params": params, "opt_state": opt}
    return both, (state, x), {"jit": {"out_shardings": like(state)}}


@good
def adam_state_sharded(mesh):
    return adam_step(mesh, ("data",))


@bad("annotated-only", also=("idle-axis",), only="cpu", mesh=GRID)
def annotated_and_replicated(mesh):
    return annotated_linear(mesh, placed=False)


@bad("annotated-only", also=("idle-axis", "sharding-drift"), mesh=GRID)
def annotated_and_never_placed(mesh):
    kernel = nnx.with_partitioning(nnx.initializers.ones, (None, "model"))
    with nnx.use_eager_sharding(False):
        model = nnx.Linear(D, F, kernel_init=kernel, rngs=nnx.Rngs(0))
    return nnx.jit(lambda model, x: model(x)), (model, on(mesh, (B, D), "data"))


@good(only="cpu", mesh=GRID)
def annotated_and_placed(mesh):
    return annotated_linear(mesh, placed=True)


def annotated_linear(mesh, placed):
    kernel = nnx.with_partitioning(nnx.initializers.ones, (None, "model"))
    with nnx.use_eager_sharding(False):
        model = nnx.Linear(D, F, kernel_init=kernel, rngs=nnx.Rngs(0))
    state = nnx.state(model)
    where = nnx.get_named_sharding(state, mesh) if placed else to(mesh)
    nnx.update(model, jax.device_put(state, where))
    return nnx.jit(lambda model, x: model(x)), (model, on(mesh, (B, D), "data"))


@bad("sharding-drift")
def state_left_on_the_device(mesh):
    host = NamedSharding(mesh, P("data"), memory_kind="pinned_host")
    state = jax.ShapeDtypeStruct((B, F), jnp.float32, sharding=host)
    jit = {"out_shardings": to(mesh, "data")}
    f = lambda x: jax.device_put(x, to(mesh, "data")) * 2  # noqa: E731
    return f, (state,), {"carry": 1, "jit": jit}


# --- Bad programs: repeated work ----------------------------------------------------


@bad("idle-axis", mesh=GRID)
def batch_over_one_of_two_axes(mesh):
    args = mlp(mesh, (), ()), on(mesh, (B, D), "data")
    return sgd(loss), args, {"carry": 1}


@bad("idle-axis", mesh=GRID)
def rows_of_a_weight_over_the_batch_axis(mesh):
    args = on(mesh, (B, D), "model"), on(mesh, (D, F), None, "model")
    return lambda x, w: x @ w, args


@bad("redundant-work", mesh=GRID)
def half_of_the_products_cut(mesh):
    def f(x, w, v):
        return jnp.tanh(x @ w), jnp.tanh(x @ v)

    args = on(mesh, (B, D), "data"), on(mesh, (D, F), None, "model")
    return f, (*args, on(mesh, (D, F)))


@bad("redundant-work", mesh={"data": 2, "model": 4})
def head_repeated(mesh):
    def f(x, w1, w2, head):
        return jnp.tanh(jnp.tanh(x @ w1) @ w2) @ head

    args = on(mesh, (B, D), "data"), on(mesh, (D, F), None, "model")
    return f, (*args, on(mesh, (F, D), "model"), on(mesh, (D, V)))


# --- Bad programs: from step to step ------------------------------------------------


@bad("sharding-drift")
def state_never_placed(mesh):
    params = {
        "w1": jax.ShapeDtypeStruct((D, F), jnp.float32),
        "w2": jax.ShapeDtypeStruct((F, D), jnp.float32),
    }
    return sgd(loss), (params, on(mesh, (B, D), "data")), {"carry": 1}


@bad("sharding-drift")
def step_count_never_placed(mesh):
    def step(state, x):
        return {"w": state["w"] - x.T @ x, "n": state["n"] + 1}

    state = {"w": on(mesh, (D, D)), "n": jax.ShapeDtypeStruct((), jnp.int32)}
    return step, (state, on(mesh, (B, D), "data")), {"carry": {0: 0}}


@bad("sharding-drift", also=("gathered-output",))
def sharding_changed_by_the_step(mesh):
    jit = {"out_shardings": to(mesh, None, "data")}
    f = lambda w, x: w - x.T @ x  # noqa: E731
    return (
        f,
        (on(mesh, (D, D)), on(mesh, (B, D), "data")),
        {"carry": {0: 0}, "jit": jit},
    )


@bad("sharding-drift")
def dtype_changed_by_the_step(mesh):
    def step(w, x):
        return w - x.T @ x

    w = on(mesh, (D, D), dtype=jnp.bfloat16)
    return step, (w, on(mesh, (B, D), "data")), {"carry": {0: 0}}


@bad("donation-ignored")
def donated_for_another_sharding(mesh):
    jit = {"donate_argnums": 0, "out_shardings": to(mesh)}
    return lambda x: x + 1, (on(mesh, (B, 2 * F), "data"),), {"jit": jit}


@bad("donation-ignored")
def donated_for_another_dtype(mesh):
    f = lambda x: x.astype(jnp.bfloat16)  # noqa: E731
    return f, (on(mesh, (B, 2 * F), "data"),), {"jit": {"donate_argnums": 0}}


@bad("donation-ignored")
def donated_batch(mesh):
    args = mlp(mesh, (), ()), on(mesh, (8 * B, D), "data")
    return sgd(loss), args, {"carry": 1, "jit": {"donate_argnums": (0, 1)}}


def averaged(state):
    params = jax.tree.map(lambda p: 0.9 * p, state["params"])
    ema = jax.tree.map(lambda e, p: 0.9 * e + 0.1 * p, state["ema"], params)
    return {"params": params, "ema": ema}


@bad("donated-twice", only="cpu")
def an_average_that_starts_as_the_parameters(mesh):
    p = jnp.ones((D, F))
    state = jax.device_put({"params": p, "ema": p}, to(mesh))
    return averaged, (state,), {"carry": {0: 0}, "jit": {"donate_argnums": 0}}


@bad("donated-twice", only="cpu")
def one_array_donated_and_read(mesh):
    x = jax.device_put(np.ones((B, D), np.float32), to(mesh, "data"))
    jit = {"donate_argnums": 0, "out_shardings": to(mesh, "data")}
    return lambda a, b: a + b, (x, x), {"jit": jit}


@good(only="cpu")
def an_average_with_memory_of_its_own(mesh):
    p = jnp.ones((D, F))
    state = jax.device_put({"params": p, "ema": jnp.copy(p)}, to(mesh))
    return averaged, (state,), {"carry": {0: 0}, "jit": {"donate_argnums": 0}}


# --- The words ----------------------------------------------------------------------

# What is said of one program of each code: (program, code) -> the whole finding.
WORDS = {
    # 64 · 128 floats and as many are 64 KiB.
    ("accumulated_gradients", "gradients-each-iteration"): (
        "gradients-each-iteration: A loop adds up gradients and sums them over data in "
        "each of its 4 iterations, 64 KiB each time: once after the loop is enough. "
        "Put the loop in jax.shard_map: differentiate with respect to "
        "jax.lax.pcast(params, 'data', to='varying'), add up each device's own "
        "gradients, and after the loop take jax.lax.psum(grads, 'data'), or the pmean "
        "of a mean. (chapter 13)"
    ),
    # Four arrays of 32 KiB, of which a device needs an eighth: 4 · 28 KiB.
    ("adam_state_replicated", "replicated-state"): (
        "replicated-state: opt[0].mu['w1'], opt[0].nu['w1'], opt[0].mu['w2'] and "
        "opt[0].nu['w2'] are not sharded over data, as params['w1'] and params['w2'] "
        "are: 112 KiB more per device, and each update gathers. Shard the optimizer "
        "state as the parameters, here P('data'): jax.device_put(opt_state, …), and "
        "the same in out_shardings. (chapter 10)"
    ),
    # 64 · 128 floats are 32 KiB, half of them 16.
    ("annotated_and_replicated", "annotated-only"): (
        "annotated-only: model.kernel is annotated with model, which does not shard "
        "it: 16 KiB more per device. An annotation places nothing by itself. Place the "
        "model as its annotations say: state = nnx.state(model); nnx.update(model, "
        "jax.device_put(state, nnx.get_named_sharding(state, mesh))). (chapter 10)"
    ),
    # Two all-to-alls of 256 · 64 floats over eight: 7/8 of 8 KiB each.
    ("rows_sorted", "communicated-operand"): (
        "communicated-operand: For a sort in a sharded dimension the compiler "
        "communicates the operand with 2 all-to-alls over data: 14 KiB from each "
        "device. Shard another dimension from the start, or sort in jax.shard_map if "
        "each device may sort its own rows. (chapter 04)"
    ),
    # 512 · 64 floats are 128 KiB, an eighth of them 16 KiB.
    ("sharded_table_closed_over", "closed-over"): (
        "closed-over: The function closes over float32[512, 64], sharded as "
        "P('data'): jit makes a constant of it, which is full-size on every device, "
        "128 KiB instead of 16 KiB. Give it to the function as an argument. (chapter "
        "08)"
    ),
    # 128 · 64 floats are 32 KiB; cut into eight they are 4 KiB: 28 KiB more.
    ("fsdp_gradients_not_asked_for", "replicated-output"): (
        "replicated-output: result['w2'] comes out replicated over data, which shards "
        "params['w2'] of the same shape: 28 KiB more per device. State it: jax.jit(f, "
        "out_shardings=…) with the shardings of the arguments, here P('data'); or make "
        "the mesh's axes Explicit. (chapter 10)"
    ),
    ("fsdp_gradients_not_asked_for", "resharded-output"): (
        "resharded-output: result['w1'] comes out sharded along another dimension than "
        "params['w1'] of the same shape: P(None, 'data') instead of P('data'). State "
        "it: jax.jit(f, out_shardings=…) with the shardings of the arguments, here "
        "P('data'); or make the mesh's axes Explicit. (chapter 10)"
    ),
    ("pmean_of_summed_gradients", "summed-twice"): (
        "summed-twice: A pmean over data of a gradient that is already summed over "
        "data: inside shard_map, JAX sums the gradient of what is the same on all "
        "devices. This pmean changes nothing: the gradient is 8 times the mean. "
        "Differentiate with respect to jax.lax.pcast(w, 'data', to='varying') and keep "
        "the pmean; or take the pmean of the loss inside the function that is "
        "differentiated, and none of the gradients. (chapter 02)"
    ),
    ("psum_of_what_is_alike", "summed-twice"): (
        "summed-twice: A psum over data adds up what is the same on all 4 devices: it "
        "comes out 4 times too large. Leave the psum out, or use pmean. (chapter 02)"
    ),
    ("block_sum_unchecked", "unchecked-output"): (
        "unchecked-output: Output 0 of a shard_map, float32[128], differs along data, "
        "which its out_specs do not name. With check_vma=False nobody looks: one "
        "device's value is taken for all. Leave check_vma on, and sum or average it "
        "first, jax.lax.psum(x, 'data'), or name the axis in out_specs. (chapter 05)"
    ),
    ("same_dropout_in_each_block", "same-randomness"): (
        "same-randomness: Inside a shard_map every device along data draws the same "
        "random numbers for its own part of the data: the key is the same on all. Give "
        "each its own key: jax.random.fold_in(key, jax.lax.axis_index('data')). "
        "(chapter 05)"
    ),
    # Two moments of two weights of 32 KiB, and a count.
    ("optimizer_state_on_one_device", "single-device-output"): (
        "single-device-output: The arguments are on 8 devices, but result[0].mu['w1'], "
        "result[0].mu['w2'], result[0].nu['w1'], result[0].nu['w2'] and 1 more (128 "
        "KiB in all) will be on one: the program uses none of the arguments' values, "
        "so no sharding propagates to the results. State the results' shardings: "
        "jax.jit(f, out_shardings=…), with the shardings of the parameters. (chapter "
        "10)"
    ),
    # 34 · 128 floats.
    ("two_rows_more", "gathered-output"): (
        "gathered-output: result (float32[34, 128]) is gathered over data only because "
        "the result is replicated, 17 KiB per device: 34 does not divide by 4. Choose "
        "sizes that divide by the devices and keep the sharded dimension as it is; or "
        "say where it goes with out_shardings. (chapter 04)"
    ),
    ("moved_into_a_shard_map", "unrequested-reshard"): (
        "unrequested-reshard: A shard_map takes x as P('data'), but it is sharded as "
        "P(None, 'data'): every call first reshards it over data. Place it as "
        "P('data') once, with jax.device_put, or change in_specs to its own sharding. "
        "(chapter 05)"
    ),
    # 32 · 32 · 32 floats.
    ("constraint_by_way_of_the_whole", "gathered-reshard"): (
        "gathered-reshard: To reshard float32[32, 32, 32] to P(None, ('data', "
        "'model')), the compiler first all-gathers it over model: 128 KiB per device, "
        "of which each device keeps 1/8. Reshard in two steps, one axis at a time, or "
        "shard it from the start as it is needed. (chapter 04)"
    ),
    # 64 · 6 · 8 floats.
    ("heads_that_the_compiler_replicates", "gathered-reshard"): (
        "gathered-reshard: The compiler knows no direct way from P('data', 'model') to "
        "P(None, ('model', 'data')), so float32[64, 6, 8] is first replicated on every "
        "device: 12 KiB on each, of which it keeps 1/8. Reshard in two steps, one axis "
        "at a time, or shard it from the start as it is needed. (chapter 04)"
    ),
    # 32 · 16 · 128 floats.
    ("sequence_merged_with_batch", "gathered-reshape"): (
        "gathered-reshape: The reshape of (32, 16, 128) to (512, 128) all-gathers its "
        "operand over model, 256 KiB per device: of dimensions that are merged, only "
        "the first can stay sharded. Shard a dimension that the reshape keeps, or use "
        "a number of heads that is divisible by the devices of the axis. (chapter 12)"
    ),
    # 32 · 128 floats.
    ("fixed_rows_set", "gathered-operand"): (
        "gathered-operand: For setting rows the compiler all-gathers x (float32[32, "
        "128]) over data, 16 KiB per device. Shard another dimension there, or write "
        "it in jax.shard_map: compute on each shard, then exchange what the shards "
        "need of each other. (chapter 04)"
    ),
    # Two rows on each of eight devices are sixteen: three devices hold none of the ten.
    ("ten_rows_for_eight", "padded-constraint"): (
        "padded-constraint: The constraint P('data') splits dimension 0 of float32[10, "
        "128] into 8 shards: 10 is not divisible by 8, so each device has 2 rows, 16 "
        "in all, and 3 devices nothing but padding. Choose a size that is divisible by "
        "8, such as 16, and mask the padding. (chapter 08)"
    ),
    ("nine_rows_returned", "dropped-constraint"): (
        "dropped-constraint: The constraint P('data') has no effect: result comes out "
        "as P(), because dimension 0 of float32[9, 128] is not divisible by 8. Choose "
        "a size that is divisible by 8, such as 16, and mask the padding. (chapter 08)"
    ),
    ("device_put_in_jit", "dropped-constraint"): (
        "dropped-constraint: jax.device_put to P(None, 'data') inside jit does nothing "
        "to float32[32, 128]: on Auto axes jit ignores it. It stays sharded as "
        "P('data'). Write jax.lax.with_sharding_constraint(x, NamedSharding(mesh, "
        "P(None, 'data'))), or use Explicit axes and jax.reshard. (chapter 08)"
    ),
    # 4 layers of 64 · 128 floats, half of each on a device, are 64 KiB; two of them.
    ("scan_over_cut_layers", "gathered-stack"): (
        "gathered-stack: stack['w1'] (float32[4, 64, 128]) and stack['w2'] (float32[4, "
        "128, 64]): sharded over data along the dimension that a loop slices, one "
        "slice per iteration, so all 4 slices are gathered before the loop: 128 KiB "
        "per device. Shard another dimension of the stack, such as P(None, 'data', "
        "'model'): then each iteration gathers only its own layer. (chapter 10)"
    ),
    # 512 · 64 floats, and one row of 64.
    ("one_word_of_a_table", "gathered-embedding"): (
        "gathered-embedding: table (float32[512, 64]) is all-gathered over model, 128 "
        "KiB per device, to look up 256 B of it. Keep the table sharded, so that only "
        "the looked-up rows are communicated: shard its features, P(None, 'model'), or "
        "shard its rows and don't request it replicated. (chapter 11)"
    ),
    ("loop_until_all_are_done", "loop-collective"): (
        "loop-collective: The condition of a while loop needs an all-reduce over data: "
        "before each iteration all devices synchronize, and all run as many iterations "
        "as the slowest needs. If the rows are independent, put the loop in "
        "jax.shard_map, where each device tests its own; otherwise test only every few "
        "iterations. (chapter 05)"
    ),
    ("batch_over_one_of_two_axes", "idle-axis"): (
        "idle-axis: Along model (2 devices) all devices compute the same matrix "
        "products: 50% of that work is redundant (redundancy 2). Shard something over "
        "model too, such as a weight, P(None, 'model'), or the batch, P(('data', "
        "'model')); or leave it out of the mesh. (chapter 07)"
    ),
    # One of two products, twice as large on a device as the other: 2/3 of its work.
    ("half_of_the_products_cut", "redundant-work"): (
        "redundant-work: Along model (2 devices) 67% of the matrix products' work is "
        "redundant (redundancy 1.5), the product of x (float32[32, 64]) and v "
        "(float32[64, 128]) at LINE. Shard the batch or the weight of that product "
        "over model. (chapter 07)"
    ),
    ("state_never_placed", "sharding-drift"): (
        "sharding-drift: params['w1'] and params['w2'] go in on one device and come "
        "out as P() on 8 devices: the second step compiles again. Place it before the "
        "first step as the step returns it: jax.device_put(state, sharding); or "
        "request it with out_shardings. (chapter 08)"
    ),
    ("dtype_changed_by_the_step", "sharding-drift"): (
        "sharding-drift: w → result goes in as bfloat16[64, 64] and comes out as "
        "float32[64, 64]: the second step compiles again. Give the first step what the "
        "step returns: x = x.astype(dtype) before it. (chapter 08)"
    ),
    # An eighth of 32 · 256 floats.
    ("an_average_that_starts_as_the_parameters", "donated-twice"): (
        "donated-twice: state['ema'] and state['params'] are in the same memory, and "
        "state['ema'] is donated: the call raises an error or, before jax 0.11.1 on "
        "several CPU devices, ends the process. Give the second one its own memory: "
        "jnp.copy of state['params'] before the first step. (chapter 13)"
    ),
    ("donated_for_another_sharding", "donation-ignored"): (
        "donation-ignored: x is donated, but no result takes its memory (4 KiB per "
        "device): result is sharded as P(), not P('data'). Return an array of the same "
        "shape, dtype and sharding (out_shardings), or don't donate it. (chapter 13)"
    ),
}
