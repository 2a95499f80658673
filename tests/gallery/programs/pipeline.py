"""A pipeline of four stages that hands microbatches on, two replicas of it."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

from ..setting import BFLOAT16, FLOAT, grid, on, sgd

MESH = {"data": 2, "stage": 4}
STAGES, MICRO, B, D = 4, 8, 6, 32
TURNS = MICRO + STAGES - 1
NEXT = [(n, n + 1) for n in range(STAGES - 1)]


def one_device(w, batches):
    stage, w = lax.axis_index("stage"), lax.pcast(w[0], "data", to="varying")

    def turn(got, at):
        own = lax.dynamic_index_in_dim(batches, at, 0, keepdims=False)
        x = jnp.where(stage == 0, own, got)
        y = jnp.tanh(x @ w)
        value = jnp.where((stage == STAGES - 1) & (at >= STAGES - 1), y**2, 0).mean()
        return lax.ppermute(y, "stage", NEXT), value

    start = lax.pcast(batches[0] * 0, "stage", to="varying")
    _, values = lax.scan(turn, start, jnp.arange(TURNS))
    return lax.psum(lax.pmean(values.sum(), "data"), "stage") / MICRO


def build(devices):
    mesh = grid(devices, MESH)
    loss = jax.shard_map(
        one_device, mesh=mesh, in_specs=(P("stage"), P(None, "data")), out_specs=P()
    )
    args = on(mesh, (STAGES, D, D), "stage"), on(mesh, (MICRO, 2 * B, D), None, "data")
    return sgd(loss), args, {"carry": 1, "jit": {"donate_argnums": 0}}


# 8 microbatches through 4 stages take 11 turns. In each a device hands its 6 rows of 32
# on, and backward their gradients. After that the gradients of its 32·32 weights are
# averaged over data. The loss is averaged over data and summed over the stages.
EXCHANGES = {
    ("collective-permute", ("stage",), TURNS): 2 * 6 * 32 * FLOAT,
    ("all-reduce", ("data",), 1): (32 * 32 + 1) * FLOAT,
    ("all-reduce", ("stage",), 1): 1 * FLOAT,
}
# A TPU's compiler multiplies in bfloat16, and converts what is sent forward.
TPU = EXCHANGES | {
    ("collective-permute", ("stage",), TURNS): 6 * 32 * (FLOAT + BFLOAT16)
}
FINDINGS = set()
