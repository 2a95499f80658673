"""The parts of the lines that `code` prints, with `${name}` where a strategy writes.

The script of the mesh planner has them from here.
"""

from string import Template

TEXTS = {
    "helpers": '''

def on(specs):
    """The shardings of these specs."""
    return jax.tree.map(
        lambda spec: NamedSharding(mesh, spec), specs,
        is_leaf=lambda one: isinstance(one, P),
    )


def put(x, *spec):
    return lax.with_sharding_constraint(x, NamedSharding(mesh, P(*spec)))


def times(x, w):
    return x @ w.astype(COMPUTE)
''',
    "train": """

optimizer = ${optimizer}
# How each part of the state is sharded: ${why}.
PARAMS, GRADS, STATE = specs(${params}), specs(${grads}), specs(${state})


def step(params, state, batch):
    loss, grads = jax.value_and_grad(loss_of)(params, batch)
    grads = lax.with_sharding_constraint(grads, on(GRADS))
    grads = lax.with_sharding_constraint(grads, on(STATE))
    updates, state = optimizer.update(grads, state, params)
    return optax.apply_updates(params, updates), state, loss


everywhere = NamedSharding(mesh, P())
params = jax.jit(start, out_shardings=on(PARAMS))(jax.random.key(0))
where = optax.tree_utils.tree_map_params(
    optimizer, lambda _, place: place, jax.eval_shape(optimizer.init, params),
    on(STATE), transform_non_params=lambda _: everywhere,
)
state = jax.jit(optimizer.init, out_shardings=where)(params)
train = jax.jit(
    step, out_shardings=(on(PARAMS), where, everywhere), donate_argnums=(0, 1)
)
""",
    "gpt_parts": """

def norm(x, w):
    x = x.astype(jnp.float32)
    x = x - jnp.mean(x, -1, keepdims=True)
    x = x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-5)
    return (x * w["scale"] + w["bias"]).astype(COMPUTE)
""",
    "llama_parts": '''

def norm(x, scale):
    x = x.astype(jnp.float32)
    x = x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-5)
    return (x * scale).astype(COMPUTE)


def rotate(x):
    """Rotary positions on [batch, seq, heads, head_dim]."""
    half = x.shape[-1] // 2
    turns = jnp.arange(x.shape[1])[:, None] * 1e4 ** (-jnp.arange(half) / half)
    sin, cos = jnp.sin(turns)[:, None], jnp.cos(turns)[:, None]
    a, b = jnp.split(x.astype(jnp.float32), 2, -1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1).astype(x.dtype)
''',
    "ring": '''

def ring(q, k, v):
    """Keys and values go around `context`; the scores are those of one block."""
    size, me, part = mesh.shape["context"], lax.axis_index("context"), q.shape[1]
${own}    around = [(i, (i + 1) % size) for i in range(size)]

    def turn(carry, number):
        (out, most, total), k, v = carry
        scores = jnp.einsum(
            "bqkgd,bskd->bqkgs", q, k${these}, preferred_element_type=jnp.float32
        )
        here = me * part + jnp.arange(part)[:, None]
        there = (me - number) % size * part + jnp.arange(part)[None]
        hidden = (there > here)[None, :, None, None, :]
        scores = jnp.where(hidden, -1e30, scores * HEAD_DIM**-0.5)
        now = jnp.maximum(most, scores.max(-1))
        weights, shift = jnp.exp(scores - now[..., None]), jnp.exp(most - now)
        new = jnp.einsum("bqkgs,bskd->bqkgd", weights.astype(v.dtype), v${these})
        out = out * shift[..., None] + new.astype(jnp.float32)
        total = total * shift + weights.sum(-1)
        k, v = (lax.ppermute(x, "context", around) for x in (k, v))
        return ((out, now, total), k, v), None

    zeros = jnp.zeros(q.shape, jnp.float32)
    first = (zeros, zeros[..., 0] - 1e30, zeros[..., 0])
    (out, _, total), *_ = lax.scan(turn, (first, k, v), jnp.arange(size))[0]
    out = out / total[..., None]
    return out.astype(v.dtype).reshape(*q.shape[:2], -1, HEAD_DIM)


attention = jax.shard_map(
    ring, mesh=mesh, check_vma=False,
    in_specs=(${queries}, ${keys}, ${keys}),
    out_specs=${queries},
)
''',
    "mixture": '''

def routed(x, router, w):
    """On one device: its tokens, and its part of the experts."""
    tokens = x.reshape(-1, D)
    scores = jnp.matmul(tokens, router, preferred_element_type=jnp.float32)
    best, chosen = lax.top_k(scores, TOP)
    shares = jax.nn.softmax(best, -1).astype(COMPUTE)
    # The rows of an expert are contiguous and in order. Rows beyond its room are
    # dropped.
    room, chosen = int(-(-CAPACITY * len(tokens) * TOP // EXPERTS)), chosen.reshape(-1)
    hot = jax.nn.one_hot(chosen, EXPERTS, dtype=jnp.int32)
    place = (jnp.cumsum(hot, 0) * hot).sum(-1) - 1
    slot = jnp.where(place < room, chosen * room + place, EXPERTS * room)
    rows = jnp.zeros((EXPERTS * room, D), COMPUTE)
    rows = rows.at[slot].set(jnp.repeat(tokens, TOP, 0), mode="drop")
    rows = rows.reshape(EXPERTS, room, D)
${send}    hidden = jax.nn.silu(jnp.einsum("erd,edf->erf", rows, w["gate"]))
    hidden = hidden * jnp.einsum("erd,edf->erf", rows, w["up"])
    rows = jnp.einsum("erf,efd->erd", hidden, w["down"])
${back}    rows = rows.reshape(-1, D).at[slot].get(mode="fill", fill_value=0)
    out = (rows.reshape(-1, TOP, D) * shares[..., None]).sum(1)
    return ${summed}.reshape(x.shape)


mixture = jax.shard_map(
    routed, mesh=mesh, check_vma=False,
    in_specs=(
        P(${rows}, ${context}), P(),
        {"gate": P(${expert}, None, ${split}), "up": P(${expert}, None, ${split}),
         "down": P(${expert}, ${split})},
    ),
    out_specs=P(${rows}, ${context}),
)
''',
    "loss": """
def loss_of(params, tokens):
    x = params["embed"].astype(COMPUTE)[tokens[:, :-1]]
${learned}    x = lax.scan(layer, put(x, ${rows}, ${context}), params["layers"])[0]
    head = ${head}.astype(COMPUTE)
    logits = jnp.matmul(
        norm(x, params["norm"]), head, preferred_element_type=jnp.float32
    )
    logits = put(logits, ${rows}, ${context}, ${split})
    right = jax.nn.one_hot(tokens[:, 1:], VOCAB)
    return jnp.mean(jax.nn.logsumexp(logits, -1) - (logits * right).sum(-1))
""",
    "run": """
tokens = jax.random.randint(jax.random.key(1), (BATCH, SEQ + 1), 0, VOCAB)
tokens = jax.device_put(tokens, NamedSharding(mesh, P(${rows})))
params, state, loss = train(params, state, tokens)
print("loss", loss)
""",
}


def write(name: str, **words: str) -> str:
    """A part with its words."""
    return Template(TEXTS[name]).substitute(words)
