"""Which devices surely hold the same value: the devices, in classes.

A value of a program that runs on n devices gets a tuple of n numbers, by position in
`mesh.devices.flat`: devices with the same number hold the same. All zeros means that
all are alike, 0 to n - 1 that no two need be. Classes say more than names of axes:
an exchange over half of an axis, or along none, is followed exactly.
"""

import re
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import TypeAlias

from .replica_groups import Groups, parse_groups

Classes = tuple[int, ...]
Number = int | tuple[int, ...]  # or a row of numbers
Known = tuple[Number, ...]  # one for each device
Parts = tuple[int, tuple[tuple[int, Classes], ...]]

_TILES = re.compile(r"devices=\[([\d,]*)\](<=\[[\d,]*\](?:T\([\d,]*\))?|[\d,]+)")
_MESH = re.compile(r"mesh\[[^\]]*\](?:\s*,\s*device_ids=\((?:[^()]|\([^)]*\))*\))?")
_AXIS = re.compile(r"['\"][^'\"]+['\"](?::\(\d+\)\d+)?")


@dataclass(frozen=True, eq=False)
class Value:
    """An array: its classes, and its integers on each device where they are known.

    Of one that was put together, `parts` are the dimension along which, and the size
    there and the classes of each part: a device may share one part and not another.
    """

    classes: Classes
    known: Known | None = None
    parts: Parts | None = None


Tree: TypeAlias = "Value | tuple[Tree, ...]"


class Values:
    """The values on so many devices. Equal ones, and equal classes, are one object.

    Attributes:
        alike: the value that is the same everywhere, apart: that may differ anywhere.
    """

    def __init__(self, devices: int) -> None:
        self._shared: dict[Classes, Classes] = {}
        self._values: dict[tuple[Classes, Known | None, Parts | None], Value] = {}
        self._mixed: dict[tuple[Value, Value], Value] = {}
        self.alike = self.of((0,) * devices)
        self.apart = self.of(tuple(range(devices)))

    def of(
        self, classes: Classes, known: Known | None = None, parts: Parts | None = None
    ) -> Value:
        """The value with these classes."""
        classes = self._shared.setdefault(classes, classes)
        value = Value(classes, known, parts)
        return self._values.setdefault((classes, known, parts), value)

    def known(self, numbers: Iterable[Number]) -> Value:
        """An array with these integers, given for each device."""
        known = tuple(numbers)
        return self.of(numbered(known), known)

    def mix(self, *trees: Tree) -> Value:
        """What is computed from all these, nothing else being known of it."""
        mixed = self.alike
        for value in flat(trees):
            if value.classes is not mixed.classes:
                key = mixed, value
                if key not in self._mixed:
                    both = zip(mixed.classes, value.classes, strict=True)
                    self._mixed[key] = self.of(numbered(both))
                mixed = self._mixed[key]
        return mixed

    def joined(self, dimension: int, parts: Iterable[tuple[int, Value]]) -> Value:
        """What arrays of these sizes are when they stand side by side."""
        parts = list(parts)
        together = self.mix(*(value for _, value in parts)).classes
        each = tuple((size, value.classes) for size, value in parts)
        return self.of(together, parts=(dimension, each))

    def either(self, first: Tree, second: Tree) -> Tree:
        """What is the one or the other, on all devices the same one."""
        if first is second:
            return first
        if (
            isinstance(first, tuple)
            and isinstance(second, tuple)
            and len(first) == len(second)
        ):
            return tuple(map(self.either, first, second))
        return self.mix(first, second)


def flat(tree: Tree) -> list[Value]:
    """The arrays of a value, tuples opened."""
    if isinstance(tree, Value):
        return [tree]
    return [value for part in tree for value in flat(part)]


def numbered(keys: Iterable[Hashable]) -> Classes:
    """Classes of devices with equal keys, numbered as they first appear."""
    numbers: dict[Hashable, int] = {}
    return tuple(numbers.setdefault(key, len(numbers)) for key in keys)


