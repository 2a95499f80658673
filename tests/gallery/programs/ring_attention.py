"""Attention over a sequence that is sharded: keys and values go around a ring."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

from ..setting import BFLOAT16, FLOAT, grid, on

MESH = {"seq": 8}
B, S, H, K = 2, 64, 4, 8
RING = [(n, (n + 1) % 8) for n in range(8)]


def one_device(q, k, v):
    def turn(carry, _):
        k, v, top, total, out = carry
        scores = jnp.einsum("bqhk,bshk->bhqs", q, k) / K**0.5
        new = jnp.maximum(top, scores.max(-1))
        weight, old = jnp.exp(scores - new[..., None]), jnp.exp(top - new)
        total = total * old + weight.sum(-1)
        out = out * old[..., None] + jnp.einsum("bhqs,bshk->bhqk", weight, v)
        k, v = lax.ppermute((k, v), "seq", RING)
        return (k, v, new, total, out), None

    rows = jnp.moveaxis(q, 1, 2)[..., 0] * 0
    start = k, v, rows - 1e9, rows, jnp.moveaxis(q, 1, 2) * 0
    (*_, total, out), _ = lax.scan(turn, start, length=8)
    return out / total[..., None]


def build(devices):
    mesh = grid(devices, MESH)
    attend = jax.shard_map(
        one_device,
        mesh=mesh,
        in_specs=P(None, "seq"),
        out_specs=P(None, None, "seq"),
    )

    def loss(qkv):
        return (attend(*qkv) ** 2).mean()

    qkv = (on(mesh, (B, S, H, K), None, "seq"),) * 3
    return jax.value_and_grad(loss), (qkv,)


# A device has 2·8·4·8 = 512 keys and as many values. Both are sent on in each of the 8
# turns, and backward, in as many, the gradients of both. And the loss.
EXCHANGES = {
    ("collective-permute", ("seq",), 8): 4 * 512 * FLOAT,
    ("all-reduce", ("seq",), 1): 1 * FLOAT,
}
# A TPU's compiler multiplies in bfloat16, and converts what is sent forward.
TPU = EXCHANGES | {("collective-permute", ("seq",), 8): 2 * 512 * (FLOAT + BFLOAT16)}
FINDINGS = set()
