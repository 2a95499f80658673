"""The page of errors reads and matches a pasted text as `spmd.explain` does."""

import gc
import json
import re
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spmd_helpers._explain.explain import explain, match
from spmd_helpers._explain.fields import CHECKS
from spmd_helpers._explain.read import read_text
from spmd_helpers._explain.rules.table import RULES

from .cases import CASES, errors
from .test_explain import (
    RECORDED,
    SPEC_ERROR,
    chained,
    in_a_notebook,
    ipython_text,
    python_text,
)
from .test_explain import texts as near_texts
from .test_reports import REPORTS
from .unrelated import strangers

BOOK = Path(__file__).parents[2] / "book"
sys.path.insert(0, str(BOOK / "_ext"))

from rules_data import javascript, joined  # noqa: E402, found by the path above

SCRIPT = joined((BOOK / "scripts" / "explain.js").read_text("utf8"))
# Of each error in a text what is read, and all rules that match, in their order.
READ = """([script, texts]) => new Function("texts", `${script}
  const plain = (groups) => Object.fromEntries(
    Object.entries(groups).map(([name, text]) => [name, text ?? null]));
  return texts.map((text) => ({
    first: explain(text).code,
    errors: readText(text).map((error) => ({
      ...error,
      rules: EXPLAIN.rules.map((rule) => [rule[0], match(rule, error)])
        .filter(([, groups]) => groups)
        .map(([code, groups]) => [code, plain(groups)]),
    })),
  }));`)(texts).map((read) => JSON.stringify(read))"""


def in_python(text: str) -> dict:
    answers = []
    for raised in read_text(text):
        matches = ((rule.code, match(rule, raised)) for rule in RULES)
        answers.append(
            {
                "kind": "".join(raised.kinds),
                "message": raised.message,
                "frames": raised.frames,
                "rules": [[code, g] for code, g in matches if g is not None],
            }
        )
    return {"first": explain(text).code, "errors": answers}


@pytest.fixture(scope="module")
def page(browser):
    opened = browser.new_page()
    yield opened
    opened.close()


LOGGED = (
    "E1129 23:12:23.803287    4334 add_port.cc:83] Failed to add port to server: No"
    " address added out of total 1 resolved for '[::]:38127' (Address already in use)"
)


def in_browser(page, texts: list[str], script: str = SCRIPT) -> list[dict]:
    return [json.loads(read) for read in page.evaluate(READ, [script, texts])]


def pasted(error: BaseException) -> list[str]:
    """An error as people paste it."""
    plain = python_text(error)
    message = f"{type(error).__name__}: {error}"
    return [str(error), message, plain, f"step 3\nloss 0.1\n{plain}\nbye\n"]


@pytest.fixture(scope="module")
def all_texts() -> list[str]:
    """Every error that the tests of `explain` know, each as it is pasted."""
    # One program recurses without end: a finalizer of the browser's would fail there.
    gc.disable()
    try:
        raised = [errors()[name] for name in CASES if errors()[name] is not None]
        raised += strangers().values()
    finally:
        gc.enable()
    raised += [chained(cause=SPEC_ERROR)]
    raised += [chained(context=SPEC_ERROR), ExceptionGroup("two", [*raised[:2]])]
    texts = [text for error in raised for text in pasted(error)]
    texts += [ipython_text(errors()[name]) for name in in_a_notebook().values()]
    texts += [*RECORDED, *(report["line"] for report in REPORTS), ""]
    return list(dict.fromkeys(texts))


def test_what_was_recorded_is_read_and_matched_as_in_python(page):
    alone = [f"{rule.raised[0]}: {rule.says}" for rule in RULES]
    texts = [*RECORDED, *(report["line"] for report in REPORTS), *alone, ""]
    texts += [python_text(chained(cause=SPEC_ERROR)), ipython_text(chained())]
    texts += [f"{LOGGED}\n{text}" for text in texts[-2:]]
    assert in_browser(page, texts) == [in_python(text) for text in texts]


@pytest.mark.long("every error that JAX raises here, read by the page's script")
def test_every_text_is_read_and_matched_as_in_python(page, all_texts):
    for text, read in zip(all_texts, in_browser(page, all_texts), strict=True):
        assert read == in_python(text), text
    codes = {read["first"] for read in in_browser(page, all_texts)}
    assert len(codes) > 150


@settings(max_examples=40, deadline=None)
@given(st.lists(near_texts(), min_size=1, max_size=8))
def test_near_texts_are_read_as_in_python(page, texts):
    texts = [text.encode("utf8", "ignore").decode("utf8") for text in texts]
    assert in_browser(page, texts) == [in_python(text) for text in texts]


def test_a_long_log_is_read_from_its_end(page):
    text = "line of a log\n" * 60_000 + python_text(SPEC_ERROR) + "x" * 9_000
    assert in_browser(page, [text]) == [in_python(text)]
    assert in_python(text)["first"] == "unknown-axis"


