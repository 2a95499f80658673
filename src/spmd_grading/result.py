"""What grading gave: a `Result` for each submission, with a `Row` for each exercise."""

import dataclasses
from typing import Any

_TEXTS = ("notes", "extra_notes", "printed")


@dataclasses.dataclass(frozen=True)
class Row:
    """One exercise of one submission; `points` is None where it wasn't graded."""

    exercise: str
    points: float | None
    of: float
    verdict: str
    message: str
    seconds: float = 0
    extra: bool = False


@dataclasses.dataclass(frozen=True)
class Result:
    """One submission. `problem` says why it, or a part of it, wasn't graded."""

    submission: str
    rows: tuple[Row, ...] = ()
    notes: tuple[str, ...] = ()
    extra_notes: tuple[str, ...] = ()  # of an instructor's own checks, not for learners
    problem: str = ""
    release: str = ""
    seconds: float = 0
    peak_bytes: int = 0
    printed: tuple[str, ...] = ()  # the end of what each step printed
    none_left: bool = False  # whether it was checked that no process of it is there

    @property
    def graded(self) -> bool:
        """Whether every check has given points."""
        return not self.problem and all(r.points is not None for r in self.rows)

    @property
    def points(self) -> float:
        """The sum of the points given."""
        return sum(row.points or 0 for row in self.rows)

    @property
    def of(self) -> float:
        """The sum of the points that there are."""
        return sum(row.of for row in self.rows)

    def with_notes(self, *notes: str) -> "Result":
        """The same with more notes."""
        return dataclasses.replace(self, notes=(*self.notes, *notes))


def as_data(result: Result) -> dict[str, Any]:
    """A result as JSON can hold it."""
    return dataclasses.asdict(result)


def from_data(data: dict[str, Any]) -> Result:
    """The result that `as_data` has written.

    Raises:
        ValueError: when it is something else.
    """
    try:
        rows = tuple(Row(**row) for row in data["rows"])
        texts = {key: tuple(map(str, data[key])) for key in _TEXTS}
        return Result(**{**data, "rows": rows, **texts})
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a result: {error}") from None
