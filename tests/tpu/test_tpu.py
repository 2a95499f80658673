"""TPU slices by name, what lies on their wires, and what their compiler refuses.

Runs everywhere: what needs the TPU compiler is in test_tpu_compiler.py.
"""

# ruff: noqa: E501

import importlib
import importlib.metadata
import importlib.util
import os
import pickle
import subprocess
import sys
from itertools import product
from math import prod
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.experimental import mesh_utils
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from spmd_helpers import _errors as spmd_errors
from spmd_helpers._aot import does_not_fit as aot
from spmd_helpers._aot.does_not_fit import Buffer, hlo_dtype
from spmd_helpers._core.words import join_words
from spmd_helpers._hardware.chips import HARDWARE
from spmd_helpers._hlo.parser import dtype_word
from spmd_helpers._tpu import libtpu as tpu_libtpu
from spmd_helpers._tpu import mesh as mesh_module
from spmd_helpers._tpu import refusals as tpu_refusals
from spmd_helpers._tpu import topology as tpu_topology
from spmd_helpers._tpu.refusals import explain_compile_error
from spmd_helpers._tpu.topology import UnknownTopology, read_topology
from tests.mutants import both_ways

OOM = Path(__file__).parents[1] / "data" / "oom"
VERSIONS = ("0.10.2", "0.12.0.1")
G, M = 2**30, 2**20

# --- Names ------------------------------------------------------------------------

# (name, as the compiler takes it, devices, chips of a host, torus)
BLOCKS = [
    ("v4:2x2x1", "v4:2x2x1", 4, (2, 2, 1), (2, 2, 1)),
    ("v5e:1x1", "v5e:1x1", 1, (1, 1, 1), (1, 1, 1)),
    ("v5e:2x4", "v5e:2x4", 8, (2, 2, 1), (2, 4, 1)),
    ("v5e:1x4", "v5e:1x4", 4, (1, 2, 1), (1, 4, 1)),
    ("v5e:16x16", "v5e:16x16", 256, (2, 2, 1), (16, 16, 1)),
    ("v5p:4x4x4", "v5p:4x4x4", 64, (2, 2, 1), (4, 4, 4)),
    ("v5p:16x16x24", "v5p:16x16x24", 6144, (2, 2, 1), (16, 16, 24)),
    ("v6e:8x16", "v6e:8x16", 128, (2, 2, 1), (8, 16, 1)),
    ("7x:2x2x1", "tpu7x:2x2x1", 8, (2, 2, 1), (2, 2, 1, 2)),
    (" TPU7x:2X2x4 ", "tpu7x:2x2x4", 32, (2, 2, 1), (2, 2, 4, 2)),
    ("v5litepod:4x4", "v5e:4x4", 16, (2, 2, 1), (4, 4, 1)),
]

_HOW = (
    " Write the kind of chip and how many stand in each direction, as in 'v5e:4x8' or "
    f"'v5p:4x4x4'; the kinds are {join_words([*tpu_topology.GENERATIONS])}."
)
_NO_CHIPS = "does not say its chips." + _HOW
BAD_NAMES = [
    (5, "topology=5 is not a name." + _HOW),
    ("h100", "topology='h100' is no kind of TPU." + _HOW),
    ("", "topology='' is no kind of TPU." + _HOW),
    ("v6p:4x4", "topology='v6p:4x4' is no kind of TPU. Did you mean 'v6e'?" + _HOW),
    ("v5e 2x4", "topology='v5e 2x4' is no kind of TPU. Did you mean 'v5e'?" + _HOW),
    ("v5e", f"topology='v5e' {_NO_CHIPS}"),
    ("v5e:", f"topology='v5e:' {_NO_CHIPS}"),
    ("v5e:2x", f"topology='v5e:2x' {_NO_CHIPS}"),
    ("v5e:-1x2", f"topology='v5e:-1x2' {_NO_CHIPS}"),
    ("v5e:2x4:2x2", f"topology='v5e:2x4:2x2' {_NO_CHIPS}"),
    ("v5e:2x99999", f"topology='v5e:2x99999' {_NO_CHIPS}"),
    (
        "v5p-128",
        "topology='v5p-128' counts 128 cores and does not say how the chips stand: "
        "write for example 'v5p:4x4x4'.",
    ),
    (
        "v5litepod-16",
        "topology='v5litepod-16' is a size and does not say how the chips stand: "
        "write for example 'v5e:4x4'.",
    ),
    (
        "v5p:4x4",
        "topology='v5p:4x4': chips of v5p stand in 3 directions, and 2 are given. "
        "Write for example 'v5p:2x2x4'.",
    ),
    (
        "v5e:2x2x1",
        "topology='v5e:2x2x1': chips of v5e stand in 2 directions, and 3 are given. "
        "Write for example 'v5e:2x2'.",
    ),
    # The newer compiler divides by it and takes Python down.
    (
        "v5e:0x2",
        "topology='v5e:0x2': no chips in one direction. Write for example 'v5e:1x1' "
        "or 'v5e:2x2'.",
    ),
    (
        "v5e:3x4",
        "topology='v5e:3x4': the chips of one host stand 2 by 2, so 3 chips in one of "
        "the first two directions are no whole number of hosts. Write for example "
        "'v5e:2x4' or 'v5e:4x4'.",
    ),
    (
        "v5e:32x32",
        "topology='v5e:32x32': 1024 chips, and the largest v5e pod has 256. Write for "
        "example 'v5e:16x16' or 'v5e:8x16'.",
    ),
]


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block[0])
def test_a_block_of_chips(block):
    name, compiler_name, devices, host, torus = block
    topology_read = read_topology(name)
    assert topology_read.compiler_name == compiler_name
    assert (topology_read.devices, topology_read.host, topology_read.torus) == (
        devices,
        host,
        torus,
    )
    assert read_topology(topology_read.name) == topology_read


