"""Mistakes that show in how arguments and results lie, and in what was asked of them.

Where only a lowered or compiled function was given, what it asked for is not known,
and nothing is said of how its results lie.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from .._core.words import bytes_words, count_words, join_words
from .._jaxprs.requests import TracedArray, TracedRequests, is_requested
from .._shardings.cuts import Cuts, array_words, cuts_of, spec_words
from .evidence import Evidence, Leaf
from .finding import SMALL_BYTES, Finding, axes_words, few

_KEYS = re.compile(r"\[[^\]]*\]|\.\w+")


def cuts(leaf: Leaf, seen: Evidence) -> Cuts | None:
    """The axes that cut each dimension of an argument or a result; None if unknown."""
    if leaf.sharding_info is None or not leaf.sharding_info.mesh_shape:
        if not hasattr(leaf.sharding, "spec"):
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
    into: Leaf
    out_cuts: Cuts
    into_cuts: Cuts

    @property
    def lost(self) -> tuple[str, ...]:
        """The axes that cut the argument and not the result."""
        kept = {axis for axes in self.out_cuts for axis in axes}
        return tuple(
            axis for axes in self.into_cuts for axis in axes if axis not in kept
        )

    @property
    def wasted_bytes(self) -> int:
        """What a device holds more of the result than if it were cut so."""
        held = self.out.sharding_info.bytes_per_device
        sizes = self.out.sharding_info.mesh_shape
        return held - held // prod(sizes[axis] for axis in self.lost)


def results(seen: Evidence, asked: TracedRequests | None) -> Iterator[Finding]:
    """`replicated-output` and `moved-output`."""
    replicated, moved = strays(seen, asked)
    if replicated:
        yield _replicated(replicated)
    if moved:
        yield _moved(moved)


def strays(
    seen: Evidence, asked: TracedRequests | None
) -> tuple[list[Stray], list[Stray]]:
    """The results that come out whole along an axis, and those cut otherwise."""
    replicated: list[Stray] = []
    moved: list[Stray] = []
    if asked is None or asked.explicit or len(asked.results) != len(seen.outputs):
        return replicated, moved
    for out, held in zip(seen.outputs, asked.results, strict=True):
        out_cuts = cuts(out, seen)
        if out.sharding is not None or held.request is not None or out_cuts is None:
            continue
        pair = _pair(out, out_cuts, held, seen)
        if out.sharding_info is None or pair is None:
            continue
        if is_requested(asked, out.shape, out_cuts, pair.lost):
            continue
        if pair.lost and pair.wasted_bytes >= SMALL_BYTES:
            replicated.append(pair)
        turned = pair.lost or pair.into_cuts == out_cuts or held.turned
        if not turned and out.sharding_info.bytes_per_device >= SMALL_BYTES:
            moved.append(pair)
    return replicated, moved


def _replicated(pairs: list[Stray]) -> Finding:
    axes = dict.fromkeys(axis for pair in pairs for axis in pair.lost)
    wasted = sum(pair.wasted_bytes for pair in pairs)
    first = pairs[0]
    verb = "comes" if len(pairs) == 1 else "come"
    return Finding(
        "replicated-output",
        f"{few(p.out.path for p in pairs)} {verb} out whole along {axes_words(axes)}, "
        f"which cuts {few(p.into.path for p in pairs)} of the same shape: "
        f"{bytes_words(wasted)} more on each device.",
        f"Ask for it: jax.jit(f, out_shardings=…) with the shardings of the arguments, "
        f"here {spec_words(first.into_cuts)}; or make the mesh's axes Explicit.",
        "10_fsdp",
    )


def _moved(pairs: list[Stray]) -> Finding:
    first = pairs[0]
    verb = "comes" if len(pairs) == 1 else "come"
    return Finding(
        "moved-output",
        f"{few(p.out.path for p in pairs)} {verb} out cut along another dimension "
        f"than {few(p.into.path for p in pairs)} of the same shape: "
        f"{spec_words(first.out_cuts)} instead of {spec_words(first.into_cuts)}.",
        f"Ask for it: jax.jit(f, out_shardings=…) with the shardings of the arguments, "
        f"here {spec_words(first.into_cuts)}; or make the mesh's axes Explicit.",
        "10_fsdp",
    )


def _pair(out: Leaf, out_cuts: Cuts, held: TracedArray, seen: Evidence) -> Stray | None:
    """The argument that a result belongs to, if all that it may be agree on a cut."""
    found = partners(out, held, seen)
    all_cuts = [cuts(leaf, seen) for leaf in found]
    if not found or None in all_cuts:
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
        return Stray(out, found[0], out_cuts, narrowed)
    return None


def partners(out: Leaf, held: TracedArray, seen: Evidence) -> list[Leaf]:
    """The arguments that a result may be the gradient, or the next value, of.

    They have its shape and dtype. Those whose path ends like its own come first; if
    there are none, a result of a backward pass, or one that is an argument changed
    element by element, may belong to any of that shape. Another result of a forward
    pass has its shape by accident.
    """
    found = [
        (_same_ending(out.path, leaf.path), n, leaf)
        for n, leaf in enumerate(seen.inputs)
        if (leaf.shape, leaf.dtype) == (out.shape, out.dtype) and leaf.shape
    ]
    best = max((common for common, _, _ in found), default=0)
    if best:
        return [leaf for common, _, leaf in found if common == best]
    own = [leaf for _, n, leaf in found if n in held.leaves]
    if own:
        return own
    return [leaf for _, _, leaf in found] if held.backward else []


def _same_ending(one: str, other: str) -> int:
    """How many keys at the end of two paths agree: 1 of "result[0]['w']", "p['w']"."""
    common = 0
    for a, b in zip(
        reversed(_KEYS.findall(one)), reversed(_KEYS.findall(other)), strict=False
    ):
        if a != b or a.strip("[]").isdigit():
            break
        common += 1
    return common


# --- All on one device --------------------------------------------------------------


def one_device(seen: Evidence) -> Iterator[Finding]:
    """`single-device-output`: the arguments lie on a mesh, the program runs on one."""
    devices = max((leaf.devices for leaf in seen.inputs), default=1)
    held = [out for out in seen.outputs if out.sharding is None and out.devices == 1]
    size = sum(_whole_bytes(out) for out in held)
    if devices == 1 or size < SMALL_BYTES:
        return
    biggest = sorted(held, key=_whole_bytes, reverse=True)
    yield Finding(
        "single-device-output",
        f"The arguments lie on {devices} devices, but {few(o.path for o in biggest)} "
        f"({bytes_words(size)} in all) will lie on one: the values of the arguments "
        "are not used, so jit leaves them out, and with them where they lie.",
        "Say where the results go: jax.jit(f, out_shardings=…), with the shardings of "
        "the parameters.",
        "10_fsdp",
    )


def _whole_bytes(leaf: Leaf) -> int:
    return (
        0
        if leaf.sharding_info is None
        else prod(leaf.shape) * leaf.sharding_info.itemsize
    )


# --- What changes from one step to the next ----------------------------------------


def drift(seen: Evidence) -> Iterator[Finding]:
    """`sharding-drift`: a result that isn't like the argument that it becomes."""
    found: dict[_Change, list[str]] = {}
    for number, into in seen.carry:
        out, before = seen.outputs[number], seen.inputs[into]
        reason = _difference(before, out, seen) or _weakness(into, number, seen)
        if reason is not None:
            found.setdefault(reason, []).append(f"{before.path} → {out.path}")
    for (was, becomes, remedy), paths in found.items():
        goes, comes = ("goes", "comes") if len(paths) == 1 else ("go", "come")
        yield Finding(
            "sharding-drift",
            f"{few(paths)} {goes} in {was} and {comes} out {becomes}: the second step "
            "compiles again.",
            remedy,
            "08_it_ran_but",
        )


