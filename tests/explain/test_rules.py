"""The table of errors that `explain` knows, and the small parts that fill it in."""

import ast
import functools
import html
import re
import textwrap
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import spmd_helpers as spmd
from spmd_helpers._core import book
from spmd_helpers._explain import explain as module
from spmd_helpers._explain import fields
from spmd_helpers._explain.explain import Explanation, chapter_words, explain, match
from spmd_helpers._explain.read import LONGEST, Raised, one_line, read_text
from spmd_helpers._explain.rules.rule import BOTH
from spmd_helpers._explain.rules.table import RULES, records

from .cases import CASES, IS_OLD, OTHER_VERSION, errors
from .cures import OF_PROCESSES
from .test_explain import RECORDED
from .test_reports import REPORTS
from .unrelated import strangers

BOOK = Path(__file__).parents[2] / "book"
CHAPTERS = [path.stem for path in sorted((BOOK / "chapters").glob("*.md"))]
CASE = '`@case("{}")` over a program that raises it, in tests/explain/cases.py'

# The table.


def derived(groups) -> set[str]:
    """The names that follow from a pattern's groups."""
    sample = {"dim": "0", "size": "10", "parts": "8", "shape": "(10,)", "rank": "1"}
    sample |= {"spec": "P('x')", "axes": "('x',)", "axis": "y", "bytes": "1"}
    sample |= {"ids": "[0]", "ids_other": "[1]", "argument": "in_specs"}
    return set(fields.readable({name: sample.get(name, "x") for name in groups}))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_rule_is_well_made(rule):
    assert re.fullmatch(r"[a-zA-Z]+(-[a-zA-Z]+)*", rule.code), "words-like-these"
    assert rule.chapter in CHAPTERS, f"chapter {rule.chapter!r} is not in book/chapters"
    for key in ("patterns", "raised", "says"):
        assert getattr(rule, key), f"{key!r} is empty"
    assert rule.means.endswith((".", "{near}")), "'means' is a sentence: it ends in '.'"
    assert len(rule.means) <= 260, f"'means' has {len(rule.means)} characters, over 260"
    lines = len(rule.instead.splitlines())
    assert 1 <= lines <= 2, f"'instead' has {lines} lines, and one or two are shown"
    wanted = set(fields.placeholders(rule.means) + fields.placeholders(rule.instead))
    of_place = set(re.compile(rule.where).groupindex)
    for pattern in rule.patterns:
        groups = of_place | set(re.compile(pattern).groupindex)
        unread = wanted - derived(groups)
        assert not unread, f"{unread} in 'means' or 'instead', but not in {pattern!r}"
    assert not rule.check or rule.check in fields.CHECKS, f"no check {rule.check!r}"


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_what_is_advised_is_python(rule):
    words = dict.fromkeys(fields.placeholders(rule.instead), "x")
    text = rule.instead.replace("!r}", "}").format_map(words)
    # In a call, `...` stands for arguments: no keyword before it.
    ast.parse(re.sub(r", \.\.\.\)", ")", text))


def test_codes_are_unique():
    codes = [rule.code for rule in RULES]
    assert len(codes) == len(set(codes)) > 100


def test_names_of_this_package_exist():
    used = {name for r in RULES for name in re.findall(r"spmd\.(\w+)", r.instead)}
    assert {"use_devices", "xray", "draw"} <= used
    assert used <= set(spmd.__all__)


def test_records_are_plain_words():
    table = records()
    assert len(table) == len(RULES)
    for record in table:
        assert set(record) == {
            *("code", "subject", "raised", "says", "means", "instead"),
            *("chapter", "versions"),
        }
        assert all(isinstance(text, str) and text for text in record.values())
        assert not re.search(r"\{\w+(!r)?\}|\{\{", record["means"] + record["instead"])
    versions = {record["versions"] for record in table}
    assert versions == {BOTH, "0.12", "GPU", "TPU"}


# Mutants: a table with one thing less.


@pytest.fixture(scope="module")
def known_errors():
    """[(error, its code, the numbers of all rules that match it)]; "" if unrelated."""
    read = module._read
    known = [
        (read(errors()[name]), case.code)
        for name, case in CASES.items()
        if case.code is not None
    ]
    known += [(read_text(text)[0], code) for text, code in RECORDED.items()]
    known += [(read_text(one["line"])[0], one["code"]) for one in REPORTS]
    known += [(read(error), "") for error in strangers().values()]
    return [
        (raised, code, [i for i, r in enumerate(RULES) if match(r, raised) is not None])
        for raised, code in known
    ]


def misread(mutant, number: int, known_errors):
    """Errors that are explained otherwise with `mutant` in place of a rule.

    Without that rule if `mutant` is None. For each: the error, by which rule it is
    known then, and by which it should be; "" for none.
    """
    for raised, code, matches in known_errors:
        others = [i for i in matches if i != number]
        if mutant is not None and match(mutant, raised) is not None:
            others.append(number)
        known = RULES[min(others)].code if others else ""
        if known != code:
            yield raised, known, code


