"""`Plan.code`: the lines run as they are, and equal one device."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import spmd_helpers as spmd

MODELS = spmd.MODELS
FLOAT32 = {"compute_dtype": "float32"}
# model, mesh, zero, policy
LLAMA = ("llama-3-8b", {"data": 2, "fsdp": 2, "model": 2}, 1, "nothing_saveable")
STACK = ("mlp", {"data": 2, "model": 4}, 1, "dots_with_no_batch_dims_saveable")
MORE = [
    LLAMA,
    ("llama-3-8b", {"fsdp": 8}, 0, "dots_with_no_batch_dims_saveable"),
    ("llama-3-8b", {"data": 2, "context": 4}, 2, "nothing_saveable"),
    ("llama-3-8b", {"fsdp": 2, "context": 2, "model": 2}, 0, "everything_saveable"),
    ("llama-3.2-1b", {"fsdp": 4, "model": 2}, 0, "nothing_saveable"),
    ("gpt3-xl", {"data": 8}, 2, "everything_saveable"),
    ("gpt3-xl", {"data": 2, "fsdp": 2, "model": 2}, 0, "nothing_saveable"),
    ("mlp", {"data": 2, "fsdp": 2, "model": 2}, 2, "dots_with_no_batch_dims_saveable"),
    ("mlp", {"model": 8}, 0, "everything_saveable"),
]


def chosen(name, mesh, zero, policy):
    """A plan, and the strategy of it."""
    model = spmd.MLP(4, 1024, 4096) if name == "mlp" else MODELS[name]
    more = {} if name == "mlp" else {"seq": 2048}
    plan = spmd.plan_mesh(model, "h100:1x8", batch=64, **more, **FLOAT32)
    (one,) = (
        one
        for one in plan.strategies
        if one.mesh == mesh and one.zero == zero and one.recompute == policy
    )
    return plan, one


def run(text):
    """The names that the lines leave; what they print is not shown."""
    names = {"print": lambda *words: None}
    exec(compile(text, "plan.py", "exec"), names)
    return names


def on_one_device(text):
    """The same lines on one device, of the same model and batch."""
    mesh = re.search(r"jax\.make_mesh\(\n    \(.*?\), (\(.*?\)),", text)
    ones = (1,) * len(eval(mesh[1]))
    changed = re.sub(
        r"(jax\.make_mesh\(\n    )\(.*?\), (\(.*?\)), ",
        rf"\g<1>{ones}, \g<2>, devices=jax.devices()[:1], ",
        text,
    )
    assert changed != text
    return run(changed)


def check(case):
    plan, one = chosen(*case)
    text = plan.code(one)
    assert "devices=" not in text
    several, single = run(text), on_one_device(text)
    assert several["mesh"].size == 8
    assert dict(several["mesh"].shape) == one.mesh
    np.testing.assert_allclose(several["loss"], single["loss"], rtol=1e-5)
    # Adam's first moment is a tenth of the gradient. Its step has the gradient's sign,
    # also where that is noise: up to the rate of 1e-3 for almost nothing.
    # (A bias of keys has no gradient but noise, of 1e-9.)
    for x, y in zip(
        *map(jax.tree.leaves, (several["state"], single["state"])), strict=True
    ):
        most = 1e-4 * float(jnp.max(jnp.abs(y)))
        np.testing.assert_allclose(x, y, rtol=0, atol=max(most, 1e-9))
    both = several["params"], single["params"]
    for params in both:
        params.get("layers", {}).pop("b_k", None)
    for x, y in zip(*map(jax.tree.leaves, both), strict=True):
        np.testing.assert_allclose(np.median(np.abs(x - np.asarray(y))), 0, atol=1e-6)
    state = jax.tree.leaves(several["state"])
    params = jax.tree.leaves(several["params"])
    here = sum(x.addressable_shards[0].data.nbytes for x in state)
    whole = sum(x.nbytes for x in state)
    shards = one.step.mesh["fsdp"] * one.step.mesh["model"]
    shards *= one.step.mesh["data"] if one.zero else 1
    assert here <= 1.6 * whole / shards  # norms are cut less
    assert all(bool(jnp.isfinite(x).all()) for x in params)


def test_the_lines_run_and_equal_one_device():
    check(STACK)


@pytest.mark.long("plans run as code")
@pytest.mark.parametrize("case", MORE, ids=lambda case: f"{case[0]} {case[1]}")
def test_more_lines_run_and_equal_one_device(case):
    check(case)


def test_the_policy_and_the_mesh_stand_in_the_lines():
    plan, one = chosen(*LLAMA)
    text = plan.code(one)
    assert "policy=jax.checkpoint_policies.nothing_saveable" in text
    assert "(2, 2, 2), ('data', 'fsdp', 'model')" in text
    assert "ZeRO-1" in text
    assert all(len(line) <= 100 for line in text.splitlines())
    every = chosen("mlp", {"model": 8}, 0, "everything_saveable")
    assert "checkpoint" not in every[0].code(every[1])


def test_a_large_plan_is_rehearsed_on_eight():
    plan = spmd.plan_mesh(MODELS["llama-3-70b"], "h100:8x8", batch=64, seq=4096)
    text = plan.code(devices=8)
    sizes = re.search(r"make_mesh\(\n    (\(.*?\)),", text)[1]
    assert np.prod(eval(sizes)) == 8
    assert (
        np.prod(eval(re.search(r"make_mesh\(\n    (\(.*?\)),", plan.code())[1])) == 64
    )


@pytest.mark.parametrize(
    ("name", "more", "words"),
    [
        ("gemma-3-4b", {}, "has window=1024, and code.. has reference models"),
        ("qwen3-8b", {}, "has qk_norm=True"),
        ("llama-3-8b", {"master_weights": True}, "master_weights=True is not in"),
        ("llama-3-8b", {"optimizer": "adafactor"}, "optimizer='adafactor' keeps"),
    ],
)
def test_what_has_no_reference_is_refused_in_a_sentence(name, more, words):
    plan = spmd.plan_mesh(MODELS[name], "h100:8x8", batch=64, seq=2048, **more)
    with pytest.raises(spmd.NotUnderstood, match=words) as raised:
        plan.code()
    assert "\n" not in str(raised.value)


def test_no_number_of_devices():
    plan, one = chosen(*LLAMA)
    with pytest.raises(spmd.NotUnderstood, match="devices=0"):
        plan.code(one, devices=0)
