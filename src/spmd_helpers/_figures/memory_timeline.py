"""A step's memory as a figure: in a notebook as HTML that plays, in print as text."""

from collections.abc import Mapping
from functools import cached_property

from .._core.notebook import InNotebook
from .._core.words import bytes_words, table, wrapped
from .._errors import NotUnderstood
from .._hardware.chips import Chip
from .._hardware.chips import chip as chip_of
from .._player import page
from .._training.training_memory import TrainingMemory
from . import course_svg
from .courses import PARTS, Course, allocated, course

_NEEDED = "needed"


class MemoryTimeline(InNotebook):
    """What a device has in memory through a training step, layer by layer.

    A notebook shows it when a cell ends with it. Several steps play as frames on one
    scale. `print` gives the same as tables. Widths do not show time.

    What is hatched in the figure is reserved, but has no values yet, or no longer: a
    `jax.lax.scan` over the layers allocates what all of them save before the forward
    pass, and the gradients of all of them before the backward pass. With it, each phase
    needs what `TrainingMemory.phases` gives.

    >>> import spmd_helpers as spmd
    >>> step = spmd.training_memory(
    ...     spmd.MLP(layers=4, d_model=64, d_ff=256), mesh={"data": 4}, batch=512
    ... )
    >>> MemoryTimeline(step)
    Memory over a training step
    per device: MLP of 4 layers, d_model 64 on data=4
    <BLANKLINE>
    The peak is 1.22 MiB, in backward. The largest part of it: saved activations,
    448 KiB.
    allocated              forward     loss  backward   update
    parameters             128 KiB  128 KiB   128 KiB  128 KiB
    optimizer state        256 KiB  256 KiB   256 KiB  256 KiB
    gradients                  0 B      0 B   128 KiB  128 KiB
    other buffers          192 KiB  128 KiB   128 KiB   64 KiB
    saved activations      448 KiB  448 KiB   448 KiB      0 B
    gathered for a layer    64 KiB      0 B    64 KiB      0 B
    work of a layer         96 KiB      0 B    96 KiB      0 B
    needed                1.16 MiB  960 KiB  1.22 MiB  576 KiB
    <BLANKLINE>
    From top to bottom: work of a layer, gathered for a layer, saved activations,
    other buffers, gradients, optimizer state and parameters. Other buffers: batch,
    weights as computed with and weights converted before the loop. Hatched memory
    is reserved but not in use: a scan over the layers allocates the saved
    activations of all layers before the forward pass, and the gradients of all
    layers before the backward pass. What a layer needs for itself is that of its
    largest moment; what it needs before or after that, and is less, is not drawn.
    Widths do not show time.

    Args:
        steps: a TrainingMemory, or a dict from what is special about a step to its
            TrainingMemory.
        chip: a name in HARDWARE, or a Chip: a line shows what a program can use on it.

    Attributes:
        courses: for each step the points that are drawn, with their bytes.

    Raises:
        NotUnderstood: `steps` is neither, or is empty, or the chip is not known.

    Used in chapters 09 and 10.
    """

    def __init__(
        self,
        steps: TrainingMemory | Mapping[str, TrainingMemory],
        *,
        chip: str | Chip | None = None,
    ) -> None:
        try:
            named = _checked(steps)
            self._chip = None if chip is None else chip_of(chip)
        except NotUnderstood as error:
            raise error.with_traceback(None) from None
        self.courses = tuple(course(name, memory) for name, memory in named.items())

    def __str__(self) -> str:
        shown = self._shown
        parts = [f"{shown.title}\n{shown.facts}"]
        for one in self.courses:
            words = f"{one.name}. {shown.sentence(one)}" if one.name else ""
            words = wrapped(words or shown.sentence(one))
            parts.append(f"{words}\n{_numbers(one)}")
        return "\n\n".join([*parts, wrapped(shown.notes)])

    __repr__ = __str__

    @cached_property
    def _shown(self) -> course_svg.Chart:
        return course_svg.Chart(self.courses, self._chip)

    def _html(self) -> str:
        return page.html(self._shown.page)


def _checked(steps: object) -> Mapping[str, TrainingMemory]:
    if isinstance(steps, TrainingMemory):
        return {"": steps}
    named = steps if isinstance(steps, Mapping) else {}
    right = [isinstance(memory, TrainingMemory) for memory in named.values()]
    if not right or not all(right):
        raise NotUnderstood(
            f"steps={steps!r} is no training step; give what spmd.training_memory "
            "returns, or several as a dict, such as {'ZeRO-3': training_memory(...)}."
        )
    return {str(name): memory for name, memory in named.items()}


def _numbers(one: Course) -> str:
    """What each phase allocates for each part, and in all."""
    phases = one.memory.phases
    columns = {phase: allocated(one, phase) for phase in phases}
    rows = [("allocated", *phases)]
    for number, part in enumerate(PARTS):
        sizes = [column[number] for column in columns.values()]
        if any(sizes):
            rows.append((part, *map(bytes_words, sizes)))
    rows.append((_NEEDED, *map(bytes_words, phases.values())))
    return table(rows, right=range(1, len(phases) + 1))
