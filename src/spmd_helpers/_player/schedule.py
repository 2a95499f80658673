"""A collective hop by hop: who sends which shard to whom, and what each device has.

All-gather, reduce-scatter and all-reduce go around a ring: a device sends to the next
of its group. An all-to-all exchanges pairs of devices, a collective-permute is one
hop. Nothing here is drawn.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from .._core.words import count_words
from .._errors import NotUnderstood
from .._hlo.collectives import Collective

Place = tuple[int, int]  # a device's position in the mesh, a slot on it
Key = tuple[object, ...]  # equal keys are equal values, once complete
Contents = Mapping[Place, "Block"]

RING_GATHER, RING_SCATTER = "all-gather", "reduce-scatter"
SWAP, PERMUTE, SLICE = "all-to-all", "collective-permute", "slice"
# The phases of each collective, by what is sent.
_PHASES = {
    "all-gather": (RING_GATHER,),
    "reduce-scatter": (RING_SCATTER,),
    "all-reduce": (RING_SCATTER, RING_GATHER),
    "all-to-all": (SWAP,),
    "collective-permute": (PERMUTE,),
}
PLAYED = tuple(_PHASES)


@dataclass(frozen=True)
class Block:
    """A shard on a device.

    Attributes:
        key: what it is part of; blocks with one key are equal once they are complete.
        index: its number there.
        parts: the positions of the devices whose values are in it: of a sum, its
            summands. Of zeros, none.
        needs: how many parts it has when it is complete.
    """

    key: Key
    index: int
    parts: frozenset[int]
    needs: int

    @property
    def is_complete(self) -> bool:
        """Whether nothing has to be added to it."""
        return len(self.parts) == self.needs


@dataclass(frozen=True)
class Send:
    """One shard on its way from a place to another."""

    source: Place
    target: Place
    adds: bool = False  # to what the target has
    keeps: bool = False  # the source keeps it


@dataclass(frozen=True)
class Hop:
    """What happens at one time, on all devices.

    Attributes:
        phase: what it belongs to, such as 'reduce-scatter' in an all-reduce.
        sends: what is sent, of the slots that are followed.
        sent: how many shards the device that sends most has sent by then.
        drops: what devices discard without sending it.
    """

    phase: str
    sends: tuple[Send, ...]
    sent: int
    drops: tuple[Place, ...] = ()


@dataclass(frozen=True)
class Frame:
    """What each device has after a hop; the first frame is before any."""

    contents: Contents
    hop: Hop | None
    sent_bytes: int

    @property
    def arrived(self) -> frozenset[Place]:
        """The places that the hop has changed."""
        sends = self.hop.sends if self.hop else ()
        return frozenset(send.target for send in sends if send.source != send.target)


def check_played(collective: Collective) -> None:
    """NotUnderstood if it is no collective, or of a kind without a schedule."""
    if not isinstance(collective, Collective):
        raise NotUnderstood(
            f"collective={collective!r} is not a Collective; give one of "
            "spmd.xray(f, x).collectives."
        )
    if collective.kind not in _PHASES:
        raise NotUnderstood(
            f"collective: a {collective.kind} can't be played; give an "
            f"{', a '.join(PLAYED[:-1])} or a {PLAYED[-1]}."
        )
    if not collective.groups:
        raise NotUnderstood(
            "collective: its groups are empty, so it is not known which devices take "
            "part; give one of spmd.xray(f, x).collectives."
        )
    size, elements = group_size(collective), _elements(collective)
    if collective.kind == "all-reduce" and elements < size:
        raise NotUnderstood(
            f"collective: an all-reduce of {count_words(elements, 'element')} can't be "
            f"divided into {size} chunks, one per device, so it has no hops to play; "
            f"give a collective with at least {size} elements."
        )


def _elements(collective: Collective) -> int:
    """How many elements a device puts in; at most, if they are of several types."""
    sizes = [re.match(r"[a-z]+(\d+)", one) for one in collective.dtype.split(" + ")]
    bits = min(int(size[1]) if size else 8 for size in sizes)
    return collective.operand_bytes * 8 // bits


def sent_as(collective: Collective) -> str:
    """The collective that the compiled program runs for this one."""
    lowered = collective.lowered_as or ""
    return "all-reduce" if "all-reduce" in lowered else collective.kind


def group_size(collective: Collective) -> int:
    """How many devices its largest group has; of a permute, of how many parts: 1."""
    if collective.kind == PERMUTE:
        return 1
    return max(map(len, collective.groups))


def shard_bytes(collective: Collective) -> Fraction:
    """The bytes that one device sends in one hop; a fraction if they don't divide."""
    gathers = collective.kind == "all-gather"
    size = collective.result_bytes if gathers else collective.operand_bytes
    return Fraction(size, group_size(collective))


def phase_count(collective: Collective) -> int:
    """How many phases it has: an all-reduce two."""
    return len(_PHASES[sent_as(collective)])


def hop_count(collective: Collective) -> int:
    """In how many hops it is done."""
    return sum(
        1 if phase == PERMUTE else _hop_count(phase, group_size(collective))
        for phase in _PHASES[sent_as(collective)]
    )


