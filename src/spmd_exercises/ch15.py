"""Checks of chapter 15, what makes a step faster on real cards."""

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jax.sharding import PartitionSpec as P

import spmd_helpers as spmd
from spmd_helpers import CheckFailed, StepTime, XRay

from ._setting import (
    abstract,
    is_close,
    make_mesh,
    next_thought,
    normal,
    number,
    on,
    require_function,
    short,
    word,
)

_FLOPS, _CARDS, _PEAK = 6e14, 4, 989e12  # of exercise 15.1
_VERDICTS = ("faster", "slower", "tie")
_DEVICES = 4  # of exercise 15.5
_LONGER = 2.0  # a layer's products, than its gather
_AT_ONCE = 5  # layers, with the copies that a loop makes of what it carries
_KINDS: Mapping[
    str, Callable[[int], float]
] = {  # primitive: bytes that a device sends, over those of its operand
    "all_gather": lambda n: n - 1,
    "all_gather_invariant": lambda n: n - 1,
    "ppermute": lambda n: 1,
    "all_to_all": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "psum": lambda n: 2 * (n - 1) / n,
    "psum2": lambda n: 2 * (n - 1) / n,
    "psum_invariant": lambda n: 2 * (n - 1) / n,
}


def check_15_1(share_of_peak: object, recomputed: object, least: object) -> None:
    """The share of the peak, with and without recomputing, and the least time."""
    peak = _CARDS * _PEAK
    right = {
        "share_of_peak": _FLOPS / 0.25 / peak,
        "recomputed": _FLOPS / 0.30 / peak,
        "least": _FLOPS / (0.7 * peak),
    }
    thoughts = {
        "share_of_peak": "Which FLOPs does the model need, and what could all cards"
        " together compute in that time?",
        "recomputed": "Does the model need more FLOPs because the program computes"
        " some of them twice?",
        "least": "How many FLOPs do all cards together sustain in a second?",
    }
    answers = dict(zip(right, (share_of_peak, recomputed, least), strict=True))
    given = {name: number(answer, name) for name, answer in answers.items()}
    wrong = [
        name
        for name in right
        if not is_close(given[name], right[name], 0.01)
        and given[name] != float(f"{right[name]:.2g}")  # two digits are enough
    ]
    if wrong:
        shown = "".join(
            f"\n{name} is {given[name]:.4g}. {thoughts[name]}" for name in wrong
        )
        raise CheckFailed(f"look again at {', '.join(wrong)}.{shown}")


def check_15_2(verdict: Callable[..., Any]) -> None:
    """Whether a change is a gain, a loss, or within the spread of the times."""
    require_function(verdict, "verdict")
    for name, old, new in _changes():
        given = word(verdict(dict(old), dict(new)), f"verdict for {name}", _VERDICTS)
        before, after = (
            [row[end] / row["model_flops"] for end in ("least_s", "most_s")]
            for row in (old, new)
        )
        right = "tie"
        if after[1] < before[0]:
            right = "faster"
        elif after[0] > before[1]:
            right = "slower"
        if given != right:
            old_words, new_words = (
                f"{row['least_s']:.4g} to {row['most_s']:.4g} s for"
                f" {row['model_flops']:.4g} FLOPs"
                for row in (old, new)
            )
            raise CheckFailed(
                f"verdict for {name} is {given!r}: {old_words} before, {new_words}"
                " after. Do the two ranges of seconds per FLOP of the model overlap?"
            )


def check_15_3(exposed: Callable[..., Any]) -> None:
    """Seconds in which a collective runs and no kernel does."""
    require_function(exposed, "exposed")
    for name, kernels, collectives in _lanes():
        answer = exposed(list(kernels), list(collectives))
        given, right = number(answer, f"exposed of {name}"), _bare(collectives, kernels)
        if not abs(given - right) <= 1e-9 + 1e-6 * right:
            shown = f"kernels {kernels}, collectives {collectives}"
            shown = shown if len(shown) < 200 else f"{len(kernels)} kernels"
            raise CheckFailed(
                f"exposed of {name} ({shown}) is {given:.6g}, which is"
                f" {'too much' if given > right else 'too little'}. At which times"
                " does at least one collective run, and no kernel?"
            )


