"""Meshes and element types as both counts take them, and what they advise instead."""

import ast
import itertools
import math
import re
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spmd_helpers import (
    MLP,
    MODELS,
    MemoryCalculator,
    NotDivisible,
    NotUnderstood,
    SpecError,
    Transformer,
    UnknownAxis,
    inference_memory,
    plan_mesh,
    training_memory,
)
from spmd_helpers._training import serving, setup
from spmd_helpers._training.axes import OTHER_AXES
from spmd_helpers._training.dtypes import FLOATS, USUAL
from tests.properties import options

LLAMA = MODELS["llama-3-8b"]


def serve(model, **how):
    return inference_memory(model, **{"batch": 64, "seq": 64, **how})


def train(model, **how):
    return training_memory(model, **{"seq": 64, **how})


def said(count, model=LLAMA, **how):
    with pytest.raises((NotUnderstood, SpecError)) as caught:
        count(model, **how)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# Meshes with other axes.

RENAMED = [
    (train, {"tp": 2, "model": 4}, {"model": 8}),
    (train, {"model": 4, "tp": 2}, {"model": 8}),
    (train, {"tp": 2, "dp": 4}, {"model": 2, "data": 4}),
    (train, {"Data": 2, "modle": 4}, {"data": 2, "model": 4}),
    (train, {"x": 2, "y": 4}, {"data": 2, "fsdp": 4}),
    (serve, {"expert": 2, "model": 2, "data": 2}, {"data": 4, "model": 2}),
    (serve, {"tp": 2, "dp": 4}, {"model": 2, "data": 4}),
    (serve, {"fsdp": 8, "data": 2}, {"data": 16}),
]


@pytest.mark.parametrize(("count", "mesh", "fixed"), RENAMED)
def test_all_axes_are_renamed_at_once(count, mesh, fixed):
    words = said(count, mesh=mesh)
    assert words.startswith(f"mesh={mesh} has ")
    assert words.endswith(f": give {fixed}.")
    count(LLAMA, mesh=fixed)


@options(150)
@given(
    st.sampled_from([train, serve]),
    st.dictionaries(
        st.sampled_from([*setup.AXES, *OTHER_AXES, "x", "y", "TP", "Stage", "modl"]),
        st.sampled_from([1, 2, 2, 3, 4]),
        min_size=1,
        max_size=4,
    ),
)
def test_the_mesh_that_is_given_instead_runs(count, mesh):
    axes = setup.AXES if count is train else serving.AXES
    if not {*mesh} - {*axes}:
        return
    try:
        count(LLAMA, mesh=mesh)
        raise AssertionError
    except UnknownAxis as error:
        words = str(error)
    given_ = re.search(r": give (\{.*\})\.$", words)
    if given_:
        fixed = ast.literal_eval(given_[1])
        assert math.prod(fixed.values()) == math.prod(mesh.values())
        count(LLAMA, mesh=fixed)
        return
    assert re.search(r" is called '\w+'(, .*)? here\.$|: use these names\.$", words)
    # No mesh is given: that of the usual names is none that runs.
    names = {axis: OTHER_AXES.get(axis.lower(), axis) for axis in mesh}
    if {*names.values()} <= {*axes}:
        fixed = {}
        for axis, size in mesh.items():
            fixed[names[axis]] = fixed.get(names[axis], 1) * size
        with pytest.raises((NotUnderstood, NotDivisible)):
            count(LLAMA, mesh=fixed)


def test_a_mesh_that_does_not_run_is_not_given():
    words = said(train, mesh={"tp": 3, "dp": 4})
    assert words.endswith(": 'tp' is called 'model' and 'dp' is called 'data' here.")
    assert said(train, mesh={"x": 2}, batch=1, zero=9).endswith(": use these names.")


@pytest.mark.parametrize("count", [train, serve])
def test_a_mesh_of_jax_is_taken(count):
    mesh = jax.sharding.AbstractMesh((2, 4), ("data", "model"))
    assert count(LLAMA, mesh=mesh) == count(LLAMA, mesh={"data": 2, "model": 4})
    real = jax.sharding.Mesh(np.array(jax.devices()[:2]), "model")
    assert count(LLAMA, mesh=real) == count(LLAMA, mesh={"model": 2})
    other = jax.sharding.Mesh(np.array(jax.devices()[:2]), "tp")
    assert said(count, mesh=other).startswith("mesh={'tp': 2} has an axis 'tp'; ")
    words = said(count, mesh=np.zeros(3))
    assert words.startswith("mesh=array([0., 0., 0.]) is not a dict of axis sizes;")


