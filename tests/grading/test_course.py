"""`make course` with the real nbgrader: generate, autograde, export, feedback.

Chapter 3 is graded for ten learners, in nbgrader's own processes and kernels. The
frozen grade ids of all chapters are compared with the chapters.
"""

import copy
import csv
import html
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import html5lib
import nbformat
import pytest
from nbgrader.utils import determine_grade

from spmd_grading.course import course_files, write_course
from spmd_grading.nbgrader_addon import find_answers, judge
from spmd_grading.nbgrader_addon.mended import NO_SCORE, Mended
from spmd_grading.result import Result, Row
from spmd_grading.submission import CannotGrade
from tests.exercises.test_ch03 import ANSWERS

pytestmark = pytest.mark.long("courses, made and graded as an instructor does")

ROOT = Path(__file__).resolve().parents[2]
NAME = "03_mesh_and_partitionspec.ipynb"
POINTS = {"3.1": 1, "3.2": 1, "3.3": 2, "3.4": 2, "3.5": 3}
WRONG, TOLD = ANSWERS["3.3"].wrong[0]
HIDDEN = """\
### BEGIN HIDDEN TESTS
assert len(column_spec) == 1, "one entry says all of it"
### END HIDDEN TESTS"""

INSTALLS = {
    "cell_type": "code",
    "source": "import sys\n!{sys.executable} -m pip --version\nprint('it ran')",
    "metadata": {},
    "outputs": [],
    "execution_count": None,
}


# What learners hand in.


def grade_id(cell) -> str:
    return cell["metadata"].get("nbgrader", {}).get("grade_id", "")


def read(folder: str) -> dict:
    return json.loads((ROOT / folder / NAME).read_text("utf8"))


def solved() -> dict:
    """The reader's notebook with the book's answers written into it."""
    answers = {grade_id(c): c["source"] for c in read("solutions")["cells"]}
    notebook = read("notebooks")
    for cell in notebook["cells"]:
        if grade_id(cell):
            cell["source"] = answers[grade_id(cell)]
    return notebook


def edited(notebook: dict, name: str, source: str) -> dict:
    notebook = copy.deepcopy(notebook)
    (cell,) = (c for c in notebook["cells"] if grade_id(c) == name)
    cell["source"] = source
    return notebook


def stripped(notebook: dict) -> dict:
    """As from a tool that keeps sources only."""
    notebook = copy.deepcopy(notebook)
    for cell in notebook["cells"]:
        cell["metadata"] = {}
        cell.pop("id", None)
    notebook["metadata"], notebook["nbformat_minor"] = {}, 0
    return notebook


def through_colab(notebook: dict, keeps_nbgrader: bool) -> dict:
    """The shape of a file that Colab saved: ids of its own, in the cells' metadata."""
    notebook = copy.deepcopy(notebook)
    for number, cell in enumerate(notebook["cells"]):
        cell.pop("id", None)
        kept = cell["metadata"] if keeps_nbgrader else {}
        cell["metadata"] = {
            **{key: value for key, value in kept.items() if key != "tags"},
            "id": f"aBcD{number:08}",
        }
        if cell["cell_type"] == "code":
            cell["outputs"], cell["execution_count"] = [], None
            cell["metadata"] |= {
                "colab": {"base_uri": "https://localhost:8080/"},
                "outputId": f"0123-{number}",
            }
    notebook["metadata"] = {
        "colab": {"provenance": [], "toc_visible": True},
        "kernelspec": {"display_name": "Python 3", "name": "python3"},
        "language_info": {"name": "python"},
    }
    notebook["nbformat_minor"] = 0
    return notebook


def tampered(notebook: dict) -> dict:
    """A check that praises, and that claims a hundred points."""
    notebook = edited(notebook, "ch03-ex3-check", 'print("Exercise 3.3: right.")')
    for cell in notebook["cells"]:
        if grade_id(cell) == "ch03-ex3-check":
            cell["metadata"]["nbgrader"]["points"] = 100
    return notebook


def without(notebook: dict, name: str) -> dict:
    kept = [c for c in notebook["cells"] if grade_id(c) != name]
    return {**notebook, "cells": kept}


