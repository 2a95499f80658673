"""One way to train a model: its arguments, and the sizes that one device sees."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod

from .._shardings.sharding import itemsize
from .._training.model import MLP, Transformer

AXES_OF_BATCH = ("data", "fsdp", "expert")


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
        microbatches: in how many parts the batch goes through the stages.
        chunks: of layers that each device of `stage` has.
        capacity_factor: how many rows an expert has room for, by an even share.
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
    microbatches: int = 1
    chunks: int = 1
    capacity_factor: float = 1.0

    def under(self, zero: int, recompute: str) -> "Step":
        """The same with another stage of ZeRO and policy, which have no part in sizes.

        What this step has computed of its sizes is kept.
        """
        other = object.__new__(Step)
        other.__dict__.update(self.__dict__, zero=zero, recompute=recompute)
        return other

    @property
    def devices(self) -> int:
        """How many there are."""
        return prod(self.mesh.values())

    @cached_property
    def split(self) -> int:
        """Over how many devices heads, d_ff and vocabulary are cut."""
        return self.mesh["model"]

    @cached_property
    def layers(self) -> int:
        """Layers of one device."""
        return self.model.layers // self.mesh["stage"]

    @cached_property
    def moe_layers(self) -> int:
        """Of these, the layers with experts."""
        return self.model.moe_layers // self.mesh["stage"]

    @cached_property
    def sequences(self) -> int:
        """Sequences of one device, in all microbatches."""
        return self.batch // prod(self.mesh[axis] for axis in AXES_OF_BATCH)

    @cached_property
    def tokens(self) -> int:
        """Tokens of one device, in all microbatches."""
        return self.sequences * self.seq // self.mesh["context"]

    @cached_property
    def expert_rows(self) -> float:
        """Rows that the experts of one device have, in each layer with experts."""
        if isinstance(self.model, MLP):
            return 0.0
        used = self.model.experts_per_token or 0
        return self.capacity_factor * self.tokens * used

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
    def attention_numbers(self) -> int:
        """Numbers of one layer's matrices of attention, on a device of `model`."""
        model, split = self.model, self.split
        if isinstance(model, MLP):
            return 0
        keys = 2 * model.kv_heads * model.head_dim * model.d_model
        queries = 2 * model.heads * model.head_dim * model.d_model
        cut = keys if model.kv_heads % split else keys // split
        return cut + queries // split

    @cached_property
    def mlp_numbers(self) -> int:
        """Those of one layer's feed-forward part."""
        model, split = self.model, self.split
        if isinstance(model, MLP):
            return model.layer_parameters // split
        return (3 if model.gated else 2) * model.d_model * model.d_ff // split

    @cached_property
    def expert_numbers(self) -> int:
        """Those of one layer's experts, without the shared ones."""
        model = self.model
        if isinstance(model, MLP) or model.experts is None:
            return 0
        wide = model.d_model * (model.expert_d_ff or 0)
        cut = self.split * self.mesh["expert"]
        return (3 if model.gated else 2) * wide * model.experts // cut

    @cached_property
    def shared_numbers(self) -> int:
        """Those of one layer's shared experts."""
        model = self.model
        if isinstance(model, MLP) or model.experts is None:
            return 0
        wide = model.d_model * (model.expert_d_ff or 0)
        return (3 if model.gated else 2) * wide * model.shared_experts // self.split

    @cached_property
    def numbers(self) -> int:
        """Numbers of all matrices in a device's layers, as they are multiplied with."""
        dense = self.layers - self.moe_layers
        total = self.layers * self.attention_numbers + dense * self.mlp_numbers
        return total + self.moe_layers * (self.expert_numbers + self.shared_numbers)

    @cached_property
    def head_numbers(self) -> int:
        """Numbers of the head, or of the embedding, on a device of `model`."""
        return self.rows * self.model.d_model // self.split

    @cached_property
    def ends_numbers(self) -> int:
        """Those of the embedding and the head together, which are one where tied."""
        model = self.model
        if isinstance(model, MLP):
            return 0
        return (1 if model.tied else 2) * self.head_numbers
