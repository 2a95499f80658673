"""Every exercise held to account: right answers pass, wrong ones are told why.

The cells of a solved notebook run once. At each exercise their names are copied,
the answer takes the place of the solution, and the reader's own check judges it.
"""

import contextlib
import functools
import io
import re
from importlib import import_module

import jax
import pytest

from spmd_helpers import CheckFailed
from tests.answers import Answers

from .chapters import CHAPTERS, WITHOUT_EXERCISES, grade_id, read, run
from .needed_cells import needed_cells


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


def _module(number: str) -> str:
    return f"tests.answers.ch{int(number.split('.')[0]):02}"


def _chapter_answers(number: str) -> dict[str, Answers]:
    """The answers of a chapter, or of an exercise's chapter; {} before the first."""
    try:
        return import_module(_module(number)).ANSWERS
    except ModuleNotFoundError as error:
        if error.name != _module(number):
            raise
        return {}


def _answers(number: str) -> Answers:
    """What people answer to an exercise; nothing where nobody has written it yet."""
    return _chapter_answers(number).get(number, Answers(right=[], wrong=[]))


def _stages(chapter: str) -> dict[str, tuple[dict, str, str, str]]:
    """Exercise -> (names before it, its check, its solution, its stub)."""
    stages, problem = _played(chapter)
    if "BackendStarted" in problem and jax.device_count() < 64:
        pytest.skip("needs more devices: SPMD_TEST_DEVICES=64, as in `make test-all`")
    if problem:
        raise AssertionError(f"solutions/{chapter}: {problem}")
    return stages


@functools.cache
def _played(chapter: str):
    """The stages of a solved notebook, and what stopped it if something did.

    A notebook that stops is run once too: its error is kept, not tried again by
    every test that needs the chapter. Checks are left to the tests that judge, and
    cells that no exercise needs to nbval.
    """
    names: dict = {"__name__": "__main__"}
    stubs = {grade_id(c): c.source for c in read("notebooks", chapter)}
    stages, before, solution = {}, {}, ""
    cells = [c for c in read("solutions", chapter) if c.cell_type == "code"]
    played = _needed(cells)
    for i, cell in enumerate(cells):
        name = grade_id(cell)
        if name.endswith("-check"):
            stub = stubs[name.removesuffix("-check")]
            stages[_number(cell)] = (before, cell.source, solution, stub)
            continue
        if name:
            before, solution = dict(names), cell.source
        if i not in played:
            continue
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                run(cell.source, names, f"{chapter} {cell.id}")
        except Exception as error:
            return stages, f"cell {cell.id} stopped: {type(error).__name__}: {error}"
    return stages, ""


def _number(check_cell) -> str:
    return re.search(r'spmd\.exercise\("([\d.]+)"\)', check_cell.source)[1]


def _needed(cells) -> set[int]:
    """The cells whose names the exercises' answers and checks need."""
    uses = {}
    for i, cell in enumerate(cells):
        if grade_id(cell).endswith("-check"):
            given = _answers(_number(cell))
            wrong = [answer for answer, _ in given.wrong]
            uses[i - 1] = [cells[i - 1].source, cell.source, *given.right, *wrong]
    asked = [grade_id(c).endswith("-check") for c in cells]
    sources = ["" if a else c.source for a, c in zip(asked, cells, strict=True)]
    return needed_cells(sources, uses)


def _judge(number: str, answer: str | None, check: str | None = None):
    """What the reader's check says to an answer (None: the book's own)."""
    before, own_check, solution, _ = _stages(f"{int(number.split('.')[0]):02}")[number]
    names = dict(before)
    run(solution if answer is None else answer, names, "answer")
    run(check or own_check, names, "check")


def _numbers() -> list[str]:
    found = []
    for path in CHAPTERS:
        text = path.read_text("utf8")
        found += re.findall(r'spmd\.exercise\(\\"([\d.]+)\\"\)', text)
    return found


