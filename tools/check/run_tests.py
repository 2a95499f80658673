"""The test in two tiers, step by step.

    python -m tools.check.run_tests          `make test`: what no change may break
    python -m tools.check.run_tests --all    `make test-all`: both tiers, on two JAXes

A test is in the short tier unless it is marked `long`, with a reason. pytest-xdist
shares the tests of a step between two processes, a file at a time.

The first environment is .venv; its JAX is the newest, and made the stored outputs. The
second, .venv-oldest, has the JAX that Python 3.11 gets: the notebooks print the same
there, and the package and the exercises are tested. ONLY_FIRST=1 leaves it out.

The last line of all says how many tests passed.
"""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

from tools.book.book import ROOT, makes_outputs

OLDEST = ROOT / ".venv-oldest"
PROCESSES = str(min(2, os.cpu_count() or 1))
POD_CHAPTERS = (7,)  # whose programs ask for 64 devices
# Not asked again of another JAX: what they test knows nothing of it.
ONE_JAX = ("site", "widgets", "book/test_lab.py", "book/test_hosted.py")
ONE_JAX += ("book/test_colab.py", "test_house.py", "test_types.py")
ANSWERS = re.compile(r"^answers of chapter (\d\d): (.*)$", re.M)
COUNTS = re.compile(r"(\d+) (passed|failed|errors?|skipped|xfailed|xpassed)")


class Steps:
    """Runs commands, adds up what pytest counted, and keeps what each took."""

    def __init__(self):
        self.counts: dict[str, int] = {}
        self.answers: dict[str, set[str]] = {}
        self.seconds: dict[str, float] = {}
        self.failed: list[str] = []

    def run(self, what: str, *command: object) -> bool:
        """One command, shown while it runs; whether it succeeded."""
        print(f"\n== {what}", flush=True)
        begun = time.monotonic()
        lines = []
        with subprocess.Popen(
            [str(part) for part in command],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as process:
            for line in process.stdout:
                print(line, end="", flush=True)
                lines.append(line)
        self._count("".join(lines))
        self.seconds[what] = time.monotonic() - begun
        if process.returncode:
            self.failed.append(what)
        return process.returncode == 0

    def _count(self, text: str) -> None:
        for number, word in COUNTS.findall(_last_count(text)):
            word = "error" if word == "errors" else word
            self.counts[word] = self.counts.get(word, 0) + int(number)
        for chapter, said in ANSWERS.findall(text):
            self.answers.setdefault(chapter, set()).add(said)


def _last_count(text: str) -> str:
    """The line with which pytest closes."""
    lines = [ln for ln in text.splitlines() if COUNTS.search(ln) and " in " in ln]
    return lines[-1] if lines else ""


def answers_said(answers: dict[str, set[str]]) -> list[str]:
    """What was counted of a chapter (once more for Pythons that disagree), and all."""
    lines, total = [], {}
    for chapter, counts in sorted(answers.items()):
        lines += [f"  {chapter}: {said}" for said in sorted(counts)]
        for part in max(counts).split(", "):
            number, what = part.split(" ", 1)
            total[what] = total.get(what, 0) + int(number)
    words = ", ".join(f"{number} {what}" for what, number in total.items())
    return [f"answers to exercises: {words}", *lines] if lines else []


def tests(python: Path, marked: str, *arguments: str) -> list[object]:
    """The tests of a tier, in processes that each take whole files."""
    share = ("-n", PROCESSES, "--dist", "loadgroup")
    return [python, "-m", "pytest", "-q", *share, "-m", marked, *arguments]


def pod(python: Path) -> list[object]:
    """The exercises that need 64 devices, which make everything else slower."""
    of_chapters = " or ".join(f"[{n}." for n in POD_CHAPTERS)
    command = [python, "-m", "pytest", "-q", "tests/book/test_exercises.py"]
    return ["env", "SPMD_TEST_DEVICES=64", *command, "-k", of_chapters]


def notebooks(python: Path, *folders: str) -> list[object]:
    return [python, "-m", "tools.check.notebooks", *folders]


def short_tier(steps: Steps, python: Path) -> None:
    """What `make test` proves."""
    make = [python, "-m", "tools.book.make_notebooks"]
    pages = [python, "-m", "tools.book.make_pages"]
    steps.run("format, style, types, arrows", "make", "--no-print-directory", "lint")
    steps.run("stored notebooks fresh", *make, "--check")
    steps.run("generated pages fresh", *pages, "--check")
    steps.run("site, warnings are errors", python, "-m", "tools.book.build_site")
    steps.run("solved notebooks print what is stored", *notebooks(python, "solutions"))
    steps.run("short tests", *tests(python, "not long"))


def long_tier(steps: Steps, python: Path) -> None:
    """What `make test-all` adds on the first Python."""
    apart = [] if makes_outputs() else _of_no_jax()
    steps.run("readers' notebooks too", *notebooks(python, "notebooks"))
    steps.run("long tests", *tests(python, "long", *apart))
    steps.run("exercises on 64 devices", *pod(python))


def other_jax(steps: Steps) -> str:
    """Both tiers on the oldest JAX, where its Python runs; returns a line on that."""
    if os.environ.get("ONLY_FIRST"):
        return "second Python: left out (ONLY_FIRST is set)"
    find = "source tools/env/python.sh; find_python 3.11"
    shell = subprocess.run(["bash", "-c", find], cwd=ROOT, capture_output=True)
    oldest = shell.stdout.decode().strip()
    if not oldest:
        return "second Python: no 3.11 runs here, so its JAX was not tried"
    words = f"second Python: {oldest} ({_version(oldest)})"
    if not makes_outputs():
        return f"{words}, whose JAX is the first's, so not run twice"
    make = ("bash", "tools/env/environment.sh", OLDEST.name, oldest)
    if steps.run(f"second environment, {oldest}", *make):
        python = OLDEST / "bin" / "python"
        everything = tests(python, "long or not long", *_of_no_jax())
        steps.run("second environment: every notebook", *notebooks(python))
        steps.run("second environment: tests", *everything)
        steps.run("second environment: exercises on 64 devices", *pod(python))
    return words


def _of_no_jax() -> list[str]:
    return [f"--ignore=tests/{name}" for name in ONE_JAX]


def _version(python: str) -> str:
    code = "import sys; print('%d.%d.%d' % sys.version_info[:3])"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True)
    return done.stdout.strip()


def main() -> int:
    begun = time.monotonic()
    steps, python = Steps(), Path(sys.executable)
    both = "--all" in sys.argv[1:]
    short_tier(steps, python)
    words = "left to `make test-all`: readers' notebooks, long tests, the second Python"
    if both:
        long_tier(steps, python)
        words = other_jax(steps)
    print(f"\nfirst Python: {python} ({_version(str(python))})")
    print(words)
    print("\n".join(answers_said(steps.answers)))
    for what, seconds in steps.seconds.items():
        result = "FAILED" if what in steps.failed else "ok"
        print(f"{seconds:6.0f} s  {result:<6}  {what}")
    if steps.failed and not {"failed", "error"} & set(steps.counts):
        steps.counts["failed"] = len(steps.failed)
    order = ("failed", "error", "passed", "skipped", "xfailed", "xpassed")
    said = [f"{steps.counts[word]} {word}" for word in order if steps.counts.get(word)]
    total = time.monotonic() - begun
    print(f"== {', '.join(said) or 'nothing ran'} in {total:.2f}s ==")
    return 1 if steps.failed else 0


if __name__ == "__main__":
    sys.exit(main())
