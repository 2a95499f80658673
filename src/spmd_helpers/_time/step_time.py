"""How long a step of a compiled program takes, without running it."""

import re
from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Any

from .._core.source_lines import place_name
from .._core.validate import as_integer
from .._errors import NotUnderstood
from .._hardware.chips import HARDWARE, Chip
from .._hardware.chips import chip as find_chip
from .._hardware.positions import Positions
from .._hlo.collectives import Collective, collectives_of
from .._hlo.labels import phase, source
from .._hlo.parser import Module
from .._hlo.validate import read_module
from .links import Price, price
from .rates import LONG_S, Rates, is_positive, rates_of, with_own
from .record import Part, Span, StepTime
from .walk import Event, Walk, Walked, runs
from .words import UNTESTED

if TYPE_CHECKING:
    from .._xray.xray import XRay

_ONE_FILE = "(program)"


def step_time(
    report: "XRay | str",
    chip: "str | Chip | None" = None,
    *,
    tokens: int | None = None,
    model_flops: float | None = None,
    rates: "Mapping[str, Any] | None" = None,
    host_devices: int | None = None,
    sustained: bool = True,
) -> StepTime:
    """Predict how long one step takes, and what it waits for. Nothing is run.

    The compiled program is gone through in the order in which the compiler scheduled
    it. A kernel takes the longer of its FLOPs and of the bytes that it reads and
    writes, over rates that the chip keeps up. A collective takes its start and its
    bytes over the links that its groups cross, beside the kernels, from where it is
    started to where something waits for it: what is left of it there is exposed. On a
    GPU one that is started just before a product or an attention kernel begins when
    that ends, because such a kernel takes all processors first. A loop takes its trips.

        mesh = spmd.gpu_mesh("h100:2x8", data=16)
        report = spmd.xray(step, state, batch)       # sharded over that mesh
        spmd.step_time(report, tokens=16 * 2048)

        >>> text = '''HloModule jit_f, is_scheduled=true
        ...
        ... ENTRY main {
        ...   x = bf16[8192,8192] parameter(0)
        ...   ROOT y = bf16[8192,8192] dot(x, x), lhs_contracting_dims={1}, \
rhs_contracting_dims={0}, backend_config={"operation_queue_id":"0"}
        ... }'''
        >>> step = step_time(text, "h200")
        >>> step.flops_per_device  # 2 · 8192³
        1099511627776
        >>> step.parts[0].limit, 1e-3 < step.total_s < 2e-3
        ('FLOPs', True)

    Args:
        report: what `xray` gives, or the text of a compiled program,
            `compiled.as_text()`.
        chip: a name in HARDWARE, or a Chip. Without it, that which the program was
            compiled for; a text does not say it.
        tokens: in one step, on all devices together, for `tokens_per_s`.
        model_flops: FLOPs of one step that the model needs, on all devices together,
            for `mfu`: `Transformer.flops` counts them.
        rates: your own in place of the package's: 'bf16_flops_per_s',
            'f32_flops_per_s', 'memory_bytes_per_s', 'kernel_s', and 'collectives',
            kind → {'start_s': …, 'bytes_per_s': …}. A row of
            `load_measured("gpu-speeds")` is such a dict, and `make hardware` measures
            one.
        host_devices: devices of a host, where the report does not know the hosts, as
            of a text; otherwise the chip's usual number.
        sustained: False for a few calls on a cool card, which runs faster by a tenth
            for a moment.

    Returns:
        A `StepTime`. Of a program that was compiled for CPU, or for another kind of
        chip, it has bounds in place of a total, because another compiler makes other
        kernels and another schedule; its notes say so. Where a loop's trips are
        unknown the bounds are those of one trip.

    Raises:
        NotUnderstood: `report` is neither, there is no such chip, or a figure is not a
            positive number.

    Used in the chapters on rooflines and on real cards.
    """
    for name, value in (("tokens", tokens), ("model_flops", model_flops)):
        _check(name, value)
    _check("host_devices", host_devices)
    name, module, platform, positions = _read(report)
    target = _chip(chip, platform, positions)
    at = _positions(positions, module, target, host_devices)
    known = rates_of(target, sustained)
    if rates is not None:
        known = with_own(known, rates)
    mesh = getattr(report, "mesh_shape", None) or {_ONE_FILE: module.devices or 1}
    moved = collectives_of(module, mesh, place_name)
    by_name = {c.instructions[0]: c for c in moved}
    notes = _notes(target, platform, positions, known, moved, at)
    prices = {key: _priced(c, known, at) for key, c in by_name.items()}
    done = Walk(module, known, by_name, prices).all()
    is_own = platform == target.kind and "is_scheduled=true" in module.header
    lanes = _lanes(done)
    sums = sum(lanes.values())
    flops = _flops(done)
    total: float | None = max(done.total_s, _call(known, at))
    least, most = max(lanes.values(), default=0.0), sums
    if not is_own:
        notes.insert(0, _why_bounds(target, platform, module))
        terms = _least_terms(done, lanes, known, platform, module)
        least = max(*terms, _in_and_out(module) / known.memory_bytes_per_s)
        total = None
    if done.unknown_loops:
        notes.insert(0, _unknown_loops(done))
        total = None
    if done.unknown_kernels:
        notes.insert(0, _unknown_kernels(done))
    if done.branches:
        notes.append("of each conditional its longest branch is counted")
    if total is not None and total > done.total_s:
        notes.append(
            "the program is shorter than what the host needs to start it, which is "
            "counted"
        )
    error = _error(known, total) if rates is None else None
    return StepTime(
        name=name,
        chip=target.name,
        devices=prod(mesh.values()),
        how="bounds" if total is None else "predicted",
        total_s=total,
        bounds_s=(least, max(least, most)),
        lanes=lanes,
        compute_s=done.compute_s,
        memory_s=done.memory_s,
        exposed_s=done.waiting_s,
        slowed_s=done.slowed_s,
        parts=_parts(module, done),
        spans=_spans(done),
        flops_per_device=flops,
        model_flops=model_flops,
        peak_flops_per_s=target.bf16_flops_per_s,
        tokens=tokens,
        error=error,
        rates=known.listed(),
        notes=tuple(notes),
    )


