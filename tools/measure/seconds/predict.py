"""Predict every measured row by `spmd.step_time`, and write it beside the time.

    python -m tools.measure.seconds.predict

writes predicted_gpu.json, of which book/hardware.md and the tests read the errors.
Nothing is compiled: the texts are those of `tools.measure.seconds.texts`.
"""

import statistics
from collections.abc import Iterable

import spmd_helpers as spmd
from spmd_helpers._hardware.chips import HARDWARE
from tools.measure.runner import BOOKS, write
from tools.measure.seconds.rows import is_kept_out, rows
from tools.measure.seconds.texts import stored

FILE = BOOKS / "predicted_gpu.json"
# Rows that ran for seconds on end, with the card as warm as it gets; the others were a
# few calls on a cool one.
SUSTAINED = ("ways", "log")


def prediction(name: str, row: dict, text: str) -> dict:
    """What `step_time` says of a row."""
    group = name.partition("/")[0]
    (chip,) = (c.name for c in HARDWARE.values() if c.device_kind == row["device"])
    step = spmd.step_time(text, chip, sustained=group in SUSTAINED)
    return {
        "name": name,
        "measured_s": row["median_s"],
        "predicted_s": step.total_s,
        "exposed_s": step.exposed_s,
        "kept_out": is_kept_out(name),
        **{key: row[key] for key in ("device", "devices", "jax", "date")},
        "command": "python -m tools.measure.seconds.predict",
    }


def predictions() -> list[dict]:
    """Of all measured rows whose programs are stored."""
    every, texts = rows(), stored()
    return [prediction(name, every[name], texts[name]) for name in texts]


def error(row: dict) -> float:
    """Predicted over measured, less one."""
    return row["predicted_s"] / row["measured_s"] - 1


def spread(predicted: Iterable[dict]) -> tuple[float, float, float]:
    """The median error, that which nine of ten are within, and the largest."""
    errors = sorted(abs(error(row)) for row in predicted)
    nine = errors[-(-9 * len(errors) // 10) - 1]
    return statistics.median(errors), nine, errors[-1]


def main() -> None:
    """Write the file, and print the errors."""
    answers = predictions()
    write(FILE, answers)
    groups = dict.fromkeys(row["name"].partition("/")[0] for row in answers)
    for kept_out in (False, True):
        print("kept out" if kept_out else "chosen with")
        for group in (*groups, ""):
            some = [
                row
                for row in answers
                if row["kept_out"] is kept_out and row["name"].startswith(group)
            ]
            if some:
                median, nine, most = spread(some)
                print(
                    f"  {group or 'all':12} {len(some):3} rows, median {median:.1%}, "
                    f"nine of ten {nine:.1%}, most {most:.1%}"
                )


if __name__ == "__main__":
    main()
