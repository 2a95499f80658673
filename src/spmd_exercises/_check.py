"""One line under each exercise: `check("2.1", answer)`."""

import dataclasses
import functools
import importlib
import inspect
import linecache
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import CodeType, FrameType, TracebackType
from typing import Any, Literal

import spmd_helpers
from spmd_helpers import CheckFailed, NotUnderstood

_NUMBER = re.compile(r"([1-9]\d?)\.([1-9]\d?)")
_WORDS = 1500  # of the message of an exception that an answer raised
_LEAVES = 4  # of a tree, in a message with a line for each
_LEAF = re.compile(r"(\[[^\]]*\]|\.\w+)+: ")  # how such a line begins

Names = Mapping[str, object]  # the global names of a notebook


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What a check says of an answer.

    `kind` is right, open (nothing is written yet) or wrong; `cause` is the exception
    that a wrong answer raised, if it raised one.
    """

    kind: Literal["right", "open", "wrong"]
    words: str
    cause: Exception | None = None


class Check:
    """Judge the answers to an exercise, handed over by their names.

    - **Open.** An answer is still `...`, or its function raises a bare
      `NotImplementedError` itself: one line says so, and nothing is raised, so
      that "Run all" on an untouched notebook goes through. While nbgrader grades
      (it sets `NBGRADER_EXECUTION`), open is failed.
    - **Right.** One line says so.
    - **Wrong.** `CheckFailed`, shown without a traceback, with what was seen,
      what was expected, and a next thought. An exception that the answer
      raised is its cause, and its message names the line.

    A check takes from the notebook only what it is handed: it makes its own
    meshes and data. `check.source("2.1")` prints its code.

    >>> check("6.2", ...)
    Exercise 6.2 is open: replace the `...` above, then run this cell.

    Args:
        number: chapter and exercise, as text: `"2.1"`.
        answers: the answers, in the order of the notebook's line.

    Raises:
        CheckFailed: on a wrong answer; on an open one under nbgrader; when the
            notebook and this package are of different versions.
        NotUnderstood: when `number` is not of the form chapter.exercise.
    """

    def __call__(self, number: str, /, *answers: object) -> None:
        """Judge the answers to exercise `number`."""
        verdict = self.judge(number, answers, sys._getframe(1).f_globals)
        if verdict.kind == "wrong" or (
            verdict.kind == "open" and "NBGRADER_EXECUTION" in os.environ
        ):
            raise CheckFailed(verdict.words) from verdict.cause
        print(verdict.words)

    def judge(self, number: str, answers: tuple[object, ...], names: Names) -> Verdict:
        """The verdict alone; `names` are the global names of the notebook."""
        function = _function(number, answers)
        if any(answer is ... for answer in answers):
            return _open(number, "replace the `...`")
        try:
            function(*answers)
        except Exception as error:
            return _verdict(number, error, answers, names)
        return Verdict("right", f"Exercise {number}: right.")

    def source(self, number: str) -> None:
        """Print the code of the check of exercise `number`."""
        print(inspect.getsource(_function(number)).rstrip())

    def __repr__(self) -> str:
        return 'check("2.1", answer): judges an exercise of the book'


check = Check()


def _function(
    number: str, answers: tuple[object, ...] | None = None
) -> Callable[..., None]:
    """The check of an exercise, which takes as many answers as there are.

    Raises:
        NotUnderstood: when `number` is no number of an exercise.
        CheckFailed: when this package has no such exercise, or another one.
    """
    match = _NUMBER.fullmatch(number) if isinstance(number, str) else None
    if match is None:
        raise NotUnderstood(
            f"check(number={number!r}): write the chapter and the exercise as text"
            ' with one point, like check("2.1", answer)'
        )
    chapter, exercise = match.groups()
    name = f"spmd_exercises.ch{int(chapter):02}"
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        module = None
    function: Callable[..., None] | None = getattr(
        module, f"check_{chapter}_{exercise}", None
    )
    if function is None:
        raise _other_version(number, "has no such exercise")
    if answers is not None:
        takes = inspect.signature(function)
        try:
            takes.bind(*answers)
        except TypeError:
            wanted = ", ".join(takes.parameters)
            why = f"takes ({wanted}) here, and the notebook hands over {len(answers)}"
            raise _other_version(number, why) from None
    return function


def _other_version(number: str, why: str) -> CheckFailed:
    return CheckFailed(
        f"Exercise {number}: spmd_helpers {spmd_helpers.__version__} {why}. The"
        " notebook and the package are of different versions: take both from the same"
        ' release (page "Install and run"), then restart the kernel.'
    )


def _open(number: str, todo: str) -> Verdict:
    words = f"Exercise {number} is open: {todo} above, then run this cell."
    return Verdict("open", words)


def _verdict(
    number: str, error: Exception, answers: tuple[object, ...], names: Names
) -> Verdict:
    """What an exception says of the answers: it was raised by them or by the check."""
    frames = list(_frames(error.__traceback__))
    last = frames[-1][0] if frames else None
    bare = isinstance(error, NotImplementedError) and not error.args
    if bare and last is not None and last.f_globals is names:
        stub = f"`{last.f_code.co_name}()`"
        if last.f_code in set(_codes(answers)):
            return _open(number, f"write {stub}")
        words = f"your answer calls {stub}, which is not written yet"
    elif isinstance(error, CheckFailed):
        return Verdict("wrong", f"Exercise {number}, not yet: {_shortened(error)}")
    else:
        words = raised(error, names)
    return Verdict("wrong", f"Exercise {number}, not yet: {words}", error)


def raised(error: Exception, names: Names) -> str:
    """An exception in words, with the line of the notebook that raised it."""
    frames = _frames(error.__traceback__)
    text = str(error).strip()
    text = text if len(text) <= _WORDS else f"{text[:_WORDS]} …"
    words = f"{type(error).__name__}: {text}" if text else type(error).__name__
    own = [(frame, line) for frame, line in frames if frame.f_globals is names]
    if own:
        frame, line = own[-1]
        code = linecache.getline(frame.f_code.co_filename, line).strip()
        at = f"line {line}" + (f", `{code}`" if code else "")
        in_what = f"`{frame.f_code.co_name}` ({at})"
    else:
        in_what = "what you wrote"
    if not own and _is_of_none(error):
        words = f"{words.rstrip('.')}. Did it return None: is a `return` missing?"
    return f"{in_what} raised {words}"


def _shortened(error: CheckFailed) -> str:
    """Its message, with a few of the leaves of a tree that it lists."""
    lines = str(error).splitlines()
    leaves = [at for at, line in enumerate(lines) if _LEAF.match(line)]
    if len(leaves) > _LEAVES + 1:
        first, last = leaves[_LEAVES], leaves[-1]
        lines[first : last + 1] = [f"… and {len(leaves) - _LEAVES} more"]
    return "\n".join(lines)


def _is_of_none(error: Exception) -> bool:
    """Whether Python complains of a None, which an answer may have returned."""
    if not isinstance(error, TypeError | AttributeError):
        return False
    return "NoneType" in str(error) or "Output was None" in str(error)


def _frames(traceback: TracebackType | None) -> Iterator[tuple[FrameType, int]]:
    while traceback is not None:
        yield traceback.tb_frame, traceback.tb_lineno
        traceback = traceback.tb_next


def _codes(answers: Iterable[object]) -> Iterator[CodeType]:
    """The code of the functions among the answers, through jit and partial."""
    for answer in answers:
        yield from _codes_of(answer, depth=4)


def _codes_of(answer: Any, depth: int) -> Iterator[CodeType]:
    if depth == 0:
        return
    code = getattr(answer, "__code__", None)
    if isinstance(code, CodeType):
        yield code
    inner: list[object] = []
    if isinstance(answer, functools.partial):
        inner.append(answer.func)
    elif isinstance(answer, type):
        inner += vars(answer).values()
    elif isinstance(answer, Mapping):
        inner += answer.values()
    elif isinstance(answer, list | tuple):
        inner += answer
    elif hasattr(answer, "__wrapped__"):
        inner.append(answer.__wrapped__)
    for one in inner:
        yield from _codes_of(one, depth - 1)
