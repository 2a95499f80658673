"""Run all of every notebook on Colab, as its list says that it is.

The solved notebook of a chapter is opened where the untouched one has run: its first
cell finds everything there.
"""

import pytest

from spmd_helpers._runtime import packages
from tests import runtimes
from tests.book.hosted import LONG, NOTEBOOKS, ROOT, run_all

pytestmark = LONG
UNTOUCHED = [path for path in NOTEBOOKS if path.parent.name == "notebooks"]


@pytest.mark.parametrize("path", UNTOUCHED, ids=lambda path: path.stem)
def test_run_all_on_a_fresh_colab(path, session):
    """Without a traceback, without a restart; NumPy is the one that was in use."""
    python, folder = session("colab_cpu")
    started = run_all(path, "colab_cpu", python, folder)
    assert "pip installs jax" in started.first_cell
    assert not packages.is_older(started.jax, "0.11.2")
    assert started.numpy == runtimes.versions("colab_cpu")["numpy"]
    solved = ROOT / "solutions" / path.name
    second = solved if solved.exists() else path  # a page outside the chapters
    again = run_all(second, "colab_cpu", python, folder)
    assert "pip" not in again.first_cell
    assert (again.jax, again.numpy) == (started.jax, started.numpy)
