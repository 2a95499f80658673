"""The models that are served: the arguments of one call of `inference_memory` each.

`serving.py` makes their two programs, `serve.py` has them compiled and run.
"""

from dataclasses import dataclass, replace

from spmd_helpers._training.model import Transformer
from spmd_helpers._training.models import MODELS


@dataclass(frozen=True)
class Served:
    """One model as it is served, and for what it is compiled."""

    name: str
    model: Transformer
    batch: int
    seq: int
    topology: str
    data: int = 1
    model_axis: int = 1
    prompt: int | None = None
    prefill_batch: int | None = None
    param_dtype: str = "bfloat16"
    compute_dtype: str = "bfloat16"
    cache_dtype: str | None = None
    attention: str = "flash"
    page_size: int | None = None

    @property
    def axes(self):
        """The axes of the mesh."""
        return {"data": self.data, "model": self.model_axis}

    @property
    def prompts(self):
        """Sequences that are read at once, and the tokens of each."""
        return self.prefill_batch or self.data, self.prompt or self.seq

    @property
    def keys(self):
        """What shards the heads of keys and values: the axis, or nothing."""
        return None if self.model.kv_heads % self.model_axis else "model"

    @property
    def period(self):
        """After so many layers the pattern of windows begins again."""
        return self.model.global_every or 1

    def is_global(self, position):
        """Whether the layer at this place of a period attends to all tokens."""
        if self.model.window is None:
            return True
        return self.model.global_every is not None and position == self.period - 1


_LLAMA = {
    **{"kv_heads": 4, "d_ff": 5632, "vocab": 32000, "seq": 16384, "gated": True},
    **{"tied": False, "biases": False, "positions": "rotary", "norm": "rms"},
}
_LATENT = {
    **{"kv_lora_rank": 512, "q_lora_rank": 768, "qk_nope_head_dim": 128},
    **{"qk_rope_head_dim": 64, "v_head_dim": 128, "kv_heads": None},
}
LLAMA = Transformer(8, 2048, 16, **_LLAMA)
GPT = Transformer(8, 2048, 16, vocab=50304, seq=4096)
GEMMA = Transformer(
    *(12, 2048, 16),
    **(_LLAMA | {"window": 1024, "global_every": 6, "qk_norm": True, "tied": True}),
    post_norms=True,
)
WINDOW = Transformer(8, 2048, 16, **_LLAMA, window=1024)
LATENT = Transformer(8, 2048, 16, **(_LLAMA | _LATENT))
OWN = {
    **{"llama": LLAMA, "gpt": GPT, "gemma": GEMMA, "window": WINDOW},
    "latent": LATENT,
}
PLAIN, INT8, F32 = (
    {"attention": "plain"},
    {"param_dtype": "int8"},
    {"param_dtype": "float32"},
)


def _by_name(title, topology, *rows):
    """name -> Served; the first word of a name is its model."""
    programs = {}
    for name, batch, seq, (data, split), *how in rows:
        full = f"{title}: {name}"
        first = name.split()[0]
        model = OWN.get(first) or MODELS[first]
        one = Served(full, model, batch, seq, topology, data, split)
        for part in how:
            one = replace(one, **part)
        programs[full] = one
    return programs


