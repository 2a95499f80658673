"""The widgets' JavaScript, joined: one ES module each, and one script for a page.

The parts are ES modules in js/, which import only from each other. Joined, the
imports fall away: a notebook takes one module for each widget, and a page, which may
be opened from a folder where browsers refuse modules, a classic script for each.
"""

import re
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
    """The same script without comments at the ends of lines, and most of these ends.

    No template of js/ goes over lines, and each statement ends with its semicolon.
    """
    text = re.sub(r"(?: // [^\n]*)?\n\s*", "\n", script)
    return re.sub(r"(?<=[{(\[,;:?])\n|\n(?=[})\].?:])", "", text)


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
