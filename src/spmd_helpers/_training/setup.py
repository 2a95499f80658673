"""One way to train a model on a mesh: the arguments, checked, and sizes per device.

The mesh has two axes. `data` cuts the batch, and from `zero` 1 to 3 also the
optimizer's state, the gradients and the parameters. `model` cuts the heads, the inside
of the feed-forward part and the vocabulary (tensor parallelism).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypedDict, Unpack

from .._core.validate import as_integer, axis_sizes, integer, one_of
from .._core.words import join_words
from .._errors import NotDivisible, NotUnderstood, UnknownAxis
from .._hardware.chips import Chip
from .._hardware.chips import chip as chip_of
from .._shardings.sharding import itemsize, mesh_words
from .model import MLP, Transformer, check_counted, check_recompute, divisors

AXES = ("data", "model")
ATTENTION = ("plain", "flash")
COUNTING = ("jax", "megatron")
# Numbers that an optimizer keeps for each parameter, and whether it counts its steps.
OPTIMIZERS = {
    "adam": (2, True),
    "adamw": (2, True),
    "lion": (1, True),
    "momentum": (1, False),
    "sgd": (0, False),
}
# Those whose first moment has an argument of its own in optax, mu_dtype.
WITH_MU_DTYPE = ("adam", "adamw", "lion")


@dataclass(frozen=True)
class Setup:
    """Checked arguments of `training_memory`, as numbers that one device sees."""

    model: Transformer | MLP
    data: int
    split: int  # the size of the axis model
    zero: int
    batch: int  # sequences of one device, or rows of an MLP
    seq: int
    param_bytes: int  # each of these: bytes of one number
    compute_bytes: int
    grad_bytes: int
    moment_bytes: int
    mu_bytes: int  # of the first of these alone
    mu_dtype: str | None
    optimizer: str
    master_weights: bool
    recompute: str
    attention: str
    sequence_parallel: bool
    counting: str
    chip: Chip | None = None  # whose compiler lays out the step; None is a TPU

    @property
    def gpu(self) -> bool:
        """Whether XLA's compiler for GPUs lays out the step."""
        return self.chip is not None and self.chip.kind == "gpu"

    @property
    def generation(self) -> str:
        """NVIDIA's name of the GPU's architecture; '' where it is not known."""
        return "" if self.chip is None else self.chip.generation

    @property
    def transformer(self) -> Transformer:
        """The model, for what only a transformer needs."""
        if isinstance(self.model, MLP):
            raise TypeError("an MLP has neither attention nor a vocabulary")
        return self.model

    @property
    def tokens(self) -> int:
        """Tokens of one device (rows, of an MLP)."""
        return self.batch * self.seq

    @property
    def stream(self) -> int:
        """How many devices cut what flows between the layers, beside the batch."""
        return self.split if self.sequence_parallel else 1

    @property
    def rows(self) -> int:
        """Rows of the embedding: the vocabulary, rounded up to divide over model."""
        return -(-self.transformer.vocab // self.split) * self.split

    @property
    def is_mlp(self) -> bool:
        """Whether the model is the stack without attention."""
        return isinstance(self.model, MLP)

    @property
    def gathers(self) -> bool:
        """Whether parameters are all-gathered over data before they are used."""
        return self.zero >= 3 and self.data > 1

    @property
    def full(self) -> bool:
        """Whether each layer is recomputed."""
        return self.recompute == "nothing_saveable"

    @property
    def grouped(self) -> bool:
        """Whether several heads of queries share one of keys and values."""
        return not self.is_mlp and self.transformer.kv_heads < self.transformer.heads

    @property
    def scores(self) -> bool:
        """Whether the scores of attention are written to memory."""
        return not self.is_mlp and self.attention == "plain"


class Words(TypedDict):
    """The arguments that are a word, or yes or no."""

    optimizer: str
    master_weights: bool
    recompute: str
    attention: str
    sequence_parallel: bool
    counting: str


def checked_setup(
    model: Transformer | MLP,
    mesh: Mapping[str, int],
    *,
    zero: int,
    batch: int,
    seq: int | None,
    param_dtype: str,
    compute_dtype: str,
    grad_dtype: str | Sequence[str] | None,
    moment_dtype: str | None,
    mu_dtype: str | None,
    chip: str | Chip | None = None,
    **words: Unpack[Words],
) -> Setup:
    """Check every argument and put them in one record.

    Raises:
        NotUnderstood: an argument is not of its kind; the message gives the choices.
        UnknownAxis: the mesh has another axis than data and model.
        NotDivisible: the mesh does not divide the model or the batch.
    """
    if not isinstance(model, Transformer | MLP):
        raise NotUnderstood(
            f"model={model!r} is not a model; give a Transformer, an MLP, or one of "
            "MODELS, such as MODELS['gpt3-small']."
        )
    check_counted(model)
    axes = _checked_mesh(mesh)
    _check_words(model, words)
    zero = _checked_zero(zero)
    batch, seq = _checked_batch(model, batch, seq, axes)
    if grad_dtype == () or grad_dtype == []:
        raise NotUnderstood(
            f"grad_dtype={grad_dtype!r} holds no type; give one, such as 'float32', or "
            "two that are kept beside each other."
        )
    grad_dtypes: Sequence[str] = (
        grad_dtype
        if isinstance(grad_dtype, tuple | list)
        else (param_dtype if grad_dtype is None else grad_dtype,)
    )
    if moment_dtype is None:
        moment_dtype = "float32" if words["master_weights"] else param_dtype
    if mu_dtype is not None and words["optimizer"] not in WITH_MU_DTYPE:
        raise NotUnderstood(
            f"mu_dtype={mu_dtype!r}: of the optimizers here only "
            f"{join_words(list(map(repr, WITH_MU_DTYPE)))} take a type for the first "
            f"moment alone; with optimizer={words['optimizer']!r} leave mu_dtype out."
        )
    first = (
        (moment_dtype, "moment_dtype") if mu_dtype is None else (mu_dtype, "mu_dtype")
    )
    setup = Setup(
        model=model,
        data=axes["data"],
        split=axes["model"],
        zero=zero,
        batch=batch,
        seq=seq,
        param_bytes=itemsize(param_dtype, "param_dtype"),
        compute_bytes=itemsize(compute_dtype, "compute_dtype"),
        grad_bytes=sum(itemsize(name, "grad_dtype") for name in grad_dtypes),
        moment_bytes=itemsize(moment_dtype, "moment_dtype"),
        mu_bytes=itemsize(*first),
        mu_dtype=mu_dtype,
        chip=None if chip is None else chip_of(chip),
        **words,
    )
    if setup.counting == "jax":
        _check_division(setup, axes)
    return setup


def _checked_mesh(mesh: Mapping[str, int]) -> dict[str, int]:
    shape = axis_sizes("mesh", mesh)
    for axis, size in shape.items():
        if axis not in AXES:
            others = {a: n for a, n in shape.items() if a != axis}
            fixed = {"model" if "data" in others else "data": size}
            raise UnknownAxis(
                f"mesh={shape} has an axis {axis!r}; here a mesh has 'data' "
                "(cuts the batch, and the state by zero) and 'model' (cuts heads, "
                f"d_ff and vocabulary): give {others | fixed}."
            )
    return {axis: shape.get(axis, 1) for axis in AXES}


def _check_words(model: Transformer | MLP, words: Mapping[str, object]) -> None:
    one_of("optimizer", words["optimizer"], tuple(OPTIMIZERS))
    check_recompute(words["recompute"])
    one_of("attention", words["attention"], ATTENTION)
    one_of("counting", words["counting"], COUNTING)
    for key in ("master_weights", "sequence_parallel"):
        one_of(key, words[key], (True, False))
    if isinstance(model, MLP):
        for key, plain in (("attention", "plain"), ("sequence_parallel", False)):
            if words[key] != plain:
                raise NotUnderstood(
                    f"{key}={words[key]!r}: an MLP has neither attention nor "
                    f"sequences; leave {key} out."
                )


def _checked_zero(zero: int) -> int:
    stage = as_integer(zero, 0, 3)
    if stage is None:
        raise NotUnderstood(
            f"zero={zero!r} is not a stage of ZeRO; give 0 (the state is whole on "
            "every device of data), 1 (the optimizer's is cut), 2 (gradients too) or "
            "3 (parameters too: FSDP)."
        )
    return stage


def _checked_batch(
    model: Transformer | MLP, batch: int, seq: int | None, axes: Mapping[str, int]
) -> tuple[int, int]:
    """Sequences of one device, tokens of a sequence."""
    if isinstance(model, MLP):
        if seq is not None:
            raise NotUnderstood(f"seq={seq!r}: an MLP has no sequences; leave it out.")
        seq = 1
    else:
        seq = integer("seq", model.seq if seq is None else seq)
        if model.positions == "learned" and seq > model.seq:
            raise NotUnderstood(
                f"seq={seq} is more than the {model.seq} positions that the model has "
                f"learned; give {model.seq} or less, or a model that has learned {seq}."
            )
    batch = integer("batch", batch)
    if batch % axes["data"]:
        less = batch // axes["data"] * axes["data"]
        more = less + axes["data"]
        sizes = f"{less} or {more}" if less else f"{more}"
        raise NotDivisible(
            f"batch={batch} does not divide over the {axes['data']} devices of data; "
            f"it counts the sequences of all devices together: make it {sizes}."
        )
    return batch // axes["data"], seq


def _check_division(setup: Setup, axes: Mapping[str, int]) -> None:
    """Every dimension that an axis cuts has to divide, as JAX asks at its border."""
    model, split = setup.model, setup.split
    wide = {"d_ff": model.d_ff}
    if isinstance(model, Transformer):
        wide |= {"heads": model.heads, "kv_heads": model.kv_heads}
    for name, size in wide.items():
        if size % split:
            raise NotDivisible(
                f"mesh={{{_axes(axes)}}}: {name}={size} does not divide over the "
                f"{split} devices of model; make model one of "
                f"{divisors(math.gcd(*wide.values()))}."
            )
    if setup.sequence_parallel and setup.seq % split:
        raise NotDivisible(
            f"sequence_parallel=True: seq={setup.seq} does not divide over the {split} "
            "devices of model; give another seq."
        )
    if not setup.zero:
        return
    cut = {"d_model": (model.d_model, setup.data)}
    # The longer biases are cut by both axes.
    both = setup.data * split
    if isinstance(model, Transformer) and (model.biases or model.qkv_biases):
        cut |= {
            "heads * head_dim": (model.heads * model.head_dim, both),
            "kv_heads * head_dim": (model.kv_heads * model.head_dim, both),
        }
    if isinstance(model, Transformer) and model.qk_norm:
        cut["head_dim"] = (model.head_dim, setup.data)
    if isinstance(model, Transformer) and model.biases:
        cut["d_ff"] = (model.d_ff, both)
    for name, (size, devices) in cut.items():
        if size % devices:
            raise NotDivisible(
                f"zero={setup.zero} cuts {name}={size} over {devices} devices "
                f"({mesh_words(axes)}), which does not divide; make data smaller, or "
                "count with zero=0."
            )


def _axes(axes: Mapping[str, int]) -> str:
    return ", ".join(f"{axis!r}: {size}" for axis, size in axes.items())
