"""A training loop in time: the host, the devices, and the writing of a checkpoint."""

from dataclasses import dataclass
from functools import cached_property

from .._core.notebook import InNotebook
from .._core.validate import integer
from .._core.words import count_words
from .._errors import NotUnderstood
from .diagram import Box, Diagram, Item, Text

_UNIT, _LEFT, _TOP, _ROW, _GAP = 12.0, 62, 44, 30, 8
_TICK = 5  # units between two numbers on the axis


@dataclass(frozen=True)
class Span:
    """What a lane does for a while.

    Attributes:
        lane: 'host', 'devices' or 'writer'.
        kind: of the host 'call', 'wait' or 'copy', of the devices 'step', of the writer
            'write'.
        step: the number of the step, from 0.
        start: when it begins, in units; `stop` is when it ends.
        cause: what a wait is for: 'step' or 'writer'.
    """

    lane: str
    kind: str
    step: int
    start: int
    stop: int
    cause: str = ""


class LoopTimeline(InNotebook):
    """A training loop in time, by the rules of asynchronous dispatch.

    The host makes a batch and calls the step, which returns before it is done. The
    devices take up a step when it was called and the one before is done. To fetch a
    loss the host waits until its step is done; to save it waits, too, and copies the
    state to its own memory. A writer then writes the copy while the loop goes on; the
    next save waits for it. All durations are given, in any unit; nothing is measured.

    >>> LoopTimeline(4, fetch_every=1)
    4 steps, the devices finish after 16 units, idle for 20% from the first step on
    host     0: call 0, 1: wait 0, 4: call 1, 5: wait 1, 8: call 2, 9: wait 2, ...
    devices  1: step 0, 5: step 1, 9: step 2, 13: step 3
    >>> LoopTimeline(4, fetch_every=4)
    4 steps, the devices finish after 13 units, idle for 0% from the first step on
    host     0: call 0, 1: call 1, 2: call 2, 3: call 3, 4: wait 3
    devices  1: step 0, 4: step 1, 7: step 2, 10: step 3

    Args:
        steps: the number of steps.
        call: how long the host takes to make a batch and call the step.
        step: how long the devices take for a step.
        fetch_every: after how many steps the host fetches losses; it does so at the
            end in any case.
        save_every: after how many steps it saves; None for never.
        copy: how long the copy of the state to the host's memory takes.
        write: how long the writing takes.

    Attributes:
        spans: each `Span`, lane by lane.
        duration: when the last lane is done.
        idle: the share of time in which the devices have no step, from their first to
            their last one.
        ahead: how many steps were called and not done, at most.
        sentence: duration, idle share and lead in words.

    Raises:
        NotUnderstood: a number is no integer of 1 or more.

    Used in chapter 13.
    """

    def __init__(
        self,
        steps: int,
        *,
        call: int = 1,
        step: int = 3,
        fetch_every: int = 1,
        save_every: int | None = None,
        copy: int = 2,
        write: int = 7,
    ) -> None:
        try:
            self.steps = integer("steps", steps, "a number of steps")
            self._call = integer("call", call, "a duration")
            self._step = integer("step", step, "a duration")
            self._fetch = integer("fetch_every", fetch_every, "a number of steps")
            self._save = None
            if save_every is not None:
                self._save = integer("save_every", save_every, "a number of steps")
            self._copy = integer("copy", copy, "a duration")
            self._write = integer("write", write, "a duration")
        except NotUnderstood as error:
            raise error.with_traceback(None) from None
        self.spans = tuple(self._run())
        self.duration = max(span.stop for span in self.spans)
        done = self.lane("devices")
        busy = sum(span.stop - span.start for span in done)
        self.idle = 1 - busy / (done[-1].stop - done[0].start)
        calls = [span for span in self.spans if span.kind == "call"]
        self.ahead = max(
            sum(
                one.stop <= at.stop < span.stop
                for one, span in zip(calls, done, strict=True)
            )
            for at in calls
        )

    def lane(self, name: str) -> list[Span]:
        """The spans of a lane, 'host', 'devices' or 'writer', in order."""
        return [span for span in self.spans if span.lane == name]

    def _run(self) -> list[Span]:
        host: list[Span] = []
        devices: list[Span] = []
        writer: list[Span] = []
        now = done = written = 0
        for n in range(self.steps):
            host.append(Span("host", "call", n, now, now + self._call))
            now += self._call
            start = max(now, done)
            done = start + self._step
            devices.append(Span("devices", "step", n, start, done))
            saves = self._save is not None and (n + 1) % self._save == 0
            fetches = (n + 1) % self._fetch == 0 or n == self.steps - 1
            needs = [("step", done)] if saves or fetches else []
            needs += [("writer", written)] if saves else []
            for cause, ready in needs:
                if ready > now:
                    host.append(Span("host", "wait", n, now, ready, cause))
                    now = ready
            if saves:
                host.append(Span("host", "copy", n, now, now + self._copy))
                now += self._copy
                written = now + self._write
                writer.append(Span("writer", "write", n, now, written))
        return host + devices + writer

    @cached_property
    def sentence(self) -> str:
        """Duration, idle share and lead in words."""
        return (
            f"{count_words(self.steps, 'step')}: the devices finish after "
            f"{self.lane('devices')[-1].stop} units. From their first step on, they "
            f"are idle for {self.idle:.0%} of the time. The host is up to "
            f"{count_words(self.ahead, 'step')} ahead."
        )

    def __str__(self) -> str:
        return str(self._diagram)

    __repr__ = __str__

    def _html(self) -> str:
        return self._diagram._html()

    @cached_property
    def _diagram(self) -> Diagram:
        lanes = [name for name in ("host", "devices", "writer") if self.lane(name)]
        title = (
            f"{count_words(self.steps, 'step')}, the devices finish after "
            f"{self.lane('devices')[-1].stop} units, idle for {self.idle:.0%} from "
            "the first step on"
        )
        head = (
            f"{count_words(self.steps, 'step')}: devices done after "
            f"{self.lane('devices')[-1].stop} units, {self.idle:.0%} idle"
        )
        items: list[Item] = [Text(0, 14, head, "title")]
        low = _TOP + len(lanes) * (_ROW + _GAP)
        for at in range(0, self.duration + 1, _TICK):
            x = _LEFT + at * _UNIT
            items.append(Text(x, _TOP - 8, str(at), "small", "middle"))
        items.append(Text(0, _TOP - 8, "time →", "small"))
        for row, name in enumerate(lanes):
            y = _TOP + row * (_ROW + _GAP)
            items.append(Text(0, y + _ROW / 2 + 4, name))
            items += [_span(span, y) for span in self.lane(name)]
        size = _LEFT + self.duration * _UNIT + 8, low
        rows = "\n".join(f"{name:9}{self._words(name)}" for name in lanes)
        return Diagram(title, f"{self.sentence} {rows}", rows, size, items)

    def _words(self, name: str) -> str:
        words = [f"{s.start}: {s.kind} {s.step}" for s in self.lane(name)]
        return ", ".join(words[:6]) + (", ..." if len(words) > 6 else "")


def _span(span: Span, y: float) -> Box:
    kind, text, hue = {
        "call": ("shard", str(span.step), span.step % 8),
        "step": ("shard", str(span.step), span.step % 8),
        "wait": ("empty", f"waits for {_awaited(span)}", None),
        "copy": ("bar", "copy", None),
        "write": ("bar", f"writes the state after {span.step}", None),
    }[span.kind]
    wide = (span.stop - span.start) * _UNIT
    text = next((t for t in _shorter(span, text) if 6.0 * len(t) + 4 <= wide), "")
    place = _LEFT + span.start * _UNIT, y, wide - 1, _ROW
    return Box(*place, kind, text, hue)


def _awaited(span: Span) -> str:
    return "the writer" if span.cause == "writer" else f"step {span.step}"


def _shorter(span: Span, text: str) -> tuple[str, ...]:
    """The words of a span, from the longest to the shortest."""
    first = text.split()[0] if text else ""
    return (
        (text, f"for {_awaited(span).split('the ')[-1]}", first)
        if span.cause
        else (text, first)
    )
