"""The test in two tiers, step by step.

    python -m tools.check.run_tests          `make test`: what no change may break
    python -m tools.check.run_tests --all    `make test-all`: both tiers, on two JAXes

A test is in the short tier unless it is marked `long`, with a reason. pytest-xdist
shares the tests of a step between three processes, a file at a time. `--all` runs both
tiers in one step, so that a file's programs and pages are made once for both; beside it
pip installs what the steps after it need.

The first environment is .venv; its JAX is the newest, and made the stored outputs. The
second, .venv-oldest, has the JAX that Python 3.11 gets: the package and the exercises
are tested there, but not the tests themselves, by mutants, nor what is marked `once`,
such as most plans that run as code: of an exercise one other right answer is judged,
and two wrong ones. ONLY_FIRST=1 leaves it out; the public workflow does, and has a job
for each Python, as the first.

The solved notebooks are run in the first, the readers' in the second, or in the first
where there is no second. Cell by cell both show the same, as tests/book compares; an
exercise's cell prints nothing, and tests/exercises judges what it answers on each JAX.

The last line of all says how many tests passed.
"""

import os
import platform
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tools.book.book import ROOT

OLDEST = ROOT / ".venv-oldest"
# One more than two cores: tests wait for kernels, for pip and for pages.
PROCESSES = str(min(2, os.cpu_count() or 1) + 1)
# Each process compiles the tests and the package again where none may keep that.
ENVIRONMENT = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
POD_CHAPTERS = (7,)  # whose programs ask for 64 devices
# The compilers that are there, since each one logs -> the tests that ask them.
COMPILED = {
    ("tpu",): ("tpu", "findings", "hlo", "explain", "hardware", "time", "gallery"),
    ("gpu",): ("gpu", "findings", "time", "gallery", "exercises"),
    ("tpu", "gpu"): ("compilers", "training"),
}
# Not run on the second JAX: what they test knows nothing of it.
ONE_JAX = (
    "tests/site",
    "tests/book/test_lab.py",
    "tests/book/test_hosted.py",
    "tests/book/test_colab.py",
    "tests/book/test_colab_notebooks.py",
    "tests/book/test_kaggle_notebooks.py",
    "tests/test_house.py",
    "tests/test_types.py",
    "tests/book/test_notebooks.py",
    "tests/book/test_claims.py",
    "tests/grading/test_class.py",
    "tests/grading/test_container.py",
    "tests/grading/test_course.py",
    "tests/grading/test_exports.py",
    "tests/grading/test_gradescope.py",
    "tests/grading/test_wheels.py",
    "tests/player/test_player_page.py",
    "tests/tools/test_lock.py",
    "tests/widgets/test_memory_page.py",
    "tests/widgets/test_memory_calculator.py",
    "tests/widgets/test_mesh_planner.py",
    "tests/widgets/test_mesh_planner_page.py",
    "tests/widgets/test_matmul_explorer.py",
    "tests/widgets/test_sharding_explorer.py",
)
SECOND = "second environment"  # how its steps begin
COMPILERS, BOTH = "compilers", "short and long tests"
READERS = "readers' notebooks print what is stored"
ANSWERS = re.compile(r"^answers of chapter (\d\d): (.*)$", re.M)
TIME = re.compile(r" in [\d.]+s\b")
PART = re.compile(r"(\d+) ([a-z ]+)")
COUNTS = re.compile(r"(\d+) (passed|failed|errors?|skipped|xfailed|xpassed)")


Command = tuple[object, ...]  # what it does, in words; then the command


class Steps:
    """Runs commands, adds up what pytest counted, and keeps what each took."""

    def __init__(self):
        self.counts: Counter[str] = Counter()
        self.answers: dict[tuple[str, str], Counter[str]] = {}  # environment, chapter
        self.seconds: dict[str, float] = {}
        self.failed: list[str] = []

    def run(self, what: str, *command: object) -> bool:
        """One command, shown while it runs; whether it succeeded."""
        print(f"\n== {what}", flush=True)
        return self._take(what, *_done(command, shown=True))

    def run_beside(self, beside: list[Command], *command: object) -> None:
        """Runs a command, and others in turn beside it, whose words come last."""
        with ThreadPoolExecutor(max_workers=1) as pool:
            others = [pool.submit(_done, one[1:], shown=False) for one in beside]
            self.run(*command)
            for (what, *_), other in zip(beside, others, strict=True):
                code, text, seconds = other.result()
                print(f"\n== {what}\n{text}", end="", flush=True)
                self._take(what, code, text, seconds)

    def _take(self, what: str, code: int, text: str, seconds: float) -> bool:
        counts = _counts(text)
        if code:
            self.failed.append(what)
            if not counts["failed"] + counts["error"]:
                counts["failed"] = 1  # a step that counts no tests
        self.counts.update(counts)
        where = SECOND if what.startswith(SECOND) else "first environment"
        for chapter, part in _answers(text):
            self.answers.setdefault((where, chapter), Counter()).update(part)
        self.seconds[what] = seconds
        return code == 0


