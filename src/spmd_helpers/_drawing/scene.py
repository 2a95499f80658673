"""A Picture with a place in pixels for each box and each line of words.

The SVG and the matplotlib figure both draw this scene. Widths of text are estimated
from above, by the widest of the fonts that a reader is likely to have, so that no label
leaves its box.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .picture import Edge, Panel, Picture, Strip, Word, plain

Span = tuple[float, float]  # where a row or a column starts, and its size in px
WIDE = 680  # px; a wider drawing scrolls in its own box

SIZES = {
    "title": 14,
    "fact": 13,
    "caption": 13,
    "strip": 12,
    "slice": 12,
    "cell": 13,
    "copies": 11,
}
MONO = {"title", "slice", "cell"}
_LINE, _ROW, _GAP_ROW, _STRIP = 20, 44, 26, 24
_MIN, _GAP, _PAD, _SPACE = 48, 4, 7, 28
# A lone panel is at least this large, so that an uncut dimension looks uncut.
_LONE_HEIGHT, _LONE_WIDTH = 88.0, 240.0


@dataclass(frozen=True)
class Rect:
    """A box: a 'cell', maybe with a shard's number, or a 'strip' with hue and tint."""

    x: float
    y: float
    width: float
    height: float
    kind: str
    hue: int | None = None
    tint: float = 0.0
    hatched: bool = False
    shard: int | None = None


@dataclass(frozen=True)
class Text:
    """A line of words on a baseline, maybe on a shard; `room` is the width it has."""

    x: float
    y: float
    words: tuple[Word, ...]
    kind: str
    anchor: str = "start"
    room: float | None = None
    shard: int | None = None

    @property
    def plain(self) -> str:
        """The words without their hues."""
        return "".join(word.text for word in self.words)


@dataclass(frozen=True)
class Scene:
    """Everything that is drawn, in pixels from the upper left corner."""

    width: float
    height: float
    items: tuple[Rect | Text, ...]


def text_width(words: str, kind: str) -> float:
    """The width of a line of text in pixels, never less than a browser makes it."""
    size = SIZES[kind]  # fsum, because Python 3.11's own sum ends elsewhere
    if kind in MONO:
        return size * math.fsum(0.62 if c.isascii() else 1.0 for c in words)
    bold = 1.08 if kind in ("strip", "caption") else 1.0
    return bold * size * math.fsum(map(_character_width, words))


def _character_width(c: str) -> float:
    if c in "iljI.,:;'|!()[] ·":
        return 0.42
    if c in "mwMW→…⋮@%":
        return 1.0
    return 0.78 if c.isupper() or c in "=×+<>#" else 0.64 if c.isascii() else 1.0


