"""All-reduces of which each device keeps only its own slice: reduce-scatters.

Compilers write a reduce-scatter in disguise: CPU as an all-reduce whose result
goes to nothing but a dynamic-slice at a place computed from the device's number,
TPU as the same two inside one fusion.
"""

from .integers import Place, Reader, Unknown
from .parser import Instruction, Module

# What the full result may pass through on its way to the slice.
_MOVES = {
    "bitcast", "convert", "copy", "reshape", "transpose", "get-tuple-element",
    "all-reduce-done",
}  # fmt: skip
_SCALED = {"multiply", "divide"}


def is_scattered(
    module: Module,
    place: Place,
    reduced: Instruction,
    groups: tuple[tuple[int, ...], ...],
) -> bool:
    """Whether every use of an all-reduce's result is one device's own slice.

    Within each group all devices must take different slices; a slice that differs
    only along some other mesh axis does not make a reduce-scatter.
    """
    todo: list[tuple[Place, Instruction, int | None]] = [(place, reduced, None)]
    slices = 0
    while todo:
        where, made, index = todo.pop()
        found = _uses(module, where, made, index)
        if found is None:
            return False
        for inner, user, how in found:
            if how == "passes":
                todo.append((inner, user, None))
            elif how == "slices" and _by_device(module, inner, user, groups):
                slices += 1
            elif isinstance(how, int):
                todo.append((inner, user, how))
            else:
                return False
    return slices > 0


def _uses(
    module: Module, place: Place, made: Instruction, index: int | None
) -> list[tuple[Place, Instruction, str | int]] | None:
    """What happens to a value, None if it leaves for where it can't be followed.

    `index` tells which element of a tuple the value is. Each use is a place, an
    instruction, and 'passes', 'slices', 'kept', or the index it gets in a tuple.
    """
    found: list[tuple[Place, Instruction, str | int]] = []
    for user in place.computation.users.get(made.name, []):
        if index is not None:
            if user.opcode == "get-tuple-element":
                if user.number(r"\bindex=(\d+)") == index:
                    found.append((place, user, "passes"))
                continue
            return None
        at = [n for n, name in enumerate(user.operands) if name == made.name]
        if user.opcode in _MOVES or _is_scaled(place, user, made):
            found.append((place, user, "passes"))
        elif user.opcode == "dynamic-slice" and at == [0]:
            found.append((place, user, "slices"))
        elif user.opcode == "tuple" and user.is_root:
            found += [(place, user, n) for n in at]
        elif user.opcode == "fusion":
            inner = place.called(module, user, user.called("calls")[0])
            parameters = inner.computation.parameters
            found += [(inner, parameters[n], "passes") for n in at]
        else:
            return None
    if made.is_root:
        if not place.parent or not place.caller or place.caller.opcode != "fusion":
            return None
        how: str | int = "passes" if index is None else index
        found.append((place.parent, place.caller, how))
    return found


def _is_scaled(place: Place, user: Instruction, made: Instruction) -> bool:
    """Whether `user` is `made` times, or over, one number."""
    others = [n for n in user.operands if n != made.name]
    if user.opcode not in _SCALED or len(others) != 1:
        return False
    other = place.computation.by_name.get(others[0])
    return other is not None and other.opcode in ("broadcast", "constant")


def _by_device(
    module: Module,
    place: Place,
    cut: Instruction,
    groups: tuple[tuple[int, ...], ...],
) -> bool:
    source = place.computation.by_name[cut.operands[0]].shapes[0]
    sizes = cut.shapes[0].dims
    indices = [
        name
        for name, size, full in zip(cut.operands[1:], sizes, source.dims, strict=True)
        if size < full
    ]
    try:
        for group in groups:
            taken = set()
            for device in group:
                reader = Reader(module, device)
                taken.add(tuple(reader.scalar(place, name) for name in indices))
            if len(taken) < len(group):
                return False
    except (Unknown, IndexError, KeyError):
        return False
    return bool(indices)
