"""Arrays that the partitioner replicates, because it knows no way to a sharding."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod

from .._core.words import bytes_words
from .._hlo.parser import dtype_word, shapes
from .._jaxprs.requests import TracedRequests
from .._shardings.cuts import Cuts, array_words, spec_words
from .evidence import Evidence
from .finding import SMALL_BYTES, Finding, Named

# As jax 0.10.2 to 0.12 log it (spmd_partitioner.cc).
_WARNING = re.compile(
    r"\[SPMD\] Involuntary full rematerialization\. .*? from sharding (\{.*?\}) to "
    r"(\{.*?\}) efficiently for HLO operation (.*)$"
)
# {mesh['data'=8,'model'=2], [{'data', 'model'}, {}]} and, before jax 0.11,
# {devices=[8,1,2]<=[8,2]T(1,0) …}: tiles of each dimension, over which devices in turn.
_NAMED = re.compile(r"\{mesh\[.*?\], \[(.*?)\].*\}")
_TILED = re.compile(r"\{devices=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?.*\}")


@dataclass(frozen=True)
class _Remade:
    """An array that is replicated on its way from one sharding to another."""

    shape: tuple[int, ...]
    dtype: str
    before: Cuts
    after: Cuts
    nbytes: int
    line: tuple[str, int] | None


def rematerialized(
    evidence: Evidence,
    requested: TracedRequests | None,
    findings: Iterable[Finding],
    named: Named,
) -> Iterator[Finding]:
    """`gathered-reshard`, where the compiler's own warning is all that shows it.

    Args:
        evidence: what is known of the function, the compiler's log with it.
        requested: the shardings that the function asks for; None if unknown.
        findings: those that there are: an array that one of them explains is left.
        named: how a (file, line) of the reader's own code is written.
    """
    explained = [f.sentence for f in findings if f.code.startswith("gathered-")]
    for one in dict.fromkeys(_warnings(evidence)):
        words = array_words(one.shape, one.dtype)
        if one.nbytes < SMALL_BYTES or any(words in said for said in explained):
            continue
        parts = prod(evidence.mesh_shape[axis] for part in one.after for axis in part)
        line = _line_of(requested, one) or one.line
        yield Finding(
            "gathered-reshard",
            f"The compiler knows no direct way from {spec_words(one.before)} to "
            f"{spec_words(one.after)}, so {words} is first replicated on every device: "
            f"{bytes_words(one.nbytes)} on each, of which it keeps 1/{parts}.",
            "Reshard in two steps, one axis at a time, or shard it from the start as "
            "it is needed.",
            "04_computation_follows_data",
            named(*line) if line else None,
        )


def _warnings(evidence: Evidence) -> Iterator[_Remade]:
    for line in evidence.log:
        match = _WARNING.search(line)
        printed = shapes(match[3].partition("(")[0]) if match else []
        if match is None or not printed:
            continue
        (shape, *_) = printed
        before = _cuts(match[1], len(shape.dims), evidence)
        after = _cuts(match[2], len(shape.dims), evidence)
        if before is None or after is None:
            continue
        counts = [prod(evidence.mesh_shape[axis] for axis in part) for part in before]
        pairs = zip(shape.dims, counts, strict=True)
        global_shape = tuple(size * count for size, count in pairs)
        file = re.search(r'source_file="([^"]*)" source_line=(\d+)', line)
        yield _Remade(
            global_shape,
            dtype_word(shape.dtype),
            before,
            after,
            shape.nbytes * prod(counts),
            (file[1], int(file[2])) if file else None,
        )


def _cuts(text: str, dims: int, evidence: Evidence) -> Cuts | None:
    """The mesh axes of each dimension, None where the text does not tell."""
    sizes = evidence.mesh_shape
    if match := _NAMED.fullmatch(text):
        parts = re.findall(r"\{(.*?)\}", match[1])
        cuts = tuple(tuple(re.findall(r"'([^']+)'", part)) for part in parts)
        known = all(axis in sizes for part in cuts for axis in part)
        return cuts if known and len(cuts) == dims else None
    match = _TILED.fullmatch(text)
    if match is None:
        return None
    counts, blocks, order = (
        [int(number) for number in (part or "").split(",") if number]
        for part in match.groups()
    )
    groups = _grouped(list(sizes), blocks, evidence)
    if groups is None:
        return None
    turned = [groups[n] for n in order or range(len(groups))]
    axes = [axis for group in turned for axis in group]
    tiled = _grouped(axes, counts[:dims], evidence)
    return tuple(map(tuple, tiled)) if tiled is not None else None


def _grouped(
    axes: list[str], counts: list[int], evidence: Evidence
) -> list[list[str]] | None:
    """Axes in their order, in groups of so many devices; None if they do not fit."""
    left, groups = [*axes], []
    for count in counts:
        group: list[str] = []
        while prod(evidence.mesh_shape[axis] for axis in group) < count and left:
            group.append(left.pop(0))
        if prod(evidence.mesh_shape[axis] for axis in group) != count:
            return None
        groups.append(group)
    return groups


def _line_of(requested: TracedRequests | None, one: _Remade) -> tuple[str, int] | None:
    """Where the function asks for the sharding that it is brought to."""
    for request in requested.requests.values() if requested else ():
        if (request.shape, request.cuts) == (one.shape, one.after) and request.line:
            return request.line
    return None
