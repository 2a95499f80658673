"""What the TPU compiler says of a program that needs more memory than a chip has.

It refuses in one of two ways. Most programs get one line with two numbers, rounded;
the list of what needs the memory then stands only in the compiler's log. A program
that misses by little gets the list in the error itself.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType

from .._aot.does_not_fit import (
    Buffer,
    DoesNotFit,
    arguments_of,
    kind_of,
    largest_of,
    largest_shape,
)
from .._core.source_lines import place_name
from .libtpu import error_log

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
        largest=largest_of(buffers or arguments, needed),
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
    return explain_compile_error(
        error,
        chip=kind_of(jax, (args, kwargs or {})),
        log=error_log(),
        arguments=arguments_of(jax, args, kwargs, traced),
    )


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
            shape, what = largest_shape(list_of_shapes), "temporary"
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
        shape = largest_shape(fields.get("Shape", ""))
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
