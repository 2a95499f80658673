"""Run all of every chapter on Kaggle, as its lists say that it is.

The solved notebooks, whose cells are the reader's but for the exercises. The untouched
ones run on Colab's versions (test_colab_notebooks.py); their first cells are the same.
In every full test are the chapters of pmap, of a first step, of checkpoints and of
several processes, which ask most of an image; the others are `rare`.
"""

import shutil
from pathlib import Path

import pytest

from spmd_helpers._runtime import packages
from tests import runtimes
from tests.book.bare_kernels import cells, printed, run
from tests.book.hosted import LONG, NOTEBOOKS, first_cell, run_all, signs

pytestmark = LONG


@pytest.fixture(scope="module")
def begun_kaggle(wheel, tmp_path_factory):
    """Kaggle environments in which chapter 13's first cell has been run."""
    made = {}

    def begin(name: str) -> Path:
        if name not in made:
            base = tmp_path_factory.mktemp("kaggle")
            python = runtimes.copied(runtimes.environment(name), base / "environment")
            shutil.copy(wheel, base)
            notebook = run(cells(first_cell(13)), python, base, **signs(name))
            assert "pip installs jax" in printed(notebook, 0)
            made[name] = base / "environment"
        return made[name]

    yield begin
    for folder in made.values():
        shutil.rmtree(folder, ignore_errors=True)


SOLVED = [path for path in NOTEBOOKS if path.parent.name == "solutions"]


ALWAYS = (1, 2, 13, 16)


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
def test_run_all_on_kaggle(path, session, begun_kaggle):
    """The image with TPUs for odd chapters, the one without for even ones."""
    name = "kaggle_tpu" if int(path.stem[:2]) % 2 else "kaggle_cpu"
    python, folder = session(name, begun_kaggle(name))
    ran = run_all(path, name, python, folder)
    assert not packages.is_older(ran.jax, "0.10.2")
    assert ran.numpy == runtimes.versions(name)["numpy"]
