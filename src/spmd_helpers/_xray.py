"""What JAX made of a function: compiled, never run, and read."""

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import permutations
from math import prod
from typing import Any

from . import _xray_view as view
from ._errors import MeshMismatch, NotUnderstood
from ._from_jax import layout, read_mesh
from ._hlo import Collective, collectives
from ._hlo_labels import place_name
from ._hlo_text import header_devices
from ._jax_version import require_jax
from ._layout import Layout


@dataclass(frozen=True, repr=False, eq=False)
class XRay:
    """What `xray` saw.

    Attributes:
        name: the function's name.
        collectives: every exchange between devices, in program order.
        peak_memory: bytes that one device needs at once: arguments, results and
            what lies between. None where the backend doesn't say.
        lowered_for: the platform it was compiled for: 'cpu', 'gpu', 'tpu'.
        input_layouts: a tree of Layouts for each positional argument, and last,
            if there are any, a dict of the keyword arguments. None for an
            argument that the program does not use.
        output_layouts: a tree like the result, of Layouts.
        mesh_shape: axis name → size, in mesh order; {} for one device.
        hlo: the compiled program's text.
    """

    name: str
    collectives: tuple[Collective, ...]
    peak_memory: int | None
    lowered_for: str
    input_layouts: tuple[Any, ...]
    output_layouts: Any
    mesh_shape: Mapping[str, int]
    hlo: str = field(repr=False)

    def _view(self) -> tuple[str, list[tuple[str, ...]], list[str]]:
        doubled = any("float32" in c.dtype for c in self.collectives)
        doubled = doubled and self.lowered_for == "cpu" and "bf16[" in self.hlo
        return (
            view.title(self.name, self.lowered_for, self.mesh_shape),
            view.rows(self.collectives),
            view.notes(self.collectives, self.peak_memory, doubled),
        )

    def __repr__(self) -> str:
        return view.as_text(*self._view())

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict:
        return {"text/plain": repr(self), "text/html": view.as_html(*self._view())}


