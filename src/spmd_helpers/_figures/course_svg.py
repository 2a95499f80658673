"""The chart of a step's memory: stacked areas over its phases."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from .._core.palette import SHARDS
from .._core.words import bytes_words, join_words
from .._core.words import number as _n
from .._hardware.chips import Chip
from .._player.page import FramePage, Page, View
from .courses import (
    GATHERED,
    GRADIENTS,
    OPTIMIZER,
    OTHER,
    PARAMETERS,
    PARTS,
    RESERVED,
    SAVED,
    WORK,
    Course,
    Point,
    allocated,
    part_of,
)
from .elements import rect, text

_HUES = {PARAMETERS: 0, OPTIMIZER: 2, GRADIENTS: 1, SAVED: 3, GATHERED: 5, WORK: 4}
_LEFT, _TOP, _PLOT_WIDTH, _PLOT_HEIGHT = 46.0, 12.0, 308.0, 180.0
_WIDTH = _LEFT + _PLOT_WIDTH
_ROW, _SWATCH, _SECOND = 18.0, 11.0, 193.0  # of the legend: the second column's x
_ROOM = 1.06  # of the plot above the highest point
_FAR = 1.5  # times the highest peak: a limit that is further away is not drawn
_TICKS = 4
_LAST = 58.0  # px from the right edge: where a name at the end of a step begins
_IN_AREA = 14.0  # px: an area this high has its name in it
_NEAR = 3.0  # px around the line of the limit, without a name
_NAMED = 18.0  # px above it at the right, where its own name is
_UNIT = 1024
_RULES = """
.spmd-memory-area.spmd-memory-area { stroke: currentColor; stroke-opacity: 0.55; \
stroke-width: 0.75; }
.spmd-memory-other.spmd-memory-other { fill: currentColor; fill-opacity: 0.22; }
.spmd-memory-reserved.spmd-memory-reserved { stroke: currentColor; \
stroke-opacity: 0.4; \
stroke-width: 0.75; }
.spmd-memory-grid.spmd-memory-grid { fill: none; stroke: currentColor; \
stroke-opacity: 0.16; }
.spmd-memory-under.spmd-memory-under { fill: none; stroke: var(--paper); \
stroke-width: 4; }
.spmd-memory-limit.spmd-memory-limit { fill: none; stroke: currentColor; \
stroke-width: 1.75; \
stroke-dasharray: 6 4; }
.spmd-memory-in.spmd-memory-in { font-size: 11px; font-weight: 600; \
text-anchor: start; }
.spmd-memory-word.spmd-memory-word { font-size: 11px; text-anchor: start; }
.spmd-memory-tick.spmd-memory-tick { font-size: 10.5px; text-anchor: end; }
.spmd-memory-line.spmd-memory-line { font-size: 11px; font-weight: 600; \
text-anchor: end; \
paint-order: stroke; stroke: var(--paper); stroke-width: 4px; stroke-linejoin: round; }
"""


@dataclass(frozen=True)
class Chart:
    """A chart of one step, or of several on one scale."""

    courses: tuple[Course, ...]
    chip: Chip | None

    @property
    def title(self) -> str:
        """The heading."""
        return "Memory over a training step"

    @property
    def facts(self) -> str:
        """The models and their meshes."""
        whats = dict.fromkeys(one.memory.what for one in self.courses)
        return f"per device: {'; '.join(whats)}"

    @property
    def notes(self) -> str:
        """What the areas, their order and their widths mean."""
        names = [part for part in reversed(self.parts) if part != RESERVED]
        notes = [
            f"From top to bottom: {join_words(names)}.",
            *self._other,
            "Hatched memory is reserved but not in use: a scan over the layers "
            "allocates the saved activations of all layers before the forward pass, "
            "and the gradients of all layers before the backward pass. What a layer "
            "needs for itself is that of its largest moment; what it needs before or "
            "after that, and is less, is not drawn.",
        ]
        layers = {one.layers for one in self.courses if one.layers > one.teeth}
        if layers:
            teeth = max(one.teeth for one in self.courses)
            most_layers = join_words([str(n) for n in sorted(layers)])
            notes.append(f"The {teeth} steps of a pass stand for {most_layers} layers.")
        return " ".join([*notes, "Widths do not show time."])

    @property
    def _other(self) -> list[str]:
        """The lines of the part that has none of their names."""
        lines = [line for one in self.courses for line in one.memory.lines]
        names = dict.fromkeys(line.name for line in lines if part_of(line) == OTHER)
        return [f"Other buffers: {join_words(list(names))}."] if names else []

    @cached_property
    def parts(self) -> tuple[str, ...]:
        """The parts that any step has, from the lowest."""
        used = (point.parts for one in self.courses for point in one.points)
        columns = zip(*used, strict=True)
        drawn = [p for p, sizes in zip(PARTS, columns, strict=True) if any(sizes)]
        return (*drawn, RESERVED)

    def sentence(self, one: Course) -> str:
        """The peak, its largest part, and whether a chip has as much."""
        memory = one.memory
        sizes = dict(zip(PARTS, one.peak, strict=True))
        largest = max(sizes, key=sizes.__getitem__)
        words = (
            f"The peak is {bytes_words(memory.total_bytes)}, in {memory.peak_phase}. "
            f"The largest part of it: {largest}, {bytes_words(sizes[largest])}."
        )
        if self.chip is None:
            return words
        room = self.chip.program_bytes
        has = f"the {bytes_words(room)} that a program on {self.chip.name} can use"
        if memory.total_bytes > room:
            more = bytes_words(memory.total_bytes - room)
            return f"{words} That is {more} more than {has}."
        return f"{words} It is within {has}."

    # --- The plot ---------------------------------------------------------------------

    @cached_property
    def limit(self) -> int | None:
        """The bytes of the line, where it is near enough to be drawn."""
        highest = max(one.memory.total_bytes for one in self.courses)
        if self.chip is None or self.chip.program_bytes > _FAR * highest:
            return None
        return self.chip.program_bytes

    @cached_property
    def top(self) -> float:
        """Bytes at the upper edge of the plot."""
        highest = max(one.memory.total_bytes for one in self.courses)
        return _ROOM * max(highest, self.limit or 0)

    def page(self, name: str) -> Page:
        """The player's page; its ids start with `name`."""
        rows = math.ceil(len(self.parts) / 2)
        height = _TOP + _PLOT_HEIGHT + 44 + rows * _ROW
        return Page(
            self.title,
            self.facts,
            self.notes,
            (_hatching(name), self._base(name)),
            tuple(self._frame(one, name) for one in self.courses),
            View(-1, -1, _WIDTH + 2, height + 2),
            rules=_RULES,
            group="Choose a step",
            pace="read",
            chooses=True,
        )

    def _y(self, size: float) -> float:
        return _TOP + _PLOT_HEIGHT * (1 - size / self.top)

    def _x(self, x: float) -> float:
        return _LEFT + _PLOT_WIDTH * x / self.courses[0].points[-1].x

    def _base(self, name: str) -> str:
        """What all frames have: the grid and the phases."""
        lines = [f'<g id="{name}-base">']
        path = ""
        for tick in _ticks(self.top):
            y = self._y(tick)
            path += f"M{_n(_LEFT)} {_n(y)}H{_n(_WIDTH)}"
            lines.append(text("memory-tick", _LEFT - 5, y + 3.5, bytes_words(tick)))
        bottom = _TOP + _PLOT_HEIGHT
        for phase, (start, end) in self.courses[0].spans.items():
            x, middle = self._x(end), self._x((start + end) / 2)
            if end < self.courses[0].points[-1].x:
                path += f"M{_n(x)} {_n(_TOP)}V{_n(bottom + 5)}"
            lines.append(text("play-name", middle, bottom + 15, phase))
        lines.append(f'<path class="spmd-memory-grid" d="{path}"/>')
        return "\n".join([*lines, "</g>"])

    def _frame(self, one: Course, name: str) -> FramePage:
        items = [*self._areas(one, name), f'<use href="#{name}-base"/>']
        items += [*self._line(), *self._names(one), *self._legend(one, name)]
        phases = [
            f"{phase}: {_said(zip(PARTS, allocated(one, phase), strict=True))}, "
            f"{bytes_words(total)} in all"
            for phase, total in one.memory.phases.items()
        ]
        heading = one.name or "One step"
        return FramePage(tuple(items), "; ".join(phases), heading, self.sentence(one))

    def _areas(self, one: Course, name: str) -> list[str]:
        below = [0] * len(one.points)
        areas = []
        for part in self.parts:
            above = [
                low + _size(point, part)
                for low, point in zip(below, one.points, strict=True)
            ]
            if above != below:
                areas.append(self._area(part, one.points, below, above, name))
            below = above
        return areas

    def _area(
        self,
        part: str,
        points: Sequence[Point],
        below: Sequence[int],
        above: Sequence[int],
        name: str,
    ) -> str:
        xs = [self._x(point.x) for point in points]
        there = list(zip(xs, map(self._y, above), strict=True))
        back = list(zip(xs, map(self._y, below), strict=True))[::-1]
        way = "L".join(f"{_n(x)} {_n(y)}" for x, y in _turns([*there, *back]))
        return f'<path {_look(part, name)} d="M{way}Z"/>'

    def _names(self, one: Course) -> list[str]:
        """The names in areas that are high enough, where they are high."""
        places = {
            PARAMETERS: ("forward", _LEFT + 6),
            OPTIMIZER: ("forward", _LEFT + 6),
            GRADIENTS: ("update", _WIDTH - _LAST),
            SAVED: ("loss", self._x(one.spans["loss"][0]) - 2),
        }
        labels = []
        for part, (phase, x) in places.items():
            point = next(p for p in one.points if p.phase == phase)
            number = PARTS.index(part)
            low, high = sum(point.parts[:number]), sum(point.parts[: number + 1])
            middle = self._middle(low, high, _NAMED if part == GRADIENTS else _NEAR)
            if middle is not None:
                ink = f' fill="{SHARDS[_HUES[part]][1]}"'
                labels.append(text("memory-in", x, middle, part.split()[0], ink))
        return labels

    def _middle(self, low: int, high: int, above: float) -> float | None:
        """Where a name stands in an area, above or below the limit; None if nowhere.

        `above` is how far it stays above the line of the limit.
        """
        bottom, top = self._y(low), self._y(high)
        rooms = [(top, bottom)]
        if self.limit is not None:
            limit = self._y(self.limit)
            rooms = [
                (top, min(bottom, limit - above)),
                (max(top, limit + _NEAR), bottom),
            ]
        top, bottom = max(rooms, key=lambda room: room[1] - room[0])
        return (top + bottom) / 2 + 4 if bottom - top >= _IN_AREA else None

    def _line(self) -> list[str]:
        if self.limit is None or self.chip is None:
            return []
        y = self._y(self.limit)
        words = f"{self.chip.name}: {bytes_words(self.limit)}"
        way = f'd="M{_n(_LEFT)} {_n(y)}H{_n(_WIDTH)}"'
        return [
            f'<path class="spmd-memory-under" {way}/>',
            f'<path class="spmd-memory-limit" {way}/>',
            text("memory-line", _WIDTH - 2, y - 5, words),
        ]

    def _legend(self, one: Course, name: str) -> list[str]:
        memory, peak = one.memory, dict(zip(PARTS, one.peak, strict=True))
        y = _TOP + _PLOT_HEIGHT + 38
        total = bytes_words(memory.total_bytes)
        words = f"allocated at the peak, in {memory.peak_phase}: {total}"
        items = [text("play-head", 0, y, words)]
        rows = math.ceil(len(self.parts) / 2)
        for number, part in enumerate(reversed(self.parts)):
            column, row = divmod(number, rows)
            x, top = column * _SECOND, y + 8 + row * _ROW
            look = _look(part, name)
            items.append(rect(x, top, _SWATCH, _SWATCH, look, 2))
            words = "reserved, not in use"
            if part != RESERVED:
                words = f"{part} {bytes_words(peak[part])}"
            items.append(text("memory-word", x + _SWATCH + 5, top + 9.5, words))
        return items


