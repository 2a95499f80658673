"""Drawings: one record of words, the same in text, SVG and figure."""

import io
import math
import re
import subprocess
import sys
from xml.etree import ElementTree

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import AbstractMesh, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from spmd_helpers import _errors as errors
from spmd_helpers._core.palette import DARK, INK, LIGHT, PAPER, SHARDS
from spmd_helpers._core.words import device_list
from spmd_helpers._drawing.draw import draw, draw_cells, draw_mesh, draw_work
from spmd_helpers._drawing.picture import sharding_picture
from spmd_helpers._drawing.scene import WIDE, Rect, Text, scene, text_width
from spmd_helpers._drawing.svg import HATCHES, PHONE, hatch_of, tint_opacity
from spmd_helpers._shardings.from_jax import read_mesh
from spmd_helpers._shardings.sharding import ShardingInfo
from tests.stand_ins import guarded

SVG = "{http://www.w3.org/2000/svg}"
SIZES = {"data": 4, "model": 2}


def info(shape, spec, sizes, dtype="float32", ids=False):
    devices = tuple(range(math.prod(sizes.values()))) if ids else None
    return ShardingInfo(
        shape, dtype, mesh_shape=sizes, entries=tuple(spec), device_ids=devices
    )


POD = {"data": 16, "model": 32}
SHARDINGS = {
    "1-D": info((16,), ["data"], {"data": 8}, ids=True),
    "2-D": info((8, 10), ["data", "model"], SIZES, ids=True),
    "tuple": info((16, 10), [("data", "model")], SIZES, ids=True),
    "replicated": info((6, 10), [None, "model"], SIZES, ids=True),
    "everywhere": info((6, 10), [], SIZES, ids=True),
    "rank 3": info((4, 6, 10), ["data", None, "model"], SIZES, ids=True),
    "rank 3, many": info((64, 6, 10), ["data"], {"data": 64}),
    "rank 4": info((4, 6, 8, 10), ["data", "model"], SIZES),
    "rank 5": info((2, 2, 4, 6, 10), list("abcde"), dict.fromkeys("abcde", 2)),
    "512 in a row": info((4096,), ["data"], {"data": 512}),
    "16 by 32": info((64, 1024), ["data", "model"], POD),
    "512 rows": info((1024, 8), [("data", "model")], POD),
    "16 replicas": info((64, 1024), [None, "model"], POD),
    "long and thin": info((8, 65536), ["data", "model"], SIZES, "bfloat16"),
    "a million": info((1, 1_000_000), [None, ("model", "data")], SIZES),
    "one device": info((6, 10), [], {}, ids=True),
    "scalar": info((), [], SIZES),
    "empty": info((0, 4), ["data", "model"], SIZES),
    "outer strip over the gap": info((4, 512), [None, ("a", "b")], {"a": 1, "b": 256}),
    "long names": info((8, 8), ["fully_sharded_data_parallel"], {
        "fully_sharded_data_parallel": 4, "tensor_parallel_MWMW": 2}),
    "partial sums": ShardingInfo((8, 2), mesh_shape=SIZES, entries=("data",),
                           unreduced=("model",)),
    "markup": info((8,), ["<a&'\">"], {"<a&'\">": 4}),
}  # fmt: skip
MESHES = {
    "row": {"data": 8},
    "grid": SIZES,
    "3-D": {"pod": 2, "data": 2, "model": 2},
    "512": POD,
    "no axes": {},
}


def drawings():
    yield from ((name, draw(value)) for name, value in SHARDINGS.items())
    yield from ((f"mesh {name}", draw_mesh(value)) for name, value in MESHES.items())


ALL = dict(drawings())
every_drawing = pytest.mark.parametrize("name", ALL)


def page(drawing):
    return drawing._repr_mimebundle_()["text/html"]


def texts(markup):
    root = ElementTree.fromstring(markup)
    return [(el.get("class"), "".join(el.itertext())) for el in root.iter(f"{SVG}text")]


# The twin.


