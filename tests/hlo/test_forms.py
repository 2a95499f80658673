"""Small texts, one for each form that XLA gives a loop, a pair, a type, a label."""

import pytest

from spmd_helpers._hlo.collectives import read_hlo
from tests.hlo.texts import M42, WRAPPED, M, applied, condition, entry, one, stored


def loop(
    limit="constant(8)", order="LT", start="constant(0)", step="constant(1)", more=""
):
    state = "(s32[], f32[4])"
    return f"""HloModule jit_f, num_partitions=8
{applied("add")}{condition(state, limit, order, more)}
%body (t: (s32[], f32[4])) -> (s32[], f32[4]) {{
  %t = (s32[], f32[4]) parameter(0)
  %i = s32[] get-tuple-element(%t), index=0
  %x = f32[4] get-tuple-element(%t), index=1
  %step = s32[] {step}
  %next = s32[] add(%i, %step)
  %r = f32[4] all-reduce(%x), replica_groups=[4,2]<=[8], to_apply=%add
  ROOT %o = (s32[], f32[4]) tuple(%next, %r)
}}

ENTRY %main (x: f32[4]) -> f32[4] {{
  %x = f32[4] parameter(0)
  %start = s32[] {start}
  %t = (s32[], f32[4]) tuple(%start, %x)
  %w = (s32[], f32[4]) while(%t), condition=%test, body=%body
  ROOT %o = f32[4] get-tuple-element(%w), index=1
}}
"""


@pytest.mark.parametrize(
    ("changes", "count"),
    [
        ({}, 8),
        ({"order": "LE"}, 9),
        ({"step": "constant(3)"}, 3),
        ({"start": "constant(2)", "step": "constant(3)"}, 2),
        ({"start": "constant(9)"}, 0),
        ({"start": "constant(8)", "limit": "constant(-1)", "order": "GT",
          "step": "constant(-1)"}, 9),
        ({"limit": "constant(5)", "start": "constant(5)", "order": "GE",
          "step": "constant(-1)"}, 1),
        ({"limit": "constant(1000000)"}, 1_000_000),
        ({"order": "NE"}, None),
        ({"start": "parameter(1)"}, None),
        ({"limit": "custom-call()"}, None),
        ({"step": "constant(-1)"}, None),  # would never end
        ({"step": "partition-id()"}, None),
    ],
)  # fmt: skip
def test_loops_without_a_printed_trip_count(changes, count):
    (c,) = read_hlo(loop(**changes), M42)
    assert c.count == count
    assert c.total_wire_bytes == (None if count is None else 16 * count)


def test_printed_trip_count_wins():
    known = 'body=%body, backend_config={"known_trip_count":{"n":"5"}}'
    (c,) = read_hlo(loop().replace("body=%body", known), M42)
    assert c.count == 5


def test_a_collective_in_the_condition_runs_once_more():
    more = (
        "%x = f32[4] get-tuple-element(%t), index=1\n"
        "  %m = f32[4] all-reduce(%x), replica_groups=[4,2]<=[8], to_apply=%add"
    )
    assert [c.count for c in read_hlo(loop(more=more), M42)] == [8, 9]


def test_a_computation_called_twice_counts_twice():
    text = loop().replace("ROOT %o = f32[4] get", "%y = f32[4] get")
    again = (
        "  %u = (s32[], f32[4]) tuple(%start, %y)\n"
        "  %v = (s32[], f32[4]) while(%u), condition=%test, body=%body\n"
        "  ROOT %z = f32[4] get-tuple-element(%v), index=1\n}\n"
    )
    text = text.rstrip().removesuffix("}") + again
    assert [c.count for c in read_hlo(text, M42)] == [8, 8]


BRANCH = """
%b (q: f32[4]) -> f32[4] {
  %q = f32[4] parameter(0)
  ROOT %r = f32[4] all-gather(%q), replica_groups=[4,2]<=[8], dimensions={0}
}

%c (q: f32[4]) -> f32[4] {
  ROOT %q = f32[4] parameter(0)
}
"""


