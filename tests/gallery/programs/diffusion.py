"""A step of a diffusion model: random times and noise, an average of the weights."""

import jax
import jax.numpy as jnp

from ..setting import FLOAT, grid, key, on, pin

MESH = {"data": 8}
B, D, T, F = 64, 40, 16, 56


def build(devices):
    mesh = grid(devices, MESH)

    def loss(params, rng, x):
        when, noise = jax.random.split(rng)
        t = pin(jax.random.uniform(when, (B, 1)), mesh, "data")
        e = pin(jax.random.normal(noise, (B, D)), mesh, "data")
        noised = jnp.cos(t) * x + jnp.sin(t) * e
        waves = jnp.sin(t * 2.0 ** jnp.arange(T))
        h = jax.nn.silu(noised @ params["in"] + waves @ params["time"])
        return ((h @ params["out"] - e) ** 2).mean()

    def step(params, average, rng, x):
        rng, own = jax.random.split(rng)
        value, grads = jax.value_and_grad(loss)(params, own, x)
        params = jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)
        average = jax.tree.map(lambda a, p: 0.99 * a + 0.01 * p, average, params)
        return params, average, rng, value

    sizes = {"in": (D, F), "time": (T, F), "out": (F, D)}
    params = {name: on(mesh, size) for name, size in sizes.items()}
    args = params, params, key(mesh), on(mesh, (B, D), "data")
    return step, args, {"carry": 3, "jit": {"donate_argnums": (0, 1)}}


# Gradients of 40·56 + 16·56 + 56·40 = 5376 weights, and the loss. Noise is drawn where
# it is used, and the average is computed everywhere.
EXCHANGES = {("all-reduce", ("data",), 1): (5376 + 1) * FLOAT}
FINDINGS = set()
