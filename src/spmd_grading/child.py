"""What runs in the process of one submission, around its cells.

The parent sends one cell at a time, each with a fresh random word, and believes an
answer only if it repeats that word: what a cell writes into the channel before its
check is sent can't be a result. A check is compiled and run here, not by IPython, whose
hooks a cell may have changed; the package's functions, the builtins and the names that
the release had set are put back before it.
"""

import contextlib
import importlib
import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from types import CodeType
from typing import Any

import spmd_helpers
from spmd_exercises import CheckFailed
from spmd_exercises._check import Check

from .block import global_names, verdict_of
from .seal import GivenNames, Seal

WORDS = 2000  # the longest message of a check that is kept
_LARGEST_FILE_BYTES = 2**30


def be_a_submission(commands: int, answers: int, lifeline: int) -> None:
    """Obey the parent until it sends no more, or is gone."""
    for fd in (commands, answers, lifeline):
        os.set_inheritable(fd, False)
    threading.Thread(target=_die_with_the_parent, args=(lifeline,), daemon=True).start()
    incoming = os.fdopen(commands, "rb")
    order = json.loads(incoming.readline())
    _limit(order["address_space_bytes"])
    grader, pid, exit_now = _Grader(order["chapters"]), os.getpid(), os._exit
    write, dumps, loads, getpid = os.write, json.dumps, json.loads, os.getpid
    answer, word = {"ready": True}, order["word"]
    while True:
        data = dumps(answer | {"word": word}).encode() + b"\n"
        while data:
            data = data[write(answers, data) :]
        line = incoming.readline()
        if not line:
            exit_now(0)
        order = loads(line)
        word = order["word"]
        answer = grader.do(order)
        if getpid() != pid:  # a fork of the submission has come back from the cell
            exit_now(0)


def _die_with_the_parent(lifeline: int) -> None:
    while os.read(lifeline, 1):
        pass
    os.killpg(0, signal.SIGKILL)


def _limit(address_space_bytes: int) -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(
            resource.RLIMIT_FSIZE, (_LARGEST_FILE_BYTES, _LARGEST_FILE_BYTES)
        )
    if address_space_bytes:  # where nobody can watch what is used
        for name in ("RLIMIT_AS", "RLIMIT_DATA"):
            with contextlib.suppress(ValueError, OSError, AttributeError):
                resource.setrlimit(getattr(resource, name), (address_space_bytes,) * 2)
    with (  # if the machine's memory runs out, this process goes first
        contextlib.suppress(OSError),
        open("/proc/self/oom_score_adj", "w") as score,
    ):
        score.write("1000")


Message = dict[str, Any]  # an order or an answer, as JSON has it


class _Open(CheckFailed):
    """The exercise is not begun."""


class _Recorder(Check):
    """The book's own `check`, which keeps what it has judged right."""

    def __init__(self) -> None:
        self.right: set[str] = set()

    def __call__(self, number: str, /, *answers: object) -> None:
        verdict = self.judge(number, answers, sys._getframe(1).f_globals)
        if verdict.kind == "open":
            raise _Open(verdict.words)
        if verdict.kind == "wrong":
            raise CheckFailed(verdict.words) from verdict.cause
        self.right.add(number)


