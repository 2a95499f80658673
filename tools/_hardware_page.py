"""The page of measured figures: what the package's stored rows say, in tables."""

import sys
from collections import Counter

from _book import ROOT
from _hardware_tables import GIB, as_table, card, exchanges, title
from _hardware_transformer import transformer_sections

sys.path.insert(0, str(ROOT / "src"))

from spmd_helpers._hardware import HARDWARE
from spmd_helpers._measured import load_measured

HEAD = """\
# Measured on real cards

Every figure here was read on the card that its section names, by the command beside it.
Times are medians; a call is repeated and queued eight at a time (a step three), so that
what the host needs to start it counts little for large ones. `spmd.load_measured` gives
the rows, and [chapter 14](../notebooks/14_roofline.ipynb) holds its predictions against
them.

To measure your own cards: `make hardware`, on the machine that has them.

"""
KINDS = (
    *("all-gather", "reduce-scatter", "all-reduce", "all-to-all"),
    "collective-permute",
)
MIB = 2**20


def hardware_page() -> str:
    """The text of `book/hardware.md`."""
    moved = load_measured("gpu-collectives")
    steps = load_measured("gpu-steps")
    memory = load_measured("gpu-memory")
    parts = [HEAD]
    parts.append(_collectives([r for r in moved if r["kind"] != "matmul"]))
    parts.append(_products([r for r in moved if r["kind"] == "matmul"]))
    parts.append(_ways(steps))
    parts.append(_batches(steps))
    kinds = ("gpu-attention", "gpu-transformer", "gpu-log")
    parts += transformer_sections(*map(load_measured, kinds))
    parts.append(_memory([r for r in memory if r.get("allocator_peak_bytes")]))
    return "\n".join(parts)


def _collectives(rows: list[dict]) -> str:
    sizes = sorted({row["bytes"] for row in rows})
    found = {(row["kind"], row["bytes"]): row for row in rows}
    table = [["the whole array", *KINDS]]
    for size in sizes:
        cells = [f"{size // MIB} MiB"]
        for kind in KINDS:
            row = found[kind, size]
            rate = row["wire_bytes"] / row["median_s"] / 1e9
            cells.append(f"{row['median_s'] * 1e3:.3f} ms, {rate:.0f} GB/s")
        table.append(cells)
    return (
        f"## Collectives\n\n{card(rows)}\n\n"
        "bfloat16. The rate is what one card sends (wire bytes, by the ring formula)"
        " over the time. Small arrays cost the start, not the bytes.\n\n"
        + as_table(table)
    )


def _products(rows: list[dict]) -> str:
    peak = _chip(rows[0]).bf16_flops_per_s
    table = [["m, k, n", "time", "TFLOP/s", "of the peak"]]
    for row in rows:
        rate = 2 * row["m"] * row["k"] * row["n"] / row["median_s"]
        shape = f"{row['m']:,} × {row['k']:,} × {row['n']:,}"
        times = f"{row['median_s'] * 1e3:.3f} ms"
        table.append([shape, times, f"{rate / 1e12:.0f}", f"{rate / peak:.0%}"])
    return f"## Matrix products\n\n{card(rows)}, bfloat16.\n\n" + as_table(table)


def _ways(rows: list[dict]) -> str:
    batch = next(row["batch"] for row in rows if row["name"] == "pmap")
    table = [["laid out", "a step", "of the peak", "peak memory", "exchanges"]]
    rows = [row for row in rows if row["batch"] == batch]
    for row in rows:
        memory = row.get("peak_bytes")
        table.append(
            [
                title(row["name"]),
                f"{row['median_s'] * 1e3:.2f} ms",
                f"{_share(row):.0%}",
                f"{memory / GIB:.2f} GiB" if memory else "",
                exchanges(row.get("collectives", [])),
            ]
        )
    return (
        f"## One training step, laid out in six ways\n\n{card(rows)}\n\n"
        f"{_shape(rows[0])}, batch {batch:,}. The share is of the products' FLOPs,"
        " 12 × batch × d_model × d_ff × layers, over the cards' dense bfloat16 peak."
        " Peak memory and exchanges are the compiler's (`spmd.xray`); a count is how"
        " often an exchange runs in a step.\n\n" + as_table(table)
    )


def _batches(rows: list[dict]) -> str:
    names = [n for n, count in Counter(r["name"] for r in rows).items() if count > 1]
    found = {(row["name"], row["batch"]): row for row in rows}
    batches = sorted({b for n, b in found if n in names})
    table = [["batch", *(title(name) for name in names)]]
    for batch in batches:
        cells = [f"{batch:,}"]
        for name in names:
            row = found[name, batch]
            cells.append(f"{row['median_s'] * 1e3:.2f} ms, {_share(row):.0%}")
        table.append(cells)
    return (
        "## The same step, by batch\n\nThe same cards and model. Weights that are"
        " gathered cost the same whatever the batch; a small one waits for them.\n\n"
        + as_table(table)
    )


def _memory(rows: list[dict]) -> str:
    table = [["program", "card", "XLA's peak", "the allocator's", "apart"]]
    for row in rows:
        xla, real = row["peak_bytes"], row["allocator_peak_bytes"]
        table.append(
            [
                row["name"].partition(": ")[2],
                f"{row['devices']} × {row['device']}",
                f"{xla / GIB:.3f} GiB",
                f"{real / GIB:.3f} GiB",
                f"{abs(xla - real) / real:.1%}",
            ]
        )
    return (
        "## The compiler's peak and the allocator's\n\n"
        f"jax {rows[0]['jax']}, {rows[0]['date']},"
        " `tools/truth/measure.py --gpu`. Training steps of `tools/truth/programs.py`."
        "\n\n" + as_table(table)
    )


def _chip(row: dict):
    return next(c for c in HARDWARE.values() if c.device_kind == row["device"])


def _share(row: dict) -> float:
    work = 12 * row["batch"] * row["d_model"] * row["d_ff"] * row["layers"]
    cards = _chip(row).bf16_flops_per_s * row["devices"]
    return work / row["median_s"] / cards


def _shape(row: dict) -> str:
    return (
        f"{row['layers']} residual MLP layers under one scan, d_model"
        f" {row['d_model']:,}, d_ff {row['d_ff']:,}, parameters and Adam in"
        f" {row['params']}, products in {row['compute']}"
    )
