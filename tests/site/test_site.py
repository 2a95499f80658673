"""The built site, read in a real browser: whole, quiet, and alone on its disk.

Reads _build/html, which `make book` writes. Needs a Chromium on this machine
(CHROMIUM names one elsewhere); without one these tests are skipped, unless
SPMD_BROWSER_REQUIRED=1. A page is opened once over http and once from its folder;
all that is asked of it is asked then, and the tests read the answers.
"""

import gzip
import re
from dataclasses import dataclass, field
from functools import cache

import pytest
from fontTools.ttLib import TTFont

from .site_reading import (
    BY_TAGS,
    COLORS,
    HARD_TO_READ,
    PAGES,
    ROOT,
    SITE,
    UNNAMED,
    WIDER,
    reading,
    serving,
    violations,
)

CODE_COLUMNS = 72
THEMES = ("light", "dark")
WIDTHS = (1920, 1280, 768, 390, 320)

CODE = """() => [...document.querySelectorAll('.cell_input pre')].flatMap(
    e => (e.scrollWidth > e.clientWidth + 1 ? ['scrolls: ' + e.textContent] : [])
      .concat(e.innerText.split('\\n').filter(line => line.length > COLUMNS)))"""
CUT = """() => [...document.querySelectorAll('.cell_output .stream pre')]
    .filter(e => e.scrollWidth > e.clientWidth + 1)
    .map(e => e.textContent.slice(0, 80))"""
# Of the paragraphs, how many characters a line has room for; of the body, its type.
MEASURE = """() => {
  const first = document.querySelector('.bd-article p:not(.spmd-time)')
    ?? document.body;
  const style = getComputedStyle(first);
  const lineHeight = parseFloat(style.lineHeight);
  const pen = document.createElement('canvas').getContext('2d');
  pen.font = `${style.fontSize} ${style.fontFamily}`;
  const room = (p, text) => text.length * p.clientWidth / pen.measureText(text).width;
  const lines = [...document.querySelectorAll('.bd-article section > p')]
    .filter(p => p.textContent.length > 120 && p.offsetParent)
    .map(p => room(p, p.textContent))
    .sort((a, b) => a - b);
  const h1 = document.querySelector('.bd-article h1');
  return {
    characters: lines[Math.floor(lines.length / 2)] ?? null,
    size: parseFloat(style.fontSize),
    height: lineHeight / parseFloat(style.fontSize),
    titleLines: h1 ? Math.round(h1.getBoundingClientRect().height
      / parseFloat(getComputedStyle(h1).lineHeight)) : 0,
  };
}"""
ALTS = """() => [...document.querySelectorAll('.bd-article img')]
    .map(e => e.alt)
    .filter(alt => alt.trim().length < 15 || /\\.\\w{3,4}$/.test(alt))"""
SHIFT = """() => new Promise(done => {
  let sum = 0;
  new PerformanceObserver(list => list.getEntries().forEach(e => { sum += e.value; }))
    .observe({type: 'layout-shift', buffered: true});
  setTimeout(() => done(sum), 100);
})"""
# How many elements the browser lays out before a reader goes on.
LAID_OUT = """() => [...document.querySelectorAll('body *')]
    .filter(e => e.checkVisibility({contentVisibilityAuto: true})).length"""
DARK = """() => [...document.querySelectorAll(
    '.cell_output .text_html:has([class^="spmd-"])')]
    .map(e => getComputedStyle(e).backgroundColor)"""
# Tables of the package that a wide page shows in part.
CROPPED = """() => [...document.querySelectorAll('.cell_output table[class^="spmd-"]')]
    .filter(e => e.scrollWidth > e.parentElement.clientWidth)
    .map(e => e.caption.textContent)"""


@dataclass
class Looked:
    """What was seen of one page, by theme or width where that matters."""

    complaints: dict[str, list[str]] = field(default_factory=dict)  # http, folder
    title: str = ""
    shift: float = 0.0
    laid_out: int = 0
    weights: dict[str, int] = field(default_factory=dict)  # gzipped bytes by address
    wider: dict[int, list[str]] = field(default_factory=dict)
    measure: dict[int, dict] = field(default_factory=dict)
    unnamed: list[str] = field(default_factory=list)
    alts: list[str] = field(default_factory=list)
    code: list[str] = field(default_factory=list)
    cut: list[str] = field(default_factory=list)
    faint: dict[str, list[str]] = field(default_factory=dict)
    shut_out: dict[str, list[str]] = field(default_factory=dict)
    grounds: list[str] = field(default_factory=list)  # of the package's outputs, dark
    cropped: list[str] = field(default_factory=list)
    moving: int = 0


@cache
def gzipped(body: bytes) -> int:
    return len(gzip.compress(body, 9))


