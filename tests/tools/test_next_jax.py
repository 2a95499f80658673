"""The page on what another JAX changes, from reports that pytest itself wrote."""

import re
import subprocess
import sys
from pathlib import Path

import nbformat

from tools.book.claims import read_claims
from tools.check.next_jax import Failure, failures, page

ROOT = Path(__file__).resolve().parents[2]
BROKEN = """\
def test_good():
    pass

def test_bad():
    assert 1 + 1 == 3
"""


def report_of(folder: Path, *arguments: str) -> list[Failure]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command += ["--junitxml=report.xml", *arguments]
    subprocess.run(command, cwd=folder, capture_output=True)
    return failures(folder / "report.xml")


def test_a_test_that_fails(tmp_path):
    (tmp_path / "tests" / "explain").mkdir(parents=True)
    (tmp_path / "tests" / "explain" / "test_x.py").write_text(BROKEN)
    (tmp_path / "tests" / "test_y.py").write_text(BROKEN)
    explained, other = report_of(tmp_path)
    assert explained.name == "test_bad"
    assert "assert (1 + 1) == 3" in explained.text
    text = page([], [explained, other])
    assert "## Rules of explain: 1 tests\n\n### test_bad\n" in text
    assert "## Other tests: 1\n\n### tests/test_y, test_bad\n" in text


def test_a_cell_that_prints_something_else(tmp_path):
    """It is named with the sentence above it and the claim that rests on it."""
    (tmp_path / "solutions").mkdir()
    notebook = nbformat.v4.new_notebook(
        cells=[
            nbformat.v4.new_markdown_cell("Before.\n\nOne and one:"),
            nbformat.v4.new_code_cell("", id="empty"),
            nbformat.v4.new_code_cell(
                "print(1 + 1)",
                id="sum",
                execution_count=1,
                metadata={"tags": ["claim-4"]},
                outputs=[nbformat.v4.new_output("stream", text="3\n")],
            ),
        ],
        metadata={"kernelspec": {"name": "python3", "display_name": "x"}},
    )
    nbformat.write(notebook, tmp_path / "solutions" / "01_x.ipynb")
    how = ("--nbval", "--nbval-current-env", "solutions/01_x.ipynb")
    (changed,) = report_of(tmp_path, *how)
    assert "Cell outputs differ" in changed.text
    (tmp_path / "book").mkdir()
    (tmp_path / "book" / "claims.yml").write_text(
        (ROOT / "book" / "claims.yml").read_text("utf8"), "utf8"
    )
    text = page([changed], [], tmp_path)
    assert "cell sum\n\n> One and one:\n" in text
    assert re.search(r"^ +'3\\n' == '2\\n'$", text, re.M)
    claim = next(c for c in read_claims(tmp_path) if c["number"] == 4)
    assert f"- claim 4, {claim['title']}: {claim['holds']}" in text
    assert "\x1b" not in text
    assert "#x1B" not in text
