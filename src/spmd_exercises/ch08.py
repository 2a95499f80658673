"""Checks of chapter 8, ten silent mistakes."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import spmd_helpers as spmd
from spmd_helpers import CheckFailed

from ._setting import (
    abstract,
    is_jitted,
    kind_of,
    make_mesh,
    next_thought,
    normal,
    on,
    require_function,
    require_own_buffers,
    short,
    trying,
    word,
)

_CODES = (
    "summed-twice",
    "dropped-constraint",
    "padded-constraint",
    "replicated-output",
)
_COMPILED = "/jax/core/compile/backend_compile_duration"


def check_8_1(a: object, b: object, c: object, d: object) -> None:
    """Which finding belongs to which of four symptoms."""
    off = []
    for name, answer, codes in zip("abcd", (a, b, c, d), _codes(), strict=True):
        off += [name] * (word(answer, name, _CODES) not in codes)
    if off:
        raise CheckFailed(
            f"look again at {', '.join(off)}. What would a device have, or compute, if"
            " that were the mistake?"
        )


def check_8_2(place: Callable[..., Any]) -> None:
    """A sharding for each array of a tree: its largest dimension that divides."""
    require_function(place, "place")
    for small, large in [(24, 56), (16, 64)]:
        for sizes in [(small, large), (large, small)]:
            _require_places(place, sizes)


def check_8_3(make: Callable[..., Any]) -> None:
    """A training step without a finding, within its budgets, and with its values."""
    require_function(make, "make")
    for seed in (0, 1):
        _require_triple(make, seed)


def check_8_4(assert_healthy: Callable[..., Any]) -> None:
    """An assert that names what the X-ray finds, and runs nothing."""
    require_function(assert_healthy, "assert_healthy")
    ran: list[int] = []
    cases = _steps(ran)
    words = set().union(*(wanted for wanted, *_ in cases))
    for wanted, step, args, carry in cases:
        step.__name__ = "step"
        said, returned = _said(assert_healthy, step, args, carry)
        jax.effects_barrier()
        if ran:
            raise CheckFailed(
                "the step was run. What in this chapter only compiles a step?"
            )
        _require_said(said, wanted, {one for one in words if one in (said or "")})
        if returned is not None:
            raise CheckFailed(
                f"assert_healthy returned {short(returned)} for a step without a"
                " mistake, and has to return None"
            )


def check_8_5(settle: Callable[..., Any]) -> None:
    """A state placed so that a step returns it as it came."""
    require_function(settle, "settle")
    mesh = make_mesh(data=8)
    for what, start in _starts(mesh).items():
        with trying(f"a start state {what}"):
            want = {name: np.array(value) for name, value in start.items()}
            _require_settled(settle(start), want, mesh)


@functools.cache
def _codes() -> list[set[str]]:
    """The codes of the findings of a program with each of the four mistakes."""
    mesh = make_mesh(data=8)

    def moved(w: Any, x: Any) -> Any:
        grads = jax.grad(lambda w: ((x @ w) ** 2).mean())(w)
        return lax.pmean(grads, "data")

    def loss(params: Any, x: Any) -> Any:
        return ((jax.nn.relu(x @ params["w1"]) @ params["w2"]) ** 2).mean()

    specs = (P(), P("data"))
    mapped = jax.shard_map(moved, mesh=mesh, in_specs=specs, out_specs=P())
    by_rows, everywhere = on(mesh, "data"), on(mesh)
    params = {"w1": abstract((48, 96), by_rows), "w2": abstract((96, 48), by_rows)}
    reports = [
        spmd.xray(_padded, abstract((10,), everywhere)),
        spmd.xray(mapped, abstract((6, 4), everywhere), abstract((16, 6), by_rows)),
        spmd.xray(jax.grad(loss), params, abstract((64, 48), by_rows)),
        spmd.xray(_passed_over, abstract((16, 24), by_rows)),
    ]
    return [{finding.code for finding in report.findings} for report in reports]


def _padded(x: Any) -> Any:
    return lax.with_sharding_constraint(2 * x, on(make_mesh(data=8), "data")).sum()


def _passed_over(x: Any) -> Any:
    return jax.device_put(jnp.tanh(x), on(make_mesh(data=8), None, "data"))


def _require_places(place: Callable[..., Any], sizes: tuple[int, int]) -> None:
    mesh, (n, m) = make_mesh(data=8), sizes
    first, second = P("data"), P(None, "data")
    longer = first if n > m else second
    cases: dict[str, Any] = {  # shape and spec
        "embed": (sizes, longer),
        "norm": ((12,), P()),
        "scale": ((), P()),
        "layers": {
            "w": ((8, n, m), P(None, *longer)),
            "b": ((m, n), second),
            "odd": ((m, 6, 5), P()),
            "one": ((n,), P()),
            "deep": {"w": ((12, n, n), second)},
        },
        "layers_norm": ((m, 8), first),
        "square": ((n, n), first),
        "head": {"w": ((8, m, m), second), "both": [((n,), first), ((9, n), second)]},
    }

    def is_case(part: object) -> bool:
        return isinstance(part, tuple)

    tree = jax.tree.map(
        lambda one: np.zeros(one[0], np.float32), cases, is_leaf=is_case
    )
    got = place(tree)
    built: Any = jax.tree.structure(got)
    if built != jax.tree.structure(tree):
        raise CheckFailed(
            "the tree that place returns differs in structure from params. How does"
            " jax.tree.map build one?"
        )
    wanted = jax.tree_util.tree_leaves_with_path(cases, is_leaf=is_case)
    for (path, (shape, spec)), sharding in zip(
        wanted, jax.tree.leaves(got), strict=True
    ):
        with trying(f"params{jax.tree_util.keystr(path)} of shape {shape}"):
            _require_place(sharding, shape, on(mesh, *spec))


def _require_place(
    sharding: object, shape: tuple[int, ...], wanted: NamedSharding
) -> None:
    if not isinstance(sharding, NamedSharding):
        raise CheckFailed(f"{kind_of(sharding)} is not a NamedSharding")
    spmd.sharding(shape, sharding.spec, mesh=sharding.mesh)  # raises if it can't be
    if not sharding.is_equivalent_to(wanted, len(shape)):
        raise CheckFailed(
            f"{sharding.spec} on {sharding.mesh.size} devices, but a different"
            " sharding is expected. Which dimensions may be sharded, which of these"
            " divide by 8, and which is the largest, the first of them if there are"
            " several?"
        )


def _deep_loss(params: Any, x: Any) -> Any:
    """The loss of the plain step in the chapter."""

    def layer(h: Any, w: Any) -> tuple[Any, None]:
        return h + jnp.tanh(h @ w) @ params["out"], None

    return (lax.scan(layer, x, params["stack"])[0] ** 2).mean()


@jax.jit
def _plain_step(params: Any, moments: Any, x: Any) -> tuple[Any, Any]:
    grads = jax.grad(_deep_loss)(params, x)
    moments = jax.tree.map(lambda m, g: 0.9 * m + g, moments, grads)
    return jax.tree.map(lambda p, m: p - 0.1 * m, params, moments), moments


@functools.cache
def _two_plain_steps(seed: int) -> tuple[Any, Any, Any]:
    """Parameters and batch as NumPy's arrays, and what two steps make of them."""
    host = {
        "stack": normal(seed, 8, 32, 64) / 8,
        "out": normal(seed + 10, 64, 32) / 8,
    }
    batch, zeros = normal(seed + 20, 16, 32), jax.tree.map(np.zeros_like, host)
    done = _plain_step(*_plain_step(host, zeros, batch), batch)
    return host, batch, jax.device_get(done)


