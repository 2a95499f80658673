"""Experts, sinks, latent attention: what is kept and where it is, against JAX.

The reference of tools/measure/truth/experts.py has room for as many rows as
`training_memory` counts.
"""

import dataclasses
import math

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import Mesh

from spmd_helpers._errors import NotDivisible, NotUnderstood, UnknownAxis
from spmd_helpers._training import activations
from spmd_helpers._training import state as training_state
from spmd_helpers._training.model import Transformer
from spmd_helpers._training.models import MODELS
from spmd_helpers._training.training_memory import training_memory
from tests.properties import must_fail, options
from tests.training.test_training_memory import (
    check_kept,
    check_sums,
    compare_state,
)
from tools.measure.truth import programs, reference

PLAIN = {"recompute": "everything_saveable", "attention": "plain"}


@st.composite
def models(draw, width=24, **sizes):
    """Small models of what this page is about."""
    heads = draw(st.sampled_from([2, 4]))
    gated, biases = draw(st.booleans()), draw(st.booleans())
    kind = draw(st.sampled_from(["heads", "sinks", "latent"]))
    model = Transformer(
        layers=draw(st.integers(2, 3)),
        d_model=width,
        heads=heads,
        kv_heads=None if kind == "latent" else draw(st.sampled_from([1, heads])),
        d_ff=32,
        vocab=50,
        seq=draw(st.sampled_from([8, 16])),
        gated=gated,
        tied=draw(st.booleans()),
        biases=biases and kind != "latent",
        positions=draw(st.sampled_from(["rotary", "none"])),
        norm=draw(st.sampled_from(["layer", "rms"])),
        sinks=kind == "sinks",
        **(LATENT if kind == "latent" else {"head_dim": 8}),
    )
    if kind != "heads" and draw(st.booleans()):
        return model
    experts = {
        "experts": draw(st.sampled_from([4, 8])),
        "experts_per_token": draw(st.sampled_from([1, 3])),
        "expert_d_ff": 48,
        "dense_layers": draw(st.sampled_from([0, 1])),
        "router_biases": draw(st.booleans()),
        "shared_experts": 0 if model.biases else draw(st.sampled_from([0, 2])),
    }
    return dataclasses.replace(model, **experts)