class _Grader:
    """Runs cells in IPython's shell and checks beside it."""

    def __init__(self, chapters: list[str]) -> None:
        from IPython.core.interactiveshell import InteractiveShell
        from traitlets.config import Config

        package = spmd_helpers
        for name in package.__all__:  # all of it, before a cell can change it
            getattr(package, name)
        for chapter in chapters:
            with contextlib.suppress(ImportError):  # of the instructor's own asserts
                importlib.import_module(f"spmd_exercises.ch{int(chapter):02}")
        config = Config()
        config.HistoryManager.enabled = False
        config.InteractiveShell.colors = "nocolor"
        self._shell = InteractiveShell.instance(config=config)
        # It would keep all that a cell prints, in memory.
        vars(self._shell)["_tee"] = lambda channel: contextlib.nullcontext()
        self._run_cell: Callable[..., Any] = self._shell.run_cell
        self._transform: Callable[[str], str] = self._shell.transform_cell
        self._names = self._shell.user_ns
        self._given = GivenNames(self._names)
        self._seal = Seal()
        self._seal.take()
        self._said: set[str] = set()  # each change is reported once

    def do(self, order: Message) -> Message:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            answer: Message = getattr(self, f"do_{order['kind']}")(order)
            self._flush()
        except KeyboardInterrupt:  # of the parent: the cell has had its time
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            answer = {"error": "KeyboardInterrupt"}
            self._flush()  # what it printed is not of the next cell
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        return answer

    def _flush(self) -> None:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()

    def do_given(self, order: Message) -> Message:
        self._given.belong_to_author(order["names"])
        error = self._play(order["source"])
        if not error:
            with contextlib.suppress(SyntaxError, ValueError):
                code = compile(self._transform(order["source"]), "given", "exec")
                if not order["names"]:
                    self._given.set_by_release(_stored(code))
        self._seal.take()
        return {"error": error}

    def do_own(self, order: Message) -> Message:
        self._given.belong_to_author(order["names"])
        return {"error": self._play(order["source"])}

    def _play(self, source: str) -> str:
        """Run a cell as a notebook does; returns the error that ended it, in words."""
        result = self._run_cell(source, store_history=False)
        error = result.error_before_exec or result.error_in_exec
        if isinstance(error, KeyboardInterrupt):
            raise KeyboardInterrupt
        return "" if error is None else _words(error)

    def do_check(self, order: Message) -> Message:
        changed = self._seal.restore()
        code: CodeType = compile(order["source"], "<check>", "exec")
        before, renamed = self._given.put_back(
            global_names(code, "LOAD_NAME", "LOAD_GLOBAL")
        )
        changed += renamed
        sys.settrace(None)
        sys.setprofile(None)
        recorder = _Recorder()
        theirs = self._names.get("check")
        self._names["check"] = recorder
        try:
            verdict, words = self._run_check(code, order, recorder)
        finally:
            if self._names.get("check") is recorder:
                self._names["check"] = theirs
            self._given.give_again(before)
        meanwhile = self._seal.restore()
        if meanwhile and verdict == "right":
            verdict, words = "wrong", "the answer changed what judged it"
        new = [one for one in (*changed, *meanwhile) if one not in self._said]
        self._said.update(new)
        return {"verdict": verdict, "words": words[:WORDS], "changed": new[:20]}

    def _run_check(
        self, code: CodeType, order: Message, recorder: _Recorder
    ) -> tuple[str, str]:
        """(the verdict, what the learner is told)."""
        number, is_own = order["number"], not order["title"]
        error: Exception | None = None
        try:
            exec(code, self._names)
        except KeyboardInterrupt:
            raise
        except _Open as open_now:
            return "open", str(open_now)
        except CheckFailed as failed:
            return "wrong", str(failed)
        except Exception as raised:
            error = raised
            if is_own:  # a name that is not there
                return "wrong", _words(raised)
        except BaseException as end:
            return "wrong", _words(end)
        if is_own:
            if number in recorder.right:
                return "right", f"Exercise {number}: right."
            return "wrong", "the check ended before it had judged"
        verdict = verdict_of(code, self._names, error)
        return verdict.kind, verdict.words


def _stored(code: CodeType) -> set[str]:
    """The names that a cell sets at its top level."""
    import dis

    stores = ("STORE_NAME", "STORE_GLOBAL")
    return {i.argval for i in dis.get_instructions(code) if i.opname in stores}


def _words(error: BaseException) -> str:
    """The class, the message and the notes of an error; the answer's own may raise."""
    try:
        words = "".join(traceback.format_exception_only(error)).strip()
        if isinstance(error, SyntaxError) and error.text:
            line = f"line {error.lineno}: {error.text.strip()}"
            name = type(error).__name__  # Python 3.13 has a private one
            name = "SyntaxError" if name.startswith("_") else name
            words = f"{name}: {error.msg} ({line})"
        if isinstance(error, SystemExit):
            words = f"stopped itself: {words}"
    except BaseException:
        words = f"{type(error).__name__}, without words"
    return words[:WORDS]
