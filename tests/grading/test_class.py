"""Submissions that harm the grader, the class or the machine, graded with others.

One call of the command line grades all of a class. Whatever one of them does, the
others get what they get alone, and what was done is said.
"""

import contextlib
import csv
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from spmd_grading import grade, single
from spmd_grading.guarded import Guarded
from spmd_grading.reaper import children
from spmd_grading.records import Outputs
from spmd_grading.report import to_gradescope
from spmd_grading.report import to_table as table
from tests.grading.small_release import (
    QUICK,
    RIGHT,
    ROOT,
    WRONG,
    answered,
    is_alive,
    notebook,
    row,
    until,
    verdicts,
)

pytestmark = [
    pytest.mark.long("courses, made and graded as an instructor does"),
    pytest.mark.usefixtures("own_exercises"),
    pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc"),
]

PARENT = "import os, time\nos.kill(os.getppid(), {})\ntime.sleep(20)\n"
# Twice forked, in a session of its own, with no variables.
ESCAPE = """\
import os
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        code = {code!r}
        os.execve({python!r}, ["python", "-I", "-S", "-c", code], {{}})
    os._exit(0)
os.wait()
until = __import__("time").monotonic() + 20
while not os.path.exists({proof!r}) and until > __import__("time").monotonic():
    pass
"""
FORKS = """\
import os, time
for i in range(50):
    if os.fork() == 0:
        os.setsid()
        time.sleep(600)
"""
REWRITE = """
import os, time
while True:
    try:
        text = open({csv!r}).read()
        if "0,3,wrong" in text:
            open({csv!r}, "w").write(text.replace("0,3,wrong", "3,3,right"))
            open({proof!r}, "w").write(str(os.getpid()))
            time.sleep(600)
    except OSError:
        pass
"""
SEGMENT = """\
import ctypes
libc = ctypes.CDLL(None)
assert libc.shmget(0, 8192, 0o1600) >= 0
"""
LOOK = """\
import os
pid, b = os.getppid(), os.readlink(f"/proc/{os.getppid()}/cwd")
while pid > 1:
    b += open(f"/proc/{pid}/cmdline").read().replace("\\0", " ")
    if "spmd_grading" not in b:
        break
    pid = int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1])
"""
SLEEP = "import os, time\nopen({!r}, 'w').write(str(os.getpid()))\ntime.sleep(600)\n"


