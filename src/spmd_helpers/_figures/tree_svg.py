"""Trees on devices, drawn: a box for each device, a row of shards for each tree."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from .._core.palette import SHARDS
from .._core.words import bytes_words, count_words, table
from .._player.page import FramePage, Page, View
from .elements import box, rect, text
from .trees import Row, Trees

_COLUMNS = 4
_LEFT, _PAD, _GAP, _BETWEEN = 72.0, 4.0, 5.0, 5.0
_CELL = 8.0  # wide
_INNER = 8 * _CELL
_BOX = _INNER + 2 * _PAD
_WIDTH = _LEFT + _COLUMNS * (_BOX + _BETWEEN) - _BETWEEN
_HEAD, _FOOT = 18.0, 17.0
_LEAST, _MOST = 13.0, 39.0  # px; heights of rows, in proportion to bytes
_SMALL = 0.01  # of the largest row: what is smaller is not drawn
_COUNTER, _BAR = 34.0, 7.0
_RULES = """
.spmd-tree-row.spmd-tree-row { font-size: 11px; text-anchor: end; }
.spmd-tree-size.spmd-tree-size { font-size: 10.5px; \
font-variant-numeric: tabular-nums; }
.spmd-tree-cell.spmd-tree-cell { stroke: currentColor; stroke-opacity: 0.6; \
stroke-width: 0.75; }
"""


@dataclass(frozen=True)
class TreePicture:
    """Trees at several stages, as the frames of a player."""

    trees: Trees

    @property
    def title(self) -> str:
        """The heading."""
        names = list(dict.fromkeys(row.tree for row in self.trees.rows))
        devices = count_words(len(self.trees.devices), "device")
        return f"{count_words(len(names), 'tree')} on {devices}"

    @property
    def facts(self) -> str:
        """The size of each tree."""
        sizes: dict[str, int] = {}
        for row in self.trees.rows:
            sizes[row.tree] = sizes.get(row.tree, 0) + row.total_bytes
        return " · ".join(f"{tree} {bytes_words(size)}" for tree, size in sizes.items())

    @property
    def notes(self) -> str:
        """What colors, dashes and heights mean, and what is not drawn."""
        notes = [
            "A color is a shard: equal colors in a row are equal values on several "
            "devices. Dashed outlines are shards that the device does not have. "
            "Heights are in proportion to bytes."
        ]
        small = [row for row in self.trees.rows if row not in self.rows]
        if small:
            size = bytes_words(sum(row.total_bytes for row in small))
            notes.append(f"Not drawn: {size} in small leaves.")
        return " ".join(notes)

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """The rows that are large enough to be drawn."""
        largest = max(row.total_bytes for row in self.trees.rows)
        return tuple(r for r in self.trees.rows if r.total_bytes >= _SMALL * largest)

    def name(self, row: Row) -> str:
        """The name of a row: its tree's, and its leaves' where it has several rows."""
        several = sum(other.tree == row.tree for other in self.rows) > 1
        return f"{row.tree} {', '.join(row.paths)}" if several else row.tree

    def heading(self, stage: int) -> str:
        """The name of a stage."""
        return self.trees.names[stage]

    def sentence(self, stage: int) -> str:
        """What a device has of each tree."""
        parts = []
        for row in self.rows:
            counts = {len(pieces) for pieces in row.stages[stage]}
            most = bytes_words(row.piece_bytes * max(counts))
            if counts == {row.pieces}:
                parts.append(f"all of {self.name(row)} ({most})")
            else:
                share = f"{max(counts)} of {row.pieces} shards"
                parts.append(f"{share} of {self.name(row)} ({most})")
        total = bytes_words(self.largest(stage))
        return f"Each device has {', '.join(parts)}: {total}."

    def largest(self, stage: int) -> int:
        """Bytes on the device that has most."""
        devices = range(len(self.trees.devices))
        return max(self.trees.bytes_on(stage, device) for device in devices)

    def state(self, stage: int) -> str:
        """What each device has, shard by shard."""
        rows = [("", *(f"device {device}" for device in self.trees.devices))]
        for row in self.rows:
            words = [_shards(row, pieces) for pieces in row.stages[stage]]
            rows.append((self.name(row), *words))
        return table(rows)

    # --- Places -----------------------------------------------------------------------

    @cached_property
    def _heights(self) -> list[float]:
        least = min(row.total_bytes for row in self.rows)
        return [min(_MOST, _LEAST * row.total_bytes / least) for row in self.rows]

    @cached_property
    def _box_height(self) -> float:
        return _HEAD + sum(self._heights) + _GAP * len(self.rows) + _FOOT

    def _corner(self, device: int) -> tuple[float, float]:
        line, column = divmod(device, _COLUMNS)
        return (
            _LEFT + column * (_BOX + _BETWEEN),
            line * (self._box_height + _BETWEEN),
        )

    def _tops(self) -> list[float]:
        tops, y = [], _HEAD
        for height in self._heights:
            tops.append(y)
            y += height + _GAP
        return tops

    @cached_property
    def _height(self) -> float:
        lines = -(-len(self.trees.devices) // _COLUMNS)
        return lines * (self._box_height + _BETWEEN) - _BETWEEN + _COUNTER

    # --- SVG --------------------------------------------------------------------------

    def page(self, name: str) -> Page:
        """The player's page; its ids start with `name`."""
        stages = range(len(self.trees.names))
        return Page(
            self.title,
            self.facts,
            self.notes,
            (self._base(name),),
            tuple(self._frame(stage, name) for stage in stages),
            View(-1, -1, _WIDTH + 2, self._height + 2),
            rules=_RULES,
            group="Choose a stage",
            pace="read",
            chooses=True,
        )

    def _base(self, name: str) -> str:
        lines = [f'<g id="{name}-base">']
        for device, number in enumerate(self.trees.devices):
            x, y = self._corner(device)
            box = 'class="spmd-play-device"'
            lines.append(rect(x, y, _BOX, self._box_height, box, 5))
            lines.append(text("play-name", x + _BOX / 2, y + 13.5, f"device {number}"))
            if device % _COLUMNS == 0:
                lines += self._row_names(y)
        y = self._height - _BAR
        lines.append(text("play-head", 0, y - 7, "memory per device"))
        bar = 'class="spmd-play-rest"'
        return "\n".join([*lines, rect(0, y, _WIDTH, _BAR, bar, 3.5), "</g>"])

    def _row_names(self, y: float) -> list[str]:
        places = zip(self.rows, self._tops(), self._heights, strict=True)
        return [
            text("tree-row", _LEFT - 6, y + top + h / 2 + 4, self.name(row))
            for row, top, h in places
        ]

    def _frame(self, stage: int, name: str) -> FramePage:
        items = [f'<use href="#{name}-base"/>']
        slots: list[str] = []
        filled: dict[int, list[str]] = {}
        for device in range(len(self.trees.devices)):
            x, y = self._corner(device)
            places = zip(self.rows, self._tops(), self._heights, strict=True)
            for row, top, height in places:
                wide = _INNER / row.pieces
                for piece in range(row.pieces):
                    path = box(x + _PAD + piece * wide, y + top, wide, height)
                    has = piece in row.stages[stage][device]
                    (filled.setdefault(piece, []) if has else slots).append(path)
            size = bytes_words(self.trees.bytes_on(stage, device))
            middle = x + _BOX / 2
            items.append(text("tree-size", middle, y + self._box_height - 5.5, size))
        items.append(f'<path class="spmd-play-slot" d="{"".join(slots)}"/>')
        items += [
            f'<path class="spmd-tree-cell" fill="{SHARDS[piece][0]}" '
            f'd="{"".join(paths)}"/>'
            for piece, paths in sorted(filled.items())
        ]
        items += self._counter(stage)
        label = self.sentence(stage) + " " + _spoken(self.rows, stage, self.trees)
        return FramePage(tuple(items), label, self.heading(stage), self.sentence(stage))

    def _counter(self, stage: int) -> list[str]:
        stages = range(len(self.trees.names))
        size = self.largest(stage)
        share = size / max(map(self.largest, stages))
        y = self._height - _BAR
        bar = 'class="spmd-play-sent"'
        words = f"{bytes_words(size)}, {share:.0%}"
        return [
            rect(0, y, _WIDTH * share, _BAR, bar, 3.5),
            text("play-bytes", _WIDTH, y - 7, words),
        ]


def _shards(row: Row, pieces: Sequence[int] | frozenset[int]) -> str:
    """'all', or the numbers of the shards."""
    if len(pieces) == row.pieces:
        return "all"
    return " ".join(map(str, sorted(pieces)))


def _spoken(rows: Sequence[Row], stage: int, trees: Trees) -> str:
    """Which shards each device has, for those that are not on all devices."""
    sentences = []
    for row in rows:
        if any(len(pieces) < row.pieces for pieces in row.stages[stage]):
            words = [
                f"device {device} {_shards(row, pieces)}"
                for device, pieces in zip(trees.devices, row.stages[stage], strict=True)
            ]
            sentences.append(f"Shards of {row.tree}: {', '.join(words)}.")
    return " ".join(sentences)
