"""The first cell where nobody prepared anything: an empty folder, as in Colab.

Kernels here run in an environment that has what Colab has (JAX, numpy, ...) and
not this package, whose wheel or repository the first cell then finds.
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

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

from _book import read_book  # noqa: E402
from _notebook import both_notebooks  # noqa: E402
from _run import manager_class  # noqa: E402
from _setup_cell import libraries, preamble  # noqa: E402

BOOK = read_book(ROOT)
READERS = sorted((ROOT / "notebooks").glob("*.ipynb"))
# What a library may look for to learn where it runs: Colab's module, VS Code's name.
OTHER_PLACES = """\
import sys, types
__vsc_ipynb_file__ = "/nowhere/notebook.ipynb"
colab = types.ModuleType("google.colab")
colab.output = types.ModuleType("google.colab.output")
colab.output.enable_custom_widget_manager = lambda *_: None
sys.modules.update({"google.colab": colab, "google.colab.output": colab.output})
del sys, types, colab
"""
IMPORTED_FROM = "import spmd_helpers; print('at', spmd_helpers.__file__)"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation"]
    subprocess.run(
        [*command, "--outdir", folder, ROOT], check=True, stdout=subprocess.DEVNULL
    )
    (built,) = folder.glob("*.whl")
    return built


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


def run(notebook, python: Path, folder: Path, allow_errors=False, **variables):
    """Run the notebook in `folder`, with no more than `variables` set for it."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), **variables}
    environment["JAX_PLATFORMS"] = variables.get("JAX_PLATFORMS", "cpu")
    environment["IPYTHONDIR"] = str(folder / ".ipython")
    client = NotebookClient(
        notebook,
        kernel_name="python3",
        kernel_manager_class=manager_class(python),
        timeout=300,
        allow_errors=allow_errors,
        store_widget_state=False,
        resources={"metadata": {"path": str(folder)}},
    )
    client.execute(env=environment)
    return notebook


def setup_source(book=BOOK) -> str:
    """The code of the first chapter up to its `use_devices`."""
    reader, _ = both_notebooks(BOOK.masters[0], book)
    sources = [c.source for c in reader.cells if c.cell_type == "code"]
    last = next(n for n, source in enumerate(sources) if "use_devices" in source)
    return "\n\n".join(sources[: last + 1])


def cells(*sources: str):
    return nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(source) for source in sources]
    )


def printed(notebook, number: int) -> str:
    """What the cell of that number wrote to stdout."""
    outputs = notebook.cells[number].outputs
    return "".join(o.text for o in outputs if o.get("name") == "stdout")


def errors(notebook) -> list:
    return [
        output
        for cell in notebook.cells
        for output in cell.get("outputs", [])
        if output.output_type == "error"
    ]


def require_one_sentence(error) -> None:
    assert "\n" not in error.evalue
    assert len(error.evalue) < 400
    assert error.evalue.count(". ") == 0


# Whole notebooks.


@pytest.mark.parametrize("path", READERS, ids=lambda p: p.stem)
def test_run_all_in_an_empty_folder(path, bare, unpacked, tmp_path):
    """With the wheel only, XLA flags that the reader has set, and signs of others."""
    notebook = nbformat.read(path, as_version=4)
    notebook.cells.insert(0, nbformat.v4.new_code_cell(OTHER_PLACES, id="places"))
    notebook.cells.append(nbformat.v4.new_code_cell(IMPORTED_FROM, id="where"))
    run(
        notebook,
        bare,
        tmp_path,
        PYTHONPATH=str(unpacked),
        XLA_FLAGS="--xla_cpu_enable_fast_math=false",
    )
    assert errors(notebook) == []
    assert printed(notebook, -1).startswith(f"at {unpacked}")
    assert [p.name for p in tmp_path.iterdir() if p.name[0] != "."] == []


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
    """Named all at once, with a command that keeps the JAX that is there, if any."""
    (master,) = (m for m in BOOK.masters if m.name.startswith("13_"))
    text = master.read_text("utf8")
    hidden = ("flax", "ipywidgets", "optax", "orbax.checkpoint")
    hide = "import sys\nsys.modules.update(dict.fromkeys({}))"
    notebook = run(
        cells(
            hide.format(hidden),
            preamble(BOOK, text),
            hide.format(["jax"]),
            preamble(BOOK, text),
            "spmd.use_devices(8)",
        ),
        bare,
        tmp_path,
        allow_errors=True,
        PYTHONPATH=str(unpacked),
    )
    with_jax, without, no_jax = errors(notebook)
    names = "flax ipywidgets optax orbax-checkpoint"
    version = jax_here().split()[0]
    assert f"  %pip install {names} jax=={version}  (" in with_jax.evalue
    assert f"  %pip install {names} jax  (" in without.evalue
    assert (with_jax.ename, no_jax.ename) == ("MissingLibrary", "NoJax")
    for error in with_jax, without, no_jax:
        require_one_sentence(error)
        assert error.traceback == [f"{error.ename}: {error.evalue}"]


