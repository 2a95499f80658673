"""What `make bench` prints: ratios against others on the same input, and seconds.

Nothing here is asserted, stored, or compared with an earlier run: times are those of
this machine, now. What is compared:

    drawing    draw, as text and SVG, and jax.debug.visualize_array_sharding
    memory     training_memory, and what other calculators printed
    planning   plan_mesh, up to 4,096 chips
    questions  twenty settings of memory, ours and public calculators, and the compiler
    reading    read_hlo of GPT-3's TPU text, and one pass of a regular expression
    seconds    step_time, and what others predict of the same measured steps
    starting   import spmd_helpers, to the first sharding, and import jax
    x-raying   xray of a step, and only compiling it

Give one of these words to run that part alone.
"""

import os
import platform
import sys

from tools.bench.clock import say_table, versions
from tools.bench.drawing import drawing
from tools.bench.memory import memory
from tools.bench.planning import planning
from tools.bench.questions import twenty
from tools.bench.reading import reading
from tools.bench.seconds import seconds
from tools.bench.starting import starting
from tools.bench.xraying import xraying

PARTS = {
    "drawing": drawing,
    "memory": memory,
    "planning": planning,
    "questions": twenty,
    "reading": reading,
    "seconds": seconds,
    "starting": starting,
    "x-raying": xraying,
}


def machine() -> str:
    name = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo") as lines:
            cells = [
                ln.partition(":")[2] for ln in lines if ln.startswith("model name")
            ]
        name = cells[0].strip() if cells else name
    except OSError:
        pass
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0
    return f"{name}, {os.cpu_count()} cores, load {load:.1f} when this began"


def main(names: list[str]) -> int:
    unknown = [word for word in names if word not in PARTS]
    if unknown:
        sys.exit(f"no part {unknown[0]!r}: there are {', '.join(PARTS)}")
    print(machine())
    print(versions())
    for name, part in PARTS.items():
        if not names or name in names:
            title, rows, right, notes = part()
            print(f"\n== {title}\n", flush=True)
            say_table(rows, right)
            for note in notes:
                print(note)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
