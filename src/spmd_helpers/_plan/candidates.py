"""Every mesh of so many devices that a model divides into, and every way on it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .._training.model import MLP, Transformer
from .cluster import ORDER, Chips

POLICIES = (
    "everything_saveable",
    "dots_with_no_batch_dims_saveable",
    "nothing_saveable",
)


@dataclass(frozen=True)
class Way:
    """A mesh and how it is used: what `training_memory` needs beside the model."""

    mesh: tuple[tuple[str, int], ...]
    zero: int
    recompute: str


def ways(
    model: Transformer | MLP,
    chips: Chips,
    axes: Sequence[str],
    recompute: Sequence[str],
    batch: int,
    seq: int,
) -> Iterator[Way]:
    """Every mesh × stage of ZeRO × policy, in a fixed order.

    What can be known at once to divide is asked here; `training_memory` asks the rest.
    """
    for shape in _shapes(chips.devices, len(ORDER)):
        mesh = dict(zip(ORDER, shape, strict=True))
        if any(size > 1 and axis not in axes for axis, size in mesh.items()):
            continue
        if not _divides(model, mesh, batch, seq) or not chips.has_room(shape):
            continue
        stages = (0, 1, 2) if mesh["data"] > 1 else (0,)
        for zero in stages:
            for policy in recompute:
                yield Way(tuple(mesh.items()), zero, policy)


def _divides(
    model: Transformer | MLP, mesh: dict[str, int], batch: int, seq: int
) -> bool:
    if batch % (mesh["data"] * mesh["fsdp"]) or model.d_ff % mesh["model"]:
        return False
    if isinstance(model, MLP):
        return mesh["context"] == 1
    return model.heads % mesh["model"] == 0 == seq % mesh["context"]


def _shapes(count: int, axes: int) -> Iterator[tuple[int, ...]]:
    """All ways to write a number as a product of so many, in order."""
    if axes == 1:
        yield (count,)
        return
    for first in range(1, count + 1):
        if count % first == 0:
            for rest in _shapes(count // first, axes - 1):
                yield (first, *rest)
