"""The first cell of every notebook: import the package, or install it.

A master writes only `import spmd_helpers as spmd` in its cell tagged `setup`.
The generator replaces that line by one of the two texts below. Both keep the
JAX that is already there (on Colab, the one made for its accelerator): the
package's own wheel asks for numpy and matplotlib alone. Neither text ever asks
an index for a bare package name. Where a master imports one of the LIBRARIES, a
last line asks for those: where one is missing, the reader is told what to type.
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

# The repository's address is known: install the tag that made this notebook.
FROM_REPOSITORY = """\
try:
    import spmd_helpers as spmd
except ModuleNotFoundError:  # Colab, for one: install the package only
    source = "git+{address}@v{version}"
    %pip install --quiet "spmd-helpers @ {{source}}"
    import spmd_helpers as spmd
"""

# It is not known yet: a wheel that lies beside the notebook, or a sentence.
FROM_WHEEL = """\
try:
    import spmd_helpers as spmd
except ModuleNotFoundError:  # Colab, for one: install the package only
    from glob import glob

    wheels = sorted(glob("spmd_helpers-*any.whl"))
    if wheels:
        %pip install --quiet {wheels[-1]}
    try:
        import spmd_helpers as spmd
    except ModuleNotFoundError:
        problem = ModuleNotFoundError(
            "spmd_helpers is not installed: in a downloaded copy of "
            "the book, `make wheel` writes dist/spmd_helpers-*.whl; "
            "put it beside this notebook under this name and run this "
            "cell again (without pip: `uv pip install` it; or open the "
            "notebook with `make lab`, which needs no wheel)"
        )
        problem._render_traceback_ = lambda: [str(problem)]
        raise problem from None
"""


def preamble(book: Book, master: str = "") -> str:
    """What stands in place of the import line of a master with this text."""
    if book.repository:
        text = FROM_REPOSITORY.format(address=book.repository, version=book.version)
    else:
        text = FROM_WHEEL
    needed = ", ".join(f'"{name}"' for name in libraries(master))
    if needed:
        text += f"spmd.require({needed})\n"
    return text.rstrip("\n")


def libraries(master: str) -> list[str]:
    """Those of LIBRARIES that the text of a master imports, in pip's words."""
    return [
        name
        for module, name in LIBRARIES.items()
        if re.search(rf"^ *(import|from) {re.escape(module)}\b", master, re.M)
    ]
