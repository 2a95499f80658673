"""What looks like a mistake in a function that runs without an error.

Here all detectors are asked. What is known of the function comes from two sides: what
JAX traced (the places it asks for; its shard_maps) and the compiled text. A detector
stays silent where what it sees may also be meant.
"""

from collections.abc import Iterator
from math import prod

from .._core.source_lines import place_name
from .._jaxprs.requests import requests_of
from .._jaxprs.shard_maps import Drawn, Sum, Unchecked, mapped_by
from .._shardings.cuts import array_words
from . import compiled as hlo
from . import gathered, requests, shardings
from .evidence import Evidence, Leaf
from .finding import Finding, Named, axes_words

__all__ = ["Finding", "find"]

# The share of the matrix products that may be repeated along an axis before it is
# told: a small product that is repeated, such as a head's, is no mistake.
_REPEATED = 0.2
# The redundancy from which it is told where no whole axis repeats, but parts of one.
_PARTLY = 1.25


def find(seen: Evidence, named: Named = place_name) -> tuple[Finding, ...]:
    """Everything in a compiled function that looks like a silent mistake.

    Args:
        seen: what is known of it. Without a jaxpr only what the compiled program
            shows by itself is found.
        named: how a (file, line) of the reader's own code is written.

    Returns:
        One Finding for each kind of mistake and place, wrong numbers first.
    """
    return tuple(_all(seen, named))


def _all(seen: Evidence, named: Named) -> Iterator[Finding]:
    asked = None
    if seen.jaxpr is not None:
        asked = requests_of(seen.jaxpr)
        inside = mapped_by(seen.jaxpr)
        for each in dict.fromkeys(inside.sums.values()):
            yield _summed(each, named)
        for each in dict.fromkeys(inside.unchecked.values()):
            yield _unchecked(each, named)
        for each in dict.fromkeys(inside.drawn.values()):
            yield _drawn(each, named)
    gathers = hlo.gathers(seen)
    yield from requests.constraints(seen, asked, named)
    yield from requests.device_puts(seen, asked, named)
    yield from shardings.one_device(seen)
    yield from shardings.results(seen, asked)
    yield from requests.reshards(seen, asked, named)
    yield from hlo.stacks(seen, gathers, named)
    yield from hlo.tables(seen, gathers, named)
    yield from gathered.whole(seen, gathers, asked, named)
    yield from hlo.conditions(seen, named)
    yield from _work(seen)
    yield from shardings.drift(seen)
    yield from shardings.donation(seen)


# --- Inside a shard_map ---------------------------------------------------------------


def _summed(each: Sum, named: Named) -> Finding:
    """`summed-twice`: a sum of what all devices of the axis already have alike."""
    over = axes_words(each.axes)
    what = "pmean" if each.mean else "psum"
    if not each.gradient:
        seen = (
            f"A psum over {over} adds up what is the same on all {each.devices} "
            f"devices: it comes out {each.devices} times too large."
        )
        do = "Leave the psum out, or use pmean."
    else:
        seen = (
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
    return Finding("summed-twice", seen, do, "02_jit_sharding", _at(each.line, named))


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


def _work(seen: Evidence) -> Iterator[Finding]:
    """`idle-axis` and `redundant-work`: the same products on several devices."""
    work, sizes = seen.work, dict(seen.mesh_shape)
    if work.flops is not None and work.flops < _touched(seen):
        return  # what is repeated is less than looking at the arrays
    told = 0
    for axis in work.idle_axes:
        told += 1
        cut = any(_is_cut(leaf, axis) for leaf in seen.inputs)
        share = work.redundant_over.get(axis, 1.0) * (1 - 1 / sizes[axis])
        yield Finding(
            "idle-axis",
            f"Along {axes_words([axis], sizes)} all devices compute the same matrix "
            f"products: {share:.0%} of that work is done for nothing"
            f"{_redundancy(seen)}.",
            f"Something is cut over {axis}, but not what is multiplied: find the large "
            f"products, and cut their batch or their weights over it."
            if cut
            else f"Cut something over {axis} too, such as a weight, P(None, {axis!r}), "
            f"or the batch, P({_with_others(axis, work.idle_axes, sizes)}); or leave "
            "it out of the mesh.",
            "07_redundant_compute",
        )
    for axis, share in work.redundant_over.items():
        if axis not in work.idle_axes and share >= _REPEATED:
            told += 1
            yield Finding(
                "redundant-work",
                f"Along {axes_words([axis], sizes)} {share:.0%} of the work of the "
                f"matrix products is repeated{_redundancy(seen)}.",
                f"Find the product that is not cut over {axis}, and cut its batch or "
                "its weight over it.",
                "07_redundant_compute",
            )

    if not told and not work.redundant_over and (work.redundancy or 1) >= _PARTLY:
        yield Finding(
            "redundant-work",
            "Groups of devices, parts of an axis, compute the same matrix products"
            f"{_redundancy(seen)}.",
            "Look for an array whose cut does not fit the product, such as heads that "
            "do not divide by the devices.",
            "07_redundant_compute",
        )


def _touched(seen: Evidence) -> int:
    """How many elements one device takes and gives back."""
    return sum(
        prod(leaf.sharding_info.shard_shape)
        for leaf in (*seen.inputs, *seen.outputs)
        if leaf.sharding_info is not None
    )


def _is_cut(leaf: Leaf, axis: str) -> bool:
    info = leaf.sharding_info
    return info is not None and any(axis in entry for entry in info.entries)


def _with_others(axis: str, idle: tuple[str, ...], sizes: dict[str, int]) -> str:
    """The axis beside the first that is in use: "('data', 'model')"."""
    used = [name for name, size in sizes.items() if size > 1 and name not in idle]
    return repr((used[0], axis)) if used else repr(axis)


def _redundancy(seen: Evidence) -> str:
    ratio = seen.work.redundancy
    return "" if ratio is None else f" (redundancy {ratio:.3g})"