class Class:
    """A folder with a release, submissions, checks of its own, and what grades them."""

    def __init__(self, folder: Path, release: Path) -> None:
        self.folder, self.release = folder, release
        self.csv = folder / "out" / "grades.csv"
        self.csv.parent.mkdir()
        self.own = folder / "path"  # on Python's path: checks, what runs at the start
        shutil.copytree(ROOT / "tests" / "own_exercises", self.own)
        self.check = self.own / "spmd_exercises" / "ch90.py"
        self.paths: list[Path] = []

    def add(self, name: str, book) -> Path:
        path = self.folder / "submissions" / f"{name}.ipynb"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(book if "cells" in book else notebook(book)))
        self.paths.append(path)
        return path

    def start(self, *options, before=()) -> subprocess.Popen:
        path = [str(self.own), *os.environ["PYTHONPATH"].split(os.pathsep)[1:]]
        path += [p for p in sys.path if p.endswith("src")]
        command = [sys.executable, "-P", "-m", "spmd_grading", *self.paths]
        command += ["--release", self.release, "--csv", self.csv, *options]
        return subprocess.Popen(
            list(map(str, [*before, *command])),
            cwd=self.folder,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(path)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def grade(self, *options) -> "Class":
        with self.start(*options) as running:
            self.out, self.err = running.communicate(timeout=500)
        self.code = running.returncode
        return self

    def rows(self, name: str) -> list[dict[str, str]]:
        rows = csv.DictReader(io.StringIO(self.csv.read_text()))
        return [row for row in rows if Path(row["submission"]).stem == name]

    def total(self, name: str) -> dict[str, str]:
        return next(row for row in self.rows(name) if row["exercise"] == "total")

    def verdicts(self, name: str) -> list[str]:
        return [row["verdict"] for row in self.rows(name)][:3]


@pytest.fixture
def new_class(tmp_path, release):
    return Class(tmp_path, release)


@pytest.fixture(scope="module")
def graded_class(tmp_path_factory):
    """A class in which nearly everybody does harm, graded in one call."""
    folder = tmp_path_factory.mktemp("class")
    releases = folder / "release"
    releases.mkdir()
    (releases / "90_small.ipynb").write_text(json.dumps(notebook()))
    one = Class(folder, releases)
    proof = str(folder / "proof")

    def escape(code, name):
        python, where = "/usr/bin/python3", proof + name
        if not Path(python).exists():
            python = sys.executable
        return ESCAPE.format(code=code, python=python, proof=where)

    wait = f"import os, time; open({proof + '1'!r}, 'w').write(str(os.getpid()))"
    wait += "; time.sleep(600)"
    rewrite = REWRITE.format(csv=str(one.csv), proof=proof + "2")
    victim = one.add("a victim", answered(e2=WRONG[2]))
    harm = {
        "sigterm": PARENT.format(15),
        "sigkill": PARENT.format(9),
        "sigstop": PARENT.format(19),
        "sigint": PARENT.format(2),
        "escapes": escape(wait, "1"),
        "flees": escape(wait.replace("proof1", "proof3"), "3") + PARENT.format(9),
        "forks": FORKS,
        "starts": f"open({str(one.own / 'zzz.pth')!r}, 'w').write('import this')\n",
        "customizes": f"open({str(one.own / 'sitecustomize.py')!r}, 'w').write('')\n",
        "edits": f"open({str(one.check)!r}, 'a').write('check_90_2 = print')\n",
        "compiles": f"""\
import py_compile
open("x.py", "w").write("def check_90_2(f): pass")
py_compile.compile("x.py", {str(one.check.with_name("ch90.abi3.so"))!r})
""",
        "robs": f"open({str(victim)!r}, 'w').write('')\n",
        "deletes": f"import os; os.unlink({str(releases / '90_small.ipynb')!r})\n",
        "rewrites": escape(rewrite, "2"),
        "fills": "open('/dev/shm/spmd_left', 'wb').write(b'x' * (5 << 20))\n",
        "segment": SEGMENT,
        "litters": """\
import os
for n in range(3):
    with open(f"large{n}", "wb") as file:
        os.posix_fallocate(file.fileno(), 0, 900 << 20)
os.makedirs("d/e")
open("d/e/x", "w").write("x")
os.chmod("d/e", 0), os.chmod("d", 0)
""",
        "moves": """\
import os
os.chdir("/")
os.environ.clear()
os.environ["NBGRADER_EXECUTION"] = os.environ["PYTHONPATH"] = "/nowhere"
""",
        "prints": "for i in range(2000): print('x' * 10000)\n",
    }
    for name, source in harm.items():
        one.add(name, answered(e2=source + RIGHT[2]))
    one.add("looks", answered(e3=LOOK))
    (folder / "secret.py").write_text(
        "# %% [2 points] It triples fractions\nassert triple(0.5) == 1.5\n"
    )
    one.paths += [folder / "submissions" / "no such.ipynb"]
    one.add("z last", RIGHT)
    temporary = folder / "tmp"
    temporary.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(temporary))
        one.pids = [folder / f"proof{n}" for n in (1, 2, 3)]
        return one.grade("--extra-checks", "secret.py", "--timeout-s", "120")


def test_all_others_get_what_they_get_alone(graded_class):
    assert graded_class.code == 2, graded_class.err
    assert graded_class.verdicts("a victim") == ["right", "wrong", "right"]
    assert graded_class.verdicts("z last") == ["right"] * 3
    assert graded_class.total("z last")["points"] == "8"
    assert "Traceback" not in graded_class.err


