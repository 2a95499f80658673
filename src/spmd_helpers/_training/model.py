"""The shapes of a model, and what follows from them: parameters, cache, FLOPs.

Plain whole-number arithmetic. A transformer here is the decoder that GPT and Llama
are: an embedding, `layers` times attention and a feed-forward part, each behind a
norm, a last norm, and a head that gives a score to each word of the vocabulary. In
place of the feed-forward part a layer can have experts, and in place of words the
model can read the patches of an image.
"""

import math
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .._core.validate import integer, one_of
from .._core.words import join_words
from .._errors import NotUnderstood
from .dtypes import type_bytes
from .recompute import (
    RESULTS,
    check_products,
    check_recompute,
    checked_names,
    flops_again,
)

if TYPE_CHECKING:
    from jax.typing import DTypeLike

POSITIONS = ("learned", "rotary", "none")
NORMS = ("layer", "rms")


@dataclass(frozen=True)
class Transformer:
    """The shapes of a transformer: a decoder of text, or with `patch_size` a ViT.

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

    Four experts of 3 * 8 * 16 in place of that part, of which a token uses one, and a
    router of 8 * 4:

    >>> from dataclasses import replace
    >>> sparse = replace(small, experts=4, experts_per_token=1)
    >>> sparse.parts["experts"], sparse.parts["router"], sparse.parameters
    (1536, 32, 2584)
    >>> sparse.active_parameters                        # 2584 - 3 * 384
    1432

    Args:
        layers: how many layers.
        d_model: width of what flows between the layers.
        heads: heads of the queries.
        kv_heads: heads of the keys and values (grouped-query attention); `heads` if not
            given. Must divide `heads`.
        d_ff: width inside the feed-forward part; 4 * d_model if not given.
        vocab: rows of the embedding. Not given, it is GPT-3's. With `patch_size`, the
            classes that the head tells apart.
        seq: tokens of a sequence, and rows of learned positions. Not given, GPT-3's.
            With `patch_size`, the patches of an image and one class token.
        head_dim: width of one head; d_model / heads if not given.
        gated: whether the feed-forward part has a third matrix, as in SwiGLU.
        tied: whether the head uses the embedding's matrix again.
        biases: whether every matrix of attention and feed-forward has a bias.
        positions: 'learned' (a table of seq * d_model), 'rotary' or 'none' (no
            parameters).
        norm: 'layer' (scale and shift, 2 * d_model) or 'rms' (scale alone).
        qkv_biases: whether q, k and v have biases though `biases` is False.
        qk_norm: whether each head's q and k pass norms of head_dim, whose parameters
            all heads of a layer share.
        post_norms: whether a layer has two more norms, after attention and after the
            feed-forward part.
        sinks: whether each head has a learned number beside its scores.
        window: how many tokens a token attends to at most, itself included; all, if
            not given.
        global_every: with a window, every n-th layer attends to all tokens; none does,
            if not given.
        experts: how many experts a mixture-of-experts layer chooses from, in place of
            its feed-forward part; not given, the model is dense.
        experts_per_token: how many of them each token uses (top-k).
        shared_experts: experts that every token uses beside those.
        expert_d_ff: width inside one expert; `d_ff` if not given.
        dense_layers: how many first layers have a feed-forward part of `d_ff` and no
            experts.
        moe_every: of the layers after these every n-th has experts.
        router_biases: whether the router has a number for each expert beside its
            matrix, though `biases` is False.
        q_lora_rank: with `kv_lora_rank`, the width to which the queries are compressed;
            they are not, if not given.
        kv_lora_rank: the width to which keys and values are compressed: multi-head
            latent attention (MLA), which also needs the three widths that follow.
        qk_nope_head_dim: width of a head's q and k without positions.
        qk_rope_head_dim: width of a head's q with rotary positions, and of the k with
            them, which all heads share. `head_dim` is the sum of both.
        v_head_dim: width of a head's v.
        patch_size: side, in pixels, of the square of an RGB image that is one token (a
            vision transformer). Its embedding is one matrix and a class token, its head
            scores the class token alone, and both have biases.
        name: what it is called.
        source: where the shapes stand.

    Raises:
        NotUnderstood: a size is not an integer of 1 or more, heads do not divide,
            `positions` or `norm` is not one of the words above, or fields do not go
            together, such as `experts_per_token` without `experts`.

    Used in chapters 09, 14 and 15, by `training_memory` and the memory calculator.
    """

    layers: int
    d_model: int
    heads: int
    # An integer once the record is made: None stands for what follows from others.
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
    qkv_biases: bool = False
    qk_norm: bool = False
    post_norms: bool = False
    sinks: bool = False
    # From here None is a thing that the model does not have.
    window: int | None = None
    global_every: int | None = None
    experts: int | None = None
    experts_per_token: int | None = None
    shared_experts: int = 0
    expert_d_ff: int | None = None
    dense_layers: int = 0
    moe_every: int = 1
    router_biases: bool = False
    q_lora_rank: int | None = None
    kv_lora_rank: int | None = None
    qk_nope_head_dim: int | None = None
    qk_rope_head_dim: int | None = None
    v_head_dim: int | None = None
    patch_size: int | None = None
    name: str = field(default="", compare=False)
    source: str = field(default="", compare=False, repr=False)

    def __post_init__(self) -> None:
        _put_sizes(self, "layers", "d_model", "heads", "vocab", "seq")
        for key in _SWITCHES:
            one_of(key, getattr(self, key), (True, False))
        one_of("positions", self.positions, POSITIONS)
        one_of("norm", self.norm, NORMS)
        if self.kv_heads is None:
            object.__setattr__(self, "kv_heads", self.heads)
        if self.d_ff is None:
            object.__setattr__(self, "d_ff", 4 * self.d_model)
        _put_latent(self)
        if self.head_dim is None:
            object.__setattr__(self, "head_dim", _head_dim(self.d_model, self.heads))
        _put_sizes(self, "kv_heads", "d_ff", "head_dim")
        if self.heads % self.kv_heads:
            raise NotUnderstood(
                f"kv_heads={self.kv_heads} does not divide heads={self.heads}; each "
                "head of keys and values serves equally many heads of queries, so give "
                f"one of {divisors(self.heads)}."
            )
        _put_window(self)
        _put_experts(self)
        _put_patches(self)

    @property
    def pixels(self) -> int:
        """Numbers of one patch of an image: red, green and blue; 0 without patches."""
        return 3 * (self.patch_size or 0) ** 2

    @property
    def moe_layers(self) -> int:
        """How many layers have experts; 0 in a dense model."""
        if self.experts is None:
            return 0
        return max(0, self.layers - self.dense_layers) // self.moe_every

    @property
    def global_layers(self) -> int:
        """How many layers attend to all tokens; all, where there is no window."""
        if self.window is None:
            return self.layers
        return 0 if self.global_every is None else self.layers // self.global_every

    @property
    def attention_weights(self) -> int:
        """Numbers in the matrices of one layer's attention, without biases."""
        return _attention_weights(self)

    @property
    def parts(self) -> dict[str, int]:
        """Parameters by part; attention, mlp and norms are those of all layers.

        Where there are experts, `mlp` is that of the layers without, `experts` are all
        of them, the shared ones too, and `router` chooses among them.
        """
        moe = self.moe_layers
        parts = {
            "embedding": _embedding_parameters(self),
            "positions": _position_parameters(self),
            "attention": self.layers * _attention_parameters(self),
            "mlp": (self.layers - moe) * _mlp_parameters(self),
            "norms": _all_norms(self),
            "head": _head_parameters(self),
        }
        if self.experts is None:
            return parts
        experts = self.experts + self.shared_experts
        return parts | {
            "experts": moe * experts * self.expert_parameters,
            "router": moe * _router_parameters(self),
        }

    @property
    def parameters(self) -> int:
        """All parameters, exactly."""
        return sum(self.parts.values())

    @property
    def active_parameters(self) -> int:
        """The parameters that one token uses.

        All but those of the experts that it is not sent to; the embedding is counted
        with all its rows. In a dense model they are all `parameters`.
        """
        if self.experts is None:
            return self.parameters
        idle = self.experts - (self.experts_per_token or 0)
        return self.parameters - self.moe_layers * idle * self.expert_parameters

    @property
    def expert_parameters(self) -> int:
        """The parameters of one expert; 0 in a dense model."""
        return 0 if self.experts is None else _mlp_parameters(self, self.expert_d_ff)

    @property
    def layer_parameters(self) -> int:
        """The parameters of one layer, of the largest where layers differ.

        Attention, the norms, and the feed-forward part or the router and all experts.
        """
        rest = _attention_parameters(self) + _layer_norms(self)
        if self.experts is None:
            return rest + _mlp_parameters(self)
        experts = (self.experts + self.shared_experts) * self.expert_parameters
        moe = experts + _router_parameters(self)
        dense = _mlp_parameters(self) if self.moe_layers < self.layers else 0
        return rest + max(moe, dense)

    def kv_cache_bytes(
        self, batch: int = 1, seq: int | None = None, dtype: "DTypeLike" = "bfloat16"
    ) -> int:
        """Bytes of the keys and values that generation keeps, over all devices.

        Each layer keeps two vectors of kv_heads * head_dim for each token: grouped
        queries make the cache smaller by heads / kv_heads. A layer with a window keeps
        the last `window` tokens alone. Latent attention keeps one vector of
        kv_lora_rank + qk_rope_head_dim, from which k and v are made again.

        Args:
            batch: how many sequences.
            seq: tokens of each, those to come included; the model's own if not given.
            dtype: the cache's element type, by name or as NumPy's or JAX's type.

        Raises:
            NotUnderstood: `batch`, `seq` or `dtype` is none, or the model reads images,
                of which nothing is kept.
        """
        _check_generates(self, "has no cache")
        batch = integer("batch", batch)
        tokens = _reaches(self, _tokens(self, seq))
        return batch * tokens * _cache_width(self) * type_bytes(dtype)

    def kv_cache_bytes_per_token(
        self, cached: int = 0, dtype: "DTypeLike" = "bfloat16"
    ) -> int:
        """Bytes that one more token adds to the cache of one sequence.

        A layer whose window is full drops a token for each that comes, so that from
        there on only the layers that attend to all tokens grow.

        >>> from spmd_helpers import MODELS
        >>> MODELS["llama-3-8b"].kv_cache_bytes_per_token()  # 2 * 32 * 8 * 128 * 2 B
        131072

        Args:
            cached: how many tokens of the sequence are in the cache already.
            dtype: the cache's element type, by name or as NumPy's or JAX's type.

        Raises:
            NotUnderstood: `cached` or `dtype` is none, the model has learned fewer
                positions, or it reads images, of which nothing is kept.
        """
        _check_generates(self, "has no cache")
        cached = integer("cached", cached, "a number of tokens", least=0)
        more = _reaches(self, _tokens(self, cached + 1))
        less = _reaches(self, cached)
        return (more - less) * _cache_width(self) * type_bytes(dtype)

    def forward_flops(self, batch: int = 1, seq: int | None = None) -> int:
        """FLOPs of the forward pass on all devices: matrix products, exactly.

        Counted as in `flops`: a third of a step that recomputes nothing.

        Args:
            batch: sequences (images, with `patch_size`), over all devices.
            seq: tokens of each; the model's own if not given.

        Raises:
            NotUnderstood: an argument is none of these.
        """
        seq = _tokens(self, seq)
        batch = integer("batch", batch)
        layers = sum(_products(self, batch * seq, seq).values())
        return layers + sum(_ends(self, batch, seq))

    def flops_per_token(self, seq: int | None = None) -> int:
        """FLOPs of the forward pass for each token of a sequence, exactly.

        Twice the weights of the products that a token passes (of the experts, only
        those that it is sent to), and the scores of attention, which grow with `seq` up
        to a layer's window. Training takes three times as many.

        >>> from spmd_helpers import MODELS
        >>> model = MODELS["llama-3-8b"]
        >>> weights = sum(model.parts[key] for key in ("attention", "mlp", "head"))
        >>> model.flops_per_token(seq=1) == 2 * weights + 4 * 32 * 32 * 128
        True

        Args:
            seq: tokens of the sequence; the model's own if not given.

        Raises:
            NotUnderstood: `seq` is none, or the model reads images, whose head works
                once for an image.
        """
        _check_generates(self, "is counted per image: use forward_flops")
        return self.forward_flops(1, seq) // _tokens(self, seq)

    def flops(
        self,
        batch: int,
        seq: int | None = None,
        recompute: str = "everything_saveable",
        names: Collection[str] = (),
    ) -> int:
        """FLOPs of one training step on all devices: matrix products, exactly.

        A product of [m, k] with [k, n] is 2 * m * k * n. The backward pass has two
        such products for each one of the forward pass (one for an image's patches,
        whose pixels need no gradient). The scores of attention count fully, also those
        that a causal mask then hides; with a window, `window` of them for each token.
        Of the experts those count that a token is sent to. Norms, softmax,
        activations, the embedding's lookup, the choice of experts and the optimizer
        are not counted: together they are small beside the products.

        With d_ff = 4 * d_model this is the 72 B s l h^2 (1 + s/6h + V/12lh) of
        Narayanan et al. 2021, arXiv:2104.04473, whose 96 B s l h^2 with recompute count
        the last product of a layer once more, which JAX leaves out. Per layer it is the
        scaling book's 18 B T D F + 24 B T D N H + 12 B T^2 N H (jax-ml/scaling-book,
        transformers.md).

        Args:
            batch: sequences a step, over all devices.
            seq: tokens of each; the model's own if not given.
            recompute: what runs again, by the names of `training_memory`. A layer under
                'nothing_saveable' runs all its products again but the last one, which
                no derivative needs: 1.24 times the FLOPs of a GPT's layer, not 4/3.
            names: what a policy with names saves or offloads.

        Raises:
            NotUnderstood: an argument is none of these.
        """
        seq = _tokens(self, seq)
        batch = integer("batch", batch)
        check_recompute(recompute)
        checked_names(recompute, self.results, names, ())
        check_products(recompute, self.experts)
        products = _products(self, batch * seq, seq)
        patches, head = _ends(self, batch, seq)
        # A norm behind it, or the router's weight of an expert, has a derivative that
        # uses the last product.
        unused = () if self.post_norms else ("down", "shared_down")
        again = flops_again(recompute, names, products, unused)
        return 3 * (sum(products.values()) + head) + 2 * patches + again

    @property
    def results(self) -> tuple[str, ...]:
        """The results of a layer's products that a policy of `jax.checkpoint` names."""
        return tuple(name for name in RESULTS if name != "gate" or self.gated)


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
        NotUnderstood: a size is not an integer of 1 or more.

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
    def moe_layers(self) -> int:
        """There are no experts."""
        return 0

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

    @property
    def results(self) -> tuple[str, ...]:
        """The results of a layer's products that a policy can name."""
        return ("up", "down")

    def flops(
        self,
        batch: int,
        recompute: str = "everything_saveable",
        names: Collection[str] = (),
    ) -> int:
        """FLOPs of one training step on all devices: matrix products.

        Six for each parameter and row: two forward, four backward. The first layer's
        gradient for the rows themselves is counted; a compiler leaves it out.

        Args:
            batch: rows of h a step, over all devices.
            recompute: what runs again, by the names of `training_memory`: of a layer
                under 'nothing_saveable' the first of its two products, since no
                derivative needs the second. There is no attention, so 'selective'
                recomputes nothing.
            names: what a policy with names saves or offloads.

        Raises:
            NotUnderstood: an argument is none of these.
        """
        check_recompute(recompute)
        checked_names(recompute, self.results, names, ())
        products = dict.fromkeys(
            self.results, integer("batch", batch) * self.parameters
        )
        return 3 * sum(products.values()) + flops_again(recompute, names, products)


