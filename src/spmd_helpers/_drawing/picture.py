"""What a drawing says: every word and every cell, computed once.

The text twin, the SVG and the figure all render this record; none of them computes.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from .._core.palette import SHARDS
from .._core.words import PMAP_AXIS, count_words, device_list
from .._shardings.sharding import MeshFacts, ShardingInfo
from .words import Words, say_mesh, say_replicas, say_sharding, sentences

Cell = Callable[[Sequence[int]], tuple[str, ...]]  # a block's index → its words
Shard = Callable[[Sequence[int]], int | None]  # its index → the number of its color
HUES = 4  # mesh axes that have a color of their own
_LIMITS = {1: 10, 2: 8, 4: 6, 8: 4}  # panels drawn -> rows and columns drawn in each
_ROWS, _COLUMNS, _PANELS = 4, 3, 4  # drawn at each end where there are more


@dataclass(frozen=True)
class Word:
    """A piece of text; `hue` is the place of the mesh axis that it names."""

    text: str
    hue: int | None = None


def plain(words: Iterable[Word]) -> str:
    """The words without their colors."""
    return "".join(word.text for word in words)


@dataclass(frozen=True)
class Strip:
    """One index along one mesh axis, beside the rows or columns that it holds."""

    text: str
    hue: int | None
    tint: float  # 0 for the first index along the axis, 1 for the last
    start: int
    stop: int


@dataclass(frozen=True)
class Edge:
    """The rows, or the columns: outer strips, inner strips, one label a line."""

    caption: tuple[Word, ...]
    levels: tuple[tuple[Strip, ...], ...]
    labels: tuple[str, ...]
    gap: int | None  # which line stands for those left out

    @property
    def size(self) -> int:
        """How many lines are drawn, the gap included."""
        return len(self.labels)


@dataclass(frozen=True)
class Panel:
    """One grid of cells, each some lines of words; None in the gap.

    `shards` has a number for each cell that is a shard with a color of its own.
    """

    title: str
    strips: tuple[Strip, ...]
    cells: tuple[tuple[tuple[str, ...] | None, ...], ...]
    shards: tuple[tuple[int | None, ...], ...]


@dataclass(frozen=True)
class Picture:
    """A complete drawing; `panels` holds None where panels are left out."""

    title: str
    facts: tuple[str, ...]
    notes: tuple[str, ...]
    sentence: str
    rows: Edge
    columns: Edge
    caption: tuple[Word, ...]  # which dimensions make the panels
    panels: tuple[Panel | None, ...]
    panel_gap: str
    hatched: bool

    @property
    def captions(self) -> dict[str, tuple[Word, ...]]:
        """What panels, rows and columns are, each if there are any."""
        edges = {"rows": self.rows.caption, "columns": self.columns.caption}
        return {k: v for k, v in {"panels": self.caption, **edges}.items() if v}


@dataclass(frozen=True)
class _Dim:
    """One dimension to draw: its name, the axes that shard it, its lines' labels."""

    name: str
    axes: tuple[tuple[str, int], ...]
    labels: tuple[str, ...] | None  # one a block

    @property
    def blocks(self) -> int:
        return math.prod(size for _, size in self.axes)


