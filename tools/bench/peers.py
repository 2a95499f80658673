"""Calculators of others, each in an environment of its own."""

import subprocess
import sys
import tempfile
from pathlib import Path

_WHERE = Path(tempfile.gettempdir()) / "spmd-bench"


def python_with(name: str, packages: tuple[str, ...]) -> Path | None:
    """The Python of an environment that has these; None if they don't install."""
    python = _WHERE / name / "bin" / "python"
    done = _WHERE / name / "installed"
    if not done.exists():
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        make = [sys.executable, "-m", "venv", "--clear", _WHERE / name]
        install = [python, "-m", "pip", "install", *packages]
        for command in (make, install):
            if subprocess.run(command, **quiet).returncode:
                return None
        done.touch()
    return python
