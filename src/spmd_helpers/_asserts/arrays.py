"""Asserts about values and shardings, in a reader's words.

Each takes trees, gathers every mismatch with its path, and raises once.
"""

from collections.abc import Callable, Sequence
from operator import attrgetter
from types import ModuleType
from typing import TYPE_CHECKING, Any

from .._core.validate import is_number
from .._core.words import join_words
from .._errors import CheckFailed, MeshMismatch, NotUnderstood, SpecError
from .._runtime.require import require_jax
from .._shardings.from_jax import sharding as read_sharding
from .._shardings.sharding import ShardingInfo, spec_words
from .compare import leaf_difference

if TYPE_CHECKING:
    import jax
    from jax.sharding import AbstractMesh, Mesh, PartitionSpec

    from .._shardings.types import JaxDevice


def assert_close(got: object, want: object, rtol: float = 1e-5) -> None:
    """Check that two trees have the same values.

    Integers, booleans and texts must be equal. Floats must be within
    `rtol` of the largest magnitude in their array, so that a sum that came in
    another order passes and a factor does not. Random keys compare as their bits.

    >>> assert_close({"w": 2.0}, {"w": 2.0})
    >>> assert_close({"w": 16.0, "b": 1.0}, {"w": 2.0, "b": 1.0})
    Traceback (most recent call last):
        ...
    spmd_helpers._errors.CheckFailed: ['w']: 16.0 is 8 times the expected value

    Args:
        got: a tree (or one) of arrays or plain numbers: what you have.
        want: the same tree of what it must be (a list may stand for a tuple).
        rtol: for floats, largest difference as a share of max(abs(want)).

    Raises:
        CheckFailed: with every leaf that differs, by its path.
        NotUnderstood: `rtol` is not a number of 0 or more.

    Used from chapter 01 on.
    """
    jax = require_jax()
    if not is_number(rtol) or not rtol >= 0:
        raise NotUnderstood(f"assert_close(rtol={rtol!r}): write a number, like 1e-5")
    got_leaves, want_leaves = _leaves(jax, got), _leaves(jax, want)
    wrong = _tree_differences(jax, got, want)
    if not wrong:
        for path, value in want_leaves.items():
            have = _key_bits(jax, got_leaves[path])
            difference = leaf_difference(have, _key_bits(jax, value), rtol)
            if difference:
                wrong.append(_at(path) + difference)
    _raise_if(wrong)


def assert_sharding(
    x: object, spec: object, mesh: "Mesh | AbstractMesh | None" = None
) -> None:
    """Check how arrays are sharded over the mesh, whatever their values.

    Shardings count as equal when they put the same shards on the same devices:
    P('data') and P('data', None) are one sharding of a matrix.

    >>> import jax
    >>> from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
    >>> mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    >>> x = jax.device_put(jax.numpy.zeros((16, 3)), NamedSharding(mesh, P("data")))
    >>> assert_sharding({"x": x}, P("data", None))
    >>> assert_sharding({"x": x}, P())
    Traceback (most recent call last):
        ...
    spmd_helpers._errors.CheckFailed: ['x']: float32[16, 3] is sharded as \
P('data', None), (2, 3) per device, but must be P(None, None), (16, 3) per device

    Args:
        x: a tree of `jax.Array`s (or ShapeDtypeStructs that carry a sharding).
        spec: a PartitionSpec for all leaves, or a tree of them; a spec may stand
            for a subtree.
        mesh: the Mesh they must be on, or an AbstractMesh with its axes; by
            default the one each leaf is on.

    Raises:
        CheckFailed: with every leaf that is sharded differently, by its path.
        SpecError: the spec does not fit the array or the mesh.
        NotUnderstood: `spec` or `mesh` is something else.

    Used from chapter 02 on.
    """
    jax = require_jax()
    kinds = (jax.sharding.Mesh, jax.sharding.AbstractMesh)
    if mesh is not None and not isinstance(mesh, kinds):
        raise NotUnderstood(
            f"assert_sharding(mesh={mesh!r}): give a Mesh, like x.sharding.mesh, or"
            " leave it out"
        )

    def is_spec(leaf: object) -> bool:
        return isinstance(leaf, jax.sharding.PartitionSpec)

    every = jax.tree.leaves(spec, is_leaf=lambda leaf: is_spec(leaf) or leaf is None)
    for one in every:
        if not is_spec(one):
            raise NotUnderstood(
                f"assert_sharding(spec={spec!r}): write a PartitionSpec, like "
                f"P('data'), where {one!r} stands"
            )
    try:
        specs = jax.tree.broadcast(spec, x, is_leaf=is_spec)
    except ValueError:
        raise CheckFailed(
            "the tree you have differs in structure from the tree of specs: "
            f"{jax.tree.structure(x)} against "
            f"{jax.tree.structure(spec, is_leaf=is_spec)}"
        ) from None
    wanted = jax.tree.leaves(specs, is_leaf=is_spec)
    leaves = _leaves(jax, x)
    if not leaves:
        raise CheckFailed("there is no array to check: the tree is empty")
    wrong = []
    for (path, leaf), want in zip(leaves.items(), wanted, strict=True):
        try:
            difference = _sharding_difference(jax, leaf, want, mesh)
        except (SpecError, MeshMismatch) as error:
            raise type(error)(_at(path) + str(error)) from None
        if difference:
            wrong.append(_at(path) + difference)
    _raise_if(wrong)


