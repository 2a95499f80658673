"""What a collective costs, by the links that its groups cross.

On GPUs, a ring: Patarasuk and Yuan (2009), as `Collective.wire_bytes` counts it. Within
a host it is sent at rates by the size of the group. Over hosts the ring enters and
leaves each of them once, so that what one device sends leaves the host too: (n - 1) / n
of the array in a group of n, twice that for an all-reduce. There are as many rings,
each with its part of the array, as the group has GPUs in a host, over as many network
cards, and the slower of the two levels decides. XLA's own model counts the same bytes
(sol_gpu_cost_model.cc @3e1a45f, `RingLatency`), and so does NCCL's (tuning.cc @b647562:
bandwidth times ranks over steps). A hierarchical collective would send (hosts - 1) /
hosts, about half of it over two hosts. In an all-to-all each device sends to those of
other hosts over a network card of its own.

Before it sends, a collective over up to four hosts takes the round trips of XLA's
model: (n - 1) / (devices per host), for an all-reduce twice, for an all-to-all one for
each device of the other hosts. What it has for the preparation of each chunk, 6 µs for
4 MiB, is left out. Beyond four hosts only the growth follows the model by which NCCL
itself chooses how to send (tuning.cc @5067397), without NVLS and without its
corrections: a ring passes every device of the group, a tree, which only an all-reduce
can be, as many levels as the logarithm of the hosts, rounded down. Short messages go
with protocols that wait less and use less of the links. The shortest of all these is
taken. An all-to-all then starts one message more for each device of the hosts beyond
four, at what a message costs a ring there.

On a TPU's torus a group uses the links of every direction in which it extends, both
ways where they close to a ring: jax-ml/scaling-book tpus.md @04d8de5. An all-to-all is
bound by the middle of its longest direction, which a half of the group sends through to
the other half.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .._hardware.positions import Positions
from .._hlo.collectives import Collective
from .rates import NEAR, Rates

# NCCL's model of its algorithms and protocols (tuning.cc, hwLatencies): seconds of a
# step within a host and between hosts, and the share of the links' speed. A ring's step
# within a host takes no less than it takes to start a message on the network: 1 µs on a
# host of Intel's, three times that with the protocol of large messages.
_MESSAGE_S, _LARGE = 1e-6, 3
_RINGS = {
    "LL": (max(0.6e-6, _MESSAGE_S), 2.7e-6, 0.5),
    "LL128": (1.9e-6, 4.0e-6, 0.92),
    "Simple": (max(3.4e-6, _LARGE * _MESSAGE_S), 14.0e-6, 1.0),
}
_TREES = {
    "LL": (0.6e-6, 5.0e-6, 1 / 3.8),
    "LL128": (1.25e-6, 8.5e-6, 0.92 * 120 / 128),
    "Simple": (4.0e-6, 14.0e-6, 0.92),
}
_RINGS_OF = ("all-gather", "reduce-scatter", "all-reduce")
_FEW_HOSTS = 4  # up to so many take the round trips of XLA's model


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
        levels = hosts.bit_length() - _FEW_HOSTS.bit_length()
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
    sent = float(collective.wire_bytes)
    if kind.endswith("all-to-all"):
        sent = collective.operand_bytes * (size - near) / size
    elif kind != "collective-permute":
        sent /= near
    start = (
        rates.start_s["nvlink"]
        + _round_trips(kind, hosts, size) * (rates.start_s["network"])
    )
    if kind.endswith("all-to-all"):
        start += max(hosts - _FEW_HOSTS, 0) * size / hosts * (_LARGE * _MESSAGE_S)
    return Price("network", start, max(within, sent / rates.of_link("network", kind)))


def _round_trips(kind: str, hosts: int, size: int) -> float:
    """Round trips between hosts before a collective has sent, over up to four hosts.

    Args:
        kind: of the collective.
        hosts: how many the group has devices of.
        size: devices of the group.
    """
    if kind == "collective-permute":
        return 1.0
    near = size / hosts
    few = near * min(hosts, _FEW_HOSTS)
    if kind.endswith("all-to-all"):
        return few - near
    return (2 if kind == "all-reduce" else 1) * (few - 1) / near


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
    across = _across([at.coords[d] for d in group] if at.coords else [], at, rates)
    across = across or [(size, False)]  # where its places are not known, a row
    ways = sum(2 if closed and count > 2 else 1 for count, closed in across)
    hops = sum(count // 2 if closed else count - 1 for count, closed in across)
    if kind == "collective-permute":
        sending = collective.wire_bytes / link
    elif kind.endswith("all-to-all"):
        most = max(_through_the_middle(*one) for one in across)
        sending = collective.operand_bytes * most / link
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


def _across(
    coords: Sequence[tuple[int, ...]], at: Positions, rates: Rates
) -> list[tuple[int, bool]]:
    """The directions in which a group extends: devices, and whether they close."""
    across = []
    for direction in range(min(map(len, coords), default=0)):
        size = len({place[direction] for place in coords})
        if size > 1:
            torus = 1 + max(place[direction] for place in at.coords)
            across.append((size, size == torus and _is_closed(torus, rates)))
    return across


def _through_the_middle(count: int, closed: bool) -> float:
    """What the busiest link of a direction carries, in arrays of one device.

    In an all-to-all each of `count` devices in a row, or planes of a torus, sends one
    part in `count` of what it has to each other one. A half sends to the other half
    over one link of each row; in a ring, that and the link that closes it share the
    load. No way to send has less on its busiest link, and this one reaches it: along
    one direction after the other, the shorter way around a ring.
    """
    half = (count // 2) * (count - count // 2) / count
    return half / 2 if closed and count > 2 else half


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
        "largeMessageS": _LARGE * _MESSAGE_S,
    }
