"""Parameters, gradients and optimizer state: bytes per device, exactly.

The axis `model` shards the matrices of attention, of the feed-forward part and of the
vocabulary, and the biases of those whose columns it shards. Norms, learned positions
and the biases that are added after a sum over `model` are replicated on its devices
(Shoeybi et al. 2019, arXiv:1909.08053, section 3). The axes `fsdp` and
`data` shard the elements of each array, whatever its dimensions (Rajbhandari et al.
2019, arXiv:1910.02054, section 5: ZeRO).
"""

import math
from dataclasses import dataclass, replace

from .model import MLP, Transformer
from .setup import OPTIMIZERS, Setup, over

PHASES = ("forward", "loss", "backward", "update")
ALWAYS = PHASES
_ZERO = "ZeRO, arXiv:1910.02054, section 5"


@dataclass(frozen=True)
class Line:
    """One thing that takes memory.

    Attributes:
        name: what it is.
        formula: how its bytes come about, with the numbers in it.
        bytes: bytes on each device.
        when: in which phases of a step it is there, of PHASES.
        source: where the formula comes from.
    """

    name: str
    formula: str
    bytes: int
    when: tuple[str, ...]
    source: str = ""


def state(setup: Setup) -> tuple[Line, Line, Line]:
    """The lines of the parameters, the gradients and the optimizer."""
    return (
        Line(
            "parameters",
            *_sharded(setup, setup.param_bytes, 3),
            ALWAYS,
            _ZERO,
        ),
        Line(
            "gradients",
            *_sharded(setup, setup.grad_bytes, 2),
            ALWAYS if setup.parts > 1 else ("backward", "update"),
            _ZERO,
        ),
        _optimizer(setup),
    )


def part_gradients(setup: Setup) -> list[Line]:
    """Of one part of the batch, beside the sums of those before it."""
    if setup.parts == 1:
        return []
    size = _sharded(setup, setup.grad_bytes, 2)
    return [Line("gradients of one part", *size, ("backward",), _ZERO)]


def _optimizer(setup: Setup) -> Line:
    kinds = [setup.optimizer]
    if setup.mu_dtype is not None:
        kinds.append(f"mu in {setup.mu_dtype}")
    if setup.master_weights:
        kinds.append("master copy")
    formula, size = _kept_numbers(setup)
    return Line(
        f"optimizer ({', '.join(kinds)})",
        formula,
        size,
        ALWAYS,
        f"{_ZERO}; optax's state",
    )


def _kept_numbers(setup: Setup) -> tuple[str, int]:
    """The formula, and the bytes, of all that the optimizer keeps."""
    master = 4 if setup.master_weights else 0
    count, more = OPTIMIZERS[setup.optimizer]
    parts = []
    if setup.optimizer == "adafactor":
        parts.append(_factored(setup))
        each = master
    elif setup.optimizer == "muon":
        parts.append(_second_moments(setup))
        each = setup.moment_bytes + master
    else:
        each = setup.mu_bytes + (count - 1) * setup.moment_bytes if count else 0
        each += master
        scales = sum(setup.scaled[:count])
        parts += [_scales(setup, scales)] if scales else []
    if each or not parts:
        parts.insert(0, _sharded(setup, each, 1))
    if more and setup.counting == "jax":
        parts.append((f"{more} B", more))
    return " + ".join(formula for formula, _ in parts), sum(n for _, n in parts)


# The arrays of which an optimizer keeps something of another shape.


