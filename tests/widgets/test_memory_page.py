"""The memory calculator in a page: by mouse, by keyboard, by link, on a phone."""

import re
from urllib.parse import parse_qs, urlencode

import pytest

from tests.training.memory_oracle import DEFAULTS, expected

from . import widget_harness
from .widget_harness import axe_faults, open_details, too_small

pytestmark = pytest.mark.long("widgets in a browser, each in hundreds of states")


class Opened(widget_harness.Opened):
    name = "memory_calculator"

    @property
    def verdict(self) -> str:
        return self.text(".spmd-mc-verdict")


def words_of(page):
    """All that a reader sees in the picture, hidden tables too."""
    return page.locator(".spmd-w-picture").evaluate("e => e.textContent")


def check_picture(page, want):
    """The tables and the bars say what the answer says."""
    rows = page.locator(".spmd-w-picture > .spmd-w-scroll tbody tr").all_inner_texts()
    assert len(rows) == len(want["lines"]) + 1
    for row, line in zip(rows, want["lines"], strict=False):
        for key in ("name", "words", "shown", "formula", "source"):
            assert line[key] in row
    text = words_of(page)
    for bar in want["bars"]:
        assert f"{bar['phase']} {bar['words']}" in text
        for part in bar["parts"]:
            assert part["words"] in text
    assert not re.search("NaN|undefined|Infinity|object Object|null", text)


def test_it_begins_with_what_does_not_fit(context):
    opened = Opened(context)
    want = expected(DEFAULTS)
    assert not want["fits"]
    assert opened.verdict == f"✕ {want['verdict']}"
    assert opened.said == want["sentence"]
    assert "Not counted:" in words_of(opened.page)
    check_picture(opened.page, want)
    assert opened.errors == []


def test_with_a_mouse(context):
    opened = Opened(context)
    page = opened.page
    page.get_by_label("FSDP", exact=True).check()
    check_picture(page, expected(DEFAULTS | {"zero": "3"}))
    assert opened.verdict.startswith("✓ Fits, ")
    page.get_by_label("Model", exact=True).select_option("mlp")
    assert page.get_by_label("Layers", exact=True).is_visible()
    assert "d_ff" not in page.locator(".spmd-w-error").inner_text()
    assert opened.said.startswith("MLP of 32 layers, d_model 4096 on data=8: ")
    assert not page.get_by_label("Heads", exact=True).count()
    page.get_by_label("Model", exact=True).select_option("custom")
    page.get_by_label("Heads", exact=True).fill("7")
    assert "does not divide into heads=7" in page.locator(".spmd-w-error").inner_text()
    page.get_by_label("Heads", exact=True).fill("64")
    assert not page.locator(".spmd-w-error").is_visible()
    page.get_by_text("Counted against the compiler").click()
    page.get_by_role("button", name="gpt3-175b replicated").click()
    assert page.get_by_text("Counted against the compiler").is_visible()
    assert page.locator("details[open] >> text=compiler").first.is_visible()
    assert page.get_by_label("Chip").input_value() == "v5p"
    assert opened.verdict.startswith("✕ Does not fit")
    assert opened.errors == []


def test_a_change_that_makes_it_fit(context):
    opened = Opened(context)
    page = opened.page
    want = expected(DEFAULTS)
    buttons = page.locator(".spmd-mc-changes button")
    assert buttons.all_inner_texts() == [one["words"] for one in want["changes"]]
    for one in want["changes"]:
        page.get_by_role("button", name=one["words"]).click()
        assert opened.verdict.startswith("✓ Fits")
        assert page.evaluate("document.activeElement.className") == "spmd-mc-verdict"
        assert opened.query() == {f"mc.{k}": v for k, v in one["set"].items()}
        page.get_by_role("button", name="Reset").click()
    assert opened.errors == []


def test_with_the_keyboard_alone(context):
    opened = Opened(context)
    page = opened.page
    press = page.keyboard.press
    press("Tab")
    press("ArrowDown")
    assert opened.verdict.startswith("✓ Fits")
    press("ArrowUp")
    ring = "parseFloat(getComputedStyle(document.activeElement).outlineWidth)"
    focused = []
    for _ in range(30):
        press("Tab")
        assert page.evaluate(ring) >= 2
        words = "(e => e.dataset.key || e.getAttribute('aria-label') || e.textContent)"
        focused.append(page.evaluate(f"{words}(document.activeElement)"))
        if focused[-1] == "Copy code":
            break
    axes = ["data", "fsdp", "model_axis"]
    assert focused[:9] == ["model", "chip", *axes, "batch", "seq", "zero", "recompute"]
    assert focused[9] == "More"
    assert any(stop.startswith("zero=2: ") for stop in focused)
    assert focused[-3:] == ["Reset", "Copy link", "Copy code"]
    while page.evaluate("document.activeElement.dataset.key") != "batch":
        press("Shift+Tab")
    press("Control+a")
    page.keyboard.type("12")
    assert "batch=12 does not divide over the 8 devices of data" in (
        page.locator(".spmd-w-error").inner_text()
    )
    assert page.evaluate("document.activeElement.dataset.key") == "batch"
    for _ in range(2):
        press("Backspace")
    page.keyboard.type("16")
    press("Tab")
    press("Tab")
    page.keyboard.type("3")
    want = expected(DEFAULTS | {"batch": "16", "zero": "3"})
    assert opened.said == want["sentence"]
    assert opened.errors == []


