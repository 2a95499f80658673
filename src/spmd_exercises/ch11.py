"""Checks of chapter 11, two dimensions."""

import functools
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
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
    number,
    on,
    redundancy,
    require_function,
    require_no_finding,
    require_own_buffers,
    short,
    trying,
)

Tree = Any

_SPECS = {  # of w1 and w2 in exercise 11.1
    "case_a": (P(None, "model"), P("model", None)),
    "case_b": (P(None, "model"), P(None, "model")),
    "case_c": (P(None, "model"), P()),
    "case_d": (P(), P(None, "model")),
}
_BUDGET = 80_000  # bytes that a device may send in a step of 11.5


def check_11_1(case_a: object, case_b: object, case_c: object, case_d: object) -> None:
    """The collective of an MLP with four shardings, and the bytes of its result."""
    wrong = {}
    for name, answer in zip(_SPECS, (case_a, case_b, case_c, case_d), strict=True):
        if _pair(name, answer) != _collective(name):
            wrong[name] = answer
    if not wrong:
        return
    kinds = {name: _pair(name, answer)[0] for name, answer in wrong.items()}
    if all(kind == _collective(name)[0] for name, kind in kinds.items()):
        thought = (
            "The collective is right, but its bytes are not: how many rows and columns"
            " does its result have per device?"
        )
    else:
        thought = (
            "Which dimension does the second product sum over? Is it sharded in both"
            " operands, in one, or in none, and what does a device need then?"
        )
    listed = ", ".join(f"{name} is {short(answer)}" for name, answer in wrong.items())
    raise CheckFailed(f"look again at {', '.join(wrong)}: {listed}. {thought}")


def check_11_2(local: Callable[..., Any]) -> None:
    """A tensor-parallel layer with biases by hand: one all-reduce along `model`."""
    require_function(local, "local")
    cases = [((2, 4), (48, 40, 96, 40)), ((4, 2), (8, 6, 10, 14))]
    for seed, ((data, model), size) in enumerate(cases):
        mesh = make_mesh(data=data, model=model)
        with trying(f"on a mesh of {data} × {model}"):
            _require_one_sum(local, mesh, seed, *size)


def check_11_3(pack: Callable[..., Any], gated: Callable[..., Any]) -> None:
    """Gate and up in one array: one product of x, one all-reduce."""
    require_function(pack, "pack")
    require_function(gated, "gated")
    mesh, sizes = make_mesh(data=4, model=2), [(48, 40, 96), (16, 10, 36)]
    hosts, packed = [], []
    for seed, (rows, thin, wide) in enumerate(sizes):
        gate, up = normal(seed, thin, wide), normal(seed + 9, thin, wide)
        hosts.append((normal(seed + 19, rows, thin), gate, up))
        packed.append(pack(jnp.asarray(gate), jnp.asarray(up)))
        with trying(f"with gate and up [{thin}, {wide}]"):
            _require_packed(packed[-1], gate, mesh)
    for one, (x, gate, up) in zip(packed, hosts, strict=True):
        with trying(f"with x {[*x.shape]}, gate and up {[*gate.shape]}"):
            _require_gated(gated, one, x, gate, up, mesh)


def check_11_4(place_by_name: Callable[..., Any]) -> None:
    """Shardings by the rules for names, and by size where no rule matches."""
    require_function(place_by_name, "place_by_name")
    for data, model in [(4, 2), (2, 4)]:
        mesh = make_mesh(data=data, model=model)
        for shapes, rules, wanted in (_many_names(model), _lists_of_layers()):
            params = jax.tree.map(
                lambda shape: jax.ShapeDtypeStruct(shape, jnp.float32),
                shapes,
                is_leaf=lambda node: isinstance(node, tuple),
            )
            with trying(f"on a mesh of {data} × {model}"):
                got = place_by_name(params, mesh, rules)
                _require_places(got, params, wanted, mesh)


def check_11_5(start: Callable[..., Any]) -> None:
    """A state sharded over both axes, trained within a budget of bytes."""
    require_function(start, "start")
    mesh = make_mesh(data=4, model=2)
    like = abstract((48, 40), on(mesh, "data"))
    for seed in (3, 7):
        with trying(f"start({seed})"):
            state, step = _started(start(seed), mesh)
            _require_share(state, "at the start")
            _require_arrays(state, "{} at the start", _weights(seed))
    _require_cheap(spmd.xray(step, state, like, like, carry={0: 0}))
    _require_same_steps(state, step, seed, mesh)


