"""A pasted error as an error: its type, its message and the lines it passed through."""

import re
from dataclasses import dataclass

from .. import _errors

LONGEST = 8_000  # of a message, from its start
LONGEST_TEXT = 200_000  # of a pasted traceback, up to its end
# The names of this package's own errors; DoesNotFit brings a table, and its own file.
OWN = frozenset(
    name
    for name, kind in vars(_errors).items()
    if isinstance(kind, type) and issubclass(kind, Exception)
) | {"DoesNotFit"}

_COLORS = re.compile(r"\x1b\[[0-9;]*m")
_JAX_NOTE = re.compile(r"\n?-{20}\nFor simplicity, JAX has removed .*", re.DOTALL)
# What stands between two tracebacks: one followed from the other, or both are in a
# group, whose lines begin with a bar.
_CHAIN = re.compile(
    r"^(?:The above exception was the direct cause|During handling of the above"
    r"|The stack trace below| *\+-[-+]).*$",
    re.MULTILINE,
)
_BAR = re.compile(r"^(?: *[|] )+", re.MULTILINE)
_RAISED = re.compile(
    r"^(?:\S+:\d+: )?(?:\w+\.)*(?P<kind>"
    rf"\w*(?:Error|Warning|Exception|Interrupt|Exit|Group)|{'|'.join(sorted(OWN))})"
    r"(?::[ \n](?P<message>.*)|:?[ ]*$)",
    re.MULTILINE | re.DOTALL,
)
_PYTHON_FRAME = re.compile(
    r'^\s*File "(.*?)", line \d+, in (\S+)\n(?:    (.*)(?:\n    ([ ~^]+)$)?)?', re.M
)
_IPYTHON_FRAME = re.compile(r"^(?:File (.*?):\d+, in (\w+|<\w+>)|Cell In.*)", re.M)
_ARROW = re.compile(r"^-+> ?\d+ (.*)$", re.M)
# What XLA or gRPC logged as an error. JAX may raise less about it a moment later.
_LOGGED = re.compile(r"^[EF]\d{4} [\d:.]+ +\d+ [\w./\-]+:\d+\] (?P<message>.*)$", re.M)
# All of them, for the page of errors, which reads a pasted text in the same way.
PATTERNS = {
    "colors": _COLORS,
    "jaxNote": _JAX_NOTE,
    "chain": _CHAIN,
    "bar": _BAR,
    "raised": _RAISED,
    "pythonFrame": _PYTHON_FRAME,
    "ipythonFrame": _IPYTHON_FRAME,
    "arrow": _ARROW,
    "logged": _LOGGED,
}


@dataclass(frozen=True)
class Raised:
    """What is known of one error, however it came.

    Attributes:
        kinds: names of its type and of the types that this one inherits from; ()
            where only a message is known.
        message: in one line, a backtick written as '.
        frames: one line a frame, 'file:function: code', the innermost last.
    """

    kinds: tuple[str, ...]
    message: str
    frames: str = ""


def one_line(message: str) -> str:
    """A message as the patterns expect it, P(…) for the PartitionSpec(…) of old.

    Example:
        >>> one_line("please call `psum`\\n  under\\n\\n`jax.shard_map`")
        "please call 'psum' under 'jax.shard_map'"
    """
    plain = _COLORS.sub("", message[:LONGEST])
    words = " ".join(_JAX_NOTE.sub("", plain).replace("`", "'").split())
    return words.replace("PartitionSpec(", "P(")


def frame_line(file: str, function: str, line: str, part: str = "") -> str:
    """One line of `Raised.frames`: of the code, what was running when it raised.

    A line that asserts stays complete, to be distinguished from its parts.
    """
    statement = line.strip()
    asserts = statement.startswith("assert")
    code = statement if asserts else part.strip() or statement
    return f"{file}:{function}: {code}"


def innermost(pattern: str) -> str:
    """A pattern for `frames`: on the last line that is not an installed library's.

    Or on a line of a library, with only libraries' lines below it. JAX hides its own
    frames in some places and not in others.
    """
    return rf"(?:{pattern})[^\n]*(?:\n[^\n]*-packages[^\n]*)*\Z"


def read_text(text: str) -> list[Raised]:
    """The errors in a pasted traceback, the last one first.

    Example:
        >>> read_text("NameError: unbound axis name: x")
        [Raised(kinds=('NameError',), message='unbound axis name: x', frames='')]
        >>> read_text("unbound axis name: x")[0].kinds
        ()

    Args:
        text: a whole traceback of Python or IPython, its last line, or a message.

    Returns:
        One `Raised` for each traceback in the text, then one for each error in a log
        beside them; a message alone has no kinds.
    """
    plain = _BAR.sub("", _COLORS.sub("", text[-LONGEST_TEXT:]))
    plain = _JAX_NOTE.sub("", plain)
    errors: list[Raised] = []
    for part in _CHAIN.split(plain):
        raised = _RAISED.search(part)
        if raised:
            message = one_line(raised["message"] or "")
            frames = _frames(part[: raised.start()])
            errors.insert(0, Raised((raised["kind"],), message, frames))
    if not errors:
        return [Raised((), one_line(plain))]
    logged = [Raised((), one_line(m["message"])) for m in _LOGGED.finditer(plain)]
    return errors + logged


def _frames(text: str) -> str:
    lines = []
    for frame in _PYTHON_FRAME.finditer(text):
        line, marks = frame[3] or "", frame[4] or ""
        part = line[len(marks) - len(marks.lstrip()) : len(marks) or None]
        lines.append(frame_line(frame[1], frame[2], line, part))
    heads = [] if lines else list(_IPYTHON_FRAME.finditer(text))
    ends = [*(head.start() for head in heads[1:]), len(text)]
    for head, end in zip(heads, ends, strict=False):
        arrow = _ARROW.search(text, head.start(), end)
        code = arrow[1].strip() if arrow else ""
        lines.append(frame_line(head[1] or "cell", head[2] or "<module>", code))
    return "\n".join(lines)
