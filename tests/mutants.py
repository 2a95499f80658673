"""Copies of the package that are broken in one place, which the tests have to notice.

A mutant is (where, old, new). `where` names what is changed: a module, then a function,
a method or a table in it, then perhaps a key of the table:

    "_hlo.labels:phase", "_hlo.integers:Reader._made", "_hlo.opcodes:OPCODES['copy']"

`old` is an expression or a statement that occurs there once; `new` takes its place.
Syntax trees are compared, not texts: line breaks, quotes and comments don't matter.
`$name` is any variable, the same one wherever it occurs: what it is called doesn't
matter either. A fourth text, which occurs there once too, may name more of them.
"""

import ast
import builtins
import difflib
import importlib
import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

PACKAGE = Path(__file__).parent.parent / "src" / "spmd_helpers"
COPY = "spmd_helpers_copy"  # what it is imported as
Mutant = tuple[str, ...]
_VARIABLE = "any_variable_"  # a name that begins so was written with `$`
_IGNORED = ("ctx", "kind", "type_comment")


def broken_package(tmp_path, monkeypatch, mutant: Mutant | None, *wanted: str):
    """Modules of a copy of the package.

    `mutant` is what is changed in it, None for nothing; `wanted` are the modules that
    are returned, such as "_hlo.parser".
    """
    package = tmp_path / COPY
    copy = shutil.ignore_patterns("__pycache__", "js", "measurements", "*.npz", "*.txt")
    shutil.copytree(PACKAGE, package, ignore=copy)
    (package / "__init__.py").write_text("")
    if mutant:
        path = file_of(package, mutant)
        path.write_text(mutated(path.read_text("utf8"), mutant), "utf8")
    monkeypatch.syspath_prepend(tmp_path)
    try:
        return [importlib.import_module(f"{COPY}.{module}") for module in wanted]
    finally:
        for module in [m for m in sys.modules if m.partition(".")[0] == COPY]:
            del sys.modules[module]


def answers_all(monkeypatch, test: str, copy, names, checks) -> bool:
    """Whether checks of a test file pass on a copy of what they ask.

    Args:
        monkeypatch: pytest's fixture.
        test: the name of the file's module.
        copy: the modules of the copy.
        names: what the file has imported of them, and calls.
        checks: pairs of a check and its arguments.
    """
    for module in copy:
        for name in filter(vars(module).__contains__, names):
            monkeypatch.setattr(sys.modules[test], name, getattr(module, name))
    try:
        for check, row in checks:
            check(*row)
    except (Exception, pytest.fail.Exception):
        return False
    return True


def both_ways(mutants, right, *wanted: str, error=Exception):
    """The two tests of a file with mutants: each is noticed, and a copy is right.

    Args:
        mutants: the mutants of the file.
        right: raises or returns False where a copy of the modules answers wrongly.
        wanted: names of the modules.
        error: what a wrong answer raises.
    """

    @pytest.mark.parametrize("mutant", mutants)
    def is_noticed(broken_package, mutant):
        copy = broken_package(mutant, *wanted)
        try:
            passes = right(*copy) is not False
        except error:
            return
        assert not passes, f"no answer shows the mutant {mutant}"

    def is_right(broken_package):
        assert right(*broken_package(None, *wanted)) is not False

    return is_noticed, is_right


def mutated(source: str, mutant: Mutant) -> str:
    """The source of the mutant's module with its change."""
    tree = ast.parse(source)
    scope = _scope(tree, mutant)
    old, new, *near = (_pattern(text, mutant) for text in mutant[1:])
    if isinstance(old, ast.Expr) and isinstance(new, ast.Expr):
        old, new = old.value, new.value
    variables: dict[str, str] = {}
    for one in near:
        _only(one.value if isinstance(one, ast.Expr) else one, scope, variables, mutant)
    node = _only(old, scope, variables, mutant)
    _check_names(new, {*_names_in(old), *names_of(tree), *variables}, mutant)
    put = _filled(new, variables)
    if ast.dump(put) == ast.dump(node):
        _refuse(mutant, "nothing is changed")
    return ast.unparse(_Put(node, put).visit(tree))


def _refuse(mutant: Mutant, why: str) -> NoReturn:
    test = os.environ.get("PYTEST_CURRENT_TEST", "").partition("::")[0]
    raise LookupError(f"mutant {mutant}: {why}. Mend it in {test or 'its test file'}.")


# --- Where it is changed ------------------------------------------------------------


