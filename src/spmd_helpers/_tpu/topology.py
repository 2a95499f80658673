"""The names of TPU slices, and which meshes fit the directions of one."""

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from .._core.validate import close_name
from .._core.words import count_words, join_words
from .._errors import UnknownTopology


@dataclass(frozen=True)
class Generation:
    """What the compiler calls one kind of TPU chip, and how such chips are wired.

    Attributes:
        kind: the name in HARDWARE.
        compiler_name: the name that libtpu takes.
        dims: 2 where a chip has neighbors in two directions, 3 where in three.
        devices_per_chip: JAX devices. The two cores of a v4 or v5p chip are one.
        pod_chips: chips in the largest block there is.
        options: what libtpu needs beside the name.
        cores: by which Google's slice names count: "v5p-8" are 8 cores, 4 chips.
        other_names: spellings that people try.
    """

    kind: str
    compiler_name: str
    dims: int
    devices_per_chip: int
    pod_chips: int
    cores: int
    options: tuple[tuple[str, str], ...] = ()
    other_names: tuple[str, ...] = ()


# Pods: docs.cloud.google.com/tpu/docs/v4, v5e, v5p, v6e, tpu7x (November 2026).
# Without "megacore" libtpu gives a v4 chip two devices, which Cloud TPU does not.
GENERATIONS = {
    one.kind: one
    for one in (
        Generation("v4", "v4", 3, 1, 4096, 2, (("chip_config_name", "megacore"),)),
        Generation("v5e", "v5e", 2, 1, 256, 1, (), ("v5litepod", "v5lite")),
        Generation("v5p", "v5p", 3, 1, 8960, 2, (), ("v5",)),
        Generation("v6e", "v6e", 2, 1, 256, 1, (), ("trillium", "v6")),
        Generation(
            "7x", "tpu7x", 3, 2, 9216, 2, (), ("tpu7x", "v7x", "ironwood", "v7", "tpu7")
        ),
    )
}
_BY_NAME = {
    name: one
    for one in GENERATIONS.values()
    for name in (one.kind, one.compiler_name, *one.other_names)
}
# The chips of one host stand 2 by 2; small blocks have smaller hosts.
_HOST = 2


@dataclass(frozen=True)
class Topology:
    """A block of TPU chips.

    Attributes:
        generation: the kind of chip.
        chips: how many of them stand in each direction: (4, 4, 4).
    """

    generation: Generation
    chips: tuple[int, ...]

    @property
    def name(self) -> str:
        """As `tpu_mesh` takes it: 'v5p:4x4x4'."""
        return f"{self.generation.kind}:{'x'.join(map(str, self.chips))}"

    @property
    def compiler_name(self) -> str:
        """As libtpu takes it: 'tpu7x:2x2x1'."""
        return f"{self.generation.compiler_name}:{'x'.join(map(str, self.chips))}"

    @property
    def devices(self) -> int:
        """How many devices JAX sees."""
        return prod(self.chips) * self.generation.devices_per_chip

    @property
    def host(self) -> tuple[int, int, int]:
        """Chips of one host in each direction."""
        x, y = (min(_HOST, size) for size in self.chips[:2])
        return x, y, 1

    @property
    def torus(self) -> tuple[int, ...]:
        """The directions of the links: the chips', and last the devices of one chip."""
        sizes: tuple[int, ...] = (*self.chips, 1)[:3]
        cores = self.generation.devices_per_chip
        return (*sizes, cores) if cores > 1 else sizes


