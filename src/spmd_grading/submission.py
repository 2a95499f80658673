"""The code cells of a notebook, and the exercises of a release, as plain data.

The time that reading takes grows no faster than the file, whatever is in it. What is
odd in one cell costs only that cell.
"""

import ast
import dataclasses
import functools
import json
import re
from pathlib import Path
from typing import Any

_NUMBER = re.compile(
    r"""\bcheck\(\s{0,200}["']([0-9]{1,4}\.[0-9]{1,4})["']""", re.ASCII
)
_BINDING = re.compile(r"(?:def |class )?(\w+) *[(=:]")
_LARGEST_BYTES = 64 * 2**20
READ_S = 60  # for one file
_MOST_CELLS = 2_000
_LONGEST_TEXT = 100_000  # characters, of all other cells together
_LONGEST_CODE = 2**20  # characters, of all code cells together


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
    unreadable: str = ""  # why it has no source

    @functools.cached_property
    def text(self) -> str:
        """What is compared: not the blanks at the ends of lines."""
        return "\n".join(line.rstrip() for line in self.source.splitlines()).strip()

    @functools.cached_property
    def numbers(self) -> dict[str, None]:
        """The numbers of the exercises that a cell names, in their order."""
        return dict.fromkeys(_NUMBER.findall(self.source))

    @functools.cached_property
    def bound(self) -> frozenset[str]:
        """The names that it defines at its top level."""
        return frozenset(bound(self.source))


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
        CannotGrade: when there is no such file, when it is not a notebook, or when it
            is larger than what is read.
    """
    cells = [_cell(cell) for cell in _all_cells(path) if _is_code(cell)]
    if len(cells) > _MOST_CELLS:
        raise CannotGrade(
            f"{path} has more than {_MOST_CELLS} code cells: it is not read"
        )
    if sum(len(cell.source) for cell in cells) > _LONGEST_CODE:
        raise CannotGrade(
            f"{path} has more than {_LONGEST_CODE // 2**20} MiB of code in its cells: "
            "it is not read; look at what was pasted there"
        )
    return cells


def read_texts(path: Path) -> list[tuple[int | None, str]]:
    """What stands between the code cells, as plain data.

    Returns:
        In the notebook's order, for a code cell (its index in `read_cells`, ""), for
        another (None, its source). Texts are taken up to 100,000 characters together.

    Raises:
        CannotGrade: as `read_cells` does.
    """
    contents: list[tuple[int | None, str]] = []
    code = left = 0
    for cell in _all_cells(path):
        if _is_code(cell):
            contents.append((code, ""))
            code += 1
            continue
        source = _cell(cell).source
        if source and left + len(source) <= _LONGEST_TEXT:
            contents.append((None, source))
            left += len(source)
    return contents


def _is_code(cell: dict[str, Any]) -> bool:
    return cell.get("cell_type") == "code"


def _all_cells(path: Path) -> list[dict[str, Any]]:
    if path.is_dir():
        raise CannotGrade(f"{path} is a folder, not a file: name the notebook in it")
    if not path.is_file():
        raise CannotGrade(f"{path} is not a file: name a notebook, like 04_x.ipynb")
    try:
        with open(path, "rb") as file:
            data = file.read(_LARGEST_BYTES + 1)
    except OSError as error:
        raise CannotGrade(f"{path} can't be read: {error.strerror}") from None
    if len(data) > _LARGEST_BYTES:
        raise CannotGrade(
            f"{path} is larger than {_LARGEST_BYTES // 2**20} MiB: clear its outputs"
        )
    if not data:
        raise CannotGrade(
            f"{path} is empty, 0 bytes: saving or uploading it failed; ask for it again"
        )
    return _cells_of(data, path)


def _cells_of(data: bytes, path: Path) -> list[dict[str, Any]]:
    """The cells as JSON has them; what is no cell at all is left out."""
    try:
        notebook = json.loads(data.decode("utf-8-sig"))
        cells = notebook.get("cells")
        version = notebook.get("nbformat", 4)
        if not isinstance(cells, list) and isinstance(version, int) and version < 4:
            raise CannotGrade(
                f"{path} is a notebook of format {version}: open and save "
                "it in a Jupyter of today, which writes format 4"
            )
        if not isinstance(cells, list):
            raise TypeError
    except CannotGrade:
        raise
    except MemoryError:
        raise CannotGrade(f"{path} takes too much memory to read") from None
    except (ValueError, TypeError, AttributeError, RecursionError):
        raise CannotGrade(
            f"{path} is not a notebook: hand in the .ipynb file itself, not a PDF, an "
            "HTML page or a script with its name"
        ) from None
    return [cell for cell in cells if isinstance(cell, dict)]


def _cell(cell: dict[str, Any]) -> Cell:
    """A cell; metadata of another form than nbformat's counts as none."""
    source = cell.get("source")
    if isinstance(source, list) and all(isinstance(line, str) for line in source):
        source = "".join(source)
    if not isinstance(source, str):
        return Cell("", unreadable="its source is no text")
    metadata = _dict(cell.get("metadata"))
    graded, tags = _dict(metadata.get("nbgrader")), metadata.get("tags")
    return Cell(
        source=source.replace("\r\n", "\n"),
        grade_id=_text(graded.get("grade_id")),
        cell_id=_text(cell.get("id")) or _text(metadata.get("id")),
        points=_number(graded.get("points")) if graded.get("grade") else None,
        is_setup=isinstance(tags, list) and "setup" in tags,
    )


def _dict(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


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
        number = next(iter(check.numbers), stub.grade_id)
        names = stub.bound
        exercises.append(Exercise(number, check.points, stub, check, names))
    return tuple(exercises)


def bound(source: str) -> set[str]:
    """The names that a cell defines at its top level; a guess if it can't be read."""
    lines = source.split("\n")
    lines = ["" if line.lstrip()[:1] in ("%", "!") else line for line in lines]
    try:
        body = ast.parse("\n".join(lines)).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {match[1] for line in lines if (match := _BINDING.match(line))}
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
