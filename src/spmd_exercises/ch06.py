"""Checks of chapter 6, the misplaced weight."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

import spmd_helpers as spmd
from spmd_helpers import CheckFailed

from ._setting import (
    abstract,
    make_mesh,
    next_thought,
    normal,
    number,
    on,
    redundancy,
    require_spec,
)


def check_6_1(gathered_bytes: object, flops: object) -> None:
    """A weight sharded like the batch: what is gathered, and what is computed."""
    mesh = make_mesh(data=4, model=2)
    x, w = (abstract(shape, on(mesh, "data")) for shape in ((96, 160), (160, 64)))
    report = spmd.xray(jax.jit(jnp.matmul), x, w)
    if number(gathered_bytes, "gathered_bytes") != report.collectives[0].result_bytes:
        raise CheckFailed(
            f"gathered_bytes is {gathered_bytes}. After an all-gather along `data`,"
            " how much of w is on a device?"
        )
    if number(flops, "flops") != report.flops_per_device:
        raise CheckFailed(
            f"flops is {flops}. Which rows of x does a device have, which columns of w"
            " after the all-gather, and how many FLOPs is one multiply-add?"
        )


def check_6_2(w_spec: object) -> None:
    """A weight that is an eighth on each device, and no work is repeated."""
    spec, mesh = require_spec(w_spec, "w_spec"), make_mesh(data=4, model=2)
    _require_an_eighth((40, 24), spec, mesh, "w")
    x, w = abstract((48, 40), on(mesh, "data")), abstract((40, 24), on(mesh, *spec))
    report = spmd.xray(jax.jit(jnp.matmul), x, w)
    if redundancy(report) > 1.01:
        raise CheckFailed(
            f"{spec}: the average product is computed {redundancy(report):.2f} times."
            " Which axis shards neither the rows of x nor the columns of w?"
        )
    with next_thought("Which mesh axis do the rows of x use, and which axis is left?"):
        spmd.assert_collectives(report, exactly={"all-gather": 1}, at_most_bytes=2000)


def check_6_3(a: object, b: object, c: object, d: object) -> None:
    """Four placements of a weight: wrong, wasteful or fine."""
    mesh, product = make_mesh(data=4, model=2), jax.jit(jnp.matmul)
    rows, columns = normal(3, 48, 40), normal(4, 40, 24)
    x = jax.device_put(rows, on(mesh, "data"))
    specs = (P(), P("data", "model"), P("data", None), P("model", None))
    misjudged = []
    for name, spec, answer in zip("abcd", specs, (a, b, c, d), strict=True):
        word = answer.strip().lower() if isinstance(answer, str) else answer
        if word not in ("wrong", "wasteful", "fine") or not isinstance(word, str):
            raise CheckFailed(
                f'{name} is {answer!r}, which is not one of "wrong", "wasteful" and'
                ' "fine"'
            )
        w = jax.device_put(columns, on(mesh, *spec))
        right = np.allclose(product(x, w), rows @ columns, atol=1e-4)
        repeated = redundancy(spmd.xray(product, x, w)) > 1.01
        truth = "wrong" if not right else "wasteful" if repeated else "fine"
        misjudged += [name] * (word != truth)
    if misjudged:
        raise CheckFailed(
            f"look again at {', '.join(misjudged)}. Can a sharding change a value under"
            " jit? Is there a mesh axis that shards neither operand's kept dimension?"
        )


def check_6_4(body: Callable[..., Any]) -> None:
    """FSDP by hand: one all-gather of the weight along `data`, then the layer."""
    mesh = make_mesh(data=4, model=2)
    specs = (P("data"), P("data", "model"))
    mapped = jax.jit(
        jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=P("data", "model"))
    )
    for seed, (m, k, n) in enumerate([(48, 40, 24), (16, 8, 32)]):
        rows, columns = normal(seed, m, k), normal(seed + 9, k, n)
        places = tuple(on(mesh, *spec) for spec in specs)
        args = jax.device_put((rows, columns), places)
        wanted = np.maximum(rows @ columns, 0)
        with next_thought(
            f"x is {rows.shape} and w {columns.shape}. Does body give relu(x @ w) with"
            " all rows of w, in float32?"
        ):
            spmd.assert_close({"result": mapped(*args)}, {"result": wanted}, rtol=1e-4)
        report = spmd.xray(mapped, *args)
        with next_thought("Which rows of w does a device lack, and what else is sent?"):
            spmd.assert_collectives(report, exactly={"all-gather": 1}, over="data")
        if "all-reduce" in str(report.collectives[0].lowered_as):
            raise CheckFailed(
                "w is put together by an all-reduce, a sum with zeros, which"
                " communicates more bytes than the shards have. Which collective"
                " concatenates shards?"
            )


def check_6_5(step_specs: object) -> None:
    """Specs for two weights: an eighth each, no repeated work, few collectives."""
    if not isinstance(step_specs, Mapping) or {*step_specs} != {"w1", "w2"}:
        raise CheckFailed(
            f"step_specs is {step_specs!r}, not a dict with a spec for w1 and for w2"
        )
    mesh, params = make_mesh(data=4, model=2), {}
    for name, shape in {"w1": (40, 96), "w2": (96, 40)}.items():
        spec = require_spec(step_specs[name], name)
        _require_an_eighth(shape, spec, mesh, name)
        params[name] = abstract(shape, on(mesh, *spec))
    batch = abstract((48, 40), on(mesh, "data"))
    report = spmd.xray(_step, params, batch, batch)
    kinds = [c.kind for c in report.collectives]
    if redundancy(report) > 1.01:
        raise CheckFailed(
            f"the average product is computed {redundancy(report):.2f} times. Which"
            " axis shards neither of its operands?"
        )
    if "all-to-all" in kinds or len(kinds) > 6:
        raise CheckFailed(
            f"the step runs {kinds}. Along which axis are the columns of the hidden"
            " layer sharded, and therefore the rows of w2 needed?"
        )


def _step(params: dict[str, Any], x: Any, y: Any) -> tuple[Any, Any]:
    def loss_fn(p: dict[str, Any]) -> Any:
        return ((jax.nn.relu(x @ p["w1"]) @ p["w2"] - y) ** 2).mean()

    loss, grads = jax.value_and_grad(loss_fn)(params)
    return jax.tree.map(lambda p, g: p - 0.05 * g, params, grads), loss


def _require_an_eighth(
    shape: tuple[int, ...], spec: P, mesh: jax.sharding.Mesh, name: str
) -> None:
    info = spmd.sharding(shape, spec, mesh=mesh)
    if info.bytes_per_device * 8 > info.total_bytes:
        raise CheckFailed(
            f"{name} sharded as {spec}: each device has {info.bytes_per_device} of"
            f" {info.total_bytes} bytes ({info.replicas} replicas), but may have only"
            " an eighth. Which mesh axis does the spec not use?"
        )
