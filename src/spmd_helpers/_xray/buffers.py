"""Which arguments of a call are in the same memory."""

from collections.abc import Iterator
from itertools import combinations
from types import ModuleType
from typing import Any

from .._core.attributes import attribute
from .compile import Program


def shared_buffers(
    jax: ModuleType, program: Program, count: int
) -> tuple[tuple[int, int], ...]:
    """Pairs of numbers of input leaves that share a buffer on a device.

    Args:
        jax: the module.
        program: the compiled function and its call.
        count: how many input leaves there are. Where the arguments of the call are
            not these leaves one by one, nothing is known: ().
    """
    leaves = jax.tree.leaves((program.call.args, program.call.kwargs))
    arrays = [x for x in leaves if attribute(x, "dtype") is not None]
    given = next((each for each in (leaves, arrays) if len(each) == count), [])
    at: dict[tuple[int, int], list[int]] = {}
    for number, x in enumerate(given):
        if isinstance(x, jax.Array) and not isinstance(x, jax.core.Tracer):
            for buffer in _buffers(x):
                at.setdefault(buffer, []).append(number)
    shared = (pair for each in at.values() for pair in combinations(each, 2))
    return tuple(dict.fromkeys(shared))


def _buffers(x: Any) -> Iterator[tuple[int, int]]:
    """(device, address) of each shard here; nothing where it can't be known."""
    try:
        shards = x.addressable_shards
        for shard in shards if x.size and not x.is_deleted() else ():
            yield shard.device.id, shard.data.unsafe_buffer_pointer()
    except Exception:  # random keys have no address, nor has every backend
        return
