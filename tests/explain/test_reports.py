"""Public reports: what `explain`, or a finding, says of each.

`tests/data/public_reports.yml` has those that were found by searching, and says what
its fields hold; `tests/data/handed_reports.yml` has those that came with issues.
"""

from collections import Counter
from pathlib import Path

import pytest
import yaml

from spmd_helpers._explain.explain import explain
from spmd_helpers._explain.rules.table import RULES
from tests.findings.findings_programs import BAD

DATA = Path(__file__).parents[1] / "data"
REPORTS = yaml.safe_load((DATA / "public_reports.yml").read_text("utf8"))
HANDED = yaml.safe_load((DATA / "handed_reports.yml").read_text("utf8"))
RAISED = [report for report in HANDED if "line" in report]
SILENT = [report for report in HANDED if "line" not in report]
FIELDS = {"address", "situation", "line", "code", "helps", "why"}


@pytest.mark.parametrize(
    "report", REPORTS + RAISED, ids=lambda report: report["address"][8:]
)
def test_report(report):
    said = explain(report["line"])
    assert said.code == report["code"]
    assert said.known == (report["helps"] != "unknown")
    assert "…" not in said.means + said.instead


def test_the_log_is_complete():
    assert all(set(report) == FIELDS for report in REPORTS)
    addresses = [report["address"] for report in REPORTS]
    assert len(addresses) == len(set(addresses)) >= 30
    assert all(address.startswith("https://") for address in addresses)
    assert {report["code"] for report in REPORTS} <= {"", *(r.code for r in RULES)}
    verdicts = Counter(report["helps"] for report in REPORTS)
    assert set(verdicts) == {"fully", "in part", "unknown"}
    assert verdicts["fully"] > verdicts["unknown"]


@pytest.mark.parametrize("report", SILENT, ids=lambda report: report["address"][8:])
def test_a_report_without_an_error_is_a_finding(report):
    """The program is compiled in tests/findings, where its finding is asserted."""
    assert report["code"] in BAD[report["program"]].codes


def test_the_reports_of_issues_are_complete():
    assert all(set(report) == FIELDS for report in RAISED)
    assert all(set(report) == FIELDS - {"line"} | {"program"} for report in SILENT)
    addresses = [report["address"] for report in HANDED]
    assert len(addresses) == len(set(addresses)) >= 38
    verdicts = Counter(report["helps"] for report in HANDED)
    assert set(verdicts) == {"fully", "in part", "unknown"}
    assert verdicts["fully"] > verdicts["in part"] + verdicts["unknown"]
