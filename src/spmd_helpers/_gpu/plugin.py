"""The GPU compiler, in JAX's CUDA plugin: is it there, does it fit, does it start?"""

import contextlib
import glob
import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from .._errors import NoGpuCompiler
from .._runtime.compiler_log import kept_log
from .._runtime.packages import installed, misfits

if TYPE_CHECKING:
    from jax import Device

_CUDA = ("12", "13")
# With it the plugin does not look for NVIDIA's libraries, which no compiler needs.
_SKIP = "JAX_SKIP_CUDA_CONSTRAINTS_CHECK"


def plugins() -> list[str]:
    """Which of JAX's CUDA plugins are here: '12', '13'. Imports none of them."""
    return [cuda for cuda in _CUDA if _spec(f"jax_plugins.xla_cuda{cuda}")]


def _spec(name: str) -> bool:
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):  # there is no package jax_plugins
        return False
    return spec is not None and spec.origin is not None  # no folder that pip left


def has_cards() -> bool:
    """Whether this machine may have NVIDIA's GPUs: then the plugin looks as it does."""
    return bool(glob.glob("/dev/nvidia[0-9]*") or glob.glob("/dev/dxg"))


def check(jax_version: str) -> None:
    """Make sure that one CUDA plugin is here, and that it is this JAX's.

    Raises:
        NoGpuCompiler: it is not; the message has the line that installs it.
    """
    here = plugins()
    if not here:
        raise NoGpuCompiler(_missing(jax_version))
    if len(here) > 1:
        raise NoGpuCompiler(
            "jax-cuda12-plugin and jax-cuda13-plugin are both installed, and JAX takes "
            "one: run  %pip uninstall -y jax-cuda12-plugin jax-cuda12-pjrt  and restart"
            " the kernel."
        )
    (cuda,) = here
    wrong = misfits(f"jax-cuda{cuda}-pjrt", f"jax-cuda{cuda}-plugin")
    if wrong:
        libraries = "" if installed(f"nvidia-cudnn-cu{cuda}") else "-local"
        raise NoGpuCompiler(
            f"{wrong}: run  %pip install 'jax[cuda{cuda}{libraries}]=={jax_version}'  "
            "and restart the kernel."
        )


def _missing(jax_version: str) -> str:
    if sys.platform != "linux":
        return (
            "gpu_mesh needs JAX's CUDA plugin, which is made for Linux, and this is "
            f"{sys.platform}: use a Linux machine, a container or Colab; no GPU is "
            "needed there."
        )
    return (
        "gpu_mesh needs the GPU compiler, and JAX's CUDA plugin is not installed: run  "
        f"%pip install 'jax[cuda12-local]=={jax_version}'  and restart the kernel (it "
        "runs on Linux, and needs no GPU, no driver and no library of NVIDIA's)."
    )


@contextlib.contextmanager
def quiet_plugin() -> Iterator[None]:
    """Have JAX start beside a CUDA plugin without a word, if it starts in here.

    On a machine without GPUs JAX looks for NVIDIA's libraries all the same, and logs
    that they are missing. Where GPUs are, or no plugin, nothing is touched.
    """
    if has_cards() or not plugins():
        yield
        return
    with kept_log(), _unchecked():
        yield


@contextlib.contextmanager
def _unchecked() -> Iterator[None]:
    if _SKIP in os.environ:
        yield
        return
    os.environ[_SKIP] = "1"
    try:
        yield
    finally:
        os.environ.pop(_SKIP, None)


def absent_devices(target_config: str, topology: str) -> "Sequence[Device]":
    """The compiler's stand-ins for the devices of a cluster.

    Raises:
        RuntimeError: the compiler does not start, or does not take the text.
    """
    from jax.experimental import topologies

    def described() -> "Sequence[Device]":
        return topologies.get_topology_desc(
            platform="cuda", target_config=target_config, topology=topology
        ).devices

    with quiet_plugin():
        try:
            return described()
        except NotImplementedError:
            # JAX started before, and left the plugin out: no library of NVIDIA's, or a
            # driver that is too old. Neither is needed to compile.
            (cuda,) = plugins()
            with _unchecked():
                importlib.import_module(f"jax_plugins.xla_cuda{cuda}").initialize()
            return described()
