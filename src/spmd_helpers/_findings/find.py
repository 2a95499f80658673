"""What looks like a mistake in a function that runs without an error.

Here all detectors run. What is known of the function comes from two sides: what
JAX traced (the places it asks for; its shard_maps) and the compiled text. A detector
stays silent where what it sees may also be meant.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from .._core.source_lines import place_name
from .._hlo.dataflow import parameter
from .._hlo.labels import source
from .._hlo.work import Repeated
from .._jaxprs.requests import requests_of
from .._jaxprs.shard_maps import Drawn, Sum, Unchecked, mapped_by
from .._shardings.cuts import array_words
from . import compiled as hlo
from . import gathered, requests, shardings
from .donated import donated_twice
from .evidence import Evidence, Leaf
from .finding import Finding, Named, axes_words, few
from .rematerialized import rematerialized

__all__ = ["Finding", "find"]

# The share of the matrix products that may be repeated along an axis before it is
# reported: a small product that is repeated, such as a head's, is no mistake.
_REPEATED = 0.2
# The redundancy from which it is reported where no complete axis repeats, but parts.
_PARTLY = 1.25


def find(evidence: Evidence, named: Named = place_name) -> tuple[Finding, ...]:
    """Everything in a compiled function that looks like a silent mistake.

    Args:
        evidence: what is known of it. Without a jaxpr there are findings of the
            compiled program alone.
        named: how a (file, line) of the reader's own code is written.

    Returns:
        One Finding for each kind of mistake and place, wrong numbers first.
    """
    return tuple(_all(evidence, named))


def _all(evidence: Evidence, named: Named) -> Iterator[Finding]:
    requested = None
    if evidence.jaxpr is not None:
        requested = requests_of(evidence.jaxpr)
        inside = mapped_by(evidence.jaxpr)
        for total in dict.fromkeys(inside.sums.values()):
            yield _summed(total, named)
        for output in dict.fromkeys(inside.unchecked.values()):
            yield _unchecked(output, named)
        for draw in dict.fromkeys(inside.drawn.values()):
            yield _drawn(draw, named)
    constants = shardings.closed_over(evidence.jaxpr) if evidence.jaxpr else []
    yield from shardings.constants(constants, named)
    gathers = hlo.gathers_of(evidence)
    yield from requests.constraints(evidence, requested, named)
    yield from requests.device_puts(evidence, requested, named)
    yield from shardings.one_device(evidence)
    strays = shardings.strays(evidence, requested)
    yield from shardings.results(strays)
    yield from shardings.annotated(evidence)
    yield from shardings.replicated_state(evidence)
    yield from requests.moving_operations(evidence, named)
    operands = [*gathered.unrequested(evidence, gathers, requested, strays[0], named)]
    lines = {f.source for f in operands if f.code == "gathered-operand"}
    yield from requests.reshards(evidence, requested, named, lines)
    yield from hlo.stacks(evidence, gathers, named)
    yield from hlo.tables(evidence, gathers, named)
    yield from operands
    yield from rematerialized(evidence, requested, operands, named)
    yield from hlo.accumulated(evidence, named)
    yield from hlo.conditions(evidence, named)
    lost = {axis for each in constants for axis in each.axes}
    yield from _work(evidence, lost, named)
    yield from shardings.drift(evidence)
    yield from shardings.donation(evidence)
    yield from donated_twice(evidence)


# --- Inside a shard_map ---------------------------------------------------------------


def _summed(each: Sum, named: Named) -> Finding:
    """`summed-twice`: a sum of what all devices of the axis already have alike."""
    over = axes_words(each.axes)
    what = "pmean" if each.mean else "psum"
    if not each.gradient:
        sentence = (
            f"A psum over {over} adds up what is the same on all {each.devices} "
            f"devices: it comes out {each.devices} times too large."
        )
        do = "Leave the psum out, or use pmean."
    else:
        sentence = (
            f"A {what} over {over} of a gradient that is already summed over {over}: "
            "inside shard_map, JAX sums the gradient of what is the same on all "
            f"devices. This {what} "
            + (
                f"changes nothing: the gradient is {each.devices} times the mean."
                if each.mean
                else f"makes it {each.devices} times larger still."
            )
        )
        axis = repr(each.axes[0] if len(each.axes) == 1 else each.axes)
        do = (
            f"Differentiate with respect to jax.lax.pcast(w, {axis}, to='varying') and "
            "keep the pmean; or take the pmean of the loss inside the function that is "
            "differentiated, and none of the gradients."
        )
    return Finding(
        "summed-twice", sentence, do, "02_jit_sharding", _at(each.line, named)
    )


def _unchecked(each: Unchecked, named: Named) -> Finding:
    """`unchecked-output`: only one device's value of a result is taken."""
    return Finding(
        "unchecked-output",
        f"Output {each.number} of a shard_map, {array_words(each.shape, each.dtype)}, "
        f"differs along {axes_words(each.axes)}, which its out_specs do not name. With "
        "check_vma=False nobody looks: one device's value is taken for all.",
        "Leave check_vma on, and sum or average it first, "
        f"jax.lax.psum(x, {each.axes[0]!r}), or name the axis in out_specs.",
        "05_three_modes",
        _at(each.line, named),
    )


