"""A Scene written as SVG, for a page or for a file of its own."""

import hashlib
from collections.abc import Sequence
from html import escape
from typing import Protocol

from .._core.palette import (
    DARK,
    DARK_PAGES,
    INK,
    LIGHT,
    PAPER,
    SHARDS,
    axis_variables,
)
from .._core.words import number
from .picture import HUES, Word
from .scene import MONO, SIZES, WIDE, Rect, Scene, Text

TINTS = (0.12, 0.32)  # opacity of the first and of the last strip along an axis
MARGIN = 14  # px around a drawing in a file of its own
# The book's theme lays HTML outputs of dark pages on a light ground; not a drawing.
_NO_GROUND = (
    f"{DARK_PAGES[0]} .bd-content div.cell_output .text_html:has(svg.spmd-drawing) "
    "{ background: none; color: inherit; padding: 0; }"
)
# Stripes on the page, and on a shard whose label is light, or dark.
_PALE = SHARDS[7][0]  # where a light stripe does not show
HATCHES = {
    "hatch": ("currentColor", 0.16),
    "hatch-dark": ("#000000", 0.28),
    "hatch-light": ("#ffffff", 0.4),
}
PHONE = 320  # px; what every reader's column has
_WORDS = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif"
_CODE = "ui-monospace, SFMono-Regular, Menlo, Consolas, monospace"
_BOLD = {"title": 600, "caption": 600, "strip": 500}


class Described(Protocol):
    """What an SVG says of a drawing, for those who do not see it."""

    @property
    def title(self) -> str:
        """The heading."""

    @property
    def sentence(self) -> str:
        """What is drawn, in words."""

    @property
    def hatched(self) -> bool:
        """Whether any box is hatched."""


def tint_opacity(tint: float) -> float:
    """The opacity of a strip's fill, by its place along its axis (0 to 1)."""
    return round(TINTS[0] + (TINTS[1] - TINTS[0]) * tint, 3)


def hatch_of(shard: int | None) -> str:
    """Which of the HATCHES a cell has: one that keeps the label on a shard readable."""
    if shard is None:
        return "hatch"
    fill, ink = SHARDS[shard]
    return "hatch-light" if ink == INK[0] and fill != _PALE else "hatch-dark"


def svg(picture: Described, scene: Scene) -> str:
    """A drawing as a file of its own: it follows the reader's light or dark."""
    root = (
        f".spmd-drawing {{ color: {INK[0]}; --paper: {PAPER[0]}; }}",
        "@media (prefers-color-scheme: dark) { svg.spmd-drawing "
        f"{{ color: {INK[1]}; --paper: {PAPER[1]}; {axis_variables(DARK)} }} }}",
        ".spmd-drawing .paper { fill: var(--paper); }",
    )
    return _element(picture, scene, [*_style(), *root], MARGIN)


def html(picture: Described, scene: Scene) -> str:
    """A drawing for a page: it follows the page's own light or dark."""
    pages = [
        f"{page} .spmd-drawing {{ {axis_variables(DARK)} }}" for page in DARK_PAGES
    ]
    drawing = _element(picture, scene, [*_style(), *pages, _NO_GROUND], 1)
    more = ""
    if _least(scene.width) > PHONE:
        more = f' tabindex="0" role="group" aria-label="{escape(picture.title)}"'
    return (
        f'<div class="spmd-drawing-box" style="overflow-x: auto"{more}>\n'
        f"{drawing}</div>\n"
    )


def _least(width: float) -> float:
    """How narrow a drawing may become before its box scrolls instead."""
    return width if width > WIDE else 0.8 * width


def _style() -> list[str]:
    rules = [
        # Not of a part that a player defines: a dark page's rule is not applied there.
        f"svg.spmd-drawing {{ {axis_variables(LIGHT)} }}",
        f".spmd-drawing text {{ fill: currentColor; font-family: {_WORDS}; }}",
        ".spmd-drawing rect { stroke: currentColor; stroke-width: 1; fill: none; }",
        ".spmd-drawing .paper { stroke: none; }",
        ".spmd-drawing .cell { stroke-opacity: 0.55; }",
        ".spmd-drawing .hatch { stroke: none; }",
        ".spmd-drawing .strip { stroke-width: 1.5; }",
        ".spmd-drawing { forced-color-adjust: none; }",
    ]
    for kind, size in SIZES.items():
        family = f" font-family: {_CODE};" if kind in MONO else ""
        weight = f" font-weight: {_BOLD[kind]};" if kind in _BOLD else ""
        rules.append(
            f".spmd-drawing .{kind} {{ font-size: {size}px;{family}{weight} }}"
        )
    for i in range(HUES):
        hue = f"var(--axis-{i})"
        rules.append(f".spmd-drawing rect.axis-{i} {{ fill: {hue}; stroke: {hue}; }}")
        rules.append(f".spmd-drawing tspan.axis-{i} {{ fill: {hue}; }}")
    return rules


