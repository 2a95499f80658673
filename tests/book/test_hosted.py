"""What can go wrong on Colab and Kaggle, as their lists say they are.

Environments have the exact versions of tests/data/runtimes/, whose first lines say of
which day they are; nothing of ours but the wheel. pip's index is the real one.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from nbclient.exceptions import CellExecutionError

from spmd_helpers._runtime import packages as runtime_packages
from tests import runtimes
from tests.book.bare_kernels import cells, errors, printed, require_one_sentence, run
from tests.book.hosted import LONG, OTHER_PLACES, ROOT, SIGNS, USED, first_cell, signs

pytestmark = LONG


# What the first cell brings.


@pytest.mark.parametrize("name", ["colab_cpu", "colab_gpu", "colab_tpu", "kaggle_tpu"])
def test_what_pip_would_replace(name, tmp_path):
    """JAX, what its accelerator needs, flax; nothing of NVIDIA's, and not NumPy.

    pip is asked what it would do in an environment of which it sees the metadata.
    """
    python = runtimes.find_python(runtimes.python_of(name))
    subprocess.run([python, "-m", "venv", tmp_path / "shape"], check=True)
    (packages,) = (tmp_path / "shape").glob("lib/python*/site-packages")
    have = {n: v for n, v in runtimes.versions(name).items() if n != "pip"}
    have |= {"opt_einsum": "3.4.0", "requests": "2.32.4"}
    for package, its in have.items():
        folder = packages / f"{package.replace('-', '_')}-{its}.dist-info"
        folder.mkdir(exist_ok=True)
        text = f"Metadata-Version: 2.1\nName: {package}\nVersion: {its}\n"
        (folder / "METADATA").write_text(text)
    code = f"import sys; sys.path.append({str(ROOT / 'src')!r})\n"
    code += "from spmd_helpers._runtime.packages import needed_change\n"
    code += "sys.path.append(sys.argv[1])\n"  # packaging itself
    code += "print(*needed_change(('flax', 'optax')).requirements, sep='\\n')"
    own = tmp_path / "shape" / "bin" / "python"
    (packaging,) = {str(Path(p).parent) for p in __import__("packaging").__path__}
    requirements = subprocess.run(
        [own, "-c", code, packaging], capture_output=True, text=True, check=True
    ).stdout.split()
    report = tmp_path / "report.json"
    pip = [own, "-m", "pip", "install", "--upgrade", "--dry-run", "--quiet"]
    subprocess.run([*pip, "--report", report, *requirements], check=True)
    would = {
        item["metadata"]["name"]: item["metadata"]["version"]
        for item in json.loads(report.read_text())["install"]
    }
    accelerators = {
        "colab_cpu": set(),
        "colab_gpu": {"jax-cuda12-plugin", "jax-cuda12-pjrt"},
        "colab_tpu": {"libtpu"},
        "kaggle_tpu": {"libtpu"},
    }
    assert set(would) == {"jax", "jaxlib", "flax"} | accelerators[name] | (
        {"optax"} & set(would)
    )
    if name == "colab_gpu":
        assert {would[n] for n in accelerators[name]} == {would["jax"]}


# What can be in its way.


def test_jax_imported_beforehand(session):
    """One sentence with the two clicks; after them the same cell does the rest."""
    python, folder = session("colab_cpu")
    setup = first_cell(3)
    early = run(
        cells("import jax", setup), python, folder, allow_errors=True, **signs("colab")
    )
    (error,) = errors(early)
    assert error.ename == "RestartNeeded"
    require_one_sentence(error)
    assert "Runtime > Restart session and then Runtime > Run all," in error.evalue
    assert error.traceback == [f"RestartNeeded: {error.evalue}"]
    assert runtimes.installed(python, "jax", "jaxlib") == ["0.7.2", "0.7.2"]
    after = run(
        cells(setup, "import jax", "devices = spmd.use_devices(8)", USED),
        *(python, folder),
        **signs("colab"),
    )
    assert "using 8 CPU devices" in printed(after, 2)


NO_INDEX = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_EXTRA_INDEX_URL": ""}


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({**NO_INDEX, **SIGNS["colab"]}, "pip has no connection"),
        (
            {**NO_INDEX, **SIGNS["kaggle"]},
            "switch Internet on in the panel on the right",
        ),
        ({"PIP_CONSTRAINT": "old.txt", **SIGNS["colab"]}, "pip failed ("),
    ],
    ids=["no network", "no network on Kaggle", "a constraint that forbids it"],
)
def test_nothing_is_changed_when_pip_fails(session, variables, said):
    """When the cause is gone, the same cell finishes the job, in the same kernel."""
    python, folder = session("colab_cpu")
    (folder / "old.txt").write_text("jax<0.8\n")
    names = ("jax", "jaxlib", "flax", "numpy")
    before = runtimes.installed(python, *names)
    forget = f"import os\nfor name in {set(variables)}:\n"
    forget += "    if name.startswith('PIP'): os.environ.pop(name, None)"
    setup = first_cell(11)
    package = f"{python} -m pip install --quiet --no-deps --no-index {{0}}"
    (wheel,) = folder.glob("*.whl")
    subprocess.run(package.format(wheel).split(), check=True)
    report = "from importlib.metadata import version\nprint("
    report += ", ".join(f"version({name!r})" for name in names) + ")"
    notebook = run(
        cells(setup, report, forget, setup, USED, "from flax import nnx"),
        *(python, folder),
        allow_errors=True,
        **variables,
    )
    (error,) = errors(notebook)
    assert error.ename == "InstallFailed"
    require_one_sentence(error)
    assert said in error.evalue
    assert "nothing was changed" in error.evalue
    assert printed(notebook, 1).split() == before
    assert "ready after" in printed(notebook, 3)
    assert not runtime_packages.is_older(printed(notebook, 4).split()[0], "0.11.2")


def test_an_old_flax_that_no_newer_one_is_found_for(session):
    """pip alone would be content with it; `import flax` too, where flax.nnx fails."""
    python, folder = session("colab_cpu")
    with_package(python, folder)
    in_place(python, "install", "-U", "jax==0.11.2", "numpy==2.1.3")
    notebook = run(
        cells(first_cell(11)),
        *(python, folder),
        allow_errors=True,
        **{**NO_INDEX, **signs("colab")},
    )
    (error,) = errors(notebook)
    assert error.ename == "InstallFailed"
    assert "pip has no connection, and nothing was changed" in error.evalue


# In the environment's sitecustomize: pip ends itself by SIGKILL where it is about to
# put the new files of a package into the place of the old, which it has taken away.
DEADLY = """\
import importlib.machinery, os, sys
WHEEL = "pip._internal.operations.install.wheel"
class Hook:
    def find_spec(self, name, path=None, target=None):
        if name != WHEEL or not os.environ.get("KILL_PIP_AT"):
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        load = spec.loader.exec_module
        def exec_module(module):
            load(module)
            install = module.install_wheel
            def install_wheel(name, *rest, **more):
                if name == os.environ["KILL_PIP_AT"]:
                    os.kill(os.getpid(), 9)
                return install(name, *rest, **more)
            module.install_wheel = install_wheel
        spec.loader.exec_module = exec_module
        return spec
