"""The notebooks: fresh, well formed, and made by a generator that can refuse."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbval.plugin import get_sanitize_patterns

from tools.book import make_notebooks, run
from tools.book.book import BookError, read_book
from tools.book.make_notebooks import make, stale, targets
from tools.book.notebook import both_notebooks
from tools.book.run import kernel_environment
from tools.check import notebooks as check_notebooks
from tools.check.notebooks import DIFFERS

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.usefixtures("own_exercises")


BOOK = read_book(ROOT)
GENERATED = BOOK.generated()

MASTER = '''\
# A chapter

Words with `code` and [a link](02_other.ipynb).

```{code-cell}
:tags: [setup]

import spmd_helpers as spmd

rows = 6
```

```{code-cell}
:tags: [hide-input, claim-3]

print(rows)
rows
```

## Exercise 1

```{code-cell}
:tags: [exercise-80.1]

answer = ...
### BEGIN SOLUTION
answer = 3
### END SOLUTION
```

```{code-cell}
:tags: [check-80.1, points-2]

check("80.1", answer)
```

```{code-cell}
:tags: [exercise-80.2]

def double(x):
    """Twice x."""
    ### BEGIN SOLUTION
    return 2 * x
    ### END SOLUTION
    raise NotImplementedError
```

```{code-cell}
:tags: [check-80.2, points-1]

check("80.2", double)
### BEGIN HIDDEN TESTS
assert double(4) == 8
### END HIDDEN TESTS
```
'''


def scratch(folder: Path, text: str = MASTER, address: str = ""):
    """A small book with one chapter, in `folder`."""
    (folder / "book" / "chapters").mkdir(parents=True, exist_ok=True)
    config = (ROOT / "_config.yml").read_text("utf8")
    config = re.sub(r'url: "[^"]*"', f'url: "{address}"', config)
    (folder / "_config.yml").write_text(config, "utf8")
    shutil.copy(ROOT / "pyproject.toml", folder)
    master = folder / "book" / "chapters" / "80_scratch.md"
    master.write_text(text, "utf8")
    return master, read_book(folder)


def code(notebook) -> list[str]:
    return [c.source for c in notebook.cells if c.cell_type == "code"]


# What is stored.


def test_stored_notebooks_are_fresh():
    assert stale(BOOK) == []


def test_every_chapter_has_both_notebooks():
    assert GENERATED, "run `make notebooks`"
    assert len(GENERATED) == 2 * len(BOOK.masters) + len(BOOK.pages)


def exercise_part(cell) -> str:
    """'stub', 'check', or '' for a cell that belongs to no exercise."""
    name = cell.metadata.get("nbgrader", {}).get("grade_id", "")
    return "" if not name else "check" if name.endswith("-check") else "stub"


@pytest.mark.parametrize("master", BOOK.masters, ids=lambda m: m.stem)
def test_readers_see_what_the_solved_notebook_shows(master):
    """Cell by cell: so only the solved one has to run again to prove both."""
    name = f"{master.stem}.ipynb"
    reader, solved = (
        nbformat.read(ROOT / folder / name, as_version=4)
        for folder in ("notebooks", "solutions")
    )
    for given, answered in zip(reader.cells, solved.cells, strict=True):
        part = exercise_part(answered)
        assert exercise_part(given) == part
        if part == "stub":
            assert given.outputs == answered.outputs == []
        else:
            assert given.source == answered.source.replace(" (solved)", "", 1)
        if given.cell_type == "markdown":
            continue
        if part == "check":
            (said,) = given.outputs
            assert re.match(r"Exercise \d+\.\d+ is open: ", said.text)
        elif not part:
            assert given.outputs == answered.outputs


@pytest.mark.parametrize("path", GENERATED, ids=BOOK.name_of)
def test_stored_notebook_is_well_formed(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    ids = [cell.id for cell in notebook.cells]
    assert len(set(ids)) == len(ids)
    assert "widgets" not in notebook.metadata
    first, *rest = (c for c in notebook.cells if c.cell_type == "code")
    assert "setup" in first.metadata.tags
    assert "pip install" in first.source
    assert 'find_spec("spmd_helpers")' in first.source
    for cell in (first, *rest):
        assert "BEGIN SOLUTION" not in cell.source
        assert cell.execution_count is not None or not cell.source
        for output in cell.outputs:
            assert output.output_type != "error"
            assert output.get("name") != "stderr"
            if output.output_type != "stream":
                assert output.data["text/plain"].strip()


@pytest.mark.parametrize("master", BOOK.masters, ids=BOOK.name_of)
def test_reader_has_stubs_where_solutions_are(master):
    reader, solved = both_notebooks(master, BOOK)
    exercises = 0
    for mine, theirs in zip(reader.cells, solved.cells, strict=True):
        assert mine.id == theirs.id
        graded = mine.metadata.get("nbgrader", {})
        if graded.get("solution"):
            exercises += 1
            stub = r"^\w+ = \.\.\.$|^ +raise NotImplementedError$"
            assert re.search(stub, mine.source, re.M)
            assert mine.source != theirs.source
            assert not re.search(stub, theirs.source, re.M)
        elif mine is reader.cells[0]:
            assert mine.source.splitlines()[0] + " (solved)" in theirs.source
        elif not graded:
            assert mine.source == theirs.source
    assert exercises >= 5, "a chapter has at least five checked exercises"


# The generator.


def test_reader_and_solved_notebook(tmp_path):
    reader, solved = both_notebooks(*scratch(tmp_path))
    assert code(reader)[2:] == [
        "answer = ...",
        'check("80.1", answer)',
        'def double(x):\n    """Twice x."""\n    raise NotImplementedError',
        'check("80.2", double)',
    ]
    assert code(solved)[2:] == [
        "answer = 3",
        'check("80.1", answer)',
        'def double(x):\n    """Twice x."""\n    return 2 * x',
        'check("80.2", double)\nassert double(4) == 8',
    ]


def test_grades_and_tags(tmp_path):
    reader, _ = both_notebooks(*scratch(tmp_path))
    by_id = {cell.id: cell.metadata for cell in reader.cells}
    assert by_id["ch80-ex1"]["nbgrader"]["solution"] is True
    check = by_id["ch80-ex1-check"]
    assert check["nbgrader"]["points"] == 2
    assert check["nbgrader"]["locked"] is True
    assert check["editable"] is False
    assert re.fullmatch("[0-9a-f]{32}", check["nbgrader"]["checksum"])
    assert ["hide-input", "claim-3"] in [m.get("tags") for m in by_id.values()]
    assert "jupytext" not in reader.metadata


def test_a_new_cell_changes_no_other_id(tmp_path):
    before, _ = both_notebooks(*scratch(tmp_path))
    longer = MASTER.replace("## Exercise 1", "New.\n\n```{code-cell}\n1\n```\n\nOld.")
    after, _ = both_notebooks(*scratch(tmp_path, longer))
    ids = {c.id for c in before.cells if not c.source.startswith("## Exercise")}
    assert ids <= {c.id for c in after.cells}


def test_setup_cell_without_an_address(tmp_path):
    reader, _ = both_notebooks(*scratch(tmp_path))
    setup = code(reader)[0]
    assert 'whl = "spmd_helpers-*-any.whl"' in setup
    assert "git+" not in setup
    assert setup.endswith("\n\nrows = 6")


def test_setup_cell_with_an_address(tmp_path):
    master, book = scratch(tmp_path, address="https://github.com/someone/book")
    setup = code(both_notebooks(master, book)[0])[0]
    source = f'"spmd-helpers @ git+https://github.com/someone/book@v{book.version}"'
    assert f"key=os.path.getmtime, default=\n        {source}\n    )" in setup
    without = code(both_notebooks(*scratch(tmp_path / "without"))[0])[0]
    assert setup.replace(f"\n        {source}\n    ", '""') == without


def test_no_setup_cell_installs_by_a_bare_name(tmp_path):
    """A wheel that lies there, or the repository's address; or a command to type."""
    for address in ("", "https://github.com/someone/book"):
        setup = code(both_notebooks(*scratch(tmp_path, address=address))[0])[0]
        lines = [line.strip() for line in setup.splitlines() if "pip install" in line]
        assert lines == [
            '!"{sys.executable}" -m pip install -q --no-input "{source}"',
            """do = f'run  %pip install "{source}"' if source else f"add {whl}\"""",
        ]