def _element(
    picture: Described, scene: Scene, rules: Sequence[str], margin: int
) -> str:
    """The svg element, one element a line; with a wide margin also a background.

    Its id comes from what is drawn: another drawing on a page has another one.
    """
    lines = _lines(picture, scene, rules, margin, "spmd")
    drawn = hashlib.sha256("\n".join(lines).encode())
    return "\n".join(
        _lines(picture, scene, rules, margin, f"spmd-{drawn.hexdigest()[:10]}")
    )


def _lines(
    picture: Described, scene: Scene, rules: Sequence[str], margin: int, name: str
) -> list[str]:
    width = number(scene.width + 2 * margin)
    height = number(scene.height + 2 * margin)
    least = number(_least(scene.width))
    most = "100%" if scene.width <= WIDE else "none"
    fit = f"min-width: {least}px; max-width: {most}; height: auto"
    view = f"{-margin} {-margin} {width} {height}"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="spmd-drawing" role="img" '
        f'aria-labelledby="{name}-title {name}-words" '
        f'width="{width}" height="{height}" viewBox="{view}" '
        f'style="{fit}">',
        f'<title id="{name}-title">{escape(picture.title)}</title>',
        f'<desc id="{name}-words">{escape(picture.sentence)}</desc>',
        "<style>",
        *rules,
        "</style>",
    ]
    shards = {item.shard for item in scene.items if isinstance(item, Rect)} - {None}
    if picture.hatched:
        lines += [
            f'<pattern id="{name}-{which}" width="7" height="7" '
            'patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
            f'<path d="M0 0V7" stroke="{color}" stroke-width="2" '
            f'stroke-opacity="{opacity}"/></pattern>'
            for which, (color, opacity) in HATCHES.items()
            if (which == "hatch") != bool(shards)
        ]
    if margin > 1:
        place = f'x="{-margin}" y="{-margin}" width="{width}" height="{height}"'
        lines.append(f'<rect class="paper" {place}/>')
    for item in scene.items:
        lines += _rect(item, name) if isinstance(item, Rect) else [_words(item)]
    return [*lines, "</svg>", ""]


def _rect(box: Rect, name: str) -> list[str]:
    place = (
        f'x="{number(box.x)}" y="{number(box.y)}" '
        f'width="{number(box.width)}" height="{number(box.height)}" rx="3"'
    )
    if box.kind == "strip":
        hue = "" if box.hue is None else f" axis-{box.hue}"
        tint = tint_opacity(box.tint)
        return [f'<rect class="strip{hue}" {place} fill-opacity="{tint}"/>']
    shard = "" if box.shard is None else f' style="fill: {SHARDS[box.shard][0]}"'
    lines = [f'<rect class="cell" {place}{shard}/>']
    if box.hatched:
        fill = f'style="fill: url(#{name}-{hatch_of(box.shard)})"'
        lines.append(f'<rect class="hatch" {place} {fill}/>')
    return lines


def _words(text: Text) -> str:
    anchor = "" if text.anchor == "start" else f' text-anchor="{text.anchor}"'
    inner = "".join(map(_word, text.words))
    return (
        f'<text class="{text.kind}" x="{number(text.x)}" y="{number(text.y)}"'
        f'{anchor}{_ink(text)} xml:space="preserve">{inner}</text>'
    )


def _ink(text: Text) -> str:
    return "" if text.shard is None else f' style="fill: {SHARDS[text.shard][1]}"'


def _word(word: Word) -> str:
    if word.hue is None:
        return escape(word.text)
    return f'<tspan class="axis-{word.hue}">{escape(word.text)}</tspan>'
