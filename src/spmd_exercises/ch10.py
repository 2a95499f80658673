"""Checks of chapter 10, FSDP."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import spmd_helpers as spmd
from spmd_helpers import CheckFailed, XRay

from ._setting import (
    Floats,
    abstract,
    is_jitted,
    kind_of,
    make_mesh,
    next_thought,
    normal,
    number,
    on,
    require_function,
    require_no_finding,
    require_own_buffers,
    short,
    trying,
)

Tree = dict[str, Any]

_AT_REST = {"up": (5, 64, 192), "down": (5, 192, 64), "scale": (5, 6)}
_GATED = {"gate": (2, 40, 96), "up": (2, 40, 96), "down": (2, 96, 40), "head": (40, 5)}
_HALF = 0.55  # of the model: the peak that 10.5 allows
_HALF_IN_TILES = 0.8  # on a TPU, which pads each dimension to its tiles


def check_10_1(zero1: object, zero2: object, zero3: object) -> None:
    """Bytes per device of a model with Adam, at three stages of ZeRO on 4 devices."""
    full, shard = _bytes_at_rest(sharded=False), _bytes_at_rest(sharded=True)
    wanted = {"zero1": full + 2 * shard, "zero2": shard, "zero3": 3 * shard}
    answers = dict(zip(wanted, (zero1, zero2, zero3), strict=True))
    wrong = {
        name: answer
        for name, answer in answers.items()
        if number(answer, name) != wanted[name]
    }
    if wrong:
        raise CheckFailed(
            f"look again at {', '.join(wrong)}: {_assignments(wrong)} bytes on each of"
            " four devices. Which trees have to be counted? Which of them does this"
            " stage shard? What is the share of `scale`?"
        )


def check_10_2(a: object, b: object, c: object, d: object) -> None:
    """The stage of ZeRO of four X-rays, which are printed in random order."""
    order = np.random.default_rng(4).permutation(4)  # as in the chapter's cell
    wrong = {}
    for name, answer, stage in zip("abcd", (a, b, c, d), order, strict=True):
        if number(answer, name) not in range(4):
            raise CheckFailed(
                f"{name} is {short(answer)}, which is not one of 0, 1, 2 and 3"
            )
        if number(answer, name) != stage:
            wrong[name] = answer
    if wrong:
        raise CheckFailed(
            f"look again at {', '.join(wrong)}: {_assignments(wrong)}. Are the"
            " parameters all-gathered before they are used, or after the update? Does"
            " each device end with full gradients, or with its shard of them?"
        )


def check_10_3(make_grads: Callable[..., Any]) -> None:
    """Gradients sharded as their parameters, with at most two all-gathers."""
    require_function(make_grads, "make_grads")
    mesh = make_mesh(data=8)
    cases = [
        ((64, 48, 96), P("data"), P("data")),
        ((40, 56, 72), P(None, "data"), P(None, "data")),
    ]
    for seed, (size, *specs) in enumerate(cases):
        dimension = tuple(specs[0]).index("data")
        with trying(f"with both weights sharded along dimension {dimension}"):
            _require_sharded_gradients(make_grads, mesh, seed, size, specs)


def check_10_4(init_state: Callable[..., Any]) -> None:
    """A state of any optimizer, sharded as the parameters that it belongs to."""
    require_function(init_state, "init_state")
    mesh, rows, columns, full = make_mesh(data=8), P("data"), P(None, "data"), P()
    clipped = optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.sgd(optax.linear_schedule(1.0, 0.0, 9), momentum=0.9),
    )
    twice = optax.chain(optax.adagrad(1e-3), optax.adamw(1e-3))
    rare = optax.chain(optax.adadelta(1e-3), optax.apply_every(4), optax.rprop(1e-3))
    cases = {
        "adam": (optax.adam(1e-3), 48, columns, full, rows),
        "chain(clip_by_global_norm, sgd)": (clipped, 40, rows, columns, full),
        "chain(adagrad, adamw)": (twice, 16, full, rows, rows),
        "chain(adadelta, apply_every, rprop)": (rare, 32, columns, rows, rows),
    }
    for name, (optimizer, size, *specs) in cases.items():
        with trying(f"with {name}"):
            _require_placed_state(init_state, optimizer, size, specs, mesh)


def check_10_5(lean_loss: Callable[..., Any]) -> None:
    """A deep loss whose gradient keeps no more than half of the model per device."""
    require_function(lean_loss, "lean_loss")
    mesh = make_mesh(data=8)
    cut, shapes = on(mesh, None, "data"), {"up": (12, 48, 160), "down": (12, 160, 48)}
    args = {n: abstract(shape, cut) for n, shape in shapes.items()}
    gradient = jax.jit(jax.value_and_grad(lean_loss), out_shardings=(on(mesh), cut))
    compiled = gradient.lower(args, abstract((16, 48), on(mesh, "data"))).compile()
    _require_lean(spmd.xray(compiled), size=4 * 12 * 2 * 48 * 160)
    for seed in (5, 6):
        host, x = _weights(seed, shapes), normal(seed + 9, 16, 48)
        args, batch = jax.device_put((host, x), (cut, on(mesh, "data")))
        loss, grads = compiled(args, batch)
        wanted = dict(zip(("loss", "gradient"), _deep_gradients(host, x), strict=True))
        with next_thought("Does lean_loss compute the same as deep_loss, in float32?"):
            spmd.assert_close({"loss": loss, "gradient": grads}, wanted, 1e-4)


def check_10_6(make_run: Callable[..., Any]) -> None:
    """A training run within 3 V, sharded, donated, with one device's losses."""
    require_function(make_run, "make_run")
    host, batches = _weights(6, _GATED), [_gated_batch(seed) for seed in range(3)]
    params, state, step = _run_of(make_run, jax.tree.map(np.copy, host))
    for name, tree in {"params": params, "state": state}.items():
        _require_small_share(name, tree)
    require_own_buffers(params=params, state=state)
    rows = NamedSharding(_mesh_of(params), P("data"))
    placed = jax.device_put(batches, rows)
    report = spmd.xray(step, params, state, placed[0], carry={0: 0, 1: 1})
    _require_three_units(report, sum(leaf.nbytes for leaf in host.values()))
    got = _trained(step, params, state, placed, host)
    with next_thought("Does each step do what gated_step does, in float32?"):
        spmd.assert_close(got, _gated_training(), 1e-4)


