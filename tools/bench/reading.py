"""Reading what the TPU compiler made of GPT-3's train step."""

import lzma
import re

from tools.bench.clock import ROOT, Part, duration, median_seconds, ratio
from tools.bench.gpt3 import MESH

TEXT = ROOT / "tests" / "data" / "hlo" / "gpt3_step.tpu_0.10.2.hlo.xz"
OPCODES = (
    r"\b(all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter)"
    r"(?:-start)?\("
)


def reading() -> Part:
    from spmd_helpers import read_hlo
    from spmd_helpers._core.source_lines import place_name
    from spmd_helpers._hlo.collectives import collectives_of, read_module
    from spmd_helpers._hlo.work import work

    with lzma.open(TEXT, "rt") as file:
        text = file.read()

    def x_ray() -> None:
        module = read_module(text)
        collectives_of(module, MESH, place_name)
        work(module, MESH, None)

    pattern = re.compile(OPCODES)
    steps = {
        "re.findall of the opcodes": lambda: pattern.findall(text),
        "read_hlo": lambda: read_hlo(text, MESH),
        "  of it, into records": lambda: read_module(text),
        "read_hlo, and FLOPs, redundancy": x_ray,
    }
    took = {name: median_seconds(f) for name, f in steps.items()}
    one_pass = took["re.findall of the opcodes"]
    rows = [("what", "takes", "MB/s", "of one pass")] + [
        (name, duration(s), f"{len(text) / 1e6 / s:.3g}", ratio(s, one_pass))
        for name, s in took.items()
    ]
    moves = read_hlo(text, MESH)
    times = sum(c.count or 0 for c in moves)
    notes = [
        f"{len(moves)} collectives, run {times:,} times a step; the regular expression",
        f"finds {len(pattern.findall(text))} opcodes and says neither axis nor count.",
    ]
    title = f"reading {len(text) / 1e6:.2f} MB of GPT-3's train step for 64 TPU v5p"
    return title, rows, (1, 2, 3), notes