def _require_triple(make: Callable[..., Any], seed: int) -> None:
    host, rows, want = _two_plain_steps(seed)
    result = make(jax.tree.map(np.copy, host))
    if not isinstance(result, tuple | list) or len(result) != 3:
        raise CheckFailed(
            f"make returned {kind_of(result)}, but has to return (params, moments,"
            " step)"
        )
    params, moments, step = result
    _require_start(params, moments, host)
    batch = _batch(rows, params["stack"].sharding.mesh)
    if not seed:  # other numbers make no other program
        _require_step(step, params, moments, batch)
    before = jax.tree.map(jnp.copy, (params, moments))
    after = _stepped(step, before, batch)
    if not all(leaf.is_deleted() for leaf in jax.tree.leaves(before)):
        raise CheckFailed(
            "params and moments are not donated, or not all of them. Which arguments"
            " of step may give their memory to its results?"
        )
    require_own_buffers(params=after[0], moments=after[1])
    after = _stepped(step, after, _batch(rows, params["stack"].sharding.mesh))
    with next_thought(
        "These are the values after two steps: what does the plain step do differently?"
    ):
        spmd.assert_close(
            dict(zip(("params", "moments"), after, strict=True)),
            dict(zip(("params", "moments"), want, strict=True)),
            rtol=1e-4,
        )


