"""What the TPU compiler itself says and does, without a TPU.

Runs where libtpu is installed, as `make test-all` does.
"""

import itertools
import json
import os
import subprocess
import sys
from math import prod

import jax
import jax.numpy as jnp
import nbformat
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import spmd_helpers as spmd
from spmd_helpers._aot.does_not_fit import DoesNotFit
from spmd_helpers._hardware.chips import HARDWARE
from spmd_helpers._tpu import libtpu
from spmd_helpers._tpu import mesh as mesh_module
from spmd_helpers._tpu import topology as tpu_topology
from spmd_helpers._tpu.mesh import tpu_mesh
from spmd_helpers._tpu.refusals import does_not_fit
from spmd_helpers._tpu.topology import read_topology, shapes_on

pytestmark = pytest.mark.compiler("tpu")

G, M = 2**30, 2**20


def on(mesh, shape, spec, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, spec))


# --- The mesh ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "devices", "kind"),
    [
        ("v4:2x2x2", 8, "TPU v4"),
        ("v4:1x1x1", 1, "TPU v4"),
        ("v5e:1x1", 1, "TPU v5 lite"),
        ("v5e:1x4", 4, "TPU v5 lite"),
        ("v5e:2x4", 8, "TPU v5 lite"),
        ("v5p:2x2x1", 4, "TPU v5"),
        ("v5p:2x2x3", 12, "TPU v5"),
        ("v6e:4x8", 32, "TPU v6 lite"),
        ("7x:2x2x1", 8, "TPU7x"),
        ("7x:1x1x1", 2, "TPU7x"),
    ],
)
def test_devices_of_a_block(name, devices, kind):
    mesh = tpu_mesh(name, data=devices)
    placed = [*mesh.devices.flat]
    assert len({device.id for device in placed}) == devices
    assert {device.device_kind for device in placed} == {kind}
    assert {device.platform for device in placed} == {"tpu"}
    assert mesh.axis_types == (AxisType.Auto,)
    chips = {tuple(device.coords) for device in placed}
    sizes = (*read_topology(name).chips, 1)[:3]
    assert chips == {*itertools.product(*map(range, sizes))}
    assert len(chips) * read_topology(name).generation.devices_per_chip == devices


def test_every_usual_block_is_known_to_the_compiler():
    for generation in tpu_topology.GENERATIONS.values():
        for chips in tpu_topology.usual_blocks(generation):
            if prod(chips) <= 256:
                block = tpu_topology.Topology(generation, chips)
                assert tpu_mesh(block.name, data=block.devices).size == block.devices


def test_the_kinds_of_axes():
    auto, explicit = AxisType.Auto, AxisType.Explicit
    for given, want in [
        ("auto", (auto, auto)),
        ("explicit", (explicit, explicit)),
        (explicit, (explicit, explicit)),
        (("auto", explicit), (auto, explicit)),
    ]:
        mesh = tpu_mesh("v5e:2x4", data=4, model=2, axis_types=given)
        assert mesh.axis_types == want
        assert (mesh.axis_names, dict(mesh.shape)) == (
            ("data", "model"),
            {"data": 4, "model": 2},
        )


def jaxs_mesh(name, shape):
    """What `topologies.make_mesh` makes of it, None where it refuses."""
    from jax.experimental import topologies

    devices = [*tpu_mesh(name, all=prod(shape)).devices.flat]
    devices.sort(key=lambda device: device.id)
    names = tuple(map(str, range(len(shape))))
    try:
        mesh = topologies.make_mesh(
            topologies.TopologyDescription(devices), shape, names
        )
    except NotImplementedError:
        return None
    return mesh.devices


def ids(devices):
    return [device.id for device in devices.flat]


def ours(name, shape):
    axes = {f"axis{number}": size for number, size in enumerate(shape)}
    try:
        return tpu_mesh(name, **axes).devices
    except mesh_module.NotOnTorus:
        return None


@pytest.mark.parametrize("axes", [2, 3])
@pytest.mark.parametrize("name", ["v5p:4x4x4", "v5e:8x8", "v4:2x2x4", "7x:2x2x1"])
def test_it_takes_and_lays_out_what_jax_does(name, axes):
    block = read_topology(name)
    taken = 0
    for shape in tpu_topology._splits(block.devices, axes):
        want, got = jaxs_mesh(name, shape), ours(name, shape)
        assert (got is None) == (want is None), shape
        if want is not None:
            taken += 1
            assert ids(got) == ids(want)
            assert got.shape == want.shape
    assert taken > 1


# Small slices are rings: JAX takes any mesh on some of them.
@pytest.mark.parametrize("name", ["v5p:4x4x4", "v5e:8x8", "v4:2x2x4", "7x:4x4x4"])
def test_what_the_message_suggests_is_taken(name):
    block = read_topology(name)
    for axes in (1, 2, 3):
        for shape in shapes_on(block.torus, axes):
            assert jaxs_mesh(name, shape) is not None


