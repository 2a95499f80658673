"""A Picture of a collective as the frames of a player."""

from collections.abc import Iterable
from html import escape

from .._core.palette import SHARDS
from .._core.words import number as _n
from . import page
from .picture import (
    BAR,
    BOX_WIDTH,
    CELL_HEIGHT,
    CELL_WIDTH,
    WIDTH,
    Cell,
    Look,
    Panel,
    Picture,
    Step,
)

_PIECES = 8  # of the bar of a sum, drawn apart
_BAR_TOP, _BAR_HEIGHT = 24, 7


def html(picture: Picture) -> str:
    """The player for a page or a notebook's output."""
    return page.html(lambda name: _page(picture, name))


def _page(picture: Picture, name: str) -> page.Page:
    looks = dict.fromkeys(cell.look for step in picture.steps for cell in step.cells)
    ids = {look: f"{name}-{number}" for number, look in enumerate(looks)}
    said = picture.words
    return page.Page(
        said.title,
        " · ".join(said.facts),
        " ".join(said.notes),
        (
            *_patterns(looks, name),
            *(_symbol(look, id_, name) for look, id_ in ids.items()),
            *_base(picture, name),
        ),
        tuple(_frame(picture, step, ids, name) for step in picture.steps),
        page.View(-1, -1, WIDTH + 2, picture.height + 2),
        group="Play the hops",
        first=0,
    )


def _patterns(looks: Iterable[Look], name: str) -> list[str]:
    """The hatching of partial sums, one for each color."""
    hatched = dict.fromkeys(look.hue for look in looks if _is_hatched(look))
    return [
        f'<pattern id="{name}-h{hue}" width="7" height="7" '
        'patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
        f'<path d="M2 0V7" stroke="{SHARDS[hue][0]}" stroke-width="3.5"/></pattern>'
        for hue in hatched
        if hue is not None
    ]


def _is_hatched(look: Look) -> bool:
    return 0 < look.parts < look.needs


def _symbol(look: Look, id_: str, name: str) -> str:
    """How one cell looks, its upper left corner at 0, 0."""
    fill, ink = ("none", "currentColor") if look.hue is None else SHARDS[look.hue]
    box = f'width="{CELL_WIDTH}" height="{CELL_HEIGHT}" rx="4"'
    middle = CELL_WIDTH / 2
    if not look.parts:
        words = _text("small", middle, 16, look.label)
        return f'<g id="{id_}"><rect class="spmd-play-zero" {box}/>{words}</g>'
    if not _is_hatched(look):
        words = _text("label", middle, 17, look.label, f' fill="{ink}"')
        return (
            f'<g id="{id_}"><rect class="spmd-play-cell" {box} fill="{fill}"/>'
            f"{words}</g>"
        )
    hatch = "" if look.hue is None else f' style="fill: url(#{name}-h{look.hue})"'
    return (
        f'<g id="{id_}"><rect class="spmd-play-paper" {box}/>'
        f'<rect class="spmd-play-part" {box}{hatch}/>'
        f"{_text('halo', middle, 14, look.label)}{_added(look)}</g>"
    )


def _added(look: Look) -> str:
    """How much of a sum is there: a bar, in as many pieces as it has summands."""
    room, y, height = CELL_WIDTH - 8, CELL_HEIGHT - 8, 4.5
    done = round(room * look.parts / look.needs, 1)
    bar = f'x="4" y="{y}" height="{height}"'
    cuts = range(1, look.needs) if look.needs <= _PIECES else ()
    lines = "".join(f"M{_n(4 + room * k / look.needs)} {y}v{height}" for k in cuts)
    return (
        f'<rect class="spmd-play-bar-rest" {bar} width="{room}"/>'
        f'<rect {bar} width="{_n(done)}"/>'
        f'<path class="spmd-play-cut" d="{lines}"/>'
    )


def _text(kind: str, x: float, y: float, text: str, more: str = "") -> str:
    return (
        f'<text class="spmd-play-text spmd-play-{kind}" x="{_n(x)}" y="{_n(y)}"{more}>'
        f"{escape(text)}</text>"
    )


def _base(picture: Picture, name: str) -> list[str]:
    """What is the same in every frame: groups, devices, empty slots."""
    lines = [f'<g id="{name}-base">']
    several = len(picture.panels) > 1
    for panel in picture.panels:
        if several or panel.title:
            lines.append(
                f'<rect class="spmd-play-group" x="{_n(panel.x + 0.5)}" '
                f'y="{_n(panel.y + 0.5)}" width="{_n(panel.width - 1)}" '
                f'height="{_n(panel.height - 1)}" rx="7"/>'
            )
        if panel.title:
            lines.append(_text("head", panel.x + 8, panel.y + 17, panel.title))
        lines += _devices(panel)
    lines.append(_counter(picture, "rest", 1.0))
    lines.append(_text("head", 0, _counter_top(picture) - 7, picture.words.counter))
    return [*lines, "</g>"]


def _counter_top(picture: Picture) -> float:
    return picture.height - BAR + _BAR_TOP


def _counter(picture: Picture, kind: str, share: float) -> str:
    return (
        f'<rect class="spmd-play-{kind}" x="0" y="{_n(_counter_top(picture))}" '
        f'width="{_n(WIDTH * share)}" height="{_BAR_HEIGHT}" rx="3.5"/>'
    )


def _devices(panel: Panel) -> list[str]:
    lines = []
    for box in panel.boxes:
        lines.append(
            f'<rect class="spmd-play-device" x="{_n(box.x)}" y="{_n(box.y)}" '
            f'width="{_n(BOX_WIDTH)}" height="{_n(box.height)}" rx="5"/>'
        )
        middle = box.x + BOX_WIDTH / 2
        lines.append(_text("name", middle, box.y + 14, f"device {box.device}"))
        slots = "".join(
            f"M{_n(x)} {_n(y)}h{CELL_WIDTH}v{CELL_HEIGHT}h-{CELL_WIDTH}z"
            for x, y in box.slots.values()
        )
        lines.append(f'<path class="spmd-play-slot" d="{slots}"/>')
    if panel.gap:
        upper, lower = panel.boxes[len(panel.boxes) // 2 - 1 :][:2]
        y = (upper.y + upper.height + lower.y) / 2
        lines.append(_text("gap", upper.x + BOX_WIDTH / 2, y + 6, "⋮"))
    return lines


def _frame(
    picture: Picture, step: Step, ids: dict[Look, str], name: str
) -> page.FramePage:
    items = (
        f'<use href="#{name}-base"/>',
        _counter(picture, "sent", step.share),
        _text("bytes", WIDTH, _counter_top(picture) - 7, step.sent),
        *(_cell(cell, ids[cell.look]) for cell in step.cells),
        *(_new(cell) for cell in step.cells if cell.is_new),
    )
    return page.FramePage(items, step.state, step.heading, step.sentence)


def _cell(cell: Cell, id_: str) -> str:
    to = "" if cell.to is None else f' data-to="{_n(cell.to[0])} {_n(cell.to[1])}"'
    leaves = ' data-leaves=""' if cell.leaves else ""
    return f'<use href="#{id_}" x="{_n(cell.x)}" y="{_n(cell.y)}"{to}{leaves}/>'


def _new(cell: Cell) -> str:
    return (
        f'<rect class="spmd-play-new" x="{_n(cell.x - 1.5)}" y="{_n(cell.y - 1.5)}" '
        f'width="{CELL_WIDTH + 3}" height="{CELL_HEIGHT + 3}" rx="5"/>'
    )
