"""A player of any figures: in a notebook as HTML, under `print` as text."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from .._core.notebook import InNotebook
from .._core.words import wrapped
from .._errors import NotUnderstood
from . import figures, page

_SIZES = (3, 4)  # of a frame
_LEAST = 2  # frames, or values of a slider
_KINDS = {"notes": "texts.", "frames": "tuples (figure, heading, sentence)."}


@dataclass(frozen=True)
class Frame:
    """A frame as it was read: its figure, and the words of it."""

    figure: figures.Figure
    heading: str
    sentence: str
    twin: str


class FramePlayer(InNotebook):
    r"""Plays figures one after the other: each with a heading and a sentence.

    A notebook shows it when a cell ends with it; it plays there, and on a page made
    from the notebook, without a kernel. `print` gives all frames as text. What several
    figures have in common is stored once.

    >>> import spmd_helpers as spmd
    >>> from jax.sharding import PartitionSpec as P
    >>> mesh = {"data": 2}
    >>> frames = [
    ...     (spmd.draw((4,), P(), mesh=mesh), "Replicated", "Both have all 4 rows."),
    ...     (spmd.draw((4,), P("data"), mesh=mesh), "Sharded", "Each has 2 rows."),
    ... ]
    >>> shown = spmd.FramePlayer(frames, title="Shard a vector")
    >>> print(*str(shown).splitlines()[:5], sep="\n")
    Shard a vector
    <BLANKLINE>
    Replicated. Both have all 4 rows.
    <BLANKLINE>
    float32[4] as P(None)

    Args:
        frames: two or more of (figure, heading, sentence), or of (figure, heading,
            sentence, words). A figure is what a notebook shows as one SVG, such as
            `spmd.draw(x)`, `spmd.draw_mesh(mesh)` or `spmd.step_time(...).timeline`;
            or the text of an SVG with sizes in pixels. `words` say what the figure
            shows; without them they are its `str`, or the title and description in a
            text of SVG. In such a text an element with `data-to="40 -10"` moves 40
            pixels to the right and 10 up before the next frame is shown, and one with
            `data-leaves=""` too is not left behind.
        title: the heading of the player.
        notes: what stands below the frames.
        sliders: in place of buttons that play the frames: a dict from what a reader
            sets to its values, such as {"stages": (2, 4), "microbatches": (1, 6, 16)}.
            There is a frame for each combination, in the order of
            `itertools.product`: the last slider changes first.

    Raises:
        NotUnderstood: an argument is of another kind; or a figure is no SVG, or has no
            words; or the sliders have more or fewer combinations than there are
            frames.

    Used from chapter 01 on.
    """

    def __init__(
        self,
        frames: Iterable[tuple[object, ...]],
        *,
        title: str,
        notes: str | Iterable[str] = (),
        sliders: Mapping[str, Iterable[object]] | None = None,
    ) -> None:
        try:
            self.title = _words("title", title)
            listed = [notes] if isinstance(notes, str) else _listed("notes", notes)
            self.notes = " ".join(_words("notes", note) for note in listed)
            given = [*_listed("frames", frames)]
            if len(given) < _LEAST:
                raise NotUnderstood(
                    f"frames has {len(given)}; give two or more, each a tuple "
                    "(figure, heading, sentence)."
                )
            self._frames = tuple(_frame(k, one) for k, one in enumerate(given))
            self._sliders = _sliders(sliders, len(given))
        except NotUnderstood as error:
            raise error.with_traceback(None) from None

    def __str__(self) -> str:
        parts = [self.title]
        for frame in self._frames:
            parts += [wrapped(f"{frame.heading}. {frame.sentence}"), frame.twin]
        return "\n\n".join([*parts, *([wrapped(self.notes)] * bool(self.notes))])

    __repr__ = __str__

    def _html(self) -> str:
        return page.html(self._page)

    def _page(self, name: str) -> page.Page:
        shown = [frame.figure for frame in self._frames]
        defs, items = figures.shared(shown, name)
        return page.Page(
            self.title,
            "",
            self.notes,
            tuple(defs),
            tuple(
                page.FramePage(drawn, frame.figure.words, frame.heading, frame.sentence)
                for frame, drawn in zip(self._frames, items, strict=True)
            ),
            figures.common_view(shown),
            rules="\n".join(dict.fromkeys(one.rules for one in shown if one.rules)),
            kind=figures.kind(shown),
            pace="read",
            sliders=self._sliders,
        )


def _sliders(given: object, frames: int) -> tuple[page.Slider, ...]:
    if given is None:
        return ()
    if not isinstance(given, Mapping) or not given:
        raise NotUnderstood(
            f"sliders={given!r} is no dict of values; give one such as "
            '{"stages": (2, 4)}.'
        )
    sliders = []
    for name, values in given.items():
        listed = _listed(f"sliders[{name!r}]", values)
        texts = tuple(map(str, listed))
        if len(texts) < _LEAST:
            raise NotUnderstood(
                f"sliders[{name!r}] has {len(texts)} values; give two or more."
            )
        sliders.append(page.Slider(_words("a slider's name", name), texts))
    count = math.prod(len(slider.values) for slider in sliders)
    if count != frames:
        raise NotUnderstood(
            f"sliders has {count} combinations of values for {frames} frames; give a "
            "frame for each combination, in the order of itertools.product."
        )
    return tuple(sliders)


def _listed(name: str, value: object) -> Iterable[object]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise NotUnderstood(
            f"{name}={value!r} is not a list; give a list of "
            + _KINDS.get(name, "values.")
        )
    return value


def _words(name: str, value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise NotUnderstood(f"{name}={value!r} is no text; give a few words.")
    return value.strip()


def _frame(k: int, given: object) -> Frame:
    where = f"frames[{k}]"
    if not isinstance(given, tuple) or len(given) not in _SIZES:
        raise NotUnderstood(
            f"{where} is {type(given).__name__}; give a tuple (figure, heading, "
            "sentence), or with what the figure shows in words as a fourth entry."
        )
    shown, *words = given
    names = ("heading", "sentence", "words")
    said = [_words(f"{where}'s {n}", w) for n, w in zip(names, words, strict=False)]
    figure = _figure(where, shown)
    if said[2:]:
        figure = replace(figure, words=" ".join(said[2].split()))
    twin = said[2] if said[2:] else _twin(shown, figure)
    if not twin:
        raise NotUnderstood(
            f"{where}'s figure has no title and no description; add what it shows in "
            "words as a fourth entry of the tuple."
        )
    return Frame(figure, said[0].rstrip("."), said[1], twin)


def _figure(where: str, shown: object) -> figures.Figure:
    drawings = figures.svgs(_html_of(shown))
    if len(drawings) != 1:
        what = "a text" if isinstance(shown, str) else type(shown).__name__
        raise NotUnderstood(
            f"{where}'s figure is {what} with {len(drawings)} SVGs; give one that is "
            "shown as one SVG, such as spmd.draw(x), or the text of an SVG."
        )
    try:
        return figures.figure(drawings[0])
    except ValueError as error:
        raise NotUnderstood(
            f"{where}'s figure {error}; give an SVG with a viewBox."
        ) from None


def _html_of(shown: object) -> str:
    """What a notebook shows of an object, or a text itself."""
    if isinstance(shown, str):
        return shown
    bundle = getattr(shown, "_repr_mimebundle_", None)
    if callable(bundle):
        return str(bundle().get("text/html", ""))
    for name in ("_repr_svg_", "_repr_html_"):
        said = getattr(shown, name, None)
        if callable(said):
            return str(said())
    return ""


def _twin(shown: object, figure: figures.Figure) -> str:
    return figure.words if isinstance(shown, str) else str(shown)
