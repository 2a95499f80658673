"""`check` itself: right, open, wrong with a reason, and never a riddle."""

import functools
import subprocess
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import spmd_helpers as spmd
from spmd_exercises import CheckFailed, check

STUB = "def f(x):\n    raise NotImplementedError\n"


@pytest.fixture
def exercise(monkeypatch):
    """Makes exercise 97.1 of a function, and judges a notebook's text with it."""

    def make(function):
        module = types.ModuleType("spmd_exercises.ch97")
        module.check_97_1 = function
        monkeypatch.setitem(sys.modules, module.__name__, module)

        def judged(source, **names):
            names |= {"spmd": spmd, "np": np, "jax": jax, "jnp": jnp, "check": check}
            names["partial"] = functools.partial
            exec(compile(source, "<cell>", "exec"), names)
            return names

        return judged

    return make


def is_four(answer):
    """Four."""
    if answer != 4:
        raise CheckFailed(f"{answer} is not two and two")


def test_right(exercise, capsys):
    exercise(is_four)("check('97.1', 4)")
    assert capsys.readouterr().out == "Exercise 97.1: right.\n"


def test_wrong_is_one_sentence_without_a_traceback(exercise):
    with pytest.raises(CheckFailed) as caught:
        exercise(is_four)("check('97.1', 5)")
    assert str(caught.value) == "Exercise 97.1, not yet: 5 is not two and two"
    assert caught.value.__cause__ is None
    assert caught.value._render_traceback_() == [f"CheckFailed: {caught.value}"]


def test_open_while_the_dots_stand(exercise, capsys):
    def never(first, second):
        raise AssertionError("an open exercise is not judged")

    exercise(never)("a = ...\ncheck('97.1', 4, a)")
    assert capsys.readouterr().out == (
        "Exercise 97.1 is open: replace the `...` above, then run this cell.\n"
    )


USES = {
    "called": lambda f: f(1),
    "jit": lambda f: jax.jit(f)(1.0),
    "vmap": lambda f: jax.vmap(f)(np.ones(3)),
    "grad": lambda f: jax.grad(f)(1.0),
    "same": lambda f: spmd.assert_same_as_one_device(f, jnp.ones(3)),
    "collectives": lambda f: spmd.assert_collectives(f, jnp.ones(3), exactly={}),
}


@pytest.mark.parametrize("use", USES)
def test_open_while_the_stub_raises(exercise, capsys, use):
    exercise(USES[use])(STUB + "check('97.1', f)")
    assert "Exercise 97.1 is open: write `f()`" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("source", "call"),
    [
        (STUB + "g = jax.jit(f)", lambda g: g(1.0)),
        (STUB + "g = partial(f, 1)", lambda g: g()),
        (STUB + "g = partial(jax.jit(f), 1.0)", lambda g: g()),
        (STUB + "g = {'step': f}", lambda g: g["step"](1)),
        (
            "class g:\n    def __call__(self):\n        raise NotImplementedError",
            lambda g: g()(),
        ),
    ],
)
def test_a_stub_is_open_through_what_is_around_it(exercise, capsys, source, call):
    exercise(call)(source + "\ncheck('97.1', g)")
    assert "Exercise 97.1 is open: write `" in capsys.readouterr().out


def test_an_answer_that_calls_another_stub_is_wrong(exercise):
    answer = STUB + "def g(x):\n    return f(x) + 1\ncheck('97.1', g)"
    with pytest.raises(CheckFailed, match=r"your answer calls `f\(\)`, which is not"):
        exercise(lambda g: g(1))(answer)


def test_not_implemented_from_elsewhere_is_a_wrong_answer(exercise):
    class Library:
        def call(self):
            raise NotImplementedError

    answer = "def f():\n    return library.call()\ncheck('97.1', f)"
    with pytest.raises(CheckFailed, match=r"`f` \(line 2\) raised NotImplementedError"):
        exercise(lambda f: f())(answer, library=Library())


def test_not_implemented_with_words_is_a_wrong_answer(exercise):
    stub = 'def f(x):\n    raise NotImplementedError("only even sizes")\n'
    with pytest.raises(CheckFailed, match="raised NotImplementedError: only even"):
        exercise(lambda f: f(1))(stub + "check('97.1', f)")


@pytest.mark.parametrize(
    ("body", "kind"), [("assert x == 4", AssertionError), ("return y", NameError)]
)
def test_an_error_of_the_answer_has_its_place_and_is_the_cause(exercise, body, kind):
    with pytest.raises(CheckFailed) as caught:
        exercise(lambda f: f(1))(f"def f(x):\n    {body}\ncheck('97.1', f)")
    assert f"not yet: `f` (line 2) raised {kind.__name__}" in str(caught.value)
    assert type(caught.value.__cause__) is kind


def test_the_line_that_raised_is_quoted_where_the_cell_is_known(tmp_path):
    cell = tmp_path / "cell.py"
    cell.write_text(
        "from spmd_exercises import check\n"
        "def body(x, w):\n    return x @ w.no_such_name\n"
        "check('6.4', body)\n"
    )
    start = "import spmd_helpers as spmd, runpy; spmd.use_devices(8);"
    run = f"{start} runpy.run_path({str(cell)!r})"
    done = subprocess.run([sys.executable, "-c", run], capture_output=True, text=True)
    last = [ln for ln in done.stderr.splitlines() if "not yet" in ln]
    assert "`body` (line 3, `return x @ w.no_such_name`) raised Attr" in last[0]


