"""Checks of chapter 2, data parallelism with jit and a sharding."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding

import spmd_helpers as spmd
from spmd_helpers import CheckFailed, XRay

from ._digits import Params, loss_and_grads, make_digits, make_params, max_flops, size
from ._setting import (
    abstract,
    device_count,
    dimensions,
    make_mesh,
    next_thought,
    normal,
    number,
    on,
    require_function,
    require_own_buffers,
    short,
    trying,
    unpack,
)

_MANY = (4160, 2901)  # rows and hits: half precision has no odd number that large


def check_2_1(shard_shape: object, bytes_per_device: object, copies: object) -> None:
    """Columns sharded along `data`: the shape on a device, its bytes, its copies."""
    mesh = _mesh()
    info = spmd.sharding((48, 40), on(mesh, None, "data"))
    if dimensions(shard_shape, "shard_shape") != info.shard_shape:
        raise CheckFailed(
            f"shard_shape is {shard_shape}. Which dimension of the array does each"
            f" entry of the spec belong to, and which is divided by {mesh.size}?"
        )
    if number(bytes_per_device, "bytes_per_device") != info.bytes_per_device:
        raise CheckFailed(
            f"bytes_per_device is {bytes_per_device}. How many numbers does a device"
            " have, and how many bytes does a float32 take?"
        )
    if number(copies, "copies") != info.replicas:
        raise CheckFailed(
            f"copies is {copies}. How many devices have the same columns as device 0?"
        )


def check_2_2(
    rows_talk: object, mean_talks: object, each_talks: object, grad_talks: object
) -> None:
    """Which of four functions of a sharded batch need an all-reduce."""
    truth = _all_reduces()
    names = ("rows_talk", "mean_talks", "each_talks", "grad_talks")
    answers = (rows_talk, mean_talks, each_talks, grad_talks)
    misjudged = []
    for name, answer, runs in zip(names, answers, truth, strict=True):
        if isinstance(answer, jax.Array | np.ndarray) and answer.shape == ():
            answer = answer.item()
        if not isinstance(answer, bool | np.bool_):
            raise CheckFailed(f"{name} is {short(answer)}, but has to be True or False")
        misjudged += [name] * (bool(answer) != runs)
    if misjudged:
        raise CheckFailed(
            f"look again at {', '.join(misjudged)}: does one number of the result"
            " depend on every row of the batch?"
        )


@functools.cache
def _all_reduces() -> tuple[bool, ...]:
    mesh = _mesh()
    w, x = abstract((784, 6), on(mesh)), abstract((160, 784), on(mesh, "data"))
    programs: tuple[Callable[..., Any], ...] = (
        lambda w, x: jax.nn.relu(x @ w),
        lambda w, x: jax.nn.relu(x @ w).mean(),
        lambda w, x: (x @ w).max(axis=1),
        jax.grad(lambda w, x: (x @ w).sum()),
    )
    reports = [spmd.xray(jax.jit(program), w, x) for program in programs]
    return tuple(
        any(c.kind == "all-reduce" for c in report.collectives) for report in reports
    )


def check_2_3(place: Callable[..., Any]) -> None:
    """A dict of images and labels, both sharded along `data`, and nothing changed."""
    require_function(place, "place")
    mesh = _mesh()
    for rows in (24, 160):
        labels = np.random.default_rng(rows).integers(10, size=rows, dtype=np.int32)
        batch = {"image": normal(rows, rows, 28, 28), "label": labels}
        with trying(f"a batch of {rows} rows"):
            placed = place({name: leaf.copy() for name, leaf in batch.items()})
            if not isinstance(placed, Mapping):
                raise CheckFailed(
                    f"place returned {short(placed)}, but a dict with image and label"
                    " is expected"
                )
            for name, leaf in placed.items():
                require_own_buffers(**{str(name): leaf})
            spmd.assert_close(dict(placed), batch)
            for name, leaf in batch.items():
                _require_rows(name, placed[name], leaf, mesh)


def _require_rows(name: str, placed: Any, rows: Any, mesh: Mesh) -> None:
    """The dtype of these rows, and each of them on one device of the mesh."""
    _require_dtype(name, placed, rows.dtype)
    sharding = getattr(placed, "sharding", None)
    if sharding is not None and len(sharding.device_set) != mesh.size:
        raise CheckFailed(
            f"{name} is on {len(sharding.device_set)} of the {mesh.size} devices of the"
            " mesh"
        )
    if isinstance(sharding, NamedSharding) and "data" not in sharding.mesh.shape:
        raise CheckFailed(
            f"{name} is on a mesh with the axes {sharding.mesh.axis_names}, and has to"
            " be sharded along `data`"
        )
    spmd.assert_sharding({name: placed}, jax.P("data"), mesh)


def _require_dtype(name: str, placed: Any, dtype: Any) -> None:
    if getattr(placed, "dtype", dtype) != dtype:
        raise CheckFailed(f"{name} was {dtype}, but is {placed.dtype} now")


def check_2_4(counting_step: Callable[..., Any]) -> None:
    """A step from pmap, written for jit: new parameters, mean loss, hits."""
    require_function(counting_step, "counting_step")
    mesh = _mesh()
    for seed, (rows, hits) in enumerate([(240, 157), (240, 31), _MANY, (80, 55)]):
        params = make_params(seed)
        x, y = make_digits(params, rows, hits=hits, seed=seed)
        with trying(f"a batch of {rows} rows"):
            returned = counting_step(*_place(params, x, y, mesh))
            new, loss, counted = unpack(returned, "params", "loss", "hits")
            if number(counted, "hits") != hits:
                raise CheckFailed(
                    f"hits is {counted}, but the parameters given to the step get"
                    f" {hits} right"
                )
            _require_step(new, loss, params, x, y)
            named = {"params": new, "loss": loss, "hits": counted}
            spmd.assert_sharding(named, jax.P(), mesh)
    report = spmd.xray(counting_step, *_place(params, x, y, mesh))
    _require_budget(report, params, extra=8, rows=80 // mesh.size)


def check_2_5(body: Callable[..., Any]) -> None:
    """The body of a step in shard_map that does what one device does."""
    require_function(body, "body")
    mesh = _mesh()
    mapped = jax.jit(
        jax.shard_map(
            body,
            mesh=mesh,
            in_specs=(jax.P(), jax.P("data"), jax.P("data")),
            out_specs=jax.P(),
        )
    )
    for seed, rows in enumerate((160, 160, 80)):
        params = make_params(seed)
        x, y = make_digits(params, rows, hits=rows // 2, seed=seed)
        with trying(f"a batch of {rows} rows"):
            returned = mapped(*_place(params, x, y, mesh))
            new, loss = unpack(returned, "params", "loss")
            _require_step(new, loss, params, x, y)
    report = spmd.xray(mapped, *_place(params, x, y, mesh))
    _require_budget(report, params, extra=4, rows=80 // mesh.size)


def _require_step(new: Any, loss: Any, params: Params, x: Any, y: Any) -> None:
    """The new parameters and the loss of one device: the rate is 1."""
    wanted, grads = loss_and_grads(params, x, y)
    spmd.assert_close({"loss": loss}, {"loss": wanted}, rtol=1e-4)
    if jax.tree.map(np.shape, new) != jax.tree.map(np.shape, params):
        spmd.assert_close({"params": new}, {"params": params}, rtol=1e-4)
    moved = jax.tree.map(lambda before, after: before - np.asarray(after), params, new)
    try:
        spmd.assert_close(moved, grads, rtol=1e-4)
    except CheckFailed as error:
        raise CheckFailed(
            "not what one device computes. The change of each parameter in one"
            f" step:\n{error}"
        ) from None


def _require_budget(report: XRay, params: Params, extra: int, rows: int) -> None:
    gradients = 4 * size(params)
    with next_thought(
        "What has to be communicated: rows, activations or gradients? How often?"
    ):
        spmd.assert_collectives(
            report,
            at_most={"all-reduce": 9},
            over="data",
            at_most_bytes=gradients + extra,
            at_least_bytes=gradients,
        )
    flops = report.flops_per_device
    if flops is None or flops > max_flops(params, rows, products=3):
        raise CheckFailed(
            "the numbers are right, but each device works on more rows than its own"
            f" {rows}: it computes {flops} FLOPs"
        )


def check_2_6(place_test: Callable[..., Any], count: Callable[..., Any]) -> None:
    """Pictures on one device each, and their hits for one all-reduce of 4 bytes."""
    require_function(place_test, "place_test")
    require_function(count, "count")
    mesh = _mesh()
    for seed, (rows, hits) in enumerate([(2000, 1915), (2000, 333), _MANY, (400, 57)]):
        params = make_params(seed)
        x, y = make_digits(params, rows, hits=hits, seed=seed)
        with trying(f"{rows} digits"):
            placed = _placed_test(place_test, x, y, mesh)
            model = _put(params, on(placed[0].sharding.mesh))
            _require_hits(count(model, *placed), hits, mesh)
    placed = _placed_test(place_test, x, y, mesh)
    report = spmd.xray(count, _put(params, on(placed[0].sharding.mesh)), *placed)
    with next_thought("How many numbers does a device have to send about its rows?"):
        spmd.assert_collectives(
            report, exactly={"all-reduce": 1}, at_most_bytes=4, over="data"
        )


def _placed_test(
    place_test: Callable[..., Any], x: Any, y: Any, mesh: Mesh
) -> tuple[Any, Any]:
    images, labels = unpack(place_test(x.copy(), y.copy()), "images", "labels")
    require_own_buffers(images=images)
    require_own_buffers(labels=labels)
    spmd.assert_close({"images": images, "labels": labels}, {"images": x, "labels": y})
    _require_rows("images", images, x, mesh)
    _require_rows("labels", labels, y, mesh)
    return images, labels


def _require_hits(counted: Any, hits: int, mesh: Mesh) -> None:
    if counted is None or np.shape(counted) != ():
        came = "None" if counted is None else f"an array of shape {np.shape(counted)}"
        raise CheckFailed(f"count returned {came}, but one number is expected")
    if number(counted, "count") != hits:
        raise CheckFailed(
            f"count returned {counted}, but the model gets {hits} right. Does it count"
            " all rows, with the params it is given, in float32?"
        )
    spmd.assert_sharding({"hits": counted}, jax.P(), mesh)


def _mesh() -> Mesh:
    """The mesh of the chapter, of as many devices as the chapter takes."""
    return make_mesh(data=max(n for n in (1, 2, 4, 8) if n <= device_count()))


def _place(params: Params, x: Any, y: Any, mesh: Mesh) -> tuple[Any, ...]:
    """New arrays each time: an answer may donate what it is given."""
    return _put(params, on(mesh)), *_put((x, y), on(mesh, "data"))


def _put(tree: Any, sharding: jax.sharding.NamedSharding) -> Any:
    return jax.device_put(jax.tree.map(np.array, tree), sharding)
