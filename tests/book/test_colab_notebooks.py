"""Run all of every notebook on Colab, as its list says that it is."""

from spmd_helpers._runtime import packages
from tests import runtimes
from tests.book.hosted import LONG, every_notebook, run_all

pytestmark = LONG


@every_notebook
def test_run_all_on_a_fresh_colab(path, session):
    """Without a traceback, without a restart; NumPy is the one that was in use."""
    python, folder = session("colab_cpu")
    jax, numpy = run_all(path, "colab_cpu", python, folder)
    assert not packages.is_older(jax, "0.11.2")
    assert numpy == runtimes.versions("colab_cpu")["numpy"]
