"""How long a step takes by formula: kernels, and what they wait for.

The rates are those of `step_time`. What a formula cannot read off a schedule is assumed
here, as a number with a name: how many bytes the kernels between the products move, and
which part of an exchange the compiler hides behind kernels. They were chosen with 41 of
the 110 stored programs (hardware.md, plans compared with compiled programs), among them
all four for TPUs and both pipelines.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from .._time.rates import Rates
from .._training.model import MLP
from .candidates import POLICIES
from .exchanges import Exchange
from .step import Step

# Between the products of a layer: how often a tensor as wide as d_model, and one as
# wide as d_ff, is read or written in one pass; a backward pass counts twice. Of a layer
# with a gate half as much more is as wide as d_ff.
_STREAM, _HIDDEN = 12.0, 10.5
# Without a checkpoint all that is kept is copied into stacks of all layers and out.
_STACKED = 54.0
# Bytes for each score of plain attention in one pass, at the memory's speed: softmax
# works in float32. Without a checkpoint they are copied too.
_SCORES, _SCORES_STACKED = 21.5, 50.0
# Of a stack of MLPs, whose layers have no norms.
_STREAM_MLP, _HIDDEN_MLP, _STACKED_MLP = 4.0, 4.0, 4.0
# How often the sharded parameters are read or written, in float32, as they are
# converted and reordered, and the gathered ones.
_CONVERTED, _GATHERED = 9.7, 0.7
# The part of what the update reads and writes that it does by itself.
_UPDATED = 0.8
# Of experts, for each of their rows in one pass: how often one as wide as d_model is
# read or written beside the products, as it is chosen, sent and added up, and one as
# wide as expert_d_ff. Without a checkpoint both are copied into stacks too.
_ROWS, _HIDDEN_ROWS, _ROWS_STACKED = 8.0, 8.0, 10.0
# The part of all this that a kernel waits for: a TPU's own hardware copies beside them.
_WAITED = {"gpu": 1.0, "tpu": 0.77}
# Of each exchange, the part that the compilers' schedules leave exposed if there is
# work to hide it: gathers of the next weights run beside products, while a sum stands
# between a product and what reads it.
_KINDS = (
    *("all-gather", "reduce-scatter", "all-reduce", "all-to-all"),
    "collective-permute",
)
_EXPOSED = {
    "gpu": {
        "all-gather": 0.45,
        "reduce-scatter": 0.85,
        "all-reduce": 0.6,
        "all-to-all": 0.5,
        "collective-permute": 0.5,
    },
    # Its schedule hides nothing: the compiler orders for memory.
    "Ampere": dict.fromkeys(_KINDS, 0.97),
    "tpu": {
        "all-gather": 0.3,
        "reduce-scatter": 0.5,
        "all-reduce": 0.8,
        "all-to-all": 1.0,
        "collective-permute": 0.5,
    },
}


@dataclass(frozen=True, repr=False)
class Seconds:
    """The seconds of one step on each device.

    Attributes:
        total_s: kernels, and what they wait for.
        compute_s: the products and attention.
        recompute_s: of these, what runs a second time.
        memory_s: what only moves memory: norms, activations, softmax, the optimizer.
        moved: every exchange as if none of it were hidden; strategies share them.
        exposed: of each of these, the seconds that the kernels wait.
        bubble_s: of a pipeline, what a stage waits until the first microbatch reaches
            it, and after its last.
    """

    total_s: float
    compute_s: float
    recompute_s: float
    memory_s: float
    moved: tuple[Exchange, ...]
    exposed: tuple[float, ...]
    bubble_s: float = 0.0

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        """Every exchange with its seconds."""
        both = zip(self.moved, self.exposed, strict=True)
        return tuple(one.timed(one.seconds, part, one.link) for one, part in both)

    @property
    def exposed_s(self) -> float:
        """What the kernels wait for exchanges."""
        return sum(self.exposed)

    def __repr__(self) -> str:
        keys = ("total_s", "compute_s", "recompute_s", "memory_s", "exchanges")
        words = [f"{key}={getattr(self, key)!r}" for key in (*keys, "bubble_s")]
        return f"Seconds({', '.join(words)})"


def seconds_of(
    step: Step,
    state_bytes: int,
    products_s: tuple[float, float, float],
    moved: Sequence[Exchange],
    rates: Rates,
) -> Seconds:
    """The seconds of one step.

    Args:
        step: the training step.
        state_bytes: what the update reads and writes on each device.
        products_s: what `products` gives: of the layers' products, of those run again
            and of the head's.
        moved: its exchanges, with their seconds.
        rates: what the chip keeps up.
    """
    layers, again, head = products_s
    # The last stage has the head's products, and all others wait for it.
    compute = layers + again + head * step.mesh["stage"]
    speed = rates.memory_bytes_per_s / _WAITED[rates.chip.kind]
    memory = _memory_bytes(step) / speed
    update = _UPDATED * state_bytes / speed
    # Two thirds of the work are in the backward pass.
    # What can hide exchanges: in the forward pass its third of the products, and of
    # what moves memory one of its passes; in the update what the optimizer moves.
    forward = (layers + head * step.mesh["stage"]) / 3 + memory / _passes(step)
    beside = {
        "forward": forward,
        "backward": compute + memory - forward,
        "update": state_bytes / rates.memory_bytes_per_s,
    }
    part = _exposed(rates)
    hidden = dict.fromkeys(beside, 0.0)
    for one in moved:
        hidden[one.when] += (1 - part[one.kind]) * one.seconds
    # Of the exchanges of one pass no more is hidden than there is work.
    share = {
        when: min(1.0, beside[when] / each) if each else 1.0
        for when, each in hidden.items()
    }
    every, waiting, passes = [], 0.0, compute + memory
    for one in moved:
        behind = share[one.when] * (1 - part[one.kind]) * one.seconds
        # What is hidden slows the kernels beside it.
        exposed = one.seconds - behind + rates.slowed * behind
        waiting += exposed
        passes += exposed if one.when != "update" else 0.0
        every.append(exposed)
    bubble = passes * (step.mesh["stage"] - 1) / (step.microbatches * step.chunks)
    total = compute + memory + update + waiting + bubble
    both = tuple(moved), tuple(every)
    return Seconds(total, compute, again, memory + update, *both, bubble)


def least_seconds(
    step: Step,
    products_s: tuple[float, float, float],
    moved: Iterable[Exchange],
    rates: Rates,
) -> float:
    """What no strategy on the mesh of a step is faster than.

    Its products, nothing run again; what its kernels move at least, by any policy and
    stage of ZeRO; and what the exchanges that all of these have take, as hidden as can
    be.
    """
    part = _exposed(rates)
    layers, _, head = products_s
    # Among the policies there are two ways through memory: to run again, or to stack.
    both = {step.recompute, POLICIES[-1]}
    moving = min([_memory_bytes(step.under(2, one)) for one in both])
    memory = moving * _WAITED[rates.chip.kind] / rates.memory_bytes_per_s
    waiting = 0.0
    for one in moved:
        hidden = 1 - part[one.kind]
        waiting += (part[one.kind] + rates.slowed * hidden) * one.seconds
    bubble = (step.mesh["stage"] - 1) / (step.microbatches * step.chunks)
    return (layers + head * step.mesh["stage"] + memory + waiting) * (1 + bubble)


def _exposed(rates: Rates) -> dict[str, float]:
    chip = rates.chip
    return _EXPOSED.get(chip.generation) or _EXPOSED[chip.kind]


def products(step: Step, rates: Rates) -> tuple[float, float, float]:
    """Seconds of the layers' products and attention, of what runs again, of the head.

    As if every device had its part of each.
    """
    model = step.model
    rate = rates.flops_per_s["bf16" if step.each == 2 else "f32"]
    if isinstance(model, MLP):
        first = model.flops(step.batch)
        again = model.flops(step.batch, step.recompute) - first
        return first / step.devices / rate, again / step.devices / rate, 0.0
    once = 2 * step.batch * step.seq * model.d_model * model.vocab
    first = model.flops(step.batch, step.seq)
    again = model.flops(step.batch, step.seq, step.recompute) - first
    first -= 3 * once
    # Rows that an expert has room for are multiplied, whether they are used or not.
    unused = (step.capacity_factor - 1) * _expert_flops(step)
    layers = first + 3 * unused
    repeated = again + (unused if step.recomputes else 0.0)
    # The gradient of the logits is in float32, and so are the head's two products.
    head = once / rate + 2 * once / rates.flops_per_s["f32"]
    if step.attention != "flash":
        parts = layers / rate, repeated / rate, head
    else:
        # A kernel skips what a causal mask hides, and has rates of its own. Under a
        # checkpoint it runs again.
        scores = _score_flops(step)
        forward = scores / 2 / rates.attention_per_s["forward"]
        backward = scores / rates.attention_per_s["backward"]
        seconds = (layers - 3 * scores) / rate + forward + backward
        more = (repeated - scores) / rate + forward if step.recomputes else 0.0
        parts = seconds, more, head
    of_layers, recomputed, of_head = (part / step.devices for part in parts)
    return of_layers, recomputed, of_head


def _expert_flops(step: Step) -> float:
    """FLOPs of the experts' products in a forward pass, on all devices."""
    model = step.model
    assert not isinstance(model, MLP)
    tokens = step.batch * step.seq * (model.experts_per_token or 0)
    return 2 * tokens * model.moe_layers * model.expert_parameters


