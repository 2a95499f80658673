"""Random states of the memory calculator, good and bad, and the package's answers."""

import functools
import math
import random

from spmd_helpers._errors import NotUnderstood
from spmd_helpers._hardware.chips import HARDWARE
from spmd_helpers._training.model import check_counted
from spmd_helpers._training.models import MODELS
from spmd_helpers._training.recompute import RECOMPUTE, WITH_NAMES
from spmd_helpers._training.setup import OPTIMIZERS, WITH_MU_DTYPE
from spmd_helpers._widgets.data import measured

from .memory_oracle import DEFAULTS, expected, read

CHANGED = 4  # of the states that don't fit, each fourth has its changes compared

BAD = (
    "", " ", "-3", "none", "full", "nothing_savable", "dots_saveable",
    "0", "1.5", "abc", "1e9", "99999999999", "12345678901234567890",
    "héllo", "it's", 'a"b', "'\"", "true", "\u200b", "7", "3", "+8", " 8 ", "08", "-0",
    "x" * 201, "²", "a\\b", "<b>", "１", "1_000", "8,", "None", "1e400",
    "999999999", "ful", "megatrn", "ada", "flsh", "selectiv", "lama-3-8b", "gpt3",
    "h10", "TPU v5", "V5P", "tpu-v5e", "float", "float33", "int4", "bool", "key<fry>",
    "float8_e4m3fn", "f32", "bfloat16, float32, int8", "rotery", "yes", "maybe", "0.9",
    "1", "1.", ".5", "2", "0.00001", "0.0", "00.90", "ring", "int8",
    *WITH_NAMES, "constructor", "__proto__", "up", "query, up", "out, out", "1.25",
)  # fmt: skip
DTYPES = ("float32", "bfloat16", "float16")


def _is_counted(model):
    try:
        check_counted(model)
    except NotUnderstood:
        return False
    return model.patch_size is None


COUNTED = [name for name, model in MODELS.items() if _is_counted(model)]


def random_state(rng):
    state = dict(DEFAULTS)
    kind = rng.random()
    if kind < 0.45:
        model = MODELS[by_name(rng, MODELS if kind < 0.04 else COUNTED)]
        state["model"] = model.name
        state["seq"] = rng.choice(["", "", "512", "1024", str(min(model.seq, 4096))])
    else:
        shapes = random_shapes(rng, "mlp" if kind > 0.9 else "custom")
        state |= shapes
        model, _ = read(state)
        if kind <= 0.9:
            state |= random_extras(random.Random(f"{kind}"))
    zero = rng.randint(0, 3)
    data, split = random_mesh(rng, model, zero)
    more = random_axes(random.Random(f"axes {kind}"), model, data)
    each = data * int(more.get("fsdp", 1)) * int(more.get("expert", 1))
    each *= int(more.get("gradient_accumulation", 1))
    state |= {
        "data": str(data),
        "model_axis": str(split),
        "batch": str(each * rng.choice([1, 1, 2, 3, 8, 50, 1000])),
        "zero": str(zero),
        "recompute": rng.choice([one for one in RECOMPUTE if one not in WITH_NAMES]),
        "attention": rng.choice(["plain", "flash"]),
        "sequence_parallel": rng.choice(["yes", "no"]),
        "param_dtype": rng.choice(DTYPES),
        "compute_dtype": rng.choice(DTYPES),
        "grad_dtype": rng.choice(["", "", *DTYPES, "bfloat16, float32"]),
        "optimizer": rng.choice(list(OPTIMIZERS)),
        "moment_dtype": rng.choice(["", "", *DTYPES, "int8"]),
        "mu_dtype": rng.choice([*[""] * 12, *DTYPES]),
        "master_weights": rng.choice(["yes", "no"]),
        "chip": by_name(rng, HARDWARE),
        "margin": rng.choice(["0.9", "0.9", "1", "0.5", "0.95", ".87", "1.0"]),
    }
    if state["optimizer"] in ("adafactor", "muon") and rng.random() < 0.9:
        state["moment_dtype"] = ""
    if state["optimizer"] not in WITH_MU_DTYPE and rng.random() < 0.85:
        state["mu_dtype"] = ""
    plain = not getattr(model, "gated", True) and model.kv_heads == model.heads
    if plain and rng.random() < 0.3:
        state |= {"counting": "megatron", "compute_dtype": "bfloat16"}
        state["recompute"] = rng.choice([*list(RECOMPUTE)[:2], *list(RECOMPUTE)[-1:]])
    state |= {k: v for k, v in more.items() if v}
    if "lora_rank" in more and rng.random() < 0.9:
        few = ("everything_saveable", "selective", "nothing_saveable")
        state["recompute"] = rng.choice(few)
        if state["optimizer"] == "muon":
            state["optimizer"] = "adam"
    words = {HARDWARE[state["chip"]].kind, state["optimizer"], state["counting"]}
    refused = words & {"tpu", "muon", "adafactor", "megatron"} or state["stage"] != "1"
    if refused and rng.random() < 0.95:
        state["offload_optimizer"] = "no"
    if getattr(model, "experts", None) and rng.random() < 0.9:
        few = ("everything_saveable", "selective", "nothing_saveable")
        state["recompute"] = more.get("recompute") or rng.choice(few)
        state["counting"] = "jax"
        state["optimizer"] = rng.choice(["adam", "lion", "adafactor", "adamw"])
        if state["optimizer"] == "adafactor":
            state |= {"moment_dtype": "", "mu_dtype": ""}
    if rng.random() < 0.17:
        for _ in range(rng.randint(1, 2)):
            state[rng.choice(list(state))] = rng.choice(BAD)
    return state


