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
from typing import NamedTuple

from .model import MLP, Transformer, positions_and_norms
from .setup import OPTIMIZERS, Setup, once, over

PHASES = ("forward", "loss", "backward", "update")
ALWAYS = PHASES
_ZERO = "ZeRO, arXiv:1910.02054, section 5"
_LORA = "Hu et al. 2021, arXiv:2106.09685; shapes of the arrays"


class Line(NamedTuple):
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
            "parameters" if setup.lora is None else "adapters",
            *sharded(setup, setup.param_bytes, 3),
            ALWAYS,
            _ZERO,
        ),
        Line(
            "gradients",
            *sharded(setup, setup.grad_bytes, 2),
            ALWAYS if setup.adds_up else ("backward", "update"),
            _ZERO,
        ),
        _optimizer(setup),
    )


def frozen(setup: Setup) -> list[Line]:
    """The parameters beside adapters, which are not trained.

    The layers' matrices can be int8, with a float32 scale for each column; embedding,
    head, norms and biases are then in the type of the computation.
    """
    if setup.lora is None:
        return []
    each = setup.lora.base_bytes
    rest, what = _all_numbers(setup), "frozen parameters"
    if not setup.lora.quantized:
        return [Line(what, *_of_model(setup, each, 3, *rest), ALWAYS, _LORA)]
    split, replicated, _ = weights(setup)
    rest = rest[0] - split, rest[1] - replicated
    inside = _over_shards(setup, 1, 3, split, replicated)
    more = _of_model(setup, setup.compute_bytes, 3, *rest)
    return [
        Line(f"{what} in int8", *inside, ALWAYS, _LORA),
        Line("their scales", *column_scales(setup), ALWAYS, _LORA),
        Line(f"{what}, the others", *more, ALWAYS, _LORA),
    ]


