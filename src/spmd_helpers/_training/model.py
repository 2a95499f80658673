"""The shapes of a model, and what follows from them: parameters, cache, FLOPs.

Plain whole-number arithmetic. A transformer here is the decoder that GPT and Llama
are: an embedding, `layers` times attention and a feed-forward part, each behind a
norm, a last norm, and a head that gives a score to each word of the vocabulary.
"""

import math
from dataclasses import dataclass, field

from .._core.validate import close_name, integer, one_of, or_words
from .._core.words import join_words
from .._errors import NotUnderstood
from .._shardings.sharding import itemsize

POSITIONS = ("learned", "rotary", "none")
NORMS = ("layer", "rms")
# What a step may recompute. Two are policies of jax.checkpoint, for each layer.
RECOMPUTE = {
    "everything_saveable": "recompute nothing",
    "selective": "recompute the scores of attention",
    "nothing_saveable": "recompute every layer",
}
OTHER_WORDS = {"none": "everything_saveable", "full": "nothing_saveable"}


@dataclass(frozen=True)
class Transformer:
    """The shapes of a decoder-only transformer.

    One layer of width 8, with 2 heads of 4 and one head of keys and values: q and o
    have 8 * 8 numbers each, k and v 8 * 4; a gated feed-forward part has 3 * 8 * 16.

    >>> small = Transformer(
    ...     layers=1, d_model=8, heads=2, kv_heads=1, d_ff=16, vocab=100, seq=32,
    ...     gated=True, biases=False, positions="rotary", norm="rms",
    ... )
    >>> small.parts["attention"], small.parts["mlp"]   # 2*64 + 2*32, 3*128
    (192, 384)
    >>> small.parts["embedding"], small.parts["norms"]  # 100*8, (2*1 + 1)*8
    (800, 24)
    >>> small.parameters                                # tied: no head of its own
    1400
    >>> small.kv_cache_bytes(batch=1)     # k and v: 2 * 1 head * 4 * 32 tokens * 2 B
    512

    Args:
        layers: how many layers.
        d_model: width of what flows between the layers.
        heads: heads of the queries.
        kv_heads: heads of the keys and values (grouped-query attention); `heads` if not
            given. Must divide `heads`.
        d_ff: width inside the feed-forward part; 4 * d_model if not given.
        vocab: rows of the embedding. Not given, it is GPT-3's.
        seq: tokens of a sequence, and rows of learned positions. Not given, GPT-3's.
        head_dim: width of one head; d_model / heads if not given.
        gated: whether the feed-forward part has a third matrix, as in SwiGLU.
        tied: whether the head uses the embedding's matrix again.
        biases: whether every matrix of attention and feed-forward has a bias.
        positions: 'learned' (a table of seq * d_model), 'rotary' or 'none' (no
            parameters).
        norm: 'layer' (scale and shift, 2 * d_model) or 'rms' (scale alone).
        name: what it is called.
        source: where the shapes stand.

    Raises:
        NotUnderstood: a size is not a whole number of 1 or more, heads do not divide,
            or `positions` or `norm` is not one of the words above.

    Used in chapters 09, 14 and 15, by `training_memory` and the memory calculator.
    """

    layers: int
    d_model: int
    heads: int
    # A whole number once the record is made: None stands for what follows from others.
    kv_heads: int = None  # type: ignore[assignment]  # heads
    d_ff: int = None  # type: ignore[assignment]  # 4 * d_model
    vocab: int = 50257
    seq: int = 2048
    head_dim: int = None  # type: ignore[assignment]  # d_model / heads
    gated: bool = False
    tied: bool = True
    biases: bool = True
    positions: str = "learned"
    norm: str = "layer"
    name: str = field(default="", compare=False)
    source: str = field(default="", compare=False, repr=False)

    def __post_init__(self) -> None:
        _put_sizes(self, "layers", "d_model", "heads", "vocab", "seq")
        if self.kv_heads is None:
            object.__setattr__(self, "kv_heads", self.heads)
        if self.d_ff is None:
            object.__setattr__(self, "d_ff", 4 * self.d_model)
        if self.head_dim is None:
            object.__setattr__(self, "head_dim", _head_dim(self.d_model, self.heads))
        _put_sizes(self, "kv_heads", "d_ff", "head_dim")
        if self.heads % self.kv_heads:
            raise NotUnderstood(
                f"kv_heads={self.kv_heads} does not divide heads={self.heads}; each "
                "head of keys and values serves equally many heads of queries, so give "
                f"one of {divisors(self.heads)}."
            )
        for key in ("gated", "tied", "biases"):
            one_of(key, getattr(self, key), (True, False))
        one_of("positions", self.positions, POSITIONS)
        one_of("norm", self.norm, NORMS)

    @property
    def parts(self) -> dict[str, int]:
        """Parameters by part; attention, mlp and norms are those of all layers."""
        norm = _norm_parameters(self)
        embedding = self.vocab * self.d_model
        learned = self.positions == "learned"
        return {
            "embedding": embedding,
            "positions": self.seq * self.d_model if learned else 0,
            "attention": self.layers * _attention_parameters(self),
            "mlp": self.layers * _mlp_parameters(self),
            "norms": self.layers * 2 * norm + norm,
            "head": 0 if self.tied else embedding,
        }

    @property
    def parameters(self) -> int:
        """All parameters, exactly."""
        return sum(self.parts.values())

    @property
    def layer_parameters(self) -> int:
        """The parameters of one layer: attention, feed-forward part, two norms."""
        both = _attention_parameters(self) + _mlp_parameters(self)
        return both + 2 * _norm_parameters(self)

    def kv_cache_bytes(
        self, batch: int = 1, seq: int | None = None, dtype: str = "bfloat16"
    ) -> int:
        """Bytes of the keys and values that generation keeps, over all devices.

        Each layer keeps two vectors of kv_heads * head_dim for each token: grouped
        queries make the cache smaller by heads / kv_heads.

        Args:
            batch: how many sequences.
            seq: tokens of each, those to come included; the model's own if not given.
            dtype: the cache's element type, by name.

        Raises:
            NotUnderstood: `batch`, `seq` or `dtype` is none.
        """
        tokens = integer("batch", batch) * _tokens(self, seq)
        vectors = 2 * self.layers * self.kv_heads * self.head_dim
        return tokens * vectors * itemsize(dtype)

    def flops(
        self,
        batch: int,
        seq: int | None = None,
        recompute: str = "everything_saveable",
    ) -> int:
        """FLOPs of one training step on all devices: matrix products, exactly.

        A product of [m, k] with [k, n] is 2 * m * k * n. The backward pass has two
        such products for each one of the forward pass. The scores of attention count
        fully, also those that a causal mask then hides. Norms, softmax, activations,
        the embedding's lookup and the optimizer are not counted: together they are
        small beside the products.

        With d_ff = 4 * d_model this is the 72 B s l h^2 (1 + s/6h + V/12lh) of
        Narayanan et al. 2021, arXiv:2104.04473, and their 96 B s l h^2
        (1 + s/6h + V/16lh) with recompute='nothing_saveable'; per layer it is the
        scaling book's 18 B T D F + 24 B T D N H + 12 B T^2 N H
        (jax-ml/scaling-book, transformers.md).

        Args:
            batch: sequences a step, over all devices.
            seq: tokens of each; the model's own if not given.
            recompute: 'everything_saveable' runs nothing again; 'nothing_saveable' runs
                the layers' forward pass once more; 'selective' only the scores of
                attention and their product with v. JAX runs a little less again: not
                the last product of a layer, and of the scores not the product with v,
                whose results the backward pass has.

        Raises:
            NotUnderstood: an argument is none of these.
        """
        seq = _tokens(self, seq)
        batch = integer("batch", batch)
        check_recompute(recompute)
        tokens = batch * seq
        weights = _attention_weights(self) + _mlp_weights(self)
        products = self.layers * 2 * tokens * weights
        scores = self.layers * 4 * tokens * seq * self.heads * self.head_dim
        head = 2 * tokens * self.d_model * self.vocab
        again = {
            "everything_saveable": 0,
            "selective": scores,
            "nothing_saveable": products + scores,
        }
        return 3 * (products + scores + head) + again[recompute]


