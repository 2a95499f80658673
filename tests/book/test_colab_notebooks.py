"""Run all of every notebook on Colab, as its list says that it is.

The solved notebooks, whose cells are the reader's but for the exercises. Of four
chapters, which ask most of Colab, the untouched one is opened there too, where the
first cell finds everything; of the others that is `rare`.
"""

import pytest

from spmd_helpers._runtime import packages
from tests import runtimes
from tests.book.hosted import LONG, NOTEBOOKS, ROOT, run_all

pytestmark = LONG
ALWAYS = ("01", "02", "13", "16")
UNTOUCHED = [path for path in NOTEBOOKS if path.parent.name == "notebooks"]
SOLVED = [ROOT / "solutions" / path.name for path in UNTOUCHED]


def _fresh(path, session):
    """Run all in a fresh session, and what it says of itself."""
    python, folder = session("colab_cpu")
    started = run_all(path, "colab_cpu", python, folder)
    assert "pip installs jax" in started.first_cell
    assert not packages.is_older(started.jax, "0.11.2")
    assert started.numpy == runtimes.versions("colab_cpu")["numpy"]
    return started, python, folder


@pytest.mark.parametrize(
    "path",
    [
        solved if solved.exists() else path  # a page outside the chapters
        for solved, path in zip(SOLVED, UNTOUCHED, strict=True)
        if path.name[:2] not in ALWAYS
    ],
    ids=lambda path: path.stem,
)
def test_run_all_on_a_fresh_colab(path, session):
    """Without a traceback, without a restart; NumPy is the one that was in use."""
    _fresh(path, session)


@pytest.mark.parametrize(
    "path",
    [
        path if path.name[:2] in ALWAYS else pytest.param(path, marks=pytest.mark.rare)
        for path, solved in zip(UNTOUCHED, SOLVED, strict=True)
        if solved.exists()
    ],
    ids=lambda path: path.stem,
)
def test_an_untouched_and_a_solved_notebook_one_after_the_other(path, session):
    """The untouched one on a fresh Colab, and then the solved one."""
    started, python, folder = _fresh(path, session)
    again = run_all(ROOT / "solutions" / path.name, "colab_cpu", python, folder)
    assert "pip" not in again.first_cell
    assert (again.jax, again.numpy) == (started.jax, started.numpy)
