"""Where an array's shards are: the arithmetic of a sharding, free of JAX.

A mesh is a box of devices with a name for each axis. Devices are counted by their
position, the last axis running fastest. A spec gives each array dimension a tuple of
mesh axes. The dimension is split into as many shards as these axes have devices, and
the first axis of the tuple is the slowest. Over axes that no dimension uses, the array
is replicated.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from .._core.validate import as_integer, axis_sizes, close_name
from .._core.words import bytes_words, count_words, join_words
from .._errors import (
    AxisUsedTwice,
    NotDivisible,
    NotUnderstood,
    TooManyEntries,
    UnknownAxis,
)

if TYPE_CHECKING:
    from jax.sharding import PartitionSpec

Block = tuple[int, ...]
Entries = tuple[tuple[str, ...], ...]  # for each dimension the axes that cut it

# Of float0, the gradient of an integer, there is nothing.
_NAMED_BYTES = {"key<fry>": 8, "key<rbg>": 16, "key<urbg>": 16, "float0": 0}
# What others call the names of types.
OTHER_TYPES = {
    **{"bf16": "bfloat16", "bfloat": "bfloat16", "brain": "bfloat16"},
    **{"fp16": "float16", "f16": "float16", "half": "float16"},
    **{"fp32": "float32", "f32": "float32", "single": "float32", "float": "float32"},
    **{"fp64": "float64", "f64": "float64", "double": "float64"},
    **{"fp8": "float8_e4m3fn", "f8": "float8_e4m3fn", "float8": "float8_e4m3fn"},
    **{"e4m3": "float8_e4m3fn", "fp8_e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2"},
    **{"fp8_e5m2": "float8_e5m2", "i8": "int8", "s8": "int8", "i32": "int32"},
}
_NUMBER = re.compile(r"(?:u?int|b?float|complex)(\d+)(?:_\w+)?")


@dataclass(frozen=True)
class MeshFacts:
    """What is known of a mesh: axis sizes and, if there are devices, which."""

    shape: Mapping[str, int]
    device_ids: tuple[int, ...] | None = None
    platform: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", axis_sizes("mesh", self.shape))

    @property
    def size(self) -> int:
        """The number of devices."""
        return math.prod(self.shape.values())


@dataclass(frozen=True, repr=False)
class ShardingInfo:
    """How one array is split into shards, and which devices have each shard.

    >>> mesh = {"data": 2, "model": 4}
    >>> info = ShardingInfo((6, 10), mesh_shape=mesh, entries=("data",))
    >>> info.shard_shape, info.replicas, info.replicated_over
    ((3, 10), 4, ('model',))
    >>> info.owners
    {(0, 0): (0, 1, 2, 3), (1, 0): (4, 5, 6, 7)}
    >>> info.bytes_per_device          # 3 * 10 * 4 bytes
    120

    Args:
        shape: sizes of the array's dimensions.
        dtype: its element type by name, such as 'float32' or 'key<fry>'.
        itemsize: bytes an element; from `dtype` if not given.
        mesh_shape: axis name to number of devices, in mesh order; empty for an array
            that is on one device.
        entries: for each dimension the mesh axes that shard it: a name, a tuple of
            names, or None. Missing ones at the end are None. Kept as tuples, one a
            dimension.
        spec: JAX's PartitionSpec; None for an array on one device.
        device_ids: ids of the devices in mesh order; None where there are no devices.
        platform: what the devices are, in words.
        unreduced: axes over which each device has a partial sum.

    Raises:
        UnknownAxis, TooManyEntries, AxisUsedTwice, NotDivisible: the spec does not fit.
        NotUnderstood: a size, or the dtype's name, is not one.
    """

    shape: tuple[int, ...]
    dtype: str = "float32"
    itemsize: int = 0
    mesh_shape: Mapping[str, int] = field(default_factory=dict, compare=False)
    entries: Entries = ()
    spec: "PartitionSpec | None" = field(default=None, compare=False)
    device_ids: tuple[int, ...] | None = None
    platform: str = field(default="", compare=False)
    unreduced: tuple[str, ...] = ()
    axes: tuple[tuple[str, int], ...] = field(init=False, default=())

    def __post_init__(self) -> None:
        def put(name: str, value: object) -> None:
            object.__setattr__(self, name, value)

        mesh = axis_sizes("mesh", self.mesh_shape)
        put("mesh_shape", mesh)
        put("axes", tuple(mesh.items()))
        put("shape", _checked_shape(self.shape))
        put("itemsize", self.itemsize or itemsize(self.dtype))
        entries = as_tuples(self.entries)
        _check_axes(self.shape, mesh, entries)
        put("entries", entries + ((),) * (len(self.shape) - len(entries)))
        _check_division(self.shape, mesh, self.entries)

    @cached_property
    def grid(self) -> tuple[int, ...]:
        """The number of shards along each dimension."""
        return _grid(dict(self.axes), self.entries)

    @cached_property
    def shard_shape(self) -> tuple[int, ...]:
        """The shape of one shard, the part of one device."""
        return _shard_shape(self.shape, self.grid)

    @cached_property
    def replicas(self) -> int:
        """How many devices have each shard."""
        return _replicas(dict(self.axes), self.entries)

    @property
    def replicated_over(self) -> tuple[str, ...]:
        """The mesh axes, of more than one device, along which shards repeat."""
        used = {axis for entry in self.entries for axis in entry}
        return tuple(a for a, size in self.axes if size > 1 and a not in used)

    @property
    def total_bytes(self) -> int:
        """Bytes of the full array, counted once."""
        return math.prod(self.shape) * self.itemsize

    @property
    def bytes_per_device(self) -> int:
        """Bytes of one shard."""
        return math.prod(self.shard_shape) * self.itemsize

    @property
    def device_count(self) -> int:
        """How many devices the mesh has."""
        return math.prod(size for _, size in self.axes)

    @cached_property
    def owners(self) -> dict[Block, tuple[int, ...]]:
        """Each shard's index, and the positions of its devices in the mesh."""
        return _owners(dict(self.axes), self.entries)

    def slices(self, block: Block) -> tuple[tuple[int, int], ...]:
        """First and one-past-last index of a shard along each dimension."""
        return _slices(block, self.shard_shape)

    def devices(self, block: Block) -> tuple[int, ...]:
        """Ids of the devices that have a shard; positions where ids are unknown."""
        places = self.owners[block]
        if self.device_ids is None:
            return places
        return tuple(self.device_ids[place] for place in places)

    def __repr__(self) -> str:
        what = f"{self.dtype}[{', '.join(map(str, self.shape))}]"
        each = f"{self.shard_shape} a device, {bytes_words(self.bytes_per_device)}"
        if not self.axes:
            return f"ShardingInfo({what} on one device: {each})"
        copies = count_words(self.replicas, "replica")
        where = f"{spec_words(self.entries)} over {mesh_words(dict(self.axes))}"
        return f"ShardingInfo({what} as {where}: {each}, {copies})"


