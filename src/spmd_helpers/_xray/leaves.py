"""The arrays that go into a compiled function and come out of it, one by one."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import ModuleType
from typing import TYPE_CHECKING, Any

from .._core.attributes import attribute
from .._core.validate import as_integer
from .._errors import NotUnderstood
from .._findings.evidence import Leaf
from .._findings.finding import SMALL_BYTES
from .._shardings.sharding import ShardingInfo
from .calls import is_filter_jitted
from .compile import Program
from .flax_objects import annotation, is_module, takes_modules, variables
from .program_shardings import dtype_name
from .results import Results

if TYPE_CHECKING:
    from jax.sharding import Sharding


KeyPath = tuple[object, ...]  # JAX's keys, from the root of a tree to a leaf


def input_leaves(
    jax: ModuleType, program: Program, sharding_infos: Any
) -> tuple[Leaf, ...]:
    """A Leaf for each array that the function takes, whether it is used or not."""
    avals = _with_paths(jax, program.compiled.in_avals)
    placed = _flat(jax, program.compiled.in_avals, sharding_infos)
    shardings = _given_shardings(jax, program, len(avals))
    names = _names_of_jax(program, "arg_names", len(avals))
    of_flax = _variables(jax, program)
    for number, (below, _) in of_flax.items():  # of which JAX knows no paths
        root, states, _ = (names[number] or "").partition(".states[")
        names[number] = root + below if states else names[number]
    donated = [info.donated for info in jax.tree.leaves(program.infos)]
    if len(donated) != len(avals):
        donated = [False] * len(avals)
    leaves = []
    for number, (path, aval) in enumerate(avals):
        sharding = shardings[number]
        leaves.append(
            Leaf(
                path=names[number] or _argument(path),
                shape=tuple(aval.shape),
                dtype=dtype_name(aval),
                weak_type=bool(getattr(aval, "weak_type", False)),
                sharding_info=placed[number],
                sharding=sharding,
                devices=getattr(sharding, "num_devices", 1),
                donated=donated[number],
                memory=_memory(sharding),
                annotated=annotation(of_flax[number][1]) if number in of_flax else None,
            )
        )
    return tuple(leaves)


def output_leaves(
    jax: ModuleType,
    program: Program,
    results: Results,
    sharding_infos: Any,
    inputs: Sequence[Leaf],
) -> tuple[Leaf, ...]:
    """A Leaf for each array that comes out.

    A module that nnx.jit changes in place has the path of the argument that it is.
    """
    infos = _with_paths(jax, results.tree)
    placed = _flat(jax, results.tree, sharding_infos)
    requested = jax.tree.leaves(results.requested)
    if len(requested) != len(infos):
        requested = [info for _, info in infos]
    names = _names_of_jax(program, "result_paths", len(infos))
    for out, arg in _kept_modules(jax, program, results):
        names[out] = inputs[arg].path
    leaves = []
    for number, (path, info) in enumerate(infos):
        leaves.append(
            Leaf(
                path=names[number] or f"result{_key(path)}",
                shape=tuple(info.shape),
                dtype=dtype_name(info),
                weak_type=bool(getattr(requested[number], "weak_type", False)),
                sharding_info=placed[number],
                sharding=getattr(requested[number], "sharding", None),
                devices=getattr(results.shardings[number], "num_devices", 1),
                memory=_memory(results.shardings[number]),
            )
        )
    return tuple(leaves)


def _memory(sharding: object) -> str:
    """The kind of memory of a sharding; 'device' where it names none, or the usual."""
    kind = attribute(sharding, "memory_kind") or "device"
    return str(kind) if kind == "pinned_host" else "device"


def without_lost_donations(
    inputs: Sequence[Leaf], outputs: Sequence[Leaf]
) -> tuple[Leaf, ...]:
    """The inputs, donated only where a result could take their memory.

    Equinox's `donate="all"` donates all arguments and asks for no warnings.
    """
    known = {(out.shape, out.dtype) for out in outputs}
    return tuple(
        replace(leaf, donated=leaf.donated and (leaf.shape, leaf.dtype) in known)
        for leaf in inputs
    )


def varying(
    jax: ModuleType, program: Program, inputs: tuple[Leaf, ...]
) -> dict[int, frozenset[str]]:
    """Along which mesh axes each parameter of the program has different values.

    The program's parameters are the arguments that it uses, in order. One whose
    sharding has no axis names is left out.
    """
    shardings = _input_shardings(jax, program)
    used = [
        leaf.sharding_info
        for leaf, sharding in zip(inputs, shardings, strict=True)
        if sharding is not None
    ]
    return {n: _cut_over(info) for n, info in enumerate(used) if info is not None}


def _cut_over(info: ShardingInfo) -> frozenset[str]:
    same = set(info.replicated_over) - set(info.unreduced)
    return frozenset(info.mesh_shape) - same


def pairs(
    jax: ModuleType,
    program: Program,
    results: Results,
    carry: Mapping[int, int] | int | None,
) -> tuple[tuple[int, int], ...]:
    """(output leaf, input leaf) of what the next step takes, from `xray`'s carry.

    The large arrays of modules that nnx.jit hands on by itself are among them.
    """
    if carry is not None and is_filter_jitted(program.call.f):
        raise NotUnderstood(
            f"carry={carry!r}: a lowered or compiled step of Equinox does not tell its "
            "arguments apart; give xray the function itself and its arguments"
        )
    outputs, arguments = _parts_out(jax, program, results), _parts_in(jax, program)
    infos = jax.tree.leaves(results.tree)
    numbers = [
        (out, arg)
        for out, arg in _kept_modules(jax, program, results)
        if infos[out].size * infos[out].dtype.itemsize >= SMALL_BYTES
    ]
    for out, arg in carried(carry).items():
        for word, n, parts in (
            ("outputs", out, outputs),
            ("arguments", arg, arguments),
        ):
            if n not in parts:
                raise NotUnderstood(
                    f"carry={carry!r}: there is no number {n} among the {word} of "
                    f"{program.name}, of which there are {len(parts)}, counted from 0"
                )
        left, right = outputs[out], arguments[arg]
        if not left and _gives_back_modules(jax, program, results, out):
            numbers += [
                pair
                for pair in _kept_modules(jax, program, results)
                if pair[1] in right
            ]
        elif len(left) != len(right):
            raise NotUnderstood(
                f"carry={carry!r}: output {out} of {program.name} has "
                f"{len(left)} arrays and argument {arg} has {len(right)}; "
                "name an output and the argument that it becomes"
                + (
                    ", and no module of nnx.jit, which is carried by itself"
                    if takes_modules(program.call)
                    else ""
                )
            )
        else:
            numbers += zip(left, right, strict=True)
    return tuple(dict.fromkeys(numbers))


def _gives_back_modules(
    jax: ModuleType, program: Program, results: Results, out: int
) -> bool:
    """Whether a result of nnx.jit is of modules that were arguments.

    Their arrays are hidden results, so the result itself has none.
    """
    if not takes_modules(program.call):
        return False
    parts = _as_parts(_results_of_nnx(results.tree)[1])
    nodes = jax.tree.leaves(parts[out], is_leaf=_is_module_state)
    return any(_is_module_state(node) for node in nodes)


def _is_module_state(part: object) -> bool:
    return type(part).__name__ == "NodeStates"  # in which nnx.jit puts a module


def _ranges(jax: ModuleType, parts: Sequence[Any], start: int = 0) -> list[range]:
    """The numbers of the leaves of each part, one after the other."""
    ranges = []
    for part in parts:
        end = start + len(jax.tree.leaves(part))
        ranges.append(range(start, end))
        start = end
    return ranges


def _parts_out(jax: ModuleType, program: Program, results: Results) -> dict[int, range]:
    """The reader's results, by number: the leaves of each."""
    hidden: Any = ()
    tree = results.tree
    if takes_modules(program.call) and isinstance(tree, tuple):
        hidden, tree = _results_of_nnx(tree)
    return dict(enumerate(_ranges(jax, _as_parts(tree), len(jax.tree.leaves(hidden)))))


