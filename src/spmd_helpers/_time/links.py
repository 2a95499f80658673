"""What a collective costs, by the links that its groups cross.

Within a host of GPUs, a ring: Patarasuk and Yuan (2009), as `Collective.wire_bytes`
counts it, at rates by the size of the group. Over hosts what is sent is the least that
a hierarchical collective sends, (hosts - 1) / hosts of the array; a ring of n devices
sends (n - 1) / n of it, up to twice as much over two hosts. A host sends over as many
network cards together as a group has GPUs there, and the slower of the two levels
decides: jax-ml/scaling-book gpus.md @1a55377, "Cross-node collectives"; XLA's own model
divides by the same number (sol_gpu_cost_model.cc @3e1a45f, `RingLatency`). On a TPU's
torus a group uses the links of every direction in which it extends, both ways where
they close to a ring: scaling-book tpus.md @04d8de5.

Before it sends, a collective over up to four hosts takes a round trip for each of them
but one. These are fewer than in XLA's model, which takes (num_gpus - 1) /
num_gpus_per_node of them, for an all-reduce twice. Beyond four hosts only the growth
follows the model by which NCCL itself chooses how to send (NVIDIA/nccl
src/graph/tuning.cc @5067397), without NVLS and without its corrections: a ring passes
every device of the group, a tree, which only an all-reduce can be, as many levels as
the logarithm of the hosts. Short messages go with protocols that wait less and use less
of the links. The shortest of all these is taken. An all-to-all is charged one start
however many hosts there are, where XLA's model has a round trip for each device of the
others.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .._hardware.positions import Positions
from .._hlo.collectives import Collective
from .rates import NEAR, Rates

# NCCL's model of its algorithms and protocols (tuning.cc, hwLatencies): seconds of a
# step within a host and between hosts, and the share of the links' speed.
_RINGS = {
    "LL": (0.6e-6, 2.7e-6, 0.5),
    "LL128": (1.9e-6, 4.0e-6, 0.92),
    "Simple": (3.4e-6, 14.0e-6, 1.0),
}
_TREES = {
    "LL": (0.6e-6, 5.0e-6, 1 / 3.8),
    "LL128": (1.25e-6, 8.5e-6, 0.92 * 120 / 128),
    "Simple": (4.0e-6, 14.0e-6, 0.92),
}
_RINGS_OF = ("all-gather", "reduce-scatter", "all-reduce")
_FEW_HOSTS = 4  # over up to so many each but one takes a round trip


@dataclass(frozen=True)
class Price:
    """Seconds of one run of a collective: before it sends, and while it sends."""

    lane: str
    start_s: float
    sending_s: float

    @property
    def seconds(self) -> float:
        return self.start_s + self.sending_s

    @property
    def limit(self) -> str:
        return "start" if self.start_s > self.sending_s else "bytes sent"


def price(collective: Collective, rates: Rates, positions: Positions) -> Price:
    """The seconds of one run: those of its slowest group.

    Args:
        collective: one of the program.
        rates: of the chip.
        positions: of the program's devices.
    """
    groups = collective.groups or (tuple(range(len(positions.hosts))),)
    prices = [
        min(options(collective, group, rates, positions), key=lambda one: one.seconds)
        for group in _distinct(groups)
    ]
    return max(prices, key=lambda price: price.seconds)


def options(
    collective: Collective, group: tuple[int, ...], rates: Rates, positions: Positions
) -> list[Price]:
    """The ways to run a collective in a group, of which the shortest is taken.

    Between hosts of GPUs there are several, which wait more or send faster.

    Args:
        collective: one of the program.
        group: the devices that exchange.
        rates: of the chip.
        positions: of the program's devices.
    """
    if rates.chip.kind == "tpu":
        return [_tpu(collective, group, rates, positions)]
    first = _gpu(collective, group, rates, positions)
    hosts = len({positions.hosts[device] for device in group})
    kind = next((one for one in _RINGS_OF if collective.kind.endswith(one)), "")
    if hosts <= _FEW_HOSTS or not kind:
        return [first]
    return [
        Price(first.lane, first.start_s + more, first.sending_s / share)
        for more, share in _between(kind, hosts, len(group))
    ]


def _between(kind: str, hosts: int, size: int) -> list[tuple[float, float]]:
    """Each way: seconds more than over four hosts, and the share of the links' speed.

    Args:
        kind: one of _RINGS_OF.
        hosts: how many the group has devices of.
        size: devices of the group.
    """
    more = hosts - _FEW_HOSTS
    inside = more * (size // hosts - 1)
    rounds = 2 if kind == "all-reduce" else 1
    ways = [
        (rounds * (inside * near + more * far), share)
        for near, far, share in _RINGS.values()
    ]
    if kind == "all-reduce":
        levels = (hosts - 1).bit_length() - (_FEW_HOSTS - 1).bit_length()
        ways += [(2 * levels * far, share) for _, far, share in _TREES.values()]
    return ways


def _distinct(groups: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Groups of several; of very many the first ones, which are like the others."""
    several = [group for group in groups if len(set(group)) > 1]
    return several[:64] or [groups[0]]


