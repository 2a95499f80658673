"""The arrays that go into a compiled function and come out of it, one by one."""

from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

from .._core.validate import as_integer
from .._errors import NotUnderstood
from .._findings.evidence import Leaf
from .._shardings.sharding import ShardingInfo
from .compile import Program

if TYPE_CHECKING:
    from jax.sharding import Sharding


KeyPath = tuple[object, ...]  # JAX's keys, from the root of a tree to a leaf


def input_leaves(
    jax: ModuleType,
    program: Program,
    sharding_infos: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> tuple[Leaf, ...]:
    """A Leaf for each array that the function takes, whether it is used or not."""
    avals = _with_paths(jax, program.compiled.in_avals)
    placed = _flat(jax, program.compiled.in_avals, sharding_infos)
    shardings = [_given_sharding(jax, x) for x in jax.tree.leaves((args, kwargs))]
    if len(shardings) != len(avals):  # static arguments, or a stage with fixed ones
        shardings = _input_shardings(jax, program)
    names = _names_of_jax(program, "arg_names", len(avals))
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
                dtype=str(aval.dtype),
                weak_type=bool(getattr(aval, "weak_type", False)),
                sharding_info=placed[number],
                sharding=sharding,
                devices=getattr(sharding, "num_devices", 1),
                donated=donated[number],
            )
        )
    return tuple(leaves)


def output_leaves(
    jax: ModuleType, program: Program, sharding_infos: Any
) -> tuple[Leaf, ...]:
    """A Leaf for each array that comes out."""
    infos = _with_paths(jax, program.compiled.out_info)
    placed = _flat(jax, program.compiled.out_info, sharding_infos)
    requested = jax.tree.leaves(program.out_info)
    if len(requested) != len(infos):
        requested = [info for _, info in infos]
    names = _names_of_jax(program, "result_paths", len(infos))
    shardings = jax.tree.leaves(program.compiled.output_shardings)
    leaves = []
    for number, (path, info) in enumerate(infos):
        actual = shardings[number] if len(shardings) == len(infos) else None
        leaves.append(
            Leaf(
                path=names[number] or f"result{_key(path)}",
                shape=tuple(info.shape),
                dtype=str(info.dtype),
                weak_type=bool(getattr(requested[number], "weak_type", False)),
                sharding_info=placed[number],
                sharding=getattr(requested[number], "sharding", None),
                devices=getattr(actual, "num_devices", 1),
            )
        )
    return tuple(leaves)


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
    jax: ModuleType, program: Program, carry: Mapping[int, int] | int | None
) -> tuple[tuple[int, int], ...]:
    """(output leaf, input leaf) of what the next step takes, from `xray`'s carry."""
    if carry is None:
        return ()
    outputs = program.compiled.out_info
    outputs = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
    sizes_out = [len(jax.tree.leaves(part)) for part in outputs]
    sizes_in = [len(jax.tree.leaves(part)) for part in program.compiled.in_avals[0]]
    numbers: list[tuple[int, int]] = []
    for out, arg in _positions(carry).items():
        for word, n, sizes in (
            ("outputs", out, sizes_out),
            ("arguments", arg, sizes_in),
        ):
            if n >= len(sizes):
                raise NotUnderstood(
                    f"carry={carry!r}: there is no number {n} among the {word} of "
                    f"{program.name}, of which there are {len(sizes)}, counted from 0"
                )
        if sizes_out[out] != sizes_in[arg]:
            raise NotUnderstood(
                f"carry={carry!r}: output {out} of {program.name} has "
                f"{sizes_out[out]} arrays and argument {arg} has {sizes_in[arg]}; "
                "name an output and the argument that it becomes"
            )
        start_out, start_in = sum(sizes_out[:out]), sum(sizes_in[:arg])
        numbers += [(start_out + k, start_in + k) for k in range(sizes_in[arg])]
    return tuple(numbers)


def _positions(carry: Mapping[int, int] | int) -> dict[int, int]:
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


def _given_sharding(jax: ModuleType, x: Any) -> "Sharding | None":
    """The sharding an argument was given with; None where it was never placed.

    A struct without one, inside `jax.set_mesh`, stands for a fresh array, which JAX
    places on that mesh, replicated.
    """
    if not getattr(x, "committed", True):
        return None
    mesh = jax.sharding.get_abstract_mesh()
    sharding: Sharding | None = getattr(x, "sharding", None)
    if isinstance(x, jax.ShapeDtypeStruct) and sharding is None and mesh.shape:
        sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    return sharding
