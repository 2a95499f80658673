"""A line of a program: whether it is the reader's own, and how it is named."""

import re
from pathlib import PurePosixPath

# Not the reader's own code: installed packages, Python itself, this package.
_FOREIGN = re.compile(
    r"/(?:site|dist)-packages/|/lib/python\d[\d.]*/|/spmd_helpers/_\w+(?:/\w+)*\.py$"
    r"|^<frozen "
)
_NOTEBOOK = re.compile(r"(?:^|/)ipykernel_\d+/|^<ipython-input-")


def is_foreign(file: str) -> bool:
    """Whether a file is not the reader's own: a library, Python, this package."""
    return bool(_FOREIGN.search(file.replace("\\", "/")))


def place_name(file: str, line: int) -> str:
    """'train.py:12', or 'notebook cell, line 3' for a file of a notebook kernel."""
    if _NOTEBOOK.search(file.replace("\\", "/")):
        return f"notebook cell, line {line}"
    return f"{PurePosixPath(file.replace(chr(92), '/')).name}:{line}"