def check_15_4(line: object, kind: object, times: object) -> None:
    """The exposed collective of a stored step, and what hiding it would bring."""
    step = _traced("fsdp cudnn overlapped")
    sums: dict[tuple[str, str], float] = {}
    for part in step.exposed:
        key = str(part.source), part.kind
        sums[key] = sums.get(key, 0.0) + part.exposed_s
    place, what = max(sums, key=lambda key: sums[key])
    text = str(line).strip() if isinstance(line, str) else ""
    if text not in (place, place.removeprefix("model.py:")):
        raise CheckFailed(
            f"line is {short(line)}. Write it as the table does, such as"
            " 'model.py:150'. Which line has most seconds in the column *exposed*,"
            " those that were measured?"
        )
    kinds = ("all-gather", "reduce-scatter", "all-reduce", "all-to-all")
    if word(kind, "kind", kinds) != what:
        raise CheckFailed(
            f"kind is {short(kind)}. `step.exposed` has each collective with its kind,"
            " its line and its exposed seconds: of which kind is the sum on that line"
            " the largest?"
        )
    assert step.total_s is not None
    right = step.total_s / (step.total_s - sums[place, what])
    if not is_close(number(times, "times") - 1, right - 1, 0.05):
        raise CheckFailed(
            f"times is {short(times)}. How long does the step take, and how long would"
            " it take without the exposed seconds of these collectives, if all other"
            " times stayed as they are?"
        )


def check_15_5(ahead: Callable[..., Any]) -> None:
    """Layers whose gathers can run beside products."""
    require_function(ahead, "ahead")
    for layers, rows, width in ((2, 3, 8), (5, 4, 24)):
        _require_values(ahead, layers, rows, width)
    layers, rows, width = 6, 8, 64
    mapped, h, stack = _mapped(ahead, layers, rows, width)
    report = spmd.xray(mapped, h, stack)
    layer = width * width * 4
    sent = layer * (_DEVICES - 1) / _DEVICES  # of one layer's gather
    flops = 4 * rows * width * width  # of one layer's two products
    _require_cost(report, layers, sent, flops)
    exposed = _unhidden(jax.make_jaxpr(mapped)(h, stack), sent, flops)
    if exposed > 1.001:
        raise CheckFailed(
            f"collectives of {exposed:.3g} of {layers} layers have no product to run"
            " beside: each either waits for the products around it, or they wait for"
            " it. Only the first layer's gather has to. Inside one iteration, which"
            " gather does the product not need yet?"
        )
    shards = layers * layer / _DEVICES
    if report.peak_memory is not None:
        at_once = (report.peak_memory - shards) / layer
        if at_once > _AT_ONCE:
            raise CheckFailed(
                f"the program needs memory for {at_once:.1f} layers beside the shards,"
                " and two are enough: the one that is multiplied and the one that is"
                " gathered"
            )
    _require_unrolled(ahead)


