"""The families of MODELS, written from their config.json: parameters in plain JAX.

`config(name)` has the words of a published config.json, `init(config, key)` makes the
parameters of such a model, and `transformer(config)` says the same as a `Transformer`.
Nothing here is taken from the package but that last name.
"""

import jax
import jax.numpy as jnp

from spmd_helpers._training.model import Transformer

_LLAMA = {"architecture": "Llama", "tie_word_embeddings": False}
_GPT2 = {"architecture": "GPT2", "vocab_size": 50257}
_QWEN2 = {"architecture": "Qwen2", "vocab_size": 151936, "tie_word_embeddings": True}
_QWEN3 = {
    **{"architecture": "Qwen3", "vocab_size": 151936, "tie_word_embeddings": False},
    **{"head_dim": 128, "max_position_embeddings": 40960},
}
_GEMMA2 = {
    **{"architecture": "Gemma2", "vocab_size": 256000, "tie_word_embeddings": True},
    **{"head_dim": 256, "max_position_embeddings": 8192},
    **{"sliding_window": 4096, "sliding_window_pattern": 2},
}
_GEMMA3 = {
    **{"architecture": "Gemma3", "vocab_size": 262208, "tie_word_embeddings": True},
    **{"head_dim": 256, "max_position_embeddings": 131072},
    **{"sliding_window": 1024, "sliding_window_pattern": 6},
}
_LLAMA4 = {
    **{"architecture": "Llama4", "vocab_size": 202048, "tie_word_embeddings": False},
    **{"head_dim": 128, "intermediate_size_mlp": 16384, "num_experts_per_tok": 1},
    **{"attention_chunk_size": 8192, "no_rope_layer_interval": 4},
}
_MIXTRAL = {
    **{"architecture": "Mixtral", "vocab_size": 32000, "tie_word_embeddings": False},
    **{"num_local_experts": 8, "num_experts_per_tok": 2},
}
_GPT_OSS = {
    **{"architecture": "GptOss", "vocab_size": 201088, "tie_word_embeddings": False},
    **{"head_dim": 64, "max_position_embeddings": 131072, "num_experts_per_tok": 4},
    **{"sliding_window": 128, "sliding_window_pattern": 2},
}
_DEEPSEEK = {
    **{"architecture": "DeepseekV3", "tie_word_embeddings": False},
    **{"vocab_size": 129280, "max_position_embeddings": 163840},
    **{"q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128},
    **{"qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 256},
    **{"n_shared_experts": 1, "num_experts_per_tok": 8},
    **{"moe_intermediate_size": 2048, "first_k_dense_replace": 3},
}
_VIT = {"architecture": "ViT", "image_size": 224, "patch_size": 16, "num_labels": 1000}

_SIZES = (
    *("num_hidden_layers", "hidden_size", "num_attention_heads"),
    *("num_key_value_heads", "intermediate_size"),
)
# What differs between the models of a family: the five sizes above, and more by name.
_ROWS = {
    "gpt2-small": (_GPT2, (12, 768, 12, 12, 3072), {"max_position_embeddings": 1024}),
    "gpt2-xl": (_GPT2, (48, 1600, 25, 25, 6400), {"max_position_embeddings": 1024}),
    "gpt3-175b": (
        *(_GPT2, (96, 12288, 96, 96, 49152)),
        {"max_position_embeddings": 2048},
    ),
    "llama-2-7b": (
        *(_LLAMA, (32, 4096, 32, 32, 11008)),
        {"vocab_size": 32000, "max_position_embeddings": 4096},
    ),
    "llama-2-70b": (
        *(_LLAMA, (80, 8192, 64, 8, 28672)),
        {"vocab_size": 32000, "max_position_embeddings": 4096},
    ),
    "llama-3.1-8b": (
        *(_LLAMA, (32, 4096, 32, 8, 14336)),
        {"vocab_size": 128256, "max_position_embeddings": 131072},
    ),
    "llama-3.1-70b": (
        *(_LLAMA, (80, 8192, 64, 8, 28672)),
        {"vocab_size": 128256, "max_position_embeddings": 131072},
    ),
    "llama-3.1-405b": (
        *(_LLAMA, (126, 16384, 128, 8, 53248)),
        {"vocab_size": 128256, "max_position_embeddings": 131072},
    ),
    "llama-3.2-1b": (
        *(_LLAMA | {"tie_word_embeddings": True}, (16, 2048, 32, 8, 8192)),
        {"vocab_size": 128256, "max_position_embeddings": 131072},
    ),
    "mistral-7b": (
        *(_LLAMA, (32, 4096, 32, 8, 14336)),
        {"vocab_size": 32000, "max_position_embeddings": 8192, "sliding_window": 4096},
    ),
    "llama-4-scout": (
        *(_LLAMA4, (48, 5120, 40, 8, 8192)),
        {
            **{"num_local_experts": 16, "interleave_moe_layer_step": 1},
            "max_position_embeddings": 10485760,
        },
    ),
    "llama-4-maverick": (
        *(_LLAMA4, (48, 5120, 40, 8, 8192)),
        {
            **{"num_local_experts": 128, "interleave_moe_layer_step": 2},
            "max_position_embeddings": 1048576,
        },
    ),
    "mixtral-8x7b": (
        *(_MIXTRAL, (32, 4096, 32, 8, 14336)),
        {"max_position_embeddings": 32768},
    ),
    "mixtral-8x22b": (
        *(_MIXTRAL, (56, 6144, 48, 8, 16384)),
        {"max_position_embeddings": 65536},
    ),
    "qwen2.5-0.5b": (
        *(_QWEN2, (24, 896, 14, 2, 4864)),
        {"max_position_embeddings": 32768},
    ),
    "qwen2.5-1.5b": (
        *(_QWEN2, (28, 1536, 12, 2, 8960)),
        {"max_position_embeddings": 32768},
    ),
    "qwen2.5-3b": (
        *(_QWEN2, (36, 2048, 16, 2, 11008)),
        {"max_position_embeddings": 32768},
    ),
    **{
        name: (
            *(_QWEN2 | {"tie_word_embeddings": False}, sizes),
            {"vocab_size": 152064, "max_position_embeddings": 131072},
        )
        for name, sizes in {
            "qwen2.5-7b": (28, 3584, 28, 4, 18944),
            "qwen2.5-14b": (48, 5120, 40, 8, 13824),
            "qwen2.5-32b": (64, 5120, 40, 8, 27648),
            "qwen2.5-72b": (80, 8192, 64, 8, 29568),
        }.items()
    },
    "qwen3-0.6b": (
        *(_QWEN3, (28, 1024, 16, 8, 3072)),
        {"tie_word_embeddings": True},
    ),
    "qwen3-1.7b": (
        *(_QWEN3, (28, 2048, 16, 8, 6144)),
        {"tie_word_embeddings": True},
    ),
    "qwen3-4b": (
        *(_QWEN3, (36, 2560, 32, 8, 9728)),
        {"tie_word_embeddings": True},
    ),
    "qwen3-8b": (_QWEN3, (36, 4096, 32, 8, 12288), {}),
    "qwen3-14b": (_QWEN3, (40, 5120, 40, 8, 17408), {}),
    "qwen3-32b": (_QWEN3, (64, 5120, 64, 8, 25600), {}),
    "qwen3-30b-a3b": (
        *(_QWEN3, (48, 2048, 32, 4, 6144)),
        {
            **{"num_experts": 128, "num_experts_per_tok": 8},
            "moe_intermediate_size": 768,
        },
    ),
    "qwen3-235b-a22b": (
        *(_QWEN3, (94, 4096, 64, 4, 12288)),
        {
            **{"num_experts": 128, "num_experts_per_tok": 8},
            "moe_intermediate_size": 1536,
        },
    ),
    "gemma-2-2b": (_GEMMA2, (26, 2304, 8, 4, 9216), {}),
    "gemma-2-9b": (_GEMMA2, (42, 3584, 16, 8, 14336), {}),
    "gemma-2-27b": (_GEMMA2, (46, 4608, 32, 16, 36864), {"head_dim": 128}),
    "gemma-3-1b": (
        *(_GEMMA3, (26, 1152, 4, 1, 6912)),
        {
            **{"vocab_size": 262144, "max_position_embeddings": 32768},
            "sliding_window": 512,
        },
    ),
    "gemma-3-4b": (_GEMMA3, (34, 2560, 8, 4, 10240), {}),
    "gemma-3-12b": (_GEMMA3, (48, 3840, 16, 8, 15360), {}),
    "gemma-3-27b": (_GEMMA3, (62, 5376, 32, 16, 21504), {"head_dim": 128}),
    "gpt-oss-20b": (_GPT_OSS, (24, 2880, 64, 8, 2880), {"num_local_experts": 32}),
    "gpt-oss-120b": (_GPT_OSS, (36, 2880, 64, 8, 2880), {"num_local_experts": 128}),
    "deepseek-v3": (_DEEPSEEK, (61, 7168, 128, 128, 18432), {}),
    "vit-b-16": (_VIT, (12, 768, 12, 12, 3072), {}),
    "vit-l-16": (_VIT, (24, 1024, 16, 16, 4096), {}),
}
NAMES = tuple(_ROWS)


def config(name):
    """The fields of a model's config.json."""
    family, sizes, rest = _ROWS[name]
    return family | dict(zip(_SIZES, sizes, strict=True)) | rest


def small(name, number):
    """The same family in a few layers of small, unequal widths; several by number."""
    full = config(name)
    layers = {"GPT2": 1, "ViT": 1}.get(full["architecture"], 6) + 2 * number
    heads = (2 + number) * 2
    width = heads * 8 if full["architecture"] in ("GPT2", "ViT") else 40 + 8 * number
    change = {
        "num_hidden_layers": layers,
        "hidden_size": width,
        "num_attention_heads": heads,
        "num_key_value_heads": heads if _is_plain(full) else 2,
        "intermediate_size": 4 * width if _is_plain(full) else 56 + number,
        "head_dim": 6,
        "vocab_size": 90 + number,
        "max_position_embeddings": 33,
        "intermediate_size_mlp": 72 + number,
        "num_local_experts": 4 + number,
        "num_experts": 4 + number,
        "n_routed_experts": 4 + number,
        "n_shared_experts": 1 + number,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 20 + number,
        "first_k_dense_replace": 1 + number,
        "q_lora_rank": 11 + number,
        "kv_lora_rank": 7 + number,
        "qk_nope_head_dim": 5,
        "qk_rope_head_dim": 4,
        "v_head_dim": 3 + number,
        "sliding_window": 8,
        "attention_chunk_size": 8,
        "image_size": 8 * (2 + number),
        "patch_size": 8,
        "num_labels": 10 + number,
    }
    return full | {key: value for key, value in change.items() if key in full}


def _is_plain(config):
    """Whether the heads of keys and values, and the inner width, are the usual ones."""
    return config["architecture"] in ("GPT2", "ViT", "DeepseekV3")


def init(config, key):
    """All parameters; layers of one kind are stacked."""
    kinds = {}
    for layer in range(config["num_hidden_layers"]):
        kinds.setdefault(_has_experts(config, layer), []).append(layer)
    layers = {
        str(experts): jax.vmap(lambda k, experts=experts: _layer(config, experts, k))(
            jax.random.split(key, len(numbers))
        )
        for experts, numbers in kinds.items()
    }
    return {"layers": layers, "norm": _norm(config), **_ends(config, key)}


def _has_experts(config, layer):
    kind = config["architecture"]
    if kind == "Llama4":
        return layer % config["interleave_moe_layer_step"] == (
            config["interleave_moe_layer_step"] - 1
        )
    if kind == "DeepseekV3":
        return layer >= config["first_k_dense_replace"]
    return kind in ("Mixtral", "GptOss") or "num_experts" in config


def _ends(config, key):
    wide = config["hidden_size"]
    if config["architecture"] == "ViT":
        side = config["image_size"] // config["patch_size"]
        return {
            "patch_embedding": _linear(3 * config["patch_size"] ** 2, wide, key, True),
            "cls_token": jnp.zeros((1, 1, wide)),
            "position_embeddings": jnp.zeros((1, side * side + 1, wide)),
            "classifier": _linear(wide, config["num_labels"], key, True),
        }
    ends = {"embed_tokens": jax.random.normal(key, (config["vocab_size"], wide))}
    if config["architecture"] == "GPT2":
        ends["wpe"] = jnp.zeros((config["max_position_embeddings"], wide))
    elif not config["tie_word_embeddings"]:
        ends["lm_head"] = _linear(wide, config["vocab_size"], key)
    return ends


def _linear(rows, columns, key, bias=False):
    kernel = jax.random.normal(key, (rows, columns)) / rows**0.5
    return {"kernel": kernel, **({"bias": jnp.zeros(columns)} if bias else {})}


def _norm(config, width=None):
    scale = jnp.ones(width or config["hidden_size"])
    if config["architecture"] in ("GPT2", "ViT"):
        return {"scale": scale, "bias": jnp.zeros_like(scale)}
    return {"scale": scale}


def _layer(config, experts, key):
    kind = config["architecture"]
    names = ["input_layernorm", "post_attention_layernorm"]
    if kind in ("Gemma2", "Gemma3"):
        names += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
    attention = _mla if kind == "DeepseekV3" else _attention
    mlp = _experts if experts else _dense
    return {
        **{name: _norm(config) for name in names},
        "self_attn": attention(config, key),
        "mlp": mlp(config, key),
    }


def _attention(config, key):
    kind, wide = config["architecture"], config["hidden_size"]
    heads, groups = config["num_attention_heads"], config["num_key_value_heads"]
    head_dim = config.get("head_dim", wide // heads)
    all_biases = kind in ("GPT2", "ViT", "GptOss")
    qkv_biases = all_biases or kind == "Qwen2"
    parts = {
        "q_proj": _linear(wide, heads * head_dim, key, qkv_biases),
        "k_proj": _linear(wide, groups * head_dim, key, qkv_biases),
        "v_proj": _linear(wide, groups * head_dim, key, qkv_biases),
        "o_proj": _linear(heads * head_dim, wide, key, all_biases),
    }
    if kind in ("Qwen3", "Gemma3"):
        parts |= {name: _norm(config, head_dim) for name in ("q_norm", "k_norm")}
    return parts | ({"sinks": jnp.zeros(heads)} if kind == "GptOss" else {})


def _mla(config, key):
    wide, heads = config["hidden_size"], config["num_attention_heads"]
    q_rank, kv_rank = config["q_lora_rank"], config["kv_lora_rank"]
    nope, rope = config["qk_nope_head_dim"], config["qk_rope_head_dim"]
    v = config["v_head_dim"]
    return {
        "q_a_proj": _linear(wide, q_rank, key),
        "q_a_layernorm": _norm(config, q_rank),
        "q_b_proj": _linear(q_rank, heads * (nope + rope), key),
        "kv_a_proj_with_mqa": _linear(wide, kv_rank + rope, key),
        "kv_a_layernorm": _norm(config, kv_rank),
        "kv_b_proj": _linear(kv_rank, heads * (nope + v), key),
        "o_proj": _linear(heads * v, wide, key),
    }


def _dense(config, key, width=None):
    kind, wide = config["architecture"], config["hidden_size"]
    width = width or config.get("intermediate_size_mlp", config["intermediate_size"])
    if kind in ("GPT2", "ViT"):
        fc = _linear(wide, width, key, True), _linear(width, wide, key, True)
        return dict(zip(("fc1", "fc2"), fc, strict=True))
    up = {name: _linear(wide, width, key) for name in ("gate_proj", "up_proj")}
    return {**up, "down_proj": _linear(width, wide, key)}


def _experts(config, key):
    kind, wide = config["architecture"], config["hidden_size"]
    width = config.get("moe_intermediate_size", config["intermediate_size"])
    names = ("n_routed_experts", "num_experts", "num_local_experts")
    count = next(config[name] for name in names if name in config)
    biases = kind == "GptOss"
    routed = {
        "gate_up_proj": jax.random.normal(key, (count, wide, 2 * width)),
        "down_proj": jax.random.normal(key, (count, width, wide)),
    }
    if biases:
        routed["gate_up_proj_bias"] = jnp.zeros((count, 2 * width))
        routed["down_proj_bias"] = jnp.zeros((count, wide))
    parts = {"router": _linear(wide, count, key, biases), "experts": routed}
    if kind == "DeepseekV3":
        parts["e_score_correction_bias"] = jnp.zeros(count)
    shared = {"DeepseekV3": config.get("n_shared_experts"), "Llama4": 1}.get(kind)
    if shared:
        parts["shared_experts"] = _dense(config, key, shared * width)
    return parts


def transformer(config, name=""):
    """The same model as the package has it."""
    kind, wide = config["architecture"], config["hidden_size"]
    fields = dict(
        zip(("layers", "d_model", "heads"), map(config.get, _SIZES), strict=False)
    )
    if kind == "ViT":
        patches = (config["image_size"] // config["patch_size"]) ** 2
        fields |= {"patch_size": config["patch_size"], "tied": False}
        fields |= {"vocab": config["num_labels"], "seq": patches + 1}
        return Transformer(**fields, name=name)
    fields |= {"vocab": config["vocab_size"], "seq": config["max_position_embeddings"]}
    if kind == "GPT2":
        return Transformer(**fields, name=name)
    fields |= {
        **{"gated": True, "tied": config["tie_word_embeddings"]},
        **{"biases": kind == "GptOss", "positions": "rotary", "norm": "rms"},
        "d_ff": config.get("intermediate_size_mlp", config["intermediate_size"]),
        "qkv_biases": kind == "Qwen2",
        "qk_norm": kind in ("Qwen3", "Gemma3"),
        "post_norms": kind in ("Gemma2", "Gemma3"),
        "sinks": kind == "GptOss",
        "window": config.get("attention_chunk_size", config.get("sliding_window")),
        "global_every": config.get(
            "no_rope_layer_interval", config.get("sliding_window_pattern")
        ),
    }
    if kind == "DeepseekV3":
        keys = ("q_lora_rank", "kv_lora_rank", "v_head_dim")
        keys += ("qk_nope_head_dim", "qk_rope_head_dim")
        fields |= {key: config[key] for key in keys}
        fields |= {
            "experts": config["n_routed_experts"],
            "shared_experts": config["n_shared_experts"],
            "expert_d_ff": config["moe_intermediate_size"],
            "dense_layers": config["first_k_dense_replace"],
            "router_biases": True,
        }
    else:
        fields["kv_heads"] = config["num_key_value_heads"]
        fields["head_dim"] = config.get("head_dim", wide // fields["heads"])
    if kind == "Llama4":
        fields |= {
            "shared_experts": 1,
            "expert_d_ff": config["intermediate_size"],
            "moe_every": config["interleave_moe_layer_step"],
        }
    if "num_experts" in config:
        fields["expert_d_ff"] = config["moe_intermediate_size"]
    for key in ("num_local_experts", "num_experts"):
        if key in config:
            fields["experts"] = config[key]
    if "num_experts_per_tok" in config:
        fields["experts_per_token"] = config["num_experts_per_tok"]
    return Transformer(**fields, name=name)
