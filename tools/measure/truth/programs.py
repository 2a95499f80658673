"""The programs that are measured: models, meshes and ways to train.

Each is the arguments of one call of `training_memory`, and the topology that it is
compiled for. `reference.py` makes the step.
"""

import math
import random
import zlib
from dataclasses import dataclass, fields, replace

from spmd_helpers._training.model import MLP, Transformer
from spmd_helpers._training.models import MODELS
from spmd_helpers._training.training_memory import training_memory

OTHER_AXES = ("stage", "fsdp", "expert", "context")  # beside data and model


@dataclass(frozen=True)
class Program:
    """One program: the arguments of `training_memory`, and where it is compiled."""

    name: str
    model: Transformer | MLP
    batch: int
    topology: str = "v5p:2x2x2"
    seq: int | None = None
    data: int = 1
    model_axis: int = 1
    zero: int = 3
    param_dtype: str = "float32"
    compute_dtype: str = "bfloat16"
    optimizer: str = "adam"
    master_weights: bool = False
    recompute: str = "everything_saveable"
    attention: str = "plain"
    sequence_parallel: bool = False
    names_which_can_be_saved: tuple[str, ...] = ()
    names_which_can_be_offloaded: tuple[str, ...] = ()
    fsdp: int = 1
    context: int = 1
    expert: int = 1
    capacity_factor: float = 1.0
    stage: int = 1
    interleave: int = 1
    gradient_accumulation: int = 1
    moment_dtype: str | None = None
    lora_rank: int | None = None
    lora_targets: tuple[str, ...] = ()
    base_dtype: str | None = None
    offload_optimizer: bool = False

    @property
    def axes(self):
        """The axes of the mesh: data and model always, others if they have a size."""
        more = {name: getattr(self, name) for name in OTHER_AXES}
        more = {name: size for name, size in more.items() if size > 1}
        return {"data": self.data, **more, "model": self.model_axis}

    @property
    def names(self):
        """The names that a policy of jax.checkpoint saves or offloads."""
        return self.names_which_can_be_saved + self.names_which_can_be_offloaded

    @property
    def targets(self):
        """The results whose matrices have adapters."""
        return self.lora_targets or tuple(
            name for name in self.model.results if name != "context"
        )

    @property
    def tokens(self):
        """Tokens of a sequence."""
        return self.seq or self.model.seq

    @property
    def room(self):
        """Rows of one device's tokens for which an expert has room."""
        tokens = self.batch * self.tokens // self.gradient_accumulation
        tokens //= self.data * self.fsdp * self.expert * self.context
        share = tokens * self.model.experts_per_token / self.model.experts
        return math.ceil(self.capacity_factor * share)

    @property
    def rows(self):
        """Rows of the embedding: the model axis must divide them."""
        return -(-self.model.vocab // self.model_axis) * self.model_axis


STACK = MLP(8, 4096, 16384)
LLAMA = Transformer(
    *(8, 2048, 16),
    **{"kv_heads": 4, "d_ff": 5632, "vocab": 32000, "seq": 2048, "gated": True},
    **{"tied": False, "biases": False, "positions": "rotary", "norm": "rms"},
    name="8 Llama layers",
)
TINY = Transformer(2, 256, 4, vocab=1000, seq=256, name="tiny")
# Attention was compiled without its window.
MISTRAL = replace(MODELS["mistral-7b"], window=None)
# The model of a program, by the first word of its name; else MODELS has it.
OWN = {"mlp": STACK, "llama8": LLAMA, "tiny": TINY, "mistral-7b": MISTRAL}
DEEP, WIDE = {"model": MLP(32, 2048, 8192)}, {"model": MLP(16, 3072, 12288)}
V5E, POD = {"topology": "v5e:2x4"}, {"topology": "v5p:4x4x4"}
REPLICATED, ZERO1, ZERO2 = ({"zero": zero} for zero in (0, 1, 2))
FULL, SELECTIVE = {"recompute": "nothing_saveable"}, {"recompute": "selective"}
FLASH, SP = {"attention": "flash"}, {"sequence_parallel": True}
BF16 = {"param_dtype": "bfloat16"}
MASTER = {**BF16, "master_weights": True}
SGD, MOMENTUM = {"optimizer": "sgd"}, {"optimizer": "momentum"}


def _program(name, batch, mesh, *how):
    """One program on a mesh of (data, model) devices."""
    first = name.partition(" ")[0]
    arguments = {"model": OWN.get(first) or MODELS[first]}
    for part in how:
        arguments |= part
    return Program(name, batch=batch, data=mesh[0], model_axis=mesh[1], **arguments)


def _by_name(*rows):
    return {row[0]: _program(*row) for row in rows}


_TPU = _by_name(
    ("mlp replicated", 32768, (8, 1), REPLICATED),
    ("mlp zero1", 32768, (8, 1), ZERO1),
    ("mlp zero2", 32768, (8, 1), ZERO2),
    ("mlp fsdp", 32768, (8, 1)),
    ("mlp tp", 32768, (1, 8)),
    ("mlp 2d", 32768, (4, 2)),
    ("mlp fsdp full", 32768, (8, 1), FULL),
    ("mlp deep 2d", 16384, (2, 4), V5E, DEEP),
    ("gpt3-small replicated", 8, (8, 1), V5E, REPLICATED),
    ("gpt3-small sgd full", 32, (8, 1), V5E, REPLICATED, SGD, FULL),
    ("gpt3-medium fsdp selective", 8, (8, 1), V5E, SELECTIVE),
    ("gpt3-medium zero1 master", 8, (8, 1), V5E, ZERO1, MASTER, SELECTIVE),
    ("gpt3-medium zero2 master full", 16, (8, 1), V5E, ZERO2, MASTER, FULL),
    ("gpt3-large fsdp flash", 8, (8, 1), V5E, FLASH),
    ("gpt3-xl tp", 4, (1, 8)),
    ("gpt3-xl 2d momentum selective", 8, (4, 2), MOMENTUM, SELECTIVE),
    ("gpt3-2.7b fsdp full", 16, (8, 1), FULL),
    ("gpt3-6.7b 2d sp", 8, (2, 4), FLASH, SP),
    ("gpt3-13b 2d full flash", 16, (4, 2), FLASH, FULL),
    ("llama8 fsdp", 16, (8, 1)),
    ("llama8 fsdp flash", 16, (8, 1), FLASH),
    ("llama8 fsdp selective", 16, (8, 1), SELECTIVE),
    ("llama8 fsdp full", 16, (8, 1), FULL),
    ("llama8 2d", 16, (4, 2)),
    ("llama8 tp sp flash", 16, (2, 4), FLASH, SP),
    ("llama8 bfloat16", 16, (8, 1), BF16, FLASH),
    ("llama8 float32", 16, (8, 1), {"compute_dtype": "float32"}, SELECTIVE),
    ("llama-2-7b fsdp full flash", 16, (8, 1), FLASH, FULL),
    ("llama-3-8b tp full flash", 4, (1, 8), FLASH, FULL, SP),
    ("llama-3-8b fsdp full flash", 8, (8, 1), FLASH, FULL),
    ("gpt3-175b 2d full", 64, (8, 8), POD, FULL),
    ("gpt3-175b 2d sp flash", 16, (8, 8), POD, FLASH, SP),
    ("llama-3-70b 2d full flash", 32, (16, 4), POD, FLASH, FULL, SP),
)
# Measured after the formulas were written; no formula was changed for them.
_KEPT_OUT = _by_name(
    ("gpt3-large 2d", 8, (2, 4)),
    ("gpt3-6.7b tp bfloat16 sgd selective", 4, (1, 8), BF16, SGD, SELECTIVE),
    ("gpt2-xl fsdp master flash", 32, (8, 1), MASTER, FLASH),
    ("llama-3.2-1b fsdp selective", 8, (8, 1), {"seq": 4096}, SELECTIVE),
    ("mistral-7b 2d sp full flash", 8, (4, 2), FLASH, FULL, SP),
    (
        "llama-2-13b fsdp full",
        16,
        (16, 1),
        {"topology": "v5p:2x2x4", "seq": 2048},
        FULL,
    ),
    ("mlp wide 2d full", 16384, (4, 2), V5E, WIDE, FULL),
    ("mlp wide zero2 momentum", 8192, (8, 1), WIDE, ZERO2, MOMENTUM),
)
KEPT_OUT = tuple(_KEPT_OUT)
# What the TPU compiler refuses: 'gpt3-175b 2d full', each time with one thing changed.
_REFUSED = _by_name(
    ("gpt3-175b replicated", 64, (8, 8), POD, REPLICATED, FULL),
    ("gpt3-175b 2d", 64, (8, 8), POD),
    ("gpt3-175b 2d full v5e", 64, (8, 8), {"topology": "v5e:8x8"}, FULL),
)
REFUSED = tuple(_REFUSED)
FOR_TPU = _TPU | _KEPT_OUT | _REFUSED


# What is compiled for GPUs that are not there: name, batch, (data, model), cards, how.


def _cards(topology, **more):
    """Cards by their name, hosts and cards of each: 'h100:2x8'."""
    return {"topology": topology, **more}


_FOR_GPU = _by_name(
    ("gpt2-small one card", 16, (1, 1), _cards("a100-40gb:1x1"), REPLICATED),
    ("gpt2-small dp", 64, (8, 1), _cards("a100-40gb:1x8"), REPLICATED),
    ("gpt2-small dp full", 128, (8, 1), _cards("a100-80gb:1x8"), REPLICATED, FULL),
    ("gpt2-small zero1 selective", 64, (4, 1), _cards("h100:1x4"), ZERO1, SELECTIVE),
    ("gpt2-medium fsdp", 32, (8, 1), _cards("a100-40gb:1x8")),
    (
        "gpt2-medium dp selective",
        88,
        (8, 1),
        _cards("a100-40gb:1x8"),
        REPLICATED,
        SELECTIVE,
    ),
    ("gpt2-medium zero2 full", 128, (16, 1), _cards("a100-40gb:2x8"), ZERO2, FULL),
    ("gpt2-large fsdp full", 64, (8, 1), _cards("h100:1x8"), FULL),
    (
        "gpt2-large zero1 master selective",
        *(16, (8, 1), _cards("a100-80gb:1x8"), ZERO1, MASTER, SELECTIVE),
    ),
    ("gpt2-large tp", 4, (1, 4), _cards("h100:1x4")),
    ("gpt2-xl fsdp full", 32, (8, 1), _cards("h100:1x8"), FULL),
    ("gpt2-xl fsdp", 16, (16, 1), _cards("h200:2x8")),
    ("gpt3-small momentum full", 8, (1, 1), _cards("b200:1x1"), MOMENTUM, FULL),
    ("gpt3-medium fsdp", 16, (4, 1), _cards("a100-80gb:1x4")),
    ("gpt3-xl 2d", 20, (4, 2), _cards("h100:1x8")),
    ("gpt3-xl tp sp selective", 8, (1, 8), _cards("h100:1x8"), SP, SELECTIVE),
    ("gpt3-xl fsdp selective", 16, (8, 1), _cards("h200:1x8"), SELECTIVE),
    ("gpt3-2.7b fsdp full", 32, (16, 1), _cards("a100-80gb:2x8"), FULL),
    ("gpt3-2.7b 2d", 8, (4, 4), _cards("h100:2x8")),
    ("gpt3-6.7b fsdp full", 64, (32, 1), _cards("h100:4x8"), FULL),
    ("gpt3-6.7b 2d full", 64, (8, 8), _cards("h100:8x8"), FULL),
    ("gpt3-6.7b 2d sp selective", 16, (4, 8), _cards("a100-80gb:4x8"), SP, SELECTIVE),
    ("llama-3.2-1b one card", 2, (1, 1), _cards("h100:1x1", seq=2048)),
    (
        "llama-3.2-1b dp full",
        16,
        (8, 1),
        _cards("h200:1x8", seq=2048),
        REPLICATED,
        FULL,
    ),
    ("llama-3.2-1b fsdp", 16, (8, 1), _cards("b200:1x8", seq=2048)),
    (
        "llama-3.2-1b fsdp selective",
        8,
        (4, 1),
        _cards("a100-80gb:1x4", seq=2048),
        SELECTIVE,
    ),
    ("llama-3.2-3b fsdp full", 8, (8, 1), _cards("h100:1x8", seq=4096), FULL),
    ("llama-3.2-3b 2d selective", 8, (4, 2), _cards("h200:1x8", seq=2048), SELECTIVE),
    ("llama-3.2-3b tp", 2, (1, 4), _cards("h200:1x4", seq=2048)),
    ("llama-2-7b fsdp full", 8, (8, 1), _cards("h200:1x8", seq=2048), FULL),
    ("llama-2-7b fsdp full 64", 64, (64, 1), _cards("b200:8x8"), FULL),
    ("llama-2-7b tp sp full", 4, (1, 8), _cards("h100:1x8"), SP, FULL),
    ("llama-2-7b 2d", 40, (8, 8), _cards("h100:8x8", seq=2048)),
    ("llama-3-8b fsdp full", 64, (16, 1), _cards("h100:2x8", seq=4096), FULL),
    ("llama-3-8b fsdp full b200", 8, (8, 1), _cards("b200:1x8", seq=4096), FULL),
    ("llama-3-8b 2d selective", 8, (4, 4), _cards("h100:2x8", seq=4096), SELECTIVE),
    ("llama-3-8b tp full", 4, (1, 8), _cards("a100-80gb:1x8", seq=2048), FULL),
    ("llama-3-8b bfloat16 full", 8, (8, 1), _cards("h100:1x8", seq=2048), BF16, FULL),
    ("llama-3-8b master full", 32, (32, 1), _cards("h100:4x8", seq=4096), MASTER, FULL),
    ("mistral-7b 2d sp full", 16, (4, 8), _cards("h100:4x8", seq=4096), SP, FULL),
    ("mistral-7b fsdp full", 64, (64, 1), _cards("h200:8x8"), FULL),
    ("llama8 fsdp", 32, (8, 1), _cards("a100-80gb:1x8")),
    ("llama8 zero1 selective", 16, (4, 1), _cards("h200:1x4"), ZERO1, SELECTIVE),
    ("llama8 zero2 master full", 64, (8, 1), _cards("h100:1x8"), ZERO2, MASTER, FULL),
    (
        "llama8 float32 full",
        16,
        (8, 1),
        _cards("h100:1x8", compute_dtype="float32"),
        FULL,
    ),
    ("llama8 tp", 8, (1, 4), _cards("h200:1x4")),
    ("llama8 2d sp selective", 16, (2, 4), _cards("a100-80gb:1x8"), SP, SELECTIVE),
    ("llama8 bfloat16", 4, (2, 1), _cards("h100:1x2"), BF16),
    ("mlp fsdp", 32768, (8, 1), _cards("h100:1x8")),
    ("mlp dp", 16384, (4, 1), _cards("a100-80gb:1x4"), REPLICATED),
    ("mlp tp", 8192, (1, 4), _cards("h200:1x4")),
    ("mlp 2d full", 131072, (8, 8), _cards("b200:8x8"), FULL),
    (
        "mlp zero2 momentum full",
        65536,
        (16, 1),
        _cards("a100-40gb:2x8"),
        ZERO2,
        MOMENTUM,
        FULL,
    ),
)
FOR_GPU = {
    f"compiled: {name}": replace(p, name=f"compiled: {name}")
    for name, p in _FOR_GPU.items()
}
# A third, drawn before any formula was written, and not used for them.
KEPT_OUT_GPU = tuple(random.Random(22).sample(sorted(FOR_GPU), len(FOR_GPU) // 3))


# The axes, policies and optimizers of the second edition, on small models: so many that
# each compiles in seconds.

GPT = Transformer(8, 1024, 16, vocab=8192, seq=1024, name="small GPT")
GROUPED = Transformer(
    *(8, 1024, 16),
    **{"kv_heads": 4, "d_ff": 2816, "vocab": 16384, "seq": 1024, "gated": True},
    **{"tied": False, "biases": False, "positions": "rotary", "norm": "rms"},
    name="small Llama",
)
LAYERS = MLP(12, 1024, 4096)
# Experts; with wide heads, whose q and k have norms; with sinks and biases; with latent
# attention, a shared expert and a layer without.
MIXTURE = replace(
    GROUPED,
    **{"experts": 8, "experts_per_token": 2, "expert_d_ff": 1408},
    name="small mixture",
)
WIDE_HEADS = replace(
    GROUPED,
    **{"heads": 32, "head_dim": 64, "qk_norm": True, "expert_d_ff": 512},
    **{"experts": 16, "experts_per_token": 4, "name": "small mixture of wide heads"},
)
SINKS = replace(
    GROUPED,
    **{"biases": True, "sinks": True, "window": 128, "global_every": 2},
    **{"experts": 16, "experts_per_token": 4, "expert_d_ff": 1024},
    name="small mixture with sinks",
)
LATENT = replace(
    GROUPED,
    **{"kv_heads": 16, "q_lora_rank": 384, "kv_lora_rank": 256, "head_dim": 96},
    **{"qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "v_head_dim": 64},
    **{"experts": 16, "experts_per_token": 4, "expert_d_ff": 512},
    **{"shared_experts": 1, "dense_layers": 2, "router_biases": True},
    name="small mixture of latent attention",
)
OWN |= {"gpt": GPT, "llama": GROUPED, "layers": LAYERS, "mixture": MIXTURE}
VIT = Transformer(
    *(8, 768, 12),
    **{"vocab": 1000, "seq": 197, "tied": False, "patch_size": 16, "name": "small ViT"},
)
OWN |= {"vit": VIT, "even": replace(VIT, seq=256)}  # cuDNN takes even sequences
OWN |= {"wide": WIDE_HEADS, "sinks": SINKS, "latent": LATENT}
DOTS = {"recompute": "dots_saveable"}
WEIGHTS = {"recompute": "dots_with_no_batch_dims_saveable"}
OFFLOAD = {"recompute": "offload_dot_with_no_batch_dims"}


def _named(*saved, offloaded=()):
    """A policy that saves and offloads by name."""
    first = "save_and_offload" if offloaded else "save"
    return {
        "recompute": f"{first}_only_these_names",
        "names_which_can_be_saved": saved,
        "names_which_can_be_offloaded": offloaded,
    }


_POLICIES = (
    ("gpt dots", 16, (8, 1), V5E, DOTS),
    ("gpt dots dp", 16, (8, 1), V5E, DOTS, REPLICATED),
    ("gpt weights", 16, (8, 1), V5E, WEIGHTS),
    ("layers dots", 65536, (8, 1), V5E, DOTS),
    ("llama weights flash", 32, (8, 1), V5E, WEIGHTS, FLASH),
    ("layers offload", 65536, (4, 2), V5E, OFFLOAD),
    ("llama named qkv flash", 32, (8, 1), V5E, _named("query", "key", "value"), FLASH),
    ("llama offload flash", 32, (8, 1), V5E, OFFLOAD, FLASH),
)
_POLICIES_GPU = (
    ("gpt dots", 32, (8, 1), _cards("h100:1x8"), DOTS),
    ("gpt weights", 64, (8, 1), _cards("a100-80gb:1x8"), WEIGHTS),
    ("gpt weights dp", 64, (8, 1), _cards("h200:1x8"), WEIGHTS, REPLICATED),
    ("llama dots tp", 16, (2, 4), _cards("h100:1x8"), DOTS),
    ("llama dots", 32, (8, 1), _cards("b200:1x8"), DOTS),
    ("llama weights", 64, (8, 1), _cards("h100:1x8"), WEIGHTS),
    ("llama weights 2d sp", 64, (4, 2), _cards("b200:1x8"), WEIGHTS, SP),
    (
        "llama named qkv",
        64,
        (8, 1),
        _cards("h100:1x8"),
        _named("query", "key", "value"),
    ),
    ("llama named mlp", 64, (8, 1), _cards("a100-80gb:1x8"), _named("gate", "up")),
    (
        "gpt named out context",
        *(64, (8, 1), _cards("h200:1x8"), _named("out", "context"), ZERO1),
    ),
    ("llama offload", 64, (8, 1), _cards("h100:1x8"), OFFLOAD),
    (
        "gpt offload named",
        *(64, (8, 1), _cards("h100:1x8"), _named("query", offloaded=("up",))),
    ),
    ("layers dots", 65536, (8, 1), _cards("h100:1x8"), DOTS),
)


def _axes(**sizes):
    """Axes beside data and model, with the sequences that they are for."""
    return sizes


HSDP = _axes(fsdp=4, zero=0)
ADAFACTOR, MUON, LION = ({"optimizer": name} for name in ("adafactor", "muon", "lion"))
INT8 = {"moment_dtype": "int8"}
RING = {"attention": "ring"}


def _parts(turns):
    return {"gradient_accumulation": turns}


_AXES_GPU = (
    ("gpt fsdp full", 64, (1, 1), _cards("h100:1x8"), _axes(fsdp=8), FULL),
    ("llama hsdp full", 64, (2, 1), _cards("h100:1x8"), HSDP, FULL),
    ("llama hsdp zero1 weights", 64, (2, 1), _cards("h200:1x8"), HSDP, ZERO1, WEIGHTS),
    ("gpt fsdp tp weights", 64, (1, 2), _cards("h100:1x8"), _axes(fsdp=4), WEIGHTS),
    (
        "llama context full",
        *(8, (1, 1), _cards("h100:1x8", seq=4096), _axes(fsdp=2, context=4), FULL),
    ),
    (
        "llama ring full",
        *(8, (1, 1), _cards("h100:1x8", seq=8192), _axes(fsdp=2, context=4)),
        *(RING, FULL),
    ),
    (
        "llama ring weights",
        *(8, (2, 1), _cards("h200:1x8", seq=8192), _axes(context=4), RING, WEIGHTS),
    ),
    (
        "llama ring tp sp full",
        *(8, (1, 2), _cards("h100:1x8", seq=8192), _axes(fsdp=2, context=2)),
        *(RING, SP, FULL),
    ),
    (
        "llama ring",
        *(4, (1, 1), _cards("b200:1x8", seq=8192), _axes(fsdp=2, context=4), RING),
    ),
    ("llama wide tp full", 8, (1, 8), _cards("h100:1x8"), FULL),
    ("llama wide tp fsdp", 8, (1, 8), _cards("h100:2x8"), _axes(fsdp=2), SELECTIVE),
    (
        "llama context weights",
        *(8, (1, 2), _cards("a100-80gb:1x8", seq=2048), _axes(fsdp=2, context=2)),
        WEIGHTS,
    ),
    (
        "llama ring bfloat16 master full",
        *(16, (1, 1), _cards("h100:1x8", seq=4096), _axes(fsdp=4, context=2)),
        *(RING, MASTER, FULL),
    ),
)
_OPTIMIZERS_GPU = (
    ("layers adafactor", 16384, (8, 1), _cards("h100:1x8"), ADAFACTOR),
    ("layers muon", 16384, (8, 1), _cards("h100:1x8"), MUON),
    ("layers int8", 16384, (8, 1), _cards("h100:1x8"), INT8),
    ("layers muon dp full", 65536, (8, 1), _cards("h200:1x8"), MUON, ZERO1, FULL),
    ("layers adafactor dp", 65536, (8, 1), _cards("h100:1x8"), ADAFACTOR, REPLICATED),
    ("layers lion tp", 16384, (1, 8), _cards("a100-80gb:1x8"), LION),
    ("layers int8 dp", 16384, (8, 1), _cards("h100:1x8"), INT8, ZERO1),
    ("layers parts", 131072, (8, 1), _cards("h100:1x8"), _parts(4)),
    ("gpt adafactor full", 64, (8, 1), _cards("h100:1x8"), ADAFACTOR, FULL),
    ("gpt muon full", 64, (8, 1), _cards("h100:1x8"), MUON, FULL),
    ("llama lion bfloat16 full", 64, (8, 1), _cards("h100:1x8"), LION, BF16, FULL),
    ("gpt int8 weights", 32, (8, 1), _cards("h100:1x8"), INT8, WEIGHTS),
    ("llama parts full", 128, (8, 1), _cards("h100:1x8"), _parts(4), FULL),
    ("gpt parts dp weights", 64, (8, 1), _cards("a100-80gb:1x8"), _parts(2), WEIGHTS),
    ("llama parts ring", 16, (1, 1), _cards("h100:1x8", seq=4096), _parts(2), RING)
    + (_axes(fsdp=2, context=4), FULL),
)
_AXES = (
    ("layers hsdp", 65536, (2, 1), V5E, HSDP),
    (
        "llama ring full",
        *(16, (1, 1), V5E, {"seq": 4096}, _axes(fsdp=2, context=4), RING, FULL),
    ),
    ("layers fsdp tp", 65536, (1, 2), V5E, _axes(fsdp=4), FULL),
    (
        "llama context full flash",
        *(16, (1, 1), V5E, {"seq": 4096}, _axes(fsdp=2, context=4), FLASH, FULL),
    ),
    ("llama wide tp full flash", 8, (1, 8), V5E, {"seq": 4096}, FLASH, FULL),
)
_OPTIMIZERS = (
    ("layers adafactor", 32768, (8, 1), V5E, ADAFACTOR),
    ("layers muon", 32768, (8, 1), V5E, MUON),
    ("layers int8", 32768, (8, 1), V5E, INT8),
    ("layers lion tp", 32768, (1, 8), V5E, LION),
    ("layers parts", 131072, (8, 1), V5E, _parts(4)),
    ("layers adafactor dp full", 65536, (8, 1), V5E, ADAFACTOR, REPLICATED, FULL),
    ("llama parts full flash", 64, (8, 1), V5E, _parts(2), FLASH, FULL),
)
EXPERTS = _axes(expert=8)
_EXPERTS = (
    ("mixture full flash", 64, (1, 1), V5E, EXPERTS, FULL, FLASH),
    ("mixture fsdp full flash", 64, (1, 1), V5E, _axes(expert=2, fsdp=4), FULL, FLASH),
    ("mixture tp full flash", 32, (1, 2), V5E, _axes(expert=4), FULL, FLASH),
    ("mixture flash", 16, (1, 1), V5E, EXPERTS, FLASH),
    ("wide experts full flash", 64, (2, 1), V5E, _axes(expert=4), FULL, FLASH),
    ("sinks full flash", 64, (1, 1), V5E, _axes(expert=4, fsdp=2), FULL, FLASH),
    ("latent full flash", 64, (1, 1), V5E, _axes(expert=4, fsdp=2), FULL, FLASH),
)
_EXPERTS_GPU = (
    ("mixture full", 64, (1, 1), _cards("h100:1x8"), EXPERTS, FULL),
    ("mixture fsdp full", 64, (1, 1), _cards("h100:1x8"), _axes(expert=2, fsdp=4))
    + (FULL,),
    ("mixture tp full", 32, (1, 2), _cards("h200:1x8"), _axes(expert=4), FULL),
    ("mixture", 16, (1, 1), _cards("h100:1x8"), EXPERTS),
    ("mixture dp selective", 16, (8, 1), _cards("h100:1x8"), ZERO1, SELECTIVE),
    ("wide experts full", 64, (2, 1), _cards("a100-80gb:1x8"), _axes(expert=4), FULL),
    ("sinks experts full", 64, (1, 1), _cards("h100:1x8"), _axes(expert=4, fsdp=2))
    + (FULL,),
    ("latent experts full", 64, (1, 1), _cards("h100:1x8"), _axes(expert=4, fsdp=2))
    + (FULL,),
    ("latent tp full", 32, (1, 4), _cards("h200:1x8"), _axes(expert=2), FULL),
    (
        "mixture room full",
        *(64, (1, 1), _cards("b200:1x8"), EXPERTS, {"capacity_factor": 1.5}, FULL),
    ),
)

STAGES, PARTS_8 = _axes(stage=4), _parts(8)
_STAGES = (
    ("gpt stages full", 64, (2, 1), V5E, STAGES, PARTS_8, FULL),
    ("gpt stages interleaved full", 64, (2, 1), V5E, STAGES, PARTS_8, FULL)
    + ({"interleave": 2},),
)
_STAGES_GPU = (
    ("llama stages full", 64, (2, 1), _cards("h100:1x8"), STAGES, PARTS_8, FULL),
    (
        "llama stages interleaved full",
        *(64, (2, 1), _cards("h100:1x8"), STAGES, PARTS_8, FULL, {"interleave": 2}),
    ),
    (
        "gpt stages tp full",
        *(64, (1, 2), _cards("a100-80gb:1x8"), STAGES, PARTS_8, FULL),
    ),
    (
        "gpt stages fsdp full",
        *(64, (1, 1), _cards("h200:1x8"), _axes(stage=2, fsdp=4), _parts(4), FULL),
    ),
    ("llama stages many full", 64, (1, 1), _cards("h100:1x8"), _axes(stage=8))
    + (_parts(16), FULL),
)


def _lora(rank, *targets, **more):
    """Adapters of so many columns for some matrices, or for all."""
    return {"lora_rank": rank, "lora_targets": targets, **more}


BASE = {"base_dtype": "bfloat16"}
_LORA = (
    ("llama lora full flash", 64, (8, 1), V5E, _lora(16), BASE, FULL, FLASH),
    ("gpt lora dp", 16, (8, 1), V5E, _lora(8, "query", "value"), BASE, REPLICATED),
    ("llama lora flash", 16, (1, 1), V5E, _axes(fsdp=8), _lora(16), BASE, FLASH),
    ("llama lora tp full flash", 32, (2, 4), V5E, _lora(32), BASE, FULL, FLASH),
    ("llama lora float32 full flash", 64, (1, 1), V5E, _axes(fsdp=8), _lora(16))
    + ({"base_dtype": "float32"}, FULL, FLASH),
    ("llama lora int8 full flash", 64, (1, 1), V5E, _axes(fsdp=8), _lora(16))
    + ({"base_dtype": "int8"}, FULL, FLASH),
)
_LORA_GPU = (
    ("llama lora full", 64, (8, 1), _cards("h100:1x8"), _lora(16), BASE, FULL),
    ("gpt lora dp full", 64, (8, 1), _cards("h100:1x8"), _lora(8, "query", "value"))
    + (BASE, REPLICATED, FULL),
    ("llama lora", 16, (1, 1), _cards("h100:1x8"), _axes(fsdp=8), _lora(16), BASE),
    ("llama lora tp full", 32, (2, 4), _cards("a100-80gb:1x8"), _lora(32), BASE, FULL),
    ("llama lora parts full", 128, (8, 1), _cards("h200:1x8"), _lora(16), BASE)
    + (_parts(4), FULL),
    ("gpt lora dp selective", 16, (8, 1), _cards("h100:1x8"))
    + (_lora(8, "query", "value"), BASE, REPLICATED, SELECTIVE),
    ("llama lora float32 full", 64, (1, 1), _cards("h100:1x8"), _axes(fsdp=8))
    + (_lora(16), {"base_dtype": "float32"}, FULL),
    ("llama lora int8 full", 64, (1, 1), _cards("h100:1x8"), _axes(fsdp=8))
    + (_lora(16), {"base_dtype": "int8"}, FULL),
)

HOST = {"offload_optimizer": True}
_HOST_GPU = (
    ("gpt host full", 16, (8, 1), _cards("h100:1x8"), HOST, FULL),
    ("layers host", 4096, (8, 1), _cards("h100:1x8"), HOST),
    ("layers host dp full", 8192, (8, 1), _cards("h200:1x8"), HOST, ZERO1, FULL),
    ("llama host master full", 16, (1, 1), _cards("a100-80gb:1x8"), _axes(fsdp=8))
    + (HOST, MASTER, FULL),
)

LORA_1B = {"seq": 2048, **BASE}
# On one GPU and on two that are here, where cuDNN has a kernel for attention.
_HERE_1 = (
    ("llama lora full flash", 16, (1, 1), {}, _lora(16), BASE, FULL, FLASH),
    ("llama lora flash", 8, (1, 1), {}, _lora(16), BASE, FLASH),
    ("gpt lora full", 16, (1, 1), {}, _lora(8, "query", "value"), BASE, FULL),
    ("gpt lora", 8, (1, 1), {}, _lora(8, "query", "value"), BASE),
    ("llama lora int8 full flash", 16, (1, 1), {}, _lora(16), FULL, FLASH)
    + ({"base_dtype": "int8"},),
    ("llama lora float32 full flash", 16, (1, 1), {}, _lora(16), FULL, FLASH)
    + ({"base_dtype": "float32"},),
    ("llama lora selective", 8, (1, 1), {}, _lora(16, "up", "down"), BASE, SELECTIVE),
    ("llama-3.2-1b lora full flash", 8, (1, 1), {}, _lora(16), LORA_1B, FULL, FLASH),
    ("llama-3-8b lora full flash", 4, (1, 1), {}, _lora(64), LORA_1B, FULL, FLASH),
    ("gpt host full", 8, (1, 1), {}, HOST, FULL),
    ("layers host", 4096, (1, 1), {}, HOST),
    ("llama host master full flash", 8, (1, 1), {}, HOST, MASTER, FULL, FLASH),
    ("llama host lion full flash", 8, (1, 1), {}, HOST, LION, FULL, FLASH),
    ("llama-3.2-1b host full flash", 4, (1, 1), {"seq": 2048}, HOST, FULL, FLASH),
)
_HERE_1 += (
    ("even full flash", 256, (1, 1), FULL, FLASH),
    ("vit full", 256, (1, 1), FULL),
    ("even flash", 64, (1, 1), FLASH),
    ("vit", 64, (1, 1), {}),
    ("vit selective", 64, (1, 1), SELECTIVE),
    ("even weights flash", 128, (1, 1), WEIGHTS, FLASH),
    ("vit parts full", 512, (1, 1), _parts(4), FULL),
    ("vit-l-16 full", 256, (1, 1), FULL),
    ("vit-b-16 bfloat16 master selective", 128, (1, 1), MASTER, SELECTIVE),
)
_HERE_2 = (
    ("even fsdp full flash", 256, (1, 1), _axes(fsdp=2), FULL, FLASH),
    ("vit tp full", 128, (1, 2), FULL),
    ("vit dp", 64, (2, 1), REPLICATED),
    ("llama lora fsdp full flash", 16, (1, 1), _axes(fsdp=2), _lora(16), BASE, FULL)
    + (FLASH,),
    ("llama lora dp flash", 8, (2, 1), _lora(16), BASE, REPLICATED, FLASH),
    ("llama lora tp full flash", 16, (1, 2), _lora(32), BASE, FULL, FLASH),
    ("llama host fsdp full flash", 16, (1, 1), _axes(fsdp=2), HOST, FULL, FLASH),
    ("layers host dp full", 16384, (2, 1), HOST, ZERO1, FULL),
)


def _titled(title, rows):
    """Programs by their name, before which stands for what they are compiled."""
    return {
        f"{title}: {name}": replace(p, name=f"{title}: {name}")
        for name, p in _by_name(*rows).items()
    }


MORE_TPU = _titled(
    "tpu", (*_POLICIES, *_AXES, *_OPTIMIZERS, *_EXPERTS, *_STAGES, *_LORA)
)
MORE_GPU = _titled(
    "cards",
    (
        *(*_POLICIES_GPU, *_AXES_GPU, *_OPTIMIZERS_GPU, *_EXPERTS_GPU, *_STAGES_GPU),
        *(*_LORA_GPU, *_HOST_GPU),
    ),
)


MORE_HERE = {
    name: replace(program, topology="")
    for title, rows in (("1 gpu", _HERE_1), ("2 gpu", _HERE_2))
    for name, program in _titled(title, rows).items()
}


# Looked at while a formula was written, though their names were kept out for it.
_LOOKED_AT = (
    "1 gpu: llama lora full flash",
    "1 gpu: llama-3.2-1b host full flash",
    "cards: llama lora tp full",
)


def is_kept_out(name):
    """Whether a program of these is used for no formula: about a third, by its name.

    Those for two GPUs ran when all formulas stood.
    """
    if name.startswith("2 gpu: "):
        return True
    return name not in _LOOKED_AT and zlib.crc32(name.encode()) % 3 == 0


# For GPUs: the step of the MLP that was timed on two H100s, and small transformers.


def for_devices(count):
    """The programs that are run where there are so many devices, by name."""
    data, model, both = (count, 1), (1, count), (count // 2, 2)
    stack, rows = 4096, 4 * count
    arguments = [("tiny", rows, data)]
    if count == 1:
        arguments += [
            ("gpt3-small", rows, data, REPLICATED),
            ("gpt3-small flash", rows, data, REPLICATED, FLASH),
            ("gpt3-small full", rows, data, REPLICATED, FULL),
            ("gpt3-medium selective", rows, data, REPLICATED, SELECTIVE),
            ("gpt3-xl full flash", rows, data, FULL, FLASH),
            ("llama8", rows, data),
            ("llama8 full", rows, data, FULL),
        ]
    else:
        arguments += [
            ("mlp replicated", stack, data, REPLICATED),
            ("mlp fsdp", stack, data),
            ("mlp tp", stack, model),
            ("gpt3-small replicated", rows, data, REPLICATED),
            ("gpt3-xl fsdp full", rows, data, FULL),
            ("gpt3-xl tp full", rows, model, FULL),
            ("llama8 fsdp", rows, data),
            ("llama8 fsdp flash", rows, data, FLASH),
        ]
    if count >= 4 and count % 2 == 0:
        arguments += [
            ("mlp 2d", stack, both),
            ("gpt3-xl 2d full", rows, both, FULL),
            ("llama8 2d selective", rows, both, SELECTIVE),
        ]
    titled = {f"{count} gpu: {name}": p for name, p in _by_name(*arguments).items()}
    return {n: replace(p, name=n, topology="") for n, p in titled.items()}


ALL = (
    FOR_TPU
    | FOR_GPU
    | MORE_TPU
    | MORE_GPU
    | MORE_HERE
    | {
        name: program
        for count in (1, 2, 4, 8)
        for name, program in for_devices(count).items()
    }
)


def counted(program, chip=None):
    """What training_memory says of a program."""
    how = {field.name: getattr(program, field.name) for field in fields(program)}
    model = how.pop("model")
    mesh = program.axes
    if not getattr(model, "experts", None):
        del how["capacity_factor"]
    for key in ("name", "topology", "data", "model_axis", *OTHER_AXES):
        del how[key]
    return training_memory(model, mesh=mesh, chip=chip, **how)
