"""The arithmetic of `training_memory`: published tables, JAX's own lists, messages.

Sources of the known answers:
ZeRO: Rajbhandari et al. 2019, arXiv:1910.02054, Figure 1 and Table 1.
Activations: Korthikanti et al. 2022, arXiv:2205.05198, Tables 2 and 3.
GPT-3 on TP 8 x DP 8: Megatron-LM's theoretical_memory_usage.py @d98e8a64 prints
156116.43 MB, llm-analysis @d841e40 40.65 + 81.29 + 30.49.
"""

import ast
import dataclasses
import math
import operator
import re

import jax
import numpy as np
import optax
import optax.contrib
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import Mesh

from spmd_helpers._errors import NotDivisible, NotUnderstood, UnknownAxis
from spmd_helpers._hardware.chips import HARDWARE
from spmd_helpers._training import activations, transients, transients_gpu
from spmd_helpers._training import state as training_state
from spmd_helpers._training.model import MLP, Transformer
from spmd_helpers._training.models import MODELS
from spmd_helpers._training.recompute import RECOMPUTE
from spmd_helpers._training.setup import OPTIMIZERS, WITH_MU_DTYPE, Setup
from spmd_helpers._training.state import PHASES
from spmd_helpers._training.training_memory import training_memory
from tests.properties import must_fail, options
from tools.measure.truth import programs, reference

GIB = 2**30
GPT3 = MODELS["gpt3-175b"]
SMALL = Transformer(4, 64, 4, vocab=100, seq=32)
# Wide enough that adafactor keeps means of rows and columns; two dimensions are equal.
WIDE = Transformer(3, 160, 4, vocab=300, seq=200)
LLAMA = {"gated": True, "tied": False, "biases": False, "norm": "rms"}
GROUPED = Transformer(2, 64, 4, kv_heads=2, vocab=100, seq=32, **LLAMA)


# Nothing recomputed, and the scores written: what there is most of to count.
PLAIN = {"recompute": "everything_saveable", "attention": "plain"}


def count(model=SMALL, **how):
    return training_memory(model, **{"mesh": {"data": 2}, "batch": 8, **PLAIN, **how})


def one_sentence_each(wrong, count):
    """The test of a file's wrong arguments: name to arguments, error and its words."""

    @pytest.mark.parametrize("name", wrong)
    def refused(name):
        how, error, words = wrong[name]
        with pytest.raises(error, match=words) as caught:
            count(**how)
        assert caught.value.__suppress_context__
        assert caught.traceback[-1].path.name == "training_memory.py"

    return refused


def test_mutants_start_from_a_right_answer():
    """What the mutants below break is right as it stands."""
    for model in (SMALL, MLP(2, 24, 60)):
        for recompute in ("everything_saveable", "nothing_saveable"):
            check_kept(model, batch=2, recompute=recompute)


def line(memory, name):
    (one,) = [line for line in memory.lines if line.name == name]
    return one


# Published tables.


