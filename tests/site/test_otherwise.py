"""The site read otherwise: without a script, on paper, without motion, by search."""

import contextlib

import pytest

from .site_reading import CHAPTERS, HARD_TO_READ, SITE, reading, serving

pytestmark = pytest.mark.long("pages without scripts, on paper, without motion")

CHAPTER = "notebooks/14_roofline.html"
SOLVED = "solutions/03_mesh_and_partitionspec.html"
WIDGETS = {
    "book/index.html": "sharding-explorer",
    "book/sharding_explorer.html": "sharding-explorer",
    "book/matmul_explorer.html": "matmul-explorer",
    "book/memory_calculator.html": "memory-calculator",
    "book/mesh_planner.html": "mesh-planner",
}
LENGTH = "document.querySelector('article').innerText.length"
SHOWN = """() => [...document.querySelectorAll(
    'article :is(p, pre, table, svg.spmd-drawing, math)')]
  .filter(e => e.checkVisibility({contentVisibilityAuto: true})).length"""
HEIGHT = "id => document.getElementById(id).getBoundingClientRect().height"
FOLDED = """() => [...document.querySelectorAll('article details')].filter(d =>
    d.checkVisibility() &&
    ![...d.children].slice(1).every(
      e => e.checkVisibility({contentVisibilityAuto: true}))).length"""
PRESSED = """() => [...document.querySelectorAll('button, input, select')]
    .filter(e => e.checkVisibility() && !e.closest('.spmd-w-picture'))
    .map(e => e.outerHTML.slice(0, 90))"""
CLIPPED = """() => [...document.querySelectorAll('article pre, article .spmd-w-scroll')]
    .filter(e => getComputedStyle(e).overflowX !== 'visible'
      && e.scrollWidth > e.clientWidth + 1).map(e => e.textContent.slice(0, 60))"""


def opened(browser, name, **how):
    """A page of the site from its folder, in a context of its own."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, **how)
    page = context.new_page()
    page.goto(f"{SITE.as_uri()}/{name}")
    return contextlib.closing(context), page


@pytest.mark.parametrize("name", [CHAPTER, SOLVED, *WIDGETS, "book/hardware.html"])
def test_without_a_script_all_of_it_is_there(browser, name):
    context, page = opened(browser, name)
    with context:
        shown, length = page.evaluate(SHOWN), page.evaluate(LENGTH)
    context, page = opened(browser, name, java_script_enabled=False)
    with context:
        assert page.evaluate(SHOWN) >= 0.95 * shown > 5
        # What can only be pressed with a script is not offered.
        assert page.evaluate(LENGTH) > 0.7 * length
        assert page.locator("article :is(input, select):visible").count() == 0
        assert page.evaluate(HARD_TO_READ) == []


@pytest.mark.parametrize("name", WIDGETS)
def test_a_widget_wakes_where_its_picture_lay(browser, name):
    """The stored picture is what the script draws: nothing jumps."""
    place = f"spmd-{WIDGETS[name]}"
    context, page = opened(browser, name)
    with context:
        awake = page.evaluate(HEIGHT, place)
        html = page.evaluate(f"document.getElementById('{place}').innerHTML")
    context, page = opened(browser, name)
    with context:
        page.route("**/spmd-*.js*", lambda route: route.abort())
        page.reload()
        assert abs(page.evaluate(HEIGHT, place) - awake) <= 2
        stored = page.evaluate(f"document.getElementById('{place}').innerHTML")
        assert stored.replace("\n", "") == html.replace("\n", "")


@pytest.mark.parametrize("name", [CHAPTER, SOLVED, *WIDGETS])
def test_on_paper_all_is_open_and_nothing_is_cut(browser, name):
    context, page = opened(browser, name)
    with context:
        assert name not in (CHAPTER, SOLVED) or page.evaluate(FOLDED) > 0
        page.emulate_media(media="print")
        page.set_viewport_size({"width": 720, "height": 1000})
        assert page.evaluate(FOLDED) == 0
        assert page.evaluate(PRESSED) == []
        assert page.evaluate(CLIPPED) == []
        assert page.pdf().startswith(b"%PDF")


def test_who_wants_little_motion_gets_none(browser):
    context, page = opened(browser, "book/index.html", reduced_motion="reduce")
    with context:
        page.get_by_role("radio", name="Replicated").check()
        assert page.evaluate("document.getAnimations().length") == 0
        durations = page.evaluate(
            "[...document.querySelectorAll('*')].map("
            "e => getComputedStyle(e).transitionDuration)"
        )
        assert set(durations) == {"0s"}


@pytest.mark.parametrize("name", WIDGETS)
def test_forced_colors_keep_all_words(browser, name):
    context, page = opened(browser, name)
    with context:
        figure = page.locator("figure.spmd-w")
        words = figure.inner_text()
        page.emulate_media(forced_colors="active")
        assert figure.inner_text() == words
        borders = page.evaluate(
            "[...document.querySelectorAll('.spmd-w-strip, .spmd-w-cell')].map("
            "e => parseFloat(getComputedStyle(e).borderTopWidth))"
        )
        assert all(width >= 1 for width in borders)


BORDERS = """() => {
  const parse = c => (c.match(/[\\d.]+/g) || []).map(Number);
  const light = ([r, g, b]) => [r, g, b].map(v => v / 255)
    .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const paper = light(parse(getComputedStyle(document.body).backgroundColor));
  const wanted = 'input[type=text], select, .spmd-w-buttons button, '
    + '.spmd-w-cell, .spmd-w-device, .spmd-w-strip';
  return [...document.querySelectorAll('.spmd-w :is(' + wanted + ')')].map(e => {
    const line = light(parse(getComputedStyle(e).borderTopColor));
    const pair = [line + 0.05, paper + 0.05];
    return Math.max(...pair) / Math.min(...pair);
  });
}"""


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("name", WIDGETS)
def test_borders_of_what_can_be_set_or_read_stand_out(browser, name, theme):
    context, page = opened(browser, name)
    with context:
        page.evaluate(f"document.documentElement.dataset.theme = '{theme}'")
        borders = page.evaluate(BORDERS)
        assert len(borders) >= 5
        assert min(borders) >= 3


@pytest.mark.parametrize("where", ["http", "folder"])
def test_the_search_finds_without_a_network(browser, where):
    with contextlib.ExitStack() as stack:
        base = f"{SITE.as_uri()}/"
        if where == "http":
            base = stack.enter_context(serving(SITE))
        reader = stack.enter_context(reading(browser, base))
        page = reader.go("search.html")
        page.locator("main input[name=q]").fill("psum_scatter")
        page.keyboard.press("Enter")
        hits = page.locator("#search-results li a")
        hits.first.wait_for()
        names = [link.get_attribute("href") for link in hits.all()]
        assert any("notebooks/" in name for name in names)
        page.wait_for_load_state("networkidle")
        assert reader.errors == []
        hits.first.click()
        page.wait_for_url("**/*.html*")
        assert page.title()


def test_the_way_through_the_chapters(browser):
    """From the front page by `next` alone to the last chapter."""
    context, page = opened(browser, CHAPTERS[0])
    with context:
        for name in CHAPTERS[1:]:
            page.locator(".spmd-time a", has_text="next").click()
            page.wait_for_url(f"**/{name}")
        assert page.locator(".spmd-time a", has_text="next").count() == 0
        page.locator(".spmd-time a", has_text="previous").click()
        page.wait_for_url(f"**/{CHAPTERS[-2]}")
