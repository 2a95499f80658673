"""The page of errors in a browser: a pasted error opens its entry."""

import gzip
import re

import pytest

from spmd_helpers._explain.rules.table import RULES

from .site_reading import (
    BY_TAGS,
    COLORS,
    HARD_TO_READ,
    SITE,
    WIDER,
    reading,
    serving,
    violations,
)

PAGE = "book/errors.html"
DIVIDED = (
    "ValueError: One of device_put args was given the sharding of NamedSharding("
    "mesh=Mesh('data': 8, axis_types=(Auto,)), spec=P('data',), memory_kind=device), "
    "which implies that the global size of its dimension 0 should be divisible by 8, "
    "but it is equal to 10 (full shape: (10, 4))"
)
TRACEBACK = """
2026-01-02 03:04:05 worker 3 begins
\x1b[31mTraceback (most recent call last):\x1b[0m
  File "train.py", line 12, in <module>
    x = jax.device_put(x, NamedSharding(mesh, P("data", "modle")))
ValueError: Resource axis: modle of P('data', 'modle') is not found in mesh: \
('data', 'model').
"""
FOCUSED = "document.activeElement.firstChild.textContent"


@pytest.fixture(scope="module")
def address(browser):
    with serving(SITE) as served:
        yield served


@pytest.fixture
def reader(browser):
    with reading(browser, f"{SITE.as_uri()}/") as opened:
        yield opened
        assert opened.errors == []


def paste(page, text: str, place: str = "#spmd-paste-text") -> None:
    """As a clipboard gives it, which a page from a folder may not read by itself."""
    page.locator(place).evaluate(
        """(area, text) => {
          const given = new DataTransfer();
          given.setData("text/plain", text);
          const what = {clipboardData: given, bubbles: true, cancelable: true};
          const event = new ClipboardEvent("paste", what);
          if (area.dispatchEvent(event)) area.value += text;
        }""",
        text,
    )


def opened_entries(page) -> list[str]:
    return page.evaluate(
        "[...document.querySelectorAll('.spmd-error[open]')]"
        ".map(e => e.parentElement.id)"
    )


def test_a_pasted_traceback_opens_its_entry(reader):
    page = reader.go(PAGE)
    assert page.locator("#pst-page-toc-nav a, .bd-toc-nav a").count() < 20
    paste(page, TRACEBACK)
    page.wait_for_function("location.hash === '#unknown-axis'")
    assert page.evaluate(FOCUSED) == "Unknown axis"
    assert opened_entries(page) == ["unknown-axis"]
    box = page.locator("#unknown-axis").bounding_box()
    assert 0 <= box["y"] < 300
    values = page.locator("#unknown-axis .spmd-read li").all_inner_texts()
    assert "AXIS: modle" in values
    assert "AXES: ('data', 'model')" in values
    assert page.locator("[role=status] a").get_attribute("href") == "#unknown-axis"


def test_its_sentences_have_the_values_until_it_is_cleared(reader):
    page = reader.go(PAGE)
    section = page.locator("#not-divisible")
    paste(page, DIVIDED)
    said = section.locator(".spmd-error > p").inner_text()
    assert said.startswith(
        "P('data',) splits dimension 0 of the shape (10, 4) into 8 equal shards, and "
        "10 is not divisible by 8."
    )
    assert "SIZE" in section.locator("summary").inner_text()
    page.click("text=Clear")
    said = section.locator(".spmd-error > p").text_content()
    assert said.startswith("SPEC splits dimension DIM of the shape SHAPE into PARTS")


def test_by_keyboard_one_error_after_another(reader):
    page = reader.go(PAGE, width=390)
    page.locator("#spmd-paste-text").focus()
    page.keyboard.insert_text("NameError: unbound axis name: x")
    page.keyboard.press("Control+Enter")
    assert page.evaluate(FOCUSED) == "Unbound axis"
    page.go_back()
    page.wait_for_function("location.hash === ''")
    page.locator("#spmd-paste-text").focus()
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert page.locator("#spmd-paste-text").input_value() == ""
    assert page.locator("[role=status] > *, .spmd-hit, .spmd-read").count() == 0
    page.keyboard.insert_text("KeyError: 'w'")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    said = page.locator("[role=status]").inner_text()
    assert said.startswith("No rule explains this text, so nothing is guessed: KeyErr")
    assert "the traceback down to its last line" not in said
    assert page.evaluate("document.activeElement.type") == "submit"


