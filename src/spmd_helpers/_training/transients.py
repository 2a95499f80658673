"""What a step needs for a while on a TPU: the logits, and the inside of one layer.

Read off what the TPU compiler keeps at the peak of each phase, for the programs in
data/measured: each line names the tensors that stood there.
"""

from .activations import KEPT, converted
from .setup import Setup, over
from .state import Line, largest_matrix, weights

_BUFFERS = "TPU compiler's buffers at the peak, data/measured"


def work(setup: Setup) -> list[Line]:
    """The lines of what is there in one phase only, on one device."""
    lines = [*_conversion(setup)]
    if not setup.is_mlp:
        lines += _loss(setup)
    lines += _forward(setup)
    lines += _backward(setup)
    lines += ring(setup, _BUFFERS)
    lines += _beside_adapters(setup)
    return [*lines, *_copied_inputs(setup), *orthogonalized(setup, _BUFFERS)]


_LANES = 128  # numbers of a row, to which a TPU pads


def _beside_adapters(setup: Setup) -> list[Line]:
    """What is kept with adapters, beside what JAX keeps.

    Narrow results are padded, and one more result inside of the feed-forward part is
    stacked. Row: llama lora flash.
    """
    if setup.lora is None or setup.checkpointed:
        return []
    model, c, rank = setup.model, setup.compute_bytes, setup.lora.rank
    rows, count = model.layers * setup.tokens * c, len(setup.lora.targets)
    words = f"{model.layers} layers × {setup.tokens} tokens × {c} B"
    padding = -rank % _LANES
    lines = [
        _line(
            "narrow results, padded",
            rows * count * padding,
            f"{words} × {count} × {padding}",
            *KEPT,
        )
    ]
    if setup.adapts("gate", "up", "down"):
        formula = f"{words} × {model.d_ff}{over('model', setup.split)}"
        size = rows * model.d_ff // setup.split
        lines.append(_line("inside of the mlp, once more", size, formula, *KEPT))
    return lines


def _copied_inputs(setup: Setup) -> list[Line]:
    """The layers' inputs, copied between the loops where other results are offloaded.

    Row: layers offload.
    """
    if not setup.offloaded:
        return []
    model, c = setup.model, setup.compute_bytes
    size = model.layers * setup.tokens * c * model.d_model // setup.stream
    formula = (
        f"{model.layers} layers × {setup.tokens} tokens × {c} B × {model.d_model}"
        f"{over('model', setup.stream)}"
    )
    return [_line("inputs of layers, copied", size, formula, "loss")]


def _line(name: str, size: int, formula: str, *when: str) -> Line:
    return Line(name, formula, size, when, _BUFFERS)


def _conversion(setup: Setup) -> list[Line]:
    """All layers' weights, which the compiler converts before the loop over them.

    Without recompute that loop copies them once more, into what it keeps for the other
    one.
    """
    if setup.stored_bytes == setup.compute_bytes:
        return []
    formula, size = converted(setup)
    when = KEPT if setup.checkpointed else ("forward",)
    return [_line("weights converted before the loop", size, formula, *when)]


def _loss(setup: Setup) -> list[Line]:
    """Logits in float32, and the head in the type of the computation.

    Where gradients are cut over data, the logits' gradient is written too, and waits:
    the compiler may compute the head's gradient from it after all else. Not so where
    context cuts the tokens, or the head is frozen. Row: llama context full flash.
    """
    c, cut = setup.compute_bytes, over("model", setup.split)
    tokens = f"{setup.tokens} tokens"
    logits = setup.tokens * setup.rows // setup.split
    head = c * setup.rows * setup.model.d_model // setup.split
    lines = [
        _line("logits", 4 * logits, f"{tokens} × 4 B × {setup.rows}{cut}", "loss"),
    ]
    if setup.lora is None or setup.stored_bytes != c:
        formula = f"{c} B × {setup.rows}{cut} × {setup.model.d_model}"
        lines.append(_line("head as computed with", head, formula, "loss"))
    if setup.lora is not None:  # the head has no gradient that could wait for theirs
        return lines
    if setup.shards(2) > 1 and setup.context == 1:
        formula = f"{tokens} × {c} B × {setup.rows}{cut}"
        when = ("loss",) if setup.stage > 1 else ("loss", "backward")
        lines.append(_line("gradient of the logits", c * logits, formula, *when))
    return lines


