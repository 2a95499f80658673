"""What becomes of a value in a compiled program, and where it comes from.

Both ways go through all that only hands it on: copies, changes of type or of shape,
tuples, fusions, calls, asynchronous pairs, the state of a loop. `opcodes` says what.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass

from . import opcodes
from .opcodes import Does, does
from .parser import Computation, Instruction, Module, Shape

_FARTHEST = 200  # how many steps back a value is followed
Path = tuple[int, ...]  # which element of a tuple, of tuples in it; () for all of it


@dataclass(frozen=True, eq=False)
class Place:
    """A computation as it is reached: by which instruction, from which place."""

    computation: Computation
    caller: Instruction | None = None
    parent: "Place | None" = None

    def called(self, module: Module, caller: Instruction, name: str) -> "Place":
        return Place(module.computations[name], caller, self)

    def entered(self, module: Module, caller: Instruction) -> list["Place"]:
        """The computations that an instruction runs, as it reaches them."""
        names = caller.called(*opcodes.enters(caller.opcode))
        return [
            self.called(module, caller, n) for n in names if n in module.computations
        ]

    @property
    def route(self) -> tuple[str, ...]:
        """Names that no other place has: the computation, and what called it."""
        if self.caller is None or self.parent is None:
            return (self.computation.name,)
        return (self.computation.name, self.caller.name, *self.parent.route)


Value = tuple[Place, Instruction, Path]
Origin = tuple[Place, str, Path]


@dataclass(frozen=True)
class Use:
    """An instruction that does something with a value.

    Attributes:
        place: the computation that it stands in, as it is reached.
        instruction: the instruction.
        operand: the number of the operand that the value is; None of the root with
            which the value goes out of the program, or of a loop's or a branch's end.
    """

    place: Place
    instruction: Instruction
    operand: int | None

    @property
    def shape(self) -> Shape:
        """The shape of the value as it is used here; not of one that goes out."""
        if self.operand is None:
            raise LookupError("a value that goes out of the program is no operand")
        name = self.instruction.operands[self.operand]
        return self.place.computation.by_name[name].shapes[0]


def places(module: Module) -> Iterator[Place]:
    """Every computation, as often as it is reached."""
    todo = [Place(module.entry)]
    while todo:
        place = todo.pop()
        yield place
        for i in place.computation.instructions:
            todo += place.entered(module, i)


def late(i: Instruction) -> bool:
    """Whether it brings operands to what has started without: all but its first.

    So TPU writes a lookup that runs beside other work.
    """
    return i.opcode.endswith("-update") and len(i.operands) > 1


def _operand(place: Place, call: Instruction, number: int) -> str | None:
    """What a call's parameter is given."""
    names = call.operands
    for user in [] if names else place.computation.users.get(call.name, []):
        if late(user):
            names = user.operands[1:]
    return names[number] if number < len(names) else None


# --- Forwards -------------------------------------------------------------------------


def uses(module: Module, start: Iterable[tuple[Place, Instruction]]) -> Iterator[Use]:
    """What is done with the value of instructions, where it is not handed on."""
    begin = [(place, i, ()) for place, i in start]
    return (use for use in follow(module, begin) if use.operand is not None)


def follow(
    module: Module,
    start: Iterable[Value],
    also: Callable[[Use], bool] = lambda use: False,
) -> Iterator[Use]:
    """What `uses` gives, and where the value goes out.

    Args:
        module: the program.
        start: what is followed.
        also: of a use, whether the value is taken to be handed on by it.
    """
    visited: set[tuple[tuple[str, ...], str, Path]] = set()
    todo = list(start)
    while todo:
        place, i, path = value = todo.pop()
        key = place.route, i.name, path
        if key in visited:
            continue
        visited.add(key)
        for step in _ahead(module, value):
            if not isinstance(step, Use):
                todo.append(step)
            elif step.operand is not None and also(step):
                todo.append((step.place, step.instruction, ()))
            else:
                yield step


def elements(
    module: Module, place: Place, holder: Instruction, n: int
) -> Iterator[tuple[Place, Instruction]]:
    """Where element n of a tuple is taken out of it again."""
    todo: list[Value] = [(place, holder, (n,))]
    while todo:
        for step in _ahead(module, todo.pop()):
            if isinstance(step, Use):
                continue
            where, i, path = step
            if path:
                todo.append(step)
            else:
                yield where, i


