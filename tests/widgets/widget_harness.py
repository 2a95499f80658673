"""Runs the widgets' JavaScript in the browser that the tests found."""

import json
import re
from collections.abc import Sequence
from urllib.parse import parse_qs, urlsplit

from axe_playwright_python.sync_playwright import Axe

from spmd_helpers._widgets import source

ANSWERS = """(given) => {
  const [script, name, states] = given;
  const widget = new Function(`${script}; return ${name};`)();
  return states.map((state) => {
    try {
      return JSON.stringify(widget.answer({ ...widget.defaults, ...state }));
    } catch (error) {
      return JSON.stringify({ stopped: `${error}` });
    }
  });
}"""
DEFINED = re.compile(r"^(?:async )?(?:function|const) (\w+)", re.M)
PLACE = """<!doctype html><html lang="en" data-theme="light"><meta charset="utf-8">
<meta name="viewport" content="width=device-width"><title>A widget</title>
<style>body { font-family: system-ui; background: #fff } {style}</style>
<main><h1>A widget</h1><figure id="{id}"></figure></main>
{scripts}</html>"""


def answers(browser, name: str, states: Sequence[dict], change=None) -> list[dict]:
    """What a widget answers to each state, in a page without anything else.

    Args:
        browser: an opened Chromium.
        name: a key of WIDGETS.
        states: dicts of strings, without what has its default.
        change: a mutant of the joined script, as `changed` takes it.
    """
    script = source.joined(name)
    if change:
        script = changed(script, *change)
    page = browser.new_page()
    try:
        given = [script, source.WIDGETS[name], list(states)]
        return [json.loads(text) for text in page.evaluate(ANSWERS, given)]
    finally:
        page.close()


def is_noticed(differences, given: Sequence) -> bool:
    """Whether browser and package differ somewhere; most mutants do in the first 40."""
    begin, size = 0, 40
    while begin < len(given):
        if differences(given[begin : begin + size]):
            return True
        begin, size = begin + size, 3 * size
    return False


def changed(script: str, where: str, old: str, new: str) -> str:
    """A joined script that is broken in one place.

    Args:
        script: the functions and constants of a widget.
        where: the name of the one that is changed.
        old: a piece of it that occurs there once. `$name` is any variable, the same one
            wherever it occurs; how the lines are broken doesn't matter.
        new: what takes its place.
    """
    begins = {match[1]: match.end() for match in DEFINED.finditer(script)}
    assert where in begins, f"nothing is called {where}: mend the mutant of it, {old!r}"
    begin = begins[where]
    end = min((n for n in begins.values() if n > begin), default=len(script))
    matches = [*_like(old).finditer(script, begin, end)]
    assert len(matches) == 1, (
        f"{old!r} occurs {len(matches)} times in {where}, not once"
    )
    put = re.sub(r"\$(\w+)", lambda name: matches[0][name[1]], new)
    mutated = script[: matches[0].start()] + put + script[matches[0].end() :]
    assert mutated != script, f"the mutant of {where}, {old!r}, changes nothing"
    return mutated


def _like(piece: str) -> re.Pattern:
    """What finds a piece of JavaScript, however it is broken into lines."""
    tokens, named = [], set()
    for token in re.findall(r"\$?\w+|[^\w\s]", piece):
        name = token[1:]
        if not token.startswith("$"):
            tokens.append(rf"\b{token}\b" if token[0].isalnum() else re.escape(token))
        elif name in named:
            tokens.append(rf"\b(?P={name})\b")
        else:  # a variable, and no property: nothing but the dots of a spread before it
            tokens.append(rf"(?<!\w)(?<![^.]\.)(?P<{name}>[A-Za-z]\w*)\b")
            named.add(name)
    return re.compile(r"\s*".join(tokens))


def page_with(name: str) -> str:
    """A whole page that shows one widget."""
    place = PLACE.replace("{style}", source.style())
    place = place.replace("{id}", "spmd-" + name.replace("_", "-"))
    scripts = (f"<script>{one}</script>" for one in source.page_scripts(name).values())
    return place.replace("{scripts}", "".join(scripts))


class Opened:
    """A page with a widget, whose file is called `name`, and what went wrong on it."""

    name: str

    def __init__(self, context, query="", width=None):
        self.errors = []
        self.page = context.new_page()
        if width:
            self.page.set_viewport_size({"width": width, "height": 900})
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", lambda said: self.errors.append(said.text))
        text = page_with(self.name)
        self.page.route(
            "**/*", lambda route: route.fulfill(body=text, content_type="text/html")
        )
        self.page.goto(f"http://book.test/page.html{query}")

    def text(self, place: str) -> str:
        """What is read there, with ordinary spaces between numbers and units."""
        return self.page.locator(place).inner_text().replace("\xa0", " ")

    @property
    def said(self) -> str:
        return self.text(".spmd-w-said")

    def query(self) -> dict[str, str]:
        self.page.wait_for_timeout(400)
        fields = parse_qs(urlsplit(self.page.url).query, keep_blank_values=True)
        return {key: values[0] for key, values in fields.items()}


def open_details(page) -> None:
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")


def axe_faults(page) -> list[tuple[str, str]]:
    """What axe finds in a page of which all is open: the rule and the first place."""
    open_details(page)
    violations = Axe().run(page).response["violations"]
    return [(one["id"], one["nodes"][0]["html"][:200]) for one in violations]


def too_small(page, width: int) -> list[tuple[float, str]]:
    """What is less high than a finger needs, or on a wide page a mouse."""
    sizes = page.evaluate(
        """() => [...document.querySelectorAll(
            'button, select, input[type=text], summary')].map(
            e => [e.getBoundingClientRect().height, e.textContent.slice(0, 20)])"""
    )
    return [size for size in sizes if size[0] < (44 if width < 600 else 24)]


def numbers_and_words(value, path="") -> list[tuple[str, object]]:
    """Every leaf of an answer and where it stands."""
    if isinstance(value, dict):
        pairs = value.items()
    elif isinstance(value, list):
        pairs = enumerate(value)
    else:
        return [(path, value)]
    return [
        leaf for key, at in pairs for leaf in numbers_and_words(at, f"{path}.{key}")
    ]


def is_clean(answer: dict) -> bool:
    """Whether nothing in it is what a page must never show."""
    bad = ("NaN", "Infinity", "undefined", "[object")
    return all(
        value is not None and not any(word in str(value) for word in bad)
        for _, value in numbers_and_words(answer)
    )
