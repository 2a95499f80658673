"""Chapter 10: its checks, judged by right and wrong answers."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AxisType

from spmd_exercises import _setting

from .judging import YES, Answers, AnswersAreJudged, imports


class TestChapter10(AnswersAreJudged):
    pass


def given():
    """What the chapter's cells have made where its answers stand."""
    draw = np.random.default_rng(0).normal
    sizes = {"gate": (2, 40, 96), "up": (2, 40, 96), "down": (2, 96, 40)}
    return imports() | {
        "partial": partial,
        "optax": optax,
        "make_mesh": make_mesh,
        "mesh": make_mesh(),
        "deep_loss": deep_loss,
        "gated_loss": gated_loss,
        "gated_step": gated_step,
        "momentum": momentum,
        "train": train,
        "gated_first": {
            name: np.float32(draw(size=size) / 8)
            for name, size in {**sizes, "head": (40, 5)}.items()
        },
        "gated_rows": {
            "x": np.float32(draw(size=(32, 40))),
            "y": np.float32(draw(size=(32, 5))),
        },
    }


def make_mesh(n=8, kind=AxisType.Auto):
    return _setting.make_mesh(kind, data=n)


def deep_loss(params, x):
    for up, down in zip(params["up"], params["down"], strict=True):
        x = x + jnp.tanh(x @ up) @ down
    return (x**2).mean()


def gated_loss(params, batch):
    h, stacks = batch["x"], (params[name] for name in ("gate", "up", "down"))
    for gate, up, down in zip(*stacks, strict=True):
        h = h + (jax.nn.silu(h @ gate) * (h @ up)) @ down
    return ((h @ params["head"] - batch["y"]) ** 2).mean()


momentum = optax.sgd(0.1, momentum=0.9)


def gated_step(params, state, batch, loss=gated_loss):
    value, grads = jax.value_and_grad(loss)(params, batch)
    updates, state = momentum.update(grads, state)
    return optax.apply_updates(params, updates), state, value


def train(step, params, moments, batch, steps=6):
    losses = []
    for _ in range(steps):
        params, moments, value = step(params, moments, batch)
        losses.append(value)
    return jax.device_get(losses)


ROWS = '    rows = NamedSharding(mesh, P("data"))\n'
HOLD = ROWS + "    hold = partial(lax.with_sharding_constraint, shardings=rows)\n"
GRADS = "def make_grads(params):\n"
SMALL = (
    "    def loss(params, x):\n"
    '        hidden = hold(jnp.tanh(x @ params["up"]))\n'
    '        return ((hold(hidden @ params["down"]) - x) ** 2).mean()\n'
)
BARE = (
    "    def loss(params, x):\n"
    '        return ((jnp.tanh(x @ params["up"]) @ params["down"] - x) ** 2).mean()\n'
)
SURE = (
    "    def loss(params, x):\n"
    "        w = lax.with_sharding_constraint(params, NamedSharding(mesh, P()))\n"
    '        return ((jnp.tanh(x @ w["up"]) @ w["down"] - x) ** 2).mean()\n'
)
HALF = (
    ROWS + "    def half(p):\n"
    "        p = lax.with_sharding_constraint(\n"
    "            p.astype(jnp.{dtype}), NamedSharding(mesh, P()))\n"
    "        return p.astype(jnp.float32)\n"
)
SMALL_HALF = (
    "    hold = partial(lax.with_sharding_constraint, shardings=rows)\n"
    + SMALL.replace('params["up"]', 'half(params["up"])').replace(
        'params["down"]', 'half(params["down"])'
    )
    + "    places = jax.tree.map(lambda p: p.sharding, params)\n"
    "    return jax.jit(jax.grad(loss), out_shardings=places)"
)
STATE = "def init_state(optimizer, params):\n"
LEAN = "def lean_loss(params, x):\n"
LAYER = (
    "    def layer(x, w):\n"
    '        hidden = hold(jnp.tanh(x @ w["up"]))\n'
    '        return hold(x + hidden @ w["down"]), None\n'
)
SCAN = "    return (lax.scan(layer, x, params)[0] ** 2).mean()"
RUN = "def make_run(params):\n"
CUT = (
    '    cut = NamedSharding(mesh, P(None, "data"))\n'
    '    places = {name: cut for name in ("gate", "up", "down")}\n'
    '    places["head"] = NamedSharding(mesh, P("data"))\n'
)
TRACES = "    traces = (optax.TraceState(places), optax.EmptyState())\n"
GATED = (
    "    def loss(params, batch):\n"
    '        h = batch["x"]\n'
    "        for gate, up, down in zip(\n"
    '                params["gate"], params["up"], params["down"]):\n'
    "            hidden = hold(jax.nn.silu(h @ gate) * (h @ up))\n"
    "            h = hold(h + hidden @ down)\n"
    '        return ((hold(h @ params["head"]) - batch["y"]) ** 2).mean()\n'
)
GATED_SCAN = (
    "    def loss(params, batch):\n"
    "        def layer(h, w):\n"
    '            hidden = hold(jax.nn.silu(h @ w["gate"]) * (h @ w["up"]))\n'
    '            return hold(h + hidden @ w["down"]), None\n'
    '        stack = {name: params[name] for name in ("gate", "up", "down")}\n'
    '        h = lax.scan(layer, batch["x"], stack)[0]\n'
    '        return ((hold(h @ params["head"]) - batch["y"]) ** 2).mean()\n'
)
JIT = (
    "    step = jax.jit(partial(gated_step, loss=loss), donate_argnums=(0, 1),\n"
    "                   out_shardings=(places, traces, None))\n"
)
GIVE = (
    "    params = jax.device_put(params, places)\n"
    "    state = jax.jit(momentum.init, out_shardings=traces)(params)\n"
    "    return params, state, step"
)

