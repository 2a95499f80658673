"""The rules of `spmd.explain` as data for a script: how a text is read, what matches.

A page matches a pasted error by the package's own regular expressions. Each is
translated to JavaScript (flag `u`) so that it means the same there, character classes
and line ends included; what has no translation stops the build.
"""

import json
import re

from spmd_helpers._explain import read
from spmd_helpers._explain.rules.rule import Rule
from spmd_helpers._explain.rules.table import RULES

WORD = r"\p{L}\p{N}_"
SPACE = r" \t-\r\x1c-\x1f\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
CLASSES = {"w": WORD, "d": r"\p{Nd}", "s": SPACE}
EDGE = f"(?:(?<=[{WORD}])(?![{WORD}])|(?<![{WORD}])(?=[{WORD}]))"
# One piece of a Python pattern; what no alternative knows is an error.
PIECE = re.compile(
    r"""\[(?P<negated>\^?)(?P<members>(?:\\.|[^\\\]])+)\]
    | \\(?P<escaped>x[0-9a-fA-F]{2}|.)
    | \(\?P<(?P<group>\w+)>
    | \(\?P=(?P<same>\w+)\)
    | (?P<plain>\((?:(?!\?)|\?(?:[:=!]|<[=!]))|\)|\||(?:[*+?]|\{\d*,?\d*\})\??(?!\+))
    | (?P<place>[\^$.])
    | (?P<letter>\{(?!\d*,?\d*\})|[^\\\[()*+?|{])""",
    re.VERBOSE | re.DOTALL,
)


def javascript(pattern: str, flags: int = 0) -> str:
    """The source of a Python pattern's twin in JavaScript, for its flag `u`.

    Example:
        >>> javascript(r"^(?P<axis>[^.]+)-\\Z")
        '^(?<axis>[^.]+)-$'

    Args:
        pattern: a regular expression of `re`.
        flags: of `re`: MULTILINE and DOTALL are known.
    """
    pieces, at = [], 0
    while at < len(pattern):
        piece = PIECE.match(pattern, at)
        if piece is None:
            raise ValueError(f"no JavaScript for {pattern[at:]!r} in {pattern!r}")
        pieces.append(_piece(piece, flags))
        at = piece.end()
    return "".join(pieces)


def _piece(piece: re.Match, flags: int) -> str:
    if piece["members"]:
        return f"[{piece['negated']}{_members(piece['members'])}]"
    if piece["escaped"]:
        return _escaped(piece["escaped"])
    if piece["group"]:
        return f"(?<{piece['group']}>"
    if piece["same"]:
        return f"\\k<{piece['same']}>"
    if piece["place"]:
        return _place(piece["place"], flags)
    return piece["plain"] or _literal(piece["letter"])


def _members(text: str) -> str:
    """What stands in a class's brackets."""

    def member(match: re.Match) -> str:
        name = match[1]
        if name in CLASSES:
            return CLASSES[name]
        if name in "nrt" or not name.isalnum():
            return f"\\{name}" if name in "nrt\\]^-" else name
        raise ValueError(f"no JavaScript for \\{name} in [{text}]")

    return re.sub(r"\\(.)", member, text)


def _escaped(name: str) -> str:
    if name in CLASSES:
        return f"[{CLASSES[name]}]"
    if name.lower() in CLASSES:
        return f"[^{CLASSES[name.lower()]}]"
    places = {"b": EDGE, "A": "^", "Z": "$"}
    if name in places:
        return places[name]
    if name in "nrt" or (name.startswith("x") and len(name) == 3):
        return f"\\{name}"
    if name.isalnum():
        raise ValueError(f"no JavaScript for \\{name}")
    return _literal(name)


def _place(sign: str, flags: int) -> str:
    lines = flags & re.MULTILINE
    if sign == "^":
        return "(?:^|(?<=\\n))" if lines else "^"
    if sign == "$":
        return "(?=\\n|$)" if lines else "(?=\\n?$)"
    return "[^]" if flags & re.DOTALL else "[^\\n]"


def _literal(sign: str) -> str:
    return f"\\{sign}" if sign in "^$\\.*+?()[]{}|/" else sign


def _rule(rule: Rule) -> list:
    patterns = [javascript(pattern) for pattern in rule.patterns]
    where = javascript(rule.where)
    row = [rule.code, list(rule.raised), patterns, where, int(rule.alone), rule.check]
    while row[-1] in ("", 0):
        row.pop()
    return row


def data() -> dict:
    """What `explain.js` matches with; its `rules` in the order in which they count."""
    reading = {
        name: javascript(pattern.pattern, pattern.flags)
        for name, pattern in read.PATTERNS.items()
    }
    return {
        "longest": read.LONGEST,
        "longestText": read.LONGEST_TEXT,
        "own": sorted(read.OWN),
        "space": SPACE,
        "reading": reading,
        "rules": [_rule(rule) for rule in RULES],
    }


def joined(*files: str) -> str:
    """The data and these scripts, in order, as one text."""
    said = json.dumps(data(), ensure_ascii=False, separators=(",", ":"))
    return "\n".join([f"const EXPLAIN = {said};", *files])


def script(*files: str) -> str:
    """The same for a page, which sees none of their names."""
    return f'"use strict";\n(() => {{\n{joined(*files)}}})();\n'
