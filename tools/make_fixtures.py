"""Compile the programs of the tests for devices that are not there, and keep the texts.

    .venv-tpu/bin/python tools/make_fixtures.py v5e:2x4
    .venv-tpu/bin/python tools/make_fixtures.py v5p:2x2x2
    .venv-tpu/bin/python tools/make_fixtures.py gpt3
    python tools/make_fixtures.py gpu:1x8x1        # where there is a GPU

Writes tests/data/hlo/programs.CHIP_JAXVERSION.tar.xz, one text for each program of
tests/xray_programs.py, or the train step of GPT-3's shape, gpt3_step. The TPU ones
need no TPU, only libtpu beside jax, and take ten seconds, gpt3 half a minute. The GPU
ones need one GPU, which stands for eight. The only change made to a text is that
file names stand in /home/reader/.
"""

import io
import lzma
import os
import sys
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "tests" / "data" / "hlo"
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
    for folder in ("tests", "tools", "."):
        text = text.replace(f'"{(ROOT / folder).resolve()}/', '"/home/reader/')
    return text


def texts(devices: list[Any], without: Sequence[str]) -> Iterator[tuple[str, str]]:
    sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "src")]
    import jax
    from xray_programs import PROGRAMS

    for name in [name for name in PROGRAMS if name not in without]:
        jax.clear_caches()  # what one program traced keeps its lines in the next
        yield name, as_read_by_others(PROGRAMS[name].lower(devices).compile().as_text())
        print(f"  {name}", flush=True)


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
    from _bench_gpt3 import MESH, TOPOLOGY, step_and_arguments

    devices = np.array(tpu_devices(TOPOLOGY)).reshape(tuple(MESH.values()))
    step, arguments, options = step_and_arguments(
        jax.sharding.Mesh(devices, tuple(MESH))
    )
    lowered = jax.jit(step, **options).lower(*arguments)
    return as_read_by_others(lowered.compile().as_text())


def main(what: str) -> None:
    if what == "gpt3":
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
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
