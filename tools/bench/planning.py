"""Seconds of a plan on one processor, by how many chips and strategies it has."""

import statistics
import time
from collections.abc import Callable

from tools.bench.clock import Part, duration

CASES = (
    ("llama-3-8b", "h100:1x8", 32, 4096),
    ("llama-3-70b", "v5p:4x4x4", 64, 4096),
    ("llama-3-70b", "h100:64x8", 512, 8192),
)
# All presets are planned for these; the slowest of each is a row.
MOST = (("h100:512x8", 1024, 8192), ("b200:512x8", 4096, 4096))
NOTHING_FITS = ("h100:512x8", 4096, 2**20)
_RUNS = 3
_SQUARES = 10**6


def planning() -> Part:
    from spmd_helpers import MODELS, NotUnderstood, plan_mesh

    rows: list[tuple] = [("model", "chips", "strategies", "CPU seconds", "loops")]
    loop = _cpu_seconds(lambda: [n * n for n in range(_SQUARES)])

    def timed(name: str, topology: str, batch: int, seq: int) -> tuple:
        def plan():
            return plan_mesh(MODELS[name], topology, batch=batch, seq=seq)

        seconds, count = _cpu_seconds(plan), len(plan().strategies)
        return seconds, name, topology, count

    def add(
        seconds: float, name: str, topology: str, count: int, why: str = ""
    ) -> None:
        loops = f"{seconds / loop:.1f}"
        rows.append((name, f"{topology}{why}", count, duration(seconds), loops))

    for case in CASES:
        add(*timed(*case))
    for topology, batch, seq in (*MOST, NOTHING_FITS):
        every = []
        for name in MODELS:
            try:
                every.append(timed(name, topology, batch, seq))
            except NotUnderstood:  # not planned, or not for so long a sequence
                continue
        why = ", nothing fits" if (topology, batch, seq) == NOTHING_FITS else ""
        add(*max(every), f"{why} ({len(every)} presets)")
    return (
        "plan_mesh",
        rows,
        (2, 3, 4),
        [
            "Of 4,096 chips the slowest preset is shown, which should take less than a "
            "second.",
            f"A loop is a list of {_SQUARES:,} squares: {duration(loop)}.",
        ],
    )


def _cpu_seconds(f: Callable[[], object]) -> float:
    """The median CPU time of a few runs."""
    taken = []
    for _ in range(_RUNS):
        begun = time.process_time()
        f()
        taken.append(time.process_time() - begun)
    return statistics.median(taken)
