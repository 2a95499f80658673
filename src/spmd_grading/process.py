"""The process of one submission: it is started, given cells, watched, ended."""

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
from collections.abc import Iterator, Sequence
from typing import Any, Self

import spmd_exercises
import spmd_helpers

from .plan import Step
from .shared_memory import SharedMemory
from .watch import Family

_OWN_FILES = (__file__, spmd_helpers.__file__, spmd_exercises.__file__)
START_S = 60  # to import IPython and the package, on a loaded machine
_GRACE_S = 3  # from the interrupt of a cell to the end of its process
_TICK_S = 0.1
_LAST_READS = 4
_KEPT_BYTES = 4096  # the end of what a submission printed; the rest is read and dropped
_MUCH_BYTES = 10**7  # of output, which is worth a word
_ANSWER_BYTES = 2**20
_PROCESSES = 100
# All that a submission sees of the grader's environment: no keys, no tokens.
_PASS = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "LD_LIBRARY_PATH")
_CHILD = (
    "import sys; fds = [int(fd) for fd in sys.argv.pop().split(',')];"
    " sys.path[:] = {path!r};"
    " from spmd_grading.child import be_a_submission; be_a_submission(*fds)"
)


Message = dict[str, Any]  # an order or an answer, as JSON has it


@dataclasses.dataclass(frozen=True)
class Limits:
    """What one submission may use."""

    timeout_s: float = 300
    memory_bytes: int = 4 * 2**30
    cell_share: float = 0.25  # of the time, for one cell
    is_alone: bool = False  # new shared memory is its own: nothing runs beside it

    @property
    def cell_s(self) -> float:
        """Seconds that one cell may take."""
        return self.timeout_s * self.cell_share


class Ended(Exception):
    """The process is gone, or had to be ended; the reason in words."""


class OutOfTime(Ended):
    """The time of all cells of the submission together is over."""


