"""Silent mistakes: each bad program is told, each good one is left in peace.

The programs are in `findings_programs.py`. Each is compiled once; what the X-ray knew
of it is kept, so that the detectors can be asked again, with a part of them broken.
"""

import ast
import dataclasses
import inspect
import logging
import re
from collections.abc import Iterator
from functools import cache
from itertools import chain, pairwise
from math import prod
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import spmd_helpers as spmd
from spmd_helpers._core.words import bytes_words
from spmd_helpers._findings import compiled as findings_compiled
from spmd_helpers._findings import find as findings_find
from spmd_helpers._findings import gathered, shardings
from spmd_helpers._findings import requests as findings_requests
from spmd_helpers._findings.find import find
from spmd_helpers._findings.finding import Finding
from spmd_helpers._jaxprs import requests, shard_maps
from spmd_helpers._shardings.cuts import spec_words
from spmd_helpers._xray import xray as xray_module
from tests.hlo.texts import HLO, M42, archived, gpt3_step
from tests.stand_ins import slice_of_v5e

from . import findings_programs as programs
from .findings_programs import BAD, GOOD, WORDS, B, D, F, mapped, mapped_step, see
from .texts import of_text

BOOK = Path(__file__).parents[2] / "book"
CHAPTERS = {path.stem for path in (BOOK / "chapters").glob("*.md")}
HERE = "tests/findings/findings_programs.py"
M = {"data": 8}
VERSION = tuple(int(n) for n in re.findall(r"\d+", jax.__version__)[:2])
ALL = {**GOOD, **BAD}


