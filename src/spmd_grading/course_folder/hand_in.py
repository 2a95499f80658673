"""Put downloaded notebooks where nbgrader looks for them, under their right names.

    python hand_in.py STUDENT NOTEBOOK ...

Which chapter a notebook answers is seen from its content, so that a file "Copy of 03
(1).ipynb" from Colab or a learning platform is no problem. Earlier work of the same
student for the same chapter is replaced.
"""

import argparse
import re
import shutil
import sys
from pathlib import Path

try:
    from spmd_grading.plan import make_plan
    from spmd_grading.submission import CannotGrade
except ModuleNotFoundError as error:
    sys.exit(
        f"hand_in: {sys.executable} has no {error.name}: use the Python of the book, "
        "as in /where/the/book/is/.venv/bin/python hand_in.py ..."
    )

HERE = Path(__file__).resolve().parent


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("student", help="letters, digits, `-`, `_`, `.` or `@`")
    parser.add_argument("notebook", nargs="+", type=Path)
    options = parser.parse_args()
    if not re.fullmatch(r"[\w.@-]+", options.student) or options.student[0] == ".":
        parser.error(f"student {options.student!r}: use letters, digits, - _ . @")
    releases = sorted(HERE.glob("release/*/*.ipynb"))
    if not releases:
        print("hand_in: run `nbgrader generate_assignment chNN` first", file=sys.stderr)
        return 2
    refused = 0
    for path in options.notebook:
        try:
            release = make_plan(path, releases).release
        except CannotGrade as error:
            print(f"hand_in: {error}", file=sys.stderr)
            refused += 1
            continue
        folder = HERE / "submitted" / options.student / release.parent.name
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, folder / release.name)
        print(f"{path} -> {(folder / release.name).relative_to(HERE)}")
    return 2 if refused else 0


if __name__ == "__main__":
    sys.exit(main())