class Process:
    """The process of a submission, with everything that hangs on it."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.peak_bytes, self.was_forged, self.none_left = 0, False, False
        self.printed_bytes = self.printed_before = self.escaped = 0
        self.printed, self.answered = bytearray(), bytearray()
        self.lines: collections.deque[bytes] = collections.deque()
        self.fds: set[int] = set()
        self.next_tick = 0.0
        self.shared_memory = SharedMemory()

    def __enter__(self) -> Self:
        self.stack = contextlib.ExitStack()
        self.stack.callback(self._close, self.fds)
        try:
            self._open()
        except BaseException:
            self.stack.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.stack.close()

    def _open(self) -> None:
        folder = self.stack.enter_context(
            tempfile.TemporaryDirectory(prefix="grade-", ignore_cleanup_errors=True)
        )
        commands, self.commands = self._pipe()
        self.answers, answers = self._pipe()
        lifeline, _ = self._pipe()  # closes when the grader dies: the child's signal
        self.output, output = self._pipe()
        fds = (commands, answers, lifeline)
        program = _CHILD.format(path=search_path())
        self.family = Family()
        self.child = subprocess.Popen(
            [sys.executable, "-P", "-c", program, ",".join(map(str, fds))],
            cwd=folder,
            env=environment(folder),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=fds,
            start_new_session=True,
        )
        self.family.begins_with(self.child.pid)
        self.stack.callback(self._end)
        self._close({*fds, output})
        self.selector = self.stack.enter_context(selectors.DefaultSelector())
        os.set_blocking(self.commands, False)
        for fd in (self.answers, self.output):
            os.set_blocking(fd, False)
            self.selector.register(fd, selectors.EVENT_READ)

    def _pipe(self) -> tuple[int, int]:
        ends = os.pipe()
        self.fds.update(ends)
        return ends

    def _close(self, fds: set[int]) -> None:
        for fd in fds & self.fds:
            os.close(fd)
        self.fds -= fds

    def _end(self) -> None:
        self.escaped = self.family.escaped()
        self.none_left = self.family.end()
        self.child.wait()

    def start(self, chapters: Sequence[str]) -> None:
        """Have the process ready, with the checks of these chapters loaded."""
        word = secrets.token_hex(16)
        limit = 0 if self.family.is_known else self.limits.memory_bytes
        order: Message = {"word": word, "address_space_bytes": limit}
        self._send(order | {"chapters": [*chapters]})
        try:
            self._answer(word, time.monotonic() + START_S)
        except TimeoutError:
            raise Ended(f"it was not ready after {START_S} s") from None

    def ask(self, step: Step, seconds: float, end: float) -> tuple[Message, bool]:
        """(the answer, whether it came in time); the cell is interrupted if not."""
        word = secrets.token_hex(16)
        order: Message = {"word": word, "kind": step.kind, "source": step.source}
        order.update(number=step.number, names=step.names, title=step.title)
        self.printed_before = self.printed_bytes
        self.printed.clear()
        self._send(order)
        try:
            return self._answer(word, time.monotonic() + seconds, end), True
        except TimeoutError:
            with contextlib.suppress(OSError):
                os.kill(self.child.pid, signal.SIGINT)
        try:
            return self._answer(word, time.monotonic() + _GRACE_S, end), False
        except TimeoutError:
            raise Ended(
                f"took longer than its {seconds:g} s and did not react to an interrupt:"
                f" the process was ended{self.output_in_words()}"
            ) from None

    def printed_by_step(self) -> str:
        """The end of what the last step printed."""
        with contextlib.suppress(Ended):
            for _ in range(_LAST_READS):  # it was flushed before the answer came
                if not self._read(0):
                    break
        return bytes(self.printed).decode("utf8", "replace")

    def output_in_words(self) -> str:
        """That the last cell printed much, as a loop without an end does."""
        printed = self.printed_bytes - self.printed_before
        if printed < _MUCH_BYTES:
            return ""
        return f"; it had printed {printed / 1e6:.0f} MB by then: does its output end?"

    def _send(self, order: Message) -> None:
        data, last = json.dumps(order).encode() + b"\n", time.monotonic() + _GRACE_S
        while data:
            try:
                data = data[os.write(self.commands, data) :]
            except BlockingIOError:
                if time.monotonic() > last:
                    raise Ended("stopped listening: the process was ended") from None
                time.sleep(0.01)
            except OSError:
                return  # it is dead, and _answer will say so

    def _answer(self, word: str, last: float, end: float = float("inf")) -> Message:
        while True:
            dead = self.child.poll() is not None
            got = self._read(0 if dead else _TICK_S)
            for line in self._lines():
                with contextlib.suppress(ValueError, AttributeError, RecursionError):
                    answer: Message = json.loads(line)
                    if answer.get("word") == word:
                        return answer
                self.was_forged = True
            if dead and not got:
                raise Ended(self._how_it_died())
            now = time.monotonic()
            if now > end:
                raise OutOfTime(
                    f"was running when the {self.limits.timeout_s:g} s of the whole "
                    f"submission were over{self.output_in_words()}"
                )
            if now > last:
                raise TimeoutError
            self._watch(now)

    def _read(self, seconds: float) -> bool:
        """Take what has come, of what was printed only its end; False if nothing."""
        ready = self.selector.select(seconds)
        for key, _ in ready:
            data = os.read(key.fd, 2**16)
            if not data:
                self.selector.unregister(key.fd)
                if key.fd == self.answers:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        self.child.wait(1)
                        continue
                    raise Ended("closed the grader's channel: the process was ended")
            elif key.fd == self.output:
                self.printed_bytes += len(data)
                self.printed[:] = (self.printed + data)[-_KEPT_BYTES:]
            else:
                self.answered += data
                if len(self.answered) > _ANSWER_BYTES:
                    raise Ended("flooded the grader's channel: the process was ended")
        return bool(ready)

    def _lines(self) -> Iterator[bytes]:
        *lines, rest = bytes(self.answered).split(b"\n")
        self.answered[:] = rest
        self.lines += lines
        while self.lines:
            yield self.lines.popleft()

    def _how_it_died(self) -> str:
        code = self.child.returncode
        if code < 0:
            names = {one.value: one.name for one in signal.Signals}
            return f"ended the process by {names.get(-code, f'signal {-code}')}"
        printed = bytes(self.printed).decode("utf8", "replace").strip().splitlines()
        last = f"; the last it printed: {printed[-1][:300]}" if code and printed else ""
        return f"ended the process with code {code}{last}"

    def _watch(self, now: float) -> None:
        if now < self.next_tick or not self.family.is_known:
            return
        members = self.family.members()
        used = self.family.memory_bytes(members)
        if self.limits.is_alone:
            used = max(used, self.shared_memory.new_bytes())
        self.peak_bytes = max(self.peak_bytes, used)
        if used > self.limits.memory_bytes:
            raise Ended(
                f"used more than the {self.limits.memory_bytes / 2**30:g} GiB of "
                "memory that a submission may: the process was ended"
                f"{self.output_in_words()}"
            )
        if len(members) > _PROCESSES:
            raise Ended(f"started more than {_PROCESSES} processes: all were ended")
        self.next_tick = time.monotonic() + _TICK_S


def search_path() -> list[str]:
    """Where a child looks for modules: not here, where submissions may be."""
    here = os.getcwd()
    keep = [os.path.abspath(p) for p in sys.path if p and os.path.abspath(p) != here]
    needed = {os.path.dirname(os.path.dirname(os.path.abspath(f))) for f in _OWN_FILES}
    return [here, *keep] if here in needed else keep


def environment(folder: str) -> dict[str, str]:
    """The variables of a submission, with this folder for what is temporary."""
    passed = {k: v for k, v in os.environ.items() if k in _PASS}
    return passed | {
        "TMPDIR": folder,
        "IPYTHONDIR": folder,
        "JAX_PLATFORMS": "cpu",  # the same verdict on every machine
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "MPLBACKEND": "agg",
        "PIP_PYTHON": os.devnull,  # no `!pip install`: it would change others' Python
        "COLUMNS": "80",
        "PYTHONWARNINGS": "ignore",
    }
