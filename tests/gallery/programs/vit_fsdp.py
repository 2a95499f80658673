"""A vision transformer whose parameters are fully sharded, with Adam, two layers."""

import jax
import jax.numpy as jnp
import optax

from ..setting import BFLOAT16, FLOAT, grid, like, on, pin, state_of, to

MESH = {"data": 8}
B, N, PATCH, D, F, HEADS, CLASSES, LAYERS = 16, 12, 24, 32, 64, 4, 10, 2
ADAM = optax.adam(1e-3)


def norm(x):
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6)


def attend(x, w):
    q, k, v = jnp.split((x @ w).reshape(*x.shape[:2], HEADS, -1), 3, -1)
    share = jax.nn.softmax(jnp.einsum("bqhk,bshk->bhqs", q, k))
    return jnp.einsum("bhqs,bshk->bqhk", share, v).reshape(x.shape)


def build(devices):
    mesh = grid(devices, MESH)

    def batch(x):
        return pin(x, mesh, "data")

    def loss(params, patches, labels):
        x = batch(patches @ params["patches"])
        for w in params["layers"]:
            x = batch(x + batch(attend(norm(x), w["qkv"])) @ w["out"])
            x = batch(x + batch(jax.nn.gelu(norm(x) @ w["up"])) @ w["down"])
        scores = batch(batch(x.mean(1)) @ params["head"])
        right = jax.nn.one_hot(labels, CLASSES) * jax.nn.log_softmax(scores)
        return -right.sum(-1).mean()

    def step(params, state, patches, labels):
        value, grads = jax.value_and_grad(loss)(params, patches, labels)
        updates, state = ADAM.update(grads, state, params)
        return optax.apply_updates(params, updates), state, value

    sizes = {"qkv": (D, 3 * D), "out": (D, D), "up": (D, F), "down": (F, D)}
    layer = {name: on(mesh, size, "data") for name, size in sizes.items()}
    params = {
        "patches": on(mesh, (PATCH, D), "data"),
        "layers": [layer] * LAYERS,
        "head": on(mesh, (D, CLASSES), "data"),
    }
    state = state_of(ADAM, params, mesh)
    args = (
        params,
        state,
        on(mesh, (B, N, PATCH), "data"),
        on(mesh, (B,), "data", dtype=jnp.int32),
    )
    jit = {
        "donate_argnums": (0, 1),
        "out_shardings": (like(params), like(state), to(mesh)),
    }
    return step, args, {"carry": 2, "jit": jit}


# A layer: 32·96 + 32·32 + 32·64 + 64·32 = 8192 weights; two, and 24·32 = 768 of the
# patches and 32·10 = 320 of the head: 17472. Each is gathered once, because what the
# forward pass gathered is kept for the backward pass, and its gradient is scattered.
WEIGHTS = 17472
EXCHANGES = {
    ("all-gather", ("data",), 1): WEIGHTS * FLOAT,
    ("reduce-scatter", ("data",), 1): WEIGHTS * FLOAT,
    ("all-reduce", ("data",), 1): 1 * FLOAT,  # the loss
}
# The CPU's compiler writes a reduce-scatter as an all-reduce and a slice. Here it puts
# the loss, which is not sliced, into the same exchange: that is an all-reduce.
CPU = {
    ("all-gather", ("data",), 1): WEIGHTS * FLOAT,
    ("all-reduce", ("data",), 1): (WEIGHTS + 1) * FLOAT,
}
# A TPU's compiler multiplies in bfloat16, and converts before it gathers. Of one layer
# it gathers `qkv`, `out` and `up` backward again: 32·96 + 32·32 + 32·64 = 6144.
TPU = CPU | {("all-gather", ("data",), 1): (WEIGHTS + 6144) * BFLOAT16}
FINDINGS = set()
