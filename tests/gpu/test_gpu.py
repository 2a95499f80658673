"""Clusters by name, cards as data, the plugin's state, and what is too large.

Runs everywhere: what needs the GPU compiler is in test_gpu_compiler.py.
"""

import importlib.metadata
import os
import re
import subprocess
import sys
from types import SimpleNamespace

import jax
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spmd_helpers import _errors as errors
from spmd_helpers._gpu import memory as gpu_memory
from spmd_helpers._gpu import mesh as mesh_module
from spmd_helpers._gpu import plugin
from spmd_helpers._gpu.cards import BY_NAME, CARDS, names_words, target_config
from spmd_helpers._gpu.mesh import gpu_mesh
from spmd_helpers._gpu.topology import read_cluster
from spmd_helpers._hardware.chips import HARDWARE
from spmd_helpers._hlo.live import live_at_peak
from spmd_helpers._hlo.parser import parse
from spmd_helpers._runtime import packages

# --- Names ------------------------------------------------------------------------

# (name, its full name, as the compiler takes it, devices)
CLUSTERS = [
    ("h100:2x8", "h100:2x8", "1x2x8", 16),
    ("h200:8", "h200:1x8", "1x1x8", 8),
    ("b200:1", "b200:1x1", "1x1x1", 1),
    ("gb200:18x4", "gb200:18x4", "1x18x4", 72),
    ("a100-40gb:4x16", "a100-40gb:4x16", "1x4x16", 64),
    (" NVIDIA H100 PCIe:3x2 ", "h100-pcie:3x2", "1x3x2", 6),
    ("RTX_PRO_6000:8", "rtx6000pro:1x8", "1x1x8", 8),
    ("H100-SXM:1024x8", "h100:1024x8", "1x1024x8", 8192),
]
_HOW = (
    " Write the card, the hosts and the cards of each, as in 'h100:2x8', or of one host"
    f" 'h200:8'; the cards are {names_words()}."
)
_UNSAID = "does not say how many hosts there are and how many cards each has. Write for"
BAD_NAMES = [
    (5, "topology=5 is not a name." + _HOW),
    ("", "topology='' names no card." + _HOW),
    ("16", "topology='16' names no card." + _HOW),
    ("v5e:8", "topology='v5e:8' names no card." + _HOW),
    ("h10:8", "topology='h10:8' names no card. Did you mean 'h100' or 'h100-pcie'?"),
    ("hh200:8", "topology='hh200:8' names no card. Did you mean 'h200'?" + _HOW),
    (
        "A100:8",
        "topology='A100:8' names no card. Did you mean 'a100-40gb' or 'a100-80gb'?",
    ),
    ("h100", f"topology='h100' {_UNSAID} example 'h100:2x8'."),
    ("h100:", f"topology='h100:' {_UNSAID} example 'h100:2x8'."),
    ("gb200:2x", f"topology='gb200:2x' {_UNSAID} example 'gb200:2x4'."),
    ("h100:0x8", f"topology='h100:0x8' {_UNSAID} example 'h100:2x8'."),
    ("h100:1x2x8", f"topology='h100:1x2x8' {_UNSAID} example 'h100:2x8'."),
    (
        "h100:16",
        "topology='h100:16': 16 cards in a host, and a host has at most 8 of h100. "
        "Write for example 'h100:2x8'.",
    ),
    (
        "gb200:3x6",
        "topology='gb200:3x6': 6 cards in a host, and a host has at most 4 of gb200. "
        "Write for example 'gb200:5x4'.",
    ),
    (
        "MI300X:8",
        "topology='MI300X:8': JAX's plugin for AMD, ROCm, does not start where no AMD "
        "GPU is, so programs are compiled for such cards beside one only. The cards are"
        f" {names_words()}.",
    ),
]


