"""A step's time as words: one list of rows, from which text and HTML are both made."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .._core.tables import Table
from .._core.words import flops_words

if TYPE_CHECKING:
    from .record import StepTime

HEAD = ("line", "kernels", "collectives", "exposed")
ROWS = 12
_RIGHT = (1, 2, 3)
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
    return Table(
        "steptime",
        _title(step),
        HEAD,
        _rows(step),
        _notes(step),
        right=_RIGHT,
        nothing="no instruction takes time",
    )


def _title(step: "StepTime") -> str:
    where = f"{step.devices} × {step.chip}" if step.devices > 1 else step.chip
    if step.total_s is None:
        least, most = map(seconds_words, step.bounds_s)
        return f"Step of {step.name} on {where}: between {least} and {most}"
    about = "" if step.error is None else f" ± {step.error:.0%}"
    return (
        f"Step of {step.name} on {where}, {step.how}: "
        f"{seconds_words(step.total_s)}{about}"
    )


def _rows(step: "StepTime") -> list[tuple[str, ...]]:
    lines = [line for line in step.lines if max(line.kernel_s, line.link_s) >= 5e-10]
    by_time = sorted(lines, key=lambda line: -(line.kernel_s + line.exposed_s))
    kept = {line.source for line in by_time[:ROWS]}
    rows = [
        _row(line.source or "(no line of yours)", line.kernel_s, line.link_s,
             line.exposed_s)
        for line in lines
        if line.source in kept
    ]  # fmt: skip
    rest = by_time[ROWS:]
    if rest:
        sums = [
            sum(getattr(line, name) for line in rest)
            for name in ("kernel_s", "link_s", "exposed_s")
        ]
        rows.append(_row(f"… {len(rest)} more", *sums))
    return rows


def _row(name: str, *seconds: float) -> tuple[str, ...]:
    return (name, *(seconds_words(s) if s >= 5e-10 else "" for s in seconds))


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
