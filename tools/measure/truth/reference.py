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
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from spmd_helpers._training.model import MLP

F32 = jnp.float32


AXES = ("data", "model")


# Shapes of the parameters, and what cuts each dimension: 'd' stands for what FSDP
# cuts over data, 'm' for what tensor parallelism cuts over model.


def parameter_table(program):
    """name -> (shape, what cuts each dimension); 'layers/…' are stacked."""
    model = program.model
    L, d, f = model.layers, model.d_model, model.d_ff
    if isinstance(model, MLP):
        return {
            "layers/w1": ((L, d, f), ("", "d", "m")),
            "layers/w2": ((L, f, d), ("", "m", "d")),
        }
    q, kv = model.heads * model.head_dim, model.kv_heads * model.head_dim
    norm = {"scale": ((d,), ("d",))}
    if model.norm == "layer":
        norm["bias"] = ((d,), ("d",))
    vocab = program.rows
    table = {"embedding": ((vocab, d), ("m", "d"))}
    if model.positions == "learned":
        table["positions"] = ((model.seq, d), ("", "d"))
    wide = {"q": q, "k": kv, "v": kv, "up": f}
    if model.gated:
        wide["gate"] = f
    narrow = {"o": q, "down": f}
    layer = {}
    for name, size in wide.items():
        layer[f"w_{name}"] = ((d, size), ("d", "m"))
        if model.biases or (model.qkv_biases and name in "qkv"):
            layer[f"b_{name}"] = ((size,), ("md",))
    for name, size in narrow.items():
        layer[f"w_{name}"] = ((size, d), ("m", "d"))
        if model.biases:
            layer[f"b_{name}"] = ((d,), ("d",))
    for where in ("norm1", "norm2", *(("norm3", "norm4") if model.post_norms else ())):
        for part, (shape, cuts) in norm.items():
            layer[f"{where}_{part}"] = (shape, cuts)
    for where in ("norm_q", "norm_k") if model.qk_norm else ():
        for part in norm:
            layer[f"{where}_{part}"] = ((model.head_dim,), ("d",))
    for name, (shape, cuts) in layer.items():
        table[f"layers/{name}"] = ((L, *shape), ("", *cuts))
    for part, entry in norm.items():
        table[f"norm_{part}"] = entry
    if not model.tied:
        table["head"] = ((d, vocab), ("d", "m"))
    return table


def spec(cuts, over_data):
    """The PartitionSpec for what cuts each dimension."""
    names = {"d": "data", "m": "model"}
    entries = []
    for letters in cuts:
        axes = tuple(names[c] for c in letters if c == "m" or over_data)
        entries.append(axes if len(axes) > 1 else axes[0] if axes else None)
    return P(*entries)


