"""Programs × backends × versions: the collectives that a person worked out, found.

The programs and their answers are in `xray_programs.py`. Each is compiled here for
eight CPU devices on whichever JAX is installed, and read from the texts that the TPU
compilers of both versions gave, for two chips, and the GPU compiler of one.
"""

import inspect
import os
import runpy
import sys
from collections import Counter
from functools import cache
from itertools import pairwise
from pathlib import Path

import jax
import jax.numpy as jnp
import nbformat
import numpy as np
import pytest
from flax import nnx
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from nbclient import NotebookClient

from spmd_helpers._hlo.collectives import read_hlo
from tests.hlo.texts import (
    BWD,
    DM,
    FWD,
    HLO,
    RE,
    D,
    KiB,
    M,
    MiB,
    archived,
    gpt3_step,
)
from tests.mutants import both_ways
from tools.book.run import manager_class

from . import xray_programs
from .xray_programs import PROGRAMS, L, gather, permute, reduce, scatter

ARCHIVES = sorted(path.name.split(".tar")[0] for path in HLO.glob("programs.*"))
TPUS = [archive for archive in ARCHIVES if ".v5" in archive]


@cache
def live(name):
    jax.clear_caches()  # what one program traced keeps its lines in the next
    return PROGRAMS[name].xray(jax.devices()).collectives


@cache
def stored(archive, name):
    return read_hlo(archived(archive)[name], PROGRAMS[name].shape)


def rows(collectives):
    return Counter((c.kind, c.axes, c.count) for c in collectives)


def found_in(where, name):
    return live(name) if where == "cpu" else stored(where, name)


def chip_of(where):
    """'cpu', 'v5e', 'v5p', 'gpu' of "cpu" or an archive's name."""
    return where.removeprefix("programs.").split("_")[0]


def backend_of(where):
    return {"v5e": "tpu", "v5p": "tpu"}.get(chip_of(where), chip_of(where))


def check(where, name):
    program, backend, collectives = (
        PROGRAMS[name],
        backend_of(where),
        found_in(where, name),
    )
    assert rows(collectives) == Counter(program.expected(backend))
    assert all(c.upper_bound == (backend in program.upper_bound) for c in collectives)


# --- Kinds, axes, counts ----------------------------------------------------------


@pytest.mark.parametrize("name", PROGRAMS)
def test_compiled_for_cpu(name):
    check("cpu", name)


# Of eight hosts with a GPU each, for which it was compiled, pmap takes one's only.
STORED = [
    (archive, name)
    for archive in ARCHIVES
    for name in PROGRAMS
    if (backend_of(archive), name) != ("gpu", "pmap_step")
]


@pytest.mark.parametrize(("archive", "name"), STORED)
def test_compiled_for_others(archive, name):
    check(archive, name)


def test_every_program_is_stored():
    assert Counter(map(backend_of, ARCHIVES)) == {"tpu": 4, "gpu": 1}
    there = [(archive, name) for archive in ARCHIVES for name in archived(archive)]
    assert sorted(there) == sorted(STORED)


# --- Random programs: what is written into them must be read out ----------------------

NAMES = ("data", "model", "pipe")


@st.composite
def meshes(draw):
    shape = draw(st.sampled_from([(8,), (4, 2), (2, 4), (2, 2, 2), (8, 1), (2, 1, 4)]))
    order = draw(st.permutations(range(8)))
    names = draw(st.permutations(NAMES))[: len(shape)]
    return Mesh(np.array(jax.devices())[order].reshape(shape), tuple(names))


def steps_on(names, deeper=2):
    """A step is a sum over axes, a ring or an exchange over one, or a loop of steps."""
    one = st.sampled_from(names).map(lambda name: (name,))
    some = st.lists(st.sampled_from(names), min_size=1, unique=True).map(tuple)
    steps = st.one_of(
        st.tuples(st.just("all-reduce"), some),
        st.tuples(st.just("collective-permute"), one),
        st.tuples(st.just("all-to-all"), one),
    )
    if deeper:
        loops = st.tuples(st.integers(2, 5), steps_on(names, deeper - 1))
        return st.tuples(steps, loops, steps, loops).map(list)
    return st.tuples(steps, steps).map(list)


