"""The collectives of a compiled program, read from its HLO text."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from .._core.source_lines import place_name
from .._errors import MeshMismatch, NotUnderstood
from .dataflow import Place
from .device_classes import Classes
from .disguised import is_gathered, is_scattered
from .integers import trips
from .labels import phase, source
from .opcodes import enters
from .parser import Instruction, Module, Shape, dtype_word, shapes
from .replica_groups import (
    Groups,
    axes_of_groups,
    axes_of_pairs,
    parse_groups,
    parse_pairs,
)
from .ring import SHARE, sent
from .validate import check_cover, check_size, read_mesh_shape, read_module

if TYPE_CHECKING:
    from jax.sharding import AbstractMesh, Mesh

KINDS = tuple(SHARE)  # what a collective can be
_CUT, _LAID = "all-reduce + dynamic-slice", "dynamic-update-slice + all-reduce"
_Parts = list[tuple[Place, Instruction]]  # where one collective is printed


@dataclass(frozen=True)
class Collective:
    """One exchange between devices, in a compiled program.

    Attributes:
        kind: what it means: 'all-gather', 'all-reduce', 'reduce-scatter',
            'all-to-all', 'collective-permute', …
        axes: the mesh axes it goes over, in mesh order, never one of size 1. A part
            of an axis is written `name:(before)size`, as XLA writes it: of an axis
            'x' of size 8, 'x:(1)2' joins its halves, 'x:(4)2' joins neighbors.
            Empty where the groups follow no axis: see `groups`.
        count: executions in one call of the program, loops multiplied. None where
            a loop's trips are unknown.
        dtype: that of the communicated array; the CPU compiler uses float32 for
            bfloat16.
        operand_bytes: what one device puts in, for one execution. A combined
            (tuple) collective is one, its bytes summed.
        result_bytes: what one device gets out, for one execution.
        wire_bytes: what one device sends, for one execution, by the ring formulas
            (Patarasuk and Yuan, 2009): of V bytes, (n - 1)/n · V in a group of n,
            twice that for an all-reduce, V for a permute. It is that of the lowering:
            an all-reduce that a slice makes a reduce-scatter, or zeros an all-gather,
            sends what it always does.
        source: the line of the reader's own code, 'train.py:12'. None if unknown.
        phase: 'forward', 'backward', 'recompute', or None outside differentiation.
        lowered_as: how the compiler wrote it where that differs from `kind`: of a
            reduce-scatter 'all-reduce + dynamic-slice' or 'fusion', of an all-gather
            'dynamic-update-slice + all-reduce'. Otherwise None.
        upper_bound: it stands in a branch of a conditional, which may not be taken.
        groups: the positions in `mesh.devices.flat` that exchange with each other;
            of a collective-permute, the pairs (from, to).
        label: JAX's name for the operation that needs it, 'jit(step)/sort'; '' where
            the compiler gives none.
        instructions: the names under which the program's text prints it: one, or on
            TPU one for each fusion that it overlaps.
        alike: for each position in the mesh a number; devices with the same number
            surely put in equal values. Empty where that is not known, as by
            `read_hlo`.
    """

    kind: str
    axes: tuple[str, ...]
    count: int | None
    dtype: str
    operand_bytes: int
    result_bytes: int
    wire_bytes: int
    source: str | None
    phase: str | None
    lowered_as: str | None = None
    upper_bound: bool = False
    groups: Groups = field(default=(), repr=False)
    label: str = field(default="", repr=False, compare=False)
    instructions: tuple[str, ...] = field(default=(), repr=False, compare=False)
    alike: tuple[int, ...] = field(default=(), repr=False, compare=False)

    @property
    def total_wire_bytes(self) -> int | None:
        """`wire_bytes` × `count`; None where the count is unknown."""
        return None if self.count is None else self.wire_bytes * self.count


def read_hlo(
    text: str, mesh_shape: "Mesh | AbstractMesh | Mapping[str, int]"
) -> tuple[Collective, ...]:
    """The collectives of a compiled program, in program order.

        >>> text = '''
        ... HloModule jit_f, num_partitions=8
        ...
        ... ENTRY main {
        ...   p = f32[2,16] parameter(0)
        ...   ROOT r = f32[2,16] all-reduce(p), replica_groups=[2,4]<=[4,2]T(1,0)
        ... }
        ... '''
        >>> (c,) = read_hlo(text, {"data": 4, "model": 2})
        >>> c.kind, c.axes, c.count
        ('all-reduce', ('data',), 1)
        >>> c.wire_bytes  # 2 · (4 - 1)/4 of 2 · 16 floats of 4 bytes
        192

    Args:
        text: what `compiled.as_text()` gives, from CPU, GPU or TPU.
        mesh_shape: axis name → size, in mesh order; a Mesh does too.

    Returns:
        One `Collective` each. An asynchronous pair is one; groups of one device
        exchange nothing and are left out.

    Raises:
        NotUnderstood: the text is not a compiled program.
        MeshMismatch: the mesh has not as many devices as the program.

    Used from chapter 01 on, through `xray`.
    """
    try:
        return collectives_of(read_module(text), mesh_shape, place_name)
    except (MeshMismatch, NotUnderstood) as error:
        raise error.with_traceback(None) from None
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise NotUnderstood(
            "text begins as HLO but can't be read to its end: it is damaged, or of a "
            "form not known here; give compiled.as_text() as it is"
        ) from error


def collectives_of(
    module: Module,
    mesh_shape: "Mesh | AbstractMesh | Mapping[str, int]",
    named: Callable[[str, int], str],
    alike: Mapping[int, Classes] | None = None,
) -> tuple[Collective, ...]:
    """What `read_hlo` returns.

    Args:
        module: the parsed program.
        mesh_shape: axis name → size, in mesh order.
        named: gives the name of a (file, line).
        alike: id of an instruction → the classes of what devices put into it.
    """
    mesh = read_mesh_shape(mesh_shape)
    size = check_size(module, mesh)
    printed: list[tuple[_Parts, int | None, bool, Groups]] = []
    started: dict[tuple[str, int | None, str], dict[Place, _Parts]] = {}
    for place, i, count, upper_bound in _visit(module, Place(module.entry), 1, False):
        parts = [(place, i)]
        if _goes_on(parts, started):
            continue
        groups = _groups(i, size)
        if module.devices is None:
            check_cover(i, groups, mesh)
        if _moves(i, groups):
            printed.append((parts, count, upper_bound, groups))
    known = alike or {}
    return tuple(
        replace(
            _collective(module, parts, count, upper_bound, groups, mesh, named),
            alike=known.get(id(parts[0][1]), ()),
        )
        for parts, count, upper_bound, groups in printed
    )


def _visit(
    module: Module, place: Place, count: int | None, upper_bound: bool
) -> Iterator[tuple[Place, Instruction, int | None, bool]]:
    """Every collective as often as it is reached, with its count of executions."""
    for i in place.computation.instructions:
        if i.opcode.removesuffix("-start") in SHARE:
            yield place, i, count, upper_bound
            continue
        if i.opcode == "while":
            times = trips(module, place, i)
            turns = tests = None
            if count is not None and times is not None:
                turns, tests = count * times, count * (times + 1)
            inside = [(n, turns) for n in i.called("body")]
            inside += [(n, tests) for n in i.called("condition")]
        else:
            inside = [(n, count) for n in i.called(*enters(i.opcode))]
        inner = upper_bound or i.opcode == "conditional"
        for name, n in inside:
            if name in module.computations:
                yield from _visit(module, place.called(module, i, name), n, inner)


def _goes_on(
    parts: _Parts, started: dict[tuple[str, int | None, str], dict[Place, _Parts]]
) -> bool:
    """Whether this is one more part of an asynchronous collective that has started.

    TPU prints such a collective in each fusion that it overlaps: where it starts,
    then beside other work, in a loop too, then where it ends. They share a chain.
    What goes on is added to the parts of what has started.
    """
    ((place, i),) = parts
    chain = i.quoted("chain_id")
    if chain is None:
        return False
    outside = place.parent or place
    before = started.setdefault((i.opcode, i.number(r"channel_id=(\d+)"), chain), {})
    around: Place | None = outside
    while around is not None:
        if around in before:
            before[around] += parts
            return True
        around = around.parent
    before[outside] = parts
    return False


def _groups(i: Instruction, size: int) -> Groups:
    match = re.search(r"\b(replica_groups|source_target_pairs)=", i.rest)
    if match is None:
        return (tuple(range(size)),)
    value = i.rest[match.end() :]
    if match.group(1) == "source_target_pairs":
        return parse_pairs(value)
    try:
        return parse_groups(value, size)
    except ValueError as error:
        raise NotUnderstood(f"text: {error}, in the instruction {i.name!r}") from None


def _moves(i: Instruction, groups: Groups) -> bool:
    if "permute" in i.opcode:
        return any(source != target for source, target in groups)
    return any(len(group) > 1 for group in groups)


def _collective(
    module: Module,
    parts: _Parts,
    count: int | None,
    upper_bound: bool,
    groups: Groups,
    mesh: dict[str, int],
    named: Callable[[str, int], str],
) -> Collective:
    (place, i), end = parts[0], parts[-1]
    kind, lowered_as = i.opcode.removesuffix("-start"), None
    n = max(len(group) for group in groups)
    operands = [
        shape
        for name in i.operands
        if name in place.computation.by_name
        for shape in place.computation.by_name[name].shapes
    ]
    results = _results(place, i, len(operands))
    given, got = sum(s.nbytes for s in operands), sum(s.nbytes for s in results)
    put = given
    if kind == "all-reduce" and _scattered(module, place, i, groups):
        kind, got = "reduce-scatter", given // n
        fused = place.caller is not None and place.caller.opcode.startswith("fusion")
        lowered_as = "fusion" if fused else _CUT
    elif kind == "all-reduce" and is_gathered(module, place, i, groups):
        kind, given, lowered_as = "all-gather", got // n, _LAID
    lowered = "all-reduce" if lowered_as in (_CUT, _LAID) else kind
    permute = kind == "collective-permute"
    axes = axes_of_pairs(groups, mesh) if permute else axes_of_groups(groups, mesh)
    file_line = source(module, *end)  # what uses it stands where it ends
    return Collective(
        kind=kind,
        axes=axes or (),
        count=count,
        dtype=" + ".join(dict.fromkeys(dtype_word(s.dtype) for s in results)),
        operand_bytes=given,
        result_bytes=got,
        wire_bytes=sent(lowered, put, got, n),
        source=named(*file_line) if file_line else None,
        phase=phase(module, *end),
        lowered_as=lowered_as,
        upper_bound=upper_bound,
        groups=groups,
        label=i.quoted("op_name") or "",
        instructions=tuple(instruction.name for _, instruction in parts),
    )


def _scattered(module: Module, place: Place, i: Instruction, groups: Groups) -> bool:
    if place.computation.name.startswith("all-reduce-scatter"):
        return True  # what TPU calls the fusion that is one
    return is_scattered(module, place, i, groups)


def _results(place: Place, i: Instruction, operands: int) -> list[Shape]:
    """The arrays that come out. A `-start` prints its operands beside them."""
    if not i.opcode.endswith("-start"):
        return i.shapes
    for user in place.computation.users.get(i.name, []):
        if user.opcode.endswith("-done"):
            return user.shapes
    if not i.type.startswith("("):
        return i.shapes
    if i.type.startswith("(("):  # ((operands), results, …)
        return shapes(i.type)[operands : 2 * operands]
    return i.shapes if i.opcode == "all-reduce-start" else i.shapes[1:2]
