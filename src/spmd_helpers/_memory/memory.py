"""What a tree of arrays holds on every device, from its shardings alone."""

import math
import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeGuard

from .._core.attributes import has_method
from .._core.notebook import InTable
from .._core.tables import Table
from .._errors import MeshMismatch, NotUnderstood, SpecError
from .._runtime.require import require_jax
from .._shardings.from_jax import (
    is_tracer,
    jax_types,
    read_dtype,
    read_mesh,
    short,
    unwrap,
)
from .._shardings.from_jax import sharding as read_sharding
from .._shardings.sharding import MeshFacts, ShardingInfo, spec_words
from . import report as view

if TYPE_CHECKING:
    from jax.sharding import PartitionSpec, Sharding

    from .._shardings.types import JaxDevice, MeshLike

Device = int | str
Keys = tuple[str, ...]  # where a leaf stands in a tree
HOST, DELETED = "host", "deleted"


@dataclass(frozen=True)
class MemoryLine:
    """One leaf of a tree.

    Attributes:
        path: where it stands in the tree, 'layers/0/w'.
        shape, dtype: of the array, not of a block.
        spec: its PartitionSpec as it is typed, axes of one device left out where the
            mesh has others; 'one device' for an array on one.
        bytes_per_device: bytes that each of `devices` holds of it.
        total_bytes: bytes of the array, counted once.
        copies: how many devices have the same shard.
        devices: ids of the devices that hold it; positions in its mesh if the mesh
            has no devices; none for what lies on no device.
        where: 'host' for what lies in the host's memory, 'deleted' for an array that
            was donated or deleted, the path of the leaf that is the same array, else
            ''.
    """

    path: str
    shape: tuple[int, ...]
    dtype: str
    spec: str
    bytes_per_device: int
    total_bytes: int
    copies: int
    devices: tuple[Device, ...]
    where: str = ""

    @property
    def bytes_on_all_devices(self) -> int:
        """Bytes of it on all devices together."""
        return self.bytes_per_device * len(self.devices)


@dataclass(frozen=True, repr=False, eq=False)
class Memory(InTable):
    """What a tree of arrays takes on every device.

    Attributes:
        lines: a MemoryLine for each leaf, in the tree's order.
        per_device: id of a device → bytes that it holds; its position in the mesh
            where there are no devices; 'kind id' where the tree lies on devices of
            several kinds.
        notes: what to know beside the table, a sentence each.
    """

    lines: tuple[MemoryLine, ...]
    per_device: Mapping[Device, int]
    notes: tuple[str, ...] = ()

    @property
    def largest_device_bytes(self) -> int:
        """Bytes on the device that holds most."""
        return max(self.per_device.values(), default=0)

    @property
    def bytes_on_all_devices(self) -> int:
        """Bytes on all devices together: each copy counts."""
        return sum(self.per_device.values())

    @property
    def total_bytes(self) -> int:
        """Bytes of the arrays on devices, each counted once."""
        return sum(line.total_bytes for line in self.lines if line.devices)

    @property
    def host_bytes(self) -> int:
        """Bytes on the host: NumPy arrays, and arrays that were moved there."""
        return sum(line.total_bytes for line in self.lines if line.where == HOST)

    def _shown(self) -> Table:
        return view.shown(self)


