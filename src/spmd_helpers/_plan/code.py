"""The JAX lines of a strategy: a small model of the family, trained as it says."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from .._core.validate import or_words
from .._core.words import count_words, join_words
from .._errors import NotUnderstood
from .._training.model import MLP, Transformer
from .._training.training_memory import training_memory
from .cluster import ORDER
from .code_texts import TEXTS, write
from .step import AXES_OF_BATCH
from .strategy import Strategy

# What a model may have that no reference here has, and its value without it.
WITHOUT = {
    "shared_experts": 0,
    "dense_layers": 0,
    "router_biases": False,
    "kv_lora_rank": None,
    "patch_size": None,
    "window": None,
    "sinks": False,
    "post_norms": False,
    "qk_norm": False,
    "qkv_biases": False,
}
OPTIMIZERS = {
    "adam": "optax.adam(1e-3)",
    "adamw": "optax.adamw(1e-3)",
    "lion": "optax.lion(1e-3)",
    "momentum": "optax.sgd(1e-3, momentum=0.9)",
    "sgd": "optax.sgd(1e-3)",
}
# Arguments of `training_memory` that the lines follow.
_FOLLOWED = ("param_dtype", "compute_dtype", "optimizer", "capacity_factor")
# Types that the lines run in: JAX makes float32 of float64, and computes in none of 8
# bits.
_DTYPES = ("float32", "bfloat16", "float16")


def code_of(
    one: Strategy, what: str, training: Mapping[str, object], devices: int | None
) -> str:
    """The lines for a strategy.

    Args:
        one: the strategy.
        what: the plan, in words, for the first line.
        training: the arguments that the plan passed on to `training_memory`.
        devices: so many devices in place of the plan's, for a rehearsal.

    Raises:
        NotUnderstood: there is no reference for the model or for an argument.
    """
    _check(one, training)
    mesh = _rehearsed(one.step.mesh, devices)
    writer = _Writer(one, what, training, mesh)
    return writer.mlp() if isinstance(one.step.model, MLP) else writer.transformer()


def _check(one: Strategy, training: Mapping[str, object]) -> None:
    model = one.step.model
    if "stage" in one.mesh:
        raise NotUnderstood(
            f"{one} is a pipeline, for which code() prints no lines; take a strategy "
            "without stage, or plan with axes=('data', 'fsdp', 'model')."
        )
    name = getattr(model, "name", "") or "this model"
    for key, usual in WITHOUT.items():
        value = getattr(model, key, usual)
        if value != usual:
            raise NotUnderstood(
                f"{name} has {key}={value!r}, and code() has reference models like "
                "GPT-3, Llama 3, Mixtral and a stack of MLPs only; take the mesh and "
                "the specs of a plan for one of those."
            )
    if isinstance(model, Transformer) and not (
        _is_llama(model) or (_is_gpt(model) and not model.moe_layers)
    ):
        raise NotUnderstood(
            f"{name} has norm={model.norm!r}, positions={model.positions!r} and "
            f"biases={model.biases!r} together, and code() has reference models like "
            "GPT-3, Llama 3, Mixtral and a stack of MLPs only; take the specs of one "
            "of those."
        )
    without = _without(training)
    for key, given in training.items():
        if key not in _FOLLOWED and given not in (None, without.get(key)):
            raise NotUnderstood(
                f"{key}={given!r} is not in the lines that code() prints; leave it out "
                "of plan_mesh, or add it to the lines yourself."
            )
    optimizer = training.get("optimizer", "adam")
    if optimizer not in OPTIMIZERS:
        raise NotUnderstood(
            f"optimizer={optimizer!r} keeps arrays of other shapes than the "
            "parameters, which code() has no specs for; plan with 'adam'."
        )
    param = training.get("param_dtype", "float32")
    if param not in _DTYPES:
        raise NotUnderstood(
            f"param_dtype={param!r} is no type that the lines of code() can train in; "
            f"plan with {or_words(map(repr, _DTYPES))}."
        )


def _without(training: Mapping[str, object]) -> dict[str, object]:
    """Each argument as it is without being given, some of which follow from others."""
    param = training.get("param_dtype", "float32")
    types: dict[str, object] = dict.fromkeys(
        ("grad_dtype", "moment_dtype", "mu_dtype"), param
    )
    if training.get("grad_dtype") in ((param,), [param]):
        types["grad_dtype"] = training["grad_dtype"]
    return {**(training_memory.__kwdefaults__ or {}), **types}


def _is_llama(model: Transformer) -> bool:
    return (
        model.norm == "rms"
        and model.positions == "rotary"
        and model.gated
        and not model.biases
    )


def _is_gpt(model: Transformer) -> bool:
    return (
        model.norm == "layer"
        and model.positions == "learned"
        and model.biases
        and not model.gated
    )


def _rehearsed(mesh: Mapping[str, int], devices: int | None) -> dict[str, int]:
    """The mesh, or one of fewer devices with as many of its axes as these allow."""
    if devices is None or devices == math.prod(mesh.values()):
        return dict(mesh)
    sizes, left = dict.fromkeys(mesh, 1), devices
    axes = [axis for axis, size in mesh.items() if size > 1] or ["data"]
    for place, axis in enumerate(reversed(axes)):
        last = place == len(axes) - 1
        factor = next((n for n in range(2, left + 1) if left % n == 0), 1)
        sizes[axis] = left if last else factor
        left //= sizes[axis]
    return sizes


@dataclass(frozen=True)
class _Writer:
    """Writes the lines for one strategy on one mesh."""

    one: Strategy
    what: str
    training: Mapping[str, object]
    mesh: Mapping[str, int]

    def has(self, axis: str) -> bool:
        return self.mesh[axis] > 1

    def axis(self, *axes: str) -> str:
        """An entry of a spec as it is written: the axes that the mesh has."""
        there = [axis for axis in axes if self.has(axis)]
        if len(there) < 2:
            return repr(there[0]) if there else "None"
        return f"({', '.join(map(repr, there))})"

    @property
    def rows(self) -> str:
        return self.axis(*AXES_OF_BATCH)

    @property
    def sequences(self) -> int:
        """Sequences of the small model's batch: two for each part of it."""
        return 2 * math.prod(self.mesh[axis] for axis in AXES_OF_BATCH)

    def over(self, least: int) -> str:
        """What shards a parameter's d_model, from a stage of ZeRO on."""
        return self.axis("fsdp", *(("data",) if self.one.zero >= least else ()))

    @property
    def names(self) -> list[str]:
        return [axis for axis in ORDER if self.has(axis)] or ["data"]

    def head(self) -> str:
        sizes = tuple(self.mesh[axis] for axis in self.names)
        return f"""\
# {self.what}
# {self.one}
{self.rehearsal()}import jax
import jax.numpy as jnp
import optax
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

mesh = jax.make_mesh(
    {sizes}, {tuple(self.names)}, axis_types=(AxisType.Auto,) * {len(sizes)}
)
PARAM, COMPUTE = jnp.{self.dtype("param_dtype", "float32")}, \
jnp.{self.dtype("compute_dtype", "bfloat16")}
"""

    def rehearsal(self) -> str:
        """A line on what a smaller mesh has and what it leaves out."""
        planned = self.one.step.mesh
        if dict(self.mesh) == dict(planned):
            return ""
        sizes = " × ".join(f"{axis} {self.mesh[axis]}" for axis in self.names)
        count = count_words(math.prod(self.mesh.values()), "device")
        out = [axis for axis in ORDER if planned[axis] > 1 and not self.has(axis)]
        lost = [f"ZeRO-{self.one.zero}"] if self.one.zero and "data" in out else []
        lost += (
            ["the ring"] if self.one.attention == "ring" and "context" in out else []
        )
        without = f"without {join_words(out)}"
        without += f", and so without {join_words(lost)}" if lost else ""
        line = f"# Here a rehearsal on {count}: {sizes}"
        return f"{line}.\n" if not out else f"{line},\n# {without}.\n"

    def dtype(self, key: str, usual: str) -> str:
        return str(self.training.get(key, usual))

    def helpers(self) -> str:
        return TEXTS["helpers"]

    def remat(self) -> str:
        """The line that wraps a layer in its policy."""
        if self.one.recompute == "everything_saveable":
            return ""
        return f"""
layer = jax.checkpoint(  # in a scan nothing is merged
    layer, prevent_cse=False,
    policy=jax.checkpoint_policies.{self.one.recompute},
)
"""

    def train(self) -> str:
        optimizer = OPTIMIZERS[str(self.training.get("optimizer", "adam"))]
        zero, data = self.one.zero, self.has("data")
        why = {
            0: "as the parameters",
            1: "the optimizer's state over data too: ZeRO-1",
            2: "gradients and the optimizer's state over data too: ZeRO-2",
        }[zero if data else 0]
        return write(
            "train",
            optimizer=optimizer,
            why=why,
            params=self.over(3),
            grads=self.over(2),
            state=self.over(1),
        )

    def mlp(self) -> str:
        return (
            "".join([self.head(), self.mlp_shapes(), self.helpers(), self.mlp_model()])
            + self.train()
            + self.mlp_run()
        )

    def mlp_shapes(self) -> str:
        model = self.one.step.model
        wide = 8 * self._shards
        rows = self.sequences
        return f'''\
# A small stack; yours has layers={model.layers}, d_model={model.d_model}, \
d_ff={model.d_ff}.
LAYERS, D, F, BATCH = 2, {wide}, {4 * wide}, {rows}


def specs(over):
    """How the parameters are sharded: [layers, D, F] and [layers, F, D]."""
    return {{"w1": P(None, over, {self.axis("model")}), \
"w2": P(None, {self.axis("model")}, over)}}


def start(key):
    one, two = jax.random.split(key)
    return {{
        "w1": jax.random.normal(one, (LAYERS, D, F), PARAM) * D**-0.5,
        "w2": jax.random.normal(two, (LAYERS, F, D), PARAM) * F**-0.5,
    }}
'''

    @property
    def _shards(self) -> int:
        return math.prod(self.mesh[axis] for axis in ("data", "fsdp", "model"))

    def mlp_model(self) -> str:
        return f"""

def layer(h, w):
    hidden = put(jax.nn.relu(times(h, w["w1"])), {self.rows}, {self.axis("model")})
    return put(h + times(hidden, w["w2"]), {self.rows}), None

{self.remat()}
def loss_of(params, batch):
    h = lax.scan(layer, batch["x"].astype(COMPUTE), params)[0]
    return jnp.mean((h.astype(jnp.float32) - batch["y"]) ** 2)
"""

    def mlp_run(self) -> str:
        return f"""
batch = {{
    name: jax.device_put(
        jax.random.normal(jax.random.key(n), (BATCH, D)),
        NamedSharding(mesh, P({self.rows})),
    )
    for n, name in enumerate("xy", 1)
}}
params, state, loss = train(params, state, batch)
print("loss", loss)
"""

    def transformer(self) -> str:
        model = self.one.step.model
        assert isinstance(model, Transformer)
        parts = [self.head(), self.shapes(model), self.specs(model), self.helpers()]
        parts += [self.parts(model), self.attention(), self.mixture(model)]
        parts.append(self.layer(model))
        return "".join([*parts, self.loss(model), self.train(), self.run()])

    def shapes(self, model: Transformer) -> str:
        heads, kv = self.heads(model)
        head_dim, wide = 8, 8 * self._shards
        hidden, vocab = 2 * wide, 16 * self._shards
        seq = 8 * self.mesh["context"]
        rows = self.sequences
        return f"""# A small model of the family; yours has layers={model.layers}, \
d_model={model.d_model}, heads={model.heads},
# kv_heads={model.kv_heads}, d_ff={model.d_ff}, vocab={model.vocab}.
LAYERS, D, HEADS, KV, HEAD_DIM = 2, {wide}, {heads}, {kv}, {head_dim}
F, VOCAB, SEQ, BATCH = {hidden}, {vocab}, {seq}, {rows}
{self.room(model)}"""

    def room(self, model: Transformer) -> str:
        """The lines of a model with experts: how many, and how much room each has."""
        if not model.moe_layers:
            return ""
        given = self.training.get("capacity_factor")
        top = min(2, model.experts_per_token or 1)
        why = "as the plan has it"
        if given is None:
            why = "room for all: none is dropped. The plan counts 1.0"
        return f"""\
# Experts: yours has experts={model.experts}, \
experts_per_token={model.experts_per_token}, expert_d_ff={model.expert_d_ff}.
EXPERTS, TOP = {2 * max(2, self.mesh["expert"])}, {top}
CAPACITY = {"EXPERTS / TOP" if given is None else given}  # {why}
"""

    def heads(self, model: Transformer) -> tuple[int, int]:
        """Heads of queries, and of keys and values, of the small model."""
        split = self.mesh["model"]
        if model.kv_heads == model.heads:
            return max(2, split), max(2, split)
        if self.cuts_keys(model):
            return split * max(2, model.heads // model.kv_heads), split
        # Several that `model` does not divide, if the model has several.
        kv = 1 if model.kv_heads == 1 else 3 if split == 2 else 2
        return 2 * math.lcm(split, kv), kv

    def cuts_keys(self, model: Transformer) -> bool:
        """Whether `model` cuts the heads of keys and values."""
        return model.kv_heads % self.mesh["model"] == 0

    def keys(self, model: Transformer) -> str:
        """What cuts the heads of keys and values."""
        return self.axis("model") if self.cuts_keys(model) else "None"

    def specs(self, model: Transformer) -> str:
        split, keys = self.axis("model"), self.keys(model)
        gpt = _is_gpt(model)
        norm = '{"scale": P(%sover), "bias": P(%sover)}' if gpt else "P(%sover)"
        here = norm.replace("%s", "None, ")
        last = norm.replace("%s", "")
        lines = [
            f'        "q": P(None, over, {split}),',
            f'        "k": P(None, over, {keys}),',
            f'        "v": P(None, over, {keys}),',
            f'        "o": P(None, {split}, over),',
            f'        "up": P(None, over, {split}),',
            f'        "down": P(None, {split}, over),',
            f'        "norm1": {here},',
            f'        "norm2": {here},',
        ]
        sizes = [
            '        "q": weight(LAYERS, D, HEADS * HEAD_DIM),',
            '        "k": weight(LAYERS, D, KV * HEAD_DIM),',
            '        "v": weight(LAYERS, D, KV * HEAD_DIM),',
            '        "o": weight(LAYERS, HEADS * HEAD_DIM, D),',
            '        "up": weight(LAYERS, D, F),',
            '        "down": weight(LAYERS, F, D),',
            '        "norm1": norm_of(LAYERS, D),',
            '        "norm2": norm_of(LAYERS, D),',
        ]
        if model.gated:
            lines.insert(4, f'        "gate": P(None, over, {split}),')
            sizes.insert(4, '        "gate": weight(LAYERS, D, F),')
        if model.moe_layers:
            self.with_experts(lines, sizes)
        if gpt:
            lines += [
                f'        "b_q": P(None, {split}), "b_k": P(None, {keys}), '
                f'"b_v": P(None, {keys}),',
                f'        "b_up": P(None, {split}), "b_o": P(None, over), '
                '"b_down": P(None, over),',
            ]
            sizes += [
                '        "b_q": zeros(LAYERS, HEADS * HEAD_DIM), '
                '"b_k": zeros(LAYERS, KV * HEAD_DIM),',
                '        "b_v": zeros(LAYERS, KV * HEAD_DIM), '
                '"b_up": zeros(LAYERS, F),',
                '        "b_o": zeros(LAYERS, D), "b_down": zeros(LAYERS, D),',
            ]
        ends, start = (
            [f'        "embed": P({split}, over),'],
            ['        "embed": weight(VOCAB, D),'],
        )
        if gpt:
            ends.append('        "positions": P(None, over),')
            start.append('        "positions": weight(SEQ, D),')
        if not model.tied:
            ends.append(f'        "head": P(over, {split}),')
            start.append('        "head": weight(D, VOCAB),')
        ends.append(f'        "norm": {last},')
        start.append('        "norm": norm_of(D),')
        norm_of = (
            'return {"scale": jnp.ones(shape, PARAM), "bias": zeros(*shape)}'
            if gpt
            else "return jnp.ones(shape, PARAM)"
        )
        join = "\n".join
        return f'''

def specs(over):
    """How each parameter is sharded; `over` shards its dimension of d_model."""
    layers = {{
{join(lines)}
    }}
    return {{
        "layers": layers,
{join(ends)}
    }}


def start(key):
    keys = iter(jax.random.split(key, 16))

    def weight(*shape):
        return jax.random.normal(next(keys), shape, PARAM) * shape[-2] ** -0.5

    def zeros(*shape):
        return jnp.zeros(shape, PARAM)

    def norm_of(*shape):
        {norm_of}

    layers = {{
{join(sizes)}
    }}
    return {{
        "layers": layers,
{join(start)}
    }}
'''

    def with_experts(self, lines: list[str], sizes: list[str]) -> None:
        """Give the matrices of the feed-forward part a dimension of experts."""
        expert = self.axis("expert")
        for place, line in enumerate(lines):
            if line.split('"')[1] in ("gate", "up", "down"):
                lines[place] = line.replace("P(None, ", f"P(None, {expert}, ")
                sizes[place] = sizes[place].replace("(LAYERS, ", "(LAYERS, EXPERTS, ")
        lines.append('        "router": P(None, over),')
        sizes.append('        "router": weight(LAYERS, D, EXPERTS),')

    def parts(self, model: Transformer) -> str:
        if _is_gpt(model):
            return TEXTS["gpt_parts"]
        return TEXTS["llama_parts"]

    def attention(self) -> str:
        model = self.one.step.model
        assert isinstance(model, Transformer)
        if not self.has("context") or self.one.attention != "ring":
            return self.kernel(model)
        rows, context = self.rows, self.axis("context")
        queries = f"P({rows}, {context}, {self.axis('model')})"
        keys = f"P({rows}, {context}, {self.keys(model)})"
        own, these = "    q = q.reshape(*q.shape[:2], k.shape[2], -1, HEAD_DIM)\n", ""
        if not self.cuts_keys(model):
            # A device has all heads of keys: for each of its queries one of them.
            own, these = (
                """\
    # Every device of `model` has all heads of keys; its queries want these of them.
    mine = lax.axis_index("model") * q.shape[2] + jnp.arange(q.shape[2])
    mine, q = mine // (HEADS // KV), q[:, :, :, None]
""",
                "[:, :, mine]",
            )
        return write("ring", own=own, these=these, queries=queries, keys=keys)

    def kernel(self, model: Transformer) -> str:
        """Attention of the whole sequence, by a kernel or with its scores written."""
        shared = ""
        if self.one.attention == "plain":
            why, which = "Plain: the scores are written, on every chip.", '"xla"'
        elif self.has("context"):
            why, which = "cuDNN has no kernel for a sharded sequence.", "None"
        elif self.dtype("compute_dtype", "bfloat16") == "float32":
            why, which = "cuDNN has no kernel for float32.", "None"
        else:
            why = (
                "CPUs and TPUs write the scores; on a TPU put a kernel of Pallas here."
            )
            which = '"cudnn" if jax.default_backend() == "gpu" else None'
            if not self.cuts_keys(model):
                shared = f"""\
    # cuDNN wants q, k and v sharded alike: a head of keys for each of the queries.
    k, v = (jnp.repeat(y, HEADS // KV, 2) for y in (k, v))
    k, v = (put(y, {self.rows}, None, {self.axis("model")}) for y in (k, v))
"""
        return f"""

def attention(q, k, v):
{shared}\
    # {why}
    how = {which}
    return jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation=how)
"""

    def mixture(self, model: Transformer) -> str:
        """The experts: each device's tokens go to theirs and back."""
        if not model.moe_layers:
            return ""
        rows, context = self.rows, self.axis("context")
        expert, split = self.axis("expert"), self.axis("model")
        send, back, summed = "", "", "out"
        if self.has("expert"):
            send = '    rows = lax.all_to_all(rows, "expert", 0, 1, tiled=True)\n'
            back = '    rows = lax.all_to_all(rows, "expert", 1, 0, tiled=True)\n'
        if self.has("model"):
            summed = 'lax.psum(out, "model")'
        return write(
            "mixture",
            send=send,
            back=back,
            summed=summed,
            rows=rows,
            context=context,
            expert=expert,
            split=split,
        )

    def layer(self, model: Transformer) -> str:
        rows, context, split = self.rows, self.axis("context"), self.axis("model")
        keys = self.keys(model)
        gpt = _is_gpt(model)

        def product(x: str, name: str) -> str:
            bias = f' + w["b_{name}"].astype(COMPUTE)' if gpt else ""
            return f'times({x}, w["{name}"]){bias}'

        turned = "" if gpt else "    q, k = rotate(q), rotate(k)\n"
        hidden = (
            f"jax.nn.gelu({product('h', 'up')})"
            if gpt
            else f"jax.nn.silu({product('h', 'gate')}) * {product('h', 'up')}"
        )
        last = f"""\
    hidden = {hidden}
    hidden = put(hidden, {rows}, {context}, {split})
    return put(x + {product("hidden", "down")}, {rows}, {context}), None"""
        if model.moe_layers:
            last = f"""\
    experts = {{name: w[name].astype(COMPUTE) for name in ("gate", "up", "down")}}
    y = mixture(h, w["router"].astype(COMPUTE), experts)
    return put(x + y, {rows}, {context}), None"""
        return f"""

def layer(x, w):
    b, s, _ = x.shape
    h = norm(x, w["norm1"])
    q = ({product("h", "q")}).reshape(b, s, HEADS, HEAD_DIM)
    k = ({product("h", "k")}).reshape(b, s, KV, HEAD_DIM)
    v = ({product("h", "v")}).reshape(b, s, KV, HEAD_DIM)
    q = put(q, {rows}, {context}, {split})
    k, v = (put(y, {rows}, {context}, {keys}) for y in (k, v))
{turned}\
    y = put(attention(q, k, v), {rows}, {context}, {split}).reshape(b, s, -1)
    x = put(x + {product("y", "o")}, {rows}, {context})
    h = norm(x, w["norm2"])
{last}

{self.remat()}"""

    def loss(self, model: Transformer) -> str:
        rows, context, split = self.rows, self.axis("context"), self.axis("model")
        learned = (
            '    x = x + params["positions"].astype(COMPUTE)\n'
            if _is_gpt(model)
            else ""
        )
        head = 'params["embed"].T' if model.tied else 'params["head"]'
        return write(
            "loss", learned=learned, rows=rows, context=context, head=head, split=split
        )

    def run(self) -> str:
        return write("run", rows=self.rows)