def killed(mutant, number: int, known_errors) -> bool:
    """Whether an error is explained otherwise with `mutant` in place of a rule."""
    return any(True for _ in misread(mutant, number, known_errors))


def test_the_table_itself_is_not_killed(known_errors):
    misreadings = {
        f"{(*raised.kinds, 'a text')[0]}: {raised.message[:80]!r} is explained by "
        f"{known or 'no rule'!r}, and should be by {code or 'no rule'!r}"
        for i, rule in enumerate(RULES)
        for raised, known, code in misread(rule, i, known_errors)
    }
    assert not misreadings, (
        "; ".join(sorted(misreadings))
        + ". Narrow the pattern of the first, or put it behind "
        "the second in src/spmd_helpers/_explain/rules/. Where no rule explains it, "
        "compare the pattern with the text above: a backtick is read as '"
    )


def test_every_rule_is_needed(known_errors):
    here = [
        i
        for i, rule in enumerate(RULES)
        if rule.code not in OF_PROCESSES and not (IS_OLD and rule.versions == "0.12")
    ]
    unused = [RULES[i].code for i in here if not killed(None, i, known_errors)]
    assert not unused, "no error needs the rule; add " + " and ".join(
        CASE.format(code) for code in unused
    )
    assert len(here) > 100


def test_every_pattern_is_needed(known_errors):
    survivors = set()
    for number, rule in enumerate(RULES):
        for i in range(len(rule.patterns)):
            fewer = rule.patterns[:i] + rule.patterns[i + 1 :]
            if not killed(replace(rule, patterns=fewer), number, known_errors):
                survivors.add((rule.code, i))
    allowed = {(code, i) for code, places in OTHER_VERSION.items() for i in places}
    allowed |= {(code, 0) for code in OF_PROCESSES}
    unused = sorted(survivors - allowed)
    assert not unused, (
        f"no error needs these patterns (rule, which of them): {unused}. Add "
        + " and ".join(CASE.format(code) for code, _ in unused)
        + ", or to OTHER_VERSION there what only the other version of JAX says"
    )


def test_every_place_and_check_is_needed(known_errors):
    """Without `where` or `check` a rule takes errors that are not its own."""
    survivors = []
    for number, rule in enumerate(RULES):
        loose = replace(rule, where="", check="")
        if loose != rule and not killed(loose, number, known_errors):
            survivors.append(rule.code)
    assert not survivors, (
        f"without 'where' and 'check' these rules explain the same: {survivors}. Leave "
        "them out, or add an error that they keep away to tests/explain/unrelated.py"
    )


def test_the_order_matters(known_errors):
    shared = [(code, matches) for _, code, matches in known_errors if len(matches) > 1]
    assert all(RULES[matches[0]].code == code for code, matches in shared)
    assert len({code for code, _ in shared}) > 5  # which a broader rule would take


# Text and HTML.


class Cells(HTMLParser):
    def __init__(self):
        super().__init__()
        self.rows, self.code = [], []

    def handle_starttag(self, tag, attrs):
        if tag == "tr":
            self.rows.append([])
        elif tag in ("th", "td"):
            self.rows[-1].append("")
        elif tag == "code":
            self.code.append("")

    def handle_data(self, data):
        if self.rows and data.strip():
            self.rows[-1][-1] += data
        if self.lasttag == "code" and data.strip():
            self.code[-1] += data


def test_html_has_the_rows_of_the_text():
    for error in errors().values():
        if error is None:
            continue
        said = explain(error)
        cells = Cells()
        cells.feed(said._repr_html_())
        assert [tuple(row) for row in cells.rows] == said._rows()
        lines = str(said).splitlines()
        assert len(lines) <= 5
        assert "\n".join(line[9:] for line in lines) == "\n".join(
            words for _, words in said._rows()
        )
        assert cells.code == [said.instead]


def test_html_escapes():
    said = Explanation("x", "a < b & c", "f(<x>)", "05_three_modes", True, "A<B>")
    html = said._repr_html_()
    assert "a &lt; b &amp; c" in html
    assert "f(&lt;x&gt;)" in html
    assert 'aria-label="A&lt;B&gt;, explained"' in html


def test_words_of_an_explanation():
    assert str(explain(errors()["set_mesh_inside_jit"])) == textwrap.dedent("""\
        means    A mesh is part of how a function is compiled, so it is set before the \
function is called.
        instead  with jax.set_mesh(mesh):
                     y = step(x)  # step is the jitted function
        chapter  3, mesh and partitionspec""")


