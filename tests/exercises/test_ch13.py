"""Chapter 13: its checks, judged by right and wrong answers."""

import re
import tempfile
from functools import partial, reduce

import jax
import numpy as np
import optax
import orbax.checkpoint as ocp
from flax import nnx

from spmd_exercises._setting import devices, make_mesh, on
from spmd_exercises.ch13 import _WEIGHTS, _stored
from tests.book.chapters import read

from .judging import YES, Answers, AnswersAreJudged, imports


class TestChapter13(AnswersAreJudged):
    pass


def test_the_weights_of_the_check_are_those_of_the_chapters_model():
    printed = [
        output["text"]
        for cell in read("solutions", "13")
        for output in cell.get("outputs", [])
        if "the run: " in output.get("text", "")
    ]
    ((total, one),) = re.findall(
        r"the run: ([\d,]+) bytes in all, ([\d,]+) per device", *printed
    )
    rest = 4 + 4 + 8  # the steps, Adam's count, a random key
    for text, mesh in ((total, (1, 1)), (one, (4, 2))):
        assert int(text.replace(",", "")) == _stored(list(_WEIGHTS), *mesh) + rest


class Small(nnx.Module):
    """A model as small as can be, with dropout and weights on both axes."""

    def __init__(self, rngs):
        sharded = {"out_sharding": ("data", "model")}
        self.embed = nnx.Embed(16, 8, rngs=rngs)
        self.head = nnx.Linear(
            8, 16, use_bias=False, rngs=rngs, kernel_metadata=sharded
        )
        self.drop = nnx.Dropout(0.25, deterministic=False)

    def __call__(self, ids, rngs):
        return self.head(self.drop(self.embed(ids), rngs=rngs))


def build():
    model = Small(nnx.Rngs(0))
    return model, nnx.Optimizer(model, optax.adamw(3e-2), wrt=nnx.Param)


def a_run():
    """The chapter's run and loop, with a small model in place of its decoder."""
    mesh = make_mesh(data=4, model=2)
    graph = nnx.get_abstract_model(build, mesh)[0]

    def abstract_run(mesh):
        model, optimizer = nnx.get_abstract_model(build, mesh)[1].values()
        key = jax.ShapeDtypeStruct((), jax.random.key(0).dtype, sharding=on(mesh))
        return {"model": model, "optimizer": optimizer, "keys": {"dropout": key}}

    def first_run():
        model, optimizer = build()
        return {
            "model": nnx.state(model),
            "optimizer": nnx.state(optimizer),
            "keys": {"dropout": jax.random.key(1)},
        }

    def starter(mesh):
        places = jax.tree.map(lambda a: a.sharding, abstract_run(mesh))
        return jax.jit(first_run, out_shardings=places)

    def loss_fn(model, rows, rngs):
        logits = model(rows[:, :-1], rngs)
        return optax.softmax_cross_entropy_with_integer_labels(
            logits, rows[:, 1:]
        ).mean()

    @partial(jax.jit, donate_argnums=0)
    def train_step(run, rows):
        model, optimizer = nnx.merge(graph, {0: run["model"], 1: run["optimizer"]})
        key = jax.random.fold_in(run["keys"]["dropout"], optimizer.step[...])
        loss, grads = nnx.value_and_grad(loss_fn)(model, rows, nnx.Rngs(dropout=key))
        optimizer.update(model, grads)
        state = {"model": nnx.state(model), "optimizer": nnx.state(optimizer)}
        return state | {"keys": run["keys"]}, loss

    def batch(step, mesh=mesh):
        rows = np.random.default_rng((5, step)).integers(0, 16, (16, 5))
        return jax.device_put(rows.astype(np.int32), on(mesh, "data"))

    def train(run, steps, mesh, losses):
        with jax.set_mesh(mesh):
            for n in steps:
                run, loss = train_step(run, batch(n, mesh))
                losses.append(float(loss))
        return run

    def load(manager, mesh):
        target = {
            name: ocp.args.StandardRestore(part)
            for name, part in abstract_run(mesh).items()
        }
        step = manager.latest_step()
        return dict(manager.restore(step, args=ocp.args.Composite(**target)).items())

    return {
        "mesh": mesh,
        "starter": starter,
        "train_step": train_step,
        "batch": batch,
        "train": train,
        "load": load,
    }


def given():
    """What the chapter's cells have made where its answers stand."""
    run = a_run()

    return imports() | {
        "partial": partial,
        "reduce": reduce,
        "tempfile": tempfile,
        "optax": optax,
        "ocp": ocp,
        "nnx": nnx,
        "devices": devices(8),
        "on": lambda *entries, mesh=run["mesh"]: on(mesh, *entries),
        "V": 96,
        "D": 64,
        **run,
    }


