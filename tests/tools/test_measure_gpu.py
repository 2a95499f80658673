"""What measures cards, rehearsed on two CPU devices: rows of the right form."""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from spmd_helpers import load_measured
from tools.measure import runner

pytestmark = [
    pytest.mark.long("rehearsals on CPU devices of what measures cards"),
    pytest.mark.once,
]

ROOT = Path(__file__).parents[2]


def run(*arguments, devices=2, tool="gpu"):
    flags = f"--xla_force_host_platform_device_count={devices}"
    environment = {
        **os.environ,
        **{"JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags, "NPROC": "32"},
    }
    command = [sys.executable, "-m", f"tools.measure.{tool}", *map(str, arguments)]
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True
    )


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
    def forms(rows):  # of which machine was not noted when the book's were made
        return {frozenset(row) - {"machine"} for row in rows}

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


@pytest.mark.parametrize("tool", ["gpu", "transformer"])
def test_without_a_gpu_it_says_so_and_writes_nothing(tool, tmp_path):
    done = run("--out", tmp_path, tool=tool)
    assert done.returncode == 1
    assert "There is no GPU here that JAX sees, only cpu" in done.stderr
    assert not list(tmp_path.iterdir())


def test_one_device_has_products_and_no_exchanges(tmp_path):
    done = run("--tiny", "--out", tmp_path, devices=1)
    assert done.returncode == 0, done.stderr
    assert "1 device: collectives and strategies need two" in done.stdout
    (path,) = tmp_path.iterdir()
    assert path.name == "collectives_gpu.json"
    rows = json.loads(path.read_text("utf8"))
    assert {(row["kind"], row["devices"]) for row in rows} == {("matmul", 1)}


@pytest.mark.parametrize("tool", ["gpu", "transformer"])
def test_without_jax_it_names_the_remedy(tool, tmp_path):
    # -S: a Python that sees none of its installed packages.
    command = [
        sys.executable,
        "-S",
        "-m",
        f"tools.measure.{tool}",
        "--out",
        str(tmp_path),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "has no JAX." in line
    assert "make hardware PYTHON=/path/to/python/with/jax-cuda" in line


# --- Where rows go ----------------------------------------------------------------


def place_of(*arguments):
    parser = argparse.ArgumentParser()
    runner.add_places(parser)
    return runner.place(parser.parse_args(arguments))


def test_the_books_rows_are_written_only_when_that_is_asked_for():
    root = ROOT
    assert place_of() == root / "my-measurements"
    assert place_of("--out", "there") == Path("there")
    package = root / "src" / "spmd_helpers" / "_hardware" / "measurements"
    assert place_of("--for-the-book") == package
    with pytest.raises(SystemExit, match="two places"):
        place_of("--for-the-book", "--out", "there")
    assert "/my-measurements/" in (root / ".gitignore").read_text("utf8").split()


def test_rows_of_another_card_are_put_aside(tmp_path):
    path = tmp_path / "log_gpu.json"
    first, second, third = (
        [{"device": card, "jax": "1", "name": card}] for card in "abc"
    )
    runner.write(path, first)
    runner.write(path, first * 2)
    assert json.loads(path.read_text("utf8")) == first * 2
    runner.write(path, second)
    runner.write(path, third)
    stored = {p.name: json.loads(p.read_text("utf8")) for p in tmp_path.iterdir()}
    assert stored == {
        "log_gpu.json": third,
        "log_gpu.1.json": first * 2,
        "log_gpu.2.json": second,
    }


def test_a_machine_is_known_by_its_cards(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert runner.machine() == ""
    assert runner.driver() == ""
    names = []
    for cards in ("GPU-1\nGPU-2", "GPU-1\nGPU-2", "GPU-3\nGPU-2"):
        program = tmp_path / "nvidia-smi"
        program.write_text(f"#!/bin/sh\necho '{cards}'\n")
        program.chmod(0o755)
        names.append(runner.machine())
    assert names[0] == names[1] != names[2]
    assert runner.driver() == "GPU-3"  # the first line of what it said


# --- A process of its own ---------------------------------------------------------


@pytest.fixture
def child(tmp_path, monkeypatch):
    """What `run_child` gives for a module with this text."""
    (tmp_path / "tools" / "measure").mkdir(parents=True)
    monkeypatch.setattr(runner, "ROOT", tmp_path)

    def run(text, *words, **how):
        (tmp_path / "tools" / "measure" / "one.py").write_text(text)
        return runner.run_child("one", *words, **how)

    return run


WRITES = """\
import json, os, sys
with open(sys.argv[-1], "w") as file:
    json.dump([sys.argv[1:-1], os.environ["XLA_FLAGS"], os.environ.get("MORE")], file)
print("said")
"""


def test_a_child_is_given_words_flags_and_settings(child, monkeypatch, capfd):
    monkeypatch.setenv("XLA_FLAGS", "--before")
    how = {"flags": "--to={folder}/x", "settings": {"MORE": "1"}}
    (words, flags, more), ended = child(WRITES, "a", "b c", **how)
    assert (words, more, ended) == (["a", "b c"], "1", "")
    assert flags.startswith("--before --to=/")
    assert flags.endswith("/x")
    assert capfd.readouterr().out == "said\n"
    child(WRITES, quiet=True)
    assert capfd.readouterr().out == ""


def test_a_child_that_breaks_or_hangs_costs_its_row_only(child):
    rows, ended = child(WRITES + "raise ValueError('too\\nmuch')")
    assert rows[0] == []  # what it wrote before
    assert ended == "stopped with 1: ValueError: too"
    assert child("import os; os._exit(3)") == (None, "stopped with 3: without a word")
    hangs = "import time; time.sleep(60)"
    assert child(hangs, longest=0.3) == (None, "stopped after 0 s")
