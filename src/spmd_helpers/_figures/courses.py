"""Memory over a training step: the bytes of a device, phase by phase, layer by layer.

All numbers are those of a `TrainingMemory`: its lines, and the bytes of its phases. A
line that is kept for the backward pass fills up in the forward pass, a layer at a
time, and empties in the backward pass. Gradients are written in the backward pass, a
layer at a time. A line of one pass comes and goes with each layer. Every other line is
there from the start of its phases to their end.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from .._training.state import Line
from .._training.training_memory import TrainingMemory

PARAMETERS, OPTIMIZER, GRADIENTS = "parameters", "optimizer state", "gradients"
OTHER, SAVED = "other buffers", "saved activations"
GATHERED, WORK = "gathered for a layer", "work of a layer"
PARTS = (PARAMETERS, OPTIMIZER, GRADIENTS, OTHER, SAVED, GATHERED, WORK)
RESERVED = "reserved"

TEETH = 8  # layers that are drawn one by one; of more, each stands for several
FORWARD, BACKWARD = "forward", "backward"
_PASSES = (FORWARD, BACKWARD)
_SAVED_FOR = {FORWARD, "loss", BACKWARD}
_USED = 0.75  # of a layer's time: then what it needed for itself is gone
_WIDTHS = {FORWARD: 8.0, "loss": 2.0, BACKWARD: 8.0, "update": 3.0}
_LAYERS = re.compile(r"(\d+) layers? ×")


@dataclass(frozen=True)
class Point:
    """The memory of a device at one point of a step.

    Attributes:
        x: where it is drawn, from the start of the step.
        phase: the phase of the step.
        parts: bytes that hold values, for each of PARTS.
        reserved: bytes that the program has set aside in this phase beside these.
    """

    x: float
    phase: str
    parts: tuple[int, ...]
    reserved: int

    @property
    def used(self) -> int:
        """Bytes that hold values."""
        return sum(self.parts)


@dataclass(frozen=True)
class Course:
    """The course of one step: its points, in order, and how many layers they are.

    Attributes:
        name: what is special about the step.
        memory: the record that it shows.
        points: from the start of the step to its end.
        layers: of the model, as the lines count them.
        teeth: how many the forward pass is drawn with.
    """

    name: str
    memory: TrainingMemory
    points: tuple[Point, ...]
    layers: int
    teeth: int

    @property
    def peak(self) -> tuple[int, ...]:
        """What the peak phase allocates, for each of PARTS."""
        return allocated(self, self.memory.peak_phase)

    @property
    def spans(self) -> dict[str, tuple[float, float]]:
        """Where each phase starts and ends."""
        places: dict[str, list[float]] = {}
        for point in self.points:
            places.setdefault(point.phase, []).append(point.x)
        return {phase: (xs[0], xs[-1]) for phase, xs in places.items()}


def part_of(line: Line) -> str:
    """The part that a line is drawn in."""
    for part in (PARAMETERS, GRADIENTS):
        if line.name.startswith(part):
            return part
    if line.name.startswith("optimizer"):
        return OPTIMIZER
    if line.name.startswith("weights"):  # copies of them, also where a scan stacks them
        return OTHER
    if is_saved(line):
        return SAVED
    if line.name.startswith("gathered"):
        return GATHERED
    return WORK if comes_with_layer(line) else OTHER


def is_saved(line: Line) -> bool:
    """Whether the forward pass stores it, a layer at a time, for the backward pass."""
    stacked = _LAYERS.match(line.formula) and "buffers" not in line.source
    return bool(stacked) and set(line.when) == _SAVED_FOR


def fills_backward(line: Line) -> bool:
    """Whether the backward pass writes it, a layer at a time."""
    return part_of(line) == GRADIENTS and line.when[0] == BACKWARD


def comes_with_layer(line: Line) -> bool:
    """Whether each layer of one pass makes it, and frees it."""
    return (
        len(line.when) == 1
        and line.when[0] in _PASSES
        and not _LAYERS.match(line.formula)
        and not line.name.startswith(GRADIENTS)
    )


def course(name: str, memory: TrainingMemory) -> Course:
    """The course of a step."""
    matches = map(_LAYERS.match, (line.formula for line in memory.lines))
    layers = max((int(match[1]) for match in matches if match), default=1)
    teeth = min(layers, TEETH)
    points: list[Point] = []
    start = 0.0
    for phase, total in memory.phases.items():
        lines = [line for line in memory.lines if phase in line.when]
        width = _WIDTHS.get(phase, 3.0)
        points += _points(phase, total, lines, teeth, start, width)
        start += width
    return Course(name, memory, tuple(points), layers, teeth)


def _points(
    phase: str,
    total: int,
    lines: Sequence[Line],
    teeth: int,
    start: float,
    width: float,
) -> list[Point]:
    def point(x: float, stored: float, runs: bool) -> Point:
        parts = dict.fromkeys(PARTS, 0)
        for line in lines:
            size = float(line.bytes)
            if is_saved(line):
                size *= stored
            elif phase == BACKWARD and fills_backward(line):
                size *= 1 - stored
            elif comes_with_layer(line):
                size *= runs
            parts[part_of(line)] += round(size)
        sizes = tuple(parts.values())
        return Point(x, phase, sizes, total - sum(sizes))

    if phase not in _PASSES:
        return [point(start, 1, False), point(start + width, 1, False)]
    points, step = [], width / teeth
    for tooth in range(teeth):
        x, before, after = start + tooth * step, tooth / teeth, (tooth + 1) / teeth
        if phase == BACKWARD:
            before, after = 1 - before, 1 - after
        points += [
            point(x, before, True),
            point(x + _USED * step, after, True),
            point(x + _USED * step, after, False),
            point(x + step, after, False),
        ]
    return points


def allocated(course: Course, phase: str) -> tuple[int, ...]:
    """What a phase allocates for each part: the most that it has of it."""
    inside = [point.parts for point in course.points if point.phase == phase]
    return tuple(map(max, zip(*inside, strict=True)))
