"""What belongs to Flax NNX: steps that take and give modules, and modules themselves.

Nothing here imports Flax: where it has not been imported, there are no such objects.
"""

import inspect
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import CodeType, MethodType
from typing import Any

from .._core.attributes import attribute
from .calls import Call

_SLOTS = ("_raw_value", "_trace_state", "_var_metadata")  # of a variable of NNX


@contextmanager
def unchanged(f: Any) -> Iterator[None]:
    """Put back what tracing f does to the modules of NNX that f can reach.

    A step of nnx.jit that a traced function calls takes its modules apart, and does
    not put them together again when JAX raises.
    """
    saved = [(x, _state(x)) for root in _reached(f) for x in _objects(root)]
    try:
        yield
    finally:
        for x, state in saved:
            _restore(x, state)


def _state(x: Any) -> dict[str, Any]:
    state = {name: attribute(x, name) for name in _SLOTS if hasattr(type(x), name)}
    return state or dict(vars(x))


def _restore(x: Any, state: dict[str, Any]) -> None:
    own = attribute(x, "__dict__")
    if own is not None and not any(hasattr(type(x), name) for name in _SLOTS):
        own.clear()
        own.update(state)
        return
    for name, value in state.items():
        object.__setattr__(x, name, value)


def _objects(root: Any) -> list[Any]:
    """The modules and variables of NNX in an object."""
    nnx: Any = sys.modules.get("flax.nnx")
    if nnx is None or not isinstance(root, (nnx.Module, nnx.Variable, nnx.Optimizer)):
        return []
    kinds = tuple(
        kind
        for kind in (attribute(nnx, name) for name in ("Pytree", "Object", "Variable"))
        if isinstance(kind, type)
    )
    return [x for _, x in nnx.iter_graph(root) if isinstance(x, kinds)]


def _reached(f: Any, depth: int = 3) -> Iterator[Any]:
    """What a function can reach: its own object, its partials, names in its code."""
    yield f
    if depth == 0:
        return
    near: list[Any] = [attribute(f, "__self__"), attribute(f, "__wrapped__")]
    if isinstance(f, partial):
        near += [*f.args, *f.keywords.values(), f.func]
    function = f.__func__ if isinstance(f, MethodType) else f
    if inspect.isfunction(function):
        near += function.__defaults__ or ()
        near += (
            attribute(cell, "cell_contents") for cell in function.__closure__ or ()
        )
        names = _names(function.__code__)
        near += (function.__globals__.get(name) for name in names)
    for x in near:
        if isinstance(x, (list, tuple)):
            yield from x
        elif isinstance(x, dict):
            yield from x.values()
        elif x is not None:
            yield from _reached(x, depth - 1)


def _names(code: CodeType) -> set[str]:
    inner = (c for c in code.co_consts if isinstance(c, CodeType))
    return set(code.co_names).union(*map(_names, inner))


# --- Steps of nnx.jit -----------------------------------------------------------------


def takes_modules(call: Call) -> bool:
    """Whether a call is of nnx.jit, which hands its modules on as hidden results."""
    wrapped = attribute(call.f, "jit_wrapped", call.f)
    module = type(wrapped).__module__.startswith("flax.nnx")
    return module and type(wrapped).__name__ in ("JitWrapped", "SimpleJitWrapped")


def is_module(x: object) -> bool:
    """Whether x is a module of NNX, or another of its objects."""
    return bool(_objects(x))


def variables(arguments: Sequence[Any]) -> list[list[tuple[str, Any]] | None]:
    """For each argument the paths and variables in it, as nnx.jit flattens them.

    A variable that an argument before it has too is handed over once. None for an
    argument that is no module.
    """
    nnx: Any = sys.modules["flax.nnx"]
    taken: set[int] = set()
    lists: list[list[tuple[str, Any]] | None] = []
    for argument in arguments:
        if not _objects(argument):
            lists.append(None)
            continue
        own = []
        for path, x in nnx.to_flat_state(nnx.state(argument)):
            variable = _at(argument, path)
            if variable is None or id(variable) not in taken:
                own.append(("".join(map(_key, path)), x))
            taken.add(id(x if variable is None else variable))
        lists.append(own)
    return lists


def annotation(variable: Any) -> tuple[Any, ...] | None:
    """The mesh axes that a variable is annotated with, one entry a dimension."""
    get = attribute(variable, "get_metadata")
    metadata = get() if callable(get) else {}
    for name in ("out_sharding", "sharding", "sharding_names"):
        spec = metadata.get(name) if isinstance(metadata, dict) else None
        if spec is not None:
            try:
                return tuple(spec)
            except TypeError:
                return None
    return None


def _key(key: object) -> str:
    return f".{key}" if isinstance(key, str) and key.isidentifier() else f"[{key!r}]"


def _at(x: Any, path: Sequence[object]) -> Any:
    """The variable itself that stands at a path of a module; None if unknown."""
    for key in path:
        by_name = attribute(x, key) if isinstance(key, str) else None
        if by_name is None:
            try:
                x = x[key]
            except (TypeError, LookupError):
                return None
        else:
            x = by_name
    return x
