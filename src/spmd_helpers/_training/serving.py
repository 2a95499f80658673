"""How a model is served: the arguments, checked, its weights and its cache, exactly.

`data` shards the sequences and replicates the weights. `model` shards heads, the inside
of the feed-forward part and the vocabulary, as it does in training. Keys and values
are sharded by their heads, and replicated where `model` does not divide these.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .._core.validate import integer, one_of
from .._core.words import count_words
from .._errors import NotDivisible, NotUnderstood
from .._hardware.chips import Chip
from .._hardware.chips import chip as chip_of
from .._shardings.sharding import itemsize
from .axes import all_axes
from .dtypes import float_name
from .model import MLP, Transformer
from .models import model_of
from .setup import over, splits, uneven, uneven_words
from .state import Array, Line

if TYPE_CHECKING:
    from jax.typing import DTypeLike

PHASES = ("prefill", "decode")
AXES = {
    "data": "shards the sequences",
    "model": "shards heads, d_ff and vocabulary",
}
ATTENTION = ("plain", "flash")
_SHAPES = "shapes of the arrays"


@dataclass(frozen=True)
class Serving:
    """Checked arguments of `inference_memory`, as numbers that one device sees."""

    model: Transformer
    data: int
    split: int  # the size of the axis model
    batch: int  # sequences in the cache of one device
    seq: int
    prompts: int  # sequences of one device that are read at once
    prompt: int
    quantized: bool  # whether matrices are int8, with scales
    param_bytes: int  # of one number of a matrix
    compute_bytes: int
    cache_bytes: int
    attention: str
    page_size: int | None = None
    chip: Chip | None = None

    @property
    def gpu(self) -> bool:
        """Whether XLA's compiler for GPUs lays out the programs."""
        return self.chip is not None and self.chip.kind == "gpu"

    @property
    def latent(self) -> bool:
        """Whether the model has multi-head latent attention (MLA)."""
        return self.model.kv_lora_rank is not None

    @property
    def keys_split(self) -> int:
        """How many devices shard the heads of keys and values; else each has all."""
        if self.latent or self.model.kv_heads % self.split:
            return 1
        return self.split

    @property
    def rows(self) -> int:
        """Rows of the embedding: the vocabulary, rounded up to divide over model."""
        return -(-self.model.vocab // self.split) * self.split

    @property
    def tokens(self) -> int:
        """Tokens of the prompts that one device reads at once."""
        return self.prompts * self.prompt

    @property
    def cache_width(self) -> tuple[int, str]:
        """Numbers that a layer keeps of a token, and how a formula writes them."""
        model = self.model
        if model.kv_lora_rank is not None:
            rank, rope = model.kv_lora_rank, model.qk_rope_head_dim or 0
            return rank + rope, f"({rank} + {rope})"
        each = f"{model.kv_heads} × {model.head_dim}"
        size = 2 * model.kv_heads * model.head_dim // self.keys_split
        return size, f"2 × {each}{over('model', self.keys_split)}"

    @property
    def used_width(self) -> tuple[int, str]:
        """The same of those heads that one device's queries use."""
        model = self.model
        if self.latent or self.keys_split == self.split:
            return self.cache_width
        heads = max(1, model.kv_heads // self.split)
        return 2 * heads * model.head_dim, f"2 × {heads} × {model.head_dim}"

    def kept_tokens(self, window: int | None = None) -> int:
        """Tokens of one sequence that a layer has room for: pages are whole."""
        tokens = self.seq if window is None else min(self.seq, window)
        if self.page_size is None:
            return tokens
        return -(-tokens // self.page_size) * self.page_size


def checked_serving(
    model: Transformer | str,
    mesh: Mapping[str, int],
    *,
    batch: int,
    seq: int | None,
    prompt: int | None,
    prefill_batch: int | None,
    param_dtype: "DTypeLike",
    compute_dtype: "DTypeLike",
    cache_dtype: "DTypeLike | None",
    attention: str | None,
    page_size: int | None,
    chip: str | Chip | None,
) -> Serving:
    """Check every argument and put them in one record.

    The axes of `mesh` are those that were given, each one of AXES.

    Raises:
        NotUnderstood: an argument is not of its kind; the message gives the choices.
        NotDivisible: the mesh does not divide the model or the sequences.
    """
    model = _checked_model(model)
    axes = all_axes(mesh, AXES)
    data, split = axes["data"], axes["model"]
    usual = "plain" if model.kv_lora_rank is not None else "flash"
    attention = usual if attention is None else attention
    one_of("attention", attention, ATTENTION)
    if attention == "flash" and model.kv_lora_rank is not None:
        raise NotUnderstood(
            "attention='flash' is not counted for latent attention, whose keys and "
            "values have different widths; give attention='plain'."
        )
    seq = integer("seq", model.seq if seq is None else seq)
    if model.positions == "learned" and seq > model.seq:
        raise NotUnderstood(
            f"seq={seq} is more than the {model.seq} positions that the model has "
            f"learned; give {model.seq} or less."
        )
    prompt = integer("prompt", seq if prompt is None else prompt, "a number of tokens")
    if prompt > seq:
        raise NotUnderstood(
            f"prompt={prompt} is longer than seq={seq}, the tokens that a sequence "
            "has room for; give a shorter prompt or a larger seq."
        )
    batch = integer("batch", batch)
    prefill_batch = integer(
        "prefill_batch", data if prefill_batch is None else prefill_batch
    )
    for name, count in (("batch", batch), ("prefill_batch", prefill_batch)):
        _check_divides(name, count, data)
    if prefill_batch > batch:
        raise NotUnderstood(
            f"prefill_batch={prefill_batch} is more than batch={batch}, the sequences "
            "that the cache has room for; give fewer."
        )
    wide = uneven(model, split)
    if wide:
        raise NotDivisible(uneven_words(mesh, wide, splits(model)))
    if page_size is not None:
        page_size = integer("page_size", page_size, "a number of tokens")
        if model.window is not None:
            raise NotUnderstood(
                f"page_size={page_size} is not counted with window={model.window}: "
                "which pages are freed as the window moves depends on the server; "
                "leave page_size out."
            )
    param_dtype = _floating(param_dtype, "param_dtype", "int8")
    compute_dtype = _floating(compute_dtype, "compute_dtype")
    cache_dtype = compute_dtype if cache_dtype is None else cache_dtype
    return Serving(
        model=model,
        data=data,
        split=split,
        batch=batch // data,
        seq=seq,
        prompts=prefill_batch // data,
        prompt=prompt,
        quantized=param_dtype == "int8",
        param_bytes=itemsize(param_dtype),
        compute_bytes=itemsize(compute_dtype),
        cache_bytes=itemsize(_floating(cache_dtype, "cache_dtype")),
        attention=attention,
        page_size=page_size,
        chip=None if chip is None else chip_of(chip),
    )


def _checked_model(model: object) -> Transformer:
    model = model_of(model)
    if isinstance(model, MLP):
        raise NotUnderstood(
            f"model={model!r} does not generate text; give a Transformer, or one of "
            "MODELS, such as MODELS['llama-3-8b']."
        )
    if model.patch_size is not None:
        raise NotUnderstood(
            f"{model.name or 'a model'} with patch_size={model.patch_size} reads "
            "images and has no cache; inference_memory counts models of text."
        )
    if model.experts is not None:
        raise NotUnderstood(
            f"{model.name or 'a model'} with experts={model.experts}: what a layer's "
            "experts need while they run is not counted. The model has "
            f"{model.parameters:,} parameters, and kv_cache_bytes() counts its cache."
        )
    return model


def _check_divides(name: str, count: int, data: int) -> None:
    if count % data:
        less = count // data * data
        sizes = f"{less} or {less + data}" if less else f"{data}"
        raise NotDivisible(
            f"{name}={count} does not divide over the {data} devices of data; it "
            f"counts the sequences of all devices together: make it {sizes}."
        )


def _floating(dtype: "DTypeLike", key: str, *others: str) -> str:
    return float_name(dtype, key, "is not counted here", others)


# The weights, as arrays.


def matrices(serving: Serving) -> list[Array]:
    """The matrices; the last two dimensions are what is multiplied."""
    model, split, keys_split = serving.model, serving.split, serving.keys_split
    layers, wide, inside = model.layers, model.d_model, model.d_ff
    queries = model.heads * model.head_dim

    def one(rows: int, columns: int, cuts: tuple[int, int], count: int = 1) -> Array:
        return Array((layers, rows, columns), (1, *cuts), count, is_matrix=True)

    if model.kv_lora_rank is None:
        keys = model.kv_heads * model.head_dim
        arrays = [
            one(wide, queries, (1, split)),
            one(wide, keys, (1, keys_split), 2),
            one(queries, wide, (split, 1)),
        ]
    else:
        rank, rope = model.kv_lora_rank, model.qk_rope_head_dim or 0
        nope, values = model.qk_nope_head_dim or 0, model.v_head_dim or 0
        arrays = [
            one(model.q_lora_rank or wide, queries, (1, split)),
            one(wide, rank + rope, (1, 1)),
            one(rank, model.heads * nope, (1, split)),
            one(rank, model.heads * values, (1, split)),
            one(model.heads * values, wide, (split, 1)),
        ]
        if model.q_lora_rank is not None:
            arrays.append(one(wide, model.q_lora_rank, (1, 1)))
    arrays += [
        one(wide, inside, (1, split), 2 if model.gated else 1),
        one(inside, wide, (split, 1)),
    ]
    if not model.tied:
        arrays.append(Array((1, wide, serving.rows), (1, 1, split)))
    return arrays


def embedding(serving: Serving) -> Array:
    """The embedding, whose rows are the vocabulary; it can be the head too."""
    return Array((serving.rows, serving.model.d_model), (serving.split, 1))


def vectors(serving: Serving) -> list[Array]:
    """Norms, biases, sinks and learned positions, which are never int8."""
    model, split = serving.model, serving.split
    layers, wide = model.layers, model.d_model
    norm = 2 if model.norm == "layer" else 1
    arrays = [
        Array((layers, wide), (1, 1), (4 if model.post_norms else 2) * norm),
        Array((wide,), (1,), norm),
    ]
    if model.positions == "learned":
        arrays.append(Array((model.seq, wide), (1, 1)))
    if model.qk_norm:
        arrays.append(Array((layers, model.head_dim), (1, 1), 2 * norm))
    for rank in (model.q_lora_rank, model.kv_lora_rank):
        if rank is not None:
            arrays.append(Array((layers, rank), (1, 1), norm))
    if model.biases or model.qkv_biases:
        keys = model.kv_heads * model.head_dim
        arrays += [
            Array((layers, model.heads * model.head_dim), (1, split)),
            Array((layers, keys), (1, serving.keys_split), 2),
        ]
    if model.biases:
        arrays += [
            Array((layers, model.d_ff), (1, split), 2 if model.gated else 1),
            Array((layers, wide), (1, 1), 2),
        ]
    if model.sinks:
        arrays.append(Array((layers, model.heads), (1, split)))
    return arrays


def weight_lines(serving: Serving) -> list[Line]:
    """The weights of one device; int8 matrices have a float32 scale a column."""
    arrays, table = matrices(serving), embedding(serving)
    large = table.device_numbers() + sum(one.device_numbers() for one in arrays)
    small = sum(one.device_numbers() for one in vectors(serving))
    each, c = serving.param_bytes, serving.compute_bytes
    if not serving.quantized:
        formula = f"{each} B × {large + small} on each device"
        return [Line("weights", formula, each * (large + small), PHASES, _SHAPES)]
    scales = table.device_numbers(dropped=1)
    scales += sum(one.device_numbers(dropped=1) for one in arrays)
    return [
        Line("weights in int8", f"1 B × {large}", large, PHASES, _SHAPES),
        Line("their scales", f"4 B × {scales}", 4 * scales, PHASES, _SHAPES),
        Line("norms and biases", f"{c} B × {small}", c * small, PHASES, _SHAPES),
    ]


# The cache.


def cache_kinds(serving: Serving) -> list[tuple[str, int, int]]:
    """(name, how many layers, tokens of each) of the kinds of layers there are."""
    model = serving.model
    near = model.layers - model.global_layers
    kinds = []
    if model.global_layers:
        kinds.append(("cache", model.global_layers, serving.kept_tokens()))
    if near:
        name = "cache of layers with a window"
        kinds.append((name, near, serving.kept_tokens(model.window)))
    return kinds


def cache_lines(serving: Serving) -> list[Line]:
    """The cache of one device, by kind of layer."""
    width, words = serving.cache_width
    lines = []
    for name, layers, tokens in cache_kinds(serving):
        size = layers * serving.batch * tokens * serving.cache_bytes * width
        kept = f"{tokens} tokens"
        if serving.page_size is not None:
            count = tokens // serving.page_size
            kept = f"{count} pages of {serving.page_size} tokens"
        formula = (
            f"{layers} layers × {count_words(serving.batch, 'sequence')} × {kept} × "
            f"{serving.cache_bytes} B × {words}"
        )
        lines.append(Line(name, formula, size, PHASES, _SHAPES))
    return lines


def unfilled_bytes(serving: Serving) -> int:
    """The most of one device's pages that can be empty: all but a token, each once."""
    if serving.page_size is None:
        return 0
    width, _ = serving.cache_width
    empty = serving.page_size - 1
    layers = serving.model.layers
    return layers * serving.batch * empty * serving.cache_bytes * width
