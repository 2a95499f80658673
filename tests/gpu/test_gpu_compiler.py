"""What the GPU compiler itself says and does, without a GPU.

Runs where JAX's CUDA plugin is installed, as `make test-all` does.
"""

import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import spmd_helpers as spmd
from spmd_helpers._gpu import plugin
from spmd_helpers._gpu.cards import CARDS, target_config
from spmd_helpers._runtime import packages
from spmd_helpers._runtime.packages import is_older

pytestmark = pytest.mark.compiler("gpu")

DUMPED = Path(__file__).parents[1] / "data" / "gpu_target_h200.pbtxt"
OLD = is_older(jax.__version__, "0.11")
M, G = 2**20, 2**30


def on(mesh, shape, *spec, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, P(*spec)))


def loss(w, x):
    return ((jnp.tanh(x @ w["up"]) @ w["down"]) ** 2).mean()


def step(w, x):
    return jax.tree.map(lambda w, g: w - g, w, jax.grad(loss)(w, x))


def weights(mesh, size, *spec):
    turned = spec[::-1]
    return {
        "up": on(mesh, (size, 2 * size), *spec),
        "down": on(mesh, (2 * size, size), *turned),
    }


@cache
def report(card):
    """Data parallel over hosts and pairs of cards, tensor parallel in each pair."""
    mesh = spmd.gpu_mesh(f"{card}:2x4", data=4, model=2)
    x = on(mesh, (512, 1024), "data")
    return spmd.xray(step, weights(mesh, 1024, None, "model"), x)


# --- The mesh ---------------------------------------------------------------------


@pytest.mark.parametrize("card", CARDS)
def test_devices_of_a_cluster(card):
    mesh = spmd.gpu_mesh(f"{card}:3x2", data=3, model=2)
    devices = [*mesh.devices.flat]
    assert [device.id for device in devices] == [0, 1, 2, 3, 4, 5]
    assert [device.process_index for device in devices] == [0, 0, 1, 1, 2, 2]
    assert {device.platform for device in devices} == {"gpu"}
    assert {device.device_kind for device in devices} == {CARDS[card].device_kind}
    assert mesh.axis_types == (AxisType.Auto,) * 2


def test_meshes_of_one_cluster_have_the_same_devices():
    one = spmd.gpu_mesh("h100:2x4", data=8)
    other = spmd.gpu_mesh("h100:2x4", data=4, model=2, axis_types="explicit")
    assert [*one.devices.flat] == [*other.devices.flat]
    assert one == spmd.gpu_mesh("h100:2x4", data=8)
    assert one.devices.flat[0] != spmd.gpu_mesh("h200:2x4", data=8).devices.flat[0]


def test_the_cpu_goes_on():
    spmd.gpu_mesh("h100:8", data=8)
    assert {device.platform for device in jax.devices()} == {"cpu"}
    assert float(jnp.ones(3).sum()) == 3


def test_a_thousand_hosts_are_soon_there():
    assert spmd.gpu_mesh("h100:1024x8", data=8192).size == 8192


# --- What is compiled -------------------------------------------------------------


@pytest.mark.parametrize("card", CARDS)
def test_a_step_is_read_on_every_card(card):
    ray = report(card)
    assert ray.lowered_for == "gpu"
    moved = [(c.kind, c.axes, c.result_bytes) for c in ray.collectives]
    # 128 rows of 1024 floats are summed over model, and the gradients over data: of
    # each weight, 1024 · 2048 floats, two devices have half. Those are in one exchange.
    rows, half = 128 * 1024 * 4, 1024 * 2048 * 4 // 2
    assert moved == [
        ("all-reduce", ("model",), rows),
        ("all-reduce", ("data",), 2 * half),
    ]
    assert ray.redundancy == 1
    assert ray.findings == ()
    assert all(c.source.startswith("test_gpu_compiler.py:") for c in ray.collectives)
    kept = 2 * 2 * half + rows  # both weights, old and new, and the batch
    assert kept + 2 * half < ray.peak_memory < kept + 4 * half  # and the gradients