def _share(collective: Collective, size: int) -> float:
    """The bytes of the full array, as often as they go around the ring."""
    return collective.wire_bytes * size / max(size - 1, 1)


def _gpu(
    collective: Collective, group: tuple[int, ...], rates: Rates, at: Positions
) -> Price:
    per_host = Counter(at.hosts[device] for device in group)
    hosts, near, size = len(per_host), min(per_host.values()), len(group)
    kind = collective.kind
    link = _nvlink(size) if kind != "collective-permute" else NEAR[0]
    within = collective.wire_bytes / rates.of_link(link, kind)
    if hosts == 1:
        return Price("nvlink", rates.start_s[link], within)
    network = rates.of_link("network", kind)
    if kind == "collective-permute":
        sent = float(collective.wire_bytes)
    elif kind.endswith("all-to-all"):
        sent = collective.operand_bytes * (size - near) / size
    else:
        sent = _share(collective, size) * (hosts - 1) / hosts / near
    is_one = kind in ("collective-permute", "all-to-all")
    rounds = 1 if is_one else min(hosts, _FEW_HOSTS) - 1
    start = rates.start_s["nvlink"] + rounds * rates.start_s["network"]
    return Price("network", start, max(within, sent / network))


def _nvlink(size: int) -> str:
    """Which rates hold for so many devices of one host."""
    pair, few, many = NEAR
    return pair if size < 4 else few if size < 8 else many


def _tpu(
    collective: Collective, group: tuple[int, ...], rates: Rates, at: Positions
) -> Price:
    per_slice = Counter(at.slices[device] for device in group)
    slices, near, size = len(per_slice), min(per_slice.values()), len(group)
    kind, link = collective.kind, rates.of_link("ici", collective.kind)
    ways, hops = _ways([at.coords[d] for d in group] if at.coords else [], at, rates)
    if kind == "collective-permute":
        sending = collective.wire_bytes / link
    elif kind.endswith("all-to-all"):
        # A ring moves a quarter of what an all-gather of all arrays together would.
        sending = collective.operand_bytes * max(size, 4) / 4 / (ways * link)
    else:
        sending = collective.wire_bytes / (ways * link)
    start = hops * rates.start_s["ici"]
    if slices == 1:
        return Price("ici", start, sending)
    sent = _share(collective, size) * (slices - 1) / slices / near
    return Price(
        "dcn", start + rates.start_s["dcn"],
        max(sending, sent / rates.of_link("dcn", kind)),
    )  # fmt: skip


def _ways(
    coords: Sequence[tuple[int, ...]], at: Positions, rates: Rates
) -> tuple[int, int]:
    """Links that each device of a group sends over at once, and hops around it."""
    ways = hops = 0
    for direction in range(min(map(len, coords), default=0)):
        size = len({place[direction] for place in coords})
        if size < 2:
            continue
        torus = 1 + max(place[direction] for place in at.coords)
        closed = size == torus and _is_closed(torus, rates)
        ways += 2 if closed and size > 2 else 1
        hops += size // 2 if closed else size - 1
    return max(ways, 1), max(hops, 1)


def _is_closed(size: int, rates: Rates) -> bool:
    """Whether so many chips in a row close to a ring."""
    return size % (16 if rates.chip.links == 4 else 4) == 0


def numbers() -> dict[str, Any]:
    """The numbers of the model of many hosts, by name, for the page's twin."""
    return {
        "few": _FEW_HOSTS,
        "rings": tuple(_RINGS.values()),
        "trees": tuple(_TREES.values()),
        "ringsOf": _RINGS_OF,
    }
