"""ShardingInfo against JAX's own index maps, on random meshes, specs and shapes."""

import math

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import AbstractMesh, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from spmd_helpers._shardings import sharding as sharding_module
from spmd_helpers._shardings.from_jax import sharding as read_sharding
from tests.properties import must_fail, options

NAMES = ("data", "model", "pod")


@st.composite
def meshes(draw):
    """Some of the eight devices, in any order, on one to three axes, size 1 too."""
    sizes = []
    for _ in range(draw(st.integers(1, 3))):
        sizes.append(draw(st.integers(1, 8 // math.prod(sizes))))
    order = draw(st.permutations(range(8)))[: math.prod(sizes)]
    names = draw(st.permutations(NAMES))[: len(sizes)]
    return Mesh(np.array(jax.devices())[list(order)].reshape(sizes), tuple(names))


@st.composite
def cases(draw):
    """A mesh, the entries of a spec (tuples of axes in any order), a shape."""
    mesh = draw(meshes())
    rank = draw(st.integers(0, 5))
    entries = [[] for _ in range(rank)]
    for axis in draw(st.permutations(mesh.axis_names)):
        place = draw(st.integers(-1, rank - 1))
        if place >= 0:
            entries[place].append(axis)
    times = draw(st.lists(st.integers(0, 3), min_size=rank, max_size=rank))
    shape = tuple(
        n * math.prod(mesh.shape[axis] for axis in entry)
        for n, entry in zip(times, entries, strict=True)
    )
    return mesh, [tuple(entry) for entry in entries], shape


def spellings(entries):
    """Specs that mean the same: names or tuples of one, None or (), short or long."""
    plain = [None if not e else e[0] if len(e) == 1 else e for e in entries]
    yield P(*plain)
    yield P(*entries)
    while plain and plain[-1] is None:
        plain.pop()
    yield P(*plain)


def check(mesh, entries, shape):
    """All that must hold of one sharding."""
    sharding = NamedSharding(mesh, P(*entries))
    info = read_sharding(shape, sharding)
    devices = list(mesh.devices.flat)
    by_place = {
        place: block for block, places in info.owners.items() for place in places
    }
    assert sorted(by_place) == list(range(len(devices))), "each device holds one block"
    for place, (device, index) in enumerate(
        (device, sharding.devices_indices_map(shape)[device]) for device in devices
    ):
        ours = info.slices(by_place[place])
        theirs = tuple(s.indices(n)[:2] for s, n in zip(index, shape, strict=True))
        assert ours == theirs, f"device at position {place}"
        assert device.id in info.devices(by_place[place]), "ids are those of the mesh"

    blocks = math.prod(info.grid)
    assert info.shard_shape == sharding.shard_shape(shape)
    assert len(info.owners) == blocks
    assert info.replicas * blocks == len(devices) == info.device_count
    assert all(len(places) == info.replicas for places in info.owners.values())
    assert math.prod(mesh.shape[axis] for axis in info.replicated_over) == info.replicas
    assert info.bytes_per_device * blocks == info.total_bytes == 4 * math.prod(shape)
    covered = np.zeros(shape, np.int8)
    for block in info.owners:
        covered[tuple(slice(*pair) for pair in info.slices(block))] += 1
    assert (covered == 1).all(), "the blocks tile the array"


@options(1200)
@given(cases())
def test_owners_and_slices_are_those_of_jax(case):
    check(*case)


@options(300)
@given(cases())
def test_specs_that_mean_the_same_give_the_same_info(case):
    mesh, entries, shape = case
    infos = {
        read_sharding(shape, NamedSharding(mesh, spec)) for spec in spellings(entries)
    }
    assert len(infos) == 1


@options(200)
@given(cases())
def test_mesh_abstract_mesh_and_dict_agree(case):
    mesh, entries, shape = case
    spec = P(*entries)
    abstract = AbstractMesh(tuple(mesh.shape.values()), mesh.axis_names)
    one = read_sharding(shape, NamedSharding(mesh, spec))
    two = read_sharding(shape, NamedSharding(abstract, spec))
    three = read_sharding(shape, spec, mesh=dict(mesh.shape))
    assert two == three
    assert one.owners == two.owners
    assert one.shard_shape == two.shard_shape
    assert one.device_ids is not None
    assert two.device_ids is None


def _reversed_tuple(where, mesh, entry):
    number = 0
    for axis in reversed(entry):
        number = number * mesh[axis] + where[axis]
    return number


def _first_axis_fastest(position, mesh):
    places = {}
    for axis in mesh:
        position, places[axis] = divmod(position, mesh[axis])
    return places


def _copies_over_used_axes(mesh, entries):
    return math.prod(mesh[axis] for entry in entries for axis in entry)


def _first_holder_only(mesh, entries, real=sharding_module._owners):
    return {block: places[:1] for block, places in real(mesh, entries).items()}


MUTANTS = {
    "a tuple's first axis is the fastest": ("_block_number", _reversed_tuple),
    "the mesh's first axis is the fastest": ("_coordinates", _first_axis_fastest),
    "copies counted over the used axes": ("_replicas", _copies_over_used_axes),
    "only the first axis of a tuple cuts": (
        "_grid",
        lambda mesh, entries: tuple(mesh[e[0]] if e else 1 for e in entries),
    ),
    "blocks begin one element apart": (
        "_slices",
        lambda block, shard: tuple(
            (i, i + n) for i, n in zip(block, shard, strict=True)
        ),
    ),
    "the grid is read backwards": (
        "_shard_shape",
        lambda shape, grid: tuple(
            n // blocks for n, blocks in zip(shape, grid[::-1], strict=True)
        ),
    ),
    "copies are forgotten": ("_owners", _first_holder_only),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_the_property_catches_wrong_arithmetic(mutant, monkeypatch):
    name, wrong = MUTANTS[mutant]
    monkeypatch.setattr(sharding_module, name, wrong)
    must_fail(lambda case: check(*case), cases(), examples=400)


def test_the_property_catches_positions_taken_for_ids(monkeypatch):
    monkeypatch.setattr(
        sharding_module.ShardingInfo, "devices", lambda info, b: info.owners[b]
    )
    said = "ids are those of the mesh"
    must_fail(lambda case: check(*case), cases(), examples=400, match=said)
