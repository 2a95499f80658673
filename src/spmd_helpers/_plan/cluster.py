"""The chips that a plan is for: how many, and where the devices of a mesh stand."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import product
from math import gcd, prod
from typing import Any

from .._errors import NotUnderstood, UnknownTopology
from .._gpu.topology import read_cluster
from .._hardware.chips import HARDWARE, Chip
from .._hardware.positions import Positions
from .._tpu.topology import directions_on, is_tpu, read_topology

# The axes of a mesh, the outermost first: what exchanges most stands inside a host.
ORDER = ("stage", "data", "fsdp", "expert", "context", "model")


@dataclass(frozen=True)
class Chips:
    """So many chips of one kind.

    Attributes:
        name: as `gpu_mesh` or `tpu_mesh` takes it.
        chip: what one has.
        devices: how many devices JAX sees.
        per_host: of GPUs, how many stand in a host.
        torus: of a TPU slice, the sizes of its directions.
    """

    name: str
    chip: Chip
    devices: int
    per_host: int
    torus: tuple[int, ...] = ()

    @property
    def hosts(self) -> int:
        """How many hosts of GPUs there are; 1 for a TPU slice."""
        return 1 if self.torus else -(-self.devices // self.per_host)

    def has_room(self, shape: Sequence[int]) -> bool:
        """Whether JAX makes such a mesh: on a TPU axes need directions of their own.

        And JAX's search has to find them in this order of the axes.

        Args:
            shape: sizes of the axes, the outermost first.
        """
        if not self.torus:
            return True
        return directions_on(self.torus, tuple(shape)) is not None

    def groups(self, shape: Sequence[int], axes: Sequence[int]) -> "list[Group]":
        """How the devices of the groups along some axes of a mesh stand.

        Groups that stand alike are one: of 3 hosts with 8 GPUs some groups of three
        neighbors are in one host, and others in two.

        Args:
            shape: sizes of the mesh's axes, the outermost first.
            axes: the places of the groups' axes in it.
        """
        return self.groups_at(self.standing(shape, axes))

    def standing(self, shape: Sequence[int], axes: Sequence[int]) -> "Standing":
        """What the groups of `groups` depend on; many meshes have it in common.

        Args:
            shape: sizes of the mesh's axes, the outermost first.
            axes: the places of the groups' axes in it.
        """
        if self.torus:
            places = directions_on(self.torus, tuple(shape))
            assert places is not None  # `has_room` was asked
            return tuple(sorted({d for a in axes for d in places[a]})), ()
        steps, moves = _steps(tuple(shape), self.per_host)
        inside = tuple([(steps[axis], shape[axis]) for axis in axes if shape[axis] > 1])
        return inside, tuple([move for axis, move in moves if axis not in axes])

    def groups_at(self, standing: "Standing") -> "list[Group]":
        """The groups that stand so."""
        here, others = standing
        if self.torus:
            return [Group((), self, here)]
        alike = _standing(here, _first(others, self.per_host), self.per_host)
        return [Group(one, self) for one in alike]


# Of GPUs, steps between a group's devices with how many there are of each, and the same
# of the axes along which the first device of a group moves in its host; of a TPU slice
# the directions of its torus.
Standing = tuple[tuple[Any, ...], tuple[tuple[int, int], ...]]


@lru_cache(maxsize=4096)
def _steps(
    shape: tuple[int, ...], per_host: int
) -> tuple[tuple[int, ...], tuple[tuple[int, tuple[int, int]], ...]]:
    """Steps between neighbors along each axis; which axes lead to another place.

    Of these the axis, its step within a host and how many steps there are: steps of
    full hosts lead to devices that stand alike.
    """
    steps = tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))
    moves = tuple(
        (axis, (step % per_host, min(size, per_host)))
        for axis, (step, size) in enumerate(zip(steps, shape, strict=True))
        if size > 1 and step % per_host
    )
    return steps, moves


@lru_cache(maxsize=4096)
def _first(others: tuple[tuple[int, int], ...], per_host: int) -> frozenset[int]:
    """Where the first device of a group can stand in its host.

    Args:
        others: steps along the axes that are not the group's, and their sizes.
        per_host: devices of a host.
    """
    first = {0}
    for step, size in others:
        first = {(one + n * step) % per_host for one in first for n in range(size)}
    return frozenset(first)


@lru_cache(maxsize=4096)
def _standing(
    inside: tuple[tuple[int, int], ...], first: frozenset[int], per_host: int
) -> tuple[tuple[int, ...], ...]:
    """Devices in each host, of each kind of group.

    Args:
        inside: steps between a group's devices, and how many there are of each.
        first: where the first device of a group can stand in its host.
        per_host: devices of a host.
    """
    devices, times = [0], 1
    for step, size in inside:
        # So many steps lead to the same place in another host. Where they divide the
        # axis, the others repeat what stands in these hosts, in hosts of their own.
        around = per_host // gcd(step, per_host)
        if size % around == 0:
            size, times = around, times * (size // around)
        devices = [d + n * step for d in devices for n in range(size)]
    counts = (Counter((d + one) // per_host for d in devices) for one in first)
    return tuple(sorted({tuple(sorted([*each.values()] * times)) for each in counts}))


@dataclass(frozen=True)
class Group:
    """Devices that exchange with each other.

    Attributes:
        per_host: of GPUs, how many of them each host has that has any.
        chips: the cluster.
        directions: of a TPU slice, the directions of its torus that they have.
    """

    per_host: tuple[int, ...]
    chips: Chips = field(compare=False)
    directions: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        """How many devices there are."""
        if self.per_host:
            return sum(self.per_host)
        return prod(self.chips.torus[one] for one in self.directions)

    @property
    def positions(self) -> Positions:
        """Where they stand, in order.

        On a TPU the slice's last chip follows them, from which its size is read.
        """
        name, torus = self.chips.chip.name, self.chips.torus
        if not torus:
            hosts = tuple(
                host for host, count in enumerate(self.per_host) for _ in range(count)
            )
            return Positions(name, hosts, hosts)
        sizes = [
            range(size) if number in self.directions else range(1)
            for number, size in enumerate(torus)
        ]
        coords = (*product(*sizes), tuple(size - 1 for size in torus))
        same = (0,) * len(coords)
        return Positions(name, same, same, coords)


def read_chips(topology: str) -> Chips:
    """Read the name of a cluster of GPUs or of a TPU slice.

    >>> read_chips("h100:2x8").devices, read_chips("v5p:4x4x4").torus
    (16, (4, 4, 4))

    Raises:
        UnknownTopology: no cluster and no slice has this name.
        NotUnderstood: no speeds of that card are known.
    """
    if is_tpu(topology):
        block = read_topology(topology)
        chip = HARDWARE[block.generation.kind]
        host = prod(block.host) * block.generation.devices_per_chip
        return Chips(block.name, chip, block.devices, host, block.torus)
    try:
        cluster = read_cluster(topology)
    except UnknownTopology as error:
        raise UnknownTopology(f"{error} A TPU slice is 'v5p:4x4x4'.") from None
    if cluster.card_name not in HARDWARE:
        cards = [name for name, one in HARDWARE.items() if one.kind == "gpu"]
        raise NotUnderstood(
            f"topology={topology!r}: HARDWARE has no speeds of {cluster.card_name}; "
            f"plan for the nearest of {', '.join(cards)}."
        )
    return Chips(
        cluster.name,
        HARDWARE[cluster.card_name],
        cluster.devices,
        cluster.per_host,
    )
