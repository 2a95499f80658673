"""One row of tools/measure_transformer.py, in a process of its own.

XLA's flags are read once, an allocator never forgets its peak, and what one row breaks
no other row shall feel. The parent says as JSON what to measure; the row comes back as
a file.
"""

import contextlib
import dataclasses
import gzip
import json
import statistics
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

import jax
import jax.numpy as jnp
from _gpu_here import (
    AT_ONCE,
    LEAST,
    LONGEST_S,
    MOST,
    REPEATS,
    SHORT_S,
    SUSTAINED_S,
)
from _gpu_model import BF16, F32, Setting, attention, one_step
from _gpu_predict import predictions
from _gpu_profile import profile
from jax.sharding import AxisType
from measure_gpu import one_collective, timed

import spmd_helpers as spmd
from spmd_helpers._hardware.chips import HARDWARE


def chip():
    """The data sheet of the card here, None where spmd_helpers.HARDWARE has none; an
    H100's for a rehearsal on CPU."""
    if jax.default_backend() == "cpu":
        return HARDWARE["h100"]
    kind = jax.devices()[0].device_kind
    return next((c for c in HARDWARE.values() if c.device_kind == kind), None)


def peak_flops_per_s(cards: int) -> float | None:
    sheet = chip()
    return sheet.bf16_flops_per_s * cards if sheet else None


def say(*words) -> None:
    print("   ", *words, flush=True)


def clock(run, most=MOST, least=LEAST, longest=LONGEST_S) -> list[float]:
    """Seconds of `run()`, which waits for what it started, several times."""
    begun, taken = time.perf_counter(), []
    while len(taken) < least or (
        len(taken) < most and time.perf_counter() - begun < longest
    ):
        at = time.perf_counter()
        run()
        taken.append(time.perf_counter() - at)
    return taken


def allocator_peak() -> int | None:
    """The most that the fullest device had in use since this process began."""
    used = [d.memory_stats() or {} for d in jax.devices()]
    return max(u.get("peak_bytes_in_use", 0) for u in used) or None


# --- How fast this card is: what a prediction divides by --------------------------


def _queued(f, *args, times=8) -> float:
    jax.block_until_ready([f(*args) for _ in range(3)])

    def run():
        jax.block_until_ready([f(*args) for _ in range(times)][-1])

    return statistics.median(clock(run, 5, 3, 2)) / times


def _sustained(f, *args, longest: float, times=100) -> float:
    """Seconds of one call at the end of so many seconds of nothing else.

    A card that is cool and idle runs faster than one that works all the time: after a
    moment its clock is what its power allows.
    """
    begun, took = time.perf_counter(), 0.0
    while time.perf_counter() - begun < longest:
        at = time.perf_counter()
        last = None
        for _ in range(times):
            last = f(*args)
        jax.block_until_ready(last)
        took = (time.perf_counter() - at) / times
    return took


def speeds(tiny: bool) -> dict:
    """Rates of one product in each type, of reading and writing, of collectives."""
    n = 256 if tiny else 8192
    found = {}
    for kind, dtype in (("bf16", BF16), ("f32", F32)):
        x, w = (jax.random.normal(jax.random.key(i), (n, n), dtype) for i in (0, 1))
        f = jax.jit(jnp.matmul)
        at_first = _queued(f, x, w)
        sustained = _sustained(f, x, w, longest=0.2 if tiny else SUSTAINED_S)
        found[f"{kind}_flops_per_s"] = 2 * n**3 / sustained
        found[f"{kind}_flops_per_s_at_first"] = 2 * n**3 / at_first
        both = [f"{2 * n**3 / s / 1e12:.1f}" for s in (at_first, sustained)]
        say(kind, "products,", " TFLOP/s at first, ".join(both), "sustained")
    x = jnp.ones((2**18 if tiny else 2**28,), F32)
    took = _queued(jax.jit(lambda x: x * 1.5), x)
    found["memory_bytes_per_s"] = 2 * x.nbytes / took
    say("memory", f"{found['memory_bytes_per_s'] / 1e12:.2f} TB/s")
    del x
    devices = jax.devices()
    found["collectives"] = {}
    if len(devices) < 2:
        return found
    mesh = jax.make_mesh(
        (len(devices),), ("data",), axis_types=(AxisType.Auto,), devices=devices
    )
    sizes = (2**14, 2**16) if tiny else (2**23, 2**28)
    for kind in ("all-gather", "reduce-scatter", "all-reduce", "all-to-all"):
        points = []
        for size in sizes:
            run, x = one_collective(kind, size, mesh)
            wire = sum(c.wire_bytes for c in spmd.xray(run, x, mesh=mesh).collectives)
            points.append((wire, _queued(run, x, times=4)))
        (b0, t0), (b1, t1) = points
        slope = max((t1 - t0) / (b1 - b0), 1e-15)
        found["collectives"][kind] = {
            "start_s": max(0.0, t0 - slope * b0),
            "bytes_per_s": 1 / slope,
        }
        say(kind, f"{1e-9 / slope:.0f} GB/s and {max(0, t0 - slope * b0) * 1e6:.0f} µs")
    return found


# --- Exchanges, and predictions -----------------------------------------------