@pytest.mark.parametrize(("name", "message"), BAD_NAMES, ids=lambda x: str(x)[:16])
def test_no_such_block(name, message):
    with pytest.raises(UnknownTopology) as raised:
        read_topology(name)
    assert str(raised.value) == message


def test_kinds_are_those_of_the_hardware_table():
    tpus = [chip.name for chip in HARDWARE.values() if chip.kind == "tpu"]
    assert {"v4", "v5e", "v5p", "v6e", "7x"} <= {*tpus}
    assert [*tpu_topology.GENERATIONS] == tpus, (
        "a TPU has a Chip in src/spmd_helpers/_hardware/chips.py and a Generation in "
        "src/spmd_helpers/_tpu/topology.py, both in the same order"
    )


@given(kind=st.sampled_from([*tpu_topology.GENERATIONS]), chips=st.integers(0, 10**5))
def test_what_a_message_suggests_can_be_used(kind, chips):
    near = tpu_topology.near_topologies(tpu_topology.GENERATIONS[kind], chips)
    assert 1 <= len(near) <= 3
    for topology in near:
        assert read_topology(topology.name) == topology
    exact = [topology for topology in near if prod(topology.chips) == chips]
    assert exact in ([], near)


@given(st.text(max_size=12) | st.from_regex(r"v[45]p?[-:][\dx-]{0,8}", fullmatch=True))
def test_any_text_is_a_block_or_gets_its_sentence(name):
    answer = said(tpu_topology, name)
    assert repr(name) in answer if isinstance(answer, str) else answer.devices >= 1


# --- The torus --------------------------------------------------------------------


def stand_ins(torus):
    """What JAX's layout of meshes looks at, of chips whose kind it has no rule for."""
    sizes = (*torus, 1, 1)[:3]
    return [
        SimpleNamespace(
            platform="tpu", device_kind="TPU v4", coords=(x, y, z), core_on_chip=0,
            id=number, process_index=0,
        )
        for number, (z, y, x) in enumerate(product(*map(range, reversed(sizes))))
    ]  # fmt: skip


def jax_takes(torus, shape):
    try:
        mesh_utils.create_device_mesh(shape, stand_ins(torus))
    except NotImplementedError:
        return False
    return True


def splits(count, axes):
    return [s for s in product(range(1, count + 1), repeat=axes) if prod(s) == count]


TORI = [(4, 4, 4), (2, 2, 4), (2, 4, 4), (4, 4), (2, 4), (8, 2), (1, 1), (4, 8, 2)]


@pytest.mark.parametrize("torus", TORI, ids=str)
@pytest.mark.parametrize("axes", [1, 2, 3])
def test_the_meshes_on_a_torus_are_those_that_jax_takes(torus, axes):
    shapes = tpu_topology.shapes_on(torus, axes)
    assert len(set(shapes)) == len(shapes)
    taken = [shape for shape in splits(prod(torus), axes) if jax_takes(torus, shape)]
    assert sorted(shapes) == taken


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_any_mesh_lies_on_a_torus_if_jax_takes_it(data):
    torus = tuple(data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=3)))
    axes = data.draw(st.integers(1, 4))
    shape = data.draw(st.sampled_from([*tpu_topology._splits(prod(torus), axes)]))
    assert tpu_topology.lies_on((*torus, 1, 1)[:3], shape) == jax_takes(torus, shape)


def test_the_torus_of_the_largest_slice_is_soon_searched():
    shapes = tpu_topology.shapes_on((16, 16, 24), 4)
    assert (1, 16, 16, 24) in shapes
    assert all(prod(shape) == 6144 for shape in shapes)


# --- What the compiler says of a program that is too large ------------------------

UP, DOWN = "f32[24,4096,16384]", "f32[24,16384,4096]"
BIG = "bf16[24,12288,49152]"


def read(name, version):
    return (OOM / f"{name}.tpu_{version}.txt").read_text("utf8")


def log_of(version):
    return (OOM / f"errors.tpu_{version}.log").read_text("utf8")


def rows(refusal):
    return [(one.bytes, one.what, one.shape) for one in refusal.largest]


