"""Four pmap programs and their ports, by what the cheatsheet says.

Each trains a few steps three ways: as it was, with its old body under `jit` of `vmap`,
and ported. The losses are compared, and what the cheatsheet warns of is shown.
"""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import spmd_helpers as spmd

N = 8
MESH = jax.make_mesh((N,), ("data",), (AxisType.Auto,))
WHOLE, SPLIT = NamedSharding(MESH, P()), NamedSharding(MESH, P("data"))
BATCH = {"axis_name": "batch"}
CLOSE = {"rtol": 2e-5, "atol": 1e-6}
THREE_WAYS = pytest.mark.long("ports, compiled three ways")


def drawn(*shape):
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def grouped(tree):
    """Rows in a group for each device, as pmap has them."""
    return jax.tree.map(lambda v: v.reshape(N, -1, *v.shape[1:]), tree)


def losses_of(step, state, batch, steps=3):
    losses = []
    for _ in range(steps):
        state, loss = step(state, batch)
        losses.append(float(np.asarray(loss).reshape(-1)[0]))
    return losses


def replicas(tree):
    return jax.tree.map(lambda v: np.stack([np.asarray(v)] * N), tree)


# Images: BatchNorm that is synchronized, and statistics that are.


class Classifier(nn.Module):
    """A layer, BatchNorm over the batch, a layer."""

    axis_name: str | None = None

    @nn.compact
    def __call__(self, x):
        x = nn.Dense(16)(x)
        x = nn.BatchNorm(use_running_average=False, axis_name=self.axis_name)(x)
        return nn.Dense(4)(nn.relu(x))


def image_step(model, mean, state, batch):
    params, stats = state
    x, y = batch

    def loss_fn(params):
        logits, new = model.apply(
            {"params": params, "batch_stats": stats}, x, mutable=["batch_stats"]
        )
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, y)
        return losses.mean(), new["batch_stats"]

    (loss, stats), grads = jax.value_and_grad(loss_fn, has_aux=True)(params)
    loss, grads = mean((loss, grads))
    return (jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), stats), loss


@THREE_WAYS
def test_images():
    x, y = drawn(32, 6), np.arange(32) % 4
    variables = Classifier().init(jax.random.key(0), x)
    state = (variables["params"], variables["batch_stats"])
    mean = partial(lax.pmean, axis_name="batch")
    body = partial(image_step, Classifier("batch"), mean)
    old = losses_of(jax.pmap(body, **BATCH), replicas(state), grouped((x, y)))
    bridge = jax.jit(jax.vmap(body, **BATCH))
    placed = jax.device_put((replicas(state), grouped((x, y))), SPLIT)
    np.testing.assert_allclose(losses_of(bridge, *placed), old, **CLOSE)
    step = jax.jit(partial(image_step, Classifier(), lambda tree: tree))
    ported = jax.device_put(state, WHOLE), jax.device_put((x, y), SPLIT)
    np.testing.assert_allclose(losses_of(step, *ported), old, rtol=1e-4)

    # The pmapped mean of the statistics, left in, would average 16 channels.
    stats = {"scale": jax.device_put(np.arange(8.0), WHOLE)}
    sync = jax.pmap(lambda v: lax.pmean(v, "x"), "x")
    with pytest.raises(ValueError, match="Sharding passed to jit") as raised:
        sync(stats)
    said = spmd.explain(raised.value)
    assert said.code == "pmap-of-a-placed-array"
    assert "P('x')" not in said.instead


# Scores: an average of the parameters, a key for each device, donation.


def score_step(mean, own_key, state, x):
    key, now = jax.random.split(state["key"])
    noise = jax.random.normal(own_key(now), x.shape)

    def loss_fn(w):
        return (((x + noise) @ w + noise) ** 2).mean()

    loss, grads = mean(jax.value_and_grad(loss_fn)(state["params"]))
    params = state["params"] - 0.1 * grads
    ema = 0.9 * state["ema"] + 0.1 * params
    return {"params": params, "ema": ema, "key": key}, loss


