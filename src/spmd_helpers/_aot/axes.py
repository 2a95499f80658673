"""The axes of a mesh of absent devices, checked before a compiler is asked."""

from collections.abc import Callable, Mapping, Sequence
from math import prod
from types import ModuleType
from typing import TYPE_CHECKING

from .._core.validate import integer
from .._errors import MeshMismatch, NotUnderstood

if TYPE_CHECKING:
    from jax.sharding import AxisType


def checked_sizes(
    call: str,
    axes: Mapping[str, int],
    devices: int,
    there_are: str,
    examples: Callable[[int], str],
) -> tuple[int, ...]:
    """The sizes of a mesh's axes, whose product is the number of devices.

    Args:
        call: how the function is called so far, "tpu_mesh('v5e:2x4'", for an example.
        axes: axis name → size.
        devices: how many there are.
        there_are: the clause that says how many: "v5e:2x4 has 8".
        examples: from a number of axes to meshes that fit, in words.

    Raises:
        NotUnderstood: there are no axes, or a size is no integer.
        MeshMismatch: the sizes do not multiply to the number of devices.
    """
    if not axes:
        raise NotUnderstood(
            f"no axes: name them and their sizes, such as {call}, data={devices})"
        )
    sizes = tuple(
        integer(axis, size, "a number of devices") for axis, size in axes.items()
    )
    if prod(sizes) != devices:
        words = " · ".join(f"{axis}={size}" for axis, size in axes.items())
        raise MeshMismatch(
            f"{words} are {prod(sizes)} devices, and {there_are}; meshes that fit "
            f"are {examples(len(sizes))}"
        )
    return sizes


def checked_types(
    jax: ModuleType, given: "AxisType | str | Sequence[AxisType | str]", axes: int
) -> "tuple[AxisType, ...]":
    """An AxisType for each axis, from one for all or one for each.

    Raises:
        NotUnderstood: `given` is neither.
    """
    kinds = jax.sharding.AxisType
    by_name = {"auto": kinds.Auto, "explicit": kinds.Explicit}
    alone = isinstance(given, str | kinds)
    types: object = [given] * axes if alone else given
    if isinstance(types, Sequence) and len(types) == axes:
        read = [by_name.get(kind) or kind for kind in types]
        if all(isinstance(kind, kinds) for kind in read):
            return tuple(read)
    raise NotUnderstood(
        f"axis_types={given!r} is of no use: give 'auto', 'explicit' or an AxisType, "
        "or one of these for each axis"
    )


def mesh_words(shape: Sequence[int], names: Sequence[str]) -> str:
    """A mesh as a message suggests it.

    >>> mesh_words((4, 2), ("data", "model"))
    '(data=4, model=2)'
    """
    pairs = zip(names, shape, strict=True)
    return "(" + ", ".join(f"{name}={size}" for name, size in pairs) + ")"