NUMBERS = _numbers()
LONG = pytest.mark.long("answers to exercises, but for some of the quick chapters")
QUICK_CHAPTERS = (3, 4, 5, 6, 8, 11, 14)  # whose cells before an exercise take seconds
RIGHT = [(n, i) for n in NUMBERS for i in range(len(_answers(n).right))]


def _tier(number: str, *more: int):
    """Of a quick chapter's exercise the stub and a wrong answer are in the short."""
    quick = int(number.split(".")[0]) in QUICK_CHAPTERS and not any(more)
    return pytest.param(number, *more, marks=[] if quick else [LONG])


STUBS = [_tier(n) for n in NUMBERS]
WRONG = [_tier(n, i) for n in NUMBERS for i in range(len(_answers(n).wrong))]


def test_each_chapter_has_five_exercises_or_more():
    assert NUMBERS
    for path in CHAPTERS:
        chapter = int(path.name[:2])
        count = sum(n.startswith(f"{chapter}.") for n in NUMBERS)
        if path.stem == WITHOUT_EXERCISES and not count:
            continue
        assert count >= 5, f"{path.name} has {count} exercises: write five at least"


@pytest.mark.parametrize("number", NUMBERS)
def test_has_answers_of_each_kind(number):
    answers = _answers(number)
    lacks = [
        f"{least} {kind}"
        for kind, given, least in (
            ("other right answer", answers.right, 1),
            ("wrong answers, each with the words that it is told", answers.wrong, 3),
        )
        if len(given) < least
    ]
    assert not lacks, (
        f'exercise {number}: write `"{number}": Answers(right=[...], wrong=[...])` in '
        f"{_module(number).replace('.', '/')}.py, with at least {' and '.join(lacks)}"
    )


def test_every_answer_has_its_exercise():
    known = [number for path in CHAPTERS for number in _chapter_answers(path.name[:2])]
    lost = sorted(set(known) - set(NUMBERS))
    assert not lost, f"tests/answers/ has {lost}, and no notebook: run `make notebooks`"


@LONG
@pytest.mark.parametrize("number", NUMBERS)
def test_the_books_solution_is_right(number, capsys):
    _judge(number, None)
    assert capsys.readouterr().out == f"Exercise {number}: right.\n"


@pytest.mark.parametrize("number", STUBS)
def test_the_untouched_stub_is_open(number, capsys):
    chapter = f"{int(number.split('.')[0]):02}"
    _judge(number, _stages(chapter)[number][3])
    assert capsys.readouterr().out.startswith(f"Exercise {number} is open:")


@LONG
@pytest.mark.parametrize("number", NUMBERS)
def test_open_is_failed_under_nbgrader(number, monkeypatch):
    monkeypatch.setenv("NBGRADER_EXECUTION", "autograde")
    chapter = f"{int(number.split('.')[0]):02}"
    with pytest.raises(CheckFailed, match=f"Exercise {number} is open"):
        _judge(number, _stages(chapter)[number][3])


@LONG
@pytest.mark.parametrize(("number", "which"), RIGHT)
def test_another_right_answer_passes(number, which, capsys):
    _judge(number, _answers(number).right[which])
    assert capsys.readouterr().out == f"Exercise {number}: right.\n"


@pytest.mark.parametrize(("number", "which"), WRONG)
def test_a_wrong_answer_is_told_why(number, which, capsys):
    answer, words = _answers(number).wrong[which]
    try:
        _judge(number, answer)
    except Exception as error:
        told = f"{type(error).__name__}: {error} {getattr(error, '__notes__', '')}"
        assert f"Exercise {number}, not yet" in told
    else:
        told = capsys.readouterr().out
        assert "is open" in told, "a wrong answer was accepted"
    assert re.search(words if "|" in words else re.escape(words), told), told


def test_the_harness_sees_a_check_that_accepts_everything():
    number = "3.1"
    answer = _answers(number).wrong[0][0]
    with pytest.raises(Exception, match=r"Exercise 3\.1, not yet"):
        _judge(number, answer)
    _judge(number, answer, check=f'with spmd.exercise("{number}"):\n    pass')