def test_the_setup_cell_is_short(tmp_path):
    """It says nothing that the package can say; the page that it names exists."""
    setup = code(both_notebooks(*scratch(tmp_path))[0])[0].partition("\n\nrows")[0]
    assert len(setup.splitlines()) <= 25
    assert max(map(len, setup.splitlines())) <= 72
    page = (ROOT / "book" / "install.md").read_text("utf8")
    title = page.partition("\n")[0].removeprefix("# ")
    assert f'(page "{title}": how)' in setup


def test_few_cells_differ_with_jax():
    """Each with a sentence right below it that names the other JAX."""
    masters = (*BOOK.masters, *BOOK.pages)
    cells = [c for m in masters for c in both_notebooks(m, BOOK)[1].cells]
    tagged = [i for i, c in enumerate(cells) if DIFFERS in c.metadata.get("tags", [])]
    assert len(tagged) <= 3
    for i in tagged:
        assert re.search(r"[Ww]ith jax 0\.\d+\.\d+ ", cells[i + 1].source)


def page_of(folder: Path, text: str):
    """A small book with one page outside the chapters, in `folder`."""
    master, book = scratch(folder)
    page = folder / "book" / "pages" / "walk.md"
    page.parent.mkdir()
    page.write_text(text, "utf8")
    master.unlink()
    return page, book


