"""Muon: each layer's momentum is orthogonalized on one device, layers spread out."""

import jax
import jax.numpy as jnp
from jax import lax

from ..setting import BFLOAT16, FLOAT, grid, like, on, pin, to

MESH = {"data": 8}
B, D, F, LAYERS = 32, 32, 64, 8
SPECS = {"up": (None, "data"), "down": (None, "data")}


def orthogonal(m):
    """Newton and Schulz: singular values go to one."""
    x = m / (jnp.linalg.norm(m, axis=(1, 2), keepdims=True) + 1e-6)
    for _ in range(3):
        x = 1.5 * x - 0.5 * (x @ x.mT) @ x
    return x


def build(devices):
    mesh = grid(devices, MESH)

    def loss(params, x):
        def layer(x, w):
            h = pin(jnp.tanh(x @ w["up"]), mesh, "data")
            return pin(x + h @ w["down"], mesh, "data"), None

        return (lax.scan(layer, x, params)[0] ** 2).mean()

    def update(w, m, g, spec):
        m = pin(0.9 * m + g, mesh, *spec)
        spread = pin(m, mesh, "data")
        return w - 0.1 * pin(pin(orthogonal(spread), mesh, "data"), mesh, *spec), m

    def step(params, momentum, x):
        value, grads = jax.value_and_grad(loss)(params, x)
        new = {n: update(params[n], momentum[n], grads[n], SPECS[n]) for n in params}
        params = {n: w for n, (w, _) in new.items()}
        return params, {n: m for n, (_, m) in new.items()}, value

    params = {
        "up": on(mesh, (LAYERS, D, F), *SPECS["up"]),
        "down": on(mesh, (LAYERS, F, D), *SPECS["down"]),
    }
    places = like(params)
    jit = {"donate_argnums": (0, 1), "out_shardings": (places, places, to(mesh))}
    args = params, params, on(mesh, (B, D), "data")
    return step, args, {"carry": 2, "jit": jit}


# A layer has 32·64 + 64·32 = 4096 weights, gathered in each turn of the forward loop
# and of the backward one, where their gradients are scattered. Outside, a device gives
# away its eighth of 8 layers' momentum, 4096 numbers, for a layer, and back.
EXCHANGES = {
    ("all-gather", ("data",), LAYERS): 2 * 4096 * FLOAT,
    ("reduce-scatter", ("data",), LAYERS): 4096 * FLOAT,
    ("all-to-all", ("data",), 1): 2 * 4096 * FLOAT,
    ("all-reduce", ("data",), 1): 1 * FLOAT,
}
# A TPU's compiler multiplies in bfloat16, and converts one of the two beforehand.
TPU = EXCHANGES | {("all-gather", ("data",), LAYERS): 4096 * (FLOAT + BFLOAT16)}
FINDINGS = set()
