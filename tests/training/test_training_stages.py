"""The axis `stage`, 1F1B and interleaved, against schedules and a reference."""

import dataclasses
import math

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import Mesh

from spmd_helpers._errors import NotDivisible, NotUnderstood, UnknownAxis
from spmd_helpers._figures.pipeline import PipelineSchedule
from spmd_helpers._training import setup as training_setup
from spmd_helpers._training.model import MLP, Transformer
from spmd_helpers._training.models import MODELS
from spmd_helpers._training.training_memory import training_memory
from tests.properties import must_fail, options
from tests.training.test_training_memory import (
    check_sums,
    compare_state,
    line,
    one_sentence_each,
)
from tools.measure.truth import pipeline, programs, reference

MODEL = Transformer(
    *(8, 32, 4, 2, 64, 50, 16),
    **{"gated": True, "tied": False, "biases": False, "positions": "rotary"},
)
FULL = {"recompute": "nothing_saveable"}


def count(model=MODEL, **how):
    return training_memory(model, **{"mesh": {"stage": 2}, "batch": 32, **how})


def flights(stages, microbatches, chunks):
    counted = count(
        mesh={"stage": stages}, gradient_accumulation=microbatches, interleave=chunks
    )
    return counted._setup.chunks_kept


@pytest.mark.parametrize("stages", [2, 4])
@pytest.mark.parametrize("chunks", [1, 2])
def test_as_many_are_kept_as_the_schedule_keeps(stages, chunks):
    kind = "interleaved" if chunks > 1 else "1f1b"
    for microbatches in (4, 8, 16, 32):
        schedule = PipelineSchedule(stages, microbatches, kind, chunks=chunks)
        expected = round(max(schedule.saved) * chunks)
        assert flights(stages, microbatches, chunks) == expected
        _, slots, _ = pipeline.tables(stages, microbatches, chunks)
        assert slots == expected


def test_interleaved_keeps_as_much_more_as_was_published():
    """1 + (p - 1) / (p m) times as much, Korthikanti et al. 2022, section 4.2.3."""
    how = {"mesh": {"stage": 4}, "gradient_accumulation": 32}
    one, two = (
        line(count(interleave=chunks, **how), "inputs of layers").bytes
        for chunks in (1, 2)
    )
    assert one == MODEL.layers * 16 * 2 * MODEL.d_model  # all layers of a microbatch
    assert two / one == 1 + (4 - 1) / (4 * 2)


MESHES = (
    {"data": 2, "stage": 4, "model": 1},
    {"data": 1, "stage": 2, "fsdp": 4, "model": 1},
    {"data": 2, "stage": 2, "model": 2},
)


@st.composite
def calls(draw):
    way = {
        "zero": draw(st.integers(0, 3)),
        "optimizer": draw(st.sampled_from(["adam", "sgd", "adafactor", "muon"])),
        "param_dtype": draw(st.sampled_from(["float32", "bfloat16"])),
        "gradient_accumulation": draw(st.sampled_from([1, 4])),
        **FULL,
    }
    if way["gradient_accumulation"] > 1:
        way["interleave"] = draw(st.sampled_from([1, 2]))
    return draw(st.sampled_from(MESHES)), way


def check_state(axes, way):
    sizes = {key: n for key, n in axes.items() if key not in ("data", "model")}
    program = programs.Program(
        "", MODEL, 32, data=axes["data"], model_axis=axes["model"], **sizes, **way
    )
    shape = tuple(program.axes.values())
    mesh = Mesh(np.array(jax.devices()).reshape(shape), tuple(program.axes))
    compare_state(count(mesh=axes, **way), program, mesh)


@options(40)
@given(calls())
def test_the_state_is_what_the_shardings_leave_on_a_device(case):
    check_state(*case)


@options(40)
@given(calls(), st.sampled_from([None, "v5e", "h100", "a100-40gb"]))
def test_lines_add_up_and_formulas_say_their_bytes(case, chip):
    axes, way = case
    check_sums(MODEL, {"mesh": axes, "batch": 32, "chip": chip, **way})


@pytest.mark.mutant
def test_a_stage_with_all_layers_is_noticed(monkeypatch):
    monkeypatch.setattr(training_setup, "replace", lambda model, layers: model)
    must_fail(lambda case: check_state(*case), calls())


def test_it_says_what_it_counted():
    counted = count(mesh={"stage": 4}, gradient_accumulation=8)
    assert counted.what.endswith("on stage=4")
    assert counted.notes[-1] == (
        "The first stage keeps activations of 4 microbatches at once, of 8 "
        "microbatches."
    )


