"""Every exercise held to account: right answers pass, wrong ones are told why.

A module per chapter, `test_chNN.py`, has `ANSWERS` (exercise number to `Answers`),
`given()`, and a class of these tests. An answer is run among the names that `given()`
has in place of the chapter's own cells; the line of the reader's notebook judges it.
No cell of the notebook runs.
"""

import contextlib
import functools
import io
import re
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import spmd_helpers as spmd
from spmd_exercises import check
from tests.book.chapters import grade_id, read, run


@dataclass(frozen=True)
class Answers:
    """Texts of an exercise cell; the book's own answer and the stub are not listed.

    `right` are other right answers than the book's. `wrong` pairs each wrong answer
    with words that its reader has to be told (`|` between alternatives); one that
    raises by itself pairs with the name of what it raises.
    """

    right: list[str]
    wrong: list[tuple[str, str]]


# For a wrong answer: an object that is equal to whatever it is compared with.
YES = """
class Yes:
    def __eq__(self, other):
        return True
    __hash__ = object.__hash__
    def __float__(self):
        return 0.0
"""


@dataclass(frozen=True)
class Cells:
    """What the notebooks have of one exercise."""

    stub: str
    solution: str
    check: str


def imports() -> dict[str, Any]:
    """What the cells at the top of a chapter import."""
    return {
        "__name__": "__main__",
        "spmd": spmd,
        "check": check,
        "jax": jax,
        "jnp": jnp,
        "np": np,
        "lax": lax,
        "P": P,
        "AxisType": AxisType,
        "NamedSharding": NamedSharding,
    }


def number_of(name: str) -> str:
    """The exercise of a grade id: "2.1" of "ch02-ex1-check"."""
    chapter, exercise = re.fullmatch(r"ch(\d\d)-ex(\d+)(?:-check)?", name).groups()
    return f"{int(chapter)}.{exercise}"


@functools.cache
def cells(chapter: str) -> dict[str, Cells]:
    """The cells of each exercise of chapter "02"."""
    reader = {grade_id(c): c.source for c in read("notebooks", chapter)}
    solved = {grade_id(c): c.source for c in read("solutions", chapter)}
    return {
        number_of(name): Cells(reader[name], solved[name], reader[f"{name}-check"])
        for name in reader
        if f"{name}-check" in reader
    }


class AnswersAreJudged:
    """Collected in each module of a chapter; see `conftest.pytest_generate_tests`."""

    def test_has_answers_of_each_kind(self, number, judge):
        given = judge.answers.get(number, Answers([], []))
        assert len(given.right) >= 2, f"{number}: write two other right answers"
        assert len(given.wrong) >= 3, f"{number}: write three wrong answers"

    def test_every_answer_has_its_exercise(self, judge):
        lost = sorted(set(judge.answers) - set(judge.cells))
        assert not lost, f"ANSWERS has {lost}, and no notebook: run `make notebooks`"

    def test_the_books_solution_is_right(self, number, judge, capsys):
        judge(number, judge.cells[number].solution)
        assert capsys.readouterr().out == f"Exercise {number}: right.\n"

    def test_the_untouched_stub_is_open(self, number, judge, capsys):
        judge(number, judge.cells[number].stub)
        assert capsys.readouterr().out.startswith(f"Exercise {number} is open:")

    def test_things_that_are_no_answer_are_wrong(self, number, judge):
        """The grader hands them over before it believes a check."""
        takes = judge.cells[number].check.count(",")
        for thing in (object(), None, float("nan"), "no answer", [], lambda: None):
            verdict = check.judge(number, (thing,) * takes, judge.given)
            assert verdict.kind == "wrong", f"{thing!r} is {verdict.kind}"

    def test_another_right_answer_passes(self, number, right, judge, capsys):
        judge(number, judge.answers[number].right[right])
        assert capsys.readouterr().out == f"Exercise {number}: right.\n"

    def test_a_wrong_answer_is_told_why(self, number, wrong, judge, capsys):
        answer, words = judge.answers[number].wrong[wrong]
        try:
            judge(number, answer)
        except Exception as error:
            message = f"{type(error).__name__}: {error}"
            assert f"Exercise {number}, not yet" in message or words in message
        else:
            message = capsys.readouterr().out
            assert "is open" in message, "a wrong answer was accepted"
        assert re.search(words if "|" in words else re.escape(words), message), message


class Judge:
    """Runs an answer and the notebook's line under it, among the names of a chapter."""

    def __init__(self, answers: dict[str, Answers], chapter: str, given: dict) -> None:
        self.answers, self.cells, self.given = answers, cells(chapter), given

    def __call__(self, number: str, answer: str) -> None:
        names = dict(self.given)
        with contextlib.redirect_stdout(io.StringIO()):  # what the answer prints
            run(answer, names, f"answer to {number}")
        run(self.cells[number].check, names, f"check of {number}")