def _require_start(params: Any, moments: Any, host: Any) -> None:
    """Params as they were given, moments of zeros, an eighth of both on a device."""
    require_own_buffers(params=params, moments=moments)
    zeros = jax.tree.map(np.zeros_like, host)
    spmd.assert_close(
        {"params": params, "moments": moments}, {"params": host, "moments": zeros}
    )
    for name, tree in {"params": params, "moments": moments}.items():
        for key, leaf in tree.items():
            if not isinstance(leaf, jax.Array):
                raise CheckFailed(
                    f"{name}[{key!r}] is {kind_of(leaf)}. Where is it placed?"
                )
        size = spmd.memory(tree)
        if size.largest_device_bytes * 8 > size.total_bytes:
            raise CheckFailed(
                f"{name}: one device has {size.largest_device_bytes:,} of"
                f" {size.total_bytes:,} bytes, but may have only an eighth. How is"
                " each array sharded?"
            )


def _batch(rows: Any, mesh: Mesh) -> Any:
    """The batch, with its rows sharded on the mesh of the answer."""
    names = mesh.axis_names
    return jax.device_put(rows, on(mesh, names[0] if len(names) == 1 else names))


# Of a step on Explicit axes: jax 0.10 sums a gradient in each turn of the layers' loop,
# and the newest JAX once after it.
_LEFT_TO_XLA = "gradients-each-iteration"


def _require_step(step: Any, params: Any, moments: Any, batch: Any) -> None:
    """Jitted, without a finding, within the budget of memory."""
    require_function(step, "step")
    if not is_jitted(step, params, moments, batch):
        raise CheckFailed("step is not jitted. What does donation do without jit?")
    report = spmd.xray(step, params, moments, batch, carry={0: 0, 1: 1})
    for finding in report.findings:
        if finding.code == _LEFT_TO_XLA:
            continue
        raise CheckFailed(
            f"there is still a finding, {finding.code}: {finding.sentence} Which of"
            " the ten mistakes of this chapter is it?"
        )
    if report.peak_memory is None or report.peak_memory > 100_000:
        raise CheckFailed(
            f"the step needs {report.peak_memory or 0:,} bytes per device at its peak,"
            " but the budget is 100,000. Which arrays does a device have in full, and"
            " when?"
        )


def _stepped(step: Any, state: Any, batch: Any) -> Any:
    after = step(*state, batch)
    if not isinstance(after, tuple | list) or len(after) != 2:
        raise CheckFailed(
            f"step returned {kind_of(after)}, but a pair is expected: new params and"
            " new moments"
        )
    return after


_Step = tuple[set[str], Callable[..., Any], tuple[Any, ...], dict[int, int] | None]


def _steps(ran: list[int]) -> list[_Step]:
    """What is wrong with a step, the step, its arguments, and what it carries."""
    mesh = make_mesh(data=8)

    def of(shape: tuple[int, ...], *entries: Any) -> Any:
        return abstract(shape, on(mesh, *entries))

    def product(x: Any, w: Any) -> Any:
        jax.debug.callback(lambda: ran.append(1))
        return x @ w

    def layers(stack: Any, x: Any) -> Any:
        return lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, stack)[0]

    def two(x: Any, y: Any) -> Any:
        return _padded(x), _passed_over(y)

    def pair(x: Any, w: Any, v: Any, b: Any) -> Any:
        return x @ w, v @ b

    def activation(x: Any) -> Any:
        return jnp.tanh(x)

    def average(state: Any, x: Any) -> Any:
        return 0.9 * state + x.mean(axis=0)

    def partly(columns: int) -> tuple[Any, ...]:
        return (of((64, 64), "data"), of((64, 80)), of((8, 8)), of((8, columns)))

    x, w = np.ones((16, 8), np.float32), np.ones((8, 4), np.float32)
    sharded, replicated = jax.device_put((x, x), (on(mesh, "data"), on(mesh)))
    w = jax.device_put(w, on(mesh))
    stack, rows = of((8, 32, 32), "data"), of((16, 32), "data")
    state = (jnp.zeros(6), of((16, 6), "data"))
    return [
        ({"gathered-stack"}, layers, (stack, rows), None),
        (set(), layers, (of((8, 32, 32), None, "data"), rows), None),
        (
            {"padded-constraint", "dropped-constraint"},
            two,
            (of((10,)), of((16, 24), "data")),
            None,
        ),
        ({"redundancy"}, pair, partly(40), None),  # 1.054
        (set(), pair, partly(32), None),  # 1.043
        ({"sharding-drift"}, average, state, {0: 0}),
        (set(), average, (of((6,)), state[1]), {0: 0}),
        ({"redundancy", "idle-axis"}, product, (replicated, w), None),
        (set(), product, (sharded, w), None),
        (set(), activation, (of((16, 8), "data"),), None),
    ]


