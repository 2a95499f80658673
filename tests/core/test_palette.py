"""The axes' colors can be told apart, whatever eyes or paper make of them.

Distances are Euclidean in OKLab (Ottosson 2020), times 100; color vision is that of
Machado, Oliveira and Fernandes 2009 at full strength, on linear RGB.
"""

import itertools
import math

import pytest

from spmd_helpers._core.palette import DARK, LIGHT, SHARDS

LEAST = 12  # what two colors side by side need at the least
EYES = {
    "usual": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protan": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deutan": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "tritan": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
}
TO_CONES = (
    (0.4122214708, 0.5363325363, 0.0514459929),
    (0.2119034982, 0.6806995451, 0.1073969566),
    (0.0883024619, 0.2817188376, 0.6299787005),
)
TO_LAB = (
    (0.2104542553, 0.7936177850, -0.0040720468),
    (1.9779984951, -2.4285922050, 0.4505937099),
    (0.0259040371, 0.7827717662, -0.8086757660),
)


def times(matrix, vector):
    return [sum(a * b for a, b in zip(row, vector, strict=True)) for row in matrix]


def linear(color: str) -> list[float]:
    """`#2468DB` as linear red, green and blue, 0 to 1."""
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    return [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in parts]


def oklab(rgb) -> list[float]:
    clipped = [min(1.0, max(0.0, value)) for value in rgb]
    return times(TO_LAB, [math.cbrt(value) for value in times(TO_CONES, clipped)])


def nearest(colors, eyes: str) -> float:
    """The least distance of any two colors."""
    perceived = [oklab(times(EYES[eyes], linear(color))) for color in colors]
    return 100 * min(math.dist(*pair) for pair in itertools.combinations(perceived, 2))


def test_the_ruler_is_right():
    white, black = oklab([1, 1, 1]), oklab([0, 0, 0])
    assert white == pytest.approx([1, 0, 0], abs=1e-3)
    assert math.dist(white, black) == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("eyes", EYES)
@pytest.mark.parametrize("colors", [LIGHT, DARK], ids=["light", "dark"])
def test_no_two_axes_look_alike(colors, eyes):
    assert nearest(colors, eyes) >= LEAST


@pytest.mark.parametrize("eyes", EYES)
def test_no_two_shards_look_alike(eyes):
    assert nearest([color for color, _ in SHARDS], eyes) >= LEAST


def contrast(one: str, other: str) -> float:
    lights = sorted(
        0.2126 * r + 0.7152 * g + 0.0722 * b for r, g, b in (linear(one), linear(other))
    )
    return (lights[1] + 0.05) / (lights[0] + 0.05)


def test_the_label_of_a_shard_can_be_read():
    assert contrast("#ffffff", "#000000") == pytest.approx(21)
    assert min(contrast(*pair) for pair in SHARDS) >= 4.5


def test_colors_that_look_alike_are_seen():
    red_and_green = ("#B22222", "#6B8E23")
    assert nearest(red_and_green, "usual") > LEAST > nearest(red_and_green, "deutan")
