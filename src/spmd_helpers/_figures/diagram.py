"""A diagram: boxes, lines and words in their places, written as SVG.

A module of this wing computes what is drawn and hands it over as these records.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import TypeGuard

from .._core.notebook import InNotebook
from .._core.palette import (
    DARK,
    DARK_PAGES,
    INK,
    LIGHT,
    PAPER,
    SHARDS,
    axis_variables,
)
from .._core.words import number as _n
from .._drawing.scene import text_width

_LEAST = 0.8  # of its width; a narrower column scrolls
_PHONE = 320  # px; what every column has
_HATCH = 6.5  # px between two lines
_FRAMES = 2.0, 3.5  # px, of a box whose color is its frame: a narrow one, others
_MARGIN = 14  # px around a diagram in a file of its own


@dataclass(frozen=True)
class Box:
    """A rectangle with a label in its middle.

    Attributes:
        x: its left side; y is its upper side.
        kind: 'shard', filled with its color; 'frame', with a frame in its color;
            'part', hatched in its color; 'empty', dashed; 'slot', one
            of many empty ones, which has no label; 'dropped', crossed out;
            'device', 'host' and 'mark', outlines; 'bar', grey.
        hue: its number among the colors of shards; None for no color.
        to: how far it moves before the next frame: right and down.
        leaves: whether it is gone from its place while it moves.
        at: where its label is, from 0, at the left, to 1.
    """

    x: float
    y: float
    width: float
    height: float
    kind: str = "shard"
    text: str = ""
    hue: int | None = None
    to: tuple[float, float] | None = None
    leaves: bool = True
    at: float = 0.5


@dataclass(frozen=True)
class Line:
    """A line through points; `hue` is the number of a mesh axis.

    `kind` is 'thin', 'thick', or 'waits', which is dashed.
    """

    points: tuple[tuple[float, float], ...]
    kind: str = "thin"
    hue: int | None = None


@dataclass(frozen=True)
class Text:
    """Words on a baseline: a 'title', 'label' or 'small' print."""

    x: float
    y: float
    text: str
    kind: str = "label"
    anchor: str = "start"


Item = Box | Line | Text


@dataclass(frozen=True)
class _Slots:
    boxes: tuple[Box, ...]


class Diagram(InNotebook):
    """A diagram; a notebook shows it when a cell ends with it.

    `print` gives its twin in plain text, `.svg` the text of an SVG file. It can be a
    frame of a `spmd.FramePlayer`.
    """

    def __init__(
        self,
        title: str,
        sentence: str,
        rows: str,
        size: tuple[float, float],
        items: Sequence[Item],
    ) -> None:
        self._title, self._sentence, self._rows = title, sentence, rows
        self._items = tuple(items)
        self._width, self._height = size
        texts = [item for item in items if isinstance(item, Text)]
        self._width = max(self._width, *map(_right, texts), 1.0)

    def __str__(self) -> str:
        return f"{self._title}\n{self._rows}".rstrip()

    __repr__ = __str__

    @property
    def svg(self) -> str:
        """The diagram as the text of an SVG file."""
        root = (
            f".spmd-diagram {{ color: {INK[0]}; --ground: {PAPER[0]}; }}",
            "@media (prefers-color-scheme: dark) { svg.spmd-diagram "
            f"{{ color: {INK[1]}; --ground: {PAPER[1]}; {axis_variables(DARK)} }} }}",
        )
        return self._element([*_RULES, *root], _MARGIN)

    def _html(self) -> str:
        more = ""
        if _LEAST * self._width > _PHONE:
            more = f' tabindex="0" role="group" aria-label="{escape(self._title)}"'
        return (
            f'<div class="spmd-diagram-box" style="overflow-x: auto"{more}>\n'
            f"{self._element([*_RULES, *_PAGE_RULES], 1)}</div>\n"
        )

    def _element(self, rules: Sequence[str], margin: int) -> str:
        body = [line for item in _joined(self._items) for line in _drawn(item)]
        if margin > 1:
            box = Box(-margin, -margin, self._width + 2 * margin, 0)
            place = _place(box, self._height + 2 * margin)
            body.insert(0, f'<rect class="ground" {place}/>')
        name = hashlib.sha256("\n".join([self._title, *body]).encode()).hexdigest()[:10]
        width, height = (_n(n + 2 * margin) for n in (self._width, self._height))
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" class="spmd-diagram" '
                f'role="img" aria-labelledby="d{name}-t d{name}-d" width="{width}" '
                f'height="{height}" viewBox="{-margin} {-margin} {width} {height}" '
                f'style="min-width: {_n(_LEAST * self._width)}px; max-width: 100%; '
                'height: auto">',
                f'<title id="d{name}-t">{escape(self._title)}</title>',
                f'<desc id="d{name}-d">{escape(self._sentence)}</desc>',
                "<style>",
                *rules,
                "</style>",
                *body,
                "</svg>",
                "",
            ]
        )


def _right(text: Text) -> float:
    share = {"start": 1.0, "middle": 0.5, "end": 0.0}[text.anchor]
    return text.x + share * text_width(text.text, _SIZES.get(text.kind, "caption"))


# What the sizes of words are called among the drawings of shardings.
_SIZES = {"label": "strip", "small": "copies", "tiny": "copies"}
_WORDS = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif"
_RULES = (
    f"svg.spmd-diagram {{ {axis_variables(LIGHT)} }}",  # of no part of a player
    f".spmd-diagram text {{ fill: currentColor; font-family: {_WORDS}; }}",
    ".spmd-diagram .title { font-size: 13px; font-weight: 600; }",
    ".spmd-diagram .label { font-size: 12px; }",
    ".spmd-diagram .small { font-size: 10.5px; }",
    ".spmd-diagram .name { font-size: 12px; font-weight: 600; }",
    ".spmd-diagram .tiny { font-size: 10.5px; font-weight: 600; }",
    ".spmd-diagram rect, .spmd-diagram path { fill: none; stroke: currentColor; }",
    ".spmd-diagram .ground { fill: var(--ground); stroke: none; }",
    ".spmd-diagram .halo { stroke: var(--ground); stroke-width: 4px; "
    "paint-order: stroke; stroke-linejoin: round; }",
    ".spmd-diagram .edge { stroke-opacity: 0.6; }",
    ".spmd-diagram .paper { fill: var(--ground); stroke-opacity: 0.6; }",
    ".spmd-diagram .empty { stroke-opacity: 0.4; stroke-dasharray: 3 3; }",
    ".spmd-diagram .host { stroke-opacity: 0.8; stroke-width: 1.5; }",
    ".spmd-diagram .mark { color: inherit; stroke-width: 2.5; }",  # not Bootstrap's
    ".spmd-diagram .under { stroke: var(--ground); stroke-width: 6; }",
    ".spmd-diagram .bar { fill: currentColor; fill-opacity: 0.16; }",
    ".spmd-diagram .thin { stroke-width: 3; }",
    ".spmd-diagram .thick { stroke-width: 8; }",
    ".spmd-diagram .waits { stroke-width: 4; stroke-dasharray: 2 7; "
    "stroke-linecap: round; }",
    *(
        f".spmd-diagram path.axis-{i} {{ stroke: var(--axis-{i}); }}"
        for i in range(len(LIGHT))
    ),
    "@media (forced-colors: active) { .spmd-diagram { forced-color-adjust: none; } }",
)
_PAGE_RULES = (
    ".spmd-diagram { --ground: var(--paper, var(--pst-color-background, "
    "var(--jp-layout-color0, var(--vscode-editor-background, var(--dark, Canvas))))); "
    "}",
    *(
        f"{page} .spmd-diagram {{ {axis_variables(DARK)} --dark: {PAPER[1]}; }}"
        for page in DARK_PAGES
    ),
    # The book's theme lays HTML outputs of dark pages on a light ground.
    f"{DARK_PAGES[0]} .bd-content div.cell_output .text_html:has(svg.spmd-diagram) "
    "{ background: none; color: inherit; padding: 0; }",
)


# The classes of boxes that are called otherwise.
_CLASSES = {"shard": "paper", "frame": "paper", "device": "paper", "slot": "empty"}


def _joined(items: Sequence[Item]) -> list[Item | _Slots]:
    """The items, with the slots that stay as one element: it is lighter."""
    slots = [item for item in items if _is_slot(item)]
    first = next(iter(slots), None)
    return [
        _Slots(tuple(slots)) if item is first else item
        for item in items
        if item is first or not _is_slot(item)
    ]


def _is_slot(item: Item) -> TypeGuard[Box]:
    return isinstance(item, Box) and item.kind == "slot" and item.to is None


def _drawn(item: Item | _Slots) -> list[str]:
    if isinstance(item, _Slots):
        outlines = "".join(map(_outline, item.boxes))
        return [f'<path class="empty" d="{outlines}"/>']
    if isinstance(item, Text):
        anchor = "" if item.anchor == "start" else f' text-anchor="{item.anchor}"'
        return [
            f'<text class="{item.kind}" x="{_n(item.x)}" y="{_n(item.y)}"{anchor}>'
            f"{escape(item.text)}</text>"
        ]
    if isinstance(item, Line):
        steps = " ".join(f"{_n(x)} {_n(y)}" for x, y in item.points)
        hue = "" if item.hue is None else f" axis-{item.hue}"
        return [f'<path class="{item.kind}{hue}" d="M{steps}"/>']
    lines = _box(item)
    if item.to is None:
        return lines
    leaves = ' data-leaves=""' if item.leaves else ""
    return [
        f'<g data-to="{_n(item.to[0])} {_n(item.to[1])}"{leaves}>{"".join(lines)}</g>'
    ]


def _box(box: Box) -> list[str]:
    fill, ink = (None, None) if box.hue is None else SHARDS[box.hue]
    place = _place(box)
    words = _middle(box, ink if box.kind == "shard" else None)
    if box.kind == "shard" and fill:
        return [f'<rect class="edge" {place} style="fill: {fill}"/>', *words]
    if box.kind == "frame" and fill:
        edge = _FRAMES[box.width > 16]
        inner = Box(
            box.x + edge,
            box.y + edge,
            box.width - 2 * edge,
            box.height - 2 * edge,
        )
        return [
            f'<rect class="edge" {place} style="fill: {fill}"/>',
            f'<rect class="ground" {_place(inner)}/>',
            *words,
        ]
    if box.kind in ("part", "dropped"):
        lines = _hatching(box) if box.kind == "part" else _cross(box)
        ink = fill or "currentColor"
        width = 3 if box.kind == "part" else 1.5
        style = f'style="stroke: {ink}; stroke-width: {width}"'
        if box.kind == "dropped":
            style = f'style="stroke-width: {width}"'
        return [
            f'<rect class="ground" {place}/>',
            f'<path {style} d="{lines}"/>',
            f'<rect class="edge" {place}/>',
            *_middle(box, None, halo=True),
        ]
    if box.kind == "mark":
        return [f'<rect class="{kind}" {place}/>' for kind in ("under", "mark")]
    kind = _CLASSES.get(box.kind, box.kind)
    return [f'<rect class="{kind}" {place}/>', *words]


def _middle(box: Box, ink: str | None, halo: bool = False) -> list[str]:
    if not box.text:
        return []
    small = box.height < 18 or box.width < 22 or 7.5 * len(box.text) > box.width
    kind = ("tiny" if small else "name") + (" halo" if halo else "")
    style = f' style="fill: {ink}"' if ink else ""
    x, y = box.x + box.width * box.at, box.y + box.height / 2 + (3.7 if small else 4.2)
    return [
        f'<text class="{kind}" x="{_n(x)}" y="{_n(y)}" text-anchor="middle"{style}>'
        f"{escape(box.text)}</text>"
    ]


def _hatching(box: Box) -> str:
    """Lines at 45 degrees within a box, as the data of a path."""
    lines = []
    offset = _HATCH / 2
    while offset < box.width + box.height:
        x0, x1 = max(0.0, offset - box.height), min(box.width, offset)
        lines.append(
            f"M{_n(box.x + x0)} {_n(box.y + offset - x0)}"
            f"L{_n(box.x + x1)} {_n(box.y + offset - x1)}"
        )
        offset += _HATCH
    return "".join(lines)


def _cross(box: Box) -> str:
    x, y, right, low = box.x, box.y, box.x + box.width, box.y + box.height
    return (
        f"M{_n(x)} {_n(y)}L{_n(right)} {_n(low)}M{_n(x)} {_n(low)}L{_n(right)} {_n(y)}"
    )


def _outline(box: Box) -> str:
    """A box as the data of a path."""
    wide, high = _n(box.width), _n(box.height)
    return f"M{_n(box.x)} {_n(box.y)}h{wide}v{high}h-{wide}z"


def _place(box: Box, height: float | None = None) -> str:
    tall = box.height if height is None else height
    corner = 7 if box.kind == "host" else 3
    return (
        f'x="{_n(box.x)}" y="{_n(box.y)}" width="{_n(box.width)}" '
        f'height="{_n(tall)}" rx="{corner}"'
    )