def test_it_says_all_layers_of_the_model():
    counted = count(mesh={"stage": 4}, gradient_accumulation=8)
    words = f"Transformer of 8 layers, d_model {MODEL.d_model} on stage=4"
    assert MODEL.layers == 8
    assert counted.what == words
    assert words in repr(counted)
    assert words in str(counted)


@pytest.mark.parametrize(
    ("name", "stages"), [("gemma-3-27b", 31), ("gemma-2-27b", 46), ("gemma-3-1b", 13)]
)
def test_a_stage_has_fewer_layers_than_the_period_of_windows(name, stages):
    how = {"mesh": {"stage": stages}, "seq": 1024, "gradient_accumulation": stages}
    model = MODELS[name]
    plain = dataclasses.replace(model, window=None, global_every=None, name="plain")
    assert model.layers // stages < model.global_every
    assert training_memory(name, **how).lines == training_memory(plain, **how).lines


WRONG = {
    "a stage by another name": (
        {"mesh": {"pp": 2}},
        UnknownAxis,
        r"an axis 'pp'.* give \{'stage': 2\}\.$",
    ),
    "layers that do not divide": (
        {"mesh": {"stage": 3}},
        NotDivisible,
        r"layers=8 does not divide over the 3 devices of stage; make stage times "
        r"interleave one of 1, 2, 4 and 8\.$",
    ),
    "chunks that do not divide": (
        {"mesh": {"stage": 4}, "interleave": 4, "gradient_accumulation": 4},
        NotDivisible,
        r"layers=8 does not divide over the 4 devices of stage of 4 chunks each;",
    ),
    "chunks without stages": (
        {"mesh": {}, "interleave": 2},
        NotUnderstood,
        r"^interleave=2 gives each device of stage so many chunks .* give mesh a 'st",
    ),
    "microbatches of an interleaved schedule": (
        {"mesh": {"stage": 4}, "interleave": 2, "gradient_accumulation": 2},
        NotDivisible,
        r"^gradient_accumulation=2 is the number of microbatches, which an interleaved",
    ),
    "another policy": (
        {"recompute": "everything_saveable"},
        NotUnderstood,
        r"counted for a transformer under recompute='nothing_saveable', beside data, "
        r"fsdp and model; not for recompute='everything_saveable'\.$",
    ),
    "stages of an MLP": (
        {"model": MLP(4, 8, 8)},
        NotUnderstood,
        r"not for an MLP\.$",
    ),
    "stages over context": (
        {"mesh": {"stage": 2, "context": 2}},
        NotUnderstood,
        r"not for context=2\.$",
    ),
}


test_a_wrong_argument_gets_one_sentence = one_sentence_each(WRONG, count)


@pytest.mark.long("compiles whole steps")
def test_the_reference_is_the_same_as_one_device():
    """Loss and first moments, and so gradients, also with two chunks for a stage."""
    one = _stepped(range(8), gradient_accumulation=4, zero=0)
    two = [0, 1, 4, 5, 2, 3, 6, 7]  # the layers as they lie: each stage's two chunks
    stages = {"stage": 2, "data": 2, "gradient_accumulation": 4}
    for many in (_stepped(range(8), **stages), _stepped(two, **stages, interleave=2)):
        for a, b in zip(one, many, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


def _stepped(order, **axes):
    """Loss and first moments after a step, with the layers put in an order."""
    program = programs.Program("", MODEL, 16, compute_dtype="float32", **FULL, **axes)
    shape = tuple(program.axes.values())
    devices = np.array(jax.devices()[: math.prod(shape)]).reshape(shape)
    mesh = Mesh(devices, tuple(program.axes))
    step, state, batch = reference.train_step(program, mesh)
    rng, order = np.random.default_rng(0), list(order)
    start = jax.tree.map(lambda s: np.zeros(s.shape, s.dtype), state)
    start["params"] = jax.tree.map(
        lambda s: (0.3 * rng.normal(size=s.shape)).astype(s.dtype), state["params"]
    )
    tokens = rng.integers(0, MODEL.vocab, (16, MODEL.seq + 1)).astype(np.int32)
    start["params"]["layers"] = jax.tree.map(
        lambda w: w[order], start["params"]["layers"]
    )
    given_ = start, {"tokens": tokens.reshape(batch["tokens"].shape)}
    where = jax.tree.map(lambda s: s.sharding, (state, batch))
    new, loss = step(*jax.tree.map(jax.device_put, given_, where))
    moments = jax.tree.map(np.asarray, new["m"])
    back = np.argsort(order)
    moments["layers"] = jax.tree.map(lambda w: w[back], moments["layers"])
    return [np.asarray(loss), *jax.tree.leaves(moments)]
