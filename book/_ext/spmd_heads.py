"""What a page says of itself: a description, a social card's words, how long it takes.

The description is the page's first paragraph, cut at the end of a sentence. A chapter
also states its number, the number of chapters, and how long its core, its sections
"Further: …" and its exercises take.
"""

import html
import json
import re
from pathlib import Path

from docutils import nodes

DESCRIPTION_LENGTH = 200
WORDS_A_MINUTE = 180
SECONDS_A_CODE_LINE, SECONDS_AN_OUTPUT_LINE, SECONDS_A_PICTURE = 4, 2, 12
SECONDS_A_FRAME = 4
SECTION, FURTHER = re.compile(r"^(?=## )", re.M), "## Further: "
CHAPTER = re.compile(r"notebooks/\d\d_")  # the other notebooks are pages
MINUTES = re.compile(r"^\*[A-Z]\w+, (\d+) minutes\.\*", re.M)


def first_words(doctree) -> str:
    """The first paragraph as plain text, whole sentences while they fit."""
    for paragraph in doctree.findall(nodes.paragraph):
        if not isinstance(paragraph.parent, nodes.section):
            continue
        text = " ".join(paragraph.astext().split())
        if len(text) <= DESCRIPTION_LENGTH:
            return text
        cut = text[: DESCRIPTION_LENGTH - 1]
        end = max(cut.rfind(mark) for mark in (". ", "? ", "! "))
        return cut[: end + 1] if end > 40 else cut.rsplit(" ", 1)[0] + "…"
    return ""


def minutes_of(notebook: dict) -> tuple[int, int, int]:
    """Minutes of the core, of the sections "Further: …", and of all exercises."""
    seconds, exercises, part = {"core": 0.0, "further": 0.0}, 0, "core"
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            exercises += sum(map(int, MINUTES.findall(source)))
            for section in SECTION.split(source):
                if section.startswith("## "):
                    part = "further" if section.startswith(FURTHER) else "core"
                seconds[part] += len(section.split()) * 60 / WORDS_A_MINUTE
        elif "hide-input" not in cell["metadata"].get("tags", []):
            seconds[part] += SECONDS_A_CODE_LINE * len(source.splitlines())
        seconds[part] += sum(map(seconds_of, cell.get("outputs", [])))
    core, further = (round(seconds[part] / 60) for part in ("core", "further"))
    return max(1, core), further, exercises


def seconds_of(output: dict) -> float:
    """How long one output takes: a line of text each, a picture, or its frames."""
    page = "".join(output.get("data", {}).get("text/html", ""))
    frames = page.count('<li class="spmd-play-frame">')
    if frames:
        return SECONDS_A_PICTURE + SECONDS_A_FRAME * frames
    if 'class="spmd-drawing"' in page:
        return SECONDS_A_PICTURE
    text = output.get("text", output.get("data", {}).get("text/plain", ""))
    if any(kind.startswith("image/") for kind in output.get("data", {})):
        return SECONDS_A_PICTURE
    return SECONDS_AN_OUTPUT_LINE * len("".join(text).splitlines())


# Pages that Sphinx writes by itself.
MADE = {
    "search": "Search the book: sections, terms of the glossary, and errors of JAX.",
    "genindex": "The terms of the book's glossary, from A to Z.",
}


def describe(app, pagename, templatename, context, doctree):
    """Add the description and the card's words to the page's head."""
    if doctree is None and pagename not in MADE:
        return
    said = {
        "description": first_words(doctree) if doctree else MADE[pagename],
        "og:title": html.unescape(re.sub("<[^>]*>", "", context.get("title", ""))),
        "og:site_name": app.config.html_title,
        "og:type": "book" if pagename == app.config.root_doc else "article",
    }
    said["og:description"] = said["description"]
    if context.get("pageurl"):
        said["og:url"] = context["pageurl"]
    context.setdefault("metatags", "")
    for name, text in said.items():
        kind = "property" if ":" in name else "name"
        escaped = html.escape(text, quote=True)
        context["metatags"] += f'\n<meta {kind}="{name}" content="{escaped}">'


def say_time(app, pagename, templatename, context, doctree):
    """Put a line under the title of a chapter, or of another notebook."""
    if not pagename.startswith("notebooks/") or doctree is None:
        return
    notebook = json.loads(Path(app.env.doc2path(pagename)).read_text("utf8"))
    core, further, exercises = minutes_of(notebook)
    line = f"{core} min to read"
    if further:
        line += f" · {further} min of further sections"
    if exercises:
        line += f" · {exercises} min of exercises"
    if CHAPTER.match(pagename):
        place, ways = among_chapters(app, pagename)
        line = f"{place} · {line}{ways}"
    context["body"] = context["body"].replace(
        "</h1>", f'</h1>\n<p class="spmd-time">{line}</p>', 1
    )


def among_chapters(app, pagename) -> tuple[str, str]:
    """The words "Chapter 2 of 16", and links to the chapters before and after it."""
    chapters = sorted(filter(CHAPTER.match, app.env.all_docs))
    at = chapters.index(pagename)
    ways = ""
    for word, name in (("previous", at - 1), ("next", at + 1)):
        if 0 <= name < len(chapters):
            address = app.builder.get_relative_uri(pagename, chapters[name])
            ways += f' · <a href="{html.escape(address)}">{word}</a>'
    return f"Chapter {at + 1} of {len(chapters)}", ways


def setup(app):
    app.connect("html-page-context", describe, priority=950)
    app.connect("html-page-context", say_time, priority=850)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
