"""Every program that the chapters teach, through the TPU compiler.

It compiles for as many chips of v5e as it has devices. Work and findings are those
that the chapter has seen on CPU devices. What is exchanged is too, or the chapter says
in a paragraph "On a TPU" in which kinds of exchange it differs.

Runs where libtpu is installed: `make tpu` makes such an environment. Chapter 7 needs
SPMD_TEST_DEVICES=64.
"""

import re
from collections import Counter
from functools import cache

import jax
import pytest

from spmd_helpers import tpu_mesh, xray
from tests.book.chapters import CHAPTERS, ROOT

from .taught import solved, taught

pytestmark = pytest.mark.compiler("tpu")

NUMBERS = [path.name[:2] for path in CHAPTERS]
SLICES = {1: "1x1", 2: "1x2", 4: "2x2", 8: "2x4", 16: "4x4", 32: "4x8", 64: "8x8"}
DEVICES = {"07": 64}
REFUSED = {"14": [("step", {"data": 2, "model": 1})]}  # and the chapter says so
CHECKED = ["02", "05", "06", "08", "10", "12", "14"]  # whose checks read programs
SHARDED = {"02", "06", "08", "10", "13", "16"}  # a few of those that must have some


def chips(count, axes):
    axes = axes or {"devices": count}
    mesh = tpu_mesh(f"v5e:{SLICES[count]}", anyhow=True, **axes)
    return list(mesh.devices.flat)


@cache
def programs(number):
    """The programs of a chapter, with the X-ray of both."""
    if jax.device_count() < DEVICES.get(number, 8):
        pytest.skip("needs more devices: SPMD_TEST_DEVICES=64")
    found, lost = taught(number, "tpu", chips)
    assert not lost, lost
    refused = [p for p in found if isinstance(p.elsewhere, Exception)]
    rays = [(p, xray(p.compiled), xray(p.elsewhere)) for p in found if p not in refused]
    return rays, refused


def exchanged(report, halved=False):
    """Bytes that a device sends in all, by kind and axes.

    `halved`: of a reduce-scatter that is written as an all-reduce and a slice, those of
    a real one.
    """
    sent = Counter()
    for c in report.collectives:
        twice = halved and c.lowered_as == "all-reduce + dynamic-slice"
        total = c.wire_bytes if c.total_wire_bytes is None else c.total_wire_bytes
        sent[c.kind, c.axes] += total // (2 if twice else 1)
    return sent


def said_of_tpus(number):
    (path,) = (ROOT / "book" / "chapters").glob(f"{number}_*.md")
    return " ".join(re.findall(r"\*\*On a TPU\*\*[^\n]*", path.read_text("utf8")))


def where(program):
    return f"{program.cell} {program.name} {program.axes}"


@pytest.mark.parametrize("number", NUMBERS)
def test_each_program_compiles(number):
    rays, refused = programs(number)
    assert len(rays) > 1
    assert [(p.name, p.axes) for p in refused] == REFUSED.get(number, [])
    for program in refused:
        assert "RESOURCE_EXHAUSTED" in str(program.elsewhere), program.elsewhere
    if number in SHARDED:
        assert any(there.collectives for _, _, there in rays)
    for program, _, there in rays:
        assert there.lowered_for == "tpu", where(program)


@pytest.mark.parametrize("number", NUMBERS)
def test_work_and_findings_are_the_chapters(number):
    for program, here, there in programs(number)[0]:
        found = [[f.code for f in ray.findings] for ray in (here, there)]
        assert found[0] == found[1], where(program)
        assert there.flops_per_device == here.flops_per_device, where(program)
        assert there.redundancy == pytest.approx(here.redundancy), where(program)


@pytest.mark.parametrize("number", NUMBERS)
def test_other_exchanges_are_in_the_text(number):
    more, fewer, other = {}, [], False
    for program, here, there in programs(number)[0]:
        had, has = exchanged(here), exchanged(there)
        had_so, has_so = exchanged(here, True), exchanged(there, True)
        other |= had != has
        for kind, axes in (has - had) & (has_so - had_so):
            more.setdefault(kind, f"{where(program)}, over {axes}")
        fewer += [where(program)] if (had - has) & (had_so - has_so) else []
    said = said_of_tpus(number)
    unsaid = {kind: at for kind, at in more.items() if kind not in said.lower()}
    assert not unsaid, unsaid
    assert said or not fewer, fewer
    assert other or not said, "the text says more than there is"


@pytest.mark.parametrize("number", NUMBERS)
def test_nothing_is_sent_along_another_axis(number):
    for program, here, there in programs(number)[0]:
        used = [
            {axis.split(":")[0] for c in ray.collectives for axis in c.axes}
            for ray in (here, there)
        ]
        if program.axes:
            assert used[1] <= used[0], where(program)


@pytest.mark.parametrize("number", CHECKED)
def test_a_check_takes_the_right_answer_on_a_tpu_too(number):
    assert solved(number, "tpu", chips) == []
