"""The built site in a browser: its pages, and a reader that notes what goes wrong."""

import contextlib
import functools
import http.server
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import axe_playwright_python
import yaml

from tools.book.build_site import toc_files

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "_build" / "html"


def pages(site: Path) -> list[str]:
    """Every page but index.html, which only leads on to the first."""
    names = (p.relative_to(site).as_posix() for p in site.rglob("*.html"))
    return sorted(n for n in names if n != "index.html" and not n.startswith("_"))


def expected_pages() -> list[str]:
    """The pages that the table of contents asks for, and the two of Sphinx."""
    toc = yaml.safe_load((ROOT / "book" / "_toc.yml").read_text("utf8"))
    return sorted(f"{name}.html" for name in (*toc_files(toc), "genindex", "search"))


PAGES = expected_pages()  # not what is there: without a site every test must fail
CHAPTERS = [name for name in PAGES if re.match(r"notebooks/\d\d_", name)]


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@contextlib.contextmanager
def serving(site: Path) -> Iterator[str]:
    """The address of a folder on this machine."""
    handler = functools.partial(Quiet, directory=str(site))
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


# What to look for. Each is a script that lists what is wrong on a page.

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
  const isScrolled = e => e && (e.scrollWidth > e.clientWidth
    && getComputedStyle(e).overflowX != 'visible' || isScrolled(e.parentElement));
  const right = e => Math.max(...[...e.childNodes].filter(n => n.data).map(n => {
    const range = document.createRange();
    range.selectNode(n);
    return range.getBoundingClientRect().right;
  }), e.getBoundingClientRect().right);
  const wide = [...document.querySelectorAll('body *')]
    .filter(e => right(e) > room + 1);
  const pushing = wide.filter(e => !isScrolled(e.parentElement));
  return (pushing.length ? pushing : wide)
    .slice(-5).map(e => e.outerHTML.slice(0, 120));
}"""


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


AXE = Path(axe_playwright_python.__file__).with_name("axe.min.js")
RULES = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice")
BY_TAGS = {"type": "tag", "values": RULES}
# All that a theme changes.
COLORS = {"type": "rule", "values": ["color-contrast", "link-in-text-block"]}
# axe spends four fifths of its time on what lies behind each word.
ASK = """([only, colors]) => axe.run({runOnly: only, resultTypes: ['violations'],
  rules: {'color-contrast': {enabled: colors}}})"""
# axe asks what lies below a word; that changes while the page is still being laid out.
ALL_LAID_OUT = "* { content-visibility: visible !important }"


def violations(page, rules: dict, colors: bool = True) -> list[str]:
    """What axe-core finds on a page that is open, if asked also of its colors."""
    page.add_style_tag(content=ALL_LAID_OUT)
    if not page.evaluate("typeof axe === 'object'"):
        page.evaluate(AXE.read_text("utf8"))
    violated = page.evaluate(ASK, [rules, colors])["violations"]
    return [f"{v['id']}: {node['html'][:150]}" for v in violated for node in v["nodes"]]
