"""The mesh planner in a page: by mouse, by keyboard, by link, on a phone."""

import re
from urllib.parse import urlencode

import pytest

from . import widget_harness
from .planner_oracle import DEFAULTS, expected
from .widget_harness import axe_faults, open_details, too_small

pytestmark = pytest.mark.long("widgets in a browser, each in hundreds of states")

SMALL = {"model": "gpt2-small", "hosts": "1", "batch": "16", "seq": "512"}


def link(state):
    return "?" + urlencode({f"mp.{key}": text for key, text in state.items()})


class Opened(widget_harness.Opened):
    name = "mesh_planner"

    @property
    def rows(self) -> list[str]:
        return self.page.locator(".spmd-mp-list tbody tr").all_inner_texts()


def check_list(opened, state):
    """The list has what the answer has, in its order; one is pressed."""
    want = expected(state)
    assert len(opened.rows) == len(want["rows"])
    for text, row in zip(opened.rows, want["rows"], strict=True):
        for key in ("words", "recompute", "seconds", "memory", "mfu", "tokens"):
            assert row[key] in text.replace("\xa0", " ")
    pressed = opened.page.locator("[aria-pressed=true]")
    assert pressed.count() == 1
    assert pressed.get_attribute("data-key") == f"chosen-{want['chosen']}"
    text = opened.page.locator(".spmd-w-picture").evaluate("e => e.textContent")
    assert not re.search("NaN|undefined|Infinity|object Object|null", text)
    return want


def test_two_clicks_to_an_answer(context):
    opened = Opened(context)
    page = opened.page
    check_list(opened, {})
    page.get_by_label("Mixtral 8x7B, 64 H100").check()
    state = {"model": "mixtral-8x7b", "hosts": "8", "batch": "256"}
    want = check_list(opened, state)
    assert want["ties"] in page.locator(".spmd-w-picture").inner_text()
    page.locator("[data-key=chosen-3]").click()
    want = check_list(opened, state | {"chosen": "3"})
    assert page.evaluate("document.activeElement.dataset.key") == "chosen-3"
    row = want["rows"][2]
    assert page.locator(".spmd-mp-title").inner_text() == (
        f"3: {row['words']}, {row['recompute']}"
    )
    assert opened.page.locator("pre code").last.inner_text().strip() == (
        want["code"].strip()
    )
    page.get_by_role("button", name=re.compile("^Show 24 more of")).click()
    assert len(opened.rows) == 36
    assert opened.errors == []


def test_back_undoes_a_change(context):
    opened = Opened(context, link(SMALL))
    page = opened.page
    first = opened.said
    page.locator("[data-key=chosen-2]").click()
    second = opened.said
    page.get_by_label("Chip").select_option("a100-80gb")
    assert len({first, second, opened.said}) == 3
    assert "mp.chosen" not in opened.query()
    page.go_back()
    assert opened.said == second
    page.go_back()
    assert opened.said == first
    page.get_by_label("Chip").select_option("v5e")
    assert page.get_by_label("Slice").is_visible()
    assert not page.get_by_label("Hosts").count()
    assert opened.errors == []


def test_a_link_holds_the_state(context):
    opened = Opened(context, link(SMALL))
    page = opened.page
    page.get_by_text("More", exact=True).click()
    page.get_by_label("Axis stage").uncheck()
    page.get_by_label("Optimizer").select_option("lion")
    page.locator("[data-key=chosen-4]").click()
    state = SMALL | {"stage": "no", "optimizer": "lion", "chosen": "4"}
    assert opened.query() == {f"mp.{key}": text for key, text in state.items()}
    again = Opened(context, link(state))
    check_list(again, state)
    assert again.said == opened.said
    href = page.get_by_role("link", name="Open this strategy").get_attribute("href")
    assert href.startswith("memory_calculator.html?mc.model=gpt2-small&")


def test_with_the_keyboard_alone(context):
    opened = Opened(context, link(SMALL))
    page = opened.page
    focused = []
    ring = "parseFloat(getComputedStyle(document.activeElement).outlineWidth)"
    words = "(e => e.dataset.key || e.getAttribute('aria-label') || e.textContent)"
    for _ in range(50):
        page.keyboard.press("Tab")
        assert page.evaluate(ring) >= 2
        focused.append(page.evaluate(f"{words}(document.activeElement)"))
        if focused[-1] == "chosen-2":
            page.keyboard.press("Enter")
            assert page.evaluate("document.activeElement.dataset.key") == "chosen-2"
        if focused[-1] == "Copy code":
            break
    assert focused[1:7] == ["model", "chip", "hosts", "per_host", "batch", "seq"]
    assert focused[7] == "More"
    assert [one for one in focused if one.startswith("chosen-")] == [
        f"chosen-{n}" for n in range(1, 13)
    ]
    assert focused[-3:] == ["Reset", "Copy link", "Copy code"]
    check_list(opened, SMALL | {"chosen": "2"})
    page.wait_for_timeout(500)
    assert page.get_by_role("status").inner_text() == opened.said


