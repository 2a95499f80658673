"""The house: one place for each fact, arrows that point down only, a full lock."""

import ast
import lzma
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "spmd_helpers"

SOURCES = (PACKAGE, ROOT / "src" / "spmd_exercises", ROOT / "src" / "spmd_grading")
OWN = ("spmd_helpers.", "spmd_exercises.", "spmd_grading.")
# At the top of a file of spmd_helpers there is the standard library only. These also
# import a library inside of functions, where it is needed; all others import none.
LIBRARIES = {
    "_figures.batches": {"numpy"},
    "_runtime.require": {"jax"},
    "_runtime.packages": {"packaging"},
    "_devices": {"jax"},
    "_tpu.mesh": {"jax"},
    "_gpu.mesh": {"jax"},
    "_gpu.plugin": {"jax"},
    "_shardings.from_jax": {"numpy"},
    "_training.dtypes": {"numpy"},
    "_datasets.mnist": {"numpy", "pooch"},
    "_drawing.draw": {"matplotlib"},
    "_explain.ipython": {"IPython"},
    "_asserts.compare": {"numpy"},
    "_widgets.widgets": {"anywidget", "traitlets"},
}
HEAVY = ("jax", "numpy", "matplotlib")


def modules(*folders: Path) -> list[Path]:
    return [path for folder in folders for path in sorted(folder.rglob("*.py"))]


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


def for_types_only(tree: ast.AST) -> list[ast.stmt]:
    """What stands under `if TYPE_CHECKING:`, which never runs."""
    return [
        statement
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for statement in node.body
    ]


def libraries(tree: ast.AST, top_only: bool = False) -> set[str]:
    """What a file imports that is neither its own package nor the standard library."""
    names = []
    skipped = for_types_only(tree)
    for node in ast.walk(tree):
        if node in skipped or (top_only and node not in tree.body):
            continue
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names.append(node.module)
    return {name.split(".")[0] for name in names} - set(sys.stdlib_module_names)


@pytest.mark.parametrize("path", modules(PACKAGE), ids=module_name)
def test_libraries_of_a_file(path):
    tree = ast.parse(path.read_text("utf8"))
    assert libraries(tree, top_only=True) == set()
    assert libraries(tree) == LIBRARIES.get(module_name(path), set())


def test_a_library_is_seen():
    tree = ast.parse("import re\nimport numpy as np\ndef f():\n    import jax.numpy")
    assert libraries(tree, top_only=True) == {"numpy"}
    assert libraries(tree) == {"numpy", "jax"}


def test_a_library_for_types_alone_does_not_count():
    tree = ast.parse("if TYPE_CHECKING:\n    import jax\nelse:\n    import numpy")
    assert libraries(tree) == {"numpy"}
    assert libraries(ast.parse("if TYPED:\n    import jax")) == {"jax"}


def private_names(tree: ast.AST) -> list[str]:
    """Names with an underscore that come from another module."""
    return [
        f"{node.module}.{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
        if alias.name.startswith("_") and (node.level or node.module.startswith(OWN))
    ]


@pytest.mark.parametrize("path", modules(*SOURCES), ids=lambda p: p.stem)
def test_what_is_private_stays_private(path):
    text = path.read_text("utf8")
    assert "jax._src" not in text
    assert private_names(ast.parse(text)) == []


def test_a_private_name_is_seen():
    assert private_names(ast.parse("from ..wing.module import _inner, outer"))
    assert not private_names(ast.parse("from . import module\nfrom .x import outer"))


# The arrows: the contracts in pyproject.toml, which `make lint` asks.


@pytest.fixture(scope="module")
def scratch(tmp_path_factory):
    """A copy of the sources and their contracts."""
    folder = tmp_path_factory.mktemp("arrows")
    shutil.copy(ROOT / "pyproject.toml", folder)
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "src", folder / "src", ignore=ignore)
    return folder


def arrows(folder: Path) -> subprocess.CompletedProcess:
    # The tool asks the working folder first for the packages that it reads.
    command = "import sys; sys.path.insert(0, 'src'); from importlinter.cli import *;"
    return subprocess.run(
        [sys.executable, "-c", f"{command} lint_imports_command(['--no-cache'])"],
        cwd=folder,
        env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
        capture_output=True,
        text=True,
    )