def _said(
    assert_healthy: Callable[..., Any],
    step: Callable[..., Any],
    args: tuple[Any, ...],
    carry: dict[int, int] | None,
) -> tuple[str | None, object]:
    """The message of the answer's AssertionError, or None, and what it returned."""
    try:
        return None, assert_healthy(step, *args, carry=carry)
    except AssertionError as error:
        return str(error), None


def _require_said(said: str | None, wanted: set[str], named: set[str]) -> None:
    has = " and ".join(sorted(wanted))
    if said is not None and not wanted:
        raise CheckFailed(
            f"assert_healthy rejects a step without a mistake, with {said[:60]!r}."
            " Which values are still healthy?"
        )
    if said is None and wanted:
        raise CheckFailed(
            f"a step with {has} passed: no AssertionError was raised. What does the"
            " X-ray report besides its findings, and which argument describes a"
            " training loop?"
        )
    if named != wanted:
        raise CheckFailed(
            f"a step has {has}, but your message names"
            f" {' and '.join(sorted(named)) or 'none of it'}. Which attribute names a"
            " finding?"
        )


def _starts(mesh: Mesh) -> dict[str, dict[str, Any]]:
    rows, wide = np.ones((16, 6), np.float32), np.ones((24, 8), np.float32)
    return {
        "on one device": {
            "ema": jnp.zeros(6),
            "count": jnp.int32(0),
            "rows": jnp.zeros((16, 6)),
        },
        "on several devices": {
            "ema": jax.device_put(rows[0], mesh.devices.flat[3]),
            "count": jnp.int32(4),
            "rows": jax.device_put(rows, on(mesh)),
        },
        "of NumPy arrays": {"ema": wide[0], "count": np.int32(7), "rows": wide},
        "with ema sharded": {
            "ema": jax.device_put(wide[0], on(mesh, "data")),
            "count": jax.device_put(jnp.int32(1), on(mesh)),
            "rows": jax.device_put(wide, on(mesh, None, "data")),
        },
    }


def _drifting(state: dict[str, Any], x: Any) -> dict[str, Any]:
    """The step of the chapter's cell above the exercise."""
    ema = 0.9 * state["ema"] + x.mean(axis=0)
    return {"ema": ema, "count": state["count"] + 1, "rows": state["rows"] + x}


def _require_settled(state: Any, want: dict[str, Any], mesh: Mesh) -> None:
    for name, leaf in state.items() if isinstance(state, dict) else ():
        if isinstance(leaf, jax.Array) and leaf.is_deleted():
            raise CheckFailed(f"{name} is already deleted: did a call donate it?")
    with next_thought("Does settle return the state, with unchanged values?"):
        spmd.assert_close(state, want)
    own = getattr(getattr(state["rows"], "sharding", None), "mesh", None)
    if isinstance(own, Mesh) and own.size == 8:
        mesh = own  # the axes of the answer's own may be of another type
    x = _batch(want["rows"], mesh)
    report = spmd.xray(_drifting, state, x, carry={0: 0})
    for finding in report.findings:
        if finding.code == "sharding-drift":
            raise CheckFailed(
                f"{finding.sentence} How does drifting return each entry?"
            )
    for name, value in want.items():
        dtype = getattr(state[name], "dtype", value.dtype)
        if dtype != value.dtype:
            raise CheckFailed(
                f"{name} was {value.dtype}, and is {dtype} now: settle places the state"
                " and keeps its dtypes"
            )
    step = jax.jit(lambda state, x: _drifting(state, x))
    with _compilations() as compiled:
        for _ in range(3):
            state = step(state, x)
    if len(compiled) != 1:
        raise CheckFailed(
            f"three steps compile {len(compiled)} times. How does drifting return each"
            " entry?"
        )
    rows = state["rows"]
    if rows.sharding.shard_shape(rows.shape) == rows.shape:
        raise CheckFailed(
            "rows are replicated on every device. How is the batch sharded that is"
            " added to them?"
        )


@contextlib.contextmanager
def _compilations() -> Iterator[list[float]]:
    """What is compiled in here: the seconds of each."""
    seconds: list[float] = []

    def listen(event: str, duration_secs: float, **_: str | int) -> None:
        if event == _COMPILED:
            seconds.append(duration_secs)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield seconds
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
