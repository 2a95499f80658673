"""What the forward pass keeps for the backward pass: two ways to count.

`kept` is what JAX keeps when nothing is fused by hand: each tensor that the derivative
of one of its functions uses, as `jax.ad_checkpoint.print_saved_residuals` lists them
and as the scan over the layers stacks them. `published` is the formula of Korthikanti
et al. 2022, arXiv:2205.05198, Table 2, which assumes fused kernels, 16-bit activations
and dropout.
"""

from collections.abc import Sequence

from .._errors import NotUnderstood
from .model import Transformer
from .setup import Setup, over
from .state import Line, column_scales, sharded, weights

KEPT = ("forward", "loss", "backward")
_JAX = "print_saved_residuals of jax 0.10.2"
_PAPER = "Korthikanti et al. 2022, arXiv:2205.05198, Table 2"
_STAGES = "Narayanan et al. 2021, arXiv:2104.04473, section 2.2"

# How many tensors JAX keeps. A norm keeps its centered input, twice that (for the
# derivative of the square), and its normalized value. A feed-forward part keeps its
# result and five values inside of gelu, or of silu and its product with the other half;
# gelu one less from JAX 0.12 on, whose tanh keeps less, and on GPUs, whose compiler
# computes one of them again.
_NORM, _HIDDEN = 3, 6


def kept(setup: Setup) -> list[Line]:
    """The lines of what is kept, for all layers, on one device."""
    return [*copies(setup), *kept_of_passes(setup)]


def kept_of_passes(setup: Setup) -> list[Line]:
    """The same without the weights' copies: it does not read how the state is sharded.

    Nor how many devices `data` and `fsdp` have, but for what each has of the batch.
    """
    if setup.stage > 1:
        return _pipeline(setup)
    if setup.checkpointed:
        return [_stream(setup, "inputs of layers", 1), *_results(setup)]
    if setup.is_mlp:
        return [_stream(setup, "inputs of layers", 1), _relu(setup)]
    lines = [_norms(setup), *_inputs(setup), *_narrow(setup)]
    latent = setup.transformer.kv_lora_rank is not None
    lines += _latent(setup) if latent else [*_head_norms(setup), _heads(setup)]
    if not setup.scores:
        lines.append(_sums(setup))
    elif setup.recompute == "everything_saveable":
        lines.append(_scores(setup))
    if setup.model.moe_layers < setup.model.layers:
        lines.append(_hidden(setup))
    return lines + (_experts(setup) if setup.model.moe_layers else [])


def _line(name: str, size: int, *factors: str, source: str = _JAX) -> Line:
    return Line(name, " × ".join(factors), size, KEPT, source)


def copies(setup: Setup) -> list[Line]:
    """The weights in the type of the computation.

    The derivative uses them, so that the scan stacks them. Recomputed with the layer,
    they need not be kept.
    """
    if setup.checkpointed:
        return []
    lines = []
    if setup.stored_bytes != setup.compute_bytes:
        lines.append(Line("weights as computed with", *converted(setup), KEPT, _JAX))
    if setup.lora is not None and setup.lora.quantized:
        lines.append(Line("scales as computed with", *column_scales(setup), KEPT, _JAX))
    if setup.lora is not None and setup.param_bytes != setup.compute_bytes:
        size = sharded(setup, setup.compute_bytes, 3)
        lines.append(Line("adapters as computed with", *size, KEPT, _JAX))
    return lines


