"""Grade submissions without nbgrader: `python -m spmd_grading NOTEBOOK ...`.

It runs students' code. Each submission is graded by a process of its own, which runs
its code in another, with a limit of time, of memory and of output, in its own process
group and temporary folder, with few of your environment's variables. One that hangs,
dies, exhausts memory, prints a gigabyte, or stops or kills its parent costs only
itself. On Linux all processes that it started are ended, and shared memory that it left
is removed; elsewhere only its process group is ended. A file of over 64 MiB, 2,000 code
cells or 1 MiB of code is not read.

The results are written after each submission. When you stop it (Ctrl-C, SIGTERM), it
keeps them and names what is open; --resume goes on.

It does NOT keep that code from your files or the network, and as checks and answers
share one process, a determined cheater can get points; code that looks for the command
line's own process can stop it. Submissions, releases, the results, the packages
spmd_helpers, spmd_exercises and spmd_grading, and what Python runs when it starts are
looked at after each submission: what was changed is put back, the changed file stays
beside it under another name, and it is said. Other files are not looked at. Grade
people you don't trust inside a container, and read what you pay with marks.

What runs is the release notebook, with the answers of the submission put in: checks,
set-up cell and given cells are always the release's. Changed checks are replaced, given
cells that somebody changed or deleted run as they were, and it is said. An answer is
found by nbgrader's grade id, or, if a tool has dropped the metadata, by the exercise
numbers, cell ids and names. What is not found is reported as not found, never as 0.

Used by instructors.
"""

import argparse
import compileall
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import spmd_exercises
import spmd_helpers

from .extra import read_extra_checks
from .guarded import Guarded, startup_folders
from .plan import Step
from .pool import Order, Pool
from .process import Limits
from .reaper import HAS_PROC
from .records import Outputs, State, base_of
from .report import clean, to_csv, to_gradescope, to_junit, to_table
from .result import Result
from .submission import CannotGrade, exercises_of, read_cells

_STATE = ".state.json"  # behind the name of the first file of results
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
        with _stopped_by_signals() as stop:
            return _Run(options, stop).run()
    except CannotGrade as error:
        print(f"grade: {error}", file=sys.stderr)
        return 2


@contextlib.contextmanager
def _stopped_by_signals() -> Iterator[Callable[[], bool]]:
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