@pytest.mark.parametrize("case", CLUSTERS, ids=lambda case: case[0])
def test_a_cluster(case):
    name, full, compiler_name, devices = case
    cluster = read_cluster(name)
    assert (cluster.name, cluster.compiler_name) == (full, compiler_name)
    assert cluster.devices == devices
    assert read_cluster(full) == cluster


@pytest.mark.parametrize(("name", "message"), BAD_NAMES, ids=lambda x: str(x)[:16])
def test_no_such_cluster(name, message):
    with pytest.raises(errors.UnknownTopology) as raised:
        read_cluster(name)
    assert str(raised.value).startswith(message)
    assert "\n" not in str(raised.value)


def said(name):
    try:
        return read_cluster(name)
    except errors.UnknownTopology as error:
        return str(error)


def test_a_described_card_has_any_name_or_none():
    assert read_cluster("2x12", described=True).devices == 24
    assert read_cluster("mine:2x12", described=True).name == "mine:2x12"
    with pytest.raises(errors.UnknownTopology, match="Write for example 2x8"):
        read_cluster("mine", described=True)


@given(st.text(max_size=12) | st.from_regex(r"(h100|gb200):[\dx]{0,6}", fullmatch=True))
def test_any_text_is_a_cluster_or_gets_its_sentence(name):
    answer = said(name)
    assert repr(name) in answer if isinstance(answer, str) else answer.devices >= 1


@given(st.sampled_from([*CARDS]), st.integers(1, 40), st.integers(17, 400))
def test_what_a_message_suggests_can_be_used(card, hosts, per_host):
    with pytest.raises(errors.UnknownTopology) as raised:
        read_cluster(f"{card}:{hosts}x{per_host}")
    (suggested,) = re.findall(r"Write for example '(.*)'\.", str(raised.value))
    near = read_cluster(suggested)
    assert 0 <= near.devices - hosts * per_host < near.per_host


# --- Cards ------------------------------------------------------------------------


def test_cards_have_a_source_and_a_date_and_are_those_of_the_hardware_table():
    assert {"a100-40gb", "a100-80gb", "h100", "h100-pcie"} <= {*CARDS}
    assert {"h200", "b200", "gb200", "rtx6000pro"} <= {*CARDS}
    for card in CARDS.values():
        assert re.search(r"@[0-9a-f]{7}$|^dumped by jax ", card.source), card.name
        assert re.fullmatch(r"20\d\d-(0[1-9]|1[0-2])", card.date)
    gpus = [chip for chip in HARDWARE.values() if chip.kind == "gpu"]
    assert {chip.name for chip in gpus} <= {*CARDS}
    for chip in gpus:
        assert CARDS[chip.name].device_kind == chip.device_kind
        # Of what nvidia-smi shows, the driver keeps some hundred MiB.
        kept = chip.usable_bytes - CARDS[chip.name].memory_bytes
        assert 0 <= kept < 0.04 * chip.usable_bytes, chip.name


# (multiprocessors, GB/s, TFLOP/s of bf16 products by the tensor cores' clock and rate),
# from NVIDIA's data sheets.
SHEETS = {
    "h100": (132, 3350, 989),
    "h100-pcie": (114, 2000, 756),
    "h200": (132, 4800, 989),
    "b200": (148, 8000, 2250),
    "gb200": (152, 8000, 2500),
}


@pytest.mark.parametrize("name", SHEETS)
def test_the_figures_multiply_to_those_of_the_data_sheets(name):
    card, (cores, bandwidth, tflops) = CARDS[name], SHEETS[name]
    rate = dict(card.architecture.matrix)[16]  # bf16
    peak = 2 * cores * 4 * rate * card.matrix_clock_ghz * 1e9
    assert card.multiprocessors == cores
    assert card.bytes_per_s == pytest.approx(bandwidth * 1e9, rel=0.05)
    assert peak == pytest.approx(tflops * 1e12, rel=0.06)