def test_the_twin_of_a_replicated_array(mesh):
    x = jax.device_put(jnp.zeros((6, 10)), NamedSharding(mesh, P(None, "model")))
    assert (
        str(draw(x))
        == repr(draw(x))
        == (
            "float32[6, 10] as P(None, 'model')\n"
            "mesh data=4 × model=2 (8 × cpu)\n"
            "per device: (6, 5), 120 B of 240 B\n"
            "replicated over data: 4 replicas of each shard\n\n"
            "rows: dim 0 · unsharded ↓\n"
            "columns: dim 1 · model →\n\n"
            "     model 0                  model 1\n"
            "     0:5                      5:10\n"
            "0:6  0, 2, 4, 6 · 4 replicas  1, 3, 5, 7 · 4 replicas\n\ncells: device ids"
        )
    )


def test_the_twin_of_a_tuple_has_both_header_levels():
    lines = str(draw(info((8, 10), [("data", "model")], SIZES, ids=True))).splitlines()
    assert lines[4:11] == [
        "",
        "rows: dim 0 · (data, model) ↓",
        "columns: dim 1 · unsharded →",
        "",
        "                      0:10",
        "data 0  model 0  0:1  0",
        "data 0  model 1  1:2  1",
    ]


def test_the_twin_of_three_dimensions():
    twin = str(draw(SHARDINGS["rank 3"]))
    assert (
        "panels: dim 0 · data\nrows: dim 1 · unsharded ↓\ncolumns: dim 2 · model →"
        in twin
    )
    assert "[2:3, :, :]  data 2\n     model 0  model 1\n     0:5      5:10\n" in twin


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("one device", ["float32[6, 10] on one device", "all on one device: 240 B"]),
        ("one device", ["0:6  device 0"]),
        ("everywhere", ["over data and model: 8 replicas of the array", "0–7"]),
        ("16 replicas", ["0, 32, 64 … 480 · 16 replicas", "… 26 more"]),
        ("16 replicas", ["drawn: first 3 and last 3 of 32 columns of shards"]),
        ("512 rows", ["⋮ 504 more", "first 4 and last 4 of 512 rows of shards"]),
        ("rank 3, many", ["… 56 more panels", "first 4 and last 4 of 64 panels"]),
        ("long and thin", ["32768:65536", "per device: (2, 32768), 128 KiB of"]),
        ("2-D", ["not replicated", "cells: device ids"]),
        ("16 by 32", ["cells: positions in the mesh (no devices yet)"]),
        ("scalar", ["float32[] as P()", "0–7 · 8 replicas"]),
        ("empty", ["0:0", "per device: (0, 2), 0 B of 0 B"]),
        ("partial sums", ["0, 1 · 2 partial sums"]),
        ("partial sums", ["unreduced over model: each device has a partial sum"]),
        ("mesh grid", ["mesh data=4 × model=2\n8 devices", "data 3  6        7"]),
        ("mesh 512", ["drawn: first 4 and last 4 of 16 rows of devices"]),
        ("mesh 512", ["512 devices"]),
    ],
)  # fmt: skip
def test_what_a_twin_must_say(name, words):
    assert [w for w in words if w not in str(ALL[name])] == []


def test_pmap_output_is_called_a_stack():
    twin = str(draw(jax.pmap(lambda x: x)(jnp.zeros((8, 3)))))
    assert "float32[8, 3] as P('(pmap axis)', None)" in twin
    assert "pmap 7  7:8  7" in twin
    assert twin.endswith(
        "dim 0 is pmap's stacked axis, one slice per device; a replicated value is "
        "stacked there 8 times"
    )


def test_a_permuted_mesh_says_that_positions_are_not_ids():
    order = [0, 4, 1, 5, 2, 6, 3, 7]
    mesh = Mesh(np.array(jax.devices())[order].reshape(2, 4), ("data", "model"))
    twin = str(draw_mesh(mesh))
    assert "8 × cpu\nnot in the order of their ids\n" in twin
    assert "a position is not an id: position 1 in the mesh is device 4" in twin
    assert "data 1  2        6        3        7" in twin
    straight = str(draw_mesh(Mesh(np.array(jax.devices()), ("data",))))
    assert "8 × cpu\nin the order of their ids" in straight
    assert "position" not in straight
    later = str(draw_mesh(Mesh(np.array(jax.devices()[4:]), ("data",))))
    assert "4 × cpu\nin the order of their ids\na position is not an id: " in later
    assert "position 0 in the mesh is device 4" in later