@cache
def xray_and_evidence(name):
    """The X-ray of a program, and the evidence from which its findings were made."""
    kept = []

    def keep(evidence, *more):
        kept.append(evidence)
        return find(evidence, *more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(xray_module, "find", keep)
        return see(ALL[name], jax.devices()), kept[0]


def codes(findings):
    return {finding.code for finding in findings}


def expected(program):
    return set() if program.until <= VERSION else set(program.codes)


# --- The two lists ------------------------------------------------------------------


@pytest.mark.parametrize("name", GOOD)
def test_a_good_program_is_left_in_peace(name):
    given = [str(one) for one in xray_and_evidence(name)[0].findings]
    assert not given, f"{name} is under @good, and gets: {' '.join(given)}"


@pytest.mark.parametrize("name", BAD)
def test_a_mistake_is_told(name):
    reported = codes(xray_and_evidence(name)[0].findings)
    assert expected(BAD[name]) <= reported
    assert reported <= expected(BAD[name]) | set(BAD[name].also)


def test_there_are_enough_of_both():
    assert len(GOOD) >= 20
    assert len(BAD) >= 20
    bad_codes = [code for program in BAD.values() for code in program.codes]
    rare = sorted({*bad_codes, *written()}, key=bad_codes.count)
    missing = [
        f"{2 - bad_codes.count(code)} under `@bad({code!r})`"
        for code in rare
        if bad_codes.count(code) < 2
    ]
    assert not missing, f"each code needs two programs; add to {HERE}: {missing}"


def written() -> set[str]:
    """The codes of all findings that the detectors can make."""
    calls = (
        node
        for path in sorted(Path(inspect.getfile(Finding)).parent.glob("*.py"))
        for node in ast.walk(ast.parse(path.read_text("utf8")))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Finding"
    )
    return {call.args[0].value for call in calls}


def test_the_codes_that_are_written_are_read():
    assert {"idle-axis", "summed-twice", "gathered-stack"} <= written()
    unknown = {code for bad in BAD.values() for code in bad.codes} - written()
    assert not unknown, f"no detector in src/spmd_helpers/_findings/ tells {unknown}"


@pytest.mark.compiler("tpu")
@pytest.mark.parametrize("name", [n for n, p in GOOD.items() if not p.only])
def test_a_good_program_compiled_for_tpu(name):
    assert see(GOOD[name], slice_of_v5e()).findings == ()


@pytest.mark.compiler("tpu")
@pytest.mark.parametrize("name", [n for n, p in BAD.items() if not p.only])
def test_a_mistake_compiled_for_tpu(name):
    program = BAD[name]
    wanted = set(program.codes if program.tpu is None else program.tpu)
    reported = codes(see(program, slice_of_v5e()).findings)
    assert wanted <= reported <= wanted | set(program.also)


# What this compiler sums after the loop, as the TPU's does, is no mistake there.
ON_GPU = {
    "accumulated_gradients": set(),
    "one_weight_for_all_steps": set(),
    "adam_state_sharded": set(),
    "adam_state_replicated": {"replicated-state"},
    "state_replicated_in_one_tree": {"replicated-state"},
    "annotated_and_never_placed": {"annotated-only"},
    "columns_sorted_and_joined": set(),
    "rows_joined": {"communicated-operand"},
    "rows_permuted": {"communicated-operand"},
    "rows_sorted": {"communicated-operand"},
}


@pytest.mark.compiler("gpu")
@pytest.mark.parametrize("name", ON_GPU)
def test_a_program_compiled_for_gpu(name):
    devices = spmd.gpu_mesh("h100:8", data=8).devices.flat
    reported = codes(see(ALL[name], list(devices)).findings)
    assert ON_GPU[name] <= reported <= ON_GPU[name] | set(ALL[name].also)


# --- Texts alone --------------------------------------------------------------------


# Of these the mesh has an axis that the program doesn't use.
IDLE = dict.fromkeys(
    ["fsdp_one_matmul", "fsdp_scan8_remat", "nnx_linear_step"], "model"
)


@pytest.mark.parametrize("path", sorted(HLO.glob("*.hlo")), ids=lambda p: p.stem)
def test_texts_of_good_programs(path):
    name = path.name.split(".")[0]
    mesh = {"d": 2} if ".gpu_" in path.name else M42
    findings = of_text(path.read_text("utf8"), mesh)
    assert codes(findings) <= ({"idle-axis"} if name in IDLE else set())
    assert all(f" {IDLE[name]} " in finding.sentence for finding in findings)


def test_the_step_of_gpt_3():
    assert of_text(gpt3_step(), {"data": 8, "model": 8}) == ()


# What a person knows to be wrong in the programs of xray_programs.py.
WRONG = {
    "scan_along_a_cut_axis": {"gathered-stack"},
    "while_with_a_collective_in_its_condition": {"loop-collective"},
    "loop_until_small_or_ten": {"loop-collective"},
}
# What some compilers move to join rows, or the two halves of a head.
SOMETIMES = {
    "two_more_rows": {"communicated-operand"},
    "rotary_halves_on_two_devices": {"communicated-operand"},
}
REPEATED = {"idle-axis", "redundant-work"}  # tests/hlo/test_work.py is about these


@pytest.mark.parametrize(
    "archive", sorted(p.name.split(".tar")[0] for p in HLO.glob("programs.*"))
)
def test_texts_of_many_programs(archive):
    from tests.xray.xray_programs import PROGRAMS

    for name, text in archived(archive).items():
        reported = codes(of_text(text, PROGRAMS[name].shape)) - REPEATED
        assert reported - SOMETIMES.get(name, set()) == WRONG.get(name, set()), name


def test_a_stack_that_is_gathered_in_every_turn():
    """As the TPU compiler does: it moves the gather into the loop."""
    text = archived("programs.v5e_0.12.0.1")["scan_along_a_cut_axis"]
    (finding,) = (f for f in of_text(text, M42) if f.code == "gathered-stack")
    # 6 layers of 256 · 256 numbers of 2 bytes.
    assert finding.sentence == (
        "an array bfloat16[6, 256, 256]: sharded over model along the dimension that "
        "a loop slices, one slice per iteration, so all 6 slices are gathered in each "
        "of 6 iterations: 768 KiB per device."
    )


COMBINED = """HloModule jit_f, num_partitions=8

body (state: (s32[], f32[8,512], f32[512])) -> (s32[], f32[8,512], f32[512]) {
  state = (s32[], f32[8,512], f32[512]) parameter(0)
  n = s32[] get-tuple-element(state), index=0
  stack = f32[8,512] get-tuple-element(state), index=1
  h = f32[512] get-tuple-element(state), index=2
  zero = s32[] constant(0)
  row = f32[1,512] dynamic-slice(stack, n, zero), dynamic_slice_sizes={1,512}
  flat = f32[512] reshape(row)
  sum = f32[512] add(h, flat)
  one = s32[] constant(1)
  more = s32[] add(n, one)
  ROOT next = (s32[], f32[8,512], f32[512]) tuple(more, stack, sum)
}

test (state.1: (s32[], f32[8,512], f32[512])) -> pred[] {
  state.1 = (s32[], f32[8,512], f32[512]) parameter(0)
  n.1 = s32[] get-tuple-element(state.1), index=0
  eight = s32[] constant(8)
  ROOT less = pred[] compare(n.1, eight), direction=LT
}

ENTRY main (x: f32[64], w: f32[1,512]) -> f32[512] {
  x = f32[64] parameter(0)
  w = f32[1,512] parameter(1)
  start = s32[] constant(0)
  began = ((f32[64], f32[1,512]), (f32[512], f32[8,512])) all-gather-start(x, w), \
replica_groups={{0,1,2,3,4,5,6,7}}, dimensions={0}
  ended = (f32[512], f32[8,512]) all-gather-done(began)
  h = f32[512] get-tuple-element(ended), index=0
  whole = f32[8,512] get-tuple-element(ended), index=1
  given = (s32[], f32[8,512], f32[512]) tuple(start, whole, h)
  done = (s32[], f32[8,512], f32[512]) while(given), condition=test, body=body
  ROOT result = f32[512] get-tuple-element(done), index=2
}
"""


def test_two_arrays_gathered_together():
    """As GPUs do: one all-gather, begun and ended, of which one array is a stack."""
    (finding,) = of_text(COMBINED, {"data": 8})
    assert finding.sentence == (
        "an array float32[8, 512]: sharded over data along the dimension that a loop "
        "slices, one slice per iteration, so all 8 slices are gathered before the "
        "loop: 16 KiB per device."
    )
    assert of_text(COMBINED.replace("(stack, n, zero)", "(stack, zero, zero)"), M) == ()
    assert of_text(COMBINED.replace("{1,512}\n", "{8,512}\n"), M) == ()
    small = COMBINED.replace("512", "16").replace("f32[64]", "f32[2]")
    assert of_text(small, M) == ()


def test_a_group_of_one_gathers_nothing():
    alone = "{{0},{1},{2},{3},{4},{5},{6},{7}}"
    text = COMBINED.replace("{{0,1,2,3,4,5,6,7}}", alone)
    assert of_text(text.replace("f32[1,512]", "f32[8,512]"), M) == ()


# A table is gathered; the fusion that looks up in it makes a bfloat16 copy too.
TIED = """HloModule jit_f, num_partitions=8

both (t: f32[4096,8], i: s32[2,1]) -> (f32[2,8], bf16[4096,8]) {
  t = f32[4096,8] parameter(0)
  i = s32[2,1] parameter(1)
  rows = f32[2,8] gather(t, i), offset_dims={1}, collapsed_slice_dims={0}, \
start_index_map={0}, index_vector_dim=1, slice_sizes={1,8}, \
metadata={op_name="jit(f)/gather"}
  thin = bf16[4096,8] convert(t)
  ROOT made = (f32[2,8], bf16[4096,8]) tuple(rows, thin)
}

ENTRY main (w: f32[512,8], n: s32[2,1], x: bf16[2,8]) -> (f32[2,8], f32[2,4096]) {
  w = f32[512,8] parameter(0)
  n = s32[2,1] parameter(1)
  x = bf16[2,8] parameter(2)
  whole = f32[4096,8] all-gather(w), replica_groups={{0,1,2,3,4,5,6,7}}, dimensions={0}
  made.0 = (f32[2,8], bf16[4096,8]) fusion(whole, n), kind=kLoop, calls=both
  rows.0 = f32[2,8] get-tuple-element(made.0), index=0
  thin.0 = bf16[4096,8] get-tuple-element(made.0), index=1
  scores = f32[2,4096] dot(x, thin.0), lhs_contracting_dims={1}, \
rhs_contracting_dims={1}
  ROOT result = (f32[2,8], f32[2,4096]) tuple(rows.0, scores)
}
"""


def test_a_table_that_is_multiplied_too_is_not_gathered_for_its_rows():
    """As GPUs do with tied weights: one fusion makes the rows and the copy."""
    assert codes(of_text(TIED, M)) <= REPEATED
    no_use = TIED.replace("dot(x, thin.0)", "dot(x, x)")
    (finding,) = (f for f in of_text(no_use, M) if f.code == "gathered-embedding")
    assert finding.sentence == (
        "an array float32[4096, 8] is all-gathered over data, 128 KiB per device, to "
        "look up 64 B of it."
    )


# --- The words ----------------------------------------------------------------------


@pytest.mark.parametrize(("name", "code"), WORDS)
def test_what_is_said(name, code):
    texts = [str(f) for f in xray_and_evidence(name)[0].findings if f.code == code]
    texts = [re.sub(r"findings_programs\.py:\d+", "LINE", words) for words in texts]
    assert WORDS[name, code] in texts


def test_each_code_has_its_words():
    codes = {code for program in BAD.values() for code in program.codes}
    missing = sorted(codes - {code for _, code in WORDS})
    assert not missing, (
        f"add the whole finding of one program to WORDS, {HERE}: {missing}"
    )
    assert {code for _, code in WORDS} == codes


@pytest.mark.parametrize("name", BAD)
def test_what_is_named_is_there(name):
    report, _ = xray_and_evidence(name)
    start = inspect.getsourcelines(BAD[name].build)[1]
    for finding in report.findings:
        assert finding.chapter in CHAPTERS, f"{finding.chapter}: not in book/chapters"
        for paths, tree in (
            (r"\bresult(?:\[[^\]]*\]|\.\w+)+", {"result": report.output_shardings}),
            (r"\bparams\['w\d'\]", {"params": report.input_shardings[0]}),
        ):
            known = {
                root + "".join(map(str, path))
                for root, leaves in tree.items()
                for path, _ in jax.tree_util.tree_flatten_with_path(
                    leaves, is_leaf=lambda x: x is None
                )[0]
            }
            assert set(re.findall(paths, finding.sentence)) <= known
        for axis in re.findall(r"(?:over|[Aa]long) (\w+)[ ,:;]", finding.sentence):
            assert axis in {*report.mesh_shape, "another", "the"}
        if finding.source is not None:
            file, line = finding.source.split(":")
            assert file == "findings_programs.py"
            assert int(line) >= start or int(line) < 200  # its own, or a shared one


@pytest.mark.parametrize(
    "name", [n for n in BAD if "replicated-output" in BAD[n].codes]
)
def test_the_bytes_that_are_wasted(name):
    report, evidence = xray_and_evidence(name)
    wasted = 0
    for out in filter(lambda leaf: leaf.shape, evidence.outputs):
        into = next(
            leaf
            for leaf in evidence.inputs
            if leaf.shape == out.shape
            and (leaf.path.endswith(out.path[-6:]) or leaf.path in ("w", "x"))
        )
        cut = {axis for axes in into.sharding_info.entries for axis in axes}
        lost = cut & set(out.sharding_info.replicated_over)
        per_device = out.sharding_info.bytes_per_device
        wasted += per_device - per_device // prod(
            report.mesh_shape[axis] for axis in lost
        )
    (finding,) = [f for f in report.findings if f.code == "replicated-output"]
    assert f" {bytes_words(wasted)} more per device" in finding.sentence


