"""What is missing in a notebook's Python, what to ask pip for, and when to say so.

Environments are tables here; tests/book/test_hosted.py has real ones.
"""

import importlib.metadata
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import pytest
from packaging.requirements import Requirement

from spmd_helpers import require
from spmd_helpers._errors import (
    InstallFailed,
    MissingLibrary,
    NoJax,
    OldJax,
    RestartNeeded,
)
from spmd_helpers._runtime import install as runtime_install
from spmd_helpers._runtime import packages
from tests import runtimes

SRC = Path(packages.__file__).resolve().parents[2]
GOOD = {"jax": "0.12.0.1", "jaxlib": "0.12.0.1", "numpy": "2.4.3"}
NEEDS_OF_JAX = [
    "jaxlib<=0.12.0.1,>=0.11.2",
    "numpy>=2.2",
    'libtpu==0.0.50.*; extra == "tpu"',
    'jax-cuda12-plugin<=0.12.0.1,>=0.12.0.1; extra == "cuda12-local"',
    'jax-cuda12-plugin[with-cuda]<=0.12.0.1,>=0.12.0.1; extra == "cuda12"',
]


@pytest.fixture
def there(monkeypatch):
    """A function that says which packages, at which versions, are there."""

    def put(**have: str) -> None:
        table = {name.replace("_", "-"): version for name, version in have.items()}
        for module in packages, runtime_install:
            monkeypatch.setattr(module, "installed", table.get)
        monkeypatch.setattr(packages, "is_installed", lambda name: name in table)
        real = importlib.metadata.requires
        monkeypatch.setattr(
            packages.importlib.metadata,
            "requires",
            lambda name: NEEDS_OF_JAX if name == "jax" else real(name),
        )

    return put


def test_nothing_is_missing_where_all_fits(there):
    there(**GOOD, flax="0.12.12", optax="0.2.8", libtpu="0.0.50.1")
    assert packages.needed_change(("flax", "optax")) is None
    assert require("flax", "optax") is None


@pytest.mark.parametrize(
    ("have", "libraries", "reasons", "requirements"),
    [
        (
            {"jax": "0.7.2", "jaxlib": "0.7.2", "numpy": "2.1.3", "flax": "0.11.2"},
            (),
            ["jax 0.7.2 is older than 0.10.2"],
            ["jax>=0.10.2,<0.12", "flax>=0.12.4", "numpy==2.1.3"],
        ),
        (
            {"jax": "0.7.2", "jaxlib": "0.7.2", "numpy": "2.0.2"},
            ("optax",),
            ["jax 0.7.2 is older than 0.10.2", "optax is not installed"],
            ["jax>=0.10.2,<0.11", "optax!=0.2.7", "numpy==2.0.2"],
        ),
        (
            {"jax": "0.7.2", "jaxlib": "0.7.2", "numpy": "1.26.4"},
            (),
            ["jax 0.7.2 is older than 0.10.2", "NumPy 1.26.4 is older than 2.0"],
            ["jax>=0.10.2,<0.13", "numpy>=2.0"],
        ),
        ({}, (), ["jax is not installed"], ["jax>=0.10.2,<0.13"]),
        (
            {"jax": "0.12.0.1", "numpy": "2.4.3"},
            (),
            ["jax 0.12.0.1 is installed without jaxlib"],
            ["jax==0.12.0.1", "numpy==2.4.3"],
        ),
        (
            {**GOOD, "jaxlib": "0.7.2"},
            (),
            ["jaxlib 0.7.2 is not the one for jax 0.12.0.1"],
            ["jax==0.12.0.1", "numpy==2.4.3"],
        ),
        (
            {**GOOD, "libtpu": "0.0.17"},
            (),
            ["libtpu 0.0.17 is older than 0.0.50, which jax 0.12.0.1 needs"],
            ["jax[tpu]==0.12.0.1", "numpy==2.4.3"],
        ),
        (
            {
                **{**GOOD, "jax-cuda12-plugin": "0.7.2", "jax-cuda12-pjrt": "0.12.0.1"},
                "nvidia-cudnn-cu12": "9.19.0.56",
            },
            (),
            ["jax-cuda12-plugin 0.7.2 is not the one for jax 0.12.0.1"],
            ["jax[cuda12]==0.12.0.1", "numpy==2.4.3"],
        ),
        (
            {
                **{"jax": "0.7.2", "jaxlib": "0.7.2", "numpy": "2.1.3"},
                "jax-cuda12-plugin": "0.7.2",
            },
            (),
            ["jax 0.7.2 is older than 0.10.2"],
            ["jax[cuda12-local]>=0.10.2,<0.12", "numpy==2.1.3"],
        ),
        (
            {**GOOD, "flax": "0.11.2"},
            ("flax",),
            ["flax 0.11.2 does not work with jax 0.12.0.1"],
            ["jax==0.12.0.1", "flax>=0.12.10", "numpy==2.4.3"],
        ),
        (
            GOOD,
            ("flax", "orbax-checkpoint"),
            ["flax is not installed", "orbax-checkpoint is not installed"],
            [
                "jax==0.12.0.1",
                "flax>=0.12.10",
                "orbax-checkpoint>=0.11.20",
                "numpy==2.4.3",
            ],
        ),
    ],
)
def test_what_is_asked_of_pip(there, have, libraries, reasons, requirements):
    there(**have)
    change = packages.needed_change(libraries)
    assert list(change.reasons) == reasons
    assert list(change.requirements) == requirements
    for text in change.requirements:
        Requirement(text)


