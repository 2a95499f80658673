"""A master chapter becomes the reader's notebook and the solved one.

A master is a MyST notebook, `book/chapters/NN_slug.md`. One in `book/pages/` becomes
a page outside the chapters: a reader's notebook alone, without exercises. What its
tags mean:

`setup`
    The first code cell. Its line `import spmd_helpers as spmd` becomes the text
    of `setup_cell.py`.

`exercise-2.1` and `check-2.1, points-2`
    An exercise and the cell that checks it, in this order. They get nbgrader's
    metadata with the grade ids `ch02-ex1` and `ch02-ex1-check`. Both the stub
    and the solution are written in the exercise cell:

        answer = ...                        def copies(spec):
        ### BEGIN SOLUTION                      ### BEGIN SOLUTION
        answer = 4                              return 4
        ### END SOLUTION                        ### END SOLUTION
                                                raise NotImplementedError

    A stub is either lines `name = ...` straight above the region, or
    `raise NotImplementedError` straight below it. nbgrader's ClearSolutions,
    with an empty `code_stub`, cuts the region, and what is left is the stub:
    the same on its own release of such a cell. The solved notebook loses the
    stub and the two marker lines. `### BEGIN HIDDEN TESTS` works in check cells.
    A check is one call, in three lines at most, of the exercise's own number:
    `check("2.1", answer)`. Its code is in `src/spmd_exercises/ch02.py`.

`differs-with-jax`
    The output is another one on another JAX, and the text below says what differs.
    The notebooks have three such cells at most.

Any other tag (`hide-input`, `claim-3`, ...) is kept as it is. Markdown must be
what plain Jupyter and Colab can show: no directives, no roles, no targets.
"""

import ast
import copy
import hashlib
import re
from pathlib import Path

import jupytext
import nbformat
from nbgrader.preprocessors import (
    ClearHiddenTests,
    ClearSolutions,
    ComputeChecksums,
    LockCells,
)
from nbgrader.preprocessors.base import NbGraderPreprocessor
from traitlets.config import Config

from tools.book.book import Book, BookError
from tools.book.setup_cell import IMPORT_LINE, preamble

GENERATOR = 7  # raise it when this file changes what it writes
CODE_COLUMNS = 72  # what the site's column shows without scrolling

KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}
LANGUAGE = {
    "codemirror_mode": {"name": "ipython", "version": 3},
    "file_extension": ".py",
    "mimetype": "text/x-python",
    "name": "python",
    "nbconvert_exporter": "python",
    "pygments_lexer": "ipython3",
}
CLEAR = Config({"ClearSolutions": {"code_stub": {"python": ""}}})
BEGIN, END = "### BEGIN SOLUTION", "### END SOLUTION"
MARKER = re.compile(r"\s*### (BEGIN|END) (SOLUTION|HIDDEN TESTS)\s*")
ANSWER_STUB = re.compile(r"[A-Za-z_]\w* = \.\.\.")
FUNCTION_STUB = re.compile(r"\s+raise NotImplementedError")
NOT_PLAIN = (
    (re.compile(r"^\s*(`{3,}|~{3,}|:{3,})\s*\{", re.M), "a directive"),
    (re.compile(r"^\s*:{3,}", re.M), "a colon fence"),
    (re.compile(r"\{[\w:+-]+\}`"), "a role"),
    (re.compile(r"^\([^()\s]+\)=\s*$", re.M), "a target"),
    (re.compile(r"^%", re.M), "a MyST comment"),
)
PAGE = "page"  # how the ids of the cells of a page begin


def both_notebooks(master: Path, book: Book):
    """(reader's notebook, solved notebook), without outputs."""
    source = _parse(master, book)
    solved = copy.deepcopy(source)
    for cell in solved.cells:
        if cell.cell_type == "code":
            cell.source = _solved(cell.source)
    title = solved.cells[0]
    if not title.source.startswith("# "):
        raise BookError(f"{book.name_of(master)}: must begin with its title, `# ...`")
    title.source = re.sub(r"^# .*", r"\g<0> (solved)", title.source)
    reader = copy.deepcopy(source)
    for step in (ClearSolutions, ClearHiddenTests, LockCells):
        reader = _apply(step, reader)
    for cell in reader.cells:
        cell.source = _tidy(cell.source)
    return _apply(ComputeChecksums, reader), solved


