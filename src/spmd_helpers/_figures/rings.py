"""Attention on a ring: which keys each device has in each iteration.

The pairs of the program's collective-permute say where a block goes, and its count how
often. In each iteration a device computes the scores of its own queries with the block
of keys that it has, and sends that block on.
"""

from dataclasses import dataclass

from .._core.palette import SHARDS
from .._errors import NotUnderstood
from .._hlo.collectives import Collective
from .._xray.xray import XRay

DEVICES = len(SHARDS)  # that are drawn


@dataclass(frozen=True)
class Ring:
    """The ring, and what it computes.

    Attributes:
        devices: positions in the mesh, in the order in which blocks go round, the
            lowest first.
        blocks: for each iteration, and after the last one, the block of keys that each
            of `devices` has. Blocks are numbered along the sequence, as the devices
            that they start at are along the axis.
        wire_bytes: what one device sends in an iteration.
        rings: how many such rings the program has.
        causal: whether a query sees its own block and those before it only.
    """

    devices: tuple[int, ...]
    blocks: tuple[tuple[int, ...], ...]
    wire_bytes: int
    rings: int
    causal: bool

    @property
    def queries(self) -> tuple[int, ...]:
        """The block of queries of each of `devices`, which stays there."""
        return self.blocks[0]

    @property
    def iterations(self) -> int:
        """How often scores are computed."""
        return len(self.blocks) - 1

    def computed(self, iteration: int) -> dict[tuple[int, int], int]:
        """(block of queries, block of keys) → the iteration that computed its scores.

        Args:
            iteration: the last one that counts, from 0.
        """
        return {
            (own, block): number
            for number, blocks in enumerate(self.blocks[: iteration + 1])
            if number < self.iterations
            for own, block in zip(self.queries, blocks, strict=True)
        }

    def is_masked(self, queries: int, keys: int) -> bool:
        """Whether the mask discards all scores of two blocks."""
        return self.causal and keys > queries


def read(report: object, causal: bool) -> Ring:
    """The ring of a program.

    Raises:
        NotUnderstood: it has no collective-permutes, or they are no ring, or different
            ones, or run an unknown number of times.
    """
    if not isinstance(report, XRay):
        raise NotUnderstood(
            f"report is {type(report).__name__}; give what spmd.xray returns."
        )
    permutes = [c for c in report.collectives if c.kind == "collective-permute"]
    if not permutes:
        raise NotUnderstood(
            f"{report.name} has no collective-permute, so nothing goes round; give the "
            "X-ray of a program with lax.ppermute."
        )
    first = permutes[0]
    if any((c.groups, c.count) != (first.groups, first.count) for c in permutes):
        raise NotUnderstood(
            f"{report.name} has collective-permutes that differ in their pairs or in "
            "how often they run; one ring is drawn."
        )
    if first.count is None:
        raise NotUnderstood(
            f"{report.name} runs its collective-permute an unknown number of times; "
            "give its loop a number of iterations that is known when it is compiled."
        )
    cycles = _cycles(report.name, first)
    n = len(cycles[0])
    order = sorted(cycles[0])
    blocks = [tuple(order.index(device) for device in cycles[0])]
    for _ in range(first.count):
        before = blocks[-1]
        blocks.append(tuple(before[place - 1] for place in range(n)))
    sent = sum(c.wire_bytes for c in permutes)
    return Ring(cycles[0], tuple(blocks), sent, len(cycles), causal)


def _cycles(name: str, permute: Collective) -> list[tuple[int, ...]]:
    """The rings that the pairs make, each from its lowest device on."""
    follows = {source: target for source, target in permute.groups}
    left, cycles = set(follows), []
    while left:
        device = start = min(left)
        cycle = []
        while device in left:
            left.remove(device)
            cycle.append(device)
            device = follows[device]
        if device != start:
            raise NotUnderstood(
                f"{name}: the pairs of the collective-permute make no ring: what "
                f"starts at device {start} does not come back to it."
            )
        cycles.append(tuple(cycle))
    if len({len(cycle) for cycle in cycles}) > 1 or len(cycles[0]) > DEVICES:
        raise NotUnderstood(
            f"{name}: rings of {sorted({len(c) for c in cycles})} devices; equal rings "
            f"of {DEVICES} devices at most are drawn."
        )
    return cycles
