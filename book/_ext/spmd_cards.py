"""The picture that other sites show beside a link to a page.

Once the site's address is known each page gets one: its title, which chapter it is, the
book's name, and the page's own first drawing, or a mesh of eight devices. The same page
makes the same bytes.
"""

import hashlib
import html
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from matplotlib import font_manager
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Rectangle
from PIL import Image, PngImagePlugin

from spmd_helpers._core.palette import DARK, INK, PAPER

WIDTH, HEIGHT = 1200, 630
LEFT, BOX = 72, (730, 130, 1130, 500)  # px; where the words begin, where a drawing fits
TITLE_WIDTH, TITLE_SIZES, TITLE_LINES = 600, (62, 54, 46, 40), 4
GROUND, WORDS, QUIET = PAPER[1], INK[1], "#a5adb8"
COLORS = 64
SMALLEST, LARGEST = 13, 26  # px of a number
DRAWING = re.compile(r'<svg[^>]*class="spmd-drawing".*?</svg>', re.S)
DRAWN_TITLE = re.compile(r"<title[^>]*>(.*?)</title>", re.S)
RECT = re.compile(r"<rect ([^>]*)/>")
NUMBER = re.compile(r'<text class="cell" ([^>]*)>([^<]*)</text>')
ATTRIBUTE = re.compile(r'([\w-]+)="([^"]*)"')
FOLDER = "_static/cards"


@dataclass(frozen=True)
class Block:
    """A rectangle of a drawing; `axis` is the mesh axis whose color it has, if any."""

    x: float
    y: float
    width: float
    height: float
    axis: int | None = None
    opacity: float = 0.0


@dataclass(frozen=True)
class Picture:
    """What a card shows at its side: blocks, and words at places, within a view."""

    view: tuple[float, float, float, float]
    blocks: tuple[Block, ...]
    numbers: tuple[tuple[float, float, str], ...]
    words: str


def mesh_picture(rows: int = 2, columns: int = 4) -> Picture:
    """A mesh of two axes: a strip for each place on an axis, a cell for a device."""
    cell, strip, gap = 90, 22, 8
    blocks, numbers = [], []
    for j in range(columns):
        tint = 0.12 + 0.2 * j / max(1, columns - 1)
        blocks.append(Block(strip + gap + j * cell, 0, cell - 4, strip, 1, tint))
    for i in range(rows):
        tint = 0.12 + 0.2 * i / max(1, rows - 1)
        blocks.append(Block(0, strip + gap + i * cell, strip, cell - 4, 0, tint))
        for j in range(columns):
            x, y = strip + gap + j * cell, strip + gap + i * cell
            blocks.append(Block(x, y, cell - 4, cell - 4))
            middle = (x + (cell - 4) / 2, y + (cell - 4) / 2)
            numbers.append((*middle, str(i * columns + j)))
    view = (0, 0, strip + gap + columns * cell - 4, strip + gap + rows * cell - 4)
    words = f"a mesh of {rows} × {columns} devices"
    return Picture(view, tuple(blocks), tuple(numbers), words)


def first_drawing(body: str) -> Picture | None:
    """The first drawing of a page, its strips and cells.

    A drawing in a player's frame has no title of its own, and shares cells with others.
    """
    for match in DRAWING.finditer(body):
        if title := DRAWN_TITLE.search(match[0]):
            return _picture(match[0], html.unescape(title[1]))
    return None


def _picture(drawing: str, title: str) -> Picture | None:
    blocks = []
    for attributes in RECT.findall(drawing):
        has = dict(ATTRIBUTE.findall(attributes))
        kinds = has.get("class", "").split()
        if not {"strip", "cell"} & set(kinds):
            continue
        axes = [int(kind[5:]) for kind in kinds if kind.startswith("axis-")]
        place = (float(has[name]) for name in ("x", "y", "width", "height"))
        opacity = float(has.get("fill-opacity", 0))
        blocks.append(Block(*place, axes[0] if axes else None, opacity))
    if not blocks:
        return None
    numbers = []
    for attributes, said in NUMBER.findall(drawing):
        has = dict(ATTRIBUTE.findall(attributes))
        x, y = float(has["x"]), float(has["y"])
        for cell in blocks:
            right, bottom = cell.x + cell.width, cell.y + cell.height
            if cell.axis is None and cell.x <= x <= right and cell.y <= y <= bottom:
                middle = (cell.x + cell.width / 2, cell.y + cell.height / 2)
                numbers.append((*middle, html.unescape(said)))
                break
    left, top = min(b.x for b in blocks), min(b.y for b in blocks)
    right = max(b.x + b.width for b in blocks)
    bottom = max(b.y + b.height for b in blocks)
    words = f"a drawing of {title}"
    view = (left, top, right - left, bottom - top)
    return Picture(view, tuple(blocks), tuple(numbers), words)


@cache
def _font(weight: str):
    path = font_manager.findfont(
        font_manager.FontProperties(family="DejaVu Sans", weight=weight)
    )
    return font_manager.get_font(path)


def width_of(text: str, size: float) -> float:
    """How wide a bold line is, in px."""
    font = _font("bold")
    font.set_size(size, 72)
    font.set_text(text, 0.0)
    return font.get_width_height()[0] / 64


def lines_of(title: str) -> tuple[list[str], int]:
    """A title in lines that fit, and the size at which they do."""
    for size in TITLE_SIZES:
        lines = [""]
        for word in title.split():
            longer = f"{lines[-1]} {word}".strip()
            if not lines[-1] or width_of(longer, size) <= TITLE_WIDTH:
                lines[-1] = longer
            else:
                lines.append(word)
        widest = max(width_of(line, size) for line in lines)
        if len(lines) <= TITLE_LINES and widest <= TITLE_WIDTH:
            break
    return lines[:TITLE_LINES], size