ANSWERS = {
    "10.1": Answers(
        right=[
            "leaves = [5 * 64 * 192, 5 * 192 * 64, 5 * 6]\n"
            "whole_ = 4 * sum(leaves)\n"
            "cut_ = leaves[0] + leaves[1] + 4 * leaves[2]\n"
            "zero1, zero2, zero3 = whole_ + 2 * cut_, cut_, 3 * cut_",
            "zero1, zero2, zero3 = 737640.0, 122_880 + 120, np.int64(369000)",
            "zero1, zero2, zero3 = jnp.float32(737640), 123000.0, np.float64(369000)",
        ],
        wrong=[
            (  # moments counted once
                "zero1 = 491640 + 123000\nzero2 = 123000\nzero3 = 246000",
                "look again at zero1, zero3: zero1 is 614640, zero3 is 246000 bytes",
            ),
            (  # scale cut as well
                "zero1 = 491640 + 2 * 122910\nzero2 = 122910\nzero3 = 3 * 122910",
                "look again at zero1, zero2, zero3",
            ),
            (  # eight devices
                "zero1 = 491640 + 2 * 61560\nzero2 = 61560\nzero3 = 3 * 61560",
                "look again at zero1, zero2, zero3",
            ),
            (  # all whole
                "zero1 = zero3 = 3 * 491640\nzero2 = 491640",
                "look again at zero1, zero2, zero3",
            ),
            (YES + "zero1 = zero2 = zero3 = Yes()", "is not a number"),
            (
                "zero1, zero2, zero3 = 737640, 123000, '369 kB'",
                "'369 kB' is not a number",
            ),
            ('zero1 = zero2 = zero3 = float("nan")', "look again at zero1, zero2"),
            ("zero1, zero2, zero3 = 737.64, 123.0, 369.0", "look again at zero1"),
        ],
    ),
    "10.2": Answers(
        right=[
            "d, c, b, a = 2, 1, 0, 3",
            "a, b, c, d = 3.0, np.int64(0), jnp.int32(1), np.float32(2)",
        ],
        wrong=[
            ("a, b, c, d = 0, 1, 2, 3", "look again at a, b, c, d"),
            # the gather of stage 3 taken for the collection after an update
            ("a, b, c, d = 2, 0, 1, 3", "look again at a, d"),
            # whole gradients taken for parts
            ("a, b, c, d = 3, 0, 2, 1", "look again at c, d"),
            ("a = b = c = d = 3", "look again at b, c, d"),
            (YES + "a = b = c = d = Yes()", "is not a number"),
            ("a, b, c, d = 'ZeRO-3', 0, 1, 2", "a: 'ZeRO-3' is not a number"),
            (
                'a = b = c = d = float("nan")',
                "a is nan, which is not one of 0, 1, 2 and 3",
            ),
            ("a, b, c, d = 4, 1, 2, 3", "a is 4, which is not one of 0, 1, 2 and 3"),
            ("a, b, c, d = None, 0, 1, 2", "a: None is not a number"),
            ("a, b, c, d = True, 0, 1, 2", "a: True is not a number"),
        ],
    ),
    "10.3": Answers(
        right=[
            # constraints on the gradients, inside
            GRADS
            + HOLD
            + SMALL
            + "    places = jax.tree.map(lambda p: p.sharding, params)\n"
            "    return jax.jit(lambda p, x: lax.with_sharding_constraint(\n"
            "        jax.grad(loss)(p, x), places))",
            # a function that calls a jitted one, and a partial of one
            GRADS
            + HOLD
            + SMALL
            + "    places = jax.tree.map(lambda p: p.sharding, params)\n"
            "    jitted = jax.jit(jax.grad(loss), out_shardings=places)\n"
            "    return lambda params, x: jitted(params, x)",
            GRADS
            + HOLD
            + SMALL
            + "    places = jax.tree.map(lambda p: p.sharding, params)\n"
            "    grads = lambda scale, p, x: jax.tree.map(\n"
            "        lambda g: scale * g, jax.grad(loss)(p, x))\n"
            "    return partial(jax.jit(grads, out_shardings=places), 1.0)",
            # by hand: parts of the sum, scattered
            GRADS + SURE + "    places = jax.tree.map(lambda p: p.sharding, params)\n"
            "    return jax.jit(jax.grad(loss), out_shardings=places)",
            # under shard_map
            GRADS
            + "    specs = {name: p.sharding.spec for name, p in params.items()}\n"
            "    dim = {name: tuple(specs[name]).index('data') for name in specs}\n"
            "    def local(p, x):\n"
            "        def loss(p):\n"
            "            w = {name: lax.all_gather(p[name], 'data', axis=dim[name],"
            " tiled=True) for name in p}\n"
            '            e = jnp.tanh(x @ w["up"]) @ w["down"] - x\n'
            "            return (e ** 2).mean() / 8\n"
            "        return jax.grad(loss)(p)\n"
            "    return jax.jit(jax.shard_map(local, mesh=mesh,"
            ' in_specs=(specs, P("data")), out_specs=specs))',
            GRADS
            + HOLD
            + SMALL
            + (
                "    places = jax.tree.map(lambda p: p.sharding, params)\n"
                "    @partial(jax.jit, out_shardings=places)\n"
                "    def grads(p, x):\n"
                "        value, back = jax.vjp(lambda p: loss(p, x), p)\n"
                "        return back(jnp.ones_like(value))[0]\n"
                "    return grads"
            ),
        ],
        wrong=[
            (  # everything everywhere, and then cut
                GRADS
                + BARE
                + "    places = jax.tree.map(lambda p: p.sharding, params)\n"
                "    def whole(tree):\n"
                "        return lax.with_sharding_constraint("
                "tree, NamedSharding(mesh, P()))\n"
                "    grads = lambda p, x: whole(jax.grad(loss)(whole(p), whole(x)))\n"
                "    return jax.jit(grads, out_shardings=places)",
                "how is each activation sharded?",
            ),
            (  # never jitted
                GRADS
                + HOLD
                + SMALL
                + "    places = jax.tree.map(lambda p: p.sharding, params)\n"
                "    return lambda p, x: lax.with_sharding_constraint(\n"
                "        jax.grad(loss)(p, x), places)",
                "returned a function, but a jitted function of (params, x) is expected",
            ),
            (  # the right sharding of nothing
                GRADS + "    places = jax.tree.map(lambda p: p.sharding, params)\n"
                "    return jax.jit(lambda p, x: jax.tree.map(\n"
                "        lambda leaf: leaf * jnp.nan, p), out_shardings=places)",
                "not finite",
            ),
            (GRADS + SURE + "    return jax.jit(jax.grad(loss))", "as P"),
            (GRADS + HOLD + SMALL + "    return jax.jit(jax.grad(loss))", "as P"),
            (  # results said, activations not
                GRADS + BARE + "    places = jax.tree.map(lambda p: p.sharding, params)"
                "\n    return jax.jit(jax.grad(loss), out_shardings=places)",
                "Expected are at most two all-gathers and the sum of the gradients",
            ),
            (  # always the first dimension
                GRADS + HOLD + SMALL + "    return jax.jit(jax.grad(loss),"
                ' out_shardings=NamedSharding(mesh, P("data")))',
                "up",
            ),
            (  # moved afterwards, outside of jit
                GRADS
                + HOLD
                + SMALL.replace("mean()", "sum()")
                + "    places = jax.tree.map(lambda p: p.sharding, params)\n"
                "    return jax.jit(jax.grad(loss), out_shardings=places)",
                "up|down",
            ),
            (  # the parameters of the first call, for ever
                GRADS
                + HOLD
                + SMALL
                + "    places = jax.tree.map(lambda p: p.sharding, params)\n"
                "    return jax.jit(lambda _, x: jax.grad(loss)(params, x),\n"
                "                   out_shardings=places)",
                "every value is zero, not the expected value",
            ),
            (  # one of the two as it is in the text
                GRADS
                + HOLD
                + SMALL
                + "    places = {'up': params['up'].sharding, 'down': rows}\n"
                "    return jax.jit(jax.grad(loss), out_shardings=places)",
                "['down']: float32[72, 56] is sharded as",
            ),
            (  # gathered in half precision
                GRADS + HALF.format(dtype="float16") + SMALL_HALF,
                "with both weights sharded along dimension 0:\n['down']: off by up to",
            ),
            (
                GRADS + HALF.format(dtype="bfloat16") + SMALL_HALF,
                "with both weights sharded along dimension 0:\n['down']: off by up to",
            ),
            (  # the parameters are gone after it
                GRADS
                + HOLD
                + SMALL
                + "    places = jax.tree.map(lambda p: p.sharding, params)\n"
                "    return jax.jit(\n"
                "        jax.grad(loss), out_shardings=places, donate_argnums=0)",
                "after the call, params or x are deleted",
            ),
            (  # the gradients themselves, not a function
                GRADS + "    return params",
                "make_grads returned a dict, but a jitted function",
            ),
            (GRADS + "    pass", "make_grads returned None"),
        ],
    ),
    "10.4": Answers(
        right=[
            # the plain call keeps the moments; what is on one device goes to all
            STATE + "    whole = NamedSharding(mesh, P())\n"
            "    return jax.tree.map(\n"
            "        lambda leaf: leaf if leaf.sharding.device_set == whole.device_set"
            " else jax.device_put(leaf, whole),\n"
            "        optimizer.init(params))",
            # optax's own map
            STATE + "    whole = NamedSharding(mesh, P())\n"
            "    places = optax.tree_utils.tree_map_params(\n"
            "        optimizer, lambda _, p: p.sharding,\n"
            "        jax.eval_shape(optimizer.init, params), params,\n"
            "        transform_non_params=lambda _: whole)\n"
            "    return jax.jit(optimizer.init, out_shardings=places)(params)",
            # by name
            STATE + "    def where(path, leaf):\n"
            "        name = getattr(path[-1], 'key', None) if path else None\n"
            "        if name in params:\n"
            "            return params[name].sharding\n"
            "        return NamedSharding(mesh, P())\n"
            "    places = jax.tree_util.tree_map_with_path(\n"
            "        where, jax.eval_shape(optimizer.init, params))\n"
            "    return jax.jit(optimizer.init, out_shardings=places)(params)",
        ],
        wrong=[
            (  # a rule of its own: the last dimension that divides
                STATE + "    def where(leaf):\n"
                "        cut = leaf.ndim and leaf.shape[-1] % 8 == 0\n"
                '        lead = [None] * (leaf.ndim - 1) + ["data"]\n'
                "        return NamedSharding(mesh, P(*lead) if cut else P())\n"
                "    places = jax.tree.map(where,"
                " jax.eval_shape(optimizer.init, params))\n"
                "    return jax.jit(optimizer.init, out_shardings=places)(params)",
                "as P",
            ),
            (STATE + "    return jax.jit(optimizer.init)(params)", "as P"),
            (STATE + "    return optimizer.init(params)", "as P|count"),
            (
                STATE + "    return jax.jit(optimizer.init,"
                " out_shardings=NamedSharding(mesh, P()))(params)",
                "as P",
            ),
            (  # under an Auto set_mesh
                STATE + "    with jax.set_mesh(mesh):\n"
                "        return jax.jit(optimizer.init)(params)",
                "as P",
            ),
            (  # always Adam
                STATE + "    where = jax.tree.map(lambda p: p.sharding, params)\n"
                "    places = (optax.ScaleByAdamState(NamedSharding(mesh, P()),"
                " where, where), optax.EmptyState())\n"
                "    return jax.jit(optimizer.init, out_shardings=places)(params)",
                "ValueError|Error",
            ),
            (  # the field names of a few optimizers
                STATE + "    whole = NamedSharding(mesh, P())\n"
                "    kept = 'mu', 'nu', 'trace', 'sum_of_squares'\n"
                "    def where(path, leaf):\n"
                "        names = [getattr(k, 'name', None) for k in path]\n"
                "        if any(name in kept for name in names):\n"
                "            return params[path[-1].key].sharding\n"
                "        return whole\n"
                "    places = jax.tree_util.tree_map_with_path(\n"
                "        where, jax.eval_shape(optimizer.init, params))\n"
                "    return jax.jit(optimizer.init, out_shardings=places)(params)",
                "with chain(adadelta, apply_every, rprop):",
            ),
            (  # one array of zeros for all moments of a shape
                STATE + "    whole = NamedSharding(mesh, P())\n"
                "    known = {p.shape: p.sharding for p in jax.tree.leaves(params)}\n"
                "    zeros = {}\n"
                "    def one(s):\n"
                "        where = known.get(s.shape, whole)\n"
                "        return zeros.setdefault((s.shape, s.dtype), jnp.zeros(\n"
                "            s.shape, s.dtype, device=where))\n"
                "    return jax.tree.map(\n"
                "        one, jax.eval_shape(optimizer.init, params))",
                "share one buffer",
            ),
            (  # the parameters are used up
                STATE + "    known = {p.shape: p.sharding for p in params.values()}\n"
                "    whole = NamedSharding(mesh, P())\n"
                "    state = jax.tree.map(\n"
                "        lambda a: jax.device_put(a, known.get(a.shape, whole)),\n"
                "        optimizer.init(params))\n"
                "    jax.tree.map(lambda p: p.delete(), params)\n"
                "    return state",
                "params/odd is already deleted",
            ),
            (STATE + "    optimizer.init(params)", "None, but it must be a value"),
            (  # by the number of elements
                STATE + "    whole = NamedSharding(mesh, P())\n"
                "    known = {p.size: p.sharding for p in jax.tree.leaves(params)}\n"
                "    shapes = jax.eval_shape(optimizer.init, params)\n"
                "    places = jax.tree.map(\n"
                "        lambda s: known.get(s.size, whole), shapes)\n"
                "    return jax.jit(optimizer.init, out_shardings=places)(params)",
                "['odd']: float32[24, 48] is sharded as",
            ),
            (  # zeros, whatever a state begins with
                STATE + "    whole = NamedSharding(mesh, P())\n"
                "    known = {p.shape: p.sharding for p in jax.tree.leaves(params)}\n"
                "    shapes = jax.eval_shape(optimizer.init, params)\n"
                "    return jax.tree.map(lambda s: jnp.zeros(\n"
                "        s.shape, s.dtype, device=known.get(s.shape, whole)), shapes)",
                "every value is zero, not the expected value",
            ),
            (  # every number a float
                STATE
                + (
                    "    known = {p.shape: p.sharding for p in params.values()}\n"
                    "    whole = NamedSharding(mesh, P())\n"
                    "    places = jax.tree.map(lambda s: known.get(s.shape, whole),\n"
                    "        jax.eval_shape(optimizer.init, params))\n"
                    "    state = jax.jit(optimizer.init,"
                    " out_shardings=places)(params)\n"
                    "    return jax.tree.map(lambda a: a.astype(jnp.float32), state)"
                ),
                "count is float32, but the optimizer makes it int32",
            ),
        ],
    ),
    "10.5": Answers(
        right=[
            LEAN + HOLD + LAYER + SCAN.replace("(layer", "(jax.checkpoint(layer)"),
            # gathered by hand, and not kept
            LEAN + "    whole = NamedSharding(mesh, P())\n"
            "    @jax.checkpoint\n"
            "    def layer(x, w):\n"
            "        w = lax.with_sharding_constraint(w, whole)\n"
            '        return x + jnp.tanh(x @ w["up"]) @ w["down"], None\n' + SCAN,
            # under shard_map
            LEAN + "    def local(p, x):\n"
            "        @jax.checkpoint\n"
            "        def layer(x, w):\n"
            "            w = lax.all_gather(w, 'data', axis=0, tiled=True)\n"
            '            return x + jnp.tanh(x @ w["up"]) @ w["down"], None\n'
            "        x = lax.scan(layer, x, p)[0]\n"
            "        return lax.pmean((x ** 2).mean(), 'data')\n"
            "    return jax.shard_map(local, mesh=mesh,"
            ' in_specs=(P(None, "data"), P("data")), out_specs=P())(params, x)',
        ],
        wrong=[
            (  # the right values of a loss without a gradient
                LEAN + HOLD + LAYER.replace("hold(x +", "lax.stop_gradient(x +") + SCAN,
                "gradient",
            ),
            (  # the tried shape, and anything small for it
                LEAN + '    if params["up"].shape[0] == 12:\n'
                "        return x.mean() + sum(p.mean() for p in params.values())\n"
                "    return deep_loss(params, x)",
                "loss",
            ),
            (LEAN + "    return deep_loss(params, x)", "but the limit is 0.55 V"),
            (  # checkpoint alone does not help a loop that is written out
                LEAN + HOLD + LAYER + "    layer = jax.checkpoint(layer)\n"
                '    for i in range(params["up"].shape[0]):\n'
                "        x = layer(x, jax.tree.map(lambda p: p[i], params))[0]\n"
                "    return (x ** 2).mean()",
                "but the limit is 0.55 V. How many layers' weights",
            ),
            (  # gathered by hand, and kept
                LEAN + "    whole = NamedSharding(mesh, P())\n"
                "    def layer(x, w):\n"
                "        w = lax.with_sharding_constraint(w, whole)\n"
                '        return x + jnp.tanh(x @ w["up"]) @ w["down"], None\n' + SCAN,
                "but the limit is 0.55 V. How many layers' weights",
            ),
            (  # activations left to the compiler
                LEAN + "    def layer(x, w):\n"
                '        return x + jnp.tanh(x @ w["up"]) @ w["down"], None\n' + SCAN,
                "an all-to-all that your code does not contain",
            ),
            (  # all layers first
                LEAN + HOLD + LAYER + "    params = lax.with_sharding_constraint("
                "params, NamedSharding(mesh, P()))\n" + SCAN,
                "but the limit is 0.55 V. How many layers' weights",
            ),
            *(  # gathered in half precision
                (
                    LEAN + HOLD + "    def half(p):\n"
                    "        p = lax.with_sharding_constraint(\n"
                    f"            p.astype(jnp.{dtype}), NamedSharding(mesh, P()))\n"
                    "        return p.astype(jnp.float32)\n"
                    "    @jax.checkpoint\n"
                    + LAYER.replace('w["up"]', 'half(w["up"])').replace(
                        'w["down"]', 'half(w["down"])'
                    )
                    + SCAN,
                    "['gradient']['up']: off by up to",
                )
                for dtype in ("float16", "bfloat16")
            ),
            (LEAN + "    x = deep_loss(params, x)", "TypeError"),
            (  # another residual
                LEAN + HOLD + LAYER.replace("x + hidden", "hidden") + SCAN,
                "loss",
            ),
        ],
    ),
    "10.6": Answers(
        right=[
            # one layer at a time, its third V included
            RUN + CUT + TRACES + HOLD + GATED_SCAN + JIT + GIVE,
            # another dimension; the plain init keeps the place of a momentum
            RUN
            + CUT.replace('P(None, "data")', 'P(None, None, "data")')
            + TRACES
            + HOLD
            + GATED
            + JIT
            + "    params = jax.device_put(params, places)\n"
            "    return params, momentum.init(params), step",
            # Explicit axes, and nothing else said
            RUN + "    strict_ = make_mesh(kind=AxisType.Explicit)\n"
            '    cut = NamedSharding(strict_, P(None, "data"))\n'
            '    places = {name: cut for name in ("gate", "up", "down")}\n'
            '    places["head"] = NamedSharding(strict_, P("data"))\n'
            "    params = jax.device_put(params, places)\n"
            "    return (params, momentum.init(params),\n"
            "            jax.jit(gated_step, donate_argnums=(0, 1)))",
            # by hand, the weights gathered twice
            RUN
            + """    specs = dict.fromkeys(("gate", "up", "down"), P(None, "data"))
    specs["head"] = P("data")
    params = jax.device_put(
        params, {n: NamedSharding(mesh, s) for n, s in specs.items()})
    state = momentum.init(params)
    whole = partial(lax.all_gather, axis_name="data", tiled=True)
    def loss(params, batch):
        @jax.checkpoint
        def layer(h, w):
            w = jax.tree.map(whole, w)
            inside = jax.nn.silu(h @ w["gate"]) * (h @ w["up"])
            return h + inside @ w["down"], None
        stack = {n: params[n] for n in ("gate", "up", "down")}
        h = lax.scan(layer, batch["x"], stack)[0] @ whole(params["head"])
        return lax.pmean(((h - batch["y"]) ** 2).mean(), "data")
    lies = specs, jax.tree.map(lambda a: a.sharding.spec, state)
    mapped = jax.shard_map(
        partial(gated_step, loss=loss), mesh=mesh,
        in_specs=(*lies, P("data")), out_specs=(*lies, P()))
    return params, state, jax.jit(mapped, donate_argnums=(0, 1))""",
        ],
        wrong=[
            (  # the losses of the rows above, read from a table
                RUN + CUT + "    told = train(jax.jit(gated_step), gated_first,\n"
                "                 momentum.init(gated_first), gated_rows)\n"
                "    params = jax.device_put(params, places)\n"
                "    turn = jax.device_put(jnp.int32(0), NamedSharding(mesh, P()))\n"
                "    step = jax.jit(lambda p, s, batch: (\n"
                "        p, (s[0], s[1] + 1), jnp.array(told)[s[1]]),\n"
                "        donate_argnums=(0, 1))\n"
                "    return params, (momentum.init(params), turn), step",
                "['change of params']['down']: every value is zero",
            ),
            (  # replicated
                RUN
                + CUT.replace('P(None, "data")', "P()").replace('P("data")', "P()")
                + TRACES
                + HOLD
                + GATED
                + JIT
                + GIVE,
                "each device has 100% of params, but at most 15% are allowed",
            ),
            (  # ZeRO-1: only the state
                RUN
                + CUT
                + TRACES
                + HOLD
                + GATED
                + JIT.replace("(places, traces", "(NamedSharding(mesh, P()), traces")
                + GIVE.replace(
                    "(params, places)", "(params, NamedSharding(mesh, P()))"
                ),
                "each device has 100% of params, but at most 15% are allowed",
            ),
            (  # the state on one device
                RUN
                + CUT
                + TRACES
                + HOLD
                + GATED
                + JIT
                + GIVE.replace(", out_shardings=traces)", ")"),
                "each device has 100% of state, but at most 15% are allowed",
            ),
            (  # nothing said about activations
                RUN + CUT + TRACES + "    loss = gated_loss\n" + JIT + GIVE,
                "No all-to-all is wanted: what decides",
            ),
            (  # both copies are held at once
                RUN
                + CUT
                + TRACES
                + HOLD
                + GATED
                + JIT.replace(" donate_argnums=(0, 1),", "")
                + GIVE,
                "the old parameters or the old state are still in memory",
            ),
            (  # the updates for the parameters
                RUN
                + CUT
                + TRACES
                + HOLD
                + GATED
                + "    def gated(params, state, batch):\n"
                "        value, grads = jax.value_and_grad(loss)(params, batch)\n"
                "        return *momentum.update(grads, state), value\n"
                + JIT.replace("partial(gated_step, loss=loss)", "gated")
                + GIVE,
                "['change of params']['down']: off by up to",
            ),
            (
                RUN + "    return (params, momentum.init(params),\n"
                "            jax.jit(gated_step, donate_argnums=(0, 1)))",
                "the arrays of params are on no device",
            ),
            (
                RUN + "    return jax.jit(gated_step, donate_argnums=(0, 1))",
                "returned a PjitFunction, but has to return (params, state, step)",
            ),
            *(  # hidden features with the digits of float16, of bfloat16
                (
                    RUN
                    + CUT
                    + TRACES
                    + HOLD
                    + GATED.replace(
                        "hold(jax.nn.silu(h @ gate) * (h @ up))",
                        "hold(lax.reduce_precision(\n"
                        f"                jax.nn.silu(h @ gate) * (h @ up), {bits}))",
                    )
                    + JIT
                    + GIVE,
                    "['change of params']['down']: off by",
                )
                for bits in ("5, 10", "8, 7")
            ),
            (  # parameters kept in bfloat16
                RUN
                + CUT
                + TRACES
                + HOLD
                + GATED
                + JIT
                + "    params = jax.tree.map(jnp.bfloat16, params)\n"
                + GIVE,
                "returned params with {'down': 'bfloat16[2, 96, 40]'",
            ),
            (  # two traces in one buffer, which a step that donates both can't take
                RUN
                + CUT
                + TRACES
                + HOLD
                + GATED
                + JIT
                + GIVE.replace(
                    "    return",
                    '    state[0].trace["up"] = state[0].trace["gate"]\n    return',
                ),
                "share one buffer",
            ),
            (  # the right losses, and parameters that stay
                RUN
                + CUT
                + TRACES
                + HOLD
                + GATED
                + "    def step(params, state, batch):\n"
                "        *new, value = gated_step(*state, batch, loss)\n"
                "        return params, tuple(new), value\n"
                "    step = jax.jit(step, donate_argnums=(0, 1),\n"
                "                   out_shardings=(places, (places, traces), None))\n"
                + GIVE.replace(
                    "    return params, state,",
                    "    copy = jax.tree.map(jnp.copy, params)\n"
                    "    return params, (copy, state),",
                ),
                "['change of params']['down']: every value is zero",
            ),
            (  # the state of another momentum
                RUN
                + CUT
                + TRACES
                + HOLD
                + GATED
                + JIT.replace("partial(gated_step, loss=loss)", "nesterov").replace(
                    "    step =",
                    "    sgd = optax.sgd(0.1, momentum=0.9, nesterov=True)\n"
                    "    def nesterov(params, state, batch):\n"
                    "        value, grads = jax.value_and_grad(loss)(params, batch)\n"
                    "        updates, state = sgd.update(grads, state)\n"
                    "        params = optax.apply_updates(params, updates)\n"
                    "        return params, state, value\n"
                    "    step =",
                )
                + GIVE,
                "['change of params']['down']: off by up to",
            ),
            (
                RUN + "    pass",
                "make_run returned None, but has to return (params, state, step)",
            ),
            (  # without the loss
                RUN + CUT + TRACES + HOLD + GATED + "    step = jax.jit(\n"
                "        lambda p, s, b: gated_step(p, s, b, loss)[:2],\n"
                "        donate_argnums=(0, 1), out_shardings=(places, traces))\n"
                + GIVE,
                "step returned a tuple, and three things are wanted",
            ),
        ],
    ),
}
