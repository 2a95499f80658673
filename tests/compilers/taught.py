"""The programs that a chapter teaches: what its cells give to jit and pmap.

The cells of a solved notebook run once, on CPU devices. Each new program that a cell
calls, traces or lowers is compiled for these, and once more for those of each other
platform: a jitted function by way of `jax.export`, with the shardings of its arguments
and results and with what it may overwrite; with `jax.pmap` it is mapped again.
"""

import contextlib
import functools
import io
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import prod
from typing import Any

import jax
import numpy as np
from jax import export
from jax.sharding import Mesh, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

from spmd_helpers._xray import compile as xray_compile
from tests.book.chapters import read, run


@dataclass(frozen=True)
class Taught:
    """A program of a chapter, compiled for several platforms.

    `compiled` is for CPU devices; `elsewhere` has for each other platform the compiled
    program, or what the compiler raised. `axes` are the sizes of the axes of its mesh
    ({} where it has none). `is_ragged`: it multiplies by `lax.ragged_dot`, which no
    compiled text names.
    """

    cell: str
    name: str
    count: int
    axes: dict[str, int]
    compiled: Any
    elsewhere: dict[str, Any]
    is_ragged: bool = False


# devices(count, axes): so many of a platform, for a mesh with axes of these sizes.
Devices = Callable[[int, dict[str, int]], Sequence]


def taught(
    chapter: str, platforms: dict[str, Devices]
) -> tuple[list[Taught], list[str]]:
    """The programs of chapter "01" …, and those that could not be taken along.

    `platforms` are "tpu", "cuda", or both. Functions of which a cell wants to see the
    error are in neither list.
    """
    notes = _Notes(platforms)
    names: dict = {"__name__": "__main__"}
    with _listening(notes):
        for cell in read("solutions", chapter):
            if cell.cell_type == "code":
                notes.cell = cell.id
                with contextlib.redirect_stdout(io.StringIO()):
                    run(cell.source, names, f"{chapter} {cell.id}")
    return [finish() for finish in notes.lowered], notes.lost


class _Notes:
    def __init__(self, platforms: dict[str, Devices]):
        self.platforms = platforms
        self.cell = ""
        self.lowered: list[Callable[[], Taught]] = []
        self.lost: list[str] = []
        self.texts: set[str] = set()
        self.busy = False

    def note(self, way, f, args, kwargs, then):
        """Take a program along, and do what was asked for.

        A program that can't be taken along is lost, unless it can't be had at all.
        """
        leaves = jax.tree.leaves((args, kwargs))
        if self.busy or any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
            return then()
        self.busy, trouble = True, None
        try:
            self._take(way, f, *jax.tree.map(_described, (args, kwargs)))
        except Exception as error:
            trouble = f"{self.cell} {_name(f)}: {type(error).__name__}: {error}"
        finally:
            self.busy = False
        got = then()
        if trouble is not None:
            self.lost.append(trouble)
        return got

    def _take(self, way, f, args, kwargs):
        """Lower it twice. Compiling waits: some cells count what is compiled."""
        lowered = f.lower(*args, **kwargs)
        text = lowered.as_text()
        if text in self.texts or _is_for_another((args, kwargs)):
            return
        if "callback" in text:  # it calls Python back, which lives here
            return
        there = {
            platform: way(platform, devices, f, args, kwargs, lowered)
            for platform, devices in self.platforms.items()
        }
        self.texts.add(text)
        cell, name = self.cell, _name(f)
        traced = f.trace(*args, **kwargs) if hasattr(f, "trace") else ""
        is_ragged = "ragged_dot" in str(getattr(traced, "jaxpr", ""))

        def finish():
            compiled = lowered.compile()
            elsewhere = {}
            for platform, again in there.items():
                lower, count, mesh = again(compiled)
                axes = dict(mesh.shape) if mesh else {}
                try:
                    to = self.platforms[platform](count, axes)
                    elsewhere[platform] = lower(to).compile()
                except jax.errors.JaxRuntimeError as error:
                    elsewhere[platform] = error
            return Taught(cell, name, count, axes, compiled, elsewhere, is_ragged)

        self.lowered.append(finish)


def _is_for_another(tree) -> bool:
    """Whether a chapter itself compiles for devices that are not here."""
    meshes = [getattr(place, "mesh", None) for place in _places(tree)]
    return any(
        mesh.devices.flat[0].platform != jax.default_backend()
        for mesh in meshes
        if isinstance(mesh, Mesh)
    )


def _name(f) -> str:
    return getattr(f, "__name__", type(f).__name__)


def _described(x):
    """An array without its data."""
    if not isinstance(x, jax.Array):
        return x
    placed = x.committed or len(x.sharding.device_set) > 1
    place = x.sharding if placed else None
    weak = getattr(x, "weak_type", False)
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place, weak_type=weak)


class _Listener:
    """A function of `jax.jit` or `jax.pmap` whose uses are noted."""

    def __init__(self, notes, way, f):
        self._notes, self._way, self._f = notes, way, f
        functools.update_wrapper(self, f, updated=())

    def __getattr__(self, name):
        attribute = getattr(self._f, name)
        if name in ("trace", "lower"):  # what pmap gives has no trace
            return lambda *args, **kwargs: self._noted(attribute, args, kwargs)
        return attribute

    def __get__(self, owner, kind=None):
        return self if owner is None else functools.partial(self, owner)

    def _noted(self, do, args, kwargs):
        return self._notes.note(
            self._way, self._f, args, kwargs, lambda: do(*args, **kwargs)
        )

    def __call__(self, *args, **kwargs):
        return self._noted(self._f, args, kwargs)


