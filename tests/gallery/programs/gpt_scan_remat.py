"""A language model of scanned layers, each recomputed, fully sharded over data."""

import jax
import jax.numpy as jnp
from jax import lax

from ..setting import BFLOAT16, FLOAT, grid, like, on, pin, sgd, to

MESH = {"data": 8}
B, S, D, F, V, LAYERS = 16, 8, 32, 64, 48, 6


def build(devices):
    mesh = grid(devices, MESH)

    def batch(x):
        return pin(x, mesh, "data")

    def attend(x, w):
        q, k, v = jnp.split(x @ w, 3, -1)
        share = jax.nn.softmax(jnp.where(jnp.tri(S), q @ k.mT, -1e9))
        return share @ v

    @jax.checkpoint
    def layer(x, w):
        x = batch(x + batch(attend(x, w["qkv"])) @ w["out"])
        return batch(x + batch(jax.nn.gelu(x @ w["up"])) @ w["down"]), None

    def loss(params, tokens):
        table = pin(params["table"], mesh)
        x, _ = lax.scan(layer, batch(table[tokens]), params["layers"])
        scores = jax.nn.log_softmax(batch(x @ params["head"]))[:, :-1]
        return -(jax.nn.one_hot(tokens[:, 1:], V) * scores).sum(-1).mean()

    sizes = {"qkv": (D, 3 * D), "out": (D, D), "up": (D, F), "down": (F, D)}
    params = {
        "table": on(mesh, (V, D), "data"),
        "layers": {n: on(mesh, (LAYERS, *s), None, "data") for n, s in sizes.items()},
        "head": on(mesh, (D, V), "data"),
    }
    args = params, on(mesh, (B, S), "data", dtype=jnp.int32)
    jit = {"donate_argnums": 0, "out_shardings": (like(params), to(mesh))}
    return sgd(loss), args, {"carry": 1, "jit": jit}


# A layer has 32·96 + 32·32 + 32·64 + 64·32 = 8192 weights. Each of the 6 turns of the
# forward loop gathers them, and each of the backward loop once more, for recomputing
# and for the gradients together; there the gradients are scattered.
# Outside of the loops: the table, 48·32 = 1536, and the head, 32·48 = 1536, each
# gathered once and its gradient scattered once.
EXCHANGES = {
    ("all-gather", ("data",), LAYERS): 2 * 8192 * FLOAT,
    ("reduce-scatter", ("data",), LAYERS): 8192 * FLOAT,
    ("all-gather", ("data",), 1): (1536 + 1536) * FLOAT,
    ("reduce-scatter", ("data",), 1): (1536 + 1536) * FLOAT,
    ("all-reduce", ("data",), 1): 1 * FLOAT,  # the loss
}
# The CPU's compiler writes a reduce-scatter as an all-reduce and a slice. Here it puts
# the loss, which is not sliced, into the same exchange: that is an all-reduce.
CPU = {
    ("all-gather", ("data",), LAYERS): 2 * 8192 * FLOAT,
    ("reduce-scatter", ("data",), LAYERS): 8192 * FLOAT,
    ("all-gather", ("data",), 1): (1536 + 1536) * FLOAT,
    ("all-reduce", ("data",), 1): (1536 + 1536 + 1) * FLOAT,
}
# A TPU's compiler multiplies in bfloat16, and converts before it gathers, but not in
# the forward loop, nor the table. It sums the loss with the last gradients too.
TPU = CPU | {
    ("all-gather", ("data",), LAYERS): 8192 * (FLOAT + BFLOAT16),
    ("all-gather", ("data",), 1): 1536 * (FLOAT + BFLOAT16),
}
FINDINGS = set()
