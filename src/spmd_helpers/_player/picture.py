"""What a player shows: every box, cell and word of every frame, placed.

The SVG and the text twin render this record; neither computes.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .._core.palette import SHARDS
from .._hlo.collectives import Collective
from . import schedule, words
from .schedule import Block, Frame, Place

DRAWN = len(SHARDS)  # devices, and shards of a group
HOPS = 14  # drawn; of more, the first and the last of each phase
_ENDS = 2  # hops drawn at each end of a phase where there are more

CELL_WIDTH, CELL_HEIGHT = 32, 25
_GAP, _PAD, _HEAD = 4, 4, 19
BOX_WIDTH = 2 * CELL_WIDTH + _GAP + 2 * _PAD
_BETWEEN = 6  # boxes
_GAP_ROW = 14  # where devices are left out
_FRAME, _TITLE = 7, 18  # around a group's boxes, its title
BAR = 40  # the counter
COLUMNS = 4  # boxes side by side
WIDTH = COLUMNS * (BOX_WIDTH + _BETWEEN) - _BETWEEN + 4 * _FRAME  # or two groups of two


@dataclass(frozen=True)
class Box:
    """A device: where it stands, and where its slots are."""

    device: int
    x: float
    y: float
    height: float
    slots: Mapping[int, tuple[float, float]]


@dataclass(frozen=True)
class Panel:
    """A group of devices."""

    title: str
    x: float
    y: float
    width: float
    height: float
    boxes: tuple[Box, ...]
    gap: bool  # whether devices are left out in its middle


@dataclass(frozen=True)
class Look:
    """How a cell looks; `hue` is None for zeros, and where the colors end."""

    label: str
    hue: int | None
    parts: int
    needs: int


@dataclass(frozen=True)
class Cell:
    """A shard on a device in one frame.

    Attributes:
        x: its left side; y is its upper side.
        look: what is drawn.
        is_new: whether the hop before this frame changed it.
        to: how far it goes in the next hop, to the right and down, if it is sent.
        leaves: whether it is gone from here then.
    """

    x: float
    y: float
    look: Look
    is_new: bool
    to: tuple[float, float] | None
    leaves: bool


@dataclass(frozen=True)
class Step:
    """One frame: its heading, its sentences, what each device has, its cells."""

    heading: str
    sentence: str
    state: str
    sent: str
    share: float  # of all bytes that are sent
    cells: tuple[Cell, ...]
    rows: tuple[tuple[int, str], ...]  # device, its cells in words


@dataclass(frozen=True)
class Picture:
    """A complete player."""

    words: words.Words
    panels: tuple[Panel, ...]
    steps: tuple[Step, ...]
    height: float


def picture(collective: Collective, mesh: Mapping[str, int]) -> Picture:
    """The picture of a collective; `mesh` names the places of its groups, or is {}."""
    schedule.check_played(collective)
    drawn, slots = _chosen(collective)
    permutes = collective.kind == schedule.PERMUTE
    groups = collective.groups if permutes else _drawn_groups(collective)
    panels, height = _panels(collective, drawn, slots, mesh)
    boxes = {box.device: box for panel in panels for box in panel.boxes}
    count = schedule.hop_count(collective)
    kept = _kept(collective, count)
    shown = {
        number: frame
        for number, frame in enumerate(schedule.frames(collective, groups, slots))
        if number in kept
    }
    steps = _Steps(collective, boxes, shown, count, max(kept))
    return Picture(
        words.say_collective(collective, len(panels), len(drawn[0])),
        panels,
        tuple(map(steps.step, shown)),
        height + BAR,
    )


class _Steps:
    """Makes the steps of a picture from the frames that are shown."""

    def __init__(
        self,
        collective: Collective,
        boxes: Mapping[int, Box],
        shown: Mapping[int, Frame],
        count: int,
        last: int,
    ) -> None:
        self.collective, self.boxes, self.shown = collective, boxes, shown
        self.count, self.last = count, last
        self.hues: dict[object, int] = {}
        self.sums: dict[schedule.Key, str] = {}
        first = [
            block
            for (device, _), block in sorted(shown[0].contents.items(), key=_place)
            if device in boxes
        ]
        for block in first:
            if block.parts:
                self.hues.setdefault(self._shard(block), len(self.hues))
            self.sums.setdefault(block.key, chr(ord("a") + len(self.sums) % 26))

    def _shard(self, block: Block) -> object:
        swaps = self.collective.kind == schedule.SWAP
        return block.key if swaps else (block.key, block.index)

    def label(self, block: Block) -> str:
        """The name of a shard: 3, of several sums a3, of a piece 3.1."""
        if self.collective.kind in words.PARTIAL:
            several = self.sums[block.key] if len(self.sums) > 1 else ""
            return f"{several}{block.index}"
        if self.collective.kind == schedule.SWAP:
            return f"{block.key[0]}.{block.index}"
        return f"{block.key[0]}"

    def step(self, number: int) -> Step:
        """The step of a frame that is shown."""
        frame = self.shown[number]
        following = self.shown.get(number + 1)
        contents = {p: b for p, b in frame.contents.items() if p[0] in self.boxes}
        wire_bytes = self.collective.wire_bytes
        return Step(
            heading=words.heading(self.collective, frame, number, self.count),
            sentence=self._sentence(number),
            state=words.say_state(contents, list(self.boxes), self.label),
            sent=words.say_sent(frame.sent_bytes, number == self.last),
            share=frame.sent_bytes / wire_bytes if wire_bytes else 0.0,
            cells=tuple(
                self._cell(place, block, frame, following)
                for place, block in sorted(contents.items(), key=_place)
            ),
            rows=tuple(
                (device, words.row(contents, device, box.slots, self.label))
                for device, box in self.boxes.items()
            ),
        )

    def _sentence(self, number: int) -> str:
        frame = self.shown[number]
        if frame.hop is None:
            return words.say_start(self.collective)
        again = ""
        if number - 1 not in self.shown:
            before = max(n for n in self.shown if n < number)
            again = f"Hops {before + 1} to {number - 1} go the same way. "
        example = {d: box.slots for d, box in self.boxes.items()}
        return again + words.say_hop(
            self.collective, frame, example, self.label, number, number == self.last
        )

    def _cell(
        self, place: Place, block: Block, frame: Frame, following: Frame | None
    ) -> Cell:
        x, y = self.boxes[place[0]].slots[place[1]]
        look = Look(
            self.label(block) if block.parts else "zeros",
            self._hue(block),
            len(block.parts),
            block.needs,
        )
        sends = following.hop.sends if following and following.hop else ()
        send = next((s for s in sends if s.source == place != s.target), None)
        drops = following.hop.drops if following and following.hop else ()
        to = None
        if send and send.target[0] in self.boxes:
            end = self.boxes[send.target[0]].slots[send.target[1]]
            to = end[0] - x, end[1] - y
        leaves = place in drops or (send is not None and not send.keeps)
        return Cell(x, y, look, place in frame.arrived, to, leaves)

    def _hue(self, block: Block) -> int | None:
        hue = self.hues.get(self._shard(block))
        return hue if block.parts and hue is not None and hue < DRAWN else None


def _place(item: tuple[Place, Block]) -> Place:
    return item[0]


def _drawn_groups(collective: Collective) -> tuple[tuple[int, ...], ...]:
    """As many groups as there are colors for."""
    return collective.groups[: max(1, DRAWN // schedule.group_size(collective))]


def _chosen(
    collective: Collective,
) -> tuple[tuple[tuple[int, ...], ...], tuple[int, ...]]:
    """The devices that are drawn, by group, and the slots on each."""
    if collective.kind == schedule.PERMUTE:
        return (_ends(schedule.devices(collective)),), (0,)
    groups = tuple(map(_ends, _drawn_groups(collective)))
    return groups, _ends(tuple(range(schedule.group_size(collective))))


def _ends(items: tuple[int, ...]) -> tuple[int, ...]:
    """All of them, or the first and the last."""
    if len(items) <= DRAWN:
        return items
    return items[: DRAWN // 2] + items[-DRAWN // 2 :]


def _kept(collective: Collective, count: int) -> set[int]:
    """The numbers of the frames that are drawn."""
    slices = collective.kind == "reduce-scatter" and schedule.sent_as(
        collective
    ).startswith("all-reduce")
    last = count + slices
    if count <= HOPS:
        return {*range(last + 1)}
    phases = schedule.phase_count(collective)
    edges = [count * phase // phases for phase in range(phases + 1)]
    near = {e + d for e in edges for d in range(-_ENDS, _ENDS + 1)}
    return {n for n in near if 0 <= n <= last} | {last}


def _panels(
    collective: Collective,
    drawn: Sequence[Sequence[int]],
    slots: Sequence[int],
    mesh: Mapping[str, int],
) -> tuple[tuple[Panel, ...], float]:
    """The groups, side by side where there is room, and the height of them all."""
    titled = len(collective.groups) > 1 and collective.kind != schedule.PERMUTE
    panels: list[Panel] = []
    x = y = 0.0
    count = len(schedule.devices(collective))
    size = count if not titled else schedule.group_size(collective)
    for number, group in enumerate(drawn):
        frame = _FRAME if titled else 0
        across = min(len(group), COLUMNS)
        width = across * (BOX_WIDTH + _BETWEEN) - _BETWEEN + 2 * frame
        if x + width > WIDTH + 1:
            x, y = 0.0, y + panels[-1].height + _BETWEEN
        title = _panel_title(collective, number, group, mesh) if titled else ""
        top = y + frame + (_TITLE if title else 0)
        gap = len(group) < size
        ring = collective.kind != schedule.PERMUTE
        boxes = _boxes(group, slots, x + frame, top, ring, _GAP_ROW if gap else 0)
        height = max(box.y + box.height for box in boxes) - y + frame
        panels.append(Panel(title, x, y, width, height, boxes, gap))
        x += width + _BETWEEN
    return tuple(panels), max(panel.y + panel.height for panel in panels)


def _boxes(
    group: Sequence[int],
    slots: Sequence[int],
    x: float,
    y: float,
    ring: bool,
    between: float,
) -> tuple[Box, ...]:
    """A group's devices: a line, or two, of which the second goes back in a ring."""
    lines = [group]
    if len(group) > COLUMNS:
        half = math.ceil(len(group) / 2)
        lines = [group[:half], group[half:]]
    rows = math.ceil(len(slots) / 2)
    height = _HEAD + rows * (CELL_HEIGHT + _GAP) - _GAP + _PAD
    boxes = []
    for row, line in enumerate(lines):
        for column, device in enumerate(line):
            place = len(lines[0]) - 1 - column if row and ring else column
            left = x + place * (BOX_WIDTH + _BETWEEN)
            upper = y + row * (height + _BETWEEN + between)
            places = _slots(slots, left, upper + _HEAD)
            boxes.append(Box(device, left, upper, height, places))
    return tuple(boxes)


def _slots(
    slots: Sequence[int], left: float, top: float
) -> dict[int, tuple[float, float]]:
    alone = len(slots) == 1
    middle = (BOX_WIDTH - CELL_WIDTH) / 2
    return {
        slot: (
            left + (middle if alone else _PAD + k % 2 * (CELL_WIDTH + _GAP)),
            top + k // 2 * (CELL_HEIGHT + _GAP),
        )
        for k, slot in enumerate(slots)
    }


def _panel_title(
    collective: Collective, number: int, group: Sequence[int], mesh: Mapping[str, int]
) -> str:
    """'model 1': what a group's devices have in common, or its number."""
    inner = math.prod(mesh.values())
    parts = []
    for axis, size in mesh.items():
        inner //= size
        common = {device // inner % size for device in group}
        if len(common) == 1 and size > 1:
            parts.append(f"{axis} {common.pop()}")
    return " · ".join(parts) if collective.axes and parts else f"group {number}"
