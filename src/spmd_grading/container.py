"""Runs the process that grades a submission in a container of its own.

Podman and Docker take the same options. Copies of the submission and of the releases
go in, read-only; orders and answers go through a pipe. So there is nothing of the
instructor's in it: no results, no files of others, no hidden checks on a disk.
"""

import contextlib
import dataclasses
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from .process import Limits
from .submission import CannotGrade

_GIVEN = "/given"  # in the container
_NOBODY = "65534:65534"
_PROCESSES = 256
_PROCESSORS = 2
_TEMPORARY = "size=1g,mode=1777"
_OWN_BYTES = 2**30  # beside what the submission may use: the worker and /tmp
_KILL_S = 20
# The shell is process 1, which gets no signal that ends others, such as an alarm.
_WORKER = "from spmd_grading.worker import main; main()"
_SHELL = f"python -P -c '{_WORKER}'; exit $?"


@dataclasses.dataclass(frozen=True)
class Containers:
    """An image with the packages, and the program that makes containers of it."""

    image: str
    runtime: str = "podman"

    def require(self) -> None:
        """Make sure that there is such an image.

        Raises:
            CannotGrade: when the image or the program is not there.
        """
        command = [self.runtime, "image", "inspect", self.image]
        try:
            done = subprocess.run(command, capture_output=True, text=True)
        except OSError as error:
            raise CannotGrade(
                f"--runtime {self.runtime} can't be run: {error.strerror}; install it, "
                "or name another one, like docker"
            ) from None
        if done.returncode != 0:
            raise CannotGrade(
                f"--container {self.image}: {self.runtime} has no such image; build it "
                f"as tools/grading/container/Containerfile says: {done.stderr.strip()}"
            )

    def command(self, name: str, folder: Path, limits: Limits) -> list[str]:
        """What starts one worker.

        Args:
            name: of the container.
            folder: what `put` has written.
            limits: what the submission may use.
        """
        memory = limits.memory_bytes + _OWN_BYTES
        return [
            *(self.runtime, "run", "--rm", "--interactive", f"--name={name}"),
            *("--pull=never", "--network=none", "--read-only"),
            f"--tmpfs=/tmp:{_TEMPORARY}",
            f"--volume={folder}:{_GIVEN}:ro,z",
            *("--cap-drop=all", "--security-opt=no-new-privileges"),
            *(f"--user={_NOBODY}", "--env=HOME=/tmp", "--workdir=/tmp"),
            *(f"--memory={memory}", f"--memory-swap={memory}"),
            *(f"--pids-limit={_PROCESSES}", f"--cpus={_PROCESSORS}"),
            *(self.image, "sh", "-c", _SHELL),
        ]

    def end(self, name: str) -> bool:
        """End a container with all that runs in it; returns whether it is gone."""
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            for how in (["kill", name], ["rm", "--force", name]):
                subprocess.run(
                    [self.runtime, *how], capture_output=True, timeout=_KILL_S
                )
            find = [self.runtime, "ps", "--all", "--quiet", f"--filter=name={name}"]
            left = subprocess.run(find, capture_output=True, timeout=_KILL_S)
            return left.returncode == 0 and not left.stdout.strip()
        return False


def put(folder: Path, submission: Path, releases: Sequence[Path]) -> dict[str, Path]:
    """Copy what a container gets into a folder that its user can read.

    Returns:
        The path in the container -> the file, the submission first.

    Raises:
        OSError: when one can't be copied.
    """
    folder.mkdir()
    given: dict[str, Path] = {}
    for number, path in enumerate((submission, *releases)):
        place = folder / str(number)
        place.mkdir()
        copy = place / path.name
        if path.is_file():  # what is none is said by who reads it
            shutil.copyfile(path, copy)
            copy.chmod(0o644)
        place.chmod(0o755)
        given[f"{_GIVEN}/{number}/{path.name}"] = path
    folder.chmod(0o755)
    return given
