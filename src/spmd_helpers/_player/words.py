"""The words of a player: its title and facts, and a heading and sentences per frame."""

from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass

from .._core.words import bytes_words, count_words, join_words
from .._hlo.collectives import Collective
from . import schedule
from .schedule import Block, Frame, Place, Send

Label = Callable[[Block], str]
PARTIAL = ("all-reduce", "reduce-scatter")  # kinds whose devices put in summands


@dataclass(frozen=True)
class Words:
    """The words around the frames; `counter` says whose bytes are counted."""

    title: str
    facts: tuple[str, ...]
    notes: tuple[str, ...]
    counter: str


def say_collective(
    collective: Collective, drawn_groups: int, drawn_devices: int
) -> Words:
    """Title, facts and notes of a collective of which so much is drawn."""
    axes = join_words(collective.axes) or "no axis of the mesh"
    return Words(
        f"{collective.kind} over {axes}",
        tuple(_facts(collective)),
        tuple(_notes(collective, drawn_groups, drawn_devices)),
        "sent by each sender" if _keeps(collective) else "sent per device",
    )


def _senders(collective: Collective) -> int:
    """How many devices of a permute send their shard to another one."""
    return sum(a != b for a, b in collective.groups)


def _keeps(collective: Collective) -> bool:
    """Whether it is a permute in which a device sends nothing."""
    permutes = collective.kind == schedule.PERMUTE
    return permutes and _senders(collective) < len(schedule.devices(collective))


def _part(collective: Collective) -> str:
    """What a cell is called: a chunk of a sum, or a shard."""
    return "chunk" if collective.kind in PARTIAL else "shard"


def _facts(collective: Collective) -> list[str]:
    groups, size = len(collective.groups), schedule.group_size(collective)
    if collective.kind == schedule.PERMUTE:
        who = count_words(_senders(collective), "sender")
    else:
        who = f"{count_words(groups, 'group')} of {size} devices"
    given, got = map(size_words, (collective.operand_bytes, collective.result_bytes))
    facts = [f"{who}, {collective.dtype}", f"{given} per device before, {got} after"]
    if collective.count is not None and collective.count > 1:
        facts.append(f"runs {collective.count} times per call")
    if collective.lowered_as:
        facts.append(f"compiled as {collective.lowered_as}")
    return facts


def _notes(collective: Collective, drawn_groups: int, drawn_devices: int) -> list[str]:
    notes = ["Each shard has one color and one name: equal cells hold equal values."]
    if collective.kind == schedule.SWAP:
        notes = ["The color is the shard; 2.1 is piece 1 of shard 2."]
    if collective.kind in PARTIAL:
        notes = [
            "A color and a number name one chunk of the array. Plain cells of one name "
            "hold equal values. A hatched cell is a partial sum: on each device it has "
            "other values until all parts are added. Its bar shows how many are."
        ]
    notes.append("Devices are numbered by their position in the mesh.")
    size = schedule.group_size(collective)
    permute = collective.kind == schedule.PERMUTE
    count = len(schedule.devices(collective)) if permute else size
    if drawn_devices < count:
        of = "" if permute else " of a group, and their shards"
        notes.append(
            f"Drawn: the first {drawn_devices // 2} and the last "
            f"{drawn_devices - drawn_devices // 2} of {count} devices{of}."
        )
    if not permute and drawn_groups < len(collective.groups):
        notes.append(
            f"Drawn: {drawn_groups} of {len(collective.groups)} groups; the others do "
            "the same at the same time."
        )
    return notes


def heading(collective: Collective, frame: Frame, number: int, total: int) -> str:
    """'Hop 1 of 6, reduce-scatter'."""
    if frame.hop is None:
        return "Before"
    if frame.hop.phase == schedule.SLICE:
        return "After the last hop"
    words = f"Hop {number} of {total}"
    return (
        words if frame.hop.phase == collective.kind else f"{words}, {frame.hop.phase}"
    )


def say_start(collective: Collective) -> str:
    """What each device has before the first hop."""
    kind = collective.kind
    given = size_words(collective.operand_bytes)
    n = schedule.group_size(collective)
    if kind in PARTIAL:
        each = schedule.shard_bytes(collective)
        size = f" of {size_words(int(each))}" if each.denominator == 1 else ""
        return (
            "Each device has a partial sum of the full result, divided into "
            f"{n} chunks{size}."
        )
    if kind == schedule.SWAP:
        return f"Each device's shard is divided into {n} pieces, one per device."
    if schedule.sent_as(collective) == "all-reduce":
        return (
            f"Each device has its own shard, {given}, and zeros for the others: the "
            "compiler adds them up."
        )
    return f"Each device has one shard, {given}."


_GENERAL = {
    schedule.RING_GATHER: "Each device passes on the complete {} that it got last.",
    schedule.RING_SCATTER: (
        "Each device sends a partial {} to the next one of its group, which adds it "
        "to its own."
    ),
    schedule.SWAP: "Devices exchange pieces in pairs.",
    schedule.PERMUTE: "Each device sends its shard to one other device, all at once.",
    schedule.SLICE: (
        "Each device keeps its own chunk of the sum and discards the others. Nothing "
        "is sent."
    ),
}