def run(steps, x, mesh):
    """One device's part of it; each step needs what the one before gave."""
    for what, of in steps:
        x = jnp.tanh(x)
        if what == "all-reduce":
            x = lax.pcast(lax.psum(x, of), of, to="varying")
        elif what == "collective-permute":
            n = mesh.shape[of[0]]
            x = lax.ppermute(x, of[0], [(i, (i + 1) % n) for i in range(n)])
        elif what == "all-to-all":
            x = lax.all_to_all(x, of[0], 0, 1, tiled=True).reshape(x.shape)
        else:
            x, _ = lax.scan(
                lambda x, _, of=of: (run(of, x, mesh), None), x, length=what
            )
    return x


def written(steps, mesh, times=1):
    """(kind, axes) → executions; axes of size 1 exchange nothing."""
    total = Counter()
    for what, of in steps:
        if isinstance(what, int):
            total += written(of, mesh, times * what)
        elif over := tuple(a for a in mesh.axis_names if a in of and mesh.shape[a] > 1):
            total[what, over] += times
    return total


@settings(
    max_examples=8,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],  # to shrink one takes minutes of compiling
)
@given(st.data(), meshes())
def test_random_programs(data, mesh):
    steps = data.draw(steps_on(mesh.axis_names))
    spec = P(mesh.axis_names)
    f = jax.shard_map(
        lambda x: run(steps, x, mesh), mesh=mesh, in_specs=spec, out_specs=spec
    )
    x = jax.ShapeDtypeStruct((64, 16), jnp.float32, sharding=NamedSharding(mesh, spec))
    text = jax.jit(f).lower(x).compile().as_text()
    read = Counter()
    for c in read_hlo(text, mesh.shape):
        read[c.kind, c.axes] += c.count
    assert read == written(steps, mesh)


# --- Bytes on the wire ------------------------------------------------------------


# By the ring formulas, with n = 4 (data), 2 (model) or 8 (data of 8, or both): the
# result of a gather, the operand of anything else, × (n - 1)/n, twice that for an
# all-reduce, × 1 for a permute. float32, 4 bytes; where TPU multiplies matrices of
# float32 it rounds them to bfloat16 first, and moves them so. B, S, D, F are 64, 96,
# 256, 1024. A scatter that the compiler writes as an all-reduce sends what that does.
def everywhere(answer):
    return {"cpu": answer, "tpu": answer, "gpu": answer}


