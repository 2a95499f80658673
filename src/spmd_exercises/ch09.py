"""Checks of chapter 9, what a model weighs."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

import spmd_helpers as spmd
from spmd_helpers import CheckFailed, XRay

from ._setting import (
    devices,
    make_mesh,
    next_thought,
    normal,
    number,
    on,
    require_function,
    short,
    trying,
)

_SMALL = {"recompute": "nothing_saveable", "seq": 4096, "zero": 1}
_FLASH = {"recompute": "nothing_saveable", "attention": "flash"}
_SHORT = {"recompute": "nothing_saveable", "seq": 64}
_PARTS = ("parameters", "gradients", "optimizer")


def check_9_1(a: object, b: object, c: object, d: object) -> None:
    """Bytes for each parameter, of four conventions."""
    conventions: list[dict[str, Any]] = [
        {"param_dtype": "bfloat16"},
        {"optimizer": "momentum"},
        {"param_dtype": "bfloat16", "optimizer": "lion", "master_weights": True},
        {"param_dtype": "bfloat16", "grad_dtype": "float32"},
    ]
    off = []
    for name, answer, how in zip("abcd", (a, b, c, d), conventions, strict=True):
        counted = spmd.training_memory(spmd.MLP(1, 64, 256), mesh={}, batch=1, **how)
        state = counted.params_bytes + counted.grads_bytes + counted.optimizer_bytes
        off += [name] * (number(answer, name) != state // (2 * 64 * 256))
    if off:
        raise CheckFailed(
            f"look again at {', '.join(off)}. How many bytes do the parameter, the"
            " gradient, each number of the optimizer and, where there is one, the"
            " master copy take?"
        )


def check_9_2(
    embed_bytes: object,
    stack_bytes: object,
    norm_bytes: object,
    head_bytes: object,
    tree_bytes: object,
) -> None:
    """Bytes of four arrays and of their tree, on each device of 4 × 2."""
    mesh = {"data": 4, "model": 2}
    leaves = [
        spmd.sharding(shape, spec, mesh=mesh, dtype=dtype).bytes_per_device
        for shape, spec, dtype in [
            ((1000, 48), P("model"), "float32"),
            ((6, 48, 192), P(None, "data", "model"), "bfloat16"),
            ((6, 48), P(), "float32"),
            ((48, 1000), P(None, ("data", "model")), "float32"),
        ]
    ]
    names = [f"{leaf}_bytes" for leaf in ("embed", "stack", "norm", "head", "tree")]
    answers = (embed_bytes, stack_bytes, norm_bytes, head_bytes, tree_bytes)
    off = [
        name
        for name, answer, size in zip(
            names, answers, [*leaves, sum(leaves)], strict=True
        )
        if number(answer, name) != size
    ]
    if off:
        raise CheckFailed(
            f"look again at {', '.join(off)}. How many bytes does an element take, and"
            " over which mesh axes is the array sharded?"
        )


def check_9_3(state_table: Callable[..., Any]) -> None:
    """The bytes of the state on a device, of each stage of ZeRO."""
    require_function(state_table, "state_table")
    cases = [
        (0, 64, 8, "gpt3-175b"),
        (1, 16, 1, "gpt3-xl"),
        (2, 8, 4, "gpt3-medium"),
        (3, 4, 2, "gpt3-13b"),
        (0, 16, 2, "gpt3-6.7b"),
        (1, 12, 3, "gpt3-175b"),
        (2, 4, 8, "gpt3-13b"),
        (3, 6, 12, "gpt3-175b"),
    ]
    for zero, data, model, name in cases:
        sizes = spmd.MODELS[name]
        with trying(f"{name}, ZeRO-{zero}, data {data} × model {model}"):
            got = state_table(sizes.parameters, data, model, zero)
            counted = spmd.training_memory(
                sizes,
                mesh={"data": data, "model": model},
                zero=zero,
                batch=data,
                param_dtype="bfloat16",
                master_weights=True,
                counting="megatron",
            )
            _require_state(got, counted)


def check_9_4(lean_loss: Callable[..., Any]) -> None:
    """The same loss and gradients, with half the peak memory."""
    require_function(lean_loss, "lean_loss")
    for layers, width, hidden, rows in [(9, 40, 144, 3072), (6, 24, 80, 2048)]:
        with trying(f"with up [{layers}, {width}, {hidden}] and x [{rows}, {width}]"):
            _require_lean(lean_loss, layers, width, hidden, rows)


def check_9_5(largest_batch: Callable[..., Any]) -> None:
    """The largest batch whose training step fits a chip."""
    require_function(largest_batch, "largest_batch")
    cases: list[tuple[str, dict[str, int], str, dict[str, Any]]] = [
        ("llama-3.2-3b", {"data": 6, "model": 4}, "h100", _SMALL),
        ("gpt3-13b", {"data": 4}, "v5e", {}),
        ("gpt2-small", {"model": 2}, "a100-40gb", {"seq": 424}),
        ("gpt3-medium", {"data": 8}, "v5p", {"attention": "flash"}),
        ("gpt2-small", {"data": 384}, "h100", _SHORT),
    ]
    for name, mesh, chip, how in cases:
        with trying(f"{name} on {mesh} of {chip}"):
            got = largest_batch(spmd.MODELS[name], dict(mesh), chip, **how)
            _require_largest(number(got), name, mesh, chip, how)


def check_9_6(choose: Callable[..., Any]) -> None:
    """The smallest model axis that fits, and then the smallest stage of ZeRO."""
    require_function(choose, "choose")
    cases: list[tuple[str, int, str, int, dict[str, Any]]] = [
        ("llama-3-8b", 8, "h100", 8, _FLASH),
        ("llama-3-8b", 8, "v6e", 8, _FLASH),
        ("llama-3-8b", 8, "v5e", 8, _FLASH),
        ("llama-3-8b", 8, "v5p", 2, {"attention": "flash"}),
        ("llama-3-70b", 64, "v5p", 16, _FLASH),
        ("gpt3-xl", 12, "v5e", 36, _FLASH),
        ("gpt2-small", 12, "v5e", 2, _FLASH),
        ("gpt2-large", 40, "v6e", 2, {}),
        ("gpt3-175b", 96, "v5p", 32, _FLASH),
        ("gpt2-small", 1, "h100", 4, _FLASH),
    ]
    for name, count, chip, batch, how in cases:
        got = choose(spmd.MODELS[name], count, chip, batch, **how)
        with trying(f"{name} on {count} {chip}, {batch} sequences: {short(got)}"):
            fitting = [
                (model, zero)
                for model in range(1, count + 1)
                if count % model == 0
                for zero in range(4)
                if _fits(name, count // model, model, zero, chip, batch, how)
            ]
            _require_choice(got, count, fitting)


def _require_state(got: object, counted: spmd.TrainingMemory) -> None:
    if not isinstance(got, Mapping) or {*got} != {*_PARTS}:
        raise CheckFailed(f"{short(got)} is not a dict of {', '.join(_PARTS)}")
    sizes = (counted.params_bytes, counted.grads_bytes, counted.optimizer_bytes)
    ratios = {
        part: number(got[part], part) / size
        for part, size in zip(_PARTS, sizes, strict=True)
    }
    off = [
        f"{part}: {ratio:.3g} times the right number"
        for part, ratio in ratios.items()
        if not abs(ratio - 1) < 1e-6
    ]
    if off:
        raise CheckFailed(
            f"{', '.join(off)}. Into how many shards is each split at this stage, and"
            " which numbers are part of it?"
        )


def _deep_loss(params: Any, x: Any) -> Any:
    """The loss of the chapter's cell above the exercise."""

    def layer(h: Any, w: Any) -> tuple[Any, None]:
        return h + jnp.tanh(h @ w["up"]) @ w["down"], None

    return (lax.scan(layer, x, params)[0] ** 2).mean()