class _Run:
    """One call of the command line: what is graded, written and said."""

    def __init__(self, options: argparse.Namespace, stop: Callable[[], bool]) -> None:
        self.options, self.stop = options, stop
        self.paths: list[Path] = options.submission
        self.releases = find_releases(options.release)
        self.extra: tuple[Step, ...] = ()
        named = [*self.paths, *self.releases]
        if options.extra_checks:
            self.extra = read_extra_checks(options.extra_checks)
            named.append(options.extra_checks)
        wanted: list[tuple[Path | None, Callable[[list[Result]], str]]] = [
            (options.csv, to_csv),
            (options.junit, to_junit),
            (options.gradescope, to_gradescope),
        ]
        self.wanted = [(path, to) for path, to in wanted if path is not None]
        _require_places([path for path, _ in self.wanted], named)
        self.guarded = Guarded(named, _packages(), startup_folders(sys.path))
        self.state = State(
            self._state_path(),
            base_of(named[len(self.paths) :], self.guarded.sha256),
        )
        state = [self.state.path] if self.state.path else []
        self.outputs = Outputs([*(path for path, _ in self.wanted), *state])
        self.results: dict[int, Result] = {}
        self.running: set[int] = set()

    def _state_path(self) -> Path | None:
        for path, _ in self.wanted:
            if path.is_file() or not path.exists():  # no pipe, no terminal
                return path.with_name(path.name + _STATE)
        return None

    def run(self) -> int:
        limits = Limits(
            self.options.timeout_s,
            int(self.options.memory_gib * 2**30),
            is_alone=self.options.jobs == 1,
        )
        if self.options.gradescope:
            self._require_one_learner(limits)
        order = self._resume() if self.options.resume else [*range(len(self.paths))]
        grading = Order(tuple(self.releases), limits, self.extra)
        pool = Pool(self.paths, grading, self.options.jobs, self._put_back, self.stop)
        for event in pool.events(order):
            name = clean(str(self.paths[event.index]))
            said = f"{event.index + 1} of {len(self.paths)}"
            if event.result is None:
                self.running.add(event.index)
                _say(f"{said} started: {name}")
            else:
                self._keep(event.index, event.result)
                _say(f"{said} done: {name}: {_in_short(event.result)}")
            self._write()
        self._put_back()
        return self._end()

    def _keep(self, index: int, result: Result) -> None:
        self.running.discard(index)
        self.results[index] = result
        path = self.paths[index]
        if result.rows or result.none_left:  # not where no process could be started
            self.state.keep(path, self.guarded.sha256(path), result)

    def _resume(self) -> list[int]:
        """What is still open; what was running when all was killed comes last."""
        if self.state.path is None:
            raise CannotGrade(
                "--resume goes on with the results of an earlier call: name the same "
                "--csv, --junit or --gradescope FILE"
            )
        if not self.state.read():
            _say("--resume: the release or the extra checks have changed: all again")
        for index, path in enumerate(self.paths):
            result = self.state.result(path, self.guarded.sha256(path))
            if result is not None:
                self.results[index] = result
        _say(f"--resume: {len(self.results)} of {len(self.paths)} are graded already")
        order = [i for i in range(len(self.paths)) if i not in self.results]
        return sorted(order, key=lambda i: self.state.was_running(self.paths[i]))

    def _require_one_learner(self, limits: Limits) -> None:
        if len(self.paths) == 1:
            return
        answers: dict[str, Path] = {}
        order = Order(tuple(self.releases), limits, do="find the release")
        pool = Pool(self.paths, order, self.options.jobs, should_stop=self.stop)
        for event in pool.events(range(len(self.paths))):
            if event.result is None or not event.result.release:
                continue  # what can't be read will be said
            path, release = self.paths[event.index], event.result.release
            if release in answers:
                raise CannotGrade(
                    f"--gradescope writes the results of one learner, and both "
                    f"{answers[release]} and {path} are answers to "
                    f"{Path(release).name}: grade them one by one, or write --csv"
                )
            answers[release] = path

    def _all(self) -> list[Result]:
        """A result for each file that was given, graded or not yet."""
        return [
            self.results.get(i)
            or Result(str(path), problem="not graded yet: --resume goes on")
            for i, path in enumerate(self.paths)
        ]

    def _write(self, at_the_end: bool = False) -> None:
        texts = {path: to(self._all()) for path, to in self.wanted}
        if self.state.path is not None:
            running = [self.paths[i] for i in sorted(self.running)]
            texts[self.state.path] = self.state.text(running)
        self.outputs.write(texts, at_the_end)

    def _put_back(self) -> tuple[list[str], list[str]]:
        """What was changed meanwhile: files that grading rests on, results."""
        changed = self.guarded.put_back()
        results = self.outputs.put_back()
        for what in (*changed, *results):
            _say(f"CHANGED: {what}")
        return changed, results

    def _end(self) -> int:
        done = [self.results[i] for i in sorted(self.results)]
        print(to_table(done), flush=True)
        if not HAS_PROC:
            print(
                "This system has no /proc: memory is limited by setrlimit, if at all, "
                "and a process that left its group may live on."
            )
        self.running.clear()
        self._write(at_the_end=True)
        for path, why in self.outputs.failed.items():
            _say(f"{path} was not written: {why}")
        written = [str(p) for p, _ in self.wanted if p not in self.outputs.failed]
        if len(done) < len(self.paths):
            open_now = [p for i, p in enumerate(self.paths) if i not in self.results]
            named = ", ".join(clean(str(path)) for path in open_now)
            _say(f"interrupted: {len(done)} of {len(self.paths)} are graded")
            _say(f"written: {', '.join(written) or 'no file, none was named'}")
            _say(f"open: {named}")
            return 130
        all_graded = all(result.graded for result in done)
        return 0 if all_graded and not self.outputs.failed else 2


def _say(text: str) -> None:
    print(f"grade: {text}", file=sys.stderr, flush=True)


def _in_short(result: Result) -> str:
    if not result.rows:
        return "NOT GRADED"
    blank = "" if result.graded else ", not all graded"
    return f"{result.points:g} of {result.of:g} points{blank}, {result.seconds:.0f} s"


def _packages() -> list[Path]:
    """The folders of the packages that grade, compiled now rather than later."""
    folders = [Path(__file__).parent, Path(spmd_helpers.__file__).parent]
    folders += [Path(folder) for folder in spmd_exercises.__path__]
    sys.pycache_prefix = None  # a submission's process does not know it
    for folder in folders:
        compileall.compile_dir(folder, quiet=2)
    return folders


def _require_places(wanted: Iterable[Path], named: list[Path]) -> None:
    """Better now than after an hour of grading."""
    taken = {os.path.realpath(path): path for path in named}
    for path in wanted:
        if path.is_dir() or not path.parent.is_dir():
            raise CannotGrade(f"{path}: name a file in a folder that exists")
        if taken.setdefault(os.path.realpath(path), path) is not path:
            raise CannotGrade(
                f"{path} is named twice: results need a file of their own"
            )


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
        f"changed; the state is in FILE{_STATE}, of the first of csv, junit, "
        "gradescope",
    )
    add(
        "--jobs",
        type=_whole_above_0,
        default=1,
        metavar="N",
        help="grade N at once, each with its own limits (default: %(default)s)",
    )
    add("--extra-checks", type=Path, metavar="FILE", help=_EXTRA_HELP)
    return parser.parse_args(arguments)


def _whole_above_0(text: str) -> int:
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
