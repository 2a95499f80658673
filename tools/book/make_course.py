"""Write a course folder for nbgrader from the chapters.

    python -m tools.book.make_course                    every chapter, in _build/course
    python -m tools.book.make_course 03 04              these chapters
    python -m tools.book.make_course --to ../course 03  in another folder

What an instructor has changed there since (own hidden tests, a setting) is kept, and
it is said. Submissions and grades in the folder are never touched.
"""

import argparse
import sys
from pathlib import Path

import nbformat

from spmd_grading.course import course_files, write_course
from tools.book.book import ROOT, Book, BookError, read_book
from tools.book.notebook import source_notebook


def sources(book: Book, chapters: list[str]) -> dict[str, str]:
    """The notebooks of these chapters, of all that have exercises if none is named.

    They have stubs, solutions, and the marks around them.

    Raises:
        BookError: when there is no such chapter, or no exercise in it.
    """
    known = {
        master.name[:2]: master
        for master in book.masters
        if "[exercise-" in master.read_text("utf8")
    }
    unknown = sorted(set(chapters) - set(known))
    if unknown:
        raise BookError(
            f"no chapter {', '.join(unknown)} with exercises; write two digits: "
            f"{', '.join(known)}"
        )
    texts = {}
    for number in sorted(set(chapters or known)):
        master = known[number]
        notebook = source_notebook(master, book)
        text = nbformat.writes(notebook, version=4, indent=1, sort_keys=True)
        texts[master.with_suffix(".ipynb").name] = text + "\n"
    return texts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("chapters", nargs="*", metavar="NN", help="default: all")
    parser.add_argument("--to", type=Path, default=ROOT / "_build" / "course")
    options = parser.parse_args()
    try:
        files = course_files(sources(read_book(), options.chapters))
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
