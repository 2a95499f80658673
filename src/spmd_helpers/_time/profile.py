"""The time of a step on real devices, beside what was predicted."""

import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from .._core.validate import as_integer
from .._errors import NotUnderstood
from .._hardware.chips import Chip
from .._hlo.validate import read_module
from .._runtime.require import require_jax
from .._xray.calls import is_jitted
from .._xray.compile import Program, compile_it
from .._xray.leaves import carried
from .._xray.xray import xray
from .measured import measured
from .record import StepTime
from .step_time import step_time
from .trace import read_runs

if TYPE_CHECKING:
    import os

    from jax.sharding import Mesh

    from .._xray.xray import XRay

_WARM_UP = 2  # steps that are not traced: the first compiles, and fills caches


def profile(
    f: Any,
    *args: Any,
    steps: int = 3,
    carry: "Mapping[int, int] | int | None" = None,
    folder: "str | os.PathLike[str] | None" = None,
    chip: "str | Chip | None" = None,
    tokens: int | None = None,
    model_flops: float | None = None,
    rates: "Mapping[str, Any] | None" = None,
    mesh: "Mesh | None" = None,
    jit: "Mapping[str, Any] | None" = None,
    **kwargs: Any,
) -> StepTime:
    """Run a few steps on the GPUs here and say where their time goes.

    The function runs `steps` times, and twice before that, under JAX's profiler. Each
    kernel and each collective is matched with its instruction in the compiled program
    and so with the line of your code; what `step_time` predicts of the same program
    stands beside it.

        report = spmd.profile(step, state, batch, carry={0: 0}, tokens=16 * 2048)
        print(report)                   # by line: measured, and predicted
        report.exposed[0].source        # the collective that kernels wait for longest

    Args:
        f: a function, plain or jitted.
        args: arrays, as f takes them. Those that f donates are used up, as in any call
            of f.
        steps: how many are traced.
        carry: which outputs are arguments of the next step, as `xray` takes it:
            {0: 0}. Without it each step gets the same arguments, so what f donates
            has to be among them.
        folder: where to keep the trace, for XProf or TensorBoard. Without it, it is
            deleted.
        chip: as `step_time` takes it.
        tokens: in one step, on all devices together, for `tokens_per_s`.
        model_flops: FLOPs of one step that the model needs, on all devices together.
        rates: your own, for the prediction, as `step_time` takes them.
        mesh: the Mesh whose axes to name, as `xray` takes it.
        jit: options for `jax.jit` if f is plain.
        kwargs: f's keyword arguments.

    Returns:
        A `StepTime` whose `how` is 'measured', of this process's first GPU; its
        `predicted` is the prediction. A collective runs until the slowest device of
        its group has come, so its seconds contain that wait.

    Raises:
        NotUnderstood: the devices are not GPUs, an argument is no array, `steps` is
            not an integer from 1 on, or f donates an argument that `carry` does not
            give back, or `carry` names outputs or arguments that there are not.

    Used in the chapter on real cards.
    """
    jax = require_jax()
    if as_integer(steps, 1) is None:
        raise NotUnderstood(f"steps={steps!r} is not an integer of 1 or more: give 3")
    _check_arrays(jax, args, kwargs)
    program = compile_it(jax, f, args, kwargs, jit)
    _check_devices(jax, program.compiled)
    given = carried(carry)
    _check_donated(jax, program, given)
    report = xray(program.compiled, mesh=mesh)
    predicted = step_time(
        report, chip, tokens=tokens, model_flops=model_flops, rates=rates
    )
    run = f if is_jitted(f) else jax.jit(f, **(jit or {}))
    with tempfile.TemporaryDirectory() as own:
        where = Path(own if folder is None else folder)
        args = _run(jax, run, _WARM_UP, args, kwargs, given)
        with jax.profiler.trace(str(where)):
            _run(jax, run, steps, args, kwargs, given)
        runs = read_runs(jax, where, program_name(report.hlo))
    return measured(read_module(report.hlo), predicted, runs)


