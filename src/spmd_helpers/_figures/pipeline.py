"""Schedules of a pipeline: which stage works on which microbatch, in which tick."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from .._core.notebook import InNotebook
from .._core.palette import SHARDS
from .._core.validate import integer, one_of
from .._core.words import count_words, join_words, table
from .._errors import NotUnderstood
from .._player.frames import FramePlayer
from .diagram import Box, Diagram, Item, Text

KINDS = ("forward", "gpipe", "1f1b", "interleaved")
_NAMES = {
    "forward": "forward only",
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved": "interleaved 1F1B",
}
_LEFT, _TOP, _ROW = 52, 48, 26
_NARROW, _BROAD, _ROOM = 18.0, 30.0, 380.0  # px of a step, and of all of them
_BOTH = 24.0  # px of a unit where there is a backward pass


@dataclass(frozen=True)
class Work:
    """What a stage does in one tick.

    Attributes:
        stage: the stage, from 0; so are the microbatch, the chunk and the step (the
            tick).
        is_backward: whether it is the backward pass.
        chunk: which of the stage's chunks of layers it is.
    """

    stage: int
    microbatch: int
    step: int
    is_backward: bool = False
    chunk: int = 0


_Task = tuple[bool, int, int]  # is_backward, microbatch, chunk


class PipelineSchedule(InNotebook):
    """Which stage of a pipeline works on which microbatch, tick by tick.

    A notebook draws it when a cell ends with it; `play()` fills it tick by tick.

    >>> PipelineSchedule(3, 4)
    forward only: 3 stages, 4 microbatches, 6 ticks, 33.3% idle
    stage 0  0  1  2  3  ·  ·
    stage 1  ·  0  1  2  3  ·
    stage 2  ·  ·  0  1  2  3
    >>> PipelineSchedule(2, 3, "1f1b")  # in brackets: the backward pass
    1F1B: 2 stages, 3 microbatches, 8 units, 25.0% idle, saved at most 2, 1
    stage 0  0  1  ·    (0)  2    (1)  ·    (2)
    stage 1  ·  0  (0)  1    (1)  2    (2)  ·

    One tick is one unit of work of a stage: the forward pass of a microbatch through
    its layers, or the backward pass, which is drawn as long. In an interleaved schedule
    a stage has `chunks` chunks of layers, and a tick is that much shorter. Sending
    takes no tick.

    Args:
        stages: the number of stages, each on a device.
        microbatches: the number of microbatches.
        kind: 'forward', the forward pass alone; 'gpipe', all forward passes and then
            all backward passes, the last microbatch first; '1f1b', as many forward
            passes as the stage needs to keep busy, and then one backward, one forward;
            'interleaved', 1F1B with several chunks per stage, where stage 0 has the
            first chunk, and also the first one after the last stage's.
        chunks: chunks of layers per stage, 2 or more, for 'interleaved' alone.

    Attributes:
        work: each unit of `Work`, by tick.
        steps: the number of ticks.
        length: the duration of all ticks, where 1 is a unit: a pass through a complete
            stage.
        idle: the share of the (stage, tick) pairs without work, the bubble:
            (p - 1) / (m + p - 1) for p stages and m microbatches, and interleaved with
            v chunks (p - 1) / (v · m + p - 1) (Narayanan et al., 2021,
            arXiv:2104.04473, section 2.2, which divides by the work alone).
        saved: for each stage, of how many microbatches it saves activations at most, a
            chunk counted as its share; None without a backward pass.
        sentence: duration, bubble and saved activations in words.

    Raises:
        NotUnderstood: a number is none, or `kind` is another; the microbatches of an
            interleaved schedule are no multiple of its stages.

    Used in chapter 16.
    """

    def __init__(
        self, stages: int, microbatches: int, kind: str = "forward", *, chunks: int = 1
    ) -> None:
        try:
            self.stages = integer("stages", stages, "a number of stages")
            self.microbatches = integer(
                "microbatches", microbatches, "a number of microbatches"
            )
            self.kind = one_of("kind", kind, KINDS)
            self.chunks = _chunks(self.kind, chunks)
            if self.kind == "interleaved" and self.microbatches % self.stages:
                raise NotUnderstood(
                    f"microbatches={microbatches} is no multiple of stages={stages}, "
                    "which an interleaved schedule needs; give one that is."
                )
        except NotUnderstood as error:
            raise error.with_traceback(None) from None
        orders = [_order(self, stage) for stage in range(self.stages)]
        self.work = _timed(orders, self.chunks)
        self.steps = 1 + max(one.step for one in self.work)
        self.length = self.steps / self.chunks
        self.idle = 1 - len(self.work) / (self.steps * self.stages)
        self.saved = None if self.kind == "forward" else _saved(self)

    @cached_property
    def sentence(self) -> str:
        """Duration, bubble and saved activations in words."""
        words = (
            f"{self._duration}, {self.idle:.1%} of the (stage, tick) pairs are idle."
        )
        if self.saved is None:
            return words
        most = ", ".join(f"{n:g}" for n in self.saved)
        return f"{words} Stage by stage, activations of {most} microbatches are saved."

    def __str__(self) -> str:
        return str(self._diagram(self.steps))

    __repr__ = __str__

    def _html(self) -> str:
        return self._diagram(self.steps)._html()

    def play(self) -> FramePlayer:
        """Fill the schedule tick by tick, as a figure that plays."""
        frames = [
            (self._diagram(step + 1), f"Tick {step}", self._say_step(step))
            for step in range(self.steps)
        ]
        return FramePlayer(frames, title=self._title, notes=self._note)

    @property
    def _title(self) -> str:
        counts = (
            count_words(self.stages, "stage"),
            count_words(self.microbatches, "microbatch", "microbatches"),
        )
        return f"{_NAMES[self.kind]}: {', '.join(counts)}"

    @property
    def _duration(self) -> str:
        """In ticks; in units where schedules with other ticks are compared."""
        if self.saved is None:
            return count_words(self.steps, "tick")
        return f"{self.length:.4g} units"

    @property
    def _note(self) -> str:
        words = "Rows are stages, columns are ticks; the number is the microbatch."
        if self.saved is not None:
            words += " A filled cell is a forward pass, a framed one a backward pass."
        if self.chunks > 1:
            words += (
                " The lines of a stage are its chunks of layers, and a tick is "
                f"1/{self.chunks} of a unit."
            )
        return words

    def _at(self, step: int) -> dict[int, Work]:
        return {one.stage: one for one in self.work if one.step == step}

    def _say_step(self, step: int) -> str:
        here = self._at(step)
        busy = [
            f"stage {stage} runs microbatch {one.microbatch}"
            + (" backward" if one.is_backward else "")
            for stage, one in sorted(here.items())
        ]
        rest = [str(stage) for stage in range(self.stages) if stage not in here]
        words = "; ".join(busy)
        words = words[:1].upper() + words[1:] + "."
        if rest:
            name = "Stage" if len(rest) == 1 else "Stages"
            verb = "is" if len(rest) == 1 else "are"
            words += f" {name} {join_words(rest)} {verb} idle."
        return words

    def _diagram(self, until: int) -> Diagram:
        """The schedule, its steps before `until` filled."""
        work = [one for one in self.work if one.step < until]
        wide = min(_BROAD, max(_NARROW, _ROOM / self.length))
        if self.saved is not None:  # schedules of one table have one scale
            wide = _BOTH / self.chunks
        row = _ROW if self.chunks == 1 else 18 * self.chunks + 4
        title, sentence = self._said(until)
        # How many stages and microbatches there are can be counted in the drawing.
        head = f"{_NAMES[self.kind]}: {title.split(', ', 2)[2].split(', saved')[0]}"
        items: list[Item] = [
            Text(0, 14, head, "title"),
            Text(_LEFT, 38, "ticks →", "small"),
        ]
        for stage in range(self.stages):
            y = _TOP + stage * (row + 4)
            items.append(Text(0, y + row / 2 + 4, f"stage {stage}"))
            items += [
                Box(_LEFT + step * wide, y, wide - 2, row, "slot")
                for step in range(self.steps)
                if step >= until or stage not in self._at(step)
            ]
        items += [self._cell(one, wide, row) for one in work]
        size = _LEFT + wide * self.steps, _TOP + (row + 4) * self.stages
        rows = self._rows(work) if until == self.steps else ""
        return Diagram(title, sentence, rows, size, items)

    def _said(self, until: int) -> tuple[str, str]:
        """The title and the sentence of a diagram."""
        if until < self.steps:
            return f"{self._title}, tick {until - 1}", self._say_step(until - 1)
        title = f"{self._title}, {self._duration}, {self.idle:.1%} idle"
        if self.saved is not None:
            title += f", saved at most {', '.join(f'{n:g}' for n in self.saved)}"
        return title, f"{self.sentence} {self._note}"

    def _cell(self, one: Work, wide: float, row: float) -> Box:
        colored = self.microbatches <= len(SHARDS)
        tall = row if self.chunks == 1 else row / self.chunks - 1
        y = _TOP + one.stage * (row + 4)
        kind = "frame" if one.is_backward else "shard" if colored else "bar"
        return Box(
            _LEFT + one.step * wide,
            y + one.chunk * (row / self.chunks),
            wide - (2 if self.chunks == 1 else 1),
            tall,
            kind,
            str(one.microbatch),
            one.microbatch if colored else None,
        )

    def _rows(self, work: Sequence[Work]) -> str:
        words = {(one.stage, one.step): self._word(one) for one in work}
        return table(
            [f"stage {s}", *(words.get((s, t), "·") for t in range(self.steps))]
            for s in range(self.stages)
        )

    def _word(self, one: Work) -> str:
        chunk = "abcdefgh"[one.chunk % 8] if self.chunks > 1 else ""
        name = f"{one.microbatch}{chunk}"
        return f"({name})" if one.is_backward else name


def _chunks(kind: str, chunks: int) -> int:
    if kind == "interleaved":
        return integer("chunks", chunks, "a number of chunks", least=2)
    if chunks != 1:
        raise NotUnderstood(
            f"chunks={chunks!r} with kind={kind!r}: only an interleaved schedule has "
            "chunks; leave them out."
        )
    return 1


def _order(schedule: PipelineSchedule, stage: int) -> list[_Task]:
    """The tasks of a stage, in the order in which it does them."""
    many, chunks = schedule.microbatches, schedule.chunks
    forward = [
        (False, batch, chunk) for batch, chunk in _by_group(schedule, reverse=False)
    ]
    if schedule.kind == "forward":
        return forward
    backward = [
        (True, batch, chunk) for batch, chunk in _by_group(schedule, reverse=True)
    ]
    if schedule.kind == "gpipe":
        return forward + backward[::-1]
    first = schedule.stages - stage - 1
    if chunks > 1:
        first = 2 * first + (chunks - 1) * schedule.stages
    first = min(first, many * chunks)
    pairs = zip(forward[first:], backward, strict=False)
    middle = list(itertools.chain.from_iterable(pairs))
    return forward[:first] + middle + backward[len(forward) - first :]


def _by_group(schedule: PipelineSchedule, reverse: bool) -> list[tuple[int, int]]:
    """Microbatch and chunk: as many microbatches as stages, chunk by chunk."""
    p, many, chunks = schedule.stages, schedule.microbatches, schedule.chunks
    if chunks == 1:
        return [(batch, 0) for batch in range(many)]
    order = range(chunks - 1, -1, -1) if reverse else range(chunks)
    return [
        (batch, chunk)
        for start in range(0, many, p)
        for chunk in order
        for batch in range(start, start + p)
    ]


def _timed(orders: Sequence[list[_Task]], chunks: int) -> tuple[Work, ...]:
    """Each task at the first step at which its stage is free and its input is there."""
    stages = len(orders)
    last = stages * chunks - 1
    done: dict[tuple[bool, int, int], int] = {}  # backward, microbatch, place → step
    work: list[Work] = []
    queues = [list(order) for order in orders]
    for step in itertools.count():
        if not any(queues):
            break
        before = len(work)
        for stage, queue in enumerate(queues):
            if not queue:
                continue
            is_backward, batch, chunk = queue[0]
            place = chunk * stages + stage
            needs = [(False, batch, place - 1)] if place else []
            if is_backward:
                needs = [(False, batch, place)]
                needs += [(True, batch, place + 1)] if place < last else []
            if all(done.get(need, step) < step for need in needs):
                done[is_backward, batch, place] = step
                work.append(Work(stage, batch, step, is_backward, chunk))
                queue.pop(0)
        if len(work) == before:
            raise AssertionError(f"no stage can go on in step {step}")
    return tuple(work)


def _saved(schedule: PipelineSchedule) -> tuple[float, ...]:
    most = []
    for stage in range(schedule.stages):
        now = peak = 0
        for one in schedule.work:
            if one.stage == stage:
                now += -1 if one.is_backward else 1
                peak = max(peak, now)
        most.append(peak / schedule.chunks)
    return tuple(most)
