"""The HLO reader against what a person counted, and broken readers against it."""

# ruff: noqa: E501

import pytest

from spmd_helpers._errors import MeshMismatch, NotUnderstood
from spmd_helpers._hlo.collectives import read_hlo
from tests.hlo.texts import (
    BWD,
    DM,
    FWD,
    HLO,
    M42,
    RE,
    WRAPPED,
    D,
    KiB,
    M,
    MiB,
    condition,
    one,
    stored,
)
from tests.mutants import both_ways

G = ("d",)
F32, BF16 = "float32", "bfloat16"
SLICED = "all-reduce + dynamic-slice"

# Counted by hand in each text: every line with a collective's opcode, `-start` and
# not `-done`, TPU's repeats with one chain_id once; the shapes printed beside it give
# the bytes; the groups were written on a 4 × 2 grid of the numbers 0 to 7; the loop
# that calls the computation gives the count (`known_trip_count` or, on TPU, the
# constant 8 in the condition); stack_frame_id was followed through the tables to the
# line, and wire bytes were worked out with n = 4 (data), 2 (model, d) or 8 (both).
# Where a collective carries no label, line and phase are those of what uses it or, if
# that has none, of what it is made of.
# kind, axes, count, dtype, operand, result, wire bytes, phase, source, lowered as
COUNTED = {
    "dp_two_grads.cpu_0.10.2": [
        ("all-reduce", DM, 1, F32, 512*KiB, 512*KiB, 896*KiB, BWD, "programs.py:17", None),
    ],
    "dp_two_grads.cpu_0.12.0.1": [
        ("all-reduce", DM, 1, F32, 512*KiB, 512*KiB, 896*KiB, BWD, "programs.py:17", None),
    ],
    "dp_two_grads.tpu_0.10.2": [
        ("all-reduce", DM, 1, BF16, 256*KiB, 256*KiB, 448*KiB, BWD, "programs.py:17", None),
    ],
    "embed_vocab_sharded.cpu_0.10.2": [
        ("all-reduce", M, 1, F32, 2*MiB, 2*MiB, 2*MiB, None, "programs.py:24", None),
    ],
    "embed_vocab_sharded.cpu_0.12.0.1": [
        ("all-reduce", M, 1, F32, 2*MiB, 2*MiB, 2*MiB, None, "programs.py:24", None),
    ],
    "embed_vocab_sharded.tpu_0.10.2": [
        ("all-reduce", M, 1, BF16, MiB, MiB, MiB, None, "programs.py:24", None),
    ],
    "fsdp_one_matmul.cpu_0.10.2": [
        ("all-gather", D, 1, F32, MiB, 4*MiB, 3*MiB, FWD, "programs.py:19", None),
        ("reduce-scatter", D, 1, F32, 4*MiB, MiB, 6*MiB, BWD, "programs.py:19", SLICED),
    ],
    "fsdp_one_matmul.cpu_0.12.0.1": [
        ("all-gather", D, 1, F32, MiB, 4*MiB, 3*MiB, FWD, "programs.py:19", None),
        ("reduce-scatter", D, 1, F32, 4*MiB, MiB, 6*MiB, BWD, "programs.py:19", SLICED),
    ],
    "fsdp_one_matmul.tpu_0.10.2": [
        ("all-gather", D, 1, BF16, MiB//2, 2*MiB, 3*MiB//2, FWD, "programs.py:19", None),
        ("reduce-scatter", D, 1, BF16, 2*MiB, MiB//2, 3*MiB//2, BWD, "programs.py:19", "fusion"),
    ],
    "reshard_all_to_all.cpu_0.10.2": [
        ("all-to-all", D, 1, F32, 512*KiB, 512*KiB, 384*KiB, None, "programs.py:22", None),
        ("collective-permute", DM, 1, F32, 512*KiB, 512*KiB, 512*KiB, None, "programs.py:22", None),
    ],
    "reshard_all_to_all.cpu_0.12.0.1": [
        ("all-to-all", D, 1, F32, 512*KiB, 512*KiB, 384*KiB, None, "programs.py:22", None),
        ("collective-permute", DM, 1, F32, 512*KiB, 512*KiB, 512*KiB, None, "programs.py:22", None),
    ],
    "reshard_all_to_all.tpu_0.10.2": [
        ("all-to-all", D, 1, BF16, 256*KiB, 256*KiB, 192*KiB, None, "programs.py:22", None),
        ("collective-permute", DM, 1, BF16, 256*KiB, 256*KiB, 256*KiB, None, "programs.py:22", None),
    ],
    "tp_mlp.cpu_0.10.2": [
        ("all-reduce", M, 1, F32, 512*KiB, 512*KiB, 512*KiB, None, "programs.py:21", None),
    ],
    "tp_mlp.cpu_0.12.0.1": [
        ("all-reduce", M, 1, F32, 512*KiB, 512*KiB, 512*KiB, None, "programs.py:21", None),
    ],
    "tp_mlp.tpu_0.10.2": [
        ("all-reduce", M, 1, BF16, 256*KiB, 256*KiB, 256*KiB, None, "programs.py:21", None),
    ],
    "dp_scan8_step.gpu_0.11.2": [
        ("all-reduce", G, 8, BF16, 128*MiB, 128*MiB, 128*MiB, BWD, "train_step.py:29", None),
        ("all-reduce", G, 8, BF16, 128*MiB, 128*MiB, 128*MiB, BWD, "train_step.py:29", None),
        ("all-reduce", G, 1, F32, 4, 4, 4, FWD, "train_step.py:30", None),
    ],
    "fsdp_explicit_scan8_step.gpu_0.11.2": [
        ("all-gather", G, 8, BF16, 64*MiB, 128*MiB, 64*MiB, FWD, "train_step.py:11", None),
        ("all-gather", G, 8, BF16, 64*MiB, 128*MiB, 64*MiB, FWD, "train_step.py:11", None),
        ("all-gather", G, 8, BF16, 64*MiB, 128*MiB, 64*MiB, BWD, "train_step.py:12", None),
        ("all-gather", G, 8, BF16, 64*MiB, 128*MiB, 64*MiB, BWD, "train_step.py:12", None),
        ("reduce-scatter", G, 8, BF16, 128*MiB, 64*MiB, 64*MiB, BWD, "train_step.py:11", None),
        ("reduce-scatter", G, 8, BF16, 128*MiB, 64*MiB, 64*MiB, BWD, "train_step.py:11", None),
        ("all-reduce", G, 1, F32, 4, 4, 4, FWD, "train_step.py:12", None),
    ],
    "tp_scan8_step.gpu_0.11.2": [
        ("all-reduce", G, 8, BF16, 32*MiB, 32*MiB, 32*MiB, FWD, "train_step.py:29", None),
        ("all-reduce", G, 8, BF16, 32*MiB, 32*MiB, 32*MiB, BWD, "train_step.py:29", None),
    ],
    "fsdp_scan8_remat.tpu_0.10.2": [
        ("all-gather", D, 8, BF16, 8*MiB, 32*MiB, 24*MiB, FWD, "more_programs.py:21", None),
        ("all-gather", D, 8, BF16, 8*MiB, 32*MiB, 24*MiB, FWD, "more_programs.py:22", None),
        ("all-gather", D, 8, BF16, 8*MiB, 32*MiB, 24*MiB, RE, "more_programs.py:21", None),
        ("all-gather", D, 8, BF16, 8*MiB, 32*MiB, 24*MiB, BWD, "more_programs.py:22", None),
        # 2048 rows are padded to 2240 so that the slices come out aligned; then
        # the permute brings each device the rows that its neighbor got instead.
        ("reduce-scatter", D, 8, BF16, 35*MiB, 35*MiB//4, 105*MiB//4, BWD, "more_programs.py:21", "fusion"),
        ("collective-permute", D, 8, BF16, 144*16*KiB, 144*16*KiB, 144*16*KiB, BWD, "more_programs.py:24", None),
        ("reduce-scatter", D, 8, BF16, 32*MiB, 8*MiB, 24*MiB, BWD, "more_programs.py:22", "fusion"),
    ],
    "fsdp_scan8_remat.cpu_0.12.0.1": [
        ("all-gather", D, 8, F32, 16*MiB, 64*MiB, 48*MiB, FWD, "more_programs.py:24", None),
        ("all-gather", D, 8, F32, 16*MiB, 64*MiB, 48*MiB, FWD, "more_programs.py:24", None),
        ("all-gather", D, 8, F32, 16*MiB, 64*MiB, 48*MiB, RE, "more_programs.py:24", None),
        ("all-gather", D, 8, F32, 16*MiB, 64*MiB, 48*MiB, RE, "more_programs.py:24", None),
        ("reduce-scatter", D, 8, F32, 128*MiB, 32*MiB, 192*MiB, BWD, "more_programs.py:21", SLICED),
    ],
    "fsdp_tp_grad.tpu_0.10.2": [
        ("all-gather", D, 1, BF16, 4*MiB, 16*MiB, 12*MiB, FWD, "more_programs.py:31", None),
        ("all-gather", D, 1, BF16, 4*MiB, 16*MiB, 12*MiB, FWD, "more_programs.py:31", None),
        ("all-reduce", M, 1, BF16, 4*MiB, 4*MiB, 4*MiB, FWD, "more_programs.py:31", None),
        ("reduce-scatter", D, 1, BF16, 2080*8*KiB, 520*8*KiB, 1560*8*KiB, BWD, "more_programs.py:31", "fusion"),
        ("collective-permute", D, 1, BF16, 24*8*KiB, 24*8*KiB, 24*8*KiB, BWD, "more_programs.py:31", None),
        ("reduce-scatter", D, 1, BF16, 16*MiB, 4*MiB, 12*MiB, BWD, "more_programs.py:31", "fusion"),
    ],
    "scatter_over_model.tpu_0.10.2": [
        ("reduce-scatter", M, 1, BF16, 16*MiB, 8*MiB, 8*MiB, None, "more_programs.py:33", "fusion"),
    ],
    "scatter_over_model.cpu_0.12.0.1": [
        ("reduce-scatter", M, 1, F32, 32*MiB, 16*MiB, 32*MiB, None, "more_programs.py:33", SLICED),
    ],
    "nnx_linear_step.cpu_0.10.2": [
        ("all-reduce", D, 1, F32, 1604, 1604, 2406, BWD, "nnx_step.py:21", None),
    ],
    "nnx_linear_step.cpu_0.12.0.1": [
        ("all-reduce", D, 1, F32, 1604, 1604, 2406, BWD, "nnx_step.py:21", None),
    ],
    "reduce_then_reshard.tpu_0.10.2": [
        ("all-reduce", M, 1, BF16, 16*MiB, 16*MiB, 16*MiB, None, "more_programs.py:34", None),
    ],
}  # fmt: skip


def mesh_of(name):
    return {"d": 2} if ".gpu_" in name else M42


def facts_of(read, name):
    return [
        (c.kind, c.axes, c.count, c.dtype, c.operand_bytes, c.result_bytes)
        + (c.wire_bytes, c.phase, c.source, c.lowered_as)
        for c in read(stored(name), mesh_of(name))
    ]


@pytest.mark.parametrize("name", COUNTED)
def test_counted(name):
    assert facts_of(read_hlo, name) == COUNTED[name]


def test_every_fixture_is_counted():
    assert {path.stem for path in HLO.glob("*.hlo")} == set(COUNTED)


def test_totals_and_frozen():
    text = stored("tp_scan8_step.gpu_0.11.2")
    first = read_hlo(text, {"d": 2})[0]
    assert first.total_wire_bytes == 8 * 32 * MiB
    assert not first.upper_bound
    with pytest.raises(AttributeError):
        first.kind = "all-gather"


# --- Bad input -------------------------------------------------------------------


def message(error, *args):
    with pytest.raises(error) as caught:
        read_hlo(*args)
    return str(caught.value)


def test_not_a_text():
    assert message(NotUnderstood, 3, M42) == (
        "text=int object is not the text of a compiled program: give compiled.as_text()"
    )


def test_empty_text():
    assert message(NotUnderstood, " \n", M42) == (
        "text='' is empty: give compiled.as_text()"
    )


@pytest.mark.parametrize("text", ["hello", "def f(x):\n  return x", "module x"])
def test_not_hlo(text):
    start = text.splitlines()[0]
    assert message(NotUnderstood, text, M42) == (
        f"text={start!r}… is not HLO: give compiled.as_text(), where "
        "compiled = jax.jit(f).lower(*args).compile()"
    )


def test_stablehlo():
    text = "module @jit_f attributes {mhlo.num_partitions = 8 : i32} {\n}"
    assert "is StableHLO, from before the compiler added the collectives: give " in (
        message(NotUnderstood, text, M42)
    )


def test_a_text_cut_short():
    text = stored("tp_mlp.cpu_0.12.0.1")
    why = "is cut short: it has no complete ENTRY computation: give compiled.as_text()"
    for cut in (text[:60], text[: text.index("ENTRY")], "HloModule x"):
        assert why in message(NotUnderstood, cut, M42)


def test_a_damaged_text():
    text = stored("scatter_over_model.cpu_0.12.0.1")
    damaged = "\n".join(x for x in text.splitlines() if "parameter(0)" not in x)
    assert message(NotUnderstood, damaged, M42) == (
        "text begins as HLO but can't be read to its end: it is damaged, or of a form "
        "not known here; give compiled.as_text() as it is"
    )


def test_two_modules():
    assert message(NotUnderstood, one("negate(%p)") * 2, M42) == (
        "text has several HloModules: give one at a time"
    )


def test_unknown_spelling():
    op = "all-reduce(%p), replica_groups=maximal_mesh[3]"
    assert message(NotUnderstood, one(op), M42) == (
        "text: replica groups of an unknown spelling: 'maximal_mesh[3]', in the "
        "instruction 'r'"
    )


def test_wrong_mesh():
    op = "all-reduce(%p), replica_groups=[4,2]<=[8]"
    assert message(MeshMismatch, one(op), {"data": 2, "model": 2}) == (
        "mesh_shape has 4 devices (data=2 × model=2), but the program was compiled for "
        "8 devices: give the shape of the mesh that it was compiled for"
    )
    assert message(MeshMismatch, one(op, header=""), {"data": 16}) == (
        "mesh_shape has 16 devices (data=16), but the program groups 8 devices: give "
        "the shape of the mesh that it was compiled for"
    )
    op = "collective-permute(%p), source_target_pairs={{0,9}}"
    assert "(no axis), but the program has a device 9: give" in (
        message(MeshMismatch, one(op, header=""), {})
    )


@pytest.mark.parametrize("mesh", [None, 8, ("data",), {"data": "4"}, {"data": 0}])
def test_not_a_mesh_shape(mesh):
    why = "is not a dict of axis sizes; give one such as {'data': 4, 'model': 2}."
    if isinstance(mesh, dict):
        why = f"axis 'data' has size {mesh['data']!r}; a mesh maps each axis name to a "
    refusal = message(NotUnderstood, one("negate(%p)"), mesh)
    assert refusal.startswith(f"mesh_shape={mesh!r}")
    assert why in refusal


# --- Mutants: a reader broken in one place must miscount some fixture ------------

# Small texts for what no fixture shows, each with its (kind, axes, count, bytes).
NAMED = """
%all-reduce-scatter.1 (q: f32[8]) -> f32[4] {
  %q = f32[8] parameter(0)
  %a = f32[8] all-reduce(%q), replica_groups=[4,2]<=[8], to_apply=%add
  %at = u32[] custom-call()
  ROOT %s = f32[4] dynamic-slice(%a, %at), dynamic_slice_sizes={4}
}
"""
# One gather in four parts: it starts, goes on beside work in a loop, and ends.
PARTS = """
%start (q: f32[2,16]) -> f32[4,16] {
  %q = f32[2,16] parameter(0)
  ROOT %g = f32[4,16] all-gather(%q), channel_id=7, replica_groups=[4,2]<=[8], frontend_attributes={chain_id="3"}
}

%body (t: (s32[], f32[2,16])) -> (s32[], f32[2,16]) {
  %t = (s32[], f32[2,16]) parameter(0)
  %i = s32[] get-tuple-element(%t), index=0
  %x = f32[2,16] get-tuple-element(%t), index=1
  %one = s32[] constant(1)
  %next = s32[] add(%i, %one)
  %beside = f32[4,16] fusion(%x), kind=kOutput, calls=%start
  %other = f32[2,16] all-reduce(%x), channel_id=7, replica_groups={}, to_apply=%add
  ROOT %o = (s32[], f32[2,16]) tuple(%next, %x)
}
""" + condition("(s32[], f32[2,16])")
SMALL = [
    (
        one("fusion(%p), kind=kCustom, calls=%start", PARTS, "%z = s32[] constant(0)\n"
            "  %a = f32[4,16] fusion(%p), kind=kCustom, calls=%start\n"
            "  %t = (s32[], f32[2,16]) tuple(%z, %p)\n"
            "  %w = (s32[], f32[2,16]) while(%t), condition=%test, body=%body"),
        [("all-gather", M, 1, 128, 256), ("all-reduce", ("data", "model"), 5, 128, 128)],
    ),
    (
        one("all-reduce(%p), replica_groups={{0,1},{2,4},{3,5},{6,7}}"),
        [("all-reduce", (), 1, 128, 128)],
    ),
    (
        one("async-done(%u), calls=%wrapped", WRAPPED, "%s = ((f32[4]), f32[4]) "
            "async-start(%p), calls=%wrapped\n  %u = ((f32[4]), f32[4]) "
            "async-update(%s), calls=%wrapped"),
        [("all-to-all", M, 1, 16, 16)],
    ),
    (
        one("fusion(%p), kind=kCustom, calls=%all-reduce-scatter.1", NAMED),
        [("reduce-scatter", M, 1, 32, 16)],
    ),
    (
        one("all-gather-done(%s)", "", "%s = (f32[2,16], f32[2,16], f32[4,16], "
            "f32[4,16]) all-gather-start(%p, %p), replica_groups=[4,2]<=[8]",
            out="(f32[4,16], f32[4,16])"),
        [("all-gather", M, 1, 256, 512)],
    ),
]  # fmt: skip

MUTANTS = [
    ("_hlo.opcodes:enters", "ENTERS.get(base($opcode), ())",
     "ENTERS.get(base($opcode), ('calls',))"),
    ("_hlo.collectives:_goes_on", "return True", "return False"),
    ("_hlo.collectives:_goes_on", "$around = $around.parent", "$around = None"),
    ("_hlo.collectives:_visit", "$i.opcode.removesuffix('-start')", "$i.opcode"),
    ("_hlo.collectives:_visit", "$count * $times", "$count"),
    ("_hlo.opcodes:ENTERS['fusion']", "('calls',)", "()"),
    ("_hlo.collectives:_results", "$place.computation.users.get($i.name, [])", "[]"),
    ("_hlo.collectives:_collective", "_scattered($module, $place, $i, $groups)",
     "False"),
    ("_hlo.collectives:_scattered", "'all-reduce-scatter'", "'never'"),
    ("_hlo.ring:SHARE['all-reduce']", "2 * ($n - 1)", "$n - 1"),
    ("_hlo.ring:sent", "$result if $kind == 'all-gather' else $operand", "$operand"),
    ("_hlo.collectives:_collective",
     "'all-reduce' if $lowered_as in (_CUT, _LAID) else $kind",
     "'all-gather' if $lowered_as in (_CUT, _LAID) else $kind"),
    ("_hlo.collectives:_collective",
     "sum($s.nbytes for $s in $operands), sum($s.nbytes for $s in $results)",
     "sum($s.nbytes for $s in $operands), $results[0].nbytes"),
    ("_hlo.collectives:_collective", "axes_of_pairs", "axes_of_groups"),
    ("_core.source_lines:is_foreign", r"_FOREIGN.search($file.replace('\\', '/'))",
     r"None and $file.replace('\\', '/')"),
    ("_hlo.labels:phase", "'transpose('", "'jvp('"),
    ("_hlo.labels:_NEAR", "4", "0"),
    ("_hlo.labels:phase", r"r'\brematted_computation\b|/remat2$'",
     r"r'\brematted_computation\b'"),
    ("_hlo.labels:_labels", "$place.parent and $place.caller", "False"),
    ("_hlo.labels:phase", "'/' not in $name", "not $name"),
    ("_hlo.parser:Shape.nbytes", "(self.elements * _BITS.get(self.dtype, 0) + 7) // 8",
     "self.elements * 4"),
    ("_hlo.parser:Module._lines", "int($row.get('file_location_id', 0))", "$frame",
     "self.tables['StackFrames'].get($frame, '')"),
    ("_hlo.parser:_instruction",
     "_closing($body, 0) if $body.startswith('(') else $body.find(' ')",
     "$body.find(' ')"),
    ("_hlo.integers:Reader._computed", "return self.device", "return 0"),
    ("_hlo.integers:_counted",
     "($middle, $high) if runs($start + $middle * $step) else ($low, $middle)",
     "($middle, $high) if not runs($start + $middle * $step) else ($low, $middle)"),
    ("_hlo.integers:_ORDERINGS['LT']", "operator.lt", "operator.le"),
    ("_hlo.opcodes:OPCODES['copy']", "Does.SAME", "Does.CONSTANT"),
    ("_hlo.disguised:_differ", "len({*$group}) == len($group)",
     "len({*$group}) < len($group)"),
    ("_hlo.opcodes:OPCODES['get-tuple-element']", "Does.PICKED", "Does.CONSTANT"),
    ("_hlo.disguised:is_scattered", "$slices += 1", "$slices -= 1"),
    ("_hlo.replica_groups:_iota", "$perm or range(len($dims))", "range(len($dims))"),
    ("_hlo.replica_groups:axes_of_groups", "$wanted == _along($strides, $devices)",
     "True"),
    ("_hlo.replica_groups:_iota", "$perm or range(len($dims))",
     "$perm[::-1] or range(len($dims))"),
    ("_hlo.replica_groups:_mesh_groups", "_iota(_ints($dims), _ints($perm or ''))",
     "list(range(8))"),
    ("_hlo.replica_groups:axes_of_pairs", "$inner //= $size", "$inner //= 2"),
]  # fmt: skip


def small(read, text):
    return [
        (c.kind, c.axes, c.count, c.operand_bytes, c.result_bytes)
        for c in read(text, M42)
    ]


def matches(reader):
    read = reader.read_hlo
    return all(facts_of(read, name) == rows for name, rows in COUNTED.items()) and all(
        small(read, text) == rows for text, rows in SMALL
    )


@pytest.mark.parametrize("number", range(len(SMALL)))
def test_small(number):
    text, rows = SMALL[number]
    assert small(read_hlo, text) == rows


test_the_table_catches_a_broken_reader, test_an_unbroken_copy_passes = both_ways(
    MUTANTS, matches, "_hlo.collectives"
)
