"""Checks of chapter 14, the least time that a step takes."""

import dataclasses
import functools
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import spmd_helpers as spmd
from spmd_helpers import CheckFailed, Chip, XRay

from ._setting import (
    abstract,
    is_close,
    make_mesh,
    number,
    on,
    require_function,
    short,
    word,
)

# At the least number of rows the two times are equal, without rounding.
_EVEN = "a chip with 64 FLOPs per byte"


def check_14_1(a: object, b: object, c: object, bound: object) -> None:
    """The arithmetic intensity of three programs, and which are compute-bound."""
    given = {"a": number(a, "a"), "b": number(b, "b"), "c": number(c, "c")}
    right = {
        "a": _product_intensity(64, 2048, 6144),
        "b": _product_intensity(8192, 2048, 6144),
        "c": 1 / (2 * 3),  # one addition for two numbers read and one written
    }
    wrong = [
        name
        for name in right
        if not is_close(given[name], right[name], 0.01)
        and given[name] != float(f"{right[name]:.2g}")  # two digits are enough
    ]
    if wrong:
        shown = ", ".join(f"{name}, which is {given[name]:.4g}" for name in wrong)
        raise CheckFailed(
            f"look again at {shown}. How many operations is one multiply-add, which"
            " three arrays are read or written, and how many bytes is a bfloat16?"
        )
    chip = spmd.HARDWARE["h100"]
    balance = chip.bf16_flops_per_s / chip.memory_bytes_per_s
    if _letters(bound) != {name for name in right if right[name] > balance}:
        raise CheckFailed(
            f"bound is {short(bound)}. An H100 can do {balance:.0f} operations in the"
            " time in which it reads one byte: which of your three intensities are on"
            " which side of that?"
        )


def check_14_2(fewest_rows: Callable[..., Any]) -> None:
    """The fewest rows for which a product is limited by arithmetic."""
    require_function(fewest_rows, "fewest_rows")
    for d, f, name, chip, each in _products():
        call = f"fewest_rows({d}, {f}, {name}, {each})"
        answer = fewest_rows(d, f, chip, *[each] * (each != 2))
        least = _least_rows(d, f, chip, each)
        if answer is None:
            if least is not None:
                raise CheckFailed(
                    f"{call} is None, but there is such a number. How many FLOPs per"
                    " byte does the product do when B is very large?"
                )
            continue
        rows = number(answer, call)
        if rows != rows // 1 or rows < 1:
            raise CheckFailed(f"{call} is {short(answer)}, but has to be 1, 2, 3, …")
        if least is None:
            raise CheckFailed(
                f"{call} is {rows:.0f}, but no number is enough: which bytes grow with"
                " the rows too?"
            )
        _require_fewest(rows, least, call, (d, f, chip, each))


def check_14_3(gather: object, reduce: object, exchange: object, half: object) -> None:
    """The milliseconds of collectives on a ring of eight v5p."""
    link = spmd.HARDWARE["v5p"].link_bytes_per_s
    array_ms = 512 * 2**20 / (2 * link) * 1e3
    right = {
        "gather": 7 / 8 * array_ms,
        "reduce": 2 * 7 / 8 * array_ms,
        "exchange": array_ms / 4,
        "half": 7 / 8 * array_ms / 2,
    }
    thoughts = {
        "gather": "What part of the array does each device send, over how many links?",
        "reduce": "Of which two collectives does a ring make an all-reduce?",
        "exchange": "On a ring, who forwards a chunk meant for a device farther away?",
        "half": "How large is the array that one ring gathers?",
    }
    answers = dict(zip(right, (gather, reduce, exchange, half), strict=True))
    given = {name: number(answer, name) for name, answer in answers.items()}
    wrong = [name for name in right if not is_close(given[name], right[name], 0.01)]
    if wrong:
        shown = "".join(
            f"\n{name} is {given[name]:.4g}. {thoughts[name]}" for name in wrong
        )
        raise CheckFailed(
            f"look again at {', '.join(wrong)}.{shown}\nAll are milliseconds, an MiB"
            f" is 2**20 bytes, and a link of the v5p sends {link:.0e} bytes per"
            " second."
        )


