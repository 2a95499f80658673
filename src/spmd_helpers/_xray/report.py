"""An X-ray as words: one list of rows, from which text and HTML are both made."""

import re
from collections.abc import Mapping, Sequence

from .._core.tables import Table
from .._core.words import bytes_words, flops_words
from .._findings.finding import Finding
from .._hlo.collectives import Collective

HEAD = ("collective", "over", "times", "dtype", "result", "sends", "where")
_NUMBERS = (2, 4, 5)
ROWS = 12
ALIKE = 3  # findings of one kind that are shown
NOTHING = "no collective: no device waits for another"
CPU_FLOATS = (
    "The CPU compiler sends bfloat16 as float32: elsewhere such bytes are half."
)


WITHOUT_CARD = (
    "compiled without the card: no kernel is tuned, so a run can need somewhat more or "
    "less memory"
)


def title(name: str, platform: str, mesh_shape: Mapping[str, int]) -> str:
    """'XRay of step, cpu, data=4 × model=2 (bytes per device, each time)'.

    Axes of one device are left out where there are others.
    """
    long = {axis: size for axis, size in mesh_shape.items() if size > 1} or mesh_shape
    mesh = " × ".join(f"{axis}={size}" for axis, size in long.items())
    where = mesh or "one device"
    return f"XRay of {name}, {platform}, {where} (bytes per device, each time)"


def rows(collectives: Sequence[Collective]) -> list[tuple[str, ...]]:
    """One row a collective, under HEAD.

    Where there are many, equal rows are one, '50 × 3' for fifty that each happen
    three times, and those that send least are summed in the last row.
    """
    if len(collectives) <= ROWS:
        return [_row(c) for c in collectives]
    groups: dict[tuple[str, ...], list[Collective]] = {}
    for c in collectives:
        groups.setdefault(_row(c), []).append(c)
    by_bytes = sorted(groups, key=lambda row: -_sent(groups[row]))
    kept = {*(by_bytes if len(by_bytes) <= ROWS + 1 else by_bytes[:ROWS])}
    table_rows = []
    for row, alike in groups.items():
        if row in kept:
            kind, over, times, *rest = row
            times = times if len(alike) == 1 else f"{len(alike)} × {times}"
            table_rows.append((kind, over, times, *rest))
    left_out = [c for row, alike in groups.items() if row not in kept for c in alike]
    if left_out:
        sent = bytes_words(sum(c.total_wire_bytes or c.wire_bytes for c in left_out))
        name = f"… {len(left_out)} more"
        table_rows.append((name, "", "", "", "", f"{sent} in all", ""))
    return table_rows


def _sent(alike: Sequence[Collective]) -> int:
    return sum(c.total_wire_bytes or c.wire_bytes for c in alike)


def _row(c: Collective) -> tuple[str, ...]:
    return (
        c.kind + ("*" if c.lowered_as else ""),
        ", ".join(c.axes) or "(no axis)",
        "?" if c.count is None else f"{'≤' if c.upper_bound else ''}{c.count}",
        c.dtype,
        bytes_words(c.result_bytes),
        bytes_words(c.wire_bytes),
        _where(c.source),
    )


def finding_notes(findings: Sequence[Finding]) -> list[str]:
    """The findings, a paragraph each; of many of one kind the first ones."""
    by_code: dict[str, list[Finding]] = {}
    for finding in findings:
        by_code.setdefault(finding.code, []).append(finding)
    sentences = []
    for code, alike in by_code.items():
        sentences += [f"finding: {finding}" for finding in alike[:ALIKE]]
        if (more := len(alike) - ALIKE) > 0:
            sentences.append(f"{code}: {more} more of this kind are in .findings")
    return sentences


def notes(collectives: tuple[Collective, ...], half_on_cpu: bool) -> list[str]:
    """What explains the table's signs, a sentence each."""
    sentences = []
    if len(collectives) > ROWS:
        sentences.append(
            f"{len(collectives)} collectives, equal ones in one row: all are in "
            ".collectives"
        )
    for how in dict.fromkeys(c.lowered_as for c in collectives if c.lowered_as):
        sentences.append(f"* written by the compiler as {how}")
    if any(c.count is None for c in collectives):
        sentences.append("? unknown: in a loop that runs as often as the data say")
    if any(c.upper_bound for c in collectives):
        sentences.append("≤ at most: in a branch that may not be taken")
    if any(not c.axes for c in collectives):
        sentences.append(
            "(no axis) its groups follow no axis of this mesh: see .groups"
        )
    if half_on_cpu:
        sentences.append(CPU_FLOATS)
    return sentences


def work_notes(
    flops: int | None,
    redundancy: float | None,
    idle: Mapping[str, int],
    peak_memory: int | None,
    upper_bound: bool = False,
) -> list[str]:
    """What one device computes and holds, a sentence each."""
    sentences = []
    if redundancy is not None:
        many = "an unknown number of FLOPs" if flops is None else flops_words(flops)
        many = f"at most {many}" if upper_bound else many
        sentences.append(f"matrix products: {many} per device, {_repeats(redundancy)}")
    for axis, size in idle.items():
        sentences.append(f"idle axis: {axis} ({size}), along it all compute the same")
    if peak_memory is not None:
        sentences.append(f"peak memory: {bytes_words(peak_memory)} per device")
    return sentences


def _repeats(redundancy: float) -> str:
    if redundancy < 1.02:
        return "none of them repeated on another"
    return f"redundancy {redundancy:.3g}"


def shown(
    heading: str, table_rows: list[tuple[str, ...]], sentences: Sequence[str]
) -> Table:
    """The complete report."""
    return Table("xray", heading, HEAD, table_rows, sentences, _NUMBERS, NOTHING)


def _where(source: str | None) -> str:
    """A cell's number depends on what else was run, and is left out here."""
    return re.sub(r"^(?:notebook cell|cell \d+), ", "cell, ", source or "")
