"""Tokens and experts: what each device sends to each expert, and what is dropped."""

import math
from collections.abc import Iterable
from functools import cached_property
from typing import Any

from .._core.notebook import InNotebook
from .._core.palette import SHARDS
from .._core.validate import as_integer, integer
from .._core.words import count_words, table
from .._errors import NotUnderstood
from .._player.frames import FramePlayer
from .diagram import Box, Diagram, Item, Text

Boxes = tuple[tuple[tuple[int, ...], ...], ...]
_LEFT, _TOP = 62, 50
_SLOT, _WIDER, _HIGH, _GAP = 14, 20, 16, 7  # px: of a slot, also of two digits
_BETWEEN = 8  # rows
_ACROSS = 3  # slots of a box side by side


class TokenRouting(InNotebook):
    """Where the tokens of a layer of experts go, with one expert on each device.

    Each device packs a box of `capacity` tokens for each expert; an all-to-all sends
    the boxes. A token whose box is already full is dropped. A notebook draws the packed
    boxes when a cell ends with it; `play()` shows the way of the tokens.

    >>> TokenRouting([[1, 0, 1, 1], [0, 1, 0, 0]], capacity=2)
    2 experts, capacity 2: 2 of 8 tokens dropped, 2 slots empty
    to expert  0      1      dropped
    device 0   t1 ·   t0 t2  t3
    device 1   t0 t2  t1 ·   t3

    Args:
        choice: for each device the expert of each of its tokens: an array [devices,
            tokens of a device], or lists. Experts are numbered as their devices.
        capacity: how many tokens a box has room for.

    Attributes:
        devices: the number of devices, and of experts.
        tokens: the number of tokens on each device.
        packed: device → expert → the tokens in that box, by their number on the device.
        dropped: device → the tokens that are dropped.
        received: expert → device → the tokens that the expert gets from it.
        empty: the number of slots without a token, which are sent and computed too.
        sentence: what is dropped and what is empty, in words.

    Raises:
        NotUnderstood: `choice` has other numbers, or as many devices as the drawing has
            no colors for; or `capacity` is none.

    Used in chapter 16.
    """

    def __init__(self, choice: Any, capacity: int) -> None:
        try:
            self.choice = _choice(choice)
            self.capacity = integer("capacity", capacity, "a number of tokens")
        except NotUnderstood as error:
            raise error.with_traceback(None) from None
        self.devices, self.tokens = len(self.choice), len(self.choice[0])
        all_boxes = [
            [
                tuple(t for t, chosen in enumerate(row) if chosen == expert)
                for expert in range(self.devices)
            ]
            for row in self.choice
        ]
        self.packed: Boxes = tuple(
            tuple(box[: self.capacity] for box in boxes) for boxes in all_boxes
        )
        self.dropped = tuple(
            tuple(sorted(t for box in boxes for t in box[self.capacity :]))
            for boxes in all_boxes
        )
        self.received: Boxes = tuple(zip(*self.packed, strict=True))
        slots = self.devices**2 * self.capacity
        self.empty = slots - sum(len(box) for row in self.packed for box in row)

    @cached_property
    def sentence(self) -> str:
        """What is dropped and what is empty, in words."""
        lost = sum(map(len, self.dropped))
        slots = self.devices**2 * self.capacity
        return (
            f"{lost} of {count_words(self.devices * self.tokens, 'token')} dropped, "
            f"{self.empty} of {slots} slots empty."
        )

    def __str__(self) -> str:
        return str(self._packed())

    __repr__ = __str__

    def _html(self) -> str:
        return self._packed()._html()

    def play(self) -> FramePlayer:
        """The way of the tokens to their experts, as a figure that plays."""
        lost = sum(map(len, self.dropped))
        drop = (
            f"{count_words(lost, 'token')} found a full box and "
            f"{'is' if lost == 1 else 'are'} dropped."
            if lost
            else "No token is dropped."
        )
        frames = [
            (
                self._chosen(),
                "The router chooses",
                "A token has the color and the number of its expert: e1 is for "
                "expert 1.",
            ),
            (
                self._packed(flies=True),
                "Each device packs its boxes",
                f"A box has {count_words(self.capacity, 'slot')}; t1 is token 1 of "
                f"its device. {drop} Empty slots, dashed, are sent as zeros.",
            ),
            (
                self._received(),
                "After the all-to-all",
                "Box e of every device is on device e, which applies expert e to all "
                "of its slots, the empty ones too. A second all-to-all sends the "
                "results back.",
            ),
        ]
        return FramePlayer(
            frames,
            title=f"{self.tokens} tokens per device, {self.devices} experts, "
            f"capacity {self.capacity}",
            notes="Equal colors are tokens of one expert.",
        )

    @property
    def _rows_of_box(self) -> int:
        return math.ceil(self.capacity / _ACROSS)

    @property
    def _slot_width(self) -> float:
        return _SLOT if self.tokens <= 10 else _WIDER

    @property
    def _box_width(self) -> float:
        return min(self.capacity, _ACROSS) * self._slot_width + _GAP

    def _y(self, device: int) -> float:
        return _TOP + device * (self._rows_of_box * _HIGH + _BETWEEN)

    def _slot(self, device: int, box: int, slot: int) -> tuple[float, float]:
        down, right = divmod(slot, _ACROSS)
        return (
            _LEFT + box * self._box_width + right * self._slot_width,
            self._y(device) + down * _HIGH,
        )

    def _size(self) -> tuple[float, float]:
        lost = max(map(len, self.dropped), default=0)
        right = _LEFT + self.devices * self._box_width + lost * self._slot_width + 14
        most = max(right, _LEFT + self.tokens * (self._slot_width + 4))
        return max(most, 300.0), self._y(self.devices)

    def _names(self) -> list[Item]:
        middle = self._rows_of_box * _HIGH / 2 + 4
        return [
            Text(0, self._y(d) + middle, f"device {d}") for d in range(self.devices)
        ]

    def _heads(self, words: str) -> list[Item]:
        room = min(self.capacity, _ACROSS) * self._slot_width
        return [
            Text(_LEFT, 31, words, "small"),
            *(
                Text(
                    _LEFT + box * self._box_width + room / 2 - 1,
                    44,
                    str(box),
                    "tiny",
                    "middle",
                )
                for box in range(self.devices)
            ),
        ]

    def _chosen(self) -> Diagram:
        """The tokens where they are, each with its expert."""
        title = f"{self.devices} devices, {self.tokens} tokens each"
        high = self._rows_of_box * _HIGH
        cells = [
            Box(
                _LEFT + t * (self._slot_width + 4),
                self._y(d) + (high - _HIGH) / 2,
                self._slot_width,
                _HIGH - 1,
                "shard",
                f"e{expert}",
                expert,
            )
            for d, row in enumerate(self.choice)
            for t, expert in enumerate(row)
        ]
        head = Text(_LEFT, 44, "the expert that each token chooses", "small")
        rows = table(
            [f"device {d}", " ".join(f"e{expert}" for expert in row)]
            for d, row in enumerate(self.choice)
        )
        items = [Text(0, 14, title, "title"), head, *self._names(), *cells]
        return Diagram(
            title, f"The expert of each token. {_line(rows)}", rows, self._size(), items
        )

    def _packed(self, flies: bool = False) -> Diagram:
        """The boxes on the devices that send them."""
        lost = sum(map(len, self.dropped))
        total = self.devices * self.tokens
        title = (
            f"{self.devices} experts, capacity {self.capacity}: {lost} of {total} "
            f"tokens dropped, {self.empty} slots empty"
        )
        items: list[Item] = [
            Text(0, 14, title.split(", ", 1)[1], "title"),
            *self._heads("the box to expert …"),
            *self._names(),
        ]
        for d, boxes in enumerate(self.packed):
            for expert, box in enumerate(boxes):
                start = self._slot(expert, d, 0)
                here = self._slot(d, expert, 0)
                away = (start[0] - here[0], start[1] - here[1])
                items += self._box(d, expert, box, expert, away if flies else None)
            for k, token in enumerate(self.dropped[d]):
                x = _LEFT + self.devices * self._box_width + k * self._slot_width
                place = x, self._y(d), self._slot_width - 1, _HIGH - 1
                items.append(Box(*place, "dropped", f"t{token}"))
        rows = self._table(self.packed, "device", "to expert", self.dropped)
        return Diagram(title, f"{title}. {_line(rows)}", rows, self._size(), items)

    def _received(self) -> Diagram:
        """The boxes on the devices of their experts."""
        title = f"{self.devices} experts, each with a box from every device"
        items: list[Item] = [
            Text(0, 14, title, "title"),
            *self._heads("the box from device …"),
            *self._names(),
        ]
        for expert, boxes in enumerate(self.received):
            for d, box in enumerate(boxes):
                items += self._box(expert, d, box, expert, None)
        rows = self._table(self.received, "expert", "from device", None)
        return Diagram(title, f"{title}. {_line(rows)}", rows, self._size(), items)

    def _box(
        self,
        row: int,
        column: int,
        tokens: tuple[int, ...],
        hue: int,
        to: tuple[float, float] | None,
    ) -> list[Item]:
        items: list[Item] = []
        for slot in range(self.capacity):
            x, y = self._slot(row, column, slot)
            place = x, y, self._slot_width - 1, _HIGH - 1
            moves = None if to in (None, (0.0, 0.0)) else to
            if slot < len(tokens):
                text = f"t{tokens[slot]}"
                items.append(Box(*place, "shard", text, hue, moves))
            else:
                items.append(Box(*place, "slot", to=moves))
        return items

    def _table(
        self,
        boxes: Boxes,
        name: str,
        head: str,
        dropped: Iterable[tuple[int, ...]] | None,
    ) -> str:
        lines = [[head, *map(str, range(self.devices))]]
        lost = list(dropped or [()] * self.devices)
        if any(lost):
            lines[0].append("dropped")
        for k, row in enumerate(boxes):
            words = [
                " ".join([*_named(box), *["·"] * (self.capacity - len(box))])
                for box in row
            ]
            lines.append([f"{name} {k}", *words, " ".join(_named(lost[k]))])
        return table(lines)


