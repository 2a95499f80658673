"""Measure the reference programs: by the compilers of TPUs and GPUs, or on GPUs here.

    python -m tools.measure.truth.measure --tpu [--out FILE] [NAME ...]
    python -m tools.measure.truth.measure --gpu --out FILE [NAME ...]
    python -m tools.measure.truth.measure --cards [--out FILE] [NAME ...]
    python -m tools.measure.truth.measure --tpu --axes [--out FILE] [NAME ...]
    python -m tools.measure.truth.measure --cards --axes [--out FILE] [NAME ...]
    python -m tools.measure.truth.measure --gpu --axes --out FILE [NAME ...]
    python -m tools.measure.truth.measure --list

`--tpu` needs libtpu and no TPU: it compiles, runs nothing, and writes one row for each
program. A program that is refused, because a chip has too little memory, leaves its row
in FILE's neighbor `…_refused.json`. `--gpu` compiles and runs two steps of each program
that suits the number of devices here (also on CPU devices, to try it), each in its own
process, and writes what the allocator had in use at its peak. `--cards` needs JAX's
CUDA plugin and no GPU: it compiles for GPUs that are not there. Rows that FILE has
already are replaced by name.
"""

import argparse
import dataclasses
import importlib.metadata
import json
import math
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import topologies

from spmd_helpers._tpu.refusals import does_not_fit
from spmd_helpers._training.model import MLP, Transformer
from tools.measure import clock, runner
from tools.measure.truth import peak, programs, reference

