"""The built site, read in a real browser: whole, quiet, and alone on its disk.

Reads _build/html, which `make book` writes. Needs a Chromium on this machine
(CHROMIUM names one elsewhere); without one these tests are skipped, unless
SPMD_BROWSER_REQUIRED=1.
"""

import contextlib
import functools
import gzip
import http.server
import os
import re
import subprocess
import sys
import threading
import warnings
from html import unescape
from pathlib import Path
from urllib.parse import unquote, urlsplit

import axe_playwright_python
import pytest
import yaml
from fontTools.ttLib import TTFont

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))

from browser import browser_path, no_browser  # noqa: E402
from build_site import build, without_solutions  # noqa: E402

SITE = ROOT / "_build" / "html"
CODE_COLUMNS = 72


def pages(site: Path) -> list[str]:
    """Every page but index.html, which only leads on to the first."""
    found = (p.relative_to(site).as_posix() for p in site.rglob("*.html"))
    return sorted(n for n in found if n != "index.html" and not n.startswith("_"))


def expected_pages() -> list[str]:
    """The pages that the table of contents asks for, and the two of Sphinx."""
    toc = yaml.safe_load((ROOT / "book" / "_toc.yml").read_text("utf8"))
    files = [toc["root"], *(c["file"] for p in toc["parts"] for c in p["chapters"])]
    return sorted(f"{name}.html" for name in (*files, "genindex", "search"))


PAGES = expected_pages()  # not what is there: without a site every test must fail


def test_site_is_built_and_whole():
    assert pages(SITE) == PAGES, "run `make book` first"


@pytest.fixture(scope="module")
def browser():
    path = browser_path()
    if path is None:
        said = no_browser()
        if os.environ.get("SPMD_BROWSER_REQUIRED") == "1":
            pytest.fail(said)
        pytest.skip(said)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from playwright.sync_api import sync_playwright

        with sync_playwright() as playwright:
            opened = playwright.chromium.launch(
                executable_path=path, args=["--no-sandbox"]
            )
            yield opened
            opened.close()


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def served():
    """The site's address on this machine."""
    handler = functools.partial(Quiet, directory=str(SITE))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


class Reading:
    """A page of the browser that notes what goes wrong on it."""

    def __init__(self, page, base: str):
        self.page, self.base = page, base
        self.errors: list[str] = []
        page.on("console", self._on_console)
        page.on("pageerror", lambda error: self.errors.append(f"error: {error}"))
        page.on("requestfailed", self._on_failed)
        page.on("request", self._on_request)

    def _on_console(self, message):
        if message.type in ("error", "warning"):
            self.errors.append(f"{message.type}: {message.text}")

    def _on_failed(self, request):
        if request.failure != "net::ERR_ABORTED":  # by going to the next page
            self.errors.append(f"no {request.url}")

    def _on_request(self, request):
        if not request.url.startswith((self.base, "data:", "blob:")):
            self.errors.append(f"asks outside: {request.url}")

    def go(self, name: str, theme: str = "light", width: int = 1280):
        self.errors.clear()
        self.page.set_viewport_size({"width": width, "height": 900})
        answer = self.page.goto(self.base + name, wait_until="load")
        assert answer is None or answer.status in (0, 200), f"no page {name}"
        self.page.evaluate(f"document.documentElement.dataset.theme = '{theme}'")
        return self.page


@contextlib.contextmanager
def reading(browser, base: str):
    with contextlib.closing(browser.new_context(color_scheme="light")) as context:
        yield Reading(context.new_page(), base)


@pytest.fixture(scope="module")
def over_http(browser, served):
    with reading(browser, served) as page:
        yield page


@pytest.fixture(scope="module")
def from_folder(browser):
    with reading(browser, SITE.as_uri() + "/") as page:
        yield page


@pytest.mark.parametrize("name", PAGES)
def test_page_is_quiet_and_asks_nothing_outside(over_http, from_folder, name):
    for reader in (over_http, from_folder):
        page = reader.go(name)
        page.wait_for_load_state("networkidle")
        assert reader.errors == []
        assert page.title()