def is_read_by_axe(name: str) -> bool:
    """Whether axe reads a page: of the solved ones, made as the reader's are, one."""
    return not name.startswith("solutions/") or name in COLORED


def look(over_http, from_folder, name: str) -> Looked:
    """Open a page twice and ask all questions."""
    page_facts = Looked()

    def weigh(answer):
        if answer.status == 200:
            page_facts.weights[answer.url] = gzipped(answer.body())

    over_http.page.on("response", weigh)
    page = over_http.go(name, width=WIDTHS[1])
    page.wait_for_load_state("networkidle")
    over_http.page.remove_listener("response", weigh)
    page_facts.shift = page.evaluate(SHIFT)
    page_facts.laid_out = page.evaluate(LAID_OUT)
    page_facts.moving = page.evaluate("document.getAnimations().length")
    page_facts.title = page.title()
    page_facts.unnamed = page.evaluate(UNNAMED)
    page_facts.alts = page.evaluate(ALTS)
    page_facts.code = page.evaluate(CODE.replace("COLUMNS", str(CODE_COLUMNS)))
    page_facts.complaints["http"] = list(over_http.errors)  # axe asks for more
    page.add_style_tag(content="* { transition: none !important }")
    for theme in THEMES:
        page.evaluate(f"document.documentElement.dataset.theme = '{theme}'")
        page_facts.faint[theme] = page.evaluate(HARD_TO_READ)
        colors = name in COLORED
        if is_read_by_axe(name) and (theme == "light" or colors):
            rules = BY_TAGS if theme == "light" else COLORS
            page_facts.shut_out[theme] = violations(page, rules, colors)
    page_facts.grounds = page.evaluate(DARK)
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        page_facts.wider[width] = page.evaluate(WIDER)
        page_facts.measure[width] = page.evaluate(MEASURE)
        if width == 1280:
            page_facts.cropped = page.evaluate(CROPPED)
        if width == 390:
            page_facts.cut = page.evaluate(CUT)
    from_folder.go(name).wait_for_load_state("networkidle")
    page_facts.complaints["folder"] = list(from_folder.errors)
    return page_facts


@pytest.fixture(scope="module")
def served(browser):
    """The site's address on this machine; a machine without a browser needs none."""
    with serving(SITE) as address:
        yield address


@pytest.fixture(scope="module")
def over_http(browser, served):
    with reading(browser, served) as page:
        yield page


@pytest.fixture(scope="module")
def from_folder(browser):
    with reading(browser, SITE.as_uri() + "/") as page:
        yield page


@pytest.fixture(scope="module")
def looked(browser, served, from_folder):
    """What was seen of a page, by its name; each is opened when first asked for.

    By a reader who has seen none before: what other pages share is weighed with each.
    """
    known: dict[str, Looked] = {}

    def ask(name: str) -> Looked:
        if name not in known:
            with reading(browser, served) as over_http:
                known[name] = look(over_http, from_folder, name)
        return known[name]

    return ask


# A page of each kind; the others are made by the same means.
QUICK_PAGES = (
    "book/index.html",
    "book/install.html",
    "notebooks/03_mesh_and_partitionspec.html",
    "solutions/06_misplaced_weight.html",
)
# Where axe asks for the contrast of all words, in both themes: one page of each kind.
# `HARD_TO_READ` asks on every page, of text, cells of tables and code.
COLORED = (
    *QUICK_PAGES[:3],
    "notebooks/10_fsdp.html",
    "solutions/08_it_ran_but.html",
    "book/mesh_planner.html",
    "search.html",
)
ALL_PAGES = pytest.mark.long("every page in a browser, but for one of each kind")


def each(pages):
    """Parameters: pages, of which some are in the short tier."""
    quick = {name: [] if name in QUICK_PAGES else [ALL_PAGES] for name in PAGES}
    return [pytest.param(name, marks=quick[name]) for name in pages]


every_page = pytest.mark.parametrize("name", each(PAGES))


def test_there_is_a_page_of_each_kind():
    assert set(QUICK_PAGES) | set(COLORED) <= set(PAGES)


@every_page
def test_page_is_quiet_and_asks_nothing_outside(looked, name):
    assert looked(name).complaints == {"http": [], "folder": []}
    assert looked(name).title


@every_page
def test_page_fits_and_pictures_have_names(looked, name):
    assert looked(name).wider == {width: [] for width in WIDTHS}, "scrolls sideways"
    assert looked(name).unnamed == [], "a picture without words"
    assert looked(name).alts == [], "words that say nothing"


def test_the_page_of_errors_fits_a_narrow_phone(over_http):
    """Its messages are long, and its code is as wide as a terminal."""
    page = over_http.go("book/errors.html", width=min(WIDTHS))
    assert page.evaluate(WIDER) == []
    scrolls = "[...document.querySelectorAll('.bd-article pre')]"
    scrolls += ".filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.innerText)"
    assert page.evaluate(scrolls) == []


