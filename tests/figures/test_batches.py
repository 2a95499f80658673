"""A batch that is divided: each device gets the rows that pmap gives it."""

import re
from xml.etree import ElementTree

import jax.numpy as jnp
import numpy as np
import pytest

import spmd_helpers as spmd
from spmd_helpers._core.palette import SHARDS
from spmd_helpers._figures import batches
from tests.player.test_player import Read


def stack(devices, rows, size=6):
    """Images of one light pixel, each at another place."""
    count = devices * rows
    images = np.zeros((count, size * size))
    images[np.arange(count), np.arange(count) % (size * size)] = 1
    return images.reshape(devices, rows, size, size)


def images_of(svg):
    """Color, place, way and light pixels of each image."""
    root = ElementTree.fromstring(svg)
    images = []
    for group in root.iter("g"):
        inner = group.find("g")
        if inner is None:
            continue
        place = tuple(map(float, re.findall(r"[\d.]+", inner.get("transform"))))
        way = tuple(map(float, group.get("data-to", "0 0").split()))
        box, path = inner
        images.append((box.get("fill"), place, way, path.get("d")))
    return images


@pytest.mark.parametrize(("devices", "rows"), [(2, 1), (2, 9), (5, 3), (8, 20), (8, 2)])
def test_each_image_goes_to_the_device_that_has_its_rows(devices, rows):
    images, drawn = stack(devices, rows), min(rows, 4)
    shown = images[:, :drawn]
    before = images_of(batches._svg(shown, "x", False, rows))
    after = images_of(batches._svg(shown, "x", True, rows))
    assert len(before) == len(after) == devices * drawn
    for k, (start, end) in enumerate(zip(before, after, strict=True)):
        device, number = divmod(k, drawn)
        assert start[0] == end[0] == SHARDS[device][0]
        assert tuple(np.add(start[1], start[2])) == end[1]
        pixel = (device * rows + number) % 36
        assert start[3] == end[3] == f"M{pixel % 6} {pixel // 6}h1v1h-1z"
    for frame in (before, after):
        places = [place for _, place, _, _ in frame]
        assert len(set(places)) == len(places)
        width, height = map(
            float, re.search(r'viewBox="-1 -1 (\d+) (\d+)"',
                             batches._svg(shown, "x", True, rows)).groups()
        )  # fmt: skip
        assert all(x + 22 < width and y + 22 < height for x, y in places)


def test_pixels_are_those_of_the_image():
    image = spmd.load_mnist().train_images[3]
    drawn = np.zeros(image.shape, bool)
    for x, y, length in re.findall(r"M(\d+) (\d+)h(\d+)v1", batches._pixels(image)):
        drawn[int(y), int(x) : int(x) + int(length)] = True
    assert (drawn == (image > 0.4 * image.max())).all()


def test_picture_and_text_say_the_same():
    shown = spmd.BatchPlayer(stack(8, 20))
    bundle = shown._repr_mimebundle_()
    read, text = Read(bundle["text/html"]), " ".join(str(shown).split())
    assert bundle["text/plain"] == str(shown) == repr(shown)
    assert len(read.frames) == 2
    for words in read.words:
        assert " ".join(words.split()) in text
    assert "The first 4 of each 20 are drawn." in text
    assert "device 7 rows 140 to 159" in text
    assert "are drawn" not in str(spmd.BatchPlayer(stack(2, 4)))
    assert "receives one image" in str(spmd.BatchPlayer(stack(2, 1)))


@pytest.mark.parametrize(
    "wrong",
    [np.zeros((8, 20, 784)), np.zeros((1, 2, 4, 4)), np.zeros((9, 2, 4, 4)),
     np.zeros((2, 0, 4, 4)), "digits", None],
)  # fmt: skip
def test_what_is_no_stack_of_images_gets_a_sentence(wrong):
    with pytest.raises(spmd.NotUnderstood, match=r"give an array \[devices") as raised:
        spmd.BatchPlayer(wrong)
    assert "\n" not in str(raised.value)


IMAGES = stack(2, 5).astype(np.float32)


def spoiled(value, at=(1, 2, 3, 4)):
    images = IMAGES.astype(np.float64)
    images[at] = value
    return images


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (
            spoiled(np.nan),
            r"^stack has nan at \[1, 2, 3, 4\], which has no brigh",
        ),
        (spoiled(-np.inf), r"^stack has -inf at \[1, 2, 3, 4\]"),
        (spoiled(1e300), r"^stack has inf at \[1, 2, 3, 4\]"),
        (
            IMAGES.astype("datetime64[s]"),
            r"elements of type datetime64\[s\]; give an",
        ),
        (IMAGES.astype("timedelta64[s]"), r"elements of type timedelta64\[s\]"),
        (IMAGES.astype(complex), r"elements of type complex128; .* of real numbers"),
        (IMAGES.astype(str), r"elements of type <U32"),
        (IMAGES.astype(object), r"elements of type object"),
        (np.full(IMAGES.shape, None), r"elements of type object"),
        (
            np.zeros((2, 1, 4, 129)),
            r"images of 4 by 129 .* as x\[:, :, ::2, ::2\]",
        ),
        (
            np.zeros((2, 1, 512, 9)),
            r"512 by 9 pixels, and at most 128 by 128 are",
        ),
    ],
)
def test_what_has_no_pixels_gets_a_sentence(wrong, words):
    with pytest.raises(spmd.NotUnderstood, match=words) as raised:
        spmd.BatchPlayer(wrong)
    assert "\n" not in str(raised.value)


def test_numbers_of_every_type_are_drawn_alike():
    drawn = spmd.BatchPlayer(IMAGES)._repr_mimebundle_()["text/html"]
    types = (bool, np.uint8, np.int64, np.float16, jnp.bfloat16, jnp.float8_e4m3fn)
    for one in (*map(IMAGES.astype, types), jnp.asarray(IMAGES), IMAGES.tolist()):
        assert spmd.BatchPlayer(one)._repr_mimebundle_()["text/html"] == drawn
    spmd.BatchPlayer(np.ones((2, 1, 128, 128)))
    # What is not drawn may be anything.
    assert spmd.BatchPlayer(spoiled(np.nan, (1, 4, 0, 0)))
