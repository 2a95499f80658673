"""The section of `book/hardware.md` on steps that were predicted before they ran."""

from statistics import median

from tools.measure.page_tables import GIB, as_table, card


def ahead_section(ahead: list[dict], again: list[dict], traced: list[dict]) -> str:
    """Each step as foretold without a card, beside the cards' clock and trace.

    Args:
        ahead: what `step_time` said of steps compiled without cards.
        again: what it says of these and others today.
        traced: the same steps and others, run and traced.
    """
    said = {row["name"]: row for row in ahead}
    both = [(said[row["name"]], row) for row in traced if row["name"] in said]
    off = sorted(abs(a["predicted_s"] / row["step_s"] - 1) for a, row in both)
    peaks = [abs(a["peak_bytes"] / row["allocator_peak_bytes"] - 1) for a, row in both]
    same = sum(_moved(a) == _moved(row) for a, row in both)
    return (
        "## Predicted before any card ran it\n\n"
        f"{card(traced)}. The transformer of the sections above on four cards, eight "
        "sequences of 2048 tokens a card, and one of 6.2 billion parameters with two. "
        "Each step was compiled for four H200s by `spmd.gpu_mesh` on a machine without "
        f"a GPU (jax {_one(ahead, 'jax')}), and `spmd.step_time` priced it; the rows "
        "were stored, and then the cards ran them. No rate was chosen on four cards. "
        "cuDNN's attention needs cuDNN to compile, so those steps were predicted on "
        "the machine with the cards, before they ran.\n\n"
        f"{as_table(_table(said, traced))}\n"
        f"Without a card: the bytes of every collective are equal in {same} of "
        f"{len(both)} steps, the peak of memory is within {max(peaks):.1%} of the "
        f"allocator's, and the seconds are off by {median(off):.1%} in the median and "
        f"{off[-1]:.1%} at most. {_order(said, traced)} Exposed seconds are "
        f"{_exposed(traced)}: a collective also waits for the slowest of its group, "
        "which no schedule shows. The rest of a step is predicted longer than it was, "
        f"by {_rest(said, traced)}, so the two errors partly cancel in the total.\n\n"
        f"{_again(said, again, traced)}"
        "`spmd.read_trace` gives the columns of the trace: kernels and collectives by "
        "line, and what is exposed. Under the profiler a step is a little shorter than "
        "by the clock, because the steps follow each other without a wait.\n"
    )


def _table(said: dict[str, dict], traced: list[dict]) -> list[list[str]]:
    table = [
        [
            *("step", "by the clock", "predicted", "error", "traced", "exposed"),
            *("exposed, predicted", "allocator's peak", "predicted peak"),
        ]
    ]
    for row in traced:
        ahead = said.get(row["name"])
        guess = ahead or row
        table.append(
            [
                row["name"].replace("fsdp", "FSDP")
                + ("" if ahead else " (on the cards)"),
                _ms(row["step_s"]),
                _ms(guess["predicted_s"]),
                _percent(guess["predicted_s"] / row["step_s"] - 1),
                _ms(row["traced_s"]),
                _ms(row["exposed_s"]),
                _ms(guess["predicted_exposed_s"]),
                f"{row['allocator_peak_bytes'] / GIB:.1f} GiB",
                f"{guess['peak_bytes'] / GIB:.1f} GiB",
            ]
        )
    return table


def _title(name: str, on_cards: bool) -> str:
    name = name.replace("fsdp", "FSDP").replace("cudnn", "cuDNN").replace("6b", "6 B")
    return f"{name} (on the cards)" if on_cards else name


def _moved(row: dict) -> dict[tuple, int]:
    """Bytes that a device sends, by kind and axes."""
    sums: dict[tuple, int] = {}
    for line in row["collectives"]:
        key = line["kind"], *line["axes"]
        sums[key] = sums.get(key, 0) + line["count"] * line["wire_bytes"]
    return sums


