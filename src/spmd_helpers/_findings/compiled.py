"""Mistakes that show in the text of a compiled program."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from .._core.words import bytes_words
from .._hlo.dataflow import (
    Place,
    Use,
    back,
    elements,
    origin,
    parameter,
    uses,
)
from .._hlo.integers import trips
from .._hlo.labels import source
from .._hlo.opcodes import base
from .._hlo.parser import Instruction, Module, Shape, dtype_word
from .._hlo.replica_groups import axes_of_groups, parse_groups
from .._shardings.cuts import array_words, spec_words
from .evidence import Evidence, Leaf
from .finding import SMALL_BYTES, Finding, Named, axes_words, few_paths
from .shardings import cuts

# A lookup may be served by gathering the table, or by exchanging the rows that are
# looked up. The table must be so many times the rows before it is reported: below, the
# two cost about the same, and the compiler chooses by them.
_TABLE = 2
_FARTHEST = 20


@dataclass(frozen=True)
class Gathered:
    """One array of an all-gather.

    Attributes:
        place: the computation it stands in; carriers: the instructions that have its
            value.
        instruction, operand: the all-gather, and what it gathers.
        shape: of the result; dimension: the one that is put together.
        axes, devices: over which mesh axes, and how many devices a group has.
    """

    place: Place
    carriers: tuple[tuple[Place, Instruction], ...]
    instruction: Instruction
    operand: str
    shape: Shape
    dimension: int
    axes: tuple[str, ...]
    devices: int


def gathers_of(evidence: Evidence) -> list[Gathered]:
    """Every array that an all-gather of the program makes."""
    arrays = []
    for place, i in evidence.exchanges:
        if base(i.opcode) != "all-gather":
            continue
        groups = _groups(i, evidence)
        dimension = i.number(r"\bdimensions=\{(\d+)\}")
        devices = max(map(len, groups))
        if devices < 2 or dimension is None:
            continue
        axes = axes_of_groups(groups, dict(evidence.mesh_shape)) or ()
        holder = i
        if i.opcode.endswith("-start"):
            ends = place.computation.users.get(i.name, [])
            holder = next((u for u in ends if u.opcode.endswith("-done")), i)
        for n, (operand, shape) in enumerate(
            zip(i.operands, holder.shapes, strict=False)
        ):
            carriers = [(place, holder)]
            if len(holder.shapes) > 1:
                carriers = list(elements(evidence.module, place, holder, n))
            where = place, tuple(carriers), i, operand
            arrays.append(Gathered(*where, shape, dimension, axes, devices))
    return arrays


def _groups(i: Instruction, evidence: Evidence) -> tuple[tuple[int, ...], ...]:
    size = prod(evidence.mesh_shape.values())
    match = re.search(r"\breplica_groups=", i.rest)
    if match is None:
        return (tuple(range(size)),)
    return parse_groups(i.rest[match.end() :], size)


# --- A stack gathered for its slices -------------------------------------------------


def stacks(
    evidence: Evidence, gathers: list[Gathered], named: Named
) -> Iterator[Finding]:
    """`gathered-stack`: all layers are gathered, and a loop takes one at a time."""
    by_array: dict[str, list[Gathered]] = {}
    for each in gathers:
        layers = each.shape.dims[each.dimension]
        if layers < 2 or each.shape.nbytes < SMALL_BYTES:
            continue
        if any(
            _is_turn(evidence.module, use, each)
            for use in uses(evidence.module, each.carriers)
        ):
            by_array.setdefault(array_of(evidence, each), []).append(each)
    if not by_array:
        return
    every = [each for group in by_array.values() for each in group]
    first = max(every, key=lambda each: each.shape.nbytes)
    size = sum(group[0].shape.nbytes for group in by_array.values())
    axes = dict.fromkeys(axis_name(a) for each in every for a in each.axes)
    inside = _turns(evidence, first.place)
    when = (
        "before the loop" if inside == 1 else f"in each of {inside or 'its'} iterations"
    )
    yield Finding(
        "gathered-stack",
        f"{few_paths(by_array)}: sharded over {axes_words(axes)} along the dimension "
        "that a loop slices, one slice per iteration, so all "
        f"{first.shape.dims[first.dimension]} slices are gathered {when}: "
        f"{bytes_words(size)} per device.",
        "Shard another dimension of the stack, such as "
        f"{_moved_words(evidence, first)}: then each iteration gathers only its own "
        "layer.",
        "10_fsdp",
        source_of(evidence, first, named),
    )


def _is_turn(module: Module, use: Use, each: Gathered) -> bool:
    """Whether a use takes one slice, along the gathered dimension, in a loop."""
    i = use.instruction
    if i.opcode != "dynamic-slice" or use.operand or _loop(use.place) is None:
        return False
    dims = use.shape.dims
    sizes = tuple(int(n) for n in re.findall(r"\d+", _sizes(i)))
    layers = each.shape.dims[each.dimension]
    if dims == each.shape.dims:
        return sizes[each.dimension] == 1 and _counts(module, use, each.dimension)
    return any(
        (size, part) == (layers, 1) and _counts(module, use, n)
        for n, (size, part) in enumerate(zip(dims, sizes, strict=True))
    )


def _sizes(i: Instruction) -> str:
    value = i.attribute("dynamic_slice_sizes") or "{}"
    return value[: value.index("}")]


def _counts(module: Module, use: Use, dimension: int) -> bool:
    """Whether a slice starts where the loop's counter says, and not where data do."""
    name = use.instruction.operands[1 + dimension]
    todo, counts = [(use.place, name, 0)], False
    while todo:
        place, name, depth = todo.pop()
        i = place.computation.by_name.get(name)
        if i is None or depth > _FARTHEST or any(shape.dims for shape in i.shapes):
            return False  # computed from more than a few single numbers
        outer = back(module, (place, name, ()))
        if i.opcode == "parameter" and outer is not None:
            todo.append((outer[0], outer[1], depth + 1))
        elif i.opcode == "get-tuple-element":
            counts = True
        elif i.opcode != "constant":
            todo += [(place, operand, depth + 1) for operand in i.operands]
    return counts


