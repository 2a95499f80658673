"""Sharded weights, and moments that were restored replicated: a mistake."""

import jax
import jax.numpy as jnp
import optax

from ..setting import BFLOAT16, FLOAT, grid, like, on, pin, to

MESH = {"data": 8}
B, D, F = 32, 40, 56
ADAM = optax.adam(1e-3)


def build(devices):
    mesh = grid(devices, MESH)

    def loss(params, x):
        h = pin(jnp.tanh(x @ params["up"]), mesh, "data")
        return (pin(h @ params["down"], mesh, "data") ** 2).mean()

    def step(params, opt_state, x):
        value, grads = jax.value_and_grad(loss)(params, x)
        updates, opt_state = ADAM.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, value

    params = {"up": on(mesh, (D, F), "data"), "down": on(mesh, (F, D), "data")}
    opt_state = jax.tree.map(
        lambda x: on(mesh, x.shape, dtype=x.dtype),
        jax.eval_shape(ADAM.init, params),
    )
    args = params, opt_state, on(mesh, (B, D), "data")
    jit = {
        "donate_argnums": (0, 1),
        "out_shardings": (like(params), like(opt_state), to(mesh)),
    }
    return step, args, {"carry": 2, "jit": jit}


# 40·56 + 56·40 = 4480 weights are gathered, and their gradients scattered. A device
# updates its eighth of both moments, and then both are gathered. The loss is summed.
EXCHANGES = {
    ("all-gather", ("data",), 1): 3 * 4480 * FLOAT,
    ("reduce-scatter", ("data",), 1): 4480 * FLOAT,
    ("all-reduce", ("data",), 1): 1 * FLOAT,
}
# The CPU's compiler writes a reduce-scatter as an all-reduce and a slice. Here it puts
# the loss, which is not sliced, into the same exchange: that is an all-reduce.
CPU = {
    ("all-gather", ("data",), 1): 3 * 4480 * FLOAT,
    ("all-reduce", ("data",), 1): (4480 + 1) * FLOAT,
}
# A TPU's compiler multiplies in bfloat16, and converts the weights before it gathers.
TPU = CPU | {("all-gather", ("data",), 1): 4480 * BFLOAT16 + 2 * 4480 * FLOAT}
FINDINGS = {"replicated-state"}
