"""Words for numbers: bytes, lists of devices, aligned tables."""

import itertools
import re
import textwrap
from collections.abc import Iterable, Sequence

_THOUSANDS = ("", "k", "M", "G", "T", "P", "E")
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
# The axis that pmap gives no name: as it is said here, and as JAX spells it.
PMAP_AXIS = "(pmap axis)"
JAX_PMAP_AXIS = "_internal_pmap_axis_name"


def bytes_words(n: int) -> str:
    """Say a number of bytes in powers of 1024, with at most three digits.

    Plain bytes are exact; from one KiB on the number is rounded.

    >>> bytes_words(80)
    '80 B'
    >>> bytes_words(6 * 1024)
    '6 KiB'
    >>> bytes_words(10**12)           # 10**12 / 2**30 = 931.3
    '931 GiB'

    Args:
        n: a number of bytes, 0 or more.

    Returns:
        The number and its unit, a space between them.

    Raises:
        ValueError: `n` is negative.
    """
    if n < 0:
        raise ValueError(f"n={n}: a number of bytes is 0 or more.")
    unit = 0
    while unit < len(_UNITS) - 1 and (n if unit == 0 else n // 1024**unit) >= 1024:
        unit += 1
    if unit == 0:
        return f"{n} B"
    value = n / 1024**unit
    words = _three_digits(value)
    if words == "1024" and unit < len(_UNITS) - 1:  # 1023.9 rounds up to the next
        words, unit = "1", unit + 1
    return f"{words} {_UNITS[unit]}"


def _three_digits(value: float) -> str:
    decimals = 2 if value < 9.995 else 1 if value < 99.95 else 0
    words = f"{value:.{decimals}f}"
    return words.rstrip("0").rstrip(".") if decimals else words


def flops_words(n: int) -> str:
    """Say a number of floating point operations in powers of 1000.

    >>> flops_words(144), flops_words(26_400_000_000_000)
    ('144 FLOPs', '26.4 TFLOPs')

    Args:
        n: a number of operations, 0 or more.

    Returns:
        The number, with at most three digits, and its unit, a space between them.
    """
    unit, value = 0, float(n)
    while value >= 999.5 and unit < len(_THOUSANDS) - 1:
        unit, value = unit + 1, value / 1000
    return f"{_three_digits(value)} {_THOUSANDS[unit]}FLOPs"


def device_list(ids: Iterable[int], limit: int = 4) -> str:
    """Say a set of device numbers shortly, in ascending order.

    >>> device_list([1, 0])
    '0, 1'
    >>> device_list(range(8))
    '0–7'
    >>> device_list(range(0, 64, 8))
    '0, 8, 16 … 56'
    >>> device_list([0, 1, 5, 9, 10, 17, 30])
    '0, 1, 5 … 30 (7 in all)'

    Args:
        ids: device numbers, in any order.
        limit: how many numbers or ranges are written at most.

    Returns:
        Numbers between commas. A dash joins three or more that follow each other;
        an ellipsis stands for equal steps, or, with a count, for what is left out.
    """
    numbers = sorted(ids)
    if len(numbers) > max(4, limit):
        step = numbers[1] - numbers[0]
        steps = {b - a for a, b in itertools.pairwise(numbers)}
        if steps == {step} and step > 1:
            first, second, third = numbers[:3]
            return f"{first}, {second}, {third} … {numbers[-1]}"
    parts = [
        str(word)
        for run in _runs(numbers)
        for word in ([f"{run[0]}–{run[-1]}"] if len(run) >= 3 else run)
    ]
    if len(parts) <= limit:
        return ", ".join(parts)
    head = ", ".join(parts[: max(1, limit - 1)])
    return f"{head} … {parts[-1]} ({len(numbers)} in all)"


def _runs(numbers: Sequence[int]) -> list[list[int]]:
    """Numbers that follow each other, together."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return runs


def path_words(paths: Sequence[str]) -> str:
    """Paths that differ in numbers alone, as one.

    >>> path_words(["layers/0/w", "layers/1/w", "layers/2/w"])
    'layers/0–2/w'
    """
    joined = ""
    for column in zip(*(re.split(r"([0-9]+)", path) for path in paths), strict=True):
        known = list(dict.fromkeys(column))
        if len(known) == 1:
            joined += known[0]
        elif any(number[0] == "0" != number for number in known):
            joined += f"{known[0]}…{known[-1]}"
        else:
            joined += device_list(map(int, known), limit=3).replace(", ", ",")
    return joined


def join_words(words: Sequence[str]) -> str:
    """Join words as a sentence does.

    >>> join_words(["data", "fsdp", "model"])
    'data, fsdp and model'
    """
    if len(words) < 2:
        return "".join(words)
    return ", ".join(words[:-1]) + " and " + words[-1]


def count_words(n: int, one: str, many: str = "") -> str:
    """Say how many of something there are.

    >>> count_words(1, "copy", "copies"), count_words(2, "copy", "copies")
    ('1 copy', '2 copies')
    >>> count_words(3, "row")
    '3 rows'
    """
    return f"{n} {one if n == 1 else many or one + 's'}"


def wrapped(words: str) -> str:
    """Words in lines of 80 columns at most, broken at spaces only."""
    return textwrap.fill(words, 80, break_on_hyphens=False)


def number(value: float) -> str:
    """A coordinate: one decimal place, and none where it is 0.

    >>> number(3.04), number(2.5)
    ('3', '2.5')
    """
    return f"{value:.1f}".removesuffix(".0")


def table(
    rows: Iterable[Sequence[object]], gap: int = 2, right: Iterable[int] = ()
) -> str:
    """Align rows of words in columns.

    >>> print(table([("leaf", "bytes"), ("w", 4096), ("b", 64)], right=[1]))
    leaf  bytes
    w      4096
    b        64

    Args:
        rows: one sequence of cells a row; a shorter row ends early.
        gap: spaces between two columns.
        right: numbers of the columns that are aligned at their right edge.

    Returns:
        One line of text a row, without spaces at its end.
    """
    cells = [[str(cell) for cell in row] for row in rows]
    count = max((len(row) for row in cells), default=0)
    widths = [
        max((len(row[i]) for row in cells if i < len(row)), default=0)
        for i in range(count)
    ]
    right = frozenset(right)
    lines = []
    for row in cells:
        padded = [
            cell.rjust(width) if i in right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=False))
        ]
        lines.append((" " * gap).join(padded).rstrip())
    return "\n".join(lines)