def specs(program):
    """(of the parameters, of the gradients, of the optimizer's state), by name."""
    table = parameter_table(program)
    return tuple(
        {name: spec(cuts, program.zero >= least) for name, (_, cuts) in table.items()}
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


class Net:
    """The forward pass of a program on a mesh."""

    def __init__(self, program, mesh):
        self.program, self.mesh, self.model = program, mesh, program.model
        self.dtype = jnp.dtype(program.compute_dtype)
        self.param_specs, self.grad_specs, _ = specs(program)
        self.stream = P("data", "model" if program.sequence_parallel else None)

    def constrain(self, x, where):
        return jax.lax.with_sharding_constraint(x, NamedSharding(self.mesh, where))

    def use(self, weights, name):
        """A parameter as it is used, its gradient constrained to where it belongs."""
        path = f"layers/{name}" if f"layers/{name}" in self.grad_specs else name
        where = self.grad_specs[path]
        if path.startswith("layers/"):
            where = P(*where[1:])
        here = NamedSharding(self.mesh, where)

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
        if f"b_{name}" in weights:
            y = y + self.cast(weights, f"b_{name}")
        return y

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

    def plain_attention(self, q, k, v):
        """[b, s, heads, hd] queries on [b, s, kv_heads, hd] keys and values."""
        return jax.nn.dot_product_attention(
            q, k, v, is_causal=True, implementation="xla"
        )

    def attention(self, x, weights):
        b, s, _ = x.shape
        m = self.model
        cut = P("data", None, "model", None)
        q = self.linear(x, weights, "q").reshape(b, s, m.heads, m.head_dim)
        k = self.linear(x, weights, "k").reshape(b, s, m.kv_heads, m.head_dim)
        v = self.linear(x, weights, "v").reshape(b, s, m.kv_heads, m.head_dim)
        q, k, v = (self.constrain(t, cut) for t in (q, k, v))
        if m.qk_norm:
            q, k = self.norm(q, weights, "norm_q"), self.norm(k, weights, "norm_k")
        if m.positions == "rotary":
            q, k = self.rotate(q), self.rotate(k)
        core = {"plain": self.plain_attention, "flash": self.flash_attention}[
            self.program.attention
        ]
        if self.program.recompute == "selective":
            core = jax.checkpoint(core, policy=jax.checkpoint_policies.nothing_saveable)
        out = self.constrain(core(q, k, v), cut).reshape(b, s, m.heads * m.head_dim)
        return self.linear(out, weights, "o")

    def flash_attention(self, q, k, v):
        """Attention by a kernel that never writes the scores to memory.

        On TPU it is the splash kernel that comes with JAX, on GPU cuDNN's. On CPU
        there is none: the plain one stands in, under a checkpoint.
        """
        kind = self.mesh.devices.flat[0].platform
        if kind == "gpu":
            return jax.nn.dot_product_attention(
                q, k, v, is_causal=True, implementation="cudnn"
            )
        if kind != "tpu":
            return jax.checkpoint(self.plain_attention)(q, k, v)
        from jax.experimental.pallas.ops.tpu import splash_attention as splash

        s, heads = q.shape[1], q.shape[2] // self.mesh.shape["model"]
        mask = splash.MultiHeadMask([splash.CausalMask((s, s))] * heads)
        cut = P("data", None, "model", None)

        @functools.partial(
            jax.shard_map,
            mesh=self.mesh,
            in_specs=(cut, cut, cut),
            out_specs=cut,
            check_vma=False,
        )
        def kernel(q, k, v):
            run = splash.make_splash_mha(mask, head_shards=1, q_seq_shards=1)
            q, k, v = (jnp.swapaxes(t, 1, 2) for t in (q, k, v))
            out = jax.vmap(run)(q / math.sqrt(q.shape[-1]), k, v)
            return jnp.swapaxes(out, 1, 2).astype(self.dtype)

        return kernel(q, k, v)

    def mlp(self, x, weights):
        cut = P("data", None, "model")
        up = self.constrain(self.linear(x, weights, "up"), cut)
        if self.model.gated:
            gate = self.constrain(self.linear(x, weights, "gate"), cut)
            hidden = jax.nn.silu(gate) * up
        else:
            hidden = jax.nn.gelu(up)
        return self.linear(hidden, weights, "down")

    def layer(self, x, weights):
        if isinstance(self.model, MLP):
            hidden = self.constrain(
                jax.nn.relu(x @ self.cast(weights, "w1")), P("data", "model")
            )
            return self.constrain(x + hidden @ self.cast(weights, "w2"), P("data"))
        y = self.constrain(self.norm(x, weights, "norm1"), self.stream)
        y = self.attention(y, weights)
        if self.model.post_norms:
            y = self.norm(self.constrain(y, self.stream), weights, "norm3")
        x = self.constrain(x + y, self.stream)
        y = self.constrain(self.norm(x, weights, "norm2"), self.stream)
        y = self.mlp(y, weights)
        if self.model.post_norms:
            y = self.norm(self.constrain(y, self.stream), weights, "norm4")
        return self.constrain(x + y, self.stream)

    def layers(self, x, params):
        def body(x, weights):
            return self.layer(x, weights), None

        if self.program.recompute == "nothing_saveable":
            body = jax.checkpoint(body, policy=jax.checkpoint_policies.nothing_saveable)
        return jax.lax.scan(body, x, params["layers"])[0]

    def loss(self, params, batch):
        if isinstance(self.model, MLP):
            x = self.constrain(batch["x"].astype(self.dtype), P("data"))
            y = self.layers(x, params)
            return jnp.mean(jnp.square(y.astype(F32) - batch["y"]))
        tokens = batch["tokens"]
        x = self.cast(params, "embedding")[tokens[:, :-1]]
        if self.model.positions == "learned":
            x = x + self.cast(params, "positions")[: x.shape[1]]
        x = self.layers(self.constrain(x, self.stream), params)
        x = self.constrain(self.norm(x, params, "norm"), P("data", None))
        if self.model.tied:
            head = self.cast(params, "embedding").T
        else:
            head = self.cast(params, "head")
        logits = jnp.dot(x, head, preferred_element_type=F32)
        logits = self.constrain(logits, P("data", None, "model"))
        target = jax.nn.one_hot(tokens[:, 1:], logits.shape[-1], dtype=logits.dtype)
        right = jnp.sum(logits * target, -1)
        return jnp.mean(jax.nn.logsumexp(logits, -1) - right)


# The optimizer: Adam as optax has it, written out.


def moments(program):
    """How many numbers, each as large as the parameters, the optimizer keeps."""
    return {"adam": ("m", "v"), "momentum": ("m",), "sgd": ()}[program.optimizer]


def update(program, state, grads):
    """The next state. With a master copy, all of it happens in float32."""
    tree = jax.tree.map
    wide = state["master"] if program.master_weights else state["params"]
    grads = tree(lambda g, w: g.astype(w.dtype), grads, wide)
    new = dict(state)
    if program.optimizer == "adam":
        step = state["step"] + 1
        b1, b2 = 0.9, 0.999
        m = tree(lambda m, g: b1 * m + (1 - b1) * g, state["m"], grads)
        v = tree(lambda v, g: b2 * v + (1 - b2) * g * g, state["v"], grads)
        fix1, fix2 = 1 - b1**step, 1 - b2**step

        def moved(w, m, v):
            change = (m / fix1) / (jnp.sqrt(v / fix2) + 1e-8)
            return w - 1e-4 * change.astype(w.dtype)

        wide = tree(moved, wide, m, v)
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


def state_shapes(program, mesh):
    """The state as shapes with their shardings: params, moments, master, step."""
    table = parameter_table(program)
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
    wide = "float32" if program.master_weights else program.param_dtype
    for name in moments(program):
        state[name] = tree(wide, optimizer_specs)
    if program.master_weights:
        state["master"] = tree("float32", optimizer_specs)
    if program.optimizer == "adam":
        state["step"] = jax.ShapeDtypeStruct(
            (), np.int32, sharding=NamedSharding(mesh, P())
        )
    return state


def grad_shapes(program, mesh):
    """The gradients as shapes with their shardings."""
    table = parameter_table(program)
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
    rows = NamedSharding(mesh, P("data"))
    if isinstance(program.model, MLP):
        shape = (program.batch, program.model.d_model)
        return {name: jax.ShapeDtypeStruct(shape, F32, sharding=rows) for name in "xy"}
    shape = (program.batch, program.tokens + 1)
    return {"tokens": jax.ShapeDtypeStruct(shape, np.int32, sharding=rows)}


def gradients(program, mesh):
    """(loss and gradients as a function of parameters and batch, its shapes)."""
    net = Net(program, mesh)
    where = jax.tree.map(lambda s: s.sharding, grad_shapes(program, mesh))

    def run(params, batch):
        loss, grads = jax.value_and_grad(net.loss)(params, batch)
        return loss, jax.lax.with_sharding_constraint(grads, where)

    return run, (state_shapes(program, mesh)["params"], batch_shapes(program, mesh))


def train_step(program, mesh):
    """(the jitted step, the state's shapes, the batch's shapes)."""
    run, (_, batch) = gradients(program, mesh)
    state = state_shapes(program, mesh)
    out = jax.tree.map(lambda s: s.sharding, state)
    moments_out = out.get("m", out.get("master", out["params"]))

    def step(state, batch):
        loss, grads = run(state["params"], batch)
        if program.zero:  # each device updates the part whose moments it keeps
            grads = jax.lax.with_sharding_constraint(grads, moments_out)
        return update(program, state, grads), loss

    jitted = jax.jit(
        step, out_shardings=(out, NamedSharding(mesh, P())), donate_argnums=0
    )
    return jitted, state, batch
