"""Where in the reader's own code a collective comes from, and in which phase."""

import re
from collections.abc import Callable, Iterator
from itertools import chain

from .._core.source_lines import is_foreign
from .dataflow import Place, handed_in
from .opcodes import base
from .parser import Instruction, Module

_UNLABELED = ("parameter", "tuple", "while")  # their labels are of something else
_NEAR = 4  # how many instructions away a label is still taken to belong


def _labels(module: Module, place: Place, i: Instruction) -> Iterator[Instruction]:
    """An instruction, what uses it, its operands, what calls it: who names it.

    Collectives that the compiler adds often carry no label of their own.
    """
    yield i
    named, users = place.computation.by_name, place.computation.users
    yield from _around(i, lambda near: _users(module, place, near))
    yield from _around(i, lambda near: [named[n] for n in near.operands if n in named])
    if place.parent and place.caller:
        yield from _labels(module, place.parent, place.caller)
    else:  # for want of a better one, of a loop that uses it, or from farther away
        yield from _around(i, lambda near: users.get(near.name, []), (), 2 * _NEAR)


def _users(module: Module, place: Place, i: Instruction) -> list[Instruction]:
    """What uses a value: of a fusion, which is labeled by its end, first what takes it.

    A table that is gathered, looked up in and made bfloat16 belongs to the lookup.
    """
    takers: list[Instruction] = []
    for user in place.computation.users.get(i.name, []):
        for n, operand in enumerate(user.operands):
            if operand == i.name and base(user.opcode) == "fusion":
                for where, parameter, _ in handed_in(module, place, user, n) or ():
                    takers += where.computation.users.get(parameter.name, [])
        takers.append(user)
    return takers


def _around(
    i: Instruction,
    step: Callable[[Instruction], list[Instruction]],
    unlabeled: tuple[str, ...] = _UNLABELED,
    steps: int = _NEAR,
) -> Iterator[Instruction]:
    near, visited = [i], {i.name}
    for _ in range(steps):
        neighbors = {
            neighbor.name: neighbor
            for instruction in near
            for neighbor in step(instruction)
            if neighbor.name not in visited and neighbor.opcode not in unlabeled
        }
        visited.update(neighbors)
        near = [*neighbors.values()]
        yield from near


def _applied(module: Module, i: Instruction) -> Iterator[Instruction]:
    """The addition (or maximum, …) of a reduction, which keeps its label longer."""
    for name in i.called("to_apply"):
        if name in module.computations:
            yield module.computations[name].root


def source(module: Module, place: Place, i: Instruction) -> tuple[str, int] | None:
    """The (file, line) of the reader's own code nearest to an instruction."""
    for instruction in chain([i], _applied(module, i), _labels(module, place, i)):
        for file, line in module.frames(instruction):
            if not is_foreign(file):
                return file, line
    return None


def phase(module: Module, place: Place, i: Instruction) -> str | None:
    """'forward', 'backward' or 'recompute', from the names that JAX gives."""
    for instruction in _labels(module, place, i):
        name = instruction.quoted("op_name") or ""
        if "/" not in name:
            continue  # no label, or only the name of an argument
        if re.search(r"\brematted_computation\b|/remat2$", name):
            return "recompute"
        if "transpose(" in name:
            return "backward"
        return "forward" if "jvp(" in name else None
    return None
