"""What a reader may give as a mesh, a sharding, an array, an element type.

For annotations alone: a module imports these names under `if TYPE_CHECKING:`.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from typing import TypeAlias

    from jax import Array, ShapeDtypeStruct
    from jax.sharding import AbstractMesh, Mesh, PartitionSpec, Sharding
    from jax.typing import DTypeLike as JaxDTypeLike

    from .sharding import MeshFacts, ShardingInfo

    MeshLike: TypeAlias = Mesh | AbstractMesh | MeshFacts | Mapping[str, int]
    ShardingLike: TypeAlias = Sharding | PartitionSpec
    DTypeLike: TypeAlias = JaxDTypeLike | None
    ArrayLike: TypeAlias = Array | ShapeDtypeStruct | ShardingInfo | "HasValue"


class HasValue(Protocol):
    """A Flax variable, or another box that has an array in it."""

    @property
    def value(self) -> object:
        """The array."""


class JaxDevice(Protocol):
    """A device, as `jax.devices()` lists them: JAX's own class has no types."""

    @property
    def id(self) -> int:
        """Its number."""

    @property
    def platform(self) -> str:
        """'cpu', 'gpu' or 'tpu'."""

    @property
    def device_kind(self) -> str:
        """What the maker calls it, such as 'TPU v5 lite'."""
