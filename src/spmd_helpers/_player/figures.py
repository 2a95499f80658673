"""Figures taken apart: what many SVGs have in common is written once.

Imports nothing of a collective: any SVG will do.
"""

import hashlib
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from xml.etree import ElementTree

from .page import View

_SVG = re.compile(r"<svg\b.*?</svg\s*>", re.S)
_REFERENCE = re.compile(r"""(?:url\(#|href="#)([^")]+)""")
_DEFS = ("pattern", "linearGradient", "radialGradient", "clipPath", "mask", "marker",
         "symbol", "filter")  # fmt: skip
_MOVES = ("data-to", "data-leaves")
_LEAST = 2  # elements of a run that is worth a name


@dataclass(frozen=True)
class Figure:
    """An SVG in its parts.

    Attributes:
        view: x, y, width and height of its view box.
        kind: its class.
        words: its title and description.
        rules: its CSS.
        defs: name → element that others refer to; a name comes from the element.
        items: its elements.
    """

    view: tuple[float, float, float, float]
    kind: str
    words: str
    rules: str
    defs: Mapping[str, str]
    items: tuple[str, ...]


def svgs(text: str) -> list[str]:
    """The SVGs in a piece of HTML."""
    return _SVG.findall(text)


def figure(text: str) -> Figure:
    """The parts of an SVG.

    Raises:
        ValueError: it is no XML, or has no size.
    """
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise ValueError(f"is not well-formed: {error}") from None
    _without_namespaces(root)
    words = [_text(root, tag) for tag in ("title", "desc")]
    words = words if any(words) else [root.get("aria-label", "")]
    rules = "\n".join(style.text or "" for style in root.iter("style"))
    known = {**_defs(root)}
    items = []
    for child in root:
        if child.tag in ("title", "desc", "metadata", "style", "defs"):
            continue
        if child.tag not in _DEFS:
            items.append(_renamed(_written(child), known))
    return Figure(
        _view(root),
        root.get("class", ""),
        _sentences(words),
        rules,
        {name: _renamed(body, known) for name, body in known.values()},
        tuple(items),
    )


def common_view(figures: Sequence[Figure]) -> View:
    """What shows all of each figure, at its natural size."""
    left, top = (min(f.view[i] for f in figures) for i in (0, 1))
    right, bottom = (max(f.view[i] + f.view[i + 2] for f in figures) for i in (0, 1))
    return View(left, top, right - left, bottom - top, natural=True)


def shared(
    figures: Sequence[Figure], name: str
) -> tuple[list[str], list[tuple[str, ...]]]:
    """Definitions, and the elements of each figure that refer to them.

    A run of elements that several figures have is defined once, and each figure uses
    it in its place, so that what covers what stays.
    """
    defs = {key: body for figure in figures for key, body in figure.defs.items()}
    kinds = kind(figures)
    owners = _owners(figures)
    runs = [_runs(figure, owners) for figure in figures]
    counts: dict[tuple[str, ...], int] = {}
    for run in itertools.chain(*runs):
        counts[run] = counts.get(run, 0) + 1
    worth = [
        run
        for run, count in counts.items()
        if count > 1 and len(run) >= _LEAST and owners[run[0]]
    ]
    ids = {run: f"{name}-{k}" for k, run in enumerate(worth)}
    put = {key: f"{name}-{key}" for key in defs}
    lines = [_put(body, put) for body in defs.values()]
    for run, id_ in ids.items():
        lines += [f'<g id="{id_}"{kinds}>', *(_put(item, put) for item in run), "</g>"]
    return lines, [
        tuple(
            line
            for run in of_one
            for line in (
                [f'<use href="#{ids[run]}"/>']
                if run in ids
                else [_put(item, put) for item in run]
            )
        )
        for of_one in runs
    ]


def kind(figures: Sequence[Figure]) -> str:
    """The classes of all figures, as an attribute, for the rules of their CSS."""
    classes = dict.fromkeys(word for one in figures for word in one.kind.split())
    return f' class="{" ".join(classes)}"' if classes else ""


def _owners(figures: Sequence[Figure]) -> dict[str, tuple[int, ...]]:
    """Element → the figures that have it; of one that moves, none."""
    owners: dict[str, tuple[int, ...]] = {}
    for k, one in enumerate(figures):
        for item in dict.fromkeys(one.items):
            moves = any(word in item for word in _MOVES)
            owners[item] = () if moves else (*owners.get(item, ()), k)
    return owners


def _runs(
    figure: Figure, owners: Mapping[str, tuple[int, ...]]
) -> list[tuple[str, ...]]:
    """The figure's elements, those that the same figures have together."""
    groups = itertools.groupby(figure.items, key=owners.__getitem__)
    return [tuple(items) for _, items in groups]


def _without_namespaces(root: ElementTree.Element) -> None:
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        for key in list(element.attrib):
            if key.endswith("}href"):
                element.set("href", element.attrib.pop(key))


def _text(root: ElementTree.Element, tag: str) -> str:
    child = root.find(tag)
    return "" if child is None else " ".join("".join(child.itertext()).split())


def _sentences(words: Iterable[str]) -> str:
    return ". ".join(word.rstrip(".") for word in words if word) + "." * any(words)


def _written(element: ElementTree.Element) -> str:
    element.tail = None
    return ElementTree.tostring(element, "unicode")


def _view(root: ElementTree.Element) -> tuple[float, float, float, float]:
    numbers = re.findall(r"-?[\d.]+", root.get("viewBox", ""))
    if len(numbers) != 4:
        sizes = [re.match(r"[\d.]+(?=px$|$)", root.get(a, "")) for a in _SIZE]
        numbers = ["0", "0", *(size[0] for size in sizes if size)]
    if len(numbers) != 4:
        raise ValueError("has neither a viewBox nor a width and a height in pixels")
    x, y, width, height = map(float, numbers)
    return x, y, width, height


_SIZE = ("width", "height")


def _defs(root: ElementTree.Element) -> dict[str, tuple[str, str]]:
    """Old id → new name and element, for what is only drawn where it is referred to.

    Other ids go: in a page of many figures they would not be unique.
    """
    apart = [child for one in root.iter("defs") for child in one]
    apart += [child for child in root if child.tag in _DEFS]
    known = {}
    for element in apart:
        old = element.attrib.pop("id", None)
        if old is not None and element.tag != "style":
            body = _written(element)
            name = "d" + hashlib.sha256(body.encode()).hexdigest()[:8]
            element.set("id", f"{{{name}}}")
            known[old] = name, _written(element)
    for element in root.iter():
        if not element.get("id", "{").startswith("{"):
            del element.attrib["id"]
    return known


def _renamed(text: str, known: Mapping[str, tuple[str, str]]) -> str:
    """References with the new names, in braces until a player has a name."""

    def new(match: re.Match[str]) -> str:
        old = match[1]
        return (
            match[0].replace(old, f"{{{known[old][0]}}}") if old in known else match[0]
        )

    return _REFERENCE.sub(new, text)


def _put(text: str, names: Mapping[str, str]) -> str:
    """A text whose names in braces are those of a player."""
    return re.sub(r"\{(d[0-9a-f]{8})\}", lambda m: names.get(m[1], m[0]), text)
