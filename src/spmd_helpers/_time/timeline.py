"""The timeline of a step: lanes for its kernels, the memory and each kind of link."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from .._core.notebook import InNotebook
from .._core.words import count_words, table
from .._drawing.picture import Word
from .._drawing.scene import Rect, Scene, Text
from .._drawing.svg import html, svg
from .words import seconds_words

if TYPE_CHECKING:
    from .record import Span, StepTime

_SMALL = 0.005  # of a panel's time: shorter pieces are left out, closer ones joined
_LOOPS = 3  # loops that get a panel of one trip
_LETTER = 6.4  # px, in the legend
_WIDTH, _LANE, _GAP, _HEAD, _SIDE = 560.0, 26.0, 8.0, 44.0, 84.0
_HUES = {"matmul": 0, "attention": 0, "convolution": 0, "loop": 3}
_SENT = 1  # the hue of a collective
_KERNELS, _MEMORY = "kernels", "memory"
_TRAFFIC = 2  # the hue of what kernels read and write


@dataclass(frozen=True)
class Piece:
    """What a lane does for a while: runs of one kind that follow each other.

    Attributes:
        lane: 'kernels', 'memory' or a link.
        kind: as `Span.kind`, or 'waiting' where kernels wait or lost time; 'traffic' of
            what kernels read and write in memory.
        start_s: when it starts, from the start of its panel.
        end_s: when it ends.
        count: how many instructions it is.
        trips: of a loop, how often it runs.
    """

    lane: str
    kind: str
    start_s: float
    end_s: float
    count: int = 1
    trips: int | None = 1

    @property
    def words(self) -> str:
        """What it is: '6 matmul', 'a loop of 6 iterations'."""
        if self.kind == "loop":
            return f"a loop of {_iterations(self.trips)}"
        if self.lane == _MEMORY:
            return f"traffic of {count_words(self.count, 'kernel')}"
        return self.kind if self.count == 1 else f"{self.count} {self.kind}"


@dataclass(frozen=True)
class Stretch:
    """A panel: the step, or one iteration of a loop."""

    title: str
    seconds: float
    pieces: tuple[Piece, ...]

    @property
    def lanes(self) -> list[str]:
        """Kernels first, then the memory, then the links."""
        names = dict.fromkeys(piece.lane for piece in self.pieces)
        first = [_KERNELS, *([_MEMORY] if _MEMORY in names else [])]
        return [*first, *(name for name in names if name not in first)]


class Timeline(InNotebook):
    """The timeline of a step; a notebook shows it when a cell ends with it.

    `print` gives its twin in plain text, `.svg` a file's worth of SVG. Kernels stand in
    the upper lane of each panel. Below, the lane `memory` shows how long what they read
    and write keeps the memory busy, from the start of each kernel: where it fills a
    kernel's time, the memory is its limit. (A measured step has no such lane.) Then
    come the links with the collectives. A hatched box is where kernels wait for a
    collective, with what they lost to it before. A loop is one box, and its first
    iteration has a panel of its own. Pieces of less than half a percent of a panel are
    not drawn.
    """

    def __init__(self, step: "StepTime") -> None:
        self.title = f"Timeline of {step.name or 'a step'}, {step.chip}, {step.how}"
        self.stretches = tuple(_stretches(step))
        self.hatched = any(
            piece.kind == "waiting" for one in self.stretches for piece in one.pieces
        )

    @property
    def sentence(self) -> str:
        """What is drawn, in words: the text twin in one line."""
        return "; ".join(
            f"{one.title}: " + ", ".join(_said(piece) for piece in one.pieces)
            for one in self.stretches
        )

    def __str__(self) -> str:
        parts = [self.title]
        for one in self.stretches:
            rows = [("from", "to", "lane", "what")]
            rows += [
                (
                    seconds_words(piece.start_s),
                    seconds_words(piece.end_s),
                    piece.lane,
                    piece.words,
                )
                for piece in one.pieces
            ]
            parts.append(f"{one.title}\n{table(rows, right=(0, 1))}")
        return "\n\n".join(parts)

    __repr__ = __str__

    @cached_property
    def _scene(self) -> Scene:
        return _placed(self)

    @property
    def svg(self) -> str:
        """The timeline as the text of an SVG file."""
        return svg(self, self._scene)

    def _html(self) -> str:
        return html(self, self._scene)


def _said(piece: Piece) -> str:
    start, end = seconds_words(piece.start_s), seconds_words(piece.end_s)
    return f"{piece.lane} {start} to {end} {piece.words}"


# --- From spans to pieces -------------------------------------------------------------


def _stretches(step: "StepTime") -> list[Stretch]:
    """The step, then one iteration of each of the longest loops."""
    seconds = max(step.total_s or 0.0, *(s.end_s for s in step.spans), 0.0)
    loops = [span for span in step.spans if span.kind == "loop"]
    panels = [Stretch("the step", seconds, _pieces(step.spans, 0.0, seconds, None))]
    for loop in sorted(loops, key=_length, reverse=True)[:_LOOPS]:
        trip = _length(loop) / max(loop.trips or 1, 1)
        pieces = _pieces(step.spans, loop.start_s, loop.start_s + trip, loop)
        title = f"one iteration of {loop.name}, of {_number(loop.trips)}"
        panels.append(Stretch(title, trip, pieces))
    return panels


def _number(trips: int | None) -> str:
    return "an unknown number" if trips is None else str(trips)


def _iterations(trips: int | None) -> str:
    if trips is None:
        return "an unknown number of iterations"
    return count_words(trips, "iteration")


def _length(span: "Span") -> float:
    return span.end_s - span.start_s


def _pieces(
    spans: "Sequence[Span]", start: float, end: float, loop: "Span | None"
) -> tuple[Piece, ...]:
    """What runs from start to end, and is in no loop within."""
    inside = [
        span
        for span in spans
        if start <= span.start_s < end and span is not loop and not _around(span, loop)
    ]
    loops = [span for span in inside if span.kind == "loop"]
    own = [span for span in inside if not any(_in(span, one) for one in loops)]
    least = _SMALL * (end - start)
    lanes: dict[str, list[Piece]] = {}
    for span in sorted(own, key=lambda span: span.start_s):
        piece = Piece(
            span.lane,
            span.kind,
            span.start_s - start,
            span.end_s - start,
            1,
            span.trips,
        )
        _join(lanes.setdefault(span.lane, []), piece, least)
        if span.memory_s:
            read = replace(piece, lane=_MEMORY, kind="traffic")
            read = replace(read, end_s=read.start_s + span.memory_s)
            _join(lanes.setdefault(_MEMORY, []), read, least)
    if _KERNELS in lanes:
        lanes[_KERNELS] = _with_waits(lanes[_KERNELS], end - start, least)
    every = [piece for pieces in lanes.values() for piece in pieces]
    drawn = [piece for piece in every if piece.end_s - piece.start_s >= least]
    return tuple(sorted(drawn, key=lambda piece: (piece.start_s, piece.lane)))


def _around(span: "Span", loop: "Span | None") -> bool:
    """Whether a span is a loop that another one is in."""
    return loop is not None and span.kind == "loop" and _in(loop, span)


def _in(span: "Span", loop: "Span") -> bool:
    if span is loop:
        return False
    return loop.start_s <= span.start_s < loop.end_s and _length(span) <= _length(loop)


def _join(pieces: list[Piece], piece: Piece, least: float) -> None:
    last = pieces[-1] if pieces else None
    joins = last is not None and last.kind == piece.kind != "loop"
    if last is not None and joins and piece.start_s - last.end_s < least:
        end = max(last.end_s, piece.end_s)
        pieces[-1] = replace(last, end_s=end, count=last.count + 1)
    else:
        pieces.append(piece)


def _with_waits(pieces: list[Piece], end: float, least: float) -> list[Piece]:
    """Kernels, and between them where they wait."""
    every, now = [], 0.0
    for piece in [*pieces, Piece(_KERNELS, "", end, end)]:
        if piece.start_s - now >= least:
            every.append(Piece(_KERNELS, "waiting", now, piece.start_s))
        if piece.kind:
            every.append(piece)
        now = max(now, piece.end_s)
    return every


# --- From pieces to boxes -------------------------------------------------------------


def _placed(timeline: Timeline) -> Scene:
    items: list[Rect | Text] = [Text(0, 15, (Word(timeline.title),), "title")]
    y = 20.0
    for one in timeline.stretches:
        words = f"{one.title}: {seconds_words(one.seconds)}"
        items.append(Text(0, y + 24, (Word(words),), "caption"))
        y += _HEAD - 10
        for lane in one.lanes:
            items.append(Text(0, y + 17, (Word(lane),), "fact"))
            items += [
                _box(piece, one.seconds, y)
                for piece in one.pieces
                if piece.lane == lane
            ]
            y += _LANE + _GAP
    has_memory = any(_MEMORY in one.lanes for one in timeline.stretches)
    items += _legend(y + 22, has_memory)
    return Scene(_SIDE + _WIDTH, y + 34, tuple(items))


def _box(piece: Piece, seconds: float, y: float) -> Rect:
    scale = _WIDTH / (seconds or 1.0)
    x, width = _SIDE + scale * piece.start_s, scale * (piece.end_s - piece.start_s)
    if piece.kind == "waiting":
        return Rect(x, y, width, _LANE, "cell", hatched=True)
    hue = {_KERNELS: _HUES.get(piece.kind), _MEMORY: _TRAFFIC}.get(piece.lane, _SENT)
    return Rect(x, y, width, _LANE, "strip", hue, 1.0)


def _legend(y: float, has_memory: bool) -> list[Rect | Text]:
    traffic = ("memory traffic", Rect(0, y - 10, 12, 12, "strip", _TRAFFIC, 1.0))
    entries = (
        ("products", Rect(0, y - 10, 12, 12, "strip", 0, 1.0)),
        ("other kernels", Rect(0, y - 10, 12, 12, "strip", None, 1.0)),
        *([traffic] * has_memory),
        ("loop", Rect(0, y - 10, 12, 12, "strip", 3, 1.0)),
        ("collective", Rect(0, y - 10, 12, 12, "strip", _SENT, 1.0)),
        ("waiting, slowed", Rect(0, y - 10, 12, 12, "cell", hatched=True)),
    )
    items: list[Rect | Text] = []
    x = 0.0
    for words, box in entries:
        items.append(replace(box, x=x))
        items.append(Text(x + 18, y, (Word(words),), "strip"))
        x += 32 + _LETTER * len(words)
    return items