def _weights(seed: int, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Floats]:
    """Small random weights on the host."""
    return {
        name: normal(seed + 100 * i, *shape) * np.float32(0.1)
        for i, (name, shape) in enumerate(shapes.items())
    }


def _assignments(answers: Tree) -> str:
    return ", ".join(f"{name} is {short(answer)}" for name, answer in answers.items())


def _bytes_at_rest(*, sharded: bool) -> int:
    """What a device has of one tree of 10.1, sharded where it can be or replicated."""
    mesh = make_mesh(data=4)
    leaves = [
        abstract(shape, on(mesh, *(None, "data") * (sharded and name != "scale")))
        for name, shape in _AT_REST.items()
    ]
    return spmd.memory(leaves).largest_device_bytes


def _require_sharded_gradients(
    make_grads: Callable[..., Any],
    mesh: Mesh,
    seed: int,
    size: tuple[int, int, int],
    specs: list[P],
) -> None:
    rows, thin, wide = size
    host = _weights(seed, {"up": (thin, wide), "down": (wide, thin)})
    x_host, cuts = normal(seed + 19, rows, thin), dict(zip(host, specs, strict=True))
    places = {name: on(mesh, *spec) for name, spec in cuts.items()}
    params, x = jax.device_put((host, x_host), (places, on(mesh, "data")))
    function = make_grads(jax.tree.map(jnp.zeros_like, params))
    if not callable(function) or not is_jitted(function, params, x):
        raise CheckFailed(
            f"make_grads returned {kind_of(function)}, but a jitted function of"
            " (params, x) is expected"
        )
    report = spmd.xray(function, params, x)
    _require_gathers_and_a_sum(report)
    got = function(params, x)
    if any(leaf.is_deleted() for leaf in jax.tree.leaves((params, x))):
        raise CheckFailed(
            "after the call, params or x are deleted, but they are still needed. What"
            " donated them?"
        )
    with next_thought("Is it the gradient of the mean, at these params, in float32?"):
        spmd.assert_close(got, _two_layer_grads(host, x_host), 1e-4)
    with next_thought("What tells jit how to shard each of its results?"):
        spmd.assert_sharding(got, cuts, mesh)
    require_no_finding(report)


def _require_gathers_and_a_sum(report: XRay) -> None:
    kinds = [one.kind for one in report.collectives]
    known = {"all-gather", "all-reduce", "reduce-scatter"}
    if report.lowered_for == "tpu":  # moves pieces that are on the wrong device
        known |= {"collective-permute"}
    if kinds.count("all-gather") > 2 or not known >= set(kinds):
        raise CheckFailed(
            f"the program runs {kinds}. Expected are at most two all-gathers and the"
            " sum of the gradients: how is each activation sharded?"
        )