TURNED = {
    "up": ("_core/words.py", "from .._drawing.draw import draw", "Wings of"),
    "sideways": ("_matmul/rule.py", "from .._memory.memory import memory", "Wings of"),
    "up in a wing": ("_hlo/parser.py", "from .work import work", "Readers of"),
    "to grading": ("_errors.py", "import spmd_grading.plan", "Grading knows"),
    "to exercises": ("_errors.py", "import spmd_exercises.ch06", "Grading knows"),
}


@pytest.mark.parametrize("way", TURNED)
def test_an_arrow_that_is_turned_round_is_seen(scratch, way):
    name, line, contract = TURNED[way]
    path = scratch / "src" / "spmd_helpers" / name
    before = path.read_text("utf8")
    path.write_text(f"{before}\n\ndef turned():\n    {line}\n", "utf8")
    try:
        done = arrows(scratch)
    finally:
        path.write_text(before, "utf8")
    assert done.returncode == 1, done.stdout + done.stderr
    broken = re.findall(r"^(.*?) BROKEN$", done.stdout, re.M)
    assert any(name.startswith(contract) for name in broken), done.stdout


def test_a_module_without_a_place_is_seen(scratch):
    path = scratch / "src" / "spmd_helpers" / "_attic.py"
    path.write_text('"""Nobody said where this belongs."""\n', "utf8")
    try:
        done = arrows(scratch)
    finally:
        path.unlink()
    assert done.returncode == 1
    assert "_attic" in done.stdout


def test_the_arrows_as_they_are(scratch):
    done = arrows(scratch)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 0 broken" in done.stdout


def loaded_after(code: str) -> list[str]:
    """The heavy libraries that a fresh Python has loaded after `code`."""
    report = f"import sys; print(*(n for n in {HEAVY} if n in sys.modules))"
    environment = dict(os.environ, PYTHONPATH=str(ROOT / "src"))
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{report}"],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_importing_the_package_loads_nothing_heavy():
    assert loaded_after("import spmd_helpers as spmd; dir(spmd)") == []


def test_a_heavy_import_is_seen():
    assert loaded_after("import spmd_helpers; import numpy") == ["numpy"]


# One place for each fact.


def tracked() -> list[Path]:
    """Every file of the repository; without git, every file that isn't built."""
    done = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    names = done.stdout.splitlines() if done.returncode == 0 else []
    paths = [ROOT / name for name in names]
    if not paths:  # a copy without git
        built = re.compile(r"\.(?!ci|github|git[ia])|_build$|__pycache__$|dist$|work$")
        paths = [
            path
            for path in ROOT.rglob("*")
            if not any(built.match(part) for part in path.relative_to(ROOT).parts)
        ]
    return [p for p in paths if p.is_file()]


def texts():
    for path in tracked():
        if path.suffix in {".npz", ".png", ".woff2", ".gz"}:
            continue
        data = path.read_bytes()
        data = lzma.decompress(data) if path.suffix == ".xz" else data
        yield path.relative_to(ROOT).as_posix(), data.decode("utf8")


def config():
    return yaml.safe_load((ROOT / "_config.yml").read_text("utf8"))


def test_address_is_empty_or_an_address():
    address = config()["repository"]["url"]
    assert address == "" or re.fullmatch(r"https://[\w.-]+(/[\w.-]+)+", address)


def test_title_and_address_stand_in_the_config_only():
    settings = config()
    facts = [settings["title"], settings["repository"]["url"]]
    facts.append(settings["html"]["baseurl"])
    for name, text in texts():
        if name == "_config.yml" or name.startswith(("notebooks/", "solutions/")):
            continue  # the notebooks are generated from it
        if name in ("README.md", "book/index.md", "CITATION.cff"):
            facts_here = facts[1:]  # a heading may say the title
        else:
            facts_here = facts
        for fact in facts_here:
            assert not fact or fact not in text, f"{name} repeats {fact!r}"


