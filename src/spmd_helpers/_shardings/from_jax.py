"""The seam: JAX's arrays, shardings and meshes become a ShardingInfo.

Only attributes are read, never an array's data, and JAX is not imported here: an
object of JAX's can't be given by someone who did not import it.
"""

import sys
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .._core.attributes import attribute, has_method
from .._core.words import JAX_PMAP_AXIS, PMAP_AXIS
from .._errors import MeshMismatch, NotUnderstood, SpecError
from .sharding import (
    Entries,
    MeshFacts,
    ShardingInfo,
    as_tuples,
    itemsize,
    mesh_words,
)

if TYPE_CHECKING:
    from jax import Device
    from jax.sharding import NamedSharding, PartitionSpec

    from .types import ArrayLike, DTypeLike, MeshLike, ShardingLike


def sharding(
    x: "ArrayLike | tuple[int, ...]",
    sharding: "ShardingLike | None" = None,
    *,
    mesh: "MeshLike | None" = None,
    dtype: "DTypeLike" = "float32",
) -> ShardingInfo:
    """Say how an array is sharded over devices, without touching its data.

    >>> import jax
    >>> from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec as P
    >>> mesh = AbstractMesh((2, 4), ("data", "model"))
    >>> sharding((6, 10), NamedSharding(mesh, P("data")))
    ShardingInfo(float32[6, 10] as P('data', None) over data=2 × model=4: (3, 10) a \
device, 120 B, 4 replicas)

    A dict of axis sizes is mesh enough; 6 / 2 = 3 rows and 12 / 4 = 3 columns:

    >>> info = sharding((6, 12), P("data", "model"), mesh={"data": 2, "model": 4})
    >>> info.shard_shape, info.replicas, info.owners[1, 0]
    ((3, 3), 1, (4,))

    Args:
        x: a `jax.Array`, a `jax.ShapeDtypeStruct` with a sharding, a Flax variable that
            holds one, or a ShardingInfo. With `sharding`, a shape (tuple of sizes), or
            one of these: then how it would be sharded.
        sharding: a NamedSharding or SingleDeviceSharding, or a PartitionSpec together
            with `mesh`.
        mesh: a Mesh, an AbstractMesh, or a dict from axis name to number of devices.
            Beside an array or a sharding that has its own mesh it must be the same one.
        dtype: element type for a bare shape, by name or as NumPy's or JAX's type.

    Returns:
        A ShardingInfo, with sizes in elements and in bytes.

    Raises:
        UnknownAxis, TooManyEntries, AxisUsedTwice, NotDivisible: the spec does not fit.
        MeshMismatch: `mesh` is not the mesh that `x` or `sharding` is on.
        NotUnderstood: an argument is none of these things, or does not say enough.

    Used from chapter 01 on, and by `draw`.
    """
    try:
        return _sharding(x, sharding, mesh, dtype)
    except (SpecError, MeshMismatch, NotUnderstood) as error:
        raise error.with_traceback(None) from None


def read_mesh(mesh: "MeshLike") -> MeshFacts:
    """Read a Mesh, an AbstractMesh or a dict of axis sizes."""
    if isinstance(mesh, MeshFacts):
        return mesh
    if isinstance(mesh, Mapping):
        return MeshFacts(mesh)
    if not isinstance(mesh, jax_types("Mesh", "AbstractMesh")):
        raise NotUnderstood(
            f"mesh={short(mesh)} is not a mesh; give a jax.sharding.Mesh, an "
            "AbstractMesh, or a dict from axis name to number of devices, such as "
            "{'data': 4, 'model': 2}."
        )
    shape = {_axis(name): size for name, size in mesh.shape.items()}
    if isinstance(mesh, jax_types("AbstractMesh")):
        return MeshFacts(shape)
    return _devices(shape, mesh.devices.flat)


def _devices(shape: Mapping[str, int], devices: "Iterable[Device]") -> MeshFacts:
    devices = tuple(devices)
    kinds = Counter(getattr(d, "device_kind", None) or d.platform for d in devices)
    words = " + ".join(f"{count} × {kind}" for kind, count in kinds.items())
    return MeshFacts(shape, tuple(d.id for d in devices), words)


