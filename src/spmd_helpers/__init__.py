"""Draws JAX shardings, does the memory arithmetic, X-rays a compiled function.

Import it as `import spmd_helpers as spmd`. Names are loaded when they are first
used: importing the package needs neither JAX nor NumPy and starts no backend.
"""

from importlib import import_module

__version__ = "0.1.0"

# Where each public name lives. Order is the order of `dir()` and of the reference.
_HOMES = {
    "require": "_core.versions",
    "use_devices": "_devices",
    "layout": "_shardings.from_jax",
    "Layout": "_shardings.sharding",
    "draw": "_drawing.draw",
    "draw_mesh": "_drawing.draw",
    "Drawing": "_drawing.draw",
    "xray": "_xray.xray",
    "XRay": "_xray.xray",
    "Finding": "_findings.find",
    "read_hlo": "_hlo.collectives",
    "Collective": "_hlo.collectives",
    "memory": "_memory.memory",
    "Memory": "_memory.memory",
    "Transformer": "_training.model",
    "MLP": "_training.model",
    "MODELS": "_training.models",
    "Chip": "_hardware.chips",
    "HARDWARE": "_hardware.chips",
    "training_memory": "_training.training_memory",
    "TrainingMemory": "_training.training_memory",
    "explain": "_explain.explain",
    "Explanation": "_explain.explain",
    "tpu_mesh": "_tpu.mesh",
    "DoesNotFit": "_tpu.refusals",
    "exercise": "_exercise",
    "assert_sharding": "_asserts.arrays",
    "assert_close": "_asserts.arrays",
    "assert_same_as_one_device": "_asserts.arrays",
    "assert_collectives": "_asserts.programs",
    "assert_peak_memory": "_asserts.programs",
    "load_mnist": "_datasets.mnist",
    "MNIST": "_datasets.mnist",
    "load_text": "_datasets.text",
    "load_measured": "_hardware.measured",
    "matmul": "_matmul.matmul",
    "Matmul": "_matmul.matmul",
    "ShardingExplorer": "_widgets.widgets",
    "MatmulExplorer": "_widgets.widgets",
    "MemoryCalculator": "_widgets.widgets",
    "launch": "_launch.launch",
    "Launched": "_launch.launch",
    "SpecError": "_errors",
    "UnknownAxis": "_errors",
    "TooManyEntries": "_errors",
    "AxisUsedTwice": "_errors",
    "NotDivisible": "_errors",
    "MeshMismatch": "_errors",
    "NotUnderstood": "_errors",
    "NotOnTorus": "_errors",
    "UnknownTopology": "_errors",
    "NoTpuCompiler": "_errors",
    "NoJax": "_errors",
    "OldJax": "_errors",
    "MissingLibrary": "_errors",
    "BackendStarted": "_errors",
    "DownloadFailed": "_errors",
    "LaunchFailed": "_errors",
    "LaunchTimedOut": "_errors",
    "CheckFailed": "_errors",
}

__all__ = list(_HOMES)

# What IPython looks for at `%load_ext spmd_helpers`; no reader calls it.
_HOOKS = {
    "load_ipython_extension": "_explain.ipython",
    "unload_ipython_extension": "_explain.ipython",
}


def __getattr__(name: str):
    home = _HOMES.get(name) or _HOOKS.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{home}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
