"""Sharded arrays that are all-gathered on every device, without a request for it."""

from collections.abc import Iterator
from functools import partial
from math import prod

from .._core.words import bytes_words, join_words
from .._hlo.dataflow import Path, Place, back, uses
from .._hlo.opcodes import BY_ELEMENT, Does, does
from .._hlo.parser import Instruction, Module
from .._jaxprs.requests import Request, Reshape, TracedRequests, is_requested
from .._shardings.cuts import array_words, spec_words
from .compiled import Gathered, array_of, axis_name, leaf_of, source_of
from .evidence import Evidence, Leaf
from .finding import SMALL_BYTES, Finding, Named, axes_words, few_paths
from .shardings import Stray, cuts

# What needs an uncut dimension: JAX's name for it, and a reader's.
_RUNNING = (
    *("cumlogsumexp", "cummax", "cummin", "cumprod", "cumsum", "reduce_window"),
    *("reduce_window_max", "reduce_window_min", "reduce_window_sum"),
)
_BY_BLOCKS = (
    "Shard another dimension there, or write it in jax.shard_map: compute on each "
    "shard, then exchange what the shards need of each other."
)
_MATRICES = (
    "XLA computes it on the full matrix, on every device, whatever the shardings: "
    "shard a batch of matrices over its batch dimension, or replicate a small one."
)
_CALLBACK = (
    "If it works on each part by itself, call it in jax.shard_map: it then gets one "
    "shard at a time. If not, the gather is needed."
)
_NEEDS_ALL = {
    **dict.fromkeys(_RUNNING, ("a running sum or maximum", _BY_BLOCKS)),
    "fft": ("an FFT", _BY_BLOCKS),
    "scatter": ("setting rows", _BY_BLOCKS),
    "sort": ("a sort", _BY_BLOCKS),
    "top_k": ("a top-k", _BY_BLOCKS),
    "geqrf": ("a QR decomposition", _MATRICES),
    "householder_product": ("a QR decomposition", _MATRICES),
    "cholesky": ("a Cholesky decomposition", _MATRICES),
    "svd": ("a singular value decomposition", _MATRICES),
    "lu": ("an LU decomposition", _MATRICES),
    "eigh": ("an eigendecomposition", _MATRICES),
    "eig": ("an eigendecomposition", _MATRICES),
    "schur": ("a Schur decomposition", _MATRICES),
    "pure_callback": ("a callback to the host", _CALLBACK),
    "io_callback": ("a callback to the host", _CALLBACK),
    "debug_callback": ("a callback to the host", _CALLBACK),
}
_FARTHEST = 12


def unrequested(
    evidence: Evidence,
    gathers: list[Gathered],
    requested: TracedRequests | None,
    replicated: list[Stray],
    named: Named,
) -> Iterator[Finding]:
    """`gathered-output`, `gathered-reshard`, `gathered-reshape`, `gathered-operand`."""
    if requested is None or requested.explicit:
        return
    reported: set[int] = set()
    outputs = partial(_outputs, known=[stray.out for stray in replicated])
    for finder in (_operands, _specs, outputs, _reshards, _reshapes):
        for causes, finding in finder(evidence, gathers, requested, named):
            if reported.isdisjoint(map(id, causes)):
                yield finding
            reported.update(map(id, causes))


CausedFindings = Iterator[tuple[list[Gathered], Finding]]


# --- Gathered to be returned ----------------------------------------------------------