def _sharding(
    x: object,
    sharding: "ShardingLike | None",
    mesh: "MeshLike | None",
    dtype: "DTypeLike",
) -> ShardingInfo:
    x = unwrap(x)
    given = None if mesh is None else read_mesh(mesh)
    if isinstance(x, ShardingInfo):
        if sharding is not None:
            return _lay(x.shape, x.dtype, x.itemsize, sharding, given)
        _same_mesh(given, MeshFacts(x.mesh_shape, x.device_ids), "x")
        return x
    if is_tracer(x):
        raise NotUnderstood(
            "x is a tracer: while JAX traces a function there is no array yet, and on "
            "Auto axes no sharding either. Look at jax.typeof(x) there, or call this "
            "outside of the function, on what it takes or returns."
        )
    if isinstance(x, tuple) and all(map(_is_number, x)):
        if sharding is None:
            raise NotUnderstood(
                f"x={x!r} is a bare shape without a sharding; give one, such as "
                "spmd.sharding(x, NamedSharding(mesh, P('data'))) or spmd.sharding(x, "
                "P('data'), mesh=mesh)."
            )
        return _lay(x, *read_dtype(dtype), sharding, given)
    shape, kind = getattr(x, "shape", None), getattr(x, "dtype", None)
    if not isinstance(shape, tuple) or kind is None:
        raise NotUnderstood(_no_array(x))
    own = getattr(x, "sharding", None)
    if not hasattr(x, "sharding"):
        raise NotUnderstood(
            f"x is {_kind(x)} of shape {shape}, which has no sharding yet; put it on "
            "devices first, x = jax.device_put(x, NamedSharding(mesh, P())), or give "
            "its shape and the sharding that you have in mind, "
            "spmd.sharding(x.shape, NamedSharding(mesh, P()))."
        )
    if sharding is not None:
        return _lay(shape, *read_dtype(kind), sharding, given)
    if own is None:
        raise NotUnderstood(
            f"x is {_kind(x)} of shape {shape}, which has no sharding yet; make it "
            "with one, jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, "
            "P())), or give one here, spmd.sharding(x, NamedSharding(mesh, P()))."
        )
    if type(x).__name__ == "ShapedArray":
        _check_type(x, own)
    return _lay(shape, *read_dtype(kind), own, given, "x")


def _lay(
    shape: tuple[int, ...],
    dtype: str,
    size: int,
    sharding: object,
    given: MeshFacts | None,
    name: str = "sharding",
) -> ShardingInfo:
    spec: PartitionSpec | None
    if isinstance(sharding, jax_types("NamedSharding")):
        own, spec = read_mesh(sharding.mesh), sharding.spec
        _same_mesh(given, own, name)
    elif isinstance(sharding, jax_types("SingleDeviceSharding")):
        own, spec = _devices({}, sharding.device_set), None
        _same_mesh(given, own, name)
    elif isinstance(sharding, jax_types("PartitionSpec")):
        if given is None:
            words = str(sharding).replace(",)", ")")
            raise NotUnderstood(
                f"sharding={words} comes without a mesh; give the mesh too, as in "
                f"spmd.sharding({shape}, {words}, mesh=mesh)."
            )
        own, spec = given, sharding
    else:
        raise NotUnderstood(_no_sharding(sharding, name))
    spec, entries, unreduced = _read_spec(spec)
    return ShardingInfo(
        shape,
        dtype,
        size,
        mesh_shape=own.shape,
        entries=entries,
        spec=spec,
        device_ids=own.device_ids,
        platform=own.platform,
        unreduced=tuple(axis for axis in own.shape if axis in unreduced),
    )


def _read_spec(
    spec: "PartitionSpec | None",
) -> "tuple[PartitionSpec | None, Entries, frozenset[str]]":
    """A spec with pmap's private axis name replaced, its entries, its partial sums."""
    if spec is None:
        return None, (), frozenset()
    parts = tuple(getattr(spec, "partitions", spec))
    if any(type(part).__name__ == "UnconstrainedSingleton" for part in parts):
        raise NotUnderstood(
            f"sharding={spec}: UNCONSTRAINED leaves a dimension to the compiler, so "
            "there is nothing to lay out yet; name axes, or None for an unsharded "
            "dimension."
        )
    parts = tuple(
        part
        if part is None
        else tuple(map(_axis, part))
        if isinstance(part, tuple)
        else _axis(part)
        for part in parts
    )
    unreduced = frozenset(map(_axis, getattr(spec, "unreduced", ()) or ()))
    if PMAP_AXIS in str(parts):
        spec = type(spec)(*parts)
    return spec, as_tuples(parts), unreduced


def _axis(name: object) -> str:
    return PMAP_AXIS if name == JAX_PMAP_AXIS else str(name)


