"""Fully sharded layers on an Explicit mesh, each weight gathered by jax.reshard."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from ..setting import FLOAT, grid, on, sgd

MESH = {"data": 8}
B, D, F, LAYERS = 32, 40, 56, 3


def loss(params, x):
    def layer(x, w):
        up, down = jax.reshard(w["up"], P()), jax.reshard(w["down"], P())
        return x + jnp.tanh(x @ up) @ down, None

    return (lax.scan(layer, x, params)[0] ** 2).mean()


def build(devices):
    mesh = grid(devices, MESH, AxisType.Explicit)
    params = {
        "up": on(mesh, (LAYERS, D, F), None, "data"),
        "down": on(mesh, (LAYERS, F, D), None, "data"),
    }
    args = params, on(mesh, (B, D), "data")
    return sgd(loss), args, {"carry": 1, "jit": {"donate_argnums": 0}, "set": mesh}


# 40·56 + 56·40 = 4480 weights of a layer are gathered in each of 3 turns forward.
# Backward they are there, saved by the loop; their gradients are scattered.
EXCHANGES = {
    ("all-gather", ("data",), LAYERS): 4480 * FLOAT,
    ("reduce-scatter", ("data",), LAYERS): 4480 * FLOAT,
    ("all-reduce", ("data",), 1): 1 * FLOAT,
}
FINDINGS = set()
