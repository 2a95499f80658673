"""The zip for Gradescope: what is in it, and what it does in a folder of that shape."""

import json
import os
import shlex
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from spmd_grading.submission import CannotGrade
from tests.grading.small_release import RIGHT, ROOT, STUBS, WRONG, notebook
from tools.grading.make_gradescope import SCRIPTS, contents, write_zip

CHECKS = '# %% [2 points] It is done\nassert b == "done", "b is not done"\n'
# Poses as an older python3 of the system, on which only pip may be used; it installs
# a uv that makes the grader's Python out of this one.
SYSTEM_PYTHON = """\
#!/bin/sh
echo "python3 $*" >>{log}
case "$*" in
    "-m pip --version") ;;
    "-m pip install --quiet --target {source}/uv uv")
        mkdir -p {source}/uv/bin && cp {uv} {source}/uv/bin/uv ;;
    *) echo "the harness's python3 was used: $*" >&2; exit 9 ;;
esac
"""
UV = """\
#!/bin/sh
echo "uv $*" >>{log}
if [ "$1" = venv ]; then
    for folder; do :; done
    mkdir -p "$folder/bin" && cp {python} "$folder/bin/python"
fi
"""


@pytest.fixture
def wheels(tmp_path):
    folder = tmp_path / "dist"
    folder.mkdir()
    for name in ("spmd_helpers", "spmd_grading"):
        (folder / f"{name}-0.1.0-py3-none-any.whl").write_bytes(b"a wheel")
    return folder


def test_all_that_gradescope_needs_is_in_the_zip(wheels, tmp_path):
    checks = tmp_path / "mine.py"
    checks.write_text(CHECKS)
    write_zip(contents(["03", "04"], checks, wheels), tmp_path / "to" / "all.zip")
    with zipfile.ZipFile(tmp_path / "to" / "all.zip") as archive:
        rights = {e.filename: e.external_attr >> 16 for e in archive.infolist()}
        assert archive.read("checks.py").decode() == CHECKS
        pins = archive.read("constraints.txt").decode()
    assert [name for name, mode in rights.items() if mode & 0o111] == [
        "run_autograder",
        "setup.sh",
    ]
    assert sorted(set(rights) - {"run_autograder", "setup.sh"}) == [
        "checks.py",
        "constraints.txt",
        "release/03_mesh_and_partitionspec.ipynb",
        "release/04_computation_follows_data.ipynb",
        "wheels/spmd_grading-0.1.0-py3-none-any.whl",
        "wheels/spmd_helpers-0.1.0-py3-none-any.whl",
    ]
    assert "--hash" not in pins  # uv would then want one of each wheel


def test_without_chapters_all_with_exercises_are_taken(wheels):
    names = [n for n in contents([], None, wheels) if n.startswith("release/")]
    assert len(names) == 16


def test_what_is_missing_is_said(wheels, tmp_path):
    with pytest.raises(CannotGrade, match="no chapter 17, 99 with exercises"):
        contents(["99", "17", "03"], None, wheels)
    checks = tmp_path / "mine.py"
    checks.write_text("assert True\n")
    with pytest.raises(CannotGrade, match="no check in it"):
        contents(["03"], checks, wheels)
    next(wheels.glob("spmd_g*")).unlink()
    with pytest.raises(CannotGrade, match="no wheel of spmd_grading: run `make wheel`"):
        contents(["03"], None, wheels)


def test_the_systems_python_is_left_alone():
    text = "".join(path.read_text("utf8") for path in SCRIPTS.iterdir())
    for word in ("update-alternatives", "ln -s", "deadsnakes", "install python3."):
        assert word not in text


class Autograder:
    """A folder as Gradescope makes one, with an older python3 first on the path."""

    def __init__(self, folder: Path, files: dict[str, Path]) -> None:
        self.root, self.log = folder / "autograder", folder / "log"
        source = self.root / "source"
        for name in ("submission", "results"):
            (self.root / name).mkdir(parents=True)
        write_zip(files, folder / "all.zip")
        with zipfile.ZipFile(folder / "all.zip") as archive:
            archive.extractall(source)
        own = ROOT / "tests" / "own_exercises"
        path = os.pathsep.join([str(own), str(ROOT / "src")])
        path, executable = shlex.quote(path), shlex.quote(sys.executable)
        python = f'#!/bin/sh\nPYTHONPATH={path} exec {executable} "$@"\n'
        uv = UV.format(log=self.log, python=_program(folder / "py", python))
        uv_file = _program(folder / "uv", uv)
        (folder / "bin").mkdir()
        system = SYSTEM_PYTHON.format(log=self.log, source=source, uv=uv_file)
        _program(folder / "bin" / "python3", system)
        self.path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"

    def run(self, script: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            ["bash", self.root / "source" / script],
            cwd=self.root,
            env={
                **os.environ,
                **{"AUTOGRADER_ROOT": str(self.root), "PATH": self.path},
            },
            capture_output=True,
            text=True,
        )

    def grade(self, *books: dict) -> dict:
        for old in (self.root / "submission").iterdir():
            old.unlink()
        for number, book in enumerate(books):
            path = self.root / "submission" / f"my work ({number}).ipynb"
            path.write_text(json.dumps(book))
        done = self.run("run_autograder")
        assert done.returncode == 0, done.stderr
        return json.loads((self.root / "results" / "results.json").read_text())


def _program(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.mark.long("courses, made and graded as an instructor does")
def test_it_grades_in_a_folder_of_gradescopes_shape(wheels, tmp_path):
    files = contents(["03"], None, wheels)
    del files["release/03_mesh_and_partitionspec.ipynb"]
    for name, text in (
        ("release/90_small.ipynb", json.dumps(notebook())),
        ("checks.py", CHECKS),
    ):
        files[name] = tmp_path / Path(name).name
        files[name].write_text(text)
    grader = Autograder(tmp_path, files)

    done = grader.run("setup.sh")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 of 6 points" in done.stdout  # the image can grade
    installed = grader.log.read_text()
    for package, wheel in (
        ("spmd-helpers[notebooks]", "spmd_helpers"),
        ("spmd-grading", "spmd_grading"),
    ):
        file = f"{grader.root}/source/wheels/{wheel}-0.1.0-py3-none-any.whl"
        assert f"{package} @ file://{file}" in installed
    assert f"--constraint {grader.root}/source/constraints.txt" in installed

    right = grader.grade(notebook(RIGHT))
    assert (right["score"], right["visibility"]) == (8, "visible")
    shown = [(test["name"], test["visibility"]) for test in right["tests"]]
    assert shown[2:] == [
        ("Exercise 90.3", "visible"),
        ("It is done", "after_published"),
    ]
    assert [test["score"] for test in grader.grade(notebook(WRONG))["tests"]] == [0] * 4

    nothing = grader.grade()
    assert (nothing["score"], nothing["stdout_visibility"]) == (0, "hidden")
    assert "No notebook was handed in" in nothing["output"]
    two = grader.grade(notebook(RIGHT), notebook(STUBS))
    assert two["score"] == 0
    assert two["output"].startswith("NOT GRADED, the 0 is not a grade. both ")
    assert two["output"].endswith("90_small.ipynb: hand in one of them")
    (grader.root / "source" / "release" / "90_small.ipynb").unlink()
    assert "a person has to look" in grader.grade(notebook(RIGHT))["output"]
    used = [one for one in grader.log.read_text().splitlines() if "python3" in one]
    assert len(used) == 2  # both of setup.sh, for pip
