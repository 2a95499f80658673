"""The transformer of chapter 13 in plain JAX, and the strategies for its step.

As there: learned positions, RMSNorm, no biases, a GELU, a head of its own. Left out is
dropout, and Adam has neither bias correction nor weight decay, as in gpu.py.
"""

import dataclasses
import functools
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

BF16, F32 = jnp.bfloat16, jnp.float32
PARTS = ("params", "m", "v")
STRATEGIES = (
    *("pmap", "replicated", "fsdp plain", "fsdp constrained", "fsdp explicit"),
    "tensor parallel",
)
BOTH = "fsdp and tensor"  # over two axes: of four devices and more

_POLICIES = jax.checkpoint_policies
POLICIES = {
    # name: what a layer keeps
    "nothing_saveable": _POLICIES.nothing_saveable,
    "dots_saveable": _POLICIES.save_from_both_policies(
        _POLICIES.dots_with_no_batch_dims_saveable,
        _POLICIES.save_only_these_names("attention"),
    ),
}


@dataclass(frozen=True)
class Setting:
    """One training step, all that a row can change: shapes, strategy, how written."""

    layers: int = 6
    d_model: int = 4096
    heads: int = 32
    d_ff: int = 16384
    vocab: int = 32768
    seq: int = 2048
    batch: int = 2  # sequences, on all devices together
    strategy: str = "replicated"
    model_axis: int = 2  # devices along `model`, of the strategy over both axes
    compute: str = "float32"  # of the products; parameters and Adam are float32
    attention: str = "plain"  # "xla", "cudnn", "cudnn mapped"
    donate: bool = False
    recompute: str = "everything_saveable"  # or "cheap", or one of POLICIES
    scan: bool = True  # else the layers stand one after another in the program
    loss: str = "float32"  # of the logits: "float32", "bfloat16", "chunked"
    flags: str = ""  # XLA's, for the process

    def but(self, **changed) -> "Setting":
        return dataclasses.replace(self, **changed)

    @property
    def head_dim(self) -> int:
        return self.d_model // self.heads

    @property
    def dtype(self):
        return BF16 if self.compute == "bfloat16" else F32


def is_explicit(s: Setting) -> bool:
    return s.strategy == "fsdp explicit"


def mesh_of(s: Setting, devices):
    """Two axes, as everywhere in the book: one has all devices, or both have some."""
    count = len(devices)
    shape = (1, count) if s.strategy == "tensor parallel" else (count, 1)
    shape = (count // s.model_axis, s.model_axis) if s.strategy == BOTH else shape
    kind = AxisType.Explicit if is_explicit(s) else AxisType.Auto
    return jax.make_mesh(
        shape, ("data", "model"), axis_types=(kind,) * 2, devices=devices
    )


OUTSIDE = ("embed", "place", "head", "norm")


def named(s: Setting, layer: dict) -> dict:
    """What each layer has: stacked for a scan, else "q.0", "q.1" and so on."""
    if s.scan:
        return layer
    return {f"{name}.{i}": x for name, x in layer.items() for i in range(s.layers)}


def shapes_of(s: Setting) -> dict:
    D, F = s.d_model, s.d_ff
    flat = {"embed": (s.vocab, D), "place": (s.seq, D), "head": (D, s.vocab)}
    one = {name: (D, D) for name in ("q", "k", "v", "out")}
    one |= {"up": (D, F), "down": (F, D), "norm1": (D,), "norm2": (D,)}
    if s.scan:
        one = {name: (s.layers, *shape) for name, shape in one.items()}
    return flat | named(s, one) | {"norm": (D,)}


def specs_of(s: Setting) -> dict:
    """Where each parameter is cut."""
    cut = {}
    if s.strategy == "tensor parallel":
        cut = {name: (None, "model") for name in ("q", "k", "v", "up", "head")}
        cut |= {name: ("model",) for name in ("out", "down", "embed")}
    elif s.strategy == BOTH:
        cut = {name: ("data", "model") for name in ("q", "k", "v", "up", "head")}
        cut |= {name: ("model", "data") for name in ("out", "down", "embed")}
        cut["place"] = ("data",)
    elif s.strategy.startswith("fsdp"):
        every = ("q", "k", "v", "out", "up", "down", "embed", "place", "head")
        cut = dict.fromkeys(every, ("data",))

    def spec(name):
        own = cut.get(name.partition(".")[0], ())
        stacked = s.scan and name not in OUTSIDE and own
        return P(None, *own) if stacked else P(*own)

    return {name: spec(name) for name in shapes_of(s)}


def start(s: Setting) -> dict:
    """The state: parameters and Adam's two moments, all float32."""
    key = jax.random.key(0)
    params = {}
    for i, (name, shape) in enumerate(shapes_of(s).items()):
        if name.startswith("norm"):  # norm, norm1, norm2.3
            params[name] = jnp.ones(shape, F32)
            continue
        wide = 0.02 if name in ("embed", "place", "head") else shape[-2] ** -0.5
        own = jax.random.fold_in(key, i)
        params[name] = jax.random.normal(own, shape, F32) * wide
    return start_of(params)


def start_of(params: dict) -> dict:
    """Parameters, and Adam's two moments beside them."""
    zeros = lambda: jax.tree.map(jnp.zeros_like, params)  # noqa: E731
    return dict(zip(PARTS, (params, zeros(), zeros()), strict=True))


def norm(x, scale):
    wide = x.astype(F32)
    wide = wide * lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + 1e-6)
    return (wide * scale).astype(x.dtype)


