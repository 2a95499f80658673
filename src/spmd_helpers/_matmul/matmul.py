"""A product of two sharded matrices: what moves, what is repeated, how C is sharded."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from .._core.validate import as_integer
from .._core.words import join_words
from .._errors import NotUnderstood, SpecError
from .._shardings.from_jax import read_mesh
from .._shardings.sharding import ShardingInfo, as_tuples, spec_words
from . import words
from .follow import DeviceStage, Follow
from .rule import Entries, Move, Stage, plan

if TYPE_CHECKING:
    from jax.sharding import PartitionSpec

    from .._shardings.types import MeshLike

# A spec as it is typed: JAX's own, or the entries alone.
Spec: TypeAlias = "PartitionSpec | Sequence[str | Sequence[str] | None]"


@dataclass(frozen=True)
class Explicit:
    """What Explicit mode says of the product.

    Attributes:
        type: the result's type as `jax.typeof` prints it; None if JAX refuses.
        entries: how that result is sharded; None if JAX refuses.
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
    """What a product of two sharded matrices needs. What `why_not` leaves open is None.

    Attributes:
        a: the ShardingInfo of A, [I, J].
        b: the ShardingInfo of B, [J, K].
        c: the ShardingInfo of the result, [I, K].
        cases: mesh axis → the case of chapter 4, or 0 where the axis shards nothing; of
            axes with more than one device.
        kinds: mesh axis → what it shards, in words.
        cuts: mesh axis → the dimension of the product that it shards at the multiply:
            'I', 'J', 'K', or '-' where all its devices compute the same.
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
        stages: how A, B and C are sharded before, after each move, and at the multiply;
            see `Stage`. `follow` says it of one device.
        sentence: the answer in one sentence.
        why_not: why the rule does not cover this, or None.
    """

    a: ShardingInfo
    b: ShardingInfo
    c: ShardingInfo | None
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
    stages: tuple[Stage, ...] | None
    sentence: str
    why_not: str | None

    def follow(self, device: int) -> tuple[DeviceStage, ...]:
        """What one device has of A, B and C before, after each move and at the end.

        >>> mesh = {"data": 4, "model": 2}
        >>> product = matmul((48, 40, 24), ("data", "model"), ("model",), mesh=mesh)
        >>> for stage in product.follow(5):
        ...     print(stage.heading, stage.c, stage.sums)
        Before None 1
        Multiply ((24, 36), (0, 24)) 2
        All-reduce of C over model ((24, 36), (0, 24)) 1
        >>> print(product.follow(5)[2].sentence)
        Device 5 gets the sum over 2 devices: C[24:36, 0:24], complete.

        Args:
            device: its position in the mesh, the last axis fastest.

        Returns:
            A `DeviceStage` for each of `stages`.

        Raises:
            NotUnderstood: there is no such device, or the rule does not cover the
                product.
        """
        count = self.a.device_count
        if self.stages is None or self.moves is None or self.idle_axes is None:
            raise NotUnderstood(
                f"follow: the rule does not cover this product: {self.why_not}. "
                "spmd.xray compiles it and shows what happens."
            )
        if as_integer(device, 0) is None or device >= count:
            raise NotUnderstood(
                f"device={device!r} is none of the {count} devices; give a position "
                f"from 0 to {count - 1}."
            )
        (i, j), k = self.a.shape, self.b.shape[1]
        mesh = self.a.mesh_shape
        return Follow(
            (i, j, k), mesh, self.stages, self.moves, self.idle_axes, device
        ).run()

    def __repr__(self) -> str:
        names = ("before", "communicate", "multiply", "reduce")
        named_steps = zip(names, self.steps, strict=True)
        lines = [
            self.sentence,
            *(f"  {name}: {step}" for name, step in named_steps if step),
        ]
        if self.why_not:
            lines.append(f"  not covered: {self.why_not}")
            lines.append("  spmd.xray compiles it and shows what happens")
        more = (self.choice, *self.pitfalls, self.explicit.sentence)
        return "\n".join([*lines, *(f"  {line}" for line in more if line)])


