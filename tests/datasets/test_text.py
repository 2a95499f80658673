"""load_text: the frozen text is the one its README describes."""

import hashlib
import pathlib
import re
import subprocess
import sys

from spmd_helpers._datasets import text as datasets_text
from spmd_helpers._datasets.text import load_text

DATA = pathlib.Path(datasets_text.__file__).parent
SHA256 = "d5a66c1c273bf9c8f8d5bfd99630d1448e453d125947857bc3b80fdb2db1c115"


def test_the_file_is_the_one_its_readme_describes():
    assert hashlib.sha256((DATA / "prose.txt").read_bytes()).hexdigest() == SHA256
    readme = (DATA / "README.md").read_text("utf8")
    assert SHA256 in readme
    said = readme[readme.index("# prose.txt") :]
    assert f"{len(load_text()):,} characters" in said
    assert f"{len(set(load_text()))} different characters" in said
    assert "CC BY 4.0" in said


def test_the_text_as_it_is_handed_out():
    text = load_text()
    assert hashlib.sha256(text.encode("ascii")).hexdigest() == SHA256
    assert load_text() == text
    assert all(c == "\n" or " " <= c <= "~" for c in text)
    assert text.startswith("Eight devices, one model: pmap\n\nYou have a training")
    assert text.endswith(".\n")


def test_it_is_prose():
    text = load_text()
    assert not re.search(r"```|\]\(|https?:|\*\*|\|---", text)
    letters = sum(c.isalpha() or c == " " for c in text)
    assert letters > 0.9 * len(text)
    paragraphs = text.split("\n\n")
    assert len(paragraphs) > 400
    assert max(map(len, paragraphs)) < 2000


def test_it_needs_neither_jax_nor_numpy():
    code = (
        "import sys, spmd_helpers; spmd_helpers.load_text();"
        "print(*(n for n in ('jax', 'numpy') if n in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr
