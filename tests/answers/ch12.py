"""Chapter 12: right and wrong answers."""

from . import Answers
from .ch01 import YES

SPLIT = "def split(x, heads):\n"
MERGE = "def merge(y):\n"
GOOD_MERGE = (
    MERGE + "    y = jnp.moveaxis(y, 1, 2)\n"
    "    return y.reshape(y.shape[0], y.shape[1], -1)\n"
)
GOOD_SPLIT = (
    SPLIT + "    batch, tokens, width = x.shape\n"
    "    x = x.reshape(batch, tokens, heads, width // heads)\n"
    "    return x.swapaxes(1, 2)\n"
)
PAIRS = "def rope_pairs(x):\n"
TO = "def to_pairs(w, heads):\n"
GOOD_PAIRS = (
    PAIRS + "    cos, sin = jnp.cos(angles(x)), jnp.sin(angles(x))\n"
    "    a, b = x[..., ::2], x[..., 1::2]\n"
    "    out = jnp.stack([a * cos - b * sin, b * cos + a * sin], axis=-1)\n"
    "    return out.reshape(x.shape)\n"
)
GOOD_TO = (
    TO + "    width = w.shape[1] // heads\n"
    "    order = np.arange(width).reshape(2, -1).T.ravel()\n"
    "    rows = np.arange(heads)[:, None] * width + order\n"
    "    return w[:, rows.ravel()]\n"
)
SOFTMAX = "def block_softmax(x):\n"
MAKE = "def make(host):\n"
CUT3 = (
    '    w = host["wqkv"].reshape(48, 3, 64)\n'
    '    params = {"g": host["g"], "w": w, "wo": host["wo"]}\n'
    '    specs = {"g": P(), "w": P("data", None, "model"),\n'
    '             "wo": P("model", "data")}\n'
)
PUT = (
    "    places = {name: NamedSharding(mesh, s) for name, s in specs.items()}\n"
    "    params = jax.device_put(params, places)\n"
)
F3 = (
    "    def f(p, x):\n"
    '        h = norm(x, p["g"])\n'
    '        q, k, v = (in_heads(h @ p["w"][:, i]) for i in range(3))\n'
    '        return x + flat(attend(rope(q), rope(k), v)) @ p["wo"]\n'
    "    return params, f"
)

