"""A player of any figures: each frame has its own, and what they share once."""

import itertools
import re
from html import unescape
from xml.etree import ElementTree

import pytest
from jax.sharding import PartitionSpec as P

import spmd_helpers as spmd
from spmd_helpers._player import figures

from .test_player import Read

MESH = {"data": 2, "model": 4}
SPECS = [P(), P("data"), P("data", "model"), P(None, "model"), P(("data", "model"))]
SQUARE = (
    '<svg viewBox="0 0 40 30"><title>A square</title><desc>It is at {}.</desc>'
    '<defs><pattern id="p{}"><path d="M0 0"/></pattern></defs>'
    '<rect width="40" height="30"/><path d="M1 1h3"/>'
    '<rect x="{}" fill="url(#p{})" data-to="10 0"/><path data-to="10 0" d="M{} 0"/>'
    '<circle r="{}"/><circle cx="{}"/><text id="gone">of 30</text></svg>'
)


def squares(*places):
    return [
        (SQUARE.format(*[x] * 7), f"Step {k}", f"It is at {x} now.")
        for k, x in enumerate(places)
    ]


def drawings():
    return [spmd.draw((8, 16), spec, mesh=MESH) for spec in SPECS]


def player(**more):
    frames = [(d, f"Way {k}", f"This is way {k}.") for k, d in enumerate(drawings())]
    return spmd.FramePlayer(frames, title="Five ways", **more)


def html(shown) -> str:
    return shown._repr_mimebundle_()["text/html"]


def elements(text: str) -> list[tuple]:
    """The elements of an SVG in order, with attributes and text."""
    root = ElementTree.fromstring(text.replace("&nbsp;", " "))
    return [one for child in root for one in _flat(child, {})]


def _flat(element, defs):
    tag = element.tag.rpartition("}")[2]
    if tag == "use" and element.get("href", "")[1:] in defs:
        group = defs[element.get("href")[1:]]
        return [one for child in group for one in _flat(child, defs)]
    if tag in ("title", "desc", "style", "pattern", "defs"):
        return []
    attributes = {
        k.rpartition("}")[2]: re.sub(r"url\(#[\w-]+\)", "url(#)", v)
        for k, v in element.attrib.items()
        if k != "id"
    }
    inner = [one for child in element for one in _flat(child, defs)]
    return [(tag, tuple(sorted(attributes.items())), element.text or ""), *inner]


def frames_of(page: str) -> list[list[tuple]]:
    """The elements of each frame as a browser draws them."""
    defs_text = re.search(r'<svg class="spmd-play-defs".*?</svg>', page, re.S)[0]
    groups = {
        one.get("id"): one
        for one in ElementTree.fromstring(defs_text).iter()
        if one.tag == "g"
    }
    listed = page.partition('<ol class="spmd-play-frames">')[2].partition("</ol>")[0]
    return [
        [one for child in ElementTree.fromstring(svg) for one in _flat(child, groups)]
        for svg in figures.svgs(listed)
    ]


def test_each_frame_draws_what_its_figure_draws():
    shown = frames_of(html(player()))
    assert len(shown) == len(SPECS)
    for drawn, drawing in zip(shown, drawings(), strict=True):
        assert drawn == elements(
            html(drawing).partition(">\n")[2].rpartition("</div>")[0]
        )


def test_what_frames_share_is_stored_once():
    many = [(drawings()[2], f"Step {k}", f"It is {k}.") for k in range(20)]
    page = html(spmd.FramePlayer(many, title="The same"))
    one = html(drawings()[2])
    assert page.count(">data 0<") == one.count(">data 0<") == 1
    assert page.count(".strip {") == one.count(".strip {") > 0
    two = html(spmd.FramePlayer(many[:2], title="The same"))
    assert (len(page) - len(two)) / 18 < len(one) / 4


def test_ids_are_unique_and_all_that_is_used_is_there():
    for shown in (player(), spmd.FramePlayer(squares(0, 10, 10), title="Squares")):
        read = Read(html(shown))
        assert len({*read.ids}) == len(read.ids)
        used = re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', html(shown))
        assert {a or b for a, b in used} <= {*read.ids}
    assert not {*Read(html(player())).ids} & {
        *Read(html(spmd.FramePlayer(squares(0, 10), title="Squares"))).ids
    }
    assert html(player()) == html(player())


def test_text_and_html_say_the_same():
    shown = player(notes=["One note.", "Two notes."])
    text, read = str(shown), Read(html(shown))
    assert text.startswith("Five ways\n\nWay 0. This is way 0.\n\n")
    assert text.endswith("One note. Two notes.")
    assert repr(shown) == text
    for k, (words, frame, drawing) in enumerate(
        zip(read.words, read.frames, drawings(), strict=True)
    ):
        assert words == f"Way {k}. This is way {k}."
        (svg,) = [a for tag, a in frame if tag == "svg"]
        assert svg["role"] == "img"
        assert svg["aria-label"].startswith(drawing._picture.title)
        assert drawing._picture.sentence.rstrip(".") in svg["aria-label"]
        assert str(drawing) in text


def test_every_frame_shows_the_same_part_of_the_plane():
    views = re.findall(r'viewBox="([^"]+)" role="img"', html(player()))
    assert len(views) == len(SPECS)
    assert len({*views}) == 1
    x, y, width, height = map(float, views[0].split())
    for drawing in drawings():
        assert x + width >= drawing._scene.width
        assert y + height >= drawing._scene.height