def submissions() -> dict[str, dict]:
    right = solved()
    wrong = edited(right, "ch03-ex3", WRONG)
    solution = next(c for c in right["cells"] if grade_id(c) == "ch03-ex5")["source"]
    first, *rest = "".join(solution).splitlines(True)
    warns = '    __import__("sys").stderr.write("only a warning")\n'
    noisy = edited(right, "ch03-ex5", "".join((first, warns, *rest)))
    nothing = {"cell_type": "code", "source": "print(1)", "metadata": {}}
    nothing |= {"outputs": [], "execution_count": None}
    return {
        "right": {**right, "cells": [*right["cells"], INSTALLS]},
        "wrong": wrong,
        "tampered": tampered(wrong),
        "blank": read("notebooks"),
        "stripped": stripped(wrong),
        "colab": through_colab(wrong, keeps_nbgrader=True),
        "no_answer": stripped(without(noisy, "ch03-ex4")),
        "hidden": edited(right, "ch03-ex2", 'column_spec = P("model", None)'),
        "elsewhere": {**stripped(right), "cells": [nothing]},
    }


# What learners hand in who would rather not be graded as all others are.

NO_OP = """\
import sys, spmd_exercises
check = spmd_exercises.check = lambda number, *answers: None
for name, module in list(sys.modules.items()):
    if name.startswith("spmd_exercises.ch"):
        for key in [key for key in vars(module) if key.startswith("check_")]:
            setattr(module, key, lambda *answers: None)
"""
KILLS = "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)"
HANGS = """\
import time
while True:
    try:
        time.sleep(60)
    except KeyboardInterrupt:
        pass
"""
SCRIPT = "<script>document.title = 'OWNED'</script><img src=x onerror=alert(1)>"
DISPLAYS = f"""\
from IPython.display import HTML, SVG, Javascript, Markdown, display
print({SCRIPT!r})
display(HTML({SCRIPT!r}), Markdown({SCRIPT!r}), Javascript("OWNED()"))
display(SVG("<svg xmlns='http://www.w3.org/2000/svg' onload='OWNED()'/>"))
raise ValueError({SCRIPT!r})
"""
SPOILS = """\
import os, pathlib
root = pathlib.Path({course!r})
for path in (root / "gradebook.db", *root.glob("submitted/right/*/*.ipynb")):
    path.write_bytes(b"mine")
"""


def displays() -> dict:
    """Whatever a notebook can hold that a page would run."""
    notebook = edited(solved(), "ch03-ex2", DISPLAYS)
    texts = [{"cell_type": kind, "source": SCRIPT} for kind in ("markdown", "raw")]
    texts[0]["attachments"] = {"a.svg": {"image/svg+xml": "<svg onload='OWNED()'/>"}}
    for text in texts:
        text["metadata"] = {"tags": ['"><script>OWNED()</script>']}
    evil = {"data": {"text/html": SCRIPT}, "metadata": {}}
    for cell in notebook["cells"]:
        cell["metadata"]["tags"] = texts[0]["metadata"]["tags"]
        if cell["cell_type"] == "code":
            cell["outputs"] = [{"output_type": "display_data", **evil}]
    notebook["metadata"]["title"] = SCRIPT
    return {**notebook, "cells": [*texts, *notebook["cells"]]}


def hostile(course: Path) -> dict[str, dict]:
    right = solved()
    cheats = edited(edited(right, "ch03-ex1", NO_OP), "ch03-ex3", WRONG)
    nested = json.loads("[" * 500 + "]" * 500)
    deep = {**right, "metadata": {"x": nested}}
    return {
        "no_op": cheats,
        "kills": edited(right, "ch03-ex3", KILLS),
        "hangs": edited(right, "ch03-ex3", HANGS),
        "displays": displays(),
        "spoils": edited(right, "ch03-ex3", SPOILS.format(course=str(course))),
        "deep": deep,
    }


# One course for all tests.


