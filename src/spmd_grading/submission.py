"""The code cells of a notebook, and the exercises of a release, as plain data."""

import ast
import dataclasses
import json
import re
from pathlib import Path
from typing import Any

_NUMBER = re.compile(r"""\bcheck\(\s*["'](\d+\.\d+)["']""")
_LARGEST_BYTES = 64 * 2**20


class CannotGrade(ValueError):
    """A submission, a release or extra checks that can't be read, and why."""


@dataclasses.dataclass(frozen=True)
class Cell:
    """A code cell of a notebook, with what can tell which one it is."""

    source: str
    grade_id: str = ""
    cell_id: str = ""
    points: float | None = None  # a check's
    is_setup: bool = False

    @property
    def text(self) -> str:
        """What is compared: not the blanks at the ends of lines."""
        return "\n".join(line.rstrip() for line in self.source.splitlines()).strip()

    @property
    def numbers(self) -> list[str]:
        """The numbers of the exercises that a cell names."""
        return _NUMBER.findall(self.source)


@dataclasses.dataclass(frozen=True)
class Exercise:
    """An exercise of a release: its number, its points, the two cells, its names."""

    number: str
    points: float
    stub: Cell
    check: Cell
    names: frozenset[str]  # what an answer has to define


def read_cells(path: Path) -> list[Cell]:
    """The code cells of a notebook, read as plain data.

    Raises:
        CannotGrade: when there is no such file or it is not a notebook.
    """
    if path.is_dir():
        raise CannotGrade(f"{path} is a folder, not a file: name the notebook in it")
    if not path.is_file():
        raise CannotGrade(f"{path} is not a file: name a notebook, like 04_x.ipynb")
    if path.stat().st_size > _LARGEST_BYTES:
        raise CannotGrade(
            f"{path} is larger than {_LARGEST_BYTES // 2**20} MiB: clear its outputs"
        )
    if path.stat().st_size == 0:
        raise CannotGrade(
            f"{path} is empty, 0 bytes: saving or uploading it failed; ask for it again"
        )
    try:
        notebook = json.loads(path.read_bytes().decode("utf8"))
        if notebook.get("nbformat", 4) < 4:
            raise CannotGrade(
                f"{path} is a notebook of format {notebook['nbformat']}: open and save "
                "it in a Jupyter of today, which writes format 4"
            )
        cells = [_cell(c) for c in notebook["cells"] if c.get("cell_type") == "code"]
    except CannotGrade:
        raise
    except OSError as error:
        raise CannotGrade(f"{path} can't be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise CannotGrade(
            f"{path} is not a notebook: hand in the .ipynb file itself, not a PDF, an "
            "HTML page or a script with its name"
        ) from None
    return cells


def _cell(cell: dict[str, Any]) -> Cell:
    source = cell["source"]
    source = source if isinstance(source, str) else "".join(source)
    metadata = cell.get("metadata") or {}
    graded = metadata.get("nbgrader") or {}
    return Cell(
        source=source.replace("\r\n", "\n"),
        grade_id=str(graded.get("grade_id", "")),
        cell_id=str(cell.get("id") or metadata.get("id") or ""),
        points=_number(graded.get("points")) if graded.get("grade") else None,
        is_setup="setup" in (metadata.get("tags") or []),
    )


def _number(points: object) -> float:
    return float(points) if isinstance(points, int | float) else 0.0


def exercises_of(cells: list[Cell], path: Path) -> tuple[Exercise, ...]:
    """The exercises of a release notebook, in its order."""
    stubs = {cell.grade_id: cell for cell in cells if cell.points is None}
    exercises = []
    for check in cells:
        if check.points is None:
            continue
        stub = stubs.get(check.grade_id.removesuffix("-check"))
        if stub is None or not stub.grade_id:
            raise CannotGrade(
                f"{path}: the check {check.grade_id!r} has no exercise cell with the "
                "grade id without `-check`; is it a release notebook of this book?"
            )
        number = check.numbers[0] if check.numbers else stub.grade_id
        names = frozenset(bound(stub.source))
        exercises.append(Exercise(number, check.points, stub, check, names))
    return tuple(exercises)


def bound(source: str) -> set[str]:
    """The names that a cell defines at its top level; nothing if it can't be read."""
    plain = re.sub(r"^\s*[%!].*$", "", source, flags=re.M)
    try:
        body = ast.parse(plain).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return set(re.findall(r"^(?:def |class )?(\w+)\b(?= *[(=:])", plain, re.M))
    names = set()
    for statement in body:
        if isinstance(statement, ast.FunctionDef | ast.ClassDef):
            names.add(statement.name)
            continue
        names |= {
            node.id
            for node in ast.walk(statement)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        }
    return names