def check_14_4(step_seconds: Callable[..., Any]) -> None:
    """The least and the most seconds of a step, with the wires axis by axis."""
    require_function(step_seconds, "step_seconds")
    for program in _programs():
        for name, chip in _chips_of_other_speeds():
            where = f"step_seconds of {program.name}, on a {chip.kind.upper()}"
            where += f" ({name} with other speeds)"
            answer = step_seconds(program.report, chip)
            pair = _require_pair(answer, where, "(least, most)")
            busy = _busy_seconds(program, chip)
            for which, seconds, right in zip(
                ("least", "most"), pair, (max(busy), sum(busy)), strict=True
            ):
                if not is_close(seconds, right, 1e-4):
                    differs = "too long" if seconds > right else "wrong"
                    differs = "too short" if seconds < right else differs
                    raise CheckFailed(
                        f"{where}: {which} is {seconds:.4g} s, which is {differs}."
                        f" Compute takes {busy[0]:.4g} s and memory {busy[1]:.4g} s."
                        f" {program.thought}"
                    )


def check_14_5(winner: object, times: object, same_at: object) -> None:
    """FSDP and tensor parallelism on eight v5e, by what they send."""
    d_model, d_ff, batch = 4096, 16384, 8192
    weights, stream = 3 * 2 * d_model * d_ff, 2 * 2 * batch * d_model
    if isinstance(winner, str):
        winner = winner.replace("-", " ").replace("_", " ")
    faster = "tensor parallel" if stream < weights else "fsdp"
    if word(winner, "winner", ("fsdp", "tensor parallel")) != faster:
        raise CheckFailed(
            f"winner is {short(winner)}. Both do the same amount of compute. One"
            " communicates weights, the other activations: how many numbers are the"
            " weights of a layer, how many its activations, and how often is each"
            " communicated?"
        )
    ratio = max(weights, stream) / min(weights, stream)
    if not is_close(number(times, "times"), ratio, 0.02):
        raise CheckFailed(
            f"times is {short(times)}. How often does FSDP communicate each weight,"
            " forward and backward together? How many all-reduces does tensor"
            " parallelism run in a layer, and how often does one of them send its"
            " array?"
        )
    if not is_close(number(same_at, "same_at"), batch * weights / stream, 0.02):
        raise CheckFailed(
            f"same_at is {short(same_at)}. What FSDP sends does not depend on the"
            " batch: how does what tensor parallelism sends grow with the rows of all"
            " devices together?"
        )


def check_14_6(choose: Callable[..., Any]) -> None:
    """The strategy with the least memory that is at most so much slower."""
    require_function(choose, "choose")
    for plan in _plans():
        for more in (0.0, 0.1, 0.5, 2.0):
            _check_choice(choose(plan, more), plan, more)


def _check_choice(answer: object, plan: spmd.Plan, more: float) -> None:
    call = f"choose(plan, {more}) for {plan.what}"
    fitting = [one for one in plan.strategies if one.fits]
    if not fitting:
        if answer is not None:
            raise CheckFailed(
                f"{call} is {short(answer)}, but none of these strategies fits: what"
                " does `fits` say?"
            )
        return
    if not isinstance(answer, type(fitting[0])):
        raise CheckFailed(
            f"{call} is {short(answer)}, but has to be a strategy of the plan: one of"
            " plan.strategies"
        )
    if not answer.fits:
        raise CheckFailed(
            f"{call} is {answer}, which does not fit. Which strategies may you choose"
            " from?"
        )
    fastest = min(one.total_s for one in fitting)
    most = (1 + more) * fastest
    if answer.total_s > most:
        raise CheckFailed(
            f"{call} is {answer}, which takes {answer.total_s / fastest:.3f} times as"
            f" long as the fastest that fits. It may take {1 + more:g} times as long."
        )
    least = min(one.memory_bytes for one in fitting if one.total_s <= most)
    if answer.memory_bytes > least:
        raise CheckFailed(
            f"{call} is {answer}, which needs {answer.memory_bytes / least:.3f} times"
            f" the memory of another that is fast enough. Of all that take at most"
            f" {1 + more:g} times as long, which needs the least?"
        )


def _product_intensity(rows: int, d: int, f: int) -> float:
    """FLOPs per byte of a product in bfloat16."""
    return 2 * rows * d * f / (2 * (rows * d + d * f + rows * f))


def _letters(answer: object) -> set[str]:
    """The letters among a, b and c, as one text or a container of them."""
    parts = answer if isinstance(answer, list | tuple | set) else [answer]
    text = "".join(part for part in parts if isinstance(part, str))
    letters = {*text.lower()} - {*' ,;"'}
    if not all(isinstance(part, str) for part in parts) or letters - {*"abc"}:
        raise CheckFailed(
            f'bound is {short(answer)}, but has to be letters, like "ab" or ""'
        )
    return letters


