"""The search: places that it opens, in an order that helps; and a pasted error."""

import pytest

from .site_reading import SITE, reading, serving
from .test_errors_page import FOCUSED, TRACEBACK, opened_entries, paste

MORE = pytest.mark.long("the search and the way around, in a browser, once more")
HITS = """[...document.querySelectorAll('#search-results li > a')].map(
    a => [a.textContent, a.getAttribute('href')])"""


def more(*values):
    return pytest.param(*values, marks=MORE)


@pytest.fixture
def reader(browser):
    with reading(browser, f"{SITE.as_uri()}/") as opened:
        yield opened
        assert opened.errors == []


def hits(reader, query: str) -> list[list[str]]:
    page = reader.go(f"search.html?q={query}")
    page.wait_for_function("/finished|did not match/.test(document.body.innerText)")
    return page.evaluate(HITS)


@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("mesh", "book/glossary.html#term-mesh"),
        ("unknown axis", "book/errors.html#unknown-axis"),
        more("all-gather", "book/glossary.html#term-all-gather"),
        more("zero-3", "book/glossary.html#term-fsdp-zero-3"),
        more("donated twice", "book/errors.html#donated-twice"),
        more("P.UNCONSTRAINED", "book/errors.html#unconstrained-not-here"),
    ],
)
def test_what_is_asked_for_by_its_name_leads(reader, query, first):
    results = hits(reader, query)
    assert results[0][1] == first
    addresses = [address for _, address in results]
    assert len(set(addresses)) == len(addresses)
    assert not any(address.startswith("solutions/") for address in addresses)


@MORE
def test_the_excerpt_of_a_term_is_its_meaning(browser):
    with serving(SITE) as base, reading(browser, base) as opened:
        page = opened.go("search.html?q=all-gather")
        first = page.locator("#search-results li").first
        first.get_by_text("all-gather: Every device of a group").wait_for()
        assert opened.errors == []


def test_a_hit_opens_its_section(reader):
    results = hits(reader, "psum_scatter")
    address = next(a for _, a in results if a.startswith("notebooks/"))
    page, _, place = address.partition("#")
    assert place
    reader.page.locator(f'#search-results a[href="{address}"]').click()
    reader.page.wait_for_url(f"**/{page}#{place}")
    section = reader.page.locator(f"[id='{place}']")
    assert "psum_scatter" in section.inner_text()
    assert abs(section.bounding_box()["y"]) < 200


def test_every_hit_has_its_place(reader):
    for _, address in hits(reader, "axis"):
        page, _, place = address.partition("#")
        text = (SITE / page).read_text("utf8")
        assert not place or f'id="{place}"' in text, address


@MORE
def test_no_mark_stays_after_a_search(reader):
    hits(reader, "mesh")
    page = reader.go("notebooks/03_mesh_and_partitionspec.html")
    assert page.locator(".highlighted").count() == 0
    assert page.evaluate("localStorage.getItem('sphinx_highlight_terms')") is None


@pytest.mark.parametrize(
    "start", ["notebooks/03_mesh_and_partitionspec.html", more("x")]
)
def test_an_error_pasted_into_the_search_is_explained(reader, start):
    page = reader.go("book/errors.html" if start == "x" else start)
    page.keyboard.press("Control+k")
    field = "dialog[open] input[type=search]"
    page.wait_for_selector(field)
    paste(page, "mesh", field)
    assert page.locator(field).input_value() == "mesh"
    paste(page, TRACEBACK, field)
    page.wait_for_url("**/errors.html#unknown-axis")
    assert opened_entries(page) == ["unknown-axis"]
    page.wait_for_function(f"{FOCUSED} === 'Unknown axis'")


def test_an_error_typed_into_the_search_is_explained(browser):
    with serving(SITE) as address, reading(browser, address) as reader:
        page = reader.go("search.html")
        field = page.locator("main form.bd-search input")
        field.fill("NameError: unbound axis name: x")
        field.press("Enter")
        page.wait_for_url("**/errors.html#unbound-axis")
        assert opened_entries(page) == ["unbound-axis"]


def test_the_glossary_is_a_list_of_terms():
    text = (SITE / "book" / "glossary.html").read_text("utf8")
    assert text.count('<dt id="term-') >= 30


# The way around at the side, and to a widget.

ACTIVE = "document.activeElement"
IN_SIGHT = """() => {
  const links = [...document.querySelectorAll('#pst-primary-sidebar a.current')];
  const box = links.at(-1).getBoundingClientRect();
  const side = document.querySelector('#pst-primary-sidebar').getBoundingClientRect();
  return box.top >= side.top && box.bottom <= Math.min(side.bottom, innerHeight);
}"""


@pytest.mark.parametrize(
    "name",
    [
        more("notebooks/01_pmap_mnist.html"),
        more("notebooks/10_fsdp.html"),
        "notebooks/16_many_hosts.html",
        "solutions/12_attention.html",
        more("book/references.html"),
    ],
)
def test_the_sidebar_shows_where_one_is(reader, name):
    page = reader.go(name)
    page.wait_for_function(IN_SIGHT)
    solved = page.locator("#pst-primary-sidebar a", has_text=", solved")
    assert solved.count() >= 15
    folded = not name.startswith("solutions/")
    assert solved.first.is_visible() != folded
    captions = page.locator("#pst-primary-sidebar .caption-text").all_inner_texts()
    assert captions.index("Look up") < captions.index("Exercises and solutions")


@pytest.mark.parametrize(
    "name",
    [
        "mesh_planner",
        *map(more, ("sharding_explorer", "matmul_explorer", "memory_calculator")),
    ],
)
def test_a_widget_is_few_stops_away(reader, name):
    page = reader.go(f"book/{name}.html")
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    focused = page.locator(":focus")
    assert focused.inner_text() == f"Skip to the {name.replace('_', ' ')}"
    # The theme lets it slide into sight.
    page.wait_for_function(f"{ACTIVE}.getBoundingClientRect().y >= 0")
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    root = f"#spmd-{name.replace('_', '-')}"
    assert page.evaluate(f"document.querySelector('{root}').contains({ACTIVE})")


def test_the_box_for_an_error_is_few_stops_away(reader):
    page = reader.go("book/errors.html")
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    assert page.locator(":focus").inner_text() == "Skip to the box for an error"
    page.keyboard.press("Enter")
    page.wait_for_function(f"{ACTIVE}.id === 'spmd-paste-text'")