def _forward(setup: Setup) -> list[Line]:
    """Scores before and after softmax, or else what the mlp computes."""
    if setup.scores:
        return [_scores(setup, "forward", 4, 4)]
    lines = [inside(setup, "forward", 0, _BUFFERS)]
    lines += sequences(setup, "forward", 1, _BUFFERS)
    return [*lines, *matrices(setup, "forward", 2, _BUFFERS)]


def _backward(setup: Setup) -> list[Line]:
    lines, c = [], setup.compute_bytes
    if setup.scores:
        each = (c,) if setup.recompute == "everything_saveable" else (4, c)
        lines.append(_scores(setup, "backward", *each))
    lines.append(inside(setup, "backward", backward(setup), _BUFFERS))
    lines += sequences(setup, "backward", 2, _BUFFERS)
    return [*lines, *matrices(setup, "backward", gathered(setup), _BUFFERS)]


def _scores(setup: Setup, when: str, *each: int) -> Line:
    return layer_scores(setup, f"scores of one layer, {when}", (when,), _BUFFERS, *each)


def layer_scores(
    setup: Setup, name: str, when: tuple[str, ...], source: str, *each: int
) -> Line:
    """Tensors of one layer's scores, of so many bytes for each of their numbers."""
    heads, seq = setup.transformer.heads, setup.seq
    size = setup.tokens * sum(each) * heads * seq // setup.split
    sizes = " + ".join(f"{n} B" for n in each)
    sizes = f"({sizes})" if len(each) > 1 else sizes
    formula = (
        f"{setup.tokens} tokens × {sizes} × {heads}{over('model', setup.split)} × {seq}"
    )
    return Line(name, formula, size, when, source)


def ring(setup: Setup, source: str) -> list[Line]:
    """The scores of one block of keys in ring attention, which are not kept.

    In float32, with their exponentials and, for the backward pass, the gradient, and
    what is used of them in the type of the computation. Rows: llama ring full; llama
    ring weights.
    """
    if setup.attention != "ring":
        return []
    heads, c = setup.transformer.heads, setup.compute_bytes
    block = setup.seq // setup.context
    lines = []
    for when, each in (("forward", (4, 4, c)), ("backward", (4, 4, 4, c))):
        size = setup.tokens * sum(each) * heads * block // setup.split
        sizes = " + ".join(f"{n} B" for n in each)
        formula = (
            f"{setup.tokens} tokens × ({sizes}) × {heads}{over('model', setup.split)}"
            f" × {block}"
        )
        lines.append(
            Line(f"scores of one block, {when}", formula, size, (when,), source)
        )
    return lines