QUOTED = [
    (train, LLAMA, {"expert": 2}, "llama-3-8b has no experts"),
    (train, LLAMA, {"stage": 3}, "layers=32 does not divide"),
    (train, LLAMA, {"stage": 2, "context": 2}, "an axis stage is counted for"),
    (train, LLAMA, {"model": 3}, "d_ff=14336 does not divide"),
    (train, LLAMA, {"fsdp": 1, "model": 3}, "d_ff=14336 does not divide"),
    (train, MLP(2, 8, 8), {"context": 2}, "an MLP has no sequences"),
    (train, MODELS["mixtral-8x7b"], {"expert": 3}, "experts=8 does not divide"),
    (serve, LLAMA, {"model": 3}, "d_ff=14336 does not divide"),
]


@pytest.mark.parametrize(("count", "model", "mesh", "words"), QUOTED)
def test_a_mesh_is_quoted_as_it_was_given(count, model, mesh, words):
    how = {} if isinstance(model, MLP) else {"seq": 64}
    count = training_memory if isinstance(model, MLP) else count
    assert said(count, model, mesh=mesh, **how).startswith(f"mesh={mesh}: {words}")


# Sizes of the axis model.


def sizes_in(words):
    return [int(n) for n in re.findall(r"\d+", words.rpartition("make model ")[2])]


def runs(count, model, **how):
    try:
        count(model, **how)
    except NotDivisible:
        return False
    return True


SMALL = Transformer(2, 96, 12, 6, 192, 64, 64, head_dim=8, biases=False)
SPLIT = [
    (train, LLAMA, {}),
    (serve, LLAMA, {}),
    (train, MODELS["gpt3-small"], {}),
    (train, SMALL, {}),
    (train, SMALL, {"sequence_parallel": True, "seq": 32}),
    (train, replace(SMALL, biases=True), {"mesh": {"data": 4}}),
    (train, replace(SMALL, kv_heads=2), {"mesh": {"fsdp": 2}}),
    (train, MODELS["mixtral-8x7b"], {}),
    (train, MODELS["deepseek-v3"], {}),
]


@pytest.mark.parametrize(("count", "model", "how"), SPLIT)
def test_every_size_of_model_that_runs_is_given(count, model, how):
    def at(size):
        return {**how, "mesh": how.get("mesh", {}) | {"model": size}}

    largest = 2 * model.heads
    listed = {n for n in range(1, largest + 1) if runs(count, model, **at(n))}
    wrong = next(n for n in range(2, largest) if model.heads % n)
    assert {*sizes_in(said(count, model, **at(wrong)))} == listed
    assert listed >= {1}


def test_there_is_more_than_the_heads_of_keys():
    for count in (train, serve):
        assert sizes_in(said(count, mesh={"model": 3})) == [1, 2, 4, 8, 16, 32]
    words = said(train, replace(LLAMA, d_ff=15), mesh={"model": 2})
    assert words.endswith("; make model 1.")


# Element types.

TYPES = {
    train: ("param_dtype", "compute_dtype", "grad_dtype", "moment_dtype", "mu_dtype"),
    serve: ("param_dtype", "compute_dtype", "cache_dtype"),
}
ARGUMENTS = [(count, key) for count, keys in TYPES.items() for key in keys]


@pytest.mark.parametrize(("count", "key"), ARGUMENTS)
def test_a_type_is_a_name_or_an_object(count, key):
    named = count(LLAMA, mesh={}, **{key: "bfloat16"})
    for one in (jnp.bfloat16, jnp.dtype("bfloat16"), np.zeros(1, jnp.bfloat16).dtype):
        assert count(LLAMA, mesh={}, **{key: one}) == named
    assert count(LLAMA, mesh={}, **{key: np.float32}) == count(
        LLAMA, mesh={}, **{key: "float32"}
    )


