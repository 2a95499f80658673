"""Models by name: their shapes, and where these are written.

Counts that were published for comparison stand in the tests. Two rows of the GPT-3
paper do not fit together, and what was chosen instead stands beside them.

>>> MODELS["gpt3-175b"].parameters
174604259328
>>> MODELS["llama-3-8b"].kv_cache_bytes(1, seq=1)   # 2 * 32 * 8 * 128 * 2 bytes
131072
>>> MODELS["qwen3-30b-a3b"].parameters, MODELS["qwen3-30b-a3b"].active_parameters
(30532122624, 3353032704)
"""

from typing import Any

from .._core.registry import ByName
from .._errors import NotUnderstood
from .model import MLP, Transformer

_GPT2 = (
    "Radford et al. 2019, Language Models are Unsupervised Multitask Learners, "
    "Table 2; 1024 positions"
)
_GPT3 = "Brown et al. 2020, arXiv:2005.14165, Table 2.1"
_LLAMA_2 = "Touvron et al. 2023, arXiv:2307.09288; config.json of meta-llama/Llama-2"
_LLAMA_3 = "Grattafiori et al. 2024, arXiv:2407.21783, Table 3; config.json of "
_LLAMA_4 = (
    "config.json of meta-llama/Llama-4-{}, its text model; attention in chunks of "
    "8192, counted as a window, in three of four layers"
)
_MISTRAL = "Jiang et al. 2023, arXiv:2310.06825, Table 1"
_MIXTRAL = "Jiang et al. 2024, arXiv:2401.04088; config.json of mistralai/Mixtral-"
_QWEN_2_5 = "Qwen 2024, arXiv:2412.15115, Table 1; config.json of Qwen/Qwen2.5-"
_QWEN_3 = "Qwen 2025, arXiv:2505.09388, Tables 1 and 2; config.json of Qwen/Qwen3-"
_GEMMA_2 = "Gemma Team 2024, arXiv:2408.00118, Tables 1 and 2; config.json of google/"
_GEMMA_3 = "Gemma Team 2025, arXiv:2503.19786, Table 1; config.json of google/{}-pt{}"
_DEEPSEEK = (
    "DeepSeek-AI 2024, arXiv:2412.19437, section 4.2; config.json of "
    "deepseek-ai/DeepSeek-V3; without the module that predicts a second token"
)
_GPT_OSS = "OpenAI 2025, arXiv:2508.10925, Table 1; config.json of openai/gpt-oss-"
_VIT = (
    "Dosovitskiy et al. 2021, arXiv:2010.11929, Table 1; images of 224 pixels, the "
    "1000 classes of ImageNet"
)


def _gpt2(name: str, layers: int, d_model: int, heads: int) -> Transformer:
    return Transformer(layers, d_model, heads, seq=1024, name=name, source=_GPT2)


def _gpt3(
    name: str, layers: int, d_model: int, heads: int, note: str = ""
) -> Transformer:
    source = f"{_GPT3}; {note}" if note else _GPT3
    return Transformer(layers, d_model, heads, name=name, source=source)


def _llama(
    name: str,
    source: str,
    layers: int,
    d_model: int,
    heads: int,
    kv_heads: int,
    d_ff: int,
    vocab: int,
    seq: int,
    **fields: Any,
) -> Transformer:
    """A decoder like Llama, and what it has besides."""
    usual: dict[str, Any] = {
        **{"gated": True, "tied": False, "biases": False},
        **{"positions": "rotary", "norm": "rms"},
    }
    shapes = (layers, d_model, heads, kv_heads, d_ff, vocab, seq)
    return Transformer(*shapes, **(usual | fields), name=name, source=source)


def _qwen2_5(size: str, *shapes: int, tied: bool = False) -> Transformer:
    source = f"{_QWEN_2_5}{size}"
    name = f"qwen2.5-{size.lower()}"
    return _llama(name, source, *shapes, tied=tied, qkv_biases=True)


def _qwen3(size: str, *shapes: int, **fields: Any) -> Transformer:
    name, source = f"qwen3-{size.lower()}", f"{_QWEN_3}{size}"
    sizes = (*shapes, 151936, 40960)
    return _llama(name, source, *sizes, head_dim=128, qk_norm=True, **fields)


def _gemma2(name: str, *shapes: int, head_dim: int) -> Transformer:
    return _llama(
        name,
        f"{_GEMMA_2}{name}",
        *(*shapes, 256000, 8192),
        head_dim=head_dim,
        tied=True,
        post_norms=True,
        window=4096,
        global_every=2,
    )


