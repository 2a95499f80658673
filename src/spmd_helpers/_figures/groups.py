"""The groups of a collective on the mesh, and the hosts that they cross."""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from .._core.validate import as_integer, integer
from .._core.words import count_words, device_list, join_words, table
from .._errors import MeshMismatch, NotUnderstood
from .._hlo.collectives import Collective
from .._shardings.from_jax import read_mesh
from .._shardings.sharding import itemsize
from .bytes_sent import bytes_sent
from .diagram import Box, Diagram, Item, Line, Text

if TYPE_CHECKING:
    from .._shardings.types import MeshLike

_WIDE, _HIGH, _ACROSS, _DOWN = (
    48,
    34,
    78,
    72,
)  # px of a device, and from one to the next
_LEFT, _TOP, _FRAME = 70, 66, 14
_MOST = 64  # devices
_HUES = 4
_WRAPS = 8  # devices of a line without hosts
_ASIDES = 6, 16  # px from a box to a line around it


def draw_groups(
    collective: Collective,
    *,
    mesh: "MeshLike",
    devices_per_host: int | None = None,
    absent: Iterable[int] = (),
) -> Diagram:
    """Draw which devices of a mesh exchange in a collective, and which hosts it joins.

    >>> text = '''
    ... HloModule jit_f, num_partitions=4
    ...
    ... ENTRY main {
    ...   p = f32[6] parameter(0)
    ...   ROOT r = f32[12] all-gather(p), replica_groups=[2,2]<=[2,2]T(1,0),
    ...     dimensions={0}
    ... }
    ... '''
    >>> import spmd_helpers as spmd
    >>> mesh = {"data": 2, "model": 2}
    >>> (gather,) = spmd.read_hlo(text, mesh)
    >>> draw_groups(gather, mesh=mesh, devices_per_host=2)
    all-gather over data: 2 groups of 2 devices, each device sends 24 B
    0, 2  crosses hosts 0 and 1
    1, 3  crosses hosts 0 and 1

    A device is a box, at its place in the mesh, and a line joins those of a group, in
    the color of its mesh axis. With `devices_per_host`, a frame is a host, and a group
    on several hosts has a thick line. A notebook shows the drawing when a cell ends
    with it; it can be a frame of a `spmd.FramePlayer`.

    Args:
        collective: one of `xray(f, x).collectives` or of `read_hlo(text, mesh)`.
        mesh: the mesh of the program: a Mesh, an AbstractMesh, or a dict from axis name
            to number of devices; of at most 64 devices.
        devices_per_host: how many devices that follow each other in the mesh are on one
            host; None draws no hosts.
        absent: hosts whose devices do not start the collective. The others wait.

    Returns:
        A Diagram: SVG in a notebook, text under `print`.

    Raises:
        NotUnderstood: an argument is of another kind, the hosts do not divide the mesh,
            or there are too many devices.
        MeshMismatch: the mesh has fewer devices than the collective.

    Used in chapters 11 and 16.
    """
    try:
        shape = _shape(collective, mesh)
        size = math.prod(shape.values())
        hosts = _hosts(size, devices_per_host)
        missing = _absent(absent, len(hosts))
    except (NotUnderstood, MeshMismatch) as error:
        raise error.with_traceback(None) from None
    groups = collective.groups or (tuple(range(size)),)
    host_of = {d: h for h, host in enumerate(hosts) for d in host}
    crossing = [sorted({host_of[d] for d in group if hosts}) for group in groups]
    title = _title(collective, groups)
    gone = {d for host in missing for d in hosts[host]}
    grid = _grid(shape, len(hosts[0]) if hosts else _WRAPS)
    items = _items(_hue(collective, shape), grid, groups, hosts, gone)
    items = [*_head(title), *items]
    rows = _rows(groups, crossing, missing)
    sentence = f"{title}. {'; '.join(' '.join(r.split()) for r in rows.splitlines())}."
    return Diagram(title, sentence, rows, _extent(grid), items)


