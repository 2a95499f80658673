"""Print the Chromium or Chrome that the tests use; exit 1 if there is none.

CHROMIUM names one that is elsewhere, and then only that one counts. Needs only the
standard library of any Python 3, so that .ci/run can ask before anything is made.
"""

import os
import shutil
import sys

NAMES = (
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
    "chrome",
)


def browser_path():
    """The program, or None."""
    named = os.environ.get("CHROMIUM")
    names = (named,) if named else NAMES
    return next(filter(None, map(shutil.which, names)), None)


def no_browser(what="the site was not read"):
    """The sentence for when there is none."""
    named = os.environ.get("CHROMIUM")
    why = (
        f"CHROMIUM names {named}, which is no program" if named else "install chromium"
    )
    return f"NO BROWSER: {what} in one ({why})"


if __name__ == "__main__":
    path = browser_path()
    print(path or no_browser(), file=sys.stdout if path else sys.stderr)
    sys.exit(0 if path else 1)