class Course:
    def __init__(self, folder: Path):
        self.folder, home = folder, folder.parent
        drop = ("XLA_", "JAX_", "NBGRADER", "NPROC", "PYTHONWARNINGS")
        self.environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith(drop)},
            **{"JAX_PLATFORMS": "cpu", "HOME": str(home)},
            **{"JUPYTER_CONFIG_DIR": str(home), "IPYTHONDIR": str(home)},
        }

    def run(self, *command: object, cwd: Path | None = None):
        return subprocess.run(
            [sys.executable, *map(str, command)],
            cwd=cwd or self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
        )

    def nbgrader(self, *command: str):
        return self.run("-m", "nbgrader", *command)

    def hand_in(self, student: str, notebook: dict) -> None:
        path = self.folder / "submitted" / student / "ch03" / NAME
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(notebook), "utf8")

    def make(self, *chapters: str):
        return self.run(
            "-m", "tools.book.make_course", "--to", self.folder, *chapters, cwd=ROOT
        )


def good(done: subprocess.CompletedProcess) -> str:
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    """A course of chapter 3 with one hidden test, graded for all learners."""
    folder = tmp_path_factory.mktemp("teaching") / "course"
    course = Course(folder)
    good(course.make("03"))
    source = folder / "source" / "ch03" / NAME
    notebook = nbformat.read(source, as_version=4)
    for cell in notebook.cells:
        if grade_id(cell) == "ch03-ex2-check":
            cell.source += "\n" + HIDDEN
    nbformat.write(notebook, source)
    config = folder / "nbgrader_config.py"
    before = "c.RunSealed.timeout_s = 300"
    assert before in config.read_text("utf8")
    config.write_text(
        config.read_text("utf8").replace(before, "c.RunSealed.timeout_s = 60"), "utf8"
    )
    good(course.nbgrader("generate_assignment", "ch03"))
    for student, work in (submissions() | hostile(folder)).items():
        course.hand_in(student, work)
    download = folder.parent / "Copy of 03 (1).ipynb"
    lost = through_colab(submissions()["wrong"], keeps_nbgrader=False)
    download.write_text(json.dumps(lost), "utf8")
    course.handed_in = course.run("hand_in.py", "colab_lost", download)
    course.graded = course.nbgrader("autograde", "ch03")
    course.exported = course.nbgrader("export", "--to=grades.csv")
    with open(folder / "grades.csv", encoding="utf8", newline="") as file:
        course.rows = {row["student_id"]: row for row in csv.DictReader(file)}
    return course


def test_the_release_is_the_book_with_nothing_of_the_answers(course):
    path = course.folder / "release" / "ch03" / NAME
    release = nbformat.read(path, as_version=4)
    mine = {grade_id(c): c.source.split() for c in release.cells if grade_id(c)}
    book = {
        grade_id(c): "".join(c["source"]).split()
        for c in read("notebooks")["cells"]
        if grade_id(c)
    }
    assert mine == book
    assert not re.search("SOLUTION|HIDDEN", path.read_text("utf8"))


ALL = sum(POINTS.values())
LOST = {"right": [], "deep": [], "hidden": ["3.2"], "displays": ["3.2"]}
LOST["no_op"] = ["3.1", "3.3"]
SCORES = {
    "right": ALL,
    "wrong": ALL - POINTS["3.3"],
    "tampered": ALL - POINTS["3.3"],
    "blank": 0,
    "stripped": ALL - POINTS["3.3"],
    "colab": ALL - POINTS["3.3"],
    "colab_lost": ALL - POINTS["3.3"],
    "hidden": ALL - POINTS["3.2"],
    "no_op": ALL - POINTS["3.1"] - POINTS["3.3"],
    "kills": ALL - POINTS["3.3"],
    "hangs": ALL - POINTS["3.3"],
    "displays": ALL - POINTS["3.2"],
    "deep": ALL,
}


@pytest.mark.parametrize("student", SCORES)
def test_score(course, student):
    row = course.rows[student]
    assert float(row["score"]) == SCORES[student], course.graded.stderr
    assert float(row["max_score"]) == ALL
    assert row["graded"] == "yes"
    # and it is these exercises that the points are missing from
    for number, points in POINTS.items():
        name = f"ch03-ex{number[2:]}-check"
        lost = student == "blank" or number in LOST.get(student, ["3.3"])
        assert float(row[name]) == (0 if lost else points), (student, number)


@pytest.mark.parametrize("student", ["right", "wrong", "blank", "colab", "hidden"])
def test_nothing_is_remarked_where_nothing_was_mended(course, student):
    assert course.rows[student]["remarks"] == ""


