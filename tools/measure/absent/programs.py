"""Training and inference steps of many kinds, to compile with a card and without.

Each builder is given a mesh with the axis data, and returns a function, its arguments
as shapes with shardings, and which of them are donated. Parameters are sharded over
data as far as they divide, and so is the batch.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

BF16, F32, I32 = jnp.bfloat16, jnp.float32, jnp.int32
ALL = {}


def program(build):
    ALL[build.__name__] = build
    return build


# --- Shapes and the optimizer -------------------------------------------------------


def batch(mesh, *shape, dtype=F32):
    sharding = NamedSharding(mesh, P("data"))
    return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)


def parameters(mesh, stacked=(), dtype=F32, **shapes):
    """Each sharded along its first dimension, of a stack along its second."""
    arrays = {}
    for name, shape in shapes.items():
        spec = P(None, "data") if name in stacked else P("data")
        spec = spec if len(shape) > len(spec) - 1 else P()
        sharding = NamedSharding(mesh, spec)
        arrays[name] = jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)
    return arrays


def adam(loss, params, *rows):
    """A step of Adam without bias correction, its state donated."""
    state = {part: params for part in ("params", "m", "v")}
    kept = jax.tree.map(lambda s: s.sharding, state)

    def step(state, *rows):
        value, grads = jax.value_and_grad(loss)(state["params"], *rows)
        m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["m"], grads)
        v = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g * g, state["v"], grads)
        params = jax.tree.map(
            lambda p, m, v: p - 1e-4 * m / (jnp.sqrt(v) + 1e-8), state["params"], m, v
        )
        new = {"params": params, "m": m, "v": v}
        return lax.with_sharding_constraint(new, kept), value

    return step, (state, *rows), (0,)


# --- The programs -------------------------------------------------------------------


@program
def mlp(mesh, d=4096, layers=6, rows=8192):
    def loss(params, x):
        y = x
        for n in range(layers):
            y = jnp.tanh(y @ params[f"w{n}"])
        return jnp.mean((y - x) ** 2)

    params = parameters(mesh, **{f"w{n}": (d, d) for n in range(layers)})
    return adam(loss, params, batch(mesh, rows, d))


def transformer(mesh, remat, attention="xla", d=2048, layers=8, seq=1024, rows=8):
    heads, vocab = d // 128, 16384

    def attend(q, k, v):
        return jax.nn.dot_product_attention(
            q, k, v, is_causal=True, implementation=attention
        )

    def layer(x, w):
        w = {name: value.astype(BF16) for name, value in w.items()}
        y = x * lax.rsqrt(jnp.mean(x.astype(F32) ** 2, -1, keepdims=True)).astype(BF16)
        q, k, v = (
            (y @ w[name]).reshape(*y.shape[:2], heads, 128) for name in ("q", "k", "v")
        )
        x = x + attend(q, k, v).reshape(y.shape) @ w["o"]
        y = x * lax.rsqrt(jnp.mean(x.astype(F32) ** 2, -1, keepdims=True)).astype(BF16)
        return x + jax.nn.gelu(y @ w["up"]) @ w["down"], None

    def loss(params, words):
        stack = {name: params[name] for name in ("q", "k", "v", "o", "up", "down")}
        x = params["table"].astype(BF16)[words]
        run = jax.checkpoint(layer) if remat else layer
        x, _ = lax.scan(run, x, stack)
        logits = (x @ params["head"].astype(BF16)).astype(F32)
        picked = jnp.take_along_axis(logits, words[..., None], -1)[..., 0]
        return jnp.mean(jax.nn.logsumexp(logits, -1) - picked)

    square = dict.fromkeys("qkvo", (layers, d, d))
    wide = {"up": (layers, d, 4 * d), "down": (layers, 4 * d, d)}
    stacked = (*square, *wide)
    ends = {"table": (vocab, d), "head": (d, vocab)}
    params = parameters(mesh, stacked, **square, **wide, **ends)
    return adam(loss, params, batch(mesh, rows, seq, dtype=I32))


@program
def transformer_plain(mesh, **sizes):
    return transformer(mesh, False, **sizes)


@program
def transformer_remat(mesh, **sizes):
    return transformer(mesh, True, **sizes)


@program
def transformer_flash(mesh, **sizes):
    """With cuDNN's attention."""
    return transformer(mesh, False, "cudnn", **sizes)


