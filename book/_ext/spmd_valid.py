"""Valid HTML: what the theme and the tools write that no standard allows.

After the build every page is mended in the few kinds of places where it has to be. A
page that stands for another is given what a page must have.
"""

import html
import re
from pathlib import Path

VOID = "area|base|br|col|embed|hr|img|input|link|meta|source|track|wbr"
CLOSED_VOID = re.compile(rf"<({VOID})\b([^<>]*?)\s*/>")
LABEL = re.compile(
    r'<summary aria-label="Toggle hidden content">\s*'
    r'<p class="collapsed admonition-title">(.*?)</p>\s*'
    r'<p class="expanded admonition-title">(.*?)</p>\s*</summary>'
)
LABELED = (
    r'<summary><span class="collapsed admonition-title">\1</span>'
    r'<span class="expanded admonition-title">\2</span></summary>'
)
# The title once more, for printing, and a list of sections without page numbers.
PRINTED = re.compile(
    r'<div id="jb-print-docs-body".*?(?=<div id="searchbox"></div>)', re.S
)
VIEWPORT = re.compile(r'\s*<meta name="viewport"[^>]*>')
ADVERTISEMENT = re.compile(r'<div id="ethical-ad-placement"[^>]*>\s*</div>')
REFRESH = re.compile(r'<meta http-equiv="refresh" content="0; url=([^"]+)"', re.I)
DRAWN = re.compile(r"<svg\b.*?</svg>", re.S)
ID = re.compile(r'\bid="([^"]+)"')
FRONT = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="refresh" content="0; url={page}">
<title>{title}</title>
</head>
<body>
<p><a href="{page}">{title}</a></p>
</body>
</html>
"""


def one_viewport(text: str) -> str:
    """A page says once how wide it wants to be."""
    first = VIEWPORT.search(text)
    if not first:
        return text
    return text[: first.end()] + VIEWPORT.sub("", text[first.end() :])


def own_ids(text: str) -> str:
    """Drawings that give the same id get one each."""
    ids: set[str] = set()

    def rename(drawing: re.Match) -> str:
        renamed = drawing[0]
        for name in dict.fromkeys(ID.findall(renamed)):
            if name in ids:
                number = 2
                while f"{name}-{number}" in ids:
                    number += 1
                renamed = re.sub(
                    rf'(?<=["# ]){re.escape(name)}(?=[")\s])',
                    f"{name}-{number}",
                    renamed,
                )
                name = f"{name}-{number}"
            ids.add(name)
        return renamed

    return DRAWN.sub(rename, text)


def mended(text: str) -> str:
    """A page with what is not valid made so."""
    text = LABEL.sub(LABELED, text)
    text = PRINTED.sub("", text)
    text = ADVERTISEMENT.sub("", text)
    return CLOSED_VOID.sub(r"<\1\2>", own_ids(one_viewport(text)))


def mend(app, exception):
    """After a build without an error."""
    if exception or app.builder.format != "html":
        return
    site = Path(app.outdir)
    for template in (site / "_static").glob("*webpack-macros.html"):
        template.unlink()
    for path in site.rglob("*.html"):
        text = path.read_text("utf8")
        leads_on = REFRESH.search(text)
        if leads_on and "<html" not in text:
            title = html.escape(app.config.html_title)
            valid = FRONT.format(page=leads_on[1], title=title)
        else:
            valid = mended(text)
        if valid != text:
            path.write_text(valid, "utf8")
    for path in (site / "_static").glob("mystnb*.css"):  # its labels are spans now
        css = path.read_text("utf8")
        path.write_text(css.replace("summary>p.", "summary>span."), "utf8")


def setup(app):
    app.connect("build-finished", mend, priority=600)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
