"""The TPU compiler, libtpu: is it there, and can it start without a word?"""

import atexit
import contextlib
import glob
import importlib.util
import os
import shutil
import tempfile
from collections.abc import Iterator

from .._runtime.packages import old_libtpu

# What libtpu needs to know on a machine without TPUs. It reads all of it once,
# when it is loaded (tried with libtpu 0.0.42.1 and 0.0.50.1).
_QUIET = {
    # It looks for the machine that it runs on, and complains on the error stream
    # when it finds none. Neither word changes what it compiles.
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v4-8",
    # Without chips there is nothing to lock: several programs may compile at once.
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_MIN_LOG_LEVEL": "2",  # errors only
}
# What it leaves behind in the environment that child processes inherit.
_LEFT_BEHIND = (
    *("TPU_WORKER_ID", "CLOUD_TPU_TASK_ID", "CLOUD_TPU_ACCELERATOR_TYPE"),
    "TPU_PREMAPPED_BUFFER_SIZE",
)
_LOG_PLACE = "TPU_LOG_DIR"
_USUAL_LOG_PLACE = "/tmp/tpu_logs"
_log_folder: str | None = None  # ours, once libtpu logs there


def has_libtpu() -> bool:
    """Whether JAX will find a libtpu."""
    given = os.environ.get("TPU_LIBRARY_PATH")
    if given and os.path.isfile(given):
        return True
    return importlib.util.find_spec("libtpu") is not None


def too_old() -> str:
    """What is wrong with a libtpu that is older than JAX needs; empty if nothing is."""
    return old_libtpu() if _is_installed_one() else ""


def _is_installed_one() -> bool:
    """Whether JAX takes the package libtpu, and not a file that someone named."""
    given = os.environ.get("TPU_LIBRARY_PATH")  # JAX sets it to the package's own
    spec = importlib.util.find_spec("libtpu")
    places = spec.submodule_search_locations if spec else None
    return not given or os.path.dirname(given) in (places or ())


def has_chips() -> bool:
    """Whether this machine may have TPUs: then libtpu is left alone.

    JAX counts them when it is imported, and sets TPU_SKIP_MDS_QUERY if there are
    none; where it was set by someone else, device files tell.
    """
    files = [*glob.glob("/dev/accel[0-9]*"), *glob.glob("/dev/vfio/[0-9]*")]
    return "TPU_SKIP_MDS_QUERY" not in os.environ or bool(files)


@contextlib.contextmanager
def quiet_libtpu() -> Iterator[None]:
    """Have libtpu start without noise and without a lock, if it starts in here.

    JAX must be imported before. What is set already is left as it is, and all of
    it is as before afterwards. On a machine with TPUs nothing is touched.
    """
    if has_chips() or not has_libtpu():
        yield
        return
    settings = {**_QUIET, _LOG_PLACE: _own_log_folder()}
    added = {name: settings[name] for name in settings if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)
        for name in _LEFT_BEHIND:
            if name not in os.environ:  # so Python knows nothing of it
                os.unsetenv(name)


def _own_log_folder() -> str:
    global _log_folder
    if _log_folder is None:
        _log_folder = tempfile.mkdtemp(prefix="libtpu-log-")
        atexit.register(_remove, _log_folder, os.getpid())
    return _log_folder


def _remove(folder: str, owner: int) -> None:
    if os.getpid() == owner:  # not in a copy of this process
        shutil.rmtree(folder, ignore_errors=True)


def error_log() -> str:
    """What this process's libtpu has logged as errors; "" where nothing is found."""
    folders = (_log_folder, os.environ.get(_LOG_PLACE), _USUAL_LOG_PLACE)
    for folder in filter(None, folders):
        pattern = os.path.join(glob.escape(folder), f"*.log.ERROR.*.{os.getpid()}")
        for path in sorted(glob.glob(pattern), reverse=True):
            with contextlib.suppress(OSError), open(path, encoding="utf8") as file:
                return file.read()
    return ""