def test_what_the_check_can_not_use_is_said(exercise):
    with pytest.raises(CheckFailed, match="not yet: what you wrote raised TypeError"):
        exercise(lambda number: len(number))("check('97.1', 5)")


@pytest.mark.parametrize(
    ("body", "use"),
    [
        ("pass", lambda f: float(f(1))),
        ("pass", lambda f: f(1).shape),
        ("pass", lambda f: jnp.exp(f(1))),
        ("x + 1", lambda f: jax.jit(lambda x: f(x) + 1)(1)),
    ],
)
def test_a_forgotten_return_is_said(exercise, body, use):
    with pytest.raises(CheckFailed, match=r"None: is a `return` missing\?$"):
        exercise(use)(f"def f(x):\n    {body}\ncheck('97.1', f)")


def test_a_none_that_the_answer_was_given_is_no_forgotten_return(exercise):
    with pytest.raises(CheckFailed, match="NoneType") as caught:
        exercise(lambda f: f(None))("def f(x):\n    return x + 1\ncheck('97.1', f)")
    assert "return` missing" not in str(caught.value)


def test_a_long_list_of_leaves_is_shortened(exercise):
    def check_all(n):
        lines = [f"['w{i}']: is missing" for i in range(n)]
        raise CheckFailed("\n".join(["step 1:", *lines, "Where are they?"]))

    with pytest.raises(CheckFailed) as caught:
        exercise(check_all)("check('97.1', 9)")
    lines = str(caught.value).splitlines()
    assert lines[4:] == ["['w3']: is missing", "… and 5 more", "Where are they?"]
    with pytest.raises(CheckFailed) as caught:
        exercise(check_all)("check('97.1', 5)")
    assert str(caught.value).count("is missing") == 5


def test_an_interrupt_passes_through(exercise, capsys):
    def interrupted(answer):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        exercise(interrupted)("check('97.1', 4)")
    assert capsys.readouterr().out == ""


def test_open_is_failed_while_nbgrader_runs(exercise, monkeypatch):
    monkeypatch.setenv("NBGRADER_EXECUTION", "autograde")
    judged = exercise(lambda f: f(1))
    for source in ("check('97.1', ...)", STUB + "check('97.1', f)"):
        with pytest.raises(CheckFailed, match=r"Exercise 97\.1 is open"):
            judged(source)


@pytest.mark.parametrize("number", ["", "2", "2.", "a.b", "1.2.3", "0.1", 2.1, None])
def test_numbers_have_a_chapter_and_an_exercise(number):
    with pytest.raises(spmd.NotUnderstood, match=r"like check\(.2\.1., answer\)"):
        check(number, 1)


@pytest.mark.parametrize("number", ["6.99", "99.1"])
def test_a_notebook_of_another_version_is_told_so(number):
    with pytest.raises(CheckFailed, match=r"has no such exercise\. The notebook and"):
        check(number, 1)


def test_another_number_of_answers_is_another_version(exercise):
    words = r"takes \(answer\) here, and the notebook hands over 2\. The notebook and"
    with pytest.raises(CheckFailed, match=words):
        exercise(is_four)("check('97.1', 4, 5)")
    with pytest.raises(CheckFailed, match=words):
        exercise(is_four)("check('97.1', ..., 5)")


def test_a_missing_library_of_a_check_is_no_other_version(monkeypatch):
    monkeypatch.setitem(sys.modules, "numpy", None)
    monkeypatch.delitem(sys.modules, "spmd_exercises.ch06", raising=False)
    monkeypatch.delitem(sys.modules, "spmd_exercises._setting", raising=False)
    with pytest.raises(ModuleNotFoundError, match="numpy"):
        check("6.1", 1, 2)


def test_the_source_is_shown_to_whoever_wants_it(capsys):
    check.source("6.2")
    out = capsys.readouterr().out
    assert out.startswith("def check_6_2(w_spec: object) -> None:\n")
    assert "assert_collectives" in out


def test_names_of_the_notebook_never_matter(exercise, capsys):
    names = exercise(is_four)("spmd = np = jax = print = 'mine'\ncheck('97.1', 4)")
    assert capsys.readouterr().out == "Exercise 97.1: right.\n"
    assert names["spmd"] == "mine"


def test_no_chapter_of_checks_starts_jax():
    code = (
        "import importlib, pkgutil, spmd_exercises\n"
        "for one in pkgutil.iter_modules(spmd_exercises.__path__):\n"
        "    importlib.import_module(f'spmd_exercises.{one.name}')\n"
        "from jax._src import xla_bridge\n"
        "assert not xla_bridge._backends, 'a backend was started'\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_check_that_python_runs_with_O_still_judges(tmp_path):
    code = "from spmd_exercises import check; check('6.2', 5)"
    done = subprocess.run([sys.executable, "-O", "-c", code], capture_output=True)
    assert b"5 is not a P(...)" in done.stderr


def test_every_check_has_its_exercise_and_a_docstring():
    import importlib
    import inspect
    import pkgutil

    import spmd_exercises

    for one in pkgutil.iter_modules(spmd_exercises.__path__):
        if not one.name.startswith("ch"):
            continue
        module = importlib.import_module(f"spmd_exercises.{one.name}")
        for name, function in vars(module).items():
            if name.startswith("check_"):
                _, chapter, number = name.split("_")
                assert one.name == f"ch{int(chapter):02}"
                assert number.isdecimal()
                assert inspect.getdoc(function), name
