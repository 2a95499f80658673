"""Prefill and decode of a program that is served, written in plain JAX.

`prefill` reads the prompts of some sequences into the cache, `decode` makes one token
for each sequence. Weights are stacked and the layers run under a scan that carries the
cache, which is donated. What `inference_memory` says is compared with what a compiler
says of these two.
"""

import functools
import math

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.layout import Layout, with_layout_constraint
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

F32 = jnp.float32


# The weights: name -> (shape, spec). Matrices in int8 have a scale for each column.


def weight_table(program):
    """name -> (shape, spec, whether it is a matrix); 'layers/…' are stacked."""
    m, wide = program.model, program.model.d_model
    rows = -(-m.vocab // program.model_axis) * program.model_axis
    queries, keys = m.heads * m.head_dim, m.kv_heads * m.head_dim
    layer = {"up": ((wide, m.d_ff), (None, "model"))}
    if m.gated:
        layer["gate"] = layer["up"]
    layer["down"] = ((m.d_ff, wide), ("model", None))
    if m.kv_lora_rank is None:
        layer |= {
            "q": ((wide, queries), (None, "model")),
            "k": ((wide, keys), (None, program.keys)),
            "v": ((wide, keys), (None, program.keys)),
            "o": ((queries, wide), ("model", None)),
        }
    else:
        rank, rope = m.kv_lora_rank, m.qk_rope_head_dim
        first = m.q_lora_rank or wide
        layer |= {
            "q": ((first, queries), (None, "model")),
            "kv_down": ((wide, rank + rope), (None, None)),
            "k": ((rank, m.heads * m.qk_nope_head_dim), (None, "model")),
            "v": ((rank, m.heads * m.v_head_dim), (None, "model")),
            "o": ((m.heads * m.v_head_dim, wide), ("model", None)),
        }
        if m.q_lora_rank:
            layer["q_down"] = ((wide, m.q_lora_rank), (None, None))
    vectors = {}
    if m.biases or m.qkv_biases:
        vectors |= {f"b_{n}": (layer[n][0][1:], layer[n][1][1:]) for n in "qkv"}
    if m.biases:
        more = [n for n in ("o", "up", "gate", "down") if n in layer]
        vectors |= {f"b_{n}": (layer[n][0][1:], layer[n][1][1:]) for n in more}
    norms = {"norm1": wide, "norm2": wide}
    if m.post_norms:
        norms |= {"norm3": wide, "norm4": wide}
    if m.qk_norm:
        norms |= {"norm_q": m.head_dim, "norm_k": m.head_dim}
    if m.kv_lora_rank is not None:
        norms["norm_kv"] = m.kv_lora_rank
        norms |= {"norm_q": m.q_lora_rank} if m.q_lora_rank else {}
    for name, size in norms.items():
        vectors[name] = ((size,), (None,))
        if m.norm == "layer":
            vectors[f"{name}_bias"] = ((size,), (None,))
    table = {"embedding": ((rows, wide), ("model", None), True)}
    for name, (shape, cuts) in layer.items():
        table[f"layers/{name}"] = ((m.layers, *shape), (None, *cuts), True)
    for name, (shape, cuts) in vectors.items():
        table[f"layers/{name}"] = ((m.layers, *shape), (None, *cuts), False)
    table["norm"] = ((wide,), (None,), False)
    if m.norm == "layer":
        table["norm_bias"] = ((wide,), (None,), False)
    if m.positions == "learned":
        table["positions"] = ((m.seq, wide), (None, None), False)
    if not m.tied:
        table["head"] = ((wide, rows), (None, "model"), True)
    return table


def weight_shapes(program, mesh):
    """The weights as ShapeDtypeStructs, with scales where they are int8."""
    shapes = {}
    for name, (shape, cuts, is_matrix) in weight_table(program).items():
        dtype = program.param_dtype
        if dtype == "int8" and not is_matrix:
            dtype = program.compute_dtype
        shapes[name] = _shape(mesh, shape, dtype, cuts)
        if dtype == "int8":
            axis = 0 if name == "embedding" else len(shape) - 1
            drop = 1 if name == "embedding" else len(shape) - 2
            keep = [i for i in range(len(shape)) if i != drop]
            assert axis in keep
            scale = tuple(shape[i] for i in keep), tuple(cuts[i] for i in keep)
            shapes[f"{name}_scale"] = _shape(mesh, scale[0], "float32", scale[1])
    return shapes


def _shape(mesh, shape, dtype, cuts):
    where = NamedSharding(mesh, P(*cuts))
    return jax.ShapeDtypeStruct(shape, jnp.dtype(dtype), sharding=where)


# The cache.


def cache_shapes(program, mesh):
    """The cache: keys and values of each kind of layer, or the latent vectors."""
    m, result = program.model, {}
    for kind, layers, tokens in _kinds(program):
        if m.kv_lora_rank is not None:
            names, heads, width = ("latent",), (), m.kv_lora_rank + m.qk_rope_head_dim
        else:
            names, heads, width = "kv", (m.kv_heads,), m.head_dim
        count = program.batch
        if program.page_size:
            count *= -(-tokens // program.page_size)
            tokens = program.page_size
        shape = (layers, count, *heads, tokens, width)
        dtype = program.cache_dtype or program.compute_dtype
        for name in names:
            cuts = cache_cuts(program, shape)
            result[f"{kind}_{name}"] = _shape(mesh, shape, dtype, cuts)
    return result


def cache_cuts(program, shape):
    """What shards layers, sequences or pages, heads if there are any, tokens, width."""
    return (None, "data", *((program.keys,) if len(shape) == 5 else ()), None, None)


def _kinds(program):
    """(kind, how many layers, tokens that they keep) of the kinds there are."""
    m = program.model
    places = [program.is_global(i) for i in range(program.period)]
    times = m.layers // program.period
    assert times * program.period == m.layers
    kinds = []
    if sum(places):
        kinds.append(("all", times * sum(places), program.seq))
    if not all(places):
        near = times * (len(places) - sum(places))
        kinds.append(("near", near, min(program.seq, m.window)))
    return kinds


# The forward pass.


class Server:
    """Prefill and decode of a program on a mesh."""

    def __init__(self, program, mesh):
        self.program, self.mesh, self.model = program, mesh, program.model
        self.dtype = jnp.dtype(program.compute_dtype)

    def constrain(self, x, *cuts):
        return lax.with_sharding_constraint(x, NamedSharding(self.mesh, P(*cuts)))

    def matmul(self, x, w, name):
        """A product with a matrix; its scale comes after it."""
        y = jnp.matmul(x, w[name].astype(self.dtype))
        if f"{name}_scale" in w:
            y = (y * w[f"{name}_scale"]).astype(self.dtype)
        if f"b_{name}" in w:
            y = y + w[f"b_{name}"].astype(self.dtype)
        return y

    def norm(self, x, w, name):
        x = x.astype(F32)
        if self.model.norm == "layer":
            x = x - jnp.mean(x, -1, keepdims=True)
        x = x * lax.rsqrt(jnp.mean(jnp.square(x), -1, keepdims=True) + 1e-5)
        x = x * w[name].astype(F32)
        if self.model.norm == "layer":
            x = x + w[f"{name}_bias"].astype(F32)
        return x.astype(self.dtype)

    def rotate(self, x, places):
        """Rotary positions on [batch, tokens, heads, width]."""
        half = x.shape[-1] // 2
        angle = places[:, None] * (1e4 ** (-jnp.arange(half, dtype=F32) / half))
        sin, cos = jnp.sin(angle)[:, None, :], jnp.cos(angle)[:, None, :]
        a, b = x[..., :half].astype(F32), x[..., half:].astype(F32)
        both = jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)
        return both.astype(self.dtype)

    # Attention: `mix` reads and writes the cache.

    def projections(self, x, w, places):
        m = self.model
        b, s, _ = x.shape
        heads = {"q": m.heads, "k": m.kv_heads, "v": m.kv_heads}
        q, k, v = (
            self.matmul(x, w, n).reshape(b, s, heads[n], m.head_dim) for n in "qkv"
        )
        q = self.constrain(q, "data", None, "model", None)
        k, v = (
            self.constrain(t, "data", None, self.program.keys, None) for t in (k, v)
        )
        if m.qk_norm:
            q, k = self.norm(q, w, "norm_q"), self.norm(k, w, "norm_k")
        if m.positions == "rotary":
            q, k = self.rotate(q, places), self.rotate(k, places)
        return q, k, v

    def latent(self, x, w, places):
        """Queries, and the vector that latent attention keeps."""
        m = self.model
        b, s, _ = x.shape
        y = x
        if m.q_lora_rank:
            y = self.norm(self.matmul(x, w, "q_down"), w, "norm_q")
        q = self.matmul(y, w, "q").reshape(b, s, m.heads, m.head_dim)
        q = self.constrain(q, "data", None, "model", None)
        kept = self.matmul(x, w, "kv_down")
        rank, nope = m.kv_lora_rank, m.qk_nope_head_dim
        first = self.norm(kept[..., :rank], w, "norm_kv")
        rope = self.rotate(kept[..., None, rank:], places)[:, :, 0]
        q = jnp.concatenate([q[..., :nope], self.rotate(q[..., nope:], places)], -1)
        return q, jnp.concatenate([first, rope], -1)

    def read_latent(self, q, kept, w, mask):
        """Prefill: keys and values of each head are made again."""
        m = self.model
        b, s, _ = kept.shape
        rank = m.kv_lora_rank
        k = self.matmul(kept[..., :rank], w, "k")
        k = k.reshape(b, s, m.heads, m.qk_nope_head_dim)
        v = self.matmul(kept[..., :rank], w, "v").reshape(b, s, m.heads, m.v_head_dim)
        shared = jnp.broadcast_to(
            kept[:, :, None, rank:], (b, s, m.heads, m.qk_rope_head_dim)
        )
        k = jnp.concatenate([k, shared], -1)
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k, preferred_element_type=F32)
        scores = jnp.where(mask, scores / math.sqrt(m.head_dim), -1e30)
        probabilities = jax.nn.softmax(scores).astype(self.dtype)
        return jnp.einsum("bhqk,bkhd->bqhd", probabilities, v)

    def decode_latent(self, q, cache, w, mask):
        """Decode: q is compressed too, so that no keys and values are made."""
        m, rank, nope = self.model, self.model.kv_lora_rank, self.model.qk_nope_head_dim
        keys = w["k"].astype(self.dtype).reshape(rank, m.heads, nope)
        values = w["v"].astype(self.dtype).reshape(rank, m.heads, m.v_head_dim)
        small = jnp.einsum("bqhd,rhd->bqhr", q[..., :nope], keys)
        q = jnp.concatenate([small, q[..., nope:]], -1)
        scores = jnp.einsum("bqhr,bkr->bhqk", q, cache, preferred_element_type=F32)
        scores = jnp.where(mask, scores / math.sqrt(m.head_dim), -1e30)
        probabilities = jax.nn.softmax(scores).astype(self.dtype)
        out = jnp.einsum("bhqk,bkr->bqhr", probabilities, cache[..., :rank])
        return jnp.einsum("bqhr,rhd->bqhd", out, values)

    def flash(self, q, k, v, window):
        """Attention by a kernel; each device takes the keys of its own queries."""
        split, near = self.program.model_axis, None
        if window is not None:
            near = (window - 1, 0)
        heads, each = q.shape[2] // split, self.model.heads // self.model.kv_heads
        cut, keys = P("data", None, "model"), P("data", None, self.program.keys)

        def own(q, k, v):
            if self.program.keys is None and split > 1:
                first = lax.axis_index("model") * heads // each
                count = max(1, heads // each)
                k, v = (lax.dynamic_slice_in_dim(t, first, count, 2) for t in (k, v))
            if self.mesh.devices.flat[0].platform == "gpu":
                return jax.nn.dot_product_attention(
                    *(q, k, v),
                    is_causal=True,
                    local_window_size=near,
                    implementation="cudnn",
                )
            return self.splash(q, k, v, near)

        return jax.shard_map(
            own,
            mesh=self.mesh,
            in_specs=(cut, keys, keys),
            out_specs=cut,
            check_vma=False,
        )(q, k, v)

    def splash(self, q, k, v, near):
        """The kernel for TPUs that comes with JAX."""
        from jax.experimental.pallas.ops.tpu import splash_attention as splash

        s, heads = q.shape[1:3]
        mask = splash.CausalMask((s, s))
        if near is not None:
            mask = splash.LocalMask((s, s), near, 0)
        mask = splash.MultiHeadMask([mask] * heads)
        run = splash.make_splash_mha(mask, head_shards=1, q_seq_shards=1)
        q, k, v = (jnp.swapaxes(t, 1, 2) for t in (q, k, v))
        out = jax.vmap(run)(q / math.sqrt(q.shape[-1]), k, v)
        return jnp.swapaxes(out, 1, 2).astype(self.dtype)

    def plain(self, q, k, v, window):
        near = None if window is None else (window - 1, 0)
        return jax.nn.dot_product_attention(
            q, k, v, is_causal=True, local_window_size=near, implementation="xla"
        )

    def write(self, cache, name, layer, slot, at, value):
        """Put [b, …, s, width] into the cache at a layer, a slot and a place."""
        cuts = cache_cuts(self.program, cache[name].shape)
        pages = (None,) if self.program.page_size else ()
        cut, of_value = P(*cuts), P(cuts[1], *pages, *cuts[2:])

        def put(cache, value, layer, slot, at):
            heads, paged = [0] * (cache.ndim - 4), self.program.page_size is not None
            start = (layer, slot, *heads, at, 0)
            if not paged:
                return in_order(lax.dynamic_update_slice(cache, value[None], start))
            each = -(-self.program.seq // self.program.page_size)
            view = cache.reshape(cache.shape[0], -1, each, *cache.shape[2:])
            start = (layer, slot, 0, *heads, at, 0)
            view = lax.dynamic_update_slice(view, value[None], start)
            return in_order(view.reshape(cache.shape))

        run = jax.shard_map(
            put,
            mesh=self.mesh,
            in_specs=(cut, of_value, P(), P(), P()),
            out_specs=cut,
            check_vma=False,
        )
        value = value.astype(cache[name].dtype)
        return cache | {name: run(cache[name], value, layer, slot, at)}

    def as_pages(self, value):
        """[b, …, s, width] as [b, pages, …, page_size, width]."""
        page = self.program.page_size
        if not page:
            return value
        b, *heads, s, width = value.shape
        count = -(-s // page)
        pad = [(0, 0)] * (value.ndim - 2) + [(0, count * page - s), (0, 0)]
        value = jnp.pad(value, pad).reshape(b, *heads, count, page, width)
        return jnp.moveaxis(value, -3, 1)

    # One layer, and all of them.

    def mlp(self, x, w):
        up = self.constrain(self.matmul(x, w, "up"), "data", None, "model")
        if self.model.gated:
            gate = self.constrain(self.matmul(x, w, "gate"), "data", None, "model")
            return self.matmul(jax.nn.silu(gate) * up, w, "down")
        return self.matmul(jax.nn.gelu(up), w, "down")

    def layer(self, x, w, attend):
        y = self.constrain(self.norm(x, w, "norm1"), "data")
        y, cache = attend(y, w)
        y = self.constrain(y, "data", None, "model", None)
        y = self.matmul(y.reshape(*y.shape[:2], -1), w, "o")
        if self.model.post_norms:
            y = self.norm(self.constrain(y, "data"), w, "norm3")
        x = self.constrain(x + y, "data")
        y = self.mlp(self.constrain(self.norm(x, w, "norm2"), "data"), w)
        if self.model.post_norms:
            y = self.norm(self.constrain(y, "data"), w, "norm4")
        return self.constrain(x + y, "data"), cache

    def layers(self, x, weights, cache, attend):
        """A scan over the periods of layers, which carries the cache."""
        program = self.program
        period, places = program.period, range(program.period)
        stacked = {
            n.removeprefix("layers/"): w.reshape(-1, period, *w.shape[1:])
            for n, w in weights.items()
            if n.startswith("layers/")
        }
        near = sum(not program.is_global(i) for i in places)

        def body(carry, xs):
            x, cache = carry
            turn, w = xs
            counts = {"all": 0, "near": 0}
            for i in places:
                kind = "all" if program.is_global(i) else "near"
                each = near if kind == "near" else period - near
                index = turn * each + counts[kind]
                counts[kind] += 1
                own = {n: value[i] for n, value in w.items()}
                run = functools.partial(attend, cache=cache, layer=index, kind=kind)
                x, cache = self.layer(x, own, run)
            return (x, cache), None

        turns = jnp.arange(self.model.layers // period)
        (x, cache), _ = lax.scan(body, (x, cache), (turns, stacked))
        return x, cache

    def embed(self, tokens, weights, places):
        x = weights["embedding"][tokens].astype(self.dtype)
        if "embedding_scale" in weights:
            x = (x * weights["embedding_scale"][tokens][..., None]).astype(self.dtype)
        if self.model.positions == "learned":
            x = x + weights["positions"][places].astype(self.dtype)
        return self.constrain(x, "data")

    def next_tokens(self, x, weights):
        """The likeliest token after each of [b, d]."""
        x = self.norm(x, weights, "norm")
        if self.model.tied:
            head = weights["embedding"].astype(self.dtype)
            logits = jnp.einsum("bd,vd->bv", x, head, preferred_element_type=F32)
            scale = weights.get("embedding_scale")
        else:
            head = weights["head"].astype(self.dtype)
            logits = jnp.dot(x, head, preferred_element_type=F32)
            scale = weights.get("head_scale")
        logits = logits if scale is None else logits * scale
        logits = self.constrain(logits, "data", "model")
        return self.constrain(jnp.argmax(logits, -1), "data")

    def prefill(self, weights, cache, tokens, slot):
        """Read prompts [b, s] into the cache at a slot, and give the next tokens."""
        m, places = self.model, jnp.arange(tokens.shape[1])
        causal = places[:, None] >= places[None, :]

        def attend(x, w, cache, layer, kind):
            window = m.window if kind == "near" else None
            if m.kv_lora_rank is not None:
                q, kept = self.latent(x, w, places)
                cache = self.write(
                    cache, f"{kind}_latent", layer, slot, 0, self.as_pages(kept)
                )
                return self.read_latent(q, kept, w, causal), cache
            q, k, v = self.projections(x, w, places)
            for name, value in (("k", k), ("v", v)):
                value = self.as_pages(jnp.swapaxes(last(value, window), 1, 2))
                cache = self.write(cache, f"{kind}_{name}", layer, slot, 0, value)
            core = self.flash if self.program.attention == "flash" else self.plain
            return core(q, k, v, window), cache

        x = self.embed(tokens, weights, places)
        x, cache = self.layers(x, weights, cache, attend)
        return cache, self.next_tokens(x[:, -1], weights)

    def decode(self, weights, cache, tokens, at, table=None):
        """One token [b] for each sequence, at a place of the cache."""
        m, places = self.model, at[None].astype(F32)

        def attend(x, w, cache, layer, kind):
            length = self.program.seq if kind == "all" else m.window
            length = min(length, self.program.seq)
            place = at % length
            latent = m.kv_lora_rank is not None
            if latent:
                q, kept = self.latent(x, w, places)
                new = {"latent": kept}
            else:
                q, k, v = self.projections(x, w, places)
                new = {"k": jnp.swapaxes(k, 1, 2), "v": jnp.swapaxes(v, 1, 2)}
            for name, value in new.items():
                cache = self.put_token(
                    cache, f"{kind}_{name}", layer, place, value, table, length
                )
            old = {
                name: self.read(cache[f"{kind}_{name}"], layer, table, length)
                for name in new
            }
            there = jnp.arange(length) <= at
            if latent:
                return self.decode_latent(q, old["latent"], w, there), cache
            k, v = (old[n].astype(self.dtype) for n in "kv")
            return self.one_token(q, k, v, there), cache

        x = self.embed(tokens[:, None], weights, at[None])
        x, cache = self.layers(x, weights, cache, attend)
        return cache, self.next_tokens(x[:, 0], weights)

    def one_token(self, q, k, v, there):
        """[b, 1, heads, width] queries on [b, kv_heads, tokens, width]."""
        m = self.model
        q = q.reshape(q.shape[0], m.kv_heads, -1, m.head_dim)
        q = self.constrain(q, "data", self.program.keys)
        scores = jnp.einsum("bkgd,bktd->bkgt", q, k, preferred_element_type=F32)
        scores = jnp.where(there, scores / math.sqrt(m.head_dim), -1e30)
        probabilities = jax.nn.softmax(scores).astype(self.dtype)
        out = jnp.einsum("bkgt,bktd->bkgd", probabilities, v)
        return out.reshape(q.shape[0], 1, m.heads, m.head_dim)

    def put_token(self, cache, name, layer, place, value, table, length):
        if table is None:
            return self.write(cache, name, layer, 0, place, value)
        page = self.program.page_size
        cut = P(*cache_cuts(self.program, cache[name].shape))

        def put(cache, value, table, layer, place):
            pages = table[:, place // page]
            if cache.ndim == 4:
                return in_order(cache.at[layer, pages, place % page].set(value[:, 0]))
            return in_order(cache.at[layer, pages, :, place % page].set(value[:, :, 0]))

        run = jax.shard_map(
            put,
            mesh=self.mesh,
            in_specs=(cut, P(*cut[1:]), P("data"), P(), P()),
            out_specs=cut,
            check_vma=False,
        )
        value = value.astype(cache[name].dtype)
        return cache | {name: run(cache[name], value, table, layer, place)}

    def read(self, cache, layer, table, length):
        """Keys or values of one layer, [b, …, length, width]: pages are gathered."""
        if table is None:
            return lax.dynamic_index_in_dim(cache, layer, 0, keepdims=False)
        cut = P(*cache_cuts(self.program, cache.shape))

        def gather(cache, table, layer):
            result = jnp.moveaxis(cache[layer, table], 1, -3)
            result = result.reshape(*result.shape[:-3], -1, result.shape[-1])
            return result[..., :length, :]

        return jax.shard_map(
            gather,
            mesh=self.mesh,
            in_specs=(cut, P("data"), P()),
            out_specs=P(*cut[1:]),
            check_vma=False,
        )(cache, table, layer)


def in_order(cache):
    """The cache in the order of its dimensions, as it is outside of the program.

    Compilers would choose another order for the loop, and copy the cache before it.
    """
    return with_layout_constraint(cache, Layout(tuple(range(cache.ndim))))


def last(x, window):
    """The last tokens of [b, s, …], each at its place in a window's cache."""
    if window is None or x.shape[1] <= window:
        return x
    return jnp.roll(x[:, -window:], x.shape[1] % window, axis=1)


def inputs(program, mesh):
    """What each program takes beside weights and cache, as shapes."""
    count, prompt = program.prompts
    prompts = _shape(mesh, (count, prompt), "int32", ("data", None))
    tokens = _shape(mesh, (program.batch,), "int32", ("data",))
    number = _shape(mesh, (), "int32", ())
    table = ()
    if program.page_size:
        pages = -(-program.seq // program.page_size)
        table = (_shape(mesh, (program.batch, pages), "int32", ("data", None)),)
    return {"prefill": (prompts, number), "decode": (tokens, number, *table)}


def lowered(program, mesh):
    """{'prefill': …, 'decode': …}, each ready to be compiled."""
    server = Server(program, mesh)
    weights, cache = weight_shapes(program, mesh), cache_shapes(program, mesh)
    where = jax.tree.map(lambda s: s.sharding, cache), NamedSharding(mesh, P("data"))
    return {
        name: jax.jit(
            getattr(server, name), donate_argnums=1, out_shardings=where
        ).lower(weights, cache, *arguments)
        for name, arguments in inputs(program, mesh).items()
    }