def memory(
    tree: object,
    shardings: object = None,
    *,
    mesh: "MeshLike | None" = None,
) -> Memory:
    """Count what a tree of arrays holds on every device, without touching its data.

    >>> import jax
    >>> from jax.sharding import PartitionSpec as P
    >>> shapes = {
    ...     "b": jax.ShapeDtypeStruct((6,), "float32"),
    ...     "w": jax.ShapeDtypeStruct((8, 6), "float32"),
    ... }
    >>> params = memory(shapes, {"b": P(), "w": P("data")}, mesh={"data": 4})
    >>> params.largest_device_bytes            #  (6 + 8/4 * 6) * 4 bytes
    72
    >>> params.bytes_on_all_devices, params.total_bytes  # 4 * 72, (6 + 8 * 6) * 4
    (288, 216)
    >>> params
    Memory of 2 arrays, 216 B: 288 B on 4 devices, 72 B on each
    leaf  array          spec             per device  replicas  devices
    w     float32[8, 6]  P('data', None)        48 B         1  0–3
    b     float32[6]     P(None)                24 B         4  0–3

    Args:
        tree: any pytree of `jax.Array`, `jax.ShapeDtypeStruct` or ShardingInfo, such as
            parameters, an optimizer's state, a Flax NNX module, or the shardings of an
            X-ray. An array that stands in it twice counts once. NumPy arrays and Python
            numbers are on the host: they are listed, and use no device memory.
            Functions in it, such as a module's activation, are left out.
        shardings: the shardings to assume: one NamedSharding or PartitionSpec for all,
            or a tree of them with the form of `tree`, or of its upper part. None, also
            in the tree, leaves a leaf as it is.
        mesh: the mesh of the PartitionSpecs: a Mesh, an AbstractMesh, or a dict from
            axis name to number of devices. Its devices are counted even if they have
            no bytes.

    Returns:
        A Memory, in bytes. Elements of less than a byte count as one, as JAX counts
        them; a TPU packs int4 by two.

    Raises:
        UnknownAxis, TooManyEntries, AxisUsedTwice, NotDivisible: a spec does not fit.
        NotUnderstood: a leaf is not an array, or has no sharding.

    Used in chapters 08 to 11 and 13.
    """
    try:
        return _memory(require_jax(), tree, shardings, mesh)
    except (SpecError, MeshMismatch, NotUnderstood) as error:
        raise error.with_traceback(None) from None


def _memory(
    jax: ModuleType,
    tree: object,
    shardings: object,
    mesh: "MeshLike | None",
) -> Memory:
    given = None if mesh is None else read_mesh(mesh)
    placed: list[tuple[MemoryLine, MeshFacts | None]] = []
    # With the leaf itself: an id is used again once its owner is gone.
    first_paths: dict[int, tuple[str, object]] = {}
    for path, node, sharding in _leaves(jax, tree, shardings):
        leaf = unwrap(node)
        try:
            line, place = _line(path, leaf, sharding, given)
        except (SpecError, MeshMismatch, NotUnderstood) as error:
            raise type(error)(f"leaf {path!r}: {error}") from None
        real = isinstance(leaf, jax.Array) and sharding is None
        if real and leaf.is_deleted():
            line, place = _nowhere(line, DELETED), None
        elif real or hasattr(node, "get_value"):  # one array, or one Flax variable
            one = leaf if real else node
            first, _ = first_paths.setdefault(id(one), (path, one))
            if first != path:
                line, place = _nowhere(line, first), None
        placed.append((line, place))
    lines, per_device = _count(placed, given)
    meshes = [mesh for _, mesh in placed if mesh]
    return Memory(lines, per_device, tuple(view.notes(lines, meshes)))


def _leaves(
    jax: ModuleType, tree: object, shardings: object
) -> list[tuple[str, Any, Any]]:
    """Path, leaf and wanted sharding of each leaf."""

    def flatten(
        tree: object, is_leaf: Callable[[object], bool]
    ) -> list[tuple[Keys, Any]]:
        pairs = jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_leaf)[0]
        return [(tuple(map(word, keys)), leaf) for keys, leaf in pairs]

    def word(key: Hashable) -> str:
        return str(jax.tree_util.keystr((key,), simple=True))

    flat_shardings = flatten(shardings, lambda node: node is None or _holds_one(node))
    wanted = {keys: unwrap(sharding) for keys, sharding in flat_shardings}
    for keys, sharding in wanted.items():
        _check_wanted(shardings, "/".join(keys), sharding)
    used: set[Keys] = set()
    leaves: list[tuple[str, Any, Any]] = []
    flat = flatten(tree, _holds_one)
    data = [pair for pair in flat if not _is_function(pair[1])]
    for keys, leaf in data or flat:
        above = [keys[:n] for n in range(len(keys) + 1) if keys[:n] in wanted]
        if not above:
            raise NotUnderstood(
                f"shardings={short(shardings)} has no spec for the leaf "
                f"{'/'.join(keys)!r}; give one sharding for all leaves, or a tree "
                "with the same keys, with None for what stays as it is."
            )
        used.update(above)
        leaves.append(("/".join(keys) or "(the array)", leaf, wanted[above[0]]))
    if idle := [keys for keys in wanted if keys and keys not in used]:
        raise NotUnderstood(
            f"shardings={short(shardings)} has {'/'.join(idle[0])!r}, which is not in "
            "the tree; give a tree with the same keys."
        )
    return leaves