LEAKS = re.compile(
    r"(?<![\w.])/(?!home/reader\b|tmp/ipykernel_|tmp/tpu_logs\b)(?:home|Users|root|work|tmp|opt)/\w+"
    r"|\.pyenv/versions/\d+\.\d+\.\d+"
)
# Lines that hold such a word on purpose: what they forbid, or a search path.
ALLOWED = {"tests/test_house.py", "tests/book/test_notebooks.py", "tools/book/run.py"}


def test_no_path_of_somebodys_machine():
    paths = [
        f"{name}: {match.group()}"
        for name, text in texts()
        if name not in ALLOWED
        for match in LEAKS.finditer(text)
    ]
    assert paths == []


def test_a_leak_is_seen():
    assert LEAKS.search("see /home/someone/book")
    assert not LEAKS.search("https://example.org/work/x and $HOME/x")


# A path in tools/, or a module of it that is run or imported. `NAME` is filled in.
TOOLS = re.compile(
    r"(?<![\w/.-])tools/(?:[\w.-]+/)*[\w.-]*\w"
    r"|(?:(?<=-m )|(?<=\"-m\", \")|(?<=from )|(?<=`))tools(?:\.\w+)+"
)
# What was stored keeps the words of its day, and the page's table of them.
STORED = (
    "src/spmd_helpers/_hardware/measurements/",
    "tests/data/hlo/",
    "tools/measure/page_tables.py",
)


def tool_is_there(named: str) -> bool:
    if named.startswith("tools/"):
        return (ROOT / named).exists() or named.endswith("/NAME.py")
    path = ROOT / named.replace(".", "/")
    # What follows a module may be a name in it.
    files = path.with_suffix(".py"), path.parent.with_suffix(".py")
    return path.is_dir() or any(file.exists() for file in files)


def test_every_tool_that_is_named_is_there():
    missing = {
        f"{name}: {match.group()}"
        for name, text in texts()
        if name != "tests/test_house.py"
        if not name.startswith(STORED) or name.endswith(".md")
        for match in TOOLS.finditer(text)
        if not tool_is_there(match.group())
    }
    assert missing == set()


def test_a_tool_that_is_gone_is_seen():
    text = "`tools/none.py --list`, bash tools/book/none.sh, python -m tools.book.none"
    named = TOOLS.findall(text + ', "-m", "tools.none.book"]')
    assert named == ["tools/none.py", "tools/book/none.sh"] + [
        *("tools.book.none", "tools.none.book")
    ]
    assert not any(map(tool_is_there, named))
    assert tool_is_there("tools.check.browser.browser_path")
    assert tool_is_there("tools/env/lab.sh")


# The lock.


def lock() -> list[str]:
    lines = (ROOT / "requirements.txt").read_text("utf8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def test_lock_pins_everything_by_name():
    pinned = r"[a-z0-9-]+==[\w.]+( ; [^@]+)?"
    assert [line for line in lock() if not re.fullmatch(pinned, line)] == []
    assert len(lock()) > 100


def test_lock_has_two_jax():
    assert [line for line in lock() if re.match(r"jax(lib)?==", line)] == [
        line
        for name in ("jax", "jaxlib")
        for line in (
            f"{name}==0.10.2 ; python_full_version < '3.12'",
            f"{name}==0.12.0.1 ; python_full_version >= '3.12'",
        )
    ]


def test_lock_has_what_pyproject_asks_for():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf8"))["project"]
    requirements = list(project["dependencies"])
    for extra in project["optional-dependencies"].values():
        requirements.extend(extra)
    names = {
        re.match(r"[\w-]+", requirement).group().lower() for requirement in requirements
    }
    pinned = {re.match(r"[a-z0-9-]+", line).group() for line in lock()}
    assert names - {project["name"]} <= pinned


def test_installed_versions_are_the_locked_ones():
    from importlib.metadata import version

    from packaging.requirements import Requirement

    wrong = []
    for line in lock():
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate():
            have = version(requirement.name)
            if not requirement.specifier.contains(have, prereleases=True):
                wrong.append(f"{requirement} is {have}")
    assert wrong == []


def test_the_wheel_does_not_ask_for_jax():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf8"))["project"]
    assert not [d for d in project["dependencies"] if "jax" in d]


# The commands.


def test_make_help_lists_every_command():
    makefile = (ROOT / "Makefile").read_text("utf8")
    commands = set(re.findall(r"^([a-z-]+):", makefile, re.M)) - {"environment"}
    shown = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True)
    listed = set(re.findall(r"^  ([a-z-]+) ", shown.stdout, re.M))
    assert listed == commands
    assert {"book", "test", "lab", "notebooks", "help"} <= listed


