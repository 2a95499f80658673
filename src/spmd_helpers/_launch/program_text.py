"""A function of a notebook as a program: its text, and what it uses from around it."""

import ast
import contextlib
import inspect
import re
import symtable
import sys
import textwrap
from collections.abc import Callable, Mapping
from types import FunctionType, ModuleType
from typing import TypeGuard

from .._errors import NotUnderstood

_PLAIN = (bool, int, float, complex, str, bytes, type(None), tuple, list, dict, set)


def text_of(program: Callable[[], object] | str) -> str:
    """The text of a program that does what `program` does, in a fresh Python.

    A text is taken as it is. For a function come first the imports that it needs, then
    the numbers and texts, then the functions it calls, its own text, and a call.

    >>> text_of("  print(1)")
    'print(1)'

    Args:
        program: a text, or a function that takes no arguments.

    Returns:
        A text that compiles.

    Raises:
        NotUnderstood: it is neither, its text can't be found, it wants arguments, or it
            uses a value that can't be written down, such as an array or a mesh.
    """
    if isinstance(program, str):
        return textwrap.dedent(program)
    main = inspect.unwrap(program) if callable(program) else program
    if not isinstance(main, FunctionType) or main.__name__ == "<lambda>":
        raise NotUnderstood(
            f"launch(program={_short(program)}): give a function made with `def`, or"
            " the text of a program"
        )
    needed = [
        name
        for name, one in inspect.signature(main).parameters.items()
        if one.default is one.empty
        and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
    ]
    if needed:
        raise NotUnderstood(
            f"launch({main.__name__}): a program takes no arguments, and"
            f" {main.__name__} wants {', '.join(needed)}: set them inside it"
        )
    if main.__closure__:
        raise NotUnderstood(
            f"launch({main.__name__}): it is made inside another function and uses its"
            f" {', '.join(main.__code__.co_freevars)}: define it at the top of a cell"
        )
    imports: dict[str, str] = {}
    values: dict[str, str] = {}
    functions: dict[str, str] = {}
    _collect(main, imports, values, functions)
    parts = ["\n".join(group.values()) for group in (imports, values) if group]
    parts += list(functions.values())
    return "\n\n".join([*parts, f"{main.__name__}()"]) + "\n"


def _collect(
    function: FunctionType,
    imports: dict[str, str],
    values: dict[str, str],
    functions: dict[str, str],
) -> None:
    """Everything that a function uses, in an order in which it can be run."""
    text = _source(function)
    functions[function.__name__] = ""  # known, so that it may call itself
    for name in _names_used(text):
        around = function.__globals__
        if name not in around or name in imports or name in values or name in functions:
            continue
        value = around[name]
        own = inspect.unwrap(value) if callable(value) else value
        if isinstance(value, ModuleType):
            imports[name] = f"import {value.__name__}" + (
                "" if value.__name__ == name else f" as {name}"
            )
        elif _is_own_function(name, value, own, around):
            _collect(own, imports, values, functions)
        elif place := _importable(value):
            short = "" if place[1] == name else f" as {name}"
            imports[name] = f"from {place[0]} import {place[1]}{short}"
        elif _is_plain(value):
            values[name] = f"{name} = {value!r}"
        else:
            kind = type(value).__name__
            raise NotUnderstood(
                f"{function.__name__} uses `{name}`, a {kind} of this kernel, and other"
                f" processes don't have it: make it inside {function.__name__}"
            )
    del functions[function.__name__]
    functions[function.__name__] = text


def _is_own_function(
    name: str, value: object, own: object, around: Mapping[str, object]
) -> TypeGuard[FunctionType]:
    """Whether the text of `own` makes what is called `name`, decorated or not."""
    if not isinstance(own, FunctionType) or own.__globals__ is not around:
        return False
    as_written = value is own or _source(own).startswith("@")
    return own.__name__ == name and as_written


def _source(function: FunctionType) -> str:
    """The text of a function, where Python has kept it."""
    with contextlib.suppress(OSError, TypeError):
        text = textwrap.dedent(inspect.getsource(function)).rstrip()
        # Texts that are run without a file have one name in common, "<string>".
        name = function.__code__.co_name
        if name == "<lambda>" or re.search(rf"^(async )?def {name}\b", text, re.M):
            return text
    raise NotUnderstood(
        f"launch: the text of {function.__name__} was not found: define it in a cell "
        "or a file, or give the program as a text"
    )


def _names_used(text: str) -> list[str]:
    """The names that a text takes from around it, its decorators' too."""
    top = symtable.symtable(text, "<program>", "exec")
    names = [s.get_name() for s in top.get_symbols() if s.is_referenced()]
    scopes = list(top.get_children())
    while scopes:
        scope = scopes.pop()
        names += [s.get_name() for s in scope.get_symbols() if s.is_global()]
        scopes += scope.get_children()
    return sorted(set(names))


def _importable(value: object) -> tuple[str, str] | None:
    """(module, name) of what a library gives, by the shortest public way."""
    name, home = getattr(value, "__name__", None), getattr(value, "__module__", None)
    if not isinstance(name, str) or not isinstance(home, str) or home == "__main__":
        return None
    root = home.partition(".")[0]
    public = [
        key
        for key, module in list(sys.modules.items())
        if key.partition(".")[0] == root
        and "._" not in key
        and getattr(module, "__dict__", {}).get(name) is value
    ]
    if public:
        return min(public, key=lambda key: (key.count("."), len(key), key)), name
    there = vars(sys.modules[home]).get(name) if home in sys.modules else None
    return (home, name) if there is value else None


def _is_plain(value: object) -> bool:
    if not isinstance(value, _PLAIN):
        return False
    try:
        return bool(ast.literal_eval(repr(value)) == value)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return False


def _short(value: object) -> str:
    words = repr(value)
    return words if len(words) <= 60 else type(value).__name__
