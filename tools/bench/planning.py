"""Seconds of a plan, by how many chips and strategies it has."""

from tools.bench.clock import Part, duration, median_seconds

CASES = (
    ("llama-3-8b", "h100:1x8", 32, 4096),
    ("llama-3-70b", "v5p:4x4x4", 64, 4096),
    ("llama-3-70b", "h100:64x8", 512, 8192),
    ("llama-3-70b", "h100:512x8", 1024, 8192),
)


def planning() -> Part:
    from spmd_helpers import MODELS, plan_mesh

    rows: list[tuple] = [("model", "chips", "strategies", "seconds")]
    for name, topology, batch, seq in CASES:

        def run():
            return plan_mesh(MODELS[name], topology, batch=batch, seq=seq)  # noqa: B023

        count = len(run().strategies)
        rows.append((name, topology, count, duration(median_seconds(run, runs=5))))
    return "plan_mesh", rows, (2, 3), ["4,096 chips should take less than a second."]