def test_the_index_leads_to_the_first_page(over_http):
    page = over_http.go("book/index.html")
    title = page.title()
    page.goto(over_http.base, wait_until="commit")
    page.wait_for_url("**/book/index.html")
    assert page.title() == title


UNNAMED = """() => [...document.querySelectorAll(
    '.bd-article img, .bd-article svg, .bd-article canvas')]
  .filter(e => !e.parentElement.closest('svg') && !e.closest('[aria-hidden=true]'))
  .filter(e => e.tagName == 'IMG' ? !e.alt.trim()
    : !(e.getAttribute('aria-label') || e.getAttribute('aria-labelledby')
        || e.querySelector('title')))
  .map(e => e.outerHTML.slice(0, 120))"""

WIDER = """() => {
  const room = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth <= room) return [];
  return [...document.querySelectorAll('body *')]
    .filter(e => e.getBoundingClientRect().right > room + 1)
    .slice(0, 5).map(e => e.outerHTML.slice(0, 120));
}"""


@pytest.mark.parametrize("width", [1280, 360])
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_page_fits_and_pictures_have_names(over_http, name, theme, width):
    page = over_http.go(name, theme, width)
    assert page.evaluate(WIDER) == [], "the page scrolls sideways"
    assert page.evaluate(UNNAMED) == [], "a picture without words"
    assert over_http.errors == []


HARD_TO_READ = """() => {
  const parse = c => (c.match(/[\\d.]+/g) || []).map(Number);
  const light = ([r, g, b]) => [r, g, b].map(v => v / 255)
    .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = e => {
    for (; e; e = e.parentElement) {
      const c = parse(getComputedStyle(e).backgroundColor);
      if (c.length == 3 || c[3] > 0.9) return c;
    }
    return parse(getComputedStyle(document.body).backgroundColor);
  };
  return [...document.querySelectorAll(
      '.bd-article :is(p, li, pre, h1, h2, h3, th, td, caption, summary)')]
    .filter(e => e.textContent.trim() && e.offsetParent)
    .map(e => {
      const pair = [parse(getComputedStyle(e).color), behind(e)].map(light).sort();
      return [(Math.max(...pair) + 0.05) / (Math.min(...pair) + 0.05), e];
    })
    .filter(([contrast]) => contrast < 4.5)
    .map(([contrast, e]) => contrast.toFixed(1) + ' ' + e.outerHTML.slice(0, 100));
}"""


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_text_stands_out(over_http, name, theme):
    page = over_http.go(name, theme)
    assert page.evaluate(HARD_TO_READ) == []


WITH_TABLES = [
    name
    for name in PAGES
    if name.startswith("notebooks/")
    and "spmd-xray" in (ROOT / name).with_suffix(".ipynb").read_text("utf8")
]


def test_tables_are_shown():
    assert len(WITH_TABLES) >= 2


@pytest.mark.parametrize("name", WITH_TABLES)
def test_what_the_package_shows_is_dark_in_the_dark(over_http, name):
    page = over_http.go(name, "dark")
    shown = page.locator(".cell_output .text_html:has(.spmd-xray)")
    assert shown.count() > 0
    grounds = shown.evaluate_all(
        "all => all.map(e => getComputedStyle(e).backgroundColor)"
    )
    assert set(grounds) == {"rgba(0, 0, 0, 0)"}


@pytest.mark.parametrize("name", [p for p in PAGES if "/" in p])
def test_code_is_not_too_wide(over_http, name):
    page = over_http.go(name)
    cells = page.locator(".cell_input pre").all_inner_texts()
    lines = [line for text in cells for line in text.splitlines()]
    assert [line for line in lines if len(line) > CODE_COLUMNS] == []
    for wide in page.locator(".cell_input pre").all():
        assert wide.evaluate("e => e.scrollWidth <= e.clientWidth + 1")


def links(name: str, text: str):
    """(address, the file it means, its fragment) of a page's internal links."""
    for address in re.findall(r'(?:href|src)="([^"]+)"', text):
        parts = urlsplit(address)
        if parts.scheme or parts.netloc or address.startswith("javascript:"):
            continue
        target = (SITE / name).parent / unquote(parts.path) if parts.path else None
        yield address, target or SITE / name, unquote(parts.fragment)