# --- What is given --------------------------------------------------------------------


def _check(name: str, value: object) -> None:
    if value is None:
        return
    if name == "host_devices" and as_integer(value, 1) is None:
        raise NotUnderstood(
            f"host_devices={value!r} is not an integer of 1 or more: give the devices "
            "of one host, such as 8"
        )
    if not is_positive(value):
        raise NotUnderstood(
            f"{name}={value!r} is not a positive number: leave it out, or give the "
            "figure of one step on all devices together"
        )


def _read(report: "XRay | str") -> tuple[str, Module, str, Positions | None]:
    """Name, program, platform and positions of what is given."""
    text = report if isinstance(report, str) else getattr(report, "hlo", None)
    if not isinstance(text, str):
        raise NotUnderstood(
            f"report={report!r:.60} is neither an XRay nor the text of a compiled "
            "program: give spmd.xray(f, *args), or compiled.as_text()"
        )
    module = read_module(text)
    if isinstance(report, str):
        match = re.match(r"HloModule (?:jit_)?([\w.\-]+)", module.header)
        return match[1] if match else "", module, _platform(text), None
    return report.name, module, report.lowered_for, report.positions


def _platform(text: str) -> str:
    """Which compiler printed a text."""
    if re.search(r"\{[\d,]*:T\(\d", text):
        return "tpu"
    if re.search(r'"operation_queue_id"|fingerprint_before_lhs|"__cu', text):
        return "gpu"
    return "cpu"


def _chip(
    given: "str | Chip | None", platform: str, positions: Positions | None
) -> Chip:
    if given is not None:
        return find_chip(given)
    kind = positions.kind if positions is not None else ""
    if platform == "cpu" or not kind:
        compiled = "was compiled for CPU devices" if platform == "cpu" else "is a text"
        raise NotUnderstood(
            f"chip=None, and the program {compiled}, which does not say on what it "
            f"would run: give chip=, one of {', '.join(HARDWARE)}"
        )
    try:
        return find_chip(kind)
    except NotUnderstood:
        raise NotUnderstood(
            f"chip=None, and the program was compiled for {kind!r}, whose speeds "
            f"HARDWARE does not have: give chip=, the nearest of "
            f"{', '.join(HARDWARE)}, and rates= that you measured"
        ) from None


