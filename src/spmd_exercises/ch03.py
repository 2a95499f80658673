"""Checks of chapter 3, meshes and PartitionSpecs."""

import functools
from collections.abc import Callable, Iterable, Mapping

import jax
import numpy as np
from jax.sharding import Mesh, PartitionSpec

import spmd_helpers as spmd
from spmd_helpers import CheckFailed, NotUnderstood, ShardingInfo, SpecError

from ._setting import devices, make_mesh, number, require_function, require_spec, short

_MESH = {"data": 4, "model": 2}
_CUBE = {"data": 2, "seq": 2, "model": 2}


def check_3_1(shard_shape: object, rows_of_3: object, columns_of_3: object) -> None:
    """A spec read against a mesh: the shape of a shard, and the ranges of one."""
    info = spmd.sharding((10, 12), PartitionSpec("model", "data"), mesh=_MESH)
    block = next(block for block, ids in info.owners.items() if 3 in ids)
    shape = _pair("shard_shape", shard_shape)
    ranges = {
        "rows_of_3": _pair("rows_of_3", rows_of_3),
        "columns_of_3": _pair("columns_of_3", columns_of_3),
    }
    if shape != info.shard_shape:
        raise CheckFailed(
            f"shard_shape is {_plain(shape)}. Entry 0 of the spec shards dimension 0,"
            " whatever the order of the mesh axes: into how many shards is each"
            " dimension of (10, 12) split?"
        )
    for (name, range_), right in zip(ranges.items(), info.slices(block), strict=True):
        if range_ != right:
            raise CheckFailed(
                f"{name} is {_plain(range_)}. Look for device 3 in the drawing of the"
                " mesh: what is its position along the axis that shards the"
                f" {name.split('_')[0]}, counted from 0? The stop is the first"
                " index after the range."
            )


def check_3_2(column_spec: object) -> None:
    """The spec whose shards are shared by the columns of the mesh."""
    info = _place((12, 20), column_spec, _MESH, "column_spec")
    sharing = sorted(sorted(ids) for ids in info.owners.values())
    if sharing != [[0, 2, 4, 6], [1, 3, 5, 7]]:
        raise CheckFailed(
            f"{column_spec}: these groups of devices have the same shard: {sharing}."
            " Along which mesh axis do the devices of one column differ, and should"
            " that axis be in the spec?"
        )
    if info.shard_shape != (6, 20):
        raise CheckFailed(
            f"{column_spec}: each device has a shard of shape {info.shard_shape} of"
            " (12, 20), but it has to be half of the rows with all columns: which"
            " entry of the spec is for the rows?"
        )