def test_what_moves_stays_in_its_frame():
    page = html(spmd.FramePlayer(squares(0, 10, 20), title="Squares"))
    assert [page.count(f' x="{x}"') for x in (0, 10, 20)] == [1, 1, 1]
    assert page.count('data-to="10 0"') == 6
    assert page.count('id="gone"') == 0
    assert page.count("M1 1h3") == 1


def test_words_of_ones_own():
    bare = '<svg width="40" height="30"><rect width="9"/></svg>'
    frames = [(bare, f"Step {k}", "It is.", f"a box\nand {k}") for k in range(2)]
    shown = spmd.FramePlayer(frames, title="Boxes")
    assert "Step 0. It is.\n\na box\nand 0\n" in str(shown)
    assert 'aria-label="a box and 1"' in html(shown)
    assert 'viewBox="0 0 40 30"' in html(shown)
    labelled = bare.replace("<svg", '<svg aria-label="a box"')
    said = spmd.FramePlayer([(labelled, "A", "B.")] * 2, title="Boxes")
    assert "A. B.\n\na box." in str(said)


def test_what_a_page_may_not_read_is_escaped():
    frames = [(spmd.draw((4,), P(), mesh={"x": 2}), "a < b", "<b> & c")] * 2
    page = html(spmd.FramePlayer(frames, title="<i>"))
    assert "<strong>a &lt; b.</strong> &lt;b&gt; &amp; c" in page
    assert "<strong>&lt;i&gt;</strong>" in page
    assert unescape(page).count("<b> & c") == 2


@pytest.mark.parametrize(
    ("frames", "words"),
    [
        ("abc", "frames='abc' is not a list; give a list of tuples"),
        (3, "frames=3 is not a list"),
        ([], "frames has 0; give two or more"),
        (squares(0), "frames has 1; give two or more"),
        ([*squares(0), 4], "frames[1] is int; give a tuple (figure,"),
        ([*squares(0), squares(0)[0][:2]], "frames[1] is tuple; give a tuple"),
        ([*squares(0), (SQUARE, "", "x")], "frames[1]'s heading='' is no text"),
        ([*squares(0), ("<p>", "a", "b")], "frames[1]'s figure is a text with 0 SVGs"),
        ([*squares(0), (4, "a", "b")], "frames[1]'s figure is int with 0 SVGs"),
        ([*squares(0), ("<svg></svg>" * 2, "a", "b")], "is a text with 2 SVGs"),
        ([*squares(0), ("<svg><g></svg>", "a", "b")], "figure is not well-formed"),
        ([*squares(0), ("<svg></svg>", "a", "b")], "has neither a viewBox nor a width"),
        (
            [*squares(0), ('<svg viewBox="0 0 1 1"></svg>', "a", "b")],
            "frames[1]'s figure has no title and no description",
        ),
    ],
)  # fmt: skip
def test_what_is_no_frame(frames, words):
    with pytest.raises(spmd.NotUnderstood, match=re.escape(words)) as raised:
        spmd.FramePlayer(frames, title="Squares")
    assert len(raised.traceback) == 2


@pytest.mark.parametrize(
    ("sliders", "words"),
    [
        ({}, "sliders={} is no dict of values; give one such as"),
        ([1, 2], "sliders=[1, 2] is no dict of values"),
        ({"x": 3}, "sliders['x']=3 is not a list; give a list of values."),
        ({"x": (3,)}, "sliders['x'] has 1 values; give two or more."),
        ({"x": (3, 4, 5)}, "sliders has 3 combinations of values for 2 frames"),
        ({"": (3, 4)}, "a slider's name='' is no text"),
    ],
)
def test_what_is_no_slider(sliders, words):
    with pytest.raises(spmd.NotUnderstood, match=re.escape(words)) as raised:
        spmd.FramePlayer(squares(0, 1), title="Squares", sliders=sliders)
    assert len(raised.traceback) == 2


def test_what_is_no_title_or_note():
    with pytest.raises(spmd.NotUnderstood, match="title=None is no text"):
        spmd.FramePlayer(squares(0, 1), title=None)
    with pytest.raises(spmd.NotUnderstood, match="notes=3 is not a list; give a list"):
        spmd.FramePlayer(squares(0, 1), title="Squares", notes=3)


MUTANTS = [
    ("_player.figures:_owners", "() if $moves else (*$o.get($i, ()), $k)",
     "(*$o.get($i, ()), $k)"),
    ("_player.figures:shared", "$c > 1 and len($r) >= _LEAST and $owners[$r[0]]",
     "$c > 1"),
    ("_player.figures:_runs", "$o.__getitem__", "bool"),
    ("_player.figures:common_view", "max($f.view[$i] + $f.view[$i + 2] for $f in $fs)",
     "max($f.view[$i] for $f in $fs)"),
    ("_player.figures:_defs", "del $element.attrib['id']", "pass"),
    ("_player.figures:shared", "$count > 1", "$count >= 1"),
]  # fmt: skip


def right(copy) -> bool:
    read = [copy.figure(svg) for svg, _, _ in squares(0, 10, 20, 20)]
    defs, items = copy.shared(read, "n")
    view = copy.common_view(read)
    return (
        "\n".join(defs).count("M1 1h3") == 1
        and (view.width, view.height) == (40, 30)
        and [len(of_one) for of_one in items] == [6, 6, 5, 5]
        and all('data-to="10 0"' in "".join(of_one[1:3]) for of_one in items)
        and "gone" not in "".join(itertools.chain(defs, *items))
        and "data-to" not in "".join(defs)
    )


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_broken_reader_of_figures_is_noticed(broken_package, mutant):
    (copy,) = broken_package(mutant, "_player.figures")
    assert not right(copy)


def test_an_unbroken_reader_is_right():
    assert right(figures)
