"""What a step should take, from its compiled program and the card's speeds alone.

`sheet` and `speeds` are chapter 14's model, FLOPs, state and wire bytes over speeds,
those of the data sheet or those that were measured. `step_time` goes through the text.
Nothing here asks JAX, so that stored rows can be predicted again with better speeds.
"""

import zipfile
from pathlib import Path

import spmd_helpers as spmd
from spmd_helpers._hardware.chips import HARDWARE
from tools.measure.runner import stored, write


def sheet_of(device: str):
    """The data sheet of a card, by what JAX calls it; None where there is none."""
    result = (chip for chip in HARDWARE.values() if chip.device_kind == device)
    return next(result, None)


def predictions(row: dict, sheet, speeds: dict, text: str = "") -> dict:
    """Seconds by what the card is busy with, for each way to predict.

    Args:
        row: `flops_per_device`, `held_bytes` (each argument read, each result written
            once: the least there can be), `collectives`, and the `setting`'s compute.
        sheet: the card in `spmd_helpers.HARDWARE`, or None if it has none.
        speeds: what `speeds_gpu.json` has, or {}.
        text: the compiled program, if it is there.
    """
    is_wide = row["setting"]["compute"] == "float32"
    moved = row["collectives"]
    result = {}
    if sheet is not None:
        # TF32, in which JAX multiplies float32 here, has half of bfloat16's peak.
        peak = sheet.bf16_flops_per_s / (2 if is_wide else 1)
        wires = sum(c["wire_bytes"] * c["count"] for c in moved)
        result["sheet"] = {
            "compute_s": row["flops_per_device"] / peak,
            "memory_s": row["held_bytes"] / sheet.memory_bytes_per_s,
            "wires_s": wires / sheet.link_bytes_per_s,
        }
    if not speeds:
        return result
    wide = "f32" if is_wide else "bf16"
    result["speeds"] = {
        "compute_s": row["flops_per_device"] / speeds[f"{wide}_flops_per_s"],
        "memory_s": row["held_bytes"] / speeds["memory_bytes_per_s"],
        "wires_s": sum(c["count"] * _exchange_s(c, speeds) for c in moved),
    }
    if text and sheet is not None:
        step = spmd.step_time(text, sheet, rates=speeds)
        if step.total_s is not None:
            kernels = step.total_s - step.exposed_s
            result["step_time"] = {"kernels_s": kernels, "waiting_s": step.exposed_s}
    return result


def _exchange_s(collective: dict, speeds: dict) -> float:
    """Seconds of one run, by the line of its kind or that of an all-gather."""
    lines = speeds.get("collectives", {})
    line = lines.get(collective["kind"]) or lines.get("all-gather")
    if not line:
        return 0.0
    return line["start_s"] + collective["wire_bytes"] / line["bytes_per_s"]


def zipped(path: Path) -> dict[str, str]:
    """The texts that `tools.measure.transformer --hlo` kept, by the name of the row."""
    with zipfile.ZipFile(path) as kept:
        names = kept.namelist()
        return {name.removesuffix(".txt"): kept.read(name).decode() for name in names}


def predict_again(folder: Path, texts: list[Path], files: dict) -> list[str]:
    """The predictions of the stored steps, by the stored speeds and the kept texts.

    Args:
        folder: where the rows are.
        texts: what `tools.measure.transformer --hlo` kept; of a name the last counts.
        files: the names of the files of "speeds", "ways" and "log".

    Returns:
        What was predicted of each row, in words.
    """
    (speeds,) = stored(folder / files["speeds"])
    kept, said = {}, []
    for path in texts:
        kept |= zipped(path)
    for group in ("ways", "log"):
        path = folder / files[group]
        rows = stored(path)
        for row in rows:
            if "flops_per_device" not in row or row["device"] != speeds["device"]:
                continue
            text = kept.get(f"{group}/{row['name']}", "")
            sheet = sheet_of(row["device"])
            if "held_bytes" not in row:  # of a run before 28 November 2026, 15:30
                in_and_out = (
                    row["predicted"]["sheet"]["memory_s"] * sheet.memory_bytes_per_s
                )
                row["held_bytes"] = round(in_and_out)
            row["predicted"] = predictions(row, sheet, speeds, text)
            said.append(f"{row['name']}: {', '.join(row['predicted'])}")
        if rows:
            write(path, rows)
    return said
