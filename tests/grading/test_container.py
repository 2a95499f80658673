"""A container for each submission: what starts it, what goes in, what comes out.

A stand-in for Podman runs what the container would run, with the paths of this machine
for those in the container. What a container keeps apart is Podman's; that it is asked
for is tested here.
"""

import json
import shlex
import sys
from pathlib import Path

import pytest

from spmd_grading import grade
from spmd_grading.container import Containers, put
from spmd_grading.process import Limits
from spmd_grading.submission import CannotGrade
from tests.grading.small_release import RIGHT, WRONG, answered, notebook

# A shell's script, since a line of #! can't name a Python in a folder with a space.
PODMAN = """\
#!/bin/sh
exec {python} {script} "$@"
"""
SCRIPT = """\
import json, os, subprocess, sys
log = open({log!r}, "a")
print(json.dumps(sys.argv[1:]), file=log, flush=True)
if sys.argv[1] == "image":
    print("no such image", file=sys.stderr)
    sys.exit(sys.argv[-1] != "there")
if sys.argv[1] != "run":
    sys.exit(0)
volume = next(one for one in sys.argv if one.startswith("--volume="))
folder = volume.removeprefix("--volume=").removesuffix(":/given:ro,z")
order = sys.stdin.buffer.readline().replace(b"/given/", folder.encode() + b"/")
run = "from spmd_grading.worker import main; main()"
worker = subprocess.Popen(
    [sys.executable, "-P", "-c", run], stdin=subprocess.PIPE, stdout=subprocess.PIPE
)
worker.stdin.write(order)
worker.stdin.flush()
for line in worker.stdout:
    data = line.replace(folder.encode() + b"/", b"/given/")
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
code = worker.wait()
sys.exit(128 - code if code < 0 else code)
"""
KILLS_ALL = "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)"


@pytest.fixture
def runtime(tmp_path, own_exercises):
    path = tmp_path / "podman"
    log = tmp_path / "log"
    log.touch()
    script = tmp_path / "podman.py"
    script.write_text(SCRIPT.format(log=str(log)))
    quoted = {"python": sys.executable, "script": str(script)}
    path.write_text(PODMAN.format(**{k: shlex.quote(v) for k, v in quoted.items()}))
    path.chmod(0o755)
    return path


def calls(runtime: Path) -> list[list[str]]:
    text = runtime.with_name("log").read_text()
    return [json.loads(line) for line in text.splitlines()]


def test_a_container_has_no_network_no_rights_and_limits(tmp_path):
    containers = Containers("there", "docker")
    command = containers.command("one", tmp_path, Limits(memory_bytes=2 * 2**30))
    image = command.index("there")
    options, inside = command[:image], command[image + 1 :]
    assert options[:3] == ["docker", "run", "--rm"]
    assert {
        *("--network=none", "--read-only", "--cap-drop=all", "--pull=never"),
        *("--security-opt=no-new-privileges", "--user=65534:65534", "--name=one"),
        *(f"--memory={3 * 2**30}", f"--memory-swap={3 * 2**30}"),
        *("--pids-limit=256", "--cpus=2", f"--volume={tmp_path}:/given:ro,z"),
    } <= set(options)
    assert [o for o in options if o.startswith("--volume")] == [
        f"--volume={tmp_path}:/given:ro,z"
    ]
    assert inside[:2] == ["sh", "-c"]


def test_what_goes_in_are_copies_that_anybody_may_read(tmp_path):
    work, release = tmp_path / "a b.ipynb", tmp_path / "r.ipynb"
    for path in (work, release):
        path.write_text(path.name)
        path.chmod(0o600)
    given = put(tmp_path / "given", work, [release])
    assert given == {"/given/0/a b.ipynb": work, "/given/1/r.ipynb": release}
    for name, path in given.items():
        copy = tmp_path / name.removeprefix("/")
        assert copy.read_text() == path.name
        assert copy.stat().st_mode & 0o777 == 0o644
        assert copy.parent.stat().st_mode & 0o777 == 0o755


def test_what_is_missing_is_said_before_anything_runs(runtime, tmp_path):
    with pytest.raises(CannotGrade, match="podman has no such image; build it"):
        Containers("elsewhere", str(runtime)).require()
    with pytest.raises(CannotGrade, match="can't be run: No such file"):
        Containers("there", str(tmp_path / "nothing")).require()


@pytest.mark.long("courses, made and graded as an instructor does")
def test_submissions_are_graded_in_containers(
    runtime, release, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    books = {"right": RIGHT, "wrong": WRONG, "kills": answered(e1=KILLS_ALL)}
    paths = []
    for name, answers in books.items():
        paths.append(Path(f"{name}.ipynb"))
        paths[-1].write_text(json.dumps(notebook(answers)))
    options = ["--release", release.name, "--container", "there"]
    options += ["--runtime", str(runtime), "--csv", str(tmp_path / "grades.csv")]
    assert grade.main([*map(str, paths), *options]) == 2
    out = " ".join(capsys.readouterr().out.split())
    assert f"{paths[0]}: 6 of 6 points" in out
    assert "checks: release/90_small.ipynb" in out
    assert f"{paths[1]}: 0 of 6 points" in out
    assert f"{paths[2]}: NOT GRADED" in out
    assert "ended by SIGKILL: its own code can do that" in out
    assert "in a container of its own" in out
    assert "/given" not in out + (tmp_path / "grades.csv").read_text()
    runs = [call for call in calls(runtime) if call[0] == "run"]
    names = [one for call in runs for one in call if one.startswith("--name=")]
    assert len(set(names)) == len(paths)
    ended = [call[1] for call in calls(runtime) if call[0] == "kill"]
    assert [f"--name={name}" for name in ended] == names
    folders = [one for call in runs for one in call if one.startswith("--volume=")]
    assert not any(
        Path(one.removeprefix("--volume=").split(":")[0]).exists() for one in folders
    )