def _pair(name: str, answer: object) -> tuple[str, float]:
    """An answer to 11.1: the kind of the collective and the bytes of its result."""
    if isinstance(answer, tuple | list) and len(answer) == 2:
        kind, size = answer
        try:
            if isinstance(kind, str):
                return re.sub("[ _]", "-", kind.strip().lower()), number(size)
        except CheckFailed:
            pass
    raise CheckFailed(f"{name}: {short(answer)} is not a pair of a word and a number")


@functools.cache
def _collective(name: str) -> tuple[str, float]:
    mesh = make_mesh(data=4, model=2)
    shapes, specs = ((48, 40), (40, 80), (80, 24)), (P("data"), *_SPECS[name])
    args = [abstract(s, on(mesh, *spec)) for s, spec in zip(shapes, specs, strict=True)]
    report = spmd.xray(lambda x, w1, w2: jax.nn.relu(x @ w1) @ w2, *args)
    pairs = [(one.kind, float(one.result_bytes)) for one in report.collectives]
    return pairs[0] if pairs else ("nothing", 0.0)


def _require_one_sum(
    local: Callable[..., Any],
    mesh: Mesh,
    seed: int,
    rows: int,
    thin: int,
    wide: int,
    out: int,
) -> None:
    x, w1, b1 = normal(seed, rows, thin), normal(7, thin, wide), normal(8, wide)
    w2, b2 = normal(9, wide, out), 3 * normal(seed + 20, out)
    specs = P("data"), P(None, "model"), P("model"), P("model", None), P()
    mapped = jax.jit(
        jax.shard_map(local, mesh=mesh, in_specs=specs, out_specs=P("data"))
    )
    places = tuple(on(mesh, *spec) for spec in specs)
    args = jax.device_put((x, w1, b1, w2, b2), places)
    report = spmd.xray(mapped, *args)
    what = "relu(x @ w1 + b1) @ w2 + b2, each term once"
    wanted = np.maximum(x @ w1 + b1, 0) @ w2 + b2
    got = _returned("local", mapped(*args))
    with next_thought("What is added over `model`, how often, and is it float32?"):
        spmd.assert_close({what: got}, {what: wanted}, rtol=1e-4)
    with next_thought("Which of the two products gives partial sums?"):
        spmd.assert_collectives(
            report,
            exactly={"all-reduce": 1},
            over="model",
            at_most_bytes=rows // mesh.shape["data"] * out * 4,
        )


def _returned(name: str, value: Any) -> Any:
    if not isinstance(value, jax.Array):
        raise CheckFailed(
            f"{name} returned {short(value)}: where is the array it computes?"
        )
    return value


def _require_packed(packed: Any, gate: Floats, mesh: Mesh) -> None:
    if not isinstance(packed, jax.Array) or packed.size != 2 * gate.size:
        shape = f" {[*packed.shape]}" if hasattr(packed, "shape") else ""
        raise CheckFailed(
            f"pack returned {kind_of(packed)}{shape}, but one array on the mesh with"
            f" all {2 * gate.size:,} numbers is expected"
        )
    if packed.dtype != np.float32:
        raise CheckFailed(f"packed is {packed.dtype}, but gate and up are float32")
    if getattr(packed.sharding, "mesh", None) != mesh:
        raise CheckFailed(
            f"packed is placed by {packed.sharding}, which is not on `mesh`: what"
            " places it there?"
        )
    share = spmd.sharding(packed).bytes_per_device
    if share != gate.nbytes:
        raise CheckFailed(
            f"each device has {share:,} bytes of packed, but half of packed is"
            f" {gate.nbytes:,} bytes. Which dimension can be sharded over `model`?"
        )


