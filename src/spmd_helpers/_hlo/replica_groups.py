"""Which devices talk to which: every spelling of replica groups, and its axes.

XLA prints the groups of one collective in several ways, mixed within a module:

    {{0,1},{2,3}}                                a list of groups
    {}                                           one group of everyone
    [4,2]<=[8]                                   rows of arange(8).reshape(4, 2)
    [2,4]<=[4,2]T(1,0)                           the same after a transpose
    mesh['a'=4,'b'=2] {'a'}                      along axes of a mesh of its own
    mesh['a'=2,'b'=4], device_ids=([4,2]T(1,0)) {'b'}
    mesh['a'=8] {'a':(4)2}                       along a part of an axis

The numbers are positions in `mesh.devices.flat`, never device ids, and the axis
names printed are not to be trusted. So each spelling is expanded to plain groups
and these are compared, as sets, with what the reader's mesh axes would give.
"""

import re
from math import prod

_INTS = re.compile(r"\d+")
_IOTA = re.compile(r"\[([\d,]*)\]<=\[([\d,]*)\](?:T\(([\d,]*)\))?")
_MESH = re.compile(
    r"mesh\[([^\]]*)\]"
    r"(?:\s*,\s*device_ids=\((?:\[([\d,]*)\](?:T\(([\d,]*)\))?|([\d,\s]*))\))?"
    r"\s*\{([^}]*)\}"
)
_LIST = re.compile(r"\{\s*(?:\{[\d,\s]*\}\s*,?\s*)*\}")
_PAIRS = re.compile(r"\{\s*(\d+)\s*,\s*(\d+)\s*\}")
_AXIS_NAME = r"['\"]?([^'\",:=\s](?:[^'\",:=]*[^'\",:=\s])?)['\"]?"
_AXIS_SIZE = re.compile(_AXIS_NAME + r"\s*=\s*(\d+)")
_AXIS_PART = re.compile(_AXIS_NAME + r"(?:\s*:\s*\((\d+)\)(\d+))?")

Groups = tuple[tuple[int, ...], ...]


def parse_groups(text: str, devices: int) -> Groups:
    """Expand one printed value of `replica_groups`; `devices` fills an empty one.

    `text` may go on after the value, as the rest of an HLO line does. Raises
    ValueError where the spelling is none of those above.
    """
    text = text.lstrip()
    if text.startswith("mesh["):
        return _mesh_groups(text)
    if text.startswith("["):
        match = _IOTA.match(text)
        if match:
            (_, size), dims, perm = (_ints(part or "") for part in match.groups())
            ids = _iota(dims, perm)
            return tuple(tuple(ids[i : i + size]) for i in range(0, len(ids), size))
    match = _LIST.match(text)
    if match:
        groups = re.findall(r"\{([\d,\s]*)\}", match.group()[1:-1])
        return tuple(tuple(_ints(g)) for g in groups) or (tuple(range(devices)),)
    raise ValueError(f"replica groups of an unknown spelling: {text[:60]!r}")


def parse_pairs(text: str) -> Groups:
    """Expand `source_target_pairs={{0,1},{1,2}}` to ((0, 1), (1, 2))."""
    inside = text[: text.index("}}") + 2] if "}}" in text else ""
    return tuple((int(a), int(b)) for a, b in _PAIRS.findall(inside))


def axes_of_groups(
    groups: Groups, mesh_shape: dict[str, int]
) -> tuple[str, ...] | None:
    """Name the mesh axes along which these groups lie, in mesh order.

    An axis of size 1 is never named. A part of an axis is written as XLA writes
    it, `name:(before)size`: of 'x' of size 8, 'x:(1)2' joins its two halves and
    'x:(4)2' joins neighbors. None if no choice of axes gives these groups.
    """
    wanted = {frozenset(group) for group in groups}
    devices = prod(mesh_shape.values())
    home = next((group for group in wanted if 0 in group), frozenset())
    strides, names = [], []
    inner = devices
    for name, size in mesh_shape.items():
        inner //= size
        steps = sorted(p // inner for p in home if p % inner == 0 and p < inner * size)
        parts = _parts(steps, size)
        if parts is None:
            return None
        strides += [(step * inner, length) for step, length in parts]
        names += [
            name if length == size else f"{name}:({size // (step * length)}){length}"
            for step, length in parts
        ]
    return tuple(names) if wanted == _along(strides, devices) else None


def axes_of_pairs(pairs: Groups, mesh_shape: dict[str, int]) -> tuple[str, ...]:
    """Name every mesh axis along which some pair of devices differs."""
    moved = set()
    for source, target in pairs:
        inner = prod(mesh_shape.values())
        for name, size in mesh_shape.items():
            inner //= size
            if source // inner % size != target // inner % size:
                moved.add(name)
    return tuple(name for name in mesh_shape if name in moved)


def _ints(text: str) -> list[int]:
    return [int(n) for n in _INTS.findall(text)]


def _iota(dims: list[int], perm: list[int]) -> list[int]:
    """arange(prod(dims)).reshape(dims).transpose(perm).ravel(), as a list."""
    strides = [prod(dims[i + 1 :]) for i in range(len(dims))]
    ids = [0]
    for axis in perm or range(len(dims)):
        ids = [i + strides[axis] * k for i in ids for k in range(dims[axis])]
    return ids


def _mesh_groups(text: str) -> Groups:
    match = _MESH.match(text)
    if not match:
        raise ValueError(f"replica groups of an unknown spelling: {text[:60]!r}")
    axes, dims, perm, listed, grouped = match.groups()
    sizes = {name: int(size) for name, size in _AXIS_SIZE.findall(axes)}
    if dims is not None:
        ids = _iota(_ints(dims), _ints(perm or ""))
    elif listed is not None:
        ids = _ints(listed)
    else:
        ids = list(range(prod(sizes.values())))
    strides = []
    for name, before, length in _AXIS_PART.findall(grouped):
        if name not in sizes:
            raise ValueError(f"replica groups name {name!r}, which their mesh lacks")
        names = list(sizes)
        inner = prod(sizes[n] for n in names[names.index(name) + 1 :])
        if length:
            inner *= sizes[name] // (int(before) * int(length))
        strides.append((inner, int(length or sizes[name])))
    return tuple(
        sorted(
            tuple(ids[position] for position in sorted(group))
            for group in _along(strides, len(ids))
        )
    )


def _along(strides: list[tuple[int, int]], devices: int) -> set[frozenset[int]]:
    """The groups of all positions that differ only in the digits `strides`.

    Each digit is a pair (stride, length): position // stride % length.
    """
    groups: dict[int, list[int]] = {}
    for position in range(devices):
        key = position
        for stride, length in strides:
            key -= stride * (position // stride % length)
        groups.setdefault(key, []).append(position)
    return {frozenset(group) for group in groups.values()}


def _parts(steps: list[int], size: int) -> list[tuple[int, int]] | None:
    """Split coordinates like [0, 1, 4, 5] into digits [(4, 2), (1, 2)].

    A digit is (step, length), the largest step first; None if there are no such.
    """
    parts: list[tuple[int, int]] = []
    known = [0]
    while len(known) < len(steps):
        step = next(s for s in steps if s not in known)
        have, length = set(steps), 1
        while step * length in have:
            length += 1
        if size % (step * length) or (parts and step % (parts[0][0] * parts[0][1])):
            return None
        parts.insert(0, (step, length))
        known = [k + step * i for k in known for i in range(length)]
    return parts
