"""SVG elements as text, in the classes of the player's style."""

from html import escape

from .._core.words import number


def text(kind: str, x: float, y: float, words: str, more: str = "") -> str:
    """A line of text; `kind` is its class after 'spmd-', such as 'play-name'."""
    return (
        f'<text class="spmd-play-text spmd-{kind}" x="{number(x)}" '
        f'y="{number(y)}"{more}>{escape(words)}</text>'
    )


def rect(
    x: float, y: float, width: float, height: float, more: str, radius: float = 0
) -> str:
    """A box; `more` are its other attributes."""
    corner = f' rx="{number(radius)}"' if radius else ""
    return (
        f'<rect x="{number(x)}" y="{number(y)}" width="{number(width)}" '
        f'height="{number(height)}"{corner} {more}/>'
    )


def box(x: float, y: float, width: float, height: float) -> str:
    """The path of a box, as a part of a longer path."""
    w, h = number(width), number(height)
    return f"M{number(x)} {number(y)}h{w}v{h}h-{w}z"
