"""One way to train a model on a mesh: the arguments, checked, and sizes per device.

`data` and `fsdp` shard the batch. `fsdp` shards all of the state too, and `data` the
part of it that `zero` names: from 1 to 3 the optimizer's state, the gradients, the
parameters. `model` shards the heads, the inside of the feed-forward part and the
vocabulary (tensor parallelism). `context` shards the tokens of a sequence,
and `expert` the batch and the experts. A device of `stage` has a part of the layers.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, Unpack

from .._core.validate import as_integer, integer, is_huge, is_number, one_of, or_words
from .._core.words import join_words
from .._errors import NotDivisible, NotUnderstood
from .._hardware.chips import Chip
from .._hardware.chips import chip as chip_of
from .._shardings.sharding import itemsize, mesh_words
from .axes import all_axes
from .dtypes import float_name
from .model import MLP, Transformer, all_divisors, check_counted, divisors
from .models import model_of
from .recompute import (
    CHECKPOINTED,
    as_names,
    check_products,
    check_recompute,
    checked_names,
    saved,
)

if TYPE_CHECKING:
    from jax.typing import DTypeLike

AXES = {
    "data": "shards the batch, and the state by zero",
    "fsdp": "shards the batch and the state",
    "model": "shards heads, d_ff and vocabulary",
    "context": "shards the tokens of a sequence",
    "expert": "shards the batch and the experts",
    "stage": "has a part of the layers on each device",
}
COUNTED_WITH_LORA = ("nothing_saveable", "everything_saveable", "selective")
ATTENTION = ("plain", "flash", "ring")
COUNTING = ("jax", "megatron")
# Numbers that an optimizer keeps for each parameter, and the bytes beside them, such as
# those of its count of steps. What two of them keep depends on each array: state.py.
OPTIMIZERS = {
    "adam": (2, 4),
    "adamw": (2, 4),
    "lion": (1, 4),
    "momentum": (1, 0),
    "sgd": (0, 0),
    "adafactor": (0, 4),
    "muon": (1, 20),
}
# Those whose first moment has an argument of its own in optax, mu_dtype.
WITH_MU_DTYPE = ("adam", "adamw", "lion")


@dataclass(frozen=True)
class Lora:
    """Adapters of low rank beside frozen parameters (LoRA, arXiv:2106.09685).

    Attributes:
        rank: columns of the first matrix of an adapter, and rows of the second.
        targets: the results whose matrices have one, by their names.
        base_bytes: bytes of one frozen number.
        quantized: whether the layers' frozen matrices are int8, with scales.
    """

    rank: int
    targets: tuple[str, ...]
    base_bytes: int
    quantized: bool = False


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
    scaled: tuple[bool, ...] = (False, False)  # whether mu, and the other, are int8
    chip: Chip | None = None  # whose compiler lays out the step; None is a TPU
    fsdp: int = 1
    context: int = 1
    expert: int = 1
    capacity_factor: float = 1.0
    stage: int = 1  # the model's layers are those of one device of it
    interleave: int = 1
    names_saved: tuple[str, ...] = ()  # what a policy of jax.checkpoint has by name
    names_offloaded: tuple[str, ...] = ()
    parts: int = 1  # of the batch, whose gradients are added up
    lora: Lora | None = None  # the adapters, where they alone are trained
    offload_optimizer: bool = False
    # Arguments that were not given, but have a usual value.
    assumed: tuple[str, ...] = ()
    # What `once` and others have counted already, by the sizes that it depends on.
    # `changed` hands it on, `replace` begins anew.
    counted: dict[tuple[Any, ...], Any] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def changed(self, **sizes: Any) -> "Setup":
        """The same with other sizes of the mesh, `zero`, policy or part of the batch.

        It is `replace` in less time. A model given with it is the one of `stage`.
        """
        other = object.__new__(Setup)
        other.__dict__.update(self.__dict__, **sizes)
        return other

    @property
    def sizes_of_state(self) -> tuple[int, int, int, bool]:
        """What counts of the parameters depend on, before fsdp and data shard them.

        The last is whether the norms of q and k are left replicated.
        """
        model = self.model
        replicated = False
        if isinstance(model, Transformer) and model.qk_norm:
            replicated = model.head_dim % self.shards(1) > 0
        return self.split, self.expert, self.stage, replicated

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
        return self.batch * self.seq // self.context

    @property
    def keys_split(self) -> int:
        """How many devices shard the heads of keys and values; else they have them all.

        Where the axis model has more devices than there are such heads.
        """
        return 1 if self.transformer.kv_heads % self.split else self.split

    def shards(self, stage: int) -> int:
        """Over how many devices a part of the state is sharded, from a stage of ZeRO.

        1 is the optimizer's state, 2 the gradients, 3 the parameters.
        """
        return self.fsdp * (self.data if self.zero >= stage else 1)

    @property
    def adds_up(self) -> bool:
        """Whether gradients of several parts of the batch are added up."""
        return self.parts > 1 or self.stage > 1

    @property
    def chunk_layers(self) -> int:
        """Layers that a device runs in one go: all it has, or one chunk of them."""
        return self.model.layers // self.interleave

    @property
    def chunks_kept(self) -> int:
        """Of how many microbatches a device keeps a chunk's activations at most.

        Those of the first stage, in 1F1B and in its interleaved form (Narayanan et al.
        2021, arXiv:2104.04473, section 2.2).
        """
        if self.stage == 1:
            return 1
        ahead = (2 if self.interleave > 1 else 1) * (self.stage - 1)
        ahead += (self.interleave - 1) * self.stage
        return min(ahead + 1, self.parts * self.interleave)

    @property
    def has_sinks(self) -> bool:
        """Whether heads have a learned number beside their scores."""
        return isinstance(self.model, Transformer) and self.model.sinks

    @property
    def room(self) -> int:
        """Rows of one device's tokens for which each expert has room."""
        model = self.transformer
        share = self.tokens * (model.experts_per_token or 0) / (model.experts or 1)
        return math.ceil(self.capacity_factor * share)

    @property
    def expert_rows(self) -> int:
        """Rows that the experts of one device have: as many as it sends."""
        return self.room * (self.transformer.experts or 0)

    def over_shards(self, stage: int) -> str:
        """The same as a formula writes it."""
        data = self.data if self.zero >= stage else 1
        return over("fsdp", self.fsdp) + over("data", data)

    @property
    def keys_tokens(self) -> int:
        """Tokens of one device's keys and values: in a ring those of its queries."""
        return self.tokens * (1 if self.attention == "ring" else self.context)

    @property
    def stream(self) -> int:
        """How many devices shard what flows between the layers, beside the batch."""
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
        """Whether parameters are all-gathered before they are used."""
        return self.shards(3) > 1

    @property
    def checkpointed(self) -> bool:
        """Whether each layer is under a checkpoint, which keeps its input."""
        return self.recompute in CHECKPOINTED

    @property
    def saved(self) -> tuple[str, ...]:
        """The results that a checkpoint keeps on the device, beside the input."""
        if self.recompute == "offload_dot_with_no_batch_dims":
            return ()
        return self._results(self.names_saved)

    @property
    def keeps_scores(self) -> bool:
        """Whether the scores of all layers are kept for the backward pass."""
        return self.scores and (
            self.recompute == "everything_saveable" or "scores" in self.saved
        )

    @property
    def keeps_out(self) -> bool:
        """Whether a checkpoint keeps attention's last product.

        The backward pass of the feed-forward part then comes before attention is
        computed again.
        """
        return "out" in (*self.saved, *self.offloaded)

    @property
    def offloaded(self) -> tuple[str, ...]:
        """The results that a checkpoint sends to the host."""
        if self.recompute == "offload_dot_with_no_batch_dims":
            return self._results(())
        return self._results(self.names_offloaded) if self.names_offloaded else ()

    def _results(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Those of a policy's results that a derivative uses and this model has."""
        if not self.checkpointed:
            return ()
        there = {*self.model.results, *(("scores",) if self.scores else ())}
        if self.is_mlp or not self.transformer.post_norms:
            there.discard("down")  # no derivative uses it
        if not self.scores and self.recompute == "dots_saveable":
            there.discard("context")  # a kernel's result is no product
        return tuple(one for one in saved(self.recompute, names) if one in there)

    @property
    def reads_images(self) -> bool:
        """Whether the tokens are the patches of an image, and a class token."""
        return isinstance(self.model, Transformer) and self.model.patch_size is not None

    @property
    def head_norms_cut(self) -> int:
        """Over how many devices the norms of q and k are sharded.

        Over none where their head_dim does not divide over all that shard the state.
        """
        return 1 if self.transformer.head_dim % self.shards(1) else self.shards(1)

    @property
    def stored_bytes(self) -> int:
        """Bytes of one number of the layers' matrices, as they are stored."""
        return self.param_bytes if self.lora is None else self.lora.base_bytes

    def adapts(self, *results: str) -> bool:
        """Whether one of these results has a matrix with a gradient."""
        return self.lora is None or any(one in self.lora.targets for one in results)

    @property
    def grouped(self) -> bool:
        """Whether several heads of queries share one of keys and values."""
        return not self.is_mlp and self.transformer.kv_heads < self.transformer.heads

    @property
    def scores(self) -> bool:
        """Whether the scores of attention are written to memory."""
        return not self.is_mlp and self.attention == "plain"


_Count = TypeVar("_Count")


def once(count: Callable[[Setup], _Count]) -> Callable[[Setup], _Count]:
    """A count of parameters that many lines need, done once for a setup's sizes."""
    name = count.__name__

    @wraps(count)
    def kept(setup: Setup) -> _Count:
        key = (name, *setup.sizes_of_state)
        if key not in setup.counted:
            setup.counted[key] = count(setup)
        known: _Count = setup.counted[key]
        return known

    return kept


class Given(TypedDict):
    """Arguments that are a word, or yes or no, and always given."""

    optimizer: str
    master_weights: bool
    sequence_parallel: bool


class Words(Given):
    """All arguments that are a word, or yes or no."""

    recompute: str
    attention: str
    counting: str


def checked_setup(
    model: Transformer | MLP | str,
    mesh: Mapping[str, int],
    *,
    zero: int | None,
    batch: int | None,
    seq: int | None,
    param_dtype: "DTypeLike",
    compute_dtype: "DTypeLike",
    grad_dtype: "DTypeLike | Sequence[DTypeLike] | None",
    moment_dtype: "DTypeLike | None",
    mu_dtype: "DTypeLike | None",
    names_which_can_be_saved: Sequence[str] = (),
    names_which_can_be_offloaded: Sequence[str] = (),
    gradient_accumulation: int = 1,
    capacity_factor: float | None = None,
    interleave: int = 1,
    lora_rank: int | None = None,
    lora_targets: Sequence[str] = (),
    base_dtype: "DTypeLike | None" = None,
    offload_optimizer: bool = False,
    chip: str | Chip | None = None,
    recompute: str | None,
    attention: str | None,
    counting: str,
    **given: Unpack[Given],
) -> Setup:
    """Check every argument and put them in one record.

    The axes of `mesh` are those that were given, each one of AXES.

    Raises:
        NotUnderstood: an argument is not of its kind; the message gives the choices.
        NotDivisible: the mesh does not divide the model or the batch.
    """
    model = model_of(model)
    axes = all_axes(mesh, AXES)
    check_counted(model)
    factor = _checked_experts(model, mesh, capacity_factor)
    meant = usual(model, axes, counting)
    zero = meant["zero"] if zero is None else zero
    assumed = [("recompute", recompute), ("attention", attention)]
    words: Words = {
        **given,
        "counting": counting,
        "recompute": meant["recompute"] if recompute is None else recompute,
        "attention": meant["attention"] if attention is None else attention,
    }
    _check_words(model, words, mesh)
    check_products(words["recompute"], getattr(model, "experts", None))
    named = names_which_can_be_saved, names_which_can_be_offloaded
    names = checked_names(words["recompute"], model.results, *named)
    zero = _checked_zero(zero)
    what = "a number of parts"
    parts = integer("gradient_accumulation", gradient_accumulation, what)
    batch, seq = _checked_batch(model, batch, seq, axes, parts)
    chunks = _checked_stages(model, mesh, words, interleave, parts)
    lora = _checked_lora(
        model, mesh, words, lora_rank, lora_targets, base_dtype, compute_dtype
    )
    if axes["stage"] > 1:
        model = of_stage(model, axes["stage"])
    if isinstance(grad_dtype, tuple | list) and not grad_dtype:
        raise NotUnderstood(
            f"grad_dtype={grad_dtype!r} has no type; give one, such as 'float32', or "
            "two that are kept beside each other."
        )
    param_dtype = _floating(param_dtype, "param_dtype")
    compute_dtype = _floating(compute_dtype, "compute_dtype")
    grad_dtypes = [
        _floating(one, "grad_dtype") for one in _several(grad_dtype, param_dtype)
    ]
    if moment_dtype is not None:
        moment_dtype = _moment(moment_dtype, "moment_dtype")
    if mu_dtype is not None:
        mu_dtype = _moment(mu_dtype, "mu_dtype")
    if moment_dtype is not None and words["optimizer"] == "adafactor":
        raise NotUnderstood(
            f"moment_dtype={moment_dtype!r}: optax's adafactor keeps its numbers in "
            "the type of the parameters; leave moment_dtype out."
        )
    if moment_dtype == "int8" and words["optimizer"] == "muon":
        raise NotUnderstood(
            "moment_dtype='int8' is not counted for optimizer='muon'; give "
            "'bfloat16' or 'float32'."
        )
    if words["optimizer"] == "muon" and model.moe_layers:
        raise NotUnderstood(
            "optimizer='muon' is not counted for a model with experts; give 'adam' or "
            "'lion'."
        )
    if moment_dtype is None:
        moment_dtype = "float32" if words["master_weights"] else param_dtype
    if mu_dtype is not None and words["optimizer"] not in WITH_MU_DTYPE:
        raise NotUnderstood(
            f"mu_dtype={mu_dtype!r}: of the optimizers here only "
            f"{join_words(list(map(repr, WITH_MU_DTYPE)))} take a type for the first "
            f"moment alone; with optimizer={words['optimizer']!r} leave mu_dtype out."
        )
    first = moment_dtype if mu_dtype is None else mu_dtype
    setup = Setup(
        model=model,
        data=axes["data"],
        fsdp=axes["fsdp"],
        context=axes["context"],
        expert=axes["expert"],
        capacity_factor=factor,
        stage=axes["stage"],
        interleave=chunks,
        split=axes["model"],
        zero=zero,
        batch=batch,
        seq=seq,
        param_bytes=itemsize(param_dtype),
        compute_bytes=itemsize(compute_dtype),
        grad_bytes=sum(map(itemsize, grad_dtypes)),
        moment_bytes=itemsize(moment_dtype),
        mu_bytes=itemsize(first),
        scaled=(first == "int8", moment_dtype == "int8"),
        mu_dtype=mu_dtype,
        chip=None if chip is None else chip_of(chip),
        names_saved=names[0],
        names_offloaded=names[1],
        parts=parts,
        lora=lora,
        offload_optimizer=_checked_offload(offload_optimizer, words, mesh),
        assumed=tuple(key for key, value in assumed if value is None),
        **words,
    )
    if setup.counting == "jax":
        check_division(setup, mesh)
    return setup


def _several(given: Any, usual: str) -> Sequence[Any]:
    """The types of an argument that takes one or several."""
    if isinstance(given, tuple | list):
        return given
    return [usual if given is None else given]


def _floating(dtype: "DTypeLike", key: str) -> str:
    """The name of a type that can be trained: integers have no gradient."""
    what = "is no type of floating-point numbers, which training needs"
    return float_name(dtype, key, what)


def _moment(dtype: "DTypeLike", key: str) -> str:
    """The same for an optimizer's numbers, which may be int8 with their scales."""
    return float_name(dtype, key, "is not counted for moments", ["int8"])


def of_stage(model: Transformer | MLP, stages: int) -> Transformer | MLP:
    """The model with the layers of one of so many stages.

    These can be fewer than the period of the layers without a window. A step does not
    depend on windows.
    """
    layers = model.layers // stages
    if isinstance(model, Transformer) and (model.global_every or 0) > layers:
        return replace(model, layers=layers, global_every=None)
    return replace(model, layers=layers)


class Usual(TypedDict):
    """What is meant where an argument is not given."""

    zero: int
    recompute: str
    attention: str


def usual(
    model: Transformer | MLP, axes: Mapping[str, int], counting: str = "jax"
) -> Usual:
    """How a transformer is trained today; an MLP and the formulas of 2022 have less.

    The axis data shards all of the state, unless there is fsdp for that.
    """
    zero = 3 if axes.get("fsdp", 1) == 1 else 0
    if isinstance(model, MLP) or counting != "jax":
        return {"zero": zero, "recompute": "everything_saveable", "attention": "plain"}
    attention = "flash" if axes.get("context", 1) == 1 else "ring"
    if model.patch_size is not None:
        attention = "plain"
    return {"zero": zero, "recompute": "nothing_saveable", "attention": attention}


def _check_words(
    model: Transformer | MLP, words: Mapping[str, object], mesh: Mapping[str, int]
) -> None:
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
        if mesh.get("context", 1) > 1:
            raise NotUnderstood(
                f"mesh={mesh}: an MLP has no sequences that context could shard; leave "
                "context out."
            )
    elif model.patch_size is not None:
        _check_images(model, words, mesh)
    elif words["attention"] == "ring" and mesh.get("context", 1) == 1:
        raise NotUnderstood(
            "attention='ring' sends keys and values around the axis context, which "
            "this mesh has not; give mesh a 'context', or attention='flash'."
        )


def _check_images(
    model: Transformer, words: Mapping[str, object], mesh: Mapping[str, int]
) -> None:
    """Refuse what is not counted for a model that reads images."""
    without = None
    if mesh.get("context", 1) > 1:
        without = f"context={mesh['context']}"
    elif mesh.get("stage", 1) > 1:
        without = f"stage={mesh['stage']}"
    elif words["counting"] != "jax":
        without = f"counting={words['counting']!r}"
    elif words["attention"] == "ring":
        without = "attention='ring'"
    if without:
        raise NotUnderstood(
            f"{model.name or 'a model'} with patch_size={model.patch_size} reads "
            f"images, for which {without} is not counted; leave it out."
        )


def _checked_experts(
    model: Transformer | MLP, mesh: Mapping[str, int], factor: float | None
) -> float:
    """How much room experts have, by an even share; and whether expert divides them."""
    experts = model.experts if isinstance(model, Transformer) else None
    devices = mesh.get("expert", 1)
    if experts is None:
        if factor is not None:
            raise NotUnderstood(
                f"capacity_factor={factor!r} is for a model with experts, which "
                f"{model.name or 'this one'} is not; leave it out."
            )
        if devices > 1:
            raise NotUnderstood(
                f"mesh={mesh}: {model.name or 'this model'} has no experts that the "
                "axis expert could shard; leave expert out."
            )
        return 1.0
    if experts % devices:
        raise NotDivisible(
            f"mesh={mesh}: experts={experts} does not divide over the {devices} "
            f"devices of expert; make expert one of {divisors(experts)}."
        )
    if factor is None:
        return 1.0
    if is_huge(factor):
        integer("capacity_factor", factor)
    if not is_number(factor) or not 0 < factor < math.inf:
        raise NotUnderstood(
            f"capacity_factor={factor!r} is no share of rows; give a number above 0, "
            "such as 1.25."
        )
    used = getattr(model, "experts_per_token", None) or 1
    if factor > experts / used:
        raise NotUnderstood(
            f"capacity_factor={factor!r} makes an expert's room larger than all tokens "
            f"of a device, each of which uses {used} of {experts} experts; give a "
            f"number up to {experts} / {used}."
        )
    return float(factor)


def _checked_stages(
    model: Transformer | MLP,
    mesh: Mapping[str, int],
    words: Words,
    interleave: int,
    parts: int,
) -> int:
    """How many chunks of layers each device of stage has; what is not counted there.

    Raises:
        NotUnderstood: a part of the setting is counted without stages alone.
        NotDivisible: layers or microbatches do not divide.
    """
    chunks = integer("interleave", interleave, "a number of chunks")
    stages, context = mesh.get("stage", 1), mesh.get("context", 1)
    if stages == 1:
        if chunks > 1:
            raise NotUnderstood(
                f"interleave={chunks} gives each device of stage so many chunks of "
                "layers, and this mesh has no stage; give mesh a 'stage'."
            )
        return 1
    without = None
    if isinstance(model, MLP):
        without = "an MLP"
    elif model.experts is not None:
        without = f"experts={model.experts}"
    elif context > 1:
        without = f"context={context}"
    elif words["recompute"] != "nothing_saveable":
        without = f"recompute={words['recompute']!r}"
    elif words["counting"] != "jax":
        without = f"counting={words['counting']!r}"
    if without:
        raise NotUnderstood(
            f"mesh={mesh}: an axis stage is counted for a transformer under "
            "recompute='nothing_saveable', beside data, fsdp and model; not for "
            f"{without}."
        )
    if model.layers % (stages * chunks):
        several = f" of {chunks} chunks each" if chunks > 1 else ""
        raise NotDivisible(
            f"mesh={mesh}: layers={model.layers} does not divide over the {stages} "
            f"devices of stage{several}; make stage times interleave one of "
            f"{divisors(model.layers)}."
        )
    if chunks > 1 and parts % stages:
        raise NotDivisible(
            f"gradient_accumulation={parts} is the number of microbatches, which an "
            f"interleaved schedule takes in multiples of stage={stages}; give one."
        )
    return chunks


def _checked_lora(
    model: Transformer | MLP,
    mesh: Mapping[str, int],
    words: Words,
    rank: int | None,
    targets: Sequence[str],
    base_dtype: "DTypeLike | None",
    compute_dtype: "DTypeLike",
) -> Lora | None:
    """The adapters, if there are any.

    Raises:
        NotUnderstood: an argument is not of its kind, or is not counted with them.
    """
    if rank is None:
        for key, given, plain in (
            ("lora_targets", targets, ()),
            ("base_dtype", base_dtype, None),
        ):
            if given != plain:
                raise NotUnderstood(
                    f"{key}={given!r} is for adapters beside frozen parameters; give "
                    f"lora_rank= too, or leave {key} out."
                )
        return None
    rank = integer("lora_rank", rank, "a rank of adapters")
    without = None
    if isinstance(model, MLP):
        without = "an MLP"
    elif model.experts is not None:
        without = f"experts={model.experts}"
    elif model.kv_lora_rank is not None:
        without = f"kv_lora_rank={model.kv_lora_rank}"
    elif model.patch_size is not None:
        without = f"patch_size={model.patch_size}"
    elif mesh.get("stage", 1) > 1:
        without = f"stage={mesh['stage']}"
    elif words["recompute"] not in COUNTED_WITH_LORA:
        without = f"recompute={words['recompute']!r}"
    elif words["optimizer"] == "muon":
        without = "optimizer='muon'"
    elif words["counting"] != "jax":
        without = f"counting={words['counting']!r}"
    if without:
        raise NotUnderstood(
            f"lora_rank={rank}: adapters are counted for a transformer with one kind "
            "of layer, under recompute="
            f"{or_words(map(repr, COUNTED_WITH_LORA))}; not for {without}."
        )
    results = tuple(name for name in model.results if name != "context")
    names = as_names("lora_targets", targets) or results
    for name in names:
        if name not in results:
            raise NotUnderstood(
                f"lora_targets={names!r}: this model has no matrix of {name!r}; give "
                f"some of {join_words(list(map(repr, results)))}."
            )
    if len(set(names)) < len(names):
        raise NotUnderstood(f"lora_targets={names!r}: give each name once.")
    base = compute_dtype if base_dtype is None else base_dtype
    base = float_name(base, "base_dtype", "is not counted for parameters", ["int8"])
    return Lora(rank, names, itemsize(base), base == "int8")


def _checked_offload(offload: bool, words: Words, mesh: Mapping[str, int]) -> bool:
    """Whether the optimizer's state is in the host's memory.

    Raises:
        NotUnderstood: it is not counted with another argument.
    """
    one_of("offload_optimizer", offload, (True, False))
    without = None
    if words["optimizer"] in ("muon", "adafactor"):
        without = f"optimizer={words['optimizer']!r}"
    elif mesh.get("stage", 1) > 1:
        without = f"stage={mesh['stage']}"
    elif words["counting"] != "jax":
        without = f"counting={words['counting']!r}"
    if offload and without:
        raise NotUnderstood(
            f"offload_optimizer=True is not counted for {without}; leave one of them "
            "out."
        )
    return offload


def _checked_zero(zero: int) -> int:
    stage = as_integer(zero, 0, 3)
    if is_huge(zero):
        return integer("zero", zero)
    if stage is None:
        raise NotUnderstood(
            f"zero={zero!r} is not a stage of ZeRO; give 0 (all state is replicated "
            "over data), 1 (the optimizer state is sharded), 2 (gradients too) or 3 "
            "(parameters too: FSDP)."
        )
    return stage


def _checked_batch(
    model: Transformer | MLP,
    batch: int | None,
    seq: int | None,
    axes: Mapping[str, int],
    parts: int,
) -> tuple[int, int]:
    """Sequences of one device, in one part of the batch; tokens of a sequence."""
    if isinstance(model, MLP):
        if seq is not None:
            raise NotUnderstood(f"seq={seq!r}: an MLP has no sequences; leave it out.")
        seq = 1
    else:
        seq = integer("seq", model.seq if seq is None else seq)
        if model.patch_size is not None and seq < 2:
            raise NotUnderstood(
                f"seq={seq} leaves an image no patch beside the class token; give 2 or "
                "more."
            )
        if model.positions == "learned" and seq > model.seq:
            raise NotUnderstood(
                f"seq={seq} is more than the {model.seq} positions that the model has "
                f"learned; give {model.seq} or less, or a model that has learned {seq}."
            )
    devices = axes["data"] * axes["fsdp"] * axes["expert"]
    each = devices * parts
    batch = each if batch is None else integer("batch", batch)
    if batch % each:
        less = batch // each * each
        more = less + each
        sizes = f"{less} or {more}" if less else f"{more}"
        several = [axis for axis in ("data", "fsdp", "expert") if axes[axis] > 1]
        where = [f"{parts} parts"] if parts > 1 else []
        if several:
            where.append(f"the {devices} devices of {join_words(several)}")
        raise NotDivisible(
            f"batch={batch} does not divide over {', each over '.join(where)}; it "
            f"counts the sequences of all devices together: make it {sizes}."
        )
    return batch // each, seq


def uneven(model: Transformer | MLP, split: int) -> tuple[str, int] | None:
    """A dimension that the axis model would cut and does not divide, with its size.

    Heads of keys and values are replicated where `split` is a multiple of them.
    """
    wide = _wide(model)
    if isinstance(model, Transformer) and split % model.kv_heads:
        wide["kv_heads"] = model.kv_heads
    return next(((name, n) for name, n in wide.items() if n % split), None)


def splits(model: Transformer | MLP) -> list[int]:
    """Every size of the axis model that divides what it cuts."""
    every = all_divisors(math.gcd(*_wide(model).values()))
    return [size for size in every if uneven(model, size) is None]


def _wide(model: Transformer | MLP) -> dict[str, int]:
    wide: dict[str, int] = {}
    if model.moe_layers < model.layers:
        wide |= {"d_ff": model.d_ff}
    if isinstance(model, Transformer):
        if model.moe_layers:
            wide |= {"expert_d_ff": model.expert_d_ff or 0}
        wide |= {"heads": model.heads}
    return wide


def uneven_words(
    mesh: Mapping[str, int], wide: tuple[str, int], sizes: Sequence[int]
) -> str:
    """The sentence of a dimension that the axis model does not divide."""
    name, size = wide
    most = f"one of {join_words(list(map(str, sizes)))}" if len(sizes) > 1 else "1"
    return (
        f"mesh={mesh}: {name}={size} does not divide over the {mesh['model']} devices "
        f"of model; make model {most}."
    )


def check_division(setup: Setup, mesh: Mapping[str, int]) -> None:
    """Every dimension that an axis cuts has to divide, as JAX asks at its border."""
    wide = uneven(setup.model, setup.split)
    if wide:
        sizes = splits(setup.model)
        fitting = [n for n in sizes if not _not_cut(replace(setup, split=n), mesh)]
        raise NotDivisible(uneven_words(mesh, wide, fitting or sizes))
    words = _not_cut(setup, mesh)
    if words:
        raise NotDivisible(words)


def _not_cut(setup: Setup, mesh: Mapping[str, int]) -> str:
    """What else does not divide, as a sentence; '' where all of it does."""
    split = setup.split
    if setup.reads_images and setup.attention == "flash" and setup.seq % 2:
        return (
            "attention='flash': cuDNN's kernel does not take a sequence of odd "
            f"length, seq={setup.seq}; give attention='plain', or an even seq."
        )
    if setup.seq % setup.context:
        return (
            f"seq={setup.seq} does not divide over the {setup.context} devices of "
            "context; give another seq."
        )
    if setup.sequence_parallel and setup.seq // setup.context % split:
        return (
            f"sequence_parallel=True: seq={setup.seq} does not divide over the "
            f"{split * setup.context} devices of {_sequence(setup)}; give another seq."
        )
    shards = setup.shards(1)
    if shards == 1:
        return ""
    for name, (size, devices) in _cut(setup, shards).items():
        if size % devices:
            where = f"{name}={size} over {devices} devices ({mesh_words(mesh)})"
            if setup.fsdp == 1:
                return (
                    f"zero={setup.zero} shards {where}, which does not divide; make "
                    "data smaller, or count with zero=0."
                )
            both = "fsdp or data" if shards > setup.fsdp else "fsdp"
            return f"fsdp shards {where}, which does not divide; make {both} smaller."
    return ""


def _cut(setup: Setup, shards: int) -> dict[str, tuple[int, int]]:
    """The size of each dimension that the state is sharded along, and over how many."""
    model = setup.model
    cut = {"d_model": (model.d_model, shards)}
    # The longer biases are cut by both axes.
    both = shards * setup.split
    if isinstance(model, Transformer) and (model.biases or model.qkv_biases):
        keys = shards * setup.keys_split
        cut |= {
            "heads * head_dim": (model.heads * model.head_dim, both),
            "kv_heads * head_dim": (model.kv_heads * model.head_dim, keys),
        }
    if isinstance(model, Transformer) and model.biases:
        if model.moe_layers < model.layers:
            cut["d_ff"] = (model.d_ff, both)
        if model.moe_layers:
            cut["expert_d_ff"] = (model.expert_d_ff or 0, both)
    for key in ("q_lora_rank", "kv_lora_rank"):
        if getattr(model, key, None) is not None:
            cut[key] = (getattr(model, key), shards)
    if setup.lora is not None:
        cut |= _cut_adapters(setup, shards)
    return cut


def _cut_adapters(setup: Setup, shards: int) -> dict[str, tuple[int, int]]:
    """The same of the adapters: what model shards of a matrix, both axes shard."""
    model, both = setup.transformer, shards * setup.split
    cut = {}
    if setup.adapts("query", "out"):
        cut["heads * head_dim"] = (model.heads * model.head_dim, both)
    if setup.adapts("key", "value"):
        keys = shards * setup.keys_split
        cut["kv_heads * head_dim"] = (model.kv_heads * model.head_dim, keys)
    if setup.adapts("gate", "up", "down"):
        cut["d_ff"] = (model.d_ff, both)
    return cut


def _sequence(setup: Setup) -> str:
    return "context and model" if setup.context > 1 else "model"


def over(axis: str, size: int) -> str:
    """What a formula says of an axis that divides; nothing where it does not."""
    return f" / {axis} {size}" if size > 1 else ""
