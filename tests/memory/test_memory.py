"""Memory of trees against JAX's own shards, and by example."""

import html
import math
import re
import warnings
from dataclasses import replace

import flax.linen as linen
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from spmd_helpers import _errors as errors
from spmd_helpers import xray
from spmd_helpers._memory import memory as memory_module
from spmd_helpers._memory import report as view
from spmd_helpers._memory.memory import Memory, MemoryLine, memory
from tests.properties import must_fail, options
from tests.shardings.test_properties import cases
from tests.stand_ins import guarded, put

AUTO = (AxisType.Auto,)


def struct(*shape, dtype=jnp.float32, sharding=None):
    return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)


# Against JAX: what lies on each device, shard by shard.

DTYPES = ("float32", "bfloat16", "int8", "int4", "bool", "key", "host")


@st.composite
def trees(draw):
    """Some arrays on some meshes, in nested dicts and lists."""
    leaves = []
    for _ in range(draw(st.integers(1, 4))):
        mesh, entries, shape = draw(cases())
        dtype = draw(st.sampled_from(DTYPES))
        sharding = NamedSharding(mesh, P(*entries))
        if draw(st.integers(0, 5)) == 0:
            device = jax.devices()[draw(st.integers(0, 7))]
            sharding = jax.sharding.SingleDeviceSharding(device)
        if dtype == "host":
            leaves.append(np.zeros(shape))
        elif dtype == "key":
            keys = jax.random.wrap_key_data(np.zeros((*shape, 2), np.uint32))
            leaves.append(jax.device_put(keys, sharding))
        else:
            leaves.append(jax.device_put(np.zeros(shape, dtype), sharding))
    again = draw(st.booleans())
    return {"a": leaves[0], "b": [leaves[1:], {"c": leaves[-1] if again else []}]}


def check(tree):
    """All that must hold of one tree."""
    report = memory(tree)
    truth, unique = {}, {}
    for leaf in jax.tree.leaves(tree):
        if not isinstance(leaf, jax.Array):
            continue
        unique[id(leaf)] = leaf
    for leaf in unique.values():
        for shard in leaf.addressable_shards:
            key = shard.device.id
            truth[key] = truth.get(key, 0) + shard.data.nbytes
    assert report.per_device == truth
    assert report.largest_device_bytes == max(truth.values(), default=0)
    assert report.bytes_on_all_devices == sum(truth.values())
    assert report.total_bytes == sum(leaf.nbytes for leaf in unique.values())
    paths = jax.tree_util.tree_flatten_with_path(tree)[0]
    assert len(report.lines) == len(paths)
    for line, (keys, leaf) in zip(report.lines, paths, strict=True):
        assert line.path == jax.tree_util.keystr(keys, simple=True, separator="/")
        assert line.shape == leaf.shape
        assert line.total_bytes == leaf.nbytes
        if line.devices:
            devices = [shard.device.id for shard in leaf.addressable_shards]
            assert sorted(line.devices) == sorted(devices)
            assert line.bytes_on_all_devices == line.copies * line.total_bytes
    assert report.host_bytes == sum(
        leaf.nbytes for _, leaf in paths if isinstance(leaf, np.ndarray)
    )
    text, page = repr(report), html.unescape(report._repr_mimebundle_()["text/html"])
    for row in view.rows(report.lines):
        for cell in filter(None, row):
            assert cell in text
            assert cell in page


@options(150)
@given(trees())
def test_each_device_holds_what_jax_put_there(tree):
    check(tree)


def _positions_for_ids(place):
    return tuple(range(place.size))


def _first_device_only(place):
    return place.device_ids[:1]


def _no_kind(place):
    return f"kind {place.device_ids[0]}" if place.device_ids else ""


def _replicated(*args, real=memory_module.read_sharding, **more):
    return replace(real(*args, **more), entries=())


