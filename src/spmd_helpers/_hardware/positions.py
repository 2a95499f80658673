"""Where the devices of a mesh stand: which host, which slice, which place in it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Positions:
    """The hosts and places of a mesh's devices, in the order of `mesh.devices.flat`.

    Attributes:
        kind: what names the devices' kind: 'h100' of a `gpu_mesh`, otherwise
            `device_kind`, 'NVIDIA H200' or 'TPU v5'.
        hosts: the number of each device's host, which is its process.
        slices: the number of each device's TPU slice; of GPUs that of its host.
        coords: each device's place in a TPU's torus, its core last; empty of GPUs.
    """

    kind: str
    hosts: tuple[int, ...]
    slices: tuple[int, ...]
    coords: tuple[tuple[int, ...], ...] = ()