# One record, three renderings.


@every_drawing
def test_every_word_of_the_svg_is_in_the_twin(name):
    twin = str(ALL[name])
    for kind, words in texts(ALL[name].svg):
        if kind in ("cell", "copies", "strip", "slice"):
            assert words in twin, kind
    plain = " ".join(words for _, words in texts(ALL[name].svg))
    picture = ALL[name]._picture
    for words in (*picture.facts, *picture.notes, picture.title):
        assert words in twin
        assert words in plain


@every_drawing
def test_every_cell_of_the_twin_is_in_the_svg(name):
    drawn = [words for _, words in texts(ALL[name].svg)]
    for panel in filter(None, ALL[name]._picture.panels):
        cells = [c for row in panel.cells for c in row if c]
        assert cells
        for cell in cells:
            assert all(line in drawn for line in cell)


@every_drawing
def test_the_figure_says_the_same_and_pyplot_does_not_know_it(name):
    from matplotlib._pylab_helpers import Gcf

    figure = ALL[name].figure
    said = "".join(t.get_text() for t in figure.axes[0].texts)
    assert said == "".join(
        t.plain for t in ALL[name]._scene.items if isinstance(t, Text)
    )
    assert ALL[name].figure is figure
    assert not Gcf.get_all_fig_managers()
    figure.savefig(io.BytesIO())


def test_page_and_file_draw_the_same():
    for drawing in ALL.values():
        inside = re.sub(r"^<div[^>]*>\n|</div>\n$", "", page(drawing))
        assert texts(inside) == texts(drawing.svg)


def test_mime_bundle():
    bundle = ALL["2-D"]._repr_mimebundle_()
    assert set(bundle) == {"text/html", "text/plain"}
    assert bundle["text/plain"] == str(ALL["2-D"])
    assert ALL["2-D"]._repr_mimebundle_(include=None, exclude=None) == bundle


# The SVG as markup.


@every_drawing
def test_screen_readers_get_a_name_and_a_sentence(name):
    root = ElementTree.fromstring(ALL[name].svg)
    ids = {el.get("id"): el for el in root.iter() if el.get("id")}
    assert root.get("role") == "img"
    label, words = (ids[key] for key in root.get("aria-labelledby").split())
    assert label.tag == f"{SVG}title"
    assert words.tag == f"{SVG}desc"
    assert label.text == ALL[name]._picture.title
    for fact in ALL[name]._picture.facts:
        assert fact[1:] in words.text


def test_the_sentence():
    root = ElementTree.fromstring(ALL["replicated"].svg)
    assert root.find(f"{SVG}desc").text == (
        "A float32 array of shape (6, 10). Mesh data=4 × model=2. Per device: (6, 5), "
        "120 B of 240 B. Replicated over data: 4 replicas of each shard. Dimension 0 "
        "is unsharded. Dimension 1 is split into 2 shards over model. [0:6, 0:5] is "
        "on devices 0, 2, 4, 6. [0:6, 5:10] is on devices 1, 3, 5, 7. Cells: device "
        "ids."
    )


@every_drawing
def test_same_input_same_bytes(name):
    again = dict(drawings())[name]
    assert again.svg == ALL[name].svg
    assert page(again) == page(ALL[name])
    assert str(again) == str(ALL[name])


def test_bytes_do_not_depend_on_the_process():
    code = (
        "import hashlib\n"
        "from spmd_helpers._drawing.draw import draw\n"
        "from spmd_helpers._shardings.sharding import ShardingInfo\n"
        "d = draw(ShardingInfo((6, 10), mesh_shape={'data': 4, 'model': 2},"
        " entries=(None, 'model'), device_ids=tuple(range(8))))\n"
        "print(hashlib.sha256(d.svg.encode()).hexdigest())\n"
    )
    run = [sys.executable, "-c", code]
    outputs = {
        subprocess.run(run, check=True, capture_output=True, timeout=60).stdout
        for _ in range(2)
    }
    assert len(outputs) == 1


