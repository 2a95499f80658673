"""What a step needs for a while on a GPU, as XLA's buffer assignments there show.

Each line names the tensors that were live at the peak of a phase, in the programs of
memory_gpu_compiled.json; a docstring names a row that shows its line best, without the
"compiled: " before it. Where a GPU's compiler keeps the same as the TPU's, the line is
that of transients.py.
"""

from .activations import KEPT
from .setup import Setup, over
from .state import Line, arrays, largest_matrix, sharded, weights
from .transients import (
    backward,
    gathered,
    inside,
    layer_scores,
    matrices,
    orthogonalized,
    ring,
    sequences,
)

_BUFFERS = "GPU compiler's buffers at the peak, data/measured"


def gpu_work(setup: Setup) -> list[Line]:
    """The lines of what is there in some phases only, on one GPU."""
    return [*gpu_work_on_state(setup), *gpu_work_of_passes(setup)]


def gpu_work_on_state(setup: Setup) -> list[Line]:
    """Of these, copies of what `zero` shards; they read how it is sharded."""
    lines = [*_reordered_weights(setup), *_before_backward(setup), *_updated(setup)]
    return [*lines, *_moved(setup)]


def gpu_work_of_passes(setup: Setup) -> list[Line]:
    """Those of the passes.

    They read which axes have several devices, and of `data` and `fsdp` no sizes; but
    for muon's products.
    """
    lines = []
    if setup.reads_images:
        lines += _loss_of_images(setup)
    elif not setup.is_mlp:
        lines += _loss(setup)
    if setup.scores:
        lines += _scores(setup)
    lines.append(inside(setup, "forward", 0, _BUFFERS))
    lines += sequences(setup, "forward", 1, _BUFFERS)
    lines += matrices(setup, "forward", 2, _BUFFERS)
    lines.append(inside(setup, "backward", backward(setup), _BUFFERS))
    lines += sequences(setup, "backward", 2, _BUFFERS)
    return [
        *lines,
        *matrices(setup, "backward", gathered(setup), _BUFFERS),
        *ring(setup, _BUFFERS),
        *orthogonalized(setup, _BUFFERS),
    ]


def _line(name: str, size: int, formula: str, *when: str) -> Line:
    return Line(name, formula, size, when, _BUFFERS)


def _reordered_weights(setup: Setup) -> list[Line]:
    """One matrix of all layers, transposed before the loop.

    An all-gather joins shards along the dimension that varies slowest in memory. The
    compiler transposes a stacked matrix whose sharded dimension is another one.
    Row: llama-2-7b fsdp full.
    """
    if not setup.gathers:
        return []
    each, (layers, numbers, words) = setup.stored_bytes, largest_matrix(setup)
    size = layers * each * numbers
    formula = (
        f"{layers} layers × {each} B × {words}"
        f"{over('model', setup.split)}{setup.over_shards(3)}"
    )
    size //= setup.split * setup.shards(3)
    return [_line("weights reordered for their all-gather", size, formula, *KEPT)]


def _before_backward(setup: Setup) -> list[Line]:
    """What is made between the loops: gradients that are zero, or transposed scores.

    The loop of the backward pass adds to gradients of all layers, which start as zeros.
    With grouped queries the compiler first transposes the scores that were kept, and
    has both orders of them at once. Not both, since the transposition comes first.
    Rows: mlp dp; llama8 tp.
    """
    model, cut = setup.model, over("model", setup.split)
    each, replicated, experts = weights(setup)
    numbers = (each + replicated) * setup.expert + experts
    zeros = setup.grad_bytes * numbers
    zeros //= setup.split * setup.expert * setup.shards(2)
    formula = ""
    if setup.lora is not None:
        formula, zeros = sharded(setup, setup.grad_bytes, 2)
    scores = 0
    if setup.grouped and setup.keeps_scores:
        row = 4 * setup.transformer.heads * setup.seq
        scores = model.layers * setup.tokens * row // setup.split
    layers = f"{model.layers} layers"
    if scores <= zeros:
        here = (each + replicated) // model.layers
        words = f"{layers} × {setup.grad_bytes} B × {here}"
        if experts:
            words = f"{experts}{over('expert', setup.expert)}"
            words = f"{setup.grad_bytes} B × ({each + replicated} + {words})"
        name = "gradients of the layers, zero"
        formula = formula or f"{words}{cut}{setup.over_shards(2)}"
        return [_line(name, zeros, formula, "loss")]
    row_words = f"4 B × {setup.transformer.heads}{cut} × {setup.seq}"
    formula = f"{layers} × {setup.tokens} tokens × {row_words}"
    return [_line("scores of all layers, transposed", scores, formula, "loss")]