def source_notebook(master: Path, book: Book):
    """nbgrader's source version: stubs, solutions and the marks around them."""
    return _parse(master, book)


def code_hash(notebook) -> str:
    """Identifies the code that a notebook's outputs came from."""
    text = "\0".join(c.source for c in notebook.cells if c.cell_type == "code")
    return hashlib.sha256(text.encode()).hexdigest()


def _apply(step: type[NbGraderPreprocessor], notebook):
    return step(config=CLEAR, enabled=True).preprocess(notebook, {})[0]


def _parse(master: Path, book: Book):
    text = master.read_text("utf8")
    where = book.name_of(master)
    prefix = PAGE if master in book.pages else f"ch{master.name[:2]}"
    notebook = jupytext.reads(text, fmt="md:myst")
    inputs = "\0".join((str(GENERATOR), preamble(book, text), text))
    notebook.metadata = nbformat.from_dict(
        {
            "kernelspec": KERNEL,
            "language_info": LANGUAGE,
            "spmd": {
                "master": where,
                "inputs": hashlib.sha256(inputs.encode()).hexdigest(),
            },
        }
    )
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    used: dict[str, int] = {}
    exercises: dict[str, set[str]] = {}
    code_cells = 0
    for number, cell in enumerate(notebook.cells, 1):
        at = f"{where}, cell {number}"
        cell.source = _tidy(cell.source)
        if cell.cell_type == "markdown":
            _require_plain(cell.source, at)
            cell.id = _content_id(cell, prefix, used)
            continue
        if cell.cell_type != "code":
            raise BookError(f"{at}: a {cell.cell_type} cell; use markdown or code")
        code_cells += 1
        tags = cell.metadata.get("tags", [])
        is_setup = "setup" in tags
        if is_setup != (code_cells == 1):
            raise BookError(
                f"{at}: the tag `setup` belongs on the first code cell, and only there"
            )
        graded = _grade(tags, prefix, at)
        if is_setup:
            if cell.source.splitlines().count(IMPORT_LINE) != 1:
                raise BookError(f"{at}: the setup cell needs one line {IMPORT_LINE!r}")
            cell.source = cell.source.replace(IMPORT_LINE, preamble(book, text))
            cell.id = f"{prefix}-setup"
        elif graded:
            cell.id = graded["grade_id"]
            cell.metadata["nbgrader"] = nbformat.from_dict(graded)
            _note_exercise(graded, exercises, at)
        else:
            cell.id = _content_id(cell, prefix, used)
        if "hide-input" in tags:
            _fold(cell)
        _require_good_code(cell, graded, at)
    if not code_cells:
        raise BookError(f"{where}: no code cell")
    for grade_id, parts in exercises.items():
        if parts != {"stub", "check"}:
            raise BookError(f"{where}: {grade_id} has no check cell")
    return notebook


def _fold(cell: nbformat.NotebookNode) -> None:
    """Hide a cell's code until a reader opens it, not only on the site."""
    cell.metadata["cellView"] = "form"  # Colab
    cell.metadata["jupyter"] = {"source_hidden": True}  # JupyterLab
    cell.metadata["_kg_hide-input"] = True  # Kaggle


def _grade(tags: list[str], prefix: str, at: str) -> dict | None:
    """nbgrader's metadata for a cell's tags, or None for an ordinary cell."""
    kinds = [t for t in tags if re.match(r"(exercise|check)-", t)]
    points = [t for t in tags if t.startswith("points-")]
    if not kinds and not points:
        return None
    if prefix == PAGE:
        raise BookError(
            f"{at}: the tags {tags} need a chapter; a page has no exercises"
        )
    chapter = int(prefix.removeprefix("ch"))
    match = len(kinds) == 1 and re.fullmatch(
        rf"(exercise|check)-{chapter}\.([1-9]\d*)", kinds[0]
    )
    if not match:
        raise BookError(
            f"{at}: the tags {tags} need exactly one of exercise-{chapter}.N and "
            f"check-{chapter}.N"
        )
    kind, number = match.groups()
    is_check = kind == "check"
    if is_check != (len(points) == 1) or (points and not points[0][7:].isdigit()):
        raise BookError(f"{at}: a check cell, and only it, has one tag points-N")
    graded = {
        "grade": is_check,
        "grade_id": f"{prefix}-ex{number}" + ("-check" if is_check else ""),
        "locked": is_check,
        "schema_version": 3,
        "solution": not is_check,
        "task": False,
    }
    if is_check:
        graded["points"] = int(points[0][7:])
    return graded