def _loop(place: Place | None) -> Place | None:
    """The body of the loop that a place is in, or that itself is."""
    while place is not None:
        if place.caller is not None and place.caller.opcode == "while":
            return place
        place = place.parent
    return None


def _turns(evidence: Evidence, place: Place | None) -> int | None:
    """How often a place is reached in one call; None if unknown."""
    times = 1
    while (body := _loop(place)) is not None:
        if body.parent is None or body.caller is None:
            return None
        each = trips(evidence.module, body.parent, body.caller)
        if each is None:
            return None
        times *= each
        place = body.parent
    return times


def _moved_words(evidence: Evidence, each: Gathered) -> str:
    """A spec with the gathered axes on another dimension, and all others kept."""
    leaf = leaf_of(evidence, each)
    axes = tuple(dict.fromkeys(map(axis_name, each.axes)))
    now = cuts(leaf, evidence) if leaf is not None else None
    if leaf is None or now is None or len(leaf.shape) < 2:
        return spec_words(((), axes))
    rest = [tuple(axis for axis in part if axis not in axes) for part in now]
    others = [n for n, part in enumerate(now) if not set(part) & set(axes)]

    def parts(n: int) -> int:
        return prod(evidence.mesh_shape[axis] for axis in (*rest[n], *axes))

    fitting = [n for n in others if leaf.shape[n] % parts(n) == 0]
    to = next((n for n in fitting if n), next(iter(fitting or others), 1))
    rest[to] = (*rest[to], *axes)
    return spec_words(tuple(rest))


