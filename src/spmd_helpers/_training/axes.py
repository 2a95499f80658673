"""The mesh that an argument gives: its axes, and what others call them."""

import itertools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NoReturn

from .._core.validate import axis_sizes, close_name
from .._core.words import join_words
from .._errors import NotUnderstood, SpecError, UnknownAxis

if TYPE_CHECKING:
    from jax.sharding import AbstractMesh, Mesh

    MeshLike = Mapping[str, int] | Mesh | AbstractMesh

# What others call them.
OTHER_AXES = {
    **{"dp": "data", "batch": "data", "replica": "data", "fully_sharded": "fsdp"},
    **{"tp": "model", "tensor": "model", "mp": "model", "cp": "context"},
    **{"sp": "context", "seq": "context", "sequence": "context"},
    **{"ep": "expert", "experts": "expert", "pp": "stage", "pipeline": "stage"},
    **{"pipe": "stage", "stages": "stage"},
}
_ELSEWHERE = ("fsdp", "context", "expert", "stage")  # axes that serving has not
_TRIED = 256  # meshes with other names, to find one that runs


def mesh_sizes(mesh: "MeshLike") -> dict[str, int]:
    """The axes of a mesh as they were given: in a mapping, or as JAX's Mesh."""
    shape = getattr(mesh, "shape", None)
    return axis_sizes("mesh", shape if isinstance(shape, Mapping) else mesh)


def known_mesh(
    mesh: "MeshLike",
    axes: Mapping[str, str],
    here: str,
    check: Callable[[dict[str, int]], object],
) -> dict[str, int]:
    """The axes of a mesh, if all of them are known.

    Args:
        mesh: as it was given.
        axes: the axes there are, and what each does.
        here: the words before them, such as 'here a mesh has'.
        check: refuses a mesh that does not run with the other arguments.

    Raises:
        UnknownAxis: an axis is not known. The message gives a mesh of as many devices
            that runs, if there is one.
    """
    shape = mesh_sizes(mesh)
    foreign = [axis for axis in shape if axis not in axes]
    if foreign:
        _refuse(shape, foreign, axes, here, check)
    return shape


def _refuse(
    shape: dict[str, int],
    foreign: list[str],
    axes: Mapping[str, str],
    here: str,
    check: Callable[[dict[str, int]], object],
) -> NoReturn:
    names = join_words([repr(axis) for axis in foreign])
    which = f"an axis {names}" if len(foreign) == 1 else f"axes {names}"
    words = join_words([f"{one!r} ({what})" for one, what in axes.items()])
    taken, targets = {*shape}, []
    for axis in foreign:
        targets.append(_targets(axis, taken, axes))
        taken.add(targets[-1][0])
    meant = [
        f"{axis!r} is called {ways[0]!r}"
        for axis, ways in zip(foreign, targets, strict=True)
        if len(ways) == 1
    ]
    remedy = f"{join_words(meant)} here" if meant else "use these names"
    for names_of in itertools.islice(itertools.product(*targets), _TRIED):
        fixed = _renamed(shape, dict(zip(foreign, names_of, strict=True)))
        if _runs(check, fixed):
            remedy = f"give {fixed}"
            break
    raise UnknownAxis(f"mesh={shape} has {which}; {here} {words}: {remedy}.")


def _targets(axis: str, taken: set[str], axes: Mapping[str, str]) -> list[str]:
    """The axes that a name can mean, the likeliest first."""
    word = axis.lower()
    meant = OTHER_AXES.get(word) or close_name(word, [*axes, *_ELSEWHERE], 0.7)
    if meant in axes:
        return [meant]
    if meant:
        return [*axes]
    return [*(one for one in axes if one not in taken), *axes]


def _renamed(shape: Mapping[str, int], names: Mapping[str, str]) -> dict[str, int]:
    """With other names; axes that then have the same are one, with all devices."""
    fixed: dict[str, int] = {}
    for axis, size in shape.items():
        name = names.get(axis, axis)
        fixed[name] = fixed.get(name, 1) * size
    return fixed


def _runs(check: Callable[[dict[str, int]], object], mesh: dict[str, int]) -> bool:
    try:
        check(mesh)
    except (NotUnderstood, SpecError):
        return False
    return True


def all_axes(shape: Mapping[str, int], axes: Mapping[str, str]) -> dict[str, int]:
    """The size of every axis there is; one that was not given has size 1."""
    return {axis: shape.get(axis, 1) for axis in axes}
