"""Checks of chapter 12, attention."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import spmd_helpers as spmd
from spmd_helpers import CheckFailed, XRay

from ._setting import (
    Floats,
    abstract,
    kind_of,
    make_mesh,
    next_thought,
    normal,
    on,
    quick,
    redundancy,
    require_function,
    require_spec,
    word,
)

Host = dict[str, Floats]

_BATCH = (8, 24, 48)  # sequences, tokens, features
_HEAD = 16  # features of a head
_MATRICES = 4 * 48 * (192 + 64)  # bytes of wqkv and wo
_SUMS = 40_000  # bytes of sums along model that the budget allows


def check_12_1(split: Callable[..., Any], merge: Callable[..., Any]) -> None:
    """Features to heads and back, with nothing exchanged."""
    mesh = make_mesh(data=4, model=2)
    for size, heads in [((8, 6, 24), 4), ((4, 5, 60), 6), ((4, 8, 16), 2)]:
        rows = normal(heads, *size)
        by_heads = np.stack(np.split(rows, heads, axis=-1), axis=1)
        x = jax.device_put(rows, on(mesh, "data", None, "model"))
        y = jax.device_put(by_heads, on(mesh, "data", "model"))
        to_heads = functools.partial(_split, split, heads)
        with next_thought(
            f"x is {list(size)}, heads {heads}: which dimensions can a reshape not"
            " swap? Do the numbers stay as they are?"
        ):
            got = _exchanging_nothing("split", to_heads, x, by_heads)
            spmd.assert_sharding({"split": got}, P("data", "model"), mesh)
        with next_thought(
            f"y is {list(by_heads.shape)}: which dimensions are adjacent, and what can"
            " a reshape merge without communication?"
        ):
            _exchanging_nothing("merge", merge, y, rows)


def check_12_2(a: object, b: object, c: object, d: object, e: object) -> None:
    """Five reshapes of a sharded array: free, or gathered."""
    mesh, misjudged = make_mesh(model=4), []
    table: dict[str, tuple[tuple[int, ...], P, tuple[int, ...]]] = {
        "a": ((3, 10, 96), P(None, None, "model"), (3, 10, 12, 8)),
        "b": ((3, 10, 60), P(None, None, "model"), (3, 10, 10, 6)),
        "c": ((3, 10, 8, 12), P(None, None, None, "model"), (3, 10, 96)),
        "d": ((8, 10, 24), P("model"), (80, 24)),
        "e": ((3, 10, 96), P(None, None, "model"), (3, 8, 10, 12)),
    }
    for name, answer in zip(table, (a, b, c, d, e), strict=True):
        text = word(answer, name, ("free", "gather"))
        size, spec, into = table[name]
        x = abstract(size, on(mesh, *spec))
        report = spmd.xray(functools.partial(jnp.reshape, shape=into), x)
        misjudged += [name] * (text != ("gather" if report.collectives else "free"))
    if misjudged:
        raise CheckFailed(
            f"look again at {', '.join(misjudged)}. Is the sharded dimension split,"
            " merged or left alone, and is it the first of its group?"
        )


def check_12_3(
    wq_spec: object, wk_spec: object, wv_spec: object, wo_spec: object
) -> None:
    """Grouped-query attention with one all-reduce and no weight replicated twice."""
    mesh, params = make_mesh(data=2, kv=2, group=2), {}
    sizes = {"wq": (48, 192), "wk": (48, 32), "wv": (48, 32), "wo": (192, 48)}
    specs = (wq_spec, wk_spec, wv_spec, wo_spec)
    for (name, size), given in zip(sizes.items(), specs, strict=True):
        spec = require_spec(given, f"{name}_spec")
        params[name] = abstract(size, on(mesh, *spec))
        info, parts = spmd.sharding(params[name]), 2 if name in ("wk", "wv") else 4
        if info.bytes_per_device * parts > info.total_bytes:
            share = {2: "a half", 4: "a quarter"}[parts]
            raise CheckFailed(
                f"{name}_spec is {spec}: each device has {info.bytes_per_device:,} of"
                f" {info.total_bytes:,} bytes of {name}, but may have at most {share}."
                " Along which axes can its heads be sharded?"
            )
    x = abstract(_BATCH, on(mesh, "data"))
    with next_thought(
        "Which query heads use the first key-value head, and on which devices are"
        " they? Which rows of wo multiply them?"
    ):
        spmd.assert_collectives(_gqa, params, x, exactly={"all-reduce": 1})


def check_12_4(rope_pairs: Callable[..., Any], to_pairs: Callable[..., Any]) -> None:
    """RoPE on neighbors, and the weights for it; a sharded head_dim stays in place."""
    mesh = make_mesh(data=4, model=2)
    for seed, (heads, width) in enumerate([(5, 12), (3, 8)]):
        features = normal(seed, 8, 6, heads, width)
        x = jax.device_put(features, on(mesh, "data", None, None, "model"))
        turned = _turned_pairs(features.astype(np.float64))
        with next_thought(
            f"x is {list(x.shape)}, sharded along head_dim: which two features are"
            " rotated together, in which direction, and which device has them? Is it"
            " float32?"
        ):
            got = _exchanging_nothing("rope_pairs", rope_pairs, x, turned, rtol=1e-4)
            place = P("data", None, None, "model")
            spmd.assert_sharding({"rope_pairs": got}, place, mesh)
        _require_same_scores(to_pairs, heads, width)


def check_12_5(block_softmax: Callable[..., Any]) -> None:
    """A softmax over sharded rows with two small all-reduces, and its gradient."""
    mesh = make_mesh(model=4)
    spec = P(None, "model")
    mapped = jax.jit(
        jax.shard_map(block_softmax, mesh=mesh, in_specs=spec, out_specs=spec)
    )

    @functools.partial(jax.grad, has_aux=True)
    def graded(x: jax.Array, pull: jax.Array) -> tuple[jax.Array, jax.Array]:
        y = mapped(x)
        return (pull * y).sum(), y

    program = jax.jit(graded)
    for size in [(6, 24), (5, 40)]:
        apart = np.float32(3000) * (np.arange(size[0])[:, None] - 2)
        cases: list[tuple[int, Any]]
        cases = [(1, 0), (3, 1500), (2000, 0), (3, -1500), (3, apart)]
        for seed, (scale, shift) in enumerate(cases):
            x, pull = scale * normal(seed, *size) + shift, normal(seed + 9, *size)
            top = np.max(x, axis=1)
            x[:, 0], x[:, -1] = top + 0.3, top - 0.2  # two devices
            gradient, got = program(x, pull)
            softmax, slope = _softmax(x.astype(np.float64), pull)
            with next_thought(
                f"x is {list(size)}, with scores up to {np.abs(x).max():.0f}. Which"
                " part of a row does a device have, and what does it need from the"
                " others? Does the gradient pass through all of it, in float32?"
            ):
                spmd.assert_close({"softmax": got}, {"softmax": softmax}, rtol=1e-4)
                spmd.assert_close({"gradient": gradient}, {"gradient": slope}, 1e-4)
        report = spmd.xray(mapped, abstract(size, on(mesh, *spec)))
        with next_thought(
            "Which two numbers of a row does each device need from the others?"
        ):
            spmd.assert_collectives(
                report, exactly={"all-reduce": 2}, at_most_bytes=2 * size[0] * 4
            )


def check_12_6(make: Callable[..., Any]) -> None:
    """A block within a budget of bytes, with the old values and gradients."""
    hosts = [_host(0), _host(1)]
    params, f = _params_and_f(make, hosts[0])
    mesh = _require_placed(params)
    batch = [jax.device_put(normal(seed, *_BATCH), on(mesh, "data")) for seed in (5, 6)]
    places = jax.tree.map(lambda a: a.sharding, (params, batch[0]))
    with jax.set_mesh(mesh):
        program = jax.jit(_gradients(f), out_shardings=(places, None))
        compiled = program.lower(params, batch[0]).compile(quick())
        _require_budget(spmd.xray(compiled, params, batch[0]))
        for host, x in zip(hosts, batch, strict=True):
            own, _ = _params_and_f(make, host)
            (grads, x_grad), y = compiled(own, x)
            (wanted, wanted_x), wanted_y = _reference()(host, np.asarray(x))
            with next_thought(
                "Which columns of wqkv belong to a head of q, of k, of v, and is"
                " everything float32?"
            ):
                spmd.assert_close({"f": y}, {"f": wanted_y}, rtol=1e-4)
            with next_thought(
                "The gradient with respect to x differs from that of wasteful: does it"
                " pass through q, k and v?"
            ):
                spmd.assert_close({"x": x_grad}, {"x": wanted_x}, rtol=1e-4)
            _require_gradients(make, host, own, grads, wanted)


def check_12_7(rope_zigzag: Callable[..., Any]) -> None:
    """RoPE by the true positions of tokens in zigzag order, with nothing exchanged."""
    require_function(rope_zigzag, "rope_zigzag")
    spec = P(None, "model")
    for n, size in [(4, (2, 24, 3, 8)), (2, (1, 20, 2, 16)), (8, (3, 16, 1, 6))]:
        mesh = make_mesh(model=n)
        mapped = jax.shard_map(rope_zigzag, mesh=mesh, in_specs=spec, out_specs=spec)
        rows, pull = normal(n, *size), normal(n + 9, *size)
        order = _zigzag(size[1], n)
        place = on(mesh, *spec)
        given = jax.device_put((rows[:, order], pull[:, order]), (place, place))
        program = jax.jit(_with_gradients(mapped, 1))
        got, (slope,) = program(*given)
        wanted, (right,) = _with_gradients(_rope, 1)(rows, pull)
        with next_thought(
            f"x is {list(size)} on {n} devices. Which two pieces of the sequence does a"
            " device have, and at which position does each begin?"
        ):
            spmd.assert_close({"rope_zigzag": got}, {"rope_zigzag": wanted[:, order]})
            spmd.assert_close({"gradient": slope}, {"gradient": right[:, order]}, 1e-4)
        with next_thought("What does a device need to know to compute its positions?"):
            spmd.assert_collectives(
                spmd.xray(mapped, abstract(size, place)), exactly={}
            )


def check_12_8(context_attend: Callable[..., Any]) -> None:
    """Causal attention over a sharded sequence, within a budget of bytes."""
    require_function(context_attend, "context_attend")
    spec = P(None, "model")
    cases = [(4, 32, 6, 2, 8), (2, 12, 4, 4, 16), (8, 48, 3, 1, 4)]
    for n, length, heads, few, width in cases:
        mesh = make_mesh(model=n)
        mapped = jax.shard_map(context_attend, mesh=mesh, in_specs=spec, out_specs=spec)
        sizes = [(2, length, h, width) for h in (heads, few, few, heads)]
        host = [normal(n + i, *size) for i, size in enumerate(sizes)]
        given = jax.device_put(host, on(mesh, *spec))
        forward = jax.jit(mapped).lower(*given[:3]).compile()
        both = jax.jit(_with_gradients(mapped, 3)).lower(*given).compile()
        wanted, slopes = jax.jit(_with_gradients(_causal, 3))(*host)
        got, gradients = both(*given)
        where = f"{length} tokens on {n} devices, {heads} heads, {few} of keys"
        with next_thought(
            f"{where}: which keys may a query of the second device use, and with which"
            " head? Does every gradient pass through, in float32?"
        ):
            spmd.assert_close({"result": got}, {"result": wanted}, rtol=1e-4)
            for name, of, right in zip("qkv", gradients, slopes, strict=True):
                spmd.assert_close(
                    {f"gradient of {name}": of}, {f"gradient of {name}": right}, 1e-4
                )
        budget = 2 * (n - 1) * 2 * (length // n) * few * width * 4
        for name, program, most in [
            ("forward", forward, budget),
            ("forward and backward", both, 2 * budget),
        ]:
            _require_sent(program, most, f"{where}: {name}")


def _require_sent(program: jax.stages.Compiled, most: int, name: str) -> None:
    """The bytes that a device sends in all are within a budget."""
    collectives = spmd.xray(program).collectives
    sent = sum(
        c.wire_bytes if c.total_wire_bytes is None else c.total_wire_bytes
        for c in collectives
    )
    if sent > most:
        shown = ", ".join(f"{c.kind} of {c.result_bytes:,} bytes" for c in collectives)
        raise CheckFailed(
            f"{name} sends {sent:,} bytes per device, and at most {most:,} are allowed:"
            f" {shown}. How many heads do keys and values have when they are sent, and"
            " who needs what?"
        )


def _zigzag(length: int, n: int) -> list[int]:
    """The positions of the tokens in zigzag order."""
    pieces = np.arange(length).reshape(2 * n, -1)
    return [int(i) for d in range(n) for j in (d, 2 * n - 1 - d) for i in pieces[j]]


def _with_gradients(f: Callable[..., Any], count: int) -> Callable[..., Any]:
    """The result for the first `count` arguments, and the gradients along the last."""

    def pulled(*args: Any) -> tuple[Any, Any]:
        result, back = jax.vjp(f, *args[:count])
        return result, back(jnp.asarray(args[count]))

    return pulled


def _causal(q: Any, k: Any, v: Any) -> Any:
    return jax.nn.dot_product_attention(q, k, v, is_causal=True)


def _split(split: Callable[..., Any], heads: int, x: Any) -> Any:
    return split(x, heads)


def _exchanging_nothing(
    name: str, f: Callable[..., Any], x: jax.Array, wanted: Any, rtol: float = 1e-5
) -> Any:
    """The result of an answer on `x`, right and compiled without a collective."""
    compiled = jax.jit(f).lower(x).compile()
    got = compiled(x)
    if np.shape(got) != wanted.shape:
        words = "None" if got is None else f"the shape {list(np.shape(got))}"
        raise CheckFailed(
            f"{name} returns {words}, but has to return the shape {list(wanted.shape)}"
        )
    spmd.assert_close({name: got}, {name: wanted}, rtol=rtol)
    spmd.assert_collectives(compiled, x, exactly={})
    return got


def _turned_pairs(x: Any) -> Any:
    """Each pair of neighbors as a complex number, turned by its angle."""
    pairs = x[..., ::2] + 1j * x[..., 1::2]
    pairs = pairs * np.exp(1j * np.asarray(_angles(x), np.float64))
    return np.stack([pairs.real, pairs.imag], axis=-1).reshape(x.shape)


def _require_same_scores(to_pairs: Callable[..., Any], heads: int, width: int) -> None:
    """The scores of neighbors, with the new weights, are those of the halves."""
    tokens = normal(heads, 2, 4, 10)
    weights = [normal(seed, 10, heads * width) for seed in (1, 2)]
    new = [to_pairs(jnp.asarray(w), heads) for w in weights]
    for w in new:
        if np.shape(w) != weights[0].shape:
            words = "None" if w is None else f"the shape {list(np.shape(w))}"
            raise CheckFailed(
                f"to_pairs returns {words} for a weight of shape"
                f" {list(weights[0].shape)}, but the shape may not change"
            )

    def scores(turn: Callable[..., Any], columns: list[Any]) -> Any:
        q, k = (
            turn((tokens @ np.asarray(w)).reshape(2, 4, heads, width)) for w in columns
        )
        return np.einsum("bshd,bthd->bhst", q, k)

    wanted = scores(lambda x: np.asarray(_rope(x)), weights)
    with next_thought(
        f"These are the scores of {heads} heads of {width} features with the weights of"
        " to_pairs. Where in its head are the two columns of a pair before and after?"
    ):
        spmd.assert_close(
            {"scores": scores(_turned_pairs, new)}, {"scores": wanted}, rtol=1e-4
        )
    for w, old in zip(new, weights, strict=True):
        if sorted(np.asarray(w).T.tolist()) != sorted(old.T.tolist()):
            raise CheckFailed(
                "the scores are right, and the columns that to_pairs returns are not"
                " those of the weight. Is anything but their order to change?"
            )


def _softmax(x: Any, pull: Any) -> tuple[Any, Any]:
    """The softmax of each row, and the gradient of its product with `pull`."""
    parts = np.exp(x - x.max(axis=-1, keepdims=True))
    y = parts / parts.sum(axis=-1, keepdims=True)
    return y, y * (pull - (pull * y).sum(axis=-1, keepdims=True))


def _host(seed: int) -> Host:
    sizes = {"g": (48,), "wqkv": (48, 192), "wo": (64, 48)}
    return {
        name: (normal(seed + 3, *size) / 3).astype(np.float32)
        for name, size in sizes.items()
    }


def _params_and_f(
    make: Callable[..., Any], host: Host
) -> tuple[Any, Callable[..., Any]]:
    """What make returns for a copy of `host`: params and f."""
    result = make({name: array.copy() for name, array in host.items()})
    if not isinstance(result, tuple | list) or len(result) != 2:
        raise CheckFailed(
            f"make returned {kind_of(result)}, but has to return (params, f)"
        )
    params, f = result
    if not callable(f):
        raise CheckFailed(
            f"f, the second result of make, is {kind_of(f)}, but has to be a function"
        )
    return params, f


def _require_placed(params: Any) -> Mesh:
    """The mesh of the parameters, an eighth of the matrices on each device.

    The mesh may have Explicit axes.
    """
    meshes = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        name = "params" + jax.tree_util.keystr(path)
        sharding = getattr(leaf, "sharding", None)
        if not isinstance(leaf, jax.Array) or not isinstance(sharding, NamedSharding):
            raise CheckFailed(
                f"{name} is {kind_of(leaf)} that is not on the mesh, but device_put"
                " has to place every array of params there"
            )
        if dict(sharding.mesh.shape) != {"data": 4, "model": 2}:
            raise CheckFailed(f"{name} is on a mesh {dict(sharding.mesh.shape)}")
        meshes.append(sharding.mesh)
    if not meshes:
        raise CheckFailed("params has no arrays: what would be trained?")
    if not isinstance(meshes[0], Mesh) or len(set(meshes)) > 1:
        raise CheckFailed("the arrays of params are on different meshes")
    stored = spmd.memory(params).largest_device_bytes
    if stored > _MATRICES // 8 + 4 * 48:
        raise CheckFailed(
            f"each device has {stored:,} bytes of params, but an eighth of the"
            f" matrices is {_MATRICES // 8:,}. Which matrix is not sharded along both"
            " axes?"
        )
    return meshes[0]


def _require_budget(report: XRay) -> None:
    """All-gathers along data only; few bytes of sums along model; no work repeated."""
    used = {"all-gather": 0, "sums": 0}
    for one in report.collectives:
        if one.kind == "collective-permute" and report.lowered_for == "tpu":
            continue
        over_model = one.axes != ("data",)
        is_sum = one.kind in ("all-reduce", "reduce-scatter")
        if not is_sum and (one.kind != "all-gather" or over_model):
            raise CheckFailed(
                f"{_described(one)}. Is it an activation or a weight? Which line"
                " requires a different sharding than the value has, or splits a"
                " sharded dimension?"
            )
        if not is_sum or over_model:
            kind = "sums" if is_sum else "all-gather"
            used[kind] += (one.count or 1) * one.result_bytes
    if used["all-gather"] > _MATRICES:
        raise CheckFailed(
            f"all-gathers along data give a device {used['all-gather']:,} bytes, and"
            f" its half of each matrix, twice, is {_MATRICES:,}. What else is gathered,"
            " or gathered again?"
        )
    if used["sums"] > _SUMS:
        words = " and ".join(
            _described(one)
            for one in report.collectives
            if one.axes != ("data",) and one.kind in ("all-reduce", "reduce-scatter")
        )
        raise CheckFailed(
            f"the sums along model have {used['sums']:,} bytes, but the budget is"
            f" {_SUMS:,}: {words}. How large is the block's own sum, and what grows"
            " with the square of the sequence?"
        )
    if redundancy(report) > 1.01:
        raise CheckFailed(
            f"the average product is computed {redundancy(report):.2f} times. Which"
            " dimension of an activation is not sharded along model, and could be?"
        )


def _described(one: spmd.Collective) -> str:
    """A collective in words, with the line that it comes from."""
    axes = " and ".join(one.axes) or "groups of devices that do not follow a mesh axis"
    where = f", from {one.source}" if one.source else ""
    phase = f" in the {one.phase} pass" if one.phase else ""
    return (
        f"an {one.kind} over {axes} with a result of {one.result_bytes:,}"
        f" bytes{phase}{where}"
    )


def _require_gradients(
    make: Callable[..., Any], host: Host, params: Any, grads: Any, wanted: Host
) -> None:
    """The gradients are the reference's, in whatever tree `make` has them.

    One part of the weights is moved in a random direction. `params` moves as `make`
    moves it, and the two slopes along the directions must be equal.
    """
    for name, (matrix, columns) in _parts().items():
        for seed in (1, 2):
            moved = {key: array.copy() for key, array in host.items()}
            direction = normal(seed, *moved[matrix][..., columns].shape)
            moved[matrix][..., columns] += direction
            step = jax.tree.map(_difference, _params_and_f(make, moved)[0], params)
            slope = sum(jax.tree.leaves(jax.tree.map(_dot, grads, step)))
            gradient = np.asarray(wanted[matrix])[..., columns]
            right = _dot(gradient, direction)
            if not abs(slope - right) <= 1e-4 * np.linalg.norm(gradient):
                raise CheckFailed(
                    f"the values are right, but the gradient for {name} is not: along"
                    f" a random direction the slope is {slope:.6g}, but that of"
                    f" wasteful is {right:.6g}. Does all of it reach params, in full"
                    " precision?"
                )


def _parts() -> dict[str, tuple[str, slice]]:
    """Parts of the weights whose gradients are looked at one by one."""
    qkv = {
        f"the columns of {name} in wqkv": ("wqkv", slice(64 * i, 64 * (i + 1)))
        for i, name in enumerate("qkv")
    }
    return qkv | {"wo": ("wo", slice(None)), "g": ("g", slice(None))}


def _difference(a: Any, b: Any) -> Any:
    return np.asarray(a, np.float64) - np.asarray(b, np.float64)


def _dot(a: Any, b: Any) -> float:
    return float(np.vdot(np.asarray(a, np.float64), np.asarray(b, np.float64)))


@functools.cache
def _reference() -> Callable[..., Any]:
    return jax.jit(_gradients(_fused_block))


def _gradients(f: Callable[..., Any]) -> Callable[..., Any]:
    """The gradients of the mean square with respect to both, and the values."""

    def square(params: Any, x: Any) -> tuple[Any, Any]:
        y = f(params, x)
        return (y**2).mean(), y

    return jax.grad(square, argnums=(0, 1), has_aux=True)


def _fused_block(p: Any, x: Any) -> Any:
    """The block of exercise 12.6, without a sharding."""
    h = _norm(x, p["g"])
    q, k, v = (_in_heads(part) for part in jnp.split(h @ p["wqkv"], 3, axis=-1))
    return x + _attend(_rope(q), _rope(k), v) @ p["wo"]


def _gqa(p: Any, x: Any) -> Any:
    q, k, v = (_in_heads(x @ p[name]) for name in ("wq", "wk", "wv"))
    return x + _attend(q, k, v) @ p["wo"]


def _attend(q: Any, k: Any, v: Any) -> Any:
    out = jax.nn.dot_product_attention(q, k, v, is_causal=True)
    return out.reshape(*out.shape[:2], -1)


def _norm(x: Any, g: Any) -> Any:
    return x * lax.rsqrt((x * x).mean(axis=-1, keepdims=True) + 1e-6) * g


def _in_heads(x: Any) -> Any:
    return x.reshape(*x.shape[:2], -1, _HEAD)


def _angles(x: Any) -> Any:
    """Of a feature pair i at a position s: s / 10000^(2i / Dh), [S, 1, Dh/2]."""
    speed = 1e4 ** (-np.arange(x.shape[3] // 2) * 2 / x.shape[3])
    return np.arange(x.shape[1])[:, None, None] * speed


def _rope(x: Any) -> Any:
    """RoPE whose pairs are feature i of each half of a head."""
    cos, sin = (jnp.float32(turn(_angles(x))) for turn in (np.cos, np.sin))
    a, b = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)
