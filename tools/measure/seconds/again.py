"""Predict the steps of four cards again, with what `step_time` has learned since.

    python -m tools.measure.seconds.again [--compile]

writes again_gpu.json, beside ahead_gpu.json, which says what was predicted before the
cards ran these steps and is not written again. `--compile` makes the programs of the
steps without cards (JAX's CUDA plugin) and stores what is read of them. Those with
cuDNN's attention are the ones that ran, stored beside their traces.
"""

import argparse
import time

import jax

import spmd_helpers as spmd
from tools.check.make_fixtures import pack
from tools.measure.runner import BOOKS, write
from tools.measure.seconds.texts import DATA, archived, reduced

FILE = BOOKS / "again_gpu.json"
CARDS, CHIP = 4, "h200"
ARCHIVE = "ahead.gpu_*"


def texts() -> dict[str, str]:
    """Name of a row → its program."""
    (path,) = DATA.glob(ARCHIVE)
    kept = {r["name"]: r["hlo"] for r in spmd.load_measured("gpu-traced") if "hlo" in r}
    return archived(path) | kept


def prediction(name: str, text: str) -> dict:
    """What `step_time` says of a step today."""
    step = spmd.step_time(text, CHIP)
    return {
        "name": name,
        "predicted_s": step.total_s,
        "predicted_exposed_s": step.exposed_s,
        "devices": CARDS,
    }


def predict() -> None:
    about = {
        "date": time.strftime("%Y-%m-%d"),
        "command": "python -m tools.measure.seconds.again",
    }
    traced = {row["name"]: row for row in spmd.load_measured("gpu-traced")}
    rows = [prediction(name, text) | about for name, text in texts().items()]
    write(FILE, rows)
    for row in rows:
        ran = traced[row["name"]]
        print(
            f"{row['name']:24} {row['predicted_s'] / ran['step_s'] - 1:+.1%}, exposed "
            f"{row['predicted_exposed_s'] * 1e3:.1f} of {ran['exposed_s'] * 1e3:.1f} ms"
        )


def compile_all() -> None:
    """Store the reduced programs of the steps that were predicted without a card."""
    from tools.measure.traces import compiled_row, programs

    devices = list(spmd.gpu_mesh(f"{CHIP}:{CARDS}", data=CARDS).devices.flat)
    kept = []
    for name, setting in programs(CARDS).items():
        if "cudnn" not in name:
            _, _, report, _ = compiled_row(name, setting, devices)
            kept.append((name, reduced(report.hlo)))
            print(name, flush=True)
            jax.clear_caches()
    pack(DATA / f"ahead.gpu_{jax.__version__}.tar.xz", kept)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.measure.seconds.again")
    parser.add_argument("--compile", action="store_true")
    if parser.parse_args().compile:
        compile_all()
    predict()


if __name__ == "__main__":
    main()
