"""Grade submissions without nbgrader: `python -m spmd_grading NOTEBOOK ...`.

It runs students' code. Each submission is graded by a process of its own, which runs
its code in another, with a limit of time, of memory and of output, in its own process
group and temporary folder, with few of your environment's variables. One that hangs,
dies, exhausts memory, prints a gigabyte, or stops or kills its parent costs only
itself. On Linux all processes that it started are ended, and new shared memory that no
process uses is removed; elsewhere only its process group is ended. A file of over
64 MiB, 2,000 code cells or 1 MiB of code is not read.

The results are written after each submission. When you stop it (Ctrl-C, SIGTERM), it
keeps them and names what is open; --resume goes on.

It does NOT keep that code from your files or the network, and as checks and answers
share one process, a determined cheater can get points; code that looks for the command
line's own process can stop it. Submissions, releases, the results, the packages
spmd_helpers, spmd_exercises and spmd_grading, and what Python runs when it starts are
looked at after each submission: what was changed is put back, the changed file stays
beside it under another name, and it is said. Other files are not looked at. For people
you don't trust use --container, and read what you pay with marks.

What runs is the release notebook, with the answers of the submission put in: checks,
set-up cell and given cells are always the release's. Changed checks are replaced, given
cells that somebody changed or deleted run as they were, and it is said. An answer is
found by nbgrader's grade id, or, if a tool has dropped the metadata, by the exercise
numbers, cell ids and names. What is not found is reported as not found, never as 0.

Used by instructors.
"""

import argparse
import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

from .call import STATE, Call, say
from .process import Limits
from .submission import CannotGrade

_SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")
_EXTRA_HELP = (
    "your own hidden tests: a Python file of pieces `# %%%% [2 points] What it asks`, "
    "or a notebook whose code cells begin with that line; they run after the last "
    "cell, with the submission's names, for every submission of this call, and each is "
    "right when it runs to its end"
)


def main(arguments: list[str] | None = None) -> int:
    """The command line; `arguments` are those of the process unless given.

    Returns:
        0 when all was graded, whatever the grades; 2 when something couldn't be;
        130 when it was interrupted.
    """
    options = _options(arguments)
    try:
        if not hasattr(os, "killpg"):
            raise CannotGrade("grading needs Linux or macOS (on Windows: use WSL)")
        with stopped_by_signals() as stop:
            return Call(options, stop).run()
    except CannotGrade as error:
        say(str(error))
        return 2


@contextlib.contextmanager
def stopped_by_signals() -> Iterator[Callable[[], bool]]:
    """Ask whether a signal has come; also one that was ignored at the start.

    A background job of a shell has SIGINT ignored. SIGHUP stays ignored, as nohup
    wants it.
    """
    came: list[int] = []
    before = {}
    for name in _SIGNALS:
        one = getattr(signal, name)
        if name != "SIGHUP" or signal.getsignal(one) != signal.SIG_IGN:
            before[one] = signal.signal(one, lambda number, _: came.append(number))
    try:
        yield lambda: bool(came)
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m spmd_grading",
        description=__doc__.split("\n\n", 1)[1].removesuffix("Used by instructors.\n"),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Ends with 0 when all was graded, whatever the grades, else with 2.",
    )
    add = parser.add_argument
    add("submission", nargs="+", type=Path, help="a learner's notebook")
    add(
        "--release",
        type=Path,
        help="the notebook given out, or a folder with it (default: notebooks/ here or "
        "above, or beside the package in a clone)",
    )
    add(
        "--timeout-s",
        type=_above_0,
        default=Limits.timeout_s,
        help="for one submission; one cell may take a quarter (default: %(default)s)",
    )
    add(
        "--memory-gib",
        type=_above_0,
        default=Limits.memory_bytes / 2**30,
        help="for one submission with all its processes (default: %(default)s)",
    )
    add("--junit", type=Path, metavar="FILE", help="write JUnit XML")
    add(
        "--gradescope",
        type=Path,
        metavar="FILE",
        help="write Gradescope's results.json: all submissions of this call are one "
        "learner's",
    )
    add(
        "--csv",
        type=Path,
        metavar="FILE",
        help="write a row for each exercise, and for each file one with its total, "
        "its notes, and why it was not graded",
    )
    add(
        "--resume",
        action="store_true",
        help="go on with an earlier call that named the same FILE: what it has graded "
        "is not graded again, unless the file, the release or the extra checks have "
        f"changed; the state is in FILE{STATE}, of the first of csv, junit, "
        "gradescope",
    )
    add(
        "--jobs",
        type=_positive_integer,
        default=1,
        metavar="N",
        help="grade N at once, each with its own limits (default: %(default)s)",
    )
    add(
        "--container",
        metavar="IMAGE",
        help="grade each submission in a container of its own, made of this image, "
        "without a network, as a user without rights",
    )
    add(
        "--runtime",
        default="podman",
        metavar="PROGRAM",
        help="what makes the containers: podman or docker (default: %(default)s)",
    )
    add("--extra-checks", type=Path, metavar="FILE", help=_EXTRA_HELP)
    return parser.parse_args(arguments)


def _positive_integer(text: str) -> int:
    value = _above_0(text)
    if value != int(value):
        raise argparse.ArgumentTypeError(f"{text} is not a whole number")
    return int(value)


def _above_0(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a number above 0")
    return value
