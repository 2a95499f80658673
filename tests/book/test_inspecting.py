"""JAX's own tools to inspect a sharding, of which chapter 2 speaks and runs none.

A notebook can't run them: one draws with another library where that is installed, and
the other's program can't be compiled for another platform.
"""

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P


@pytest.fixture(scope="module")
def x():
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    return jax.device_put(np.ones((16, 3)), NamedSharding(mesh, P("data")))


def test_visualize_array_sharding_draws_one_and_two_dimensions(x, capsys):
    for array in (x, x[:, 0]):
        jax.debug.visualize_array_sharding(array)
        drawn = capsys.readouterr().out
        assert [f"CPU {n}" in drawn for n in range(8)] == [True] * 8
    with pytest.raises(ValueError, match="1 and 2 dimensions"):
        jax.debug.visualize_array_sharding(x[:, :, None])


def test_inspect_array_sharding_works_inside_jit(x):
    shardings = []

    @jax.jit
    def double(x):
        y = x * 2
        jax.debug.inspect_array_sharding(y, callback=shardings.append)
        return y.sum()

    double(x)
    assert [sharding.spec for sharding in shardings] == [P("data")]


def test_the_short_names_are_the_same_classes():
    assert jax.P is P
    assert jax.NamedSharding is NamedSharding


def test_shardy_is_the_partitioner(x):
    assert "sdy.sharding" in jax.jit(lambda x: x.sum()).lower(x).as_text()
