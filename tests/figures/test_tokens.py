"""The tokens' way: as the chapter's layer of experts sends and drops them."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import spmd_helpers as spmd
from spmd_helpers._figures import tokens
from tests.mutants import both_ways

from . import chapters
from .slots import slots

DEVICES, TOKENS = 8, 6
CHOICES = {
    "random": np.random.default_rng(0).integers(0, DEVICES, (DEVICES, TOKENS)),
    "all to one": np.full((DEVICES, TOKENS), 5),
    "each its own": np.arange(DEVICES)[:, None] * np.ones(TOKENS, int),
}


def layer(*changes):
    """The chapter's layer, its experts the identity."""
    mesh = jax.make_mesh((DEVICES,), ("expert",), axis_types=(AxisType.Auto,))
    names = {"jax": jax, "jnp": jnp, "lax": lax, "partial": partial, "P": P}
    names = chapters.run(
        "def route(" + chapters.cell("16", "def route(").split("def route(")[1],
        **names,
        ring=mesh,
    )
    return chapters.run(chapters.cell("16", "def mixture("), *changes, **names)[
        "mixture"
    ]


def arguments(choice):
    """Feature e of a token is large for its expert e, and feature 8 is its number."""
    x = np.zeros((DEVICES * TOKENS, 10), np.float32)
    x[np.arange(len(x)), choice.ravel()] = 9
    x[:, 8] = np.arange(len(x)) % TOKENS + 1
    router = np.eye(10, DEVICES, dtype=np.float32)
    up, down = np.eye(10, 14, dtype=np.float32), np.eye(14, 10, dtype=np.float32)
    return router, np.stack([up] * DEVICES), np.stack([down] * DEVICES), x


@pytest.mark.parametrize(
    ("name", "capacity"),
    [
        ("random", 2),
        *(
            pytest.param(*case, marks=pytest.mark.long("more routings, compiled"))
            for case in (("random", 1), ("all to one", 2), ("each its own", 3))
        ),
    ],
)
def test_the_layer_of_the_chapter_sends_and_drops_these(name, capacity):
    choice = CHOICES[name]
    # The layer, which also returns the boxes that each expert gets.
    more = (
        ("return gate * out, dropped", "return gate * out, dropped, swap(boxes)"),
        ("out_specs=(sharded, P())", "out_specs=(sharded, P(), sharded)"),
    )
    mixture = jax.jit(layer(*more), static_argnums=4)
    shown = tokens.TokenRouting(choice, capacity)
    out, dropped, boxes = mixture(*arguments(choice), capacity)
    assert dropped == sum(map(len, shown.dropped))
    gone = [
        (d, t)
        for d in range(DEVICES)
        for t in range(TOKENS)
        if not np.any(out[d * TOKENS + t])
    ]
    assert gone == [(d, t) for d, ts in enumerate(shown.dropped) for t in ts]
    boxes = np.reshape(boxes, (DEVICES, DEVICES, capacity, 10))
    for expert, row in enumerate(shown.received):
        for device, box in enumerate(row):
            numbers = [t + 1 for t in box] + [0] * (capacity - len(box))
            np.testing.assert_array_equal(boxes[expert, device, :, 8], numbers)
            filled = boxes[expert, device, : len(box), :DEVICES]
            assert (filled.argmax(axis=1) == expert).all()


def test_the_chapters_own_tokens_are_dropped_as_it_prints():
    """The numbers that the stored notebook prints are those of the figure."""
    rng = np.random.default_rng(0)
    rng.normal(size=(4, 10, 10)), rng.normal(size=(6, 3, 10))  # the pipeline's

    def draw(*size):
        return rng.normal(size=size).astype(np.float32)

    router, _, _, x = draw(10, 8), draw(8, 10, 14), draw(8, 14, 10), draw(48, 10)
    choice = (x @ router).argmax(axis=1).reshape(DEVICES, TOKENS)
    (path,) = (chapters.BOOK.parents[1] / "solutions").glob("16_*.ipynb")
    printed = re.findall(r"capacity (\d): +(\d+) dropped", path.read_text("utf8"))
    assert len(printed) == 4
    for capacity, dropped in printed:
        shown = spmd.TokenRouting(choice, int(capacity))
        assert sum(map(len, shown.dropped)) == int(dropped)


