"""Add new exercises to the list of published grade ids; never take one away.

    python -m tools.check.freeze_grade_ids

`tests/data/grade_ids.json` holds the grade id of each exercise with its points (that
of its check is the same with `-check`). Gradebooks and submissions of other people hold
them, so a published one neither goes nor changes.
"""

import json
import re
import sys

from tools.book.book import ROOT, read_book

LIST = ROOT / "tests" / "data" / "grade_ids.json"
CHECK = re.compile(r"^:tags: \[check-(\d+)\.(\d+), points-(\d+)\b", re.M)


def present() -> dict[str, int]:
    """Grade id -> points, as the chapters now say."""
    points_of = {}
    for master in read_book().masters:
        for chapter, number, points in CHECK.findall(master.read_text("utf8")):
            points_of[f"ch{int(chapter):02}-ex{number}"] = int(points)
    return points_of


def frozen() -> dict[str, int]:
    """Grade id -> points, as published."""
    return json.loads(LIST.read_text("utf8")) if LIST.exists() else {}


def broken(published: dict[str, int], now: dict[str, int]) -> list[str]:
    """One sentence for each grade id that is not as it was published."""
    said = []
    for name, points in published.items():
        if name not in now:
            said.append(
                f"{name} ({points} points) is published and no chapter has it: give "
                "it back its number"
            )
        elif now[name] != points:
            said.append(
                f"{name} was published with {points} points and now has {now[name]}"
            )
    said += [
        f"{name} is not in the list yet: run `python -m tools.check.freeze_grade_ids`"
        for name in now
        if name not in published
    ]
    return said


def main() -> int:
    published, now = frozen(), present()
    both = dict(sorted({**now, **published}.items()))
    LIST.write_text(json.dumps(both, indent=1) + "\n", "utf8")
    said = broken(both, now)
    print(
        "\n".join(said)
        or f"{len(both)} grade ids, {len(set(both) - set(published))} new"
    )
    return 1 if said else 0


if __name__ == "__main__":
    sys.exit(main())