def test_every_file_that_was_given_has_its_row_and_is_named_as_it_runs(graded_class):
    rows = list(csv.DictReader(io.StringIO(graded_class.csv.read_text())))
    totals = [row["submission"] for row in rows if row["exercise"] == "total"]
    assert totals == list(map(str, graded_class.paths))
    count = len(totals)
    for number, path in enumerate(graded_class.paths, 1):
        assert f"{number} of {count} started: {path}\n" in graded_class.err
        assert f"{number} of {count} done: {path}: " in graded_class.err
    assert graded_class.total("no such")["verdict"] == "not graded"
    assert "is not a file" in graded_class.total("no such")["message"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("sigterm", "was ended by SIGTERM: its own code can do that"),
        ("sigkill", "was ended by SIGKILL: its own code can do that"),
        ("flees", "was ended by SIGKILL: its own code can do that"),
        ("sigint", "was ended by SIGINT: its own code can do that"),
        ("sigstop", "was stopped by a signal: its own code can do that"),
        ("starts", "zzz.pth was new; it is now zzz.pth.changed-while-grading"),
        ("customizes", "sitecustomize.py was new"),
        ("edits", "ch90.py was changed; it was put back"),
        ("compiles", "ch90.abi3.so was new"),
        ("robs", "a victim.ipynb was changed; it was put back"),
        ("deletes", "90_small.ipynb was deleted; it was put back"),
    ],
)
def test_who_harms_others_costs_themselves_their_grade(graded_class, name, words):
    total = graded_class.total(name)
    assert total["verdict"] == "not graded"
    assert words in total["message"]
    assert total["points"] == ""


def test_what_was_changed_is_as_it_was_and_the_changed_one_is_kept(graded_class):
    name = "spmd_exercises/ch90.py"
    before = (ROOT / "tests" / "own_exercises" / name).read_bytes()
    assert graded_class.check.read_bytes() == before
    kept = Path(f"{graded_class.check}.changed-while-grading")
    assert kept.read_bytes() == before + b"check_90_2 = print"
    assert json.loads(graded_class.paths[0].read_text())["cells"]
    assert (graded_class.release / "90_small.ipynb").is_file()
    assert not (graded_class.own / "zzz.pth").exists()


@pytest.mark.parametrize(
    ("name", "notes"),
    [
        ("escapes", "it had left 1 running in process groups of their own"),
        ("forks", "it had left 50 running in process groups of their own"),
        ("litters", ""),
        ("moves", ""),
        ("prints", ""),
        ("fills", "/dev/shm/spmd_left (5 MiB) was left and was removed"),
        ("segment", "was left and was removed"),
        ("rewrites", "grades.csv, the results, was changed; they were written again"),
    ],
)
def test_what_stays_behind_is_cleared_up(graded_class, name, notes):
    assert graded_class.verdicts(name) == ["right"] * 3
    assert notes in graded_class.total(name)["notes"]
    assert bool(notes) == bool(graded_class.total(name)["notes"])


def test_nothing_of_the_class_is_left(graded_class):
    for path in graded_class.pids:
        assert not is_alive(int(path.read_text()))
    assert not Path("/dev/shm/spmd_left").exists()
    assert list((graded_class.folder / "tmp").iterdir()) == []
    assert "and none of its processes was left" in " ".join(graded_class.out.split())


def test_the_results_are_the_graders(graded_class):
    assert graded_class.rows("a victim")[1]["points"] == "0"
    state = json.loads(graded_class.csv.with_name("grades.csv.state.json").read_text())
    assert len(state["graded"]) == len(graded_class.paths) - 1  # one was no file
    assert state["running"] == []
    assert len(list(graded_class.csv.parent.iterdir())) == 2


def test_hidden_checks_are_not_on_a_command_line(graded_class):
    said = graded_class.rows("looks")[2]["message"]
    assert "spmd_grading.worker" in said
    assert "python -m spmd_grading" in said
    assert "secret" not in said
    assert "extra" not in said
    assert str(graded_class.folder / "tmp") in said