@pytest.mark.parametrize(
    "branches",
    [
        "branch_computations={%b, %c}",
        "true_computation=%b, false_computation=%c",
        "false_computation=%b, true_computation=%c",
    ],
)
def test_conditionals_count_as_an_upper_bound(branches):
    text = one(f"conditional(%p, %p, %p), {branches}", BRANCH, shape="f32[2,2]")
    (c,) = read_hlo(text, M42)
    assert (c.count, c.upper_bound) == (1, True)


@pytest.mark.parametrize(
    ("lines", "kind", "given", "got"),
    [
        # ((operands), results), then the older and the TPU forms.
        ("%s = ((f32[4]), f32[8]) all-gather-start(%p), {g}\n"
         "%d = f32[8] all-gather-done(%s)", "all-gather", 16, 32),
        ("%s = ((f32[4]), f32[8]) all-gather-start(%p), {g}", "all-gather", 16, 32),
        ("%s = (f32[4], f32[8]) all-gather-start(%p), {g}", "all-gather", 16, 32),
        ("%s = f32[4] all-reduce-start(%p), {g}", "all-reduce", 16, 16),
        ("%s = (f32[4], f32[4]) all-reduce-start(%p, %p), {g}", "all-reduce", 32, 32),
        ("%s = ((f32[4], f32[4]), (f32[4], f32[4])) all-reduce-start(%p, %p), {g}",
         "all-reduce", 32, 32),
        ("%s = (f32[4]{0:T(8,128)(2,1)S(1)}, f32[4]{0}, u32[]{:S(2)}, u32[]{:S(2)}) "
         "collective-permute-start(%p), source_target_pairs={{0,1}}",
         "collective-permute", 16, 16),
        ("%s = ((f32[4]), f32[4]) async-start(%p), calls=%wrapped\n"
         "%u = ((f32[4]), f32[4]) async-update(%s), calls=%wrapped\n"
         "%d = f32[4] async-done(%u), calls=%wrapped", "all-to-all", 16, 16),
    ],
)  # fmt: skip
def test_asynchronous_pairs_count_once(lines, kind, given, got):
    lines = lines.replace("{g}", "replica_groups=[4,2]<=[8]").split("\n")
    (c,) = read_hlo(entry("f32[4]", WRAPPED, *lines), M42)
    assert (c.kind, c.count, c.operand_bytes, c.result_bytes) == (kind, 1, given, got)


@pytest.mark.parametrize(
    ("dtype", "word", "nbytes"),
    [
        ("f32", "float32", 128), ("bf16", "bfloat16", 64), ("pred", "bool", 32),
        ("s4", "int4", 16), ("u8", "uint8", 32), ("c64", "complex64", 256),
        ("f8e4m3fn", "float8_e4m3fn", 32), ("f4e2m1fn", "float4_e2m1fn", 16),
    ],
)  # fmt: skip
def test_dtypes(dtype, word, nbytes):
    op = "all-reduce(%p), replica_groups=[4,2]<=[8], to_apply=%add"
    (c,) = read_hlo(one(op, shape=f"{dtype}[2,16]"), M42)
    assert (c.dtype, c.operand_bytes) == (word, nbytes)


def test_tuples_sum_their_bytes_and_dtypes():
    op = "all-reduce(%p, %q), replica_groups=[4,2]<=[8], to_apply=%add"
    out = "(f32[2,16]{1,0}, /*index=1*/s32[3]{0})"
    (c,) = read_hlo(one(op, lines="%q = s32[3]{0} parameter(1)", out=out), M42)
    assert (c.dtype, c.operand_bytes) == ("float32 + int32", 140)


@pytest.mark.parametrize(
    ("op", "given", "got", "sends"),
    [
        ("all-gather(%p), replica_groups={}", 128, 1024, 896),
        ("all-reduce(%p), replica_groups={}", 128, 128, 224),
        ("reduce-scatter(%p), replica_groups={}", 128, 16, 112),
        ("all-to-all(%p), replica_groups={}", 128, 128, 112),
        ("collective-broadcast(%p), replica_groups={}", 128, 128, 128),
        ("collective-permute(%p), source_target_pairs={{0,7}}", 128, 128, 128),
    ],
)
def test_ring_formulas(op, given, got, sends):
    # n = 8: (n-1)/n of the full 1024 or 128 bytes, twice that for an all-reduce.
    (c,) = read_hlo(one(op, out=f"f32[{got // 4}]"), M42)
    assert (c.operand_bytes, c.result_bytes, c.wire_bytes) == (given, got, sends)


