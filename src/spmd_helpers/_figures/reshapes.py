"""A reshape of a sharded dimension into heads: which shard boundaries are inside heads.

The features of a device are those of its shard. What the reshape costs, and what each
device has after it, is read from the compiled program.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from .._core.palette import SHARDS
from .._core.validate import as_integer
from .._errors import NotUnderstood
from .._hlo.collectives import Collective
from .._shardings.from_jax import sharding as read_sharding
from .._shardings.sharding import Block, ShardingInfo
from .._xray.xray import xray

DEVICES = len(SHARDS)  # that are drawn
Run = tuple[int, int]  # the first feature, and the one after the last


@dataclass(frozen=True)
class Piece:
    """The features of one head that are on one device.

    Attributes:
        head: the number of the head.
        start: its first feature there; `stop` is the one after its last.
        complete: whether the device has all of the head.
    """

    head: int
    start: int
    stop: int
    complete: bool


@dataclass(frozen=True)
class Reshape:
    """One reshape of the features into heads.

    Attributes:
        heads: how many there are.
        size: features of a head.
        before: for each device, in mesh order, the features that it has.
        after: for each device the features that it has of the result, as runs.
        result: the sharding of the result.
        collectives: what the compiled reshape exchanges.
    """

    heads: int
    size: int
    before: tuple[Run, ...]
    after: tuple[tuple[Run, ...], ...]
    result: ShardingInfo
    collectives: tuple[Collective, ...]

    def pieces(self, device: int) -> list[Piece]:
        """The heads, and the parts of heads, on a device before the reshape."""
        low, high = self.before[device]
        pieces = []
        for head in range(low // self.size, -(-high // self.size)):
            first, last = head * self.size, (head + 1) * self.size
            start, stop = max(low, first), min(high, last)
            pieces.append(Piece(head, start, stop, (start, stop) == (first, last)))
        return pieces

    @property
    def inside(self) -> dict[int, int]:
        """The boundaries between shards that are inside a head, and which head."""
        edges = sorted({edge for run in self.before for edge in run})
        return {
            edge: edge // self.size for edge in edges[1:-1] if edge % self.size != 0
        }

    @property
    def wire_bytes(self) -> int:
        """What one device sends."""
        return sum(c.total_wire_bytes or 0 for c in self.collectives)


def read(x: Any, counts: Iterable[int]) -> tuple[ShardingInfo, tuple[Reshape, ...]]:
    """The sharding of x, and each reshape of its last dimension.

    Raises:
        NotUnderstood: x has no devices, or its last dimension is not sharded, or is
            not divisible into so many heads.
    """
    info = _checked(x)
    numbers = [as_integer(count, 1, info.shape[-1]) for count in counts]
    for count, number in zip(counts, numbers, strict=True):
        if number is None or info.shape[-1] % number:
            raise NotUnderstood(
                f"heads={count!r}: {info.shape[-1]} features can't be divided into so "
                "many heads; give integers that divide them."
            )
    if not numbers:
        raise NotUnderstood("heads is empty; give numbers of heads, such as (8, 6).")
    return info, tuple(_reshape(x, info, n) for n in numbers if n is not None)


def _checked(x: Any) -> ShardingInfo:
    info = read_sharding(x)
    if info.device_ids is None or not info.shape or info.grid[-1] == 1:
        raise NotUnderstood(
            f"x is {info!r}; give an array, or a ShapeDtypeStruct, whose last "
            "dimension is sharded over real devices."
        )
    if info.device_count > DEVICES:
        raise NotUnderstood(
            f"x is on {info.device_count} devices; {DEVICES} are drawn at most: give "
            "one on a smaller mesh."
        )
    return info


def _reshape(x: Any, info: ShardingInfo, heads: int) -> Reshape:
    size = info.shape[-1] // heads
    shape = (*info.shape[:-1], heads, size)
    program = xray(lambda array: array.reshape(shape), x)
    result = program.output_shardings
    after = _by_device(result)
    return Reshape(
        heads,
        size,
        tuple(info.slices(block)[-1] for block in _by_device(info)),
        tuple(_runs(result, block, size) for block in after),
        result,
        program.collectives,
    )


def _by_device(info: ShardingInfo) -> list[Block]:
    """The block of each device, in mesh order."""
    blocks = {place: block for block, places in info.owners.items() for place in places}
    return [blocks[place] for place in sorted(blocks)]


def _runs(result: ShardingInfo, block: Block, size: int) -> tuple[Run, ...]:
    """The features of a block of [..., heads, size], neighbors joined."""
    (first, last), (low, high) = result.slices(block)[-2:]
    runs: list[Run] = []
    for head in range(first, last):
        start, stop = head * size + low, head * size + high
        if runs and runs[-1][1] == start:
            start = runs.pop()[0]
        runs.append((start, stop))
    return tuple(runs)
