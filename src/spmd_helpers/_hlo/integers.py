"""The integers that a compiled program computes: loop counters, slice positions.

A small interpreter of scalar integer HLO. It serves two questions that the text
answers only by arithmetic: how often a loop runs (TPU texts print no trip count),
and which slice of an array each device takes (a reduce-scatter in disguise).
"""

import operator
from collections.abc import Callable
from dataclasses import dataclass

from .parser import Computation, Instruction, Module

# Instructions that pass a value on unchanged, as far as integers go.
_SAME = {
    "bitcast", "broadcast", "convert", "copy", "copy-done", "copy-start",
    "optimization-barrier", "reshape", "transpose",
}  # fmt: skip
_CALLS = {"call", "fusion", "fusion-start", "async-start"}
_DEEPEST = 100
_LONGEST_LOOP = 2**40


def _divide(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if a * b >= 0 else -1)


BINARY: dict[str, Callable[[int, int], int]] = {
    "add": operator.add, "subtract": operator.sub, "multiply": operator.mul,
    "divide": _divide, "remainder": lambda a, b: a - b * _divide(a, b),
    "minimum": min, "maximum": max, "and": operator.and_, "or": operator.or_,
    "xor": operator.xor, "shift-left": operator.lshift,
    "shift-right-logical": operator.rshift,
}  # fmt: skip
# Only orderings: with them a loop over a counter ends once and stays ended.
ORDER: dict[str, Callable[[int, int], bool]] = {
    "LT": operator.lt, "LE": operator.le, "GT": operator.gt, "GE": operator.ge,
}  # fmt: skip


class Unknown(Exception):
    """The value depends on data, or on something this interpreter cannot do."""


@dataclass(frozen=True, eq=False)
class Place:
    """A computation as it is reached: by which instruction, from which place."""

    computation: Computation
    caller: Instruction | None = None
    parent: "Place | None" = None

    def called(self, module: Module, caller: Instruction, name: str) -> "Place":
        if name not in module.computations:
            raise Unknown
        return Place(module.computations[name], caller, self)


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
        self.seen: dict[tuple[int, str], tuple[Place, int | tuple[int, ...]]] = {}

    def value(self, place: Place, name: str) -> int | tuple[int, ...]:
        """The value of an instruction: an int, or a tuple for a table of them."""
        key = (id(place), name)
        if key not in self.seen:
            self.depth += 1
            if self.depth > _DEEPEST:
                raise Unknown
            # The place is kept so that its id is not given to another one.
            self.seen[key] = place, self._value(place, self._find(place, name))
            self.depth -= 1
        return self.seen[key][1]

    def scalar(self, place: Place, name: str) -> int:
        value = self.value(place, name)
        if isinstance(value, tuple):
            if len(value) != 1:
                raise Unknown
            return value[0]
        return value

    def _find(self, place: Place, name: str) -> Instruction:
        found = place.computation.by_name.get(name)
        if found is None:
            raise Unknown
        return found

    def _value(self, place: Place, i: Instruction) -> int | tuple[int, ...]:
        if i.opcode == "constant":
            return integer_constant(i.inside)
        if i.opcode in ("partition-id", "replica-id"):
            if i.opcode != self.module.own_number:
                return 0  # there is one replica, or one partition
            if self.device is None:
                raise Unknown
            return self.device
        if i.opcode in _SAME:
            return self.value(place, i.operands[0])
        if i.opcode in BINARY:
            left, right = (self.scalar(place, name) for name in i.operands)
            if right == 0 and i.opcode in ("divide", "remainder"):
                raise Unknown
            if "shift" in i.opcode and not 0 <= right < 64:
                raise Unknown
            return BINARY[i.opcode](left, right)
        if i.opcode == "compare":
            order = (i.attribute("direction") or "")[:2]
            if order not in ORDER:
                raise Unknown
            return int(ORDER[order](*(self.scalar(place, n) for n in i.operands)))
        if i.opcode == "select":
            which = i.operands[1 if self.scalar(place, i.operands[0]) else 2]
            return self.value(place, which)
        if i.opcode == "clamp":
            low, middle, high = (self.scalar(place, name) for name in i.operands)
            return min(max(low, middle), high)
        if i.opcode == "dynamic-slice" and i.shapes[0].elements == 1:
            table, index = self.value(place, i.operands[0]), i.operands[1:]
            if isinstance(table, tuple) and len(index) == 1:
                at = self.scalar(place, index[0])
                return table[min(max(at, 0), len(table) - 1)]
        outer = place.caller
        if i.opcode == "parameter" and outer and outer.opcode in _CALLS:
            return self.value(place.parent, outer.operands[int(i.inside)])
        if i.opcode == "get-tuple-element":
            return self.element(place, i.operands[0], i.number(r"\bindex=(\d+)"))
        if i.opcode in _CALLS:
            inner = place.called(self.module, i, i.called("calls", "to_apply")[0])
            return self.value(inner, inner.computation.root.name)
        raise Unknown

    def element(self, place: Place, name: str, index: int) -> int | tuple[int, ...]:
        i = self._find(place, name)
        if i.opcode == "tuple":
            return self.value(place, i.operands[index])
        if i.opcode in ("copy", "optimization-barrier"):
            return self.element(place, i.operands[0], index)
        if i.opcode == "while" and passes_on(self.module, i, index):
            return self.element(place, i.operands[0], index)
        if i.opcode == "parameter" and place.caller and place.parent:
            caller = place.caller
            if caller.opcode in _CALLS:
                outer = caller.operands[int(i.inside)]
                return self.element(place.parent, outer, index)
            if (place.computation.name, index) in self.carried:
                return self.carried[place.computation.name, index]
            if caller.opcode == "while" and passes_on(self.module, caller, index):
                return self.element(place.parent, caller.operands[0], index)
        raise Unknown