def xray(
    f: Any,
    *args: Any,
    mesh: Any = None,
    jit: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> XRay:
    """Compile a function without running it, and say what devices exchange and hold.

        >>> import jax, jax.numpy as jnp
        >>> from jax.sharding import NamedSharding, PartitionSpec as P
        >>> mesh = jax.make_mesh((8,), ("data",), (jax.sharding.AxisType.Auto,))
        >>> by_rows = NamedSharding(mesh, P("data"))
        >>> x = jax.ShapeDtypeStruct((16, 6), jnp.float32, sharding=by_rows)
        >>> seen = xray(lambda x: x.sum(axis=0), x)
        >>> [(c.kind, c.axes, c.count) for c in seen.collectives]
        [('all-reduce', ('data',), 1)]
        >>> seen.collectives[0].result_bytes  # a sum of 6 floats of 4 bytes
        24

    Args:
        f: a function, plain, jitted or pmapped, or one already lowered or compiled
            (its arguments are then fixed, and none need be given).
        args: arrays or ShapeDtypeStructs, as f takes them. No data is touched: a
            donated, deleted array does.
        mesh: the Mesh whose axes to name; only needed where neither the arguments
            nor the program tell.
        jit: options for `jax.jit` if f is plain: {'donate_argnums': 0}.
        kwargs: f's keyword arguments, likewise.

    Returns:
        An `XRay`. `peak_memory` is XLA's own figure, except on CPU, where that one
        leaves out temporaries: there it is arguments + results - aliases +
        temporaries, which is an upper bound.

    Raises:
        NotUnderstood: f is not a function, or `jit` can't be applied to it.
        MeshMismatch: the program runs on another number of devices than `mesh`.
        What JAX raises where f doesn't trace or compile, with a note.

    Used in the chapters on `pmap` and on `jit`.
    """
    jax = require_jax()
    compiled, name = _compile(jax, f, args, kwargs, jit)
    text = compiled.as_text()
    # Flax's compiled functions hold JAX's.
    compiled = getattr(compiled, "compiled", compiled)
    name = name or _module_name(text)
    known = [*_shardings(jax, compiled.input_shardings)]
    known += _shardings(jax, compiled.output_shardings)
    found = _find_mesh(jax, text, mesh, [*_of_args(jax, args, kwargs), *known])
    shape = read_mesh(found).shape if found is not None else {}
    platform = next(
        (device.platform for s in known for device in s.device_set),
        None,
    )
    platform = platform or jax.default_backend()
    positional, named = _layouts(
        jax, compiled.in_avals, compiled.input_shardings, found
    )
    return XRay(
        name=name,
        collectives=collectives(text, shape, _place),
        peak_memory=_peak(compiled, platform),
        lowered_for=platform,
        input_layouts=(*positional, named) if named else tuple(positional),
        output_layouts=_layouts(
            jax, compiled.out_info, compiled.output_shardings, found
        ),
        mesh_shape=dict(shape),
        hlo=text,
    )


def _compile(
    jax: Any, f: Any, args: tuple, kwargs: dict, jit: Mapping[str, Any] | None
) -> tuple[Any, str | None]:
    """The compiled program, and the function's name where it has one."""
    if isinstance(f, str):
        raise NotUnderstood(
            f"f={_short(f)} is a text: read_hlo(text, mesh_shape) reads those"
        )
    traced = isinstance(f, jax.stages.Traced)
    staged = traced or hasattr(f, "as_text")
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
    try:
        if hasattr(f, "memory_analysis"):
            return f, name
        if not staged:
            jitted = f if hasattr(f, "lower") else jax.jit(f, **(jit or {}))
            f = jitted.lower(*args, **kwargs)
        elif traced:
            f = f.lower()
        return f.compile(), name
    except Exception as error:
        error.add_note(f"xray was tracing and compiling {name or 'f'}, not running it.")
        raise


def _short(x: Any) -> str:
    words = " ".join(repr(x).split())
    return words if len(words) <= 60 else words[:57] + "…"


def _module_name(text: str) -> str:
    match = re.match(r"HloModule (?:jit_|pmap_)?([^\s,]+)", text)
    return match.group(1) if match else "f"


def _shardings(jax: Any, tree: Any) -> Iterator[Any]:
    for leaf in jax.tree.leaves(tree):
        if isinstance(leaf, jax.sharding.Sharding):
            yield leaf


def _of_args(jax: Any, args: tuple, kwargs: dict) -> Iterator[Any]:
    for leaf in jax.tree.leaves((args, kwargs)):
        yield from _shardings(jax, getattr(leaf, "sharding", None))


def _find_mesh(jax: Any, text: str, mesh: Any, shardings: list[Any]) -> Any:
    """The mesh whose axes name the program's groups; None for one device."""
    devices = header_devices(text.partition("\n")[0]) or 1
    if mesh is not None:
        size = read_mesh(mesh).size
        if size != devices:
            raise MeshMismatch(
                f"mesh={read_mesh(mesh).shape} has {size} devices, but the program "
                f"was compiled for {devices}: give arguments that lie on this mesh, "
                "such as jax.ShapeDtypeStruct(shape, dtype, "
                "sharding=NamedSharding(mesh, spec))"
            )
        return mesh
    named = [s.mesh for s in shardings if isinstance(s, jax.sharding.NamedSharding)]
    for found in (*named, jax.sharding.get_abstract_mesh()):
        if prod(found.shape.values()) == devices and found.shape:
            return found
    if devices == 1:
        return None
    raise MeshMismatch(
        f"mesh=None, and nothing tells the axes of the {devices} devices that the "
        "program was compiled for: give mesh=, the Mesh that f uses"
    )


def _layouts(jax: Any, avals: Any, shardings: Any, mesh: Any) -> Any:
    """A tree like `avals`, of Layouts, None where the program has no such array."""
    leaves, tree = jax.tree.flatten(avals)
    return tree.unflatten(
        _layout(jax, aval, sharding, mesh)
        for aval, sharding in zip(leaves, tree.flatten_up_to(shardings), strict=True)
    )


def _layout(jax: Any, aval: Any, sharding: Any, mesh: Any) -> Layout | None:
    known = (jax.sharding.NamedSharding, jax.sharding.SingleDeviceSharding)
    if not isinstance(sharding, known):
        sharding = _name_sharding(jax, sharding, aval.shape, mesh)
    if sharding is None:
        return None
    return layout(tuple(aval.shape), sharding, dtype=str(aval.dtype))


def _name_sharding(jax: Any, sharding: Any, shape: tuple[int, ...], mesh: Any) -> Any:
    """The NamedSharding on `mesh` that cuts the same blocks, None if there is none.

    The compiler reports some shardings without the names of the axes. An axis cuts
    a dimension if moving along it changes the block.
    """
    if not isinstance(sharding, jax.sharding.Sharding) or not hasattr(mesh, "devices"):
        return None
    blocks = sharding.devices_indices_map(shape)
    home = blocks.get(mesh.devices.flat[0])
    if home is None:
        return None
    entries: list[list[str]] = [[] for _ in shape]
    for number, axis in enumerate(mesh.axis_names):
        if mesh.shape[axis] > 1:
            at = [0] * mesh.devices.ndim
            at[number] = 1
            other = blocks[mesh.devices[tuple(at)]]
            for entry, here, there in zip(entries, home, other, strict=True):
                if here != there:
                    entry.append(axis)
    for spec in _orders(entries):
        named = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*spec))
        if named.is_equivalent_to(sharding, len(shape)):
            return named
    return None


def _orders(entries: list[list[str]]) -> Iterator[tuple[tuple[str, ...], ...]]:
    if not entries:
        yield ()
        return
    for first in permutations(entries[0]):
        for rest in _orders(entries[1:]):
            yield (first, *rest)


def _peak(compiled: Any, platform: str) -> int | None:
    memory = compiled.memory_analysis()
    if memory is None:
        return None
    if platform == "cpu":
        return (
            memory.argument_size_in_bytes
            + memory.output_size_in_bytes
            - memory.alias_size_in_bytes
            + memory.temp_size_in_bytes
        )
    return getattr(memory, "peak_memory_in_bytes", None)


def _place(file: str, line: int) -> str:
    """As `read_hlo` names it, with the number of the notebook cell where it has one."""
    name = place_name(file, line)
    cell = _cell_number(file) if name.startswith("notebook cell") else None
    return name if cell is None else f"cell {cell}, line {line}"


def _cell_number(file: str) -> int | None:
    """The execution count under which this notebook kernel ran a file it made up."""
    asked: Callable[[], Any] | None
    asked = getattr(sys.modules.get("IPython"), "get_ipython", None)
    shell = asked() if asked else None
    label = getattr(getattr(shell, "compile", None), "format_code_name", None)
    told = label(file) if label else None
    match = re.search(r"\[(\d+)\]", " ".join(told)) if told else None
    if match is None:
        return None
    number, history = int(match.group(1)), shell.user_ns.get("In", ())
    # A cell that is run without history shares its number with others.
    return number if number < len(history) and history[number] else None
