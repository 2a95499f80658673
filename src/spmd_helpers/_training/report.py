"""A step's memory as words: one list of rows, from which text and HTML are made."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .._core.tables import Table
from .._core.words import bytes_words
from .state import PHASES

if TYPE_CHECKING:
    from .training_memory import TrainingMemory

HEAD = ("what", "per device", "when", "how")
NUMBERS = (1,)


def shown(memory: "TrainingMemory") -> Table:
    """The report of a TrainingMemory."""
    rows = [
        (line.name, bytes_words(line.bytes), when(line.when), line.formula)
        for line in memory.lines
    ]
    total = bytes_words(memory.total_bytes)
    rows.append(("total", total, memory.peak_phase, "what is there in this phase"))
    most = ", ".join(f"{name} {bytes_words(n)}" for name, n in memory.phases.items())
    notes = [f"Most in each phase of a step: {most}."] if len(memory.phases) > 1 else []
    heading = f"Training memory of {memory.what}: {total} on each device"
    notes += memory.notes
    return Table("training", heading, HEAD, rows, notes, NUMBERS, wrapped=(3,))


def when(phases: Sequence[str]) -> str:
    """'always', or the phases between commas."""
    return "always" if len(phases) == len(PHASES) else ", ".join(phases)
