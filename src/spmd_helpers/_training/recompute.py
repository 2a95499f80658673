"""What a training step keeps of each layer, and what it runs again: JAX's policies.

A policy of `jax.checkpoint` decides it by the operation or by the name of a result.
The results of a layer's products that can have a name here are those of RESULTS.
"""

from collections.abc import Collection, Mapping

from .._core.validate import close_name, or_words
from .._core.words import join_words
from .._errors import NotUnderstood

# What a step may recompute. But for 'selective' they are policies of jax.checkpoint,
# for each layer.
RECOMPUTE = {
    "everything_saveable": "recompute nothing",
    "selective": "recompute the scores of attention",
    "dots_saveable": "save the products",
    "dots_with_no_batch_dims_saveable": "save the products with weights",
    "offload_dot_with_no_batch_dims": "send these to the host",
    "save_only_these_names": "save what is named",
    "save_and_offload_only_these_names": "save and offload what is named",
    "nothing_saveable": "recompute every layer",
}
# Those that keep a layer's input, and of its inside what they say.
CHECKPOINTED = tuple(RECOMPUTE)[2:]
WITH_NAMES = ("save_only_these_names", "save_and_offload_only_these_names")
OTHER_WORDS = {
    "none": "everything_saveable",
    "full": "nothing_saveable",
    "checkpoint_dots": "dots_saveable",
    "checkpoint_dots_with_no_batch_dims": "dots_with_no_batch_dims_saveable",
}
# The products of a layer with its weights, and those of attention.
WITH_WEIGHTS = ("query", "key", "value", "out", "gate", "up", "down")
OF_LATENT = ("query_down", "kv_down")
OF_ATTENTION = ("scores", "context")
RESULTS = (*WITH_WEIGHTS[:3], "context", *WITH_WEIGHTS[3:])


def saved(recompute: str, names: Collection[str]) -> tuple[str, ...]:
    """The results that a policy keeps, on the device or on the host.

    Args:
        recompute: one of CHECKPOINTED.
        names: those that a policy with names was given.
    """
    if recompute in WITH_NAMES:
        return tuple(names)
    if recompute == "dots_saveable":
        return (*WITH_WEIGHTS, *OF_LATENT, *OF_ATTENTION)
    return () if recompute == "nothing_saveable" else (*WITH_WEIGHTS, *OF_LATENT)


def flops_again(
    recompute: str,
    names: Collection[str],
    products: Mapping[str, int],
    unused: Collection[str] = ("down",),
) -> int:
    """FLOPs of the products that the backward pass runs once more.

    Args:
        recompute: one of RECOMPUTE.
        names: those that a policy with names was given.
        products: FLOPs of each product in a forward pass, by the name of its result.
        unused: results that no derivative uses, such as that of a layer's last product:
            these products are never run again.
    """
    if recompute == "everything_saveable":
        return 0
    if recompute == "selective":  # the product with v is not needed again
        return products.get("scores", 0)
    kept = {*saved(recompute, names), *unused}
    return sum(flops for name, flops in products.items() if name not in kept)


def check_recompute(value: object) -> None:
    """Refuse what is none of RECOMPUTE, such as another policy of jax.checkpoint."""
    if isinstance(value, str) and value in RECOMPUTE:
        return
    word = value if isinstance(value, str) else getattr(value, "__name__", "")
    close = OTHER_WORDS.get(word.lower()) or close_name(word.lower(), RECOMPUTE, 0.8)
    guess = f" Did you mean {close!r}?" if close else ""
    words = or_words(f"{name!r} ({what})" for name, what in RECOMPUTE.items())
    raise NotUnderstood(
        f"recompute={value!r} is not counted here.{guess} Give {words}."
    )


def check_products(recompute: str, experts: int | None) -> None:
    """Refuse a policy that has to know how a layer's experts are multiplied.

    It can be one product of all experts, one for each of them, or a kernel.
    """
    if experts and recompute in CHECKPOINTED and recompute != "nothing_saveable":
        raise NotUnderstood(
            f"recompute={recompute!r} is not counted for a model with "
            f"experts={experts}; give 'everything_saveable', 'selective' or "
            "'nothing_saveable'."
        )


def checked_names(
    recompute: str,
    results: Collection[str],
    can_be_saved: Collection[str],
    can_be_offloaded: Collection[str],
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names that a policy saves and offloads, each a result that the model has.

    Raises:
        NotUnderstood: a name is none of `results`, or stands twice; the policy takes no
            names, or has none.
    """
    given = {
        "names_which_can_be_saved": as_names("names_which_can_be_saved", can_be_saved),
        "names_which_can_be_offloaded": as_names(
            "names_which_can_be_offloaded", can_be_offloaded
        ),
    }
    takes = WITH_NAMES[1:] if given["names_which_can_be_offloaded"] else WITH_NAMES
    for key, names in given.items():
        if names and recompute not in takes:
            raise NotUnderstood(
                f"{key}={names!r} is for recompute={or_words(map(repr, takes))}, and "
                f"recompute={recompute!r} takes no such names; leave {key} out."
            )
        for name in names:
            if name not in results:
                raise NotUnderstood(
                    f"{key}={names!r}: this model has no result {name!r}; give some of "
                    f"{join_words(list(map(repr, results)))}."
                )
    both = [*given["names_which_can_be_saved"], *given["names_which_can_be_offloaded"]]
    if len(set(both)) < len(both):
        raise NotUnderstood(
            f"names_which_can_be_saved and names_which_can_be_offloaded give "
            f"{join_words(list(map(repr, both)))}; give each name once."
        )
    if recompute in WITH_NAMES and not both:
        raise NotUnderstood(
            f"recompute={recompute!r} has no name; give names_which_can_be_saved some "
            f"of {join_words(list(map(repr, results)))}, or recompute="
            "'nothing_saveable'."
        )
    return given["names_which_can_be_saved"], given["names_which_can_be_offloaded"]


def as_names(key: str, given: Collection[str]) -> tuple[str, ...]:
    """A collection of names as a tuple, or NotUnderstood."""
    if (
        isinstance(given, str)
        or not isinstance(given, Collection)
        or not all(isinstance(name, str) for name in given)
    ):
        raise NotUnderstood(
            f"{key}={given!r} is no tuple of names; give one such as ('query', 'up'), "
            "or () for none."
        )
    return tuple(given)