def _measured(
    loss: Callable[..., Any], layers: int, width: int, hidden: int, rows: int
) -> tuple[XRay, Any]:
    """What the gradients of a loss need, and what loss and gradients are."""
    mesh = make_mesh(data=4, model=2)
    host = (
        {
            "up": normal(1, layers, width, hidden) / 4,
            "down": normal(2, layers, hidden, width) / 4,
        },
        normal(3, rows, width) / 4,
    )
    params, batch = on(mesh), on(mesh, ("data", "model"))
    args = jax.device_put(host, ({"up": params, "down": params}, batch))
    lowered = jax.jit(jax.grad(loss, argnums=(0, 1))).lower(*args)
    # A CPU's compiler before jax 0.11 merges what jax.checkpoint computes twice, where
    # it stands outside a loop, and keeps it for the backward pass.
    apart = {"xla_disable_hlo_passes": "cse_barrier_expander"}
    on_cpu = devices(1)[0].platform == "cpu"
    compiled = lowered.compile(compiler_options=apart if on_cpu else None)
    of_params, of_x = compiled(*args)
    values = {
        "loss": jax.jit(loss)(*host),
        "gradient": {"params": of_params, "x": of_x},
    }
    return spmd.xray(compiled), jax.device_get(values)


_plain = functools.cache(functools.partial(_measured, _deep_loss))


