"""Collectives to play: read from HLO text, or compiled from JAX and run."""

import itertools
import math
from dataclasses import dataclass

import jax
import numpy as np
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from spmd_helpers._hlo.collectives import Collective, read_hlo
from spmd_helpers._xray.xray import xray

# What each kind is given and gives, of n · m elements in a group of n.
SHAPES = {
    "all-gather": (lambda n, m: m, lambda n, m: n * m),
    "reduce-scatter": (lambda n, m: n * m, lambda n, m: m),
    "all-reduce": (lambda n, m: m, lambda n, m: m),
    "all-to-all": (lambda n, m: n * m, lambda n, m: n * m),
    "collective-permute": (lambda n, m: m, lambda n, m: m),
}
KINDS = tuple(SHAPES)


def written(kind: str, groups, m: int, mesh: dict[str, int]) -> Collective:
    """A collective as `read_hlo` reads it.

    Args:
        kind: one of KINDS.
        groups: lists of positions; of a permute, pairs.
        m: elements of 4 bytes, as SHAPES takes them.
        mesh: axis name → size.
    """
    n = 1 if kind == "collective-permute" else len(groups[0])
    given, got = (count(n, m) for count in SHAPES[kind])
    listed = "},{".join(",".join(map(str, group)) for group in groups)
    permutes = kind == "collective-permute"
    name = "source_target_pairs" if permutes else "replica_groups"
    text = f"""HloModule jit_f, num_partitions={math.prod(mesh.values())}

ENTRY main {{
  p = f32[{given}] parameter(0)
  ROOT r = f32[{got}] {kind}(p), {name}={{{{{listed}}}}}
}}
"""
    (collective,) = read_hlo(text, mesh)
    return collective


def rows(groups: int, size: int) -> tuple[tuple[int, ...], ...]:
    """Groups of neighbors."""
    return tuple(tuple(range(g * size, (g + 1) * size)) for g in range(groups))


def columns(groups: int, size: int) -> tuple[tuple[int, ...], ...]:
    """Groups of devices that are `groups` apart."""
    return tuple(tuple(range(g, groups * size, groups)) for g in range(groups))


# Programs that JAX compiles and runs: each device's values tell where they came from.


@dataclass(frozen=True)
class Ran:
    """A compiled collective, and what each device had after it.

    Attributes:
        collective: the only one of the program.
        after: device's position → for each slot the (device, slot) of what is in it.
    """

    collective: Collective
    after: dict[int, list[set[tuple[int, int]]]]


def run(kind: str, sizes: dict[str, int], axes: tuple[str, ...], pairs=()) -> Ran:
    """Compile and run a collective over axes of a mesh of these sizes."""
    count, n = math.prod(sizes.values()), math.prod(sizes[a] for a in axes)
    devices = np.array(jax.devices()[:count]).reshape(tuple(sizes.values()))
    auto = (AxisType.Auto,) * len(sizes)
    mesh = Mesh(devices, tuple(sizes), axis_types=auto)
    slots = n if kind in ("reduce-scatter", "all-reduce", "all-to-all") else 1
    each = np.zeros((count, slots, count, slots), np.float32)
    for device, slot in itertools.product(range(count), range(slots)):
        each[device, slot, device, slot] = 1
    spec = P(tuple(sizes))
    x = jax.device_put(
        each.reshape(count * slots, count, slots), NamedSharding(mesh, spec)
    )
    body = {
        "all-gather": lambda x: lax.all_gather(x, axes, axis=0, tiled=True),
        "reduce-scatter": lambda x: lax.psum_scatter(x, axes, tiled=True),
        "all-reduce": lambda x: lax.psum(x, axes),
        "all-to-all": lambda x: lax.all_to_all(x, axes, 0, 0, tiled=True),
        "collective-permute": lambda x: lax.ppermute(x, axes, pairs),
    }[kind]
    mapped = jax.shard_map(
        body, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False
    )
    compiled = jax.jit(mapped).lower(x).compile()
    (collective,) = xray(compiled, mesh=mesh).collectives
    place = {device: p for p, device in enumerate(devices.flat)}
    after = {
        place[shard.device]: [
            {(int(d), int(s)) for d, s in zip(*np.nonzero(row), strict=True)}
            for row in np.asarray(shard.data)
        ]
        for shard in compiled(x).addressable_shards
    }
    return Ran(collective, after)