WIRE = {
    # B/4 × F floats: 64 KiB, × 2 · 1/2.
    "matmul_both_contracted_are_cut": everywhere({reduce("model"): 64 * KiB}),
    # A quarter of D × F goes, 256 KiB; then the whole MiB, × 3/4.
    "matmul_both_outer_are_cut_beside_an_idle_axis": {
        "cpu": {permute("data", "model"): 256 * KiB, gather("data"): 768 * KiB},
        "gpu": {permute("data", "model"): 256 * KiB, gather("data"): 768 * KiB},
        "tpu": {permute("data", "model"): 128 * KiB, gather("data"): 384 * KiB},
    },
    # D/2 floats, 512 bytes, × 2 · 3/4.
    "sum_of_rows": everywhere({reduce("data"): 768}),
    # Two gradients of a MiB, × 2 · 7/8.
    "data_parallel_grad": everywhere({reduce("data"): 3584 * KiB}),
    # Each gather a MiB × 3/4, on GPU both in one; both gradients × 3/4, as an
    # all-reduce × 2 · 3/4.
    "fsdp_grad": {
        "cpu": {gather("data"): 768 * KiB, scatter("data"): 3 * MiB},
        "gpu": {gather("data"): 1536 * KiB, scatter("data"): 1536 * KiB},
        "tpu": {gather("data"): 384 * KiB, scatter("data"): 1536 * KiB},
    },
    # 1 MiB × 7/8 each way; as an all-reduce, also on the cube of v5p, × 2.
    "zero_1_step": {
        "cpu": {scatter("data"): 1792 * KiB, gather("data"): 896 * KiB},
        "gpu": {scatter("data"): 896 * KiB, gather("data"): 896 * KiB},
        "tpu": {scatter("data"): 896 * KiB, gather("data"): 896 * KiB},
        "v5p": {scatter("data"): 1792 * KiB, gather("data"): 896 * KiB},
    },
    # One layer's D × D, 256 KiB, × 3/4; as an all-reduce, × 2.
    "scan_fsdp_checkpoint": {
        "cpu": {
            gather("data", times=L): 192 * KiB,
            scatter("data", times=L): 384 * KiB,
        },
        "gpu": {
            gather("data", times=L): 192 * KiB,
            scatter("data", times=L): 192 * KiB,
        },
        "tpu": {gather("data", times=L): 96 * KiB, scatter("data", times=L): 192 * KiB},
    },
    # B × D/8 floats on each device, 8 KiB, × 7/8; TPU sums and cuts: × 2 · 7/8.
    "psum_scatter_over_both": {
        "cpu": {scatter("data", "model"): 7 * KiB},
        "gpu": {scatter("data", "model"): 7 * KiB},
        "tpu": {scatter("data", "model"): 14 * KiB},
    },
    # 64 KiB in all, × 7/8.
    "all_gather_over_both_swapped": everywhere({gather("data", "model"): 56 * KiB}),
    # D/4 × F floats each step.
    "ring_matmul": {
        "cpu": {permute("data", times=3): 256 * KiB},
        "gpu": {permute("data", times=3): 256 * KiB},
        "tpu": {permute("data", times=3): 128 * KiB},
    },
    # 64 floats, 256 bytes, × 7/8; GPU gathers 8 floats; TPU sums: × 2 · 7/8.
    "cumsum_along_a_cut_axis": {
        "cpu": {gather("data"): 224},
        "gpu": {gather("data"): 28},
        "tpu": {gather("data"): 448},
    },
    # B/4 × S × D floats, 1.5 MiB, × 2 · 1/2.
    "embedding_cut_in_vocabulary": everywhere({reduce("model"): 1536 * KiB}),
    # D numbers of 2 bytes, × 2 · 3/4; CPU and GPU have made them float32.
    "half_precision": {
        "cpu": {reduce("data"): 1536},
        "gpu": {reduce("data"): 1536},
        "tpu": {reduce("data"): 768},
    },
}


@pytest.mark.parametrize("name", WIRE)
@pytest.mark.parametrize("where", ["cpu", *ARCHIVES])
def test_bytes_on_the_wire(where, name):
    findings = found_in(where, name)
    sent = {((c.kind, c.axes, c.count), c.wire_bytes) for c in findings}
    answers = WIRE[name]
    assert sent == set(answers.get(chip_of(where), answers[backend_of(where)]).items())


# --- Phases -----------------------------------------------------------------------

PHASES = {
    "data_parallel_grad": {("all-reduce", BWD): 1},
    "zero_1_step": {("reduce-scatter", BWD): 1, ("all-gather", None): 1},
    "tensor_parallel_grad_of_x_too": {("all-reduce", FWD): 1, ("all-reduce", BWD): 2},
    "scan_grad": {("all-reduce", FWD): 1, ("all-reduce", BWD): 2},
    "scan_fsdp_checkpoint": {
        ("all-gather", FWD): 1,
        ("all-gather", RE): 1,
        ("reduce-scatter", BWD): 1,
    },
    "tensor_parallel_mlp": {("all-reduce", None): 1},
}


@pytest.mark.parametrize("name", PHASES)
@pytest.mark.parametrize("where", ["cpu", *ARCHIVES])
def test_phases(where, name):
    findings = found_in(where, name)
    assert Counter((c.kind, c.phase) for c in findings) == PHASES[name]


# --- Lines ------------------------------------------------------------------------

HELPERS = ("mlp", "loss", "layer", "look_up", "pin")


def lines_of(f):
    code, first = inspect.getsourcelines(f)
    return set(range(first, first + len(code)))


@pytest.mark.parametrize("name", PROGRAMS)
def test_lines_are_those_of_the_program(name):
    # What is moved on the way into a shard_map has the line of its call.
    allowed = lines_of(PROGRAMS[name].build) | lines_of(xray_programs.Program.xray)
    for helper in HELPERS:
        allowed |= lines_of(getattr(xray_programs, helper))
    for c in live(name):
        file, line = c.source.split(":")
        assert file == "xray_programs.py"
        assert int(line) in allowed


