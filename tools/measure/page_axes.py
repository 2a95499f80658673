"""The section of `book/hardware.md` on axes, policies and optimizers, counted."""

from tools.measure.page_tables import as_table, gib
from tools.measure.truth import programs

# Why a count is further off than a tenth, by the name of its program.
REASONS = {
    "tpu: gpt weights": "the peak is small: the compiler keeps scores of one layer in"
    " the chip's vector memory",
    "tpu: layers fsdp tp": "the same, of a layer's hidden results",
    "tpu: llama wide tp full flash": "a layer's backward pass has six results as wide"
    " as d_model at once, and not eight",
    "cards: llama weights 2d sp": "Blackwell's compiler has one layer's scores three"
    " times in the backward pass, and not four times",
    "cards: mixture tp full": "the head's gradient waits for the update, and not the"
    " logits', which are counted",
    "cards: llama ring tp sp full": "the compiler has one block's scores in float32"
    " once, and in bfloat16 four times, not three times and once",
}


def axes_section(rows: list[dict]) -> str:
    """Each program, its peak, what is counted for it, and why where that is far off."""
    known = programs.MORE_TPU | programs.MORE_GPU | programs.MORE_HERE
    off = {row["name"]: _off(known[row["name"]], row) for row in rows}
    kept_out = [off[name] for name in off if programs.is_kept_out(name)]
    table = [["program", "chips", "peak", "counted", "off", "kept out", "why"]]
    for row in rows:
        name = row["name"]
        table.append(
            [
                name.partition(": ")[2],
                f"{row['devices']} × {row['device']}",
                gib(row["peak_bytes"]),
                gib(round(row["peak_bytes"] * (1 + off[name]))),
                f"{off[name]:+.1%}",
                "yes" if programs.is_kept_out(name) else "",
                REASONS.get(name, ""),
            ]
        )
    here = [row for row in rows if "allocator_peak_bytes" in row]
    drawn = [
        row
        for row in rows
        if programs.is_kept_out(row["name"]) and not row["name"].startswith("2 gpu: ")
    ]
    near = [sum(abs(one) <= 0.1 for one in some) for some in (off.values(), kept_out)]
    return (
        "## Axes, policies and optimizers, counted and compiled\n\n"
        f"Small models over other axes. {len(rows) - len(here)} were compiled without"
        f" a TPU or a GPU, jax {rows[0]['jax']}, {rows[0]['date']}:"
        " `tools/measure/truth/measure.py --tpu --axes` and `--cards --axes`. The"
        f" {len(here)} on one or two H200s ran there, jax {here[0]['jax']}:"
        " `--gpu --axes`. *Peak* is the compiler's in all rows. Those that ran have the"
        " allocator's too, in `load_measured`: it is up to"
        f" {gib(max(map(_over, here)))} more.\n\n"
        f"{near[0]} of {len(off)} peaks are within a tenth of what is counted, and"
        f" {near[1]} of the {len(kept_out)} that were kept out. {len(drawn)} of these"
        " were drawn by the hash of their names, before they were compiled; three more"
        f" were drawn, looked at, and are not counted. The {len(kept_out) - len(drawn)}"
        " on two H200s are counted as kept out because no formula was changed after"
        " they ran; that rule was added afterwards.\n\n" + as_table(table)
    )


def _over(row: dict) -> int:
    """Bytes that the allocator had in use beyond the compiler's peak."""
    return row["allocator_peak_bytes"] - row["peak_bytes"]


def _off(program: programs.Program, row: dict) -> float:
    total = programs.counted(program, row["device"]).total_bytes
    return total / row["peak_bytes"] - 1
