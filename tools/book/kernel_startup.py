"""Runs first in every kernel that makes or checks stored outputs.

A matplotlib figure is stored as SVG text (a diff can be read, no date, no
random ids), and beside it a text twin that says what is drawn. nbval compares
the twin; a reader's own Jupyter shows figures in its usual way.
"""


def _lines(axes):
    for line in axes.get_lines():
        x, y = line.get_xdata(), line.get_ydata()
        label = str(line.get_label())
        name = "a line" if label.startswith("_") else repr(label)
        if len(x):
            ends = f"({x[0]:.2g}, {y[0]:.2g}) to ({x[-1]:.2g}, {y[-1]:.2g})"
            yield f"{name} of {len(x)} points from {ends}"
    if axes.patches:
        yield f"{len(axes.patches)} filled shapes"
    if axes.images:
        yield f"{len(axes.images)} pictures"


def figure_words(figure):
    """One sentence for each axes: title, labels, what is drawn."""
    said = []
    for axes in figure.axes:
        title = axes.get_title() or "Chart"
        x, y = axes.get_xlabel(), axes.get_ylabel()
        over = f", {y} over {x}" if x and y else ""
        drawn = "; ".join(_lines(axes)) or "nothing drawn"
        said.append(f"{title}{over}: {drawn}.")
    return " ".join(said) or "An empty figure."


def _colors():
    """Each color of a chart on a light page → what it is on a dark one."""
    from spmd_helpers._core.palette import DARK, LIGHT

    return {
        light.lower(): dark.lower() for light, dark in zip(LIGHT, DARK, strict=True)
    }


def _style():
    """Ink and paper are the page's; so are the colors, light or dark."""
    from spmd_helpers._core.palette import DARK_PAGES

    dark = "; ".join(f"--c{light[1:]}: {color}" for light, color in _colors().items())
    paper = "var(--pst-color-background, var(--jp-layout-color0, Canvas))"
    pages = ", ".join(f"{page} .spmd-chart" for page in DARK_PAGES)
    return (
        f"<style>\n.spmd-chart {{ --paper: {paper}; }}\n"
        ".spmd-chart > svg { fill: currentColor; "
        "stroke-linejoin: round; stroke-linecap: butt; }\n"
        f"@media screen {{ {pages} {{ {dark}; }} }}\n</style>"
    )


def _with_page_colors(svg):
    """White is the page's paper and black its ink; the ground is not drawn."""
    import re

    colors = _colors()

    def color(match):
        name = match[0].lower()
        if name in colors:
            return f"var(--c{name[1:]}, {name})"
        return {"#ffffff": "var(--paper)", "#000000": "currentColor"}.get(name, name)

    def styled(match):
        return re.sub(r"#[0-9a-f]{6}\b", color, match[0], flags=re.I)

    svg = re.sub(r'(fill)="(#[0-9a-f]{6})"', r'style="\1: \2"', svg)  # of a hatch
    return re.sub(r'style="[^"]*"', styled, svg)


def _shorter(svg):
    """Two decimal places; a dot of a hatch, drawn as eight curves, is a circle."""
    import re

    dot = re.compile(r"M (\S+) (\S+) \n(?:C (?:\S+ ){6}\n){8}z")

    def circle(match):
        x, y = float(match[1]), float(match[2])
        last = re.findall(r"C (?:\S+ ){5}(\S+) ", match[0])
        across = min(map(float, last)) - y
        half = f"{-across / 2:g} {-across / 2:g} 0 1 0 0"
        return f"M {x:g} {y:g} a {half} {across:g} a {half} {-across:g} z"

    def path(match):
        return re.sub(r"-?\d+\.\d+", lambda n: f"{float(n[0]):.2f}", dots(match[0]))

    def dots(text):
        return dot.sub(circle, text)

    return re.sub(r' d="[^"]*"', path, svg)


def figure_html(figure):
    """The figure as inline SVG that a screen reader can name."""
    import html
    import io
    import re

    from matplotlib import rc_context

    out = io.StringIO()
    with rc_context({"svg.hashsalt": "spmd", "svg.fonttype": "none"}):
        figure.savefig(
            out,
            format="svg",
            bbox_inches="tight",
            transparent=True,
            metadata={"Date": None},
        )
    svg = out.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"\s*<metadata>.*?</metadata>", "", svg, flags=re.S)
    svg = re.sub(r"<style[^>]*>.*?</style>", "", svg, flags=re.S)
    svg = re.sub(r'<g id="[^"]*">', "<g>", svg)  # would repeat in one page
    svg = _with_page_colors(_shorter(svg))
    name = html.escape(figure_words(figure), quote=True)
    svg = svg.replace("<svg", f'<svg role="img" aria-label="{name}"', 1)
    svg = re.sub(
        r' width="[\d.]+pt"', ' style="max-width: 100%; height: auto"', svg, count=1
    )
    svg = re.sub(r' height="[\d.]+pt"', "", svg, count=1)
    return f'<div class="spmd-chart">{_style()}{svg.strip()}</div>'


def _install():
    # IPython forgets what shows a figure each time the inline backend chooses
    # its formats, which is when a notebook first imports pyplot.
    from IPython.core import pylabtools

    choose_formats = pylabtools.select_figure_formats

    def choose_ours_too(shell, formats, **options):
        choose_formats(shell, formats, **options)
        where = ("matplotlib.figure", "Figure")
        formatters = shell.display_formatter.formatters
        formatters["text/html"].for_type_by_name(*where, figure_html)
        formatters["text/plain"].for_type_by_name(
            *where, lambda figure, printer, cycle: printer.text(figure_words(figure))
        )

    pylabtools.select_figure_formats = choose_ours_too


_install()
del _install
