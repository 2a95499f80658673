"""What the TPU compiler says of a program that needs more memory than a chip has.

It refuses in one of two ways. Most programs get one line with two numbers, rounded;
the list of what needs the memory then stands only in the compiler's log. A program
that misses by little gets the list in the error itself.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, NamedTuple, TypedDict

from .._core.source_lines import place_name
from .._core.words import bytes_words, table
from .._errors import OneSentence
from .._hardware.chips import HARDWARE
from .._hlo.parser import Shape, shapes
from .libtpu import error_log

_MOST_ROWS = 8
_SMALLEST_SHARE = 0.01
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40, "P": 2**50}
_SIZE = r"([\d.]+)([KMGTP]?)(?:iB|B)?"
# The texts, as libtpu 0.0.42 to 0.0.50 has them (jax 0.10.2 to 0.12); the third
# after openxla.org/xla/errors/error_1000 (November 2026).
_TOTAL = re.compile(
    rf"memory required for HLO temporaries \({_SIZE}\) exceeds available HBM "
    rf"\({_SIZE}\)"
)
_USED = re.compile(
    rf"Ran out of memory in memory space hbm\. Used {_SIZE} of {_SIZE} hbm\. "
    rf"Exceeded hbm capacity by {_SIZE}\."
)
_EARLY = re.compile(rf"Requires {_SIZE}, has {_SIZE} available")
_LOG_LINE = re.compile(r"^[IWEF]\d{4} [\d:.]+ ", re.M)
_HBM = re.compile(r"^Memory Space: default \(color=0\)\nTotal bytes: (\d+)", re.M)
_ROW = re.compile(
    r"^ *\S+ *\( *\d+%\); *([\d.]+)([KMGTP]?)i?B; *\d+; *(\d+); (.*)$", re.M
)
_ENTRY = re.compile(r"^  \d+\. Size: (\S+)\n(.*?)\n +={10,}", re.M | re.S)


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
    """

    def __init__(
        self,
        needed_bytes: int,
        available_bytes: int,
        *,
        chip: str = "",
        largest: tuple[Buffer, ...] = (),
        text: str = "",
    ) -> None:
        self.needed_bytes = needed_bytes
        self.available_bytes = available_bytes
        self.chip = chip
        self.largest = largest
        self.text = text
        super().__init__(_report(needed_bytes, available_bytes, chip, largest))

    def __reduce__(self) -> tuple[object, ...]:
        values: _Values = {
            "chip": self.chip,
            "largest": self.largest,
            "text": self.text,
        }
        return _remake, (self.needed_bytes, self.available_bytes, values)


class _Values(TypedDict):
    """What a DoesNotFit is made with beside its two numbers."""

    chip: str
    largest: tuple[Buffer, ...]
    text: str


def _remake(needed: int, available: int, values: _Values) -> DoesNotFit:
    return DoesNotFit(needed, available, **values)


def explain_compile_error(
    error: BaseException | str,
    *,
    chip: str = "",
    log: str = "",
    arguments: Iterable[Buffer] = (),
) -> DoesNotFit | None:
    """Read the TPU compiler's refusal of a program that is too large.

    >>> text = (
    ...     "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required "
    ...     "for HLO temporaries (34.17G) exceeds available HBM (15.75G)."
    ... )
    >>> print(explain_compile_error(text, chip="v5e"))      # 34.17 - 15.75 = 18.42
    the program needs 34.17 GiB on each v5e, and 15.75 GiB are there: 18.42 GiB ...
    >>> explain_compile_error("INVALID_ARGUMENT: something else") is None
    True

    Args:
        error: what was raised, or its text.
        chip: what the program was compiled for, as the message shall name it.
        log: libtpu's log of errors, where there is one. Used if it has the report
            of this refusal, which is recognized by its numbers.
        arguments: a Buffer for each argument, as one device holds it, in the order
            of the program. With them the report names arguments.

    Returns:
        A DoesNotFit to raise; None if the error is about anything else, such as
        memory that was too little when a program ran (GPU and CPU compile what does
        not fit).
    """
    text = str(error)
    numbers = _numbers(text)
    if numbers is None:
        return None
    needed, available = numbers
    arguments = tuple(arguments)
    buffers = tuple(_entries(text, arguments))
    report = _own_report(text, log) if not buffers else None
    if report is not None:
        needed, available = report.needed, report.available
        buffers = tuple(_rows(report.body, arguments))
    return DoesNotFit(
        needed,
        available,
        chip=chip,
        largest=_largest(buffers or arguments, needed),
        text=text if report is None else f"{text}\n\n{report.body}",
    )