def stand_in(folder: Path, answers: str) -> str:
    """A program that poses as a Python and answers by `answers`, a shell text."""
    program = folder / "python9"
    program.write_text(f"#!/bin/sh\n{answers}\n")
    program.chmod(0o755)
    return str(program)


def require_python(python: str) -> subprocess.CompletedProcess:
    command = [
        "bash",
        "-c",
        'source tools/env/python.sh; require_python "$1"',
        "x",
        python,
    ]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def test_a_python_that_is_too_old(tmp_path):
    old = stand_in(tmp_path, 'case "$2" in *print*) echo 3.9.2 ;; *) exit 1 ;; esac')
    done = require_python(old)
    assert done.returncode == 1
    assert done.stderr == (
        f"This book needs Python 3.11 or newer; {old} is: 3.9.2.\n"
        "Point at another one:  PYTHON=/path/to/python3.13 make book\n"
    )


def test_a_python_that_does_not_run(tmp_path):
    done = require_python(stand_in(tmp_path, "exit 127"))
    assert done.returncode == 1
    assert "is: none that runs." in done.stderr


def test_a_python_that_is_not_there():
    done = require_python("nosuchpython")
    assert done.returncode == 1
    assert done.stderr == (
        "This book needs Python 3.11 or newer, and nosuchpython was not found.\n"
        "Point at another one:  PYTHON=/path/to/python3.13 make book\n"
    )


def test_a_python_without_venv(tmp_path):
    split = 'case "$2" in *venv*) exit 1 ;; *print*) echo 3.11.2 ;; esac'
    done = require_python(stand_in(tmp_path, split))
    assert done.returncode == 1
    assert "has no venv or ensurepip module" in done.stderr
    assert "apt install python3-venv" in done.stderr


def test_this_python_is_good_enough():
    done = require_python(sys.executable)
    assert (done.returncode, done.stderr) == (0, "")


# A Python in a shell: it says its version, makes an environment that is a copy of
# itself, and its pip is content.
SHELL_PYTHON = """\
case "$1 $2" in
    *_base_executable*) echo "$0" ;;
    *print*) echo {major}.{minor}.0 ;;
    "-c "*) case "$2" in
        *"< (3, "*) want=${{2##*< (3, }}; exit $(({minor} < ${{want%%)*}})) ;;
        esac ;;
    "-m venv") mkdir -p "$3/bin"; cp "$0" "$3/bin/python" ;;
esac"""


PIP_FAILS = """\
    "-m pip") echo no network; exit 1 ;;
esac"""


def shell_python(folder: Path, minor: int) -> str:
    folder.mkdir(exist_ok=True)
    return stand_in(folder, SHELL_PYTHON.format(major=3, minor=minor))


def test_a_newer_python_is_let_through_with_one_line(tmp_path):
    done = require_python(shell_python(tmp_path, 14))
    assert done.returncode == 0
    assert done.stderr == (
        "== Python 3.14.0: what is pinned installs, the tests run on 3.11 to 3.13\n"
    )
    assert require_python(shell_python(tmp_path, 13)).stderr == ""


def chosen_python(folder: Path, command: str) -> str:
    """The name of the Python that a function of python.sh prints."""
    done = subprocess.run(
        ["/bin/bash", "-c", f"source tools/env/python.sh; {command}"],
        cwd=ROOT,
        env={"PATH": f"{folder}:/nowhere", "PYENV_ROOT": str(folder / "pyenv")},
        capture_output=True,
        text=True,
    )
    return done.stdout.strip().removeprefix(f"{folder}/")


