"""Asserts about values, shardings, collectives and memory, in a reader's words.

Each takes whole trees, gathers every mismatch with its path, and raises once.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from ._compare import leaf_difference
from ._errors import CheckFailed, NotUnderstood
from ._from_jax import layout
from ._jax_version import require_jax
from ._layout import spec_words
from ._text import bytes_words, count_words, join_words
from ._xray import xray


def assert_close(got, want, rtol: float = 1e-5):
    """Check that two trees hold the same numbers.

    Whole numbers, booleans and texts must be equal. Floats must lie within
    `rtol` of the largest magnitude in their array, so that a sum that came in
    another order passes and a factor does not.

    >>> assert_close({"w": 2.0}, {"w": 2.0})
    >>> assert_close({"w": 16.0, "b": 1.0}, {"w": 2.0, "b": 1.0})
    Traceback (most recent call last):
        ...
    spmd_helpers._errors.CheckFailed: ['w']: 16.0 is 8 times what it must be

    Args:
        got: a tree (or one) of arrays or plain numbers: what you have.
        want: the same tree of what it must be.
        rtol: for floats, largest difference as a share of max(abs(want)).

    Raises:
        CheckFailed: with every leaf that differs, by its path.

    Used from chapter 01 on.
    """
    jax = require_jax()
    got_leaves, want_leaves = _leaves(jax, got), _leaves(jax, want)
    wrong = _tree_differences(jax, got, want)
    if not wrong:
        for path, value in want_leaves.items():
            difference = leaf_difference(got_leaves[path], value, rtol)
            if difference:
                wrong.append(_at(path) + difference)
    _raise_if(wrong)


def assert_sharding(x, spec, mesh=None):
    """Check how arrays are cut over the mesh, whatever their values.

    Shardings count as equal when they put the same blocks on the same devices:
    P('data') and P('data', None) are one sharding of a matrix.

    >>> import jax
    >>> from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
    >>> mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    >>> x = jax.device_put(jax.numpy.zeros((16, 3)), NamedSharding(mesh, P("data")))
    >>> assert_sharding({"x": x}, P("data", None))
    >>> assert_sharding({"x": x}, P())
    Traceback (most recent call last):
        ...
    spmd_helpers._errors.CheckFailed: ['x']: float32[16, 3] lies as \
