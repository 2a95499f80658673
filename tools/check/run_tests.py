"""Everything that `make test` proves, and then once more on a newer Python.

The first environment is .venv. Where it runs the Python that made the stored
outputs, they are compared; on another, cells only have to run. The second
environment, .venv-next, is any Python of 3.12 or newer that runs here; there
the package is tested and the notebooks run, outputs not compared.

With --all, `make test-all`, also the long tier: tests marked `long`, which make the
environments of Colab and Kaggle and run every notebook in them.

ONLY_FIRST=1 leaves the second out. Two steps run at a time; what a step says is
shown when it ends. The last line of all says how many tests passed.
"""

import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from tools.book.book import OUTPUT_PYTHON, ROOT

NEXT = ROOT / ".venv-next"
AT_A_TIME = min(2, os.cpu_count() or 1)
# What in tests/ is a step of its own; all others are the package's.
SITE, WIDGETS, COURSE = ("site",), ("widgets",), ("grading",)
HOUSE, COLAB = ("book/test_notebooks.py", "test_house.py"), ("book/test_colab.py",)
EXERCISES, LAB = ("book/test_exercises.py",), ("book/test_lab.py",)
HOSTED = ("book/test_hosted.py",)  # the long tier
POD_CHAPTERS = (7,)  # whose programs ask for 64 devices
HALF_THE_WORK = (1, 3, 5, 6, 11, 13, 14, 15)  # by what their exercise tests took
ANSWERS = re.compile(r"^answers of chapter (\d\d): (.*)$", re.M)
COUNTS = re.compile(r"(\d+) (passed|failed|errors?|skipped|xfailed|xpassed)")


class Steps:
    """Runs commands and adds up what pytest counted."""

    def __init__(self):
        self.counts: dict[str, int] = {}
        self.answers: dict[str, set[str]] = {}
        self.failed: list[str] = []

    def run(self, what: str, *command: object) -> bool:
        """One command, shown while it runs."""
        print(f"\n== {what}", flush=True)
        begun = time.monotonic()
        code = subprocess.run([str(part) for part in command], cwd=ROOT).returncode
        return self._note(what, code, time.monotonic() - begun)

    def run_together(self, steps: dict[str, list[object]]) -> None:
        """Commands that do not need each other, in this order, a few at a time."""
        with ThreadPoolExecutor(AT_A_TIME) as pool:
            waiting = {pool.submit(_run, w, c): w for w, c in steps.items()}
            for done in as_completed(waiting):
                code, seconds, text = done.result()
                print(f"\n== {waiting[done]}\n{text.rstrip()}", flush=True)
                self._note(waiting[done], code, seconds)
                for number, word in COUNTS.findall(_last_count(text)):
                    word = "error" if word == "errors" else word
                    self.counts[word] = self.counts.get(word, 0) + int(number)
                for chapter, said in ANSWERS.findall(text):
                    self.answers.setdefault(chapter, set()).add(said)

    def _note(self, what: str, code: int, seconds: float) -> bool:
        print(f"-- {'ok' if code == 0 else 'FAILED'}, {seconds:.0f} s", flush=True)
        if code:
            self.failed.append(what)
        return code == 0