@dataclass(frozen=True)
class MLP:
    """The shapes of a stack of layers h + relu(h @ w1) @ w2, without biases.

    The smallest model that shows what sharding does to memory and to traffic.

    >>> stack = MLP(layers=3, d_model=8, d_ff=32)
    >>> stack.parameters                 # 3 layers * (8*32 + 32*8)
    1536
    >>> stack.flops(batch=10)            # 6 * 1536 parameters * 10 rows
    92160

    Args:
        layers: how many layers.
        d_model: width of h.
        d_ff: width inside; w1 is [d_model, d_ff] and w2 [d_ff, d_model].
        name: what it is called.
        source: where the shapes stand.

    Raises:
        NotUnderstood: a size is not a whole number of 1 or more.

    Used in chapters 09 to 11 and 14.
    """

    layers: int
    d_model: int
    d_ff: int
    name: str = field(default="", compare=False)
    source: str = field(default="", compare=False, repr=False)

    def __post_init__(self) -> None:
        _put_sizes(self, "layers", "d_model", "d_ff")

    @property
    def parts(self) -> dict[str, int]:
        """Parameters by part: there is one."""
        return {"mlp": self.layers * self.layer_parameters}

    @property
    def parameters(self) -> int:
        """All parameters, exactly."""
        return self.layers * self.layer_parameters

    @property
    def layer_parameters(self) -> int:
        """The parameters of one layer."""
        return 2 * self.d_model * self.d_ff

    def flops(self, batch: int, recompute: str = "everything_saveable") -> int:
        """FLOPs of one training step on all devices: matrix products.

        Six for each parameter and row: two forward, four backward. The first layer's
        gradient for the rows themselves is counted; a compiler leaves it out.

        Args:
            batch: rows of h a step, over all devices.
            recompute: 'everything_saveable' runs nothing again, 'nothing_saveable' the
                forward pass once more. There is no attention, so 'selective' recomputes
                nothing.

        Raises:
            NotUnderstood: an argument is none of these.
        """
        check_recompute(recompute)
        forward = 2 * integer("batch", batch) * self.parameters
        return (4 if recompute == "nothing_saveable" else 3) * forward