def check_15_6(candidates: Callable[..., Any]) -> None:
    """The strategies that fit and tie with the fastest that fits."""
    require_function(candidates, "candidates")
    for words, rows, limit, error in _tables():
        answer = candidates([dict(row) for row in rows], limit, error)
        call = f"candidates({words}, {limit / 2**30:.0f} GiB, {error:.0%})"
        if not isinstance(answer, list | tuple | set | frozenset):
            raise CheckFailed(
                f"{call} is {short(answer)}, but has to be a list of names"
            )
        names = {name if isinstance(name, str) else short(name) for name in answer}
        fitting = {r["name"]: r for r in rows if r["peak_bytes"] <= limit}
        unknown = names - {row["name"] for row in rows}
        if unknown:
            raise CheckFailed(f"{call} has {sorted(unknown)}, which no row is called")
        too_large = sorted(names - set(fitting))
        if too_large:
            raise CheckFailed(
                f"{call} has {too_large[0]!r}, which needs more memory than the limit"
            )
        right = _tied(fitting, error)
        slow = sorted(names - right)
        if slow:
            least = min(row["predicted_s"] for row in fitting.values())
            apart = 1 - least / fitting[slow[0]]["predicted_s"]
            raise CheckFailed(
                f"{call} has {slow[0]!r}, but the fastest that fits takes"
                f" {apart:.1%} less: is that within the error?"
            )
        if right - names:
            raise CheckFailed(
                f"{call} leaves out {len(right - names)} that fit and are as near to"
                " the fastest that fits as the error allows. How far apart are two"
                " predictions, as a share of the longer one?"
            )


# --- 15.2: gains and spreads ----------------------------------------------------------


@functools.cache
def _changes() -> list[tuple[str, Mapping[str, Any], Mapping[str, Any]]]:
    """What a change is called, and the rows before and after it."""
    log = {row["name"]: row for row in spmd.load_measured("gpu-log")}
    cases: list[tuple[str, Mapping[str, Any], Mapping[str, Any]]] = [
        (f"the change {row['name']!r}", log[row["after"]], row)
        for row in log.values()
        if row["after"] and "median_s" in row
    ]
    rng = np.random.default_rng(152)
    for i in range(12):
        old, new = (_row(rng, float(rng.uniform(0.9, 1.1))) for _ in range(2))
        cases.append((f"made-up change {i + 1}", old, new))
    return cases


def _row(rng: np.random.Generator, middle: float) -> dict[str, float]:
    """A row whose tokens, and with them FLOPs and seconds, are of any number."""
    tokens = int(rng.integers(1, 9))
    low, high = rng.uniform(0.001, 0.1, 2)
    return {
        "median_s": tokens * middle,
        "least_s": tokens * middle * (1 - float(low)),
        "most_s": tokens * middle * (1 + float(high)),
        "model_flops": tokens * 1e15,
    }


# --- 15.3: intervals ------------------------------------------------------------------

Intervals = list[tuple[float, float]]


@functools.cache
def _lanes() -> list[tuple[str, Intervals, Intervals]]:
    """Kernels and collectives, as (start, end)."""
    rng = np.random.default_rng(153)
    cases: list[tuple[str, Intervals, Intervals]] = [
        ("a collective alone", [], [(2.0, 5.0)]),
        ("a kernel alone", [(0.0, 3.0)], []),
        ("nothing", [], []),
        ("a hidden collective", [(0.0, 9.0)], [(2.0, 5.0)]),
        ("a collective that ends late", [(0.0, 4.0)], [(2.0, 7.0)]),
        ("a kernel inside of a collective", [(3.0, 4.0)], [(1.0, 6.0)]),
        ("two collectives at once", [(0.0, 1.0)], [(2.0, 6.0), (3.0, 8.0)]),
        ("kernels that overlap", [(2.0, 5.0), (3.0, 6.0)], [(0.0, 8.0)]),
        ("not in order", [(8.0, 9.0), (0.0, 1.0)], [(7.0, 9.0), (0.0, 3.0)]),
    ]
    for i in range(20):
        each = [
            [
                (float(a), float(a + b))
                for a, b in zip(
                    rng.integers(0, 40, n), rng.integers(1, 9, n), strict=True
                )
            ]
            for n in rng.integers(1, 9, 2)
        ]
        cases.append((f"made-up step {i + 1}", each[0], each[1]))
    spans = _traced("tensor parallel cudnn").spans
    real = [
        [(s.start_s, s.end_s) for s in spans if (s.lane == "kernels") is is_kernel]
        for is_kernel in (True, False)
    ]
    return [*cases, ("the traced step", real[0], real[1])]


