"""A search whose hits are places: a section, an entry of the glossary, an error.

Sphinx's index has pages. Here each section of a page is fed to it by itself, and the
scorer takes the place out of the name. Solved chapters repeat the chapters and stay
out. A pasted error is handed to the page of errors.
"""

import html
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from docutils import nodes
from docutils.utils import new_document

SCRIPTS = Path(__file__).resolve().parent.parent / "scripts"
SCRIPT = "spmd-search.js"
GLOSSARY = "book/glossary"
OUT = "solutions/"


def name_terms(app, doctree):
    """Each term of the glossary gets an address."""
    if app.env.docname == GLOSSARY:
        for term in doctree.findall(nodes.term):
            term["ids"].append(f"term-{nodes.make_id(term.astext())}")


def places(pagename: str, doctree) -> Iterator[tuple[str, str, nodes.Element]]:
    """(id, title, content) of everything in a page that a hit can open."""
    for section in doctree.findall(nodes.section):
        title = section.next_node(nodes.title)
        yield section["ids"][0], title.astext(), section
        if pagename == GLOSSARY:
            for item in section.findall(nodes.definition_list_item):
                term = item.next_node(nodes.term)
                yield term["ids"][0], term.astext(), item


def alone(place: str, title: str, part: nodes.Element) -> nodes.document:
    """A document that has this part, less the parts in it that are places, too."""
    document = new_document("")
    section = nodes.section("", nodes.title("", title), ids=[place])
    document += section
    inner = [part]
    if isinstance(part, nodes.section):
        apart = (nodes.title, nodes.section)
        if place == "glossary":
            apart += (nodes.definition_list,)
        inner = [node for node in part.children if not isinstance(node, apart)]
    section += [node.deepcopy() for node in inner]
    return document


def index_places(builder, pagename: str, doctree, title: str) -> None:
    """In place of the builder's `index_page`, which feeds a page as one."""
    if builder.indexer is None or not title or pagename.startswith(OUT):
        return
    builder.indexer.prune = keep_all
    filename = builder.env.doc2path(pagename, base=False)
    page = builder.env.titles[pagename].astext()
    for number, (place, words, part) in enumerate(places(pagename, doctree)):
        name = f"{pagename}#{place}" if number else pagename
        shown = f"{words} · {page}" if number else page
        content = alone(place, words, part)
        builder.indexer.feed(name, filename, html.escape(shown), content)


def keep_all(docnames) -> None:
    """Before it writes, Sphinx would drop what has no page's name; all is new here."""


def feed_places(app):
    if app.builder.format != "html":
        return
    app.builder.index_page = partial(index_places, app.builder)
    folder = Path(app.outdir) / "_static"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / SCRIPT).write_text((SCRIPTS / "search.js").read_text("utf8"), "utf8")


def set_scorer(app, config):
    config.html_search_scorer = str(SCRIPTS / "scorer.js")


def setup(app):
    app.connect("config-inited", set_scorer)
    app.connect("builder-inited", feed_places)
    app.connect("doctree-read", name_terms)
    app.add_js_file(SCRIPT, loading_method="defer")
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
