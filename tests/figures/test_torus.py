"""The links of a TPU slice have the color of the axis that JAX gives them."""

import itertools
import re
from math import prod

import pytest

import spmd_helpers as spmd
from spmd_helpers._figures.diagram import Box, Line, Text
from spmd_helpers._tpu.topology import directions_on, lies_on, order_on, read_topology

SLICES = ("v5p:4x4x4", "v5p:2x2x4", "v4:2x4x4", "v5e:8x8", "v5e:4x8", "v6e:2x4")


def meshes(name):
    chips = prod(read_topology(name).chips)
    for data in range(1, chips + 1):
        if chips % data == 0:
            yield {"data": data, "model": chips // data}


def links(drawn):
    """The lines between chips: those of the legend come after them."""
    first = next(k for k, item in enumerate(drawn._items) if isinstance(item, Box))
    return [item for item in drawn._items[:first] if isinstance(item, Line)]


@pytest.mark.parametrize("name", SLICES)
def test_each_link_is_drawn_once_in_the_color_of_its_axis(name):
    chips = read_topology(name).chips
    for axes in meshes(name):
        drawn = spmd.draw_torus(name, **axes)
        lines = links(drawn)
        assert len(lines) == sum((n - 1) * prod(chips) // n for n in chips)
        assert len({line.points for line in lines}) == len(lines)
        boxes = [item for item in drawn._items if isinstance(item, Box)]
        middles = {(b.x + b.width / 2, b.y + b.height / 2) for b in boxes}
        assert len(middles) == prod(chips)
        assert {end for line in lines for end in line.points} == middles
        fits = lies_on(read_topology(name).torus, tuple(axes.values()))
        assert {line.hue is None for line in lines} == {not fits}
        assert ("does not fit" in str(drawn)) == (not fits)
        for number, (axis, size) in enumerate(axes.items()):
            if fits and size > 1:
                assert along(lines, number, min(middles)) == size, axis


def along(lines, hue, start):
    """How many chips are reached from one by the links of one color."""
    reached = {start}
    while True:
        more = {end for line in lines if line.hue == hue
                for end in line.points if reached & {*line.points}}  # fmt: skip
        if more <= reached:
            return len(reached)
        reached |= more


def test_directions_are_taken_once():
    for torus in ((4, 4, 4), (2, 4, 8), (8, 8, 1)):
        for shape in itertools.product((1, 2, 4, 8, 16, 32, 64), repeat=2):
            if prod(shape) != prod(torus):
                continue
            taken = directions_on(torus, shape)
            assert (taken is not None) == lies_on(torus, shape)
            for size, directions in zip(shape, taken or (), strict=bool(taken)):
                assert prod(torus[d] for d in directions) == size
            every = [*itertools.chain(*(taken or ()))]
            assert len(every) == len(set(every))


def test_picture_and_text_say_the_same():
    drawn = spmd.draw_torus("v5p:4x4x4", data=16, model=4)
    words = {item.text for item in drawn._items if isinstance(item, Text)}
    assert words == set(str(drawn).splitlines())
    assert all(row in drawn.svg for row in str(drawn).splitlines())


@pytest.mark.parametrize(
    ("name", "axes", "words"),
    [
        ("v5p:4x4x4", {"data": 3}, "give sizes whose product is 64"),
        ("v5p:4x4x4", {}, "give sizes whose product is 64"),
        ("v5p:4x4x4", {"data": "4", "model": 16}, "give an integer"),
        (
            "v5e:1x1",
            {"data": 2},
            r"^data=2 has 2 devices, and v5e:1x1 has 1 chip;",
        ),
        (
            "v5e:4x4",
            {"a": 1, "b": 1},
            r"^a=1, b=1 have 1 device, and v5e:4x4 has 16",
        ),
        (
            "v5e:4x4",
            {},
            r"^No mesh axis is given, and v5e:4x4 has 16 chips; give",
        ),
        ("v5p:4x4x8", {"data": 128}, "give one of at most 64 chips"),
        ("7x:2x2x1", {"data": 8}, "chips of one device each"),
    ],
)
def test_what_can_not_be_drawn_gets_a_sentence(name, axes, words):
    with pytest.raises(spmd.NotUnderstood, match=words) as raised:
        spmd.draw_torus(name, **axes)
    assert "\n" not in str(raised.value)


def test_an_unknown_slice_gets_its_own():
    for wrong in ("v99:4x4", None, "h100:2x8", "v5p-1", "v5e", "v5e:3x3", "v5e:4x4x4"):
        with pytest.raises(spmd.UnknownTopology) as raised:
            spmd.draw_torus(wrong, data=16)
        assert str(raised.value).startswith(f"slice_name={wrong!r}")
        assert not re.search(r"\b1 (cores|chips|devices)\b", str(raised.value))


def test_it_says_that_links_of_rings_are_missing():
    words = "Lines join neighbors; links that close a ring are not drawn."
    assert words in spmd.draw_torus("v5p:4x4x4", data=16, model=4).svg
    assert "are not drawn" in " ".join(spmd.draw_torus.__doc__.split())


def test_a_mesh_that_fits_in_another_order_is_told():
    drawn = spmd.draw_torus("v5p:2x2x4", data=2, fsdp=2, model=4)
    assert "finds no directions in this order of the axes" in str(drawn)
    assert "in the order data=2 × model=4 × fsdp=2 it does" in str(drawn)
    assert "does not fit" not in str(drawn)
    again = spmd.draw_torus("v5p:2x2x4", data=2, model=4, fsdp=2)
    assert "model takes the direction z: 4 chips" in str(again)


@pytest.mark.parametrize("torus", [(2, 2, 4), (4, 4, 4), (2, 4, 8), (4, 8, 1)])
def test_an_order_is_found_where_there_is_one(torus):
    for shape in itertools.product((1, 2, 4, 8, 16), repeat=3):
        if prod(shape) != prod(torus):
            continue
        order = order_on(torus, shape)
        every = itertools.permutations(shape)
        assert (order is not None) == any(lies_on(torus, one) for one in every)
        if order is not None:
            assert sorted(order) == [0, 1, 2]
            assert lies_on(torus, tuple(shape[place] for place in order))