def _require_gated(
    gated: Callable[..., Any],
    packed: jax.Array,
    x: Floats,
    gate: Floats,
    up: Floats,
    mesh: Mesh,
) -> None:
    down, h = normal(31, *gate.shape[::-1]), x @ gate
    places = on(mesh, "data"), on(mesh, "model")
    placed_x, placed_down = jax.device_put((x, down), places)
    args = placed_x, packed, placed_down
    what, wanted = "(silu(x @ gate) * (x @ up)) @ down", h / (1 + np.exp(-h)) * (x @ up)
    got = _returned("gated", jax.jit(gated)(*args))
    with next_thought("Which part of packed is gate, and is every step float32?"):
        spmd.assert_close({what: got}, {what: wanted @ down}, rtol=1e-4)
    report = spmd.xray(gated, *args)
    with next_thought(
        "Which columns of gate and of up does each device have, and what has to be"
        " communicated besides the partial sums of the last product?"
    ):
        spmd.assert_collectives(
            report,
            exactly={"all-reduce": 1},
            over="model",
            at_most_bytes=len(x) // 4 * x.shape[1] * 4,
        )
    with jax.disable_jit():  # functions and loops written out
        products = str(jax.make_jaxpr(gated)(*args)).count("dot_general[")
    if products != 2 or redundancy(report) > 1.01:
        raise CheckFailed(
            f"gated has {products} matrix products, and the average one is computed"
            f" {redundancy(report):.2f} times. Expected are 2, each computed once: how"
            " does one product give both x @ gate and x @ up?"
        )


def _many_names(model: int) -> tuple[Tree, list[tuple[str, P]], Tree]:
    """Shapes, rules, and the specs that follow from them on a mesh of 8 devices."""
    shapes = {
        "embed": (258, 48),
        "odd": (257, 48),
        "norm": {"scale": (48,)},
        "layers": {
            "q": (8, 48, 48),
            "out": (8, 48, 48),
            "up": [(8, 48, 96), (8, 96)],
            "kv": (8, 48, 6),
            "norm": (8, 48),
        },
        "bias": (24, 16),
        "players": {"w": (96, 48, 8)},
        "up": (96, 36),
        "none": (7, 8),
    }
    rules = [
        ("embed|odd", P("model", "data")),
        ("out$", P("model")),
        ("/q|kv", P("data", "model")),
        ("up/1", P("model")),
        ("up", P("data", None)),
        ("none|q", P("model")),
        ("Bias|^/|^bias", P()),  # no name has these
    ]
    two = model == 2  # 258 and 6 are even, and no multiples of 4
    specs = {
        "embed": P("model", "data") if two else P(None, "data"),
        "odd": P(None, "data"),
        "norm": {"scale": P()},
        "layers": {
            "q": P(None, "data", "model"),
            "out": P(None, "model"),
            "up": [P(None, "data"), P(None, "model")],
            "kv": P(None, "data", "model") if two else P(None, "data"),
            "norm": P(),
        },
        "bias": P("model", "data"),
        "players": {"w": P("model", "data")},
        "up": P("data"),
        "none": P(),
    }
    return {"a": shapes}, rules, {"a": specs}


def _lists_of_layers() -> tuple[Tree, list[tuple[str, P]], Tree]:
    """The same with other names, where all sizes divide on each mesh."""
    shapes = {
        "decoder": {"layers": [{"w": (6, 48, 96), "b": (6, 96)}, {"w": (6, 96, 40)}]},
        "layers": {"k": (6, 16, 32)},
        "layers_norm": (64, 32),
        "head": (40, 264),
    }
    rules = [
        ("layers/0/w", P(None, "model")),
        ("b$", P("model")),
        ("^layers/k$", P("data")),
        ("head", P("data", "model")),
    ]
    specs = {
        "decoder": {
            "layers": [
                {"w": P(None, None, "model"), "b": P(None, "model")},
                {"w": P(None, "model", "data")},
            ]
        },
        "layers": {"k": P(None, "data")},
        "layers_norm": P("model", "data"),
        "head": P("data", "model"),
    }
    return shapes, rules, specs