sys.meta_path.insert(0, Hook())
"""


RARE = [pytest.param(name, marks=pytest.mark.rare) for name in ("jaxlib", "flax")]


@pytest.mark.parametrize("which", ["jax", *RARE])
def test_a_pip_that_is_killed_half_way(session, which):
    """The cell says so, and run again it finishes the job."""
    python, folder = session("colab_cpu")
    with_package(python, folder)
    (packages,) = python.parent.parent.glob("lib/python*/site-packages")
    (packages / "sitecustomize.py").write_text(DEADLY)
    setup = first_cell(11)
    aim = f"import os\nos.environ['KILL_PIP_AT'] = {which!r}"
    notebook = run(
        cells(aim, setup, "del os.environ['KILL_PIP_AT']", setup, USED),
        *(python, folder),
        allow_errors=True,
        **signs("colab"),
    )
    (error,) = errors(notebook)
    assert error.ename == "InstallFailed"
    assert "stopped from outside), and it stopped half-way: run this" in error.evalue
    require_one_sentence(error)
    assert "ready after" in printed(notebook, 3)
    assert not runtime_packages.is_older(printed(notebook, 4).split()[0], "0.11.2")
    run(cells("from flax import nnx", USED), python, folder)


# Every remedy that names pip is followed, letter by letter.


def command_of(error) -> str:
    return re.search(r"run  ([%!].+?)  ", error.evalue)[1]


def follow(command, python, folder, chapter=11):
    """Type the command of a message, restart, and use what it promised."""
    typed = run(cells(command), python, folder, allow_errors=True)
    assert errors(typed) == []
    assert "error:" not in printed(typed, 0).lower()
    after = run(
        cells(first_cell(chapter), "spmd.use_devices(8)", "from flax import nnx", USED),
        *(python, folder),
    )
    jax, _ = printed(after, 3).split()
    assert not runtime_packages.is_older(jax, "0.10.2")
    return jax


def in_place(python, *arguments):
    """pip in the environment, before a reader comes."""
    command = [python, "-m", "pip", *arguments, "--quiet"]
    subprocess.run([*command, "--disable-pip-version-check"], check=True)


def with_package(python, folder):
    (wheel,) = folder.glob("*.whl")
    in_place(python, "install", "--no-deps", str(wheel))


FIRST, DEVICES = first_cell(11), "import spmd_helpers as spmd; spmd.use_devices(8)"
# What was done with pip, the cells that say the same of it, and the kind of error.
BROKEN = {
    "old JAX": ((), (FIRST, DEVICES), "OldJax"),
    "no JAX": (("uninstall", "-y", "jax", "jaxlib"), (FIRST, DEVICES), "NoJax"),
    "no jaxlib": (("uninstall", "-y", "jaxlib"), (FIRST,), "OldJax"),
    "new JAX, old flax": (
        ("install", "-U", "jax==0.11.2", "numpy==2.1.3"),
        (FIRST,),
        "MissingLibrary",
    ),
    "new JAX, no optax, no orbax": (
        ("uninstall", "-y", "optax", "orbax-checkpoint"),
        (first_cell(13),),
        "OldJax",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_the_command_of_a_message_works(case, session):
    before, sources, kind = BROKEN[case]
    python, folder = session("colab_cpu")
    with_package(python, folder)
    if before:
        in_place(python, *before)
    commands = set()
    for source in sources:  # each in a kernel of its own
        notebook = run(cells(source), python, folder, allow_errors=True)
        (error,) = errors(notebook)
        assert error.ename == kind
        require_one_sentence(error)
        commands.add(command_of(error))
    (command,) = commands
    follow(command, python, folder, 13 if "optax" in case else 11)


def test_the_command_where_there_is_uv_and_no_pip(session, tmp_path):
    python, folder = session("colab_cpu")
    with_package(python, folder)
    tool = tmp_path / "uv"
    in_place(python, "install", "--target", str(tool), "uv")
    for path in python.parent.parent.glob("lib/python*/site-packages/pip*"):
        shutil.rmtree(path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{tool / 'bin'}{os.pathsep}{os.environ['PATH']}")
        notebook = run(cells(first_cell(11)), python, folder, allow_errors=True)
        (error,) = errors(notebook)
        require_one_sentence(error)
        assert "run  !uv pip install --python " in error.evalue
        follow(command_of(error), python, folder)


def test_the_command_for_the_tpu_compiler(session):
    python, folder = session("colab_cpu")
    with_package(python, folder)
    in_place(python, "install", "-U", "jax==0.11.2", "numpy==2.1.3")
    ask = "import spmd_helpers as spmd\nprint(spmd.tpu_mesh('v5e:2x4', data=8).size)"
    (error,) = errors(run(cells(ask), python, folder, allow_errors=True))
    assert error.ename == "NoTpuCompiler"
    run(cells(command_of(error)), python, folder)
    assert printed(run(cells(ask), python, folder), 0) == "8\n"
    assert runtimes.installed(python, "jax", "numpy") == ["0.11.2", "2.1.3"]


def test_the_command_for_the_widgets(session):
    python, folder = session("colab_cpu")
    with_package(python, folder)
    in_place(python, "uninstall", "-y", "anywidget")
    ask = "import spmd_helpers as spmd\nprint(type(spmd.MatmulExplorer()).__name__)"
    (error,) = errors(run(cells(ask), python, folder, allow_errors=True))
    assert error.ename == "MissingLibrary"
    run(cells(command_of(error)), python, folder)
    assert "MatmulExplorer" in printed(run(cells(ask), python, folder), 0)


@pytest.mark.parametrize("extra", ["cuda12", "cuda13", "tpu"])
def test_what_install_md_says_for_accelerators(extra, tmp_path):
    """The JAX of the environment stays, and so does all that goes with it."""
    text = (ROOT / "book" / "install.md").read_text("utf8")
    assert '.venv/bin/pip install "jax[cuda12]"' in text
    assert '.venv/bin/pip install "jax[tpu]"' in text
    report = tmp_path / "report.json"
    pip = [sys.executable, "-m", "pip", "install", "--dry-run", "--quiet"]
    subprocess.run([*pip, "--report", report, f"jax[{extra}]"], check=True)
    would = {
        item["metadata"]["name"]: item["metadata"]["version"]
        for item in json.loads(report.read_text())["install"]
    }
    assert not {"jax", "jaxlib", "numpy", "flax", "optax"} & set(would)
    plugin = "libtpu" if extra == "tpu" else f"jax-{extra}-plugin"
    assert plugin in would
    assert extra == "tpu" or would[plugin] == version("jax")


# What a reader then uses there.

KINDS = ("ShardingExplorer", "MatmulExplorer", "MemoryCalculator", "MeshPlanner")
WIDGETS = f"""\
spmd.use_devices(8)
for kind in {KINDS}:
    explorer = getattr(spmd, kind)()
    display(explorer)
    print(type(explorer).__name__, explorer.keys and "has state")