MUTANTS = {
    "positions taken for ids": ("_ids", _positions_for_ids),
    "copies forgotten": ("_ids", _first_device_only),
    "every mesh its own kind": ("_kind", _no_kind),
    "an array counted each time": ("id", lambda leaf: object()),
    "the whole for the block": ("read_sharding", _replicated),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_the_property_catches_wrong_arithmetic(mutant, monkeypatch):
    name, wrong = MUTANTS[mutant]
    monkeypatch.setattr(memory_module, name, wrong, raising=False)
    must_fail(check, trees(), error=(AssertionError, IndexError))


# By example.


def test_lines_and_totals(mesh):
    report = memory({"w": put((8, 6), mesh, "data"), "b": put((6,), mesh)})
    assert report.lines == (
        MemoryLine("b", (6,), "float32", "P(None)", 24, 24, 8, tuple(range(8))),
        MemoryLine(
            "w", (8, 6), "float32", "P('data', None)", 48, 192, 2, tuple(range(8))
        ),
    )
    assert report.per_device == dict.fromkeys(range(8), 72)
    assert (report.largest_device_bytes, report.bytes_on_all_devices) == (72, 576)
    assert (report.total_bytes, report.host_bytes) == (216, 0)
    assert report.notes == ()


def test_state_left_on_one_device_shows(mesh):
    params = {"w": put((64, 32), mesh, "data"), "b": put((32,), mesh)}
    state = jax.jit(optax.adam(1e-3).init)(params)
    report = memory({"params": params, "state": state})
    assert report.per_device[0] == 64 * 32 * 4 * (1 + 8) // 4 + 32 * 4 * 3 + 4
    assert set(list(report.per_device.values())[1:]) == {64 * 32 + 32 * 4}
    assert report.notes == (
        "5 leaves, 16.3 KiB, are on device 0 only, beside arrays on several: "
        "state/0/count, state/0/mu/b, state/0/mu/w and 2 more. Give jit "
        "out_shardings, or move them with jax.device_put.",
    )
    assert "18.4 KiB on device 0; 2.12 KiB on devices 1–7." in repr(report)


def test_no_note_where_everything_is_on_one_device():
    assert memory([jnp.zeros(3), jnp.zeros(4)]).notes == ()


def test_planned_from_shapes_alone():
    shapes = jax.eval_shape(lambda: {"w": jnp.zeros((8, 6)), "b": jnp.zeros(6)})
    plan = memory(
        shapes, {"w": P("data", "model"), "b": P()}, mesh={"data": 4, "model": 2}
    )
    assert plan.per_device == dict.fromkeys(range(8), 8 // 4 * 6 // 2 * 4 + 24)
    mesh = AbstractMesh((4, 2), ("data", "model"))
    same = memory(
        shapes, {"w": NamedSharding(mesh, P("data", "model")), "b": P()}, mesh=mesh
    )
    assert same.lines == plan.lines


def test_one_sharding_for_all_or_for_a_branch(mesh):
    shapes = {"a": {"x": struct(8), "y": struct(16)}, "b": struct(4)}
    assert [line.spec for line in memory(shapes, P("data"), mesh=mesh).lines] == [
        "P('data')"
    ] * 3
    some = memory(shapes, {"a": P("model"), "b": P()}, mesh=mesh)
    assert [line.spec for line in some.lines] == ["P('model')"] * 2 + ["P(None)"]
    arrays = {"a": put((8,), mesh, "data"), "b": struct(4)}
    kept = memory(arrays, {"a": None, "b": P("model")}, mesh=mesh)
    assert [line.spec for line in kept.lines] == ["P('data')", "P('model')"]


def test_a_struct_whose_spec_has_no_mesh(mesh):
    with jax.set_mesh(mesh):
        report = memory(struct(8, sharding=P("data")))
    assert report.per_device == dict.fromkeys(range(8), 8)
    with pytest.raises(
        errors.NotUnderstood,
        match=r"^leaf 'a': the ShapeDtypeStruct of shape \(8,\) has a PartitionSpec "
        r"and no mesh; call this inside of  with jax.set_mesh\(mesh\):  as JAX "
        r"requires.$",
    ):
        memory({"a": struct(8, sharding=P("data"))})


def test_mesh_counts_devices_that_hold_nothing(mesh):
    report = memory(jnp.zeros(3), mesh=mesh)
    assert report.per_device == {0: 12, **dict.fromkeys(range(1, 8), 0)}
    assert "12 B on device 0; 0 B on devices 1–7." in repr(report)


def test_two_meshes_in_one_tree(mesh):
    half = Mesh(np.array(jax.devices()[4:]).reshape(4), ("x",))
    report = memory({"a": put((8,), mesh, "data"), "b": put((8,), half, "x")})
    assert report.per_device == {
        **dict.fromkeys(range(4), 8),
        **dict.fromkeys(range(4, 8), 16),
    }
    assert report.notes == ()
    assert "16 B on devices 4–7; 8 B on devices 0–3." in repr(report)


def test_a_terabyte_of_nothing(mesh):
    sharding = NamedSharding(mesh, P("data", "model"))
    report = memory({"x": struct(2**20, 2**19, dtype=jnp.bfloat16, sharding=sharding)})
    assert (report.total_bytes, report.largest_device_bytes) == (2**40, 2**37)
    assert repr(report).splitlines()[0] == (
        "Memory of 1 array, 1 TiB: 1 TiB on 8 devices, 128 GiB on each"
    )


def test_data_is_never_touched(mesh):
    assert memory({"x": guarded(mesh)}).largest_device_bytes == 2 * 4 * 4


def test_shardings_of_an_xray(mesh):
    x = struct(8, 6, sharding=NamedSharding(mesh, P("data")))
    step = xray(lambda a, b: {"y": a * 2}, x, x)
    report = memory(step.input_shardings)
    assert [line.path for line in report.lines] == ["0"]  # b is not used
    assert report.largest_device_bytes == 48
    assert memory(step.output_shardings).largest_device_bytes == 48


def test_a_sharding_info_with_another_sharding(mesh):
    info = memory_module.read_sharding(put((8, 6), mesh, "data"))
    assert memory([info], P(), mesh=mesh).largest_device_bytes == 192


def test_pmap_shows_no_private_name():
    report = memory([jax.pmap(lambda x: x)(jnp.zeros((8, 3)))])
    assert report.lines[0].spec == "P('(pmap axis)', None)"
    assert report.per_device == dict.fromkeys(range(8), 12)
    assert "internal" not in repr(report)


def test_keys_and_fractional_types(mesh):
    keys = jax.device_put(
        jax.random.split(jax.random.key(0), 8), NamedSharding(mesh, P("data"))
    )
    report = memory({"k": keys, "q": put((8, 2), mesh, "data", dtype=jnp.int4)})
    assert [(line.dtype, line.bytes_per_device) for line in report.lines] == [
        ("key<fry>", 16),
        ("int4", 4),
    ]


def test_numbers_and_numpy_lie_on_the_host(mesh):
    report = memory({"x": np.zeros((3, 4)), "step": 3, "y": put((8,), mesh, "data")})
    assert [(line.where, line.total_bytes) for line in report.lines] == [
        ("host", 0),
        ("host", 96),
        ("", 32),
    ]
    assert (report.host_bytes, report.largest_device_bytes, report.total_bytes) == (
        96,
        8,
        32,
    )
    assert report.notes == ("2 leaves, 96 B, are on the host: step and x.",)
    assert memory({"step": 3}).per_device == {}
    assert repr(memory({"step": 3})).startswith("Memory of 0 arrays, 0 B: nothing on")


def test_numpy_with_a_sharding_is_a_plan(mesh):
    report = memory(np.zeros((8, 2), np.float32), P("data"), mesh=mesh)
    assert report.largest_device_bytes == 16
    assert report.lines[0].dtype == "float32"


def test_arrays_moved_to_the_host(mesh):
    report = memory(
        {
            "h": put((8, 2), mesh, "data", memory_kind="pinned_host"),
            "x": put((8, 2), mesh, "data"),
        }
    )
    assert report.largest_device_bytes == 16
    assert report.host_bytes == 64
    assert report.notes == ("1 leaf, 64 B, is on the host: h.",)


def test_a_donated_array_holds_nothing(mesh):
    x = put((8, 2), mesh, "data")
    jax.jit(lambda x: x + 1, donate_argnums=0)(x)
    assert x.is_deleted()
    report = memory({"x": x, "y": put((8,), mesh, "data")})
    assert report.largest_device_bytes == 8
    assert report.notes == ("1 leaf, 64 B, was donated or deleted: x.",)
    assert "deleted" in repr(report)


def test_an_array_that_is_there_twice_counts_once(mesh):
    w = put((8, 6), mesh, "data")
    report = memory({"embed": w, "head": w})
    assert report.largest_device_bytes == 48
    assert report.lines[1].where == "embed"
    assert report.notes == (
        "1 leaf, 192 B, is in the tree twice and counted once: head.",
    )
    assert "as embed" in repr(report)
    template = struct(8, 6, sharding=w.sharding)  # says a form, not a place
    assert memory([template, template]).largest_device_bytes == 96


def test_a_sharding_without_axis_names(mesh):
    class Unnamed(jax.sharding.Sharding):
        device_set = frozenset(jax.devices()[:4])
        memory_kind = None

        def shard_shape(self, shape):
            return (shape[0] // 2, *shape[1:])

    class Array:
        shape, dtype, sharding = (8, 6), np.dtype("float32"), Unnamed.__new__(Unnamed)

    (line,) = memory([Array()]).lines
    assert (line.spec, line.bytes_per_device, line.copies) == ("Unnamed", 96, 2)
    assert line.devices == (0, 1, 2, 3)


def test_devices_of_several_kinds(mesh):
    """Ids repeat from one kind of device to the next."""
    info = memory_module.read_sharding(put((8, 6), mesh, "data"))
    other = type(info)(
        **_fields(info) | {"platform": "8 × TPU v5", "mesh_shape": {"x": 8}}
    )
    report = memory({"cpu": info, "tpu": other})
    assert len(report.per_device) == 16
    assert (report.per_device["cpu 3"], report.per_device["TPU v5 3"]) == (48, 24)
    assert report.lines[1].devices[:2] == ("TPU v5 0", "TPU v5 1")
    assert "TPU v5 0–7" in repr(report)
    assert memory({"cpu": info, "same": info}).per_device[3] == 96


def _fields(info):
    names = ("shape", "dtype", "platform", "device_ids")
    return {name: getattr(info, name) for name in names} | {"entries": (("x",), ())}


def test_positions_beside_ids_are_said(mesh):
    abstract = NamedSharding(AbstractMesh((8,), ("x",)), P("x"))
    report = memory({"a": struct(8, sharding=abstract), "b": put((8,), mesh, "data")})
    assert report.per_device == dict.fromkeys(range(8), 12)
    assert report.notes == (
        "Some leaves are on a mesh without devices: its positions are used as device "
        "ids.",
    )


def test_flax_nnx():
    class Model(nnx.Module):
        def __init__(self, rngs):
            self.layers = nnx.List([nnx.Linear(8, 8, rngs=rngs) for _ in range(3)])
            self.tied = self.layers[0]

    model = Model(nnx.Rngs(0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        report = memory(model)
    assert [line.path for line in report.lines if line.devices] == [
        f"layers/{i}/{name}" for i in range(3) for name in ("bias", "kernel")
    ]
    assert report.total_bytes == 3 * (64 + 8) * 4
    assert memory(nnx.state(model)).per_device == report.per_device
    optimizer = nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)
    assert memory(optimizer).total_bytes >= 2 * report.total_bytes
    abstract = nnx.eval_shape(lambda: Model(nnx.Rngs(0)))
    plan = memory(abstract, P(), mesh={"data": 4})
    assert plan.largest_device_bytes == report.total_bytes


def test_specs_that_flax_knows():
    class Model(nnx.Module):
        def __init__(self, rngs):
            init = nnx.with_partitioning(nnx.initializers.ones, (None, "data"))
            self.linear = nnx.Linear(8, 4, kernel_init=init, rngs=rngs)

    mesh = jax.make_mesh((4,), ("data",), axis_types=AUTO)
    with jax.set_mesh(mesh):
        state = nnx.state(Model(nnx.Rngs(0)))
    report = memory(state, nnx.get_partition_spec(state), mesh={"data": 4})
    assert [line.spec for line in report.lines] == ["P(None)", "P(None, 'data')"]
    assert report.largest_device_bytes == 16 + 32


def test_flax_linen_boxes():
    boxed = linen.Partitioned(jnp.zeros((8, 4)), names=("data", None))
    (line,) = memory({"kernel": boxed}).lines
    assert (line.path, line.total_bytes) == ("kernel", 128)


def test_empty():
    report = memory({"a": None, "b": []})
    assert (report.lines, report.per_device) == ((), {})
    assert repr(report) == "Memory of 0 arrays, 0 B: nothing on a device\nno leaf"
    assert "no leaf" in report._repr_mimebundle_()["text/html"]


# What it shows.


def test_whole_text(mesh):
    report = memory(
        {
            "w": put((64, 32), mesh, "data", "model"),
            "v": put((128,), mesh),
            "step": jnp.zeros((), jnp.int32),
        }
    )
    assert repr(report) == (
        "Memory of 3 arrays, 8.5 KiB: 12 KiB on 8 devices, 1.5 KiB on each\n"
        "leaf  array            spec                per device  replicas  devices\n"
        "w     float32[64, 32]  P('data', 'model')       1 KiB         1  0–7\n"
        "v     float32[128]     P(None)                  512 B         8  0–7\n"
        "step  int32[]          one device                 4 B         1  0\n"
        "1 leaf, 4 B, is on device 0 only, beside arrays on several: step. Give jit\n"
        "  out_shardings, or move them with jax.device_put."
    )


def test_layers_share_a_row_in_a_large_tree(mesh):
    sharding = NamedSharding(mesh, P("data"))
    layer = {"w": struct(8, 6, sharding=sharding), "b": struct(8, sharding=sharding)}
    small, large = memory([layer] * 12), memory([layer] * 13)
    assert len(view.rows(small.lines)) == 24
    assert view.rows(large.lines) == [
        ("0–12/w", "13 × float32[8, 6]", "P('data', None)", "624 B", "2", "0–7"),
        ("0–12/b", "13 × float32[8]", "P('data')", "104 B", "2", "0–7"),
    ]
    assert len(large.lines) == 26


def test_long_tables_end(mesh):
    sharding = NamedSharding(mesh, P("data"))
    tree = {f"{chr(97 + i)}": struct(8 * (i + 1), sharding=sharding) for i in range(26)}
    rows = view.rows(memory(tree).lines)
    assert len(rows) == 25
    assert [row[0] for row in rows[:2]] == ["z", "y"]
    assert rows[-1] == ("… 2 leaves more", "", "", "≤ 24 B", "", "")
    assert len(view.rows(memory(dict(list(tree.items())[:25])).lines)) == 25


@pytest.mark.parametrize(
    ("paths", "words"),
    [
        (["a/0", "a/1"], "a/0,1"),
        (["a/0/b/4", "a/1/b/4", "a/2/b/4"], "a/0–2/b/4"),
        (["l_01", "l_02"], "l_01…02"),
        (["x"], "x"),
    ],
)
def test_path_words(paths, words):
    assert view.path_words(paths) == words


def test_many_amounts_are_summed_up():
    per_device = {i: 10 * i for i in range(6)}
    assert view.spread(per_device) == [
        "50 B on device 5; 40 B on device 4; 30 B on device 3; 20 B on device 2; less "
        "on 2 devices more."
    ]
    assert view.spread({0: 2**20 + 4, 1: 2**20}) == []


def test_html_is_the_text(mesh):
    report = memory({"<w>": put((64, 32), mesh, "data"), "b": jnp.zeros(3)})
    page = report._repr_mimebundle_()["text/html"]
    assert "<w>" not in page
    parts = re.sub(r"<[^>]+>", "\n", page).splitlines()
    shown = [html.unescape(part).strip() for part in parts if part.strip()]
    assert len(shown) == 1 + 6 + 2 * 6 + 2
    for part in shown:
        assert part in re.sub(r"\n  ", " ", repr(report))
    assert page.count("<tr>") == 3
    assert page.count('scope="row"') == 2
    assert page.count('scope="col"') == 6
    assert report._repr_mimebundle_()["text/plain"] == repr(report)


def test_memory_is_frozen(mesh):
    report = memory([jnp.zeros(3)])
    with pytest.raises(AttributeError):
        report.lines = ()
    assert isinstance(report, Memory)
    assert math.isclose(report.bytes_on_all_devices, 12)


# What it refuses.


@pytest.mark.parametrize(
    ("tree", "more", "error", "text"),
    [
        (
            {"opt": {"name": "adam"}},
            {},
            errors.NotUnderstood,
            "leaf 'opt/name': 'adam' is a str, not an array; hand over the arrays "
            r"alone, such as nnx.state\(model\), or take this leaf out of the tree.$",
        ),
        (
            [jnp.sin],
            {},
            errors.NotUnderstood,
            r"leaf '0': .* is a \w+, not an array; hand over the arrays alone, such as "
            r"nnx.state\(model\), or take this leaf out of the tree.",
        ),
        (
            {"a": struct(3)},
            {},
            errors.NotUnderstood,
            r"leaf 'a': ShapeDtypeStruct\(shape=\(3,\), dtype=float32\) has no "
            r"sharding yet; give one, such as memory\(tree, P\('data'\), "
            r"mesh=mesh\), or memory\(tree, shardings\) with a tree of NamedShard",
        ),
        (
            struct(3),
            {"shardings": P("data")},
            errors.NotUnderstood,
            r"leaf '\(the array\)': P(artitionSpec)?\('data'\) comes without a mesh; "
            r"give the mesh too, as in memory\(tree, P\('data'\), mesh=mesh\).$",
        ),
        (
            {"a": struct(3)},
            {"shardings": P("data"), "mesh": {"data": 2}},
            errors.NotDivisible,
            r"leaf 'a': sharding=P\('data'\): dimension 0 of shape \(3,\) has 3 ele",
        ),
        (
            {"a": struct(4)},
            {"shardings": P("date"), "mesh": {"data": 2}},
            errors.UnknownAxis,
            r"leaf 'a': .*Did you mean P\('data'\)\?",
        ),
        (
            {"a": struct(4)},
            {"shardings": {"b": P()}, "mesh": {"data": 2}},
            errors.NotUnderstood,
            r"shardings=\{'b': P\w*\(\)\} has no spec for the leaf 'a'; give one "
            "sharding for all leaves, or a tree with the same keys, with None for what "
            "stays as it is.",
        ),
        (
            {"a": struct(4)},
            {"shardings": {"a": P(), "b": P()}, "mesh": {"data": 2}},
            errors.NotUnderstood,
            r"shardings=.* has 'b', which is not in the tree; give a tree with the "
            "same keys.",
        ),
        (
            {"a": struct(4)},
            {"shardings": {"a": "data"}, "mesh": {"data": 2}},
            errors.NotUnderstood,
            r"shardings=\{'a': 'data'\}: 'data' at 'a' is not a sharding; give a "
            "NamedSharding, a PartitionSpec, or None for a leaf that stays as it is.",
        ),
        (
            {"a": struct(4)},
            {"shardings": AbstractMesh((2,), ("data",))},
            errors.NotUnderstood,
            r"shardings=… is a mesh; give it by name, memory\(tree, mesh=mesh\), "
            r"and beside it the spec, such as memory\(tree, P\('data'\), mesh=mes",
        ),
        (
            {"a": struct(4)},
            {"mesh": 4},
            errors.NotUnderstood,
            "mesh=4 is not a mesh; give a jax.sharding.Mesh",
        ),
    ],
)
def test_one_clear_error(tree, more, error, text):
    with pytest.raises(error, match=f"^{text}") as caught:
        memory(tree, **more)
    assert caught.value.__cause__ is None
    assert len(caught.traceback) == 2, "the way there teaches nothing"


def test_inside_a_jitted_function():
    with pytest.raises(errors.NotUnderstood, match="leaf 'a': x is a tracer"):
        jax.jit(lambda x: memory({"a": x}))(jnp.zeros(3))