# An end before the end.


# As a shell starts a background job, and not as nohup does, whatever started the tests.
IN_THE_BACKGROUND = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
os.execv(sys.argv[1], sys.argv[1:])
"""


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_what_was_graded_is_kept_and_what_is_open_is_named(new_class, tmp_path, sent):
    proof = tmp_path / "pid"
    new_class.add("first", RIGHT)
    new_class.add("second", answered(e2=SLEEP.format(str(proof))))
    new_class.add("third", WRONG)

    with new_class.start(before=[sys.executable, "-c", IN_THE_BACKGROUND]) as running:
        assert until(proof.exists)
        written = new_class.csv.read_text()
        running.send_signal(sent)
        out, err = running.communicate(timeout=300)
    assert running.returncode == 130, err
    assert new_class.total("first")["points"] == "6"
    assert new_class.rows("first")[0]["verdict"] in written
    for name in ("second", "third"):
        assert new_class.total(name)["verdict"] == "not graded"
        assert "not graded yet" in new_class.total(name)["message"]
    assert "interrupted: 1 of 3 are graded" in err
    second, third = new_class.paths[1:]
    assert f"open: {second}, {third}" in err
    assert f"written: {new_class.csv}" in err
    assert "first.ipynb: 6 of 6 points" in out
    assert until(lambda: not is_alive(int(proof.read_text())))

    new_class.paths[1].write_text(json.dumps(notebook(WRONG)))
    new_class.grade("--resume")
    assert new_class.code == 0
    assert "1 of 3 are graded already" in new_class.err
    assert "1 of 3 started" not in new_class.err
    points = [new_class.total(name)["points"] for name in ("first", "second", "third")]
    assert points == ["6", "0", "0"]

    new_class.paths[0].write_text(json.dumps(notebook(WRONG)))
    new_class.grade("--resume")
    assert "2 of 3 are graded already" in new_class.err
    assert new_class.total("first")["points"] == "0"

    release = new_class.release / "90_small.ipynb"
    release.write_text(release.read_text() + "\n")
    new_class.grade("--resume")
    assert "have changed: all again" in new_class.err
    assert "3 of 3 done" in new_class.err


def test_after_a_kill_what_ran_comes_last(new_class, tmp_path):
    proof = tmp_path / "pid"
    new_class.add("first", RIGHT)
    kill = "os.kill(int(open(f'/proc/{os.getppid()}/stat').read().split()[3]), 9)\n"
    source = SLEEP.format(str(proof)).replace("time.sleep", kill + "time.sleep")
    new_class.add("second", answered(e2=source))
    new_class.add("third", WRONG)
    new_class.grade()
    assert new_class.code == -9
    assert new_class.total("first")["points"] == "6"
    assert until(lambda: not is_alive(int(proof.read_text())))
    new_class.grade("--resume")
    assert new_class.code == -9
    assert new_class.total("third")["points"] == "0"
    lines = [line for line in new_class.err.splitlines() if "started" in line]
    assert [line.split()[1] for line in lines] == ["3", "2"]


def test_to_go_on_needs_the_file_of_results(release, tmp_path, capsys):
    path = tmp_path / "a.ipynb"
    path.write_text(json.dumps(notebook(RIGHT)))
    arguments = [str(path), "--release", str(release), "--resume"]
    assert grade.main(arguments) == 2
    said = capsys.readouterr()
    assert "name the same --csv, --junit or --gradescope FILE" in said.err
    assert said.out == ""
    state = tmp_path / "x.csv.state.json"
    state.write_text('{"version": 1, "graded": []}')
    assert grade.main([*arguments, "--csv", str(tmp_path / "x.csv")]) == 2
    assert "is not what an earlier call has written" in capsys.readouterr().err


def test_results_that_can_not_be_written_are_said_and_kept_nowhere(
    release, tmp_path, capsys
):
    path = tmp_path / "a.ipynb"
    path.write_text(json.dumps(notebook(RIGHT)))
    arguments = [str(path), "--release", str(release), "--csv", "/proc/self/x.csv"]
    assert grade.main(arguments) == 2
    said = capsys.readouterr()
    assert "grade: /proc/self/x.csv was not written: " in said.err
    assert "6 of 6 points" in said.out


# Several at once.


def test_several_at_once_are_graded_as_one_by_one(new_class):
    edit = f"open({str(new_class.check)!r}, 'a').write('#')\nimport time; time.sleep(2)"
    sources = {"a": RIGHT[2], "b": f"{edit}\n{RIGHT[2]}", "c": RIGHT[2], "d": WRONG[2]}
    for name, source in sources.items():
        slowly = f"import time; time.sleep(3)\n{source}"
        new_class.add(name, answered(e2=slowly))
    new_class.grade("--jobs", "2")
    assert new_class.code == 2
    assert new_class.verdicts("a") == new_class.verdicts("c") == ["right"] * 3
    assert new_class.verdicts("d") == ["right", "wrong", "right"]
    assert "ch90.py was changed" in new_class.total("b")["message"]
    assert not [n for n in "acd" if "changed" in json.dumps(new_class.rows(n))]
    said = new_class.err
    assert said.index("2 of 4 started") < said.index(" done: ")


def test_memory_left_by_one_of_several_is_removed(new_class):
    leave = "open('/dev/shm/spmd_two', 'wb').write(b'x')\n"
    for name in "ab":
        new_class.add(name, answered(e2=leave.replace("two", name) + RIGHT[2]))
    new_class.grade("--jobs", "2")
    assert new_class.code == 0
    said = json.dumps(new_class.rows("a") + new_class.rows("b"))
    for name in "ab":
        assert not Path(f"/dev/shm/spmd_{name}").exists()
        assert f"/dev/shm/spmd_{name} (0 MiB) was left and was removed" in said


def test_memory_that_others_use_is_not_removed(new_class):
    path, mine = Path("/dev/shm/spmd_others"), Path("/dev/shm/spmd_mine")
    source = f"""\
