"""Of the page of measured figures: the log of one step that is made faster."""

from tools.measure.page_tables import as_table, card, failed, gib, listed, ms, title
from tools.measure.page_transformer import (
    TIMES,
    WAITED,
    predicted_s,
    share,
    share_words,
    times,
    transformer_shape,
)
from tools.measure.predict import sheet_of

FINER = ("speeds", "step_time")


def log_section(rows: list[dict]) -> str:
    return (
        f"## Faster, one change at a time\n\n{card(rows)}\n\n{_where(rows)}"
        f"{transformer_shape(rows[0])} at first. Each line changes one thing of the"
        " last line that was kept. A change is kept if the share of the peak rises, or"
        ' if it is there to save memory ("memory" below). A *what if* is never kept:'
        " it is another model, or only a comparison."
        f"{_longer(rows)} {WAITED} Lines whose times overlap are not told apart."
        " GiB are the allocator's peak (XLA's where the step did not run).\n\n"
        + as_table(_times(rows))
        + _larger(rows)
        + "\nWhy each line was tried. A reason to try is no explanation of what came."
        "\n\n"
        + as_table(_reasons(rows))
        + "\nPredicted by the three terms with measured speeds, and by `step_time`;"
        " and the *change* in milliseconds against the line that it started from,"
        " where the tokens are the same.\n\n" + as_table(_changes(rows)) + _signs(rows)
    )


def kept(row: dict) -> str:
    if row.get("keep") == "never":
        return "what if"
    if not row["kept"]:
        return "no"
    return "memory" if row.get("keep") == "always" else "yes"


def tokens(row: dict) -> int:
    return row["setting"]["batch"] * row["setting"]["seq"]


def same_tokens(rows: list[dict]) -> list[tuple[dict, dict]]:
    """(line, the line it started from) where both ran with as many tokens."""
    ran = {row["name"]: row for row in rows if "median_s" in row}
    pairs = [(row, ran.get(row.get("after"))) for row in ran.values()]
    return [(row, old) for row, old in pairs if old and tokens(row) == tokens(old)]


def changes(row: dict, old: dict) -> dict[str, float | None]:
    """Seconds more or less than before, by each prediction and measured."""
    change = {"measured": row["median_s"] - old["median_s"]}
    for by in FINER:
        both = predicted_s(row, by), predicted_s(old, by)
        change[by] = None if None in both else both[0] - both[1]
    return change


def signs(rows: list[dict]) -> dict[str, int]:
    """In how many of `same_tokens` each prediction has the direction right."""
    every = [changes(*pair) for pair in same_tokens(rows)]
    return {by: sum(_agree(one[by], one["measured"]) for one in every) for by in FINER}


def _agree(expected: float | None, measured: float) -> bool:
    return bool(expected) and (expected > 0) == (measured > 0)


def _times(rows):
    out = [["line", "tokens a step", *TIMES, "of the peak", "kept", "GiB"]]
    for number, row in enumerate(rows):
        peak = row.get("allocator_peak_bytes") or row.get("peak_bytes")
        out.append(
            [
                *(f"{number} {title(row['name'])}", f"{tokens(row):,}"),
                *(
                    *times(row),
                    share_words(row),
                    kept(row),
                    gib(peak).removesuffix(" GiB"),
                ),
            ]
        )
    return out


def _reasons(rows):
    out = [["line", "change", "why it was tried", "chapter"]]
    for number, row in enumerate(rows):
        out.append([str(number), title(row["name"]), row["why"], str(row["chapter"])])
    return out


def _changes(rows):
    head = ("line", "three terms", "`step_time`", "measured")
    out = [[*head, "change, three terms", "change, `step_time`", "change, measured"]]
    pairs = {row["name"]: old for row, old in same_tokens(rows)}
    for number, row in enumerate(rows):
        old = pairs.get(row["name"])
        difference = changes(row, old) if old else {}
        took = ms(row["median_s"]) if "median_s" in row else failed(row)
        more = (difference.get(by) for by in (*FINER, "measured"))
        out.append(
            [
                f"{number} {title(row['name'])}",
                *(ms(predicted_s(row, by)) for by in FINER),
                took,
                *("" if s is None else f"{s * 1e3:+.1f}" if s else "0" for s in more),
            ]
        )
    return out


def _signs(rows) -> str:
    count = len(same_tokens(rows))
    if not count:
        return ""
    right = signs(rows)
    return (
        f"\nOf these {count} changes the three terms have the direction right in"
        f" {right['speeds']}, `step_time` in {right['step_time']}; no change expected"
        " counts as wrong. Predictions that are near the times don't rank lines that"
        " are near each other.\n"
    )


def _where(rows) -> str:
    """Which lines ran on which machine, if not all on one."""
    by: dict[str, list[str]] = {}
    for number, row in enumerate(rows):
        by.setdefault(row.get("machine", ""), []).append(str(number))
    if len(by) < 2:
        return ""
    (most, _), *others = by.items()
    said = [
        f"line{'s' * (len(lines) > 1)} {listed(lines)} ran on machine {name}"
        for name, lines in others
    ]
    words = listed(said)
    return (
        f"{words[0].upper()}{words[1:]}, the others on machine {most}. The cards are of"
        " one kind, but between machines a difference of a percent or two says"
        " nothing.\n\n"
    )


def _larger(rows) -> str:
    """Where a larger batch lost: nobody knows why."""
    ran = {row["name"]: row for row in rows if share(row) is not None}
    said = ""
    for row in ran.values():
        old = ran.get(row.get("after"))
        if not old or tokens(row) <= tokens(old) or share(row) >= share(old):
            continue
        batch = old["setting"]["batch"]
        where = row.get("machine"), old.get("machine")
        other = (
            f" The line ran on machine {where[0]}, and the other did not run there."
            if where[0] != where[1]
            else ""
        )
        sheet = sheet_of(row["device"])
        peak, usable = row.get("allocator_peak_bytes"), sheet and sheet.usable_bytes
        room = (
            f" It held {gib(peak)} of the card's {gib(usable)}."
            if peak and usable
            else ""
        )
        said += (
            f"\n{title(row['name']).capitalize()} has {share(row) / share(old):.2f}"
            f" times the share of the line that it started from, with a batch of"
            f" {batch}. Why the share fell is not known.{room}{other}\n"
        )
    return said


def _longer(rows) -> str:
    """Longer sequences raise the share, and take longer."""
    ran = {row["name"]: row for row in rows if share(row) is not None}
    for row in ran.values():
        old = ran.get(row.get("after"))
        if old and row["setting"]["seq"] > old["setting"]["seq"]:
            ratio = row["median_s"] / tokens(row) / (old["median_s"] / tokens(old))
            if share(row) > share(old) and ratio > 1:
                return (
                    " Longer sequences even raise the share, since masked scores count"
                    f" as work: a token takes {ratio - 1:.0%} longer."
                )
    return ""
