"""From whatever stands for a function to its compiled program, which is not run."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .._errors import NotUnderstood
from .._tpu.refusals import does_not_fit


@dataclass(frozen=True)
class Program:
    """A compiled function and what was known of it on the way.

    Attributes:
        name: the function's name.
        compiled: JAX's compiled stage, which holds the shardings and the memory.
        text: the compiled program as text.
        traced: JAX's traced stage, which holds the jaxpr and what was asked of the
            outputs; None where only a later stage was given.
        infos: a tree of what the caller said of each argument: `donated`.
        asked: a tree like the result, with the sharding that was asked for of each
            output; None where only a compiled function was given.
    """

    name: str
    compiled: Any
    text: str
    traced: Any
    infos: Any
    asked: Any


def compile_it(
    jax: Any, f: Any, args: tuple, kwargs: dict, jit: Mapping[str, Any] | None
) -> Program:
    """Trace, lower and compile `f` as far as that has not been done."""
    traced, lowered, compiled, name = _stages(jax, f, args, kwargs, jit)
    # Flax's stages hold JAX's.
    traced = getattr(traced, "traced", traced)
    lowered = getattr(lowered, "lowered", lowered)
    compiled = getattr(compiled, "compiled", compiled)
    text = compiled.as_text()
    told = [stage for stage in (traced, lowered) if stage is not None]
    return Program(
        name=name or _module_name(text),
        compiled=compiled,
        text=text,
        traced=traced,
        infos=getattr([*told, compiled][0], "args_info", None),
        asked=getattr(told[0], "out_info", None) if told else None,
    )


def _stages(
    jax: Any, f: Any, args: tuple, kwargs: dict, jit: Mapping[str, Any] | None
) -> tuple[Any, Any, Any, str | None]:
    """The traced, lowered and compiled stage, and the function's name."""
    if isinstance(f, str):
        raise NotUnderstood(
            f"f={_short(f)} is a text: read_hlo(text, mesh_shape) reads those"
        )
    is_traced = isinstance(getattr(f, "traced", f), jax.stages.Traced)
    staged = is_traced or hasattr(f, "as_text")
    if not staged and not callable(f):
        raise NotUnderstood(
            f"f={_short(f)} is not a function: give the function itself, "
            "xray(f, x), and not its result, xray(f(x))"
        )
    if jit is not None and not isinstance(jit, Mapping):
        raise NotUnderstood(
            f"jit={_short(jit)} is not a dict of options for jax.jit: "
            "give for example jit={'donate_argnums': 0}"
        )
    if jit is not None and (staged or hasattr(f, "lower")):
        raise NotUnderstood(
            f"jit={_short(jit)} is of no use: f is already jitted. Give the plain "
            "function, or give these options where it was jitted"
        )
    name = None if staged else getattr(f, "__name__", type(f).__name__)
    traced = None
    try:
        if hasattr(f, "memory_analysis"):
            return None, None, f, name
        traced = f if is_traced else None
        if not staged:
            f = f if hasattr(f, "lower") else jax.jit(f, **(jit or {}))
            if hasattr(f, "trace"):  # what pmap gives has no such stage
                traced = f.trace(*args, **kwargs)
        if traced is not None:
            lowered = traced.lower()
        else:
            lowered = f if staged else f.lower(*args, **kwargs)
        return traced, lowered, lowered.compile(), name
    except Exception as error:
        too_large = does_not_fit(jax, error, args, kwargs, traced)
        if too_large is not None:
            raise too_large from None
        error.add_note(f"xray was tracing and compiling {name or 'f'}, not running it.")
        raise


def _short(x: Any) -> str:
    words = " ".join(repr(x).split())
    return words if len(words) <= 60 else words[:57] + "…"


def _module_name(text: str) -> str:
    match = re.match(r"HloModule (?:jit_|pmap_)?([^\s,]+)", text)
    return match.group(1) if match else "f"
