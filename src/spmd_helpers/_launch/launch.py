"""One program as several real processes on this machine, each with its own devices."""

import contextlib
import dataclasses
import json
import os
import queue
import re
import secrets
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import IO, NoReturn

from .._core.notebook import InNotebook
from .._core.validate import integer, is_number
from .._errors import LaunchFailed, LaunchTimedOut, NotUnderstood
from .._runtime.require import require_jax
from .child import FILE, START_S, Event, Order
from .program_text import text_of

_TRIES = 3
_PLACES_S = 5  # on a busy machine a process needs long to say where it is
_NO_PORT = b"Failed to add port to server"  # gRPC's words
# What a person, a cluster or this kernel has set, and a fresh CPU process must not see.
_DROP = (
    *("JAX_", "XLA_", "LIBTPU_", "TPU_", "CLOUD_TPU_", "MEGASCALE_", "CUDA_", "NPROC"),
    *("SLURM_", "OMPI_", "PMI", "COORDINATOR_", "MPLBACKEND"),
)
_CHILD = (
    "import json, sys; order = json.loads(sys.stdin.buffer.readline());"
    " sys.path[:] = order['path'];"
    " from spmd_helpers._launch.child import be_a_process; be_a_process(order)"
)


@dataclasses.dataclass(frozen=True)
class Launched(InNotebook):
    """What `launch` brings back; shown as what each process printed.

    Attributes:
        outputs: what each process printed, in the order of `jax.process_index()`.
        returncodes: what each process ended with; all 0, or `launch` had raised.
        devices: the number of CPU devices of each process.
        program: the text that each process ran.
    """

    outputs: tuple[str, ...]
    returncodes: tuple[int, ...]
    devices: int
    program: str = dataclasses.field(repr=False)

    def __str__(self) -> str:
        return "\n".join(
            f"{name}\n{textwrap.indent(text, '  ')}" for name, text in self._parts()
        )

    def _html(self) -> str:
        blocks = "".join(
            f'<p style="margin: 0.4em 0 0"><b>{escape(name)}</b></p>'
            f'<pre style="margin: 0; padding: 0 0 0 1em">{escape(text)}</pre>'
            for name, text in self._parts()
        )
        return (
            '<div role="group" tabindex="0" aria-label="output of each process"'
            f' class="spmd-launched" style="overflow-x: auto">{blocks}</div>'
        )

    def _parts(self) -> list[tuple[str, str]]:
        return [
            (f"process {rank}:", text.rstrip("\n") or "(printed nothing)")
            for rank, text in enumerate(self.outputs)
        ]


def launch(
    program: Callable[[], object] | str,
    *,
    processes: int = 2,
    devices: int = 4,
    timeout_s: float = 60,
) -> Launched:
    """Run a program as several processes that form one JAX cluster on this machine.

    Each process is a fresh Python with `devices` CPU devices of its own, and has
    called `jax.distributed.initialize` before the program begins, so that
    `jax.devices()` in it are those of all processes. Nothing of this kernel is
    shared: a function is sent as its text, with the functions, imports and plain
    values (numbers, texts, tuples of them) of this notebook that it uses.

    Example:
        >>> def main():
        ...     import jax
        ...     print(jax.process_index(), jax.local_device_count(), jax.device_count())
        >>> launch(main).outputs                             # doctest: +SKIP
        ('0 4 8\\n', '1 4 8\\n')

    When this call is over, by a result, an error or an interrupt, its processes have
    ended, and what they had started has too, unless it began a session of its own. If
    the kernel is killed instead, they notice that their input is closed, and end. Any
    number of launches may run at once on one machine.

    Args:
        program: a function without arguments, defined in a notebook or a file; or the
            text of a program.
        processes: how many; each stands for a host.
        devices: the number of CPU devices of each process.
        timeout_s: how many seconds the program may run, counted from the moment when
            all processes have found each other.

    Returns:
        A `Launched`: what each process printed.

    Raises:
        NotUnderstood: a program that is no function and no text, or that uses what only
            this kernel has; a number that is out of range.
        LaunchFailed: a process raised or died. The others were stopped.
        LaunchTimedOut: also a TimeoutError; it says where each process was waiting.

    Used in chapter 16.
    """
    require_jax()
    for name, value in (("processes", processes), ("devices", devices)):
        example = f"launch(main, {name}=2)"
        integer(name, value, f"a number of {name}", most=64, example=example)
    if not is_number(timeout_s) or not timeout_s > 0:
        raise NotUnderstood("launch(timeout_s=...): write a number of seconds above 0")
    text = text_of(program)
    for _ in range(_TRIES):
        try:
            return _Cluster(text, processes, devices).run(timeout_s)
        except _PortTaken:
            continue
        except (LaunchFailed, LaunchTimedOut) as error:
            raise error.with_traceback(None) from None
    raise LaunchFailed(f"no free port in {_TRIES} tries: run the cell again")


