"""A product of two sharded matrices: what each device has, computes and gets."""

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

from .._core.palette import SHARDS
from .._core.validate import as_integer
from .._core.words import count_words, join_words, table
from .._errors import NotUnderstood
from .._matmul.matmul import Matmul
from .._shardings.sharding import ShardingInfo
from .bytes_sent import bytes_sent
from .diagram import Box, Diagram, Item, Text

Slices = tuple[tuple[int, int], ...]
_LEAST, _MORE, _WIDER = 24.0, 48.0, 1.3  # px of a small dimension, more of a large one
_LEFT, _TOP, _GAP = 62, 58, 24
_BETWEEN = 14  # rows


def draw_product(
    product: Matmul,
    *,
    names: Sequence[str] = ("A", "B", "C"),
    devices: Iterable[int] | None = None,
) -> Diagram:
    """Draw what some devices have of A and B, what they compute, and what is exchanged.

    >>> import spmd_helpers as spmd
    >>> product = spmd.matmul((8, 6, 4), ((), "model"), ("model",), mesh={"model": 2})
    >>> draw_product(product)
    A[8, 6] · B[6, 4] = C[8, 4]: all-reduce of C over model, each sends 128 B
    device 0  A[0:8, 0:3] · B[0:3, 0:4]  part 1 of 2 of C[0:8, 0:4]  then C[0:8, 0:4]
    device 1  A[0:8, 3:6] · B[3:6, 0:4]  part 2 of 2 of C[0:8, 0:4]  then C[0:8, 0:4]

    Each device has a color, that of its own shards; what all drawn devices have alike
    is grey. A shard that a device receives has a frame in its owner's color. A hatched
    shard is a partial sum. A notebook shows the drawing when a cell ends with it; it
    can be a frame of a `spmd.FramePlayer`.

    Args:
        product: what `spmd.matmul` gives, if it covers the product.
        names: the names of the two factors and of the product.
        devices: positions in the mesh; the first group along the last axis of more
            than one device unless given.

    Returns:
        A Diagram: SVG in a notebook, text under `print`.

    Raises:
        NotUnderstood: an argument is of another kind, the rule of `spmd.matmul` does
            not cover the product, or a device is not in the mesh.

    Used in chapter 11.
    """
    try:
        view = _View(product, names, devices)
    except NotUnderstood as error:
        raise error.with_traceback(None) from None
    return view.diagram()


