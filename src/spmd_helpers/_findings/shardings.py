"""Mistakes that show in the shardings of arguments and results, and in requests.

Where only a lowered or compiled function was given, its requests are not known, and
nothing is said of how its results are sharded.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import takewhile
from math import prod

from .._core.words import bytes_words, count_words, join_words
from .._jaxprs.requests import TracedArray, TracedRequests, is_requested
from .._jaxprs.walk import ClosedJaxpr, own_line
from .._shardings.cuts import Cuts, array_words, cuts_of, is_named, spec_words
from .._shardings.sharding import ShardingInfo
from .evidence import Evidence, Leaf
from .finding import SMALL_BYTES, Finding, Named, axes_words, few, few_paths

_KEYS = re.compile(r"\[[^\]]*\]|\.\w+")


def cuts(leaf: Leaf, evidence: Evidence) -> Cuts | None:
    """The axes that shard each dimension of an argument or result; None if unknown."""
    if leaf.sharding_info is None or not leaf.sharding_info.mesh_shape:
        if not is_named(leaf.sharding):
            return None
        return cuts_of(leaf.sharding.spec, leaf.sharding.mesh, len(leaf.shape))
    sizes = leaf.sharding_info.mesh_shape
    return tuple(
        tuple(axis for axis in axes if sizes[axis] > 1)
        for axes in leaf.sharding_info.entries
    )


# --- Results that lie otherwise than the argument they belong to -------------------


@dataclass(frozen=True)
class Stray:
    """A result, and the argument with whose sharding it should agree."""

    out: Leaf
    info: ShardingInfo  # of the result
    into: Leaf
    out_cuts: Cuts
    into_cuts: Cuts

    @property
    def lost(self) -> tuple[str, ...]:
        """The axes that shard the argument and not the result."""
        kept = {axis for axes in self.out_cuts for axis in axes}
        return tuple(
            axis for axes in self.into_cuts for axis in axes if axis not in kept
        )

    @property
    def elsewhere(self) -> bool:
        """Whether an axis shards another dimension of the result than it should."""
        dims = {axis: n for n, axes in enumerate(self.out_cuts) for axis in axes}
        return any(
            dims.get(axis, n) != n
            for n, axes in enumerate(self.into_cuts)
            for axis in axes
        )

    @property
    def wasted_bytes(self) -> int:
        """The bytes per device beyond those of that sharding."""
        bytes_per_device, sizes = self.info.bytes_per_device, self.info.mesh_shape
        return bytes_per_device - bytes_per_device // prod(
            sizes[axis] for axis in self.lost
        )


def results(strays: tuple[list[Stray], list[Stray]]) -> Iterator[Finding]:
    """`replicated-output` and `resharded-output`."""
    replicated, moved = strays
    if replicated:
        yield _replicated(replicated)
    if moved:
        yield _moved(moved)


def strays(
    evidence: Evidence, requested: TracedRequests | None
) -> tuple[list[Stray], list[Stray]]:
    """Results that come out replicated over an axis, and those sharded otherwise."""
    replicated: list[Stray] = []
    moved: list[Stray] = []
    if (
        requested is None
        or requested.explicit
        or len(requested.results) != len(evidence.outputs)
    ):
        return replicated, moved
    for out, traced in zip(evidence.outputs, requested.results, strict=True):
        info, out_cuts = out.sharding_info, cuts(out, evidence)
        if out.sharding is not None or traced.request is not None:
            continue
        if info is None or out_cuts is None:
            continue
        pair = _pair(out, info, out_cuts, traced, evidence)
        if pair is None:
            continue
        if is_requested(requested, out.shape, out_cuts, pair.lost):
            continue
        if pair.lost and pair.wasted_bytes >= SMALL_BYTES:
            replicated.append(pair)
        turned = pair.lost or not pair.elsewhere or traced.turned
        if not turned and info.bytes_per_device >= SMALL_BYTES:
            moved.append(pair)
    return replicated, moved


def _replicated(pairs: list[Stray]) -> Finding:
    axes = dict.fromkeys(axis for pair in pairs for axis in pair.lost)
    wasted = sum(pair.wasted_bytes for pair in pairs)
    first = pairs[0]
    verb = "comes" if len(pairs) == 1 else "come"
    return Finding(
        "replicated-output",
        f"{few_paths(p.out.path for p in pairs)} {verb} out replicated over "
        f"{axes_words(axes)}, which shards {few_paths(p.into.path for p in pairs)} of "
        f"the same shape: {bytes_words(wasted)} more per device.",
        "State it: jax.jit(f, out_shardings=…) with the shardings of the arguments, "
        f"here {spec_words(first.into_cuts)}; or make the mesh's axes Explicit.",
        "10_fsdp",
    )


def _moved(pairs: list[Stray]) -> Finding:
    first = pairs[0]
    verb = "comes" if len(pairs) == 1 else "come"
    return Finding(
        "resharded-output",
        f"{few_paths(p.out.path for p in pairs)} {verb} out sharded along another "
        f"dimension than {few_paths(p.into.path for p in pairs)} of the same shape: "
        f"{spec_words(first.out_cuts)} instead of {spec_words(first.into_cuts)}.",
        "State it: jax.jit(f, out_shardings=…) with the shardings of the arguments, "
        f"here {spec_words(first.into_cuts)}; or make the mesh's axes Explicit.",
        "10_fsdp",
    )


def _pair(
    out: Leaf,
    info: ShardingInfo,
    out_cuts: Cuts,
    traced: TracedArray,
    evidence: Evidence,
) -> Stray | None:
    """The argument that a result belongs to, if all that it may be agree on a cut."""
    arguments = partners(out, traced, evidence)
    known = [cuts(leaf, evidence) for leaf in arguments]
    all_cuts = [each for each in known if each is not None]
    if not arguments or len(all_cuts) < len(arguments):
        return None
    axes = [{axis for part in each for axis in part} for each in all_cuts]
    common = set.intersection(*axes)
    if not common:
        return None
    kept = {axis for part in out_cuts for axis in part}
    if common - kept or len(set(all_cuts)) == 1:
        narrowed = tuple(
            tuple(axis for axis in part if axis in common) for part in all_cuts[0]
        )
        return Stray(out, info, arguments[0], out_cuts, narrowed)
    return None


def partners(out: Leaf, traced: TracedArray, evidence: Evidence) -> list[Leaf]:
    """The arguments that a result may be the gradient, or the next value, of.

    They have its shape and dtype. Those whose path ends like its own come first; if
    there are none, a result of a backward pass, or one that is an argument changed
    element by element, may belong to any of that shape. Another result of a forward
    pass has its shape by accident.
    """
    numbers = evidence.inputs_like.get((out.shape, out.dtype), []) if out.shape else []
    leaves = [(n, evidence.inputs[n]) for n in numbers]
    own_keys = _named_keys(out.path)
    candidates = [(_same_ending(own_keys, leaf.path), n, leaf) for n, leaf in leaves]
    best = max((common for common, _, _ in candidates), default=0)
    if best:
        return [leaf for common, _, leaf in candidates if common == best]
    own = [leaf for _, n, leaf in candidates if n in traced.leaves]
    if own:
        return own
    return [leaf for _, _, leaf in candidates] if traced.backward else []


def _same_ending(one: Sequence[str], other: str) -> int:
    """How many keys agree, from the end: 1 of ["['w']"] and "p['w']"."""
    common = 0
    for a, b in zip(one, _keys(other) if one else (), strict=False):
        if a != b:
            break
        common += 1
    return common


def _named_keys(path: str) -> list[str]:
    """The keys of a path, the last one first, as far as they are names."""
    return [*takewhile(lambda key: not key.strip("[]").isdigit(), _keys(path))]


@lru_cache(maxsize=8192)
def _keys(path: str) -> tuple[str, ...]:
    """The keys of a path, the last one first."""
    return tuple(reversed(_KEYS.findall(path)))


# --- Optimizer state that is not sharded as its parameters --------------------------

# What a path has before it comes to the parameter that a state belongs to.
_OF_OPTIMIZER = re.compile(
    r"(?:^|[\W_])(?:opt|optim|optimizer|mu|nu|ema|momentum|moments?|trace|velocity)"
    r"(?:$|[\W_])"
)


def replicated_state(evidence: Evidence) -> Iterator[Finding]:
    """`replicated-state`: a parameter is sharded, and its optimizer state is not."""
    drifting = {id(leaf) for leaf in _drifting(evidence)}
    by_lost: dict[tuple[str, ...], list[tuple[Leaf, Leaf, int]]] = {}
    for numbers in evidence.inputs_like.values():
        leaves = [evidence.inputs[n] for n in numbers]
        states = [x for x in leaves if _OF_OPTIMIZER.search(x.path)]
        for state in states if len(states) < len(leaves) else ():
            param = _param_of(state, leaves)
            if param is None or id(state) in drifting:
                continue
            lost, wasted = _lost(state, param, evidence)
            if lost and wasted >= SMALL_BYTES:
                by_lost.setdefault(lost, []).append((state, param, wasted))
    for lost, group in by_lost.items():
        param = group[0][1]
        many = len(group) > 1
        yield Finding(
            "replicated-state",
            f"{few_paths(s.path for s, _, _ in group)} {'are' if many else 'is'} not "
            f"sharded over {axes_words(lost)}, as "
            f"{few_paths(p.path for _, p, _ in group)} {'are' if many else 'is'}: "
            f"{bytes_words(sum(w for _, _, w in group))} more per device, and each "
            "update gathers.",
            "Shard the optimizer state as the parameters, here "
            f"{spec_words(cuts(param, evidence) or ())}: jax.device_put(opt_state, …), "
            "and the same in out_shardings.",
            "10_fsdp",
        )


def _param_of(state: Leaf, leaves: list[Leaf]) -> Leaf | None:
    """The parameter whose path, without its root, ends the path of a state."""
    for leaf in leaves:
        if _OF_OPTIMIZER.search(leaf.path):
            continue
        keys, common = _keys(leaf.path), 0
        for one, other in zip(keys, _keys(state.path), strict=False):
            if one != other:
                break
            common += 1
        if keys and common >= max(1, len(keys) - 1):
            return leaf
    return None


def _lost(state: Leaf, param: Leaf, evidence: Evidence) -> tuple[tuple[str, ...], int]:
    """The axes that shard a parameter and not its state, and what they cost."""
    info, of_state, of_param = (
        state.sharding_info,
        cuts(state, evidence),
        cuts(param, evidence),
    )
    if info is None or of_state is None or of_param is None:
        return (), 0
    kept = {axis for axes in of_state for axis in axes}
    lost = tuple(axis for axes in of_param for axis in axes if axis not in kept)
    parts = prod(evidence.mesh_shape.get(axis, 1) for axis in lost)
    return lost, info.bytes_per_device - info.bytes_per_device // parts


# --- Annotated, and not sharded -------------------------------------------------------


def annotated(evidence: Evidence) -> Iterator[Finding]:
    """`annotated-only`: Flax's metadata names axes that do not shard the array."""
    missing: dict[tuple[str, ...], list[tuple[Leaf, int]]] = {}
    for leaf in evidence.inputs:
        info, now = leaf.sharding_info, cuts(leaf, evidence)
        if leaf.annotated is None or info is None or now is None:
            continue
        parts = [x if isinstance(x, (tuple, list)) else (x,) for x in leaf.annotated]
        wanted = {axis for part in parts for axis in part if isinstance(axis, str)}
        if not wanted <= set(evidence.mesh_shape):
            continue  # logical names, which rules translate
        kept = {axis for axes in now for axis in axes}
        sizes = evidence.mesh_shape
        lost = tuple(a for a in sizes if a in wanted - kept and sizes[a] > 1)
        more = info.bytes_per_device - info.bytes_per_device // prod(
            sizes[axis] for axis in lost
        )
        if lost and more >= SMALL_BYTES:
            missing.setdefault(lost, []).append((leaf, more))
    for lost, group in missing.items():
        many = len(group) > 1
        yield Finding(
            "annotated-only",
            f"{few_paths(leaf.path for leaf, _ in group)} {'are' if many else 'is'} "
            f"annotated with {axes_words(lost)}, which does not shard "
            f"{'them' if many else 'it'}: "
            f"{bytes_words(sum(more for _, more in group))} more per device. An "
            "annotation places nothing by itself.",
            "Place the model as its annotations say: state = nnx.state(model); "
            "nnx.update(model, jax.device_put(state, nnx.get_named_sharding(state, "
            "mesh))).",
            "10_fsdp",
        )


