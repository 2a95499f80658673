"""What a step needs for a while on a GPU, as XLA's buffer assignments there show.

Each line names the tensors that were live at the peak of a phase, in the programs of
memory_gpu_compiled.json. Where a GPU's compiler keeps the same as the TPU's, the line
is that of transients.py.
"""

from .activations import KEPT
from .setup import Setup
from .state import Line, over
from .transients import inside, matrices, sequences

_BUFFERS = "XLA's buffers for GPUs at the peak, data/measured"


def gpu_work(setup: Setup) -> list[Line]:
    """The lines of what is there in some phases only, on one GPU."""
    lines = _reordered_weights(setup)
    if not setup.is_mlp:
        lines += _loss(setup)
    if setup.scores:
        lines += _scores(setup)
    full = setup.full
    lines.append(inside(setup, "forward", 0, _BUFFERS))
    lines += sequences(setup, "forward", 1, _BUFFERS)
    lines += matrices(setup, "forward", 2, _BUFFERS)
    lines.append(inside(setup, "backward", 2 if full else 1, _BUFFERS))
    lines += sequences(setup, "backward", 2, _BUFFERS)
    return [*lines, *matrices(setup, "backward", 3 if full else 2, _BUFFERS)]


def _line(name: str, size: int, formula: str, *when: str) -> Line:
    return Line(name, formula, size, when, _BUFFERS)


def _reordered_weights(setup: Setup) -> list[Line]:
    """One matrix of all layers, transposed before the loop.

    An all-gather joins shards along the dimension that varies slowest in memory. The
    compiler transposes a stacked matrix whose sharded dimension is another one.
    """
    if not setup.gathers:
        return []
    model, each = setup.model, setup.param_bytes
    size = model.layers * each * model.d_model * model.d_ff
    formula = (
        f"{model.layers} layers × {each} B × {model.d_model} × {model.d_ff}"
        f"{over('model', setup.split)}{over('data', setup.data)}"
    )
    size //= setup.split * setup.data
    return [_line("weights reordered for their all-gather", size, formula, *KEPT)]


def _loss(setup: Setup) -> list[Line]:
    """The head, all-gathered once for each pass; logits; the head's gradient.

    The gradient of the logits takes the place of the logits. Where the head is cut over
    data, its gradient is complete on each device until its reduce-scatter, which waits
    for the update; where the logits' gradient is smaller, that waits instead.
    """
    c, cut = setup.compute_bytes, over("model", setup.split)
    rows, wide = setup.rows, setup.model.d_model
    head = rows * wide // setup.split
    times = 2 if setup.gathers else 1
    several = f"{times} × " if times > 1 else ""
    logits = 4 * setup.tokens * rows // setup.split
    lines = [
        _line(
            "head as computed with",
            times * c * head,
            f"{several}{c} B × {rows}{cut} × {wide}",
            *("forward", "loss"),
        ),
        _line("logits", logits, f"{setup.tokens} tokens × 4 B × {rows}{cut}", "loss"),
    ]
    if setup.gathers:
        formula = f"4 B × {rows}{cut} × {wide}"
        lines.append(_line("gradient of the head", 4 * head, formula, "loss"))
        least = min(wide, setup.tokens)
        size, formula = 4 * rows * least // setup.split, f"4 B × {rows}{cut} × {least}"
        name = f"gradient of the {'head' if least == wide else 'logits'}, waiting"
        lines.append(_line(name, size, formula, "backward", "update"))
    return lines


def _scores(setup: Setup) -> list[Line]:
    """Scores of one layer in each pass; of all layers, transposed between the passes.

    The forward pass has the products and the constant that the mask puts in their
    place, both in float32, and the softmax's result as it is used. The mask itself
    stays for the backward pass.
    """
    model, c = setup.transformer, setup.compute_bytes
    keeps = setup.recompute == "everything_saveable"
    grouped = model.kv_heads < model.heads
    lines = [
        _layer_scores(setup, "mask of the scores", KEPT, 1),
        _layer_scores(
            setup,
            "scores of one layer, forward",
            ("forward",),
            *((4, 4, 4) if keeps and grouped else (4, 4, c)),
        ),
        _layer_scores(
            setup,
            "scores of one layer, backward",
            ("backward",),
            *((4, c, c) if keeps else (4, 4, c, c)),
        ),
    ]
    if keeps and grouped:
        size = 4 * model.layers * setup.tokens * model.heads * setup.seq // setup.split
        heads = f"{model.heads}{over('model', setup.split)}"
        formula = (
            f"{model.layers} layers × {setup.tokens} tokens × 4 B × {heads} "
            f"× {setup.seq}"
        )
        lines.append(_line("scores of all layers, transposed", size, formula, "loss"))
    return lines


def _layer_scores(
    setup: Setup, name: str, when: tuple[str, ...], *each: int
) -> Line:
    heads, seq = setup.transformer.heads, setup.seq
    size = setup.tokens * sum(each) * heads * seq // setup.split
    sizes = " + ".join(f"{n} B" for n in each)
    sizes = f"({sizes})" if len(each) > 1 else sizes
    formula = (
        f"{setup.tokens} tokens × {sizes} × {heads}{over('model', setup.split)} × {seq}"
    )
    return _line(name, size, formula, *when)
