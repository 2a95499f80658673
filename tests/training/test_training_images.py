"""A model that reads images: its state, what is kept, what is refused."""

import dataclasses

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import Mesh

from spmd_helpers._errors import NotDivisible, NotUnderstood
from spmd_helpers._training import state as training_state
from spmd_helpers._training.model import Transformer
from spmd_helpers._training.models import MODELS
from spmd_helpers._training.training_memory import training_memory
from tests.properties import must_fail, options
from tests.training.test_training_memory import (
    OPTAX,
    check_sums,
    compare_state,
    kept_bytes,
    line,
    one_sentence_each,
    stacked_bytes,
)
from tools.measure.truth import programs, reference

SMALL = Transformer(3, 32, 4, d_ff=64, vocab=24, seq=10, tied=False, patch_size=4)
GPU = {"chip": "h100"}


def count(model=SMALL, **how):
    return training_memory(model, **{"mesh": {}, "batch": 8, **GPU, **how})


MESHES = (
    {"data": 8, "model": 1},
    {"data": 2, "fsdp": 2, "model": 2},
    {"data": 2, "model": 4},
)


@st.composite
def calls(draw):
    more = {
        "norm": draw(st.sampled_from(["layer", "rms"])),
        "positions": draw(st.sampled_from(["learned", "none"])),
        "gated": draw(st.booleans()),
        "vocab": draw(st.sampled_from([24, 10])),
    }
    way = {
        "zero": draw(st.integers(0, 3)),
        "optimizer": draw(st.sampled_from(["adam", "lion", "adafactor", "muon"])),
        "master_weights": draw(st.booleans()),
        "param_dtype": draw(st.sampled_from(["float32", "bfloat16"])),
        "gradient_accumulation": draw(st.sampled_from([1, 2])),
    }
    if way["optimizer"] == "muon":
        way["param_dtype"] = "float32"
    return dataclasses.replace(SMALL, **more), draw(st.sampled_from(MESHES)), way


def check_state(model, axes, way):
    sizes = {key: n for key, n in axes.items() if key not in ("data", "model")}
    program = programs.Program(
        "", model, 16, data=axes["data"], model_axis=axes["model"], **sizes, **way
    )
    shape = tuple(program.axes.values())
    mesh = Mesh(np.array(jax.devices()).reshape(shape), tuple(program.axes))
    counted = training_memory(model, mesh=axes, batch=16, **GPU, **way)
    compare_state(counted, program, mesh)


@options(40)
@given(calls())
def test_the_state_is_what_the_shardings_leave_on_a_device(case):
    check_state(*case)


@options(40)
@given(calls(), st.sampled_from(["h100", "a100-40gb", "b200"]), st.booleans())
def test_lines_add_up_and_formulas_say_their_bytes(case, chip, flash):
    model, axes, way = case
    way |= {"mesh": axes, "batch": 16, "chip": chip}
    check_sums(model, way | {"attention": "flash" if flash else "plain"})


@pytest.mark.parametrize("name", OPTAX)
def test_optax_keeps_as_much(name):
    program = programs.Program("", SMALL, 8)
    mesh = Mesh(np.array(jax.devices()[:1]).reshape(1, 1), reference.AXES)
    params = reference.state_shapes(program, mesh)["params"]
    state = jax.tree.leaves(jax.eval_shape(OPTAX[name].init, params))
    kept = sum(leaf.size * leaf.dtype.itemsize for leaf in state)
    assert count(optimizer=name).optimizer_bytes == kept


def check_kept(**way):
    program = programs.Program("", SMALL, 2, **way)
    memory, stacked = count(batch=2, **way), stacked_bytes(program)
    listed = [one for one in memory.lines if "print_saved_residuals" in one.source]
    hidden = sum(one.bytes for one in listed if one.name == "inside of the mlp")
    kept = kept_bytes(memory, SMALL)
    if hidden and kept != sum(one.bytes for one in listed):
        kept += hidden // 6  # a GPU's line has one of the six less already
    elif hidden:
        stacked -= hidden // 5
    assert kept == stacked


@pytest.mark.parametrize(
    "recompute",
    [
        "everything_saveable",
        "selective",
        "nothing_saveable",
        "dots_with_no_batch_dims_saveable",
    ],
)
@pytest.mark.parametrize("attention", ["plain", "flash"])
def test_what_is_kept_is_what_the_scan_stacks(recompute, attention):
    check_kept(recompute=recompute, attention=attention)


def test_a_vit_has_its_published_parameters():
    counted = training_memory("vit-b-16", mesh={}, batch=64, **GPU)
    assert counted.params_bytes == 4 * MODELS["vit-b-16"].parameters == 4 * 86_567_656
    patches = 4 * 64 * (196 * 768 + 1)
    assert line(counted, "batch").bytes == patches
    assert line(counted, "logits").bytes == 64 * 4 * 1000
    assert not [one for one in counted.lines if "mask" in one.name]


def test_more_pixels_take_more():
    few, many = (count(dataclasses.replace(SMALL, patch_size=n)) for n in (4, 8))
    assert line(many, "batch").bytes > line(few, "batch").bytes
    assert many.total_bytes > few.total_bytes


@pytest.mark.mutant
def test_a_head_without_its_bias_is_noticed(monkeypatch):
    monkeypatch.setattr(training_state, "unsharded_numbers", lambda setup: (0, 0))
    must_fail(lambda case: check_state(*case), calls())


WRONG = {
    "a TPU": (
        {"chip": None},
        NotUnderstood,
        r"with patch_size=4 is counted for GPUs: a TPU's compiler pads its 10 tokens; "
        r"give chip= a GPU",
    ),
    "context": (
        {"mesh": {"context": 2}},
        NotUnderstood,
        r"reads images, for which context=2 is not counted; leave it out\.$",
    ),
    "stages": (
        {"mesh": {"stage": 3}, "recompute": "nothing_saveable"},
        NotUnderstood,
        r"for which stage=3 is not counted",
    ),
    "a ring": (
        {"attention": "ring"},
        NotUnderstood,
        r"for which attention='ring' is not counted",
    ),
    "published formulas": (
        {"counting": "megatron"},
        NotUnderstood,
        r"for which counting='megatron' is not counted",
    ),
    "adapters": (
        {"lora_rank": 4},
        NotUnderstood,
        r"not for patch_size=4\.$",
    ),
    "a kernel for an odd sequence": (
        {"attention": "flash", "seq": 9},
        NotDivisible,
        r"cuDNN's kernel does not take a sequence of odd length, seq=9; give",
    ),
    "no patch": ({"seq": 1}, NotUnderstood, r"^seq=1 leaves an image no patch"),
}


test_a_wrong_argument_gets_one_sentence = one_sentence_each(WRONG, count)