def test_a_link_holds_the_state(context):
    opened = Opened(context, "?se.mesh=x%3D2&mc.zero=1")
    page = opened.page
    length = page.evaluate("history.length")
    page.get_by_label("Model", exact=True).select_option("gpt3-175b")
    page.get_by_text("More", exact=True).click()
    page.get_by_label("Mesh axis data").fill("16")
    page.get_by_label("Mesh axis model").fill("4")
    page.get_by_label("Sequences a step").fill("64")
    page.get_by_label("Type of the gradients").select_option("bfloat16, float32")
    page.get_by_label("model shards the sequence").check()
    query = opened.query()
    state = {
        "zero": "1", "model": "gpt3-175b", "data": "16", "model_axis": "4",
        "batch": "64", "grad_dtype": "bfloat16, float32", "sequence_parallel": "yes",
    }  # fmt: skip
    assert query == {"se.mesh": "x=2"} | {f"mc.{k}": v for k, v in state.items()}
    assert page.evaluate("history.length") == length + len(state) - 1  # zero was there
    again = Opened(context, f"?{urlencode(query)}")
    assert again.said == opened.said == expected(DEFAULTS | state)["sentence"]
    assert again.query() == query
    check_picture(again.page, expected(DEFAULTS | state))


def test_other_counting_is_not_compared(context):
    page = Opened(context).page
    near = "stored programs are within a tenth"
    assert near in words_of(page)
    page.get_by_label("As Megatron-LM counts").check()
    assert near not in words_of(page)
    assert "Not counted:" in words_of(page)
    assert "Off by: − means that more was needed" in words_of(page)


AREAS = """() => [...document.querySelectorAll('.spmd-mc-course > [style*=poly]')].map(
  area => [area.className, area.style.clipPath.match(/-?[\\d.]+(?=%)/g).map(Number)])"""


