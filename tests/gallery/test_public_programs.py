"""The log of public programs that were X-rayed, `tests/data/public_programs.yml`."""

from pathlib import Path

import yaml

from tests.findings.test_findings import written

LOG = Path(__file__).parents[1] / "data" / "public_programs.yml"
PROGRAMS = yaml.safe_load(LOG.read_text("utf8"))
FIELDS = {"address", "situation", "findings", "verdict", "why"}


def test_the_log_is_complete():
    assert all(set(program) == FIELDS for program in PROGRAMS)
    addresses = [program["address"] for program in PROGRAMS]
    assert len(addresses) == len(set(addresses)) >= 10
    assert all(address.startswith("https://") for address in addresses)
    assert {program["verdict"] for program in PROGRAMS} == {"right"}


def test_its_findings_are_those_that_there_are():
    assert {code for program in PROGRAMS for code in program["findings"]} <= written()