def read_topology(name: str, argument: str = "topology") -> Topology:
    """Read the name of a block of TPU chips.

    >>> read_topology("v5p:4x4x4").devices          # a chip is one device
    64
    >>> read_topology("7x:2x2x1").devices           # two devices a chip
    8

    Args:
        name: kind of chip, colon, chips in each direction: two numbers for v5e and
            v6e, three for v4, v5p and 7x.
        argument: what it was given for, as a refusal says it.

    Raises:
        UnknownTopology: there is no such kind, or no such block of it.
    """
    if not isinstance(name, str):
        raise UnknownTopology(f"{argument}={name!r} is not a name. {_HOW}")
    given = f"{argument}={name!r}"
    kind, sizes = _kind_and_sizes(name)
    generation = _BY_NAME.get(kind)
    if generation is None:
        close = close_name(kind, _BY_NAME)
        guess = f" Did you mean {_BY_NAME[close].kind!r}?" if close else ""
        raise UnknownTopology(f"{given} is no kind of TPU.{guess} {_HOW}")
    if sizes.startswith("-"):
        raise UnknownTopology(_slice_name(given, generation, int(sizes[1:])))
    if not re.fullmatch(r":\d{1,4}(x\d{1,4})*", sizes):
        raise UnknownTopology(f"{given} does not say its chips. {_HOW}")
    chips = tuple(int(size) for size in sizes[1:].split("x"))
    problem = _problem(generation, chips)
    if problem:
        raise UnknownTopology(
            f"{given}: {problem}. Write for example "
            f"{_examples(generation, prod(chips))}."
        )
    return Topology(generation, chips)


def is_tpu(name: object) -> bool:
    """Whether a name begins as those of TPU slices do, whatever follows.

    >>> is_tpu("v5p:4x4x4"), is_tpu("v5p-128"), is_tpu("h100:8")
    (True, True, False)
    """
    return isinstance(name, str) and _kind_and_sizes(name)[0] in _BY_NAME


_HOW = (
    "Write the kind of chip and how many stand in each direction, as in 'v5e:4x8' or "
    f"'v5p:4x4x4'; the kinds are {join_words(list(GENERATIONS))}."
)


def _kind_and_sizes(name: str) -> tuple[str, str]:
    """("v5p", ":4x4x4") or, of a slice's name, ("v5p", "-128")."""
    written = name.strip().lower()
    match = re.fullmatch(r"([^:-]*)(:.*|-\d{1,6})?", written)
    return (match[1], match[2] or "") if match else (written, "")


