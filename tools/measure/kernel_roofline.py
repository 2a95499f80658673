"""A compiled step as its kernels, each under a roofline of its own.

Chapter 14's prediction counts the FLOPs, the state and the wires of a whole step. Here
the program's text is gone through as the card will go through it: each kernel takes the
longer of its FLOPs and of the bytes that it reads and writes, exchanges run beside the
kernels from where they are started to where they are waited for, and a loop takes its
turns. Nothing in it is measured on the step itself.
"""

import re
from dataclasses import dataclass

from spmd_helpers._hlo.flops import product
from spmd_helpers._hlo.parser import parse
from spmd_helpers._time.kernels import FREE, kernel

EXCHANGES = (
    *("all-gather", "reduce-scatter", "all-reduce", "all-to-all"),
    "collective-permute",
)


@dataclass
class Time:
    """Seconds of a part: of kernels, of them what computes, of exchanges waited for."""

    kernels: float = 0.0
    computing: float = 0.0
    waiting: float = 0.0
    read_bytes: float = 0.0

    @property
    def total(self) -> float:
        return self.kernels + self.waiting

    def add(self, other: "Time", times: int = 1) -> None:
        for name in ("kernels", "computing", "waiting", "read_bytes"):
            own = getattr(self, name) + times * getattr(other, name)
            setattr(self, name, own)


class Card:
    """Seconds of a kernel and of an exchange, by what was measured on a card."""

    def __init__(self, speeds: dict):
        self.flops_per_s = {
            "bf16": speeds["bf16_flops_per_s"],
            "f32": speeds["f32_flops_per_s"],
        }
        self.memory_bytes_per_s = speeds["memory_bytes_per_s"]
        self.rates = speeds.get("collectives", {})

    def exchange(self, kind: str, wire_bytes: float) -> float:
        rate = self.rates.get(kind) or self.rates.get("all-gather")
        if not rate:
            return 0.0
        return rate["start_s"] + wire_bytes / rate["bytes_per_s"]


def roofline(text: str, card: Card) -> Time:
    """The time of one call of a scheduled program."""
    module = parse(text)
    return _through(module, module.entry, card, {})


def _through(module, computation, card, done) -> Time:
    """In the order of the text. `wires` is when the last exchange will have ended."""
    if computation.name in done:
        return done[computation.name]
    time, wires, ends = Time(), 0.0, {}
    for i in computation.instructions:
        kind = exchange_of(module, i)
        if kind:
            moved = _wire_bytes(module, computation, i, kind)
            wires = max(wires, time.total) + card.exchange(kind, moved)
            ends[i.name] = wires
            if not i.opcode.endswith("-start"):
                time.waiting += max(0.0, wires - time.total)
        elif i.opcode.endswith("-done"):
            end = ends.get(i.operands[0] if i.operands else "", 0.0)
            time.waiting += max(0.0, end - time.total)
        elif i.opcode == "fusion-start":  # a kernel beside the others
            beside = _kernel(module, computation, i, card)
            ends[i.name] = time.total + beside.kernels
            time.read_bytes += beside.read_bytes
        elif i.opcode == "while":
            (body,) = i.called("body")
            turns = i.number(r'"known_trip_count":\{"n":"?(\d+)') or 1
            time.add(_through(module, module.computations[body], card, done), turns)
        elif i.opcode in ("call", "async-start"):
            for name in i.called("to_apply", "calls", "called_computations"):
                time.add(_through(module, module.computations[name], card, done))
        elif i.opcode == "conditional":
            names = i.called("branch_computations", "true_computation")
            names += i.called("false_computation")
            parts = [
                _through(module, module.computations[n], card, done) for n in names
            ]
            time.add(max(parts, key=lambda part: part.total, default=Time()))
        elif i.opcode not in FREE:
            time.add(_kernel(module, computation, i, card))
    done[computation.name] = time
    return time


def exchange_of(module, i) -> str | None:
    """The kind of the collective that an instruction starts or is."""
    opcode = i.opcode.removesuffix("-start")
    if opcode in EXCHANGES:
        return opcode
    if opcode in ("fusion", "async"):  # XLA's own kernel for a small one
        for name in i.called("calls"):
            for inner in module.computations[name].instructions:
                if inner.opcode.removesuffix("-start") in EXCHANGES:
                    return inner.opcode.removesuffix("-start")
    return None


def _wire_bytes(module, computation, i, kind) -> float:
    """What one device sends: all devices are one group here."""
    n = module.devices or 1
    given = sum(_bytes(computation, name) for name in i.operands)
    factor = {
        "all-gather": n - 1,
        "all-reduce": 2 * (n - 1) / n,
        "collective-permute": 1,
    }.get(kind, (n - 1) / n)
    return given * factor


def _kernel(module, computation, i, card) -> Time:
    where = [(computation, i)]
    if i.opcode in ("fusion", "fusion-start"):
        inside = module.computations[i.called("calls")[0]]
        where = [(inside, each) for each in inside.instructions]
    if i.opcode == "custom-call":  # with the workspace, which `kernel` leaves out
        operands = sum(_bytes(computation, name) for name in i.operands)
        moved = operands + sum(shape.nbytes for shape in i.shapes)
    else:
        moved = kernel(module, computation, i).nbytes
    computing = sum(_computing(module, *each, card) for each in where)
    reading = moved / card.memory_bytes_per_s
    return Time(max(computing, reading), computing, 0.0, moved)


def _computing(module, computation, i, card) -> float:
    """Seconds of a product, at the speed of the wider of its operands' types."""
    work = product(module, computation, i)
    if work is None or not work.flops:
        return 0.0
    two = work.operands[:2]  # attention has sums after them, in float32
    shapes = [s for name in two for s in computation.by_name[name].shapes[:1]]
    wide = any(shape.dtype == "f32" for shape in shapes)
    return work.flops / card.flops_per_s["f32" if wide else "bf16"]


def _bytes(computation, name) -> int:
    return sum(shape.nbytes for shape in computation.by_name[name].shapes)


def zipped(path) -> dict[str, str]:
    """The texts that `tools.measure.transformer --hlo` kept, by the name of the row."""
    import zipfile

    with zipfile.ZipFile(path) as kept:
        return {
            re.sub(r"\.txt$", "", n): kept.read(n).decode() for n in kept.namelist()
        }
