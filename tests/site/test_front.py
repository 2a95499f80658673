"""The front page's picture: what it draws is what JAX does, and it plays."""

import sys

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import spmd_helpers as spmd
from tools.book.book import ROOT

from .site_reading import SITE

sys.path.insert(0, str(ROOT / "book" / "_ext"))
import spmd_front


def test_it_draws_what_jax_does():
    auto = (jax.sharding.AxisType.Auto,)
    devices = jax.devices()[: spmd_front.DEVICES]
    mesh = jax.make_mesh((len(devices),), ("data",), axis_types=auto, devices=devices)
    rows, inner, columns = spmd_front.SIZES
    for product, w in zip(spmd_front.products(), (P("data"), P()), strict=True):
        places = [NamedSharding(mesh, spec) for spec in (P("data"), w)]
        given = [
            jax.ShapeDtypeStruct(shape, jnp.float32, sharding=place)
            for shape, place in zip(
                ((rows, inner), (inner, columns)), places, strict=True
            )
        ]
        report = spmd.xray(lambda x, w: x @ w, *given)
        assert [(c.kind, c.wire_bytes) for c in report.collectives] == [
            (move.kind, move.wire_bytes) for move in product.moves
        ]
        at = places[1].devices_indices_map((inner, columns))
        part = inner // len(devices)
        want = []
        for device in mesh.devices.flat:
            first, end, _ = at[device][0].indices(inner)
            want.append([*range(first // part, end // part)])
        assert spmd_front.shards(product, 0) == want
    sharded, _ = spmd_front.products()
    full = [*range(len(devices))]
    assert spmd_front.shards(sharded, 1) == [full] * len(devices)


def test_each_frame_says_what_it_shows():
    frames = spmd_front.frames()
    assert len(frames) == 4
    for drawn, heading, sentence, words in frames:
        assert heading
        assert sentence.endswith(".")
        for device in range(spmd_front.DEVICES):
            assert f"device {device}</text>" in drawn
            assert f"device {device} has shard {device} of x" in words
        sent = words.rsplit(": ", 1)[1].rstrip(".")
        assert f">{sent}</text>" in drawn


@pytest.mark.long("the front page in a browser")
def test_the_front_page_plays(browser):
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto(f"{SITE.as_uri()}/book/index.html")
    frames = page.locator(".spmd-front .spmd-play-frame")
    shown = "e => getComputedStyle(e).visibility === 'visible'"
    assert [frame.evaluate(shown) for frame in frames.all()] == [
        True,
        False,
        False,
        True,
    ]
    page.locator(".spmd-front").get_by_role("button", name="Play").click()
    page.locator(".spmd-front .spmd-play-bar", has_text="4 of 4").wait_for(
        timeout=60000
    )
    assert [frame.evaluate(shown) for frame in frames.all()] == [
        False,
        False,
        True,
        True,
    ]
    # Picture, play and the ways through are on the first screen.
    page.evaluate("scrollTo(0, 0)")
    ways = page.locator(".spmd-ways li")
    assert ways.count() == 3
    for element in (frames.first, page.locator(".spmd-front button").first):
        box = element.bounding_box()
        assert box["y"] + box["height"] <= 900
    page.close()
