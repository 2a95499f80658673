"""`Plan.code`: its attention is JAX's, and its types are the plan's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import spmd_helpers as spmd
from tests.plan.test_code import FEW, chosen, run


def on_one_head(q, k, v):
    """JAX's attention, a head of keys for each of the queries."""
    k, v = (jnp.repeat(x, q.shape[2] // x.shape[2], 2) for x in (k, v))
    return jax.nn.dot_product_attention(q, k, v, is_causal=True)


def with_gradients(attention):
    """The attention, and the gradient of the sum of its squares: one program."""

    def squares(*heads):
        output = attention(*heads)
        return jnp.sum(output**2), output

    return jax.jit(jax.grad(squares, (0, 1, 2), has_aux=True))


@pytest.mark.long("plans run as code")
@pytest.mark.parametrize(
    ("kv", "mesh", "heads", "dtype"),
    [
        (2, {"context": 2, "model": 4}, (8, 2), "float32"),
        (3, {"context": 2, "model": 6}, (12, 3), "float32"),  # rehearsed: 3 over 2
        (1, {"context": 4, "model": 2}, (4, 1), "bfloat16"),
        # Cut: each device has its own.
        (2, {"context": 4, "model": 2}, (24, 2), "float32"),
        (2, {"data": 2, "model": 4}, (8, 2), "float32"),  # no ring
        (2, {"data": 2, "model": 4}, (8, 2), "bfloat16"),  # cuDNN's on a GPU
    ],
)
def test_attention_is_jaxs_for_every_number_of_heads(kv, mesh, heads, dtype):
    chips = "h100:2x6" if kv == 3 else "h100:1x8"
    plan = spmd.plan_mesh(FEW[kv], chips, batch=64, seq=2048, compute_dtype=dtype)
    one = next(one for one in plan.strategies if one.mesh == mesh)
    names = run(plan.code(one, devices=8).split("\noptimizer =")[0])
    assert names["mesh"].size == 8
    assert (names["HEADS"], names["KV"]) == heads
    # As many as the small model has, and the real one's.
    shapes = [(names["BATCH"], names["SEQ"], h, names["HEAD_DIM"]) for h in heads]
    rng = np.random.default_rng(0)
    q, k, v = (rng.normal(size=shapes[n > 0]).astype(np.float32) for n in range(3))
    slopes, output = with_gradients(names["attention"])(q, k, v)
    wanted, expected = with_gradients(on_one_head)(q, k, v)
    np.testing.assert_allclose(output, expected, atol=1e-5)
    for x, y in zip(slopes, wanted, strict=True):
        np.testing.assert_allclose(x, y, atol=1e-4)


@pytest.mark.long("plans run as code")
# On CPUs JAX has no attention in float16.
@pytest.mark.parametrize(
    ("param", "attention"), [("float32", "plain"), ("bfloat16", "flash")]
)
def test_the_lines_run_in_each_type(param, attention):
    more = {"compute_dtype": "bfloat16", "param_dtype": param, "attention": attention}
    plan, one = chosen(FEW[2], {"data": 2, "model": 4}, 1, "nothing_saveable", **more)
    names = run(plan.code(one))
    assert names["params"]["layers"]["q"].dtype == param
    assert jnp.isfinite(names["loss"])
