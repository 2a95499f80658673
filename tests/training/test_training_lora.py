"""Adapters of low rank beside frozen parameters, against JAX and published counts."""

import dataclasses

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import Mesh

from spmd_helpers._errors import NotDivisible, NotUnderstood
from spmd_helpers._training import activations
from spmd_helpers._training import state as training_state
from spmd_helpers._training.model import MLP, Transformer
from spmd_helpers._training.models import MODELS
from spmd_helpers._training.training_memory import training_memory
from tests.properties import must_fail, options
from tests.training.test_training_memory import (
    OPTAX,
    check_sums,
    device_bytes,
    kept_bytes,
    line,
    one_sentence_each,
    stacked_bytes,
)
from tools.measure.truth import programs, reference

LLAMA = {"gated": True, "tied": False, "biases": False, "norm": "rms"}
SMALL = Transformer(3, 24, 4, 2, 60, 50, 11, **LLAMA, positions="rotary")
GPT = Transformer(2, 24, 4, d_ff=60, vocab=50, seq=11)
# A parameter's type, a product's, and that of what is frozen.
TYPES = st.sampled_from(
    [
        ("float32", "bfloat16", "bfloat16"),
        ("bfloat16", "bfloat16", "float32"),
        ("float32", "bfloat16", "int8"),
        ("float32", "float32", "bfloat16"),
    ]
)
TARGETS = st.sampled_from([(), ("query", "value"), ("key", "down"), ("out",), ("up",)])


def count(model=SMALL, **how):
    return training_memory(model, **{"mesh": {}, "lora_rank": 4, **how})


def test_as_many_are_trained_as_was_published():
    """4,194,304 of Llama 7B: rank 8 of queries and values, as PEFT prints it."""
    counted = count("llama-2-7b", lora_rank=8, lora_targets=("query", "value"))
    assert counted.lines[0].bytes == 4 * 4_194_304
    assert counted.grads_bytes == 4 * 4_194_304
    assert counted.optimizer_bytes == 8 * 4_194_304 + 4
    assert line(counted, "frozen parameters").bytes == 2 * 6_738_415_616
    assert counted.params_bytes == 2 * 6_738_415_616 + 4 * 4_194_304


def test_eight_billion_fit_where_all_of_them_do_not():
    how = {"mesh": {"fsdp": 2}, "batch": 2, "seq": 4096}
    assert training_memory("llama-3-8b", **how, lora_rank=16).fits("h100")
    assert not training_memory("llama-3-8b", **how).fits("h100")


@pytest.mark.parametrize("name", [name for name in OPTAX if name != "muon"])
def test_optax_keeps_as_much(name):
    program = programs.Program("", SMALL, 8, lora_rank=4)
    mesh = Mesh(np.array(jax.devices()[:1]).reshape(1, 1), reference.AXES)
    params = reference.state_shapes(program, mesh)["params"]
    state = jax.tree.leaves(jax.eval_shape(OPTAX[name].init, params))
    kept = sum(leaf.size * leaf.dtype.itemsize for leaf in state)
    assert count(optimizer=name).optimizer_bytes == kept


MESHES = (
    {"data": 8, "model": 1},
    {"data": 2, "fsdp": 2, "model": 2},
    {"data": 1, "model": 8},
    {"data": 1, "context": 2, "fsdp": 4, "model": 1},
)
CUT = Transformer(2, 64, 8, 2, 128, 60, 16, **LLAMA, positions="rotary", head_dim=16)


@st.composite
def calls(draw):
    types = dict(
        zip(("param_dtype", "compute_dtype", "base_dtype"), draw(TYPES), strict=True)
    )
    way = {
        "zero": draw(st.integers(0, 3)),
        "optimizer": draw(st.sampled_from(["adam", "sgd", "adafactor"])),
        "master_weights": draw(st.booleans()),
        "lora_rank": draw(st.sampled_from([1, 4])),
        "lora_targets": draw(TARGETS),
        "gradient_accumulation": draw(st.sampled_from([1, 2])),
        **types,
    }
    more = {"biases": draw(st.booleans()), "qk_norm": draw(st.booleans())}
    return dataclasses.replace(CUT, **more), draw(st.sampled_from(MESHES)), way


def check_state(model, axes, way):
    sizes = {key: n for key, n in axes.items() if key not in ("data", "model")}
    program = programs.Program(
        "", model, 16, data=axes["data"], model_axis=axes["model"], **sizes, **way
    )
    mesh = Mesh(
        np.array(jax.devices()).reshape(tuple(program.axes.values())),
        tuple(program.axes),
    )
    counted = training_memory(model, mesh=axes, batch=16, **way)
    state = reference.state_shapes(program, mesh)
    assert counted.lines[0].bytes == device_bytes(state["params"])
    frozen = device_bytes(state.pop("params")) + device_bytes(state.pop("frozen"))
    assert counted.params_bytes == frozen
    assert counted.grads_bytes == device_bytes(reference.grad_shapes(program, mesh))
    assert counted.optimizer_bytes == device_bytes(state)


@options(40)
@given(calls())
def test_the_state_is_what_the_shardings_leave_on_a_device(case):
    check_state(*case)


