"""Compile the programs that chapters 14 and 15 read, for GPUs that are not here.

    PYTHONPATH=.venv/compilers/gpu python -m tools.measure.book_programs [--rows A,B]

Writes programs_gpu.json and a compressed text for each row into the package's data, so
that the chapters need no GPU and no compiler for one. Nothing is run.
"""

import argparse
import gzip
import re
import time
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import spmd_helpers as spmd
from tools.measure import gathered, mlp
from tools.measure.model import BOTH, Setting, one_step
from tools.measure.runner import BOOKS, ROOT, stored, write
from tools.measure.seconds.texts import reduced
from tools.measure.traces import programs as traced

FILE = "programs_gpu.json"
_GPT3 = Setting(
    layers=96, d_model=12288, heads=96, d_ff=49152, vocab=51200, seq=2048, batch=64,
    strategy=BOTH, compute="bfloat16", attention="xla", donate=True,
    recompute="nothing_saveable", loss="bfloat16",
)  # fmt: skip


def of_mlp(data: int, model: int, fsdp: bool, rows: int) -> tuple[dict, spmd.XRay]:
    """The step of chapter 14 on two cards."""
    devices = list(spmd.gpu_mesh("h200:2", data=2).devices.flat)
    mesh = mlp.two_axes(devices, data, model)
    params, x = mlp.shapes(mesh, fsdp, B=rows)
    report = spmd.xray(mlp.jitted_step(mesh, fsdp), params, params, params, x)
    return {"mesh": dict(mesh.shape), "batch": rows}, report


def of_transformer(s: Setting, topology: str, count: int) -> tuple[dict, spmd.XRay]:
    """A step of the transformer of the log."""
    devices = list(spmd.gpu_mesh(topology, data=count).devices.flat)
    step, _, shapes, mesh = one_step(s, devices)
    assert mesh is not None
    with jax.set_mesh(mesh):
        report = spmd.xray(step.lower(*shapes).compile(), mesh=mesh)
    return {"mesh": dict(mesh.shape), "batch": s.batch, "seq": s.seq}, report


def of_layers(f: Callable, layers: int = 24) -> tuple[dict, spmd.XRay]:
    """Layers whose weights are gathered, on four cards."""
    mesh = spmd.gpu_mesh("h200:4", data=4)
    specs = (P("data"), P(None, "data"))
    mapped = jax.shard_map(f, mesh=mesh, in_specs=specs, out_specs=P("data"))
    h, stack = (
        jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=NamedSharding(mesh, spec))
        for shape, spec in zip(((8192, 8192), (layers, 8192, 8192)), specs, strict=True)
    )
    return {"mesh": dict(mesh.shape), "batch": 8192}, spmd.xray(mapped, h, stack)


def rows() -> dict[str, Callable[[], tuple[dict, spmd.XRay]]]:
    """Name of a row → a function that compiles its program."""
    every: dict[str, Callable[[], tuple[dict, spmd.XRay]]] = {
        "mlp replicated 4096": partial(of_mlp, 2, 1, False, 4096)
    }
    for batch in (512, 4096):
        every[f"mlp fsdp {batch}"] = partial(of_mlp, 2, 1, True, batch)
        every[f"mlp tensor parallel {batch}"] = partial(of_mlp, 1, 2, True, batch)
    for model in (1, 2, 4, 8):
        s = _GPT3.but(model_axis=model)
        name = f"gpt3 {64 // model} × {model}"
        every[name] = partial(of_transformer, s, "h200:8x8", 64)
    for name in ("fsdp plain", "fsdp", "tensor parallel"):
        s = traced(4)[name]
        every[f"transformer {name}"] = partial(of_transformer, s, "h200:4", 4)
    every["layers serial"] = partial(of_layers, gathered.serial)
    every["layers ahead"] = partial(of_layers, gathered.ahead)
    four = partial(gathered.ahead, unroll=4)
    every["layers ahead, unroll 4"] = partial(of_layers, four)
    return every


def compiled_row(name: str, compile_it: Callable[[], tuple[dict, spmd.XRay]]) -> dict:
    """Compile a row's program and write its text."""
    facts, report = compile_it()
    text = report.hlo.replace(f"{ROOT}/", "")
    if name.startswith("gpt3"):
        text = reduced(text)
    stem = "program_" + re.sub(r"\W+", "_", name)
    (BOOKS / f"{stem}.hlo.gz").write_bytes(gzip.compress(text.encode(), mtime=0))
    return {
        "name": name,
        **facts,
        "text": stem,
        "peak_bytes": report.peak_memory,
        "device": report.positions.kind,
        "devices": len(report.positions.hosts),
        "hosts": len(set(report.positions.hosts)),
        "jax": jax.__version__,
        "date": time.strftime("%Y-%m-%d"),
        "command": "python -m tools.measure.book_programs",
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.measure.book_programs")
    parser.add_argument("--rows", default="", help="names, with commas between")
    names = [name for name in parser.parse_args().rows.split(",") if name]
    kept = {row["name"]: row for row in stored(BOOKS / FILE)}
    every = rows()
    for name, compile_it in every.items():
        if name in kept and name not in names:
            continue
        kept[name] = compiled_row(name, compile_it)
        print(name, flush=True)
        write(BOOKS / FILE, [kept[one] for one in every if one in kept])


if __name__ == "__main__":
    main()