def _score_flops(step: Step) -> int:
    """FLOPs of attention's two products in a forward pass, on all devices."""
    model = step.model
    assert not isinstance(model, MLP)
    wide = 2 * model.heads * model.head_dim
    reach = model.global_layers * step.seq
    if model.window is not None:
        near = min(step.seq, model.window)
        reach += (model.layers - model.global_layers) * near
    return 2 * step.batch * step.seq * reach * wide


def _passes(step: Step) -> int:
    """Forward passes that a step is as long as: a backward one is two."""
    return 4 if step.recomputes else 3


def _memory_bytes(step: Step) -> float:
    """Bytes that kernels without products read and write in a device's layers."""
    model, each = step.model, step.each
    passes = _passes(step)
    stream, hidden, stacked = _STREAM, _HIDDEN, _STACKED
    if isinstance(model, MLP):
        stream, hidden, stacked = _STREAM_MLP, _HIDDEN_MLP, _STACKED_MLP
    elif model.gated:
        hidden *= 1.5
    wide = passes * stream * model.d_model
    if not step.recomputes:
        wide += stacked * model.d_model
    widths = (step.layers - step.moe_layers) * model.d_ff
    if not isinstance(model, MLP) and step.moe_layers:
        widths += step.moe_layers * model.shared_experts * (model.expert_d_ff or 0)
    inside = passes * hidden * widths / step.split
    total = step.tokens * each * (step.layers * wide + inside)
    total += each * step.moe_layers * _row_numbers(step)
    numbers = step.numbers * step.microbatches
    total += _CONVERTED * 4 * numbers / step.mesh["fsdp"] + _GATHERED * each * numbers
    if step.microbatches > 1:
        total += step.microbatches * _sum_bytes(step)
    if isinstance(model, MLP) or step.attention == "flash":
        return total
    scores = step.layers * step.tokens * step.seq * model.heads / step.split
    every = 0.0 if step.recomputes else _SCORES_STACKED
    return total + scores * (passes * _SCORES + every)