def _done(command: Iterable[object], shown: bool) -> tuple[int, str, float]:
    """The exit code, the words and the seconds of a command."""
    begun = time.monotonic()
    lines = []
    with subprocess.Popen(
        [str(part) for part in command],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=ENVIRONMENT,
    ) as process:
        for line in process.stdout:
            if shown:
                print(line, end="", flush=True)
            lines.append(line)
    return process.returncode, "".join(lines), time.monotonic() - begun


def _counts(text: str) -> Counter[str]:
    """What pytest counted, by the line with which it closes."""
    lines = [ln for ln in text.splitlines() if COUNTS.search(ln) and TIME.search(ln)]
    counts: Counter[str] = Counter()
    for number, word in COUNTS.findall(lines[-1] if lines else ""):
        counts["error" if word == "errors" else word] += int(number)
    return counts


def _answers(text: str) -> list[tuple[str, Counter[str]]]:
    """Chapter and what was counted of its answers, for each line that says so."""
    return [
        (chapter, Counter({what: int(n) for n, what in PART.findall(words)}))
        for chapter, words in ANSWERS.findall(text)
    ]


def answers_said(answers: dict[tuple[str, str], Counter[str]]) -> list[str]:
    """What was counted of each chapter's answers, both tiers together, and of all."""
    lines = []
    for where in dict.fromkeys(where for where, _ in answers):
        chapters = {n: count for (w, n), count in sorted(answers.items()) if w == where}
        total = sum(chapters.values(), Counter())
        lines.append(f"answers to exercises, {where}: {_said(total)}")
        lines += [f"  {number}: {_said(count)}" for number, count in chapters.items()]
    return lines


def _said(count: Counter[str]) -> str:
    words = [f"{n} {what}" for what, n in count.items() if what != "misjudged"]
    return ", ".join([*words, f"{count['misjudged']} misjudged"])


def tests(python: Path, marked: str, *arguments: str) -> list[object]:
    """The tests of a tier, in processes that each take whole files."""
    share = ("-n", PROCESSES, "--dist", "loadfile", "--no-loadscope-reorder")
    slow = ("--durations=20", "--durations-min=5")
    return [
        python,
        "-m",
        "pytest",
        "-q",
        "-rs",
        *slow,
        *share,
        "-m",
        marked,
        *arguments,
    ]


def pod(python: Path) -> list[object]:
    """The exercises that need 64 devices, which make everything else slower."""
    files = [f"tests/exercises/test_ch{n:02}.py" for n in POD_CHAPTERS]
    command = [python, "-m", "pytest", "-q", *files]
    return ["env", "SPMD_TEST_DEVICES=64", *command]


