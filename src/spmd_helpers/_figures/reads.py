"""A restore onto another sharding: which saved shards are read for which device."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING

from .._core.notebook import InNotebook
from .._core.palette import SHARDS
from .._core.words import bytes_words, count_words, join_words, table
from .._errors import MeshMismatch, NotUnderstood, SpecError
from .._player.frames import FramePlayer
from .._shardings.from_jax import sharding as read_sharding
from .._shardings.sharding import ShardingInfo
from .diagram import Box, Diagram, Item, Text

if TYPE_CHECKING:
    from .._shardings.types import ArrayLike

Slices = tuple[tuple[int, int], ...]
_WIDE, _HIGH = 340.0, 190.0  # px of the array, at most
_LEFT, _TOP = 58, 46
_DRAWN = 2  # dimensions
_LEAST = 22.0  # px of a shard
_LABEL = 16  # px from the left side of a shard to its number


class RestoreReads(InNotebook):
    """Which saved shards are read for each device, when an array is sharded otherwise.

    A notebook draws the saved shards when a cell ends with it; `play()` goes from
    device to device.

    >>> from jax.sharding import PartitionSpec as P
    >>> import spmd_helpers as spmd
    >>> saved = spmd.sharding((8, 6), P("data", "model"), mesh={"data": 4, "model": 2})
    >>> wanted = spmd.sharding((8, 6), P("data"), mesh={"data": 2})
    >>> RestoreReads(saved, wanted)
    float32[8, 6]: 8 saved shards of (2, 3), restored as (4, 6)
    device 0  rows 0:4, columns 0:6  shards 0, 1, 2, 3
    device 1  rows 4:8, columns 0:6  shards 4, 5, 6, 7

    Args:
        saved: the array as it was saved: what `spmd.sharding` takes, with a sharding;
            of one or two dimensions.
        wanted: the same array as it is restored, on a mesh of any size.

    Attributes:
        saved: the ShardingInfo of the saved array; `wanted` is that of the restored.
        slices: saved shard → its place in the array, (start, stop) per dimension.
        places: device → what it will have, (start, stop) per dimension.
        shards: device → the saved shards that are read for it, by number, row by row.
        sentence: how many shards are read for a device, in words.

    Raises:
        NotUnderstood: an array has no sharding, more than two dimensions, or more
            shards than there are colors.
        MeshMismatch: the two have different shapes.

    Used in chapter 13.
    """

    def __init__(self, saved: "ArrayLike", wanted: "ArrayLike") -> None:
        try:
            self.saved, self.wanted = read_sharding(saved), read_sharding(wanted)
            _check(self.saved, self.wanted)
        except (SpecError, MeshMismatch, NotUnderstood) as error:
            raise error.with_traceback(None) from None
        blocks = list(product(*map(range, self.saved.grid)))
        self.slices: Mapping[int, Slices] = {
            number: self.saved.slices(block) for number, block in enumerate(blocks)
        }
        self.places = dict(sorted(_places(self.wanted).items()))
        self.shards = {
            device: tuple(n for n, one in self.slices.items() if _meet(one, place))
            for device, place in self.places.items()
        }

    @cached_property
    def sentence(self) -> str:
        """How many shards are read for a device, in words."""
        counts = sorted({len(shards) for shards in self.shards.values()})
        words = " to ".join(str(n) for n in dict.fromkeys((counts[0], counts[-1])))
        return (
            f"{count_words(len(self.slices), 'saved shard')}; for each of "
            f"{count_words(len(self.places), 'device')}, {words} of them are read."
        )

    def __str__(self) -> str:
        return str(self._diagram(tuple(self.places)))

    __repr__ = __str__

    def _html(self) -> str:
        return self._diagram(tuple(self.places))._html()

    def play(self) -> FramePlayer:
        """What is read for each device, one after the other, as a figure that plays."""
        frames = [
            (
                self._diagram(()),
                "The checkpoint",
                f"{count_words(len(self.slices), 'shard')} of {self.saved.shard_shape},"
                " each saved once.",
            ),
            *(
                (self._diagram((d,)), f"For device {d}", self._say(d))
                for d in self.places
            ),
        ]
        title = f"Restore {self._what} as {self.wanted.shard_shape} per device"
        notes = (
            "A color and a number are a saved shard. The thick frame is the shard that "
            "a device will have."
        )
        return FramePlayer(frames, title=title, notes=notes)

    @property
    def _what(self) -> str:
        return f"{self.saved.dtype}[{', '.join(map(str, self.saved.shape))}]"

    def _say(self, device: int) -> str:
        shards = self.shards[device]
        sizes = [_overlap(self.slices[n], self.places[device]) for n in shards]
        names = join_words([str(n) for n in shards])
        size = bytes_words(sum(sizes) * self.saved.itemsize)
        complete = [_size(self.slices[n]) for n in shards] == sizes
        which = f"saved shard{'s' * (len(shards) > 1)} {names}"
        objects = "it" if len(shards) == 1 else "them"
        part = objects if complete else f"the part that device {device} needs"
        on = f"device {device}" if complete else "it"
        where = f"{_say_place(self.places[device])}, {size}"
        return f"Its process reads {which} and puts {part} on {on}: {where}."

    def _diagram(self, devices: tuple[int, ...]) -> Diagram:
        what = f"{count_words(len(self.slices), 'saved shard')} of "
        title = f"{self._what}: {what}{self.saved.shard_shape}"
        head = title
        if len(devices) == 1:
            shards = ", ".join(map(str, self.shards[devices[0]]))
            head = f"read for device {devices[0]}: shards {shards}"
            title = f"{self._what}: {head}"
        elif devices:
            title += f", restored as {self.wanted.shard_shape}"
        shown = {n for device in devices for n in self.shards[device]}
        wide, high = self._pixels()
        items: list[Item] = [Text(0, 14, head, "title")]
        for number, place in self.slices.items():
            kind = "shard" if not devices or number in shown else "frame"
            box = self._rectangle(place, kind, str(number), number)
            items.append(replace(box, at=_LABEL / box.width))
        items += [
            self._rectangle(place, "mark", "", None)
            for place in dict.fromkeys(self.places[d] for d in devices)
        ]
        items += self._edges()
        size = _LEFT + wide + 3, _TOP + high + 3
        rows = self._rows(devices)
        spoken = "; ".join(" ".join(line.split()) for line in rows.splitlines())
        return Diagram(title, f"{spoken or title}.", rows, size, items)

    def _pixels(self) -> tuple[float, float]:
        """The size of the array as it is drawn."""
        rows, columns = _two(self.saved.shape)
        down, _ = _two(self.saved.grid)
        high = min(_HIGH, _WIDE * rows / columns)
        return _WIDE, max(high, down * _LEAST)

    def _rectangle(self, place: Slices, kind: str, text: str, hue: int | None) -> Box:
        wide, high = self._pixels()
        rows, columns = _two(self.saved.shape)
        (top, low), (left, right) = ((0, 1), *place)[-_DRAWN:]
        return Box(
            _LEFT + left / columns * wide,
            _TOP + top / rows * high,
            (right - left) / columns * wide,
            (low - top) / rows * high,
            kind,
            text,
            hue,
        )

    def _edges(self) -> list[Item]:
        """Where the saved shards begin, at the left and above."""
        items: list[Item] = []
        wide, high = self._pixels()
        rows, columns = _two(self.saved.shape)
        for (top, low), (left, right) in (
            ((0, 1), *p)[-2:] for p in self.slices.values()
        ):
            if left == 0 and len(self.saved.shape) == _DRAWN:
                y = _TOP + (top + low) / 2 / rows * high + 4
                items.append(Text(_LEFT - 6, y, f"{top}:{low}", "small", "end"))
            if top == 0:
                x = _LEFT + (left + right) / 2 / columns * wide
                words = f"{left}:{right}"
                items.append(Text(x, _TOP - 7, words, "small", "middle"))
        return items

    def _rows(self, devices: tuple[int, ...]) -> str:
        return table(
            (
                f"device {d}",
                _say_place(self.places[d]),
                f"shard{'s' * (len(self.shards[d]) > 1)} "
                + ", ".join(map(str, self.shards[d])),
            )
            for d in devices
        )


def _check(saved: ShardingInfo, wanted: ShardingInfo) -> None:
    if saved.shape != wanted.shape:
        raise MeshMismatch(
            f"saved is {saved.shape} and wanted is {wanted.shape}; give the same array "
            "in two shardings."
        )
    if not 1 <= len(saved.shape) <= _DRAWN:
        raise NotUnderstood(
            f"saved has shape {saved.shape}; give an array of one or two dimensions."
        )
    if len(saved.owners) > len(SHARDS):
        raise NotUnderstood(
            f"saved has {len(saved.owners)} shards, and {len(SHARDS)} are drawn at "
            "most; give a sharding over fewer devices."
        )


def _places(info: ShardingInfo) -> dict[int, Slices]:
    return {
        device: info.slices(block)
        for block in info.owners
        for device in info.devices(block)
    }


def _overlap(one: Slices, other: Slices) -> int:
    size = 1
    for (a, b), (c, d) in zip(one, other, strict=True):
        size *= max(0, min(b, d) - max(a, c))
    return size


def _meet(one: Slices, other: Slices) -> bool:
    return _overlap(one, other) > 0


def _size(place: Slices) -> int:
    return _overlap(place, place)


def _say_place(place: Slices) -> str:
    names = ("rows", "columns") if len(place) == _DRAWN else ("elements",)
    return ", ".join(
        f"{name} {a}:{b}" for name, (a, b) in zip(names, place, strict=True)
    )


def _two(sizes: tuple[int, ...]) -> tuple[int, int]:
    rows, columns = (1, *sizes)[-_DRAWN:]
    return rows, columns
