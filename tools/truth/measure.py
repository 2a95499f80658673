"""Measure the reference programs: by the TPU compiler, or on the GPUs that are here.

    python tools/truth/measure.py --tpu [--out FILE] [NAME ...]
    python tools/truth/measure.py --gpu --out FILE [NAME ...]
    python tools/truth/measure.py --list

`--tpu` needs libtpu and no TPU: it compiles, runs nothing, and writes one row for each
program. A program that is refused, because a chip has too little memory, leaves its row
in FILE's neighbor `…_refused.json`. `--gpu` compiles and runs two steps of each program
that suits the number of devices here (also on CPU devices, to try it), each in its own
process, and writes what the allocator had in use at its peak. Rows that FILE has
already are replaced by name.
"""

import argparse
import dataclasses
import datetime
import importlib.metadata
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
STORED = (
    ROOT / "src" / "spmd_helpers" / "_hardware" / "measurements" / "memory_tpu.json"
)
sys.path[:0] = [str(HERE), str(ROOT / "src")]


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
    import jax
    import reference

    state = reference.state_shapes(program, mesh)
    batch = reference.batch_shapes(program, mesh)
    if compiled is None:
        shapes = (state, batch)
        state_in, batch_in = jax.tree.map(lambda s: s.sharding, shapes)
    else:
        (state_in, batch_in), _ = compiled.input_shardings

    def total(tree, shardings):
        return sum(jax.tree.leaves(jax.tree.map(leaf_bytes, tree, shardings)))

    found = {part: total(state[part], state_in[part]) for part in state}
    grads = reference.grad_shapes(program, mesh)
    return {
        "params": found.pop("params"),
        "grads": sum(leaf_bytes(g, g.sharding) for g in jax.tree.leaves(grads)),
        "step": found.pop("step", 0),
        "optimizer": sum(found.values()),
        "batch": total(batch, batch_in),
    }