def _results_of_nnx(tree: tuple[Any, ...]) -> tuple[Any, Any]:
    """What nnx.jit returns: the modules that it hands on, and the reader's results."""
    return (tree[:2], tree[2]) if len(tree) == 3 else ((), tree[0])


def _as_parts(tree: Any) -> Sequence[Any]:
    return tree if isinstance(tree, (tuple, list)) else (tree,)


def _parts_in(jax: ModuleType, program: Program) -> dict[int, range]:
    """The reader's arguments, by number: the leaves of each."""
    ranges = _ranges(jax, program.compiled.in_avals[0])
    first = program.call.first
    return {n - first: ranges[k] for n, k in enumerate(_places(jax, program)) if k >= 0}


def _places(jax: ModuleType, program: Program) -> list[int]:
    """For each argument its place among those of the program; -1 if it is static."""
    parts, given = program.compiled.in_avals[0], program.call.args
    if len(given) in (0, len(parts)):
        return list(range(len(parts)))
    places, k = [], 0
    for n, argument in enumerate(given):
        static_ones = len(given) - n - (len(parts) - k)
        same = k < len(parts) and _fits(jax, argument, parts[k])
        places.append(k if same or (k < len(parts) and static_ones == 0) else -1)
        k += places[-1] >= 0
    return places