def test_the_newest_python_that_was_tried_comes_first(tmp_path):
    pyenv = tmp_path / "pyenv" / "versions" / "3.13.0" / "bin"
    pyenv.mkdir(parents=True)
    assert chosen_python(tmp_path, "find_newest_python") == "python3"
    for name, minor, first in (
        ("python3", 14, "python3"),
        ("python3.14", 14, "python3"),
        ("python3.11", 11, "python3.11"),
        ("python3.12", 12, "python3.12"),
        ("pyenv/versions/3.13.0/bin/python", 13, "pyenv/versions/3.13.0/bin/python"),
        ("python3", 13, "python3"),
        ("python3.13", 13, "python3.13"),
    ):
        Path(shell_python(tmp_path, minor)).rename(tmp_path / name)
        assert chosen_python(tmp_path, "find_newest_python") == first


def test_a_python_of_one_version(tmp_path):
    for name, minor in (("python3", 12), ("python3.11", 11)):
        Path(shell_python(tmp_path, minor)).rename(tmp_path / name)
    assert chosen_python(tmp_path, "find_python 3.11") == "python3.11"
    assert chosen_python(tmp_path, "find_python 3.12") == "python3"
    assert chosen_python(tmp_path, "find_python 3.13") == ""
    assert chosen_python(tmp_path, "find_python 3.13 3.12") == "python3"


@pytest.fixture
def small_checkout(tmp_path):
    """The tools, a lock of three lines and two packages, and a notebook."""
    root = tmp_path / "checkout"
    shutil.copytree(ROOT / "tools", root / "tools")
    (root / "requirements.txt").write_text("a==1 ; x\na==2 ; y\nb==1\n")
    (root / "pyproject.toml").write_text("")
    (root / "notebooks").mkdir()
    (root / "notebooks" / "01_x.ipynb").write_text("as generated")
    return root


def run_environment(root: Path, *python: str, **variables: str):
    return subprocess.run(
        ["bash", "tools/env/environment.sh", ".venv", *python],
        cwd=root,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
    )


def make_environment(root: Path, *python: str, **variables: str) -> str:
    done = run_environment(root, *python, **variables)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_an_environment_is_made_once(small_checkout, tmp_path):
    python = shell_python(tmp_path, 11)
    assert "installing 2 pinned packages" in make_environment(small_checkout, python)
    assert make_environment(small_checkout, python) == ""
    (small_checkout / "pyproject.toml").write_text("# changed")
    said = make_environment(small_checkout, python)
    assert "installing" in said
    assert "making it again" not in said


def test_an_environment_of_an_older_python_is_made_again(small_checkout, tmp_path):
    """Unless that Python was asked for, once or now, also when the pins change."""
    path = {"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin", "PYENV_ROOT": "/nowhere"}
    older, newer = (tmp_path / "bin" / f"python3.{minor}" for minor in (11, 13))
    Path(shell_python(tmp_path / "bin", 11)).rename(older)
    assert "Python 3.11.0" in make_environment(small_checkout, **path)
    Path(shell_python(tmp_path / "bin", 13)).rename(newer)
    again = ".venv has Python 3.11, and 3.13 is here now: making it again"
    said = make_environment(small_checkout, **path)
    assert again in said
    assert "Python 3.13.0" in said
    assert make_environment(small_checkout, **path) == ""
    shutil.rmtree(small_checkout / ".venv")
    assert "Python 3.11.0" in make_environment(small_checkout, str(older), **path)
    assert make_environment(small_checkout, **path) == ""
    (small_checkout / "pyproject.toml").write_text("# changed")
    assert again not in make_environment(small_checkout, **path)
    assert make_environment(small_checkout, **path) == ""


def test_the_python_that_is_named_makes_the_environment(small_checkout, tmp_path):
    """Also again, where the environment has another one."""
    older = shell_python(tmp_path / "older", 11)
    newer = shell_python(tmp_path / "newer", 13)
    make_environment(small_checkout, older)
    said = make_environment(small_checkout, newer)
    assert f".venv has Python 3.11, and PYTHON names {newer}: making it again" in said
    assert make_environment(small_checkout, newer) == ""
    assert not (small_checkout / ".venv.old").exists()


