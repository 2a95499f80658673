"""The first cell of every notebook: import the package, or install it.

A master writes only `import spmd_helpers as spmd` in its cell tagged `setup`. The
generator replaces that line by TEXT, the same whether the repository's address is
known or not. On Colab and Kaggle it installs the package and then, by
`spmd.require`, whatever else is missing or too old; everywhere else it installs
nothing and says in one sentence what to type. Colab shows the cell as a form and
JupyterLab folds it away.
"""

import re

from tools.book.book import Book

IMPORT_LINE = "import spmd_helpers as spmd"

# What chapters import and the wheel does not bring: module -> what pip calls it.
LIBRARIES = {
    "flax": "flax",
    "ipywidgets": "ipywidgets",
    "optax": "optax",
    "orbax.checkpoint": "orbax-checkpoint",
}

# `{source}` is what pip installs where no wheel lies beside the notebook: the tag of
# the repository that made this notebook, or nothing while there is no address. The two
# variables are what the package's `hosted` asks, which is not there yet. The error
# shows its sentence alone, and is no ImportError: Colab adds its own advice to those.
TEXT = """\
# @title Set-up: run this cell first {{ display-mode: "form" }}
from importlib.util import find_spec

if not find_spec("spmd_helpers"):
    import os, sys
    from pathlib import Path

    whl = "spmd_helpers-*-any.whl"
    wheels = [*Path().glob(whl), *Path("/kaggle/input").rglob(whl)]
    source = max(wheels, key=os.path.getmtime, default={source})
    hosts = {{"COLAB_RELEASE_TAG", "KAGGLE_KERNEL_RUN_TYPE"}}
    if source and hosts & {{*os.environ}}:
        os.environ["GIT_TERMINAL_PROMPT"] = "0"  # no prompt
        !"{{sys.executable}}" -m pip install -q --no-input "{{source}}"
    if not find_spec("spmd_helpers"):
        do = f'run  %pip install "{{source}}"' if source else f"add {{whl}}"
        text = f"spmd_helpers is missing: {{do}}  and run this cell again"
        error = RuntimeError(text + ' (page "Install and run": how)')
        error._render_traceback_ = lambda: [str(error)]
        raise error
import spmd_helpers as spmd
from spmd_exercises import check

spmd.require({libraries})
"""


def preamble(book: Book, master: str = "") -> str:
    """What stands in place of the import line of a master with this text."""
    tag = f"git+{book.repository}@v{book.version}"
    return TEXT.format(
        source=f'\n        "spmd-helpers @ {tag}"\n    ' if book.repository else '""',
        libraries=", ".join(f'"{name}"' for name in libraries(master)),
    ).rstrip("\n")


def libraries(master: str) -> list[str]:
    """Those of LIBRARIES that the text of a master imports, in pip's words."""
    return [
        name
        for module, name in LIBRARIES.items()
        if re.search(rf"^ *(import|from) {re.escape(module)}\b", master, re.M)
    ]
