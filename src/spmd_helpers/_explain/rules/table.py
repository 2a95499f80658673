"""The table of JAX's sharding errors: what each means, and what to write instead.

The rules stand by subject in the modules beside this one, each a `Rule`. Their order is
the order in which they are tried: the first that matches an error explains it, so a
narrow rule stands before a broad one.
"""

import string

from ..fields import placeholders
from . import (
    explicit,
    hosts,
    libraries,
    manual,
    meeting,
    memory,
    mesh,
    names,
    placing,
    pmap,
    running,
    varying,
)

ANY_MESSAGE = ("",)  # the patterns of a rule that goes by the type alone

THEMES = (
    *(names, libraries, mesh, placing, pmap, meeting, manual, varying, explicit),
    *(running, memory, hosts),
)
RULES = tuple(rule for theme in THEMES for rule in theme.RULES)


def records() -> list[dict[str, str]]:
    """The rules in words, for a page: one dict of texts a rule.

    Example:
        >>> [rule] = [r for r in records() if r["code"] == "axis-used-twice"]
        >>> rule["raised"], rule["chapter"]
        ('DuplicateSpecError or ValueError', '03_mesh_and_partitionspec')
        >>> rule["means"]
        "SPEC uses the axis 'AXIS' twice. An axis can shard only one \
dimension."

    Returns:
        Dicts with the keys code, subject, raised, says, means, instead, chapter,
        versions.
        What an error would fill in is a word in capitals.
    """
    return [
        {
            "code": rule.code,
            "subject": theme.SUBJECT,
            "raised": " or ".join(rule.raised),
            "says": rule.says,
            "means": _in_capitals(rule.means),
            "instead": _in_capitals(rule.instead),
            "chapter": rule.chapter,
            "versions": rule.versions,
        }
        for theme in THEMES
        for rule in theme.RULES
    ]


def _in_capitals(template: str) -> str:
    words = {name: name.upper().replace("_", " ") for name in placeholders(template)}
    words |= {name: "" for name in ("near",) if name in words}
    return string.Formatter().vformat(template, (), words).strip()
