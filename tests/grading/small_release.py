"""A small release of its own, so that a grading takes a second, and submissions to it.

Its checks are those of chapter 90 in tests/own_exercises/.
"""

import contextlib
import time
from pathlib import Path

from spmd_grading.process import Limits

ROOT = Path(__file__).parents[2]
SETUP = "import spmd_helpers as spmd\nfrom spmd_exercises import check"
GIVEN = """\
import numpy as np

def double(x):
    return 2 * x

limit = 10
b = 0"""
CHECKS = {  # their code is in tests/own_exercises/
    1: (2, 'check("90.1", a, double, limit)'),
    2: (3, 'check("90.2", triple)'),
    3: (1, 'check("90.3", b)'),
}
STUBS = {1: "a = ...", 2: "def triple(x):\n    raise NotImplementedError", 3: "b = ..."}
RIGHT = {1: "a = 4", 2: "def triple(x):\n    return x + x + x", 3: 'b = "done"'}
WRONG = {1: "a = 40", 2: "def triple(x):\n    return 6", 3: "b = 1"}
FAST = Limits(timeout_s=60, memory_bytes=2**30)
QUICK = Limits(timeout_s=60, memory_bytes=2**29, cell_share=1 / 60)
PATIENT = Limits(timeout_s=60, memory_bytes=2**29, cell_share=1 / 2)


def code(source, cell_id, **metadata):
    return {
        "cell_type": "code",
        "id": cell_id,
        "metadata": metadata,
        "source": source.splitlines(True),
        "outputs": [],
        "execution_count": None,
    }


def notebook(answers=STUBS, chapter=90):
    """The release, or with `answers` a submission."""
    text = {"cell_type": "markdown", "id": "t", "metadata": {}, "source": ["# 90. T"]}
    cells = [text, code(SETUP, "setup", tags=["setup"]), code(GIVEN, "given")]
    for n, (points, check) in CHECKS.items():
        name = f"ch{chapter}-ex{n}"
        graded = {"grade_id": name, "grade": False, "solution": True}
        cells.append(code(answers[n], name, nbgrader=graded))
        graded = {"grade_id": f"{name}-check", "grade": True, "points": points}
        check = check.replace("90.", f"{chapter}.")
        cells.append(code(check, f"{name}-check", nbgrader=graded))
    return {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}


def answered(**changed):
    """Answers: right ones but for `e1=...`, `e2=...`, `e3=...`."""
    return RIGHT | {int(name[1:]): text for name, text in changed.items()}


def at(book, cell_id):
    return next(i for i, c in enumerate(book["cells"]) if c["id"] == cell_id)


def verdicts(result):
    return [row.verdict for row in result.rows]


def row(result, number):
    return next(row for row in result.rows if row.exercise == number)


def is_alive(pid):
    with contextlib.suppress(OSError):
        stat = Path(f"/proc/{pid}/stat").read_text()
        return stat.rpartition(")")[2].split()[0] not in "ZX"
    return False


def until(what, seconds=120):
    end = time.monotonic() + seconds
    while not what() and time.monotonic() < end:
        time.sleep(0.05)
    return what()
