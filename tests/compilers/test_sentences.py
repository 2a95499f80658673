"""Sentences of the chapters that name figures of a compiler, asked of that compiler."""

import jax
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import spmd_helpers as spmd
from tests.book.chapters import ROOT


def prose(number):
    (path,) = (ROOT / "book" / "chapters").glob(f"{number}_*.md")
    return path.read_text("utf8")


def argument_bytes(mesh, shape):
    x = jax.ShapeDtypeStruct(shape, "float32", sharding=NamedSharding(mesh, P()))
    compiled = jax.jit(lambda x: x * 2).lower(x).compile()
    return compiled.memory_analysis().argument_size_in_bytes


@pytest.mark.compiler("tpu")
def test_a_tpu_pads_narrow_arrays():
    """Chapter 3."""
    mesh = spmd.tpu_mesh("v5e:1x1", data=1, anyhow=True)
    padded, plain = argument_bytes(mesh, (4096, 10)), 4096 * 10 * 4
    said = f"4096 × 10 takes {padded:,} bytes instead of {plain:,}"
    assert said in prose("03")
    size = argument_bytes(mesh, (1152,))
    vector = f"1152 numbers takes {size:,} bytes instead of {1152 * 4:,}"
    assert vector in prose("03")
    assert argument_bytes(mesh, (4096, 128)) == 4096 * 128 * 4


@pytest.mark.compiler("gpu")
def test_a_gpu_pads_nothing():
    mesh = spmd.gpu_mesh("h100:1", data=1)
    assert argument_bytes(mesh, (4096, 10)) == 4096 * 10 * 4
