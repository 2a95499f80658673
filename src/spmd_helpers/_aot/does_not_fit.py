"""A program that needs more memory than one device has, and what needs it."""

import re
from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import Any, NamedTuple, TypedDict

from .._core.words import bytes_words, table
from .._errors import OneSentence
from .._hardware.chips import HARDWARE
from .._hlo.parser import Shape, shapes

_MOST_ROWS = 8
_SMALLEST_SHARE = 0.01


class Buffer(NamedTuple):
    """A piece of one device's memory.

    Attributes:
        bytes: its size, with the padding to the chip's tiles.
        what: an argument's path, "result", "temporary", or what of these is known.
        shape: of the array in it, on one device: "f32[24,4096,16384]". Of several
            that lie there in turn, the largest.
        source: "train.py:12" where the text has it.
    """

    bytes: int
    what: str
    shape: str
    source: str | None = None


class DoesNotFit(OneSentence, RuntimeError):
    """A program needs more memory than one device has.

    Attributes:
        needed_bytes: of one device: arguments, results, temporaries, code. Rounded
            to 0.01 GiB where the compiler says no more.
        available_bytes: what the compiler has for programs, likewise.
        chip: what it was compiled for, as in HARDWARE; "" where that isn't known.
        largest: the largest Buffers, the largest first. Where the compiler told
            none, the largest arguments.
        text: all that the compiler said.
        share: of a GPU, the sentence that says which part of its memory JAX takes;
            "" for a TPU.
    """

    def __init__(
        self,
        needed_bytes: int,
        available_bytes: int,
        *,
        chip: str = "",
        largest: tuple[Buffer, ...] = (),
        text: str = "",
        share: str = "",
    ) -> None:
        self.needed_bytes = needed_bytes
        self.available_bytes = available_bytes
        self.chip = chip
        self.largest = largest
        self.text = text
        self.share = share
        super().__init__(_report(needed_bytes, available_bytes, chip, largest, share))

    def __reduce__(self) -> tuple[object, ...]:
        values: _Values = {
            "chip": self.chip,
            "largest": self.largest,
            "text": self.text,
            "share": self.share,
        }
        return _remake, (self.needed_bytes, self.available_bytes, values)


class _Values(TypedDict):
    """What a DoesNotFit is made with beside its two numbers."""

    chip: str
    largest: tuple[Buffer, ...]
    text: str
    share: str


def _remake(needed: int, available: int, values: _Values) -> DoesNotFit:
    return DoesNotFit(needed, available, **values)


def hlo_dtype(word: str) -> str:
    """'bfloat16' to 'bf16', 'int32' to 's32', as the compiler spells them."""
    match = re.fullmatch(r"(float|int|uint|bfloat|complex)(\d+)(?:_(\w+))?", word)
    if match is None:
        return {"bool": "pred"}.get(word, word)
    letters = {"float": "f", "int": "s", "uint": "u", "bfloat": "bf", "complex": "c"}
    return letters[match[1]] + match[2] + (match[3] or "")


def arguments_of(
    jax: ModuleType,
    args: tuple[object, ...],
    kwargs: Mapping[str, object] | None,
    traced: object,
) -> list[Buffer]:
    """A Buffer for each array that a function is given, as one device holds it.

    Args:
        jax: the module.
        args: the function's arguments.
        kwargs: those given by name.
        traced: JAX's traced stage, which knows what the function calls them.
    """
    leaves = jax.tree_util.tree_leaves_with_path((args, kwargs or {}))
    info = getattr(getattr(traced, "jaxpr", None), "debug_info", None)
    names = getattr(info, "arg_names", None) or ()
    if len(names) != len(leaves):
        names = [_path(path) for path, _ in leaves]
    return [
        _on_one_device(name, leaf)
        for name, (_, leaf) in zip(names, leaves, strict=True)
        if hasattr(leaf, "shape") and hasattr(leaf, "dtype")
    ]


def kind_of(jax: ModuleType, args: object) -> str:
    """What the devices of the arguments are called in HARDWARE; "" if unknown."""
    kinds = (_kind(leaf) for leaf in jax.tree_util.tree_leaves(args))
    return next(filter(None, kinds), "")


def _path(path: Any) -> str:
    """Where an argument stands: "args[0]['w1']" for [0][0]['w1']."""
    outer, *inner = path
    return ("args" if outer.idx == 0 else "kwargs") + "".join(map(str, inner))


def _on_one_device(name: str, leaf: Any) -> Buffer:
    sharding = getattr(leaf, "sharding", None)
    shape = tuple(leaf.shape)
    if sharding is not None:
        shape = sharding.shard_shape(shape)
    dtype = hlo_dtype(str(leaf.dtype))
    shard = Shape(dtype, shape)
    return Buffer(shard.nbytes, name, f"{dtype}[{','.join(map(str, shape))}]")


def _kind(leaf: Any) -> str:
    """What an argument's devices are called in HARDWARE, "" where that is not known."""
    devices = getattr(getattr(leaf, "sharding", None), "device_set", None) or ()
    kind = next((device.device_kind for device in devices), "")
    chips = [chip.name for chip in HARDWARE.values() if chip.device_kind == kind]
    return chips[0] if chips else kind


def largest_shape(text: str) -> str:
    printed = shapes(text)
    if not printed:
        return ""
    shape = max(printed, key=lambda shape: shape.nbytes)
    return f"{shape.dtype}[{','.join(map(str, shape.dims))}]"


def largest_of(buffers: Iterable[Buffer], needed: int) -> tuple[Buffer, ...]:
    worth = [one for one in buffers if one.bytes >= _SMALLEST_SHARE * needed]
    worth.sort(key=lambda buffer: -buffer.bytes)
    return tuple(worth[:_MOST_ROWS])


def _report(
    needed: int, available: int, chip: str, largest: tuple[Buffer, ...], share: str
) -> str:
    over = needed - available
    much = f"{_gib(over)} too much" if over > 0 else "a little too much"
    first = (
        f"the program needs {_gib(needed)} on each {chip or 'device'}, and "
        f"{_gib(available)} are there: {much}."
    )
    first += f" {share}" if share else ""
    if not largest:
        return f"{first}\n{_REMEDY}"
    placed = any(buffer.source for buffer in largest)
    rows = [("bytes", "what", "on one device", *(["where"] if placed else []))]
    for one in largest:
        where = [one.source or ""] if placed else []
        rows.append((bytes_words(one.bytes), one.what, _padded(one), *where))
    rest = needed - sum(buffer.bytes for buffer in largest)
    if rest > 0:
        rows.append((bytes_words(rest), "all the rest", ""))
    return f"{first}\n\n{table(rows, right=[0])}\n\n{_REMEDY}"


_REMEDY = (
    "Shard what is replicated on every device, donate arguments that a result "
    "replaces, recompute temporaries (jax.checkpoint), or take a smaller batch."
)


def _gib(n: int) -> str:
    """Two decimals, as the compiler tells it: 15.75 of 15.75 GiB can be too much."""
    return f"{n / 2**30:.2f} GiB" if n >= 2**30 else bytes_words(n)


def _padded(buffer: Buffer) -> str:
    """The shape, and how much larger the chip's tiles make it where that counts."""
    alone = sum(shape.nbytes for shape in shapes(buffer.shape))
    if not alone or buffer.bytes < 1.1 * alone:
        return buffer.shape
    return f"{buffer.shape} (padded to {buffer.bytes / alone:.1f}×)"
