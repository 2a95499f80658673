"""What runs in the process of one submission, around its cells.

The parent sends one cell at a time, each with a fresh random word, and believes an
answer only if it repeats that word: what a cell writes into the channel before its
check is sent can't be a result. A check is compiled and run here, not by IPython, whose
hooks a cell may have changed; the package's functions, the builtins and the names that
the release had set are put back before it.
"""

import ast
import contextlib
import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from types import CodeType, TracebackType
from typing import Any

import spmd_helpers
from spmd_helpers._errors import CheckFailed
from spmd_helpers._exercise import exercise, global_names

from .seal import GivenNames, Seal

WORDS = 2000  # the longest message of a check that is kept
_EXTRA = "__spmd_extra_check__"  # what an extra check is wrapped in
_LARGEST_FILE_BYTES = 2**30


def be_a_submission(commands: int, answers: int, lifeline: int) -> None:
    """Obey the parent until it sends no more, or is gone."""
    for fd in (commands, answers, lifeline):
        os.set_inheritable(fd, False)
    threading.Thread(target=_die_with_the_parent, args=(lifeline,), daemon=True).start()
    incoming = os.fdopen(commands, "rb")
    order = json.loads(incoming.readline())
    _limit(order["address_space_bytes"])
    grader, pid, exit_now = _Grader(), os.getpid(), os._exit
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


class _Judge(exercise):
    """The package's own `exercise`; it tells the grader what it told the learner."""

    reached: list[str] = []  # noqa: RUF012  (of one process: exercises judged right)

    def _verdict(
        self, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if isinstance(error, _Open):  # an exercise inside an instructor's check
            return False
        swallowed = super()._verdict(error, traceback)
        if error is None:
            _Judge.reached.append(self.number)
        return swallowed

    def _say_open(self, stub: str, error: BaseException | None) -> bool:
        os.environ["NBGRADER_EXECUTION"] = "grade"
        try:
            return super()._say_open(stub, error)
        except CheckFailed as open_now:
            raise _Open(str(open_now)) from None
        finally:
            os.environ.pop("NBGRADER_EXECUTION", None)


class _ExtraJudge(_Judge):
    """The same for an instructor's check, which has a title and no number."""

    def __init__(self, title: str) -> None:
        self.number = title


class _Grader:
    """Runs cells in IPython's shell and checks beside it."""

    def __init__(self) -> None:
        from IPython.core.interactiveshell import InteractiveShell
        from traitlets.config import Config

        package = spmd_helpers
        for name in package.__all__:  # all of it, before a cell can change it
            getattr(package, name)
        config = Config()
        config.HistoryManager.enabled = False
        config.InteractiveShell.colors = "nocolor"
        self._package = package
        self._shell = InteractiveShell.instance(config=config)
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
            answer = {"error": "KeyboardInterrupt"}
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
        code = _compiled(order["source"], order["title"])
        before, renamed = self._given.put_back(
            global_names(code, "LOAD_NAME", "LOAD_GLOBAL")
        )
        changed = [name for name in (*changed, *renamed) if name not in self._said]
        self._said.update(changed)
        sys.settrace(None)
        sys.setprofile(None)
        _Judge.reached.clear()
        self._package.exercise = _Judge  # type: ignore[misc]  # for this check
        self._names[_EXTRA] = _ExtraJudge
        number = order["number"]
        try:
            exec(code, self._names)
        except KeyboardInterrupt:
            raise
        except _Open as error:
            verdict, words = "open", str(error)
        except CheckFailed as error:
            verdict, words = "wrong", str(error)
        except BaseException as error:
            verdict, words = "wrong", _words(error)
        else:
            verdict, words = "right", f"Exercise {number}: right."
            if number not in _Judge.reached:
                verdict, words = "wrong", "the check ended before it had judged"
        finally:
            self._package.exercise = exercise  # type: ignore[misc]  # its own again
            self._names.pop(_EXTRA, None)
            self._given.give_again(before)
        if order["title"]:
            words = words.removeprefix(f"Exercise {number}, not yet: ")
            words = words.replace(f"Exercise {number}: ", "")
        return {"verdict": verdict, "words": words[:WORDS], "changed": changed[:20]}


def _compiled(source: str, title: str) -> CodeType:
    tree = ast.parse(source)
    if title:
        judge = ast.parse(f"{_EXTRA}({title!r})", mode="eval").body
        tree = ast.Module([ast.With([ast.withitem(judge)], tree.body)], [])
    code: CodeType = compile(ast.fix_missing_locations(tree), "<check>", "exec")
    return code


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
            words = f"{type(error).__name__}: {error.msg} ({line})"
        if isinstance(error, SystemExit):
            words = f"stopped itself: {words}"
    except BaseException:
        words = f"{type(error).__name__}, without words"
    return words[:WORDS]
