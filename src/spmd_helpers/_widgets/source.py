"""The widgets' JavaScript, joined: one ES module each, and one script for a page.

The parts are ES modules in js/, which import only from each other. Joined, the
imports fall away: a notebook takes one module for each widget, and a page, which may
be opened from a folder where browsers refuse modules, a classic script for each.
"""

import re
from collections.abc import Iterable, Iterator
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
    "mesh_planner": "meshPlanner",
}
# What two widgets have in common stands in a script of its own, which a browser keeps.
_SHARED = ("page", "training")
_SHARING = ("memory_calculator", "mesh_planner")
SHARED = "shared"  # how that script is called
_IMPORT = re.compile(r'^import \{([^}]*)\} from "\./(\w+)\.js";\n', re.M)
_COMMENT = re.compile(r"^ *(?://[^\n]*|/\*\*.*?\*/)\n", re.M | re.S)
_TABLE = re.compile(r"\bspmd[A-Z]\w+")  # what data_script gives
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
            for _, needed in _IMPORT.findall(source(name)):
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
    text = _texts(parts(*names))
    return _tables(_TABLE.findall(text)) + text


def _texts(names: Iterable[str]) -> str:
    """Some files as one text, without imports and exports."""
    texts = (_COMMENT.sub("", _IMPORT.sub("", source(name))) for name in names)
    return "".join(_EXPORT.sub("", text) for text in texts)


def _tables(names: Iterable[str]) -> str:
    """These constants of `data_script`."""
    wanted = sorted(set(names))
    return data_script(*wanted) if wanted else ""


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


def page_scripts(name: str) -> dict[str, str]:
    """A widget as classic scripts, which wake the widget's place on a page.

    Args:
        name: a key of WIDGETS.

    Returns:
        By their names, in the order in which a page asks for them: what other widgets
        have too, if there is such a part, and the widget's own.
    """
    wake = f"""
const root = document.getElementById("spmd-{name.replace("_", "-")}");
if (root) mount(root, {WIDGETS[name]}, {{ linkable: true }});
"""
    if name not in _SHARING:
        return {name: _script(f"{joined('page', name)}{wake}")}
    shared = _shared()
    own = _texts(_own(name))
    tables = _tables(one for one in _TABLE.findall(own) if one not in shared)
    taken = ", ".join(sorted({*_names(name), *_TABLE.findall(own)} & {*shared}))
    of = f"const {{ {taken} }} = globalThis.spmdShared;\n"
    begin = f"globalThis.spmdShared = (() => {{\n{_shared_text()}"
    return {
        SHARED: compact(f"{begin}return {{ {', '.join(shared)} }};\n}})();\n"),
        name: _script(f"{of}{tables}{own}{wake}"),
    }


def _script(text: str) -> str:
    return '"use strict";\n' + compact(f"(() => {{\n{text}}})();\n")


def _own(name: str) -> list[str]:
    """The files that a widget needs beside the shared ones."""
    shared = parts(*_SHARED)
    return [one for one in parts("page", name) if one not in shared]


def _names(name: str) -> set[str]:
    """What a widget's own files import from the shared ones, and `mount`."""
    shared, names = parts(*_SHARED), {"mount"}
    for one in _own(name):
        for imported, place in _IMPORT.findall(source(one)):
            if place in shared:
                names |= {each.strip() for each in imported.split(",") if each.strip()}
    return names


def _shared_tables() -> set[str]:
    """The tables of the shared files, and those that all widgets with them have."""
    of_each = [{*_TABLE.findall(_texts(_own(name)))} for name in _SHARING]
    return {*_TABLE.findall(_texts(parts(*_SHARED))), *set.intersection(*of_each)}


@cache
def _shared_text() -> str:
    return _tables(_shared_tables()) + _texts(parts(*_SHARED))


def _shared() -> list[str]:
    """What the shared script hands on."""
    return sorted(_shared_tables().union(*map(_names, _SHARING)))


def palette_css() -> str:
    """The axes' colors as variables, light and dark, of drawings and widgets alike."""
    dark = ", ".join(DARK_PAGES)
    light = f"{axis_variables(LIGHT)} {shard_variables()}"
    return f":root {{ {light} }}\n{dark} {{ {axis_variables(DARK)} }}\n"


def style() -> str:
    """The style of all widgets, palette included."""
    return palette_css() + (FOLDER / "widgets.css").read_text("utf8")
