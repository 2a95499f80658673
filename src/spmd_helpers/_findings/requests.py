"""What a function requests and does not get, and what it gets without a request."""

from collections.abc import Collection, Iterator

from .._core.words import bytes_words, count_words
from .._hlo.collectives import Collective
from .._jaxprs.requests import Key, Request, TracedRequests, padding
from .._shardings.cuts import Cuts, array_words, spec_words
from .evidence import Evidence
from .finding import SMALL_BYTES, Finding, Named, axes_words
from .shardings import cuts, partners

# How much more the padded array may hold than the real one before it is reported: a
# vocabulary of 50257 over 8 devices is padded by 0.01 %, which costs nothing. At 5 %
# one device of twenty has nothing to do.
_PADDED = 0.05


def constraints(
    evidence: Evidence, requested: TracedRequests | None, named: Named
) -> Iterator[Finding]:
    """`padded-constraint` and `dropped-constraint` of specs that don't divide.

    However small the array: the reader requested it in so many words.
    """
    if requested is None:
        return
    direct = {traced.request: n for n, traced in enumerate(requested.results)}
    for key, request in requested.requests.items():
        uneven = padding(request) if request.kind == "constraint" else None
        if uneven is None:
            continue
        number = direct.get(key)
        if number is None:
            yield from _padded(request, uneven, named)
            continue
        out = evidence.outputs[number]
        if out.sharding_info is not None and cuts(out, evidence) != request.cuts:
            yield _dropped(request, uneven, out.path, cuts(out, evidence), named)


def _padded(
    request: Request, uneven: tuple[int, int, int], named: Named
) -> Iterator[Finding]:
    dimension, blocks, rows = uneven
    size = request.shape[dimension]
    if rows * blocks / size - 1 < _PADDED:
        return
    idle = (rows * blocks - size) // rows
    constraint = spec_words(request.cuts or ())
    yield Finding(
        "padded-constraint",
        f"The constraint {constraint} splits dimension {dimension} of "
        f"{array_words(request.shape, request.dtype)} into {blocks} shards: {size} is "
        f"not divisible by {blocks}, so each device has {rows} rows, {rows * blocks} "
        "in all, and "
        + (
            f"{count_words(idle, 'device')} nothing but padding."
            if idle
            else "the last ones are padding."
        ),
        f"Choose a size that is divisible by {blocks}, such as {rows * blocks}, and "
        "mask the padding.",
        "08_it_ran_but",
        _line(request, named),
    )


def _dropped(
    request: Request,
    uneven: tuple[int, int, int],
    path: str,
    got: Cuts | None,
    named: Named,
) -> Finding:
    dimension, blocks, rows = uneven
    constraint = spec_words(request.cuts or ())
    return Finding(
        "dropped-constraint",
        f"The constraint {constraint} has no effect: {path} comes out as "
        f"{spec_words(got or ())}, because dimension {dimension} of "
        f"{array_words(request.shape, request.dtype)} is not divisible by {blocks}.",
        f"Choose a size that is divisible by {blocks}, such as {rows * blocks}, and "
        "mask the padding.",
        "08_it_ran_but",
        _line(request, named),
    )


def device_puts(
    evidence: Evidence, requested: TracedRequests | None, named: Named
) -> Iterator[Finding]:
    """`dropped-constraint` of a device_put that jit passes over, on Auto axes."""
    if requested is None:
        return
    for key, request in requested.requests.items():
        passes = request.kind == "device_put" and not request.explicit
        if not passes or request.moves_memory or not request.shape:
            continue
        lies = _lies(key, request, evidence, requested)
        if request.cuts is None or lies == request.cuts:
            continue
        stays = "" if lies is None else f" It stays sharded as {spec_words(lies)}."
        yield Finding(
            "dropped-constraint",
            f"jax.device_put to {spec_words(request.cuts)} inside jit does nothing to "
            f"{array_words(request.shape, request.dtype)}: on Auto axes jit ignores "
            f"it.{stays}",
            "Write jax.lax.with_sharding_constraint(x, NamedSharding(mesh, "
            f"{spec_words(request.cuts)})), or use Explicit axes and jax.reshard.",
            "08_it_ran_but",
            _line(request, named),
        )


def _lies(
    key: Key, request: Request, evidence: Evidence, requested: TracedRequests
) -> Cuts | None:
    """The array's sharding after a device_put, if a result or an argument shows it."""
    for out, traced in zip(evidence.outputs, requested.results, strict=False):
        if key in traced.puts and out.shape == request.shape:
            return cuts(out, evidence)
    for number in request.leaves:
        if evidence.inputs[number].shape == request.shape:
            return cuts(evidence.inputs[number], evidence)
    return None


def _line(request: Request, named: Named) -> str | None:
    return named(*request.line) if request.line else None


# --- Moved without asking ------------------------------------------------------------


