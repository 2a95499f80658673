"""An instructor's own checks, from a Python file or a notebook."""

import re
from pathlib import Path

from .plan import Step
from .submission import CannotGrade, read_cells

_HEAD = re.compile(r"#\s*(?:%%)?\s*\[(\d+(?:\.\d+)?) points?\]\s*(\S.*)")


def read_extra_checks(path: Path) -> tuple[Step, ...]:
    """The steps of a file of extra checks, in its order.

    A Python file is cut at its lines `# %%`; of a notebook each code cell counts. A
    piece whose first line is `# %% [2 points] What it asks` (in a notebook also
    without `%%`) is a check, right when it runs to its end; the words of its first
    failing assert are what is reported. Any other piece (imports, helpers) is run.

    Args:
        path: `checks.py` or `checks.ipynb`.

    Returns:
        A `Step` for each piece.

    Raises:
        CannotGrade: when it can't be read, has no check, or two of one title.
    """
    if path.suffix == ".ipynb":
        pieces = [cell.source for cell in read_cells(path)]
    else:
        try:
            text = path.read_text("utf8")
        except (OSError, UnicodeDecodeError) as error:
            raise CannotGrade(f"--extra-checks {path} can't be read: {error}") from None
        pieces = re.split(r"^(?=# %%)", text, flags=re.M)
    steps: list[Step] = []
    titles: list[str] = []
    for piece in pieces:
        source = piece.strip("\n")
        if not source.strip():
            continue
        try:
            compile(source, str(path), "exec")
        except SyntaxError as error:
            raise CannotGrade(
                f"--extra-checks {path}: {error.msg}: {error.text}"
            ) from None
        head = _HEAD.match(source)
        if head is None:
            where = "a cell of the extra checks"
            steps.append(Step("given", source, where, is_extra=True))
            continue
        points, title = float(head[1]), head[2].strip()
        if title in titles:
            raise CannotGrade(f"--extra-checks {path}: two checks are called {title!r}")
        titles.append(title)
        where = f"the extra check {title!r}"
        check = Step("check", source, where, title, (), title, points, is_extra=True)
        steps.append(check)
    if not titles:
        raise CannotGrade(
            f"--extra-checks {path}: no check in it; begin each one with a line like "
            "`# %% [2 points] The loss stays finite`"
        )
    return tuple(steps)
