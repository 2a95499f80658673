"""Trees on devices: the shards are those that JAX puts on each device."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import spmd_helpers as spmd
from spmd_helpers._figures import trees
from tests.player.test_player import Read
from tests.properties import must_fail, options

AXES = {"data": 4, "model": 2}
SPECS = [
    P(), P("data"), P("model"), P(None, "data"), P(None, "model"), P("data", "model"),
    P(("data", "model")), P(("model", "data")), P(None, ("data", "model")),
]  # fmt: skip


@pytest.fixture(scope="module")
def mesh():
    kinds = (AxisType.Auto,) * 2
    return jax.make_mesh((4, 2), ("data", "model"), axis_types=kinds)


def leaf(shape, spec, mesh, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, spec))


def check(case, module=trees):
    """What is read against the indices that JAX gives each device."""
    specs, shape, mesh = case
    stages = {
        f"stage {k}": {"a": {"w": leaf(shape, s, mesh)}} for k, s in enumerate(specs)
    }
    read = module.read(stages)
    (row,) = read.rows
    assert read.devices == tuple(d.id for d in mesh.devices.flat)
    assert row.total_bytes == 4 * np.prod(shape)
    numbers = np.arange(np.prod(shape)).reshape(shape)
    pieces: dict[int, set] = {}
    for stage, spec in enumerate(specs):
        indices = NamedSharding(mesh, spec).devices_indices_map(shape)
        for place, device in enumerate(mesh.devices.flat):
            values = numbers[indices[device]]
            assert row.bytes_on(stage, place) == 4 * values.size
            state = row.stages[stage][place]
            for piece in state:
                inside = pieces.setdefault(piece, set(values.flat))
                inside &= set(values.flat)
    # No value is in two pieces, and a device has the values of its pieces.
    assert sum(map(len, pieces.values())) >= numbers.size
    for stage, spec in enumerate(specs):
        indices = NamedSharding(mesh, spec).devices_indices_map(shape)
        for place, device in enumerate(mesh.devices.flat):
            values = set(numbers[indices[device]].flat)
            joined = set().union(*(pieces[p] for p in row.stages[stage][place]))
            assert joined == values


def cases(mesh):
    specs = st.lists(st.sampled_from(SPECS), min_size=1, max_size=3)
    fits = specs.filter(lambda some: _pieces(some) <= trees.MOST)
    return st.tuples(fits, st.just((8, 16)), st.just(mesh))


def _pieces(specs):
    counts = [1, 1]
    for spec in specs:
        for dim, entry in enumerate(spec):
            axes = entry if isinstance(entry, tuple) else (entry,) if entry else ()
            counts[dim] = max(counts[dim], int(np.prod([AXES[a] for a in axes])))
    return counts[0] * counts[1]


def test_shards_are_those_of_jax(mesh):
    @options(25)
    @given(cases(mesh))
    def attempt(case):
        check(case)

    attempt()


MUTANTS = [
    ("_drawing.picture:position", "$number * $size + $i", "$number + $i"),
    ("_figures.trees:_cuts", "max($step, 1)", "max($step // 2, 1)"),
    ("_figures.trees:_owned", "$low <= $start < $high", "$low <= $start"),
    ("_figures.trees:Row.bytes_on", "len(self.stages[$stage][$device])", "self.pieces"),
    ("_figures.trees:read", "$infos[0].total_bytes // $pieces",
     "$infos[0].total_bytes"),
]  # fmt: skip


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_broken_reading_is_noticed(broken_package, monkeypatch, mutant, mesh):
    (copy,) = broken_package(mutant, "_figures.trees")
    monkeypatch.setattr(copy, "read_sharding", spmd.sharding)
    must_fail(lambda case: check(case, copy), cases(mesh), error=Exception)


def test_an_unbroken_copy_is_right(broken_package, mesh):
    (copy,) = broken_package(None, "_figures.trees")
    check(([P("data"), P(None, "model")], (8, 16), mesh), copy)


def zero_stages(mesh):
    """Parameters, gradients and Adam's state at each stage of ZeRO."""
    sharded, full = P(None, "data"), P()
    sizes = {"up": (3, 8, 16), "down": (3, 16, 8)}

    def tree(spec):
        return {name: leaf(shape, spec, mesh) for name, shape in sizes.items()}

    def state(spec):
        count = leaf((), P(), mesh, jnp.int32)
        return optax.ScaleByAdamState(count, tree(spec), tree(spec)), optax.EmptyState()

    def at(zero, least):
        return sharded if zero >= least else full

    return {
        f"ZeRO-{zero}": {
            "parameters": tree(at(zero, 3)),
            "gradients": tree(at(zero, 2)),
            "optimizer": state(at(zero, 1)),
        }
        for zero in range(4)
    }