def dead_links(name: str, text: str) -> list[str]:
    dead = []
    for address, target, fragment in links(name, text):
        if not target.exists():
            dead.append(address)
        elif fragment and target.suffix == ".html":
            there = target.read_text("utf8")
            if f'id="{fragment}"' not in there and fragment != "":
                dead.append(address)
    return dead


@pytest.mark.parametrize("name", PAGES)
def test_no_dead_link(name):
    assert dead_links(name, (SITE / name).read_text("utf8")) == []


def test_a_dead_link_is_seen():
    page = '<a href="nowhere.html">x</a> <a href="#nothing">y</a>'
    assert dead_links("book/index.html", page) == ["nowhere.html", "#nothing"]


@pytest.mark.parametrize("name", [p for p in PAGES if p.startswith("notebooks/")])
def test_notebook_page_says_its_versions(name):
    said = re.findall(
        r"Outputs made with jax [\d.]+ on Python 3\.11\.",
        (SITE / name).read_text("utf8"),
    )
    assert len(said) == 1


@pytest.mark.parametrize("name", [p for p in PAGES if p.startswith("notebooks/")])
def test_exercises_and_solutions_lead_to_each_other(name):
    file = Path(name).name
    for here, there, line in (
        ("notebooks", "solutions", "Solutions: {}this chapter, solved</a>"),
        ("solutions", "notebooks", "Exercises: {}this chapter, open</a>"),
    ):
        link = f'<a href="../{there}/{file}">'
        text = (SITE / here / file).read_text("utf8")
        assert text.count(line.format(link)) == 1


def test_no_page_says_its_title_twice():
    for name in PAGES:
        text = (SITE / name).read_text("utf8")
        (title,) = re.findall(r"<title>(.*?)</title>", text, re.S)
        parts = [part.strip() for part in title.split("&#8212;")]
        assert len(parts) == len(set(parts)), name
        assert 'class="title logo__title"' in text


def printed_is_cut(page) -> list[str]:
    """The printed outputs that are wider than their place."""
    return page.locator(".cell_output .stream pre").evaluate_all(
        "all => all.filter(e => e.scrollWidth > e.clientWidth + 1)"
        ".map(e => e.textContent.slice(0, 80))"
    )


@pytest.mark.parametrize("name", [p for p in PAGES if p.startswith("notebooks/")])
def test_what_was_printed_is_not_cut_on_a_phone(over_http, name):
    page = over_http.go(name, width=390)
    assert page.locator(".cell_output .stream pre").count() > 0
    assert printed_is_cut(page) == []


def test_the_search_icon_does_not_lie_on_the_text(over_http):
    page = over_http.go("search.html")
    field = page.locator(".bd-article-container, main").locator(".bd-search").first
    glass = field.locator("svg, i").first.bounding_box()
    text = field.locator("input").evaluate(
        "e => e.getBoundingClientRect().left + parseFloat("
        "getComputedStyle(e).paddingLeft)"
    )
    assert glass["x"] + glass["width"] <= text


# The faults that these tests look for are seen when they are there.


@pytest.mark.parametrize(
    ("fault", "found"),
    [
        ("<script>notThere()</script>", "error: notThere is not defined"),
        (
            '<img src="https://example.invalid/x.png" alt="a picture">',
            "asks outside: https://example.invalid/x.png",
        ),
    ],
)
def test_a_fault_is_seen(browser, tmp_path, fault, found):
    (tmp_path / "x.html").write_text(f"<title>x</title>{fault}")
    with reading(browser, tmp_path.as_uri() + "/") as reader:
        reader.go("x.html").wait_for_load_state("networkidle")
        assert found in reader.errors


