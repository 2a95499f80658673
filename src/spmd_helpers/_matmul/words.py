"""A product of two sharded matrices in words: the steps, the price, the pitfalls."""

import math
from collections.abc import Mapping, Sequence

from .._core.words import bytes_words, join_words
from .._shardings.sharding import ShardingInfo, mesh_words, spec_words
from .rule import ONE_SIDED, Move, Plan

# What an axis cuts, by its two letters, and the case of chapter 4; 0 is none of them.
KINDS = {
    "--": ("nothing", 0),
    "I-": ("rows of A", 1),
    "-K": ("columns of B", 1),
    "JJ": ("J of A and of B", 2),
    "J-": ("J of A only", 3),
    "-J": ("J of B only", 3),
    "IJ": ("rows of A and J of B", 3),
    "JK": ("J of A and columns of B", 3),
    "IK": ("rows of A and columns of B", 4),
}


def say_title(a: ShardingInfo, b: ShardingInfo, wish: ShardingInfo | None) -> str:
    """The question in one line."""
    wish_words = f" → {spec_words(wish.entries)}" if wish else ""
    mesh = f" on {mesh_words(a.mesh_shape)}" if a.axes else " on one device"
    return f"{spec_words(a.entries)} · {spec_words(b.entries)}{wish_words}{mesh}"


def say_result(title: str, plan: Plan, c: ShardingInfo | None) -> str:
    """The answer in one sentence."""
    if c is None:
        return f"{title}: the rule does not cover it."
    moved = [f"{m.kind} of {m.of} over {join_words(m.axes)}" for m in plan.moves]
    idle = [axis for axis, dim in plan.cuts.items() if dim == "-"]
    waste = "no redundant work"
    if idle:
        times = math.prod(c.mesh_shape[axis] for axis in idle)
        waste = f"redundancy {times}: devices along {join_words(idle)} do the same work"
    what = ", then ".join(moved) or "no communication"
    return f"{title}: {what}; C is sharded as {spec_words(c.entries)}; {waste}."


def say_steps(
    a: ShardingInfo, b: ShardingInfo, c: ShardingInfo | None, plan: Plan
) -> tuple[str, ...]:
    """Before, communicate, multiply, reduce: a sentence or two each."""
    before = (
        f"Each device has {_times(a.shard_shape)} of A, "
        f"{bytes_words(a.bytes_per_device)}, and {_times(b.shard_shape)} of B, "
        f"{bytes_words(b.bytes_per_device)}."
    )
    if c is None or plan.block is None:
        return (before, "", "", "")
    multiply = _multiply(plan, plan.block, c)
    return (before, _communicate(plan), multiply, _reduce(plan, c))


def _communicate(plan: Plan) -> str:
    words = [say_move(move) for move in plan.moves if move.of != "C"]
    if plan.swapped:
        small, large = plan.swapped
        words.insert(
            0,
            f"{plan.moves[0].of} is not sharded over {large}, so its shards are first "
            f"sent there from {small}.",
        )
    sliced = [of for of in "AB" if _slices(plan, of)]
    if not words:
        words = ["Nothing is communicated."]
        if not sliced:
            words.append("Each device has what it multiplies.")
    if sliced:
        slices = f"its slices of {' and of '.join(sliced)}"
        words.append(f"Each device takes {slices} from what it has, without exchange.")
    return " ".join(words)


def _slices(plan: Plan, of: str) -> bool:
    """Whether the product is cut where this operand is not."""
    side, dims = (0, "IJ") if of == "A" else (1, "JK")
    return any(
        kind[side] == "-" and plan.cuts[axis] in dims
        for axis, kind in plan.kinds.items()
        if not (plan.swapped and axis in plan.swapped)
    )


def say_move(move: Move) -> str:
    """One exchange with its bytes."""
    return (
        f"{move.kind.capitalize()} of {move.of} over {join_words(move.axes)}: each "
        f"device puts in {bytes_words(move.operand_bytes)}, sends "
        f"{bytes_words(move.wire_bytes)} and gets {bytes_words(move.result_bytes)}."
    )


def _multiply(plan: Plan, block: tuple[int, int, int], c: ShardingInfo) -> str:
    i, j, k = block
    idle = [axis for axis, dim in plan.cuts.items() if dim == "-"]
    words = (
        f"Each device multiplies {_times((i, j))} by {_times((j, k))}: "
        f"2 · {i} · {j} · {k} = {2 * i * j * k} FLOPs."
    )
    if not idle:
        return f"{words} No work is redundant: redundancy 1."
    times = math.prod(c.mesh_shape[axis] for axis in idle)
    return (
        f"{words} The product is not sharded over {join_words(idle)}, so {times} "
        f"devices compute the same: redundancy {times}."
    )