def test_what_has_no_code_says_why(context):
    opened = Opened(context, link(SMALL | {"model": "gemma-3-1b"}))
    want = expected(SMALL | {"model": "gemma-3-1b"})
    text = opened.page.locator(".spmd-w-picture").inner_text()
    assert want["refused"]
    assert want["refused"] in text
    code = opened.page.locator("pre code").last.inner_text()
    assert code.startswith("import spmd_helpers as spmd")
    assert opened.errors == []


def test_what_does_not_fit_says_what_to_change(context):
    opened = Opened(context)
    opened.page.get_by_label("Does not fit").check()
    assert "None of " in opened.said
    assert "Take more chips" in opened.said
    assert opened.page.locator(".spmd-w-brief").inner_text().startswith("✕ ")
    assert opened.errors == []


MALFORMED = [
    *("?mp.nothing=1", "?mp.chip=h99", "?mp.__proto__=1", "?mp.constructor=x"),
    *("?mp.hosts=0", "?mp.hosts=1e9", f"?mp.batch={'9' * 199}", "?mp.batch=%00"),
    *("?mp.seq=NaN", "?mp.chosen=-1", "?mp.chosen=x", "?mp.shown=-3", "?mp.shown=1e9"),
    *("?mp.slice=9x9&mp.chip=v5e", "?mp.model=deepseek-v3", "?mp.per_host=9"),
    *("?mp.model=<img src=x onerror=alert(1)>", "?mp.stage=maybe", "?mp.=&mp"),
]


@pytest.mark.parametrize("query", MALFORMED)
def test_a_malformed_link_does_no_harm(context, query):
    opened = Opened(context, query)
    page = opened.page
    assert opened.errors == []
    text = page.locator("figure").inner_text()
    assert not re.search(r"undefined|object Object|\bnull\b", text)
    words = page.locator(".spmd-w-picture").inner_text() + opened.said
    assert not re.search("NaN|Infinity", words)
    page.get_by_role("button", name="Reset").click()
    check_list(opened, {})


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing(context, theme):
    opened = Opened(context)
    page = opened.page
    ground = {"light": "#fff", "dark": "#14181e"}[theme]
    ink = {"light": "#14181e", "dark": "#f3f4f5"}[theme]
    page.add_style_tag(
        content=f":root {{ --pst-color-text-base: {ink}; --pst-color-text-muted: {ink};"
        f" --pst-color-background: {ground}; --pst-color-surface: {ground};"
        f" --pst-color-link: {ink} }}"
        f"body {{ background: {ground} !important; color: {ink} }}"
    )
    page.evaluate(f"document.documentElement.dataset.theme = '{theme}'")
    for radio in page.locator(".spmd-w-radios input").all():
        radio.check()
        assert axe_faults(page) == []


def test_the_list_fits_the_column_of_a_page(context):
    """It is 654 px wide there, in the widget's frame."""
    opened = Opened(context, width=1280)
    page = opened.page
    page.add_style_tag(content=".spmd-w { width: 654px; box-sizing: content-box }")
    for radio in page.locator(".spmd-w-radios input").all():
        radio.check()
        hidden = "e => [e.clientWidth, e.scrollWidth - e.clientWidth]"
        assert page.locator(".spmd-mp-list").evaluate(hidden) == [654, 0]


@pytest.mark.parametrize("width", [320, 390, 768, 1280])
def test_it_fits_and_can_be_touched(context, width):
    for state in ({}, {"model": "gemma-3-12b", "chip": "v5p", "batch": "64"}):
        opened = Opened(context, link(state), width)
        page = opened.page
        open_details(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert too_small(page, width) == []
        brief = page.locator(".spmd-w-brief")
        assert brief.is_visible() == (width <= 600)
        want = expected(state)["rows"][0]
        assert brief.text_content().replace("\xa0", " ") == (
            f"✓ 1: {want['words']}: {want['seconds']}, {want['memory']}"
        )


@pytest.mark.parametrize("width", [320, 390, 1280])
def test_labels_of_the_bars_are_whole(context, width):
    for number in ("1", "12"):
        page = Opened(context, link({"chosen": number}), width).page
        cut = page.evaluate(
            """() => [...document.querySelectorAll('.spmd-mc-part > span')]
              .filter(e => e.getBoundingClientRect().width > 0
                && e.getBoundingClientRect().right
                  > e.parentElement.getBoundingClientRect().right)
              .map(e => e.textContent)"""
        )
        assert cut == []


def test_the_first_state_is_planned_and_has_code():
    want = expected({})
    assert want["fits"]
    assert want["code"].startswith("# llama-3-8b, 32 sequences of 4096 tokens")
    assert set(DEFAULTS) > {"model", "chip", "hosts", "batch", "seq"}
