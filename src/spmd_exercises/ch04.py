"""Checks of chapter 4, computation follows data."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import spmd_helpers as spmd
from spmd_helpers import CheckFailed

from ._setting import (
    abstract,
    compiled,
    devices,
    make_mesh,
    next_thought,
    normal,
    on,
    require_function,
    short,
    word,
)

_KINDS = ("nothing", "all-gather", "all-reduce")


def check_4_1(a: object, b: object, c: object, d: object, e: object) -> None:
    """What is communicated in five products."""
    answers = dict(zip("abcde", (a, b, c, d, e), strict=True))
    words = {name: word(answer, name, _KINDS) for name, answer in answers.items()}
    wrong = [name for name, kind in _exchanges().items() if words[name] != kind]
    if wrong:
        raise CheckFailed(
            f"look again at {', '.join(wrong)}. Is the contracting dimension sharded"
            " in both matrices, in one, or in neither? And which axis does the other"
            " dimension of each use?"
        )


def check_4_2(loss: Callable[..., Any]) -> None:
    """A cross-entropy of logits that are sharded by the vocabulary, in 1,000 bytes."""
    require_function(loss, "loss")
    mesh = make_mesh(data=4, model=2)
    for seed in (0, 1):
        logits = 30 * normal(seed, 48, 40)
        logits[::3] -= 300 * seed  # rows far below the others
        labels = np.random.default_rng(seed).integers(0, 40, 48).astype(np.int32)
        placed = jax.device_put(
            (logits, labels), (on(mesh, "data", "model"), on(mesh, "data"))
        )
        program = compiled(loss, *placed)
        with next_thought(
            "It is the mean over all 48 rows, each with the full vocabulary, in"
            " float32; logits of 100 may not overflow, and a row that is far below the"
            " others may not vanish: which of these is missing?"
        ):
            result = {"loss": program(*placed)}
            spmd.assert_close(result, {"loss": _cross_entropy(logits, labels)}, 1e-5)
    with next_thought(
        "Which numbers does a device need from the other half of the vocabulary, for"
        " each row, and how many are they?"
    ):
        report = spmd.xray(program)
        spmd.assert_collectives(report, at_least_bytes=4, at_most_bytes=1000)


def check_4_3(turned: Callable[..., Any]) -> None:
    """A function that shards its result inside of jit, for little traffic."""
    require_function(turned, "turned")
    mesh = make_mesh(data=4, model=2)
    for seed, shape in enumerate([(48, 40), (16, 8)]):
        x = normal(seed, *shape)
        placed = jax.device_put(x, on(mesh, "data", "model"))
        budget = 2 * x.nbytes // 8
        program = jax.jit(turned).lower(placed).compile()
        result = program(placed)
        where = f"x is float32{list(shape)}, sharded as P('data', 'model')."
        with next_thought(f"{where} Is it tanh of each number, in float32?"):
            spmd.assert_close({"result": result}, {"result": np.tanh(x)}, rtol=1e-4)
            _require_dtype(result, x)
        with next_thought(
            f"{where} Does your code state this spec, in a way that works inside jit?"
        ):
            spmd.assert_sharding({"result": result}, P("model", "data"), mesh)
        with next_thought(f"{where} Is it replicated in between?"):
            spmd.assert_collectives(spmd.xray(program), at_most_bytes=budget)


def check_4_4(at_home: Callable[..., Any]) -> None:
    """Arrays that are elsewhere are replicated over the mesh, the others stay."""
    require_function(at_home, "at_home")
    mesh = make_mesh(data=4, model=2)
    specs = [
        [P("data", "model"), P(("model", "data")), P("data")],
        [P(None, "data"), P("model"), P()],
    ]
    for turn, (w, v, b) in enumerate(specs):
        state, wanted = _state_of_many_places(mesh, w, v, b, turn)
        values = jax.device_get(state)
        result = at_home(state)
        if not isinstance(result, Mapping):
            raise CheckFailed(
                f"at_home returned {short(result)}, but has to return a dict like state"
            )
        for path, leaf in jax.tree_util.tree_leaves_with_path(result):
            if isinstance(leaf, jax.Array) and leaf.is_deleted():
                raise CheckFailed(f"{jax.tree_util.keystr(path)} is already deleted")
        with next_thought("May a new sharding change the values or their dtype?"):
            spmd.assert_close(result, values)
            jax.tree.map(_require_dtype, result, values)
        with next_thought(
            "How can you see which devices an array is on? Which arrays are on all"
            " devices of the mesh already?"
        ):
            spmd.assert_sharding(result, wanted, mesh)
        loose = [leaf for leaf in jax.tree.leaves(result) if not leaf.committed]
        if loose:
            raise CheckFailed(
                f"{len(loose)} arrays are still uncommitted: what commits an array to"
                " its devices?"
            )


def check_4_5(make_params: Callable[..., Any]) -> None:
    """Parameters that are made in shards, by one jitted function."""
    _require_jitted(make_params)
    mesh = make_mesh(data=4, model=2)
    specs = {"w1": P("data", "model"), "w2": P("model", "data"), "b": P("model")}
    for seed in (0, 5):
        key = jax.random.key(seed)
        program = compiled(make_params, key)
        params = program(key)
        with next_thought(
            f"The key is jax.random.key({seed}). Which matrix is drawn with which of"
            " its two keys, in which shape and dtype?"
        ):
            spmd.assert_close(params, _reference_params(seed))
            jax.tree.map(_require_dtype, params, _reference_params(seed))
        with next_thought("What tells jit how its results have to be sharded?"):
            spmd.assert_sharding(params, specs, mesh)
    with next_thought("Is a matrix replicated before it is sharded?"):
        spmd.assert_peak_memory(spmd.xray(program), at_most_bytes=4 * 2**20)


@functools.cache
def _exchanges() -> dict[str, str]:
    """What each product of exercise 4.1 exchanges, by its compiled program."""
    mesh = make_mesh(data=4, model=2)
    specs = {
        "a": (P("data"), P("data")),
        "b": (P(None, "data"), P("data", "model")),
        "c": (P("model"), P(None, "data")),
        "d": (P("data", "model"), P("model", None)),
        "e": (P("model", "data"), P(None, "data")),
    }
    kinds = {}
    for name, (of_x, of_w) in specs.items():
        x, w = abstract((48, 40), on(mesh, *of_x)), abstract((40, 24), on(mesh, *of_w))
        present = {one.kind for one in spmd.xray(jnp.matmul, x, w).collectives}
        kinds[name] = " and ".join(sorted(present)) or "nothing"
    return kinds


def _cross_entropy(logits: np.ndarray[Any, Any], labels: np.ndarray[Any, Any]) -> float:
    """The mean cross-entropy, in float64 by NumPy."""
    exact = logits.astype(np.float64)
    peak = exact.max(axis=1)
    totals = np.log(np.exp(exact - peak[:, None]).sum(axis=1)) + peak
    return float((totals - exact[np.arange(len(labels)), labels]).mean())


def _state_of_many_places(
    mesh: Mesh, w: P, v: P, b: P, turn: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Arrays on the mesh, loose ones and pinned ones, and the specs they must get.

    Which of them has which name is another matter at each turn.
    """
    few = make_mesh(data=4)
    line, table, pinned, by_b, by_v, by_w = (
        jnp.array(normal(10 * turn + seed, *shape))
        for seed, shape in enumerate([(16,), (8, 12), (16,), (16,), (8, 4), (8, 12)])
    )
    arrays = [
        line,
        jax.device_put(jnp.int32(3), devices(8)[5]),
        jax.device_put(table, on(few, "data")),
        jax.device_put(pinned, devices(8)[0]),
        jax.device_put(by_b, on(mesh, *b)),
        jax.device_put(by_v, on(mesh, *v)),
        jax.device_put(by_w, on(mesh, *w)),
    ]
    specs = [P(), P(), P(), P(), b, v, w]

    names = {"b": 0, "count": 0, "few": 0, "v": 0, "w": 0}
    tree: Any = jax.tree.structure({**names, "m": {"b": 0, "deep": {"b": 0}}})
    state, wanted = (
        tree.unflatten(leaves[turn:] + leaves[:turn]) for leaves in (arrays, specs)
    )
    return state, wanted


@functools.cache
def _reference_params(seed: int) -> dict[str, Any]:
    """The parameters of exercise 4.5 as the host has them."""
    key1, key2 = jax.random.split(jax.random.key(seed))
    params = {
        "w1": 0.02 * jax.random.normal(key1, (512, 2048)),
        "w2": 0.02 * jax.random.normal(key2, (2048, 512)),
        "b": jnp.zeros(2048),
    }
    host: dict[str, Any] = jax.device_get(params)
    return host


def _require_jitted(make_params: object) -> None:
    inner = make_params
    while isinstance(inner, functools.partial):
        inner = inner.func
    if not (hasattr(inner, "lower") or isinstance(inner, jax.stages.Compiled)):
        raise CheckFailed(
            f"make_params is {short(make_params)}, but has to be what jax.jit returns:"
            " outside jit, an array is first made at full size on one device"
        )


def _require_dtype(result: Any, wanted: Any) -> None:
    if result.dtype != wanted.dtype:
        raise CheckFailed(
            f"a result is {result.dtype}{[*result.shape]}, but has to be {wanted.dtype}"
        )
