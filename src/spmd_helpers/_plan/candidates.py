"""Every mesh of so many devices that a model divides into, and every way on it."""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import product
from math import gcd, prod
from typing import NamedTuple

from .._training.model import MLP, Transformer
from .cluster import ORDER, Chips
from .step import AXES_OF_BATCH

POLICIES = (
    "everything_saveable",
    "dots_with_no_batch_dims_saveable",
    "nothing_saveable",
)


# Microbatches of a pipeline, for each of its stages; the first two that divide.
FOR_EACH_STAGE = (8, 4, 2, 1)
CHUNKS = (1, 2)


class Way(NamedTuple):
    """How a mesh is used: what `training_memory` needs beside it and the model.

    Attributes:
        zero: from which stage of ZeRO `data` shards the state.
        recompute: the policy.
        microbatches: in how many parts the batch goes through the stages.
        chunks: of layers that each device of `stage` has.
    """

    zero: int
    recompute: str
    microbatches: int = 1
    chunks: int = 1


def policies_of(model: Transformer | MLP) -> tuple[str, ...]:
    """The policies that are counted for a model: with experts not by its products."""
    return POLICIES if not model.moe_layers else (POLICIES[0], POLICIES[-1])


def useful_axes(model: Transformer | MLP) -> tuple[str, ...]:
    """The axes that a model has a use for, in the order of a mesh."""
    without = {"expert"} if not model.moe_layers else {"stage"}
    if isinstance(model, MLP):
        without = {"expert", "context", "stage"}
    return tuple(axis for axis in ORDER if axis not in without)


def meshes(
    model: Transformer | MLP,
    chips: Chips,
    axes: Sequence[str],
    batch: int,
    seq: int,
) -> Iterator[dict[str, int]]:
    """Every mesh of the chips that divides what can be known at once to divide."""
    limits = _limits(model, batch, seq)
    sizes = [limits[axis] if axis in axes else 1 for axis in ORDER]
    for shape in _shapes(chips.devices, sizes):
        mesh = dict(zip(ORDER, shape, strict=True))
        if batch % prod(mesh[axis] for axis in AXES_OF_BATCH):
            continue
        if mesh["stage"] > 1 and mesh["context"] > 1:
            continue
        if chips.has_room(shape):
            yield mesh


def ways(
    model: Transformer | MLP,
    mesh: dict[str, int],
    recompute: Sequence[str],
    batch: int,
) -> tuple[Way, ...]:
    """Every stage of ZeRO × policy × microbatches on a mesh, in a fixed order."""
    stages = (0, 1, 2) if mesh["data"] > 1 else (0,)
    if mesh["stage"] == 1:
        return _ways(stages, tuple(recompute), ((1, 1),))
    each = batch // prod(mesh[axis] for axis in AXES_OF_BATCH)
    schedules = tuple(_schedules(model.layers, mesh["stage"], each))
    policy = POLICIES[-1]
    return _ways(stages, (policy,) if policy in recompute else (), schedules)


@lru_cache(maxsize=256)
def _ways(
    stages: tuple[int, ...],
    recompute: tuple[str, ...],
    schedules: tuple[tuple[int, int], ...],
) -> tuple[Way, ...]:
    """All that these make; many meshes have them in common."""
    every = product(stages, recompute, schedules)
    return tuple([Way(zero, policy, *schedule) for zero, policy, schedule in every])


def _schedules(layers: int, stages: int, each: int) -> Iterator[tuple[int, int]]:
    """Microbatches and chunks of 1F1B and of its interleaved form."""
    counts = [n * stages for n in FOR_EACH_STAGE if each % (n * stages) == 0]
    for parts in counts[:2]:
        for chunks in CHUNKS:
            if layers % (stages * chunks) == 0:
                yield parts, chunks


def _limits(model: Transformer | MLP, batch: int, seq: int) -> dict[str, int]:
    """What the size of each axis has to divide."""
    wide = model.d_ff if model.moe_layers < model.layers else 0
    limits = {axis: batch for axis in AXES_OF_BATCH} | {"context": seq}
    if isinstance(model, MLP):
        return limits | {"model": wide, "stage": 1, "expert": 1}
    wide = gcd(wide, model.heads, (model.expert_d_ff or 0) if model.moe_layers else 0)
    experts = gcd(batch, model.experts or 1)
    return limits | {"model": wide, "stage": model.layers, "expert": experts}


def _shapes(count: int, limits: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """All ways to write a number as a product of divisors of the limits, in order."""
    if len(limits) == 1:
        if limits[0] % count == 0:
            yield (count,)
        return
    for first in range(1, count + 1):
        if count % first == 0 == limits[0] % first:
            for rest in _shapes(count // first, limits[1:]):
                yield (first, *rest)
