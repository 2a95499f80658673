"""The page of measured figures: what stored rows say, in tables.

    python -m tools.measure.page FOLDER

makes FOLDER/hardware.md of the rows that `make hardware` left in FOLDER.
"""

import sys
from collections import Counter
from functools import partial
from pathlib import Path

from spmd_helpers._hardware.measured import _FILES, load_measured
from tools.measure.page_absent import absent_section
from tools.measure.page_ahead import ahead_section
from tools.measure.page_axes import axes_section
from tools.measure.page_counted import counted_section
from tools.measure.page_log import log_section
from tools.measure.page_plans import plans_section
from tools.measure.page_products import products_section, xla_section
from tools.measure.page_seconds import seconds_section
from tools.measure.page_tables import GIB, as_table, card, exchanges, title
from tools.measure.page_transformer import (
    attention_section,
    speeds_section,
    ways_section,
)
from tools.measure.predict import sheet_of
from tools.measure.runner import AT_ONCE, REPEATS, STEPS_AT_ONCE, stored
from tools.measure.seconds.xla_tables import tables

HEAD = """\
# Measured on real cards

Times and the allocator's peaks were read on the cards that a section names, by the
command beside it. FLOPs, exchanges and XLA's peaks are the compiler's word on the same
programs. Predictions are arithmetic with those and with
[speeds that were measured](#speeds-that-the-predictions-divide-by). All times are
medians. `spmd.load_measured` gives the rows, and
chapters [14](../notebooks/14_roofline.ipynb) and [15](../notebooks/15_real_cards.ipynb)
hold their predictions against them.

The same letter is the same machine; where no machine is named, it was not noted. Two
machines have the same kind of cards, which need not be equally fast.

To measure your own: `make hardware PYTHON=/path/to/python/with/jax-cuda`, where the
cards are. It writes rows and a page like this one into `my-measurements/`, and leaves
the book's alone.

"""
OWN_HEAD = """\
# Measured here

Times and the allocator's peaks were read on the cards that a section names. FLOPs,
exchanges and XLA's peaks are the compiler's word on the same programs. Predictions are
arithmetic with those and with measured speeds. All times are medians. The book's own
are in [its page](../book/hardware.md).

"""
MIB = 2**20


def hardware_page(folder: Path | None = None) -> str:
    """The text of `book/hardware.md`, or of a page of the rows in a folder."""

    def rows(kind):
        return load_measured(kind) if folder is None else _rows_in(folder, kind)

    moved, steps = rows("gpu-collectives"), rows("gpu-steps")
    products = [row for row in moved if row["kind"] == "matmul"]
    timed = {row["name"]: row["predicted_s"] for row in rows("gpu-predicted")}
    sections = [
        (_collectives, [row for row in moved if row["kind"] != "matmul"]),
        (_products, products),
        (_ways, steps),
        (_batches, steps),
        (attention_section, rows("gpu-attention")),
        (ways_section, _with_step_time(rows("gpu-transformer"), "ways", timed)),
        (log_section, _with_step_time(rows("gpu-log"), "log", timed)),
        (partial(speeds_section, is_book=folder is None), rows("gpu-speeds")),
        (partial(seconds_section, rows("gpu-products")), rows("gpu-predicted")),
        (products_section, rows("gpu-products") if folder is None else []),
        (xla_section, tables() if folder is None else {}),
        (
            partial(ahead_section, rows("gpu-ahead"), rows("gpu-again")),
            rows("gpu-traced"),
        ),
        (_memory, [r for r in rows("gpu-memory") if r.get("allocator_peak_bytes")]),
        (counted_section, rows("gpu-compiled")),
        (axes_section, rows("memory-axes")),
        (plans_section, rows("plans") if folder is None else []),
        (absent_section, rows("gpu-absent")),
    ]
    head = HEAD if folder is None else OWN_HEAD
    return "\n".join([head, *(make(given) for make, given in sections if given)])


def _rows_in(folder: Path, kind: str) -> list[dict]:
    return [row for name in _FILES[kind] for row in stored(folder / name)]


def _with_step_time(
    rows: list[dict], group: str, timed: dict[str, float]
) -> list[dict]:
    """Rows with what today's `step_time` says of their programs, where it is stored."""
    every = []
    for row in rows:
        total_s = timed.get(f"{group}/{row['name']}")
        more = {} if total_s is None else {"step_time": {"total_s": total_s}}
        every.append(row | {"predicted": row.get("predicted", {}) | more})
    return every


QUEUED = (
    f"{AT_ONCE} calls are queued and the wait for the last is divided, {REPEATS} times;"
    " so what the host needs to start a call counts little for large ones."
)


