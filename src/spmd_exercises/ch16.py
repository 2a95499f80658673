"""Checks of chapter 16, many hosts."""

import dataclasses
import functools
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import numpy as np

import spmd_helpers as spmd
from spmd_helpers import CheckFailed

from ._setting import (
    Floats,
    compiled,
    make_mesh,
    next_thought,
    normal,
    number,
    on,
    require_function,
    short,
)

_N, _B = 240, 24  # rows of the data set and of a batch, as in the chapter
_CALLS = 1000  # of `together` by one process: more is a loop without an end
_VALUES = [i / 8 for i in range(1, _CALLS + 1)]  # what these computations return


def check_16_1(a: object, b: object, c: object, d: object, e: object) -> None:
    """How many different rows a process loads, for five placements of a batch."""
    answers = dict(zip("abcde", (a, b, c, d, e), strict=True))
    given = {name: number(answer, name) for name, answer in answers.items()}
    wrong = [name for name, rows in _rows_of_process_1().items() if given[name] != rows]
    if wrong:
        shown = ", ".join(f"{name}, which is {given[name]:g}" for name in wrong)
        raise CheckFailed(
            f"look again at {shown}. Which rows does each of the four devices of"
            " process 1 have, and how many different rows are these, all together?"
        )


def check_16_2(local_batch: Callable[..., Any]) -> None:
    """The rows of a process, by the step and by the number of processes alone."""
    require_function(local_batch, "local_batch")
    for count in (1, 2, 4, 8, 3, 12):
        for step in (25, 0, 9, 10, 1, 19, 137):
            parts = []
            for p in range(count):
                call = f"local_batch({step}, {p}, {count})"
                parts.append(_indices(local_batch(step, p, count), call, _B // count))
            _require_batch(np.concatenate(parts), step, count)


def check_16_3(report: Callable[..., Any]) -> None:
    """The mean and the largest of the real rows, as a jitted function of two hosts."""
    require_function(report, "report")
    place = on(make_mesh(data=2, model=4), "data")
    cases = _reports()
    program = compiled(report, *jax.device_put(cases[0].args, place))
    for case in cases:
        result = program(*jax.device_put(case.args, place))
        _require_report(result)
        with next_thought(
            f"The padding is {case.where}, with errors of 50. Which rows count, does"
            " it work if all errors are negative, and is it float32?"
        ):
            spmd.assert_close(result, case.wanted, rtol=1e-4)
        _require_readable(result)
    with next_thought(
        "What can a device do with its own rows before it sends anything?"
    ):
        spmd.assert_collectives(
            spmd.xray(program), at_least_bytes=24, at_most_bytes=200
        )


def check_16_4(program: Callable[..., Any]) -> None:
    """A program in which all processes start the same computations."""
    require_function(program, "program")
    rng = np.random.default_rng(164)
    drawn = [(rng.integers(9, 60, size=n).tolist(), n + 1) for n in (2, 3, 5)]
    fixed = [([40, 40], 8), ([40, 33, 47, 40], 8), ([9, 31], 4), ([3, 9], 5)]
    for rows, each in [*fixed, *drawn]:
        runs = [_calls_and_lines(program, p, rows, each) for p in range(len(rows))]
        calls, lines = [run[0] for run in runs], [run[1] for run in runs]
        where = f"rows {rows}, {each} a step"
        _require_same_calls(calls, where)
        right_calls, right_lines = _right_run(rows, each)
        if calls[0] != right_calls:
            raise CheckFailed(
                f"{where}: every process runs {', '.join(calls[0])}. How many steps"
                " can the process with the fewest rows take? An evaluation has to"
                " follow every second step, and one save the last."
            )
        if lines[0] != right_lines or any(lines[1:]):
            raise CheckFailed(
                f"{where}: process 0 says {lines[0]}, the others say {lines[1:]}. Only"
                f" process 0 may call say, with {right_lines}"
            )


def check_16_5(schedule: Callable[..., Any], enough: Callable[..., Any]) -> None:
    """The schedule of a pipeline, and the microbatches for a small bubble."""
    require_function(schedule, "schedule")
    require_function(enough, "enough")
    rng = np.random.default_rng(165)
    drawn = rng.integers(2, 9, size=(4, 2)).tolist()
    for count, many in [(4, 6), (3, 1), (5, 2), (1, 4), *drawn]:
        _require_schedule(schedule, count, many)
    shares = [(n, float(rng.uniform(0.1, 0.5))) for n, _ in drawn]
    fixed = [(4, 0.25), (4, 0.07), (8, 0.5), (1, 0.1), (16, 0.22), (3, 0.9)]
    for count, idle in [*fixed, *shares, (2, 0.00041)]:
        _require_enough(enough, count, idle)


def check_16_6(capacity_for: Callable[..., Any]) -> None:
    """The smallest capacity with which no token is dropped."""
    require_function(capacity_for, "capacity_for")
    for seed, (count, devices, tokens) in enumerate(
        [
            (8, 8, 6),
            (5, 4, 9),
            (2, 3, 20),
            (7, 6, 11),
            (16, 3, 4),
            (3, 1, 7),
            (4, 9, 1),
            (2, 2, 1200),
            (3, 1, 150_000),
        ]
    ):
        rng = np.random.default_rng(166 + seed)
        choice = rng.integers(count, size=(devices, tokens))
        answer = capacity_for(choice.copy(), count)
        boxes = np.array([np.bincount(row, minlength=count) for row in choice])
        where = f"{devices} devices with {tokens} tokens each, {count} experts"
        capacity = _integer(answer, f"{where}: the capacity")
        if capacity < boxes.max():
            lost = int(np.maximum(boxes - max(capacity, 0), 0).sum())
            raise CheckFailed(
                f"{where}: capacity {capacity} drops {lost} of {choice.size} tokens."
                " Each box belongs to one device and one expert: which of all these"
                " boxes has to take the most tokens?"
            )
        if capacity > boxes.max():
            places = devices * count * capacity
            raise CheckFailed(
                f"{where}: with capacity {capacity} the boxes have room for {places}"
                f" rows for {choice.size} tokens, but a smaller capacity also drops"
                " none. Each box belongs to one device and one expert: how full is the"
                " fullest?"
            )


def check_16_7(places: Callable[..., Any]) -> None:
    """Places in the experts' boxes, where choices with larger gates come first."""
    require_function(places, "places")
    sizes = [(6, 2, 4), (11, 1, 3), (9, 3, 5), (700, 2, 2), (1, 2, 7)]
    for seed, (tokens, k, count) in enumerate(sizes):
        rng = np.random.default_rng(167 + seed)
        order = rng.permuted(np.tile(np.arange(count), (tokens, 1)), axis=1)
        choice = order[:, :k].astype(np.int32)
        ranks = rng.permutation(tokens * k).reshape(tokens, k)
        gate = ((ranks + 1) / (tokens * k + 1)).astype(np.float32)
        where = f"{tokens} tokens, {k} choices each, {count} experts"
        program = compiled(functools.partial(places, count=count), choice, gate)
        got = _integers(program(choice, gate), f"{where}: the result", choice.shape)
        wanted = _places(choice, gate, count)
        if (got != wanted).any():
            at = tuple(int(i) for i in np.argwhere(got != wanted)[0])
            raise CheckFailed(
                f"{where}: choice {at[1]} of token {at[0]} is expert {choice[at]}, with"
                f" a gate of {gate[at]:.3f}. Its place is {got[at]}, but"
                f" {wanted[at]} choices of this expert have a larger gate. In which"
                " order do you count, and which token does each count belong to?"
            )


def check_16_8(on_one_device: Callable[..., Any]) -> None:
    """The k experts of a token on one device, with the largest sum of odds."""
    require_function(on_one_device, "on_one_device")
    sizes = [(12, 4, 3, 2), (7, 8, 2, 2), (9, 3, 5, 3), (5, 2, 4, 1), (6, 1, 6, 4)]
    for seed, (tokens, n, each, k) in enumerate(sizes):
        rng = np.random.default_rng(168 + seed)
        odds = rng.dirichlet(np.full(n * each, 0.6), size=tokens).astype(np.float32)
        where = f"{tokens} tokens, {n} devices with {each} experts each, k = {k}"
        program = compiled(functools.partial(on_one_device, devices=n, k=k), odds)
        got = _integers(program(odds), f"{where}: the result", (tokens, k))
        for token, chosen in enumerate(got.tolist()):
            _require_one_device(chosen, odds[token], n, where, token)


def check_16_9(orders: Callable[..., Any]) -> None:
    """The order of the work of each stage in 1F1B: in time, with few saved inputs."""
    require_function(orders, "orders")
    rng = np.random.default_rng(169)
    drawn = rng.integers(2, 9, size=(3, 2)).tolist()
    for count, many in [(4, 6), (3, 1), (5, 2), (1, 4), (2, 9), *drawn]:
        call = f"orders({count}, {many})"
        plans = _orders(orders(count, many), call, count, many)
        _require_few_saved(plans, call, many)
        ticks = _simulated(plans, call)
        if ticks != 2 * (many + count - 1):
            raise CheckFailed(
                f"{call}: the work takes {ticks} ticks, but"
                f" {2 * (many + count - 1)} are enough. How many forward passes does a"
                " stage need before its first backward pass, to have no gap later?"
            )


def check_16_10(microbatches: Callable[..., Any]) -> None:
    """The fewest microbatches within a budget of bytes and of idle ticks."""
    require_function(microbatches, "microbatches")
    cases = [
        (4, 48, 100, 4800, 0.25),  # the bubble decides
        (4, 48, 100, 900, 0.5),  # the bytes decide
        (4, 48, 100, 399, 0.9),  # nothing fits
        (8, 64, 10, 640, 0.05),  # no number of microbatches is enough
        (1, 30, 7, 210, 0.0),  # one stage is never idle
        (3, 50, 10, 299, 0.4),
        (2, 210, 16, 300, 0.02),
    ]
    rng = np.random.default_rng(1610)
    for _ in range(8):
        stages, rows = int(rng.integers(2, 9)), int(rng.integers(6, 30)) * 12
        limit = int(rows * 64 * rng.uniform(0.05, 1))
        cases.append((stages, rows, 64, limit, float(rng.uniform(0.05, 0.6))))
    for case in cases:
        call = f"microbatches{(*case[:-1], round(case[-1], 3))}"
        _require_fewest(microbatches(*case), call, *case)


def _rows_of_process_1() -> dict[str, int]:
    """The rows of 48 that the second half of the devices has, by the specs of 16.1."""
    mesh, turned = make_mesh(data=2, model=4), make_mesh(model=4, data=2)
    places = {
        "a": on(mesh, "data"),
        "b": on(mesh, ("data", "model")),
        "c": on(mesh, "model"),
        "d": on(mesh),
        "e": on(turned, "data"),
    }
    counts = {}
    for name, place in places.items():
        second, slices = (
            {*place.mesh.devices.flat[4:]},
            place.devices_indices_map((48,)),
        )
        rows = [range(48)[of[0]] for device, of in slices.items() if device in second]
        counts[name] = len(set().union(*rows))
    return counts


def _indices(answer: object, call: str, size: int) -> np.ndarray[Any, Any]:
    """The indices that a process loads, as many as it has to."""
    if answer is None or isinstance(answer, str | Mapping):
        raise CheckFailed(f"{call} is {short(answer)}, but has to be an array")
    indices = np.asarray(answer)
    if indices.shape != (size,):
        raise CheckFailed(
            f"{call} has shape {indices.shape}, and has to have {size} indices: what"
            f" part of the B = {_B} rows of a step does each process load?"
        )
    if indices.dtype.kind not in "iu":
        raise CheckFailed(
            f"{call} has the dtype {indices.dtype}, but an index is an integer"
        )
    return indices


def _require_batch(batch: np.ndarray[Any, Any], step: int, count: int) -> None:
    """The parts of all processes together are the batch of a step."""
    different = len({*batch.tolist()})
    if different != _B:
        raise CheckFailed(
            f"step {step}, {_processes(count)}: all parts together have {different}"
            f" different rows, but the batch has {_B}. Where does the part of a"
            " process begin, and do all processes use one order?"
        )
    epoch, turn = divmod(step, _N // _B)
    order = np.random.default_rng(epoch).permutation(_N)
    wanted = order[turn * _B : (turn + 1) * _B]
    if (batch != wanted).any():
        at = int(np.argmax(batch != wanted))
        raise CheckFailed(
            f"step {step}, {_processes(count)}: entry {at} of all parts together is"
            f" row {batch[at]}, but in the order of epoch {epoch} it is row"
            f" {wanted[at]}. Which rows of the epoch are the batch of all processes,"
            " and where in it is the part of each?"
        )


def _processes(count: int) -> str:
    return "1 process" if count == 1 else f"{count} processes"


@dataclasses.dataclass(frozen=True)
class _Report:
    """Errors and valid rows, the place of the padding in words, and the results."""

    where: str
    args: tuple[Floats, Floats]
    wanted: dict[str, Floats]


@functools.cache
def _reports() -> list[_Report]:
    end, parts, first = (np.ones(480, np.float32) for _ in range(3))
    end[230:] = 0  # all rows of process 1 are padding
    parts[[*range(233, 240), *range(469, 480)]] = 0
    first[[0, *range(240, 243)]] = 0
    some = np.random.default_rng(163).integers(0, 2, 480).astype(np.float32)
    return [
        _report("at the end of the part of each process", parts, 0),
        _report("at the end of all rows", end, 0),
        _report("in the first rows of each part", first, -9),
        _report("in many places", some, -9),
        _report("in many places, and the errors are very low", some, -1e6),
    ]


def _report(where: str, valid: Floats, mean: float) -> _Report:
    errors = normal(int(valid.sum()), 480, 6) + np.float32(mean)
    real = errors[valid == 1]
    errors[valid == 0] = 50
    wanted = {"mean": real.mean(axis=0), "worst": real.max(axis=0)}
    return _Report(where, (errors, valid), wanted)


def _require_report(result: Any) -> None:
    """A dict of the mean and the worst, each float32[6]."""
    if not isinstance(result, Mapping) or {*result} != {"mean", "worst"}:
        raise CheckFailed(
            f"report returned {short(result)}, but has to return a dict of mean and"
            " worst"
        )
    for name, value in result.items():
        shape = getattr(value, "shape", None)
        if shape != (6,) or value.dtype != np.float32:
            kind = f"{value.dtype}{[*shape]}" if shape is not None else short(value)
            raise CheckFailed(
                f"{name} is {kind}, but has to be float32[6]: one number for each"
                " column, in the dtype of the errors"
            )


def _require_readable(result: Mapping[str, Any]) -> None:
    """The results are on all devices, and each device has all of them."""
    for name, value in result.items():
        place = value.sharding
        if not place.is_fully_replicated or len(place.device_set) != 8:
            raise CheckFailed(
                f"{name} is on {len(place.device_set)} of 8 devices, but each has only"
                f" {place.shard_shape(value.shape)[0]} of its 6 numbers. Which arrays"
                " can every process read?"
            )


def _calls_and_lines(
    program: Callable[..., Any], p: int, rows: list[int], each: int
) -> tuple[list[str], list[str]]:
    """What a process computes, and what it says."""
    calls: list[str] = []
    lines: list[str] = []

    def together(name: object) -> float:
        calls.append(_text("together", name))
        if len(calls) == _CALLS:
            raise CheckFailed(
                f"rows {rows}: process {p} starts {_CALLS} computations. Which loop"
                " has no end?"
            )
        return _VALUES[len(calls) - 1]

    def say(text: object) -> None:
        lines.append(_text("say", text))

    program(p, list(rows), each, together, say)
    return [*calls, "the end"], lines


def _text(function: str, argument: object) -> str:
    if not isinstance(argument, str):
        raise CheckFailed(f"{function}({short(argument)}): pass a string")
    return str(argument)


def _require_same_calls(calls: list[list[str]], where: str) -> None:
    for p in range(1, len(calls)):
        for at, (first, other) in enumerate(zip(calls[0], calls[p], strict=False)):
            if first != other:
                raise CheckFailed(
                    f"{where}: after {at} common computations, process 0 starts"
                    f" {first!r} but process {p} starts {other!r}, so one of them"
                    " waits forever. What decides which computation is next?"
                )


def _right_run(rows: list[int], each: int) -> tuple[list[str], list[str]]:
    """What all processes compute, and what process 0 says."""
    calls: list[str] = []
    lines: list[str] = []
    for s in range(min(rows) // each):
        calls.append("step")
        if s % 2 == 1:
            calls.append("evaluate")
            lines.append(f"step {s}: {_VALUES[len(calls) - 1]}")
    return [*calls, "save", "the end"], lines


def _require_schedule(schedule: Callable[..., Any], count: int, many: int) -> None:
    """Each stage does each microbatch, in order, after the stage before, in time."""
    call = f"schedule({count}, {many})"
    plan = _ticks(schedule(count, many), call, count)
    begun: dict[tuple[int, float], int] = {}
    for t, tick in enumerate(plan):
        for s, one in enumerate(tick):
            if one is None:
                continue
            if begun.get((s - 1, one), -1 if s == 0 else t) >= t:
                raise CheckFailed(
                    f"{call}, tick {t}: stage {s} works on microbatch {one:g}, which"
                    f" stage {s - 1} has not finished. In which tick can it start"
                    " there?"
                )
            if (s, one) in begun:
                raise CheckFailed(
                    f"{call}: stage {s} works on microbatch {one:g} twice"
                )
            begun[s, one] = t
    for s in range(count):
        done = [one for stage, one in begun if stage == s]
        if done != [*range(many)]:
            shown = ", ".join(f"{one:g}" for one in done)
            raise CheckFailed(
                f"{call}: stage {s} works on [{shown}], and has to work on all of 0 to"
                f" {many - 1}, in order. In which tick does the last one finish?"
            )
    if len(plan) != many + count - 1:
        raise CheckFailed(
            f"{call}: {len(plan)} ticks, but fewer are enough. In which tick does no"
            " stage work, or does a stage wait that could start?"
        )


def _ticks(answer: object, call: str, count: int) -> list[list[float | None]]:
    """The answer as ticks of one number or None for each stage."""
    if not isinstance(answer, Iterable) or isinstance(answer, str | Mapping):
        raise CheckFailed(f"{call} is {short(answer)}, but has to be a list of ticks")
    plan: list[list[float | None]] = []
    for t, tick in enumerate(answer):
        if not isinstance(tick, Iterable) or isinstance(tick, str | Mapping):
            raise CheckFailed(
                f"{call}, tick {t} is {short(tick)}, but has to be a list"
            )
        entries = [*tick]
        if len(entries) != count:
            raise CheckFailed(
                f"{call}, tick {t} has {len(entries)} entries, for {count} stages"
            )
        plan.append(
            [None if x is None else number(x, f"{call}, tick {t}") for x in entries]
        )
    return plan


def _require_enough(enough: Callable[..., Any], count: int, idle: float) -> None:
    """The answer is the least number of microbatches for a share of idle places."""

    def empty(many: float) -> float:
        return (count - 1) / (many + count - 1)

    answer = enough(count, idle)
    call = f"enough({count}, {idle:.4g})"
    many = number(answer, call)
    if many != many // 1 or many < 1:
        raise CheckFailed(f"{call} is {short(answer)}, but has to be 1, 2, 3, …")
    if empty(many) > idle:
        raise CheckFailed(
            f"{call} is {many:g}, which is too few: {empty(many):.4%} of all places"
            f" are None, but at most {idle:.4%} may be. How many places does the table"
            " of all ticks have, and how many of them are None?"
        )
    if many > 1 and empty(many - 1) <= idle:
        raise CheckFailed(
            f"{call} is {many:g}, which is too many: with one fewer"
            f" {empty(many - 1):.4%} of all places are None. The share is of all places"
            " of the table: how many are there?"
        )


def _integer(answer: Any, name: str) -> int:
    """A whole number, whichever library made it."""
    try:
        if not isinstance(answer, bool):
            return operator.index(answer)
    except TypeError:
        pass
    raise CheckFailed(f"{name} is {short(answer)}, but has to be a whole number")


def _integers(
    answer: Any, name: str, shape: tuple[int, ...]
) -> np.ndarray[Any, np.dtype[np.int64]]:
    """An array of integers of this shape."""
    if getattr(answer, "shape", None) != shape:
        kind = getattr(answer, "shape", None) or short(answer)
        raise CheckFailed(f"{name} has shape {kind}, but has to have {shape}")
    if np.asarray(answer).dtype.kind not in "iu":
        raise CheckFailed(f"{name} is {answer.dtype}, but has to be integers")
    return np.asarray(answer).astype(np.int64)


def _places(
    choice: np.ndarray[Any, Any], gate: Floats, count: int
) -> np.ndarray[Any, Any]:
    """For each choice, how many of the same expert have a larger gate."""
    places = np.zeros(choice.shape, np.int64)
    for expert in range(count):
        mine = choice == expert
        places[mine] = np.argsort(np.argsort(-gate[mine]))
    return places


def _require_one_device(
    chosen: list[int], odds: Floats, devices: int, where: str, token: int
) -> None:
    """Distinct experts of one device, with the largest sum of odds there is."""
    each, k = len(odds) // devices, len(chosen)
    where = f"{where}: token {token} goes to the experts {chosen}"
    if len({*chosen}) != k or not all(0 <= one < len(odds) for one in chosen):
        raise CheckFailed(
            f"{where}, but has to go to {k} different ones of 0 to {len(odds) - 1}."
            " Is each number that of the expert among all?"
        )
    used = sorted({one // each for one in chosen})
    if len(used) > 1:
        raise CheckFailed(
            f"{where}, which are on the devices {used}, so its row is sent"
            f" {len(used)} times. Which device do you choose before its experts?"
        )
    best: Any = np.sort(odds.reshape(devices, each))[:, -k:].sum(axis=1)
    got = float(odds[chosen].sum())
    if got < best.max() - 1e-6:
        raise CheckFailed(
            f"{where}, whose odds add up to {got:.4f}, but {k} experts of device"
            f" {best.argmax()} have {best.max():.4f}. What do you compare between"
            " devices?"
        )


_Plan = list[tuple[bool, int]]  # (is backward, microbatch) of a stage, in order


def _orders(answer: object, call: str, count: int, many: int) -> list[_Plan]:
    """The answer as a plan for each stage, with each pass of each microbatch once."""
    if not isinstance(answer, Iterable) or isinstance(answer, str | Mapping):
        raise CheckFailed(f"{call} is {short(answer)}, but has to be a list of lists")
    plans = []
    for s, plan in enumerate(answer):
        if not isinstance(plan, Iterable) or isinstance(plan, str | Mapping):
            raise CheckFailed(f"{call}, stage {s} is {short(plan)}, not a list")
        plans.append([_pass(one, f"{call}, stage {s}") for one in plan])
        wanted = [(back, i) for back in (False, True) for i in range(many)]
        if sorted(plans[-1]) != wanted:
            raise CheckFailed(
                f"{call}: stage {s} has {len(plans[-1])} passes, and has to have"
                f" {2 * many}: F and B of each of 0 to {many - 1}, once. Which is"
                " missing or twice?"
            )
    if len(plans) != count:
        raise CheckFailed(f"{call} has {len(plans)} lists, for {count} stages")
    return plans


def _pass(one: object, where: str) -> tuple[bool, int]:
    pair = one if isinstance(one, tuple | list) and len(one) == 2 else (None, None)
    if isinstance(pair[0], str) and pair[0] in ("F", "B"):
        return pair[0] == "B", _integer(pair[1], where)
    raise CheckFailed(f"{where}: {short(one)} is no pass, such as ('F', 0)")


def _require_few_saved(plans: list[_Plan], call: str, many: int) -> None:
    """Stage s keeps the inputs of at most count - s microbatches."""
    for s, plan in enumerate(plans):
        saved = most = 0
        for back, _ in plan:
            saved += -1 if back else 1
            most = max(most, saved)
        if most > min(len(plans) - s, many):
            raise CheckFailed(
                f"{call}: stage {s} saves the inputs of {most} microbatches at once,"
                f" but {min(len(plans) - s, many)} are enough. When can it do its first"
                " backward pass?"
            )


def _simulated(plans: list[_Plan], call: str) -> int:
    """The ticks that the plans take if each pass begins as soon as it can."""
    done: dict[tuple[int, bool, int], int] = {}
    at, tick, last = [0] * len(plans), 0, len(plans) - 1
    while any(i < len(plan) for i, plan in zip(at, plans, strict=True)):
        now = []
        for s, plan in enumerate(plans):
            if at[s] == len(plan):
                continue
            back, one = plan[at[s]]
            needs = [(s, False, one)] if back else []
            if back and s < last:
                needs.append((s + 1, True, one))
            if not back and s > 0:
                needs.append((s - 1, False, one))
            if all(need in done for need in needs):
                now.append((s, back, one))
        if not now:
            s = next(s for s, plan in enumerate(plans) if at[s] < len(plan))
            back, one = plans[s][at[s]]
            raise CheckFailed(
                f"{call}: after {tick} ticks every stage waits for another. Stage {s}"
                f" waits to do {'B' if back else 'F'} of microbatch {one}. What does"
                " that pass need from its neighbor, and when does that come?"
            )
        for one_pass in now:
            done[one_pass] = tick
            at[one_pass[0]] += 1
        tick += 1
    return tick


def _require_fewest(
    answer: Any, call: str, stages: int, rows: int, each: int, limit: int, idle: float
) -> None:
    """The answer is the fewest microbatches that fit, or None where none do."""

    def saved(m: int) -> int:
        return min(stages, m) * (rows // m) * each

    def bubble(m: int) -> float:
        return (stages - 1) / (m + stages - 1)

    fit = [
        m
        for m in range(1, rows + 1)
        if rows % m == 0 and saved(m) <= limit and bubble(m) <= idle
    ]
    if answer is None:
        if fit:
            raise CheckFailed(
                f"{call} is None, but {fit[0]} microbatches save {saved(fit[0]):,}"
                f" bytes and are idle for {bubble(fit[0]):.1%}. How many microbatches"
                " does a stage save in 1F1B?"
            )
        return
    m = _integer(answer, call)
    if m < 1 or rows % m:
        raise CheckFailed(f"{call} is {m}, which does not divide {rows} rows")
    if saved(m) > limit or bubble(m) > idle:
        raise CheckFailed(
            f"{call} is {m}: stage 0 saves {saved(m):,} bytes of at most {limit:,}, and"
            f" each stage is idle for {bubble(m):.1%} of at most {idle:.1%}. Which of"
            " the two is over, and what changes it?"
        )
    if m > fit[0]:
        raise CheckFailed(
            f"{call} is {m}, but {fit[0]} microbatches are within both budgets too, and"
            " fewer are larger: is it the smallest number that fits?"
        )
