"""Run every stored notebook again with nbval, in the kernels that made them.

    python -m tools.check.notebooks              stored outputs must come out again
    python -m tools.check.notebooks --lax        cells must run, outputs may differ

Outputs are compared on the Python that made them. What else is given goes to
pytest.
"""

import subprocess
import sys
from pathlib import Path

from tools.book.book import OUTPUT_PYTHON, ROOT, read_book
from tools.book.run import SECONDS, kernel_environment


def main(arguments: list[str], root: Path = ROOT) -> int:
    lax = "--lax" in arguments
    rest = [a for a in arguments if a != "--lax"]
    book = read_book(root)
    if not book.generated():
        print("no notebooks to check: run `make notebooks`", file=sys.stderr)
        return 1
    if not lax and sys.version_info[:2] != OUTPUT_PYTHON:
        have = ".".join(map(str, sys.version_info[:2]))
        print(f"stored outputs can't be compared on Python {have}: use --lax")
        return 1
    how = ["--nbval-lax"] if lax else ["--nbval"]
    command = [
        *(
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "no:cacheprovider",
            "--noconftest",
            *how,
        ),
        *("--nbval-current-env", f"--nbval-cell-timeout={SECONDS}"),
        f"--nbval-sanitize-with={ROOT / 'tests' / 'nbval_sanitize.cfg'}",
        *(rest or ["-q"]),
        *(str(path) for path in book.generated()),
    ]
    with kernel_environment() as environment:
        return subprocess.run(command, cwd=root, env=environment).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
