"""Stand-ins that several test files share."""

import os
from functools import cache

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P


@cache
def slice_of_v5e():
    """Eight TPU devices that are not there, for a test marked `compiler`."""
    from jax.experimental import topologies

    quiet = {"TPU_SKIP_MDS_QUERY": "1", "TPU_MIN_LOG_LEVEL": "3"}
    with pytest.MonkeyPatch.context() as patch:
        for key, value in {**quiet, "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}.items():
            patch.setitem(os.environ, key, value)
        topology = topologies.get_topology_desc("v5e:2x4", platform="tpu")
    return tuple(topology.devices)


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
