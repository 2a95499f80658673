"""ShardingInfo by example: what it reads, what it says, what it refuses and how."""

import subprocess
import sys
import warnings

import flax.linen as linen
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import spmd_helpers
from spmd_helpers import _errors as errors
from spmd_helpers._core.words import bytes_words, device_list, table
from spmd_helpers._shardings.from_jax import read_mesh
from spmd_helpers._shardings.from_jax import sharding as read_sharding
from spmd_helpers._shardings.sharding import ShardingInfo
from tests.stand_ins import guarded, put

# What it reads.


def test_an_array(mesh):
    info = read_sharding(put((8, 10), mesh, "data"))
    assert info.shape == (8, 10)
    assert info.dtype == "float32"
    assert info.mesh_shape == {"data": 4, "model": 2}
    assert info.spec == P("data")
    assert info.entries == (("data",), ())
    assert info.shard_shape == (2, 10)
    assert info.grid == (4, 1)
    assert info.replicas == 2
    assert info.replicated_over == ("model",)
    assert info.bytes_per_device == 80
    assert info.total_bytes == 320
    assert info.owners == {
        (0, 0): (0, 1),
        (1, 0): (2, 3),
        (2, 0): (4, 5),
        (3, 0): (6, 7),
    }
    assert info.device_ids == tuple(range(8))
    assert info.platform == "8 × cpu"
    assert repr(info) == (
        "ShardingInfo(float32[8, 10] as P('data', None) over data=4 × model=2: (2, "
        "10) a device, 80 B, 2 replicas)"
    )


def test_the_first_axis_of_a_tuple_is_the_slowest(mesh):
    there = read_sharding((8,), NamedSharding(mesh, P(("data", "model"))))
    back = read_sharding((8,), NamedSharding(mesh, P(("model", "data"))))
    assert [there.owners[i,] for i in range(8)] == [(i,) for i in range(8)]
    assert [back.owners[i,] for i in range(8)] == [
        (i,) for i in (0, 2, 4, 6, 1, 3, 5, 7)
    ]


def test_an_axis_of_one_device_is_no_replication(mesh):
    info = read_sharding((4, 6), P(None, "model"), mesh={"data": 1, "model": 2})
    assert info.replicas == 1
    assert info.replicated_over == ()


def test_a_permuted_mesh_keeps_positions_and_ids_apart():
    order = [0, 4, 1, 5, 2, 6, 3, 7]
    mesh = Mesh(np.array(jax.devices())[order].reshape(2, 4), ("data", "model"))
    info = read_sharding(put((6, 12), mesh, "data"))
    assert info.owners[1, 0] == (4, 5, 6, 7)
    assert info.devices((1, 0)) == (2, 6, 3, 7)


def test_one_device():
    info = read_sharding(jnp.zeros((6, 10)))
    assert info.mesh_shape == {}
    assert info.spec is None
    assert info.device_ids == (0,)
    assert info.owners == {(0, 0): (0,)}
    assert info.shard_shape == (6, 10)
    assert (
        repr(info)
        == "ShardingInfo(float32[6, 10] on one device: (6, 10) a device, 240 B)"
    )
    assert read_sharding(jax.device_put(jnp.zeros(3), jax.devices()[5])).device_ids == (
        5,
    )


def test_a_shape_on_one_device():
    device = jax.sharding.SingleDeviceSharding(jax.devices()[2])
    assert read_sharding((6, 10), device).device_ids == (2,)


def test_pmap_shows_no_private_name():
    info = read_sharding(jax.pmap(lambda x: x)(jnp.zeros((8, 3))))
    assert info.mesh_shape == {"(pmap axis)": 8}
    assert info.entries == (("(pmap axis)",), ())
    assert "internal" not in repr(info) + str(info.spec)
    assert info.shard_shape == (1, 3)
    assert info.replicas == 1


def test_a_terabyte_of_nothing(mesh):
    x = jax.ShapeDtypeStruct(
        (2**20, 2**19), jnp.bfloat16, sharding=NamedSharding(mesh, P("data", "model"))
    )
    info = read_sharding(x)
    assert info.total_bytes == 2**40
    assert info.bytes_per_device == 2**37


def test_many_devices():
    mesh = AbstractMesh((64, 128), ("data", "model"))
    info = read_sharding((8192, 8192), NamedSharding(mesh, P("model", "data")))
    assert len(info.owners) == 8192
    assert info.owners[1, 0] == (1,)


def test_data_is_never_touched(mesh):
    assert read_sharding(guarded(mesh)).shard_shape == (2, 4)


