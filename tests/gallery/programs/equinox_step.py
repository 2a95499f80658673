"""A module of Equinox, its weights tensor-parallel over one axis of two."""

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from tests.xray import equinox_stand_in as eqx

from ..setting import FLOAT, grid

MESH = {"data": 4, "model": 2}
B, D, F = 64, 32, 48
ONLY = "cpu"  # the model has its data


class MLP(eqx.Module):
    first: jax.Array
    second: jax.Array
    activation: object

    def __call__(self, x):
        return self.activation(x @ self.first) @ self.second


def step(model, x, y):
    def loss(weights):
        return ((MLP(*weights, model.activation)(x) - y) ** 2).mean()

    weights = model.first, model.second
    value, grads = jax.value_and_grad(loss)(weights)
    new = jax.tree.map(lambda p, g: p - 0.1 * g, weights, grads)
    return MLP(*new, model.activation), value


def build(devices):
    mesh = grid(devices, MESH)

    def ones(shape, *spec):
        return jax.device_put(np.ones(shape, np.float32), NamedSharding(mesh, P(*spec)))

    model = MLP(ones((D, F), None, "model"), ones((F, D), "model"), jax.nn.relu)
    args = model, ones((B, D), "data"), ones((B, D), "data")
    return eqx.filter_jit(step, donate="all"), args, {"carry": {0: 0}}


# Over model, the second product's [64/4, 32] partial sums; x needs no gradient.
# Over data, the gradients of each device's half: 32·24 and 24·32; and the loss.
EXCHANGES = {
    ("all-reduce", ("model",), 1): 16 * 32 * FLOAT,
    ("all-reduce", ("data",), 1): (768 + 768 + 1) * FLOAT,
}
FINDINGS = set()  # that x and y are donated in vain, Equinox does not warn of
