"""One way to train a model: its arguments, and the sizes that one device sees."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod

from .._shardings.sharding import itemsize
from .._training.model import MLP, Transformer

AXES_OF_BATCH = ("data", "fsdp")


@dataclass(frozen=True)
class Step:
    """What the formulas of seconds need to know of a training step.

    Attributes:
        model: what is trained.
        mesh: size of each axis, also of those with one device.
        zero: from which stage of ZeRO `data` shards the state, 0 to 2.
        recompute: the policy of `jax.checkpoint`, or 'everything_saveable'.
        attention: 'plain', 'flash' or 'ring'.
        batch: sequences a step, over all devices.
        seq: tokens of a sequence; of an MLP 1.
        param_dtype: of the parameters.
        compute_dtype: of the products.
    """

    model: Transformer | MLP
    mesh: Mapping[str, int] = field(hash=False)
    zero: int
    recompute: str
    attention: str
    batch: int
    seq: int
    param_dtype: str
    compute_dtype: str

    @property
    def devices(self) -> int:
        """How many there are."""
        return prod(self.mesh.values())

    @cached_property
    def split(self) -> int:
        """Over how many devices heads, d_ff and vocabulary are cut."""
        return self.mesh["model"]

    @cached_property
    def sequences(self) -> int:
        """Sequences of one device."""
        return self.batch // prod(self.mesh[axis] for axis in AXES_OF_BATCH)

    @cached_property
    def tokens(self) -> int:
        """Tokens of one device."""
        return self.sequences * self.seq // self.mesh["context"]

    @property
    def recomputes(self) -> bool:
        """Whether each layer is under a checkpoint."""
        return self.recompute != "everything_saveable"

    @cached_property
    def each(self) -> int:
        """Bytes of a number as it is computed with."""
        return itemsize(self.compute_dtype)

    @cached_property
    def each_param(self) -> int:
        """Bytes of a number of the parameters."""
        return itemsize(self.param_dtype)

    @cached_property
    def rows(self) -> int:
        """Rows of the embedding, rounded up to divide; 0 of an MLP."""
        if isinstance(self.model, MLP):
            return 0
        return -(-self.model.vocab // self.split) * self.split

    @cached_property
    def layer_numbers(self) -> int:
        """Numbers of one layer's matrices that a device of `model` multiplies with."""
        model, split = self.model, self.split
        if isinstance(model, MLP):
            return model.layer_parameters // split
        keys = 2 * model.kv_heads * model.head_dim * model.d_model
        queries = 2 * model.heads * model.head_dim * model.d_model
        mlp = (3 if model.gated else 2) * model.d_model * model.d_ff
        cut = keys if model.kv_heads % split else keys // split
        return cut + (queries + mlp) // split

    @cached_property
    def head_numbers(self) -> int:
        """Numbers of the head, or of the embedding, on a device of `model`."""
        return self.rows * self.model.d_model // self.split
