"""What is read of a device of JAX's, whose own class comes without types."""

from typing import Protocol


class JaxDevice(Protocol):
    """A device, as `jax.devices()` lists them."""

    @property
    def id(self) -> int:
        """Its number."""

    @property
    def platform(self) -> str:
        """'cpu', 'gpu' or 'tpu'."""

    @property
    def device_kind(self) -> str:
        """What the maker calls it, such as 'TPU v5 lite'."""
