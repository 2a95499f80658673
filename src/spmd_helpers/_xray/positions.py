"""Where the devices stand that a program was compiled for."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .._gpu.memory import card_of
from .._hardware.positions import Positions

if TYPE_CHECKING:
    from jax.sharding import AbstractMesh, Mesh

    from .._shardings.types import JaxDevice


def positions_of(
    mesh: "Mesh | AbstractMesh | None", devices: "Sequence[JaxDevice]"
) -> Positions | None:
    """The positions of a mesh's devices, or of one device; None of others."""
    flat = getattr(getattr(mesh, "devices", None), "flat", None)
    if flat is None:
        one = {*devices}
        flat = devices[:1] if mesh is None and len(one) == 1 else None
    if flat is None:
        return None
    ordered = list(flat)
    kind = card_of(ordered[0]) or str(ordered[0].device_kind)
    hosts = tuple(int(device.process_index) for device in ordered)
    slices = tuple(int(getattr(device, "slice_index", None) or 0) for device in ordered)
    coords = tuple(_place(device) for device in ordered)
    is_torus = all(coords)
    return Positions(
        kind, hosts, slices if is_torus else hosts, coords if is_torus else ()
    )


def _place(device: object) -> tuple[int, ...]:
    coords = getattr(device, "coords", None)
    if coords is None:
        return ()
    return (*map(int, coords), int(getattr(device, "core_on_chip", 0) or 0))