def test_a_donated_array_still_tells(mesh):
    x = put((8, 2), mesh, "data")
    x.delete()
    assert read_sharding(x).shard_shape == (2, 2)


def test_flax_variables_without_warnings(mesh):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kernel = nnx.Linear(2, 3, rngs=nnx.Rngs(0)).kernel
        assert read_sharding(kernel).shape == (2, 3)
        assert read_sharding(nnx.Param(put((8, 2), mesh, "data"))).shard_shape == (2, 2)
        assert read_sharding(
            linen.Partitioned(put((8,), mesh, "data"), ("a",))
        ).grid == (4,)


def test_an_info_comes_back_and_takes_another_sharding(mesh):
    info = read_sharding(put((8, 2), mesh, "data"))
    assert read_sharding(info) is info
    assert read_sharding(info, NamedSharding(mesh, P(None, "model"))).shard_shape == (
        8,
        1,
    )


def test_an_array_can_be_laid_anew(mesh):
    x = put((8, 2), mesh, "data", dtype=jnp.int8)
    assert read_sharding(x, P(None, "model"), mesh=mesh).bytes_per_device == 8


def test_the_type_of_an_explicit_array_inside_jit():
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Explicit,) * 2)
    types = []

    @jax.jit
    def f(x):
        types.append(read_sharding(jax.typeof(x)))
        return x

    f(put((8, 2), mesh, "data"))
    assert types[0].shard_shape == (2, 2)
    assert types[0].device_ids is None


@pytest.mark.parametrize(
    ("dtype", "name", "size"),
    [
        ("bool", "bool", 1),
        ("float8_e4m3fn", "float8_e4m3fn", 1),
        ("complex64", "complex64", 8),
        ("key<fry>", "key<fry>", 8),
        (jnp.bfloat16, "bfloat16", 2),
        (np.int16, "int16", 2),
        (np.dtype("float64"), "float64", 8),
        (int, "int64", 8),
    ],
)
def test_dtypes(dtype, name, size):
    info = read_sharding((4,), P("a"), mesh={"a": 2}, dtype=dtype)
    assert (info.dtype, info.itemsize, info.bytes_per_device) == (name, size, 2 * size)


@pytest.mark.parametrize("name", ["bool", "int4", "bfloat16", "float8_e5m2", "uint32"])
def test_dtypes_by_name_have_the_bytes_that_jax_counts(name):
    assert (
        read_sharding((), P(), mesh={}, dtype=name).itemsize == jnp.dtype(name).itemsize
    )


def test_prng_keys(mesh):
    keys = jax.random.split(jax.random.key(0), 8)
    info = read_sharding(jax.device_put(keys, NamedSharding(mesh, P("data"))))
    assert info.dtype == "key<fry>"
    assert info.bytes_per_device == 16


def test_partial_sums_are_not_copies():
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Explicit,) * 2)
    sharding = NamedSharding(mesh, P("data", unreduced={"model"}))
    assert read_sharding((8, 2), sharding).unreduced == ("model",)


def test_equality_and_order_of_mesh_axes():
    one = ShardingInfo((8,), mesh_shape={"a": 2, "b": 4}, entries=("a",))
    assert one == ShardingInfo((8,), mesh_shape={"a": 2, "b": 4}, entries=(("a",),))
    assert one != ShardingInfo((8,), mesh_shape={"b": 4, "a": 2}, entries=("a",))
    assert len({one, read_sharding(one)}) == 1


