"""GPUs that are not there: a mesh of them, to compile for."""

import os
import re
from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING

from .._aot.axes import checked_sizes, checked_types, mesh_words
from .._core.words import join_words
from .._errors import MeshMismatch, NoGpuCompiler, NotUnderstood, UnknownTopology
from .._runtime.compiler_log import kept_log
from .._runtime.require import require_jax
from .cards import target_config as text_of
from .memory import remember
from .plugin import absent_devices, check
from .topology import Cluster, read_cluster

if TYPE_CHECKING:
    from jax import Device
    from jax.sharding import AxisType, Mesh


def gpu_mesh(
    topology: str,
    *,
    axis_types: "AxisType | str | Sequence[AxisType | str]" = "auto",
    target_config: "str | os.PathLike[str] | None" = None,
    **axes: int,
) -> "Mesh":
    """Make a mesh of GPUs that are not there, to compile for.

    No GPU is needed, no driver and no library of NVIDIA's, only JAX's CUDA plugin, 12
    or 13 (`pip install 'jax[cuda12-local]'`, on Linux). Its devices have no data and
    run nothing: give `xray` a function and `jax.ShapeDtypeStruct`s that are sharded
    over this mesh, and see what the GPU compiler makes of it. JAX goes on with the
    devices that it has.

        mesh = gpu_mesh("h100:2x8", data=8, model=2)  # 2 hosts of 8
        rows = NamedSharding(mesh, P("data"))
        xray(f, jax.ShapeDtypeStruct((4096, 1024), "float32", sharding=rows))

        >>> gpu_mesh("h100:2x16", data=32)
        Traceback (most recent call last):
        ...
        spmd_helpers...UnknownTopology: ... Write for example 'h100:4x8'.

    Without a card XLA can't try which of several kernels is the fastest, so that
    kernels and their temporaries differ from those on a real one: of ten programs on
    an H200, by the same JAX, the peak was the same to 1 % for seven, and at most 15 %
    off; between versions of JAX it differs more. Collectives
    and shardings were the same for all: they are decided before that. cuDNN's
    attention compiles only where cuDNN is installed.

    Args:
        topology: the card, the hosts, and the cards of each host: "h100:2x8", or
            "h200:8" for one host. Cards are a100-40gb, a100-80gb, h100, h100-pcie,
            h200, b200, gb200 and rtx6000pro. Hosts are those that JAX counts, one
            process each.
        axis_types: 'auto' or 'explicit', or an AxisType, or one for each axis.
        target_config: another card's description as XLA dumps it, a path or the text.
            With XLA_FLAGS=--xla_dump_to=FOLDER a program on that card writes a file
            *.gpu_target_config.pbtxt. `topology` is then "2x8", or "name:2x8".
        axes: the mesh's axes and their sizes, in order. The devices of a host stand
            together, so that the last axes are those within hosts.

    Returns:
        A `jax.sharding.Mesh`.

    Raises:
        UnknownTopology: there is no such card, or no such host of it.
        MeshMismatch: the sizes do not multiply to the number of devices.
        NoGpuCompiler: the CUDA plugin is not there, not this JAX's, or does not start.
        NotUnderstood: a size, `axis_types` or `target_config` is of no use.

    Used in the chapter on memory.
    """
    jax = require_jax()
    try:
        text = None if target_config is None else _read(target_config)
        cluster = read_cluster(topology, described=text is not None)
        call = f"gpu_mesh({cluster.name!r}"
        there_are = f"{cluster.name} has {cluster.devices}"

        def examples(count: int) -> str:
            return _examples(cluster, count, tuple(axes))

        shape = checked_sizes(call, axes, cluster.devices, there_are, examples)
        types = checked_types(jax, axis_types, len(shape))
        check(jax.__version__)
        devices = _devices(cluster, text, jax.__version__)
    except (UnknownTopology, MeshMismatch, NotUnderstood, NoGpuCompiler) as error:
        raise error.with_traceback(None) from None
    from jax.experimental import mesh_utils

    placed = mesh_utils.create_device_mesh(shape, devices)
    mesh: Mesh = jax.sharding.Mesh(placed, tuple(axes), axis_types=types)
    return mesh


def _read(given: "str | os.PathLike[str]") -> str:
    """The text of a description, which is given or stands in a file."""
    text = given
    if not isinstance(given, str) or "{" not in given:
        try:
            with open(given, encoding="utf8") as file:
                text = file.read()
        except (OSError, TypeError, ValueError) as error:
            raise NotUnderstood(
                f"target_config={given!r} can't be read ({error}): give the text that "
                "XLA dumped, or the path of the file *.gpu_target_config.pbtxt."
            ) from None
    if _memory(str(text)) is None:
        raise NotUnderstood(
            "target_config: the text has no device_memory_size, so it is no description"
            " of a card: give the file *.gpu_target_config.pbtxt that XLA dumps."
        )
    return str(text)


def _memory(text: str) -> int | None:
    match = re.search(r"\bdevice_memory_size: *(\d+)", text)
    return int(match[1]) if match else None


def _devices(cluster: Cluster, text: str | None, version: str) -> "Sequence[Device]":
    """The compiler's stand-ins for the devices, with what is known of their memory."""
    described = text if cluster.card is None else text_of(cluster.card)
    assert described is not None  # no card without a text
    log: list[str] = []
    try:
        with kept_log() as log:
            devices = _kept(described, cluster.compiler_name)
    except Exception as error:  # whatever the plugin raises as it starts
        said = [*log, *str(error).strip().splitlines(), "no message"]
        raise _refusal(said[0], text is not None, version) from None
    memory = _memory(described) or 0
    remember(devices, cluster.card_name or devices[0].device_kind, memory)
    return devices


@lru_cache(maxsize=64)
def _kept(described: str, topology: str) -> "tuple[Device, ...]":
    """The devices of a cluster, the same ones for each mesh of it."""
    return tuple(absent_devices(described, topology))


def _refusal(said: str, own: bool, version: str) -> Exception:
    said = said.partition("] ")[2] or said  # without the time and place of a log line
    if own and "GpuTargetConfigProto" in said:
        return NotUnderstood(
            f"target_config: the compiler of jax {version} does not read it ({said}): "
            "leave that field out, or have this version of jax dump it."
        )
    return NoGpuCompiler(
        f"the GPU compiler does not start ({said}): run  %pip install "
        f"'jax[cuda12-local]=={version}'  and restart the kernel."
    )


def _examples(cluster: Cluster, axes: int, names: tuple[str, ...]) -> str:
    """A few meshes that have as many devices: within hosts, then across."""
    shapes = [
        shape
        for first in (cluster.hosts, cluster.devices // 2, 2, 1, cluster.devices)
        if first and cluster.devices % first == 0
        for shape in [_filled(first, cluster.devices, axes)]
        if shape is not None and prod(shape) == cluster.devices
    ]
    return join_words([mesh_words(s, names) for s in dict.fromkeys(shapes)][:2])


def _filled(first: int, devices: int, axes: int) -> tuple[int, ...] | None:
    """`first`, then the rest on the last axis, all others 1."""
    if axes == 1:
        return (devices,)
    return (first, *[1] * (axes - 2), devices // first)