def say_hop(
    collective: Collective,
    frame: Frame,
    drawn: Mapping[int, Container[int]],
    label: Label,
    number: int,
    is_last: bool,
) -> str:
    """What happens in a hop, one device as the example, and what the last ends in.

    Args:
        collective: what is played.
        frame: what each device has after the hop.
        drawn: the slots of each device that may be the example.
        label: gives the name of a shard.
        number: the hop's number, from 1.
        is_last: whether no frame follows.
    """
    hop = frame.hop
    assert hop is not None
    general = _GENERAL[hop.phase].format(_part(collective))
    if _keeps(collective):
        general = _say_permute(collective)
    if hop.phase == schedule.RING_GATHER and number == 1:
        general = "Each device sends its shard to the next device of its group."
    parts = [general]
    received = [
        send
        for send in hop.sends
        if send.source != send.target
        and send.source[0] in drawn
        and send.target[1] in drawn.get(send.target[0], ())
    ]
    if received:
        send = min(received, key=lambda send: send.target)
        parts.append(_say_example(send, frame, label, _part(collective)))
    if is_last:
        parts.append(_say_end(collective))
    return " ".join(parts)


def _say_permute(collective: Collective) -> str:
    """Of a permute in which not every device sends."""
    senders, count = _senders(collective), len(schedule.devices(collective))
    kept = sum(a == b for a, b in collective.groups)
    send = "sends its" if senders == 1 else "send their"
    words = f"{senders} of {count} devices {send} shard to another device, all at once"
    if kept == 1:
        words += "; one keeps its own"
    elif kept:
        who = "the others" if senders + kept == count else str(kept)
        words += f"; {who} keep theirs"
    return f"{words}."


def _say_example(send: Send, frame: Frame, label: Label, part: str) -> str:
    block = frame.contents[send.target]
    source, target = send.source[0], send.target[0]
    thing = "piece" if "." in label(block) else part
    what = f"{thing} {label(block)}" if block.parts else "zeros"
    words = f"Device {target} receives {what} from device {source}"
    if not send.adds or block.needs == 1:
        return f"{words}."
    if block.is_complete:
        return f"{words}, and its sum is complete."
    return f"{words}: {len(block.parts)} of {block.needs} parts are added."


def _say_end(collective: Collective) -> str:
    got = size_words(collective.result_bytes)
    n = schedule.group_size(collective)
    if collective.kind == "all-gather":
        return f"Now every device has all {n} shards, {got}."
    if collective.kind == "all-reduce":
        return f"Now every device has the full sum, {got}."
    if collective.kind == "reduce-scatter":
        return f"Now every device has one complete chunk, its shard of the sum, {got}."
    if collective.kind == schedule.SWAP:
        return f"Now every device has one piece of each shard, {got}."
    targets = {b for _, b in collective.groups}
    if not targets.issuperset(schedule.devices(collective)):
        return "A device that receives nothing has zeros."
    moved = all(a != b for a, b in collective.groups)
    return f"Now every device has {'another' if moved else 'one'} shard, {got}."


def say_state(contents: Mapping[Place, Block], drawn: list[int], label: Label) -> str:
    """What each drawn device has, for a reader who does not see it."""
    sentences = []
    for device in drawn:
        blocks = [
            b for (d, _), b in sorted(contents.items(), key=_place) if d == device
        ]
        words = [cell_words(block, label) for block in blocks if block.parts]
        sentences.append(f"Device {device}: {', '.join(words) or 'nothing'}.")
    return " ".join(sentences)


def cell_words(block: Block, label: Label) -> str:
    """'a2', or 'a2 (1 of 4 parts)'."""
    if block.is_complete:
        return label(block)
    return f"{label(block)} ({len(block.parts)} of {block.needs} parts)"


def row(
    contents: Mapping[Place, Block], device: int, slots: Iterable[int], label: Label
) -> str:
    """What a device has, slot by slot, for the text twin: '0 1 · 3:2/4'."""
    blocks = [contents.get((device, slot)) for slot in slots]
    return " ".join(
        "·"
        if block is None
        else "zeros"
        if not block.parts
        else label(block)
        if block.is_complete
        else f"{label(block)}:{len(block.parts)}/{block.needs}"
        for block in blocks
    )


def _place(item: tuple[Place, Block]) -> Place:
    return item[0]


def size_words(n: int) -> str:
    """Bytes exactly, as long as that can be read."""
    return f"{n:,} B" if n < 100_000 else bytes_words(n)


def say_sent(sent_bytes: int, is_all: bool) -> str:
    """'480 B', and in the end '1,440 B in all': before, a reader may guess."""
    return f"{sent_bytes:,} B in all" if is_all else f"{sent_bytes:,} B"