@pytest.mark.parametrize("student", ["stripped", "colab_lost"])
def test_lost_metadata_is_said(course, student):
    words = "nbgrader's metadata was missing from 10 of 10 cells"
    assert words in course.rows[student]["remarks"]
    where = Path("submitted", student, "ch03", NAME)
    assert f"{where}: {words}" in course.graded.stderr


def test_a_changed_check_is_said(course):
    words = "exercise 3.3: the check was changed; the release's was used"
    assert course.rows["tampered"]["remarks"] == words
    assert words in course.graded.stderr


def test_a_submission_can_not_install(course):
    path = course.folder / "autograded" / "right" / "ch03" / NAME
    said = str(nbformat.read(path, as_version=4).cells[-1].outputs)
    assert "it ran" in said
    assert "(python " not in said  # what pip ends its version with
    assert "(python " in good(course.run("-m", "pip", "--version"))


def test_what_replaced_the_judge_is_remarked(course):
    remarks = course.rows["no_op"]["remarks"]
    assert "3.1: `spmd_exercises.check`" in remarks
    assert "`check`" in remarks  # the name in the notebook
    assert "`spmd_exercises.ch03.check_3_1`" in remarks
    assert "had been given another meaning, the check used the real one" in remarks


def test_what_ends_or_hangs_its_process_costs_its_exercise_only(course):
    path = course.folder / "autograded"
    name = Path("ch03", NAME)
    for student, words in (
        ("kills", "the answer cell of 3.3 ended the process by SIGKILL"),
        ("hangs", "the answer cell of 3.3 took longer than its 15 s"),
    ):
        graded = nbformat.read(path / student / name, as_version=4)
        (check,) = (c for c in graded.cells if grade_id(c) == "ch03-ex3-check")
        (output,) = check.outputs
        assert (output.output_type, output.ename) == ("error", "stopped")
        assert words in output.evalue


def test_a_learner_who_changes_the_course_is_not_graded_and_others_are(course):
    row = course.rows["spoils"]
    assert (row["graded"], row["score"]) == ("no", "")
    assert "while its code ran" in course.graded.stderr
    for name in ("gradebook.db", f"submitted/right/ch03/{NAME}"):
        assert f"{course.folder / name} was changed; it was put back" in (
            course.graded.stderr
        )
        aside = course.folder / f"{name}.changed-while-grading"
        assert aside.read_bytes() == b"mine"
    assert course.rows["right"]["graded"] == "yes"


def test_an_answer_that_is_not_found_has_no_score(course):
    row = course.rows["no_answer"]
    assert row["graded"] == "in part"
    assert row["ch03-ex4-check"] == ""
    assert float(row["score"]) == ALL - POINTS["3.4"]
    assert "exercise 3.4: NOT FOUND" in row["remarks"]
    assert "grade it by hand" in row["remarks"]


def test_a_warning_costs_nothing(course):
    path = course.folder / "autograded" / "no_answer" / "ch03" / NAME
    graded = nbformat.read(path, as_version=4)
    (check,) = (c for c in graded.cells if grade_id(c) == "ch03-ex5-check")
    assert "only a warning" in str(check.outputs)  # it was there
    assert float(course.rows["no_answer"]["ch03-ex5-check"]) == POINTS["3.5"]


def test_a_submission_without_exercises_is_refused_and_has_no_score(course):
    row = course.rows["elsewhere"]
    assert (row["graded"], row["score"]) == ("no", "")
    assert "autograde ch03 --student elsewhere --force" in row["remarks"]
    assert course.graded.returncode != 0
    where = Path("submitted", "elsewhere", "ch03", NAME)
    assert f"{where} was NOT graded: no exercise of {NAME}" in course.graded.stderr
    assert "ch03 of elsewhere has NO score" in course.exported.stderr


def test_a_download_under_another_name_finds_its_place(course):
    assert f"submitted/colab_lost/ch03/{NAME}" in good(course.handed_in)


