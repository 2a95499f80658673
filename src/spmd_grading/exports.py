"""Notebooks of many learners, as a learning platform exports them: a folder or a zip.

Platforms write the learner into the name of a folder or of a file. Known here are the
ways of Moodle, Canvas, Blackboard and Brightspace; else the first folder is the
learner, and of a file without one its name.
"""

import dataclasses
import os
import re
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from .submission import CannotGrade

_LARGEST_BYTES = 64 * 2**20  # of one file
_MOST_FILES = 20_000
_ALL_BYTES = 2 * 2**30
_SKIPPED = {"__MACOSX", ".ipynb_checkpoints", ".DS_Store"}
# The learner, and the platform's number of them, which tells two of one name apart.
_FOLDERS = (
    re.compile(r"(?P<name>[^_]+)_(?P<id>[0-9]+)_assignsubmission_file_?"),
    re.compile(r"(?P<id>[0-9]+)-[0-9]+ - (?P<name>.+?) - .+"),
)
_FILES = (
    re.compile(r"(?P<name>[^_]+)_(?P<id>[0-9]+)_assignsubmission_file_.+"),
    re.compile(r"(?P<name>[^_]+)_(?:LATE_)?(?P<id>[0-9]+)_[0-9]+_.+"),
    re.compile(r".+_(?P<name>[^_]+)_attempt_[0-9-]+_.+"),
)


@dataclasses.dataclass(frozen=True)
class HandedIn:
    """A file of an export. `problem` says why it is no notebook that can be taken."""

    name: str  # within the export
    learner: str
    when: str  # what is later is larger
    data: bytes = b""
    problem: str = ""


def read_export(path: Path) -> list[HandedIn]:
    """All files of an export, in the order of their names.

    Raises:
        CannotGrade: when it is no folder and no zip that can be read, or too large.
    """
    files, size = [], 0
    for one in _of_folder(path) if path.is_dir() else _of_zip(path):
        files.append(one)
        size += len(one.data)
        if len(files) > _MOST_FILES or size > _ALL_BYTES:
            raise CannotGrade(
                f"{path} has more than {_MOST_FILES} files or "
                f"{_ALL_BYTES // 2**30} GiB: hand in a part at a time"
            )
    return sorted(_renamed(files), key=lambda one: one.name)


def _renamed(files: list[HandedIn]) -> Iterator[HandedIn]:
    """The same; no notebooks of learners whose names become one, as `A B` and `A-B`."""
    names: dict[str, set[str]] = {}
    for one in files:
        names.setdefault(one.learner, set()).add(_written(one.name).strip())
    for one in files:
        others = sorted(names[one.learner] - {_written(one.name).strip()})
        if others and not one.problem:
            said = f"is of a learner who can't be told from {others[0]!r}: rename one"
            one = dataclasses.replace(one, data=b"", problem=said)
        yield one


def _of_folder(folder: Path) -> Iterator[HandedIn]:
    for where, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name not in _SKIPPED]
        for name in names:
            path = Path(where, name)
            shown = path.relative_to(folder).as_posix()
            if name in _SKIPPED:
                continue
            if path.is_symlink() or not path.is_file():
                yield HandedIn(shown, learner_of(shown), "", problem="is no plain file")
                continue
            with open(path, "rb") as file:
                when = f"{os.fstat(file.fileno()).st_mtime:020.3f}"
                yield _taken(shown, when, file.read(_LARGEST_BYTES + 1))


def _of_zip(path: Path) -> Iterator[HandedIn]:
    try:
        with zipfile.ZipFile(path) as archive:
            for entry in archive.infolist():
                parts = PurePosixPath(entry.filename).parts
                if entry.is_dir() or _SKIPPED & set(parts):
                    continue
                when = "-".join(f"{part:04}" for part in entry.date_time)
                with archive.open(entry) as file:
                    data = file.read(_LARGEST_BYTES + 1)
                yield _taken(entry.filename, when, data)
    except OSError as error:
        raise CannotGrade(f"{path} can't be read: {error.strerror}") from None
    except (zipfile.BadZipFile, zlib.error, RuntimeError, ValueError, EOFError):
        raise CannotGrade(
            f"{path} is no zip that can be read: unpack it, and name the folder"
        ) from None


def _taken(name: str, when: str, data: bytes) -> HandedIn:
    problem = ""
    if not name.lower().endswith(".ipynb"):
        problem, data = "is no notebook (.ipynb)", b""
    elif len(data) > _LARGEST_BYTES:
        problem, data = f"is larger than {_LARGEST_BYTES // 2**20} MiB", b""
    return HandedIn(name, learner_of(name), when, data, problem)


def learner_of(name: str) -> str:
    """Whose file it is, by its name within an export.

    >>> learner_of("Maria Lopez_481_assignsubmission_file/Copy of 03.ipynb")
    'Maria-Lopez_481'
    >>> learner_of("lopezmaria_LATE_481_77_03-1.ipynb")
    'lopezmaria_481'
    >>> learner_of("Week 2_mlopez_attempt_2026-11-02-10-15-00_03.ipynb")
    'mlopez'
    >>> learner_of("77-481 - Maria Lopez - Nov 2, 2026 1015 AM/03.ipynb")
    'Maria-Lopez_77'
    >>> learner_of("maria/03.ipynb"), learner_of("maria.ipynb")
    ('maria', 'maria')
    """
    return _plain(_written(name))


def _written(name: str) -> str:
    """The learner as the platform wrote the name."""
    parts = [part for part in name.split("/") if part not in ("", ".", "..")] or [""]
    stem = parts[-1].rpartition(".")[0] or parts[-1]
    for part in parts[:-1]:
        for pattern in _FOLDERS:
            if match := pattern.fullmatch(part):
                return f"{match['name']}_{match['id']}"
    for pattern in _FILES:
        if match := pattern.fullmatch(parts[-1]):
            number = match.groupdict().get("id")
            return match["name"] + (f"_{number}" if number else "")
    return parts[0] if len(parts) > 1 else stem


def _plain(name: str) -> str:
    """A name that can be a folder's and a student's in nbgrader."""
    return re.sub(r"[^\w.@-]+", "-", name.strip())[:100].strip(".-@") or "unknown"
