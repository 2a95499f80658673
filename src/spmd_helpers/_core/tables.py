"""A heading, a table and notes, as text and as HTML: one list of rows for both."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from textwrap import fill

from .words import table

_CODE = re.compile(r"`([^`]+)`")

_CELL = "padding: 0.2em 0.7em; text-align: left"
_CAPTION = "caption-side: top; text-align: left"
_WIDTH = 78


@dataclass(frozen=True)
class Table:
    """What a report shows.

    >>> shown = Table("memory", "Memory", ("leaf", "bytes"), [("w", "24 B")], ["ok"])
    >>> print(shown.text())
    Memory
    leaf  bytes
    w     24 B
    ok

    Attributes:
        kind: the last part of the CSS class, 'xray' of 'spmd-xray'.
        title: the heading, and the table's name for a screen reader.
        head: the columns' names; the first column names its row.
        rows: one tuple of words a row.
        notes: sentences under the table.
        right: numbers of the columns that are aligned at their right edge.
        nothing: what stands in place of a table without rows.
        wrapped: numbers of the columns whose words may break into lines, in HTML.
    """

    kind: str
    title: str
    head: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    notes: Sequence[str] = ()
    right: tuple[int, ...] = ()
    nothing: str = ""
    wrapped: tuple[int, ...] = ()

    def text(self) -> str:
        """The aligned table between its heading and its notes."""
        middle = self.nothing
        if self.rows:
            middle = table([self.head, *self.rows], right=self.right)
        # A path that is longer than a line stays in one piece.
        notes = [
            fill(note, _WIDTH, subsequent_indent="  ", break_long_words=False)
            for note in self.notes
        ]
        return "\n".join([self.title, middle, *notes])

    def html(self) -> str:
        """The same words as a table that a screen reader can read."""
        name = escape(self.title.replace("`", ""))
        parts = [
            f'<div role="group" tabindex="0" aria-label="{name}" '
            f'style="overflow-x: auto"><table class="spmd-{self.kind}">'
            f'<caption style="{_CAPTION}">{_marked(self.title)}</caption>'
        ]
        if self.rows:
            heads = self._cells("th", self.head, "col")
            parts += [f"<thead><tr>{heads}</tr></thead>", "<tbody>"]
            for row in self.rows:
                first = self._cells("th", row[:1], "row")
                parts.append(f"<tr>{first}{self._cells('td', row)}</tr>")
            parts.append("</tbody>")
        else:
            parts.append(f"<tbody><tr><td>{escape(self.nothing)}</td></tr></tbody>")
        parts.append("</table></div>")
        parts += [
            f'<p class="spmd-{self.kind}-note">{_marked(note)}</p>'
            for note in self.notes
        ]
        return "\n".join(parts)

    def _cells(self, tag: str, words: Sequence[str], scope: str = "") -> str:
        kind = f' scope="{scope}"' if scope else ""
        return "".join(
            f'<{tag}{kind} style="{self._style(number)}">{escape(word)}</{tag}>'
            for number, word in enumerate(words)
            if scope or number  # a row's first cell is its heading
        )

    def _style(self, number: int) -> str:
        style = _CELL
        style += "" if number in self.wrapped else "; white-space: nowrap"
        style += "; vertical-align: top" if self.wrapped else ""
        return style + ("; text-align: right" if number in self.right else "")


def _marked(words: str) -> str:
    """Words in HTML, code as code."""
    return _CODE.sub(r"<code>\1</code>", escape(words))