def test_what_is_no_submission_is_not_handed_in(course, tmp_path):
    other = tmp_path / "essay.ipynb"
    other.write_text("an essay")
    done = course.run("hand_in.py", "right", other)
    assert done.returncode == 2
    assert "essay.ipynb is not a notebook" in done.stderr
    done = course.run("hand_in.py", "../right", other)
    assert "use letters, digits" in done.stderr
    done = course.run("-I", "-S", "hand_in.py", "right", other)  # another Python
    assert done.returncode != 0
    assert "has no spmd_grading: use the Python of the book" in done.stderr
    assert "Traceback" not in done.stderr


def text_of(page: str) -> str:
    page = re.sub(r"<(script|style)\b.*?</\1>", "", page, flags=re.S)
    return html.unescape(re.sub(r"<[^>]+>", "", page))


@pytest.fixture(scope="module")
def feedback(course):
    """Learner -> the text of the page that nbgrader makes for them."""
    pages = {}
    good(course.nbgrader("generate_feedback", "ch03"))
    for student in ("wrong", "stripped", "blank", "right", "displays"):
        page = course.folder / "feedback" / student / "ch03" / NAME
        course.page = page.with_suffix(".html").read_text("utf8")
        pages[student] = text_of(course.page)
    return pages


def test_a_page_runs_nothing_of_a_learners(course, feedback):
    """Each of these is shown as it was typed or left out; none is part of the page."""
    tree = html5lib.parse(course.page, namespaceHTMLElements=False)
    elements = list(tree.iter())
    running = [e for e in elements if e.tag in ("script", "style")]
    assert not any("OWNED" in (e.text or "") for e in running)
    values = [value for e in elements for value in e.attrib.values()]
    assert not any("OWNED" in value or "alert(" in value for value in values)
    assert not any(e.tag == "img" and e.get("src") == "x" for e in elements)
    shown = "".join(tree.itertext())
    assert shown.count(SCRIPT) > 4  # the texts, the code, what it printed and raised


def test_feedback_says_what_was_wrong(feedback):
    assert TOLD in feedback["wrong"]
    assert "Exercise 3.3, not yet:" in feedback["wrong"]
    assert "Exercise 3.1: right." in feedback["wrong"]
    assert "Traceback" not in feedback["wrong"]
    assert "(Score: 7.0 / 9.0)" in feedback["wrong"]
    assert "Exercise 3.5 is open:" in feedback["blank"]
    assert "metadata was missing from 10 of 10" in feedback["stripped"]


def test_feedback_has_no_answer_that_was_not_given(course, feedback):
    notebook = nbformat.read(course.folder / "source" / "ch03" / NAME, as_version=4)
    region = re.compile(r"### BEGIN SOLUTION\n(.*?)\n *### END SOLUTION", re.S)
    answers = [
        region_text for c in notebook.cells for region_text in region.findall(c.source)
    ]
    assert len(answers) == len(POINTS)
    for answer in answers:
        assert answer in feedback["right"]  # or the line below could not fail
        assert answer not in feedback["blank"]


# What is mended, without running anything.


