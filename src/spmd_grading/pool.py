"""Starts a process for each submission, watches it, and clears up behind it."""

import collections
import contextlib
import dataclasses
import json
import os
import secrets
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from .container import Containers, put
from .plan import Step
from .process import START_S, Limits, environment, search_path
from .reaper import HAS_PROC, become_subreaper, children, end_children, is_subreaper
from .result import Result, from_data
from .shared_memory import SharedMemory
from .submission import READ_S

_MORE_S = 2 * START_S + 30  # beyond the time of its cells
_TICK_S = 0.1
_END_S = 3
_ANSWER_BYTES = 64 * 2**20
_BY_SIGNAL = 128  # a container's code beyond it
_LAST_WORDS = 300
_WORKER = "import sys; sys.path[:] = {path!r}; from spmd_grading.worker import main; "
_WORKER += "main()"


# What was changed, in words: files that grading rests on, files of results.
Changed = tuple[list[str], list[str]]


@dataclasses.dataclass(frozen=True)
class Order:
    """What is asked of each worker."""

    releases: tuple[Path, ...]
    limits: Limits
    extra: tuple[Step, ...] = ()
    do: str = "grade"
    containers: Containers | None = None  # None: no container

    def as_data(self, paths: Sequence[str]) -> dict[str, Any]:
        """The order for one submission as JSON can hold it.

        Args:
            paths: the submission and the releases, as the worker finds them.
        """
        return {
            "do": self.do,
            "submission": paths[0],
            "releases": paths[1:],
            "limits": dataclasses.asdict(self.limits),
            "extra": [dataclasses.asdict(step) for step in self.extra],
        }


@dataclasses.dataclass(frozen=True)
class Event:
    """A submission has started, or has its result."""

    index: int
    result: Result | None = None


class _Worker:
    """The process that grades one submission, as the command line sees it."""

    def __init__(self, index: int, submission: Path, order: Order) -> None:
        self.index, self.submission, self.order = index, submission, order
        self.word = secrets.token_hex(16)
        self.received, self.last_words = bytearray(), b""
        self.is_read = self.is_shared = False
        self.result: Result | None = None
        self.notes: list[str] = []
        self.begin, self.started = time.time(), time.monotonic()
        self.temporary = tempfile.TemporaryDirectory(
            prefix="grade-", ignore_cleanup_errors=True
        )
        self.folder = self.temporary.name
        self.container = f"spmd-grading-{self.word}" if order.containers else ""
        try:
            command, paths, variables = self._start()
            self.process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=variables,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C reaches the command line alone
            )
        except BaseException:
            self.temporary.cleanup()
            raise
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.orders, self.answers = self.process.stdin, self.process.stdout
        os.set_blocking(self.answers.fileno(), False)
        folder = "" if self.container else self.folder
        data = order.as_data(paths) | {"word": self.word, "folder": folder}
        with contextlib.suppress(OSError):  # it is dead, and that will be seen
            self.orders.write(json.dumps(data).encode() + b"\n")
            self.orders.flush()

    def _start(self) -> tuple[list[str], list[str], dict[str, str]]:
        """(the command, the files as it finds them, its variables)."""
        given = (self.submission, *self.order.releases)
        if self.order.containers is None:
            self.names = {str(path.absolute()): path for path in given}
            command = [sys.executable, "-P", "-c", _WORKER.format(path=search_path())]
            paths = [str(path.absolute()) for path in given]
            return command, paths, environment(self.folder)
        folder = Path(self.folder, "given")
        self.names = put(folder, self.submission, self.order.releases)
        command = self.order.containers.command(
            self.container, folder, self.order.limits
        )
        return command, list(self.names), dict(os.environ)

    def look(self) -> Result | None:
        """Its result, if there is one by now, whatever has become of the process."""
        problem = self._problem()  # first: then all that it has said is there
        while self._take():
            pass
        if self.result is None and problem:
            self.result = self._failed(problem)
        return self.result

    def _take(self) -> bool:
        """Take what has come; False when there is nothing."""
        data = b""
        with contextlib.suppress(OSError):
            data = os.read(self.answers.fileno(), 2**20)
        if not data or self.result is not None:
            return False
        self.received += data
        if len(self.received) > _ANSWER_BYTES:
            self.result = self._failed("its answer was too long")
        *lines, rest = bytes(self.received).split(b"\n")
        self.received[:] = rest
        for line in lines:
            with contextlib.suppress(ValueError, AttributeError, RecursionError):
                message = json.loads(line)
                if message.get("word") == self.word:
                    self.is_read |= bool(message.get("read"))
                    if "result" in message:
                        self.result = from_data(message["result"])
                    continue
            self.last_words = line or self.last_words
        return True

    def _problem(self) -> str:
        """Why no result will come, or "": it may still."""
        doing = "the process that graded it" if self.is_read else "reading it"
        by_itself = ": its own code can do that" if self.is_read else ""
        code = self.process.poll()
        if code is not None and self.container and code > _BY_SIGNAL:
            code = _BY_SIGNAL - code  # as a shell says it
        if code is not None and code < 0:
            if not self.is_read and -code == signal.SIGALRM:
                return f"reading it took more than {READ_S} s"
            names = {one.value: one.name for one in signal.Signals}
            name = names.get(-code, f"signal {-code}")
            return f"{doing} was ended by {name}{by_itself}"
        if code is not None:
            last = self.last_words.decode("utf8", "replace")[-_LAST_WORDS:]
            return f"{doing} ended with code {code}: {last or 'without a word'}"
        if _is_stopped(self.process.pid):
            return f"{doing} was stopped by a signal{by_itself}"
        limit = READ_S + self.order.limits.timeout_s + _MORE_S
        if time.monotonic() > self.started + limit:
            return f"{doing} took more than {limit:g} s"
        return ""

    def _failed(self, why: str) -> Result:
        return Result(str(self.submission), problem=why, none_left=False)

    def end(self, others: set[int]) -> bool:
        """End it and all that is below it; returns whether that is certain."""
        with contextlib.suppress(OSError):
            self.orders.close()  # it ends its own
        if not _is_stopped(self.process.pid):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(_END_S)
        self.process.kill()
        self.process.wait()
        self.answers.close()
        if self.order.containers is not None:
            none_left = self.order.containers.end(self.container)
        else:
            none_left = is_subreaper() and end_children(others)
        self.temporary.cleanup()
        return none_left


