"""Compile the programs of the tests for devices that are not there, and keep the texts.

    export PYTHONPATH=.venv/compilers/tpu
    .venv/bin/python -m tools.check.make_fixtures v5e:2x4
    .venv/bin/python -m tools.check.make_fixtures v5p:2x2x2
    .venv/bin/python -m tools.check.make_fixtures gpt3
    .venv/bin/python -m tools.check.make_fixtures gallery:tpu
    .venv/bin/python -m tools.check.make_fixtures gallery:cpu   # on the oldest JAX too
    .venv/bin/python -m tools.check.make_fixtures gallery:gpu   # of .venv/compilers/gpu
    python -m tools.check.make_fixtures gpu:1x8x1        # where there is a GPU
    python -m tools.check.make_fixtures transformer FILE.zip [FILE.zip …]

Writes tests/data/hlo/programs.CHIP_JAXVERSION.tar.xz, one text for each program of
tests/xray/xray_programs.py, or the train step of GPT-3's shape, gpt3_step, or
gallery.PLATFORM_JAXVERSION.tar.xz, those of tests/gallery/programs. The TPU ones
need no TPU, only libtpu beside jax, and take ten seconds, gpt3 half a minute. The GPU
ones need one GPU, which stands for eight. `transformer` compiles nothing: it takes
some of the texts that `tools.measure.transformer --hlo FILE.zip` kept, on two GPUs, for
transformer.gpu_JAXVERSION.tar.xz; of a name the last counts. The only change made to a
text is that file names stand in /home/reader/.
"""

import io
import json
import lzma
import os
import re
import sys
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tools import ROOT

DATA = ROOT / "tests" / "data" / "hlo"
MEASURED = ROOT / "src" / "spmd_helpers" / "_hardware" / "measurements"
# Of the steps that were measured: the six strategies, and the lines of the log that
# differ in kind. The compiler gave "layers one after another" and "pipelined
# collectives" the very text of "latency hiding scheduler".
STEPS = {
    "ways": (
        *("pmap", "replicated", "fsdp plain", "fsdp constrained", "fsdp explicit"),
        "tensor parallel",
    ),
    "log": (
        *("start", "bfloat16 products", "fused attention", "fsdp constrained"),
        *("loss in chunks", "batch 48", "latency hiding scheduler"),
        *("recompute everything", "combined collectives", "heads of 64"),
        *("products by cuBLAS alone", "sequences of 4096", "batch 64"),
    ),
}
_OWN = re.compile(r'"[^"\n]*/tools/measure/(\w+\.py)"')
QUIET = {
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}


def tpu_devices(topology: str) -> list[Any]:
    os.environ.update(QUIET)
    from jax.experimental import topologies

    return topologies.get_topology_desc(platform="tpu", topology_name=topology).devices


def gpu_devices(topology: str) -> list[Any]:
    """As many as slices × hosts × devices of one host, though one GPU is there."""
    import jax

    jax.config.update("jax_mock_gpu_topology", topology)
    devices = jax.devices("gpu")
    assert len(devices) == 8, f"{len(devices)} devices"
    return devices


def as_read_by_others(text: str) -> str:
    for folder in ("tests/xray", "tools/bench", "."):
        text = text.replace(f'"{(ROOT / folder).resolve()}/', '"/home/reader/')
    return text


def texts(devices: list[Any], without: Sequence[str]) -> Iterator[tuple[str, str]]:
    import jax

    from tests.xray.xray_programs import PROGRAMS

    for name in [name for name in PROGRAMS if name not in without]:
        jax.clear_caches()  # what one program traced keeps its lines in the next
        yield name, as_read_by_others(PROGRAMS[name].lower(devices).compile().as_text())
        print(f"  {name}", flush=True)


def gallery_texts(platform: str) -> Iterator[tuple[str, str]]:
    """The programs of the gallery, compiled for eight devices of a platform."""
    os.environ.update(QUIET, NPROC="32")
    import jax

    jax.config.update("jax_num_cpu_devices", 8)
    jax.devices()
    from tests.gallery.gallery import PROGRAMS, devices_of, is_for, ray

    for name in [name for name in PROGRAMS if is_for(name, platform)]:
        jax.clear_caches()
        text = as_read_by_others(ray(name, devices_of(platform)).hlo)
        yield name, text.replace(f'"{sys.prefix}/', '"/home/reader/.venv/')
        print(f"  {name}", flush=True)


def measured_texts(zips: Sequence[Path]) -> Iterator[tuple[str, str]]:
    """Those of STEPS, from what `tools.measure.transformer --hlo` kept."""
    from tools.measure.predict import zipped

    kept: dict[str, str] = {}
    for path in zips:
        kept |= zipped(path)
    wanted = [f"{group}/{name}" for group, names in STEPS.items() for name in names]
    if missing := [name for name in wanted if name not in kept]:
        sys.exit(f"not in these files: {', '.join(missing)}")
    for name in wanted:
        yield name, _OWN.sub(r'"/home/reader/\1"', kept[name])


def measured_jax() -> str:
    """The version of JAX that all of the measured steps were compiled by."""
    files = (MEASURED / "transformer_gpu.json", MEASURED / "log_gpu.json")
    rows = [row for file in files for row in json.loads(file.read_text("utf8"))]
    (version,) = {row["jax"] for row in rows}
    return version


def pack(path: Path, members: Iterator[tuple[str, str]]) -> None:
    """An archive that comes out the same, byte for byte, for the same texts."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, text in members:
            data = text.encode()
            member = tarfile.TarInfo(f"{name}.hlo")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    path.write_bytes(lzma.compress(raw.getvalue(), preset=9 | lzma.PRESET_EXTREME))


def gpt3_text() -> str:
    import jax
    import numpy as np

    from tools.bench.gpt3 import MESH, TOPOLOGY, step_and_arguments

    devices = np.array(tpu_devices(TOPOLOGY)).reshape(tuple(MESH.values()))
    step, arguments, options = step_and_arguments(
        jax.sharding.Mesh(devices, tuple(MESH))
    )
    lowered = jax.jit(step, **options).lower(*arguments)
    return as_read_by_others(lowered.compile().as_text())


def main(what: str, *zips: str) -> None:
    if what == "transformer":
        path = DATA / f"transformer.gpu_{measured_jax()}.tar.xz"
        pack(path, measured_texts([Path(name) for name in zips]))
    elif what.startswith("gallery:"):
        platform = what.removeprefix("gallery:")
        path = DATA / f"gallery.{platform}_{jax_version()}.tar.xz"
        pack(path, gallery_texts(platform))
    elif what == "gpt3":
        os.environ.update(QUIET)
        text = gpt3_text()
        path = DATA / f"gpt3_step.tpu_{jax_version()}.hlo.xz"
        path.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))
    else:
        chip, _, shape = what.partition(":")
        devices = gpu_devices(shape) if chip == "gpu" else tpu_devices(what)
        path = DATA / f"programs.{chip}_{jax_version()}.tar.xz"
        # Of eight hosts with a GPU each, pmap would take this one's only.
        pack(path, texts(devices, ["pmap_step"] if chip == "gpu" else []))
    print(f"{path.relative_to(ROOT)}: {path.stat().st_size:,} bytes")


def jax_version() -> str:
    import jax

    return jax.__version__


if __name__ == "__main__":
    takes_files = sys.argv[1:2] == ["transformer"]
    if len(sys.argv) < 2 or (len(sys.argv) > 2) != takes_files:
        sys.exit(__doc__)
    main(*sys.argv[1:])
