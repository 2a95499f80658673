"""The text for one kind of error."""

from dataclasses import dataclass

BOTH = "0.10.2 and 0.12"


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