@functools.cache
def _products() -> list[tuple[int, int, str, Chip, int]]:
    """Sizes, chips and bytes; for some no number of rows is enough."""
    rng, chips = np.random.default_rng(142), spmd.HARDWARE
    chosen = [
        (8192, 8192, "h100", 2),
        (4096, 1536, "h200", 4),
        (512, 384, "v5p", 2),
        (512, 300, "h100", 2),  # none is enough
        (512, 248, "v5p", 2),
        (2048, 640, "v6e", 2),  # none is enough
        (5120, 13824, "b200", 1),
    ]
    for name in sorted(chips):
        d, f = 256 * int(rng.integers(16, 64)), 128 * int(rng.integers(32, 128))
        chosen.append((d, f, name, int(rng.choice([1, 2, 4]))))
    cases = [(d, f, name, chips[name], each) for d, f, name, each in chosen]
    close = 512 * 248 / (512 + 248) * (1 - 1e-4)  # over a million rows
    reads = chips["v5p"].memory_bytes_per_s
    invented = dataclasses.replace(chips["v5p"], bf16_flops_per_s=close * reads)
    name = f"a v5p with {close:.2f} FLOPs per byte"
    cases += [(512, 248, name, invented, 2), (248, 480, name, invented, 2)]
    even = dataclasses.replace(
        invented, bf16_flops_per_s=2.0**46, memory_bytes_per_s=2.0**40
    )
    return [*cases, (256, 256, _EVEN, even, 2)]


def _least_rows(d: int, f: int, chip: Chip, each: int) -> float | None:
    """From where on computing takes as long as reading; None if from nowhere on."""
    balance = Fraction(chip.bf16_flops_per_s) / Fraction(chip.memory_bytes_per_s)
    a_row = 2 * d * f - balance * each * (d + f)
    return float(balance * each * d * f / a_row) if a_row > 0 else None


def _require_fewest(
    rows: float, least: float, call: str, of: tuple[int, int, Chip, int]
) -> None:
    """The rows must be the least, rounded up; `of` is sizes, chip and bytes."""
    if rows < least - 1e-4:
        raise CheckFailed(
            f"{call} is {rows:.0f}, which is too few: with that many rows"
            f" {_both_times(rows, *of)}. Are the bytes of all three arrays counted,"
            " with `each` bytes an element?"
        )
    if rows - 1 >= least + (0 if _EVEN in call else 1e-4):
        raise CheckFailed(
            f"{call} is {rows:.0f}, which is too many: with one row fewer"
            f" {_both_times(rows - 1, *of)}. From which B on are the two times equal?"
        )


def _both_times(rows: float, d: int, f: int, chip: Chip, each: int) -> str:
    """The times of a product, in words."""
    computes = 2 * rows * d * f / chip.bf16_flops_per_s * 1e6
    moves = each * (rows * d + d * f + rows * f) / chip.memory_bytes_per_s * 1e6
    return f"compute takes {computes:.5g} µs, and reading and writing {moves:.5g} µs"


@dataclasses.dataclass(frozen=True)
class _Program:
    """A program of exercise 14.4, and the bytes a device sends along each axis."""

    name: str
    report: XRay
    sent: tuple[float, float]
    thought: str


@functools.cache
def _programs() -> list[_Program]:
    mesh = make_mesh(data=4, model=2)
    programs = [_loop(mesh), _by_hand(make_mesh(data=2, model=4))]
    if programs[0].report.lowered_for != "tpu":
        programs.append(_fsdp(mesh))  # a TPU exchanges it in pieces of other sizes
    quiet = "It communicates nothing: what takes the time instead?"
    x, w = (abstract((n, n), on(mesh, "data", None)) for n in (8192, 8192))
    y = abstract((512, 2048), on(mesh, None, "model"))
    rows = abstract((8192, 512), on(mesh, "data"))
    product, total = spmd.xray(jnp.matmul, rows, y), spmd.xray(jnp.add, x, w)
    return [
        *programs,
        _Program("a product without exchanges", product, (0, 0), quiet),
        _Program("a sum of two matrices", total, (0, 0), quiet),
    ]


