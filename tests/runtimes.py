"""Environments with Colab's and Kaggle's versions, those of tests/data/runtimes.

Each is made once, beside .venv, and a test gets a copy of hard links: pip replaces
files and never writes into one, so the first stays as it was.
"""

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LISTS = ROOT / "tests" / "data" / "runtimes"
MADE = ROOT / ".venv-runtimes"


def python_of(name: str) -> str:
    """The version of Python that a list's first line names: "3.13"."""
    first = (LISTS / f"{name}.txt").read_text("utf8").splitlines()[0]
    return re.search(r"Python (\d\.\d+)$", first)[1]


def versions(name: str) -> dict[str, str]:
    lines = (LISTS / f"{name}.txt").read_text("utf8").splitlines()
    return dict(line.split("==") for line in lines if not line.startswith("#"))


def find_python(version: str) -> str:
    """A Python of that version which runs here, or the test is skipped."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    for candidate in (
        f"python{version}",
        *map(str, sorted(pyenv.glob(f"{version}.*/bin/python"))),
    ):
        path = shutil.which(candidate)
        works = [path, "-c", "import sys, venv, ensurepip; print(sys.version)"]
        if path and subprocess.run(works, capture_output=True).returncode == 0:
            return path
    missing = f"no Python {version} runs here"
    if os.environ.get("SPMD_RUNTIMES_REQUIRED"):
        pytest.fail(missing)
    pytest.skip(missing)


def environment(name: str) -> Path:
    """The folder of an environment with exactly the versions of a list."""
    MADE.mkdir(exist_ok=True)
    with (MADE / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one process makes it, the others wait
        return _environment(name)


def _environment(name: str) -> Path:
    text = (LISTS / f"{name}.txt").read_text("utf8")
    folder = MADE / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    stamp = folder / "complete"
    if stamp.exists():
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([find_python(python_of(name)), "-m", "venv", folder], check=True)
    pip = [folder / "bin" / "python", "-m", "pip", "install", "--quiet"]
    pip += ["--disable-pip-version-check"]
    if own_pip := versions(name).get("pip"):
        subprocess.run([*pip, f"pip=={own_pip}"], check=True)
    subprocess.run([*pip, "--requirement", LISTS / f"{name}.txt"], check=True)
    stamp.touch()
    return folder


def copied(environment: Path, folder: Path) -> Path:
    """A copy of an environment, to install into; its Python."""
    shutil.copytree(environment, folder, symlinks=True, copy_function=os.link)
    return folder / "bin" / "python"


def installed(python: Path, *names: str) -> list[str | None]:
    """The versions that an environment has, asked in a process of its own."""
    code = f"""if True:
        from importlib.metadata import PackageNotFoundError, version
        for name in {names!r}:
            try:
                print(version(name))
            except PackageNotFoundError:
                print(None)"""
    done = subprocess.run(
        [python, "-c", code], capture_output=True, text=True, check=True
    )
    return [None if line == "None" else line for line in done.stdout.split()]