def card(title: str, kind: str, book: str, picture: Picture) -> Image.Image:
    """The picture of one page."""
    figure = Figure(figsize=(WIDTH / 100, HEIGHT / 100), dpi=100, facecolor=GROUND)
    canvas = FigureCanvasAgg(figure)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, WIDTH), ylim=(HEIGHT, 0))
    axes.axis("off")
    style = {"family": "DejaVu Sans", "va": "baseline", "parse_math": False}

    def write(x, y, text, size, color=WORDS, **more):
        axes.text(x, y, text, fontsize=size * 0.72, color=color, **{**style, **more})

    write(LEFT, 118, kind, 28, QUIET)
    lines, size = lines_of(title)
    top = 118 + 44 + size
    for number, line in enumerate(lines):
        write(LEFT, top + 1.22 * size * number, line, size, weight="bold")
    write(LEFT, HEIGHT - 64, book, 26, QUIET)
    _draw(axes, picture, write)
    canvas.draw()
    shown = Image.frombytes("RGBA", (WIDTH, HEIGHT), bytes(canvas.buffer_rgba()))
    return shown.convert("RGB").quantize(COLORS, dither=Image.Dither.NONE)


def _draw(axes, picture: Picture, write) -> None:
    left, top, right, bottom = BOX
    x0, y0, width, height = picture.view
    scale = min((right - left) / width, (bottom - top) / height)
    dx = left + ((right - left) - scale * width) / 2 - scale * x0
    dy = top + ((bottom - top) - scale * height) / 2 - scale * y0
    for block in picture.blocks:
        place = (dx + scale * block.x, dy + scale * block.y)
        size = (scale * block.width, scale * block.height)
        if block.axis is None or block.axis >= len(DARK):
            shape = Rectangle(place, *size, fill=False, ec=WORDS, lw=1.2, alpha=0.75)
        else:
            hue = DARK[block.axis]
            rounded = f"round,pad=0,rounding_size={min(5, min(size) / 4)}"
            shape = FancyBboxPatch(
                place, *size, boxstyle=rounded, ec=hue, fc=(hue, 2 * block.opacity)
            )
        axes.add_patch(shape)
    cells = [block for block in picture.blocks if block.axis is None]
    if not cells or not picture.numbers:
        return
    longest = max(len(said) for _, _, said in picture.numbers)
    height = min(cell.height for cell in cells)
    width = min(cell.width for cell in cells)
    size = min(LARGEST, scale * 0.5 * height, scale * 1.2 * width / longest)
    if size >= SMALLEST:
        for x, y, said in picture.numbers:
            place = (dx + scale * x, dy + scale * y)
            write(*place, said, size, ha="center", va="center")


def write_card(path: Path, *facts) -> None:
    """A card as a file, unless the one that is there was made from the same."""
    source = Path(__file__).read_text("utf8")
    made_from = hashlib.sha256(repr((source, facts)).encode()).hexdigest()
    if path.exists():
        with Image.open(path) as known:
            if known.info.get("made-from") == made_from:
                return
    notes = PngImagePlugin.PngInfo()
    notes.add_text("made-from", made_from)
    path.parent.mkdir(parents=True, exist_ok=True)
    card(*facts).save(path, optimize=True, pnginfo=notes)


def kind_of(app, pagename: str) -> str:
    """`Chapter 3 of 16`, `Chapter 3, solved`, or the part of the book."""
    folder = pagename.partition("/")[0]
    if folder in ("notebooks", "solutions"):
        pages = sorted(n for n in app.env.all_docs if n.startswith(f"{folder}/"))
        number = pages.index(pagename) + 1
        solved = folder == "solutions"
        return f"Chapter {number}" + (", solved" if solved else f" of {len(pages)}")
    contents = getattr(app.env, "external_site_map", None)
    for part in contents.root.subtrees if contents else ():
        if any(str(item) == pagename for item in part.items):
            return part.caption or ""
    return ""


def add_card(app, pagename, templatename, context, doctree):
    """Draw a page's card and name it in the page's head."""
    if doctree is None or not app.config.html_baseurl:
        return
    title = html.unescape(re.sub("<[^>]*>", "", context.get("title", "")))
    picture = first_drawing(context.get("body", "")) or mesh_picture()
    said = title
    kind = kind_of(app, pagename)
    if kind.startswith("Chapter"):
        said = re.sub(r"^\d+\. | \(solved\)$", "", title)
    book = app.config.html_title
    if said == book:  # the front page
        said, _, kind = book.partition(", ")
        kind, book = kind.capitalize(), ""
    path = Path(app.outdir) / FOLDER / f"{pagename.replace('/', '-')}.png"
    write_card(path, said, kind, book, picture)
    facts = {
        "og:image": f"{app.config.html_baseurl.rstrip('/')}/{FOLDER}/{path.name}",
        "og:image:width": str(WIDTH),
        "og:image:height": str(HEIGHT),
        "og:image:alt": f"The title, {title}, and {picture.words}",
        "twitter:card": "summary_large_image",
    }
    for name, text in facts.items():
        key = "name" if name.startswith("twitter") else "property"
        escaped = html.escape(text, quote=True)
        context["metatags"] += f'\n<meta {key}="{name}" content="{escaped}">'


def setup(app):
    app.connect("html-page-context", add_card, priority=960)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
