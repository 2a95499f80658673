"""Puts back what a submission has given another meaning, and says what it was.

A sealed thing is an attribute of a module or of a class, or the code of a function.
Only functions and classes are sealed: a module may change its own data.
"""

import builtins
import importlib
import sys
import types
from collections.abc import Iterable
from typing import Any

from .block import global_names

_PUBLIC = ("jax", "numpy", "flax", "optax")
# Of Python's own library what checks, and what runs them, use.
_LIBRARY = (
    *("ast", "collections", "contextlib", "dataclasses", "functools", "importlib"),
    *("inspect", "itertools", "json", "math", "numbers", "operator", "os", "random"),
    *("re", "sys", "threading", "time", "traceback", "types"),
)
_NOTHING = object()
# What Python itself sets on a class later than when it is made.
_BY_PYTHON = {"__abstractmethods__", "_abc_impl", "__annotations_cache__"}
_BY_PYTHON |= {"__annotations__", "__static_attributes__", "__annotate_func__"}
_OWN = ("spmd_helpers", "spmd_exercises", "spmd_grading")


# What a function does: its code, its defaults, those of its keyword arguments.
Code = tuple[types.CodeType, tuple[Any, ...] | None, dict[str, Any] | None]


class Seal:
    """What the package, the builtins and the array libraries were at the start."""

    def __init__(self) -> None:
        self._modules: dict[str, types.ModuleType] = {}
        self._attributes: list[tuple[str, types.ModuleType | type, str, object]] = []
        self._codes: list[tuple[str, types.FunctionType, Code]] = []
        self._own: list[tuple[str, type, set[str]]] = []  # class -> its attributes
        self._add(builtins)
        for name in _LIBRARY:
            self._add(importlib.import_module(name))

    def take(self) -> None:
        """Seal the modules that were loaded since; call it before students' code."""
        for name, module in list(sys.modules.items()):
            top, *rest = name.split(".")
            private = any(part.startswith("_") for part in rest)
            wanted = top in _OWN or (top in _PUBLIC and not private)
            if wanted and name not in self._modules:
                self._modules[name] = module
                self._add(module)

    def _add(self, module: types.ModuleType) -> None:
        own = module.__name__.partition(".")[0] in _OWN
        for name, value in list(vars(module).items()):
            if name == "_" or not callable(value):
                continue  # "_" is what IPython calls the last result
            where = f"{module.__name__}.{name}"
            self._attributes.append((where, module, name, value))
            if own and isinstance(value, type) and value.__module__ == module.__name__:
                self._own.append((where, value, set(vars(value))))
                for inner, method in list(vars(value).items()):
                    if isinstance(method, types.FunctionType | property | classmethod):
                        named = f"{where}.{inner}"
                        self._attributes.append((named, value, inner, method))
                        self._keep_code(named, method)
            elif own:
                self._keep_code(where, value)

    def _keep_code(self, where: str, value: object) -> None:
        if isinstance(value, types.FunctionType):
            self._codes.append((where, value, code_of(value)))

    def restore(self) -> list[str]:
        """Put everything back; returns the names of what was another."""
        changed = []
        for name, module in self._modules.items():
            if sys.modules.get(name) is not module:
                sys.modules[name] = module
                changed.append(name)
        for where, owner, name, value in self._attributes:
            if vars(owner).get(name, _NOTHING) is not value:
                setattr(owner, name, value)
                changed.append(where)
        for where, owner, names in self._own:
            for name in set(vars(owner)) - names - _BY_PYTHON:
                delattr(owner, name)
                changed.append(f"{where}.{name}")
        for where, function, code in self._codes:
            if code_of(function) != code:
                put_code(function, code)
                changed.append(where)
        return [name.removeprefix("builtins.") for name in changed]


def code_of(function: types.FunctionType) -> Code:
    """What a function does, as far as it can be set from outside."""
    return (function.__code__, function.__defaults__, function.__kwdefaults__)


def put_code(function: types.FunctionType, code: Code) -> None:
    """Give a function back what `code_of` had read."""
    function.__code__, function.__defaults__, function.__kwdefaults__ = code


class GivenNames:
    """The names that the release's cells have set, and the values they had then."""

    def __init__(self, names: dict[str, object]) -> None:
        self._names = names
        self._given: dict[str, tuple[object, Code | None]] = {}

    def set_by_release(self, stored: Iterable[str]) -> None:
        """Note the values of names that a cell of the release has stored."""
        for name in stored:
            if name in self._names:
                value = self._names[name]
                code = code_of(value) if isinstance(value, types.FunctionType) else None
                self._given[name] = (value, code)

    def belong_to_author(self, names: Iterable[str]) -> None:
        """Forget names that the submission has set: they are the author's now."""
        for name in names:
            self._given.pop(name, None)

    def put_back(self, loaded: Iterable[str]) -> tuple[dict[str, object], list[str]]:
        """Give the names that a check uses the values of the release.

        So are those that their functions use. Returns what was there instead, and
        which names it was.
        """
        before: dict[str, object] = {}
        visited: set[str] = set()
        todo = list(loaded)
        while todo:
            name = todo.pop()
            if name in visited or name.startswith("__"):
                continue
            visited.add(name)
            now = self._names.get(name, _NOTHING)
            if name in self._given:
                value, code = self._given[name]
                if now is not value:
                    before[name] = now
                    self._names[name] = value
                if isinstance(value, types.FunctionType) and code is not None:
                    if code_of(value) != code:
                        before.setdefault(name, value)
                        put_code(value, code)
                    todo += global_names(value.__code__, "LOAD_NAME", "LOAD_GLOBAL")
            elif name in vars(builtins) and now is not _NOTHING:
                before[name] = now
                del self._names[name]
        return before, sorted(before)

    def give_again(self, before: dict[str, object]) -> None:
        """After the check the author's later cells see their own values again."""
        for name, value in before.items():
            if value is _NOTHING:
                self._names.pop(name, None)
            else:
                self._names[name] = value