def test_a_page_has_one_notebook(tmp_path):
    page, book = page_of(tmp_path, MASTER.partition("## Exercise 1")[0])
    (path,) = targets(page, book)
    assert book.name_of(path) == "notebooks/walk.ipynb"
    assert stale(book) == [
        "notebooks/walk.ipynb is stale: it is missing; run `make notebooks` and commit "
        "what it writes"
    ]
    assert [cell.id.partition("-")[0] for cell in targets(page, book)[path].cells] == [
        "page"
    ] * 3


def test_a_page_has_no_exercise(tmp_path):
    page, book = page_of(tmp_path, MASTER)
    with pytest.raises(BookError, match=r"book/pages/walk.md, .* a page has no exer"):
        both_notebooks(page, book)


def test_an_unknown_chapter_is_named(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(make_notebooks, "makes_outputs", lambda: True)
    page_of(tmp_path, MASTER)
    assert make_notebooks.main(["03"], tmp_path) == 1
    assert "no chapter or page 03 in" in (message := capsys.readouterr().err)
    assert message.endswith("there are walk\n")


def test_a_page_is_checked_among_the_solutions(tmp_path, monkeypatch):
    """So that the short tier runs it too; on the other JAX, with the readers'."""
    ran = []
    page_of(tmp_path, MASTER)
    for name in ("notebooks/80_a", "solutions/80_a", "notebooks/walk"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.ipynb").write_text("{}", "utf8")

    def run(command, **_):
        ran.append([part for part in command if part.endswith(".ipynb")])
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(check_notebooks.subprocess, "run", run)
    monkeypatch.setattr(check_notebooks, "makes_outputs", lambda: True)
    for folder in ("solutions", "notebooks"):
        assert check_notebooks.main([folder], tmp_path) == 0
    assert [
        [Path(p).relative_to(tmp_path).as_posix() for p in paths] for paths in ran
    ] == [
        ["notebooks/walk.ipynb", "solutions/80_a.ipynb"],
        ["notebooks/80_a.ipynb"],
    ]


def test_an_address_must_be_one(tmp_path):
    with pytest.raises(BookError, match="repository url 'someone/book' is not an"):
        scratch(tmp_path, address="someone/book")


REFUSED = {
    "a directive": ("Words with", "```{note}\nHi\n```\n\nWords", "a directive"),
    "a colon fence": ("Words with", ":::{tip}\nHi\n:::\n\nWords", "a directive"),
    "a role": ("Words with", "See {ref}`x`", "a role"),
    "a target": ("# A chapter", "(here)=\n# A chapter", "a target"),
    "a long line": ("rows = 6", "rows = 6  # " + "x" * 70, "82 columns, over 72"),
    "no setup": ("[setup]", "[other]", "the tag `setup` belongs on the first code"),
    "no import": ("import spmd_helpers as spmd", "import jax", "needs one line 'imp"),
    "a semicolon": ("\nrows\n", "\nrows;\n", "which nbval does not honor"),
    "a hidden failure": ("hide-input", "raises-exception", "would hide a failure"),
    "no stub": ("answer = ...\n", "", "no stub at the solution"),
    "no end": ("### END SOLUTION\n```", "```", "without '### END SOLUTION'"),
    "no region": ("### BEGIN SOLUTION\nanswer", "answer", "and only it, has"),
    "other chapter": ("exercise-80.1", "exercise-2.1", "exactly one of exercise-80.N"),
    "no points": (", points-2", "", "has one tag points-N"),
    "no check": ("[check-80.2, points-1]", "[other]", "BEGIN HIDDEN|has no check cell"),
    "two lines": ('"80.1", answer)', '"80.1", answer)\nprint()', "is one call"),
    "another's check": ('check("80.1"', 'check("80.2"', "is one call, in three lines"),
    "a long check": ('"80.1", answer', '"80.1",\nanswer,\n0,\n0', "is one call"),
    "check first": ("exercise-80.1", "exercise-80.3", "stands before its stub"),
    "a raw cell": ("## Exercise 1", "```{raw-cell}\nx\n```", "a raw cell"),
}


@pytest.mark.parametrize(("old", "new", "why"), REFUSED.values(), ids=REFUSED)
def test_generator_refuses(tmp_path, old, new, why):
    assert old in MASTER
    master, book = scratch(tmp_path, MASTER.replace(old, new, 1))
    with pytest.raises(BookError, match=why) as caught:
        both_notebooks(master, book)
    assert "book/chapters/80_scratch.md" in str(caught.value)


# Running it.


@pytest.fixture(scope="module")
def stored_book(tmp_path_factory, own_exercises):
    """A scratch book whose notebooks are made; tests copy it before a change."""
    folder = tmp_path_factory.mktemp("book")
    make(*scratch(folder))
    return folder


@pytest.fixture
def copy_of_made(stored_book, tmp_path):
    shutil.copytree(stored_book, tmp_path / "copy")
    return tmp_path / "copy"


def test_two_runs_give_the_same_bytes(stored_book, copy_of_made):
    book = read_book(copy_of_made)
    make(book.masters[0], book)
    for path in book.generated():
        assert path.read_bytes() == (stored_book / book.name_of(path)).read_bytes()


def test_what_is_stored(stored_book):
    notebook = json.loads((stored_book / "notebooks" / "80_scratch.ipynb").read_text())
    assert notebook["metadata"]["spmd"]["master"] == "book/chapters/80_scratch.md"
    assert set(notebook["metadata"]["spmd"]["made_with"]) == {"jax"}
    assert "version" not in notebook["metadata"]["language_info"]
    cells = [c for c in notebook["cells"] if c["cell_type"] == "code"]
    assert [c["execution_count"] for c in cells] == [1, 2, 3, 4, 5, 6]
    assert all("execution" not in c["metadata"] for c in cells)
    assert cells[1]["outputs"][1]["data"] == {"text/plain": ["6"]}


def test_fresh_after_making(copy_of_made):
    assert stale(read_book(copy_of_made)) == []


def test_a_changed_chapter_is_stale(copy_of_made):
    scratch(copy_of_made, MASTER.replace("Words", "Other words"))
    said = stale(read_book(copy_of_made))
    assert len(said) == 2
    assert said[1].startswith("notebooks/80_scratch.ipynb is stale: cell 1 (ch80-")
    assert said[1].endswith("run `make notebooks` and commit what it writes")


def test_a_comment_in_a_chapter_makes_stale(copy_of_made):
    scratch(copy_of_made, MASTER.replace("# A chapter", "\n\n# A chapter"))
    said = stale(read_book(copy_of_made))
    assert said
    assert all("made from another text of the chapter" in s for s in said)


def test_a_new_address_is_stale(copy_of_made):
    scratch(copy_of_made, address="https://github.com/someone/book")
    assert len(stale(read_book(copy_of_made))) == 2


def test_an_edited_notebook_is_stale(copy_of_made):
    path = copy_of_made / "solutions" / "80_scratch.ipynb"
    path.write_text(path.read_text("utf8").replace("answer = 3", "answer = 4"), "utf8")
    (said,) = stale(read_book(copy_of_made))
    assert said.startswith("solutions/80_scratch.ipynb is stale: cell 5 (ch80-ex1)")


def test_a_missing_and_an_orphan_notebook(copy_of_made):
    path = copy_of_made / "notebooks" / "80_scratch.ipynb"
    path.rename(path.with_name("09_old.ipynb"))
    assert [s.split(":")[0] for s in stale(read_book(copy_of_made))] == [
        "notebooks/80_scratch.ipynb is stale",
        "notebooks/09_old.ipynb has no chapter",
    ]


UNSTORABLE = {
    "an address": ("print(object())", "shows a memory address"),
    "a path": ("print('/home/me/x')", "shows a path: '/home/me/x'"),
    "a warning": ("import warnings; warnings.warn('careful')", "wrote to stderr"),
    "an image": (
        "from IPython.display import display\n"
        "display({'image/png': '', 'text/plain': 'x'}, raw=True)",
        "an image that no diff can show",
    ),
    "no words": (
        "from IPython.display import display\ndisplay({'text/html': 'x'}, raw=True)",
        "an output without a text twin",
    ),
}


@pytest.fixture(scope="module")
def unstorable(tmp_path_factory):
    """What these cells show, each run as a chapter's is: kind -> outputs."""
    cells = [nbformat.v4.new_code_cell(source) for source, _ in UNSTORABLE.values()]
    notebook = nbformat.v4.new_notebook(cells=cells)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "_normalize", lambda *_: None)
        run.execute(notebook, tmp_path_factory.mktemp("unstorable"), "x")
    return {kind: cell.outputs for kind, cell in zip(UNSTORABLE, cells, strict=True)}


@pytest.mark.parametrize("kind", UNSTORABLE)
def test_an_output_that_must_not_be_stored(unstorable, kind):
    (output,) = unstorable[kind]
    with pytest.raises(BookError, match=UNSTORABLE[kind][1]):
        run._require_storable(output, "x")


@pytest.mark.parametrize(
    ("source", "why"),
    [
        UNSTORABLE["a path"],
        ("1 / 0", "does not run to its end"),
        (
            'from spmd_exercises import check\ncheck("6.60", 1)',
            r"write its check, check_6_60, in src/spmd_exercises/ch06\.py",
        ),
    ],
    ids=["a path", "an error", "no check"],
)
def test_nothing_is_stored_of_a_chapter_with_such_a_cell(tmp_path, source, why):
    master, book = scratch(tmp_path, MASTER.replace("print(rows)", source))
    with pytest.raises(BookError, match=why):
        make(master, book)
    assert book.generated() == []


def test_a_kernel_needs_no_home(monkeypatch):
    """matplotlib would say on stderr that it can't write there."""
    monkeypatch.setenv("HOME", "/proc")
    monkeypatch.setenv("MPLCONFIGDIR", "/proc")
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc")
    with kernel_environment() as environment:
        plot = [sys.executable, "-c", "import matplotlib.pyplot"]
        done = subprocess.run(plot, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_chart_is_stored_as_svg_with_words(tmp_path):
    chart = (
        "import matplotlib.pyplot as plt\n"
        "plt.plot([1, 2], [0.5, 0.25], label='loss')\n"
        "plt.title('Training')\nplt.show()"
    )
    text = MASTER.partition("## Exercise 1")[0].replace("print(rows)\nrows", chart)
    make(*page_of(tmp_path, text))
    notebook = nbformat.read(tmp_path / "notebooks" / "walk.ipynb", 4)
    (output,) = notebook.cells[2].outputs
    words = "Training: 'loss' of 2 points from (1, 0.5) to (2, 0.25)."
    assert set(output.data) == {"text/html", "text/plain"}
    assert output.data["text/plain"] == words
    assert 'aria-label="Training: &#x27;loss&#x27; of 2' in output.data["text/html"]
    assert "<dc:date>" not in output.data["text/html"]


def test_a_chart_without_a_title_is_refused(tmp_path):
    chart = "import matplotlib.pyplot as plt\nplt.plot([1, 2], [0.5, 0.25])\nplt.show()"
    text = MASTER.partition("## Exercise 1")[0].replace("print(rows)\nrows", chart)
    with pytest.raises(BookError, match=r"a chart without a title.* plt\.title"):
        make(*page_of(tmp_path, text))


def test_a_chart_has_the_colors_of_the_page_and_is_small(tmp_path):
    chart = (
        "import matplotlib.pyplot as plt\n"
        "plt.bar(['a', 'b'], [2, 3], color='#2468DB', hatch='..',\n"
        "        edgecolor='white')\n"
        "plt.title('Training')\nplt.show()"
    )
    text = MASTER.partition("## Exercise 1")[0].replace("print(rows)\nrows", chart)
    make(*page_of(tmp_path, text))
    notebook = nbformat.read(tmp_path / "notebooks" / "walk.ipynb", 4)
    drawn = notebook.cells[2].outputs[0].data["text/html"]
    _, style, svg = re.split("<style>|</style>", drawn)
    assert set(re.findall(r"#[0-9a-f]{6}\b", svg)) == {"#2468db"}  # a light page's
    assert "fill: var(--c2468db, #2468db)" in svg
    assert "stroke: currentColor" in svg
    assert "--c2468db: #3cabff" in style
    assert svg.count(" a 0.60 0.60 0 1 0 0 -1.20 a 0.60 0.60 0 1 0 0 1.20 z") > 100
    assert len(drawn) < 40_000


HERE = ["-q", "-n0"]  # two notebooks are run sooner than two processes start


def test_nbval_compares_what_is_stored(copy_of_made):
    assert check_notebooks.main(HERE, copy_of_made) == 0


def test_nbval_passes_over_the_line_of_an_older_jax():
    """And over nothing else of what the set-up prints."""
    text = (ROOT / "tests" / "nbval_sanitize.cfg").read_text("utf8")
    said = "using 8 CPU devices (…)\n"
    danger = "jax 0.10.2 ends the kernel when a donated array is used again; x\n"
    for before, after in (
        (said + danger, said),
        (said, said),
        (f"{danger}and more\n", f"{danger}and more\n"),
    ):
        for pattern, instead in get_sanitize_patterns(text):
            before = re.sub(pattern, instead, before)
        assert before == after


def test_nbval_sees_a_changed_output(copy_of_made):
    path = copy_of_made / "notebooks" / "80_scratch.ipynb"
    path.write_text(path.read_text("utf8").replace('"6\\n"', '"7\\n"'), "utf8")
    assert check_notebooks.main(["notebooks", *HERE], copy_of_made) == 1


@pytest.mark.long("a notebook run twice more, by nbval")
@pytest.mark.parametrize("newest", [True, False])
def test_a_cell_that_differs_only_has_to_run_elsewhere(tmp_path, monkeypatch, newest):
    make(*scratch(tmp_path, MASTER.replace("claim-3", DIFFERS)))
    path = tmp_path / "notebooks" / "80_scratch.ipynb"
    path.write_text(path.read_text("utf8").replace('"6\\n"', '"7\\n"'), "utf8")
    monkeypatch.setattr(check_notebooks, "makes_outputs", lambda: newest)
    failed = check_notebooks.main(["notebooks", *HERE], tmp_path)
    assert bool(failed) == newest


def test_nbgrader_releases_the_same_stubs(tmp_path):
    """Its own command on the master gives the reader's notebook's sources."""
    import jupytext

    master, book = scratch(tmp_path)
    reader, solved = both_notebooks(master, book)
    source = jupytext.read(master, fmt="md:myst")
    source.metadata = solved.metadata
    for raw, ready in zip(source.cells, solved.cells, strict=True):
        raw.id, raw.metadata = ready.id, ready.metadata
    folder = tmp_path / "course" / "source" / "ps1"
    folder.mkdir(parents=True)
    nbformat.write(source, folder / "80_scratch.ipynb")
    (tmp_path / "course" / "nbgrader_config.py").write_text(
        "c = get_config()\nc.CourseDirectory.course_id = 'x'\n"
        "c.ClearSolutions.code_stub = {'python': ''}\n"
    )
    command = [sys.executable, "-m", "nbgrader", "generate_assignment", "ps1"]
    here = str(Path(sys.executable).parent)  # nbgrader looks for alembic on PATH
    done = subprocess.run(
        command,
        cwd=tmp_path / "course",
        env=dict(os.environ, PATH=here + os.pathsep + os.environ["PATH"]),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    released = nbformat.read(
        tmp_path / "course" / "release" / "ps1" / "80_scratch.ipynb", 4
    )
    for theirs, ours in zip(released.cells, reader.cells, strict=True):
        if theirs.cell_type == "code" and theirs.id != "ch80-setup":
            lines = [line for line in theirs.source.splitlines() if line.strip()]
            assert lines == [ln for ln in ours.source.splitlines() if ln.strip()]
