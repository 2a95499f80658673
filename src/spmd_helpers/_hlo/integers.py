"""The integers that a compiled program computes: loop counters, slice positions.

A small interpreter of integer HLO. It serves questions that the text answers only by
arithmetic: how often a loop runs (TPU texts print no trip count), which slice of an
array each device takes (a reduce-scatter in disguise), which devices hold the same. An
array is known as an int if all its elements are that, or as a tuple of ints if it has
one dimension. `Reader` asks backwards for one value on one device; `compute` takes one
step forward, on all devices.
"""

import operator
from collections.abc import Callable

from . import opcodes
from .dataflow import Origin, Path, Place, back, passes_on
from .opcodes import does
from .parser import Computation, Instruction, Module, Shape

_DEEPEST = 100
_LONGEST = 4096  # more elements are no table of devices
_LONGEST_LOOP = 2**40
Number = int | tuple[int, ...]


def _divide(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if a * b >= 0 else -1)


def _shift(shifted: Callable[[int, int], int]) -> Callable[[int, int], int]:
    def shift(value: int, by: int) -> int:
        if value < 0 or not 0 <= by < 64:
            raise Unknown
        return shifted(value, by)

    return shift


_EACH: dict[str, Callable[..., int]] = {
    "add": operator.add, "subtract": operator.sub, "multiply": operator.mul,
    "divide": _divide, "remainder": lambda a, b: a - b * _divide(a, b),
    "minimum": min, "maximum": max, "and": operator.and_, "or": operator.or_,
    "xor": operator.xor, "shift-left": _shift(operator.lshift),
    "shift-right-logical": _shift(operator.rshift),
    "abs": abs, "negate": lambda a: -a, "not": lambda a: ~a,
    "sign": lambda a: (a > 0) - (a < 0),
    "select": lambda which, a, b: a if which else b,
    "clamp": lambda low, a, high: min(max(low, a), high),
}  # fmt: skip
# Only orderings: with them a loop over a counter ends once and stays ended.
_ORDERINGS: dict[str, Callable[[int, int], bool]] = {
    "LT": operator.lt, "LE": operator.le, "GT": operator.gt, "GE": operator.ge,
}  # fmt: skip
_COMPARISONS = {**_ORDERINGS, "EQ": operator.eq, "NE": operator.ne}


class Unknown(Exception):
    """The value depends on data, or on something this interpreter cannot do."""


# --- One step -------------------------------------------------------------------------


def constant(i: Instruction) -> Number | None:
    """An integer constant's value, None for any other."""
    shape = i.shapes[0] if i.shapes else None
    if shape is None or not _is_integer(shape) or len(i.inside) > 8 * _LONGEST:
        return None
    text, words = i.inside.strip(), {"true": 1, "false": 0}
    try:
        if text.startswith("{") and "{" not in text[1:]:
            parts = [part.strip() for part in text.strip("{}").split(",")]
            return _plain(tuple(words[p] if p in words else int(p) for p in parts))
        return words[text] if text in words else int(text)
    except ValueError:
        return None


def compute(
    i: Instruction, operands: list[tuple[Number, ...]]
) -> tuple[Number, ...] | None:
    """What `i` makes on each device of operands that are known there, None if unknown.

    Args:
        i: the instruction.
        operands: for each operand, its value on each device.
    """
    devices = list(zip(*operands, strict=True))
    results: dict[tuple[Number, ...], Number] = {}
    try:
        for given in devices:
            if given not in results:
                results[given] = _step(i, given)
    except Unknown:
        return None
    return tuple(results[given] for given in devices)


def _step(i: Instruction, operands: tuple[Number, ...]) -> Number:
    """What `i` makes of these integers on one device."""
    shape = i.shapes[0] if i.shapes else None
    if shape is None or not _is_integer(shape):
        raise Unknown
    try:
        return _wrapped(_plain(_evaluated(i, operands, shape)), shape)
    except (ArithmeticError, IndexError, TypeError, ValueError):
        raise Unknown from None


def _evaluated(i: Instruction, operands: tuple[Number, ...], shape: Shape) -> Number:
    if does(i.opcode) in opcodes.AS_INTEGERS:
        (value,) = operands
        if isinstance(value, tuple) and shape.dims != (len(value),):
            raise Unknown  # a table stays one only as a row of its own length
        return value
    if i.opcode in _EACH:
        return _each(_EACH[i.opcode], *operands)
    if i.opcode == "compare" and (order := _COMPARISONS.get(_direction(i))):
        return _each(lambda a, b: int(order(a, b)), *operands)
    if i.opcode == "dynamic-slice" and shape.elements == 1:
        return _sliced(*operands)
    raise Unknown


def _direction(i: Instruction) -> str:
    return (i.attribute("direction") or "")[:2]


def _is_integer(shape: Shape) -> bool:
    return shape.dtype == "pred" or shape.dtype[:1] in ("s", "u")


def _plain(value: Number) -> Number:
    return value[0] if isinstance(value, tuple) and len(value) == 1 else value


def _each(f: Callable[..., int], *parts: Number) -> Number:
    lengths = {len(part) for part in parts if isinstance(part, tuple)}
    if not lengths:
        return f(*parts)
    (length,) = lengths  # a ValueError where they differ
    rows = [p if isinstance(p, tuple) else (p,) * length for p in parts]
    return tuple(f(*row) for row in zip(*rows, strict=True))