def does_not_fit(
    jax: ModuleType,
    error: BaseException,
    args: tuple[object, ...] = (),
    kwargs: Mapping[str, object] | None = None,
    traced: object = None,
) -> DoesNotFit | None:
    """The DoesNotFit for what compiling for a TPU has raised; None for other errors.

    Args:
        jax: the module.
        error: what `lowered.compile()` raised.
        args: the function's arguments, for the report to name.
        kwargs: those given by name.
        traced: JAX's traced stage, which knows what the function calls them.
    """
    if explain_compile_error(error) is None:
        return None
    leaves = jax.tree_util.tree_leaves_with_path((args, kwargs or {}))
    info = getattr(getattr(traced, "jaxpr", None), "debug_info", None)
    names = getattr(info, "arg_names", None) or ()
    if len(names) != len(leaves):
        names = [_path(path) for path, _ in leaves]
    arguments = [
        _on_one_device(name, leaf)
        for name, (_, leaf) in zip(names, leaves, strict=True)
        if hasattr(leaf, "shape") and hasattr(leaf, "dtype")
    ]
    kinds = [kind for _, leaf in leaves if (kind := _kind(leaf))]
    return explain_compile_error(
        error,
        chip=kinds[0] if kinds else "",
        log=error_log(),
        arguments=arguments,
    )


def hlo_dtype(word: str) -> str:
    """'bfloat16' to 'bf16', 'int32' to 's32', as the compiler spells them."""
    match = re.fullmatch(r"(float|int|uint|bfloat|complex)(\d+)(?:_(\w+))?", word)
    if match is None:
        return {"bool": "pred"}.get(word, word)
    letters = {"float": "f", "int": "s", "uint": "u", "bfloat": "bf", "complex": "c"}
    return letters[match[1]] + match[2] + (match[3] or "")


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


def _bytes(number: str, unit: str) -> int:
    return round(float(number) * _UNITS[unit])


def _numbers(text: str) -> tuple[int, int] | None:
    """(needed, available) as an error's first lines tell them."""
    if match := _USED.search(text):
        available = _bytes(match[3], match[4])
        return available + _bytes(match[5], match[6]), available
    if match := _TOTAL.search(text) or _EARLY.search(text):
        return _bytes(match[1], match[2]), _bytes(match[3], match[4])
    return None


@dataclass(frozen=True)
class _Report:
    """What the log says of one refusal."""

    needed: int
    available: int
    body: str


def _own_report(text: str, log: str) -> _Report | None:
    """The last report in the log that has the error's two numbers."""
    raised = _TOTAL.search(text) or _EARLY.search(text)
    for match in reversed([*_USED.finditer(log)]):
        if raised is None or match.groups()[:4] != raised.groups()[:4]:
            continue
        end = _LOG_LINE.search(log, match.end())
        body = log[match.start() : end.start() if end else len(log)].rstrip()
        total = _HBM.search(body)
        needed = int(total[1]) if total else 0
        if abs(needed - _bytes(match[1], match[2])) < 0.01 * needed:  # not torn
            # The finer of two rounded numbers: "418.10M" too much, of "15.75G".
            exact = match[6] in ("", "K", "M")
            over = _bytes(match[5], match[6])
            there = needed - over if exact else _bytes(match[3], match[4])
            return _Report(needed, there, body)
    return None