def seeing(folder: Path, names: tuple[str, ...], *command: object) -> list[object]:
    """A command whose Python sees compilers of hardware that is not here."""
    path = [str(folder / "compilers" / name) for name in names]
    path += [os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else []
    path = f"PYTHONPATH={os.pathsep.join(path)}"
    required = f"SPMD_COMPILERS_REQUIRED={','.join(names)}"
    return ["env", path, required, *command]


def notebooks(python: Path, *folders: str) -> list[object]:
    return [python, "-m", "tools.check.notebooks", *folders]


def what_is_stored(steps: Steps, python: Path) -> None:
    """What both tiers begin with."""
    make = [python, "-m", "tools.book.make_notebooks"]
    pages = [python, "-m", "tools.book.make_pages"]
    lint = ("format, style, types, arrows", "make", "--no-print-directory", "lint")
    site = ("site, warnings are errors", python, "-m", "tools.book.build_site")
    steps.run("stored notebooks fresh", *make, "--check")
    steps.run("generated pages fresh", *pages, "--check")
    steps.run_beside([lint], *site)
    steps.run("solved notebooks print what is stored", *notebooks(python, "solutions"))


def short_tier(steps: Steps, python: Path) -> str:
    """What `make test` proves; returns a line on what it leaves out."""
    what_is_stored(steps, python)
    steps.run("short tests", *tests(python, "not long"))
    return "left to `make test-all`: readers' notebooks, long tests, the second Python"


def both_tiers(steps: Steps, first: Path) -> str:
    """What `make test-all` proves; returns a line on the second Python."""
    second, words = find_second()
    environments = {COMPILERS: ("bash", "tools/env/compilers.sh", first.parent.parent)}
    if not compilers_run_here():
        print("\nno TPU or GPU compiler is asked: they are for Linux on x86-64")
        environments = {}
    if second:
        make = ("bash", "tools/env/environment.sh", OLDEST.name, second)
        environments[f"{SECOND}, {second}"] = make
    what_is_stored(steps, first)
    beside = [(what, *command) for what, command in environments.items()]
    steps.run_beside(beside, BOTH, *tests(first, "not compiler and not rare"))
    there = [what for what in environments if what not in steps.failed]
    if COMPILERS in there:
        compilers(steps, first)
    steps.run("exercises on 64 devices", *pod(first))
    if second and f"{SECOND}, {second}" in there:
        oldest_jax(steps, OLDEST / "bin" / "python")
    elif not second:
        steps.run(READERS, *notebooks(first, "notebooks"))
    return words


def compilers_run_here() -> bool:
    return (sys.platform, platform.machine()) == ("linux", "x86_64")


def compilers(steps: Steps, python: Path) -> None:
    """The tests that ask compilers of hardware that is not here."""
    for names, places in COMPILED.items():
        files = [f"tests/{name}" for name in places]
        given = tests(python, "compiler and not rare", *files)
        what = f"what the compiler says: {' and '.join(names)}"
        steps.run(what, *seeing(python.parent.parent, names, *given))


def oldest_jax(steps: Steps, python: Path) -> None:
    """Readers' notebooks, and both tiers of what knows of JAX, on the oldest one."""
    steps.run(f"{SECOND}: {READERS}", *notebooks(python, "notebooks", "pages"))
    marked = "not mutant and not compiler and not once"
    steps.run(f"{SECOND}: tests", *tests(python, marked, *of_no_jax()))
    steps.run(f"{SECOND}: exercises on 64 devices", *pod(python))


def find_second() -> tuple[str | None, str]:
    """The Python of the second environment, if there is to be one; and a line on it."""
    if os.environ.get("ONLY_FIRST", "0") not in ("", "0"):
        return None, "second Python: left out (ONLY_FIRST is set)"
    find = "source tools/env/python.sh; find_python 3.11"
    shell = subprocess.run(["bash", "-c", find], cwd=ROOT, capture_output=True)
    second = shell.stdout.decode().strip()
    if not second:
        return None, "second Python: no 3.11 runs here, so its JAX was not tried"
    words = f"second Python: {second} ({_version(second)})"
    if sys.version_info[:2] == (3, 11):
        return None, f"{words}, as the first, so not run twice"
    return second, words


def of_no_jax() -> list[str]:
    """Leaves out the tests of what knows nothing of JAX."""
    return [f"--ignore={path}" for path in ONE_JAX]


def _version(python: str) -> str:
    code = "import sys; print('%d.%d.%d' % sys.version_info[:3])"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True)
    return done.stdout.strip()


def main() -> int:
    begun = time.monotonic()
    steps, python = Steps(), Path(sys.executable)
    tier = both_tiers if "--all" in sys.argv[1:] else short_tier
    words = tier(steps, python)
    print(f"\nfirst Python: {python} ({_version(str(python))})")
    print(words)
    print("\n".join(answers_said(steps.answers)))
    for what, seconds in steps.seconds.items():
        result = "FAILED" if what in steps.failed else "ok"
        print(f"{seconds:6.0f} s  {result:<6}  {what}")
    order = ("failed", "error", "passed", "skipped", "xfailed", "xpassed")
    said = [f"{steps.counts[word]} {word}" for word in order if steps.counts.get(word)]
    total = time.monotonic() - begun
    print(f"== {', '.join(said) or 'nothing ran'} in {total:.2f}s ==")
    return 1 if steps.failed else 0


if __name__ == "__main__":
    sys.exit(main())