@pytest.mark.parametrize(
    ("fault", "script"),
    [
        ("<svg></svg>", UNNAMED),
        ('<div style="width: 2000px">x</div>', WIDER),
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


# For everyone, and light.

AXE = Path(axe_playwright_python.__file__).with_name("axe.min.js")
RULES = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice")
BY_TAGS = {"type": "tag", "values": RULES}
BY_COLOR = {"type": "rule", "values": ["color-contrast"]}
ASK = "rules => axe.run({runOnly: rules, resultTypes: ['violations']})"


def violations(page, rules: dict) -> list[str]:
    """What axe-core finds on a page that is open."""
    if not page.evaluate("typeof axe === 'object'"):
        page.evaluate(AXE.read_text("utf8"))
    found = page.evaluate(ASK, rules)["violations"]
    return [f"{v['id']}: {node['html'][:150]}" for v in found for node in v["nodes"]]


@pytest.mark.parametrize("name", PAGES)
def test_nobody_is_shut_out(over_http, name):
    page = over_http.go(name)
    page.add_style_tag(content="* { transition: none !important }")
    assert violations(page, BY_TAGS) == []
    page.evaluate("document.documentElement.dataset.theme = 'dark'")
    assert violations(page, BY_COLOR) == []


def test_a_page_that_shuts_people_out_is_seen(over_http):
    page = over_http.go(PAGES[0])
    page.evaluate("document.querySelector('article').innerHTML += '<img src=x>'")
    assert any("image-alt" in found for found in violations(page, BY_TAGS))
    page.evaluate("document.querySelector('article').style.color = '#bbb'")
    assert any("color-contrast" in found for found in violations(page, BY_COLOR))


# Gzipped bytes of everything that a page asks for; with mathematics it may be 350.
PAGE_BYTES = 250 * 1024


def largest(folder: str) -> str:
    return max((SITE / folder).glob("*.html"), key=lambda path: path.stat().st_size)


@pytest.mark.parametrize("folder", ["book", "notebooks", "solutions"])
def test_the_largest_page_is_light(browser, served, folder):
    sizes: dict[str, int] = {}

    def note(answer):
        sizes[answer.url] = len(gzip.compress(answer.body(), 9))

    with reading(browser, served) as reader:
        reader.page.on("response", note)
        reader.go(largest(folder).relative_to(SITE).as_posix())
        reader.page.wait_for_load_state("networkidle")
    assert len(sizes) > 10
    assert sum(sizes.values()) <= PAGE_BYTES, sorted(sizes.items(), key=lambda x: -x[1])


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
        for name in PAGES[:3] + PAGES[-3:]
        for content in over_http.go(name).evaluate(script)
        for char in content
        if 0xE000 <= ord(char) < 0xF900
    }
    assert shown
    assert shown <= kept


# What a page says of itself.


def test_each_page_has_a_description_of_its_own():
    found = {}
    for name in PAGES:
        if name not in ("genindex.html", "search.html"):
            text = (SITE / name).read_text("utf8")
            said = re.findall('<meta name="description" content="([^"]*)">', text)
            assert len(said) == 1, name
            assert 20 < len(unescape(said[0])) <= 200, name
            assert f'<meta property="og:description" content="{said[0]}">' in text
            found.setdefault((name.split("/")[0], said[0]), []).append(name)
    assert [names for names in found.values() if len(names) > 1] == []


def test_each_chapter_says_how_long_it_takes():
    chapters = [name for name in PAGES if name.startswith("notebooks/")]
    line = re.compile(
        r"<p class=.spmd-time.>Chapter (\d+) of (\d+) · (\d+) min to read · "
        r"(\d+) min of exercises</p>"
    )
    for number, name in enumerate(chapters, 1):
        facts = line.search((SITE / name).read_text("utf8")).groups()
        of_all, minutes = [int(n) for n in facts[:2]], [int(n) for n in facts[2:]]
        assert of_all == [number, len(chapters)]
        assert min(minutes) >= 5
    page = (SITE / "book" / "exercises.html").read_text("utf8")
    assert f"points, {minutes[1]} minutes." in page


# Mathematics, if a page has some.

CONF = """
import sys
sys.path.insert(0, {extensions!r})
extensions = ["myst_parser", "spmd_math"]
myst_enable_extensions = ["dollarmath"]
html_math_renderer = "mathml"
"""


def build_formula(folder: Path, text: str) -> subprocess.CompletedProcess:
    extensions = str(ROOT / "book" / "_ext")
    (folder / "conf.py").write_text(CONF.format(extensions=extensions), "utf8")
    (folder / "index.md").write_text(f"# Page\n\n{text}\n", "utf8")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "-b", "html"]
    return subprocess.run(
        [*command, str(folder), str(folder / "out")], capture_output=True, text=True
    )