@pytest.mark.parametrize("archive", ARCHIVES)
def test_every_collective_has_a_line(archive):
    # The TPU compiler has rewritten the running sum and kept no line of it.
    lost = {"cumsum_along_a_cut_axis"} if backend_of(archive) == "tpu" else set()
    by_name = {name: stored(archive, name) for name in archived(archive)}
    assert lost == {n for n in by_name if any(c.source is None for c in by_name[n])}


def line(c):
    return int(c.source.split(":")[1])


@pytest.mark.parametrize("where", ["cpu", *TPUS])
def test_each_gather_has_the_line_of_its_own_weight(where):
    # w[0] is used in one line and w[1] in the next. TPU starts the gather of w[1]
    # beside the work of the first line, and names it after its end.
    findings = found_in(where, "fsdp_grad")
    first, second = sorted(line(c) for c in findings if c.kind == "all-gather")
    assert second == first + 1


@pytest.mark.parametrize("where", ["cpu", *ARCHIVES])
def test_a_reduction_without_a_label_has_the_line_of_its_addition(where):
    # The three lines: a sum, a scatter, a gather.
    findings = found_in(where, "in_a_cube")
    of = {c.kind: line(c) for c in findings}
    assert of["reduce-scatter"] == of["all-reduce"] + 1 == of["all-gather"] - 1


# Three files of a reader: the sum over model in each comes from a line marked so.
LAYERS = """
import jax.numpy as jnp

def dense(x, w):
    y = x @ w  # here
    return jnp.tanh(y)
"""
TRAIN = """
import layers

def model(x, w):
    h = 2 * x
    return layers.dense(h, w) + 1
"""
NNX = """
from flax import nnx

class Model(nnx.Module):
    def __init__(self, rngs):
        self.inner = nnx.Linear(32, 16, rngs=rngs)

    def __call__(self, x):
        h = 2 * x
        return self.inner(h)  # here
"""


def marked(code):
    """The number of the line that says that it is here."""
    return next(n for n, text in enumerate(code.splitlines(), 1) if "# here" in text)


@pytest.fixture
def reader(tmp_path, monkeypatch):
    """Writes a reader's file, and runs it as a script; gives what it defines."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(name, code):
        (tmp_path / name).write_text(code)
        monkeypatch.delitem(sys.modules, name.removesuffix(".py"), raising=False)
        return lambda: runpy.run_path(str(tmp_path / name), run_name="__main__")

    return write


def contracted(mesh):
    """x and w cut so that x @ w is a sum over model."""
    on = xray_programs.on
    return on(mesh, (8, 32), None, "model"), on(mesh, (32, 16), "model")


MESH = Mesh(np.array(jax.devices()).reshape(4, 2), ("data", "model"))


def only_source(f, *args):
    text = f.lower(*args).compile().as_text()
    (c,) = read_hlo(text, MESH.shape)
    assert (c.kind, c.axes) == ("all-reduce", ("model",))
    return c.source


def test_a_line_in_a_script(reader):
    f = reader("script.py", LAYERS)()["dense"]
    assert only_source(jax.jit(f), *contracted(MESH)) == f"script.py:{marked(LAYERS)}"


def test_a_line_in_a_module_that_a_script_calls(reader):
    reader("layers.py", LAYERS)
    f = reader("train.py", TRAIN)()["model"]
    assert only_source(jax.jit(f), *contracted(MESH)) == f"layers.py:{marked(LAYERS)}"


def test_a_line_that_calls_flax(reader):
    x, w = contracted(MESH)
    model = reader("model.py", NNX)()["Model"](nnx.Rngs(0))
    model.inner.kernel[...] = jax.device_put(model.inner.kernel[...], w.sharding)
    f = nnx.jit(lambda model, x: model(x))
    assert only_source(f, model, x) == f"model.py:{marked(NNX)}"


CELLS = [
    "import numpy as np",
    """from spmd_helpers import use_devices, xray
use_devices(8)
import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P""",
    """def dense(x, w):

    return x @ w
""",
    """mesh = Mesh(np.array(jax.devices()), ("model",))
