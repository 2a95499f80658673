"""Grades one submission, in this process and the one that it starts."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

from .plan import Plan, Step, make_plan
from .process import Limits
from .result import Result, Row
from .run import Ran, run
from .submission import CannotGrade

_LONGEST_NOTE = 2000


def grade(
    submission: Path,
    releases: list[Path],
    limits: Limits,
    extra: tuple[Step, ...] = (),
    when_read: Callable[[], None] = lambda: None,
) -> Result:
    """Grade one submission; what can't be graded is in the result, not raised.

    Args:
        submission: a learner's notebook.
        releases: the notebooks given out.
        limits: what its code may use.
        extra: the steps of an instructor's own checks.
        when_read: called after the file was read and before anything of it runs.
    """
    try:
        plan = make_plan(submission, releases)
    except CannotGrade as error:
        return Result(str(submission), problem=str(error), none_left=True)
    when_read()
    ran = run(plan, limits, extra)
    wanted = [(e.number, e.points, False) for e in plan.exercises]
    wanted += [(step.title, step.points, True) for step in extra if step.title]
    return Result(
        submission=str(submission),
        rows=tuple(_row(plan, ran, *one) for one in wanted),
        notes=tuple(note[:_LONGEST_NOTE] for note in (*plan.notes, *ran.notes)),
        extra_notes=tuple(note[:_LONGEST_NOTE] for note in ran.extra_notes),
        problem=ran.problem,
        release=str(plan.release),
        seconds=ran.seconds,
        peak_bytes=ran.peak_bytes,
        none_left=ran.none_left,
        printed=tuple(
            ran.printed.get(i, "") for i in range(len(plan.steps) + len(extra))
        ),
    )


def _row(plan: Plan, ran: Ran, name: str, of: float, is_extra: bool) -> Row:
    verdict = ran.verdicts.get(name)
    if name in plan.missing:
        row = Row(name, None, of, "not found", plan.missing[name])
    elif verdict is None:
        why = ran.problem or "the submission was over before it: see the notes"
        row = Row(name, None, of, "not reached", f"not reached: {why}")
    else:
        points = {"right": of, "not judged": None}.get(verdict.verdict, 0)
        row = Row(name, points, of, verdict.verdict, verdict.words, verdict.seconds)
    return dataclasses.replace(row, extra=is_extra)
