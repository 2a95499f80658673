"""The player: its cells are those of the schedule, in text and in HTML."""

import itertools
import re
from dataclasses import replace
from html.parser import HTMLParser

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import spmd_helpers as spmd
from spmd_helpers._core.palette import SHARDS
from spmd_helpers._player import schedule
from spmd_helpers._player.picture import BOX_WIDTH, DRAWN, WIDTH, picture
from spmd_helpers._player.player import CollectivePlayer
from tests.properties import options

from .collectives import KINDS, columns, rows, written
from .test_schedule import collectives

MESH = {"data": 4, "model": 2}
BY_DATA = columns(2, 4)


class Read(HTMLParser):
    """What a browser gets: elements with their attributes, and texts."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict]] = []
        self.frames: list[list[tuple[str, dict]]] = []
        self.words: list[str] = []
        self._inside: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.elements.append((tag, attributes))
        if attributes.get("class") == "spmd-play-frame":
            self.frames.append([])
            self.words.append("")
        elif self.frames:
            self.frames[-1].append((tag, attributes))
        self._inside.append(tag)

    def handle_endtag(self, tag):
        while self._inside and self._inside.pop() != tag:
            pass

    def handle_data(self, data):
        if self.words and "p" in self._inside:
            self.words[-1] += data

    @property
    def ids(self) -> list[str]:
        return [a["id"] for _, a in self.elements if "id" in a]


def html(player) -> str:
    return player._repr_mimebundle_()["text/html"]


def sample(kind: str):
    if kind == "collective-permute":
        return written(kind, ((0, 2), (2, 4), (5, 5)), 60, MESH)
    return written(kind, BY_DATA, 60, MESH)


@options(40)
@given(collectives(most=16))
def test_a_cell_for_each_shard_that_is_drawn(collective):
    shown = picture(collective, {})
    drawn = {box.device: box for panel in shown.panels for box in panel.boxes}
    permutes = collective.kind == "collective-permute"
    frames = list(schedule.frames(collective))
    by_words = {(s.heading, s.sentence): s for s in shown.steps}
    assert len(by_words) == len(shown.steps) <= len(frames)
    is_drawn_in_full = len(frames) == len(shown.steps)
    looks: dict = {}
    for step, frame in zip(shown.steps, frames, strict=False):
        if not is_drawn_in_full:
            break
        cells = {(cell.x, cell.y): cell for cell in step.cells}
        assert len(cells) == len(step.cells)
        for (device, slot), block in frame.contents.items():
            if device not in drawn or slot not in drawn[device].slots:
                continue
            cell = cells.pop(drawn[device].slots[slot])
            assert (cell.look.parts, cell.look.needs) == (len(block.parts), block.needs)
            assert cell.is_new == ((device, slot) in frame.arrived)
            name = (block.key, block.index)
            if block.parts:
                looks.setdefault((cell.look.label, cell.look.hue), set()).add(name)
        assert cells == {}
    assert all(len(names) == 1 for names in looks.values())
    assert len(drawn) <= DRAWN
    assert permutes or len(shown.panels) <= len(collective.groups)
    assert shown.steps[-1].sent == f"{collective.wire_bytes:,} B in all"
    assert all("all" not in step.sent for step in shown.steps[:-1])
    assert shown.steps[-1].share == 1 or collective.wire_bytes == 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [2, 3, 5, 8, 16, 64])
def test_boxes_and_cells_stand_apart(kind, size):
    groups = rows(3, size)
    if kind == "collective-permute":
        groups = tuple(pair for g in groups for pair in itertools.pairwise(g))
    shown = picture(written(kind, groups, 64, {"a": 3, "b": size}), {"a": 3, "b": size})
    boxes = [box for panel in shown.panels for box in panel.boxes]
    assert len(boxes) <= DRAWN
    for one, other in itertools.combinations(boxes, 2):
        apart = abs(one.x - other.x) >= BOX_WIDTH or abs(one.y - other.y) >= one.height
        assert apart, (one.device, other.device)
    for box in boxes:
        assert 0 <= box.x <= WIDTH - BOX_WIDTH
        assert box.y + box.height <= shown.height
    assert len({step.heading for step in shown.steps}) == len(shown.steps)


@pytest.mark.parametrize("kind", KINDS)
def test_a_flight_ends_where_the_next_frame_has_it(kind):
    shown = picture(sample(kind), MESH)
    flights = 0
    for before, after in itertools.pairwise(shown.steps):
        new = {(cell.x, cell.y): cell.look for cell in after.cells if cell.is_new}
        ends = {
            (round(c.x + c.to[0], 3), round(c.y + c.to[1], 3)): c.look
            for c in before.cells
            if c.to
        }
        assert ends.keys() == new.keys()
        assert [ends[place].label for place in ends] == [new[p].label for p in ends]
        flights += len(ends)
        kept = {(c.x, c.y) for c in after.cells if c.look.parts}
        for cell in before.cells:
            if cell.leaves:
                assert (cell.x, cell.y) not in kept or (cell.x, cell.y) in new
    assert flights > 0


@pytest.mark.parametrize("kind", KINDS)
def test_html_and_text_say_the_same(kind):
    player = CollectivePlayer(sample(kind), mesh=MESH)
    read, shown = Read(html(player)), picture(sample(kind), MESH)
    text = " ".join(str(player).split())
    assert len(read.frames) == len(shown.steps) >= 2
    for words, step, frame in zip(read.words, shown.steps, read.frames, strict=True):
        assert words.split() == f"{step.heading}. {step.sentence}".split()
        assert " ".join(words.split()) in text
        (svg,) = [a for tag, a in frame if tag == "svg"]
        assert svg["role"] == "img"
        assert svg["aria-label"] == step.state
        used = [a["href"].removeprefix("#") for tag, a in frame if tag == "use"]
        assert {*used} <= {*read.ids}
        assert len(used) == 1 + len(step.cells)
        for device, row in step.rows:
            assert f"Device {device}: " in step.state
            assert f"device {device} {row}" in text.replace("  ", " ")
    assert len({*read.ids}) == len(read.ids)


def test_two_players_share_no_id():
    first, second = (
        Read(html(CollectivePlayer(sample(kind)))).ids
        for kind in ("all-gather", "all-reduce")
    )
    assert not {*first} & {*second}
    assert html(CollectivePlayer(sample("all-gather"))) == html(
        CollectivePlayer(sample("all-gather"))
    )


def test_nothing_is_asked_of_the_network():
    assert not re.search(r"https?://(?!www\.w3\.org/)|@import|url\((?!#)", html(
        CollectivePlayer(sample("all-to-all"))
    ))  # fmt: skip


@pytest.mark.parametrize(
    "given",
    [
        {"dtype": "float32", "operand_bytes": 16},
        {"dtype": "int4", "operand_bytes": 2},
        {"dtype": "bool + float32", "operand_bytes": 5},  # at most 5 elements
    ],
)
def test_as_many_elements_as_devices_are_played(given):
    spmd.CollectivePlayer(replace(sample("all-reduce"), **given))


@pytest.mark.parametrize("kind", ["all-reduce", "reduce-scatter"])
def test_what_is_added_up_is_called_a_chunk(kind):
    """Partial sums of one name are equal on no two devices, and are no shards."""
    shown = picture(sample(kind), MESH)
    (about, *_) = shown.words.notes
    assert about.startswith("A color and a number name one chunk of the array.")
    assert "A hatched cell is a partial sum: on each device it has other" in about
    said = " ".join([*shown.words.notes, *(step.sentence for step in shown.steps)])
    assert said.count("shard") == (kind == "reduce-scatter")  # its result is one
    assert "divided into 4 chunks" in shown.steps[0].sentence
    assert "Each device sends a partial chunk" in shown.steps[1].sentence
    assert "maximum" not in said


@pytest.mark.parametrize(
    ("pairs", "words"),
    [
        ([(0, 1), (1, 0)], "Each device sends its shard to one other device, all"),
        (
            [(0, 0), (1, 2), (2, 1), (3, 3)],
            "2 of 4 devices send their shard to another device, all at once; the "
            "others keep theirs.",
        ),
        (
            [(0, 1), (1, 0), (2, 2)],
            "2 of 3 devices send their shard to another device, all at once; one "
            "keeps its own.",
        ),
        (
            [(0, 1), (2, 2), (3, 3)],
            "1 of 4 devices sends its shard to another device, all at once; 2 keep "
            "theirs.",
        ),
        (
            [(0, 1), (1, 2)],
            "2 of 3 devices send their shard to another device, all at once. Device",
        ),
    ],
)
def test_who_sends_in_a_permute(pairs, words):
    mesh = {"x": 4}
    player = CollectivePlayer(written("collective-permute", pairs, 6, mesh), mesh=mesh)
    assert words in " ".join(str(player).split())
    each = words.startswith("Each")
    counter = "sent per device" if each else "sent by each sender"
    other = "sent by each sender" if each else "sent per device"
    assert f"{counter}: 24 B in all" in str(player)
    assert f">{counter}</text>" in html(player)
    assert other not in str(player) + html(player)


def test_equal_shards_look_equal():
    known = replace(sample("all-gather"), alike=(0, 0, 1, 1, 2, 2, 3, 3))
    for step in picture(known, MESH).steps:
        rows_ = dict(step.rows)
        for device in range(0, 8, 2):
            assert rows_[device] == rows_[device + 1]
    unknown = picture(sample("all-gather"), MESH).steps[0]
    assert len({row for _, row in unknown.rows}) == 8
    hues = {cell.look.hue for cell in unknown.cells}
    assert hues == {*range(len(SHARDS))}


def test_what_is_left_out_is_said():
    text = str(CollectivePlayer(written("all-gather", rows(4, 16), 60, {"x": 64})))
    words = " ".join(text.split())
    assert "Drawn: the first 4 and the last 4 of 16 devices of a group" in words
    assert "Drawn: 1 of 4 groups" in words
    assert "Hops 3 to 12 go the same way." in words
    assert "device 12" in words
    assert "device 8 " not in words
    shown = str(CollectivePlayer(written("all-gather", BY_DATA, 60, MESH)))
    assert "Drawn" not in shown


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("all-gather", "is not a Collective; give one of spmd.xray"),
        (replace(sample("all-gather"), kind="ragged-all-to-all"), "can't be played"),
        (replace(sample("all-gather"), groups=()), "groups are empty"),
        (
            written("all-reduce", BY_DATA, 1, MESH),
            "collective: an all-reduce of 1 element can't be divided into 4 chunks, "
            "one per device, so it has no hops to play; give a collective with at "
            "least 4 elements.",
        ),
        (
            replace(sample("all-reduce"), dtype="float8_e4m3fn", operand_bytes=3),
            "an all-reduce of 3 elements can't be divided into 4 chunks",
        ),
        (
            replace(sample("all-reduce"), dtype="bool", operand_bytes=1),
            "an all-reduce of 1 element can't be divided into 4 chunks",
        ),
    ],
)
def test_what_can_not_be_played(given, words):
    with pytest.raises(spmd.NotUnderstood, match=re.escape(words)) as raised:
        spmd.CollectivePlayer(given)
    assert len(raised.traceback) == 2


def test_a_mesh_that_is_too_small():
    with pytest.raises(spmd.MeshMismatch, match=r"has 4 devices.*position 7"):
        spmd.CollectivePlayer(sample("all-gather"), mesh={"x": 4})
    with pytest.raises(spmd.NotUnderstood):
        spmd.CollectivePlayer(sample("all-gather"), mesh="x")


# From a report.


@pytest.fixture(scope="module")
def report():
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)

    def on(shape, *spec):
        sharding = NamedSharding(mesh, P(*spec))
        return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=sharding)

    def f(x, w, v):
        return x @ w, (x.T @ v).sum(axis=1)

    return spmd.xray(
        f, on((48, 40), "data"), on((40, 24), None, "data"), on((48, 8), "data")
    )


def test_a_report_plays_each_of_its_collectives(report):
    kinds = [collective.kind for collective in report.collectives]
    assert kinds[0] == "all-gather"
    assert "all-reduce" in kinds
    for n, collective in enumerate(report.collectives):
        text = str(report.play(n))
        assert text.startswith(f"{collective.kind} over data")
        assert f"sent per device: {collective.wire_bytes:,} B in all" in text
    assert str(report.play()) == str(report.play(0))
    assert report.play(1).collective is report.collectives[1]


def test_a_report_knows_which_shards_are_equal(report):
    """The second matrix is sharded over data only: equal along model."""
    gather = report.collectives[0]
    assert gather.alike == (0, 0, 1, 1, 2, 2, 3, 3)
    for step in report.play(0)._picture.steps:
        contents = dict(step.rows)
        assert all(
            contents[device] == contents[device + 1] for device in range(0, 8, 2)
        )
    titles = [panel.title for panel in report.play(0)._picture.panels]
    assert titles == ["model 0", "model 1"]


@pytest.mark.parametrize("n", [-1, 9, 1.0, "0", None, True])
def test_a_number_that_there_is_not(report, n):
    with pytest.raises(spmd.NotUnderstood, match="give an integer from 0 to"):
        report.play(n)


def test_a_report_without_a_collective():
    x = jax.ShapeDtypeStruct((4,), jnp.float32)
    with pytest.raises(spmd.NotUnderstood, match="nothing to play"):
        spmd.xray(lambda x: x + 1, x).play()


MUTANTS = [
    ("_player.picture:_Steps._cell", "$end[0] - $x", "$x - $end[0]"),
    ("_player.picture:_Steps._cell", "$place in $frame.arrived", "False"),
    ("_player.picture:_Steps._shard", "($block.key, $block.index)", "$block.key"),
    ("_player.picture:_boxes", "$place * (BOX_WIDTH + _BETWEEN)",
     "$place * BOX_WIDTH / 2"),
    ("_player.picture:_slots", "$k % 2", "0"),
    ("_player.picture:_drawn_groups", "max(1, DRAWN // schedule.group_size($c))",
     "2 * DRAWN", "$c.groups"),
]  # fmt: skip


def right(picture):
    try:
        for kind in KINDS:
            shown = picture.picture(sample(kind), MESH)
            boxes = {b.device: b for p in shown.panels for b in p.boxes}
            assert len(boxes) <= DRAWN
            xs = [(box.x, box.y) for box in boxes.values()]
            for (x, y), (u, v) in itertools.combinations(xs, 2):
                assert abs(x - u) >= BOX_WIDTH or y != v
            names: dict = {}
            for step, frame in zip(
                shown.steps, schedule.frames(sample(kind)), strict=True
            ):
                cells = {(c.x, c.y): c for c in step.cells}
                for (device, slot), block in frame.contents.items():
                    cell = cells.pop(boxes[device].slots[slot])
                    assert cell.is_new == ((device, slot) in frame.arrived)
                    if block.parts:
                        shard = block.key, block.index
                        if kind == "all-to-all":
                            shard = block.key
                        names.setdefault(cell.look.hue, set()).add(shard)
                assert not cells
            assert all(len(shards) == 1 for shards in names.values())
            for before, after in itertools.pairwise(shown.steps):
                new = {(c.x, c.y) for c in after.cells if c.is_new}
                ends = {(c.x + c.to[0], c.y + c.to[1]) for c in before.cells if c.to}
                assert ends == new
        wide = picture.picture(written("all-reduce", rows(5, 4), 8, {"x": 20}), {})
        assert sum(len(panel.boxes) for panel in wide.panels) <= DRAWN
    except Exception:
        return False
    return True


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_broken_picture_is_noticed(broken_package, monkeypatch, mutant):
    assert not right(copy_of_the_picture(broken_package, monkeypatch, mutant))


def test_an_unbroken_picture_is_right(broken_package, monkeypatch):
    assert right(copy_of_the_picture(broken_package, monkeypatch, None))


def copy_of_the_picture(broken_package, monkeypatch, mutant):
    """A copy that takes the collectives of the package itself."""
    (copy,) = broken_package(mutant, "_player.picture")
    monkeypatch.setattr(copy.schedule, "check_played", lambda collective: None)
    return copy
