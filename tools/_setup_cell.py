"""The first cell of every notebook: import the package, or install it.

A master writes only `import spmd_helpers as spmd` in its cell tagged `setup`.
The generator replaces that line by one of the two texts below. Both keep the
JAX that is already there (on Colab, the one made for its accelerator): the
package's own wheel asks for numpy and matplotlib alone. Neither text ever asks
an index for a bare package name.
"""

from _book import Book

IMPORT_LINE = "import spmd_helpers as spmd"

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

    wheels = sorted(glob("spmd_helpers-*.whl"))
    if not wheels:
        problem = ModuleNotFoundError(
            "spmd_helpers is not installed: in a downloaded copy of "
            "the book, `make wheel` writes dist/spmd_helpers-*.whl; "
            "put it beside this notebook and run this cell again (or "
            "open the notebook with `make lab`, which needs no wheel)"
        )
        problem._render_traceback_ = lambda: [str(problem)]
        raise problem from None
    %pip install --quiet {wheels[-1]}
    import spmd_helpers as spmd
"""


def preamble(book: Book) -> str:
    """What stands in place of the import line."""
    if book.repository:
        text = FROM_REPOSITORY.format(address=book.repository, version=book.version)
    else:
        text = FROM_WHEEL
    return text.rstrip("\n")
