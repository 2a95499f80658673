"""A submission as nbgrader gets it: the release's cells with the learner's answers.

nbgrader finds checks by the grade ids in the cells' metadata. Where a tool has
dropped them it finds none and gives 0 without a word. Here the cells are matched to
the release as `python -m spmd_grading` does it: by grade id, else by exercise
number, cell id, text or the names that an answer defines. What had to be mended is
said in the log, in the feedback and in the exported grades; a submission in which no
exercise is found is refused with one sentence, and gets no score.

Nothing of a submission goes on but the sources of its cells: no output, no metadata, no
attachment. A text of the learner's is shown as it was typed, so that no page runs it.
This runs in a process of its own, with limits; it imports little, to start fast.
"""

import contextlib
import copy
import re
import resource
import signal
import sys
import textwrap
from pathlib import Path
from typing import cast

import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell

from ..plan import match_cells
from ..report import clean
from ..submission import READ_S, CannotGrade, Cell, exercises_of, read_cells, read_texts

REMARKS = "spmd_remarks"  # in a graded notebook's metadata
NO_SCORE = "spmd_no_score"  # in that of an answer cell: why its exercise has no score
REFUSED = 3  # what the process ends with when it has said why

_READ_BYTES = 4 * 2**30
_WIDTH = 88


def main() -> None:
    """Mend the notebook that the command line names, and write it."""
    submitted, release, shown = map(Path, sys.argv[1:])
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    unlimited = hard == resource.RLIM_INFINITY
    most = _READ_BYTES if unlimited else min(_READ_BYTES, hard)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (most, hard))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(READ_S)
    try:
        mended = Mended(submitted, release, shown)
    except CannotGrade as error:
        words = str(error).replace(str(submitted), str(shown))
        print(" ".join(clean(words).split()), file=sys.stderr)
        sys.exit(REFUSED)
    text = nbformat.writes(mended.notebook)  # type: ignore[no-untyped-call]  # nbformat
    sys.stdout.buffer.write(text.encode("utf8"))


class Mended:
    """A submission with the release's metadata, and what was done to it."""

    def __init__(self, submitted: Path, release: Path, shown: Path) -> None:
        self.remarks: list[str] = []
        self.own, self.given = read_cells(submitted), read_cells(release)
        self.notebook = read_notebook(release)  # its metadata
        self.nodes = _code(self.notebook)
        self.texts = {
            cell.source.strip(): cell.source
            for cell in self.notebook.cells
            if cell.cell_type == "markdown"
        }
        self.remarks += [
            f"code cell {i + 1} was left out: {cell.unreadable}"
            for i, cell in enumerate(self.own)
            if cell.unreadable
        ]
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
        self.cells = [_code_cell(cell) for cell in self.own]
        self._split_merged()
        self._give_ids_back()
        self._put_back()
        self._finish(submitted)

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
                node.metadata[NO_SCORE] = (
                    f"exercise {exercise.number}: NOT FOUND, no cell is its answer or "
                    f"defines {names}; it got no score: "
                    "look at the submission and grade it by hand"
                )
                self.remarks.append(node.metadata[NO_SCORE])
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

    def _finish(self, submitted: Path) -> None:
        cells = list(self.behind.get(-1, ()))
        for i, text in read_texts(submitted):
            if i is None:
                cells.append(self._text(text))
            else:
                cells += [*self.before.get(i, ()), self.cells[i]]
                cells += self.behind.get(i, ())
        if self.remarks:
            listed = "\n".join(f"- {remark}" for remark in self.remarks)
            cells.insert(0, _markdown(f"**Notes on grading**\n\n{_as_typed(listed)}"))
        for number, cell in enumerate(cells, 1):
            cell["id"] = f"cell-{number}"
        self.notebook.cells = cells
        self.notebook.metadata[REMARKS] = list(self.remarks)
        self.notebook.nbformat, self.notebook.nbformat_minor = 4, 5

    def _text(self, text: str) -> NotebookNode:
        """The release's texts as they are, any other as it was typed."""
        given = self.texts.get(text.strip())
        return _markdown(_as_typed(text) if given is None else given)


def _as_typed(text: str) -> str:
    """Markdown that shows a text letter by letter: no HTML of it, no image, no link."""
    lines = [
        textwrap.wrap(line, _WIDTH, break_on_hyphens=False) or [""]
        for line in clean(text).splitlines()
    ]
    ticks = max(map(len, re.findall("`+", text)), default=0)
    fence = "`" * max(3, ticks + 1)
    return "\n".join(
        [f"{fence}text", *(part for line in lines for part in line), fence]
    )


def _markdown(source: str) -> NotebookNode:
    return cast(NotebookNode, new_markdown_cell(source))  # type: ignore[no-untyped-call]  # nbformat


def _code_cell(cell: Cell) -> NotebookNode:
    source = cell.source.encode("utf8", "replace").decode("utf8")
    return cast(NotebookNode, new_code_cell(source))  # type: ignore[no-untyped-call]  # nbformat


def read_notebook(path: Path) -> NotebookNode:
    """A notebook with nbformat's own nodes."""
    notebook = nbformat.read(path, 4)  # type: ignore[no-untyped-call]  # nbformat
    return cast(NotebookNode, notebook)


def _code(notebook: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]