@every_page
def test_text_stands_out(looked, name):
    assert looked(name).faint == {theme: [] for theme in THEMES}


@pytest.mark.parametrize("name", each(filter(is_read_by_axe, PAGES)))
def test_nobody_is_shut_out(looked, name):
    themes = THEMES if name in COLORED else THEMES[:1]
    assert looked(name).shut_out == {theme: [] for theme in themes}


@every_page
def test_lines_are_good_to_read(looked, name):
    for width, measure in looked(name).measure.items():
        assert measure["size"] >= 16
        assert 1.5 <= measure["height"] <= 1.75
        if measure["characters"] is not None:
            least, most = (60, 80) if width >= 768 else (34, 80)
            assert least <= measure["characters"] <= most, width
    assert looked(name).measure[390]["titleLines"] <= 2


@every_page
def test_code_is_not_too_wide(looked, name):
    assert looked(name).code == []


@every_page
def test_what_was_printed_is_not_cut_on_a_phone(looked, name):
    assert looked(name).cut == []


@every_page
def test_nothing_moves_before_it_is_asked_to(looked, name):
    assert looked(name).moving == 0
    assert looked(name).shift <= 0.02


# Of up to 10,000. With what is laid out grows the time in which nothing can be pressed.
LAID_OUT_MOST = 1500


@every_page
def test_little_is_laid_out_before_a_reader_goes_on(looked, name):
    assert 50 < looked(name).laid_out <= LAID_OUT_MOST


# A page with much above the section that a link leads to.
LONGEST = "notebooks/16_many_hosts.html"
TOP = "document.getElementById('takeaways').getBoundingClientRect().top"


def test_a_link_leads_to_what_is_not_laid_out_yet(over_http):
    page = over_http.go(LONGEST)
    assert page.evaluate(f"{TOP} > 5000")
    page.locator(".bd-sidebar-secondary a[href='#takeaways']").click()
    page.wait_for_function(f"{TOP} >= 0 && {TOP} < 900")
    page.goto("about:blank")
    over_http.go(f"{LONGEST}#takeaways")
    page.wait_for_function(f"{TOP} >= 0 && {TOP} < 900")


def test_paper_has_every_section(over_http):
    page = over_http.go(LONGEST)
    skipped = """() => [...document.querySelectorAll('.bd-article section')]
        .filter(e => !e.checkVisibility({contentVisibilityAuto: true})).length"""
    assert page.evaluate(skipped) > 5
    page.emulate_media(media="print")
    assert page.evaluate(skipped) == 0
    page.emulate_media(media="screen")


# Gzipped bytes of everything that a page asks for, the index of the search apart, and
# of each script of a widget. The calculator and the planner share one, with the memory
# formulas of two compilers and 54 models.
PAGE_BYTES, FILE_BYTES, REQUESTS, WIDGET_BYTES = 130 * 1024, 120 * 1024, 40, 34 * 1024
INDEX = "searchindex.js"


@every_page
def test_page_is_light(looked, name):
    sizes = looked(name).weights
    largest = sorted(sizes.items(), key=lambda pair: -pair[1])
    assert 3 <= len(sizes) <= REQUESTS
    index = sum(n for address, n in sizes.items() if INDEX in address)
    assert bool(index) == (name == "search.html")
    assert sum(sizes.values()) - index <= PAGE_BYTES, largest[:8]
    assert largest[0][1] <= FILE_BYTES
    widgets = [
        n for address, n in sizes.items() if re.search(r"/spmd-[\w-]+\.js", address)
    ]
    assert max(widgets, default=0) <= WIDGET_BYTES


WITH_TABLES = [
    name
    for name in PAGES
    if name.startswith("notebooks/")
    and re.search(
        r"spmd-(xray|chart|launched)\b",
        (ROOT / name).with_suffix(".ipynb").read_text("utf8"),
    )
]


def test_tables_are_shown():
    assert len(WITH_TABLES) >= 2


@ALL_PAGES
@pytest.mark.parametrize("name", WITH_TABLES)
def test_what_the_package_shows_is_dark_in_the_dark(looked, name):
    assert set(looked(name).grounds) == {"rgba(0, 0, 0, 0)"}


@ALL_PAGES
@pytest.mark.parametrize("name", WITH_TABLES)
def test_a_wide_page_shows_all_columns(looked, name):
    assert looked(name).cropped == []


def test_the_index_leads_to_the_first_page(over_http):
    page = over_http.go("book/index.html")
    title = page.title()
    page.goto(over_http.base, wait_until="commit")
    page.wait_for_url("**/book/index.html")
    assert page.title() == title