import subprocess, time
b = "done"
open({str(new_class.folder / "go")!r}, "w").close()
while not __import__("os").path.exists({str(path)!r}):
    time.sleep(0.01)
"""
    new_class.add("a", answered(e3=source))
    mine.write_text("before")
    try:
        with new_class.start() as running:
            assert until((new_class.folder / "go").exists)
            with open(path, "w"):
                running.communicate(timeout=100)
                assert path.exists()
        assert mine.exists()
    finally:
        path.unlink(missing_ok=True)
        mine.unlink()
    assert new_class.total("a")["notes"] == ""


# Files that are replaced by something else.


def by_nothing(path, other):
    path.unlink()


def by_text(path, other):
    path.write_text("other")


def by_a_link(path, other):
    path.unlink()
    path.symlink_to(other)


def by_a_pipe(path, other):
    path.unlink()
    os.mkfifo(path)


def without_its_folder(path, other):
    shutil.rmtree(path.parent)


REPLACED = [by_nothing, by_text, by_a_link, by_a_pipe, without_its_folder]


@pytest.mark.parametrize("replace", REPLACED)
def test_a_file_of_results_is_written_again(tmp_path, replace):
    path, other = tmp_path / "folder" / "out.csv", tmp_path / "other"
    path.parent.mkdir()
    other.write_text("of others")
    outputs = Outputs([path])
    outputs.write({path: "a"})
    assert outputs.put_back() == []
    replace(path, other)
    (said,) = outputs.put_back()
    assert "the results, was changed" in said
    assert (path.read_text(), other.read_text()) == ("a", "of others")
    assert (outputs.put_back(), outputs.failed) == ([], {})


@pytest.mark.parametrize("replace", REPLACED)
def test_a_guarded_file_is_put_back(tmp_path, replace):
    path, other = tmp_path / "folder" / "a.py", tmp_path / "other"
    path.parent.mkdir()
    path.write_text("a")
    path.chmod(0o640)
    before = path.stat()
    other.write_text("of others")
    guarded = Guarded([path], [], [])
    os.utime(path)  # touched, and the same
    assert guarded.put_back() == []
    os.utime(path, ns=(before.st_mtime_ns, before.st_mtime_ns))
    assert guarded.put_back() == []
    replace(path, other)
    (said,) = guarded.put_back()
    assert said.startswith(f"{path} was ")
    assert said.endswith("; it was put back")
    after = path.stat()
    assert (after.st_mode, after.st_mtime_ns) == (before.st_mode, before.st_mtime_ns)
    assert (path.read_text(), other.read_text()) == ("a", "of others")
    assert guarded.put_back() == []


def test_what_another_python_compiles_is_no_change(tmp_path):
    package = tmp_path / "package"
    (package / "__pycache__").mkdir(parents=True)
    guarded = Guarded([], [package], [])
    other = package / "__pycache__" / "module.cpython-27.pyc"
    ours = other.with_name(f"module.{sys.implementation.cache_tag}.pyc")
    for path in (other, ours, package / "module.cpython-27.pyc"):
        path.write_bytes(b"compiled")
    changed = guarded.put_back()
    assert sorted(one.split()[0] for one in changed) == sorted(
        [str(ours), str(package / "module.cpython-27.pyc")]
    )
    assert other.exists()


def test_a_change_that_hides_its_time_and_size_is_seen(tmp_path):
    path = tmp_path / "a.py"
    path.write_text("abc")
    guarded = Guarded([path], [], [])
    before = path.stat()
    time.sleep(0.05)  # the clock of file systems is coarse
    path.write_text("xyz")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert "was changed; it was put back" in guarded.put_back()[0]
    path.chmod(0)
    assert "was changed; it was put back" in guarded.put_back()[0]
    assert path.read_text() == "abc"


def test_results_may_go_into_a_pipe(release, tmp_path):
    path = tmp_path / "a.ipynb"
    path.write_text(json.dumps(notebook(RIGHT)))
    command = [sys.executable, "-m", "spmd_grading", "--release", release, path]
    done = subprocess.run(
        [*map(str, command), "--csv", "/dev/stdout"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("submission,exercise,points") == 1
    assert not Path("/dev/stdout.state.json").exists()


# What is left and what is used, of one submission.


def test_the_sentence_about_processes_is_said_only_when_it_was_checked(graded):
    result = graded(RIGHT)
    said = "and none of its processes was left"
    assert said in " ".join(table([result]).split())
    from dataclasses import replace

    unchecked = replace(result, none_left=False)
    words = " ".join(table([result, unchecked]).split())
    assert said not in words
    assert "could not be checked for all" in words


def test_one_that_forks_for_ever_is_ended(graded):
    hop = """\