def array_of(evidence: Evidence, each: Gathered) -> str:
    """What the reader calls what is gathered: "params['w'] (float32[8, 64])"."""
    leaf = leaf_of(evidence, each)
    if leaf is not None:
        return f"{leaf.path} ({array_words(leaf.shape, leaf.dtype)})"
    return f"an array {array_words(each.shape.dims, dtype_word(each.shape.dtype))}"


def leaf_of(evidence: Evidence, each: Gathered) -> Leaf | None:
    """The argument that is gathered, or a slice of it; None if it is computed."""
    number = parameter(evidence.module, each.place, each.operand)
    used = [leaf for leaf in evidence.inputs if leaf.sharding_info is not None]
    return used[number] if number is not None and number < len(used) else None


def axis_name(axis: str) -> str:
    """'data', also of a part of it, which is written 'data:(2)2'."""
    return axis.partition(":")[0]


def source_of(evidence: Evidence, each: Gathered, named: Named) -> str | None:
    place, i = each.carriers[0] if each.carriers else (each.place, each.instruction)
    line = source(evidence.module, each.place, each.instruction)
    line = line or source(evidence.module, place, i)
    return named(*line) if line else None


# --- A table gathered for a lookup ----------------------------------------------------


def tables(
    evidence: Evidence, gathers: list[Gathered], named: Named
) -> Iterator[Finding]:
    """`gathered-embedding`: a table is gathered, and few of its rows are taken."""
    for each in gathers:
        size = each.shape.nbytes
        taken = list(uses(evidence.module, each.carriers))
        if size < SMALL_BYTES or not taken or not all(map(_is_lookup, taken)):
            continue
        rows = sum(shape.nbytes for use in taken for shape in use.instruction.shapes)
        if size >= _TABLE * rows * each.devices:
            yield _table(evidence, each, rows, named)


def _is_lookup(use: Use) -> bool:
    """Whether a use takes some rows, once."""
    i = use.instruction
    if use.operand or i.opcode not in ("gather", "dynamic-slice"):
        return False
    label = (i.quoted("op_name") or "").rpartition("/")[2]
    return label in ("gather", "dynamic_slice") and _loop(use.place) is None


def _table(evidence: Evidence, each: Gathered, rows: int, named: Named) -> Finding:
    return Finding(
        "gathered-embedding",
        f"{array_of(evidence, each)} is all-gathered over {axes_words(each.axes)}, "
        f"{bytes_words(each.shape.nbytes)} per device, to look up {bytes_words(rows)} "
        "of it.",
        "Keep the table sharded, so that only the looked-up rows are communicated: "
        f"shard its features, {_moved_words(evidence, each)}, or shard its rows and "
        "don't request it replicated.",
        "11_two_dimensions",
        source_of(evidence, each, named),
    )


# --- A loop that waits for all devices before each turn -------------------------------


def conditions(evidence: Evidence, named: Named) -> Iterator[Finding]:
    """`loop-collective`: a collective in the condition of a while loop."""
    loops: dict[str, tuple[str, tuple[str, ...], str | None]] = {}
    for place, i in evidence.exchanges:
        loop = _condition(place)
        # One that the reader wrote, in a shard_map, is meant.
        if loop is None or "shard_map" in (i.quoted("op_name") or ""):
            continue
        groups = _groups(i, evidence) if "permute" not in i.opcode else ()
        if max(map(len, groups), default=2) < 2:
            continue
        axes = axes_of_groups(groups, dict(evidence.mesh_shape)) or ()
        line = source(evidence.module, place, i)
        loops.setdefault(loop, (base(i.opcode), axes, named(*line) if line else None))
    for kind, axes, where in loops.values():
        what = f"an {kind}" if kind.startswith("a") else f"a {kind}"
        yield Finding(
            "loop-collective",
            f"The condition of a while loop needs {what} over {axes_words(axes)}: "
            "before each iteration all devices synchronize, and all run as many "
            "iterations as the slowest needs.",
            "If the rows are independent, put the loop in jax.shard_map, where each "
            "device tests its own; otherwise test only every few iterations.",
            "05_three_modes",
            where,
        )


