"""Runs the widgets' JavaScript in the browser that the tests found."""

import json
from collections.abc import Sequence

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
PLACE = """<!doctype html><html lang="en" data-theme="light"><meta charset="utf-8">
<meta name="viewport" content="width=device-width"><title>A widget</title>
<style>body { font-family: system-ui; background: #fff } {style}</style>
<main><h1>A widget</h1><figure id="{id}"></figure></main>
<script>{script}</script></html>"""


def answers(browser, name: str, states: Sequence[dict], change=None) -> list[dict]:
    """What a widget answers to each state, in a page without anything else.

    Args:
        browser: an opened Chromium.
        name: a key of WIDGETS.
        states: dicts of strings, without what has its default.
        change: (old, new): a piece of the joined script and what takes its place.
    """
    script = source.joined(name)
    if change:
        old, new = change
        assert script.count(old) == 1, f"{script.count(old)} times: {old}"
        script = script.replace(old, new)
    page = browser.new_page()
    try:
        given = [script, source.WIDGETS[name], list(states)]
        return [json.loads(text) for text in page.evaluate(ANSWERS, given)]
    finally:
        page.close()


def page_with(name: str) -> str:
    """A whole page that shows one widget."""
    place = PLACE.replace("{style}", source.style())
    place = place.replace("{id}", "spmd-" + name.replace("_", "-"))
    return place.replace("{script}", source.page_script(name))


def numbers_and_words(found, path="") -> list[tuple[str, object]]:
    """Every leaf of an answer and where it stands."""
    if isinstance(found, dict):
        pairs = found.items()
    elif isinstance(found, list):
        pairs = enumerate(found)
    else:
        return [(path, found)]
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
