"""What the devices of a mesh exchange in one step, and what each exchange costs.

The counts are those of the step in chapter 11 and of `tools.measure.truth.reference`:
layers under one scan, as both compilers lower it. Weights are gathered in the type of
the computation, once for the forward and once for the backward pass, and their
gradients are summed in it.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from math import prod

from .._hlo.collectives import Collective
from .._time.links import price
from .._time.rates import Rates
from .._training.model import MLP
from .cluster import ORDER, Chips, Group
from .step import Step

PLACE = {axis: place for place, axis in enumerate(ORDER)}
# Bytes that a device sends, of the bytes that an exchange is named with, in a group
# of n: of an all-gather the result, otherwise what one device puts in.
SENT: dict[str, Callable[[int], float]] = {
    "all-gather": lambda n: (n - 1) / n,
    "reduce-scatter": lambda n: (n - 1) / n,
    "all-reduce": lambda n: 2 * (n - 1) / n,
    "all-to-all": lambda n: (n - 1) / n,
    "collective-permute": lambda n: 1.0,
}


@dataclass(frozen=True)
class Exchange:
    """One kind of collective of a step, over some axes of the mesh.

    Attributes:
        what: what is sent: 'weights', 'gradients', 'activations', 'keys and values',
            'head', 'embedding' or 'new parameters'.
        kind: 'all-gather', 'reduce-scatter', 'all-reduce', 'all-to-all' or
            'collective-permute'.
        axes: the axes that it goes over.
        when: 'forward', 'backward' or 'update'.
        count: how often in a step; of weights, once for each layer.
        nbytes: of one: the result of an all-gather, otherwise what a device puts in.
        seconds: of all together.
        exposed_s: of these, what the kernels wait.
        link: what it is sent over.
    """

    what: str
    kind: str
    axes: tuple[str, ...]
    when: str
    count: int
    nbytes: int
    seconds: float = 0.0
    exposed_s: float = 0.0
    link: str = ""

    def timed(self, seconds: float, exposed_s: float, link: str) -> "Exchange":
        """The same with its seconds."""
        what, kind, axes, when = self.what, self.kind, self.axes, self.when
        count, nbytes = self.count, self.nbytes
        return Exchange(what, kind, axes, when, count, nbytes, seconds, exposed_s, link)

    @property
    def name(self) -> str:
        """As a table names it: 'all-gather over fsdp'."""
        return f"{self.kind} over {' and '.join(self.axes)}"


def exchanges(step: Step) -> Iterator[Exchange]:
    """Every exchange of a step; those of one scalar are left out."""
    yield from _of_weights(step)
    yield from _of_gradients(step)
    yield from _of_activations(step)
    yield from _of_keys(step)


def _of_weights(step: Step) -> Iterator[Exchange]:
    """FSDP gathers each layer's weights before they are used, in both passes."""
    if step.mesh["fsdp"] == 1:
        return
    matrices = _matrices(step)
    weights = step.each * step.layer_numbers // matrices
    count, axes = matrices * step.model.layers, ("fsdp",)
    for when in ("forward", "backward"):
        yield Exchange("weights", "all-gather", axes, when, count, weights)
        if step.rows:
            head = step.each * step.head_numbers
            yield Exchange("head", "all-gather", axes, when, 1, head)
            rows = step.each * step.tokens * step.model.d_model
            yield Exchange("embedding", "all-to-all", axes, when, 1, rows)


def _matrices(step: Step) -> int:
    """How many matrices of a layer are exchanged each by itself; k and v together."""
    if isinstance(step.model, MLP):
        return 2
    return 6 if step.model.gated else 5