def test_the_text_of_a_card_has_its_figures():
    text = target_config(CARDS["h100"])
    for line in (
        "core_count: 132",
        "device_memory_size: 84942979072",
        "major: 9 minor: 0 feature_extension: ACCELERATED_FEATURES",
        "key: 16 value { clock_rate_ghz: 1.8295201 units_per_core: 4 ops_per_clock: 51",
        "key: 12 value { clock_rate_ghz: 1.98 units_per_core: 4 ops_per_clock: 32 }",
        'device_description_str: "NVIDIA H100 80GB HBM3"',
    ):
        assert line in text
    assert text.count("{") == text.count("}")
    assert "matrix_unit" not in target_config(CARDS["a100-40gb"])


def test_other_names_are_of_one_card_each():
    names = [name for c in CARDS.values() for name in (c.name, *c.other_names)]
    assert len(names) == len({*names}) == len(BY_NAME)


# --- Mistakes ---------------------------------------------------------------------


@pytest.fixture
def no_plugin(monkeypatch):
    monkeypatch.setattr(plugin, "plugins", list)


def message(name="h100:2x8", **given):
    with pytest.raises((errors.NotUnderstood, errors.MeshMismatch)) as raised:
        gpu_mesh(name, **given)
    assert raised.traceback[-1].name == "gpu_mesh"  # no way there that teaches nothing
    return str(raised.value)


def test_mistakes_are_told_before_the_compiler_is_asked(no_plugin, tmp_path):
    assert message() == (
        "no axes: name them and their sizes, such as gpu_mesh('h100:2x8', data=16)"
    )
    assert message(data=2.0).startswith(
        "data=2.0 is not a number of devices; give an int"
    )
    assert message(data=16, axis_types="manual").startswith(
        "axis_types='manual' is of no"
    )
    assert message(data=8) == (
        "data=8 are 8 devices, and h100:2x8 has 16; meshes that fit are (data=16)"
    )
    assert message(data=3, model=5) == (
        "data=3 · model=5 are 15 devices, and h100:2x8 has 16; meshes that fit are "
        "(data=2, model=8) and (data=8, model=2)"
    )
    assert message(target_config="/no/such", data=16).startswith(
        "target_config='/no/such' can't be read ([Errno 2] No such file or directory"
    )
    assert message(target_config=tmp_path, data=16).startswith(
        "target_config=PosixPath"
    )
    assert message(target_config=b"\xff", data=16).startswith(
        "target_config=b'\\xff' can"
    )
    assert "no device_memory_size" in message(target_config="a { b: 1 }", data=16)


@given(st.integers(1, 8), st.integers(1, 8), st.integers(1, 4))
def test_the_meshes_that_a_message_suggests_fit(hosts, per_host, axes):
    cluster = read_cluster(f"h100:{hosts}x{per_host}")
    words = mesh_module._examples(cluster, axes, ("a", "b", "c", "d")[:axes])
    matches = re.findall(r"\((.*?)\)", words)
    assert matches
    for mesh in matches:
        sizes = [int(size) for size in re.findall(r"=(\d+)", mesh)]
        assert len(sizes) == axes
        product = 1
        for size in sizes:
            product *= size
        assert product == cluster.devices


def refused(monkeypatch=None):
    with pytest.raises(errors.NoGpuCompiler) as raised:
        gpu_mesh("h100:2x8", data=16)
    assert raised.traceback[-1].name == "gpu_mesh"
    return str(raised.value)


