"""A step's memory as words: one list of rows, from which text and HTML are made."""

from html import escape

from ._text import bytes_words, table
from ._training_state import MOMENTS

HEAD = ("what", "per device", "when", "how")
NUMBERS = (1,)
_CELL = "padding: 0.2em 0.7em; text-align: left; vertical-align: top"
_STYLES = (
    f"{_CELL}; white-space: nowrap",
    f"{_CELL}; white-space: nowrap; text-align: right",
    f"{_CELL}; white-space: nowrap",
    _CELL,
)
_CAPTION = "caption-side: top; text-align: left"


def words(found) -> tuple[str, list[tuple[str, ...]], list[str]]:
    """Heading, rows and notes of a TrainingMemory."""
    rows = [
        (line.name, bytes_words(line.bytes), when(line.when), line.formula)
        for line in found.lines
    ]
    total = bytes_words(found.total_bytes)
    rows.append(("total", total, found.peak_moment, "what is there in this moment"))
    most = ", ".join(f"{name} {bytes_words(n)}" for name, n in found.moments.items())
    notes = (
        [f"Most in each moment of a step: {most}."] if len(found.moments) > 1 else []
    )
    heading = f"Training memory of {found.what}: {total} on each device"
    return heading, rows, [*notes, *found.notes]


def when(moments) -> str:
    """'always', or the moments between commas."""
    return "always" if len(moments) == len(MOMENTS) else ", ".join(moments)


def as_text(title: str, body: list[tuple[str, ...]], below: list[str]) -> str:
    """The aligned table between its heading and its notes."""
    return "\n".join([title, table([HEAD, *body], right=NUMBERS), *below])


def as_html(title: str, body: list[tuple[str, ...]], below: list[str]) -> str:
    """The same words as a table that a screen reader can read."""
    name = escape(title)
    parts = [
        f'<div role="region" tabindex="0" aria-label="{name}" style="overflow-x: auto">'
        f'<table class="spmd-training"><caption style="{_CAPTION}">{name}</caption>'
        f"<thead><tr>{_cells('th', HEAD, 'col')}</tr></thead>",
        "<tbody>",
    ]
    for first, *rest in body:
        head = _cells("th", [first], "row")
        parts.append(f"<tr>{head}{_cells('td', rest, '', _STYLES[1:])}</tr>")
    parts.append("</tbody></table></div>")
    parts += [f'<p class="spmd-training-note">{escape(note)}</p>' for note in below]
    return "\n".join(parts)


def _cells(tag: str, cells, scope: str, styles=_STYLES) -> str:
    kind = f' scope="{scope}"' if scope else ""
    return "".join(
        f'<{tag}{kind} style="{style}">{escape(cell)}</{tag}>'
        for cell, style in zip(cells, styles, strict=False)
    )