def test_a_library_that_a_notebook_does_not_import_may_be_old(there):
    there(**GOOD, flax="0.11.2")
    assert packages.needed_change(("numpy",)) is None


def test_a_libtpu_newer_than_jax_asks_for_is_kept(there):
    there(**GOOD, libtpu="0.0.52")
    assert packages.needed_change() is None


def test_this_environment_fits():
    assert packages.needed_change(("flax", "optax", "orbax-checkpoint")) is None


@pytest.mark.parametrize("name", sorted(packages.DOES_NOT_IMPORT))
def test_what_is_installed_here_is_not_among_what_does_not_import(name):
    have = importlib.metadata.version(name)
    assert packages.fits(name, have, jax.__version__)
    code = f"import {packages.TRIED_AS.get(name, name)}"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_versions_of_numpy_are_those_that_jax_asks_for():
    for text in importlib.metadata.requires("jax"):
        requirement = Requirement(text)
        if requirement.name == "numpy" and requirement.marker is None:
            (oldest,) = [s.version for s in requirement.specifier if s.operator == ">="]
    table = [("0.10.2", packages.OLDEST_NUMPY), *reversed(packages.NUMPY_FOR_JAX)]
    expected = [n for v, n in table if not packages.is_older(jax.__version__, v)]
    assert expected[-1] == oldest


def test_the_command_can_be_typed(there):
    there(jax="0.7.2", jaxlib="0.7.2", numpy="2.1.3", flax="0.11.2")
    typed = packages.needed_change().command
    assert typed == '%pip install -U "jax>=0.10.2,<0.12" "flax>=0.12.4" "numpy==2.1.3"'


def test_the_command_where_there_is_only_uv(there, monkeypatch):
    there(jax="0.7.2", jaxlib="0.7.2", numpy="2.1.3", flax="0.11.2")
    monkeypatch.setattr(packages, "has_pip", lambda: False)
    monkeypatch.setattr(packages.shutil, "which", lambda name: "/usr/bin/uv")
    monkeypatch.setattr(sys, "executable", "/my env/{x}/python")
    typed = packages.needed_change().command
    words = '-P jax -P flax "jax>=0.10.2,<0.12" "flax>=0.12.4" "numpy==2.1.3"'
    assert typed == f"!uv pip install --python '/my env/{{{{x}}}}/python' {words}"
    monkeypatch.setattr(packages.shutil, "which", lambda name: None)
    typed = packages.needed_change().command
    assert " -m ensurepip && '/my env/{{x}}/python' -m pip install -U \"jax" in typed


