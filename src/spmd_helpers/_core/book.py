"""Where the book is published, as its settings have it."""

import re
from functools import cache
from pathlib import Path

# In a wheel the settings are a file of the package; in a checkout, the book's own.
_PACKAGE = Path(__file__).resolve().parents[1]
SETTINGS = (_PACKAGE / "_config.yml", _PACKAGE.parents[1] / "_config.yml")


@cache
def book_address(settings: tuple[Path, ...] = SETTINGS) -> str:
    """The book's public address without a slash at its end; "" if there is none.

    Args:
        settings: files to look for; the first that exists counts.
    """
    for path in settings:
        if path.is_file():
            text = path.read_text("utf8")
            match = re.search(r'^  baseurl: "?(https?://[^"\s]+)', text, re.MULTILINE)
            return match[1].rstrip("/") if match else ""
    return ""


def chapter_address(slug: str) -> str:
    """The page of a chapter by its file's name; "" where no address is known."""
    address = book_address()
    return f"{address}/notebooks/{slug}.html" if address and slug else ""
