"""Have the programs of serving compiled, or run on a GPU here: prefill and decode.

    python -m tools.measure.truth.serve --tpu [--out FILE] [NAME ...]
    python -m tools.measure.truth.serve --cards [--out FILE] [NAME ...]
    python -m tools.measure.truth.serve --gpu [--out FILE] [NAME ...]
    python -m tools.measure.truth.serve --list

`--tpu` needs libtpu, `--cards` JAX's CUDA plugin: they compile for hardware that is not
here. `--gpu` compiles for a GPU that is here, runs both programs, and writes what the
allocator had in use at its peak. Rows that FILE has already are replaced by name.
"""

import argparse
import dataclasses
import json
import math
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from spmd_helpers._training.model import Transformer
from tools.measure import clock, runner
from tools.measure.truth import served, serving

STORED = {
    "tpu": runner.BOOKS / "serving_tpu.json",
    "cards": runner.BOOKS / "serving_gpu.json",
    "gpu": runner.BOOKS / "serving_gpu.json",
}
MEANT = {"tpu": served.FOR_TPU, "cards": served.FOR_GPU, "gpu": served.ON_GPU}


def mesh_of(program, kind):
    """The mesh of a program: of TPUs or GPUs that are not there, or of those here."""
    axes = program.axes
    if kind == "gpu":
        devices = jax.devices()[: math.prod(axes.values())]
        return jax.sharding.Mesh(
            np.array(devices).reshape(tuple(axes.values())), tuple(axes)
        )
    from spmd_helpers import gpu_mesh, tpu_mesh

    return (tpu_mesh if kind == "tpu" else gpu_mesh)(program.topology, **axes)


def device_bytes(shapes):
    """Bytes of each device, of arrays with their shardings."""
    return sum(
        math.prod(one.sharding.shard_shape(one.shape)) * one.dtype.itemsize
        for one in shapes.values()
    )


def own(program):
    """What of a program differs from the defaults of its records."""
    usual = dataclasses.asdict(served.Served("", None, 0, 0, ""))
    plain = dataclasses.asdict(Transformer(1, 1, 1))
    fields = {k: v for k, v in dataclasses.asdict(program).items() if v != usual[k]}
    model = {k: v for k, v in fields.pop("model").items() if v != plain[k]}
    if "kv_lora_rank" in model:  # these follow from the widths of latent attention
        model = {k: v for k, v in model.items() if k not in ("kv_heads", "head_dim")}
    model = {k: v for k, v in model.items() if k not in ("name", "source")}
    del fields["name"]
    return fields | {"model": model}


def row(program, kind):
    """One program's figures."""
    mesh = mesh_of(program, kind)
    began = time.time()
    fields = {
        "name": program.name,
        "program": own(program),
        "platform": mesh.devices.flat[0].platform,
        "device": mesh.devices.flat[0].device_kind,
        "devices": mesh.size,
        "jax": jax.__version__,
        "date": runner.today(),
        "command": f"tools/measure/truth/serve.py --{kind} {program.name!r}",
        "weights_bytes": device_bytes(serving.weight_shapes(program, mesh)),
        "cache_bytes": device_bytes(serving.cache_shapes(program, mesh)),
    }
    steps = {
        name: one.compile() for name, one in serving.lowered(program, mesh).items()
    }
    for name, compiled in steps.items():
        memory = compiled.memory_analysis()
        fields[f"{name}_bytes"] = memory.peak_memory_in_bytes
        fields[f"{name}_arguments"] = memory.argument_size_in_bytes
        fields[f"{name}_temporaries"] = memory.temp_size_in_bytes
    fields["seconds"] = round(time.time() - began)
    if kind == "gpu":
        run(program, mesh, steps)
        devices = list(mesh.devices.flat)
        fields["allocator_peak_bytes"] = clock.allocator_peak(devices) or 0
    return fields


def run(program, mesh, steps):
    """Both programs, once, on arrays of zeros."""
    shapes = serving.weight_shapes(program, mesh), serving.cache_shapes(program, mesh)
    where = jax.tree.map(lambda s: s.sharding, shapes)

    def start():
        return jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)

    weights, cache = jax.jit(start, out_shardings=where)()
    for name, compiled in steps.items():
        arguments = [
            jax.device_put(jnp.zeros(one.shape, one.dtype), one.sharding)
            for one in serving.inputs(program, mesh)[name]
        ]
        cache, tokens = compiled(weights, cache, *arguments)
    jax.block_until_ready((cache, tokens))


def store(path, fields):
    """Write a row into a file, in the order of the programs."""
    order = list(served.ALL)
    rows = [r for r in runner.stored(path) if r["name"] != fields["name"]] + [fields]
    rows.sort(key=lambda r: order.index(r["name"]) if r["name"] in order else -1)
    runner.write(path, rows, aside=False)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for kind in MEANT:
        parser.add_argument(f"--{kind}", action="store_true")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--out", type=Path)
    parser.add_argument("names", nargs="*")
    given = parser.parse_args()
    kind = next((one for one in MEANT if getattr(given, one)), "tpu")
    names = given.names or list(MEANT[kind])
    out = given.out or STORED.get(kind)
    if given.list:
        print("\n".join(names))
        return
    if kind != "gpu":
        jax.config.update("jax_platforms", "cpu")
    for name in names:
        fields = row(served.ALL[name], kind)
        store(out, fields)
        print(json.dumps(fields), flush=True)


if __name__ == "__main__":
    main()