@pytest.mark.parametrize("version", VERSIONS)
def test_one_line_and_its_report(version):
    # 24 layers of 4096 × 16384 floats are 6 GiB.
    arguments = (
        Buffer(6 * G, "params['up']", UP),
        Buffer(6 * G, "params['down']", DOWN),
    )
    explained = explain_compile_error(
        read("replicated_v5e", version), log=log_of(version), arguments=arguments
    )
    assert explained.needed_bytes == 36691894784
    assert abs(explained.available_bytes - HARDWARE["v5e"].usable_bytes) < 8 * M
    report_rows = rows(explained)
    assert [size for size, *_ in report_rows] == [6 * G] * 5 + [3 * G, 384 * M]
    assert sorted(what for _, what, _ in report_rows) == [
        *("params['down']", "params['up']", "result", "result"),
        *["temporary"] * 3,
    ]
    assert {what: shape for _, what, shape in report_rows if "params" in what} == {
        "params['up']": UP,
        "params['down']": DOWN,
    }
    assert "Memory Space: vmem" in explained.text


@pytest.mark.parametrize("version", VERSIONS)
def test_one_line_alone(version):
    text = read("replicated_v5p", version)
    limit = {"0.10.2": 95.74, "0.12.0.1": 95.73}[version]
    arguments = (Buffer(27 * G, "a", BIG), Buffer(G, "b", UP), Buffer(100 * M, "c", UP))
    for log in ("", log_of(version).replace("140.91G", "140.92G")):  # not its own
        explained = explain_compile_error(text, log=log)
        assert explained.needed_bytes == round(140.91 * G)
        assert explained.available_bytes == round(limit * G)
        assert explained.largest == ()
        assert explained.text == text
        # Then the arguments are all that is known; those under a hundredth are left.
        named = explain_compile_error(text, log=log, arguments=arguments)
        assert rows(named) == [(27 * G, "a", BIG)]


@pytest.mark.parametrize("version", VERSIONS)
def test_the_report_is_found_among_others(version):
    log = log_of(version)
    assert log.count("compile permanent error") > 1
    explained = explain_compile_error(read("replicated_v5p", version), log=log)
    assert explained.needed_bytes == 151296990816
    assert (27 * G, "argument or result", BIG) in rows(explained)
    assert "Used 140.91G" in explained.text
    assert "Failed to verify" not in explained.text  # the log's next line


@pytest.mark.parametrize("version", VERSIONS)
def test_a_list_in_the_error_itself(version):
    excess = {"0.10.2": 1.25, "0.12.0.1": 1.21}[version]
    up, down, x = "f32[8,2048,8192]", "f32[8,8192,2048]", "f32[53990,2048]"
    arguments = (Buffer(512 * M, "w", down), Buffer(512 * M, "v", "f32[7]"))
    explained = explain_compile_error(
        read("by_little_v5e", version), log=log_of(version), arguments=arguments
    )
    assert explained.available_bytes == round(15.75 * G)
    assert explained.needed_bytes - explained.available_bytes == round(excess * M)
    assert rows(explained) == [
        (round(6.59 * G), "temporary: jvp()/broadcast_in_dim", "bf16[8,53990,8192]"),
        (round(3.29 * G), "temporary: jvp()/broadcast_in_dim", "pred[8,53990,8192]"),
        (round(1.65 * G), "temporary: jvp()/broadcast_in_dim", "bf16[8,53990,2048]"),
        (512 * M, "w", down),
        (512 * M, "argument 1", up),
        (512 * M, "result", down),
        (512 * M, "result", up),
        (round(421.81 * M), "argument 2", x),
    ]
    assert f"{excess} MiB too much" in str(explained)


# In the form that the fixtures have; with source lines, as older compilers print it.
LISTED = """\
RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory \
space hbm. Used 40.00G of 30.75G hbm. Exceeded hbm capacity by 9.25G.

  Largest program allocations in hbm:

  1. Size: 8.00G
     Operator: op_name="jit(f)/jvp(mlp)/dot_general" source_file="/home/reader/train.py" \
source_line=12
     Shape: f32[8192,131072,2]{1,2,0:T(8,128)}
     Unpadded size: 8.00G
     Allocation type: HLO temp
     ==========================

  2. Size: 4.00G
     Shape: f32[8388608,1]{1,0:T(8,128)}
     Unpadded size: 32.00M
     Extra memory due to padding: 3.97G (128.0x expansion)
     XLA label: Argument 0 index {}
     ==========================

  3. Size: 2.00G
     XLA label: overlays
     Allocation type: overlays
     ==========================
"""