def test_what_cannot_be_replaced_comes_back(small_checkout, tmp_path):
    """Without a network pip fails: what was there is there again, and its stamp."""
    path = {"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin", "PYENV_ROOT": "/nowhere"}
    older, newer = (tmp_path / "bin" / f"python3.{minor}" for minor in (11, 13))
    Path(shell_python(tmp_path / "bin", 11)).rename(older)
    make_environment(small_checkout, **path)
    (small_checkout / ".venv" / "mine").touch()
    stamp = (small_checkout / ".venv" / ".installed").read_text()
    broken = SHELL_PYTHON.removesuffix("esac") + PIP_FAILS
    Path(stand_in(tmp_path / "bin", broken.format(major=3, minor=13))).rename(newer)
    said = make_environment(small_checkout, **path)  # 3.11 still does
    assert "3.13 is here now: making it again" in said
    assert (small_checkout / ".venv" / "mine").exists()
    assert (small_checkout / ".venv" / ".installed").read_text() == stamp
    done = run_environment(small_checkout, str(newer), **path)
    assert done.returncode == 1
    assert "no network" in done.stderr
    assert "What was in .venv before is there again." in done.stderr
    assert (small_checkout / ".venv" / "mine").exists()


def test_a_named_python_is_remembered_when_pip_fails(small_checkout, tmp_path):
    path = {"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin", "PYENV_ROOT": "/nowhere"}
    newer = tmp_path / "bin" / "python3.13"
    Path(shell_python(tmp_path / "bin", 13)).rename(newer)
    older = shell_python(tmp_path, 11)
    make_environment(small_checkout, older, **path)
    (small_checkout / "pyproject.toml").write_text("# changed")
    python = small_checkout / ".venv" / "bin" / "python"
    works = python.read_text()
    python.write_text(works.removesuffix("esac\n") + PIP_FAILS)
    assert run_environment(small_checkout, **path).returncode == 1
    python.write_text(works)
    assert "making it again" not in make_environment(small_checkout, **path)


def test_an_environment_of_another_program_may_be_the_one_in_use(
    small_checkout, tmp_path
):
    """Its Python is the newest on PATH and goes with it: its base makes the new one."""
    base = shell_python(tmp_path / "base", 13)
    own = small_checkout / ".venv" / "bin" / "python3.13"
    own.parent.mkdir(parents=True)
    own.write_text(Path(base).read_text().replace('echo "$0"', f'echo "{base}"'))
    own.chmod(0o755)
    shutil.copy(own, own.with_name("python"))
    path = {"PATH": f"{own.parent}:/usr/bin:/bin", "PYENV_ROOT": "/nowhere"}
    said = make_environment(small_checkout, **path)
    assert "(moved, copied, or by another program): making it again" in said
    assert f"Python 3.13.0 ({base})" in said


def test_an_environment_that_moved_is_made_again(small_checkout, tmp_path):
    python = shell_python(tmp_path, 11)
    make_environment(small_checkout, python)
    moved = tmp_path / "moved"
    small_checkout.rename(moved)
    (moved / ".venv" / "old").touch()
    assert "making it again" in make_environment(moved, python)
    assert not (moved / ".venv" / "old").exists()
    assert make_environment(moved, python) == ""


def test_an_environment_that_is_too_old_is_made_again(small_checkout, tmp_path):
    python = shell_python(tmp_path, 11)
    make_environment(small_checkout, python)
    old = shell_python(tmp_path / "old", 10)
    shutil.copy(old, small_checkout / ".venv" / "bin" / "python")
    said = make_environment(small_checkout, python)
    assert ".venv does not run Python 3.11 or newer: making it again" in said


def test_lab_opens_copies_and_keeps_answers(small_checkout, tmp_path):
    jupyter = tmp_path / "bin" / "jupyter"
    jupyter.parent.mkdir()
    jupyter.write_text('#!/bin/sh\necho "$@"\n')
    jupyter.chmod(0o755)
    command = ["bash", "tools/env/lab.sh", str(jupyter.parent), "--allow-root"]

    def lab() -> str:
        done = subprocess.run(
            command, cwd=small_checkout, capture_output=True, text=True, check=True
        )
        assert re.search(r"^lab my-notebooks .* --allow-root$", done.stdout, re.M)
        return done.stdout

    assert "1 notebooks copied, 0 kept" in lab()
    mine = small_checkout / "my-notebooks" / "01_x.ipynb"
    assert mine.read_text() == "as generated"
    mine.write_text("my answers")
    assert "0 notebooks copied, 1 kept" in lab()
    assert mine.read_text() == "my answers"


