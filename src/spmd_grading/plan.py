"""What will run for one submission: the release's cells with its answers put in.

Nothing here runs anything. Checks, the set-up cell and the other given cells come
from the release notebook; from the submission come its answers and the cells that
its author added or changed. Those are matched to the release by nbgrader's `grade_id`,
else by the number in `check("2.1", ...)`, else by cell id, text or the names that an
answer defines: a notebook that Colab or an editor saved without metadata counts the
same.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from .submission import CannotGrade, Cell, Exercise, exercises_of, read_cells


@dataclasses.dataclass(frozen=True)
class Step:
    """One cell to run. `kind`: given (the release's), own (the author's) or check."""

    kind: str
    source: str
    where: str
    number: str = ""  # the exercise it belongs to
    names: tuple[str, ...] = ()  # an answer's, which no later restoring may touch
    title: str = ""  # of an instructor's extra check
    points: float = 0
    is_extra: bool = False  # of an instructor's own file, which learners don't see


@dataclasses.dataclass(frozen=True)
class Plan:
    """All that is known of a submission before it runs."""

    release: Path
    exercises: tuple[Exercise, ...]
    steps: tuple[Step, ...]
    missing: dict[str, str]  # exercise -> why it can't be graded
    notes: tuple[str, ...]


def make_plan(submission: Path, releases: list[Path]) -> Plan:
    """Find the release of a submission and put its answers into it.

    Raises:
        CannotGrade: when the submission can't be read or no release fits it.
    """
    own = read_cells(submission)
    release, given = _release_of(submission, own, releases)
    exercises = exercises_of(given, release)
    match = match_cells(own, given, exercises)
    return _Merge(own, given, exercises, match).plan(release)


def _release_of(
    submission: Path, own: Sequence[Cell], releases: Sequence[Path]
) -> tuple[Path, list[Cell]]:
    """The release that shares most with a submission: ids, numbers, then texts."""
    ids = {cell.grade_id for cell in own if cell.grade_id}
    numbers = {number for cell in own for number in cell.numbers}
    texts = {cell.text for cell in own if cell.text}
    best: tuple[Path, list[Cell]] | None = None
    best_score = (0, 0, 0)
    for release in releases:
        given = read_cells(release)
        exercises = exercises_of(given, release)
        score = (
            sum(e.check.grade_id in ids or e.stub.grade_id in ids for e in exercises)
            + sum(e.number in numbers for e in exercises),
            # the set-up cell is the same everywhere and says nothing
            sum(c.text in texts for c in given if not c.is_setup and c.text),
            int(release.name == submission.name),
        )
        if exercises and score > best_score:
            best, best_score = (release, given), score
    if best is None or (numbers and not best_score[0]):
        chapters = sorted({number.split(".")[0] for number in numbers}, key=int)
        has = f" (it has exercises of chapter {', '.join(chapters)})"
        raise CannotGrade(
            f"{submission} NOT FOUND among the release notebooks: it shares no "
            f"exercise with {_listed(releases)}{has if chapters else ''}; is it the "
            "right chapter, and --release the right folder?"
        )
    return best


def _listed(releases: Sequence[Path]) -> str:
    names = [path.name for path in releases]
    return ", ".join(names) if len(names) < 4 else f"{names[0]} ... {names[-1]}"


def match_cells(
    own: Sequence[Cell], given: Sequence[Cell], exercises: Sequence[Exercise]
) -> dict[int, int]:
    """Index of a submission's cell -> index of the given cell that it was."""
    match: dict[int, int] = {}
    number_of = {e.check.grade_id: e.number for e in exercises}

    def pair(same: Callable[[Cell, Cell], bool]) -> None:
        taken = set(match.values())
        for i, mine in enumerate(own):
            if i in match:
                continue
            for j, theirs in enumerate(given):
                if j not in taken and same(mine, theirs):
                    match[i] = j
                    taken.add(j)
                    break

    pair(lambda a, b: a.grade_id != "" and a.grade_id == b.grade_id)
    pair(lambda a, b: number_of.get(b.grade_id, "?") in a.numbers)
    pair(lambda a, b: a.cell_id != "" and a.cell_id == b.cell_id)
    pair(lambda a, b: a.text != "" and a.text == b.text)
    for exercise in exercises:  # an answer without its id: it defines the names
        stub, check = given.index(exercise.stub), given.index(exercise.check)
        if stub in match.values():
            continue
        end = next((i for i, j in match.items() if j == check), len(own))
        for i in reversed(range(end)):
            if i not in match and own[i].bound & exercise.names:
                match[i] = stub
                break
    return match


