"""TPUs that are not there: a mesh of them, to compile for."""

from collections.abc import Sequence
from math import prod
from types import ModuleType
from typing import TYPE_CHECKING

from .._aot.axes import checked_sizes, checked_types, mesh_words
from .._core.words import join_words
from .._errors import (
    MeshMismatch,
    NotOnTorus,
    NoTpuCompiler,
    NotUnderstood,
    UnknownTopology,
)
from .._runtime.require import require_jax
from .libtpu import has_libtpu, quiet_libtpu, too_old
from .topology import Topology, lies_on, order_on, read_topology, shapes_on

if TYPE_CHECKING:
    import numpy as np
    from jax import Device
    from jax.sharding import AxisType, Mesh


def tpu_mesh(
    topology: str,
    *,
    axis_types: "AxisType | str | Sequence[AxisType | str]" = "auto",
    anyhow: bool = False,
    **axes: int,
) -> "Mesh":
    """Make a mesh of TPU devices that are not there, to compile for.

    No accelerator is needed, only the TPU compiler (`pip install 'jax[tpu]'`). Its
    devices have no data and run nothing: give `xray` a function and
    `jax.ShapeDtypeStruct`s on this mesh, and see what the TPU compiler makes
    of it. JAX goes on with the devices that it has.

        mesh = tpu_mesh("v5p:4x4x4", data=16, model=4)
        rows = NamedSharding(mesh, P("data"))
        xray(f, jax.ShapeDtypeStruct((4096, 1024), "float32", sharding=rows))

        >>> tpu_mesh("v5p-128", data=64)  # 128 cores, two a chip: 64 chips
        Traceback (most recent call last):
        ...
        spmd_helpers...UnknownTopology: ... write for example 'v5p:4x4x4'.

    Args:
        topology: the kind of chip and how many stand in each direction: two numbers
            for v5e and v6e, three for v4, v5p and 7x. A chip is one device, of 7x
            it is two. Any block of whole hosts will do; which of them can be rented
            is for docs.cloud.google.com/tpu/docs to say.
        axis_types: 'auto' or 'explicit', or an AxisType, or one for each axis.
        anyhow: take a mesh that does not fit the torus. Its axes then share links
            (JAX's `allow_split_physical_axes`): memory and collectives are the same,
            but on a real slice they would be slower.
        axes: the mesh's axes and their sizes, in order. The last one should be that
            which communicates the most: JAX gives it the best links.

    Returns:
        A `jax.sharding.Mesh`.

    Raises:
        UnknownTopology: there is no such chip, or no such block of them.
        MeshMismatch: the sizes do not multiply to the number of devices.
        NotOnTorus: an axis is not made of full directions of the torus, so that it
            would share its links with another axis; or JAX's search, which begins
            with the last axis, finds none in this order of the axes.
        NoTpuCompiler: libtpu is not there, or too old for this JAX.
        NotUnderstood: a size or `axis_types` is of no use.

    Used in the chapters on memory and on meshes.
    """
    jax = require_jax()
    try:
        block = read_topology(topology)
        shape = _sizes(block, axes)
        types = checked_types(jax, axis_types, len(shape))
        if not anyhow and not lies_on(block.torus, shape):
            raise _off_torus(block, axes)
        devices = _place(block, axes, _devices(jax, block), anyhow)
    except (UnknownTopology, MeshMismatch, NotUnderstood, NoTpuCompiler) as error:
        raise error.with_traceback(None) from None
    mesh: Mesh = jax.sharding.Mesh(devices, tuple(axes), axis_types=types)
    return mesh


def _sizes(topology: Topology, axes: dict[str, int]) -> tuple[int, ...]:
    def examples(count: int) -> str:
        return _examples(_first(topology, count), tuple(axes))

    call = f"tpu_mesh({topology.name!r}"
    return checked_sizes(call, axes, topology.devices, _has(topology), examples)


def _has(topology: Topology) -> str:
    chips = prod(topology.chips)
    if topology.devices == chips:
        return f"{topology.name} has {chips}"
    return f"{topology.name} has {topology.devices}, two on each of {chips} chips"


