"""The page of claims: a verdict falls when its cells print something else."""

import shutil
from pathlib import Path

import nbformat
import pytest
import yaml

from tools.book.book import BookError
from tools.book.claims import claims_page, printed_by, read_claims

ROOT = Path(__file__).parents[2]
CLAIMS = read_claims(ROOT)
PARTS = [(c["number"], part) for c in CLAIMS for part in c["printed"]]


@pytest.fixture
def copy(tmp_path):
    """The chapters, their solved notebooks and the claims, to be broken."""
    for name in ("book/chapters", "solutions"):
        shutil.copytree(ROOT / name, tmp_path / name)
    shutil.copy(ROOT / "book" / "claims.yml", tmp_path / "book")
    return tmp_path


def rewrite(root, tag, change):
    """Apply `change` to every cell of the copied notebooks that have the tag."""
    for path in (root / "solutions").glob("*.ipynb"):
        if f'"{tag}"' not in path.read_text("utf8"):
            continue
        notebook = nbformat.read(path, as_version=4)
        for cell in notebook.cells:
            change(cell)
        nbformat.write(notebook, path)


def test_all_thirty_are_answered_by_cells():
    printed = printed_by(ROOT)
    assert sorted(printed) == [claim["number"] for claim in CLAIMS]
    for claim in CLAIMS:
        taught = {chapter for chapter, _ in printed[claim["number"]]}
        assert claim["chapter"] in taught, claim["number"]


def test_the_page_has_each_claim_once_with_its_verdict():
    page = claims_page(ROOT)
    for claim in CLAIMS:
        assert page.count(f"## Claim {claim['number']}\n") == 1
        assert f"**{claim['verdict'][0].upper()}{claim['verdict'][1:]}.**" in page


def test_what_is_shown_was_printed():
    page, printed = claims_page(ROOT), printed_by(ROOT)
    for number, part in PARTS:
        assert any(part in text for _, text in printed[number])
        assert part in page


@pytest.mark.parametrize("number", [c["number"] for c in CLAIMS])
def test_another_output_is_noticed(copy, number):
    def erase(cell):
        if f"claim-{number}" in cell.metadata.get("tags", []):
            cell.outputs = []

    rewrite(copy, f"claim-{number}", erase)
    with pytest.raises(BookError, match=r"claim \d+: no cell tagged claim-"):
        claims_page(copy)


def test_a_tag_without_a_claim_is_noticed(copy):
    def tag(cell):
        tags = cell.metadata.get("tags", [])
        if "claim-7" in tags:
            cell.metadata["tags"] = [*tags, "claim-31"]

    rewrite(copy, "claim-7", tag)
    with pytest.raises(BookError, match="has no claim"):
        claims_page(copy)


def test_a_claim_without_what_it_rests_on_is_noticed(copy):
    path = copy / "book" / "claims.yml"
    claims = yaml.safe_load(path.read_text("utf8"))
    claims[3]["printed"] = []
    path.write_text(yaml.safe_dump(claims), "utf8")
    with pytest.raises(BookError, match=r"claims\.yml, claim 4: it needs"):
        claims_page(copy)


def test_a_claim_left_out_is_noticed(copy):
    path = copy / "book" / "claims.yml"
    claims = yaml.safe_load(path.read_text("utf8"))
    path.write_text(yaml.safe_dump(claims[1:]), "utf8")
    with pytest.raises(BookError, match="not the numbers 1 to 30"):
        claims_page(copy)