# --- Attention ----------------------------------------------------------------------


def plain(q, k, v):
    """Three lines: scores, softmax, sum. The scores are float32, as in JAX's own."""
    scores = jnp.einsum("bsnh,btnh->bnst", q, k, preferred_element_type=F32)
    mask = jnp.tril(jnp.ones((q.shape[1], k.shape[1]), bool))
    scores = jnp.where(mask, scores * q.shape[-1] ** -0.5, -1e30)
    weights = jax.nn.softmax(scores, -1).astype(v.dtype)
    return jnp.einsum("bnst,btnh->bsnh", weights, v)


def fused(q, k, v, implementation):
    """By JAX; where no GPU is, a rehearsal: cuDNN is not there, XLA stands in."""
    if jax.default_backend() != "gpu":
        implementation = "xla"
    return jax.nn.dot_product_attention(
        q, k, v, is_causal=True, implementation=implementation
    )


def attention(name, mesh=None, cut=None):
    """[b, s, n, h] three times → [b, s, n, h]."""
    if name == "plain":
        return plain
    implementation = name.split()[0]
    run = functools.partial(fused, implementation=implementation)
    if name == "cudnn mapped" and mesh is not None:
        # A kernel that says nothing of shardings, told where it runs.
        return jax.shard_map(
            run, mesh=mesh, in_specs=(cut,) * 3, out_specs=cut, check_vma=False
        )
    return run


# --- The step -----------------------------------------------------------------------


class Specs:
    """What a strategy says of the values between the products."""

    def __init__(self, s: Setting, mesh=None):
        self.mesh = mesh
        self.explicit = is_explicit(s)
        self.asks = s.strategy in (
            *("fsdp constrained", "tensor parallel", "replicated", BOTH),
        )
        self.rows = P() if s.strategy == "tensor parallel" else P("data")
        split = s.strategy in ("tensor parallel", BOTH)
        self.wide = P(*(self.rows or (None,)), None, "model") if split else P("data")

    def _hold(self, x, spec):
        if not self.asks or self.mesh is None:
            return x
        return lax.with_sharding_constraint(x, NamedSharding(self.mesh, spec))

    def stream(self, x):
        """Hold [b, s, d]."""
        return self._hold(x, self.rows)

    def inside(self, x):
        """[b, s, f], [b, s, n, h] and the logits: what a model axis cuts."""
        return self._hold(x, self.wide)

    def look_up(self, table, ids):
        if self.explicit:
            replicated = jax.sharding.reshard(table, P())
            return replicated.at[ids].get(out_sharding=P("data"))
        return table[ids]

    def replicated(self, x):
        """A table that is added to the rows."""
        return jax.sharding.reshard(x, P()) if self.explicit else x


def forward(params, ids, s: Setting, specs: Specs, mesh=None):
    """The rows before the head, [b, s, d]."""
    attend = attention(s.attention, mesh, specs.wide)
    B, S = ids.shape
    x = specs.look_up(params["embed"], ids) + specs.replicated(params["place"])
    x = specs.stream(x.astype(s.dtype))

    def times(h, w):
        return h @ w.astype(s.dtype)

    def in_heads(h):
        return specs.inside(h.reshape(B, S, s.heads, s.head_dim))

    # What a part reads is kept, and what it does element by element runs again. Its
    # product does not: nothing in the backward pass asks for what came out of it.
    # (In a loop, forward and backward are two loops: nothing could be merged.)
    again = functools.partial(jax.checkpoint, prevent_cse=not s.scan)
    cheap = again if s.recompute == "cheap" else lambda f: f

    @cheap
    def projected(x, scale, *weights):
        h = norm(x, scale)
        return tuple(in_heads(times(h, w)) for w in weights)

    @cheap
    def up(x, scale, w):
        return specs.inside(times(norm(x, scale), w))

    @cheap
    def down(h, w):
        return times(jax.nn.gelu(h), w)

    def layer(x, w):
        q, k, v = projected(x, w["norm1"], w["q"], w["k"], w["v"])
        attended = checkpoint_name(specs.inside(attend(q, k, v)), "attention")
        x = specs.stream(x + times(attended.reshape(B, S, s.d_model), w["out"]))
        h = up(x, w["norm2"], w["up"])
        return specs.stream(x + down(h, w["down"])), None

    if s.recompute in POLICIES:
        layer = again(layer, policy=POLICIES[s.recompute])
    stack = {name: w for name, w in params.items() if name not in OUTSIDE}
    if s.scan:
        x = lax.scan(layer, x, stack)[0]
    else:
        names = sorted({name.partition(".")[0] for name in stack})
        for i in range(s.layers):
            x = layer(x, {name: stack[f"{name}.{i}"] for name in names})[0]
    return norm(x, params["norm"])