cut = NamedSharding(mesh, P("model"))
w, v = (jax.ShapeDtypeStruct(s, "float32", sharding=cut) for s in [(32, 16), (16, 8)])
x = jax.ShapeDtypeStruct((8, 32), "float32", sharding=NamedSharding(mesh, P()))
seen = xray(lambda x, w, v: dense(x, w) @ v, x, w, v)
print(sorted({c.source for c in seen.collectives}))""",
]


def test_lines_in_two_cells_of_a_notebook(tmp_path):
    """A function of cell 3, called in line 5 of cell 4, which multiplies itself too."""
    new = nbformat.v4
    notebook = new.new_notebook(cells=[new.new_code_cell(code) for code in CELLS])
    NotebookClient(
        notebook,
        kernel_name="python3",
        kernel_manager_class=manager_class(Path(sys.executable)),
        timeout=120,
        coalesce_streams=True,  # one print may come in two messages
        resources={"metadata": {"path": str(tmp_path)}},
    ).execute(env={**os.environ, "JAX_PLATFORMS": "cpu"})
    printed = [o.text for o in notebook.cells[-1].outputs if o.get("name") == "stdout"]
    assert printed == ["['cell 3, line 3', 'cell 4, line 5']\n"]


# --- A large one ------------------------------------------------------------------

# A train step of GPT-3's shape for 64 v5p, data=16 × model=4, compiled by the TPU
# compiler from tools/bench/gpt3.py. Every line with a collective's opcode was
# listed with the loop that it stands in (73 of them, none printed twice); the loops
# over layers compare a counter with 96, the ones inside with 8 in steps of 2.
#
# A weight that is cut over data is gathered, or its 16 parts go round a ring beside
# the product that uses them: one part is sent before the ring's loop, and four in
# each of its 4 turns, two each way. Gradients go round in such rings too.
GPT3 = {
    # Of each layer forward: the scales of two norms, and `out` and `down`, are
    # gathered; `qkv` and `up` go round. The products of `out` and `down`, whose
    # contracted dimension is cut over model, are summed.
    ("all-gather", D, 96, FWD): 4,
    ("collective-permute", D, 96, FWD): 2,
    ("collective-permute", D, 4 * 96, FWD): 2 * 4,
    ("all-reduce", M, 96, FWD): 2,
    # Of each layer once more: both scales, `qkv`, `out` and `up`, and the sum after
    # `out`. What `down` gives is the next layer's, and kept.
    ("all-gather", D, 96, RE): 5,
    ("all-reduce", M, 96, RE): 1,
    # Of each layer backward: `down` goes round and `qkv` is gathered again for the
    # gradients of what they multiply; the gradients of the four weights go round; the
    # sums over model of what leaves `up` and `qkv` for the layer before, and that
    # over data of both scales' gradients, one tuple.
    ("all-gather", D, 96, BWD): 1,
    ("collective-permute", D, 96, BWD): 5,
    ("collective-permute", D, 4 * 96, BWD): 5 * 4,
    ("all-reduce", M, 96, BWD): 2,
    ("all-reduce", D, 96, BWD): 1,
    # Before the layers: every device needs the ids of others, since the words are cut
    # over model and their features over data. They come by a permute and two gathers;
    # the rows found are summed over model, and an all-to-all over data turns features
    # into rows of the batch. The positions are gathered.
    ("collective-permute", DM, 1, FWD): 1,
    ("all-gather", ("data:(1)4",), 1, FWD): 1,
    ("all-gather", M, 1, FWD): 1,
    ("all-to-all", D, 1, FWD): 1,
    # After them: the last scale and the embedding, gathered with the positions' three.
    ("all-gather", D, 1, FWD): 3,
    # The sum of rows above; the maximum and the sum of the softmax.
    ("all-reduce", M, 1, FWD): 3,
    # Back: the softmax's two sums, one tuple; what leaves the last product. The last
    # scale's gradient and the loss, one tuple.
    ("all-reduce", M, 1, BWD): 2,
    ("all-reduce", D, 1, BWD): 1,
    # The embedding's gradient from the last product goes round; that from the look-up
    # turns rows into features again and is scattered over model, padded, so that a
    # permute brings each device the rows that its neighbor got. The positions'.
    ("collective-permute", D, 1, BWD): 1,
    ("collective-permute", D, 4, BWD): 4,
    ("all-to-all", D, 1, BWD): 1,
    ("reduce-scatter", M, 1, BWD): 1,
    ("collective-permute", M, 1, None): 1,
    ("reduce-scatter", D, 1, BWD): 1,
}


def test_a_train_step_of_gpt_3():
    collectives = read_hlo(gpt3_step(), {"data": 16, "model": 4})
    assert Counter((c.kind, c.axes, c.count, c.phase) for c in collectives) == GPT3
    assert len(collectives) == 73
    # `down` of one layer: 4 · 12288 / 4 rows of 12288 features, cut over data, in
    # bfloat16. A device sends 15 parts of 16 to gather it.
    matrix_bytes = 12288 * 12288 * 2
    (down,) = (
        c
        for c in collectives
        if (c.phase, c.count, c.result_bytes) == (FWD, 96, matrix_bytes)
    )
    assert (down.kind, down.wire_bytes) == ("all-gather", matrix_bytes * 15 // 16)


# --- Gathers and scatters in disguise, and readers that don't see them --------------

LAID = """HloModule jit_f, num_partitions=8