@program
def mixture_of_experts(mesh, d=2048, experts=8, rows=8192):
    room = 2 * rows // experts  # tokens that an expert takes

    def loss(params, x):
        y = x.astype(BF16)
        gates = jax.nn.softmax((y @ params["router"].astype(BF16)).astype(F32))
        best = jnp.argmax(gates, -1)
        chosen = jax.nn.one_hot(best, experts, dtype=F32)
        place = jnp.sum(jnp.cumsum(chosen, 0) * chosen, -1).astype(I32) - 1
        there = chosen[..., None] * jax.nn.one_hot(place, room)[:, None]
        sent = jnp.einsum("tec,td->ecd", there.astype(BF16), y)
        hidden = jnp.einsum("ecd,edf->ecf", sent, params["up"].astype(BF16))
        back = jnp.einsum(
            "ecf,efd->ecd", jax.nn.silu(hidden), params["down"].astype(BF16)
        )
        weight = (there * jnp.max(gates, -1)[:, None, None]).astype(BF16)
        z = jnp.einsum("tec,ecd->td", weight, back)
        return jnp.mean((z.astype(F32) - x) ** 2)

    sizes = {"up": (experts, d, 4 * d), "down": (experts, 4 * d, d)}
    params = parameters(mesh, router=(d, experts), **sizes)
    return adam(loss, params, batch(mesh, rows, d))


@program
def convnet(mesh, width=128, blocks=8, rows=256, side=64):
    def conv(x, w, stride=1):
        numbers = ("NHWC", "HWIO", "NHWC")
        return lax.conv_general_dilated(
            x, w, (stride, stride), "SAME", dimension_numbers=numbers
        )

    def loss(params, images, labels):
        x = conv(images.astype(BF16), params["stem"].astype(BF16), 2)
        for n in range(blocks):
            y = jax.nn.relu(conv(x, params[f"a{n}"].astype(BF16)))
            x = jax.nn.relu(x + conv(y, params[f"b{n}"].astype(BF16)))
        logits = jnp.mean(x, (1, 2)).astype(F32) @ params["head"]
        picked = jnp.take_along_axis(logits, labels[:, None], 1)
        return jnp.mean(jax.nn.logsumexp(logits, -1) - picked[:, 0])

    pairs = [f"{part}{n}" for n in range(blocks) for part in "ab"]
    kernels = dict.fromkeys(pairs, (3, 3, width, width))
    all_kernels = {"stem": (3, 3, 3, width), **kernels}
    params = {
        name: jax.ShapeDtypeStruct(shape, F32, sharding=NamedSharding(mesh, P()))
        for name, shape in all_kernels.items()
    } | parameters(mesh, head=(width, 1000))
    images = batch(mesh, rows, side, side, 3)
    return adam(loss, params, images, batch(mesh, rows, dtype=I32))


@program
def recurrent(mesh, d=2048, steps=256, rows=512):
    def loss(params, x):
        def turn(h, row):
            h = jnp.tanh(row @ params["in"] + h @ params["h"])
            return h, h

        start = jnp.zeros(x.shape[1:], F32)
        _, out = lax.scan(turn, start, x)
        return jnp.mean((out @ params["out"]) ** 2)

    params = parameters(mesh, **{"in": (d, d), "h": (d, d), "out": (d, d)})
    sharding = NamedSharding(mesh, P(None, "data"))
    x = jax.ShapeDtypeStruct((steps, rows, d), F32, sharding=sharding)
    return adam(loss, params, x)


