"""Write a course folder for nbgrader from the chapters.

    python -m tools.make_course                     every chapter, into _build/course
    python -m tools.make_course 03 04               these chapters
    python -m tools.make_course --to ../course 03   into another folder

What an instructor has changed there since (own hidden tests, a setting) is kept, and
it is said. Submissions and grades in the folder are never touched.
"""

import argparse
import hashlib
import json
import sys
from pathlib import Path

import nbformat

from tools.book.book import ROOT, Book, BookError, read_book
from tools.book.notebook import source_notebook

FILES = Path(__file__).with_name("course")
WRITTEN = ".written.json"  # what this tool wrote: file -> hash


def course_files(book: Book, chapters: list[str]) -> dict[str, str]:
    """Every file of the course folder -> its text."""
    files = {
        path.relative_to(FILES).as_posix(): path.read_text("utf8")
        for path in sorted(FILES.rglob("*"))
        if path.suffix in {".py", ".md"}
    }
    known = {master.name[:2]: master for master in book.masters}
    unknown = sorted(set(chapters) - set(known))
    if unknown:
        raise BookError(
            f"no chapter {', '.join(unknown)}; write two digits: {', '.join(known)}"
        )
    for number in sorted(set(chapters or known)):
        master = known[number]
        name = master.with_suffix(".ipynb").name
        notebook = source_notebook(master, book)
        text = nbformat.writes(notebook, version=4, indent=1, sort_keys=True)
        files[f"source/ch{number}/{name}"] = text + "\n"
    return files


def write_course(files: dict[str, str], folder: Path) -> list[str]:
    """Write what is new or as this tool left it; return what was kept instead."""
    record = folder / WRITTEN
    try:
        written = json.loads(record.read_text("utf8"))
    except FileNotFoundError:
        written = {}
    kept = []
    for name, text in files.items():
        path = folder / name
        if path.exists():
            now = path.read_bytes()
            if now == text.encode():
                written[name] = _hash(now)
                continue
            if _hash(now) != written.get(name):
                kept.append(name)
                continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf8", newline="\n")
        written[name] = _hash(text.encode())
    folder.mkdir(parents=True, exist_ok=True)
    record.write_text(json.dumps(written, indent=1, sort_keys=True) + "\n", "utf8")
    return kept


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("chapters", nargs="*", metavar="NN", help="default: all")
    parser.add_argument("--to", type=Path, default=ROOT / "_build" / "course")
    options = parser.parse_args()
    try:
        files = course_files(read_book(), options.chapters)
    except BookError as error:
        print(error, file=sys.stderr)
        return 1
    for name in write_course(files, options.to):
        print(f"kept as it is, changed since: {name} (delete it to get the book's)")
    count = sum(name.startswith("source/") for name in files)
    many = "1 chapter" if count == 1 else f"{count} chapters"
    print(f"{many} in {options.to}; what to do with them: README.md there")
    if options.to.resolve().is_relative_to(ROOT / "_build"):
        print("`make clean` removes that folder: keep a course with grades elsewhere")
        print("  make course COURSE=../my-course")
    return 0


if __name__ == "__main__":
    sys.exit(main())
