"""What a traced function asks of the places of its arrays, and which arrays it means.

Five things ask: with_sharding_constraint, jax.reshard, jax.device_put, a jit inside
with out_shardings, and a shard_map. Each is a Request here. Beside them stands what
is known of an array without asking the compiler: whether it is one of the arguments,
changed element by element only, so that it lies as this one does.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import TYPE_CHECKING

from .._shardings.cuts import Cuts, cuts_of, is_named
from .walk import (
    Around,
    Aval,
    ClosedJaxpr,
    Equation,
    Jaxpr,
    Tracing,
    equations,
    own_line,
)

if TYPE_CHECKING:
    from jax.sharding import AbstractMesh, Mesh, PartitionSpec

# What is computed for each element by itself.
_ELEMENTWISE = {
    "abs", "add", "add_any", "and", "cbrt", "ceil", "clamp", "convert_element_type",
    "copy", "copy_p", "cos", "div", "eq", "erf", "exp", "exp2", "expm1", "floor", "ge",
    "gt", "integer_pow", "is_finite", "le", "log", "log1p", "logistic", "lt", "max",
    "min", "mul", "name", "ne", "neg", "not", "optimization_barrier", "or", "pow",
    "real", "reduce_precision", "rem", "round", "rsqrt", "select_n", "sign", "sin",
    "sqrt", "square", "sub", "tan", "tanh", "xor",
}  # fmt: skip
_EXCHANGES = {
    "all_gather", "all_gather_invariant", "all_to_all", "pgather", "pmax", "pmin",
    "ppermute", "psum", "psum2", "psum_invariant", "psum_scatter", "ragged_all_to_all",
    "reduce_scatter",
}  # fmt: skip

Key = tuple[int, ...]


@dataclass(frozen=True)
class Request:
    """One place where a function says how an array shall lie.

    Attributes:
        kind: 'constraint', 'reshard', 'device_put', 'jit' or 'shard_map'.
        shape, dtype: of the array, unsharded.
        cuts: the mesh axes for each dimension; None where that can't be read, or a
            dimension is left to the compiler.
        sizes: axis → size of the mesh it names.
        explicit: whether one of these axes is Explicit.
        leaves: the arguments that the array is, changed element by element.
        moves_memory: it goes to another kind of memory.
        line: (file, line) of the reader's own code.
    """

    kind: str
    shape: tuple[int, ...]
    dtype: str
    cuts: Cuts | None
    sizes: Mapping[str, int]
    explicit: bool
    leaves: frozenset[int]
    moves_memory: bool = False
    line: tuple[str, int] | None = None


@dataclass(frozen=True)
class TracedArray:
    """What is known of one array of a traced function.

    Attributes:
        leaves: the arguments that it is, changed element by element at most.
        request: the key of the request that it is the result of, itself.
        puts: the device_puts that it went through, element by element since.
        backward: it comes from a backward pass.
        turned: it is a transposed array, not of a backward pass.
    """

    leaves: frozenset[int] = frozenset()
    request: Key | None = None
    puts: frozenset[Key] = frozenset()
    backward: bool = False
    turned: bool = False


@dataclass(frozen=True)
class Reshape:
    """A reshape of an array that is not an argument itself: from one shape to another.

    An argument that is cut over an axis to save memory is gathered in any case.
    """

    before: tuple[int, ...]
    after: tuple[int, ...]
    line: tuple[str, int] | None


@dataclass
class TracedRequests(Tracing[TracedArray]):
    """All requests of a function, and what is known of its results.

    Attributes:
        requests: by where they stand.
        results: a TracedArray for each output.
        reshapes: of arrays that are no arguments.
        taken: how a shard_map takes its operands, where these are arguments.
        exchanges: whether a shard_map has a collective in it.
        explicit: whether an argument or a result is on an Explicit mesh.
    """

    requests: dict[Key, Request] = field(default_factory=dict)
    results: list[TracedArray] = field(default_factory=list)
    reshapes: dict[Key, Reshape] = field(default_factory=dict)
    taken: dict[Key, Request] = field(default_factory=dict)
    exchanges: bool = False
    explicit: bool = False

    def nothing(self, aval: Aval, value: object = None) -> TracedArray:
        return TracedArray()

    def join(self, one: TracedArray, other: TracedArray) -> TracedArray:
        return TracedArray(
            leaves=one.leaves | other.leaves,
            request=one.request if one.request == other.request else None,
            puts=one.puts | other.puts,
            backward=one.backward or other.backward,
            turned=one.turned and other.turned,
        )

    def element(self, value: TracedArray) -> TracedArray:
        return TracedArray(backward=value.backward)

    stacked = element

    def plain(
        self, eqn: Equation, ins: list[TracedArray], around: Around
    ) -> list[TracedArray]:
        name = eqn.primitive.name
        if name == "sharding_constraint":
            return self._ask(eqn, "constraint", [eqn.params["sharding"]], ins, around)
        if name == "reshard":
            return self._ask(eqn, "reshard", [eqn.params["dst_sharding"]], ins, around)
        if name == "device_put":
            return self._ask(eqn, "device_put", eqn.params["devices"], ins, around)
        if name == "reshape" and not ins[0].leaves:
            before, after = eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape
            self.reshapes[around.key(eqn)] = Reshape(before, after, own_line(eqn))
        backward = is_backward(around.stack(eqn)) or any(x.backward for x in ins)
        if name not in _ELEMENTWISE:
            turned = name == "transpose" and not backward
            return [TracedArray(backward=backward, turned=turned) for _ in eqn.outvars]
        shape = eqn.outvars[0].aval.shape
        arrays = [
            x
            for x, variable in zip(ins, eqn.invars, strict=True)
            if getattr(variable.aval, "shape", None) == shape
        ]
        both = TracedArray(
            leaves=frozenset().union(*(x.leaves for x in arrays)),
            puts=frozenset().union(*(x.puts for x in arrays)),
            backward=backward,
            turned=bool(arrays) and all(x.turned for x in arrays),
        )
        return [both for _ in eqn.outvars]

    def call(
        self, eqn: Equation, inner: Jaxpr, ins: list[TracedArray], inside: Around
    ) -> list[TracedArray]:
        outs = self.through(inner, ins, inside)
        shardings = eqn.params.get("out_shardings", ())
        named = any(hasattr(sharding, "spec") for sharding in shardings)
        if len(shardings) != len(outs) or not named:
            return outs
        return self._requested(eqn, "jit", shardings, outs, inside.path)

    def mapped(
        self, eqn: Equation, ins: list[TracedArray], inside: Around
    ) -> list[TracedArray]:
        names = {e.primitive.name for e in equations(eqn.params["jaxpr"])}
        self.exchanges |= not names.isdisjoint(_EXCHANGES)
        specs, mesh = eqn.params["in_specs"], eqn.params["mesh"]
        for n, (x, spec) in enumerate(zip(ins, specs, strict=True)):
            if x.leaves:
                of = request("shard_map", eqn.invars[n].aval, spec, mesh, x.leaves)
                self.taken[(*inside.path, n)] = replace(of, line=own_line(eqn))
        return [TracedArray(request=inside.path) for _ in eqn.outvars]

    def _ask(
        self,
        eqn: Equation,
        kind: str,
        shardings: Iterable[object],
        ins: list[TracedArray],
        around: Around,
    ) -> list[TracedArray]:
        return self._requested(eqn, kind, shardings, ins, around.key(eqn))

    def _requested(
        self,
        eqn: Equation,
        kind: str,
        shardings: Iterable[object],
        ins: list[TracedArray],
        key: Key,
    ) -> list[TracedArray]:
        outs = []
        for n, (sharding, x) in enumerate(zip(shardings, ins, strict=True)):
            # JAX asks for the place of scalars by itself, where it differentiates.
            if not is_named(sharding) or not eqn.outvars[n].aval.shape:
                outs.append(x)
                continue
            here = (*key, n)
            after = eqn.outvars[n].aval
            of = request(kind, after, sharding.spec, sharding.mesh, x.leaves)
            if kind == "device_put":
                before = getattr(eqn.invars[n].aval, "memory_space", None)
                moves = before != getattr(after, "memory_space", None)
                of = replace(of, moves_memory=moves)
            self.requests[here] = replace(of, line=own_line(eqn))
            if kind == "device_put" and not of.explicit:
                outs.append(replace(x, puts=x.puts | {here}))
            else:
                outs.append(replace(x, request=here, turned=False))
        return outs


def requests_of(jaxpr: ClosedJaxpr) -> TracedRequests:
    """Read a closed jaxpr whose arguments are the leaves 0, 1, … in order."""
    traced = TracedRequests()
    count = len(jaxpr.jaxpr.invars)
    traced.results = traced.through(
        jaxpr, [TracedArray(leaves=frozenset({n})) for n in range(count)]
    )
    variables = [*jaxpr.jaxpr.invars, *jaxpr.jaxpr.outvars]
    traced.explicit = any(_is_explicit(v.aval) for v in variables)
    return traced


def request(
    kind: str,
    aval: Aval,
    spec: "PartitionSpec",
    mesh: "Mesh | AbstractMesh",
    leaves: frozenset[int],
) -> Request:
    """What a spec on a mesh asks of an array of this type."""
    return Request(
        kind=kind,
        shape=tuple(aval.shape),
        dtype=str(aval.dtype),
        cuts=cuts_of(spec, mesh, len(aval.shape)),
        sizes={str(axis): size for axis, size in mesh.shape.items()},
        explicit=_has_explicit(mesh),
        leaves=leaves,
    )


def is_requested(
    traced: TracedRequests,
    shape: tuple[int, ...],
    cuts: Cuts | None,
    uncut: Collection[str],
) -> bool:
    """Whether a function asks somewhere for an array that lies so.

    That is one of this shape with these cuts, or one of as many elements, in another
    shape, that is not cut over these axes.
    """
    for request in traced.requests.values():
        if (request.shape, request.cuts) == (shape, cuts):
            return True
        if uncut and request.cuts is not None and prod(request.shape) == prod(shape):
            cut = {axis for axes in request.cuts for axis in axes}
            if cut.isdisjoint(uncut):
                return True
    return False


def padding(request: Request) -> tuple[int, int, int] | None:
    """(dimension, its blocks, rows a block) where a request does not divide it."""
    for number, (size, axes) in enumerate(
        zip(request.shape, request.cuts or (), strict=False)
    ):
        blocks = prod(request.sizes[axis] for axis in axes)
        if blocks > 1 and size % blocks:
            return number, blocks, -(-size // blocks)
    return None


def is_backward(stack: str) -> bool:
    """Whether these names of places are of a backward pass."""
    return "transpose(" in stack


def _has_explicit(mesh: "Mesh | AbstractMesh | None") -> bool:
    return any(
        getattr(kind, "name", "") == "Explicit"
        for kind in getattr(mesh, "axis_types", ()) or ()
    )


def _is_explicit(aval: Aval) -> bool:
    return _has_explicit(getattr(getattr(aval, "sharding", None), "mesh", None))
