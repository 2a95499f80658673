"""The page of claims: what one reads about sharding, and what the cells printed.

`book/claims.yml` has the words. A verdict is kept by outputs: each of its `printed`
parts has to stand in a line that a cell tagged `claim-N` printed, in the solved
notebook of some chapter. If a part is no longer there, the page can't be made.
"""

import re
from pathlib import Path

import nbformat
import yaml

from tools.book.book import BookError

CLAIMS = 30
LINES = 14  # of one cell's output that are shown
TAG = re.compile(r"claim-(\d+)")
FIELDS = {"number", "title", "says", "verdict", "holds", "chapter", "printed"}
HEAD = """\
# Thirty claims, tried

What one reads about sharding in JAX, in posts, guides and old answers, and what
happens. Each verdict rests on cells of this book: below it stands what they printed,
and the chapter that has them. The tests run them again, and this page can't be made
once a cell prints something else.

"""


def claims_page(root: Path) -> str:
    """The text of `book/claims.md`."""
    claims = read_claims(root)
    printed = printed_by(root)
    unknown = set(printed) - {claim["number"] for claim in claims}
    if unknown:
        raise BookError(f"book/claims.yml has no claim {sorted(unknown)}, cells have")
    names = {int(p.name[:2]): p.stem for p in _masters(root)}
    rows = ["| claim | what one reads | verdict |", "|---|---|---|"]
    parts = []
    for claim in claims:
        number = claim["number"]
        rows.append(
            f"| {number} | [{claim['title']}](#claim-{number}) | {claim['verdict']} |"
        )
        parts.append(_entry(claim, printed.get(number, []), names))
    return HEAD + "\n".join(rows) + "\n\n" + "\n".join(parts)


def read_claims(root: Path) -> list[dict]:
    """The claims of `book/claims.yml`: each once, with every field."""
    claims = yaml.safe_load((root / "book" / "claims.yml").read_text("utf8"))
    for claim in claims:
        if set(claim) != FIELDS or not claim["printed"]:
            raise BookError(
                f"book/claims.yml, claim {claim.get('number')}: it needs"
                f" {', '.join(sorted(FIELDS))}"
            )
    numbers = [claim["number"] for claim in claims]
    if numbers != list(range(1, CLAIMS + 1)):
        raise BookError(f"book/claims.yml: not the numbers 1 to {CLAIMS}: {numbers}")
    return claims


def printed_by(root: Path) -> dict[int, list[tuple[int, str]]]:
    """Claim → (chapter, what a tagged cell printed), in the book's order."""
    by_claim: dict[int, list[tuple[int, str]]] = {}
    for master in _masters(root):
        path = root / "solutions" / f"{master.stem}.ipynb"
        if not path.exists():
            continue
        for cell in nbformat.read(path, as_version=4).cells:
            for tag in cell.metadata.get("tags", []):
                match = TAG.fullmatch(tag)
                if match:
                    row = (int(master.name[:2]), _text(cell))
                    by_claim.setdefault(int(match[1]), []).append(row)
    return by_claim


def _masters(root: Path) -> list[Path]:
    return sorted((root / "book" / "chapters").glob("[0-9][0-9]_*.md"))


def _text(cell) -> str:
    said = []
    for output in cell.outputs:
        text = output.get("text") or output.get("data", {}).get("text/plain", "")
        said.append(text.rstrip("\n"))
    return "\n".join(said)


def _entry(claim: dict, cells: list[tuple[int, str]], names: dict[int, str]) -> str:
    number = claim["number"]
    shown: list[tuple[int, str]] = []
    for part in claim["printed"]:
        holders = [c for c in cells if any(part in line for line in c[1].split("\n"))]
        if not holders:
            raise BookError(
                f"claim {number}: no cell tagged claim-{number} prints {part!r} any"
                " more; look at the cell, then mend the verdict in book/claims.yml"
            )
        if not any(cell in shown for cell in holders):
            shown.append(holders[0])
    verdict = claim["verdict"]
    text = (
        f"## Claim {number}\n\n**{claim['title']}.**\n\n"
        f"> {claim['says']}\n\n"
        f"**{verdict[0].upper()}{verdict[1:]}.** {claim['holds'].strip()}"
        f" Taught in {_link(claim['chapter'], names)}.\n\n"
    )
    for chapter, output in shown:
        lines = output.split("\n")
        cut = [*lines[:LINES], "…"] if len(lines) > LINES else lines
        body = "\n".join(cut)
        text += f"Printed in {_link(chapter, names)}:\n\n```text\n{body}\n```\n\n"
    return text


def _link(chapter: int, names: dict[int, str]) -> str:
    return f"[chapter {chapter}](../notebooks/{names[chapter]}.ipynb)"
