"""A step's memory as words: one list of rows, from which text and HTML are made."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .._core.tables import Table
from .._core.words import bytes_words
from .state import PHASES

if TYPE_CHECKING:
    from .counted import CountedMemory

HEAD = ("what", "per device", "when", "how")
NUMBERS = (1,)


def shown(memory: "CountedMemory", name: str, over: str) -> Table:
    """The report of a count, such as 'Training memory', whose phases are `over` it."""
    every = len(memory.phases)
    rows = [
        (line.name, bytes_words(line.bytes), when(line.when, every), line.formula)
        for line in memory.lines
    ]
    total = bytes_words(memory.total_bytes)
    rows.append(("total", total, memory.peak_phase, "what is there in this phase"))
    most = ", ".join(f"{name} {bytes_words(n)}" for name, n in memory.phases.items())
    notes = [f"Most in each phase {over}: {most}."] if len(memory.phases) > 1 else []
    heading = f"{name} of {memory.what}: {total} on each device"
    notes += memory.notes
    kind = name.split()[0].lower()
    return Table(kind, heading, HEAD, rows, notes, NUMBERS, wrapped=(3,))


def when(phases: Sequence[str], every: int = len(PHASES)) -> str:
    """'always', or the phases between commas; there are so many in all."""
    return "always" if len(phases) == every else ", ".join(phases)