"""
LOAD_EXPLAIN = """\
%load_ext spmd_helpers
import jax, jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P
mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
"""
RAISES = 'jax.device_put(jnp.ones((6, 4)), NamedSharding(mesh, P("data")))'
XRAY = """\
def total(x):
    doubled = x * 2
    return doubled.sum()
x = jax.device_put(jnp.ones((8, 4)), NamedSharding(mesh, P("data")))
print(spmd.xray(jax.jit(total), x))
"""


def test_widgets_explanations_and_source_lines_on_colab(session):
    """Under ipywidgets 7.7.1, IPython 7.34 and ipykernel 6.17."""
    python, folder = session("colab_cpu")
    notebook = cells(OTHER_PLACES, first_cell(11), WIDGETS, LOAD_EXPLAIN, XRAY, RAISES)
    with pytest.raises(CellExecutionError):  # an allowed error is not explained
        run(notebook, python, folder, **signs("colab"))
    views = [o for o in notebook.cells[2].outputs if o.output_type == "display_data"]
    kind = "application/vnd.jupyter.widget-view+json"
    assert len([view for view in views if kind in view.data]) == len(KINDS)
    assert "custom widgets on" in printed(notebook, 2)
    assert re.search(r"all-reduce +data .* cell, line 3$", printed(notebook, 4), re.M)
    *_, explained = notebook.cells[5].outputs
    assert "6 is not divisible by 8" in explained.data["text/plain"]