def loss_of(x, head, targets, s: Setting, specs: Specs):
    """The mean of -log p(next): x [b, s, d], targets [b, s]."""

    def summed(x, targets):
        head_ = head.astype(s.dtype)
        if s.loss == "bfloat16":
            logits = specs.inside(x @ head_).astype(F32)
        else:
            logits = specs.inside(jnp.matmul(x, head_, preferred_element_type=F32))
        # Picked by comparing: a logit is where its word is, whoever holds it.
        words = lax.broadcasted_iota(jnp.int32, (1, 1, s.vocab), 2)
        right = jnp.where(words == targets[..., None], logits, 0).sum(-1)
        return (jax.nn.logsumexp(logits, -1) - right).sum()

    if s.loss != "chunked":
        return summed(x, targets) / targets.size
    chunks = 8
    B, S, D = x.shape
    x = x.reshape(B, chunks, S // chunks, D).swapaxes(0, 1)
    parts = targets.reshape(B, chunks, S // chunks).swapaxes(0, 1)

    def add(total, part):
        return total + jax.checkpoint(summed, prevent_cse=False)(*part), None

    return lax.scan(add, jnp.zeros((), F32), (x, parts))[0] / targets.size


def adam(state, grads, rate=1e-5):
    """Without bias correction: the same reads, writes and memory."""

    def one(p, m, v, g):
        m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g * g
        return p - rate * m / (jnp.sqrt(v) + 1e-8), m, v

    updated = jax.tree.map(one, *(state[part] for part in PARTS), grads)
    is_row = lambda x: isinstance(x, tuple)  # noqa: E731
    return {
        part: jax.tree.map(lambda row, i=i: row[i], updated, is_leaf=is_row)
        for i, part in enumerate(PARTS)
    }


def one_step(s: Setting, devices):
    """(jitted step, a function that makes its state and rows, their shapes, mesh)."""
    mesh = None if s.strategy == "pmap" else mesh_of(s, devices)
    specs = Specs(s, mesh)

    def train(state, rows):
        def loss_fn(params):
            x = forward(params, rows[:, :-1], s, specs, mesh)
            return loss_of(x, params["head"], rows[:, 1:], s, specs)

        result = jax.value_and_grad(loss_fn)(state["params"])
        if s.strategy == "pmap":
            result = lax.pmean(result, "data")
        loss, grads = result
        return adam(state, grads), loss

    train.__name__ = "step"
    key = jax.random.key(7)
    donated = {"donate_argnums": 0} if s.donate else {}
    if s.strategy == "pmap":
        each = s.batch // len(devices)

        def begin(i):
            rows = _rows(s, key, s.batch)
            return start(s), lax.dynamic_slice_in_dim(rows, i * each, each)

        step = jax.pmap(train, axis_name="data", devices=devices, **donated)
        make = jax.pmap(begin, devices=devices)
        numbers = jnp.arange(len(devices))
        return step, lambda: make(numbers), jax.eval_shape(make, numbers), None
    on = functools.partial(NamedSharding, mesh)
    places = {part: {n: on(p) for n, p in specs_of(s).items()} for part in PARTS}
    where = (places, on(specs.rows))
    shardings = {"out_shardings": (places, on(P()))} if specs.asks else {}
    step = jax.jit(train, **donated, **shardings)
    begin = jax.jit(lambda: (start(s), _rows(s, key, s.batch)), out_shardings=where)
    shapes = jax.tree.map(
        lambda x, place: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place),
        jax.eval_shape(begin),
        where,
    )
    return step, begin, shapes, mesh


def _rows(s: Setting, key, count):
    return jax.random.randint(key, (count, s.seq + 1), 0, s.vocab, jnp.int32)