# The arithmetic. Small on purpose: the tests break each, and each must fail then.


def positions_and_norms(model: Transformer) -> int:
    """The parameters that stand in no matrix of a layer, without the biases."""
    return _position_parameters(model) + _all_norms(model)


def _attention_weights(model: Transformer) -> int:
    """Of one layer: q and o are as wide as all heads, k and v as their own."""
    return sum(_attention(model).values())


def _v_head_dim(model: Transformer) -> int:
    return model.v_head_dim or model.head_dim


def _mlp_weights(model: Transformer, width: int | None = None) -> int:
    """Of one feed-forward part of `d_ff`, or of the width of an expert."""
    return (3 if model.gated else 2) * model.d_model * (width or model.d_ff)


def _attention_parameters(model: Transformer) -> int:
    parameters = _attention_weights(model)
    if model.biases or model.qkv_biases:
        parameters += (model.heads + 2 * model.kv_heads) * model.head_dim
    if model.biases:
        parameters += model.d_model
    return parameters + (model.heads if model.sinks else 0)


def _mlp_parameters(model: Transformer, width: int | None = None) -> int:
    biases = (2 if model.gated else 1) * (width or model.d_ff) + model.d_model
    return _mlp_weights(model, width) + (biases if model.biases else 0)


def _router_parameters(model: Transformer) -> int:
    biases = 1 if model.biases or model.router_biases else 0
    return (model.experts or 0) * (model.d_model + biases)