@contextlib.contextmanager
def _listening(notes: _Notes):
    """`jax.jit` and `jax.pmap` return listeners."""
    real = {"jit": jax.jit, "pmap": jax.pmap}

    def jit(f=None, **options):
        if f is None:
            return functools.partial(jit, **options)
        return _Listener(notes, _jitted_again, real["jit"](f, **options))

    def pmap(f, axis_name=None, **options):
        once_more = functools.partial(real["pmap"], f, axis_name, **options)
        way = functools.partial(_mapped_again, once_more)
        return _Listener(notes, way, once_more())

    jax.jit, jax.pmap = jit, pmap
    try:
        yield
    finally:
        jax.jit, jax.pmap = real["jit"], real["pmap"]


def _jitted_again(platform, devices, f, args, kwargs, lowered):
    """compiled -> how to lower it for other devices, their number, its mesh."""
    del devices
    exported = export.export(f, platforms=[platform])(*args, **kwargs)
    count = exported.nr_devices
    infos = lowered.args_info[0]  # of the positional arguments
    gone = [n for n, arg in enumerate(infos) if _all_donated(arg)]

    def there(compiled):
        places = (compiled.input_shardings, compiled.output_shardings)
        mesh = _mesh_of([*jax.tree.leaves(places), *_places((args, kwargs))], count)

        def lower(to):
            places, results = _places_on(to, exported, mesh, compiled)
            given = [
                jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=place)
                for aval, place in zip(exported.in_avals, places, strict=True)
            ]
            given, named = jax.tree.unflatten(exported.in_tree, given)
            jitted = jax.jit(exported.call, donate_argnums=gone, out_shardings=results)
            return jitted.lower(*given, **named)

        return lower, count, mesh

    return there


def _all_donated(argument) -> bool:
    donated = [info.donated for info in jax.tree.leaves(argument)]
    return bool(donated) and all(donated)


def _places_on(devices, exported, mesh, compiled):
    """The shardings of the arguments and results, on other devices."""
    if len(devices) == 1:
        one = SingleDeviceSharding(devices[0])
        return [one] * len(exported.in_avals), one
    there = Mesh(np.array(devices), "d")
    if mesh is not None:
        grid = np.array(devices).reshape(mesh.devices.shape)
        there = Mesh(grid, mesh.axis_names, axis_types=mesh.axis_types)
    replicated = NamedSharding(there, P())
    try:
        places = [place or replicated for place in exported.in_shardings_jax(there)]
    except ValueError:  # no argument lies on a mesh
        places = [replicated] * len(exported.in_avals)
    results = jax.tree.map(
        lambda s: NamedSharding(there, s.spec) if _is_on(s, mesh) else None,
        compiled.output_shardings,
    )
    return places, results


def _mapped_again(once_more, platform, devices, f, args, kwargs, lowered):
    """The same for a function of `jax.pmap`, which has no mesh."""
    del platform, f, lowered
    leaves = jax.tree.leaves(args)
    count = max(np.shape(leaf)[0] for leaf in leaves if np.ndim(leaf))
    plain = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(np.shape(x), jax.dtypes.result_type(x)), args
    )
    mapped = once_more(devices=devices(count, {}))
    there = mapped.lower(*plain, **kwargs)
    return lambda compiled: (lambda to: there, count, None)


def _places(tree) -> list:
    shardings = [getattr(leaf, "sharding", None) for leaf in jax.tree.leaves(tree)]
    return [sharding for sharding in shardings if sharding is not None]


def _mesh_of(shardings, count: int):
    """The mesh of that many devices on which something lies, or None."""
    for sharding in shardings:
        mesh = getattr(sharding, "mesh", None)
        if isinstance(mesh, Mesh) and prod(mesh.shape.values()) == count > 1:
            return mesh
    return None


def _is_on(sharding, mesh) -> bool:
    return mesh is not None and getattr(sharding, "mesh", None) == mesh


def solved(chapter: str, platform: str, devices: Devices) -> list[str]:
    """What stops a solved chapter whose X-rays are of another platform's compiler.

    Its programs run on CPU devices as ever. But what `xray`, and with it each check of
    an exercise, reads is what the other compiler made of the same function.
    """
    real = xray_compile._stages

    def stages(jax, call, staged, jit):
        (traced, lowered, compiled), lines = real(jax, call, staged, jit)
        described = jax.tree.map(_described, (call.args, call.kwargs))
        calls_back = traced is not None and "callback" in lowered.as_text()
        if traced is None or calls_back or _is_for_another(described):
            return (traced, lowered, compiled), lines
        f = call.f
        f = f if hasattr(f, "lower") else jax.jit(f, **(call.jit or jit or {}))
        there = _jitted_again(platform, devices, f, *described, lowered)
        lower, count, mesh = there(compiled)
        axes = dict(mesh.shape) if mesh else {}
        with ThreadPoolExecutor(1) as apart:  # where no cell has set a mesh
            lowered = apart.submit(lower, devices(count, axes)).result()
        with contextlib.suppress(jax.errors.JaxRuntimeError):  # too large there
            compiled = lowered.compile()
        return (traced, lowered, compiled), lines

    stopped, names = [], {"__name__": "__main__"}
    xray_compile._stages = stages
    try:
        for cell in read("solutions", chapter):
            if cell.cell_type == "code":
                try:
                    with contextlib.redirect_stdout(io.StringIO()):
                        run(cell.source, names, f"{chapter} {cell.id}")
                except Exception as error:
                    stopped.append(f"{cell.id}: {type(error).__name__}: {error}")
    finally:
        xray_compile._stages = real
    return stopped