def by_name(rng, names):
    """One of the names, each as likely as the others.

    It takes one number of `rng`, however many names there are, and a new name changes
    only the states that it wins: a table that grows leaves the others as they were.
    """
    drawn = rng.random()
    return max(names, key=lambda name: random.Random(f"{drawn} {name}").random())


def random_mesh(rng, model, zero):
    """Sizes of data and model: most of them divide what they cut."""
    data, split = 2 ** rng.randint(0, 7), 2 ** rng.randint(0, 4)
    if rng.random() < 0.06:
        return rng.randint(1, 40), rng.randint(1, 12)
    heads = getattr(model, "kv_heads", model.d_ff)
    inside = getattr(model, "expert_d_ff", None) or model.d_ff
    split = math.gcd(split * rng.choice([1, 1, 3]), model.d_ff, heads, inside)
    return (math.gcd(data, model.d_model // split) if zero else data), split


def random_axes(rng, model, data):
    """Further axes in half of the states, and what goes with them: some of it not."""
    state, mlp = {}, not hasattr(model, "heads")
    if rng.random() < 0.4:
        wide = model.d_model // math.gcd(data, model.d_model)
        state["fsdp"] = str(math.gcd(2 ** rng.randint(0, 5), wide))
    if rng.random() < 0.3:
        state["gradient_accumulation"] = rng.choice(["2", "4", "8", "16"])
    experts = getattr(model, "experts", None)
    if (experts and rng.random() < 0.7) or rng.random() < 0.01:
        state["expert"] = str(math.gcd(2 ** rng.randint(0, 5), experts or 8))
    if (experts and rng.random() < 0.6) or rng.random() < 0.01:
        state["capacity_factor"] = rng.choice(["1", "1.3", "0.7", "2", "1.0", "4"])
    if rng.random() < 0.25 and not ((mlp or experts) and rng.random() < 0.9):
        state |= random_adapters(rng, model)
    state["offload_optimizer"] = rng.choice(["no", "no", "no", "yes"])
    kind = rng.random()
    if "lora_rank" in state and rng.random() < 0.9:
        kind = min(kind, 0.2) if kind < 0.5 else 1
    if kind < 0.2 and not (mlp and rng.random() < 0.8):
        state["context"] = rng.choice(["2", "4", "8"])
        if rng.random() < 0.5:
            state["attention"] = "ring"
    elif 0.2 < kind < 0.35 and not ((mlp or experts) and rng.random() < 0.9):
        state |= random_stages(rng, model)
    elif 0.35 < kind < 0.5 and not (experts and rng.random() < 0.9):
        state["recompute"] = rng.choice(WITH_NAMES)
        results = [*model.results] + ["scores"] * (rng.random() < 0.03)
        count = rng.choice([0, *[1, 1, 2, 3, 4] * 3])
        names = rng.sample(results, min(len(results), count))
        some = len(names)
        if state["recompute"] == WITH_NAMES[1] or rng.random() < 0.1:
            some = rng.randint(0, len(names))
        state["names_which_can_be_saved"] = ", ".join(names[:some])
        state["names_which_can_be_offloaded"] = ",".join(names[some:])
    return state


def random_adapters(rng, model):
    results = [
        name for name in model.results if name != "context" or rng.random() < 0.03
    ]
    names = rng.sample(results, rng.choice([0, *range(1, len(results) + 1)]))
    return {
        "lora_rank": rng.choice(["1", "4", "8", "16", "100", "128"]),
        "lora_targets": ", ".join(names),
        "base_dtype": rng.choice(["", "", "int8", *DTYPES]),
        "counting": "jax",
    }


def random_stages(rng, model):
    layers = [n for n in (2, 4, 7, 8, 3) if model.layers % n == 0]
    state = {"stage": str(rng.choice(layers or [2])), "counting": "jax"}
    if rng.random() < 0.95:
        state["recompute"] = "nothing_saveable"
    if rng.random() < 0.4:
        chunks = [
            n for n in (1, 2, 2, 3) if model.layers % (n * int(state["stage"])) == 0
        ]
        state["interleave"] = str(rng.choice(chunks or [2]))
        state["gradient_accumulation"] = rng.choice([state["stage"], "16"])
    return state


def random_shapes(rng, model):
    heads = rng.choice([1, 2, 4, 8, 12, 16, 24, 32, 64, 128])
    width = heads * rng.choice([16, 64, 96, 128])
    groups = [n for n in range(1, heads + 1) if heads % n == 0]
    return {
        "model": model,
        "layers": str(rng.choice([1, 2, 7, 24, 80, 126])),
        "d_model": str(width),
        "heads": str(heads),
        "kv_heads": rng.choice(["", str(rng.choice(groups))]),
        "d_ff": str(rng.choice([4, 4, 3, 2]) * width),
        "vocab": rng.choice(["", "1", "32000", "50257", "128256", "99999"]),
        "seq": rng.choice(["", "128", "1000", "2048", "131072"]),
        "head_dim": rng.choice(["", "", "", "64"]),
        "gated": rng.choice(["yes", "no"]),
        "tied": rng.choice(["yes", "no"]),
        "biases": rng.choice(["yes", "no"]),
        "positions": rng.choice(["learned", "rotary", "none"]),
        "norm": rng.choice(["layer", "rms"]),
    }


# Fields that are taken together, in a part of the states.
EXTRAS = (
    {"qkv_biases": "yes"}, {"qk_norm": "yes"}, {"post_norms": "yes"}, {"sinks": "yes"},
    {"window": "128"}, {"window": "4096", "global_every": "2"}, {"global_every": "3"},
    {"experts": "8", "experts_per_token": "2"},
    {"experts": "8"}, {"shared_experts": "1"}, {"moe_every": "2"},
    {"experts": "16", "experts_per_token": "4", "shared_experts": "2",
     "expert_d_ff": "96", "dense_layers": "1", "router_biases": "yes"},
    {"kv_lora_rank": "16", "qk_nope_head_dim": "8", "qk_rope_head_dim": "4",
     "v_head_dim": "8", "biases": "no", "kv_heads": "", "head_dim": ""},
    {"kv_lora_rank": "16", "qk_nope_head_dim": "8"}, {"v_head_dim": "9"},
    {"patch_size": "16", "tied": "no", "seq": "197"}, {"patch_size": "14"},
)  # fmt: skip


def random_extras(rng):
    return rng.choice(EXTRAS) if rng.random() < 0.12 else {}


@functools.cache
def cases(seed, count):
    """States without what has its default, and what the package answers."""
    # Each state has a seed of its own: one that changes leaves the others alone.
    rngs = (random.Random(f"{seed} {number}") for number in range(count))
    states = [dict(DEFAULTS), *map(random_state, rngs)]
    states += [DEFAULTS | row["state"] for row in measured()["rows"]]
    states += [DEFAULTS | {"model": name} for name in MODELS]
    return [
        (less(state), expected(state, with_changes=number % CHANGED == 0))
        for number, state in enumerate(states)
    ]


def less(state):
    """What differs from the defaults."""
    return {key: value for key, value in state.items() if value != DEFAULTS[key]}