def test_a_finding_is_frozen_and_prints_its_chapter():
    finding = Finding("code", "It is so.", "Do this.", "10_fsdp", "train.py:12")
    assert str(finding) == "code: It is so. Do this. (chapter 10)"
    with pytest.raises(dataclasses.FrozenInstanceError):
        finding.code = "other"


def test_lines_are_named_as_the_caller_names_them():
    _, evidence = xray_and_evidence("pmean_of_summed_gradients")
    (finding,) = find(evidence, lambda file, line: f"cell of {Path(file).name}")
    assert finding.source == "cell of findings_programs.py"


# --- Only what is known -------------------------------------------------------------


def test_of_a_compiled_function_only_what_its_text_shows():
    f, args = BAD["scan_over_cut_layers"].on(jax.devices())
    compiled = jax.jit(f).lower(*args).compile()
    assert codes(spmd.xray(compiled).findings) == {"gathered-stack"}
    f, args = BAD["fsdp_gradients_not_asked_for"].on(jax.devices())
    assert spmd.xray(jax.jit(f).lower(*args).compile()).findings == ()
    traced = spmd.xray(jax.jit(f).trace(*args)).findings
    assert {"replicated-output", "resharded-output"} <= codes(traced)


# --- True in fact -------------------------------------------------------------------


