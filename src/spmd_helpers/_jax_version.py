"""One question, asked before anything else: is there a JAX, and is it new enough?"""

import re

from ._errors import NoJax, OldJax

OLDEST_JAX = "0.10.2"


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
