"""What tools/measure/transformer.py measures: attention, six strategies, the log."""

from dataclasses import dataclass, field

from tools.measure.model import STRATEGIES, Setting

TINY = {
    **{"layers": 2, "d_model": 32, "heads": 4, "d_ff": 96, "vocab": 64, "seq": 16},
    "batch": 4,
}

# --- Attention alone: [B, S, N, Dh], bfloat16, causal --------------------------------

ATTENTION = ("plain", "xla", "cudnn")
ATTENTION_SHAPES = tuple((2, seq, 32, 128) for seq in (1024, 2048, 4096, 8192))
TINY_ATTENTION = ((2, 16, 4, 8), (2, 32, 4, 8))

# --- The same transformer, by six strategies --------------------------------------

WAY = Setting(
    **{"batch": 16, "compute": "bfloat16", "attention": "cudnn", "donate": True},
    recompute="cheap",
)


def ways(tiny=False) -> dict[str, Setting]:
    base = WAY.but(**TINY) if tiny else WAY
    settings = {name: base.but(strategy=name) for name in STRATEGIES}
    # cuDNN's attention has no rule for Explicit axes (jax-ml/jax pull request 36539).
    name = "fsdp explicit"
    return settings | {name: settings[name].but(attention="cudnn mapped")}


# --- The log: one change at a time ---------------------------------------------------


@dataclass(frozen=True)
class Change:
    """One line of the log: what is changed of the best so far, and why.

    It is kept if a larger share of the peak comes out ("faster"), or "always", if it
    is meant for memory and not for time, or "never", if it is another model or only
    there to be compared.
    """

    name: str
    why: str
    chapter: int
    change: dict = field(default_factory=dict)
    keep: str = "faster"


OVERLAP = "--xla_gpu_enable_latency_hiding_scheduler=true"
PIPELINED = " ".join(
    f"--xla_gpu_enable_pipelined_{kind}=true"
    for kind in ("all_gather", "reduce_scatter", "all_reduce")
)
COMBINED = " ".join(
    f"--xla_gpu_{kind}_combine_threshold_bytes={2**30}"
    for kind in ("all_gather", "reduce_scatter", "all_reduce")
)

LOG = (
    Change(
        "start",
        "replicated, float32, attention in three lines, nothing donated, one sequence"
        " a card",
        2,
    ),
    Change(
        "donate the state",
        "the new state takes the memory of the old one",
        13,
        {"donate": True},
        keep="always",
    ),
    Change(
        "bfloat16 products",
        "half the bytes, twice the FLOP/s; parameters and Adam stay float32",
        9,
        {"compute": "bfloat16"},
    ),
    Change(
        "fused attention",
        "the scores never reach the memory",
        12,
        {"attention": "cudnn"},
    ),
    Change(
        "batch 8",
        "the same weights are read and exchanged for four times the tokens",
        14,
        {"batch": 8},
    ),
    Change(
        "fsdp plain",
        "half of the state on each card; the compiler decides the rest",
        10,
        {"strategy": "fsdp plain"},
    ),
    Change(
        "fsdp constrained",
        "the batch stays where it is, so that weights are gathered; half of the state"
        " makes room",
        10,
        {"strategy": "fsdp constrained"},
        keep="always",
    ),
    Change(
        "tensor parallel",
        "activations are exchanged in place of weights",
        11,
        {"strategy": "tensor parallel"},
    ),
    Change(
        "recompute cheap parts",
        "norms and GELU run again, products and attention don't: less is kept",
        9,
        {"recompute": "cheap"},
        keep="always",
    ),
    Change("batch 16", "more tokens for the same weights", 14, {"batch": 16}),
    Change("batch 32", "more tokens for the same weights", 14, {"batch": 32}),
    Change(
        "bfloat16 logits",
        "the scores of all words are the largest array of the step, and in float32"
        " the products of their gradients are too",
        9,
        {"loss": "bfloat16"},
    ),
    Change(
        "loss in chunks",
        "the scores of an eighth of the tokens at a time; their product runs again",
        9,
        {"loss": "chunked"},
    ),
    Change("batch 48", "more tokens for the same weights", 14, {"batch": 48}),
    Change(
        "layers one after another",
        "no loop: nothing is copied into and out of a stack",
        8,
        {"scan": False},
    ),
    Change(
        "recompute everything",
        "what if: a layer keeps its input only, and its forward pass runs again",
        9,
        {"recompute": "nothing_saveable"},
        keep="never",
    ),
    Change(
        "latency hiding scheduler",
        "exchanges start early and end late",
        14,
        {"flags": OVERLAP},
    ),
    Change(
        "pipelined collectives",
        "an exchange of the next turn runs during this one",
        14,
        {"flags": f"{OVERLAP} {PIPELINED}"},
    ),
    Change(
        "combined collectives",
        "fewer and larger exchanges",
        14,
        {"flags": f"{OVERLAP} {COMBINED}"},
    ),
    Change(
        "heads of 64",
        "what if: twice the heads, half as wide, the same parameters",
        12,
        {"heads": 64},
        keep="never",
    ),
    Change(
        "sequences of 4096",
        "what if: half as many sequences, twice as long",
        12,
        {"seq": 4096, "batch": "half"},
        keep="never",
    ),
    Change(
        "products by cuBLAS alone",
        "what if: none by a kernel that XLA makes with Triton",
        14,
        {"flags": "--xla_gpu_enable_triton_gemm=false"},
        keep="never",
    ),
    Change("batch 64", "more tokens for the same weights", 14, {"batch": 64}),
)


NAMES = {
    "attention": list(ATTENTION),
    "ways": list(ways()),
    "log": [change.name for change in LOG],
}


def start_of_log(tiny=False) -> Setting:
    base = Setting()
    return base.but(**TINY) if tiny else base


def changed(base: Setting, change: Change, tiny=False) -> Setting:
    """The setting of a line, made of the best so far."""
    given = dict(change.change)
    if "flags" in given:  # beside those that were kept
        both = f"{base.flags} {given['flags']}".split()
        given["flags"] = " ".join(dict.fromkeys(both))
    if given.get("batch") == "half":
        given["batch"] = base.batch // 2
    if tiny:
        small = {"batch": lambda b: max(2, b // 4), "seq": lambda n: n // 128}
        small["heads"] = lambda n: n // 8
        given = {k: small[k](v) if k in small else v for k, v in given.items()}
        if "seq" in given:
            given["batch"] = max(2, base.batch // 2)
    return base.but(**given)
