"""What is written while submissions are graded, and what a later call goes on from."""

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from .files import read_file, write_file
from .result import Result, as_data, from_data
from .submission import CannotGrade

_VERSION = 1


class Outputs:
    """Files that hold the newest results at any time, and nothing else.

    Args:
        paths: the files; where one is a link or a pipe now, it stays one.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self._targets = {path: Path(os.path.realpath(path)) for path in paths}
        self._pipes = {p for p in paths if p.exists() and not p.is_file()}
        self._written: dict[Path, bytes] = {}
        self.failed: dict[Path, str] = {}  # file -> why it was not written

    def write(self, texts: Mapping[Path, str], at_the_end: bool = False) -> None:
        """Write each text into its file; into a pipe or a terminal only at the end."""
        for path, text in texts.items():
            data = text.encode("utf8")
            if path in self._pipes:
                if at_the_end:
                    path.write_bytes(data)
            elif self._written.get(path) != data or path in self.failed:
                self._write(path, data)

    def _write(self, path: Path, data: bytes) -> None:
        self.failed.pop(path, None)
        self._written[path] = data
        try:
            write_file(self._targets[path], data)
        except OSError as error:
            self.failed[path] = error.strerror or str(error)

    def put_back(self) -> list[str]:
        """Write again what somebody else has changed; returns what it was, in words."""
        said = []
        for path, data in list(self._written.items()):
            now = None
            with contextlib.suppress(OSError):
                now = read_file(self._targets[path], len(data))
            if now == data or path in self.failed:
                continue
            said.append(f"{path}, the results, was changed; they were written again")
            self._write(path, data)
        return said


class State:
    """What `--resume` needs: the results so far, and what each of them rests on."""

    def __init__(self, path: Path | None, base: str) -> None:
        self.path, self._base = path, base
        self._graded: dict[str, tuple[str, Result]] = {}
        self._running: list[str] = []

    def read(self) -> bool:
        """Take over what an earlier call has left; False when it was of other checks.

        Raises:
            CannotGrade: when the file is there and can't be read.
        """
        if self.path is None or not self.path.exists():
            return True
        try:
            data = json.loads(self.path.read_text("utf8"))
            if data["version"] != _VERSION or data["base"] != self._base:
                return False
            self._running = [str(name) for name in data["running"]]
            self._graded = {
                name: (str(one["sha256"]), from_data(one["result"]))
                for name, one in data["graded"].items()
            }
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            raise CannotGrade(
                f"--resume: {self.path} is not what an earlier call has written: "
                "delete it, or leave --resume out"
            ) from None
        return True

    def result(self, submission: Path, sha256: str) -> Result | None:
        """The result of a submission whose bytes are still the same."""
        known, result = self._graded.get(_key(submission), ("", None))
        return result if known and known == sha256 else None

    def was_running(self, submission: Path) -> bool:
        """Whether it was running when an earlier call came to its end."""
        return _key(submission) in self._running

    def keep(self, submission: Path, sha256: str, result: Result) -> None:
        """Note a result; one of a file that could not be read is not kept."""
        if sha256:
            self._graded[_key(submission)] = (sha256, result)

    def text(self, running: Sequence[Path]) -> str:
        """The content of the file."""
        graded = {
            name: {"sha256": sha256, "result": as_data(result)}
            for name, (sha256, result) in self._graded.items()
        }
        names = [_key(path) for path in running]
        document = {"version": _VERSION, "base": self._base, "running": names}
        return json.dumps(document | {"graded": graded}, indent=1) + "\n"


def _key(submission: Path) -> str:
    return str(submission.absolute())


def base_of(paths: Sequence[Path], sha256: Callable[[Path], str]) -> str:
    """One hash of the releases and the extra checks that results rest on."""
    lines = [f"{path.name} {sha256(path)}" for path in paths]
    return hashlib.sha256("\n".join(lines).encode("utf8", "replace")).hexdigest()