@THREE_WAYS
def test_scores():
    x, w = drawn(16, 6), jnp.zeros((6, 6))
    state = {"params": w, "ema": w, "key": jax.random.PRNGKey(0)}
    mean = partial(lax.pmean, axis_name="batch")
    body = partial(
        score_step, mean, lambda k: jax.random.fold_in(k, lax.axis_index("batch"))
    )
    old = losses_of(jax.pmap(body, **BATCH), replicas(state), grouped(x))
    bridge = jax.jit(jax.vmap(body, **BATCH))
    placed = jax.device_put((replicas(state), grouped(x)), SPLIT)
    np.testing.assert_allclose(losses_of(bridge, *placed), old, rtol=2e-7 * 10)

    # One key for the full batch draws other noise, of the same kind; one buffer in two
    # donated leaves needs a copy.
    state["ema"] = jnp.copy(state["ema"])
    step = jax.jit(
        partial(score_step, lambda tree: tree, lambda k: k), donate_argnums=0
    )
    placed = jax.device_put(state, WHOLE)
    first, second = (
        leaf.addressable_shards[0].data.unsafe_buffer_pointer()
        for leaf in (placed["params"], placed["ema"])
    )
    assert first != second
    assert losses_of(step, placed, jax.device_put(x, SPLIT))[0] < 4


# Translation: a loss that is weighted, per device.


def weighted_loss(w, x, m):
    return (((x @ w) ** 2).mean(-1) * m).sum() / m.sum()


def test_translation():
    x, m, w = drawn(16, 6), np.arange(1.0, 17, dtype=np.float32), jnp.ones((6, 4))

    def body(w, batch):
        grads = jax.grad(weighted_loss)(w, *batch)
        return w - 0.1 * lax.pmean(grads, "batch"), weighted_loss(w, *batch)

    old = jax.pmap(body, in_axes=(None, 0), out_axes=(None, 0), **BATCH)
    new = jax.jit(jax.vmap(body, in_axes=(None, 0), out_axes=(None, 0), **BATCH))
    expected, _ = old(w, grouped((x, m)))
    np.testing.assert_allclose(new(w, grouped((x, m)))[0], expected, **CLOSE)

    @jax.jit
    def ported(w, x, m):
        each = jax.vmap(jax.grad(weighted_loss), (None, 0, 0))
        return w - 0.1 * each(w, *grouped((x, m))).mean(0)

    placed = jax.device_put((x, m), SPLIT)
    np.testing.assert_allclose(ported(w, *placed), expected, **CLOSE)
    deleted = jax.jit(lambda w, x, m: w - 0.1 * jax.grad(weighted_loss)(w, x, m))
    assert np.abs(deleted(w, *placed) - expected).max() > 0.01


@pytest.mark.parametrize(
    ("loss", "factor"),
    [
        (lambda w, x: ((x @ w) ** 2).mean(), 1),
        (lambda w, x: ((x @ w) ** 2).sum(), N),
    ],
    ids=["mean", "sum"],
)
def test_what_a_deleted_pmean_multiplies(loss, factor):
    x, w = drawn(16, 6), jnp.ones((6, 4))
    body = lambda w, x: lax.pmean(jax.grad(loss)(w, x), "batch")  # noqa: E731
    old = jax.pmap(body, in_axes=(None, 0), **BATCH)(w, grouped(x))[0]
    new = jax.jit(jax.grad(loss))(w, jax.device_put(x, SPLIT))
    np.testing.assert_allclose(new, factor * np.asarray(old), rtol=1e-4)


# Policies: minibatches of a device's own rows, advantages normalized over them.


def policy_epoch(mean, w, key, rows):
    x, advantages = rows
    advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    order = jax.random.permutation(key, len(x)).reshape(2, -1)

    def minibatch(w, chosen):
        loss_fn = lambda w: ((x[chosen] @ w)[:, 0] * advantages[chosen]).mean()  # noqa: E731
        return w - 0.1 * mean(jax.grad(loss_fn)(w)), None

    return lax.scan(minibatch, w, order)[0]


@THREE_WAYS
def test_policies():
    rows = drawn(64, 6), drawn(64) * np.repeat([1, 5], 32).astype(np.float32)
    w, keys = jnp.ones((6, 1)), jax.random.split(jax.random.PRNGKey(0), N)
    body = partial(policy_epoch, partial(lax.pmean, axis_name="batch"))
    axes = {"in_axes": (None, 0, 0), "out_axes": None, **BATCH}
    old = jax.pmap(body, **axes)(w, keys, grouped(rows))
    bridge = jax.jit(jax.vmap(body, **axes))
    placed = jax.device_put((keys, grouped(rows)), SPLIT)
    np.testing.assert_allclose(bridge(w, *placed), old, **CLOSE)
    report = spmd.xray(bridge, jax.device_put(w, WHOLE), *placed)
    assert {c.kind for c in report.collectives} == {"all-reduce"}
    assert all(c.result_bytes <= 2 * w.nbytes for c in report.collectives)

    ported = jax.jit(partial(policy_epoch, lambda tree: tree))
    whole_batch = ported(w, keys[0], jax.device_put(rows, SPLIT))
    assert np.abs(whole_batch - old).max() > 0.01  # another normalization, other draws
