"""One row of tools/measure/transformer.py, in a process of its own.

XLA's flags are read once, an allocator never forgets its peak, and what one row breaks
no other row shall feel. The parent says as JSON what to measure; the row comes back as
a file.
"""

import contextlib
import dataclasses
import json
import math
import statistics
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp

import spmd_helpers as spmd
from spmd_helpers._hardware.chips import HARDWARE
from tools.measure.clock import (
    about,
    added_up,
    allocator_peak,
    exchanges,
    queue,
    seconds,
    short,
    stepper,
)
from tools.measure.gpu import one_axis, one_collective
from tools.measure.model import BF16, F32, Setting, attention, one_step
from tools.measure.predict import predictions, sheet_of
from tools.measure.runner import AT_ONCE, LEAST, SHORT_S, SUSTAINED_S, clock, timed


def chip():
    """The data sheet of the card here, or None; an H100's for a rehearsal on CPU."""
    if jax.default_backend() == "cpu":
        return HARDWARE["h100"]
    return sheet_of(jax.devices()[0].device_kind)


def peak_flops_per_s(cards: int) -> float | None:
    sheet = chip()
    return sheet.bf16_flops_per_s * cards if sheet else None


def say(*words) -> None:
    print("   ", *words, flush=True)


# --- How fast this card is: what a prediction divides by --------------------------


def _queued(f, *args, times=AT_ONCE) -> float:
    return statistics.median(seconds(f, *args, times=times, most=5, least=3, longest=2))


def _sustained(f, *args, longest: float) -> float:
    """Seconds of one call at the end of so many seconds of nothing else.

    A card that is cool and idle runs faster than one that works all the time: after a
    moment its clock is what its power allows.
    """
    return clock(queue(f, *args, times=100), math.inf, 1, longest)[-1] / 100


def speeds(tiny: bool) -> dict:
    """Rates of one product in each type, of reading and writing, of collectives."""
    n = 256 if tiny else 8192
    rates = {}
    for kind, dtype in (("bf16", BF16), ("f32", F32)):
        x, w = (jax.random.normal(jax.random.key(i), (n, n), dtype) for i in (0, 1))
        f = jax.jit(jnp.matmul)
        at_first = _queued(f, x, w)
        sustained = _sustained(f, x, w, longest=0.2 if tiny else SUSTAINED_S)
        rates[f"{kind}_flops_per_s"] = 2 * n**3 / sustained
        rates[f"{kind}_flops_per_s_at_first"] = 2 * n**3 / at_first
        both = [f"{2 * n**3 / s / 1e12:.1f}" for s in (at_first, sustained)]
        say(kind, "products,", " TFLOP/s at first, ".join(both), "sustained")
    x = jnp.ones((2**18 if tiny else 2**28,), F32)
    took = _queued(jax.jit(lambda x: x * 1.5), x)
    rates["memory_bytes_per_s"] = 2 * x.nbytes / took
    say("memory", f"{rates['memory_bytes_per_s'] / 1e12:.2f} TB/s")
    del x
    rates["collectives"] = {}
    if len(jax.devices()) < 2:
        return rates
    mesh = one_axis()
    sizes = (2**14, 2**16) if tiny else (2**23, 2**28)
    for kind in ("all-gather", "reduce-scatter", "all-reduce", "all-to-all"):
        points = []
        for size in sizes:
            run, x = one_collective(kind, size, mesh)
            wire = sum(c.wire_bytes for c in spmd.xray(run, x, mesh=mesh).collectives)
            points.append((wire, _queued(run, x, times=4)))
        (b0, t0), (b1, t1) = points
        slope = max((t1 - t0) / (b1 - b0), 1e-15)
        rates["collectives"][kind] = {
            "start_s": max(0.0, t0 - slope * b0),
            "bytes_per_s": 1 / slope,
        }
        say(kind, f"{1e-9 / slope:.0f} GB/s and {max(0, t0 - slope * b0) * 1e6:.0f} µs")
    return rates


# --- One step ---------------------------------------------------------------------


def predicted(row: dict, known: dict, text: str) -> dict:
    """All predictions; without `step_time` where the text isn't understood."""
    try:
        return predictions(row, chip(), known, text)
    except Exception as error:
        say("step_time:", short(error))
        return predictions(row, chip(), known)


