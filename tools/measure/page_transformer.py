"""Of the page of measured figures: attention, the transformer's step, and speeds."""

from tools.measure.page_tables import (
    as_table,
    card,
    exchanges,
    failed,
    gib,
    ms,
    peaks,
    title,
)
from tools.measure.runner import AT_ONCE, LEAST, MOST, SHORT_S, SUSTAINED_S

NAMES = {"plain": "three lines", "xla": "`xla`", "cudnn": "`cudnn`"}
WAYS_OF = ("sheet", "speeds", "step_time")


def share(row: dict) -> float | None:
    """Of the cards' dense bfloat16 peak, by the FLOPs that the model needs."""
    if "median_s" not in row or not row["peak_flops_per_s"]:
        return None
    return row["model_flops"] / row["median_s"] / row["peak_flops_per_s"]


def share_words(row: dict, digits: int = 1) -> str:
    value = share(row)
    return "" if value is None else f"{value:.{digits}%}"


def predicted_s(row: dict, by: str) -> float | None:
    """Seconds by the data "sheet" or by measured "speeds", if nothing overlaps.

    Or those that "step_time" says of the program.
    """
    parts = row.get("predicted", {}).get(by)
    return sum(parts.values()) if parts else None


def times(row: dict) -> list[str]:
    """The median, the least and the most, in milliseconds."""
    if "median_s" not in row:
        return [failed(row), "", ""]
    return [ms(row.get(key)) for key in ("median_s", "least_s", "most_s")]


def transformer_shape(row: dict) -> str:
    s = row["setting"]
    return (
        f"The transformer of chapter 13 with {s['layers']} layers, d_model"
        f" {s['d_model']:,}, {s['heads']} heads, d_ff {s['d_ff']:,}, a vocabulary of"
        f" {s['vocab']:,}: {row['parameters'] / 1e9:.2f} B parameters; sequences of"
        f" {s['seq']:,}, {s['batch']} a step"
    )


def attention_section(rows: list[dict]) -> str:
    by_key = {(r["pass"], r["seq"], r["name"]): r for r in rows}
    names = [n for n in NAMES if any(r["name"] == n for r in rows)]
    times = [["pass", "S", *(NAMES[n] for n in names)]]
    memory = [["pass", "S", *(NAMES[n] for n in names)]]
    for which, seq in sorted({(r["pass"], r["seq"]) for r in rows}):
        here = [by_key.get((which, seq, n)) for n in names]
        times.append([which, f"{seq:,}", *map(_timed, here)])
        memory.append([which, f"{seq:,}", *(peaks(row) if row else "" for row in here)])
    one = rows[0]
    return (
        f"## Attention\n\n{card(rows)}\n\n"
        f"[{one['batch']}, S, {one['heads']}, {one['head_dim']}], bfloat16, causal."
        " `xla` and `cudnn` are the implementations of `jax.nn.dot_product_attention`;"
        " three lines are an einsum, a masked softmax and an einsum, as in chapter 12."
        f" A call of less than {SHORT_S * 1e3:.0f} ms is queued {AT_ONCE} times, a"
        " longer one is waited for."
        " FLOPs are counted whole, 4 × B × S² × N × H forward and three times that for"
        " both passes, also those that the mask hides: a kernel that leaves these out"
        " gets a share that is up to twice what its arithmetic does.\n\n"
        + as_table(times)
        + "\nPeak memory, XLA's and the allocator's. One number: the allocator's peak"
        " could not be told from an earlier program's.\n\n" + as_table(memory)
    )


def _timed(row: dict | None) -> str:
    if row is None:
        return ""
    if "median_s" not in row:
        return failed(row)
    rate = row["model_flops"] / row["median_s"] / 1e12
    said = [f"{row['median_s'] * 1e3:.2f} ms", f"{rate:.0f} TFLOP/s"]
    return ", ".join(filter(None, [*said, share_words(row, 0)]))


HISTORY = (
    " They are not from before the runs: the first ones divided by what a cool card"
    " does, and were too short. Then the sustained speed was measured, on one machine,"
    " and all predictions were made anew, those of lines that another machine ran too."
    " So the three terms contain no step's time, but which speed they divide by was"
    " chosen by people who had seen the times. `step_time` has rates besides, chosen on"
    " two thirds of the rows."
)


