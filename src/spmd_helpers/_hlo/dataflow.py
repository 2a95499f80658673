"""What becomes of a value in a compiled program, and where it comes from.

Both ways go through all that only hands it on: copies, changes of type or of shape,
fusions, the state of a loop.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from .integers import Place, passes_on
from .parser import Instruction, Module, Shape

_PASSES = {
    "bitcast", "bitcast-convert", "convert", "copy", "copy-start",
    "optimization-barrier", "reshape", "transpose",
}  # fmt: skip
_HELD = {"copy", "optimization-barrier"}  # what passes a whole tuple on
CALLS = {"async-start", "call", "fusion", "fusion-start"}
_DEEPEST = 40


@dataclass(frozen=True)
class Use:
    """An instruction that does something with a value.

    Attributes:
        place: the computation that it stands in, as it is reached.
        instruction: the instruction.
        operand: the number of the operand that the value is.
    """

    place: Place
    instruction: Instruction
    operand: int

    @property
    def held(self) -> Shape:
        """The shape of the value as it is used here."""
        name = self.instruction.operands[self.operand]
        return self.place.computation.by_name[name].shapes[0]


def places(module: Module) -> Iterator[Place]:
    """Every computation, as often as it is reached."""
    todo = [Place(module.entry)]
    while todo:
        place = todo.pop()
        yield place
        for i in place.computation.instructions:
            for name in _entered(i):
                if name in module.computations:
                    todo.append(place.called(module, i, name))


def _entered(i: Instruction) -> list[str]:
    if i.opcode == "while":
        return i.called("condition", "body")
    if i.opcode == "conditional":
        keys = ("branch_computations", "true_computation", "false_computation")
        return i.called(*keys)
    if i.opcode in CALLS:
        return i.called("calls", "to_apply", "called_computations")
    return []


def _passes(i: Instruction) -> bool:
    """Whether an instruction's value is that of its first operand."""
    return i.opcode in _PASSES or i.opcode.endswith(("-done", "-update"))


def uses(module: Module, start: Iterable[tuple[Place, Instruction]]) -> Iterator[Use]:
    """What is done with the value of instructions, where it is not handed on."""
    seen: set[tuple[str, str]] = set()
    todo = [(place, i, 0) for place, i in start]
    while todo:
        place, i, depth = todo.pop()
        key = (place.computation.name, i.name)
        if key in seen or depth > _DEEPEST:
            continue
        seen.add(key)
        for user in place.computation.users.get(i.name, []):
            for n, name in enumerate(user.operands):
                if name != i.name:
                    continue
                on = _handed_on(module, place, user, n)
                if on is None:
                    yield Use(place, user, n)
                else:
                    todo += [(where, what, depth + 1) for where, what in on]
        caller, parent = place.caller, place.parent
        if i is place.computation.root and caller is not None and parent is not None:
            todo += [(parent, caller, depth + 1)] * (caller.opcode in CALLS)


def _handed_on(
    module: Module, place: Place, user: Instruction, n: int
) -> list[tuple[Place, Instruction]] | None:
    """Under which instructions the value goes on; None if it is used up here."""
    if _passes(user):
        return [(place, user)]
    if user.opcode in CALLS:
        found = []
        for name in _entered(user):
            if name in module.computations:
                inner = place.called(module, user, name)
                taken = inner.computation.parameters.get(n)
                found += [(inner, taken)] if taken is not None else []
        return found
    if user.opcode == "tuple":
        return list(elements(module, place, user, n))
    return None


def elements(
    module: Module, place: Place, holder: Instruction, n: int
) -> Iterator[tuple[Place, Instruction]]:
    """Where element n of a tuple is taken out of it again."""
    for user in place.computation.users.get(holder.name, []):
        if user.opcode == "get-tuple-element":
            if user.number(r"\bindex=(\d+)") == n:
                yield place, user
        elif user.opcode in _HELD or user.opcode.endswith("-done"):
            yield from elements(module, place, user, n)
        for k, name in enumerate(_entered(user)):
            if name not in module.computations:
                continue
            inner = place.called(module, user, name)
            for number in _parameters(user, k, holder.name):
                taken = inner.computation.parameters.get(number)
                if taken is not None:
                    yield from elements(module, inner, taken, n)
    caller, parent = place.caller, place.parent
    if holder is not place.computation.root or caller is None or parent is None:
        return
    if caller.opcode in CALLS:  # a fusion that makes several arrays
        yield from elements(module, parent, caller, n)


def _parameters(user: Instruction, k: int, name: str) -> list[int]:
    """Which parameters of the k-th computation that it enters an operand is."""
    numbers = [n for n, operand in enumerate(user.operands) if operand == name]
    if user.opcode == "while":
        return [0]
    if user.opcode == "conditional":  # the first operand chooses the branch
        return [0] if k + 1 in numbers else []
    return numbers


def parameter(module: Module, place: Place, name: str) -> int | None:
    """The number of the program's argument that a value is, handed on only."""
    for _ in range(_DEEPEST):
        i = place.computation.by_name.get(name)
        if i is None:
            return None
        if i.opcode == "parameter":
            caller = place.caller
            if caller is None or place.parent is None:
                return int(i.inside)
            if caller.opcode not in CALLS:
                return None
            place, name = place.parent, caller.operands[int(i.inside)]
        elif _passes(i) or i.opcode == "dynamic-slice":
            name = i.operands[0]
        elif i.opcode in CALLS:
            inner = [n for n in _entered(i) if n in module.computations]
            if len(inner) != 1:
                return None
            place = place.called(module, i, inner[0])
            name = place.computation.root.name
        elif i.opcode == "get-tuple-element":
            found = _source_of(module, place, i)
            if found is None:
                return None
            place, name = found
        else:
            return None
    return None


def _source_of(
    module: Module, place: Place, taken: Instruction
) -> tuple[Place, str] | None:
    """What lies in a tuple that an element is taken out of."""
    index = taken.number(r"\bindex=(\d+)")
    name = taken.operands[0]
    for _ in range(_DEEPEST):
        holder = place.computation.by_name.get(name)
        if holder is None or index is None:
            return None
        if holder.opcode == "tuple":
            return place, holder.operands[index]
        caller, parent = place.caller, place.parent
        passed = holder.opcode == "while" and passes_on(module, holder, index)
        if passed or holder.opcode in _HELD or holder.opcode.endswith("-done"):
            name = holder.operands[0]
        elif holder.opcode in CALLS:
            inner = [n for n in _entered(holder) if n in module.computations]
            if len(inner) != 1:
                return None
            place = place.called(module, holder, inner[0])
            name = place.computation.root.name
        elif holder.opcode != "parameter" or caller is None or parent is None:
            return None
        elif caller.opcode in CALLS:
            place, name = parent, caller.operands[int(holder.inside)]
        elif caller.opcode == "while" and passes_on(module, caller, index):
            place, name = parent, caller.operands[0]
        else:
            return None
    return None
