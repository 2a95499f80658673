"""Files that are hard to read: large, odd, or made to keep a reader busy."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from spmd_grading import grade
from spmd_grading.plan import make_plan
from spmd_grading.releases import find_releases
from spmd_grading.submission import CannotGrade, read_cells
from tests.grading.small_release import RIGHT, at, code, notebook, row, verdicts

pytestmark = [
    pytest.mark.long("courses, made and graded as an instructor does"),
    pytest.mark.once,
    pytest.mark.usefixtures("own_exercises"),
]

SIZE = 600_000
SLOW = {  # one cell of each kind, as large as may be
    "empty lines": "\n" * SIZE,
    "blanks": " \t" * (SIZE // 2),
    "magics": "%\n!\n" * (SIZE // 4),
    "calls of check": "check(" * (SIZE // 6),
    "check and blanks": ("check(" + " " * 190) * (SIZE // 196),
    "a number without end": "check('" + "1" * SIZE,
    "numbers": "".join(f'check("{i % 999}.{i // 999}")' for i in range(40_000)),
    "brackets": "([{" * (SIZE // 3),
    "signs": "-" * SIZE,
    "a sum": "1+" * (SIZE // 2) + "1",
    "calls": "a" + "()" * (SIZE // 2),
    "answers": "a = 1\n" * (SIZE // 12),
    "an answer": "a=" * (SIZE // 2) + "1",
    "strings": "'''" + "x\n" * (SIZE // 2),
}
READ = """
import sys, time
from pathlib import Path
from spmd_grading.plan import make_plan
from spmd_grading.submission import CannotGrade
for name in sys.argv[2:]:
    begin = time.monotonic()
    try:
        make_plan(Path(name), [Path(sys.argv[1])])
    except CannotGrade as error:
        print(error)
