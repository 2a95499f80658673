"""A table of records by name, which says what it has when a name is unknown."""

from collections.abc import Mapping
from typing import TypeVar

from .._errors import NotUnderstood
from .validate import close_name
from .words import join_words

Record = TypeVar("Record")


class ByName(dict[str, Record]):
    """A dict from name to record; a name that it lacks gets a sentence.

    >>> ByName("fruit", {"apple": 1, "pear": 2})["appel"]
    Traceback (most recent call last):
    ...
    spmd_helpers._errors.NotUnderstood: fruit='appel' is not known. Did you mean \
'apple'? There are apple and pear.

    Args:
        kind: what the records are, as the message names them.
        records: name → record.
    """

    def __init__(self, kind: str, records: Mapping[str, Record]) -> None:
        super().__init__(records)
        self.kind = kind

    def __missing__(self, name: str) -> Record:
        raise NotUnderstood(self.unknown(name))

    def unknown(self, name: object) -> str:
        """The sentence about a name that is not here."""
        wanted = str(name).lower()
        close = [one for one in self if one.startswith(wanted)][:3]
        words = " or ".join(
            map(repr, close or filter(None, [close_name(wanted, self)]))
        )
        guess = f" Did you mean {words}?" if words else ""
        there = join_words(list(self))
        return f"{self.kind}={name!r} is not known.{guess} There are {there}."
