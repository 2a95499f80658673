"""`%load_ext spmd_helpers`: below an error that `explain` knows, what it means."""

import contextlib
from typing import TYPE_CHECKING, Any

from .explain import explain, explains_itself

if TYPE_CHECKING:
    from IPython.core.interactiveshell import ExecutionResult, InteractiveShell


def load_ipython_extension(shell: "InteractiveShell") -> None:
    """Show an explanation below the traceback of a sharding error, from now on.

    IPython calls it for `%load_ext spmd_helpers`. The traceback stays as it is; a few
    lines follow where `explain` knows the error, and nothing where it does not. Silent
    are also interrupts, syntax errors, cells that are expected to raise (those that
    a front end runs with the tag `raises-exception`) and this package's own errors,
    which say by themselves what they mean.

    Args:
        shell: the InteractiveShell. To load twice changes nothing.

    Used in the chapters that show errors.
    """
    unload_ipython_extension(shell)
    shell.events.register("post_run_cell", _after_cell)


def unload_ipython_extension(shell: "InteractiveShell") -> None:
    """Show no more explanations; IPython calls it for `%unload_ext spmd_helpers`.

    Args:
        shell: the InteractiveShell.
    """
    with contextlib.suppress(ValueError):  # it was not loaded
        shell.events.unregister("post_run_cell", _after_cell)


def _after_cell(result: "ExecutionResult") -> None:
    """Called by IPython with the ExecutionResult of each cell."""
    try:
        error = result.error_in_exec
        if not isinstance(error, Exception) or isinstance(error, SyntaxError):
            return
        if explains_itself(error) or _is_expected():
            return
        explanation = explain(error)
        if explanation.known:
            from IPython.display import display

            display(explanation)  # type: ignore[no-untyped-call]  # IPython has no type
    except Exception:
        return  # the traceback stands above: whatever fails here must not cover it


def _is_expected() -> bool:
    """Whether the front end said that the running cell may raise."""
    from IPython import get_ipython

    request: dict[str, Any] = getattr(get_ipython(), "get_parent", dict)()
    tags = request.get("metadata", {}).get("tags", ())
    stops = request.get("content", {}).get("stop_on_error", True)
    return "raises-exception" in tags or not stops
