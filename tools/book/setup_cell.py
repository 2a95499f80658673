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
# the repository that made this notebook, or nothing while there is no address. `colab`
# and `kaggle` ask what the package's `hosted` asks, which is not there yet. The error
# is no ImportError: Colab shows those in its own way, with advice that is wrong.
TEXT = """\
# @title Set-up: run this cell first {{ display-mode: "form" }}
try:
    import spmd_helpers as spmd
except ModuleNotFoundError:
    from glob import glob
    from os import environ, path
    from sys import executable

    wheels = glob("spmd_helpers-*.whl") or glob(
        "/kaggle/input/**/spmd_helpers-*.whl", recursive=True
    )
    source = max(wheels, key=path.getmtime, default={source})
    colab = "COLAB_RELEASE_TAG" in environ
    kaggle = "KAGGLE_KERNEL_RUN_TYPE" in environ
    if source and (colab or kaggle):
        environ["GIT_TERMINAL_PROMPT"] = "0"  # git shall not ask
        !"{{executable}}" -m pip install -q --no-input "{{source}}"
    try:
        import spmd_helpers as spmd
    except ModuleNotFoundError:
        if source and (colab or kaggle):
            how = f"see above why pip could not install {{source}} "
            how += "(give a file `... (1).whl` its first name back)"
        elif source:
            how = f'run  %pip install "{{source}}"  (without pip, '
            how += "`uv pip install` it in a terminal)"
        elif colab:
            how = "upload spmd_helpers-*.whl (folder icon on the left)"
        elif kaggle:
            how = "add spmd_helpers-*.whl, Input > Upload > Dataset,"
        else:
            how = "in a copy of the book, `make wheel` writes dist/"
            how += "spmd_helpers-*.whl: put it beside this notebook"
        problem = RuntimeError(
            f"spmd_helpers is missing: {{how}} and run this cell again"
        )
        problem._render_traceback_ = lambda: [str(problem)]
        raise problem from None
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