@dataclass(frozen=True)
class Array:
    """Arrays of one shape: layers are stacked, each dimension is sharded or not."""

    shape: tuple[int, ...]
    cuts: tuple[int, ...]  # over how many devices each dimension is sharded
    count: int = 1
    is_matrix: bool = False  # of a layer, as muon takes them

    def device_numbers(self, dropped: int | None = None) -> int:
        """Numbers on each device, of this shape or of it without a dimension."""
        sizes = [
            -(-size // cut)
            for i, (size, cut) in enumerate(zip(self.shape, self.cuts, strict=True))
            if i != dropped
        ]
        return self.count * math.prod(sizes)


def arrays(setup: Setup) -> list[Array]:
    """The parameters of a model as arrays, with the shards of the optimizer's state."""
    model, split, shards = setup.model, setup.split, setup.shards(1)
    layers, wide, inside = model.layers, model.d_model, model.d_ff

    def matrix(rows: int, columns: int, cuts: tuple[int, int], count: int = 1) -> Array:
        return Array((layers, rows, columns), (1, *cuts), count, is_matrix=True)

    if isinstance(model, MLP):
        return [
            matrix(wide, inside, (shards, split)),
            matrix(inside, wide, (split, shards)),
        ]
    heads = model.heads * model.head_dim
    keys, keys_split = model.kv_heads * model.head_dim, setup.keys_split
    ups = 2 if model.gated else 1
    found = [
        Array((setup.rows, wide), (split, shards)),
        matrix(wide, heads, (shards, split)),
        matrix(wide, keys, (shards, keys_split), 2),
        matrix(heads, wide, (split, shards)),
        matrix(wide, inside, (shards, split), ups),
        matrix(inside, wide, (split, shards)),
    ]
    norm = 2 if model.norm == "layer" else 1
    found += [
        Array((layers, wide), (1, shards), (4 if model.post_norms else 2) * norm),
        Array((wide,), (shards,), norm),
    ]
    if model.positions == "learned":
        found.append(Array((model.seq, wide), (1, shards)))
    if not model.tied:
        found.append(Array((wide, setup.rows), (shards, split)))
    if model.qk_norm:
        found.append(Array((layers, model.head_dim), (1, shards), 2 * norm))
    if model.biases or model.qkv_biases:
        found += [
            Array((layers, heads), (1, split * shards)),
            Array((layers, keys), (1, keys_split * shards), 2),
        ]
    if model.biases:
        found += [
            Array((layers, inside), (1, split * shards), ups),
            Array((layers, wide), (1, shards), 2),
        ]
    return found


_FACTORED_FROM = 128  # optax's min_dim_size_to_factor


def _factored(setup: Setup) -> tuple[str, int]:
    """Adafactor's means over rows and over columns; one number stands for the rest.

    The two largest dimensions of an array are its rows and columns, as optax has it,
    where both are 128 or more. Else the mean of each number's square is kept.
    """
    each = 4 if setup.master_weights else setup.param_bytes
    total = 0
    for one in arrays(setup):
        order = sorted(range(len(one.shape)), key=one.shape.__getitem__)
        if len(order) > 1 and one.shape[order[-2]] >= _FACTORED_FROM:
            total += one.device_numbers(order[-1]) + one.device_numbers(order[-2])
            total += one.count
        else:
            total += one.device_numbers() + 2 * one.count
    return f"{each} B × {total} row and column means", each * total


def _second_moments(setup: Setup) -> tuple[str, int]:
    """Muon takes the layers' matrices; of the other arrays it keeps Adam's moments."""
    total = sum(one.device_numbers() for one in arrays(setup) if not one.is_matrix)
    size = setup.moment_bytes * total
    return f"{setup.moment_bytes} B × {total} of other arrays", size


SCALED = 256  # numbers of int8 that share a scale


def _scales(setup: Setup, moments: int) -> tuple[str, int]:
    """A scale in float32 for each 256 numbers along an array's last dimension."""
    total = 0
    for one in arrays(setup):
        blocks = -(-one.shape[-1] // SCALED)
        cut = one.cuts[-1] if blocks % one.cuts[-1] == 0 else 1
        shape, cuts = (*one.shape[:-1], blocks), (*one.cuts[:-1], cut)
        total += replace(one, shape=shape, cuts=cuts).device_numbers()
    size = 4 * moments * total
    return f"{4 * moments} B × {total} scales", size


def _sharded(setup: Setup, each: int, stage: int) -> tuple[str, int]:
    """The formula, and the bytes, of `each` bytes for every parameter.

    They are sharded from that stage of ZeRO on.
    """
    split, replicated = numbers(setup)
    shards = setup.shards(stage)
    size = -(-each * (split + replicated * setup.split) // (setup.split * shards))
    inside = f"{split}{over('model', setup.split)}"
    if replicated:
        inside += f" + {replicated}"
    if replicated and (shards > 1 or each != 1):
        inside = f"({inside})"
    return f"{each} B × {inside}{setup.over_shards(stage)}", size


def numbers(setup: Setup) -> tuple[int, int]:
    """How many parameters the axis model shards, and how many it replicates.

    The published formulas let it cut all of them.
    """
    model = setup.model
    if setup.counting == "megatron" or isinstance(model, MLP):
        return model.parameters, 0
    matrices = (1 if model.tied else 2) * setup.rows * model.d_model
    layer = layer_weights(model)
    replicated = model.parts["positions"] + model.parts["norms"]
    if model.biases or model.qkv_biases:
        layer += (model.heads + 2 * model.kv_heads) * model.head_dim
    if model.biases:
        layer += (2 if model.gated else 1) * model.d_ff
        replicated += model.layers * 2 * model.d_model
    if setup.keys_split < setup.split:
        keys = 2 * model.kv_heads * model.head_dim
        keys *= model.d_model + (1 if model.biases or model.qkv_biases else 0)
        layer, replicated = layer - keys, replicated + model.layers * keys
    return matrices + model.layers * layer, replicated


def layer_weights(model: Transformer | MLP) -> int:
    """Numbers in the matrices of one layer: q, k, v and o, and those of its mlp."""
    inside = model.d_model * model.d_ff
    if isinstance(model, MLP):
        return 2 * inside
    mlp = (3 if model.gated else 2) * inside
    return mlp + 2 * (model.heads + model.kv_heads) * model.head_dim * model.d_model


def device_weights(setup: Setup) -> tuple[int, int]:
    """Numbers in a layer's matrices: those that model shards, those it replicates."""
    weights = layer_weights(setup.model)
    if setup.is_mlp or setup.keys_split == setup.split:
        return weights, 0
    model = setup.transformer
    keys = 2 * model.kv_heads * model.head_dim * model.d_model
    return weights - keys, keys