def devices(collective: Collective) -> tuple[int, ...]:
    """The positions of all devices that take part, ascending."""
    return tuple(sorted({d for group in collective.groups for d in group}))


def frames(
    collective: Collective,
    groups: Sequence[Sequence[int]] | None = None,
    slots: Sequence[int] | None = None,
) -> Iterator[Frame]:
    """The frames of a collective, the one before the first hop included.

    Args:
        collective: of one of the kinds in PLAYED.
        groups: those of its groups that are followed; of a permute, pairs.
        slots: the numbers of the shards that are followed, the same in each group.
            Of an all-to-all, those that devices with these numbers exchange.
    """
    groups = collective.groups if groups is None else groups
    if slots is None:
        slots = range(group_size(collective))
    contents = start(collective, groups, slots)
    each = shard_bytes(collective)
    sent_bytes = 0
    yield Frame(contents, None, sent_bytes)
    for hop in hops(collective, groups, slots):
        contents = after(contents, hop)
        sent_bytes = round(each * hop.sent)
        yield Frame(contents, hop, sent_bytes)


def start(
    collective: Collective, groups: Sequence[Sequence[int]], slots: Sequence[int]
) -> dict[Place, Block]:
    """What each device has before the first hop."""
    alike = collective.alike
    contents: dict[Place, Block] = {}

    def same(device: int) -> int:
        return alike[device] if alike else device

    if collective.kind == PERMUTE:
        for device in dict.fromkeys(d for pair in groups for d in pair):
            contents[device, 0] = Block((same(device),), 0, frozenset({device}), 1)
        return contents
    for group in groups:
        inside = tuple(sorted(map(same, group)))
        for device in group:
            for slot in slots[: len(group)]:
                block = Block(inside, slot, frozenset({device}), len(group))
                if collective.kind == SWAP:
                    block = replace(block, key=(same(device),), needs=1)
                if collective.kind == "all-gather":
                    owner = group[slot]
                    parts = frozenset({device} & {owner})
                    block = Block((same(owner),), 0, parts, 1)
                    if not parts and sent_as(collective) == "all-gather":
                        continue
                contents[device, slot] = block
    return contents


def hops(
    collective: Collective, groups: Sequence[Sequence[int]], slots: Sequence[int]
) -> Iterator[Hop]:
    """The hops of a collective, of the groups and slots that are followed."""
    before = 0
    for phase in _PHASES[sent_as(collective)]:
        if phase == PERMUTE:
            yield Hop(phase, tuple(Send((a, 0), (b, 0)) for a, b in groups), 1)
            continue
        size = group_size(collective)
        for number in range(_hop_count(phase, size)):
            sends = tuple(
                send
                for group in groups
                if number < _hop_count(phase, len(group))
                for send in _sends(phase, number, group, slots)
            )
            yield Hop(phase, sends, before + _sent(phase, number, size))
        before += size - 1
    if collective.kind == RING_SCATTER and sent_as(collective) == "all-reduce":
        drops = tuple(
            (device, slot)
            for group in groups
            for number, device in enumerate(group)
            for slot in slots
            if slot != number
        )
        yield Hop(SLICE, (), before, drops)


def after(contents: Contents, hop: Hop) -> dict[Place, Block]:
    """What each device has after a hop, all of whose sends are at the same time."""
    gone = {send.source for send in hop.sends if not send.keeps} | {*hop.drops}
    if hop.phase == PERMUTE:  # who receives nothing has zeros
        gone = {*contents}
    result = {place: block for place, block in contents.items() if place not in gone}
    for send in hop.sends:
        block = contents[send.source]
        if send.adds:
            parts = block.parts | contents[send.target].parts
            block = replace(block, parts=parts)
        result[send.target] = block
    if hop.phase == PERMUTE:
        for place in contents.keys() - result.keys():
            result[place] = replace(contents[place], parts=frozenset())
    return result


def _hop_count(phase: str, n: int) -> int:
    return n if phase == SWAP and n & (n - 1) else n - 1


def _sends(
    phase: str, number: int, group: Sequence[int], slots: Sequence[int]
) -> Iterator[Send]:
    n = len(group)
    for slot in slots:
        if slot >= n:
            continue
        if phase == SWAP:
            other = _partner(slot, number, n)
            if other != slot and other in slots:
                yield Send((group[slot], other), (group[other], slot))
            continue
        scatters = phase == RING_SCATTER
        sender = (slot + number + scatters) % n
        source, target = group[sender], group[(sender + 1) % n]
        yield Send((source, slot), (target, slot), scatters, not scatters)


def _partner(member: int, number: int, n: int) -> int:
    """With whom a member of a group exchanges in a hop; itself if with nobody."""
    if n & (n - 1):
        return (number - member) % n
    return member ^ (number + 1)


def _sent(phase: str, number: int, n: int) -> int:
    """How many shards of a phase the busiest device has sent after a hop."""
    if phase != SWAP:
        return number + 1
    if n & (n - 1) == 0:
        return number + 1
    idle = {2 * member % n for member in range(n)}  # in which hops somebody is
    return number + 1 - (number >= max(idle) and n > 1)
