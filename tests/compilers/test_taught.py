"""Every program that the chapters teach, through the compilers of TPUs and of GPUs.

It compiles for as many chips of v5e, or cards of H100, as it has devices. Work and
findings are those that the chapter has seen on CPU devices. So is what is exchanged, or
the chapter says in a paragraph "On a TPU" or "On a GPU" in which kinds of exchange it
differs.

A chapter takes a minute or two, so `make test-all` asks one, that of FSDP. The
others, and the checks, are marked `rare`. Chapter 7 needs SPMD_TEST_DEVICES=64.
"""

import re
from collections import Counter

import jax
import pytest

from spmd_helpers import gpu_mesh, tpu_mesh, xray
from tests.book.chapters import CHAPTERS, ROOT

from .taught import solved, taught

pytestmark = [pytest.mark.compiler("tpu"), pytest.mark.compiler("gpu")]

NUMBERS = [path.name[:2] for path in CHAPTERS]
SLICES = {1: "1x1", 2: "1x2", 4: "2x2", 8: "2x4", 16: "4x4", 32: "4x8", 64: "8x8"}
DEVICES = {"07": 64}
# What the compiler of a platform refuses, and the chapter says so.
REFUSED: dict[tuple[str, str], list] = {}
CHECKED = ["02", "05", "06", "08", "10", "12", "14", "15"]  # whose checks read programs
# A finding that needs the function: an accelerator's compiled text does not show it.
# The sentence's own test asks for it there.
TRACED = {("08", "direct"): ["gathered-reshard"]}
# A share of the work of a reference for one device that accelerators leave out.
LEFT_OUT = {("16", "block_loss"): 0.02}
SHARDED = {"02", "06", "08", "10", "13", "16"}  # a few of those that must have some


def chips(count, axes):
    axes = axes or {"devices": count}
    mesh = tpu_mesh(f"v5e:{SLICES[count]}", anyhow=True, **axes)
    return list(mesh.devices.flat)


def cards(count, axes):
    axes = axes or {"devices": count}
    hosts = f"{count // 8}x8" if count > 8 else f"{count}"
    return list(gpu_mesh(f"h100:{hosts}", **axes).devices.flat)


WHERE = {"tpu": ("tpu", chips), "gpu": ("cuda", cards)}
PLATFORMS = pytest.mark.parametrize("platform", WHERE)


def of_chapter(number):
    rare = [] if number == "10" else [pytest.mark.rare]
    return pytest.param(number, marks=rare)


@pytest.fixture(scope="module", params=[of_chapter(n) for n in NUMBERS])
def chapter(request):
    """The number of a chapter, and its programs, with all X-rays of each."""
    number = request.param
    if jax.device_count() < DEVICES.get(number, 8):
        pytest.skip("needs more devices: SPMD_TEST_DEVICES=64")
    programs, lost = taught(number, dict(WHERE.values()))
    assert not lost, lost
    return number, [(p, xray(p.compiled), rays_of(p)) for p in programs]


def rays_of(program):
    """The X-ray of each platform's program; None where the compiler refused it."""
    return {
        platform: None if isinstance(it, Exception) else xray(it)
        for platform, (name, _) in WHERE.items()
        for it in [program.elsewhere[name]]
    }


def rays(chapter, platform):
    """(program, its X-ray on CPU devices, its X-ray there) for all that compiled."""
    return [(p, here, t[platform]) for p, here, t in chapter[1] if t[platform]]


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


def said_of(platform, number):
    (path,) = (ROOT / "book" / "chapters").glob(f"{number}_*.md")
    begins = rf"\*\*[Oo]n an? {platform.upper()}\*\*[^\n]*"
    return " ".join(re.findall(begins, path.read_text("utf8")))


def where(program):
    return f"{program.cell} {program.name} {program.axes}"


@PLATFORMS
def test_each_program_compiles(chapter, platform):
    number, programs = chapter
    name, _ = WHERE[platform]
    compiled = rays(chapter, platform)
    assert len(compiled) > 1
    refused = [p for p, _, there in programs if there[platform] is None]
    assert [(p.name, p.axes) for p in refused] == REFUSED.get((platform, number), [])
    for program in refused:
        error = program.elsewhere[name]
        assert "RESOURCE_EXHAUSTED" in str(error), error
    if number in SHARDED:
        assert any(there.collectives for _, _, there in compiled)
    for program, _, there in compiled:
        assert there.lowered_for == platform, where(program)


@PLATFORMS
def test_work_and_findings_are_the_chapters(chapter, platform):
    for program, here, there in rays(chapter, platform):
        codes = [[f.code for f in ray.findings] for ray in (here, there)]
        traced = TRACED.get((chapter[0], program.name), [])
        assert codes[0] == codes[1] + traced, where(program)
        more = there.flops_per_device / max(here.flops_per_device, 1) - 1
        # The compiler for GPUs pads a long sum, to divide it: 784 products to 16 × 52.
        most = 0.07 if platform == "gpu" else 0
        same = there.flops_per_device == here.flops_per_device
        # A TPU multiplies each row by one matrix; CPU devices by all, and masks.
        if platform == "tpu" and program.is_ragged:
            assert more < 0, where(program)
            continue
        alone = LEFT_OUT.get((chapter[0], program.name)) if not program.axes else None
        least = 0 if alone is None else -alone
        assert same or least < more < most, where(program)
        assert there.redundancy == pytest.approx(here.redundancy), where(program)


@PLATFORMS
def test_other_exchanges_are_in_the_text(chapter, platform):
    more, fewer, other = {}, [], False
    for program, here, there in rays(chapter, platform):
        had, has = exchanged(here), exchanged(there)
        had_so, has_so = exchanged(here, True), exchanged(there, True)
        other |= had != has or here.flops_per_device > there.flops_per_device
        for kind, axes in (has - had) & (has_so - had_so):
            more.setdefault(kind, f"{where(program)}, over {axes}")
        fewer += [where(program)] if (had - has) & (had_so - has_so) else []
    said = said_of(platform, chapter[0])
    unsaid = {kind: at for kind, at in more.items() if kind not in said.lower()}
    assert not unsaid, unsaid
    assert said or not fewer, fewer
    assert other or not said, "the text says more than there is"


@PLATFORMS
def test_nothing_is_sent_along_another_axis(chapter, platform):
    for program, here, there in rays(chapter, platform):
        used = [
            {axis.split(":")[0] for c in ray.collectives for axis in c.axes}
            for ray in (here, there)
        ]
        if program.axes:
            assert used[1] <= used[0], where(program)


@pytest.mark.rare
@PLATFORMS
@pytest.mark.parametrize("number", [of_chapter(n) for n in CHECKED])
def test_a_check_takes_the_right_answer_there_too(number, platform):
    assert solved(number, *WHERE[platform]) == []
