"""The network of chapters 1 and 2, small, on random pictures, and on one device.

The network of the chapters has 512 hidden features and this one 24: the checks are
about what the devices exchange, and small programs compile faster.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ._setting import Floats, normal

Params = dict[str, Any]
Ints = np.ndarray[Any, np.dtype[np.int32]]

PIXELS, HIDDEN, CLASSES = 784, 24, 10


def make_params(seed: int) -> Params:
    """A network that no bias of which is zero, the same for a seed."""
    return {
        "w1": 0.05 * normal(seed, PIXELS, HIDDEN),
        "b1": 0.1 * normal(seed + 1, HIDDEN),
        "w2": 0.2 * normal(seed + 2, HIDDEN, CLASSES),
        "b2": 0.1 * normal(seed + 3, CLASSES),
    }


def make_digits(
    params: Params, rows: int, hits: int, seed: int = 0
) -> tuple[Floats, Ints]:
    """Pictures and labels, of which the network gets so many right."""
    x = normal(1000 + seed, rows, PIXELS)
    y = np.asarray(jax.jit(predict)(params, x)).argmax(axis=1).astype(np.int32)
    misses = np.random.default_rng(seed).permutation(rows)[hits:]
    y[misses] = (y[misses] + 1 + misses % (CLASSES - 1)) % CLASSES
    return x, y


def predict(params: Params, x: Any) -> Any:
    """The ten scores of each picture."""
    hidden = jax.nn.relu(_product(x, params["w1"]) + params["b1"])
    return _product(hidden, params["w2"]) + params["b2"]


def _product(x: Any, w: Any) -> jax.Array:
    return jnp.matmul(x, w, precision="highest")


def loss_fn(params: Params, x: Any, y: Any) -> jax.Array:
    """The mean cross entropy of the rows."""
    log_probs = jax.nn.log_softmax(predict(params, x))
    return -jnp.take_along_axis(log_probs, y[:, None], axis=1).mean()


@jax.jit
def loss_and_grads(params: Params, x: Any, y: Any) -> tuple[jax.Array, Params]:
    """The loss of one batch and its gradients, on one device."""
    return jax.value_and_grad(loss_fn)(params, x, y)


def size(params: Params) -> int:
    """How many numbers the parameters, and so the gradients, have."""
    return sum(leaf.size for leaf in jax.tree.leaves(params))


def max_flops(params: Params, rows: int, products: int) -> int:
    """An upper bound for so many products of the rows with each weight.

    Half as much again is left for what a compiler counts differently; a device that
    works on the rows of another one does at least twice as much.
    """
    return 3 * products * rows * size(params)
