"""The cells of the chapters, and how they run without a kernel."""

import linecache
from pathlib import Path

import nbformat
from IPython.core.inputtransformer2 import TransformerManager

ROOT = Path(__file__).parents[2]
CHAPTERS = sorted((ROOT / "solutions").glob("*.ipynb"))


def read(folder: str, chapter: str):
    """The cells of chapter "01" … in "notebooks" or "solutions"."""
    name = next(path.name for path in CHAPTERS if path.name.startswith(chapter))
    return nbformat.read(ROOT / folder / name, as_version=4).cells


def grade_id(cell) -> str:
    """The name of an exercise's cell, "" for the others."""
    return cell.metadata.get("nbgrader", {}).get("grade_id", "")


def run(source: str, names: dict, what: str) -> None:
    """Run a cell's text with these global names; errors call it ``<what>``."""
    code = TransformerManager().transform_cell(source)
    lines = code.splitlines(True)  # as in a kernel, inspect.getsource finds it
    linecache.cache[f"<{what}>"] = (len(code), None, lines, f"<{what}>")
    exec(compile(code, f"<{what}>", "exec"), names)
