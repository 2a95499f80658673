"""What is said of a layout or a mesh: title, facts, notes, and a sentence for ears."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from .._core.words import PMAP_AXIS, bytes_words, count_words, device_list, join_words
from .._shardings.sharding import Layout, MeshFacts, mesh_words, spec_words

_IDS, _POSITIONS = "cells: device ids", "cells: positions in the mesh (no devices yet)"


@dataclass(frozen=True)
class Words:
    """The words around a picture; `sentence` says all of it without the picture."""

    title: str
    facts: tuple[str, ...]
    notes: tuple[str, ...]
    sentence: str


def say_layout(lay: Layout) -> Words:
    """The words for an array's layout."""
    what = f"{lay.dtype}[{', '.join(map(str, lay.shape))}]"
    how = f"as {spec_words(lay.entries)}" if lay.axes else "on one device"
    facts = _layout_facts(lay)
    notes = tuple(_layout_notes(lay))
    return Words(f"{what} {how}", tuple(facts), notes, _sentence(lay, facts))


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


def say_copies(lay: Layout) -> tuple[str, ...]:
    """How often a block is held, for its cell; nothing if only once."""
    sums = math.prod(lay.mesh_shape[axis] for axis in lay.unreduced)
    words = []
    if lay.replicas // sums > 1:
        words.append(count_words(lay.replicas // sums, "copy", "copies"))
    if sums > 1:
        words.append(f"{sums} partial sums")
    return tuple(words)


def _layout_facts(lay: Layout) -> list[str]:
    size = f"{bytes_words(lay.bytes_per_device)} of {bytes_words(lay.total_bytes)}"
    kind = f" ({lay.platform.removeprefix('1 × ')})" if lay.platform else ""
    if not lay.axes:
        return [f"all on one device{kind}: {bytes_words(lay.total_bytes)}"]
    facts = [
        f"mesh {mesh_words(lay.mesh_shape)}{kind}",
        f"each device holds {lay.shard_shape}: {size}",
    ]
    copied = [axis for axis in lay.replicated_over if axis not in lay.unreduced]
    copies = math.prod(lay.mesh_shape[axis] for axis in copied)
    what = "the whole array" if math.prod(lay.grid) == 1 else "each block"
    if copied:
        facts.append(f"{copies} copies of {what}, over {join_words(copied)}")
    elif not lay.unreduced:
        facts.append(f"1 copy of {what}")
    if lay.unreduced:
        axes = join_words(lay.unreduced)
        facts.append(f"over {axes} each device holds its part of a sum, not added yet")
    return facts


def _layout_notes(lay: Layout) -> list[str]:
    notes = []
    if lay.device_ids is None and lay.axes:
        notes.append(_POSITIONS)
    elif lay.device_count > 1:
        notes.append(_IDS)
    for dim, entry in enumerate(lay.entries):
        if PMAP_AXIS in entry:
            n = lay.grid[dim]
            notes.append(
                f"dim {dim} is pmap's stack, one slice a device; what pmap replicates "
                f"lies there as {n} copies"
            )
    return notes


def _sentence(lay: Layout, facts: Sequence[str]) -> str:
    parts = [f"A {lay.dtype} array of shape {lay.shape}. {sentences(facts)}"]
    for dim, (entry, blocks) in enumerate(zip(lay.entries, lay.grid, strict=True)):
        if not lay.axes:
            break
        if entry:
            cut = f"cut into {count_words(blocks, 'block')} over {join_words(entry)}"
            if len(entry) > 1:
                cut += ", the first of them slowest"
        else:
            cut = "whole"
        parts.append(f"Dimension {dim} is {cut}.")
    if lay.axes and math.prod(lay.grid) <= 8:
        for block in lay.owners:
            where = ", ".join(f"{a}:{b}" for a, b in lay.slices(block))
            ids = lay.devices(block)
            one = "device" if len(ids) == 1 else "devices"
            parts.append(f"[{where}] is on {one} {device_list(ids)}.")
    return " ".join(parts)


def sentences(words: Sequence[str]) -> str:
    """Facts or notes as sentences."""
    return " ".join(f"{line[0].upper()}{line[1:]}." for line in words)