class _View:
    """The slices that the drawn devices have, use, compute and get."""

    def __init__(
        self,
        product: Matmul,
        names: Sequence[str],
        devices: Iterable[int] | None,
    ) -> None:
        if not isinstance(product, Matmul):
            raise NotUnderstood(
                f"product={product!r} is no Matmul; give what spmd.matmul returns."
            )
        if product.cuts is None or product.moves is None or product.c is None:
            raise NotUnderstood(
                f"product is not covered by the rule: {product.why_not}; X-ray it with "
                "spmd.xray."
            )
        self.names = _names(names)
        self.product, self.c = product, product.c
        self.cuts, self.moves = product.cuts, product.moves
        self.mesh = dict(product.a.mesh_shape)
        self.devices = _devices(self.mesh, devices)
        (i, j), (_, k) = product.a.shape, product.b.shape
        self.sizes = {"I": i, "J": j, "K": k}

    def slices(self, device: int, dims: str) -> Slices:
        """What a device multiplies, along two dimensions of the product."""
        return tuple(self._slice(device, dim) for dim in dims)

    def _slice(self, device: int, dim: str) -> tuple[int, int]:
        block, blocks = 0, 1
        for axis in self._axes(dim):
            size = self.mesh[axis]
            block, blocks = block * size + self._along(device, axis), blocks * size
        step = self.sizes[dim] // blocks
        return block * step, (block + 1) * step

    def _axes(self, dim: str) -> list[str]:
        """The axes that shard a dimension at the multiply, the slowest first."""
        entries = (*self.product.a.entries, *self.product.b.entries, *self.c.entries)
        known = dict.fromkeys(axis for entry in entries for axis in entry)
        return [axis for axis in known if self.cuts.get(axis) == dim]

    def _along(self, device: int, axis: str) -> int:
        names = list(self.mesh)
        inner = math.prod(self.mesh[n] for n in names[names.index(axis) + 1 :])
        return device // inner % self.mesh[axis]

    def parts(self, device: int) -> tuple[int, int]:
        """Which part of how many parts of the sum a device computes, from 0."""
        number, count = 0, 1
        for axis in self._axes("J"):
            number = number * self.mesh[axis] + self._along(device, axis)
            count *= self.mesh[axis]
        return number, count

    def diagram(self) -> Diagram:
        """The drawing."""
        title, facts = self._title()
        tall = max(self._high(self.sizes[dim]) for dim in "IJ")
        items: list[Item] = [Text(0, 14, title, "title"), Text(0, 31, facts)]
        for x, words in self.columns:
            items.append(Text(x, _TOP - 6, words, "small"))
        for row, device in enumerate(self.devices):
            y = _TOP + row * (tall + _BETWEEN)
            items.append(Text(0, y + tall / 2 + 4, f"device {device}"))
            items += self._row(device, y)
        rows = table(self._words(device) for device in self.devices)
        size = (
            self.columns[-1][0] + self._wide(self.sizes["K"]) + 2,
            _TOP + len(self.devices) * (tall + _BETWEEN),
        )
        spoken = "; ".join(" ".join(line.split()) for line in rows.splitlines())
        return Diagram(f"{title}: {facts}", f"{spoken}.", rows, size, items)

    def _title(self) -> tuple[str, str]:
        shapes = (self.product.a.shape, self.product.b.shape, self.c.shape)
        a, b, c = (
            f"{name}[{rows}, {columns}]"
            for name, (rows, columns) in zip(self.names, shapes, strict=True)
        )
        each = self.c.itemsize
        facts = [
            f"{move.kind} of {self._name(move.of)} over {join_words(move.axes)}, "
            + bytes_sent(move, math.prod(self.mesh[a] for a in move.axes), each, "each")
            for move in self.moves
        ]
        return f"{a} · {b} = {c}", "; ".join(facts) or "nothing is communicated"

    def _name(self, letter: str) -> str:
        return self.names["ABC".index(letter)]

    @cached_property
    def columns(self) -> list[tuple[float, str]]:
        """Where each matrix begins, and the words above it."""
        a, b, c = self.names
        dims = [(a, "J"), (b, "K"), (c, "K")]
        dims += [("then", "K")] * self._ends_otherwise()
        columns, x = [], float(_LEFT)
        for name, dim in dims:
            columns.append((x, name))
            x += self._wide(self.sizes[dim]) + _GAP
        return columns

    def _high(self, size: int) -> float:
        return _LEAST + _MORE * size / max(self.sizes.values())

    def _wide(self, size: int) -> float:
        return _WIDER * self._high(size)

    def _box(
        self,
        x: float,
        y: float,
        shape: Sequence[int],
        place: Slices | None = None,
        kind: str = "empty",
        text: str = "",
        hue: int | None = None,
    ) -> Box:
        """A part of a matrix whose upper left corner is at x, y."""
        high, wide = self._high(shape[0]), self._wide(shape[1])
        (top, low), (left, right) = place or tuple((0, size) for size in shape)
        return Box(
            x + left / shape[1] * wide,
            y + top / shape[0] * high,
            (right - left) / shape[1] * wide,
            (low - top) / shape[0] * high,
            kind,
            text,
            hue,
        )

    def _ends_otherwise(self) -> bool:
        return any(move.of == "C" for move in self.moves)

    def _row(self, device: int, y: float) -> list[Item]:
        items: list[Item] = []
        for info, dims, (x, _), mark in (
            (self.product.a, "IJ", self.columns[0], "·"),
            (self.product.b, "JK", self.columns[1], "="),
        ):
            items += self._operand(info, self.slices(device, dims), device, x, y)
            middle = x + self._wide(info.shape[1]) + _GAP / 2
            items.append(Text(middle, y + _LEAST / 2 + 4, mark, "name", "middle"))
        x = self.columns[2][0]
        items.append(self._box(x, y, self.c.shape))
        items.append(self._computed(device, x, y))
        if self._ends_otherwise():
            x = self.columns[3][0]
            items.append(Text(x - _GAP / 2, y + _LEAST / 2 + 4, "→", "name", "middle"))
            items.append(self._box(x, y, self.c.shape))
            items.append(self._own(self.c, device, x, y))
        return items

    def _computed(self, device: int, x: float, y: float) -> Box:
        block = self.slices(device, "IK")
        number, count = self.parts(device)
        if count > 1:
            words = f"{number + 1} of {count}"
            return self._box(
                x, y, self.c.shape, block, "part", words, self._hue(device)
            )
        alike = len({self.slices(d, "IK") for d in self.devices}) == 1
        if alike and len(self.devices) > 1:
            return self._box(x, y, self.c.shape, block, "bar")
        return self._box(x, y, self.c.shape, block, "shard", "", self._hue(device))

    def _operand(
        self, info: ShardingInfo, used: Slices, device: int, x: float, y: float
    ) -> list[Item]:
        """A device's own shard, and what it receives of others to multiply."""
        own = _shard(info, device)
        items: list[Item] = [self._box(x, y, info.shape)]
        if not _within(used, own):
            items.append(self._box(x, y, info.shape, used, "edge"))
        for other in self.devices:
            theirs = _meeting(_shard(info, other), used)
            if theirs and not _within(theirs, own):
                hue = self._hue(other)
                items.append(self._box(x, y, info.shape, theirs, "frame", "", hue))
        return [*items, self._own(info, device, x, y)]

    def _own(self, info: ShardingInfo, device: int, x: float, y: float) -> Box:
        own = _shard(info, device)
        alike = len({_shard(info, d) for d in self.devices}) == 1
        if alike and len(self.devices) > 1:
            return self._box(x, y, info.shape, own, "bar")
        return self._box(x, y, info.shape, own, "shard", "", self._hue(device))

    def _hue(self, device: int) -> int:
        return self.devices.index(device)

    def _words(self, device: int) -> tuple[str, ...]:
        a, b, c = self.names
        number, count = self.parts(device)
        used = f"{a}{_say(self.slices(device, 'IJ'))}"
        used += f" · {b}{_say(self.slices(device, 'JK'))}"
        block = f"{c}{_say(self.slices(device, 'IK'))}"
        if count > 1:
            block = f"part {number + 1} of {count} of {block}"
        if not self._ends_otherwise():
            return f"device {device}", used, block
        return (
            f"device {device}",
            used,
            block,
            f"then {c}{_say(_shard(self.c, device))}",
        )