# The arithmetic. Small on purpose: the tests break each and see it caught.


def _grid(mesh: Mapping[str, int], entries: Entries) -> tuple[int, ...]:
    return tuple(math.prod(mesh[axis] for axis in entry) for entry in entries)


def _shard_shape(shape: tuple[int, ...], grid: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(size // blocks for size, blocks in zip(shape, grid, strict=True))


def _replicas(mesh: Mapping[str, int], entries: Entries) -> int:
    used = {axis for entry in entries for axis in entry}
    return math.prod(size for axis, size in mesh.items() if axis not in used)


def _coordinates(position: int, mesh: dict[str, int]) -> dict[str, int]:
    """A device's index along each mesh axis; the last axis runs fastest."""
    coordinates = {}
    for axis in reversed(mesh):
        position, coordinates[axis] = divmod(position, mesh[axis])
    return coordinates


def _block_number(
    where: Mapping[str, int], mesh: Mapping[str, int], entry: tuple[str, ...]
) -> int:
    """Which shard of a dimension a device has; the first axis is the slowest."""
    number = 0
    for axis in entry:
        number = number * mesh[axis] + where[axis]
    return number


def _slices(block: Block, shard_shape: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    pairs = zip(block, shard_shape, strict=True)
    return tuple((i * size, (i + 1) * size) for i, size in pairs)


def _owners(mesh: dict[str, int], entries: Entries) -> dict[Block, tuple[int, ...]]:
    owners: dict[Block, list[int]] = {}
    for position in range(math.prod(mesh.values())):
        where = _coordinates(position, mesh)
        block = tuple(_block_number(where, mesh, entry) for entry in entries)
        owners.setdefault(block, []).append(position)
    return {block: tuple(owners[block]) for block in sorted(owners)}


# Words and checks.


def itemsize(dtype: str, name: str = "dtype") -> int:
    """Bytes of one element of a dtype given by name, as JAX counts them.

    Args:
        dtype: the name of an element type.
        name: the argument that it was given for, as a refusal says it.
    """
    if not isinstance(dtype, str):
        match = None
    elif dtype == "bool":
        return 1
    elif dtype in _NAMED_BYTES:
        return _NAMED_BYTES[dtype]
    else:
        match = _NUMBER.fullmatch(dtype)
    if match is None:
        close = OTHER_TYPES.get(dtype.lower()) if isinstance(dtype, str) else None
        guess = f". Did you mean {close!r}? Give" if close else "; give"
        raise NotUnderstood(
            f"{name}={dtype!r} is not the name of an element type{guess} one such as "
            "'float32', 'bfloat16' or 'int8'."
        )
    return max(1, int(match[1]) // 8)


def spec_words(entries: Iterable[tuple[str, ...]]) -> str:
    """A spec as it is typed.

    >>> spec_words((("data",), (), ("fsdp", "model")))
    "P('data', None, ('fsdp', 'model'))"
    """
    words = [repr(e[0] if len(e) == 1 else e) if e else "None" for e in entries]
    return f"P({', '.join(words)})"


def mesh_words(mesh: Mapping[str, int]) -> str:
    """A mesh's axes and sizes.

    >>> mesh_words({"data": 4, "model": 2})
    'data=4 × model=2'
    """
    return " × ".join(f"{axis}={size}" for axis, size in mesh.items())


def _checked_shape(shape: object) -> tuple[int, ...]:
    given = shape if isinstance(shape, tuple) else (None,)
    sizes = tuple(n for n in map(as_integer, given) if n is not None)
    if len(sizes) < len(given):
        raise NotUnderstood(
            f"x={shape!r} is not a shape; a shape is a tuple of integers, 0 or more, "
            "such as (6, 10)."
        )
    return sizes


def as_tuples(entries: Iterable[str | Iterable[str] | None]) -> Entries:
    """The entries of a spec, each as a tuple of axes."""
    return tuple(
        () if e is None else (e,) if isinstance(e, str) else tuple(e) for e in entries
    )


def _check_axes(
    shape: tuple[int, ...], mesh: Mapping[str, int], entries: Entries
) -> None:
    given = f"sharding={spec_words(entries)}"
    if len(entries) > len(shape):
        fits = spec_words(entries[: len(shape)])
        raise TooManyEntries(
            f"{given} has {count_words(len(entries), 'entry', 'entries')}, but the "
            f"array of shape {shape} has {count_words(len(shape), 'dimension')}; "
            f"give at most one entry a dimension, such as {fits}."
        )
    dims: dict[str, int] = {}  # axis → the dimension that it cuts
    for dim, entry in enumerate(entries):
        for axis in entry:
            if axis not in mesh:
                raise UnknownAxis(f"{given}: {_unknown(axis, mesh, entries)}")
            if axis in dims:
                once = tuple(
                    tuple(a for a in e if a != axis)
                    if d > dims[axis]
                    else tuple(dict.fromkeys(e))
                    for d, e in enumerate(entries)
                )
                where = f"for dimension {dims[axis]} and again for dimension {dim}"
                if dims[axis] == dim:
                    where = f"twice for dimension {dim}"
                raise AxisUsedTwice(
                    f"{given} uses the mesh axis {axis!r} {where}; an axis can shard "
                    "only one dimension of an array, so use it once, such as "
                    f"{spec_words(once)}."
                )
            dims[axis] = dim


def _unknown(axis: str, mesh: Mapping[str, int], entries: Entries) -> str:
    if not mesh:
        return f"there is no axis {axis!r}: the mesh has no axes; use P()."
    has = join_words([f"{name!r} ({size})" for name, size in mesh.items()])
    one = len(mesh) == 1
    axes = "its only axis is" if one else "its axes are"
    words = f"the mesh has no axis {axis!r}; {axes} {has}."
    if close := close_name(axis, mesh):
        fixed = tuple(tuple(close if a == axis else a for a in e) for e in entries)
        return f"{words} Did you mean {spec_words(fixed)}?"
    use = "it" if one else "one of them"
    return f"{words} Use {use}, or None to leave the dimension unsharded."


def _check_division(
    shape: tuple[int, ...], mesh: Mapping[str, int], entries: Entries
) -> None:
    for dim, (size, entry) in enumerate(zip(shape, entries, strict=True)):
        blocks = math.prod(mesh[axis] for axis in entry)
        if size % blocks == 0:
            continue
        axes = join_words([f"{axis!r} ({mesh[axis]})" for axis in entry])
        less = size // blocks * blocks
        sizes = f"{less} or {less + blocks}" if less else f"{blocks}"
        uncut = tuple(() if d == dim else e for d, e in enumerate(entries))
        do = "does" if size == 1 else "do"
        raise NotDivisible(
            f"sharding={spec_words(entries)}: dimension {dim} of shape {shape} has "
            f"{count_words(size, 'element')}, which {do} not divide into {blocks} "
            f"equal shards over {axes}; make it {sizes}, or leave it unsharded with "
            f"{spec_words(uncut)}."
        )