def check_3_3(holders: object) -> None:
    """The devices that have one row of a dimension sharded along two axes."""
    ids = _device_ids(holders)
    info = spmd.sharding(
        (16,), PartitionSpec(("c", "a")), mesh={"a": 2, "b": 2, "c": 2}
    )
    right = set(info.owners[(13 // info.shard_shape[0],)])
    shown = f"{{{', '.join(f'{one:g}' for one in sorted(ids))}}}"
    if len(ids) > len(right):
        raise CheckFailed(
            f"holders is {shown}, which is too many. Two devices have the same shard"
            " only if they differ along axes that the spec does not use: how many"
            " devices are that here?"
        )
    if len(ids) < len(right):
        raise CheckFailed(
            f"holders is {shown}, which is too few. Is there a mesh axis that the spec"
            " does not use? Each shard is replicated along it. Devices are numbered"
            " from 0 to 7."
        )
    if ids != right:
        raise CheckFailed(
            f"holders is {shown}, but not all of these have row 13. Number the shards:"
            " the first axis of the tuple counts slowest, the last one fastest. Which"
            " shard has row 13, and what are its coordinates along c and a?"
        )


def check_3_4(cache_spec: object) -> None:
    """A spec within a budget of bytes; every device has the full sequence."""
    info = _place((4, 512, 6, 32), cache_spec, _CUBE, "cache_spec")
    if info.shard_shape[1] != 512:
        raise CheckFailed(
            f"{cache_spec}: each device has {info.shard_shape[1]} of 512 positions of"
            " the sequence, but needs all of them. Which other dimensions can be"
            " sharded?"
        )
    if info.bytes_per_device > 200_000:
        raise CheckFailed(
            f"{cache_spec}: {info.bytes_per_device:,} bytes per device, in"
            f" {info.replicas} replicas, but the budget is 200,000. Which mesh axis"
            " does the spec not use, and where could it still go?"
        )


def check_3_5(spec_for: Callable[..., object]) -> None:
    """A rule that shards the largest dimension that divides."""
    require_function(spec_for, "spec_for")
    for mesh, axis in _meshes_and_axes():
        for shape in _shapes():
            call = f"spec_for({shape}, {axis!r}, mesh) on the mesh {dict(mesh.shape)}"
            spec = spec_for(shape, axis, mesh)
            entries = _place(shape, spec, mesh, call).entries
            if entries != _largest_that_divides(shape, axis, mesh.shape[axis]):
                raise CheckFailed(
                    f"{call} is {spec}. The axis {axis!r} has size"
                    f" {mesh.shape[axis]}: which dimensions divide by it, and which of"
                    " these is the largest, the first of them if there are several?"
                )


def _largest_that_divides(
    shape: tuple[int, ...], axis: str, n: int
) -> tuple[tuple[str, ...], ...]:
    fits = [size for size in shape if size % n == 0]
    chosen = shape.index(max(fits)) if fits else None
    return tuple((axis,) if d == chosen else () for d in range(len(shape)))


@functools.cache
def _shapes() -> list[tuple[int, ...]]:
    """Shapes of ranks 0 to 4; dimensions that tie, and none that divides."""
    rng = np.random.default_rng(35)
    sizes = (3, 4, 5, 6, 8, 9, 10, 12, 14, 96, 784)
    drawn = [tuple(map(int, rng.choice(sizes, rank))) for rank in (1, 2, 3, 4) * 4]
    return [(784, 512), (512, 784), (96, 128), (8, 8, 8), (9, 5), (12, 14), (), *drawn]


def _meshes_and_axes() -> list[tuple[Mesh, str]]:
    """Meshes with other sizes, other orders and other names than the chapter's."""
    few = np.array(devices(6)).reshape(2, 3)
    meshes = [
        make_mesh(data=4, model=2),
        make_mesh(model=4, data=2),
        make_mesh(batch=2, rows=2, columns=2),
        Mesh(few, ("replica", "expert")),
    ]
    return [(mesh, axis) for mesh in meshes for axis in mesh.axis_names]


def _place(
    shape: tuple[int, ...], spec: object, mesh: Mesh | Mapping[str, int], name: str
) -> ShardingInfo:
    """The sharding by a spec; `name` is the answer in the message if there is none."""
    spec = require_spec(spec, name)
    try:
        info = spmd.sharding(shape, spec, mesh=mesh)
    except (SpecError, NotUnderstood) as error:
        raise CheckFailed(f"{name} is {spec}: {error}") from None
    if info.unreduced:
        raise CheckFailed(
            f"{name} is {spec}: over {', '.join(info.unreduced)} each device would"
            " have a partial sum, but these devices have to have the same values"
        )
    return info


def _pair(name: str, answer: object) -> tuple[float, float]:
    """Two numbers, in any container that has an order."""
    if isinstance(answer, np.ndarray | jax.Array):
        answer = answer.tolist()
    if not isinstance(answer, tuple | list) or len(answer) != 2:
        raise CheckFailed(
            f"{name} is {short(answer)}, but has to be two numbers, like (0, 12)"
        )
    return number(answer[0], name), number(answer[1], name)


def _device_ids(answer: object) -> set[float]:
    """The numbers of devices; the devices themselves stand for theirs."""
    if not isinstance(answer, Iterable) or isinstance(answer, str | bytes | Mapping):
        raise CheckFailed(
            f"holders is {short(answer)}, but has to be a set of device numbers"
        )
    if isinstance(answer, np.ndarray | jax.Array) and answer.ndim != 1:
        raise CheckFailed(
            f"holders has shape {answer.shape}, but has to be a set of device numbers"
        )
    return {
        one.id if isinstance(one, jax.Device) else number(one, "holders")
        for one in answer
    }


def _plain(pair: tuple[float, float]) -> str:
    """A pair as it is written: 5.0 is 5."""
    return f"({pair[0]:g}, {pair[1]:g})"
