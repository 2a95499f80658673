"""Build the site into _build/html, warnings as errors, with no network.

Does nothing when nothing that it is made from has changed since the last build
that succeeded; --force builds anyway. The site shows the stored notebooks: if they
are older than the chapters, it says so.

With SOLUTIONS=no in the environment the solved chapters are left out, for a class
whose grades count; that site is in _build/without-solutions/_build/html.
"""

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import yaml

from tools.book.book import ROOT

INPUTS = (
    *("_config.yml", "requirements.txt", "pyproject.toml", "tools/book/build_site.py"),
    *("book/**/*", "notebooks/*.ipynb", "solutions/*.ipynb"),
    "src/spmd_helpers/**/*.py",  # the front page draws with it
    *("src/spmd_helpers/*/js/*.js", "src/spmd_helpers/*/js/*.css"),
)


def digest(root: Path) -> str:
    """One value for everything that the site is made from."""
    total = hashlib.sha256()
    for pattern in INPUTS:
        for path in sorted(root.glob(pattern)):
            if path.is_file() and "__pycache__" not in path.parts:
                total.update(path.relative_to(root).as_posix().encode() + b"\0")
                total.update(hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()


def toc_files(toc: dict) -> list[str]:
    """Every page in the table of contents, in order."""

    def files(entries: list[dict]) -> Iterator[str]:
        for entry in entries:
            yield entry["file"]
            yield from files(entry.get("sections", []))

    chapters = [chapter for part in toc["parts"] for chapter in part["chapters"]]
    return [toc["root"], *files(chapters)]


def without_solutions(toc: dict) -> dict:
    """The table of contents less every page in solutions/, and the word."""
    parts = []
    for part in toc["parts"]:
        if kept := _unsolved(part["chapters"]):
            caption = part["caption"].replace(" and solutions", "")
            parts.append({"caption": caption, "chapters": kept})
    return {**toc, "parts": parts}


def _unsolved(entries: list[dict]) -> list[dict]:
    kept = []
    for entry in entries:
        if not entry["file"].startswith("solutions/"):
            sections = _unsolved(entry.get("sections", []))
            bare = {key: entry[key] for key in entry if key != "sections"}
            kept.append(bare | ({"sections": sections} if sections else {}))
    return kept


def build(
    root: Path,
    out: Path,
    config: Path | None = None,
    fresh: bool = True,
    toc: Path | None = None,
) -> int:
    """Jupyter Book's exit code; the site is then in `out`/_build/html."""
    command = [
        *(str(Path(sys.executable).with_name("jupyter-book")), "build", str(root)),
        *("--path-output", str(out), "--toc", str(toc or root / "book" / "_toc.yml")),
        *("--config", str(config or root / "_config.yml")),
        *("-W", "-n", "--keep-going", "-q"),
    ]
    if fresh:
        command.append("--all")
        # A page that the book no longer has would stay.
        shutil.rmtree(out / "_build" / "html", ignore_errors=True)
    done = subprocess.run(command, cwd=root, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        print(done.stdout)
    return done.returncode


def stale_notebooks(root: Path) -> str:
    """A warning for each stored notebook that is not what its chapter says."""
    command = [sys.executable, "-m", "tools.book.make_notebooks", "--check"]
    done = subprocess.run(
        command, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    said = done.stdout.strip().splitlines() if done.returncode else []
    return "".join(f"warning: {sentence}\n" for sentence in said)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--force", action="store_true", help="build in any case")
    options = parser.parse_args()
    out, toc = ROOT, ROOT / "book" / "_toc.yml"
    if os.environ.get("SOLUTIONS", "yes").lower() in ("no", "0", "false"):
        out = ROOT / "_build" / "without-solutions"
        less = without_solutions(yaml.safe_load(toc.read_text("utf8")))
        toc = out / "_toc.yml"
        out.mkdir(parents=True, exist_ok=True)
        toc.write_text(yaml.safe_dump(less, sort_keys=False), "utf8")
    index = out / "_build" / "html" / "index.html"
    stamp = out / "_build" / "made-from.txt"
    now = digest(ROOT)
    known = stamp.read_text("utf8") if stamp.exists() else ""
    known, _, warnings = known.partition("\n")
    if options.force or known != now or not index.exists():
        begun = time.monotonic()
        print("== building the site ...", flush=True)
        stamp.unlink(missing_ok=True)
        code = build(ROOT, out, toc=toc)
        if code:
            print("The site has warnings or errors (above).", file=sys.stderr)
            return code
        warnings = stale_notebooks(ROOT)
        stamp.write_text(f"{now}\n{warnings}", "utf8")
        print(f"== built in {time.monotonic() - begun:.0f} s")
    else:
        print("== the site is up to date")
    print(warnings, end="")  # of the last build, whose inputs are still the same
    print(f"Open {index.relative_to(ROOT).as_posix()}\n  or {index.as_uri()}")
    copy = index.with_name("offline.zip").relative_to(ROOT)
    print(f"To take along, as one file: {copy.as_posix()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