def _condition(place: Place | None) -> str | None:
    """The name of the loop in whose condition a place is."""
    while place is not None:
        caller = place.caller
        if caller and place.computation.name in caller.called("condition"):
            return caller.name
        place = place.parent
    return None


# --- Gradients that are summed over the devices in every turn of a loop ---------------


def accumulated(evidence: Evidence, named: Named) -> Iterator[Finding]:
    """`gradients-each-iteration`: a loop all-reduces the gradients that it adds up."""
    loops: dict[str, list[tuple[Place, Instruction]]] = {}
    for place, i in evidence.exchanges:
        body = _loop(place)
        kind = base(i.opcode)
        if body is None or body.caller is None or kind != "all-reduce":
            continue
        if "transpose(" not in (i.quoted("op_name") or ""):
            continue
        if sum(shape.nbytes for shape in i.shapes) < SMALL_BYTES:
            continue
        if (_turns(evidence, place) or 0) > 1 and _is_added(evidence.module, place, i):
            loops.setdefault(body.caller.name, []).append((place, i))
    for group in loops.values():
        place, i = max(group, key=lambda pair: sum(s.nbytes for s in pair[1].shapes))
        axes = axes_of_groups(_groups(i, evidence), dict(evidence.mesh_shape)) or ()
        size = sum(shape.nbytes for _, each in group for shape in each.shapes)
        line = source(evidence.module, place, i)
        axis = repr(axis_name(axes[0])) if len(axes) == 1 else repr(tuple(axes))
        turns = _turns(evidence, place)
        yield Finding(
            "gradients-each-iteration",
            f"A loop adds up gradients and sums them over {axes_words(axes)} in each "
            f"of its {turns} iterations, {bytes_words(size)} each time: once after "
            "the loop is enough.",
            "Put the loop in jax.shard_map: differentiate with respect to "
            f"jax.lax.pcast(params, {axis}, to='varying'), add up each device's own "
            f"gradients, and after the loop take jax.lax.psum(grads, {axis}), or the "
            "pmean of a mean.",
            "13_training_loop",
            named(*line) if line else None,
        )


def _is_added(module: Module, place: Place, i: Instruction) -> bool:
    """Whether what comes out is added to what the loop carries."""
    holders: list[list[tuple[Place, Instruction]]] = [[(place, i)]]
    if len(i.shapes) > 1:
        numbers = range(len(i.shapes))
        holders = [[*elements(module, place, i, n)] for n in numbers]
    return any(
        use.instruction.opcode == "add"
        and use.operand is not None
        and _is_carried(module, use)
        for carriers in holders
        for use in uses(module, carriers)
    )


def _is_carried(module: Module, use: Use) -> bool:
    """Whether the other operand of an addition is a total that begins at zero.

    What goes back through a residual connection is added to what the loop carries too.
    """
    other = use.instruction.operands[1 - (use.operand or 0)]
    place, name, path = origin(module, use.place, other)
    i = place.computation.by_name.get(name)
    loop = _loop(use.place)
    if i is None or loop is None or i.opcode != "parameter" or len(path) != 1:
        return False
    if place.computation is not loop.computation or loop.parent is None:
        return False
    start = loop.caller.operands[0] if loop.caller else ""
    return _is_zero(module, *origin(module, loop.parent, start, path=path)[:2])


def _is_zero(module: Module, place: Place, name: str) -> bool:
    for _ in range(_FARTHEST):
        place, name, _path = origin(module, place, name)
        i = place.computation.by_name.get(name)
        if i is None or i.opcode != "broadcast":
            break
        name = i.operands[0]
    else:
        return False
    zeros = re.fullmatch(r"\{?[\s{},0.\-]*\}?", i.inside) if i is not None else None
    return i is not None and i.opcode == "constant" and zeros is not None
