"""The small release and what grades a notebook against it."""

import json

import pytest

from spmd_grading import single
from spmd_grading.releases import find_releases
from tests.grading.small_release import FAST, notebook


@pytest.fixture
def release(tmp_path):
    folder = tmp_path / "release"
    folder.mkdir()
    for chapter in (90, 91):
        text = json.dumps(notebook(chapter=chapter))
        (folder / f"{chapter}_small.ipynb").write_text(text)
    return folder


@pytest.fixture
def graded(release, tmp_path):
    """Grade a notebook (or the notebook of some answers)."""

    def grade_it(book, limits=FAST, extra=(), name="work.ipynb"):
        path = tmp_path / name
        book = book if "cells" in book else notebook(book)
        path.write_text(json.dumps(book), "utf8")
        return single.grade(path, find_releases(release), limits, extra)

    return grade_it
