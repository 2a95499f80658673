"""Run stored notebooks again with nbval, in the kernels that made them.

    python -m tools.check.notebooks              all: stored outputs must come out again
    python -m tools.check.notebooks solutions    those of this folder

A page outside the chapters has no exercises, so it counts among the solutions; `pages`
names these alone.

Outputs are the same on every JAX that the book speaks of, but for cells with the tag
`differs-with-jax`, whose text says what differs: on another JAX than the one that made
the outputs, those only have to run. What else is given goes to pytest.
"""

import subprocess
import sys
from pathlib import Path

import nbformat

from tools.book.book import ROOT, makes_outputs, read_book
from tools.book.run import SECONDS, kernel_environment
from tools.check.run_tests import PROCESSES

FOLDERS = ("notebooks", "solutions", "pages")
DIFFERS = "differs-with-jax"


def with_differences(paths: list[Path], folder: Path) -> list[Path]:
    """The notebooks, or copies in `folder` where a cell may print something else."""
    return [
        _copy(path, folder) if DIFFERS in path.read_text("utf8") else path
        for path in paths
    ]


def _copy(path: Path, folder: Path) -> Path:
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        if DIFFERS in cell.metadata.get("tags", []):
            cell.metadata.tags.append("nbval-ignore-output")
    copy = folder / path.parent.name / path.name
    copy.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, copy)
    return copy


def main(arguments: list[str], root: Path = ROOT) -> int:
    named = {a for a in arguments if a in FOLDERS} or {*FOLDERS}
    rest = [a for a in arguments if a not in FOLDERS]
    book = read_book(root)
    pages = {master.stem for master in book.pages}
    of_pages = {"pages", "solutions"}
    chosen = [
        path
        for path in book.generated()
        if named & (of_pages if path.stem in pages else {path.parent.name})
    ]
    if not chosen:
        print("no notebooks to check: run `make notebooks`", file=sys.stderr)
        return 1
    if not makes_outputs():
        chosen = with_differences(chosen, root / "_build" / "other-jax")
    command = [
        *(sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--noconftest"),
        *("-n", PROCESSES, "--dist", "loadfile"),
        *("--nbval", "--nbval-current-env", f"--nbval-cell-timeout={SECONDS}"),
        f"--nbval-sanitize-with={ROOT / 'tests' / 'nbval_sanitize.cfg'}",
        *(rest or ["-q"]),
        *map(str, chosen),
    ]
    with kernel_environment() as environment:
        return subprocess.run(command, cwd=root, env=environment).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