def drawn_shares(page):
    """Of each part over the step: its share at both ends of each phase."""
    shares = {}
    for name, numbers in page.evaluate(AREAS):
        heights = numbers[1::2]
        top, bottom = heights[: len(heights) // 2], heights[len(heights) // 2 :][::-1]
        part = name.removeprefix("spmd-mc-")
        shares[part] = [low - high for high, low in zip(top, bottom, strict=True)]
    return shares


@pytest.mark.parametrize("query", ["", "?mc.zero=3&mc.fsdp=4&mc.batch=64&mc.context=2"])
def test_the_figure_over_the_step_follows_the_controls(context, query):
    page = Opened(context, query).page
    state = {k[3:]: v[0] for k, v in parse_qs(query[1:]).items()}
    for change in ({}, {"recompute": "everything_saveable"}, {"model_axis": "2"}):
        if change:
            (key,) = change
            page.locator(f"[data-key={key}]").evaluate(
                "(e, v) => { e.value = v; e.dispatchEvent(new Event("
                "e.tagName === 'SELECT' ? 'change' : 'input', {bubbles: true})); }",
                change[key],
            )
        want = expected(DEFAULTS | (state := state | change))
        shares = drawn_shares(page)
        for phase, bar in enumerate(want["bars"]):
            sizes = {one["part"]: one["share"] for one in bar["parts"]}
            for part, ends in shares.items():
                begin, end = ends[2 * phase : 2 * phase + 2]
                if part == "kept" and bar["phase"] == "forward":
                    assert begin == pytest.approx(0, abs=0.01)
                    begin = end
                if part == "kept" and bar["phase"] == "backward":
                    assert end == pytest.approx(0, abs=0.01)
                    end = begin
                assert begin == pytest.approx(sizes.get(part, 0), abs=0.01), part
                assert end == pytest.approx(begin, abs=0.01)


NARROW = """() => {
  const pen = document.createElement('canvas').getContext('2d');
  return [...document.querySelectorAll('select')].flatMap(select => {
    const style = getComputedStyle(select);
    pen.font = style.font;
    const edges = parseFloat(style.paddingLeft) + parseFloat(style.paddingRight);
    const room = select.clientWidth - edges - 18;
    return [...select.options].map(o => o.text)
      .filter(text => pen.measureText(text).width > room);
  });
}"""
TOPS = """() => [...document.querySelectorAll('.spmd-w-fields')].map(grid => {
  const boxes = [...grid.querySelectorAll('select, input[type=text]')];
  const tops = boxes.map(e => Math.round(e.getBoundingClientRect().top));
  return tops.filter((top, i) => tops.some(t => t !== top && Math.abs(t - top) < 36));
})"""


@pytest.mark.parametrize("width", [390, 760, 1280])
@pytest.mark.parametrize("model", ["llama-3-8b", "custom", "mlp"])
def test_chosen_words_are_whole_and_boxes_stand_in_rows(context, model, width):
    page = Opened(context, f"?mc.model={model}", width).page
    open_details(page)
    assert page.evaluate(NARROW) == []
    assert all(uneven == [] for uneven in page.evaluate(TOPS))
    marks = page.locator(".spmd-w-check")
    assert marks.count()
    for mark in marks.all():
        box, label = mark.locator("input"), mark.locator("label")
        box, label = box.bounding_box(), label.bounding_box()
        assert box["x"] < label["x"]
        assert label["y"] - 2 <= box["y"] + box["height"] / 2
        assert box["y"] + box["height"] / 2 <= label["y"] + label["height"] + 2


MALFORMED = [
    *("?mc.nothing=1", "?mc.zero=7", "?mc.zero=__proto__", "?mc.__proto__=1"),
    *("?mc.constructor=x", f"?mc.batch={'9' * 199}", "?mc.batch=%00", "?mc.=&mc"),
    *("?mc.model=&mc.chip=", "?mc.model=gpt5", "?mc.data=-1", "?mc.data=1e99"),
    *(
        "?mc.batch=NaN",
        "?mc.margin=Infinity",
        "?mc.margin=0",
        "?mc.master_weights=maybe",
    ),
    *("?mc.model=custom&mc.layers=<img src=x onerror=alert(1)>", "?mc.seq=%ff"),
    *(
        "?mc.model=mlp&mc.d_ff=",
        "?mc.grad_dtype=,,,",
        "?MC.ZERO=3&&&=",
        "?mc.batch=8.0",
    ),
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
    assert page.get_by_label("Model", exact=True).is_visible()
    page.get_by_role("button", name="Reset").click()
    assert opened.said == expected(DEFAULTS)["sentence"]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing(context, theme):
    opened = Opened(context)
    page = opened.page
    ground = {"light": "#fff", "dark": "#14181e"}[theme]
    ink = {"light": "#14181e", "dark": "#f3f4f5"}[theme]
    page.add_style_tag(
        content=f":root {{ --pst-color-text-base: {ink}; --pst-color-text-muted: {ink};"
        f" --pst-color-background: {ground}; --pst-color-surface: {ground} }}"
        f"body {{ background: {ground} !important; color: {ink} }}"
    )
    page.evaluate(f"document.documentElement.dataset.theme = '{theme}'")
    for radio in page.locator(".spmd-w-radios input").all():
        radio.check()
        assert axe_faults(page) == []


@pytest.mark.parametrize("width", [320, 390, 768, 1280])
def test_it_fits_and_can_be_touched(context, width):
    opened = Opened(context, "?mc.model=custom&mc.batch=64000", width)
    page = opened.page
    open_details(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert too_small(page, width) == []


@pytest.mark.parametrize("width", [320, 390, 768, 1280])
def test_every_part_has_its_words_and_its_size(context, width):
    """Labels lie inside of their part, or in the line under the bar; never both."""
    for query in (
        "",
        "?mc.zero=3",
        "?mc.recompute=everything_saveable&mc.attention=plain",
    ):
        page = Opened(context, query, width).page
        state = {k[3:]: v[0] for k, v in parse_qs(query[1:]).items()}
        want = expected(DEFAULTS | state)
        shown = page.evaluate(
            """() => [...document.querySelectorAll('.spmd-mc-bar')].map(bar => {
              const seen = e => e.getBoundingClientRect().width > 0;
              const whole = bar.getBoundingClientRect().width;
              const parts = [...bar.querySelectorAll('.spmd-mc-part')];
              const rest = bar.nextElementSibling?.matches('.spmd-mc-rest')
                ? [...bar.nextElementSibling.children] : [];
              return {
                widths: parts.map(p => p.getBoundingClientRect().width / whole),
                inside: parts.map(p => p.firstElementChild).filter(seen).map(e => [
                  e.textContent, e.getBoundingClientRect().right
                    <= e.parentElement.getBoundingClientRect().right]),
                under: rest.filter(seen).map(e => e.textContent),
              };
            })"""
        )
        for bar, at in zip(want["bars"], shown, strict=True):
            assert len(at["inside"]) + len(at["under"]) == len(bar["parts"])
            assert all(fits for _, fits in at["inside"]), at
            for part, width_ in zip(bar["parts"], at["widths"], strict=True):
                assert abs(100 * width_ - part["share"]) < 0.5
                labels = [text for text, _ in at["inside"]] + at["under"]
                assert any(part["words"] in text for text in labels)