def scene(picture: Picture) -> Scene:
    """Place every part of a picture."""
    grid = _Grid(picture)
    head = max(_head_width(panel) for panel in picture.panels if panel)
    pitch = max(grid.width, head) + _SPACE
    across = _across(picture.panels, int((WIDE + _SPACE) // pitch))
    title_width = min(text_width(picture.title, "title"), WIDE)
    room = max(350.0, across * pitch - _SPACE, title_width)
    lines: list[Text] = []
    y = 0.0
    what, *spec = picture.title.split(" as ")
    title = [what, *(f"as {words}" for words in spec)]
    for line in _wrap(title, "title", room, " "):
        y += _LINE
        lines.append(_text(0, y - 5, line, "title"))
    for line in _wrap(picture.facts, "fact", room):
        y += _LINE
        lines.append(_text(0, y - 6, line, "fact"))
    y += 10
    if picture.caption:
        above, y = _captions(picture, y, max(room, 560.0))
        lines += above
    width = max(room, *(i.x + text_width(i.plain, i.kind) for i in lines))
    items: list[Rect | Text] = [*lines]
    column = 0
    for panel in picture.panels:
        if panel is None:  # a line of its own; both ends begin a new one
            items.append(_text(0, y + 14, picture.panel_gap, "caption"))
            y += _LINE + _SPACE / 2
            continue
        items += grid.panel(panel, column * pitch, y)
        column = (column + 1) % across
        if column == 0:
            y += grid.height + grid.head + _SPACE
    if column:
        y += grid.height + grid.head + _SPACE
    y += 8 - _SPACE
    for note in picture.notes:
        for line in _wrap(note.split(" "), "fact", width, " "):
            y += _LINE
            items.append(_text(0, y - 6, line, "fact"))
    return Scene(_round(width), _round(y), tuple(items))


def _captions(picture: Picture, y: float, room: float) -> tuple[list[Text], float]:
    """What panels, rows and columns are, beside each other while there is room."""
    items: list[Text] = []
    x = 0.0
    captions = picture.captions.items()
    for name, words in captions if len(picture.panels) > 1 else list(captions)[:1]:
        words = (Word(f"{name}: "), *words)
        width = text_width(plain(words), "caption")
        if not items or x + width > room:
            x, y = 0.0, y + _LINE
        items.append(Text(x, y - 4, words, "caption"))
        x += width + 16
    return items, y + 12


def _across(panels: Sequence[Panel | None], most: int) -> int:
    """Panels beside each other: as many as fit and fill every line, if any do."""
    count = panels.index(None) if None in panels else len(panels)
    most = max(1, min(most, count))
    even = [n for n in range(2, most + 1) if count % n == 0]
    return even[-1] if even else most


class _Grid:
    """Sizes and places that all panels of a picture share."""

    def __init__(self, picture: Picture) -> None:
        rows, columns = picture.rows, picture.columns
        self.rows, self.columns, self.hatched = rows, columns, picture.hatched
        one = len(picture.panels) == 1  # else the captions stand above all panels
        self.row_caption = rows.caption if one else ()
        self.column_caption = columns.caption if one else ()
        self.level_widths = [
            max(text_width(s.text, "strip") for s in level) + 2 * _PAD
            for level in rows.levels
        ]
        labels = [text_width(label, "slice") for label in rows.labels if label]
        self.label_width = max(labels, default=0) + (2 * _PAD if labels else 0)
        steps = sum(self.level_widths) + _GAP * len(self.level_widths)
        self.left = steps + self.label_width
        if self.row_caption:
            spare = text_width(plain(rows.caption), "caption") + 14 - self.left
            if spare > 0 and self.level_widths:
                self.level_widths[-1] += spare
            self.left += max(0.0, spare)
        self.widths = self._column_widths(picture)
        tall = max(_ROW, _LONE_HEIGHT / rows.size) if self.row_caption else _ROW
        self.heights = [_GAP_ROW if i == rows.gap else tall for i in range(rows.size)]
        self.head = (
            _STRIP + 6
            if any(p and (p.title or p.strips) for p in picture.panels)
            else 0
        )
        self.top = _STRIP * (bool(self.column_caption) + len(columns.levels))
        if any(columns.labels) or self.row_caption:
            self.top += _STRIP - 2
        self.width = self.left + sum(self.widths) + _GAP * (len(self.widths) - 1)
        if self.column_caption:
            caption = text_width(plain(columns.caption), "caption")
            self.width = max(self.width, self.left + caption)
        self.height = self.top + sum(self.heights) + _GAP * (len(self.heights) - 1)

    def _column_widths(self, picture: Picture) -> list[float]:
        edge = self.columns
        need = [float(_MIN)] * edge.size
        for j, label in enumerate(edge.labels):
            need[j] = max(need[j], text_width(label, "slice") + 6)
        for panel in filter(None, picture.panels):
            for row in panel.cells:
                for j, words in enumerate(row):
                    for k, line in enumerate(words or ()):
                        kind = "copies" if k else _cell_kind(line)
                        need[j] = max(need[j], text_width(line, kind) + 2 * _PAD)
        for level in edge.levels:
            for strip in level:
                span = strip.stop - strip.start
                room = text_width(strip.text, "strip") + 2 * _PAD
                for j in range(strip.start, strip.stop):
                    need[j] = max(need[j], (room - _GAP * (span - 1)) / span)
        widest = max((w for j, w in enumerate(need) if j != edge.gap), default=_MIN)
        if len(picture.panels) == 1 and self.rows.size > 1:
            widest = max(widest, _LONE_WIDTH / edge.size)
        elif len(picture.panels) == 1 and edge.size == 1:
            widest = max(widest, _LONE_WIDTH / 2)
        return [w if j == edge.gap else widest for j, w in enumerate(need)]

    def _spans(self, sizes: Sequence[float], start: float) -> list[Span]:
        places: list[Span] = []
        for size in sizes:
            places.append((start, size))
            start += size + _GAP
        return places

    def panel(self, panel: Panel, x: float, y: float) -> list[Rect | Text]:
        """The items of one panel, its upper left corner at x, y."""
        items: list[Rect | Text] = []
        if self.head:
            at = x
            if panel.title:
                items.append(_text(at, y + 16, panel.title, "slice"))
                at += text_width(panel.title, "slice") + 6
            for strip in panel.strips:
                items += _strip_items(strip, at, y, _chip(strip), _STRIP - 2)
                at += _chip(strip) + _GAP
            y += self.head
        columns = self._spans(self.widths, x + self.left)
        rows = self._spans(self.heights, y + self.top)
        items += self._top(self.columns, columns, x, y)
        items += self._side(self.rows, rows, x, y)
        for (top, height), cells, shards in zip(
            rows, panel.cells, panel.shards, strict=True
        ):
            for (start, width), words, shard in zip(
                columns, cells, shards, strict=True
            ):
                items += self._cell(words, shard, start, top, width, height)
        return items

    def _top(
        self, edge: Edge, places: Sequence[Span], x: float, y: float
    ) -> list[Rect | Text]:
        items: list[Rect | Text] = []
        if self.column_caption:
            items.append(Text(x + self.left, y + 16, edge.caption, "caption"))
            y += _STRIP
        for level in edge.levels:
            for strip in level:
                start, end = places[strip.start][0], sum(places[strip.stop - 1])
                items += _strip_items(strip, start, y, end - start, _STRIP - 3)
            y += _STRIP
        for (start, width), label in zip(places, edge.labels, strict=True):
            if label:
                center = start + width / 2
                words = (Word(label),)
                items.append(Text(center, y + 14, words, "slice", "middle", width))
        return items

    def _side(
        self, edge: Edge, places: Sequence[Span], x: float, y: float
    ) -> list[Rect | Text]:
        items: list[Rect | Text] = []
        right = x + self.left - _PAD
        if self.row_caption:
            items.append(Text(x, y + self.top - 8, edge.caption, "caption"))
        for level, width in zip(edge.levels, self.level_widths, strict=True):
            for strip in level:
                start, end = places[strip.start][0], sum(places[strip.stop - 1])
                items += _strip_items(strip, x, start, width, end - start)
            x += width + _GAP
        for (start, height), label in zip(places, edge.labels, strict=True):
            if label:
                middle = start + height / 2 + 4
                words = (Word(label),)
                room = self.label_width
                items.append(Text(right, middle, words, "slice", "end", room))
        return items

    def _cell(
        self,
        words: tuple[str, ...] | None,
        shard: int | None,
        x: float,
        y: float,
        width: float,
        height: float,
    ) -> list[Rect | Text]:
        center, middle = x + width / 2, y + height / 2
        if words is None:
            across = height == _GAP_ROW
            return [_text(center, middle + 5, "⋮" if across else "…", "fact", "middle")]
        items: list[Rect | Text] = [
            Rect(x, y, width, height, "cell", hatched=self.hatched, shard=shard)
        ]
        first = middle + 5 - 8 * (len(words) - 1)
        for k, line in enumerate(words):
            kind = "copies" if k else _cell_kind(line)
            text = (Word(line),)
            place = center, first + 15 * k
            items.append(Text(*place, text, kind, "middle", width, shard))
        return items


def _cell_kind(line: str) -> str:
    return "fact" if line.startswith("device") else "cell"


def _strip_items(
    strip: Strip, x: float, y: float, width: float, height: float
) -> list[Rect | Text]:
    words = (Word(strip.text),)
    return [
        Rect(x, y, width, height, "strip", strip.hue, strip.tint),
        Text(x + width / 2, y + height / 2 + 4, words, "strip", "middle", width),
    ]


def _head_width(panel: Panel) -> float:
    chips = sum(_chip(strip) + _GAP for strip in panel.strips)
    return text_width(panel.title, "slice") + 6 + chips


def _chip(strip: Strip) -> float:
    return text_width(strip.text, "strip") + 2 * _PAD


def _text(x: float, y: float, line: str, kind: str, anchor: str = "start") -> Text:
    return Text(x, y, (Word(line),), kind, anchor)


def _wrap(
    parts: Iterable[str], kind: str, room: float = 0.0, between: str = " · "
) -> list[str]:
    """Join parts into lines as wide as there is room for."""
    lines: list[str] = []
    for part in parts:
        longer = f"{lines[-1]}{between}{part}" if lines else part
        if lines and text_width(longer, kind) <= room:
            lines[-1] = longer
        else:
            lines.append(part)
    return lines


def _round(value: float) -> float:
    return round(value, 1)
