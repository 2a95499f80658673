"""What tests of printed lines share."""

import jax
import pytest


@pytest.fixture
def unoptimized():
    """Without LLVM's optimizations, more than half of what compiling takes.

    XLA's own passes, which shard a program and write its collectives, are as ever.
    """
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)