EPOCH = "def epoch_batch(tokens, size, rows, step, mesh):\n"
WINDOWS = """\
    count = len(tokens) // size
    windows = tokens[: count * size].reshape(count, size)
    epoch, at = divmod(step, count // rows)
"""
PUT = '    return jax.device_put(mine, on("data", mesh=mesh))'
MAKE = "def make(init, key, places):\n"
WHOLE = """\
    def whole(key):
        params = init(key)
        zeros = jax.tree.map(jnp.zeros_like, params)
        return {"params": params, "mu": zeros, "nu": zeros}
"""
RESTORE = "def restore(manager, step, specs, mesh):\n"
TREE = """\
    tree = jax.tree.map(target, specs, manager.item_metadata(step).tree,
                        is_leaf=lambda spec: isinstance(spec, P))
    return manager.restore(step, args=ocp.args.StandardRestore(tree))
"""
MEAN = "def mean_loss(score, rows, size, mesh):\n"
PADDED = """\
    weights = np.ones(len(rows), np.float32)
    extra = -len(rows) % size
    padded = np.concatenate([rows, np.zeros((extra, rows.shape[1]), rows.dtype)])
    weights = np.concatenate([weights, np.zeros(extra, np.float32)])
    place = on("data", mesh=mesh)
    parts = [
        jax.device_put((padded[at : at + size], weights[at : at + size]), place)
        for at in range(0, len(padded), size)
    ]
"""
RESUME = "def resume(manager, mesh, steps):\n"
GO_ON = """\
    done = int(run["optimizer"]["step"][...])
    losses = []
    run = train(run, range(done, done + steps), mesh, losses)
    return run, losses
"""

