"""Asserts about a compiled program: its collectives and its memory. It is not run."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from .._core.validate import as_integer, did_you_mean, integer, or_words
from .._core.words import bytes_words, count_words, join_words
from .._errors import CheckFailed, NotUnderstood, UnknownAxis
from .._hlo.collectives import KINDS, Collective
from .._xray.xray import XRay, xray


def assert_collectives(
    f: Callable[..., object] | XRay,
    *args: object,
    at_most: Mapping[str, int] | None = None,
    at_least: Mapping[str, int] | None = None,
    exactly: Mapping[str, int] | None = None,
    over: str | Iterable[str] | None = None,
    at_most_bytes: int | None = None,
    at_least_bytes: int | None = None,
    **kwargs: Any,
) -> None:
    """Check which collectives the compiled function runs; it is not run itself.

    A budget is complete: a kind that it does not name may not occur.
    Loops count each iteration.

    >>> import jax
    >>> from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
    >>> mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    >>> x = jax.device_put(jax.numpy.zeros((16, 3)), NamedSharding(mesh, P("data")))
    >>> assert_collectives(lambda x: x * 2, x, exactly={})
    >>> assert_collectives(lambda x: x.sum(), x, at_most={"all-reduce": 1}, over="data")

    Args:
        f: a function, jitted or not, or what `xray` returned.
        *args: what it would be called with; arrays or ShapeDtypeStructs.
        at_most: largest number of each kind, as {"all-gather": 1}.
        at_least: smallest number of the kinds that have to occur.
        exactly: the number of each kind, all kinds that occur.
        over: the mesh axis, or axes, along which all of them must run.
        at_most_bytes: bound for the sum of the collectives' results on one device, in
            bytes, each counted as often as it runs.
        at_least_bytes: what that sum must reach.
        **kwargs: its arguments by name.

    Raises:
        CheckFailed: with each kind that is over its budget, and where it came from.
        NotUnderstood: no budget is given, or one that can't be read.
        UnknownAxis: `over` names an axis that the program's mesh does not have.

    Used from chapter 01 on.
    """
    budgets = {"at_most": at_most, "at_least": at_least, "exactly": exactly}
    sizes = {"at_most_bytes": at_most_bytes, "at_least_bytes": at_least_bytes}
    if all(given is None for given in (*budgets.values(), *sizes.values(), over)):
        raise NotUnderstood(
            "assert_collectives needs a budget to check the program against: "
            "at_most={'all-reduce': 1}, exactly={...}, over='data' or at_most_bytes=8"
        )
    for name, budget in budgets.items():
        _check_budget(name, budget)
    for name, size in sizes.items():
        if size is not None:
            integer(name, size, "a number of bytes", least=0)
    report = f if isinstance(f, XRay) else xray(f, *args, **kwargs)
    collectives, counts = report.collectives, _counts(report.collectives)
    wrong = []
    for kind in sorted({*counts, *(exactly or ()), *(at_least or ())}):
        wrong += _kind_differences(kind, counts.get(kind, 0), budgets, collectives)
    if over is not None:
        wrong += _elsewhere(collectives, _axes(over, report.mesh_shape))
    wrong += _bytes_out_of_bounds(collectives, at_most_bytes, at_least_bytes)
    if wrong:
        raise CheckFailed("\n".join(wrong))


def assert_peak_memory(
    f: Callable[..., object] | XRay,
    *args: object,
    at_most_bytes: int,
    **kwargs: Any,
) -> None:
    """Check the compiler's own figure for the memory a function needs.

    >>> import jax
    >>> x = jax.numpy.zeros((256, 256))  # 256 * 256 * 4 = 262,144 bytes
    >>> assert_peak_memory(lambda x: x + 1, x, at_most_bytes=600_000)

    Args:
        f: as in `assert_collectives`; nothing is run.
        *args: as there.
        at_most_bytes: bytes on each device, arguments and results included.
        **kwargs: its arguments by name.

    Raises:
        CheckFailed: the program needs more.
        NotUnderstood: `at_most_bytes` is not an integer, or the compiler of
            this platform gives no figure.

    For budgets of memory, in the chapters on scale.
    """
    integer("at_most_bytes", at_most_bytes, "a number of bytes", least=0)
    report = f if isinstance(f, XRay) else xray(f, *args, **kwargs)
    if report.peak_memory is None:
        raise NotUnderstood(
            f"assert_peak_memory: the compiler for {report.lowered_for} gives no figure"
            " for memory; compile for cpu, gpu or tpu"
        )
    if report.peak_memory > at_most_bytes:
        raise CheckFailed(
            f"the program needs {bytes_words(report.peak_memory)} per device at its"
            f" peak, but the budget is {bytes_words(at_most_bytes)}"
        )


def _check_budget(name: str, budget: object) -> None:
    if budget is None:
        return
    if not isinstance(budget, Mapping) or not all(
        as_integer(n) is not None for n in budget.values()
    ):
        raise NotUnderstood(
            f"assert_collectives({name}={budget!r}): write kinds and numbers, like "
            "{'all-reduce': 1}"
        )
    for kind in budget:
        if kind not in KINDS:
            guess = did_you_mean(str(kind).replace("_", "-"), KINDS)
            raise NotUnderstood(
                f"assert_collectives({name}={budget!r}): {kind!r} is not a kind of"
                f" collective.{guess or f' Give {or_words(map(repr, KINDS))}.'}"
            )


def _axes(over: str | Iterable[str], mesh_shape: Mapping[str, int]) -> set[str]:
    names = [over] if isinstance(over, str) else over
    if not isinstance(names, Iterable) or not (names := set(names)):
        raise NotUnderstood(
            f"assert_collectives(over={over!r}): write the name of a mesh axis, like"
            " 'data', or several"
        )
    for name in sorted(names, key=str):
        if name not in mesh_shape:
            raise UnknownAxis(
                f"assert_collectives(over={over!r}): the program's mesh has no axis"
                f" {name!r}; it has {_quoted(mesh_shape) or 'none: it is one device'}"
            )
    return names


def _quoted(axes: Iterable[str]) -> str:
    return join_words([f"'{axis}'" for axis in axes])


def _counts(collectives: Iterable[Collective]) -> dict[str, int | None]:
    """How often each kind runs; None once a part of it is unknown."""
    counts: dict[str, int | None] = {}
    for one in collectives:
        so_far = counts.get(one.kind, 0)
        if one.count is None or so_far is None:
            counts[one.kind] = None
        else:
            counts[one.kind] = so_far + one.count
    return counts


def _times(count: int | None) -> str:
    return "an unknown number of times" if count is None else count_words(count, "time")


def _where(kind: str, collectives: Iterable[Collective]) -> str:
    places = dict.fromkeys(one.source for one in collectives if one.kind == kind)
    known = [place for place in places if place]
    return f" (from {join_words(known)})" if known else ""


def _kind_differences(
    kind: str,
    count: int | None,
    budgets: Mapping[str, Mapping[str, int] | None],
    collectives: Iterable[Collective],
) -> list[str]:
    at_most, at_least, exactly = budgets.values()
    runs = f"{kind} runs {_times(count)}{_where(kind, collectives)}"
    wrong = []
    if at_most is not None and (count is None or count > at_most.get(kind, 0)):
        wrong.append(f"{runs}, but the budget is {at_most.get(kind, 0)}")
    least = (at_least or {}).get(kind, 0)
    if count is not None and count < least:
        wrong.append(f"{runs}, but must run at least {_times(least)}")
    if exactly is not None and count != exactly.get(kind, 0):
        wrong.append(f"{runs}, but must run {_times(exactly.get(kind, 0))}")
    return wrong


def _elsewhere(collectives: Iterable[Collective], allowed: set[str]) -> list[str]:
    """Collectives along other axes; a part of an axis, 'x:(2)4', counts as the axis."""
    wrong = []
    for one in collectives:
        if not one.axes:
            wrong.append(
                f"{one.kind} runs over groups of devices that do not follow a mesh axis"
            )
        elif not {axis.split(":")[0] for axis in one.axes} <= allowed:
            wrong.append(
                f"{one.kind} runs over {_quoted(one.axes)}, but may only run over"
                f" {_quoted(sorted(allowed))}"
            )
    return wrong


def _bytes_out_of_bounds(
    collectives: Sequence[Collective], most: int | None, least: int | None
) -> list[str]:
    if most is None and least is None:
        return []
    moved = 0
    for one in collectives:
        if one.count is None:
            return ["a collective runs an unknown number of times: no count of bytes"]
        moved += one.result_bytes * one.count
    words = f"{moved:,} bytes are communicated"
    if most is not None and moved > most:
        return [f"{words}, but the budget is {most:,}"]
    if least is not None and moved < least:
        return [f"{words}, but at least {least:,} are needed"]
    return []