# --- All on one device --------------------------------------------------------------


def one_device(evidence: Evidence) -> Iterator[Finding]:
    """`single-device-output`: the arguments are on a mesh, the program runs on one."""
    devices = max((leaf.devices for leaf in evidence.inputs), default=1)
    outputs = [
        out for out in evidence.outputs if out.sharding is None and out.devices == 1
    ]
    size = sum(_total_bytes(out) for out in outputs)
    if devices == 1 or size < SMALL_BYTES:
        return
    biggest = sorted(outputs, key=_total_bytes, reverse=True)
    yield Finding(
        "single-device-output",
        f"The arguments are on {devices} devices, but "
        f"{few_paths(o.path for o in biggest)} ({bytes_words(size)} in all) will be "
        "on one: the program uses none of the arguments' values, so no sharding "
        "propagates to the results.",
        "State the results' shardings: jax.jit(f, out_shardings=…), with the "
        "shardings of the parameters.",
        "10_fsdp",
    )


def _total_bytes(leaf: Leaf) -> int:
    return (
        0
        if leaf.sharding_info is None
        else prod(leaf.shape) * leaf.sharding_info.itemsize
    )


# --- Arrays that a function closes over -----------------------------------------------


@dataclass(frozen=True)
class ClosedOver:
    """A sharded array that a function uses without taking it as an argument.

    Attributes:
        shape, dtype, cuts: of the array, as it is sharded outside of the function.
        nbytes, bytes_per_device: of all of it, and of a shard.
        line: where the function uses it first.
    """

    shape: tuple[int, ...]
    dtype: str
    cuts: Cuts
    nbytes: int
    bytes_per_device: int
    line: tuple[str, int] | None

    @property
    def axes(self) -> tuple[str, ...]:
        """The mesh axes that it is sharded over."""
        return tuple(axis for part in self.cuts for axis in part)