# Elsewhere: one sentence, and nothing is installed.


@pytest.mark.parametrize(
    ("have", "libraries", "kind"),
    [
        ({"jax": "0.7.2", "jaxlib": "0.7.2", "numpy": "2.1.3"}, (), OldJax),
        ({"numpy": "2.1.3"}, ("flax",), NoJax),
        (GOOD, ("flax",), MissingLibrary),
    ],
)
def test_elsewhere_a_sentence(there, monkeypatch, have, libraries, kind):
    there(**have)
    monkeypatch.setattr(runtime_install, "_pip", None)  # would raise if it were called
    with pytest.raises(kind) as caught:
        require(*libraries)
    said = str(caught.value)
    assert re.search(r"run  %pip install -U .+  (, restart|and then run)", said)
    assert ". " not in said


def test_a_running_jax_that_is_old_beside_a_new_one(there, monkeypatch):
    there(**GOOD)
    monkeypatch.setattr(jax, "__version__", "0.7.2")
    with pytest.raises(RestartNeeded, match=r"jax 0\.7\.2 is running, and a newer one"):
        require()


def test_where_a_notebook_runs(monkeypatch):
    for name in ("COLAB_RELEASE_TAG", "KAGGLE_KERNEL_RUN_TYPE", "KAGGLE_KEY"):
        monkeypatch.delenv(name, raising=False)
    assert runtime_install.hosted() == ""
    monkeypatch.setenv("KAGGLE_KEY", "of its command line")
    assert runtime_install.hosted() == ""
    monkeypatch.setitem(sys.modules, "google.colab", sys)  # a package of this name
    assert runtime_install.hosted() == ""
    monkeypatch.setenv("COLAB_RELEASE_TAG", "release")
    assert runtime_install.hosted() == "Colab"
    monkeypatch.setenv("KAGGLE_KERNEL_RUN_TYPE", "Batch")  # its images are Colab's
    assert runtime_install.hosted() == "Kaggle"


# On Colab and Kaggle.


@pytest.fixture
def colab(monkeypatch):
    monkeypatch.delenv("KAGGLE_KERNEL_RUN_TYPE", raising=False)
    monkeypatch.setenv("COLAB_RELEASE_TAG", "release")


class Pip:
    """Stands in for pip: says `text`, ends with `code`, notes what it was given."""

    def __init__(self, code=0, text="", then=lambda: None):
        self.code, self.text, self.then, self.given = code, text, then, []

    def __call__(self, requirements, keep):
        self.given.append((requirements, keep))
        self.then()
        return self.code, self.text


def test_imported_packages_keep_their_versions(there, monkeypatch, colab, capsys):
    """All but those that pip could not read. What fails to import is told each time."""
    have = {**GOOD, "pytest": "9.2.0", "packaging": "26.3", "pluggy": "1ubuntu1"}
    there(**have)
    pip = Pip(then=lambda: there(**have, nonesuch="1.0"))
    monkeypatch.setattr(runtime_install, "_pip", pip)
    for _ in range(2):
        with pytest.raises(InstallFailed, match="cannot be imported beside jax"):
            require("nonesuch")
    runtime_install._not_imported.clear()
    ((requirements, keep),) = pip.given
    assert requirements == ("jax==0.12.0.1", "nonesuch", "numpy==2.4.3")
    assert {"pytest==9.2.0", "packaging==26.3"} <= set(keep)
    assert not [line for line in keep if line.startswith(("jax", "nonesuch", "numpy="))]
    assert not [line for line in keep if line.startswith("pluggy")]
    said = capsys.readouterr().out
    assert said.startswith(
        "Colab: pip installs nonesuch for this notebook, because nonesuch is not"
    )


