"""A mixture of experts, each with room for so many rows.

Each device chooses the experts of its own tokens, puts the rows of each expert beside
each other, and sends them to the devices that have these experts; the results come back
the same way. An expert has the same room on each device, so that shapes are fixed: a
row that finds no place is dropped (Lepikhin et al. 2020, arXiv:2006.16668).
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

F32 = jnp.float32


def mixture(net, x, router, experts, rows):
    """[b, s, d] tokens through the experts that the router chooses for them.

    Args:
        net: the model on its mesh.
        x: the tokens.
        router: its matrix [d, experts], and its biases or None.
        experts: matrices [experts, rows, columns] by name, and their biases.
        rows: how many rows an expert has room for, of one device's tokens.
    """
    over = "expert" if net.program.expert > 1 else None
    cuts = {
        **{"up": P(over, None, "model"), "gate": P(over, None, "model")},
        **{"down": P(over, "model"), "up_bias": P(over, "model")},
        **{"gate_bias": P(over, "model"), "down_bias": P(over)},
    }
    stream = P(net.rows, net.sequence)
    run = functools.partial(_local, net.model, rows, over)
    return jax.shard_map(
        run,
        mesh=net.mesh,
        in_specs=(stream, P(), {name: cuts[name] for name in experts}),
        out_specs=stream,
        check_vma=False,
    )(x, router, experts)


def _local(model, room, over, x, router, experts):
    """The same on one device: all its tokens, its part of the experts."""
    top, each = model.experts_per_token, model.experts
    tokens = x.reshape(-1, x.shape[-1])
    matrix, bias = router
    scores = jnp.dot(tokens, matrix, preferred_element_type=F32)
    if bias is not None:
        scores = scores + bias.astype(F32)
    best, chosen = lax.top_k(scores, top)
    share = jax.nn.softmax(best, -1).astype(x.dtype)

    expert = chosen.reshape(-1)
    order = jnp.argsort(expert)
    counts = jnp.bincount(expert, length=each)
    starts = jnp.cumsum(counts) - counts
    places = jnp.arange(room)
    taken = order[jnp.minimum(starts[:, None] + places, len(order) - 1)]
    taken = jnp.where(places < counts[:, None], taken // top, len(tokens))
    rank = jnp.zeros_like(order).at[order].set(jnp.arange(len(order)))
    rank = rank - starts[expert]
    place = jnp.where(rank < room, expert * room + rank, each * room)

    rows = tokens.at[taken].get(mode="fill", fill_value=0)
    if over:
        rows = lax.all_to_all(rows, over, 0, 1, tiled=True)
    rows = _experts(model, rows, experts)
    if over:
        rows = lax.all_to_all(rows, over, 1, 0, tiled=True)
    rows = rows.reshape(each * room, -1).at[place].get(mode="fill", fill_value=0)
    mixed = jnp.einsum("tkd,tk->td", rows.reshape(*chosen.shape, -1), share)
    return lax.psum(mixed, "model").reshape(x.shape)


def _experts(model, rows, weights):
    def times(rows, name, where=True):
        out = jnp.einsum("erd,edf->erf", rows, weights[name])
        if f"{name}_bias" in weights:
            bias = jnp.where(where, weights[f"{name}_bias"], 0)
            out = out + bias[:, None]
        return out

    up = times(rows, "up")
    up = jax.nn.silu(times(rows, "gate")) * up if model.gated else jax.nn.gelu(up)
    return times(up, "down", lax.axis_index("model") == 0)
