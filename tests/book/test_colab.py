"""The first cell in an empty folder: JAX is new enough, the package is not there.

Kernels here run in an environment that has everything but this package, whose wheel
or repository the first cell then finds. test_hosted.py has the environments of
Colab and Kaggle, where JAX is older.
"""

import os
import re
import shutil
import site
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from tests.book.bare_kernels import cells, errors, printed, require_one_sentence, run
from tools.book.book import read_book
from tools.book.notebook import both_notebooks
from tools.book.setup_cell import libraries, preamble

pytestmark = pytest.mark.long(
    "kernels in environments where the package is not installed"
)

ROOT = Path(__file__).resolve().parents[2]
BOOK = read_book(ROOT)
COLAB = {"COLAB_RELEASE_TAG": "release-colab_20260819"}
KAGGLE = {"KAGGLE_KERNEL_RUN_TYPE": "Interactive"}
IMPORTED_FROM = "import spmd_helpers; print('at', spmd_helpers.__file__)"


@pytest.fixture(scope="module")
def unpacked(wheel, tmp_path_factory):
    """A folder with what the wheel installs, to put on a kernel's path."""
    folder = tmp_path_factory.mktemp("installed")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def make_environment(folder: Path) -> Path:
    """An environment with all that this one has, except the package; its Python."""
    venv.create(folder, with_pip=True, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    there = {p.name for p in packages.iterdir()}
    for installed in map(Path, site.getsitepackages()):
        for entry in installed.iterdir():
            ours = "spmd_helpers" in entry.name or entry.suffix == ".pth"
            if not ours and entry.name not in there:
                (packages / entry.name).symlink_to(entry)
    return folder / "bin" / "python"


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """The Python of an environment into which no test installs anything."""
    return make_environment(tmp_path_factory.mktemp("bare"))


def setup_source(book=BOOK) -> str:
    """The code of the first chapter up to its `use_devices`."""
    reader, _ = both_notebooks(BOOK.masters[0], book)
    sources = [c.source for c in reader.cells if c.cell_type == "code"]
    last = next(n for n, source in enumerate(sources) if "use_devices" in source)
    return "\n\n".join(sources[: last + 1])


# The first cell.


@pytest.mark.parametrize("count", [1, 2, 8, 16])
def test_device_count_in_xla_flags(bare, unpacked, tmp_path, count):
    notebook = run(
        cells(setup_source(), "print(len(devices), devices[0].platform)"),
        bare,
        tmp_path,
        PYTHONPATH=str(unpacked),
        XLA_FLAGS=f"--xla_force_host_platform_device_count={count}",
    )
    assert printed(notebook, 1) == "8 cpu\n"


def test_older_jax_is_one_sentence(bare, unpacked, tmp_path):
    old = tmp_path / "old" / "jax"
    old.mkdir(parents=True)
    (old / "__init__.py").write_text("__version__ = '0.4.30'\n")
    notebook = run(
        cells(setup_source()),
        bare,
        tmp_path,
        allow_errors=True,
        PYTHONPATH=f"{old.parent}{os.pathsep}{unpacked}",
    )
    (error,) = errors(notebook)
    assert error.ename == "OldJax"
    assert "needs jax 0.10.2 or newer, and this is jax 0.4.30" in error.evalue
    assert '%pip install -U "jax>=0.10.2' in error.evalue
    require_one_sentence(error)
    assert not [line for line in error.traceback if "/jax/" in line]


def test_jax_that_was_started_before_is_one_sentence(bare, unpacked, tmp_path):
    notebook = run(
        cells("import jax; jax.devices()", setup_source()),
        bare,
        tmp_path,
        allow_errors=True,
        PYTHONPATH=str(unpacked),
    )
    (error,) = errors(notebook)
    assert error.ename == "BackendStarted"
    assert "so restart the kernel" in error.evalue
    require_one_sentence(error)
    assert error.traceback == [f"BackendStarted: {error.evalue}"]


def test_an_accelerator_that_does_not_start_is_done_without(bare, unpacked, tmp_path):
    notebook = run(
        cells(setup_source(), "print(len(devices), devices[0].platform)"),
        bare,
        tmp_path,
        PYTHONPATH=str(unpacked),
        JAX_PLATFORMS="nonesuch",
    )
    assert "using 8 CPU devices" in printed(notebook, 0)
    assert "did not start" in printed(notebook, 0)
    assert printed(notebook, 1) == "8 cpu\n"
    assert not [o for c in notebook.cells for o in c.outputs if o.name == "stderr"]


def test_missing_libraries_are_one_sentence(bare, unpacked, tmp_path):
    """Named all at once, with a command that keeps the JAX that is there."""
    (master,) = (m for m in BOOK.masters if m.name.startswith("13_"))
    hidden = ("flax", "ipywidgets", "optax", "orbax.checkpoint")
    hide = f"import sys\nsys.modules.update(dict.fromkeys({hidden}))"
    notebook = run(
        cells(hide, preamble(BOOK, master.read_text("utf8"))),
        bare,
        tmp_path,
        allow_errors=True,
        PYTHONPATH=str(unpacked),
    )
    (error,) = errors(notebook)
    assert f'  %pip install -U "jax=={jax_here().split()[0]}" ' in error.evalue
    names = r'"flax>=0[\d.]+" ipywidgets "optax!=0\.2\.7" "orbax-checkpoint>=0[\d.]+"'
    assert re.search(rf' {names} "numpy==', error.evalue)
    assert error.ename == "MissingLibrary"
    require_one_sentence(error)
    assert error.traceback == [f"{error.ename}: {error.evalue}"]


@pytest.mark.parametrize("master", BOOK.masters, ids=lambda m: m.stem)
def test_every_library_comes_along_or_is_asked_for(master):
    """From Python, JAX, the kernel, the wheel; all others by the first cell."""
    text = master.read_text("utf8")
    cells_there = both_notebooks(master, BOOK)[0].cells
    first = next(cell for cell in cells_there if cell.cell_type == "code")
    arguments = ", ".join(f'"{name}"' for name in libraries(text))
    assert first.source.endswith(f"\nspmd.require({arguments})")
    assert first.source.startswith("# @title ")  # Colab shows a form
    assert "hide-input" in first.metadata["tags"]
    for cell in cells_there:
        is_folded = "hide-input" in cell.metadata.get("tags", [])
        assert (cell.metadata.get("cellView") == "form") == is_folded
        assert ("jupyter" in cell.metadata) == is_folded
        assert cell.metadata.get("jupyter", {}).get("source_hidden", False) == is_folded
    along = {"jax", "numpy", "matplotlib", "spmd_helpers", "IPython"}
    line = r"^ *(?:from ([\w.]+) import \w|import ([\w.]+)(?: as \w+)?$)"
    own = [c.source for c in cells_there if c.cell_type == "code" and c is not first]
    imported = {
        (a or b).split(".")[0] for a, b in re.findall(line, "\n".join(own), re.M)
    }
    required = {name.removesuffix("-checkpoint") for name in libraries(text)}
    assert imported - set(sys.stdlib_module_names) - along == required


ONE_CARD = """\
import spmd_helpers._devices as _devices
class Card:
    platform, device_kind, id, process_index = "gpu", "T4", 0, 0
_devices._accelerators = lambda jax: [Card()]
"""


def test_one_accelerator_is_too_few(bare, unpacked, tmp_path):
    notebook = run(
        cells(ONE_CARD, setup_source(), "print(len(devices), devices[0].platform)"),
        bare,
        tmp_path,
        PYTHONPATH=str(unpacked),
    )
    assert "using 8 CPU devices" in printed(notebook, 1)
    assert "1 GPU, T4" in printed(notebook, 1)
    assert printed(notebook, 2) == "8 cpu\n"


# Installing, for a book without and with a public address.


def test_nothing_to_install_from(bare, tmp_path):
    book = without_address()
    for place in ({}, COLAB, KAGGLE):
        notebook = run(
            cells(setup_source(book)), bare, tmp_path, allow_errors=True, **place
        )
        (error,) = errors(notebook)
        assert error.ename == "RuntimeError"  # Colab shows an ImportError its own way
        require_one_sentence(error)
        assert ": add spmd_helpers-*-any.whl  and run this cell again" in error.evalue
        assert "Install and run" in error.evalue
        assert error.traceback == [error.evalue]


@pytest.mark.parametrize("address", ["", "https://example.org/book"])
def test_elsewhere_nothing_is_installed_without_being_asked(
    bare, wheel, tmp_path, address
):
    """Neither the package nor what it would bring; the sentence is what to type."""
    if not address:
        shutil.copy(wheel, tmp_path)
    source = f"spmd-helpers @ git+{address}@v{BOOK.version}" if address else wheel.name
    notebook = run(
        cells(setup_source(with_address(address))), bare, tmp_path, allow_errors=True
    )
    (error,) = errors(notebook)
    require_one_sentence(error)
    assert f'run  %pip install "{source}"  and run this cell' in error.evalue
    assert error.traceback == [error.evalue]


@pytest.mark.parametrize("why", ["a second download", "no pip"])
def test_a_wheel_that_cannot_be_installed(bare, wheel, tmp_path, why):
    name = wheel.name if why == "no pip" else f"{wheel.stem} (1).whl"
    shutil.copy(wheel, tmp_path / name)
    no_pip = tmp_path / "path" / "pip"  # a stand-in that says what Python says
    no_pip.mkdir(parents=True)
    (no_pip / "__init__.py").write_text("")
    (no_pip / "__main__.py").write_text("raise SystemExit('No module named pip')")
    notebook = run(
        cells(setup_source(without_address())),
        bare,
        tmp_path,
        allow_errors=True,
        PYTHONPATH=str(no_pip.parent),
        **COLAB,
    )
    (error,) = errors(notebook)
    require_one_sentence(error)
    do = f'run  %pip install "{name}"' if why == "no pip" else "add spmd_helpers-*-any"
    assert f"spmd_helpers is missing: {do}" in error.evalue
    assert error.traceback == [error.evalue]


def test_a_wheel_beside_the_notebook(wheel, tmp_path):
    python = make_environment(tmp_path / "environment")
    folder = tmp_path / "folder"
    folder.mkdir()
    shutil.copy(wheel, folder)
    shutil.copy(wheel, folder / f"{wheel.stem} (1).whl")  # newer, and pip refuses it
    report = "import jax, os; print(jax.__version__, os.path.realpath(jax.__file__))"
    notebook = run(
        cells(setup_source(without_address()), IMPORTED_FROM, report),
        python,
        folder,
        PIP_NO_INDEX="1",
        **COLAB,
    )
    assert printed(notebook, 1).startswith(f"at {tmp_path / 'environment'}")
    assert printed(notebook, 2) == jax_here()


def test_the_tag_of_the_repository(tmp_path):
    """git is told that the public address is a folder here."""
    address = "https://github.com/someone/book"
    repository = tmp_path / "repository"
    repository.mkdir()
    for name in ("src", "pyproject.toml", "_config.yml", "README.md", "LICENSE"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, repository / name)
    git = ["git", "-c", "user.name=x", "-c", "user.email=x@example.org"]
    for command in (
        ["init", "--quiet"],
        ["add", "."],
        ["commit", "--quiet", "-m", "x"],
        ["tag", f"v{BOOK.version}"],
    ):
        subprocess.run([*git, *command], cwd=repository, check=True)
    python = make_environment(tmp_path / "environment")
    folder = tmp_path / "folder"
    folder.mkdir()
    notebook = run(
        cells(setup_source(with_address(address)), IMPORTED_FROM),
        python,
        folder,
        PIP_NO_INDEX="1",
        PIP_NO_BUILD_ISOLATION="0",  # pip's way to say: without
        GIT_CONFIG_COUNT="1",
        GIT_CONFIG_KEY_0=f"url.{repository.as_uri()}.insteadOf",
        GIT_CONFIG_VALUE_0=address,
        **COLAB,
    )
    assert printed(notebook, 1).startswith(f"at {tmp_path / 'environment'}")


def test_the_wheel_brings_no_jax(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [n for n in archive.namelist() if n.endswith("/METADATA")]
        metadata = archive.read(name).decode()
    matches = re.findall(r"^Requires-Dist: ([\w-]+)(.*)$", metadata, re.M)
    always = sorted(name for name, rest in matches if "extra ==" not in rest)
    assert always == ["matplotlib", "numpy", "packaging"]


def with_address(address: str):
    from dataclasses import replace

    return replace(BOOK, repository=address)


def without_address():
    return with_address("")


def jax_here() -> str:
    import jax

    return f"{jax.__version__} {os.path.realpath(jax.__file__)}\n"