@pytest.mark.parametrize("master", BOOK.masters, ids=lambda m: m.stem)
def test_every_library_comes_along_or_is_asked_for(master):
    """From Python, JAX, the kernel, the wheel; all others by the first cell."""
    text = master.read_text("utf8")
    cells_there = both_notebooks(master, BOOK)[0].cells
    first = next(cell for cell in cells_there if cell.cell_type == "code")
    assert all(f'"{name}"' in first.source for name in libraries(text))
    along = {"jax", "numpy", "matplotlib", "spmd_helpers", "IPython"}
    line = r"^ *(?:from ([\w.]+) import \w|import ([\w.]+)(?: as \w+)?$)"
    found = {(a or b).split(".")[0] for a, b in re.findall(line, text, re.M)}
    asked = {name.removesuffix("-checkpoint") for name in libraries(text)}
    assert found - set(sys.stdlib_module_names) - along == asked


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
    notebook = run(cells(setup_source(book)), bare, tmp_path, allow_errors=True)
    (error,) = errors(notebook)
    assert error.ename == "ModuleNotFoundError"
    require_one_sentence(error)
    assert "`make wheel` writes dist/spmd_helpers-*.whl" in error.evalue
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
    )
    (error,) = errors(notebook)
    require_one_sentence(error)
    assert "under this name" in error.evalue
    assert error.traceback == [error.evalue]


def test_a_wheel_beside_the_notebook(wheel, tmp_path):
    python = make_environment(tmp_path / "environment")
    folder = tmp_path / "folder"
    folder.mkdir()
    shutil.copy(wheel, folder)
    report = "import jax, os; print(jax.__version__, os.path.realpath(jax.__file__))"
    notebook = run(
        cells(setup_source(without_address()), IMPORTED_FROM, report),
        python,
        folder,
        PIP_NO_INDEX="1",
    )
    assert printed(notebook, 1).startswith(f"at {tmp_path / 'environment'}")
    assert printed(notebook, 2) == jax_here()


def test_the_tag_of_the_repository(tmp_path):
    """git is told that the public address is a folder here."""
    address = "https://github.com/someone/book"
    repository = tmp_path / "repository"
    repository.mkdir()
    for name in ("src", "pyproject.toml", "README.md", "LICENSE"):
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
    )
    assert printed(notebook, 1).startswith(f"at {tmp_path / 'environment'}")


def test_the_wheel_brings_no_jax(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [n for n in archive.namelist() if n.endswith("/METADATA")]
        metadata = archive.read(name).decode()
    asked = re.findall(r"^Requires-Dist: ([\w-]+)(.*)$", metadata, re.M)
    always = sorted(name for name, rest in asked if "extra ==" not in rest)
    assert always == ["matplotlib", "numpy"]


def with_address(address: str):
    from dataclasses import replace

    return replace(BOOK, repository=address)


def without_address():
    return with_address("")


def jax_here() -> str:
    import jax

    return f"{jax.__version__} {os.path.realpath(jax.__file__)}\n"
