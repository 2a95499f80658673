"""JAX's sharding errors in a reader's terms: what it means, what to write instead."""

import linecache
import re
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape

from .._core.book import chapter_address
from .._core.words import table
from .._errors import CheckFailed
from .fields import CHECKS, placeholders, readable
from .read import OWN, Raised, frame_line, one_line, read_text
from .rules.rule import Rule
from .rules.table import ANY_MESSAGE, RULES

OWN_PACKAGE = __name__.partition(".")[0]
FRAMES = 200  # of a traceback, the innermost
_CELL = "padding: 0.1em 0.7em 0.1em 0; text-align: left; vertical-align: top"


@dataclass(frozen=True, repr=False)
class Explanation:
    """The explanation of an error.

    Attributes:
        code: the name of the rule that knows it; '' for an unknown error.
        means: what it means.
        instead: lines of code to write instead; '' where there is none.
        chapter: the chapter that teaches it, by its file's name, or ''.
            Where the book has a public address, a text ends with that of the
            chapter's page, and a notebook shows the chapter as a link.
        known: whether there is a rule for the error.
        about: the type of the error that is explained.
    """

    code: str
    means: str
    instead: str
    chapter: str
    known: bool
    about: str = ""

    def _rows(self) -> list[tuple[str, str]]:
        """What text and HTML both show: labels and words."""
        return [
            ("means", self.means),
            ("instead", self.instead),
            ("chapter", chapter_words(self.chapter)),
        ]

    def __repr__(self) -> str:
        if not self.instead:
            return self.means
        rows = self._rows()
        if address := chapter_address(self.chapter):
            rows.append(("", address))
        return table(
            (name if number == 0 else "", line)
            for name, words in rows
            for number, line in enumerate(words.splitlines())
        )

    def _repr_html_(self) -> str:
        if not self.instead:
            return f'<p class="spmd-explain">{escape(self.means)}</p>'
        title = escape(f"{self.about}, explained")
        parts = [f'<table class="spmd-explain" aria-label="{title}"><tbody>']
        for name, words in self._rows():
            shown = escape(words)
            if name == "instead":
                shown = f'<code style="white-space: pre-wrap">{shown}</code>'
            if name == "chapter" and (address := chapter_address(self.chapter)):
                shown = f'<a href="{escape(address)}">{shown}</a>'
            parts.append(
                f'<tr><th scope="row" style="{_CELL}">{name}</th>'
                f'<td style="{_CELL}">{shown}</td></tr>'
            )
        return "\n".join([*parts, "</tbody></table>"])


def explain(error: BaseException | str | None = None) -> Explanation:
    """Say what an error of JAX's shardings means, and what to write instead.

    Example:
        >>> explain("NameError: Found an unbound axis name: data. To fix this, please "
        ...         "call psum under `jax.shard_map`.").code
        'unbound-axis'
        >>> explain("DuplicateSpecError: A single NamedSharding spec specification can "
        ...         "map every mesh axis to at most one positional dimension, but "
        ...         "P('data', 'data') has duplicate entries for `data`")
        means    P('data', 'data') uses the axis 'data' twice. An axis can shard only \
one dimension.
        instead  P('data', None)  # or another axis of the mesh for the second
        chapter  3, mesh and partitionspec
        >>> explain(KeyError("w")).known
        False

    Args:
        error: an exception, or a text: a pasted message or traceback. By default the
            error that is being handled, or the last one that was not.

    Returns:
        An `Explanation`. Of an error that it does not know it says so (`known` is
        False) and guesses nothing. The error itself, the causes it was raised from,
        those it came up while handling, and the members of a group are looked at, in
        this order; the first known one is explained. Errors of this package come
        back in their own words.

    Raises:
        Nothing: it is for the moment after an error.

    Used from chapter 02 on, and by `%load_ext spmd_helpers`.
    """
    try:
        if error is None:
            error = _last_error()
        if error is None:
            return _unknown("No error has been raised here yet.")
        if isinstance(error, BaseException):
            return _explain_exception(error)
        return _explain_text(error)
    except Exception as why:
        return _unknown(f"This error can't be read ({type(why).__name__}).")


def chapter_words(slug: str) -> str:
    """'2, jit sharding' for '02_jit_sharding'."""
    number, _, name = slug.partition("_")
    return f"{int(number)}, {name.replace('_', ' ')}" if number.isdigit() else slug


def _unknown(words: str, about: str = "") -> Explanation:
    return Explanation("", words, "", "", known=False, about=about)