def read_trace(
    path: "str | os.PathLike[str]",
    report: "XRay | str",
    chip: "str | Chip | None" = None,
    *,
    tokens: int | None = None,
    model_flops: float | None = None,
    rates: "Mapping[str, Any] | None" = None,
) -> StepTime:
    """Say where the time of a step went, from a trace that was recorded before.

        with jax.profiler.trace("my-trace"):
            for batch in batches:
                state, loss = step(state, batch)
            jax.block_until_ready(loss)
        spmd.read_trace("my-trace", spmd.xray(step, state, batch))

    Args:
        path: the folder given to `jax.profiler.trace`, or a file `*.xplane.pb` in it;
            of several the newest.
        report: what `xray` gives of the traced function, or its compiled text, made
            by the same JAX and for the same devices.
        chip: as `step_time` takes it.
        tokens: in one step, on all devices together, for `tokens_per_s`.
        model_flops: FLOPs of one step that the model needs, on all devices together.
        rates: your own, for the prediction, as `step_time` takes them.

    Returns:
        A `StepTime` as `profile` gives it. How many steps there were is counted.

    Raises:
        NotUnderstood: there is no trace, it has no GPU, as that of a TPU, or that
            program did not run there, or what `step_time` raises.

    Used in the chapter on real cards.
    """
    jax = require_jax()
    predicted = step_time(
        report, chip, tokens=tokens, model_flops=model_flops, rates=rates
    )
    text = report if isinstance(report, str) else report.hlo
    try:
        where = Path(path)
    except TypeError:
        raise NotUnderstood(
            f"path={path!r} is no path: give what you gave to jax.profiler.trace"
        ) from None
    runs = read_runs(jax, where, program_name(text))
    return measured(read_module(text), predicted, runs)


def program_name(text: str) -> str:
    """What a trace calls a program: the name of its module."""
    match = re.match(r"HloModule ([\w.\-]+)", text)
    return match[1] if match else ""


def _run(
    jax: ModuleType,
    f: Any,
    steps: int,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    carry: Mapping[int, int],
) -> tuple[Any, ...]:
    """Run some steps one after another; returns the arguments of the next."""
    given, out = list(args), None
    for _ in range(steps):
        out = f(*given, **kwargs)
        parts = out if isinstance(out, (tuple, list)) else (out,)
        for output, argument in carry.items():
            given[argument] = parts[output]
    jax.block_until_ready(out)
    return tuple(given)


# --- What is given --------------------------------------------------------------------


def _check_arrays(jax: ModuleType, args: object, kwargs: object) -> None:
    for path, leaf in jax.tree_util.tree_flatten_with_path((args, kwargs))[0]:
        if isinstance(leaf, jax.ShapeDtypeStruct):
            where = jax.tree_util.keystr(path[1:])
            raise NotUnderstood(
                f"args{where} is a ShapeDtypeStruct, and profile runs the function: "
                "give arrays, or use spmd.step_time for a prediction"
            )


def _check_devices(jax: ModuleType, compiled: Any) -> None:
    shardings = jax.tree.leaves((compiled.input_shardings, compiled.output_shardings))
    platforms = {d.platform for each in shardings for d in each.device_set}
    if platforms and platforms != {"gpu"}:
        raise NotUnderstood(
            f"profile measures on GPUs, and f runs on {' and '.join(platforms)}, "
            + (
                "whose times say nothing of an accelerator"
                if platforms == {"cpu"}
                else "whose traces it does not read"
            )
            + ": spmd.step_time predicts without running, for spmd.gpu_mesh"
        )


def _check_donated(jax: ModuleType, program: Program, carry: Mapping[int, int]) -> None:
    infos = program.infos
    positional = infos[0] if isinstance(infos, tuple) and infos else ()
    for number, argument in enumerate(positional):
        donated = any(info.donated for info in jax.tree.leaves(argument))
        if donated and number not in carry.values():
            raise NotUnderstood(
                f"carry={dict(carry)!r}: {program.name} donates argument {number}, so "
                "the next step can't take it again: say which output replaces it, as "
                f"in carry={{0: {number}}}"
            )
