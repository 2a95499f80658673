"""Drawings of shardings and meshes."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from .._core.notebook import InNotebook
from .._core.palette import INK, LIGHT, SHARDS
from .._core.words import join_words, table
from .._errors import MeshMismatch, NotUnderstood, SpecError
from .._shardings.from_jax import read_mesh
from .._shardings.from_jax import sharding as read_sharding
from .._shardings.sharding import spec_words
from .picture import (
    Panel,
    Picture,
    Strip,
    cells_picture,
    mesh_picture,
    plain,
    sharding_picture,
    work_picture,
)
from .scene import MONO, SIZES, Rect, Scene, Text, scene
from .svg import HATCHES, MARGIN, hatch_of, html, svg, tint_opacity
from .words import say_cells, say_work

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from .._shardings.sharding import MeshFacts, ShardingInfo
    from .._shardings.types import ArrayLike, DTypeLike, MeshLike, ShardingLike

_BOLD = {"title", "caption"}


class Drawing(InNotebook):
    """A picture of a sharding; a notebook shows it when a cell ends with it.

    `print` gives its twin in plain text, `.svg` a file's worth of SVG, `.figure` a
    matplotlib figure. All say the same words, and none needs the array's data.
    """

    def __init__(self, picture: Picture) -> None:
        self._picture = picture

    def __str__(self) -> str:
        return _twin(self._picture)

    __repr__ = __str__

    @cached_property
    def _scene(self) -> Scene:
        return scene(self._picture)

    @property
    def svg(self) -> str:
        """The picture as the text of an SVG file."""
        return svg(self._picture, self._scene)

    @cached_property
    def figure(self) -> "Figure":
        """The picture as a matplotlib figure, which pyplot knows nothing of."""
        return _figure(self._scene)

    def _html(self) -> str:
        return html(self._picture, self._scene)


def draw(
    x: "ArrayLike | tuple[int, ...]",
    sharding: "ShardingLike | None" = None,
    *,
    mesh: "MeshLike | None" = None,
    dtype: "DTypeLike" = "float32",
    shards: "ShardingLike | None" = None,
) -> Drawing:
    """Draw how an array is sharded over devices, without touching its data.

    >>> from jax.sharding import PartitionSpec as P
    >>> draw((6, 10), P("data"), mesh={"data": 2, "model": 4})  # 6 / 2 = 3 rows each
    float32[6, 10] as P('data', None)
    mesh data=2 × model=4
    per device: (3, 10), 120 B of 240 B
    replicated over model: 4 replicas of each shard
    <BLANKLINE>
    rows: dim 0 · data ↓
    columns: dim 1 · unsharded →
    <BLANKLINE>
                 0:10
    data 0  0:3  0–3 · 4 replicas
    data 1  3:6  4–7 · 4 replicas
    <BLANKLINE>
    cells: positions in the mesh (no devices yet)

    The last two dimensions are rows and columns, the ones before make panels. Each of
    up to eight shards has a color of its own, the same in each drawing and in a player;
    the color of a strip is its mesh axis. Cells are not to scale, and of very many
    only the first and the last are drawn.

    Args:
        x: whatever `spmd.sharding` takes: an array of any rank, abstract or not, a
            ShardingInfo, or a shape (tuple of sizes) with a sharding.
        sharding: a NamedSharding, or a PartitionSpec together with `mesh`.
        mesh: a Mesh, an AbstractMesh, or a dict from axis name to number of devices.
        dtype: element type for a bare shape.
        shards: another sharding of the array, whose smaller shards are drawn, in their
            colors: after an all-gather, where each of the shards before it is.

    Returns:
        A Drawing: SVG in a notebook, text under `print`, `.svg` and `.figure`.

    Raises:
        UnknownAxis, TooManyEntries, AxisUsedTwice, NotDivisible, MeshMismatch,
        NotUnderstood: as `spmd.sharding` does; or the shards of `shards` are not within
            those of the array.

    Used from chapter 01 on.
    """
    try:
        info = read_sharding(x, sharding, mesh=mesh, dtype=dtype)
        if shards is None:
            return Drawing(sharding_picture(info))
        smaller = read_sharding(info.shape, shards, mesh=mesh, dtype=info.dtype)
        _check_within(info, smaller)
        return Drawing(sharding_picture(info, smaller))
    except (SpecError, MeshMismatch, NotUnderstood) as error:
        raise error.with_traceback(None) from None


def _check_within(info: "ShardingInfo", smaller: "ShardingInfo") -> None:
    """Raise if a shard of the one is not within one shard of the other."""
    if any(b % a for a, b in zip(info.grid, smaller.grid, strict=True)):
        raise NotUnderstood(
            f"shards={spec_words(smaller.entries)} divides the array into "
            f"{smaller.grid} shards, which are not within the {info.grid} of "
            f"{spec_words(info.entries)}; give a sharding with smaller shards."
        )


def draw_mesh(mesh: "MeshLike") -> Drawing:
    """Draw a mesh: which device is at each position, axis names on the edges.

    >>> draw_mesh({"data": 2, "model": 4})
    mesh data=2 × model=4
    8 devices
    <BLANKLINE>
    rows: data ↓
    columns: model →
    <BLANKLINE>
            model 0  model 1  model 2  model 3
    data 0  0        1        2        3
    data 1  4        5        6        7
    <BLANKLINE>
    cells: positions in the mesh (no devices yet)

    Args:
        mesh: a Mesh, an AbstractMesh, or a dict from axis name to number of devices.

    Returns:
        A Drawing. The last two axes are rows and columns, the ones before make panels.

    Raises:
        NotUnderstood: `mesh` is none of these.

    Used from chapter 02 on.
    """
    try:
        return Drawing(mesh_picture(read_mesh(mesh)))
    except NotUnderstood as error:
        raise error.with_traceback(None) from None


def draw_cells(
    rows: Mapping[str, Sequence[object]],
    columns: Sequence[str] = (),
    *,
    title: str,
    notes: str | Sequence[str] = (),
    values: Sequence[object] = (),
) -> Drawing:
    """Draw a table of values in which equal cells have the same color.

    >>> draw_cells(
    ...     {"device 0": [28, 3.5], "device 1": [28, 3.5]},
    ...     ["wrong", "right"],
    ...     title="the gradient on each device",
    ... )
    the gradient on each device
    <BLANKLINE>
              wrong  right
    device 0  28     3.5
    device 1  28     3.5

    Args:
        rows: the name of each row → its cells, whose `str` is drawn; None is an empty
            cell. All rows have the same number of cells, one to ten, and there are at
            most sixteen rows.
        columns: the names of the columns, or nothing.
        title: the heading.
        notes: what stands below.
        values: those that have the first colors, in this order. Drawings with the same
            list, such as the frames of a player, give each of them the same color.

    Returns:
        A Drawing. Of up to eight different values each has a color of its own, in the
        order of their first cells; of more, those that are in two cells or more.

    Raises:
        NotUnderstood: `rows` is empty, too large or ragged, or a name is no text.

    Used from chapter 01 on.
    """
    try:
        listed, names, below = _checked(rows, columns, title, notes)
        words = say_cells(title, listed, names, below)
        columns = names or [""] * _width(listed)
        colored = [str(value) for value in values]
        return Drawing(cells_picture(listed, columns, words, colored))
    except NotUnderstood as error:
        raise error.with_traceback(None) from None


def draw_work(name: str, mesh: "MeshFacts", pieces: Sequence[int]) -> Drawing:
    """Draw which piece of a product each device computes.

    Args:
        name: of the program.
        mesh: its mesh.
        pieces: the number of its piece for each position in the mesh.
    """
    return Drawing(work_picture(mesh, pieces, say_work(name, mesh, pieces)))


def _width(rows: Mapping[str, Sequence[object]]) -> int:
    return len(next(iter(rows.values())))


_MOST = 16, 10  # rows and columns of a table


def _checked(
    rows: Mapping[str, Sequence[object]],
    columns: Sequence[str],
    title: str,
    notes: str | Sequence[str],
) -> tuple[dict[str, list[str | None]], list[str], list[str]]:
    """The rows, the names of the columns, and the notes, as texts."""
    if not isinstance(rows, Mapping) or not rows:
        raise NotUnderstood(
            f"rows={rows!r}; give a dict from the name of a row to its list of cells."
        )
    for what, names in (("rows", rows), ("columns", columns), ("title", [title])):
        if isinstance(names, str) or not all(isinstance(name, str) for name in names):
            raise NotUnderstood(f"{what}={names!r}: its names are not texts.")
    table_ = {
        name: [None if cell is None else str(cell) for cell in cells]
        for name, cells in rows.items()
    }
    sizes = sorted({len(cells) for cells in table_.values()})
    if len(sizes) > 1 or (columns and len(columns) != sizes[0]):
        raise NotUnderstood(
            f"the rows have {join_words([str(size) for size in sizes])} cells, and "
            f"there are {len(columns)} columns; give every row one cell a column."
        )
    if not 0 < sizes[0] <= _MOST[1] or len(table_) > _MOST[0]:
        raise NotUnderstood(
            f"the table has {len(table_)} × {sizes[0]} cells; draw at most "
            f"{_MOST[0]} rows of 1 to {_MOST[1]}."
        )
    below = [notes] if isinstance(notes, str) else [*notes]
    return table_, [*columns], below


def _twin(picture: Picture) -> str:
    """The picture as plain text: the same words, in aligned columns."""
    parts = ["\n".join([picture.title, *picture.facts])]
    if picture.captions:
        lines = [f"{k}: {plain(words)}" for k, words in picture.captions.items()]
        parts.append("\n".join(lines))
    for panel in picture.panels:
        if panel is None:
            parts.append(picture.panel_gap)
            continue
        head = "  ".join(filter(None, [panel.title, *(s.text for s in panel.strips)]))
        parts.append("\n".join(filter(None, [head, _grid(picture, panel)])))
    if picture.notes:
        parts.append("\n".join(picture.notes))
    return "\n\n".join(parts)


def _grid(picture: Picture, panel: Panel) -> str:
    rows, columns = picture.rows, picture.columns
    left = [*(_along(level, rows.size) for level in rows.levels), rows.labels]
    left = [column for column in left if any(column)]
    top = [*(_along(level, columns.size) for level in columns.levels), columns.labels]
    lines = [[*[""] * len(left), *line] for line in top if any(line)]
    for i, cells in enumerate(panel.cells):
        words = ["…" if cell is None else " · ".join(cell) for cell in cells]
        if i == rows.gap:
            words = ["⋮"] * len(cells)
        lines.append([*(column[i] for column in left), *words])
    return table(lines)


def _along(level: Sequence[Strip], size: int) -> list[str]:
    """A level's words, once for each line that it spans."""
    words = ["…"] * size
    for strip in level:
        words[strip.start : strip.stop] = [strip.text] * (strip.stop - strip.start)
    return words


