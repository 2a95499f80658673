"""The processes of one submission: their memory, and that none of them is left."""

import contextlib
import os
import signal

from .reaper import (
    HAS_PROC,
    PROC,
    become_subreaper,
    children,
    descendants,
    end_children,
    is_alive,
    is_subreaper,
)


class Family:
    """A process of a submission and everything that it has started.

    While there is one, this process inherits the orphans below it, so that nothing
    gets away. Where that can't be had (macOS), only the process group is known, and
    memory is not watched: `process` then asks the system for a limit instead.
    """

    def __init__(self) -> None:
        self._was_subreaper = is_subreaper()
        self.is_known = HAS_PROC and become_subreaper()
        self._others = children(os.getpid()) if self.is_known else set()
        self._pid = 0
        self._peak_bytes = 0

    def begins_with(self, pid: int) -> None:
        """The first process of the submission."""
        self._pid = pid

    def members(self) -> list[int]:
        """Those alive now, a zombie not counted."""
        if not self.is_known:
            return []
        ours = descendants(children(os.getpid()) - self._others)
        return sorted(pid for pid in ours if is_alive(pid))

    def memory_bytes(self, members: list[int]) -> int:
        """Memory of all of them; a page that several share counts once.

        Only where the resident memory, which is quick to read, could make a new peak,
        are shared pages looked for.
        """
        resident = sum(_resident_bytes(pid) for pid in members)
        if resident > self._peak_bytes and len(members) > 1:
            resident = sum(_own_share_bytes(pid) for pid in members)
        self._peak_bytes = max(self._peak_bytes, resident)
        return resident

    def escaped(self) -> int:
        """How many of them have left the process group that they began in."""
        count = 0
        for pid in self.members():
            with contextlib.suppress(OSError):
                count += os.getpgid(pid) != self._pid
        return count

    def end(self) -> bool:
        """Kill them until none is there; returns whether that is certain."""
        with contextlib.suppress(OSError):
            os.killpg(self._pid, signal.SIGKILL)
        if not self.is_known:
            return False
        none_left = end_children(self._others, awaited=self._pid)
        become_subreaper(self._was_subreaper)
        return none_left


def _resident_bytes(pid: int) -> int:
    with contextlib.suppress(OSError, IndexError, ValueError):
        pages = int((PROC / str(pid) / "statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    return 0


def _own_share_bytes(pid: int) -> int:
    """Its private pages, and its share of those that others have too (Linux: PSS)."""
    with contextlib.suppress(OSError, ValueError):
        for line in (PROC / str(pid) / "smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return _resident_bytes(pid)