def _two_layer_grads(params: dict[str, Floats], x: Floats) -> Tree:
    """The gradients of 10.3's loss, on the host."""
    hidden = np.tanh(x @ params["up"])
    error = 2 * (hidden @ params["down"] - x) / x.size
    inner = error @ params["down"].T * (1 - hidden * hidden)
    return {"up": x.T @ inner, "down": hidden.T @ error}


def _require_placed_state(
    init_state: Callable[..., Any],
    optimizer: optax.GradientTransformation,
    size: int,
    specs: list[P],
    mesh: Mesh,
) -> None:
    host = {
        "w": np.ones((size, 24), np.float32),
        "odd": np.ones((24, size), np.float32),
        "v": np.full(size, 2.0, np.float32),
    }
    cuts = dict(zip(host, specs, strict=True))
    places = {leaf: on(mesh, *spec) for leaf, spec in cuts.items()}
    params = jax.device_put(host, places)
    state = init_state(optimizer, params)
    require_own_buffers(params=params, state=state)
    wanted = optimizer.init(host)
    with next_thought("Does the state start as optimizer.init makes it?"):
        spmd.assert_close(state, wanted)
    _require_dtypes(state, wanted)
    like = {leaf.shape: cuts[key] for key, leaf in host.items()}
    by_leaf = jax.tree.map(lambda leaf: like.get(leaf.shape, P()), wanted)
    with next_thought(
        "Which parameter does each array belong to? What belongs to none is replicated."
    ):
        spmd.assert_sharding(state, by_leaf, mesh)


def _require_dtypes(state: Any, wanted: Any) -> None:
    pairs = zip(
        jax.tree_util.tree_leaves_with_path(state), jax.tree.leaves(wanted), strict=True
    )
    for (path, leaf), own in pairs:
        if leaf.dtype != own.dtype:
            raise CheckFailed(
                f"{jax.tree_util.keystr(path)} is {leaf.dtype}, but the optimizer makes"
                f" it {own.dtype}. What may change besides the shardings?"
            )


def _require_lean(report: XRay, size: int) -> None:
    most = _HALF_IN_TILES if report.lowered_for == "tpu" else _HALF
    if report.peak_memory is not None and report.peak_memory > most * size:
        raise CheckFailed(
            f"the peak is {report.peak_memory:,} bytes per device,"
            f" {report.peak_memory / size:.2f} V, but the limit is {most} V. How many"
            " layers' weights are gathered at once, or saved for the backward pass?"
        )
    for one in report.collectives:
        if one.kind == "all-gather" and one.result_bytes > size // 12:
            raise CheckFailed(
                f"an all-gather has a result of {one.result_bytes:,} bytes, but the"
                f" weights of one layer are {size // 12:,}. What is gathered there?"
            )
        if one.kind == "all-to-all":
            raise CheckFailed(
                "the program runs an all-to-all that your code does not contain. For"
                " which activations does the compiler choose the sharding?"
            )


def _deep_gradients(params: dict[str, Floats], x: Floats) -> tuple[Any, Tree]:
    """The loss of 10.5's layers and its gradients, on the host."""
    saved = []
    for up, down in zip(params["up"], params["down"], strict=True):
        saved.append((x, np.tanh(x @ up), up, down))
        x = x + saved[-1][1] @ down
    error, ups, downs = 2 * x / x.size, [], []
    for before, hidden, up, down in reversed(saved):
        inner = error @ down.T * (1 - hidden * hidden)
        ups.append(before.T @ inner)
        downs.append(hidden.T @ error)
        error = error + inner @ up.T
    grads = {"up": np.stack(ups[::-1]), "down": np.stack(downs[::-1])}
    return (x**2).mean(), grads


def _gated_batch(seed: int) -> Tree:
    return {"x": normal(seed, 32, 40), "y": normal(seed + 9, 32, 5)}


def _run_of(make_run: Callable[..., Any], host: Tree) -> tuple[Any, Any, Any]:
    answer = make_run(host)
    if not isinstance(answer, tuple | list) or len(answer) != 3:
        raise CheckFailed(
            f"make_run returned {kind_of(answer)}, but has to return (params, state,"
            " step)"
        )
    params, state, step = answer
    if not callable(step):
        raise CheckFailed(f"step is {kind_of(step)}, not a function")
    _require_same_kinds("make_run", host, params)
    return params, state, step


def _require_same_kinds(what: str, host: Tree, params: Any) -> None:
    given, got = (jax.tree.map(_kind, tree) for tree in (host, params))
    if given != got:
        raise CheckFailed(f"{what} returned params with {got}, but was given {given}")


def _kind(leaf: Any) -> str:
    """An array in words, like `float32[2, 40, 96]`."""
    return f"{getattr(leaf, 'dtype', type(leaf).__name__)}{[*np.shape(leaf)]}"