# The checks of groups, on more than the cases have.
TYPES = st.sampled_from(["float32[8@x,4]", "float32[8@y,4]", "float32[8,4]"])
VARIES = st.sampled_from(["", "{V:x}", "{V:(x,y)}", "{x,y}", "{y}", "{V:(y,x)}"])
GROUPS = st.fixed_dictionaries(
    {
        "ids": st.sampled_from(["[0, 1]", "[1, 0]", "[2]", "[10, 9]"]),
        "ids_other": st.sampled_from(["[0, 1]", "[1, 0]", "[2]", "[9, 10]"]),
        "platform": st.sampled_from(["cpu", "gpu"]),
        "platform_other": st.sampled_from(["cpu", "gpu"]),
        "type": st.tuples(TYPES, VARIES).map("".join),
        "type_out": st.tuples(TYPES, VARIES).map("".join),
        "spec": st.sampled_from(["P('x',)", "P(('x', 'y'))", "P('z')", "P()"]),
        "mesh": st.sampled_from(
            [
                "Mesh('x': 4, 'y': 2, axis_types=(Explicit, Manual))",
                "Mesh('x': 4, 'y': 2, axis_types=(Explicit, Explicit))",
                "Mesh('x': 4, 'y': 2, 'z': 1, axis_types=(Manual, Auto, Explicit))",
                "Mesh('x': 4)",
            ]
        ),
    }
)
CHECKED = """([script, many]) => new Function("many", `${script}
  return many.map((groups) => Object.fromEntries(Object.entries(CHECKS).map(
    ([name, check]) => [name, check(groups)])));`)(many)"""


@settings(max_examples=30, deadline=None)
@given(st.lists(GROUPS, min_size=4, max_size=20))
def test_the_checks_are_those_of_python(page, many):
    expected = [{name: c(groups) for name, c in CHECKS.items()} for groups in many]
    assert page.evaluate(CHECKED, [SCRIPT, many]) == expected


# What differs between the two languages.
DIFFERENT = [
    (r"^\w+$", 0, ["ax\n", "ax", "größe", "x\n\n"]),
    (r"a.b", 0, ["a\rb", "a\u2028b", "a\nb"]),
    (r"a.b", re.DOTALL, ["a\nb"]),
    (r"^b$", re.MULTILINE, ["a\nb\nc", "a\rb\rc", "a\u2028b"]),
    (r"\bö\b", 0, ["ö", "aö", "ö!", " ö "]),
    (r"\Aa\Z", 0, ["a", "a\n", "b\na"]),
    (r"[\s,]\S[^\s.]", 0, ["\x1cab", "\ufeffab", ",a\x85", " ab", ",a."]),
    (r"(?P<q>['\"]).*?(?P=q)", 0, ["'a\"'", "\"a'", "x"]),
    (r"\d{2,3}?\{x\}/\-[\]\-^]", 0, ["12{x}/-]", "١٢٣{x}/--", "1{x}/-]"]),
    (r"a(?!b)|(?<=c)d|(?<!e)f|(?:g){2}", 0, ["ab", "ac", "cd", "ef", "f", "gg", "}"]),
]


@pytest.mark.parametrize(("pattern", "flags", "texts"), DIFFERENT)
def test_a_pattern_means_the_same_in_javascript(page, pattern, flags, texts):
    find = "([p, all]) => all.map(t => t.match(new RegExp(p, 'u'))?.[0] ?? null)"
    places = (re.search(pattern, text, flags) for text in texts)
    expected = [match and match[0] for match in places]
    assert page.evaluate(find, [javascript(pattern, flags), texts]) == expected


@pytest.mark.parametrize(
    "pattern", ["(?i)a", r"\Ba", "a*+", "a{2}+", "(?>a)", r"[\S]", "[]"]
)
def test_what_has_no_translation_stops(pattern):
    with pytest.raises(ValueError, match="no JavaScript for"):
        javascript(pattern)


@pytest.mark.parametrize(
    "mutant",
    [
        ("errors.unshift", "errors.push"),
        ("error.frames || !alone", "error.frames"),
        ('reading("chain")', '"never"'),
        ("!raised.includes(error.kind)", "false"),
        ("head[2] ||", "head[1] ||"),
        ('statement.startsWith("assert")', "false"),
        ("!check ||", "true ||"),
        ("bare(type) === bare(out) &&", ""),
    ],
)
def test_a_script_with_a_fault_is_noticed(page, all_texts, mutant):
    old, new = mutant
    assert old in SCRIPT
    read = in_browser(page, all_texts, SCRIPT.replace(old, new))
    assert any(r != in_python(t) for t, r in zip(all_texts, read, strict=True))
