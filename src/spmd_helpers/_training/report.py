"""A step's memory as words: one list of rows, from which text and HTML are made."""

from .._core.tables import Table
from .._core.words import bytes_words
from .state import MOMENTS

HEAD = ("what", "per device", "when", "how")
NUMBERS = (1,)


def shown(found) -> Table:
    """The report of a TrainingMemory."""
    rows = [
        (line.name, bytes_words(line.bytes), when(line.when), line.formula)
        for line in found.lines
    ]
    total = bytes_words(found.total_bytes)
    rows.append(("total", total, found.peak_moment, "what is there in this moment"))
    most = ", ".join(f"{name} {bytes_words(n)}" for name, n in found.moments.items())
    notes = (
        [f"Most in each moment of a step: {most}."] if len(found.moments) > 1 else []
    )
    heading = f"Training memory of {found.what}: {total} on each device"
    notes += found.notes
    return Table("training", heading, HEAD, rows, notes, NUMBERS, wrapped=(3,))


def when(moments) -> str:
    """'always', or the moments between commas."""
    return "always" if len(moments) == len(MOMENTS) else ", ".join(moments)