def _require_lean(lean_loss: Callable[..., Any], *sizes: int) -> None:
    (plain, want), (lean, got) = _plain(*sizes), _measured(lean_loss, *sizes)
    peaks = [report.peak_memory or 0 for report in (plain, lean)]
    if peaks[1] > peaks[0] // 2:
        raise CheckFailed(
            f"the gradients need {peaks[1]:,} bytes per device at the peak, but the"
            f" budget is half of {peaks[0]:,}. Which values of each layer are saved"
            " for the backward pass?"
        )
    ratio = (lean.flops_per_device or 0) / (plain.flops_per_device or 1)
    if not 0.9 < ratio <= 1.25:
        raise CheckFailed(
            f"the gradients take {ratio:.2f} times the FLOPs of deep_loss, but 1 to"
            " 1.25 times are expected. What is computed too often, or not at all?"
        )
    with next_thought("Does lean_loss compute the same as deep_loss, in float32?"):
        spmd.assert_close(got, want, rtol=1e-4)


def _require_largest(
    got: float, name: str, mesh: Mapping[str, int], chip: str, how: Mapping[str, Any]
) -> None:
    each, zero = mesh.get("data", 1), how.get("zero", 3)
    options = {key: value for key, value in how.items() if key != "zero"}

    def fits(batch: float) -> bool:
        data, model = mesh.get("data", 1), mesh.get("model", 1)
        return _fits(name, data, model, zero, chip, int(batch), options)

    if got != got // 1 or got < 0:
        raise CheckFailed(f"{got} is not a whole number of 0 or more")
    if got % each:
        raise CheckFailed(
            f"a batch of {got:.0f} does not divide over data. By how much can a batch"
            " grow at a time?"
        )
    if got and not fits(got):
        raise CheckFailed(
            f"a batch of {got:.0f} does not fit. Which margin does .fits leave, and"
            " can your answer be 0?"
        )
    if fits(got + each):
        raise CheckFailed(
            f"{got:.0f}, but {each} more also fit. Where does your search end?"
        )


def _fits(
    name: str,
    data: int,
    model: int,
    zero: int,
    chip: str,
    batch: int,
    how: Mapping[str, Any],
) -> bool:
    mesh = {"data": data, "model": model}
    try:
        counted = spmd.training_memory(
            spmd.MODELS[name], mesh=mesh, zero=zero, batch=batch, **how
        )
    except spmd.NotDivisible:
        return False
    return bool(counted.fits(chip))


def _require_choice(got: Any, count: int, fitting: list[tuple[int, int]]) -> None:
    choice = None
    if got is not None:
        if np.shape(got) != (3,):
            raise CheckFailed("this is neither None nor (data, model, zero)")
        data, model, zero = (
            number(one, part)
            for part, one in zip(("data", "model", "zero"), got, strict=True)
        )
        if data * model != count:
            raise CheckFailed(f"data × model is not {count}")
        choice = (model, zero)
        if choice not in fitting:
            raise CheckFailed(
                "this does not fit, or does not divide. What does .fits check?"
            )
    if fitting and choice != fitting[0]:
        raise CheckFailed(
            "this is not the first choice that fits, by model axis and then by stage."
            " In which order, and over which sizes, does your search go?"
        )