def _collectives(rows: list[dict]) -> str:
    sizes = sorted({row["bytes"] for row in rows})
    by_key = {(row["kind"], row["bytes"]): row for row in rows}
    kinds = list(dict.fromkeys(row["kind"] for row in rows))
    table = [["the whole array", *kinds]]
    for size in sizes:
        cells = [f"{size // MIB} MiB"]
        for kind in kinds:
            row = by_key[kind, size]
            rate = row["wire_bytes"] / row["median_s"] / 1e9
            cells.append(f"{row['median_s'] * 1e3:.3f} ms, {rate:.0f} GB/s")
        table.append(cells)
    return (
        f"## Collectives\n\n{card(rows)}\n\n"
        f"bfloat16. {QUEUED} The rate is what one card sends (wire bytes, by the ring"
        " formula) over the time. Small arrays cost the start, not the bytes.\n\n"
        + as_table(table)
    )


def _products(rows: list[dict]) -> str:
    chip = sheet_of(rows[0]["device"])
    table = [["m, k, n", "time", "TFLOP/s", "of the peak"]]
    for row in rows:
        rate = 2 * row["m"] * row["k"] * row["n"] / row["median_s"]
        shape = f"{row['m']:,} × {row['k']:,} × {row['n']:,}"
        times = f"{row['median_s'] * 1e3:.3f} ms"
        of_peak = f"{rate / chip.bf16_flops_per_s:.0%}" if chip else ""
        table.append([shape, times, f"{rate / 1e12:.0f}", of_peak])
    return (
        f"## Matrix products\n\n{card(rows)}\n\nbfloat16, timed like the collectives."
        "\n\n" + as_table(table)
    )


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
                _share(row),
                f"{memory / GIB:.2f} GiB" if memory else "",
                exchanges(row.get("collectives", [])),
            ]
        )
    return (
        f"## One training step, laid out in six ways\n\n{card(rows)}\n\n"
        f"{_shape(rows[0])}, batch {batch:,}. {STEPS_AT_ONCE} steps are queued at a"
        f" time, {REPEATS} times. The share is of the products' FLOPs,"
        " 12 × batch × d_model × d_ff × layers, over the cards' dense bfloat16 peak."
        " Peak memory and exchanges are the compiler's (`spmd.xray`); a count is how"
        " often an exchange runs in a step.\n\n" + as_table(table)
    )


def _batches(rows: list[dict]) -> str:
    names = [n for n, count in Counter(r["name"] for r in rows).items() if count > 1]
    by_key = {(row["name"], row["batch"]): row for row in rows}
    batches = sorted({b for n, b in by_key if n in names})
    table = [["batch", *(title(name) for name in names)]]
    for batch in batches:
        cells = [f"{batch:,}"]
        for name in names:
            row = by_key[name, batch]
            both = f"{row['median_s'] * 1e3:.2f} ms", _share(row)
            cells.append(", ".join(filter(None, both)))
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
        " `tools/measure/truth/measure.py --gpu`. Training steps of"
        " `tools/measure/truth/programs.py`."
        " *Apart* is their difference over the allocator's. What `spmd.xray` gives on"
        " a GPU, arguments + results - donated + temporaries, is nearer to the"
        f" allocator's in {_nearer(rows)} of {len(rows)}, and never farther.\n\n"
        + as_table(table)
    )


def _nearer(rows: list[dict]) -> int:
    """Of how many the sum of what is held is nearer to the allocator's peak."""
    nearer = 0
    for row in rows:
        in_and_out = row["argument_bytes"] + row["output_bytes"] - row["alias_bytes"]
        real, xla = row["allocator_peak_bytes"], row["peak_bytes"]
        by_sum, by_xla = abs(real - in_and_out - row["temp_bytes"]), abs(real - xla)
        assert by_sum <= by_xla, row["name"]
        nearer += by_sum < by_xla
    return nearer


def _share(row: dict) -> str:
    chip = sheet_of(row["device"])
    work = 12 * row["batch"] * row["d_model"] * row["d_ff"] * row["layers"]
    if chip is None:
        return ""
    return f"{work / row['median_s'] / chip.bf16_flops_per_s / row['devices']:.0%}"


def _shape(row: dict) -> str:
    return (
        f"{row['layers']} residual MLP layers under one scan, d_model"
        f" {row['d_model']:,}, d_ff {row['d_ff']:,}, parameters and Adam in"
        f" {row['params']}, products in {row['compute']}"
    )


def main() -> None:
    if len(sys.argv) != 2 or not list(Path(sys.argv[1]).glob("*_gpu.json")):
        sys.exit(f"{__doc__.splitlines()[2].strip()}: name a folder that has rows")
    path = Path(sys.argv[1]) / "hardware.md"
    path.write_text(hardware_page(path.parent), "utf8")
    print(f"{path} made")


if __name__ == "__main__":
    main()