def _drawn(each: Drawn, named: Named) -> Finding:
    """`same-randomness`: every device draws the same numbers for its own data."""
    over = axes_words(each.axes)
    return Finding(
        "same-randomness",
        f"Inside a shard_map every device along {over} draws the same random numbers "
        "for its own part of the data: the key is the same on all.",
        "Give each its own key: jax.random.fold_in(key, "
        f"jax.lax.axis_index({each.axes[0]!r})).",
        "05_three_modes",
        _at(each.line, named),
    )


def _at(line: tuple[str, int] | None, named: Named) -> str | None:
    return named(*line) if line else None


# --- Work done more than once ---------------------------------------------------------


def _work(evidence: Evidence, lost: set[str], named: Named) -> Iterator[Finding]:
    """`idle-axis` and `redundant-work`: the same products on several devices.

    An axis that was lost with an array that the function closes over is idle for that.
    """
    work, sizes = evidence.work, dict(evidence.mesh_shape)
    if work.flops is not None and work.flops < _touched(evidence):
        return  # what is repeated is less than looking at the arrays
    reported = 0
    for axis in work.idle_axes:
        reported += 1
        if axis in lost:
            continue
        cut = any(_is_cut(leaf, axis) for leaf in evidence.inputs)
        share = work.redundant_over.get(axis, 1.0) * (1 - 1 / sizes[axis])
        most = _most(evidence, axis, named)
        yield Finding(
            "idle-axis",
            f"Along {axes_words([axis], sizes)} all devices compute the same matrix "
            f"products: {share:.0%} of that work is redundant{_redundancy(evidence)}.",
            f"An array is sharded over {axis}, but no operand of the large products is"
            f"{most.words}: shard their batch or their weights over it."
            if cut
            else f"Shard something over {axis} too, such as a weight, P(None, "
            f"{axis!r}), or the batch, P({_of_batch(axis, evidence, sizes)}); "
            "or leave it out of the mesh.",
            "07_redundant_compute",
            most.line,
        )
    for axis, share in work.redundant_over.items():
        if axis not in work.idle_axes and share >= _REPEATED:
            reported += 1
            if axis in lost:
                continue
            most = _most(evidence, axis, named)
            yield Finding(
                "redundant-work",
                f"Along {axes_words([axis], sizes)} {share:.0%} of the matrix "
                f"products' work is redundant{_redundancy(evidence)}{most.words}.",
                f"Shard the batch or the weight of that product over {axis}.",
                "07_redundant_compute",
                most.line,
            )

    if not reported and not work.redundant_over and (work.redundancy or 1) >= _PARTLY:
        yield Finding(
            "redundant-work",
            "Groups of devices, parts of an axis, compute the same matrix products"
            f"{_redundancy(evidence)}.",
            "Look for an array whose sharding does not fit the product, such as heads "
            "that are not divisible by the devices.",
            "07_redundant_compute",
        )


@dataclass(frozen=True)
class _Most:
    """The line with most of the repeated work: in words, and as a finding names it."""

    words: str = ""
    line: str | None = None


def _most(evidence: Evidence, axis: str, named: Named) -> _Most:
    flops: Counter[tuple[str, int] | None] = Counter()
    first: dict[tuple[str, int] | None, Repeated] = {}
    for each in evidence.work.repeated.get(axis, ()):
        line = source(evidence.module, each.place, each.instruction)
        flops[line] += each.flops
        first.setdefault(line, each)
    if not flops:
        return _Most()
    line, most = flops.most_common(1)[0]
    factors = _leaves_of(evidence, first[line])
    words = f", the product {'of' if len(factors) > 1 else 'with'} {few(factors)}"
    words = words if factors else ", the product"
    place = named(*line) if line else None
    words += f" at {place}" if place else ""
    words = words if factors or place else ""
    if words and most < flops.total():
        words = words.replace(", the", ", most of it the", 1)
    return _Most(words, place)


def _leaves_of(evidence: Evidence, each: Repeated) -> list[str]:
    """The arguments that a product multiplies, as they are named."""
    used = [leaf for leaf in evidence.inputs if leaf.sharding_info is not None]
    numbers = (
        parameter(evidence.module, each.place, name)
        for name in each.instruction.operands[:2]
    )
    return [
        f"{used[n].path} ({array_words(used[n].shape, used[n].dtype)})"
        for n in numbers
        if n is not None and n < len(used)
    ]


def _touched(evidence: Evidence) -> int:
    """How many elements one device takes and gives back."""
    return sum(
        prod(leaf.sharding_info.shard_shape)
        for leaf in (*evidence.inputs, *evidence.outputs)
        if leaf.sharding_info is not None
    )


def _is_cut(leaf: Leaf, axis: str) -> bool:
    info = leaf.sharding_info
    return info is not None and any(axis in entry for entry in info.entries)


def _of_batch(axis: str, evidence: Evidence, sizes: dict[str, int]) -> str:
    """The entry of the batch: an axis in use beside the idle one, "('data', 'model')".

    An axis that shards the columns of an array can't keep the rows of a result as well
    (chapter 04, case 4), so the batch then has the idle axis alone.
    """
    known = [leaf.sharding_info for leaf in evidence.inputs if leaf.sharding_info]
    columns = {name for info in known for entry in info.entries[1:] for name in entry}
    idle = {*evidence.work.idle_axes, *columns}
    used = [name for name, size in sizes.items() if size > 1 and name not in idle]
    return repr((used[0], axis)) if used else repr(axis)


def _redundancy(evidence: Evidence) -> str:
    ratio = evidence.work.redundancy
    return "" if ratio is None else f" (redundancy {ratio:.3g})"
