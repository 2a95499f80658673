"""A step's time as words: one list of rows, from which text and HTML are both made."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from .._core.tables import Table
from .._core.words import flops_words

if TYPE_CHECKING:
    from .record import LineTime, StepTime

HEAD = ("line", "kernels", "collectives", "exposed")
BOTH = ("line", "kernels", "pred.", "collectives", "pred.", "exposed", "pred.")
ROWS = 12
UNTESTED = "a formula that no measured row tests"  # so no error is known either
_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))


def seconds_words(seconds: float) -> str:
    """Say a time with three digits.

    >>> seconds_words(0.27249), seconds_words(1.5), seconds_words(0)
    ('272 ms', '1.5 s', '0 s')
    """
    for size, unit in _UNITS:
        if seconds >= 0.9995 * size:
            return f"{seconds / size:.3g} {unit}"
    return "0 s" if seconds < 5e-10 else f"{seconds / 1e-6:.2g} µs"


def shown(step: "StepTime") -> Table:
    """A heading, the lines of the reader's code, and what holds for the step."""
    head = BOTH if step.predicted is not None else HEAD
    return Table(
        "steptime",
        _title(step),
        head,
        _rows(step),
        _notes(step),
        right=tuple(range(1, len(head))),
        nothing="no instruction takes time",
    )


def _title(step: "StepTime") -> str:
    where = f"{step.devices} × {step.chip}" if step.devices > 1 else step.chip
    if step.total_s is None:
        least, most = map(seconds_words, step.bounds_s)
        return f"`{step.name}` on {where}: between {least} and {most}"
    return (
        f"`{step.name}` on {where}, {step.how}: "
        f"{seconds_words(step.total_s)}{_about(step)}"
    )


def _about(step: "StepTime") -> str:
    """How far off a prediction may be, or what had been predicted."""
    if step.predicted is None or step.predicted.total_s is None or not step.total_s:
        if any(UNTESTED in note for note in step.notes):
            return " (error unknown: see below)"
        return "" if step.error is None else f" ± {step.error:.0%}"
    off = step.predicted.total_s / step.total_s - 1
    return f", predicted: {seconds_words(step.predicted.total_s)} ({off:+.0%})"


def _rows(step: "StepTime") -> list[tuple[str, ...]]:
    lines = [line for line in step.lines if max(line.kernel_s, line.link_s) >= 5e-10]
    by_time = sorted(lines, key=lambda line: -(line.kernel_s + line.exposed_s))
    kept = {line.source for line in by_time[:ROWS]}
    before = (
        {line.source: line for line in step.predicted.lines} if step.predicted else None
    )
    groups = [
        (line.source or "(no line of yours)", [line])
        for line in lines
        if line.source in kept
    ]
    if by_time[ROWS:]:
        groups.append((f"… {len(by_time) - ROWS} more", by_time[ROWS:]))
    return [(name, *_cells(each, before)) for name, each in groups]


def _cells(
    lines: "list[LineTime]", before: "Mapping[str | None, LineTime] | None"
) -> list[str]:
    """Kernels, collectives and exposed seconds, each beside what was predicted."""
    cells = []
    for name in ("kernel_s", "link_s", "exposed_s"):
        cells.append(_cell(sum(getattr(line, name) for line in lines)))
        if before is not None:
            known = [before[line.source] for line in lines if line.source in before]
            cells.append(_cell(sum(getattr(line, name) for line in known)))
    return cells


def _cell(seconds: float) -> str:
    return seconds_words(seconds) if seconds >= 5e-10 else ""


def _notes(step: "StepTime") -> Sequence[str]:
    lanes = [f"{name} {seconds_words(busy)}" for name, busy in step.lanes.items()]
    notes = [f"busy: {', '.join(lanes)}"] if lanes else []
    notes.append(
        f"the FLOPs need {seconds_words(step.compute_s)}, the memory traffic "
        f"{seconds_words(step.memory_s)}"
    )
    if step.total_s is not None:
        share = step.exposed_s / step.total_s if step.total_s else 0.0
        notes.append(
            f"exposed: kernels wait {seconds_words(step.exposed_s)} for collectives, "
            f"{share:.0%} of the step"
        )
        if step.slowed_s:
            notes.append(
                f"slowed: kernels lose {seconds_words(step.slowed_s)} to collectives "
                "that run beside them"
            )
    if step.mfu is not None:
        notes.append(f"{_utilization(step)}: {step.mfu:.1%} of the chips' peak")
    if step.tokens_per_s is not None:
        notes.append(f"{step.tokens_per_s:,.0f} tokens a second")
    return [*notes, *step.notes]


def _utilization(step: "StepTime") -> str:
    if step.model_flops is not None:
        return "MFU"
    assert step.flops_per_device is not None
    return f"{flops_words(step.flops_per_device)} a device in products"
