"""The programs of the measured rows, compiled for H200s, here or not."""

import contextlib
import functools
from collections.abc import Callable
from unittest import mock

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import spmd_helpers as spmd
from tools.measure import gpu, model
from tools.measure.model import BF16, F32, PARTS, Setting, one_step

_CARD = "h200"


def devices(count: int) -> list:
    """Cards of this machine, or stand-ins to compile for."""
    if jax.default_backend() == "gpu":
        return jax.devices()[:count]
    return list(spmd.gpu_mesh(f"{_CARD}:{count}", data=count).devices.flat)


def _mesh(count: int, kind: AxisType = AxisType.Auto) -> Mesh:
    return Mesh(np.array(devices(count)), ("data",), axis_types=(kind,))


def _array(mesh: Mesh, shape, spec=None, dtype=BF16) -> jax.ShapeDtypeStruct:
    sharding = NamedSharding(mesh, spec or P())
    return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)


def collective(row: dict) -> str:
    """The text of a collective's row."""
    mesh = _mesh(2)
    f, shape, spec = gpu.jitted_collective(row["kind"], row["bytes"], mesh)
    return _text(f, _array(mesh, shape, spec))


def matmul(row: dict) -> str:
    """The text of a product's row."""
    mesh = _mesh(1)
    x, w = (_array(mesh, (row[a], row[b])) for a, b in ("mk", "kn"))
    return _text(jax.jit(lambda x, w: x @ w), x, w)


def attended(row: dict) -> str:
    """The text of an attention's row. cuDNN's needs its library."""
    run = model.plain if row["name"] == "plain" else _fused(row["name"])

    def through(q, k, v):
        return (run(q, k, v).astype(F32) ** 2).sum()

    both = "backward" in row["pass"]
    f = jax.jit(jax.grad(through, argnums=(0, 1, 2)) if both else run)
    shape = (row["batch"], row["seq"], row["heads"], row["head_dim"])
    return _text(f, *[_array(_mesh(1), shape)] * 3)


def _fused(implementation: str) -> Callable:
    """As on a card: `model.fused` takes XLA's where none is."""
    return functools.partial(
        jax.nn.dot_product_attention, is_causal=True, implementation=implementation
    )


def mlp(row: dict) -> str:
    """The text of a step of residual MLP layers."""
    shape = tuple(row[name] for name in ("layers", "d_model", "d_ff"))
    state = jax.eval_shape(lambda: gpu.start(shape))
    if row["name"] == "pmap":
        return _pmapped(state, row["batch"], shape[1])
    kind, w1, w2, on_x, on_hidden, constrained = gpu.WAYS[row["name"]]
    mesh = _mesh(2, kind)
    on = functools.partial(NamedSharding, mesh)
    places = {part: {"w1": on(w1), "w2": on(w2)} for part in PARTS}
    state = jax.tree.map(
        lambda s, p: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=p), state, places
    )
    options: dict = {"donate_argnums": 0}
    step = gpu.train
    if constrained:

        def kept(where):
            return lambda h: jax.lax.with_sharding_constraint(h, on(where))

        step = functools.partial(step, between=kept(on_x), inside=kept(on_hidden))
        options["out_shardings"] = (places, on(P()))
    x = _array(mesh, (row["batch"], shape[1]), on_x)
    return _text(jax.jit(step, **options), state, x)


def _pmapped(state, batch: int, width: int) -> str:
    mean = functools.partial(jax.lax.pmean, axis_name="data")
    step = jax.pmap(
        functools.partial(gpu.train, mean=mean),
        axis_name="data",
        devices=devices(2),
        donate_argnums=0,
    )
    each = jax.tree.map(lambda s: jax.ShapeDtypeStruct((2, *s.shape), s.dtype), state)
    x = jax.ShapeDtypeStruct((2, batch // 2, width), BF16)
    return _text(step, each, x)


def transformer(row: dict) -> str:
    """The text of a transformer's step."""

    def fused(q, k, v, implementation):
        return _fused(implementation)(q, k, v)

    with mock.patch.object(model, "fused", fused):
        step, _, shapes, mesh = one_step(Setting(**row["setting"]), devices(2))
        around = contextlib.nullcontext() if mesh is None else jax.set_mesh(mesh)
        with around:
            return _text(step, *shapes)


def _text(f, *arguments) -> str:
    text = f.lower(*arguments).compile().as_text()
    jax.clear_caches()  # what one program traced keeps its lines in the next
    return text


KINDS: dict[str, Callable[[dict], str]] = {
    "collective": collective,
    "matmul": matmul,
    "attention": attended,
    "steps": mlp,
    "ways": transformer,
    "log": transformer,
}
