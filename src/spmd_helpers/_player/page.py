"""The HTML of every player: frames as SVG and words, one style and one script.

Without the script the frames stand side by side. Nothing is drawn by the script: it
shows one frame at a time, and moves what is marked with `data-to`.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from html import escape
from pathlib import Path

from .._core.palette import DARK_PAGES, PAPER
from .._core.words import number

_FOLDER = Path(__file__).resolve().with_name("js")
NARROW = 320  # px; what every reader's column has
_READ = 480  # px; a line of words may be this long below a smaller figure
_SCROLLS = 680  # px; a wider figure scrolls in its own box instead of shrinking


@dataclass(frozen=True)
class View:
    """The part of the plane that all frames show, in pixels.

    Attributes:
        x: its left side; y is its upper side.
        natural: whether a pixel is drawn as a pixel where there is room. Otherwise the
            frames are as wide as their column.
    """

    x: float
    y: float
    width: float
    height: float
    natural: bool = False


@dataclass(frozen=True)
class FramePage:
    """One frame: its SVG elements, what they show in words, and what is said of it."""

    items: tuple[str, ...]
    label: str
    heading: str
    sentence: str


@dataclass(frozen=True)
class Slider:
    """What a reader sets: a name, and the values in their order."""

    name: str
    values: tuple[str, ...]


@dataclass(frozen=True)
class Page:
    """A complete player.

    Attributes:
        title: its heading; `facts` stand below it.
        notes: its caption.
        defs: SVG elements that the frames refer to.
        rules: CSS of the figures.
        kind: the attribute `class` of the frames' SVGs, or nothing.
        group: the name of the group of buttons.
        first: the number of the first frame.
        pace: how long a frame stays while it plays: 'read', as long as its sentence
            takes to read, or 'hop', shortly.
        sliders: they set which frame is shown, in place of the buttons. The values of
            the last one change from each frame to the next.
        chooses: whether each frame has a button with its heading, in place of the
            buttons that play them in their order.
    """

    title: str
    facts: str
    notes: str
    defs: tuple[str, ...]
    frames: tuple[FramePage, ...]
    view: View
    rules: str = ""
    kind: str = ""
    group: str = "Play the frames"
    first: int = 1
    pace: str = "hop"
    sliders: tuple[Slider, ...] = ()
    chooses: bool = False


def html(make: Callable[[str], Page]) -> str:
    """A player for a page or a notebook's output.

    Args:
        make: gives the page whose ids start with a name. The name comes from what the
            page shows: another player on a page has another one.
    """
    lines = _lines(make("spmd-play"), "spmd-play")
    name = hashlib.sha256("\n".join(lines).encode()).hexdigest()[:10]
    name = f"spmd-play-{name}"
    return "\n".join(_lines(make(name), name))


@cache
def style() -> str:
    """The style of all players."""
    css = (_FOLDER / "player.css").read_text("utf8")
    dark = "".join(
        f"{page} .spmd-play {{ --dark: {PAPER[1]}; }}\n" for page in DARK_PAGES
    )
    return dark + css


@cache
def script() -> str:
    """What wakes each player on a page that is not awake yet."""
    return (_FOLDER / "player.js").read_text("utf8")


def _lines(page: Page, name: str) -> list[str]:
    facts = f"<span>{escape(page.facts)}</span>" if page.facts else ""
    notes = [f"<figcaption>{escape(page.notes)}</figcaption>"] if page.notes else []
    size = _size(page.view)
    return [
        f'<figure class="spmd-play" id="{name}" data-group="{escape(page.group)}" '
        f'data-first="{page.first}" data-pace="{page.pace}"{_controls(page)}{size}>',
        f"<style>\n{style()}{page.rules}</style>",
        f'<p class="spmd-play-title"><strong>{escape(page.title)}</strong>{facts}</p>',
        '<svg class="spmd-play-defs" width="0" height="0" aria-hidden="true" '
        'focusable="false"><defs>',
        *page.defs,
        "</defs></svg>",
        '<ol class="spmd-play-frames">',
        *(line for frame in page.frames for line in _frame(page, frame)),
        "</ol>",
        *notes,
        *([f"<script>\n{script()}</script>"] if len(page.frames) > 1 else []),
        "</figure>",
        "",
    ]


def _controls(page: Page) -> str:
    """What the script makes in place of the buttons Play, Back and Step."""
    if page.sliders:
        listed = [[slider.name, slider.values] for slider in page.sliders]
        return f' data-sliders="{escape(json.dumps(listed, ensure_ascii=False))}"'
    if page.chooses:
        names = [frame.heading for frame in page.frames]
        return f' data-choices="{escape(json.dumps(names, ensure_ascii=False))}"'
    return ""


def _size(view: View) -> str:
    """How wide a frame of natural size is, and how narrow it may become."""
    if not view.natural:
        return ""
    wide, room = number(view.width), number(max(view.width, _READ))
    least = number(least_width(view))
    return f' style="--wide: {wide}px; --room: {room}px; --least: {least}px"'


def least_width(view: View) -> float:
    """How narrow a frame may become before its box scrolls instead."""
    if not view.natural:
        return 0.0
    return view.width if view.width > _SCROLLS else 0.8 * view.width


def _frame(page: Page, frame: FramePage) -> list[str]:
    view = page.view
    box = " ".join(map(number, (view.x, view.y, view.width, view.height)))
    lines = [
        f'<svg{page.kind} viewBox="{box}" role="img" '
        f'aria-label="{escape(frame.label)}">',
        *frame.items,
        "</svg>",
    ]
    if least_width(view) > NARROW:
        name = escape(f"{page.title}: {frame.heading}")
        box = (
            f'<div class="spmd-play-box" tabindex="0" role="group" aria-label="{name}">'
        )
        lines = [box, *lines, "</div>"]
    heading, sentence = escape(frame.heading), escape(frame.sentence)
    return [
        '<li class="spmd-play-frame">',
        *lines,
        f"<p><strong>{heading}.</strong> {sentence}</p>",
        "</li>",
    ]
