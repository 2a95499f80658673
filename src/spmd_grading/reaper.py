"""What Linux offers to find every process that a submission has started.

A child subreaper inherits the orphans below it: whatever a submission starts stays
among its descendants, with or without sessions, environments and parents of its own.
"""

import contextlib
import ctypes
import os
import signal
import sys
import time
from pathlib import Path

PROC = Path("/proc")
HAS_PROC = Path("/proc/self/statm").exists()
_SET_DUMPABLE, _SET_CHILD_SUBREAPER, _GET_CHILD_SUBREAPER = 4, 36, 37
_END_S = 5  # for all descendants to be gone


def _prctl(option: int, argument: object) -> bool:
    if not sys.platform.startswith("linux"):
        return False
    try:
        libc = ctypes.CDLL(None)
        return bool(libc.prctl(option, argument, 0, 0, 0) == 0)
    except (OSError, AttributeError):
        return False


def become_subreaper(wanted: bool = True) -> bool:
    """Inherit the orphans below this process; False where that can't be had."""
    return _prctl(_SET_CHILD_SUBREAPER, ctypes.c_ulong(wanted)) and HAS_PROC


def is_subreaper() -> bool:
    """Whether this process inherits the orphans below it."""
    value = ctypes.c_int(0)
    return _prctl(_GET_CHILD_SUBREAPER, ctypes.byref(value)) and bool(value.value)


def be_private() -> None:
    """Refuse other processes of this user a look at memory, files and variables.

    It holds against processes that are not root's.
    """
    _prctl(_SET_DUMPABLE, ctypes.c_ulong(0))


def hide_arguments() -> None:
    """Blank what `ps` and /proc show of this process's command line, on Linux."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        stat = (PROC / "self" / "stat").read_text()
        fields = stat.rpartition(")")[2].split()
        start, end = int(fields[45]), int(fields[46])
        shown = b"python -m spmd_grading"
        if start and end - start > len(shown):
            ctypes.memset(start, 0, end - start)
            ctypes.memmove(start, shown, len(shown))


def children(pid: int) -> set[int]:
    """The processes whose parent this is, zombies too."""
    with contextlib.suppress(OSError, ValueError):
        ids: set[int] = set()
        for task in (PROC / str(pid) / "task").iterdir():
            ids.update(map(int, (task / "children").read_text().split()))
        return ids
    return _children_by_parents(pid)


def _children_by_parents(pid: int) -> set[int]:
    """Where a kernel has no list of them, or a thread ended while it was read."""
    ids = set()
    for entry in os.listdir(PROC):
        with contextlib.suppress(OSError, IndexError, ValueError):
            stat = (PROC / entry / "stat").read_text(errors="replace")
            if int(stat.rpartition(")")[2].split()[1]) == pid:
                ids.add(int(entry))
    return ids


def descendants(roots: set[int]) -> set[int]:
    """These processes and all below them."""
    ours, todo = set(roots), list(roots)
    while todo:
        more = children(todo.pop()) - ours
        ours |= more
        todo += more
    return ours


def is_alive(pid: int) -> bool:
    """Whether there is such a process, a zombie not counted."""
    with contextlib.suppress(OSError, IndexError):
        stat = (PROC / str(pid) / "stat").read_text(errors="replace")
        return stat.rpartition(")")[2].split()[0] not in "ZX"
    return False


def end_children(keep: set[int], awaited: int = 0) -> bool:
    """End all children of this process but `keep`, with what is below them.

    Args:
        keep: children that go on.
        awaited: a child that is killed too, but waited for elsewhere.

    Returns:
        Whether none is left, which was looked at twice.
    """
    last, quiet = time.monotonic() + _END_S, 0
    while True:
        left = children(os.getpid()) - keep
        for pid in descendants(left):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        for pid in left - {awaited}:
            with contextlib.suppress(OSError):
                os.waitpid(pid, os.WNOHANG)
        quiet = 0 if left - {awaited} or is_alive(awaited) else quiet + 1
        if quiet == 2:
            return True
        if time.monotonic() > last:
            return False
        time.sleep(0.002)
