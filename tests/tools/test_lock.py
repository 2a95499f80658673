"""The pinned versions on a Python that the tests do not run on."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).resolve().parents[2]
LINUX = ["manylinux1", "manylinux2010", "manylinux2014"]
LINUX += [f"manylinux_2_{minor}" for minor in range(5, 35)]


def pins(version: str) -> list[str]:
    """What requirements.txt pins for that Python on Linux."""
    python = {"python_version": version, "python_full_version": f"{version}.0"}
    linux = {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix"}
    there = {**default_environment(), **python, **linux}
    lines = (ROOT / "requirements.txt").read_text("utf8").splitlines()
    wanted = [Requirement(line) for line in lines if line and line[0] != "#"]
    return [
        f"{r.name}{r.specifier}"
        for r in wanted
        if r.marker is None or r.marker.evaluate(there)
    ]


@pytest.mark.long("asks pip whether each pinned package has a wheel")
def test_what_is_pinned_has_wheels_for_python_3_14(tmp_path):
    wanted = tmp_path / "wanted.txt"
    wanted.write_text("\n".join(pins("3.14")))
    platforms = [f"--platform={linux}_x86_64" for linux in LINUX]
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install"]
    command += ["--dry-run", "--ignore-installed", "--no-deps", "--quiet"]
    command += ["--ignore-requires-python"]  # pip 23 asks it of its own Python
    command += ["--python-version=3.14", "--only-binary=:all:", *platforms]
    command += [f"--target={tmp_path / 'target'}", f"--report={tmp_path / 'report'}"]
    done = subprocess.run([*command, "-r", wanted], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    report = json.loads((tmp_path / "report").read_text("utf8"))
    assert len(report["install"]) == len(pins("3.14")) > 150
    for wheel in report["install"]:
        needs = SpecifierSet(wheel["metadata"].get("requires_python", ""))
        assert needs.contains("3.14.0"), wheel["metadata"]["name"]
