"""Seconds of a plan on one processor, by how many chips and strategies it has."""

import statistics
import time

from tools.bench.clock import Part, duration

CASES = (
    ("llama-3-8b", "h100:1x8", 32, 4096),
    ("llama-3-70b", "v5p:4x4x4", 64, 4096),
    ("llama-3-70b", "h100:64x8", 512, 8192),
    ("llama-3-8b", "h100:512x8", 1024, 8192),
    ("llama-3-70b", "h100:512x8", 1024, 8192),
    ("qwen3-235b-a22b", "h100:512x8", 1024, 8192),
)
_RUNS = 3


def planning() -> Part:
    from spmd_helpers import MODELS, plan_mesh

    rows: list[tuple] = [("model", "chips", "strategies", "CPU seconds")]
    for name, topology, batch, seq in CASES:
        taken = []
        for _ in range(_RUNS):
            begun = time.process_time()
            plan = plan_mesh(MODELS[name], topology, batch=batch, seq=seq)
            taken.append(time.process_time() - begun)
        seconds = duration(statistics.median(taken))
        rows.append((name, topology, len(plan.strategies), seconds))
    return "plan_mesh", rows, (2, 3), ["4,096 chips should take less than a second."]
