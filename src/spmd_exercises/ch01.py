"""Checks of chapter 1, data parallelism with pmap."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import spmd_helpers as spmd
from spmd_helpers import CheckFailed, XRay

from ._digits import (
    Params,
    loss_and_grads,
    loss_fn,
    make_digits,
    make_params,
    max_flops,
    size,
)
from ._setting import (
    abstract,
    devices,
    dimensions,
    kind_of,
    make_mesh,
    next_thought,
    normal,
    number,
    on,
    require_function,
    short,
    trying,
    unpack,
)

_DEVICES = 8


def check_1_1(inside: object, outside: object) -> None:
    """The shape that a function sees inside pmap, and the shape that comes back."""
    shard, returned = _shapes_of_pmap()
    if dimensions(inside, "inside") != shard:
        raise CheckFailed(
            f"inside is {inside}. Which axis does pmap hand out over the devices, and"
            " what is left of the shape for one of them?"
        )
    if dimensions(outside, "outside") != returned:
        raise CheckFailed(
            f"outside is {outside}. What does one device return, and along which axis"
            " does pmap stack the results of all devices?"
        )


@functools.cache
def _shapes_of_pmap() -> tuple[tuple[int, ...], tuple[int, ...]]:
    shapes = []

    def f(words: jax.Array) -> jax.Array:
        shapes.append(words.shape)
        return words.max(axis=-1)

    returned = jax.pmap(f, devices=devices(_DEVICES))(np.zeros((_DEVICES, 12, 50)))
    return shapes[0], returned.shape


def check_1_2(shard_batch: Callable[..., Any]) -> None:
    """A batch split for n devices, in order; a ValueError where it does not divide."""
    require_function(shard_batch, "shard_batch")
    integers = np.random.default_rng(0).integers
    _require_split(shard_batch, integers(99, size=(24, 2)), 8)
    _require_split(shard_batch, normal(1, 12), 4)
    _require_split(shard_batch, integers(99, size=(6, 2, 5)), 3)
    for n in (8, 7, 4, 3):
        for many in range(1, 33):
            if many % n:
                _require_value_error(shard_batch, many, n)


def _require_split(shard_batch: Callable[..., Any], rows: Any, n: int) -> None:
    what, k = f"a batch of shape {rows.shape} for n={n}", len(rows) // n
    try:
        got = shard_batch(rows.copy(), n)
    except ValueError as error:
        raise CheckFailed(
            f"{what} can be split equally, but shard_batch raised ValueError: {error}"
        ) from None
    if not hasattr(got, "shape"):
        raise CheckFailed(
            f"{what}: shard_batch returned {kind_of(got)}, but one array is expected,"
            " with the devices along its leading axis"
        )
    wanted = (n, k, *rows.shape[1:])
    if got.shape != wanted:
        raise CheckFailed(
            f"{what}: shard_batch returned an array of shape {got.shape}, but {wanted}"
            " is expected"
        )
    values = np.asarray(got)
    if not np.array_equal(values[1], rows[k : 2 * k]):
        raise CheckFailed(
            f"{what}: device 1 has the wrong rows. Device 0 gets the first {k}, so"
            f" device 1 begins with row {k}, {rows[k].tolist()}, but yours begins with"
            f" {values[1][0].tolist()}"
        )
    if not np.array_equal(values, rows.reshape(wanted)):
        raise CheckFailed(
            f"{what}: the rows of devices 0 and 1 are right, but those of other"
            " devices are not. Do all devices get their rows in the order of the"
            " batch?"
        )
    if values.dtype.kind != rows.dtype.kind:
        raise CheckFailed(
            f"{what}: the dtype was {rows.dtype}, but shard_batch returned"
            f" {values.dtype}"
        )


def _require_value_error(shard_batch: Callable[..., Any], many: int, n: int) -> None:
    try:
        shard_batch(np.zeros((many, 2), np.float32), n)
    except ValueError:
        return
    except Exception as error:
        raise CheckFailed(
            f"a batch of size {many} does not divide by n={n}: a ValueError is"
            f" expected, but shard_batch raised {type(error).__name__}"
        ) from error
    raise CheckFailed(
        f"a batch of size {many} does not divide by n={n}, but shard_batch raised no"
        " ValueError: rows may neither get lost nor be added"
    )


def check_1_3(bytes_per_device: object, bytes_in_all: object) -> None:
    """Bytes of the parameters on one device, and on all eight."""
    mesh, shapes = make_mesh(data=_DEVICES), ((784, 512), (512,), (512, 10), (10,))
    stacks = [abstract((_DEVICES, *shape), on(mesh, "data")) for shape in shapes]
    infos = [spmd.sharding(stack) for stack in stacks]
    if number(bytes_per_device, "bytes_per_device") != sum(
        info.bytes_per_device for info in infos
    ):
        raise CheckFailed(
            f"bytes_per_device is {bytes_per_device}. A device has one copy of each of"
            " the four arrays: how many numbers is that, and how many bytes is each?"
        )
    if number(bytes_in_all, "bytes_in_all") != sum(info.total_bytes for info in infos):
        raise CheckFailed(
            f"bytes_in_all is {bytes_in_all}. How many replicas of the parameters do"
            " all devices have together?"
        )


def check_1_4(momentum_step: Callable[..., Any]) -> None:
    """Momentum in data parallelism: equal replicas, one device's step, few bytes."""
    require_function(momentum_step, "momentum_step")
    params = make_params(4)
    state = (params, jax.tree.map(np.zeros_like, params))
    for seed, rows in enumerate((20, 4)):
        x, y = make_digits(params, _DEVICES * rows, hits=9 * rows // 2, seed=seed)
        with trying(f"step {seed + 1}, with {rows} rows per device"):
            returned = momentum_step(*_stack(state), _split(x), _split(y))
            got = unpack(returned, "params", "velocity", "loss")
            params, velocity, loss = _momentum(*state, x, y)
            state = params, velocity
            _require_equal_replicas(got, state)
            with next_thought(
                "Which step differs on one device: the mean over all rows, the old"
                " velocity, the rate, or float32?"
            ):
                wanted = _named(_stack((*state, loss)))
                spmd.assert_close(_named(got), wanted, rtol=1e-4)
    x, y = make_digits(params, _DEVICES * 20, hits=90)
    report = spmd.xray(momentum_step, *_stack(state), _split(x), _split(y))
    gradients = 4 * size(params)
    with next_thought(
        "Each device sees only its own rows: which of its results have to be averaged"
        " over all devices, and how often?"
    ):
        spmd.assert_collectives(
            report,
            at_most={"all-reduce": 9},
            at_most_bytes=gradients + 4,
            at_least_bytes=gradients,
        )
    _require_own_rows(report, max_flops(params, rows=20, products=3), rows=20)


def _momentum(
    params: Params, velocity: Params, x: Any, y: Any
) -> tuple[Params, Params, Any]:
    """The step on one device."""
    loss, grads = loss_and_grads(params, x, y)
    velocity = jax.tree.map(lambda v, g: np.asarray(0.9 * v + g), velocity, grads)
    params = jax.tree.map(lambda p, v: p - np.float32(0.1) * v, params, velocity)
    return params, velocity, np.asarray(loss)


def _named(parts: tuple[Any, ...]) -> dict[str, Any]:
    return dict(zip(("params", "velocity", "loss"), parts, strict=True))


def _require_equal_replicas(
    got: tuple[Any, ...], wanted: tuple[Params, Params]
) -> None:
    shapes = jax.tree.map(np.shape, got[:2])
    if shapes != jax.tree.map(np.shape, _stack(wanted)):
        raise CheckFailed(
            "momentum_step has to return params and velocity in this order and in the"
            f" shapes it was given, but returned {shapes}"
        )
    for name, tree in zip(("params", "velocity"), got, strict=False):
        apart = max(map(_spread, jax.tree.leaves(jax.device_get(tree))))
        if apart > 1e-5:
            raise CheckFailed(
                f"the replicas of the {name} differ by up to {apart:.2g}. What"
                " does each device compute from its own rows alone?"
            )


def _spread(leaf: Any) -> float:
    return float((leaf.max(axis=0) - leaf.min(axis=0)).max())


def check_1_5(masked_loss: Callable[..., Any]) -> None:
    """The mean loss over the rows that are no padding, the same on each device."""
    require_function(masked_loss, "masked_loss")
    masks = [np.arange(16) < real for real in (12, 11, 16)]
    masks += [np.arange(16) % 3 == 1]  # real rows between the others
    for seed, mask in enumerate(masks):
        params = make_params(seed)
        x, y = make_digits(params, 16, hits=7, seed=seed)
        args = (_split(x), _split(y), _split(mask.astype(np.float32)))
        wanted = float(loss_fn(params, x[mask], y[mask]))
        with trying(f"with {mask.sum()} real rows"):
            got = _one_each(masked_loss(_stack(params), *args), "masked_loss")
            _require_mean(got.astype(float), wanted)
    report = spmd.xray(masked_loss, _stack(params), *args)
    _require_own_rows(report, max_flops(params, rows=2, products=1), rows=2)
    if not report.collectives:
        raise CheckFailed(
            "the numbers are right, but the devices communicate nothing: each may only"
            " use its own two rows"
        )


def _require_mean(got: Any, wanted: float) -> None:
    if np.isnan(got).any():
        raise CheckFailed(
            "masked_loss returned nan, which is 0 / 0. What does a device without real"
            " rows divide by?"
        )
    if not np.ptp(got) <= 1e-5 * wanted:
        raise CheckFailed(
            f"{_each(got)}, but all have to return the same number. What has to be"
            " added up before the division?"
        )
    if not abs(got[0] - wanted) <= 1e-5 * wanted:
        raise CheckFailed(
            f"masked_loss returned {got[0]:.6f}, but the mean over the real rows is"
            f" {wanted:.6f}. What is divided by what? Is it computed from these"
            " arguments, in float32?"
        )


def check_1_6(count_right: Callable[..., Any]) -> None:
    """How many rows a model gets right, for at most eight bytes of all-reduce."""
    require_function(count_right, "count_right")
    for seed, (rows, hits) in enumerate([(2000, 1915), (2000, 333), (400, 57)]):
        params = make_params(seed)
        x, y = make_digits(params, rows, hits=hits, seed=seed)
        args = (_stack(params), _split(x), _split(y))
        with trying(f"{rows} digits"):
            got = _one_each(count_right(*args), "count_right")
            if not np.all(got.astype(float) == hits):
                raise CheckFailed(
                    f"{_each(got)}, but the model gets {hits} right. What does one"
                    " device count, with the params it is given, and are the counts"
                    " added exactly?"
                )
    report = spmd.xray(count_right, *args)
    with next_thought("How many numbers does a device have to send about its rows?"):
        spmd.assert_collectives(
            report,
            at_least={"all-reduce": 1},
            at_most={"all-reduce": 2},
            at_most_bytes=8,
        )
    _require_own_rows(report, max_flops(params, rows=50, products=1), rows=50)


def _require_own_rows(report: XRay, at_most: int, rows: int) -> None:
    flops = report.flops_per_device
    if flops is None or flops > at_most:
        raise CheckFailed(
            "the numbers are right, but each device works on more rows than its own"
            f" {rows}: it computes {flops} FLOPs. How are the rows split over the"
            " devices?"
        )


def _one_each(returned: Any, name: str) -> Any:
    """What came back, which must be an array with a number for each device."""
    if getattr(returned, "shape", None) != (_DEVICES,):
        shape = getattr(returned, "shape", None)
        came = f"an array of shape {shape}" if shape is not None else short(returned)
        raise CheckFailed(
            f"{name} returned {came}, but an array with one number for each of the"
            f" {_DEVICES} devices is expected"
        )
    return np.asarray(returned)


def _each(got: Any) -> str:
    numbers = [f"{one:.7g}" for one in got.astype(float)]
    if len(set(numbers)) == 1:
        return f"each device returns {numbers[0]}"
    return f"the devices return {', '.join(numbers)}"


def _stack(tree: Any) -> Any:
    """The tree with a new leading axis: a copy for each device."""
    return jax.tree.map(lambda leaf: np.stack([leaf] * _DEVICES), tree)


def _split(rows: Any) -> Any:
    """The rows with a new leading axis: an equal part for each device."""
    return rows.reshape(_DEVICES, -1, *rows.shape[1:]).copy()
