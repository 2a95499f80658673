"""Several trees on the devices of a mesh, and what changes from stage to stage.

A leaf is divided into equal pieces, so that no stage's sharding divides one of them;
each device has some of the pieces at each stage. Leaves of a tree of which
every device has the same pieces at each stage are one row.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .._core.palette import SHARDS
from .._core.words import count_words
from .._drawing.picture import position
from .._errors import MeshMismatch, NotUnderstood, SpecError
from .._runtime.require import require_jax
from .._shardings.from_jax import sharding as read_sharding
from .._shardings.sharding import ShardingInfo

MOST = len(SHARDS)  # devices, and pieces of a leaf
Owned = tuple[frozenset[int], ...]  # for each device the pieces that it has


@dataclass(frozen=True)
class Row:
    """Leaves of one tree that are sharded alike at every stage.

    Attributes:
        tree: the name of their tree.
        paths: where they stand in it.
        pieces: how many pieces each of them has.
        piece_bytes: bytes of one piece, of all the leaves together.
        stages: what each device has of them, for each stage.
    """

    tree: str
    paths: tuple[str, ...]
    pieces: int
    piece_bytes: int
    stages: tuple[Owned, ...]

    @property
    def total_bytes(self) -> int:
        """Bytes of the leaves, counted once."""
        return self.pieces * self.piece_bytes

    def bytes_on(self, stage: int, device: int) -> int:
        """Bytes that a device has of them at a stage."""
        return self.piece_bytes * len(self.stages[stage][device])


@dataclass(frozen=True)
class Trees:
    """All rows of all stages, and the devices' ids."""

    names: tuple[str, ...]
    devices: tuple[int, ...]
    rows: tuple[Row, ...]

    def bytes_on(self, stage: int, device: int) -> int:
        """Bytes that a device has of all trees at a stage."""
        return sum(row.bytes_on(stage, device) for row in self.rows)


def read(stages: object) -> Trees:
    """The trees of each stage.

    Raises:
        NotUnderstood: they are no trees of arrays, or differ from stage to stage in
            more than their shardings, or are more than can be drawn.
        MeshMismatch: they are on different devices.
    """
    named = _checked(stages)
    leaves: dict[tuple[str, str], list[ShardingInfo]] = {}
    for trees in named.values():
        for tree, nodes in trees.items():
            for path, info in _leaves(str(tree), nodes):
                leaves.setdefault((str(tree), path), []).append(info)
    devices = _devices(leaves)
    alike: dict[tuple[Any, ...], list[tuple[str, int]]] = {}
    for (tree, path), infos in leaves.items():
        _check_alike(f"{tree}/{path}".rstrip("/"), infos, len(named))
        cuts = [_cuts(infos, dim) for dim in range(len(infos[0].shape))]
        pieces = math.prod(len(cut) - 1 for cut in cuts)
        owned = tuple(_owned(info, cuts) for info in infos)
        each = infos[0].total_bytes // pieces
        alike.setdefault((tree, pieces, owned), []).append((path, each))
    rows = []
    for (tree, pieces, owned), group in alike.items():
        paths = tuple(path for path, _ in group)
        rows.append(Row(tree, paths, pieces, sum(each for _, each in group), owned))
    _check_drawn(rows, devices)
    return Trees(tuple(map(str, named)), devices, tuple(rows))


def _checked(stages: object) -> Mapping[Any, Mapping[Any, object]]:
    named = stages if isinstance(stages, Mapping) else {}
    if not named or not all(isinstance(trees, Mapping) for trees in named.values()):
        raise NotUnderstood(
            "stages has to be a dict from the name of a stage to a dict from the name "
            "of a tree to the tree, such as {'ZeRO-3': {'parameters': params}}; it is "
            f"{type(stages).__name__}."
        )
    return named


def _leaves(tree: str, nodes: object) -> list[tuple[str, ShardingInfo]]:
    jax = require_jax()
    flat = jax.tree_util.tree_flatten_with_path(nodes)[0]
    leaves = []
    for keys, leaf in flat:
        path = jax.tree_util.keystr(keys, simple=True, separator="/")
        try:
            leaves.append((path, read_sharding(leaf)))
        except (SpecError, MeshMismatch, NotUnderstood) as error:
            raise type(error)(f"leaf {tree}/{path}: {error}") from None
    return leaves


def _devices(leaves: Mapping[tuple[str, str], list[ShardingInfo]]) -> tuple[int, ...]:
    known = {
        info.device_ids or tuple(range(info.device_count))
        for infos in leaves.values()
        for info in infos
    }
    if len(known) != 1:
        raise MeshMismatch(
            f"the trees are on {len(known)} meshes; a figure is of the devices of one: "
            "give at least one leaf, and all leaves shardings of one mesh."
        )
    return known.pop()


def _check_alike(path: str, infos: Sequence[ShardingInfo], stages: int) -> None:
    if len(infos) != stages or len({(i.shape, i.dtype) for i in infos}) != 1:
        raise NotUnderstood(
            f"leaf {path!r} is not the same array at each stage; give every stage the "
            "same trees, with other shardings."
        )


def _check_drawn(rows: Sequence[Row], devices: Sequence[int]) -> None:
    pieces = max(row.pieces for row in rows)
    if max(pieces, len(devices)) > MOST:
        raise NotUnderstood(
            f"{count_words(len(devices), 'device')} and {count_words(pieces, 'piece')} "
            f"of a leaf are more than {MOST}, which is what is drawn; take a smaller "
            "mesh."
        )


def _cuts(infos: Sequence[ShardingInfo], dim: int) -> range:
    """The boundaries of equal pieces of a dimension, which no sharding divides."""
    size = infos[0].shape[dim]
    step = math.gcd(*(info.shard_shape[dim] for info in infos))
    return range(0, size + 1, max(step, 1))


def _owned(info: ShardingInfo, cuts: Sequence[Sequence[int]]) -> Owned:
    """The pieces that each device has, numbered with the last dimension fastest."""
    owned: dict[int, frozenset[int]] = {}
    sizes = [len(cut) - 1 for cut in cuts]
    for block, places in info.owners.items():
        inside = [
            [number for number, start in enumerate(cut[:-1]) if low <= start < high]
            for cut, (low, high) in zip(cuts, info.slices(block), strict=True)
        ]
        pieces = frozenset(
            position(where, sizes) for where in itertools.product(*inside)
        )
        owned.update(dict.fromkeys(places, pieces))
    return tuple(owned[place] for place in sorted(owned))
