"""What the programs of the gallery use: meshes, and arrays that are described."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

FLOAT, BFLOAT16 = 4, 2  # bytes


def grid(devices: Any, sizes: dict[str, int], kind: AxisType = AxisType.Auto) -> Mesh:
    """A mesh of the devices, of axes that are all Auto or all Explicit."""
    array = np.array(devices, object).reshape(tuple(sizes.values()))
    return Mesh(array, tuple(sizes), axis_types=(kind,) * len(sizes))


def on(mesh: Mesh, shape: tuple[int, ...], *spec: Any, dtype: Any = jnp.float32):
    """An array without data, sharded as the spec says."""
    sharding = NamedSharding(mesh, P(*spec))
    return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)


def key(mesh: Mesh):
    """A replicated key for random numbers."""
    sharding = NamedSharding(mesh, P())
    return jax.ShapeDtypeStruct((), jax.random.key(0).dtype, sharding=sharding)


def pin(x: Any, mesh: Mesh, *spec: Any):
    """A sharding constraint."""
    return lax.with_sharding_constraint(x, NamedSharding(mesh, P(*spec)))


def like(tree: Any):
    """The shardings of a tree."""
    return jax.tree.map(lambda x: x.sharding, tree)


def to(mesh: Mesh, *spec: Any) -> NamedSharding:
    """A sharding."""
    return NamedSharding(mesh, P(*spec))


def state_of(optimizer: optax.GradientTransformation, params: Any, mesh: Mesh):
    """The optimizer's state, moments sharded as the parameters are."""
    specs = {x.shape: x.sharding.spec for x in jax.tree.leaves(params)}

    def place(x):
        return on(mesh, x.shape, *specs.get(x.shape, ()), dtype=x.dtype)

    return jax.tree.map(place, jax.eval_shape(optimizer.init, params))


def sgd(loss: Any):
    """A train step: the gradients of a loss, and a step against them."""

    def step(params, *batch):
        value, grads = jax.value_and_grad(loss)(params, *batch)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value

    return step