@options(40)
@given(calls(), st.sampled_from([None, "v5e", "h100", "a100-40gb", "b200"]))
def test_lines_add_up_and_formulas_say_their_bytes(case, chip):
    model, axes, way = case
    attention = "ring" if "context" in axes else "plain"
    check_sums(
        model,
        {"mesh": axes, "batch": 16, "chip": chip, "attention": attention, **way},
    )


def check_kept(model, **way):
    program = programs.Program("", model, 2, **way)
    memory, stacked = count(model, batch=2, **way), stacked_bytes(program)
    setup = memory._setup
    stand_in = way["attention"] == "flash" and not setup.checkpointed
    if stand_in and not setup.adapts(
        "out"
    ):  # a kernel keeps its result, and it does not
        size = model.layers * setup.tokens * model.heads * model.head_dim
        stacked += size * setup.compute_bytes
    assert kept_bytes(memory, model) == stacked


@options(12)
@given(st.sampled_from([SMALL, GPT]), TYPES, TARGETS, st.data())
def test_what_is_kept_is_what_the_scan_stacks(model, types, targets, data):
    policies = ["everything_saveable", "selective", "nothing_saveable"]
    names = ("param_dtype", "compute_dtype", "base_dtype")
    check_kept(
        model,
        lora_rank=5,
        lora_targets=targets,
        recompute=data.draw(st.sampled_from(policies)),
        attention=data.draw(st.sampled_from(["plain", "flash"])),
        **dict(zip(names, types, strict=True)),
    )


KEPT = {
    "norms as if trained": ("norm_values", lambda setup: 3),
    "no narrow results": ("_narrow", lambda setup: []),
    "inputs of all matrices": (
        "_inputs",
        lambda setup: [activations._stream(setup, "inputs of matrices", 2)],
    ),
    "attention's result": ("keeps_result", lambda setup: True),
}


@pytest.mark.parametrize("mutant", KEPT)
def test_wrong_activations_are_noticed(mutant, monkeypatch):
    name, wrong = KEPT[mutant]
    monkeypatch.setattr(activations, name, wrong)
    with pytest.raises(AssertionError):
        check_kept(
            SMALL,
            lora_rank=5,
            lora_targets=("query", "value"),
            recompute="everything_saveable",
            attention="plain",
        )


STATE = {
    "adapters sharded over fsdp alone": (
        "numbers",
        lambda setup: (0, sum(training_state.numbers_of_adapters(setup))),
    ),
    "no scales": ("column_scales", lambda setup: ("0", 0)),
}


@pytest.mark.mutant
@pytest.mark.parametrize("mutant", STATE)
def test_wrong_state_is_noticed(mutant, monkeypatch):
    name, wrong = STATE[mutant]
    monkeypatch.setattr(training_state, name, wrong)
    must_fail(lambda case: check_state(*case), calls())


WRONG = {
    "targets without a rank": (
        {"lora_rank": None, "lora_targets": ("query",)},
        NotUnderstood,
        r"^lora_targets=\('query',\) is for adapters .* give lora_rank= too",
    ),
    "a type without a rank": (
        {"lora_rank": None, "base_dtype": "int8"},
        NotUnderstood,
        r"^base_dtype='int8' is for adapters .* or leave base_dtype out\.$",
    ),
    "no rank": (
        {"lora_rank": 0},
        NotUnderstood,
        r"^lora_rank=0 is not a rank of adapters; give an integer, 1 or more\.$",
    ),
    "another matrix": (
        {"lora_targets": ("q_proj",)},
        NotUnderstood,
        r"^lora_targets=\('q_proj',\): this model has no matrix of 'q_proj'; give some",
    ),
    "attention's result": (
        {"lora_targets": ("context",)},
        NotUnderstood,
        r"no matrix of 'context'",
    ),
    "one name": (
        {"lora_targets": "query"},
        NotUnderstood,
        r"^lora_targets='query' is no tuple of names",
    ),
    "a name twice": (
        {"lora_targets": ("up", "up")},
        NotUnderstood,
        r"give each name once\.$",
    ),
    "another type": (
        {"base_dtype": "int4"},
        NotUnderstood,
        r"^base_dtype='int4' is not",
    ),
    "an MLP": ({"model": MLP(2, 8, 8)}, NotUnderstood, r"not for an MLP\.$"),
    "experts": (
        {"model": MODELS["mixtral-8x7b"]},
        NotUnderstood,
        r"not for experts=8\.$",
    ),
    "stages": ({"mesh": {"stage": 3}}, NotUnderstood, r"not for stage=3\.$"),
    "muon": ({"optimizer": "muon"}, NotUnderstood, r"not for optimizer='muon'\.$"),
    "another policy": (
        {"recompute": "dots_saveable"},
        NotUnderstood,
        r"under recompute='nothing_saveable', 'everything_saveable' or 'selective'; "
        r"not for recompute='dots_saveable'\.$",
    ),
    "a width that does not divide": (
        {"model": CUT, "mesh": {"fsdp": 64, "model": 8}, "batch": 64},
        NotDivisible,
        r"^fsdp shards heads \* head_dim=128 over 512 devices",
    ),
}


test_a_wrong_argument_gets_one_sentence = one_sentence_each(WRONG, count)
