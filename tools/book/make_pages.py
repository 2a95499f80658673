"""Make the pages of the site that follow from something else, or check that they do.

`book/errors.md`: what JAX's sharding errors mean, from the rules of `spmd.explain`.
`book/claims.md`: what one reads, and what tagged cells printed; words in claims.yml.
`book/exercises.md`: every exercise with its kind and points, from the chapters.
`book/hardware.md`: what was measured on real cards, from the package's stored rows.
"""

import argparse
import re
import sys

from spmd_helpers._explain.rules.rule import BOTH
from spmd_helpers._explain.rules.table import records
from tools.book.book import ROOT, BookError, read_book
from tools.book.claims import claims_page
from tools.book.exercises_page import exercises_page
from tools.measure.page import hardware_page

ERRORS_HEAD = """\
---
tocdepth: 2
---

# What the errors mean

Here is each error about shardings that JAX raises for a reader of this book: its
message, with CAPITALS for what varies, what it means, and what to write instead.

```{paste-error}
```

The same comes up by itself under a traceback after `%load_ext spmd_helpers`, and
`spmd.explain()` gives it for the last error, for an exception, or for a text.

Many mistakes raise no error. [Read your own program](../notebooks/your_program.ipynb)
shows how to look for those.

The entries are grouped by what a program was doing:
"""
# The rules' order is that in which they are tried; a reader looks by what was done.
SUBJECTS = (
    "Starting devices, making a mesh",
    "Writing a spec, placing an array",
    "Combining arrays of different meshes",
    "Calling a jitted function",
    "Calling pmap, or porting from it",
    "Writing code for shard_map",
    "Mixing what varies in shard_map",
    "Computing on Explicit axes",
    "Running out of memory",
    "Running several processes",
    "Using Flax, Optax or Orbax",
    "Using a name that changed",
)


def errors_page() -> str:
    """The text of `book/errors.md`."""
    groups: dict[str, list[dict[str, str]]] = {subject: [] for subject in SUBJECTS}
    for record in records():
        groups[record["subject"]].append(record)
    parts = [ERRORS_HEAD]
    parts += [f"- [{s}](#{_anchor(s)}), {len(group)}" for s, group in groups.items()]
    for subject, group in groups.items():
        parts.append(f"\n## {subject}\n")
        parts += [_entry(record) for record in group]
    return "\n".join(parts)


def _entry(record: dict[str, str]) -> str:
    versions = record["versions"]
    where = "" if versions == BOTH else f" Seen in {versions}."
    return (
        f"### {heading(record['code'])}\n\n"
        "````{error-entry}\n"
        f"{_code(record['says'])} (`{record['raised']}`)\n\n"
        f"{_escaped(record['means'])}{where} ({_chapter(record['chapter'])})\n\n"
        f"```python\n{record['instead']}\n```\n"
        "````\n"
    )


def _anchor(title: str) -> str:
    """What MyST makes of a heading: 'Calling pmap, …' to 'calling-pmap-…'."""
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")


def heading(code: str) -> str:
    """'no-such-backend' to 'No such backend'."""
    words = code.replace("-", " ")
    return words[0].upper() + words[1:]


def _code(text: str) -> str:
    """As code, whatever backticks are in it."""
    fence = "``" if "`" in text else "`"
    return f"{fence} {text} {fence}" if "`" in text else f"`{text}`"


def _escaped(text: str) -> str:
    """Words as Markdown shows them.

    What looks like markup, or like an address, is not. Names with a dot or an
    underscore are code, which also breaks on a narrow page.
    """
    parts = re.split(r"(\b[a-z]\w*(?:\.\w+)+(?:\(\))?|\b[a-z]+(?:_\w+)+)", text)
    marks = re.compile(r"([\\`*_<>\[\]{}$])")
    return "".join(
        f"`{part}`" if number % 2 else marks.sub(r"\\\1", part)
        for number, part in enumerate(parts)
    )


def _chapter(slug: str) -> str:
    number = f"chapter {int(slug[:2])}"
    master = ROOT / "book" / "chapters" / f"{slug}.md"
    return f"[{number}](../notebooks/{slug}.ipynb)" if master.exists() else number


PAGES = {
    ROOT / "book" / "errors.md": errors_page,
    ROOT / "book" / "claims.md": lambda: claims_page(ROOT),
    ROOT / "book" / "exercises.md": lambda: exercises_page(read_book()),
    ROOT / "book" / "hardware.md": hardware_page,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing")
    check = parser.parse_args().check
    stale = []
    for path, make in PAGES.items():
        try:
            text = make()
        except BookError as error:
            print(error, file=sys.stderr)
            return 1
        if path.exists() and path.read_text("utf8") == text:
            continue
        stale.append(path.relative_to(ROOT).as_posix())
        if not check:
            path.write_text(text, "utf8")
            print(f"{stale[-1]} made")
    if check and stale:
        print(f"stale: {', '.join(stale)}; run  make notebooks")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
