"""The two wheels: a learner's without grading, and an instructor's beside it."""

import json
import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import spmd_helpers
from tests.book.test_colab import make_environment

from .test_grade import answered, notebook

pytestmark = pytest.mark.long("courses, made and graded as an instructor does")

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src"


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    """Name of the distribution -> its wheel."""
    folder = tmp_path_factory.mktemp("wheels")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir"]
    for project in (ROOT, ROOT / "tools" / "grading"):
        subprocess.run([*build, folder, project], check=True, capture_output=True)
    return {path.name.partition("-")[0]: path for path in folder.glob("*.whl")}


def files_in(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def sources_of(package: str) -> set[str]:
    return {
        path.relative_to(SOURCES).as_posix()
        for path in (SOURCES / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_each_wheel_has_its_own_package_whole(wheels):
    assert set(wheels) == {"spmd_helpers", "spmd_grading"}
    learners = sources_of("spmd_helpers") | sources_of("spmd_exercises")
    settings = {"spmd_helpers/_config.yml"}  # with the book's address
    assert files_in(wheels["spmd_helpers"]) == learners | settings
    grading = files_in(wheels["spmd_grading"])
    assert grading == sources_of("spmd_grading") | {"spmd_grading/LICENSE"}
    assert all(wheel.name.endswith("any.whl") for wheel in wheels.values())


def test_each_wheel_says_that_it_is_typed(wheels):
    for package, wheel in wheels.items():
        assert f"{package}/py.typed" in files_in(wheel)


def test_both_have_one_version(wheels):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf8"))["project"]
    assert project["version"] == spmd_helpers.__version__
    versions = {wheel.name.split("-")[1] for wheel in wheels.values()}
    assert versions == {spmd_helpers.__version__}


def test_make_writes_both():
    makefile = (ROOT / "Makefile").read_text("utf8")
    recipe = makefile.split("\nwheel: ")[1].split("\n\n")[0]
    assert "--outdir dist . " in recipe
    assert "--outdir dist tools/grading " in recipe


def test_they_work_beside_each_other_where_nothing_else_is(wheels, tmp_path):
    python = make_environment(tmp_path / "environment")

    def run(*command: object) -> subprocess.CompletedProcess:
        return subprocess.run(
            [python, *command],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT / "tests" / "own_exercises")},
            capture_output=True,
            text=True,
        )

    def install(name: str) -> None:
        quiet = ("-m", "pip", "install", "--quiet", "--no-deps", "--no-index")
        done = run(*quiet, wheels[name])
        assert done.returncode == 0, done.stderr

    install("spmd_helpers")
    done = run("-c", "import spmd_helpers as spmd; spmd.xray; print(spmd.__file__)")
    assert str(tmp_path / "environment") in done.stdout, done.stderr
    assert "No module named spmd_grading" in run("-m", "spmd_grading").stderr
    install("spmd_grading")
    (tmp_path / "release.ipynb").write_text(json.dumps(notebook()))
    (tmp_path / "work.ipynb").write_text(json.dumps(notebook(answered())))
    done = run("-m", "spmd_grading", "work.ipynb", "--release", "release.ipynb")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "work.ipynb: 6 of 6 points" in done.stdout
    done = run("-c", "import spmd_grading.course as c; print(*c.course_files({}))")
    assert done.stdout.split() == ["README.md", "hand_in.py", "nbgrader_config.py"]
