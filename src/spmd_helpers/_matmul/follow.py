"""One device through a product of sharded matrices: what it has at each stage."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from .._core.words import device_list, join_words
from .rule import Entries, Move, Stage

Region = tuple[tuple[int, int], tuple[int, int]]  # rows and columns, first and end
_OPERANDS = "AB"
_SUMS = ("all-reduce", "reduce-scatter")


@dataclass(frozen=True)
class DeviceStage:
    """What one device has of A, B and C at one stage.

    Attributes:
        heading: the stage in a word or two.
        sentence: what happens on this device.
        a: the rows and the columns of A that it has, first and one past the last.
        b: those of B.
        c: those of C; None before the multiply.
        sums: of how many devices' partial sums this part of C still lacks the sum; 1 if
            it is complete, or there is none.
        sources: the other devices whose shards or partial sums it gets.
        same: the other devices that compute the same product; () before the multiply.
    """

    heading: str
    sentence: str
    a: Region
    b: Region
    c: Region | None
    sums: int
    sources: tuple[int, ...]
    same: tuple[int, ...]


class Follow:
    """Follows one device of a product.

    Args:
        sizes: (I, J, K).
        mesh: axis → number of devices.
        stages: those of the plan.
        moves: those of the plan.
        idle: the axes along which all devices compute the same.
        device: its position in the mesh.
    """

    def __init__(
        self,
        sizes: tuple[int, int, int],
        mesh: Mapping[str, int],
        stages: Sequence[Stage],
        moves: Sequence[Move],
        idle: Sequence[str],
        device: int,
    ) -> None:
        i, j, k = sizes
        self.shapes = {"A": (i, j), "B": (j, k), "C": (i, k)}
        self.mesh, self.stages, self.moves = mesh, stages, moves
        self.device, self.name = device, f"Device {device}"
        self.same = tuple(d for d in self.group(idle) if d != device)

    def run(self) -> tuple[DeviceStage, ...]:
        """All stages, in order."""
        followed = []
        for number, stage in enumerate(self.stages):
            before = self.stages[number - 1] if number else stage
            is_computed = stage.c is not None
            followed.append(
                DeviceStage(
                    self._heading(stage),
                    self._sentence(stage, before),
                    self.region("A", stage.a),
                    self.region("B", stage.b),
                    None if stage.c is None else self.region("C", stage.c),
                    math.prod(self.mesh[axis] for axis in stage.summed),
                    self._sources(stage, before),
                    self.same if is_computed else (),
                )
            )
        return tuple(followed)

    def region(self, of: str, entries: Entries, device: int | None = None) -> Region:
        """The rows and columns that a device has of a matrix so sharded."""
        where = self._coordinates(self.device if device is None else device)
        rows, columns = (
            self._slice(size, entry, where)
            for size, entry in zip(self.shapes[of], entries, strict=True)
        )
        return rows, columns

    def _slice(
        self, size: int, entry: Sequence[str], where: Mapping[str, int]
    ) -> tuple[int, int]:
        number, parts = 0, 1
        for axis in entry:
            number = number * self.mesh[axis] + where[axis]
            parts *= self.mesh[axis]
        return number * (size // parts), (number + 1) * (size // parts)

    def _coordinates(self, device: int) -> dict[str, int]:
        where = {}
        for axis, size in reversed(list(self.mesh.items())):
            device, where[axis] = divmod(device, size)
        return where

    def group(self, axes: Sequence[str]) -> Iterator[int]:
        """The devices that differ from this one along these axes at most."""
        here = self._coordinates(self.device)
        devices = [0]
        for axis, size in self.mesh.items():
            along = range(size) if axis in axes else (here[axis],)
            devices = [position * size + n for position in devices for n in along]
        return iter(devices)

    def _heading(self, stage: Stage) -> str:
        if stage.move is None:
            return {"before": "Before", "slice": "Slice"}.get(stage.at, "Multiply")
        move = self.moves[stage.move]
        return f"{move.kind.capitalize()} of {move.of} over {join_words(move.axes)}"

    def _sentence(self, stage: Stage, before: Stage) -> str:
        a, b = (self._part(of, stage) for of in _OPERANDS)
        if stage.at == "before":
            return f"{self.name} has {a} and {b}."
        if stage.at == "slice":
            cut = [
                part
                for of, part in (("A", a), ("B", b))
                if self._region(of, stage) != self._region(of, before)
            ]
            if not cut:
                return f"{self.name} needs all that it has of A and of B."
            return f"{self.name} needs only {' and '.join(cut)} of what it has."
        if stage.at == "multiply":
            return self._multiplies(stage, a, b)
        if stage.move is not None and self.moves[stage.move].kind in _SUMS:
            return self._adds(stage, self.moves[stage.move])
        return self._receives(stage, before)

    def _multiplies(self, stage: Stage, a: str, b: str) -> str:
        parts = math.prod(self.mesh[axis] for axis in stage.summed)
        product = self._part("C", stage)
        if parts > 1:
            product = f"{product} as a partial sum, 1 of {parts}"
        words = f"{self.name} multiplies {a} by {b} and has {product}."
        if not self.same:
            return words
        return f"{words} {_devices(self.same)} the same product."

    def _adds(self, stage: Stage, move: Move) -> str:
        count = math.prod(self.mesh[axis] for axis in move.axes)
        done = "still a partial sum" if stage.summed else "complete"
        what = self._part("C", stage)
        return f"{self.name} gets the sum over {count} devices: {what}, {done}."

    def _receives(self, stage: Stage, before: Stage) -> str:
        assert stage.move is not None
        move = self.moves[stage.move]
        now = self._region(move.of, stage)
        own = self._region(move.of, before)
        words = f"{self.name} now has {self._part(move.of, stage)}"
        if _overlap(now, own) == _area(now):
            return f"{words}, which it had before."
        sources = self._sources(stage, before)
        which = "the rest" if _overlap(now, own) else "all of it"
        plural = "devices" if len(sources) > 1 else "device"
        return f"{words}; {which} was on {plural} {device_list(sources)}."

    def _sources(self, stage: Stage, before: Stage) -> tuple[int, ...]:
        if stage.move is None:
            return ()
        move = self.moves[stage.move]
        others = [d for d in self.group(move.axes) if d != self.device]
        if move.kind in _SUMS:
            return tuple(others)
        now = self._region(move.of, stage)
        if _overlap(now, self._region(move.of, before)) == _area(now):
            return ()
        return tuple(
            d for d in others if _overlap(now, self._region(move.of, before, d))
        )

    def _region(self, of: str, stage: Stage, device: int | None = None) -> Region:
        entries = {"A": stage.a, "B": stage.b, "C": stage.c}[of]
        assert entries is not None
        return self.region(of, entries, device)

    def _part(self, of: str, stage: Stage) -> str:
        rows, columns = self._region(of, stage)
        return f"{of}[{rows[0]}:{rows[1]}, {columns[0]}:{columns[1]}]"


def _devices(others: Sequence[int]) -> str:
    if len(others) > 1:
        return f"Devices {device_list(others)} compute"
    return f"Device {others[0]} computes"


def _overlap(one: Region, other: Region) -> int:
    """The number of elements that two regions share."""
    (r0, r1), (c0, c1) = one
    (s0, s1), (d0, d1) = other
    return max(0, min(r1, s1) - max(r0, s0)) * max(0, min(c1, d1) - max(c0, d0))


def _area(region: Region) -> int:
    (first, end), (left, right) = region
    return (end - first) * (right - left)