@program
def decode(mesh, d=4096, layers=16, rows=64, room=2048):
    """One token for each row, with a cache that is donated."""
    heads = d // 128

    def step(cache, params, words, at):
        x = params["table"][words]

        def layer(x, inputs):
            w, keys, values = inputs
            shape = (x.shape[0], heads, 128)
            q, k, v = ((x @ w[name]).reshape(shape) for name in ("q", "k", "v"))
            keys = lax.dynamic_update_slice(keys, k[:, None], (0, at, 0, 0))
            values = lax.dynamic_update_slice(values, v[:, None], (0, at, 0, 0))
            scores = jnp.einsum("bhd,bshd->bhs", q, keys).astype(F32) / 128**0.5
            scores = jnp.where(jnp.arange(room) <= at, scores, -1e9)
            mixed = jnp.einsum(
                "bhs,bshd->bhd", jax.nn.softmax(scores).astype(BF16), values
            )
            x = x + mixed.reshape(x.shape) @ w["o"]
            return x + jax.nn.gelu(x @ w["up"]) @ w["down"], (keys, values)

        stack = {name: params[name] for name in ("q", "k", "v", "o", "up", "down")}
        x, cache = lax.scan(layer, x, (stack, *cache))
        return cache, jnp.argmax((x @ params["table"].T).astype(F32), -1)

    square = dict.fromkeys("qkvo", (layers, d, d))
    wide = {"up": (layers, d, 4 * d), "down": (layers, 4 * d, d)}
    params = parameters(
        mesh, (*square, *wide), BF16, **square, **wide, table=(32768, d)
    )
    where = NamedSharding(mesh, P(None, "data"))
    shape = (layers, rows, room, heads, 128)
    cache = (jax.ShapeDtypeStruct(shape, BF16, sharding=where),) * 2
    at = jax.ShapeDtypeStruct((), I32, sharding=NamedSharding(mesh, P()))
    return step, (cache, params, batch(mesh, rows, dtype=I32), at), (0,)


@program
def embedding(mesh, words=2**20, d=512, rows=2**16):
    """Rows of a large table are looked up, and their gradients scattered into it."""

    def loss(params, left, right):
        one, other = params["table"][left], params["table"][right]
        return jnp.mean((jnp.sum(one * other, -1) - 1) ** 2)

    params = parameters(mesh, table=(words, d))
    pair = (batch(mesh, rows, dtype=I32),) * 2
    return adam(loss, params, *pair)


@program
def logits(mesh, d=2048, vocab=65536, rows=8192):
    """A head with a large vocabulary, and its loss."""

    def loss(params, x, words):
        scores = (x @ params["head"].astype(BF16)).astype(F32)
        picked = jnp.take_along_axis(scores, words[:, None], -1)[:, 0]
        return jnp.mean(jax.nn.logsumexp(scores, -1) - picked)

    params = parameters(mesh, head=(d, vocab))
    x = batch(mesh, rows, d, dtype=BF16)
    return adam(loss, params, x, batch(mesh, rows, dtype=I32))


# --- The same, small ----------------------------------------------------------------

_LAYERS = {"d": 256, "layers": 2, "seq": 64, "rows": 4}
SMALL = {
    "mlp": {"d": 64, "rows": 64},
    "transformer_plain": _LAYERS,
    "transformer_remat": _LAYERS,
    "transformer_flash": _LAYERS,
    "mixture_of_experts": {"d": 64, "experts": 16, "rows": 128},
    "convnet": {"width": 16, "blocks": 2, "rows": 4, "side": 16},
    "recurrent": {"d": 64, "steps": 8, "rows": 16},
    "decode": {"d": 256, "layers": 2, "rows": 4, "room": 16},
    "embedding": {"words": 1024, "d": 16, "rows": 64},
    "logits": {"d": 64, "vocab": 1024, "rows": 64},
}


def built(name, mesh, small=False):
    """A program's jitted function and its arguments."""
    f, args, donated = ALL[name](mesh, **(SMALL[name] if small else {}))
    return jax.jit(f, donate_argnums=donated), args


def values(args):
    """Arrays for the arguments: zeros, where the shardings say."""
    where = jax.tree.map(lambda s: s.sharding, args)

    def zeros():
        return jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), args)

    return jax.jit(zeros, out_shardings=where)()


def mesh_of(devices):
    return jax.sharding.Mesh(np.array(devices), ("data",))
