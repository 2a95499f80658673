"""What the asserts of an instructor's own check say of a submission."""

import dis
from types import CodeType

from spmd_exercises._check import Names, Verdict, raised


def verdict_of(code: CodeType, names: Names, error: Exception | None) -> Verdict:
    """The verdict of a check's code, which has run among these global names.

    It is open when a name that the code reads is still `...`, or when a function of
    the notebook has raised a bare `NotImplementedError` itself; else right when it
    ended, and wrong when it raised.
    """
    for name in global_names(code, "LOAD_NAME", "LOAD_GLOBAL"):
        if names.get(name) is ...:
            return Verdict("open", f"it is open: replace the `...` of `{name}`")
    if error is None:
        return Verdict("right", "right")
    stub = _name_of_stub(error, names)
    if stub:
        return Verdict("open", f"it is open: write `{stub}()`", error)
    if isinstance(error, AssertionError):
        return Verdict("wrong", str(error) or "a check without words failed", error)
    return Verdict("wrong", raised(error, names), error)


def global_names(code: CodeType, *operations: str) -> list[str]:
    """The global names of these operations in code and in its inner functions."""
    names = [
        one.argval for one in dis.get_instructions(code) if one.opname in operations
    ]
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names += global_names(constant, *operations)
    return names


def _name_of_stub(error: Exception, names: Names) -> str:
    """The function of the notebook that raised a bare `NotImplementedError`, or ""."""
    if not isinstance(error, NotImplementedError) or error.args:
        return ""
    last = ""
    traceback = error.__traceback__
    while traceback is not None:
        frame, traceback = traceback.tb_frame, traceback.tb_next
        last = frame.f_code.co_name if frame.f_globals is names else ""
    return last
