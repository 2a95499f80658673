"""Runs notebooks as Colab and Kaggle do, in environments with their versions.

tests/data/runtimes/ has the exact versions; the first line of each list says of which
day it is. Nothing of ours is there but the wheel. pip's index is the real one.
"""

import ast
import re
from pathlib import Path
from typing import NamedTuple

import nbformat
import pytest

from tests.book.bare_kernels import cells, errors, printed, run
from tools.book.book import read_book
from tools.book.setup_cell import preamble

ROOT = Path(__file__).resolve().parents[2]
BOOK = read_book(ROOT)
NOTEBOOKS = sorted([*ROOT.glob("notebooks/*.ipynb"), *ROOT.glob("solutions/*.ipynb")])
LONG = pytest.mark.long("environments with the versions of Colab and Kaggle")
SIGNS = {
    "colab": {"COLAB_RELEASE_TAG": "release-colab_20260819"},
    "kaggle": {"KAGGLE_KERNEL_RUN_TYPE": "Interactive"},
}
# What a library may look for to learn where it runs: Colab's module, VS Code's name.
OTHER_PLACES = """\
import sys, types
__vsc_ipynb_file__ = "/nowhere/notebook.ipynb"
colab = types.ModuleType("google.colab")
colab.output = types.ModuleType("google.colab.output")
colab.output.enable_custom_widget_manager = lambda *_: print("custom widgets on")
sys.modules.update({"google.colab": colab, "google.colab.output": colab.output})
del sys, types, colab
"""
# Colab's kernel has NumPy and matplotlib in use before the first cell.
IN_USE = "import numpy, matplotlib.pyplot"
USED = "import jax, numpy, spmd_helpers; print(jax.__version__, numpy.__version__)"


def signs(name: str) -> dict[str, str]:
    return SIGNS[name.split("_")[0]]


def first_cell(chapter: int) -> str:
    master = BOOK.masters[chapter - 1]
    return preamble(BOOK, master.read_text("utf8"))


class Ran(NamedTuple):
    """What a notebook's first cell printed, and the versions that it then used."""

    first_cell: str
    jax: str
    numpy: str


def opening(path: Path) -> nbformat.NotebookNode:
    """The first cell of a notebook, all that its cells import, and its devices."""
    sources = [c.source for c in nbformat.read(path, 4).cells if c.cell_type == "code"]
    text = "\n".join(line for s in sources for line in s.split("\n") if line[:1] != "%")
    imports = [
        ast.unparse(statement)
        for statement in ast.parse(text.replace("\n        !", "\n        # ")).body
        if isinstance(statement, ast.Import | ast.ImportFrom)
    ]
    (devices,) = re.findall(r"^devices = spmd\.use_devices\(.*\)$", text, re.M)
    return cells(sources[0], "\n".join([*imports, devices]))


def run_all(
    notebook: nbformat.NotebookNode, name: str, python: Path, folder: Path
) -> Ran:
    notebook.cells.insert(0, nbformat.v4.new_code_cell(OTHER_PLACES, id="places"))
    notebook.cells.insert(1, nbformat.v4.new_code_cell(IN_USE, id="in-use"))
    notebook.cells.append(nbformat.v4.new_code_cell(USED, id="used"))
    run(
        notebook,
        python,
        folder,
        allow_errors=True,
        XLA_FLAGS="--xla_cpu_enable_fast_math=false",
        **signs(name),
    )
    raised = [f"{error.ename}: {error.evalue}" for error in errors(notebook)]
    assert not raised, raised
    left = [p.name for p in folder.iterdir() if p.name[0] != "." and p.suffix != ".whl"]
    assert left == []
    first = next(n for n, c in enumerate(notebook.cells) if "spmd.require" in c.source)
    return Ran(printed(notebook, first), *printed(notebook, -1).split())