def speeds_section(rows: list[dict], is_book: bool) -> str:
    (row,) = rows

    def rates(kind):
        both = (row.get(f"{kind}_flops_per_s{end}") for end in ("_at_first", ""))
        return [f"{rate / 1e12:.0f} TFLOP/s" if rate else "" for rate in both]

    memory = f"{row['memory_bytes_per_s'] / 1e12:.2f} TB/s"
    table = [
        ["what", "from a cool card", f"after {SUSTAINED_S} s of nothing else"],
        ["products in bfloat16", *rates("bf16")],
        ["products of float32, in TF32", *rates("f32")],
        ["reading and writing memory", memory, ""],
    ]
    moved = [["exchange", "start", "then"]]
    for kind, line in row["collectives"].items():
        start, rate = line["start_s"] * 1e6, line["bytes_per_s"] / 1e9
        moved.append([kind, f"{start:.0f} µs", f"{rate:.0f} GB/s"])
    half = row["f32_flops_per_s"] / row["bf16_flops_per_s"]
    return (
        "## Speeds that the predictions divide by\n\n"
        f"{card([row])}\n\n"
        + as_table(table)
        + "\nPredictions use the right column, and for memory the only one."
        + HISTORY * is_book
        + "\n\n"
        "Where this book says float32 of a product on a GPU, the card multiplies in"
        " TF32: JAX's default on such cards"
        " ([JAX](https://docs.jax.dev/en/latest/201/precision.html)), unless"
        " `jax_default_matmul_precision` says otherwise, which these programs don't."
        " TF32 keeps 10 bits of the mantissa"
        " ([NVIDIA](https://blogs.nvidia.com/blog/2020/05/14/"
        "tensorfloat-32-precision-format))."
        f" Here it has {half:.2f} times bfloat16's rate.\n\n"
        + (
            "Exchanges, by two sizes. The rate is of what one card sends.\n\n"
            + as_table(moved)
            if len(moved) > 1
            else ""
        )
    )


def ways_section(rows: list[dict]) -> str:
    took = [["laid out", *TIMES, "of the peak", "XLA's peak", "allocator's"]]
    expected = [["laid out", "data sheet", "measured speeds", "`step_time`"]]
    sent = [["laid out", "exchanges"]]
    for row in rows:
        name = title(row["name"])
        in_bytes = (row.get(key) for key in ("peak_bytes", "allocator_peak_bytes"))
        took.append([name, *times(row), share_words(row), *map(gib, in_bytes)])
        expected.append([name, *(_expected(row, by) for by in WAYS_OF)])
        sent.append([name, exchanges(row.get("collectives", []))])
    mapped = [row for row in rows if "mapped" in row["setting"]["attention"]]
    but = ", ".join(title(row["name"]) for row in mapped)
    but = f" (called inside `shard_map` in {but})" if but else ""
    return (
        f"## A transformer's step, laid out in six ways\n\n{card(rows)}\n\n"
        f"{transformer_shape(rows[0])}. Adam and the parameters are float32, the"
        f" products bfloat16, attention is cuDNN's{but}, norms and GELU run again in"
        f" the backward pass. {WAITED} The share is of `Transformer.flops`, which"
        " counts causal attention whole, over the cards' dense bfloat16 peak.\n\n"
        + as_table(took)
        + "\nPredicted ms, and measured over predicted. The first two are those of"
        " chapter 14: FLOPs, state and wire bytes of the X-ray, over speeds, added up."
        " `spmd.step_time` goes through the compiled program: each kernel takes the"
        " longer of its FLOPs and its bytes, and an exchange costs what isn't hidden"
        " behind them.\n\n"
        + as_table(expected)
        + "\nHow often each exchange runs in a step:\n\n"
        + as_table(sent)
    )


TIMES = ("ms", "least", "most")
WAITED = (
    f"Each step is waited for, {LEAST} to {MOST} times: *ms* is the median of a step,"
    " beside the shortest and the longest."
)


def _expected(row: dict, by: str) -> str:
    seconds = predicted_s(row, by)
    if seconds is None:
        return ""
    took = row.get("median_s")
    return ms(seconds) + (f", {took / seconds:.2f}" if took else "")