LATENT = {
    **{"kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4},
    **{"v_head_dim": 16, "q_lora_rank": 32},
}
TYPES = st.sampled_from(["float32", "bfloat16"])


@options(8)
@given(models(), st.data())
def test_what_is_kept_is_what_the_scans_stack(model, data):
    recompute = data.draw(
        st.sampled_from(["everything_saveable", "selective", "nothing_saveable"])
    )
    how = {"param_dtype": data.draw(TYPES), "compute_dtype": data.draw(TYPES)}
    if model.experts:
        how["capacity_factor"] = data.draw(st.sampled_from([0.5, 1.0, 1.3]))
    attention = data.draw(st.sampled_from(["plain", "flash"]))
    check_kept(model, batch=2, recompute=recompute, attention=attention, **how)


MESHES = (
    {"data": 1, "expert": 4, "model": 2},
    {"data": 2, "expert": 2, "model": 2},
    {"data": 2, "fsdp": 2, "expert": 2, "model": 1},
    {"data": 1, "fsdp": 4, "model": 2},
)


def check_state(model, axes, way):
    """Each part of the state against the shardings of the reference."""
    if model.experts is None:
        axes = axes | {"data": axes["data"] * axes.get("expert", 1), "expert": 1}
    sizes = {key: n for key, n in axes.items() if key not in ("data", "model")}
    program = programs.Program(
        "", model, 16, data=axes["data"], model_axis=axes["model"], **sizes, **way
    )
    shape = tuple(program.axes.values())
    mesh = Mesh(np.array(jax.devices()).reshape(shape), tuple(program.axes))
    compare_state(training_memory(model, mesh=axes, batch=16, **way), program, mesh)


@st.composite
def cut_models(draw):
    model = draw(models(width=32))
    way = {
        "zero": draw(st.integers(0, 3)),
        "param_dtype": draw(TYPES),
        "optimizer": draw(st.sampled_from(["adam", "lion", "adafactor"])),
        "master_weights": draw(st.booleans()),
    }
    return model, draw(st.sampled_from(MESHES)), way


@options(30)
@given(cut_models())
def test_the_state_is_what_the_shardings_leave_on_a_device(case):
    check_state(*case)


@st.composite
def calls(draw):
    model, axes, way = draw(cut_models())
    if model.experts is None:
        axes = {key: n for key, n in axes.items() if key != "expert"}
    policies = ["everything_saveable", "selective", "nothing_saveable"]
    way |= {
        "mesh": axes,
        "batch": 16,
        "recompute": draw(st.sampled_from(policies)),
        "attention": draw(st.sampled_from(["plain", "flash"])),
        "sequence_parallel": draw(st.booleans()),
        "chip": draw(st.sampled_from([None, "v5e", "a100-40gb", "h100", "b200"])),
    }
    if model.experts:
        way["capacity_factor"] = draw(st.sampled_from([1.0, 1.25]))
    return model, way


@options(60)
@given(calls())
def test_lines_add_up_and_formulas_say_their_bytes(case):
    check_sums(*case)


# Mutants: each is noticed by a check above.

_EXPERTS = training_state.expert_numbers
STATE_MUTANTS = {
    "expert cuts nothing": (
        "expert_numbers",
        lambda setup: tuple(setup.expert * n for n in _EXPERTS(setup)),
    ),
    "experts without their biases": (
        "expert_numbers",
        lambda setup: (training_state.weights(setup)[2], 0),
    ),
    "sinks are sharded as the rest": ("unsharded_numbers", lambda setup: (0, 0)),
}


@pytest.mark.parametrize("mutant", STATE_MUTANTS)
def test_wrong_state_is_noticed(mutant, monkeypatch):
    name, wrong = STATE_MUTANTS[mutant]
    monkeypatch.setattr(training_state, name, wrong)
    must_fail(lambda case: check_state(*case), cut_models())


SPARSE = Transformer(
    *(3, 32, 4, 2, 40, 64, 16),
    **{"gated": True, "tied": False, "biases": False, "positions": "rotary"},
    **{"experts": 8, "experts_per_token": 2, "expert_d_ff": 48},
)
LATENT_ONE = dataclasses.replace(SPARSE, kv_heads=4, head_dim=12, **LATENT)
KEPT_MUTANTS = {
    "no rows of the experts": ("_experts", lambda setup: _KEPT(setup)[::2]),
    "one value of a norm": ("_NORM", 2),
    "narrow results without norms": ("_latent", lambda setup: _LATENT(setup)[1:]),
}
_KEPT, _LATENT = activations._experts, activations._latent


@pytest.mark.parametrize("mutant", KEPT_MUTANTS)
def test_wrong_activations_are_noticed(mutant, monkeypatch):
    name, wrong = KEPT_MUTANTS[mutant]
    monkeypatch.setattr(activations, name, wrong)
    with pytest.raises(AssertionError):
        check_kept(LATENT_ONE, batch=2, recompute="everything_saveable")


# What people ask.


def test_presets_with_experts_answer_by_their_names():
    for name in ("mixtral-8x7b", "qwen3-30b-a3b", "deepseek-v3", "gpt-oss-20b"):
        memory, model = training_memory(name, mesh={"expert": 8}), MODELS[name]
        experts = model.parts["experts"]
        shared = model.moe_layers * model.shared_experts * model.expert_parameters
        routed = experts - shared
        expected = 4 * (model.parameters - routed) + 4 * routed // 8
        assert memory.params_bytes == expected
        assert memory.what == f"{name} on expert=8"
        batch = training_memory(name, mesh={"expert": 8}, batch=8)
        assert memory.total_bytes == batch.total_bytes


def test_more_devices_of_expert_take_less_of_the_experts_alone():
    few, many = (training_memory(SPARSE, mesh={"expert": n}, batch=8) for n in (2, 4))
    routed = SPARSE.parts["experts"]
    assert few.params_bytes - many.params_bytes == 4 * routed // 4


def test_more_room_takes_more():
    how = {"mesh": {"expert": 8}, "batch": 64, **PLAIN}
    sizes = [
        training_memory(SPARSE, capacity_factor=factor, **how).total_bytes
        for factor in (0.5, 1.0, 1.25, 2)
    ]
    assert sizes == sorted(set(sizes))
    even = training_memory(SPARSE, **how)
    assert even.total_bytes == sizes[1]
    assert even.notes[-1] == (
        "Each expert has room for 32 rows of one device's tokens (capacity_factor=1.0)."
    )


def test_the_most_room_is_that_of_all_tokens():
    counted = training_memory(
        SPARSE, mesh={"expert": 2}, batch=8, capacity_factor=8 / 2
    )
    assert counted._setup.room == counted._setup.tokens


DENSE = dataclasses.replace(
    SPARSE, experts=None, experts_per_token=None, expert_d_ff=None
)
WRONG = {
    "experts of a dense model": (
        {"model": DENSE, "mesh": {"expert": 2}},
        NotUnderstood,
        r"^mesh=\{'expert': 2\}: this model has no experts that the axis expert could "
        r"shard; leave expert out\.$",
    ),
    "experts that do not divide": (
        {"mesh": {"expert": 3}},
        NotDivisible,
        r"experts=8 does not divide over the 3 devices of expert; make expert one of "
        r"1, 2, 4 and 8\.$",
    ),
    "experts by another name": (
        {"mesh": {"ep": 2}},
        UnknownAxis,
        r"an axis 'ep'.* give \{'expert': 2\}\.$",
    ),
    "a batch that does not divide": (
        {"mesh": {"data": 2, "expert": 4}, "batch": 12},
        NotDivisible,
        r"batch=12 does not divide over the 8 devices of data and expert; .* 8 or 16",
    ),
    "a batch that expert alone does not divide": (
        {"mesh": {"expert": 4}, "batch": 3},
        NotDivisible,
        r"^batch=3 does not divide over the 4 devices of expert; .* make it 4\.$",
    ),
    "room of a dense model": (
        {"model": DENSE, "capacity_factor": 1.0},
        NotUnderstood,
        r"capacity_factor=1\.0 is for a model with experts, which this one is not;",
    ),
    "no room": (
        {"capacity_factor": 0},
        NotUnderstood,
        r"capacity_factor=0 is no share of rows; give a number above 0, such as 1\.25",
    ),
    "room without an end": (
        {"capacity_factor": math.inf},
        NotUnderstood,
        r"^capacity_factor=inf is no share of rows; give a number above 0, such as",
    ),
    "room that is no number": (
        {"capacity_factor": math.nan},
        NotUnderstood,
        r"^capacity_factor=nan is no share of rows; give a number above 0, such as",
    ),
    "room for more than all tokens": (
        {"capacity_factor": 4.5},
        NotUnderstood,
        r"^capacity_factor=4\.5 makes an expert's room larger than all tokens of a "
        r"device, each of which uses 2 of 8 experts; give a number up to 8 / 2\.$",
    ),
    "a width of experts that does not divide": (
        {"mesh": {"model": 4}, "model": dataclasses.replace(SPARSE, expert_d_ff=6)},
        NotDivisible,
        r"expert_d_ff=6 does not divide over the 4 devices of model; make model one of "
        r"1 and 2\.$",
    ),
    "a policy that names products": (
        {"recompute": "dots_saveable"},
        NotUnderstood,
        r"recompute='dots_saveable' is not counted for a model with experts=8; give",
    ),
    "muon": (
        {"optimizer": "muon"},
        NotUnderstood,
        r"optimizer='muon' is not counted for a model with experts; give 'adam' or",
    ),
    "experts in every other layer": (
        {"model": MODELS["llama-4-maverick"]},
        NotUnderstood,
        r"^llama-4-maverick with moe_every=2: training_memory does not count what that "
        r"takes\. The model has 400,711,848,960 parameters, of which a token uses "
        r"[\d,]+\.$",
    ),
    "images": (
        {"model": MODELS["vit-b-16"]},
        NotUnderstood,
        r"^vit-b-16 with patch_size=16 is counted for GPUs: a TPU's compiler pads its",
    ),
    "a name": (
        {"model": "mixtral"},
        NotUnderstood,
        r"^model='mixtral' is not known\. Did you mean 'mixtral-8x7b' or",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_argument_gets_one_sentence(name):
    given_, error, words = WRONG[name]
    how = {"mesh": {}, "batch": 8} | given_
    with pytest.raises(error, match=words) as caught:
        training_memory(how.pop("model", SPARSE), **how)
    assert caught.value.__suppress_context__


# The reference computes what one device computes.


@pytest.mark.long("compiles whole steps")
def test_the_reference_is_the_same_over_all_axes():
    """Loss and first moments, and so gradients, with room for every row."""
    shared = dataclasses.replace(LATENT_ONE, shared_experts=1, dense_layers=1)
    one = _stepped(shared, zero=0)
    many = _stepped(shared, expert=2, data=2, model_axis=2)
    for a, b in zip(one, many, strict=True):
        assert a == pytest.approx(b, rel=1e-4)


def _stepped(model, **axes):
    program = programs.Program(
        "", model, 8, compute_dtype="float32", capacity_factor=4.0, **axes
    )
    shape = tuple(program.axes.values())
    devices = np.array(jax.devices()[: math.prod(shape)]).reshape(shape)
    step, state, batch = reference.train_step(
        program, Mesh(devices, tuple(program.axes))
    )
    rng = np.random.default_rng(0)

    def start(like, fill):
        return jax.device_put(fill(like.shape).astype(like.dtype), like.sharding)

    state = {
        key: jax.tree.map(
            lambda one, key=key: start(
                one,
                (lambda s: 0.3 * rng.normal(size=s)) if key == "params" else np.zeros,
            ),
            part,
        )
        for key, part in state.items()
    }
    tokens = start(batch["tokens"], lambda shape: rng.integers(0, model.vocab, shape))
    new, loss = step(state, {"tokens": tokens})
    sums = [float(np.abs(m).sum()) for m in jax.tree.leaves(new["m"])]
    return [float(loss), *sums]