def _require_places(got: Any, params: Tree, wanted: Tree, mesh: Mesh) -> None:
    """The tree of shardings is the wanted one, on this mesh."""
    kinds = sorted({type(place).__name__ for place in jax.tree.leaves(got)})
    if kinds != ["NamedSharding"]:
        raise CheckFailed(
            f"the leaves that place_by_name returns are {kinds or 'none'}, but each"
            " has to be a NamedSharding"
        )
    if str(jax.tree.structure(got)) != str(jax.tree.structure(params)):
        raise CheckFailed(
            "the tree of shardings differs in structure from params: it is"
            f" {jax.tree.structure(got)}"
        )
    for place in jax.tree.leaves(got):
        if place.mesh.shape != mesh.shape:
            raise CheckFailed(
                f"a sharding is on the mesh {dict(place.mesh.shape)}, but the mesh"
                f" given is {dict(mesh.shape)}"
            )
    try:
        placed = jax.tree.map(lambda leaf, at: abstract(leaf.shape, at), params, got)
        with next_thought(
            "Which rule matches the name first, where do its entries start in a stack,"
            " and does each axis divide its dimension?"
        ):
            spmd.assert_sharding(placed, wanted, mesh)
    except spmd.NotDivisible as error:
        raise CheckFailed(
            f"{str(error).split(';')[0]}: what happens to an entry that does not"
            " divide, and to those after it?"
        ) from None


def _started(answer: Any, mesh: Mesh) -> tuple[Any, Callable[..., Any]]:
    if not isinstance(answer, tuple | list) or len(answer) != 2:
        raise CheckFailed(
            f"start returned {kind_of(answer)}, but has to return (state, step)"
        )
    state, step = answer
    if not callable(step):
        raise CheckFailed(f"step is {kind_of(step)}, not a function")
    require_own_buffers(state=state)
    for leaf in jax.tree.leaves(state):
        place = getattr(leaf, "sharding", None)
        if isinstance(place, NamedSharding) and place.mesh != mesh:
            raise CheckFailed(
                f"an array of the state is placed by {place}, and `mesh` is"
                f" {dict(mesh.shape)} with Auto axes"
            )
    return state, step


def _require_share(state: Any, when: str) -> None:
    memory = spmd.memory(state)
    most, total = memory.largest_device_bytes, memory.total_bytes
    if 6 * most > total or not total:
        raise CheckFailed(
            f"{when} one device has {most:,} of the state's {total:,} bytes, but at"
            " most a sixth is allowed: over which axes is each array sharded?"
        )


def _require_cheap(report: XRay) -> None:
    require_no_finding(report)
    if redundancy(report) > 1.01:
        raise CheckFailed(
            f"the average product is computed {redundancy(report):.2f} times. Which"
            " axis shards neither the rows of x nor the weight?"
        )
    kinds = {one.kind for one in report.collectives if "model" in one.axes}
    if kinds - {"all-reduce"}:
        raise CheckFailed(
            f"along `model` the step runs {sorted(kinds)}, but only sums are expected."
            " Over which dimension does each product sum?"
        )
    sent = sum(one.total_wire_bytes or 0 for one in report.collectives)
    if sent > _BUDGET:
        raise CheckFailed(
            f"each device sends {sent:,} bytes in a step, but the limit is"
            f" {_BUDGET:,}. What is gathered, and along which axis?"
        )


def _require_same_steps(
    state: Any, step: Callable[..., Any], seed: int, mesh: Mesh
) -> None:
    """Four steps give one device's losses; each uses up the state before it."""
    losses, moments = _one_device(seed)
    for turn, x in enumerate(_batches()):
        old = [leaf for leaf in jax.tree.leaves(state) if np.ndim(leaf)]
        before = [jnp.copy(leaf) for leaf in old if turn == 0]
        require_own_buffers(state=state)
        pair = jax.device_put((x, np.tanh(x)), on(mesh, "data"))
        state, loss = _stepped(step, state, pair, compiled=turn > 1)
        name = f"loss of step {turn + 1}"
        with next_thought("Is it the same model, update and rate, in float32?"):
            spmd.assert_close({name: loss}, {name: losses[turn]}, rtol=1e-4)
        if turn in (0, 3):  # jax 0.11.2 keeps it in the second call
            _require_donated(old)
        _require_share(state, f"after step {turn + 1}")
        if turn == 0:
            _require_unchanged(before, state)
        if turn == 1:
            _require_arrays(state, "Adam's first moment of {}", moments)