def passes_on(module: Module, loop: Instruction, index: int) -> bool:
    """Whether the loop's body hands this element on as it got it."""
    body = module.computations.get(loop.called("body")[0])
    if body is None or body.root.opcode != "tuple":
        return False
    i = body.by_name.get(body.root.operands[index])
    while i is not None and i.opcode == "copy":
        i = body.by_name.get(i.operands[0])
    if i is None or i.opcode != "get-tuple-element":
        return False
    source = body.by_name.get(i.operands[0])
    same = i.number(r"\bindex=(\d+)") == index
    return same and source is not None and source.opcode == "parameter"


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
    except (Unknown, IndexError):
        return None


def _counted(module: Module, place: Place, loop: Instruction) -> int | None:
    test = place.called(module, loop, loop.called("condition")[0])
    body = place.called(module, loop, loop.called("body")[0])
    used = _elements_used(test.computation)
    counters = [n for n in used if not passes_on(module, loop, n)]
    if len(counters) != 1 or body.computation.root.opcode != "tuple":
        return None
    (index,) = counters

    def runs(value: int) -> bool:
        carried = {(test.computation.name, index): value}
        return bool(
            Reader(module, None, carried).scalar(test, test.computation.root.name)
        )

    def after(value: int) -> int:
        carried = {(body.computation.name, index): value}
        name = body.computation.root.operands[index]
        return Reader(module, None, carried).scalar(body, name)

    start = Reader(module).element(place, loop.operands[0], index)
    if isinstance(start, tuple):
        return None
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
    used, todo, seen = set(), [test.root.name], set()
    while todo:
        name = todo.pop()
        i = test.by_name.get(name)
        if i is None or name in seen:
            continue
        seen.add(name)
        if i.opcode == "get-tuple-element":
            used.add(i.number(r"\bindex=(\d+)"))
        todo += i.operands
    return used


def integer_constant(text: str) -> int | tuple[int, ...]:
    text = text.strip()
    words = {"true": 1, "false": 0}
    try:
        if text.startswith("{") and "{" not in text[1:]:
            parts = [part.strip() for part in text.strip("{}").split(",")]
            return tuple(words[p] if p in words else int(p) for p in parts)
        return words[text] if text in words else int(text)
    except ValueError:
        raise Unknown from None