def matmul(
    sizes: Sequence[int],
    a: Spec,
    b: Spec,
    *,
    mesh: "MeshLike",
    out: "Spec | None" = None,
    dtype: str = "float32",
) -> Matmul:
    """What a product of two sharded matrices moves and repeats, without compiling it.

    >>> product = matmul(
    ...     (48, 40, 24), ("data", "model"), ("model",), mesh={"data": 4, "model": 2}
    ... )
    >>> [(m.kind, m.of, m.axes, m.result_bytes) for m in product.moves]
    [('all-reduce', 'C', ('model',), 1152)]
    >>> product.c.entries, product.cases  # 48/4 rows of 24 floats are 1,152 bytes
    ((('data',), ()), {'data': 1, 'model': 2})
    >>> product.redundancy, product.idle_axes
    (1.0, ())
    >>> product.explicit.error
    'ShardingTypeError'

    Args:
        sizes: (I, J, K): A is [I, J], B is [J, K], and C is [I, K].
        a: the spec of A: a PartitionSpec, or a tuple of its entries.
        b: the spec of B.
        mesh: a Mesh, or a dict: axis name → number of devices.
        out: the spec that C shall have; None leaves it to the compiler.
        dtype: the element type of all three.

    Returns:
        A `Matmul`, for a product under `jit` and nothing around it. It covers one mesh
        axis of more than one device with or without `out`; every pair of specs over two
        of them, unless shards would have to be padded, and some `out`; and more where
        at most one of them moves anything. What it does not cover has a `why_not`. It
        is what the compilers of JAX 0.10 and 0.12 do for CPU, where they move 16-bit
        numbers as float32, and write a reduce-scatter as an all-reduce and a slice:
        twice the bytes each. For TPU they may make two gathers one, and at the default
        precision float32 moves as bfloat16. `xray` counts no product where one device
        has a single element of J.

    Raises:
        NotUnderstood: `sizes`, a spec or the mesh is not one.
        UnknownAxis, TooManyEntries, AxisUsedTwice, NotDivisible: a spec does not fit.

    Used by the matmul explorer, which chapters 04, 06 and 07 lead to.
    """
    i, j, k = _sizes(sizes)
    shape = read_mesh(mesh).shape
    info_a = _side("A", (i, j), a, shape, dtype)
    info_b = _side("B", (j, k), b, shape, dtype)
    wish = None if out is None else _side("C", (i, k), out, shape, dtype)
    steps = plan(
        info_a.mesh_shape,
        info_a.entries,
        info_b.entries,
        (i, j, k),
        info_a.itemsize,
        wish.entries if wish else None,
    )
    known = steps.why_not is None
    info_c = None
    if known and steps.natural is not None:
        info_c = wish or _side("C", (i, k), steps.natural, shape, dtype)
    idle = tuple(axis for axis, dim in steps.cuts.items() if dim == "-")
    times = 1.0
    for axis in idle:
        times *= shape[axis]
    title = words.say_title(info_a, info_b, wish)
    return Matmul(
        a=info_a,
        b=info_b,
        c=info_c,
        cases={axis: words.KINDS[kind][1] for axis, kind in steps.kinds.items()},
        kinds={axis: words.KINDS[kind][0] for axis, kind in steps.kinds.items()},
        cuts=steps.cuts if known else None,
        moves=steps.moves if known else None,
        block=steps.block,
        flops_per_device=2 * steps.block[0] * steps.block[1] * steps.block[2]
        if steps.block
        else None,
        redundancy=times if known else None,
        idle_axes=idle if known else None,
        explicit=_explicit(info_a, info_b, wish, steps.natural),
        choice=words.say_choice(steps, info_a, info_b, wish),
        pitfalls=words.say_pitfalls(steps, info_a.mesh_shape),
        steps=words.say_steps(info_a, info_b, info_c, steps),
        stages=steps.stages if known else None,
        sentence=words.say_result(title, steps, info_c),
        why_not=steps.why_not,
    )


def _sizes(sizes: Sequence[int]) -> tuple[int, int, int]:
    try:
        i, j, k = (as_integer(n, 1) for n in sizes)
    except (TypeError, ValueError):
        i = j = k = None
    if i is None or j is None or k is None:
        raise NotUnderstood(
            f"sizes={sizes!r} are not three sizes; give those of A [I, J] and B [J, "
            "K], integers, 1 or more, such as (48, 40, 24)."
        )
    return i, j, k


def _side(
    name: str, shape: tuple[int, int], spec: Spec, mesh: Mapping[str, int], dtype: str
) -> ShardingInfo:
    try:
        entries = None if isinstance(spec, str) else as_tuples(spec)
    except TypeError:
        entries = None
    if entries is None or not all(isinstance(a, str) for e in entries for a in e):
        raise NotUnderstood(
            f"{name}: {spec!r} is not a spec; give a PartitionSpec, or a tuple of its "
            "entries, such as ('data', None)."
        )
    try:
        return ShardingInfo(shape, dtype, mesh_shape=mesh, entries=entries)
    except SpecError as error:
        raise type(error)(f"{name}: {error}").with_traceback(None) from None


def _explicit(
    a: ShardingInfo,
    b: ShardingInfo,
    wish: ShardingInfo | None,
    natural: Entries | None,
) -> Explicit:
    """As JAX types a product: the contraction first, then what is left."""
    rows, left = a.entries
    right, columns = b.entries
    shape = (a.shape[0], b.shape[1])
    if wish is not None:
        result_type = words.say_type(a.dtype, wish)
        wish_words = f"out_sharding={spec_words(wish.entries)}"
        return Explicit(
            result_type,
            wish.entries,
            None,
            None,
            f"In Explicit mode {wish_words} makes it {result_type}.",
        )
    better = spec_words(natural) if natural is not None else "P(...)"
    ask = f"state the sharding of C: jnp.matmul(a, b, out_sharding={better})"
    if left and right:
        return _refused(
            "contraction-is-ambiguous",
            f"J is sharded over {join_words(left)} in A and over {join_words(right)} "
            f"in B, and the partial sums can be reduced in more than one way; {ask}",
        )
    if twice := [axis for axis in rows if axis in columns]:
        return _refused(
            "axis-twice-in-result",
            f"rows and columns of C would both be sharded over {join_words(twice)}; "
            f"{ask}",
        )
    info = ShardingInfo(
        shape, a.dtype, mesh_shape=a.mesh_shape, entries=(rows, columns)
    )
    result_type = words.say_type(a.dtype, info)
    return Explicit(
        result_type,
        info.entries,
        None,
        None,
        f"In Explicit mode its type is {result_type}.",
    )


def _refused(code: str, why: str) -> Explicit:
    error = "ShardingTypeError"
    return Explicit(None, None, error, code, f"Explicit mode raises {error}: {why}.")