"""


def put(folder, book, name="work.ipynb"):
    path = folder / name
    path.write_text(json.dumps(book), "utf8")
    return path


def without_ids(book):
    for cell in book["cells"]:
        cell["metadata"] = {}
    return book


def test_no_file_keeps_the_reader_busy(release, tmp_path):
    paths = []
    for kind, source in SLOW.items():
        book = without_ids(notebook(RIGHT))
        del book["cells"][at(book, "ch90-ex3")]  # so that names are looked for
        book["cells"].insert(3, code("", "slow"))
        book["cells"][3]["source"] = source
        paths.append(put(tmp_path, book, f"{kind}.ipynb"))
    book = notebook(RIGHT)
    book["cells"] += [code(f"x = {i}", f"c{i}") for i in range(1800)]
    paths.append(put(tmp_path, book, "cells.ipynb"))
    command = [sys.executable, "-c", READ, release / "90_small.ipynb", *paths]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        (["x"] * 2001, "more than 2000 code cells"),
        (["x" * 2**20, "y"], "more than 1 MiB of code"),
    ],
)
def test_what_is_too_large_is_said(tmp_path, cells, words):
    book = {"nbformat": 4, "cells": [code(s, f"c{i}") for i, s in enumerate(cells)]}
    with pytest.raises(CannotGrade, match=words):
        read_cells(put(tmp_path, book))


def test_a_number_of_a_chapter_that_there_can_not_be_is_no_number(release, tmp_path):
    numbers = f'check("{"9" * 5000}.1", a)\ncheck("\u0669.\u0661", a)'
    book = {"nbformat": 4, "cells": [code(numbers, "c")]}
    with pytest.raises(CannotGrade, match="NOT FOUND"):
        make_plan(put(tmp_path, book), find_releases(release))


# Metadata of another form than nbformat's costs its cell only.


def id_list(cell):
    cell["metadata"]["nbgrader"]["grade_id"] = ["ch90-ex2"]


def id_number(cell):
    cell["metadata"]["nbgrader"]["grade_id"] = 902


def metadata_list(cell):
    cell["metadata"] = [cell["metadata"]]


def metadata_null(cell):
    cell["metadata"] = None


def nbgrader_text(cell):
    cell["metadata"]["nbgrader"] = "ch90-ex2"


def tags_text(cell):
    cell["metadata"]["tags"] = "setup"


def cell_id_object(cell):
    cell["id"] = {"a": 1}


def points_text(cell):
    cell["metadata"]["nbgrader"]["points"] = "1000"


ODD = [id_list, id_number, metadata_list, metadata_null, nbgrader_text, tags_text]
ODD += [cell_id_object, points_text]


@pytest.mark.parametrize("change", ODD)
def test_odd_metadata_of_an_answer_loses_nothing(graded, change):
    book = notebook(RIGHT)
    change(book["cells"][at(book, "ch90-ex2")])
    result = graded(book)
    assert verdicts(result) == ["right"] * 3
    assert (result.points, result.of, result.notes) == (6, 6, ())


def test_odd_metadata_of_all_cells_loses_nothing(graded):
    for change in (metadata_list, cell_id_object):
        book = notebook(RIGHT)
        for cell in book["cells"]:
            change(cell)
        assert verdicts(graded(book)) == ["right"] * 3


@pytest.mark.parametrize("source", [5, None, ["b = ", 5], {"b": 1}])
def test_a_cell_without_a_source_is_left_out_and_it_is_said(graded, source):
    book = notebook(RIGHT)
    book["cells"][at(book, "ch90-ex3")]["source"] = source
    result = graded(book)
    assert verdicts(result) == ["right", "right", "not found"]
    assert not result.graded
    expected = "code cell 7 of the submission was left out: its source is no text"
    assert expected in result.notes


def test_what_is_no_cell_is_no_cell(graded):
    book = notebook(RIGHT)
    book["cells"][1:1] = ["text", 5, None, [], {"cell_type": ["code"]}]
    assert verdicts(graded(book)) == ["right"] * 3


@pytest.mark.parametrize("version", ["4", None, 4.5, [4]])
def test_an_odd_version_of_the_format_loses_nothing(graded, version):
    book = notebook(RIGHT)
    book["nbformat"] = version
    assert verdicts(graded(book)) == ["right"] * 3


@pytest.mark.parametrize("first", ["a = 0", "raise SystemExit", "def ("])
def test_cells_of_one_grade_id_run_in_their_order(graded, first):
    book = notebook(RIGHT)
    for n in (1, 2, 3):
        answer = book["cells"][at(book, f"ch90-ex{n}")]
        book["cells"].insert(at(book, f"ch90-ex{n}"), answer | {"source": first})
    assert verdicts(graded(book)) == ["right"] * 3


def test_a_copy_below_all_checks_changes_nothing(graded):
    book = notebook(RIGHT)
    answer = book["cells"][at(book, "ch90-ex1")]
    book["cells"].append(answer | {"source": "a = 0\nraise SystemExit"})
    assert verdicts(graded(book)) == ["right"] * 3


def test_all_cells_of_one_grade_id_are_told_apart(graded):
    book = notebook(RIGHT)
    for cell in book["cells"][1:]:
        cell["id"] = "same"
        cell["metadata"]["nbgrader"] = {"grade_id": "ch90-ex1"}
    result = graded(book)
    assert verdicts(result)[1:] == ["right", "right"]
    assert row(result, "90.1").verdict == "right"


def test_checks_before_their_answers_are_put_behind_them(graded):
    book = notebook(RIGHT)
    checks = [c for c in book["cells"] if c["id"].endswith("-check")]
    rest = [c for c in book["cells"] if not c["id"].endswith("-check")]
    book["cells"] = checks + rest
    assert verdicts(graded(book)) == ["right"] * 3


@pytest.mark.parametrize("how", ["markdown", "solution", "raw"])
def test_checks_that_are_no_checks_any_more_are_put_back(graded, how):
    book = notebook()
    for cell in book["cells"]:
        if cell["id"].endswith("-check"):
            if how == "solution":
                cell["metadata"]["nbgrader"] |= {"grade": False, "solution": True}
                cell["source"] = "pass"
            else:
                cell["cell_type"] = how
    result = graded(book)
    assert verdicts(result) == ["open"] * 3
    assert len(result.notes) == 3


def test_text_that_no_file_can_hold_costs_its_cell_only(graded):
    book = notebook(RIGHT)
    book["cells"][at(book, "ch90-ex2")]["source"] += ["\n# \ud800 \x00"]
    result = graded(book)
    assert verdicts(result)[::2] == ["right", "right"]
    assert result.graded


# Reading has limits of its own, in the process of the submission.

SPIN = "import spmd_grading.single as s; s.make_plan = lambda *_: "


@pytest.mark.parametrize(
    ("doing", "words"),
    [
        ("[0 for _ in iter(int, 1)]", "reading it took more than"),
        ("__import__('os')._exit(7)", "reading it ended with code 7"),
        ("__import__('os').kill(0, 11)", "reading it was ended by SIGSEGV"),
        ("bytearray(2**40)", "the grader ran out of memory on it"),
        ("1 / 0", "the grader itself failed: ZeroDivisionError"),
    ],
)
def test_a_reader_that_fails_costs_its_file_only(
    release, tmp_path, capsys, monkeypatch, doing, words
):
    path = put(tmp_path, notebook(RIGHT))
    from spmd_grading import pool

    begin = f"import spmd_grading.submission as m; m.READ_S = 1; {SPIN}{doing}; "
    worker = pool._WORKER.replace("from spmd_grading", f"{begin}from spmd_grading")
    monkeypatch.setattr(pool, "_WORKER", worker)
    assert grade.main(["--release", str(release), str(path)]) == 2
    said = " ".join(capsys.readouterr().out.split())
    assert words in said
    assert Path(path).exists()
