"""Mathematics as native MathML, made when the site is built.

Browsers and screen readers read MathML by themselves, so a page with formulas loads no
script and no font. `latex2mathml` translates; a formula that it can't read stops the
build, with the formula and its page.
"""

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.errors import ExtensionError
from sphinx.util.math import get_node_equation_number

# What it leaves behind where it knew no better: a command or a column mark as a name.
NOT_READ = ("<mi>\\", "<mi>&</mi>")


def mathml(formula: str, page: str, display: str) -> str:
    """A formula as `<math>`.

    Raises:
        ExtensionError: it is not one that `latex2mathml` reads whole.
    """
    try:
        mathml = convert(formula, display=display)
    except Exception as error:  # each mistake is a type of its own, without a base
        why = type(error).__name__
        raise ExtensionError(f"{page}: the formula {formula!r}: {why}") from error
    if formula.count("{") != formula.count("}") or any(m in mathml for m in NOT_READ):
        raise ExtensionError(f"{page}: the formula {formula!r} can't be read whole")
    return mathml


def show_inline(translator, node):
    page = translator.builder.current_docname
    translator.body.append(mathml(node.astext(), page, "inline"))
    raise nodes.SkipNode


def show_block(translator, node):
    page = translator.builder.current_docname
    number = ""
    if node.get("number"):
        number = (
            f"<span class='eqno'>({get_node_equation_number(translator, node)})</span>"
        )
    formula = mathml(node.astext(), page, "block")
    opening = translator.starttag(node, "div", CLASS="math spmd-math", tabindex="0")
    translator.body.append(f"{opening}{formula}{number}</div>")
    raise nodes.SkipNode


def setup(app):
    app.add_html_math_renderer("mathml", (show_inline, None), (show_block, None))
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