def _norm_parameters(model: Transformer, width: int | None = None) -> int:
    """Of one norm of `d_model`, or of another width."""
    return (2 if model.norm == "layer" else 1) * (width or model.d_model)


def _position_parameters(model: Transformer) -> int:
    return model.seq * model.d_model if model.positions == "learned" else 0


def _all_norms(model: Transformer) -> int:
    """Of the layers, and the last one."""
    return model.layers * _layer_norms(model) + _norm_parameters(model)


def _layer_norms(model: Transformer) -> int:
    """The parameters of all norms of one layer."""
    parameters = (4 if model.post_norms else 2) * _norm_parameters(model)
    if model.qk_norm:
        parameters += 2 * _norm_parameters(model, model.head_dim)
    for rank in (model.q_lora_rank, model.kv_lora_rank):
        if rank is not None:
            parameters += _norm_parameters(model, rank)
    return parameters


def _embedding_parameters(model: Transformer) -> int:
    """A row for each word; or the matrix of a patch, its bias and the class token."""
    rows = model.vocab if model.patch_size is None else model.pixels + 2
    return rows * model.d_model


def _head_parameters(model: Transformer) -> int:
    if model.tied:
        return 0
    bias = 0 if model.patch_size is None else model.vocab
    return model.vocab * model.d_model + bias


