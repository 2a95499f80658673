"""Chapter 10: right and wrong answers."""

from . import Answers
from .ch01 import YES

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
                "look again at zero1, zero3",
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
            (YES + "zero1 = zero2 = zero3 = Yes()", "is no number"),
            ("zero1, zero2, zero3 = 737640, 123000, '369 kB'", "'369 kB' is no number"),
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
            (YES + "a = b = c = d = Yes()", "is none of 0, 1, 2 and 3"),
            ("a, b, c, d = 'ZeRO-3', 0, 1, 2", "a: 'ZeRO-3' is none of 0, 1, 2 and 3"),
            ('a = b = c = d = float("nan")', "look again at a, b, c, d"),
            ("a, b, c, d = 4, 1, 2, 3", "look again at a, b, c, d"),
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
                "what cuts the activations",
            ),
            (  # never jitted
                GRADS
                + HOLD
                + SMALL
                + "    places = jax.tree.map(lambda p: p.sharding, params)\n"
                "    return lambda p, x: lax.with_sharding_constraint(\n"
                "        jax.grad(loss)(p, x), places)",
                "that is not jitted, and a jitted function is wanted",
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
                "two all-gathers and the sum of the gradients are enough",
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
                "every value is zero, and not what it must be",
            ),
            (  # one of the two as it is in the text
                GRADS
                + HOLD
                + SMALL
                + "    places = {'up': params['up'].sharding, 'down': rows}\n"
                "    return jax.jit(jax.grad(loss), out_shardings=places)",
                "['down']: float32[72, 56] lies as",
            ),
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
            (  # by the number of elements
                STATE + "    whole = NamedSharding(mesh, P())\n"
                "    known = {p.size: p.sharding for p in jax.tree.leaves(params)}\n"
                "    shapes = jax.eval_shape(optimizer.init, params)\n"
                "    places = jax.tree.map(\n"
                "        lambda s: known.get(s.size, whole), shapes)\n"
                "    return jax.jit(optimizer.init, out_shardings=places)(params)",
                "['odd']: float32[24, 48] lies as",
            ),
            (  # zeros, whatever a state begins with
                STATE + "    whole = NamedSharding(mesh, P())\n"
                "    known = {p.shape: p.sharding for p in jax.tree.leaves(params)}\n"
                "    shapes = jax.eval_shape(optimizer.init, params)\n"
                "    return jax.tree.map(lambda s: jnp.zeros(\n"
                "        s.shape, s.dtype, device=known.get(s.shape, whole)), shapes)",
                "every value is zero, and not what it must be",
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
            (LEAN + "    return deep_loss(params, x)", "0.55 V may be"),
            (  # checkpoint alone does not help a loop that is written out
                LEAN + HOLD + LAYER + "    layer = jax.checkpoint(layer)\n"
                '    for i in range(params["up"].shape[0]):\n'
                "        x = layer(x, jax.tree.map(lambda p: p[i], params))[0]\n"
                "    return (x ** 2).mean()",
                "and 0.55 V may be: how many layers' weights",
            ),
            (  # gathered by hand, and kept
                LEAN + "    whole = NamedSharding(mesh, P())\n"
                "    def layer(x, w):\n"
                "        w = lax.with_sharding_constraint(w, whole)\n"
                '        return x + jnp.tanh(x @ w["up"]) @ w["down"], None\n' + SCAN,
                "and 0.55 V may be: how many layers' weights",
            ),
            (  # activations left to the compiler
                LEAN + "    def layer(x, w):\n"
                '        return x + jnp.tanh(x @ w["up"]) @ w["down"], None\n' + SCAN,
                "all-to-alls that nobody asked for",
            ),
            (  # all layers first
                LEAN + HOLD + LAYER + "    params = lax.with_sharding_constraint("
                "params, NamedSharding(mesh, P()))\n" + SCAN,
                "and 0.55 V may be: how many layers' weights",
            ),
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
                "['loss of step'][0]: ",
            ),
            (  # replicated
                RUN
                + CUT.replace('P(None, "data")', "P()").replace('P("data")', "P()")
                + TRACES
                + HOLD
                + GATED
                + JIT
                + GIVE,
                "a device holds 1.00 of the parameters, and 0.15 may be",
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
                "a device holds 1.00 of the parameters, and 0.15 may be",
            ),
            (  # the state on one device
                RUN
                + CUT
                + TRACES
                + HOLD
                + GATED
                + JIT
                + GIVE.replace(", out_shardings=traces)", ")"),
                "a device holds 1.00 of the state, and 0.15 may be",
            ),
            (  # nothing said about activations
                RUN + CUT + TRACES + "    loss = gated_loss\n" + JIT + GIVE,
                "no all-to-all is wanted. What cuts the activations?",
            ),
            (  # both copies are held at once
                RUN
                + CUT
                + TRACES
                + HOLD
                + GATED
                + JIT.replace(" donate_argnums=(0, 1),", "")
                + GIVE,
                "the old parameters and state are still there",
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
                "['loss of step'][1]: ",
            ),
            (
                RUN + "    return (params, momentum.init(params),\n"
                "            jax.jit(gated_step, donate_argnums=(0, 1)))",
                "the parameters lie on no device",
            ),
            (
                RUN + "    return jax.jit(gated_step, donate_argnums=(0, 1))",
                "make_run returned a PjitFunction, and (params, state, step) is wanted",
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