def test_stages_have_the_bytes_that_memory_counts(mesh):
    stages = zero_stages(mesh)
    read = trees.read(stages)
    for stage, named in enumerate(stages.values()):
        counted = sum(spmd.memory(tree).largest_device_bytes for tree in named.values())
        for device in range(8):
            assert read.bytes_on(stage, device) == counted
    assert [row.tree for row in read.rows] == [
        "parameters", "gradients", "optimizer", "optimizer",
    ]  # fmt: skip
    assert read.rows[0].paths == ("down", "up")
    assert read.rows[2].total_bytes == 4  # the counter


def test_picture_and_text_say_the_same(mesh):
    shown = spmd.TreePlayer(zero_stages(mesh))
    bundle = shown._repr_mimebundle_()
    read, text = Read(bundle["text/html"]), " ".join(str(shown).split())
    assert bundle["text/plain"] == str(shown)
    assert len(read.frames) == len(read.words) == 4
    for words in read.words:
        assert " ".join(words.split()) in text
    assert "Not drawn: 4 B in small leaves." in text
    assert "all of parameters (3 KiB), all of gradients (3 KiB), 1 of 4 shards" in text
    # 8 devices × 3 rows × 4 pieces, filled or empty, in every frame.
    for frame, filled in zip(read.frames, (96, 72, 48, 24), strict=True):
        paths = {a["class"]: a["d"] for _, a in frame if a.get("d")}
        empty = paths.get("spmd-play-slot", "").count("M")
        cells = [
            a["d"].count("M") for _, a in frame if a.get("class") == "spmd-tree-cell"
        ]
        assert (sum(cells), empty) == (filled, 96 - filled)
    assert len(set(read.ids)) == len(read.ids)


def test_leaves_that_are_sharded_differently_have_rows_of_their_own():
    mesh = AbstractMesh((4,), ("data",))
    tree = {"w": leaf((8, 6), P("data"), mesh), "scale": leaf((9,), P(), mesh)}
    shown = spmd.TreePlayer({"one": {"parameters": tree}})
    assert "parameters w" in str(shown)
    assert "parameters scale" in str(shown)


def stages(**trees_of_one):
    return {"one": trees_of_one}


@pytest.mark.parametrize("wrong", [None, {}, [1], {"one": None}, {"one": [1]}])
def test_what_is_no_stages_is_refused(wrong):
    with pytest.raises(spmd.NotUnderstood, match="stages has to be a dict"):
        spmd.TreePlayer(wrong)


def test_leaves_that_differ_are_refused():
    mesh = AbstractMesh((4,), ("data",))
    w, wide = leaf((8, 6), P(), mesh), leaf((8, 7), P(), mesh)
    with pytest.raises(spmd.NotUnderstood, match="'p/w' is not the same array"):
        spmd.TreePlayer({"one": {"p": {"w": w}}, "two": {"p": {"w": wide}}})
    with pytest.raises(spmd.NotUnderstood, match="'p/w' is not the same array"):
        spmd.TreePlayer({"one": {"p": {"w": w}}, "two": {"p": {}}})
    with pytest.raises(spmd.NotUnderstood, match="leaf p/w: "):
        spmd.TreePlayer(stages(p={"w": np.zeros(3)}))


def test_several_meshes_are_refused():
    some = [leaf((8, 8), P(), AbstractMesh((n,), ("data",))) for n in (2, 4)]
    with pytest.raises(spmd.MeshMismatch, match="on 2 meshes"):
        spmd.TreePlayer(stages(p=some))
    with pytest.raises(spmd.MeshMismatch, match="on 0 meshes"):
        spmd.TreePlayer(stages(p={}))


def test_more_than_can_be_drawn_is_refused():
    sixteen = AbstractMesh((16,), ("data",))
    with pytest.raises(spmd.NotUnderstood, match="16 devices and 16 pieces"):
        spmd.TreePlayer(stages(p=leaf((16, 4), P("data"), sixteen)))
