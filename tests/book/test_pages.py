"""The pages beside the chapters: what they show as code runs."""

import json
import re
import subprocess
import sys
from pathlib import Path

import jax
import pytest
import yaml

import spmd_helpers as spmd
from tools.book.build_site import toc_files

BOOK = Path(__file__).parents[2] / "book"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.M | re.S)


def blocks(page: str) -> list[str]:
    return BLOCK.findall((BOOK / page).read_text("utf8"))


def run(code: list[str], names: dict) -> None:
    for number, block in enumerate(code):
        exec(compile(block, f"<block {number}>", "exec"), names)


def unlisted(toc: dict, book: Path) -> list[str]:
    """What is missing between the table of contents and the pages, in words."""
    listed = toc_files(toc)
    pages = [f"book/{path.stem}" for path in sorted(book.glob("*.md"))]
    chapters = sorted(path.stem for path in (book / "chapters").glob("*.md"))
    pages += [
        f"{folder}/{c}" for folder in ("notebooks", "solutions") for c in chapters
    ]
    pages += [f"notebooks/{path.stem}" for path in (book / "pages").glob("*.md")]
    complaints = [
        f"{name} is on no page of the site: add `- file: {name}` to book/_toc.yml"
        for name in pages
        if name not in listed
    ]
    complaints += [
        f"book/_toc.yml lists {name}, which is no page and no chapter of book/"
        for name in listed
        if name not in pages
    ]
    return complaints + [
        f"book/_toc.yml lists {name} more than once"
        for name in dict.fromkeys(listed)
        if listed.count(name) > 1
    ]


def test_every_page_is_in_the_table_of_contents():
    toc = yaml.safe_load((BOOK / "_toc.yml").read_text("utf8"))
    complaints = unlisted(toc, BOOK)
    assert not complaints, "; ".join(complaints)


def test_a_page_that_is_not_listed_is_seen():
    toc = yaml.safe_load((BOOK / "_toc.yml").read_text("utf8"))
    before, first = unlisted(toc, BOOK), toc["parts"][0]["chapters"]
    first.remove({"file": "book/install"})
    first += [{"file": "book/none"}, {"file": "book/glossary"}]
    said = [
        "book/install is on no page",
        "lists book/none, which",
        "lists book/glossary",
    ]
    complaints = [line for line in unlisted(toc, BOOK) if line not in before]
    assert [words in line for words, line in zip(said, complaints, strict=True)] == [
        True
    ] * 3


def test_the_cheatsheet_runs_and_a_broken_one_is_seen():
    *most, last = blocks("cheatsheet.md")
    assert len(most) >= 4
    names: dict = {}
    run(most, names)
    with pytest.raises(AttributeError):
        run([last.replace("lax.pcast", "lax.pvary")], dict(names))
    run([last], names)
    require_said_of_its_layers(names)


def require_said_of_its_layers(names: dict) -> None:
    """The collectives of the cheatsheet's layers are those it names."""
    at, x = names["at"], names["x3"]
    by_rows, by_tokens = jax.device_put((x, x), (at("data"), at("data", "model")))
    qkv = jax.device_put(names["qkv"], names["by_tokens"])
    for layer, arguments, kinds in [
        ("tensor_parallel", (names["placed"], by_rows), ["all-reduce"]),
        (
            "sequence_parallel",
            (names["placed"], by_tokens),
            ["all-gather", "reduce-scatter"],
        ),
        ("context", qkv, ["all-gather"] * 2),
    ]:
        report = spmd.xray(names[layer], *arguments)
        assert [c.kind for c in report.collectives] == kinds, layer
    assert {c.result_bytes for c in report.collectives} == {names["qkv"][1].nbytes}


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
    from spmd_helpers._explain.rules.table import RULES

    text = (BOOK / "errors.md").read_text("utf8")
    headings = re.findall(r"^### (.*)$", text, re.M)
    codes = [r.code.replace("-", " ") for r in RULES]
    same = sorted(h.lower() for h in headings) == sorted(c.lower() for c in codes)
    assert same, (
        "book/errors.md has other rules than `explain`: "
        "run `.venv/bin/python -m tools.book.make_pages`"
    )
    command = [sys.executable, "-m", "tools.book.make_pages", "--check"]
    done = subprocess.run(command, cwd=BOOK.parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def make_exercises_page(book_folder: Path) -> subprocess.CompletedProcess:
    code = (
        "import sys; from dataclasses import replace; from pathlib import Path\n"
        "from tools.book.book import read_book\n"
        "from tools.book.exercises_page import exercises_page\n"
        "print(exercises_page(replace(read_book(), root=Path(sys.argv[1]))))\n"
    )
    command = [sys.executable, "-c", code, str(book_folder)]
    where = {"cwd": BOOK.parent, "encoding": "utf8"}
    return subprocess.run(command, capture_output=True, text=True, **where)


def test_the_list_of_exercises_has_each_once_with_the_points_that_are_graded():
    text = (BOOK / "exercises.md").read_text("utf8")
    rows = re.findall(r"^\| \[(\d+\.\d+) .*\| (\d) \| \d+ min \|$", text, re.M)
    graded = []
    for path in sorted((BOOK.parent / "notebooks").glob("*.ipynb")):
        for cell in json.loads(path.read_text("utf8"))["cells"]:
            own = cell["metadata"].get("nbgrader", {})
            if own.get("grade"):
                name = re.fullmatch(r"ch(\d\d)-ex(\d+)-check", own["grade_id"])
                graded.append((f"{int(name[1])}.{name[2]}", str(own["points"])))
    assert rows == graded
    assert len(rows) >= 75


def test_an_exercise_without_a_kind_stops_the_page(tmp_path):
    chapters = tmp_path / "book" / "chapters"
    chapters.mkdir(parents=True)
    text = (BOOK / "chapters" / "03_mesh_and_partitionspec.md").read_text("utf8")
    (chapters / "03_x.md").write_text(text, "utf8")
    assert make_exercises_page(tmp_path).returncode == 0
    (chapters / "03_x.md").write_text(text.replace("*Budget, ", "*Ponder, "), "utf8")
    complaint = make_exercises_page(tmp_path)
    assert complaint.returncode
    assert "exercise 3.4 needs a heading" in complaint.stderr


def test_what_instructors_are_told_to_assign_exists():
    text = (BOOK / "instructors.md").read_text("utf8")
    plan = text[text.index("## Two plans") : text.index("## A site without")]
    ranges = re.findall(r"(\d+\.\d+)(?: to (\d+\.\d+))?", plan)
    named = {number for pair in ranges for number in pair if number}
    listed = re.findall(r"^\| \[(\d+\.\d+) ", (BOOK / "exercises.md").read_text(), re.M)
    assert len(named) >= 10
    assert named <= set(listed)
