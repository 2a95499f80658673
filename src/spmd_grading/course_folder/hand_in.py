"""Put downloaded notebooks where nbgrader looks for them, under their right names.

    python hand_in.py STUDENT NOTEBOOK ...
    python hand_in.py EXPORT

Which chapter a notebook answers is seen from its content, so that a file "Copy of 03
(1).ipynb" from Colab or a learning platform is no problem. EXPORT is a folder or a zip
with the notebooks of many learners, as a platform exports it: whose file it is is seen
from its name or its folder's. Of several for one chapter the newest is taken. Earlier
work of the same student for the same chapter is replaced, and graded again.
"""

import argparse
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

try:
    from spmd_grading.exports import HandedIn, read_export
    from spmd_grading.pool import Order, Pool
    from spmd_grading.process import Limits
    from spmd_grading.report import clean
    from spmd_grading.submission import CannotGrade
except ModuleNotFoundError as error:
    sys.exit(
        f"hand_in: {sys.executable} has no {error.name}: use the Python of the book, "
        "as in /where/the/book/is/.venv/bin/python hand_in.py ..."
    )

HERE = Path(__file__).resolve().parent


def main() -> int:
    """Copy notebooks to where nbgrader looks for them."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        usage="hand_in.py [-h] STUDENT NOTEBOOK ...\n       hand_in.py [-h] EXPORT",
    )
    parser.add_argument(
        "student",
        metavar="STUDENT",
        help="letters, digits, `-`, `_`, `.` or `@`; without notebooks a folder or a "
        "zip, as a learning platform exports it",
    )
    parser.add_argument("notebook", nargs="*", type=Path, metavar="NOTEBOOK")
    options = parser.parse_args()
    export = Path(options.student)
    if options.notebook:
        if not re.fullmatch(r"\w[\w.@-]*", options.student):
            parser.error(
                f"student {options.student!r}: use letters, digits, - _ . @, and begin "
                "with a letter or a digit"
            )
    elif not export.exists():
        parser.error(f"{export} is no folder and no zip; or name notebooks behind it")
    releases = sorted(HERE.glob("release/*/*.ipynb"))
    if not releases:
        print("hand_in: run `nbgrader generate_assignment chNN` first", file=sys.stderr)
        return 2
    try:
        if options.notebook:
            handed_in = [of(path, options.student) for path in options.notebook]
        else:
            handed_in = read_export(export)
    except CannotGrade as error:
        print(f"hand_in: {error}", file=sys.stderr)
        return 2
    return put(handed_in, releases)


def of(path: Path, student: str) -> HandedIn:
    """One file that was named together with its author."""
    try:
        return HandedIn(str(path), student, "", path.read_bytes())
    except OSError as error:
        problem = f"can't be read: {error.strerror}"
        return HandedIn(str(path), student, "", problem=problem)


def put(handed_in: list[HandedIn], releases: list[Path]) -> int:
    """Put each into its place; returns 2 when one could not be."""
    newest: dict[Path, HandedIn] = {}
    refused, older = 0, []
    for one, release, problem in chapters(handed_in, releases):
        if release is None:
            print(f"hand_in: {clean(problem)}", file=sys.stderr)
            refused += 1
            continue
        folder = HERE / "submitted" / one.learner / release.parent.name
        place = folder / release.name
        before = newest.get(place)
        if before is None or before.when <= one.when:
            newest[place] = one
        if before is not None:
            older.append((before, one) if newest[place] is one else (one, before))
    for place, one in newest.items():
        new = not place.exists() or place.read_bytes() != one.data
        note = ""
        if new and forget_grading(place):
            note = " (new work: autograde grades it again)"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(one.data)
        print(clean(f"{one.name} -> {place.relative_to(HERE)}{note}"))
    for left, taken in older:
        print(clean(f"hand_in: {left.name} was left out: {taken.name} is newer"))
    return 2 if refused else 0


def forget_grading(place: Path) -> bool:
    """Remove what nbgrader made of earlier work, or it would keep it; was there any?"""
    archives = [
        HERE / folder / place.parent.relative_to(HERE / "submitted")
        for folder in ("autograded", "feedback")
    ]
    old = [folder for folder in archives if folder.exists()]
    for folder in old:
        shutil.rmtree(folder)
    return bool(old)


def chapters(
    handed_in: list[HandedIn], releases: list[Path]
) -> Iterator[tuple[HandedIn, Path | None, str]]:
    """Each file, the release that it answers or None, and why not."""
    with tempfile.TemporaryDirectory(prefix="hand-in-") as folder:
        paths, files = [], []
        for number, one in enumerate(handed_in):
            if one.problem:
                yield one, None, f"{one.name} {one.problem}"
                continue
            name = re.sub(r"[^\w. -]", "-", Path(one.name).name)[-100:]
            path = Path(folder, str(number), name)
            path.parent.mkdir()
            path.write_bytes(one.data)
            paths.append(path)
            files.append(one)
        order = Order(tuple(releases), Limits(), do="find the release")
        for event in Pool(paths, order).events(range(len(paths))):
            if event.result is not None:
                one, result = files[event.index], event.result
                problem = result.problem.replace(str(paths[event.index]), one.name)
                release = Path(result.release) if result.release else None
                yield one, release, problem


if __name__ == "__main__":
    sys.exit(main())
