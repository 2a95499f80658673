"""Parameters sharded within groups of four devices, and replicated over two groups."""

import jax.numpy as jnp

from ..setting import BFLOAT16, FLOAT, grid, like, on, pin, sgd, to

MESH = {"replica": 2, "shard": 4}
B, D, F = 32, 32, 64


def build(devices):
    mesh, batch = grid(devices, MESH), ("replica", "shard")

    def loss(params, x):
        h = pin(jnp.tanh(x @ params["up"]), mesh, batch)
        return (pin(h @ params["down"], mesh, batch) ** 2).mean()

    params = {"up": on(mesh, (D, F), "shard"), "down": on(mesh, (F, D), "shard")}
    jit = {"donate_argnums": 0, "out_shardings": (like(params), to(mesh))}
    args = params, on(mesh, (B, D), batch)
    return sgd(loss), args, {"carry": 1, "jit": jit}


# 32·64 + 64·32 = 4096 weights are gathered over shard.
EXCHANGES = {
    ("all-gather", ("shard",), 1): 4096 * FLOAT,
    ("reduce-scatter", ("shard",), 1): 4096 * FLOAT,
    ("all-reduce", ("replica",), 1): 4096 // 4 * FLOAT,
    ("all-reduce", ("replica", "shard"), 1): 1 * FLOAT,
}
# A TPU's compiler multiplies in bfloat16, and converts before it gathers.
TPU = EXCHANGES | {("all-gather", ("shard",), 1): 4096 * BFLOAT16}
FINDINGS = set()