def test_a_chapter_is_a_link_where_the_book_has_an_address(monkeypatch, tmp_path):
    text = (BOOK.parent / "_config.yml").read_text("utf8")
    address = "https://example.org/b&w"
    text = re.sub(r'(?m)^  baseurl: "[^"]*"', f'  baseurl: "{address}/"', text)
    (tmp_path / "_config.yml").write_text(text, "utf8")
    page = f"{address}/notebooks/03_mesh_and_partitionspec.html"
    said = explain(errors()["set_mesh_inside_jit"])
    alone = re.sub(rf"\n +{re.escape(page)}$", "", str(said))
    settings = (tmp_path / "not_there.yml", tmp_path / "_config.yml")
    monkeypatch.setattr(
        book, "book_address", functools.partial(book.book_address, settings)
    )
    assert str(said) == f"{alone}\n{' ' * 9}{page}"
    link = f'<a href="{html.escape(page)}">3, mesh and partitionspec</a>'
    assert link in said._repr_html_()
    assert "<a " not in explain(KeyError("w"))._repr_html_()


def test_without_an_address_a_chapter_is_words(tmp_path):
    assert book.book_address((tmp_path / "_config.yml",)) == ""
    (tmp_path / "_config.yml").write_text('html:\n  baseurl: ""\n')
    assert book.book_address((tmp_path / "_config.yml",)) == ""


def test_chapter_words():
    assert chapter_words("12_attention") == "12, attention"
    assert chapter_words("") == ""


# The small parts.


def test_one_line_forgets_colors_and_the_note_on_frames():
    note = "\n--------------------\nFor simplicity, JAX has removed its frames."
    assert one_line(f"\x1b[31ma\x1b[0m `b`\n\n c{note}") == "a 'b' c"
    assert len(one_line("x" * (LONGEST + 1))) == LONGEST


@pytest.mark.parametrize(
    ("text", "raised"),
    [
        ("jax.errors.JaxRuntimeError: no", Raised(("JaxRuntimeError",), "no")),
        ("AssertionError", Raised(("AssertionError",), "")),
        ("AssertionError: ", Raised(("AssertionError",), "")),
        (
            "/home/reader/x.py:3: DeprecationWarning: old\n  with mesh:",
            Raised(("DeprecationWarning",), "old with mesh:"),
        ),
        ("Error in the cell below", Raised((), "Error in the cell below")),
        (
            'Traceback (most recent call last):\n  File "a.py", line 1, in f\n'
            "    y = g(1) + 2\n        ~^^^\nKeyError: 'w'",
            Raised(("KeyError",), "'w'", "a.py:f: g(1)"),
        ),
        (
            "KeyError     Traceback (most recent call last)\nCell In[3], line 2\n"
            "      1 x = 1\n----> 2 g(x)\n\nFile ~/a.py:7, in g(x)\n      6 def g(x):\n"
            "----> 7     return {}[x]\n\nKeyError: 1",
            Raised(("KeyError",), "1", "cell:<module>: g(x)\n~/a.py:g: return {}[x]"),
        ),
    ],
)
def test_read_text(text, raised):
    assert read_text(text) == [raised]


def test_readable_words():
    words = fields.readable(
        {
            "mesh": "Mesh('data': 4, 'model': 2, axis_types=(Auto, Explicit))",
            "axes": "frozenset({'data'})",
            "axis": "dta",
            "kind": "<class 'jax.sharding.NamedSharding'>",
            "ids": str(list(range(64))),
            "left": "(('data', 'model'),)",
            "right": "(None,)",
            "value": "Mesh('x': 8, axis_types=(Auto,))",
            "path": None,
        }
    )
    assert words["mesh"] == "data=4 × model=2 (Auto, Explicit)"
    assert (words["axes"], words["near"]) == ("'data'", "Did you mean 'data'?")
    assert words["kind"] == "NamedSharding"
    assert (words["ids"], words["ids_list"]) == ("devices 0–63", "[0, 1, 2, 3, …]")
    assert (words["left"], words["right"]) == ("over ('data', 'model')", "unsharded")
    assert (words["value"], words["path"]) == ("Mesh('x': 8)", "")


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 64), st.integers(1, 4), st.integers(0, 200), st.data())
def test_padding_reaches_the_next_multiple(parts, rank, size, data):
    dim = data.draw(st.integers(0, rank - 1))
    shape = tuple(size if i == dim else 3 for i in range(rank))
    words = fields.readable(
        {"parts": str(parts), "size": str(size), "dim": str(dim), "shape": str(shape)}
    )
    padded = np.pad(np.zeros(shape), ast.literal_eval(words["pads"])).shape
    assert padded[dim] == int(words["more"])
    assert padded[dim] % parts == 0
    assert 0 <= padded[dim] - size < parts
    assert padded[:dim] + padded[dim + 1 :] == shape[:dim] + shape[dim + 1 :]


NAMES = st.sampled_from(["data", "model", "x"])
ENTRIES = st.one_of(st.none(), NAMES, st.permutations(["data", "model"]).map(tuple))


@given(st.lists(ENTRIES, max_size=4), st.integers(0, 4))
def test_a_spec_is_shortened_to_the_rank(entries, rank):
    spec = repr(jax.P(*entries))
    words = fields.readable({"spec": spec, "rank": str(rank)})
    assert eval(words["shorter"], {"P": jax.P}) == jax.P(*entries[:rank])
    assert eval(words["spec"], {"P": jax.P}) == jax.P(*entries)
