"""A step of Flax NNX with an optimizer, data-parallel, as its guides write it."""

import jax
import optax
from flax import nnx

from ..setting import FLOAT, grid, on, to

MESH = {"data": 8}
B, D, F = 32, 24, 48
ONLY = "cpu"  # the model has its data


class Net(nnx.Module):
    def __init__(self, rngs):
        self.first = nnx.Linear(D, F, rngs=rngs)
        self.norm = nnx.BatchNorm(F, rngs=rngs)
        self.second = nnx.Linear(F, D, rngs=rngs)

    def __call__(self, x):
        return self.second(nnx.relu(self.norm(self.first(x))))


@nnx.jit
def step(model, optimizer, x, y):
    def loss(model):
        return ((model(x) - y) ** 2).mean()

    value, grads = nnx.value_and_grad(loss)(model)
    optimizer.update(model, grads)
    return value


def build(devices):
    mesh = grid(devices, MESH)
    model = Net(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)
    both = (model, optimizer)
    nnx.update(both, jax.device_put(nnx.state(both), to(mesh)))
    return step, (*both, on(mesh, (B, D), "data"), on(mesh, (B, D), "data"))


# Forward, the mean of 48 features over the batch, and the mean of their squares.
# Backward, what both statistics pass on: two sums of 48 again, of which one is also the
# gradient of the 48 scales, but for a factor. Gradients: 24·48 = 1152 and
# 48·24 = 1152 weights; 48 + 24 biases; 48 biases of the norm. The loss is 1.
EXCHANGES = {
    ("all-reduce", ("data",), 1): (4 * 48 + 2 * 1152 + 48 + 24 + 48 + 1) * FLOAT
}
FINDINGS = set()