def test_ids_are_a_drawing_s_own():
    owners = {}
    for name, drawing in ALL.items():
        ids = re.findall(r'id="([^"]+)"', drawing.svg)
        assert len(ids) == len(set(ids))
        for one in ids:
            assert owners.setdefault(one, name) == name
        assert set(re.findall(r"url\(#([^)]+)\)", drawing.svg)) <= set(ids)


def test_one_element_a_line():
    for line in ALL["tuple"].svg.splitlines():
        assert len(re.findall(r"<(?:rect|text)\b", line)) <= 1


def test_replication_is_hatched_and_said():
    many, one = ALL["replicated"].svg, ALL["2-D"].svg
    assert "<pattern" in many
    assert 'class="hatch"' in many
    assert ">4 replicas<" in many
    assert "<pattern" not in one
    assert 'class="hatch"' not in one


def test_a_page_s_own_switch_rules_and_a_file_follows_the_reader():
    assert "prefers-color-scheme" not in page(ALL["2-D"])
    assert "prefers-color-scheme" in ALL["2-D"].svg
    for where in ('html[data-theme="dark"]', 'body[data-jp-theme-light="false"]',
                  'html[theme="dark"]', ".vscode-dark"):  # fmt: skip
        assert f"{where} .spmd-drawing {{ --axis-0: {DARK[0]};" in page(ALL["2-D"])


@every_drawing
def test_wide_drawings_scroll_in_a_region_with_a_name(name):
    box = page(ALL[name]).splitlines()[0]
    width = float(re.search(r'width="([\d.]+)"', page(ALL[name]))[1])
    least = float(re.search(r"min-width: ([\d.]+)px", page(ALL[name]))[1])
    assert ('tabindex="0" role="group" aria-label="' in box) == (least > PHONE)
    assert least == pytest.approx((width - 2) * (1 if width - 2 > WIDE else 0.8), 0.01)
    assert ("max-width: none" in page(ALL[name])) == (width - 2 > WIDE)
    assert "overflow-x: auto" in box


def test_hues_belong_to_axes_in_mesh_order():
    hues = {i.plain.split()[0]: i for i in ALL["rank 5"]._scene.items
            if isinstance(i, Text) and i.kind == "strip"}  # fmt: skip
    assert set(hues) == set("abcde")
    strips = [i for i in ALL["rank 5"]._scene.items if isinstance(i, Rect)]
    assert {s.hue for s in strips if s.kind == "strip"} == {0, 1, 2, 3, None}
    assert {s.hue for s in strips if s.kind == "cell"} == {None}


def test_a_strip_s_tint_is_its_place_along_its_axis():
    for drawing in ALL.values():
        picture = drawing._picture
        strips = [
            s for edge in (picture.rows, picture.columns) for s in sum(edge.levels, ())
        ]
        strips += [s for panel in picture.panels if panel for s in panel.strips]
        for strip in strips:
            index = int(strip.text.split()[-1])
            assert (strip.tint == 0) == (index == 0)
            assert 0 <= strip.tint <= 1
    last = ALL["2-D"]._picture.rows.levels[0][-1]
    assert last.text == "data 3"
    assert last.tint == 1


def colors(drawing) -> dict[str, int | None]:
    """The words of each cell → the number of its shard."""
    return {
        item.plain: item.shard
        for item in drawing._scene.items
        if isinstance(item, Text) and item.kind in ("cell", "fact") and item.room
    }


def test_a_block_has_its_color_in_every_drawing():
    mesh = {"data": 4, "model": 2}
    for spec in (P("data"), P(("model", "data")), P(("data", "model")), P("model")):
        drawn = draw((24, 8), spec, mesh=mesh)
        cells = [i for i in drawn._scene.items if getattr(i, "kind", "") == "cell"]
        boxes = [i for i in cells if isinstance(i, Rect)]
        by_place = sorted(boxes, key=lambda box: box.y)
        assert [box.shard for box in by_place] == [*range(len(boxes))]
        assert {item.shard for item in cells if isinstance(item, Text)} == {
            *range(len(boxes))
        }
    assert colors(draw((24, 8), P("data", "model"), mesh=mesh)) == {
        str(device): device for device in range(8)
    }
    panels = draw((4, 24, 8), P("model", "data"), mesh=mesh)  # device 2 i + j: (j, i)
    assert colors(panels) == {
        str(2 * i + j): 4 * j + i for i in range(4) for j in range(2)
    }
    assert colors(draw((24, 8), P(), mesh=mesh)) == {"0–7": 0}


