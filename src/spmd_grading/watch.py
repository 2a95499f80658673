"""The processes of one submission: their memory, and that none of them is left."""

import contextlib
import os
import signal
import time
from pathlib import Path

MARK = "SPMD_GRADE_RUN"  # in the environment of all that a submission starts
_PROC = Path("/proc")
HAS_PROC = Path("/proc/self/statm").exists()


class Family:
    """A process, its group, its descendants, and what they left behind.

    Where /proc is missing (macOS), only the process group is known, and memory is not
    watched: `grade` then asks the system for a limit instead.
    """

    def __init__(self, pid: int, mark: str) -> None:
        self.pid = pid
        self._mark = f"{MARK}={mark}".encode()
        self._known: dict[int, tuple[str, bool]] = {}  # pid -> its start, is it ours

    def members(self) -> list[int]:
        """Those alive now, a zombie not counted."""
        if not HAS_PROC:
            return []
        alive: dict[int, tuple[str, bool]] = {}
        ours: set[int] = set()
        parents: dict[int, int] = {}
        for entry in os.listdir(_PROC):
            if not entry.isdigit():
                continue
            with contextlib.suppress(OSError, IndexError):
                pid = int(entry)
                stat = (_PROC / entry / "stat").read_text(errors="replace")
                state, parent, group, session, *rest = stat.rpartition(")")[2].split()
                if state in "ZX":
                    continue
                parents[pid] = int(parent)
                start = rest[15]
                known = self._known.get(pid)
                if known is None or known[0] != start:
                    known = (start, self._is_marked(pid))
                if self.pid in (pid, int(group), int(session)):
                    known = (start, True)
                alive[pid] = known
                if known[1]:
                    ours.add(pid)
        grown = True
        while grown:
            more = {p for p, parent in parents.items() if parent in ours} - ours
            grown = bool(more)
            ours |= more
        self._known = {p: (start, p in ours) for p, (start, _) in alive.items()}
        return sorted(ours)

    def _is_marked(self, pid: int) -> bool:
        try:
            variables = (_PROC / str(pid) / "environ").read_bytes()
        except OSError:
            return False
        return self._mark in variables.split(b"\0")

    def memory_bytes(self, members: list[int]) -> int:
        """Resident memory of all of them; what two share is counted twice."""
        pages = 0
        for pid in members:
            with contextlib.suppress(OSError, IndexError, ValueError):
                pages += int((_PROC / str(pid) / "statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def end(self) -> None:
        """Kill them until none is there: also what left the process group."""
        last = time.monotonic() + 5
        while True:
            with contextlib.suppress(OSError):
                os.killpg(self.pid, signal.SIGKILL)
            members = self.members()
            for pid in members:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            if not members or time.monotonic() > last:
                return
            time.sleep(0.01)
