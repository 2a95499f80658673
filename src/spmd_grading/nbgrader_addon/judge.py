"""The step of `nbgrader autograde` that runs a submission, and the one that scores it.

Jupyter's kernel takes no part. The cells run as `python -m spmd_grading` runs them:
with its limits, with checks that are tried before they are believed, with the package
sealed. Outputs are text only, so that no page runs what a learner displays.
"""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nbformat import NotebookNode
from nbformat.v4 import new_output
from nbgrader import utils
from nbgrader.api import Gradebook
from nbgrader.preprocessors import NbGraderPreprocessor
from traitlets import Float

from ..apart import grade_apart
from ..plan import make_plan
from ..process import Limits
from ..report import clean
from ..result import Result, Row
from ..submission import CannotGrade
from .find_answers import Resources
from .mended import NO_SCORE, REMARKS, read_notebook

_FOLDERS = ("source", "release", "submitted", "autograded", "feedback")


class RunSealed(NbGraderPreprocessor):  # type: ignore[misc]  # nbgrader: no types
    """Runs the cells in place of nbgrader's `Execute`."""

    timeout_s = Float(
        Limits.timeout_s,
        help="seconds for one submission; one cell may take a quarter of it",
    ).tag(config=True)
    memory_gib = Float(
        Limits.memory_bytes / 2**30,
        help="memory for one submission with all its processes",
    ).tag(config=True)

    def preprocess(
        self, notebook: NotebookNode, resources: Resources
    ) -> tuple[NotebookNode, Resources]:
        """Give each code cell what it printed, and each check its verdict."""
        place, course = resources["nbgrader"], self.parent.parent.coursedir
        name = place["notebook"] + ".ipynb"
        given = course.format_path(course.release_directory, ".", place["assignment"])
        limits = Limits(self.timeout_s, int(self.memory_gib * 2**30), is_alone=True)
        with tempfile.TemporaryDirectory(prefix="autograde-") as folder:
            submission = Path(folder, "submission", name)
            release = Path(folder, "release", name)
            _write(submission, notebook)
            _write(release, _with_checks_of(notebook, Path(given, name)))
            plan = make_plan(submission, [release])
            guarded = _files_of(Path(course.root))
            result = grade_apart(submission, release, limits, guarded)
        who = f"{place['assignment']} of {place['student']}"
        if result.problem:
            problem = result.problem.replace(str(submission), name)
            raise CannotGrade(f"{who} was NOT graded: {problem}")
        for note in result.notes:
            self.log.warning("%s: %s", who, clean(note))
        notebook.metadata.setdefault(REMARKS, []).extend(map(clean, result.notes))
        ids = {e.number: e.check.grade_id for e in plan.exercises}
        _show(notebook, [step.source for step in plan.steps], result, ids)
        return notebook, resources


def _write(path: Path, notebook: NotebookNode) -> None:
    path.parent.mkdir()
    path.write_text(json.dumps(notebook), "utf8")


def _with_checks_of(notebook: NotebookNode, release: Path) -> NotebookNode:
    """The release, its checks with the hidden tests, which nbgrader has put back."""
    sources = {
        cell.metadata.nbgrader["grade_id"]: cell.source
        for cell in notebook.cells
        if utils.is_grade(cell)
    }
    given = read_notebook(release)
    for cell in given.cells:
        if utils.is_grade(cell):
            cell.source = sources.get(cell.metadata.nbgrader["grade_id"], cell.source)
    return given


def _files_of(course: Path) -> Iterator[Path]:
    """All that an instructor has in a course, and the work of all learners."""
    yield from (path for path in course.iterdir() if path.is_file())
    for folder in _FOLDERS:
        yield from (path for path in (course / folder).rglob("*") if path.is_file())


def _show(
    notebook: NotebookNode, sources: list[str], result: Result, ids: dict[str, str]
) -> None:
    """Outputs: what was printed, and of a check its verdict."""
    rows = {ids[row.exercise]: row for row in result.rows}
    at = 0
    for cell in notebook.cells:
        if cell.cell_type != "code":
            continue
        cell.outputs, cell.execution_count = [], None
        if at < len(sources) and cell.source == sources[at]:
            if printed := clean(result.printed[at]):
                cell.outputs.append(_output("stream", name="stdout", text=printed))
            at += 1
        if utils.is_grade(cell):
            name = cell.metadata.nbgrader["grade_id"]
            row = rows.get(name) or Row(name, None, 0, "not judged", "it has no check")
            cell.outputs.append(_verdict(row))
            if row.points is None:
                cell.metadata[NO_SCORE] = f"exercise {row.exercise}: {row.message}"


def _verdict(row: Row) -> NotebookNode:
    """What nbgrader scores: an error is 0, anything else is all points."""
    words = clean(row.message)
    if row.verdict == "right":
        return _output("stream", name="stdout", text=words)
    return _output("error", ename=row.verdict, evalue=words, traceback=[words])


def _output(kind: str, **content: Any) -> NotebookNode:
    output: NotebookNode = new_output(kind, **content)  # type: ignore[no-untyped-call]  # nbformat
    return output


class NoScore(NbGraderPreprocessor):  # type: ignore[misc]  # nbgrader: no types
    """What was not found or not judged needs a person: no score, and a comment."""

    def preprocess(
        self, notebook: NotebookNode, resources: Resources
    ) -> tuple[NotebookNode, Resources]:
        """Take back the scores of exercises that need a person."""
        place = resources["nbgrader"]
        where = (place["notebook"], place["assignment"], place["student"])
        with Gradebook(place["db_url"]) as gradebook:
            for cell in notebook.cells:
                why = cell.metadata.get(NO_SCORE)
                if why is None:
                    continue
                name = cell.metadata.nbgrader["grade_id"].removesuffix("-check")
                grade = gradebook.find_grade(f"{name}-check", *where)
                grade.auto_score, grade.needs_manual_grade = None, True
                gradebook.find_comment(name, *where).auto_comment = why
            gradebook.db.commit()
        return notebook, resources
