"""Mutants outlive new names and line breaks; one that changes nothing is reported."""

import ast
import builtins
import re
from functools import cache
from pathlib import Path

import pytest

from tests.mutants import PACKAGE, file_of, mutated, names_of
from tests.widgets.widget_harness import changed as changed_script

SOURCE = """
TABLE: dict = {"one": 1, "two": (2, 2)}

class Reader:
    def read(self, text, found=None):
        size = len(text)  # one
        if size > 0 and found is None:
            return size * 2
        return helper(text)
"""
# The same with other names and line breaks, quotes, comments and types.
OTHERWISE = """
TABLE = {'one': 1,
         'two': (2, 2)}
class Reader:
    def read(self, string: str, known: int | None = None) -> int:
        length = len(
            string
        )
        if (length > 0  # two
                and known is None):
            return length*2
        return helper(string)
"""
MUTANT = ("m:Reader.read", "$size > 0 and $found is None", "$size > 0")
GONE = [
    (("m:Raeder.read", "1", "2"), "nothing there is called 'Raeder'; is it Reader"),
    (("m:Reader.write", "1", "2"), "nothing there is called 'write'"),
    (("m:TABLE['three']", "1", "2"), "the table has no key 'three'"),
    (("m:Reader.read", "$size > 1", "True"), "`$size > 1` occurs there 0 times"),
    (("m:TABLE['two']", "2", "3"), "`2` occurs there 2 times, not once"),
    (("m:Reader.read", "$size > 0", "$size > 0"), "nothing is changed"),
    (("m:Reader.read", "$size > 0", "$found"), "what is put there reads $found"),
    (("m:Reader.read", "$size > 0", "size"), "what is put there reads size"),
    (("m:Reader.read", "$size >", "$size"), "`$size >` is not one expression"),
]  # fmt: skip


def changed(source, old, new):
    """A source with one line changed, as `ast` writes it."""
    assert source.count(old) == 1
    return ast.unparse(ast.parse(source.replace(old, new)))


def test_one_place_is_changed():
    mutant = mutated(SOURCE, MUTANT)
    assert mutant == changed(SOURCE, "size > 0 and found is None", "size > 0")
    mutant = mutated(SOURCE, ("m:TABLE['two']", "(2, 2)", "()"))
    assert mutant == changed(SOURCE, "(2, 2)", "()")
    mutant = mutated(SOURCE, ("m:Reader.read", "$size = len($text)", "pass"))
    assert mutant == changed(SOURCE, "size = len(text)", "pass")
    more = ("m:Reader.read", "helper($text)", "$size", "$size = len($text)")
    assert mutated(SOURCE, more) == changed(SOURCE, "helper(text)", "size")


def test_other_names_and_line_breaks_change_nothing():
    mutant = mutated(OTHERWISE, MUTANT)
    assert "if length > 0:" in mutant
    assert mutant == changed(OTHERWISE, "and known is None", "")


@pytest.mark.parametrize(("lost", "said"), GONE)
def test_a_mutant_that_finds_nothing_says_so(lost, said):
    with pytest.raises(LookupError, match=re.escape(said)) as error:
        mutated(SOURCE, lost)
    assert str(error.value).endswith("Mend it in tests/test_mutants.py.")
    assert str(error.value).startswith(f"mutant {lost}: ")


SCRIPT = """
const first = ({ a }) => a.size + 1;
function second(sizes, n) {
  return [...sizes].map((size) => size * n + size);
}
"""
SCRIPT_OTHERWISE = """
const first = ({ b }) => b.size + 1;
function second(all, m) {
  return [...all].map(
    (one) =>
      one * m + one,
  );
}
"""


def test_a_widget_is_changed_in_one_place():
    piece = "$size * $n + $size"
    mutant = changed_script(SCRIPT, "second", piece, "$n")
    assert mutant == SCRIPT.replace("size * n + size", "n")
    mutant = changed_script(SCRIPT_OTHERWISE, "second", piece, "$n")
    assert mutant == SCRIPT_OTHERWISE.replace("one * m + one", "m")
    mutant = changed_script(SCRIPT, "second", "[...$sizes]", "$sizes")
    assert mutant == SCRIPT.replace("[...sizes]", "sizes")
    with pytest.raises(AssertionError, match="nothing is called third"):
        changed_script(SCRIPT, "third", "1", "2")
    with pytest.raises(AssertionError, match="'\\$size \\+' occurs 0 times in first"):
        changed_script(SCRIPT, "first", "$size +", "")
    with pytest.raises(AssertionError, match="'1', changes nothing"):
        changed_script(SCRIPT, "first", "1", "1")


# --- All that the tests have --------------------------------------------------------


def written():
    """The mutants in the test files, each list of which is called MUTANTS."""
    for path in sorted(Path(__file__).parent.rglob("test_*.py")):
        for statement in ast.parse(path.read_text("utf8")).body:
            if (
                isinstance(statement, ast.Assign)
                and ast.unparse(statement.targets[0]) == "MUTANTS"
                and isinstance(statement.value, ast.List)
            ):
                yield from ast.literal_eval(statement.value)


@cache
def renamed(source):
    """A module in which each variable of its functions has another name."""
    tree = ast.parse(source)
    functions = {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)}
    kept = {*names_of(tree), *functions, *dir(builtins), "self"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id not in kept:
            node.id = f"other_{node.id}"
        if isinstance(node, ast.arg) and node.arg not in kept:
            node.arg = f"other_{node.arg}"
    return ast.unparse(tree)


def test_names_of_variables_do_not_matter():
    mutants = list(written())
    assert len(mutants) > 150
    for mutant in mutants:
        source = file_of(PACKAGE, mutant).read_text("utf8")
        assert "other_" in mutated(renamed(source), mutant)
