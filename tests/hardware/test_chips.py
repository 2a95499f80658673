"""Chips: each figure against the page it came from, and the compiler's own limit."""

import dataclasses
import json
import os
import re
import subprocess
import sys

import pytest

from spmd_helpers._core.registry import ByName
from spmd_helpers._core.words import join_words
from spmd_helpers._errors import NotUnderstood
from spmd_helpers._gpu.cards import CARDS
from spmd_helpers._hardware import chips
from spmd_helpers._hardware.chips import HARDWARE, Chip, chip
from spmd_helpers._tpu.topology import GENERATIONS

GIB, MIB = 2**30, 2**20

# (GB or GiB of memory, GB/s of memory, TFLOP/s in bfloat16, GB/s of a link one way,
# links), by hand from the pages that the rows name. This is the one list of all chips
# in the tests: a new chip gets its line here, and a GPU one in SHOWN too.
FIGURES = {
    "v4": (32, 1200, 275, 45, 6),
    "v5e": (16, 819, 197, 45, 4),
    "v5p": (96, 2765, 459, 90, 6),
    "v6e": (32, 1638, 918, 90, 4),
    "7x": (192 / 2, 7380 / 2, 2307 / 2, 90, 6),
    "a100-40gb": (40, 1555, 312, 600 / 2, 1),
    "a100-80gb": (80, 2039, 312, 600 / 2, 1),
    "h100": (80, 3350, 1979 // 2, 900 / 2, 1),
    "h200": (141, 4800, 1979 // 2, 900 / 2, 1),
    "b200": (1440 / 8, 64000 / 8, 4500 / 2, 1800 / 2, 1),
}
# What nvidia-smi shows, in MiB.
SHOWN = {
    "a100-40gb": 40960,
    "a100-80gb": 81920,
    "h100": 81559,
    "h200": 143771,
    "b200": 183359,
}

# (JAX devices of a host, Gb/s of the network that each of them has), by hand from the
# pages that `network_source` names; None where none says it.
NETWORK = {
    "v4": (4, 50),
    "v5e": (8, 25),
    "v5p": (4, 50),
    "v6e": (8, 100),
    "7x": (8, None),
    "a100-40gb": (8, 200),
    "a100-80gb": (8, 200),
    "h100": (8, 400),
    "h200": (8, 400),
    "b200": (8, 400),
}


def test_every_chip_was_read_from_its_page_twice():
    here = "tests/hardware/test_chips.py"
    missing = [
        f"{name}: add what its page says to FIGURES in {here}"
        for name in HARDWARE
        if name not in FIGURES
    ]
    missing += [
        f"{name}: add the MiB that nvidia-smi shows to SHOWN in {here}"
        for name, one in HARDWARE.items()
        if one.kind == "gpu" and name not in SHOWN
    ]
    missing += [
        f"{name}: add its host's devices and network, in Gbit/s, to NETWORK in {here}"
        for name in HARDWARE
        if name not in NETWORK
    ]
    missing += [
        f"{name}: add a {what} with this name to src/spmd_helpers/{file}.py"
        for kind, listed, what, file in (
            ("gpu", CARDS, "Card", "_gpu/cards"),
            ("tpu", GENERATIONS, "Generation", "_tpu/topology"),
        )
        for name, one in HARDWARE.items()
        if one.kind == kind and name not in listed
    ]
    missing += [
        f"{name}: promised in FIGURES or SHOWN in {here}, and HARDWARE in "
        "src/spmd_helpers/_hardware/chips.py has it no longer"
        for name in {**FIGURES, **SHOWN}
        if name not in HARDWARE
    ]
    assert not missing, "; ".join(missing)


@pytest.mark.parametrize("name", [name for name in FIGURES if name in HARDWARE])
def test_figures_are_those_of_the_pages(name):
    one = HARDWARE[name]
    memory, bandwidth, flops, link, links = FIGURES[name]
    assert one.name == name
    assert one.memory_bytes == memory * GIB
    assert one.memory_bytes_per_s == bandwidth * 1e9
    assert one.bf16_flops_per_s == flops * 1e12
    assert one.link_bytes_per_s == link * 1e9
    assert one.links == links
    assert (one.kind == "gpu") == (name in SHOWN), (
        "SHOWN here has the GPUs, all of them"
    )


@pytest.mark.parametrize("name", [name for name in NETWORK if name in HARDWARE])
def test_hosts_and_their_networks_are_those_of_the_pages(name):
    one = HARDWARE[name]
    host, network = NETWORK[name]
    assert one.host_devices == host
    if network is None:
        assert one.network_bytes_per_s is None
        return
    assert one.network_bytes_per_s == network * 1e9 / 8
    assert len(one.network_source) > 30


@pytest.mark.parametrize("name", HARDWARE)
def test_every_row_has_a_source_a_date_and_a_limit(name):
    one = HARDWARE[name]
    assert len(one.source) > 30
    assert re.fullmatch(r"20\d\d-(0[1-9]|1[0-2])", one.date), one.date
    assert one.note
    assert isinstance(one.usable_bytes, int)
    assert 0.9 * one.memory_bytes < one.usable_bytes <= one.memory_bytes
    if one.kind == "tpu":
        assert re.search(r"compiled for .* with libtpu [\d.]+ \(jax ", one.source)
    elif name in SHOWN:
        assert one.usable_bytes == SHOWN[name] * MIB
        assert 0.985 < one.driver_bytes / one.usable_bytes < 1


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("v5p", ["95 GiB", "95 GB", "96 GB", "keeps 263 MiB", "keeps 279 MiB"]),
        ("v6e", ["918 TFLOP/s, the scaling book 920"]),
        ("v4", ["two devices of at most 15614.5 MiB"]),
        ("7x", ["two JAX devices"]),
        ("b200", ["180 GB", "192 GB", "186 GB", "183359 MiB"]),
        ("h100", ["81559 MiB", "sparsity"]),
    ],
)
def test_disagreements_are_said(name, said):
    for words in said:
        assert words in HARDWARE[name].note


