"""Grading without nbgrader: submissions that are right, wrong, broken, or hostile.

The release is a small one of its own, so that a grading takes a second; one chapter
of the book is graded too.
"""

import copy
import csv
import io
import json
import os
import re
import resource
import signal
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from spmd_grading import grade, single
from spmd_grading.extra import read_extra_checks
from spmd_grading.plan import make_plan
from spmd_grading.process import Limits
from spmd_grading.releases import find_releases
from spmd_grading.report import in_csv, to_csv, to_gradescope, to_junit
from spmd_grading.report import to_table as table
from spmd_grading.result import Result, Row
from spmd_grading.submission import CannotGrade
from tests.grading.small_release import (
    FAST,
    PATIENT,
    QUICK,
    RIGHT,
    ROOT,
    STUBS,
    WRONG,
    answered,
    at,
    code,
    is_alive,
    notebook,
    row,
    until,
    verdicts,
)

pytestmark = [
    pytest.mark.long("courses, made and graded as an instructor does"),
    pytest.mark.usefixtures("own_exercises"),
]

# Right, wrong, blank.


def test_right_answers_get_all_points(graded):
    result = graded(RIGHT)
    assert verdicts(result) == ["right"] * 3
    assert (result.points, result.of, result.graded) == (6, 6, True)
    assert result.notes == ()
    assert result.peak_bytes > 2**24


def test_untouched_is_open(graded):
    result = graded(STUBS)
    assert verdicts(result) == ["open"] * 3
    assert (result.points, result.of, result.graded) == (0, 6, True)
    assert row(result, "90.2").message == (
        "Exercise 90.2 is open: write `triple()` above, then run this cell."
    )


def test_wrong_answers_are_told_what_the_learner_was(graded):
    result = graded(WRONG)
    assert verdicts(result) == ["wrong"] * 3
    assert row(result, "90.1").message.startswith(
        "Exercise 90.1, not yet: 40 is too large"
    )
    assert result.points == 0


def test_one_error_does_not_stop_the_rest(graded):
    book = notebook(answered(e2="def triple(x):\n    return x + undefined"))
    book["cells"].insert(3, code("1 / 0", "mine"))
    result = graded(book)
    assert verdicts(result) == ["right", "wrong", "right"]
    assert "NameError: name 'undefined'" in row(result, "90.2").message


@pytest.mark.parametrize(
    "ending", ["import sys; sys.exit(0)", "exit()", "def f(:", "raise MemoryError"]
)
def test_an_answer_cell_that_raises_is_quoted(graded, ending):
    result = graded(answered(e2=ending))
    assert verdicts(result) == ["right", "wrong", "right"]
    assert "Its answer cell had raised" in row(result, "90.2").message


@pytest.mark.parametrize("answer", ['b = "done', "b = {5, 7"])
def test_an_answer_that_python_can_not_read_is_quoted_in_one_line(graded, answer):
    result = graded(answered(e3=answer))
    said = row(result, "90.3").message.splitlines()[-1]
    assert said.startswith("Its answer cell had raised SyntaxError: ")
    assert said.endswith(f"(line 1: {answer})")
    assert verdicts(result) == ["right", "right", "wrong"]


def test_an_exit_inside_the_check_is_a_wrong_answer(graded):
    result = graded(answered(e2="def triple(x):\n    raise SystemExit"))
    assert verdicts(result) == ["right", "wrong", "right"]
    assert "stopped itself: SystemExit" in row(result, "90.2").message


def test_an_interrupt_of_the_answers_own_is_a_wrong_answer(graded):
    result = graded(answered(e2="def triple(x):\n    raise KeyboardInterrupt"))
    assert verdicts(result) == ["right", "wrong", "right"]
    assert row(result, "90.2").message == "KeyboardInterrupt"


def test_magics_and_the_last_value_work_as_in_a_notebook(graded):
    book = notebook(answered(e3='%time b = "done"\nb\n!echo shell'))
    book["cells"].insert(
        3, code("assert (await __import__('asyncio').sleep(0, 1))", "m")
    )
    assert verdicts(graded(book)) == ["right"] * 3


# What was done to the notebook.


def stripped(book):
    for n, cell in enumerate(book["cells"]):
        cell["metadata"] = {}
        cell["id"] = f"x{n}"
    return book


def as_colab_saves_it(book):
    for n, cell in enumerate(book["cells"]):
        del cell["id"]
        cell["metadata"] = {"id": f"aB{n}", "colab": {"base_uri": "https://x"}}
        cell["source"] = "".join(cell["source"]).replace("\n", "\r\n")
    book["metadata"] = {"colab": {"provenance": []}, "kernelspec": {"name": "python3"}}
    book["nbformat_minor"] = 0
    return book


@pytest.mark.parametrize("change", [copy.deepcopy, stripped, as_colab_saves_it])
def test_a_changed_check_is_replaced_and_it_is_said(graded, change):
    book = notebook(answered(e2=WRONG[2]))
    check = book["cells"][at(book, "ch90-ex2-check")]
    check["source"] = ['check("90.2", lambda x: 3 * x)']
    result = graded(change(book))
    assert verdicts(result) == ["right", "wrong", "right"]
    assert result.notes == ("90.2: the check was changed, the release's was used",)


