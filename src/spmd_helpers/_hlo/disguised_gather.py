"""All-reduces in which each device puts only its own part: all-gathers.

The TPU compiler writes a small all-gather so: each device lays its part into zeros
of the whole size, at a place computed from its number, and the sum is the whole.
"""

from .integers import Place, Reader, Unknown
from .parser import Instruction, Module

# What passes an array on, as far as zeros and places go.
_MOVES = {
    "bitcast", "convert", "copy", "copy-done", "copy-start", "reshape", "transpose",
}  # fmt: skip
_ZERO = {"0", "-0", "false"}
_FARTHEST = 20  # how many instructions back a part is looked for


def is_gathered(
    module: Module,
    place: Place,
    reduced: Instruction,
    groups: tuple[tuple[int, ...], ...],
) -> bool:
    """Whether an all-reduce only brings parts together: all that it sums are zeros.

    Within each group the parts must lie side by side and make up the whole.
    """
    try:
        return _adds(module, reduced) and all(
            _lays_own_part(module, *_origin(module, place, name), groups)
            for name in reduced.operands
        )
    except (Unknown, IndexError, KeyError):
        return False


def _adds(module: Module, reduced: Instruction) -> bool:
    applied = [module.computations[name] for name in reduced.called("to_apply")]
    return all(c.root.opcode in ("add", "or") for c in applied)


def _origin(module: Module, place: Place, name: str) -> tuple[Place, Instruction]:
    """Where an array was made, back through what only passes it on."""
    for _ in range(_FARTHEST):
        i = place.computation.by_name[name]
        if i.opcode in _MOVES:
            name = i.operands[0]
        elif i.opcode == "fusion":
            place = place.called(module, i, i.called("calls")[0])
            name = place.computation.root.name
        elif i.opcode == "parameter" and place.caller and place.parent:
            if place.caller.opcode != "fusion":
                break
            name = place.caller.operands[int(i.inside)]
            place = place.parent
        else:
            return place, i
    raise Unknown


def _lays_own_part(
    module: Module,
    place: Place,
    laid: Instruction,
    groups: tuple[tuple[int, ...], ...],
) -> bool:
    if laid.opcode != "dynamic-update-slice":
        return False
    base, part, *at = laid.operands
    where, filled = _origin(module, place, base)
    if filled.opcode == "broadcast":
        _, filled = _origin(module, where, filled.operands[0])
    if filled.opcode != "constant" or filled.inside.strip() not in _ZERO:
        return False
    whole, own = laid.shapes[0], place.computation.by_name[part].shapes[0]
    cut = [n for n, size in enumerate(own.dims) if size < whole.dims[n]]
    for group in groups:
        if own.elements * len(group) != whole.elements:
            return False
        taken = set()
        for device in group:
            reader = Reader(module, device)
            starts = [reader.scalar(place, at[n]) for n in cut]
            if any(s % own.dims[n] for s, n in zip(starts, cut, strict=True)):
                return False
            taken.add(tuple(starts))
        if len(taken) < len(group):
            return False
    return True
