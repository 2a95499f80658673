"""What checks share: devices, meshes, placements, seeded data, and kinds of answers."""

import contextlib
import decimal
import functools
import inspect
import math
import numbers
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from spmd_helpers import CheckFailed, XRay

Floats = np.ndarray[Any, np.dtype[np.float32]]


def devices(n: int) -> list[jax.Device]:
    """The first n devices of the notebook's `use_devices`.

    Raises:
        CheckFailed: when JAX runs on fewer.
    """
    there = _all_devices()
    if len(there) < n:
        raise CheckFailed(
            f"this check needs {n} devices and JAX runs on {len(there)}: restart the"
            " kernel and run all cells from the top"
        )
    return there[:n]


def make_mesh(axis_type: AxisType = AxisType.Auto, **axes: int) -> Mesh:
    """A mesh with these axes and sizes, like `make_mesh(data=4, model=2)`."""
    sizes, names = tuple(axes.values()), tuple(axes)
    return jax.make_mesh(
        sizes,
        names,
        axis_types=(axis_type,) * len(names),
        devices=devices(math.prod(sizes)),
    )


def on(mesh: Mesh, *entries: Any) -> NamedSharding:
    """The placement by the spec `P(*entries)` on a mesh."""
    return NamedSharding(mesh, PartitionSpec(*entries))


def abstract(
    shape: tuple[int, ...], sharding: jax.sharding.Sharding, dtype: Any = np.float32
) -> jax.ShapeDtypeStruct:
    """An array that is not there: its shape, its dtype and its sharding."""
    return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)


def normal(seed: int, *shape: int) -> Floats:
    """Random numbers of the standard normal distribution, the same for a seed."""
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def number(answer: object, name: str = "") -> float:
    """A number as a float, whichever library made it; `name` is what it is called.

    Raises:
        CheckFailed: for what is no number: text, a list, an object with a method.
    """
    plain = getattr(answer, "item", None)
    if plain is not None and getattr(answer, "shape", None) == ():
        answer = plain()
    if isinstance(answer, bool) or not isinstance(
        answer, numbers.Real | decimal.Decimal
    ):
        called = f"{name}: " if name else ""
        raise CheckFailed(f"{called}{short(answer)} is not a number")
    return float(answer)


def is_close(given: float, right: float, rtol: float) -> bool:
    """Whether a number is right; nan is not."""
    return abs(given - right) <= rtol * abs(right)


def require_spec(answer: object, name: str = "") -> PartitionSpec:
    """The answer, which must be a PartitionSpec.

    Raises:
        CheckFailed: for anything else.
    """
    if not isinstance(answer, PartitionSpec):
        called = f"{name}: " if name else ""
        raise CheckFailed(f"{called}{short(answer)} is not a P(...)")
    return answer


def redundancy(report: XRay) -> float:
    """How often the average product of a program is computed; 1 is once.

    Raises:
        CheckFailed: when the program does work that can't be counted.
    """
    if report.redundancy is None:
        raise CheckFailed(
            "the program does work that the X-ray can't count: is it made of ordinary"
            " JAX operations?"
        )
    return report.redundancy


def require_no_finding(report: XRay) -> None:
    """No finding in a program.

    Raises:
        CheckFailed: with the first one.
    """
    for finding in report.findings:
        raise CheckFailed(
            f"the X-ray has a finding, {finding.code}: {finding.sentence}"
        )


def is_jitted(function: Callable[..., Any], *args: Any) -> bool:
    """Whether all that a function does with these arguments runs in jitted programs.

    It may be jitted or compiled itself, a partial of such a function, or call one.
    """
    inner: Any = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    if hasattr(inner, "lower") or hasattr(inner, "as_text"):
        return True
    equations = jax.make_jaxpr(function)(*args).eqns
    return all(equation.primitive.name in ("jit", "pjit") for equation in equations)


def require_own_buffers(**trees: object) -> None:
    """Each array of the trees is there, and in memory of its own.

    A program that donates an array that was deleted, or two arrays in one buffer,
    can end the process. The keywords are the names in the messages.

    Raises:
        CheckFailed: with the array that is deleted, or the two that share memory.
    """
    owners: dict[tuple[jax.Device, int], str] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(trees):
        if not isinstance(leaf, jax.Array):
            continue
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        if leaf.is_deleted():
            raise CheckFailed(f"{name} is already deleted: did a call donate it?")
        for buffer in _buffers(leaf):
            other = owners.setdefault(buffer, name)
            if other != name:
                raise CheckFailed(
                    f"{other} and {name} share one buffer, and a step that donates"
                    " both can't run: which of them needs a copy of its own?"
                )


