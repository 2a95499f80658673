"""Tensor-parallel layers between which the sequence is sharded over the same axis."""

import jax

from ..setting import BFLOAT16, FLOAT, grid, on, pin, sgd

MESH = {"data": 4, "model": 2}
B, S, D, F, LAYERS = 8, 12, 32, 96, 2


def build(devices):
    mesh = grid(devices, MESH)

    def loss(layers, x):
        for w in layers:
            rows = pin(x, mesh, "data")  # the full sequence
            h = pin(jax.nn.gelu(rows @ w["up"]), mesh, "data", None, "model")
            x = x + pin(h @ w["down"], mesh, "data", "model")
        return (x**2).mean()

    layer = {
        "up": on(mesh, (D, F), None, "model"),
        "down": on(mesh, (F, D), "model"),
    }
    args = [layer] * LAYERS, on(mesh, (B, S, D), "data", "model")
    return sgd(loss), args, {"carry": 1, "jit": {"donate_argnums": 0}}


# R = 8/4 · 12 · 32 = 768 numbers: a device's sequences, in full. Over model a layer
# gathers R before `up` and scatters the sum R after `down`. Backward it gathers R of
# the gradient, and before `up` scatters R, which the first layer doesn't, as x needs no
# gradient. Over data, the gradients of two halves of 32·96/2 = 1536 in each layer. The
# loss is summed over both.
R = 768
EXCHANGES = {
    ("all-gather", ("model",), 1): LAYERS * 2 * R * FLOAT,
    ("reduce-scatter", ("model",), 1): (LAYERS * 2 - 1) * R * FLOAT,
    ("all-reduce", ("data",), 1): LAYERS * 2 * 1536 * FLOAT,
    ("all-reduce", ("data", "model"), 1): 1 * FLOAT,
}
# The CPU's compiler writes a reduce-scatter as an all-reduce and a slice. It sums the
# loss over one axis and then over the other, in one exchange with what is summed there.
# The first of these is an all-reduce, because the loss is not sliced.
CPU = {
    ("all-gather", ("model",), 1): LAYERS * 2 * R * FLOAT,
    ("reduce-scatter", ("model",), 1): (LAYERS * 2 - 2) * R * FLOAT,
    ("all-reduce", ("model",), 1): (R + 1) * FLOAT,
    ("all-reduce", ("data",), 1): (LAYERS * 2 * 1536 + 1) * FLOAT,
}
# A TPU's compiler multiplies in bfloat16, and converts before it gathers.
TPU = EXCHANGES | {("all-gather", ("model",), 1): LAYERS * 2 * R * BFLOAT16}
FINDINGS = set()
