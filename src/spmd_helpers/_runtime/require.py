"""Checked before anything else: is there a JAX, new enough, and what else is needed?"""

import contextlib
import sys
from types import ModuleType

from .._core.words import join_words
from .._errors import MissingLibrary, NoJax, OldJax, RestartNeeded
from .compiler_log import kept_log
from .install import RESTART, hosted, import_again, install
from .packages import OLDEST_JAX, Change, is_older, needed_change


def require_jax() -> ModuleType:
    """Import JAX and return it, or say in one sentence what to install.

    Example:
        >>> require_jax().__name__
        'jax'

    Returns:
        The module `jax`. Importing it starts no backend.

    Raises:
        NoJax: JAX is not installed, or is and cannot be imported.
        OldJax: JAX is older than 0.10.2, the oldest this package is tested on.

    Used by every function that asks JAX anything; the first is `use_devices`.
    """
    # Beside a CUDA plugin an older JAX logs, as it is imported, that no GPU is there.
    quiet = contextlib.nullcontext() if "jax" in sys.modules else kept_log()
    try:
        with quiet:
            import jax
    except (ImportError, RuntimeError, AttributeError, TypeError, OSError) as error:
        raise NoJax(_why_not(error)) from None
    version = str(getattr(jax, "__version__", ""))
    if is_older(version, OLDEST_JAX):
        raise OldJax(
            f"spmd_helpers needs jax {OLDEST_JAX} or newer, and this is jax {version}:"
            f" run  {_command(running_jax=version)}  , {RESTART} and begin again at the"
            " first cell."
        )
    return jax


def require(*libraries: str) -> None:
    """Make sure that a notebook's JAX is new enough and its libraries are there.

    On Colab and Kaggle, which bring a JAX of their own, what is missing or too old is
    installed, with one line that says what and why: the newest JAX that goes with the
    NumPy that is there, with the packages of its accelerator. No restart is needed
    unless something imported JAX before. Everywhere else nothing is installed: one
    sentence says what to type.

    Example:
        >>> require("optax", "orbax-checkpoint")

    Args:
        libraries: names as pip knows them, beside jax. They are looked for, not
            imported.

    Raises:
        MissingLibrary: libraries are missing, or do not work with the JAX there is.
        NoJax, OldJax: JAX is missing, incomplete, or older than 0.10.2.
        RestartNeeded: JAX was imported before, so that the kernel must start anew.
        InstallFailed: pip could not do it.

    The last line of every chapter's first cell.
    """
    change = needed_change(libraries)
    running = str(getattr(sys.modules.get("jax"), "__version__", ""))
    place = hosted()
    if change is None:
        if running and is_older(running, OLDEST_JAX):
            raise RestartNeeded(
                f"jax {running} is running, and a newer one is installed: {RESTART} and"
                " run this cell first."
            )
        import_again(place)
        return
    if place:
        install(change, libraries, place)
        return
    raise _kind_of(change)(
        f"this notebook cannot run yet, because {join_words(change.reasons)}: run "
        f" {change.command}  {_afterwards(change)} this cell again."
    )


def _kind_of(change: Change) -> type[Exception]:
    if not change.brings_jax:
        return MissingLibrary
    return NoJax if "jax is not installed" in change.reasons else OldJax


def _afterwards(change: Change) -> str:
    """What to do between the installation and running the cell again."""
    imported = "jax" in sys.modules or ("numpy" in change.replaces)
    return f", {RESTART} and run" if change.replaces and imported else "and then run"


def _command(running_jax: str | None = None) -> str:
    """What to type; where metadata show nothing wrong, what brings JAX anew."""
    change = needed_change(running_jax=running_jax)
    return change.command if change else f'%pip install -U "jax>={OLDEST_JAX}" jaxlib'


def _why_not(error: Exception) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name in ("jax", "jaxlib"):
        return (
            f"spmd_helpers needs JAX, and {error.name} is not installed: run"
            f"  {_command()}  and then this cell again."
        )
    reason = (str(error).strip() or "no message").splitlines()[0]
    return (
        f"spmd_helpers needs JAX, and the installed one cannot be imported"
        f" ({type(error).__name__}: {reason}): run  {_command()}  , {RESTART} and begin"
        " again at the first cell."
    )