def _bare(collectives: Intervals, kernels: Intervals) -> float:
    """Seconds of the first that are in none of the second."""
    cuts = sorted({at for pair in (*collectives, *kernels) for at in pair})
    return sum(
        end - start
        for start, end in itertools.pairwise(cuts)
        if _covers(collectives, start, end) and not _covers(kernels, start, end)
    )


def _covers(intervals: Intervals, start: float, end: float) -> bool:
    return any(a <= start and end <= b for a, b in intervals)


@functools.cache
def _traced(name: str) -> StepTime:
    """A stored trace, read."""
    row = next(r for r in spmd.load_measured("gpu-traced") if r["name"] == name)
    return spmd.read_trace(row["path"], row["hlo"], "h200")


# --- 15.5: what a collective can hide behind ------------------------------------------


def _mapped(
    ahead: Callable[..., Any], layers: int, rows: int, width: int
) -> tuple[Callable[..., Any], jax.ShapeDtypeStruct, jax.ShapeDtypeStruct]:
    """The function on four devices, and its arguments; `rows` are those of one."""
    mesh = make_mesh(data=_DEVICES)
    mapped = jax.shard_map(
        ahead,
        mesh=mesh,
        in_specs=(P("data"), P(None, "data")),
        out_specs=P("data"),
        check_vma=False,
    )
    h = abstract((_DEVICES * rows, width), on(mesh, "data"))
    return mapped, h, abstract((layers, width, width), on(mesh, None, "data"))


def _require_values(
    ahead: Callable[..., Any], layers: int, rows: int, width: int
) -> None:
    mapped, h, stack = _mapped(ahead, layers, rows, width)
    x = normal(1, *h.shape)
    w = normal(2, *stack.shape) / math.sqrt(width)
    got = jax.jit(mapped)(
        jax.device_put(x, h.sharding), jax.device_put(w, stack.sharding)
    )
    for layer in w:
        x = x + np.tanh(x @ layer) @ layer.T
    with next_thought(
        f"({layers} layers of {width} × {width}.) Are each layer's products with that"
        " layer's own weights, and is the last layer there?"
    ):
        spmd.assert_close({"h": got}, {"h": x}, rtol=1e-4)


def _require_unrolled(ahead: Callable[..., Any]) -> None:
    """The argument `unroll` is taken, goes to the loop, and changes no value."""
    layers, rows, width = 5, 4, 24
    unrolled = functools.partial(ahead, unroll=2)
    _require_values(unrolled, layers, rows, width)
    once, twice = (
        str(jax.make_jaxpr(mapped)(*arguments))
        for mapped, *arguments in (
            _mapped(f, layers, rows, width) for f in (ahead, unrolled)
        )
    )
    if once == twice:
        raise CheckFailed(
            "ahead with unroll=2 is the same program as with unroll=1. Which argument"
            " of the loop writes several iterations one after another?"
        )


def _require_cost(report: XRay, layers: int, sent: float, flops: int) -> None:
    """Each layer is gathered once, and multiplied once."""
    if report.flops_per_device != layers * flops:
        raise CheckFailed(
            f"a device computes {report.flops_per_device} FLOPs in products, and"
            f" {layers} layers need {layers * flops}: is a product repeated, or is"
            " there one that no layer needs?"
        )
    total = 0
    for one in report.collectives:
        if one.total_wire_bytes is None:
            raise CheckFailed(
                "a loop with a collective runs an unknown number of times: use"
                " lax.scan, lax.fori_loop or a Python loop"
            )
        total += one.total_wire_bytes
        if one.result_bytes > 1.001 * sent * _DEVICES / (_DEVICES - 1):
            raise CheckFailed(
                f"one {one.kind} has the weights of several layers,"
                f" {one.result_bytes:,} bytes: that takes the memory that sharding"
                " the weights saves. Gather one layer at a time"
            )
    if total > 1.001 * layers * sent:
        raise CheckFailed(
            f"a device sends {total:,} bytes, and to gather each layer once it has to"
            f" send {layers * sent:,.0f}: is a layer gathered twice, or sent another"
            " way? (A gather in a cond counts each time: end the loop one layer"
            " earlier.)"
        )