# A small refusal in the log's form: two arguments of one shape, a result, one piece
# for temporaries, and the chip's own small memory, which is another matter.
TIGHT = "memory required for HLO temporaries (1.31G) exceeds available HBM (1.00G)"
TIGHT_LOG = """\
E1128 02:16:55.002027   32226 base.cc:3781] XLA:TPU compile permanent error. \
Ran out of memory in memory space hbm. Used 1.31G of 1.00G hbm. Exceeded hbm capacity \
by 321.50M. Memory usage report:

Memory Space: default (color=0)
Total bytes: 1409286144 (1.31GiB)
  cumulative_size;       size;       offset; used_by_n_values; shapes_list
  ------------------------------------------------------------
  512.00MiB( 80%);  512.00MiB;            0;                3; s32[8], 2×f32[128,1048576]
  640.00MiB(100%);  128.00MiB;    536870912;                1; (f32[1024,8192], f32[8192,4096])

  cumulative_size;       size;       offset; used_by_n_values; shapes_list
  ------------------------------------------------------------
  256.00MiB(100%);  256.00MiB;            0;                1; f32[8192,8192]

  cumulative_size;       size;       offset; used_by_n_values; shapes_list
  ------------------------------------------------------------
  256.00MiB(100%);  256.00MiB;            0;                1; f32[8192,8192]

  cumulative_size;       size;       offset; used_by_n_values; shapes_list
  ------------------------------------------------------------
  192.00MiB(100%);  192.00MiB;            0;                3; f32[6144,8192], 2×bf16[6144,8192]


Memory Space: vmem (color=1)
Total bytes: 100663296 (96.00MiB)
  cumulative_size;       size;       offset; used_by_n_values; shapes_list
  ------------------------------------------------------------
   96.00MiB(100%);   96.00MiB;            0;                1; f32[3072,8192]


E1128 02:16:55.002099   32226 base.cc:3801] Failed to verify buffer assignment.
"""
TIGHT_ARGUMENTS = (
    Buffer(256 * M, "a", "f32[8192,8192]"),
    Buffer(256 * M, "b", "f32[8192,8192]"),
    Buffer(192 * M, "c", "f32[6144,8192]"),
)


def test_which_buffer_is_what():
    explained = explain_compile_error(TIGHT, log=TIGHT_LOG, arguments=TIGHT_ARGUMENTS)
    assert (explained.needed_bytes, explained.available_bytes) == (1344 * M, 1022.5 * M)
    assert rows(explained) == [
        (512 * M, "temporary", "f32[128,1048576]"),
        (256 * M, "a", "f32[8192,8192]"),
        (256 * M, "b", "f32[8192,8192]"),
        # Three arrays lie there in turn, c perhaps, if a result replaces it.
        (192 * M, "c or result", "f32[6144,8192]"),
        (128 * M, "temporary", "f32[8192,4096]"),
    ]
    explained = explain_compile_error(
        TIGHT, log=TIGHT_LOG, arguments=TIGHT_ARGUMENTS[:2]
    )
    assert rows(explained)[3] == (192 * M, "result", "f32[6144,8192]")
    explained = explain_compile_error(TIGHT, log=TIGHT_LOG)
    assert {what for _, what, _ in rows(explained)} == {
        "temporary",
        "argument or result",
    }
    assert explained.needed_bytes == sum(size for size, *_ in rows(explained))
    # A total that is torn, or of something else, is not believed.
    torn = TIGHT_LOG.replace("1409286144", "14092861")
    assert explain_compile_error(TIGHT, log=torn).needed_bytes == round(1.31 * G)


def test_the_whole_report():
    explained = explain_compile_error(LISTED, chip="v4")
    assert str(explained).splitlines() == [
        "the program needs 40.00 GiB on each v4, and 30.75 GiB are there: 9.25 GiB too much.",
        "",
        " bytes  what                             on one device                      where",
        " 8 GiB  temporary: jvp(mlp)/dot_general  f32[8192,131072,2]                 train.py:12",
        " 4 GiB  argument 0                       f32[8388608,1] (padded to 128.0×)",
        " 2 GiB  overlays",
        "26 GiB  all the rest",
        "",
        "Shard what is replicated on every device, donate arguments that a result replaces, "
        "recompute temporaries (jax.checkpoint), or take a smaller batch.",
    ]
    assert explained.largest[0].source == "train.py:12"
    assert (explained.chip, explained.text) == ("v4", LISTED)
    assert isinstance(explained, RuntimeError)
    assert explained._render_traceback_() == [f"DoesNotFit: {explained}"]


def test_a_report_travels_between_processes():
    explained = explain_compile_error(LISTED, chip="v4")
    copy = pickle.loads(pickle.dumps(explained))
    assert vars(copy) == vars(explained)
    assert str(copy) == str(explained)


def test_the_compiler_that_gives_up_early():
    text = (
        "RESOURCE_EXHAUSTED: Compilation failure: Aborting compilation early because "
        "it's unlikely to have enough memory. Requires 3.84T, has 90.96G available. If"
    )
    explained = explain_compile_error(text)
    assert (explained.needed_bytes, explained.available_bytes) == (
        round(3.84 * 2**40),
        round(90.96 * G),
    )
    assert str(explained).startswith(
        "the program needs 3932.16 GiB on each device, and 90.96 GiB are there: "
        "3841.20 GiB too much."
    )


