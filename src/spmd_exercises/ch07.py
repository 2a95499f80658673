"""Checks of chapter 7, redundant compute."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

import spmd_helpers as spmd
from spmd_helpers import CheckFailed, XRay

from ._setting import (
    abstract,
    compiled,
    make_mesh,
    next_thought,
    normal,
    number,
    on,
    redundancy,
    require_function,
    require_spec,
    trying,
)

_POD = {"data": 8, "model": 8}
_SHAPES = {"x": (512, 320), "w1": (320, 1024), "w2": (1024, 256)}  # of 7.5


def check_7_1(
    a_times: object, b_times: object, c_times: object, d_times: object, e_times: object
) -> None:
    """How often each of five products is computed on a mesh of 4 × 2."""
    answers = (a_times, b_times, c_times, d_times, e_times)
    off = []
    for name, answer, times in zip("abcde", answers, _five_times(), strict=True):
        near = abs(number(answer, f"{name}_times") - times) <= 0.02
        off += [f"{name}_times"] * (not near)
    if off:
        raise CheckFailed(
            f"look again at {', '.join(off)}. Which mesh axes shard neither x nor w"
            " when the product is computed, and how large are they?"
        )


def check_7_2(thrifty: Callable[..., Any]) -> None:
    """Two products, each computed once, and one all-reduce along `model`."""
    require_function(thrifty, "thrifty")
    for seed, sizes in enumerate([(192, 320, 512, 256), (96, 160, 240, 80)]):
        m, k, h, n = sizes
        with trying(f"with x [{m}, {k}], w1 [{k}, {h}] and w2 [{h}, {n}]"):
            _require_thrifty(thrifty, seed, m, k, h, n)


def check_7_3(redundancy: object, useful: object) -> None:
    """The redundancy of two products, of which one is computed twice."""
    times = _pair_times()
    if not abs(number(redundancy, "redundancy") - times) < 0.01:
        raise CheckFailed(
            f"redundancy is {redundancy}. How many GFLOP do all devices together"
            " compute, and how many would they compute if nothing were repeated?"
        )
    if not abs(number(useful, "useful") - 1 / times) < 0.01:
        raise CheckFailed(
            f"useful is {useful}. It is a share between 0 and 1: how does the chapter"
            " get it from the redundancy?"
        )


def check_7_4(wasted: Callable[..., Any]) -> None:
    """The share of the matrix work that is repeated, without running the function."""
    require_function(wasted, "wasted")
    for what, f, args, want in _wasteful_cases():
        with trying(f"wasted of {what}"):
            _require_share(wasted, f, args, want)


def check_7_5(x_spec: object, w1_spec: object, w2_spec: object) -> None:
    """Three specs for a pod of 8 × 8, within budgets of memory and of exchange.

    The specs are compiled for 2 × 2 devices and a quarter of each size, where they
    shard the same dimensions as on the pod. A single all-reduce without repeated work
    then has 64 KiB on a device of the pod, since the result is sharded in eight.
    """
    specs = {
        name: require_spec(spec, f"{name}_spec")
        for name, spec in zip(_SHAPES, (x_spec, w1_spec, w2_spec), strict=True)
    }
    for name, spec in specs.items():
        size = spmd.sharding(_SHAPES[name], spec, mesh=_POD).bytes_per_device
        if size > 160 * 1024:
            raise CheckFailed(
                f"{name}_spec is {spec}: {name} has {size:,} bytes per device, but the"
                f" budget is {160 * 1024:,}. Which axes could shard it further?"
            )
    _require_one_all_reduce(_small_pod(specs))


@functools.cache
def _five_times() -> list[float]:
    mesh = make_mesh(data=4, model=2)
    specs = [
        (P(), P()),
        (P("data"), P()),
        (P("data", "model"), P("model", None)),
        (P(("data", "model")), P()),
        (P(), P(None, "model")),
    ]
    return [
        redundancy(
            spmd.xray(
                jnp.matmul,
                abstract((192, 320), on(mesh, *x)),
                abstract((320, 256), on(mesh, *w)),
            )
        )
        for x, w in specs
    ]


def _require_thrifty(
    thrifty: Callable[..., Any], seed: int, m: int, k: int, h: int, n: int
) -> None:
    mesh = make_mesh(data=4, model=2)
    specs = (P("data"), P(None, "model"), P("model"))
    places = [on(mesh, *spec) for spec in specs]
    host = [normal(seed + i, *s) / 8 for i, s in enumerate([(m, k), (k, h), (h, n)])]
    args = [abstract(a.shape, p) for a, p in zip(host, places, strict=True)]
    program = compiled(thrifty, *args)
    report = spmd.xray(program)
    if report.redundancy is None:
        raise CheckFailed(
            "there is no matrix product in thrifty, but two are expected. Does it"
            " return what it computes?"
        )
    if redundancy(report) > 1.01:
        raise CheckFailed(
            f"the average product is computed {redundancy(report):.2f} times. Which"
            " axis shards neither of its operands?"
        )
    if report.flops_per_device != 2 * (m // 4) * (k + n) * (h // 2):
        raise CheckFailed(
            f"each device computes {report.flops_per_device:,} FLOPs. Are the two"
            " products those of the step above, in its order?"
        )
    with next_thought("Which line requires more than one sum of partial results?"):
        spmd.assert_collectives(report, exactly={"all-reduce": 1}, over="model")
    got = program(*jax.device_put(host, places))
    want = np.tanh(host[0] @ host[1]) @ host[2]
    thought = (
        "Which step of `wasteful` is missing in yours, or has a different precision?"
    )
    with next_thought(thought):
        spmd.assert_close({"result": got}, {"result": want}, rtol=1e-4)


@functools.cache
def _pair_times() -> float:
    _, pair, args, _ = _wasteful_cases()[-1]
    return redundancy(spmd.xray(pair, *args))


def _wasteful_cases() -> list[tuple[str, Callable[..., Any], tuple[Any, ...], float]]:
    """In words, a function, its arguments, and the share that is repeated."""
    mesh = make_mesh(data=4, model=2)

    def of(shape: tuple[int, int], *entries: Any) -> jax.ShapeDtypeStruct:
        return abstract(shape, on(mesh, *entries))

    def two(x: Any, w1: Any, v: Any, w2: Any) -> tuple[Any, Any]:
        return x @ w1, v @ w2

    one = 'one product with x sharded as P("data")'
    return [
        (one, jnp.matmul, (of((48, 40), "data"), of((40, 24))), 1 / 2),
        ("a function without products", jnp.tanh, (of((48, 40)),), 0.0),
        (
            "one product of replicated arrays",
            jnp.dot,
            (of((48, 40)), of((40, 24))),
            7 / 8,
        ),
        (
            f'{one} and w as P(None, "model")',
            jax.jit(jnp.matmul),
            (of((48, 40), "data"), of((40, 24), None, "model")),
            0.0,
        ),
        *(
            (
                f"two products, the second with a replicated w [160, {wide}]",
                two,
                (
                    of((96, 160), "data"),
                    of((160, 240), None, "model"),
                    of((96, 160), "data"),
                    of((160, wide)),
                ),
                wide / (240 + 2 * wide),
            )
            for wide in (320, 80)
        ),
    ]


def _require_share(
    wasted: Callable[..., Any],
    f: Callable[..., Any],
    args: tuple[Any, ...],
    want: float,
) -> None:
    ran: list[int] = []
    share = number(wasted(_noted(f, ran), *args))
    jax.effects_barrier()
    if ran:
        raise CheckFailed(
            "wasted runs f. What in this chapter counts the work of a function that is"
            " only compiled?"
        )
    if not abs(share - want) < 0.01:
        raise CheckFailed(
            f"the answer is {share:.3f}, but {want:.3f} of the matrix work is"
            " repeated. If each product is computed r times, which share of the work"
            " is needed?"
        )


def _noted(f: Callable[..., Any], ran: list[int]) -> Callable[..., Any]:
    """The function, which notes in `ran` that it runs."""

    def noted(*args: Any) -> Any:
        jax.debug.callback(lambda: ran.append(1))
        return f(*args)

    return noted


def _small_pod(specs: dict[str, P]) -> XRay:
    mesh = make_mesh(data=2, model=2)
    args = [
        abstract((rows // 4, columns // 4), on(mesh, *specs[name]))
        for name, (rows, columns) in _SHAPES.items()
    ]
    return spmd.xray(lambda x, w1, w2: jnp.tanh(x @ w1) @ w2, *args)


def _require_one_all_reduce(report: XRay) -> None:
    if redundancy(report) > 1.01:
        raise CheckFailed(
            "with these specs, part of the matrix work is computed more than once."
            " Which axis shards neither operand of a product?"
        )
    kinds = [c.kind for c in report.collectives]
    if kinds != ["all-reduce"]:
        raise CheckFailed(
            f"with these specs the program runs {', '.join(kinds) or 'no collective'},"
            " but one all-reduce is expected. Which dimension do both operands of a"
            " product have, and are they sharded along it by the same axis?"
        )
