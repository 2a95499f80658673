"""Chapter 12: its checks, judged by right and wrong answers."""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from spmd_exercises._setting import abstract, make_mesh, on

from .judging import YES, Answers, AnswersAreJudged, imports


class TestChapter12(AnswersAreJudged):
    pass


def norm(x, g):
    mean = (x * x).mean(axis=-1, keepdims=True)
    return x * lax.rsqrt(mean + 1e-6) * g


def in_heads(t):
    return t.reshape(*t.shape[:2], -1, 16)


def flat(t):
    return t.reshape(*t.shape[:2], -1)


def attend(q, k, v):
    return jax.nn.dot_product_attention(q, k, v, is_causal=True)


def angles(x):
    speed = 1e4 ** (-jnp.arange(x.shape[3] // 2) * 2 / x.shape[3])
    return jnp.arange(x.shape[1])[:, None, None] * speed


def rope(x):
    cos, sin = jnp.cos(angles(x)), jnp.sin(angles(x))
    a, b = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def block(p, x, turn=lambda t: t):
    h = norm(x, p["g"])
    q, k, v = (in_heads(h @ p[w]) for w in ("wq", "wk", "wv"))
    return x + flat(attend(turn(q), turn(k), v)) @ p["wo"]


def given():
    """What the chapter's cells have made where its answers stand."""
    mesh = make_mesh(data=4, model=2)

    def constrain(t, *entries):
        return lax.with_sharding_constraint(t, on(mesh, *entries))

    def wasteful(p, x):
        h = constrain(norm(x, p["g"]), "data")
        q, k, v = jnp.split(h @ p["wqkv"], 3, axis=-1)
        q, k, v = (
            constrain(in_heads(t), "data", None, None, "model") for t in (q, k, v)
        )
        out = flat(attend(rope(q), rope(k), v))
        return x + constrain(out, "data") @ p["wo"]

    return imports() | {
        "mesh": mesh,
        "line": make_mesh(model=4),
        "grid": make_mesh(data=2, kv=2, group=2),
        "both": ("kv", "group"),
        "partial": partial,
        "abstract": lambda shape, *entries, mesh=mesh: abstract(
            shape, NamedSharding(mesh, P(*entries))
        ),
        "constrain": constrain,
        "make_mesh": lambda kind, **axes: make_mesh(kind, **axes),
        "norm": norm,
        "in_heads": in_heads,
        "flat": flat,
        "attend": attend,
        "angles": angles,
        "rope": rope,
        "block": block,
        "roped_block": partial(block, turn=rope),
        "wasteful": wasteful,
    }


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

ROPE_ZIGZAG = "def rope_zigzag(x):\n"
POSITIONS = (
    "    n, me = lax.axis_size('model'), lax.axis_index('model')\n"
    "    half, late = x.shape[1] // 2, 2 * n - 1 - me\n"
    "    i = jnp.arange(half)\n"
    "    at = jnp.concatenate([me * half + i, late * half + i])\n"
)
TURNED = (
    "    speed = 1e4 ** (-jnp.arange(x.shape[3] // 2) * 2 / x.shape[3])\n"
    "    angle = at[:, None, None] * speed\n"
    "    a, b = jnp.split(x, 2, axis=-1)\n"
    "    cos, sin = jnp.cos(angle), jnp.sin(angle)\n"
    "    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)"
)
CONTEXT = "def context_attend(q, k, v):\n"
GATHERED = (
    "    k, v = (lax.all_gather(t, 'model', axis=1, tiled=True) for t in (k, v))\n"
)
ROWS = "    rows = lax.axis_index('model') * q.shape[1] + jnp.arange(q.shape[1])\n"
MASKED = (
    "    mask = jnp.arange(k.shape[1]) <= rows[:, None]\n"
    "    return jax.nn.dot_product_attention(q, k, v, mask=mask[None, None])"
)
SCORED = (
    "    mask = jnp.arange(k.shape[1]) <= rows[:, None]\n"
    "    scores = jnp.einsum('bshd,bthd->bhst', q, k) / q.shape[-1] ** 0.5\n"
    "    weights = jax.nn.softmax(jnp.where(mask, scores, -jnp.inf))\n"
    "    return jnp.einsum('bhst,bthd->bshd', weights, v)"
)

ANSWERS = {
    "12.1": Answers(
        right=[
            GOOD_SPLIT + GOOD_MERGE,
            SPLIT + "    x = x.reshape(*x.shape[:2], heads, -1)\n"
            '    return jnp.einsum("bshd->bhsd", x)\n' + MERGE + "    "
            'y = jnp.einsum("bhsd->bshd", y)\n'
            "    return y.reshape(y.shape[:2] + (y.shape[2] * y.shape[3],))\n",
            # jitted, and the placements are written down
            "@partial(jax.jit, static_argnums=1)\n"
            + GOOD_SPLIT.replace(
                "return x.swapaxes(1, 2)",
                "x = x.swapaxes(1, 2)\n    return constrain(x, 'data', 'model')",
            )
            + "@jax.jit\n"
            + GOOD_MERGE,
            # a cut of each row, mapped
            "split = lambda x, heads: jax.vmap(jax.vmap(\n"
            "    lambda row: row.reshape(heads, -1), out_axes=1))(x)\n" + GOOD_MERGE,
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
                "split returns the shape [8, 6, 4, 6], but has to return the shape",
            ),
            (  # in half precision
                GOOD_SPLIT.replace(
                    "return x", "x = x.astype(jnp.float16)\n    return x"
                )
                + GOOD_MERGE,
                "['split']: off by",
            ),
            (  # of four heads only
                GOOD_SPLIT.replace("heads, width // heads", "4, width // 4")
                + GOOD_MERGE,
                "split returns the shape [4, 4, 5, 15], but has to return",
            ),
            (  # right, and merged on all devices
                GOOD_SPLIT
                + GOOD_MERGE.replace(
                    "    return y",
                    "    y = "
                    "lax.with_sharding_constraint(y, NamedSharding(mesh, P('data')))\n"
                    "    return y",
                ),
                "which dimensions are adjacent",
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
                "split returns None, but has to return the shape [8, 4, 6, 6]",
            ),
        ],
    ),
    "12.2": Answers(
        right=[
            'a = d = "free"\nb = c = e = "gather"',
            'answers = ["free", "gather"]\n'
            "a, b, c, d, e = (answers[i] for i in (0, 1, 1, 0, 1))",
            'a = d = "Free"\nb = c = e = " gather"',
            # looked up
            "def word(into, size, *entries):\n"
            "    x = abstract(size, *entries, mesh=line)\n"
            "    moved = spmd.xray(lambda x: x.reshape(into), x).collectives\n"
            "    return 'gather' if moved else 'free'\n"
            "features = None, None, 'model'\n"
            "a = word((3, 10, 12, 8), (3, 10, 96), *features)\n"
            "b = word((3, 10, 10, 6), (3, 10, 60), *features)\n"
            "c = word((3, 10, 96), (3, 10, 8, 12), None, *features)\n"
            "d = word((80, 24), (8, 10, 24), 'model')\n"
            "e = word((3, 8, 10, 12), (3, 10, 96), *features)",
        ],
        wrong=[
            ('a = b = c = d = e = "free"', "look again at b, c, e"),
            ('a = b = c = d = e = "gather"', "look again at a, d"),
            (
                'a = d = e = "free"\nb = c = "gather"',
                "look again at e",
            ),
            ("a, b, c, d, e = True, False, False, True, False", "which is not one of"),
            ('a = b = c = e = "gather"\nd = None', "d is None, which is not one of"),
            (YES + "a = b = c = d = e = Yes()", "which is not one of"),
            (  # a text that equals every text
                "class Any(str):\n"
                "    __hash__ = str.__hash__\n"
                "    def __eq__(self, other):\n        return True\n"
                "    def __ne__(self, other):\n        return False\n"
                "    def __str__(self):\n        return self\n"
                'a = b = c = d = e = Any("?")',
                "which is not one of",
            ),
        ],
    ),
    "12.3": Answers(
        right=[
            'wq_spec, wo_spec = P(None, ("group", "kv")), P(("group", "kv"))\n'
            'wk_spec = wv_spec = P(None, "group")',
            'wq_spec = P(None, both)\nwk_spec = wv_spec = P(None, ("kv",))\n'
            "wo_spec = P(both)",
            # the first spec decides
            'wo_spec = P(("kv", "group"), None)\n'
            "wq_spec = P(*reversed(wo_spec))\n"
            "wk_spec = wv_spec = P(None, wo_spec[0][0])",
        ],
        wrong=[
            (
                "wq_spec = P(None, both)\nwk_spec = wv_spec = P(None, both)\n"
                "wo_spec = P(both)",
                "all-gather runs",
            ),
            (
                "wq_spec = P(None, both)\nwk_spec = wv_spec = P()\nwo_spec = P(both)",
                "wk_spec is P(): each device has 6,144 of 6,144 bytes",
            ),
            (
                "wq_spec = wk_spec = wv_spec = wo_spec = P()",
                "wq_spec is P(): each device has 36,864 of 36,864 bytes",
            ),
            (
                'wq_spec = P(None, "kv")\nwk_spec = wv_spec = P(None, "kv")\n'
                'wo_spec = P("kv")',
                "each device has 18,432 of 36,864 bytes of wq",
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
                "is not a P(...)",
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
                "['rope_pairs']",
            ),
            (  # in half precision
                GOOD_PAIRS.replace(
                    "a, b = ",
                    "x = x.astype(jnp.bfloat16).astype(jnp.float32)\n    a, b = ",
                )
                + GOOD_TO,
                "['rope_pairs']",
            ),
            (  # of the head_dim in the text
                GOOD_PAIRS + GOOD_TO.replace("w.shape[1] // heads", "12"),
                "scores of 3 heads of 8 features|IndexError|returns the shape",
            ),
            (  # replicated along head_dim at the end
                GOOD_PAIRS.replace(
                    "return out.reshape(x.shape)",
                    "return constrain(out.reshape(x.shape), 'data')",
                )
                + GOOD_TO,
                "all-gather runs",
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
                "['rope_pairs']",
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
                "to_pairs returns None for a weight of shape [10, 60]",
            ),
            (  # another sign
                GOOD_PAIRS
                + GOOD_TO.replace("return w[:, rows.ravel()]", "w = w[:, rows.ravel()]")
                + ("    return -w\n"),
                "are not those of the weight",
            ),
        ],
    ),
    "12.5": Answers(
        right=[
            SOFTMAX + "    own = lax.stop_gradient(x).max(-1)\n"
            '    x = x - lax.pmax(own, "model")[:, None]\n'
            '    total = lax.psum(jnp.exp(x).sum(-1), "model")\n'
            "    return jnp.exp(x - jnp.log(total)[:, None])",
            # jitted, and the largest value of all devices by itself
            "def top_of(x):\n"
            '    return lax.pmax(lax.stop_gradient(x.max(-1)), "model")\n'
            "@jax.jit\n" + SOFTMAX + "    e = jnp.exp(x - top_of(x)[:, None])\n"
            '    return e / lax.psum(e.sum(-1), ("model",))[:, None]',
            # as an object
            "class Softmax:\n"
            "    def __call__(self, x):\n"
            "        top = lax.stop_gradient(x).max(-1, keepdims=True)\n"
            "        e = jnp.exp(x - lax.pmax(top, 'model'))\n"
            "        return e / lax.psum(jnp.einsum('ij->i', e), 'model')[:, None]\n"
            "block_softmax = Softmax()",
            SOFTMAX
            + (
                "    mine = lax.stop_gradient(x.max(-1, keepdims=True))\n"
                "    e = jnp.exp(x - mine)\n"
                "    scale = jnp.exp(mine - lax.pmax(mine, 'model'))\n"
                "    total = lax.psum(scale * e.sum(-1, keepdims=True), 'model')\n"
                "    return e * scale / total"
            ),
        ],
        wrong=[
            (SOFTMAX + "    return jax.nn.softmax(x, axis=-1)", "['softmax']"),
            (  # overflows
                SOFTMAX + "    e = jnp.exp(x)\n"
                '    return e / lax.psum(e.sum(-1, keepdims=True), "model")',
                "['softmax']",
            ),
            (  # the mean of the largest values
                SOFTMAX + "    top = lax.stop_gradient(x.max(-1, keepdims=True))\n"
                '    e = jnp.exp(x - lax.pmean(top, "model"))\n'
                '    return e / lax.psum(e.sum(-1, keepdims=True), "model")',
                "with scores up to",
            ),
            (  # the sum is a constant to the gradient
                SOFTMAX + "    top = lax.stop_gradient(x.max(-1, keepdims=True))\n"
                '    e = jnp.exp(x - lax.pmax(top, "model"))\n'
                "    total = lax.stop_gradient(e.sum(-1, keepdims=True))\n"
                '    return e / lax.psum(total, "model")',
                "['gradient']",
            ),
            (  # in half precision
                SOFTMAX + "    top = lax.stop_gradient(x.max(-1, keepdims=True))\n"
                '    e = jnp.exp(x - lax.pmax(top, "model")).astype(jnp.float16)\n'
                '    total = lax.psum(e.sum(-1, keepdims=True), "model")\n'
                "    return (e / total).astype(jnp.float32)",
                "['softmax']",
            ),
            (  # of the 24 columns that the chapter has
                SOFTMAX + "    x = x[:, :6]\n"
                "    top = lax.stop_gradient(x.max(-1, keepdims=True))\n"
                '    e = jnp.exp(x - lax.pmax(top, "model"))\n'
                '    return e / lax.psum(e.sum(-1, keepdims=True), "model")',
                "x is [5, 40]|TypeError",
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
            (  # all scores of a row are very low
                SOFTMAX
                + (
                    "    top = lax.pmax(lax.stop_gradient(x.max(-1,"
                    " keepdims=True)), 'model')\n"
                    "    e = jnp.exp(x - jnp.maximum(top, 0))\n"
                    "    return e / lax.psum(e.sum(-1, keepdims=True), 'model')"
                ),
                "not finite",
            ),
            (  # one largest value for all rows
                SOFTMAX
                + (
                    "    top = lax.stop_gradient(x.max()) * jnp.ones((len(x), 1))\n"
                    "    e = jnp.exp(x - lax.pmax(top, 'model'))\n"
                    "    return e / lax.psum(e.sum(-1, keepdims=True), 'model')"
                ),
                "not finite",
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
            # Explicit axes, in a module's order: the product and then the sum
            MAKE
            + "    mesh = make_mesh(AxisType.Explicit, data=4, model=2)\n"
            + CUT3
            + PUT
            + "    reshard = jax.sharding.reshard\n"
            "    def f(p, x):\n"
            "        w = reshard(p['w'], P(None, None, 'model'))\n"
            "        wo = reshard(p['wo'], P('model'))\n"
            "        h = norm(x, p['g'])\n"
            "        q, k, v = (in_heads(h @ w[:, i]) for i in range(3))\n"
            "        y = flat(attend(rope(q), rope(k), v))\n"
            "        return x + jnp.matmul(y, wo, out_sharding=P('data'))\n"
            "    return params, jax.jit(f)",
        ],
        wrong=[
            (  # wo is not trained, and another exercise is open
                "a = b = c = ...\n"
                + MAKE
                + CUT3
                + PUT
                + F3.replace('p["wo"]', 'lax.stop_gradient(p["wo"])'),
                "the gradient for wo is not",
            ),
            (  # nor are the queries
                MAKE + CUT3 + PUT + F3.replace("rope(q)", "rope(lax.stop_gradient(q))"),
                "x differs from that of wasteful|the columns of q in wqkv",
            ),
            (  # the matrices are gathered in half precision
                MAKE
                + CUT3
                + PUT
                + F3.replace(
                    'h = norm(x, p["g"])',
                    'h = norm(x, p["g"])\n'
                    "        p = p | {n: constrain(p[n].astype(jnp.float16),\n"
                    "            *e).astype(jnp.float32) for n, e in (\n"
                    '            ("w", (None, None, "model")), ("wo", ("model",)))}',
                ),
                "['f']: off by",
            ),
            (  # weights of the function, not of params
                MAKE
                + CUT3
                + PUT
                + F3.replace(
                    "return params, f",
                    "return {'g': params['g']}, partial(\n"
                    "        lambda w, p, x: f(w | p, x), params)",
                ),
                "gradient|the average|an all-|['f']",
            ),
            (
                MAKE + "    return jax.device_put(\n"
                "        host, NamedSharding(mesh, P())), wasteful",
                "each device has 49,344 bytes of params",
            ),
            (  # not placed at all
                MAKE + "    return dict(host), wasteful",
                "is an ndarray that is not on the mesh",
            ),
            (  # only the weights are placed
                MAKE + "    params = dict(host)\n"
                '    specs = {"g": P(), "wqkv": P("data", "model"),\n'
                '             "wo": P("model", "data")}\n'
                + PUT
                + "    return params, wasteful",
                "an (all-to-all|collective-permute|all-gather) over model",
            ),
            (  # tensor parallel only
                MAKE
                + CUT3.replace('"data", None, "model"', 'None, None, "model"').replace(
                    '"model", "data"', '"model"'
                )
                + PUT
                + F3,
                "Which matrix is not sharded along both axes",
            ),
            (  # FSDP only
                MAKE
                + CUT3.replace('"data", None, "model"', '("data", "model")').replace(
                    '"model", "data"', '("data", "model")'
                )
                + PUT
                + F3,
                "an all-gather over (data and )?model|never",
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
                "an all-gather over (data and )?model|never",
            ),
            (  # head_dim stays cut
                MAKE
                + CUT3
                + PUT
                + F3.replace(
                    "in_heads(h",
                    "constrain(in_heads(h",
                ).replace("[:, i])", '[:, i]), "data", None, None, "model")'),
                "an all-to-all over model",
            ),
            (
                MAKE + CUT3 + PUT + F3.replace("return params, f", "return f, params"),
                "f, the second result of make, is a dict",
            ),
            (
                MAKE + CUT3 + PUT + F3.replace("return params, f", ""),
                "make returned None, but has to return (params, f)",
            ),
        ],
    ),
    "12.7": Answers(
        right=[
            ROPE_ZIGZAG + POSITIONS + TURNED,
            ROPE_ZIGZAG
            + "    n, me = lax.axis_size('model'), lax.axis_index('model')\n"
            "    early, late = jnp.split(x, 2, axis=1)\n"
            "    def turned(x, piece):\n"
            "        at = piece * x.shape[1] + jnp.arange(x.shape[1])\n"
            "        speed = 1e4 ** (-jnp.arange(x.shape[3] // 2) * 2 / x.shape[3])\n"
            "        z = lax.complex(*jnp.split(x, 2, axis=-1))\n"
            "        z = z * jnp.exp(1j * at[:, None, None] * speed)\n"
            "        return jnp.concatenate([z.real, z.imag], axis=-1)\n"
            "    parts = turned(early, me), turned(late, 2 * n - 1 - me)\n"
            "    return jnp.concatenate(parts, axis=1)",
            # the tables of all positions, of which each device takes its own
            ROPE_ZIGZAG + POSITIONS + "    full = jnp.zeros((1, n * x.shape[1], 1,"
            " x.shape[3]))\n"
            "    angle = angles(full)[at]\n"
            "    a, b = jnp.split(x, 2, axis=-1)\n"
            "    cos, sin = jnp.cos(angle), jnp.sin(angle)\n"
            "    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)",
        ],
        wrong=[
            (ROPE_ZIGZAG + "    return rope(x)", "at which position does each begin"),
            (  # the usual order
                ROPE_ZIGZAG + "    at = lax.axis_index('model') * x.shape[1]\n"
                "    at = at + jnp.arange(x.shape[1])\n" + TURNED,
                "at which position does each begin",
            ),
            (  # the late piece is that of the next device
                ROPE_ZIGZAG
                + POSITIONS.replace("2 * n - 1 - me", "2 * n - me")
                + TURNED,
                "at which position does each begin",
            ),
            (  # the late piece counts down
                ROPE_ZIGZAG
                + POSITIONS.replace("late * half + i", "late * half + i[::-1]")
                + TURNED,
                "at which position does each begin",
            ),
            (  # four devices always
                ROPE_ZIGZAG + POSITIONS.replace("lax.axis_size('model')", "4") + TURNED,
                "x is [1, 20, 2, 16] on 2 devices",
            ),
            (  # gathered and turned back
                ROPE_ZIGZAG
                + POSITIONS
                + "    full = lax.all_gather(x, 'model', axis=1,"
                " tiled=True)\n"
                "    every = lax.all_gather(at, 'model', tiled=True)\n"
                "    full = rope(full[:, jnp.argsort(every)])\n"
                "    return full[:, at]",
                "What does a device need to know",
            ),
            (  # no gradient
                ROPE_ZIGZAG + POSITIONS + "    x = lax.stop_gradient(x)\n" + TURNED,
                "gradient",
            ),
            (  # in half precision
                ROPE_ZIGZAG
                + POSITIONS
                + TURNED.replace("jnp.split(x,", "jnp.split(x.astype(jnp.float16),"),
                "rope_zigzag",
            ),
            ("rope_zigzag = None", "has to be a function"),
        ],
    ),
    "12.8": Answers(
        right=[
            CONTEXT + "    kv = lax.all_gather(jnp.stack([k, v]), 'model', axis=2,"
            " tiled=True)\n"
            "    k, v = jnp.repeat(kv, q.shape[2] // k.shape[2], axis=3)\n"
            "    rows = lax.axis_index('model') * len(q[0]) + jnp.arange(len(q[0]))\n"
            + SCORED,
            # a ring without the last exchange
            CONTEXT + "    n, me = lax.axis_size('model'), lax.axis_index('model')\n"
            "    size, rows = q.shape[1], jnp.arange(q.shape[1])\n"
            "    times = q.shape[2] // k.shape[2]\n"
            "    total, out = 0, 0\n"
            "    for i in range(n):\n"
            "        first = (me - i) % n * size\n"
            "        mask = first + rows <= (me * size + rows)[:, None]\n"
            "        keys, values = (jnp.repeat(t, times, axis=2) for t in (k, v))\n"
            "        scores = jnp.einsum('bshd,bthd->bsht', q, keys)\n"
            "        share = jnp.exp(scores / q.shape[-1] ** 0.5) * mask[:, None]\n"
            "        total += share.sum(axis=-1, keepdims=True)\n"
            "        out += jnp.einsum('bsht,bthd->bshd', share, values)\n"
            "        if i < n - 1:\n"
            "            k, v = lax.ppermute((k, v), 'model',\n"
            "                                [(j, (j + 1) % n) for j in range(n)])\n"
            "    return out / total",
        ],
        wrong=[
            (  # all heads are sent
                CONTEXT
                + "    k, v = (jnp.repeat(t, q.shape[2] // t.shape[2], axis=2)\n"
                "            for t in (k, v))\n" + GATHERED + ROWS + MASKED,
                "How many heads do keys and values have when they are sent",
            ),
            (  # the mask of one device
                CONTEXT + GATHERED + "    return jax.nn.dot_product_attention("
                "q, k, v, is_causal=True)",
                "which keys may a query of the second device use",
            ),
            (  # its own keys alone
                CONTEXT + "    return jax.nn.dot_product_attention("
                "q, k, v, is_causal=True)",
                "which keys may a query of the second device use",
            ),
            (  # no mask
                CONTEXT + GATHERED + "    return jax.nn.dot_product_attention(q, k, v)",
                "which keys may a query of the second device use",
            ),
            (  # the heads of keys in turn
                CONTEXT + GATHERED + "    k, v = (jnp.tile(t, (1, 1, q.shape[2] //"
                " t.shape[2], 1))\n            for t in (k, v))\n" + ROWS + MASKED,
                "with which head",
            ),
            (  # what is gathered has no gradient
                CONTEXT
                + GATHERED
                + "    k, v = lax.stop_gradient((k, v))\n"
                + ROWS
                + MASKED,
                "gradient of k",
            ),
            (  # the queries are sent too
                CONTEXT + GATHERED + "    size = q.shape[1]\n"
                "    q = lax.all_gather(q, 'model', axis=1, tiled=True)\n"
                "    out = jax.nn.dot_product_attention(q, k, v, is_causal=True)\n"
                "    first = lax.axis_index('model') * size\n"
                "    return lax.dynamic_slice_in_dim(out, first, size, 1)",
                "bytes per device, and at most",
            ),
            (  # sent in half precision
                CONTEXT
                + "    k, v = (t.astype(jnp.bfloat16) for t in (k, v))\n"
                + GATHERED
                + "    k, v = (t.astype(q.dtype) for t in (k, v))\n"
                + ROWS
                + MASKED,
                "result",
            ),
            ("context_attend = 8", "has to be a function"),
        ],
    ),
}
