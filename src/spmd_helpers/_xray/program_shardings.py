"""The layouts of what goes into a compiled program and of what comes out."""

from collections.abc import Iterator
from itertools import permutations
from math import prod
from typing import Any

from .._errors import MeshMismatch
from .._hlo.parser import header_devices
from .._shardings.from_jax import layout, read_mesh
from .._shardings.sharding import Layout


def shardings_in(jax: Any, tree: Any) -> Iterator[Any]:
    for leaf in jax.tree.leaves(tree):
        if isinstance(leaf, jax.sharding.Sharding):
            yield leaf


def shardings_of_args(jax: Any, args: tuple, kwargs: dict) -> Iterator[Any]:
    for leaf in jax.tree.leaves((args, kwargs)):
        yield from shardings_in(jax, getattr(leaf, "sharding", None))


def find_mesh(jax: Any, text: str, mesh: Any, shardings: list[Any]) -> Any:
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
    named = [s.mesh for s in shardings if isinstance(s, jax.sharding.NamedSharding)]
    for found in (*named, jax.sharding.get_abstract_mesh()):
        if prod(found.shape.values()) == devices and found.shape:
            return found
    if devices == 1:
        return None
    raise MeshMismatch(
        f"mesh=None, and nothing tells the axes of the {devices} devices that the "
        "program was compiled for: give mesh=, the Mesh that f uses"
    )


def layouts_like(jax: Any, avals: Any, shardings: Any, mesh: Any) -> Any:
    """A tree like `avals`, of Layouts, None where the program has no such array."""
    leaves, tree = jax.tree.flatten(avals)
    return tree.unflatten(
        _layout(jax, aval, sharding, mesh)
        for aval, sharding in zip(leaves, tree.flatten_up_to(shardings), strict=True)
    )


def _layout(jax: Any, aval: Any, sharding: Any, mesh: Any) -> Layout | None:
    known = (jax.sharding.NamedSharding, jax.sharding.SingleDeviceSharding)
    if not isinstance(sharding, known):
        sharding = _name_sharding(jax, sharding, aval.shape, mesh)
    if sharding is None:
        return None
    return layout(tuple(aval.shape), sharding, dtype=str(aval.dtype))


def _name_sharding(jax: Any, sharding: Any, shape: tuple[int, ...], mesh: Any) -> Any:
    """The NamedSharding on `mesh` that cuts the same blocks, None if there is none.

    The compiler reports some shardings without the names of the axes. An axis cuts
    a dimension if moving along it changes the block.
    """
    if not isinstance(sharding, jax.sharding.Sharding) or not hasattr(mesh, "devices"):
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
        named = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*spec))
        if named.is_equivalent_to(sharding, len(shape)):
            return named
    return None


def _orders(entries: list[list[str]]) -> Iterator[tuple[tuple[str, ...], ...]]:
    if not entries:
        yield ()
        return
    for first in permutations(entries[0]):
        for rest in _orders(entries[1:]):
            yield (first, *rest)