def test_a_deleted_check_is_put_back(graded):
    book = notebook(answered(e2=WRONG[2]))
    del book["cells"][at(book, "ch90-ex2-check")]
    result = graded(book)
    assert verdicts(result) == ["right", "wrong", "right"]
    assert result.notes == ("90.2: the check was not there, the release's was used",)


def test_points_of_a_submission_do_not_count(graded):
    book = notebook(WRONG | {1: RIGHT[1]})
    for cell in book["cells"]:
        if cell["metadata"].get("nbgrader", {}).get("grade"):
            cell["metadata"]["nbgrader"]["points"] = 1000
    result = graded(book)
    assert (result.points, result.of) == (2, 6)


def test_a_deleted_answer_is_not_found_and_never_0(graded):
    book = notebook(RIGHT)
    del book["cells"][at(book, "ch90-ex2")]
    result = graded(book)
    assert verdicts(result) == ["right", "not found", "right"]
    assert row(result, "90.2").points is None
    assert row(result, "90.2").message.startswith("NOT FOUND: no cell")
    assert "defines triple" in row(result, "90.2").message
    assert not result.graded
    assert "NOT ALL GRADED" in table([result])


@pytest.mark.parametrize("change", [stripped, as_colab_saves_it])
def test_without_metadata_it_grades_the_same(graded, change):
    book = change(notebook(answered(e2=WRONG[2])))
    result = graded(book)
    assert verdicts(result) == ["right", "wrong", "right"]
    assert (result.points, result.of, result.notes) == (3, 6, ())


@pytest.mark.parametrize("change", [stripped, as_colab_saves_it])
def test_without_metadata_an_untouched_notebook_is_open(graded, change):
    assert verdicts(graded(change(notebook()))) == ["open"] * 3


def test_without_metadata_a_deleted_answer_is_not_found(graded):
    book = stripped(notebook(RIGHT))
    book["cells"] = [c for c in book["cells"] if "triple(x):" not in str(c["source"])]
    assert verdicts(graded(book)) == ["right", "not found", "right"]


def test_an_answer_merged_into_its_check_counts(graded):
    book = stripped(notebook(RIGHT))
    where = next(i for i, c in enumerate(book["cells"]) if c["source"] == ["a = 4"])
    merged = book["cells"].pop(where)["source"] + ["\n"]
    book["cells"][where]["source"] = merged + book["cells"][where]["source"]
    assert verdicts(graded(book)) == ["right"] * 3


def test_cells_that_were_added_run_in_their_place(graded):
    book = notebook(answered(e2="def triple(x):\n    return helper(x)"))
    helper = code("def helper(x):\n    return 3 * x", "mine")
    book["cells"].insert(at(book, "ch90-ex2"), helper)
    assert verdicts(graded(book)) == ["right"] * 3


def test_given_cells_are_those_of_the_release(graded):
    book = notebook(answered(e1="a = helper() // 10"))
    book["cells"][at(book, "given")]["source"] = [
        "limit = 10**9\ndef helper():\n    return 400"
    ]
    result = graded(book)
    assert verdicts(result) == ["wrong", "right", "right"]
    assert "1 given cell had been changed" in result.notes[0]
    assert "90.1: `limit` had been given another meaning" in result.notes[1]
    book = notebook(RIGHT)
    del book["cells"][at(book, "given")]
    result = graded(book)
    assert verdicts(result) == ["right"] * 3
    assert "1 given cell had been deleted" in result.notes[0]


def test_a_changed_setup_cell_is_not_run(graded, tmp_path):
    book = notebook(RIGHT)
    proof = tmp_path / "ran"
    book["cells"][1]["source"] = [f"open({str(proof)!r}, 'w')\nraise SystemExit"]
    result = graded(book)
    assert verdicts(result) == ["right"] * 3
    assert "the set-up cell was changed" in result.notes[0]
    assert not proof.exists()


# Which release it is, and what is no submission.


def test_the_chapter_is_found_by_its_exercises(release, tmp_path):
    for change in (stripped, as_colab_saves_it, copy.deepcopy):
        path = tmp_path / "90_small.ipynb"  # a name that misleads
        path.write_text(json.dumps(change(notebook(RIGHT, chapter=91))))
        plan = make_plan(path, find_releases(release))
        assert plan.release.name == "91_small.ipynb"
        assert plan.missing == {}


def test_another_chapter_is_not_found(release, tmp_path):
    path = tmp_path / "work.ipynb"
    path.write_text(json.dumps(stripped(notebook(RIGHT, chapter=92))))
    result = single.grade(path, find_releases(release), FAST)
    assert result.rows == ()
    assert not result.graded
    assert "NOT FOUND among the release notebooks" in result.problem
    assert "exercises of chapter 92" in result.problem
    assert "NOT GRADED" in table([result])


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"%PDF-1.7 \xff", "is not a notebook"),
        (b"[]", "is not a notebook"),
        (b"{}", "is not a notebook"),
        (b'{"cells": {"cell_type": "code"}}', "is not a notebook"),
        (b'{"cells": [{"cell_type": "code"}]}', "NOT FOUND"),
        (b"[" * 200_000, "is not a notebook"),
        (b'{"nbformat": 3, "worksheets": []}', "a notebook of format 3"),
        (b'{"cells": [], "nbformat": 4}', "NOT FOUND"),
        (b"", "is empty, 0 bytes"),
        (None, "is not a file"),
        ("folder", "is a folder, not a file"),
    ],
)
def test_what_is_no_notebook_is_said_and_costs_only_itself(
    release, tmp_path, capsys, data, words
):
    bad, good = tmp_path / "bad.ipynb", tmp_path / "good.ipynb"
    good.write_text(json.dumps(notebook(RIGHT)))
    if data == "folder":
        bad.mkdir()
    elif data is not None:
        bad.write_bytes(data)
    grade = single.grade(bad, find_releases(release), FAST)
    assert words in grade.problem
    assert not grade.graded