P('data', None), (2, 3) on each device, and must lie as P(None, None), (16, 3) on \
each device

    Args:
        x: a tree of `jax.Array`s (or ShapeDtypeStructs that carry a sharding).
        spec: a PartitionSpec for all leaves, or a tree of them; a spec may stand
            for a whole subtree.
        mesh: the Mesh they must lie on; by default the one each leaf is on.

    Raises:
        CheckFailed: with every leaf that lies otherwise, by its path.
        SpecError: the spec does not fit the array or the mesh.

    Used from chapter 02 on.
    """
    jax = require_jax()
    is_spec = lambda leaf: isinstance(leaf, jax.sharding.PartitionSpec)  # noqa: E731
    try:
        specs = jax.tree.broadcast(spec, x, is_leaf=is_spec)
    except ValueError:
        raise CheckFailed(
            "the tree you have is not built like the tree of specs: "
            f"{jax.tree.structure(x)} against "
            f"{jax.tree.structure(spec, is_leaf=is_spec)}"
        ) from None
    wanted = jax.tree.leaves(specs, is_leaf=is_spec)
    leaves = _leaves(jax, x)
    if not leaves:
        raise CheckFailed("there is no array to look at: the tree is empty")
    wrong = []
    for (path, leaf), want in zip(leaves.items(), wanted, strict=True):
        if not is_spec(want):
            raise NotUnderstood(
                f"assert_sharding(spec={want!r}): write a PartitionSpec, like P('data')"
            )
        difference = _sharding_difference(jax, leaf, want, mesh)
        if difference:
            wrong.append(_at(path) + difference)
    _raise_if(wrong)


def assert_same_as_one_device(f: Callable, *args, rtol: float = 1e-5, reference=None):
    """Check that a function gives, on sharded arguments, what one device gives.

    The function runs twice: on the arguments as they are, and on copies of them
    that all lie on one device. Arguments that the function donates stay usable.

    >>> import jax
    >>> from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
    >>> mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    >>> x = jax.device_put(jax.numpy.arange(16.0), NamedSharding(mesh, P("data")))
    >>> assert_same_as_one_device(jax.jit(lambda x: x.sum()), x)

    Args:
        f: a function of arrays, jitted or not.
        args: trees of arrays, placed as you want to try them.
        rtol: as in `assert_close`.
        reference: what to run on one device; by default `f` itself, without its
            jit and thus without the shardings written there. A function that
            names mesh axes or a mesh (pmap, shard_map, a sharding constraint)
            can't run on one device: give its twin.

    Raises:
        CheckFailed: with every output that differs, by its path.

    Used from chapter 01 on.
    """
    jax = require_jax()
    one = jax.devices()[0]
    for leaf in jax.tree.leaves(args):
        if isinstance(leaf, jax.Array):
            one = min(leaf.sharding.device_set, key=lambda device: device.id)
            break
    plain = reference or jax.jit(getattr(f, "__wrapped__", f))
    want = plain(*_copies(jax, args, lambda leaf: one))
    got = f(*_copies(jax, args, lambda leaf: leaf.sharding))
    try:
        assert_close(got, want, rtol=rtol)
    except CheckFailed as error:
        raise CheckFailed(f"not what one device computes: {error}") from None


def assert_collectives(
    f,
    *args,
    at_most: Mapping[str, int] | None = None,
    exactly: Mapping[str, int] | None = None,
    over: str | Iterable[str] | None = None,
    at_most_bytes: int | None = None,
    **kwargs,
):
    """Check which collectives the compiled function runs; it is not run itself.

    A budget is the whole budget: a kind that it does not name may not occur.
    Loops count each turn.

    >>> import jax
    >>> from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
    >>> mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    >>> x = jax.device_put(jax.numpy.zeros((16, 3)), NamedSharding(mesh, P("data")))
    >>> assert_collectives(lambda x: x * 2, x, exactly={})
    >>> assert_collectives(lambda x: x.sum(), x, at_most={"all-reduce": 1}, over="data")

    Args:
        f: a function, jitted or not, or what `xray` returned.
        args, kwargs: what it would be called with; arrays or ShapeDtypeStructs.
        at_most: largest number of each kind, as {"all-gather": 1}.
        exactly: the number of each kind, all kinds that occur.
        over: the mesh axis, or axes, along which all of them must run.
        at_most_bytes: largest sum of the collectives' results on one device, in
            bytes, each counted as often as it runs.

    Raises:
        CheckFailed: with each kind that is over its budget, and where it came from.
        NotUnderstood: no budget is given.

    Used from chapter 01 on.
    """
    if at_most is None and exactly is None and over is None and at_most_bytes is None:
        raise NotUnderstood(
            "assert_collectives needs something to hold the program to: "
            "at_most={'all-reduce': 1}, exactly={...}, over='data' or at_most_bytes=8"
        )
    seen = getattr(f, "collectives", None)
    if seen is None:
        seen = xray(f, *args, **kwargs).collectives
    counts: Counter = Counter()
    for one in seen:
        if one.count is None:
            counts[one.kind] = None
        elif counts[one.kind] is not None:
            counts[one.kind] += one.count
    wrong = _over_budget(counts, at_most, seen) + _not_exactly(counts, exactly, seen)
    if over is not None:
        allowed = {over} if isinstance(over, str) else set(over)
        for one in seen:
            if not set(one.axes) <= allowed:
                axes = join_words([f"'{axis}'" for axis in one.axes])
                wanted = join_words([f"'{axis}'" for axis in sorted(allowed)])
                wrong.append(f"{one.kind} over {axes}, and only {wanted} may be used")
    if at_most_bytes is not None and None not in counts.values():
        moved = sum(one.result_bytes * one.count for one in seen)
        if moved > at_most_bytes:
            wrong.append(
                f"{moved:,} bytes are exchanged, and the budget is {at_most_bytes:,}"
            )
    elif at_most_bytes is not None:
        wrong.append("a collective runs an unknown number of times, on a byte budget")
    _raise_if(wrong)


def assert_peak_memory(f, *args, at_most_bytes: int, **kwargs):
    """Check the compiler's own figure for the memory a function needs.

    >>> import jax
    >>> x = jax.numpy.zeros((256, 256))  # 256 * 256 * 4 = 262,144 bytes
    >>> assert_peak_memory(lambda x: x + 1, x, at_most_bytes=600_000)

    Args:
        f, args, kwargs: as in `assert_collectives`; nothing is run.
        at_most_bytes: bytes on each device, arguments and results included.

    Raises:
        CheckFailed: the program needs more.

    Used from chapter 09 on.
    """
    peak = getattr(f, "peak_memory", None)
    if peak is None:
        peak = xray(f, *args, **kwargs).peak_memory
    if peak > at_most_bytes:
        raise CheckFailed(
            f"needs {bytes_words(peak)} on each device at its peak, and the budget "
            f"is {bytes_words(at_most_bytes)}"
        )


def _leaves(jax, tree) -> dict[str, object]:
    paths = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path): leaf for path, leaf in paths}


def _at(path: str) -> str:
    return f"{path}: " if path else ""


def _raise_if(wrong: list[str]):
    if wrong:
        raise CheckFailed("\n".join(wrong))


def _tree_differences(jax, got, want) -> list[str]:
    got_paths, want_paths = _leaves(jax, got).keys(), _leaves(jax, want).keys()
    missing = [path for path in want_paths if path not in got_paths]
    extra = [path for path in got_paths if path not in want_paths]
    if missing == [""]:
        return [f"a tree with {join_words(extra)}, and it must be one value"]
    if extra == [""]:
        return [f"one value, and it must be a tree with {join_words(missing)}"]
    return [f"{path}: is missing" for path in missing] + [
        f"{path}: is too many" for path in extra
    ]


def _sharding_difference(jax, leaf, spec, mesh) -> str:
    sharding = getattr(leaf, "sharding", None)
    if not isinstance(sharding, jax.sharding.Sharding):
        return f"a {type(leaf).__name__} has no sharding; it must be a jax.Array"
    own = getattr(sharding, "mesh", None)
    words = f"{leaf.dtype}[{', '.join(map(str, leaf.shape))}]"
    if mesh is None and own is None:
        return f"{words} lies on one device only, outside every mesh"
    wanted = layout(leaf.shape, spec, mesh=mesh or own, dtype=leaf.dtype)
    target = jax.sharding.NamedSharding(mesh or own, spec)
    if sharding.is_equivalent_to(target, len(leaf.shape)):
        return ""
    have = layout(leaf)
    if have.spec is None:
        seen = "lies on one device only"
    else:
        seen = f"lies as {spec_words(have.entries)}, {have.shard_shape} on each device"
    must = f"{spec_words(wanted.entries)}, {wanted.shard_shape} on each device"
    if seen == f"lies as {must}":
        return f"{words} is cut as it must be, but lies on another mesh"
    return f"{words} {seen}, and must lie as {must}"


def _copies(jax, tree, place: Callable):
    def copy(leaf):
        if not isinstance(leaf, jax.Array):
            return leaf
        if jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jax.device_put(leaf, place(leaf), may_alias=False)
        return jax.device_put(jax.device_get(leaf), place(leaf))

    return jax.tree.map(copy, tree)


def _times(count: int | None) -> str:
    return "an unknown number of times" if count is None else count_words(count, "time")


def _where(kind: str, seen) -> str:
    places = dict.fromkeys(one.source for one in seen if one.kind == kind)
    known = [place for place in places if place]
    return f" (from {join_words(known)})" if known else ""


def _over_budget(counts, budget, seen) -> list[str]:
    if budget is None:
        return []
    return [
        f"{kind} runs {_times(count)}{_where(kind, seen)}, and the budget is "
        f"{budget.get(kind, 0)}"
        for kind, count in counts.items()
        if count is None or count > budget.get(kind, 0)
    ]


def _not_exactly(counts, exactly, seen) -> list[str]:
    if exactly is None:
        return []
    return [
        f"{kind} runs {_times(counts.get(kind, 0))}{_where(kind, seen)}, and must run "
        f"{_times(exactly.get(kind, 0))}"
        for kind in sorted({*counts, *exactly})
        if counts.get(kind, 0) != exactly.get(kind, 0)
    ]
