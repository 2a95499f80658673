"""The names of GPU clusters: which card, how many hosts, how many in each."""

import re
from dataclasses import dataclass

from .._core.validate import close_name
from .._errors import UnknownTopology
from .cards import BY_NAME, Card, names_words

_AMD = re.compile(r"(amd|instinct|mi\d{3}|gfx\d|rocm|radeon)")
_HOW = (
    "Write the card, the hosts and the cards of each, as in 'h100:2x8', or of one host "
    f"'h200:8'; the cards are {names_words()}."
)


@dataclass(frozen=True)
class Cluster:
    """Hosts with GPUs that are alike.

    Attributes:
        card: the kind of card; None for one that a reader's own description gives.
        card_name: how the reader calls it.
        hosts: how many there are.
        per_host: cards in each.
    """

    card: Card | None
    card_name: str
    hosts: int
    per_host: int

    @property
    def name(self) -> str:
        """As `gpu_mesh` takes it: 'h100:2x8'."""
        prefix = f"{self.card_name}:" if self.card_name else ""
        return f"{prefix}{self.hosts}x{self.per_host}"

    @property
    def compiler_name(self) -> str:
        """As XLA takes it: slices, hosts, devices of a host."""
        return f"1x{self.hosts}x{self.per_host}"

    @property
    def devices(self) -> int:
        """How many devices JAX sees."""
        return self.hosts * self.per_host


def read_cluster(name: str, described: bool = False) -> Cluster:
    """Read the name of a cluster.

    >>> read_cluster("h100:2x8").devices
    16
    >>> read_cluster("H200:8").name
    'h200:1x8'

    Args:
        name: the card, colon, hosts x cards of a host; or the cards of one host alone.
        described: whether a target_config is given: the card may then have any name,
            or none, and a host any number of them.

    Raises:
        UnknownTopology: there is no such card, or no such host of it.
    """
    if not isinstance(name, str):
        raise UnknownTopology(f"topology={name!r} is not a name. {_HOW}")
    kind, colon, sizes = name.strip().lower().rpartition(":")
    if described:
        card = None
    else:
        # Without a colon the name may be the card's alone.
        kind = kind if colon else sizes
        card = _card(name, kind)
        sizes = sizes if colon else ""
    if not re.fullmatch(r"([1-9]\d{0,4}x)?[1-9]\d{0,3}", sizes):
        example = f" Write for example '{card.name}:2x{card.host}'." if card else ""
        raise UnknownTopology(
            f"topology={name!r} does not say how many hosts there are and how many "
            f"cards each has.{example or ' Write for example 2x8.'}"
        )
    hosts, _, per_host = sizes.rpartition("x")
    cluster = Cluster(
        card, card.name if card else kind.strip(), int(hosts or 1), int(per_host)
    )
    if card and cluster.per_host > card.host:
        raise UnknownTopology(
            f"topology={name!r}: {cluster.per_host} cards in a host, and a host has at "
            f"most {card.host} of {card.name}. Write for example "
            f"{_near(cluster, card)!r}."
        )
    return cluster


def _card(name: str, kind: str) -> Card:
    # "NVIDIA H100", "H100 80GB" and "rtx_6000_pro" are the names with hyphens.
    plain = re.sub(r"[\s_]+", "-", kind.strip()).removeprefix("nvidia-")
    if plain in BY_NAME:
        return BY_NAME[plain]
    if _AMD.match(plain):
        raise UnknownTopology(
            f"topology={name!r}: JAX's plugin for AMD, ROCm, does not start where no "
            "AMD GPU is, so programs are compiled for such cards beside one only. The "
            f"cards are {names_words()}."
        )
    close = close_name(plain, BY_NAME)
    near = [card for one, card in BY_NAME.items() if plain and one.startswith(plain)]
    near = near or ([BY_NAME[close]] if close else [])
    words = " or ".join(dict.fromkeys(repr(card.name) for card in near))
    guess = f" Did you mean {words}?" if words else ""
    raise UnknownTopology(f"topology={name!r} names no card.{guess} {_HOW}")


def _near(cluster: Cluster, card: Card) -> str:
    """So many cards or, where they fill no number of hosts, a few more."""
    hosts = -(-cluster.devices // card.host)
    return f"{card.name}:{hosts}x{card.host}"