STORED = {
    "tpu": runner.BOOKS / "memory_tpu.json",
    "cards": runner.BOOKS / "memory_gpu_compiled.json",
}
AXES = {"tpu": runner.BOOKS / "axes_tpu.json", "cards": runner.BOOKS / "axes_gpu.json"}
# What a process of its own is given: XLA's word on the step, in its folder.
FLAGS = (
    "--xla_dump_to={folder} --xla_dump_hlo_as_text --xla_dump_hlo_module_re=jit_step"
)
SETTINGS = {
    "tpu": {
        **{"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1"},
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    },
    "gpu": {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"},
    "cards": {"JAX_PLATFORMS": "cpu"},
}


def version(package):
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def leaf_bytes(shape, sharding):
    return math.prod(sharding.shard_shape(shape.shape)) * shape.dtype.itemsize


def state_bytes(program, mesh, compiled=None):
    """Bytes a device of each part of the state, by the shardings that were compiled.

    Of a program that was refused: by those that it asked for.
    """
    state = reference.state_shapes(program, mesh)
    batch = reference.batch_shapes(program, mesh)
    if compiled is None:
        shapes = (state, batch)
        state_in, batch_in = jax.tree.map(lambda s: s.sharding, shapes)
    else:
        (state_in, batch_in), _ = compiled.input_shardings

    def total(tree, shardings):
        # jit drops an argument that it does not use, and then has no sharding for it.
        wanted, is_leaf = jax.tree.map(lambda s: s.sharding, tree), lambda s: s is None
        pairs = jax.tree.leaves(shardings, is_leaf=is_leaf), jax.tree.leaves(wanted)
        used = [one or other for one, other in zip(*pairs, strict=True)]
        shardings = jax.tree.unflatten(jax.tree.structure(tree), used)
        return sum(jax.tree.leaves(jax.tree.map(leaf_bytes, tree, shardings)))

    measured = {part: total(state[part], state_in[part]) for part in state}
    grads = reference.grad_shapes(program, mesh)
    return {
        "params": measured.pop("params") + measured.pop("frozen", 0),
        "grads": sum(leaf_bytes(g, g.sharding) for g in jax.tree.leaves(grads)),
        "step": measured.pop("step", 0),
        "optimizer": sum(measured.values()),
        "batch": total(batch, batch_in),
    }


def about(program, mesh, seconds, compiled=None):
    """What a row says of a program, beside the compiler's figures."""
    return {
        "name": program.name,
        "program": dataclasses.asdict(program),
        "kind": type(program.model).__name__,
        "platform": mesh.devices.flat[0].platform,
        "device": mesh.devices.flat[0].device_kind,
        "devices": mesh.size,
        "jax": jax.__version__,
        "libtpu": version("libtpu"),
        "date": runner.today(),
        "compile_seconds": round(seconds),
        "state": state_bytes(program, mesh, compiled),
    }


def row(program, compiled, mesh, seconds):
    """What is known of a compiled program."""
    memory = compiled.memory_analysis()
    return about(program, mesh, seconds, compiled) | {
        "argument_bytes": memory.argument_size_in_bytes,
        "output_bytes": memory.output_size_in_bytes,
        "alias_bytes": memory.alias_size_in_bytes,
        "temp_bytes": memory.temp_size_in_bytes,
        "peak_bytes": memory.peak_memory_in_bytes,
    }


def small(measured):
    """A row without what follows from the rest: defaults, and the largest buffers."""
    usual = dataclasses.asdict(programs.Program(measured["name"], None, 0))
    shape = measured["program"]["model"]
    kind = MLP if measured["kind"] == "MLP" else Transformer
    plain = dataclasses.asdict(kind(*([1] * 3)))
    own = {k: v for k, v in shape.items() if v is not None and v != plain.get(k)}
    own = {k: v for k, v in own.items() if k not in ("name", "source")}
    program = {
        k: v
        for k, v in measured["program"].items()
        if usual.get(k, 0) != v and v not in ((), [])
    }
    program = {k: v for k, v in program.items() if k not in ("name", "model")}
    left_out = ("largest", "reserved_bytes", "dumperr")
    rest = {k: v for k, v in measured.items() if k not in left_out}
    return rest | {"program": program | {"model": own}}


def refusal(program, mesh, seconds, error, shapes):
    """What is known of a program that does not fit; None for another error."""
    said = does_not_fit(jax, error, shapes)
    if said is None:
        return None
    return about(program, mesh, seconds) | {
        "refused": True,
        "needed_bytes": said.needed_bytes,
        "available_bytes": said.available_bytes,
        "largest": [[b.bytes, b.shape, b.what] for b in said.largest],
    }


def compile_for_tpu(program, dump=None):
    """One row for a program, compiled for the TPUs of its topology."""
    jax.config.update("jax_platforms", "cpu")
    topology = topologies.get_topology_desc(
        platform="tpu", topology_name=program.topology
    )
    axes = program.axes
    devices = np.array(topology.devices).reshape(tuple(axes.values()))
    mesh = jax.sharding.Mesh(devices, tuple(axes))
    began = time.time()
    step, state, batch = reference.train_step(program, mesh)
    try:
        compiled = step.lower(state, batch).compile()
    except jax.errors.JaxRuntimeError as error:
        measured = refusal(program, mesh, time.time() - began, error, (state, batch))
        if measured is None:
            raise
        return measured
    measured = row(program, compiled, mesh, time.time() - began)
    return measured | (peak.read(dump) if dump else {})


def compile_for_cards(program, dump=None):
    """One row for a program, compiled for the GPUs of its topology."""
    from spmd_helpers import gpu_mesh

    mesh = gpu_mesh(program.topology, **program.axes)
    began = time.time()
    step, state, batch = reference.train_step(program, mesh)
    compiled = step.lower(state, batch).compile()
    measured = row(program, compiled, mesh, time.time() - began) | {"platform": "gpu"}
    del measured["libtpu"]
    return measured


def run_here(program, dump=None):
    """One row for a program, compiled and run on the devices of this machine."""
    axes = program.axes
    shape = tuple(axes.values())
    devices = np.array(jax.devices()[: math.prod(shape)]).reshape(shape)
    mesh = jax.sharding.Mesh(devices, tuple(axes))
    began = time.time()
    step, state, batch = reference.train_step(program, mesh)
    compiled = step.lower(state, batch).compile()
    measured = row(program, compiled, mesh, time.time() - began)
    shapes = (state, batch)

    def start():
        return jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)

    where = jax.tree.map(lambda s: s.sharding, shapes)
    state, batch = jax.jit(start, out_shardings=where)()
    for _ in range(2):
        state, loss = compiled(state, batch)
    measured["loss"] = float(loss)
    try:
        measured |= peak.read(dump) if dump else {}
    except (LookupError, OSError, TypeError, ValueError) as error:
        measured["dump"] = f"not understood: {error!r}"
    if program.offload_optimizer:  # XLA counts the host's memory with the device's
        measured["peak_bytes"] = max(measured["phases"].values())
    measured["allocator_peak_bytes"] = clock.allocator_peak(list(devices.flat)) or 0
    return measured