def step_row(s: Setting, known: dict, out: Path, hlo: str = "") -> dict:
    """Compiles, looks, predicts, writes that down, and only then runs."""
    devices = jax.devices()
    step, begin, shapes, mesh = one_step(s, devices)
    model = spmd.Transformer(
        **{"layers": s.layers, "d_model": s.d_model, "heads": s.heads},
        **{"d_ff": s.d_ff, "vocab": s.vocab, "seq": s.seq, "tied": False},
        **{"biases": False, "positions": "learned", "norm": "rms"},
    )
    model_flops = model.flops(s.batch)
    row = {
        "setting": dataclasses.asdict(s),
        "parameters": model.parameters,
        "model_flops": model_flops,
        "peak_flops_per_s": peak_flops_per_s(len(devices)),
    }
    around = jax.set_mesh(mesh) if mesh is not None else contextlib.nullcontext()
    with around:
        at = time.perf_counter()
        compiled = step.lower(*shapes).compile()
        row["compile_s"] = round(time.perf_counter() - at, 1)
        if hlo:
            Path(hlo).write_text(compiled.as_text(), "utf8")
        counted = spmd.xray(compiled, mesh=mesh)
        memory = compiled.memory_analysis()
        in_and_out = memory.argument_size_in_bytes + memory.output_size_in_bytes
        row |= {
            "peak_bytes": memory.peak_memory_in_bytes,
            "argument_bytes": memory.argument_size_in_bytes,
            "temp_bytes": memory.temp_size_in_bytes,
            "flops_per_device": counted.flops_per_device or model_flops // len(devices),
            "held_bytes": in_and_out,
            "flops_counted": counted.flops_per_device is not None,
            "collectives": added_up(exchanges(counted.collectives)),
        }
        row["predicted"] = predicted(row, known, compiled.as_text())
        save(out, row)
        expected = {by: sum(parts.values()) for by, parts in row["predicted"].items()}
        say(
            f"compiled in {row['compile_s']} s, {row['peak_bytes'] / 2**30:.1f} GiB;",
            "predicted, ms:",
            ", ".join(f"{by} {s * 1e3:.1f}" for by, s in expected.items()),
        )
        kept = list(begin())  # nothing else may hold the state: it would be there twice
        jax.block_until_ready(kept)
        once = stepper(compiled, kept)
        row["first_loss"] = float(once().reshape(-1)[0])
        once()
        row |= timed(clock(once))
    row["allocator_peak_bytes"] = allocator_peak()
    return row


# --- Attention alone --------------------------------------------------------------


def attention_rows(name: str, both: bool, shapes, out: Path) -> None:
    """One implementation, one direction: first each shape once, from small to large.

    So the allocator's peak, which never falls, is each time this program's, or not
    known. Then all of them for their times.
    """
    run, rows = attention(name), []

    def through(q, k, v):
        return (run(q, k, v).astype(F32) ** 2).sum()

    f = jax.jit(jax.grad(through, argnums=(0, 1, 2)) if both else run)

    def inputs(shape):
        keys = jax.random.split(jax.random.key(shape[1]), 3)
        return [jax.random.normal(key, shape, BF16) for key in keys]

    programs = []
    for shape in shapes:
        batch, seq, heads, width = shape
        row = {
            **{"name": name, "pass": "forward + backward" if both else "forward"},
            **{"batch": batch, "seq": seq, "heads": heads, "head_dim": width},
            **{"dtype": "bfloat16", "causal": True, "devices": 1},
            "model_flops": (3 if both else 1) * 4 * batch * seq**2 * heads * width,
            "peak_flops_per_s": peak_flops_per_s(1),
        }
        rows.append(row)
        try:
            qkv = inputs(shape)
            compiled = f.lower(*qkv).compile()
            counted = spmd.xray(compiled)
            row["peak_bytes"] = compiled.memory_analysis().peak_memory_in_bytes
            row["flops_per_device"] = counted.flops_per_device
            # Choosing kernels takes memory too, and a peak never falls.
            before = allocator_peak() or 0
            jax.block_until_ready(compiled(*qkv))
            after = allocator_peak() or 0
            row["allocator_peak_bytes"] = after if after > before else None
            programs.append((row, shape, compiled))
        except Exception as error:
            row["error"] = short(error)
            say(name, row["pass"], seq, row["error"])
        save(out, rows)
    for row, shape, compiled in programs:
        try:
            qkv = inputs(shape)
            # One such call of a small shape takes less than its start: several queued.
            took = _queued(compiled, *qkv, times=1)
            times = 1 if took > SHORT_S else AT_ONCE
            how = {"times": times, "least": LEAST, "longest": 2}
            row |= timed(seconds(compiled, *qkv, **how))
            rate = row["model_flops"] / row["median_s"]
            ms = f"{row['median_s'] * 1e3:.3f} ms, {rate / 1e12:.0f} TFLOP/s"
            say(name, row["pass"], shape[1], ms)
        except Exception as error:
            row["error"] = short(error)
            say(name, row["pass"], shape[1], row["error"])
        save(out, rows)


# --- A process --------------------------------------------------------------------


def save(out: Path, row) -> None:
    out.write_text(json.dumps(row), "utf8")


def main() -> None:
    options, out = json.loads(sys.argv[1]), Path(sys.argv[2])
    task = options["task"]
    if task == "speeds":
        result = about()
        if options["tiny"] or jax.default_backend() == "gpu":
            result["speeds"] = speeds(options["tiny"])
        save(out, result)
    elif task == "attention":
        shapes = [tuple(shape) for shape in options["shapes"]]
        attention_rows(options["name"], options["both"], shapes, out)
    else:
        setting = Setting(**options["setting"])
        row = {}
        try:
            row = step_row(setting, options["speeds"], out, options.get("hlo", ""))
        except Exception as error:
            # What was known before it broke is in the file.
            known = json.loads(out.read_text("utf8")) if out.exists() else {}
            row = {**known, "error": short(error)}
        save(out, row)


if __name__ == "__main__":
    main()
