"""What a trace says of a step, as the record that `step_time` predicts."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median, mode

from .._hlo.parser import Module
from .matching import matched
from .record import Part, Span, StepTime
from .trace import KernelRun

_UNKNOWN = 0.02  # a share of the kernels' time from which on a note is due


@dataclass
class _Times:
    """Of one instruction, over all steps of a trace."""

    seconds: float = 0.0
    exposed_s: float = 0.0
    runs: int = 0


def measured(
    module: Module, predicted: StepTime, runs: Sequence[KernelRun]
) -> StepTime:
    """A step as it was traced.

    Args:
        module: the program that ran.
        predicted: what `step_time` says of it.
        runs: what ran on one device, in order of time: one step or several, with
            nothing between them but what the host takes.
    """
    names = matched(module, predicted.parts, runs)
    starts = _starts(predicted.parts, runs, names)
    steps = len(starts)
    total = (
        median(b - a for a, b in pairwise(starts))
        if steps > 1
        else runs[-1].end_s - runs[0].start_s
    )
    times: dict[str, _Times] = defaultdict(_Times)
    known = {part.name: part.lane for part in predicted.parts}
    wire = next((lane for lane in predicted.lanes if lane != "kernels"), "nvlink")
    labels, lane_of, unknown = [], {}, 0.0
    for run, name, alone in zip(runs, names, _alone(runs), strict=True):
        label = name or run.op or run.name
        labels.append(label)
        lane_of[label] = known.get(label, "kernels" if run.kind is None else wire)
        unknown += run.end_s - run.start_s if name is None else 0.0
        times[label].seconds += (run.end_s - run.start_s) / steps
        times[label].exposed_s += alone / steps
        times[label].runs += 1
    parts = _parts(predicted, times, lane_of, steps)
    lanes = {"kernels": 0.0}
    for part in parts:
        lanes[part.lane] = lanes.get(part.lane, 0.0) + part.seconds
    exposed = sum(part.exposed_s for part in parts if part.lane != "kernels")
    idle = total - _busy(runs) / steps
    notes = [
        f"measured over {steps} step{'s' if steps > 1 else ''} on one of the devices; "
        f"idle (no kernel, no collective): {max(idle, 0.0) / total:.1%}",
    ]
    if any(part.lane != "kernels" for part in parts):
        notes.append(
            "a collective also waits in its kernel for the slowest of its group, so "
            "its seconds contain that"
        )
    share = unknown / max(sum(lanes.values()) * steps, 1e-30)
    if share > _UNKNOWN:
        notes.append(
            f"{share:.0%} of the time could not be matched with an instruction"
        )
    return replace(
        predicted,
        how="measured",
        total_s=total,
        bounds_s=(max(lanes.values()), sum(lanes.values())),
        lanes=lanes,
        exposed_s=exposed,
        parts=parts,
        spans=_spans(runs, labels, parts, starts, total),
        slowed_s=0.0,
        error=None,
        notes=tuple(notes),
        predicted=predicted,
    )


def _starts(
    parts: Sequence[Part], runs: Sequence[KernelRun], names: Sequence[str | None]
) -> list[float]:
    """When each step starts, by the first instruction that runs once in a step."""
    starts: dict[str, list[float]] = defaultdict(list)
    for run, name in zip(runs, names, strict=True):
        if name is not None:
            starts[name].append(run.start_s)
    once = [part.name for part in parts if part.count == 1 and part.name in starts]
    if not once:
        return [runs[0].start_s]
    steps = mode(len(starts[name]) for name in once)
    return min(starts[name] for name in once if len(starts[name]) == steps)


def _covered(runs: Sequence[KernelRun]) -> tuple[list[float], list[float]]:
    """Moments, and for each how long kernels have run until then."""
    moments: list[float] = []
    sums: list[float] = []
    total = end = 0.0
    for run in runs:
        if run.kind is not None:
            continue
        if not moments or run.start_s > end:
            moments.append(run.start_s)
            sums.append(total)
            end = run.start_s
        if run.end_s > end:
            total += run.end_s - end
            end = run.end_s
            moments.append(end)
            sums.append(total)
    return moments, sums


def _until(moments: list[float], sums: list[float], moment: float) -> float:
    """How long kernels have run until a moment."""
    n = bisect_right(moments, moment) - 1
    if n < 0:
        return 0.0
    if n + 1 == len(moments):
        return sums[n]
    between = sums[n + 1] - sums[n]
    return sums[n] + (min(moment - moments[n], between) if between else 0.0)


def _alone(runs: Sequence[KernelRun]) -> list[float]:
    """Of each run, the seconds in which no other kernel runs."""
    moments, sums = _covered(runs)
    ends: list[tuple[float, int, int]] = []
    for n, run in enumerate(runs):
        if run.kind is None and run.end_s > run.start_s:
            ends += [(run.start_s, 1, n), (run.end_s, 0, n)]
    alone, active, since = [0.0] * len(runs), set[int](), 0.0
    for moment, is_start, n in sorted(ends):
        if len(active) == 1:
            alone[next(iter(active))] += moment - since
        since = moment
        active.add(n) if is_start else active.discard(n)
    for n, run in enumerate(runs):
        if run.kind is not None:
            busy = _until(moments, sums, run.end_s) - _until(moments, sums, run.start_s)
            alone[n] = max(0.0, run.end_s - run.start_s - busy)
    return alone


def _busy(runs: Sequence[KernelRun]) -> float:
    """How long at least one run is under way."""
    total, end = 0.0, float("-inf")
    for run in runs:
        total += max(0.0, run.end_s - max(run.start_s, end))
        end = max(end, run.end_s)
    return total


def _parts(
    predicted: StepTime, times: dict[str, _Times], lanes: dict[str, str], steps: int
) -> tuple[Part, ...]:
    """The instructions as predicted, with what they took; those that ran besides."""
    parts = [
        replace(
            part,
            seconds=times[part.name].seconds,
            exposed_s=times[part.name].exposed_s,
            limit="measured",
        )
        for part in predicted.parts
        if part.name in times
    ]
    known = {part.name for part in parts}
    parts += [
        Part(
            name=name,
            kind="elementwise",
            lane=lanes[name],
            count=max(1, round(each.runs / steps)),
            seconds=each.seconds,
            exposed_s=each.exposed_s,
            limit="measured",
        )
        for name, each in times.items()
        if name not in known
    ]
    return tuple(parts)


def _spans(
    runs: Sequence[KernelRun],
    labels: Sequence[str],
    parts: Sequence[Part],
    starts: Sequence[float],
    total: float,
) -> tuple[Span, ...]:
    """What ran in one step: the second, or the only one."""
    known = {part.name: part for part in parts}
    start = starts[min(1, len(starts) - 1)]
    end = start + total if len(starts) > 1 else float("inf")
    return tuple(
        Span(
            label,
            known[label].kind,
            known[label].lane,
            run.start_s - start,
            run.end_s - start,
        )
        for run, label in zip(runs, labels, strict=True)
        if start <= run.start_s < end
    )
