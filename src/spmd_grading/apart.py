"""Grades one submission for a caller that can't be its grader, such as nbgrader.

The caller may be a server with children of its own, which a grader would end. So a
process of its own does what the command line does for each submission: it starts the
worker, ends what is left, and looks at the files that no submission may change.
"""

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from .call import packages
from .grade import stopped_by_signals
from .guarded import Guarded, startup_folders
from .pool import Order, Pool
from .process import Limits, search_path
from .reaper import be_private
from .result import Result, as_data, from_data
from .submission import CannotGrade

_PROGRAM = "import sys; sys.path[:] = {path!r}; from spmd_grading.apart import main; "
_PROGRAM += "main()"
_LAST_WORDS = 300


def grade_apart(
    submission: Path, release: Path, limits: Limits, guarded: Iterable[Path]
) -> Result:
    """Grade a submission against one release, in a process of its own.

    Args:
        submission: a learner's notebook.
        release: the notebook that it answers; its checks are used.
        limits: what the submission may use.
        guarded: more files that it may not change; changed ones are put back.

    Returns:
        A `Result`, with what each step printed.

    Raises:
        CannotGrade: when the process was ended before it had a result.
    """
    order = {
        "submission": os.path.abspath(submission),
        "release": os.path.abspath(release),
        "limits": dataclasses.asdict(limits),
        "guarded": [os.path.abspath(path) for path in guarded],
    }
    done = subprocess.run(
        [sys.executable, "-P", "-c", _PROGRAM.format(path=search_path())],
        input=json.dumps(order).encode(),
        capture_output=True,
    )
    try:
        return from_data(json.loads(done.stdout.splitlines()[-1]))
    except (ValueError, IndexError):
        said = done.stderr.decode("utf8", "replace").strip()[-_LAST_WORDS:]
        raise CannotGrade(
            f"{submission} was NOT graded: the process that grades was ended "
            f"({done.returncode}); its own code can do that. {said}"
        ) from None


def main() -> None:
    """Take one order from standard input, write the result."""
    sys.dont_write_bytecode = True
    be_private()
    order = json.load(sys.stdin)
    submission, release = Path(order["submission"]), Path(order["release"])
    named = [submission, release, *map(Path, order["guarded"])]
    guarded = Guarded(named, packages(), startup_folders(sys.path))
    grading = Order((release,), Limits(**order["limits"]))
    with stopped_by_signals() as stop:
        pool = Pool(
            [submission],
            grading,
            put_back=lambda: (guarded.put_back(), []),
            should_stop=stop,
        )
        for event in pool.events([0]):
            if event.result is not None:
                print(json.dumps(as_data(event.result)), flush=True)