def _sum_bytes(step: Step) -> float:
    """What it moves to add the gradients of one microbatch to their sum."""
    shards = step.mesh["fsdp"] * (step.mesh["data"] if step.zero == 2 else 1)
    return 3 * step.each_param * (step.numbers + step.ends_numbers) / shards


def _row_numbers(step: Step) -> float:
    """Numbers that the rows of one layer's experts read and write."""
    model = step.model
    if isinstance(model, MLP) or model.expert_d_ff is None:
        return 0.0
    passes = _passes(step)
    wide, inside = passes * _ROWS, passes * _HIDDEN_ROWS
    if not step.recomputes:
        wide, inside = wide + _ROWS_STACKED, inside + _ROWS_STACKED
    each = wide * model.d_model + inside * model.expert_d_ff / step.split
    return step.expert_rows * each


def numbers() -> dict[str, Any]:
    """The numbers that are assumed at the top, by name, for the page's twin."""
    return {
        "stream": _STREAM,
        "hidden": _HIDDEN,
        "stacked": _STACKED,
        "scores": _SCORES,
        "scoresStacked": _SCORES_STACKED,
        "converted": _CONVERTED,
        "gathered": _GATHERED,
        "updated": _UPDATED,
        "rows": _ROWS,
        "hiddenRows": _HIDDEN_ROWS,
        "rowsStacked": _ROWS_STACKED,
        "waited": _WAITED,
        "exposed": _EXPOSED,
    }
