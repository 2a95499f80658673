"""One exception type for each kind of mistake a reader can make."""


class OneSentence:
    """Shown in a notebook as its message alone: the way there teaches nothing."""

    def _render_traceback_(self) -> list[str]:  # IPython looks for this name
        return [f"{type(self).__name__}: {self}"]


class SpecError(ValueError):
    """A PartitionSpec that does not fit its array or its mesh."""


class UnknownAxis(SpecError):
    """A spec names an axis that the mesh does not have."""


class TooManyEntries(SpecError):
    """A spec has more entries than the array has dimensions."""


class AxisUsedTwice(SpecError):
    """A spec uses one mesh axis in two places."""


class NotDivisible(SpecError):
    """A dimension is not divisible into the shards of the spec."""


class MeshMismatch(ValueError):
    """A mesh that does not match the devices, or the program, it came with."""


class NotOnTorus(MeshMismatch):
    """A mesh whose axes do not follow the directions of a TPU slice."""


class UnknownTopology(ValueError):
    """No slice of TPUs and no cluster of GPUs has this name."""


class NotUnderstood(ValueError):
    """An argument that is not of a kind the function can read."""


class NothingFits(ValueError):
    """No strategy of a plan stays within the memory of its chips."""


class NoJax(OneSentence, RuntimeError):
    """JAX is needed and is not installed."""


class NoTpuCompiler(OneSentence, RuntimeError):
    """The TPU compiler, libtpu, is not installed or does not start."""


class NoGpuCompiler(OneSentence, RuntimeError):
    """JAX's CUDA plugin, which has the GPU compiler, is missing or does not start."""


class OldJax(OneSentence, RuntimeError):
    """The installed JAX is older than the oldest one this package supports."""


class MissingLibrary(OneSentence, RuntimeError):
    """A library that the notebook imports is not installed.

    No ImportError: Colab shows those in its own way, with advice that is wrong here.
    """


class RestartNeeded(OneSentence, RuntimeError):
    """An imported package has to be replaced, so the kernel must start anew."""


class InstallFailed(OneSentence, RuntimeError):
    """pip could not install what a notebook needs, on Colab or Kaggle."""


class BackendStarted(OneSentence, RuntimeError):
    """JAX already runs on fewer devices than requested."""


class LaunchFailed(OneSentence, RuntimeError):
    """One of the processes that `launch` started raised, or died."""


class LaunchTimedOut(OneSentence, TimeoutError):
    """The processes that `launch` started had not all ended in time."""


class DownloadFailed(OneSentence, RuntimeError):
    """A download was incomplete; nothing of it was kept."""


class CheckFailed(OneSentence, AssertionError):
    """An exercise's answer, or an asserted sharding, is not what it must be."""