def _reduce(plan: Plan, c: ShardingInfo) -> str:
    words = [say_move(move) for move in plan.moves if move.of == "C"]
    words = words or ["There is nothing to reduce."]
    each = f"{_times(c.shard_shape)} per device, {bytes_words(c.bytes_per_device)}"
    return " ".join([*words, f"C is sharded as {spec_words(c.entries)}: {each}."])


def say_choice(
    plan: Plan, a: ShardingInfo, b: ShardingInfo, wish: ShardingInfo | None
) -> str:
    """Where the compiler could do otherwise: both prices, and which it takes."""
    if plan.why_not:
        return ""
    kinds, wished = plan.kinds, wish.entries if wish else ()
    free = {
        axis: kind
        for axis, kind in kinds.items()
        if not any(axis in entry for entry in wished)
    }
    if crossed := [axis for axis, kind in free.items() if kind == "IK"]:
        return (
            f"Along {join_words(crossed)} only one of A and B can stay sharded. The "
            f"compiler gathers the smaller, A of {bytes_words(a.total_bytes)} or B of "
            f"{bytes_words(b.total_bytes)}, and B if they are equal."
        )
    sided = [axis for axis, kind in free.items() if kind in ONE_SIDED]
    if not sided:
        return ""
    if len({kinds[axis] for axis in sided}) > 1:
        return (
            "A and B are sharded along J over different axes. If these axes are "
            "equally long, the compiler sends the shards of the smaller operand to "
            "the other axis, of A if they are equal; otherwise it gathers both."
        )
    if plan.swapped:
        return ""
    of, other = ("A", "B") if kinds[sided[0]] == "J-" else ("B", "A")
    along = join_words(sided)
    ways = (
        f"Two ways: gather {of} along {along} and repeat the product there, or take "
        f"slices of {other} and reduce C."
    )
    opposite = "JK" if of == "A" else "IJ"
    beside = [x for x, kind in kinds.items() if kind in ("--", "JJ", opposite)]
    if beside:
        return f"{ways} Beside {join_words(beside)} the compiler gathers."
    gathered, added = _prices(plan, a, b, of, sided)
    return (
        f"{ways} That is {bytes_words(gathered)} of {of} or {bytes_words(added)} of C "
        "on each device. The compiler takes what is smaller, and gathers if they are "
        "equal."
    )


def _prices(
    plan: Plan, a: ShardingInfo, b: ShardingInfo, of: str, sided: Sequence[str]
) -> tuple[int, int]:
    """Bytes of the operand gathered, and of the part of C that would be added up."""
    rows, columns = (
        math.prod(
            a.mesh_shape[axis]
            for axis, cut in plan.cuts.items()
            if cut == dim and axis not in sided
        )
        for dim in "IK"
    )
    (i, j), k = a.shape, b.shape[1]
    one = i // rows * j if of == "A" else j * (k // columns)
    return one * a.itemsize, (i // rows) * (k // columns) * a.itemsize


def say_pitfalls(plan: Plan, mesh: Mapping[str, int]) -> tuple[str, ...]:
    """Claims 8 and 9 of the book, where they apply."""
    pitfalls = []
    moved = {move.of for move in plan.moves}
    for axis in (x for x, kind in plan.kinds.items() if kind in ("IJ", "-J")):
        price = "B has to be communicated" if "B" in moved else "C has to be reduced"
        price = "something has to be communicated" if plan.why_not else price
        pitfalls.append(
            f"Claim 8: {axis} shards J of B and not of A. The numbers are right, and "
            f"{price}. On purpose, to save memory, it is called FSDP."
        )
    idle = [] if plan.why_not else [x for x, dim in plan.cuts.items() if dim == "-"]
    if idle:
        share = f"{100 / math.prod(mesh[axis] for axis in idle):.1f}".removesuffix(".0")
        pitfalls.append(
            f"Claim 9: the product is not sharded over {join_words(idle)}, so {share} "
            f"% of the devices' work is useful. Shard a dimension over "
            f"{join_words(idle)}."
        )
    return tuple(pitfalls)


def say_type(dtype: str, info: ShardingInfo) -> str:
    """An array's type on an Explicit mesh, as `jax.typeof` prints it."""
    dims = []
    for size, entry in zip(info.shape, info.entries, strict=True):
        axes = entry[0] if len(entry) == 1 else f"({','.join(entry)})"
        dims.append(f"{size}@{axes}" if entry else f"{size}")
    return f"{dtype}[{','.join(dims)}]"


def _times(block: Sequence[int]) -> str:
    return " × ".join(map(str, block))
