"""Store the widgets' first pictures in book/widgets/, as a browser makes them.

Without a script a page shows these. --check only says which are not what the widgets
make now. Needs a Chromium (CHROMIUM names one that is not on the path).
"""

import re
import sys
import warnings

from spmd_helpers._widgets import source
from tools.book.book import ROOT
from tools.check.browser import browser_path, no_browser

STORED = ROOT / "book" / "widgets"
PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>widgets</title>
<style>{style}</style>{places}{scripts}</html>"""


def page() -> str:
    """A page with all widgets and nothing else."""
    ids = [name.replace("_", "-") for name in source.WIDGETS]
    return PAGE.format(
        style=source.style(),
        places="".join(f'<figure id="spmd-{one}"></figure>' for one in ids),
        scripts="".join(
            f"<script>{script}</script>"
            for name in source.WIDGETS
            for script in source.page_scripts(name).values()
        ),
    )


def pictures(browser) -> dict[str, str]:
    """Each widget's id and its first picture, from an opened browser."""
    shown = browser.new_page()
    try:
        shown.set_content(page())
        return {
            figure.get_attribute("id").removeprefix("spmd-"): _in_lines(
                figure.evaluate("e => e.outerHTML")
            )
            for figure in shown.query_selector_all("figure.spmd-w")
        }
    finally:
        shown.close()


def _in_lines(html: str) -> str:
    """A line for each row and each part, so that a change can be read."""
    return (
        re.sub(
            r"(?=<(?:tr|thead|tbody|div|details|p|fieldset|figcaption)\b)", "\n", html
        )
        + "\n"
    )


def main() -> int:
    path = browser_path()
    if path is None:
        print(no_browser("the widgets were not drawn"), file=sys.stderr)
        return 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from playwright.sync_api import sync_playwright

        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(
                executable_path=path, args=["--no-sandbox"]
            )
            drawn = pictures(browser)
            browser.close()
    stale = []
    for name, html in drawn.items():
        stored = STORED / f"{name}.html"
        if not stored.exists() or stored.read_text("utf8") != html:
            stale.append(stored.relative_to(ROOT).as_posix())
            if "--check" not in sys.argv:
                STORED.mkdir(exist_ok=True)
                stored.write_text(html, "utf8")
    if "--check" in sys.argv and stale:
        print(f"not what the widgets make now: {', '.join(stale)}; run make widgets")
        return 1
    print(f"{len(drawn)} widgets, {len(stale)} changed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