def measure_apart(program, kind):
    """The row of a program, measured in a process of its own."""
    how = {"flags": FLAGS, "settings": SETTINGS[kind], "quiet": True}
    words = ("truth.measure", f"--one-{kind}", program.name)
    measured, ended = runner.run_child(*words, **how)
    if measured is None:
        return {"name": program.name, "error": ended or "it wrote nothing"}
    return measured | {
        "command": f"tools/measure/truth/measure.py --{kind} {program.name!r}"
    }


def store(path, measured):
    """Write a row into the file of its kind, and take it out of the other one."""
    refused = path.with_name(f"{path.stem}_refused{path.suffix}")
    here, there = (refused, path) if measured.get("refused") else (path, refused)
    order = list(programs.ALL)
    for file, new in ((there, []), (here, [measured])):
        rows = [r for r in runner.stored(file) if r["name"] != measured["name"]] + new
        rows.sort(key=lambda r: order.index(r["name"]) if r["name"] in order else -1)
        if file == here or file.exists():
            runner.write(file, rows, aside=False)


def main():
    ways = {"tpu": compile_for_tpu, "gpu": run_here, "cards": compile_for_cards}
    kind = sys.argv[1].removeprefix("--one-") if len(sys.argv) == 4 else ""
    if kind in ways:
        program, run = programs.ALL[sys.argv[2]], ways[kind]
        out = Path(sys.argv[3])
        out.write_text(json.dumps(run(program, out.parent)), "utf8")
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for way in ways:
        parser.add_argument(f"--{way}", action="store_true")
    parser.add_argument("--axes", action="store_true")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--out", type=Path)
    parser.add_argument("names", nargs="*")
    given = parser.parse_args()
    kind = next((way for way in ways if getattr(given, way)), "tpu")
    if given.gpu:
        meant = programs.for_devices(len(jax.devices()))
    else:
        meant = programs.FOR_GPU if given.cards else programs.FOR_TPU
    if given.axes and given.gpu:
        count = f"{len(jax.devices())} gpu: "
        meant = [name for name in programs.MORE_HERE if name.startswith(count)]
    elif given.axes:
        meant = programs.MORE_GPU if given.cards else programs.MORE_TPU
    names = given.names or list(meant)
    out = given.out or (AXES if given.axes else STORED).get(kind)
    if out is None:
        sys.exit("--gpu needs --out FILE")
    if given.list:
        print("\n".join(names))
        return
    for name in names:
        measured = measure_apart(programs.ALL[name], kind)
        if "error" in measured:
            print(f"{name}: {measured['error']}", flush=True)
            continue
        store(out, small(measured) if given.axes else measured)
        if measured.get("refused"):
            sizes = (
                measured["needed_bytes"] / 2**30,
                measured["available_bytes"] / 2**30,
            )
            said = "refused, {:.2f} GiB needed and {:.2f} there".format(*sizes)
        else:
            said = f"{measured['peak_bytes'] / 2**30:.3f} GiB"
        print(f"{name}: {said}, {measured['compile_seconds']} s", flush=True)


if __name__ == "__main__":
    main()