@pytest.fixture(scope="module")
def mend(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mending")

    def mended(work: dict):
        path = folder / NAME
        path.write_text(json.dumps(work), "utf8")
        release = ROOT / "notebooks" / NAME
        done = Mended(path, release, Path("submitted", NAME))
        nbformat.validate(done.notebook)
        return done

    return mended


def graded_cells(notebook) -> list[tuple[str, str]]:
    return [
        (grade_id(c), "".join(c["source"])) for c in notebook["cells"] if grade_id(c)
    ]


def test_a_whole_submission_stays_as_it_is(mend):
    work = solved()
    done = mend(work)
    assert done.remarks == []
    assert graded_cells(done.notebook) == graded_cells(work)
    assert len(done.notebook.cells) == len(work["cells"])


def test_stripped_cells_get_back_all_that_they_lost(mend):
    work = solved()
    done = mend(stripped(work))
    assert graded_cells(done.notebook) == graded_cells(work)
    metadata = [c["metadata"]["nbgrader"] for c in work["cells"] if grade_id(c)]
    restored = [c.metadata["nbgrader"] for c in done.notebook.cells if grade_id(c)]
    assert restored == metadata


def test_a_deleted_check_comes_back_behind_its_answer(mend):
    work = solved()
    done = mend(without(work, "ch03-ex3-check"))
    assert graded_cells(done.notebook) == graded_cells(work)
    assert done.remarks == [
        "exercise 3.3: the check was not there; the release's was used"
    ]


def test_an_answer_in_the_cell_of_the_check_is_kept(mend):
    work = solved()
    check = dict(graded_cells(work))["ch03-ex3-check"]
    merged = without(work, "ch03-ex3")
    merged = edited(merged, "ch03-ex3-check", f"holders = {{5, 7}}\n{check}")
    done = mend(merged)
    names = [name for name, _ in graded_cells(done.notebook)]
    assert names == [name for name, _ in graded_cells(work)]
    assert dict(graded_cells(done.notebook))["ch03-ex3-check"] == check
    assert dict(graded_cells(done.notebook))["ch03-ex3"].startswith("holders = {5, 7}")
    assert "the answer stood in the cell of the check" in done.remarks[0]


def test_given_cells_are_the_releases(mend):
    work = solved()
    code = [c for c in work["cells"] if c["cell_type"] == "code"]
    given = [c for c in code if not grade_id(c)]
    given[0]["source"] = "%pip install something"  # the set-up cell
    given[2]["source"] = "changed = True"
    gone = given[4]
    work["cells"].remove(gone)
    done = mend(work)
    sources = [c.source for c in done.notebook.cells]
    assert "%pip install something" not in sources
    assert "import spmd_helpers as spmd" in "\n".join(sources)
    theirs = "".join(
        read("notebooks")["cells"][work["cells"].index(given[2])]["source"]
    )
    assert sources[sources.index("changed = True") - 1] == theirs
    assert "".join(gone["source"]) in sources
    assert [" ".join(remark.split()[:4]) for remark in done.remarks] == [
        "the set-up cell was",
        "given code cell 3",
        "1 given code cell(s)",
    ]


def test_a_copied_answer_is_graded_once(mend):
    work = solved()
    at = next(i for i, c in enumerate(work["cells"]) if grade_id(c) == "ch03-ex3")
    twin = copy.deepcopy(work["cells"][at]) | {"id": "twin"}
    work["cells"].insert(at + 1, twin)
    done = mend(work)
    assert graded_cells(done.notebook) == graded_cells(solved())


def test_nothing_of_a_notebook_goes_on_but_the_sources_of_its_cells(mend):
    work = displays()
    work["cells"][0]["source"] = f"```\n\n{SCRIPT}\n````"
    done = mend(work)
    given = mend(solved()).notebook
    assert done.notebook.metadata == given.metadata
    for cell in done.notebook.cells:
        assert "attachments" not in cell
        assert not cell.get("outputs")
        assert "OWNED" not in str(cell.metadata)
    texts = [c.source for c in done.notebook.cells if SCRIPT in c.source]
    assert texts[0] == f"`````text\n{work['cells'][0]['source']}\n`````"
    assert texts[1] == f"```text\n{SCRIPT}\n```"
    assert len(texts) == 3  # and the code, which is shown as code
    book = [c.source for c in given.cells if c.cell_type == "markdown"]
    assert [c.source for c in done.notebook.cells if c.cell_type == "markdown"][2:] == (
        book
    )


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"[]", "is not a notebook: hand in the .ipynb file itself"),
        (b"[" * 10**6, "is not a notebook: hand in the .ipynb file itself"),
        (b"", "is empty, 0 bytes"),
        (b'{"cells": []}', "no exercise of 03_mesh_and_partitionspec.ipynb was found"),
    ],
)
def test_what_can_not_be_read_is_said_in_one_sentence(tmp_path, data, words):
    path = tmp_path / NAME
    path.write_bytes(data)
    shown = Path("submitted", "maria", NAME)
    with pytest.raises(CannotGrade, match=re.escape(words)) as refused:
        find_answers.mend(path, ROOT / "notebooks" / NAME, shown)
    assert str(shown) in str(refused.value)
    assert "\n" not in str(refused.value)


def test_reading_has_a_limit_of_time(tmp_path, monkeypatch):
    (tmp_path / NAME).write_text(json.dumps(solved()))
    program = find_answers._PROGRAM.replace(
        "import main; main()", "import *; from signal import *; raise_signal(SIGALRM)"
    )
    monkeypatch.setattr(find_answers, "_PROGRAM", program)
    with pytest.raises(CannotGrade, match="was NOT graded: reading it took more than"):
        find_answers.mend(tmp_path / NAME, ROOT / "notebooks" / NAME, Path(NAME))