def _positions(
    positions: Positions | None, module: Module, chip: Chip, host: int | None
) -> Positions:
    """Those of the report, or as many devices in hosts of the usual size."""
    count = module.devices or 1
    is_real = positions is not None and len(positions.hosts) == count
    if is_real and host is None and positions is not None and positions.kind != "cpu":
        return positions
    size = round(host or chip.host_devices)
    hosts = tuple(device // size for device in range(count))
    slices = (0,) * count if chip.kind == "tpu" else hosts
    return Positions(chip.device_kind, hosts, slices)


# --- What is said ---------------------------------------------------------------------


def _notes(
    chip: Chip,
    platform: str,
    positions: Positions | None,
    rates: Rates,
    moved: tuple[Collective, ...],
    at: Positions,
) -> list[str]:
    notes = []
    compiled = positions.kind if positions is not None else ""
    if platform == chip.kind and compiled and not _is_kind(chip, compiled):
        notes.append(
            f"compiled for {compiled}: the kernels and the schedule are those for it, "
            f"the rates those of {chip.name}"
        )
    if rates.error is None:
        notes.append(
            f"no step was measured on chip {chip.name}: its rates are fractions of "
            "the sheet (see `rates`), and how far the total is off is not known"
        )
    far = "network" if chip.kind == "gpu" else "dcn"
    if any(_crosses(c, at, chip) for c in moved):
        if rates.of_link(far, ""):
            notes.append(
                f"collectives between {'hosts' if chip.kind == 'gpu' else 'slices'} "
                f"are priced by {UNTESTED}"
            )
        else:
            notes.append(
                f"no source says how fast the {far} of chip {chip.name} is, so what "
                "crosses it is left out: give rates={'collectives': "
                f"{{'{far}': {{'bytes_per_s': …}}}}}}"
            )
    if chip.kind == "tpu" and not at.coords and len(at.hosts) > 1:
        notes.append(
            "the devices' places in the torus are not known: groups are priced as if "
            "in one line"
        )
    return notes


def _is_kind(chip: Chip, kind: str) -> bool:
    try:
        return find_chip(kind).name == chip.name
    except NotUnderstood:
        return False


def _crosses(collective: Collective, at: Positions, chip: Chip) -> bool:
    where = at.hosts if chip.kind == "gpu" else at.slices
    return any(len({where[d] for d in group}) > 1 for group in collective.groups)


def _why_bounds(chip: Chip, platform: str, module: Module) -> str:
    if platform == chip.kind:
        return (
            "bounds only: the text has no schedule (is_scheduled=true), so what runs "
            "beside what is not known. compiled.as_text() has one"
        )
    mesh = "gpu_mesh" if chip.kind == "gpu" else "tpu_mesh"
    wider = " and communicates bfloat16 as float32" if platform == "cpu" else ""
    return (
        f"bounds only: the {platform.upper()} compiler made this program. It fuses "
        f"and schedules for that hardware{wider}, and the compiler of chip "
        f"{chip.name} does it otherwise. The least is the largest single term, with "
        "arguments and results touched once; the most is this program's terms one "
        f"after another. Compile for spmd.{mesh} to get a total"
    )


def _unknown_loops(done: Walked) -> str:
    names = ", ".join(dict.fromkeys(loop.name for loop in done.unknown_loops))
    return (
        f"no total: the text does not say how often the loop {names} runs. All figures "
        "count one iteration of it. A lax.scan, or a fori_loop of constant bounds, "
        "says it"
    )


def _unknown_kernels(done: Walked) -> str:
    names = ", ".join(dict.fromkeys(i.name for i in done.unknown_kernels))
    return (
        f"the kernel {names} does not state its FLOPs: it is counted by the bytes that "
        "it reads and writes alone"
    )


# --- What comes out -------------------------------------------------------------------


def _priced(collective: Collective, rates: Rates, at: Positions) -> Price:
    try:
        return price(collective, rates, at)
    except ZeroDivisionError:  # over a link whose speed no source says
        far = "network" if rates.chip.kind == "gpu" else "dcn"
        return Price(far, 0.0, 0.0)


def _error(rates: Rates, total: float | None) -> float | None:
    if rates.error is None or total is None:
        return None
    return rates.error[total >= LONG_S]


def _call(rates: Rates, at: Positions) -> float:
    return rates.call_s[len(at.hosts) > 1]


def _least_terms(
    done: Walked,
    lanes: Mapping[str, float],
    rates: Rates,
    platform: str,
    module: Module,
) -> tuple[float, float]:
    """Seconds of the products, and of the busiest link.

    The CPU compiler prints products and collectives of bfloat16 as float32: they may
    take half of what it looks like.
    """
    types = {s.dtype for i in module.entry.parameters.values() for s in i.shapes}
    if platform == "cpu" and "bf16" in types:
        return (_flops(done) or 0) / rates.flops_per_s["bf16"], _links(lanes) / 2
    return done.compute_s, _links(lanes)


def _in_and_out(module: Module) -> int:
    """Bytes of arguments and results: the least that a program touches."""
    arguments = sum(
        shape.nbytes for i in module.entry.parameters.values() for shape in i.shapes
    )
    return arguments + sum(shape.nbytes for shape in module.entry.root.shapes)


def _lanes(done: Walked) -> dict[str, float]:
    lanes: dict[str, float] = {"kernels": 0.0}
    for event in done.events:
        lanes.setdefault(event.lane, 0.0)
        lanes[event.lane] += runs(event) * event.seconds
    return lanes


def _links(lanes: Mapping[str, float]) -> float:
    return max((s for lane, s in lanes.items() if lane != "kernels"), default=0.0)


def _flops(done: Walked) -> int | None:
    if done.unknown_kernels:
        return None
    counted = [(event, event.kernel) for event in done.events if event.kernel]
    if any(event.count is None and what.flops for event, what in counted):
        return None
    return sum(runs(event) * what.flops for event, what in counted)


def _parts(module: Module, done: Walked) -> tuple[Part, ...]:
    """Each instruction once, with the sums of all places where it is reached."""
    parts: dict[str, Part] = {}
    for event in done.events:
        part = _part(module, event)
        before = parts.get(part.name)
        if before is not None:
            known = before.count is not None and part.count is not None
            part = replace(
                before,
                count=(before.count or 0) + (part.count or 0) if known else None,
                seconds=before.seconds + part.seconds,
                exposed_s=before.exposed_s + part.exposed_s,
                flops=before.flops + part.flops,
                nbytes=before.nbytes + part.nbytes,
            )
        parts[part.name] = part
    return tuple(parts.values())


def _part(module: Module, event: Event) -> Part:
    times, moved, what = runs(event), event.collective, event.kernel
    part = Part(
        name=event.instruction.name,
        kind="",
        lane=event.lane,
        count=event.count,
        seconds=times * event.seconds,
        exposed_s=times * event.exposed_s,
        limit=event.limit,
    )
    if moved is not None:
        return replace(
            part,
            kind=moved.kind,
            source=moved.source,
            phase=moved.phase,
            nbytes=times * moved.wire_bytes,
        )
    assert what is not None
    where = source(module, event.place, event.instruction)
    return replace(
        part,
        kind=what.kind,
        source=place_name(*where) if where else None,
        phase=phase(module, event.place, event.instruction),
        flops=times * what.flops,
        nbytes=times * what.nbytes,
    )


def _spans(done: Walked) -> tuple[Span, ...]:
    spans = [
        Span(
            event.instruction.name,
            event.collective.kind if event.collective else _kind(event),
            event.lane,
            event.start_s,
            event.start_s + event.seconds,
            memory_s=event.memory_s,
        )
        for event in done.events
    ]
    spans += [
        Span(loop.instruction.name, "loop", "kernels", loop.start_s, loop.end_s,
             loop.trips)
        for loop in done.loops
    ]  # fmt: skip
    return tuple(sorted(spans, key=lambda span: (span.start_s, -span.end_s)))


def _kind(event: Event) -> str:
    return event.kernel.kind if event.kernel else ""