def _of_gradients(step: Step) -> Iterator[Exchange]:
    """Summed over the devices that have other sequences or other tokens.

    Over the axes that shard them a reduce-scatter, over others an all-reduce of what
    is left.
    """
    layers, mesh = step.model.layers, step.mesh
    over = ("data", "fsdp") if step.zero == 2 else ("fsdp",)
    scattered = tuple(axis for axis in over if mesh[axis] > 1)
    summed = tuple(
        axis for axis in ("data", "context") if mesh[axis] > 1 and axis not in scattered
    )
    # Two reduce-scatters a layer; an all-reduce of each matrix.
    pieces = _matrices(step)
    parts = [("gradients", layers, step.each * step.layer_numbers)]
    if step.rows:  # of the head in float32, as its product gives them
        parts.append(("head", 1, 4 * step.head_numbers))
        parts.append(("embedding", 1, step.each * step.head_numbers))
    for what, count, size in parts:
        each = pieces if what == "gradients" else 1
        two = 2 if what == "gradients" else 1
        if scattered:
            kind = "reduce-scatter"
            yield Exchange(what, kind, scattered, "backward", two * count, size // two)
        if summed:
            left = size // prod(mesh[axis] for axis in scattered)
            yield Exchange(
                what, "all-reduce", summed, "backward", each * count, left // each
            )
    if step.zero and mesh["data"] > 1:
        whole = layers * step.layer_numbers
        if step.rows:
            whole += (1 if _is_tied(step) else 2) * step.head_numbers
        size = step.each_param * whole // mesh["fsdp"]
        yield Exchange("new parameters", "all-gather", ("data",), "update", 1, size)


def _is_tied(step: Step) -> bool:
    return not isinstance(step.model, MLP) and step.model.tied


def _of_activations(step: Step) -> Iterator[Exchange]:
    """Tensor parallelism sums what heads and parts of d_ff have computed."""
    if step.split == 1:
        return
    model, axes, kind = step.model, ("model",), "all-reduce"
    stream = step.each * step.tokens * model.d_model
    sums = 1 if isinstance(model, MLP) else 2
    forward, backward = sums * model.layers, sums * model.layers
    if step.recompute == "nothing_saveable" and sums == 2:
        # The second sum of a layer is nothing that the backward pass reads.
        backward += model.layers
    yield Exchange("activations", kind, axes, "forward", forward, stream)
    yield Exchange("activations", kind, axes, "backward", backward, stream)
    if step.rows:
        yield Exchange("embedding", kind, axes, "forward", 1, stream)
        wide = 4 * step.tokens * model.d_model
        yield Exchange("head", kind, axes, "backward", 1, wide)


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


@dataclass
class Prices:
    """Seconds of exchanges on one cluster, each price asked once.

    Attributes:
        chips: the cluster.
        rates: of its chip.
    """

    chips: Chips
    rates: Rates
    _groups: dict[object, Group] = field(default_factory=dict)
    _known: dict[object, tuple[float, float, str]] = field(default_factory=dict)

    def of(self, one: Exchange, mesh: Mapping[str, int]) -> tuple[float, str]:
        """Seconds of all runs of an exchange, and the link it is sent over."""
        shape = tuple(mesh.values())
        axes = tuple(PLACE[axis] for axis in one.axes)
        key = (shape, axes)
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = self.chips.group(shape, axes)
        known = self._known.get((one.kind, group))
        if known is None:
            known = self._known[one.kind, group] = self._price(one.kind, group)
        start, a_byte, link = known
        return one.count * (start + one.nbytes * a_byte), link

    def _price(self, kind: str, group: Group) -> tuple[float, float, str]:
        """Seconds before it sends, and for each byte that it is named with."""
        many = 1 << 40
        sent = round(SENT[kind](group.size) * many)
        found = price(
            _collective(kind, group.size, many, sent), self.rates, group.positions
        )
        return found.start_s, found.sending_s / many, found.lane


def _collective(kind: str, size: int, nbytes: int, sent: int) -> Collective:
    """The record that `price` reads: one run of an exchange in a group."""
    return Collective(
        kind=kind,
        axes=(),
        count=1,
        dtype="",
        operand_bytes=nbytes,
        result_bytes=nbytes,
        wire_bytes=sent,
        source=None,
        phase=None,
        groups=(tuple(range(size)),),
    )
