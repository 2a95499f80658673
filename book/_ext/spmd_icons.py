"""The theme's icons, but only those that a page shows.

The theme sends every icon of Font Awesome Free as a font and as rules of style. After
the build this keeps the rules of the icons that a page or a script names, and the
glyphs that the rules left over ask for: two kilobytes in place of two hundred.
"""

import re
from pathlib import Path

from fontTools import subset
from fontTools.ttLib import TTFont

NAMED = re.compile(r"\bfa-[a-z0-9-]+")
# `.fa-x:before,.fa-y:before{content:"\f104"}`: one glyph and the names that it has.
RULE = re.compile(r'((?:\.fa-[\w-]+:+before,?)+)\{content:"\\([0-9a-f]{4})"\}')
ESCAPED = re.compile(r'"\\([ef][0-9a-f]{3})"')
PRIVATE = range(0xE000, 0xF900)  # where icon fonts keep their glyphs
FALLBACK = re.compile(r',url\([^)]*\.ttf\) format\("truetype"\)')


def named_icons(site: Path) -> set[str]:
    """Every icon that a page or a script of the site speaks of."""
    scripts = (site / "_static").rglob("*.js")
    texts = (path.read_text("utf8") for path in [*site.rglob("*.html"), *scripts])
    return {name for text in texts for name in NAMED.findall(text)}


def without_other_icons(css: str, named: set[str]) -> str:
    """A style sheet less the rules for icons that nobody names."""

    def kept(rule: re.Match) -> str:
        return rule[0] if named & set(NAMED.findall(rule[1])) else ""

    return FALLBACK.sub("", RULE.sub(kept, css))


def glyphs_of(css: str) -> set[int]:
    """The code points, escaped or written out, that a style sheet shows."""
    escaped = {int(digits, 16) for digits in ESCAPED.findall(css)}
    return escaped | {ord(char) for char in css if ord(char) in PRIVATE}


def cut_font(path: Path, glyphs: set[int]) -> None:
    """Leave only these glyphs in a font, under a name of its own."""
    options = subset.Options(
        flavor="woff2", layout_features=[], name_IDs=[], notdef_outline=True
    )
    font = TTFont(path, recalcTimestamp=False)  # the same bytes every time
    cutter = subset.Subsetter(options)
    cutter.populate(unicodes=glyphs)
    cutter.subset(font)
    font.flavor = "woff2"
    font.save(path)
    path.with_suffix(".ttf").unlink(missing_ok=True)


def keep_shown_icons(app, exception):
    """After a build without an error."""
    if exception or app.builder.format != "html":
        return
    site = Path(app.outdir)
    named, glyphs = named_icons(site), set()
    for path in (site / "_static").rglob("*.css"):
        css = path.read_text("utf8")
        less = without_other_icons(css, named)
        if less != css:
            path.write_text(less, "utf8")
        glyphs |= glyphs_of(less)
    for path in (site / "_static" / "vendor" / "fontawesome").rglob("*.woff2"):
        cut_font(path, glyphs)


def setup(app):
    app.connect("build-finished", keep_shown_icons)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