def test_formulas_are_mathml_and_need_no_script(tmp_path, browser):
    text = "In a line $6PD$, and\n\n$$\n2\\frac{n-1}{n} V / W\n$$ (ring)\n\n{eq}`ring`"
    done = build_formula(tmp_path, text)
    assert done.returncode == 0, done.stderr
    made = (tmp_path / "out" / "index.html").read_text("utf8")
    assert not re.search("<script[^>]*(mathjax|katex)", made, re.I)
    with reading(browser, (tmp_path / "out").as_uri() + "/") as reader:
        page = reader.go("index.html")
        sizes = "[...document.querySelectorAll('math')].map(m => m.clientHeight)"
        assert len(page.evaluate(sizes)) == 2
        assert min(page.evaluate(sizes)) > 8
        assert page.evaluate("document.querySelector('mfrac').textContent")
        assert "(1)" in page.evaluate("document.querySelector('.spmd-math').innerText")


@pytest.mark.parametrize("formula", ["\\foo{x}", "\\frac{a", "x_1_2", "a & b"])
def test_a_formula_that_cannot_be_read_stops_the_build(tmp_path, formula):
    done = build_formula(tmp_path, f"Here ${formula}$.")
    assert done.returncode
    assert "index: the formula" in done.stderr


# The address in _config.yml.

ADDRESS = "https://github.com/someone/book"
BUTTON = "https://colab.research.google.com/github/someone/book/blob/main/notebooks/"


@pytest.fixture(scope="module")
def addressed(tmp_path_factory):
    """The site once the repository's address is known, and without solutions."""
    folder = tmp_path_factory.mktemp("addressed")
    text = (ROOT / "_config.yml").read_text("utf8")
    text = re.sub(r'(?m)^  url: "[^"]*"', f'  url: "{ADDRESS}"', text)
    text = re.sub(r'(?m)^  baseurl: "[^"]*"', '  baseurl: "https://example.org/"', text)
    text = text.replace("book/_ext", str(ROOT / "book" / "_ext"))
    (folder / "_config.yml").write_text(text, "utf8")
    less = without_solutions(yaml.safe_load((ROOT / "book" / "_toc.yml").read_text()))
    (folder / "_toc.yml").write_text(yaml.safe_dump(less), "utf8")
    assert build(ROOT, folder, folder / "_config.yml", toc=folder / "_toc.yml") == 0
    return folder / "_build" / "html"


def all_text(site: Path) -> dict[str, str]:
    return {name: (site / name).read_text("utf8") for name in pages(site)}


def test_buttons_once_the_address_is_known(addressed):
    for name, text in all_text(addressed).items():
        if name.startswith("notebooks/"):
            assert BUTTON + Path(name).with_suffix(".ipynb").name in text
            assert "logo_colab" in text
        if "/" in name:
            assert f'href="{ADDRESS}"' in text
            assert "fa-github" in text
            assert '<link rel="canonical" href="https://example.org/' in text


def test_no_solution_is_in_a_site_without_them(addressed):
    assert list((SITE / "solutions").glob("*.html"))
    assert not (addressed / "solutions").exists()
    assert not list((addressed / "_sources").glob("solutions/*"))
    for name, text in all_text(addressed).items():
        assert 'href="../solutions/' not in text, name
        assert "this chapter, solved" not in text, name


def test_no_button_while_the_address_is_unknown():
    config = (ROOT / "_config.yml").read_text("utf8")
    if not re.search(r'(?m)^  url: ""', config):
        pytest.skip("the address is known")
    for text in all_text(SITE).values():
        for sign in ("logo_colab", "launch-buttons", "fa-github", "/issues/new"):
            assert sign not in text
