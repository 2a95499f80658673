"""What a count of memory is asked: whether it fits a chip, and for its table."""

import math
from collections.abc import Mapping
from typing import Self

from .._core.tables import Table
from .._core.validate import integer, is_huge, is_number
from .._core.words import bytes_words
from .._errors import NotUnderstood
from .._hardware.chips import Chip
from .._hardware.chips import chip as chip_of
from . import report as view
from .state import Line


class CountedMemory:
    """A count of the bytes on each device, by lines and phases.

    A class that is made of it is a dataclass with these fields, and defines
    `_counted_for`.
    """

    _of = "of a step"  # what has the phases

    total_bytes: int
    lines: tuple[Line, ...]
    phases: Mapping[str, int]
    peak_phase: str
    what: str
    notes: tuple[str, ...]

    def fits(self, chip: str | Chip, margin: float | None = None) -> bool:
        """Whether the peak stays within a part of what a chip gives a program.

        The program is counted as the compiler of that chip lays it out. On a GPU it has
        the pool that JAX takes at its start, 75 % of the card, without what the
        libraries take of it.

        Args:
            chip: a name in HARDWARE, such as 'v5p' or 'h100', or a Chip.
            margin: the part of the chip's `program_bytes` that may be filled; the
                chip's own `margin` if not given.

        Raises:
            NotUnderstood: the chip is not known, or the margin is not above 0 and at
                most 1.
        """
        return self.left_bytes(chip, margin) >= 0

    def left_bytes(self, chip: str | Chip, margin: float | None = None) -> int:
        """Bytes that stay free of that part; negative is what is missing."""
        try:
            one = chip_of(chip)
            return _allowed_bytes(one, margin) - self._counted_for(one).total_bytes
        except NotUnderstood as error:
            raise error.with_traceback(None) from None

    def _counted_for(self, chip: Chip) -> Self:
        """The same, as the compiler of a chip lays it out."""
        raise NotImplementedError

    def _shown(self) -> Table:
        name = type(self).__name__.removesuffix("Memory")
        return view.shown(self, f"{name} memory", self._of)

    def __str__(self) -> str:
        return self._shown().text()

    def __repr__(self) -> str:
        total = bytes_words(self.total_bytes)
        name = type(self).__name__
        return f"{name}({self.what}: {total} a device, most in {self.peak_phase})"

    def _repr_html_(self) -> str:
        return self._shown().html()


def _allowed_bytes(chip: Chip, margin: float | None) -> int:
    """Bytes of a chip that a program may fill."""
    if margin is None:
        margin = chip.margin
    if is_huge(margin):
        integer("margin", margin)
    if not is_number(margin) or not 0 < margin <= 1:
        raise NotUnderstood(
            f"margin={margin!r} is not a part of the memory; give a number above 0 and "
            "at most 1, such as 0.9."
        )
    return math.floor(margin * chip.program_bytes)
