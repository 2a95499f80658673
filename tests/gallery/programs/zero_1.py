"""Adam whose moments alone are sharded, the parameters replicated."""

import jax
import jax.numpy as jnp
import optax

from ..setting import FLOAT, grid, like, on, to

MESH = {"data": 8}
B, D, F = 32, 40, 56
ADAM = optax.adam(1e-3)


def loss(params, x):
    return ((jnp.tanh(x @ params["up"]) @ params["down"]) ** 2).mean()


def step(params, state, x):
    value, grads = jax.value_and_grad(loss)(params, x)
    updates, state = ADAM.update(grads, state, params)
    return optax.apply_updates(params, updates), state, value


def build(devices):
    mesh = grid(devices, MESH)
    params = {"up": on(mesh, (D, F)), "down": on(mesh, (F, D))}
    state = jax.tree.map(
        lambda x: on(mesh, x.shape, *["data"] * bool(x.shape), dtype=x.dtype),
        jax.eval_shape(ADAM.init, params),
    )
    args = params, state, on(mesh, (B, D), "data")
    jit = {
        "donate_argnums": (0, 1),
        "out_shardings": (like(params), like(state), to(mesh)),
    }
    return step, args, {"carry": 2, "jit": jit}


# Gradients of 40·56 + 56·40 = 4480 weights are scattered, a device updates its eighth,
# and what is to be added is gathered. And the loss.
EXCHANGES = {
    ("reduce-scatter", ("data",), 1): 4480 * FLOAT,
    ("all-gather", ("data",), 1): 4480 * FLOAT,
    ("all-reduce", ("data",), 1): 1 * FLOAT,
}
# The CPU's compiler writes a reduce-scatter as an all-reduce and a slice. Here it puts
# the loss, which is not sliced, into the same exchange: that is an all-reduce.
CPU = {
    ("all-reduce", ("data",), 1): (4480 + 1) * FLOAT,
    ("all-gather", ("data",), 1): 4480 * FLOAT,
}
TPU = CPU  # likewise
FINDINGS = set()