def _holds_one(node: object) -> bool:
    """A Flax variable or box is one leaf, so that its path is not '…/value'."""
    known = has_method(node, "get_value") or has_method(node, "unbox")
    return known and not isinstance(node, type)


def _is_function(node: object) -> bool:
    """Whether a leaf is a function, such as a module's activation: no data."""
    return callable(node) and not has_method(node, "__array__") and not _holds_one(node)


def _check_wanted(shardings: object, path: str, sharding: object) -> None:
    if isinstance(sharding, jax_types("Mesh", "AbstractMesh")):
        raise NotUnderstood(
            "shardings=… is a mesh; give it by name, memory(tree, mesh=mesh), and "
            "beside it the spec, such as memory(tree, P('data'), mesh=mesh)."
        )
    kinds = jax_types("Sharding", "PartitionSpec")
    if sharding is not None and not isinstance(sharding, kinds):
        where = f" at {path!r}" if path else ""
        raise NotUnderstood(
            f"shardings={short(shardings)}: {short(sharding)}{where} is not a "
            "sharding; give a NamedSharding, a PartitionSpec, or None for a leaf that "
            "stays as it is."
        )


def _line(
    path: str,
    leaf: Any,
    sharding: "Sharding | PartitionSpec | None",
    given: MeshFacts | None,
) -> tuple[MemoryLine, MeshFacts | None]:
    """One leaf's line, and the mesh that it lies on."""
    if isinstance(leaf, (bool, int, float, complex)):
        return MemoryLine(path, (), type(leaf).__name__, "", 0, 0, 0, (), HOST), None
    _check_array(leaf)
    own = _own_sharding(leaf) if sharding is None else sharding
    if type(leaf).__module__.split(".")[0] == "numpy":
        dtype, size = read_dtype(leaf.dtype)
        if sharding is None:
            total = math.prod(leaf.shape) * size
            return MemoryLine(path, leaf.shape, dtype, "", 0, total, 0, (), HOST), None
        leaf = leaf.shape
    else:
        dtype = "float32"  # not used: the leaf has its own
        if own is None and not (isinstance(leaf, ShardingInfo) or is_tracer(leaf)):
            raise NotUnderstood(
                f"{short(leaf)} has no sharding yet; give one, such as memory(tree, "
                "P('data'), mesh=mesh), or memory(tree, shardings) with a tree of "
                "NamedShardings."
            )
    if not isinstance(own, jax_types("NamedSharding", "SingleDeviceSharding")):
        if _is_sharding(own):
            return _unnamed(path, leaf, own)
        if isinstance(own, jax_types("PartitionSpec")) and given is None:
            raise NotUnderstood(
                f"{str(own).replace(',)', ')')} comes without a mesh; give the mesh "
                "too, as in memory(tree, P('data'), mesh=mesh)."
            )
    on = given if isinstance(own, jax_types("PartitionSpec")) else None
    info = read_sharding(leaf, sharding, mesh=on, dtype=dtype)
    place = MeshFacts(info.mesh_shape, info.device_ids, info.platform)
    line = MemoryLine(
        path=path,
        shape=info.shape,
        dtype=info.dtype,
        spec=spec_words(_long(info)) if info.axes else "one device",
        bytes_per_device=info.bytes_per_device,
        total_bytes=info.total_bytes,
        copies=info.replicas,
        devices=_ids(place),
    )
    if "host" in (getattr(own, "memory_kind", None) or ""):
        return _nowhere(line, HOST), None
    return line, place


