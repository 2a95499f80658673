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
from tools.measure.truth import ring

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
    replicated = "kv" if model.kv_heads % program.model_axis else ""
    for name, size in wide.items():
        cut = "" if name in replicated else "m"
        layer[f"w_{name}"] = ((d, size), ("d", cut))
        if model.biases or (model.qkv_biases and name in "qkv"):
            layer[f"b_{name}"] = ((size,), (f"{cut}d",))
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


def entry(*axes):
    """One entry of a PartitionSpec, for so many axes."""
    return axes if len(axes) > 1 else axes[0] if axes else None


def rows(program):
    """The axes over which the batch is sharded."""
    return entry("data", *(("fsdp",) if program.fsdp > 1 else ()))


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
    return P(*(entry(*(axis for c in letters for axis in axes[c])) for letters in cuts))


def specs(program):
    """(of the parameters, of the gradients, of the optimizer's state), by name."""
    table = parameter_table(program)
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


def policy(program):
    """The policy of jax.checkpoint that a program names."""
    made = getattr(jax.checkpoint_policies, program.recompute)
    places = {"offload_src": "device", "offload_dst": "pinned_host"}
    if program.recompute == "save_only_these_names":
        return made(*program.names_which_can_be_saved)
    if program.recompute == "save_and_offload_only_these_names":
        return made(
            names_which_can_be_saved=list(program.names_which_can_be_saved),
            names_which_can_be_offloaded=list(program.names_which_can_be_offloaded),
            **places,
        )
    if program.recompute == "offload_dot_with_no_batch_dims":
        return made(*places.values())
    return made


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
        return self.named(y, NAMES[name])

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

    def plain_attention(self, q, k, v):
        """[b, s, heads, hd] queries on [b, s, kv_heads, hd] keys and values."""
        k, v = self.gathered(k), self.gathered(v)
        return jax.nn.dot_product_attention(
            q, k, v, is_causal=True, implementation="xla"
        )

    def gathered(self, x):
        """Keys or values of the whole sequence, on each device of context."""
        if self.program.context == 1:
            return x
        return self.constrain(x, P(self.rows, None, *self.keys[2:]))

    def ring_attention(self, q, k, v):
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

    def attention(self, x, weights):
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
        core = {
            "plain": self.plain_attention,
            "flash": self.flash_attention,
            "ring": self.ring_attention,
        }[self.program.attention]
        if self.program.recompute == "selective":
            core = jax.checkpoint(core, policy=jax.checkpoint_policies.nothing_saveable)
        out = self.constrain(core(q, k, v), cut).reshape(b, s, m.heads * m.head_dim)
        return self.linear(self.named(out, "context"), weights, "o")

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
            in_specs=(cut, keys, keys),
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
        cut = P(self.rows, self.sequence, "model")
        up = self.constrain(self.linear(x, weights, "up"), cut)
        if self.model.gated:
            gate = self.constrain(self.linear(x, weights, "gate"), cut)
            hidden = jax.nn.silu(gate) * up
        else:
            hidden = jax.nn.gelu(up)
        return self.linear(hidden, weights, "down")

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
        y = self.mlp(y, weights)
        if self.model.post_norms:
            y = self.norm(self.constrain(y, self.stream), weights, "norm4")
        return self.constrain(x + y, self.stream)

    def layers(self, x, params):
        def body(x, weights):
            return self.layer(x, weights), None

        if self.program.recompute not in ("everything_saveable", "selective"):
            body = jax.checkpoint(body, policy=policy(self.program))
        return jax.lax.scan(body, x, params["layers"])[0]

    def loss(self, params, batch):
        if isinstance(self.model, MLP):
            x = self.constrain(batch["x"].astype(self.dtype), P(self.rows))
            y = self.layers(x, params)
            return jnp.mean(jnp.square(y.astype(F32) - batch["y"]))
        tokens = batch["tokens"]
        x = self.cast(params, "embedding")[tokens[:, :-1]]
        if self.model.positions == "learned":
            x = x + self.cast(params, "positions")[: x.shape[1]]
        x = self.layers(self.constrain(x, self.stream), params)
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

    made = {
        "adafactor": optax.adafactor,
        "lion": optax.lion,
        "muon": functools.partial(
            optax.contrib.muon, muon_weight_dimension_numbers=matrices
        ),
    }
    return made[program.optimizer](1e-4) if program.optimizer in made else None


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
    place = NamedSharding(mesh, P(rows(program)))
    turns = program.gradient_accumulation
    if isinstance(program.model, MLP):
        shape = (program.batch, program.model.d_model)
        if turns > 1:
            shape = (turns, shape[0] // turns, shape[1])
            place = NamedSharding(mesh, P(None, rows(program)))
        return {name: jax.ShapeDtypeStruct(shape, F32, sharding=place) for name in "xy"}
    shape = (program.batch, program.tokens + 1)
    if turns > 1:  # a step goes over so many parts of the batch
        shape = (turns, shape[0] // turns, shape[1])
        place = NamedSharding(mesh, P(None, rows(program)))
    return {"tokens": jax.ShapeDtypeStruct(shape, np.int32, sharding=place)}


def gradients(program, mesh):
    """(loss and gradients as a function of parameters and batch, its shapes)."""
    net = Net(program, mesh)
    where = jax.tree.map(lambda s: s.sharding, grad_shapes(program, mesh))

    def once(params, batch):
        loss, grads = jax.value_and_grad(net.loss)(params, batch)
        return loss, jax.lax.with_sharding_constraint(grads, where)

    def run(params, batch):
        turns = program.gradient_accumulation
        if turns == 1:
            return once(params, batch)

        def turn(sums, part):
            return jax.tree.map(jnp.add, sums, once(params, part)), None

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
        loss, grads = run(state["params"], batch)
        if program.zero or program.fsdp > 1:  # each device updates the part it keeps
            grads = jax.lax.with_sharding_constraint(grads, moments_out)
        return update(program, state, grads), loss

    jitted = jax.jit(
        step, out_shardings=(out, NamedSharding(mesh, P())), donate_argnums=0
    )
    return jitted, state, batch