def _is_stopped(pid: int) -> bool:
    if not hasattr(os, "waitid"):
        return False
    with contextlib.suppress(OSError):
        how = os.WSTOPPED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, pid, how) is not None
    return False


class Pool:
    """Grades submissions, some at a time; iterate over its `events`.

    Args:
        submissions: the files.
        order: what is asked of each worker.
        jobs: how many run at once.
        put_back: puts back files that no submission may change, and says which were
            changed: those that grading rests on, and those of results.
        should_stop: asked often; when it says so, what runs is ended.
    """

    def __init__(
        self,
        submissions: Sequence[Path],
        order: Order,
        jobs: int = 1,
        put_back: Callable[[], Changed] = lambda: ([], []),
        should_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self.submissions, self.order, self.jobs = submissions, order, jobs
        self.put_back, self.should_stop = put_back, should_stop
        self.running: list[_Worker] = []
        self._alone: collections.deque[int] = collections.deque()
        # A container keeps its own processes and shared memory; the program that
        # starts it has some of its own, which are not to be ended.
        self._clears_up = order.containers is None

    def events(self, indices: Sequence[int]) -> Iterator[Event]:
        """Grade these of the submissions; each gets an event when it has a result."""
        was_subreaper = is_subreaper()
        if HAS_PROC and self._clears_up:
            become_subreaper()
        self._others = children(os.getpid()) if HAS_PROC else set()
        self._memory = SharedMemory()
        try:
            yield from self._events(collections.deque(indices))
        finally:
            for worker in list(self.running):
                self._end(worker)
            self._remove_memory(float("inf"))
            if HAS_PROC:
                become_subreaper(was_subreaper)

    def _events(self, todo: collections.deque[int]) -> Iterator[Event]:
        while (todo or self._alone or self.running) and not self.should_stop():
            while self._may_start(todo):
                index = self._alone.popleft() if self._alone else todo.popleft()
                path = self.submissions[index]
                yield Event(index)
                try:
                    self.running.append(_Worker(index, path, self.order))
                except OSError as error:
                    problem = f"no process could be started for it: {error}"
                    yield Event(index, Result(str(path), problem=problem))
            self._wait()
            for worker in list(self.running):
                result = worker.look()
                if result is not None:
                    result = self._finish(worker, result)
                    if result is not None:
                        yield Event(worker.index, result)

    def _may_start(self, todo: collections.deque[int]) -> bool:
        """Those that are graded alone wait for the others, and the others for them."""
        if self._alone or any(worker.is_shared for worker in self.running):
            return bool(self._alone) and not self.running
        return bool(todo) and len(self.running) < self.jobs

    def _wait(self) -> None:
        with selectors.DefaultSelector() as selector:
            for worker in self.running:
                selector.register(worker.answers, selectors.EVENT_READ)
            selector.select(_TICK_S)

    def _end(self, worker: _Worker) -> bool:
        self.running.remove(worker)
        others = self._others | {other.process.pid for other in self.running}
        return worker.end(others)

    def _finish(self, worker: _Worker, result: Result) -> Result | None:
        """The result with what was left and changed; None if it has to be repeated."""
        none_left = self._end(worker)
        changed, results_changed = self.put_back()
        for one in (worker, *self.running):
            one.notes += [f"while it ran, {what}" for what in results_changed]
        if (changed and self.running) or worker.is_shared:
            # Who it was is not known: grade each of them again, with nobody beside.
            for other in self.running:
                other.is_shared = True
            self._alone.append(worker.index)
            return None
        result = self._as_given(worker, result)
        if changed:
            problem = "while its code ran, " + "; ".join(changed)
            result = Result(result.submission, problem=problem, release=result.release)
        notes = (*worker.notes, *self._left(worker))
        return dataclasses.replace(result.with_notes(*notes), none_left=none_left)

    def _left(self, worker: _Worker) -> list[str]:
        """What it left besides processes, removed as far as it can be."""
        oldest = min((other.begin for other in self.running), default=float("inf"))
        left = self._remove_memory(oldest)
        left = [f"{what} was left and was removed" for what in left]
        if os.path.lexists(worker.folder):
            left.append(f"{worker.folder} was left: it could not be removed")
        return left

    def _remove_memory(self, changed_before: float) -> list[str]:
        return self._memory.remove(changed_before) if self._clears_up else []

    def _as_given(self, worker: _Worker, result: Result) -> Result:
        """Files by the names that they were given by."""
        problem, release = result.problem, result.release
        for there, path in worker.names.items():
            problem = problem.replace(there, str(path))
            if release == there:
                release = str(path)
        return dataclasses.replace(
            result, submission=str(worker.submission), problem=problem, release=release
        )
