"""All-reduces that are something else: reduce-scatters and all-gathers in disguise.

CPU's compiler writes a reduce-scatter as an all-reduce whose result goes to nothing but
a dynamic-slice at a place computed from the device's number, TPU's as the same two
inside one fusion. TPU's compiler writes a small all-gather so: each device lays its
part into zeros of the full size, at a place computed from its number, and the sum is
the full array.
"""

from collections.abc import Collection, Iterable, Iterator

from . import opcodes
from .dataflow import Place, Use, follow, origin
from .integers import Reader, Unknown
from .opcodes import Does, does
from .parser import Instruction, Module
from .replica_groups import Groups

_SCALED = {"multiply", "divide"}
_ZERO = {"0", "false"}


def is_scattered(
    module: Module, place: Place, reduced: Instruction, groups: Groups
) -> bool:
    """Whether every use of an all-reduce's result is one device's own slice.

    Within each group all devices must take different slices; a slice that differs
    only along some other mesh axis does not make a reduce-scatter.
    """
    slices = 0
    for use in follow(module, [(place, reduced, ())], _is_scaled):
        if use.instruction.opcode != "dynamic-slice" or use.operand != 0:
            return False
        if not _takes_own_slice(module, use, groups):
            return False
        slices += 1
    return slices > 0


def _is_scaled(use: Use) -> bool:
    """Whether a value is only multiplied, or divided, by one number."""
    i, named = use.instruction, use.place.computation.by_name
    others = [name for n, name in enumerate(i.operands) if n != use.operand]
    if i.opcode not in _SCALED or len(others) != 1 or others[0] not in named:
        return False
    return does(named[others[0]].opcode) is Does.REPEATED or (
        named[others[0]].opcode == "constant"
    )


def _takes_own_slice(module: Module, use: Use, groups: Groups) -> bool:
    cut = use.instruction
    sizes = zip(cut.operands[1:], cut.shapes[0].dims, use.shape.dims, strict=True)
    indices = [name for name, size, full in sizes if size < full]
    try:
        starts = list(_starts(module, use.place, indices, groups))
    except (Unknown, LookupError):
        return False
    return bool(indices) and _differ(starts)


def _starts(
    module: Module, place: Place, indices: Iterable[str], groups: Groups
) -> Iterator[list[tuple[int, ...]]]:
    """Where each device of a group begins, for each group."""
    for group in groups:
        readers = [Reader(module, device) for device in group]
        yield [tuple(r.scalar(place, name) for name in indices) for r in readers]


def _differ(starts: list[list[tuple[int, ...]]]) -> bool:
    """Whether in each group no two devices begin at the same place."""
    return all(len({*group}) == len(group) for group in starts)


def is_gathered(
    module: Module, place: Place, reduced: Instruction, groups: Groups
) -> bool:
    """Whether an all-reduce only brings parts together: all that it sums are zeros.

    Within each group the parts must lie side by side and cover the full array.
    """
    applied = [module.computations.get(name) for name in reduced.called("to_apply")]
    if not all(c and c.root.opcode in ("add", "or") for c in applied):
        return False
    # -0 is a zero as long as nobody reads its bits as another type's.
    ways = ((opcodes.AS_NUMBERS, {*_ZERO, "-0"}), (opcodes.CARRIES, _ZERO))
    try:
        return all(
            any(_lays_own_part(module, place, name, groups, *way) for way in ways)
            for name in reduced.operands
        )
    except (Unknown, LookupError):
        return False


def _lays_own_part(
    module: Module,
    place: Place,
    name: str,
    groups: Groups,
    through: Collection[Does],
    zero: Collection[str],
) -> bool:
    place, laid = _maker(module, place, name, through)
    if laid.opcode != "dynamic-update-slice":
        return False
    base, part, *at = laid.operands
    filled = _maker(module, place, base, {*through, Does.REPEATED})[1]
    if filled.opcode != "constant" or filled.inside.strip() not in zero:
        return False
    full, own = laid.shapes[0], place.computation.by_name[part].shapes[0]
    if any(own.elements * len(group) != full.elements for group in groups):
        return False
    cut = [n for n, size in enumerate(own.dims) if size < full.dims[n]]
    starts = list(_starts(module, place, [at[n] for n in cut], groups))
    sizes = [own.dims[n] for n in cut]
    aligned = all(
        start % size == 0
        for group in starts
        for device in group
        for start, size in zip(device, sizes, strict=True)
    )
    return aligned and _differ(starts)


def _maker(
    module: Module, place: Place, name: str, through: Collection[Does]
) -> tuple[Place, Instruction]:
    """The instruction that computes an array, back through what hands it on."""
    place, name, path = origin(module, place, name, through)
    if path:
        raise Unknown
    return place, place.computation.by_name[name]
