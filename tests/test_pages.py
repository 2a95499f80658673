"""The pages beside the chapters: what they show as code runs."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

BOOK = Path(__file__).parent.parent / "book"
TOOLS = BOOK.parent / "tools"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.M | re.S)


def blocks(page: str) -> list[str]:
    return BLOCK.findall((BOOK / page).read_text("utf8"))


def run(code: list[str]) -> None:
    names: dict = {}
    for number, block in enumerate(code):
        exec(compile(block, f"<block {number}>", "exec"), names)


def test_the_cheatsheet_runs():
    code = blocks("cheatsheet.md")
    assert len(code) >= 5
    run(code)


def test_a_broken_cheatsheet_is_seen():
    code = blocks("cheatsheet.md")
    code[-1] = code[-1].replace("lax.pcast", "lax.pvary")
    with pytest.raises(AttributeError):
        run(code)


def test_the_glossary_is_in_order_and_names_chapters_that_exist():
    text = (BOOK / "glossary.md").read_text("utf8")
    terms = re.findall(r"^(\S.*)\n: ", text, re.M)
    assert len(terms) >= 30
    assert [t.lower() for t in terms] == sorted(t.lower() for t in terms)
    chapters = {int(p.name[:2]) for p in (BOOK / "chapters").glob("[0-9][0-9]_*.md")}
    named = {
        int(n)
        for group in re.findall(r"\(([\d, ]+)\)$", text, re.M)
        for n in group.split(",")
    }
    assert named <= chapters


def test_the_page_of_errors_has_every_rule_and_is_fresh():
    from spmd_helpers._explain_rules import RULES

    text = (BOOK / "errors.md").read_text("utf8")
    headings = re.findall(r"^### (.*)$", text, re.M)
    codes = [r.code.replace("-", " ") for r in RULES]
    assert sorted(h.lower() for h in headings) == sorted(c.lower() for c in codes)
    command = [sys.executable, str(TOOLS / "make_pages.py"), "--check"]
    assert subprocess.run(command, capture_output=True).returncode == 0
