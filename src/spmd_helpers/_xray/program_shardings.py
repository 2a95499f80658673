"""The shardings of what goes into a compiled program and of what comes out."""

import re
from collections.abc import Hashable, Iterator, Mapping, Sequence
from itertools import permutations, product
from math import prod
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeGuard

from .._core.attributes import attribute
from .._errors import MeshMismatch
from .._hlo.parser import header_devices
from .._hlo.replica_groups import parse_groups
from .._shardings.from_jax import read_mesh
from .._shardings.from_jax import sharding as read_sharding
from .._shardings.sharding import ShardingInfo

if TYPE_CHECKING:
    from jax.sharding import AbstractMesh, Mesh, NamedSharding, Sharding

    from .._shardings.types import JaxDevice


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
        yield from shardings_in(jax, attribute(leaf, "sharding"))


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
                f"was compiled for {devices}: give arguments on this mesh, such as "
                "jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, "
                "spec))"
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
    flat = shardings if isinstance(shardings, list) else tree.flatten_up_to(shardings)
    infos: dict[Hashable, ShardingInfo | None] = {}  # layers have the same few

    def info(aval: Any, sharding: Hashable) -> ShardingInfo | None:
        key = aval.shape, aval.dtype, sharding
        if key not in infos:
            infos[key] = _sharding_info(jax, aval, sharding, mesh)
        return infos[key]

    pairs = zip(leaves, flat, strict=True)
    return tree.unflatten(info(aval, sharding) for aval, sharding in pairs)


def dtype_name(aval: Any) -> str:
    """'float32'; also of float0, the gradient of an integer, which has no name."""
    dtype = aval.dtype
    return "float0" if "float0" in str(dtype) else str(dtype)


def _sharding_info(
    jax: ModuleType, aval: Any, sharding: object, mesh: "Mesh | AbstractMesh | None"
) -> ShardingInfo | None:
    kinds = jax.sharding
    if isinstance(sharding, kinds.NamedSharding):
        # An array may lie on a mesh with the same devices and other axis names.
        if mesh is not None and tuple(sharding.mesh.shape) != tuple(mesh.shape):
            sharding = _name_sharding(jax, sharding, aval.shape, mesh) or sharding
    elif not isinstance(sharding, kinds.SingleDeviceSharding):
        sharding = _name_sharding(jax, sharding, aval.shape, mesh)
    if sharding is None:
        return None
    return read_sharding(tuple(aval.shape), sharding, dtype=dtype_name(aval))


def _name_sharding(
    jax: ModuleType,
    sharding: object,
    shape: tuple[int, ...],
    mesh: "Mesh | AbstractMesh | None",
) -> "NamedSharding | None":
    """The NamedSharding on `mesh` that cuts the same blocks, None if there is none.

    The compiler reports some shardings without the names of the axes.
    """
    if not isinstance(sharding, jax.sharding.Sharding) or not _has_devices(mesh):
        return None
    if isinstance(sharding, jax.sharding.NamedSharding) and not _has_devices(
        sharding.mesh
    ):
        return None
    blocks = sharding.devices_indices_map(shape)
    for named in _with_blocks(jax, blocks, shape, mesh):
        if named.is_equivalent_to(sharding, len(shape)):
            return named
    return None


def sharding_of_tiles(
    jax: ModuleType,
    tiles: Any,
    shape: tuple[int, ...],
    mesh: "Mesh | AbstractMesh | None",
) -> "NamedSharding | None":
    """The NamedSharding on `mesh` of what XLA writes as a grid of tiles."""
    if not _has_devices(mesh):
        return None
    kinds = jax.sharding
    words = str(tiles)
    grid = [int(n) for n in re.findall(r"tile_assignment_dimensions: (\d+)", words)]
    if not grid:
        return kinds.NamedSharding(mesh, kinds.PartitionSpec())  # type: ignore[no-any-return]  # JAX: Any
    sizes = [int(n) for n in re.findall(r"iota_reshape_dims: (\d+)", words)]
    order = [int(n) for n in re.findall(r"iota_transpose_perm: (\d+)", words)]
    listed = [int(n) for n in re.findall(r"tile_assignment_devices: (\d+)", words)]
    iota = f"[{','.join(map(str, grid))}]"
    if sizes:
        iota += f"<=[{','.join(map(str, sizes))}]T({','.join(map(str, order))})"
        listed = [
            n for group in parse_groups(_as_groups(iota), mesh.size) for n in group
        ]
    devices = list(mesh.devices.flat)
    blocks = {}
    for place, index in zip(listed, product(*map(range, grid)), strict=True):
        blocks[devices[place]] = tuple(
            _part(size, parts, n)
            for size, parts, n in zip(shape, grid, index, strict=False)
        )
    for named in _with_blocks(jax, blocks, shape, mesh):
        if named.devices_indices_map(shape) == blocks:
            return named
    return None


def _as_groups(iota: str) -> str:
    """The order of a grid's devices as one group of all of them."""
    dims, _, rest = iota.partition("<=")
    return f"[1,{prod(map(int, dims[1:-1].split(',')))}]<={rest}"


def _part(size: int, parts: int, number: int) -> slice:
    if parts == 1:
        return slice(None, None, None)
    rows = -(-size // parts)
    return slice(number * rows, min((number + 1) * rows, size), None)


def _with_blocks(
    jax: ModuleType,
    blocks: "Mapping[JaxDevice, tuple[slice, ...]]",
    shape: tuple[int, ...],
    mesh: "Mesh",
) -> "Iterator[NamedSharding]":
    """NamedShardings that may cut an array so: an axis along which blocks change."""
    home = blocks.get(mesh.devices.flat[0])
    if home is None:
        return
    entries: list[list[str]] = [[] for _ in shape]
    for number, axis in enumerate(mesh.axis_names):
        if mesh.shape[axis] > 1:
            at = [0] * mesh.devices.ndim
            at[number] = 1
            other = blocks.get(mesh.devices[tuple(at)])
            for entry, here, there in zip(entries, home, other or home, strict=True):
                if here != there:
                    entry.append(axis)
    for spec in _orders(entries):
        yield jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*spec))


def _has_devices(mesh: "Mesh | AbstractMesh | None") -> "TypeGuard[Mesh]":
    return hasattr(mesh, "devices")


def _orders(entries: list[list[str]]) -> Iterator[tuple[tuple[str, ...], ...]]:
    if not entries:
        yield ()
        return
    for first in permutations(entries[0]):
        for rest in _orders(entries[1:]):
            yield (first, *rest)