def _stepped(
    step: Callable[..., Any], state: Any, pair: Any, *, compiled: bool
) -> tuple[Any, Any]:
    """What a step returns; if it has run before, it may not be traced again."""
    try:
        with jax.no_tracing(compiled):
            answer = step(state, *pair)
    except RuntimeError as error:
        if "no_tracing" not in str(error):
            raise
        raise CheckFailed(
            "step is traced anew in each call, so that each call compiles: where is"
            " the function made that jit gets?"
        ) from None
    if not isinstance(answer, tuple | list) or len(answer) != 2:
        raise CheckFailed(
            f"step returned a {type(answer).__name__}, and (state, loss) is wanted"
        )
    state, loss = answer
    return state, loss


def _require_donated(old: list[Any]) -> None:
    if not all(leaf.is_deleted() for leaf in old):
        raise CheckFailed(
            "after a step the old state is still in memory: which arguments does step"
            " donate?"
        )


def _require_unchanged(before: list[jax.Array], state: Any) -> None:
    """Zeros for x and y have no gradient, and Adam leaves the weights as they are."""
    after = [leaf for leaf in jax.tree.leaves(state) if np.ndim(leaf)]
    for old, new in zip(before, after, strict=True):
        if jnp.issubdtype(old.dtype, jnp.floating) and not np.array_equal(old, new):
            raise CheckFailed(
                "a batch of zeros has no gradient, and yet the step changes an array"
                f" {[*old.shape]} of the state. What does the optimizer add to Adam?"
            )


def _require_arrays(state: Any, words: str, wanted: dict[str, Floats]) -> None:
    """Each of these arrays is in the state, wherever that keeps it."""
    leaves = [
        np.asarray(jnp.copy(leaf))  # a view of the array itself would keep its memory
        for leaf in jax.tree.leaves(state)
        if jnp.issubdtype(leaf.dtype, jnp.floating)
    ]
    for name, array in wanted.items():
        what = words.format(name)
        like = [leaf for leaf in leaves if leaf.shape == array.shape and leaf.any()]
        if not like:
            raise CheckFailed(f"the state has no array {[*array.shape]} for {what}")
        nearest = min(like, key=lambda leaf: float(np.max(np.abs(leaf - array))))
        with next_thought("Is it made from this seed, and updated by each step?"):
            spmd.assert_close({what: nearest}, {what: array}, rtol=1e-4)


def _batches() -> list[Floats]:
    return [np.zeros((48, 40), np.float32), *(normal(i, 48, 40) for i in range(3))]


class _GatedBlock(nnx.Module):
    """The model of exercise 11.5."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.norm = nnx.RMSNorm(40, rngs=rngs)
        linear = functools.partial(nnx.Linear, use_bias=False, rngs=rngs)
        self.gate, self.up = linear(40, 96), linear(40, 96)
        self.down = linear(96, 40)

    def __call__(self, x: Any) -> Any:
        h = self.norm(x)
        return x + self.down(nnx.silu(self.gate(h)) * self.up(h))


@functools.cache
def _weights(seed: int) -> dict[str, Floats]:
    """The parameters that a seed begins with, on one device."""
    return _by_layer(nnx.split(_GatedBlock(nnx.Rngs(seed)))[1])


@functools.cache
def _one_device(seed: int) -> tuple[list[float], dict[str, Floats]]:
    """The losses on one device, and Adam's first moments after two steps."""
    graph, params = nnx.split(_GatedBlock(nnx.Rngs(seed)))
    adam, losses, moments = optax.adam(1e-2), [], {}
    state = adam.init(params)

    @jax.jit
    def step(params: Any, state: Any, x: Any) -> tuple[Any, Any, Any]:
        def loss_fn(params: Any) -> Any:
            return ((nnx.merge(graph, params)(x) - jnp.tanh(x)) ** 2).mean()

        loss, grads = jax.value_and_grad(loss_fn)(params)
        updates, state = adam.update(grads, state, params)
        return optax.apply_updates(params, updates), state, loss

    for turn, x in enumerate(_batches()):
        params, state, loss = step(params, state, x)
        losses.append(float(loss))
        if turn == 1:
            moments = _by_layer(state[0].mu)
    return losses, moments


def _by_layer(tree: Any) -> dict[str, Floats]:
    """The arrays of a tree of NNX by names like `gate/kernel`."""
    return {
        jax.tree_util.keystr(path[:2], simple=True, separator="/"): np.asarray(leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }
