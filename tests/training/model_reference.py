"""A model of the shapes of a `Transformer`, in plain JAX: its parameters and a loss.

As small as it can be and right in two things: the shapes of all parameters, and the
matrix products of a step. Keys out of a window, and experts that a token is not sent
to, are not multiplied with.
"""

import math

import jax
import jax.numpy as jnp


def linear(rows, columns, bias=False):
    return {"kernel": (rows, columns), **({"bias": (columns,)} if bias else {})}


def norm_shapes(m, width):
    return {"scale": (width,), **({"shift": (width,)} if m.norm == "layer" else {})}


def attention_shapes(m):
    if m.kv_lora_rank is not None:
        return latent_shapes(m)
    qkv = m.biases or m.qkv_biases
    shapes = {
        "q": linear(m.d_model, m.heads * m.head_dim, qkv),
        "k": linear(m.d_model, m.kv_heads * m.head_dim, qkv),
        "v": linear(m.d_model, m.kv_heads * m.head_dim, qkv),
        "o": linear(m.heads * m.head_dim, m.d_model, m.biases),
    }
    if m.qk_norm:
        shapes |= {name: norm_shapes(m, m.head_dim) for name in ("q_norm", "k_norm")}
    return shapes | ({"sinks": (m.heads,)} if m.sinks else {})


def latent_shapes(m):
    wide = m.heads * (m.qk_nope_head_dim + m.qk_rope_head_dim)
    shapes = {
        "kv_down": linear(m.d_model, m.kv_lora_rank + m.qk_rope_head_dim),
        "kv_norm": norm_shapes(m, m.kv_lora_rank),
        "k_up": linear(m.kv_lora_rank, m.heads * m.qk_nope_head_dim),
        "v_up": linear(m.kv_lora_rank, m.heads * m.v_head_dim),
        "o": linear(m.heads * m.v_head_dim, m.d_model),
    }
    if m.q_lora_rank is None:
        return shapes | {"q": linear(m.d_model, wide)}
    return shapes | {
        "q_down": linear(m.d_model, m.q_lora_rank),
        "q_norm": norm_shapes(m, m.q_lora_rank),
        "q_up": linear(m.q_lora_rank, wide),
    }


def mlp_shapes(m, width):
    shapes = {
        "up": linear(m.d_model, width, m.biases),
        "down": linear(width, m.d_model, m.biases),
    }
    gate = {"gate": linear(m.d_model, width, m.biases)} if m.gated else {}
    return shapes | gate


def has_experts(m, layer):
    after = layer - m.dense_layers
    return m.experts is not None and after >= 0 and (after + 1) % m.moe_every == 0


def layer_shapes(m, layer):
    norms = ["norm1", "norm2"] + (["norm3", "norm4"] if m.post_norms else [])
    shapes = {name: norm_shapes(m, m.d_model) for name in norms}
    shapes["attention"] = attention_shapes(m)
    if not has_experts(m, layer):
        return shapes | {"mlp": mlp_shapes(m, m.d_ff)}
    expert = mlp_shapes(m, m.expert_d_ff)
    router = linear(m.d_model, m.experts, m.biases or m.router_biases)
    return shapes | {
        "router": router,
        "experts": stacked(expert, m.experts),
        "shared": [expert] * m.shared_experts,
    }


def stacked(shapes, count):
    return jax.tree.map(lambda shape: (count, *shape), shapes, is_leaf=is_shape)


def is_shape(node):
    return isinstance(node, tuple)


def reference(m):
    """Shapes of all parameters, as a model of these shapes has them."""
    tree = {
        "layers": [layer_shapes(m, layer) for layer in range(m.layers)],
        "norm": norm_shapes(m, m.d_model),
    }
    if m.patch_size is None:
        tree["embedding"] = (m.vocab, m.d_model)
        if not m.tied:
            tree["head"] = {"kernel": (m.d_model, m.vocab)}
    else:
        patch = linear(3 * m.patch_size**2, m.d_model, True)
        tree["embedding"] = {"patch": patch, "class": (m.d_model,)}
        tree["head"] = linear(m.d_model, m.vocab, True)
    if m.positions == "learned":
        tree["positions"] = (m.seq, m.d_model)
    return jax.tree.map(
        lambda shape: jax.ShapeDtypeStruct(shape, jnp.float32), tree, is_leaf=is_shape
    )


def count(part):
    """Numbers in a tree of arrays or of their shapes."""
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(part))


def apply(p, x):
    return x @ p["kernel"] + p.get("bias", 0)


def norm(p, x):
    x = x - (x.mean(-1, keepdims=True) if "shift" in p else 0)
    x = x / jnp.sqrt((x * x).mean(-1, keepdims=True) + 1e-6)
    return x * p["scale"] + p.get("shift", 0)


def heads_of(x, heads):
    return x.reshape(*x.shape[:-1], heads, -1)


def queries_keys_values(m, p, x):
    if m.kv_lora_rank is None:
        counts = {"q": m.heads, "k": m.kv_heads, "v": m.kv_heads}
        q, k, v = (heads_of(apply(p[name], x), n) for name, n in counts.items())
        return (
            (norm(p["q_norm"], q), norm(p["k_norm"], k), v) if m.qk_norm else (q, k, v)
        )
    narrow = x if m.q_lora_rank is None else norm(p["q_norm"], apply(p["q_down"], x))
    q = heads_of(apply(p["q" if m.q_lora_rank is None else "q_up"], narrow), m.heads)
    latent, rope = jnp.split(apply(p["kv_down"], x), [m.kv_lora_rank], axis=-1)
    latent = norm(p["kv_norm"], latent)
    k, v = (heads_of(apply(p[name], latent), m.heads) for name in ("k_up", "v_up"))
    shape = (*k.shape[:-1], m.qk_rope_head_dim)
    k = jnp.concatenate([k, jnp.broadcast_to(rope[:, :, None], shape)], axis=-1)
    return q, k, v


