"""The programs that are measured: models, meshes and ways to train.

Each is the arguments of one call of `training_memory`, and the topology that it is
compiled for. `reference.py` makes the step.
"""

from dataclasses import dataclass, replace

from spmd_helpers._training.model import MLP, Transformer
from spmd_helpers._training.models import MODELS


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
    params: str = "float32"
    compute: str = "bfloat16"
    optimizer: str = "adam"
    master: bool = False
    recompute: str = "none"
    attention: str = "plain"
    sequence_parallel: bool = False

    @property
    def tokens(self):
        """Tokens of a sequence."""
        return self.seq or self.model.seq

    @property
    def rows(self):
        """Rows of the embedding: the model axis must divide them."""
        return -(-self.model.vocab // self.model_axis) * self.model_axis


STACK = MLP(8, 4096, 16384)
DEEP = MLP(32, 2048, 8192)
LLAMA = Transformer(
    *(8, 2048, 16),
    **{"kv_heads": 4, "d_ff": 5632, "vocab": 32000, "seq": 2048, "gated": True},
    **{"tied": False, "biases": False, "positions": "rotary", "norm": "rms"},
    name="8 Llama layers",
)
TINY = Transformer(2, 256, 4, vocab=1000, seq=256, name="tiny")
SMALL, MEDIUM, LARGE, XL = (
    MODELS[f"gpt3-{size}"] for size in ("small", "medium", "large", "xl")
)
V5E = "v5e:2x4"
POD = "v5p:4x4x4"


def _mlp(name, **how):
    return Program(f"mlp {name}", STACK, 32768, **how)


def _llama(name, **how):
    return Program(f"llama8 {name}", LLAMA, 16, **how)


_TPU = (
    _mlp("replicated", data=8, zero=0),
    _mlp("zero1", data=8, zero=1),
    _mlp("zero2", data=8, zero=2),
    _mlp("fsdp", data=8),
    _mlp("tp", model_axis=8),
    _mlp("2d", data=4, model_axis=2),
    _mlp("fsdp full", data=8, recompute="full"),
    Program("mlp deep 2d", DEEP, 16384, V5E, data=2, model_axis=4),
    Program("gpt3-small replicated", SMALL, 8, V5E, data=8, zero=0),
    Program(
        "gpt3-small sgd full",
        SMALL,
        32,
        V5E,
        data=8,
        zero=0,
        optimizer="sgd",
        recompute="full",
    ),
    Program(
        "gpt3-medium fsdp selective", MEDIUM, 8, V5E, data=8, recompute="selective"
    ),
    Program(
        "gpt3-medium zero1 master",
        MEDIUM,
        8,
        V5E,
        data=8,
        zero=1,
        params="bfloat16",
        master=True,
        recompute="selective",
    ),
    Program(
        "gpt3-medium zero2 master full",
        MEDIUM,
        16,
        V5E,
        data=8,
        zero=2,
        params="bfloat16",
        master=True,
        recompute="full",
    ),
    Program("gpt3-large fsdp flash", LARGE, 8, V5E, data=8, attention="flash"),
    Program("gpt3-xl tp", XL, 4, model_axis=8, data=1),
    Program(
        "gpt3-xl 2d momentum selective",
        XL,
        8,
        data=4,
        model_axis=2,
        optimizer="momentum",
        recompute="selective",
    ),
    Program("gpt3-2.7b fsdp full", MODELS["gpt3-2.7b"], 16, data=8, recompute="full"),
    Program(
        "gpt3-6.7b 2d sp",
        MODELS["gpt3-6.7b"],
        8,
        data=2,
        model_axis=4,
        attention="flash",
        sequence_parallel=True,
    ),
    Program(
        "gpt3-13b 2d full flash",
        MODELS["gpt3-13b"],
        16,
        data=4,
        model_axis=2,
        attention="flash",
        recompute="full",
    ),
    _llama("fsdp", data=8),
    _llama("fsdp flash", data=8, attention="flash"),
    _llama("fsdp selective", data=8, recompute="selective"),
    _llama("fsdp full", data=8, recompute="full"),
    _llama("2d", data=4, model_axis=2),
    _llama(
        "tp sp flash", data=2, model_axis=4, attention="flash", sequence_parallel=True
    ),
    _llama("bfloat16", data=8, params="bfloat16", attention="flash"),
    _llama("float32", data=8, compute="float32", recompute="selective"),
    Program(
        "llama-2-7b fsdp full flash",
        MODELS["llama-2-7b"],
        16,
        data=8,
        attention="flash",
        recompute="full",
    ),
    Program(
        "llama-3-8b tp full flash",
        MODELS["llama-3-8b"],
        4,
        data=1,
        model_axis=8,
        attention="flash",
        recompute="full",
        sequence_parallel=True,
    ),
    Program(
        "llama-3-8b fsdp full flash",
        MODELS["llama-3-8b"],
        8,
        data=8,
        attention="flash",
        recompute="full",
    ),
    Program(
        "gpt3-175b 2d full",
        MODELS["gpt3-175b"],
        64,
        POD,
        data=8,
        model_axis=8,
        recompute="full",
    ),
    Program(
        "gpt3-175b 2d sp flash",
        MODELS["gpt3-175b"],
        16,
        POD,
        data=8,
        model_axis=8,
        attention="flash",
        sequence_parallel=True,
    ),
    Program(
        "llama-3-70b 2d full flash",
        MODELS["llama-3-70b"],
        32,
        POD,
        data=16,
        model_axis=4,
        attention="flash",
        recompute="full",
        sequence_parallel=True,
    ),
)
# Measured after the formulas were written; no formula was changed for them.
_HELD_OUT = (
    Program("gpt3-large 2d", LARGE, 8, data=2, model_axis=4),
    Program(
        "gpt3-6.7b tp bfloat16 sgd selective",
        MODELS["gpt3-6.7b"],
        4,
        model_axis=8,
        params="bfloat16",
        optimizer="sgd",
        recompute="selective",
    ),
    Program(
        "gpt2-xl fsdp master flash",
        MODELS["gpt2-xl"],
        32,
        data=8,
        params="bfloat16",
        master=True,
        attention="flash",
    ),
    Program(
        "llama-3.2-1b fsdp selective",
        MODELS["llama-3.2-1b"],
        8,
        seq=4096,
        data=8,
        recompute="selective",
    ),
    Program(
        "mistral-7b 2d sp full flash",
        MODELS["mistral-7b"],
        8,
        data=4,
        model_axis=2,
        attention="flash",
        recompute="full",
        sequence_parallel=True,
    ),
    Program(
        "llama-2-13b fsdp full",
        MODELS["llama-2-13b"],
        16,
        "v5p:2x2x4",
        seq=2048,
        data=16,
        recompute="full",
    ),
    Program(
        "mlp wide 2d full",
        MLP(16, 3072, 12288),
        16384,
        V5E,
        data=4,
        model_axis=2,
        recompute="full",
    ),
    Program(
        "mlp wide zero2 momentum",
        MLP(16, 3072, 12288),
        8192,
        data=8,
        zero=2,
        optimizer="momentum",
    ),
)
HELD_OUT = tuple(program.name for program in _HELD_OUT)
# What the TPU compiler refuses: 'gpt3-175b 2d full', each time with one thing changed.
_REFUSED = (
    Program(
        "gpt3-175b replicated",
        MODELS["gpt3-175b"],
        64,
        POD,
        data=8,
        model_axis=8,
        zero=0,
        recompute="full",
    ),
    Program("gpt3-175b 2d", MODELS["gpt3-175b"], 64, POD, data=8, model_axis=8),
    Program(
        "gpt3-175b 2d full v5e",
        MODELS["gpt3-175b"],
        64,
        "v5e:8x8",
        data=8,
        model_axis=8,
        recompute="full",
    ),
)
REFUSED = tuple(program.name for program in _REFUSED)
FOR_TPU = {program.name: program for program in (*_TPU, *_HELD_OUT, *_REFUSED)}


# For GPUs: the step of the MLP that was timed on two H100s, and small transformers.


def for_devices(count):
    """The programs that are run where there are so many devices, by name."""
    stack = Program("", STACK, 4096, "", zero=3)
    small = Program("", SMALL, 4 * count, "", zero=0)
    xl = Program("", XL, 4 * count, "", recompute="full")
    llama = Program("", LLAMA, 4 * count, "", zero=3)
    tiny = replace(small, model=TINY, zero=3, data=count)
    if count == 1:
        found = {
            "tiny": tiny,
            "gpt3-small": small,
            "gpt3-small flash": replace(small, attention="flash"),
            "gpt3-small full": replace(small, recompute="full"),
            "gpt3-medium selective": replace(
                small, model=MEDIUM, recompute="selective"
            ),
            "gpt3-xl full flash": replace(xl, attention="flash"),
            "llama8": llama,
            "llama8 full": replace(llama, recompute="full"),
        }
    else:
        found = {
            "tiny": tiny,
            "mlp replicated": replace(stack, data=count, zero=0),
            "mlp fsdp": replace(stack, data=count),
            "mlp tp": replace(stack, model_axis=count),
            "gpt3-small replicated": replace(small, data=count),
            "gpt3-xl fsdp full": replace(xl, data=count),
            "gpt3-xl tp full": replace(xl, model_axis=count),
            "llama8 fsdp": replace(llama, data=count),
            "llama8 fsdp flash": replace(llama, data=count, attention="flash"),
        }
    if count >= 4 and count % 2 == 0:
        both = {"data": count // 2, "model_axis": 2}
        found |= {
            "mlp 2d": replace(stack, **both),
            "gpt3-xl 2d full": replace(xl, **both),
            "llama8 2d selective": replace(llama, **both, recompute="selective"),
        }
    return {
        f"{count} gpu: {name}": replace(program, name=f"{count} gpu: {name}")
        for name, program in found.items()
    }


ALL = FOR_TPU | {
    name: program
    for count in (1, 2, 4, 8)
    for name, program in for_devices(count).items()
}