def _figure(placed: Scene) -> "Figure":
    """Draw a scene with matplotlib, in the light colors."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    inch = 96  # px, as CSS has it
    width, height = placed.width + 2 * MARGIN, placed.height + 2 * MARGIN
    figure = Figure((width / inch, height / inch), dpi=inch)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(-MARGIN, width - MARGIN), ylim=(height - MARGIN, -MARGIN))
    axes.set_axis_off()
    for item in placed.items:
        if isinstance(item, Rect):
            color = INK[0] if item.hue is None else LIGHT[item.hue]
            strip = item.kind == "strip"
            fill: Any = (color, tint_opacity(item.tint)) if strip else "none"
            if item.shard is not None:
                fill = SHARDS[item.shard][0]
            box = (item.x, item.y), item.width, item.height
            edge = color if strip else (color, 0.55)
            axes.add_patch(Rectangle(*box, facecolor=fill, edgecolor=edge, lw=0.9))
            if item.hatched:
                color, opacity = HATCHES[hatch_of(item.shard)]
                faint = (INK[0] if color == "currentColor" else color, opacity)
                hatch = Rectangle(
                    *box, facecolor="none", edgecolor=faint, hatch="//", lw=0
                )
                axes.add_patch(hatch)
        else:
            _figure_text(axes, item)
    return figure


def _figure_text(axes: "Axes", item: Text) -> None:
    style: dict[str, Any] = {
        "fontsize": SIZES[item.kind] * 0.72,
        "family": ["DejaVu Sans Mono"] * (item.kind in MONO) + ["DejaVu Sans"],
        "weight": "bold" if item.kind in _BOLD else "normal",
        "ha": {"start": "left", "middle": "center", "end": "right"}[item.anchor],
        "va": "baseline",
    }
    # One piece after the other: matplotlib has one color for a text.
    x = item.x
    left: str | Artist = "data"
    for word in item.words:
        color = INK[0] if word.hue is None else LIGHT[word.hue]
        if item.shard is not None:
            color = SHARDS[item.shard][1]
        coordinates = (left, "data")
        left = axes.annotate(
            word.text, (x, item.y), xycoords=coordinates, color=color, **style
        )
        x = 1
