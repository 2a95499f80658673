"""How long a reader waits for the package, beyond what Python itself takes."""

import os
import statistics
import subprocess
import sys
import time

from tools.bench.clock import ROOT, Part, duration, ratio

PACKAGE = "import spmd_helpers as spmd"
SPEC = "from jax.sharding import PartitionSpec as P"
SHAPE = "(6, 10), P('data'), mesh={'data': 2}"
CODES = {
    "nothing": "pass",
    "import spmd_helpers": PACKAGE,
    "... and training_memory of GPT-3": f"{PACKAGE}; spmd.training_memory("
    "spmd.MODELS['gpt3-175b'], mesh={'data': 8, 'model': 8}, batch=64)",
    "import PartitionSpec": SPEC,
    "... and the first sharding": f"{SPEC}; {PACKAGE}; spmd.sharding({SHAPE})",
    "... and the first drawing": f"{SPEC}; {PACKAGE}; str(spmd.draw({SHAPE}))",
    "import numpy": "import numpy",
    "import jax": "import jax",
}
RUNS = 15


def starting() -> Part:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    took: dict[str, list[float]] = {name: [] for name in CODES}
    for run in range(RUNS + 1):
        for name, code in CODES.items():
            start = time.perf_counter()
            subprocess.run([sys.executable, "-c", code], env=environment, check=True)
            if run:  # the first fills the disk's cache
                took[name].append(time.perf_counter() - start)
    bare = statistics.median(took.pop("nothing"))
    above = {name: statistics.median(all_) - bare for name, all_ in took.items()}
    rows = [("what", "takes", "of import jax")] + [
        (name, duration(max(s, 0)), ratio(s, above["import jax"]))
        for name, s in above.items()
    ]
    notes = [f"beyond the {duration(bare)} of a Python that does nothing"]
    return f"starting, median of {RUNS} fresh Pythons", rows, (1, 2), notes