def state_of(parameters, data, zero, **how):
    """Bytes of each part of the state, for a number of parameters."""
    stack = MLP(1, parameters // 2, 1)
    assert stack.parameters == parameters
    sizes = {"param_bytes": 2, "grad_bytes": 2, "moment_bytes": 4, "mu_bytes": 4}
    setup = Setup(
        model=stack, data=data, split=1, zero=zero, batch=1, seq=1, compute_bytes=2,
        optimizer="adam", mu_dtype=None, master_weights=True,
        recompute="everything_saveable", attention="plain", sequence_parallel=False,
        counting="megatron", **{**sizes, **how},
    )  # fmt: skip
    return [line.bytes for line in training_state.state(setup)]


# Parameters cut over so many devices: what ZeRO 1, 2 and 3 leave, in 1e9 bytes.
ZERO_7B5 = {
    1: (120, 120, 120),
    4: (52.5, 41.3, 30),
    16: (35.6, 21.6, 7.5),
    64: (31.4, 16.6, 1.88),
    256: (30.4, 15.4, 0.47),
    1024: (30.1, 15.1, 0.12),
}


@pytest.mark.parametrize("devices", ZERO_7B5)
def test_zero_table_1(devices):
    gigabytes = [
        sum(state_of(7_500_000_000, devices, zero)) / 1e9 for zero in (1, 2, 3)
    ]
    for got, published in zip(gigabytes, ZERO_7B5[devices], strict=True):
        digits = len(str(published).partition(".")[2])
        assert abs(got - published) <= 0.51 * 10**-digits, (got, published)
    assert sum(state_of(7_500_000_000, devices, 0)) == 120e9


def test_gpt3_on_64_devices():
    how = {"mesh": {"data": 8, "model": 8}, "batch": 8, "param_dtype": "bfloat16"}
    how |= {"counting": "megatron", "master_weights": True, "sequence_parallel": True}
    counted = count(GPT3, zero=1, grad_dtype="float32", recompute="selective", **how)
    parts = [counted.params_bytes, counted.grads_bytes, counted.optimizer_bytes]
    assert [round(n / GIB, 2) for n in parts] == [40.65, 81.31, 30.49]
    assert round(sum(parts) / GIB, 2) == 152.45
    assert abs(sum(parts) / 2**20 - 156116.43) < 11  # it also counts a few numbers more
    assert counted.total_bytes == sum(parts) + counted.activations_bytes
    without_zero = count(GPT3, zero=0, **how)
    assert (
        round((without_zero.total_bytes - without_zero.activations_bytes) / GIB, 2)
        == 325.23
    )


# As JAX lays it out, positions, norms and some biases stay whole: a little more.
def test_gpt3_as_jax_lays_it_out():
    how = {"mesh": {"data": 8, "model": 8}, "batch": 8, "zero": 1}
    counted = count(
        GPT3, param_dtype="bfloat16", master_weights=True, grad_dtype="float32", **how
    )
    parts = [counted.params_bytes, counted.grads_bytes, counted.optimizer_bytes]
    assert [round(n / GIB, 2) for n in parts] == [40.71, 81.41, 30.53]


PAPER_22B = Transformer(48, 6144, 64, vocab=51200, seq=2048)
PAPER_175B = Transformer(96, 12288, 96, vocab=51200, seq=2048)
# Bytes a layer, and GiB of all layers.
KORTHIKANTI = {
    "none_noTP": ((7079985152, 2868903936), (316.5, 256.5)),
    "TP": ((1325400064, 578813952), (59.25, 51.75)),
    "TP+SP": ((884998144, 358612992), (39.56, 32.06)),
    "TP+selective": ((654311424, 327155712), (29.25, 29.25)),
    "TP+SP+selective": ((213909504, 106954752), (9.56, 9.56)),
    "full_recompute": ((100663296, 50331648), (4.5, 4.5)),
}


@pytest.mark.parametrize("row", KORTHIKANTI)
@pytest.mark.parametrize("which", [0, 1])
def test_korthikanti_table_2(row, which):
    model, batch = ((PAPER_22B, 4), (PAPER_175B, 1))[which]
    recompute = "selective" if "selective" in row else "everything_saveable"
    counted = count(
        model,
        mesh={"model": 1 if "noTP" in row else 8},
        batch=batch,
        recompute="nothing_saveable" if "full" in row else recompute,
        sequence_parallel="SP" in row,
        counting="megatron",
    )
    each, gib = (numbers[which] for numbers in KORTHIKANTI[row])
    assert counted.activations_bytes == model.layers * each
    assert round(counted.activations_bytes / GIB, 2) == gib


def test_korthikanti_flash_is_selective_and_sequences_cut_inputs():
    how = {"mesh": {"model": 8}, "batch": 4, "counting": "megatron"}
    flash = count(PAPER_22B, attention="flash", **how)
    selective = count(PAPER_22B, recompute="selective", **how)
    assert flash.activations_bytes == selective.activations_bytes
    cut = count(PAPER_22B, recompute="nothing_saveable", sequence_parallel=True, **how)
    assert cut.activations_bytes == 48 * 100663296 // 8  # 2sbh/t


# Bytes for each parameter: (params, grads, optimizer), by who counts so.
HALF = {"param_dtype": "bfloat16"}
CONVENTIONS = {
    "16, optax on float32": ({}, (4, 4, 8)),
    "8, optax on bfloat16": (HALF, (2, 2, 4)),
    "10 at rest and 12, no master copy": (
        HALF | {"moment_dtype": "float32"},
        (2, 2, 8),
    ),
    "16, ZeRO": (HALF | {"master_weights": True}, (2, 2, 12)),
    "18, Megatron-LM": (
        HALF | {"master_weights": True, "grad_dtype": "float32"},
        (2, 4, 12),
    ),
    "20, DeepSpeed": (
        HALF | {"master_weights": True, "grad_dtype": ("bfloat16", "float32")},
        (2, 6, 12),
    ),
    "momentum": ({"optimizer": "momentum"}, (4, 4, 4)),
    "lion": ({"optimizer": "lion"}, (4, 4, 4)),
    "sgd": ({"optimizer": "sgd"}, (4, 4, 0)),
    "sgd on a master copy": (
        HALF | {"optimizer": "sgd", "master_weights": True},
        (2, 2, 4),
    ),
}


@pytest.mark.parametrize("name", CONVENTIONS)
def test_bytes_for_each_parameter(name):
    how, expected = CONVENTIONS[name]
    counted = count(MLP(3, 16, 64), mesh={}, **how)
    parts = counted.params_bytes, counted.grads_bytes, counted.optimizer_bytes
    steps = OPTIMIZERS[how.get("optimizer", "adam")][1]
    assert parts[2] - steps == expected[2] * 6144
    assert parts[:2] == (expected[0] * 6144, expected[1] * 6144)


def stacked_matrices(params):
    """What muon has to be told of arrays whose first dimension is the layers."""
    numbers = optax.contrib.MuonDimensionNumbers(1, 2)
    return jax.tree.map(lambda w: numbers if w.ndim == 3 else None, params)


OPTAX = {
    "adafactor": optax.adafactor(1e-3),
    "muon": optax.contrib.muon(1e-3, muon_weight_dimension_numbers=stacked_matrices),
    "adam": optax.adam(1e-3),
    "adamw": optax.adamw(1e-3),
    "lion": optax.lion(1e-3),
    "momentum": optax.sgd(1e-3, momentum=0.9),
    "sgd": optax.sgd(1e-3),
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optax_keeps_as_much(name, dtype):
    for model in (MLP(3, 16, 64), MLP(3, 160, 640), SMALL, WIDE, GROUPED):
        program = programs.Program("", model, 8, param_dtype=dtype)
        mesh = Mesh(np.array(jax.devices()[:1]).reshape(1, 1), reference.AXES)
        params = reference.state_shapes(program, mesh)["params"]
        state = jax.tree.leaves(jax.eval_shape(OPTAX[name].init, params))
        kept = sum(leaf.size * leaf.dtype.itemsize for leaf in state)
        counted = count(model, mesh={}, optimizer=name, param_dtype=dtype)
        assert counted.optimizer_bytes == kept, model


@pytest.mark.parametrize("mu_dtype", ["bfloat16", "float32", "float16"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", WITH_MU_DTYPE)
def test_optax_keeps_as_much_with_a_first_moment_of_another_type(name, dtype, mu_dtype):
    params = {"w": jax.ShapeDtypeStruct((3, 2, 16, 64), dtype)}
    optimizer = getattr(optax, name)(1e-3, mu_dtype=mu_dtype)
    state = jax.tree.leaves(jax.eval_shape(optimizer.init, params))
    kept = sum(leaf.size * leaf.dtype.itemsize for leaf in state)
    how = {"mesh": {}, "optimizer": name, "param_dtype": dtype, "mu_dtype": mu_dtype}
    counted = count(MLP(3, 16, 64), **how)
    assert counted.optimizer_bytes == kept
    assert line(counted, f"optimizer ({name}, mu in {mu_dtype})").bytes == kept
    once_more = count(MLP(3, 16, 64), **how, moment_dtype=dtype)
    assert once_more.optimizer_bytes == kept


def test_a_first_moment_in_bfloat16_beside_a_master_copy():
    how = {"mesh": {}, "param_dtype": "bfloat16", "master_weights": True}
    counted = count(MLP(3, 16, 64), **how, mu_dtype="bfloat16")
    assert counted.optimizer_bytes == (2 + 4 + 4) * 6144 + 4
    name = "optimizer (adam, mu in bfloat16, master copy)"
    assert line(counted, name).formula == "10 B × 6144 + 4 B"
    assert name in str(counted)
    plain = count(MLP(3, 16, 64), **how)
    assert plain.optimizer_bytes - counted.optimizer_bytes == 2 * 6144


# Against JAX: what its scan stacks, and what its shardings leave on a device.


def scans(jaxpr):
    """The scans of a jaxpr, in order, without those inside of them."""
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "scan":
            yield eqn
            continue
        for value in eqn.params.values():
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from scans(inner)


def stacked_bytes(program):
    """Bytes that the forward scan of a program's loss stacks for the backward one."""
    mesh = Mesh(np.array(jax.devices()[:1]).reshape(1, 1), reference.AXES)
    net = reference.Net(program, mesh)
    state = reference.state_shapes(program, mesh)
    params, frozen = state["params"], state.get("frozen")
    batch = reference.batch_shapes(program, mesh)
    jaxpr = jax.make_jaxpr(jax.value_and_grad(net.loss))(params, batch, frozen)
    forward = list(scans(jaxpr.jaxpr))[: len({"layers", "dense"} & set(params))]
    stacked = []
    for scan in forward:
        inner = scan.params["jaxpr"].jaxpr.outvars
        outer = [v.aval for v in scan.outvars]
        pairs = zip(outer, inner, strict=True)
        stacked += [a for a, v in pairs if a.shape != v.aval.shape]
    stacked = [a for a in stacked if "<host>" not in a.str_short()]
    return sum(math.prod(a.shape) * a.dtype.itemsize for a in stacked)


# The derivative of tanh, and so gelu, keeps one value less from JAX 0.12 on.
GELU_KEEPS_LESS = tuple(map(int, jax.__version__.split(".")[:2])) >= (0, 12)


def kept_bytes(memory, model):
    """What training_memory says of the same."""
    listed = [one for one in memory.lines if "print_saved_residuals" in one.source]
    total = sum(one.bytes for one in listed)
    hidden = [one.bytes for one in listed if one.name.startswith("inside of the")]
    lora = memory._setup.lora
    if hidden and not model.gated and GELU_KEEPS_LESS:
        total -= sum(hidden) // (6 if lora is None or "down" in lora.targets else 5)
    return total


@st.composite
def small_models(draw):
    heads = draw(st.sampled_from([1, 2, 4, 6]))
    kv_heads = draw(st.sampled_from([k for k in (1, 2, 3, 6) if heads % k == 0]))
    return Transformer(
        layers=draw(st.integers(1, 3)),
        d_model=draw(st.sampled_from([24, 40])),
        heads=heads,
        kv_heads=kv_heads,
        d_ff=draw(st.sampled_from([28, 60])),
        head_dim=draw(st.sampled_from([4, 10])),
        vocab=50,
        seq=draw(st.sampled_from([5, 12])),
        gated=draw(st.booleans()),
        tied=draw(st.booleans()),
        biases=draw(st.booleans()),
        positions=draw(st.sampled_from(["learned", "rotary", "none"])),
        norm=draw(st.sampled_from(["layer", "rms"])),
        qkv_biases=draw(st.booleans()),
        qk_norm=draw(st.booleans()),
        post_norms=draw(st.booleans()),
        window=draw(st.sampled_from([None, 4])),
    )


def check_kept(model, **way):
    program = programs.Program("", model, **way)
    counted = training_memory(model, mesh={}, **PLAIN | way)
    assert kept_bytes(counted, model) == stacked_bytes(program)


F32, BF16 = "float32", "bfloat16"
# Names for the policies that take some: of these one is never used by a derivative.
NAMED = {
    "save_only_these_names": {"names_which_can_be_saved": ("up", "down")},
    "save_and_offload_only_these_names": {
        "names_which_can_be_saved": ("down",),
        "names_which_can_be_offloaded": ("up",),
    },
}


@pytest.mark.parametrize("recompute", list(RECOMPUTE))
@pytest.mark.parametrize(
    "types",
    [
        (F32, BF16),
        (BF16, F32),
        *(
            pytest.param(types, marks=pytest.mark.long("more types, compiled"))
            for types in [(BF16, BF16), (F32, F32)]
        ),
    ],
)
def test_what_is_kept_is_what_the_scan_stacks(recompute, types):
    how = dict(zip(("param_dtype", "compute_dtype"), types, strict=True)) | {
        "recompute": recompute,
        **NAMED.get(recompute, {}),
    }
    check_kept(MLP(3, 24, 60), batch=5, **how)

    @options(2)
    @given(small_models(), st.integers(1, 3), st.sampled_from(["plain", "flash"]))
    def check(model, batch, attention):
        if recompute == "dots_saveable":  # the stand-in for a kernel has products
            attention = "plain"
        check_kept(model, batch=batch, attention=attention, **how)

    check()


MESHES = ((1, 8), (8, 1), (2, 4), (4, 2))


@st.composite
def cut_models(draw):
    """Models and meshes of eight devices that divide them."""
    data, split = draw(st.sampled_from(MESHES))
    if draw(st.booleans()):
        kind = {"gated": draw(st.booleans()), "biases": draw(st.booleans())}
        kind |= {"tied": draw(st.booleans())}
        kind |= {"norm": draw(st.sampled_from(["layer", "rms"]))}
        kind |= {"positions": draw(st.sampled_from(["learned", "rotary"]))}
        heads = 8 * draw(st.integers(1, 2))
        shapes = {"heads": heads, "kv_heads": 8, "head_dim": 8, "seq": 16}
        shapes |= {"vocab": draw(st.integers(20, 60)), "d_ff": 192}
        model = Transformer(draw(st.integers(1, 3)), 40, **shapes, **kind)
    else:
        model = MLP(draw(st.integers(1, 3)), 40, 192)
    way = {
        "zero": draw(st.integers(0, 3)),
        "param_dtype": draw(st.sampled_from(["float32", "bfloat16"])),
        "optimizer": draw(st.sampled_from(["adam", "momentum", "sgd"])),
        "master_weights": draw(st.booleans()),
    }
    return model, data, split, way


def device_bytes(tree):
    return sum(
        math.prod(s.sharding.shard_shape(s.shape)) * s.dtype.itemsize
        for s in jax.tree.leaves(tree)
    )


def compare_state(memory, program, mesh):
    """Each part of the state against the shardings of the reference."""
    state = reference.state_shapes(program, mesh)
    assert memory.params_bytes == device_bytes(state.pop("params"))
    assert memory.grads_bytes == device_bytes(reference.grad_shapes(program, mesh))
    assert memory.optimizer_bytes == device_bytes(state)
    batch = reference.batch_shapes(program, mesh)
    assert line(memory, "batch").bytes == device_bytes(batch)


def check_state(model, data, split, way):
    program = programs.Program("", model, 8, data=data, model_axis=split, **way)
    mesh = Mesh(np.array(jax.devices()).reshape(data, split), reference.AXES)
    counted = training_memory(
        model, mesh={"data": data, "model": split}, batch=8, **way
    )
    compare_state(counted, program, mesh)


@options(60)
@given(cut_models())
def test_the_state_is_what_the_shardings_leave_on_a_device(case):
    check_state(*case)


@pytest.mark.parametrize("zero", [0, 2, 3])
def test_compiled_gradients_are_where_they_are_counted(zero):
    program = programs.Program("", MLP(2, 40, 48), 8, data=4, model_axis=2, zero=zero)
    mesh = Mesh(np.array(jax.devices()).reshape(4, 2), reference.AXES)
    run, shapes = reference.gradients(program, mesh)
    compiled = jax.jit(run).lower(*shapes).compile()
    _, grads = compiled.output_shardings
    _, values = jax.eval_shape(run, *shapes)
    place = jax.tree.map(
        lambda s, where: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=where),
        values,
        grads,
    )
    way = {"mesh": {"data": 4, "model": 2}, "batch": 8, "zero": zero}
    assert training_memory(program.model, **way).grads_bytes == device_bytes(place)


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
@pytest.mark.parametrize("optimizer", ["adam", "adafactor"])
def test_norms_that_do_not_divide_are_on_each_device(zero, optimizer):
    shapes = {"head_dim": 4, "qk_norm": True}
    way = {"zero": zero, "optimizer": optimizer}
    for norm in ("layer", "rms"):
        model = dataclasses.replace(SMALL, norm=norm, **shapes)
        check_state(model, 8, 1, way)
        check_sums(model, {"mesh": {"data": 8}, "batch": 8, **way})


def test_an_integer_that_is_too_long_gets_one_sentence():
    for key in ("seq", "batch", "zero", "gradient_accumulation", "interleave"):
        for huge in (10**400, 10**5000):
            with pytest.raises(NotUnderstood, match=f"^{key} has an integer of"):
                count(**{key: huge})
    with pytest.raises(NotUnderstood, match=r"^margin has an integer of 5001 digits"):
        count().fits("h100", margin=10**5000)


# Properties.


@st.composite
def calls(draw):
    """Arguments of training_memory that it takes."""
    model, data, split, way = draw(cut_models())
    way |= {
        "batch": 8 * draw(st.integers(1, 3)),
        "mesh": {"data": data, "model": split},
    }
    way |= {"compute_dtype": draw(st.sampled_from(["float32", "bfloat16"]))}
    way |= {"recompute": draw(st.sampled_from(list(RECOMPUTE)))}
    way |= NAMED.get(way["recompute"], {})
    way |= {"chip": draw(st.sampled_from([None, "v5e", "a100-40gb", "h100", "b200"]))}
    if isinstance(model, Transformer):
        way |= {"attention": draw(st.sampled_from(["plain", "flash"]))}
        way |= {"sequence_parallel": draw(st.booleans())}
    return model, way


OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def value(node):
    """The value of an expression of whole numbers."""
    if isinstance(node, ast.BinOp):
        return OPERATORS[type(node.op)](value(node.left), value(node.right))
    assert isinstance(node, ast.Constant)
    return node.value


def formula_value(formula):
    """What a formula says, its words left out."""
    plain = re.sub(r"[A-Za-z]+", " ", formula).replace("×", "*")
    return value(ast.parse(plain.strip(), mode="eval").body)


def check_sums(model, way):
    counted = training_memory(model, **way)
    sums = {m: sum(one.bytes for one in counted.lines if m in one.when) for m in PHASES}
    assert counted.phases == sums
    assert counted.total_bytes == max(sums.values()) == sums[counted.peak_phase]
    parts = [counted.params_bytes, counted.activations_bytes]
    if counted.peak_phase == "update" or not way.get("offload_optimizer"):
        parts.append(counted.optimizer_bytes)
    if counted.peak_phase in ("backward", "update"):
        parts.append(counted.grads_bytes)
    assert counted.total_bytes == sum(parts)
    for one in counted.lines:
        assert formula_value(one.formula) == pytest.approx(one.bytes, abs=1), one
        assert one.bytes >= 0
        assert set(one.when) <= set(PHASES)


@options(150)
@given(calls())
def test_lines_add_up_and_formulas_say_their_bytes(case):
    check_sums(*case)


@options(60)
@given(calls())
def test_each_stage_of_zero_takes_less(case):
    model, way = case
    stages = [training_memory(model, **{**way, "zero": zero}) for zero in range(4)]
    parts = ("optimizer_bytes", "grads_bytes", "params_bytes")
    for stage, part in enumerate(parts, start=1):
        before, after = (getattr(stages[i], part) for i in (stage - 1, stage))
        steps = 4 if part == "optimizer_bytes" and way["optimizer"] == "adam" else 0
        assert after - steps == (before - steps) // way["mesh"]["data"]
        for other in parts:
            if other != part:
                assert getattr(stages[stage], other) == getattr(
                    stages[stage - 1], other
                )


@options(60)
@given(calls())
def test_twice_the_batch_keeps_twice_as_much(case):
    model, way = case

    def kept(batch):
        return {
            one.name: one.bytes
            for one in training_memory(model, **{**way, "batch": batch}).lines
            if one.when == activations.KEPT
            and not one.name.startswith(("weights", "norms"))
        }

    once, twice = kept(way["batch"]), kept(2 * way["batch"])
    assert twice == {name: 2 * size for name, size in once.items()}


@options(60)
@given(calls())
def test_more_recompute_keeps_less(case):
    model, way = case
    way = {k: v for k, v in way.items() if not k.startswith("names_")}

    def kept(mode):
        how = {**way, "recompute": mode, **NAMED.get(mode, {})}
        counted = training_memory(model, **how)
        return sum(one.bytes for one in counted.lines if one.source == activations._JAX)

    everything, nothing = kept("everything_saveable"), kept("nothing_saveable")
    assert everything >= kept("selective") > nothing
    assert everything > kept("dots_saveable")
    assert kept("dots_saveable") >= kept("dots_with_no_batch_dims_saveable") > nothing
    assert kept("offload_dot_with_no_batch_dims") == nothing
    assert kept("save_only_these_names") > nothing
    assert kept("save_and_offload_only_these_names") == nothing


def test_axes_cut_what_they_say():
    unsharded = count(mesh={}, batch=8)
    cut = count(mesh={"model": 2}, batch=8)
    halves = ("queries, keys, values, their result", "scores of attention")
    for name in (*halves, "inside of the mlp"):
        assert 2 * line(cut, name).bytes == line(unsharded, name).bytes
    for name in ("norms", "inputs of matrices"):
        assert line(cut, name).bytes == line(unsharded, name).bytes
    parallel = count(mesh={"model": 2}, batch=8, sequence_parallel=True)
    name = "inputs of matrices"
    assert 2 * line(parallel, name).bytes == line(unsharded, name).bytes


def test_flash_and_grouped_queries():
    names = [one.name for one in count(attention="flash").lines]
    assert not [name for name in names if name.startswith("scores")]
    name = "queries, keys, values, their result"
    grouped = dataclasses.replace(SMALL, kv_heads=1)
    assert line(count(grouped), name).bytes * 8 == line(count(), name).bytes * 5


# Mutants: each is noticed by one of the checks above.


def _everything_cut(setup):
    split, unsharded = _NUMBERS(setup)
    return split + unsharded, 0


def _nothing_rounded(setup):
    split, unsharded = _NUMBERS(setup)
    rows = (1 if setup.is_mlp or setup.model.tied else 2) * setup.model.d_model
    extra = 0 if setup.is_mlp else (setup.rows - setup.model.vocab) * rows
    return split - extra, unsharded


_NUMBERS = training_state.numbers
STATE_MUTANTS = {
    "the axis model cuts norms too": ("numbers", _everything_cut),
    "the vocabulary is not rounded up": ("numbers", _nothing_rounded),
    "no attention": (
        "layer_weights",
        lambda m: (3 if getattr(m, "gated", False) else 2) * m.d_model * m.d_ff,
    ),
    "no gate": (
        "layer_weights",
        lambda m: (
            _WEIGHTS(m) - (m.d_model * m.d_ff if getattr(m, "gated", False) else 0)
        ),
    ),
    "no axis cuts anything": (
        "sharded",
        lambda setup, each, stage: (f"{each} B", each * sum(_NUMBERS(setup))),
    ),
    "data cuts at every stage": (
        "sharded",
        lambda setup, each, stage: _SHARDED(
            dataclasses.replace(setup, zero=3), each, stage
        ),
    ),
}
_SHARDED, _WEIGHTS = training_state.sharded, training_state.layer_weights


@pytest.mark.parametrize("mutant", STATE_MUTANTS)
def test_wrong_state_is_noticed(mutant, monkeypatch):
    name, wrong = STATE_MUTANTS[mutant]
    monkeypatch.setattr(training_state, name, wrong)
    must_fail(lambda case: check_state(*case), cut_models())


KEPT_MUTANTS = {
    "two values a norm": ("_NORM", 2),
    "four values of the mlp": ("_HIDDEN", 4),
    "no weights": ("copies", lambda setup: []),
    "weights twice": (
        "copies",
        lambda setup: _COPIES(setup) * 2,
    ),
    "softmax kept once": (
        "_scores",
        lambda setup: _SCORES(setup)._replace(bytes=_SCORES(setup).bytes * 2 // 3),
    ),
    "one input of matrices": (
        "_stream",
        lambda setup, name, count: _STREAM(setup, name, 1),
    ),
    "relu without its mask": (
        "_relu",
        lambda setup: _RELU(setup)._replace(bytes=_RELU(setup).bytes * 2 // 3),
    ),
}
_COPIES, _SCORES = activations.copies, activations._scores
_STREAM, _RELU = activations._stream, activations._relu


@pytest.mark.parametrize("mutant", KEPT_MUTANTS)
def test_wrong_activations_are_noticed(mutant, monkeypatch):
    name, wrong = KEPT_MUTANTS[mutant]
    monkeypatch.setattr(activations, name, wrong)
    both = {"param_dtype": "float32", "compute_dtype": "bfloat16", "batch": 2}
    ends = ("everything_saveable", "nothing_saveable")
    calls = [(m, r) for m in (SMALL, MLP(2, 24, 60)) for r in ends]

    def check():
        for model, recompute in calls:
            check_kept(model, recompute=recompute, **both)

    with pytest.raises(AssertionError):
        check()


SUM_MUTANTS = {
    "a formula without its axis": (training_state, "over", lambda axis, size: ""),
    "a formula without its cut": (activations, "over", lambda axis, size: ""),
    "another formula without its cut": (transients, "over", lambda axis, size: ""),
    "a GPU's formula without its cut": (transients_gpu, "over", lambda axis, size: ""),
    "tokens of all devices": (
        activations,
        "_tokens",
        lambda setup: f"{setup.tokens * setup.data} tokens",
    ),
}


@pytest.mark.parametrize("mutant", SUM_MUTANTS)
def test_wrong_formulas_are_noticed(mutant, monkeypatch):
    module, name, wrong = SUM_MUTANTS[mutant]
    monkeypatch.setattr(module, name, wrong)
    must_fail(lambda case: check_sums(*case), calls())


# Whether it fits.


def test_fits():
    counted = count(
        GPT3, mesh={"data": 8, "model": 8}, batch=64, recompute="nothing_saveable"
    )
    assert counted.fits("v5p", margin=0.95)
    assert not counted.fits("v5e")
    usable = HARDWARE["v5p"].usable_bytes
    assert counted.left_bytes("v5p") == math.floor(0.9 * usable) - counted.total_bytes
    assert counted.left_bytes(HARDWARE["v5p"], 1) == usable - counted.total_bytes
    tight = counted.total_bytes / usable
    assert counted.fits("v5p", tight + 1e-9)
    assert not counted.fits("v5p", tight - 1e-9)


def test_a_chip_is_counted_by_its_own_compiler():
    ways = {"recompute": "nothing_saveable", "batch": 8, "mesh": {"data": 2}}
    by_chip = {name: count(chip=name, **ways) for name in (None, "v5p", "h100", "b200")}
    assert by_chip[None] == by_chip["v5p"] != by_chip["h100"] != by_chip["b200"]
    for name in ("v5e", "a100-40gb", "h100", "h200", "b200"):
        left = {one.left_bytes(name) for one in by_chip.values()}
        counted = count(chip=name, **ways).total_bytes
        allowed = math.floor(HARDWARE[name].margin * HARDWARE[name].program_bytes)
        assert left == {allowed - counted}
    assert by_chip["h100"].params_bytes == by_chip[None].params_bytes
    assert count(chip=HARDWARE["h100"], **ways) == by_chip["h100"]


def test_a_gpu_gives_a_program_its_pool():
    h100 = HARDWARE["h100"]
    assert h100.program_bytes == 84942979072 * 3 // 4 - 320 * 2**20
    assert HARDWARE["v5e"].program_bytes == HARDWARE["v5e"].usable_bytes
    counted = count(chip="h100")
    wide = dataclasses.replace(h100, pool_share=1.0, library_bytes=0)
    assert wide.program_bytes == h100.driver_bytes < h100.usable_bytes
    assert counted.left_bytes(wide, 1) == h100.driver_bytes - counted.total_bytes
    half = dataclasses.replace(h100, margin=0.5)
    assert counted.left_bytes(half) == counted.left_bytes(h100, 0.5)


def test_a_chip_that_is_not_known():
    with pytest.raises(NotUnderstood, match=r"'h1000' is not known\. Did you mean 'h1"):
        count(chip="h1000")


def test_what_fits_takes():
    counted = count()
    with pytest.raises(NotUnderstood, match=r"'h1000' is not known\. Did you mean 'h1"):
        counted.fits("h1000")
    for margin in (0, 1.5, "0.9", True):
        with pytest.raises(NotUnderstood, match=r"give a number above 0 and at most 1"):
            counted.fits("h100", margin)


# Words.

TABLE = """\
Training memory of MLP of 4 layers, d_model 64 on data=2: 2.29 MiB on each device
what                               per device  when                     how
parameters                            512 KiB  always                   4 B × 131072
gradients                             512 KiB  backward, update         4 B × 131072
optimizer (adam)                        1 MiB  always                   8 B × 131072 + 4 B
batch                                   4 KiB  always                   2 × 4 B × 8 rows × 64
weights as computed with              256 KiB  forward, loss, backward  4 layers × 2 B × 32768
inputs of layers                        4 KiB  forward, loss, backward  4 layers × 8 rows × 2 B × 64
hidden, and its mask                   24 KiB  forward, loss, backward  4 layers × 8 rows × (2 B + 1 B) × 256
weights converted before the loop     256 KiB  forward                  4 layers × 2 B × 32768
inside of one layer, forward            6 KiB  forward                  8 × 2 B × (1 × 256 + 2 × 64)
inside of one layer, backward           6 KiB  backward                 8 × 2 B × (1 × 256 + 2 × 64)
total                                2.29 MiB  backward                 what is there in this phase
Most in each phase of a step: forward 2.04 MiB, loss 1.78 MiB, backward 2.29
  MiB, update 2 MiB."""  # noqa: E501


def test_the_table_and_its_html_say_the_same():
    counted = count(MLP(4, 64, 256), zero=0, batch=16)
    text = str(counted)
    assert text == TABLE
    assert repr(counted) == (
        "TrainingMemory(MLP of 4 layers, d_model 64 on data=2: 2.29 MiB a device, "
        "most in backward)"
    )
    html = counted._repr_html_()
    cells = re.findall(r"<t[dh][^>]*>([^<]*)</t[dh]>", html)
    rows = [cells[i : i + 4] for i in range(0, len(cells), 4)]
    lines = text.splitlines()
    assert len(rows) == len(counted.lines) + 2
    for row, words in zip(rows, lines[1:], strict=False):
        assert re.split(r"  +", words) == row
    notes = re.findall(r"<p [^>]*>([^<]*)</p>", html)
    assert " ".join(notes).split() == " ".join(lines[1 + len(rows) :]).split()


def test_notes():
    counted = count(MODELS["gpt3-small"], mesh={"model": 4})
    assert counted.notes == (
        "The vocabulary of 50257 is rounded up to 50260, which divides over the 4 "
        "devices of model.",
    )
    published = count(PAPER_22B, counting="megatron")
    assert "Counted by published formulas" in str(published)
    assert "on one device" in str(count(mesh={}))


# What it does not take.

WRONG = {
    "a name for a model": (
        {"model": "gpt3"},
        NotUnderstood,
        r"model='gpt3' is not known\. Did you mean 'gpt3-small' or",
    ),
    "a mesh that is no dict": (
        {"mesh": 8},
        NotUnderstood,
        r"mesh=8 is not a dict of axis sizes; give one such as \{'data': 4, 'model'",
    ),
    "another axis": (
        {"mesh": {"dp": 8}},
        UnknownAxis,
        r"has an axis 'dp'; here a mesh has 'data' .* give \{'data': 8\}\.",
    ),
    "another axis beside data": (
        {"mesh": {"data": 2, "tensor": 4}},
        UnknownAxis,
        r"an axis 'tensor'.* give \{'data': 2, 'model': 4\}\.",
    ),
    "sequences sharded by another name": (
        {"mesh": {"fsdp": 2, "cp": 4}},
        UnknownAxis,
        r"an axis 'cp'.*'context' \(shards the tokens of a sequence\).*: give "
        r"\{'fsdp': 2, 'context': 4\}\.",
    ),
    "a batch that does not divide over both": (
        {"mesh": {"data": 2, "fsdp": 2}, "batch": 6},
        NotDivisible,
        r"batch=6 does not divide over the 4 devices of data and fsdp; .* 4 or 8\.",
    ),
    "a context of an MLP": (
        {"model": MLP(2, 8, 8), "mesh": {"context": 2}},
        NotUnderstood,
        r"an MLP has no sequences that context could shard; leave context out\.",
    ),
    "a ring of nothing": (
        {"attention": "ring"},
        NotUnderstood,
        r"attention='ring' sends keys and values around the axis context, which this "
        r"mesh has not; give mesh a 'context', or attention='flash'\.",
    ),
    "tokens that do not divide over context": (
        {"mesh": {"context": 3}},
        NotDivisible,
        r"seq=32 does not divide over the 3 devices of context; give another seq\.",
    ),
    "tokens that do not divide over both": (
        {"mesh": {"context": 2, "model": 4}, "seq": 12, "sequence_parallel": True},
        NotDivisible,
        r"seq=12 does not divide over the 8 devices of context and model; give",
    ),
    "a width that fsdp does not divide": (
        {"mesh": {"fsdp": 3}, "batch": 3},
        NotDivisible,
        r"^fsdp shards d_model=64 over 3 devices \(fsdp=3\), which does not divide; "
        r"make fsdp smaller\.$",
    ),
    "a width that fsdp and data do not divide": (
        {"mesh": {"data": 3, "fsdp": 2}, "zero": 1, "batch": 6},
        NotDivisible,
        r"^fsdp shards d_model=64 over 6 devices \(data=3 × fsdp=2\), which does not "
        r"divide; make fsdp or data smaller\.$",
    ),
    "parameters of whole numbers": (
        {"param_dtype": "int8"},
        NotUnderstood,
        r"param_dtype='int8' is no type of floating-point numbers, which training",
    ),
    "moments of four bits": (
        {"moment_dtype": "int4"},
        NotUnderstood,
        r"moment_dtype='int4' is not counted for moments; give 'float32', 'bfloat16', "
        r".* or 'int8'\.$",
    ),
    "moments of adafactor": (
        {"moment_dtype": "float32", "optimizer": "adafactor"},
        NotUnderstood,
        r"moment_dtype='float32': optax's adafactor keeps its numbers in the type of",
    ),
    "moments of muon": (
        {"moment_dtype": "int8", "optimizer": "muon"},
        NotUnderstood,
        r"moment_dtype='int8' is not counted for optimizer='muon'; give",
    ),
    "a policy without its names": (
        {"recompute": "save_only_these_names"},
        NotUnderstood,
        r"^recompute='save_only_these_names' has no name; give "
        r"names_which_can_be_saved some of 'query', 'key', 'value', 'context', 'out', "
        r"'up' and 'down', or recompute='nothing_saveable'\.$",
    ),
    "names without their policy": (
        {"names_which_can_be_saved": ("up",)},
        NotUnderstood,
        r"names_which_can_be_saved=\('up',\) is for recompute='save_only_these_names' "
        r"or 'save_and_offload_only_these_names', and recompute='everything_saveable'",
    ),
    "a name to offload where none are": (
        {
            "recompute": "save_only_these_names",
            "names_which_can_be_offloaded": ("up",),
        },
        NotUnderstood,
        r"is for recompute='save_and_offload_only_these_names', and recompute='save_on",
    ),
    "a name that the model has not": (
        {"recompute": "save_only_these_names", "names_which_can_be_saved": ("gate",)},
        NotUnderstood,
        r"names_which_can_be_saved=\('gate',\): this model has no result 'gate'; give",
    ),
    "a name twice": (
        {
            "recompute": "save_and_offload_only_these_names",
            "names_which_can_be_saved": ("up",),
            "names_which_can_be_offloaded": ("up",),
        },
        NotUnderstood,
        r"give 'up' and 'up'; give each name once\.",
    ),
    "parts that do not divide": (
        {"mesh": {}, "batch": 3, "gradient_accumulation": 2},
        NotDivisible,
        r"^batch=3 does not divide over 2 parts; .* make it 2 or 4\.$",
    ),
    "None for names": (
        {"recompute": "save_only_these_names", "names_which_can_be_saved": None},
        NotUnderstood,
        r"^names_which_can_be_saved=None is no tuple of names; give one such as "
        r"\('query', 'up'\), or \(\) for none\.$",
    ),
    "names that can be read once": (
        {
            "recompute": "save_only_these_names",
            "names_which_can_be_saved": (name for name in ["up"]),
        },
        NotUnderstood,
        r"^names_which_can_be_saved=<generator .* is no tuple of names; give one",
    ),
    "one text for names": (
        {"recompute": "save_only_these_names", "names_which_can_be_saved": "up"},
        NotUnderstood,
        r"names_which_can_be_saved='up' is no tuple of names; give one such as",
    ),
    "published formulas with another policy": (
        {"recompute": "dots_saveable", "counting": "megatron"},
        NotUnderstood,
        r"counting='megatron' has no recompute='dots_saveable'; give",
    ),
    "an axis of no devices": (
        {"mesh": {"data": 0}},
        NotUnderstood,
        r"axis 'data' has size 0; a mesh maps each axis name to a number",
    ),
    "a batch that does not divide": (
        {"batch": 9},
        NotDivisible,
        r"batch=9 does not divide over the 2 devices of data; .* make it 8 or 10\.",
    ),
    "a batch smaller than data": (
        {"batch": 1},
        NotDivisible,
        r"of all devices together: make it 2\.",
    ),
    "a batch that is no number": (
        {"batch": 2.5},
        NotUnderstood,
        r"batch=2\.5 is not a size; give an integer, 1 or more\.",
    ),
    "heads that do not divide": (
        {"mesh": {"model": 8}},
        NotDivisible,
        r"heads=4 does not divide over the 8 devices of model; make model one of "
        r"1, 2 and 4\.",
    ),
    "keys that do not divide": (
        {
            "model": dataclasses.replace(SMALL, heads=12, kv_heads=6, head_dim=4),
            "mesh": {"model": 4},
        },
        NotDivisible,
        r"kv_heads=6 does not divide over the 4 devices of model; make model one of "
        r"1 and 2\.",
    ),
    "d_ff that does not divide": (
        {"model": MLP(2, 8, 9), "mesh": {"model": 2}},
        NotDivisible,
        r"^mesh=\{'model': 2\}: d_ff=9 does not divide over the 2 devices of model; "
        r"make model one of 1, 3 and 9\.$",
    ),
    "d_model that does not divide": (
        {"mesh": {"data": 3}, "batch": 3},
        NotDivisible,
        r"zero=3 shards d_model=64 over 3 devices \(data=3\), which does not",
    ),
    "a bias that does not divide": (
        {
            "model": Transformer(1, 64, 4, head_dim=1, vocab=9, seq=8),
            "mesh": {"data": 8, "model": 2},
        },
        NotDivisible,
        r"zero=3 shards heads \* head_dim=4 over 16 devices",
    ),
    "a sequence that does not divide": (
        {"mesh": {"model": 2}, "seq": 31, "sequence_parallel": True},
        NotDivisible,
        r"sequence_parallel=True: seq=31 does not divide over the 2 devices of model",
    ),
    "more tokens than positions": (
        {"seq": 64},
        NotUnderstood,
        r"seq=64 is more than the 32 positions that the model has learned",
    ),
    "a stage that is none": (
        {"zero": 4},
        NotUnderstood,
        r"zero=4 is not a stage of ZeRO; give 0 .* or 3 \(parameters too: FSDP\)\.",
    ),
    "a stage that is true": ({"zero": True}, NotUnderstood, "zero=True is not a stage"),
    "a type": (
        {"param_dtype": "fp32"},
        NotUnderstood,
        r"^param_dtype='fp32' is not the name of an element type\. Did you mean "
        r"'float32'\? Give 'float32', 'bfloat16', 'float16', 'float64', "
        r"'float8_e4m3fn' or 'float8_e5m2'\.$",
    ),
    "a type of gradients": (
        {"grad_dtype": ("float32", "fp16")},
        NotUnderstood,
        r"grad_dtype='fp16' is not the name of an element type",
    ),
    "a number for a type": (
        {"compute_dtype": 16},
        NotUnderstood,
        r"compute_dtype=16 is not the na",
    ),
    "an optimizer": (
        {"optimizer": "Adam"},
        NotUnderstood,
        r"optimizer='Adam' is not known\. Did you mean 'adam'\? Give 'adam', 'adamw', "
        r"'lion', 'momentum', 'sgd', 'adafactor' or 'muon'\.",
    ),
    "a policy mistyped": (
        {"recompute": "nothing_savable"},
        NotUnderstood,
        r"^recompute='nothing_savable' is not counted here\. Did you mean "
        r"'nothing_saveable'\? Give 'everything_saveable' \(recompute nothing\), ",
    ),
    "a policy of JAX that is not counted": (
        {"recompute": "save_from_both_policies"},
        NotUnderstood,
        r"^recompute='save_from_both_policies' is not counted here\. Give "
        r"'everything_saveable' \(recompute nothing\), .* or 'nothing_saveable' "
        r"\(recompute every layer\)\.$",
    ),
    "a policy by its older name": (
        {"recompute": "checkpoint_dots"},
        NotUnderstood,
        r"^recompute='checkpoint_dots' is not counted here\. Did you mean "
        r"'dots_saveable'\?",
    ),
    "a policy itself": (
        {"recompute": jax.checkpoint_policies.nothing_saveable},
        NotUnderstood,
        r"^recompute=<function .*Did you mean 'nothing_saveable'\?",
    ),
    "no recompute in another word": (
        {"recompute": "none"},
        NotUnderstood,
        r"^recompute='none' is not counted here\. Did you mean 'everything_saveable'\?",
    ),
    "full recompute in another word": (
        {"recompute": "full"},
        NotUnderstood,
        r"^recompute='full' is not counted here\. Did you mean 'nothing_saveable'\?",
    ),
    "whether to recompute": (
        {"recompute": True},
        NotUnderstood,
        r"^recompute=True is not counted here\. Give 'everything_saveable' ",
    ),
    "a type of the first moment": (
        {"mu_dtype": "bf16"},
        NotUnderstood,
        r"^mu_dtype='bf16' is not the name of an element type\. Did you mean "
        r"'bfloat16'\? Give .* or 'int8'\.$",
    ),
    "a first moment that has no type of its own": (
        {"mu_dtype": "bfloat16", "optimizer": "momentum"},
        NotUnderstood,
        r"^mu_dtype='bfloat16': of the optimizers here only 'adam', 'adamw' and 'lion' "
        r"take a type for the first moment alone; with optimizer='momentum' leave "
        r"mu_dtype out\.$",
    ),
    "a first moment that is not there": (
        {"mu_dtype": "float32", "optimizer": "sgd"},
        NotUnderstood,
        r"^mu_dtype='float32': .* with optimizer='sgd' leave mu_dtype out\.$",
    ),
    "an attention": (
        {"attention": "flashh"},
        NotUnderstood,
        r"attention='flashh' is not known\. Did you mean 'flash'\?",
    ),
    "a way of counting": (
        {"counting": "megatronn"},
        NotUnderstood,
        r"Did you mean 'megatron'\? Give 'jax' or 'megatron'\.",
    ),
    "a master that is a type": (
        {"master_weights": "float32"},
        NotUnderstood,
        r"master_weights='float32' is not known\. Give True or False\.",
    ),
    "sequences of an MLP": (
        {"model": MLP(2, 8, 8), "seq": 4},
        NotUnderstood,
        r"seq=4: an MLP has no sequences; leave it out\.",
    ),
    "attention of an MLP": (
        {"model": MLP(2, 8, 8), "attention": "flash"},
        NotUnderstood,
        r"attention='flash': an MLP has neither attention nor sequences",
    ),
    "a mixture of experts by published formulas": (
        {
            "model": dataclasses.replace(SMALL, experts=4, experts_per_token=1),
            "counting": "megatron",
        },
        NotUnderstood,
        r"counting='megatron' is for a transformer with d_ff = 4 \* d_model, without",
    ),
    "published formulas for another model": (
        {"model": dataclasses.replace(SMALL, gated=True), "counting": "megatron"},
        NotUnderstood,
        r"counting='megatron' is for a transformer with d_ff = 4 \* d_model, without",
    ),
}


test_a_wrong_argument_gets_one_sentence = one_sentence_each(WRONG, count)


def test_published_formulas_cut_what_does_not_divide():
    counted = count(
        PAPER_22B, mesh={"data": 7, "model": 5}, batch=7, counting="megatron"
    )
    numbers = PAPER_22B.parameters
    assert counted.params_bytes == -(-4 * numbers // 35)
