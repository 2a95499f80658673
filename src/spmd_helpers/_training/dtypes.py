"""Element types as arguments give them: a name, or a type of NumPy or JAX."""

from collections.abc import Collection
from typing import TYPE_CHECKING

from .._core.validate import close_name, or_words
from .._errors import NotUnderstood
from .._shardings.sharding import OTHER_TYPES, itemsize

if TYPE_CHECKING:
    from jax.typing import DTypeLike

# The types of floating-point numbers: the first ones are those that messages name.
USUAL = ("float32", "bfloat16", "float16", "float64", "float8_e4m3fn", "float8_e5m2")
FLOATS = (
    *USUAL,
    *("float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz", "float8_e4m3fnuz"),
    *("float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn"),
)


def type_name(dtype: "DTypeLike") -> str | None:
    """The name of an element type; None of what is none.

    >>> import numpy
    >>> type_name("bfloat16"), type_name(numpy.float32), type_name(16)
    ('bfloat16', 'float32', None)
    """
    if isinstance(dtype, str):
        return dtype
    name = getattr(dtype, "name", None)
    if isinstance(name, str):
        return name
    if any(dtype is one for one in (bool, int, float, complex)):  # of unsaid sizes
        return None
    if not isinstance(dtype, type) and not hasattr(dtype, "dtype"):
        return None
    import numpy

    try:
        return numpy.dtype(dtype).name
    except (TypeError, ValueError):
        return None


def type_bytes(dtype: "DTypeLike") -> int:
    """Bytes of one element of a type.

    Raises:
        NotUnderstood: it is none.
    """
    name = type_name(dtype)
    return itemsize(str(dtype) if name is None else name)


def float_name(
    dtype: "DTypeLike", key: str, what: str, others: Collection[str] = ()
) -> str:
    """The name of a type of floating-point numbers, or of one of `others`.

    Args:
        dtype: as it was given.
        key: the argument that it was given for.
        what: what to say of another type of numbers, such as an integer's.
        others: types beside those of floating-point numbers, by name.

    Raises:
        NotUnderstood: it is another type, or none; the message gives the choices.
    """
    name = type_name(dtype)
    if name in FLOATS or name in others:
        return str(name)
    choices = or_words(map(repr, (*USUAL, *others)))
    if name is not None and _is_type(name):
        raise NotUnderstood(f"{key}={name!r} {what}; give {choices}.")
    word = "" if name is None else name.lower()
    close = OTHER_TYPES.get(word) or close_name(word, (*FLOATS, *others), 0.8)
    known = close in FLOATS or close in others
    guess = f". Did you mean {close!r}? Give" if known else "; give"
    raise NotUnderstood(
        f"{key}={dtype!r} is not the name of an element type{guess} {choices}."
    )


def _is_type(name: str) -> bool:
    """Whether it is a type of numbers that are not floating-point numbers."""
    if "float" in name:
        return False
    try:
        return itemsize(name) > 0
    except NotUnderstood:
        return False
