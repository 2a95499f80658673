"""The table of JAX's sharding errors: what each means, and what to write instead.

The rules lie by theme in the modules beside this one, as plain dicts. Their order is
the order in which they are tried: the first that matches an error explains it, so a
narrow rule stands before a broad one.
"""

import string
from dataclasses import dataclass

from ..fields import placeholders
from . import explicit, manual, mesh, names, placing, running, varying

BOTH = "0.10.2 and 0.12"
ANY_MESSAGE = ("",)  # the patterns of a rule that goes by the type alone


@dataclass(frozen=True)
class Rule:
    """How one kind of error is recognized, and what is said about it.

    Attributes:
        code: its name here, for the reader, the page of errors and the tests.
        raised: names of the exception types that carry it.
        patterns: regular expressions for the message, in which white space counts
            as one space and a backtick as '. Named groups are what is read from it.
        says: the message in words, names in capitals for what varies.
        means: what it means; {name} stands for what was read, or follows from it.
        instead: lines of code to write instead, likewise.
        chapter: the chapter that teaches it, by its file's name.
        versions: where it was seen: both versions of JAX, one, or a platform.
        where: regular expression for the traceback, one line a frame, as
            'file:function: code', the innermost last. For messages that alone
            could mean anything.
        alone: whether a message without any traceback may match in spite of `where`.
        check: name of a check on the groups, see `fields.CHECKS`.
    """

    code: str
    raised: tuple[str, ...]
    patterns: tuple[str, ...]
    says: str
    means: str
    instead: str
    chapter: str
    versions: str = BOTH
    where: str = ""
    alone: bool = False
    check: str = ""


RULES = tuple(
    Rule(**rule)
    for theme in (names, mesh, placing, manual, varying, explicit, running)
    for rule in theme.RULES
)


def records() -> list[dict[str, str]]:
    """The rules in words, for a page: one dict of texts a rule.

    Example:

    >>> [rule] = [r for r in records() if r["code"] == "axis-used-twice"]
    >>> rule["raised"], rule["chapter"]
    ('DuplicateSpecError or ValueError', '03_mesh_and_partitionspec')
    >>> rule["means"]
    "SPEC uses the axis 'AXIS' twice. An axis cuts one dimension: its devices are \
spent there."

    Returns:
        Dicts with the keys code, raised, says, means, instead, chapter, versions.
        What an error would fill in is a word in capitals.
    """
    return [
        {
            "code": rule.code,
            "raised": " or ".join(rule.raised),
            "says": rule.says,
            "means": _in_capitals(rule.means),
            "instead": _in_capitals(rule.instead),
            "chapter": rule.chapter,
            "versions": rule.versions,
        }
        for rule in RULES
    ]


def _in_capitals(template: str) -> str:
    words = {name: name.upper().replace("_", " ") for name in placeholders(template)}
    words |= {name: "" for name in ("near",) if name in words}
    return string.Formatter().vformat(template, (), words).strip()