def converted(setup: Setup) -> tuple[str, int]:
    """The formula, and the bytes, of all layers' weights in that type."""
    each, replicated, experts = weights(setup)
    c, cut = setup.compute_bytes, setup.split
    size = (each + replicated * cut) * setup.expert + experts
    size = c * size // (cut * setup.expert * setup.shards(3))
    if not experts:
        each, replicated = (n // setup.model.layers for n in (each, replicated))
    inside = f"{each}{over('model', cut)}"
    if replicated:
        inside += f" + {replicated}"
    if experts:
        inside += f" + {experts}{over('model', cut)}{over('expert', setup.expert)}"
    if replicated or experts:
        inside = f"({inside})"
    layers = "" if experts else f"{_layers(setup)} × "
    return f"{layers}{c} B × {inside}{setup.over_shards(3)}", size


def _stream(setup: Setup, name: str, count: int) -> Line:
    """What flows between the layers: an input of each layer, or of its matrices."""
    model, c = setup.model, setup.compute_bytes
    size = model.layers * count * setup.tokens * c * model.d_model // setup.stream
    each = f"{c} B × {model.d_model}{over('model', setup.stream)}"
    times = [f"{count}"] if count > 1 else []
    return _line(name, size, _layers(setup), *times, _tokens(setup), each)


def _inputs(setup: Setup) -> list[Line]:
    """What goes into the matrices of a layer that have a gradient."""
    adapted = setup.adapts("query", "key", "value"), setup.adapts("gate", "up")
    count = sum(adapted)
    return [_stream(setup, "inputs of matrices", count)] if count else []


def _narrow(setup: Setup) -> list[Line]:
    """What the first matrices of adapters give, which goes into the second ones."""
    if setup.lora is None:
        return []
    count, c, rank = len(setup.lora.targets), setup.compute_bytes, setup.lora.rank
    size = setup.model.layers * setup.tokens * c * count * rank
    each = f"{c} B × {count} × {rank}"
    name = "narrow results of adapters"
    return [_line(name, size, _layers(setup), _tokens(setup), each)]


def _pipeline(setup: Setup) -> list[Line]:
    """The inputs of a chunk's layers, of as many microbatches as are on their way.

    Those of the tick at hand are there once more, and so is what goes to the next stage
    and to the one before, and what came from them and waits. Rows: llama stages full;
    llama stages interleaved full.
    """
    wide, c = setup.model.d_model, setup.compute_bytes
    each = setup.chunk_layers * setup.tokens * c * wide // setup.stream
    layers = f"{setup.chunk_layers} layers"
    factor = f"{c} B × {wide}{over('model', setup.stream)}"
    count = setup.chunks_kept
    words = layers, _tokens(setup), factor
    sent = 5 if setup.interleave == 1 else 5 + setup.stage // 2
    return [
        _line("inputs of layers", count * each, f"{count}", *words, source=_STAGES),
        _line("inputs of layers, in one tick", each, *words, source=_STAGES),
        _line(
            "sent and received",
            sent * each // setup.chunk_layers,
            f"{sent}",
            *words[1:],
            source=_STAGES,
        ),
    ]


def _results(setup: Setup) -> list[Line]:
    """The results of products that a policy of jax.checkpoint saves, each by its name.

    The scores are in float32, as the product gives them.
    """
    return _stacked(setup, "saved", setup.saved)


def results_on_host(setup: Setup) -> list[Line]:
    """The results that a policy sends to the host."""
    return _stacked(setup, "offloaded", setup.offloaded)


def _stacked(setup: Setup, what: str, names: Sequence[str]) -> list[Line]:
    """Some results of all layers."""
    lines, c = [], setup.compute_bytes
    for name in names:
        each, wide, factor, cut = c, *result(setup, name)
        if name == "scores":
            each = 4
        size = setup.model.layers * setup.tokens * each * wide // cut
        formula = f"{each} B × {factor}{over('model', cut)}"
        lines.append(
            _line(f"{what}: {name}", size, _layers(setup), _tokens(setup), formula)
        )
    return lines


def result(setup: Setup, name: str) -> tuple[int, str, int]:
    """How wide a product's result is for a token, in words too, and what cuts it."""
    model, split = setup.model, setup.split
    if name in ("up", "gate"):
        return model.d_ff, f"{model.d_ff}", split
    if name in ("out", "down"):
        return model.d_model, f"{model.d_model}", setup.stream
    one = setup.transformer
    if name == "scores":
        return one.heads * setup.seq, f"{one.heads} × {setup.seq}", split
    if name in ("key", "value"):
        return (
            one.kv_heads * one.head_dim,
            f"{one.kv_heads} × {one.head_dim}",
            setup.keys_split,
        )
    return one.heads * one.head_dim, f"{one.heads} × {one.head_dim}", split


def _relu(setup: Setup) -> Line:
    """What relu keeps: its result and, as booleans, where its input was positive."""
    model, c = setup.model, setup.compute_bytes
    size = model.layers * setup.tokens * (c + 1) * model.d_ff // setup.split
    each = f"({c} B + 1 B) × {model.d_ff}{over('model', setup.split)}"
    return _line("hidden, and its mask", size, _layers(setup), _tokens(setup), each)


def norm_values(setup: Setup) -> int:
    """Values that a norm keeps: the last is for its scale's gradient alone."""
    return _NORM if setup.lora is None else _NORM - 1


def _norms(setup: Setup) -> Line:
    """What norms keep.

    They are computed in float32, whatever the type of the rest; of a row also two
    numbers are kept, and of a layer its scale.
    """
    model = setup.transformer
    count, values = 4 if model.post_norms else 2, norm_values(setup)
    row = 4 * (values * model.d_model + 2)
    each_norm = setup.tokens * row // setup.stream + 4 * model.d_model
    size = model.layers * count * each_norm
    each = f"4 B × ({values} × {model.d_model} + 2){over('model', setup.stream)}"
    inside = f"({setup.tokens} × {each} + 4 B × {model.d_model})"
    return _line("norms", size, _layers(setup), f"{count}", inside)


def _head_norms(setup: Setup) -> list[Line]:
    """What the norms of q and k keep, where there are any: the same for each head."""
    model = setup.transformer
    if not model.qk_norm:
        return []
    keys = model.kv_heads * (setup.split // setup.keys_split)
    values = norm_values(setup)
    row = 4 * (values * model.head_dim + 2)
    cut = setup.tokens * (model.heads + keys) * row // setup.split
    size = model.layers * (cut + 2 * 4 * model.head_dim)
    rows = f"({model.heads} + {keys}){over('model', setup.split)}"
    each = f"4 B × ({values} × {model.head_dim} + 2)"
    inside = f"({setup.tokens} × {rows} × {each} + 2 × 4 B × {model.head_dim})"
    return [_line("norms of q and k", size, _layers(setup), inside)]


def _heads(setup: Setup) -> Line:
    """Queries and their result on each device's tokens, keys and values as used.

    Where context shards the tokens, keys and values are those of the full sequence,
    unless they go around a ring.
    """
    model, c = setup.transformer, setup.compute_bytes
    if not keeps_result(setup):
        return _without_result(setup)
    name = "queries, keys, values, their result"
    times = setup.keys_tokens // setup.tokens
    if times == 1 and setup.keys_split == setup.split:
        wide = 2 * (model.heads + model.kv_heads) * model.head_dim
        size = model.layers * setup.tokens * c * wide // setup.split
        each = (
            f"{c} B × 2 × ({model.heads} + {model.kv_heads}) × {model.head_dim}"
            f"{over('model', setup.split)}"
        )
        return _line(name, size, _layers(setup), _tokens(setup), each)
    wide = model.heads * setup.keys_split + times * model.kv_heads * setup.split
    size = model.layers * setup.tokens * c * 2 * wide * model.head_dim
    size //= setup.split * setup.keys_split
    keys = f"{times} × {model.kv_heads}" if times > 1 else f"{model.kv_heads}"
    each = (
        f"{c} B × 2 × ({model.heads}{over('model', setup.split)} + {keys}"
        f"{over('model', setup.keys_split)}) × {model.head_dim}"
    )
    return _line(name, size, _layers(setup), _tokens(setup), each)


def keeps_result(setup: Setup) -> bool:
    """Whether attention's result is kept: a gradient uses it, or a kernel's does."""
    return setup.adapts("out") or not setup.scores


def _without_result(setup: Setup) -> Line:
    """The same without attention's result, which no gradient uses."""
    model, c = setup.transformer, setup.compute_bytes
    times = setup.keys_tokens // setup.tokens
    queries, keys = model.heads // setup.split, model.kv_heads // setup.keys_split
    wide = (queries + 2 * times * keys) * model.head_dim
    size = model.layers * setup.tokens * c * wide
    each = f"{c} B × ({queries} + 2 × {times * keys}) × {model.head_dim}"
    return _line("queries, keys, values", size, _layers(setup), _tokens(setup), each)


def _scores(setup: Setup) -> Line:
    """What softmax keeps.

    It is computed in float32 and kept, then kept again as it is used; with the maximum
    and the sum of each row; sinks have one number more.
    """
    model, c = setup.transformer, setup.compute_bytes
    more = 12 if model.sinks else 8
    row = (4 + c) * setup.seq + more
    size = model.layers * setup.tokens * model.heads * row // setup.split
    heads = f"{model.heads}{over('model', setup.split)}"
    each = f"{heads} × ((4 B + {c} B) × {setup.seq} + {more} B)"
    return _line("scores of attention", size, _layers(setup), _tokens(setup), each)


def _sums(setup: Setup) -> Line:
    """Instead of the scores a flash kernel keeps the logarithm of each row's sum."""
    heads = setup.transformer.heads
    size = setup.model.layers * setup.tokens * 4 * heads // setup.split
    each = f"4 B × {heads}{over('model', setup.split)}"
    source = "Dao et al. 2022, arXiv:2205.14135, algorithm 2"
    name = "sums of the scores' rows"
    return _line(name, size, _layers(setup), _tokens(setup), each, source=source)


def _hidden(setup: Setup) -> Line:
    model, c = setup.model, setup.compute_bytes
    count = _HIDDEN - (setup.gpu and not setup.transformer.gated)
    count -= not setup.adapts("down")  # which uses the result
    layers = model.layers - model.moe_layers
    size = layers * setup.tokens * count * c * model.d_ff // setup.split
    each = f"{count} × {c} B × {model.d_ff}{over('model', setup.split)}"
    return _line("inside of the mlp", size, f"{layers} layers", _tokens(setup), each)


def _experts(setup: Setup) -> list[Line]:
    """What layers with experts keep in place of a feed-forward part.

    Of the router: the chosen experts, their shares in float32 and as used, where each
    row goes and where it comes from. The rows that the experts have, as they come in
    and as they come back; what is inside of each expert, and of the shared ones.
    """
    model, c = setup.transformer, setup.compute_bytes
    tokens, rows, top = setup.tokens, setup.expert_rows, model.experts_per_token or 0
    layers, moe, wide = f"{model.moe_layers} layers", model.moe_layers, model.d_model
    share = 12 + c
    size = moe * (tokens * (share * top + 8) + 4 * rows)
    each = f"({tokens} × ({share} B × {top} + 8 B) + 4 B × {rows})"
    lines = [_line("choice of experts", size, layers, each)]
    size = moe * c * wide * (rows + top * tokens)
    each = f"({rows} + {top} × {tokens} tokens)"
    lines.append(_line("rows of the experts", size, layers, each, f"{c} B × {wide}"))
    count = _HIDDEN - (setup.gpu and not model.gated)
    inside, cut = model.expert_d_ff or 0, over("model", setup.split)
    every = rows + model.shared_experts * tokens
    size = moe * every * count * c * inside // setup.split
    words = f"{rows} rows"
    if model.shared_experts:
        words = f"({rows} rows + {model.shared_experts} × {tokens} tokens)"
    each = f"{count} × {c} B × {inside}{cut}"
    lines.append(_line("inside of the experts", size, layers, words, each))
    gathered = (
        setup.tokens * c * wide if setup.stream > 1 or model.shared_experts else 0
    )
    if gathered:
        each = f"{tokens} tokens × {c} B × {wide}"
        name = "inputs of the experts"
        lines.append(_line(name, moe * gathered, layers, each))
    return lines


def _latent(setup: Setup) -> list[Line]:
    """Latent attention: narrow results and their norms, and what is made of them."""
    model, c = setup.transformer, setup.compute_bytes
    ranks = [n for n in (model.q_lora_rank, model.kv_lora_rank) if n is not None]
    row = 4 * (_NORM * sum(ranks) + 2 * len(ranks)) + c * sum(ranks)
    size = model.layers * (setup.tokens * row + 4 * sum(ranks))
    total = sum(ranks)
    each = f"(4 B × ({_NORM} × {total} + {2 * len(ranks)}) + {c} B × {total})"
    inside = f"({setup.tokens} × {each} + 4 B × {total})"
    lines = [_line("narrow results, and their norms", size, _layers(setup), inside)]
    wide = 2 * model.heads * (model.head_dim + (model.v_head_dim or 0))
    size = model.layers * setup.tokens * c * wide // setup.split
    each = (
        f"{c} B × 2 × {model.heads}{over('model', setup.split)} × "
        f"({model.head_dim} + {model.v_head_dim})"
    )
    name = "queries, keys, values, their result"
    return [*lines, _line(name, size, _layers(setup), _tokens(setup), each)]


def _layers(setup: Setup) -> str:
    return f"{setup.model.layers} layers"


def _tokens(setup: Setup) -> str:
    return f"{setup.tokens} {'rows' if setup.is_mlp else 'tokens'}"


def published(setup: Setup) -> list[Line]:
    """The published formula, as one line.

    Raises:
        NotUnderstood: the model is not of the kind that the paper counts.
    """
    model = setup.model
    if (
        not isinstance(model, Transformer)
        or not _is_as_published(model)
        or setup.compute_bytes != 2
    ):
        raise NotUnderstood(
            "counting='megatron' is for a transformer with d_ff = 4 * d_model, without "
            "gate, grouped queries or further norms, computed in 16 bits, as the paper "
            "has it; use counting='jax'."
        )
    t, stream = setup.split, setup.stream
    tensor = setup.tokens * model.d_model
    times = f"{model.layers} layers × {setup.tokens} tokens × {model.d_model}"
    if setup.recompute not in ("everything_saveable", "selective", "nothing_saveable"):
        raise NotUnderstood(
            f"counting='megatron' has no recompute={setup.recompute!r}; give "
            "'everything_saveable', 'selective' or 'nothing_saveable', or use "
            "counting='jax'."
        )
    if setup.recompute == "nothing_saveable":
        size = 2 * model.layers * tensor // stream
        formula = f"{times} × 2 B{over('model', stream)}"
        return [Line("inputs of layers", formula, size, KEPT, _PAPER)]
    unsplit, split = (0, 34) if setup.sequence_parallel or t == 1 else (10, 24)
    size = unsplit * tensor + split * tensor // t
    inside = f"{unsplit} B + {split} B" if unsplit else f"{split} B"
    inside = f"{inside}{over('model', t)}"
    if setup.scores and setup.recompute == "everything_saveable":
        size += 5 * setup.tokens * model.heads * setup.seq // t
        inside += (
            f" + 5 B × {model.heads} × {setup.seq} / {model.d_model}{over('model', t)}"
        )
    line = Line(
        "activations", f"{times} × ({inside})", model.layers * size, KEPT, _PAPER
    )
    return [line]


def _is_as_published(model: Transformer) -> bool:
    """Whether a model has the proportions that the paper counts with."""
    return (
        model.kv_heads == model.heads
        and model.d_ff == 4 * model.d_model
        and model.heads * model.head_dim == model.d_model
        and not (model.gated or model.qk_norm or model.post_norms)
        and model.experts is None
        and model.kv_lora_rank is None
        and model.patch_size is None
    )
