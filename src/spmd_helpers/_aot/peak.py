"""The bytes that a device needs at once for a compiled program."""

from typing import Any


def peak_bytes(memory: Any, platform: str, constants: int = 0) -> int | None:
    """The bytes a device needs at once, by what is right on this platform.

    XLA counts no constants, such as arrays that the function closes over.

    On CPU XLA's peak leaves out the temporaries. On GPU it leaves out the gaps of the
    one piece that holds them: the allocator's own peak is the sum. On TPU it counts the
    chip's vector memory too, which shows in small programs: there the sum is smaller.

    Args:
        memory: what `compiled.memory_analysis()` gave.
        platform: 'cpu', 'gpu' or 'tpu'.
        constants: bytes of the constants.
    """
    if memory is None:
        return None
    total: int = (
        memory.argument_size_in_bytes
        + memory.output_size_in_bytes
        - memory.alias_size_in_bytes
        + memory.temp_size_in_bytes
        + constants
    )
    peak: int | None = getattr(memory, "peak_memory_in_bytes", None)
    if platform != "tpu":
        return total
    return None if peak is None else min(peak + constants, total)