def _fits(jax: ModuleType, argument: Any, part: Any) -> bool:
    if _is_module_state(part):
        return is_module(argument)
    return _form(jax, argument) == _form(jax, part)


def _form(jax: ModuleType, tree: Any) -> object:
    leaves, form = jax.tree.flatten(tree)
    return form, [attribute(x, "shape", ()) for x in leaves]


def _kept_modules(
    jax: ModuleType, program: Program, results: Results
) -> Iterator[tuple[int, int]]:
    """(output leaf, input leaf) of the modules that nnx.jit changes in place."""
    tree, taken = results.tree, program.compiled.in_avals[0]
    if not takes_modules(program.call) or len(tree) != 3:
        return
    kept = tree[0]
    for left, right in zip(_ranges(jax, kept), _ranges(jax, taken), strict=False):
        if len(left) == len(right):
            yield from zip(left, right, strict=True)


def carried(carry: Mapping[int, int] | int | None) -> dict[int, int]:
    """Number of an output → number of the argument that it becomes, as given.

    Raises:
        NotUnderstood: it is neither None, nor a number from 1 on, nor such a dict.
    """
    if carry is None:
        return {}
    if count := as_integer(carry, 1):
        return {n: n for n in range(count)}
    if isinstance(carry, Mapping) and all(
        as_integer(n) is not None for pair in carry.items() for n in pair
    ):
        return dict(carry)
    raise NotUnderstood(
        f"carry={carry!r} is not a dict from the number of an output to that of an "
        "argument: give for example {0: 0, 1: 1}, or 2 for the first two"
    )


def _flat(jax: ModuleType, like: object, tree: object) -> list[Any]:
    """The parts of `tree` that stand where `like` has leaves, None among them."""
    parts: list[Any] = jax.tree.structure(like).flatten_up_to(tree)
    return parts


def _input_shardings(jax: ModuleType, program: Program) -> "list[Sharding | None]":
    """One for each argument, None for one that the program does not use."""
    compiled = program.compiled
    return _flat(jax, compiled.in_avals, compiled.input_shardings)


def _with_paths(jax: ModuleType, tree: object) -> list[tuple[KeyPath, Any]]:
    pairs: list[tuple[KeyPath, Any]] = jax.tree_util.tree_flatten_with_path(tree)[0]
    return pairs


def _key(path: Sequence[object]) -> str:
    return "".join(str(part) for part in path)


def _argument(path: KeyPath) -> str:
    """Where an argument stands, from its place in (positional, named)."""
    outer, *inner = path
    return ("args" if str(outer) == "[0]" else "kwargs") + _key(inner)


def _names_of_jax(program: Program, which: str, count: int) -> list[str | None]:
    """The names that JAX itself gives to arguments or results, where it does."""
    info = getattr(getattr(program.traced, "jaxpr", None), "debug_info", None)
    names = getattr(info, which, None)
    return [*names] if names is not None and len(names) == count else [None] * count


def _variables(jax: ModuleType, program: Program) -> dict[int, tuple[str, Any]]:
    """Path and variable of the leaves that are variables of NNX modules."""
    if not takes_modules(program.call) or not program.call.args:
        return {}
    ranges = _ranges(jax, program.compiled.in_avals[0])
    lists = variables(program.call.args)
    known: dict[int, tuple[str, Any]] = {}
    for n, place in enumerate(_places(jax, program)):
        own = lists[n] if place >= 0 else None
        if own is not None and len(own) == len(ranges[place]):
            known.update(zip(ranges[place], own, strict=True))
    return known


def _given_shardings(
    jax: ModuleType, program: Program, count: int
) -> "list[Sharding | None]":
    """The sharding that each argument was given with."""
    leaves = jax.tree.leaves((program.call.args, program.call.kwargs))
    arrays = [x for x in leaves if attribute(x, "dtype") is not None]
    for given in (leaves, arrays):  # those without static arguments
        if len(given) == count:
            return [_given_sharding(jax, x) for x in given]
    return _input_shardings(jax, program)


def _given_sharding(jax: ModuleType, x: Any) -> "Sharding | None":
    """The sharding an argument was given with; None where it was never placed.

    A struct without one, inside `jax.set_mesh`, stands for a fresh array, which JAX
    places on that mesh, replicated.
    """
    if not attribute(x, "committed", True):
        return None
    mesh = jax.sharding.get_abstract_mesh()
    sharding: Any = attribute(x, "sharding")
    if not isinstance(sharding, jax.sharding.Sharding):
        sharding = None
    if isinstance(x, jax.ShapeDtypeStruct) and sharding is None and mesh.shape:
        sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    return sharding  # type: ignore[no-any-return]  # of JAX's classes
