"""The links of a TPU slice, and which axis of a mesh they belong to."""

import itertools
from math import prod

from .._core.validate import integer
from .._core.words import count_words, join_words
from .._errors import NotUnderstood, UnknownTopology
from .._tpu.topology import Topology, directions_on, order_on, read_topology
from .diagram import Box, Diagram, Item, Line, Text

_MOST, _DEEP = 64, 4  # chips, and of them behind each other
_FLAT, _STEP = 34.0, 60.0  # px to the next chip, in a plane and in a cube
_BACK = 52.0, -46.0  # px to the chip behind the last one
_CHIP, _LEFT, _TOP = 9.0, 10.0, 30.0
_ROW = 18.0  # px of a line of words
_NAMES = "xyz"
_NOT_DRAWN = "links that close a ring are not drawn"


def draw_torus(slice_name: str, **axes: int) -> Diagram:
    """Draw the chips of a TPU slice, and the links between neighbors by mesh axis.

    Each link has the color of its axis. The links that close a ring, from the last chip
    of a direction to its first, are not drawn.

    A mesh fits if each of its axes takes complete directions of the slice, and JAX's
    search, which begins with the last axis, finds them, as `spmd.tpu_mesh` requires.
    Where it does not, no link has a color, and the words say whether it fits in
    another order of the axes. A notebook shows
    the drawing when a cell ends with it; it can be a frame of a `spmd.FramePlayer`.

    >>> draw_torus("v5p:4x4x4", data=16, model=4)
    v5p:4x4x4: data=16 × model=4
    data takes the directions y and z: 4 · 4 chips
    model takes the direction x: 4 chips
    >>> print(draw_torus("v5p:4x4x4", data=8, model=8))
    v5p:4x4x4: data=8 × model=8
    does not fit the directions x 4, y 4 and z 4

    Args:
        slice_name: as `spmd.tpu_mesh` takes it; of at most 64 chips of one device each.
        axes: name and size of each mesh axis; together they are all chips.

    Returns:
        A Diagram: SVG in a notebook, text under `print`.

    Raises:
        UnknownTopology: there is no such slice.
        NotUnderstood: the slice is too large, or has another number of chips.

    Used in chapter 03.
    """
    try:
        topology = read_topology(slice_name, "slice_name")
        sizes = _sizes(topology, axes)
    except (UnknownTopology, NotUnderstood) as error:
        raise error.with_traceback(None) from None
    taken = directions_on(topology.torus, tuple(sizes.values()))
    owner = {d: axis for axis, ds in enumerate(taken or ()) for d in ds}
    title = f"{topology.name}: {' × '.join(f'{n}={s}' for n, s in sizes.items())}"
    rows = _rows(topology, sizes, taken)
    bottom = _middle(topology, (0, topology.chips[1] - 1, 0))[1]
    items: list[Item] = [Text(0, 13, title, "title"), *_links(topology, owner)]
    items += [_chip(topology, at) for at in _places(topology)]
    for number, row in enumerate(rows):
        y = bottom + 28 + number * _ROW
        items.append(Text(30 if taken else 0, y, row))
        if taken:
            items.append(Line(((2, y - 4), (22, y - 4)), "thin", number))
    size = bottom + 28 + len(rows) * _ROW
    width = _middle(topology, (topology.chips[0] - 1, 0, _depth(topology) - 1))[0]
    sentence = f"{'; '.join(rows)}. Lines join neighbors; {_NOT_DRAWN}."
    return Diagram(title, sentence, "\n".join(rows), (width + _LEFT, size), items)


def _sizes(topology: Topology, axes: dict[str, int]) -> dict[str, int]:
    chips = prod(topology.chips)
    if topology.devices != chips or chips > _MOST or _depth(topology) > _DEEP:
        raise NotUnderstood(
            f"slice_name={topology.name!r} can't be drawn; give one of at most {_MOST} "
            f"chips of one device each, at most {_DEEP} of them deep, such as "
            "'v5p:4x4x4' or 'v5e:8x8'."
        )
    sizes = {name: integer(name, size, "a size") for name, size in axes.items()}
    has = f"{topology.name} has {count_words(chips, 'chip')}"
    if not sizes:
        raise NotUnderstood(
            f"No mesh axis is given, and {has}; give sizes whose product is {chips}, "
            f"such as data={chips}."
        )
    devices = prod(sizes.values())
    if devices != chips:
        typed = ", ".join(f"{name}={size}" for name, size in sizes.items())
        have = "has" if len(sizes) == 1 else "have"
        raise NotUnderstood(
            f"{typed} {have} {count_words(devices, 'device')}, and {has}; give sizes "
            f"whose product is {chips}, such as data={chips}."
        )
    return sizes


def _depth(topology: Topology) -> int:
    return (*topology.chips, 1)[2]


def _rows(
    topology: Topology, sizes: dict[str, int], taken: tuple[tuple[int, ...], ...] | None
) -> list[str]:
    if taken is None:
        order = order_on(topology.torus, tuple(sizes.values()))
        if order is not None:
            axes = list(sizes.items())
            axes_words = " × ".join("{}={}".format(*axes[place]) for place in order)
            return [
                "JAX's search finds no directions in this order of the axes",
                f"in the order {axes_words} it does",
            ]
        every = [f"{_NAMES[d]} {size}" for d, size in enumerate(topology.chips)]
        return [f"does not fit the directions {join_words(every)}"]
    rows = []
    for name, directions in zip(sizes, taken, strict=True):
        longer = [d for d in directions if topology.torus[d] > 1]
        names = [_NAMES[d] for d in longer]
        product = " · ".join(str(topology.torus[d]) for d in longer)
        word = "direction" if len(names) == 1 else "directions"
        rows.append(
            f"{name} takes the {word} {join_words(names)}: {product} chips"
            if names
            else f"{name} has one device, and takes no direction"
        )
    return rows


def _places(topology: Topology) -> list[tuple[int, ...]]:
    """Chips from behind to the front."""
    x, y, z = (*topology.chips, 1)[:3]
    every = itertools.product(range(z), range(y), range(x))
    return [place[::-1] for place in sorted(every, key=lambda place: -place[0])]


def _middle(topology: Topology, at: tuple[int, ...]) -> tuple[float, float]:
    depth = _depth(topology)
    behind = at[2] / depth
    step, top = (_STEP, _TOP - _BACK[1]) if depth > 1 else (_FLAT, _TOP)
    return (
        _LEFT + step * at[0] + behind * _BACK[0],
        top + step * at[1] + behind * _BACK[1],
    )


def _links(topology: Topology, owner: dict[int, int]) -> list[Line]:
    lines = []
    for at in _places(topology):
        for d, size in enumerate((*topology.chips, 1)[:3]):
            if at[d] + 1 < size:
                after = tuple(n + (k == d) for k, n in enumerate(at))
                ends = _middle(topology, at), _middle(topology, after)
                hue = owner.get(d)
                lines.append(Line(ends, "empty" if hue is None else "thin", hue))
    return lines


def _chip(topology: Topology, at: tuple[int, ...]) -> Box:
    x, y = _middle(topology, at)
    return Box(x - _CHIP / 2, y - _CHIP / 2, _CHIP, _CHIP, "device")