def _shape(collective: Collective, mesh: "MeshLike") -> dict[str, int]:
    if not isinstance(collective, Collective):
        raise NotUnderstood(
            f"collective={collective!r} is no Collective; give one of "
            "spmd.xray(f, x).collectives."
        )
    shape = dict(read_mesh(mesh).shape)
    size = math.prod(shape.values())
    if size > _MOST:
        raise NotUnderstood(
            f"mesh={shape} has {size} devices, and {_MOST} are drawn at most; draw the "
            "program on a smaller mesh."
        )
    most = max((d for group in collective.groups for d in group), default=0)
    if most >= size:
        raise MeshMismatch(
            f"mesh={shape} has {size} devices, and the collective has a device at "
            f"position {most}; give the mesh of the program."
        )
    return shape


def _hosts(size: int, per_host: int | None) -> list[range]:
    if per_host is None:
        return []
    each = integer("devices_per_host", per_host, "a number of devices")
    if size % each:
        raise NotUnderstood(
            f"devices_per_host={each} does not divide the {size} devices of the mesh; "
            "give a number that does."
        )
    return [range(start, start + each) for start in range(0, size, each)]


def _absent(absent: Iterable[int], hosts: int) -> list[int]:
    numbers: list[int] = list(absent)
    for number in numbers:
        if as_integer(number) is None or number >= hosts:
            raise NotUnderstood(
                f"absent={numbers} is no list of hosts; give numbers below {hosts}, "
                "the number of hosts by devices_per_host."
            )
    return numbers


def _title(collective: Collective, groups: Sequence[Sequence[int]]) -> str:
    axes = join_words(collective.axes) or "no axis of the mesh"
    permute = collective.kind == "collective-permute"
    who = (
        count_words(len(groups), "pair")
        if permute
        else f"{count_words(len(groups), 'group')} of {len(groups[0])} devices"
    )
    each = max(itemsize(dtype) for dtype in collective.dtype.split(" + "))
    sent = bytes_sent(collective, len(groups[0]), each)
    return f"{collective.kind} over {axes}: {who}, {sent}"


def _head(title: str) -> list[Item]:
    what, facts = title.split(": ", 1)
    return [Text(0, 14, what, "title"), Text(0, 32, facts)]