def test_neither_a_sharding_nor_its_drawing_needs_jax():
    code = (
        "import sys\n"
        "from spmd_helpers._drawing.draw import draw, draw_mesh\n"
        "from spmd_helpers._shardings.sharding import ShardingInfo\n"
        "d = draw(ShardingInfo((8, 2), mesh_shape={'data': 4}, entries=('data',)))\n"
        "str(d), d.svg, d._repr_mimebundle_(), str(draw_mesh({'a': 2}))\n"
        "found = {'jax', 'numpy', 'matplotlib'} & set(sys.modules)\n"
        "assert not found, found\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


# What it refuses, and how.


def refused(kind, call):
    with pytest.raises(kind) as caught:
        call()
    assert type(caught.value) is kind
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__
    return str(caught.value)


SIZES = {"data": 4, "model": 2}


@pytest.mark.parametrize(
    ("kind", "shape", "spec", "words"),
    [
        (
            errors.UnknownAxis,
            (8, 10),
            P("dta"),
            "sharding=P('dta'): the mesh has no axis 'dta'; its axes are 'data' (4) "
            "and 'model' (2). Did you mean P('data')?",
        ),
        (
            errors.UnknownAxis,
            (8, 10),
            P(None, "zzz"),
            "sharding=P(None, 'zzz'): the mesh has no axis 'zzz'; its axes are 'data' "
            "(4) and 'model' (2). Use one of them, or None to leave the dimension "
            "unsharded.",
        ),
        (
            errors.TooManyEntries,
            (8,),
            P("data", "model"),
            "sharding=P('data', 'model') has 2 entries, but the array of shape (8,) "
            "has 1 dimension; give at most one entry a dimension, such as P('data').",
        ),
        (
            errors.TooManyEntries,
            (),
            P(None),
            "sharding=P(None) has 1 entry, but the array of shape () has 0 dimensions; "
            "give at most one entry a dimension, such as P().",
        ),
        (
            errors.NotDivisible,
            (6, 10),
            P("data"),
            "sharding=P('data', None): dimension 0 of shape (6, 10) has 6 elements, "
            "which do not divide into 4 equal shards over 'data' (4); make it 4 or 8, "
            "or leave it unsharded with P(None, None).",
        ),
        (
            errors.NotDivisible,
            (1, 10),
            P("data"),
            "sharding=P('data', None): dimension 0 of shape (1, 10) has 1 element, "
            "which does not divide into 4 equal shards over 'data' (4); make it 4, or "
            "leave it unsharded with P(None, None).",
        ),
        (
            errors.NotDivisible,
            (8, 7),
            P(None, ("data", "model")),
            "sharding=P(None, ('data', 'model')): dimension 1 of shape (8, 7) has 7 "
            "elements, which do not divide into 8 equal shards over 'data' (4) and "
            "'model' (2); make it 8, or leave it unsharded with P(None, None).",
        ),
        (
            errors.NotUnderstood,
            (8, 10),
            P("data", P.UNCONSTRAINED),
            "sharding=P('data', UNCONSTRAINED): UNCONSTRAINED leaves a dimension to "
            "the compiler, so there is nothing to lay out yet; name axes, or None for "
            "an unsharded dimension.",
        ),
    ],
)
def test_a_spec_that_does_not_fit(kind, shape, spec, words):
    assert refused(kind, lambda: read_sharding(shape, spec, mesh=SIZES)) == words


def test_an_axis_used_twice():
    """JAX refuses such a NamedSharding itself; a dict of sizes comes this far."""
    words = refused(
        errors.AxisUsedTwice,
        lambda: read_sharding((8, 8), P("data", ("model", "data")), mesh=SIZES),
    )
    assert words == (
        "sharding=P('data', ('model', 'data')) uses the mesh axis 'data' for "
        "dimension 0 and again for dimension 1; an axis can shard only one dimension "
        "of an array, so use it once, such as P('data', 'model')."
    )


def test_an_axis_twice_in_one_place():
    words = refused(
        errors.AxisUsedTwice,
        lambda: read_sharding((8,), P(("data", "data")), mesh=SIZES),
    )
    assert words == (
        "sharding=P(('data', 'data')) uses the mesh axis 'data' twice for dimension "
        "0; an axis can shard only one dimension of an array, so use it once, such as "
        "P('data')."
    )


def test_the_only_axis_is_named_as_one():
    words = refused(
        errors.UnknownAxis, lambda: read_sharding((8,), P("q"), mesh={"x": 8})
    )
    assert words == (
        "sharding=P('q'): the mesh has no axis 'q'; its only axis is 'x' (8). Use it, "
        "or None to leave the dimension unsharded."
    )


def test_a_list_is_a_tuple_and_none_in_quotes_is_an_axis():
    """As JAX has it, on every version that is held here."""
    listed = read_sharding((8,), P(["data", "model"]), mesh=SIZES)
    assert listed.entries == (("data", "model"),)
    mesh = jax.make_mesh(
        (2,), ("None",), devices=jax.devices()[:2], axis_types=(AxisType.Auto,)
    )
    for spec, shard in ((P("None"), (4,)), (P(None), (8,))):
        assert NamedSharding(mesh, spec).shard_shape((8,)) == shard
        assert read_sharding((8,), spec, mesh=mesh).shard_shape == shard
        assert read_sharding((8,), spec, mesh={"None": 2}).shard_shape == shard
    refused(errors.UnknownAxis, lambda: read_sharding((8,), P("None"), mesh=SIZES))


@pytest.mark.parametrize(
    ("mesh", "words"),
    [
        (
            {"data": 0},
            "mesh={'data': 0}: axis 'data' has size 0; a mesh maps each axis name to "
            "a number of devices, 1 or more, such as {'data': 4, 'model': 2}.",
        ),
        (
            {"data": 2.0},
            "mesh={'data': 2.0}: axis 'data' has size 2.0; a mesh maps each axis name "
            "to a number of devices, 1 or more, such as {'data': 4, 'model': 2}.",
        ),
        (
            {4: 2},
            "mesh={4: 2}: axis 4 has size 2; a mesh maps each axis name to a number "
            "of devices, 1 or more, such as {'data': 4, 'model': 2}.",
        ),
        (
            (4, 2),
            "mesh=(4, 2) is not a mesh; give a jax.sharding.Mesh, an AbstractMesh, or "
            "a dict from axis name to number of devices, such as {'data': 4, 'model': "
            "2}.",
        ),
    ],
)
def test_a_mesh_that_is_none(mesh, words):
    assert (
        refused(errors.NotUnderstood, lambda: read_sharding((8,), P(), mesh=mesh))
        == words
    )


def test_another_mesh_than_the_array_s(mesh):
    x = put((8, 2), mesh, "data")
    assert (
        read_sharding(x, mesh=mesh) == read_sharding(x, mesh=SIZES) == read_sharding(x)
    )
    assert refused(errors.MeshMismatch, lambda: read_sharding(x, mesh={"data": 8})) == (
        "mesh={'data': 8} is not where x is: x is on the mesh data=4 × model=2. Leave "
        "mesh= out, or move the array first with "
        "jax.device_put(x, NamedSharding(mesh, P()))."
    )
    turned = Mesh(mesh.devices[::-1], mesh.axis_names)
    assert refused(errors.MeshMismatch, lambda: read_sharding(x, mesh=turned)) == (
        "mesh={'data': 4, 'model': 2} has the same devices in another order than x: "
        "[6, 7, 4, 5, 2, 3, 0, 1] against [0, 1, 2, 3, 4, 5, 6, 7]. Leave mesh= out, "
        "or move the array first with jax.device_put(x, NamedSharding(mesh, P()))."
    )
    sharding = NamedSharding(mesh, P("data"))
    words = refused(
        errors.MeshMismatch, lambda: read_sharding((8,), sharding, mesh={"model": 2})
    )
    assert words.startswith(
        "mesh={'model': 2} is not where sharding is: sharding is on the mesh data=4"
    )
    alone = jax.device_put(jnp.zeros(3), jax.devices()[3])
    words = refused(errors.MeshMismatch, lambda: read_sharding(alone, mesh=mesh))
    assert words.startswith(
        "mesh={'data': 4, 'model': 2} is not where x is: x is on dev"
    )
    assert "device 3." in words


@pytest.mark.parametrize(
    ("x", "words"),
    [
        (
            np.zeros((6, 10)),
            "x is a NumPy array of shape (6, 10), which has no sharding yet; put it on "
            "devices first, x = jax.device_put(x, NamedSharding(mesh, P())), or give "
            "its shape and the sharding that you have in mind, "
            "spmd.sharding(x.shape, NamedSharding(mesh, P())).",
        ),
        (
            3.5,
            "x=3.5 is a Python number, which has no sharding yet; put it on devices "
            "first, x = jax.device_put(x, NamedSharding(mesh, P())).",
        ),
        (
            jax.ShapeDtypeStruct((8,), jnp.int8),
            "x is a ShapeDtypeStruct of shape (8,), which has no sharding yet; make it "
            "with one, jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, "
            "P())), or give one here, spmd.sharding(x, NamedSharding(mesh, P())).",
        ),
        (
            {"w": 1},
            "x is a dict, not one array; for a tree of arrays use "
            "jax.tree.map(spmd.sharding, x), and write a shape as a tuple of integers.",
        ),
        (
            (6, 10),
            "x=(6, 10) is a bare shape without a sharding; give one, such as "
            "spmd.sharding(x, NamedSharding(mesh, P('data'))) or spmd.sharding(x, "
            "P('data'), mesh=mesh).",
        ),
        (
            None,
            "x=None is not an array; give a jax.Array, a jax.ShapeDtypeStruct with a "
            "sharding, one Flax variable, or a shape and a sharding.",
        ),
    ],
)
def test_what_lies_nowhere(x, words):
    assert refused(errors.NotUnderstood, lambda: read_sharding(x)) == words


@pytest.mark.parametrize(
    ("sharding", "words"),
    [
        (
            P("data"),
            "sharding=P('data') comes without a mesh; give the mesh too, as in "
            "spmd.sharding((6, 10), P('data'), mesh=mesh).",
        ),
        (
            ("data", None),
            "sharding=('data', None) is not a sharding; write NamedSharding(mesh, "
            "P('data', None)), or P('data', None) together with mesh=.",
        ),
        (
            "data",
            "sharding='data' is not a sharding; write NamedSharding(mesh, P('data')), "
            "or P('data') together with mesh=.",
        ),
    ],
)
def test_what_is_no_sharding(sharding, words):
    assert (
        refused(errors.NotUnderstood, lambda: read_sharding((6, 10), sharding)) == words
    )


def test_a_mesh_or_a_sharding_in_the_place_of_an_array(mesh):
    assert refused(errors.NotUnderstood, lambda: read_sharding(mesh)) == (
        "x is a mesh, not an array; use draw_mesh(x)."
    )
    sharding = NamedSharding(mesh, P("data"))
    assert refused(errors.NotUnderstood, lambda: read_sharding(sharding)) == (
        "x is a sharding; give the shape of an array first, spmd.sharding((6, 10), x)."
    )


def test_a_sharding_without_axes():
    class Odd:
        shape, dtype, sharding = (8,), np.dtype("float32"), object()

    assert refused(errors.NotUnderstood, lambda: read_sharding(Odd())) == (
        "x has a sharding of the kind object, which names no mesh axes; move the array "
        "first with jax.device_put(x, NamedSharding(mesh, P()))."
    )


def test_shapes_and_dtypes_that_are_none():
    def call(shape, dtype="float32"):
        return refused(
            errors.NotUnderstood,
            lambda: read_sharding(shape, P(), mesh=SIZES, dtype=dtype),
        )

    assert call((-8,)) == (
        "x=(-8,) is not a shape; a shape is a tuple of integers, 0 or more, such as "
        "(6, 10)."
    )
    assert call((8,), "flot") == (
        "dtype='flot' is not the name of an element type; give one such as 'float32', "
        "'bfloat16' or 'int8'."
    )
    assert call((8,), len) == (
        "dtype=<built-in function len> is not an element type; give one such as "
        "'float32', 'bfloat16' or jnp.int8."
    )


def test_tracers_are_told_where_to_look(mesh):
    said = []

    @jax.jit
    def f(x):
        said.append(refused(errors.NotUnderstood, lambda: read_sharding(x)))
        said.append(refused(errors.NotUnderstood, lambda: read_sharding(jax.typeof(x))))
        return x

    f(put((8, 2), mesh, "data"))
    assert said == [
        "x is a tracer: while JAX traces a function there is no array yet, and on Auto "
        "axes no sharding either. Look at jax.typeof(x) there, or call this outside of "
        "the function, on what it takes or returns.",
        "x is the type float32[8,2], which includes the sharding only on a mesh with "
        "Explicit axes; call this outside of the function, on what it takes or "
        "returns.",
    ]


def test_read_mesh_takes_what_it_gave(mesh):
    facts = read_mesh(mesh)
    assert facts.shape == SIZES
    assert facts.size == 8
    assert read_mesh(facts) is facts
    assert read_mesh(AbstractMesh((4, 2), ("data", "model"))).device_ids is None


# Words for numbers.


@pytest.mark.parametrize(
    ("n", "words"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (1536, "1.5 KiB"),
        (102350, "100 KiB"),
        (2**20 - 1, "1 MiB"),
        (2**20 - 600, "1023 KiB"),
        (10**12, "931 GiB"),
        (2**40, "1 TiB"),
        (3 * 2**70, "3072 EiB"),
    ],
)
def test_bytes_words(n, words):
    assert bytes_words(n) == words


def test_negative_bytes():
    with pytest.raises(ValueError, match=r"^n=-1: a number of bytes is 0 or more\.$"):
        bytes_words(-1)


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        ([], ""),
        ([7], "7"),
        ([3, 1], "1, 3"),
        ([0, 2, 4, 6], "0, 2, 4, 6"),
        (range(512), "0–511"),
        (range(1, 16, 2), "1, 3, 5 … 15"),
        ([0, 1, 4, 5], "0, 1, 4, 5"),
        ([0, 1, 2, 3, 8, 9, 10, 11], "0–3, 8–11"),
        ([0, 1, 8, 9, 16, 17, 24, 25], "0, 1, 8 … 25 (8 in all)"),
    ],
)
def test_device_list(ids, words):
    assert device_list(ids) == words


def test_table_of_uneven_rows():
    assert table([("a", "bb"), ("ccc",), ()], gap=1) == "a   bb\nccc\n"
    assert table([]) == ""


@pytest.mark.parametrize("name", ["layout", "Layout"])
def test_a_name_that_meant_memory_order_is_not_there(name):
    """In JAX a Layout is the order in memory inside one device."""
    with pytest.raises(AttributeError, match=f"has no attribute '{name}'"):
        getattr(spmd_helpers, name)