%sum (a: f32[], b: f32[]) -> f32[] {{
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %s = f32[] {applied}(%a, %b)
}}

ENTRY %main (p: f32[{own}]) -> f32[16] {{
  %p = f32[{own}] parameter(0)
  %me = u32[] partition-id()
  %step = u32[] constant({step})
  %at = u32[] multiply(%me, %step)
  %zero = f32[] constant({base})
  %zeros = f32[16] broadcast(%zero), dimensions={{}}
  %laid = f32[16] dynamic-update-slice(%zeros, %p, %at)
  %copy = f32[16] copy(%laid)
  ROOT %all = f32[16] all-reduce(%copy), replica_groups={{}}, to_apply=%sum
}}
"""
SIDE_BY_SIDE = {"applied": "add", "own": 2, "step": 2, "base": 0}
GATHERED, REDUCED = ("all-gather", 8, 64), ("all-reduce", 64, 64)
DISGUISED = [
    ({}, GATHERED),
    ({"base": "-0"}, GATHERED),
    ({"base": 1}, REDUCED),  # what is summed is not zero
    ({"applied": "maximum"}, REDUCED),
    ({"step": 0}, REDUCED),  # all in the same place
    ({"step": 1}, REDUCED),  # over each other
    ({"own": 1, "step": 1}, REDUCED),  # the half stays empty
]

# One replica a device, as pmap once had it: each keeps two of sixteen numbers.
REPLICAS = """HloModule pmap_f, replica_count=8

ENTRY %main (p: f32[16]) -> f32[2] {
  %p = f32[16] parameter(0)
  %all = f32[16] all-reduce(%p), replica_groups={}, to_apply=%sum
  %me = u32[] replica-id()
  %two = u32[] constant(2)
  %at = u32[] multiply(%me, %two)
  ROOT %own = f32[2] dynamic-slice(%all, %at), dynamic_slice_sizes={2}
}
"""


# A gather that only a loop uses, some way off, without a label; the loop has one.
BEFORE_A_LOOP = """HloModule jit_f, num_partitions=8

%body (t: (f32[16])) -> (f32[16]) {
  ROOT %t = (f32[16]) parameter(0)
}

%test (t: (f32[16])) -> pred[] {
  %t = (f32[16]) parameter(0)
  ROOT %never = pred[] constant(false)
}

