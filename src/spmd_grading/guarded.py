"""Files that no submission may change: what they were, and whether they still are.

A file counts as changed when its bytes or its rights are others; the bytes are read
only where the file's state, which any writing changes, is another. A changed file is
put back. The changed one is kept beside it under another name, since it may be the
work of a person.
"""

import contextlib
import dataclasses
import hashlib
import os
import site
import sys
from collections.abc import Iterable
from pathlib import Path

from .files import read_file, write_file

ASIDE = ".changed-while-grading"
_KEPT_BYTES = 8 * 2**20  # of one file; larger ones can't be put back
_ALL_KEPT_BYTES = 256 * 2**20
_CODE = (".py", ".pyc", ".so", ".pyd", ".pth", ".cfg")
_STARTUP = ("sitecustomize", "usercustomize", "__editable__")

State = tuple[int, int, int, int, int]


@dataclasses.dataclass
class _File:
    state: State | None
    sha256: str
    mode: int
    data: bytes | None


class Guarded:
    """Named files, the code of packages, and what Python runs when it starts.

    Args:
        named: single files, such as submissions and releases.
        packages: folders of packages; new files of code count as a change.
        startup: folders on Python's path, of which `*.pth` and `sitecustomize` count.
    """

    def __init__(
        self, named: Iterable[Path], packages: Iterable[Path], startup: Iterable[Path]
    ) -> None:
        self._packages = [Path(os.path.realpath(folder)) for folder in packages]
        self._startup = [Path(os.path.realpath(folder)) for folder in startup]
        self._files: dict[Path, _File] = {}
        self._kept = 0
        for path in named:
            self._add(Path(os.path.realpath(path)))
        for path in self._code():
            self._add(path)

    def sha256(self, path: Path) -> str:
        """Of a named file as it was; "" where it could not be read."""
        return self._files[Path(os.path.realpath(path))].sha256

    def _add(self, path: Path) -> None:
        if path in self._files:
            return
        state, sha256, data, mode = _state(path), "", None, 0
        if state is not None:
            mode = state[4]
            data, sha256 = _read(path)
        if data is not None and self._kept + len(data) > _ALL_KEPT_BYTES:
            data = None
        self._kept += len(data or b"")
        self._files[path] = _File(state, sha256, mode, data)

    def _code(self) -> Iterable[Path]:
        for folder in self._packages:
            for where, _, names in os.walk(folder):
                for name in names:
                    path = Path(where, name)
                    if name.endswith(_CODE) and not _is_of_another_python(path):
                        yield path
        for folder in self._startup:
            with contextlib.suppress(OSError):
                for name in os.listdir(folder):
                    if name.endswith(ASIDE):
                        continue
                    if name.endswith((".pth", "pyvenv.cfg")) or name.startswith(
                        _STARTUP
                    ):
                        yield folder / name

    def put_back(self) -> list[str]:
        """Put back what was changed; returns what it was, in words."""
        said = []
        for path, file in self._files.items():
            state = _state(path)
            if state == file.state:
                continue
            _, sha256 = _read(path) if state else (None, "")
            if state and sha256 == file.sha256 and state[4] == file.mode:
                file.state = state  # touched, and the same
                continue
            said.append(self._restore(path, file, state, sha256))
        for path in list(self._code()):
            if path not in self._files and _put_aside(path):
                said.append(f"{path} was new; it is now {path.name}{ASIDE}")
        return said

    def _restore(
        self, path: Path, file: _File, state: State | None, sha256: str
    ) -> str:
        what = f"{path} was deleted" if state is None else f"{path} was changed"
        if file.state is None:
            _put_aside(path)
            return f"{path} was new; it is now {path.name}{ASIDE}"
        if file.data is None:
            file.state, file.sha256 = state, sha256
            return f"{what}, and could not be put back"
        try:
            if sha256 != file.sha256 and state is not None:
                _put_aside(path)
            write_file(path, file.data, file.mode & 0o7777)
            os.utime(path, ns=(file.state[2], file.state[2]))  # which .pyc files name
        except OSError as error:
            file.state, file.sha256 = state, sha256
            return f"{what}, and could not be put back: {error.strerror}"
        file.state = _state(path)
        return f"{what}; it was put back"


def _is_of_another_python(path: Path) -> bool:
    """Compiled by a Python of another version, which may run beside this one."""
    ours = f".{sys.implementation.cache_tag}."
    return path.parent.name == "__pycache__" and ours not in path.name


def _state(path: Path) -> State | None:
    with contextlib.suppress(OSError, ValueError):
        s = os.stat(path)
        return (s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns, s.st_mode)
    return None


def _read(path: Path) -> tuple[bytes | None, str]:
    """(the bytes unless there are too many, their hash); (None, "") if not readable."""
    with contextlib.suppress(OSError):
        data = read_file(path, _KEPT_BYTES)
        if data is not None:
            return data, hashlib.sha256(data).hexdigest()
        if path.is_file():
            with open(path, "rb") as file:
                return None, hashlib.file_digest(file, "sha256").hexdigest()
    return None, ""


def _put_aside(path: Path) -> bool:
    with contextlib.suppress(OSError):
        os.replace(path, path.with_name(path.name + ASIDE))
        return True
    return False


def startup_folders(search_path: Iterable[str]) -> list[Path]:
    """Where Python looks for what it runs when it starts."""
    folders = {*site.getsitepackages(), *search_path, sys.prefix}
    folders.add(site.getusersitepackages())
    return sorted(Path(folder) for folder in folders if folder)