class _Merge:
    """The given cells in their order, with the author's in their places."""

    def __init__(
        self,
        own: Sequence[Cell],
        given: Sequence[Cell],
        exercises: tuple[Exercise, ...],
        match: Mapping[int, int],
    ) -> None:
        self.own, self.given, self.exercises = own, given, exercises
        self.mine = {j: i for i, j in match.items()}
        self.added: dict[int, list[int]] = {}
        after = -1
        for i in range(len(own)):
            if i in match:
                after = match[i]
            elif own[i].text:
                self.added.setdefault(after, []).append(i)
        self.steps: list[Step] = []
        self.notes: list[str] = []
        self.missing: dict[str, str] = {}
        self.gone = self.changed = 0
        for i, cell in enumerate(own):
            if cell.unreadable:
                self.notes.append(
                    f"code cell {i + 1} of the submission was left out: "
                    f"{cell.unreadable}"
                )

    def plan(self, release: Path) -> Plan:
        by_cell: dict[str, Exercise] = {}
        for exercise in self.exercises:
            by_cell[exercise.stub.grade_id] = by_cell[exercise.check.grade_id] = (
                exercise
            )
        self._add(-1)
        for j, cell in enumerate(self.given):
            part_of = by_cell.get(cell.grade_id)
            if part_of is None:
                self._give(j, cell)
            elif cell is part_of.stub:
                self._answer(j, cell, part_of)
            else:
                self._check(j, cell, part_of)
            self._add(j)
        if self.changed:
            self.notes.append(
                f"{_count(self.changed, 'given cell')} had been changed: the release's "
                "ran, then the changed one"
            )
        if self.gone:
            self.notes.append(
                f"{_count(self.gone, 'given cell')} had been deleted: the release's ran"
            )
        return Plan(
            release,
            self.exercises,
            tuple(self.steps),
            self.missing,
            tuple(self.notes),
        )

    def _add(self, j: int) -> None:
        for i in self.added.get(j, ()):
            where = f"code cell {i + 1} of the submission"
            self.steps.append(Step("own", self.own[i].source, where))

    def _give(self, j: int, cell: Cell) -> None:
        self.steps.append(Step("given", cell.source, f"given code cell {j + 1}"))
        i = self.mine.get(j)
        if i is None:
            self.gone += 1
        elif self.own[i].text != cell.text:
            if cell.is_setup:  # people install things there; the package is here
                self.notes.append("the set-up cell was changed, the release's was used")
                return
            self.changed += 1
            where = f"the changed code cell {i + 1} of the submission"
            self.steps.append(Step("own", self.own[i].source, where))

    def _answer(self, j: int, cell: Cell, exercise: Exercise) -> None:
        number, names = exercise.number, tuple(sorted(exercise.names))
        i = self.mine.get(j)
        if i is None and self._is_merged(exercise):
            return
        if i is None:
            self.missing[number] = (
                f"NOT FOUND: no cell of the submission is the answer cell of exercise "
                f"{number} (grade id {cell.grade_id!r}), or defines "
                f"{' and '.join(names) or 'its names'} before its check. Nothing was "
                "graded here: look at the notebook, and put the cell back"
            )
            self.steps.append(
                Step("given", cell.source, f"the stub of {number}", "", names)
            )
            return
        where = f"the answer cell of {number}"
        self.steps.append(Step("own", self.own[i].source, where, number, names))

    def _is_merged(self, exercise: Exercise) -> bool:
        """Whether the answer stands in the cell of the check, which runs then."""
        i = self.mine.get(self.given.index(exercise.check))
        return i is not None and bool(self.own[i].bound & exercise.names)

    def _check(self, j: int, cell: Cell, exercise: Exercise) -> None:
        number = exercise.number
        i = self.mine.get(j)
        if i is None:
            self.notes.append(
                f"{number}: the check was not there, the release's was used"
            )
        elif self.own[i].text != cell.text:
            self.notes.append(
                f"{number}: the check was changed, the release's was used"
            )
            # Somebody may have merged the answer into it: run it, don't believe it.
            where = f"the changed check cell of {number}"
            names = tuple(sorted(exercise.names))
            self.steps.append(Step("own", self.own[i].source, where, names=names))
        if number not in self.missing:
            self.steps.append(
                Step(
                    "check",
                    cell.source,
                    f"the check of {number}",
                    number,
                    title="" if cell.numbers else number,
                    points=exercise.points,
                )
            )


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + ("s" if number > 1 else "")
