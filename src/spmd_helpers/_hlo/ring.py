"""What one device sends in a collective, where a ring carries it.

Ring algorithms, as in Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for
clusters of workstations" (2009).
"""

from collections.abc import Callable
from fractions import Fraction

# Bytes that a device sends, of the bytes V that the collective is named with, in a
# group of n devices. V is the result of an all-gather, the operand of any other.
SHARE: dict[str, Callable[[int], Fraction]] = {
    "all-gather": lambda n: Fraction(n - 1, n),
    "all-reduce": lambda n: Fraction(2 * (n - 1), n),
    "reduce-scatter": lambda n: Fraction(n - 1, n),
    "all-to-all": lambda n: Fraction(n - 1, n),
    "ragged-all-to-all": lambda n: Fraction(n - 1, n),
    "collective-permute": lambda n: Fraction(1),
    "collective-broadcast": lambda n: Fraction(1),
}


def sent(kind: str, operand: int, result: int, n: int) -> int:
    """Bytes that one device sends, for one execution.

    Args:
        kind: one of SHARE.
        operand: bytes that one device puts in.
        result: bytes that one device gets out.
        n: devices of the group.
    """
    return round(SHARE[kind](n) * (result if kind == "all-gather" else operand))