def _ahead(module: Module, value: Value) -> Iterator[Value | Use]:
    """Under which instructions a value goes on, and what uses it up."""
    place, i, path = value
    for user in place.computation.users.get(i.name, []):
        for n, name in enumerate(user.operands):
            if name == i.name:
                on = _handed_on(module, place, user, n, path)
                yield from [Use(place, user, n)] if on is None else on
    if i is place.computation.root:
        caller, parent = place.caller, place.parent
        if caller and parent and does(caller.opcode) is Does.CALLS:
            yield parent, caller, path
        else:
            yield Use(place, i, None)


def _handed_on(
    module: Module, place: Place, user: Instruction, n: int, path: Path
) -> list[Value] | None:
    """What `user` hands a value on as, its operand n; None if it is used up here."""
    what = does(user.opcode)
    if n and late(user):
        start = place.computation.by_name.get(user.operands[0])
        return handed_in(module, place, start, n - 1, path) if start else None
    if what in (opcodes.AS_IT_IS if path else opcodes.CARRIES):
        return [(place, user, path)] if n == 0 else None
    if what is Does.PACKED:
        return [(place, user, (n, *path))]
    if what is Does.PICKED:
        if path and path[0] != user.index:
            return []
        return [(place, user, path[1:])]
    return handed_in(module, place, user, n, path)


def handed_in(
    module: Module, place: Place, user: Instruction, n: int, path: Path = ()
) -> list[Value] | None:
    """The parameters that operand n is in what `user` runs; None if it is none."""
    what = does(user.opcode)
    if what not in (Does.CALLS, Does.LOOPS, Does.BRANCHES):
        return None
    inner = place.entered(module, user)
    if what is Does.BRANCHES:  # the first operand chooses
        if n == 0:
            return None
        inner, n = inner[n - 1 : n], 0
    return [(each, each.computation.parameters[n], path) for each in inner]


# --- Backwards ------------------------------------------------------------------------


def back(
    module: Module,
    value: Origin,
    through: Collection[Does] = opcodes.CARRIES,
) -> Origin | None:
    """One step back to what a value was handed on from; None if it is computed here.

    Args:
        module: the program.
        value: a place, a name in it, and which element.
        through: what counts as handing on an array; a tuple goes as it is.
    """
    place, name, path = value
    i = place.computation.by_name.get(name)
    if i is None:
        return None
    what = does(i.opcode)
    if what in (opcodes.AS_IT_IS if path else through):
        return place, i.operands[0], path
    if what is Does.PACKED and path:
        return place, i.operands[path[0]], path[1:]
    if what is Does.PICKED:
        return place, i.operands[0], (i.index, *path)
    if what is Does.CALLS:
        inner = place.entered(module, i)
        if len(inner) == 1:
            return inner[0], inner[0].computation.root.name, path
    if what is Does.LOOPS and path and passes_on(module, i, path[0]):
        return place, i.operands[0], path
    if i.opcode == "parameter" and place.caller and place.parent:
        caller = place.caller
        if does(caller.opcode) is Does.CALLS:
            outer = _operand(place.parent, caller, int(i.inside))
            return (place.parent, outer, path) if outer else None
        loops = does(caller.opcode) is Does.LOOPS
        if loops and path and passes_on(module, caller, path[0]):
            return place.parent, caller.operands[0], path
    return None


def origin(
    module: Module,
    place: Place,
    name: str,
    through: Collection[Does] = opcodes.CARRIES,
    path: Path = (),
) -> Origin:
    """Where a value is computed, back through all that hands it on."""
    value = place, name, path
    for _ in range(_FARTHEST):
        before = back(module, value, through)
        if before is None:
            break
        value = before
    return value


def parameter(module: Module, place: Place, name: str) -> int | None:
    """The number of the program's argument that a value is, or is a slice of."""
    for _ in range(_FARTHEST):
        place, name, path = origin(module, place, name)
        i = place.computation.by_name.get(name)
        if i is None or path:
            return None
        if i.opcode != "dynamic-slice":
            outside = place.parent is None and i.opcode == "parameter"
            return int(i.inside) if outside else None
        name = i.operands[0]
    return None


def passes_on(module: Module, loop: Instruction, index: int) -> bool:
    """Whether the loop's body hands this element on as it got it."""
    body = module.computations.get(loop.called("body")[0])
    if body is None:
        return False
    start = Place(body), body.root.name
    place, name, path = origin(module, *start, opcodes.AS_IT_IS, (index,))
    i = place.computation.by_name.get(name)
    if i is None or place.parent is not None:
        return False
    return i.opcode == "parameter" and path == (index,)
