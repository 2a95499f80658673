"""A clock, a table, and other Pythons to measure in."""

import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TOOLS = ROOT / "tools"
# What a part gives: its title, its rows (the first is the head), the columns that are
# numbers, the sentences under it.
Part = tuple[str, list[Sequence[object]], Sequence[int], list[str]]


def median_seconds(
    f: Callable[[], object], *, runs: int = 15, seconds: float = 2.0
) -> float:
    """The median of `runs` runs, or of as many as fit, three at least, in `seconds`."""
    f()
    begun, took = time.perf_counter(), []
    while len(took) < 3 or (len(took) < runs and time.perf_counter() - begun < seconds):
        start = time.perf_counter()
        f()
        took.append(time.perf_counter() - start)
    return statistics.median(took)


def duration(seconds: float) -> str:
    """1.23 s, 45.6 ms: three digits."""
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1000:.3g} ms"


def ratio(others: float, ours: float) -> str:
    """How many times ours goes into the other's: above 1, ours is the quicker."""
    times = others / ours
    return f"{times:.0f} ×" if times >= 10 else f"{times:.2g} ×"


def say_table(rows: list[Sequence[object]], right: Sequence[int]) -> None:
    from spmd_helpers._core.words import table

    print(table(rows, right=right))


def versions() -> str:
    from importlib.metadata import version

    return f"Python {platform.python_version()}, jax {version('jax')}"


def in_another_python(name: str, devices: int) -> Any:
    """What `measure()` of tools/NAME.py gives where there are so many CPU devices."""
    code = (
        f"import sys; sys.path.insert(0, {str(TOOLS)!r})\n"
        "import jax, json, os\n"
        f"jax.config.update('jax_num_cpu_devices', {devices})\n"
        f"import {name}\n"
        f"print(json.dumps({name}.measure()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        # More threads than devices, or devices that wait for others block them.
        env={**os.environ, "JAX_PLATFORMS": "cpu", "NPROC": str(devices + 24)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])
