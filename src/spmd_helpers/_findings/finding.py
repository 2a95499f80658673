"""A mistake that runs without an error, in a reader's words."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from .._core.words import count_words, join_words, path_words

# An array that costs a device less than this is never worth a finding about where
# it lies: sending it takes as long as the message itself, some microseconds.
SMALL_BYTES = 1024
_MOST_PATHS = 4
_MOST_FOLDED = 3  # which are long
_FOLDED = 3  # paths at least that are one

Named = Callable[[str, int], str]  # how a (file, line) is written


@dataclass(frozen=True)
class Finding:
    """What looks like a mistake in a function that runs.

    >>> print(Finding("idle-axis", "Along model all is the same.", "Cut.", "10_fsdp"))
    idle-axis: Along model all is the same. Cut. (chapter 10)

    Attributes:
        code: what kind of mistake, such as 'idle-axis'; the same for all versions.
        sentence: what is wrong, with names, axes and bytes.
        remedy: what to write instead.
        chapter: the page of the book that is about it, such as '10_fsdp'.
        source: the line of the reader's own code, 'train.py:12'. None if unknown.
    """

    code: str
    sentence: str
    remedy: str
    chapter: str
    source: str | None = None

    def __str__(self) -> str:
        number = self.chapter.partition("_")[0]
        return f"{self.code}: {self.sentence} {self.remedy} (chapter {number})"


def few(names: Iterable[str]) -> str:
    """Names, the first four of them.

    >>> few("abcdef")
    'a, b, c, d and 2 more'
    """
    names = list(dict.fromkeys(names))
    if len(names) <= _MOST_PATHS:
        return join_words(names)
    rest = len(names) - _MOST_PATHS
    return f"{', '.join(names[:_MOST_PATHS])} and {rest} more"


def few_paths(paths: Iterable[str]) -> str:
    """Paths of arrays: of many, those that differ in numbers alone are one.

    >>> few_paths(f"params['layers'][{n}]['w']" for n in range(50))
    "params['layers'][0–49]['w']"
    >>> few_paths(["params['w1']", "params['w2']"])
    "params['w1'] and params['w2']"
    """
    paths = list(dict.fromkeys(paths))
    if len(paths) <= _MOST_PATHS:
        return few(paths)
    groups: dict[tuple[str, str], list[str]] = {}
    for path in paths:
        name, space, rest = path.partition(" (")  # with the array's shape
        key = re.sub(r"[0-9]+", "#", name), space + rest
        groups.setdefault(key, []).append(name)
    folded = {
        path_words(names) + rest: len(names) for (_, rest), names in groups.items()
    }
    if max(folded.values()) < _FOLDED:
        return few(paths)
    if len(folded) <= _MOST_FOLDED:
        return join_words([*folded])
    first = [*folded][:_MOST_FOLDED]
    hidden = len(paths) - sum(folded[words] for words in first)
    return f"{', '.join(first)} and {hidden} more"


def axes_words(axes: Iterable[str], sizes: dict[str, int] | None = None) -> str:
    """'data', or 'data (4 devices) and model (2 devices)' where sizes are given.

    A part of an axis, written 'data:(2)2', is called by the axis's name.
    """
    axes = list(dict.fromkeys(axis.partition(":")[0] for axis in axes))
    if not axes:
        return "groups that follow no axis"
    if sizes is not None:
        axes = [
            f"{axis} ({count_words(sizes[axis], 'device')})" if axis in sizes else axis
            for axis in axes
        ]
    return join_words(axes)