def _rows(body: str, arguments: tuple[Buffer, ...]) -> list[Buffer]:
    """The buffers of a log's report.

    Its blocks are pieces of memory that the program gets whole: each argument, each
    result, and one for all temporaries, which lists what lies where in it.
    """
    start = _HBM.search(body)
    hbm = body[start.end() :].partition("\nMemory Space:")[0] if start else ""
    blocks = [_ROW.findall(block) for block in hbm.split("cumulative_size;")[1:]]
    # What an argument alone has lain in comes first: the rest may be results too.
    blocks.sort(key=lambda rows: len(rows) != 1 or rows[0][2] != "1")
    left: dict[str, list[str]] = {}
    for one in arguments:
        left.setdefault(one.shape, []).append(one.what)
    buffers = []
    for rows in blocks:
        for size, unit, values, list_of_shapes in rows:
            shape, what = _largest_shape(list_of_shapes), "temporary"
            if len(rows) == 1:
                what = "result" if arguments else "argument or result"
                if left.get(shape):
                    name = left[shape].pop(0)
                    what = name if values == "1" else f"{name} or result"
            buffers.append(Buffer(_bytes(size, unit), what, shape))
    return buffers


def _entries(text: str, arguments: tuple[Buffer, ...]) -> Iterator[Buffer]:
    """The buffers of an error that lists them one by one."""
    for size, body in _ENTRY.findall(text):
        number = re.fullmatch(_SIZE, size)
        if number is None:
            continue
        fields = dict(re.findall(r"^ +([\w ]+): (.*)$", body, re.M))
        label, operator = fields.get("XLA label", ""), fields.get("Operator", "")
        shape = _largest_shape(fields.get("Shape", ""))
        what = _what(label, operator, fields.get("Allocation type", ""))
        if argument := re.match(r"Argument (\d+) index", label):
            at = int(argument[1])
            same = at < len(arguments) and arguments[at].shape == shape
            what = arguments[at].what if same else f"argument {at}"
        yield Buffer(_bytes(*number.groups()), what, shape, _source(operator))


def _what(label: str, operator: str, kind: str) -> str:
    if label.startswith("Output index"):
        return "result"
    what = "temporary" if kind in ("", "HLO temp") else kind
    name = re.search(r'op_name="([^"]*)"', operator)
    # 'jit(step)/jvp()/dot_general': the function's own name says nothing here.
    return f"{what}: {name[1].partition('/')[2] or name[1]}" if name else what


def _source(operator: str) -> str | None:
    file = re.search(r'source_file="([^"]*)"', operator)
    line = re.search(r"source_line=(\d+)", operator)
    return place_name(file[1], int(line[1])) if file and line else None


def _largest_shape(text: str) -> str:
    printed = shapes(text)
    if not printed:
        return ""
    shape = max(printed, key=lambda shape: shape.nbytes)
    return f"{shape.dtype}[{','.join(map(str, shape.dims))}]"


def _largest(buffers: Iterable[Buffer], needed: int) -> tuple[Buffer, ...]:
    worth = [one for one in buffers if one.bytes >= _SMALLEST_SHARE * needed]
    worth.sort(key=lambda buffer: -buffer.bytes)
    return tuple(worth[:_MOST_ROWS])


def _report(needed: int, available: int, chip: str, largest: tuple[Buffer, ...]) -> str:
    over = needed - available
    much = f"{_gib(over)} too much" if over > 0 else "a little too much"
    first = (
        f"the program needs {_gib(needed)} on each {chip or 'device'}, and "
        f"{_gib(available)} are there: {much}."
    )
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
    "Cut what lies whole on every device, donate arguments that a result replaces, "
    "recompute temporaries (jax.checkpoint), or take a smaller batch."
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
