"""What C++ logs is kept, and nothing else of the error stream is lost."""

import os
import subprocess
import sys
import threading

import pytest

from spmd_helpers._runtime.compiler_log import kept_log

WARNING = "W1129 18:23:09.362417   32325 spmd_partitioner.cc:666] [SPMD] Oh no"
EARLY = "I0000 00:00:1795976481.626570   26392 cudart_stub.cc:31] No drivers"
HEADING = (
    "WARNING: All log messages before absl::InitializeLog() is called are written to"
    " STDERR"
)


def write(*lines):
    os.write(2, "".join(f"{line}\n" for line in lines).encode())


def test_lines_of_a_log_are_kept_and_others_go_where_they_should(capfd):
    with kept_log() as log:
        write("before", HEADING, EARLY, "é between", WARNING, "W1129 is no log line")
        assert log == []
    assert log == [HEADING, EARLY, WARNING]
    assert capfd.readouterr().err == "before\né between\nW1129 is no log line\n"
    write("after")
    assert capfd.readouterr().err == "after\n"


def test_an_error_inside_loses_nothing(capfd):
    logs = []

    def compile_something():
        with kept_log() as log:
            logs.append(log)
            write(WARNING, "mine")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        compile_something()
    (log,) = logs
    assert log == [WARNING]
    assert capfd.readouterr().err == "mine\n"


def test_one_inside_another_is_one(capfd):
    with kept_log() as outer:
        with kept_log() as inner:
            write(WARNING)
        write(EARLY)
    assert outer == inner == [WARNING, EARLY]
    assert capfd.readouterr().err == ""


def test_each_thread_has_its_own_lines(capfd):
    """The descriptor is the process's: one thread keeps a log at a time."""
    logs, barrier = {}, threading.Barrier(8)

    def compile_something(number):
        barrier.wait()
        for turn in range(20):
            with kept_log() as log:
                write(f"{WARNING} {number} {turn}", f"plain {number} {turn}")
            logs[number, turn] = log

    threads = [threading.Thread(target=compile_something, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = {(n, t): [f"{WARNING} {n} {t}"] for n in range(8) for t in range(20)}
    assert logs == expected
    said = capfd.readouterr().err.splitlines()
    assert sorted(said) == sorted(f"plain {n} {t}" for n, t in expected)


def test_a_closed_error_stream_is_no_matter():
    code = (
        "import os; os.close(2)\n"
        "from spmd_helpers._runtime.compiler_log import kept_log\n"
        "with kept_log() as log: pass\n"
        "print(log)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert (done.returncode, done.stdout) == (0, b"[]\n")
