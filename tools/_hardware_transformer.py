"""Of the page of measured figures: attention, the transformer's step, and the log."""

from _hardware_tables import as_table, card, exchanges, failed, gib, title

NAMES = {"plain": "three lines", "xla": "`xla`", "cudnn": "`cudnn`"}


def transformer_sections(attention, ways, log) -> list[str]:
    """The sections that have rows."""
    parts = []
    if attention:
        parts.append(_attention(attention))
    if ways:
        parts.append(_ways(ways))
    if log:
        parts.append(_log(log))
    return parts


def share(row: dict) -> float:
    """Of the cards' dense bfloat16 peak, by the FLOPs that the model needs."""
    return row["model_flops"] / row["median_s"] / row["peak_flops_per_s"]


def predicted_s(row: dict, by: str) -> float | None:
    """Seconds: by the data "sheet" or by measured "speeds", if nothing overlaps, or
    of the program's "kernels" one by one."""
    parts = row.get("predicted", {}).get(by)
    return sum(parts.values()) if parts else None


def _attention(rows: list[dict]) -> str:
    found = {(r["pass"], r["seq"], r["name"]): r for r in rows}
    names = [n for n in NAMES if any(r["name"] == n for r in rows)]
    times = [["pass", "S", *(NAMES[n] for n in names)]]
    memory = [["pass", "S", *(NAMES[n] for n in names)]]
    for which, seq in sorted({(r["pass"], r["seq"]) for r in rows}):
        here = [found.get((which, seq, n)) for n in names]
        times.append([which, f"{seq:,}", *map(_timed, here)])
        memory.append([which, f"{seq:,}", *map(_peaks, here)])
    one = rows[0]
    return (
        f"## Attention\n\n{card(rows)}\n\n"
        f"[{one['batch']}, S, {one['heads']}, {one['head_dim']}], bfloat16, causal."
        " `xla` and `cudnn` are the implementations of `jax.nn.dot_product_attention`;"
        " three lines are an einsum, a masked softmax and an einsum, as in chapter 12."
        " FLOPs are counted whole, 4 × B × S² × N × H forward and three times that for"
        " both passes, also those that the mask hides: a kernel that leaves these out"
        " gets a share that is up to twice what its arithmetic does.\n\n"
        + as_table(times)
        + "\nPeak memory, XLA's and the allocator's:\n\n"
        + as_table(memory)
    )


def _timed(row: dict | None) -> str:
    if row is None:
        return ""
    if "median_s" not in row:
        return failed(row)
    rate = row["model_flops"] / row["median_s"] / 1e12
    ms = f"{row['median_s'] * 1e3:.2f} ms"
    return f"{ms}, {rate:.0f} TFLOP/s, {share(row):.0%}"


def _peaks(row: dict | None) -> str:
    if row is None:
        return ""
    both = [gib(row.get(k)) for k in ("peak_bytes", "allocator_peak_bytes")]
    return ", ".join(filter(None, both))


def _ways(rows: list[dict]) -> str:
    out = [
        [
            *("laid out", "a step", "of the peak", "predicted, data sheet"),
            *("predicted, measured speeds", "measured / that"),
            *("predicted, kernel by kernel", "measured / that"),
            *("XLA's peak", "the allocator's", "exchanges"),
        ]
    ]
    for row in rows:
        names = ("sheet", "speeds", "kernels")
        sheet, speeds, kernels = (predicted_s(row, by) for by in names)
        took = row.get("median_s")
        out.append(
            [
                title(row["name"]),
                _ms(took) if took else failed(row),
                f"{share(row):.1%}" if took else "",
                _ms(sheet),
                _ms(speeds),
                f"{took / speeds:.2f}" if took and speeds else "",
                _ms(kernels),
                f"{took / kernels:.2f}" if took and kernels else "",
                gib(row.get("peak_bytes")),
                gib(row.get("allocator_peak_bytes")),
                exchanges(row.get("collectives", [])),
            ]
        )
    return (
        f"## A transformer's step, laid out in six ways\n\n{card(rows)}\n\n"
        f"{_shape(rows[0])}. Adam and the parameters are float32, the products"
        " bfloat16, attention is cuDNN's, norms and GELU run again in the backward"
        " pass. The share is of `Transformer.flops`, which counts causal attention"
        " whole, over the cards' dense bfloat16 peak. Predictions are those of chapter"
        " 14: FLOPs, state and wire bytes of the X-ray, over speeds, added up. The"
        " finer one goes through the compiled program: each kernel takes the longer of"
        " its FLOPs and its bytes, and an exchange costs what isn't hidden behind them."
        " Nothing in them comes from the step's own time, which is that of a step that"
        " is waited for; measured speeds are those of a card that is kept busy.\n\n"
        + as_table(out)
    )


def _log(rows: list[dict]) -> str:
    out = [
        [
            *("line", "change", "why", "chapter", "tokens a step", "predicted"),
            *("kernel by kernel", "measured", "of the peak", "peak memory", "kept"),
        ]
    ]
    for number, row in enumerate(rows):
        took, setting = row.get("median_s"), row["setting"]
        out.append(
            [
                str(number),
                title(row["name"]),
                row["why"],
                str(row["chapter"]),
                f"{setting['batch'] * setting['seq']:,}",
                _ms(predicted_s(row, "speeds")),
                _ms(predicted_s(row, "kernels")),
                _ms(took) if took else failed(row),
                f"{share(row):.1%}" if took else "",
                gib(row.get("allocator_peak_bytes") or row.get("peak_bytes")),
                "yes" if row["kept"] else "no",
            ]
        )
    return (
        f"## Faster, one change at a time\n\n{card(rows)}\n\n"
        f"{_shape(rows[0])} at first. Each line changes one thing of the last line"
        " that was kept; a change is kept if it brings a larger share of the peak, or"
        " if it is there to make room. Predictions are by the measured speeds, and"
        " nothing in them comes from the step's own time. Peak memory is the"
        " allocator's (XLA's where the step did not run).\n\n" + as_table(out)
    )


def _shape(row: dict) -> str:
    s = row["setting"]
    return (
        f"The transformer of chapter 13 with {s['layers']} layers, d_model"
        f" {s['d_model']:,}, {s['heads']} heads, d_ff {s['d_ff']:,}, a vocabulary of"
        f" {s['vocab']:,}: {row['parameters'] / 1e9:.2f} B parameters; sequences of"
        f" {s['seq']:,}, {s['batch']} a step"
    )


def _ms(seconds: float | None) -> str:
    return f"{seconds * 1e3:.1f} ms" if seconds else ""
