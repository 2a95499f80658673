"""A text to train a small language model on: this book's own prose, frozen."""

from pathlib import Path

_FILE = Path(__file__).with_name("prose.txt")


def load_text() -> str:
    """Load the text that a small language model is trained on: 70,738 characters.

    It is this book's own prose, chapters 1 to 8 without their code, as it was when
    the text was frozen; later edits of the chapters don't change it. Printable ASCII
    and line breaks only. Paragraphs are separated by an empty line.

    >>> text = load_text()
    >>> len(text), len(set(text))
    (70738, 83)
    >>> text[:33]
    'Eight devices, one model: pmap\\n\\nY'

    Returns:
      The text, the same one every time.

    Where it comes from: the README beside the file. Used in chapter 13.
    """
    return _FILE.read_text("ascii")