def _outputs(
    evidence: Evidence,
    gathers: list[Gathered],
    requested: TracedRequests,
    named: Named,
    known: list[Leaf],
) -> CausedFindings:
    if len(requested.results) != len(evidence.outputs):
        return
    outside = [each for each in gathers if each.place.parent is None]
    by_name = {each.instruction.name: each for each in outside}
    gathered: list[tuple[Leaf, Gathered]] = []
    for number, (out, traced) in enumerate(
        zip(evidence.outputs, requested.results, strict=True)
    ):
        if (
            out.sharding_info is None
            or out.sharding is not None
            or traced.request is not None
        ):
            continue
        if out in known:
            continue
        each = _gather_of(evidence.module, number, by_name)
        if each is None or out.sharding_info.bytes_per_device < SMALL_BYTES:
            continue
        axes = {axis_name(axis) for axis in each.axes}
        if is_requested(requested, out.shape, cuts(out, evidence), axes):
            continue
        # Padded to a multiple of the devices it may be a little larger.
        elements = prod(out.sharding_info.shard_shape)
        fits = elements <= each.shape.elements < 2 * elements
        if fits and axes <= set(out.sharding_info.replicated_over):
            gathered.append((out, each))
    if gathered:
        yield [each for _, each in gathered], _output(evidence, gathered, named)


def _gather_of(
    module: Module, number: int, by_name: dict[str, Gathered]
) -> Gathered | None:
    """The all-gather that a result is, changed element by element at most."""
    entry = Place(module.entry)
    path: Path = (number,) if entry.computation.root.type.startswith("(") else ()
    todo: list[tuple[Place, str, Path, int]] = [
        (entry, entry.computation.root.name, path, 0)
    ]
    visited = set()
    while todo:
        place, name, path, depth = todo.pop()
        key = place.route, name, path, depth
        i = place.computation.by_name.get(name)
        if i is None or depth > _FARTHEST or key in visited:
            continue
        visited.add(key)
        if place is entry and i.name in by_name:
            return by_name[i.name]
        what, before = does(i.opcode), back(module, (place, name, path))
        if what is Does.CALLS and not _keeps_inside(module, place, i):
            continue
        deeper = depth + (place is entry)
        if before is not None:
            todo.append((*before, deeper))
        elif what in BY_ELEMENT and not path:
            todo += [(place, operand, (), deeper) for operand in i.operands]
    return None


def _keeps_inside(module: Module, place: Place, i: Instruction) -> bool:
    """Whether all that a fusion or a call does is done element by element."""
    return all(
        inner.opcode == "parameter"
        or does(inner.opcode) in (*BY_ELEMENT, Does.PACKED, Does.PICKED)
        or (does(inner.opcode) is Does.CALLS and _keeps_inside(module, each, inner))
        for each in place.entered(module, i)
        for inner in each.computation.instructions
    )


def _output(
    evidence: Evidence, gathered: list[tuple[Leaf, Gathered]], named: Named
) -> Finding:
    infos = [out.sharding_info for out, _ in gathered if out.sharding_info is not None]
    size = sum(info.bytes_per_device for info in infos)
    axes = dict.fromkeys(axis for _, each in gathered for axis in each.axes)
    why = dict.fromkeys(filter(None, (_uneven(evidence, *pair) for pair in gathered)))
    names = [f"{out.path} ({array_words(out.shape, out.dtype)})" for out, _ in gathered]
    is_or_are = "is" if len(gathered) == 1 else "are"
    return Finding(
        "gathered-output",
        f"{few_paths(names)} {is_or_are} gathered over {axes_words(axes)} only "
        f"because the result is replicated, {bytes_words(size)} per "
        f"device{': ' + join_words(list(why)) if why else ''}.",
        "Choose sizes that divide by the devices and keep the sharded dimension as it "
        "is; or say where it goes with out_shardings.",
        "04_computation_follows_data",
        source_of(evidence, gathered[0][1], named),
    )


def _uneven(evidence: Evidence, out: Leaf, each: Gathered) -> str | None:
    """Why a result can't stay sharded, where its size tells."""
    blocks = prod(evidence.mesh_shape[axis] for axis in {*map(axis_name, each.axes)})
    if len(out.shape) != len(each.shape.dims):
        return None
    size = out.shape[each.dimension]
    return f"{size} does not divide by {blocks}" if size % blocks else None


