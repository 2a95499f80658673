"""The process that grades one submission, and is the parent of the submission's code.

The command line starts one for each submission. What a submission does to its parent it
does to this process, so it costs nobody else. Orders come over a pipe: neither the
command line nor the working folder names a file of the instructor's.
"""

import contextlib
import json
import os
import resource
import shutil
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any, NoReturn

from .plan import Step, make_plan
from .process import Limits
from .reaper import HAS_PROC, be_private, become_subreaper, end_children
from .result import Result, as_data
from .single import grade
from .submission import READ_S, CannotGrade

_READ_BYTES = 4 * 2**30
_END_S = 10
_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM)


def main() -> None:
    """Take one order from standard input, write the answer, end."""
    answers = os.dup(1)
    os.dup2(2, 1)
    for one in _ENDS:
        signal.signal(one, signal.SIG_DFL)
    be_private()
    become_subreaper()
    order = json.loads(sys.stdin.buffer.readline())
    # No daemon: it ends this process, also after the answer.
    threading.Thread(target=_end_with_the_parent, args=(order["folder"],)).start()
    worker = _Worker(answers, order)
    worker.say({"result": as_data(worker.answer())})


class _Worker:
    def __init__(self, answers: int, order: dict[str, Any]) -> None:
        self.answers, self.order = answers, order

    def say(self, message: dict[str, Any]) -> None:
        data = json.dumps(message | {"word": self.order["word"]}).encode() + b"\n"
        while data:
            data = data[os.write(self.answers, data) :]

    def answer(self) -> Result:
        """What was asked; a mistake of the grader's own costs this submission only."""
        path, order = Path(self.order["submission"]), self.order
        self._limit_reading(True)
        try:
            releases = [Path(name) for name in order["releases"]]
            if order["do"] == "find the release":
                return Result(str(path), release=str(make_plan(path, releases).release))
            limits = Limits(**order["limits"])
            extra = tuple(_step(one) for one in order["extra"])
            return grade(path, releases, limits, extra, self._is_read)
        except CannotGrade as error:
            return Result(str(path), problem=str(error), none_left=True)
        except MemoryError:
            return Result(str(path), problem="the grader ran out of memory on it")
        except Exception as error:
            words = f"the grader itself failed: {type(error).__name__}: {error}"
            return Result(str(path), problem=words)

    def _is_read(self) -> None:
        self._limit_reading(False)
        self.say({"read": True})

    def _limit_reading(self, limited: bool) -> None:
        signal.alarm(READ_S if limited else 0)
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        unlimited = hard == resource.RLIM_INFINITY
        most = _READ_BYTES if unlimited else min(_READ_BYTES, hard)
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_AS, (most if limited else hard, hard))


def _step(data: dict[str, Any]) -> Step:
    return Step(**{**data, "names": tuple(data["names"])})


def _end_with_the_parent(folder: str) -> NoReturn:
    """When the command line is gone, nothing goes on, and nothing is left."""
    while os.read(0, 1):
        pass
    last = time.monotonic() + _END_S
    while os.path.lexists(folder) and time.monotonic() < last:
        if HAS_PROC:  # again, because a submission's process is started again
            end_children(set())
        shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)


if __name__ == "__main__":
    main()
