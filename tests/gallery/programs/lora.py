"""Adapters of low rank beside frozen, tensor-parallel weights, trained with Adam."""

import jax
import optax

from ..setting import FLOAT, grid, on, state_of

MESH = {"data": 4, "model": 2}
B, D, F, R = 64, 32, 96, 8
ADAM = optax.adam(1e-3)


def loss(adapters, frozen, x):
    a, w = adapters, frozen
    h = jax.nn.relu(x @ w["up"] + (x @ a["up_a"]) @ a["up_b"])
    return ((h @ w["down"] + (h @ a["down_a"]) @ a["down_b"]) ** 2).mean()


def step(adapters, state, frozen, x):
    value, grads = jax.value_and_grad(loss)(adapters, frozen, x)
    updates, state = ADAM.update(grads, state)
    return optax.apply_updates(adapters, updates), state, value


def build(devices):
    mesh = grid(devices, MESH)
    frozen = {
        "up": on(mesh, (D, F), None, "model"),
        "down": on(mesh, (F, D), "model"),
    }
    adapters = {
        "up_a": on(mesh, (D, R)),
        "up_b": on(mesh, (R, F), None, "model"),
        "down_a": on(mesh, (F, R), "model"),
        "down_b": on(mesh, (R, D)),
    }
    state = state_of(ADAM, adapters, mesh)
    args = adapters, state, frozen, on(mesh, (B, D), "data")
    return step, args, {"carry": 2, "jit": {"donate_argnums": (0, 1)}}


# Over model, a device's 64/4 = 16 rows: forward the sums of h·down, 32 wide, and of
# h·down_a, 8 wide; backward, through up_b, 8 wide again. The frozen weights and x need
# no gradients. Over data: the adapters' gradients, 32·8, 8·48, 48·8 and 8·32, of those
# that are sharded a half; and the loss.
EXCHANGES = {
    ("all-reduce", ("model",), 1): 16 * (32 + 8 + 8) * FLOAT,
    ("all-reduce", ("data",), 1): (256 + 384 + 384 + 256 + 1) * FLOAT,
}
FINDINGS = set()