def file_of(package: Path, mutant: Mutant) -> Path:
    module = mutant[0].partition(":")[0]
    path = package.joinpath(*module.split(".")).with_suffix(".py")
    if not path.exists():
        _refuse(mutant, f"the package has no module {module!r}")
    return path


def _scope(tree: ast.Module, mutant: Mutant) -> ast.AST:
    """The function, the class or the value that the mutant names."""
    path, _, key = mutant[0].partition(":")[2].partition("[")
    node: ast.AST = tree
    for name in path.split("."):
        names = dict(_named(node))
        if name not in names:
            near = " or ".join(difflib.get_close_matches(name, names))
            question = f"; is it {near} now?" if near else ""
            _refuse(mutant, f"nothing there is called {name!r}{question}")
        node = names[name]
    return _entry(node, ast.literal_eval(key.rstrip("]")), mutant) if key else node


def _named(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """What is defined in a module, a class or a function, by its name."""
    for statement in getattr(node, "body", []):
        if isinstance(statement, ast.FunctionDef | ast.ClassDef):
            yield statement.name, statement
        elif isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value:
            stored = getattr(statement, "targets", None) or [statement.target]
            for target in stored:
                yield from ((name, statement.value) for name in _names_in(target))


def _entry(table: ast.AST, key: object, mutant: Mutant) -> ast.AST:
    for name, value in zip(table.keys, table.values, strict=True):
        if isinstance(name, ast.Constant) and name.value == key:
            return value
    _refuse(mutant, f"the table has no key {key!r}")


# --- What is changed ----------------------------------------------------------------


def _pattern(text: str, mutant: Mutant) -> ast.stmt:
    try:
        [statement] = ast.parse(re.sub(r"\$(?=[a-z_])", _VARIABLE, text)).body
    except (SyntaxError, ValueError):
        _refuse(mutant, f"`{text}` is not one expression or statement")
    for node in ast.walk(statement):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            node.value = node.value.replace(_VARIABLE, "$")
    return statement


def _only(
    pattern: ast.AST, scope: ast.AST, variables: dict[str, str], mutant: Mutant
) -> ast.AST:
    """The one node that is like a pattern. The names of its variables are added."""
    places = []
    for node in ast.walk(scope):
        names = dict(variables)
        if _is_like(pattern, node, names):
            places.append((node, names))
    if len(places) != 1:
        text = ast.unparse(pattern).replace(_VARIABLE, "$")
        _refuse(mutant, f"`{text}` occurs there {len(places)} times, not once")
    [(node, names)] = places
    variables.update(names)
    return node


def _is_like(pattern: object, node: object, variables: dict[str, str]) -> bool:
    if type(pattern) is not type(node):
        return False
    if isinstance(pattern, str) and pattern.startswith(_VARIABLE):
        return variables.setdefault(pattern, node) == node
    if isinstance(pattern, list):
        pairs = zip(pattern, node, strict=False)
        return len(pattern) == len(node) and all(_is_like(*p, variables) for p in pairs)
    if not isinstance(pattern, ast.AST):
        return pattern == node
    return all(
        _is_like(getattr(pattern, field), getattr(node, field), variables)
        for field in pattern._fields
        if field not in _IGNORED
    )


def _check_names(new: ast.AST, known: set[str], mutant: Mutant) -> None:
    """A mutant that reads a name that is gone would die of that alone."""
    unknown = {*_names_in(new)} - known - {*dir(builtins)}
    if unknown:
        names = ", ".join(sorted(unknown)).replace(_VARIABLE, "$")
        _refuse(mutant, f"what is put there reads {names}, which is unknown there")


def _names_in(pattern: ast.AST) -> Iterator[str]:
    return (node.id for node in ast.walk(pattern) if isinstance(node, ast.Name))


def names_of(tree: ast.Module) -> Iterator[str]:
    """The names that a module defines or imports."""
    yield from dict(_named(tree))
    for statement in tree.body:
        if isinstance(statement, ast.Import | ast.ImportFrom):
            yield from (one.asname or one.name for one in statement.names)


def _filled(pattern: ast.AST, variables: dict[str, str]) -> ast.AST:
    """A pattern with the names that its variables have in the source."""
    for node in ast.walk(pattern):
        for field, value in ast.iter_fields(node):
            if isinstance(value, str) and value in variables:
                setattr(node, field, variables[value])
    return pattern


class _Put(ast.NodeTransformer):
    def __init__(self, node: ast.AST, put: ast.AST) -> None:
        self.node, self.put = node, put

    def visit(self, node: ast.AST) -> ast.AST:
        return self.put if node is self.node else self.generic_visit(node)
