"""What Jupyter Book does not do by itself: a site that needs nothing from outside.

- pages load no script from elsewhere, and none that they do not use;
- buttons for Colab, Kaggle and the repository appear once _config.yml has its address;
- a notebook's page says which versions made its outputs, and leads to its twin:
  from the exercises to the solved chapter and back, where there are exercises;
- exercises and takeaways can be told at a glance;
- a page that is no notebook can show a sharding, drawn when the site is built, and
  what the chapters promise, in their own words.
"""

import ast
import html
import json
import re
from pathlib import Path

from docutils import nodes
from docutils.parsers.rst import Directive

CHAPTERS = Path(__file__).resolve().parent.parent / "chapters"
UNUSED = ("thebe", "mathjax", "toggle")
DESIGN = ("sphinx-design", "design-tabs")  # for cards and tabs, where there are some
# Folder of a notebook's page: the folder of its twin, and what to say of that one.
TWINS = {
    "notebooks": ("solutions", "Solutions", "this chapter, solved"),
    "solutions": ("notebooks", "Exercises", "this chapter, open"),
}
# A chapter's promises: one paragraph of bullets, a bullet may go on in the next line.
GOALS = r"After this chapter you can\n\n((?:- .*\n(?:  .*\n)*)+)"
SIDEBAR = '<div id="pst-primary-sidebar"'
# An entry with pages under it, and the theme's button that unfolds them.
UNDER = re.compile(
    r'(<a class="(?:current )?reference internal" href="[^"]*">([^<]*)</a>'
    r"<details[^>]*>)<summary>"
)
LANDMARK = 'role="complementary" aria-label="Title, search and contents"'
NO_SUMMARIES = (
    'if (location.protocol === "file:") '
    "DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;"
)
LIVE_CODE = re.compile(
    r'<script type="text/x-thebe-config">.*?</script>\s*'
    r"<script>kernelName = .*?</script>",
    re.S,
)


def set_buttons(app, config):
    """Colab, repository and edit buttons, where there is something to open."""
    options = config.html_theme_options
    options.setdefault("navbar_persistent", [])  # search is in the sidebar already
    options.setdefault("logo", {}).setdefault("text", config.html_title)
    if not options.get("repository_url"):
        options.pop("repository_url", None)
        return
    options.update(
        repository_url=options["repository_url"].rstrip("/"),
        use_repository_button=True,
        use_issues_button=True,
        launch_buttons={"colab_url": "https://colab.research.google.com"},
    )


def add_kaggle(app, pagename, templatename, context, doctree):
    """Beside the theme's button for Colab one for Kaggle, which has eight free TPUs."""
    for group in context.get("header_buttons", ()):
        if group.get("label") != "launch-buttons":
            continue
        colab = next(b for b in group["buttons"] if b["text"] == "Colab")
        place = colab["url"].partition("/github/")[2]
        address = f"https://kaggle.com/kernels/welcome?src=https://github.com/{place}"
        words = {"text": "Kaggle", "tooltip": "Launch on Kaggle (eight TPU chips)"}
        group["buttons"].append(
            {"type": "link", "icon": "fas fa-rocket", "url": address, **words}
        )


def trim_scripts(app, pagename, templatename, context, doctree):
    """Drop the scripts and styles that no page here uses, whoever added them."""
    body = context.get("body", "")
    unused = UNUSED if 'class="sd-' in body else UNUSED + DESIGN
    for kind in ("script_files", "css_files"):
        context[kind] = [f for f in context[kind] if not _names(f, unused)]
    context["body"] = LIVE_CODE.sub("", body)


def _names(file, words: tuple[str, ...]) -> bool:
    attributes = getattr(file, "attributes", {})
    text = f"{getattr(file, 'filename', file)} {attributes.get('body', '')}"
    return any(word in text.lower() for word in words)


class Sharding(Directive):
    """`shape`, `spec` and `mesh`, written as in Python, drawn by the package."""

    option_spec = dict.fromkeys(("shape", "spec", "mesh"), ast.literal_eval)

    def run(self):
        from jax.sharding import PartitionSpec

        import spmd_helpers as spmd

        shape, spec, mesh = (self.options[name] for name in self.option_spec)
        drawing = spmd.draw(shape, PartitionSpec(*spec), mesh=mesh)
        picture = drawing._repr_mimebundle_()["text/html"]
        return [nodes.raw("", picture, format="html")]