def scores(m, sinks, window, q, k, v):
    """Attention of every token to all tokens, or to the last `window` of them."""
    batch, seq = q.shape[:2]
    q = q.reshape(batch, seq, k.shape[2], -1, q.shape[-1])
    if window is not None and window < seq:
        near = jnp.arange(seq)[:, None] - jnp.arange(window)
        k, v = (x[:, jnp.maximum(near, 0)] for x in (k, v))
        weights = jnp.einsum("bskgd,bswkd->bkgsw", q, k)
        weights = jnp.where(near >= 0, weights, -1e9)
        mixed = jnp.einsum("bkgsw,bswkd->bskgd", softmax(weights, sinks), v)
    else:
        weights = jnp.einsum("bskgd,btkd->bkgst", q, k)
        mixed = jnp.einsum("bkgst,btkd->bskgd", softmax(weights, sinks), v)
    return mixed.reshape(batch, seq, -1)


def softmax(weights, sinks):
    if sinks is None:
        return jax.nn.softmax(weights)
    sinks = sinks.reshape(*weights.shape[1:3], 1, 1)
    sinks = jnp.broadcast_to(sinks, (*weights.shape[:-1], 1))
    return jax.nn.softmax(jnp.concatenate([weights, sinks], axis=-1))[..., :-1]


def mlp(p, x):
    up = apply(p["up"], x)
    up = jax.nn.silu(apply(p["gate"], x)) * up if "gate" in p else jax.nn.gelu(up)
    return apply(p["down"], up)


def mixture(m, p, x):
    """Each token through its experts, whose matrices are gathered for it."""
    chosen, which = jax.lax.top_k(apply(p["router"], x), m.experts_per_token)
    part = jax.nn.softmax(chosen)

    def expert(name, x):
        weights = p["experts"][name]
        y = jnp.einsum("bskd,bskdf->bskf", x, weights["kernel"][which])
        return y + (weights["bias"][which] if "bias" in weights else 0)

    x_of_each = jnp.broadcast_to(x[:, :, None], (*which.shape, x.shape[-1]))
    up = expert("up", x_of_each)
    up = jax.nn.silu(expert("gate", x_of_each)) * up if m.gated else jax.nn.gelu(up)
    routed = (expert("down", up) * part[..., None]).sum(2)
    return routed + sum(mlp(one, x) for one in p["shared"])


def block(m, p, h, attention):
    x = apply(p["attention"]["o"], attention(norm(p["norm1"], h)))
    h = h + (norm(p["norm3"], x) if m.post_norms else x)
    x = norm(p["norm2"], h)
    x = mlp(p["mlp"], x) if "mlp" in p else mixture(m, p, x)
    return h + (norm(p["norm4"], x) if m.post_norms else x)


def window_of(m, layer):
    """The window of one layer, or None where it attends to all."""
    is_global = m.global_every is not None and (layer + 1) % m.global_every == 0
    return None if is_global else m.window


def logits(m, recompute="everything_saveable"):
    """The forward pass: parameters and inputs → the scores of words or classes."""

    def layer(index):
        def run(p, h):
            def mix(*qkv):
                sinks = p["attention"].get("sinks")
                return scores(m, sinks, window_of(m, index), *qkv)

            mix = jax.checkpoint(mix) if recompute == "selective" else mix
            return block(
                m, p, h, lambda x: mix(*queries_keys_values(m, p["attention"], x))
            )

        return jax.checkpoint(run) if recompute == "nothing_saveable" else run

    def run(p, inputs):
        if m.patch_size is None:
            h = p["embedding"][inputs]
        else:
            h = apply(p["embedding"]["patch"], inputs)
            first = jnp.broadcast_to(p["embedding"]["class"], (len(h), 1, m.d_model))
            h = jnp.concatenate([first, h], axis=1)
        if "positions" in p:
            h = h + p["positions"][: h.shape[1]]
        for index, one in enumerate(p["layers"]):
            h = layer(index)(one, h)
        h = norm(p["norm"], h if m.patch_size is None else h[:, 0])
        return apply(p["head"], h) if "head" in p else h @ p["embedding"].T

    return run


def loss(m, recompute="everything_saveable"):
    forward = logits(m, recompute)

    def run(p, inputs):
        scored = forward(p, inputs)
        return jax.nn.logsumexp(scored, -1).sum() - scored[..., 0].sum()

    return run


def inputs_of(m, batch, seq):
    """The shape of a batch: tokens, or the patches of images."""
    if m.patch_size is None:
        return jax.ShapeDtypeStruct((batch, seq), jnp.int32)
    pixels = 3 * m.patch_size**2
    return jax.ShapeDtypeStruct((batch, seq - 1, pixels), jnp.float32)


def products(jaxpr):
    """FLOPs of all matrix products in a jaxpr: 2 for each multiply-add."""
    total = 0
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "dot_general":
            (contracted, _), _ = eqn.params["dimension_numbers"]
            inner = math.prod(eqn.invars[0].aval.shape[d] for d in contracted)
            total += 2 * inner * math.prod(eqn.outvars[0].aval.shape)
        for value in eqn.params.values():
            inside = getattr(value, "jaxpr", value)
            if hasattr(inside, "eqns"):
                total += products(inside)
    return total


def measured(m, batch, seq, recompute="everything_saveable"):
    """FLOPs of a training step, from the jaxpr of its gradient."""
    step = jax.grad(loss(m, recompute))
    return products(jax.make_jaxpr(step)(reference(m), inputs_of(m, batch, seq)).jaxpr)
