"""Make notebooks/ and solutions/ from the chapters, or check that they are fresh.

    python -m tools.book.make_notebooks               every chapter and page
    python -m tools.book.make_notebooks 01 02         these chapters
    python -m tools.book.make_notebooks your_program  this page of book/pages
    python -m tools.book.make_notebooks --check       change nothing; exit 1 if stale

The same chapter gives the same bytes each time. Outputs are made with one JAX only,
the newest that is pinned; freshness can be checked with any.
"""

import argparse
import copy
import os
import sys
import time
from pathlib import Path

import nbformat

from tools.book.book import (
    ROOT,
    Book,
    BookError,
    makes_outputs,
    output_jax,
    read_book,
)
from tools.book.notebook import both_notebooks, code_hash
from tools.book.run import execute, versions_of
from tools.book.setup_cell import libraries

REMEDY = "run `make notebooks` and commit what it writes"


def targets(master: Path, book: Book) -> dict[Path, object]:
    """The files that a master makes, each with its notebook, not yet run.

    A chapter makes two, a page one.
    """
    reader, solved = both_notebooks(master, book)
    name = master.with_suffix(".ipynb").name
    files = {} if master in book.pages else {book.root / "solutions" / name: solved}
    return {**files, book.root / "notebooks" / name: reader}


def argument(master: Path, book: Book) -> str:
    """What names a master on the command line: "01", or a page's "your_program"."""
    return master.stem if master in book.pages else master.name[:2]


def without_outputs(notebook):
    """A copy with only what a master decides."""
    bare = copy.deepcopy(notebook)
    for key in ("code", "made_with"):
        bare.metadata.get("spmd", {}).pop(key, None)
    for cell in bare.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    return bare


def stale(book: Book) -> list[str]:
    """One sentence for each file that is not what the chapters say."""
    said, expected = [], set()
    for master in (*book.masters, *book.pages):
        for path, fresh in targets(master, book).items():
            expected.add(path)
            why = _why_stale(path, fresh)
            if why:
                said.append(f"{book.name_of(path)} is stale: {why}; {REMEDY}")
    for path in book.generated():
        if path not in expected:
            said.append(f"{book.name_of(path)} has no chapter: delete it")
    return said


def _why_stale(path: Path, fresh) -> str | None:
    if not path.exists():
        return "it is missing"
    try:
        stored = nbformat.read(path, as_version=4)
    except Exception as error:
        return f"it can't be read ({error})"
    if path.read_text("utf8") != _text(stored):
        return "it was saved by another program"
    if stored.metadata.get("spmd", {}).get("code") != code_hash(fresh):
        return "its outputs come from other code"
    bare, fresh = without_outputs(stored), without_outputs(fresh)
    for number, (was, now) in enumerate(zip(bare.cells, fresh.cells, strict=False), 1):
        if was != now:
            return f"cell {number} ({now.id}) is not what the chapter says"
    if len(bare.cells) != len(fresh.cells):
        return f"it has {len(bare.cells)} cells, the chapter {len(fresh.cells)}"
    if bare.metadata != fresh.metadata:
        return "it was made from another text of the chapter"
    return None


def make(master: Path, book: Book) -> None:
    """Write the notebooks of one chapter or page, each run once."""
    used = libraries(master.read_text("utf8"))
    for path, notebook in targets(master, book).items():
        name = book.name_of(path)
        begun = time.monotonic()
        print(f"{name:<40} runs ...", end="", flush=True)
        notebook.metadata["spmd"]["code"] = code_hash(notebook)
        notebook.metadata["spmd"]["made_with"] = versions_of(used)
        path.parent.mkdir(exist_ok=True)
        execute(notebook, path.parent, name)
        _write(path, _text(notebook))
        print(f" {time.monotonic() - begun:5.1f} s", flush=True)


def _text(notebook) -> str:
    return nbformat.writes(notebook, version=4, indent=1, sort_keys=True) + "\n"


def _write(path: Path, text: str) -> None:
    """Whole or not at all."""
    part = path.with_suffix(".part")
    part.write_text(text, "utf8", newline="\n")
    os.replace(part, path)


def _refuse_other_jax() -> None:
    if not makes_outputs():
        have = versions_of()["jax"]
        raise BookError(
            f"stored outputs are made with jax {output_jax()}, and this is {have}: run "
            "`rm -r .venv; PYTHON=python3.13 make notebooks`, or only `make check`"
        )


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = "numbers such as 01, or pages' names; default all"
    parser.add_argument("chapters", nargs="*", help=names)
    parser.add_argument("--check", action="store_true", help="only say what is stale")
    options = parser.parse_args(arguments)
    try:
        book = read_book(root)
        if options.check:
            said = stale(book)
            print("\n".join(said) or f"{len(book.generated())} notebooks are fresh")
            return 1 if said else 0
        _refuse_other_jax()
        masters = {argument(m, book): m for m in (*book.masters, *book.pages)}
        unknown = set(options.chapters) - set(masters)
        if unknown:
            raise BookError(
                f"no chapter or page {', '.join(sorted(unknown))} in book/chapters and "
                f"book/pages; there are {', '.join(masters)}"
            )
        chosen = [
            master
            for name, master in masters.items()
            if not options.chapters or name in options.chapters
        ]
        for master in chosen:
            make(master, book)
        print(f"{sum(len(targets(m, book)) for m in chosen)} notebooks made")
        for sentence in stale(book) if not options.chapters else []:
            print(sentence)
        return 0
    except BookError as error:
        print(f"\n{error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
