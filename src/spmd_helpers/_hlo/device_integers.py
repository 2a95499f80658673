"""Integers that a compiled program makes of the device's own number, on all devices.

Where `integers` evaluates backwards, for one device, what it is asked for, this
takes one step forward, for all. A known array is, for each device, an int if all its
elements are that, or a tuple of ints if it has one dimension.
"""

from collections.abc import Callable
from typing import Any

from .integers import BINARY, ORDER, Unknown, integer_constant
from .parser import Instruction, Shape

_KEPT = {"bitcast", "broadcast", "convert", "copy", "reshape", "transpose"}
_LONGEST = 4096  # more elements are no table of devices
_UNARY: dict[str, Callable[[int], int]] = {
    "abs": abs, "negate": lambda a: -a, "not": lambda a: ~a,
    "sign": lambda a: (a > 0) - (a < 0),
}  # fmt: skip
_ORDERS = {**ORDER, "EQ": lambda a, b: a == b, "NE": lambda a, b: a != b}


def constant(i: Instruction) -> Any:
    """An integer constant's value, None for any other."""
    shape = i.shapes[0] if i.shapes else None
    if shape is None or not _is_whole(shape) or len(i.inside) > 8 * _LONGEST:
        return None
    try:
        return _plain(integer_constant(i.inside))
    except Unknown:
        return None


def compute(i: Instruction, operands: list[tuple[Any, ...]]) -> tuple[Any, ...] | None:
    """What `i` makes on each device of operands that are known there, None if unknown.

    Args:
        i: the instruction.
        operands: for each operand, its value on each device.
    """
    step = _step(i)
    if step is None or not _is_whole(i.shapes[0]):
        return None
    shape, seen = i.shapes[0], {}
    try:
        for given in zip(*operands, strict=True):
            if given not in seen:
                seen[given] = _wrapped(_plain(step(*given)), shape)
    except (ArithmeticError, IndexError, TypeError, ValueError, Unknown):
        return None
    return tuple(seen[given] for given in zip(*operands, strict=True))


def _is_whole(shape: Shape) -> bool:
    return shape.dtype == "pred" or shape.dtype[:1] in ("s", "u")


def _plain(value: Any) -> Any:
    return value[0] if isinstance(value, tuple) and len(value) == 1 else value


def _step(i: Instruction) -> Callable[..., Any] | None:
    opcode, shape = i.opcode, i.shapes[0] if i.shapes else None
    if opcode in _KEPT:
        return lambda value: _kept(value, shape)
    if opcode in _UNARY:
        return lambda value: _each(_UNARY[opcode], value)
    if opcode in BINARY:
        return lambda *parts: _each(_safe(opcode), *parts)
    if opcode == "compare":
        order = _ORDERS.get((i.attribute("direction") or "")[:2])
        return order and (lambda *parts: _each(lambda a, b: int(order(a, b)), *parts))
    if opcode == "select":
        return lambda *parts: _each(lambda which, a, b: a if which else b, *parts)
    if opcode == "clamp":
        return lambda *parts: _each(lambda a, b, c: min(max(a, b), c), *parts)
    if opcode == "dynamic-slice" and shape.elements == 1:
        return _sliced
    return None


def _kept(value: Any, shape: Shape) -> Any:
    """A table stays one only as a row of its own length."""
    if isinstance(value, tuple) and shape.dims != (len(value),):
        raise Unknown
    return value


def _safe(opcode: str) -> Callable[[int, int], int]:
    if not opcode.startswith("shift"):
        return BINARY[opcode]

    def shift(value: int, by: int) -> int:
        if value < 0 or not 0 <= by < 64:
            raise Unknown
        return BINARY[opcode](value, by)

    return shift


def _each(f: Callable[..., int], *parts: Any) -> Any:
    lengths = {len(part) for part in parts if isinstance(part, tuple)}
    if not lengths:
        return f(*parts)
    (length,) = lengths  # a ValueError where they differ
    rows = [p if isinstance(p, tuple) else (p,) * length for p in parts]
    return tuple(f(*row) for row in zip(*rows, strict=True))


def _sliced(table: Any, *at: int) -> int:
    if not isinstance(table, tuple):
        return table
    (index,) = at
    return table[min(max(index, 0), len(table) - 1)]


def _wrapped(value: Any, shape: Shape) -> Any:
    """The value as the type holds it: modulo 2 to the number of its bits."""
    if shape.dtype == "pred":  # of a number, whether it is not 0; ~1 is -2
        return _each(lambda a: int(a not in (0, -2)), value)
    bits = int(shape.dtype[1:])
    low = -(1 << bits - 1) if shape.dtype[0] == "s" else 0
    return _each(lambda a: (a - low) % (1 << bits) + low, value)
