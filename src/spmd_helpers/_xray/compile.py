"""From whatever stands for a function to its compiled program, which is not run."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

from .._errors import NotUnderstood
from .._tpu.refusals import does_not_fit

if TYPE_CHECKING:
    from jax.stages import Compiled, Lowered, Traced


@dataclass(frozen=True)
class Program:
    """A compiled function and what was known of it on the way.

    Attributes:
        name: the function's name.
        compiled: JAX's compiled stage, which holds the shardings and the memory.
        text: the compiled program as text.
        traced: JAX's traced stage, which holds the jaxpr and the requested shardings of
            the outputs; None where only a later stage was given.
        infos: a tree of what the caller said of each argument: `donated`.
        out_info: a tree like the result, with the sharding that was requested for each
            output; None where only a compiled function was given.
    """

    name: str
    compiled: "Compiled"
    text: str
    traced: "Traced | None"
    infos: object
    out_info: object


def compile_it(
    jax: ModuleType,
    f: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    jit: Mapping[str, Any] | None,
) -> Program:
    """Trace, lower and compile `f` as far as that has not been done."""
    traced, lowered, compiled, name = _stages(jax, f, args, kwargs, jit)
    # Flax's stages hold JAX's.
    traced = getattr(traced, "traced", traced)
    lowered = getattr(lowered, "lowered", lowered)
    compiled = getattr(compiled, "compiled", compiled)
    text = compiled.as_text()
    if text is None:
        raise NotUnderstood(
            f"f={_short(f)}: the compiler gives no text of this program, and xray "
            "reads nothing else; compile for cpu, gpu or tpu"
        )
    stages = [stage for stage in (traced, lowered) if stage is not None]
    return Program(
        name=name or _module_name(text),
        compiled=compiled,
        text=text,
        traced=traced,
        infos=getattr([*stages, compiled][0], "args_info", None),
        out_info=getattr(stages[0], "out_info", None) if stages else None,
    )


def _stages(
    jax: ModuleType,
    f: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    jit: Mapping[str, Any] | None,
) -> "tuple[Traced | None, Lowered | None, Compiled, str | None]":
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


def _short(x: object) -> str:
    words = " ".join(repr(x).split())
    return words if len(words) <= 60 else words[:57] + "…"


def _module_name(text: str) -> str:
    match = re.match(r"HloModule (?:jit_|pmap_)?([^\s,]+)", text)
    return match.group(1) if match else "f"
