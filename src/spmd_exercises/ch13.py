"""Checks of chapter 13, a training loop from its first step to a restart."""

import contextlib
import functools
import itertools
import math
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from IPython.utils.capture import capture_output
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import spmd_helpers as spmd
from spmd_helpers import CheckFailed

from ._setting import (
    kind_of,
    make_mesh,
    next_thought,
    normal,
    number,
    on,
    require_own_buffers,
)

_EPOCHS = (0, 1, 2, 3, 12_600)  # 12,600 can be divided by 2 to 10, by 12, by 100


def check_13_1(epoch_batch: Callable[..., Any]) -> None:
    """Batches that go through all windows, in another order in each epoch."""
    for total, size, rows, dtype, mesh in [
        (1000, 9, 8, np.int32, make_mesh(data=4, model=2)),
        (515, 5, 16, np.uint16, make_mesh(data=2, model=4)),
    ]:
        tokens = np.arange(7, total + 7, dtype=dtype)
        give = functools.partial(epoch_batch, tokens, size, rows)
        with next_thought(f"({total} tokens, size {size}, rows {rows})"):
            _require_epochs(give, tokens, size, rows, mesh)
            if not np.array_equal(tokens, np.arange(total) + 7):
                raise CheckFailed("epoch_batch changes tokens, which are the caller's")


def _require_epochs(
    give: Callable[[int, Mesh], Any],
    tokens: np.ndarray[Any, Any],
    size: int,
    rows: int,
    mesh: Mesh,
) -> None:
    steps = len(tokens) // size // rows
    for step in (0, steps + 1):
        _require_batch(give(step, mesh), (rows, size), tokens.dtype, mesh)
    epochs = [
        np.concatenate([give(steps * epoch + n, mesh) for n in range(steps)]).astype(
            int
        )
        for epoch in _EPOCHS
    ]
    _require_repeats(give, epochs, rows, mesh)
    for epoch, windows in zip(_EPOCHS, epochs, strict=True):
        _require_windows(windows, size, epoch)
    _require_orders([windows[:, 0].tolist() for windows in epochs], rows)


def _require_repeats(
    give: Callable[[int, Mesh], Any], epochs: list[Any], rows: int, mesh: Mesh
) -> None:
    """A step has the same rows whenever it is called, on any mesh."""
    steps, line = len(epochs[0]) // rows, make_mesh(data=8, model=1)
    for step, where in [(steps + 1, mesh), (0, mesh), (2, line)]:
        epoch, at = divmod(step, steps)
        before = epochs[epoch][at * rows : (at + 1) * rows]
        if not np.array_equal(give(step, where), before):
            words = "" if where is mesh else " on a different mesh"
            raise CheckFailed(
                f"step {step} gives different rows when it is called again{words}."
                " What besides the step determines them?"
            )


def _require_batch(batch: Any, shape: tuple[int, int], dtype: Any, mesh: Mesh) -> None:
    if not isinstance(batch, jax.Array):
        raise CheckFailed(f"a batch is {kind_of(batch)}, not a jax.Array")
    if batch.shape != shape or batch.dtype != dtype:
        raise CheckFailed(
            f"a batch is {batch.dtype}{list(batch.shape)}, but must be"
            f" {dtype}{list(shape)}, like the tokens"
        )
    with next_thought("With which mesh and which spec is the batch placed?"):
        spmd.assert_sharding({"batch": batch}, P("data"), mesh)


def _require_windows(windows: Any, size: int, epoch: int) -> None:
    """The rows of an epoch are windows of the tokens, each at most once."""
    if ((windows[:, 0] - 7) % size).any() or (np.diff(windows, axis=1) != 1).any():
        raise CheckFailed(
            f"in epoch {epoch} a row is not one of the windows. At which tokens do the"
            " windows begin?"
        )
    if len(set(windows[:, 0].tolist())) < len(windows):
        raise CheckFailed(
            f"a window occurs twice in epoch {epoch}. Do all steps of an epoch use the"
            " same order?"
        )