def _products(model: Transformer, tokens: int, seq: int) -> dict[str, int]:
    """FLOPs of each product of all layers in a forward pass, by its result.

    Of experts those count that a token is sent to.
    """
    wide = {name: model.layers * size for name, size in _attention(model).items()}
    reach = _reaches(model, seq) * model.heads
    wide |= {"scores": reach * model.head_dim, "context": reach * _v_head_dim(model)}
    moe = model.moe_layers
    mlp = ("gate", "up", "down") if model.gated else ("up", "down")
    if moe < model.layers:
        size = (model.layers - moe) * model.d_model * model.d_ff
        wide |= dict.fromkeys(mlp, size)
    if model.experts is not None:
        wide["router"] = moe * model.d_model * model.experts
        size = moe * model.d_model * (model.expert_d_ff or 0)
        each = {"expert": model.experts_per_token, "shared": model.shared_experts}
        for kind, count in each.items():
            if count:
                wide |= {f"{kind}_{name}": count * size for name in mlp}
    return {name: 2 * tokens * size for name, size in wide.items()}


def _attention(model: Transformer) -> dict[str, int]:
    """The weights of one layer's attention, by the product's result."""
    wide, queries = model.d_model, model.heads * model.head_dim
    if model.kv_lora_rank is None:
        keys = model.kv_heads * model.head_dim
        sizes = {"query": queries, "key": keys, "value": keys, "out": queries}
        return {name: wide * size for name, size in sizes.items()}
    rank, values = model.kv_lora_rank, model.heads * _v_head_dim(model)
    weights = {"query": wide * queries}
    if model.q_lora_rank is not None:
        weights = {
            "query_down": wide * model.q_lora_rank,
            "query": model.q_lora_rank * queries,
        }
    return weights | {
        "kv_down": wide * (rank + (model.qk_rope_head_dim or 0)),
        "key": rank * model.heads * (model.qk_nope_head_dim or 0),
        "value": rank * values,
        "out": values * wide,
    }


