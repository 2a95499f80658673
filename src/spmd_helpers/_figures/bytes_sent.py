"""The bytes of a collective in words, as the figures' titles have them."""

from .._hlo.collectives import Collective
from .._matmul.rule import Move


def bytes_sent(
    one: Collective | Move, devices: int, each: int, who: str = "each device"
) -> str:
    """What a device sends; of an all-reduce of less than an element each, the result.

    The formula of the ring divides the array among the devices.

    Args:
        one: an exchange.
        devices: of one of its groups.
        each: bytes of an element.
        who: the words for a device.
    """
    if one.kind == "all-reduce" and one.result_bytes < devices * each:
        return f"result {one.result_bytes:,} B"
    return f"{who} sends {one.wire_bytes:,} B"
