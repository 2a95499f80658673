"""Grade submissions without nbgrader: `python -m spmd_grading NOTEBOOK ...`.

It runs students' code. Each submission runs in a process of its own, with a limit of
time, of memory and of output, in its own process group and temporary folder, with few
of your environment's variables; one that hangs, dies, exhausts memory or prints a
gigabyte costs only itself. It does NOT keep that code from your files or the network,
and as checks and answers share one process, a determined cheater can get points. Grade
people you don't trust inside a container, and read what you pay with marks.

What runs is the release notebook, with the answers of the submission put in: checks,
set-up cell and given cells are always the release's. Changed checks are replaced, given
cells that somebody changed or deleted run as they were, and it is said. An answer is
found by nbgrader's grade id, or, if a tool has dropped the metadata, by the exercise
numbers, cell ids and names. What is not found is reported as not found, never as 0.

Used by instructors.
"""

import argparse
import dataclasses
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from .extra import read_extra_checks
from .plan import Step, make_plan
from .process import Limits
from .report import Result, Row, clean, to_csv, to_gradescope, to_junit, to_table
from .run import run
from .submission import CannotGrade, exercises_of, read_cells
from .watch import HAS_PROC

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
        releases = find_releases(options.release)
        extra = read_extra_checks(options.extra_checks) if options.extra_checks else ()
        _require_places(options)
        if options.gradescope:
            _require_one_learner(options.submission, releases)
    except CannotGrade as error:
        print(f"grade: {error}", file=sys.stderr)
        return 2
    limits = Limits(options.timeout_s, int(options.memory_gib * 2**30))
    results: list[Result] = []
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        for number, path in enumerate(options.submission, 1):
            results.append(grade(path, releases, limits, extra))
            progress = f"{number} of {len(options.submission)} done"
            print(f"grade: {progress}: {clean(str(path))}", file=sys.stderr, flush=True)
    except KeyboardInterrupt:
        print(to_table(results))
        print("grade: interrupted; no file was written", file=sys.stderr)
        return 130
    finally:
        signal.signal(signal.SIGTERM, before)
    print(to_table(results))
    if not HAS_PROC:
        print(
            "This system has no /proc: memory is limited by setrlimit, if at all, and "
            "a process that left its group may live on."
        )
    written = _write(results, options)
    return 0 if written and all(result.graded for result in results) else 2


def grade(
    submission: Path, releases: list[Path], limits: Limits, extra: tuple[Step, ...] = ()
) -> Result:
    """Grade one submission; what can't be graded is in the result, not raised."""
    try:
        plan = make_plan(submission, releases)
    except CannotGrade as error:
        return Result(str(submission), problem=str(error))
    ran = run(plan, limits, extra)
    rows = []
    wanted = [(e.number, e.points, False) for e in plan.exercises]
    wanted += [(step.title, step.points, True) for step in extra if step.title]
    for name, of, is_extra in wanted:
        verdict = ran.verdicts.get(name)
        if name in plan.missing:
            row = Row(name, None, of, "not found", plan.missing[name])
        elif verdict is None:
            why = ran.problem or "the submission was over before it: see the notes"
            row = Row(name, None, of, "not reached", f"not reached: {why}")
        else:
            points = {"right": of, "not judged": None}.get(verdict.verdict, 0)
            row = Row(name, points, of, verdict.verdict, verdict.words, verdict.seconds)
        rows.append(dataclasses.replace(row, extra=is_extra))
    return Result(
        submission=str(submission),
        rows=tuple(rows),
        notes=(*plan.notes, *ran.notes),
        problem=ran.problem,
        release=str(plan.release),
        seconds=ran.seconds,
        peak_bytes=ran.peak_bytes,
    )


def _require_places(options: argparse.Namespace) -> None:
    """Better now than after an hour of grading."""
    for option in ("junit", "gradescope", "csv"):
        path = getattr(options, option)
        if path is not None and (path.is_dir() or not path.parent.is_dir()):
            raise CannotGrade(f"--{option} {path}: name a file in a folder that exists")


def _require_one_learner(submissions: list[Path], releases: list[Path]) -> None:
    graded: dict[Path, Path] = {}
    for path in submissions:
        try:
            release = make_plan(path, releases).release
        except CannotGrade:
            continue  # it will be said
        if release in graded:
            raise CannotGrade(
                f"--gradescope writes the results of one learner, and both "
                f"{graded[release]} and {path} are answers to {release.name}: grade "
                "them one by one, or write --csv"
            )
        graded[release] = path


def find_releases(named: Path | None) -> list[Path]:
    """The release notebooks: those named, else those of a folder `notebooks/`.

    The folder is here or above, or beside the package in a clone.

    Raises:
        CannotGrade: when there is none.
    """
    here = Path.cwd()
    folders = [folder / "notebooks" for folder in (here, *here.parents)]
    folders.append(Path(__file__).resolve().parents[2] / "notebooks")
    places = [named] if named else folders
    for place in places:
        if place.is_file():
            if not exercises_of(read_cells(place), place):
                raise CannotGrade(f"--release {place}: a notebook without checks")
            return [place]
        releases = [p for p in sorted(place.rglob("*.ipynb")) if _has_checks(p)]
        if releases:
            return releases
    raise CannotGrade(
        f"no release notebooks in {named or 'notebooks/, here or above'}: name the "
        "file or the folder that you gave out, like --release course/release/ps1 (the "
        "book's own are in the folder notebooks/ of its repository)"
    )


def _has_checks(path: Path) -> bool:
    if ".ipynb_checkpoints" in path.parts:
        return False
    try:
        return bool(exercises_of(read_cells(path), path))
    except CannotGrade:
        return False


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
    add("--csv", type=Path, metavar="FILE", help="write a row for each exercise")
    add("--extra-checks", type=Path, metavar="FILE", help=_EXTRA_HELP)
    return parser.parse_args(arguments)


def _above_0(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a number above 0")
    return value


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt


def _write(results: list[Result], options: argparse.Namespace) -> bool:
    wanted: list[tuple[Path | None, Callable[[list[Result]], str]]] = [
        (options.junit, to_junit),
        (options.gradescope, to_gradescope),
        (options.csv, to_csv),
    ]
    good = True
    for path, text_of in wanted:
        if path is None:
            continue
        try:
            path.write_text(text_of(results), "utf8")
        except OSError as error:
            print(f"grade: {path} was not written: {error.strerror}", file=sys.stderr)
            good = False
    return good