ANSWERS = {
    "13.1": Answers(
        right=[
            EPOCH + "    per_epoch = len(tokens) // size // rows\n"
            "    rng = np.random.default_rng(1000 + step // per_epoch)\n"
            "    starts = size * rng.permutation(len(tokens) // size)\n"
            "    starts = starts.reshape(-1)[step % per_epoch * rows :][:rows]\n"
            "    mine = tokens[starts[:, None] + np.arange(size)]\n" + PUT,
            EPOCH + WINDOWS + "    key = jax.random.fold_in(jax.random.key(0), epoch)\n"
            "    order = np.asarray(jax.random.permutation(key, count))\n"
            "    order = order[: count // rows * rows].reshape(-1, rows)[at]\n"
            "    return jax.make_array_from_callback(\n"
            '        (rows, size), on("data", None, mesh=mesh),\n'
            "        lambda index: windows[order][index])",
            # sorted in a batch, for the sake of reading
            EPOCH
            + WINDOWS
            + "    order = np.random.default_rng((3, epoch)).permutation(count)\n"
            "    mine = windows[np.sort(order[at * rows : (at + 1) * rows])]\n" + PUT,
            # one generator that goes through the epochs, from the first one
            EPOCH + WINDOWS + "    rng = np.random.default_rng(3)\n"
            "    for _ in range(epoch + 1):\n"
            "        order = rng.permutation(count)\n"
            "    order = order[: count // rows * rows].reshape(-1, rows)\n"
            "    mine = windows[order[at]]\n" + PUT,
        ],
        wrong=[
            (  # random places, as in the chapter
                EPOCH + "    rng = np.random.default_rng((5, step))\n"
                "    starts = rng.integers(0, len(tokens) - size, rows)\n"
                "    mine = tokens[starts[:, None] + np.arange(size)]\n" + PUT,
                "occurs twice|is not one of the windows",
            ),
            (  # a new order in each step
                EPOCH
                + WINDOWS
                + "    order = np.random.default_rng(step).permutation(count)\n"
                "    mine = windows[order[at * rows : (at + 1) * rows]]\n" + PUT,
                "occurs twice",
            ),
            (  # one order for all epochs
                EPOCH
                + WINDOWS
                + "    order = np.random.default_rng(0).permutation(count)\n"
                "    mine = windows[order[at * rows : (at + 1) * rows]]\n" + PUT,
                "not a new order",
            ),
            (  # three orders, by turns
                EPOCH
                + WINDOWS
                + "    order = np.random.default_rng(epoch % 3).permutation(count)\n"
                "    mine = windows[order[at * rows : (at + 1) * rows]]\n" + PUT,
                "in epochs 0 and 3,",
            ),
            (  # ten orders, by turns
                EPOCH
                + WINDOWS
                + "    order = np.random.default_rng(epoch % 10).permutation(count)\n"
                "    mine = windows[order[at * rows : (at + 1) * rows]]\n" + PUT,
                "in epochs 0 and 12600",
            ),
            (  # characters as floats
                EPOCH
                + WINDOWS
                + "    order = np.random.default_rng((3, epoch)).permutation(count)\n"
                "    mine = windows[order[at * rows : (at + 1) * rows]] * 1.0\n" + PUT,
                "a batch is float32[8, 9], but must be int32[8, 9], like the tokens",
            ),
            (  # another order on a different mesh
                EPOCH + WINDOWS + "    seed = (mesh.shape['data'], epoch)\n"
                "    order = np.random.default_rng(seed).permutation(count)\n"
                "    mine = windows[order[at * rows : (at + 1) * rows]]\n" + PUT,
                "when it is called again on a different mesh",
            ),
            (  # the caller's tokens are shuffled
                EPOCH + WINDOWS + "    np.random.default_rng(epoch).shuffle(windows)\n"
                "    mine = windows[at * rows : (at + 1) * rows]\n" + PUT,
                "gives different rows|changes tokens|twice",
            ),
            (  # a batch of NumPy
                EPOCH
                + WINDOWS
                + "    order = np.random.default_rng((3, epoch)).permutation(count)\n"
                "    return windows[order[at * rows : (at + 1) * rows]]\n",
                "a batch is an ndarray, not a jax.Array",
            ),
            (  # two orders, by turns
                EPOCH
                + WINDOWS
                + "    order = np.random.default_rng(epoch % 2).permutation(count)\n"
                "    mine = windows[order[at * rows : (at + 1) * rows]]\n" + PUT,
                "not a new order",
            ),
            (  # one order, begun elsewhere
                EPOCH
                + WINDOWS
                + "    order = np.random.default_rng(0).permutation(count)\n"
                "    order = np.roll(order, 7 * epoch)\n"
                "    mine = windows[order[at * rows : (at + 1) * rows]]\n" + PUT,
                "not a new order",
            ),
            (  # a generator with a state
                "generator = np.random.default_rng(0)\n"
                + EPOCH
                + WINDOWS
                + "    order = generator.permutation(count)\n"
                "    mine = windows[order[at * rows : (at + 1) * rows]]\n" + PUT,
                "gives different rows",
            ),
            (  # replicated
                EPOCH
                + WINDOWS
                + "    order = np.random.default_rng((3, epoch)).permutation(count)\n"
                "    mine = windows[order[at * rows : (at + 1) * rows]]\n"
                "    return jax.device_put(mine, on(mesh=mesh))",
                "batch",
            ),
            (  # on the mesh of the chapter
                EPOCH
                + WINDOWS
                + "    order = np.random.default_rng((3, epoch)).permutation(count)\n"
                "    mine = windows[order[at * rows : (at + 1) * rows]]\n"
                '    return jax.device_put(mine, on("data"))',
                "batch",
            ),
            (  # not shuffled
                EPOCH
                + WINDOWS
                + "    mine = windows[at * rows : (at + 1) * rows]\n"
                + PUT,
                "not a new order",
            ),
            (  # each batch has the windows that it had
                EPOCH
                + WINDOWS
                + "    mine = np.random.default_rng(step).permutation(\n"
                "        windows[at * rows : (at + 1) * rows])\n" + PUT,
                "of the windows are in the same step: this is not a new order",
            ),
            (  # in order at first
                EPOCH
                + WINDOWS
                + "    order = np.random.default_rng(epoch).permutation(count)\n"
                "    order = order if epoch else np.arange(count)\n"
                "    mine = windows[order[at * rows : (at + 1) * rows]]\n" + PUT,
                "the first epoch is not shuffled",
            ),
            (  # always int32
                EPOCH
                + WINDOWS
                + (
                    "    order = np.random.default_rng((3, epoch)).permutation(count)\n"
                    "    mine = windows[order[at * rows:(at + 1) *"
                    " rows]].astype(np.int32)\n"
                    "    return jax.device_put(mine, on('data', mesh=mesh))"
                ),
                "must be uint16[16, 5], like the tokens",
            ),
        ],
    ),
    "13.2": Answers(
        right=[
            "a = 3 * 64 * 96 // 4 // 2 * 4\n"
            "b = 3 * spmd.sharding((96, 64), P('model'), mesh=mesh).bytes_per_device\n"
            "c, d = 3840, [1, 8]",
            "a, b, c, d = 9216, 36864.0, np.int64(3840), (1, 8)",
        ],
        wrong=[
            (
                "a, b, c, d = 9216, 9216, 3840, (1, 8)",
                "b is 9216: along which axes is embed sharded",
            ),
            ("a, b, c, d = 3072, 12288, 1280, (1, 8)", "a is 3072: along"),
            ("a, b, c, d = 9216, 36864, 480, (1, 8)", "c is 480: how many norms"),
            (
                "a, b, c, d = 9216, 36864, 3840, (8, 1)",
                "not the mesh with the fewest bytes",
            ),
            ("a, b, c, d = 9216, 36864, 3840, 'any'", "d is 'any', not a pair"),
            ("a, b, c, d = 9216, 36864, 3840, ('1', '8')", "d: '1' is not a number"),
            ("a, b, c, d = 9216, 36864, 3840, 8", "d is 8, not a pair of numbers"),
            (
                "a, b, c, d = 9216, '36 KiB', 3840, (1, 8)",
                "b: '36 KiB' is not a number",
            ),
            ("a, b, c, d = 9216.9, 36864, 3840, (1, 8)", "a is 9216.9"),
            (
                "a, b, c, d = 9216, 36864, 3840, (1.7, 8)",
                "not the mesh with the fewest bytes",
            ),
            ("a, b, c, d = 9216, 36864, float('nan'), (1, 8)", "c is nan"),
            (YES + "a = b = c = d = Yes()", "is not a number"),
        ],
    ),
    "13.3": Answers(
        right=[
            MAKE
            + WHOLE
            + "    places = dict.fromkeys(('params', 'mu', 'nu'), places)\n"
            "    return jax.jit(whole, out_shardings=places)(key)",
            MAKE + "    @jax.jit\n"
            "    def held(key):\n"
            "        params = lax.with_sharding_constraint(init(key), places)\n"
            "        zeros = lax.with_sharding_constraint(\n"
            "            jax.tree.map(lambda p: 0 * p, params), places)\n"
            "        return {'params': params, 'mu': zeros, 'nu': zeros}\n"
            "    return held(key)",
            # compiled ahead of time
            MAKE
            + WHOLE
            + "    places = dict.fromkeys(('params', 'mu', 'nu'), places)\n"
            "    lowered = jax.jit(whole, out_shardings=places).lower(key)\n"
            "    return lowered.compile()(key)",
            # the key is on all devices, and shapes are asked for first
            MAKE + "    (mesh,) = {place.mesh for place in places.values()}\n"
            "    key = jax.device_put(key, on(mesh=mesh))\n"
            "    shapes = jax.eval_shape(init, key)\n"
            "    def state(key):\n"
            "        zeros = {n: jnp.zeros(s.shape) for n, s in shapes.items()}\n"
            "        return {'params': init(key), 'mu': zeros, 'nu': zeros}\n"
            "    places = {n: places for n in ('params', 'mu', 'nu')}\n"
            "    return jax.jit(state, out_shardings=places)(key)",
            MAKE
            + (
                "    def build(key):\n"
                "        def put(tree):\n"
                "            return {n: lax.with_sharding_constraint(a,"
                " places[n].spec)\n"
                "                    for n, a in tree.items()}\n"
                "        params = put(init(key))\n"
                "        zeros = put(jax.tree.map(jnp.zeros_like, params))\n"
                "        return {'params': params, 'mu': zeros, 'nu': zeros}\n"
                "    with jax.set_mesh(places['w'].mesh):\n"
                "        return jax.jit(build)(key)"
            ),
        ],
        wrong=[
            (  # as it was
                MAKE + "    params = init(key)\n"
                "    zeros = jax.tree.map(jnp.zeros_like, params)\n"
                '    state = {"params": params, "mu": zeros, "nu": zeros}\n'
                "    return jax.device_put(state, {name: places for name in state})",
                "init ran outside jit",
            ),
            (  # jitted, and placed afterwards
                MAKE + WHOLE + "    state = jax.jit(whole)(key)\n"
                "    return jax.device_put(state, {name: places for name in state})",
                "the peak is|more than one function",
            ),
            (  # the places are for the parameters only
                MAKE + "    params = jax.jit(init, out_shardings=places)(key)\n"
                "    zeros = jax.tree.map(lambda p: jnp.zeros(p.shape), params)\n"
                '    return {"params": params, "mu": zeros, "nu": zeros}',
                "mu",
            ),
            (  # three functions
                MAKE + "    params = jax.jit(init, out_shardings=places)(key)\n"
                "    shapes = jax.eval_shape(init, key)\n"
                "    zeros = jax.jit(lambda: jax.tree.map(\n"
                "        lambda p: jnp.zeros(p.shape), shapes), out_shardings=places)\n"
                "    return {'params': params, 'mu': zeros(), 'nu': zeros()}",
                "more than one function: ",
            ),
            (  # three functions, compiled ahead of time
                MAKE + "    params = jax.jit(init, out_shardings=places)\n"
                "    params = params.lower(key).compile()\n"
                "    shapes = jax.eval_shape(init, key)\n"
                "    zeros = jax.jit(lambda: jax.tree.map(\n"
                "        lambda p: jnp.zeros(p.shape), shapes), out_shardings=places)\n"
                "    zeros = zeros.lower().compile()\n"
                "    return {'params': params(key), 'mu': zeros(), 'nu': zeros()}",
                "more than one function: programs with [2, 2] arrays",
            ),
            (  # placed afterwards, compiled ahead of time
                MAKE + WHOLE + "    state = jax.jit(whole).lower(key).compile()(key)\n"
                "    return jax.device_put(state, {name: places for name in state})",
                "the peak is",
            ),
            (  # moments in half precision
                MAKE
                + WHOLE.replace(
                    "jnp.zeros_like",
                    "partial(\n            jnp.zeros_like, dtype=jnp.bfloat16)",
                )
                + "    places = dict.fromkeys(('params', 'mu', 'nu'), places)\n"
                "    return jax.jit(whole, out_shardings=places)(key)",
                "['mu']['v'] is bfloat16, but init makes float32",
            ),
            (  # values in half precision
                MAKE
                + WHOLE.replace(
                    "init(key)",
                    "jax.tree.map(\n"
                    "            lambda p: p.astype(jnp.float16), init(key))",
                )
                + "    places = dict.fromkeys(('params', 'mu', 'nu'), places)\n"
                "    return jax.jit(whole, out_shardings=places)(key)",
                "['params']['v']: off by",
            ),
            (
                MAKE + WHOLE + "    jax.jit(whole)(key)",
                "make returned None",
            ),
            (  # replicated
                MAKE
                + WHOLE
                + "    whole_ = jax.tree.map(lambda s: NamedSharding(s.mesh, P()),\n"
                "                          places)\n"
                "    places = {name: whole_ for name in ('params', 'mu', 'nu')}\n"
                "    return jax.jit(whole, out_shardings=places)(key)",
                "is sharded as",
            ),
            (  # device_put inside jit, which Auto axes pass over
                MAKE + WHOLE + "    return jax.jit(lambda key: jax.device_put(\n"
                "        whole(key), dict.fromkeys(('params', 'mu', 'nu'), places))\n"
                "    )(key)",
                "is sharded|is on|peak",
            ),
            (  # other values
                MAKE
                + WHOLE.replace("init(key)", "init(jax.random.key(0))")
                + "    places = dict.fromkeys(('params', 'mu', 'nu'), places)\n"
                "    return jax.jit(whole, out_shardings=places)(key)",
                "params",
            ),
            (  # one array for both moments
                MAKE
                + (
                    "    @partial(jax.jit, out_shardings=(places, places))\n"
                    "    def build(key):\n"
                    "        params = init(key)\n"
                    "        return params, jax.tree.map(jnp.zeros_like, params)\n"
                    "    params, zeros = build(key)\n"
                    "    return {'params': params, 'mu': zeros, 'nu': zeros}"
                ),
                "share one buffer",
            ),
        ],
    ),
    "13.4": Answers(
        right=[
            RESTORE + "    saved = manager.item_metadata(step).tree\n"
            "    def target(path, leaf):\n"
            "        spec = specs\n"
            "        for key in path:\n"
            "            spec = spec[key.key]\n"
            "        entries = list(spec)\n"
            "        for d, axis in enumerate(entries):\n"
            "            if axis is not None and leaf.shape[d] % mesh.shape[axis]:\n"
            "                entries[d] = None\n"
            "        place = NamedSharding(mesh, P(*entries))\n"
            "        return jax.ShapeDtypeStruct(\n"
            "            leaf.shape, leaf.dtype, sharding=place)\n"
            "    tree = jax.tree_util.tree_map_with_path(target, saved)\n"
            "    return manager.restore(step, args=ocp.args.StandardRestore(tree))",
            # branch by branch
            RESTORE + "    def targets(saved, specs):\n"
            "        if isinstance(saved, dict):\n"
            "            return {name: targets(saved[name], specs[name])\n"
            "                    for name in saved}\n"
            "        entries = [None] * len(saved.shape)\n"
            "        for d, axis in enumerate(specs):\n"
            "            if axis and saved.shape[d] % mesh.shape[axis] == 0:\n"
            "                entries[d] = axis\n"
            "        place = NamedSharding(mesh, P(*entries))\n"
            "        return jax.ShapeDtypeStruct(\n"
            "            saved.shape, saved.dtype, sharding=place)\n"
            "    tree = targets(manager.item_metadata(step).tree, specs)\n"
            "    return manager.restore(step, args=ocp.args.StandardRestore(tree))",
        ],
        wrong=[
            (  # first as it was, and then where it should go
                RESTORE + "    tree = manager.restore(step)\n"
                "    return jax.device_put(tree, jax.tree.map(\n"
                "        lambda spec: NamedSharding(mesh, spec), specs,\n"
                "        is_leaf=lambda spec: isinstance(spec, P)))",
                "does not state where each array goes",
            ),
            (  # everything whole
                RESTORE + "    def target(spec, leaf):\n"
                "        return jax.ShapeDtypeStruct(\n"
                "            leaf.shape, leaf.dtype, sharding=on(mesh=mesh))\n" + TREE,
                "is sharded as",
            ),
            (  # one axis does not fit, so none is used
                RESTORE + "    def target(spec, leaf):\n"
                "        bad = any(axis and size % mesh.shape[axis]\n"
                "                  for axis, size in zip(spec, leaf.shape))\n"
                "        place = NamedSharding(mesh, P() if bad else spec)\n"
                "        return jax.ShapeDtypeStruct(\n"
                "            leaf.shape, leaf.dtype, sharding=place)\n" + TREE,
                "w",
            ),
            (  # everything float32
                RESTORE + "    def target(spec, leaf):\n"
                "        fits = [a if a and n % mesh.shape[a] == 0 else None\n"
                "                for a, n in zip(spec, leaf.shape)]\n"
                "        return jax.ShapeDtypeStruct(\n"
                "            leaf.shape, jnp.float32, sharding=on(*fits, mesh=mesh))\n"
                + TREE,
                "bfloat16",
            ),
            (  # on the mesh of the chapter
                RESTORE + "    def target(spec, leaf):\n"
                "        fits = [a if a and n % mesh.shape[a] == 0 else None\n"
                "                for a, n in zip(spec, leaf.shape)]\n"
                "        return jax.ShapeDtypeStruct(\n"
                "            leaf.shape, leaf.dtype, sharding=on(*fits))\n" + TREE,
                "is sharded as",
            ),
            (  # everything whole on each device, and then cut
                RESTORE + "    def target(spec, leaf):\n"
                "        return jax.ShapeDtypeStruct(\n"
                "            leaf.shape, leaf.dtype, sharding=on(mesh=mesh))\n"
                "    def cut(spec, leaf):\n"
                "        fits = [a if a and n % mesh.shape[a] == 0 else None\n"
                "                for a, n in zip(spec, leaf.shape)]\n"
                "        return jax.device_put(leaf, on(*fits, mesh=mesh))\n"
                + TREE.replace("return manager", "tree = manager")
                + "    return jax.tree.map(cut, specs, tree,\n"
                "                        is_leaf=lambda spec: isinstance(spec, P))",
                "bytes are read per device, but only",
            ),
            (
                RESTORE + "    manager.restore(step)",
                "does not state where each array goes",
            ),
            (
                RESTORE + "    def target(spec, leaf):\n"
                "        return jax.ShapeDtypeStruct(\n"
                "            leaf.shape, leaf.dtype, sharding=on(mesh=mesh))\n"
                + TREE.replace("return manager", "manager"),
                "restore returned None, but the tree of arrays is expected",
            ),
            (  # the latest step
                RESTORE
                + (
                    "    step = manager.latest_step()\n"
                    "    def target(spec, leaf):\n"
                    "        fits = [a if a and n % mesh.shape[a] == 0 else None\n"
                    "                for a, n in zip(spec, leaf.shape)]\n"
                    "        return jax.ShapeDtypeStruct(\n"
                    "            leaf.shape, leaf.dtype, sharding=on(*fits,"
                    " mesh=mesh))\n"
                )
                + TREE,
                "every value is zero|is zero|times|off by",
            ),
            (  # two levels only
                RESTORE
                + (
                    "    def target(spec, leaf):\n"
                    "        fits = [a if a and n % mesh.shape[a] == 0 else None\n"
                    "                for a, n in zip(spec, leaf.shape)]\n"
                    "        return jax.ShapeDtypeStruct(\n"
                    "            leaf.shape, leaf.dtype, sharding=on(*fits,"
                    " mesh=mesh))\n"
                    "    saved = manager.item_metadata(step).tree\n"
                    "    tree = {k: {j: target(specs[k][j], one) for j, one in"
                    " v.items()}\n"
                    "            if isinstance(v, dict) else target(specs[k], v)\n"
                    "            for k, v in saved.items()}\n"
                    "    return manager.restore(step,"
                    " args=ocp.args.StandardRestore(tree))"
                ),
                "Error",
            ),
        ],
    ),
    "13.5": Answers(
        right=[
            MEAN
            + PADDED
            + "    total = jnp.stack([score(*part) for part in parts]).sum()\n"
            "    return float(total) / len(rows)",
            MEAN + PADDED + "    total = sum(score(*part) for part in parts)\n"
            "    return total.item() / len(rows)",
            MEAN + PADDED + "    sums = [score(*part) for part in parts]\n"
            "    return float(sum(sums) / len(rows))",
            MEAN + PADDED + "    share = 1 / len(rows)\n"
            "    return float(sum(score(*part) * share for part in parts))",
            # a jitted sum, step by step
            MEAN + PADDED + "    add = jax.jit(lambda a, b: a + b)\n"
            "    total = jnp.float32(0)\n"
            "    for part in parts:\n"
            "        total = add(total, score(*part))\n"
            "    return float(total) / len(rows)",
            MEAN + PADDED + "    sums = [score(*part) for part in parts]\n"
            "    return float(reduce(jnp.add, sums)) / len(rows)",
            MEAN
            + PADDED
            + "    sums = [score(*part).astype(float) for part in parts]\n"
            "    return np.mean(jax.device_get(sums)).item() * len(sums) / len(rows)",
            MEAN + PADDED + "    total = jax.jit(lambda parts: sum(parts))\n"
            "    sums = total([score(*part) for part in parts])\n"
            "    return np.asarray(sums).item() / len(rows)",
            # copies are begun in the loop, and nobody waits for them
            MEAN + PADDED + "    sums = []\n"
            "    for part in parts:\n"
            "        sums.append(score(*part))\n"
            "        sums[-1].copy_to_host_async()\n"
            "    return sum(float(one) for one in sums) / len(rows)",
        ],
        wrong=[
            (  # called for the form, averaged on the host
                MEAN + PADDED + "    for part in parts:\n        score(*part)\n"
                "    return float((rows**2).sum(axis=1).mean())",
                "mean",
            ),
            (  # one batch for the form, the rest on the host
                MEAN + PADDED + "    score(*parts[0])\n"
                "    return float((rows**2).sum(axis=1).mean())",
                "score was called 1 times",
            ),
            (  # as it was
                MEAN + "    means = []\n"
                "    for at in range(0, len(rows), size):\n"
                "        part = jax.device_put(rows[at : at + size], on(mesh=mesh))\n"
                "        means.append(float(score(part, np.ones(len(part)))) / size)\n"
                "    return np.mean(means)",
                "rows",
            ),
            (  # waits for each batch
                MEAN + PADDED + "    total = 0.0\n"
                "    for part in parts:\n"
                "        total += float(score(*part))\n"
                "    return total / len(rows)",
                "the host waits for a result after 1 of 3 batches",
            ),
            (  # waits, and fetches once
                MEAN + PADDED + "    sums = []\n"
                "    for part in parts:\n"
                "        sums.append(score(*part).block_until_ready())\n"
                "    return float(np.sum(jax.device_get(sums))) / len(rows)",
                "the host waits for a result after 1 of 3 batches",
            ),
            (  # waits every second time
                MEAN + PADDED + "    sums = []\n"
                "    for i, part in enumerate(parts):\n"
                "        sums.append(score(*part))\n"
                "        if i % 2:\n"
                "            jax.block_until_ready(sums)\n"
                "    return float(np.sum(jax.device_get(sums))) / len(rows)",
                "the host waits for a result after 2 of 3 batches",
            ),
            (  # a fetch for each batch, at the end
                MEAN + PADDED + "    sums = [score(*part) for part in parts]\n"
                "    return sum(float(one) for one in sums) / len(rows)",
                "the results are fetched 3 times, one after the other",
            ),
            (  # the same, as an array
                MEAN + PADDED + "    sums = [score(*part) for part in parts]\n"
                "    sums = [np.asarray(one) for one in sums]\n"
                "    return float(np.sum(sums)) / len(rows)",
                "the results are fetched 3 times, one after the other",
            ),
            (  # in half precision
                MEAN
                + PADDED
                + "    sums = [score(*part).astype(jnp.float16) for part in parts]\n"
                "    return float(sum(sums)) / len(rows)",
                "['mean']",
            ),
            (  # the rest is left out
                MEAN + PADDED + "    full = len(rows) // size\n"
                "    total = sum(score(*part) for part in parts[:full])\n"
                "    return float(total) / (full * size)",
                "score was called 2 times, but there are 3 batches",
            ),
            (  # the padding counts as rows
                MEAN + PADDED + "    total = sum(score(*part) for part in parts)\n"
                "    return float(total) / len(padded)",
                "mean",
            ),
            (  # the short batch as it is
                MEAN + "    place = on('data', mesh=mesh)\n"
                "    sums = []\n"
                "    for at in range(0, len(rows), size):\n"
                "        part = rows[at : at + size]\n"
                "        ones = np.ones(len(part), np.float32)\n"
                "        if len(part) % mesh.shape['data']:\n"
                "            place = on(mesh=mesh)\n"
                "        sums.append(score(*jax.device_put((part, ones), place)))\n"
                "    return float(sum(sums)) / len(rows)",
                "compiles for each shape",
            ),
            (  # replicated
                MEAN
                + PADDED.replace('on("data", mesh=mesh)', "on(mesh=mesh)")
                + "    total = sum(score(*part) for part in parts)\n"
                "    return float(total) / len(rows)",
                "rows",
            ),
            (  # without the score
                MEAN + "    return float((rows**2).mean())",
                "score was called 0 times",
            ),
            (  # weights of another type
                MEAN
                + PADDED.replace("np.float32", "int")
                + "    total = sum(score(*part) for part in parts)\n"
                "    return float(total) / len(rows)",
                "int32[16], not float32[16, 5] and float32[16]",
            ),
            (
                MEAN
                + PADDED
                + "    total = jnp.stack([score(*part) for part in parts]).sum()\n"
                "    return np.float32(total) / len(rows)",
                "mean_loss returned a float32, but a Python float is expected",
            ),
            (  # a small weight for the padding
                MEAN
                + PADDED.replace(
                    "np.zeros(extra, np.float32)", "np.full(extra, 1e-2, np.float32)"
                )
                + "    return float(sum(score(*part) for part in parts)) / len(rows)",
                "mean",
            ),
            (  # whole numbers become floats
                MEAN
                + PADDED.replace("rows.dtype", "np.float32")
                + "    return float(sum(score(*part) for part in parts)) / len(rows)",
                "int32[8, 5]",
            ),
        ],
    ),
    "13.6": Answers(
        right=[
            RESUME + "    step, losses = manager.latest_step(), []\n"
            "    run = load(manager, mesh)\n"
            "    with jax.set_mesh(mesh):\n"
            "        for n in range(step, step + steps):\n"
            "            run, loss = train_step(run, batch(n, mesh))\n"
            "            losses.append(loss)\n"
            "    return run, [float(x) for x in jax.device_get(losses)]",
            # the chapter's loop, a step at a time, and its count in Adam's state
            RESUME + "    run, losses = load(manager, mesh), []\n"
            '    done = int(run["optimizer"]["opt_state"][0]["count"][...])\n'
            "    while len(losses) < steps:\n"
            "        n = done + len(losses)\n"
            "        run = train(run, range(n, n + 1), mesh, losses)\n"
            "    return run, losses",
            # jax.Arrays as losses, in an array
            RESUME + "    run, losses = load(manager, mesh), []\n"
            "    (step,) = jax.tree.leaves(run['optimizer']['step'])\n"
            "    for n in int(step) + np.arange(steps):\n"
            "        with jax.set_mesh(mesh):\n"
            "            run, loss = train_step(run, batch(int(n), mesh))\n"
            "        losses.append(loss)\n"
            "    return [run, jnp.stack(losses)]",
        ],
        wrong=[
            (  # as it was
                RESUME + "    with jax.set_mesh(mesh):\n"
                "        run = starter(mesh)()\n"
                '    run["model"] = load(manager, mesh)["model"]\n'
                "    losses = []\n"
                "    run = train(run, range(steps), mesh, losses)\n"
                "    return run, losses",
                "the first loss is",
            ),
            (  # the data from the beginning
                RESUME + "    run, losses = load(manager, mesh), []\n"
                "    run = train(run, range(steps), mesh, losses)\n"
                "    return run, losses",
                "same rows",
            ),
            (  # moments forgotten
                RESUME + "    run = load(manager, mesh)\n"
                '    adam = run["optimizer"]["opt_state"][0]\n'
                "    for name in ('mu', 'nu'):\n"
                "        adam[name] = jax.tree.map(jnp.zeros_like, adam[name])\n"
                + GO_ON,
                "the first loss is right, but a later one is not",
            ),
            (  # a key of its own
                RESUME + "    run = load(manager, mesh)\n"
                '    run["keys"] = {"dropout": jax.device_put(\n'
                "        jax.random.key(1), on(mesh=mesh))}\n" + GO_ON,
                "same random numbers",
            ),
            (  # the number of the step forgotten
                RESUME + "    run = load(manager, mesh)\n"
                '    done = int(run["optimizer"]["step"][...])\n'
                '    run["optimizer"]["step"] = jax.tree.map(\n'
                '        jnp.zeros_like, run["optimizer"]["step"])\n'
                "    losses = []\n"
                "    run = train(run, range(done, done + steps), mesh, losses)\n"
                "    return run, losses",
                "same random numbers",
            ),
            (  # the step of the one checkpoint that is in the text
                RESUME + "    run, losses = load(manager, mesh), []\n"
                "    run = train(run, range(80, 80 + steps), mesh, losses)\n"
                "    return run, losses",
                "same rows",
            ),
            (  # a loss too few
                RESUME + "    run = load(manager, mesh)\n"
                '    done = int(run["optimizer"]["step"][...])\n'
                "    losses = []\n"
                "    run = train(run, range(done, done + steps), mesh, losses)\n"
                "    return run, losses[1:]",
                "resume returned 1 losses for 2 steps",
            ),
            (  # always the mesh of the chapter
                RESUME + "    mesh = jax.make_mesh(\n"
                '        (4, 2), ("data", "model"), devices=devices,\n'
                "        axis_types=(AxisType.Auto,) * 2)\n"
                "    run = load(manager, mesh)\n" + GO_ON,
                "is sharded as",
            ),
            (
                RESUME
                + "    run = load(manager, mesh)\n"
                + GO_ON.replace("    return run, losses\n", ""),
                "resume returned None, but has to return the pair",
            ),
            (
                RESUME
                + "    run = load(manager, mesh)\n"
                + GO_ON.replace("return run, losses", "return losses, run"),
                "resume returned a tuple, but has to return the pair",
            ),
            (  # three steps, whatever is asked for
                RESUME + "    steps, run = 3, load(manager, mesh)\n" + GO_ON,
                "resume returned 3 losses for 2 steps",
            ),
            (  # the first checkpoint
                RESUME + "    run, losses = load(manager, mesh), []\n"
                "    done = min(manager.all_steps())\n"
                "    run = train(run, range(done, done + steps), mesh, losses)\n"
                "    return run, losses",
                "saved after 5 steps",
            ),
            (  # replicated in the end, but for one weight
                RESUME
                + "    run = load(manager, mesh)\n"
                + GO_ON.replace(
                    "    return",
                    "    run['optimizer'] = jax.device_put(\n"
                    "        run['optimizer'], on(mesh=mesh))\n    return",
                ),
                "is sharded as P(None, None), (8, 16) per device",
            ),
            (  # the losses of this run, and the parameters of another one
                RESUME
                + "    run = load(manager, mesh)\n"
                + GO_ON.replace(
                    "    return",
                    "    run['model'] = load(\n"
                    "        manager, mesh)['model']\n    return",
                ),
                "the run that resume returns does not continue",
            ),
            (  # what was handed to the first step
                RESUME
                + "    run = load(manager, mesh)\n"
                + GO_ON.replace("run = train", "_ = train"),
                "is already deleted",
            ),
            (  # the run as it was read
                RESUME
                + "    run = load(manager, mesh)\n"
                + GO_ON.replace("return run", "return load(manager, mesh)"),
                "counts 2 steps, but should count 4",
            ),
        ],
    ),
}