def test_the_exit_code_is_2_when_one_could_not_be_graded(release, tmp_path, capsys):
    bad, good = tmp_path / "bad.ipynb", tmp_path / "good.ipynb"
    good.write_text(json.dumps(notebook(WRONG)))
    bad.write_text("no")
    arguments = ["--release", str(release), str(bad), str(good)]
    assert grade.main(arguments) == 2
    said = capsys.readouterr().out
    assert "bad.ipynb: NOT GRADED" in said
    assert "good.ipynb: 0 of 6 points" in said
    assert grade.main(arguments[:2] + arguments[3:]) == 0
    assert "runs" not in capsys.readouterr().err


def test_no_release_is_one_clear_error(tmp_path, capsys):
    assert grade.main(["x.ipynb", "--release", str(tmp_path)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("grade: no release notebooks in ")
    assert "like --release course/release" in said.err


def test_the_release_is_found_here_or_above(tmp_path, monkeypatch, release):
    release.rename(tmp_path / "notebooks")
    for folder in ("deeper", ".ipynb_checkpoints"):
        (tmp_path / "notebooks" / folder).mkdir()
        copied = tmp_path / "notebooks" / folder / "95_small.ipynb"
        copied.write_text(json.dumps(notebook(chapter=95)))
    (tmp_path / "a" / "b").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "a" / "b")
    names = [path.name for path in find_releases(None)]
    assert names == ["90_small.ipynb", "91_small.ipynb", "95_small.ipynb"]


@pytest.mark.parametrize(
    ("cell", "words"),
    [
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such"),
        ("1 / 0", "ZeroDivisionError"),
        ("import os; os._exit(1)", "ended the process with code 1"),
        ("import time; time.sleep(99)", "took longer than its 1 s"),
    ],
)
def test_what_is_not_the_authors_doing_is_never_graded(graded, release, cell, words):
    book = notebook()
    book["cells"][2]["source"] = [cell]
    (release / "90_small.ipynb").write_text(json.dumps(book))
    book = notebook(RIGHT)
    book["cells"][2]["source"] = [cell]
    result = graded(book, QUICK)
    assert words in result.problem
    assert verdicts(result) == ["not reached"] * 3
    assert not result.graded


# What ends a process costs one exercise.

DEAF = """\
import signal
signal.signal(signal.SIGINT, signal.SIG_IGN)
while True:
    pass"""
HOG = "held = []\nwhile True:\n    held.append(b'x' * 2**24)"
FLOOD = """\
import os
for fd in range(3, 1024):
    try:
        while True:
            os.write(fd, b"x" * 2**16)
    except OSError:
        pass"""
STOPPERS = {
    "sleeps": ("import time; time.sleep(999)", "took longer than its 1 s"),
    "is deaf": (DEAF, "did not react to an interrupt"),
    "leaves": ("import os; os._exit(0)", "ended the process with code 0"),
    "crashes": ("import os; os.kill(os.getpid(), 11)", "by SIGSEGV"),
    "stops": ("import os; os.kill(os.getpid(), 19)", "did not react"),
    "eats": (HOG, "more than the 0.5 GiB of memory"),
    "floods": (FLOOD, "the grader's channel"),
    # Where the machine is busy the grader ends what has a second no channel.
    "closes": ("import os; os.closerange(3, 1024)", "(ended the process|was ended)"),
}


@pytest.mark.parametrize("name", STOPPERS)
def test_what_ends_a_process_costs_its_exercise_only(graded, name, monkeypatch):
    source, words = STOPPERS[name]
    if "react" in words:
        monkeypatch.setattr("spmd_grading.process._GRACE_S", 0.3)
    waits = "1 s" in words or "react" in words  # others end by themselves
    limits = QUICK if waits else PATIENT
    result = graded(answered(e2=source), limits)
    assert row(result, "90.1").verdict == "right"
    assert row(result, "90.2").verdict == "stopped"
    assert re.search(words, row(result, "90.2").message)
    assert row(result, "90.2").points == 0
    assert row(result, "90.3").verdict == "right"
    assert result.graded
    assert result.peak_bytes < 2**30


def test_what_the_check_calls_may_end_the_process_too(graded):
    result = graded(answered(e2="def triple(x):\n    import os; os._exit(0)"))
    assert verdicts(result) == ["right", "stopped", "right"]
    assert row(result, "90.2").message.startswith("the check of 90.2 ended")


def test_an_answer_that_swallows_the_interrupt_is_stopped(graded):
    slow = """\
def triple(x):
    import time
    try:
        time.sleep(99 if x == 11 else 0)
    except KeyboardInterrupt:
        pass
    return 3 * x"""
    result = graded(answered(e2=slow), QUICK)
    assert verdicts(result) == ["right", "stopped", "right"]
    assert row(result, "90.2").message == "the check of 90.2 took longer than its 1 s"


def test_a_gigabyte_of_output_is_not_kept(graded):
    print_it = "import os\nfor _ in range(2**10):\n    os.write(1, b'x' * 2**20)"
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result = graded(answered(e2=print_it))
    more = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert more < 2**16  # KiB on Linux, bytes on macOS
    assert row(result, "90.1").verdict == row(result, "90.3").verdict == "right"
    assert len(table([result])) < 10_000


def test_a_long_message_is_cut(graded):
    result = graded(answered(e3="b = 'x' * 10**7"))
    assert verdicts(result) == ["right", "right", "wrong"]
    assert len(row(result, "90.3").message) < 3000


LEFT = """\
import os, sys, time
def leave(path):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            open(path + ".part", "w").write(str(os.getpid()))
            os.rename(path + ".part", path)
            time.sleep(600)
        os._exit(0)
    while not os.path.exists(path):
        time.sleep(0.01)
"""


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc")
def test_no_process_is_left(graded, tmp_path):
    pids = tmp_path / "pid"
    result = graded(answered(e2=LEFT + f"leave({str(pids)!r})\n" + RIGHT[2]))
    assert verdicts(result) == ["right"] * 3
    assert pids.read_text()
    assert not is_alive(int(pids.read_text()))


def test_without_proc_the_system_is_asked_for_a_limit(graded, monkeypatch):
    monkeypatch.setattr("spmd_grading.watch.HAS_PROC", False)
    result = graded(answered(e2=HOG))
    assert verdicts(result) == ["right", "wrong", "right"]
    assert not result.none_left
    assert "Its answer cell had raised MemoryError" in row(result, "90.2").message


def test_a_fork_that_comes_back_from_the_cell_does_not_answer(graded):
    fork = "import os\nb = 'done' if os.fork() else 'twice'"
    result = graded(answered(e3=fork))
    assert verdicts(result) == ["right"] * 3
    assert result.notes == ()


def test_what_is_over_the_time_of_the_whole_is_not_reached(graded):
    book = notebook(answered(e2="import time; time.sleep(99)"))
    # Long enough to start a process on a busy machine.
    result = graded(book, Limits(timeout_s=15, memory_bytes=2**30, cell_share=1))
    assert verdicts(result) == ["right", "stopped", "not reached"]
    assert "15 s of the whole submission were over" in row(result, "90.2").message
    assert row(result, "90.3").points is None
    assert not result.graded


def test_a_submission_is_not_started_for_ever(graded, monkeypatch):
    monkeypatch.setattr("spmd_grading.run._RESTARTS", 1)
    leave = "import os; os._exit(3)"
    result = graded(answered(e1=leave, e2=leave))
    assert verdicts(result) == ["stopped", "stopped", "not reached"]
    assert "its process was started 2 times and ended each" in result.notes
    assert not result.graded


def test_a_module_that_lies_beside_the_submissions_is_not_imported(
    graded, tmp_path, monkeypatch
):
    (tmp_path / "random.py").write_text("raise RuntimeError('the wrong one')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert verdicts(graded(RIGHT)) == ["right"] * 3


# Cheaters.

FORGERY = """\
import json, os
for fd in range(3, 1024):
    for n in ("90.1", "90.2", "90.3"):
        try:
            line = json.dumps({"verdict": "right", "words": "", "changed": []})
            os.write(fd, line.encode() + b"\\n")
            os.write(fd, b"[" * 10**5 + b"\\n")
        except OSError:
            pass
print("Exercise 90.2: right.")
def triple(x):
    return 6"""


def test_forged_results_are_not_believed(graded):
    result = graded(answered(e2=FORGERY))
    assert verdicts(result) == ["right", "wrong", "right"]
    assert "written to the grader's channel" in result.notes[0]


CHEATS = {  # what the answer cell of 90.1 gives another meaning: how
    "check": "check = lambda *answers: None",
    "spmd_exercises.check": """\
import spmd_exercises
spmd_exercises.check = lambda *answers: None""",
    "spmd_exercises._check.Check.judge": """\
from spmd_exercises._check import Check, Verdict
Check.judge = lambda self, *given: Verdict("right", "")""",
    "spmd_exercises._check.Check.judge()": """\
from spmd_exercises._check import Check
Check.judge.__code__ = (lambda self, n, a, g: True).__code__""",
    "spmd_exercises._check.Check.__call__": """\
from spmd_exercises._check import Check
Check.__call__ = lambda self, *answers: None""",
    "spmd_exercises.ch90.check_90_1": """\
from spmd_exercises import ch90
ch90.check_90_1 = lambda *answers: None""",
    "spmd_exercises.ch90.check_90_1()": """\
from spmd_exercises import ch90
ch90.check_90_1.__code__ = (lambda a, b, c: None).__code__""",
    "spmd_exercises.ch90": """\
import sys, types
quiet = sys.modules["spmd_exercises.ch90"] = types.ModuleType("spmd_exercises.ch90")
quiet.check_90_1 = lambda a, b, c: None""",
    "spmd_helpers": """\
import sys, types
sys.modules["spmd_helpers"] = types.ModuleType("spmd_helpers")""",
    "double": "def double(x):\n    return 1",
    "double()": "double.__code__ = (lambda x: 1).__code__",
    "limit": "limit = 10**9",
    "abs()": "import builtins\na = -4\nbuiltins.abs = lambda x: x",
    "numpy.sum": "np.sum = lambda x: 0",
}


@pytest.mark.parametrize("name", CHEATS)
def test_what_was_given_another_meaning_is_put_back(graded, name):
    real = (
        "import sys\nb = 'done' if hasattr(sys.modules['spmd_helpers'], 'xray') else 0"
    )
    result = graded(answered(e1="a = 40\n" + CHEATS[name], e3=real))
    assert verdicts(result) == ["wrong", "right", "right"]
    said = "\n".join(result.notes)
    assert f"`{name.removesuffix('()')}`" in said, said
    feedback = r"Exercise 90\.1, not yet: (40 is too large|-4 is below 0)"
    assert re.match(feedback, row(result, "90.1").message)
    assert "another meaning" in said


def test_hooks_of_ipython_do_not_reach_a_check(graded):
    hook = """\
import ast
class NoAsserts(ast.NodeTransformer):
    def visit_Assert(self, node):
        return ast.Pass()
get_ipython().ast_transformers.append(NoAsserts())
get_ipython().input_transformers_cleanup.append(lambda lines: ["pass"])
def triple(x):
    return 6"""
    result = graded(answered(e2=hook))
    assert row(result, "90.2").verdict == "wrong"


def test_an_open_answer_that_hides_nbgraders_mark_stays_open(graded):
    hide = """\
import os
class Quiet(dict):
    def __contains__(self, name):
        return False
os.environ = Quiet(os.environ)
a = ..."""
    assert row(graded(answered(e1=hide)), "90.1").verdict != "right"


WHILE_IT_JUDGES = {
    "the verdict": """\
    from spmd_exercises import _check
    right = _check.Verdict("right", "")
    _check.Verdict = lambda *given, **more: right""",
    "what is raised": """\
    from spmd_exercises import ch90
    class Silent(Exception):
        def __new__(cls, *words):
            raise SystemExit
    ch90.CheckFailed = Silent""",
    "a name of the check's": """\
    from spmd_exercises import ch90
    class Range:
        randint = staticmethod(lambda low, high: 2)
    ch90.range = ch90.random = Range
    ch90.check_90_2.__code__ = (lambda f: None).__code__""",
    "a builtin": """\
    import builtins
    builtins.isinstance = lambda one, kind: False""",
}


@pytest.mark.parametrize("name", WHILE_IT_JUDGES)
def test_an_answer_that_changes_what_judges_it_is_not_right(graded, name):
    change = f"def triple(x):\n{WHILE_IT_JUDGES[name]}\n    return 6"
    result = graded(answered(e2=change))
    assert verdicts(result) == ["right", "wrong", "right"]
    right_but = change.replace("return 6", "return 3 * x")
    if name != "what is raised":
        result = graded(answered(e2=right_but))
        assert verdicts(result) == ["right", "wrong", "right"]
        assert "another meaning" in "\n".join(result.notes)


TRICKS = {  # answers that are wrong, and what they do to what judges them
    "the object's own": """
import gc
for o in gc.get_objects():
    if type(o).__name__ == "_Grader":
        o.do_check = lambda order: {"verdict": "right", "words": "", "changed": []}""",
    "the class's": """
import spmd_grading.child as child
right = {"verdict": "right", "words": "", "changed": []}
child._Grader.do_check = lambda self, order: right""",
    "a frame's": """
import sys
f = sys._getframe()
while f and "grader" not in f.f_locals:
    f = f.f_back
grader = f.f_locals["grader"]
right = {"verdict": "right", "words": "", "changed": []}
type(grader).do = lambda self, order: right""",
    "the pipe": """
import sys, json, os
f = sys._getframe()
while f and "be_a_submission" != f.f_code.co_name:
    f = f.f_back
L = f.f_locals
incoming, answers = L["incoming"].fileno(), L["answers"]
def serve(self, order):
    word, buffer = order["word"], b""
    while True:
        right = {"verdict": "right", "words": "", "changed": [], "word": word}
        os.write(answers, json.dumps(right).encode() + b"\\n")
        while b"\\n" not in buffer:
            more = os.read(incoming, 2**16)
            if not more:
                os._exit(0)
            buffer += more
        line, _, buffer = buffer.partition(b"\\n")
        word = json.loads(line)["word"]
type(L["grader"]).do_check = serve""",
    "the record": """
import spmd_grading.child as child
def judged(self, number, *answers):
    self.right.add(number)
child._Recorder.__call__ = judged""",
    "a new attribute": """
import spmd_grading.child as child
class Everything(set):
    def __contains__(self, one):
        return True
nothing = lambda self, value: None
child._Recorder.right = property(lambda self: Everything(), nothing)""",
    "what raises": """
from spmd_exercises import CheckFailed
def new(cls, *words):
    raise SystemExit
CheckFailed.__new__ = new""",
    "reading the check": """
import ast
ast.parse = lambda *given, **more: ast.Module([], [])""",
    "json": """
import json
real = json.dumps
def dumps(answer, **more):
    if isinstance(answer, dict) and "verdict" in answer:
        answer = answer | {"verdict": "right"}
    return real(answer, **more)
json.dumps = dumps""",
    "a signal": """
import signal
def stop(number, frame):
    while frame and frame.f_code.co_filename != "<check>":
        frame = frame.f_back
    if frame:
        raise SystemExit(0)
signal.signal(signal.SIGALRM, stop)
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)""",
    "a thread": """
import threading, time
import spmd_exercises._check as module
def go():
    right = module.Verdict("right", "")
    while True:
        module.Verdict = lambda *given: right
        time.sleep(0)
threading.Thread(target=go, daemon=True).start()""",
    "equal to all": """
class Any(int):
    __eq__ = lambda self, other: True
    __ne__ = __lt__ = __gt__ = __ge__ = lambda self, other: False
    __hash__ = int.__hash__
a, b = Any(40), Any(1)""",
}


@pytest.mark.parametrize("name", TRICKS)
def test_no_trick_scores(graded, name):
    tricked = "a = 40" + TRICKS[name]
    result = graded({1: tricked, 2: WRONG[2], 3: "b = globals().get('b', 1)"})
    if name == "equal to all":  # 90.1 is about a number, and takes any that is one
        assert verdicts(result)[1:] == ["wrong", "wrong"]
        return
    assert "right" not in verdicts(result), table([result])
    assert result.points == 0


def test_a_process_that_answers_right_to_all_is_not_graded(graded):
    answers = {1: "a = 40" + TRICKS["the class's"], 2: WRONG[2], 3: WRONG[3]}
    result = graded(answers)
    assert "not judged" in verdicts(result)
    assert not result.graded
    assert "a check that must fail did not" in "\n".join(result.notes)
    assert "NOT ALL GRADED" in table([result])


def test_the_authors_own_names_are_theirs_again_after_a_check(graded):
    own = "a, limit = 4, 'mine'"
    result = graded(answered(e1=own, e3="b = 'done' if limit == 'mine' else limit"))
    assert verdicts(result) == ["right"] * 3


def test_the_environment_and_the_folder_are_the_submissions_own(graded, monkeypatch):
    monkeypatch.setenv("SECRET_TOKEN", "s3cret")
    look = """\
import os
open("rubbish", "w").write("x")
os.mkdir("locked"); os.chmod("locked", 0)
b = [os.getcwd(), "SECRET_TOKEN" in os.environ, os.listdir("."), os.getpgid(0)]"""
    said = row(graded(answered(e3=look)), "90.3").message
    folder, secret, files, group = eval(said.partition("b is ")[2].partition("\n")[0])
    assert (secret, {"locked", "rubbish"} <= set(files)) == (False, True)
    assert not Path(folder).exists()
    assert group != os.getpgid(0)


def test_pip_in_a_submission_changes_nothing(graded):
    pip = """\
import subprocess, sys
command = [sys.executable, "-m", "pip", "uninstall", "-y", "no-such-package-x"]
b = "done" if subprocess.run(command).returncode else 0
"""
    assert row(graded(answered(e3=pip)), "90.3").verdict == "right"


# The grader's own end.


@pytest.mark.parametrize(
    ("sent", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 130), (signal.SIGKILL, -9)],
)
@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc")
def test_when_the_grader_is_stopped_nothing_is_left(release, tmp_path, sent, code):
    pids, path = tmp_path / "pid", tmp_path / "work.ipynb"
    wait = f"import os, time\nopen({str(pids)!r}, 'w').write(str(os.getpid()))\n"
    path.write_text(json.dumps(notebook(answered(e2=wait + "time.sleep(99)"))))
    command = [sys.executable, "-m", "spmd_grading", "--release", release, path]
    running = subprocess.Popen(
        command,
        env=dict(os.environ, TMPDIR=str(tmp_path)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert until(lambda: pids.exists() and pids.read_text())
        running.send_signal(sent)
        _, said = running.communicate(timeout=120)
    finally:
        running.kill()
        running.communicate()
    assert running.returncode == code
    assert "Traceback" not in said
    assert until(lambda: not is_alive(int(pids.read_text())))


def test_help_says_plainly_what_it_runs():
    done = subprocess.run(
        [sys.executable, "-m", "spmd_grading", "--help"],
        capture_output=True,
        text=True,
        check=True,
    )
    said = " ".join(done.stdout.split())
    assert "It runs students' code." in said
    assert "a determined cheater can get points" in said
    assert "`# %% [2 points] What it asks`" in said


@pytest.mark.parametrize("value", ["0", "-1", "nan", "x"])
def test_a_limit_has_to_be_above_0(capsys, value):
    with pytest.raises(SystemExit):
        grade.main(["x.ipynb", "--timeout-s", value])
    assert "is not a number above 0" in capsys.readouterr().err


# Reports, read back by those who read them.

NASTY = Result(
    submission="=cmd|'/c calc'!A1&<b>\x1b[31m.ipynb",
    rows=(
        Row("90.1", 2, 2, "right", "Exercise 90.1: right.", 0.5),
        Row(
            *("90.2", 0, 3, "wrong"),
            '=1+1 \x00\x1b[2J\u202e]]> <x> & \ud800\nnext, "q"',
        ),
        Row("90.3", None, 1, "not found", "NOT FOUND: look"),
        Row("-2+3 it adds", 1, 1.5, "right", "", extra=True),
    ),
    notes=("a <note> \x07",),
    seconds=2,
)
NOT_ONE = Result("no.pdf", problem="no.pdf is not a notebook")


def test_junit_reads_back():
    root = ET.fromstring(to_junit([NASTY, NOT_ONE]))
    first, second = root.findall("testsuite")
    assert first.get("name") == "=cmd|'/c calc'!A1&<b>.ipynb"
    assert first.get("time") == "2.000"
    counted = [first.get(k) for k in ("tests", "failures", "errors", "skipped")]
    assert counted == ["4", "1", "1", "0"]
    cases = first.findall("testcase")
    assert [case.get("name") for case in cases][:3] == ["90.1", "90.2", "90.3"]
    assert [len(case.findall("failure")) for case in cases] == [0, 1, 0, 0]
    assert [len(case.findall("error")) for case in cases] == [0, 0, 1, 0]
    assert cases[1].find("failure").text == '=1+1 ??]]> <x> & ?\nnext, "q"'
    points = [case.find("properties/property[@name='points']") for case in cases]
    assert [p.get("value") for p in points] == ["2", "0", "", "1"]
    assert second.get("errors") == "1"
    assert second.find("testcase/error").text == "no.pdf is not a notebook"


def test_gradescope_reads_back():
    read = json.loads(to_gradescope([NASTY]))
    assert read["score"] == 3
    assert "a <note>" in read["output"]
    statuses = [t["status"] for t in read["tests"]]
    assert statuses == ["passed", "failed", "failed", "passed"]
    assert [t["score"] for t in read["tests"]] == [2, 0, 0, 1]
    assert [t["max_score"] for t in read["tests"]] == [2, 3, 1, 1.5]
    assert read["tests"][0]["name"] == "Exercise 90.1"
    assert read["tests"][2]["output"].startswith("NOT GRADED, the 0 is not a grade.")
    visible = [t["visibility"] for t in read["tests"]]
    assert visible == ["visible"] * 3 + ["after_published"]
    assert read["visibility"] == "visible"
    both = json.loads(to_gradescope([NASTY, NOT_ONE]))
    assert both["tests"][1]["name"].endswith(".ipynb: Exercise 90.2")
    assert "no.pdf: NOT GRADED, the 0 is not a grade." in both["output"]
    assert "determined cheater" not in both["output"]  # a learner reads it


@pytest.mark.parametrize(
    "sign", ["=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20"]
)
@pytest.mark.parametrize("before", ["", "\t", "\r", "\n", " ", "\x00", "\x1b[1m"])
def test_no_text_of_a_csv_begins_a_formula(sign, before):
    shown = in_csv(f"{before}{sign}1+1\nsecond")
    assert shown[0] in "'?"  # what can't be printed became a question mark
    assert shown.endswith(f"{sign}1+1 second")
    assert in_csv("a=1") == "a=1"


def test_csv_reads_back_and_computes_nothing():
    rows = list(csv.DictReader(io.StringIO(to_csv([NASTY, NOT_ONE]))))
    assert [r["points"] for r in rows] == ["2", "0", "", "1", "3", ""]
    verdicts = ["not found", "right", "graded in part", "not graded"]
    assert [r["verdict"] for r in rows][2:] == verdicts
    total, not_one = (r for r in rows if r["exercise"] == "total")
    assert (total["of"], total["message"]) == ("7.5", "90.3 not found")
    assert total["notes"] == "a <note> ?"
    assert not_one["message"] == "no.pdf is not a notebook"
    assert rows[0]["submission"].startswith("'=cmd|")
    assert rows[1]["message"].startswith("'=1+1")
    assert rows[3]["exercise"] == "'-2+3 it adds"
    assert not [v for r in rows for v in r.values() if v.startswith(tuple("=+-@"))]


def test_the_table_holds_no_terminal_codes():
    said = table([NASTY, NOT_ONE])
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f\u202e]", said)
    assert "3 of 7.5 points, NOT ALL GRADED" in said
    assert re.search(r"90\.3 +- of 1 +not found\n +NOT FOUND: look", said)
    assert "a determined cheater" in " ".join(said.split())


def test_files_are_written(release, tmp_path, capsys):
    path = tmp_path / "=work.ipynb"
    path.write_text(json.dumps(notebook(answered(e2=WRONG[2]))))
    names = {kind: tmp_path / f"out.{kind}" for kind in ("junit", "gradescope", "csv")}
    options = [x for kind, name in names.items() for x in (f"--{kind}", str(name))]
    assert grade.main([str(path), "--release", str(release), *options]) == 0
    assert ET.parse(names["junit"]).getroot()[0].get("failures") == "1"
    assert json.loads(names["gradescope"].read_text())["score"] == 3
    rows = csv.DictReader(io.StringIO(names["csv"].read_text()))
    assert [r["points"] for r in rows] == ["2", "0", "1", "3"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--gradescope", "{tmp}/r.json"], "the results of one learner"),
        (["--csv", "{tmp}/none/x.csv"], "name a file in a folder that exists"),
        (["--csv", "{tmp}/a.ipynb"], "a.ipynb is named twice: results need a file"),
        (["--csv", "{tmp}/x", "--junit", "{tmp}/./x"], "x is named twice"),
        (["--csv", "{tmp}/x", "--gradescope", "{tmp}/x"], "x is named twice"),
        (["--extra-checks", "{tmp}/none.py"], "can't be read"),
    ],
)
def test_what_can_not_be_done_is_said_before_anything_runs(
    release, tmp_path, capsys, options, words
):
    paths = [tmp_path / "a.ipynb", tmp_path / "b.ipynb"]
    for path in paths:
        path.write_text(json.dumps(notebook(RIGHT)))
    options = [option.format(tmp=tmp_path) for option in options]
    arguments = [*map(str, paths), "--release", str(release), *options]
    assert grade.main(arguments) == 2
    said = capsys.readouterr()
    assert words in said.err
    assert said.out == ""


# An instructor's own checks.

EXTRA = '''\
"""Hidden tests."""
import math

# %%
def near(x, y):
    return math.isclose(x, y)

# %% [2 points] It triples fractions
for x in (0.5, -1.25):
    assert near(triple(x), 3 * x), f"triple({x}) gave {triple(x)}"

# %% [0.5 points] The number is even
assert a % 2 == 0
'''


def extra_of(tmp_path, text=EXTRA, name="extra.py"):
    path = tmp_path / name
    path.write_text(text)
    return read_extra_checks(path)


def test_extra_checks_run_after_the_submission(graded, tmp_path):
    result = graded(answered(e2=WRONG[2]), extra=extra_of(tmp_path))
    assert verdicts(result) == ["right", "wrong", "right", "wrong", "right"]
    hidden = row(result, "It triples fractions")
    assert (hidden.message, hidden.of) == ("triple(0.5) gave 6", 2)
    assert hidden.extra
    assert (result.points, result.of) == (3.5, 8.5)


def test_extra_checks_know_an_open_answer(graded, tmp_path):
    result = graded(STUBS, extra=extra_of(tmp_path))
    assert verdicts(result) == ["open"] * 5


def test_extra_checks_may_be_a_notebook(graded, tmp_path):
    sources = ["five = 5", "# [1 point] An exercise\n"]
    sources[1] += "check('90.1', five * a, double, limit)"
    book = {"cells": [code(s, f"c{i}") for i, s in enumerate(sources)], "nbformat": 4}
    extra = extra_of(tmp_path, json.dumps(book), "extra.ipynb")
    result = graded(RIGHT, extra=extra)
    assert row(result, "An exercise").verdict == "wrong"
    words = "Exercise 90.1, not yet: 20 is too large: twice it is over"
    assert row(result, "An exercise").message == words
    assert row(graded(STUBS, extra=extra), "An exercise").verdict == "open"


def test_extra_checks_that_fail_by_themselves_grade_nobody(graded, tmp_path):
    text = EXTRA.replace("import math", "import no_such_module")
    result = graded(RIGHT, extra=extra_of(tmp_path, text))
    assert result.problem == "a cell of the extra checks failed"
    assert "No module named 'no_such_module'" in result.extra_notes[0]
    assert not result.graded


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = 1", "no check in it"),
        ("# %% [1 point] A\nx\n# %% [1 point] A\ny", "two checks are called 'A'"),
        ("# %% [1 point] A\ndef", "invalid syntax"),
    ],
)
def test_extra_checks_that_can_not_be_read(tmp_path, text, words):
    with pytest.raises(CannotGrade, match=words):
        extra_of(tmp_path, text)


