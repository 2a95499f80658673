"""`Plan.code`: the lines run as they are, and equal one device."""

import re

import jax
import numpy as np
import pytest

from tests.plan.test_code import FEW, chosen, run

# model, mesh, zero, policy: each axis alone and with others, each ZeRO, each policy,
# each family, tied and untied, and keys that `model` does not divide.
STACK = ("mlp", {"data": 2, "model": 4}, 1, "dots_with_no_batch_dims_saveable")
MORE = [
    ("llama-3-8b", {"data": 2, "context": 4}, 2, "nothing_saveable"),
    ("llama-3-8b", {"fsdp": 2, "context": 2, "model": 2}, 0, "everything_saveable"),
    ("llama-3.2-1b", {"fsdp": 4, "model": 2}, 0, "dots_with_no_batch_dims_saveable"),
    ("gpt3-xl", {"data": 8}, 2, "everything_saveable"),
    ("gpt3-xl", {"data": 2, "fsdp": 2, "model": 2}, 1, "nothing_saveable"),
    ("mlp", {"data": 2, "fsdp": 2, "model": 2}, 2, "dots_with_no_batch_dims_saveable"),
    ("mlp", {"model": 8}, 0, "everything_saveable"),
    (FEW[2], {"context": 2, "model": 4}, 0, "nothing_saveable"),
    (FEW[2], {"data": 2, "model": 4}, 0, "nothing_saveable"),
]
MIXTURES = [
    ({"data": 2, "fsdp": 2, "expert": 2}, 1, "nothing_saveable"),
    ({"expert": 4, "model": 2}, 0, "everything_saveable"),
    ({"fsdp": 2, "expert": 2, "context": 2}, 0, "nothing_saveable"),
]


def first_twice(cases):
    """Parameters, of which the first alone is run on the second JAX too."""
    rest = (pytest.param(case, marks=pytest.mark.once) for case in cases[1:])
    return [cases[0], *rest]


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
    for x, y in pairs(several["state"], single["state"]):
        most = 1e-4 * float(np.max(np.abs(y)))
        np.testing.assert_allclose(x, y, rtol=0, atol=max(most, 1e-9))
    check_state(one, several)
    both = several["params"], single["params"]
    for params in both:
        params.get("layers", {}).pop("b_k", None)
    for x, y in pairs(*both):
        assert np.isfinite(x).all()
        np.testing.assert_allclose(np.median(np.abs(x - y)), 0, atol=1e-6)


def pairs(several, single):
    """Leaf by leaf, on the host: nothing else is compiled."""
    leaves = (map(np.asarray, jax.tree.leaves(tree)) for tree in (several, single))
    return zip(*leaves, strict=True)


def check_state(one, several):
    """The optimizer's state is sharded as the strategy says."""
    state = jax.tree.leaves(several["state"])
    here = sum(x.addressable_shards[0].data.nbytes for x in state)
    full_bytes = sum(x.nbytes for x in state)
    shards = one.step.mesh["fsdp"] * one.step.mesh["model"]
    shards *= one.step.mesh["data"] if one.zero else 1
    experts = [x for x in state if x.ndim == 4]
    for x in experts:
        each = x.addressable_shards[0].data.nbytes
        assert each == x.nbytes // shards // one.step.mesh["expert"]
        here, full_bytes = here - each, full_bytes - x.nbytes
    assert here <= 1.6 * full_bytes / shards  # norms are cut less


def test_the_lines_run_and_equal_one_device():
    check(STACK)


@pytest.mark.long("plans run as code")
@pytest.mark.parametrize(
    "case", first_twice(MORE), ids=lambda case: f"{case[0]!s:.12} {case[1]}"
)
def test_more_lines_run_and_equal_one_device(case):
    check(case)


@pytest.mark.long("plans run as code")
@pytest.mark.parametrize("case", first_twice(MIXTURES), ids=str)
def test_a_mixtures_lines_run_and_equal_one_device(case):
    mesh, zero, policy = case
    check(("mixtral-8x7b", mesh, zero, policy))
