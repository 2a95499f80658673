"""Models by name: their shapes, and where these are written.

Counts that were published for comparison stand in the tests. Two rows of the GPT-3
paper do not fit together, and what was chosen instead stands beside them.

>>> MODELS["gpt3-175b"].parameters
174604259328
>>> MODELS["llama-3-8b"].kv_cache_bytes(1, seq=1)   # 2 * 32 * 8 * 128 * 2 bytes
131072
"""

from .._core.registry import ByName
from .model import Transformer

_GPT2 = (
    "Radford et al. 2019, Language Models are Unsupervised Multitask Learners, "
    "Table 2; 1024 positions"
)
_GPT3 = "Brown et al. 2020, arXiv:2005.14165, Table 2.1"
_LLAMA_2 = "Touvron et al. 2023, arXiv:2307.09288; config.json of meta-llama/Llama-2"
_LLAMA_3 = "Grattafiori et al. 2024, arXiv:2407.21783, Table 3; config.json of "
_MISTRAL = "Jiang et al. 2023, arXiv:2310.06825, Table 1"


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
    tied: bool = False,
) -> Transformer:
    shapes = (layers, d_model, heads, kv_heads, d_ff, vocab, seq)
    return Transformer(
        *shapes,
        gated=True,
        tied=tied,
        biases=False,
        positions="rotary",
        norm="rms",
        name=name,
        source=source,
    )


_ALL = (
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
    _llama("llama-2-7b", f"{_LLAMA_2}-7b-hf", 32, 4096, 32, 32, 11008, 32000, 4096),
    _llama("llama-2-13b", f"{_LLAMA_2}-13b-hf", 40, 5120, 40, 40, 13824, 32000, 4096),
    _llama("llama-2-70b", f"{_LLAMA_2}-70b-hf", 80, 8192, 64, 8, 28672, 32000, 4096),
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
    _llama("mistral-7b", _MISTRAL, 32, 4096, 32, 8, 14336, 32000, 8192),
)

# Name → Transformer.
MODELS = ByName("model", {model.name: model for model in _ALL})