def about(program, mesh, seconds, compiled=None):
    """What a row says of a program, beside the compiler's figures."""
    import jax

    return {
        "name": program.name,
        "program": dataclasses.asdict(program),
        "kind": type(program.model).__name__,
        "platform": mesh.devices.flat[0].platform,
        "device": mesh.devices.flat[0].device_kind,
        "devices": mesh.size,
        "jax": jax.__version__,
        "libtpu": version("libtpu"),
        "date": datetime.date.today().isoformat(),
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


def refusal(program, mesh, seconds, error, shapes):
    """What is known of a program that does not fit; None for another error."""
    import jax

    from spmd_helpers._tpu.refusals import does_not_fit

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
    import jax
    import numpy as np
    import peak
    import reference
    from jax.experimental import topologies

    jax.config.update("jax_platforms", "cpu")
    topology = topologies.get_topology_desc(
        platform="tpu", topology_name=program.topology
    )
    shape = program.data, program.model_axis
    mesh = jax.sharding.Mesh(np.array(topology.devices).reshape(shape), reference.AXES)
    began = time.time()
    step, state, batch = reference.train_step(program, mesh)
    try:
        compiled = step.lower(state, batch).compile()
    except jax.errors.JaxRuntimeError as error:
        found = refusal(program, mesh, time.time() - began, error, (state, batch))
        if found is None:
            raise
        return found
    found = row(program, compiled, mesh, time.time() - began)
    return found | (peak.read(dump) if dump else {})


def run_here(program, dump=None):
    """One row for a program, compiled and run on the devices of this machine."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    import peak
    import reference

    shape = program.data, program.model_axis
    devices = np.array(jax.devices()[: math.prod(shape)]).reshape(shape)
    mesh = jax.sharding.Mesh(devices, reference.AXES)
    began = time.time()
    step, state, batch = reference.train_step(program, mesh)
    compiled = step.lower(state, batch).compile()
    found = row(program, compiled, mesh, time.time() - began)
    shapes = (state, batch)

    def start():
        return jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)

    where = jax.tree.map(lambda s: s.sharding, shapes)
    state, batch = jax.jit(start, out_shardings=where)()
    for _ in range(2):
        state, loss = compiled(state, batch)
    found["loss"] = float(loss)
    try:
        found |= peak.read(dump) if dump else {}
    except (LookupError, OSError, TypeError, ValueError) as error:
        found["dump"] = f"not understood: {error!r}"
    used = [d.memory_stats() or {} for d in devices.flat]
    found["allocator_peak_bytes"] = max(u.get("peak_bytes_in_use", 0) for u in used)
    return found


# One process a program: XLA's settings are read once, and a peak is never forgotten.


def measure_apart(program, kind):
    """The row of a program, measured in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "row.json"
        environment = dict(os.environ)
        flags = f"--xla_dump_to={folder} --xla_dump_hlo_as_text"
        flags += " --xla_dump_hlo_module_re=jit_step"
        before = environment.get("XLA_FLAGS", "")
        environment["XLA_FLAGS"] = f"{before} {flags}".strip()
        if kind == "tpu":
            environment |= {
                "JAX_PLATFORMS": "cpu",
                "TPU_SKIP_MDS_QUERY": "1",
                "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
            }
        else:
            environment["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
        command = [sys.executable, __file__, f"--one-{kind}", program.name, str(out)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if out.exists():
            said = f"tools/truth/measure.py --{kind} {program.name!r}"
            return json.loads(out.read_text()) | {"command": said}
    said = [line for line in done.stderr.splitlines() if "Error" in line]
    return {"name": program.name, "error": (said or ["it stopped"])[-1][:300]}


def store(path, found):
    """Write a row into the file of its kind, and take it out of the other one."""
    refused = path.with_name(f"{path.stem}_refused{path.suffix}")
    here, there = (refused, path) if found.get("refused") else (path, refused)
    if there.exists():
        write(there, [r for r in stored(there) if r["name"] != found["name"]])
    write(here, [r for r in stored(here) if r["name"] != found["name"]] + [found])


def stored(path):
    return json.loads(path.read_text()) if path.exists() else []


def write(path, rows):
    """Write rows, in the order of the programs."""
    import programs

    order = list(programs.ALL)
    rows.sort(key=lambda r: order.index(r["name"]) if r["name"] in order else -1)
    lines = ",\n".join(json.dumps(r) for r in rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    text = f"[\n{lines}\n]\n" if rows else "[]\n"
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


def main():
    if sys.argv[1:2] in (["--one-tpu"], ["--one-gpu"]):
        import programs

        program = programs.ALL[sys.argv[2]]
        run = compile_for_tpu if sys.argv[1] == "--one-tpu" else run_here
        found = run(program, Path(sys.argv[3]).parent)
        Path(sys.argv[3]).write_text(json.dumps(found))
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tpu", action="store_true")
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--out", type=Path, default=STORED)
    parser.add_argument("names", nargs="*")
    given = parser.parse_args()
    import programs

    if given.gpu:
        import jax

        wanted = programs.for_devices(len(jax.devices()))
    else:
        wanted = programs.FOR_TPU
    names = given.names or list(wanted)
    if given.list:
        print("\n".join(names))
        return
    for name in names:
        found = measure_apart(programs.ALL[name], "gpu" if given.gpu else "tpu")
        if "error" in found:
            print(f"{name}: {found['error']}", flush=True)
            continue
        store(given.out, found)
        if found.get("refused"):
            sizes = found["needed_bytes"] / 2**30, found["available_bytes"] / 2**30
            said = "refused, {:.2f} GiB needed and {:.2f} there".format(*sizes)
        else:
            said = f"{found['peak_bytes'] / 2**30:.3f} GiB"
        print(f"{name}: {said}, {found['compile_seconds']} s", flush=True)


if __name__ == "__main__":
    main()
