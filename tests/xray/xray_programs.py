"""Programs whose collectives a person worked out.

Each program says in a comment why it must have the collectives that stand in its
`@program(...)` line: (kind, axes, executions in one call). `test_xray_cases.py`
compiles them for CPU on whichever JAX is installed; `tools/check/make_fixtures.py`
compiled them for TPU and GPU; the texts are in `tests/data/hlo/`. Where a backend does
it in another way, its text was read: `cpu=`, `tpu=` or `gpu=` says what is there, and
the comment why. Two programs end in what nobody would work out; those were counted in
the compiled text, and their comments say so.

The devices stand in a mesh data=4 × model=2 where nothing else is said. B, S, D, F:
batch, sequence, features, hidden features; L layers.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from spmd_helpers import xray

B, S, D, F, L = 64, 96, 256, 1024, 6
BF16 = jnp.bfloat16

Row = tuple[str, tuple[str, ...], int | None]


def gather(*axes: str, times: int | None = 1) -> Row:
    return "all-gather", axes, times


def reduce(*axes: str, times: int | None = 1) -> Row:
    return "all-reduce", axes, times


def scatter(*axes: str, times: int | None = 1) -> Row:
    return "reduce-scatter", axes, times


def alltoall(*axes: str, times: int | None = 1) -> Row:
    return "all-to-all", axes, times


def permute(*axes: str, times: int | None = 1) -> Row:
    return "collective-permute", axes, times


@dataclass(frozen=True)
class Program:
    """A function to compile, for a mesh, and what it must show.

    Attributes:
        build: given the mesh, gives (f, args) or (f, args, options of jax.jit).
        shape: axis name → size. explicit: whether the axes are Explicit.
        rows: the collectives, in any order; of a backend, if it has others.
        order: a permutation of the devices.
        upper_bound: on which backends all of them stand in a branch.
    """

    build: Callable[[Any], tuple]
    shape: Mapping[str, int]
    rows: list[Row]
    others: Mapping[str, list[Row]]
    explicit: bool = False
    order: tuple[int, ...] | None = None
    upper_bound: tuple[str, ...] = ()

    def expected(self, backend: str) -> list[Row]:
        return self.others.get(backend, self.rows)

    def mesh(self, devices: list[Any]) -> Mesh:
        size = prod(self.shape.values())
        chosen = np.array(devices, object)[list(self.order or range(size))]
        kind = AxisType.Explicit if self.explicit else AxisType.Auto
        grid = chosen.reshape(tuple(self.shape.values()))
        return Mesh(grid, tuple(self.shape), axis_types=(kind,) * len(self.shape))

    def lower(self, devices: list[Any]) -> Any:
        """The program, lowered for these devices."""
        with self._on(devices) as (f, args, options):
            f = f if hasattr(f, "lower") else jax.jit(f, **options)
            return f.lower(*args)

    def xray(self, devices: list[Any]) -> Any:
        """The same, seen by `xray`, which is not told the mesh."""
        with self._on(devices) as (f, args, options):
            return xray(f, *args, jit=options or None)

    @contextmanager
    def _on(self, devices: list[Any]) -> Iterator[tuple]:
        mesh = self.mesh(devices)
        with jax.set_mesh(mesh) if self.explicit else nullcontext():
            f, args, *options = self.build(mesh)
            yield f, args, dict(*options)


PROGRAMS: dict[str, Program] = {}
M42, M8 = {"data": 4, "model": 2}, {"data": 8}
M222 = {"data": 2, "model": 2, "pipe": 2}


def program(
    *rows: Row, shape=M42, explicit=False, order=None, upper_bound=(), **others
):
    def keep(build):
        PROGRAMS[build.__name__] = Program(
            build, shape, list(rows), others, explicit, order, upper_bound
        )
        return build

    return keep


def on(mesh, shape, *spec, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, P(*spec)))


def pin(x, mesh, *spec):
    return lax.with_sharding_constraint(x, NamedSharding(mesh, P(*spec)))


def out(mesh, *spec):
    return {"out_shardings": NamedSharding(mesh, P(*spec))}


# --- The four matmuls -------------------------------------------------------------


# 1. Nothing that is contracted is cut: each device has all it needs.
@program()
def matmul_nothing_contracted_is_cut(mesh):
    x, w = on(mesh, (B, D), "data"), on(mesh, (D, F), None, "model")
    return lambda x, w: x @ w, (x, w)


# 2. D is cut in x and not in w, and the result is wanted cut in B and in F. Partial
# sums would need model for D and for F at once, so x is gathered over model.
@program(gather("model"))
def matmul_one_contracted_is_cut(mesh):
    x, w = on(mesh, (B, D), "data", "model"), on(mesh, (D, F), None, "model")
    return lambda x, w: x @ w, (x, w), out(mesh, "data", "model")


# 3. D is cut the same way in both: every device has a partial product of the whole
# result, and the sum over model makes it.
@program(reduce("model"))
def matmul_both_contracted_are_cut(mesh):
    x, w = on(mesh, (B, D), "data", "model"), on(mesh, (D, F), "model")
    return lambda x, w: x @ w, (x, w), out(mesh, "data")


# 4. B and F are cut over the same axis, which the result can use once. It is
# wanted in rows: so w is gathered.
@program(gather("data"), shape=M8)
def matmul_both_outer_are_cut(mesh):
    x, w = on(mesh, (B, D), "data"), on(mesh, (D, F), None, "data")
    return lambda x, w: x @ w, (x, w), out(mesh, "data")


# The same over model, beside an idle data axis. A gather over model would do. The
# partitioner spreads w over the idle axis first: from halves over model to quarters
# over data, which takes a permute along both, and then gathers over data. So it
# sends 256 + 3 · 256 KiB of float32 where the gather over model would send 512.
@program(permute("data", "model"), gather("data"))
def matmul_both_outer_are_cut_beside_an_idle_axis(mesh):
    x, w = on(mesh, (B, D), "model"), on(mesh, (D, F), None, "model")
    return lambda x, w: x @ w, (x, w), out(mesh, "model")


# The partial sums of 3, of which each device wants its own columns only.
@program(scatter("model"))
def matmul_reduced_and_scattered(mesh):
    x, w = on(mesh, (B, D), "data", "model"), on(mesh, (D, F), "model")
    return lambda x, w: x @ w, (x, w), out(mesh, "data", "model")


# --- Elementwise, reductions ------------------------------------------------------


# The two arrays are cut alike: no device needs another's numbers.
@program()
def elementwise(mesh):
    x = on(mesh, (B, D), "data", "model")
    return lambda x, y: jnp.tanh(x) * y + 1, (x, x)


# y has to be cut as x is: from whole to cut, each device takes its part.
@program()
def whole_with_cut(mesh):
    x, y = on(mesh, (B, D), "data", "model"), on(mesh, (B, D))
    return lambda x, y: x + y, (x, y), out(mesh, "data", "model")


# Summing along B, which lies over data, crosses data; D stays cut over model.
@program(reduce("data"))
def sum_of_rows(mesh):
    return lambda x: x.sum(0), (on(mesh, (B, D), "data", "model"),)


@program(reduce("model"))
def max_of_columns(mesh):
    return lambda x: x.max(1), (on(mesh, (B, D), "data", "model"),)


# A scalar needs every device's part. The partitioner sums one dimension of the array
# after the other, which compilers join to one; the CPU compiler doesn't.
@program(reduce("data", "model"), cpu=[reduce("model"), reduce("data")])
def sum_of_all(mesh):
    return lambda x: (x**2).sum(), (on(mesh, (B, D), "data", "model"),)


# The maximum, then the sum of what is less than it: the second needs the first.
@program(reduce("model"), reduce("model"))
def softmax_over_a_cut_axis(mesh):
    return lambda x: jax.nn.softmax(x), (on(mesh, (B, D), "data", "model"),)


# The mean, then the mean square of what differs from it.
@program(reduce("model"), reduce("model"))
def layer_norm_over_a_cut_axis(mesh):
    def norm(x):
        x = x - x.mean(-1, keepdims=True)
        return x * lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6)

    return norm, (on(mesh, (B, D), "data", "model"),)


# --- Training steps ---------------------------------------------------------------


def mlp(w1, w2, x):
    return jax.nn.relu(x @ w1) @ w2


def loss(w, x):
    return jnp.mean(mlp(*w, x) ** 2)


def grads_like(w):
    return {"out_shardings": tuple(leaf.sharding for leaf in w)}


# Data parallel: both gradients are sums over the batch, whole on every device. CPU
# and TPU put the two in one all-reduce, a tuple.
@program(reduce("data"), shape=M8)
def data_parallel_grad(mesh):
    w = on(mesh, (D, F)), on(mesh, (F, D))
    return jax.grad(loss), (w, on(mesh, (B, D), "data")), grads_like(w)


# FSDP with the activations sharded as the batch: each weight is gathered once, in the
# forward pass (nothing is recomputed, so the backward pass has it still), and each
# gradient is reduce-scattered over data. Compilers join the two sums, which are small,
# and the GPU compiler the two gathers.
@program(
    gather("data"),
    gather("data"),
    scatter("data"),
    gpu=[gather("data"), scatter("data")],
)
def fsdp_grad(mesh):
    def sharded(w, x):
        h = pin(jax.nn.relu(x @ w[0]), mesh, "data")
        return jnp.mean(pin(h @ w[1], mesh, "data") ** 2)

    w = on(mesh, (D, F), "data"), on(mesh, (F, D), None, "data")
    return jax.grad(sharded), (w, on(mesh, (B, D), "data")), grads_like(w)


# The same without a constraint: on an Explicit mesh the types of the activations
# and of the gradients say all that the constraints said.
@program(
    *[gather("data")] * 2,
    scatter("data"),
    gpu=[gather("data"), scatter("data")],
    explicit=True,
)
def fsdp_grad_explicit(mesh):
    def sharded(w, x):
        h = jax.nn.relu(jnp.einsum("bd,df->bf", x, jax.reshard(w[0], P())))
        return jnp.mean(jnp.einsum("bf,fd->bd", h, jax.reshard(w[1], P())) ** 2)

    w = on(mesh, (D, F), "data"), on(mesh, (F, D), None, "data")
    return jax.grad(sharded), (w, on(mesh, (B, D), "data"))


# Megatron's pair: columns, then rows. One sum over model makes the result.
@program(reduce("model"))
def tensor_parallel_mlp(mesh):
    w = on(mesh, (D, F), None, "model"), on(mesh, (F, D), "model")
    return lambda w, x: mlp(*w, x), (w, on(mesh, (B, D), "data")), out(mesh, "data")


# Forward as above. Backward: dy is whole along model, so that h's gradient and w2's
# are local; so is w1's; and both are summed over the batch, in one tuple. x's own
# gradient is not asked for.
@program(reduce("model"), reduce("data"))
def tensor_parallel_grad(mesh):
    w = on(mesh, (D, F), None, "model"), on(mesh, (F, D), "model")
    return jax.grad(loss), (w, on(mesh, (B, D), "data")), grads_like(w)


# With x's gradient: dh @ w1.T contracts F, which is cut over model: one more sum.
@program(reduce("model"), reduce("model"), reduce("data"))
def tensor_parallel_grad_of_x_too(mesh):
    w = on(mesh, (D, F), None, "model"), on(mesh, (F, D), "model")
    x = on(mesh, (B, D), "data")
    outs = {"out_shardings": ((w[0].sharding, w[1].sharding), x.sharding)}
    return jax.grad(loss, argnums=(0, 1)), (w, x), outs


# FSDP over data of the tensor parallel pair: each weight gathered over data, the
# sum over model, each gradient summed over data and cut. The CPU compiler gathers w2
# once more for the backward pass, where the TPU compiler sees that it has it; the GPU
# compiler does too, but joins the three.
@program(
    *[gather("data")] * 2,
    reduce("model"),
    scatter("data"),
    cpu=[*[gather("data")] * 3, reduce("model"), scatter("data")],
    gpu=[gather("data"), reduce("model"), scatter("data")],
)
def fsdp_and_tensor_parallel_grad(mesh):
    w = on(mesh, (D, F), "data", "model"), on(mesh, (F, D), "model", "data")

    def sharded(w, x):
        h = pin(jax.nn.relu(x @ w[0]), mesh, "data", "model")
        return jnp.mean(pin(h @ w[1], mesh, "data") ** 2)

    return jax.grad(sharded), (w, on(mesh, (B, D), "data")), grads_like(w)


# ZeRO-1 by hand: parameters whole, gradient and moment cut. The gradient is summed
# over data and each device keeps its rows; the new parameters are gathered.
@program(scatter("data"), gather("data"), shape=M8)
def zero_1_step(mesh):
    def step(w, m, x):
        g = jax.grad(lambda w: jnp.mean(jnp.tanh(x @ w) ** 2))(w)
        m = 0.9 * m + pin(g, mesh, "data")
        return w - pin(m, mesh), m

    w, m = on(mesh, (D, F)), on(mesh, (D, F), "data")
    outs = {"out_shardings": (w.sharding, m.sharding)}
    return step, (w, m, on(mesh, (B, D), "data")), outs


# Four micro-batches, each with its own gradient, summed over data every time; but it
# may as well be summed once, after the loop, as compilers but the CPU one see.
@program(reduce("data"), cpu=[reduce("data", times=4)], shape=M8)
def accumulated_gradient(mesh):
    def f(w, xs):
        def add(total, x):
            g = jax.grad(lambda w: jnp.mean(jnp.tanh(x @ w) ** 2))(w)
            return pin(total + g, mesh), None

        return lax.scan(add, jnp.zeros_like(w), xs)[0]

    return f, (on(mesh, (D, F)), on(mesh, (4, B, D), None, "data")), out(mesh)


# pmap is one device's program, and its pmean the only exchange.
@program(reduce("data"), shape=M8)
def pmap_step(mesh):
    def step(w, x):
        g = jax.grad(lambda w: jnp.mean(jnp.tanh(x @ w) ** 2))(w)
        return w - 0.1 * lax.pmean(g, "data")

    w, x = (jax.ShapeDtypeStruct((8, *s), jnp.float32) for s in [(D, F), (B, D)])
    return jax.pmap(step, axis_name="data", devices=list(mesh.devices.flat)), (w, x)


# --- Loops ------------------------------------------------------------------------


def layer(h, w):
    return h + mlp(*w, h), None


def stack(mesh, layers=L):
    w1 = on(mesh, (layers, D, F), None, None, "model")
    return w1, on(mesh, (layers, F, D), None, "model")


# One sum over model in each of L layers.
@program(reduce("model", times=L))
def scan(mesh):
    x = on(mesh, (B, D), "data")
    return lambda w, x: lax.scan(layer, x, w)[0], (stack(mesh), x)


# Backward, each layer sums over model what goes to the layer before, and over data
# its own two gradients, in one tuple.
@program(reduce("model", times=L), reduce("model", times=L), reduce("data", times=L))
def scan_grad(mesh):
    def f(w, x):
        return jnp.mean(lax.scan(layer, x, w)[0] ** 2)

    w = stack(mesh)
    return jax.grad(f), (w, on(mesh, (B, D), "data")), grads_like(w)


# 8 layers, two in each of 4 turns: the collective stands twice, 4 times each.
@program(reduce("model", times=4), reduce("model", times=4))
def scan_unrolled(mesh):
    def f(w, x):
        return lax.scan(layer, x, w, unroll=2)[0]

    return f, (stack(mesh, 8), on(mesh, (B, D), "data"))


# 5 × 3: the inner loop uses one layer's weights three times.
@program(reduce("model", times=15))
def scan_in_scan(mesh):
    def outer(h, w):
        return lax.scan(lambda h, _: layer(h, w), h, None, length=3)[0], None

    x = on(mesh, (B, D), "data")
    return lambda w, x: lax.scan(outer, x, w)[0], (stack(mesh, 5), x)


# A scan along an axis that is cut: no device has a layer's weights whole, so all of
# them are gathered before the loop. In the loop nothing is left to do. Compilers but
# the CPU one sink that gather into the loop, to save memory: all layers, L times.
@program(gather("model", times=L), cpu=[gather("model")])
def scan_along_a_cut_axis(mesh):
    def f(w, x):
        return lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, w)[0]

    return f, (on(mesh, (L, D, D), "model"), on(mesh, (B, D), "data"))


# FSDP under jax.checkpoint: each layer's weight is gathered in the forward loop and
# once more when the backward loop recomputes the layer.
@program(gather("data", times=L), gather("data", times=L), scatter("data", times=L))
def scan_fsdp_checkpoint(mesh):
    @jax.checkpoint
    def step(h, w):
        return pin(jnp.tanh(h @ w), mesh, "data"), None

    def f(w, x):
        return jnp.mean(lax.scan(step, x, w)[0] ** 2)

    w = on(mesh, (L, D, D), None, "data")
    x = on(mesh, (B, D), "data")
    return jax.grad(f), (w, x), {"out_shardings": w.sharding}


# As often as n says, which the text can't know.
@program(reduce("model", times=None))
def loop_of_n(mesh):
    def f(w, x, n):
        return lax.fori_loop(0, n, lambda _, h: jnp.tanh(mlp(*w, h)), x)

    w = on(mesh, (D, F), None, "model"), on(mesh, (F, D), "model")
    n = jax.ShapeDtypeStruct((), jnp.int32)
    return f, (w, on(mesh, (B, D), "data"), n)


# Whether any number is still large is a question to all: the condition itself
# communicates, as often as the data say. The body doesn't. One axis after the other,
# as in every sum of all.
@program(
    reduce("data", "model", times=None),
    cpu=[reduce("model", times=None), reduce("data", times=None)],
)
def while_with_a_collective_in_its_condition(mesh):
    def f(x):
        return lax.while_loop(lambda x: (x > 1).any(), lambda x: 0.5 * x, x)

    return f, (on(mesh, (B, D), "data", "model"),)


# Ten turns at most, but fewer where the data say so: unknown.
@program(reduce("data", times=None))
def loop_until_small_or_ten(mesh):
    def f(x):
        def going(state):
            i, x = state
            return (i < 10) & (jnp.abs(x).max() > 1)

        return lax.while_loop(going, lambda s: (s[0] + 1, 0.5 * s[1]), (0, x))

    return f, (on(mesh, (B, D), "data"),)


# --- Branches ---------------------------------------------------------------------


# One branch sums over data, the other over model: each at most once. A cond under
# jit is one program for all devices, so they all take the same branch. The GPU
# compiler takes both such small branches and chooses: there they are no branches.
@program(reduce("data"), reduce("model"), upper_bound=("cpu", "tpu"))
def branches(mesh):
    def f(p, x):
        def down(x):
            return x + x.sum(0, keepdims=True)

        def across(x):
            return x + x.sum(1, keepdims=True)

        return lax.cond(p, down, across, x)

    return f, (jax.ShapeDtypeStruct((), jnp.bool_), on(mesh, (B, D), "data", "model"))


# In each of L turns at most once.
@program(reduce("model", times=L), upper_bound=("cpu", "tpu", "gpu"))
def a_branch_in_a_scan(mesh):
    def step(h, w_and_on):
        *w, on = w_and_on
        return lax.cond(on, lambda h: layer(h, w)[0], lambda h: h, h), None

    def f(w, on, x):
        return lax.scan(step, x, (*w, on))[0]

    switches = jax.ShapeDtypeStruct((L,), jnp.bool_)
    return f, (stack(mesh), switches, on(mesh, (B, D), "data"))


# Three branches of a switch, three ways to sum.
@program(
    reduce("data"),
    reduce("model"),
    reduce("data", "model"),
    upper_bound=("cpu", "tpu", "gpu"),
)
def a_switch(mesh):
    def summed_over(*axes):
        return lambda x: lax.pcast(lax.psum(x, axes), axes, to="varying")

    def f(which, x):
        ways = [("data",), ("model",), ("data", "model")]
        return lax.switch(which, [summed_over(*way) for way in ways], x)

    both = P("data", "model")
    f = jax.shard_map(f, mesh=mesh, in_specs=(P(), both), out_specs=both)
    return f, (jax.ShapeDtypeStruct((), jnp.int32), on(mesh, (B, D), *both))


# --- shard_map: what is written is what there is ----------------------------------


def mapped(mesh, f, spec, outs, shape=(B, D), **options):
    f = jax.shard_map(f, mesh=mesh, in_specs=spec, out_specs=outs, **options)
    return f, (on(mesh, shape, *spec),)


@program(reduce("data"))
def psum_over_data(mesh):
    return mapped(mesh, lambda x: lax.psum(x, "data"), P("data"), P())


# The mean is the sum, divided by four on each device.
@program(reduce("model"))
def pmean_over_model(mesh):
    return mapped(mesh, lambda x: lax.pmean(x, "model"), P(None, "model"), P())


@program(reduce("data", "model"))
def pmax_over_both(mesh):
    return mapped(
        mesh, lambda x: lax.pmax(x, ("data", "model")), P("data", "model"), P()
    )


# A sum has no order: the swapped tuple names the same eight devices.
@program(reduce("data", "model"))
def psum_over_both_swapped(mesh):
    return mapped(
        mesh, lambda x: lax.psum(x, ("model", "data")), P(("model", "data")), P()
    )


# Two sums that don't depend on each other, over the same axis: compilers join them.
@program(reduce("data"))
def psum_of_a_tree(mesh):
    def f(x, y):
        return lax.psum((x, y), "data")

    f = jax.shard_map(f, mesh=mesh, in_specs=P("data"), out_specs=P())
    return f, (on(mesh, (B, D), "data"), on(mesh, (B, F), "data"))


# Over different axes they can't be joined.
@program(reduce("data"), reduce("model"))
def psum_over_each(mesh):
    def f(x):
        return lax.psum(x, "data"), lax.psum(2 * x, "model")

    return mapped(mesh, f, P("data", "model"), (P(None, "model"), P("data")))


@program(gather("data"))
def all_gather_over_data(mesh):
    def f(x):
        return lax.all_gather(x, "data", tiled=True)

    return mapped(mesh, f, P("data"), P(), check_vma=False)


@program(gather("data", "model"))
def all_gather_over_both_swapped(mesh):
    def f(x):
        return lax.all_gather(x, ("model", "data"), tiled=True)

    return mapped(mesh, f, P(("model", "data")), P(), check_vma=False)


@program(scatter("model"))
def psum_scatter_over_model(mesh):
    def f(x):
        return lax.psum_scatter(x, "model", tiled=True)

    return mapped(mesh, f, P(None, "model"), P("model"))


@program(scatter("data", "model"))
def psum_scatter_over_both(mesh):
    def f(x):
        return lax.psum_scatter(x, ("data", "model"), tiled=True)

    return mapped(mesh, f, P(None, ("data", "model")), P(("data", "model")))


# Each device of a ring along data to the next; the last to the first.
@program(permute("data"))
def ppermute_ring(mesh):
    def f(x):
        return lax.ppermute(x, "data", [(i, (i + 1) % 4) for i in range(4)])

    return mapped(mesh, f, P("data"), P("data"))


# One pair only, along both axes: (0, 0) to (3, 1), position 0 to 7.
@program(permute("data", "model"))
def ppermute_corner(mesh):
    def f(x):
        return lax.ppermute(x, ("data", "model"), [(0, 7)])

    return mapped(mesh, f, P(("data", "model")), P(("data", "model")))


@program(alltoall("data"))
def all_to_all_over_data(mesh):
    def f(x):
        return lax.all_to_all(x, "data", 1, 0, tiled=True)

    return mapped(mesh, f, P("data"), P(None, "data"))


@program(alltoall("data", "model"))
def all_to_all_over_both(mesh):
    def f(x):
        return lax.all_to_all(x, ("data", "model"), 1, 0, tiled=True)

    axes = ("data", "model")
    return mapped(mesh, f, P(axes), P(None, axes))


# A matmul whose weight goes round the ring while each device uses what it has: three
# steps bring every part past every device.
@program(permute("data", times=3))
def ring_matmul(mesh):
    def f(x, w):
        me = lax.axis_index("data")
        rows = w.shape[0]

        def add(i, total, w):
            part = lax.dynamic_slice_in_dim(x, (me - i) % 4 * rows, rows, axis=1)
            return total + part @ w

        def turn(i, state):
            total, w = state
            total = add(i, total, w)
            return total, lax.ppermute(w, "data", [(j, (j + 1) % 4) for j in range(4)])

        total = lax.pcast(jnp.zeros((x.shape[0], w.shape[1])), "data", to="varying")
        return add(3, *lax.fori_loop(0, 3, turn, (total, w)))

    f = jax.shard_map(f, mesh=mesh, in_specs=P("data"), out_specs=P("data"))
    return f, (on(mesh, (B, D), "data"), on(mesh, (D, F), "data"))


# A pipeline of 8 stages in 11 ticks: after each, every stage hands on what it has.
@program(permute("data", times=11), shape=M8)
def pipeline(mesh):
    def f(w, xs):
        def tick(h, x):
            h = jnp.where(lax.axis_index("data") == 0, x, h)
            h = jnp.tanh(h @ w[0])
            return lax.ppermute(h, "data", [(i, i + 1) for i in range(7)]), None

        nothing = lax.pcast(jnp.zeros((B, D)), "data", to="varying")
        return lax.scan(tick, nothing, xs)[0]

    f = jax.shard_map(f, mesh=mesh, in_specs=(P("data"), P()), out_specs=P("data"))
    return f, (on(mesh, (8, D, D), "data"), on(mesh, (11, B, D)))


# --- Meshes -----------------------------------------------------------------------


# Groups are positions in the mesh, whatever device stands there.
@program(reduce("model"), order=(7, 3, 5, 1, 6, 2, 4, 0))
def on_permuted_devices(mesh):
    return tensor_parallel_mlp(mesh)


@program(reduce("model"), scatter("data", "pipe"), gather("model", "pipe"), shape=M222)
def in_a_cube(mesh):
    def f(x):
        summed = lax.psum(x, "model")
        cut = lax.psum_scatter(summed, ("data", "pipe"), tiled=True)
        return lax.all_gather(x, ("model", "pipe"), tiled=True), cut

    spec = P(("data", "model", "pipe"))
    outs = P("data"), P(("data", "pipe"))
    return mapped(mesh, f, spec, outs, (64, D), check_vma=False)


# FSDP over two axes of three, tensor parallel over the third: as on two axes.
@program(
    *[gather("data", "pipe")] * 2,
    reduce("model"),
    scatter("data", "pipe"),
    cpu=[*[gather("data", "pipe")] * 3, reduce("model"), scatter("data", "pipe")],
    gpu=[gather("data", "pipe"), reduce("model"), scatter("data", "pipe")],
    shape=M222,
)
def fsdp_over_two_axes(mesh):
    both = ("data", "pipe")
    w = on(mesh, (D, F), both, "model"), on(mesh, (F, D), "model", both)

    def sharded(w, x):
        h = pin(jax.nn.relu(x @ w[0]), mesh, both, "model")
        return jnp.mean(pin(h @ w[1], mesh, both) ** 2)

    return jax.grad(sharded), (w, on(mesh, (B, D), both)), grads_like(w)


# A square, on half of the devices: only strides tell data from model.
@program(gather("data"), reduce("model"), shape={"data": 2, "model": 2})
def on_a_square(mesh):
    w = on(mesh, (D, F), "data", "model"), on(mesh, (F, D), "model")
    return lambda w, x: mlp(*w, x), (w, on(mesh, (B, D), "data")), out(mesh, "data")


# Axes of size 1 exchange nothing: the sum over model is no sum.
@program(shape={"data": 8, "model": 1})
def over_an_axis_of_one(mesh):
    return tensor_parallel_mlp(mesh)


@program(reduce("model"), shape={"pod": 1, "model": 8, "data": 1})
def between_axes_of_one(mesh):
    return tensor_parallel_mlp(mesh)


# Eight blocks of rows, seen as 2 × 4 of them: summing away the 2 joins devices 0
# and 4, 1 and 5, …: the outer half of x. The result lies over the inner 4, and is
# wanted whole.
@program(reduce("x:(1)2"), gather("x:(2)4"), shape={"x": 8})
def over_the_outer_part_of_an_axis(mesh):
    def f(x):
        return x.reshape(2, 32, D).sum(0)

    return f, (on(mesh, (64, D), "x"),), out(mesh)


# Seen as 4 × 2, summing away the 2 joins neighbors; gathered over the outer 4.
@program(reduce("x:(4)2"), gather("x:(1)4"), shape={"x": 8})
def over_the_inner_part_of_an_axis(mesh):
    def f(x):
        return x.reshape(4, 2, 16, D).sum(1)

    return f, (on(mesh, (128, D), "x"),), out(mesh)


# --- Moving between shardings ------------------------------------------------------


@program(gather("data"))
def reshard_to_whole(mesh):
    return lambda x: 2 * x, (on(mesh, (B, D), "data"),), out(mesh)


@program()
def reshard_from_whole(mesh):
    return lambda x: 2 * x, (on(mesh, (B, D)),), out(mesh, "data", "model")


# Rows cut, columns wanted: each device sends each other one a part of its block.
@program(alltoall("data"))
def reshard_rows_to_columns(mesh):
    return lambda x: 2 * x, (on(mesh, (B, D), "data"),), out(mesh, None, "data")


# The blocks are the same, in other hands: (i, j) has 2i + j and wants 4j + i.
@program(permute("data", "model"))
def reshard_to_the_other_order(mesh):
    x = on(mesh, (B, D), ("data", "model"))
    return lambda x: 2 * x, (x,), out(mesh, ("model", "data"))


# Transposing moves the spec along with the axes: nobody needs another's block.
@program()
def transpose(mesh):
    x = on(mesh, (B, D), "data", "model")
    return lambda x: 2 * x.T, (x,), out(mesh, "model", "data")


# Each row moves to the next one. A device needs its neighbor's last row only.
@program(permute("data"))
def roll(mesh):
    x = on(mesh, (B, D), "data")
    return lambda x: jnp.roll(x, 1, axis=0), (x,), out(mesh, "data")


# A constraint's None asks for the whole dimension, and what is not named is None.
@program(gather("model"))
def a_constraint_that_names_one_axis(mesh):
    x = on(mesh, (B, D), "data", "model")
    return lambda x: pin(2 * x, mesh, "data"), (x,)


# On Auto axes device_put inside jit is ignored: nothing moves.
@program()
def device_put_inside_jit(mesh):
    def f(x):
        return jax.device_put(2 * x, NamedSharding(mesh, P(None, "data")))

    return f, (on(mesh, (B, D), "data"),)


# x[0] of an array with a row on each device: seven hold zeros, and the sum is the row.
@program(reduce("data"), shape=M8)
def first_row_of_a_cut_array(mesh):
    return lambda x: x[0], (on(mesh, (8, B, D), "data"),)


# From (model, -, data) to (-, data × model, -) there is no way by moving axis by
# axis that the partitioner knows: the array is gathered whole, then cut. One axis
# after the other, on TPU both at once.
@program(gather("data"), gather("model"), tpu=[gather("data", "model")])
def reshard_by_making_it_whole(mesh):
    x = on(mesh, (16, 32, 48), "model", None, "data")
    return lambda x: 2 * x, (x,), out(mesh, None, ("data", "model"))


# in_specs are a request: the argument is cut the other way, so it is moved first.
@program(alltoall("data"), shape=M8)
def shard_map_moves_its_argument(mesh):
    f = jax.shard_map(
        lambda x: 2 * x, mesh=mesh, in_specs=P("data"), out_specs=P("data")
    )
    return f, (on(mesh, (B, D), None, "data"),)


# Every prefix sum needs all that is before it: the partitioner gathers the numbers,
# on GPU only the eight sums. TPU lays them into zeros and sums, which is the same
# thing and is called so.
@program(gather("data"), shape=M8)
def cumsum_along_a_cut_axis(mesh):
    x = on(mesh, (B,), "data")
    return lambda x: jnp.cumsum(x), (x,), out(mesh, "data")


# 16 rows and 2 more are 18, which 4 devices can't share evenly: the result is whole.
# The way there was counted in the text. A neighbor's row, three exchanges to bring
# rows to their places, a gather; on TPU two shifts, the sum of the 2 rows, the gather.
@program(
    permute("data"),
    *[alltoall("data")] * 3,
    gather("data"),
    tpu=[*[permute("data")] * 2, reduce("data"), gather("data")],
)
def two_more_rows(mesh):
    return lambda x: jnp.concatenate([x, x[:2]]), (on(mesh, (16, D), "data"),)


# --- Attention's reshapes ---------------------------------------------------------


# D=256 in 2 parts is 8 heads of 32, in 2 parts of 4 heads: nothing moves.
@program()
def split_into_heads(mesh):
    def f(x):
        return 2 * x.reshape(B, S, 8, 32).transpose(0, 2, 1, 3)

    x = on(mesh, (B, S, D), "data", None, "model")
    return f, (x,), out(mesh, "data", "model")


# 3 heads in 2 parts can't be: the middle head lies on both. All is gathered.
@program(gather("model"))
def split_into_heads_that_do_not_divide(mesh):
    def f(x):
        return 2 * x.reshape(B, S, 3, 32)

    return f, (on(mesh, (B, S, 96), "data", None, "model"),), out(mesh, "data")


# Merging batch and sequence, of which the sequence is cut, mixes everyone's rows.
@program(gather("model"))
def merge_a_cut_sequence(mesh):
    def f(x):
        return 2 * x.reshape(B * S, D)

    return f, (on(mesh, (B, S, D), "data", "model"),), out(mesh, "data")


# Queries, keys and values cut along the sequence. Each device has all rows of its
# queries only when it sees all keys and all values: both are gathered, on GPU at once.
@program(gather("data"), gather("data"), gpu=[gather("data")], shape=M8)
def attention_over_a_cut_sequence(mesh):
    def f(q, k, v):
        scores = jnp.einsum("bshk,bthk->bhst", q, k)
        scores = pin(scores, mesh, None, None, "data")
        return jnp.einsum("bhst,bthk->bshk", jax.nn.softmax(scores), v)

    x = on(mesh, (4, S, 8, 32), None, "data")
    return f, (x, x, x), out(mesh, None, "data")


# The two halves of the features change places, each on its own device: one permute
# would do. The compilers move both halves and then put the parts together by three
# exchanges; counted in the text.
@program(*[permute("model")] * 2, *[alltoall("model")] * 3)
def rotary_halves_on_two_devices(mesh):
    def f(x):
        return jnp.concatenate([-x[..., D // 2 :], x[..., : D // 2]], -1)

    x = on(mesh, (B, D), "data", "model")
    return f, (x,), out(mesh, "data", "model")


# --- Embeddings, and the ends of a language model ---------------------------------

V = 4096


def look_up(table, ids):
    return table[ids]


# Each device finds the ids that fall in its part of the vocabulary, zeros elsewhere,
# and the sum over model makes the rows whole.
@program(reduce("model"))
def embedding_cut_in_vocabulary(mesh):
    ids = on(mesh, (B, S), "data", dtype=jnp.int32)
    return look_up, (on(mesh, (V, D), "model"), ids), out(mesh, "data")


# Each device has some features of every word.
@program()
def embedding_cut_in_features(mesh):
    ids = on(mesh, (B, S), "data", dtype=jnp.int32)
    return (
        look_up,
        (on(mesh, (V, D), None, "model"), ids),
        out(mesh, "data", None, "model"),
    )


# Words and ids over the same axis: the ids are gathered, each device looks all of
# them up in its part, and of the sum it keeps its own rows. TPU gathers such few
# numbers by laying them into zeros.
@program(gather("data"), scatter("data"), shape=M8)
def embedding_and_ids_over_the_same_axis(mesh):
    ids = on(mesh, (B,), "data", dtype=jnp.int32)
    return look_up, (on(mesh, (V, D), "data"), ids), out(mesh, "data")


# The maximum's place: each device finds its own largest and where, and all pairs are
# gathered to compare; on GPU the numbers and their places at once.
@program(gather("model"), gather("model"), gpu=[gather("model")])
def argmax_over_a_cut_vocabulary(mesh):
    x = on(mesh, (B, V), "data", "model")
    return lambda x: jnp.argmax(x, -1), (x,), out(mesh, "data")


# --- Types ------------------------------------------------------------------------


@program(reduce("data"))
def half_precision(mesh):
    return lambda x: x.sum(0), (on(mesh, (B, D), "data", dtype=BF16),)
