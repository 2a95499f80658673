"""Real processes: what they print comes back, and none of them is ever left."""

import ast
import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.lax import all_gather
from jax.sharding import AxisType as Auto
from jax.sharding import PartitionSpec as P

import spmd_helpers as spmd
from spmd_helpers._errors import LaunchFailed, LaunchTimedOut, NotUnderstood
from spmd_helpers._launch import launch as launch_module
from spmd_helpers._launch.program_text import text_of

pytestmark = pytest.mark.skipif(
    not Path("/proc/thread-self/children").exists(), reason="needs Linux's /proc"
)
SELDOM = pytest.mark.long("processes that end as few do")
TWO = 2
NAMES = ("data", 3, -1.5)
ARRAY = np.ones(3)
stepped = jax.jit(lambda x: x + 1)


def children(of: int | None = None) -> set[int]:
    """The processes that live and were started by this one, or by another."""
    of = of or os.getpid()
    processes = set()
    for task in Path(f"/proc/{of}/task").iterdir():
        with contextlib.suppress(OSError):
            processes |= {int(n) for n in (task / "children").read_text().split()}
    return processes


def alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    return False


def wait_for(condition, seconds=60):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.05)
    return False


@pytest.fixture(autouse=True)
def nothing_is_left():
    """No process, no open pipe or socket, no thread: after each test in this file."""
    before = children(), len(os.listdir("/proc/self/fd")), threading.active_count()
    yield
    after = children(), len(os.listdir("/proc/self/fd")), threading.active_count()
    assert after == before


# Programs. Each is sent as text, with what it uses of this file.


@jax.jit
def doubled(x):
    return TWO * x


def helper():
    return jnp.ones(3).sum() + helped()


def helped():
    return float(doubled(2.0))


def hello():
    print(jax.process_index(), jax.process_count(), jax.local_device_count())
    print(len(jax.devices()), jax.default_backend(), helper(), NAMES)


def summed():
    from jax.experimental import multihost_utils

    print(multihost_utils.process_allgather(np.float32(jax.process_index())))


def second_raises():
    print("before")
    if jax.process_index() == 1:
        raise KeyError("no such row")
    time.sleep(60)


def waits():
    if jax.process_index() == 0:
        time.sleep(60)


def test_each_process_knows_all_devices(capfd):
    run = spmd.launch(hello)
    assert run.outputs == (
        "0 2 4\n8 cpu 7.0 ('data', 3, -1.5)\n",
        "1 2 4\n8 cpu 7.0 ('data', 3, -1.5)\n",
    )
    assert run.returncodes == (0, 0)
    assert run.devices == 4
    assert capfd.readouterr() == ("", "")


def test_a_text_is_a_program_and_other_numbers_work():
    text = """
        import jax
        print(jax.process_index(), "of", jax.process_count(), len(jax.devices()))
    """
    run = spmd.launch(text, processes=3, devices=2)
    assert run.outputs == ("0 of 3 6\n", "1 of 3 6\n", "2 of 3 6\n")


def test_noise_is_kept_apart():
    run = spmd.launch(summed)  # Gloo says on standard output that it is connected
    assert run.outputs == ("[0. 1.]\n",) * 2


def test_what_is_shown_is_the_output_and_nothing_else():
    run = launch_module.Launched(("a < b\n  c\n", ""), (0, 0), 4, "print()")
    assert str(run) == ("process 0:\n  a < b\n    c\nprocess 1:\n  (printed nothing)")
    bundle = run._repr_mimebundle_()
    assert bundle["text/plain"] == str(run)
    words = re.sub(r"<[^>]+>", " ", bundle["text/html"])
    assert words.split() == [
        *("process", "0:", "a", "&lt;", "b", "c"),
        *("process", "1:", "(printed", "nothing)"),
    ]
    assert "print()" not in repr(run) + bundle["text/html"]
    with pytest.raises(AttributeError):
        run.outputs = ()