_Change = tuple[str, str, str]  # how it goes in, how it comes out, what to do
_PLACE = (
    "Place it before the first step as the step returns it: "
    "jax.device_put(state, sharding); or ask for it with out_shardings."
)
_CAST = "Give the first step what the step returns: x = x.astype(dtype) before it."


def _difference(before: Leaf, out: Leaf, seen: Evidence) -> _Change | None:
    """How a result differs from the argument that it becomes; None if it doesn't."""
    types = [array_words(leaf.shape, leaf.dtype) for leaf in (before, out)]
    if types[0] != types[1]:
        return f"as {types[0]}", f"as {types[1]}", _CAST
    moved = out.devices > 1 and cuts(before, seen) != cuts(out, seen)
    if moved or before.devices != out.devices:
        return _placed(before, seen), _placed(out, seen), _PLACE
    return None


def _weakness(into: int, number: int, seen: Evidence) -> _Change | None:
    """Whether one has the weak type of a Python number: compiled programs don't say."""
    if seen.jaxpr is None:
        return None
    jaxpr = seen.jaxpr.jaxpr
    before, after = jaxpr.invars[into].aval, jaxpr.outvars[number].aval
    if getattr(before, "weak_type", 0) == getattr(after, "weak_type", 0):
        return None
    weak = ("weakly typed", "strongly typed", _CAST)
    return weak if before.weak_type else (weak[1], weak[0], _CAST)