def along(mesh: Mapping[str, int], axes: Iterable[str]) -> Classes:
    """The classes of a value that differs along these axes, and only along them."""
    named, inner, digits = set(axes), prod(mesh.values()), []
    for name, size in mesh.items():
        inner //= size
        if name in named:
            digits.append((inner, size))
    devices = range(prod(mesh.values()))
    return numbered(tuple(d // step % size for step, size in digits) for d in devices)


def varies(classes: Classes, mesh: Mapping[str, int], axis: str) -> bool:
    """Whether two devices that differ along this axis alone may hold different values.

    One part of an axis is enough: then the value varies along the axis.
    """
    inner = prod(mesh.values())
    for name, size in mesh.items():
        inner //= size
        if name == axis:
            return any(
                number != classes[d - d // inner % size * inner]
                for d, number in enumerate(classes)
            )
    return False


def exchanged(kind: str, before: Classes, groups: Groups) -> Classes:
    """What devices have in common after a collective, given what they had before.

    `groups` are those of devices or, of a collective-permute, pairs (from, to). Who
    is in none gets zeros.
    """
    after: list[Hashable] = [()] * len(before)
    if kind == "collective-permute":
        for source, target in groups:
            after[target] = before[source]
        return numbered(after)
    for group in groups:
        inside = tuple(before[device] for device in group)
        for place, device in enumerate(group):
            if kind == "all-gather":  # theirs, in order
                after[device] = inside
            elif kind == "all-reduce":  # a sum has no order
                after[device] = tuple(sorted(inside))
            elif kind == "collective-broadcast":
                after[device] = inside[0]
            elif kind == "reduce-scatter":
                after[device] = place, tuple(sorted(inside))
            else:  # an all-to-all: the part of each that is for this place
                after[device] = place, inside
    return numbered(after)


def of_sharding(text: str, devices: int) -> Classes | None:
    """The classes of an array with this printed sharding, None if it doesn't tell.

        >>> of_sharding("{devices=[2,1,2]<=[4] last_tile_dim_replicate}", 4)
        (0, 0, 1, 1)
        >>> of_sharding("{mesh['a'=2,'b'=2], [{'b'}, {}]}", 4)
        (0, 1, 0, 1)

    Args:
        text: from after `sharding=`; the rest of the line may follow.
        devices: how many there are.
    """
    text = _braced(text)
    if text.startswith("{{"):  # of a tuple
        return None
    if re.search(r"\b(manual|unreduced|maximal|unknown)\b", text):
        return None
    if tiles := _TILES.search(text):
        return _of_tiles(text, tiles[1], tiles[2], devices)
    if mesh := _MESH.search(text):
        axes = _AXIS.findall(re.sub(r"replicated=\{[^}]*\}", "", text[mesh.end() :]))
        if not axes:
            return (0,) * devices
        groups = parse_groups(f"{mesh.group()} {{{','.join(axes)}}}", devices)
        # The members of all groups stand in the same order along the axes.
        place = {d: n for group in groups for n, d in enumerate(group)}
        return numbered(place[d] for d in range(devices))
    return (0,) * devices if "replicated" in text else None


def _braced(text: str) -> str:
    depth = 0
    for n, letter in enumerate(text):
        depth += (letter == "{") - (letter == "}")
        if depth == 0:
            return text[: n + 1]
    return text


def _of_tiles(text: str, tiles: str, order: str, devices: int) -> Classes:
    """Rows of devices, each with one tile; the last dimension may count copies."""
    sizes = [int(n) for n in tiles.split(",")]
    copies = sizes[-1] if re.search(r"last_tile_dims?_?=?\{?_?replicate", text) else 1
    if order.startswith("<="):
        rows = parse_groups(f"[{devices // copies},{copies}]{order}", devices)
    else:
        listed = [int(n) for n in order.split(",")]
        rows = tuple(tuple(listed[n : n + copies]) for n in range(0, devices, copies))
    tile = {device: number for number, row in enumerate(rows) for device in row}
    return numbered(tile[d] for d in range(devices))
