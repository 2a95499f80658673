"""Attention on a ring, drawn: devices with their blocks, and the matrix of scores."""

from dataclasses import dataclass
from functools import cached_property

from .._core.palette import SHARDS
from .._core.words import count_words, table
from .._core.words import number as _n
from .._player.page import FramePage, Page, View
from .elements import rect, text
from .rings import Ring

_CELL, _HIGH = 36.0, 25.0
_GAP, _PAD, _HEAD, _BETWEEN = 4.0, 5.0, 18.0, 10.0
_BOX = 2 * _CELL + _GAP + 2 * _PAD
_BOX_HIGH = _HEAD + _HIGH + _PAD
_SCORE, _SCORE_HIGH = 32.0, 24.0
_ASIDE = 5  # devices: the matrix of fewer is beside them
_NAMES, _APART, _COUNTER, _BAR = 30.0, 20.0, 36.0, 7.0
_RULES = """
.spmd-ring-way.spmd-ring-way { fill: none; stroke: currentColor; stroke-opacity: 0.5; \
stroke-width: 1.5; }
.spmd-ring-score.spmd-ring-score { stroke: currentColor; stroke-opacity: 0.6; }
.spmd-ring-axis.spmd-ring-axis { font-size: 10.5px; }
"""


@dataclass(frozen=True)
class RingPicture:
    """A ring's iterations, as the frames of a player."""

    ring: Ring

    @property
    def title(self) -> str:
        """The heading."""
        return f"Attention on a ring of {count_words(self._n, 'device')}"

    @property
    def facts(self) -> str:
        """The bytes of an iteration, and how many rings there are."""
        sent = f"each device sends {self.ring.wire_bytes:,} B in an iteration"
        if self.ring.rings == 1:
            return sent
        return f"{sent} · one of {self.ring.rings} equal rings"

    @property
    def notes(self) -> str:
        """What the cells mean."""
        notes = (
            "q is a device's block of queries, kv a block of keys and values, in one "
            "color each. The matrix has the scores of each block of queries with each "
            "block of keys, in the color of the keys, with the number of the iteration "
            "that computes them."
        )
        if self.ring.causal:
            notes += " Hatched: the causal mask discards all scores of the two blocks."
        return notes

    def heading(self, number: int) -> str:
        """'Iteration 2 of 4'."""
        if number == self.ring.iterations:
            return "After the last iteration"
        return f"Iteration {number + 1} of {self.ring.iterations}"

    def sentence(self, number: int) -> str:
        """What is computed, by the first device for example, and what is discarded."""
        ring = self.ring
        if number == ring.iterations:
            return self._say_end()
        blocks = ring.blocks[number]
        example = min(self._n - 1, 1)
        words = [
            "Each device computes the scores of its queries with its current block of "
            f"keys: device {ring.devices[example]} those of "
            f"q{ring.queries[example]} with kv{blocks[example]}."
        ]
        pairs = zip(ring.queries, blocks, strict=True)
        masked = [pair for pair in pairs if ring.is_masked(*pair)]
        if masked:
            who = count_words(len(masked), "device")
            verb = "computes" if len(masked) == 1 else "compute"
            words.append(f"{who} of {self._n} {verb} only scores that are discarded.")
        words.append("Then it sends the block to the next device.")
        return " ".join(words)

    def _say_end(self) -> str:
        ring = self.ring
        done = ring.computed(ring.iterations)
        sent = ring.wire_bytes * ring.iterations
        masked = sum(ring.is_masked(*pair) for pair in done)
        words = [
            f"{len(done)} of {self._n**2} blocks of scores are computed"
            f"{f', {masked} of them only to be discarded' if masked else ''}. Each "
            f"device has sent {sent:,} B."
        ]
        if ring.blocks[-1] == ring.blocks[0]:
            words.append(
                "Each block is back at its device: nothing uses what the last "
                "iteration sent."
            )
        return " ".join(words)

    def state(self, number: int) -> str:
        """Blocks and iterations as a table: a row for each device."""
        ring, done = self.ring, self.ring.computed(number)
        head = [f"kv{block}" for block in range(self._n)]
        rows = [("device", "has", *head)]
        for place, device in enumerate(ring.devices):
            own = ring.queries[place]
            scores = [self._said(done, own, block) for block in range(self._n)]
            has = f"q{own}, kv{ring.blocks[number][place]}"
            rows.append((str(device), has, *scores))
        return table(rows)

    def label(self, number: int) -> str:
        """The same in sentences, for a reader who does not see it."""
        ring, done = self.ring, self.ring.computed(number)
        sentences = []
        for place, device in enumerate(ring.devices):
            own = ring.queries[place]
            scores = [
                f"with kv{block} in iteration {self._said(done, own, block)}"
                for block in range(self._n)
                if (own, block) in done
            ]
            sentences.append(
                f"Device {device} has q{own} and kv{ring.blocks[number][place]}; "
                f"scores of q{own}: {', '.join(scores)}."
            )
        return " ".join(sentences)

    def _said(self, done: dict[tuple[int, int], int], own: int, block: int) -> str:
        if (own, block) not in done:
            return "·"
        masked = " discarded" if self.ring.is_masked(own, block) else ""
        return f"{done[own, block] + 1}{masked}"

    # --- Places -----------------------------------------------------------------------

    @property
    def _n(self) -> int:
        return len(self.ring.devices)

    @cached_property
    def _corners(self) -> list[tuple[float, float]]:
        """The boxes: a line, and under it one that goes back."""
        across = max(1, -(-self._n // 2))
        corners = []
        for place in range(self._n):
            row, column = divmod(place, across)
            column = across - 1 - column if row else column
            corners.append((column * (_BOX + _BETWEEN), row * (_BOX_HIGH + _APART)))
        return corners

    @cached_property
    def _matrix(self) -> tuple[float, float]:
        """The upper left corner of the scores."""
        across = -(-self._n // 2)
        if self._n < _ASIDE:
            return across * (_BOX + _BETWEEN) + _APART - _BETWEEN + _NAMES, 28.0
        return _NAMES, 2 * (_BOX_HIGH + _APART) + 20.0

    @cached_property
    def _width(self) -> float:
        boxes = max(x for x, _ in self._corners) + _BOX
        return max(boxes, self._matrix[0] + self._n * _SCORE)

    @cached_property
    def _height(self) -> float:
        boxes = max(y for _, y in self._corners) + _BOX_HIGH
        return max(boxes, self._matrix[1] + self._n * _SCORE_HIGH) + _COUNTER

    def _block(self, place: int) -> tuple[float, float]:
        """Where the block of keys of a device is drawn."""
        x, y = self._corners[place]
        return x + _PAD + _CELL + _GAP, y + _HEAD

    # --- SVG --------------------------------------------------------------------------

    def page(self, name: str) -> Page:
        """The player's page; its ids start with `name`."""
        return Page(
            self.title,
            self.facts,
            self.notes,
            (_hatching(name), self._base(name), *self._cells(name)),
            tuple(self._frame(n, name) for n in range(self.ring.iterations + 1)),
            View(-1, -1, self._width + 2, self._height + 2),
            rules=_RULES,
            group="Play the iterations",
            pace="read",
        )

    def _cells(self, name: str) -> list[str]:
        """A block of keys of each color."""
        return [
            f'<g id="{name}-kv{block}">{_cell(0, 0, block, f"kv{block}")}</g>'
            for block in range(self._n)
        ]

    def _base(self, name: str) -> str:
        lines = [f'<g id="{name}-base">', self._way()]
        for place, device in enumerate(self.ring.devices):
            x, y = self._corners[place]
            box = 'class="spmd-play-device" style="fill: var(--paper)"'
            lines.append(rect(x, y, _BOX, _BOX_HIGH, box, 5))
            lines.append(text("play-name", x + _BOX / 2, y + 13.5, f"device {device}"))
            own = self.ring.queries[place]
            lines.append(_cell(x + _PAD, y + _HEAD, own, f"q{own}"))
            slot = 'class="spmd-play-slot"'
            lines.append(rect(*self._block(place), _CELL, _HIGH, slot, 4))
        left, top = self._matrix
        middle = left + self._n * _SCORE / 2
        lines.append(text("play-name", middle, top - 17, "scores"))
        for place in range(self._n):
            x, y = left + place * _SCORE, top + place * _SCORE_HIGH
            lines.append(text("ring-axis", x + _SCORE / 2, top - 3, f"kv{place}"))
            lines.append(
                text("ring-axis", left - 14, y + _SCORE_HIGH / 2 + 4, f"q{place}")
            )
        for row in range(self._n):
            for column in range(self._n):
                slot = 'class="spmd-play-slot"'
                x, y = left + column * _SCORE, top + row * _SCORE_HIGH
                lines.append(rect(x, y, _SCORE - 2, _SCORE_HIGH - 2, slot, 2))
        y = self._height - _BAR
        lines.append(text("play-head", 0, y - 7, "sent per device"))
        bar = 'class="spmd-play-rest"'
        lines.append(rect(0, y, self._width, _BAR, bar, 3.5))
        return "\n".join([*lines, "</g>"])

    def _way(self) -> str:
        """The ring, behind the boxes."""
        middles = [(x + _BOX / 2, y + _BOX_HIGH / 2) for x, y in self._corners]
        way = "L".join(f"{_n(x)} {_n(y)}" for x, y in middles)
        return f'<path class="spmd-ring-way" d="M{way}Z"/>'

    def _frame(self, number: int, name: str) -> FramePage:
        ring = self.ring
        items = [f'<use href="#{name}-base"/>']
        items += self._scores(number, name)
        for place, block in enumerate(ring.blocks[number]):
            x, y = self._block(place)
            to = ""
            if number < ring.iterations:
                end = self._block((place + 1) % self._n)
                to = f' data-to="{_n(end[0] - x)} {_n(end[1] - y)}" data-leaves=""'
            items.append(f'<use href="#{name}-kv{block}" x="{_n(x)}" y="{_n(y)}"{to}/>')
        sent = ring.wire_bytes * number
        y = self._height - _BAR
        share = number / ring.iterations
        sent_bar = 'class="spmd-play-sent"'
        items.append(rect(0, y, self._width * share, _BAR, sent_bar, 3.5))
        words = f"{sent:,} B" + " in all" * (number == ring.iterations)
        items.append(text("play-bytes", self._width, y - 7, words))
        return FramePage(
            tuple(items),
            self.label(number),
            self.heading(number),
            self.sentence(number),
        )

    def _scores(self, number: int, name: str) -> list[str]:
        left, top = self._matrix
        items = []
        for (row, column), when in self.ring.computed(number).items():
            x, y = left + column * _SCORE, top + row * _SCORE_HIGH
            fill, ink = SHARDS[column]
            size = (_SCORE - 2, _SCORE_HIGH - 2)
            if self.ring.is_masked(row, column):
                fill, ink = f"url(#{name}-hatch)", "currentColor"
            look = f'class="spmd-ring-score" style="fill: {fill}"'
            items.append(rect(x, y, *size, look, 2))
            kind = "halo" if self.ring.is_masked(row, column) else "label"
            middle = x + size[0] / 2
            items.append(
                text(f"play-{kind}", middle, y + 16, f"{when + 1}", f' fill="{ink}"')
            )
            if when == number:
                new = 'class="spmd-play-new"'
                items.append(rect(x - 1, y - 1, size[0] + 2, size[1] + 2, new, 3))
        return items


def _cell(x: float, y: float, hue: int, words: str) -> str:
    fill, ink = SHARDS[hue]
    look = f'class="spmd-play-cell" fill="{fill}"'
    middle = x + _CELL / 2
    return rect(x, y, _CELL, _HIGH, look, 4) + text(
        "play-label", middle, y + 17, words, f' fill="{ink}"'
    )


def _hatching(name: str) -> str:
    return (
        f'<pattern id="{name}-hatch" width="7" height="7" '
        'patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
        '<path d="M2 0V7" stroke="currentColor" stroke-width="2" '
        'stroke-opacity="0.45"/></pattern>'
    )