def test_no_plugin_says_how_to_install_it(no_plugin, monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    assert refused() == (
        "gpu_mesh needs the GPU compiler, and JAX's CUDA plugin is not installed: run  "
        f"%pip install 'jax[cuda12-local]=={jax.__version__}'  and restart the kernel "
        "(it runs on Linux, and needs no GPU, no driver and no library of NVIDIA's)."
    )
    monkeypatch.setattr(sys, "platform", "darwin")
    assert refused() == (
        "gpu_mesh needs JAX's CUDA plugin, which is made for Linux, and this is darwin:"
        " use a Linux machine, a container or Colab; no GPU is needed there."
    )


def test_an_old_jax_is_told(monkeypatch):
    monkeypatch.setattr(jax, "__version__", "0.7.2")
    with pytest.raises(errors.OldJax, match=r"needs jax 0\.10\.2 or newer"):
        gpu_mesh("h100:2x8", data=16)


@pytest.fixture
def packages_are(monkeypatch):
    """A JAX 0.12 that wants its own plugin, and whatever packages a test names."""

    def use(*cuda, **versions):
        versions = {name.replace("_", "-"): v for name, v in versions.items()}
        monkeypatch.setattr(plugin, "plugins", lambda: [*cuda])
        for module in (packages, plugin):
            monkeypatch.setattr(module, "installed", versions.get)
        monkeypatch.setattr(
            importlib.metadata,
            "requires",
            lambda name: [
                f'jax-cuda{n}-{part}==0.12.0; extra == "cuda{n}-local"'
                for n in ("12", "13")
                for part in ("plugin", "pjrt")
            ],
        )

    return use


def test_a_plugin_of_another_jax_is_told_with_the_pin(packages_are):
    packages_are("12", jax="0.12.0", jax_cuda12_pjrt="0.11.2")
    assert refused() == (
        "jax-cuda12-pjrt 0.11.2 is not the one for jax 0.12.0: run  %pip install "
        f"'jax[cuda12-local]=={jax.__version__}'  and restart the kernel."
    )
    # NVIDIA's libraries came with pip: they go on doing so.
    more = {"jax_cuda13_plugin": "0.11.2", "nvidia_cudnn_cu13": "9"}
    packages_are("13", jax="0.12.0", jax_cuda13_pjrt="0.12.0", **more)
    assert refused() == (
        "jax-cuda13-plugin 0.11.2 is not the one for jax 0.12.0: run  %pip install "
        f"'jax[cuda13]=={jax.__version__}'  and restart the kernel."
    )


def test_two_plugins_are_told(packages_are):
    packages_are("12", "13", jax="0.12.0")
    assert refused() == (
        "jax-cuda12-plugin and jax-cuda13-plugin are both installed, and JAX takes one:"
        " run  %pip uninstall -y jax-cuda12-plugin jax-cuda12-pjrt  and restart the "
        "kernel."
    )


@pytest.mark.parametrize(
    "versions",
    [
        {"jax_cuda12_pjrt": "0.12.0", "jax_cuda12_plugin": "0.12.0"},
        {"jax_cuda12_pjrt": "0.12.0"},  # compiles without the other
        {},  # not installed by pip
    ],
)
def test_a_plugin_of_this_jax_is_taken(packages_are, versions):
    packages_are("12", jax="0.12.0", **versions)
    plugin.check("0.12.0")


def test_a_folder_that_pip_left_is_no_plugin(tmp_path, monkeypatch):
    (tmp_path / "jax_plugins" / "xla_cuda13").mkdir(parents=True)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "jax_plugins", raising=False)
    assert "13" not in plugin.plugins()
    (tmp_path / "jax_plugins" / "xla_cuda13" / "__init__.py").touch()
    assert "13" in plugin.plugins()


@pytest.mark.parametrize(
    ("said", "own", "kind", "words"),
    [
        (
            "E1129 18:21:39.9  7 text_format.cc:378] Error parsing text-format "
            'stream_executor.GpuTargetConfigProto: 3:4: no field named "x".',
            True,
            errors.NotUnderstood,
            "target_config: the compiler of jax 0.12 does not read it (Error parsing "
            "text-format stream_executor.GpuTargetConfigProto: 3:4: no field named "
            '"x".): leave that field out, or have this version of jax dump it.',
        ),
        (
            "INTERNAL: cannot open shared object file",
            False,
            errors.NoGpuCompiler,
            "the GPU compiler does not start (INTERNAL: cannot open shared object file)"
            ": run  %pip install 'jax[cuda12-local]==0.12'  and restart the kernel.",
        ),
    ],
)
def test_a_compiler_that_refuses(said, own, kind, words):
    error = mesh_module._refusal(said, own, "0.12")
    assert type(error) is kind
    assert str(error) == words


