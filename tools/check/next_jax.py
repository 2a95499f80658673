"""What another JAX changes: outputs, sentences, rules and tests, on one page.

    python -m tools.check.next_jax      in an environment with that JAX

Runs the solved notebooks, and the tests of both tiers but those that know nothing of
JAX. Writes _build/next.md: each cell that prints something else, with the sentence
above it; the claims that rest on such cells; the rules of `explain` whose error has
changed; and all other tests that fail.
"""

import importlib.metadata
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path

import nbformat

from tools.book.book import ROOT, output_jax
from tools.book.claims import TAG, read_claims
from tools.check import notebooks
from tools.check.run_tests import of_no_jax, tests

PAGE = "_build/next.md"
LINES = 12  # that are shown of what a cell or a test says
COLORS = re.compile(r"(?:\x1b|#x1B)\[[\d;]*m")  # as a terminal has them, and as XML


@dataclass(frozen=True)
class Failure:
    """A test or a cell that fails: where it is, and what it says."""

    file: str
    name: str
    text: str

    def listed(self, title: str, note: str = "") -> str:
        lines = [ln for ln in COLORS.sub("", self.text).splitlines() if ln.strip()]
        body = "\n".join(f"    {line}" for line in lines[:LINES])
        return (
            f"### {title}\n\n{note}\n\n{body}\n" if note else f"### {title}\n\n{body}\n"
        )


def failures(report: Path) -> list[Failure]:
    """What failed, by the report that pytest's --junitxml writes."""
    return [
        Failure(
            case.get("classname", "").replace(".", "/"),
            case.get("name", ""),
            part.text or part.get("message") or "",
        )
        for case in ElementTree.parse(report).iter("testcase")
        for part in case
        if part.tag in ("failure", "error")
    ]


def changed_cell(failure: Failure, root: Path):
    """The notebook's cell that a failure of nbval names, and the text above it."""
    path = root / (failure.file.removesuffix("/ipynb") + ".ipynb")
    cells = nbformat.read(path, as_version=4).cells
    number = int(re.search(r"(\d+)$", failure.name)[1])
    code = [i for i, cell in enumerate(cells) if cell.cell_type == "code"]
    place = code[number]
    above = [c.source for c in cells[:place] if c.cell_type == "markdown"]
    return cells[place], above[-1].splitlines()[-1]


def page(cells: list[Failure], others: list[Failure], root: Path = ROOT) -> str:
    """The page, in Markdown."""
    outputs, numbers = [], set()
    for failure in cells:
        cell, above = changed_cell(failure, root)
        outputs.append(failure.listed(f"{failure.file}, cell {cell.id}", f"> {above}"))
        tags = map(TAG.fullmatch, cell.metadata.get("tags", []))
        numbers |= {int(tag[1]) for tag in tags if tag}
    claims = [
        f"- claim {claim['number']}, {claim['title']}: {claim['holds']}"
        for claim in read_claims(root)
        if claim["number"] in numbers
    ]
    rules = [f for f in others if f.file.startswith("tests/explain")]
    rest = [f for f in others if f not in rules]
    parts = {
        f"Outputs: {len(outputs)} cells print something else": outputs,
        f"Sentences: {len(claims)} claims rest on these cells": claims,
        f"Rules of explain: {len(rules)} tests": [f.listed(f.name) for f in rules],
        f"Other tests: {len(rest)}": [f.listed(f"{f.file}, {f.name}") for f in rest],
    }
    have = importlib.metadata.version("jax")
    text = f"# jax {have}; the stored outputs are from jax {output_jax()}\n"
    for title, entries in parts.items():
        text += f"\n## {title}\n\n" + "\n".join(entries) + "\n"
    return text


def main() -> int:
    build = ROOT / "_build"
    build.mkdir(exist_ok=True)
    cells, others = build / "next-cells.xml", build / "next-tests.xml"
    for report in (cells, others):
        report.unlink(missing_ok=True)
    notebooks.main(["solutions", "-q", f"--junitxml={cells}"])
    more = (f"--junitxml={others}", *of_no_jax())
    everything = tests(Path(sys.executable), "long or not long", *more)
    subprocess.run([str(part) for part in everything], cwd=ROOT)
    for report in (cells, others):
        if not report.exists():
            print(f"\npytest stopped before it wrote {report.name}: see above")
            return 1
    changes = failures(cells), failures(others)
    (ROOT / PAGE).write_text(page(*changes), "utf8")
    count = sum(map(len, changes))
    print(f"\njax {importlib.metadata.version('jax')}: {count} changes, see {PAGE}")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
