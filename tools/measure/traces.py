"""Predict a transformer's steps without cards, then trace them on cards.

    python -m tools.measure.traces --predict 4 [--rows A,B]
    python -m tools.measure.traces --measure [--rows A,B] [--minutes N] [--out FOLDER]

`--predict 4` compiles each step for four H200s that need not be there (JAX's CUDA
plugin) and writes what it says into the package's data, as ahead_gpu.json:
collectives, memory, seconds. `--measure` runs the same steps on the GPUs here, each in
a process of its own, and writes traced_gpu.json: seconds by the clock and by the trace,
the allocator's peak, and what is exposed; beside it the compiled text and the trace of
the rows in KEPT, from which `spmd.read_trace` makes its report again.
"""

import argparse
import contextlib
import dataclasses
import gzip
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import jax

import spmd_helpers as spmd
from spmd_helpers._time.trace import read_runs, write_runs
from tools.measure.clock import about, added_up, allocator_peak, exchanges
from tools.measure.model import BOTH, Setting, one_step
from tools.measure.plans import OVERLAP
from tools.measure.runner import BOOKS, ROOT, driver, stored, write

CHIP = "h200"
STEPS = 3
PREDICTED, TRACED = "ahead_gpu.json", "traced_gpu.json"
KEPT = ("fsdp cudnn", "fsdp cudnn overlapped", "tensor parallel cudnn")

_BASE = Setting(compute="bfloat16", attention="xla", donate=True, recompute="cheap")
_LARGE = {"layers": 32, "d_ff": 14336, "recompute": "dots_saveable"}


def programs(cards: int) -> dict[str, Setting]:
    """Name of a row → its step; eight sequences a card."""
    base = _BASE.but(batch=8 * cards)
    fsdp = base.but(strategy="fsdp constrained")
    rows = {
        "replicated": base.but(strategy="replicated"),
        "fsdp plain": base.but(strategy="fsdp plain"),
        "fsdp": fsdp,
        "fsdp overlapped": fsdp.but(scan=False, flags=OVERLAP),
        "tensor parallel": base.but(strategy="tensor parallel"),
        "fsdp cudnn": fsdp.but(attention="cudnn"),
        "fsdp cudnn overlapped": fsdp.but(attention="cudnn", scan=False, flags=OVERLAP),
        "tensor parallel cudnn": base.but(
            strategy="tensor parallel", attention="cudnn"
        ),
    }
    if cards >= 4:
        rows["fsdp and tensor"] = base.but(strategy=BOTH)
        rows["6b fsdp"] = fsdp.but(**_LARGE, batch=2 * cards)
        rows["6b fsdp and tensor"] = base.but(strategy=BOTH, **_LARGE, batch=2 * cards)
    return rows


def compiled_row(name: str, s: Setting, devices) -> tuple[dict, object, object, object]:
    """What the compiled step says; with the step, what begins it, and its report."""
    step, begin, shapes, mesh = one_step(s, devices)
    with jax.set_mesh(mesh):
        compiled = step.lower(*shapes).compile(compiler_options=_options(s))
        report = spmd.xray(compiled, mesh=mesh)
    said = spmd.step_time(report, CHIP, tokens=s.batch * s.seq)
    row = {
        "name": name,
        "setting": dataclasses.asdict(s),
        "collectives": added_up(exchanges(report.collectives)),
        "peak_bytes": report.peak_memory,
        "predicted_s": said.total_s,
        "predicted_exposed_s": said.exposed_s,
    }
    return row, (compiled, begin, mesh), report, said


def _options(s: Setting) -> dict[str, bool]:
    """XLA's flags, of this compilation alone."""
    pairs = (flag.removeprefix("--").split("=") for flag in s.flags.split())
    return {name: value == "true" for name, value in pairs}


# --- Without cards --------------------------------------------------------------------