def _sliced(table: Number, *at: Number) -> int:
    if not isinstance(table, tuple):
        return table
    (index,) = at
    if isinstance(index, tuple):
        raise Unknown
    return table[min(max(index, 0), len(table) - 1)]


def _wrapped(value: Number, shape: Shape) -> Number:
    """The value as the type holds it: modulo 2 to the number of its bits."""
    if shape.dtype == "pred":  # of a number, whether it is not 0; ~1 is -2
        return _each(lambda a: int(a not in (0, -2)), value)
    bits = int(shape.dtype[1:])
    low = -(1 << bits - 1) if shape.dtype[0] == "s" else 0
    return _each(lambda a: (a - low) % (1 << bits) + low, value)


# --- One value, on one device ---------------------------------------------------------


class Reader:
    """Evaluates instructions of one module for one device, None for any of them.

    `carried` fixes what a loop carries: {(body or condition name, index): value}.
    """

    def __init__(
        self,
        module: Module,
        device: int | None = None,
        carried: dict[tuple[str, int], int] | None = None,
    ) -> None:
        self.module, self.device, self.carried = module, device, carried or {}
        self.depth = 0
        self.known: dict[tuple[int, str, Path], tuple[Place, Number]] = {}

    def scalar(self, place: Place, name: str, path: Path = ()) -> int:
        value = self.value(place, name, path)
        if isinstance(value, tuple):
            raise Unknown
        return value

    def value(self, place: Place, name: str, path: Path = ()) -> Number:
        """The value of an instruction, or of an element of it."""
        key = (id(place), name, path)
        if key not in self.known:
            self.depth += 1
            if self.depth > _DEEPEST:
                raise Unknown
            # The place is kept so that its id is not given to another one.
            self.known[key] = place, self._value((place, name, path))
            self.depth -= 1
        return self.known[key][1]

    def _value(self, value: Origin) -> Number:
        for _ in range(_DEEPEST):
            place, name, path = value
            i = place.computation.by_name.get(name)
            carried = place.computation.name, *path
            if i is not None and i.opcode == "parameter" and carried in self.carried:
                return self.carried[carried]
            before = back(self.module, value, opcodes.AS_IT_IS)
            if before is None:
                break
            value = before
        if i is None or before is not None or path:
            raise Unknown
        return self._computed(place, i)

    def _computed(self, place: Place, i: Instruction) -> Number:
        if i.opcode == "constant":
            known = constant(i)
            if known is None:
                raise Unknown
            return known
        if i.opcode in ("partition-id", "replica-id"):
            if i.opcode != self.module.own_number:
                return 0  # there is one replica, or one partition
            if self.device is None:
                raise Unknown
            return self.device
        if i.opcode == "select":  # of the other one nothing need be known
            which = i.operands[1 if self.scalar(place, i.operands[0]) else 2]
            return self.value(place, which)
        if self.carried and i.opcode == "compare" and _direction(i) not in _ORDERINGS:
            raise Unknown
        return _step(i, tuple(self.value(place, name) for name in i.operands))


# --- How often a loop runs ------------------------------------------------------------


def trips(module: Module, place: Place, loop: Instruction) -> int | None:
    """How often a `while` runs its body, None where the text does not tell.

    CPU and GPU print `known_trip_count`. Otherwise the counter's start, its step
    and the condition are read, which must compare it with a constant.
    """
    known = loop.number(r'"known_trip_count":\{"n":"(\d+)"')
    if known is not None:
        return known
    try:
        return _counted(module, place, loop)
    except (Unknown, LookupError):
        return None


def _counted(module: Module, place: Place, loop: Instruction) -> int | None:
    test = place.called(module, loop, loop.called("condition")[0])
    body = place.called(module, loop, loop.called("body")[0])
    used = _elements_used(test.computation)
    counters = [n for n in used if not passes_on(module, loop, n)]
    if len(counters) != 1:
        return None
    (index,) = counters

    def runs(value: int) -> bool:
        carried = {(test.computation.name, index): value}
        return bool(
            Reader(module, None, carried).scalar(test, test.computation.root.name)
        )

    def after(value: int) -> int:
        carried = {(body.computation.name, index): value}
        name = body.computation.root.name
        return Reader(module, None, carried).scalar(body, name, (index,))

    start = Reader(module).scalar(place, loop.operands[0], (index,))
    step = after(start) - start
    if step == 0 or after(start + step) != start + 2 * step:
        return None
    if not runs(start):
        return 0
    low, high = 0, 1  # runs(start + low * step) holds
    while runs(start + high * step):
        low, high = high, 2 * high
        if high > _LONGEST_LOOP:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if runs(start + middle * step) else (low, middle)
    return high


def _elements_used(test: Computation) -> set[int]:
    """The elements of a loop's state that its condition depends on."""
    used: set[int] = set()
    visited: set[str] = set()
    todo = [test.root.name]
    while todo:
        name = todo.pop()
        i = test.by_name.get(name)
        if i is None or name in visited:
            continue
        visited.add(name)
        if i.opcode == "get-tuple-element":
            used.add(i.index)
        todo += i.operands
    return used