def reshards(
    evidence: Evidence,
    requested: TracedRequests | None,
    named: Named,
    known: Collection[str | None] = (),
) -> Iterator[Finding]:
    """`unrequested-reshard`: all-to-alls in a program that requests no resharding.

    On lines that are `known` an operation needs its operand in one piece.
    """
    moved = [
        c
        for c in evidence.collectives
        if c.kind in ("all-to-all", "ragged-all-to-all")
        and c.result_bytes >= SMALL_BYTES
        and c.label.rpartition("/")[2] not in _MOVES
        and (c.source is None or c.source not in known)
    ]
    if requested is None or not moved:
        return
    taken = [_taken(request, evidence, named) for request in requested.taken.values()]
    yield from (finding for finding in taken if finding is not None)
    asks = requested.exchanges or requested.explicit or requested.requests or any(taken)
    if asks or any(
        out.sharding is not None and out.shape and not _as_given(n, evidence, requested)
        for n, out in enumerate(evidence.outputs)
    ):
        return
    axes = dict.fromkeys(axis for c in moved for axis in c.axes)
    biggest = max(moved, key=lambda c: c.total_wire_bytes or c.wire_bytes)
    times = "" if biggest.count == 1 else f", {biggest.count or 'many'} times"
    which = "this one" if len(moved) == 1 else "the biggest"
    yield Finding(
        "unrequested-reshard",
        "The function requests no resharding, but the compiler reshards arrays with "
        f"{count_words(len(moved), 'all-to-all')} over {axes_words(axes)}; {which} "
        f"sends {bytes_words(biggest.wire_bytes)} from each device{times}.",
        "Constrain the activations, x = jax.lax.with_sharding_constraint(x, "
        f"NamedSharding(mesh, {_batch_words(evidence)})), and give out_shardings; or "
        "make the mesh's axes Explicit.",
        "10_fsdp",
        biggest.source,
    )


def _batch_words(evidence: Evidence) -> str:
    """The spec of activations: the axes that shard the rows of the last argument."""
    for leaf in reversed(evidence.inputs):
        axes = cuts(leaf, evidence)
        if axes and axes[0]:
            return spec_words(axes[:1])
    long = [axis for axis, size in evidence.mesh_shape.items() if size > 1]
    return spec_words((tuple(long[:1]),))


# Operations that need a dimension in one piece, by JAX's names, and the way around.
_MOVES = {
    "sort": (
        "a sort in a sharded dimension",
        "Shard another dimension from the start, or sort in jax.shard_map if each "
        "device may sort its own rows.",
    ),
    "concatenate": (
        "a concatenation in a sharded dimension",
        "Shard another dimension of the operands, or join them along a new one, "
        "jnp.stack; or join each device's own rows in jax.shard_map, in another order.",
    ),
}


def moving_operations(evidence: Evidence, named: Named) -> Iterator[Finding]:
    """`communicated-operand`: an operation needs its operand resharded."""
    groups: dict[tuple[str, str | None], list[Collective]] = {}
    shuffled = any(
        "jit(_shuffle)" in i.rest
        for computation in evidence.module.computations.values()
        for i in computation.instructions
    )
    for c in evidence.collectives:
        label = c.label
        if c.result_bytes < SMALL_BYTES:
            continue
        name = label.rpartition("/")[2]
        if c.kind == "all-to-all" and name in _MOVES and "transpose(" not in label:
            groups.setdefault((name, c.source), []).append(c)
        elif (
            c.kind == "all-reduce" and label.endswith("jit(_take)/gather") and shuffled
        ):
            groups.setdefault(("shuffle", c.source), []).append(c)
    for (name, line), moved in groups.items():
        what, remedy = _MOVES.get(name, _SHUFFLE)
        kind = moved[0].kind + ("s" if len(moved) > 1 else "")
        yield Finding(
            "communicated-operand",
            f"For {what} the compiler communicates the operand with {len(moved)} "
            f"{kind} over {axes_words(axis for c in moved for axis in c.axes)}: "
            f"{bytes_words(sum(c.wire_bytes for c in moved))} from each device.",
            remedy,
            "04_computation_follows_data",
            line,
        )


_SHUFFLE = (
    "a permutation in a sharded dimension",
    "If rows may stay on their device, permute each device's own rows in jax.shard_map "
    "with jax.random.fold_in(key, jax.lax.axis_index(…)); or shuffle the data on the "
    "host.",
)


def _taken(request: Request, evidence: Evidence, named: Named) -> Finding | None:
    """An argument that a shard_map takes with another dimension sharded than it has."""
    if request.explicit or request.cuts is None:
        return None
    wanted = {axis: n for n, axes in enumerate(request.cuts) for axis in axes}
    for leaf in (evidence.inputs[number] for number in sorted(request.leaves)):
        lies = cuts(leaf, evidence) or ()
        given = {axis: n for n, axes in enumerate(lies) for axis in axes}
        moved = [axis for axis, n in given.items() if wanted.get(axis, n) != n]
        if moved and leaf.shape == request.shape:
            return Finding(
                "unrequested-reshard",
                f"A shard_map takes {leaf.path} as {spec_words(request.cuts)}, but it "
                f"is sharded as {spec_words(lies)}: every call first reshards it over "
                f"{axes_words(moved)}.",
                f"Place it as {spec_words(request.cuts)} once, with jax.device_put, "
                "or change in_specs to its own sharding.",
                "05_three_modes",
                _line(request, named),
            )
    return None


def _as_given(number: int, evidence: Evidence, requested: TracedRequests) -> bool:
    """Whether an output is sharded as the argument that it belongs to."""
    out = evidence.outputs[number]
    arguments = partners(out, requested.results[number], evidence)
    return any(cuts(leaf, evidence) == cuts(out, evidence) for leaf in arguments)