def test_a_pip_that_ends_well_and_changes_nothing(there, monkeypatch, colab):
    """Tried once more, as an older copy may lie below; then it is said."""
    there(**GOOD)
    pip = Pip()
    monkeypatch.setattr(runtime_install, "_pip", pip)
    with pytest.raises(InstallFailed, match="and still nonesuch is not installed"):
        require("nonesuch")
    assert len(pip.given) == 2


def test_packages_in_use_that_stand_in_the_way(there, monkeypatch, colab):
    """Replaced by a second call without constraints; then a restart is asked for."""
    there(**GOOD, pytest="9.2.0")

    def pip(requirements, keep):
        if keep:
            return 1, "ERROR: Cannot install x and y: conflicting dependencies."
        return 0, ""

    monkeypatch.setattr(runtime_install, "_pip", pip)
    with pytest.raises(RestartNeeded, match="in use had to be replaced too: click Run"):
        require("nonesuch")


def test_an_old_numpy_beside_a_new_jax_is_a_fault(there, monkeypatch, colab, capsys):
    have = {**GOOD, "numpy": "1.26.4"}
    there(**have)
    pip = Pip(then=lambda: there(**GOOD))
    monkeypatch.setattr(runtime_install, "_pip", pip)
    with pytest.raises(
        RestartNeeded, match=r"NumPy 2\.4\.3 is installed, and an older"
    ):
        require()
    assert "pip installs numpy for this notebook" in capsys.readouterr().out
    assert pip.given[0][0] == ("jax==0.12.0.1", "numpy>=2.0")


def test_no_newer_jax_is_brought_than_was_tried():
    """Raise JAX_NOT_TRIED when the lock has a newer JAX."""
    assert packages.is_older(jax.__version__, packages.JAX_NOT_TRIED)


def test_a_folder_is_not_a_library(tmp_path, monkeypatch):
    for name in ("optax", "flax/core"):
        (tmp_path / name).mkdir(parents=True)
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
    code += "from spmd_helpers._runtime.packages import is_installed\n"
    code += "import importlib.metadata as m\n"
    code += "real = m.version\n"
    code += "m.version = lambda n: None if n == 'nonesuch' else real(n)\n"
    code += "print(is_installed('orbax-checkpoint'), 'orbax' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "True False\n", done.stderr
    monkeypatch.setattr(packages, "installed", lambda name: None)  # no metadata
    assert not packages.is_installed("optax")