def _placed(leaf: Leaf, seen: Evidence) -> str:
    if leaf.devices == 1:
        return "on one device"
    found = cuts(leaf, seen)
    where = "" if found is None else f"as {spec_words(found)} "
    return f"{where}on {count_words(leaf.devices, 'device')}"


# --- Donated for nothing -------------------------------------------------------------


def donation(seen: Evidence) -> Iterator[Finding]:
    """`donation-ignored`: donated memory that no result takes."""
    reused = _reused(seen.module.header)
    used = [leaf for leaf in seen.inputs if leaf.sharding_info is not None]
    lost = [
        leaf
        for number, leaf in enumerate(used)
        if leaf.donated and number not in reused
    ]
    size = sum(leaf.sharding_info.bytes_per_device for leaf in lost)
    if size < SMALL_BYTES:
        return
    one = len(lost) == 1
    why = dict.fromkeys(_not_reused(leaf, seen) for leaf in lost)
    yield Finding(
        "donation-ignored",
        f"{few(leaf.path for leaf in lost)} {'is' if one else 'are'} donated, but no "
        f"result takes {'its' if one else 'their'} memory ({bytes_words(size)} per "
        f"device): {join_words(list(why))}.",
        "Return an array of the same shape, dtype and sharding (out_shardings), or "
        "don't donate it.",
        "13_training_loop",
    )


def _reused(header: str) -> set[int]:
    """The numbers of the parameters whose memory results reuse."""
    start = header.find("input_output_alias={")
    if start < 0:
        return set()
    listed = re.match(r"(?:[^{}]|\{[^{}]*\})*", header[start + 20 :]).group()
    return {int(number) for number in re.findall(r"\((\d+),", listed)}


def _not_reused(leaf: Leaf, seen: Evidence) -> str:
    alike = [out for out in seen.outputs if out.shape == leaf.shape]
    same = [out for out in alike if out.dtype == leaf.dtype]
    if not alike:
        return f"none has the shape {array_words(leaf.shape, leaf.dtype)}"
    if not same:
        return f"{alike[0].path} of that shape is {alike[0].dtype}, not {leaf.dtype}"
    here, there = cuts(leaf, seen), cuts(same[0], seen)
    if here is None or there is None or here == there:
        return "others were given away for them"
    return f"{same[0].path} lies {spec_words(there)} and not {spec_words(here)}"
