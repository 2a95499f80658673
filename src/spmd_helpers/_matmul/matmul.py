"""A product of two cut matrices: what moves, what is repeated, and where C lies."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .._core.words import join_words
from .._errors import NotUnderstood, SpecError
from .._shardings.sharding import Layout, spec_words
from . import words
from .rule import Move, plan


@dataclass(frozen=True)
class Explicit:
    """What Explicit mode says of the product.

    Attributes:
      type: the result's type as `jax.typeof` prints it; None if JAX refuses.
      entries: how that result is cut; None if JAX refuses.
      error: the class of JAX's error, or None.
      code: the rule of `explain` for that error, or None.
      sentence: all of it in words.
    """

    type: str | None
    entries: tuple[tuple[str, ...], ...] | None
    error: str | None
    code: str | None
    sentence: str


@dataclass(frozen=True, repr=False)
class Matmul:
    """What `matmul` found. What `why_not` leaves open is None.

    Attributes:
      a: the Layout of A, [I, J].
      b: the Layout of B, [J, K].
      c: the Layout of the result, [I, K].
      cases: mesh axis → the case of chapter 4, or 0 where the axis cuts nothing; of
        axes with more than one device.
      kinds: mesh axis → what it cuts, in words.
      cuts: mesh axis → the dimension of the product that it cuts at the multiply: 'I',
        'J', 'K', or '-' where all its devices compute the same.
      moves: every exchange, in order; see `Move`.
      block: the sizes (I, J, K) of what one device multiplies.
      flops_per_device: 2 · I · J · K of that block.
      redundancy: as `XRay.redundancy`: how often each product is computed.
      idle_axes: as `XRay.idle_axes`.
      explicit: what Explicit mode says.
      choice: where the compiler could do otherwise, both prices; else ''.
      pitfalls: claims 8 and 9 of the book where they apply, in words.
      steps: before, communicate, multiply, reduce: what happens, in words; '' where
        that is left open.
      sentence: the answer in one sentence.
      why_not: why the rule does not cover this, or None.
    """

    a: Layout
    b: Layout
    c: Layout | None
    cases: Mapping[str, int] = field(compare=False)
    kinds: Mapping[str, str] = field(compare=False)
    cuts: Mapping[str, str] | None = field(compare=False)
    moves: tuple[Move, ...] | None
    block: tuple[int, int, int] | None
    flops_per_device: int | None
    redundancy: float | None
    idle_axes: tuple[str, ...] | None
    explicit: Explicit
    choice: str
    pitfalls: tuple[str, ...]
    steps: tuple[str, ...]
    sentence: str
    why_not: str | None

    def __repr__(self) -> str:
        names = ("before", "communicate", "multiply", "reduce")
        said = zip(names, self.steps, strict=True)
        lines = [self.sentence, *(f"  {name}: {step}" for name, step in said if step)]
        if self.why_not:
            lines.append(f"  not covered: {self.why_not}")
            lines.append("  spmd.xray compiles it and shows what happens")
        more = (self.choice, *self.pitfalls, self.explicit.sentence)
        return "\n".join([*lines, *(f"  {line}" for line in more if line)])


def matmul(
    sizes: Sequence[int],
    a: Any,
    b: Any,
    *,
    mesh: Any,
    out: Any = None,
    dtype: str = "float32",
) -> Matmul:
    """What a product of two cut matrices moves and repeats, without compiling it.

    >>> found = matmul(
    ...     (48, 40, 24), ("data", "model"), ("model",), mesh={"data": 4, "model": 2}
    ... )
    >>> [(m.kind, m.of, m.axes, m.result_bytes) for m in found.moves]
    [('all-reduce', 'C', ('model',), 1152)]
    >>> found.c.entries, found.cases  # 48/4 rows of 24 floats are 1,152 bytes
    ((('data',), ()), {'data': 1, 'model': 2})
    >>> found.redundancy, found.idle_axes
    (1.0, ())
    >>> found.explicit.error
    'ShardingTypeError'

    Args:
      sizes: (I, J, K): A is [I, J], B is [J, K], and C is [I, K].
      a: the spec of A: a PartitionSpec, or a tuple of its entries.
      b: the spec of B.
      mesh: a Mesh, or a dict: axis name → number of devices.
      out: the spec that C is asked to have; None asks for nothing.
      dtype: the element type of all three.

    Returns:
      A `Matmul`, for a product under `jit` and nothing around it. It covers one mesh
      axis of more than one device with or without `out`; two of them in nearly all
      ways; and more where at most one of them moves anything. What it does not cover
      has a `why_not`. It is what the compilers of JAX 0.10 and 0.12 do for CPU, where
      they move 16-bit numbers as float32, and write a reduce-scatter as an all-reduce
      and a slice: twice the bytes each. For TPU they may make two
      gathers one, and at the default precision float32 moves as bfloat16. `xray`
      counts no product where one device has a single element of J.

    Raises:
      NotUnderstood: `sizes`, a spec or the mesh is not one.
      UnknownAxis, TooManyEntries, AxisUsedTwice, NotDivisible: a spec does not fit.

    Used by the matmul explorer, which chapters 04, 06 and 07 lead to.
    """
    i, j, k = _sizes(sizes)
    shape = dict(getattr(mesh, "shape", mesh))
    lay_a = _layout("A", (i, j), a, shape, dtype)
    lay_b = _layout("B", (j, k), b, shape, dtype)
    wish = None if out is None else _layout("C", (i, k), out, shape, dtype)
    found = plan(
        lay_a.mesh_shape,
        lay_a.entries,
        lay_b.entries,
        (i, j, k),
        lay_a.itemsize,
        wish.entries if wish else None,
    )
    known = found.why_not is None
    lay_c = (
        (wish or _layout("C", (i, k), found.natural, shape, dtype)) if known else None
    )
    idle = tuple(axis for axis, dim in (found.cuts or {}).items() if dim == "-")
    times = 1.0
    for axis in idle:
        times *= shape[axis]
    title = words.say_title(lay_a, lay_b, wish)
    return Matmul(
        a=lay_a,
        b=lay_b,
        c=lay_c,
        cases={axis: words.KINDS[kind][1] for axis, kind in found.kinds.items()},
        kinds={axis: words.KINDS[kind][0] for axis, kind in found.kinds.items()},
        cuts=found.cuts if known else None,
        moves=found.moves if known else None,
        block=found.block,
        flops_per_device=2 * found.block[0] * found.block[1] * found.block[2]
        if found.block
        else None,
        redundancy=times if known else None,
        idle_axes=idle if known else None,
        explicit=_explicit(lay_a, lay_b, wish, found.natural),
        choice=words.say_choice(found, lay_a, lay_b, wish),
        pitfalls=words.say_pitfalls(found, lay_a.mesh_shape),
        steps=words.say_steps(lay_a, lay_b, lay_c, found),
        sentence=words.say_result(title, found, lay_c),
        why_not=found.why_not,
    )


def _sizes(sizes) -> tuple[int, int, int]:
    try:
        given = tuple(sizes)
        whole = tuple(n.__index__() for n in given if not isinstance(n, bool))
    except (TypeError, AttributeError):
        given = whole = ()
    if len(given) != 3 or len(whole) != 3 or min(whole) < 1:
        raise NotUnderstood(
            f"sizes={sizes!r} are not three sizes; give those of A [I, J] and B "
            "[J, K], whole numbers, 1 or more, such as (48, 40, 24)."
        )
    return whole


def _layout(name, shape, spec, mesh, dtype) -> Layout:
    try:
        entries = tuple(spec) if not isinstance(spec, str) else None
        fits = all(
            e is None or isinstance(e, str) or all(isinstance(axis, str) for axis in e)
            for e in entries
        )
    except TypeError:
        fits = False
    if not fits:
        raise NotUnderstood(
            f"{name}: {spec!r} is not a spec; give a PartitionSpec, or a tuple of its "
            "entries, such as ('data', None)."
        )
    try:
        return Layout(shape, dtype, mesh_shape=mesh, entries=entries)
    except SpecError as error:
        raise type(error)(f"{name}: {error}").with_traceback(None) from None


def _explicit(a: Layout, b: Layout, wish: Layout | None, natural: Any) -> Explicit:
    """As JAX types a product: the contraction first, then what is left."""
    rows, left = a.entries
    right, columns = b.entries
    shape = (a.shape[0], b.shape[1])
    if wish is not None:
        made = words.say_type(a.dtype, wish)
        asked = f"out_sharding={spec_words(wish.entries)}"
        return Explicit(
            made, wish.entries, None, None, f"In Explicit mode {asked} makes it {made}."
        )
    better = spec_words(natural) if natural is not None else "P(...)"
    ask = f"say how C is to lie: jnp.matmul(a, b, out_sharding={better})"
    if left and right:
        return _refused(
            "contraction-is-ambiguous",
            f"J is cut over {join_words(left)} in A and over {join_words(right)} in B, "
            f"and the parts can be added up in more than one way; {ask}",
        )
    if twice := [axis for axis in rows if axis in columns]:
        return _refused(
            "axis-twice-in-result",
            f"rows and columns of C would both be cut over {join_words(twice)}; {ask}",
        )
    lay = Layout(shape, a.dtype, mesh_shape=a.mesh_shape, entries=(rows, columns))
    made = words.say_type(a.dtype, lay)
    return Explicit(
        made, lay.entries, None, None, f"In Explicit mode its type is {made}."
    )


def _refused(code: str, why: str) -> Explicit:
    error = "ShardingTypeError"
    return Explicit(
        None, None, error, code, f"Explicit mode refuses it, {error}: {why}."
    )