def sharding_picture(info: ShardingInfo, drawn: ShardingInfo | None = None) -> Picture:
    """The picture of an array's sharding.

    Args:
        info: where the array is.
        drawn: the sharding whose shards are the cells, if they are smaller.
    """
    drawn = drawn or info
    dims = [
        _Dim(
            f"dim {d}",
            tuple((axis, drawn.mesh_shape[axis]) for axis in entry),
            tuple(f"{i * step}:{(i + 1) * step}" for i in range(blocks)),
        )
        for d, (entry, blocks, step) in enumerate(
            zip(drawn.entries, drawn.grid, drawn.shard_shape, strict=True)
        )
    ]
    smaller = tuple(b // a for a, b in zip(info.grid, drawn.grid, strict=True))
    replicas = say_replicas(info)

    def cell(block: Sequence[int]) -> tuple[str, ...]:
        inside = tuple(i // n for i, n in zip(block, smaller, strict=True))
        ids = info.devices(inside)
        if info.device_count == 1:
            return (f"device {ids[0]}", *replicas)
        return (device_list(ids), *replicas)

    colored = math.prod(drawn.grid) <= len(SHARDS)
    return _picture(
        dims,
        dict(drawn.axes),
        cell,
        say_sharding(info, drawn),
        things="shards",
        hatched=info.replicas > 1,
        shard=(lambda block: position(block, drawn.grid)) if colored else _no_shard,
    )


def mesh_picture(mesh: MeshFacts) -> Picture:
    """The picture of a mesh's devices."""
    dims = [_Dim("", ((axis, size),), None) for axis, size in mesh.shape.items()]
    sizes = tuple(mesh.shape.values())
    ids = mesh.device_ids

    def cell(index: Sequence[int]) -> tuple[str, ...]:
        at = position(index, sizes)
        return (str(at if ids is None else ids[at]),)

    return _picture(dims, mesh.shape, cell, say_mesh(mesh), things="devices")


def work_picture(mesh: MeshFacts, pieces: Sequence[int], words: Words) -> Picture:
    """The picture of a mesh whose devices compute so numbered pieces."""
    dims = [_Dim("", ((axis, size),), None) for axis, size in mesh.shape.items()]
    sizes = tuple(mesh.shape.values())
    colored = max(pieces) < len(SHARDS)

    def cell(index: Sequence[int]) -> tuple[str, ...]:
        return (str(pieces[position(index, sizes)]),)

    def shard(index: Sequence[int]) -> int | None:
        return pieces[position(index, sizes)] if colored else None

    return _picture(dims, mesh.shape, cell, words, things="devices", shard=shard)


def cells_picture(
    rows: Mapping[str, Sequence[str | None]],
    columns: Sequence[str],
    words: Words,
    values: Sequence[str] = (),
) -> Picture:
    """The picture of a table, in which equal texts have one color.

    Those in `values` have the first colors. Of more other texts than colors are left,
    those that stand in one cell only have none.
    """
    texts = Counter(text for row in rows.values() for text in row if text)
    first = dict.fromkeys(values)
    few = len(first | texts) <= len(SHARDS)
    named = [text for text, count in texts.items() if few or count > 1]
    named = [*dict.fromkeys([*first, *named])]
    hues = {text: k for k, text in enumerate(named[: len(SHARDS)])}
    cells = tuple(tuple((text or "–",) for text in row) for row in rows.values())
    shards = tuple(tuple(hues.get(text or "") for text in row) for row in rows.values())
    return Picture(
        title=words.title,
        facts=words.facts,
        notes=words.notes,
        sentence=words.sentence,
        rows=Edge((), (), tuple(rows), None),
        columns=Edge((), (), tuple(columns), None),
        caption=(),
        panels=(Panel("", (), cells, shards),),
        panel_gap="",
        hatched=False,
    )


def _no_shard(index: Sequence[int]) -> None:
    """The color of a cell that has none."""


def position(index: Sequence[int], sizes: Sequence[int]) -> int:
    """The number of a place in a grid, the last dimension fastest."""
    number = 0
    for i, size in zip(index, sizes, strict=True):
        number = number * size + i
    return number


def _picture(
    dims: Sequence[_Dim],
    mesh_axes: Iterable[str],
    cell: Cell,
    words: Words,
    *,
    things: str,
    hatched: bool = False,
    shard: Shard = _no_shard,
) -> Picture:
    hues = {axis: i for i, axis in enumerate(mesh_axes) if i < HUES}
    lead, last = dims[:-2], dims[-2:]
    row, column = ([None, None] + list(last))[-2:]
    fronts = list(product(*(range(dim.blocks) for dim in lead)))
    chosen, left_out = _drawn(len(fronts), 2 * _PANELS, _PANELS)
    limit = next(m for most, m in _LIMITS.items() if len(chosen) - left_out <= most)
    notes = list(words.notes)
    rows, row_lines = _edge(row, "↓", limit, hues, notes, f"rows of {things}")
    columns, column_lines = _edge(
        column, "→", limit, hues, notes, f"columns of {things}"
    )

    def panel(front: tuple[int, ...]) -> Panel:
        places = [
            [
                None
                if i is None or j is None
                else (*front, *([i] if row else []), *([j] if column else []))
                for j in column_lines
            ]
            for i in row_lines
        ]
        cells = tuple(
            tuple(None if place is None else cell(place) for place in line)
            for line in places
        )
        shards = tuple(
            tuple(None if place is None else shard(place) for place in line)
            for line in places
        )
        return _panel(lead, len(last), front, hues, cells, shards)

    if left_out:
        notes.append(_elision(len(fronts), chosen, "panels"))
    more = len(fronts) - len(chosen) + 1
    return Picture(
        title=words.title,
        facts=words.facts,
        notes=tuple(notes),
        sentence=f"{words.sentence} {sentences(notes)}".strip(),
        rows=rows,
        columns=columns,
        caption=_panel_caption(lead, hues),
        panels=tuple(None if n is None else panel(fronts[n]) for n in chosen),
        panel_gap=f"… {count_words(more, 'more panel')}" if left_out else "",
        hatched=hatched,
    )


def _drawn(count: int, limit: int, half: int) -> tuple[list[int | None], bool]:
    """Which lines to draw; None stands for those left out of the middle."""
    if count <= limit:
        return list(range(count)), False
    half = min(half, limit // 2)
    return [*range(half), None, *range(count - half, count)], True


def _elision(count: int, lines: list[int | None], what: str) -> str:
    half = len(lines) // 2
    return f"drawn: first {half} and last {half} of {count} {what}"


def _edge(
    dim: _Dim | None,
    arrow: str,
    limit: int,
    hues: Mapping[str, int],
    notes: list[str],
    what: str,
) -> tuple[Edge, list[int | None]]:
    if dim is None:
        return Edge((), (), ("",), None), [0]
    half = _ROWS if arrow == "↓" else _COLUMNS
    lines, cut = _drawn(dim.blocks, limit, half)
    if cut:
        notes.append(_elision(dim.blocks, lines, what))
    missing = dim.blocks - len(lines) + 1
    dots = "⋮" if arrow == "↓" else "…"
    labels = tuple(
        f"{dots} {missing} more" if i is None else dim.labels[i] if dim.labels else ""
        for i in lines
    )
    levels = tuple(
        _level(dim.axes, depth, lines, hues) for depth in range(len(dim.axes))
    )
    gap = lines.index(None) if cut else None
    return Edge((*_caption(dim, hues), Word(f" {arrow}")), levels, labels, gap), lines


def _level(
    axes: Sequence[tuple[str, int]],
    depth: int,
    lines: Sequence[int | None],
    hues: Mapping[str, int],
) -> tuple[Strip, ...]:
    """The strips of one axis: neighbors that share it and all outer ones, joined."""
    axis, size = axes[depth]
    inner = math.prod(size for _, size in axes[depth + 1 :])
    spans: list[list[int]] = []  # key, start, stop
    for at, line in enumerate(lines):
        if line is None:
            continue
        if spans and spans[-1][0] == line // inner:
            spans[-1][2] = at + 1
        else:
            spans.append([line // inner, at, at + 1])
    return tuple(_strip(axis, key % size, size, hues, a, b) for key, a, b in spans)


def _strip(
    axis: str,
    index: int,
    size: int,
    hues: Mapping[str, int],
    start: int = 0,
    stop: int = 1,
) -> Strip:
    tint = index / (size - 1) if size > 1 else 0.0
    name = "pmap" if axis == PMAP_AXIS else axis  # the caption has the full name
    return Strip(f"{name} {index}", hues.get(axis), tint, start, stop)


def _caption(dim: _Dim, hues: Mapping[str, int]) -> list[Word]:
    names = [Word(axis, hues.get(axis)) for axis, _ in dim.axes]
    if not dim.name:
        return names
    words = [Word(f"{dim.name} · ")]
    if not names:
        return [*words, Word("unsharded")]
    if len(names) == 1:
        return words + names
    for name, mark in zip(names, ["("] + [", "] * len(names), strict=False):
        words += [Word(mark), name]
    return [*words, Word(")")]


def _panel_caption(lead: Sequence[_Dim], hues: Mapping[str, int]) -> tuple[Word, ...]:
    words: list[Word] = []
    for dim in lead:
        words += [Word(", ")] * bool(words) + _caption(dim, hues)
    return tuple(words)


def _panel(
    lead: Sequence[_Dim],
    rest: int,
    front: Sequence[int],
    hues: Mapping[str, int],
    cells: tuple[tuple[tuple[str, ...] | None, ...], ...],
    shards: tuple[tuple[int | None, ...], ...],
) -> Panel:
    strips: list[Strip] = []
    slices: list[str] = []
    for dim, block in zip(lead, front, strict=True):
        number = block
        mine: list[Strip] = []
        for axis, size in reversed(dim.axes):
            number, index = divmod(number, size)
            mine.insert(0, _strip(axis, index, size, hues))
        strips += mine
        if dim.labels:
            slices.append(dim.labels[block])
    title = f"[{', '.join(slices + [':'] * rest)}]" if slices else ""
    return Panel(title, tuple(strips), cells, shards)
