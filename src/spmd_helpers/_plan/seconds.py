"""How long a step takes by formula: kernels, and what they wait for.

The rates are those of `step_time`. What a formula cannot read off a schedule is assumed
here, as a number with a name: how many bytes the kernels between the products move, and
which part of an exchange the compiler hides behind kernels. They were chosen on two
thirds of the stored plans (hardware.md, plans held against compiled programs).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import inf

from .._time.rates import Rates
from .._training.model import MLP
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


@dataclass(frozen=True)
class Seconds:
    """The seconds of one step on each device.

    Attributes:
        total_s: kernels, and what they wait for.
        compute_s: the products and attention.
        recompute_s: of these, what runs a second time.
        memory_s: what only moves memory: norms, activations, softmax, the optimizer.
        exchanges: every exchange with its seconds.
    """

    total_s: float
    compute_s: float
    recompute_s: float
    memory_s: float
    exchanges: tuple[Exchange, ...]

    @property
    def exposed_s(self) -> float:
        """What the kernels wait for exchanges."""
        return sum(one.exposed_s for one in self.exchanges)


def seconds_of(
    step: Step,
    state_bytes: int,
    products_s: tuple[float, float],
    moved: Iterable[Exchange],
    priced: Callable[[Exchange], tuple[float, str]],
    rates: Rates,
) -> Seconds:
    """The seconds of one step.

    Args:
        step: the training step.
        state_bytes: what the update reads and writes on each device.
        products_s: what `products` gives: of the products, and of those run again.
        moved: its exchanges, without seconds.
        priced: gives the seconds of an exchange, and its link.
        rates: what the chip keeps up.
    """
    first, again = products_s
    compute = first + again
    memory = _memory_bytes(step, state_bytes) / rates.memory_bytes_per_s
    # Two thirds of the work are in the backward pass.
    beside = {"forward": (compute + memory) / 3, "backward": (compute + memory) / 1.5}
    chip = rates.chip
    part = _EXPOSED.get(chip.generation) or _EXPOSED[chip.kind]
    timed, waiting = [], 0.0
    for one in moved:
        seconds, link = priced(one)
        exposed = max(part[one.kind] * seconds, seconds - beside.get(one.when, inf))
        # What is hidden slows the kernels beside it.
        exposed += rates.slowed * (seconds - exposed)
        waiting += exposed
        timed.append(one.timed(seconds, exposed, link))
    return Seconds(compute + memory + waiting, compute, again, memory, tuple(timed))


def products(step: Step, rates: Rates) -> tuple[float, float]:
    """Seconds of the products and of attention, and of what runs again."""
    model = step.model
    rate = rates.flops_per_s["bf16" if step.each == 2 else "f32"]
    if isinstance(model, MLP):
        first = model.flops(step.batch)
        again = model.flops(step.batch, step.recompute) - first
        return first / step.devices / rate, again / step.devices / rate
    # The gradient of the logits is in float32, and so are the head's two products.
    head = 4 * step.batch * step.seq * model.d_model * model.vocab
    first = model.flops(step.batch, step.seq)
    again = model.flops(step.batch, step.seq, step.recompute) - first
    if step.attention != "flash":
        seconds = (first - head) / rate + head / rates.flops_per_s["f32"]
        return seconds / step.devices, again / rate / step.devices
    # A kernel skips what a causal mask hides, and has rates of its own. Under a
    # checkpoint it runs again.
    scores = _score_flops(step)
    forward = scores / 2 / rates.attention_per_s["forward"]
    backward = scores / rates.attention_per_s["backward"]
    seconds = (first - 3 * scores - head) / rate + head / rates.flops_per_s["f32"]
    repeated = (again - scores) / rate + forward if step.recomputes else 0.0
    return (seconds + forward + backward) / step.devices, repeated / step.devices


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


def _memory_bytes(step: Step, state_bytes: int) -> float:
    """Bytes that kernels without products read and write, on one device."""
    model, each = step.model, step.each
    passes = 4 if step.recomputes else 3
    stream, hidden, stacked = _STREAM, _HIDDEN, _STACKED
    if isinstance(model, MLP):
        stream, hidden, stacked = _STREAM_MLP, _HIDDEN_MLP, _STACKED_MLP
    elif model.gated:
        hidden *= 1.5
    wide = passes * (stream * model.d_model + hidden * model.d_ff / step.split)
    if not step.recomputes:
        wide += stacked * model.d_model
    total = model.layers * step.tokens * each * wide + _UPDATED * state_bytes
    weights = model.layers * step.layer_numbers
    total += _CONVERTED * 4 * weights / step.mesh["fsdp"] + _GATHERED * each * weights
    if isinstance(model, MLP) or step.attention == "flash":
        return total
    scores = model.layers * step.tokens * step.seq * model.heads / step.split
    every = 0.0 if step.recomputes else _SCORES_STACKED
    return total + scores * (passes * _SCORES + every)
