"""Small words and tables that the sections of `book/hardware.md` share."""

from collections import Counter

from tools.measure.runner import no_room

GIB = 2**30
TITLES = {"fsdp": "FSDP"}
# Stored rows name the tool as it was called when they were measured.
MOVED = {
    "tools/measure_gpu.py": "tools/measure/gpu.py",
    "tools/measure_transformer.py": "tools/measure/transformer.py",
}


def card(rows: list[dict]) -> str:
    """What all rows were measured on; if that differs, each once."""
    said = dict.fromkeys(
        f"{row['devices']} × {row['device']}, driver {row['driver']}, jax {row['jax']},"
        f" {row['date']}, `{command(row)}`"
        for row in rows
    )
    machines = {row.get("machine", "") for row in rows}
    one = machines.pop() if len(machines) == 1 else ""
    return "; ".join(said) + (f", machine {one}" if one else "")


def command(row: dict) -> str:
    """What measured the row, where that is today."""
    tool, *options = row["command"].split(" ")
    return " ".join([MOVED.get(tool, tool), *options])


def as_table(rows: list[list[str]]) -> str:
    head, *body = rows
    lines = [head, ["---"] * len(head), *body]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def title(name: str) -> str:
    first, _, rest = name.partition(" ")
    return f"{TITLES.get(first, first)} {rest}".strip()


def listed(words: list[str]) -> str:
    """'1, 2 and 3'."""
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last


def exchanges(collectives: list[dict]) -> str:
    counts = Counter()
    for each in collectives:
        if each["wire_bytes"] > 1024:  # not the loss
            counts[each["kind"]] += each["count"]
    said = [f"{count} {kind}" for kind, count in counts.items()]
    return ", ".join(said)


def ms(seconds: float | None) -> str:
    return f"{seconds * 1e3:.1f}" if seconds else ""


def gib(size: int | None) -> str:
    return f"{size / GIB:.2f} GiB" if size else ""


def peaks(row: dict) -> str:
    """XLA's and, where it is known, the allocator's."""
    both = [gib(row.get(k)) for k in ("peak_bytes", "allocator_peak_bytes")]
    return ", ".join(filter(None, both))


def failed(row: dict) -> str:
    """In a word, why there is no time."""
    return "does not fit" if no_room(row) else "failed"
