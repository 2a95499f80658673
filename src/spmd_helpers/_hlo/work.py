"""How much matrix work each device does, and how much of it is done more than once."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import prod

from . import device_classes as classes
from .dataflow import Place
from .device_classes import Classes
from .parser import Instruction, Module
from .replication import Walk

_ALL = 0.99  # the share of the FLOPs from which an axis counts as idle
_EQUAL = 0.01  # figures this close, as shares of the greater, are the same


@dataclass(frozen=True)
class Repeated:
    """A matrix product that devices repeat.

    Attributes:
        flops: of one device in one call, a loop of unknown length taken as one trip.
        place, instruction: where it stands in the program.
    """

    flops: int
    place: Place
    instruction: Instruction


@dataclass(frozen=True)
class Work:
    """The matrix work of one call of a compiled program.

    Work is repeated where devices multiply the same values; which values are the same
    is known from the arguments' shardings and from every exchange on the way. What
    devices repeat at different times, or only in part, or as padding, is not counted.

    Attributes:
        flops: of one device: 2 for each multiply-add of the matrix products and
            convolutions (see flops), loops multiplied; of a conditional, the
            branch with the most. None where a loop that holds any runs an unknown
            number of times, or a kernel doesn't state its cost.
        upper_bound: part of it stands in a conditional whose branches differ.
        redundancy: devices × flops / the FLOPs of all different products: 1.0 if
            nothing is repeated, 2.0 if all is done twice. None where there are no
            products, or where it depends on an unknown number of trips.
        idle_axes: the mesh axes along which at least 99 % of the FLOPs are repeated,
            in mesh order: they cut no work.
        redundant_over: axis → the share of the FLOPs, from 0 to 1, that is repeated
            along it, in mesh order, where there is any. With unknown numbers of
            trips, the least that it can be.
        repeated: axis → the products that are repeated along it, most FLOPs first.
        pieces: which of the different pieces of the product with the most FLOPs the
            device at each position of the mesh computes, numbered from 0; () where
            there are no products.
        exchanged: id of a collective's instruction → the classes of what devices put
            into it.
    """

    flops: int | None
    upper_bound: bool = False
    redundancy: float | None = None
    idle_axes: tuple[str, ...] = ()
    redundant_over: Mapping[str, float] = field(default_factory=dict)
    repeated: Mapping[str, tuple[Repeated, ...]] = field(
        default_factory=dict, repr=False, compare=False
    )
    pieces: Classes = field(default=(), repr=False, compare=False)
    exchanged: Mapping[int, Classes] = field(
        default_factory=dict, repr=False, compare=False
    )


def work(
    module: Module,
    mesh: Mapping[str, int],
    varying: Mapping[int, frozenset[str]] | None = None,
) -> Work:
    """Count the FLOPs of a program, and find those that devices repeat.

        >>> from spmd_helpers._hlo.parser import parse
        >>> module = parse('''HloModule jit_f, num_partitions=8
        ...
        ... ENTRY main {
        ...   x = f32[6,10] parameter(0)
        ...   w = f32[10,4] parameter(1)
        ...   ROOT y = f32[6,4] dot(x, w), lhs_contracting_dims={1}, \
rhs_contracting_dims={0}
        ... }''')
        >>> by_rows, everywhere = frozenset({"data"}), frozenset()
        >>> done = work(module, {"data": 4, "model": 2}, {0: by_rows, 1: everywhere})
        >>> done.flops  # 2 · 6 · 10 · 4
        480
        >>> done.redundancy, done.idle_axes  # 8 · 480 / (4 · 480)
        (2.0, ('model',))

    Args:
        module: the parsed program.
        mesh: axis name → size, in mesh order; {} for one device.
        varying: argument of the entry computation → the mesh axes along which its
            devices hold different values. Of an argument that isn't named, the
            printed sharding is taken; if there is none, that it differs everywhere.

    Returns:
        The `Work` of one call.
    """
    mesh = dict(mesh)
    walk = _walk(module, mesh, varying)
    tally = walk.tally
    parts: dict[tuple[str, ...], Counter[Classes]] = {}
    for (of_devices, loops), flops in tally.flops.items():
        parts.setdefault(loops, Counter())[of_devices] += flops
    parts = {loops: part for loops, part in parts.items() if part.total()}
    known = not tally.partial and all(not loops for loops in parts)
    total = sum(part.total() for part in parts.values())
    shares = {
        axis: min((_repeated(part, mesh, axis) for part in parts.values()), default=0)
        for axis, size in mesh.items()
        if size > 1
    }
    return Work(
        flops=total if known else None,
        upper_bound=tally.upper_bound,
        redundancy=_redundancy(parts.values(), prod(mesh.values())),
        idle_axes=tuple(axis for axis, share in shares.items() if share >= _ALL),
        redundant_over={axis: share for axis, share in shares.items() if share > 0},
        repeated={
            axis: _repeated_products(walk, mesh, axis)
            for axis, share in shares.items()
            if share > 0
        },
        pieces=_largest(parts.values()),
        exchanged={number: value.classes for number, value in walk.exchanged.items()},
    )


def _repeated_products(
    walk: Walk, mesh: dict[str, int], axis: str
) -> tuple[Repeated, ...]:
    flops: Counter[int] = Counter()
    for (of_devices, number), each in walk.tally.products.items():
        if not classes.varies(of_devices, mesh, axis):
            flops[number] += each
    return tuple(
        Repeated(each, *walk.multiplied[number])
        for number, each in flops.most_common()
        if each
    )


def _walk(
    module: Module,
    mesh: dict[str, int],
    varying: Mapping[int, frozenset[str]] | None,
) -> Walk:
    arguments = {n: classes.along(mesh, axes) for n, axes in (varying or {}).items()}
    return Walk(module, prod(mesh.values()), arguments)


def _repeated(part: Counter[Classes], mesh: dict[str, int], axis: str) -> float:
    again = sum(
        flops
        for of_devices, flops in part.items()
        if not classes.varies(of_devices, mesh, axis)
    )
    return again / part.total()


def _redundancy(parts: Iterable[Counter[Classes]], devices: int) -> float | None:
    """Of all parts together, if they agree: their weights may be unknown."""
    parts = list(parts)
    each = [devices * part.total() / _useful(part) for part in parts]
    if not each or max(each) - min(each) > _EQUAL * max(each):
        return None
    together = sum(parts, Counter())
    return devices * together.total() / _useful(together)


def _largest(parts: Iterable[Counter[Classes]]) -> Classes:
    """The classes of devices with the most FLOPs."""
    flops = [(each, classes) for part in parts for classes, each in part.items()]
    return max(flops, default=(0, ()))[1]


def _useful(part: Counter[Classes]) -> int:
    """The FLOPs of all different products: one for each class of devices."""
    return sum(flops * (max(numbers) + 1) for numbers, flops in part.items())