def test_the_search_icon_does_not_lie_on_the_text(over_http):
    page = over_http.go("search.html")
    field = page.locator(".bd-article-container, main").locator(".bd-search").first
    glass = field.locator("svg, i").first.bounding_box()
    text = field.locator("input").evaluate(
        "e => e.getBoundingClientRect().left + parseFloat("
        "getComputedStyle(e).paddingLeft)"
    )
    assert glass["x"] + glass["width"] <= text


def test_every_icon_that_a_page_shows_has_its_glyph(over_http):
    """The fonts are cut down to what is shown: nothing may be missing."""
    fonts = SITE / "_static" / "vendor" / "fontawesome" / "webfonts"
    kept = {
        code for path in fonts.glob("*.woff2") for code in TTFont(path).getBestCmap()
    }
    script = """() => [...document.querySelectorAll('*')].flatMap(
        e => ['::before', '::after'].map(p => getComputedStyle(e, p).content))"""
    shown = {
        ord(char)
        for name in (*QUICK_PAGES, "genindex.html", "search.html")
        for content in over_http.go(name).evaluate(script)
        for char in content
        if 0xE000 <= ord(char) < 0xF900
    }
    assert shown
    assert shown <= kept


# The faults that these tests look for are seen when they are there.


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("<script>notThere()</script>", "error: notThere is not defined"),
        (
            '<img src="https://example.invalid/x.png" alt="a picture">',
            "asks outside: https://example.invalid/x.png",
        ),
    ],
)
def test_a_fault_is_seen(browser, tmp_path, fault, message):
    (tmp_path / "x.html").write_text(f"<title>x</title>{fault}")
    with reading(browser, tmp_path.as_uri() + "/") as reader:
        reader.go("x.html").wait_for_load_state("networkidle")
        assert message in reader.errors


@pytest.mark.parametrize(
    ("fault", "script"),
    [
        ("<svg></svg>", UNNAMED),
        ('<div style="width: 2000px">x</div>', WIDER),
        (f"<p style='width: 90px'>a_{'long_' * 400}name</p>", WIDER),
        ('<p style="color: #ccc; background: #fff">faint</p>', HARD_TO_READ),
        (
            '<details><summary style="color: #bbb">faint</summary></details>',
            HARD_TO_READ,
        ),
    ],
)
def test_a_fault_of_the_look_is_seen(browser, tmp_path, fault, script):
    page = f'<body style="background: #fff"><div class="bd-article">{fault}</div>'
    (tmp_path / "x.html").write_text(page)
    with reading(browser, tmp_path.as_uri() + "/") as reader:
        assert len(reader.go("x.html").evaluate(script)) == 1


def test_a_page_that_shuts_people_out_is_seen(over_http):
    page = over_http.go("book/references.html")
    page.evaluate("document.querySelector('article').innerHTML += '<img src=x>'")
    assert any("image-alt" in message for message in violations(page, BY_TAGS))
    page.evaluate("document.querySelector('article').style.color = '#bbb'")
    assert any("color-contrast" in message for message in violations(page, COLORS))


SPOILED = {
    "wide code": ("<div class=cell_input><pre>%s</pre></div>" % ("x" * 90), "code"),
    "a file's name": ("<img src=x alt='sharding_picture.png'>", "alts"),
    "cut output": (
        "<div class=cell_output><div class=stream><pre style='width: 9px'>"
        "a long line</pre></div></div>",
        "cut",
    ),
}


@pytest.mark.parametrize("fault", SPOILED)
def test_a_spoiled_page_is_seen(over_http, fault):
    html, what = SPOILED[fault]
    page = over_http.go("book/glossary.html", width=390)
    page.evaluate("h => document.querySelector('article').innerHTML += h", html)
    script = {"code": CODE.replace("COLUMNS", "72"), "alts": ALTS, "cut": CUT}[what]
    assert len(page.evaluate(script)) >= 1


def test_wide_prose_is_seen(over_http):
    page = over_http.go("notebooks/03_mesh_and_partitionspec.html", width=1280)
    page.add_style_tag(content=".bd-article p { max-width: none !important }")
    assert page.evaluate(MEASURE)["characters"] > 80


def test_a_page_that_jumps_is_seen(browser, tmp_path):
    (tmp_path / "x.html").write_text(
        "<title>x</title><div id=a></div><p>" + "words " * 500 + "</p><script>"
        "const jump = () => { a.style.height = '400px' };"
        "requestAnimationFrame(() => setTimeout(jump, 100))</script>"  # once painted
    )
    with reading(browser, tmp_path.as_uri() + "/") as reader:
        page = reader.go("x.html")
        page.wait_for_function("document.getElementById('a').offsetHeight == 400")
        assert page.evaluate(SHIFT) > 0.02