def test_an_interrupt_lets_pip_finish_what_it_replaces(tmp_path):
    """Before that it ends pip at once; in both cases the cell is interrupted."""
    program = tmp_path / "pip.py"
    program.write_text(
        "import os, sys, time\n"
        "name = sys.argv[-1]\n"
        "print('Installing collected packages: x' if name == 'x' else 'Looking')\n"
        "sys.stdout.flush()\n"
        "open(sys.argv[-1] + '.begun', 'w').close()\n"
        "time.sleep(1.5)\n"
        "open(sys.argv[-1] + '.done', 'w').close()\n"
    )
    code = (
        "import sys\n"
        "from spmd_helpers._runtime.install import _pip\n"
        "try:\n    _pip((sys.argv[1],), [])\n"
        "except KeyboardInterrupt:\n    print('interrupted')\n"
    )
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{SRC}"}
    for name, finishes in (("x", True), ("y", False)):
        child = subprocess.Popen(
            [sys.executable, "-c", code, name],
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        while not (tmp_path / f"{name}.begun").exists():
            time.sleep(0.02)
        time.sleep(0.3)  # its line is read
        os.killpg(child.pid, signal.SIGINT)  # as Jupyter does
        said, _ = child.communicate(timeout=60)
        assert said.endswith("interrupted\n")
        time.sleep(0 if finishes else 2)
        assert (tmp_path / f"{name}.done").exists() == finishes


def test_what_is_imported_is_not_replaced(there, monkeypatch, colab):
    there(jax="0.7.2", jaxlib="0.7.2", numpy="2.1.3")
    monkeypatch.setattr(runtime_install, "_pip", None)
    with pytest.raises(RestartNeeded, match="Runtime > Restart session and then"):
        require()


def test_packages_that_may_not_be_written(there, monkeypatch, colab):
    there(**GOOD)
    monkeypatch.setattr(runtime_install, "_pip", None)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(InstallFailed, match="read-only, so nothing was installed"):
        require("nonesuch")


def test_a_python_without_pip(there, monkeypatch, colab):
    there(**GOOD)
    monkeypatch.setattr(runtime_install, "_pip", None)
    monkeypatch.setattr(runtime_install, "has_pip", lambda: False)
    with pytest.raises(InstallFailed, match="has no pip, so nothing was installed"):
        require("nonesuch")


@pytest.mark.parametrize(
    ("text", "changes", "said"),
    [
        (
            "WARNING: Retrying ... NewConnectionError: [Errno -3] Temporary failure in "
            "name resolution\nERROR: Could not find a version that satisfies ...",
            False,
            "pip has no connection, and nothing was changed: see that this runtime",
        ),
        (
            "ERROR: Could not install packages due to an OSError: [Errno 28] No space "
            "left on device\n",
            True,
            r"pip failed \(Could not install .*No space left on device\), and it st",
        ),
        ("", False, r"pip failed \(it gave no reason\), and nothing was changed"),
        (
            "ERROR: Exception:\nTraceback (most recent call last):\n...\nTypeError: x",
            False,
            r"pip failed \(TypeError: x\), and nothing was changed: run this cell",
        ),
        (
            "Retrying: NewConnectionError\nERROR: [Errno 28] No space left on device",
            False,
            r"pip failed \(\[Errno 28\] No space left on device\), and nothing",
        ),
    ],
)
def test_what_is_said_of_a_pip_that_failed(
    there, monkeypatch, colab, text, changes, said
):
    there(**GOOD)

    states = iter(({}, {"scipy": "1"} if changes else {}))
    monkeypatch.setattr(runtime_install, "_all_versions", lambda: next(states))
    monkeypatch.setattr(runtime_install, "_pip", Pip(1, text))
    with pytest.raises(InstallFailed, match=said) as caught:
        require("nonesuch")
    assert ". " not in str(caught.value)


def test_pip_itself_is_called_once_with_what_is_kept(tmp_path, monkeypatch, capsys):
    """The real call, of a stand-in: arguments, progress, and no line of its noise."""
    program = tmp_path / "pip.py"
    program.write_text(
        "import sys\n"
        "at = sys.argv.index('--constraint')\n"
        "print('WARNING: noise')\n"
        "print('  Downloading jaxlib-0.11.2-cp313.whl.metadata (13 kB)')\n"
        "print('  Downloading jaxlib-0.11.2-cp313.whl (89.9 MB)')\n"
        "print('Installing collected packages: jaxlib')\n"
        "print(open(sys.argv[at + 1]).read(), sys.argv[-1], file=sys.stderr)\n"
        "sys.exit(3)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    code, said = runtime_install._pip(("jax>=0.10.2",), ["numpy==2.1.3"])
    assert code == 3
    assert "numpy==2.1.3 jax>=0.10.2" in said
    assert capsys.readouterr().out == (
        "  Downloading jaxlib-0.11.2-cp313.whl (89.9 MB)\n"
        "  Installing collected packages: jaxlib\n"
    )


def test_the_lists_of_runtimes_say_their_day():
    for path in runtimes.LISTS.glob("*.txt"):
        first, second = path.read_text("utf8").splitlines()[:2]
        assert re.fullmatch(
            r"# (Colab|Kaggle), .+, as of 20\d\d-\d\d-\d\d\. Python 3\.\d+", first
        )
        assert second.startswith("# ")
        assert {"jax", "numpy", "ipykernel"} <= set(runtimes.versions(path.stem))