def test_what_was_not_judged_has_an_error_and_no_score():
    """nbgrader gives all points to a check without an error."""
    notebook = nbformat.reads(json.dumps(read("notebooks")), as_version=4)
    checks = [c for c in notebook.cells if grade_id(c).endswith("-check")]
    ids = {f"3.{n}": grade_id(check) for n, check in enumerate(checks, 1)}
    rows = [Row(number, 1, 1, "right", "Exercise: right.") for number in ids]
    rows[1] = Row("3.2", None, 1, "not judged", "NOT JUDGED: a person has to look")
    rows[2] = Row("3.3", 0, 2, "wrong", SCRIPT)
    sources = [c.source for c in notebook.cells if c.cell_type == "code"]
    printed = tuple(f"\x1b[31mprinted {n}" for n in range(len(sources)))
    judge._show(notebook, sources, Result("x", tuple(rows[:4]), printed=printed), ids)
    nbformat.validate(notebook)
    said = [check.outputs[-1] for check in checks]
    assert [one.output_type for one in said] == [
        "stream",
        *["error"] * 2,
        "stream",
        "error",
    ]
    assert [determine_grade(check)[0] for check in checks] == [1, 0, 0, 2, 0]
    assert said[2].traceback == [SCRIPT]
    left = [check.metadata.get(NO_SCORE, "") for check in checks]
    assert [bool(why) for why in left] == [False, True, False, False, True]
    assert left[1] == "exercise 3.2: NOT JUDGED: a person has to look"
    code = [c for c in notebook.cells if c.cell_type == "code"]
    assert [c.outputs[0].text for c in code] == [
        f"printed {n}" for n in range(len(sources))
    ]


# The tool itself.


@pytest.fixture(scope="module")
def tools():
    from tools.book import make_course

    return make_course


def test_what_an_instructor_changed_is_kept(tmp_path):
    written = {"a.py": "1\n", "source/ch01/x.ipynb": "{}\n"}
    assert write_course(written, tmp_path) == []
    (tmp_path / "a.py").write_text("mine\n")
    (tmp_path / "gradebook.db").write_text("grades")
    newer = {"a.py": "2\n", "source/ch01/x.ipynb": '{"n": 2}\n'}
    assert write_course(newer, tmp_path) == ["a.py"]
    assert (tmp_path / "a.py").read_text() == "mine\n"
    assert (tmp_path / "source/ch01/x.ipynb").read_text() == '{"n": 2}\n'
    assert (tmp_path / "gradebook.db").read_text() == "grades"


def test_every_chapter_is_a_source_that_nbgrader_takes(tools):
    from nbgrader.nbgraderformat import MetadataValidator

    book = tools.read_book()
    files = course_files(tools.sources(book, []))
    sources = [name for name in files if name.startswith("source/")]
    assert len(sources) == len(book.masters)
    for name in sources:
        notebook = nbformat.reads(files[name], as_version=4)
        MetadataValidator().validate_nb(notebook)
        assert "### BEGIN SOLUTION" in files[name]


def test_a_chapter_that_is_not_there(tools):
    for number in ("17", "99"):
        words = f"no chapter {number} with exercises; write two digits: 01"
        with pytest.raises(tools.BookError, match=words):
            tools.sources(tools.read_book(), [number])


# Grade ids are frozen: gradebooks and submissions of other people hold them.


def test_published_grade_ids_are_still_there():
    from tools.check import freeze_grade_ids

    frozen = freeze_grade_ids.frozen()
    assert len(frozen) > 70
    assert freeze_grade_ids.broken(frozen, freeze_grade_ids.present()) == []
    # and what it would say
    said = freeze_grade_ids.broken({"ch01-ex1": 1}, {"ch01-ex2": 1})
    assert said == [
        "ch01-ex1 (1 points) is published and no chapter has it: give it back its "
        "number",
        "ch01-ex2 is not in the list yet: run `python -m tools.check.freeze_grade_ids`",
    ]
    said = freeze_grade_ids.broken({"ch01-ex1": 1}, {"ch01-ex1": 2})
    assert said == ["ch01-ex1 was published with 1 points and now has 2"]