def _choice(choice: Any) -> tuple[tuple[int, ...], ...]:
    try:
        rows = tuple(tuple(map(as_integer, row)) for row in choice)
    except TypeError:
        rows = ()
    sizes = {len(row) for row in rows}
    if not rows or len(sizes) != 1 or sizes == {0}:
        raise NotUnderstood(
            f"choice={choice!r} is no array [devices, tokens of a device]; give the "
            "expert of each token, such as [[0, 1, 1], [1, 0, 0]]."
        )
    if len(rows) > len(SHARDS):
        raise NotUnderstood(
            f"choice has {len(rows)} devices, and {len(SHARDS)} are drawn at most; "
            "give the first of them, with their experts."
        )
    checked = []
    for row in rows:
        numbers = [n for n in row if n is not None and n < len(rows)]
        if len(numbers) != len(row):
            raise NotUnderstood(
                f"choice has the row {list(row)}; give numbers of experts from 0 to "
                f"{len(rows) - 1}, one expert for each of {len(rows)} devices."
            )
        checked.append(tuple(numbers))
    return tuple(checked)


def _named(box: tuple[int, ...]) -> list[str]:
    return [f"t{token}" for token in box]


def _line(rows: str) -> str:
    return "; ".join(" ".join(line.split()) for line in rows.splitlines())