def _ends(model: Transformer, batch: int, seq: int) -> tuple[int, int]:
    """FLOPs before and after the layers: an image's patches, and the head."""
    head = 2 * model.d_model * model.vocab
    if model.patch_size is None:
        return 0, batch * seq * head
    return 2 * batch * (seq - 1) * model.pixels * model.d_model, batch * head


def _reaches(model: Transformer, seq: int) -> int:
    """How many tokens a layer attends to, summed over the layers."""
    near = seq if model.window is None else min(seq, model.window)
    windows = model.layers - model.global_layers
    return model.global_layers * seq + windows * near


def _cache_width(model: Transformer) -> int:
    """Numbers that one layer keeps of one token."""
    if model.kv_lora_rank is None:
        return 2 * model.kv_heads * model.head_dim
    return model.kv_lora_rank + (model.qk_rope_head_dim or 0)


# Checks.

_SWITCHES = (
    *("gated", "tied", "biases", "qkv_biases", "qk_norm", "post_norms", "sinks"),
    "router_biases",
)
_WITH_EXPERTS = {
    "experts_per_token": None,
    "shared_experts": 0,
    "expert_d_ff": None,
    "dense_layers": 0,
    "moe_every": 1,
    "router_biases": False,
}
_LATENT = ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")


def _put_latent(model: Transformer) -> None:
    """Check the widths of latent attention, from which head_dim follows."""
    if model.kv_lora_rank is None:
        for key in ("q_lora_rank", *_LATENT):
            if getattr(model, key) is not None:
                raise NotUnderstood(
                    f"{key}={getattr(model, key)!r} is a width of latent attention; "
                    f"give kv_lora_rank= with it, or leave {key} out."
                )
        return
    for key in _LATENT:
        if getattr(model, key) is None:
            raise NotUnderstood(
                f"kv_lora_rank={model.kv_lora_rank!r} is latent attention, which needs "
                f"{key} too; give it, or leave kv_lora_rank out."
            )
    _put_sizes(model, "kv_lora_rank", *_LATENT)
    if model.q_lora_rank is not None:
        _put_sizes(model, "q_lora_rank")
    for key in ("biases", "qkv_biases", "qk_norm", "sinks"):
        if getattr(model, key):
            raise NotUnderstood(
                f"{key}=True does not go with kv_lora_rank={model.kv_lora_rank}: "
                f"latent attention is counted without; give {key}=False."
            )
    width = (model.qk_nope_head_dim or 0) + (model.qk_rope_head_dim or 0)
    for key, value in (("kv_heads", model.heads), ("head_dim", width)):
        given = getattr(model, key)
        if given is not None and given != value:
            raise NotUnderstood(
                f"{key}={given!r} does not go with kv_lora_rank={model.kv_lora_rank}: "
                f"latent attention makes it {value}; leave {key} out."
            )
    object.__setattr__(model, "head_dim", width)


