"""Draws JAX shardings, does the memory arithmetic, X-rays a compiled function.

Import it as `import spmd_helpers as spmd`. Names are loaded when they are first
used: importing the package needs neither JAX nor NumPy and starts no backend.
"""

from importlib import import_module

__version__ = "0.1.0"

# Where each public name lives. Order is the order of `dir()` and of the reference.
_HOMES = {
    "require": "_jax_version",
    "use_devices": "_devices",
    "sharding": "_from_jax",
    "ShardingInfo": "_layout",
    "draw": "_draw",
    "draw_mesh": "_draw",
    "Drawing": "_draw",
    "xray": "_xray",
    "XRay": "_xray",
    "Finding": "_findings",
    "read_hlo": "_hlo",
    "Collective": "_hlo",
    "memory": "_memory",
    "Memory": "_memory",
    "Transformer": "_transformer",
    "MLP": "_transformer",
    "MODELS": "_models",
    "Chip": "_hardware",
    "HARDWARE": "_hardware",
    "training_memory": "_training_memory",
    "TrainingMemory": "_training_memory",
    "explain": "_explain",
    "Explanation": "_explain",
    "tpu_mesh": "_tpu",
    "DoesNotFit": "_tpu_memory",
    "exercise": "_exercise",
    "assert_sharding": "_checks",
    "assert_close": "_checks",
    "assert_same_as_one_device": "_checks",
    "assert_collectives": "_budgets",
    "assert_peak_memory": "_budgets",
    "load_mnist": "_data",
    "MNIST": "_data",
    "load_text": "_prose",
    "load_measured": "_measured",
    "matmul": "_matmul",
    "Matmul": "_matmul",
    "ShardingExplorer": "_widgets",
    "MatmulExplorer": "_widgets",
    "MemoryCalculator": "_widgets",
    "launch": "_launch",
    "Launched": "_launch",
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
    "RestartNeeded": "_errors",
    "InstallFailed": "_errors",
    "BackendStarted": "_errors",
    "DownloadFailed": "_errors",
    "LaunchFailed": "_errors",
    "LaunchTimedOut": "_errors",
    "CheckFailed": "_errors",
}

__all__ = list(_HOMES)

# What IPython looks for at `%load_ext spmd_helpers`; no reader calls it.
_HOOKS = {
    "load_ipython_extension": "_extension",
    "unload_ipython_extension": "_extension",
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