# --- Quiet ------------------------------------------------------------------------


def test_a_machine_with_cards_is_left_alone(monkeypatch):
    monkeypatch.setattr(plugin, "plugins", lambda: ["12"])
    monkeypatch.delenv(plugin._SKIP, raising=False)
    monkeypatch.setattr(plugin.glob, "glob", lambda pattern: [])
    with plugin.quiet_plugin():
        assert os.environ[plugin._SKIP] == "1"
    assert plugin._SKIP not in os.environ
    for pattern in ("/dev/nvidia[0-9]*", "/dev/dxg"):
        monkeypatch.setattr(
            plugin.glob, "glob", lambda p, cards=pattern: ["it"] if p == cards else []
        )
        with plugin.quiet_plugin():
            assert plugin._SKIP not in os.environ


def test_the_package_brings_no_cuda_of_its_own():
    """Imported and asked of CPU devices: no plugin is imported, no word is said."""
    code = (
        "import sys\n"
        "import spmd_helpers as spmd\n"
        "spmd.gpu_mesh, spmd.xray, spmd.DoesNotFit\n"
        "assert not any('jax' in name.split('.')[0] for name in sys.modules)\n"
        "try: spmd.gpu_mesh('h100:2x3', data=16)\n"
        "except spmd.MeshMismatch: pass\n"
        "print([name for name in sys.modules if 'cuda' in name and 'plugin' in name])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    if not plugin.plugins():  # JAX itself imports a plugin's module as it is imported
        assert done.stdout == "[]\n"


# --- Too large --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variables", "part"),
    [
        ({}, 0.75),
        ({"XLA_CLIENT_MEM_FRACTION": ".9"}, 0.9),
        ({"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.5"}, 0.5),
        (
            {"XLA_CLIENT_MEM_FRACTION": "0.95", "XLA_PYTHON_CLIENT_MEM_FRACTION": ""},
            0.95,
        ),
        ({"XLA_CLIENT_MEM_FRACTION": "all"}, 0.75),
        ({"XLA_CLIENT_MEM_FRACTION": "0"}, 0.75),
        ({"XLA_CLIENT_MEM_FRACTION": "75"}, 0.75),
    ],
)
def test_the_part_that_jax_takes(monkeypatch, variables, part):
    for name in gpu_memory._VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert gpu_memory.share() == part


HLO = """\
HloModule jit_f, is_scheduled=true

%body (p: (s32[], f32[1024,8])) -> (s32[], f32[1024,8]) {
  %p = (s32[], f32[1024,8]) parameter(0)
  %n = s32[] get-tuple-element(%p), index=0
  %x = f32[1024,8] get-tuple-element(%p), index=1
  %wide = f32[1024,64] broadcast(%x), metadata={op_name="jit(f)/while/body/wide"}
  %y = f32[1024,8] slice(%wide)
  ROOT %t = (s32[], f32[1024,8]) tuple(%n, %y)
}

%condition (q: (s32[], f32[1024,8])) -> pred[] {
  %q = (s32[], f32[1024,8]) parameter(0)
  ROOT %less = pred[] constant(true)
}

%fused (a: f32[4,1024,8], b: f32[1024,8]) -> f32[4,1024,8] {
  %a = f32[4,1024,8] parameter(0)
  %b = f32[1024,8] parameter(1)
  %b1 = f32[1,1024,8] bitcast(%b)
  %zero = s32[] constant(0)
  ROOT %set = f32[4,1024,8] dynamic-update-slice(%a, %b1, %zero, %zero, %zero)
}

ENTRY %main (x: f32[1024,8]) -> (f32[1024,8], f32[8192,8]) {
  %x = f32[1024,8] parameter(0)
  %c = s32[] constant(3)
  %early = f32[1024,32] broadcast(%x), metadata={op_name="jit(f)/early"}
  %start = (f32[1024,8], f32[8192,8]) all-gather-start(%x), dimensions={0}
  %less = f32[1024,8] slice(%early)
  %done = f32[8192,8] all-gather-done(%start)
  %stack = f32[4,1024,8] broadcast(%less)
  %filled = f32[4,1024,8] fusion(%stack, %less), kind=kLoop, calls=%fused
  %init = (s32[], f32[1024,8]) tuple(%c, %less)
  %loop = (s32[], f32[1024,8]) while(%init), condition=%condition, body=%body
  %out = f32[1024,8] get-tuple-element(%loop), index=1
  %sum = f32[1024,8] add(%out, %filled)
  ROOT %root = (f32[1024,8], f32[8192,8]) tuple(%sum, %done)
}
"""


