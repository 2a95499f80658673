"""Before a submission is graded: each cell of the book gets its grade id back.

nbgrader finds checks by the grade ids in the cells' metadata. Where a tool has
dropped them it finds none and gives 0 without a word. Here the cells are matched to
the release as `python -m spmd_grading` does it: by grade id, else by exercise
number, cell id, text or the names that an answer defines. What had to be mended is
said in the log, in the feedback and in the exported grades; a submission in which no
exercise is found is refused with one sentence, and gets no score.
"""

import ast
import copy
from pathlib import Path
from typing import Any, cast

import nbformat
from IPython.core.inputtransformer2 import TransformerManager
from nbformat import NotebookNode
from nbformat.v4 import new_markdown_cell
from nbgrader.preprocessors import NbGraderPreprocessor

from ..plan import match_cells
from ..submission import CannotGrade, bound, exercises_of, read_cells

REMARKS = "spmd_remarks"  # in a graded notebook's metadata
NOT_FOUND = "spmd_not_found"  # in that of an answer cell that was put back


Resources = dict[str, Any]  # what nbgrader hands from one step to the next


class FindAnswers(NbGraderPreprocessor):  # type: ignore[misc]  # nbgrader: no types
    """The first step of `nbgrader autograde`."""

    def preprocess(
        self, notebook: NotebookNode, resources: Resources
    ) -> tuple[NotebookNode, Resources]:
        """Put each submitted answer into the cell of the release that it belongs to."""
        place, course = resources["nbgrader"], self.parent.parent.coursedir
        name = place["notebook"] + ".ipynb"
        folder = course.format_path(
            course.submitted_directory, place["student"], place["assignment"]
        )
        release = course.format_path(course.release_directory, ".", place["assignment"])
        submitted = Path(folder, name)
        shown = submitted
        if submitted.is_relative_to(course.root):
            shown = submitted.relative_to(course.root)
        mended = _Mended(notebook, submitted, Path(release, name), shown)
        for remark in mended.remarks:
            self.log.warning("%s: %s", shown, remark)
        return mended.notebook, resources