def _gemma3(
    name: str, *shapes: int, head_dim: int = 256, window: int = 1024
) -> Transformer:
    note = "" if name == "gemma-3-1b" else ", its text model"
    return _llama(
        name,
        _GEMMA_3.format(name, note),
        *shapes,
        head_dim=head_dim,
        tied=True,
        post_norms=True,
        qk_norm=True,
        window=window,
        global_every=6,
    )


def _llama4(name: str, repository: str, seq: int, **fields: int) -> Transformer:
    return _llama(
        name,
        _LLAMA_4.format(repository),
        *(48, 5120, 40, 8, 16384, 202048, seq),
        window=8192,
        global_every=4,
        experts_per_token=1,
        shared_experts=1,
        expert_d_ff=8192,
        **fields,
    )


def _gpt_oss(size: str, layers: int, experts: int) -> Transformer:
    return _llama(
        f"gpt-oss-{size}",
        f"{_GPT_OSS}{size}",
        *(layers, 2880, 64, 8, 2880, 201088, 131072),
        head_dim=64,
        biases=True,
        sinks=True,
        window=128,
        global_every=2,
        experts=experts,
        experts_per_token=4,
    )


def _vit(name: str, layers: int, d_model: int, heads: int) -> Transformer:
    return Transformer(
        *(layers, d_model, heads),
        vocab=1000,
        seq=(224 // 16) ** 2 + 1,
        tied=False,
        patch_size=16,
        name=name,
        source=_VIT,
    )


# Family → its models, as the memory calculator groups them.
_FAMILIES = {
    "GPT-2 and GPT-3": (
        _gpt2("gpt2-small", 12, 768, 12),
        _gpt2("gpt2-medium", 24, 1024, 16),
        _gpt2("gpt2-large", 36, 1280, 20),
        _gpt2("gpt2-xl", 48, 1600, 25),
        _gpt3("gpt3-small", 12, 768, 12),
        _gpt3("gpt3-medium", 24, 1024, 16),
        _gpt3("gpt3-large", 24, 1536, 16),
        _gpt3(
            "gpt3-xl",
            24,
            2048,
            16,
            "which says 24 heads of 128 for a width of 2048; 16 of 128 give its 1.3 B",
        ),
        _gpt3("gpt3-2.7b", 32, 2560, 32),
        _gpt3("gpt3-6.7b", 32, 4096, 32),
        _gpt3(
            "gpt3-13b",
            40,
            5120,
            40,
            "which says a width of 5140 for 40 heads of 128; 5120 gives its 12.85 B",
        ),
        _gpt3("gpt3-175b", 96, 12288, 96),
    ),
    "gpt-oss": (
        _gpt_oss("20b", layers=24, experts=32),
        _gpt_oss("120b", layers=36, experts=128),
    ),
    "Llama 2": (
        _llama("llama-2-7b", f"{_LLAMA_2}-7b-hf", 32, 4096, 32, 32, 11008, 32000, 4096),
        _llama(
            "llama-2-13b", f"{_LLAMA_2}-13b-hf", 40, 5120, 40, 40, 13824, 32000, 4096
        ),
        _llama(
            "llama-2-70b", f"{_LLAMA_2}-70b-hf", 80, 8192, 64, 8, 28672, 32000, 4096
        ),
    ),
    "Llama 3": (
        _llama(
            "llama-3-8b",
            f"{_LLAMA_3}meta-llama/Meta-Llama-3-8B",
            *(32, 4096, 32, 8, 14336, 128256, 8192),
        ),
        _llama(
            "llama-3-70b",
            f"{_LLAMA_3}meta-llama/Meta-Llama-3-70B",
            *(80, 8192, 64, 8, 28672, 128256, 8192),
        ),
        _llama(
            "llama-3.1-8b",
            f"{_LLAMA_3}meta-llama/Llama-3.1-8B",
            *(32, 4096, 32, 8, 14336, 128256, 131072),
        ),
        _llama(
            "llama-3.1-70b",
            f"{_LLAMA_3}meta-llama/Llama-3.1-70B",
            *(80, 8192, 64, 8, 28672, 128256, 131072),
        ),
        _llama(
            "llama-3.1-405b",
            f"{_LLAMA_3}meta-llama/Llama-3.1-405B",
            *(126, 16384, 128, 8, 53248, 128256, 131072),
        ),
        _llama(
            "llama-3.2-1b",
            "config.json of meta-llama/Llama-3.2-1B",
            *(16, 2048, 32, 8, 8192, 128256, 131072),
            tied=True,
        ),
        _llama(
            "llama-3.2-3b",
            "config.json of meta-llama/Llama-3.2-3B",
            *(28, 3072, 24, 8, 8192, 128256, 131072),
            tied=True,
        ),
    ),
    "Llama 4": (
        _llama4("llama-4-scout", "Scout-17B-16E", 10485760, experts=16),
        _llama4(
            "llama-4-maverick", "Maverick-17B-128E", 1048576, experts=128, moe_every=2
        ),
    ),
    "Mistral and Mixtral": (
        _llama(
            "mistral-7b",
            _MISTRAL,
            *(32, 4096, 32, 8, 14336, 32000, 8192),
            window=4096,
        ),
        _llama(
            "mixtral-8x7b",
            f"{_MIXTRAL}8x7B-v0.1",
            *(32, 4096, 32, 8, 14336, 32000, 32768),
            experts=8,
            experts_per_token=2,
        ),
        _llama(
            "mixtral-8x22b",
            f"{_MIXTRAL}8x22B-v0.1",
            *(56, 6144, 48, 8, 16384, 32000, 65536),
            experts=8,
            experts_per_token=2,
        ),
    ),
    "Qwen 2.5": (
        _qwen2_5("0.5B", 24, 896, 14, 2, 4864, 151936, 32768, tied=True),
        _qwen2_5("1.5B", 28, 1536, 12, 2, 8960, 151936, 32768, tied=True),
        _qwen2_5("3B", 36, 2048, 16, 2, 11008, 151936, 32768, tied=True),
        _qwen2_5("7B", 28, 3584, 28, 4, 18944, 152064, 131072),
        _qwen2_5("14B", 48, 5120, 40, 8, 13824, 152064, 131072),
        _qwen2_5("32B", 64, 5120, 40, 8, 27648, 152064, 131072),
        _qwen2_5("72B", 80, 8192, 64, 8, 29568, 152064, 131072),
    ),
    "Qwen 3": (
        _qwen3("0.6B", 28, 1024, 16, 8, 3072, tied=True),
        _qwen3("1.7B", 28, 2048, 16, 8, 6144, tied=True),
        _qwen3("4B", 36, 2560, 32, 8, 9728, tied=True),
        _qwen3("8B", 36, 4096, 32, 8, 12288),
        _qwen3("14B", 40, 5120, 40, 8, 17408),
        _qwen3("32B", 64, 5120, 64, 8, 25600),
        _qwen3(
            "30B-A3B",
            *(48, 2048, 32, 4, 6144),
            experts=128,
            experts_per_token=8,
            expert_d_ff=768,
        ),
        _qwen3(
            "235B-A22B",
            *(94, 4096, 64, 4, 12288),
            experts=128,
            experts_per_token=8,
            expert_d_ff=1536,
        ),
    ),
    "Gemma 2": (
        _gemma2("gemma-2-2b", 26, 2304, 8, 4, 9216, head_dim=256),
        _gemma2("gemma-2-9b", 42, 3584, 16, 8, 14336, head_dim=256),
        _gemma2("gemma-2-27b", 46, 4608, 32, 16, 36864, head_dim=128),
    ),
    "Gemma 3": (
        _gemma3("gemma-3-1b", 26, 1152, 4, 1, 6912, 262144, 32768, window=512),
        _gemma3("gemma-3-4b", 34, 2560, 8, 4, 10240, 262208, 131072),
        _gemma3("gemma-3-12b", 48, 3840, 16, 8, 15360, 262208, 131072),
        _gemma3("gemma-3-27b", 62, 5376, 32, 16, 21504, 262208, 131072, head_dim=128),
    ),
    "DeepSeek": (
        _llama(
            "deepseek-v3",
            _DEEPSEEK,
            *(61, 7168, 128, 128, 18432, 129280, 163840),
            q_lora_rank=1536,
            kv_lora_rank=512,
            qk_nope_head_dim=128,
            qk_rope_head_dim=64,
            v_head_dim=128,
            experts=256,
            experts_per_token=8,
            shared_experts=1,
            expert_d_ff=2048,
            dense_layers=3,
            router_biases=True,
        ),
    ),
    "Vision transformers": (
        _vit("vit-b-16", 12, 768, 12),
        _vit("vit-l-16", 24, 1024, 16),
    ),
}

# Family → the names of its models.
FAMILIES = {
    family: tuple(model.name for model in models)
    for family, models in _FAMILIES.items()
}
# Name → Transformer.
MODELS = ByName(
    "model",
    {model.name: model for models in _FAMILIES.values() for model in models},
)


def model_of(model: object) -> Transformer | MLP:
    """The model that is given, or the one of a name.

    >>> model_of("gpt3-small").layers
    12

    Raises:
        NotUnderstood: it is neither a model nor a name in MODELS.
    """
    if isinstance(model, str):
        return MODELS[model]
    if not isinstance(model, Transformer | MLP):
        raise NotUnderstood(
            f"model={model!r} is not a model; give a Transformer, an MLP, or a name in "
            "MODELS, such as 'llama-3-8b'."
        )
    return model