ANSWERS = {
    "12.1": Answers(
        right=[
            GOOD_SPLIT + GOOD_MERGE,
            SPLIT + "    x = x.reshape(*x.shape[:2], heads, -1)\n"
            '    return jnp.einsum("bshd->bhsd", x)\n' + MERGE + "    "
            'y = jnp.einsum("bhsd->bshd", y)\n'
            "    return y.reshape(y.shape[:2] + (y.shape[2] * y.shape[3],))\n",
        ],
        wrong=[
            (
                SPLIT
                + "    return x.reshape(x.shape[0], heads, x.shape[1], -1)\n"
                + MERGE
                + "    return y.reshape(y.shape[0], y.shape[2], -1)\n",
                "['split']",
            ),
            (
                GOOD_SPLIT
                + MERGE
                + "    return y.reshape(y.shape[0], y.shape[2], -1)\n",
                "['merge']",
            ),
            (  # heads are the inner part
                SPLIT + "    x = x.reshape(*x.shape[:2], -1, heads)\n"
                "    return x.transpose(0, 3, 1, 2)\n"
                + MERGE
                + "    y = y.transpose(0, 2, 3, 1)\n"
                "    return y.reshape(*y.shape[:2], -1)\n",
                "['split']",
            ),
            (  # not transposed
                SPLIT + "    return x.reshape(*x.shape[:2], heads, -1)\n" + GOOD_MERGE,
                "is wanted",
            ),
            (  # whole everywhere
                GOOD_SPLIT.replace(
                    "    x = x.reshape",
                    "    x = lax.with_sharding_constraint(\n"
                    "        x, NamedSharding(mesh, P()))\n    x = x.reshape",
                )
                + GOOD_MERGE,
                "all-gather runs",
            ),
            (  # slices do not fall on the devices' borders
                SPLIT
                + "    return jnp.stack(jnp.split(x, heads, -1), axis=1)\n"
                + GOOD_MERGE,
                "runs",
            ),
            (
                SPLIT
                + "    x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2)\n"
                + GOOD_MERGE,
                "split gives (), and (8, 4, 6, 6) is wanted",
            ),
        ],
    ),
    "12.2": Answers(
        right=[
            'a = d = "free"\nb = c = e = "gather"',
            'answers = ["free", "gather"]\n'
            "a, b, c, d, e = (answers[i] for i in (0, 1, 1, 0, 1))",
        ],
        wrong=[
            ('a = b = c = d = e = "free"', "look again at b, c, e"),
            ('a = b = c = d = e = "gather"', "look again at a, d"),
            (
                'a = d = e = "free"\nb = c = "gather"',
                "look again at e",
            ),
            ("a, b, c, d, e = True, False, False, True, False", "is neither"),
            (YES + "a = b = c = d = e = Yes()", "is neither"),
            (  # a text that equals every text
                "class Any(str):\n"
                "    __hash__ = str.__hash__\n"
                "    def __eq__(self, other):\n        return True\n"
                "    def __ne__(self, other):\n        return False\n"
                "    def __str__(self):\n        return self\n"
                'a = b = c = d = e = Any("?")',
                "is neither",
            ),
        ],
    ),
    "12.3": Answers(
        right=[
            'wq_spec, wo_spec = P(None, ("group", "kv")), P(("group", "kv"))\n'
            'wk_spec = wv_spec = P(None, "group")',
            'wq_spec = P(None, both)\nwk_spec = wv_spec = P(None, ("kv",))\n'
            "wo_spec = P(both)",
        ],
        wrong=[
            (
                "wq_spec = P(None, both)\nwk_spec = wv_spec = P(None, both)\n"
                "wo_spec = P(both)",
                "all-gather runs",
            ),
            (
                "wq_spec = P(None, both)\nwk_spec = wv_spec = P()\nwo_spec = P(both)",
                "wk: 6,144 of 6,144 bytes",
            ),
            (
                "wq_spec = wk_spec = wv_spec = wo_spec = P()",
                "wq: 36,864 of 36,864 bytes",
            ),
            (
                'wq_spec = P(None, "kv")\nwk_spec = wv_spec = P(None, "kv")\n'
                'wo_spec = P("kv")',
                "wq: 18,432 of 36,864",
            ),
            (  # the order of the axes
                'wq_spec = P(None, ("group", "kv"))\n'
                'wk_spec = wv_spec = P(None, "kv")\n'
                'wo_spec = P(("group", "kv"))',
                "runs",
            ),
            (
                'wq_spec = P(None, both)\nwk_spec = wv_spec = P(None, "kv")\n'
                "wo_spec = P(None, both)",
                "runs",
            ),
            (  # the contracting dimension
                'wq_spec = P(both)\nwk_spec = wv_spec = P("kv")\nwo_spec = P(both)',
                "runs",
            ),
            (  # weights gathered over data: not the only collective
                'wq_spec, wo_spec = P("data", both), P(both, "data")\n'
                'wk_spec = wv_spec = P(None, "kv")',
                "all-gather runs",
            ),
            (
                'wq_spec = wk_spec = wv_spec = wo_spec = (None, "kv")',
                "write P",
            ),
        ],
    ),
    "12.4": Answers(
        right=[
            GOOD_PAIRS + GOOD_TO,
            PAIRS + "    turn = jnp.exp(1j * angles(x))\n"
            "    pairs = x.reshape(*x.shape[:3], -1, 2)\n"
            "    z = (pairs[..., 0] + 1j * pairs[..., 1]) * turn\n"
            "    return jnp.stack([z.real, z.imag], -1).reshape(x.shape)\n"
            + TO
            + "    "
            'return jnp.einsum("dhtf->dhft", w.reshape(\n'
            "        w.shape[0], heads, 2, -1)).reshape(w.shape)\n",
            # the weights are reordered by NumPy
            GOOD_PAIRS
            + TO
            + "    halves = np.asarray(w).reshape(len(w), heads, 2, -1)\n"
            "    return halves.swapaxes(2, 3).reshape(w.shape)\n",
            # each feature and its partner
            PAIRS + "    turn = jnp.repeat(angles(x), 2, -1)\n"
            "    pairs = x.reshape(*x.shape[:3], -1, 2)\n"
            "    partner = jnp.stack([-pairs[..., 1], pairs[..., 0]], -1)\n"
            "    partner = partner.reshape(x.shape)\n"
            "    return x * jnp.cos(turn) + partner * jnp.sin(turn)\n" + GOOD_TO,
        ],
        wrong=[
            (  # nothing changed
                PAIRS + "    return rope(x)\n" + TO + "    return w\n",
                "['a pair']",
            ),
            (  # the weights stay
                GOOD_PAIRS + TO + "    return w\n",
                "['scores']",
            ),
            (  # there and back
                PAIRS + "    halves = x.reshape(*x.shape[:3], -1, 2)\n"
                "    halves = halves.swapaxes(3, 4).reshape(x.shape)\n"
                "    y = rope(halves).reshape(*x.shape[:3], 2, -1)\n"
                "    return y.swapaxes(3, 4).reshape(x.shape)\n" + GOOD_TO,
                "runs",
            ),
            (  # the other direction
                GOOD_PAIRS + TO + "    pairs = w.reshape(len(w), heads, -1, 2)\n"
                "    return pairs.swapaxes(2, 3).reshape(w.shape)\n",
                "['scores']",
            ),
            (  # over all heads at once
                GOOD_PAIRS + TO + "    halves = w.reshape(len(w), 2, -1)\n"
                "    return halves.swapaxes(1, 2).reshape(w.shape)\n",
                "['scores']",
            ),
            (  # turned the other way: the scores can't tell
                GOOD_PAIRS.replace("jnp.sin(angles(x))", "-jnp.sin(angles(x))")
                + GOOD_TO,
                "['a pair']",
            ),
            (  # whole heads
                PAIRS + "    place = NamedSharding(mesh, P('data'))\n"
                "    x = lax.with_sharding_constraint(x, place)\n"
                + GOOD_PAIRS.removeprefix(PAIRS)
                + GOOD_TO,
                "all-gather runs",
            ),
            (
                GOOD_PAIRS + TO + "    w.reshape(len(w), heads, 2, -1).swapaxes(2, 3)",
                "to_pairs makes () of a weight of (10, 60)",
            ),
        ],
    ),
    "12.5": Answers(
        right=[
            SOFTMAX + "    own = lax.stop_gradient(x).max(-1)\n"
            '    x = x - lax.pmax(own, "model")[:, None]\n'
            '    total = lax.psum(jnp.exp(x).sum(-1), "model")\n'
            "    return jnp.exp(x - jnp.log(total)[:, None])",
        ],
        wrong=[
            (SOFTMAX + "    return jax.nn.softmax(x, axis=-1)", "['softmax']"),
            (  # overflows
                SOFTMAX + "    e = jnp.exp(x)\n"
                '    return e / lax.psum(e.sum(-1, keepdims=True), "model")',
                "['softmax']",
            ),
            (  # each device's own largest value
                SOFTMAX + "    e = jnp.exp(x - x.max(-1, keepdims=True))\n"
                '    return e / lax.psum(e.sum(-1, keepdims=True), "model")',
                "['softmax']",
            ),
            (  # pmax is differentiated
                SOFTMAX + '    top = lax.pmax(x.max(-1, keepdims=True), "model")\n'
                "    e = jnp.exp(x - lax.stop_gradient(top))\n"
                '    return e / lax.psum(e.sum(-1, keepdims=True), "model")',
                "NotImplementedError",
            ),
            (  # everything is gathered
                SOFTMAX + '    row = lax.all_gather(x, "model", axis=1, tiled=True)\n'
                "    y = jax.nn.softmax(row, axis=-1)\n"
                '    start = lax.axis_index("model") * x.shape[1]\n'
                "    return lax.dynamic_slice_in_dim(y, start, x.shape[1], 1)",
                "all-gather runs 1 time",
            ),
            (  # a third exchange
                SOFTMAX + "    top = lax.stop_gradient(x.max(-1, keepdims=True))\n"
                '    e = jnp.exp(x - lax.pmax(top, "model"))\n'
                '    total = lax.psum(e, "model").sum(-1, keepdims=True)\n'
                "    return e / total",
                "bytes",
            ),
        ],
    ),
    "12.6": Answers(
        right=[
            MAKE + CUT3 + PUT + F3,
            MAKE + '    parts = host["wqkv"].reshape(48, 3, 4, 16)\n'
            '    params = {"g": host["g"], "out": host["wo"].reshape(4, 16, 48)}\n'
            "    params |= {n: parts[:, i] for i, n in enumerate('qkv')}\n"
            "    specs = {n: P('data', 'model') for n in 'qkv'} | {\n"
            "        'g': P(), 'out': P('model', None, 'data')}\n" + PUT + "    "
            "def f(p, x):\n"
            "        h = norm(x, p['g'])\n"
            "        q, k, v = (jnp.einsum('bsd,dhk->bshk', h, p[n]) for n in 'qkv')\n"
            "        y = attend(rope(q), rope(k), v)\n"
            "        return x + jnp.einsum('bshk,hkd->bsd', y, p['out'])\n"
            "    return params, f",
        ],
        wrong=[
            (
                MAKE + "    return jax.device_put(\n"
                "        host, NamedSharding(mesh, P())), wasteful",
                "a device holds",
            ),
            (  # not placed at all
                MAKE + "    return dict(host), wasteful",
                "params has a ndarray, and only arrays that are placed",
            ),
            (  # only the weights are placed
                MAKE + "    params = dict(host)\n"
                '    specs = {"g": P(), "wqkv": P("data", "model"),\n'
                '             "wo": P("model", "data")}\n'
                + PUT
                + "    return params, wasteful",
                "there is (all-to-all|collective-permute)|gathered over model",
            ),
            (  # tensor parallel only
                MAKE
                + CUT3.replace('"data", None, "model"', 'None, None, "model"').replace(
                    '"model", "data"', '"model"'
                )
                + PUT
                + F3,
                "a device holds",
            ),
            (  # FSDP only
                MAKE
                + CUT3.replace('"data", None, "model"', '("data", "model")').replace(
                    '"model", "data"', '("data", "model")'
                )
                + PUT
                + F3,
                "gathered over model",
            ),
            (  # q, k and v from every third column
                MAKE
                + CUT3.replace(
                    "reshape(48, 3, 64)", "reshape(48, 64, 3).swapaxes(1, 2)"
                )
                + PUT
                + F3,
                "['f']",
            ),
            (  # the constraint stays
                MAKE
                + CUT3
                + PUT
                + F3.replace(
                    "flat(attend(rope(q), rope(k), v))",
                    'constrain(flat(attend(rope(q), rope(k), v)), "data")',
                ),
                "gathered over model",
            ),
            (  # head_dim stays cut
                MAKE
                + CUT3
                + PUT
                + F3.replace(
                    "in_heads(h",
                    "constrain(in_heads(h",
                ).replace("[:, i])", '[:, i]), "data", None, None, "model")'),
                "there is all-to-all",
            ),
            (
                MAKE + CUT3 + PUT + F3.replace("return params, f", "return f, params"),
                "params has a function, and only arrays",
            ),
            (
                MAKE + CUT3 + PUT + F3.replace("return params, f", ""),
                "make is to return (params, f)",
            ),
        ],
    ),
}
