"""The section of `book/hardware.md` on what `step_time` says of each measured row."""

from tools.measure.page_tables import as_table, title
from tools.measure.seconds.predict import error, spread
from tools.measure.seconds.products import by_the_card

_GROUPS = {
    "collective": "collectives",
    "matmul": "matrix products",
    "attention": "attention",
    "steps": "steps of an MLP",
    "ways": "transformer, six ways",
    "log": "the log's lines",
}


def seconds_section(products: list[dict], rows: list[dict]) -> str:
    """The errors by group, then every row."""
    kept_out = [row for row in rows if row["kept_out"]]
    median, nine, _ = spread(kept_out)
    on_card = by_the_card(kept_out, products)
    return (
        "## Predicted and measured, row by row\n\n"
        "`spmd.step_time` of the program of each row above, compiled for the cards "
        "that ran it. A third of the rows, by the hash of their names, was kept out "
        "when rates were chosen, those marked *out*: their median error is "
        f"{median:.1%}, and nine of ten are within {nine:.1%}. "
        f"{_aim(median, nine)} The times of all rows were public when the rates were "
        "chosen; the errors of those kept out were computed afterwards, and again "
        "when traces had shown how collectives wait for processors. "
        "Predictions of the steps of a transformer use the rates of a warm card, all "
        "others those of a cool one (`sustained=False`). The error is predicted over "
        "measured, less one.\n\n"
        + as_table(_by_group(rows))
        + f"\n{_worst(kept_out, on_card)}\n\n"
        + as_table(_each(rows))
    )


def _aim(median: float, nine: float) -> str:
    both = median <= 0.10, nine <= 0.15
    if all(both):
        return "The aim was 10 % and 15 %."
    missed = "the second is missed" if both[0] else "it is missed"
    return f"The aim was 10 % and 15 %: {missed}."


def _by_group(rows: list[dict]) -> list[list[str]]:
    figures = ["median", "nine of ten"]
    table = [["rows", "how many", *figures, "kept out", *figures]]
    for group, name in {**_GROUPS, "": "all"}.items():
        every = [row for row in rows if row["name"].startswith(group)]
        table.append([name, *_figures(every)])
        table[-1] += _figures([row for row in every if row["kept_out"]])
    return table


def _figures(rows: list[dict]) -> list[str]:
    if not rows:
        return ["0", "", ""]
    median, nine, _ = spread(rows)
    return [str(len(rows)), f"{median:.1%}", f"{nine:.1%}"]


def _worst(rows: list[dict], on_card: list[dict]) -> str:
    """Where the model is wrong, of the rows that were kept out."""
    off = sorted((r for r in rows if abs(error(r)) > 0.2), key=error)
    if not off:
        return ""
    names = ", ".join(f"{_title(row)} ({_percent(error(row), 0)})" for row in off)
    median, nine, most = spread(on_card)
    return (
        f"Farther off than 20 % of those kept out: {names}. These rows measure the "
        "host, which needs longer to start such a product than the card to run it. "
        "With products by the card's clock, as in the next section, the rows that were "
        f"kept out have a median error of {median:.1%}, nine of ten are within "
        f"{nine:.1%}, and the largest is {most:.1%}."
    )


def _each(rows: list[dict]) -> list[list[str]]:
    table = [["row", "measured", "predicted", "error", "kept out"]]
    for row in rows:
        table.append(
            [
                _title(row),
                _ms(row["measured_s"]),
                _ms(row["predicted_s"]),
                _percent(error(row), 1),
                "out" if row["kept_out"] else "",
            ]
        )
    return table


def _title(row: dict) -> str:
    group, _, name = row["name"].partition("/")
    if group == "collective":
        kind, _, size = name.rpartition(" ")
        return f"{kind}, {int(size) // 2**20} MiB"
    if group == "matmul":
        return "product " + name.replace("x", " × ")
    if group == "attention":
        return f"attention, {name}"
    return f"{'MLP' if group == 'steps' else group}: {title(name)}"


def _percent(share: float, digits: int) -> str:
    return f"{share:+.{digits}%}".replace("-", "−")


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3f} ms" if seconds < 0.01 else f"{seconds * 1e3:.1f} ms"