def test_a_text_without_an_error_gets_advice(reader):
    page = reader.go(PAGE)
    paste(page, TRACEBACK)
    page.wait_for_function("location.hash === '#unknown-axis'")
    page.fill("#spmd-paste-text", "<b>loss</b> is nan")
    page.click("text=Explain it")
    page.wait_for_function("location.hash === ''")  # no longer the entry's
    said = page.locator("[role=status]").inner_text()
    assert "<b>loss</b> is nan" in said
    assert "Paste the traceback down to its last line" in said
    page.fill("#spmd-paste-text", "spmd_helpers._errors.CheckFailed: 5 is not 6")
    page.click("text=Explain it")
    said = page.locator("[role=status]").inner_text()
    assert said.startswith("CheckFailed is an error of this book's package")
    page.fill("#spmd-paste-text", " ")
    page.click("text=Explain it")
    said = page.locator("[role=status]").inner_text()
    assert said == "The box is empty: paste the error into it first."
    assert page.evaluate("document.activeElement.tagName") == "TEXTAREA"


def test_every_rule_has_its_entry_in_a_group(reader):
    page = reader.go(PAGE)
    entries = page.evaluate(
        "[...document.querySelectorAll('.spmd-error')].map(e => e.parentElement.id)"
    )
    assert sorted(entries) == sorted(rule.code.lower() for rule in RULES)
    listed = page.locator("article > section > ul > li").all_inner_texts()
    assert len(listed) >= 10
    for line in listed:
        name, _, count = line.rpartition(", ")
        section = page.locator("section", has=page.locator(f"h2:text-is('{name}')"))
        assert section.locator(".spmd-error").count() >= int(count) > 0
    sizes = [int(re.search(r"\d+$", line)[0]) for line in listed]
    assert sum(sizes) == len(RULES)
    assert max(sizes) <= 25


def test_an_address_opens_its_entry(reader):
    page = reader.go(f"{PAGE}#mesh-rank")
    assert opened_entries(page) == ["mesh-rank"]
    page.evaluate("location.hash = '#axis-used-twice'")
    page.wait_for_function("document.querySelector('#axis-used-twice details').open")
    reader.go("book/glossary.html")
    page = reader.go(f"{PAGE}#%E0%A4%A")
    assert opened_entries(page) == []


def test_a_heading_opens_its_entry(reader):
    page = reader.go(PAGE)
    page.locator("#mesh-rank h3").click()
    assert opened_entries(page) == ["mesh-rank"]
    page.locator("#mesh-rank h3").click()
    assert opened_entries(page) == []


@pytest.mark.long("every entry of the page of errors, unfolded")
def test_with_all_entries_open_the_page_fits_and_shuts_nobody_out(browser, address):
    with reading(browser, address) as opened:
        page = opened.go(PAGE)
        paste(page, TRACEBACK)
        page.wait_for_function("location.hash === '#unknown-axis'")
        page.evaluate(
            "document.querySelectorAll('.spmd-error').forEach(e => { e.open = true })"
        )
        for width in (1280, 390, 320):
            page.set_viewport_size({"width": width, "height": 900})
            assert page.evaluate(WIDER) == []
            scrolls = "[...document.querySelectorAll('article pre')]"
            scrolls += ".filter(e => e.scrollWidth > e.clientWidth + 1)"
            assert page.evaluate(f"{scrolls}.map(e => e.innerText)") == []
        # One group is as the others, and axe is slow on all of them.
        page.evaluate(
            "document.querySelectorAll('article section section:not(:has(#mesh-rank), "
            ":has(#unknown-axis)):has(> h2)').forEach(e => e.remove())"
        )
        page.add_style_tag(content="* { transition: none !important }")
        for theme in ("light", "dark"):
            page.evaluate(f"document.documentElement.dataset.theme = '{theme}'")
            assert page.evaluate(HARD_TO_READ) == []
            assert violations(page, BY_TAGS if theme == "light" else COLORS) == []


def test_without_a_script_there_is_no_box_and_entries_unfold(browser):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{SITE.as_uri()}/{PAGE}")
    assert page.locator(".spmd-paste").is_hidden()
    page.locator("#mesh-rank summary").click()
    assert page.locator("#mesh-rank pre").is_visible()
    context.close()


def test_the_page_is_light():
    """All that it asks for, gzipped."""
    path = SITE / PAGE
    text = path.read_text("utf8")
    matches = re.findall(r'(?:href|src)="([^"#?]+\.(?:css|js))[?"]', text)
    assert any("spmd-errors.js" in name for name in matches)
    files = [path, *(path.parent / name for name in matches)]
    sizes = [len(gzip.compress(file.read_bytes(), 9)) for file in files]
    assert sum(sizes) <= 130 * 1024