def _put_window(model: Transformer) -> None:
    """Check the window, and which layers do without."""
    every = model.global_every
    if model.window is not None:
        _put_sizes(model, "window")
        if every is None:
            return
        what = "a period of layers"
        every = integer("global_every", every, what, least=2, most=model.layers)
        object.__setattr__(model, "global_every", every)
    elif every is not None:
        raise NotUnderstood(
            f"global_every={every!r} without a window: every layer attends to all "
            "tokens; give window= too, or leave global_every out."
        )


def _put_experts(model: Transformer) -> None:
    """Check the experts, and that a layer has them."""
    if model.experts is None:
        for key, usual in _WITH_EXPERTS.items():
            if getattr(model, key) != usual:
                raise NotUnderstood(
                    f"{key}={getattr(model, key)!r} means nothing without experts; "
                    f"give experts= too, or leave {key} out."
                )
        return
    if model.expert_d_ff is None:
        object.__setattr__(model, "expert_d_ff", model.d_ff)
    _put_sizes(model, "experts", "expert_d_ff", "moe_every")
    for key in ("shared_experts", "dense_layers"):
        value = integer(key, getattr(model, key), "a number", least=0)
        object.__setattr__(model, key, value)
    if model.experts_per_token is None:
        raise NotUnderstood(
            f"experts={model.experts} needs experts_per_token, how many of them a "
            f"token uses; give an integer from 1 to {model.experts}."
        )
    top = integer(
        "experts_per_token",
        model.experts_per_token,
        "a number of experts",
        most=model.experts,
    )
    object.__setattr__(model, "experts_per_token", top)
    if not model.moe_layers:
        raise NotUnderstood(
            f"dense_layers={model.dense_layers} and moe_every={model.moe_every} leave "
            f"none of the {model.layers} layers to the experts; make them smaller, or "
            "leave experts out."
        )


