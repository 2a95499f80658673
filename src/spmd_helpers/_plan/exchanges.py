"""What the devices of a mesh exchange in one step, and what each exchange costs.

The counts are those of the step in chapter 11 and of `tools.measure.truth.reference`:
layers under one scan, as both compilers lower it. Weights are gathered in the type of
the computation, once for the forward and once for the backward pass, and their
gradients are summed in it.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import NamedTuple

from .._hlo.collectives import Collective
from .._hlo.ring import sent
from .._time.links import options
from .._time.rates import Rates
from .._training.model import MLP
from .cluster import ORDER, Chips, Group, Standing
from .step import Step

PLACE = {axis: place for place, axis in enumerate(ORDER)}


class Exchange(NamedTuple):
    """One kind of collective of a step, over some axes of the mesh.

    Attributes:
        what: what is sent: 'weights', 'gradients', 'activations', 'keys and values',
            'tokens' (to the experts and back), 'head', 'embedding' or 'new parameters'.
        kind: 'all-gather', 'reduce-scatter', 'all-reduce', 'all-to-all' or
            'collective-permute'.
        axes: the axes that it goes over.
        when: 'forward', 'backward' or 'update'.
        count: how often in a step; of weights, once for each matrix, layer and
            microbatch.
        nbytes: of one: the result of an all-gather, otherwise what a device puts in.
        seconds: of all together.
        exposed_s: of these, what the kernels wait.
        link: what it is sent over.
    """

    what: str
    kind: str
    axes: tuple[str, ...]
    when: str
    count: int  # type: ignore[assignment]  # hides the method of a tuple
    nbytes: int
    seconds: float = 0.0
    exposed_s: float = 0.0
    link: str = ""

    def timed(self, seconds: float, exposed_s: float, link: str) -> "Exchange":
        """The same with its seconds."""
        what, kind, axes, when, count, nbytes, *_ = self
        return Exchange(what, kind, axes, when, count, nbytes, seconds, exposed_s, link)

    @property
    def name(self) -> str:
        """As a table names it: 'all-gather over fsdp'."""
        return f"{self.kind} over {' and '.join(self.axes)}"


def exchanges(step: Step) -> Iterator[Exchange]:
    """Every exchange of a step; those of one scalar are left out."""
    yield from in_passes(step)
    yield from of_gradients(step)
    yield from of_new_parameters(step)


def in_passes(step: Step) -> Iterator[Exchange]:
    """Those of the passes, without the gradients that `zero` shards in its own way."""
    yield from _of_weights(step)
    yield from _of_activations(step)
    yield from _of_keys(step)
    yield from _of_tokens(step)
    yield from _of_stages(step)


class _Matrices(NamedTuple):
    """What layers of one kind are made of, as far as they are exchanged alike.

    Attributes:
        layers: how many of them a device has.
        count: matrices of a layer that are exchanged each by itself.
        numbers: of one layer's, on a device that shards them over `model` and `expert`.
        are_experts: whether each device of `expert` has its own.
    """

    layers: int
    count: int  # type: ignore[assignment]  # hides the method of a tuple
    numbers: int
    are_experts: bool = False


def _matrices(step: Step) -> Iterator[_Matrices]:
    """The matrices of the layers, k and v together."""
    model, moe = step.model, step.moe_layers
    if isinstance(model, MLP):
        yield _Matrices(step.layers, 2, step.mlp_numbers)
        return
    wide = 3 if model.gated else 2
    if step.layers > moe:
        numbers = step.attention_numbers + step.mlp_numbers
        yield _Matrices(step.layers - moe, 3 + wide, numbers)
    if moe:
        numbers = step.attention_numbers + step.shared_numbers
        yield _Matrices(moe, 3 + (wide if model.shared_experts else 0), numbers)
        yield _Matrices(moe, wide, step.expert_numbers, are_experts=True)


def _of_weights(step: Step) -> Iterator[Exchange]:
    """FSDP gathers each layer's weights before they are used, in both passes.

    A pipeline does so for each microbatch.
    """
    if step.mesh["fsdp"] == 1:
        return
    axes, times = ("fsdp",), step.microbatches
    for when in ("forward", "backward"):
        for one in _matrices(step):
            # Under a checkpoint those of experts are gathered before they are cast.
            is_wide = one.are_experts and step.recomputes and when == "backward"
            each = step.each_param if is_wide else step.each
            count = one.count * one.layers * times
            size = each * one.numbers // one.count
            yield Exchange("weights", "all-gather", axes, when, count, size)
        if step.rows:
            head = step.each * step.head_numbers
            yield Exchange("head", "all-gather", axes, when, times, head)
            rows = step.each * step.tokens * step.model.d_model // times
            yield Exchange("embedding", "all-to-all", axes, when, times, rows)


def of_gradients(step: Step) -> Iterator[Exchange]:
    """Summed over the devices that have other sequences or other tokens.

    Over the axes that shard them a reduce-scatter, over others an all-reduce of what
    is left. A pipeline does so for each microbatch. With ZeRO-1 they are those without.
    """
    for one in _matrices(step):
        # Two reduce-scatters a layer, of experts one of each; an all-reduce of each.
        scatters = one.count if one.are_experts else 2
        size = step.each * one.numbers
        times = one.layers * step.microbatches
        yield from _sums(
            step, "gradients", times, size, scatters, one.count, one.are_experts
        )
    if step.rows:  # of the head in float32, as its product gives them
        times = step.microbatches
        yield from _sums(step, "head", times, 4 * step.head_numbers)
        yield from _sums(step, "embedding", times, step.each * step.head_numbers)
    mesh = step.mesh
    if step.rows and mesh["stage"] > 1:
        # All stages have both, and each the gradients of what it did with them.
        size = step.each_param * step.ends_numbers // mesh["fsdp"]
        yield Exchange("embedding", "all-reduce", ("stage",), "update", 1, size)


def of_new_parameters(step: Step) -> Iterator[Exchange]:
    """ZeRO-1 and ZeRO-2 update shards of the parameters, and gather the new ones."""
    mesh = step.mesh
    if step.zero and mesh["data"] > 1:
        size = step.each_param * (step.numbers + step.ends_numbers) // mesh["fsdp"]
        yield Exchange("new parameters", "all-gather", ("data",), "update", 1, size)


def _sums(
    step: Step,
    what: str,
    times: int,
    size: int,
    scatters: int = 1,
    reduces: int = 1,
    are_experts: bool = False,
) -> Iterator[Exchange]:
    """The sums of gradients of so many bytes, in so many pieces."""
    mesh = step.mesh
    over = ("data", "fsdp") if step.zero == 2 else ("fsdp",)
    scattered = tuple(axis for axis in over if mesh[axis] > 1)
    others = ("data", "context") if are_experts else ("data", "expert", "context")
    summed = tuple(axis for axis in others if mesh[axis] > 1 and axis not in scattered)
    if scattered:
        kind, count = "reduce-scatter", scatters * times
        yield Exchange(what, kind, scattered, "backward", count, size // scatters)
    if summed:
        left = size // prod(mesh[axis] for axis in scattered)
        count = reduces * times
        yield Exchange(what, "all-reduce", summed, "backward", count, left // reduces)


def _of_activations(step: Step) -> Iterator[Exchange]:
    """Tensor parallelism sums what heads and parts of d_ff have computed."""
    if step.split == 1:
        return
    model, axes, kind = step.model, ("model",), "all-reduce"
    times = step.microbatches
    stream = step.each * step.tokens * model.d_model // times
    sums = 1 if isinstance(model, MLP) else 2
    each = sums * step.layers * times
    forward, backward = each, each
    if step.recompute == "nothing_saveable" and sums == 2:
        # The second sum of a layer is nothing that the backward pass reads.
        backward += step.layers * times
    # The sum behind the experts is one in the backward pass too, as the one before.
    backward += step.moe_layers * times
    yield Exchange("activations", kind, axes, "forward", forward, stream)
    yield Exchange("activations", kind, axes, "backward", backward, stream)
    if step.rows:
        yield Exchange("embedding", kind, axes, "forward", times, stream)
        wide = 4 * step.tokens * model.d_model // times
        yield Exchange("head", kind, axes, "backward", times, wide)


def _of_keys(step: Step) -> Iterator[Exchange]:
    """Over `context` keys and values go around, or are gathered."""
    if step.mesh["context"] == 1 or isinstance(step.model, MLP):
        return
    model, size, axes = step.model, step.mesh["context"], ("context",)
    heads = model.kv_heads
    heads = heads if heads % step.split else heads // step.split
    both = 2 * step.each * step.tokens * heads * model.head_dim
    again = 1 if step.recomputes else 0
    if step.attention != "ring":
        kind, full = "all-gather", both * size
        count = (1 + again) * model.layers
        yield Exchange("keys and values", kind, axes, "forward", count, full)
        kind = "reduce-scatter"
        yield Exchange("keys and values", kind, axes, "backward", model.layers, full)
        return
    kind, turns = "collective-permute", size * model.layers
    yield Exchange("keys and values", kind, axes, "forward", turns, both)
    # Their gradients go around with them, in float32.
    more = both * (1 + again) + 4 * both // step.each
    yield Exchange("keys and values", kind, axes, "backward", turns, more)


def _of_tokens(step: Step) -> Iterator[Exchange]:
    """Over `expert` each token goes to the devices of its experts, and back."""
    if step.mesh["expert"] == 1:
        return
    kind, axes = "all-to-all", ("expert",)
    size = int(step.each * step.expert_rows * step.model.d_model)
    count = 2 * step.moe_layers
    again = 2 if step.recomputes else 1
    yield Exchange("tokens", kind, axes, "forward", count, size)
    yield Exchange("tokens", kind, axes, "backward", again * count, size)


def _of_stages(step: Step) -> Iterator[Exchange]:
    """Each microbatch goes from stage to stage, and its gradient back."""
    if step.mesh["stage"] == 1:
        return
    kind, axes = "collective-permute", ("stage",)
    size = step.each * step.tokens * step.model.d_model // step.microbatches
    count = step.microbatches * step.chunks
    yield Exchange("activations", kind, axes, "forward", count, size)
    yield Exchange("activations", kind, axes, "backward", count, size)


@dataclass
class Prices:
    """Seconds of exchanges on one cluster, each price asked once.

    Attributes:
        chips: the cluster.
        rates: of its chip.
    """

    chips: Chips
    rates: Rates
    _lines_of: dict[object, "_Lines"] = field(default_factory=dict)
    _at: dict[tuple[str, Standing], "list[_Lines]"] = field(default_factory=dict)

    def on(self, mesh: Mapping[str, int]) -> Callable[[Exchange], tuple[float, str]]:
        """What gives the seconds of all runs of an exchange on a mesh, and the link."""
        shape = tuple(mesh.values())
        here: dict[tuple[str, tuple[str, ...]], list[_Lines]] = {}
        known: dict[tuple[str, tuple[str, ...], int], tuple[float, str]] = {}
        standing: dict[tuple[str, ...], Standing] = {}

        def price(one: Exchange) -> tuple[float, str]:
            key = kind, axes, nbytes = one.kind, one.axes, one.nbytes
            slowest = known.get(key)
            if slowest is None:
                lines = here.get((kind, axes)) or lines_of(kind, axes)
                # The slowest group decides, each by its fastest way.
                slowest = max(
                    [
                        (min([start + nbytes * a_byte for start, a_byte in ways]), link)
                        for link, ways in lines
                    ]
                )
                known[key] = slowest
            return one.count * slowest[0], slowest[1]

        def lines_of(kind: str, axes: tuple[str, ...]) -> list[_Lines]:
            if axes not in standing:
                places = [PLACE[axis] for axis in axes]
                standing[axes] = self.chips.standing(shape, places)
            lines = here[kind, axes] = self._lines_at(kind, standing[axes])
            return lines

        return price

    def _lines_at(self, kind: str, standing: Standing) -> "list[_Lines]":
        """Those of every group that stands so."""
        if (kind, standing) not in self._at:
            groups = self.chips.groups_at(standing)
            every = [self._lines(kind, group) for group in groups]
            self._at[kind, standing] = list(dict.fromkeys(every))
        return self._at[kind, standing]

    def _lines(self, kind: str, group: Group) -> "_Lines":
        """Seconds before it sends, and for each byte that it is named with.

        Of each way to send, of which the shortest is taken.
        """
        known = self._lines_of.get((kind, group))
        if known is None:
            many = 1 << 40
            one = _collective(kind, group.size, many)
            every = options(one, one.groups[0], self.rates, group.positions)
            ways = tuple((way.start_s, way.sending_s / many) for way in every)
            known = self._lines_of[kind, group] = every[0].lane, ways
        return known


_Lines = tuple[str, tuple[tuple[float, float], ...]]


def _collective(kind: str, size: int, nbytes: int) -> Collective:
    """The record that `options` reads: one run of an exchange in a group."""
    return Collective(
        kind=kind,
        axes=(),
        count=1,
        dtype="",
        operand_bytes=nbytes,
        result_bytes=nbytes,
        wire_bytes=sent(kind, nbytes, nbytes, size),
        source=None,
        phase=None,
        groups=(tuple(range(size)),),
    )