import os
if os.fork() == 0:
    while True:
        if os.fork():
            os._exit(0)
        os.setsid()
"""
    before = children(os.getpid())
    result = graded(answered(e2=hop + RIGHT[2]))
    assert verdicts(result) == ["right"] * 3
    assert result.none_left
    assert children(os.getpid()) == before


def test_pages_that_processes_share_count_once(graded):
    share = """\
import os, time
data = np.ones(2**25)  # 256 MiB
for _ in range(4):
    if os.fork() == 0:
        data.sum()
        time.sleep(600)
time.sleep(1)
"""
    result = graded(answered(e2=share + RIGHT[2]), QUICK_BUT_PATIENT)
    assert verdicts(result) == ["right"] * 3
    assert 2**28 < result.peak_bytes < 2**29


def test_pages_of_their_own_count_for_each(graded):
    own = """\
import os, time
for _ in range(4):
    if os.fork() == 0:
        data = np.ones(2**24)  # 128 MiB
        time.sleep(600)
time.sleep(20)
"""
    result = graded(answered(e2=own + RIGHT[2]), QUICK_BUT_PATIENT)
    assert verdicts(result) == ["right", "stopped", "right"]
    assert "more than the 0.5 GiB" in row(result, "90.2").message


def test_shared_memory_counts_where_nothing_runs_beside(graded):
    fill = """\