FOR_TPU = _by_name(
    "tpu",
    "v5e:2x4",
    ("llama", 64, 4096, (2, 4)),
    ("llama plain", 32, 2048, (2, 4), PLAIN),
    ("llama data", 64, 2048, (8, 1), {"prefill_batch": 32}),
    ("llama int8", 32, 4096, (2, 4), INT8),
    ("llama float32", 32, 4096, (2, 4), F32),
    ("llama wide", 16, 4096, (1, 8), {"prefill_batch": 4}),
    ("gpt", 32, 4096, (2, 4), {"prompt": 2048}),
    ("gemma", 32, 8192, (2, 4)),
    ("window", 64, 8192, (2, 4)),
    ("latent", 64, 4096, (2, 4), PLAIN, {"prompt": 1024}),
    ("llama paged", 32, 4096, (2, 4), {"page_size": 64}),
)
FOR_GPU = _by_name(
    "cards",
    "h100:1x8",
    ("llama", 64, 2048, (2, 4), PLAIN),
    ("llama short", 128, 8192, (2, 4), PLAIN, {"prompt": 1024}),
    ("llama data", 64, 2048, (8, 1), PLAIN, {"prefill_batch": 16}),
    ("llama many", 128, 1024, (2, 4), PLAIN, {"prefill_batch": 32}),
    ("llama int8", 64, 2048, (2, 4), PLAIN, INT8),
    ("llama float32", 64, 2048, (2, 4), PLAIN, F32),
    ("llama wide", 16, 2048, (1, 8), PLAIN, {"prefill_batch": 4}),
    ("gpt", 32, 2048, (2, 4), PLAIN),
    ("gpt tensor", 32, 4096, (1, 8), PLAIN, {"prompt": 1024}),
    ("gpt int8", 32, 1024, (4, 2), PLAIN, INT8),
    ("gemma", 64, 8192, (2, 4), PLAIN, {"prompt": 2048}),
    ("gemma data", 32, 4096, (8, 1), PLAIN, {"prompt": 1024}),
    ("window", 128, 8192, (2, 4), PLAIN, {"prompt": 2048}),
    ("latent", 64, 4096, (2, 4), PLAIN, {"prompt": 1024}),
    ("latent data", 64, 2048, (8, 1), PLAIN, {"prefill_batch": 16, "prompt": 512}),
    ("llama paged", 64, 4096, (2, 4), PLAIN, {"page_size": 64, "prompt": 1024}),
    ("gpt paged data", 32, 2048, (8, 1), PLAIN, {"page_size": 16, "prompt": 512}),
    ("latent paged", 64, 4096, (2, 4), PLAIN, {"page_size": 128, "prompt": 512}),
)
# On one GPU that is here, where cuDNN has a kernel for attention.
ON_GPU = _by_name(
    "1 gpu",
    "h200:1x1",
    ("llama", 16, 8192, (1, 1)),
    ("llama many", 64, 2048, (1, 1), {"prefill_batch": 16}),
    ("llama plain", 32, 2048, (1, 1), PLAIN),
    ("llama int8", 16, 8192, (1, 1), INT8),
    ("gpt", 16, 4096, (1, 1)),
    ("gpt short", 64, 4096, (1, 1), {"prompt": 512, "prefill_batch": 16}),
    ("gemma", 16, 16384, (1, 1)),
    ("window", 32, 16384, (1, 1)),
    ("latent plain", 32, 4096, (1, 1), PLAIN, {"prompt": 1024}),
    ("llama paged", 32, 8192, (1, 1), {"page_size": 64}),
)
# Kept out: written down and compiled when the formulas stood.
LATER_GPU = _by_name(
    "cards",
    "h100:1x8",
    ("llama-3-8b", 64, 8192, (2, 4), PLAIN, {"prompt": 2048}),
    ("llama-3-70b", 32, 8192, (1, 8), PLAIN, {"prompt": 2048}),
    ("llama-3-70b int8", 32, 8192, (1, 8), PLAIN, INT8, {"prompt": 1024}),
    ("qwen2.5-7b", 64, 4096, (2, 4), PLAIN, {"prompt": 1024, "prefill_batch": 8}),
    ("qwen3-8b paged", 64, 8192, (2, 4), PLAIN, {"prompt": 1024, "page_size": 128}),
    ("gemma-2-9b", 32, 8192, (1, 8), PLAIN, {"prompt": 2048}),
    ("gpt3-6.7b", 32, 2048, (2, 4), PLAIN),
    ("gpt3-13b float32", 16, 2048, (1, 8), PLAIN, F32),
    ("mistral-7b", 64, 8192, (2, 4), PLAIN, {"prompt": 2048}),
    ("latent wide", 128, 8192, (1, 8), PLAIN, {"prompt": 2048}),
)
LATER_TPU = _by_name(
    "tpu",
    "v5e:2x4",
    ("llama-3-8b", 32, 4096, (1, 8)),
    ("qwen3-4b int8", 32, 8192, (2, 4), INT8),
)
LATER_ON_GPU = _by_name(
    "1 gpu",
    "h200:1x1",
    ("llama-3-8b", 64, 8192, (1, 1)),
    ("qwen3-8b int8", 64, 4096, (1, 1), INT8, {"prefill_batch": 8, "prompt": 1024}),
    ("gemma-2-2b", 32, 8192, (1, 1)),
    ("gpt3-6.7b paged", 32, 2048, (1, 1), {"page_size": 32}),
)
FOR_TPU |= LATER_TPU
FOR_GPU |= LATER_GPU
ON_GPU |= LATER_ON_GPU
ALL = FOR_TPU | FOR_GPU | ON_GPU
KEPT_OUT = tuple(LATER_GPU | LATER_TPU | LATER_ON_GPU)