@pytest.mark.parametrize(("count", "key"), ARGUMENTS)
def test_only_types_that_are_taken_are_given(count, key):
    wrong = ["bf16", "fp32", "fp16", "fp8", "flot32", "int4", "float0", "float33", ""]
    wrong += [np.int16, float, None, 16, (), object(), np.zeros(2)]
    # Not given, or several of them.
    skip = {"grad_dtype": (None, ()), "moment_dtype": (None,), "mu_dtype": (None,)}
    skip["cache_dtype"] = (None,)
    for one in wrong:
        if any(one is other for other in skip.get(key, ())):
            continue
        words = said(count, mesh={}, **{key: one})
        assert words.startswith(f"{key}=")
        choices = re.findall(r"'(\w+)'", re.split(r"; give|Give", words)[1])
        assert {*USUAL} <= {*choices}
        close = re.findall(r"Did you mean '(\w+)'\?", words)
        for name in {*choices, *close}:
            count(LLAMA, mesh={}, **{key: name})


@pytest.mark.parametrize(
    ("word", "meant"),
    [("bf16", "bfloat16"), ("fp32", "float32"), ("fp16", "float16"),
     ("half", "float16"), ("BFLOAT16", "bfloat16"), ("flaot32", "float32"),
     ("fp8", "float8_e4m3fn")],
)  # fmt: skip
def test_a_type_by_another_name(word, meant):
    for count, key in ARGUMENTS:
        words = said(count, mesh={}, **{key: word})
        assert f" Did you mean {meant!r}? Give 'float32', 'bfloat16', " in words
        assert not (key == "param_dtype" and count is train and "int8" in words)


def test_another_type_has_its_reason():
    words = said(serve, mesh={}, cache_dtype="int8")
    assert words == (
        "cache_dtype='int8' is not counted here; give 'float32', 'bfloat16', "
        "'float16', 'float64', 'float8_e4m3fn' or 'float8_e5m2'."
    )
    words = said(train, mesh={}, param_dtype=jnp.int8)
    assert words.startswith("param_dtype='int8' is no type of floating-point numbers, ")
    assert "int8" not in words.partition("; give")[2]


def test_types_of_floating_point_numbers_are_those_of_jax():
    for name in FLOATS:
        here = jnp.dtype(getattr(jnp, name)) if hasattr(jnp, name) else None
        assert here is None or here.itemsize == setup.itemsize(name)
    every = {name for name in dir(jnp) if re.match(r"b?float\d", name)}
    assert every - {"float6_e2m3fn", "float6_e3m2fn"} <= {*FLOATS}


def test_the_cache_has_such_a_type_too():
    assert LLAMA.kv_cache_bytes(dtype=jnp.int8) == LLAMA.kv_cache_bytes(dtype="int8")
    assert LLAMA.kv_cache_bytes_per_token(dtype=np.float32) == 2**18
    with pytest.raises(
        NotUnderstood, match=r"^dtype='bf16' .* Did you mean 'bfloat16'"
    ):
        LLAMA.kv_cache_bytes(dtype="bf16")
    with pytest.raises(NotUnderstood, match=r"^dtype='16' is not the name"):
        LLAMA.kv_cache_bytes(dtype=16)


def test_a_plan_and_the_calculator_take_such_types_and_meshes():
    how = {"batch": 8, "seq": 64, "axes": ["data"]}
    plans = [
        plan_mesh(LLAMA, "h100:1x8", param_dtype=one, **how)
        for one in (jnp.bfloat16, "bfloat16")
    ]
    assert str(plans[0]) == str(plans[1])
    assert plans[0].strategies == plans[1].strategies
    mesh = jax.sharding.AbstractMesh((2,), ("data",))
    states = [
        MemoryCalculator(LLAMA, mesh=one, batch=2, param_dtype=a, grad_dtype=b).state
        for one, a, b in (
            (mesh, jnp.bfloat16, (jnp.bfloat16, np.float32)),
            ({"data": 2}, "bfloat16", ("bfloat16", "float32")),
        )
    ]
    assert states[0] == states[1]
    pairs = itertools.chain(states[0].items())
    assert ("grad_dtype", "bfloat16, float32") in pairs
