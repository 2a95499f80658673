"""The asserts: what passes, what fails, in which words."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import spmd_helpers as spmd


def put(mesh, shape, *spec):
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    return jax.device_put(x, NamedSharding(mesh, P(*spec)))


def failure(call, *args, **kwargs) -> str:
    with pytest.raises(spmd.CheckFailed) as caught:
        call(*args, **kwargs)
    return str(caught.value)


# assert_close


@pytest.mark.parametrize(
    ("got", "want", "words"),
    [
        (28.0, 3.5, "28.0 is 8 times the expected value"),
        (0.0, 3.5, "0.0 is zero, not the expected value"),
        (np.full(3, 2.0), np.full(3, 1.0), "every value is 2 times the expected value"),
        (np.array([1.0001, 2, 3]), np.array([1.0, 2, 3]), "off by up to 0.0001, tol"),
        ([1, 2], [1, 3], "[1]: 2 is not right"),
        (np.arange(4), np.array([0, 1, 2, 9]), "1 of 4 values are not right"),
        (np.ones((2, 3)), np.ones((3, 2)), "shape (2, 3), but it must be (3, 2)"),
        (True, 1, "bool values, but they must be int64"),
        (1.0, True, "float64 values, but they must be bool"),
        (np.array([1.0, np.nan]), np.ones(2), "1 of 2 values are not finite"),
        (np.array([1.0, 5, 7]), np.array([np.inf, 2, 3]), "not infinite or NaN as"),
        (np.array([1.0, 2]), np.array([1.0, np.nan]), "1 of 2 values are not inf"),
        (1 + 2j, 1 + 3j, "(1+2j) is not right: off by 1, tolerance 3.2e-05"),
        (1 + 2j, 1.0, "(1+2j) is not right: off by 2, tolerance 1e-05"),
        (jax.random.key(0), jax.random.key(1), "1 of 2 values are not right"),
        (jnp.bfloat16(2), jnp.bfloat16(3), "is 0.6667 times the expected value"),
        (jnp.int4(2), jnp.int4(3), "2 is not right"),
        (1.0, None, "one value, but it must be a tree with no leaves"),
        ("a", "b", "'a' is not right"),
        ("4", 4, "'4' is not a number or an array"),
        ({"a": 1}, {"a": 1, "b": 2}, "['b']: is missing"),
        ({"a": 1, "b": 2}, {"a": 1}, "['b']: is not expected"),
        (None, 1, "None, but it must be a value or a tree of values"),
        ({"a": None}, {"a": 1}, "['a']: is missing, it is None"),
        ([1, 2], 1, "a tree with [0] and [1], but it must be one value"),
        (1, [1, 2], "one value, but it must be a tree with [0] and [1]"),
        (object(), 1, "is not a number or an array"),
    ],
)
def test_assert_close_says_what_differs(got, want, words):
    assert words in failure(spmd.assert_close, got, want)


def test_assert_close_passes_what_is_not_finite_in_both():
    x = np.array([np.inf, -np.inf, np.nan, 1.0])
    spmd.assert_close(x, x.copy())
    spmd.assert_close(jax.random.key(3), jax.random.key(3))


@pytest.mark.parametrize("rtol", ["x", None, -1, True, float("nan")])
def test_assert_close_wants_a_tolerance(rtol):
    with pytest.raises(spmd.NotUnderstood, match="write a number, like 1e-5"):
        spmd.assert_close(1.0, 1.0, rtol=rtol)


def test_assert_close_gathers_all_that_differs():
    message = failure(
        spmd.assert_close, {"a": 1, "b": 2, "c": 3}, {"a": 0, "b": 2, "c": 0}
    )
    assert message == "['a']: 1 is not right\n['c']: 3 is not right"


def test_assert_close_is_not_pleased_by_an_object_that_equals_everything():
    class Yes:
        def __eq__(self, other):
            return True

    assert "is not a number or an array" in failure(spmd.assert_close, Yes(), 5)


floats = hnp.arrays(
    np.float32, st.integers(1, 20), elements=st.floats(-1e3, 1e3, width=32)
)


@given(floats)
def test_assert_close_passes_what_is_equal(x):
    spmd.assert_close({"x": x}, {"x": x.copy()}, rtol=0)
    spmd.assert_close(jnp.asarray(x), x, rtol=0)


@given(floats, st.floats(1e-4, 0.5), st.data())
def test_assert_close_holds_its_tolerance(x, rtol, data):
    scale = float(np.abs(x).max())
    if scale < 1e-3:
        return
    at = data.draw(st.integers(0, len(x) - 1))
    inside, outside = x.astype(np.float64), x.astype(np.float64)
    inside[at] += 0.9 * rtol * scale
    outside[at] += 1.1 * rtol * scale
    spmd.assert_close(inside, x, rtol=rtol)
    failure(spmd.assert_close, outside, x, rtol=rtol)


# assert_sharding


def test_assert_sharding_takes_every_spelling_of_one_sharding(mesh):
    x = put(mesh, (8, 6), "data")
    for spec in (P("data"), P("data", None), P(("data",))):
        spmd.assert_sharding(x, spec)
        spmd.assert_sharding(x, spec, mesh)


def test_assert_sharding_takes_a_tree_of_specs(mesh):
    tree = {"w": put(mesh, (8, 6), None, "model"), "b": put(mesh, (6,), "model")}
    spmd.assert_sharding(tree, {"w": P(None, "model"), "b": P("model")})
    spmd.assert_sharding({"layer": tree, "x": tree["b"]}, {"layer": {
        "w": P(None, "model"), "b": P("model")}, "x": P("model")})  # fmt: skip


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (P(), "is sharded as P('data', None), (2, 6) per device, but must be P(None"),
        (P(None, "data"), None),  # 6 does not divide by 4: the check's own mistake
        (P("model"), "must be P('model', None), (4, 6) per device"),
        (P(("data", "model")), "must be P(('data', 'model'), None), (1, 6)"),
    ],
)
def test_assert_sharding_says_how_it_lies(mesh, spec, words):
    x = put(mesh, (8, 6), "data")
    if words is None:
        with pytest.raises(spmd.NotDivisible):
            spmd.assert_sharding(x, spec)
    else:
        assert words in failure(spmd.assert_sharding, x, spec)


def test_assert_sharding_gathers_every_leaf(mesh):
    tree = {"a": put(mesh, (8,), "data"), "b": put(mesh, (8,)), "c": jnp.ones(8)}
    message = failure(spmd.assert_sharding, tree, P())
    assert [line[:5] for line in message.splitlines()] == ["['a']", "['c']"]
    assert "float32[8] is on one device only, without a mesh" in message


def test_assert_sharding_wants_jax_arrays_and_specs(mesh):
    message = failure(spmd.assert_sharding, np.ones(8), P())
    assert "a value of type ndarray has no sharding" in message
    assert "the tree is empty" in failure(spmd.assert_sharding, {}, P())
    for spec in ("data", ("data",), None, {"a": None}):
        with pytest.raises(spmd.NotUnderstood, match="write a PartitionSpec, like"):
            spmd.assert_sharding(put(mesh, (8,)), spec)
    for other in ({"data": 8}, 3, "data"):
        with pytest.raises(spmd.NotUnderstood, match="give a Mesh, like"):
            spmd.assert_sharding(put(mesh, (8,)), P(), other)
    with pytest.raises(spmd.UnknownAxis, match=r"^\['a'\]: "):
        spmd.assert_sharding({"a": put(mesh, (8,))}, P("dota"))
    message = failure(spmd.assert_sharding, {"a": jnp.ones(8)}, {"b": P()})
    assert "differs in structure from the tree of specs" in message


def test_assert_sharding_tells_the_same_cut_on_another_mesh(mesh):
    other = jax.sharding.Mesh(mesh.devices[::-1], mesh.axis_names)
    x = put(other, (8, 6), "data")
    spmd.assert_sharding(x, P("data"))
    spmd.assert_sharding(x, P("data"), mesh.abstract_mesh)
    message = failure(spmd.assert_sharding, x, P("data"), mesh)
    assert message == "float32[8, 6] has the expected spec, but is on a different mesh"


def test_what_is_not_added_yet_has_no_values_and_another_cut():
    types = (AxisType.Explicit,) * 2
    mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=types)
    added, parts = P("data", None), P("data", None, unreduced={"model"})
    place = NamedSharding(mesh, parts)
    contract = (((1,), (0,)), ((), ()))
    product = jax.jit(
        lambda a, b: jax.lax.dot_general(a, b, contract, out_sharding=place)
    )
    a, b = np.ones((8, 12), np.float32), np.ones((12, 6), np.float32)
    placed = (
        jax.device_put(a, NamedSharding(mesh, P("data", "model"))),
        jax.device_put(b, NamedSharding(mesh, P("model", None))),
    )
    c = product(*placed)
    spmd.assert_sharding(c, parts, mesh)
    said = "each device has only a partial sum: it is not added up over model yet"
    assert failure(spmd.assert_close, c, a @ b) == said
    one = functools.partial(spmd.assert_same_as_one_device, product, *placed)
    assert said in failure(functools.partial(one, reference=jnp.matmul))
    lies = "P('data', None), (4, 6) per device"
    message = failure(spmd.assert_sharding, c, added, mesh)
    assert message == (
        f"float32[8, 6] is sharded as {lies} as partial sums over model,"
        f" but must be {lies}"
    )
    summed = jax.device_put(a @ b, NamedSharding(mesh, added))
    message = failure(spmd.assert_sharding, summed, parts, mesh)
    assert message.endswith("as partial sums over model")


# assert_same_as_one_device


def test_same_as_one_device_passes_what_is_right_and_keeps_the_arguments(mesh):
    x = put(mesh, (8, 6), "data", "model")
    f = jax.jit(lambda x: (x.sum(), x * 2), donate_argnums=0)
    spmd.assert_same_as_one_device(f, x)
    assert not x.is_deleted()


def test_same_as_one_device_sees_a_wrong_collective(mesh):
    x = put(mesh, (8, 6), "data")

    def local(x):  # forgets to sum over the devices
        return jax.lax.pmean(x.sum(), "data")

    f = jax.shard_map(local, mesh=mesh, in_specs=P("data"), out_specs=P())
    message = failure(
        spmd.assert_same_as_one_device, jax.jit(f), x, reference=lambda x: x.sum()
    )
    assert message.startswith("not what one device computes: ")
    assert "is 0.25 times the expected value" in message


@pytest.mark.parametrize("wrap", [jax.grad, jax.value_and_grad, jax.vmap, jax.jit])
def test_same_as_one_device_runs_what_it_was_given(mesh, wrap):
    x = put(mesh, (8,), "data")
    f = wrap(lambda x: (x**2).sum())
    spmd.assert_same_as_one_device(f, x)


def test_same_as_one_device_keeps_static_arguments(mesh):
    f = jax.jit(lambda x, n: x.reshape(n, -1), static_argnums=1)
    spmd.assert_same_as_one_device(f, put(mesh, (8,), "data"), 4)


def test_same_as_one_device_says_when_it_needs_a_twin(mesh):
    f = jax.pmap(lambda x: jax.lax.psum(x, "i"), axis_name="i")
    with pytest.raises(NameError) as caught:
        spmd.assert_same_as_one_device(f, jnp.ones((8, 2)))
    assert "give its one-device twin as reference=" in caught.value.__notes__[0]


@pytest.mark.parametrize(("f", "reference"), [(None, None), (3, None), (len, 3)])
def test_same_as_one_device_wants_functions(f, reference):
    with pytest.raises(spmd.NotUnderstood, match="give a function"):
        spmd.assert_same_as_one_device(f, jnp.ones(3), reference=reference)


def test_same_as_one_device_takes_keys(mesh):
    key = jax.device_put(jax.random.key(0), NamedSharding(mesh, P()))
    spmd.assert_same_as_one_device(lambda k: jax.random.normal(k, (4,)), key)


# assert_collectives, assert_peak_memory


def test_collectives_against_a_budget(mesh):
    x = put(mesh, (8, 6), "data")
    spmd.assert_collectives(lambda x: x.sum(), x, exactly={"all-reduce": 1})
    spmd.assert_collectives(
        lambda x: x.sum(), x, at_most={"all-reduce": 1}, at_most_bytes=4, over="data"
    )
    report = spmd.xray(lambda x: x.sum(), x)
    spmd.assert_collectives(report, at_most={"all-reduce": 2})


@pytest.mark.parametrize(
    ("budget", "words"),
    [
        ({"at_most": {}}, "all-reduce runs 1 time"),
        ({"at_most": {"all-gather": 3}}, "but the budget is 0"),
        ({"exactly": {}}, "must run 0 times"),
        ({"exactly": {"all-reduce": 2}}, "but must run 2 times"),
        ({"exactly": {"all-reduce": 1, "all-gather": 1}}, "all-gather runs 0 times"),
        ({"at_least": {"all-reduce": 2}}, "but must run at least 2 times"),
        ({"at_least": {"all-gather": 1}}, "all-gather runs 0 times"),
        ({"over": "model"}, "runs over 'data', but may only run over 'model'"),
        ({"at_most_bytes": 3}, "4 bytes are communicated, but the budget is 3"),
        ({"at_least_bytes": 5}, "4 bytes are communicated, but at least 5 are needed"),
    ],
)
def test_collectives_over_budget(mesh, budget, words):
    x = put(mesh, (8, 6), "data")
    assert words in failure(spmd.assert_collectives, lambda x: x.sum(), x, **budget)


def test_collectives_in_a_loop_count_each_turn(mesh):
    x = put(mesh, (8, 6), "data")

    def f(x):
        return jax.lax.scan(lambda c, _: (c + (x * c).sum(), None), 0.0, None, 5)[0]

    spmd.assert_collectives(f, x, exactly={"all-reduce": 5})
    spmd.assert_collectives(f, x, at_most_bytes=20)
    assert "20 bytes" in failure(spmd.assert_collectives, f, x, at_most_bytes=19)
    assert "5 times" in failure(
        spmd.assert_collectives, f, x, at_most={"all-reduce": 4}
    )


def test_an_unknown_number_of_turns_fails_every_budget(mesh):
    x = put(mesh, (8, 6), "data")

    def f(x):
        return jax.lax.while_loop(lambda c: (x * c).sum() < 9e9, lambda c: c * 2, 1.0)

    message = failure(
        spmd.assert_collectives, f, x, at_most={"all-reduce": 99}, at_most_bytes=999
    )
    assert "an unknown number of times" in message
    assert "no count of bytes" in message


def test_a_collective_over_two_axes_is_not_over_one(mesh):
    x = put(mesh, (8, 6), ("data", "model"))
    message = failure(spmd.assert_collectives, lambda x: x.sum(), x, over="data")
    assert (
        message
        == "all-reduce runs over 'data' and 'model', but may only run over 'data'"
    )
    spmd.assert_collectives(lambda x: x.sum(), x, over=["data", "model"])


def test_groups_that_follow_no_axis_are_over_none():
    groups = [[0, 3], [1, 2], [4, 7], [5, 6]]
    f = jax.pmap(lambda x: jax.lax.psum(x, "i", axis_index_groups=groups), "i")
    message = failure(spmd.assert_collectives, f, jnp.ones((8, 3)), over="i")
    assert message == (
        "all-reduce runs over groups of devices that do not follow a mesh axis"
    )


def test_an_unknown_count_stays_unknown(mesh):
    x = put(mesh, (8, 6), "data")

    def f(x):
        y = jax.lax.while_loop(lambda c: (x * c).sum() < 9e9, lambda c: c * 2, 1.0)
        return (x * y).max(), (x * y).sum()

    assert "unknown" in failure(
        spmd.assert_collectives, f, x, at_most={"all-reduce": 9}
    )


@pytest.mark.parametrize(
    ("budget", "words"),
    [
        (
            {"at_most": {"all_reduce": 1}},
            "not a kind of collective. Did you mean 'all-reduce'?",
        ),
        (
            {"exactly": {"psum": 0}},
            "'psum' is not a kind of collective. Give 'all-gather', ",
        ),
        ({"exactly": "all-reduce"}, "write kinds and numbers, like"),
        ({"exactly": 1}, "write kinds and numbers, like"),
        ({"at_most": {"all-reduce": "1"}}, "write kinds and numbers, like"),
        ({"over": 3}, "write the name of a mesh axis"),
        ({"over": ()}, "write the name of a mesh axis"),
        ({"at_most_bytes": "4"}, "='4' is not a number of bytes; give an integer"),
        ({"at_most_bytes": -1}, "=-1 is not a number of bytes; give an integer"),
    ],
)
def test_budgets_that_cannot_be_read(mesh, budget, words):
    with pytest.raises(spmd.NotUnderstood) as caught:
        spmd.assert_collectives(lambda x: x, put(mesh, (8, 6), "data"), **budget)
    assert words in str(caught.value)


def test_over_an_axis_that_is_not_there(mesh):
    with pytest.raises(spmd.UnknownAxis, match="no axis 'zzz'; it has 'data' and 'mod"):
        spmd.assert_collectives(lambda x: x, put(mesh, (8, 6), "data"), over="zzz")


def test_collectives_without_a_budget_is_a_mistake(mesh):
    with pytest.raises(spmd.NotUnderstood, match="needs a budget to check"):
        spmd.assert_collectives(lambda x: x, put(mesh, (8, 6)))


def test_peak_memory(mesh):
    x = put(mesh, (1024, 256), "data")  # 256 KiB a device, and as much for the result
    spmd.assert_peak_memory(lambda x: x + 1, x, at_most_bytes=600_000)
    message = failure(spmd.assert_peak_memory, lambda x: x + 1, x, at_most_bytes=1024)
    assert "per device at its peak, but the budget is 1 KiB" in message
    report = spmd.xray(lambda x: x + 1, x)
    spmd.assert_peak_memory(report, at_most_bytes=600_000)
    unknown = dataclasses.replace(report, peak_memory=None)
    with pytest.raises(spmd.NotUnderstood, match="gives no figure"):
        spmd.assert_peak_memory(unknown, at_most_bytes=1)
    with pytest.raises(
        spmd.NotUnderstood, match="is not a number of bytes; give an integer"
    ):
        spmd.assert_peak_memory(report, at_most_bytes=None)


def test_what_was_never_placed_goes_with_a_mesh(mesh):
    def noisy(key, x):
        return x + jax.random.normal(key, x.shape)

    key, numbers = jax.random.key(3), jax.random.key_data(jax.random.key(3))
    spmd.assert_same_as_one_device(noisy, key, put(mesh, (8, 4), "data"))
    spmd.assert_same_as_one_device(noisy, numbers, put(mesh, (8, 4), "data"))
    assert not key.committed


@pytest.mark.parametrize("kind", ["placed", "never placed"])
def test_same_as_one_device_keeps_a_donated_argument(mesh, kind):
    keys = [jax.random.key(3), jnp.arange(4.0)]
    if kind == "placed":
        keys = jax.device_put(keys, NamedSharding(mesh, P()))
    same = jax.jit(lambda x: x, donate_argnums=0)
    for leaf in keys:
        spmd.assert_same_as_one_device(same, leaf, reference=lambda x: x)
        assert not leaf.is_deleted()
