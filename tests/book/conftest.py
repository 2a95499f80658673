"""What tests of notebooks in other environments share."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import runtimes
from tests.book.bare_kernels import cells, printed, run
from tests.book.hosted import first_cell, signs

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


@pytest.fixture
def session(wheel, tmp_path):
    """What starts a fresh runtime: (its Python, a folder with the wheel in it)."""

    def start(name: str, environment: Path | None = None) -> tuple[Path, Path]:
        environment = environment or runtimes.environment(name)
        python = runtimes.copied(environment, tmp_path / "environment")
        folder = tmp_path / "content"
        folder.mkdir()
        shutil.copy(wheel, folder)
        return python, folder

    yield start
    shutil.rmtree(tmp_path / "environment", ignore_errors=True)


@pytest.fixture(scope="module")
def begun(wheel, tmp_path_factory):
    """What makes an environment in which chapter 13's first cell has been run."""
    environments = {}

    def begin(name: str) -> Path:
        if name not in environments:
            base = tmp_path_factory.mktemp(name)
            python = runtimes.copied(runtimes.environment(name), base / "environment")
            shutil.copy(wheel, base)
            notebook = run(cells(first_cell(13)), python, base, **signs(name))
            assert "pip installs jax" in printed(notebook, 0)
            environments[name] = base / "environment"
        return environments[name]

    yield begin
    for folder in environments.values():
        shutil.rmtree(folder, ignore_errors=True)
