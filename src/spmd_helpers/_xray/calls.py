"""From what a reader calls to a function that JAX can trace, and its arguments.

A bound method of a class, a partial and a step of Equinox each hold arguments of their
own. They are taken out here and handed over like all others, so that they are named,
donated and traced. No object of the reader's is called or changed.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import MethodType, ModuleType
from typing import Any

from .._core.attributes import attribute, has_method


@dataclass(frozen=True)
class Call:
    """A function and its arguments.

    Attributes:
        f: a function, plain or jitted, or one of JAX's stages.
        args, kwargs: the arguments, those included that the reader's f held.
        name: the function's name.
        first: how many of `args` the reader did not give, but f held.
        jit: options for `jax.jit`, of a plain function.
        keeps_quiet: it asks for no warnings of donated memory that nothing takes.
    """

    f: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    name: str
    first: int = 0
    jit: dict[str, Any] = field(default_factory=dict)
    keeps_quiet: bool = False


def is_jitted(f: object) -> bool:
    """Whether f can be lowered, as what jax.jit and its relatives give."""
    return not isinstance(f, dict) and callable(attribute(f, "lower"))


def call_of(
    jax: ModuleType, f: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Call:
    """The call that a reader means with f(*args, **kwargs)."""
    inner, own_args, own_kwargs = _unbound(f)
    call = Call(
        inner,
        (*own_args, *args),
        {**own_kwargs, **kwargs},
        _name(inner),
        len(own_args),
    )
    if is_filter_jitted(inner):
        return _filter_jitted(jax, call)
    if not is_jitted(inner) and callable(inner) and _holds_more(jax, call):
        return _filtered(jax, call, lambda x: _is_array(jax, x) or not callable(x))
    return call


def _unbound(f: Any) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """A jitted function, and what a method or partials of it hold.

    A plain function stays as it is: its partials are constants to `jax.jit` too.
    """
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}
    inner: Any = f
    while not isinstance(inner, dict):
        if isinstance(inner, MethodType):
            args, inner = (inner.__self__, *args), inner.__func__
        elif callable(inner) and all(
            attribute(inner, name) is not None for name in ("func", "args", "keywords")
        ):
            args, kwargs = (*inner.args, *args), {**inner.keywords, **kwargs}
            inner = inner.func
        else:
            break
    return (inner, args, kwargs) if is_jitted(inner) else (f, (), {})


def _name(f: object) -> str:
    return str(attribute(f, "__name__") or type(f).__name__)


# --- What is no array -----------------------------------------------------------------


def _holds_more(jax: ModuleType, call: Call) -> bool:
    """Whether functions are in the arguments' trees, or arrays in that of f."""
    arguments = (*call.args, *call.kwargs.values())
    inside = [x for tree in arguments for x in _below(jax, tree)]
    if any(callable(x) and not _is_array(jax, x) for x in inside):
        return True
    return _is_module(jax, call.f)


def _is_module(jax: ModuleType, f: object) -> bool:
    """Whether a function is a tree with arrays in it, such as a module."""
    return any(_is_array(jax, x) for x in _below(jax, f))


def _below(jax: ModuleType, tree: object) -> list[Any]:
    """The leaves of a tree; none of what is a leaf itself."""
    leaves: list[Any] = jax.tree.leaves(tree)
    return [] if len(leaves) == 1 and leaves[0] is tree else leaves


def _is_array(jax: ModuleType, x: object) -> bool:
    known = isinstance(x, (jax.Array, jax.ShapeDtypeStruct))
    return known or has_method(x, "__array__")


def is_filter_jitted(f: object) -> bool:
    """Whether f is a step of eqx.filter_jit, also a lowered or a compiled one."""
    return type(f).__module__.partition(".")[0] == "equinox" and (
        isinstance(attribute(f, "donate_rest"), bool)
        or type(f).__name__ in ("Lowered", "Compiled")
    )


def _filter_jitted(jax: ModuleType, call: Call) -> Call:
    """A step of eqx.filter_jit as the function in it, whose arrays are traced."""
    jitted, f = call.f, call.f.__wrapped__
    plain = replace(call, f=f, name=_name(f))
    plain = _filtered(jax, plain, lambda x: _is_array(jax, x))
    first = plain.first - call.first  # 1 where the function's own arrays come before
    donated = [
        n
        for n in range(len(plain.args))
        if (jitted.donate_first if n == first else jitted.donate_rest)
    ]
    options: dict[str, Any] = {"donate_argnums": donated} if donated else {}
    if jitted.donate_rest and plain.kwargs:
        options["donate_argnames"] = list(plain.kwargs)
    quiet = bool(attribute(jitted, "filter_warning"))
    return replace(plain, jit=options, keeps_quiet=quiet)


def _filtered(jax: ModuleType, call: Call, is_traced: Callable[[object], bool]) -> Call:
    """The same call with all that is not traced left out of the arguments.

    None stands in its place, which is no leaf, so that paths stay what they are.
    """
    f, args = call.f, call.args
    module = _is_module(jax, f)
    if module:  # its arrays are an argument too
        args = (f, *args)
    leaves, tree = jax.tree.flatten((args, call.kwargs))
    traced = [is_traced(x) for x in leaves]

    def run(*args: Any, **kwargs: Any) -> Any:
        given = iter(jax.tree.leaves((args, kwargs)))
        full = [next(given) if t else x for t, x in zip(traced, leaves, strict=True)]
        args, kwargs = tree.unflatten(full)
        out = args[0](*args[1:], **kwargs) if module else f(*args, **kwargs)
        return jax.tree.map(lambda x: x if is_traced(x) else None, out)

    run.__name__ = run.__qualname__ = call.name
    _sign(run, f, module)
    args, kwargs = tree.unflatten(
        [x if t else None for t, x in zip(traced, leaves, strict=True)]
    )
    return replace(call, f=run, args=args, kwargs=kwargs, first=call.first + module)


def _sign(run: Any, f: Any, module: bool) -> None:
    """Give run the parameters of f, by which JAX names the arguments."""
    try:
        signature = inspect.signature(f)
    except (TypeError, ValueError):
        return
    if module:
        own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
        signature = signature.replace(parameters=[own, *signature.parameters.values()])
    run.__signature__ = signature