def _same_mesh(given: MeshFacts | None, own: MeshFacts, name: str) -> None:
    """Refuse a mesh= that is not the mesh which the argument is on."""
    if given is None:
        return
    place = _place(own)
    if list(given.shape.items()) != list(own.shape.items()):
        raise MeshMismatch(
            f"mesh={given.shape} is not where {name} is: {name} is on "
            f"{place}. Leave mesh= out, or move the array first with "
            "jax.device_put(x, NamedSharding(mesh, P()))."
        )
    ids, own_ids = given.device_ids, own.device_ids
    if ids is not None and own_ids is not None and ids != own_ids:
        what = (
            "the same devices in another order"
            if sorted(ids) == sorted(own_ids)
            else "other devices"
        )
        raise MeshMismatch(
            f"mesh={given.shape} has {what} than {name}: "
            f"{_few(ids)} against {_few(own_ids)}. Leave mesh= out, or "
            "move the array first with jax.device_put(x, NamedSharding(mesh, P()))."
        )


def _place(mesh: MeshFacts) -> str:
    if mesh.shape:
        return f"the mesh {mesh_words(mesh.shape)}"
    return "one device" if mesh.device_ids is None else f"device {mesh.device_ids[0]}"


def _few(ids: Sequence[int]) -> str:
    return f"[{', '.join(map(str, ids[:8]))}{', …' if len(ids) > 8 else ''}]"


def unwrap(x: Any) -> Any:
    """What a Flax variable, or a box with a value, holds."""
    for _ in range(4):
        if has_method(x, "get_value") and not isinstance(x, type):
            x = x.get_value()
        elif attribute(x, "shape") is None and attribute(x, "value") is not None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                x = x.value
        else:
            return x
    return x


def read_dtype(dtype: "DTypeLike") -> tuple[str, int]:
    """An element type's name and its bytes."""
    if isinstance(dtype, str):
        return dtype, itemsize(dtype)
    kind: Any = dtype  # an object of NumPy's or JAX's that says its name and size
    if not isinstance(getattr(dtype, "name", None), str):
        import numpy

        try:
            kind = numpy.dtype("" if dtype is None else dtype)
        except TypeError:
            raise NotUnderstood(
                f"dtype={short(dtype)} is not an element type; give one such as "
                "'float32', 'bfloat16' or jnp.int8."
            ) from None
    return kind.name, int(kind.itemsize)


def _check_type(x: object, sharding: "NamedSharding") -> None:
    """Refuse a type from inside a jitted function that does not tell the sharding."""
    if {mode.name for mode in sharding.mesh.axis_types} != {"Explicit"}:
        raise NotUnderstood(
            f"x is the type {x}, which includes the sharding only on a mesh with "
            "Explicit axes; call this outside of the function, on what it takes or "
            "returns."
        )


def _no_array(x: object) -> str:
    if isinstance(x, (bool, int, float, complex)):
        return (
            f"x={x!r} is a Python number, which has no sharding yet; put it on devices "
            "first, x = jax.device_put(x, NamedSharding(mesh, P()))."
        )
    if isinstance(x, (list, tuple, Mapping)):
        return (
            f"x is a {type(x).__name__}, not one array; for a tree of arrays use "
            "jax.tree.map(spmd.sharding, x), and write a shape as a tuple of integers."
        )
    if isinstance(x, jax_types("Mesh", "AbstractMesh")):
        return "x is a mesh, not an array; use draw_mesh(x)."
    if isinstance(x, jax_types("Sharding")):
        return (
            "x is a sharding; give the shape of an array first, "
            "spmd.sharding((6, 10), x)."
        )
    return (
        f"x={short(x)} is not an array; give a jax.Array, a jax.ShapeDtypeStruct with "
        "a sharding, one Flax variable, or a shape and a sharding."
    )


def _no_sharding(sharding: object, name: str) -> str:
    if isinstance(sharding, (str, tuple, list)) or sharding is None:
        entries = [sharding] if isinstance(sharding, str) else list(sharding or ())
        wanted = f"P({', '.join(map(repr, entries))})"
        return (
            f"sharding={sharding!r} is not a sharding; write "
            f"NamedSharding(mesh, {wanted}), or {wanted} together with mesh=."
        )
    return (
        f"{name} has a sharding of the kind {type(sharding).__name__}, which names no "
        "mesh axes; move the array first with "
        "jax.device_put(x, NamedSharding(mesh, P()))."
    )


def _kind(x: object) -> str:
    module, name = type(x).__module__.split(".")[0], type(x).__name__
    return "a NumPy array" if module == "numpy" else f"a {name}"


def short(x: object) -> str:
    words = " ".join(repr(x).split())
    return words if len(words) <= 60 else words[:57] + "…"


def _is_number(x: object) -> bool:
    return hasattr(x, "__index__") and not hasattr(x, "sharding")


def is_tracer(x: object) -> bool:
    core = getattr(sys.modules.get("jax"), "core", None)
    return core is not None and isinstance(x, core.Tracer)


def jax_types(*names: str) -> tuple[type[Any], ...]:
    module = sys.modules.get("jax.sharding")
    return tuple(getattr(module, name) for name in names if hasattr(module, name))
