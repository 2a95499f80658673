"""Run all of notebooks on Colab, as its list says that it is.

The chapter of several processes, which asks most of Colab, is run on a fresh one:
solved, since the cells are the reader's but for the exercises. The chapter of pmap is
run so on Kaggle's. Of another the untouched notebook is opened, and then the solved
one, where the first cell finds everything. Of the others the first cell is run, what
they import, and `use_devices`, for one of those that import the same libraries; all of
them, and the rest of what they run, is `rare`.
"""

import ast
import sys

import nbformat
import pytest

from spmd_helpers._runtime import packages
from tests import runtimes
from tests.book.hosted import LONG, NOTEBOOKS, ROOT, opening, run_all

pytestmark = LONG
ALWAYS, TWICE = ("16",), ("02",)
UNTOUCHED = [path for path in NOTEBOOKS if path.parent.name == "notebooks"]
SOLVED = [ROOT / "solutions" / path.name for path in UNTOUCHED]
CHAPTERS = [
    path for path, solved in zip(UNTOUCHED, SOLVED, strict=True) if solved.exists()
]
PAGES = [path for path in UNTOUCHED if path not in CHAPTERS]


def of(paths, always):
    """Parameters: chapters whose number is not among these are `rare`."""
    return [
        pytest.param(path, marks=[] if path.name[:2] in always else pytest.mark.rare)
        for path in paths
    ]


def libraries(notebook) -> frozenset[str]:
    """The packages that the opening of a notebook imports, but Python's own."""
    statements = ast.walk(ast.parse(notebook.cells[1].source))
    names = [
        alias.name if isinstance(one, ast.Import) else one.module
        for one in statements
        if isinstance(one, ast.Import | ast.ImportFrom)
        for alias in one.names
    ]
    return frozenset(name.split(".")[0] for name in names) - sys.stdlib_module_names


def _fresh(path, session):
    """Run all in a fresh session, and what it says of itself."""
    python, folder = session("colab_cpu")
    started = run_all(nbformat.read(path, 4), "colab_cpu", python, folder)
    assert "pip installs jax" in started.first_cell
    assert not packages.is_older(started.jax, "0.11.2")
    assert started.numpy == runtimes.versions("colab_cpu")["numpy"]
    return started, python, folder


@pytest.mark.parametrize(
    "path",
    of([ROOT / "solutions" / path.name for path in CHAPTERS] + PAGES, ALWAYS),
    ids=lambda path: path.stem,
)
def test_run_all_on_a_fresh_colab(path, session):
    """Without a traceback, without a restart; NumPy is the one that was in use."""
    _fresh(path, session)


@pytest.mark.parametrize("path", of(CHAPTERS, TWICE), ids=lambda path: path.stem)
def test_an_untouched_and_a_solved_notebook_one_after_the_other(path, session):
    """The untouched one on a fresh Colab, and then the solved one."""
    started, python, folder = _fresh(path, session)
    solved = nbformat.read(ROOT / "solutions" / path.name, 4)
    again = run_all(solved, "colab_cpu", python, folder)
    assert "pip" not in again.first_cell
    assert (again.jax, again.numpy) == (started.jax, started.numpy)


OPENED = {path: opening(path) for path in UNTOUCHED if path.name[:2] not in ALWAYS}
ONE_OF_EACH = {libraries(notebook): path for path, notebook in OPENED.items()}


def test_notebooks_import_different_libraries():
    everywhere = {"jax", "numpy", "spmd_helpers"}
    assert all(everywhere <= names for names in ONE_OF_EACH)
    assert any("orbax" in names for names in ONE_OF_EACH)
    assert len(ONE_OF_EACH) > 4


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(
            path, marks=[] if path in ONE_OF_EACH.values() else pytest.mark.rare
        )
        for path in OPENED
        if path.name[:2] not in TWICE
    ],
    ids=lambda path: path.stem,
)
def test_the_first_cell_and_the_imports(path, session, begun):
    """After another chapter's first cell, which has installed what there is to."""
    python, folder = session("colab_cpu", begun("colab_cpu"))
    started = run_all(opening(path), "colab_cpu", python, folder)
    assert "pip" not in started.first_cell
    assert started.numpy == runtimes.versions("colab_cpu")["numpy"]