ENTRY %main (p: f32[2]) -> f32[16] {
  %p = f32[2] parameter(0)
  %all = f32[16] all-gather(%p), replica_groups={}, dimensions={0}
  %a = f32[16] copy(%all)
  %b = f32[16] bitcast(%a)
  %c = f32[16] copy(%b)
  %t = (f32[16]) tuple(%c)
  %loop = (f32[16]) while(%t), condition=%test, body=%body, metadata={\
op_name="jit(f)/jvp()/while" source_file="/home/reader/train.py" source_line=7}
  ROOT %out = f32[16] get-tuple-element(%loop), index=0
}
"""


def label(read):
    (c,) = read(BEFORE_A_LOOP, {"x": 8})
    return c.source, c.phase


def test_what_only_a_loop_uses_has_the_line_of_the_loop():
    assert label(read_hlo) == ("train.py:7", FWD)


def kind_and_bytes(read, text):
    (c,) = read(text, {"x": 8})
    assert c.wire_bytes == 2 * 7 * 64 // 8  # it is sent as an all-reduce
    return c.kind, c.operand_bytes, c.result_bytes


@pytest.mark.parametrize(("changes", "expected"), DISGUISED)
def test_a_gather_that_lays_parts_into_zeros(changes, expected):
    text = LAID.format(**SIDE_BY_SIDE | changes)
    assert kind_and_bytes(read_hlo, text) == expected


def test_a_scatter_between_replicas():
    assert kind_and_bytes(read_hlo, REPLICAS) == ("reduce-scatter", 64, 8)


MUTANTS = [
    ("_hlo.parser:Module.own_number", "'partition-id'", "'replica-id'"),
    ("_hlo.parser:Module.own_number", "int($replicas.group(1)) > 1", "False"),
    ("_hlo.integers:Reader._computed", "return 0", "raise Unknown"),
    ("_hlo.labels:source", "_applied($module, $i)", "()"),
    ("_hlo.labels:_labels", "()", "_UNLABELED"),
    ("_hlo.labels:_labels", "2 * _NEAR", "_NEAR"),
    ("_hlo.collectives:_collective", "source($module, *$end)",
     "source($module, $place, $i)", "($place, $i), $end = $parts[0], $parts[-1]"),
    ("_hlo.collectives:_goes_on", "$before[$around] += $parts", "pass"),
    ("_hlo.collectives:_collective", "is_gathered($module, $place, $i, $groups)",
     "False"),
    ("_hlo.collectives:_collective", "('all-gather', $got // $n, _LAID)",
     "('all-gather', $given, _LAID)", "$put = $given"),
    ("_hlo.collectives:_collective", "(_CUT, _LAID)", "(_CUT,)"),
    ("_hlo.disguised:is_gathered", "('add', 'or')", "('add', 'maximum')"),
    ("_hlo.disguised:_lays_own_part", "$own.elements * len($group) != $whole.elements",
     "False"),
    ("_hlo.disguised:_lays_own_part", "$aligned and _differ($starts)", "$aligned"),
    ("_hlo.disguised:_lays_own_part", "$aligned and _differ($starts)",
     "_differ($starts)"),
    ("_hlo.disguised:_lays_own_part", "$filled.inside.strip() not in $zero",
     "$filled.inside.strip() in ()"),
    ("_hlo.opcodes:OPCODES['copy']", "Does.SAME", "Does.CONSTANT"),
    ("_hlo.dataflow:back",
     "($place.parent, $outer, $path) if $outer else None", "None"),
]  # fmt: skip
TRIED = [
    "psum_scatter_over_both", "cumsum_along_a_cut_axis", "fsdp_grad", "in_a_cube",
    "embedding_and_ids_over_the_same_axis", "two_more_rows",
]  # fmt: skip
STEPS = {"fsdp_grad": [1], "in_a_cube": [1, 1]}


def steps(collectives):
    """How far apart the lines stand that the collectives come from."""
    lines = sorted({line(c) for c in collectives if c.source})
    return [after - before for before, after in pairwise(lines)]


def right(read, name):
    text = archived("programs.v5e_0.12.0.1")[name]
    collectives = read(text, PROGRAMS[name].shape)
    sent = WIRE[name]["tpu"].values() if name in WIRE else ()
    return (
        rows(collectives) == Counter(PROGRAMS[name].expected("tpu"))
        and all(c.wire_bytes in (sent or (c.wire_bytes,)) for c in collectives)
        and steps(collectives) == STEPS.get(name, [])
    )


def passes(reader):
    """Whether a reader gets right what is peculiar to TPU, and the small texts."""
    read = reader.read_hlo
    return (
        all(right(read, name) for name in TRIED)
        and kind_and_bytes(read, REPLICAS)[0] == "reduce-scatter"
        and label(read) == ("train.py:7", FWD)
        and all(
            kind_and_bytes(read, LAID.format(**SIDE_BY_SIDE | changes)) == expected
            for changes, expected in DISGUISED
        )
    )


test_the_cases_catch_a_broken_reader, test_an_unbroken_copy_passes = both_ways(
    MUTANTS, passes, "_hlo.collectives"
)
