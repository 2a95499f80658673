"""Chapter 4: its checks, judged by right and wrong answers."""

import jax
import jax.numpy as jnp
from jax.sharding import AxisType

from spmd_exercises._setting import abstract, devices, make_mesh, on

from .judging import YES, Answers, AnswersAreJudged, imports


class TestChapter4(AnswersAreJudged):
    pass


def given():
    """What the chapter's cells have made where its answers stand."""
    mesh = make_mesh(data=4, model=2)

    def in_shards(shape, *entries, dtype=jnp.float32):
        return abstract(shape, on(mesh, *entries), dtype)

    return imports() | {
        "devices": devices(8),
        "auto": (AxisType.Auto,) * 2,
        "mesh": mesh,
        "on": lambda *entries: on(mesh, *entries),
        "abstract": in_shards,
        "product": jax.jit(jnp.matmul),
    }


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
            'a = e = " All-gather"\nb = d = np.str_("all-reduce")\nc = "Nothing"',
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
                "is not one of",
            ),
            (
                'a = e = "all-gather"\nb = c = d = "all-reduce"',
                "look again at c",
            ),
            (YES + "a = b = c = d = e = Yes()", "is not one of"),
            ("a = b = c = d = e = None", "a is None, which is not one of"),
            ('a = b = c = d = e = ["nothing"]', "a is ['nothing'], which"),
            (  # the sums of e and the gather of d taken for each other
                'a = d = "all-gather"\nb = e = "all-reduce"\nc = "nothing"',
                "look again at d, e",
            ),
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
            # compiled before, and its first argument donated
            LOSS + "    logs = jax.nn.log_softmax(logits, axis=1)\n"
            "    return -jnp.take_along_axis(logs, labels[:, None], axis=1).mean()\n"
            "loss = jax.jit(loss, donate_argnums=0).lower(\n"
            "    abstract((48, 40), 'data', 'model'),\n"
            "    abstract((48,), 'data', dtype=jnp.int32)).compile()",
            # a callable object that has another argument
            "from functools import partial\n"
            "class Loss:\n"
            "    def __call__(self, axis, logits, labels):\n"
            "        logs = logits - jax.nn.logsumexp(logits, axis, keepdims=True)\n"
            "        return -(logs * jax.nn.one_hot(labels, 40)).sum() / 48\n"
            "loss = partial(Loss(), 1)",
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
            (  # in half the bytes, and nothing gathered
                LOSS + "    logs = jax.nn.log_softmax(logits.astype(jnp.bfloat16))\n"
                "    own = jnp.take_along_axis(logs, labels[:, None], axis=1)\n"
                "    return -own.astype(jnp.float32).mean()",
                "['loss']",
            ),
            (  # the sum over the vocabulary of one device
                """
def on_blocks(logits, labels):
    logs = jax.nn.log_softmax(logits)
    local = labels - lax.axis_index("model") * logits.shape[1]
    mine = jnp.arange(logits.shape[1]) == local[:, None]
    own = lax.psum(jnp.sum(logs, axis=1, where=mine), "model")
    return -lax.pmean(own.mean(), "data")

loss = jax.shard_map(on_blocks, mesh=mesh, out_specs=P(),
                     in_specs=(P("data", "model"), P("data")))
""",
                "['loss']",
            ),
            (  # the loss of each row
                LOSS + "    logs = jax.nn.log_softmax(logits, axis=1)\n"
                "    return -jnp.take_along_axis(logs, labels[:, None], 1)",
                "shape (48, 1)",
            ),
            (LOSS + "    return ()", "a tree with no leaves|mean over all 48"),
            ("loss = 3.7", "loss is 3.7, but has to be a function"),
            (LOSS + "    return logits.sum() * jnp.nan", "not finite"),
            (  # a row far below the largest number of all
                "def loss(logits, labels):\n"
                "    hot = jax.nn.one_hot(labels, logits.shape[1])\n"
                "    top = logits.max()\n"
                "    return jnp.mean(jnp.log(jnp.exp(logits - top).sum(1)) + "
                "top - (logits * hot).sum(1))",
                "not finite",
            ),
            (  # a logarithm kept from zero
                "def loss(logits, labels):\n"
                "    hot = jax.nn.one_hot(labels, logits.shape[1])\n"
                "    return -(jnp.log(jax.nn.softmax(logits) + 1e-9) * "
                "hot).sum(1).mean()",
                "times the expected value",
            ),
        ],
    ),
    "4.3": Answers(
        right=[
            TURNED + '    y = lax.with_sharding_constraint(x, on("model", "data"))\n'
            "    return jnp.tanh(y)",
            "turned = jax.jit(jnp.tanh, out_shardings=on('model', 'data'))",
            "from functools import partial\n"
            "place = partial(lax.with_sharding_constraint,"
            " shardings=on('model', 'data'))\n"
            "turned = lambda x: jnp.tanh(place(x))",
            # an argument that is donated
            "@jax.jit\n" + TURNED + "    twice = jax.jit(jnp.tanh, donate_argnums=0,\n"
            "        out_shardings=on('model', 'data'))\n"
            "    return twice(x)",
            TURNED + "    y = jnp.tanh(x)\n"
            "    place = NamedSharding(mesh, P(('model',), ('data',)))\n"
            "    return jax.lax.with_sharding_constraint(y, place)",
            # a body of its own on the new blocks
            "def turned(x):\n"
            "    @jax.shard_map(mesh=mesh, in_specs=P('model', 'data'), "
            "out_specs=P('model', 'data'))\n"
            "    def own(block):\n"
            "        return jnp.tanh(block)\n"
            "    return own(x)",
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
            (  # in half the bytes
                TURNED + "    y = jnp.tanh(x.astype(jnp.float16))\n"
                '    y = lax.with_sharding_constraint(y, on("model", "data"))\n'
                "    return y.astype(jnp.float32)",
                "in float32",
            ),
            (  # the size of the chapter's array
                TURNED + "    y = jnp.tanh(x).reshape(48, 40)\n"
                '    return lax.with_sharding_constraint(y, on("model", "data"))',
                "TypeError",
            ),
            (  # one size was compiled
                "turned = jax.jit(jnp.tanh, out_shardings=on('model', 'data'))\n"
                "turned = turned.lower(abstract((48, 40), 'data', 'model')).compile()",
                "TypeError",
            ),
            (TURNED + "    jnp.tanh(x)", "in float32"),
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
            # what is elsewhere is given up, or read by the host
            HOME + "    return jax.tree.map(lambda x: x if len(x.devices()) == 8 else\n"
            "        jax.device_put(x, on(), donate=True), state)",
            HOME + "    return jax.tree.map(lambda x: x if len(x.devices()) == 8 else\n"
            "        jax.device_put(np.asarray(x), on()), state)",
            # the same devices, with Explicit axes
            HOME + "    names, kinds = mesh.axis_names, (AxisType.Explicit,) * 2\n"
            "    own = jax.make_mesh((4, 2), names, kinds, devices=devices)\n"
            "    home = NamedSharding(own, P())\n"
            "    return jax.tree.map(lambda x: x if len(x.devices()) == 8 else\n"
            "        jax.device_put(x, home), state)",
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
            (  # in place, and nothing comes back
                HOME + "    for name, x in state.items():\n"
                "        if not isinstance(x, dict) and len(x.devices()) < 8:\n"
                "            state[name] = jax.device_put(x, on())",
                "at_home returned None",
            ),
            (HOME + "    return jax.tree.leaves(state)", "dict like state"),
            (  # in half the bytes
                HOME + "    return jax.tree.map(lambda x: x if len(x.devices()) == 8\n"
                "        else jax.device_put(x.astype(jnp.float16), on()), state)",
                "every value|off by|dtype",
            ),
            (  # a count in place of its array
                HOME + "    return jax.tree.map(lambda x: x if len(x.devices()) == 8\n"
                "        else jax.device_put(x * 1.0, on()), state)",
                "a result is float32[], but has to be int32",
            ),
            (  # the arrays of the state are used up
                HOME + "    for x in jax.tree.leaves(state):\n"
                "        x.delete()\n"
                "    return state",
                "is already deleted",
            ),
            (HOME + "    return jax.tree.map(np.asarray, state)", "has no sharding"),
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
                "and 3 more",
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
            # compiled before
            INIT + "make_params = jax.jit(init, out_shardings=places)\n"
            "make_params = make_params.lower(jax.random.key(3)).compile()",
            # with Explicit axes
            INIT + "own = jax.make_mesh((4, 2), mesh.axis_names,\n"
            "    (AxisType.Explicit,) * 2, devices=devices)\n"
            "places = {name: NamedSharding(own, place.spec)\n"
            "          for name, place in places.items()}\n"
            "make_params = jax.jit(init, out_shardings=places)",
            # a partial of a jitted function
            "from functools import partial\n" + INIT + "def scaled(scale, key):\n"
            "    return {k: w * scale for k, w in init(key).items()}\n"
            "make_params = partial(jax.jit(scaled, out_shardings=places), 1.0)",
            # the method of an object, jitted
            INIT + "from functools import partial\n"
            "class Maker:\n"
            "    @partial(jax.jit, static_argnums=0, out_shardings=places)\n"
            "    def build(self, key): return init(key)\n"
            "make_params = Maker().build",
        ],
        wrong=[
            (INIT + "make_params = jax.jit(init)", "['w1']"),
            (  # in half the bytes
                INIT.replace("(512, 2048)", "(512, 2048), jnp.bfloat16")
                + "make_params = jax.jit(init, out_shardings=places)",
                "['w1']",
            ),
            (  # zeros that are whole numbers
                INIT.replace("jnp.zeros(2048)", "jnp.zeros(2048, int)")
                + "make_params = jax.jit(init, out_shardings=places)",
                "a result is int32[2048]",
            ),
            (  # the key is not used
                INIT.replace("split(key)", "split(jax.random.key(0))")
                + "make_params = jax.jit(init, out_shardings=places)",
                "The key is jax.random.key(5)",
            ),
            (  # two of three
                INIT + "@jax.jit\ndef make_params(key):\n"
                "    made = jax.jit(init, out_shardings=places)(key)\n"
                "    return {'w1': made['w1'], 'w2': made['w2']}",
                "['b']: is missing",
            ),
            (INIT + "make_params = init(jax.random.key(0))", "what jax.jit returns"),
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
