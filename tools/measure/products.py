"""Time matrix products on one GPU by its own clock: each kernel, from a trace.

    python -m tools.measure.products [--out FOLDER] [--tiny]

writes products_gpu.json. The clock of the host counts what it needs to start a call, 45
to 65 µs, which is longer than a product of few rows; the trace has the kernels alone.
Each product runs 12 times with the same weights: those of at most 50 MB stay in the
card's cache. `--tiny` is a rehearsal with small shapes, whose rows have no kernels
where there is no GPU. The stored rows were measured with a script of the same method,
of which this tool was made.
"""

import argparse
import contextlib
import tempfile
from collections import defaultdict
from pathlib import Path
from statistics import median

import jax

import spmd_helpers as spmd
from spmd_helpers._time.trace import read_runs
from tools.measure.gpu import where
from tools.measure.model import BF16
from tools.measure.runner import write

CALLS = 12
FILE = "products_gpu.json"
ROWS = (1, 4, 8, 16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048, 4096)
WEIGHTS = (
    *((8192, 8192), (4096, 4096), (4096, 14336)),
    *((14336, 4096), (2048, 8192), (8192, 28672)),
)


def product(m: int, k: int, n: int):
    """A jitted product whose program has the name of its shape."""

    def multiply(x, w):
        return x @ w

    multiply.__name__ = multiply.__qualname__ = f"product_{m}_{k}_{n}"
    return jax.jit(multiply)


def measure(shapes: list[tuple[int, int, int]], about: dict) -> list[dict]:
    calls = []
    weights: dict[tuple[int, int], jax.Array] = {}
    for m, k, n in shapes:
        if (k, n) not in weights:
            weights[k, n] = jax.random.normal(jax.random.key(1), (k, n), BF16)
        run, x = product(m, k, n), jax.random.normal(jax.random.key(0), (m, k), BF16)
        jax.block_until_ready(run(x, weights[k, n]))
        calls.append((run, x, weights[k, n]))
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            for run, x, w in calls:
                for _ in range(CALLS):
                    y = run(x, w)
                jax.block_until_ready(y)
        kernels = {shape: traced(Path(folder), shape) for shape in shapes}
    rows = []
    for m, k, n in shapes:
        times = kernels[m, k, n]
        names = [[name, median(each), len(each)] for name, each in times.items()]
        seconds = sum(s * count for _, s, count in names) / CALLS
        row = {"name": f"{m}x{k}x{n}", "m": m, "k": k, "n": n, "dtype": "bfloat16"}
        rows.append({**row, "device_s": seconds, "kernels": names, **about})
    return rows


def traced(folder: Path, shape: tuple[int, int, int]) -> dict[str, list[float]]:
    """Kernel → seconds of each of its runs on the first GPU, of one product."""
    m, k, n = shape
    times: dict[str, list[float]] = defaultdict(list)
    with contextlib.suppress(spmd.NotUnderstood):  # no GPU
        for run in read_runs(jax, folder, f"jit_product_{m}_{k}_{n}"):
            times[run.name].append(run.end_s - run.start_s)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.measure.products")
    parser.add_argument("--out", type=Path, default=Path("my-measurements"))
    parser.add_argument("--tiny", action="store_true")
    given = parser.parse_args()
    shapes = [(m, k, n) for k, n in WEIGHTS for m in ROWS]
    if given.tiny:
        shapes = [(8, 64, 96), (16, 64, 96)]
    about = where(given.tiny) | {"devices": 1, "command": "tools/measure/products.py"}
    given.out.mkdir(parents=True, exist_ok=True)
    write(given.out / FILE, measure(shapes, about))


if __name__ == "__main__":
    main()
