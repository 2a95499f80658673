"""A chapter's tests have a case for each of its exercises and answers."""

import re

import jax
import pytest

from .judging import AnswersAreJudged, Judge, cells


def _chapter(module) -> str:
    return re.fullmatch(r".*test_ch(\d\d)", module.__name__)[1]


# In the short tier: enough of each exercise to see a check break.
IN_SHORT = {"right": 1, "wrong": 2}
LONG = pytest.mark.long("answers to an exercise beyond one right and two wrong ones")


def _tier(number: str, index: int, kind: str):
    marks = (LONG, pytest.mark.once) if index >= IN_SHORT[kind] else ()
    return pytest.param(number, index, marks=marks)


def pytest_generate_tests(metafunc):
    if metafunc.cls is None or not issubclass(metafunc.cls, AnswersAreJudged):
        return
    if "number" not in metafunc.fixturenames:
        return
    numbers = cells(_chapter(metafunc.module))
    kinds = [kind for kind in ("right", "wrong") if kind in metafunc.fixturenames]
    cases = [(number,) for number in numbers]
    for kind in kinds:
        answers = metafunc.module.ANSWERS
        given = {n: getattr(answers[n], kind) if n in answers else () for n in numbers}
        cases = [_tier(n, i, kind) for n in numbers for i in range(len(given[n]))]
    metafunc.parametrize(("number", *kinds), cases)


@pytest.fixture(scope="module")
def judge(request):
    """Judges an answer of the module's chapter as its reader's notebook does."""
    module = request.module
    return Judge(module.ANSWERS, _chapter(module), module.given())


@pytest.fixture(scope="session", autouse=True)
def programs_are_kept(tmp_path_factory):
    """Ten answers to an exercise compile the same reference: once is enough."""
    kept = {
        "jax_compilation_cache_dir": str(tmp_path_factory.mktemp("programs")),
        "jax_persistent_cache_min_compile_time_secs": 0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    for option, value in kept.items():
        jax.config.update(option, value)