def numbers(shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def params_and_batch():
    return {"w1": numbers((D, F)), "w2": numbers((F, D), 1)}, numbers((B, D), 2)


@pytest.mark.parametrize(
    ("name", "times"),
    [
        ("gradients_of_cast_weights", 1),
        ("gradients_of_the_mean_loss", 1),
        ("mean_loss_and_mean_gradients", 1),
        ("gradients_divided_by_hand", 1),
        ("gradients_without_check_vma", 1),
        ("pmean_of_summed_gradients", 8),
        ("psum_of_summed_gradients", 16),
    ],
)
def test_the_gradients_are_as_large_as_is_said(name, times):
    f, _ = ALL[name].on(jax.devices())
    params, x = params_and_batch()
    new, _ = jax.jit(f)(params, x)
    right = jax.grad(programs.loss)(params, x)
    for leaf in params:
        got = (params[leaf] - np.asarray(new[leaf])) / 0.1
        np.testing.assert_allclose(got, times * right[leaf], rtol=2e-2, atol=2e-3)


def test_unchecked_outputs_are_wrong():
    f, _ = BAD["block_sum_unchecked"].on(jax.devices())
    x = numbers((B, F))
    got = np.asarray(jax.jit(f)(x))
    np.testing.assert_allclose(got, x[: B // 8].sum(0), rtol=1e-5, atol=1e-5)
    assert not np.allclose(got, x.sum(0), atol=1e-3)


@pytest.mark.parametrize(
    ("name", "different"),
    [("same_dropout_in_each_block", 1), ("dropout_of_each_device", 8)],
)
def test_random_numbers_are_as_different_as_is_said(name, different):
    f, _ = ALL[name].on(jax.devices())
    kept = np.asarray(jax.jit(f)(jax.random.key(0), np.ones((B, F), np.float32)))
    blocks = {block.tobytes() for block in np.split(kept, 8)}
    assert len(blocks) == different


def test_constraints_are_dropped_as_is_said():
    f, _ = BAD["device_put_in_jit"].on(jax.devices())
    mesh = Mesh(np.array(jax.devices()), ("data",))
    x = jax.device_put(numbers((B, F)), NamedSharding(mesh, P("data")))
    assert jax.jit(f)(x).sharding.is_equivalent_to(x.sharding, 2)
    f, _ = BAD["nine_rows_returned"].on(jax.devices())
    assert jax.jit(f)(numbers((9, F))).sharding.is_fully_replicated


def compilations(step, state, x):
    """How often three steps, one after the other, compile."""
    messages = []

    class Listener(logging.Handler):
        def emit(self, record):
            messages.append(record.getMessage())

    logger, listener = logging.getLogger("jax"), Listener()
    logger.addHandler(listener)
    propagate, logger.propagate = logger.propagate, False
    try:
        with jax.log_compiles(True):
            for _ in range(3):
                state = step(state, x)
    finally:
        logger.removeHandler(listener)
        logger.propagate = propagate
    return sum("Finished XLA compilation of jit(step)" in words for words in messages)


MESH = Mesh(np.array(jax.devices()).reshape(4, 2), ("data", "model"))


def on_mesh(x, *spec):
    return jax.device_put(x, NamedSharding(MESH, P(*spec)))


def minus(w, x):
    return w - x.T @ x


def minus_and_count(state, x):
    return {"w": state["w"] - x.T @ x, "n": state["n"] + 1}


def cut(*spec):
    def step(w, x):
        return lax.with_sharding_constraint(w - x.T @ x, NamedSharding(MESH, P(*spec)))

    return step


def weak_to_strong(state, x):
    return {"w": state["w"] - x.T @ x, "n": state["n"] + jnp.float32(1)}


def square(dtype=jnp.float32):
    return jnp.zeros((8, 8), dtype)


@pytest.mark.parametrize(
    ("function", "state"),
    [
        (minus, lambda: square()),
        (minus, lambda: on_mesh(square())),
        (minus, lambda: on_mesh(square(), None, None)),
        (minus, lambda: on_mesh(square(), "data")),
        (minus, lambda: on_mesh(square(jnp.bfloat16))),
        (cut("data"), lambda: on_mesh(square())),
        (cut("data"), lambda: on_mesh(square(), "data", None)),
        (cut(None, "model"), lambda: on_mesh(square(), "model")),
        (minus_and_count, lambda: {"w": on_mesh(square()), "n": jnp.int32(0)}),
        (minus_and_count, lambda: {"w": on_mesh(square()), "n": 0}),
        (minus_and_count, lambda: {"w": on_mesh(square()), "n": np.int32(0)}),
        (minus_and_count, lambda: {"w": on_mesh(square()), "n": on_mesh(0)}),
        (weak_to_strong, lambda: {"w": on_mesh(square()), "n": on_mesh(0.0)}),
    ],
)
def test_drift_is_told_where_jax_compiles_again(function, state):
    def a_step():  # a new one each time, of which JAX has compiled nothing yet
        def step(state, x):
            return function(state, x)

        return step

    x = on_mesh(jnp.ones((16, 8)), "data")
    drifts = codes(spmd.xray(a_step(), state(), x, carry={0: 0}).findings)
    count = compilations(jax.jit(a_step()), state(), x)
    assert count == (2 if "sharding-drift" in drifts else 1)


# --- Against the types that JAX keeps -----------------------------------------------


def names_in(function) -> set[str]:
    """What a function refers to, and the names of the arguments that it gives."""
    code = function.__code__
    given = (one for one in code.co_consts if isinstance(one, tuple))
    return {*code.co_names, *chain.from_iterable(given)}


@pytest.mark.parametrize(
    "name",
    [
        name
        for name, program in ALL.items()
        if not program.only
        and names_in(program.build) & {mapped.__name__, mapped_step.__name__}
        and "check_vma" not in names_in(program.build)
    ],
)
def test_what_varies_is_what_jax_says_or_less(name):
    """JAX's types may say that a value varies which is the same; never the reverse."""
    checked = []

    class Compared(shard_maps.Mapped):
        def plain(self, eqn, ins, around):
            outs = super().plain(eqn, ins, around)
            for out, variable in zip(outs, eqn.outvars, strict=True):
                types = getattr(variable.aval, "manual_axis_type", None)
                if types is not None:
                    assert out.varies <= {*map(str, types.varying)}
                    checked.append(out)
            return outs

    _, evidence = xray_and_evidence(name)
    jaxpr = evidence.jaxpr
    arguments = [shard_maps.Alike(data=True) for _ in jaxpr.jaxpr.invars]
    Compared().through(jaxpr, arguments)
    assert checked


# --- Arithmetic -----------------------------------------------------------------------

SIZES = {"a": 2, "b": 4, "c": 1}


@st.composite
def specs(draw):
    """Cuts of at most three dimensions, in which each axis is used once."""
    axes = draw(st.permutations("abc"))
    ends = sorted(draw(st.tuples(*[st.integers(0, 3)] * 2)))
    cuts = (axes[: ends[0]], axes[ends[0] : ends[1]], axes[ends[1] :])
    return tuple(map(tuple, cuts[: draw(st.integers(0, 3))]))


@given(specs())
def test_a_spec_is_written_as_jax_reads_it(cuts):
    inside = spec_words(cuts).removeprefix("P(").removesuffix(")")
    written = P(*ast.literal_eval(f"[{inside}]"))
    mesh = jax.sharding.AbstractMesh(tuple(SIZES.values()), tuple(SIZES))
    same = NamedSharding(mesh, P(*cuts))
    assert NamedSharding(mesh, written).is_equivalent_to(same, 3)
    read = requests.cuts_of(written, mesh, 3)
    assert read == tuple(
        tuple(axis for axis in axes if SIZES[axis] > 1)
        for axes in (*cuts, (), (), ())[:3]
    )


@given(specs(), st.tuples(*[st.integers(1, 40)] * 3))
def test_padding_is_what_jax_refuses(cuts, shape):
    mesh = jax.sharding.AbstractMesh(tuple(SIZES.values()), tuple(SIZES))
    aval = jax.ShapeDtypeStruct(shape, jnp.float32)
    constraint = requests.request("constraint", aval, P(*cuts), mesh, frozenset())
    padding = requests.padding(constraint)
    try:
        NamedSharding(mesh, P(*cuts)).shard_shape(shape)
        assert padding is None
    except ValueError:
        dimension, blocks, rows = padding
        assert shape[dimension] % blocks
        assert (rows - 1) * blocks < shape[dimension] < rows * blocks


@given(st.lists(st.integers(2, 5), min_size=1, max_size=6), st.data())
def test_the_dimensions_of_a_reshape(factors, data):
    """Both shapes are made of the same factors, put together in two ways."""

    def shape():
        cuts = data.draw(st.sets(st.integers(1, max(1, len(factors) - 1))))
        ends = [0, *sorted(c for c in cuts if c < len(factors)), len(factors)]
        return tuple(prod(factors[a:b]) for a, b in pairwise(ends))

    before, after = shape(), shape()
    changed_before, changed_after = set(), set()
    for old, new in gathered._groups(before, after):
        assert prod(before[n] for n in old) == prod(after[n] for n in new)
        assert len(old) + len(new) > 2
        changed_before.update(old)
        changed_after.update(new)
    kept = [size for n, size in enumerate(before) if n not in changed_before]
    assert kept == [size for n, size in enumerate(after) if n not in changed_after]


# --- Broken detectors ---------------------------------------------------------------


def nothing(*args, **kwargs):
    return iter(())


def always(value):
    return lambda *args, **kwargs: value


OFF = [
    (findings_find, "_summed", "pmean_of_summed_gradients"),
    (findings_find, "_unchecked", "block_sum_unchecked"),
    (findings_find, "_drawn", "same_dropout_in_each_block"),
    (findings_find, "_work", "batch_over_one_of_two_axes"),
    (findings_requests, "constraints", "ten_rows_for_eight"),
    (findings_requests, "device_puts", "device_put_in_jit"),
    (findings_requests, "reshards", "fsdp_step_without_constraints"),
    (shardings, "one_device", "zeros_like_on_one_device"),
    (shardings, "results", "fsdp_gradients_not_asked_for"),
    (shardings, "drift", "state_never_placed"),
    (shardings, "donation", "donated_for_another_sharding"),
    (findings_compiled, "stacks", "scan_over_cut_layers"),
    (findings_compiled, "tables", "one_word_of_a_table"),
    (findings_compiled, "conditions", "loop_until_small"),
    (gathered, "_outputs", "two_rows_more"),
    (gathered, "_reshards", "constraint_by_way_of_the_whole"),
    (gathered, "_reshapes", "sequence_merged_with_batch"),
    (gathered, "_operands", "cumsum_along_the_cut"),
    (findings_find, "rematerialized", "heads_that_the_compiler_replicates"),
]
MODULES = (findings_find, findings_requests, shardings, findings_compiled, gathered)
# Detectors without a line above are held against every bad program.
OFF += [
    (module, name, None)
    for module in MODULES
    for name, function in inspect.getmembers(module, inspect.isfunction)
    if function.__module__ == module.__name__ and name != "_all"
    if inspect.signature(function).return_annotation == Iterator[Finding]
    if not any((module, name) == known[:2] for known in OFF)
]


def changes(name):
    """Whether the detectors, as they are now, say another thing of a program."""
    report, evidence = xray_and_evidence(name)
    return codes(find(evidence)) != codes(report.findings)


@pytest.mark.parametrize(("module", "function", "name"), OFF, ids=lambda x: str(x))
def test_a_detector_that_is_off_is_missed(module, function, name, monkeypatch):
    names = [name] if name else list(BAD)
    for each in names:
        xray_and_evidence(each)  # as it is, kept for the comparison
    if function in ("_summed", "_unchecked", "_drawn"):
        field = {"_summed": "sums", "_unchecked": "unchecked", "_drawn": "drawn"}
        emptied = {field[function]: {}}
        real = shard_maps.mapped_by
        monkeypatch.setattr(
            findings_find,
            "mapped_by",
            lambda j: dataclasses.replace(real(j), **emptied),
        )
    else:
        monkeypatch.setattr(module, function, nothing)
    if function == "_reshards":  # the compiler's own warning has the same code
        monkeypatch.setattr(findings_find, "rematerialized", nothing)
    assert any(map(changes, names)), (
        f"{function} is asked for nothing in {HERE}: add a program that only it tells"
    )


def eager(module, name, value, program):
    return pytest.param(module, name, value, program, id=f"{name} {program}")


OTHERS = "fsdp_gradients_beside_other_weights"
CHANGED = "gathered_by_a_constraint_and_changed"
RESHAPED = "gathered_by_a_constraint_and_reshaped"
EAGER = [
    # What is the same inside a shard_map.
    eager(shard_maps, "_averaged", always(frozenset()), "mean_loss_and_mean_gradients"),
    eager(shard_maps, "is_backward", always(False), "pmean_of_summed_gradients"),
    eager(shard_maps, "is_backward", always(True), "psum_of_what_is_alike"),
    eager(shard_maps.Mapped, "_divided", always(False), "synchronized_batch_norm"),
    eager(shard_maps.Mapped, "_divided", always(True), "psum_of_what_is_alike"),
    eager(shard_maps.Mapped, "_cancels", always(False), "sums_that_cancel"),
    eager(
        shard_maps.Mapped,
        "_still_summed",
        always(frozenset({"data"})),
        "gathered_blocks",
    ),
    eager(shard_maps, "_LINEAR", set(), "pmean_of_accumulated_gradients"),
    eager(shard_maps, "_named", always(frozenset()), "psum_of_blocks"),
    eager(shard_maps, "_APART", set(), "ring_without_check_vma"),
    eager(shard_maps, "_ALIKE", set(), "gathered_without_check_vma"),
    eager(shard_maps, "_SUMS", set(), "gradients_without_check_vma"),
    eager(shard_maps, "_BY_ELEMENT", {"dot_general"}, "weights_drawn_alike"),
    # What was asked for.
    eager(requests, "_has_explicit", always(False), "resharded_on_explicit_axes"),
    eager(requests, "_ELEMENTWISE", set(), "put_where_it_lies"),
    eager(requests, "_EXCHANGES", set(), "all_to_all_by_hand"),
    eager(findings_requests, "_PADDED", 0, "vocabulary_padded_a_little"),
    eager(shardings, "is_requested", always(False), CHANGED),
    eager(gathered, "is_requested", always(False), RESHAPED),
    eager(shardings, "_same_ending", always(0), OTHERS),
    # What a compiled program shows.
    eager(findings_compiled, "_is_turn", always(True), "scanned_fsdp"),
    eager(findings_compiled, "_counts", always(False), "scan_over_cut_layers"),
    eager(findings_compiled, "_counts", always(True), "one_word_after_the_other"),
    eager(findings_compiled, "_loop", always(None), "scan_over_cut_layers"),
    eager(findings_compiled, "_TABLE", 0, "small_embedding_for_many_words"),
    eager(findings_compiled, "_is_lookup", always(True), "fsdp_constrained"),
    eager(findings_compiled, "_condition", lambda place: "loop", "data_parallel"),
    eager(gathered, "_detour", always(True), "fsdp_constrained"),
    eager(gathered, "_fits", always(True), "fsdp_attention"),
    eager(findings_find, "_REPEATED", 1.1, "half_of_the_products_cut"),
    eager(findings_find, "_PARTLY", 9.0, "query_heads_cut_in_parts"),
]


@pytest.mark.parametrize(("module", "name", "value", "program"), EAGER)
def test_a_detector_that_is_changed_is_seen(module, name, value, program, monkeypatch):
    xray_and_evidence(program)  # as it is, kept for the comparison
    monkeypatch.setattr(module, name, value)
    assert changes(program)


def test_a_type_without_weakness_is_strong():
    """The type of a key has no `weak_type`."""
    key, number = SimpleNamespace(), SimpleNamespace(weak_type=True)

    def weakness(before, after):
        invars, outvars = ([SimpleNamespace(aval=aval)] for aval in (before, after))
        jaxpr = SimpleNamespace(invars=invars, outvars=outvars)
        known = SimpleNamespace(jaxpr=SimpleNamespace(jaxpr=jaxpr))
        return shardings._weakness(0, 0, known)

    assert weakness(key, key) is None
    assert weakness(key, number)[:2] == ("strongly typed", "weakly typed")
    assert weakness(number, key)[:2] == ("weakly typed", "strongly typed")
