"""A restore: a device reads the saved shards that JAX's own shardings overlap."""

import re

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import spmd_helpers as spmd
from spmd_helpers._figures import reads
from tests.mutants import both_ways

SHAPE = (64, 160)


def on(data, model, *spec, shape=SHAPE):
    mesh = jax.make_mesh(
        (data, model), ("data", "model"), axis_types=(AxisType.Auto,) * 2,
        devices=jax.devices()[: data * model],
    )  # fmt: skip
    return jax.ShapeDtypeStruct(
        shape, np.float32, sharding=NamedSharding(mesh, P(*spec))
    )


CASES = [
    ((4, 2, "data", "model"), (2, 4, "data", "model")),
    ((4, 2, "data", "model"), (1, 2, None, "model")),
    ((1, 8, None, "model"), (8, 1, "data")),
    ((2, 4, "data"), (4, 2, ("data", "model"))),
    ((4, 2, "model", "data"), (4, 2, "data", "model")),
    ((1, 1), (4, 2, "data", "model")),
]


def numbered(saved):
    """The array, each element the number of its saved shard, row by row."""
    numbers = np.zeros(saved.shape, int)
    index = saved.sharding.devices_indices_map(saved.shape)
    blocks = {tuple(s.indices(n)[:2] for s, n in zip(i, saved.shape, strict=True))
              for i in index.values()}  # fmt: skip
    for number, block in enumerate(sorted(blocks)):
        numbers[tuple(slice(*edge) for edge in block)] = number
    return numbers


def check_reads(saved, wanted, module=reads):
    shown = module.RestoreReads(saved, wanted)
    numbers = numbered(saved)
    index = wanted.sharding.devices_indices_map(wanted.shape)
    assert shown.shards == {
        device.id: tuple(np.unique(numbers[place])) for device, place in index.items()
    }
    for device, place in index.items():
        sizes = zip(place, wanted.shape, strict=True)
        assert shown.places[device.id] == tuple(s.indices(n)[:2] for s, n in sizes)
    return shown


@pytest.mark.parametrize(("saved", "wanted"), CASES)
def test_a_device_reads_what_overlaps(saved, wanted):
    check_reads(on(*saved), on(*wanted))


def test_one_dimension():
    vector = {"shape": (24,)}
    shown = check_reads(on(4, 2, "data", **vector), on(4, 2, "model", **vector))
    assert "elements 0:12   shards 0, 1" in str(shown)


def test_a_frame_for_each_device_marks_its_place():
    shown = check_reads(on(*CASES[0][0]), on(*CASES[0][1]))
    text = str(shown.play())
    assert text.count("For device ") == 8
    assert (
        "For device 5. Its process reads saved shards 4 and 6 and puts the part that "
        "device 5 needs on it: rows 32:64, columns 40:80, 5 KiB."
    ) in " ".join(text.split())
    svg = shown._diagram((5,)).svg
    mark = re.search(
        r'<rect class="mark" x="(\S+)" y="(\S+)" width="(\S+)" height="(\S+)"', svg
    )
    x, y, width, height = map(float, mark.groups())
    wide, high = shown._pixels()
    (top, low), (left, right) = shown.places[5]
    assert (x - reads._LEFT) / wide == pytest.approx(left / SHAPE[1], abs=1e-3)
    assert (y - reads._TOP) / high == pytest.approx(top / SHAPE[0], abs=1e-3)
    assert width / wide == pytest.approx((right - left) / SHAPE[1], abs=1e-3)
    assert height / high == pytest.approx((low - top) / SHAPE[0], abs=1e-3)
    # Shards that are read are filled, others are framed.
    assert svg.count('class="ground"') == 1 + 6


@pytest.mark.parametrize(
    ("saved", "wanted", "error", "words"),
    [
        (on(4, 2), on(4, 2, shape=(8, 8)), spmd.MeshMismatch, "same array"),
        (on(4, 2, shape=(4, 4, 4)), on(4, 2, shape=(4, 4, 4)), spmd.NotUnderstood,
         "one or two dimensions"),
        (spmd.sharding(SHAPE, P("x"), mesh={"x": 16}), on(4, 2), spmd.NotUnderstood,
         "16 shards"),
        (np.zeros(4), on(4, 2), spmd.NotUnderstood, "ndarray|NumPy"),
    ],
)  # fmt: skip
def test_bad_input_is_named(saved, wanted, error, words):
    with pytest.raises(error, match=words):
        spmd.RestoreReads(saved, wanted)


MUTANTS = [
    ("_figures.reads:_overlap", "min($b, $d) - max($a, $c)", "$b - max($a, $c)"),
    ("_figures.reads:_meet", "_overlap($one, $other) > 0",
     "_overlap($one, $other) >= 0"),
    ("_figures.reads:_places", "$info.slices($block)", "$info.slices((0, 0))"),
]  # fmt: skip


def right(module):
    for saved, wanted in CASES[:4]:
        check_reads(on(*saved), on(*wanted), module)


test_broken_reads_are_noticed, test_an_unbroken_copy_is_right = both_ways(
    MUTANTS, right, "_figures.reads"
)