def test_a_card_that_was_measured_is_described_by_its_maker():
    assert HARDWARE["h200"].source.startswith("nvidia.com/en-us/data-center/h200;")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("v5e", "v5e"),
        ("V5E", "v5e"),
        ("TPU v5e", "v5e"),
        ("tpu7x", "7x"),
        ("TPU7x", "7x"),
        ("TPU v5 lite", "v5e"),
        ("TPU v5", "v5p"),
        ("TPU v6 lite", "v6e"),
        ("TPU v4", "v4"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA A100-SXM4-40GB", "a100-40gb"),
        ("A100 80GB", "a100-80gb"),
        ("a100_40gb", "a100-40gb"),
        (HARDWARE["b200"], "b200"),
    ],
)
def test_a_chip_by_its_names(name, expected):
    assert chip(name) is HARDWARE[expected]


# Seven chips, so that what is guessed does not hang on those that are added.
SEVEN = ("v4", "v5e", "v5p", "7x", "a100-40gb", "a100-80gb", "h100")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("v5pp", "chip='v5pp' is not known. Did you mean 'v5p'?"),
        ("H10", "chip='H10' is not known. Did you mean 'h100'?"),
        ("A100", "chip='A100' is not known. Did you mean 'a100-40gb' or 'a100-80gb'?"),
        ("v5", "chip='v5' is not known. Did you mean 'v5e' or 'v5p'?"),
        ("abacus", "chip='abacus' is not known."),
        (None, "chip=None is not known."),
        (["v4"], "chip=['v4'] is not known."),
    ],
)
def test_a_chip_that_is_not_there(name, text, monkeypatch):
    seven = ByName("chip", {one: HARDWARE[one] for one in SEVEN})
    monkeypatch.setattr(chips, "HARDWARE", seven)
    with pytest.raises(NotUnderstood) as caught:
        chip(name)
    assert str(caught.value) == (
        f"{text} There are v4, v5e, v5p, 7x, a100-40gb, a100-80gb and h100."
    )


def test_every_chip_is_offered():
    with pytest.raises(NotUnderstood) as caught:
        chip(None)
    assert str(caught.value) == (
        f"chip=None is not known. There are {join_words(list(HARDWARE))}."
    )


def test_the_table_itself_says_so_too():
    with pytest.raises(
        NotUnderstood, match=r"^chip='h1000' is not known\. Did you mea"
    ):
        HARDWARE["h1000"]
    assert "h1000" not in HARDWARE
    assert HARDWARE.get("h1000") is None


def test_a_chip_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        HARDWARE["v4"].links = 3
    assert isinstance(HARDWARE["v4"], Chip)


PROBE = """
import json, re, sys
import jax, numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
said = {}
for name, topology, more in json.loads(sys.argv[1]):
    found = topologies.get_topology_desc(
        platform="tpu", topology_name=topology, **more)
    devices = np.array(found.devices).reshape(-1)
    everywhere = NamedSharding(Mesh(devices, ("x",)), P())
    x = jax.ShapeDtypeStruct((2**40,), "int8", sharding=everywhere)
    try:
        jax.jit(lambda x: x + 1, out_shardings=everywhere).lower(x).compile()
    except jax.errors.JaxRuntimeError as error:
        limit = re.search(r"available HBM \\(([0-9.]+)G\\)", str(error))
        said[name] = devices[0].device_kind, float(limit[1])
print("SAID", json.dumps(said))
"""


@pytest.mark.compiler("tpu")
def test_limits_are_those_of_the_tpu_compiler():
    requests = [
        (
            one.kind,
            f"{one.compiler_name}:{'2x2x1'[: 2 * one.dims - 1]}",
            dict(one.options),
        )
        for one in GENERATIONS.values()
    ]
    assert ("v4", "v4:2x2x1", {"chip_config_name": "megacore"}) in requests
    assert ("v5e", "v5e:2x2", {}) in requests
    done = subprocess.run(
        [sys.executable, "-c", PROBE, json.dumps(requests)],
        env=dict(os.environ, JAX_PLATFORMS="cpu", TPU_SKIP_MDS_QUERY="1"),
        capture_output=True,
        text=True,
        timeout=300,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("SAID ")]
    assert lines, done.stderr[-2000:]
    said = json.loads(lines[0].removeprefix("SAID "))
    assert set(said) == {name for name, _, _ in requests}
    for name, (kind, limit) in said.items():
        assert kind == HARDWARE[name].device_kind
        # Versions of libtpu differ by up to 16 MiB; the text has two decimals.
        assert limit == pytest.approx(HARDWARE[name].usable_bytes / GIB, abs=0.022)