def test_what_a_person_has_set_stays_out(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=3")
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    text = (
        "import os, jax; print(len(jax.local_devices()), 'SLURM_JOB_ID' in os.environ)"
    )
    run = spmd.launch(text, processes=1, devices=2)
    assert run.outputs == ("2 False\n",)


def test_two_at_once_do_not_meet():
    answers = {}

    def start(name):
        answers[name] = spmd.launch(summed, devices=1).outputs

    threads = [threading.Thread(target=start, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {name: ("[0. 1.]\n",) * 2 for name in "ab"}


def test_a_port_is_held_while_it_is_used(monkeypatch):
    ports = []
    start = launch_module._Cluster._start

    def start_watched(self, rank, port):
        ports.append(port)
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))  # nobody else can take it meanwhile
        start(self, rank, port)

    monkeypatch.setattr(launch_module._Cluster, "_start", start_watched)
    spmd.launch("pass", devices=1)
    assert len(ports) == 2
    assert len(set(ports)) == 1
    with socket.socket() as again:  # and it is free afterwards
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        again.bind(("127.0.0.1", ports[0]))


def test_a_lost_race_is_run_again(monkeypatch):
    start, tries = launch_module._Cluster._start, []
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()

        def unlucky_once(self, rank, port):
            tries.append(rank)
            first = len(tries) <= 2
            start(self, rank, taken.getsockname()[1] if first else port)

        monkeypatch.setattr(launch_module._Cluster, "_start", unlucky_once)
        assert spmd.launch("print(1)", devices=1).outputs == ("1\n",) * 2
    assert tries == [0, 1, 0, 1]


def test_a_process_that_raises():
    """The other one is stopped: it would have run into its limit of time."""
    with pytest.raises(LaunchFailed) as failed:
        spmd.launch(second_raises, devices=1)
    assert str(failed.value) == (
        "process 1 of 2 raised KeyError. The other one was stopped.\n"
        "  at: second_raises()\n"
        '  at: raise KeyError("no such row")\n'
        "  'no such row'\n"
        "It had printed:\n"
        "  before"
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("print(1", r"raised SyntaxError.*\n  at: print\(1\n  '\(' was never closed"),
        ("import os; os.abort()", r"was killed by signal 6"),
        pytest.param(
            "import sys; sys.exit(3)",
            r"process 0 of 1 stopped itself by sys.exit\(3\)",
            marks=SELDOM,
        ),
        pytest.param(
            "import os; os._exit(5)", "process 0 of 1 ended with code 5", marks=SELDOM
        ),
    ],
)
def test_a_process_that_ends_in_another_way(text, words):
    with pytest.raises(LaunchFailed, match=words):
        spmd.launch(text, processes=1, devices=1)


def test_leaving_without_an_error_is_no_error():
    assert spmd.launch("raise SystemExit", processes=1).returncodes == (0,)


def test_time_is_up():
    with pytest.raises(LaunchTimedOut) as stopped:
        spmd.launch(waits, devices=1, timeout_s=3)
    assert isinstance(stopped.value, TimeoutError)
    assert str(stopped.value) == (
        "after 3 s the program was stopped:\n"
        "  process 0 is at: time.sleep(60)\n"
        "  process 1 has ended its program"
    )


def test_an_interrupted_cell_leaves_nothing():
    """As in Jupyter: SIGINT to the process group of the kernel, while it waits."""
    others, over = children(), threading.Event()

    def interrupt():
        wait_for(lambda: len(children() - others) >= 2, seconds=20)
        time.sleep(1.5)
        os.kill(os.getpid(), signal.SIGINT)
        while not over.wait(15):  # Python drops one that arrives in a finalizer
            os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            spmd.launch(waits, devices=1)
    finally:
        over.set()
        thread.join()


KERNEL = """
import spmd_helpers as spmd
spmd.launch("import time; time.sleep(100)", devices=1)
"""


def test_processes_end_when_their_kernel_is_killed():
    kernel = subprocess.Popen([sys.executable, "-c", KERNEL])
    try:
        assert wait_for(lambda: len(children(kernel.pid)) == 2)
        started = children(kernel.pid)
        time.sleep(2)
        assert all(alive(pid) for pid in started)
    finally:
        kernel.kill()
        kernel.wait()
    assert wait_for(lambda: not any(alive(pid) for pid in started))


@pytest.mark.parametrize(
    ("last", "words"),
    [
        ("os.abort()", "killed by signal 6"),
        ("", None),
        pytest.param('raise ValueError("stop")', "raised ValueError", marks=SELDOM),
        pytest.param("os._exit(5)", "ended with code 5", marks=SELDOM),
        pytest.param("time.sleep(60)", "after 5 s", marks=SELDOM),
    ],
)
def test_a_child_of_a_process_ends_too(tmp_path, last, words):
    """Also where the process itself had ended before: its group is still found."""
    note = tmp_path / "pid"
    text = f"""
        import os, subprocess, time
        child = subprocess.Popen(["sleep", "100"])
        open({str(note)!r}, "w").write(str(child.pid))
        {last}
    """
    if words is None:
        assert spmd.launch(text, processes=1, devices=1).returncodes == (0,)
    else:
        with pytest.raises((LaunchFailed, LaunchTimedOut), match=words):
            spmd.launch(text, processes=1, devices=1, timeout_s=5)
    assert wait_for(lambda: not alive(int(note.read_text())))


