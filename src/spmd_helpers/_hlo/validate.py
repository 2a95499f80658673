"""What is given to read: whether it is a compiled program, and for which mesh."""

import re
from collections.abc import Mapping
from math import prod
from typing import TYPE_CHECKING

from .._core.validate import axis_sizes
from .._core.words import count_words
from .._errors import MeshMismatch, NotUnderstood
from .parser import Instruction, Module, parse
from .replica_groups import Groups

if TYPE_CHECKING:
    from jax.sharding import AbstractMesh, Mesh


def read_module(text: str) -> Module:
    """The records of a text, or a sentence that says what it is instead."""
    if not isinstance(text, str):
        raise NotUnderstood(
            f"text={type(text).__name__} object is not the text of a compiled "
            "program: give compiled.as_text()"
        )
    if not text.strip():
        raise NotUnderstood("text='' is empty: give compiled.as_text()")
    if len(re.findall(r"^HloModule", text, re.M)) > 1:
        raise NotUnderstood("text has several HloModules: give one at a time")
    module = parse(text)
    if module is None:
        start = text.strip().splitlines()[0][:60]
        why = "is not HLO"
        if re.match(r"(#loc|module @|module \{)", start):
            why = "is StableHLO, from before the compiler added the collectives"
        if start.startswith("HloModule"):
            why = "is cut short: it has no complete ENTRY computation"
        raise NotUnderstood(
            f"text={start!r}… {why}: give compiled.as_text(), where "
            "compiled = jax.jit(f).lower(*args).compile()"
        )
    return module


def read_mesh_shape(
    mesh_shape: "Mesh | AbstractMesh | Mapping[str, int]",
) -> dict[str, int]:
    """Axis name → size, of a mesh or of a mapping that says the same."""
    return axis_sizes("mesh_shape", getattr(mesh_shape, "shape", mesh_shape))


def _mismatch(mesh: dict[str, int], program: str) -> str:
    sizes = " × ".join(f"{name}={size}" for name, size in mesh.items()) or "no axis"
    have = count_words(prod(mesh.values()), "device")
    return (
        f"mesh_shape has {have} ({sizes}), but the program {program}: "
        "give the shape of the mesh that it was compiled for"
    )


def check_size(module: Module, mesh: dict[str, int]) -> int:
    """The number of devices, which the text's header must have too, if it has one."""
    size, devices = prod(mesh.values()), module.devices
    if devices is not None and devices != size:
        words = count_words(devices, "device")
        raise MeshMismatch(_mismatch(mesh, f"was compiled for {words}"))
    return size


def check_cover(i: Instruction, groups: Groups, mesh: dict[str, int]) -> None:
    """The groups of a text whose header doesn't say how many devices it is for."""
    size, named = prod(mesh.values()), [p for group in groups for p in group]
    if "permute" not in i.opcode and len(named) != size:
        raise MeshMismatch(_mismatch(mesh, f"groups {len(named)} devices"))
    if max(named, default=0) >= size:
        raise MeshMismatch(_mismatch(mesh, f"has a device {max(named)}"))