def _buffers(leaf: jax.Array) -> set[tuple[jax.Device, int]]:
    """Where the shards of an array are in memory; empty where the platform hides it."""
    if jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    shards = [shard for shard in leaf.addressable_shards if shard.data.size]
    try:
        return {(one.device, one.data.unsafe_buffer_pointer()) for one in shards}
    except Exception:  # whatever a backend without such pointers raises
        return set()


def compiled(function: Callable[..., Any], *args: Any) -> jax.stages.Compiled:
    """The program of a function for these arguments, to call it and to X-ray it.

    The function may be plain, jitted, a partial of either, or compiled already.
    """
    if isinstance(function, jax.stages.Compiled):
        return function
    # A bound method has the `lower` of its function, which does not get the object.
    ready = hasattr(function, "lower") and not inspect.ismethod(function)
    jitted: Any = function if ready else jax.jit(function)
    program: jax.stages.Compiled = jitted.lower(*args).compile()
    return program


def word(answer: object, name: str, words: tuple[str, ...]) -> str:
    """The answer in lower case, which must be one of some words.

    Raises:
        CheckFailed: for any other text, and for what is no text.
    """
    text = answer.strip().lower() if isinstance(answer, str) else None
    if text not in words:
        wanted = ", ".join(f'"{one}"' for one in words)
        raise CheckFailed(f"{name} is {short(answer)}, which is not one of {wanted}")
    return text


@contextlib.contextmanager
def next_thought(question: str) -> Iterator[None]:
    """A question at the end of the message of an assert that fails in here."""
    try:
        yield
    except CheckFailed as error:
        words = str(error).rstrip(".")
        end = "" if words.endswith("?") else "."
        gap = "\n" if "\n" in words else " "
        raise CheckFailed(f"{words}{end}{gap}{question}") from None


def require_function(answer: object, name: str) -> None:
    """The answer must be something that can be called.

    Raises:
        CheckFailed: for anything else.
    """
    if not callable(answer):
        raise CheckFailed(f"{name} is {short(answer)}, but has to be a function")


def short(value: object) -> str:
    """A value for a message: as Python writes it, or its type where that is long."""
    words = repr(value)
    if len(words) < 160 and "\n" not in words:
        return words
    shape = getattr(value, "shape", None)
    of_shape = f" of shape {shape}" if isinstance(shape, tuple) else ""
    kind = "jax.Array" if isinstance(value, jax.Array) else type(value).__name__
    return f"a value of type {kind}{of_shape}"


def kind_of(value: object) -> str:
    """The type of a value in a message: "None", "a tuple" or "an int"."""
    if value is None:
        return "None"
    name = type(value).__name__
    return f"an {name}" if name == "ndarray" or name[0] in "aeiouAEIOU" else f"a {name}"


def device_count() -> int:
    """How many devices `devices` can give."""
    return len(_all_devices())


def _all_devices() -> list[jax.Device]:
    default = jax.config.jax_default_device  # use_devices sets it where it must
    return jax.devices(getattr(default, "platform", None))


def dimensions(answer: object, name: str) -> tuple[float, ...]:
    """A shape, given as a tuple, a list or a short array of numbers.

    Raises:
        CheckFailed: for anything else.
    """
    if isinstance(answer, tuple | list | np.ndarray | jax.Array):
        with contextlib.suppress(CheckFailed, TypeError):  # a number has no entries
            return tuple(number(entry) for entry in answer)
    raise CheckFailed(
        f"{name}: {short(answer)} is not a shape: write a tuple of numbers"
    )


def unpack(answer: object, *names: str) -> tuple[Any, ...]:
    """What a function returned, which must be a tuple or a list of these things.

    Raises:
        CheckFailed: for another number of things, and for anything else.
    """
    if isinstance(answer, tuple | list) and len(answer) == len(names):
        return tuple(answer)
    if isinstance(answer, tuple | list):
        came = f"{len(answer)} things"
    elif isinstance(answer, jax.Array | np.ndarray):
        came = "one array"
    else:
        came = kind_of(answer)
    hint = " Is a `return` missing?" if answer is None else ""
    raise CheckFailed(
        f"your function returned {came}, but a tuple ({', '.join(names)}) is"
        f" expected.{hint}"
    )


@contextlib.contextmanager
def trying(what: str) -> Iterator[None]:
    """Begin the message of a check that fails inside with `what` it was trying.

    Raises:
        CheckFailed: in place of the one that was raised inside.
    """
    try:
        yield
    except CheckFailed as error:
        gap = "\n" if "\n" in str(error) else " "
        raise CheckFailed(f"{what}:{gap}{error}") from None


def quick() -> dict[str, Any] | None:
    """Compiler options for a large program that a check runs once or twice.

    On CPUs it takes half of the time to compile, since its machine code is optimized
    less. Its collectives are decided before that.
    """
    platform = devices(1)[0].platform
    return {"xla_backend_optimization_level": 0} if platform == "cpu" else None
