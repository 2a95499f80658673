"""What checks share: devices, meshes, placements, seeded data, and kinds of answers."""

import math
import numbers
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from spmd_helpers import CheckFailed, XRay

Floats = np.ndarray[Any, np.dtype[np.float32]]


def devices(n: int) -> list[jax.Device]:
    """The first n devices of the notebook's `use_devices`.

    Raises:
        CheckFailed: when JAX runs on fewer.
    """
    default = jax.config.jax_default_device  # use_devices sets it where it must
    there = jax.devices(getattr(default, "platform", None))
    if len(there) < n:
        raise CheckFailed(
            f"this check needs {n} devices and JAX runs on {len(there)}: restart the"
            " kernel and run all cells from the top"
        )
    return there[:n]


def make_mesh(axis_type: AxisType = AxisType.Auto, **axes: int) -> Mesh:
    """A mesh with these axes and sizes, like `make_mesh(data=4, model=2)`."""
    sizes, names = tuple(axes.values()), tuple(axes)
    return jax.make_mesh(
        sizes,
        names,
        axis_types=(axis_type,) * len(names),
        devices=devices(math.prod(sizes)),
    )


def on(mesh: Mesh, *entries: Any) -> NamedSharding:
    """The placement by the spec `P(*entries)` on a mesh."""
    return NamedSharding(mesh, PartitionSpec(*entries))


def abstract(
    shape: tuple[int, ...], sharding: jax.sharding.Sharding, dtype: Any = np.float32
) -> jax.ShapeDtypeStruct:
    """An array that is not there: its shape, its dtype and its sharding."""
    return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)


def normal(seed: int, *shape: int) -> Floats:
    """Random numbers of the standard normal distribution, the same for a seed."""
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def number(answer: object) -> float:
    """A number as a float, whichever library made it.

    Raises:
        CheckFailed: for what is no number: text, a list, an object with a method.
    """
    plain = getattr(answer, "item", None)
    if plain is not None and getattr(answer, "shape", None) == ():
        answer = plain()
    if isinstance(answer, bool) or not isinstance(answer, numbers.Real):
        raise CheckFailed(f"{answer!r} is no number")
    return float(answer)


def require_spec(answer: object, name: str = "") -> PartitionSpec:
    """The answer, which must be a PartitionSpec.

    Raises:
        CheckFailed: for anything else.
    """
    if not isinstance(answer, PartitionSpec):
        called = f"{name}: " if name else ""
        raise CheckFailed(f"{called}{answer!r} is not a P(...)")
    return answer


def redundancy(report: XRay) -> float:
    """How often the average product of a program is computed; 1 is once.

    Raises:
        CheckFailed: when the program does work that can't be counted.
    """
    if report.redundancy is None:
        raise CheckFailed("the program does work that the X-ray can't count")
    return report.redundancy
