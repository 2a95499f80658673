"""The widgets' JavaScript, joined: one ES module each, and one script for a page.

The parts are ES modules in js/, which import only from each other. Joined, the
imports fall away: a notebook takes one module for each widget, and a page, which may
be opened from a folder where browsers refuse modules, a classic script for each.
"""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from .._core.palette import DARK, DARK_PAGES, LIGHT, axis_variables, shard_variables
from .data import data_script

FOLDER = Path(__file__).resolve().with_name("js")
# A widget's file -> the object that it exports.
WIDGETS = {
    "sharding_explorer": "shardingExplorer",
    "matmul_explorer": "matmulExplorer",
    "memory_calculator": "memoryCalculator",
}
_IMPORT = re.compile(r'^import \{[^}]*\} from "\./(\w+)\.js";\n', re.M)
_COMMENT = re.compile(r"^ *(?://[^\n]*|/\*\*.*?\*/)\n", re.M | re.S)
_TABLES = "memory_state"  # the part that reads what data_script gives
_TOKEN = re.compile(
    r"""\s+|//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|[\w$]+|\.{3}|.""",
    re.S,
)
_REGEX = re.compile(r"/(?:\\.|\[(?:\\.|[^\]\\])*\]|[^/\\\n\[])+/")
_TEMPLATE = re.compile(r"(?:\\.|\$(?!\{)|[^`$\\])*(?:`|\$\{)", re.S)
_DECLARED = re.compile(r"^(?:export |async )*(?:function|const) (\w+)", re.M)
_NEEDS_SPACE = re.compile(r"[\w$]{2}|\+\+|--")
_EXPORT = re.compile(r"^export (?=(?:async )?function |const )", re.M)


def parts(*names: str) -> list[str]:
    """These files and all that they import, each after what it needs."""
    ordered: list[str] = []

    def visit(name: str) -> None:
        if name not in ordered:
            for needed in _IMPORT.findall(source(name)):
                visit(needed)
            ordered.append(name)

    for name in names:
        visit(name)
    return ordered


def source(name: str) -> str:
    """One file of js/ as it is."""
    return (FOLDER / f"{name}.js").read_text("utf8")


def joined(*names: str) -> str:
    """These files and what they need as one text, without imports and exports."""
    order = parts(*names)
    texts = [_IMPORT.sub("", source(name)) for name in order]
    if _TABLES in order:
        texts.insert(0, data_script())
    return "".join(_EXPORT.sub("", _COMMENT.sub("", text)) for text in texts)


def compact(script: str) -> str:
    """The same script without comments and needless spaces, and with short names.

    Every statement in js/ ends with a semicolon or a brace, so no line's end matters.
    """
    tokens = list(_tokens(script))
    short = _short_names(script, tokens)
    kept: list[str] = []
    for spaced, text in tokens:
        before = kept[-1][-1] if kept else ""
        if spaced and before and _NEEDS_SPACE.fullmatch(before + text[0]):
            kept.append(" ")
        kept.append(short.get(text, text))
    return "".join(kept)


def _tokens(script: str) -> Iterator[tuple[bool, str]]:
    """What the script consists of, and whether there is space before it."""
    at, levels, before, spaced = 0, [0], "", False
    while at < len(script):  # levels: braces that are open, in each `${` that is open
        if script[at] == "/" and before in "(,=:[!&|?{;" and script[at + 1] not in "/*":
            token = _REGEX.match(script, at)
        else:
            token = _TOKEN.match(script, at)
        assert token is not None
        text, at = token[0], token.end()
        if text == "{":
            levels[-1] += 1
        elif text == "}" and levels[-1]:
            levels[-1] -= 1
        elif text == "`" or (text == "}" and len(levels) > 1):
            if text == "}":
                levels.pop()
            rest = _TEMPLATE.match(script, at)
            assert rest is not None
            text, at = text + rest[0], rest.end()
            if text.endswith("${"):
                levels.append(0)
        if text.isspace() or text.startswith(("//", "/*")):
            spaced = True
            continue
        yield spaced, text
        before, spaced = text[-1], False


def _short_names(script: str, tokens: list[tuple[bool, str]]) -> dict[str, str]:
    """Short names of the functions and constants that are never a property's name."""
    texts = ["", *(text for _, text in tokens), ""]
    properties = {
        text
        for before, text, after in zip(texts, texts[1:], texts[2:], strict=False)
        if before == "." or after == ":" or (before in "{," and after in ",}=")
    }
    names = dict.fromkeys(_DECLARED.findall(script))
    free = [name for name in names if len(name) > 4 and name not in properties]
    return {name: f"_{number}" for number, name in enumerate(free)}


@cache
def module(name: str) -> str:
    """A widget as one ES module, as anywidget takes it.

    Args:
        name: a key of WIDGETS.
    """
    render = f"""
function render({{ model, el }}) {{
  const onChange = (state) => {{
    model.set("state", state);
    model.save_changes();
  }};
  const root = h("figure", {{}});
  el.append(root);
  const shown = mount(root, {WIDGETS[name]}, {{ state: model.get("state"), onChange }});
  const listen = () => shown.set(model.get("state"));
  model.on("change:state", listen);
  return () => model.off("change:state", listen);
}}
export default {{ render }};
"""
    return compact(joined("page", name) + render)


def page_script(name: str) -> str:
    """A widget as a classic script, which wakes the widget's place on a page.

    Args:
        name: a key of WIDGETS.
    """
    wake = f"""
const root = document.getElementById("spmd-{name.replace("_", "-")}");
if (root) mount(root, {WIDGETS[name]}, {{ linkable: true }});
"""
    script = compact(f"(() => {{\n{joined('page', name)}{wake}}})();\n")
    return f'"use strict";\n{script}'


def palette_css() -> str:
    """The axes' colors as variables, light and dark, of drawings and widgets alike."""
    dark = ", ".join(DARK_PAGES)
    light = f"{axis_variables(LIGHT)} {shard_variables()}"
    return f":root {{ {light} }}\n{dark} {{ {axis_variables(DARK)} }}\n"


def style() -> str:
    """The style of all widgets, palette included."""
    return palette_css() + (FOLDER / "widgets.css").read_text("utf8")
