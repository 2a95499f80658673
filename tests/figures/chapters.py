"""Cells of chapters, to run what their figures draw."""

from pathlib import Path

BOOK = Path(__file__).parents[2] / "book" / "chapters"


def cell(chapter: str, start: str) -> str:
    """The code of the cell that has the text `start`."""
    (path,) = BOOK.glob(f"{chapter}_*.md")
    parts = path.read_text("utf8").split("```")
    (body,) = [p for p in parts if p.startswith("{code-cell}") and start in p]
    lines = body.splitlines()[1:]
    return "\n".join(line for line in lines if not line.startswith(":tags:"))


def run(source: str, *changes: tuple[str, str], **names):
    """The names that a cell defines, after each change of its text."""
    for old, new in changes:
        assert source.count(old) == 1, old
        source = source.replace(old, new)
    exec(compile(source, "cell", "exec"), names)
    return names
