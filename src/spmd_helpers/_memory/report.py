"""A tree's memory as words: one list of rows, from which text and HTML are made."""

import re
from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING

from .._core.tables import Table
from .._core.words import (
    bytes_words,
    count_words,
    device_list,
    join_words,
    path_words,
)
from .._shardings.sharding import MeshFacts

if TYPE_CHECKING:
    from .memory import Device, Memory, MemoryLine

HEAD = ("leaf", "array", "spec", "per device", "replicas", "devices")
NUMBERS = (3, 4)
ROWS = 24
NOTHING = "no leaf"


def shown(memory: "Memory") -> Table:
    """The report of a Memory."""
    notes = [*memory.notes, *spread(memory.per_device)]
    return Table(
        "memory", heading(memory), HEAD, rows(memory.lines), notes, NUMBERS, NOTHING
    )


def heading(memory: "Memory") -> str:
    """'Memory of 2 arrays, 216 B: 288 B on 4 devices, 72 B on each'."""
    arrays = sum(1 for line in memory.lines if line.devices)
    what = f"{count_words(arrays, 'array')}, {bytes_words(memory.total_bytes)}"
    if not memory.per_device:
        return f"Memory of {what}: nothing on a device"
    most = bytes_words(memory.largest_device_bytes)
    if len(memory.per_device) == 1:
        return f"Memory of {what}: {most} on {_named(tuple(memory.per_device))}"
    even = not spread(memory.per_device)
    each = f"{most} on each" if even else f"{most} on the fullest"
    where = count_words(len(memory.per_device), "device")
    total = bytes_words(memory.bytes_on_all_devices)
    return f"Memory of {what}: {total} on {where}, {each}"


def rows(lines: Sequence["MemoryLine"]) -> list[tuple[str, ...]]:
    """One row a leaf, largest first.

    Where there are many leaves, those that differ in the numbers of their paths alone
    share a row, and the smallest are summed in the last one.
    """
    groups: dict[Hashable, list[MemoryLine]] = {}
    for number, line in enumerate(lines):
        key = number if len(lines) <= ROWS else _alike(line)
        groups.setdefault(key, []).append(line)
    ordered = sorted(groups.values(), key=lambda group: -_bytes(group))
    groups_shown = ordered if len(ordered) <= ROWS + 1 else ordered[:ROWS]
    table_rows = [_row(group) for group in groups_shown]
    if rest := [line for group in ordered[len(groups_shown) :] for line in group]:
        name = f"… {count_words(len(rest), 'leaf', 'leaves')} more"
        table_rows.append((name, "", "", f"≤ {bytes_words(_bytes(rest))}", "", ""))
    return table_rows


def _alike(line: "MemoryLine") -> tuple[Hashable, ...]:
    path, where = (re.sub(r"[0-9]+", "#", text) for text in (line.path, line.where))
    return path, where, line.shape, line.dtype, line.spec, line.devices


def _bytes(group: Sequence["MemoryLine"]) -> int:
    """Bytes of a group on a device that holds all of it."""
    return sum(line.bytes_per_device for line in group)


def _row(group: Sequence["MemoryLine"]) -> tuple[str, ...]:
    first = group[0]
    shape = ", ".join(map(str, first.shape))
    array = f"{first.dtype}[{shape}]"
    if len(group) > 1:
        array = f"{len(group)} × {array}"
    name = path_words([line.path for line in group])
    if not first.devices:
        where = path_words([line.where for line in group])
        where = where if where in ("host", "deleted") else f"as {where}"
        return name, array, first.spec, "–", "", where
    per_device, copies = bytes_words(_bytes(group)), str(first.copies)
    return name, array, first.spec, per_device, copies, _devices(first.devices)


def _devices(devices: Sequence["Device"]) -> str:
    names = [device for device in devices if isinstance(device, str)]
    if not names:
        return device_list(device for device in devices if isinstance(device, int))
    kinds: dict[str, list[int]] = {}
    for name in names:
        kind, number = name.rsplit(" ", 1)
        kinds.setdefault(kind, []).append(int(number))
    return ", ".join(f"{kind} {device_list(ids)}" for kind, ids in kinds.items())


def spread(per_device: Mapping["Device", int]) -> list[str]:
    """Which devices hold how much, where they do not all hold the same in words."""
    amounts: dict[str, list[Device]] = {}
    for device in sorted(per_device, key=per_device.__getitem__, reverse=True):
        amounts.setdefault(bytes_words(per_device[device]), []).append(device)
    if len(amounts) < 2:
        return []
    parts = [f"{n} on {_named(devices)}" for n, devices in list(amounts.items())[:4]]
    if rest := [device for devices in list(amounts.values())[4:] for device in devices]:
        parts.append(f"less on {count_words(len(rest), 'device')} more")
    return ["; ".join(parts) + "."]


def _named(devices: Sequence["Device"]) -> str:
    if any(isinstance(device, str) for device in devices):
        return _devices(devices)
    return f"{'device' if len(devices) == 1 else 'devices'} {_devices(devices)}"


def notes(lines: Sequence["MemoryLine"], meshes: Sequence[MeshFacts]) -> list[str]:
    """What the table does not say by itself, a sentence each.

    Args:
        lines: those of the table.
        meshes: what each of the leaves that are on devices is placed on.
    """
    sentences = []
    on_mesh = any(len(line.devices) > 1 for line in lines)
    alone: dict[Device, list[MemoryLine]] = {}
    for line in lines:
        if len(line.devices) == 1 and on_mesh:
            alone.setdefault(line.devices[0], []).append(line)
    for device, group in alone.items():
        sentences.append(
            f"{_leaves(group, 'is', 'are')} on {_named([device])} only, beside arrays "
            f"on several: {_some(group)}. Give jit out_shardings, or move them with "
            "jax.device_put."
        )
    host = [line for line in lines if line.where == "host"]
    if host:
        sentences.append(f"{_leaves(host, 'is', 'are')} on the host: {_some(host)}.")
    gone = [line for line in lines if line.where == "deleted"]
    if gone:
        sentences.append(
            f"{_leaves(gone, 'was', 'were')} donated or deleted: {_some(gone)}."
        )
    twice = [line for line in lines if not line.devices and line not in host + gone]
    if twice:
        sentences.append(
            f"{_leaves(twice, 'is', 'are')} in the tree twice and counted once: "
            f"{_some(twice)}."
        )
    bare = [mesh for mesh in meshes if mesh.device_ids is None]
    if bare and len(bare) < len(meshes):
        sentences.append(
            "Some leaves are on a mesh without devices: its positions are used as "
            "device ids."
        )
    return sentences


def _leaves(group: Sequence["MemoryLine"], one: str, many: str) -> str:
    amount = bytes_words(sum(line.total_bytes for line in group))
    verb = one if len(group) == 1 else many
    return f"{count_words(len(group), 'leaf', 'leaves')}, {amount}, {verb}"


def _some(group: Sequence["MemoryLine"]) -> str:
    paths = [line.path for line in group[:3]]
    if len(group) > 3:
        return f"{', '.join(paths)} and {len(group) - 3} more"
    return join_words(paths)
