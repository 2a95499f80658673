"""The reference step: one training step of a program, written in plain JAX.

`train_step` makes it, ready to be lowered: stacked layers under one scan, Adam, donated
state, activations constrained to the data axis, everything that comes out constrained
to the sharding that it came in with. What the memory arithmetic of the package says is
compared with what a compiler says of this.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from spmd_helpers._training.model import MLP
from tools.measure.truth import experts, pipeline, ring

F32 = jnp.float32


AXES = ("data", "model")


# Shapes of the parameters, and what cuts each dimension: 'd' stands for what FSDP
# cuts over data, 'm' for what tensor parallelism cuts over model, 'e' for expert.


def parameter_table(program):
    """name -> (shape, what cuts each dimension).

    'layers/…' are stacked, and so are 'dense/…': the first layers of a model with
    experts that have none.
    """
    model = program.model
    L, d, f = model.layers, model.d_model, model.d_ff
    if isinstance(model, MLP):
        return {
            "layers/w1": ((L, d, f), ("", "d", "m")),
            "layers/w2": ((L, f, d), ("", "m", "d")),
        }
    norm = {"scale": ((d,), ("d",))}
    if model.norm == "layer":
        norm["bias"] = ((d,), ("d",))
    vocab = program.rows
    table = {"embedding": ((vocab, d), ("m", "d"))}
    if model.patch_size is not None:
        table = patches_table(model, vocab)
    if model.positions == "learned":
        table["positions"] = ((model.seq, d), ("", "d"))
    dense = L - model.moe_layers
    stacks = {"layers": (model.moe_layers, expert_part(model))}
    mlp = feed_forward(model, "", f)
    if model.experts is None:
        stacks = {"layers": (L, mlp)}
    elif dense:
        stacks["dense"] = (dense, mlp)
    for stack, (count, part) in stacks.items():
        layer = layer_table(program, norm) | part
        for name, (shape, cuts) in layer.items():
            table[f"{stack}/{name}"] = ((count, *shape), ("s", *cuts))
    for part, entry in norm.items():
        table[f"norm_{part}"] = entry
    if not model.tied:
        table["head"] = ((d, vocab), ("d", "m"))
    return table


def patches_table(model, classes):
    """What a model of images has before its layers, and the bias of its head."""
    d, pixels = model.d_model, 3 * model.patch_size**2
    return {
        "patch_matrix": ((pixels, d), ("", "d")),
        "patch_bias": ((d,), ("d",)),
        "class_token": ((d,), ("d",)),
        "head_bias": ((classes,), ("m",)),
    }


def layer_table(program, norm):
    """The parameters of one layer, without its feed-forward part."""
    model = program.model
    layer = latent(model) if model.kv_lora_rank else heads(program)
    for where in ("norm1", "norm2", *(("norm3", "norm4") if model.post_norms else ())):
        for part, (shape, cuts) in norm.items():
            layer[f"{where}_{part}"] = (shape, cuts)
    shards = program.fsdp * (program.data if program.zero else 1)
    cut = "" if model.head_dim % shards else "d"
    for where in ("norm_q", "norm_k") if model.qk_norm else ():
        for part in norm:
            layer[f"{where}_{part}"] = ((model.head_dim,), (cut,))
    if model.sinks:
        layer["sinks"] = ((model.heads,), ("m",))
    return layer


def heads(program):
    """The matrices of attention, and their biases."""
    model = program.model
    d = model.d_model
    q, kv = model.heads * model.head_dim, model.kv_heads * model.head_dim
    replicated = "kv" if model.kv_heads % program.model_axis else ""
    layer = {}
    for name, size in {"q": q, "k": kv, "v": kv}.items():
        cut = "" if name in replicated else "m"
        layer[f"w_{name}"] = ((d, size), ("d", cut))
        if model.biases or model.qkv_biases:
            layer[f"b_{name}"] = ((size,), (f"{cut}d",))
    layer["w_o"] = ((q, d), ("m", "d"))
    if model.biases:
        layer["b_o"] = ((d,), ("d",))
    return layer


def latent(model):
    """The matrices of latent attention, and the norms between them."""
    d, ranks = model.d_model, {"q": model.q_lora_rank, "kv": model.kv_lora_rank}
    wide = {
        "q": (model.q_lora_rank or d, model.heads * model.head_dim),
        "k": (model.kv_lora_rank, model.heads * model.qk_nope_head_dim),
        "v": (model.kv_lora_rank, model.heads * model.v_head_dim),
    }
    layer = {f"w_{name}": (shape, ("d", "m")) for name, shape in wide.items()}
    layer["w_o"] = ((model.heads * model.v_head_dim, d), ("m", "d"))
    for name, rank in ranks.items():
        if rank is None:
            continue
        more = model.qk_rope_head_dim if name == "kv" else 0
        layer[f"w_{name}_down"] = ((d, rank + more), ("d", ""))
        for part in ("scale", "bias") if model.norm == "layer" else ("scale",):
            layer[f"norm_{name}_down_{part}"] = ((rank,), ("d",))
    return layer


def feed_forward(model, prefix, width):
    """The matrices of a feed-forward part, and their biases."""
    layer = {}
    for name in ("up", "gate") if model.gated else ("up",):
        layer[f"w_{prefix}{name}"] = ((model.d_model, width), ("d", "m"))
        if model.biases:
            layer[f"b_{prefix}{name}"] = ((width,), ("md",))
    layer[f"w_{prefix}down"] = ((width, model.d_model), ("m", "d"))
    if model.biases:
        layer[f"b_{prefix}down"] = ((model.d_model,), ("d",))
    return layer


def expert_part(model):
    """A router, the experts, and one part as wide as all shared experts."""
    if model.experts is None:
        return {}
    count = model.experts
    layer = {"router": ((model.d_model, count), ("d", ""))}
    if model.biases or model.router_biases:
        layer["router_bias"] = ((count,), ("",))
    for name, (shape, cuts) in feed_forward(model, "", model.expert_d_ff).items():
        layer[f"expert_{name}"] = ((count, *shape), ("e", *cuts))
    if model.shared_experts:
        width = model.shared_experts * model.expert_d_ff
        layer |= feed_forward(model, "shared_", width)
    return layer


def adapter_table(program):
    """name -> (shape, what cuts each dimension) of the adapters of LoRA.

    A matrix [rows, columns] gets 'lora_a_…' [rows, rank] and 'lora_b_…' [rank,
    columns]. fsdp shards rows and columns, never the rank.
    """
    table, base = {}, parameter_table(program)
    for name, result in NAMES.items():
        if result not in program.targets:
            continue
        (count, *shape), (_, *cuts) = base[f"layers/w_{name}"]
        (rows_, columns), (of_rows, of_columns) = shape, cuts
        rank = program.lora_rank
        of_rows, of_columns = of_rows.strip("d"), of_columns.strip("d")
        table[f"layers/lora_a_{name}"] = (
            (count, rows_, rank),
            ("s", f"{of_rows}d", ""),
        )
        table[f"layers/lora_b_{name}"] = (
            (count, rank, columns),
            ("s", "", f"{of_columns}d"),
        )
    return table


def trained_table(program):
    """The parameters that are trained: with LoRA the adapters alone."""
    return adapter_table(program) if program.lora_rank else parameter_table(program)


def entry(*axes):
    """One entry of a PartitionSpec, for so many axes."""
    return axes if len(axes) > 1 else axes[0] if axes else None


def rows(program):
    """The axes over which the batch is sharded."""
    more = (axis for axis in ("fsdp", "expert") if getattr(program, axis) > 1)
    return entry("data", *more)


def sequence(program, model=False):
    """The axes over which the tokens of a sequence are sharded."""
    context = ("context",) if program.context > 1 else ()
    return entry(*context, *(("model",) if model else ()))


def spec(program, cuts, over_data):
    """The PartitionSpec for what cuts each dimension.

    The axis fsdp shards the whole state; over_data says whether data does too.
    """
    sharding = ("fsdp",) if program.fsdp > 1 else ()
    axes = {"m": ("model",), "d": sharding + (("data",) if over_data else ())}
    axes["e"] = ("expert",) if program.expert > 1 else ()
    axes["s"] = ("stage",) if program.stage > 1 else ()
    return P(*(entry(*(axis for c in letters for axis in axes[c])) for letters in cuts))


def specs(program):
    """(of the parameters, of the gradients, of the optimizer's state), by name.

    Of those that are trained.
    """
    table = trained_table(program)
    return tuple(
        {
            name: spec(program, cuts, program.zero >= least)
            for name, (_, cuts) in table.items()
        }
        for least in (3, 2, 1)
    )


def nest(flat):
    """{'layers/w1': …} as {'layers': {'w1': …}}."""
    nested = {}
    for name, value in flat.items():
        *above, last = name.split("/")
        functools.reduce(lambda d, k: d.setdefault(k, {}), above, nested)[last] = value
    return nested


# The model.

# What a policy may call the results of the products, by the matrix of each.
NAMES = {
    **{"q": "query", "k": "key", "v": "value", "o": "out"},
    **{"up": "up", "gate": "gate", "down": "down"},
}


LORA_SCALE = 2.0


def policy(program):
    """The policy of jax.checkpoint that a program names."""
    chosen = getattr(jax.checkpoint_policies, program.recompute)
    places = {"offload_src": "device", "offload_dst": "pinned_host"}
    if program.recompute == "save_only_these_names":
        return chosen(*program.names_which_can_be_saved)
    if program.recompute == "save_and_offload_only_these_names":
        return chosen(
            names_which_can_be_saved=list(program.names_which_can_be_saved),
            names_which_can_be_offloaded=list(program.names_which_can_be_offloaded),
            **places,
        )
    if program.recompute == "offload_dot_with_no_batch_dims":
        return chosen(*places.values())
    return chosen


class Net:
    """The forward pass of a program on a mesh."""

    def __init__(self, program, mesh):
        self.program, self.mesh, self.model = program, mesh, program.model
        self.dtype = jnp.dtype(program.compute_dtype)
        self.param_specs, self.grad_specs, _ = specs(program)
        self.rows, self.sequence = rows(program), sequence(program)
        self.stream = P(self.rows, sequence(program, program.sequence_parallel))
        # Heads of keys and values that are fewer than the axis are replicated.
        split = program.model_axis
        replicated = not isinstance(self.model, MLP) and self.model.kv_heads % split
        self.keys = P(self.rows, self.sequence, None if replicated else "model")

    def placed(self, where):
        """A sharding; inside of a pipeline's stage it is that of the other axes."""
        return where if self.program.stage > 1 else NamedSharding(self.mesh, where)

    def constrain(self, x, where):
        return jax.lax.with_sharding_constraint(x, self.placed(where))

    def use(self, weights, name):
        """A parameter as it is used, its gradient constrained to where it belongs."""
        if self.program.lora_rank and not name.startswith("lora_"):
            return weights[name]  # it has no gradient
        paths = (f"layers/{name}", f"dense/{name}")
        stacked = next((path for path in paths if path in self.grad_specs), None)
        where = self.grad_specs[stacked or name]
        if stacked:
            where = P(*where[1:])
        here = self.placed(where)

        @jax.custom_vjp
        def placed(w):
            return w

        def backward(_, g):
            return (jax.lax.with_sharding_constraint(g, here),)

        placed.defvjp(lambda w: (w, None), backward)
        return placed(weights[name])

    def cast(self, weights, name):
        return self.use(weights, name).astype(self.dtype)

    def norm(self, x, weights, name):
        x = x.astype(F32)
        if self.model.norm == "layer":
            x = x - jnp.mean(x, -1, keepdims=True)
        x = x * jax.lax.rsqrt(jnp.mean(jnp.square(x), -1, keepdims=True) + 1e-5)
        x = x * self.use(weights, f"{name}_scale").astype(F32)
        if self.model.norm == "layer":
            x = x + self.use(weights, f"{name}_bias").astype(F32)
        return x.astype(self.dtype)

    def linear(self, x, weights, name):
        y = x @ self.cast(weights, f"w_{name}")
        if f"scale_{name}" in weights:
            y = (y * weights[f"scale_{name}"]).astype(self.dtype)
        if f"b_{name}" in weights:
            y = y + self.cast(weights, f"b_{name}")
        if f"lora_a_{name}" in weights:
            narrow = x @ self.cast(weights, f"lora_a_{name}")
            y = y + LORA_SCALE * (narrow @ self.cast(weights, f"lora_b_{name}"))
        return self.named(y, NAMES.get(name, name))

    def named(self, x, name):
        """A value with the name by which a policy may save it."""
        return checkpoint_name(x, name) if self.program.names else x

    def rotate(self, x):
        """Rotary positions on [batch, seq, heads, head_dim]."""
        half = x.shape[-1] // 2
        angle = jnp.arange(x.shape[1], dtype=F32)[:, None] * (
            1e4 ** (-jnp.arange(half, dtype=F32) / half)
        )
        sin, cos = jnp.sin(angle)[:, None, :], jnp.cos(angle)[:, None, :]
        a, b = x[..., :half].astype(F32), x[..., half:].astype(F32)
        return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1).astype(
            self.dtype
        )

    def plain_attention(self, q, k, v, sinks):
        """[b, s, heads, hd] queries on [b, s, kv_heads, hd] keys and values."""
        k, v = self.gathered(k), self.gathered(v)
        if sinks is not None or v.shape[-1] != k.shape[-1]:
            return self.written_out(q, k, v, sinks)
        return jax.nn.dot_product_attention(
            q, k, v, is_causal=self.model.patch_size is None, implementation="xla"
        )

    def written_out(self, q, k, v, sinks):
        """The same, where JAX's own function has no sinks, or equal widths only."""
        b, s, heads, width = q.shape
        grouped = q.reshape(b, s, k.shape[2], -1, width)
        scores = jnp.einsum("bqngd,bknd->bngqk", grouped, k, preferred_element_type=F32)
        later = jnp.arange(k.shape[1]) > jnp.arange(s)[:, None]
        scores = jnp.where(later, -1e30, scores * width**-0.5)
        most = jnp.max(scores, -1, keepdims=True)
        more = 0.0
        if sinks is not None:
            sinks = sinks.astype(F32).reshape(k.shape[2], -1)[..., None, None]
            most = jnp.maximum(most, sinks)
            more = jnp.exp(sinks - jax.lax.stop_gradient(most))
        weights = jnp.exp(scores - jax.lax.stop_gradient(most))
        weights = weights / (jnp.sum(weights, -1, keepdims=True) + more)
        out = jnp.einsum("bngqk,bknd->bqngd", weights.astype(v.dtype), v)
        return out.reshape(b, s, heads, -1)

    def gathered(self, x):
        """Keys or values of the whole sequence, on each device of context."""
        if self.program.context == 1:
            return x
        return self.constrain(x, P(self.rows, None, *self.keys[2:]))

    def ring_attention(self, q, k, v, sinks):
        """Keys and values go round the axis context, and no scores are kept."""
        cut = P(self.rows, self.sequence, "model")
        run = functools.partial(ring.attention, size=self.program.context)
        return jax.shard_map(
            run,
            mesh=self.mesh,
            in_specs=(cut, self.keys, self.keys),
            out_specs=cut,
            check_vma=False,
        )(q, k, v)

    def queries_keys_values(self, x, weights):
        b, s, _ = x.shape
        m = self.model
        cut = P(self.rows, self.sequence, "model")
        q = self.linear(x, weights, "q").reshape(b, s, m.heads, m.head_dim)
        k = self.linear(x, weights, "k").reshape(b, s, m.kv_heads, m.head_dim)
        v = self.linear(x, weights, "v").reshape(b, s, m.kv_heads, m.head_dim)
        q = self.constrain(q, cut)
        k, v = (self.constrain(t, self.keys) for t in (k, v))
        if m.qk_norm:
            q, k = self.norm(q, weights, "norm_q"), self.norm(k, weights, "norm_k")
        if m.positions == "rotary":
            q, k = self.rotate(q), self.rotate(k)
        return q, k, v

    def from_latent(self, x, weights):
        """Queries, keys and values that are made of narrow ones, as MLA has them."""
        b, s, _ = x.shape
        m = self.model
        cut = P(self.rows, self.sequence, "model")

        def spread(x, name):
            y = self.linear(x, weights, name).reshape(b, s, m.heads, -1)
            return self.constrain(y, cut)

        narrow = x
        if m.q_lora_rank is not None:
            narrow = self.norm(
                self.linear(x, weights, "q_down"), weights, "norm_q_down"
            )
        q = spread(narrow, "q")
        kept, k_rope = jnp.split(
            self.linear(x, weights, "kv_down"), [m.kv_lora_rank], -1
        )
        kept = self.norm(kept, weights, "norm_kv_down")
        k, v = spread(kept, "k"), spread(kept, "v")
        q, q_rope = jnp.split(q, [m.qk_nope_head_dim], -1)
        k_rope = jnp.broadcast_to(
            self.rotate(k_rope[:, :, None]), (b, s, m.heads, m.qk_rope_head_dim)
        )
        q = jnp.concatenate([q, self.rotate(q_rope)], -1)
        return q, self.constrain(jnp.concatenate([k, k_rope], -1), cut), v

    def attention(self, x, weights):
        b, s, _ = x.shape
        m = self.model
        cut = P(self.rows, self.sequence, "model")
        parts = self.from_latent if m.kv_lora_rank else self.queries_keys_values
        q, k, v = parts(x, weights)
        sinks = self.use(weights, "sinks") if m.sinks else None
        core = {
            "plain": self.plain_attention,
            "flash": self.flash_attention,
            "ring": self.ring_attention,
        }[self.program.attention]
        if self.program.recompute == "selective":
            core = jax.checkpoint(core, policy=jax.checkpoint_policies.nothing_saveable)
        out = self.constrain(core(q, k, v, sinks), cut).reshape(b, s, -1)
        return self.linear(self.named(out, "context"), weights, "o")

    def flash_attention(self, q, k, v, sinks):
        """Attention by a kernel that never writes the scores to memory.

        On TPU it is the splash kernel that comes with JAX, on GPU cuDNN's. On CPU
        there is none: the plain one stands in, under a checkpoint.
        """
        kind = self.mesh.devices.flat[0].platform
        if kind == "gpu":
            causal = self.model.patch_size is None
            return jax.nn.dot_product_attention(
                q, k, v, is_causal=causal, implementation="cudnn"
            )
        if kind != "tpu":
            return jax.checkpoint(self.plain_attention)(q, k, v, sinks)
        from jax.experimental.pallas.ops.tpu import splash_attention as splash

        s, heads = q.shape[1], q.shape[2] // self.mesh.shape["model"]
        mask = splash.CausalMask((s, s))
        if self.program.context > 1:  # its part of the queries, on all keys
            mask = splash.FullMask((s // self.program.context, s))
        mask = splash.MultiHeadMask([mask] * heads)
        cut = P(self.rows, self.sequence, "model")
        keys = P(self.rows, None, *self.keys[2:])
        k, v = self.gathered(k), self.gathered(v)

        @functools.partial(
            jax.shard_map,
            mesh=self.mesh,
            in_specs=(cut, keys, keys, P("model")),
            out_specs=cut,
            check_vma=False,
        )
        def kernel(q, k, v, sinks):
            run = splash.make_splash_mha(mask, head_shards=1, q_seq_shards=1)
            k, v = self.keys_used(q, k), self.keys_used(q, v)
            q, k, v = (jnp.swapaxes(t, 1, 2) for t in (q, k, v))
            more = {} if sinks is None else {"sinks": sinks.astype(F32)}
            run = functools.partial(run, **more)
            out = jax.vmap(run)(q / math.sqrt(q.shape[-1]), k, v)
            return jnp.swapaxes(out, 1, 2).astype(self.dtype)

        return kernel(q, k, v, sinks)

    def keys_used(self, q, k):
        """Of heads that all devices of model have, those of a device's queries."""
        if self.keys[2] == "model" or self.program.model_axis == 1:
            return k
        first = jax.lax.axis_index("model") * q.shape[2] * k.shape[2]
        first //= self.model.heads
        count = max(1, q.shape[2] * k.shape[2] // self.model.heads)
        return jax.lax.dynamic_slice_in_dim(k, first, count, 2)

    def mlp(self, x, weights, prefix=""):
        cut = P(self.rows, self.sequence, "model")
        up = self.constrain(self.linear(x, weights, f"{prefix}up"), cut)
        if self.model.gated:
            gate = self.constrain(self.linear(x, weights, f"{prefix}gate"), cut)
            hidden = jax.nn.silu(gate) * up
        else:
            hidden = jax.nn.gelu(up)
        return self.linear(hidden, weights, f"{prefix}down")

    def mixture(self, x, weights):
        """The experts that the router chooses for each token, and the shared ones."""
        chosen = {
            name[len("expert_w_") :]: self.cast(weights, name)
            for name in weights
            if name.startswith("expert_w_")
        }
        chosen |= {
            f"{name[len('expert_b_') :]}_bias": self.cast(weights, name)
            for name in weights
            if name.startswith("expert_b_")
        }
        biases = "router_bias" in weights
        router = (
            self.cast(weights, "router"),
            self.use(weights, "router_bias") if biases else None,
        )
        places = self.program.room
        y = experts.mixture(self, x, router, chosen, places)
        if "w_shared_up" in weights:
            y = y + self.mlp(x, weights, "shared_")
        return y

    def layer(self, x, weights):
        if isinstance(self.model, MLP):
            up = self.named(x @ self.cast(weights, "w1"), "up")
            hidden = self.constrain(jax.nn.relu(up), P(self.rows, "model"))
            return self.constrain(x + hidden @ self.cast(weights, "w2"), P(self.rows))
        y = self.constrain(self.norm(x, weights, "norm1"), self.stream)
        y = self.attention(y, weights)
        if self.model.post_norms:
            y = self.norm(self.constrain(y, self.stream), weights, "norm3")
        x = self.constrain(x + y, self.stream)
        y = self.constrain(self.norm(x, weights, "norm2"), self.stream)
        y = (self.mixture if "router" in weights else self.mlp)(y, weights)
        if self.model.post_norms:
            y = self.norm(self.constrain(y, self.stream), weights, "norm4")
        return self.constrain(x + y, self.stream)

    def layers(self, x, params):
        def body(x, weights):
            return self.layer(x, weights), None

        if self.program.recompute not in ("everything_saveable", "selective"):
            body = jax.checkpoint(body, policy=policy(self.program))
        if "dense" in params:
            x, _ = jax.lax.scan(body, x, params["dense"])
        return jax.lax.scan(body, x, params["layers"])[0]

    def loss(self, params, batch, frozen=None):
        if frozen is not None:
            layers = frozen["layers"] | params["layers"]
            params = frozen | {"layers": layers}
        if isinstance(self.model, MLP):
            x = self.constrain(batch["x"].astype(self.dtype), P(self.rows))
            y = self.layers(x, params)
            return jnp.mean(jnp.square(y.astype(F32) - batch["y"]))
        if self.model.patch_size is not None:
            x = self.layers(self.of_patches(params, batch["patches"]), params)
            return self.classified(params, x, batch["labels"])
        tokens = batch["tokens"]
        x = self.layers(self.embedded(params, tokens), params)
        return self.scored(params, x, tokens)

    def embedded(self, params, tokens):
        """What the first layer is given of some sequences."""
        table = self.cast(params, "embedding")
        if self.program.stage > 1:
            x = self.looked_up(table, tokens[:, :-1])
        else:
            x = table[tokens[:, :-1]]
        if self.model.positions == "learned":
            x = x + self.cast(params, "positions")[: x.shape[1]]
        return self.constrain(x, self.stream)

    def of_patches(self, params, patches):
        """What the first layer is given of some images: a class token and patches."""
        x = patches.astype(self.dtype) @ self.cast(params, "patch_matrix")
        x = x + self.cast(params, "patch_bias")
        first = self.cast(params, "class_token")
        first = jnp.broadcast_to(first, (len(x), 1, self.model.d_model))
        x = jnp.concatenate([first, x], 1)
        if self.model.positions == "learned":
            x = x + self.cast(params, "positions")[: x.shape[1]]
        return self.constrain(x, self.stream)

    def classified(self, params, x, labels):
        """The loss of images, of what the last layer gives for the class token."""
        x = self.constrain(self.norm(x[:, 0], params, "norm"), P(self.rows))
        head = self.cast(params, "head")
        logits = jnp.dot(x, head, preferred_element_type=F32)
        logits = logits + self.use(params, "head_bias").astype(F32)
        logits = self.constrain(logits, P(self.rows, "model"))
        target = jax.nn.one_hot(labels, logits.shape[-1], dtype=logits.dtype)
        right = jnp.sum(logits * target, -1)
        return jnp.mean(jax.nn.logsumexp(logits, -1) - right)

    def looked_up(self, table, tokens):
        """Rows of a table that model shards, inside of a pipeline's stage."""

        def local(table, tokens):
            place = tokens - jax.lax.axis_index("model") * len(table)
            place = jnp.where((place >= 0) & (place < len(table)), place, len(table))
            rows = table.at[place].get(mode="fill", fill_value=0)
            return jax.lax.psum(rows, "model")

        return jax.shard_map(
            local,
            in_specs=(P("model"), P(self.rows)),
            out_specs=P(self.rows),
            axis_names=set(self.program.axes) - {"stage"},
            check_vma=False,
        )(table, tokens)

    def scored(self, params, x, tokens):
        """The loss, of what the last layer gives."""
        x = self.constrain(self.norm(x, params, "norm"), P(self.rows, self.sequence))
        if self.model.tied:
            head = self.cast(params, "embedding").T
        else:
            head = self.cast(params, "head")
        logits = jnp.dot(x, head, preferred_element_type=F32)
        logits = self.constrain(logits, P(self.rows, self.sequence, "model"))
        target = jax.nn.one_hot(tokens[:, 1:], logits.shape[-1], dtype=logits.dtype)
        right = jnp.sum(logits * target, -1)
        return jnp.mean(jax.nn.logsumexp(logits, -1) - right)


# The optimizer: Adam as optax has it, written out; or optax's own.


def moments(program):
    """How many numbers, each as large as the parameters, the optimizer keeps."""
    return {"adam": ("m", "v"), "momentum": ("m",)}.get(program.optimizer, ())


def of_optax(program):
    """An optimizer of optax, for those that are not written out here."""

    def matrices(params):
        """The stacked matrices of the layers, which muon has to be told of."""
        numbers = optax.contrib.MuonDimensionNumbers(1, 2)
        return jax.tree.map(lambda w: numbers if w.ndim == 3 else None, params)

    chosen = {
        "adafactor": optax.adafactor,
        "lion": optax.lion,
        "muon": functools.partial(
            optax.contrib.muon, muon_weight_dimension_numbers=matrices
        ),
    }
    return chosen[program.optimizer](1e-4) if program.optimizer in chosen else None


def as_numbers(kept):
    """A moment as floating-point numbers, and so one that is kept in int8."""
    if not isinstance(kept, dict) or "scale" not in kept:
        return kept
    return kept["number"].astype(F32) * _spread(kept["scale"], kept["number"])


def _spread(scale, numbers):
    return jnp.repeat(scale, SCALED, -1)[..., : numbers.shape[-1]]


def as_kept(numbers, kept):
    """Numbers as they are kept: in int8, each block of 256 with its scale."""
    if not isinstance(kept, dict) or "scale" not in kept:
        return numbers.astype(kept.dtype)
    padding = -numbers.shape[-1] % SCALED
    padded = jnp.pad(numbers, [(0, 0)] * (numbers.ndim - 1) + [(0, padding)])
    blocks = padded.reshape(*numbers.shape[:-1], -1, SCALED)
    scale = jnp.max(jnp.abs(blocks), -1) / 127 + 1e-12
    rounded = jnp.round(numbers / _spread(scale, numbers))
    return {"number": rounded.astype(jnp.int8), "scale": scale}


def update(program, state, grads):
    """The next state. With a master copy, all of it happens in float32."""
    tree = jax.tree.map
    wide = state["master"] if program.master_weights else state["params"]
    grads = tree(lambda g, w: g.astype(w.dtype), grads, wide)
    new = dict(state)
    optimizer = of_optax(program)
    if optimizer is not None:
        changes, kept = optimizer.update(grads, state["optax"], wide)
        wide = optax.apply_updates(wide, changes)
        new |= {"optax": kept}
    elif program.optimizer == "adam":
        step = state["step"] + 1
        b1, b2 = 0.9, 0.999

        def blend(old, b, new):
            return b * as_numbers(old) + (1 - b) * new

        m = tree(lambda g, m: blend(m, b1, g), grads, state["m"])
        v = tree(lambda g, v: blend(v, b2, g * g), grads, state["v"])
        fix1, fix2 = 1 - b1**step, 1 - b2**step

        def moved(w, m, v):
            change = (m / fix1) / (jnp.sqrt(v / fix2) + 1e-8)
            return w - 1e-4 * change.astype(w.dtype)

        wide = tree(moved, wide, m, v)
        m, v = tree(as_kept, m, state["m"]), tree(as_kept, v, state["v"])
        new |= {"m": m, "v": v, "step": step}
    elif program.optimizer == "momentum":
        m = tree(lambda m, g: 0.9 * m + g, state["m"], grads)
        wide = tree(lambda w, m: w - 1e-4 * m, wide, m)
        new |= {"m": m}
    else:
        wide = tree(lambda w, g: w - 1e-4 * g, wide, grads)
    if program.master_weights:
        new |= {"master": wide}
        new["params"] = tree(lambda w, p: w.astype(p.dtype), wide, state["params"])
    else:
        new["params"] = wide
    return new


# The step.

SCALED = 256


def scaled(moment):
    """A moment in int8, and a scale for each 256 numbers of the last dimension."""
    *above, last = moment.shape
    mesh, spec = moment.sharding.mesh, moment.sharding.spec
    axes = (*spec, *(None,) * (len(moment.shape) - len(spec)))
    blocks = -(-last // SCALED)
    last_axes = axes[-1] if isinstance(axes[-1], tuple) else (axes[-1],)
    if blocks % math.prod(mesh.shape[axis] for axis in last_axes if axis):
        axes = (*axes[:-1], None)
    scale = jax.ShapeDtypeStruct(
        (*above, blocks), F32, sharding=NamedSharding(mesh, P(*axes))
    )
    return {"number": moment, "scale": scale}


def like_parameters(state, parameters):
    """A state of optax, sharded as the parameters; means keep what they have of it."""
    flat = {
        jax.tree_util.keystr(path): one
        for path, one in jax.tree_util.tree_leaves_with_path(parameters)
    }
    mesh = next(iter(flat.values())).sharding.mesh

    def placed(path, leaf):
        name = jax.tree_util.keystr(path)
        like = next((one for key, one in flat.items() if name.endswith(key)), None)
        where = P() if like is None else _dropped(like, leaf.shape, "v_row" in name)
        return leaf.update(sharding=NamedSharding(mesh, where))

    return jax.tree_util.tree_map_with_path(placed, state)


def _dropped(like, shape, last):
    """The spec of an array that has all dimensions of another, or all but one.

    Where two dimensions are equal, optax drops the last of them for the rows' means.
    """
    axes = (*like.sharding.spec, *(None,) * (len(like.shape) - len(like.sharding.spec)))
    if shape == like.shape:
        return P(*axes)
    dimensions = range(len(like.shape))
    for i in reversed(dimensions) if last else dimensions:
        if like.shape[:i] + like.shape[i + 1 :] == shape:
            return P(*axes[:i], *axes[i + 1 :])
    return P()


def state_shapes(program, mesh):
    """The state as shapes with their shardings: params, moments, master, step."""
    table = trained_table(program)
    param_specs, _, optimizer_specs = specs(program)

    def tree(dtype, where):
        return nest(
            {
                name: jax.ShapeDtypeStruct(
                    shape, dtype, sharding=NamedSharding(mesh, where[name])
                )
                for name, (shape, _) in table.items()
            }
        )

    state = {"params": tree(program.param_dtype, param_specs)}
    if program.lora_rank:
        state["frozen"] = frozen_shapes(program, mesh)
    wide = "float32" if program.master_weights else program.param_dtype
    for name in moments(program):
        moment = tree(program.moment_dtype or wide, optimizer_specs)
        if program.moment_dtype == "int8":
            moment = jax.tree.map(scaled, moment)
        state[name] = moment
    optimizer = of_optax(program)
    if optimizer is not None:
        likes = tree(wide, optimizer_specs)
        state["optax"] = like_parameters(jax.eval_shape(optimizer.init, likes), likes)
    if program.master_weights:
        state["master"] = tree("float32", optimizer_specs)
    if program.optimizer == "adam":
        state["step"] = jax.ShapeDtypeStruct(
            (), np.int32, sharding=NamedSharding(mesh, P())
        )
    if program.offload_optimizer:
        for name in OFFLOADED & set(state):
            state[name] = jax.tree.map(on_host, state[name])
    return state


OFFLOADED = {"m", "v", "master", "optax"}


def on_host(shape):
    """The shape of an array in the host's memory; numbers stay on the device."""
    if not shape.shape:
        return shape
    return shape.update(sharding=shape.sharding.with_memory_kind("pinned_host"))


def on_device(state):
    """The state of an optimizer, moved from the host to the device."""

    def moved(value):
        return jax.device_put(value, jax.memory.Space.Device)

    return {
        name: jax.tree.map(moved, value) if name in OFFLOADED else value
        for name, value in state.items()
    }


def frozen_shapes(program, mesh):
    """The parameters that LoRA leaves as they are; int8 has a scale a column.

    Only the layers' matrices are int8, as they are what is multiplied there.
    """
    shapes = {}
    for name, (shape, cuts) in parameter_table(program).items():
        dtype = program.base_dtype or program.compute_dtype
        where = spec(program, cuts, program.zero >= 3)
        if dtype == "int8" and not name.startswith("layers/w_"):
            dtype = program.compute_dtype
        if dtype == "int8":
            columns = P(where[0], where[2])
            shapes[name.replace("/w_", "/scale_")] = jax.ShapeDtypeStruct(
                (shape[0], shape[2]), F32, sharding=NamedSharding(mesh, columns)
            )
        shapes[name] = jax.ShapeDtypeStruct(
            shape, dtype, sharding=NamedSharding(mesh, where)
        )
    return nest(shapes)


def grad_shapes(program, mesh):
    """The gradients as shapes with their shardings."""
    table = trained_table(program)
    where = specs(program)[1]
    return nest(
        {
            name: jax.ShapeDtypeStruct(
                shape, program.param_dtype, sharding=NamedSharding(mesh, where[name])
            )
            for name, (shape, _) in table.items()
        }
    )


def batch_shapes(program, mesh):
    """What a step is given beside the state."""
    place = NamedSharding(mesh, P(rows(program)))
    turns = program.gradient_accumulation
    parts = turns > 1 or program.stage > 1
    if isinstance(program.model, MLP):
        shape = (program.batch, program.model.d_model)
        if parts:
            shape = (turns, shape[0] // turns, shape[1])
            place = NamedSharding(mesh, P(None, rows(program)))
        return {name: jax.ShapeDtypeStruct(shape, F32, sharding=place) for name in "xy"}
    if program.model.patch_size is not None:
        pixels = 3 * program.model.patch_size**2
        shapes = {"patches": (program.batch, program.tokens - 1, pixels)}
        shapes["labels"] = (program.batch,)
        if parts:
            place = NamedSharding(mesh, P(None, rows(program)))
            shapes = {k: (turns, v[0] // turns, *v[1:]) for k, v in shapes.items()}
        types = {"patches": F32, "labels": np.int32}
        return {
            name: jax.ShapeDtypeStruct(shape, types[name], sharding=place)
            for name, shape in shapes.items()
        }
    shape = (program.batch, program.tokens + 1)
    if parts:  # a step goes over so many parts of the batch
        shape = (turns, shape[0] // turns, shape[1])
        place = NamedSharding(mesh, P(None, rows(program)))
    return {"tokens": jax.ShapeDtypeStruct(shape, np.int32, sharding=place)}


def gradients(program, mesh):
    """(loss and gradients as a function of parameters and batch, its shapes)."""
    net = Net(program, mesh)
    where = jax.tree.map(lambda s: s.sharding, grad_shapes(program, mesh))

    def once(params, batch, *frozen):
        loss, grads = jax.value_and_grad(net.loss)(params, batch, *frozen)
        return loss, jax.lax.with_sharding_constraint(grads, where)

    def run(params, batch, *frozen):
        turns = program.gradient_accumulation
        if program.stage > 1:
            loss, grads = pipeline.gradients(net, params, batch["tokens"])
            return loss, jax.lax.with_sharding_constraint(grads, where)
        if turns == 1:
            return once(params, batch, *frozen)

        def turn(sums, part):
            return jax.tree.map(jnp.add, sums, once(params, part, *frozen)), None

        zeros = jax.tree.map(jnp.zeros_like, params)
        zeros = jax.lax.with_sharding_constraint(zeros, where)
        (loss, grads), _ = jax.lax.scan(turn, (jnp.zeros((), F32), zeros), batch)
        return loss / turns, jax.tree.map(lambda g: g / turns, grads)

    return run, (state_shapes(program, mesh)["params"], batch_shapes(program, mesh))


def train_step(program, mesh):
    """(the jitted step, the state's shapes, the batch's shapes)."""
    run, (_, batch) = gradients(program, mesh)
    state = state_shapes(program, mesh)
    out = jax.tree.map(lambda s: s.sharding, state)
    _, _, optimizer_specs = specs(program)
    moments_out = jax.tree.map(lambda s: NamedSharding(mesh, s), nest(optimizer_specs))

    def step(state, batch):
        frozen = (state["frozen"],) if program.lora_rank else ()
        loss, grads = run(state["params"], batch, *frozen)
        if program.zero or program.fsdp > 1:  # each device updates the part it keeps
            grads = jax.lax.with_sharding_constraint(grads, moments_out)
        if program.offload_optimizer:
            grads, state = jax.lax.optimization_barrier((grads, state))
            state = on_device(state)
        return update(program, state, grads), loss

    jitted = jax.jit(
        step, out_shardings=(out, NamedSharding(mesh, P())), donate_argnums=0
    )
    return jitted, state, batch