def orthogonalized(setup: Setup, source: str) -> list[Line]:
    """What muon multiplies: the layers' matrices in float32, and two thirds more.

    They are all-gathered over data, and take the place of the gradients.
    Row: gpt muon full.
    """
    if setup.optimizer != "muon":
        return []
    each, replicated, _ = weights(setup)
    total = each + replicated * setup.split
    size = total * 20 // (3 * setup.split)
    size -= total * setup.grad_bytes // (setup.split * setup.shards(2))
    each, replicated = (n // setup.model.layers for n in (each, replicated))
    inside = f"{each}{over('model', setup.split)}"
    inside = f"({inside} + {replicated})" if replicated else inside
    formula = (
        f"{setup.model.layers} layers × (20 B / 3 - {setup.grad_bytes} B"
        f"{setup.over_shards(2)}) × {inside}"
    )
    return (
        [Line("muon's products", formula, size, ("update",), source)]
        if size > 0
        else []
    )


# What the two compilers need alike. Of one layer, how many tensors as wide as d_ff and
# how many as wide as d_model stand there at once: in a forward pass, in a backward
# pass, in one that recomputes, in one that recomputes but has the hidden results.
_INSIDE_MLP = (1, 2), (1, 2), (2, 2), (2, 2)
_INSIDE = (1, 2), (1, 4), (3, 8), (1, 8)
# With adapters, whose results and gradients stand beside those of the frozen matrices:
# in a forward pass, and in a backward pass that recomputes.
_INSIDE_LORA = (3, 1), (10, 2)
_INSIDE_LORA_GPU = (2, 8), (6, 6)
# With experts: their rows as wide as inside of one, and as wide as d_model, and tokens.
_INSIDE_EXPERTS = (1, 2, 2), (1, 2, 4), (3, 2, 8), (3, 2, 8)


def backward(setup: Setup) -> int:
    """Which of these a backward pass has: the last recomputes attention alone."""
    if not setup.checkpointed:
        return 1
    kept = (*setup.saved, *setup.offloaded)
    return 3 if "up" in kept and (setup.keeps_out or setup.is_mlp) else 2


def _tensors(setup: Setup, which: int) -> tuple[int, int]:
    """How many of one layer are as wide as d_ff, and how many as wide as d_model.

    Beside a kernel for the attention of images the compiler has more of the first.
    Rows: 1 gpu: even flash; even full flash.
    """
    if setup.reads_images and not setup.scores:
        hidden, stream = _INSIDE[which]
        return hidden + (2 if setup.checkpointed else 4), stream
    if setup.lora is None or not setup.checkpointed:
        return (_INSIDE_MLP if setup.is_mlp else _INSIDE)[which]
    if not setup.scores:
        kind = _INSIDE_LORA_GPU if setup.gpu else _INSIDE_LORA
        return kind[min(which, 1)]
    if which == 0:
        return _INSIDE[0]
    return 2 if setup.adapts("gate", "up", "down") else 0, 6


def inside(setup: Setup, when: str, which: int, source: str) -> Line:
    """So many tensors as wide as d_ff, and so many as wide as d_model.

    Of the layers with experts and those without, those that need more.
    """
    hidden, stream = _tensors(setup, which)
    model, c = setup.model, setup.compute_bytes
    size = setup.tokens * c * hidden * model.d_ff // setup.split
    size += setup.tokens * c * stream * model.d_model // setup.stream
    formula = (
        f"{setup.tokens} × {c} B × ({hidden} × {model.d_ff}{over('model', setup.split)}"
        f" + {stream} × {model.d_model}{over('model', setup.stream)})"
    )
    name = f"inside of one layer, {when}"
    line = Line(name, formula, size, (when,), source)
    if not model.moe_layers:
        return line
    routed = _inside_experts(setup, when, which, source)
    dense = model.moe_layers < model.layers and size > routed.bytes
    return line if dense else routed


def _inside_experts(setup: Setup, when: str, which: int, source: str) -> Line:
    """The same of a layer with experts, which have rows in place of tokens."""
    hidden, wide, stream = _INSIDE_EXPERTS[which]
    if which > 1 and setup.scores:  # then attention needs most, and has these no more
        stream = 0
    model, c = setup.transformer, setup.compute_bytes
    rows, tokens = setup.expert_rows, setup.tokens
    inner = rows + model.shared_experts * tokens
    size = c * inner * hidden * (model.expert_d_ff or 0) // setup.split
    size += c * rows * wide * model.d_model
    size += c * tokens * stream * model.d_model // setup.stream
    words = f"{rows}"
    if model.shared_experts:
        words = f"({rows} + {model.shared_experts} × {tokens})"
    formula = (
        f"{c} B × ({words} × {hidden} × {model.expert_d_ff}{over('model', setup.split)}"
        f" + {rows} × {wide} × {model.d_model}"
        f" + {tokens} × {stream} × {model.d_model}{over('model', setup.stream)})"
    )
    return Line(f"inside of one layer, {when}", formula, size, (when,), source)


def sequences(setup: Setup, when: str, count: int, source: str) -> list[Line]:
    """Sequences that are sharded over model are all-gathered before the products."""
    if setup.stream == 1:
        return []
    c, wide = setup.compute_bytes, setup.model.d_model
    size = count * setup.tokens * c * wide
    formula = f"{count} × {setup.tokens} tokens × {c} B × {wide}"
    return [Line(f"gathered sequences, {when}", formula, size, (when,), source)]


def gathered(setup: Setup) -> int:
    """How many matrices a backward pass has at once: also a gradient, where it has."""
    return 3 if setup.checkpointed else 2


def matrices(setup: Setup, when: str, count: int, source: str) -> list[Line]:
    """A layer's largest matrices, all-gathered if parameters are sharded over data."""
    if not setup.gathers:
        return []
    c = setup.compute_bytes
    _, numbers, words = largest_matrix(setup)
    size = count * c * numbers // setup.split
    formula = f"{count} × {c} B × {words}{over('model', setup.split)}"
    return [Line(f"gathered weights, {when}", formula, size, (when,), source)]