def _again(said: dict[str, dict], again: list[dict], traced: list[dict]) -> str:
    """What is predicted today, and what was learned."""
    now = {row["name"]: row for row in again}
    both = [(now[row["name"]], row) for row in traced if row["name"] in now]
    if not both:
        return ""
    off = sorted(abs(a["predicted_s"] / row["step_s"] - 1) for a, row in both)
    unread = [(a, row) for a, row in both if "trace" not in row]
    shares = sorted(a["predicted_exposed_s"] / r["exposed_s"] for a, r in unread)
    table = [["step", "exposed", "before", "again", "total, before", "again"]]
    for a, row in both:
        before = said.get(row["name"], row)
        table.append(
            [
                row["name"].replace("fsdp", "FSDP")
                + (" (read)" if "trace" in row else ""),
                _ms(row["exposed_s"]),
                _ms(before["predicted_exposed_s"]),
                _ms(a["predicted_exposed_s"]),
                _percent(before["predicted_s"] / row["step_s"] - 1),
                _percent(a["predicted_s"] / row["step_s"] - 1),
            ]
        )
    return (
        f"### Predicted again\n\n{_one(again, 'date')}, `{_one(again, 'command')}`. "
        "The traces of the steps marked *read* showed why more was exposed. A product "
        "or an attention kernel takes all processors of a card at once. A collective "
        "that is started just before it loses the race for them on one card or "
        "another, and begins when that kernel ends, which is often where the next one "
        "waits for it. `step_time` counts that since. It takes the rates of groups of "
        "four and eight from XLA's tables of collectives, and what a kernel loses "
        "beside a collective from these traces. No trace of the other steps was read: "
        f"of them {shares[0]:.0%} to {shares[-1]:.0%} of the exposed seconds are "
        f"predicted. The totals are off by {median(off):.1%} in the median and "
        f"{off[-1]:.1%} at most: more than before, because the two errors no longer "
        f"cancel. {_order(now, traced)} *Before* is the prediction of the section "
        "above, of the same programs.\n\n"
        f"{as_table(table)}\n"
        "What remains is in the kernels: on the cards of these rows products ran at up "
        "to 750 TFLOP/s, on those that the sustained rate is from at "
        "674. Cards differ, and one that waits has power left for its products. No "
        "stored row tells the two apart.\n\n"
    )


def _order(said: dict[str, dict], traced: list[dict]) -> str:
    """Whether the prediction ranks the steps of one model as the clock does."""
    groups: dict[str, list[dict]] = {}
    for row in traced:
        if row["name"] in said:
            size = "6b" if row["name"].startswith("6b") else ""
            groups.setdefault(size, []).append(row)
    apart = []  # of the pairs that are ranked wrongly, as parts of the longer one
    for rows in groups.values():
        for n, one in enumerate(rows):
            for other in rows[n + 1 :]:
                guess = [said[r["name"]]["predicted_s"] for r in (one, other)]
                took = [one["step_s"], other["step_s"]]
                if (guess[0] < guess[1]) != (took[0] < took[1]):
                    apart.append(1 - min(guess) / max(guess))
    if not apart:
        return "Of any two layouts of one model the faster is predicted to be faster."
    pairs = "pair of layouts of one model is" if len(apart) == 1 else "pairs are"
    return (
        f"{len(apart)} {pairs} ranked wrongly, of which the predictions differ by "
        f"{max(apart):.1%} at most."
    )


def _exposed(traced: list[dict]) -> str:
    shares = sorted(r["predicted_exposed_s"] / r["exposed_s"] for r in traced)
    return f"predicted too small, at {shares[0]:.0%} to {shares[-1]:.0%} of the trace's"


def _rest(said: dict[str, dict], traced: list[dict]) -> str:
    """How far off what is not exposed is, of the steps predicted without a card."""
    off = []
    for row in traced:
        if row["name"] in said:
            guess = said[row["name"]]
            rest = guess["predicted_s"] - guess["predicted_exposed_s"]
            off.append(rest / (row["traced_s"] - row["exposed_s"]) - 1)
    return f"{min(off):.0%} to {max(off):.0%}"


def _one(rows: list[dict], key: str) -> str:
    return ", ".join(dict.fromkeys(str(row[key]) for row in rows))


def _percent(share: float) -> str:
    return f"{share:+.1%}".replace("-", "−")


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"
