"""What tests of notebooks in other environments share."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def wheel(tmp_path_factory):
    """The package's wheel, built once."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation"]
    subprocess.run(
        [*command, "--outdir", folder, ROOT], check=True, stdout=subprocess.DEVNULL
    )
    (built,) = folder.glob("*.whl")
    return built