def test_names_without_percent_signs_and_old_metadata():
    text = """HloModule jit_f, num_partitions=8

ENTRY main {
  p.1 = f32[4]{0} parameter(0)
  ROOT all-reduce.2 = f32[4]{0} all-reduce(p.1), replica_groups={{0,1,2,3,4,5,6,7}}, \
to_apply=add, metadata={op_type="psum" op_name="jit(f)/transpose(jvp(mlp))/dot" \
source_file="/home/reader/a (b)/train.py" source_line=12}
}
"""
    (c,) = read_hlo(text, M42)
    assert (c.operand_bytes, c.source, c.phase) == (16, "train.py:12", "backward")


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("/home/reader/train.py", "train.py:3"),
        ("/home/reader/jax/train.py", "train.py:3"),
        ("C:\\\\Users\\\\reader\\\\train.py", "train.py:3"),
        ("/var/folders/ipykernel_4711/1234567.py", "notebook cell, line 3"),
        ("<ipython-input-7-0123abcd>", "notebook cell, line 3"),
        ("/usr/lib/python3.12/functools.py", "outer.py:9"),
        ("/v/lib/python3.12/site-packages/flax/nnx/module.py", "outer.py:9"),
        ("/usr/local/lib/python3.12/dist-packages/jax/a.py", "outer.py:9"),
        ("/content/spmd_helpers/_errors.py", "outer.py:9"),
        ("/content/spmd_helpers/_hlo/parser.py", "outer.py:9"),
        ("/content/spmd_helpers/_explain/rules/names.py", "outer.py:9"),
        ("/content/spmd_helpers/train.py", "train.py:3"),
    ],
)
def test_source_is_the_readers_own_line(file, source):
    tables = f"""
FileNames
1 "{file}"
2 "/home/reader/outer.py"

FunctionNames
1 "f"

FileLocations
1 {{file_name_id=1 function_name_id=1 line=3 end_line=3 column=1 end_column=2}}
2 {{file_name_id=2 function_name_id=1 line=9 end_line=9 column=1 end_column=2}}

StackFrames
1 {{file_location_id=2 parent_frame_id=1}}
2 {{file_location_id=1 parent_frame_id=2}}
"""
    op = "all-reduce(%p), replica_groups={}, metadata={stack_frame_id=2}"
    (c,) = read_hlo(one(op, tables), M42)
    assert c.source == source


@pytest.mark.parametrize(
    ("op_name", "phase"),
    [
        ("jit(f)/jvp(mlp)/dot_general", "forward"),
        ("jit(f)/transpose(jvp())/dot_general", "backward"),
        (
            "jit(f)/transpose(jvp())/while/body/checkpoint/rematted_computation/dot",
            "recompute",
        ),
        ("jit(f)/transpose(jvp())/while/body/checkpoint/dot_general", "backward"),
        ("jit(f)/add", None),
    ],
)
def test_phases(op_name, phase):
    op = f'all-reduce(%p), replica_groups={{}}, metadata={{op_name="{op_name}"}}'
    (c,) = read_hlo(one(op), M42)
    assert c.phase == phase


def test_a_slice_along_another_axis_is_no_reduce_scatter():
    text = stored("fsdp_one_matmul.cpu_0.12.0.1")
    table = "constant({0, 0, 1, 1, 2, 2, 3, 3})"
    assert text.count(table) == 1
    other = text.replace(table, "constant({0, 1, 0, 1, 0, 1, 0, 1})")
    kinds = [c.kind for c in read_hlo(other, M42)]
    assert kinds == ["all-gather", "all-reduce"]


def test_a_mesh_will_do_and_so_will_any_order_of_its_devices():
    class Mesh:
        shape = M42

    op = "all-reduce(%p), replica_groups=[4,2]<=[8], to_apply=%add"
    assert read_hlo(one(op), Mesh())[0].axes == M


def test_a_program_without_collectives():
    assert read_hlo(one("negate(%p)", header=""), {}) == ()
    assert read_hlo(one("negate(%p)"), M42) == ()
