"""One call of the command line: what is graded, what is written, what is said."""

import argparse
import compileall
import dataclasses
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import spmd_exercises
import spmd_helpers

from .container import Containers
from .extra import read_extra_checks
from .guarded import Guarded, startup_folders
from .plan import Step
from .pool import Order, Pool
from .process import Limits
from .reaper import HAS_PROC
from .records import Outputs, State, base_of
from .releases import find_releases
from .report import (
    clean,
    gradescope_of_none,
    to_csv,
    to_gradescope,
    to_junit,
    to_table,
)
from .result import Result
from .submission import CannotGrade

STATE = ".state.json"  # behind the name of the first file of results


class Call:
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
        self.guarded = Guarded(named, packages(), startup_folders(sys.path))
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
                return path.with_name(path.name + STATE)
        return None

    def run(self) -> int:
        """Grade what is open; returns what the process ends with."""
        limits = Limits(
            self.options.timeout_s,
            int(self.options.memory_gib * 2**30),
            is_alone=self.options.jobs == 1,
        )
        if self.options.gradescope:
            self._require_one_learner(limits)
        order = self._resume() if self.options.resume else [*range(len(self.paths))]
        grading = Order(
            tuple(self.releases), limits, self.extra, containers=self._containers()
        )
        pool = Pool(self.paths, grading, self.options.jobs, self._put_back, self.stop)
        for event in pool.events(order):
            name = clean(str(self.paths[event.index]))
            said = f"{event.index + 1} of {len(self.paths)}"
            if event.result is None:
                self.running.add(event.index)
                say(f"{said} started: {name}")
            else:
                self._keep(event.index, event.result)
                say(f"{said} done: {name}: {_in_short(event.result)}")
            self._write()
        self._put_back()
        return self._end()

    def _containers(self) -> Containers | None:
        if not self.options.container:
            return None
        containers = Containers(self.options.container, self.options.runtime)
        containers.require()
        return containers

    def _keep(self, index: int, result: Result) -> None:
        self.running.discard(index)
        result = self.results[index] = dataclasses.replace(result, printed=())
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
            say("--resume: the release or the extra checks have changed: all again")
        for index, path in enumerate(self.paths):
            result = self.state.result(path, self.guarded.sha256(path))
            if result is not None:
                self.results[index] = result
        say(f"--resume: {len(self.results)} of {len(self.paths)} are graded already")
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
                both = f"both {answers[release]} and {path} are answers to "
                both += Path(release).name
                self._write_none(f"{both}: hand in one of them")
                raise CannotGrade(
                    f"--gradescope writes the results of one learner, and {both}: "
                    "grade them one by one, or write --csv"
                )
            answers[release] = path

    def _write_none(self, why: str) -> None:
        """What the learner reads where nothing was graded."""
        target = self.options.gradescope
        self.outputs.write({target: gradescope_of_none(why)}, at_the_end=True)

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
            say(f"CHANGED: {what}")
        return changed, results

    def _end(self) -> int:
        done = [self.results[i] for i in sorted(self.results)]
        print(to_table(done, bool(self.options.container)), flush=True)
        if not HAS_PROC and not self.options.container:
            print(
                "This system has no /proc: memory is limited by setrlimit, if at all, "
                "and a process that left its group may live on."
            )
        self.running.clear()
        self._write(at_the_end=True)
        for path, why in self.outputs.failed.items():
            say(f"{path} was not written: {why}")
        written = [str(p) for p, _ in self.wanted if p not in self.outputs.failed]
        if len(done) < len(self.paths):
            open_now = [p for i, p in enumerate(self.paths) if i not in self.results]
            named = ", ".join(clean(str(path)) for path in open_now)
            say(f"interrupted: {len(done)} of {len(self.paths)} are graded")
            say(f"written: {', '.join(written) or 'no file, none was named'}")
            say(f"open: {named}")
            return 130
        all_graded = all(result.graded for result in done)
        return 0 if all_graded and not self.outputs.failed else 2


def say(text: str) -> None:
    """Say it on standard error, in the name of the command line."""
    print(f"grade: {text}", file=sys.stderr, flush=True)


def _in_short(result: Result) -> str:
    if not result.rows:
        return "NOT GRADED"
    blank = "" if result.graded else ", not all graded"
    return f"{result.points:g} of {result.of:g} points{blank}, {result.seconds:.0f} s"


def packages() -> list[Path]:
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
