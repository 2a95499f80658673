"""Public reports that were found by searching: what `explain` says of each.

`tests/data/public_reports.yml` is the log, and says what its fields hold.
"""

from collections import Counter
from pathlib import Path

import pytest
import yaml

from spmd_helpers._explain.explain import explain
from spmd_helpers._explain.rules.table import RULES

LOG = Path(__file__).parents[1] / "data" / "public_reports.yml"
REPORTS = yaml.safe_load(LOG.read_text("utf8"))
FIELDS = {"address", "situation", "line", "code", "helps", "why"}


@pytest.mark.parametrize("report", REPORTS, ids=lambda report: report["address"][19:])
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