# The chapters of the book.


def test_a_chapter_of_the_book_without_its_metadata(tmp_path):
    name = "03_mesh_and_partitionspec.ipynb"
    book = stripped(json.loads((ROOT / "solutions" / name).read_text("utf8")))
    path = tmp_path / "homework.ipynb"
    path.write_text(json.dumps(book), "utf8")
    result = single.grade(path, find_releases(ROOT / "notebooks"), Limits())
    assert result.release.endswith(name)
    assert set(verdicts(result)) == {"right"}
    assert result.notes == ()


def test_every_chapter_can_be_matched(tmp_path):
    """Solved or open, with metadata or without: each exercise is found."""
    releases = find_releases(ROOT / "notebooks")
    assert len(releases) >= 15
    path = tmp_path / "homework.ipynb"
    for release in releases:
        for folder in ("notebooks", "solutions"):
            text = (ROOT / folder / release.name).read_text("utf8")
            for change in (stripped, as_colab_saves_it, copy.deepcopy):
                path.write_text(json.dumps(change(json.loads(text))), "utf8")
                plan = make_plan(path, [release])
                assert (plan.missing, plan.notes) == ({}, ())
                kinds = [step.kind for step in plan.steps]
                assert kinds.count("check") == kinds.count("own") == len(plan.exercises)
