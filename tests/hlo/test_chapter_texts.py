"""What the GPU's compiler made of programs of the chapters, read by the X-ray.

Each program stands in the archive twice, as the CPU's and the GPU's compiler of one
JAX wrote it. Both do the same work, so the reader has to find the same work.
"""

from collections import Counter

import pytest

from spmd_helpers._hlo.collectives import read_hlo
from spmd_helpers._hlo.parser import parse
from spmd_helpers._hlo.work import work
from tests.hlo.texts import M42, archived

MESHES = {
    "04_conflict": M42,
    "06_misplaced_step": M42,
    "06_placed_step": M42,
    "10_zero_3_step": {"data": 8},
    "11_train_step": M42,
    "12_gradient": M42,
    "12_grouped_heads": {"data": 2, "kv": 2, "group": 2},
    "13_evaluate": M42,
    "13_train_step": M42,
    "14_fsdp_gradient": {"data": 8, "model": 1},
    "14_fsdp_step": {"data": 2, "model": 1},
    "16_experts": {"expert": 8},
}
HALF = {"14_fsdp_gradient", "14_fsdp_step"}  # bfloat16, which a CPU moves as float32
REPEATED = {"06_misplaced_step": 2.0, "12_grouped_heads": 8 / 7}
SUMMED = ("all-reduce", "reduce-scatter")


def texts():
    return archived("chapters.gpu_0.11.2")


def sent(name, backend):
    """Bytes that a device sends, by kind and axes."""
    counts = Counter()
    for c in read_hlo(texts()[f"{name}.{backend}"], MESHES[name]):
        counts[c.kind, c.axes] += c.total_wire_bytes
    return counts


def done(name, backend):
    return work(parse(texts()[f"{name}.{backend}"]), MESHES[name])


def test_each_text_is_read():
    both = {f"{name}.{backend}" for name in MESHES for backend in ("cpu", "gpu")}
    assert set(texts()) == both


@pytest.mark.parametrize("name", MESHES)
def test_the_same_work(name):
    cpu, gpu = done(name, "cpu"), done(name, "gpu")
    assert gpu.flops == cpu.flops
    assert gpu.redundancy == cpu.redundancy
    assert gpu.idle_axes == cpu.idle_axes
    assert gpu.redundant_over == cpu.redundant_over
    if name != "04_conflict":  # which multiplies nothing
        assert gpu.flops > 0
        assert gpu.redundancy == pytest.approx(REPEATED.get(name, 1.0))


@pytest.mark.parametrize("name", MESHES)
def test_as_much_is_gathered(name):
    cpu, gpu = sent(name, "cpu"), sent(name, "gpu")
    for (kind, axes), size in cpu.items():
        if kind == "all-gather":
            assert gpu[kind, axes] * (2 if name in HALF else 1) == size
    assert cpu.total() > 0


@pytest.mark.parametrize("name", sorted(set(MESHES) - {"04_conflict"}))
def test_a_sum_that_is_scattered_sends_half(name):
    """The CPU's compiler writes an all-reduce and a slice, or keeps the sum whole."""
    cpu, gpu = sent(name, "cpu"), sent(name, "gpu")
    times = 2 if name in HALF else 1
    for axes in {axes for kind, axes in cpu if kind in SUMMED}:
        before = sum(cpu[kind, axes] for kind in SUMMED)
        scattered = gpu["reduce-scatter", axes]
        after = 2 * scattered + gpu["all-reduce", axes]
        if cpu["reduce-scatter", axes] or scattered:
            assert scattered > 0
            assert times * after == pytest.approx(before, rel=0.01)
        else:
            assert after <= before


def test_products_that_the_compiler_merged_are_taken_apart():
    """x·wq, x·wk and x·wv are one product there; wk and wv repeat along group."""
    text = texts()["12_grouped_heads.gpu"]
    assert "concatenate(" in text
    assert done("12_grouped_heads", "gpu").redundant_over == {"group": 0.25}
    renamed = text.replace(" concatenate(", " concatenated(")
    assert work(parse(renamed), MESHES["12_grouped_heads"]).redundant_over == {}