def predict(cards: int, names: list[str]) -> None:
    mesh = spmd.gpu_mesh(f"{CHIP}:{cards}", data=cards)
    devices = list(mesh.devices.flat)
    rows = [row for row in stored(BOOKS / PREDICTED) if row["name"] not in names]
    for name, s in programs(cards).items():
        if (names and name not in names) or "cudnn" in name:
            continue  # cuDNN's kernels are only compiled where cuDNN is
        row, *_ = compiled_row(name, s, devices)
        row |= {"device": devices[0].device_kind, "devices": cards}
        row |= {"jax": jax.__version__, "date": time.strftime("%Y-%m-%d")}
        row["command"] = f"tools/measure/traces.py --predict {cards}"
        rows.append(row)
        print(f"{name}: {row['predicted_s'] * 1e3:.1f} ms", flush=True)
        write(BOOKS / PREDICTED, rows)


# --- On cards -------------------------------------------------------------------------


def measure_one(name: str, out: Path) -> None:
    """One row, in this process."""
    devices = jax.devices()
    s = programs(len(devices))[name]
    row, (compiled, begin, mesh), report, _ = compiled_row(name, s, devices)
    with jax.set_mesh(mesh):
        state, batch = begin()
        jax.block_until_ready(state)
        before = allocator_peak()
        for _ in range(3):
            state, loss = compiled(state, batch)
        jax.block_until_ready(loss)
        took = []
        for _ in range(8):
            begun = time.perf_counter()
            state, loss = compiled(state, batch)
            jax.block_until_ready(loss)
            took.append(time.perf_counter() - begun)
        peak = allocator_peak()
        with tempfile.TemporaryDirectory() as folder:
            with jax.profiler.trace(folder):
                for _ in range(STEPS):
                    state, loss = compiled(state, batch)
                jax.block_until_ready(loss)
            said = spmd.read_trace(folder, report, CHIP, tokens=s.batch * s.seq)
            if name in KEPT:
                row["trace"] = f"trace {name}".replace(" ", "_")
                runs = read_runs(jax, Path(folder), "jit_step")
                write_runs(runs, out / f"{row['trace']}.runs.json.gz")
                text = report.hlo.replace(f"{ROOT}/", "")
                packed = gzip.compress(text.encode(), mtime=0)
                (out / f"{row['trace']}.hlo.gz").write_bytes(packed)
    row |= {
        "loss": float(loss),
        "step_s": statistics.median(took),
        "traced_s": said.total_s,
        "exposed_s": said.exposed_s,
        "mfu": said.mfu,
        "lanes": dict(said.lanes),
        "allocator_peak_bytes": peak,
        "allocator_start_bytes": before,
    }
    row |= about() | {"driver": driver(), "date": time.strftime("%Y-%m-%d")}
    row["command"] = "tools/measure/traces.py --measure"
    print(said, flush=True)
    (out / f"row {name}.json".replace(" ", "_")).write_text(json.dumps(row), "utf8")


def measure(names: list[str], minutes: float, out: Path) -> None:
    """Each row in a process of its own: one that fails costs that row only."""
    # This process only counts the cards; the pools are those of its children.
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    out.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + minutes * 60
    rows = []
    for name in programs(len(jax.devices())):
        if names and name not in names:
            continue
        left = end - time.monotonic()
        if left < 40:
            print(f"{name}: no time left", flush=True)
            continue
        command = [sys.executable, "-m", "tools.measure.traces", "--one", name]
        settings = {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.92"}
        settings["XLA_PYTHON_CLIENT_PREALLOCATE"] = "true"
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(
                [*command, "--out", out],
                env={**os.environ, **settings},
                timeout=min(left, 150),
            )
        part = out / f"row {name}.json".replace(" ", "_")
        if part.exists():
            rows.append(json.loads(part.read_text("utf8")))
            part.unlink()
            write(out / TRACED, rows)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.measure.traces")
    parser.add_argument("--predict", type=int, metavar="CARDS")
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--rows", default="")
    parser.add_argument("--minutes", type=float, default=9)
    parser.add_argument("--out", type=Path, default=Path("my-measurements"))
    given = parser.parse_args()
    names = [name for name in given.rows.split(",") if name]
    if given.predict:
        predict(given.predict, names)
    elif given.one:
        measure_one(given.one, given.out)
    elif given.measure:
        measure(names, given.minutes, given.out)
    else:
        parser.error("give --predict or --measure")


if __name__ == "__main__":
    main()