import time
with open("/dev/shm/spmd_full", "wb") as file:
    for _ in range(60):
        file.write(b"x" * 2**24)
        time.sleep(0.02)
"""
    try:
        limits = single.Limits(60, 2**29, 0.5, is_alone=True)
        result = graded(answered(e2=fill + RIGHT[2]), limits)
    finally:
        Path("/dev/shm/spmd_full").unlink(missing_ok=True)
    assert verdicts(result) == ["right", "stopped", "right"]
    assert "more than the 0.5 GiB" in row(result, "90.2").message


QUICK_BUT_PATIENT = single.Limits(timeout_s=60, memory_bytes=2**29, cell_share=0.5)


@pytest.mark.parametrize("ending", ["", "\n    except KeyboardInterrupt: pass"])
def test_output_without_end_is_told_as_that(graded, ending, monkeypatch):
    monkeypatch.setattr("spmd_grading.process._GRACE_S", 0.3)
    body = "while True:\n    {}print('x' * 10**5)".format("try: " if ending else "")
    result = graded(answered(e2=body + ending), QUICK)
    assert verdicts(result) == ["right", "stopped", "right"]
    assert "MB by then: does its output end?" in row(result, "90.2").message


def test_a_flood_of_short_lines_does_not_keep_the_grader_busy(graded):
    flood = """\
import os
for fd in range(3, 20):
    for _ in range(100):
        try:
            os.write(fd, b"\\n" * 2**15)
        except OSError:
            break
"""
    begin = time.monotonic()
    result = graded(answered(e2=flood + RIGHT[2]), QUICK_BUT_PATIENT)
    assert verdicts(result)[::2] == ["right", "right"]
    assert time.monotonic() - begin < 60


# Hidden checks.


def test_what_hidden_checks_say_is_published_with_the_grades(graded, tmp_path):
    from spmd_grading.extra import read_extra_checks

    path = tmp_path / "extra.py"
    path.write_text(
        "limit_of_ours = 1\n# %% [2 points] The hidden one\n"
        "assert triple(0.5) == 1.5 and limit == 10, 'hidden words'\n"
    )
    result = graded(answered(e3="limit = 7\nb = 'done'"), extra=read_extra_checks(path))
    assert "The hidden one" in str(result.extra_notes)
    read = json.loads(to_gradescope([result]))
    public = [t for t in read["tests"] if "visibility" not in t]
    hidden = [t for t in read["tests"] if t.get("visibility") == "after_published"]
    assert "idden" not in json.dumps(public) + read["output"]
    assert [t["name"] for t in hidden] == [
        "The hidden one",
        "Notes on the extra checks",
    ]
    assert read["stdout_visibility"] == "hidden"
    assert sum(t["max_score"] for t in read["tests"]) == result.of


def test_a_worker_gives_others_no_look_at_itself(graded):
    """Others are those who are not root, who may look at everything."""
    from spmd_grading import reaper

    look = "import ctypes; print(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))"
    program = f"from spmd_grading.reaper import be_private; be_private(); {look}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True)
    assert done.stdout == b"0\n"
    source = Path(reaper.__file__).with_name("worker.py").read_text()
    assert "    be_private()\n" in source


def test_the_folder_of_a_killed_command_line_is_removed(new_class, tmp_path):
    proof, temporary = tmp_path / "pid", tmp_path / "tmp"
    temporary.mkdir()
    new_class.add("a", answered(e2=SLEEP.format(str(proof))))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(temporary))
        with new_class.start() as running:
            assert until(proof.exists)
            assert list(temporary.iterdir())
            running.kill()
            running.communicate(timeout=300)
    with contextlib.suppress(ValueError):
        assert until(lambda: not is_alive(int(proof.read_text())))
    assert until(lambda: not list(temporary.iterdir()))
