"""What prefill and decode need for a while, as both compilers' peaks show.

Each line was read off the programs of tools/measure/truth/served.py, which the
compilers for TPUs and GPUs laid out: layers under a scan that carries the cache.
"""

from .._core.words import count_words
from .model import Transformer
from .serving import Serving, cache_kinds, cache_lines, matrices
from .setup import over
from .state import Line

_PEAKS = "compilers' peaks, serving_tpu.json and serving_gpu.json"


def work_lines(serving: Serving) -> list[Line]:
    """The lines of what is there in prefill or in decode only, on one device."""
    return [*_prefill(serving), *_decode(serving)]


def _line(name: str, size: int, formula: str, when: str) -> Line:
    return Line(name, formula, size, (when,), _PEAKS)


def _prefill(serving: Serving) -> list[Line]:
    """Of one layer the feed-forward part or, where it is more, plain attention."""
    lines = [_mlp(serving)]
    if serving.attention == "plain":
        attention = _attention(serving)
        if sum(one.bytes for one in attention) > lines[0].bytes:
            lines = attention
    if serving.gpu != converts(serving):
        lines += _weights(serving, period(serving.model), "prefill")
    return [*lines, _logits(serving, serving.prompts, "prefill")]


def converts(serving: Serving) -> bool:
    """Whether the products take the weights in another type of floating point."""
    return not serving.quantized and serving.param_bytes != serving.compute_bytes


def _mlp(serving: Serving) -> Line:
    """Two tensors as wide as d_ff, and three (of a GPU, four) as wide as d_model."""
    model, c, split = serving.model, serving.compute_bytes, serving.split
    stream = 4 if serving.gpu else 3
    size = serving.tokens * c * 2 * model.d_ff // split
    size += serving.tokens * c * stream * model.d_model
    formula = (
        f"{serving.tokens} tokens × {c} B × (2 × {model.d_ff}{over('model', split)} + "
        f"{stream} × {model.d_model})"
    )
    return _line("inside of one layer", size, formula, "prefill")


def _attention(serving: Serving) -> list[Line]:
    """Scores in float32 and their softmax as it is used, the mask, what is beside."""
    model, c, prompt = serving.model, serving.compute_bytes, serving.prompt
    heads = model.heads // serving.split
    size = serving.tokens * (4 + c) * heads * prompt
    formula = (
        f"{serving.tokens} tokens × (4 B + {c} B) × {model.heads}"
        f"{over('model', serving.split)} × {prompt}"
    )
    mask = prompt * prompt
    wide = model.d_model + heads * model.head_dim
    return [
        _line("scores of one layer", size, formula, "prefill"),
        _line("mask of the scores", mask, f"1 B × {prompt} × {prompt}", "prefill"),
        _line(
            "beside the scores",
            serving.tokens * c * wide,
            f"{serving.tokens} tokens × {c} B × ({model.d_model} + {model.heads}"
            f"{over('model', serving.split)} × {model.head_dim})",
            "prefill",
        ),
    ]


def period(model: Transformer) -> int:
    """Layers of one iteration of the scan: until the pattern of windows repeats."""
    return model.global_every or 1


def _weights(serving: Serving, layers: int, when: str) -> list[Line]:
    """The matrices of so many layers, which are copied out of the stacked arrays.

    A GPU's compiler does not copy those that it converts as it reads them.
    """
    if serving.gpu and converts(serving):
        return []
    products = (one for one in matrices(serving) if one.is_matrix)
    each = sum(one.device_numbers() for one in products) // serving.model.layers
    size = layers * serving.param_bytes * each
    formula = f"{layers} × {serving.param_bytes} B × {each}"
    name = "weights of one layer" if layers == 1 else f"weights of {layers} layers"
    return [_line(f"{name}, {when}", size, formula, when)]


def _decode(serving: Serving) -> list[Line]:
    """Weights, and keys and values of one layer, in the order that products need.

    Where one layer in several attends to all tokens it is the last of its period, and
    the others' weights are no longer there.
    """
    kinds, model = cache_kinds(serving), serving.model
    layers = period(model)
    choices = []
    for number, (_, count, tokens) in enumerate(kinds):
        is_global = number == 0 and model.global_layers > 0
        several = 1 if is_global and len(kinds) > 1 else layers
        lines = _weights(serving, several, "decode")
        choices.append(lines + _copied(serving, tokens) if count else lines)
    most = max(choices, key=lambda lines: sum(one.bytes for one in lines))
    most += _reordered(serving)
    return [*most, _logits(serving, serving.batch, "decode")]


def _copied(serving: Serving, tokens: int) -> list[Line]:
    """One layer's part of the cache: pages that are gathered, or another order.

    Where each head of queries has keys of its own, a GPU's compiler multiplies with the
    cache as it is.
    """
    model = serving.model
    grouped = model.kv_heads < model.heads or serving.latent
    if serving.gpu and not grouped and serving.page_size is None:
        return []
    width, words = serving.used_width
    size = serving.batch * tokens * serving.cache_bytes * width
    formula = (
        f"{count_words(serving.batch, 'sequence')} × {tokens} tokens × "
        f"{serving.cache_bytes} B × {words}"
    )
    return [_line("cache of one layer, as it is used", size, formula, "decode")]


def _reordered(serving: Serving) -> list[Line]:
    """The cache of latent attention, which a TPU's compiler copies for the loop.

    Its products take another order of the dimensions. Row: tpu: latent.
    """
    if serving.gpu or not serving.latent:
        return []
    size = sum(line.bytes for line in cache_lines(serving))
    return [_line("cache in another order", size, "as large as the cache", "decode")]


def _logits(serving: Serving, sequences: int, when: str) -> Line:
    """In float32, of the last token of each sequence."""
    size = 4 * sequences * serving.rows // serving.split
    cut = over("model", serving.split)
    formula = f"{count_words(sequences, 'sequence')} × 4 B × {serving.rows}{cut}"
    return _line(f"logits, {when}", size, formula, when)
