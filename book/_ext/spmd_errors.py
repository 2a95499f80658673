"""The page of errors: a box for a pasted error, and an entry that unfolds.

The box matches by the rules of `spmd.explain` itself, which `rules_data` gives to a
script. Without a script the box is not shown.
"""

from pathlib import Path

import rules_data
from docutils import nodes
from docutils.parsers.rst import Directive

SCRIPTS = Path(__file__).resolve().parent.parent / "scripts"
SCRIPT = "spmd-errors.js"
BOX = """\
<form class="spmd-paste" aria-labelledby="spmd-paste-label">
<label id="spmd-paste-label" for="spmd-paste-text">Paste your error</label>
<p id="spmd-paste-hint">The full traceback is best; the last line or a line of XLA's log
will do. The text stays in this page.</p>
<textarea id="spmd-paste-text" rows="5" spellcheck="false" autocomplete="off"
 autocapitalize="off" aria-describedby="spmd-paste-hint"></textarea>
<p><button type="submit">Explain it</button> <button type="reset">Clear</button></p>
<div role="status"></div>
</form>
"""


class error_box(nodes.General, nodes.Element):
    """The place of the box."""


class error_entry(nodes.General, nodes.Element):
    """What is said of an error: an `error_message`, and what unfolds under it."""


class error_message(nodes.General, nodes.Element):
    """An error's message, the line that stays."""


class PasteError(Directive):
    """The box."""

    def run(self):
        return [error_box()]


class ErrorEntry(Directive):
    """An entry; its first paragraph is the message."""

    has_content = True

    def run(self):
        entry = error_entry()
        self.state.nested_parse(self.content, self.content_offset, entry)
        first = entry.children[0]
        entry.replace(first, error_message("", *first.children))
        return [entry]


def show_box(translator, node):
    translator.body.append(BOX)
    raise nodes.SkipNode


def open_entry(translator, node):
    translator.body.append('<details class="spmd-error">')


def close_entry(translator, node):
    translator.body.append("</details>\n")


def open_message(translator, node):
    translator.body.append("<summary>")


def close_message(translator, node):
    translator.body.append("</summary>\n")


def write_script(app):
    if app.builder.format != "html":
        return
    folder = Path(app.outdir) / "_static"
    folder.mkdir(parents=True, exist_ok=True)
    files = [(SCRIPTS / name).read_text("utf8") for name in ("explain.js", "errors.js")]
    (folder / SCRIPT).write_text(rules_data.script(*files), "utf8")


def add_script(app, pagename, templatename, context, doctree):
    """The page with the box asks for it."""
    if doctree is not None and any(doctree.findall(error_box)):
        app.add_js_file(SCRIPT, loading_method="defer")


def setup(app):
    app.add_node(error_box, html=(show_box, None))
    app.add_node(error_entry, html=(open_entry, close_entry))
    app.add_node(error_message, html=(open_message, close_message))
    app.add_directive("paste-error", PasteError)
    app.add_directive("error-entry", ErrorEntry)
    app.connect("builder-inited", write_script)
    app.connect("html-page-context", add_script)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