def check_counts(choice, capacity, module=tokens):
    shown = module.TokenRouting(choice, capacity)
    size = len(choice)
    for d in range(size):
        sent = [t for box in shown.packed[d] for t in box]
        assert sorted([*sent, *shown.dropped[d]]) == [*range(len(choice[d]))]
        for expert in range(size):
            mine = [t for t, e in enumerate(choice[d]) if e == expert]
            assert list(shown.packed[d][expert]) == mine[:capacity]
            assert shown.received[expert][d] == shown.packed[d][expert]
    filled = sum(len(box) for row in shown.packed for box in row)
    assert shown.empty == size * size * capacity - filled


CASES = [([[1, 0, 1, 1], [0, 1, 0, 0]], 2), ([[2, 2, 2], [0, 1, 2], [1, 1, 0]], 1)]


def test_every_token_is_sent_or_dropped():
    for case in CASES:
        check_counts(*case)


def boxes_of(svg: str, kind: str) -> list[tuple[float, ...]]:
    matches = re.findall(rf'<rect class="{kind}" x="(\S+)" y="(\S+)"', svg)
    places = [tuple(map(float, place)) for place in matches]
    return places + slots(svg) * (kind == "empty")


def test_the_boxes_fly_to_where_they_are_received():
    shown = spmd.TokenRouting(CASES[1][0], 1)
    before, after = shown._packed(flies=True).svg, shown._received().svg
    moved = re.findall(
        r'<g data-to="(\S+) (\S+)" data-leaves=""><rect class="(\w+)" x="(\S+)" '
        r'y="(\S+)"', before)  # fmt: skip
    assert len(moved) == 6  # the boxes that stay on their device don't move
    right = tokens._LEFT + 3 * shown._box_width  # what is dropped is right of this
    for kind in ("edge", "empty"):
        ends = [
            (float(x) + float(right), float(y) + float(down))
            for right, down, what, x, y in moved
            if what == kind
        ]
        gone = {(float(x), float(y)) for *_, x, y in moved}
        stay = [p for p in boxes_of(before, kind) if p not in gone and p[0] < right]
        assert sorted(ends + stay) == sorted(boxes_of(after, kind))


def slot_width(count):
    return spmd.TokenRouting([[0] * count], 1)._slot_width


def test_the_play_says_what_is_dropped():
    text = " ".join(str(spmd.TokenRouting(*CASES[0]).play()).split())
    assert "2 tokens found a full box and are dropped." in text
    assert "device 0 e1 e0 e1 e1 device 1 e0 e1 e0 e0" in text
    assert "device 0 t1 · t0 t2 t3" in text
    assert slot_width(11) > slot_width(10) == slot_width(1)
    alone = str(spmd.TokenRouting([[0]], 1).play())
    assert "No token is dropped." in " ".join(alone.split())


@pytest.mark.parametrize(
    ("choice", "capacity", "words"),
    [
        (3, 1, "choice=3"),
        ([[0, 1], [0]], 1, "no array"),
        ([[0, 2], [0, 1]], 1, "from 0 to 1"),
        ([[0.5, 1], [0, 1]], 1, "from 0 to 1"),
        ([[0]] * 9, 1, "9 devices"),
        ([[0]], 0, "capacity=0"),
    ],
)
def test_bad_input_is_named(choice, capacity, words):
    with pytest.raises(spmd.NotUnderstood, match=words):
        spmd.TokenRouting(choice, capacity)


MUTANTS = [
    ("_figures.tokens:TokenRouting.__init__", "$box[: self.capacity]", "$box"),
    ("_figures.tokens:TokenRouting.__init__", "$chosen == $expert",
     "$chosen == 0"),
    ("_figures.tokens:TokenRouting.__init__", "zip(*self.packed, strict=True)",
     "self.packed"),
    ("_figures.tokens:TokenRouting.__init__", "self.devices**2", "self.devices"),
]  # fmt: skip


def right(module):
    for case in CASES:
        check_counts(*case, module)


test_a_broken_routing_is_noticed, test_an_unbroken_copy_is_right = both_ways(
    MUTANTS, right, "_figures.tokens"
)
