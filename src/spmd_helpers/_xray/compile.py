"""From whatever stands for a function to its compiled program, which is not run."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

from .._core.attributes import attribute
from .._errors import NotUnderstood
from .._runtime.compiler_log import kept_log
from .._shardings.from_jax import short
from .._tpu.refusals import does_not_fit
from .calls import Call, call_of, is_jitted
from .flax_objects import unchanged

if TYPE_CHECKING:
    from jax.stages import Compiled, Lowered, Traced

    _Stages = tuple[Traced | None, Lowered | None, Compiled]


@dataclass(frozen=True)
class Program:
    """A compiled function and what was known of it on the way.

    Attributes:
        name: the function's name.
        compiled: JAX's compiled stage, which holds the shardings and the memory.
        text: the compiled program as text.
        call: the function and all its arguments.
        traced: JAX's traced stage, which holds the jaxpr and the requested shardings of
            the outputs; None where only a later stage was given.
        lowered: JAX's lowered stage; None where only a compiled function was given.
        log: the lines that the compiler logged.
    """

    name: str
    compiled: "Compiled"
    text: str
    call: Call
    traced: "Traced | None"
    lowered: "Lowered | None"
    log: tuple[str, ...] = ()

    @property
    def pmapped(self) -> bool:
        """Whether f is what pmap gives, which has no traced stage."""
        return self.traced is None and bool(self.call.name)

    @property
    def infos(self) -> object:
        """A tree of what the caller said of each argument: `donated`."""
        return (self.traced or self.lowered or self.compiled).args_info

    @property
    def out_info(self) -> object:
        """A tree like the result, with the sharding requested for each output.

        None where only a compiled function was given.
        """
        stage = self.traced or self.lowered
        return None if stage is None else stage.out_info


def compile_it(
    jax: ModuleType,
    f: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    jit: Mapping[str, Any] | None,
) -> Program:
    """Trace, lower and compile `f` as far as that has not been done."""
    _check(jax, f, jit)
    staged = _is_staged(jax, f)
    call = Call(f, args, kwargs, "") if staged else call_of(jax, f, args, kwargs)
    with unchanged(f):
        (traced, lowered, compiled), lines = _stages(jax, call, staged, jit)
    text = _text(f, compiled)
    return Program(
        name=call.name or _module_name(text),
        compiled=compiled,
        text=text,
        call=call,
        traced=traced,
        lowered=lowered,
        log=_logged(text, lines),
    )


# What was logged of a program, by its text: JAX compiles it once, and keeps no log.
_logs: dict[int, tuple[str, ...]] = {}
_MOST_LOGS = 256


def _logged(text: str, log: tuple[str, ...]) -> tuple[str, ...]:
    """What the compiler logged of a program, now or when it compiled it before."""
    key = hash(text)
    if log:
        while len(_logs) >= _MOST_LOGS:
            del _logs[next(iter(_logs))]
        _logs[key] = log
    return log or _logs.get(key, ())


def _check(jax: ModuleType, f: Any, jit: Mapping[str, Any] | None) -> None:
    if isinstance(f, str):
        raise NotUnderstood(
            f"f={short(f)} is a text: read_hlo(text, mesh_shape) reads those"
        )
    staged = _is_staged(jax, f)
    if not staged and not callable(f):
        raise NotUnderstood(
            f"f={short(f)} is not a function: give the function itself, "
            "xray(f, x), and not its result, xray(f(x))"
        )
    if jit is not None and not isinstance(jit, Mapping):
        raise NotUnderstood(
            f"jit={short(jit)} is not a dict of options for jax.jit: "
            "give for example jit={'donate_argnums': 0}"
        )
    if jit is not None and (staged or is_jitted(call_of(jax, f, (), {}).f)):
        raise NotUnderstood(
            f"jit={short(jit)} is of no use: f is already jitted. Give the plain "
            "function, or give these options where it was jitted"
        )


def _is_staged(jax: ModuleType, f: Any) -> bool:
    """Whether f was traced, lowered or compiled already."""
    return isinstance(_stage(f), jax.stages.Traced) or hasattr(_stage(f), "as_text")


def _stage(f: Any) -> Any:
    """JAX's stage; those of Flax and Equinox hold it."""
    inner = (attribute(f, name) for name in ("compiled", "lowered", "traced"))
    return next((stage for stage in inner if stage is not None), f)


def _stages(
    jax: ModuleType, call: Call, staged: bool, jit: Mapping[str, Any] | None
) -> "tuple[_Stages, tuple[str, ...]]":
    """JAX's stages of a call, which those of Flax and Equinox hold; and the log."""
    f, traced = _stage(call.f) if staged else call.f, None
    if staged and hasattr(f, "memory_analysis"):
        return (None, None, f), ()
    try:
        if not staged:
            f = f if is_jitted(f) else jax.jit(f, **(call.jit or jit or {}))
            # What pmap gives has no traced stage.
            begin = f.trace if hasattr(f, "trace") else f.lower
            f = _stage(begin(*call.args, **call.kwargs))
        traced = f if isinstance(f, jax.stages.Traced) else None
        lowered = f if traced is None else traced.lower()
        with kept_log() as log:
            compiled = lowered.compile()
        return (traced, lowered, compiled), tuple(log)
    except Exception as error:
        refused = does_not_fit(jax, error, call.args, call.kwargs, traced)
        if refused is not None:
            raise refused from None
        name = call.name or "f"
        if "different trace level" in str(error):  # Flax's words
            error.add_note(
                "A module that the function changes has to be its argument: give xray "
                "the step itself, decorated with nnx.jit, as in xray(step, model, x). "
                "The module is as it was before."
            )
        error.add_note(f"xray was tracing and compiling {name}, not running it.")
        raise


def _text(f: Any, compiled: "Compiled") -> str:
    text = compiled.as_text()
    if text is None:
        raise NotUnderstood(
            f"f={short(f)}: the compiler gives no text of this program, and xray "
            "reads nothing else; compile for cpu, gpu or tpu"
        )
    return text


def _module_name(text: str) -> str:
    match = re.match(r"HloModule (?:jit_|pmap_)?([^\s,]+)", text)
    return match.group(1) if match else "f"