def _updated(setup: Setup) -> list[Line]:
    """The largest parameter, all-gathered after the update of its shards.

    It does not take the place of the old one. Row: mlp zero2 momentum full.
    """
    if setup.data == 1 or setup.zero not in (1, 2) or setup.lora is not None:
        return []
    each, (layers, numbers, words) = setup.param_bytes, largest_matrix(setup)
    size = layers * each * numbers // setup.split
    formula = f"{layers} layers × {each} B × {words}{over('model', setup.split)}"
    return [_line("updated weights, gathered", size, formula, "update")]


def _moved(setup: Setup) -> list[Line]:
    """The largest array twice, on its way from the host and back.

    Rows: 1 gpu: layers host; llama-3.2-1b host full flash.
    """
    if not setup.offload_optimizer:
        return []
    each = 4 if setup.master_weights else setup.param_bytes
    most = _largest_array(setup)
    formula = f"2 × {each} B × {most}"
    return [_line("moved to the host and back", 2 * each * most, formula, "update")]


def _largest_array(setup: Setup) -> int:
    """Numbers on each device of the largest array of the optimizer's state."""
    if setup.lora is not None:
        return max(one.device_numbers() for one in arrays(setup))
    layers, numbers, _ = largest_matrix(setup)
    sizes = [layers * numbers]
    if not setup.is_mlp and not setup.reads_images:
        sizes.append(setup.rows * setup.model.d_model)
    return max(sizes) // (setup.split * setup.shards(1))


def _loss(setup: Setup) -> list[Line]:
    """The head, all-gathered once for each pass; logits, and their gradient.

    The gradient takes the place of the logits. Where other devices have other rows of
    the batch it waits: the compiler computes the head's gradient from it at the end,
    while the gradients of the layers are exchanged. It schedules so by the times that
    it estimates, for Hopper and Blackwell (IsSupportedForModule of openxla/xla's
    SolLatencyEstimator). For Ampere it schedules by memory: the head's gradient waits
    for its reduce-scatter, or the logits' where that is smaller.
    Over fsdp or context the head's waits. Over fsdp and expert it is the one or the
    other, and the larger is counted. With the optimizer's state on the host the
    gradient was beside the logits (1 gpu: llama host lion full flash).
    Rows: llama8 zero2 master full; gpt3-2.7b fsdp full; sinks experts full, latent
    experts full and llama ring weights of axes_gpu.json.
    """
    if setup.lora is not None:
        return _loss_of_frozen(setup)
    c, cut = setup.compute_bytes, over("model", setup.split)
    rows, wide = setup.rows, setup.model.d_model
    times = 2 if setup.gathers else 1
    several = f"{times} × " if times > 1 else ""
    head, formula = times * c * rows * wide // setup.split, f"{c} B × {rows}{cut}"
    formula = f"{several}{formula} × {wide}"
    lines = [_line("head as computed with", head, formula, "forward", "loss")]
    size = 4 * setup.tokens * rows // setup.split
    formula = f"{setup.tokens} tokens × 4 B × {rows}{cut}"
    lines.append(_line("logits", size, formula, "loss"))
    if setup.offload_optimizer:
        lines.append(
            _line("gradient of the logits, beside them", size, formula, "loss")
        )
    when = ("backward", "update")
    if setup.stage > 1:  # it comes and goes with each microbatch
        return lines
    waits = setup.data > 1 or setup.expert > 1
    if waits and setup.context == 1 and setup.generation != "Ampere":
        lines.append(_line("gradient of the logits", size, formula, *when))
    elif setup.gathers:
        least = min(wide, setup.tokens)
        name = f"gradient of the {'head' if least == wide else 'logits'}"
        size, formula = 4 * least * rows // setup.split, f"4 B × {rows}{cut} × {least}"
        lines.append(_line(name, size, formula, *when))
    return lines