def test_too_much_by_less_than_the_numbers_tell():
    text = "memory required for HLO temporaries (15.75G) exceeds available HBM (15.75G)"
    assert "15.75 GiB are there: a little too much." in str(explain_compile_error(text))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "INVALID_ARGUMENT: No such compile option: 'x'",
        # When it runs: CPU and GPU compile what does not fit.
        "RESOURCE_EXHAUSTED: Out of memory allocating 70368744177664 bytes.",
        "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 4770354232 bytes.",
        # Of the chip's small memory, not of what programs and arrays share.
        "RESOURCE_EXHAUSTED: Ran out of memory in memory space vmem. Used 20.00M of "
        "16.00M vmem. Exceeded vmem capacity by 4.00M.",
    ],
)
def test_other_errors_are_none_of_its_business(text):
    assert explain_compile_error(text, log=log_of("0.10.2")) is None
    assert explain_compile_error(RuntimeError(text)) is None
    assert tpu_refusals.does_not_fit(jax, RuntimeError(text)) is None


@given(st.sampled_from(VERSIONS), st.integers(0, 6000), st.integers(0, 50_000))
@settings(max_examples=40, deadline=None)
def test_a_torn_text_is_read_as_far_as_it_goes(version, start, end):
    for name in ("by_little_v5e", "replicated_v5e"):
        text, log = read(name, version), log_of(version)
        explained = explain_compile_error(text[:start], log=log[:end])
        untorn = explain_compile_error(text, log=log)
        if explained is not None:
            assert abs(explained.needed_bytes - untorn.needed_bytes) <= 0.005 * G
            assert len(explained.largest) <= 8


@pytest.mark.parametrize(
    ("dtype", "word"),
    [
        ("float32", "f32"), ("bfloat16", "bf16"), ("float16", "f16"), ("bool", "pred"),
        ("int32", "s32"), ("uint8", "u8"), ("complex64", "c64"), ("int4", "s4"),
        ("float8_e4m3fn", "f8e4m3fn"), ("float4_e2m1fn", "f4e2m1fn"),
        ("key<fry>", "key<fry>"),
    ],
)  # fmt: skip
def test_dtypes_as_the_compiler_spells_them(dtype, word):
    assert hlo_dtype(dtype) == word
    assert dtype_word(word) == dtype


def test_arguments_are_named_as_one_device_holds_them(monkeypatch):
    monkeypatch.setattr(tpu_refusals, "error_log", lambda: log_of("0.10.2"))
    mesh = jax.make_mesh((8,), ("data",), (jax.sharding.AxisType.Auto,))
    replicated = NamedSharding(mesh, P())
    cut = NamedSharding(mesh, P(None, "data"))
    up = jax.ShapeDtypeStruct((24, 4096, 16384), "float32", sharding=replicated)
    down = jax.ShapeDtypeStruct((24, 8 * 16384, 4096), "float32", sharding=cut)

    def f(params, *, scale, n=3):
        return params["up"] * scale * n

    args, kwargs = ({"up": up, "down": down},), {"scale": np.float32(1)}
    error = RuntimeError(read("replicated_v5e", "0.10.2"))
    message = tpu_refusals.does_not_fit(jax, error, args, kwargs)
    names = {what: shape for _, what, shape in rows(message) if "[" in what}
    assert names == {"args[0]['up']": UP, "args[0]['down']": DOWN}
    assert message.chip == "cpu"
    # JAX knows what the function itself calls them.
    message = tpu_refusals.does_not_fit(
        jax, error, args, kwargs, jax.jit(f).trace(*args, **kwargs)
    )
    names = {what: shape for _, what, shape in rows(message) if "[" in what}
    assert names == {"params['up']": UP, "params['down']": DOWN}


def test_chips_are_named_as_in_the_hardware_table():
    for name in tpu_topology.GENERATIONS:
        device = SimpleNamespace(device_kind=HARDWARE[name].device_kind)
        leaf = SimpleNamespace(sharding=SimpleNamespace(device_set=[device]))
        assert aot._kind(leaf) == name


# --- Without the compiler ---------------------------------------------------------


@pytest.fixture
def no_libtpu(monkeypatch):
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *rest: None if name == "libtpu" else real(name, *rest),
    )
    monkeypatch.setenv("TPU_LIBRARY_PATH", "/no/such/file")


def test_no_libtpu_says_how_to_install_it(no_libtpu):
    with pytest.raises(mesh_module.NoTpuCompiler) as raised:
        mesh_module.tpu_mesh("v5e:2x4", data=8)
    assert str(raised.value) == (
        "tpu_mesh needs the TPU compiler, and libtpu is not installed: run  %pip "
        f"install 'jax[tpu]=={jax.__version__}'  and restart the kernel (it runs on"
        " Linux, and needs no TPU)."
    )
    assert raised.traceback[-1].name == "tpu_mesh"  # no way there that teaches nothing