def _names(names: Sequence[str]) -> tuple[str, str, str]:
    listed = [] if isinstance(names, str) else [n for n in names if isinstance(n, str)]
    if len(listed) != 3 or len(names) != 3:
        raise NotUnderstood(
            f"names={names!r} are not three names; give those of both factors and of "
            "their product, such as ('x', 'w', 'y')."
        )
    return listed[0], listed[1], listed[2]


def _devices(mesh: Mapping[str, int], devices: Iterable[int] | None) -> tuple[int, ...]:
    size = math.prod(mesh.values())
    if devices is None:
        inner = 1
        for count in reversed([*mesh.values()]):
            if count > 1:
                return tuple(range(0, count * inner, inner))[: len(SHARDS)]
            inner *= count
        return (0,)
    chosen = tuple(devices)
    for device in chosen:
        if as_integer(device, 0, size - 1) is None:
            raise NotUnderstood(
                f"devices={chosen} has {device!r}; give positions in the mesh, 0 to "
                f"{size - 1}."
            )
    if not 0 < len(chosen) <= len(SHARDS):
        raise NotUnderstood(
            f"devices={chosen} are {count_words(len(chosen), 'device')}; give 1 to "
            f"{len(SHARDS)}."
        )
    return chosen


def _shard(info: ShardingInfo, device: int) -> Slices:
    """The slices of a device, by its position in the mesh."""
    return next(
        info.slices(block) for block, owners in info.owners.items() if device in owners
    )


def _meeting(one: Slices, other: Slices) -> Slices | None:
    both = tuple(
        (max(a, c), min(b, d)) for (a, b), (c, d) in zip(one, other, strict=True)
    )
    return both if all(a < b for a, b in both) else None


def _within(one: Slices, other: Slices) -> bool:
    return all(c <= a and b <= d for (a, b), (c, d) in zip(one, other, strict=True))


def _say(place: Slices) -> str:
    return f"[{', '.join(f'{a}:{b}' for a, b in place)}]"