def _loss_of_images(setup: Setup) -> list[Line]:
    """Scores of classes, of each image's class token; and the patches as used.

    The gradient of their matrix uses the patches again.
    """
    images, c = setup.batch, setup.compute_bytes
    rows, cut = setup.rows, over("model", setup.split)
    size = 4 * images * rows // setup.split
    pixels = setup.transformer.pixels
    patches = images * (setup.seq - 1) * pixels * c
    words = f"{images} images × {setup.seq - 1} × {c} B × {pixels}"
    return [
        _line("logits", size, f"{images} images × 4 B × {rows}{cut}", "loss"),
        _line("patches as computed with", patches, words, *KEPT),
    ]


def _loss_of_frozen(setup: Setup) -> list[Line]:
    """The same with a head that has no gradient.

    The logits' gradient is beside the logits, and gone after the loss. The head is
    there where it is converted or gathered; with a kernel for attention its transpose
    stays for all passes. Rows: 1 gpu: llama lora full flash; llama-3.2-1b lora.
    """
    c, cut = setup.compute_bytes, over("model", setup.split)
    rows, wide = setup.rows, setup.model.d_model
    logits = 4 * setup.tokens * rows // setup.split
    words = f"{setup.tokens} tokens × 4 B × {rows}{cut}"
    lines = [
        _line("logits", logits, words, "loss"),
        _line("gradient of the logits", logits, words, "loss"),
    ]
    head, formula = c * rows * wide // setup.split, f"{c} B × {rows}{cut} × {wide}"
    if setup.stored_bytes != c or setup.gathers:
        lines.append(_line("head as computed with", head, formula, "forward", "loss"))
    elif not setup.scores:
        when = ("forward", "backward")
        lines.append(_line("head, transposed", head, formula, *when))
    size, words = setup.tokens * c * wide, f"{setup.tokens} tokens × {c} B × {wide}"
    return [*lines, _line("input of the head", size, words, "loss")]


def _scores(setup: Setup) -> list[Line]:
    """Scores of one layer in each pass, and the mask of them.

    The forward pass has the products and the constant that the mask puts in their
    place, both in float32, and the softmax's result: as it is used, or in float32 where
    queries are grouped and it is kept. The mask stays for the backward pass; where
    there are sinks it is made again. Rows: gpt2-medium fsdp; llama-3.2-3b tp; sinks
    experts full of axes_gpu.json.
    """
    c = setup.compute_bytes
    wide = setup.grouped and setup.keeps_scores
    forward: tuple[int, ...] = (4, 4, 4 if wide else c)
    if setup.reads_images:  # no mask, and so no constant in its place
        forward = forward[1:]
    gone = setup.saved or setup.offloaded or (setup.lora and setup.checkpointed)
    mask = ("forward", "loss") if gone else KEPT
    name = "scores of one layer"
    masks = [layer_scores(setup, "mask of the scores", mask, _BUFFERS, 1)]
    return [
        *([] if setup.has_sinks or setup.reads_images else masks),
        layer_scores(setup, f"{name}, forward", ("forward",), _BUFFERS, *forward),
        layer_scores(
            setup, f"{name}, backward", ("backward",), _BUFFERS, *_backward(setup)
        ),
    ]


def _backward(setup: Setup) -> tuple[int, ...]:
    """Bytes of each tensor of scores that a backward pass has at once.

    The gradient in float32, that of the softmax's result and that result as they are
    used. Recomputed, the products are there in float32 too. On Ampere, and with sinks,
    the result has gone by then. On Blackwell the exponentials replace the products, and
    without grouped queries, which would need another order of them, the gradient
    replaces the exponentials. Where attention's last product is kept, Hopper's compiler
    recomputes the scores alone: with grouped queries it has their result in two orders.
    Rows:
    gpt3-2.7b 2d, gpt3-6.7b fsdp full, gpt3-2.7b fsdp full, llama-2-7b fsdp full 64;
    gpt weights, llama weights of axes_gpu.json.
    """
    c = setup.compute_bytes
    if setup.recompute == "everything_saveable":
        return (4, c, c)
    if setup.generation == "Ampere" or setup.has_sinks:
        return (4, 4, c)
    if setup.generation == "Hopper" and setup.keeps_out and not setup.keeps_scores:
        return (4, 4, c, c, c) if setup.grouped else (4, 4, c)
    if setup.generation == "Blackwell" and not setup.grouped:
        return (4, c, c)
    return (4, 4, c, c)