def _note_exercise(graded: dict, exercises: dict[str, set[str]], at: str) -> None:
    name = graded["grade_id"].removesuffix("-check")
    part = "check" if graded["grade"] else "stub"
    parts = exercises.setdefault(name, set())
    if part in parts:
        raise BookError(f"{at}: a second {part} cell for {name}")
    if part == "check" and "stub" not in parts:
        raise BookError(f"{at}: the check of {name} stands before its stub")
    parts.add(part)


def _content_id(cell, prefix: str, used: dict[str, int]) -> str:
    """An id that depends on the cell's text and not on its place."""
    text = f"{cell.cell_type}\0{cell.source}"
    name = f"{prefix}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    used[name] = used.get(name, 0) + 1
    return name if used[name] == 1 else f"{name}-{used[name]}"


def _require_plain(text: str, at: str) -> None:
    outside = re.sub(r"^(`{3,})\w*\n.*?^\1\s*$", "", text, flags=re.M | re.S)
    for pattern, what in NOT_PLAIN:
        misplaced = pattern.search(outside)
        if misplaced:
            raise BookError(
                f"{at}: {what} ({misplaced.group().strip()!r}); Colab would show it as "
                "raw text, so write it in plain Markdown"
            )


def _require_good_code(cell, graded: dict | None, at: str) -> None:
    lines = cell.source.splitlines()
    for line in lines:
        if len(line) > CODE_COLUMNS:
            raise BookError(f"{at}: {len(line)} columns, over {CODE_COLUMNS}: {line!r}")
    if lines and lines[-1].rstrip().endswith(";"):
        raise BookError(f"{at}: ends with ';', which nbval does not honor")
    for tag in ("raises-exception", "nbval-ignore-output", "nbval-skip"):
        if tag in cell.metadata.get("tags", []):
            raise BookError(f"{at}: the tag {tag} would hide a failure")
    solution = graded is not None and graded["solution"]
    if solution != (BEGIN in cell.source):
        raise BookError(f"{at}: a cell tagged exercise, and only it, has {BEGIN!r}")
    if solution:
        _without_stubs(lines, at)
    elif graded is not None:
        _require_one_check(cell.source, graded["grade_id"], at)


def _require_one_check(source: str, grade_id: str, at: str) -> None:
    """A check is one line; what an instructor hides below it is free."""
    chapter, exercise = re.findall(r"\d+", grade_id)
    number = f"{int(chapter)}.{exercise}"
    shown = source.partition("### BEGIN HIDDEN TESTS")[0].strip()
    call = re.match(rf'check\(\s*"{re.escape(number)}", ', shown)
    if not call or shown.count("\n") > 2 or len(ast.parse(shown).body) != 1:
        raise BookError(
            f"{at}: a check is one call, in three lines at most: write"
            f' `check("{number}", answer)`, and its code in src/spmd_exercises/'
        )


def _without_stubs(lines: list[str], at: str = "") -> list[str]:
    """The lines of an exercise cell less its stubs, one for each region."""
    drop: set[int] = set()
    for begin in (i for i, line in enumerate(lines) if line.strip() == BEGIN):
        end = next((i for i in range(begin, len(lines)) if lines[i].strip() == END), 0)
        if not end:
            raise BookError(f"{at}: {BEGIN!r} without {END!r}")
        above = begin
        while above and ANSWER_STUB.fullmatch(lines[above - 1]):
            above -= 1
        below = end + 1
        if above < begin:
            drop.update(range(above, begin))
        elif below < len(lines) and FUNCTION_STUB.fullmatch(lines[below]):
            drop.add(below)
        else:
            raise BookError(
                f"{at}: no stub at the solution; write `name = ...` straight above "
                f"{BEGIN!r}, or `raise NotImplementedError` straight below {END!r}"
            )
    return [line for i, line in enumerate(lines) if i not in drop]


def _solved(source: str) -> str:
    kept = _without_stubs(source.splitlines())
    return _tidy("\n".join(line for line in kept if not MARKER.fullmatch(line)))


def _tidy(source: str) -> str:
    """No trailing blanks, no blank line where a solution was cut out."""
    text = "\n".join(line.rstrip() for line in source.splitlines())
    text = re.sub(r"\n\n+(    +raise NotImplementedError$)", r"\n\1", text, flags=re.M)
    return text.strip("\n")