@dataclass
class _Node:
    """An equation, or a loop as one, and the nodes whose results it needs."""

    needs: set[int]
    flops: float = 0.0  # of a product
    nbytes: float = 0.0  # that a collective sends
    loops: list["_Graph"] = field(default_factory=list)


@dataclass
class _Graph:
    """The equations that one iteration runs, in order, and how often it runs."""

    trips: int = 1
    nodes: list[_Node] = field(default_factory=list)


def _unhidden(closed: Any, sent: float, flops: float) -> float:
    """In layers: what collectives send while no product can run beside them.

    As if a collective and a product could run at the same time whenever neither needs
    the other's result, within one iteration of a loop, each in the order in which they
    are written. `sent` and `flops` are those of one layer, and a layer's products take
    _LONGER times as long as its gather.
    """
    graph = _Graph()
    _add(graph, closed.jaxpr, [set() for _ in closed.jaxpr.invars])
    return _lasting(graph, sent, flops)[1]


def _lasting(graph: _Graph, sent: float, flops: float) -> tuple[float, float]:
    """How long all iterations take, and how much of that a collective is alone."""
    done: list[float] = []
    lanes: dict[str, Intervals] = {"links": [(0.0, 0.0)], "kernels": [(0.0, 0.0)]}
    inner = 0.0
    for node in graph.nodes:
        at = max((done[i] for i in node.needs), default=0.0)
        if node.loops:  # nothing outside of a loop runs beside it
            at = max(at, *(lane[-1][1] for lane in lanes.values()))
            for loop in node.loops:
                lasts, alone = _lasting(loop, sent, flops)
                inner += alone
                lanes["kernels"].append((at, at + lasts))
                at += lasts
        elif node.nbytes or node.flops:
            lane = lanes["links" if node.nbytes else "kernels"]
            at = max(at, lane[-1][1])
            lasts = node.nbytes / sent + _LONGER * node.flops / flops
            lane.append((at, at + lasts))
            at += lasts
        done.append(at)
    alone = _bare(lanes["links"], lanes["kernels"]) + inner
    return graph.trips * max(done, default=0.0), graph.trips * alone


def _add(graph: _Graph, jaxpr: Any, given: Sequence[set[int]]) -> list[set[int]]:
    """Add a jaxpr's equations; returns what each of its results needs."""
    needs: dict[Any, set[int]] = dict(zip(jaxpr.invars, given, strict=True))

    def of(variable: Any) -> set[int]:
        # A literal can't be hashed, and needs nothing.
        return set() if hasattr(variable, "val") else needs.get(variable, set())

    for eqn in jaxpr.eqns:
        name, inner = eqn.primitive.name, list(_jaxprs(eqn.params.values()))
        needed = [of(variable) for variable in eqn.invars]
        is_call = len(inner) == 1 and len(inner[0].invars) == len(eqn.invars)
        if is_call and name not in ("scan", "while", "cond"):
            results = _add(graph, inner[0], needed)
        else:
            node = _Node(set().union(*needed))
            results = [{len(graph.nodes)}] * len(eqn.outvars)
            graph.nodes.append(node)
            for body in inner:
                node.loops += _iterations(body, eqn)
            if name == "dot_general":
                node.flops = _flops(eqn)
            elif name in _KINDS:
                size = sum(v.aval.size * v.aval.dtype.itemsize for v in eqn.invars)
                node.nbytes = size * _KINDS[name](_DEVICES)
        needs.update(zip(eqn.outvars, results, strict=True))
    return [of(variable) for variable in jaxpr.outvars]