def test_a_child_with_a_session_of_its_own_is_not_waited_for(tmp_path):
    note = tmp_path / "pid"
    text = f"""
        import subprocess
        child = subprocess.Popen(["sleep", "900"], start_new_session=True)
        print("started", flush=True)
        open({str(note)!r}, "w").write(str(child.pid))
    """
    threads, begun = threading.active_count(), time.monotonic()
    try:
        run = spmd.launch(text, processes=1, devices=1)
        assert run.outputs == ("started\n",)
        assert time.monotonic() - begun < 600
        assert alive(int(note.read_text()))  # it asked for that
    finally:
        os.kill(int(note.read_text()), signal.SIGKILL)
    assert wait_for(lambda: threading.active_count() == threads)


def test_a_program_may_write_anything_on_its_error_stream():
    text = r"""
        import os
        for word in ("\x1e", '\x1e{"is": "run", "words": ""}', "x" * 200_000):
            os.write(2, word.encode() + b"\xff\n")
        print("all of it")
    """
    assert spmd.launch(text, devices=1).outputs == ("all of it\n",) * 2


def test_the_place_is_the_last_one_not_an_older_one():
    text = r"""
        import faulthandler, sys, threading, time, traceback
        text = "a\x1eb\x0cc"

        def early():
            faulthandler.dump_traceback(all_threads=False)
            traceback.print_stack()

        def aside():
            time.sleep(61)

        early()
        threading.Thread(target=aside, daemon=True).start()
        time.sleep(60)
    """
    with pytest.raises(LaunchTimedOut, match=r"is at: time.sleep\(60\)$"):
        spmd.launch(text, processes=1, devices=1, timeout_s=3)


@SELDOM
@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "raise ValueError",
            "process 0 of 1 raised ValueError.\n  at: raise ValueError",
        ),
        (
            "class Odd(Exception):\n    def __str__(self): return 1 / 0\nraise Odd",
            "process 0 of 1 raised Odd.\n  at: raise Odd\n  (it can't be written out)",
        ),
    ],
)
def test_an_error_without_words(text, words):
    with pytest.raises(LaunchFailed) as failed:
        spmd.launch(text, processes=1, devices=1)
    assert str(failed.value) == words


# What is sent.


def test_the_text_of_a_function_is_a_whole_program():
    text = text_of(hello)
    assert text.endswith("\n\nhello()\n")
    assert text.splitlines()[:5] == [
        "import jax",
        "import jax.numpy as jnp",
        "",
        "NAMES = ('data', 3, -1.5)",
        "TWO = 2",
    ]
    assert text.index("def helped") < text.index("def helper") < text.index("def hello")
    assert "@jax.jit\ndef doubled" in text
    ast.parse(text)


def uses_classes():
    print(P("x"), Auto.Explicit, all_gather)


def test_classes_are_imported_by_a_public_name():
    lines = text_of(uses_classes).splitlines()[:3]
    assert lines[0] == "from jax.sharding import AxisType as Auto"
    assert lines[2] == "from jax.lax import all_gather"
    names = {}
    exec("\n".join(lines), names)
    assert names["P"] is P
    assert not any("._" in line for line in lines)


def uses_an_array():
    print(ARRAY)


def uses_what_was_made_outside():
    print(stepped(1))


def wants(x, y=1):
    print(x, y)


def inner():
    x = 3

    def main():
        print(x)

    return main


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (3, "give a function made with `def`, or the text of a program"),
        (lambda: 0, "give a function made with `def`"),
        (len, "give a function"),
        (wants, "a program takes no arguments, and wants wants x"),
        (inner(), "made inside another function and uses its x"),
        (uses_an_array, "`ARRAY`, a ndarray of this kernel.*make it inside"),
        (uses_what_was_made_outside, "uses `stepped`"),
    ],
)
def test_a_program_that_can_not_be_sent(program, words):
    with pytest.raises(NotUnderstood, match=words):
        spmd.launch(program)


def test_a_function_without_a_text():
    names = {}
    exec("def main(): pass", names)
    with pytest.raises(NotUnderstood, match="the text of main was not found"):
        spmd.launch(names["main"])


@pytest.mark.parametrize(
    "wrong",
    [
        {"processes": 0},
        {"processes": True},
        {"devices": 2.0},
        {"devices": 65},
        {"timeout_s": 0},
        {"timeout_s": "1"},
        {"timeout_s": float("nan")},
    ],
)
def test_numbers_out_of_range(wrong):
    with pytest.raises(NotUnderstood, match=rf"^(launch\()?{next(iter(wrong))}="):
        spmd.launch("pass", **wrong)