def _last_error() -> BaseException | None:
    """The error being handled, or the last that Python or IPython showed."""
    return (
        sys.exception()
        or getattr(sys, "last_exc", None)
        or getattr(sys, "last_value", None)
    )


def _explain_text(text: object) -> Explanation:
    if not isinstance(text, str):
        what = f"of type {type(text).__name__}"
        if isinstance(text, type):
            what = f"a type, {text.__name__}"
        return _unknown(f"explain takes an exception or a text; this is {what}.")
    errors = read_text(text)
    for raised in errors:
        if raised.kinds and raised.kinds[0] in OWN:
            return _own_words(raised.kinds[0], raised.message)
        explanation = _explain(raised)
        if explanation:
            return explanation
    kinds = errors[0].kinds
    return _not_known(kinds[0] if kinds else "text", errors[0].message)


def _explain_exception(error: BaseException) -> Explanation:
    for one in _chain(error):
        if explains_itself(one):
            return _own_words(type(one).__name__, _message(one))
        explanation = None if _is_own(one) else _explain(_read(one))
        if explanation:
            return explanation
    if _is_own(error):
        return _own_words(type(error).__name__, _message(error))
    return _not_known(type(error).__name__, _message(error))


def explains_itself(error: BaseException) -> bool:
    """Whether an error is of this package, and not about one that an answer raised."""
    of_an_answer = isinstance(error, CheckFailed) and error.__cause__ is not None
    return _is_own(error) and not of_an_answer


def _is_own(error: BaseException) -> bool:
    return type(error).__module__.partition(".")[0] == OWN_PACKAGE


def _own_words(kind: str, message: str) -> Explanation:
    return Explanation(kind, message, "", "", known=True, about=kind)


def _not_known(kind: str, message: str) -> Explanation:
    first = one_line(message)[:120]
    about = f"{kind}: {first}" if first else kind
    return _unknown(f"Not known here, so nothing is guessed: {about}", kind)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error, what it was raised from, what it came up in, what it groups."""
    waiting: list[BaseException | None] = [error]
    visited: set[int] = set()
    while waiting and len(visited) < 100:
        one = waiting.pop(0)
        if one is None or id(one) in visited:
            continue
        visited.add(id(one))
        yield one
        waiting.append(one.__cause__)
        if not one.__suppress_context__:
            waiting.append(one.__context__)
        if isinstance(one, BaseExceptionGroup):
            waiting.extend(one.exceptions)


def _read(error: BaseException) -> Raised:
    kinds = tuple(kind.__name__ for kind in type(error).__mro__)
    return Raised(kinds, one_line(_message(error)), _frames(error))


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return ""


def _frames(error: BaseException) -> str:
    lines = []
    for frame in traceback.extract_tb(error.__traceback__, limit=-FRAMES):
        line = linecache.getline(frame.filename, frame.lineno or 0)
        start, end = frame.colno, frame.end_colno
        if frame.end_lineno != frame.lineno or start is None:
            start, end = 0, None
        part = line.encode()[start:end].decode(errors="replace")
        lines.append(frame_line(frame.filename, frame.name, line, part))
    return "\n".join(lines)


def _explain(raised: Raised) -> Explanation | None:
    """The first rule that matches, in words; None if none does."""
    for rule in RULES:
        groups = match(rule, raised)
        if groups is not None:
            words = readable(groups)
            return Explanation(
                code=rule.code,
                means=_filled(rule.means, words),
                instead=_filled(rule.instead, words),
                chapter=rule.chapter,
                known=True,
                about=raised.kinds[0] if raised.kinds else "Error",
            )
    return None


def match(rule: Rule, raised: Raised) -> dict[str, str | None] | None:
    """What a rule reads from an error; None if it is not the rule's."""
    if raised.kinds:
        if not set(raised.kinds) & set(rule.raised):
            return None
    elif rule.patterns == ANY_MESSAGE:
        return None
    groups: dict[str, str | None] = {}
    if rule.where:
        place = re.search(rule.where, raised.frames)
        bare = not raised.frames and rule.alone
        if place is None and not bare:
            return None
        groups = place.groupdict() if place else {}
    for pattern in rule.patterns:
        message = re.search(pattern, raised.message)
        if message:
            groups |= message.groupdict()
            check = CHECKS.get(rule.check)
            return groups if check is None or check(groups) else None
    return None


def _filled(template: str, words: dict[str, str]) -> str:
    have = {name: words.get(name, "…") for name in placeholders(template)}
    return "\n".join(line.rstrip() for line in template.format_map(have).splitlines())
