"""Runs the cells of one submission in a process of its own, and keeps the verdicts."""

import ast
import dataclasses
import secrets
import time
from collections.abc import Sequence

from .plan import Plan, Step
from .process import Ended, Limits, Message, OutOfTime, Process

_RESTARTS = 5  # of a submission whose cells end the process
_LONGEST_WORDS = 4000  # that are kept of an answer
_FAILS = "raise AssertionError({!r})"
_NOT_JUDGED = "NOT JUDGED: what runs the checks was changed; a person has to look"
_FORGED = "something was written to the grader's channel: it was ignored"


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The judgment of one exercise: right, wrong, open, stopped, not judged."""

    verdict: str
    words: str
    seconds: float = 0


@dataclasses.dataclass
class Ran:
    """What running a plan gave; it grows while the submission runs."""

    verdicts: dict[str, Verdict] = dataclasses.field(default_factory=dict)
    notes: list[str] = dataclasses.field(default_factory=list)
    extra_notes: list[str] = dataclasses.field(default_factory=list)
    printed: dict[int, str] = dataclasses.field(default_factory=dict)  # of each step
    seconds: float = 0
    peak_bytes: int = 0
    problem: str = ""
    none_left: bool = True  # whether no process is there, as far as it was checked

    def notes_on(self, step: Step) -> list[str]:
        """Where a note on this step belongs: learners see no note on extra checks."""
        return self.extra_notes if step.is_extra else self.notes


def run(plan: Plan, limits: Limits, extra: tuple[Step, ...] = ()) -> Ran:
    """Run a plan; whatever its cells do, this returns, and no process is left.

    A cell that ends the process costs its own exercise: the process is started again
    without that cell, and what was judged stays judged.
    """
    steps, ran = [*plan.steps, *extra], Ran()
    skip: set[int] = set()
    begin = time.monotonic()
    player = _Player(steps, limits, ran, begin + limits.timeout_s)
    for _ in range(_RESTARTS + 1):
        try:
            player.play(skip)
            break
        except OutOfTime as over:
            player.blame(str(over))
            break
        except Ended as end:
            if player.at is None:
                ran.problem = f"the process did not start: {end}"
                break
            player.blame(str(end))
            if ran.problem:
                break
            skip.add(player.at)
    else:
        ran.notes.append(
            f"its process was started {_RESTARTS + 1} times and ended each"
        )
    ran.seconds = time.monotonic() - begin
    return ran


class _Player:
    """Sends the steps in their order and keeps what comes back."""

    def __init__(
        self, steps: Sequence[Step], limits: Limits, ran: Ran, end: float
    ) -> None:
        self.steps, self.limits, self.ran, self.end = steps, limits, ran, end
        self.at: int | None = None  # the step that runs
        self.raised: dict[str, str] = {}  # exercise -> how its answer cell ended
        self.theirs = False  # whether anything of the submission has run

    def play(self, skip: set[int]) -> None:
        """Send the steps to a new process, without those to skip."""
        self.at = None
        process = Process(self.limits)
        try:
            with process:
                self._play(process, skip)
        finally:
            self.ran.peak_bytes = max(self.ran.peak_bytes, process.peak_bytes)
            self.ran.none_left &= process.none_left
            if process.escaped:
                self.ran.notes.append(
                    f"it had left {process.escaped} running in process groups of "
                    "their own: they were ended"
                )
            if process.was_forged and _FORGED not in self.ran.notes:
                self.ran.notes.append(_FORGED)

    def _play(self, process: Process, skip: set[int]) -> None:
        numbers = {step.number for step in self.steps if step.kind == "check"}
        chapters = {n.partition(".")[0] for n in numbers}
        process.start(sorted(chapter for chapter in chapters if chapter.isdecimal()))
        for i, step in enumerate(self.steps):
            if i in skip or (step.kind == "check" and step.number in self.ran.verdicts):
                continue
            self.at = i
            self.theirs |= step.kind == "own"
            believed = step.kind != "check" or not self.theirs
            if not believed and not self._can_fail(process, step):
                continue
            begin = time.monotonic()
            try:
                answer, in_time = process.ask(step, self.limits.cell_s, self.end)
            finally:
                self.ran.printed[i] = process.printed_by_step()
            if not in_time:
                more = process.output_in_words()
                self.blame(f"took longer than its {self.limits.cell_s:g} s{more}")
            elif step.kind == "check":
                self._judge(step, answer, time.monotonic() - begin)
            elif answer.get("error"):
                self._note_error(step, answer["error"])
            if self.ran.problem:
                return

    def _can_fail(self, process: Process, step: Step) -> bool:
        """Whether what must be judged wrong is, before a check is believed.

        That is a bare failure with a random word, and the check itself, handed things
        that are no answer to anything.
        """
        word = secrets.token_hex(8)
        must_fail = [dataclasses.replace(step, source=_FAILS.format(word), title=word)]
        if not step.title:
            must_fail.append(dataclasses.replace(step, source=_of_nothing(step.source)))
        for canary, words in zip(must_fail, (word, ""), strict=False):
            answer, _ = process.ask(canary, self.limits.cell_s, self.end)
            self._note_changed(step, answer)
            judged = (answer.get("verdict"), words in str(answer.get("words")))
            if judged != ("wrong", True):
                self.ran.verdicts[step.number] = Verdict("not judged", _NOT_JUDGED)
                note = f"{step.number}: a check that must fail did not"
                self.ran.notes_on(step).append(note)
                return False
        return True

    def _note_error(self, step: Step, error: str) -> None:
        if step.number:
            self.raised[step.number] = error
        elif step.is_extra:
            self.ran.problem = f"{step.where} failed"
            self.ran.extra_notes.append(f"{step.where} failed: {error}")
        elif step.kind == "given" and (
            not self.theirs or error.startswith("ModuleNotFoundError")
        ):
            self.ran.problem = (
                f"{step.where} failed, and that is not the author's doing: {error}; "
                "does this Python have what the release needs?"
            )

    def _judge(self, step: Step, answer: Message, seconds: float) -> None:
        if "verdict" not in answer:  # the answer itself raised it
            answer = {"verdict": "wrong", "words": answer["error"], "changed": []}
        words = str(answer["words"])[:_LONGEST_WORDS]
        raised = self.raised.get(step.number)
        if raised and answer["verdict"] != "right":
            words += f"\nIts answer cell had raised {raised}"
        verdict = Verdict(str(answer["verdict"]), words, seconds)
        self.ran.verdicts[step.number] = verdict
        self._note_changed(step, answer)

    def _note_changed(self, step: Step, answer: Message) -> None:
        if answer.get("changed"):
            names = ", ".join(f"`{name}`" for name in answer["changed"])
            self.ran.notes_on(step).append(
                f"{step.number}: {names} had been given another meaning, the check "
                "used the real one"
            )

    def blame(self, why: str) -> None:
        """The step that runs is stopped, and its exercise with it."""
        step = self.steps[self.at or 0]
        if not self.theirs:
            self.ran.problem = f"{step.where} {why}, before anything of the author ran"
        elif step.number and step.number not in self.ran.verdicts:
            self.ran.verdicts[step.number] = Verdict("stopped", f"{step.where} {why}")
        else:
            self.ran.notes_on(step).append(f"{step.where} {why}; it was left out")


def _of_nothing(check: str) -> str:
    """The line of a check, with `object()` in place of each answer."""
    call = next(n for n in ast.walk(ast.parse(check)) if isinstance(n, ast.Call))
    nothing = ["object()"] * (len(call.args) - 1)
    return f"check({', '.join([ast.unparse(call.args[0]), *nothing])})"
