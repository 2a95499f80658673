"""How many accelerators a chapter takes: what install.md says, and that it is enough.

A machine with fewer accelerators is made up: one that has as many CPU devices.
"""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tools.check.run_cells import RUN

ROOT = Path(__file__).resolve().parent.parent


MASTERS = {int(p.name[:2]): p for p in sorted((ROOT / "book/chapters").glob("*.md"))}
CALL = re.compile(r"^devices = (spmd\.use_devices\(.*\))$", re.M)
POINTER = "(../book/install.md#on-your-accelerators)"
FEWER = """
import sys, spmd_helpers as spmd

def few(n=8, at_least=None, real=spmd.use_devices, there=int(sys.argv[2])):
    assert there >= (at_least or n), "a real use_devices would have taken CPU devices"
    return real(there)

spmd.use_devices = few
"""


def device_bounds(text: str) -> tuple[int, int]:
    """(most, least) accelerators of a chapter's one call of use_devices."""
    (call,) = CALL.findall(text)
    given = {k.arg: k.value.value for k in ast.parse(call).body[0].value.keywords}
    most = ast.parse(call).body[0].value.args[0].value
    return most, given.get("at_least", most)


ASKED = {
    number: device_bounds(path.read_text("utf8")) for number, path in MASTERS.items()
}


def table(page: str) -> dict[int, tuple[str, list[int]]]:
    """Chapter -> (its file, the numbers of accelerators) of install.md's table."""
    part = page[page.index("## On your accelerators") :]
    part = part[: part.index("\n## ")]
    rows = re.findall(r"^\| \[(\d+)\]\((.*?)\) \| ([\d, or]+) \| .+ \|$", part, re.M)
    return {
        int(number): (Path(link).stem, [int(k) for k in re.findall(r"\d+", takes)])
        for number, link, takes in rows
    }


def test_the_page_says_what_each_chapter_asks_for():
    said = table((ROOT / "book" / "install.md").read_text("utf8"))
    assert {n: (max(takes), min(takes)) for n, (_, takes) in said.items()} == ASKED
    assert {n: name for n, (name, _) in said.items()} == {
        n: path.stem for n, path in MASTERS.items()
    }


@pytest.mark.parametrize("number", MASTERS)
def test_a_chapter_points_there_before_it_asks(number):
    text = MASTERS[number].read_text("utf8")
    assert POINTER in text[: CALL.search(text).start()]


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """Programs are compiled in a hurry, and kept: some are the same for both runs."""
    hurry = (
        "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    )
    return {
        "XLA_FLAGS": hurry,
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path_factory.mktemp("programs")),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }


def on_fewer(notebook: Path, there: int, kept: dict) -> subprocess.CompletedProcess:
    mine = {"PYTHONPATH": str(ROOT / "src"), "MPLBACKEND": "agg"}
    return subprocess.run(
        [sys.executable, "-c", FEWER + RUN, str(notebook), str(there)],
        env={**os.environ, **kept, **mine},
        cwd=notebook.parent,
        capture_output=True,
        text=True,
        timeout=300,
    )


SMALLER = [
    (number, there)
    for number, (most, least) in ASKED.items()
    for there in (2, 4)
    if least <= there < most
]


def test_some_chapter_takes_fewer():
    assert (2, 2) in SMALLER
    assert (2, 4) in SMALLER


@pytest.mark.long("chapters run again, on fewer devices")
@pytest.mark.parametrize(("number", "there"), SMALLER)
def test_a_solved_chapter_runs_on_fewer(number, there, kept):
    notebook = ROOT / "solutions" / f"{MASTERS[number].stem}.ipynb"
    done = on_fewer(notebook, there, kept)
    assert done.returncode == 0, done.stderr[-2000:]
    exercises = len(re.findall(r'"check\(\\"', notebook.read_text("utf8")))
    assert len(re.findall(r"^Exercise .*: right", done.stdout, re.M)) == exercises
    assert f"data={there}" in done.stdout or f"over {there} devices" in done.stdout


@pytest.mark.long("chapters run again, on fewer devices")
@pytest.mark.once
def test_a_chapter_that_needs_eight_is_seen(tmp_path, kept):
    text = (ROOT / "solutions" / f"{MASTERS[2].stem}.ipynb").read_text("utf8")
    eight = tmp_path / "eight.ipynb"
    eight.write_text(text.replace("(len(devices),), ", "(8,), "), "utf8")
    done = on_fewer(eight, 2, kept)
    assert done.returncode
    assert "ValueError" in done.stderr
