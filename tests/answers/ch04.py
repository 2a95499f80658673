"""Chapter 04: right and wrong answers."""

from . import Answers
from .ch01 import YES

LOSS = "def loss(logits, labels):\n"
TURNED = "def turned(x):\n"
HOME = "def at_home(state):\n"
INIT = """
def init(key):
    key1, key2 = jax.random.split(key)
    return {
        "w1": 0.02 * jax.random.normal(key1, (512, 2048)),
        "w2": 0.02 * jax.random.normal(key2, (2048, 512)),
        "b": jnp.zeros(2048),
    }
places = {"w1": on("data", "model"), "w2": on("model", "data"), "b": on("model")}
"""

ANSWERS = {
    "4.1": Answers(
        right=[
            'a = e = "all-gather"\nb = d = "all-reduce"\nc = "nothing"',
            "def kind(x, w):\n"
            "    seen = spmd.xray(product, abstract((48, 40), *x),"
            " abstract((40, 24), *w))\n"
            '    return ([c.kind for c in seen.collectives] or ["nothing"])[0]\n'
            'a = kind(("data",), ("data",))\n'
            'b = kind((None, "data"), ("data", "model"))\n'
            'c = kind(("model",), (None, "data"))\n'
            'd = kind(("data", "model"), ("model", None))\n'
            'e = kind(("model", "data"), (None, "data"))',
        ],
        wrong=[
            ('a = b = c = d = e = "nothing"', "look again at a, b, d, e"),
            (  # what many texts say of e
                'a = "all-gather"\nb = d = e = "all-reduce"\nc = "nothing"',
                "look again at e",
            ),
            (
                'a = b = d = "all-reduce"\ne = "all-gather"\nc = "nothing"',
                "look again at a",
            ),
            (
                'a = e = "all-gather"\nb = d = "all-reduce"\nc = "all-to-all"',
                "is none of",
            ),
            (
                'a = e = "all-gather"\nb = c = d = "all-reduce"',
                "look again at c",
            ),
            (YES + "a = b = c = d = e = Yes()", "is none of"),
        ],
    ),
    "4.2": Answers(
        right=[
            LOSS + "    hot = jax.nn.one_hot(labels, 40)\n"
            "    return -(jax.nn.log_softmax(logits) * hot).sum(axis=1).mean()",
            LOSS + "    top = logits.max(axis=1, keepdims=True)\n"
            "    logs = jnp.log(jnp.exp(logits - top).sum(axis=1)) + top[:, 0]\n"
            "    own = jnp.take_along_axis(logits, labels[:, None], axis=1)[:, 0]\n"
            "    return (logs - own).mean()",
            LOSS + "    logs = jax.nn.logsumexp(logits, axis=1)\n"
            "    own = jnp.where(jnp.arange(40) == labels[:, None], logits, 0)\n"
            "    return (logs - own.sum(axis=1)).mean()",
            """
def on_blocks(logits, labels):
    top = lax.pmax(logits.max(axis=1), "model")
    total = lax.psum(jnp.exp(logits - top[:, None]).sum(axis=1), "model")
    local = labels - lax.axis_index("model") * logits.shape[1]
    mine = jnp.arange(logits.shape[1]) == local[:, None]
    own = lax.psum(jnp.sum(logits, axis=1, where=mine), "model")
    return lax.pmean((jnp.log(total) + top - own).mean(), "data")

loss = jax.shard_map(on_blocks, mesh=mesh, out_specs=P(),
                     in_specs=(P("data", "model"), P("data")))
""",
            "import optax\n" + LOSS + "    rows ="
            " optax.softmax_cross_entropy_with_integer_labels(logits, labels)\n"
            "    return rows.mean()",
        ],
        wrong=[
            (  # everything on every device first
                LOSS + "    logits = lax.with_sharding_constraint(logits, on())\n"
                "    logs = jax.nn.log_softmax(logits, axis=1)\n"
                "    return -logs[jnp.arange(48), labels].mean()",
                "the budget is 1,000",
            ),
            (  # the vocabulary gathered, rows left alone
                LOSS + '    logits = lax.with_sharding_constraint(logits, on("data"))\n'
                "    logs = jax.nn.log_softmax(logits, axis=1)\n"
                "    return -jnp.take_along_axis(logs, labels[:, None], 1).mean()",
                "the budget is 1,000",
            ),
            (  # no largest value taken out: inf for large logits
                LOSS + "    logs = jnp.log(jnp.exp(logits).sum(axis=1))\n"
                "    own = jnp.take_along_axis(logits, labels[:, None], 1)[:, 0]\n"
                "    return (logs - own).mean()",
                "loss",
            ),
            (  # a sum, not a mean
                LOSS + "    logs = jax.nn.log_softmax(logits, axis=1)\n"
                "    return -jnp.take_along_axis(logs, labels[:, None], 1).sum()",
                "loss",
            ),
            (  # the wrong sign
                LOSS + "    logs = jax.nn.log_softmax(logits, axis=1)\n"
                "    return jnp.take_along_axis(logs, labels[:, None], 1).mean()",
                "loss",
            ),
            (  # whole rows, in half the bytes
                """
def on_blocks(logits, labels):
    half = logits.astype(jnp.float16)
    rows = lax.all_gather(half, "model", axis=1, tiled=True)
    logs = jax.nn.log_softmax(rows.astype(jnp.float32))
    own = -jnp.take_along_axis(logs, labels[:, None], axis=1)
    return lax.pmax(lax.pmean(own.mean(), "data"), "model")

loss = jax.shard_map(on_blocks, mesh=mesh, out_specs=P(),
                     in_specs=(P("data", "model"), P("data")))
""",
                "is not right",
            ),
            (LOSS + "    return jnp.float32(3.7)", "loss"),
            (LOSS + "    return logits.sum() * jnp.nan", "not finite"),
        ],
    ),
    "4.3": Answers(
        right=[
            TURNED + '    y = lax.with_sharding_constraint(x, on("model", "data"))\n'
            "    return jnp.tanh(y)",
            "turned = jax.jit(jnp.tanh, out_shardings=on('model', 'data'))",
            TURNED + "    y = jnp.tanh(x)\n"
            "    place = NamedSharding(mesh, P(('model',), ('data',)))\n"
            "    return jax.lax.with_sharding_constraint(y, place)",
        ],
        wrong=[
            (
                TURNED + "    y = jnp.tanh(x)\n"
                '    return jax.device_put(y, on("model", "data"))',
                "P('data', 'model')",
            ),
            (TURNED + "    return jnp.tanh(x)", "P('data', 'model')"),
            (
                TURNED + "    y = jnp.tanh(x)\n"
                "    return lax.with_sharding_constraint(y, on())",
                "P(None, None)",
            ),
            (
                TURNED + "    y = lax.with_sharding_constraint(jnp.tanh(x), on())\n"
                '    return lax.with_sharding_constraint(y, on("model", "data"))',
                "the budget is",
            ),
            (
                TURNED
                + '    return lax.with_sharding_constraint(x, on("model", "data"))',
                "result",
            ),
            (
                TURNED + "    y = jnp.tanh(x)\n"
                '    return lax.with_sharding_constraint(y, on("data", "model"))',
                "P('data', 'model')",
            ),
        ],
    ),
    "4.4": Answers(
        right=[
            HOME + "    def place(x):\n"
            "        if isinstance(x.sharding, NamedSharding) and "
            "x.sharding.mesh == mesh:\n"
            "            return x\n"
            "        return jax.device_put(x, NamedSharding(mesh, P()))\n"
            "    return jax.tree.map(place, state)",
            HOME + "    leaves, tree = jax.tree.flatten(state)\n"
            "    moved = [x if x.devices() == set(devices) else\n"
            "             jax.device_put(x, on()) for x in leaves]\n"
            "    return tree.unflatten(moved)",
            HOME + "    for name, x in state.items():\n"
            "        if isinstance(x, dict):\n"
            "            at_home(x)\n"
            "        elif len(x.sharding.device_set) < 8:\n"
            "            state[name] = jax.device_put(x, on())\n"
            "    return state",
        ],
        wrong=[
            (  # an array on some of the devices stays where it is
                HOME + "    return jax.tree.map(lambda x: x if len(x.devices()) > 1"
                " else jax.device_put(x, on()), state)",
                "['few']",
            ),
            (  # by shape
                HOME + "    return jax.tree.map(lambda x: x if x.ndim == 2"
                " else jax.device_put(x, on()), state)",
                "['few']|deep",
            ),
            (  # a table of names
                HOME + "    m = {**state['m'], 'b': jax.device_put(state['m']['b'],"
                " on())}\n"
                '    loose = {k: state[k] for k in ("b", "count", "few")}\n'
                '    return {**state, **jax.device_put(loose, on()), "m": m}',
                "['w']",
            ),
            (  # a table of sizes
                HOME + "    return jax.tree.map(lambda x: x if x.size in (96, 32)"
                " or len(x.devices()) > 4 else jax.device_put(x, on()), state)",
                "['few']",
            ),
            (HOME + "    return jax.device_put(state, on())", "['w']"),
            (  # a table of one state
                HOME + "    return {\n"
                '        **jax.device_put(state, on()), "w": state["w"],\n'
                '        "v": state["v"], "m": jax.device_put(state["m"],\n'
                '            {"b": on(), "deep": {"b": on("data")}})}',
                "['m']['deep']['b']",
            ),
            (  # other values, in place
                HOME + '    state["b"] = jax.device_put(jnp.zeros(16), on())\n'
                '    state["count"] = jax.device_put(jnp.int32(0), on())\n'
                '    state["few"] = jax.device_put(jnp.zeros((8, 12)), on())\n'
                '    state["m"]["b"] = jax.device_put(jnp.zeros(16), on())\n'
                "    return state",
                "['count']: 0 is not right",
            ),
            (HOME + "    return state", "['b']"),
            (  # only what is pinned
                HOME + "    def place(x):\n"
                "        loose = not x.committed or len(x.devices()) > 1\n"
                "        return x if loose else jax.device_put(x, on())\n"
                "    return jax.tree.map(place, state)",
                "['b']",
            ),
            (  # only the first level
                HOME + "    return {k: x if isinstance(x, dict) or len(x.devices()) > 1"
                " else jax.device_put(x, on()) for k, x in state.items()}",
                "m",
            ),
            (  # from the values: loose again
                HOME + "    return jax.tree.map(lambda x: jnp.array(np.asarray(x)),"
                " state)",
                "['w']",
            ),
        ],
    ),
    "4.5": Answers(
        right=[
            INIT + "make_params = jax.jit(lambda key: jax.tree.map(\n"
            "    lax.with_sharding_constraint, init(key), places))",
            INIT + "@jax.jit\ndef make_params(key):\n"
            "    made = jax.jit(init, out_shardings=places)(key)\n"
            "    return made",
        ],
        wrong=[
            (INIT + "make_params = jax.jit(init)", "['w1']"),
            (
                INIT + "def make_params(key):\n"
                "    return jax.device_put(init(key), places)",
                "what jax.jit returns",
            ),
            (  # dropped without a word
                INIT + "make_params = jax.jit(\n"
                "    lambda key: jax.device_put(init(key), places))",
                "['w1']",
            ),
            (  # whole on every device on the way
                INIT + "make_params = jax.jit(lambda key: jax.tree.map(\n"
                "    lambda x: lax.with_sharding_constraint(x, on()), init(key)),\n"
                "    out_shardings=places)",
                "the budget is 4 MiB",
            ),
            (
                INIT + 'places["b"] = on("data")\n'
                "make_params = jax.jit(init, out_shardings=places)",
                "['b']",
            ),
            (  # one key for both
                INIT.replace("(key2,", "(key1,")
                + "make_params = jax.jit(init, out_shardings=places)",
                "['w2']",
            ),
        ],
    ),
}