def test_the_torus_refuses():
    with pytest.raises(mesh_module.NotOnTorus) as raised:
        tpu_mesh("v5p:4x4x4", data=8, model=8)
    assert str(raised.value) == (
        "data=8, model=8 does not fit the 4×4×4 torus of v5p:4x4x4: each axis must be "
        "full directions of it, or it shares links with another. These fit: (data=4, "
        "model=16) and (data=16, model=4). Give anyhow=True to compile for it all the "
        "same"
    )
    assert isinstance(raised.value, spmd.MeshMismatch)
    assert raised.traceback[-1].name == "tpu_mesh"


def test_anyhow():
    mesh = tpu_mesh("v5p:4x4x4", data=8, model=8, anyhow=True)
    assert dict(mesh.shape) == {"data": 8, "model": 8}
    assert len({device.id for device in mesh.devices.flat}) == 64
    fits = tpu_mesh("v5p:4x4x4", data=16, model=4)
    same = tpu_mesh("v5p:4x4x4", data=16, model=4, anyhow=True)
    assert ids(fits.devices) == ids(same.devices)


def test_the_cpu_goes_on():
    mesh = tpu_mesh("v5e:2x2", data=2, model=2)
    x, w = on(mesh, (64, 32), P("data", "model")), on(mesh, (32, 128), P("model"))
    text = jax.jit(jnp.dot).lower(x, w).compile().as_text()
    assert "num_partitions=4" in text
    assert {device.platform for device in jax.devices()} == {"cpu"}
    assert float(jnp.ones(3).sum()) == 3


# --- A program that is too large --------------------------------------------------


def double(x):
    return x * 2


def refusal(mesh, *args, f=double, **jit):
    with pytest.raises(jax.errors.JaxRuntimeError) as raised:
        jax.jit(f, **jit).lower(*args).compile()
    return does_not_fit(jax, raised.value, args)


@pytest.mark.parametrize(
    ("name", "chip"),
    [
        ("v4:2x2x1", "v4"),
        ("v5e:2x2", "v5e"),
        ("v5p:2x2x1", "v5p"),
        ("v6e:2x2", "v6e"),
        ("7x:2x2x1", "7x"),
    ],
)
def test_what_a_chip_has_for_programs(name, chip):
    """Arguments and results of the limit's size are too much, a little less fits."""
    mesh = tpu_mesh(name, data=read_topology(name).devices)
    usable = HARDWARE[chip].usable_bytes  # of the older compiler; the newer keeps more
    rows = usable // (2 * 4096) + 8
    message = refusal(mesh, on(mesh, (rows, 1024), P()))
    assert message.chip == chip
    assert 0 <= usable - message.available_bytes <= 17 * M
    assert message.needed_bytes - 2 * 4096 * rows <= 64 * 1024
    rows = (message.available_bytes - M) // (2 * 4096)
    fits = jax.jit(double).lower(on(mesh, (rows, 1024), P())).compile()
    peak = fits.memory_analysis().peak_memory_in_bytes
    assert message.available_bytes - 2 * M < peak <= message.available_bytes


def test_the_report_names_what_is_large():
    mesh = tpu_mesh("v5e:2x2", data=4)
    x = on(mesh, (2**20, 2**13), P("data"))  # 8 GiB a device

    def f(tree, y):
        return tree["x"] + 1, y @ y.T

    args = ({"x": x}, on(mesh, (2**15, 512), P(None)))
    message = refusal(mesh, *args, f=f)
    # Arguments of 8 GiB and 64 MiB, results of 8 GiB and 4 GiB.
    assert [(one.bytes, one.what, one.shape) for one in message.largest] == [
        (8 * G, "args[0]['x']", "f32[262144,8192]"),
        (8 * G, "result", "f32[262144,8192]"),
        (4 * G, "result", "f32[32768,32768]"),
    ]
    assert abs(message.needed_bytes - (20 * G + 64 * M)) < M
    assert "20.06 GiB on each v5e" in str(message)


def test_the_last_refusal_is_read():
    """Not an earlier one from the log."""
    mesh = tpu_mesh("v5e:2x2", data=4)
    for gib in (9, 10, 9):
        x = on(mesh, (gib * 2**16, 2**12), P())
        message = refusal(mesh, x)
        assert message.largest[0].bytes == gib * G
        assert message.largest[0].what == "args[0]"


def test_xray_raises_it():
    mesh = tpu_mesh("v5e:2x2", data=4)
    with pytest.raises(DoesNotFit) as raised:
        spmd.xray(double, on(mesh, (9 * 2**16, 2**12), P()))
    assert raised.value.largest[0].what == "x"
    assert raised.value.needed_bytes >= 18 * G > raised.value.available_bytes
    assert raised.value.__cause__ is None


