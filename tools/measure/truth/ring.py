"""Ring attention: each device keeps its part of the keys, and passes them on.

Called inside of shard_map, on the part of the sequence that a device has along the axis
`context`. In each of so many steps it has the scores of one block, which are not kept:
the backward pass goes round the ring once more (Liu et al. 2023, arXiv:2310.01889).
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax

F32 = jnp.float32


def attention(q, k, v, size):
    """[b, s, heads, hd] queries on [b, s, kv_heads, hd] keys and values, in a ring."""
    return _ring(q, k, v, size)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def _ring(q, k, v, size):
    return _forward(q, k, v, size)[0]


def _forward(q, k, v, size):
    kv = k.shape[2]
    grouped = q.reshape(*q.shape[:2], kv, -1, q.shape[3])
    start = (
        jnp.zeros(grouped.shape, F32),
        jnp.full(grouped.shape[:-1], -jnp.inf, F32),
        jnp.zeros(grouped.shape[:-1], F32),
    )

    def step(carry, turn):
        (out, most, total), k, v = carry
        scores = _scores(grouped, k, turn, size)
        now = jnp.maximum(most, jnp.max(scores, -1))
        shift = jnp.exp(most - now)
        weights = jnp.exp(scores - now[..., None])
        total = total * shift + jnp.sum(weights, -1)
        new = jnp.einsum("bqkgs,bskd->bqkgd", weights.astype(v.dtype), v)
        out = out * shift[..., None] + new.astype(F32)
        return ((out, now, total), *_passed_on((k, v), size)), None

    ((out, most, total), *_), _ = lax.scan(step, (start, k, v), jnp.arange(size))
    result = (out / total[..., None]).astype(q.dtype).reshape(q.shape)
    return result, (q, k, v, result, most + jnp.log(total))


def _backward(size, kept, change):
    q, k, v, result, logs = kept
    shape = (*q.shape[:2], k.shape[2], -1, q.shape[3])
    grouped, change = q.reshape(shape), change.reshape(shape)
    sums = jnp.sum(change.astype(F32) * result.reshape(shape).astype(F32), -1)
    scale = q.shape[3] ** -0.5

    def step(carry, turn):
        dq, k, v, dk, dv = carry
        weights = jnp.exp(_scores(grouped, k, turn, size) - logs[..., None])
        dv += jnp.einsum("bqkgs,bqkgd->bskd", weights.astype(v.dtype), change)
        dp = jnp.einsum("bqkgd,bskd->bqkgs", change, v).astype(F32)
        ds = (weights * (dp - sums[..., None]) * scale).astype(q.dtype)
        dq += jnp.einsum("bqkgs,bskd->bqkgd", ds, k)
        dk += jnp.einsum("bqkgs,bqkgd->bskd", ds, grouped)
        return (dq, *_passed_on((k, v, dk, dv), size)), None

    zeros = jnp.zeros(grouped.shape, F32), k, v, *(jnp.zeros(k.shape, F32),) * 2
    (dq, _, _, dk, dv), _ = lax.scan(step, zeros, jnp.arange(size))
    return tuple(
        part.reshape(like.shape).astype(like.dtype)
        for part, like in ((dq, q), (dk, k), (dv, v))
    )


_ring.defvjp(_forward, _backward)


def _scores(q, k, turn, size):
    """Scores of a block, in float32; later tokens than the query's are masked."""
    here = lax.axis_index("context")
    there = (here - turn) % size
    scores = jnp.einsum("bqkgd,bskd->bqkgs", q, k, preferred_element_type=F32)
    rows = here * q.shape[1] + jnp.arange(q.shape[1])
    columns = there * k.shape[1] + jnp.arange(k.shape[1])
    later = columns[None, :] > rows[:, None]
    return jnp.where(later[:, None, None, :], -1e30, scores * q.shape[-1] ** -0.5)


def _passed_on(parts, size):
    """What each device has next: that of the one before it."""
    around = [(i, (i + 1) % size) for i in range(size)]
    return tuple(lax.ppermute(part, "context", around) for part in parts)