def column_scales(setup: Setup) -> tuple[str, int]:
    """Of each matrix of a layer, sharded as its columns are."""
    model, shards = setup.transformer, setup.shards(3)
    queries, keys = model.heads * model.head_dim, model.kv_heads * model.head_dim
    columns = [
        queries // setup.split,
        2 * keys // setup.keys_split,
        2 * (model.d_model // shards),
        (2 if model.gated else 1) * model.d_ff // setup.split,
    ]
    size = 4 * model.layers * sum(columns)
    return f"{model.layers} layers × 4 B × {sum(columns)}", size


def part_gradients(setup: Setup) -> list[Line]:
    """Of one part of the batch, beside the sums of those before it."""
    if not setup.adds_up:
        return []
    size = sharded(setup, setup.grad_bytes, 2)
    return [Line("gradients of one part", *size, ("backward",), _ZERO)]


def _optimizer(setup: Setup) -> Line:
    kinds = [setup.optimizer]
    if setup.mu_dtype is not None:
        kinds.append(f"mu in {setup.mu_dtype}")
    if setup.master_weights:
        kinds.append("master copy")
    formula, size = _kept_numbers(setup)
    when = ("update",) if setup.offload_optimizer else ALWAYS
    name = f"optimizer ({', '.join(kinds)})"
    return Line(name, formula, size, when, f"{_ZERO}; optax's state")


def state_on_host(setup: Setup) -> list[Line]:
    """The optimizer's state, where it is in the host's memory: all but the scalars."""
    if not setup.offload_optimizer:
        return []
    one, scalars = _optimizer(setup), OPTIMIZERS[setup.optimizer][1]
    return [one._replace(bytes=one.bytes - scalars)] if one.bytes > scalars else []


def _kept_numbers(setup: Setup) -> tuple[str, int]:
    """The formula, and the bytes, of all that the optimizer keeps."""
    data = setup.data if setup.zero else 1
    key = ("optimizer", setup.fsdp, data, *setup.sizes_of_state)
    if key not in setup.counted:
        setup.counted[key] = _counted_numbers(setup)
    known: tuple[str, int] = setup.counted[key]
    return known


def _counted_numbers(setup: Setup) -> tuple[str, int]:
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
        parts.insert(0, sharded(setup, each, 1))
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
    """What is trained as arrays, with the shards of the optimizer's state."""
    if setup.lora is not None:
        return _adapters(setup)
    model, split, shards = setup.model, setup.split, setup.shards(1)
    layers, wide, inside = model.layers, model.d_model, model.d_ff

    def matrix(rows: int, columns: int, cuts: tuple[int, int], count: int = 1) -> Array:
        return Array((layers, rows, columns), (1, *cuts), count, is_matrix=True)

    if isinstance(model, MLP):
        return [
            matrix(wide, inside, (shards, split)),
            matrix(inside, wide, (split, shards)),
        ]
    norm = 2 if model.norm == "layer" else 1
    listed = [
        *(_patch_arrays(setup) if setup.reads_images else _embedding(setup)),
        Array((wide,), (shards,), norm),
    ]
    if model.positions == "learned":
        listed.append(Array((model.seq, wide), (1, shards)))
    if not model.tied:
        listed.append(Array((wide, setup.rows), (shards, split)))
    dense = layers - model.moe_layers
    for count, experts in ((dense, False), (model.moe_layers, True)):
        if count:
            listed += _layer_arrays(setup, count)
            listed += _expert_arrays(setup) if experts else _mlp_arrays(setup, count)
    return listed


def _embedding(setup: Setup) -> list[Array]:
    shape = setup.rows, setup.model.d_model
    return [Array(shape, (setup.split, setup.shards(1)))]


def _patch_arrays(setup: Setup) -> list[Array]:
    """The matrix of a patch, its bias and the class token; the bias of the head."""
    wide, shards = setup.model.d_model, setup.shards(1)
    return [
        Array((setup.transformer.pixels, wide), (1, shards)),
        Array((wide,), (shards,), 2),
        Array((setup.rows,), (setup.split,)),
    ]


def _adapters(setup: Setup) -> list[Array]:
    """Two matrices for each that has adapters: [rows, rank] and [rank, columns].

    fsdp shards rows and columns, and model those of the two that it shards of the
    matrix itself.
    """
    if setup.lora is None:
        return []
    model, rank, shards = setup.model, setup.lora.rank, setup.shards(1)
    ends = _ends(setup)
    listed = []
    for name in setup.lora.targets:
        (rows, over_rows), (columns, over_columns) = ends[name]
        first, second = over_rows * shards, over_columns * shards
        listed += [
            Array((model.layers, rows, rank), (1, first, 1), is_matrix=True),
            Array((model.layers, rank, columns), (1, 1, second), is_matrix=True),
        ]
    return listed


def _ends(setup: Setup) -> dict[str, tuple[tuple[int, int], tuple[int, int]]]:
    """Rows and columns of each matrix, and over how many devices model shards them."""
    model, split = setup.transformer, setup.split
    wide, inside = (model.d_model, 1), (model.d_ff, split)
    queries = model.heads * model.head_dim, split
    keys = model.kv_heads * model.head_dim, setup.keys_split
    return {
        **{"query": (wide, queries), "key": (wide, keys), "value": (wide, keys)},
        **{"out": (queries, wide), "down": (inside, wide)},
        **{"gate": (wide, inside), "up": (wide, inside)},
    }


def _layer_arrays(setup: Setup, layers: int) -> list[Array]:
    """Attention and the norms of so many layers."""
    model, split, shards = setup.transformer, setup.split, setup.shards(1)
    wide, norm = model.d_model, 2 if model.norm == "layer" else 1

    def matrix(rows: int, columns: int, *cuts: int, count: int = 1) -> Array:
        return Array((layers, rows, columns), (1, *cuts), count, is_matrix=True)

    heads = model.heads * model.head_dim
    keys, keys_split = model.kv_heads * model.head_dim, setup.keys_split
    count = (4 if model.post_norms else 2) * norm
    listed = [Array((layers, wide), (1, shards), count)]
    if model.kv_lora_rank is not None:
        values = model.heads * (model.v_head_dim or 0)
        ranks = [model.kv_lora_rank, *filter(None, [model.q_lora_rank])]
        listed += [Array((layers, rank), (1, shards), norm) for rank in ranks]
        listed += [
            matrix(model.q_lora_rank or wide, heads, shards, split),
            matrix(wide, ranks[0] + (model.qk_rope_head_dim or 0), shards, 1),
            matrix(
                ranks[0], model.heads * (model.qk_nope_head_dim or 0), shards, split
            ),
            matrix(ranks[0], values, shards, split),
            matrix(values, wide, split, shards),
        ]
        return listed + [matrix(wide, rank, shards, 1) for rank in ranks[1:]]
    listed += [
        matrix(wide, heads, shards, split),
        matrix(wide, keys, shards, keys_split, count=2),
        matrix(heads, wide, split, shards),
    ]
    if model.qk_norm:
        cut = setup.head_norms_cut
        listed.append(Array((layers, model.head_dim), (1, cut), 2 * norm))
    if model.biases or model.qkv_biases:
        listed += [
            Array((layers, heads), (1, split * shards)),
            Array((layers, keys), (1, keys_split * shards), 2),
        ]
    if model.biases:
        listed.append(Array((layers, wide), (1, shards)))
    return listed + ([Array((layers, model.heads), (1, split))] if model.sinks else [])


def _mlp_arrays(setup: Setup, layers: int, width: int | None = None) -> list[Array]:
    """A feed-forward part of `d_ff`, or of another width, in so many layers."""
    model, split, shards = setup.transformer, setup.split, setup.shards(1)
    wide, inside, ups = model.d_model, width or model.d_ff, 2 if model.gated else 1
    listed = [
        Array((layers, wide, inside), (1, shards, split), ups, is_matrix=True),
        Array((layers, inside, wide), (1, split, shards), is_matrix=True),
    ]
    if model.biases:
        listed += [
            Array((layers, inside), (1, split * shards), ups),
            Array((layers, wide), (1, shards)),
        ]
    return listed


def _expert_arrays(setup: Setup) -> list[Array]:
    """Routers, experts, and the shared ones as one part."""
    model, shards = setup.transformer, setup.shards(1)
    layers, experts, width = model.moe_layers, model.experts or 0, model.expert_d_ff
    listed = [Array((layers, model.d_model, experts), (1, shards, 1), is_matrix=True)]
    if model.biases or model.router_biases:
        listed.append(Array((layers, experts), (1, 1)))
    for one in _mlp_arrays(setup, layers, width):
        shape, cuts = (
            (layers, experts, *one.shape[1:]),
            (1, setup.expert, *one.cuts[1:]),
        )
        listed.append(Array(shape, cuts, one.count))
    if model.shared_experts:
        listed += _mlp_arrays(setup, layers, model.shared_experts * (width or 0))
    return listed


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


def sharded(setup: Setup, each: int, stage: int) -> tuple[str, int]:
    """The formula, and the bytes, of `each` bytes for every parameter.

    They are sharded from that stage of ZeRO on.
    """
    data = setup.data if setup.zero >= stage else 1
    key = ("sharded", each, setup.fsdp, data, *setup.sizes_of_state)
    if key not in setup.counted:
        if setup.lora is not None:
            formula_and_bytes = _over_shards(setup, each, stage, *numbers(setup))
        else:
            formula_and_bytes = _of_model(setup, each, stage, *numbers(setup))
        setup.counted[key] = formula_and_bytes
    known: tuple[str, int] = setup.counted[key]
    return known


def _of_model(
    setup: Setup, each: int, stage: int, split: int, replicated: int
) -> tuple[str, int]:
    """The same of a model's parameters, of which some are sharded otherwise."""
    if setup.model.moe_layers or any(unsharded_numbers(setup)):
        return _with_experts(setup, each, stage, split, replicated)
    return _over_shards(setup, each, stage, split, replicated)


def _over_shards(
    setup: Setup, each: int, stage: int, split: int, replicated: int
) -> tuple[str, int]:
    """The same of so many numbers: model shards the first, and replicates the rest."""
    shards = setup.shards(stage)
    size = -(-each * (split + replicated * setup.split) // (setup.split * shards))
    words = [f"{split}{over('model', setup.split)}"] if split else []
    words += [f"{replicated}"] if replicated else []
    inside = " + ".join(words)
    if len(words) > 1 and (shards > 1 or each != 1):
        inside = f"({inside})"
    return f"{each} B × {inside}{setup.over_shards(stage)}", size


def _with_experts(
    setup: Setup, each: int, stage: int, split: int, replicated: int
) -> tuple[str, int]:
    """The same, where expert shards some of them, and others are not sharded."""
    cut, expert = setup.split, setup.expert
    first, second = expert_numbers(setup)
    replicated_too, sinks = unsharded_numbers(setup)
    size = (split + replicated * cut) * expert + first + second * cut
    size = -(-each * size // (cut * expert * setup.shards(stage)))
    size += each * replicated_too + each * sinks // cut
    inside = [f"{split}{over('model', cut)}", f"{replicated}" if replicated else ""]
    by_expert = f"{first}{over('model', cut)}" if first else ""
    if second:
        by_expert += f" + {second}"
    if second and expert > 1:
        by_expert = f"({by_expert})"
    inside.append(by_expert and f"{by_expert}{over('expert', expert)}")
    formula = f"{each} B × ({' + '.join(filter(None, inside))})"
    formula += setup.over_shards(stage)
    more = [f"{replicated_too}" if replicated_too else ""]
    more.append(f"{sinks}{over('model', cut)}" if sinks else "")
    words = " + ".join(filter(None, more))
    return formula + (f" + {each} B × ({words})" if words else ""), size


def numbers(setup: Setup) -> tuple[int, int]:
    """How many of those that are trained the axis model shards, or replicates."""
    return (_all_numbers if setup.lora is None else numbers_of_adapters)(setup)


def numbers_of_adapters(setup: Setup) -> tuple[int, int]:
    """The same of adapters, if there are any."""
    if setup.lora is None:
        return 0, 0
    sums = {True: 0, False: 0}
    ends = _ends(setup)
    for name in setup.lora.targets:
        for size, cut in ends[name]:
            sums[cut > 1] += size
    each = setup.model.layers * setup.lora.rank
    return each * sums[True], each * sums[False]


@once
def _all_numbers(setup: Setup) -> tuple[int, int]:
    """How many parameters the axis model shards, and how many it replicates.

    Those of experts are counted apart, and so are those that nothing shards. The
    published formulas let the axis cut all of them.
    """
    model = setup.model
    if setup.counting == "megatron" or isinstance(model, MLP):
        return model.parameters, 0
    matrices = (1 if model.tied else 2) * setup.rows * model.d_model
    layers, replicated, _ = weights(setup)
    if setup.reads_images:
        matrices = setup.rows * model.d_model
        replicated += (model.pixels + 2) * model.d_model
    replicated += positions_and_norms(model) - unsharded_norms(setup)
    more = 0
    if model.biases or model.qkv_biases:
        more += model.heads * model.head_dim
        keys = 2 * model.kv_heads * model.head_dim
        if setup.keys_split < setup.split:
            replicated += model.layers * keys
        else:
            more += keys
    dense = model.layers - model.moe_layers
    if model.biases:
        replicated += model.layers * model.d_model + dense * model.d_model
    inside = (2 if model.gated else 1) * model.d_ff if model.biases else 0
    return matrices + layers + model.layers * more + dense * inside, replicated


@once
def expert_numbers(setup: Setup) -> tuple[int, int]:
    """How many parameters of experts the axis model shards, and how many it replicates.

    These are the biases that are added after a sum over model.
    """
    model = setup.model
    if isinstance(model, MLP) or model.experts is None:
        return 0, 0
    count, wide = model.moe_layers * model.experts, model.expert_d_ff or 0
    biases = (2 if model.gated else 1) * wide if model.biases else 0
    replicated = model.d_model if model.biases else 0
    return weights(setup)[2] + count * biases, count * replicated


@once
def unsharded_numbers(setup: Setup) -> tuple[int, int]:
    """Few numbers that neither fsdp nor data shards: a router's biases, and sinks.

    With the first count the norms of q and k that do not divide. The axis model shards
    the sinks, and the bias of a head of classes.
    """
    model = setup.model
    if isinstance(model, MLP) or setup.counting == "megatron":
        return 0, 0
    biases = model.biases or model.router_biases
    replicated = model.moe_layers * (model.experts or 0) if biases else 0
    replicated += unsharded_norms(setup)
    by_model = model.layers * model.heads if model.sinks else 0
    return replicated, by_model + (setup.rows if setup.reads_images else 0)


def unsharded_norms(setup: Setup) -> int:
    """The norms of q and k, where each device has all of them."""
    model = setup.transformer
    if not model.qk_norm or model.head_dim % setup.shards(1) == 0:
        return 0
    return model.layers * 2 * (2 if model.norm == "layer" else 1) * model.head_dim


def layer_weights(model: Transformer | MLP) -> int:
    """Numbers in the matrices of a layer without experts: attention, and the mlp."""
    inside = model.d_model * model.d_ff
    if isinstance(model, MLP):
        return 2 * inside
    return model.attention_weights + (3 if model.gated else 2) * inside


@once
def largest_matrix(setup: Setup) -> tuple[int, int, str]:
    """The largest matrix of a layer: how many layers have it, its numbers, in words.

    Of experts it is that of all those of one device. The axis model shards it too.
    """
    model = setup.model
    dense = model.d_model * model.d_ff
    words = f"{model.d_model} × {model.d_ff}"
    if isinstance(model, MLP) or not model.moe_layers:
        return model.layers, dense, words
    here, wide = (model.experts or 0) // setup.expert, model.expert_d_ff or 0
    experts = here * model.d_model * wide
    if model.moe_layers < model.layers and dense > experts:
        return model.layers - model.moe_layers, dense, words
    return model.moe_layers, experts, f"{here} × {model.d_model} × {wide}"


@once
def weights(setup: Setup) -> tuple[int, int, int]:
    """Numbers in the matrices of all layers.

    Those that model shards, those it replicates, and those of experts, which model
    and expert shard.
    """
    model, replicated, experts = setup.model, 0, 0
    total = model.layers * layer_weights(model)
    if isinstance(model, MLP):
        return total, 0, 0
    if setup.keys_split < setup.split:
        replicated = 2 * model.kv_heads * model.head_dim * model.d_model
    if model.kv_lora_rank is not None:
        narrow = model.kv_lora_rank + (model.qk_rope_head_dim or 0)
        replicated = model.d_model * ((model.q_lora_rank or 0) + narrow)
    replicated *= model.layers
    total -= replicated
    moe = model.moe_layers
    if moe:
        each = (3 if model.gated else 2) * model.d_model
        wide = model.expert_d_ff or 0
        total += moe * each * (model.shared_experts * wide - model.d_ff)
        replicated += moe * model.d_model * (model.experts or 0)
        experts = moe * (model.experts or 0) * each * wide
    return total, replicated, experts
