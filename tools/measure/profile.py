"""Where the time of a step goes on the card: JAX's profiler, added up by kernel."""

import tempfile
from collections import defaultdict
from pathlib import Path

import jax


def profile(run, steps: int = 2, most: int = 40) -> list[dict]:
    """Milliseconds a step of the first device, by stream and by kernel.

    Args:
        run: one step, and it waits for its end.
        steps: how many are looked at.
        most: kernels that are named of each stream, longest first.
    """
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            for _ in range(steps):
                run()
        (path,) = Path(folder).rglob("*.xplane.pb")
        data = jax.profiler.ProfileData.from_file(str(path))
        return _lines(data, steps, most)


def _lines(data, steps, most) -> list[dict]:
    planes = [p for p in data.planes if "/device:" in p.name]
    planes = planes or [p for p in data.planes if "CPU" in p.name]
    found = []
    for line in planes[0].lines if planes else ():
        spent, count = defaultdict(float), defaultdict(int)
        for event in line.events:
            spent[event.name] += event.duration_ns / 1e6 / steps
            count[event.name] += 1
        named = sorted(spent, key=spent.get, reverse=True)[:most]
        found.append(
            {
                "stream": line.name,
                "ms": round(sum(spent.values()), 3),
                "kernels": [
                    [name[:120], round(spent[name], 3), count[name] // steps]
                    for name in named
                ],
            }
        )
    return sorted(found, key=lambda line: -line["ms"])
