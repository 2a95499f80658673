"""What a step needs for a while: the logits, and the inside of one layer.

Read off what the TPU compiler keeps at the peak of each moment, for the programs in
data/measured: each line names the tensors that stood there.
"""

from .activations import KEPT
from .setup import Setup
from .state import Line, layer_weights

_SEEN = "TPU compiler's buffers at the peak, data/measured"


def work(made: Setup) -> list[Line]:
    """The lines of what is there in one moment only, on one device."""
    lines = [*_conversion(made)]
    if not made.is_mlp:
        lines += _loss(made)
    lines += _forward(made)
    lines += _backward(made)
    return lines


def _line(name, size, formula, *when) -> Line:
    return Line(name, formula, size, when, _SEEN)


def _conversion(made: Setup) -> list[Line]:
    """The compiler converts all layers' weights before the loop over them. Without
    recompute that loop copies them once more, into what it keeps for the other one."""
    if made.param_bytes == made.compute_bytes:
        return []
    model, c = made.model, made.compute_bytes
    data = made.data if made.zero >= 3 else 1
    weights = layer_weights(model)
    size = model.layers * c * weights // (made.split * data)
    cut = f"{_cut(made, made.split)}{_over('data', data)}"
    formula = f"{model.layers} layers × {c} B × {weights}{cut}"
    when = KEPT if made.recompute == "full" else ("forward",)
    return [_line("weights converted before the loop", size, formula, *when)]


def _loss(made: Setup) -> list[Line]:
    """Logits in float32, and the head in the type of the computation. Where gradients
    are cut over data, the logits' gradient is written too, and waits: the compiler may
    compute the head's gradient from it after all else."""
    c, cut = made.compute_bytes, _cut(made, made.split)
    tokens = f"{made.tokens} tokens"
    logits = made.tokens * made.rows // made.split
    head = c * made.rows * made.model.d_model // made.split
    lines = [
        _line("logits", 4 * logits, f"{tokens} × 4 B × {made.rows}{cut}", "loss"),
        _line(
            "head as computed with",
            head,
            f"{c} B × {made.rows}{cut} × {made.model.d_model}",
            "loss",
        ),
    ]
    if made.zero >= 2 and made.data > 1:
        formula = f"{tokens} × {c} B × {made.rows}{cut}"
        when = ("loss", "backward")
        lines.append(_line("gradient of the logits", c * logits, formula, *when))
    return lines


# Of one layer, how many tensors as wide as d_ff and how many as wide as d_model stand
# there at once: (in a forward pass, in a backward pass, in one that recomputes).
_INSIDE_MLP = (1, 2), (1, 2), (2, 2)
_INSIDE = (1, 2), (1, 4), (3, 8)


def _forward(made: Setup) -> list[Line]:
    """Scores before and after softmax, or else what the mlp computes."""
    if made.scores:
        return [_scores(made, "forward", 4, 4)]
    tensors = (_INSIDE_MLP if made.is_mlp else _INSIDE)[0]
    lines = [_inside(made, "forward", *tensors), *_whole(made, "forward", 1)]
    return [*lines, *_gathered(made, "forward", 2)]


def _backward(made: Setup) -> list[Line]:
    lines, c = [], made.compute_bytes
    if made.scores:
        each = (c,) if made.recompute == "none" else (4, c)
        lines.append(_scores(made, "backward", *each))
    full = made.recompute == "full"
    tensors = (_INSIDE_MLP if made.is_mlp else _INSIDE)[2 if full else 1]
    lines += [_inside(made, "backward", *tensors), *_whole(made, "backward", 2)]
    return [*lines, *_gathered(made, "backward", 3 if full else 2)]


def _scores(made: Setup, when: str, *each: int) -> Line:
    heads, seq = made.model.heads, made.seq
    size = made.tokens * sum(each) * heads * seq // made.split
    sizes = " + ".join(f"{n} B" for n in each)
    sizes = f"({sizes})" if len(each) > 1 else sizes
    formula = (
        f"{made.tokens} tokens × {sizes} × {heads}{_cut(made, made.split)} × {seq}"
    )
    return _line(f"scores of one layer, {when}", size, formula, when)


def _inside(made: Setup, when: str, hidden: int, stream: int) -> Line:
    """So many tensors as wide as d_ff, and so many as wide as d_model."""
    model, c = made.model, made.compute_bytes
    size = made.tokens * c * hidden * model.d_ff // made.split
    size += made.tokens * c * stream * model.d_model // made.stream
    formula = (
        f"{made.tokens} × {c} B × ({hidden} × {model.d_ff}{_cut(made, made.split)}"
        f" + {stream} × {model.d_model}{_cut(made, made.stream)})"
    )
    return _line(f"inside of one layer, {when}", size, formula, when)


def _whole(made: Setup, when: str, count: int) -> list[Line]:
    """Sequences that are cut over model come whole into the products."""
    if made.stream == 1:
        return []
    c, wide = made.compute_bytes, made.model.d_model
    size = count * made.tokens * c * wide
    formula = f"{count} × {made.tokens} tokens × {c} B × {wide}"
    return [_line(f"gathered sequences, {when}", size, formula, when)]


def _gathered(made: Setup, when: str, count: int) -> list[Line]:
    """With the parameters cut over data, a layer's largest matrices come whole."""
    if made.zero < 3 or made.data == 1:
        return []
    model, c = made.model, made.compute_bytes
    size = count * c * model.d_model * model.d_ff // made.split
    formula = (
        f"{count} × {c} B × {model.d_model} × {model.d_ff}{_cut(made, made.split)}"
    )
    return [_line(f"gathered weights, {when}", size, formula, when)]


def _cut(made: Setup, over: int) -> str:
    return _over("model", over)


def _over(axis: str, size: int) -> str:
    return f" / {axis} {size}" if size > 1 else ""