def closed_over(jaxpr: ClosedJaxpr) -> list[ClosedOver]:
    """The sharded arrays that a function closes over."""
    arrays = []
    for variable, x in zip(jaxpr.jaxpr.constvars, jaxpr.consts, strict=True):
        sharding = getattr(x, "sharding", None)
        if not is_named(sharding):
            continue
        sharded = cuts_of(sharding.spec, sharding.mesh, len(x.shape))
        if sharded is None or not any(sharded) or x.nbytes < SMALL_BYTES:
            continue
        takers = [eqn for eqn in jaxpr.jaxpr.eqns if variable in eqn.invars]
        shard = prod(sharding.shard_shape(x.shape)) * x.dtype.itemsize
        line = own_line(takers[0]) if takers else None
        array = tuple(x.shape), str(x.dtype), sharded
        arrays.append(ClosedOver(*array, int(x.nbytes), shard, line))
    return arrays


def constants(arrays: list[ClosedOver], named: Named) -> Iterator[Finding]:
    """`closed-over`: a sharded array is a constant of the program, and full-size."""
    by_line: dict[tuple[str, int] | None, list[ClosedOver]] = {}
    for each in arrays:
        by_line.setdefault(each.line, []).append(each)
    for line, group in by_line.items():
        words = few(
            f"{array_words(x.shape, x.dtype)}, sharded as {spec_words(x.cuts)}"
            for x in group
        )
        size = sum(x.nbytes for x in group)
        shard = sum(x.bytes_per_device for x in group)
        yield Finding(
            "closed-over",
            f"The function closes over {words}: jit makes a constant of it, which is "
            f"full-size on every device, {bytes_words(size)} instead of "
            f"{bytes_words(shard)}.",
            "Give it to the function as an argument.",
            "08_it_ran_but",
            named(*line) if line else None,
        )