def test_what_lives_at_the_peak():
    """By hand: in the loop its wide array, beside its state and the filled stack.

    The gathered array and the sum are results, x is an argument.
    """
    live = live_at_peak(parse(HLO))
    names = sorted((one.instruction.name, one.shape.nbytes) for one in live)
    kib = 1024
    assert names == [
        ("less", 32 * kib),
        ("stack", 128 * kib),
        ("wide", 256 * kib),
    ]


MINE = ["mine"]


class Stage:
    """What is asked of a compiled stage."""

    def __init__(self, arguments, results, alias, temporaries):
        self._memory = SimpleNamespace(
            argument_size_in_bytes=arguments,
            output_size_in_bytes=results,
            alias_size_in_bytes=alias,
            temp_size_in_bytes=temporaries,
        )

    def memory_analysis(self):
        return self._memory

    def as_text(self):
        return HLO


def test_too_large_names_what_is_largest(monkeypatch):
    monkeypatch.delenv("XLA_CLIENT_MEM_FRACTION", raising=False)
    kib = 1024
    x = jax.ShapeDtypeStruct((1024, 8), "float32")
    # 800 KiB of 1000: three quarters of them are too few, four fifths are just enough.
    stage = Stage(32 * kib, 288 * kib, 0, 480 * kib)
    gpu_memory.remember(MINE, "h100", 1000 * kib)
    monkeypatch.setattr(
        gpu_memory, "_of_device", {"mine": gpu_memory._of_device.pop("mine")}
    )
    error = gpu_memory.too_large(jax, stage, MINE, (x,), {}, None, "log")
    assert (error.needed_bytes, error.available_bytes) == (800 * kib, 750 * kib)
    assert (error.chip, error.text) == ("h100", "log")
    assert [(one.bytes // kib, one.what, one.shape) for one in error.largest] == [
        (256, "result", "f32[8192,8]"),
        (256, "temporary: while/body/wide", "f32[1024,64]"),
        (128, "temporary", "f32[4,1024,8]"),
        (32, "args[0]", "f32[1024,8]"),
        (32, "result", "f32[1024,8]"),
        (32, "temporary", "f32[1024,8]"),
    ]
    assert "JAX takes 75% of the 0.00 GiB of such a card" in str(error)
    assert str(error).splitlines()[-1].startswith("Shard what is replicated")
    # A donated argument: its bytes are a result's, once.
    donated = Stage(288 * kib, 288 * kib, 256 * kib, 480 * kib)
    error = gpu_memory.too_large(jax, donated, MINE, (x,))
    assert [one.what for one in error.largest].count("result") == 1
    monkeypatch.setenv("XLA_CLIENT_MEM_FRACTION", "0.8")
    assert gpu_memory.too_large(jax, stage, MINE, (x,)) is None
    monkeypatch.setenv("XLA_CLIENT_MEM_FRACTION", "0.1")
    assert gpu_memory.too_large(jax, Stage(1, 1, 0, 1), ["another"], (x,)) is None