def _require_orders(orders: list[list[int]], rows: int) -> None:
    """No two epochs share more than chance; and the first is not the text's order."""
    follows = [set(itertools.pairwise(order)) for order in orders]
    at_step = [{(w, i // rows) for i, w in enumerate(order)} for order in orders]
    for what, pairs in {
        "are followed by the same window": follows,
        "are in the same step": at_step,
    }.items():
        for i, j in itertools.combinations(range(len(pairs)), 2):
            alike = len(pairs[i] & pairs[j]) / len(orders[0])
            if alike >= 0.5:
                raise CheckFailed(
                    f"in epochs {_EPOCHS[i]} and {_EPOCHS[j]}, {alike:.0%} of the"
                    f" windows {what}: this is not a new order. What does the order"
                    " depend on?"
                )
    if orders[0] == sorted(orders[0]):
        raise CheckFailed(
            "the first epoch is not shuffled: its windows are in the order of the text"
        )


def check_13_2(a: object, b: object, c: object, d: object) -> None:
    """Bytes of parts of the run on a device, and the mesh with the fewest."""
    wanted = {
        "a": _stored(["head"], 4, 2),
        "b": _stored(["embed"], 4, 2),
        "c": _stored(["norms"], 4, 2),
    }
    questions = {
        "a": "along which axes is the kernel of the head sharded?",
        "b": "along which axes is embed sharded, and along which not?",
        "c": "how many norms are there, and are their scales sharded?",
    }
    for (name, value), answer in zip(wanted.items(), (a, b, c), strict=True):
        if number(answer, name) != value:
            raise CheckFailed(
                f"{name} is {answer}: {questions[name]} And how many float32 arrays"
                " does training store for each parameter?"
            )
    meshes = [(8, 1), (4, 2), (2, 4), (1, 8)]
    sizes = {axes: _stored(list(_WEIGHTS), *axes) for axes in meshes}
    if not isinstance(d, tuple | list | np.ndarray) or np.shape(d) != (2,):
        raise CheckFailed(f"d is {d!r}, not a pair of numbers like (8, 1)")
    pair = tuple(number(entry, "d") for entry in d)
    if pair != min(sizes, key=lambda axes: sizes[axes]):
        raise CheckFailed(
            f"d is {d}, which is not the mesh with the fewest bytes. Arrays sharded"
            " along both axes take an eighth on all four meshes: which arrays do not?"
        )


# Of the chapter's model: the shape, how many of it there are, and its spec.
_WIDE = P("data", "model")
_WEIGHTS = {
    "embed": ((96, 64), 1, P("model")),
    "place": ((40, 64), 1, P()),
    "norms": ((64,), 5, P()),
    "q, k, v": ((64, 64), 6, _WIDE),
    "out": ((64, 64), 2, P("model", "data")),
    "up": ((64, 160), 2, _WIDE),
    "down": ((160, 64), 2, P("model", "data")),
    "head": ((64, 96), 1, _WIDE),
}


def _stored(names: Sequence[str], data: int, model: int) -> int:
    """Bytes on a device of these weights, each with its two moments."""
    mesh, total = {"data": data, "model": model}, 0
    for shape, count, spec in (_WEIGHTS[name] for name in names):
        info = spmd.sharding(shape, spec, mesh=mesh, dtype=np.float32)
        total += 3 * count * info.bytes_per_device
    return total


def check_13_3(make: Callable[..., Any]) -> None:
    """A state made by one compiled function, in pieces on every device."""
    for shape, mesh in [
        ((256, 96), make_mesh(data=4, model=2)),
        ((64, 320), make_mesh(data=2, model=4)),
    ]:
        traced: list[bool] = []
        init = functools.partial(_init, shape, traced)
        specs = {"w": P("data", "model"), "v": P("model", "data")}
        places = {name: on(mesh, *spec) for name, spec in specs.items()}
        key = jax.random.key(shape[0])
        with _aot_programs() as programs, _set_meshes() as meshes:
            state = make(init, key, places)
        if not traced or not all(traced):
            raise CheckFailed(
                "init ran outside jit, so one device made each array at full size."
                " Which function has to be compiled?"
            )
        with next_thought(f"(w is {list(shape)} on {dict(mesh.shape)})"):
            _require_state(state, init(key), specs, mesh)
            require_own_buffers(state=state)
        run_make = functools.partial(_run_make, make, init, places)
        with _set(meshes):
            program = programs[0] if _is_one(programs, run_make, key) else run_make
            peak, total = spmd.xray(program, key).peak_memory, spmd.memory(state)
        if peak is not None and 2 * peak > total.total_bytes:
            raise CheckFailed(
                f"the peak is {peak:,} bytes per device, but the state has only"
                f" {total.total_bytes:,} bytes in total. Does the function that makes"
                " it know the sharding of each array?"
            )


def _require_state(state: Any, params: Any, specs: dict[str, P], mesh: Mesh) -> None:
    """The parameters and two trees of zeros, in float32 and each in its place."""
    if not isinstance(state, dict) or {*state} != {"params", "mu", "nu"}:
        names = f" with {[*state]}" if isinstance(state, dict) else ""
        raise CheckFailed(
            f"make returned {kind_of(state)}{names}, but a dict with params, mu and nu"
            " is expected"
        )
    zeros = jax.tree.map(np.zeros_like, params)
    with next_thought("Are the params those of init(key), in its dtype?"):
        spmd.assert_close(state, {"params": params, "mu": zeros, "nu": zeros})
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        if getattr(leaf, "dtype", None) != np.float32:
            raise CheckFailed(
                f"{jax.tree_util.keystr(path)} is {getattr(leaf, 'dtype', leaf)}, but"
                " init makes float32: the dtype may not change"
            )
    with next_thought("For which arrays does the compiled function know the sharding?"):
        spmd.assert_sharding(state, {name: specs for name in state}, mesh)


def _init(shape: tuple[int, int], traced: list[bool], key: Any) -> dict[str, Any]:
    """Two arrays that depend on the key; `traced` notes how it ran."""
    least = jax.random.key_data(key)[1].astype(jnp.float32)
    flat = jnp.arange(math.prod(shape), dtype=jnp.float32)
    traced.append(isinstance(flat + least, jax.core.Tracer))
    w, v = (flat % 101 + least) / 7, (flat % 103 - least) / 7
    return {"w": w.reshape(shape), "v": v.reshape(shape[::-1])}


def _run_make(make: Callable[..., Any], init: Any, places: Any, key: Any) -> Any:
    return make(init, key, places)


@contextlib.contextmanager
def _aot_programs() -> Iterator[list[jax.stages.Compiled]]:
    """The programs that `lower(...).compile()` makes inside the block."""
    programs: list[jax.stages.Compiled] = []
    compile_ = jax.stages.Lowered.compile

    def compile(self: jax.stages.Lowered, *args: Any, **kwargs: Any) -> Any:
        programs.append(compile_(self, *args, **kwargs))
        return programs[-1]

    with mock.patch.object(jax.stages.Lowered, "compile", compile):
        yield programs


@contextlib.contextmanager
def _set_meshes() -> Iterator[list[Mesh]]:
    """The meshes that are set inside the block."""
    meshes: list[Mesh] = []
    set_mesh: Callable[[Mesh], Any] = jax.set_mesh

    def note(mesh: Mesh) -> Any:
        meshes.append(mesh)
        return set_mesh(mesh)

    with mock.patch.object(jax, "set_mesh", note):
        yield meshes


@contextlib.contextmanager
def _set(meshes: list[Mesh]) -> Iterator[None]:
    """Set the last mesh for a function that sets it; it can't where it is traced."""
    if not meshes:
        yield
        return
    with (
        jax.set_mesh(meshes[-1]),
        mock.patch.object(jax, "set_mesh", contextlib.nullcontext),
    ):
        yield


def _is_one(
    compiled: list[jax.stages.Compiled], run_make: Callable[..., Any], key: Any
) -> bool:
    """Whether the state is of one program compiled ahead of time; if not, of one jit.

    Raises:
        CheckFailed: when it takes several programs, or work outside of them.
    """
    if compiled:
        counts = [len(jax.tree.leaves(one.output_shardings)) for one in compiled]
        if counts != [6]:
            raise CheckFailed(_several(f"programs with {counts} arrays"))
        return True
    names = [
        str(equation.params.get("name", equation.primitive.name))
        for equation in jax.make_jaxpr(run_make)(key).eqns
        if not all(_is_key(variable.aval) for variable in equation.outvars)
    ]
    if len(names) != 1:
        raise CheckFailed(_several(", ".join(names)))
    return False


def _is_key(array: Any) -> bool:
    return bool(jnp.issubdtype(array.dtype, jax.dtypes.prng_key))


def _several(words: str) -> str:
    return (
        f"the state is made by more than one function: {words}. Can the function that"
        " makes the parameters make the zeros too, and shard all of them?"
    )


def check_13_4(restore: Callable[..., Any]) -> None:
    """A checkpoint of other hands, each array read straight to its place."""
    m, none = "model", None
    source = {
        "w": normal(1, 12, 6),
        "deep": {"b": normal(2, 6), "er": {"n": normal(3)}},
        "half": normal(4, 16, 4).astype(jnp.bfloat16),
        "seen": np.arange(24, dtype=np.int32).reshape(2, 12),
    }
    specs = {
        "w": P("data", m),
        "deep": {"b": P(m), "er": {"n": P()}},
        "half": P(none, m),
        "seen": P(m, "data"),
    }
    wanted = {
        (2, 4): (P("data"), P(), P(none, m), P(none, "data")),
        (1, 2): (P("data", m), P(m), P(none, m), P(m, "data")),
        (8, 1): (P(none, m), P(m), P(none, m), P(m)),
    }
    with _manager() as manager:
        saved = jax.device_put(source, on(make_mesh(data=4, model=2)))
        for step, tree in {7: saved, 9: jax.tree.map(jnp.zeros_like, saved)}.items():
            manager.save(step, args=ocp.args.StandardSave(tree))
            manager.wait_until_finished()
        for (data, model), (w, b, half, ids) in wanted.items():
            mesh = make_mesh(data=data, model=model)
            deep = {"b": b, "er": {"n": P()}}
            places = {"w": w, "deep": deep, "half": half, "seen": ids}
            with next_thought(f"(a mesh of {data} × {model})"):
                elsewhere = _Elsewhere(manager)
                got = restore(elsewhere, 7, specs, mesh)
                _require_restored(got, source, places, mesh, elsewhere)


class _Elsewhere:
    """A manager on a machine without the devices that saved."""

    def __init__(self, manager: Any) -> None:
        self._manager = manager
        self.target: Any = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._manager, name)

    def restore(self, step: int, args: Any = None, **more: Any) -> Any:
        self.target = getattr(args, "item", None)
        leaves = jax.tree.leaves(self.target)
        if not leaves or not all(getattr(leaf, "sharding", None) for leaf in leaves):
            raise CheckFailed(
                "this restore does not state where each array goes, but the devices"
                " that saved the arrays do not exist here. What can a leaf of the"
                " target state?"
            )
        return self._manager.restore(step, args=args, **more)


def _require_restored(
    got: Any, source: Any, places: Any, mesh: Mesh, elsewhere: _Elsewhere
) -> None:
    if not hasattr(got, "keys"):
        raise CheckFailed(
            f"restore returned {kind_of(got)}, but the tree of arrays is expected"
        )
    tree = dict(got)
    spmd.assert_close(tree, source)
    pairs = zip(jax.tree.leaves(tree), jax.tree.leaves(source), strict=True)
    for leaf, saved in pairs:
        if leaf.dtype != saved.dtype:
            raise CheckFailed(
                f"an array of shape {list(saved.shape)} was saved as {saved.dtype},"
                f" but is {leaf.dtype} now. Which dtype does its target have?"
            )
    with next_thought(
        "Which mesh does the target name, and which entries of each spec divide?"
    ):
        spmd.assert_sharding(tree, places, mesh)
    read, kept = (
        spmd.memory(one).largest_device_bytes
        for one in (elsewhere.target or tree, tree)
    )
    if read > kept:
        raise CheckFailed(
            f"{read:,} bytes are read per device, but only {kept:,} are needed there."
            " Can the target state the final sharding at once?"
        )


def check_13_5(mean_loss: Callable[..., Any]) -> None:
    """A mean over all rows: equal batches, no waiting, and one fetch."""
    for seed, (count, size, axes, dtype) in enumerate(
        [
            (37, 16, (4, 2), np.float32),
            (24, 8, (8, 1), np.float32),
            (13, 8, (2, 4), np.int32),
        ]
    ):
        mesh = make_mesh(data=axes[0], model=axes[1])
        rows = (normal(seed, count, 5) * (1 + 9 * (dtype is np.int32))).astype(dtype)
        factor = _factor(rows, size)
        score = _Score(mesh, size, factor, -(-count // size))
        with next_thought(f"({count} rows in batches of {size} on {axes})"):
            began = time.monotonic()
            got = mean_loss(score, rows, size, mesh)
            patience = 0.5 + 2 * (time.monotonic() - began)
            _require_batches(score, rows.dtype)
            if not isinstance(got, float):
                raise CheckFailed(
                    f"mean_loss returned {kind_of(got)}, but a Python float is expected"
                )
            mean = factor * _losses(rows.astype(np.float64)).mean()
            with next_thought(
                "Is each row counted once, what is the sum divided by, and is it all"
                " float32?"
            ):
                spmd.assert_close({"mean": got}, {"mean": mean}, rtol=1e-4)
            _require_no_waiting(mean_loss, score, rows, patience)


def _losses(rows: Any) -> Any:
    """A loss of each row, which is not zero for a row of zeros."""
    return (rows**2).sum(axis=1) + 3


def _factor(rows: Any, size: int) -> float:
    """A random factor of the losses at which sums in half precision are off."""
    rng, losses = np.random.default_rng(), _losses(rows.astype(np.float64))
    parts = [losses[at : at + size].sum() for at in range(0, len(rows), size)]
    while True:
        factor = float(rng.uniform(2, 9))
        half = sum(np.array([factor * part for part in parts], np.float16))
        if abs(float(half) / (factor * losses.sum()) - 1) > 2e-4:
            return factor


class _Score:
    """A score like the chapter's: jitted, the sum of weight × loss over the rows.

    Its results come only when `gate` is open, or after `patience` seconds, and it
    notes the batches that it gets.
    """

    def __init__(self, mesh: Mesh, size: int, factor: float, batches: int) -> None:
        self.mesh, self.size, self.batches = mesh, size, batches
        self.given: list[dict[str, Any]] = []
        self.gate, self.late, self.patience = threading.Event(), False, 0.0
        self.waited_at, self.blocked = 0, False
        self.gate.set()
        scalar = jax.ShapeDtypeStruct((), np.float32)

        def total(part: Any, weights: Any) -> Any:
            losses = factor * _losses(part)
            return jax.pure_callback(self._pass, scalar, (losses * weights).sum())

        self._total = jax.jit(total, out_shardings=on(mesh))

    def __call__(self, part: Any, weights: Any) -> Any:
        self.given.append({"rows": part, "weights": weights})
        late = self.late
        result = self._total(part, weights)
        self.blocked |= self.late and not late  # the call itself took too long
        if len(self.given) >= self.batches:
            self.gate.set()
        return result

    def close(self, patience: float) -> None:
        """No result until all batches are there, or until one was waited for."""
        self.given, self.late, self.patience = [], False, patience
        self.blocked = False
        self.gate.clear()

    def _pass(self, value: Any) -> Any:
        if not self.gate.wait(self.patience):
            self.late, self.waited_at = True, len(self.given)
            self.gate.set()
        return np.asarray(value, np.float32)


def _require_batches(score: _Score, dtype: Any) -> None:
    """Each call got `size` rows and float32 weights, both by P("data")."""
    wanted = [f"{dtype}[{score.size}, 5]", f"float32[{score.size}]"]
    for pair in score.given:
        arrays = [
            f"{getattr(array, 'dtype', type(array).__name__)}{list(np.shape(array))}"
            for array in pair.values()
        ]
        if arrays != wanted:
            raise CheckFailed(
                f"score got rows and weights {' and '.join(arrays)}, not"
                f" {' and '.join(wanted)}: it compiles for each shape and dtype. What"
                " can fill the missing rows, and which dtype do the weights have?"
            )
        with next_thought("How does the score expect its rows to be sharded?"):
            spmd.assert_sharding(pair, P("data"), score.mesh)
    if len(score.given) != score.batches:
        raise CheckFailed(
            f"score was called {len(score.given)} times, but there are {score.batches}"
            " batches. Which rows are left out or used twice?"
        )


def _require_no_waiting(
    mean_loss: Callable[..., Any], score: _Score, rows: Any, patience: float
) -> None:
    """All batches are on their way before the first result, and one fetch gets all."""
    for longer in (1, 4):  # a busy machine is late once, who waits is late each time
        score.close(longer * patience)
        with _fetches(largest=score.batches) as fetched:
            mean_loss(score, rows, score.size, score.mesh)
        waits = score.late and not score.blocked
        if not waits:
            break
    if waits:
        raise CheckFailed(
            f"the host waits for a result after {score.waited_at} of {score.batches}"
            " batches, while the devices are idle. Which line needs the number, and"
            " can it be moved after the loop?"
        )
    if len(fetched) > 1:
        raise CheckFailed(
            f"the results are fetched {len(fetched)} times, one after the other. Can"
            " one call fetch all of them, or the devices add them up first?"
        )


@contextlib.contextmanager
def _fetches(largest: int) -> Iterator[set[object]]:
    """The arrays of at most `largest` numbers that the host reads, one by one.

    Arrays whose copies were begun before they are read, as `jax.device_get` does for
    all of its tree, count as one.
    """
    fetched: set[object] = set()
    begun: dict[int, object] = {}
    read: dict[int, object] = {}

    def watch(frame: FrameType, event: str, arg: object) -> None:
        if event != "call" or "jax" not in frame.f_globals.get("__name__", ""):
            return
        if frame.f_code.co_name == "copy_to_host_async":
            values = list(frame.f_locals.values())
            begun.update({id(leaf): leaf for leaf in jax.tree.leaves(values[:1])})
        elif frame.f_code.co_name == "_value":
            array = frame.f_locals["self"]
            if array.size <= largest:
                read[id(array)] = array
                fetched.add("begun" if id(array) in begun else id(array))

    before = sys.getprofile()
    sys.setprofile(watch)
    try:
        yield fetched
    finally:
        sys.setprofile(before)


def check_13_6(
    resume: Callable[..., Any],
    starter: Callable[..., Any],
    train_step: Callable[..., Any],
    batch: Callable[..., Any],
) -> None:
    """A run that goes on from its checkpoint, on any mesh, as if it never stopped."""
    mesh, wide = make_mesh(data=4, model=2), make_mesh(data=2, model=4)
    with jax.set_mesh(mesh), _manager() as early, _manager() as late:
        run = jax.tree.map(_other_key, starter(mesh)())
        specs = {path: leaf.sharding.spec for path, leaf in _arrays(run).items()}
        losses = []
        for step in range(9):
            for manager in {2: [early, late], 5: [late]}.get(step, []):
                _save(manager, step, run)
            run, loss = train_step(run, batch(step, mesh))
            losses.append(float(loss))
        for manager, done, steps, where in [(early, 2, 2, mesh), (late, 5, 3, wide)]:
            with capture_output():  # the bars
                pair = resume(manager, where, steps)
            words = f"(saved after {done} steps, {steps} more on {dict(where.shape)})"
            with next_thought(words), jax.set_mesh(where):
                resumed, got = _run_and_losses(pair, specs)
                _require_losses(got, losses[done : done + steps])
                _require_run(resumed, specs, done + steps, where)
                _, loss = train_step(resumed, batch(done + steps, where))
                if not math.isclose(loss, losses[done + steps], rel_tol=1e-5):
                    raise CheckFailed(
                        "the losses are right, but the run that resume returns does"
                        " not continue from there: its next loss is"
                        f" {float(loss):.4f}, but should be"
                        f" {losses[done + steps]:.4f}. Is it the run that the last"
                        " step returned?"
                    )


@contextlib.contextmanager
def _manager() -> Iterator[Any]:
    """A manager of checkpoints in a folder that is gone afterwards."""
    with (
        tempfile.TemporaryDirectory() as folder,
        ocp.CheckpointManager(folder) as manager,
    ):
        yield manager


def _save(manager: Any, step: int, run: Any) -> None:
    """Save each part of a run as an item, as the chapter does."""
    items = {name: ocp.args.StandardSave(part) for name, part in run.items()}
    manager.save(step, args=ocp.args.Composite(**items))
    manager.wait_until_finished()


def _other_key(leaf: Any) -> Any:
    """A random key that no cell of the chapter has, in place of the run's."""
    return jax.device_put(jax.random.key(77), leaf.sharding) if _is_key(leaf) else leaf


def _arrays(run: Any) -> dict[str, Any]:
    """The arrays of a run by their paths; a random key as its numbers."""
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): (
            jax.random.key_data(leaf) if _is_key(leaf) else leaf
        )
        for path, leaf in jax.tree_util.tree_leaves_with_path(run)
    }


def _run_and_losses(pair: Any, specs: dict[str, P]) -> tuple[Any, Any]:
    """What resume returned, which must be a run and a list."""
    is_pair = isinstance(pair, tuple | list) and len(pair) == 2
    if not is_pair or not hasattr(pair[0], "keys") or not hasattr(pair[1], "__len__"):
        raise CheckFailed(
            f"resume returned {kind_of(pair)}, but has to return the pair (run, losses)"
        )
    leaves = [leaf for _, leaf in jax.tree_util.tree_leaves_with_path(pair[0])]
    if not all(isinstance(leaf, jax.Array) for leaf in leaves):
        raise CheckFailed("the run that resume returns has leaves that are not arrays")
    require_own_buffers(run=pair[0])
    if missing := sorted(set(specs) ^ set(_arrays(pair[0]))):
        raise CheckFailed(
            "the run that resume returns differs in structure from the saved run:"
            f" {missing[0]} is in one of them only"
        )
    return pair[0], pair[1]


def _require_losses(got: Any, wanted: list[float]) -> None:
    if len(got) != len(wanted):
        raise CheckFailed(
            f"resume returned {len(got)} losses for {len(wanted)} steps. How many"
            " steps does it have to take?"
        )
    losses = [number(loss, "a loss") for loss in got]
    close = np.isclose(losses, wanted, rtol=1e-5)
    if not close[0]:
        raise CheckFailed(
            f"the first loss is {losses[0]:.4f}, but should be {wanted[0]:.4f}: same"
            " parameters, same rows, same random numbers?"
        )
    if not close.all():
        raise CheckFailed(
            "the first loss is right, but a later one is not: what does the update use"
            " that the loss does not?"
        )


def _require_run(run: Any, specs: dict[str, P], steps: int, mesh: Mesh) -> None:
    """The run has done these steps and is sharded on `mesh` as it was when saved."""
    (count,) = (int(leaf) for leaf in jax.tree.leaves(run["optimizer"]["step"]))
    if count != steps:
        raise CheckFailed(
            f"the run that resume returns counts {count} steps, but should count"
            f" {steps}. Is it the run after the last step?"
        )
    with next_thought(
        "On which mesh, and with which specs, is the run restored and trained?"
    ):
        spmd.assert_sharding(_arrays(run), specs, mesh)
