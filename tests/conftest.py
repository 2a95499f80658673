"""What many tests use: tiers, a browser, and what the exercise tests counted.

`make test` reads the lines of the chapters from every step that printed some and adds
them up.
"""

import os
import re
import warnings
from collections import Counter
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import settings

from tests import mutants
from tools.check.browser import browser_path, no_browser

# The test that judges a kind of answer -> the column that it fills.
JUDGES = {
    "test_the_books_solution_is_right": "solutions",
    "test_another_right_answer_passes": "other right",
    "test_a_wrong_answer_is_told_why": "wrong",
    "test_the_untouched_stub_is_open": "stubs",
}
ONE = re.compile(r"::(\w+)\[(\d+)\.\d+(?:-\d+)?\]$")
# A compiler that tests ask for -> the package that has it.
COMPILERS = {"tpu": "libtpu", "gpu": "jax_cuda12_plugin"}
# How many long tests a run collected, and left out if it was asked to; by reason.
LONG = pytest.StashKey[Counter]()
# Of a minute or more: they begin first, so that no process is left alone with one.
DEAR = (
    "tests/book/test_colab_notebooks.py",
    "tests/book/test_hosted.py",
    "tests/site/test_site.py",
    "tests/grading/test_course.py",
    "tests/widgets/",
)
# What is dear, and which tests share: a chapter's programs; the errors that JAX raises.
# Graders run one after another: each removes the shared memory that it finds left.
# (Marks of loadgroup come to nothing with pytest 9.2, pytest-xdist 3.8, October 2026.)
SHARED = re.compile(
    r"(tests/compilers/test_taught\.py::).*\[(\d\d)-|(tests/explain/).*"
    r"|(tests/grading/)(?!test_course).*|(.*?)::"
)


def _counted(reports) -> dict[int, Counter]:
    by_reason: dict[int, Counter] = {}
    for report in reports:
        match = ONE.search(report.nodeid)
        if match and match[1] in JUDGES and report.when == "call":
            count = by_reason.setdefault(int(match[2]), Counter())
            count[JUDGES[match[1]]] += 1
            if report.failed:
                count["misjudged"] += 1
    return by_reason


# No test is timed: where the machine is busy an example takes as long as it takes.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


def pytest_configure(config):
    config.stash[LONG] = Counter()


def pytest_itemcollected(item):
    """Each long test has its reason."""
    if "mutant" in getattr(item, "fixturenames", ()):
        item.add_marker(pytest.mark.long("deliberate faults, each to be noticed"))
        item.add_marker(pytest.mark.mutant)
    if compiler := item.get_closest_marker("compiler"):
        item.add_marker(
            pytest.mark.long(f"asks the {compiler.args[0].upper()} compiler")
        )
    long = item.get_closest_marker("long")
    if long is not None:
        (reason,) = long.args
        item.config.stash[LONG][reason] += 1


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: not item.nodeid.startswith(DEAR))


def shared_by(nodeid: str) -> str:
    """What tests have in common that one process runs: a file, but for those above."""
    return "".join(filter(None, SHARED.match(nodeid).groups()))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class ByWhatIsShared(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return shared_by(nodeid)

    return ByWhatIsShared(config, log)


def pytest_runtest_setup(item):
    """Without its compiler a test is skipped, or fails where compilers are required."""
    for marker in item.iter_markers("compiler"):
        (name,) = marker.args
        if find_spec(COMPILERS[name]) is None:
            said = f"the {name.upper()} compiler, {COMPILERS[name]}, is not installed"
            if name in os.environ.get("SPMD_COMPILERS_REQUIRED", "").split(","):
                pytest.fail(said)
            pytest.skip(said)


def pytest_sessionfinish(session):
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["long"] = dict(session.config.stash[LONG])


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node, error):
    """Every process has collected all tests, so one speaks for all."""
    if long := getattr(node, "workeroutput", {}).get("long"):
        node.config.stash[LONG] = Counter(long)


def _long_tests_said(config) -> list[str]:
    left = config.option.markexpr == "not long"
    lines = [f"  {n:5d} {reason}" for reason, n in config.stash[LONG].most_common()]
    return ["left to `make test-all`, long tests:", *lines] if left and lines else []


def pytest_terminal_summary(terminalreporter, config):
    outcomes = terminalreporter.stats
    ran = outcomes.get("passed", []) + outcomes.get("failed", [])
    for chapter, count in sorted(_counted(ran).items()):
        said = ", ".join(f"{count[column]} {column}" for column in JUDGES.values())
        terminalreporter.write_line(
            f"answers of chapter {chapter:02}: {said}, {count['misjudged']} misjudged"
        )
    for line in _long_tests_said(config):
        terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def mesh():
    """Eight devices in a grid, of axes that the compiler places arrays on."""
    import jax

    auto = (jax.sharding.AxisType.Auto,) * 2
    return jax.make_mesh((4, 2), ("data", "model"), axis_types=auto)


@pytest.fixture
def broken_package(tmp_path, monkeypatch):
    """Imports modules of a copy of the package with a mutant: see `mutants`."""
    return partial(mutants.broken_package, tmp_path, monkeypatch)


@pytest.fixture(scope="module")
def own_exercises():
    """Chapters 80 and 90 have checks, here and in processes, as an instructor's own."""
    folder = str(Path(__file__).parent / "own_exercises")
    more = [os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else []
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        patch.setenv("PYTHONPATH", os.pathsep.join([folder, *more]))
        yield


@pytest.fixture(scope="session")
def browser():
    """A Chromium; where there is none its tests are skipped, or fail if required."""
    path = browser_path()
    if path is None:
        said = no_browser("pages were not read")
        if os.environ.get("SPMD_BROWSER_REQUIRED") == "1":
            pytest.fail(said)
        pytest.skip(said)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from playwright.sync_api import sync_playwright

        with sync_playwright() as playwright:
            opened = playwright.chromium.launch(
                executable_path=path, args=["--no-sandbox"]
            )
            yield opened
            opened.close()
