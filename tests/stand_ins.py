"""Stand-ins that several test files share."""

import importlib
import shutil
import sys
from pathlib import Path

import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

PACKAGE = Path(__file__).parent.parent / "src" / "spmd_helpers"


def broken_package(tmp_path, monkeypatch, name, where, old, new, *wanted):
    """Modules of a copy of the package, called `name`, in which `old` is `new`.

    `where` is the module that is changed, such as "_hlo.parser", "" for none;
    `wanted` are those returned.
    """
    package = tmp_path / name
    copy = shutil.ignore_patterns("__pycache__", "js", "measurements", "*.npz", "*.txt")
    shutil.copytree(PACKAGE, package, ignore=copy)
    (package / "__init__.py").write_text("")
    if where:
        path = package.joinpath(*where.split(".")).with_suffix(".py")
        text = path.read_text("utf8")
        assert text.count(old) == 1, f"{old!r} no longer stands once in {where}"
        path.write_text(text.replace(old, new), "utf8")
    monkeypatch.syspath_prepend(tmp_path)
    try:
        return [importlib.import_module(f"{name}.{module}") for module in wanted]
    finally:
        for module in [m for m in sys.modules if m.partition(".")[0] == name]:
            del sys.modules[module]


def guarded(mesh):
    """What looks like an array of [8, 4] cut along data, and raises if it is read."""

    class Guarded:
        shape, dtype = (8, 4), np.dtype("float32")
        sharding = NamedSharding(mesh, P("data"))

        def __array__(self, *args, **kwargs):
            raise AssertionError("data was read")

        __getitem__ = __iter__ = __len__ = __array__

    return Guarded()


def one(op, devices=8, header=None, shape="f32[2,16]"):
    """A program of one instruction, as the compiler prints it."""
    header = f", num_partitions={devices}" if header is None else header
    return (
        f"HloModule jit_f{header}\n\nENTRY %main (p: {shape}) -> {shape} {{\n"
        f"  %p = {shape}{{1,0}} parameter(0)\n"
        f"  ROOT %r = {shape}{{1,0}} {op}\n}}\n"
    )
