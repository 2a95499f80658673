"""The widgets on a page: a first picture in the page itself, a script that wakes it.

The picture is stored (`make widgets` makes it in a browser), so that a page says the
same without a script. Style and script are joined from the package's own files, and
only a page that shows a widget asks for them.
"""

import re
from pathlib import Path

from docutils import nodes
from docutils.parsers.rst import Directive

STORED = Path(__file__).resolve().parent.parent / "widgets"
STYLE = "spmd-widgets.css"
# A widget, or the box on the page of errors: the name after 'spmd-', and the words.
PLACE = re.compile(r'<figure[^>]* id="spmd-([a-z-]+)"|id="spmd-(paste-text)"')
WORDS = {"paste-text": "box for an error"}
FIRST_LINK = re.compile(r'<div id="pst-skip-link".*?</div>')
SKIP = (
    '<div class="skip-link d-print-none">'
    '<a href="#spmd-{name}">Skip to the {words}</a></div>'
)


class widget(nodes.General, nodes.Element):
    """The place of a widget; `name` is its id."""


class Widget(Directive):
    """The name of a widget: `sharding-explorer`, `mesh-planner`."""

    required_arguments = 1

    def run(self):
        name = self.arguments[0]
        stored = STORED / f"{name}.html"
        if not stored.exists():
            raise self.error(f"there is no {stored.name} in {STORED.name}/")
        self.state.document.settings.env.note_dependency(str(stored))
        return [widget(name=name, picture=stored.read_text("utf8"))]


def show(translator, node):
    translator.body.append(node["picture"])
    raise nodes.SkipNode


def script_name(name: str) -> str:
    """The file of a script, by its name in Python."""
    return f"spmd-{name.replace('_', '-')}.js"


def write_files(app):
    """Put style and script where Sphinx finds them."""
    if app.builder.format != "html":
        return
    from spmd_helpers._widgets import source

    folder = Path(app.outdir) / "_static"
    folder.mkdir(parents=True, exist_ok=True)
    for name in source.WIDGETS:
        for one, script in source.page_scripts(name).items():
            (folder / script_name(one)).write_text(script, "utf8")
    (folder / STYLE).write_text(source.style(), "utf8")


def add_files(app, pagename, templatename, context, doctree):
    """A page with a widget asks for both."""
    places = [*doctree.findall(widget)] if doctree is not None else []
    if places:
        from spmd_helpers._widgets import source

        app.add_css_file(STYLE)
    for place in places:
        for one in source.page_scripts(place["name"].replace("-", "_")):
            app.add_js_file(script_name(one), loading_method="defer")


def skip_to_widgets(app, exception):
    """After the theme's first link one that skips all that stands before a widget."""
    if exception or app.builder.format != "html":
        return
    for path in Path(app.outdir).rglob("*.html"):
        text = path.read_text("utf8")
        if names := [widget or box for widget, box in PLACE.findall(text)]:
            links = "".join(
                SKIP.format(name=n, words=WORDS.get(n, n.replace("-", " ")))
                for n in names
            )
            path.write_text(FIRST_LINK.sub(rf"\g<0>\n{links}", text, count=1), "utf8")


def setup(app):
    app.add_node(widget, html=(show, None))
    app.add_directive("widget", Widget)
    app.connect("builder-inited", write_files)
    app.connect("html-page-context", add_files)
    app.connect("build-finished", skip_to_widgets)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
