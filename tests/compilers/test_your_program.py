"""What the page "Read your own program" says of GPUs and TPUs, by their compilers.

The first and the repaired version of its program are compiled for eight of each.
"""

import re

import pytest

from spmd_helpers import gpu_mesh, tpu_mesh
from tests.book.chapters import ROOT, run
from tests.book.test_your_program import CELLS, FAULTS

pytestmark = [
    pytest.mark.compiler("tpu"),
    pytest.mark.compiler("gpu"),
    pytest.mark.rare,
]
MESHES = {"gpu_mesh": gpu_mesh, "tpu_mesh": tpu_mesh}
PAGE = (ROOT / "book" / "pages" / "your_program.md").read_text("utf8")
# Of the cells that define what the page's last code needs.
NEEDED = ("use_devices", "import", "def ", "{**")
FALL = {"gpu": (0.38, 0.45), "tpu": (1 / 3, 0.4)}  # of the bytes sent, in words there


@pytest.fixture(scope="module")
def names():
    """What the page's cells define, of those that neither train nor print a report."""
    names: dict = {"__name__": "__main__"}
    for number, cell in enumerate(CELLS):
        lines = [
            line
            for line in cell.source.splitlines()
            if not re.match(r"(report = |report$|by_line|print|show|spmd\.draw)", line)
        ]
        trains = re.search(r"train\(|reports", cell.source)
        if any(word in cell.source for word in NEEDED) and not trains:
            run("\n".join(lines), names, f"your_program {number}")
    return names


@pytest.fixture(scope="module")
def rays(names):
    """platform -> the X-rays of the first and of the repaired version."""
    (block,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.M | re.S)
    calls = re.findall(r"^(?:# )?absent = spmd\.(\w+)(\(.*\))$", block, re.M)
    assert len(calls) == 2
    assert "report = x_ray(*start(absent, **first))" in block
    x_ray, start = names["x_ray"], names["start"]
    absent = [eval(f"{name}{given}", MESHES) for name, given in calls]
    return {
        first.lowered_for: (first, x_ray(*start(mesh, **names["donated"])))
        for mesh in absent
        for first in [x_ray(*start(mesh, **names["first"]))]
    }


@pytest.mark.parametrize("platform", ["gpu", "tpu"])
def test_the_page_is_right_about(platform, rays):
    first, repaired = rays[platform]
    assert [f.code for f in first.findings] == FAULTS
    assert repaired.findings == ()
    assert (first.redundancy, repaired.redundancy) == (2.0, 1.0)
    assert first.flops_per_device == 2 * repaired.flops_per_device
    sent = [
        sum(c.total_wire_bytes for c in ray.collectives) for ray in (first, repaired)
    ]
    least, most = FALL[platform]
    assert least < 1 - sent[1] / sent[0] < most
    largest = max(
        (c for c in repaired.collectives if c.kind == "reduce-scatter"),
        key=lambda c: c.wire_bytes,
    )
    assert largest.lowered_as != "all-reduce + dynamic-slice"
    gathers = [c for c in repaired.collectives if c.kind == "all-gather"]
    assert len(gathers) == 1 if platform == "gpu" else len(gathers) > 11
