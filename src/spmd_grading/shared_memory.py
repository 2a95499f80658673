"""Shared memory that submissions have left behind, on Linux.

It belongs to no process, so it stays when all of them have ended. Only what is new
since grading began, belongs to this user and is used by no process is removed.
"""

import contextlib
import ctypes
import os
import shutil
from pathlib import Path

from .reaper import PROC

FOLDER = Path("/dev/shm")
_SYSV = PROC / "sysvipc" / "shm"
_REMOVE = 0  # IPC_RMID


class SharedMemory:
    """What there was when grading began, and what has come since."""

    def __init__(self) -> None:
        self._files = set(_files())
        self._segments = set(_segments())
        self.is_known = FOLDER.is_dir() or _SYSV.exists()

    def new_bytes(self) -> int:
        """The size of the files that have come since."""
        new = _files().items()
        return sum(one.st_blocks * 512 for key, one in new if key not in self._files)

    def remove(self, changed_before: float) -> list[str]:
        """Remove what was left there; returns what it was, in words.

        Args:
            changed_before: later files stay, because something that still runs may
                have made them.
        """
        removed = []
        new = {key: one for key, one in _files().items() if key not in self._files}
        used = _used_names() if new else set()
        for (name, _), one in new.items():
            if one.st_ctime >= changed_before or str(FOLDER / name) in used:
                continue
            if _remove(FOLDER / name):
                size = one.st_blocks * 512 / 2**20
                removed.append(f"{FOLDER / name} ({size:.0f} MiB)")
        for key, (size, changed) in _segments().items():
            if key not in self._segments and changed < changed_before:
                removed += self._remove_segment(key, size)
        return removed

    def _remove_segment(self, key: int, size: int) -> list[str]:
        libc = ctypes.CDLL(None)
        if libc.shmctl(key, _REMOVE, None) != 0:
            return []
        return [f"System V shared memory {key} ({size / 2**20:.0f} MiB)"]


def _files() -> dict[tuple[str, int], os.stat_result]:
    """(name, inode) of what is this user's -> its state."""
    segments = {}
    with contextlib.suppress(OSError):
        for entry in os.scandir(FOLDER):
            with contextlib.suppress(OSError):
                state = entry.stat(follow_symlinks=False)
                if state.st_uid == os.geteuid():
                    segments[entry.name, state.st_ino] = state
    return segments


def _segments() -> dict[int, tuple[int, float]]:
    """Identifier of this user's segments that no process uses -> bytes, last change."""
    segments = {}
    with contextlib.suppress(OSError, ValueError, KeyError):
        head, *lines = _SYSV.read_text().splitlines()
        for line in lines:
            one = dict(zip(head.split(), map(int, line.split()), strict=False))
            if one["uid"] == os.geteuid() and one["nattch"] == 0:
                last = max(one["ctime"], one["dtime"], one["atime"])
                segments[one["shmid"]] = (one["size"], float(last))
    return segments


def _used_names() -> set[str]:
    """The files in the folder that a process has open or mapped."""
    used = set()
    for entry in os.listdir(PROC):
        if not entry.isdigit():
            continue
        with contextlib.suppress(OSError):
            for line in (PROC / entry / "maps").read_text(errors="replace").split("\n"):
                if str(FOLDER) in line:
                    used.add(line.split(maxsplit=5)[5])
        with contextlib.suppress(OSError):
            for link in (PROC / entry / "fd").iterdir():
                with contextlib.suppress(OSError):
                    target = os.readlink(link)
                    if target.startswith(str(FOLDER)):
                        used.add(target)
    return used


def _remove(path: Path) -> bool:
    with contextlib.suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
        return True
    return False