def test_git_ignores_the_readers_copies():
    assert "/my-notebooks/" in (ROOT / ".gitignore").read_text("utf8").splitlines()


def test_a_browser_that_is_named_must_be_there(tmp_path):
    def browser(named: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [sys.executable, "-m", "tools.check.browser"],
            cwd=ROOT,
            env=dict(os.environ, CHROMIUM=named),
            capture_output=True,
            text=True,
        )

    there = stand_in(tmp_path, "exit 0")
    assert browser(there).stdout.strip() == there
    missing = browser(str(tmp_path / "nothing"))
    assert missing.returncode == 1
    assert "which is no program" in missing.stderr


@pytest.mark.parametrize(
    "name", ["src/spmd_helpers/_draw.py", "src/spmd_helpers/_hlo/x.py", "book/x.md"]
)
def test_what_the_site_is_made_from(tmp_path, name):
    from tools.book.build_site import digest

    before = digest(tmp_path)
    (tmp_path / name).parent.mkdir(parents=True)
    (tmp_path / name).write_text("x")
    assert digest(tmp_path) != before


def test_what_the_steps_counted_is_added_up(capsys):
    """Both tiers of an environment together; a step without tests that fails is one."""
    from tools.check.run_tests import SECOND, Steps, answers_said

    def say(*lines: str, code: int = 0) -> list[str]:
        program = "".join(f"print({line!r})\n" for line in lines)
        return [sys.executable, "-c", f"{program}raise SystemExit({code})"]

    steps = Steps()
    three = "answers of chapter 03: {} wrong, 1 stubs, 0 misjudged"
    assert steps.run("short", *say(three.format(9), "7 passed, 2 skipped in 1.00s"))
    lint = ("lint", *say("Found 3 errors in 2 files", code=1))
    more = ("more", *say("installed"))
    steps.run_beside([lint, more], "site", *say("built in 20 s"))
    assert not steps.run(
        "long", *say(three.format(20), "1 failed, 10 passed in 2s", code=1)
    )
    four = "answers of chapter 04: 6 solutions, 3 wrong, 1 misjudged"
    assert steps.run(f"{SECOND}: tests", *say(four, "5 passed in 3s"))
    assert steps.failed == ["lint", "long"]
    assert [*steps.seconds] == [
        "short",
        "site",
        "lint",
        "more",
        "long",
        f"{SECOND}: tests",
    ]
    assert steps.counts == {"passed": 22, "skipped": 2, "failed": 2}
    assert answers_said(steps.answers) == [
        "answers to exercises, first environment: 29 wrong, 2 stubs, 0 misjudged",
        "  03: 29 wrong, 2 stubs, 0 misjudged",
        f"answers to exercises, {SECOND}: 6 solutions, 3 wrong, 1 misjudged",
        "  04: 6 solutions, 3 wrong, 1 misjudged",
    ]
    assert answers_said({}) == []
    out = capsys.readouterr().out
    assert "built in 20 s\n\n== lint\nFound 3 errors" in out
    assert out.count("== more\ninstalled\n") == 1


@pytest.mark.parametrize(
    ("test", "shares"),
    [
        ("tests/hlo/test_work.py::test_x[10-a::b]", "tests/hlo/test_work.py"),
        ("tests/explain/test_rules.py::test_x", "tests/explain/"),
        ("tests/compilers/test_taught.py::test_x[10-tpu]", "10"),
        (
            "tests/compilers/test_taught.py::test_x[tpu]",
            "tests/compilers/test_taught.py",
        ),
        ("src/spmd_helpers/_a/b.py::spmd_helpers._a.b", "src/spmd_helpers/_a/b.py"),
    ],
)
def test_which_tests_one_process_runs(test, shares):
    from tests.conftest import shared_by

    assert shared_by(test).removeprefix("tests/compilers/test_taught.py::") == shares