def assert_same_as_one_device(
    f: Callable[..., object],
    *args: object,
    rtol: float = 1e-5,
    reference: Callable[..., object] | None = None,
) -> None:
    """Check that a function gives, on sharded arguments, what one device gives.

    The function runs twice: on the arguments as they are, and on copies of them
    that are all on one device. Arguments that the function donates stay usable.

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
        NotUnderstood: `f` or `reference` is not a function.

    Used from chapter 01 on.
    """
    jax = require_jax()
    for name, given in {"f": f, "reference": reference}.items():
        if not callable(given) and (name == "f" or given is not None):
            raise NotUnderstood(
                f"assert_same_as_one_device({name}={given!r}): give a function"
            )
    one: JaxDevice = jax.devices()[0]
    for leaf in jax.tree.leaves(args):
        if isinstance(leaf, jax.Array):
            one = min(leaf.sharding.device_set, key=attrgetter("id"))
            break
    # A jitted function has `lower`, and its own text under `__wrapped__`.
    plain = getattr(f, "__wrapped__", f) if hasattr(f, "lower") else f
    plain = plain if reference is None else reference
    try:
        want = plain(*_copies(jax, args, lambda leaf: one))
    except Exception as error:
        if reference is None and not isinstance(error, NotImplementedError):
            error.add_note(
                "assert_same_as_one_device ran the function on one device. If it"
                " names a mesh or its axes, give its one-device twin as reference="
            )
        raise
    got = f(*_copies(jax, args, lambda leaf: leaf.sharding))
    try:
        assert_close(got, want, rtol=rtol)
    except CheckFailed as error:
        raise CheckFailed(f"not what one device computes: {error}") from None


def _leaves(jax: ModuleType, tree: object) -> dict[str, Any]:
    paths = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path): leaf for path, leaf in paths}


def _at(path: str) -> str:
    return f"{path}: " if path else ""


def _raise_if(wrong: Sequence[str]) -> None:
    if wrong:
        raise CheckFailed("\n".join(wrong))


def _key_bits(jax: ModuleType, leaf: object) -> object:
    """A random key as its integers; anything else as it is."""
    dtype = getattr(leaf, "dtype", None)
    if isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(
        dtype, jax.dtypes.prng_key
    ):
        return jax.random.key_data(leaf)
    return leaf


def _tree_differences(jax: ModuleType, got: object, want: object) -> list[str]:
    got_paths, want_paths = _leaves(jax, got).keys(), _leaves(jax, want).keys()
    missing = [path for path in want_paths if path not in got_paths]
    extra = [path for path in got_paths if path not in want_paths]
    if got is None:
        return ["None, but it must be a value or a tree of values"]
    if missing == [""]:
        return [f"a tree with {_paths(extra)}, but it must be one value"]
    if extra == [""]:
        return [f"one value, but it must be a tree with {_paths(missing)}"]
    nones = _nones(jax, got)
    words = {path: "is missing, it is None" for path in missing if path in nones}
    return [f"{path}: {words.get(path, 'is missing')}" for path in missing] + [
        f"{path}: is not expected" for path in extra
    ]


def _nones(jax: ModuleType, tree: object) -> set[str]:
    """The paths of the Nones in a tree, which are no leaves of it."""
    leaves = jax.tree_util.tree_leaves_with_path(tree, is_leaf=lambda x: x is None)
    return {jax.tree_util.keystr(path) for path, leaf in leaves if leaf is None}


def _paths(paths: list[str]) -> str:
    return join_words(paths) if paths else "no leaves"


def _sharding_difference(
    jax: ModuleType,
    leaf: Any,
    spec: "PartitionSpec",
    mesh: "Mesh | AbstractMesh | None",
) -> str:
    sharding = getattr(leaf, "sharding", None)
    if not isinstance(sharding, jax.sharding.Sharding):
        return (
            f"a value of type {type(leaf).__name__} has no sharding:"
            " it must be a jax.Array"
        )
    own = getattr(sharding, "mesh", None)
    if isinstance(mesh, jax.sharding.AbstractMesh) and own is not None:
        mesh = own if dict(own.shape) == dict(mesh.shape) else mesh
    words = f"{leaf.dtype}[{', '.join(map(str, leaf.shape))}]"
    if mesh is None and own is None:
        return f"{words} is on one device only, without a mesh"
    wanted = read_sharding(leaf.shape, spec, mesh=mesh or own, dtype=leaf.dtype)
    target = jax.sharding.NamedSharding(mesh or own, spec)
    if sharding.is_equivalent_to(target, len(leaf.shape)):
        return ""
    have = read_sharding(leaf)
    alone = have.spec is None
    is_now, must = _sharding_words(have), _sharding_words(wanted)
    if alone:
        return f"{words} is on one device only, but must be sharded as {must}"
    if is_now == must:
        return f"{words} has the expected spec, but is on a different mesh"
    return f"{words} is sharded as {is_now}, but must be {must}"


def _sharding_words(info: ShardingInfo) -> str:
    words = f"{spec_words(info.entries)}, {info.shard_shape} per device"
    if info.unreduced:
        words += f" as partial sums over {' and '.join(info.unreduced)}"
    return words


def _copies(
    jax: ModuleType, tree: tuple[object, ...], place: "Callable[[jax.Array], object]"
) -> tuple[object, ...]:
    """The arrays of a tree anew, each where `place` says."""

    def copy(leaf: object) -> object:
        if not isinstance(leaf, jax.Array):
            return leaf
        # What was never placed may go with anything, and its copy has to, too.
        where = place(leaf) if leaf.committed else None
        if jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jax.device_put(leaf, where, may_alias=False)
        return jax.device_put(jax.device_get(leaf), where)

    copies: tuple[object, ...] = jax.tree.map(copy, tree)
    return copies
