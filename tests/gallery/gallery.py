"""The programs of the gallery, and their X-rays on one platform."""

import importlib
import pkgutil
import warnings
from collections import Counter
from contextlib import nullcontext
from types import ModuleType
from typing import Any

import jax

import spmd_helpers as spmd
from tests.stand_ins import slice_of_v5e

from . import programs

COMPILERS = ("cpu", "cpu_old", "tpu", "gpu")
PROGRAMS: dict[str, ModuleType] = {
    module_info.name: importlib.import_module(f"{programs.__name__}.{module_info.name}")
    for module_info in pkgutil.iter_modules(programs.__path__)
}


def is_for(name: str, platform: str) -> bool:
    """Whether a program can be compiled for it: a model that has data is on CPUs."""
    return getattr(PROGRAMS[name], "ONLY", platform) == platform


def devices_of(platform: str) -> list[Any]:
    """Eight devices; TPUs and GPUs that are not there."""
    if platform == "tpu":
        return list(slice_of_v5e())
    if platform == "gpu":
        return list(spmd.gpu_mesh("h100:8", data=8).devices.flat)
    return jax.devices()


def ray(name: str, devices: Any) -> Any:
    """The X-ray of a program, compiled for these devices."""
    f, args, *options = PROGRAMS[name].build(devices)
    options = dict(options[0]) if options else {}
    mesh = options.pop("set", None)
    with warnings.catch_warnings():
        # JAX itself says that a donated batch is of no use.
        warnings.filterwarnings("ignore", "Some donated buffers", UserWarning)
        with jax.set_mesh(mesh) if mesh else nullcontext():
            return spmd.xray(f, *args, **options)


def exchanged(collectives: Any) -> dict[tuple, int]:
    """{(kind, axes, executions): bytes of the full arrays}, as the programs have it."""
    total: Counter[tuple] = Counter()
    for c in collectives:
        size = c.result_bytes if c.kind == "all-gather" else c.operand_bytes
        total[c.kind, c.axes, c.count] += size
    return dict(total)


def expected(name: str, compiler: str) -> dict[tuple, int]:
    """What a person counted, for one of COMPILERS."""
    return _of(PROGRAMS[name], "EXCHANGES", compiler)


def mistakes(name: str, compiler: str) -> set[str]:
    """The codes of the findings that are right."""
    return _of(PROGRAMS[name], "FINDINGS", compiler)


def _of(program: ModuleType, field: str, compiler: str) -> Any:
    """What a program has for a compiler, or else for all."""
    own = {"cpu_old": ("CPU_OLD", "CPU")}.get(compiler, (compiler.upper(),))
    names = own if field == "EXCHANGES" else [f"{name}_{field}" for name in own]
    for name in (*names, field):
        if hasattr(program, name):
            return getattr(program, name)
    raise AttributeError(f"{program.__name__} has no {field}")
