"""Compile steps for GPUs with the cards and without, and hold both against a run.

    python -m tools.measure.absent.measure --cards --out FOLDER     where the cards are
    python -m tools.measure.absent.measure --here [--out FOLDER]    anywhere: `make gpu`

`--cards` compiles each program with the cards, runs it, and reads the allocator's peak;
then it hides the cards from JAX and compiles it once more, by the description that XLA
dumped of the card, and, with the cards, without trying kernels out. It writes
absent_gpu.json, and that description. `--here` compiles them for the same card, without
one, with the JAX that is here, and writes absent_gpu_here.json, a row for each program
and version. Each compile has a process of its own. `--small` rehearses both.
"""

import argparse
import importlib.metadata
import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tools.measure import runner

CARDS, HERE = "absent_gpu.json", "absent_gpu_here.json"
TARGET = "gpu_target.pbtxt"
CARD = "h200"  # what `--here` compiles for: the card of the book's rows
COMMAND = "python -m tools.measure.absent.measure"
HIDDEN = {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": "-1"}
NEAR = 5e-3  # a run that is farther from the compiler's figure is tried again


def versions():
    names = ("jax", "jaxlib", "jax-cuda12-pjrt", "jax-cuda13-pjrt")
    collected = {}
    for name in names:
        try:
            collected[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return collected


# --- In a process of its own --------------------------------------------------------


def compiled_row(name, mesh, small):
    """What the compiler makes of a program: bytes and exchanges."""
    import jax

    import spmd_helpers as spmd
    from tools.measure.absent import programs

    began = time.time()
    step, args = programs.built(name, mesh, small)
    report = spmd.xray(step, *args)
    compiled = step.lower(*args).compile()
    memory = compiled.memory_analysis()
    row = {
        "name": name,
        "devices": mesh.size,
        "device": mesh.devices.flat[0].device_kind,
        "jax": jax.__version__,
        "versions": versions(),
        "date": runner.today(),
        "seconds": round(time.time() - began, 1),
        "peak_bytes": report.peak_memory,
        "argument_bytes": memory.argument_size_in_bytes,
        "output_bytes": memory.output_size_in_bytes,
        "alias_bytes": memory.alias_size_in_bytes,
        "temp_bytes": memory.temp_size_in_bytes,
        "flops": report.flops_per_device,
        "collectives": exchanged(report),
        "kernels": kernels(report.hlo),
        "findings": [finding.code for finding in report.findings],
    }
    return row, compiled, args


def exchanged(report):
    """kind over axes: how often, and bytes of the results in all."""
    collected = {}
    for c in report.collectives:
        name = f"{c.kind} {c.dtype} over {' '.join(c.axes)}"
        count, size = collected.get(name, (0, 0))
        times = c.count or 0
        collected[name] = (count + times, size + times * c.result_bytes)
    return {name: list(collected[name]) for name in sorted(collected)}


def kernels(hlo):
    """How often the program calls which library."""
    collected = {}
    for part in hlo.split('custom_call_target="')[1:]:
        name = part.partition('"')[0]
        collected[name] = collected.get(name, 0) + 1
    return collected


def with_cards(name, count, small):
    import jax

    from tools.measure import clock
    from tools.measure.absent import programs

    devices = jax.devices()[:count]
    row, compiled, args = compiled_row(name, programs.mesh_of(devices), small)
    given = list(programs.values(args))
    result = compiled(*given)
    jax.block_until_ready(result)
    stats = devices[0].memory_stats() or {}
    return row | {
        "allocator_peak_bytes": clock.allocator_peak(devices) or 0,
        "pool_bytes": stats.get("bytes_limit", 0),
        "driver": runner.driver(),
    }


def untuned(name, count, small):
    """Compiled with the cards, and no kernel chosen by trying it there."""
    import jax

    from tools.measure.absent import programs

    mesh = programs.mesh_of(jax.devices()[:count])
    return compiled_row(name, mesh, small)[0] | {"driver": runner.driver()}


def without_cards(name, count, small, target):
    import spmd_helpers as spmd

    if target == CARD:
        mesh = spmd.gpu_mesh(f"{CARD}:1x{count}", data=count)
    else:
        mesh = spmd.gpu_mesh(f"1x{count}", target_config=target, data=count)
    return compiled_row(name, mesh, small)[0]


def largest_that_runs(part):
    """Whether a program that needs this part of the allocator's pool runs."""
    import jax
    import jax.numpy as jnp

    (device,) = jax.devices()[:1]
    pool = (device.memory_stats() or {}).get("bytes_limit", 2**20)
    rows = int(part * pool / 2) // 4096
    try:
        x = jax.device_put(jnp.zeros((rows, 1024), jnp.float32), device)
        jax.block_until_ready(jax.jit(lambda x: x * 2)(x))
    except jax.errors.JaxRuntimeError as error:
        return {
            "part": part,
            "pool_bytes": pool,
            "runs": False,
            "said": str(error)[:90],
        }
    return {"part": part, "pool_bytes": pool, "runs": True}


# --- The two ways -------------------------------------------------------------------


def child(kind, name, count, given, target, **settings):
    words = ["--small"] if given.small else []
    words += [f"--{kind}", name, str(count), str(target)]
    how = {"settings": settings, "longest": given.longest, "quiet": True}
    row, ended = runner.run_child("absent.measure", *words, **how)
    return row or {"name": name, "devices": count, "error": ended or "no row"}


def on_card(name, count, card, given, folder):
    """The row with cards: compiled, run, and run again from the cache if far off."""
    cache = {"JAX_COMPILATION_CACHE_DIR": str(folder / "cache")}
    cache["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    if card is not None:
        cache["CUDA_VISIBLE_DEVICES"] = str(card)
    target = folder / TARGET
    row = child("card", name, count, given, target, **cache)
    used, peak = row.get("allocator_peak_bytes"), row.get("peak_bytes")
    if used and peak and abs(used / peak - 1) > NEAR:
        # The tuning of kernels takes memory too: not so where they come from the cache.
        again = child("card", name, count, given, target, **cache)
        row["allocator_peak_again"] = again.get("allocator_peak_bytes")
    return row


def said(row):
    if "error" in row:
        return f"{row['name']} on {row['devices']}: {row['error']}"
    used = row.get("allocator_peak_again") or row.get("allocator_peak_bytes")
    beside = f", the allocator {used / 2**30:.3f}" if used else ""
    peak = f"{row['peak_bytes'] / 2**30:.3f} GiB{beside}"
    return f"{row['name']} on {row['devices']}: {peak}, {row['seconds']} s"


def dump_target(folder):
    """Has XLA dump the card's description: compiles one small program."""
    where = folder / "dump"
    row, ended = runner.run_child(
        "absent.measure", "--dump", flags=f"--xla_dump_to={where}", quiet=True
    )
    collected = [*where.glob("*.gpu_target_config.pbtxt")]
    if not collected:
        sys.exit(f"XLA dumped no description of a card: {row or ended}")
    (folder / TARGET).write_text(collected[0].read_text("utf8"), "utf8")


def measure_cards(given, names):
    folder = given.out
    folder.mkdir(parents=True, exist_ok=True)
    dump_target(folder)
    counts = [count for count in (1, 2) if count <= given.cards]
    rows = []

    def keep(row, how):
        command = f"{COMMAND} --cards {given.cards}"
        rows.append(row | {"how": how, "command": command})
        print(how, said(row), flush=True)
        runner.write(folder / CARDS, rows, aside=False)

    with ThreadPoolExecutor(4) as hidden, ThreadPoolExecutor(given.cards) as cards:
        later = [
            hidden.submit(child, "hidden", n, count, given, folder / TARGET, **HIDDEN)
            for count in counts
            for n in names
        ]
        now = [
            cards.submit(on_card, n, 1, number % given.cards, given, folder)
            for number, n in enumerate(names)
        ]
        for job in now:
            keep(job.result(), "card")
        for job in later:
            keep(job.result(), "hidden")
        if 2 in counts:
            for n in names:
                keep(on_card(n, 2, None, given, folder), "card")
    os.environ["XLA_FLAGS"] = "--xla_gpu_autotune_level=0"
    for n in names:
        keep(child("untuned", n, 1, given, folder / TARGET), "untuned")
    del os.environ["XLA_FLAGS"]
    for part in (0.97, 1.01):
        row, ended = runner.run_child("absent.measure", "--pool", str(part), quiet=True)
        print(row or ended, flush=True)
        row = {"name": f"pool {part}", **(row or {"error": ended})}
        alike = ("device", "jax", "date", "driver", "command")
        same = {key: rows[0].get(key) for key in alike}
        rows.append(row | {"how": "pool", "devices": 1} | same)
    runner.write(folder / CARDS, rows, aside=False)


def measure_here(given, names):
    """Rows of the JAX that is here, beside those of other versions."""
    folder = given.out
    for count in (1, 2):
        for name in names:
            row = child("hidden", name, count, given, CARD, **HIDDEN)
            print(said(row), flush=True)
            if "error" in row:
                continue
            row |= {"how": "here", "command": f"{COMMAND} --here"}
            key = (name, count, row["jax"])
            stored = runner.stored(folder / HERE)
            stored = [r for r in stored if (r["name"], r["devices"], r["jax"]) != key]
            stored.append(row)
            runner.write(folder / HERE, stored, aside=False)


def one(words):
    """In a process of its own: writes its row into the file that comes last."""
    small = "--small" in words
    words = [word for word in words if word != "--small"]
    kind, out = words[0], Path(words[-1])
    if kind == "--dump":
        import jax

        row = str(jax.jit(lambda x: x @ x)(jax.numpy.ones((128, 128))).sum())
    elif kind == "--pool":
        row = largest_that_runs(float(words[1]))
    else:
        name, count, target = words[1], int(words[2]), words[3]
        if kind == "--hidden":
            row = without_cards(name, count, small, target)
        else:
            row = (with_cards if kind == "--card" else untuned)(name, count, small)
    out.write_text(json.dumps(row), "utf8")


def main():
    kinds = ("--card", "--untuned", "--hidden", "--dump", "--pool")
    if any(word in sys.argv for word in kinds):
        one(sys.argv[1:])
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cards", type=int, default=0, help="how many cards are here")
    parser.add_argument("--here", action="store_true")
    parser.add_argument("--out", type=Path, default=runner.BOOKS)
    parser.add_argument("--small", action="store_true", help="a rehearsal")
    parser.add_argument("--longest", type=float, default=240)
    parser.add_argument("names", nargs="*")
    given = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    from tools.measure.absent import programs

    names = given.names or list(programs.ALL)
    if given.cards:
        measure_cards(given, names)
    elif given.here:
        measure_here(given, names)
    else:
        parser.error("say --cards N or --here")


if __name__ == "__main__":
    main()
