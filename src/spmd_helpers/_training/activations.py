"""What the forward pass keeps for the backward pass: two ways to count.

`kept` is what JAX keeps when nothing is fused by hand: each tensor that the derivative
of one of its functions uses, as `jax.ad_checkpoint.print_saved_residuals` lists them
and as the scan over the layers stacks them. `published` is the formula of Korthikanti
et al. 2022, arXiv:2205.05198, Table 2, which assumes fused kernels, 16-bit activations
and dropout.
"""

from .._errors import NotUnderstood
from .setup import Setup
from .state import Line, layer_weights

KEPT = ("forward", "loss", "backward")
_JAX = "print_saved_residuals of jax 0.10.2"
_PAPER = "Korthikanti et al. 2022, arXiv:2205.05198, Table 2"

# How many tensors JAX keeps. A norm keeps its centered input, twice that (for the
# derivative of the square), and its normalized value. A feed-forward part keeps its
# result and five values inside of gelu, or of silu and its product with the other half;
# gelu one less from JAX 0.12 on, whose tanh keeps less.
_NORM, _HIDDEN = 3, 6


def kept(made: Setup) -> list[Line]:
    """The lines of what is kept, for all layers, on one device."""
    if made.recompute == "full":
        return [_stream(made, "inputs of layers", 1)]
    if made.is_mlp:
        return [*_copies(made), _stream(made, "inputs of layers", 1), _relu(made)]
    lines = [*_copies(made), _norms(made), _stream(made, "inputs of matrices", 2)]
    lines.append(_heads(made))
    if made.attention == "flash":
        lines.append(_sums(made))
    elif made.recompute == "none":
        lines.append(_scores(made))
    return [*lines, _hidden(made)]


def _line(name, size, *factors, source=_JAX) -> Line:
    return Line(name, " × ".join(factors), size, KEPT, source)


def _copies(made: Setup) -> list[Line]:
    """The derivative uses the weights in the type of the computation, so that the scan
    stacks these. Recomputed with the layer, they need not be kept."""
    if made.param_bytes == made.compute_bytes:
        return []
    model, c = made.model, made.compute_bytes
    data = made.data if made.zero >= 3 else 1
    weights = layer_weights(model)
    size = model.layers * c * weights // (made.split * data)
    cut = _cut(made, made.split) + (f" / data {data}" if data > 1 else "")
    return [
        _line(
            "weights as computed with",
            size,
            _layers(made),
            f"{c} B × {weights}{cut}",
        )
    ]


def _stream(made: Setup, name: str, count: int) -> Line:
    """What flows between the layers: an input of each layer, or of its matrices."""
    model, c = made.model, made.compute_bytes
    size = model.layers * count * made.tokens * c * model.d_model // made.stream
    each = f"{c} B × {model.d_model}{_cut(made, made.stream)}"
    times = [f"{count}"] if count > 1 else []
    return _line(name, size, _layers(made), *times, _tokens(made), each)


def _relu(made: Setup) -> Line:
    """relu keeps its result and, as booleans, where its input was positive."""
    model, c = made.model, made.compute_bytes
    size = model.layers * made.tokens * (c + 1) * model.d_ff // made.split
    each = f"({c} B + 1 B) × {model.d_ff}{_cut(made, made.split)}"
    return _line("hidden, and its mask", size, _layers(made), _tokens(made), each)


def _norms(made: Setup) -> Line:
    """Norms are computed in float32, whatever the type of the rest; of a row also two
    numbers are kept, and of a layer its scale."""
    model = made.model
    row = 4 * (_NORM * model.d_model + 2)
    size = model.layers * 2 * (made.tokens * row // made.stream + 4 * model.d_model)
    each = f"4 B × ({_NORM} × {model.d_model} + 2){_cut(made, made.stream)}"
    inside = f"({made.tokens} × {each} + 4 B × {model.d_model})"
    return _line("norms", size, _layers(made), "2", inside)


def _heads(made: Setup) -> Line:
    model, c = made.model, made.compute_bytes
    wide = 2 * (model.heads + model.kv_heads) * model.head_dim
    size = model.layers * made.tokens * c * wide // made.split
    each = (
        f"{c} B × 2 × ({model.heads} + {model.kv_heads}) × {model.head_dim}"
        f"{_cut(made, made.split)}"
    )
    name = "queries, keys, values, their result"
    return _line(name, size, _layers(made), _tokens(made), each)


def _scores(made: Setup) -> Line:
    """Softmax is computed in float32 and kept, then kept again as it is used; with the
    maximum and the sum of each row."""
    model, c = made.model, made.compute_bytes
    row = (4 + c) * made.seq + 8
    size = model.layers * made.tokens * model.heads * row // made.split
    each = f"{model.heads}{_cut(made, made.split)} × ((4 B + {c} B) × {made.seq} + 8 B)"
    return _line("scores of attention", size, _layers(made), _tokens(made), each)


def _sums(made: Setup) -> Line:
    """Instead of the scores a flash kernel keeps the logarithm of each row's sum."""
    heads = made.model.heads
    size = made.model.layers * made.tokens * 4 * heads // made.split
    each = f"4 B × {heads}{_cut(made, made.split)}"
    source = "Dao et al. 2022, arXiv:2205.14135, algorithm 2"
    name = "sums of the scores' rows"
    return _line(name, size, _layers(made), _tokens(made), each, source=source)


def _hidden(made: Setup) -> Line:
    model, c = made.model, made.compute_bytes
    size = model.layers * made.tokens * _HIDDEN * c * model.d_ff // made.split
    each = f"{_HIDDEN} × {c} B × {model.d_ff}{_cut(made, made.split)}"
    return _line("inside of the mlp", size, _layers(made), _tokens(made), each)


def _layers(made: Setup) -> str:
    return f"{made.model.layers} layers"


def _tokens(made: Setup) -> str:
    return f"{made.tokens} {'rows' if made.is_mlp else 'tokens'}"


def _cut(made: Setup, over: int) -> str:
    return f" / model {over}" if over > 1 else ""


def published(made: Setup) -> list[Line]:
    """The published formula, as one line.

    Raises:
      NotUnderstood: the model is not of the kind that the paper counts.
    """
    model = made.model
    kind = not made.is_mlp and (
        model.kv_heads == model.heads
        and model.d_ff == 4 * model.d_model
        and model.heads * model.head_dim == model.d_model
        and not model.gated
    )
    if not kind or made.compute_bytes != 2:
        raise NotUnderstood(
            "counting='megatron' is for a transformer with d_ff = 4 * d_model, without "
            "gate or grouped queries, computed in 16 bits, as the paper has it; use "
            "counting='jax'."
        )
    t, stream = made.split, made.stream
    tensor = made.tokens * model.d_model
    times = f"{model.layers} layers × {made.tokens} tokens × {model.d_model}"
    if made.recompute == "full":
        size = 2 * model.layers * tensor // stream
        formula = f"{times} × 2 B{_cut(made, stream)}"
        return [Line("inputs of layers", formula, size, KEPT, _PAPER)]
    whole, split = (0, 34) if made.sequence_parallel or t == 1 else (10, 24)
    size = whole * tensor + split * tensor // t
    inside = f"{whole} B + {split} B" if whole else f"{split} B"
    inside = f"{inside}{_cut(made, t)}"
    if made.scores and made.recompute == "none":
        size += 5 * made.tokens * model.heads * made.seq // t
        inside += (
            f" + 5 B × {model.heads} × {made.seq} / {model.d_model}{_cut(made, t)}"
        )
    line = Line(
        "activations", f"{times} × ({inside})", model.layers * size, KEPT, _PAPER
    )
    return [line]
