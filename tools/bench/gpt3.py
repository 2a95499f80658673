"""A train step of GPT-3's shape for 64 chips: what the big fixture was made of.

175 billion parameters in float32 with Adam's two moments, all cut over data × model;
compute in bfloat16; 96 layers in a scan, each recomputed in the backward pass.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

LAYERS, D, HEADS, F, VOCAB, SEQ, BATCH = 96, 12288, 96, 4 * 12288, 51200, 2048, 64
MESH = {"data": 16, "model": 4}
TOPOLOGY = "v5p:4x4x4"

# FSDP over data; the heads, the hidden features and the vocabulary over model.
SHAPES: dict[str, tuple[tuple[int, ...], P]] = {
    "embedding": ((VOCAB, D), P("model", "data")),
    "positions": ((SEQ, D), P(None, "data")),
    "qkv": ((LAYERS, D, 3, HEADS, D // HEADS), P(None, "data", None, "model")),
    "out": ((LAYERS, HEADS, D // HEADS, D), P(None, "model", None, "data")),
    "up": ((LAYERS, D, F), P(None, "data", "model")),
    "down": ((LAYERS, F, D), P(None, "model", "data")),
    "norms": ((LAYERS, 2, D), P(None, None, "data")),
    "norm": ((D,), P("data")),
}


def step_and_arguments(mesh: Any) -> tuple[Any, tuple, dict]:
    """The train step, its abstract arguments, and the options for `jax.jit`."""

    def pin(x: Any, *spec: Any) -> Any:
        return lax.with_sharding_constraint(x, NamedSharding(mesh, P(*spec)))

    def norm(x: Any, scale: Any) -> Any:
        x = x.astype(jnp.float32)
        x = (x - x.mean(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)
        return (x * scale).astype(jnp.bfloat16)

    @jax.checkpoint
    def layer(h: Any, w: dict) -> tuple[Any, None]:
        w = {k: v if k == "norms" else v.astype(jnp.bfloat16) for k, v in w.items()}
        x = norm(h, w["norms"][0])
        q, k, v = pin(jnp.einsum("bsd,dchk->cbhsk", x, w["qkv"]), None, "data", "model")
        scores = jnp.einsum("bhsk,bhtk->bhst", q, k).astype(jnp.float32)
        scores = jnp.where(jnp.tri(SEQ, dtype=bool), scores * q.shape[-1] ** -0.5, -1e9)
        mixed = jax.nn.softmax(scores).astype(jnp.bfloat16)
        mixed = pin(jnp.einsum("bhst,bhtk->bhsk", mixed, v), "data", "model")
        h = pin(h + jnp.einsum("bhsk,hkd->bsd", mixed, w["out"]), "data")
        x = norm(h, w["norms"][1])
        x = pin(jax.nn.gelu(x @ w["up"]), "data", None, "model")
        return pin(h + x @ w["down"], "data"), None

    def loss(w: dict, ids: Any) -> Any:
        stacked = {k: w[k] for k in ("qkv", "out", "up", "down", "norms")}
        h = w["embedding"].astype(jnp.bfloat16)[ids] + w["positions"]
        h, _ = lax.scan(layer, pin(h.astype(jnp.bfloat16), "data"), stacked)
        h = norm(h, w["norm"])
        scores = h @ w["embedding"].astype(jnp.bfloat16).T
        scores = pin(scores, "data", None, "model").astype(jnp.float32)
        log_p = jax.nn.log_softmax(scores[:, :-1])
        return -jnp.take_along_axis(log_p, ids[:, 1:, None], -1).mean()

    def step(w: dict, m: dict, v: dict, ids: Any) -> tuple[dict, dict, dict, Any]:
        value, grads = jax.value_and_grad(loss)(w, ids)
        m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, grads)
        v = jax.tree.map(lambda v, g: 0.95 * v + 0.05 * g * g, v, grads)
        w = jax.tree.map(lambda w, m, v: w - 1e-4 * m * lax.rsqrt(v + 1e-8), w, m, v)
        return w, m, v, value

    def abstract(shape: tuple[int, ...], spec: P, dtype: Any = jnp.float32) -> Any:
        sharding = NamedSharding(mesh, spec)
        return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)

    w = {name: abstract(*row) for name, row in SHAPES.items()}
    ids = abstract((BATCH, SEQ), P("data"), jnp.int32)
    placed = jax.tree.map(lambda leaf: leaf.sharding, w)
    replicated = NamedSharding(mesh, P())
    options = {
        "donate_argnums": (0, 1, 2),
        "out_shardings": (placed, placed, placed, replicated),
    }
    return step, (w, w, w, ids), options
