"""Which devices a notebook runs on, decided once, in its first cell."""

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import TYPE_CHECKING

from ._core.validate import integer
from ._errors import BackendStarted
from ._gpu.plugin import quiet_plugin
from ._runtime.packages import is_older
from ._runtime.require import require_jax
from ._tpu.libtpu import quiet_libtpu

if TYPE_CHECKING:
    import jax

    from ._shardings.types import JaxDevice

# The first JAX in which a donated array that is passed again to the same jitted
# function raises an error on several CPU devices. Before it the process ends.
_DONATION_RAISES = "0.11.1"
_RESTART = (
    "so restart the kernel (in Colab: Runtime > Restart session) and run the cell with"
    " use_devices before any other."
)


@dataclasses.dataclass(frozen=True)
class _Accelerators:
    """Which accelerators JAX has, in words that outlive the backend."""

    count: int = 0
    platform: str = ""
    kinds: str = ""
    problem: str = ""

    def __str__(self) -> str:
        if self.problem:
            return f"the accelerator did not start: {self.problem}"
        if not self.count:
            return "JAX sees no accelerator"
        return f"JAX sees {self.count} {self.platform}, {self.kinds}"


# Set when use_devices shut the accelerators out: a second call can't see them.
_shut_out: _Accelerators | None = None


def use_devices(n: int = 8, at_least: int | None = None) -> "list[jax.Device]":
    """Choose the devices of a notebook, and print one line saying which and why.

    Takes up to `n` accelerators if there are `at_least` of them, else `n` CPU devices
    made by splitting this machine's processor. Call it first: the processor can only
    be split before JAX starts. In Colab and locally it needs no arguments.

    Example:
        >>> devices = use_devices(8)
        using 8 CPU devices (the processor split in 8; JAX sees no accelerator)...
        >>> len(devices), devices[0].platform
        (8, 'cpu')

    When CPU devices are chosen although there are accelerators, JAX is told to forget
    those: `jax.devices()`, a mesh made without `devices=`, `jnp.ones` and `jax.pmap`
    then all mean the CPU. (If JAX was already running, that is too late: only arrays
    without a placement go to the CPU, and a mesh needs `devices=`.)

    A JAX that ends the kernel where a newer one raises an error is named in a second
    line, before it happens.

    Args:
        n: how many devices are wanted; as many as the largest mesh of the chapter.
        at_least: how many accelerators are enough, from 1 to n; by default n. With
            `use_devices(8, at_least=2)` two GPUs are taken rather than eight CPUs.

    Returns:
        A list of JAX devices: n of them, or between at_least and n accelerators.

    Raises:
        ValueError: n or at_least is not an integer in range.
        BackendStarted: JAX already runs, on too few devices.
        NoJax, OldJax: no JAX, or one older than 0.10.2.

    The first call of every chapter.
    """
    jax = require_jax()
    what = "a number of devices"
    n = integer("n", n, what, example="use_devices(8)")
    least = n
    if at_least is not None:
        example = "use_devices(8, at_least=2)"
        least = integer("at_least", at_least, what, example=example)
    if least > n:
        raise ValueError(
            f"at_least={least} is more than n={n}, and use_devices never returns more"
            f" than n: write use_devices({least}, at_least={least})."
        )
    with _threads_for(n), quiet_libtpu(), quiet_plugin():
        return _choose(jax, n, least)


def _choose(jax: ModuleType, n: int, least: int) -> "list[JaxDevice]":
    global _shut_out
    started = not _split_processor(jax, n)
    accelerators, report = _look(jax)
    if len(accelerators) >= least:
        chosen = accelerators[:n]
        default = jax.config.jax_default_device
        if getattr(default, "platform", "") == "cpu":  # an earlier call chose the CPU
            jax.config.update("jax_default_device", None)
        print(_accelerator_line(chosen, report, n))
        return chosen
    if started and _shut_out is not None:
        report = _shut_out
        if report.count >= least:
            raise BackendStarted(
                f"JAX runs on the CPU devices that an earlier use_devices chose, and"
                f" use_devices(n={n}, at_least={least}) would take the {report.count}"
                f" {report.platform} instead: that can't change once JAX has started,"
                f" {_RESTART}"
            )
    if not started and (report.count or report.problem):
        _start_anew_without_accelerators(jax)
        accelerators = []
    if not started:
        _shut_out = report
    chosen = _processor(jax, n, accelerators)
    print(_processor_line(jax, chosen, report, least), *_danger(jax, n), sep="\n")
    return chosen


def _danger(jax: ModuleType, n: int) -> list[str]:
    """What this JAX does on several CPU devices that a reader should know before."""
    if n == 1 or not is_older(jax.__version__, _DONATION_RAISES):
        return []
    return [
        f"jax {jax.__version__} ends the kernel when a donated array is used again;"
        f" {_DONATION_RAISES} and newer raise an error"
    ]