class Goals(Directive):
    """What each chapter says that its reader can do after it."""

    def run(self):
        table = nodes.definition_list()
        for master in sorted(CHAPTERS.glob("[0-9]*.md")):
            self.state.document.settings.env.note_dependency(str(master))
            text = master.read_text("utf8")
            title = re.search(r"^# (.+)$", text, re.M)[1]
            goals = re.search(GOALS, text, re.M)
            if not goals:
                words = "has no bullets after 'After this chapter you can'"
                raise self.error(f"{master.name} {words}")
            points = nodes.bullet_list()
            for goal in re.split(r"^- ", goals[1], flags=re.M)[1:]:
                goal = " ".join(goal.split()).rstrip(";.")
                said, _ = self.state.inline_text(goal, self.lineno)
                points += nodes.list_item("", nodes.paragraph("", "", *said))
            table += nodes.definition_list_item(
                "", nodes.term("", title), nodes.definition("", points)
            )
        return [table]


def search_from_a_folder(app, pagename, templatename, context, doctree):
    """In a page opened as a file the search can't read others for their first lines."""
    if pagename == "search":
        app.add_js_file(None, body=NO_SUMMARIES)


def mark_sections(app, doctree):
    """Give exercises, takeaways and rules a class of their own."""
    for section in doctree.findall(nodes.section):
        kind = section.next_node(nodes.title).astext().split(" ")[0].lower()
        if kind in ("exercise", "takeaways"):
            section["classes"].append(f"spmd-{kind}")
    for quote in doctree.findall(nodes.block_quote):
        first = quote.next_node(nodes.strong)
        if first is not None and first.astext() == "Rule.":
            quote["classes"].append("spmd-rule")


def say_versions(app, pagename, templatename, context, doctree):
    """Add a line with the versions to the end of a notebook's page."""
    if pagename not in app.env.all_docs:
        return
    path = Path(app.env.doc2path(pagename))
    if path.suffix != ".ipynb":
        return
    facts = json.loads(path.read_text("utf8"))["metadata"].get("spmd", {})
    made_with = facts.get("made_with")
    if made_with:
        first = sorted(made_with, key=lambda name: (name != "jax", name))
        versions = ", ".join(f"{name} {made_with[name]}" for name in first)
        line = f"Outputs made with {versions}."
        context["body"] += f'<p class="spmd-made-with">{html.escape(line)}</p>'


def has_exercises(path: Path) -> bool:
    """Whether a notebook has a cell that is graded."""
    cells = json.loads(path.read_text("utf8"))["cells"]
    return any("nbgrader" in cell["metadata"] for cell in cells)


def lead_to_twin(app, pagename, templatename, context, doctree):
    """Add a line that leads to the same chapter, solved or open."""
    folder, _, name = pagename.partition("/")
    if folder not in TWINS or not has_exercises(Path(app.env.doc2path(pagename))):
        return
    other, word, what = TWINS[folder]
    twin = f"{other}/{name}"
    if twin in app.env.all_docs:
        address = html.escape(app.builder.get_relative_uri(pagename, twin))
        link = f'<a href="{address}">{what}</a>'
        context["body"] += f'<p class="spmd-twin">{word}: {link}</p>'


def say_title_once(app, pagename, templatename, context, doctree):
    """The front page's <title> is the book's, and not followed by it again."""
    title = html.unescape(context.get("title") or "")
    if pagename == app.config.root_doc and title == context.get("docstitle"):
        context["docstitle"] = ""


def name_sidebar(app, exception):
    """Make the theme's sidebar a landmark that a screen reader can go to.

    The buttons in it get names.

    Without a script a page is light: the theme's colors hang on the word.
    """
    if exception or app.builder.format != "html":
        return
    for path in Path(app.outdir).rglob("*.html"):
        text = path.read_text("utf8")
        text = text.replace(SIDEBAR, f"{SIDEBAR} {LANDMARK}", 1)
        text = UNDER.sub(r'\1<summary aria-label="Pages under \2">', text)
        text = text.replace('data-theme="auto"', 'data-theme="light"', 1)
        path.write_text(text, "utf8")


def setup(app):
    app.add_directive("sharding", Sharding)
    app.add_directive("goals", Goals)
    app.connect("config-inited", set_buttons, priority=100)
    app.connect("doctree-read", mark_sections)
    app.connect("build-finished", name_sidebar)
    app.connect("html-page-context", add_kaggle, priority=600)
    app.connect("html-page-context", search_from_a_folder)
    app.connect("html-page-context", trim_scripts, priority=900)
    app.connect("html-page-context", lead_to_twin, priority=900)
    app.connect("html-page-context", say_versions, priority=900)
    app.connect("html-page-context", say_title_once, priority=900)
    app.add_css_file("book.css")
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