def collectives_of(seen) -> list[dict]:
    """As steps_gpu.json has them; those that are alike in one line."""
    alike = Counter()
    for c in seen.collectives:
        alike[c.kind, tuple(c.axes), c.dtype, c.wire_bytes] += c.count or 1
    return [
        {
            **{"kind": kind, "axes": list(axes), "count": count},
            **{"dtype": dtype, "wire_bytes": size},
        }
        for (kind, axes, dtype, size), count in alike.items()
    ]


def predicted(row: dict, known: dict, text: str) -> dict:
    """All predictions; without the finest where the text isn't understood."""
    try:
        return predictions(row, chip(), known, text)
    except Exception as error:
        say("kernel by kernel:", short(error))
        return predictions(row, chip(), known)


# --- One step ---------------------------------------------------------------------


def step_row(
    s: Setting, known: dict, out: Path, hlo: str = "", profiled: str = ""
) -> dict:
    """Compiles, looks, predicts, writes that down, and only then runs."""
    devices = jax.devices()
    step, begin, shapes, mesh = one_step(s, devices)
    model = spmd.Transformer(
        **{"layers": s.layers, "d_model": s.d_model, "heads": s.heads},
        **{"d_ff": s.d_ff, "vocab": s.vocab, "seq": s.seq, "tied": False},
        **{"biases": False, "positions": "learned", "norm": "rms"},
    )
    whole = model.flops(s.batch)
    row = {
        "setting": dataclasses.asdict(s),
        "parameters": model.parameters,
        "model_flops": whole,
        "peak_flops_per_s": peak_flops_per_s(len(devices)),
    }
    around = jax.set_mesh(mesh) if mesh is not None else contextlib.nullcontext()
    with around:
        at = time.perf_counter()
        compiled = step.lower(*shapes).compile()
        row["compile_s"] = round(time.perf_counter() - at, 1)
        if hlo:
            with gzip.open(hlo, "wt") as file:
                file.write(compiled.as_text())
        seen = spmd.xray(compiled, mesh=mesh)
        memory = compiled.memory_analysis()
        held = memory.argument_size_in_bytes + memory.output_size_in_bytes
        row |= {
            "peak_bytes": memory.peak_memory_in_bytes,
            "argument_bytes": memory.argument_size_in_bytes,
            "temp_bytes": memory.temp_size_in_bytes,
            "flops_per_device": seen.flops_per_device or whole // len(devices),
            "held_bytes": held,
            "flops_counted": seen.flops_per_device is not None,
            "collectives": collectives_of(seen),
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
        once = _runner(compiled, kept)
        row["first_loss"] = float(once().reshape(-1)[0])
        once()
        row |= timed(clock(once))
        if profiled:
            Path(profiled).write_text(json.dumps(profile(once)), "utf8")
    row["allocator_peak_bytes"] = allocator_peak()
    return row


def _runner(compiled, kept):
    rows = kept.pop()

    def once():
        state, loss = compiled(kept.pop(), rows)
        jax.block_until_ready((state, loss))
        kept.append(state)
        return loss

    return once


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

    def made(shape):
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
            qkv = made(shape)
            compiled = f.lower(*qkv).compile()
            seen = spmd.xray(compiled)
            row["peak_bytes"] = compiled.memory_analysis().peak_memory_in_bytes
            row["flops_per_device"] = seen.flops_per_device
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
            qkv = made(shape)
            # One such call of a small shape takes less than its start: several queued.
            took = _queued(compiled, *qkv, times=1)
            times = 1 if took > SHORT_S else AT_ONCE
            row |= timed(_times(compiled, qkv, times))
            rate = row["model_flops"] / row["median_s"]
            ms = f"{row['median_s'] * 1e3:.3f} ms, {rate / 1e12:.0f} TFLOP/s"
            say(name, row["pass"], shape[1], ms)
        except Exception as error:
            row["error"] = short(error)
            say(name, row["pass"], shape[1], row["error"])
        save(out, rows)


def _times(compiled, args, times) -> list[float]:
    def run():
        found = None
        for _ in range(times):
            found = compiled(*args)
        jax.block_until_ready(found)

    run()
    return [taken / times for taken in clock(run, REPEATS, LEAST, 2)]


# --- A process --------------------------------------------------------------------


def short(error: Exception) -> str:
    first = " ".join(str(error).split())
    return f"{type(error).__name__}: {first}"[:400]


def save(out: Path, found) -> None:
    out.write_text(json.dumps(found), "utf8")


def about() -> dict:
    device = jax.devices()[0]
    return {
        "device": device.device_kind,
        "devices": len(jax.devices()),
        "jax": jax.__version__,
    }


def main() -> None:
    asked, out = json.loads(sys.argv[1]), Path(sys.argv[2])
    task = asked["task"]
    if task == "speeds":
        found = about()
        if asked["tiny"] or jax.default_backend() == "gpu":
            found["speeds"] = speeds(asked["tiny"])
        save(out, found)
    elif task == "attention":
        shapes = [tuple(shape) for shape in asked["shapes"]]
        attention_rows(asked["name"], asked["both"], shapes, out)
    else:
        setting = Setting(**asked["setting"])
        row = {}
        try:
            more = (asked.get("hlo", ""), asked.get("profile", ""))
            row = step_row(setting, asked["speeds"], out, *more)
        except Exception as error:
            # What was known before it broke is in the file.
            known = json.loads(out.read_text("utf8")) if out.exists() else {}
            row = {**known, "error": short(error)}
        save(out, row)


if __name__ == "__main__":
    main()