# --- What changes from one step to the next ----------------------------------------


def drift(evidence: Evidence) -> Iterator[Finding]:
    """`sharding-drift`: a result that isn't like the argument that it becomes."""
    changes: dict[_Change, list[str]] = {}
    for number, into in evidence.carry:
        out, before = evidence.outputs[number], evidence.inputs[into]
        reason = _difference(before, out, evidence) or _weakness(into, number, evidence)
        if reason is not None:
            words = f"{before.path} → {out.path}"
            if _below(before.path) and _below(before.path) == _below(out.path):
                words = before.path
            changes.setdefault(reason, []).append(words)
    for (was, becomes, remedy), paths in changes.items():
        goes, comes = ("goes", "comes") if len(paths) == 1 else ("go", "come")
        yield Finding(
            "sharding-drift",
            f"{few_paths(paths)} {goes} in {was} and {comes} out {becomes}: the "
            "second step compiles again.",
            remedy,
            "08_it_ran_but",
        )


def _drifting(evidence: Evidence) -> Iterator[Leaf]:
    """The arguments that come out with another sharding, for the next step."""
    for number, into in evidence.carry:
        before = evidence.inputs[into]
        change = _difference(before, evidence.outputs[number], evidence)
        if change is not None and change[2] == _PLACE:
            yield before


def _below(path: str) -> str:
    """A path without its root: an argument's name, or a result's number."""
    return re.sub(r"^result(\[\d+\])?(?=[\[.])|^\w+", "", path)