class _PortTaken(Exception):
    """Somebody took the port between our choice and the coordinator's start."""


class _Cluster:
    """The processes of one launch, seen from this kernel."""

    def __init__(self, text: str, processes: int, devices: int) -> None:
        self.text, self.processes, self.devices = text, processes, devices
        self.children: list[subprocess.Popen[bytes]] = []
        self.readers: list[threading.Thread] = []
        self.events: queue.Queue[tuple[int, Event]] = queue.Queue()
        self.out = [bytearray() for _ in range(processes)]
        self.err = [bytearray() for _ in range(processes)]
        self.ready: set[int] = set()
        self.done: set[int] = set()
        self.sign = "\x1e" + secrets.token_hex(8)  # no program writes it by accident

    def run(self, timeout_s: float) -> Launched:
        # The port stays ours for as long as this socket lives: the system gives it to
        # nobody who asks for a free one, and the coordinator (gRPC) may share it.
        with socket.socket() as reserved:
            if hasattr(socket, "SO_REUSEPORT"):
                reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            reserved.bind(("127.0.0.1", 0))
            port = reserved.getsockname()[1]
            if not hasattr(socket, "SO_REUSEPORT"):
                reserved.close()
            try:
                for rank in range(self.processes):
                    self._start(rank, port)
                return self._wait(timeout_s)
            finally:
                self._end()

    def _start(self, rank: int, port: int) -> None:
        environment = {k: v for k, v in os.environ.items() if not k.startswith(_DROP)}
        environment.update(
            JAX_PLATFORMS="cpu",
            NPROC=str(max(os.cpu_count() or 1, 4 * self.devices)),  # see use_devices
            TF_CPP_MIN_LOG_LEVEL="2",
        )
        child = subprocess.Popen(
            [sys.executable, "-c", _CHILD],
            env=environment,
            stdin=subprocess.PIPE,  # closes when this kernel dies: the child's signal
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # an interrupt of the kernel is for us to handle
        )
        self.children.append(child)
        # They are pipes.
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stderr is not None
        order: Order = {
            "text": self.text,
            "rank": rank,
            "processes": self.processes,
            "devices": self.devices,
            "port": port,
            "path": sys.path,
            "sign": self.sign,
        }
        for stream, kept in ((child.stdout, self.out), (child.stderr, self.err)):
            reader = threading.Thread(
                target=self._read, args=(rank, stream, kept[rank]), daemon=True
            )
            reader.start()
            self.readers.append(reader)
        with contextlib.suppress(OSError):  # it is dead already, and _wait will say so
            child.stdin.write(json.dumps(order).encode() + b"\n")
            child.stdin.flush()

    def _read(self, rank: int, stream: IO[bytes], kept: bytearray) -> None:
        with stream:  # at its end, which a child in a session of its own puts off
            for line in iter(stream.readline, b""):
                before, sign, text = line.partition(self.sign.encode())
                if sign:
                    try:
                        event: Event = json.loads(text)
                        self.events.put((rank, event))
                        line = before
                    except ValueError:  # two threads wrote at once: only words, then
                        pass
                kept.extend(line)

    def _wait(self, timeout_s: float) -> Launched:
        started, limit = False, float(START_S)
        end = time.monotonic() + limit
        while True:
            codes = [_code(child) for child in self.children]
            if any(codes):  # neither None nor 0: let what it said arrive
                self._join([i for i, code in enumerate(codes) if code])
            self._take_events()
            if any(codes):
                self._blame(codes)
            if all(code == 0 for code in codes):
                self._end()
                texts = tuple(bytes(o).decode("utf8", "replace") for o in self.out)
                ended = (0,) * self.processes
                return Launched(texts, ended, self.devices, self.text)
            if not started and len(self.ready) == self.processes:
                started, limit, end = True, timeout_s, time.monotonic() + timeout_s
            if time.monotonic() > end:
                self._time_is_up(limit)
            time.sleep(0.02)

    def _take_events(self) -> None:
        while not self.events.empty():
            rank, event = self.events.get()
            if event["is"] == "port taken":
                raise _PortTaken
            if event["is"] == "raised":
                self._fail(rank, event["words"])
            getattr(self, event["is"]).add(rank)

    def _blame(self, codes: Sequence[int | None]) -> NoReturn:
        """A process is gone, and none has said that it raised."""
        # Instead of an error, jax 0.10.2 can crash where gRPC does not get its port.
        if any(_NO_PORT in err for err in self.err) and len(self.ready) < len(codes):
            raise _PortTaken
        rank, code = next((i, code) for i, code in enumerate(codes) if code)
        how = f"ended with code {code}"
        if code < 0:
            how = f"was killed by signal {-code}"
        last = bytes(self.err[rank]).decode("utf8", "replace").splitlines()
        last = [s for s in last if s.strip() and not s.startswith(("[Gloo]", "    @"))]
        self._fail(rank, "\n".join([how, *(line[:200] for line in last[-4:])]))

    def _fail(self, rank: int, words: str) -> NoReturn:
        others = self.processes - 1
        stopped = " The other one was stopped." if others == 1 else ""
        stopped = f" The other {others} were stopped." if others > 1 else stopped
        first, *rest = words.splitlines() or ["failed without a word"]
        self._end()
        printed = bytes(self.out[rank]).decode("utf8", "replace").splitlines()
        if printed:
            rest += ["It had printed:", *("  " + line for line in printed[-5:])]
        raise LaunchFailed(
            "\n".join([f"process {rank} of {self.processes} {first}.{stopped}", *rest])
        )

    def _time_is_up(self, limit: float) -> NoReturn:
        if len(self.ready) < self.processes:
            raise LaunchTimedOut(
                f"the {self.processes} processes had not connected after {limit:g} s: "
                "is the machine very busy?"
            )
        begins = [0] * self.processes
        if hasattr(signal, "SIGUSR1"):  # each writes where it is, and goes on
            begins = [len(err) for err in self.err]  # older stacks are of no interest
            for child in self.children:
                if child.returncode is None:  # not reaped: its number is still its own
                    os.kill(child.pid, signal.SIGUSR1)
            self._await_places(begins)
        lines = []
        for rank in range(self.processes):
            if rank in self.done:
                lines.append(f"  process {rank} has ended its program")
            else:
                lines.append(f"  process {rank} is {self._place(rank, begins[rank])}")
        raise LaunchTimedOut(
            "\n".join([f"after {limit:g} s the program was stopped:", *lines])
        )

    def _await_places(self, begins: Sequence[int]) -> None:
        """Until who is still in its program has written more, and nobody goes on."""
        busy = set(range(self.processes)) - self.done
        sizes: list[int] = []
        end = time.monotonic() + _PLACES_S
        while time.monotonic() < end:
            time.sleep(0.25)
            before, sizes = sizes, [len(err) for err in self.err]
            if sizes == before and all(sizes[rank] > begins[rank] for rank in busy):
                return

    def _place(self, rank: int, begin: int) -> str:
        """The innermost line of the program on which a process is."""
        stacks = bytes(self.err[rank][begin:]).decode("utf8", "replace")
        # faulthandler's: the main thread is last.
        threads = stacks.split("(most recent call first)")
        for thread in reversed(threads):
            if match := re.search(f'File "{FILE}", line (\\d+) in ', thread):
                lines = self.text.split("\n")
                return f"at: {lines[int(match[1]) - 1].strip()}"
        return "somewhere in its program"

    def _join(self, ranks: Iterable[int]) -> None:
        for rank in ranks:
            for reader in self.readers[2 * rank : 2 * rank + 2]:
                reader.join(2)

    def _end(self) -> None:
        """No process is left, and no pipe: all are killed before one is waited for."""
        for child in self.children:
            if child.returncode is None:  # not reaped: its number is still its own
                with contextlib.suppress(OSError):
                    if hasattr(os, "killpg"):
                        os.killpg(child.pid, signal.SIGKILL)
                    child.kill()
        for child in self.children:
            child.wait()
        self._join(range(len(self.readers) // 2))
        for child in self.children:
            with contextlib.suppress(OSError):  # what was unwritten has no reader
                if child.stdin:
                    child.stdin.close()


def _code(child: subprocess.Popen[bytes]) -> int | None:
    """How a process ended, or None.

    A dead one is not reaped, so that its number, which is that of its group, goes to no
    other: `_end` can still reach its children.
    """
    if not hasattr(os, "waitid"):
        return child.poll()
    try:
        how = os.WEXITED | os.WNOHANG | os.WNOWAIT
        status = os.waitid(os.P_PID, child.pid, how)
    except ChildProcessError:  # somebody else has reaped it
        return child.poll()
    if status is None:
        return None
    exited = status.si_code == os.CLD_EXITED
    return status.si_status if exited else -status.si_status
