"""Arguments that can't be donated together."""

from collections.abc import Iterator

from .evidence import Evidence
from .finding import Finding


def donated_twice(evidence: Evidence) -> Iterator[Finding]:
    """`donated-twice`: a donated argument whose memory another argument has, too."""
    inputs = evidence.inputs
    pairs = [
        (inputs[first], inputs[second])
        for first, second in evidence.shared
        if inputs[first].donated or inputs[second].donated
    ]
    if not pairs:
        return
    first, second = pairs[0]
    others = f", and {len(pairs) - 1} more pairs" if len(pairs) > 1 else ""
    kept, changed = (second, first) if first.donated else (first, second)
    yield Finding(
        "donated-twice",
        f"{first.path} and {second.path} are in the same memory{others}, and "
        f"{changed.path} is donated: the call raises an error or, before jax 0.11.1 on "
        "several CPU devices, ends the process.",
        f"Give the second one its own memory: jnp.copy of {kept.path} before the "
        "first step.",
        "13_training_loop",
    )