@pytest.fixture
def libtpu(monkeypatch):
    """A JAX that wants libtpu 0.0.42, and whatever libtpu a test names."""
    monkeypatch.setattr(tpu_libtpu, "_is_installed_one", lambda: True)
    monkeypatch.setattr(tpu_libtpu, "has_libtpu", lambda: True)
    monkeypatch.setattr(mesh_module, "has_libtpu", lambda: True)
    wants = ["jaxlib<=0.10.2", 'libtpu==0.0.42.*; extra == "tpu"']
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: wants)
    real = importlib.metadata.version

    def use(version):
        monkeypatch.setattr(
            importlib.metadata,
            "version",
            lambda name: version if name == "libtpu" else real(name),
        )

    return use


def test_an_old_libtpu_says_so(libtpu):
    libtpu("0.0.41.2")
    with pytest.raises(mesh_module.NoTpuCompiler) as raised:
        mesh_module.tpu_mesh("v5e:2x4", data=8)
    assert str(raised.value) == (
        f"libtpu 0.0.41.2 is older than 0.0.42, which jax {jax.__version__} needs: run "
        f" %pip install 'jax[tpu]=={jax.__version__}'  and restart the kernel."
    )


def test_a_libtpu_of_this_jax_or_newer_is_taken(libtpu, monkeypatch):
    for version in ("0.0.42", "0.0.42.1", "0.0.50.1", "unreadable"):
        libtpu(version)
        assert tpu_libtpu.too_old() == ""
    libtpu("0.0.41")
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: None)
    assert tpu_libtpu.too_old() == ""

    def unknown(name):
        raise importlib.metadata.PackageNotFoundError

    monkeypatch.setattr(importlib.metadata, "version", unknown)
    assert tpu_libtpu.too_old() == ""


def test_a_library_that_someone_names_is_not_judged(tmp_path, monkeypatch):
    library = tmp_path / "libtpu.so"
    library.touch()
    monkeypatch.setenv("TPU_LIBRARY_PATH", str(library))
    assert tpu_libtpu.has_libtpu()
    assert not tpu_libtpu._is_installed_one()
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.0.1")
    assert tpu_libtpu.too_old() == ""


MISTAKES = [
    (
        {},
        "no axes: name them and their sizes, such as tpu_mesh('v5e:2x4', data=8)",
    ),
    ({"data": 0}, "data=0 is not a number of devices; give an integer, 1 or more"),
    ({"data": True}, "data=True is not a number of devices; give an integer, 1 or"),
    ({"data": "8"}, "data='8' is not a number of devices; give an integer, 1 or"),
    (
        {"data": 8, "axis_types": "manual!"},
        "axis_types='manual!' is of no use: give 'auto', 'explicit' or an AxisType, or "
        "one of these for each axis",
    ),
    ({"data": 8, "axis_types": ("auto", "auto")}, "axis_types=('auto', 'auto') is of"),
    (
        {"data": 2, "model": 2},
        "data=2 · model=2 are 4 devices, and v5e:2x4 has 8; meshes that fit are "
        "(data=2, model=4) and (data=4, model=2)",
    ),
]


@pytest.mark.parametrize(("axes", "message"), MISTAKES, ids=lambda x: str(x)[:24])
def test_mistakes_are_told_before_the_compiler_is_asked(no_libtpu, axes, message):
    with pytest.raises((spmd_errors.NotUnderstood, spmd_errors.MeshMismatch)) as raised:
        mesh_module.tpu_mesh("v5e:2x4", **axes)
    assert str(raised.value).startswith(message)
    assert raised.traceback[-1].name == "tpu_mesh"


def test_two_devices_a_chip_are_counted(no_libtpu):
    with pytest.raises(
        spmd_errors.MeshMismatch, match="7x:2x2x1 has 8, two on each of 4 chi"
    ):
        mesh_module.tpu_mesh("7x:2x2x1", data=4)


@pytest.mark.parametrize(
    ("said", "kind", "message"),
    [
        (
            "ABORTED: Internal error when accessing libtpu multi-process lockfile. Run",
            mesh_module.NoTpuCompiler,
            "another program on this machine uses its TPUs, and libtpu serves one at a "
            "time (ABORTED: Internal error",
        ),
        (
            "INVALID_ARGUMENT: Invalid TPU external name: TPU v5e\nmore",
            UnknownTopology,
            "topology='v5e:2x4' is unknown to the installed TPU compiler "
            "(INVALID_ARGUMENT: Invalid TPU external name: TPU v5e): a newer jax[tpu] "
            "may know it.",
        ),
        (
            "INTERNAL: Failed to open /usr/lib/libtpu.so: invalid ELF header",
            mesh_module.NoTpuCompiler,
            "the TPU compiler does not start (INTERNAL: Failed to open /usr/lib/libtpu"
            ".so: invalid ELF header): run  %pip install 'jax[tpu]==0.12'  and restart "
            "the kernel.",
        ),
        (
            "",
            mesh_module.NoTpuCompiler,
            "the TPU compiler does not start (no message): run",
        ),
    ],
)
def test_a_compiler_that_refuses(said, kind, message):
    error = mesh_module._refusal(read_topology("v5e:2x4"), said, "0.12")
    assert type(error) is kind
    assert str(error).startswith(message)


