"""Checks of chapter 5, the modes Auto, Explicit and Manual."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import spmd_helpers as spmd
from spmd_helpers import CheckFailed, NotUnderstood, SpecError

from ._setting import (
    Floats,
    compiled,
    make_mesh,
    next_thought,
    normal,
    on,
    require_function,
    require_spec,
    short,
    word,
)

_MODES = {"a": "manual", "b": "explicit", "c": "explicit", "d": "auto", "e": "manual"}


def check_5_1(turned: object, plus: object, columns: object, split: object) -> None:
    """The specs of four results on Explicit axes."""
    answers = {"turned": turned, "plus": plus, "columns": columns, "split": split}
    wrong = [
        f"{name}, which is {answer}"
        for name, answer in answers.items()
        if not _is_sharded_by(_results()[name], require_spec(answer, name))
    ]
    if wrong:
        raise CheckFailed(
            f"look again at {'; at '.join(wrong)}. Which dimension of the argument does"
            " each dimension of the result come from, and which axis is it sharded"
            " along?"
        )


def check_5_2(mlp: Callable[..., Any]) -> None:
    """A program for Auto axes made legal on Explicit ones, with one all-reduce."""
    require_function(mlp, "mlp")
    mesh = make_mesh(AxisType.Explicit, data=4, model=2)
    places = [on(mesh, "data"), on(mesh, None, "model"), on(mesh, "model")]
    for seed in (1, 2):
        x, w1, w2 = (
            normal(10 * seed + i, *shape)
            for i, shape in enumerate([(48, 40), (40, 96), (96, 40)])
        )
        args = jax.device_put([x, w1, w2], places)
        with jax.set_mesh(mesh):
            program = compiled(mlp, *args)
            result = program(*args)
        _require_array(result, "mlp")
        kind = jax.typeof(result)
        if str(kind) != "float32[48@data,40]":
            raise CheckFailed(
                f"the result is {kind}, but has to be float32[48@data,40]. What does"
                " your code state about the sharding and the dtype of its last"
                " product?"
            )
        with next_thought(
            "The program gives relu(x @ w1) @ w2 in float32: which step of yours"
            " differs?"
        ):
            wanted = np.maximum(x @ w1, 0) @ w2
            spmd.assert_close({"result": result}, {"result": wanted}, rtol=1e-4)
    report = spmd.xray(program)
    with next_thought(
        "Only the last product has partial sums: which one collective completes them,"
        " and which line causes any other?"
    ):
        spmd.assert_collectives(report, exactly={"all-reduce": 1})
        spmd.assert_collectives(report, over="model")


def check_5_3(body: Callable[..., Any]) -> None:
    """A product by hand whose partial sums are added by one reduce-scatter."""
    require_function(body, "body")
    mesh = make_mesh(data=4, model=2)
    places = on(mesh, "data", "model"), on(mesh, "model")
    specs = P("data", "model"), P("model", None)
    mapped = jax.jit(
        jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=P("data", "model"))
    )
    for seed, (m, k, n) in enumerate([(48, 40, 24), (16, 8, 32)]):
        x, w = normal(seed, m, k), normal(seed + 9, k, n)
        args = jax.device_put((x, w), places)
        program = mapped.lower(*args).compile()
        with next_thought(
            f"x is {x.shape} and w {w.shape}. On each device x @ w is a partial sum:"
            " which columns of the full sum does the device keep, and is everything"
            " float32?"
        ):
            result = {"result": program(*args)}
            spmd.assert_close(result, {"result": x @ w}, rtol=1e-4)
        report = spmd.xray(program)
        with next_thought("What has to be added up, and along which axis?"):
            spmd.assert_collectives(report, exactly={"reduce-scatter": 1})
            spmd.assert_collectives(report, over="model", at_most_bytes=m * n // 8 * 4)
        if "reduce_scatter" not in str(jax.make_jaxpr(mapped)(*args)):
            raise CheckFailed(
                "the full sum is communicated by an all-reduce, and each device keeps"
                " only its columns of it. Which collective sends a device only the"
                " columns that it needs?"
            )


def check_5_4(a: object, b: object, c: object, d: object, e: object) -> None:
    """The mode in which each of five things is seen."""
    answers = dict(zip("abcde", (a, b, c, d, e), strict=True))
    modes = ("auto", "explicit", "manual")
    wrong = []
    for name, answer in answers.items():
        text = answer.name if isinstance(answer, AxisType) else answer
        wrong += [name] * (word(text, name, modes) != _MODES[name])
    if wrong:
        raise CheckFailed(
            f"look again at {', '.join(wrong)}. In which mode does the type of an array"
            " have its sharding, in which the axes along which it varies, and in which"
            " neither?"
        )


def check_5_5(dropout: Callable[..., Any]) -> None:
    """Dropout by hand: a mask of its own for each block, and nothing is exchanged."""
    require_function(dropout, "dropout")
    mesh = make_mesh(data=4, model=2)
    by_both = P("data", "model")
    mapped = jax.jit(
        jax.shard_map(dropout, mesh=mesh, in_specs=(P(), by_both), out_specs=by_both)
    )
    keys = [jax.random.key(seed) for seed in (0, 1)]
    ones, some = np.ones((192, 96), np.float32), normal(5, 192, 96)
    ones_in_blocks, some_in_blocks = jax.device_put((ones, some), on(mesh, *by_both))
    program = mapped.lower(keys[0], ones_in_blocks).compile()
    masks = {}
    for seed, key in enumerate(keys):
        returned = program(key, ones_in_blocks)
        _require_array(returned, "dropout")
        result = np.asarray(returned)
        _require_half(result, seed)
        if not np.array_equal(result, np.asarray(program(key, ones_in_blocks))):
            raise CheckFailed(
                f"jax.random.key({seed}), used a second time, gave a different mask"
            )
        with next_thought(
            "Is each kept number doubled, in float32, and is every other number 0?"
        ):
            kept = {"result": program(key, some_in_blocks)}
            spmd.assert_close(kept, {"result": some * result})
        blocks = result.reshape(4, 48, 2, 48).swapaxes(1, 2)
        for place in np.ndindex(4, 2):
            masks[f"shard {place} with jax.random.key({seed})"] = blocks[place] - 1
    _require_own_masks(masks)
    with next_thought("Which numbers does a device need that it does not have?"):
        spmd.assert_collectives(spmd.xray(program), exactly={})


@functools.cache
def _results() -> dict[str, jax.Array]:
    """The results of exercise 5.1, computed on an Explicit mesh."""
    mesh = make_mesh(AxisType.Explicit, data=4, model=2)
    x = jax.device_put(normal(0, 48, 40), on(mesh, "data", "model"))
    v = jax.device_put(normal(1, 40), on(mesh))
    u = jax.device_put(normal(2, 24, 40), on(mesh, "model"))
    return {
        "turned": (2 * x).T,
        "plus": x + v,
        "columns": x.max(axis=0),
        "split": u.reshape(2, 12, 40),
    }


def _is_sharded_by(result: jax.Array, spec: P) -> bool:
    right = spmd.sharding(result)
    mesh = make_mesh(AxisType.Explicit, data=4, model=2)
    try:
        info = spmd.sharding(result.shape, spec, mesh=mesh)
    except (SpecError, NotUnderstood):
        return False
    return info.entries == right.entries and not info.unreduced


def _require_half(result: Floats, seed: int) -> None:
    """Of ones, half are kept as 2 and half are 0, everywhere alike."""
    values = np.unique(result)
    if not set(values.tolist()) <= {0.0, 2.0}:
        raise CheckFailed(
            f"for an array of ones, dropout returned the values {values[:4]}, but only"
            " 0 and 2 may occur: by which factor is a kept number scaled?"
        )
    kept = result == 2
    if not 0.45 < kept.mean() < 0.55:
        raise CheckFailed(
            f"with jax.random.key({seed}) {kept.mean():.0%} of the numbers are kept,"
            " but it has to be half"
        )
    for axis, lines in enumerate(("columns", "rows")):
        rates = kept.mean(axis=axis)
        if np.min(rates) < 0.2 or np.max(rates) > 0.8:
            raise CheckFailed(
                f"with jax.random.key({seed}) the numbers of some {lines} are kept or"
                " dropped together. Which shape does the mask have?"
            )
    rates = kept.reshape(4, 48, 2, 48).mean(axis=(1, 3))
    for place, rate in np.ndenumerate(rates):
        if not 0.4 < rate < 0.6:
            raise CheckFailed(
                f"with jax.random.key({seed}) shard {place} keeps {rate:.0%} of its"
                " numbers, but has to keep half"
            )


def _require_own_masks(masks: dict[str, Floats]) -> None:
    """No two masks are the same, and none is another one shifted or mirrored."""
    owner: dict[bytes, str] = {}
    for name, mask in masks.items():
        other = owner.setdefault(mask.tobytes(), name)
        if other != name:
            raise CheckFailed(
                f"{name} has the same mask as {other}; shards are numbered by (data,"
                " model). What differs between these two, and does it enter the key?"
            )
    if _likeness(np.stack([*masks.values()])) > 0.25:
        raise CheckFailed(
            "two shards have nearly the same mask, perhaps shifted, mirrored, or with"
            " 0 and 2 swapped. Is each mask drawn entirely with a key of its own?"
        )


def _likeness(masks: Floats) -> float:
    """The largest correlation of two masks of 1 and -1, over all shifts and mirrorings.

    1 is the same mask; 16 masks drawn anew, of 2304 numbers each, give about 0.15.
    """
    waves, best, own = np.fft.rfft2(masks), 0.0, np.arange(len(masks))
    for turns in range(8):
        turned = np.rot90(masks, turns, axes=(1, 2))
        turned = turned if turns < 4 else turned.swapaxes(1, 2)
        others = np.fft.rfft2(turned).conj()
        shifted = np.abs(np.fft.irfft2(waves[:, None] * others)) / masks[0].size
        if turns == 0:
            shifted[own, own, 0, 0] = 0  # each mask is itself
        best = max(best, float(shifted.max()))
    return best


def _require_array(result: object, name: str) -> None:
    if not isinstance(result, jax.Array):
        raise CheckFailed(
            f"{name} returned {short(result)}, but has to return an array"
        )