@contextlib.contextmanager
def _threads_for(devices: int) -> Iterator[None]:
    """Have JAX start with more threads than CPU devices, four for each.

    Devices that wait in a collective hold a thread each. With as many threads as
    devices none is left for the work they wait for, and a program can hang. XLA reads
    the number from NPROC when it starts, and takes the number of cores without it.
    """
    before = os.environ.get("NPROC")
    given = int(before) if before and before.isdecimal() else 0
    os.environ["NPROC"] = str(max(given, os.cpu_count() or 1, 4 * devices))
    try:
        yield
    finally:
        if before is None:
            del os.environ["NPROC"]
        else:
            os.environ["NPROC"] = before


def _split_processor(jax: ModuleType, n: int) -> bool:
    """Ask for n CPU devices (or keep a larger number); False if JAX already runs.

    JAX refuses a change once it runs, and accepts the number it already has: only
    asking for a number it does not have tells whether it runs.
    """
    wanted = max(n, jax.config.jax_num_cpu_devices)  # -1 where nobody has set it
    try:
        jax.config.update("jax_num_cpu_devices", wanted + 1)
    except RuntimeError:
        return False
    jax.config.update("jax_num_cpu_devices", wanted)
    platforms = (jax.config.jax_platforms or "").split(",")
    if platforms != [""] and "cpu" not in platforms:  # JAX_PLATFORMS=cuda, say
        jax.config.update("jax_platforms", ",".join([*platforms, "cpu"]))
    return True


def _look(jax: ModuleType) -> "tuple[list[JaxDevice], _Accelerators]":
    """The accelerators of JAX's default platform, and what there is to say of them."""
    try:
        accelerators = _accelerators(jax)
    except (RuntimeError, AssertionError) as error:  # such as a driver that is too old
        lines = str(error).strip().splitlines()
        return [], _Accelerators(problem=lines[0] if lines else type(error).__name__)
    if not accelerators:
        return [], _Accelerators()
    kinds = sorted({device.device_kind for device in accelerators})
    platform = accelerators[0].platform.upper()
    return accelerators, _Accelerators(len(accelerators), platform, " and ".join(kinds))


def _accelerators(jax: ModuleType) -> "list[JaxDevice]":
    """Starts JAX. Its own function so that a test can put a card into a machine."""
    return [device for device in jax.devices() if device.platform != "cpu"]


def _start_anew_without_accelerators(jax: ModuleType) -> None:
    """Nothing lives on them yet: make the CPU the only place there is.

    This also gives back the memory that a GPU backend takes when it starts.
    """
    from jax.extend.backend import clear_backends

    clear_backends()
    jax.config.update("jax_platforms", "cpu")


def _processor(
    jax: ModuleType, n: int, accelerators: "Sequence[JaxDevice]"
) -> "list[JaxDevice]":
    """The first n CPU devices; also the default place, if there are others."""
    try:
        processors: list[JaxDevice] = jax.devices("cpu")
    except (RuntimeError, AssertionError):  # started with JAX_PLATFORMS=cuda, say
        processors = []
    if len(processors) < n:
        running = [_count(len(processors), "CPU")]
        if accelerators:
            platform = accelerators[0].platform.upper()
            running.insert(0, _count(len(accelerators), platform))
        raise BackendStarted(
            f"JAX already runs, on {' and '.join(running)}, and use_devices({n}) needs"
            f" {n}: the number can't change once JAX has started, {_RESTART}"
        )
    if accelerators:
        jax.config.update("jax_default_device", processors[0])
    return processors[:n]


def _count(count: int, platform: str) -> str:
    return f"{count} {platform} device{'s' if count != 1 else ''}"


def _processor_line(
    jax: ModuleType, chosen: "Sequence[JaxDevice]", report: _Accelerators, least: int
) -> str:
    running = len(jax.devices("cpu"))
    of = f" of {running}" if running > len(chosen) else ""
    why = str(report)
    if report.count:
        why += f", and {least} {'is' if least == 1 else 'are'} needed"
    split = f"the processor split in {running}" if running > 1 else "the processor"
    plural = "s" if running > 1 else ""
    return f"using {len(chosen)}{of} CPU device{plural} ({split}; {why})"


def _accelerator_line(
    chosen: "Sequence[JaxDevice]", report: _Accelerators, n: int
) -> str:
    of = f" of {report.count}" if report.count > len(chosen) else ""
    plural = "s" if report.count > 1 else ""
    line = f"using {len(chosen)}{of} {report.platform} device{plural} ({report.kinds})"
    if len(chosen) < n:
        line += f"; up to {n} were requested, and this is enough"
    return line