# --- Quiet ------------------------------------------------------------------------


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A machine without TPUs that has libtpu; a log folder of its own."""
    monkeypatch.setattr(tpu_libtpu, "has_libtpu", lambda: True)
    monkeypatch.setattr(tpu_libtpu.glob, "glob", lambda pattern: [])
    monkeypatch.setattr(tpu_libtpu, "_log_folder", str(tmp_path))
    for name in (*tpu_libtpu._QUIET, tpu_libtpu._LOG_PLACE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TPU_SKIP_MDS_QUERY", "1")  # what JAX says without chips
    return tmp_path


def test_the_environment_is_as_before(machine):
    before = dict(os.environ)
    with tpu_libtpu.quiet_libtpu():
        environment = {name: os.environ.get(name) for name in tpu_libtpu._QUIET}
        assert environment == tpu_libtpu._QUIET
        assert os.environ["TPU_LOG_DIR"] == str(machine)
    assert dict(os.environ) == before
    with pytest.raises(KeyError), tpu_libtpu.quiet_libtpu():
        raise KeyError
    assert dict(os.environ) == before


def test_what_someone_has_set_stays(machine, monkeypatch):
    monkeypatch.setenv("TPU_ACCELERATOR_TYPE", "mine")
    monkeypatch.setenv("TPU_LOG_DIR", "there")
    with tpu_libtpu.quiet_libtpu():
        assert os.environ["TPU_ACCELERATOR_TYPE"] == "mine"
        assert os.environ["TPU_LOG_DIR"] == "there"
    assert os.environ["TPU_ACCELERATOR_TYPE"] == "mine"


def test_what_the_compiler_leaves_behind_does_not_reach_child_processes(machine):
    code = "import os; print(os.environ.get('TPU_WORKER_ID'))"
    with tpu_libtpu.quiet_libtpu():
        os.putenv("TPU_WORKER_ID", "WARNING: could not")  # as C++ does, unseen
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "None\n"


@pytest.mark.parametrize("chips", ["jax", "/dev/accel[0-9]*", "/dev/vfio/[0-9]*"])
def test_a_machine_with_tpus_is_left_alone(machine, monkeypatch, chips):
    if chips == "jax":
        monkeypatch.delenv("TPU_SKIP_MDS_QUERY")
    monkeypatch.setattr(
        tpu_libtpu.glob, "glob", lambda pattern: ["one"] if pattern == chips else []
    )
    before = dict(os.environ)
    with tpu_libtpu.quiet_libtpu():
        assert dict(os.environ) == before


def test_no_libtpu_no_change(machine, monkeypatch):
    monkeypatch.setattr(tpu_libtpu, "has_libtpu", lambda: False)
    before = dict(os.environ)
    with tpu_libtpu.quiet_libtpu():
        assert dict(os.environ) == before


def test_only_this_process_has_its_log(monkeypatch, tmp_path):
    name = "tpu_driver.vm.reader.log.ERROR.20261128-021719"
    own, theirs = tmp_path / "own", tmp_path / "theirs"
    own.mkdir()
    theirs.mkdir()
    (own / f"{name}.1").write_text("another's")
    monkeypatch.setattr(tpu_libtpu, "_USUAL_LOG_PLACE", str(theirs))
    monkeypatch.setattr(tpu_libtpu, "_log_folder", str(own))
    monkeypatch.delenv("TPU_LOG_DIR", raising=False)
    assert tpu_libtpu.error_log() == ""
    (theirs / f"{name}.{os.getpid()}").write_text("usual")
    assert tpu_libtpu.error_log() == "usual"  # libtpu was loaded before we were asked
    (own / f"{name}.{os.getpid()}").write_text("own")
    assert tpu_libtpu.error_log() == "own"


def test_the_log_folder_goes_with_the_process(monkeypatch, tmp_path):
    monkeypatch.setattr(tpu_libtpu, "_log_folder", None)
    kept = []
    monkeypatch.setattr(tpu_libtpu.atexit, "register", lambda *call: kept.append(call))
    folder = tpu_libtpu._own_log_folder()
    assert tpu_libtpu._own_log_folder() == folder
    assert os.path.isdir(folder)
    [(remove, *given)] = kept
    remove(folder, os.getpid() + 1)  # in a copy of the process
    assert os.path.isdir(folder)
    remove(*given)
    assert not os.path.exists(folder)


# --- Mutants: what is broken in one place must miss some answer above -------------

READERS = ("_tpu.topology", "_tpu.refusals")
MUTANTS = [
    ("_tpu.topology:Topology.devices",
     "prod(self.chips) * self.generation.devices_per_chip", "prod(self.chips)"),
    ("_tpu.topology:Topology.host", "($x, $y, 1)", "(2, 2, 1)"),
    ("_tpu.topology:Topology.torus", "(*$sizes, $cores) if $cores > 1 else $sizes",
     "$sizes"),
    ("_tpu.topology:_kind_and_sizes", "$name.strip().lower()", "$name.strip()"),
    ("_tpu.topology:_slice_name", "max(1, $count // $generation.cores)", "$count"),
    ("_tpu.topology:_problem", "0 in $chips", "False"),
    ("_tpu.topology:_problem", "$size > 1 and $size % _HOST", "$size % _HOST"),
    ("_tpu.topology:_problem", "prod($chips) > $generation.pod_chips", "False"),
    ("_tpu.topology:directions_on", "reversed($shape)", "$shape"),
    ("_tpu.topology:_directions", "range(len($free), 0, -1)",
     "range(1, len($free) + 1)"),
    ("_tpu.topology:directions_on",
     "[$direction for $direction in $free if $direction not in $taken]",
     "[$direction for $direction in $free]"),
    ("_tpu.topology:_directions", "() if $size == 1 else None", "None"),
    ("_tpu.topology:shapes_on", "(max($shape), $shape)", "$shape"),
    ("_tpu.refusals:_UNITS['G']", "2 ** 30", "10 ** 9"),
    ("_tpu.refusals:_numbers", "$available + _bytes($found[5], $found[6])",
     "$available"),
    ("_tpu.refusals:_own_report", "reversed([*_USED.finditer($log)])",
     "[*_USED.finditer($log)][:1]"),
    ("_tpu.refusals:_own_report",
     "$told is None or $found.groups()[:4] != $told.groups()[:4]", "$told is None"),
    ("_tpu.refusals:_own_report", "$end.start() if $end else len($log)", "len($log)"),
    ("_tpu.refusals:_own_report", "$found[6] in ('', 'K', 'M')", "True"),
    ("_tpu.refusals:_own_report", "$found[6] in ('', 'K', 'M')", "False"),
    ("_tpu.refusals:_rows", r"$body[$start.end():].partition('\nMemory Space:')[0]",
     "$body[$start.end():]"),
    ("_tpu.refusals:_rows", "len($rows) == 1", "True"),
    ("_tpu.refusals:_rows", "$left[$shape].pop(0)", "$left[$shape][0]"),
    ("_tpu.refusals:_rows", "len($rows) != 1 or $rows[0][2] != '1'", "0"),
    ("_tpu.refusals:_rows", "$values == '1'", "True"),
    ("_aot.does_not_fit:largest_shape", "$shape.nbytes", "-$shape.nbytes"),
    ("_aot.does_not_fit:largest_of", "$one.bytes >= _SMALLEST_SHARE * $needed", "True"),
    ("_aot.does_not_fit:largest_of", "-$buffer.bytes", "$buffer.bytes"),
    ("_tpu.refusals:_entries", "$arguments[$at].shape == $shape", "True"),
    ("_tpu.refusals:_what", "$name[1].partition('/')[2] or $name[1]", "$name[1]"),
    ("_tpu.refusals:_own_report", "0.01 * $needed", "10 * $needed"),
    ("_tpu.refusals:_what", "$label.startswith('Output index')", "False"),
    ("_aot.does_not_fit:_padded", "$buffer.bytes < 1.1 * $alone", "True"),
    ("_tpu.refusals:explain_compile_error", "$buffers or $arguments", "$buffers"),
]  # fmt: skip


def said(module, name):
    try:
        return module.read_topology(name)
    except module.UnknownTopology as error:
        return str(error)


def right(topology, memory):
    answers = [said(topology, name) == message for name, message in BAD_NAMES]
    for name, compiler_name, devices, host, torus in BLOCKS:
        parsed = topology.read_topology(name)
        answers.append(parsed.compiler_name == compiler_name)
        answers.append(parsed.devices == devices)
        answers.append((parsed.host, parsed.torus) == (host, torus))
    for torus, axes in product(TORI, (2, 3)):
        answers.append(
            topology.shapes_on(torus, axes) == tpu_topology.shapes_on(torus, axes)
        )
    answers += [
        explained_facts(memory, case) == explained_facts(tpu_refusals, case)
        for case in CASES
    ]
    return all(answers)


# The answers of the whole reader to these are pinned above.
CASES = [
    (name, version, arguments)
    for name in ("replicated_v5e", "replicated_v5p", "by_little_v5e")
    for version in VERSIONS
    for arguments in ((), (Buffer(6 * G, "up", UP), Buffer(5 * G, "also up", UP)))
] + [
    (LISTED, "", ()),
    (TIGHT, TIGHT_LOG, TIGHT_ARGUMENTS),
    (TIGHT, TIGHT_LOG.replace("1409286144", "14092861440"), TIGHT_ARGUMENTS),
]


def explained_facts(module, case):
    name, version, arguments = case
    text, log = name, version
    if version in VERSIONS:
        text, log = read(name, version), log_of(version)
    explained = module.explain_compile_error(text, log=log, arguments=arguments)
    alone = module.explain_compile_error(text, arguments=arguments)
    numbers = (explained.needed_bytes, explained.available_bytes, len(explained.text))
    return (
        numbers,
        [tuple(one) for one in explained.largest],
        str(explained),
        str(alone),
    )


test_a_broken_copy_is_noticed, test_an_unbroken_copy_passes = both_ways(
    MUTANTS, right, *READERS
)