def _run(what: str, command: list[object]) -> tuple[int, float, str]:
    print(f".. {what}", flush=True)
    begun = time.monotonic()
    done = subprocess.run(
        [str(part) for part in command],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    return done.returncode, time.monotonic() - begun, done.stdout


def _last_count(text: str) -> str:
    """The line with which pytest closes."""
    lines = [ln for ln in text.splitlines() if COUNTS.search(ln) and " in " in ln]
    return lines[-1] if lines else ""


def package_tests(python: Path) -> list[object]:
    apart = (*SITE, *HOUSE, *COLAB, *COURSE, *EXERCISES, *LAB, *WIDGETS, *HOSTED)
    left_out = [f"--ignore=tests/{name}" for name in apart]
    pytest = [python, "-m", "pytest", "-q"]
    return [*pytest, "--doctest-modules", "src", "tests", *left_out]


def tests_of(python: Path, names: tuple[str, ...]) -> list[object]:
    files = [f"tests/{name}" for name in names]
    return [python, "-m", "pytest", "-q", "-rs", *files]


def exercise_tests(python: Path, where: str = "") -> dict[str, list[object]]:
    """Two halves of the chapters, about as much work each; and those of a pod.

    Sixty-four devices make everything slower, so only who needs them has them.
    """
    pod = " or ".join(f"[{n}." for n in POD_CHAPTERS)
    half = " or ".join(f"[{n}." for n in HALF_THE_WORK)
    command = [*tests_of(python, EXERCISES), "-k"]
    return {
        f"{where}exercises, one half": [*command, half],
        f"{where}exercises, other half": [*command, f"not ({half}) and not ({pod})"],
        f"{where}exercises, 64 devices": [
            *("env", "SPMD_TEST_DEVICES=64", *command, pod)
        ],
    }


def hosted_tests(python: Path) -> dict[str, list[object]]:
    """Each environment is made by one step only."""
    command = [*tests_of(python, HOSTED), "-k"]
    return {
        "Colab as it is: every notebook": [*command, "on_a_fresh_colab"],
        "Kaggle as it is: every notebook": [*command, "on_kaggle"],
        "Colab and Kaggle: what can go wrong": [
            *command,
            "not on_a_fresh_colab and not on_kaggle",
        ],
    }


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


def first(steps: Steps, long: bool) -> None:
    """.venv: all of it, and the long tier if it is asked for."""
    python = Path(sys.executable)
    ruff = python.parent / "ruff"
    steps.run("format", ruff, "format", "--check", ".")
    steps.run("style", ruff, "check", ".")
    steps.run("arrows", python.parent / "lint-imports", "--no-cache", "--no-logo")
    steps.run("types", python.parent / "mypy")
    steps.run(
        "stored notebooks fresh", python, "-m", "tools.book.make_notebooks", "--check"
    )
    steps.run("generated pages fresh", python, "-m", "tools.book.make_pages", "--check")
    built = steps.run(
        "site, warnings are errors", python, "-m", "tools.book.build_site"
    )
    lax = [] if sys.version_info[:2] == OUTPUT_PYTHON else ["--lax"]
    how = "outputs not compared on this Python" if lax else "outputs compared"
    together = {
        f"every notebook, {how}": [python, "-m", "tools.check.notebooks", *lax],
        **({"site in a browser": tests_of(python, SITE)} if built else {}),
        **exercise_tests(python),
        "package and its examples": package_tests(python),
        "notebooks where nothing is installed": tests_of(python, COLAB),
        "generator and house": tests_of(python, HOUSE),
        "JupyterLab in a browser": tests_of(python, LAB),
        "widgets in a browser": tests_of(python, WIDGETS),
        "courses, graded": tests_of(python, COURSE),
        **(hosted_tests(python) if long else {}),
    }
    print()
    steps.run_together(together)


def second(steps: Steps) -> str:
    """.venv-next on a newer Python, if one runs; returns a line that says which."""
    if os.environ.get("ONLY_FIRST"):
        return "second Python: left out (ONLY_FIRST is set)"
    shell = "source tools/env/python.sh; find_newer_python"
    found = subprocess.run(
        ["bash", "-c", shell], cwd=ROOT, capture_output=True, text=True
    ).stdout.strip()
    if not found:
        return "second Python: none of 3.12 or newer runs here, so nothing was tried"
    words = f"second Python: {found} ({_version(found)})"
    if _version(found) == _version(sys.executable):
        return f"{words}, the same as the first, so not run twice"
    what = f"second environment, {found}"
    if steps.run(what, "bash", "tools/env/environment.sh", NEXT.name, found):
        python = NEXT / "bin" / "python"
        fresh = [python, "-m", "tools.book.make_notebooks", "--check"]
        steps.run("second environment: the same sources from the chapters", *fresh)
        notebooks = [python, "-m", "tools.check.notebooks", "--lax"]
        print()
        steps.run_together(
            {
                "second environment: every notebook, outputs not compared": notebooks,
                **exercise_tests(python, "second environment: "),
                "second environment: package": package_tests(python),
                "second environment: courses, graded": tests_of(python, COURSE),
            }
        )
    return words


def _version(python: str) -> str:
    code = "import sys; print('%d.%d.%d' % sys.version_info[:3])"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True)
    return done.stdout.strip()


def main() -> int:
    begun = time.monotonic()
    steps = Steps()
    first(steps, long="--all" in sys.argv[1:])
    took = time.monotonic() - begun
    words = second(steps)
    total = time.monotonic() - begun
    have = _version(sys.executable)
    print(f"\nfirst Python: {sys.executable} ({have}), {took:.0f} s")
    print(words)
    print("\n".join(answers_said(steps.answers)))
    for what in steps.failed:
        print(f"FAILED: {what}")
    if steps.failed and not {"failed", "error"} & set(steps.counts):
        steps.counts["failed"] = len(steps.failed)
    order = ("failed", "error", "passed", "skipped", "xfailed", "xpassed")
    said = [f"{steps.counts[word]} {word}" for word in order if steps.counts.get(word)]
    print(f"== {', '.join(said) or 'nothing ran'} in {total:.2f}s ==")
    return 1 if steps.failed else 0


if __name__ == "__main__":
    sys.exit(main())
