"""Draws JAX shardings, does the memory arithmetic, X-rays a compiled function.

Import it as `import spmd_helpers as spmd`. Names are loaded when they are first
used: importing the package needs neither JAX nor NumPy and starts no backend.
"""

from importlib import import_module
from typing import TYPE_CHECKING

# For type checkers, which do not run `__getattr__`.
if TYPE_CHECKING:
    from ._aot.does_not_fit import DoesNotFit as DoesNotFit
    from ._asserts.arrays import assert_close as assert_close
    from ._asserts.arrays import assert_same_as_one_device as assert_same_as_one_device
    from ._asserts.arrays import assert_sharding as assert_sharding
    from ._asserts.programs import assert_collectives as assert_collectives
    from ._asserts.programs import assert_peak_memory as assert_peak_memory
    from ._datasets.mnist import MNIST as MNIST
    from ._datasets.mnist import load_mnist as load_mnist
    from ._datasets.text import load_text as load_text
    from ._devices import use_devices as use_devices
    from ._drawing.draw import Drawing as Drawing
    from ._drawing.draw import draw as draw
    from ._drawing.draw import draw_cells as draw_cells
    from ._drawing.draw import draw_mesh as draw_mesh
    from ._errors import AxisUsedTwice as AxisUsedTwice
    from ._errors import BackendStarted as BackendStarted
    from ._errors import CheckFailed as CheckFailed
    from ._errors import DownloadFailed as DownloadFailed
    from ._errors import InstallFailed as InstallFailed
    from ._errors import LaunchFailed as LaunchFailed
    from ._errors import LaunchTimedOut as LaunchTimedOut
    from ._errors import MeshMismatch as MeshMismatch
    from ._errors import MissingLibrary as MissingLibrary
    from ._errors import NoGpuCompiler as NoGpuCompiler
    from ._errors import NoJax as NoJax
    from ._errors import NotDivisible as NotDivisible
    from ._errors import NothingFits as NothingFits
    from ._errors import NotOnTorus as NotOnTorus
    from ._errors import NoTpuCompiler as NoTpuCompiler
    from ._errors import NotUnderstood as NotUnderstood
    from ._errors import OldJax as OldJax
    from ._errors import RestartNeeded as RestartNeeded
    from ._errors import SpecError as SpecError
    from ._errors import TooManyEntries as TooManyEntries
    from ._errors import UnknownAxis as UnknownAxis
    from ._errors import UnknownTopology as UnknownTopology
    from ._explain.explain import Explanation as Explanation
    from ._explain.explain import explain as explain
    from ._figures.batches import BatchPlayer as BatchPlayer
    from ._figures.diagram import Diagram as Diagram
    from ._figures.groups import draw_groups as draw_groups
    from ._figures.loop import LoopTimeline as LoopTimeline
    from ._figures.memory_timeline import MemoryTimeline as MemoryTimeline
    from ._figures.pipeline import PipelineSchedule as PipelineSchedule
    from ._figures.players import ReshapePlayer as ReshapePlayer
    from ._figures.players import RingPlayer as RingPlayer
    from ._figures.players import TreePlayer as TreePlayer
    from ._figures.products import draw_product as draw_product
    from ._figures.reads import RestoreReads as RestoreReads
    from ._figures.tokens import TokenRouting as TokenRouting
    from ._figures.torus import draw_torus as draw_torus
    from ._findings.find import Finding as Finding
    from ._gpu.mesh import gpu_mesh as gpu_mesh
    from ._hardware.chips import HARDWARE as HARDWARE
    from ._hardware.chips import Chip as Chip
    from ._hardware.measured import load_measured as load_measured
    from ._hlo.collectives import Collective as Collective
    from ._hlo.collectives import read_hlo as read_hlo
    from ._launch.launch import Launched as Launched
    from ._launch.launch import launch as launch
    from ._matmul.matmul import Matmul as Matmul
    from ._matmul.matmul import matmul as matmul
    from ._memory.memory import Memory as Memory
    from ._memory.memory import memory as memory
    from ._plan.plan import Plan as Plan
    from ._plan.plan_mesh import plan_mesh as plan_mesh
    from ._player.frames import FramePlayer as FramePlayer
    from ._player.player import CollectivePlayer as CollectivePlayer
    from ._runtime.require import require as require
    from ._shardings.from_jax import sharding as sharding
    from ._shardings.sharding import ShardingInfo as ShardingInfo
    from ._time.profile import profile as profile
    from ._time.profile import read_trace as read_trace
    from ._time.record import StepTime as StepTime
    from ._time.step_time import step_time as step_time
    from ._tpu.mesh import tpu_mesh as tpu_mesh
    from ._training.inference_memory import InferenceMemory as InferenceMemory
    from ._training.inference_memory import inference_memory as inference_memory
    from ._training.model import MLP as MLP
    from ._training.model import Transformer as Transformer
    from ._training.models import MODELS as MODELS
    from ._training.training_memory import TrainingMemory as TrainingMemory
    from ._training.training_memory import training_memory as training_memory
    from ._widgets.widgets import MatmulExplorer as MatmulExplorer
    from ._widgets.widgets import MemoryCalculator as MemoryCalculator
    from ._widgets.widgets import MeshPlanner as MeshPlanner
    from ._widgets.widgets import ShardingExplorer as ShardingExplorer
    from ._xray.xray import XRay as XRay
    from ._xray.xray import xray as xray

