"""Stand-ins that several test files share."""

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P


def put(shape, mesh, *spec, dtype="float32", **more):
    """Zeros on a mesh, as a spec cuts them."""
    sharding = NamedSharding(mesh, P(*spec), **more)
    return jax.device_put(np.zeros(shape, dtype), sharding)


def guarded(mesh):
    """What looks like an array of [8, 4] cut along data, and raises if it is read."""

    class Guarded:
        shape, dtype = (8, 4), np.dtype("float32")
        sharding = NamedSharding(mesh, P("data"))

        def __array__(self, *args, **kwargs):
            raise AssertionError("data was read")

        __getitem__ = __iter__ = __len__ = __array__

    return Guarded()
