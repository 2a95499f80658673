"""Every built page is valid HTML; what makes it so, and what is seen if it is not."""

import sys

import pytest

from .html_faults import faults
from .site_reading import PAGES, ROOT, SITE

sys.path.insert(0, str(ROOT / "book" / "_ext"))

from spmd_valid import mended

HEAD = (
    "<!DOCTYPE html><html lang='en'><head><meta charset='utf-8'><title>x</title></head>"
)


def page(body: str, head: str = HEAD) -> str:
    return f"{head}<body><main><h1>x</h1>{body}</main></body></html>"


SOLVED = pytest.mark.long("solved pages, which are made as readers' are")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[SOLVED] if name.startswith("solutions/") else [])
        for name in ("index.html", *PAGES)
    ],
)
def test_page_is_valid(name):
    messages = faults((SITE / name).read_text("utf8"))
    if name == "index.html":  # it only leads on
        messages.remove("0 headings h1")
    assert messages == []


def test_nothing_in_the_site_is_a_template():
    assert list((SITE / "_static").rglob("*.html")) == []


def test_a_valid_page_has_no_faults():
    body = """<h2 id="a">y</h2><ul><li><p>z</p></li></ul><form>
    <label for="b">b</label><input id="b"><label>c <select><option>1</select></label>
    <input type="search" aria-label="d"><button aria-controls="a">e</button></form>
    <details><summary>f <code>g</code></summary><div>h</div></details><a href="#a">i</a>
    <svg viewBox="0 0 1 1"><path d="M0 0"/><title>k</title></svg>
    <math><mi>x</mi></math><table><caption>t</caption><tr><td>1</table>"""
    assert faults(page(body)) == []


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("<div>", "end-tag"),
        ("</span>", "unexpected-end-tag"),
        ("<b><i>x</b></i>", "adoption-agency"),
        ("<p>a<div>b</div></p>", "unexpected-end-tag"),
        ('<p class="a" class="b">x</p>', "duplicate-attribute"),
        ("<table><p>x</p></table>", "table-voodoo"),
        ("<div/>", "trailing-solidus"),
        ("&nothing; here", "entity"),
        ('<p id="a">x</p><p id="a">y</p>', "id 'a' 2 times"),
        ('<p id="a b">x</p>', "id 'a b' is empty or has a space"),
        ("<h1>y</h1>", "2 headings h1"),
        ("<h3>y</h3>", "after a heading of level 1"),
        ("<h2> </h2>", "an empty h2"),
        ("<input>", "<input> without a label"),
        ("<label for='a'>b</label>", "for names no 'a'"),
        ("<p aria-labelledby='a'>b</p>", "aria-labelledby names no 'a'"),
        ("<details><summary><p>b</p></summary></details>", "'b' in <summary>"),
        ("<details><p>b</p><summary>c</summary></details>", "not the first"),
        ("<span><div>b</div></span>", "'b' in <span>"),
        ("<em><a href='x'><div>b</div></a></em>", "'b' in <em>"),
        ("<a href='x'><button>b</button></a>", "<button> 'b' in <a>"),
        ("<ul><div>b</div></ul>", "<div> 'b' in <ul>"),
        ("<div><li>b</li></div>", "<li> 'b' in <div>"),
        ("<dl><p>b</p></dl>", "<p> 'b' in <dl>"),
        ("<center>b</center>", "<center> is no element"),
        ("<table border='1'></table>", "<table> has border"),
        ("<img src='x.png'>", "<img> without alt"),
        ("<nav role='navigation'></nav>", "says its own role"),
    ],
)
def test_a_fault_is_seen(fault, words):
    assert any(words in message for message in faults(page(fault)))


@pytest.mark.parametrize(
    ("head", "words"),
    [
        ("<html lang='en'><title>x</title>", "doctype"),
        ("<!DOCTYPE html><html><title>x</title>", "the page has no language"),
        ("<!DOCTYPE html><html lang='en'>", "0 titles"),
        (HEAD + "<meta name='a'><meta name='a'>", "meta a 2 times"),
    ],
)
def test_a_fault_of_the_head_is_seen(head, words):
    assert any(words in message for message in faults(page("", head)))


# What the tools write, and what is made of it.


def test_the_label_of_a_hidden_cell_says_what_can_be_read():
    written = page(
        '<details class="hide">\n<summary aria-label="Toggle hidden content">\n'
        '<p class="collapsed admonition-title">Show</p>\n'
        '<p class="expanded admonition-title">Hide</p>\n</summary>\n'
        "<div>x</div></details>"
    )
    assert faults(written)
    assert faults(mended(written)) == []
    assert "aria-label" not in mended(written)
    assert ">Show</span>" in mended(written)


def test_two_drawings_with_the_same_ids_get_their_own():
    drawing = (
        '<svg aria-labelledby="t"><title id="t">x</title><path id="m1" d="M0 0"/>'
        '<path id="m" d="M0 0"/><use href="#m"/><g clip-path="url(#m)"/></svg>'
    )
    mended_page = mended(page(drawing * 3))
    assert faults(mended_page) == []
    assert mended_page.count('href="#m"') == mended_page.count('href="#m-2"') == 1
    assert mended_page.count("url(#m-3)") == mended_page.count('id="m1-2"') == 1
    assert mended_page.count('aria-labelledby="t-3"') == 1


def test_the_rest_is_left_as_it_was():
    text = page('<pre>a &lt;br /&gt; b</pre><svg><path d="M0"/></svg><p>x<br></p>')
    assert mended(text) == text
    assert mended(page("<br />")) == page("<br>")