def test_there_are_colors_for_eight_blocks_and_devices_have_none():
    for size in (8, 9):
        boxes = [
            item
            for item in draw((size,), P("x"), mesh={"x": size})._scene.items
            if isinstance(item, Rect) and item.kind == "cell"
        ]
        expected = [*range(8)] if size == 8 else [None] * 9
        assert [box.shard for box in boxes] == expected
    assert {*colors(draw_mesh({"x": 8})).values()} == {None}


def test_cells_and_their_words_are_drawn_in_the_shard_s_colors():
    text = page(draw((8,), P("x"), mesh={"x": 8}))
    for device, (fill, ink) in enumerate(SHARDS):
        assert re.search(rf'<rect class="cell"[^>]*style="fill: {fill}"/>', text)
        assert re.search(rf'style="fill: {ink}"[^>]*>(device )?{device}<', text)


def test_a_label_on_stripes_can_be_read():
    for shard, (fill, ink) in enumerate(SHARDS):
        color, opacity = HATCHES[hatch_of(shard)]
        assert contrast(channels(ink), over(color, opacity, fill)) >= 4.5
        assert contrast(over(color, opacity, fill), channels(fill)) >= 1.2


# The shards of another sharding, tables, and the map of work.


@pytest.mark.parametrize(
    ("spec", "shards"),
    [
        (P(), P("data")),
        (P(), P("data", "model")),
        (P(None, "model"), P("data", "model")),
        (P("data"), P(("data", "model"))),
        (P("data", "model"), P("data", "model")),
    ],
)
def test_shards_drawn_are_where_jax_has_them(mesh, spec, shards):
    full, part = NamedSharding(mesh, spec), NamedSharding(mesh, shards)
    drawn = draw((24, 8), full, shards=part)
    places = part.devices_indices_map((24, 8))
    has = full.devices_indices_map((24, 8))

    def within(part, outer):
        pairs = zip(part, outer, (24, 8), strict=True)
        return all({*range(n)[a]} <= {*range(n)[b]} for a, b, n in pairs)

    placed = {
        str(place): sorted(d.id for d in has if within(place, has[d]))
        for place in places.values()
    }
    (panel,) = drawn._picture.panels
    cells = [line[0] for row in panel.cells for line in row]
    by_shard = [n for row in panel.shards for n in row]
    assert by_shard == [*range(len(placed))]
    assert sorted(cells) == sorted(device_list(ids) for ids in placed.values())
    assert all(line[1:] == drawn._picture.panels[0].cells[0][0][1:]
               for row in panel.cells for line in row)  # fmt: skip
    assert ("drawn: the shards of" in str(drawn)) == (len(placed) >= 1)


def test_shards_that_are_not_within():
    with pytest.raises(errors.NotUnderstood, match=r"not within the \(4, 1\) of P"):
        draw((24, 8), P("data"), mesh={"data": 4, "model": 2}, shards=P(None, "model"))


def test_equal_cells_have_one_color():
    few = draw_cells({"a": [1, 2, None], "b": [2, 1, 3]}, title="t")
    (panel,) = few._picture.panels
    assert panel.shards == ((0, 1, None), (1, 0, 2))
    assert panel.cells == ((("1",), ("2",), ("–",)), (("2",), ("1",), ("3",)))
    again = draw_cells({"a": [3, 1]}, title="t", values=[1, 2, 3])
    assert again._picture.panels[0].shards == ((2, 0),)
    more = draw_cells({"a": range(8)}, title="t", values=[28])
    assert more._picture.panels[0].shards == ((None,) * 8,)
    many = draw_cells(
        {"own": range(9), "sum": [28] * 9, "mean": [3.5] * 9}, title="t", notes="n."
    )
    (panel,) = many._picture.panels
    assert panel.shards == ((None,) * 9, (0,) * 9, (1,) * 9)
    assert str(many).endswith("\n\nn.")
    check_geometry(few._scene)
    check_geometry(many._scene)
    named = draw_cells({"a": [1, None]}, ["left", "right"], title="the title")
    assert named._picture.sentence == "a: left 1, right nothing."
    assert "<title" in page(named)
    assert "the title" in page(named)


