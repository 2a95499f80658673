"""What a program may take of a card that is not there, and one that takes more."""

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING

from .._aot.does_not_fit import Buffer, DoesNotFit, arguments_of, largest_of
from .._aot.peak import peak_bytes
from .._core.source_lines import place_name
from .._hlo.constants import constant_bytes
from .._hlo.labels import source
from .._hlo.live import Live, live_at_peak
from .._hlo.parser import Module, Shape, parse

if TYPE_CHECKING:
    from jax import Device
    from jax.stages import Compiled

    from .._shardings.types import JaxDevice

# The part of the card's memory that JAX's allocator takes, of which all arrays and
# temporaries come (jax 0.10.2 to 0.12), and the variables that set another.
_SHARE = 0.75
_VARIABLES = ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION")


@dataclass(frozen=True)
class _Memory:
    card: str
    bytes: int


_of_device: dict[object, _Memory] = {}


def remember(devices: "Iterable[Device]", card: str, memory_bytes: int) -> None:
    """Keep what is known of absent devices; the devices themselves don't tell."""
    for device in devices:
        _of_device[device] = _Memory(card, memory_bytes)


def are_absent(devices: "Iterable[JaxDevice]") -> bool:
    """Whether these are devices of a `gpu_mesh`, which are not there."""
    return any(device in _of_device for device in devices)


def card_of(device: object) -> str | None:
    """The card that `gpu_mesh` was asked for, of one of its devices."""
    known = _of_device.get(device)
    return known.card if known else None


def share() -> float:
    """The part of a card's memory that JAX takes: 0.75, or what a variable says.

    A value that is no number, or not from 0 to 1, counts as not set. JAX takes more
    than 1 with unified memory, which is not counted here.
    """
    given = next(filter(None, map(os.environ.get, _VARIABLES)), "")
    try:
        number = float(given)
    except ValueError:
        return _SHARE
    return number if 0 < number <= 1 else _SHARE


def too_large(
    jax: ModuleType,
    compiled: "Compiled",
    devices: "Iterable[JaxDevice]",
    args: tuple[object, ...] = (),
    kwargs: Mapping[str, object] | None = None,
    traced: object = None,
    text: str = "",
) -> DoesNotFit | None:
    """The DoesNotFit of a program that absent GPUs have too little memory for.

    The GPU compiler refuses no program for its size, so the peak is compared with what
    JAX's allocator takes of the card. None for a program that fits, and for devices
    that are not `gpu_mesh`'s.

    Args:
        jax: the module.
        compiled: JAX's compiled stage.
        devices: those that it was compiled for.
        args: the function's arguments, for the report to name.
        kwargs: those given by name.
        traced: JAX's traced stage, which knows what the function calls them.
        text: what the compiler logged.
    """
    known = next((_of_device[d] for d in devices if d in _of_device), None)
    if known is None:
        return None
    memory, module = compiled.memory_analysis(), parse(compiled.as_text() or "")
    needed = peak_bytes(memory, "gpu", constant_bytes(module) if module else 0)
    part = share()
    available = int(part * known.bytes)
    if memory is None or needed is None or needed <= available:
        return None
    buffers = arguments_of(jax, args, kwargs, traced)
    if module is not None:
        buffers += _results(module, memory.alias_size_in_bytes)
        buffers += _temporaries(module, memory.temp_size_in_bytes)
    return DoesNotFit(
        needed,
        available,
        chip=known.card,
        largest=largest_of(buffers, needed),
        text=text,
        share=(
            f"JAX takes {part:.0%} of the {known.bytes / 2**30:.2f} GiB of such a "
            f"card; {_VARIABLES[0]} sets another share."
        ),
    )


def _results(module: Module, aliased: int) -> list[Buffer]:
    """The results that replace no argument, as far as their bytes tell which do."""
    results = [_buffer("result", shape) for shape in module.entry.root.shapes]
    for one in sorted(results, key=lambda buffer: -buffer.bytes):
        if one.bytes <= aliased:
            aliased -= one.bytes
            results.remove(one)
    return results


def _temporaries(module: Module, total: int) -> Iterator[Buffer]:
    """The largest of the temporaries, no more than the compiler has in all."""
    for live in sorted(live_at_peak(module), key=lambda one: -one.shape.nbytes):
        if live.shape.nbytes <= total:
            total -= live.shape.nbytes
            yield _temporary(module, live)


def _temporary(module: Module, live: Live) -> Buffer:
    name = live.instruction.quoted("op_name") or ""
    # 'jit(step)/jvp()/dot_general': the function's own name says nothing here.
    label = name.partition("/")[2] or name
    line = source(module, live.place, live.instruction)
    what = f"temporary: {label}" if label else "temporary"
    return _buffer(what, live.shape, place_name(*line) if line else None)


def _buffer(what: str, shape: Shape, line: str | None = None) -> Buffer:
    words = f"{shape.dtype}[{','.join(map(str, shape.dims))}]"
    return Buffer(shape.nbytes, what, words, line)