def _slice_name(given: str, generation: Generation, count: int) -> str:
    """The sentence for "v5p-128", which says how many and not how they stand."""
    chips = max(1, count // generation.cores)
    cores = count_words(count, "core")
    counted = f"counts {cores} and" if generation.cores > 1 else "is a size and"
    return (
        f"{given} {counted} does not say how the chips stand: write for "
        f"example {_examples(generation, chips)}."
    )


def _examples(generation: Generation, chips: int) -> str:
    near = near_topologies(generation, chips)
    return " or ".join(repr(topology.name) for topology in near)


def _problem(generation: Generation, chips: tuple[int, ...]) -> str:
    kind, dims = generation.kind, generation.dims
    if len(chips) != dims:
        return f"chips of {kind} stand in {dims} directions, and {len(chips)} are given"
    if 0 in chips:
        return "no chips in one direction"
    odd = [size for size in chips[:2] if size > 1 and size % _HOST]
    if odd:
        return (
            f"the chips of one host stand {_HOST} by {_HOST}, so {odd[0]} chips in one "
            "of the first two directions are no whole number of hosts"
        )
    if prod(chips) > generation.pod_chips:
        return (
            f"{prod(chips)} chips, and the largest {kind} pod has "
            f"{generation.pod_chips}"
        )
    return ""


def near_topologies(generation: Generation, chips: int) -> list[Topology]:
    """Up to three usual blocks that have about as many chips, the nearest first."""
    usual = usual_blocks(generation)
    usual.sort(key=lambda block: (abs(prod(block) - chips), prod(block), block))
    nearest = [block for block in usual if prod(block) == chips][:3] or usual[:2]
    return [Topology(generation, block) for block in nearest]


def usual_blocks(generation: Generation) -> list[tuple[int, ...]]:
    """The blocks that Google's pages list: even, as square as their size allows."""
    if generation.dims == 2:
        pairs = itertools.combinations_with_replacement((2, 4, 8, 16), 2)
        return [(1, 1), *(pair for pair in pairs if pair[1] <= 2 * pair[0])]
    cubes = itertools.combinations_with_replacement((4, 8, 12, 16, 20, 24), 3)
    small = [(2, 2, 1), (2, 2, 2), (2, 2, 4), (2, 4, 4)]
    return [
        *small,
        *(c for c in cubes if c[2] <= 2 * c[0] and prod(c) <= generation.pod_chips),
    ]


def lies_on(torus: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Whether JAX finds full directions of the torus for each axis of a mesh.

    An axis then uses all the links of its directions, and shares none with another
    axis. This is JAX's rule (`jax.experimental.mesh_utils.create_device_mesh`), and
    its order of choice: the last axis first, with as many directions as will do.

    >>> lies_on((4, 4, 4), (16, 4)), lies_on((4, 4, 4), (8, 8))   # 16 = 4·4; 8 = ?
    (True, False)
    >>> lies_on((2, 2, 4), (2, 2, 4))         # the 4 takes the two twos: none is left
    False

    In another order of the axes there may be directions for all: `order_on`.

    Args:
        torus: sizes of the directions.
        shape: sizes of the mesh's axes; the product is the torus's.
    """
    return directions_on(torus, shape) is not None


def directions_on(
    torus: tuple[int, ...], shape: tuple[int, ...]
) -> tuple[tuple[int, ...], ...] | None:
    """The directions of the torus that each axis of a mesh has, or None if it can't.

    >>> directions_on((4, 4, 4), (16, 4)), directions_on((4, 4, 4), (8, 8))
    (((1, 2), (0,)), None)
    """
    free, axes = list(range(len(torus))), []
    for size in reversed(shape):
        taken = _directions(torus, free, size)
        if taken is None:
            return None
        axes.append(taken)
        free = [direction for direction in free if direction not in taken]
    return tuple(axes[::-1])


def order_on(torus: tuple[int, ...], shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """The nearest order of a mesh's axes in which JAX finds directions for each.

    >>> order_on((2, 2, 4), (2, 2, 4))    # as (2, 4, 2) each axis has its own
    (0, 2, 1)
    >>> order_on((4, 4, 4), (8, 8)), order_on((4, 4, 4), (16, 4))
    (None, (0, 1))

    Returns:
        The places of the axes in the shape that was given, or None if there is no such
        order.
    """
    # An axis of one device takes none, wherever it stands.
    axes = [place for place, size in enumerate(shape) if size > 1]
    alone = [place for place, size in enumerate(shape) if size == 1]
    for order in itertools.permutations(axes):
        if lies_on(torus, tuple(shape[place] for place in order)):
            return order if not alone else tuple([*order, *alone])
    return None


def _directions(
    torus: tuple[int, ...], free: list[int], size: int
) -> tuple[int, ...] | None:
    for count in range(len(free), 0, -1):
        for chosen in itertools.combinations(free, count):
            if prod(torus[direction] for direction in chosen) == size:
                return chosen
    return () if size == 1 else None


def shapes_on(torus: tuple[int, ...], axes: int) -> list[tuple[int, ...]]:
    """The meshes with so many axes that fit a torus, the evenest first.

    >>> shapes_on((4, 4, 4), 2)
    [(4, 16), (16, 4), (1, 64), (64, 1)]
    >>> shapes_on((8, 8, 1), 2)
    [(8, 8), (1, 64), (64, 1)]
    """
    shapes = [s for s in _splits(prod(torus), axes) if lies_on(torus, s)]
    return sorted(shapes, key=lambda shape: (max(shape), shape))


def _splits(count: int, axes: int) -> Iterator[tuple[int, ...]]:
    """All ways to write a number as a product of so many, in order."""
    if axes == 1:
        yield (count,)
        return
    for first in range(1, count + 1):
        if count % first == 0:
            for rest in _splits(count // first, axes - 1):
                yield (first, *rest)
