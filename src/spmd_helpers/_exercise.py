"""An exercise's check: open, right, or wrong with a reason; never a riddle."""

import dis
import os
import sys
from types import CodeType, FrameType, TracebackType

from ._errors import CheckFailed, NotUnderstood

_NOTHING = object()  # in place of a name that is not there


class exercise:  # in lower case, as it is used: `with spmd.exercise("1.2"):`
    """Judge the asserts in the `with` block as one exercise.

    - **Open.** The reader has not begun: a name that the block uses is still
      `...`, or a function defined in the notebook raised `NotImplementedError`
      itself, without a word. The block prints that the exercise is open and
      raises nothing, so that "Run all" on an untouched notebook goes through.
      While nbgrader grades (it sets `NBGRADER_EXECUTION`), open is failed.
    - **Right.** The block ends: one line says so.
    - **Wrong.** An assert fails: `CheckFailed` with the assert's own words,
      shown without a traceback. Any other exception is the answer's own and is
      passed on with a note that says which exercise it stopped, and that asks
      for a forgotten `return` where Python complains of a None.

    JAX raises `NotImplementedError` too; from inside JAX it is a wrong answer,
    not an open exercise.

    >>> answer = 2 + 3
    >>> with exercise("0.1"):
    ...     assert answer == 5, f"2 + 3 is not {answer}"
    Exercise 0.1: right.
    >>> answer = ...
    >>> with exercise("0.1"):
    ...     assert answer == 5, f"2 + 3 is not {answer}"
    Exercise 0.1 is open: replace the `...` above, then run this cell.

    Args:
        number: chapter and exercise, as a text: `"2.1"`.

    Raises:
        CheckFailed: on a wrong answer, and on an open one under nbgrader.
        NotUnderstood: when `number` is not of the form chapter.exercise.

    Used in every chapter.
    """

    def __init__(self, number: str) -> None:
        parts = number.split(".") if isinstance(number, str) else []
        if len(parts) != 2 or not all(part.isdigit() for part in parts):
            raise NotUnderstood(
                f"exercise(number={number!r}): write the chapter and the exercise "
                'as a text with one point, like exercise("2.1")'
            )
        self.number = number

    def __enter__(self) -> "exercise":
        caller = sys._getframe(1)
        self._globals, self._code = caller.f_globals, caller.f_code
        own = global_names(self._code, "STORE_NAME", "STORE_GLOBAL")
        self._before = {name: self._globals.get(name, _NOTHING) for name in own}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        try:
            return self._verdict(error, traceback)
        finally:
            self._forget()

    def _forget(self) -> None:
        """What the check named goes: a later answer must not lean on it."""
        for name, value in self._before.items():
            if value is _NOTHING:
                self._globals.pop(name, None)
            else:
                self._globals[name] = value

    def _verdict(
        self, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if error is not None and not isinstance(error, Exception):
            return False  # an interrupt, an exit: not a verdict
        stub = self._open_stub(error, traceback)
        if stub is not None:
            return self._say_open(stub, error)
        if error is None:
            print(f"Exercise {self.number}: right.")
            return False
        frame = _innermost(traceback)
        here = frame is not None and frame.f_code is self._code
        own_words = isinstance(error, CheckFailed) or (
            here and isinstance(error, AssertionError)
        )
        if own_words:
            words = str(error) or "a check without words failed"
            raise CheckFailed(f"Exercise {self.number}, not yet: {words}") from None
        if here and isinstance(error, NameError):
            raise CheckFailed(
                f"Exercise {self.number}, not yet: `{error.name}` is not there. Run"
                " the cells above first, the one with your answer too."
            ) from None
        hint = " A None came: is a `return` missing?" if _is_of_none(error) else ""
        error.add_note(
            f"Exercise {self.number}, not yet: your answer raised "
            f"{type(error).__name__} while it was checked.{hint}"
        )
        return False

    def _open_stub(
        self, error: Exception | None, traceback: TracebackType | None
    ) -> str | None:
        """What is still to be written: a name, with () if a function; None if done."""
        for name in global_names(self._code, "LOAD_NAME", "LOAD_GLOBAL"):
            if self._globals.get(name) is ...:
                return name
        if isinstance(error, NotImplementedError) and not error.args:
            frame = _innermost(traceback)
            if frame is not None and frame.f_globals is self._globals:
                own = frame.f_code is not self._code
                return f"{frame.f_code.co_name}()" if own else None
        return None

    def _say_open(self, stub: str, error: BaseException | None) -> bool:
        todo = f"write `{stub}`" if stub.endswith("()") else "replace the `...`"
        words = f"Exercise {self.number} is open: {todo} above, then run this cell."
        if "NBGRADER_EXECUTION" in os.environ:
            raise CheckFailed(words) from None
        print(words)
        return error is not None


def global_names(code: CodeType, *operations: str) -> list[str]:
    """The global names of these operations in code and in its inner functions."""
    names = [
        one.argval for one in dis.get_instructions(code) if one.opname in operations
    ]
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names += global_names(constant, *operations)
    return names


def _is_of_none(error: Exception) -> bool:
    """Whether Python complains of a None, as it does where a function returned none."""
    return isinstance(error, TypeError | AttributeError) and "NoneType" in str(error)


def _innermost(traceback: TracebackType | None) -> FrameType | None:
    """The frame in which an error was raised; None for an error without traceback."""
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    return None if traceback is None else traceback.tb_frame
