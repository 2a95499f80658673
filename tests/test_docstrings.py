"""What ruff's rules for docstrings leave open: how far a section is indented."""

import ast
import inspect
import itertools
import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "src" / "spmd_helpers"
SECTION = re.compile(r"(?:Args|Attributes|Example|Raises|Returns|Yields):")


def crooked(source: str) -> list[str]:
    """The sections whose first line isn't four columns further in than their head."""
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    sections = []
    for node in ast.walk(ast.parse(source)):
        text = ast.get_docstring(node, clean=False) if isinstance(node, kinds) else None
        lines = inspect.cleandoc(text or "").splitlines()
        for head, first in itertools.pairwise([*lines, ""]):
            if SECTION.fullmatch(head) and not re.match(r" {4}\S", first):
                sections.append(f"{getattr(node, 'name', 'module')}: {head}")
    return sections


@pytest.mark.parametrize(
    "path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: path.stem
)
def test_sections_are_indented_alike(path):
    assert crooked(path.read_text("utf8")) == []


@pytest.mark.parametrize("inside", ["  x: two.", "\n    x: after a gap.", ""])
def test_another_indentation_is_seen(inside):
    text = f'def f(x):\n    """Do it.\n\n    Args:\n    {inside}\n    """\n'
    assert crooked(text) == ["f: Args:"]


def test_four_columns_are_right():
    text = 'def f(x):\n    """Do it.\n\n    Args:\n        x: four.\n    """\n'
    assert crooked(text) == []
