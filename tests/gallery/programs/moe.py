"""A mixture of experts, one on each device, that tokens are sent to and from."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

from ..setting import BFLOAT16, FLOAT, grid, on, sgd

MESH = {"expert": 8}
T, D, F, E, C = 128, 24, 48, 8, 4  # tokens, experts, places of a device in each


def one_device(params, tokens):
    x = tokens @ params["in"]
    share = jax.nn.softmax(x @ params["router"])
    chosen = share.argmax(-1)
    to = jax.nn.one_hot(chosen, E)
    place = ((jnp.cumsum(to, 0) - 1) * to).sum(-1).astype(int)
    sent = to[..., None] * jax.nn.one_hot(place, C)[:, None]  # [T/8, E, C]
    there = lax.all_to_all(
        jnp.einsum("tec,td->ecd", sent, x), "expert", 0, 1, tiled=True
    )
    up, down = params["up"][0], params["down"][0]
    done = jax.nn.relu(there[0] @ up) @ down
    back = lax.all_to_all(done[None], "expert", 1, 0, tiled=True)
    best = jnp.take_along_axis(share, chosen[:, None], 1)
    y = x + best * jnp.einsum("tec,ecd->td", sent, back)
    return lax.pmean((y**2).mean(), "expert")


def build(devices):
    mesh = grid(devices, MESH)
    specs = {"in": P(), "router": P(), "up": P("expert"), "down": P("expert")}
    loss = jax.shard_map(
        one_device, mesh=mesh, in_specs=(specs, P("expert")), out_specs=P()
    )
    sizes = {"in": (D, D), "router": (D, E), "up": (E, D, F), "down": (E, F, D)}
    params = {name: on(mesh, sizes[name], *specs[name]) for name in sizes}
    args = params, on(mesh, (T, D), "expert")
    return sgd(loss), args, {"carry": 1, "jit": {"donate_argnums": 0}}


# A device sends 8·4 places of 24 numbers to the experts and gets as many back; the
# gradients go the same two ways. Gradients of what is replicated are summed:
# 24·24 = 576 and the router's 24·8 = 192; and the loss.
EXCHANGES = {
    ("all-to-all", ("expert",), 1): 4 * 8 * 4 * 24 * FLOAT,
    ("all-reduce", ("expert",), 1): (576 + 192 + 1) * FLOAT,
}
# A TPU's compiler multiplies in bfloat16, and converts what is sent to a product.
TPU = EXCHANGES | {("all-to-all", ("expert",), 1): 2 * 8 * 4 * 24 * (FLOAT + BFLOAT16)}
FINDINGS = set()
