"""What an argument must be, checked the same way everywhere, and the nearest name.

A refusal is one sentence: the argument and its value, what is wrong, what to give.
"""

import difflib
import math
import operator
from collections.abc import Iterable, Mapping
from numbers import Real
from typing import SupportsIndex, TypeVar

from .._errors import NotUnderstood

Choice = TypeVar("Choice")


def as_integer(value: object, least: float = 0, most: int | None = None) -> int | None:
    """The integer that a value is, or None if it is none from least to most.

    NumPy's integers are taken; a bool, a text and 3.0 are not.

    >>> as_integer(3), as_integer(3.0), as_integer(True), as_integer(-1)
    (3, None, None, None)
    >>> as_integer(8, 1, 8), as_integer(9, 1, 8)
    (8, None)
    """
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        return None
    try:
        number = operator.index(value)
    except TypeError:  # such as an array of several numbers
        return None
    fits = least <= number and (most is None or number <= most)
    return number if fits else None


_WRITTEN = 4000  # digits that str() writes
LARGEST = 10**30  # the largest size that is counted with


def is_huge(value: object) -> bool:
    """Whether a value is an integer whose size is beyond every count here.

    >>> is_huge(10**400), is_huge(-(10**400)), is_huge(10**30), is_huge(1e400)
    (True, True, False, False)
    """
    number = as_integer(value, -math.inf)
    return number is not None and abs(number) > LARGEST


def _digits(value: object) -> int:
    """How many digits an integer has; it can have too many for str()."""
    size = abs(operator.index(value))  # type: ignore[arg-type]  # it is an integer
    return int(math.log10(size)) + 1


def integer(
    name: str,
    value: object,
    what: str = "a size",
    *,
    least: int = 1,
    most: int | None = None,
    example: str = "",
) -> int:
    """An integer in a range, or NotUnderstood: `what` says what it counts.

    >>> integer("batch", 2.5)
    Traceback (most recent call last):
    ...
    spmd_helpers._errors.NotUnderstood: batch=2.5 is not a size; give an integer, \
1 or more.
    """
    number = as_integer(value, least, most)
    if number is not None and number <= LARGEST:
        return number
    if is_huge(value) and (most is None or _digits(value) > _WRITTEN):
        raise NotUnderstood(
            f"{name} has an integer of {_digits(value)} digits, more than is counted "
            f"here; give one of {_digits(LARGEST) - 1} digits at most."
        )
    values = f", {least} or more" if most is None else f" from {least} to {most}"
    such = f", such as {example}" if example else ""
    raise NotUnderstood(
        f"{name}={value!r} is not {what}; give an integer{values}{such}."
    )


def is_number(value: object) -> bool:
    """Whether a value is a real number, NumPy's too, and no bool.

    >>> is_number(2), is_number(0.5), is_number(True), is_number("2")
    (True, True, False, False)
    """
    return isinstance(value, Real) and not isinstance(value, bool)


def axis_sizes(name: str, mesh: object) -> dict[str, int]:
    """The axes of a mesh that is given as a mapping, or NotUnderstood.

    >>> axis_sizes("mesh", {"data": 4, "model": 0})
    Traceback (most recent call last):
    ...
    spmd_helpers._errors.NotUnderstood: mesh={'data': 4, 'model': 0}: axis 'model' has \
size 0; a mesh maps each axis name to a number of devices, 1 or more, such as \
{'data': 4, 'model': 2}.
    """
    if not isinstance(mesh, Mapping):
        if isinstance(getattr(mesh, "shape", None), Mapping):  # JAX's Mesh
            raise NotUnderstood(
                f"{name}={mesh!r} is a mesh of devices, of which the sizes count here; "
                f"give its shape, mesh.shape."
            )
        raise NotUnderstood(
            f"{name}={mesh!r} is not a dict of axis sizes; give one such as "
            "{'data': 4, 'model': 2}."
        )
    for axis, size in mesh.items():
        if is_huge(size):
            integer(f"{name}: axis {axis!r}", size)
        if not isinstance(axis, str) or as_integer(size, 1) is None:
            raise NotUnderstood(
                f"{name}={dict(mesh)}: axis {axis!r} has size {size!r}; a mesh maps "
                "each axis name to a number of devices, 1 or more, such as "
                "{'data': 4, 'model': 2}."
            )
    return {axis: operator.index(size) for axis, size in mesh.items()}


def one_of(name: str, value: Choice, choices: Iterable[Choice]) -> Choice:
    """A value that is one of the choices, or NotUnderstood; 1 is not True.

    >>> one_of("attention", "flsh", ("plain", "flash"))
    Traceback (most recent call last):
    ...
    spmd_helpers._errors.NotUnderstood: attention='flsh' is not known. Did you \
mean 'flash'? Give 'plain' or 'flash'.
    """
    choices = tuple(choices)
    if any(isinstance(value, type(one)) and value == one for one in choices):
        return value
    texts = [one for one in choices if isinstance(one, str)]
    guess = did_you_mean(value.lower(), texts) if isinstance(value, str) else ""
    words = or_words(map(repr, choices))
    raise NotUnderstood(f"{name}={value!r} is not known.{guess} Give {words}.")


def or_words(words: Iterable[str]) -> str:
    """Join choices as a sentence does.

    >>> or_words(["a", "b", "c"])
    'a, b or c'
    """
    *most, last = words
    return f"{', '.join(most)} or {last}" if most else last


def close_name(word: object, names: Iterable[str], cutoff: float = 0.6) -> str:
    """The name that is most like a word, or nothing ('').

    >>> close_name("modle", ["data", "model"]), close_name("stage", ["data", "model"])
    ('model', '')
    """
    return next(iter(difflib.get_close_matches(str(word), names, 1, cutoff)), "")


def did_you_mean(word: object, names: Iterable[str]) -> str:
    """The question after a sentence, a space before it; or nothing ('').

    >>> did_you_mean("modle", ["data", "model"])
    " Did you mean 'model'?"
    """
    close = close_name(word, names)
    return f" Did you mean {close!r}?" if close else ""
