"""The section of `book/hardware.md` on what `training_memory` counts for GPUs."""

from spmd_helpers._training.model import MLP, Transformer
from spmd_helpers._training.training_memory import training_memory
from tools.measure.page_tables import as_table, gib
from tools.measure.truth.programs import KEPT_OUT_GPU


def counted_section(rows: list[dict]) -> str:
    """Each program that was compiled, its peak, and what is counted for it."""
    off = {row["name"]: _counted(row) / row["peak_bytes"] - 1 for row in rows}
    kept_out = [off[name] for name in off if name in KEPT_OUT_GPU]
    table = [["program", "cards", "the compiler's peak", "counted", "off", "kept out"]]
    for row in rows:
        name = row["name"]
        table.append(
            [
                name.partition(": ")[2],
                f"{row['devices']} × {row['device']}",
                gib(row["peak_bytes"]),
                gib(_counted(row)),
                f"{off[name]:+.1%}",
                "yes" if name in KEPT_OUT_GPU else "",
            ]
        )
    near = sum(abs(one) <= 0.1 for one in kept_out)
    return (
        "## Training steps for GPUs, counted and compiled\n\n"
        f"jax {rows[0]['jax']}, {rows[0]['date']}, without a GPU:"
        " `tools/measure/truth/measure.py --cards`. *Counted* is what"
        " `spmd.training_memory` gives for that chip. The programs that were kept out"
        " were drawn before a formula was written, and compiled after it:"
        f" these {len(kept_out)} are off by {min(kept_out):+.1%} to"
        f" {max(kept_out):+.1%}, {near} of them by less than a tenth.\n\n"
        + as_table(table)
    )


def _counted(row: dict) -> int:
    how = dict(row["program"])
    kind = {"MLP": MLP, "Transformer": Transformer}[row["kind"]]
    model = kind(**how.pop("model"))
    mesh = {"data": how.pop("data"), "model": how.pop("model_axis")}
    del how["name"], how["topology"]
    return training_memory(model, mesh=mesh, chip=row["device"], **how).total_bytes