def _size(point: Point, part: str) -> int:
    return point.reserved if part == RESERVED else point.parts[PARTS.index(part)]


def _look(part: str, name: str) -> str:
    if part == RESERVED:
        hatch = f"fill: url(#{name}-hatch)"
        return f'class="spmd-memory-reserved" style="{hatch}"'
    if part == OTHER:
        return 'class="spmd-memory-area spmd-memory-other"'
    return f'class="spmd-memory-area" fill="{SHARDS[_HUES[part]][0]}"'


def _turns(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The corners of a way: points between two on one horizontal line are left out."""
    kept: list[tuple[float, float]] = []
    for point in points:
        point = round(point[0], 1), round(point[1], 1)
        heights = {y for _, y in [*kept[-2:], point]}
        if len(kept) > 1 and len(heights) == 1:
            kept[-1] = point
        elif point not in kept[-1:]:
            kept.append(point)
    return kept


def _ticks(top: float) -> list[int]:
    """Round numbers of bytes up to the upper edge, about four of them."""
    unit = _UNIT ** int(math.log(max(top, 1), _UNIT))
    rough = top / unit / _TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * k for k in (1, 2, 5, 10) if power * k >= rough)
    return [round(k * step * unit) for k in range(int(top / (step * unit)) + 1)]


def _said(sizes: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"{part} {bytes_words(size)}" for part, size in sizes if size)


def _hatching(name: str) -> str:
    return (
        f'<pattern id="{name}-hatch" width="6" height="6" '
        'patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
        '<path d="M0 0V6" stroke="currentColor" stroke-width="1.5" '
        'stroke-opacity="0.3"/></pattern>'
    )