def test_all_that_takes_an_xray_takes_these():
    mesh = spmd.gpu_mesh("h100:2x4", data=4, model=2)
    w, x = weights(mesh, 1024, None, "model"), on(mesh, (512, 1024), "data")
    spmd.assert_collectives(report("h100"), exactly={"all-reduce": 2})
    spmd.assert_peak_memory(report("h100"), at_most_bytes=64 * M)
    assert {*spmd.memory(w).per_device.values()} == {2 * 1024 * 2048 * 4 // 2}
    assert spmd.sharding(x).shard_shape == (128, 1024)


def test_a_card_of_the_readers_own():
    """An H200's own description gives what the figures in here give, to the letter."""
    if OLD:
        with pytest.raises(
            spmd.NotUnderstood, match=r"has no field named .mem_clock_g"
        ):
            spmd.gpu_mesh("2x4", target_config=DUMPED, data=8)
        return
    mesh = spmd.gpu_mesh("mine:2x4", target_config=DUMPED, data=4, model=2)
    x = on(mesh, (512, 1024), "data")
    ray = spmd.xray(step, weights(mesh, 1024, None, "model"), x)
    assert ray.peak_memory == report("h200").peak_memory

    def program(text):
        """Without the source tables, in which the two calls have another line."""
        text = re.sub(r'fingerprint_before_lhs="\w+"| stack_frame_id=\d+', "", text)
        return re.sub(r"(?s)\nFileNames.*?\n\n\n", "", text)

    assert program(ray.hlo) == program(report("h200").hlo)


def test_a_description_is_taken_as_text():
    text = target_config(CARDS["a100-80gb"]).replace(
        "core_count: 108", "core_count: 54"
    )
    mesh = spmd.gpu_mesh("half:1x2", target_config=text, data=2)
    assert mesh.size == 2


# --- Too large --------------------------------------------------------------------


def test_a_program_that_does_not_fit(monkeypatch):
    monkeypatch.delenv("XLA_CLIENT_MEM_FRACTION", raising=False)
    mesh = spmd.gpu_mesh("h100:8", data=8)
    w = weights(mesh, 2**16, None, None)  # 32 GiB each
    with pytest.raises(spmd.DoesNotFit) as raised:
        spmd.xray(step, w, on(mesh, (512, 2**16), "data"))
    error = raised.value
    assert error.chip == "h100"
    assert error.available_bytes == int(0.75 * CARDS["h100"].memory_bytes)
    assert error.needed_bytes >= 4 * 32 * G
    assert [(one.bytes, one.what) for one in error.largest[:4]] == [
        (32 * G, "w['down']"),
        (32 * G, "w['up']"),
        (32 * G, "result"),
        (32 * G, "result"),
    ] or {one.what for one in error.largest[:4]} == {"w['down']", "w['up']", "result"}
    assert "JAX takes 75% of the 79.11 GiB of such a card" in str(error)
    # Donated, sharded and with a card that has more it is no matter.
    w = weights(mesh, 2**16, "data", None)
    options = {"donate_argnums": 0}
    ray = spmd.xray(step, w, on(mesh, (512, 2**16), "data"), jit=options)
    assert ray.peak_memory < error.available_bytes


def test_the_share_decides(monkeypatch):
    mesh = spmd.gpu_mesh("h100:2", data=2)
    x = on(mesh, (34 * 2**18, 1024))  # 34 GiB, and as much comes out
    monkeypatch.setenv("XLA_CLIENT_MEM_FRACTION", "0.8")
    with pytest.raises(spmd.DoesNotFit, match=r"and 63\.29 GiB are there"):
        spmd.xray(lambda x: x * 2, x)
    monkeypatch.setenv("XLA_CLIENT_MEM_FRACTION", "0.95")
    assert spmd.xray(lambda x: x * 2, x).peak_memory == 68 * G


# --- Not a word -------------------------------------------------------------------

CODE = """\
import os, sys
before = dict(os.environ)
import spmd_helpers as spmd
mesh = spmd.gpu_mesh("h100:2x4", data=4, model=2)
import jax, jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P
def at(*spec): return NamedSharding(mesh, P(*spec))
x = jax.ShapeDtypeStruct((64, 64, 64), "float32", sharding=at(("data", "model")))
pin = jax.lax.with_sharding_constraint
f = lambda x: jnp.cos(pin(jnp.sin(x), at(None, "data", "model")))
print([finding.code for finding in spmd.xray(f, x).findings])
big = jax.ShapeDtypeStruct((2**22, 2**14), "float32", sharding=at())
try: spmd.xray(lambda x: x * 2, big)
except spmd.DoesNotFit as error: print(type(error).__name__)
print(dict(os.environ) == before, jax.devices()[0].platform)
sys.stderr.write("a word of the program's own\\n")
"""


def run(code, **more):
    kept = {k: v for k, v in os.environ.items() if k not in ("JAX_PLATFORMS", "NPROC")}
    return subprocess.run(
        [sys.executable, "-c", code],
        env=kept | {"LC_CTYPE": "C.UTF-8"} | more,
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize("platforms", ["", "cpu"])
def test_a_script_says_nothing_of_its_own(platforms):
    done = run(CODE, **({"JAX_PLATFORMS": platforms} if platforms else {}))
    assert done.stdout.splitlines() == [
        "['gathered-reshard']",
        "DoesNotFit",
        "True cpu",
    ]
    assert done.stderr == "a word of the program's own\n"


def test_the_example_of_the_readme():
    text = (Path(__file__).parents[2] / "README.md").read_text("utf8")
    start = text.index("      import jax\n      import spmd_helpers")
    lines = text[start : text.index("\n  `%load_ext", start)].splitlines()
    done = run("\n".join(line[6:] for line in lines))
    said = done.stderr.splitlines()
    if OLD:  # that JAX says at its import that there is no driver; install.md tells it
        said = [ln for ln in said if not re.search("cudart_stub|InitializeLog", ln)]
    assert said == []
    title, *rows = done.stdout.splitlines()
    assert title.startswith("XRay of step, gpu, data=8 × model=2")
    assert sum(row.startswith("all-reduce ") for row in rows) >= 2
    assert any("peak memory:" in row for row in rows)
    assert any("compiled without the card" in row for row in rows)


def test_it_works_when_jax_has_started_before():
    """JAX has then left the plugin out, for want of NVIDIA's libraries."""
    code = "import jax; jax.devices()\n" + CODE
    assert run(code).stdout == run(CODE).stdout


def test_the_first_cell_of_a_notebook_is_quiet():
    code = "import spmd_helpers as spmd\nspmd.require()\nspmd.use_devices(8)\n"
    done = run(code)
    assert done.stderr == ""
    assert done.stdout.startswith("using 8 CPU devices (the processor split in 8; JAX")


def test_nothing_of_cuda_is_loaded_unless_asked():
    """An X-ray for CPU devices loads the plugin no more than JAX does by itself."""
    loaded = (
        "\nlines = open('/proc/self/maps').read()\nprint('xla_cuda_plugin' in lines)\n"
    )
    alone = "import jax, jax.numpy as jnp; jax.jit(jnp.sin).lower(1.).compile()"
    ours = "import jax, jax.numpy as jnp, spmd_helpers as spmd; spmd.xray(jnp.sin, 1.)"
    said = [run(code + loaded, JAX_PLATFORMS="cpu").stdout for code in (alone, ours)]
    assert said[0] == said[1]
    only = run("import spmd_helpers as spmd; spmd.gpu_mesh, spmd.DoesNotFit" + loaded)
    assert (only.stdout, only.stderr) == ("False\n", "")


def test_the_plugin_that_is_here_is_this_jaxs():
    """By the metadata that pip wrote; another version is told, by the same."""
    plugin.check(jax.__version__)
    (cuda,) = plugin.plugins()
    assert packages.misfits(f"jax-cuda{cuda}-pjrt", f"jax-cuda{cuda}-plugin") == ""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packages, "installed", {f"jax-cuda{cuda}-pjrt": "0.9"}.get)
        said = packages.misfits(f"jax-cuda{cuda}-pjrt")
    assert said.startswith(f"jax-cuda{cuda}-pjrt 0.9 is not the one for jax")