@pytest.mark.parametrize(
    ("rows", "columns", "words"),
    [
        ({}, (), "rows={}; give a dict from the name of a row"),
        ([1], (), r"rows=\[1\]; give a dict"),
        ({1: [2]}, (), r"rows={1: \[2\]}: its names are not texts"),
        ({"a": [1]}, "x", "columns='x': its names are not texts"),
        ({"a": [1], "b": [1, 2]}, (), "rows have 1 and 2 cells"),
        ({"a": [1]}, ["x", "y"], "rows have 1 cells, and there are 2 columns"),
        ({"a": []}, (), "has 1 × 0 cells"),
        ({"a": range(11)}, (), "has 1 × 11 cells; draw at most 16 rows of 1 to 10"),
        ({str(k): [k] for k in range(17)}, (), "has 17 × 1 cells"),
    ],
)
def test_what_is_no_table(rows, columns, words):
    with pytest.raises(errors.NotUnderstood, match=words):
        draw_cells(rows, columns, title="t")


@pytest.mark.parametrize("sizes", [(4, 2), (8, 8), (2, 2, 2), (6,)])
def test_the_map_of_work(sizes):
    shape = dict(zip("abc", sizes, strict=False))
    for pieces in (range(math.prod(sizes)), [k % 2 for k in range(math.prod(sizes))]):
        drawn = draw_work("f", read_mesh(shape), [*pieces])
        picture = drawn._picture
        cells = [line[0] for p in picture.panels for row in p.cells for line in row]
        assert cells == [str(piece) for piece in pieces]
        colored = max(pieces) < len(SHARDS)
        hues = [n for panel in picture.panels for row in panel.shards for n in row]
        assert hues == ([*pieces] if colored else [None] * len(hues))
        count = max(pieces) + 1
        assert f"{count} different pieces on {len(pieces)} devices" in str(drawn)
        check_geometry(drawn._scene)
    six = draw_work("f", read_mesh({"a": 6}), [0, 1] * 3)
    assert "3 devices compute each" in str(six)


# Geometry.


def check_geometry(placed):
    boxes = [i for i in placed.items if isinstance(i, Rect)]
    cells = [b for b in boxes if b.kind == "cell"]
    assert 0 < len(cells) <= 150
    assert all(c.width >= 44 and c.height >= 44 for c in cells)
    for box in boxes:
        assert box.x >= 0
        assert box.x + box.width <= placed.width + 0.1
        assert box.y >= 0
        assert box.y + box.height <= placed.height + 0.1
    for text in (i for i in placed.items if isinstance(i, Text)):
        width = text_width(text.plain, text.kind)
        if text.room is not None:
            assert width <= text.room + 0.1, f"{text.plain} leaves its box"
        share = {"start": 0, "middle": 0.5, "end": 1}[text.anchor]
        assert text.x - share * width >= -0.1, text.plain
        assert text.x + (1 - share) * width <= placed.width + 0.1, text.plain
        assert 0 < text.y <= placed.height
    for i, one in enumerate(boxes):
        for two in boxes[i + 1 :]:
            apart = (
                one.x + one.width <= two.x + 0.1
                or two.x + two.width <= one.x + 0.1
                or one.y + one.height <= two.y + 0.1
                or two.y + two.height <= one.y + 0.1
            )
            assert apart, (one, two)