def _put_patches(model: Transformer) -> None:
    """Check what a model of images can't have."""
    if model.patch_size is None:
        return
    _put_sizes(model, "patch_size")
    if model.tied:
        raise NotUnderstood(
            f"tied=True does not go with patch_size={model.patch_size}: patches have "
            "no matrix of words that a head could use again; give tied=False."
        )
    if model.window is not None:
        raise NotUnderstood(
            f"window={model.window} does not go with patch_size={model.patch_size}: "
            "the patches of an image attend to all of them; leave window out."
        )
    if model.seq < 2:
        raise NotUnderstood(
            f"seq={model.seq} leaves an image no patch beside the class token; give 2 "
            "or more."
        )


def _check_generates(model: Transformer, what: str) -> None:
    if model.patch_size is not None:
        raise NotUnderstood(
            f"{model.name or 'a model'} with patch_size={model.patch_size} reads "
            f"images and {what}."
        )


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


def check_counted(model: "Transformer | MLP") -> None:
    """Refuse a model whose step takes memory that training_memory does not count."""
    if isinstance(model, MLP):
        return
    reason = _not_counted(model)
    if reason:
        name = model.name or "a model"
        active, parameters = model.active_parameters, model.parameters
        used = "" if active == parameters else f", of which a token uses {active:,}"
        raise NotUnderstood(
            f"{name} with {reason}: training_memory does not count what that takes. "
            f"The model has {parameters:,} parameters{used}."
        )


def _not_counted(model: Transformer) -> str:
    """What of a model is not counted, as its argument; '' where all of it is."""
    if model.patch_size is not None and model.experts is not None:
        return f"patch_size={model.patch_size} and experts={model.experts}"
    if model.moe_every > 1:
        return f"moe_every={model.moe_every}"
    if model.biases and model.shared_experts:
        return f"biases=True and shared_experts={model.shared_experts}"
    return ""


def divisors(n: int) -> str:
    """Every number that divides n, as a sentence lists them."""
    return join_words(list(map(str, all_divisors(n))))


def all_divisors(n: int) -> list[int]:
    """Every number that divides n, in order."""
    small = [d for d in range(1, math.isqrt(n) + 1) if n % d == 0]
    return sorted({*small, *(n // d for d in small)})
