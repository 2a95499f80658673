"""What is known of the time of one step: predicted here, or measured by a profile."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from .._core.notebook import InTable
from .._core.tables import Table
from . import words
from .timeline import Timeline


@dataclass(frozen=True)
class Part:
    """One instruction of a program, over a whole step.

    Attributes:
        name: the instruction's name in the program's text; a profile calls it
            `hlo_op`.
        kind: 'matmul', 'attention', 'convolution' or 'elementwise' of a kernel; of a
            collective its kind, 'all-gather'.
        lane: what it runs on: 'kernels', or the link that it is sent over: 'nvlink',
            'network', 'ici' or 'dcn'.
        count: how often it runs in a step; None where a loop's trips are unknown, then
            the seconds are those of one trip.
        seconds: how long its lane is busy with it, all runs together.
        exposed_s: how long nothing else runs meanwhile. Of a kernel that is all of its
            seconds, unless it runs beside others; of a collective what the kernels
            wait for it.
        limit: what its seconds come from: 'FLOPs', 'memory', 'launch', 'bytes sent' or
            'start'; 'measured' in a profile.
        source: the line of the reader's own code, 'train.py:12'. None if unknown.
        phase: 'forward', 'backward', 'recompute', or None outside differentiation.
        flops: of its matrix products, all runs together.
        nbytes: of a kernel, what it reads and writes in memory; of a collective, what
            one device sends; all runs together.
    """

    name: str
    kind: str
    lane: str
    count: int | None
    seconds: float
    exposed_s: float
    limit: str
    source: str | None = None
    phase: str | None = None
    flops: int = 0
    nbytes: int = 0


@dataclass(frozen=True)
class Span:
    """A piece of the timeline: one run of an instruction.

    Of a loop the first trip is drawn, and `trips` says how many follow each other.

    Attributes:
        name: the instruction's name; of a loop's piece, the loop's.
        kind: as `Part.kind`, or 'loop'.
        lane: as `Part.lane`.
        start_s: when it starts, from the start of the step.
        end_s: when it ends.
        trips: of a loop, how often it runs; otherwise 1.
        memory_s: of a predicted kernel, how long the bytes that it reads and writes
            keep the memory busy; otherwise 0.
    """

    name: str
    kind: str
    lane: str
    start_s: float
    end_s: float
    trips: int | None = 1
    memory_s: float = 0.0


@dataclass(frozen=True)
class LineTime:
    """The time of one line of the reader's code.

    Attributes:
        source: the line, 'train.py:12'; None of what names none.
        kernel_s: seconds of its kernels.
        link_s: seconds of its collectives.
        exposed_s: of those, the seconds that kernels wait.
    """

    source: str | None
    kernel_s: float
    link_s: float
    exposed_s: float


@dataclass(frozen=True, repr=False, eq=False)
class StepTime(InTable):
    """How long one step of a program takes, and what it waits for.

    All seconds are those of one device and one call.

    Attributes:
        name: the function's name.
        chip: the name of the chip in HARDWARE.
        devices: how many run the program.
        how: 'predicted' of a scheduled program, 'bounds' where there is no schedule
            for this chip, 'measured' of a profile.
        total_s: seconds of a step. None where only bounds are known.
        bounds_s: (least, most). Of a predicted step the busiest lane, and all lanes
            one after another: with perfect overlap and with none.
        lanes: seconds that each lane is busy: 'kernels', and the links used.
        compute_s: of 'kernels', what the FLOPs of the products need.
        memory_s: of 'kernels', what the bytes read and written need. A kernel takes
            the longer of the two.
        exposed_s: seconds that kernels wait for collectives.
        slowed_s: seconds that kernels lose to collectives that run beside them.
        parts: each instruction that takes time, in program order.
        spans: the timeline, one run of each.
        flops_per_device: of the matrix products in the program, recomputed ones
            included. None where a loop's trips are unknown.
        model_flops: of all devices, those that the model needs, if given.
        peak_flops_per_s: the chip's peak of dense products in bfloat16.
        tokens: in one step, on all devices together, if given.
        error: how far such predictions were from measured steps: 0.1 is 10 %. None
            where there is nothing to compare with.
        rates: what the seconds were divided by, name → (value, unit, source).
        notes: what else to know: what was left out, and why bounds are bounds.
        predicted: of a measured step, what `step_time` says of the same program.
    """

    name: str
    chip: str
    devices: int
    how: str
    total_s: float | None
    bounds_s: tuple[float, float]
    lanes: Mapping[str, float]
    compute_s: float
    memory_s: float
    exposed_s: float
    slowed_s: float
    parts: tuple[Part, ...] = field(repr=False)
    spans: tuple[Span, ...] = field(default=(), repr=False)
    flops_per_device: int | None = None
    model_flops: float | None = None
    peak_flops_per_s: float | None = None
    tokens: int | None = None
    error: float | None = None
    rates: Mapping[str, tuple[float, str, str]] = field(
        default_factory=dict, repr=False
    )
    notes: tuple[str, ...] = ()
    predicted: "StepTime | None" = field(default=None, repr=False)

    @property
    def mfu(self) -> float | None:
        """The share of the chips' peak that goes into the products.

        Of `model_flops` where they are given: model FLOPs utilization. Otherwise of
        the program's own products: what is recomputed counts there too. None where
        the total or the FLOPs are not known.
        """
        flops = self.flops_per_device
        if self.model_flops is not None:
            flops = round(self.model_flops / self.devices)
        if not self.total_s or flops is None or not self.peak_flops_per_s:
            return None
        return flops / self.total_s / self.peak_flops_per_s

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens a second on all devices together; None if `tokens` was not given."""
        if self.tokens is None or not self.total_s:
            return None
        return self.tokens / self.total_s

    @property
    def lines(self) -> tuple[LineTime, ...]:
        """The time by source line, the longest exposed first, then the longest."""
        sums: dict[str | None, list[float]] = {}
        for part in self.parts:
            line = sums.setdefault(part.source, [0.0, 0.0, 0.0])
            sent = part.lane != "kernels"
            line[sent] += part.seconds
            line[2] += part.exposed_s if sent else 0.0
        lines = [LineTime(source, *seconds) for source, seconds in sums.items()]
        return tuple(sorted(lines, key=lambda line: (-line.exposed_s, -line.kernel_s)))

    @property
    def exposed(self) -> tuple[Part, ...]:
        """The collectives that kernels wait for, the longest wait first."""
        waited = [p for p in self.parts if p.lane != "kernels" and p.exposed_s > 0]
        return tuple(sorted(waited, key=lambda part: -part.exposed_s))

    @property
    def timeline(self) -> Timeline:
        """The step drawn: lanes of kernels, memory and each link, and a text twin."""
        return Timeline(self)

    def is_tie(self, other: "StepTime") -> bool:
        """Whether two steps are too near to each other to be ranked.

        Args:
            other: another step on the same chip.

        Returns:
            True if their totals differ by no more than the larger of their errors, or
            if one of them has no total.
        """
        if self.total_s is None or other.total_s is None:
            return True
        apart = abs(self.total_s - other.total_s) / max(self.total_s, other.total_s)
        return apart <= max(self.error or 0.0, other.error or 0.0)

    def _shown(self) -> Table:
        return words.shown(self)
