"""How a time is taken, and what is read beside it: peaks, exchanges, the card."""

import json
import math

import jax

from tools.measure.runner import AT_ONCE, REPEATS, clock


def queue(f, *args, times):
    """A function that starts so many calls and waits for the last."""

    def run():
        last = None
        for _ in range(times):
            last = f(*args)
        jax.block_until_ready(last)

    return run


def seconds(
    f, *args, times=AT_ONCE, most=REPEATS, least=REPEATS, longest=math.inf
) -> list[float]:
    """Of one call: some calls are queued, and the wait for the last is divided."""
    queue(f, *args, times=3)()
    run = queue(f, *args, times=times)
    return [taken / times for taken in clock(run, most, least, longest)]


def stepper(step, kept: list, times=1):
    """A function that makes so many steps and waits, and returns the last loss.

    Args:
        step: takes state and rows, and returns a new state and the loss.
        kept: [state, rows]. Nothing else may hold the state: it would be there twice.
        times: how many steps.
    """
    rows = kept.pop()

    def run():
        loss = None
        for _ in range(times):
            state, loss = step(kept.pop(), rows)
            kept.append(state)
        jax.block_until_ready((state, loss))
        return loss

    return run


def allocator_peak(devices=None) -> int | None:
    """The most that the fullest device had in use since this process began."""
    used = [d.memory_stats() or {} for d in devices or jax.devices()]
    return max(u.get("peak_bytes_in_use", 0) for u in used) or None


def about() -> dict:
    devices = jax.devices()
    return {
        "device": devices[0].device_kind,
        "devices": len(devices),
        "jax": jax.__version__,
    }


def exchanges(collectives) -> list[dict]:
    """Collectives of an X-ray, as rows have them."""
    return [
        {
            **{"kind": c.kind, "axes": list(c.axes), "count": c.count},
            **{"dtype": c.dtype, "wire_bytes": c.wire_bytes},
        }
        for c in collectives
    ]


def added_up(lines: list[dict]) -> list[dict]:
    """Those that are alike in one line."""
    alike: dict[str, dict] = {}
    for line in lines:
        key = json.dumps({**line, "count": None})
        before = alike.get(key, {"count": 0})["count"]
        alike[key] = {**line, "count": before + (line["count"] or 1)}
    return list(alike.values())


def short(error: Exception) -> str:
    first = " ".join(str(error).split())
    return f"{type(error).__name__}: {first}"[:400]
