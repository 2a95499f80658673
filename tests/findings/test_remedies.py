"""Each remedy of a finding, followed: the finding is gone, and what it cost too."""

import jax
import pytest

from . import remedies  # noqa: F401 (registers what it has)
from .findings_programs import BAD, REMEDIES, see
from .test_findings import VERSION, expected, written, xray_and_evidence

ROWS = [(code, one) for code, several in REMEDIES.items() for one in several]


def cost(report, what):
    if what == "peak":
        return report.peak_memory
    if what == "flops":
        return report.flops_per_device
    if what == "results":
        infos = jax.tree.leaves(report.output_shardings)
        return sum(info.bytes_per_device for info in infos)
    if what == "moved":
        return sum(c.wire_bytes for c in report.collectives if "to-all" in c.kind)
    return sum(c.total_wire_bytes or c.wire_bytes for c in report.collectives)


@pytest.mark.parametrize(
    ("code", "one"), ROWS, ids=[f"{code}-{one.program.name}" for code, one in ROWS]
)
def test_a_remedy_helps(code, one):
    assert code in BAD[one.bad].codes or code in BAD[one.bad].also
    before, _ = xray_and_evidence(one.bad)
    after = see(one.program, jax.devices())
    if code in expected(BAD[one.bad]):
        assert code in {finding.code for finding in before.findings}
    assert code not in {finding.code for finding in after.findings}, VERSION
    if one.saves:
        assert cost(after, one.saves) < cost(before, one.saves)


def test_each_code_has_a_remedy_that_was_tried():
    missing = sorted(written() - set(REMEDIES))
    here = "tests/findings/findings_programs.py"
    assert not missing, f"add @remedy({missing[0]!r}, …), or same_as(…), in {here}"
