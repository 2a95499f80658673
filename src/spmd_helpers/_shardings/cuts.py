"""The mesh axes that shard each dimension of an array: from a spec, and in words."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeGuard

from . import sharding

if TYPE_CHECKING:
    from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

Cuts = tuple[tuple[str, ...], ...]  # for each dimension the mesh axes that shard it


def is_named(given: object) -> "TypeGuard[NamedSharding]":
    """Whether a sharding names the mesh axes that shard each dimension."""
    return hasattr(given, "spec")


def cuts_of(
    spec: "PartitionSpec", mesh: "Mesh | AbstractMesh", rank: int
) -> Cuts | None:
    """For each dimension the axes longer than 1 that a spec cuts it with."""
    cuts: list[tuple[str, ...]] = []
    for part in tuple(getattr(spec, "partitions", spec)):
        if part is not None and not isinstance(part, (str, tuple)):
            return None  # left to the compiler
        names = (part,) if isinstance(part, str) else tuple(part or ())
        cuts.append(tuple(str(axis) for axis in names if mesh.shape[axis] > 1))
    return (*cuts, *((),) * (rank - len(cuts)))


def spec_words(cuts: Cuts) -> str:
    """A spec as a reader writes it, without the Nones at its end.

    >>> spec_words((("data",), (), ("model", "pipe"), ()))
    "P('data', None, ('model', 'pipe'))"
    """
    while cuts and not cuts[-1]:
        cuts = cuts[:-1]
    return sharding.spec_words(cuts)


def array_words(shape: Sequence[int], dtype: str) -> str:
    """'float32[6, 10]', as drawings and shardings say it."""
    return f"{dtype}[{', '.join(map(str, shape))}]"