def _long(info: ShardingInfo) -> tuple[tuple[str, ...], ...]:
    """A spec's axes without those of one device, where the mesh has others."""
    sizes = info.mesh_shape
    if max(sizes.values(), default=1) == 1:
        return info.entries
    return tuple(tuple(a for a in axes if sizes[a] > 1) for axes in info.entries)


def _is_sharding(x: object) -> "TypeGuard[Sharding]":
    return isinstance(x, jax_types("Sharding"))


def _check_array(leaf: object) -> None:
    shape, dtype = getattr(leaf, "shape", None), getattr(leaf, "dtype", None)
    if not isinstance(shape, tuple) or dtype is None:
        raise NotUnderstood(
            f"{short(leaf)} is a {type(leaf).__name__}, not an array; hand over the "
            "arrays alone, such as nnx.state(model), or take this leaf out of the tree."
        )


def _own_sharding(leaf: Any) -> "Sharding | None":
    try:
        return getattr(leaf, "sharding", None)
    except TypeError:  # a ShapeDtypeStruct with a bare PartitionSpec
        raise NotUnderstood(
            f"the {type(leaf).__name__} of shape {leaf.shape} has a PartitionSpec and "
            "no mesh; call this inside of  with jax.set_mesh(mesh):  as JAX requires."
        ) from None


def _unnamed(
    path: str, leaf: Any, sharding: "Sharding"
) -> tuple[MemoryLine, MeshFacts]:
    """An array whose sharding names no axes: its blocks can still be counted."""
    dtype, size = read_dtype(leaf.dtype)
    devices: list[JaxDevice] = sorted(sharding.device_set, key=attrgetter("id"))
    block = math.prod(sharding.shard_shape(leaf.shape)) * size
    total = math.prod(leaf.shape) * size
    copies = block * len(devices) // total if total else 1
    ids, kind = tuple(device.id for device in devices), type(sharding).__name__
    line = MemoryLine(path, leaf.shape, dtype, kind, block, total, copies, ids)
    return line, MeshFacts({}, ids, devices[0].device_kind)


def _nowhere(line: MemoryLine, where: str) -> MemoryLine:
    """The line of what holds nothing on a device."""
    return replace(line, bytes_per_device=0, copies=0, devices=(), where=where)


# The arithmetic. Small on purpose: the tests break each, and each must fail then.


def _ids(place: MeshFacts) -> tuple[int, ...]:
    """The devices of a mesh; their positions where there are none."""
    if place.device_ids is None:
        return tuple(range(place.size))
    return tuple(place.device_ids)


def _kind(place: MeshFacts) -> str:
    """'cpu' for '8 × cpu'; '' for a mesh without devices."""
    return re.sub(r"^\d+ × ", "", place.platform)


def _count(
    placed: Sequence[tuple[MemoryLine, MeshFacts | None]], given: MeshFacts | None
) -> tuple[tuple[MemoryLine, ...], dict[Device, int]]:
    """Lines with names for their devices, and the bytes of each device.

    Ids repeat from one kind of device to the next: where there are several kinds,
    a device's name says which.
    """
    places = [place for _, place in placed if place] + ([given] if given else [])
    several = len({_kind(place) for place in places} - {""}) > 1

    def names(place: MeshFacts) -> tuple[Device, ...]:
        if not several:
            return _ids(place)
        kind = _kind(place) or "position"
        return tuple(f"{kind} {number}" for number in _ids(place))

    per_device: dict[Device, int] = dict.fromkeys(names(given), 0) if given else {}
    lines = []
    for line, place in placed:
        line = replace(line, devices=names(place)) if place else line
        lines.append(line)
        for device in line.devices:
            per_device[device] = per_device.get(device, 0) + line.bytes_per_device
    ordered = sorted(per_device.items(), key=lambda item: (str(type(item[0])), item[0]))
    return tuple(lines), dict(ordered)
