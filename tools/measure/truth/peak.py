"""What the TPU compiler keeps at its peak, from the texts that XLA can dump.

With `--xla_dump_to` XLA writes where it puts each buffer and from which instruction to
which it is live. From these: how much is live at each instruction, the most in each
moment of a training step, which buffers these are, and how much is reserved in all,
gaps between the buffers included.
"""

import re
from pathlib import Path

_VALUE = re.compile(
    r" value: <\d+ (\S+?)(\{[\d,]*\})? (?:\(phi\) )?@0> "
    r"\(size=(\d+),offset=(\d+)\): (\w+\[[\d,]*\])?"
)
PHASES = ("forward", "loss", "backward", "update")


def read(folder: str | Path) -> dict:
    """The dump of a step in a folder, as {'reserved_bytes', 'phases', 'largest'}."""
    files = Path(folder).glob("*jit_step*after_optimizations-buffer-assignment.txt")
    newest = max(files, key=lambda path: path.stat().st_mtime)
    base = str(newest).removesuffix("-buffer-assignment.txt")
    order, ranges = _ranges(Path(base + "-live-range.txt").read_text())
    sources = _sources(Path(base + "-buffer-assignment-values.txt").read_text())
    buffers, temporary, other = _buffers(newest.read_text(), ranges)
    live = [_occupied(_at(buffers, t)) for t in range(len(order))]
    when = _phases(order, Path(base + ".txt").read_text())
    phases = {}
    for phase in PHASES:
        times = [t for t, p in enumerate(when) if p == phase]
        if times:
            phases[phase] = other + max(live[t] for t in times)
    peak = max(range(len(order)), key=lambda t: live[t])
    return {
        "reserved_bytes": other + temporary,
        "peak_phase": when[peak],
        "phases": phases,
        "largest": _largest(_at(buffers, peak), sources),
    }


def _ranges(text):
    """Instructions in their order, and for each buffer the first and last of its."""
    head, tail = text.split("BufferLiveRange:")
    order = re.findall(r"^    \d+:(\S+)$", head, re.M)
    lines = re.findall(
        r"^    (\S+):(\d+)-(\d+)$", tail.split("Live ranges at")[0], re.M
    )
    return order, {name: (int(first), int(last)) for name, first, last in lines}


def _sources(text):
    """op_name by instruction."""
    pattern = re.compile(r'from instruction: %?(\S+) = .*?op_name="([^"]*)"')
    return {m[1]: m[2] for m in map(pattern.search, text.splitlines()) if m}


def _buffers(text, ranges):
    """Temporary buffers with their live ranges; bytes of the temporary, of the rest."""
    buffers, temporary, other = [], 0, 0
    for block in re.split(r"^allocation ", text, flags=re.M)[1:]:
        head, *lines = block.splitlines()
        size = int(re.search(r"size (\d+)", head)[1])
        if "color" in head or "thread-local" in head:  # not in the main memory
            continue
        if "preallocated-temp" not in head:
            other += size
            continue
        temporary += size
        for match in filter(None, map(_VALUE.match, lines)):
            name = match[1] + (match[2] or "{}")
            if name in ranges:
                place = (int(match[4]), int(match[4]) + int(match[3]))
                buffers.append((*ranges[name], *place, match[5] or "", match[1]))
    return buffers, temporary, other


def _at(buffers, time):
    return [b for b in buffers if b[0] <= time <= b[1]]


def _occupied(buffers):
    """Bytes that these buffers take; several names can stand for one place."""
    total, end = 0, 0
    for first, last in sorted(b[2:4] for b in buffers):
        total += max(0, last - max(first, end))
        end = max(end, last)
    return total


def _largest(buffers, sources, count=12):
    places = {}
    for _, _, first, last, shape, name in buffers:
        if shape:
            places.setdefault((last - first, first), (shape, sources.get(name, "")))
    ordered = sorted(places.items(), key=lambda item: -item[0][0])[:count]
    return [[size, shape, where] for (size, _), (shape, where) in ordered]


def _phases(order, text):
    """Which phase of the step each instruction belongs to.

    A loop's body stands in the order before the loop itself; the loops over the layers
    are those that the program's entry has from a forward and from a backward pass.
    """
    place = {name: time for time, name in enumerate(order)}
    entry = text[text.index("\nENTRY ") :].split("\n}")[0]
    lines = [
        (m[1], m[0]) for m in re.finditer(r"^  (?:ROOT )?%?(\S+) = .*$", entry, re.M)
    ]
    times = sorted(place[name] for name, _ in lines if name in place)
    ends = {}
    for name, line in lines:
        if match := re.search(
            r' while\(.*op_name="[^"]*?(transpose)?\(?jvp\(\)\)?/while"', line
        ):
            ends["backward" if match[1] else "forward"] = place[name]
    back = max(t for t in times if t < ends["backward"]) + 1
    return [
        "forward"
        if t <= ends["forward"]
        else "loss"
        if t < back
        else "backward"
        if t <= ends["backward"]
        else "update"
        for t in range(len(order))
    ]