def _devices(jax: ModuleType, topology: Topology) -> "Sequence[Device]":
    """The compiler's stand-ins for the devices."""
    version = jax.__version__
    if not has_libtpu():
        raise NoTpuCompiler(
            "tpu_mesh needs the TPU compiler, and libtpu is not installed: run  %pip"
            f" install 'jax[tpu]=={version}'  and restart the kernel (it runs on Linux,"
            " and needs no TPU)."
        )
    if problem := too_old():
        raise NoTpuCompiler(
            f"{problem}: run  %pip install 'jax[tpu]=={version}'  and restart the"
            " kernel."
        )
    from jax.experimental import topologies

    try:
        with quiet_libtpu():
            described = topologies.get_topology_desc(
                platform="tpu",
                topology_name=topology.compiler_name,
                chips_per_host_bounds=topology.host,
                **dict(topology.generation.options),
            )
    except (RuntimeError, ValueError) as error:  # JAX's errors are RuntimeErrors
        raise _refusal(topology, str(error), version) from None
    return described.devices


def _refusal(topology: Topology, message: str, version: str) -> Exception:
    first = (message.strip() or "no message").splitlines()[0]
    if "lockfile" in message or "already in use" in message:
        return NoTpuCompiler(
            "another program on this machine uses its TPUs, and libtpu serves one at a"
            f" time ({first}): end that program, or set the environment variable"
            " ALLOW_MULTIPLE_LIBTPU_LOAD=1 before this one starts."
        )
    if "INVALID_ARGUMENT" in message or "NOT_FOUND" in message:
        return UnknownTopology(
            f"topology={topology.name!r} is unknown to the installed TPU compiler"
            f" ({first}): a newer jax[tpu] may know it."
        )
    return NoTpuCompiler(
        f"the TPU compiler does not start ({first}): run  %pip install"
        f" 'jax[tpu]=={version}'  and restart the kernel."
    )


def _place(
    topology: Topology,
    axes: dict[str, int],
    devices: "Sequence[Device]",
    anyhow: bool,
) -> "np.ndarray":
    """The devices in the mesh's shape, as JAX assigns axes to directions."""
    from jax.experimental import mesh_utils

    shape = tuple(axes.values())
    try:
        return mesh_utils.create_device_mesh(shape, devices)
    except NotImplementedError:  # what JAX raises for a mesh that does not fit
        if anyhow:
            return mesh_utils.create_device_mesh(
                shape, devices, allow_split_physical_axes=True
            )
    raise _off_torus(topology, axes)


def _off_torus(topology: Topology, axes: dict[str, int]) -> NotOnTorus:
    wires = "×".join(map(str, (size for size in topology.torus if size > 1)))
    words = ", ".join(f"{axis}={size}" for axis, size in axes.items())
    shape = tuple(axes.values())
    order = order_on(topology.torus, shape)
    if order is not None:
        names = tuple(axes)
        fitting = ", ".join(f"{names[place]}={shape[place]}" for place in order)
        return NotOnTorus(
            f"{words} lies on the {wires} torus of {topology.name} in another order of "
            f"the axes: JAX's search, which begins with the last one, finds {fitting}. "
            "Give that order, or anyhow=True to compile for this one all the same"
        )
    return NotOnTorus(
        f"{words} does not fit the {wires} torus of {topology.name}: each axis must "
        "be full directions of it, or it shares links with another. These fit: "
        f"{_examples(_first(topology, len(shape)), tuple(axes))}. Give anyhow=True to "
        "compile for it all the same"
    )


def _first(topology: Topology, axes: int) -> list[tuple[int, ...]]:
    """A few shapes that fit, without idle axes where that can be."""
    shapes = shapes_on(topology.torus, axes)
    return [shape for shape in shapes if 1 not in shape][:3] or shapes[:3]


def _examples(shapes: list[tuple[int, ...]], names: tuple[str, ...]) -> str:
    return join_words([mesh_words(shape, names) for shape in shapes])
