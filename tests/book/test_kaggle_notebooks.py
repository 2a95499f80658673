"""Run all of chapters on Kaggle, as its lists say that it is.

The solved notebooks, whose cells are the reader's but for the exercises. The untouched
ones run on Colab's versions (test_colab_notebooks.py); their first cells are the same.
In every full test is the chapter of pmap, on the image with TPUs, whose JAX is the
oldest; the rest are `rare`. Several processes are started on Colab's versions.
"""

import nbformat
import pytest

from spmd_helpers._runtime import packages
from tests import runtimes
from tests.book.hosted import LONG, NOTEBOOKS, run_all

pytestmark = LONG


SOLVED = [path for path in NOTEBOOKS if path.parent.name == "solutions"]


ALWAYS = (1,)


@pytest.mark.parametrize(
    "path",
    [
        path
        if int(path.stem[:2]) in ALWAYS
        else pytest.param(path, marks=pytest.mark.rare)
        for path in SOLVED
    ],
    ids=lambda path: path.stem,
)
def test_run_all_on_kaggle(path, session, begun):
    """The image with TPUs for odd chapters, the one without for even ones."""
    name = "kaggle_tpu" if int(path.stem[:2]) % 2 else "kaggle_cpu"
    python, folder = session(name, begun(name))
    ran = run_all(nbformat.read(path, 4), name, python, folder)
    assert not packages.is_older(ran.jax, "0.10.2")
    assert ran.numpy == runtimes.versions(name)["numpy"]
