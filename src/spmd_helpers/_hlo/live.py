"""Which temporaries of a scheduled program are in memory at once, as its text has it.

An estimate: XLA's own plan of the memory is not in the text. What hands an array on
(a bitcast, a loop's state, an update in place) is taken to make no new one.
"""

from collections.abc import Iterator
from typing import NamedTuple

from .dataflow import Place
from .opcodes import Does, base, does
from .parser import Instruction, Module, Shape

_LEAST = 1024  # bytes; a smaller one is never among the largest


class Live(NamedTuple):
    """A temporary: where it is made, by which instruction, and what it is."""

    place: Place
    instruction: Instruction
    shape: Shape


Buffers = tuple[Live | None, ...]  # of each array of a value; None of an argument


def live_at_peak(module: Module, place: Place | None = None) -> list[Live]:
    """The temporaries of the moment at which they take the most memory.

    >>> from spmd_helpers._hlo.parser import parse
    >>> module = parse('''HloModule jit_f, is_scheduled=true
    ...
    ... ENTRY main {
    ...   x = f32[1024] parameter(0)
    ...   a = f32[1024] cosine(x)
    ...   b = f32[2048] concatenate(x, a)
    ...   c = f32[512] slice(b)
    ...   ROOT d = f32[512] sine(c)
    ... }''')
    >>> [live.instruction.name for live in live_at_peak(module)]
    ['a', 'b']
    """
    place = place or Place(module.entry)
    values, last = _values(module, place)
    instructions = place.computation.instructions
    uses: dict[int, list[Live]] = {}
    for value in values.values():
        for one in value:
            if one is not None and one.place is place:
                uses.setdefault(id(one), []).append(one)
    result = {id(one) for one in values.get(place.computation.root.name, ())}
    numbers = {i.name: number for number, i in enumerate(instructions)}
    alive = [
        (
            numbers[one.instruction.name],
            last.get(key, numbers[one.instruction.name]),
            one,
        )
        for key, (one, *_) in uses.items()
        if key not in result
    ]
    best: list[Live] = []
    for number, i in enumerate(instructions):
        now = [one for begin, end, one in alive if begin <= number <= end]
        now += _inside(module, place, i)
        if _total(now) > _total(best):
            best = now
    return best


def _total(buffers: list[Live]) -> int:
    return sum(one.shape.nbytes for one in buffers)


def _inside(module: Module, place: Place, i: Instruction) -> list[Live]:
    """What a loop, a branch or a call has in memory beside what goes in and out."""
    if does(i.opcode) not in (Does.LOOPS, Does.BRANCHES) and i.opcode != "call":
        return []
    inner = [live_at_peak(module, each) for each in place.entered(module, i)]
    return max(inner, key=_total, default=[])


def _values(module: Module, place: Place) -> tuple[dict[str, Buffers], dict[int, int]]:
    """The buffers of each value, and at which instruction each is used last."""
    values: dict[str, Buffers] = {}
    last: dict[int, int] = {}
    for number, i in enumerate(place.computation.instructions):
        operands = [values.get(name, ()) for name in i.operands]
        for one in (one for operand in operands for one in operand):
            if one is not None:
                last[id(one)] = number
        values[i.name] = tuple(_buffers(module, place, i, operands))
    return values, last


def _buffers(
    module: Module, place: Place, i: Instruction, operands: list[Buffers]
) -> Iterator[Live | None]:
    """A value's buffers: new ones, or those of what it hands on."""
    what, shapes = does(i.opcode), i.shapes
    first = operands[0] if operands else ()
    if i.opcode == "parameter" or what in (Does.CONSTANT, Does.ELSEWHERE):
        yield from [None] * len(shapes)
    elif what is Does.PACKED:
        for operand in operands:
            yield from operand
    elif what is Does.PICKED:
        single = len(first) > i.index and len(shapes) == 1
        yield from [first[i.index]] if single else first
    elif i.opcode.endswith(("-done", "-update")):
        yield from first[len(first) - len(shapes) :]
    elif what is Does.LOOPS or i.opcode in ("bitcast", "add-dependency"):
        yield from first
    elif (updated := _updated(module, place, i)) is not None:
        yield from operands[updated] if updated < len(operands) else ()
    else:
        # A start's value repeats its operands, and then has what it makes.
        kept = sum(map(len, operands))
        started = i.opcode != base(i.opcode) and len(shapes) > kept
        if started:
            for operand in operands:
                yield from operand
        for shape in shapes[kept if started else 0 :]:
            large = shape.nbytes >= _LEAST
            yield Live(place, i, shape) if large else None


def _updated(module: Module, place: Place, i: Instruction) -> int | None:
    """The number of the operand that an instruction writes over a part of."""
    if i.opcode == "dynamic-update-slice":
        return 0
    inner = place.entered(module, i) if i.opcode == "fusion" else []
    for each in inner:
        by_name = each.computation.by_name
        end: Instruction | None = each.computation.root
        while end is not None and end.opcode == "bitcast":
            end = by_name.get(end.operands[0])
        if end is None or end.opcode != "dynamic-update-slice":
            return None
        start = by_name.get(end.operands[0])
        while start is not None and start.opcode == "bitcast":
            start = by_name.get(start.operands[0])
        if start is not None and start.opcode == "parameter":
            return int(start.inside)
    return None
