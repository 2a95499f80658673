"""The programs that `inference_memory` is held against: do they generate rightly?

Prompts that are read into the cache and tokens that are decoded one by one leave the
cache and the next token that a longer prompt leaves.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spmd_helpers._training.model import Transformer
from tools.measure.truth import served, serving

pytestmark = pytest.mark.long("runs prefill and decode of small models")

PROMPT, MORE, BATCH, SEQ = 10, 3, 4, 16
SMALL = Transformer(
    *(4, 32, 4),
    **{"kv_heads": 2, "d_ff": 48, "vocab": 62, "seq": SEQ, "gated": True},
    **{"tied": False, "biases": False, "positions": "rotary", "norm": "rms"},
)
LATENT = {
    **{"kv_lora_rank": 12, "q_lora_rank": 20, "qk_nope_head_dim": 8},
    **{"qk_rope_head_dim": 4, "v_head_dim": 6, "kv_heads": None, "head_dim": None},
}
MODELS = {
    "grouped": SMALL,
    "gpt": Transformer(3, 32, 4, vocab=64, seq=SEQ),
    "windows": replace(
        SMALL, window=4, global_every=2, qk_norm=True, post_norms=True, tied=True
    ),
    "latent": replace(SMALL, **LATENT),
}
HOW = {"grouped in int8": {"param_dtype": "int8"}, "grouped pages": {"page_size": 4}}


def program(name):
    how = {"compute_dtype": "float32", "param_dtype": "float32"} | HOW.get(name, {})
    server = served.Served(
        name, MODELS[name.split()[0]], BATCH, SEQ, "", 2, 2, attention="plain", **how
    )
    return replace(server, prefill_batch=BATCH)


def start(one, mesh):
    """Random weights, and an empty cache."""
    rng = np.random.default_rng(0)

    def some(shape):
        if shape.dtype == jnp.int8:
            values = rng.integers(-127, 128, shape.shape)
        else:
            values = rng.normal(size=shape.shape) / 8
        return jax.device_put(jnp.asarray(values, shape.dtype), shape.sharding)

    def empty(shape):
        return jax.device_put(jnp.zeros(shape.shape, shape.dtype), shape.sharding)

    weights = jax.tree.map(some, serving.weight_shapes(one, mesh))
    weights = {n: w / 127 if "scale" in n else w for n, w in weights.items()}
    return weights, jax.tree.map(empty, serving.cache_shapes(one, mesh))


@pytest.mark.parametrize("name", [*MODELS, *HOW])
def test_tokens_that_are_decoded_are_as_if_they_were_read(name):
    one = program(name)
    kind = jax.sharding.AxisType.Auto
    mesh = jax.make_mesh((2, 2), ("data", "model"), (kind, kind))
    server = serving.Server(one, mesh)
    weights, empty = start(one, mesh)
    tokens = np.random.default_rng(1).integers(0, 60, (BATCH, PROMPT + MORE))
    tokens = jax.device_put(tokens, jax.NamedSharding(mesh, jax.P("data")))
    zero = jnp.int32(0)
    read = jax.jit(server.prefill)
    want, after = read(weights, empty, tokens, zero)
    cache, _ = read(weights, empty, tokens[:, :PROMPT], zero)
    table = ()
    if one.page_size:
        pages = SEQ // one.page_size
        own = np.arange(BATCH // 2 * pages, dtype=np.int32).reshape(-1, pages)
        table = (jnp.concatenate([own, own]),)
    decode = jax.jit(server.decode)
    for at in range(PROMPT, PROMPT + MORE):
        cache, following = decode(weights, cache, tokens[:, at], jnp.int32(at), *table)
    np.testing.assert_array_equal(following, after)
    for key, value in cache.items():
        np.testing.assert_allclose(value, want[key], rtol=1e-4, atol=1e-5)
    assert any(np.any(np.asarray(value)) for value in cache.values())
