"""Cross-entropy over words that are sharded: scores are never gathered."""

import jax
import jax.numpy as jnp

from ..setting import FLOAT, grid, on, pin, sgd

MESH = {"data": 4, "model": 2}
B, S, D, V = 8, 12, 32, 128


def build(devices):
    mesh = grid(devices, MESH)

    def loss(params, x, labels):
        h = pin(jnp.tanh(x @ params["last"]), mesh, "data")
        scores = pin(h @ params["head"], mesh, "data", None, "model")
        top = jax.lax.stop_gradient(scores.max(-1, keepdims=True))
        total = jnp.log(jnp.exp(scores - top).sum(-1))
        words = jnp.arange(V) == labels[..., None]
        right = jnp.where(words, scores - top, 0).sum(-1)
        return (total - right).mean()

    params = {"last": on(mesh, (D, D)), "head": on(mesh, (D, V), None, "model")}
    labels = on(mesh, (B, S), "data", dtype=jnp.int32)
    args = params, on(mesh, (B, S, D), "data"), labels
    return sgd(loss), args, {"carry": 1, "jit": {"donate_argnums": 0}}


# A device has 8/4 · 12 = 24 rows. Over model: the largest score of each, the sum and
# the right one, 3·24; backward the gradients of h, 24·32. Over data: gradients of 32·32
# and of 32·128/2 weights, and the loss.
EXCHANGES = {
    ("all-reduce", ("model",), 1): (3 * 24 + 24 * 32) * FLOAT,
    ("all-reduce", ("data",), 1): (1024 + 2048 + 1) * FLOAT,
}
FINDINGS = {"redundant-work"}  # x·last is computed on both devices of model
