"""Which cells of a chapter its exercises need: the others need not be played.

Read backwards from the exercises: a cell is needed if it binds a name that is read
after it, or changes what such a name holds (assigns into it, or calls a method of it
as a statement; a module that is imported is not changed by its functions). What the
body of a function reads is looked up when it is called, so every cell that binds such
a name is needed, wherever it stands. What a magic's line names is not seen.
"""

import ast
import symtable
from collections.abc import Iterable
from dataclasses import dataclass, field

from IPython.core.inputtransformer2 import TransformerManager


@dataclass
class Names:
    """What a piece of code does with the names of its notebook."""

    bound: set[str] = field(default_factory=set)
    read: set[str] = field(default_factory=set)
    read_when_called: set[str] = field(default_factory=set)
    changed: set[str] = field(default_factory=set)
    imported: set[str] = field(default_factory=set)


def needed_cells(cells: list[str], uses: dict[int, Iterable[str]]) -> set[int]:
    """Indices of the cells without which ``uses[i]``, run after cell ``i``, fail.

    ``cells`` are the sources in order; ``uses`` has pieces of code by the index of
    the cell that they follow.
    """
    known = [names_of(source) for source in cells]
    modules = set().union(*(names.imported for names in known))
    users = {i: [names_of(code) for code in codes] for i, codes in uses.items()}
    always: set[str] = set()
    while True:
        kept, wanted, called = set(), set(always), set(always)
        for i in reversed(range(len(cells))):
            for user in users.get(i, ()):
                later = user.read_when_called - user.bound
                wanted |= user.read | later
                called |= later
            names = known[i]
            if (names.bound | names.changed - modules) & wanted:
                kept.add(i)
                wanted = (wanted - names.bound) | always
                wanted |= names.read | names.read_when_called
                called |= names.read_when_called
        if called == always:
            return kept
        always = called


def names_of(source: str) -> Names:
    """The names of a cell, as IPython reads it."""
    tree = ast.parse(TransformerManager().transform_cell(source))
    found = Names()
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(ctx=ast.Store() | ast.Del()):
                found.changed |= _root(node)
            case ast.Subscript(ctx=ast.Store() | ast.Del()):
                found.changed |= _root(node)
            case ast.Expr(value=ast.Call(func=ast.Attribute() as method)):
                found.changed |= _root(method)
    early = _bound_before_read(tree)
    plain = ast.unparse(_AsGenerators().visit(tree))
    _scopes(symtable.symtable(plain, "cell", "exec"), found, called=False)
    found.changed &= found.read | found.read_when_called
    found.read -= early
    return found


class _AsGenerators(ast.NodeTransformer):
    """Comprehensions as generators: a scope of their own on every Python."""

    def visit_ListComp(self, node):
        self.generic_visit(node)
        return ast.GeneratorExp(node.elt, node.generators)

    visit_SetComp = visit_ListComp

    def visit_DictComp(self, node):
        self.generic_visit(node)
        pair = ast.Tuple([node.key, node.value], ast.Load())
        return ast.GeneratorExp(pair, node.generators)


def _bound_before_read(tree: ast.AST) -> set[str]:
    """Names that a line binds, and only later lines read."""
    apart = {
        id(name)
        for node in ast.walk(tree)
        if isinstance(node, ast.comprehension)
        for name in ast.walk(node.target)
    }
    read, bound = {}, {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and id(node) not in apart:
            lines = read if isinstance(node.ctx, ast.Load) else bound
            lines[node.id] = min(node.lineno, lines.get(node.id, node.lineno))
    return {name for name in read if bound.get(name, read[name]) < read[name]}


def _scopes(table, found: Names, called: bool) -> None:
    top = table.get_type() == "module"
    if table.get_type() == "function" and table.get_name() != "genexpr":
        called = True
    for symbol in table.get_symbols():
        name = symbol.get_name()
        if top or symbol.is_global():
            if symbol.is_assigned() or symbol.is_imported() or symbol.is_namespace():
                found.bound.add(name)
            if symbol.is_imported():
                found.imported.add(name)
            if symbol.is_referenced():
                (found.read_when_called if called else found.read).add(name)
    for inner in table.get_children():
        _scopes(inner, found, called)


def _root(node: ast.AST) -> set[str]:
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return {node.id} if isinstance(node, ast.Name) else set()