def _iterations(body: Any, eqn: Any) -> Iterable[_Graph]:
    """What a loop runs at a time: one iteration, or as many as a scan unrolls."""
    is_scan = eqn.primitive.name == "scan"
    length, unroll = (
        int(eqn.params.get(key, 1)) if is_scan else 1 for key in ("length", "unroll")
    )
    # What a scan stacks has a dimension more outside: constants and carry come first.
    carried = _as_inside(eqn.outvars, body.outvars) if is_scan else 0
    end = _as_inside(eqn.invars, body.invars) if is_scan else 0
    at_once = max(1, min(unroll, length))
    for size, trips in ((at_once, length // at_once), (length % at_once, 1)):
        loop = _Graph(trips)
        given: list[set[int]] = [set() for _ in body.invars]
        for _ in range(size if trips else 0):
            results = _add(loop, body, given)
            given[end - carried : end] = results[:carried]
        if loop.nodes:
            yield loop


def _as_inside(outside: Sequence[Any], inside: Sequence[Any]) -> int:
    """How many come first whose shape is the same in the body of a scan."""
    pairs = zip(outside, inside, strict=True)
    same = itertools.takewhile(lambda p: p[0].aval.shape == p[1].aval.shape, pairs)
    return len(list(same))


def _jaxprs(values: Iterable[Any]) -> Iterable[Any]:
    """The jaxprs among an equation's parameters."""
    for value in values:
        for one in value if isinstance(value, tuple | list) else (value,):
            one = getattr(one, "jaxpr", one)
            if hasattr(one, "eqns"):
                yield one


def _flops(eqn: Any) -> float:
    (contracted, _), _ = eqn.params["dimension_numbers"]
    left = eqn.invars[0].aval.shape
    depth = math.prod(left[axis] for axis in contracted)
    return 2.0 * float(depth * math.prod(eqn.outvars[0].aval.shape))


# --- 15.6: ties -----------------------------------------------------------------------


@functools.cache
def _tables() -> list[tuple[str, list[dict[str, Any]], float, float]]:
    """Rows, a limit of bytes per card, and an error."""
    ahead = [
        {key: row[key] for key in ("name", "peak_bytes", "predicted_s")}
        for row in spmd.load_measured("gpu-ahead")
        if not row["name"].startswith("6b")
    ]
    cases: list[tuple[str, list[dict[str, Any]], float, float]] = [
        ("the six strategies", ahead, gib * 2**30, error)
        for gib, error in ((141, 0.08), (141, 0.2), (70, 0.08), (64, 0.2), (40, 0.08))
    ]
    for words, seconds, limit, error in (
        ("a tie at the error", (3.0, 4.0), 64 * 2**30, 0.25),
        ("nearly a tie", (0.81, 1.0), 64 * 2**30, 0.2),
    ):
        sizes = limit, limit - 2**30
        pair = [
            {"name": name, "peak_bytes": size, "predicted_s": s}
            for name, size, s in zip(("short", "long"), sizes, seconds, strict=True)
        ]
        cases.append((words, pair, limit, error))
    rng = np.random.default_rng(156)
    for i in range(10):
        rows = [
            {
                "name": f"strategy {letter}",
                "peak_bytes": int(rng.integers(40, 140)) * 2**30,
                "predicted_s": float(rng.uniform(0.4, 0.6)),
            }
            for letter in "abcdef"
        ]
        limit = int(rng.integers(60, 141)) * 2**30
        cases.append((f"made-up rows {i + 1}", rows, limit, 0.02 * int(1 + i % 6)))
    return cases


def _tied(fitting: Mapping[str, Mapping[str, Any]], error: float) -> set[str]:
    least = min((row["predicted_s"] for row in fitting.values()), default=0.0)
    return {
        name for name, row in fitting.items() if 1 - least / row["predicted_s"] <= error
    }