@every_drawing
def test_no_label_leaves_its_box_and_no_box_the_picture(name):
    check_geometry(ALL[name]._scene)


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=4),
    rank=st.integers(0, 5),
    seed=st.randoms(use_true_random=False),
    names=st.sampled_from([("data", "model", "pod", "x"), ("W" * 30, "i", "Q_q", "b")]),
)
def test_any_sharding_fits(sizes, rank, seed, names):
    mesh = dict(zip(names, sizes, strict=False))
    while math.prod(mesh.values()) > 2000:
        mesh[max(mesh, key=mesh.get)] //= 2
    entries = [[] for _ in range(rank)]
    for axis in seed.sample(list(mesh), len(mesh)):
        if rank and seed.random() < 0.8:
            seed.choice(entries).append(axis)
    shape = tuple(
        math.prod(mesh[a] for a in entry) * seed.choice([1, 3, 999])
        for entry in entries
    )
    check_geometry(scene(sharding_picture(info(shape, map(tuple, entries), mesh))))


# Color, by arithmetic (WCAG 2: relative luminance and contrast).


def channels(color):
    return [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]


def over(color, opacity, paper):
    pairs = zip(channels(color), channels(paper), strict=True)
    return [opacity * c + (1 - opacity) * p for c, p in pairs]


def contrast(one, two):
    def light(rgb):
        parts = [
            c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in rgb
        ]
        return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), parts, strict=True))

    low, high = sorted((light(one), light(two)))
    return (high + 0.05) / (low + 0.05)


def test_contrast_knows_its_own_ends():
    assert contrast(channels("#000000"), channels("#ffffff")) == pytest.approx(21)
    assert contrast(channels("#767676"), channels("#ffffff")) == pytest.approx(
        4.54, 0.01
    )


PAGES = [  # hues, paper, the page's text: a file, then the site, in both themes
    (LIGHT, PAPER[0], INK[0]),
    (LIGHT, "#ffffff", "#222832"),
    (DARK, PAPER[1], INK[1]),
    (DARK, "#14181e", "#ced6dd"),
    (DARK, "#111111", "#ced6dd"),
]


@pytest.mark.parametrize(("hues", "paper", "ink"), PAGES)
def test_contrast_of_text(hues, paper, ink):
    for hue in hues:
        assert contrast(channels(hue), channels(paper)) >= 4.5, "axis name on the page"
        for tint in (0, 0.25, 0.5, 0.75, 1):
            strip = over(hue, tint_opacity(tint), paper)
            assert contrast(channels(ink), strip) >= 4.5, "words on a strip"
    assert contrast(channels(ink), over(ink, 0.16, paper)) >= 4.5, "words on the hatch"


# What it takes.


def test_data_is_never_touched(mesh):
    drawing = draw(guarded(mesh))
    assert drawing.svg
    assert page(drawing)
    assert drawing.figure
    assert str(drawing)


def test_a_terabyte(mesh):
    x = jax.ShapeDtypeStruct(
        (2**20, 2**19), jnp.bfloat16, sharding=NamedSharding(mesh, P("data", "model"))
    )
    assert "per device: (262144, 262144), 128 GiB of 1 TiB" in str(draw(x))


def test_a_shape_with_a_sharding(mesh):
    one = draw((6, 10), NamedSharding(mesh, P(None, "model")), dtype=jnp.bfloat16)
    two = draw((6, 10), P(None, "model"), mesh=mesh, dtype="bfloat16")
    assert str(one) == str(two)
    assert one.svg == two.svg


def test_meshes_of_all_kinds_agree(mesh):
    abstract = draw_mesh(AbstractMesh((4, 2), ("data", "model")))
    assert str(abstract) == str(draw_mesh(SIZES))
    assert "8 × cpu" in str(draw_mesh(mesh))


@pytest.mark.parametrize("call", [draw, draw_mesh])
def test_what_it_refuses(call):
    with pytest.raises(errors.NotUnderstood) as caught:
        call("data")
    assert (
        str(caught.value)
        == {
            draw: "x='data' is not an array; give a jax.Array, a jax.ShapeDtypeStruct "
            "with a sharding, one Flax variable, or a shape and a sharding.",
            draw_mesh: "mesh='data' is not a mesh; give a jax.sharding.Mesh, an "
            "AbstractMesh, or a dict from axis name to number of devices, such as "
            "{'data': 4, 'model': 2}.",
        }[call]
    )


def test_a_wrong_spec_is_refused_as_sharding_does():
    with pytest.raises(
        errors.NotDivisible, match="6 elements, which do not divide into"
    ):
        draw((6, 10), P("data"), mesh=SIZES)
