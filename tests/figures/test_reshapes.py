"""Reshapes into heads: what each device has is what a real reshape leaves there."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import spmd_helpers as spmd
from spmd_helpers._figures import reshapes
from tests.player.test_player import Read

COUNTS = (8, 6, 12, 2, 1)


LAST = P(None, "model")


def real(n, size, spec=LAST, rows=4):
    """Rows of the numbers 0, 1, ... along the last dimension."""
    mesh = jax.make_mesh((n,), ("model",), axis_types=(AxisType.Auto,),
                         devices=jax.devices()[:n])  # fmt: skip
    x = np.broadcast_to(np.arange(size, dtype=np.float32), (rows, size))
    return jax.device_put(x, NamedSharding(mesh, spec))


@pytest.fixture(scope="module")
def read():
    return {4: reshapes.read(real(4, 96), COUNTS)[1]}


@pytest.mark.long("the same tests on eight devices")
def test_eight_devices():
    eight = {8: reshapes.read(real(8, 96), COUNTS)[1]}
    check_features(eight, 8)
    check_boundaries(eight, 8)


def runs(values):
    """Neighboring numbers as (first, one after the last)."""
    numbers = sorted({int(v) for v in np.asarray(values).flat})
    edges = [k for k in range(1, len(numbers)) if numbers[k] != numbers[k - 1] + 1]
    parts = np.split(np.array(numbers), edges)
    return tuple((int(p[0]), int(p[-1]) + 1) for p in parts)


def check_features(read, n):
    x = real(n, 96)
    for one in read[n]:
        assert one.before == tuple(runs(s.data)[0] for s in x.addressable_shards)
        y = jax.jit(lambda x: x.reshape(4, one.heads, -1))(x)  # noqa: B023
        by_device = {s.device.id: runs(s.data) for s in y.addressable_shards}
        assert one.after == tuple(by_device[d.id] for d in x.sharding.mesh.devices.flat)
        assert (one.wire_bytes == 0) == (one.heads % n == 0 or one.heads == 1)


def check_boundaries(read, n):
    for one in read[n]:
        edges = range(96 // n, 96, 96 // n)
        assert one.inside == {e: e // one.size for e in edges if e % one.size}
        if one.heads > 1:
            assert bool(one.inside) == bool(one.collectives)
        heads = [piece for d in range(n) for piece in one.pieces(d)]
        assert sum(p.stop - p.start for p in heads) == 96
        divided = {p.head for p in heads if not p.complete}
        assert divided == set(one.inside.values())
        assert len({p.head for p in heads}) == one.heads


def test_features_are_those_of_a_real_reshape(read):
    check_features(read, 4)


def test_a_boundary_inside_a_head_is_what_costs(read):
    check_boundaries(read, 4)


def test_the_bytes_are_those_of_the_xray(read):
    by_heads = {one.heads: one for one in read[4]}
    full = 4 * 96 * 4
    assert by_heads[6].wire_bytes == by_heads[2].wire_bytes == full * 3 // 4
    assert {c.kind for c in by_heads[6].collectives} == {"all-gather"}


def test_picture_and_text_say_the_same():
    shown = spmd.ReshapePlayer(real(4, 96), (8, 6, 1))
    bundle = shown._repr_mimebundle_()
    read, text = Read(bundle["text/html"]), " ".join(str(shown).split())
    assert bundle["text/plain"] == str(shown)
    assert len(read.frames) == 3
    for words in read.words:
        assert " ".join(words.split()) in text
    for said in (
        "8 heads of 12 features. Every boundary between two shards",
        "at features 24 and 72 are inside heads 1 and 4. Each device sends 1,152 B",
        "1 head of 96 features. The reshape only adds a dimension of size 1. Nothing",
    ):
        assert said in text
    kinds = [[a.get("class") for _, a in frame] for frame in read.frames]
    assert [k.count("spmd-heads-box") for k in kinds] == [8, 4, 0]
    assert [k.count("spmd-heads-part") for k in kinds] == [0, 4, 4]
    assert [k.count("spmd-heads-edge") for k in kinds] == [0, 4, 0]
    assert len(set(read.ids)) == len(read.ids)


def test_other_specs_and_ranks():
    shown = spmd.ReshapePlayer(real(4, 24), (2, 4))
    assert "at features 6 and 18 are inside heads 0 and 1" in " ".join(
        str(shown).split()
    )
    x = jax.ShapeDtypeStruct((8,), jnp.float32, sharding=real(2, 8).sharding.update(
        spec=P("model")))  # fmt: skip
    assert "Nothing is sent" in str(spmd.ReshapePlayer(x, [2]))


@pytest.mark.parametrize("heads", [(7,), (0,), (8, "x"), (), (192,), (2.5,)])
def test_numbers_of_heads_that_do_not_divide_are_refused(heads):
    with pytest.raises(spmd.NotUnderstood, match="heads"):
        spmd.ReshapePlayer(real(4, 96), heads)


def test_arrays_without_a_sharded_last_dimension_are_refused():
    x = real(4, 96, P())
    abstract = jax.ShapeDtypeStruct(
        (4, 96), jnp.float32,
        sharding=NamedSharding(AbstractMesh((4,), ("model",)), P(None, "model")),
    )  # fmt: skip
    for wrong in (x, abstract):
        with pytest.raises(spmd.NotUnderstood, match="sharded over real devices"):
            spmd.ReshapePlayer(wrong, (4,))


MUTANTS = [
    ("_figures.reshapes:Reshape.pieces", "max($low, $first)", "$first"),
    ("_figures.reshapes:Reshape.inside", "$edge % self.size != 0", "True"),
    ("_figures.reshapes:Reshape.inside", "$edge // self.size", "self.size"),
    ("_figures.reshapes:_runs", "$head * $size + $low", "$low",
     "($first, $last), ($low, $high) = $result.slices($block)[-2:]"),
    ("_figures.reshapes:_by_device", "sorted($blocks)", "sorted($blocks)[::-1]"),
]  # fmt: skip


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_broken_reading_is_noticed(broken_package, monkeypatch, mutant):
    (copy,) = broken_package(mutant, "_figures.reshapes")
    monkeypatch.setattr(copy, "read_sharding", spmd.sharding)
    monkeypatch.setattr(copy, "xray", spmd.xray)
    some = {4: copy.read(real(4, 96), COUNTS)[1]}
    assert not right(some)


def right(some) -> bool:
    try:
        check_features(some, 4)
        check_boundaries(some, 4)
    except AssertionError:
        return False
    return True