# --- From one cut to another by way of a full gather ----------------------------------


def _reshards(
    evidence: Evidence, gathers: list[Gathered], requested: TracedRequests, named: Named
) -> CausedFindings:
    wanted = [r for r in requested.requests.values() if r.kind != "device_put"]
    for each in gathers:
        for request in wanted:
            if _detour(evidence, each, request):
                yield [each], _reshard(evidence, each, request, named)
                break


def _detour(evidence: Evidence, each: Gathered, request: Request) -> bool:
    """Whether a gather undoes the cut of what is then cut as a request says."""
    axes = [axis for part in request.cuts or () for axis in part]
    elements = prod(request.shape)
    if not axes or each.shape.elements != elements or each.shape.nbytes < SMALL_BYTES:
        return False
    return any(
        use.instruction.opcode == "dynamic-slice"
        and use.operand == 0
        and _same_dims(use.shape.dims, request.shape)
        and use.instruction.shapes[0].elements < elements
        # One that the reader wrote is no part of the move.
        and not (use.instruction.quoted("op_name") or "").endswith("dynamic_slice")
        for use in uses(evidence.module, each.carriers)
    )


def _same_dims(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Whether two shapes have the same dimensions, in any order, those of 1 aside."""
    return sorted(n for n in one if n > 1) == sorted(n for n in other if n > 1)


def _reshard(
    evidence: Evidence, each: Gathered, request: Request, named: Named
) -> Finding:
    parts = prod(request.sizes[axis] for part in request.cuts or () for axis in part)
    line = named(*request.line) if request.line else source_of(evidence, each, named)
    return Finding(
        "gathered-reshard",
        f"To reshard {array_words(request.shape, request.dtype)} to "
        f"{spec_words(request.cuts or ())}, the compiler first all-gathers it over "
        f"{axes_words(each.axes)}: {bytes_words(each.shape.nbytes)} per device, of "
        f"which each device keeps 1/{parts}.",
        "Reshard in two steps, one axis at a time, or shard it from the start as it "
        "is needed.",
        "04_computation_follows_data",
        line,
    )


# --- Reshapes that can't keep the cut -------------------------------------------------


def _reshapes(
    evidence: Evidence, gathers: list[Gathered], requested: TracedRequests, named: Named
) -> CausedFindings:
    for each in gathers:
        small = each.shape.nbytes < SMALL_BYTES
        for reshape in () if small else requested.reshapes.values():
            why = _why_gathered(evidence, each, reshape)
            if why:
                yield [each], _reshape(evidence, each, reshape, why, named)
                break


def _reshape(
    evidence: Evidence, each: Gathered, reshape: Reshape, why: str, named: Named
) -> Finding:
    line = reshape.line
    return Finding(
        "gathered-reshape",
        f"The reshape of {tuple(reshape.before)} to {tuple(reshape.after)} "
        f"all-gathers its operand over {axes_words(each.axes)}, "
        f"{bytes_words(each.shape.nbytes)} per device: {why}.",
        "Shard a dimension that the reshape keeps, or use a number of heads that is "
        "divisible by the devices of the axis.",
        "12_attention",
        named(*line) if line else source_of(evidence, each, named),
    )


def _why_gathered(evidence: Evidence, each: Gathered, reshape: Reshape) -> str | None:
    """Why a gather is this reshape's: which dimension could not stay sharded."""
    size = prod(evidence.mesh_shape.get(axis_name(axis), 1) for axis in each.axes)
    for old, new in _groups(reshape.before, reshape.after):
        # A dimension of 1, which broadcasting adds, splits nothing.
        new = [n for n in new if reshape.after[n] > 1] or new
        old = [n for n in old if reshape.before[n] > 1] or old
        split = _fits(each, reshape.before, old[0]) or _fits(
            each, reshape.after, new[0]
        )
        if len(new) > 1 and split:
            parts = reshape.after[new[0]]
            if parts % size:
                return f"its {parts} parts are not divisible by {size}"
        if len(old) > 1 and any(_fits(each, reshape.before, n) for n in old[1:]):
            return "of dimensions that are merged, only the first can stay sharded"
    return None


def _groups(
    before: tuple[int, ...], after: tuple[int, ...]
) -> Iterator[tuple[list[int], list[int]]]:
    """The dimensions that are split or merged: (2, 12) to (2, 3, 4) is [1], [1, 2]."""
    i = j = 0
    while i < len(before) and j < len(after):
        old, new = [i], [j]
        a, b = before[i], after[j]
        while a != b:
            if a < b:
                if (i := i + 1) >= len(before):
                    return
                a *= before[i]
                old.append(i)
            else:
                if (j := j + 1) >= len(after):
                    return
                b *= after[j]
                new.append(j)
        if len(old) + len(new) > 2:
            yield old, new
        i, j = i + 1, j + 1


def _fits(each: Gathered, shape: tuple[int, ...], dimension: int) -> bool:
    """Whether a gather undoes the cut of this dimension of an array of this shape."""
    dims = each.shape.dims
    return (
        len(dims) == len(shape)
        and each.dimension == dimension
        and all(size % part == 0 for size, part in zip(shape, dims, strict=True))
    )


# --- Operations that need it uncut ----------------------------------------------------


def _operands(
    evidence: Evidence, gathers: list[Gathered], requested: TracedRequests, named: Named
) -> CausedFindings:
    for each in gathers:
        if each.shape.nbytes < SMALL_BYTES:
            continue
        for use in uses(evidence.module, each.carriers):
            label = (use.instruction.quoted("op_name") or "").rpartition("/")[2]
            needs = _NEEDS_ALL.get(label)
            if needs and (use.operand == 0 or needs[1] == _CALLBACK):
                yield [each], _operand(evidence, each, *needs, named)
                break


def _operand(
    evidence: Evidence, each: Gathered, what: str, remedy: str, named: Named
) -> Finding:
    return Finding(
        "gathered-operand",
        f"For {what} the compiler all-gathers {array_of(evidence, each)} over "
        f"{axes_words(each.axes)}, {bytes_words(each.shape.nbytes)} per device.",
        remedy,
        "04_computation_follows_data",
        source_of(evidence, each, named),
    )


def _specs(
    evidence: Evidence, gathers: list[Gathered], requested: TracedRequests, named: Named
) -> CausedFindings:
    """Arguments that a shard_map takes without an axis that shards them."""
    for request in requested.taken.values():
        wanted = {axis for axes in request.cuts or () for axis in axes}
        for number in sorted(request.leaves):
            leaf = evidence.inputs[number]
            given = cuts(leaf, evidence) or ()
            lost = {axis for axes in given for axis in axes} - wanted
            causes = [
                each
                for each in gathers
                if each.shape.nbytes >= SMALL_BYTES
                and lost & set(map(axis_name, each.axes))
                and leaf_of(evidence, each) is leaf
            ]
            if causes and request.cuts is not None and not request.explicit:
                yield causes, _spec(evidence, causes[0], request, leaf, named)


def _spec(
    evidence: Evidence, each: Gathered, request: Request, leaf: Leaf, named: Named
) -> Finding:
    given = spec_words(cuts(leaf, evidence) or ())
    return Finding(
        "gathered-operand",
        f"A shard_map takes {array_of(evidence, each)} as "
        f"{spec_words(request.cuts or ())}, but it is sharded as {given}: it is "
        f"gathered over {axes_words(each.axes)} first, "
        f"{bytes_words(each.shape.nbytes)} per device.",
        f"Take it as it is sharded, {given} in in_specs, and gather inside what one "
        "step needs at a time.",
        "05_three_modes",
        named(*request.line) if request.line else source_of(evidence, each, named),
    )