class _Mended:
    """A submission with the release's metadata, and what was done to it."""

    def __init__(
        self, notebook: NotebookNode, submitted: Path, release: Path, shown: Path
    ) -> None:
        self.notebook = notebook
        self.remarks: list[str] = []
        self.own, self.given = read_cells(submitted), read_cells(release)
        self.nodes = _code(read_notebook(release))
        self.exercises = exercises_of(self.given, release)
        self.match = match_cells(self.own, self.given, self.exercises)
        self.stubs = {self.given.index(e.stub): e for e in self.exercises}
        self.checks = {self.given.index(e.check): e for e in self.exercises}
        if not {*self.stubs, *self.checks} & set(self.match.values()):
            raise CannotGrade(
                f"{shown} was NOT graded: no exercise of {release.name} was found in "
                "it, neither by nbgrader's grade ids nor by its text. Open it and see "
                "whether it is another chapter or another file; if the work is in it, "
                "put the answers into a fresh copy of the release notebook, then run "
                "`nbgrader autograde` again with --force"
            )
        self.cells = _code(notebook)
        self._split_merged()
        self._give_ids_back()
        self._put_back()
        self._say_what_is_set_anew()
        self._finish()

    def _node(self, j: int) -> NotebookNode:
        node = copy.deepcopy(self.nodes[j])
        node.outputs, node.execution_count = [], None
        return node

    def _split_merged(self) -> None:
        """An answer written into its check's cell: that cell is the answer then."""
        mine = {j: i for i, j in self.match.items()}
        for exercise in self.exercises:
            stub = self.given.index(exercise.stub)
            i = mine.get(self.given.index(exercise.check))
            if stub in mine or i is None:
                continue
            if self.own[i].bound & exercise.names:
                self.match[i] = stub
                self.remarks.append(
                    f"exercise {exercise.number}: the answer stood in the cell of the "
                    "check; it was kept and the check put back behind it"
                )

    def _give_ids_back(self) -> None:
        lost = 0
        changed: list[int] = []
        self.before: dict[int, list[NotebookNode]] = {}
        for i, cell in enumerate(self.cells):
            had = self.own[i].grade_id
            cell.metadata.pop("nbgrader", None)
            j = self.match.get(i)
            if j is None:
                continue
            graded = self.nodes[j].metadata.get("nbgrader")
            if graded is not None:
                cell.metadata["nbgrader"] = copy.deepcopy(graded)
                lost += had != graded["grade_id"]
                if graded["grade"] and self.own[i].text != self.given[j].text:
                    changed.append(j)
            elif self.own[i].text != self.given[j].text:
                self._given_was_changed(i, j)
        if lost:
            all_of_them = 2 * len(self.exercises)
            self.remarks.append(
                f"nbgrader's metadata was missing from {lost} of {all_of_them} cells "
                "(some tool had dropped it); they were found by their text and graded "
                "as usual"
            )
        self.remarks += [
            f"exercise {e.number}: the check was changed; the release's was used"
            for j, e in self.checks.items()
            if j in changed
        ]

    def _given_was_changed(self, i: int, j: int) -> None:
        if self.given[j].is_setup:  # people install things there
            self.cells[i].source = self.nodes[j].source
            self.remarks.append("the set-up cell was changed; the release's was used")
            return
        self.before.setdefault(i, []).append(self._node(j))
        self.remarks.append(
            f"given code cell {j + 1} was changed; the release's ran, then the changed "
            "one"
        )

    def _put_back(self) -> None:
        """Cells of the release that are not there, each behind its predecessor."""
        mine = {j: i for i, j in self.match.items()}
        self.behind: dict[int, list[NotebookNode]] = {}
        after, gone = -1, 0
        for j in range(len(self.given)):
            if j in mine:
                after = max(after, mine[j])
                continue
            node = self._node(j)
            self.behind.setdefault(after, []).append(node)
            if exercise := self.stubs.get(j):
                names = " and ".join(sorted(exercise.names))
                node.metadata[NOT_FOUND] = (
                    f"exercise {exercise.number}: NOT FOUND, no cell is its answer or "
                    f"defines {names}; it got no score: "
                    "look at the submission and grade it by hand"
                )
                self.remarks.append(node.metadata[NOT_FOUND])
            elif j in self.checks:
                self.remarks.append(
                    f"exercise {self.checks[j].number}: the check was not there; the "
                    "release's was used"
                )
            else:
                gone += 1
        if gone:
            self.remarks.append(
                f"{gone} given code cell(s) had been deleted; the release's ran"
            )

    def _say_what_is_set_anew(self) -> None:
        """nbgrader runs a notebook from top to bottom, and puts no name back."""
        mine = {j: i for i, j in self.match.items()}
        answers = {name for exercise in self.exercises for name in exercise.names}
        names_of_cells = [
            _set_by(cell.source)
            for j, cell in enumerate(self.given)
            if j not in self.stubs and j not in self.checks
        ]
        given = set().union(*names_of_cells) - answers
        theirs = [
            (i, bound(cell.source) & given)
            for i, cell in enumerate(self.own)
            if i not in self.match or self.match[i] in self.stubs
        ]
        for j, exercise in self.checks.items():
            at = mine.get(j, len(self.own))
            uses = _used_by(exercise.check.source)
            names = set().union(*(names for i, names in theirs if i < at)) & uses
            if names:
                words = ", ".join(f"`{name}`" for name in sorted(names))
                self.remarks.append(
                    f"exercise {exercise.number}: cells before its check set {words} "
                    "anew, which the check uses; if points are missing, grade it with "
                    "`python -m spmd_grading`, which gives names back"
                )

    def _finish(self) -> None:
        cells, i = list(self.behind.get(-1, ())), -1
        for cell in self.notebook.cells:
            if cell.cell_type == "code":
                i += 1
                cells += [*self.before.get(i, ()), cell, *self.behind.get(i, ())]
            else:
                cell.metadata.pop("nbgrader", None)
                cells.append(cell)
        if self.remarks:
            listed = "\n".join(f"- {remark}" for remark in self.remarks)
            words = f"**Notes on grading**\n\n{listed}"
            note = new_markdown_cell(words)  # type: ignore[no-untyped-call]  # nbformat
            cells.insert(0, note)
        for number, cell in enumerate(cells, 1):  # a Colab file may lack ids
            cell["id"] = f"cell-{number}"
        self.notebook.cells = cells
        self.notebook.metadata[REMARKS] = list(self.remarks)
        self.notebook.nbformat, self.notebook.nbformat_minor = 4, 5


def _set_by(source: str) -> set[str]:
    """The names that a cell of the book defines or imports."""
    imported = {
        alias.asname or alias.name.partition(".")[0]
        for node in _nodes(source)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    return bound(source) | imported


def _used_by(source: str) -> set[str]:
    """The names that a check reads and does not set itself."""
    names = [node for node in _nodes(source) if isinstance(node, ast.Name)]
    own = {node.id for node in names if isinstance(node.ctx, ast.Store)}
    return {node.id for node in names} - own


def _nodes(source: str) -> list[ast.AST]:
    manager = TransformerManager()  # type: ignore[no-untyped-call]  # IPython
    return list(ast.walk(ast.parse(manager.transform_cell(source))))


def read_notebook(path: Path) -> NotebookNode:
    """A notebook with nbformat's own nodes."""
    notebook = nbformat.read(path, 4)  # type: ignore[no-untyped-call]  # nbformat
    return cast(NotebookNode, notebook)


def _code(notebook: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]
