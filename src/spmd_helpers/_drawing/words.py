"""The words for a sharding or a mesh: title, facts, notes, and a sentence for ears."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .._core.words import PMAP_AXIS, bytes_words, count_words, device_list, join_words
from .._shardings.sharding import MeshFacts, ShardingInfo, mesh_words, spec_words

_IDS, _POSITIONS = "cells: device ids", "cells: positions in the mesh (no devices yet)"


@dataclass(frozen=True)
class Words:
    """The words around a picture; `sentence` says all of it without the picture."""

    title: str
    facts: tuple[str, ...]
    notes: tuple[str, ...]
    sentence: str


def say_sharding(info: ShardingInfo, drawn: ShardingInfo) -> Words:
    """The words for an array's sharding, of which the shards of another are drawn."""
    what = f"{info.dtype}[{', '.join(map(str, info.shape))}]"
    how = f"as {spec_words(info.entries)}" if info.axes else "on one device"
    facts = _sharding_facts(info)
    notes = _sharding_notes(info)
    if drawn is not info:
        notes.append(f"drawn: the shards of {spec_words(drawn.entries)}")
    return Words(f"{what} {how}", tuple(facts), tuple(notes), _sentence(info, facts))


def say_mesh(mesh: MeshFacts) -> Words:
    """The words for a mesh."""
    ids = mesh.device_ids
    title = f"mesh {mesh_words(mesh.shape)}" if mesh.shape else "mesh without axes"
    facts = [mesh.platform or count_words(mesh.size, "device")]
    sentence = ""
    if ids is not None:
        moved = next((p for p, i in enumerate(ids) if p != i), None)
        ordered = list(ids) == sorted(ids)
        facts.append(f"{'' if ordered else 'not '}in the order of their ids")
        if moved is not None:
            which = f"position {moved} in the mesh is device {ids[moved]}"
            facts.append(f"a position is not an id: {which}")
        if len(ids) <= 16:
            sentence = f" Devices in mesh order: {', '.join(map(str, ids))}."
    notes = (_POSITIONS if ids is None else _IDS,)
    sentence = f"The {title}. {sentences(facts)} The last axis runs fastest.{sentence}"
    return Words(title, tuple(facts), notes, sentence)


def say_work(name: str, mesh: MeshFacts, pieces: Sequence[int]) -> Words:
    """The words for which piece of its largest product each device computes."""
    count = max(pieces) + 1
    title = f"{name}: the pieces of its largest product"
    times = mesh.size / count
    facts = [
        f"mesh {mesh_words(mesh.shape)}",
        f"{count_words(count, 'different piece')} on {mesh.size} devices",
        "each is computed once" if times == 1 else f"{times:.3g} devices compute each",
    ]
    notes = ("cells: the number of the piece that the device there computes",)
    where = ""
    if mesh.size <= 64:
        owners = [
            [position for position, piece in enumerate(pieces) if piece == number]
            for number in range(count)
        ]
        where = " ".join(
            f"Piece {number}: {'device' if len(ids) == 1 else 'devices'} "
            f"{device_list(ids)}."
            for number, ids in enumerate(owners)
        )
    return Words(title, tuple(facts), notes, f"{sentences(facts)} {where}")


def say_cells(
    title: str,
    rows: Mapping[str, Sequence[str | None]],
    columns: Sequence[str],
    notes: Sequence[str],
) -> Words:
    """The words for a table of cells."""
    names = columns or [""] * max(map(len, rows.values()))
    parts = [
        f"{name}: "
        + ", ".join(
            f"{column} {text or 'nothing'}".strip()
            for column, text in zip(names, row, strict=True)
        )
        for name, row in rows.items()
    ]
    return Words(title, (), tuple(notes), f"{'. '.join(parts)}.")


def say_replicas(info: ShardingInfo) -> tuple[str, ...]:
    """How many devices have the same shard, for its cell; nothing if one has."""
    sums = math.prod(info.mesh_shape[axis] for axis in info.unreduced)
    words = []
    if info.replicas // sums > 1:
        words.append(count_words(info.replicas // sums, "replica"))
    if sums > 1:
        words.append(f"{sums} partial sums")
    return tuple(words)


def _sharding_facts(info: ShardingInfo) -> list[str]:
    size = f"{bytes_words(info.bytes_per_device)} of {bytes_words(info.total_bytes)}"
    kind = f" ({info.platform.removeprefix('1 × ')})" if info.platform else ""
    if not info.axes:
        return [f"all on one device{kind}: {bytes_words(info.total_bytes)}"]
    facts = [
        f"mesh {mesh_words(info.mesh_shape)}{kind}",
        f"per device: {info.shard_shape}, {size}",
    ]
    axes = [axis for axis in info.replicated_over if axis not in info.unreduced]
    number = math.prod(info.mesh_shape[axis] for axis in axes)
    what = "the array" if math.prod(info.grid) == 1 else "each shard"
    if axes:
        facts.append(f"replicated over {join_words(axes)}: {number} replicas of {what}")
    elif not info.unreduced:
        facts.append("not replicated")
    if info.unreduced:
        over = join_words(info.unreduced)
        facts.append(f"unreduced over {over}: each device has a partial sum")
    return facts


def _sharding_notes(info: ShardingInfo) -> list[str]:
    notes = []
    if info.device_ids is None and info.axes:
        notes.append(_POSITIONS)
    elif info.device_count > 1:
        notes.append(_IDS)
    for dim, entry in enumerate(info.entries):
        if PMAP_AXIS in entry:
            n = info.grid[dim]
            notes.append(
                f"dim {dim} is pmap's stacked axis, one slice per device; a replicated "
                f"value is stacked there {n} times"
            )
    return notes


def _sentence(info: ShardingInfo, facts: Sequence[str]) -> str:
    parts = [f"A {info.dtype} array of shape {info.shape}. {sentences(facts)}"]
    for dim, (entry, shards) in enumerate(zip(info.entries, info.grid, strict=True)):
        if not info.axes:
            break
        if entry:
            how = f"split into {count_words(shards, 'shard')} over {join_words(entry)}"
            if len(entry) > 1:
                how += ", the first of them slowest"
        else:
            how = "unsharded"
        parts.append(f"Dimension {dim} is {how}.")
    if info.axes and math.prod(info.grid) <= 8:
        for block in info.owners:
            where = ", ".join(f"{a}:{b}" for a, b in info.slices(block))
            ids = info.devices(block)
            one = "device" if len(ids) == 1 else "devices"
            parts.append(f"[{where}] is on {one} {device_list(ids)}.")
    return " ".join(parts)


def sentences(words: Sequence[str]) -> str:
    """Facts or notes as sentences."""
    return " ".join(f"{line[0].upper()}{line[1:]}." for line in words)
