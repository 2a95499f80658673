"""The picture beside a link to a page: drawn, named, light, the same every time."""

import re
import subprocess
import sys
from html import unescape
from pathlib import Path

import jax
import pytest
from PIL import Image

import spmd_helpers as spmd

from .site_reading import PAGES, ROOT, SITE

sys.path.insert(0, str(ROOT / "book" / "_ext"))

from spmd_cards import (
    BOX,
    FOLDER,
    HEIGHT,
    LEFT,
    TITLE_LINES,
    TITLE_WIDTH,
    WIDTH,
    card,
    first_drawing,
    lines_of,
    mesh_picture,
    width_of,
    write_card,
)

BYTES = 60 * 1024
CONF = """
import sys
sys.path.insert(0, {extensions!r})
extensions = ["spmd_cards"]
project = html_title = "A book, and more"
html_baseurl = {address!r}
"""
PAGE = """\
:orphan:

Title {name} & more
================================

.. raw:: html

   {body}
"""


def build(folder: Path, address: str) -> dict[str, str]:
    """Pages of a small book, as text by name; one page has a drawing."""
    extensions = str(ROOT / "book" / "_ext")
    (folder / "notebooks").mkdir(parents=True)
    conf = CONF.format(extensions=extensions, address=address)
    (folder / "conf.py").write_text(conf, "utf8")
    drawing = drawn((6, 12), ("data", "model"), {"data": 2, "model": 4})
    for name, body in (("index", "<p>x</p>"), ("notebooks/01_a", drawing)):
        text = PAGE.format(name=name, body=body.replace("\n", " "))
        (folder / f"{name}.rst").write_text(text, "utf8")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "-b", "html"]
    done = subprocess.run(
        [*command, str(folder), str(folder / "out")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    names = ("index", "notebooks/01_a")
    return {n: (folder / "out" / f"{n}.html").read_text("utf8") for n in names}


def drawn(shape, spec, mesh) -> str:
    drawing = spmd.draw(shape, jax.sharding.PartitionSpec(*spec), mesh=mesh)
    return drawing._repr_mimebundle_()["text/html"]


def facts(text: str) -> dict[str, str]:
    matches = re.findall(r'<meta (?:name|property)="([\w:]+)" content="([^"]*)">', text)
    return {name: unescape(said) for name, said in matches}


def test_pages_name_their_cards_and_the_cards_are_there(tmp_path):
    built = build(tmp_path, "https://example.org/book")
    said = {name: facts(text) for name, text in built.items()}
    for name, page in said.items():
        file = f"{FOLDER}/{name.replace('/', '-')}.png"
        assert page["og:image"] == f"https://example.org/book/{file}"
        assert page["twitter:card"] == "summary_large_image"
        assert (page["og:image:width"], page["og:image:height"]) == ("1200", "630")
        path = tmp_path / "out" / file
        with Image.open(path) as picture:
            assert picture.size == (WIDTH, HEIGHT)
        assert path.stat().st_size <= BYTES
    assert said["index"]["og:image:alt"] == (
        "The title, Title index & more, and a mesh of 2 × 4 devices"
    )
    assert said["notebooks/01_a"]["og:image:alt"] == (
        "The title, Title notebooks/01_a & more, and "
        "a drawing of float32[6, 12] as P('data', 'model')"
    )


def test_without_an_address_there_are_none(tmp_path):
    for text in build(tmp_path, "").values():
        assert "og:image" not in text
        assert "twitter:card" not in text
    assert not (tmp_path / "out" / FOLDER).exists()


def test_a_card_is_the_same_every_time_and_made_once(tmp_path):
    one, other = tmp_path / "one.png", tmp_path / "other.png"
    for path in (one, other):
        write_card(path, "A title", "Chapter 3 of 16", "A book", mesh_picture())
    assert one.read_bytes() == other.read_bytes()
    before = one.stat().st_mtime_ns
    write_card(one, "A title", "Chapter 3 of 16", "A book", mesh_picture())
    assert one.stat().st_mtime_ns == before
    write_card(one, "A title", "Chapter 4 of 16", "A book", mesh_picture())
    assert one.read_bytes() != other.read_bytes()


@pytest.mark.parametrize("name", [name for name in PAGES if "/" in name])
def test_every_title_fits(name):
    title = facts((SITE / name).read_text("utf8"))["og:title"]
    lines, size = lines_of(title)
    assert " ".join(lines) == title
    assert len(lines) <= TITLE_LINES
    assert max(width_of(line, size) for line in lines) <= TITLE_WIDTH
    assert BOX[0] > LEFT + TITLE_WIDTH


def test_a_title_that_would_not_fit_is_smaller_and_then_cut():
    _, size = lines_of("Short")
    lines, smaller = lines_of("A very long title of very many words " * 6)
    assert smaller < size
    assert len(lines) == TITLE_LINES


@pytest.mark.parametrize(
    ("shape", "spec", "mesh", "cells"),
    [
        ((6, 12), ("data", "model"), {"data": 2, "model": 4}, 8),
        ((8,), ("data",), {"data": 8}, 8),
        ((4, 4), (), {"data": 2, "model": 2}, 1),
        ((8, 8, 8), ("a", "b", "c"), {"a": 2, "b": 2, "c": 2}, 8),
    ],
)
def test_a_drawing_keeps_its_blocks_and_its_colors(shape, spec, mesh, cells):
    picture = first_drawing(f"<p>before</p>{drawn(shape, spec, mesh)}<p>after</p>")
    assert sum(block.axis is None for block in picture.blocks) == cells
    axes = {block.axis for block in picture.blocks} - {None}
    assert axes == set(range(len(spec)))
    shown = card("A title", "", "A book", picture)
    for x, y in ((0, 0), (LEFT, 10), (WIDTH - 1, HEIGHT - 1)):
        assert shown.getpixel((x, y)) == shown.getpixel((0, 0))
    inside = shown.crop((BOX[0] - 8, BOX[1] - 8, BOX[2] + 8, BOX[3] + 8))
    beside = shown.crop((BOX[2] + 8, 0, WIDTH, HEIGHT))
    assert len(inside.getcolors()) > 3
    assert len(beside.getcolors()) == 1


def test_a_drawing_in_a_player_is_passed_over():
    mesh = {"data": 4}
    shown = spmd.draw((4, 6), jax.sharding.PartitionSpec("data"), mesh=mesh)
    frames = [(shown, "First", "One."), (shown, "Second", "Two.")]
    player = spmd.FramePlayer(frames, title="t")._repr_mimebundle_()["text/html"]
    assert first_drawing(player) is None
    after = drawn((3, 8), (None, "data"), mesh)
    assert first_drawing(after) is not None
    assert first_drawing(player + after) == first_drawing(after)


def test_a_page_without_a_drawing_has_none():
    assert first_drawing("<p>x</p><svg class='other'></svg>") is None
