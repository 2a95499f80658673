"""Greedy decoding with a cache of keys and values, the heads tensor-parallel."""

import jax
import jax.numpy as jnp
from jax import lax

from ..setting import FLOAT, grid, on, pin

MESH = {"data": 4, "model": 2}
B, S, D, H, K, V, NEW = 8, 24, 32, 4, 8, 64, 10


def build(devices):
    mesh = grid(devices, MESH)

    def one(params, cache, token, at):
        x = params["table"][token]
        q, k, v = (jnp.einsum("bd,dhk->bhk", x, params[n]) for n in "qkv")
        cache = {
            "k": lax.dynamic_update_slice(cache["k"], k[:, None], (0, at, 0, 0)),
            "v": lax.dynamic_update_slice(cache["v"], v[:, None], (0, at, 0, 0)),
        }
        scores = jnp.einsum("bhk,bshk->bhs", q, cache["k"])
        share = jax.nn.softmax(jnp.where(jnp.arange(S) <= at, scores, -1e9))
        mixed = jnp.einsum("bhs,bshk->bhk", share, cache["v"])
        x = x + jnp.einsum("bhk,hkd->bd", mixed, params["out"])
        logits = pin(x @ params["head"], mesh, "data", "model")
        return cache, pin(logits, mesh, "data").argmax(-1)

    def decode(params, cache, token):
        def turn(carry, at):
            cache, token = carry
            cache, token = one(params, cache, token, at)
            return (cache, token), token

        (cache, _), tokens = lax.scan(turn, (cache, token), jnp.arange(NEW))
        return cache, tokens

    params = {
        "table": on(mesh, (V, D)),
        "out": on(mesh, (H, K, D), "model"),
        "head": on(mesh, (D, V), None, "model"),
        **{n: on(mesh, (D, H, K), None, "model") for n in "qkv"},
    }
    cache = {n: on(mesh, (B, S, H, K), "data", None, "model") for n in "kv"}
    args = params, cache, on(mesh, (B,), "data", dtype=jnp.int32)
    return decode, args, {"carry": {0: 1}, "jit": {"donate_argnums": 1}}


# In each of 10 turns, of a device's 8/4 = 2 sequences: the sums of the heads' results,
# 32 numbers, and the scores of all 64 words.
EXCHANGES = {
    ("all-reduce", ("model",), NEW): 2 * 32 * FLOAT,
    ("all-gather", ("model",), NEW): 2 * 64 * FLOAT,
}
FINDINGS = set()
