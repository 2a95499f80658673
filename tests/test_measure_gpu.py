"""What measures cards, rehearsed on two CPU devices: rows of the right form."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from spmd_helpers import load_measured

TOOL = Path(__file__).parent.parent / "tools" / "measure_gpu.py"


def run(*arguments, devices=2):
    flags = f"--xla_force_host_platform_device_count={devices}"
    environment = {
        **os.environ,
        **{"JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags, "NPROC": "32"},
    }
    command = [sys.executable, str(TOOL), *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


@pytest.fixture(scope="module")
def rehearsed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("measured")
    done = run("--tiny", "--out", folder)
    assert done.returncode == 0, done.stderr
    return {
        kind: json.loads((folder / name).read_text("utf8"))
        for kind, name in (
            ("gpu-collectives", "collectives_gpu.json"),
            ("gpu-steps", "steps_gpu.json"),
        )
    }


@pytest.mark.parametrize("kind", ["gpu-collectives", "gpu-steps"])
def test_a_rehearsal_leaves_rows_of_the_stored_form(rehearsed, kind):
    def forms(rows):
        return {frozenset(row) for row in rows}

    assert forms(rehearsed[kind]) == forms(load_measured(kind))


def test_each_collective_is_what_it_is_called(rehearsed):
    rows = [r for r in rehearsed["gpu-collectives"] if r["kind"] != "matmul"]
    assert len(rows) == 5
    for row in rows:
        assert row["seen"] == [row["kind"]]


def test_every_way_does_the_same_work(rehearsed):
    work = {
        row["name"]: row["flops_per_device"]
        for row in rehearsed["gpu-steps"]
        if row["batch"] == 32
    }
    assert len(work) == 6
    assert len(set(work.values())) == 1


def test_explicit_axes_exchange_what_constraints_ask_for(rehearsed):
    kinds = {
        row["name"]: sorted(c["kind"] for c in row["collectives"])
        for row in rehearsed["gpu-steps"]
        if row["batch"] == 32
    }
    assert kinds["fsdp explicit"] == kinds["fsdp constrained"]
    assert "all-to-all" in kinds["fsdp plain"]
    assert "all-to-all" not in kinds["fsdp constrained"]


def test_without_a_gpu_it_says_so_and_writes_nothing(tmp_path):
    done = run("--out", tmp_path)
    assert done.returncode == 1
    assert "There is no GPU here that JAX sees, only cpu" in done.stderr
    assert not list(tmp_path.iterdir())


def test_one_device_is_too_few(tmp_path):
    done = run("--tiny", "--out", tmp_path, devices=1)
    assert done.returncode == 1
    assert "collectives need two or more" in done.stderr
