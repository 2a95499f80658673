"""The shardings of what goes into a compiled program and of what comes out."""

from collections.abc import Iterator, Sequence
from itertools import permutations
from math import prod
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeGuard

from .._errors import MeshMismatch
from .._hlo.parser import header_devices
from .._shardings.from_jax import read_mesh
from .._shardings.from_jax import sharding as read_sharding
from .._shardings.sharding import ShardingInfo

if TYPE_CHECKING:
    from jax.sharding import AbstractMesh, Mesh, NamedSharding, Sharding


def shardings_in(jax: ModuleType, tree: object) -> "Iterator[Sharding]":
    """The shardings in a tree of them, or of others."""
    for leaf in jax.tree.leaves(tree):
        if isinstance(leaf, jax.sharding.Sharding):
            yield leaf


def shardings_of_args(
    jax: ModuleType, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> "Iterator[Sharding]":
    """The shardings of the arrays among a function's arguments."""
    for leaf in jax.tree.leaves((args, kwargs)):
        yield from shardings_in(jax, getattr(leaf, "sharding", None))


def find_mesh(
    jax: ModuleType,
    text: str,
    mesh: "Mesh | AbstractMesh | None",
    shardings: "Sequence[Sharding]",
) -> "Mesh | AbstractMesh | None":
    """The mesh whose axes name the program's groups; None for one device."""
    devices = header_devices(text.partition("\n")[0]) or 1
    if mesh is not None:
        size = read_mesh(mesh).size
        if size != devices:
            raise MeshMismatch(
                f"mesh={read_mesh(mesh).shape} has {size} devices, but the program "
                f"was compiled for {devices}: give arguments that lie on this mesh, "
                "such as jax.ShapeDtypeStruct(shape, dtype, "
                "sharding=NamedSharding(mesh, spec))"
            )
        return mesh
    meshes: list[Mesh | AbstractMesh] = [
        s.mesh for s in shardings if isinstance(s, jax.sharding.NamedSharding)
    ]
    meshes.append(jax.sharding.get_abstract_mesh())
    for candidate in meshes:
        if prod(candidate.shape.values()) == devices and candidate.shape:
            return candidate
    if devices == 1:
        return None
    raise MeshMismatch(
        f"mesh=None, and nothing tells the axes of the {devices} devices that the "
        "program was compiled for: give mesh=, the Mesh that f uses"
    )


def shardings_like(
    jax: ModuleType,
    avals: object,
    shardings: object,
    mesh: "Mesh | AbstractMesh | None",
) -> Any:
    """A tree like `avals`, of ShardingInfos; None where the program lacks the array."""
    leaves, tree = jax.tree.flatten(avals)
    return tree.unflatten(
        _sharding_info(jax, aval, sharding, mesh)
        for aval, sharding in zip(leaves, tree.flatten_up_to(shardings), strict=True)
    )


def _sharding_info(
    jax: ModuleType, aval: Any, sharding: object, mesh: "Mesh | AbstractMesh | None"
) -> ShardingInfo | None:
    known = (jax.sharding.NamedSharding, jax.sharding.SingleDeviceSharding)
    if not isinstance(sharding, known):
        sharding = _name_sharding(jax, sharding, aval.shape, mesh)
    if sharding is None:
        return None
    return read_sharding(tuple(aval.shape), sharding, dtype=str(aval.dtype))


def _name_sharding(
    jax: ModuleType,
    sharding: object,
    shape: tuple[int, ...],
    mesh: "Mesh | AbstractMesh | None",
) -> "NamedSharding | None":
    """The NamedSharding on `mesh` that cuts the same blocks, None if there is none.

    The compiler reports some shardings without the names of the axes. An axis cuts
    a dimension if moving along it changes the block.
    """
    if not isinstance(sharding, jax.sharding.Sharding) or not _has_devices(mesh):
        return None
    blocks = sharding.devices_indices_map(shape)
    home = blocks.get(mesh.devices.flat[0])
    if home is None:
        return None
    entries: list[list[str]] = [[] for _ in shape]
    for number, axis in enumerate(mesh.axis_names):
        if mesh.shape[axis] > 1:
            at = [0] * mesh.devices.ndim
            at[number] = 1
            other = blocks[mesh.devices[tuple(at)]]
            for entry, here, there in zip(entries, home, other, strict=True):
                if here != there:
                    entry.append(axis)
    for spec in _orders(entries):
        partitions = jax.sharding.PartitionSpec(*spec)
        named: NamedSharding = jax.sharding.NamedSharding(mesh, partitions)
        if named.is_equivalent_to(sharding, len(shape)):
            return named
    return None


def _has_devices(mesh: "Mesh | AbstractMesh | None") -> "TypeGuard[Mesh]":
    return hasattr(mesh, "devices")


def _orders(entries: list[list[str]]) -> Iterator[tuple[tuple[str, ...], ...]]:
    if not entries:
        yield ()
        return
    for first in permutations(entries[0]):
        for rest in _orders(entries[1:]):
            yield (first, *rest)
