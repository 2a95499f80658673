"""Write the zip that Gradescope takes as an autograder.

    python -m tools.grading.make_gradescope                 all chapters
    python -m tools.grading.make_gradescope 03 04           these chapters
    python -m tools.grading.make_gradescope --checks my_checks.py 03

In it are `setup.sh`, `run_autograder`, the two wheels of `make wheel`, the pinned
versions, the notebooks that learners get, and your own hidden checks if you have some.
"""

import argparse
import sys
import zipfile
from pathlib import Path

from spmd_grading.extra import read_extra_checks
from spmd_grading.submission import CannotGrade
from tools.book.book import ROOT

SCRIPTS = Path(__file__).with_name("gradescope")
_DATE = (2026, 1, 1, 0, 0, 0)  # one, so that the same input gives the same zip


def contents(chapters: list[str], checks: Path | None, wheels: Path) -> dict[str, Path]:
    """Name in the zip -> file.

    Args:
        chapters: numbers of two digits, such as "03"; none means all with exercises.
        checks: a file of extra checks, `.py` or `.ipynb`.
        wheels: the folder that `make wheel` has written.

    Raises:
        CannotGrade: when a chapter, a wheel or the file of checks is not there, or
            can't be read.
    """
    files = {path.name: path for path in sorted(SCRIPTS.iterdir())}
    files["constraints.txt"] = ROOT / "requirements.txt"
    for name in ("spmd_helpers", "spmd_grading"):
        matching = sorted(wheels.glob(f"{name}-*.whl"))
        if len(matching) != 1:
            raise CannotGrade(f"{wheels} has no wheel of {name}: run `make wheel`")
        files[f"wheels/{matching[0].name}"] = matching[0]
    known = {
        path.name[:2]: path
        for path in sorted((ROOT / "notebooks").glob("*.ipynb"))
        if '"grade_id"' in path.read_text("utf8")
    }
    unknown = sorted(set(chapters) - set(known))
    if unknown:
        raise CannotGrade(
            f"no chapter {', '.join(unknown)} with exercises; write two digits: "
            f"{', '.join(known)}"
        )
    for number in sorted(set(chapters or known)):
        files[f"release/{known[number].name}"] = known[number]
    if checks is not None:
        read_extra_checks(checks)
        files[f"checks{checks.suffix}"] = checks
    return files


def write_zip(files: dict[str, Path], target: Path) -> None:
    """Write the zip; the scripts in it may be executed."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, path in files.items():
            entry = zipfile.ZipInfo(name, _DATE)
            entry.compress_type = zipfile.ZIP_DEFLATED
            executable = path.parent == SCRIPTS
            entry.external_attr = (0o100755 if executable else 0o100644) << 16
            archive.writestr(entry, path.read_bytes())


def main() -> int:
    """Write the zip, and say what is in it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("chapters", nargs="*", metavar="NN", help="default: all")
    parser.add_argument("--checks", type=Path, metavar="FILE", help="your own checks")
    parser.add_argument("--wheels", type=Path, default=ROOT / "dist")
    parser.add_argument("--to", type=Path, default=ROOT / "_build" / "gradescope.zip")
    options = parser.parse_args()
    try:
        files = contents(options.chapters, options.checks, options.wheels)
        write_zip(files, options.to)
    except (CannotGrade, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    count = sum(name.startswith("release/") for name in files)
    many = "1 chapter" if count == 1 else f"{count} chapters"
    more = ", with your checks" if options.checks else ""
    print(f"{many} in {options.to}{more}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
