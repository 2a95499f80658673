"""The page that lists every exercise, made from the chapters themselves."""

import re
from dataclasses import dataclass
from pathlib import Path

from tools.book.book import Book, BookError

KINDS = {
    "Predict": "say what a program will do before it runs",
    "Read": "say how arrays are sharded, or what a compiled program does",
    "Repair": "make a program right, or cheap, that is neither",
    "Build": "write what does not exist yet",
    "Budget": "stay within a limit of bytes, of collectives or of memory",
}
DIFFICULTY = {1: "easy", 2: "medium", 3: "hard", 4: "hardest"}
HEAD = """\
# All exercises

{count} exercises, {points} points, about {hours} hours of work. Each is checked where
it stands: the check looks at values against one device, and at shardings, collectives
or bytes as well, and it says what was wrong without giving the answer away. A point is
a step of difficulty: {difficulty}. The minutes are
those of a reader who has just read the chapter up to there. The kinds:

{kinds}
"""
TITLE = re.compile(r"^# \d+\. (.+)$", re.M)
EXERCISE = re.compile(
    r"^### (Exercise (?P<number>\d+\.\d+) — (?P<title>.+))\n"
    r"(?:(?!^###? ).*\n)*?"
    r"^\*(?P<kind>[A-Z]\w+), (?P<minutes>\d+) minutes\.\*",
    re.M,
)


@dataclass(frozen=True)
class Listed:
    """What a chapter says of one of its exercises."""

    number: str
    title: str
    kind: str
    minutes: int
    points: int
    anchor: str


def exercises_of(master: Path, book: Book) -> list[Listed]:
    """The exercises of a chapter, in its order.

    Raises:
        BookError: a check without a heading and a line `*Kind, N minutes.*`, or
            with a kind or a number of points that the page doesn't know.
    """
    text, where = master.read_text("utf8"), book.name_of(master)
    checks = re.findall(r"check-(\d+\.\d+), points-(\d+)", text)
    matches = {match["number"]: match for match in EXERCISE.finditer(text)}
    listed = []
    for number, points in checks:
        match = matches.get(number)
        if not match or match["kind"] not in KINDS or int(points) not in DIFFICULTY:
            raise BookError(
                f"{where}: exercise {number} needs a heading `### Exercise {number} — "
                f"title`, a line `*Kind, N minutes.*` with a kind of {', '.join(KINDS)}"
                f", and points from 1 to {max(DIFFICULTY)}"
            )
        listed.append(
            Listed(
                number,
                match["title"],
                match["kind"],
                int(match["minutes"]),
                int(points),
                _anchor(match[1]),
            )
        )
    return listed


def exercises_page(book: Book) -> str:
    """The text of `book/exercises.md`."""
    chapters = [(master, exercises_of(master, book)) for master in book.masters]
    every = [one for _, listed in chapters for one in listed]
    parts = [
        HEAD.format(
            count=len(every),
            points=sum(one.points for one in every),
            hours=round(sum(one.minutes for one in every) / 60),
            difficulty=", ".join(f"{n} is {word}" for n, word in DIFFICULTY.items()),
            kinds="\n".join(f"- **{kind}**: {what}" for kind, what in KINDS.items()),
        )
    ]
    for master, listed in chapters:
        if not listed:
            continue
        title = TITLE.search(master.read_text("utf8"))[1]
        parts.append(_table(title, master.stem, listed))
    return "\n".join(parts)


def _table(title: str, slug: str, listed: list[Listed]) -> str:
    points = sum(one.points for one in listed)
    minutes = sum(one.minutes for one in listed)
    rows = [
        f"| [{one.number} {one.title}](../notebooks/{slug}.ipynb#{one.anchor}) "
        f"| {one.kind.lower()} | {DIFFICULTY[one.points]} | {one.points} "
        f"| {one.minutes} min |"
        for one in listed
    ]
    return (
        f"## {int(slug[:2])}. {title}\n\n"
        f"{points} points, {minutes} minutes.\n\n"
        "| exercise | kind | difficulty | points | time |\n"
        "| --- | --- | --- | ---: | ---: |\n" + "\n".join(rows) + "\n"
    )


def _anchor(heading: str) -> str:
    """What the site calls a heading: the way GitHub does it."""
    kept = re.sub(r"[^\w\- ]", "", heading.lower())
    return kept.replace(" ", "-")