_Change = tuple[str, str, str]  # how it goes in, how it comes out, what to do
_PLACE = (
    "Place it before the first step as the step returns it: jax.device_put(state, "
    "sharding); or request it with out_shardings."
)
_MEMORY = (
    "Request the memory kind of the argument: "
    "out_shardings=sharding.with_memory_kind(…), as the argument has it."
)
_CAST = "Give the first step what the step returns: x = x.astype(dtype) before it."


def _difference(before: Leaf, out: Leaf, evidence: Evidence) -> _Change | None:
    """How a result differs from the argument that it becomes; None if it doesn't."""
    types = [array_words(leaf.shape, leaf.dtype) for leaf in (before, out)]
    if types[0] != types[1]:
        return f"as {types[0]}", f"as {types[1]}", _CAST
    moved = out.devices > 1 and cuts(before, evidence) != cuts(out, evidence)
    if moved or before.devices != out.devices:
        return _placed(before, evidence), _placed(out, evidence), _PLACE
    if before.memory != out.memory:
        return f"from {before.memory} memory", f"in {out.memory} memory", _MEMORY
    return None


def _weakness(into: int, number: int, evidence: Evidence) -> _Change | None:
    """Whether one has the weak type of a Python number: compiled programs don't say."""
    if evidence.jaxpr is None:
        return None
    jaxpr = evidence.jaxpr.jaxpr
    avals = jaxpr.invars[into].aval, jaxpr.outvars[number].aval
    before, after = (bool(getattr(aval, "weak_type", False)) for aval in avals)
    if before == after:
        return None
    weak, strong = "weakly typed", "strongly typed"
    return (weak, strong, _CAST) if before else (strong, weak, _CAST)


def _placed(leaf: Leaf, evidence: Evidence) -> str:
    if leaf.devices == 1:
        return "on one device"
    axes = cuts(leaf, evidence)
    where = "" if axes is None else f"as {spec_words(axes)} "
    return f"{where}on {count_words(leaf.devices, 'device')}"


# --- Donated for nothing -------------------------------------------------------------


def donation(evidence: Evidence) -> Iterator[Finding]:
    """`donation-ignored`: donated memory that no result takes.

    Of what comes out with another sharding `drift` says so.
    """
    reused = _reused(evidence.module.header)
    used = [
        (leaf, leaf.sharding_info)
        for leaf in evidence.inputs
        if leaf.sharding_info is not None
    ]
    drifting = {id(leaf) for leaf in _drifting(evidence)}
    unused = [
        (leaf, info)
        for number, (leaf, info) in enumerate(used)
        if leaf.donated and number not in reused and id(leaf) not in drifting
    ]
    lost = [leaf for leaf, _ in unused]
    size = sum(info.bytes_per_device for _, info in unused)
    if size < SMALL_BYTES:
        return
    one = len(lost) == 1
    why = dict.fromkeys(_not_reused(leaf, evidence) for leaf in lost)
    yield Finding(
        "donation-ignored",
        f"{few_paths(leaf.path for leaf in lost)} {'is' if one else 'are'} donated, "
        f"but no result takes {'its' if one else 'their'} memory "
        f"({bytes_words(size)} per device): {join_words(list(why))}.",
        "Return an array of the same shape, dtype and sharding (out_shardings), or "
        "don't donate it.",
        "13_training_loop",
    )


def _reused(header: str) -> set[int]:
    """The numbers of the parameters whose memory results reuse."""
    start = header.find("input_output_alias={")
    if start < 0:
        return set()
    listed = re.match(r"(?:[^{}]|\{[^{}]*\})*", header[start + 20 :])
    numbers = re.findall(r"\((\d+),", listed.group()) if listed else []
    return {int(number) for number in numbers}


def _not_reused(leaf: Leaf, evidence: Evidence) -> str:
    alike = [out for out in evidence.outputs if out.shape == leaf.shape]
    same = [out for out in alike if out.dtype == leaf.dtype]
    if not alike:
        return f"none has the shape {array_words(leaf.shape, leaf.dtype)}"
    if not same:
        return f"{alike[0].path} of that shape is {alike[0].dtype}, not {leaf.dtype}"
    here, there = cuts(leaf, evidence), cuts(same[0], evidence)
    if here is None or there is None or here == there:
        return "others were given away for them"
    return f"{same[0].path} is sharded as {spec_words(there)}, not {spec_words(here)}"