# The arithmetic. Small on purpose: the tests break each, and each must fail then.


def _attention_weights(model: Transformer) -> int:
    """Of one layer: q and o are as wide as all heads, k and v as their own."""
    wide = (2 * model.heads + 2 * model.kv_heads) * model.head_dim
    return model.d_model * wide


def _mlp_weights(model: Transformer) -> int:
    return (3 if model.gated else 2) * model.d_model * model.d_ff


def _attention_parameters(model: Transformer) -> int:
    biases = (model.heads + 2 * model.kv_heads) * model.head_dim + model.d_model
    return _attention_weights(model) + (biases if model.biases else 0)


def _mlp_parameters(model: Transformer) -> int:
    biases = (2 if model.gated else 1) * model.d_ff + model.d_model
    return _mlp_weights(model) + (biases if model.biases else 0)


def _norm_parameters(model: Transformer) -> int:
    return (2 if model.norm == "layer" else 1) * model.d_model


# Checks.


def _head_dim(d_model: int, heads: int) -> int:
    if d_model % heads:
        less = max(1, d_model // heads) * heads
        raise NotUnderstood(
            f"d_model={d_model} does not divide into heads={heads}; make it {less} or "
            f"{less + heads}, or say how wide a head is with head_dim=."
        )
    return d_model // heads


def _tokens(model: Transformer, seq: int | None) -> int:
    if seq is None:
        return model.seq
    seq = integer("seq", seq)
    if model.positions == "learned" and seq > model.seq:
        raise NotUnderstood(
            f"seq={seq} is more than the {model.seq} positions that the model has "
            f"learned; give {model.seq} or less, or make the model with seq={seq}."
        )
    return seq


def _put_sizes(model: "Transformer | MLP", *keys: str) -> None:
    for key in keys:
        object.__setattr__(model, key, integer(key, getattr(model, key)))


def check_recompute(value: object) -> None:
    """Refuse what is none of RECOMPUTE, such as another policy of jax.checkpoint."""
    if isinstance(value, str) and value in RECOMPUTE:
        return
    word = value if isinstance(value, str) else getattr(value, "__name__", "")
    close = OTHER_WORDS.get(word.lower()) or close_name(word.lower(), RECOMPUTE, 0.8)
    guess = f" Did you mean {close!r}?" if close else ""
    words = or_words(f"{name!r} ({what})" for name, what in RECOMPUTE.items())
    raise NotUnderstood(
        f"recompute={value!r} is not counted here.{guess} Give {words}."
    )


def divisors(n: int) -> str:
    """Every number that divides n, as a sentence lists them."""
    small = [d for d in range(1, math.isqrt(n) + 1) if n % d == 0]
    return join_words(list(map(str, sorted({*small, *(n // d for d in small)}))))
