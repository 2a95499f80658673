"""What a page has that the HTML standard does not allow, found without a browser.

The parser of the standard lists what it had to repair. Beyond that: what may stand in
what, ids, headings, labels, references, and what HTML no longer has.
"""

from collections import Counter
from collections.abc import Iterator

import html5lib


def _set(words: str) -> set[str]:
    return set(words.split())


METADATA = _set("base body head html link meta noscript script style template title")
BLOCKS = _set(
    """address article aside blockquote details dialog div dl fieldset figure footer
    form h1 h2 h3 h4 h5 h6 header hgroup hr main menu nav ol p pre section table ul"""
)
PHRASES = _set(
    """a abbr area audio b bdi bdo br button canvas cite code data datalist del dfn em
    embed i iframe img input ins kbd label map mark math meter object output picture
    progress q ruby s samp select small span strong sub sup svg textarea time u var
    video wbr"""
)
PARTS = _set(
    """caption col colgroup dd dt figcaption legend li optgroup option param rp rt
    search slot source summary tbody td tfoot th thead tr track"""
)
KNOWN = METADATA | BLOCKS | PHRASES | PARTS
# In these only phrases; a summary may also be a heading.
HOLDS_PHRASES = _set(
    """abbr b button cite code dfn em h1 h2 h3 h4 h5 h6 i kbd label mark p pre q s samp
    small span strong sub summary sup time u var"""
)
HEADINGS = ("h1", "h2", "h3", "h4", "h5", "h6")
PRESSED = _set("a button details iframe input label select textarea")
SCRIPTS = {"script", "template"}
CHILDREN = {
    "ul": {"li"},
    "ol": {"li"},
    "menu": {"li"},
    "dl": {"dt", "dd", "div"},
    "table": _set("caption colgroup thead tbody tfoot tr"),
    "thead": {"tr"},
    "tbody": {"tr"},
    "tfoot": {"tr"},
    "tr": {"td", "th"},
    "colgroup": {"col"},
    "select": {"option", "optgroup", "hr"},
}
OBSOLETE = _set(
    """align alink bgcolor border cellpadding cellspacing char charoff clear compact
    frameborder hspace marginheight marginwidth noshade nowrap rules scrolling valign
    vlink vspace"""
)
REFERENCES = ("for", "aria-labelledby", "aria-describedby", "aria-controls", "headers")
OWN_ROLE = {  # of <main> Sphinx's search wants it said
    "nav": "navigation",
    "article": "article",
    "aside": "complementary",
    "button": "button",
    "table": "table",
    "ul": "list",
    "li": "listitem",
}


def faults(text: str) -> list[str]:
    """Everything that is wrong with a page, in words."""
    parser = html5lib.HTMLParser(namespaceHTMLElements=False)
    root = parser.parse(text)
    messages = [f"line {at[0]}: {code}" for at, code, _ in parser.errors]
    tree = [e for e in root.iter() if isinstance(e.tag, str)]
    parent = {child: e for e in tree for child in e}
    for check in (_document, _headings, _ids, _attributes):
        messages += check(tree)
    for check in (_nesting, _labels):
        messages += check(tree, parent)
    return messages


def _name(element) -> str:
    said = " ".join("".join(element.itertext()).split())[:40]
    return f"<{element.tag}> {said!r}"


def _document(tree) -> Iterator[str]:
    if not tree[0].get("lang"):
        yield "the page has no language"
    titles = [e for e in tree if e.tag == "title"]
    if len(titles) != 1 or not (titles[0].text or "").strip():
        yield f"{len(titles)} titles, or an empty one"
    for name, count in Counter(
        e.get("name") for e in tree if e.tag == "meta" and e.get("name")
    ).items():
        if count > 1:
            yield f"meta {name} {count} times"


def _headings(tree) -> Iterator[str]:
    shown = [e for e in tree if e.tag in HEADINGS]
    firsts = sum(e.tag == "h1" for e in shown)
    if firsts != 1:
        yield f"{firsts} headings h1"
    before = 0
    for heading in shown:
        level = int(heading.tag[1])
        if not "".join(heading.itertext()).strip():
            yield f"an empty {heading.tag}"
        if level > before + 1:
            yield f"{_name(heading)} after a heading of level {before}"
        before = level


def _ids(tree) -> Iterator[str]:
    ids = Counter(e.get("id") for e in tree if e.get("id") is not None)
    for name, count in ids.items():
        if count > 1:
            yield f"id {name!r} {count} times"
        if not name or name.split() != [name]:
            yield f"id {name!r} is empty or has a space"
    for element in tree:
        for attribute in REFERENCES:
            for name in (element.get(attribute) or "").split():
                if name not in ids:
                    yield f"{_name(element)}: {attribute} names no {name!r}"


def _attributes(tree) -> Iterator[str]:
    for element in tree:
        if element.tag.startswith("{"):  # of a drawing or a formula
            continue
        if element.tag not in KNOWN and "-" not in element.tag:
            yield f"<{element.tag}> is no element"
        for attribute in OBSOLETE & set(element.keys()):
            yield f"<{element.tag}> has {attribute}"
        if element.tag == "img" and None in (element.get("alt"), element.get("src")):
            yield "<img> without alt or src"
        if element.get("role") == OWN_ROLE.get(element.tag, ""):
            yield f"<{element.tag}> says its own role"


def _nesting(tree, parent) -> Iterator[str]:
    for element in tree:
        above = parent.get(element)
        if above is None or element.tag.startswith("{"):
            continue
        may = CHILDREN.get(above.tag)
        if may and element.tag not in may | SCRIPTS:
            yield f"{_name(element)} in <{above.tag}>"
        if element.tag in ("li",) and above.tag not in ("ul", "ol", "menu"):
            yield f"{_name(element)} in <{above.tag}>"
        if element.tag == "summary" and (above.tag, above[0]) != ("details", element):
            yield f"{_name(element)} is not the first in a <details>"
        if element.tag in BLOCKS:
            while above is not None and above.tag in ("a", "ins", "del", "map"):
                above = parent.get(above)
            heads = above.tag == "summary" and element.tag in HEADINGS
            if above.tag in HOLDS_PHRASES and not heads:
                yield f"{_name(element)} in <{above.tag}>"
        if element.tag in PRESSED:
            while above is not None:
                if above.tag in ("a", "button"):
                    yield f"{_name(element)} in <{above.tag}>"
                above = parent.get(above)


def _labels(tree, parent) -> Iterator[str]:
    pointed = {e.get("for") for e in tree if e.tag == "label"}
    for element in tree:
        if element.tag not in ("input", "select", "textarea"):
            continue
        if element.get("type") in ("hidden", "submit", "button", "reset"):
            continue
        named = element.get("aria-label") or element.get("aria-labelledby")
        above = element
        while above is not None and above.tag != "label":
            above = parent.get(above)
        if not (named or above is not None or element.get("id") in pointed):
            yield f"<{element.tag}> without a label"