def _grid(shape: dict[str, int], wraps: int) -> dict[str, int]:
    """The mesh as it is drawn: a long line of devices in several rows."""
    size = math.prod(shape.values())
    if len(shape) != 1 or size % wraps:
        return shape
    return {"": size // wraps, **dict.fromkeys(shape, wraps)}


def _columns(shape: Mapping[str, int]) -> int:
    return list(shape.values())[-1] if shape else 1


def _place(device: int, shape: Mapping[str, int]) -> tuple[float, float]:
    """The upper left corner of a device's box."""
    row, column = divmod(device, _columns(shape))
    return _LEFT + column * _ACROSS, _TOP + row * _DOWN


def _middle(device: int, shape: Mapping[str, int]) -> tuple[float, float]:
    x, y = _place(device, shape)
    return x + _WIDE / 2, y + _HIGH / 2


def _extent(shape: Mapping[str, int]) -> tuple[float, float]:
    x, y = _place(math.prod(shape.values()) - 1, shape)
    return x + _WIDE + _FRAME + 1, y + _HIGH + _FRAME + 1


def _items(
    hue: int | None,
    shape: dict[str, int],
    groups: Sequence[Sequence[int]],
    hosts: Sequence[range],
    gone: set[int],
) -> list[Item]:
    host_of = {d: h for h, host in enumerate(hosts) for d in host}
    items = _frames(shape, hosts)
    for group in groups:
        kind = "thick" if len({host_of.get(d, 0) for d in group}) > 1 else "thin"
        if gone and not gone.isdisjoint(group):
            kind = "waits"
        items += [Line(points, kind, hue) for points in _lines(group, shape)]
    for device in range(math.prod(shape.values())):
        x, y = _place(device, shape)
        kind = "empty" if device in gone else "device"
        if kind == "empty":  # the line ends behind it, too
            items.append(Box(x, y, _WIDE, _HIGH, "ground"))
        waits = device not in gone and any(
            device in group and not gone.isdisjoint(group) for group in groups
        )
        words = f"{device} waits" if waits else str(device)
        items.append(Box(x, y, _WIDE, _HIGH, kind, words))
    return [*items, *_axes(shape)]


def _hue(collective: Collective, shape: Mapping[str, int]) -> int | None:
    """The color of a line: its axis, if it is along one."""
    names = list(shape)
    if len(collective.axes) != 1 or collective.axes[0] not in names:
        return None
    number = names.index(collective.axes[0])
    return number if number < _HUES else None


def _frames(shape: dict[str, int], hosts: Sequence[range]) -> list[Item]:
    items: list[Item] = []
    for number, host in enumerate(hosts):
        corners = [_place(d, shape) for d in host]
        left = min(x for x, _ in corners) - _FRAME
        top = min(y for _, y in corners) - _FRAME
        right = max(x for x, _ in corners) + _WIDE + _FRAME
        low = max(y for _, y in corners) + _HIGH + _FRAME
        items.append(Box(left, top, right - left, low - top, "host"))
        middle = (top + low) / 2 + 4
        items.append(Text(0, middle, f"host {number}", "name"))
    return items


def _lines(
    group: Sequence[int], shape: Mapping[str, int]
) -> list[tuple[tuple[float, float], ...]]:
    """A line through a group: row by row, and down between the rows."""
    rows: dict[int, list[int]] = {}
    for device in sorted(group):
        rows.setdefault(device // _columns(shape), []).append(device)
    lines = [
        _joined(a, b, shape)
        for row in rows.values()
        for a, b in itertools.pairwise(row)
    ]
    heads = [row[0] for row in rows.values()]
    return lines + [_joined(a, b, shape) for a, b in itertools.pairwise(heads)]


def _joined(
    a: int, b: int, shape: Mapping[str, int]
) -> tuple[tuple[float, float], ...]:
    """A line from a device to another, around those between them."""
    (x0, y0), (x1, y1) = _middle(a, shape), _middle(b, shape)
    row, column = divmod(a, _columns(shape))
    if abs(x1 - x0) > _ACROSS:
        around = y0 + _HIGH / 2 + _ASIDES[column % 2]
        return (x0, y0), (x0, around), (x1, around), (x1, y1)
    if abs(y1 - y0) > _DOWN:
        around = x0 - _WIDE / 2 - _ASIDES[row % 2]
        return (x0, y0), (around, y0), (around, y1), (x1, y1)
    return (x0, y0), (x1, y1)


def _axes(shape: Mapping[str, int]) -> list[Item]:
    """The names of the mesh axes: of the rows and the columns."""
    names = [name for name in shape if name]
    items: list[Item] = []
    if names:
        items.append(Text(_LEFT, _TOP - _FRAME - 4, f"{names[-1]} →", "small"))
    if len(names) > 1:
        rows = " × ".join(names[:-1])
        items.append(Text(0, _TOP - _FRAME - 4, f"{rows} ↓", "small"))
    return items


def _rows(
    groups: Sequence[Sequence[int]], crossing: Sequence[list[int]], missing: list[int]
) -> str:
    lines = []
    for group, hosts in zip(groups, crossing, strict=True):
        words = ""
        if len(hosts) > 1:
            words = f"crosses hosts {join_words([str(h) for h in hosts])}"
        elif hosts:
            words = f"inside host {hosts[0]}"
        late = [h for h in hosts if h in missing]
        if late:
            name = "host" if len(late) == 1 else "hosts"
            words += f"; waits for {name} {join_words([str(h) for h in late])}"
        lines.append((device_list(group), words))
    return table(lines)