__version__ = "0.1.0"

# Where each public name lives. Order is the order of `dir()` and of the reference.
_HOMES = {
    "require": "_runtime.require",
    "use_devices": "_devices",
    "sharding": "_shardings.from_jax",
    "ShardingInfo": "_shardings.sharding",
    "draw": "_drawing.draw",
    "draw_mesh": "_drawing.draw",
    "draw_cells": "_drawing.draw",
    "Drawing": "_drawing.draw",
    "xray": "_xray.xray",
    "XRay": "_xray.xray",
    "Finding": "_findings.find",
    "read_hlo": "_hlo.collectives",
    "Collective": "_hlo.collectives",
    "CollectivePlayer": "_player.player",
    "FramePlayer": "_player.frames",
    "draw_groups": "_figures.groups",
    "draw_product": "_figures.products",
    "PipelineSchedule": "_figures.pipeline",
    "TokenRouting": "_figures.tokens",
    "LoopTimeline": "_figures.loop",
    "RestoreReads": "_figures.reads",
    "Diagram": "_figures.diagram",
    "TreePlayer": "_figures.players",
    "BatchPlayer": "_figures.batches",
    "draw_torus": "_figures.torus",
    "ReshapePlayer": "_figures.players",
    "RingPlayer": "_figures.players",
    "memory": "_memory.memory",
    "Memory": "_memory.memory",
    "Transformer": "_training.model",
    "MLP": "_training.model",
    "MODELS": "_training.models",
    "Chip": "_hardware.chips",
    "HARDWARE": "_hardware.chips",
    "training_memory": "_training.training_memory",
    "TrainingMemory": "_training.training_memory",
    "inference_memory": "_training.inference_memory",
    "InferenceMemory": "_training.inference_memory",
    "MemoryTimeline": "_figures.memory_timeline",
    "step_time": "_time.step_time",
    "StepTime": "_time.record",
    "profile": "_time.profile",
    "read_trace": "_time.profile",
    "plan_mesh": "_plan.plan_mesh",
    "Plan": "_plan.plan",
    "explain": "_explain.explain",
    "Explanation": "_explain.explain",
    "tpu_mesh": "_tpu.mesh",
    "gpu_mesh": "_gpu.mesh",
    "DoesNotFit": "_aot.does_not_fit",
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
    "MeshPlanner": "_widgets.widgets",
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
    "NothingFits": "_errors",
    "UnknownTopology": "_errors",
    "NoTpuCompiler": "_errors",
    "NoGpuCompiler": "_errors",
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
    "load_ipython_extension": "_explain.ipython",
    "unload_ipython_extension": "_explain.ipython",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name) or _HOOKS.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{home}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
