"""Pictures and captions that are compared with those of all devices, in a shard_map."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

from ..setting import BFLOAT16, FLOAT, grid, on, sgd

MESH = {"data": 8}
B, PICTURE, WORDS, K = 64, 40, 24, 16


def one_device(params, pictures, captions):
    a, b = pictures @ params["picture"], captions @ params["caption"]
    rows = lax.axis_index("data") * len(a) + jnp.arange(len(a))
    right = jax.nn.one_hot(rows, B)

    def own(mine, others):
        scores = mine @ lax.all_gather(others, "data", tiled=True).T
        return -(right * jax.nn.log_softmax(scores)).sum(-1).mean()

    return lax.pmean(own(a, b) + own(b, a), "data")


def build(devices):
    mesh = grid(devices, MESH)
    loss = jax.shard_map(
        one_device, mesh=mesh, in_specs=(P(), P("data"), P("data")), out_specs=P()
    )
    params = {"picture": on(mesh, (PICTURE, K)), "caption": on(mesh, (WORDS, K))}
    args = params, on(mesh, (B, PICTURE), "data"), on(mesh, (B, WORDS), "data")
    return sgd(loss), args, {"carry": 1, "jit": {"donate_argnums": 0}}


# Both features of all rows are gathered, 2 · 64·16, and their gradients scattered. The
# gradients of 40·16 + 24·16 = 1024 weights are summed, and the loss.
EXCHANGES = {
    ("all-gather", ("data",), 1): 2 * 64 * 16 * FLOAT,
    ("reduce-scatter", ("data",), 1): 2 * 64 * 16 * FLOAT,
    ("all-reduce", ("data",), 1): (1024 + 1) * FLOAT,
}
# A TPU's compiler multiplies in bfloat16, and converts before it gathers.
TPU = EXCHANGES | {("all-gather", ("data",), 1): 2 * 64 * 16 * BFLOAT16}
FINDINGS = set()