def test_peak_is_what_is_held_against_the_limit():
    """With temporaries too: peak_memory_in_bytes grows up to the limit, not beyond."""
    mesh = tpu_mesh("v5e:1x1", data=1)

    def f(x):
        return (x @ x) @ (x @ x.T)

    def argument(n):
        return on(mesh, (n, n), P(), jnp.bfloat16)

    # x, two products and the result: four arrays of n × n numbers of 2 bytes.
    n = 45_824
    assert 8 * n**2 < HARDWARE["v5e"].usable_bytes
    memory = jax.jit(f).lower(argument(n)).compile().memory_analysis()
    assert memory.peak_memory_in_bytes == pytest.approx(8 * n**2, rel=0.001)
    n = 46_080
    assert 8 * n**2 > HARDWARE["v5e"].usable_bytes
    message = refusal(mesh, argument(n), f=f)
    assert message.needed_bytes == pytest.approx(8 * n**2, rel=0.001)


# --- Not a word -------------------------------------------------------------------

CODE = """\
import json, os, subprocess, sys
import jax
before = dict(os.environ)
import jax.numpy as jnp
import spmd_helpers as spmd
from spmd_helpers._tpu.mesh import tpu_mesh
mesh = tpu_mesh("v5e:2x2", data=4)
sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
x = jax.ShapeDtypeStruct((64, 32), jnp.float32, sharding=sharding)
text = jax.jit(lambda x: x.sum(0)).lower(x).compile().as_text()
child = [sys.executable, "-c", "import os, json; print(json.dumps(dict(os.environ)))"]
inherited = json.loads(subprocess.run(child, capture_output=True, check=True).stdout)
new = sorted(name for name in inherited if name not in before)
answer = [len(text) > 500, dict(os.environ) == before, new, float(jnp.ones(3).sum())]
print(json.dumps(answer))
"""
ANSWER = [True, True, [], 3.0]


def environment(**more):
    """Ours, without what conftest sets; no JAX_PLATFORMS: JAX looks for a TPU too."""
    kept = {k: v for k, v in os.environ.items() if k not in ("JAX_PLATFORMS", "NPROC")}
    for name in [*libtpu._QUIET, "TPU_LOG_DIR", "TPU_SKIP_MDS_QUERY"]:
        kept.pop(name, None)
    # What Python's C code adds to a child's environment where the locale is C.
    return kept | {"LC_CTYPE": "C.UTF-8"} | more


def run(code, **more):
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment(**more),
        capture_output=True,
        text=True,
    )
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_a_script_prints_nothing_of_its_own(tmp_path):
    code = CODE + "print(os.listdir(os.environ['TMPDIR']))"
    answer, folders = run(code, TMPDIR=str(tmp_path))
    assert json.loads(answer) == ANSWER
    assert "libtpu-log-" in folders
    assert os.listdir(tmp_path) == []


def test_two_programs_compile_at_once():
    waits = CODE + "sys.stdout.flush(); sys.stdin.read()\n"
    with subprocess.Popen(
        [sys.executable, "-c", waits],
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as first:
        try:
            assert json.loads(first.stdout.readline()) == ANSWER  # and holds libtpu
            [answer] = run(CODE, JAX_PLATFORMS="cpu")
            assert json.loads(answer) == ANSWER
        finally:
            _, errors = first.communicate()
    assert (errors, first.returncode) == ("", 0)


def test_a_search_for_devices_can_be_quiet_too():
    """What `use_devices` asks: JAX then loads libtpu, to look for a TPU."""
    code = (
        "import os, jax\n"
        "before = dict(os.environ)\n"
        "from spmd_helpers._tpu.libtpu import quiet_libtpu\n"
        "with quiet_libtpu(): jax.devices()\n"
        "print(dict(os.environ) == before)\n"
    )
    unchanged, answer = run(code + CODE)
    assert (unchanged, json.loads(answer)) == ("True", ANSWER)


def test_a_notebook_shows_nothing_of_it(tmp_path, monkeypatch):
    nbclient = pytest.importorskip("nbclient")
    too_large = """\
from spmd_helpers._tpu.refusals import does_not_fit
big = jax.ShapeDtypeStruct((2**20, 2**13), jnp.float32, sharding=sharding)
try:
    jax.jit(lambda x: x * 2).lower(big).compile()
except Exception as error:
    raise does_not_fit(jax, error, (big,)) from None
"""
    cells = [nbformat.v4.new_code_cell(code) for code in (CODE, CODE, too_large)]
    cells[2]["metadata"]["tags"] = ["raises-exception"]
    notebook = nbformat.v4.new_notebook(cells=cells)
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("JAX_PLATFORMS")
    nbclient.NotebookClient(
        notebook,
        timeout=120,
        kernel_name="python3",
        coalesce_streams=True,  # one print may come in two messages
    ).execute(cwd=str(tmp_path))
    for cell in cells[:2]:
        [output] = cell.outputs
        assert (output.output_type, output.name) == ("stream", "stdout")
        assert json.loads(output.text) == ANSWER
    [output] = cells[2].outputs
    assert output.ename == "DoesNotFit"
    # The report alone: the way there is JAX's and teaches nothing.
    shown = "\n".join(output.traceback)
    assert shown.startswith("DoesNotFit: the program needs 16.00 GiB on each v5e, and")
    assert "Traceback" not in shown
    assert "f32[262144,8192]" in shown
