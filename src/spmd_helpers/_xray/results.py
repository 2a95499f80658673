"""What comes out of a compiled function, the references it changes left aside."""

from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

from .._errors import NotUnderstood
from .compile import Program
from .program_shardings import sharding_of_tiles

if TYPE_CHECKING:
    from jax.sharding import AbstractMesh, Mesh, Sharding


@dataclass(frozen=True)
class Results:
    """The results of a compiled function.

    Attributes:
        tree: what the function returns, with a shape and a dtype for each array.
        requested: a tree like it, with the sharding requested for each; None where
            only a compiled function was given.
        shardings: that of each leaf in the compiled program; None where unknown.
    """

    tree: Any
    requested: Any
    shardings: "list[Sharding | None]"


def output_shardings(jax: ModuleType, program: Program) -> "list[Sharding] | None":
    """The shardings of the results; None where JAX can't match them with the results.

    A reference that the function changes is one more result of the compiled program,
    of which the function's own results know nothing.
    """
    try:
        return jax.tree.leaves(program.compiled.output_shardings)  # type: ignore[no-any-return]  # JAX: Any
    except ValueError:
        return None


def check_references(program: Program) -> None:
    """Refuse a function that closes over references: JAX says nothing of those."""
    try:
        program.compiled.input_shardings  # noqa: B018
    except ValueError:
        raise NotUnderstood(
            f"f={program.name} closes over references (jax.new_ref), of which its "
            "compiled program does not say how they are sharded: give them to the "
            "function as arguments"
        ) from None


def results_of(
    jax: ModuleType,
    program: Program,
    shardings: "list[Sharding] | None",
    mesh: "Mesh | AbstractMesh | None",
) -> Results:
    """The results, with the sharding of each."""
    compiled = program.compiled
    if shardings is not None:
        tree = compiled.out_info
        count = len(jax.tree.leaves(tree))
        known: list[Sharding | None] = [*shardings]
        if len(known) != count:
            known = [None] * count
        return Results(tree, program.out_info, known)
    if program.traced is None:
        raise NotUnderstood(
            f"f={program.name} changes references (jax.new_ref), and a lowered or "
            "compiled function does not tell them from its results: give xray the "
            "function itself and its arguments"
        )
    tree = program.traced.out_info
    executable: Any = compiled.runtime_executable()
    tiles = executable.get_output_shardings()
    given: list[Sharding | None] = [
        sharding_of_tiles(jax, each, tuple(leaf.shape), mesh)
        for each, leaf in zip(tiles, jax.tree.leaves(tree), strict=False)
    ]
    return Results(tree, tree, given)
