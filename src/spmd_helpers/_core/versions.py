"""Asked before anything else: is there a JAX, new enough, and what else is needed?"""

import re
import sys
from importlib.util import find_spec

from .._errors import MissingLibrary, NoJax, OldJax

OLDEST_JAX = "0.10.2"
_IMPORTED_AS = {"orbax-checkpoint": "orbax.checkpoint"}


def require_jax():
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
    try:
        import jax
    except (ImportError, RuntimeError, AttributeError, TypeError, OSError) as error:
        raise NoJax(_why_not(error)) from None
    version = str(getattr(jax, "__version__", ""))
    if is_older(version, OLDEST_JAX):
        raise OldJax(
            f"spmd_helpers needs jax {OLDEST_JAX} or newer, and this is jax"
            f" {version}: run  %pip install -U jax  (with a GPU 'jax[cuda12]', with a"
            " TPU 'jax[tpu]'), restart the kernel (in Colab: Runtime > Restart"
            " session) and begin again at the first cell."
        )
    return jax


def require(*libraries):
    """Say in one sentence which of a notebook's libraries to install; none: nothing.

    The command that it gives names the JAX that is installed, so that pip keeps it:
    a new flax, for one, would else replace a JAX that is older than it likes.

    Example:

    >>> require("optax", "orbax-checkpoint")

    Args:
        libraries: names as pip knows them. They are looked for, not imported.

    Raises:
        MissingLibrary: some are not installed.
        NoJax, OldJax: some are not, and JAX has to be mended first.

    The first cell of the chapters that import more than JAX and NumPy.
    """
    missing = [name for name in libraries if not _is_installed(name)]
    if not missing:
        return
    if _is_installed("jax"):
        kept = f"jax=={require_jax().__version__}"
        why = "the last word keeps the JAX that is here"
    else:
        kept = "jax"
        why = "with a GPU write 'jax[cuda12]', with a TPU 'jax[tpu]'"
    *others, last = missing
    names = f"{', '.join(others)} and {last}" if others else last
    verb = "are" if others else "is"
    raise MissingLibrary(
        f"this notebook also needs {names}, which {verb} not installed: run"
        f"  %pip install {' '.join(missing)} {kept}  ({why}) and then this cell again."
    )


def _is_installed(name):
    try:
        return find_spec(_IMPORTED_AS.get(name, name)) is not None
    except (ImportError, ValueError):  # no parent; a module without a spec
        return _IMPORTED_AS.get(name, name) in sys.modules


def is_older(version, than):
    """Whether a version comes before a final release.

    Example:

    >>> is_older("0.4.35", "0.10.2"), is_older("0.12.0.1", "0.10.2")
    (True, False)
    >>> is_older("0.10.2.dev20260401", "0.10.2")  # made before 0.10.2 was
    True

    Args:
        version: such as "0.10.2", "0.12.0.1" or "0.11.0.dev20260901+4f2a".
        than: a final release, digits and dots only.

    Returns:
        False also for a version that cannot be read: better to try than to refuse.
    """
    given = _sort_key(version)
    return given is not None and given < _sort_key(than)


def _sort_key(version):
    """(release numbers, is it final): ((0, 10, 2), True) for "0.10.2"."""
    parts = re.match(r"(\d+(?:\.\d+)*)(\.?(?:dev|a|b|rc)\d*)?", version)
    if parts is None:
        return None
    numbers = [int(number) for number in parts[1].split(".")]
    while numbers and numbers[-1] == 0:  # 0.11.0 and 0.11 are one release
        numbers.pop()
    return tuple(numbers), parts[2] is None


def _why_not(error):
    if isinstance(error, ModuleNotFoundError) and error.name in ("jax", "jaxlib"):
        return (
            f"spmd_helpers needs JAX, and {error.name} is not installed: run"
            "  %pip install -U jax  (with a GPU 'jax[cuda12]', with a TPU 'jax[tpu]');"
            " in Colab it is already there."
        )
    reason = (str(error).strip() or "no message").splitlines()[0]
    return (
        f"spmd_helpers needs JAX, and the installed one cannot be imported"
        f" ({type(error).__name__}: {reason}): run  %pip install -U jax jaxlib  and"
        " restart the kernel."
    )