def _require_small_share(name: str, tree: Any) -> None:
    memory = spmd.memory(tree)
    if not memory.total_bytes:
        raise CheckFailed(f"the arrays of {name} are on no device: what places them?")
    share = memory.largest_device_bytes / memory.total_bytes
    if share > 0.15:
        raise CheckFailed(
            f"each device has {share:.0%} of {name}, but at most 15% are allowed: what"
            " decides the sharding of each array?"
        )


def _mesh_of(params: Tree) -> Mesh:
    """The mesh of the parameters, which has an axis `data` of 8 devices."""
    for leaf in jax.tree.leaves(params):
        mesh = getattr(leaf.sharding, "mesh", None)
        if isinstance(mesh, Mesh) and dict(mesh.shape) == {"data": 8}:
            return mesh
    raise CheckFailed(
        "no array of params is on a mesh of 8 devices with one axis, `data`"
    )


def _require_three_units(report: XRay, size: int) -> None:
    sent = _sent(report, size)
    by_kind = {kind: round(units, 2) for kind, units in sent.items()}
    if "all-to-all" in sent:
        raise CheckFailed(
            f"the step communicates {by_kind}, in V. No all-to-all is wanted: what"
            " decides the sharding of the activations?"
        )
    if sum(sent.values()) >= 3.02:
        raise CheckFailed(
            f"the step communicates {sum(sent.values()):.2f} V, and 3 V is the"
            f" limit: {by_kind}. Which of these gathers or sums is not needed?"
        )
    require_no_finding(report)


def _sent(report: XRay, size: int) -> dict[str, float]:
    """What each kind of collective sends, in units of (n - 1)/n of `size` bytes.

    A reduce-scatter that the CPU's compiler writes as an all-reduce counts as what a
    GPU or a TPU runs. Scalars are left out, as in the chapter.

    Raises:
        CheckFailed: when a collective runs nobody knows how often.
    """
    sent: dict[str, float] = {}
    for one in report.collectives:
        if one.total_wire_bytes is None:
            raise CheckFailed(
                f"an {one.kind} is in a loop, and the program does not show how often"
                " that runs: what decides the number of iterations?"
            )
        units = one.total_wire_bytes * 8 / 7 / size
        if one.lowered_as == "all-reduce + dynamic-slice":
            units /= 2
        sent[one.kind] = sent.get(one.kind, 0) + units
    return {kind: units for kind, units in sent.items() if units > 0.01}


def _trained(
    step: Callable[..., Any], params: Any, state: Any, batches: Any, host: Tree
) -> Tree:
    """The losses of six steps, and how they change the parameters."""
    losses = []
    for turn in range(6):
        old = [x for x in jax.tree.leaves((params, state)) if isinstance(x, jax.Array)]
        require_own_buffers(params=params, state=state)
        answer = step(params, state, batches[turn % len(batches)])
        if not isinstance(answer, tuple | list) or len(answer) != 3:
            raise CheckFailed(
                f"step returned a {type(answer).__name__}, and three things are"
                " wanted: new parameters, new state and the loss"
            )
        params, state, loss = answer
        losses.append(loss)
        _require_same_kinds("step", host, params)
        if not all(leaf.is_deleted() for leaf in old):
            raise CheckFailed(
                f"after step {turn + 1} the old parameters or the old state are still"
                " in memory: which arguments does the step donate?"
            )
    return {"loss of step": losses, "change of params": _change(host, params)}


def _change(before: Tree, after: Any) -> Any:
    return jax.tree.map(lambda old, new: np.asarray(new) - old, before, after)


@functools.cache
def _gated_training() -> Tree:
    """The same on one device."""
    host, losses = _weights(6, _GATED), []
    params: Tree = host
    state = _momentum().init(params)
    for turn in range(6):
        params, state, loss = _gated_step(params, state, _gated_batch(turn % 3))
        losses.append(loss)
    return {"loss of step": losses, "change of params": _change(host, params)}


@jax.jit
def _gated_step(params: Tree, state: Any, batch: Tree) -> tuple[Tree, Any, Any]:
    def loss_fn(params: Tree) -> Any:
        h = batch["x"]
        for gate, up, down in zip(
            params["gate"], params["up"], params["down"], strict=True
        ):
            h = h + (jax.nn.silu(h @ gate) * (h @ up)) @ down
        return ((h @ params["head"] - batch["y"]) ** 2).mean()

    loss, grads = jax.value_and_grad(loss_fn)(params)
    updates, state = _momentum().update(grads, state)
    new: Tree = optax.apply_updates(params, updates)
    return new, state, loss


def _momentum() -> optax.GradientTransformation:
    return optax.sgd(0.1, momentum=0.9)