def _loop(mesh: Mesh) -> _Program:
    """Nine all-reduces along `model` in a loop, and one along `data`."""

    def turns(x: Any) -> Any:
        def one(_: Any, h: Any) -> Any:
            return jnp.tanh(lax.psum(h, "model"))

        return lax.psum(lax.fori_loop(0, 9, one, x), "data")

    mapped = jax.shard_map(
        turns, mesh=mesh, in_specs=P("data", "model"), out_specs=P(), check_vma=False
    )
    report = spmd.xray(mapped, abstract((64, 48), on(mesh, "data", "model")))
    block = 16 * 24 * 4
    return _Program(
        "a loop of 9 all-reduces along `model`, with one along `data` after it",
        report,
        (2 * 3 / 4 * block, 9 * 2 * 1 / 2 * block),
        "Does each iteration count, how fast is one axis, which axes share their links"
        " on this chip, and are compute and memory included?",
    )


def _by_hand(mesh: Mesh) -> _Program:
    """A reduce-scatter that is compiled as one, and an all-gather."""

    def exchange(x: Any) -> Any:
        part = lax.psum_scatter(x, "data", tiled=True)
        return lax.all_gather(part, "model", tiled=True)

    mapped = jax.shard_map(
        exchange, mesh=mesh, in_specs=P(), out_specs=P("data"), check_vma=False
    )
    report = spmd.xray(mapped, abstract((64, 48), on(mesh)))
    size = 64 * 48 * 4
    return _Program(
        "a reduce-scatter along `data` by hand, with an all-gather along `model`",
        report,
        (size / 2, 3 * size / 2),
        "Look at `kind` and `lowered_as` of each collective: which is compiled as a"
        " larger one, and which axes share their links on this chip?",
    )


def _fsdp(mesh: Mesh) -> _Program:
    """The gradient of a sharded weight: an all-gather and a reduce-scatter."""

    def loss(w: Any, x: Any) -> Any:
        return ((x @ w) ** 2).mean()

    w = abstract((48, 32), on(mesh, "data"))
    x = abstract((64, 48), on(mesh, "data"))
    report = spmd.xray(jax.grad(loss), w, x, jit={"out_shardings": w.sharding})
    return _Program(
        "an FSDP gradient",
        report,
        (2 * 3 / 4 * 48 * 32 * 4, 0),
        "Which of its collectives is compiled as a larger one?",
    )


@functools.cache
def _chips_of_other_speeds() -> list[tuple[str, Chip]]:
    """Chips whose speeds are on no data sheet."""
    rng, chips = np.random.default_rng(144), []
    for name in ("v5p", "h100", "v6e"):
        chip, (flops, reads, sends) = spmd.HARDWARE[name], rng.uniform(0.7, 1.4, 3)
        other = dataclasses.replace(
            chip,
            bf16_flops_per_s=float(flops * chip.bf16_flops_per_s),
            memory_bytes_per_s=float(reads * chip.memory_bytes_per_s),
            link_bytes_per_s=float(sends * chip.link_bytes_per_s),
        )
        chips.append((name, other))
    return chips


def _busy_seconds(program: _Program, chip: Chip) -> list[float]:
    """Seconds of compute, of memory and of each set of links."""
    report = program.report
    if report.flops_per_device is None:
        raise CheckFailed(f"the X-ray can't count the work of {program.name}")
    arrays = spmd.memory((report.input_shardings, report.output_shardings))
    wires = [size / _axis_bytes_per_s(chip) for size in program.sent]
    return [
        report.flops_per_device / chip.bf16_flops_per_s,
        arrays.largest_device_bytes / chip.memory_bytes_per_s,
        *(wires if chip.kind == "tpu" else [sum(wires)]),
    ]


def _axis_bytes_per_s(chip: Chip) -> float:
    return (2 if chip.kind == "tpu" else 1) * chip.link_bytes_per_s


def _require_pair(answer: object, name: str, what: str) -> tuple[float, float]:
    """Two numbers, in any container that has an order."""
    if isinstance(answer, np.ndarray | jax.Array):
        answer = answer.tolist()
    if not isinstance(answer, tuple | list) or len(answer) != 2:
        raise CheckFailed(f"{name} is {short(answer)}, but has to be a pair {what}")
    return number(answer[0], name), number(answer[1], name)


@functools.cache
def _plans() -> list[spmd.Plan]:
    """Plans in which much fits, little, and nothing."""
    cases = (
        ("llama-3-70b", "v5p:4x4x4", 64, 4096),
        ("gpt3-2.7b", "v5e:4x4", 32, 2048),
        ("llama-3-8b", "h100:2x8", 32, 4096),
        ("llama-3-70b", "h100:1x8", 8, 2048),
    )
    return [
        spmd.plan_mesh(spmd.MODELS[name], topology, batch=batch, seq=seq)
        for name, topology, batch, seq in cases
    ]
