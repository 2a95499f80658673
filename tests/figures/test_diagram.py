"""What every diagram keeps to: it is well-formed, in its view, in the tested colors."""

import re
from xml.etree import ElementTree

import pytest
from jax.sharding import PartitionSpec as P

import spmd_helpers as spmd
from spmd_helpers._core.palette import SHARDS
from spmd_helpers._figures import diagram

from ..player.collectives import columns, written

MESH = {"data": 2, "model": 4}
PRODUCT = spmd.matmul((8, 6, 4), ("data",), (None, "model"), mesh=MESH)
SHOWN = {
    "schedule": spmd.PipelineSchedule(3, 6, "interleaved", chunks=2),
    "long schedule": spmd.PipelineSchedule(8, 16),
    "routing": spmd.TokenRouting([[1, 0, 1, 1], [0, 1, 0, 0]], 2),
    "groups": spmd.draw_groups(
        written("all-reduce", columns(4, 2), 24, MESH),
        mesh=MESH, devices_per_host=4, absent=[1],
    ),
    "product": spmd.draw_product(PRODUCT),
    "reads": spmd.RestoreReads(
        spmd.sharding((8, 6), P("data", "model"), mesh={"data": 4, "model": 2}),
        spmd.sharding((8, 6), P("model"), mesh={"data": 4, "model": 2}),
    ),
    "loop": spmd.LoopTimeline(6, save_every=2),
}  # fmt: skip


def html(shown) -> str:
    return shown._repr_mimebundle_()["text/html"]


def svg_of(shown) -> ElementTree.Element:
    (text,) = re.findall(r"<svg.*?</svg>", html(shown), re.S)
    return ElementTree.fromstring(text)


@pytest.mark.parametrize("name", SHOWN)
def test_all_is_inside_the_view(name):
    root = svg_of(SHOWN[name])
    left, top, width, height = map(float, root.get("viewBox").split())
    for box in root.iter("{http://www.w3.org/2000/svg}rect"):
        x, y, wide, high = (float(box.get(k)) for k in ("x", "y", "width", "height"))
        assert left <= x
        assert x + wide <= left + width
        assert top <= y
        assert y + high <= top + height
    for words in root.iter("{http://www.w3.org/2000/svg}text"):
        x, y = float(words.get("x")), float(words.get("y"))
        assert left <= x <= left + width
        assert top <= y <= top + height
        if words.get("text-anchor") is None:  # 6 px a letter, at the least
            assert x + 5 * len(words.text) <= left + width


@pytest.mark.parametrize("name", SHOWN)
def test_it_has_words_and_tested_colors(name):
    shown = SHOWN[name]
    root = svg_of(shown)
    title, desc = (root.find(f"{{http://www.w3.org/2000/svg}}{k}") for k in _WORDS)
    assert title.text
    assert desc.text
    names = {*title.get("id").split(), *desc.get("id").split()}
    assert {*root.get("aria-labelledby").split()} == names
    assert title.text.splitlines()[0] == str(shown).splitlines()[0]
    drawn = re.sub(r"<style>.*?</style>", "", html(shown), flags=re.S)
    known = {color for pair in SHARDS for color in pair}
    assert {*re.findall(r"#\w{6}", drawn)} <= known
    for fill, ink in re.findall(
        r'class="edge"[^>]*fill: (#\w+)"/>\n<text[^>]*fill: (#\w+)"', drawn
    ):
        assert (fill, ink) in SHARDS


_WORDS = ("title", "desc")


@pytest.mark.parametrize("name", SHOWN)
def test_it_is_a_frame_of_a_player(name):
    shown = SHOWN[name]
    frames = [(shown, "One", "The first."), (shown, "Two", "The same.")]
    text = html(spmd.FramePlayer(frames, title="Two frames"))
    assert text.count('class="spmd-play-frame"') == 2
    assert str(shown) in str(spmd.FramePlayer(frames, title="Two frames"))


def test_a_file_of_its_own_has_a_ground_and_both_themes():
    svg = spmd.PipelineSchedule(2, 2)._diagram(3).svg
    ElementTree.fromstring(svg)
    assert "prefers-color-scheme: dark" in svg
    assert svg.count('class="ground"') == 1


def test_hatching_stays_inside_its_box():
    box = diagram.Box(10, 20, 37, 23, "part", hue=0)
    numbers = re.findall(r"[ML](\S+) ([\d.]+)", diagram._hatching(box))
    assert len(numbers) > 10
    for x, y in numbers:
        assert 10 <= float(x) <= 47
        assert 20 <= float(y) <= 43
