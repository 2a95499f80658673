"""What is taken as a number, a mesh or a choice, and how the rest is refused."""

import operator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spmd_helpers._core import validate
from spmd_helpers._errors import NotUnderstood

LARGE = 10**30
KINDS = [np.int8, np.uint16, np.int64, np.uint64]
WHOLE = st.one_of(
    st.integers(-LARGE, LARGE),
    st.integers(0, 100).flatmap(lambda n: st.sampled_from(KINDS).map(lambda k: k(n))),
    st.integers(0, 9).map(np.array),  # of rank 0: NumPy lets it stand for its number
)
NO_NUMBER = st.one_of(
    st.booleans(),
    st.booleans().map(np.bool_),
    st.text(max_size=4),
    st.none(),
    st.lists(st.integers(), max_size=2),
    st.integers(1, 3).map(np.zeros),
)
NOT_WHOLE = st.one_of(
    NO_NUMBER,
    st.floats(),
    st.integers(-9, 9).map(float),
    st.integers(-9, 9).map(np.float32),
    st.complex_numbers(),
    st.sampled_from([int, np.int32]),
)


@given(WHOLE, st.integers(-5, 5), st.none() | st.integers(0, LARGE))
def test_a_whole_number_is_taken_in_its_range_alone(value, least, most):
    number = operator.index(value)
    inside = number >= least and (most is None or number <= most)
    integer = validate.as_integer(value, least, most)
    assert integer == (number if inside else None)
    assert type(integer) in (int, type(None))


@given(NOT_WHOLE)
def test_nothing_else_is_a_whole_number(value):
    assert validate.as_integer(value, -LARGE) is None
    with pytest.raises(NotUnderstood) as caught:
        validate.integer("batch", value)
    assert str(caught.value) == (
        f"batch={value!r} is not a size; give an integer, 1 or more."
    )


@given(WHOLE)
def test_a_whole_number_or_a_refusal_that_gives_the_range(value):
    number = operator.index(value)
    if 0 <= number <= 64:
        args = ("n", value, "a count")
        assert validate.integer(*args, least=0, most=64) == number
        return
    with pytest.raises(NotUnderstood) as caught:
        validate.integer("n", value, "a count", least=0, most=64, example="f(2)")
    assert str(caught.value) == (
        f"n={value!r} is not a count; give an integer from 0 to 64, such as f(2)."
    )


@pytest.mark.parametrize(
    ("digits", "most"), [(32, None), (401, None), (5001, None), (5001, 8)]
)
def test_an_integer_that_cannot_be_written_gets_one_sentence(digits, most):
    value = 10 ** (digits - 1)
    with pytest.raises(NotUnderstood) as caught:
        validate.integer("batch", -value, most=most)
    assert str(caught.value) == (
        f"batch has an integer of {digits} digits, more than is counted here; give one "
        "of 30 digits at most."
    )
    with pytest.raises(NotUnderstood, match=r"^mesh: axis 'data' has an integer of"):
        validate.axis_sizes("mesh", {"data": value})


@given(WHOLE.filter(lambda n: not isinstance(n, np.ndarray)) | st.floats())
def test_numbers(value):
    assert validate.is_number(value)
    assert validate.is_number(np.float32(0.5))


@given(NO_NUMBER | st.complex_numbers())
def test_no_numbers(value):
    assert not validate.is_number(value)


@given(st.dictionaries(st.text(max_size=3), WHOLE, max_size=3))
def test_a_mesh_is_names_and_sizes_in_order(mesh):
    sizes = {axis: operator.index(size) for axis, size in mesh.items()}
    if all(size >= 1 for size in sizes.values()):
        shape = validate.axis_sizes("mesh", mesh)
        assert list(shape.items()) == list(sizes.items())
        assert {type(size) for size in shape.values()} <= {int}
        return
    axis = next(axis for axis, size in sizes.items() if size < 1)
    with pytest.raises(NotUnderstood) as caught:
        validate.axis_sizes("mesh", mesh)
    assert str(caught.value) == (
        f"mesh={mesh!r}: axis {axis!r} has size {mesh[axis]!r}; a mesh maps each axis "
        "name to a number of devices, 1 or more, such as {'data': 4, 'model': 2}."
    )


@given(NOT_WHOLE)
def test_no_mesh(value):
    with pytest.raises(NotUnderstood) as caught:
        validate.axis_sizes("mesh_shape", value)
    assert str(caught.value) == (
        f"mesh_shape={value!r} is not a dict of axis sizes; give one such as "
        "{'data': 4, 'model': 2}."
    )
    with pytest.raises(NotUnderstood, match=r"^mesh=\{'a': .* has size"):
        validate.axis_sizes("mesh", {"a": value})


@pytest.mark.parametrize("axis", [0, None, ("a",)])
def test_an_axis_without_a_name(axis):
    with pytest.raises(NotUnderstood, match="has size 2; a mesh maps each axis name"):
        validate.axis_sizes("mesh", {axis: 2})


@given(st.sampled_from(["plain", "flash", np.str_("plain")]))
def test_a_choice_is_returned(value):
    assert validate.one_of("attention", value, ("plain", "flash")) is value


@given(NOT_WHOLE | WHOLE)
def test_one_is_not_true(value):
    if isinstance(value, bool):
        assert validate.one_of("tied", value, (True, False)) is value
        return
    with pytest.raises(NotUnderstood) as caught:
        validate.one_of("tied", value, (True, False))
    assert str(caught.value) == f"tied={value!r} is not known. Give True or False."


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        ("flahs", " Did you mean 'flash'?"),
        ("PLAIN", " Did you mean 'plain'?"),
        ("rope", ""),
        (None, ""),
        (1, ""),
    ],
)
def test_the_nearest_choice_is_asked_for(value, hint):
    with pytest.raises(NotUnderstood) as caught:
        validate.one_of("attention", value, ("plain", "flash", "none"))
    assert str(caught.value) == (
        f"attention={value!r} is not known.{hint} Give 'plain', 'flash' or 'none'."
    )


@given(st.lists(st.text(min_size=1), min_size=1, unique=True), st.data())
def test_a_name_is_nearest_to_itself(names, data):
    name = data.draw(st.sampled_from(names))
    assert validate.close_name(name, names) == name
    assert validate.did_you_mean(name, names) == f" Did you mean {name!r}?"
    assert validate.close_name(name, []) == validate.did_you_mean(name, []) == ""


def test_how_near_a_name_has_to_be():
    assert validate.close_name("abcde", ["abcxy"]) == "abcxy"  # three of five
    assert validate.close_name("abcd", ["abxy"]) == ""
    assert validate.close_name("abcde", ["abcxy"], 0.7) == ""


@pytest.mark.parametrize(
    ("words", "sentence"), [("a", "a"), ("ab", "a or b"), ("abc", "a, b or c")]
)
def test_or(words, sentence):
    assert validate.or_words(words) == sentence


def test_a_mesh_of_jax_is_told_its_shape():
    from types import SimpleNamespace

    with pytest.raises(NotUnderstood, match=r"give its shape, mesh\.shape"):
        validate.axis_sizes("mesh", SimpleNamespace(shape={"data": 2}))
