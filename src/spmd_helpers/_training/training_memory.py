"""What one training step needs on each device, by plain arithmetic."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from .._core.words import bytes_words, join_words
from .._errors import NotUnderstood, SpecError
from .._hardware.chips import Chip
from .._shardings.sharding import mesh_words
from .activations import kept, published, results_on_host
from .axes import known_mesh
from .counted import CountedMemory
from .model import MLP, Transformer
from .setup import AXES, Setup, checked_setup
from .state import ALWAYS, PHASES, Line, frozen, part_gradients, state, state_on_host
from .transients import work
from .transients_gpu import gpu_work

if TYPE_CHECKING:
    from jax.typing import DTypeLike

    from .axes import MeshLike


@dataclass(frozen=True, repr=False)
class TrainingMemory(CountedMemory):
    """Bytes on each device in one training step, and how they come about.

    Made by `training_memory`. `str()` of it is a table, and so is its view in a
    notebook.

    Attributes:
        params_bytes, grads_bytes, optimizer_bytes: of these three, exactly. With
            adapters the first is of these and of the frozen parameters.
        activations_bytes: everything else that is there at the peak.
        total_bytes: the peak: the most of all phases.
        host_bytes: what each device has in the host's memory: the optimizer's state,
            and results that a policy offloads.
        lines: what there is: each with `name`, `formula` (with the numbers in it),
            `bytes`, `when` (in which phases) and `source`.
        phases: the bytes in each phase of a step: 'forward' and 'backward' (most
            while the layers run), 'loss' between them, and 'update'.
        peak_phase: the phase with the most.
        what: the model and the mesh, in words.
        notes: what else there is to know, a sentence each.
    """

    params_bytes: int
    grads_bytes: int
    optimizer_bytes: int
    activations_bytes: int
    total_bytes: int
    host_bytes: int
    lines: tuple[Line, ...]
    phases: Mapping[str, int] = field(compare=False)
    peak_phase: str
    what: str
    notes: tuple[str, ...] = ()
    _setup: Setup | None = field(default=None, compare=False)

    def _counted_for(self, chip: Chip) -> "TrainingMemory":
        setup = self._setup
        if setup is None or setup.chip == chip:
            return self
        if not setup.gpu and chip.kind != "gpu":  # all TPUs count alike
            return self
        return _count(replace(setup, chip=chip))


def training_memory(
    model: Transformer | MLP | str,
    *,
    mesh: "MeshLike",
    zero: int | None = None,
    batch: int | None = None,
    seq: int | None = None,
    param_dtype: "DTypeLike" = "float32",
    compute_dtype: "DTypeLike" = "bfloat16",
    grad_dtype: "DTypeLike | tuple[DTypeLike, ...] | None" = None,
    optimizer: str = "adam",
    moment_dtype: "DTypeLike | None" = None,
    mu_dtype: "DTypeLike | None" = None,
    master_weights: bool = False,
    recompute: str | None = None,
    names_which_can_be_saved: Sequence[str] = (),
    names_which_can_be_offloaded: Sequence[str] = (),
    attention: str | None = None,
    sequence_parallel: bool = False,
    gradient_accumulation: int = 1,
    capacity_factor: float | None = None,
    interleave: int = 1,
    lora_rank: int | None = None,
    lora_targets: Sequence[str] = (),
    base_dtype: "DTypeLike | None" = None,
    offload_optimizer: bool = False,
    counting: str = "jax",
    chip: str | Chip | None = None,
) -> TrainingMemory:
    """Count what a training step of `model` takes on each device of `mesh`.

    Plain arithmetic: nothing is compiled and JAX is not needed. Parameters, gradients
    and optimizer state are exact. The rest is what JAX keeps for the backward pass of a
    plainly written model with its layers under one `jax.lax.scan`, exactly, and what
    the compiler needs beside it, as its own figures show: a TPU's, or with `chip` that
    of a GPU.

    Four layers of 2 * 64 * 256 numbers, in float32 with Adam's two moments, replicated
    on two devices:

    >>> full = training_memory(MLP(4, 64, 256), mesh={"data": 2}, zero=0, batch=16)
    >>> full.params_bytes                      # 4 * 131072
    524288
    >>> full.optimizer_bytes                   # 8 * 131072, and the step's number
    1048580
    >>> cut = training_memory(MLP(4, 64, 256), mesh={"data": 2}, zero=3, batch=16)
    >>> cut.params_bytes, cut.optimizer_bytes  # FSDP: half of each
    (262144, 524292)

    Bytes for each parameter, by the names that others count with; the columns are
    param_dtype, grad_dtype, master_weights and moment_dtype:

    | bytes | who | param | grad | master | moment |
    |---|---|---|---|---|---|
    | 4 + 4 + 8 = 16 | optax on float32 | float32 | | | |
    | 2 + 2 + 4 = 8 | optax on bfloat16 | bfloat16 | | | |
    | 2 + 8 = 10, at rest | scaling book | bfloat16 | | | float32 |
    | 2 + 2 + 8 = 12 | no master copy | bfloat16 | | | float32 |
    | 2 + 2 + 12 = 16 | ZeRO | bfloat16 | | True | |
    | 2 + 4 + 12 = 18 | Megatron-LM | bfloat16 | float32 | True | |
    | 2 + (2 + 4) + 12 = 20 | DeepSpeed | bfloat16 | both | True | |

    At rest means parameters and optimizer, without gradients; 'both' is
    `grad_dtype=("bfloat16", "float32")`.

    Args:
        model: a Transformer, an MLP, or one of MODELS, also by its name.
        mesh: sizes of the axes 'data', 'fsdp', 'model', 'context', 'expert' and
            'stage'; one that is missing has size 1. A JAX mesh is taken, too.
            `model` shards heads, d_ff and vocabulary (rounded up to divide) and must
            divide them; norms, learned positions and the biases of o and down are
            replicated, and so are the keys' and values' where `model` is a multiple of
            their heads. `fsdp` shards the batch, parameters, gradients and optimizer
            state. `context` shards the tokens of each sequence, and no state. `expert`
            shards the batch and the experts of a mixture of experts; all else of the
            state is replicated over it, unless `fsdp` or `data` shards it. `stage` is a
            pipeline: each device has as many of the layers, and all of them the
            embedding and the head. It is 1F1B, with as many microbatches as
            `gradient_accumulation` says.
        zero: what `data` shards beside the batch: 0 nothing, 1 the optimizer's state,
            2 gradients too, 3 parameters too (FSDP). Not given, 3, or 0 where the mesh
            has an axis `fsdp`.
        batch: sequences a step (of an MLP: rows), over all devices together; one for
            each device that has its own, and part of the batch, if not given.
        seq: tokens of a sequence; the model's own if not given.
        param_dtype: type in which parameters are stored, by name or as NumPy's or
            JAX's type; so are the other types.
        compute_dtype: type of the matrix products and of what flows between the layers.
            In float32 a TPU's compiler keeps less than is counted here: by default its
            products take bfloat16.
        grad_dtype: type of the gradients; `param_dtype` if not given. Several are
            added up.
        optimizer: 'adam', 'adamw' (two numbers for each parameter), 'lion', 'momentum'
            (one), 'sgd' (none), 'adafactor' (means of rows and of columns) or 'muon'
            (`optax.contrib.muon`: one for each number of a layer's matrices, which its
            `muon_weight_dimension_numbers` has to name, and Adam's two for the rest).
        moment_dtype: type of these numbers; as optax has it, `param_dtype` if not
            given, or float32 with `master_weights`. 'int8' has a float32 scale for each
            256 numbers along the last dimension (Dettmers et al. 2022,
            arXiv:2110.02861), which are counted.
        mu_dtype: type of the first moment alone, as optax's adam, adamw and lion take
            it; `moment_dtype` if not given.
        master_weights: whether the optimizer keeps float32 master weights.
        recompute: 'everything_saveable' keeps what JAX keeps and recomputes nothing;
            'selective' recomputes attention's scores (Korthikanti et al. 2022). The
            others are policies of `jax.checkpoint`, around each layer. Its input is
            kept, and beside it: with 'nothing_saveable' nothing; with 'dots_saveable'
            the results of all matrix products; with
            'dots_with_no_batch_dims_saveable' those of products with weights; with
            'offload_dot_with_no_batch_dims' the same, in the host's memory; with
            'save_only_these_names' and 'save_and_offload_only_these_names' what the
            next two arguments name. Not given, 'nothing_saveable' for a transformer and
            'everything_saveable' for an MLP or other ways of counting.
        names_which_can_be_saved: of the results of a layer's products, those that a
            policy keeps on the device: 'query', 'key', 'value', 'context' (attention's
            result), 'out', 'gate', 'up' and 'down'. A derivative never uses the last.
        names_which_can_be_offloaded: those that it keeps in the host's memory.
        attention: 'plain' writes the scores [heads, seq, seq]; 'flash' is a kernel that
            does not. Over `context` both have keys and values of the full sequence on
            each device. 'ring' sends them around `context` and has the scores of one
            block at a time. Not given, as with recompute, 'flash' (over `context`
            'ring') or 'plain'.
        sequence_parallel: whether `model` also shards what flows between the layers,
            along the sequence.
        gradient_accumulation: into how many parts each device's batch is divided, whose
            gradients are added up before one update.
        capacity_factor: how many rows an expert has room for, of the tokens of each
            device: this many times an even share, `tokens * experts_per_token /
            experts`, and at most `experts / experts_per_token` times, which is room for
            all tokens. Rows beyond are dropped. Not given, 1.0, which is also what
            kernels without a capacity need where the router spreads tokens evenly. The
            rows of each expert are gathered, sent over `expert`, multiplied, sent back
            and gathered again (Lepikhin et al. 2020, arXiv:2006.16668); no matrix of
            tokens by experts by room is written.
        interleave: how many chunks of layers each device of `stage` has: 1F1B with 1,
            interleaved with more, where a device keeps more activations and waits less
            (Narayanan et al. 2021, arXiv:2104.04473).
        lora_rank: the rank of adapters (LoRA, Hu et al. 2021, arXiv:2106.09685), which
            alone are trained: gradients, moments and master weights are theirs, and
            `param_dtype` is their type. A matrix [rows, columns] gets [rows, rank] and
            [rank, columns]. `fsdp` and `data` shard rows and columns, and `model` those
            that it shards of the matrix. `params_bytes` has them and the frozen
            parameters. Not given, all parameters are trained.
        lora_targets: the matrices that have adapters, by their results: 'query', 'key',
            'value', 'out', 'gate', 'up' and 'down'; all of them if not given.
        base_dtype: type of the frozen parameters; `compute_dtype` if not given. 'int8'
            has a float32 scale for each column of a layer's matrix; the other
            parameters are then in `compute_dtype`.
        offload_optimizer: whether the optimizer's state is in the host's memory
            (`pinned_host`) and on the device during the update alone. The step has to
            move it after the gradients, by a `jax.lax.optimization_barrier` over both:
            else a GPU's compiler moves it at the beginning, and nothing is saved. For
            GPUs alone: a TPU's compiler keeps the state on the chip.
        counting: 'jax', or 'megatron' for the published formulas: parameters all cut by
            `model`, and s·b·h·(34 + 5·a·s/h) bytes a layer, nothing else.
        chip: the chip whose compiler lays out the step, by a name in HARDWARE, or a
            Chip. Only its kind and its generation count here; not given, a TPU.
            `fits` and `left_bytes` count for the chip that they are given.

    Returns:
        A TrainingMemory.

    Raises:
        NotUnderstood: an argument is not of its kind.
        UnknownAxis: the mesh has another axis.
        NotDivisible: the mesh does not divide the model or the batch.

    Refused are:

    - a model of which only every other layer has experts;
    - a model that reads images, on a TPU, whose compiler pads its tokens, and
      everywhere with `context`, `stage` or adapters;
    - with experts, a policy that has to know how these are multiplied;
    - over `stage`, experts, `context` and each policy but 'nothing_saveable';
    - adapters for an MLP, experts, latent attention, `stage` and muon, and with each
      policy but 'nothing_saveable', 'everything_saveable' and 'selective';
    - `offload_optimizer` for TPUs, muon, adafactor and `stage`.

    Sources: ZeRO, arXiv:1910.02054; Megatron-LM, arXiv:1909.08053; Korthikanti et al.,
    arXiv:2205.05198; jax-ml/scaling-book. Held against the compilers for TPUs and GPUs
    in three sets of stored programs (tests/training/test_training_truth.py and
    test_training_axes.py, tests/plan/test_truth.py). Nearly all are within a tenth; the
    worst are counted 19 % too low (ZeRO-2 beside `context`, where the gradients are
    sharded after the loop) and 35 % too high (an MLP under ZeRO-1, of which all new
    weights are counted as gathered at once).

    Used in chapter 09 (what 175 B parameters cost) and by the memory calculator.
    """
    try:
        check = partial(
            checked_setup,
            model,
            zero=zero,
            batch=batch,
            seq=seq,
            param_dtype=param_dtype,
            compute_dtype=compute_dtype,
            grad_dtype=grad_dtype,
            moment_dtype=moment_dtype,
            mu_dtype=mu_dtype,
            optimizer=optimizer,
            master_weights=master_weights,
            recompute=recompute,
            names_which_can_be_saved=names_which_can_be_saved,
            names_which_can_be_offloaded=names_which_can_be_offloaded,
            gradient_accumulation=gradient_accumulation,
            capacity_factor=capacity_factor,
            interleave=interleave,
            lora_rank=lora_rank,
            lora_targets=lora_targets,
            base_dtype=base_dtype,
            offload_optimizer=offload_optimizer,
            attention=attention,
            sequence_parallel=sequence_parallel,
            counting=counting,
            chip=chip,
        )
        shape = known_mesh(
            mesh, AXES, "here a mesh has", lambda one: _count(check(one))
        )
        return _count(check(shape))
    except (NotUnderstood, SpecError) as error:
        raise error.with_traceback(None) from None


def _count(setup: Setup) -> TrainingMemory:
    if setup.offload_optimizer and not setup.gpu:
        raise NotUnderstood(
            "offload_optimizer=True is counted for GPUs: a TPU's compiler keeps the "
            "optimizer's state on the chip; give chip= a GPU, such as 'h100', or leave "
            "it out."
        )
    if setup.reads_images and not setup.gpu:
        raise NotUnderstood(
            f"{setup.model.name or 'a model'} with patch_size="
            f"{setup.transformer.patch_size} is counted for GPUs: a TPU's compiler "
            f"pads its {setup.seq} tokens; give chip= a GPU, such as 'h100'."
        )
    on_host = [*state_on_host(setup), *results_on_host(setup)]
    params, grads, optimizer = state(setup)
    fixed = frozen(setup)
    state_lines = [params, grads, optimizer, *fixed]
    if setup.counting == "megatron":
        lines = [*state_lines, *published(setup)]
    else:
        there = gpu_work if setup.gpu else work
        state_lines += [*part_gradients(setup), batch_line(setup)]
        lines = [*state_lines, *kept(setup), *there(setup)]
    sums = by_phase(lines)
    peak = max(sums, key=sums.__getitem__)
    known = (params, grads, optimizer, *fixed)
    known_bytes = sum(one.bytes for one in known if peak in one.when)
    return TrainingMemory(
        params_bytes=sum(one.bytes for one in (params, *fixed)),
        grads_bytes=grads.bytes,
        optimizer_bytes=optimizer.bytes,
        activations_bytes=sums[peak] - known_bytes,
        total_bytes=sums[peak],
        host_bytes=sum(one.bytes for one in on_host),
        lines=tuple(lines),
        phases=sums,
        peak_phase=peak,
        what=_what(setup),
        notes=(*_notes(setup), *_host_notes(setup, on_host)),
        _setup=setup,
    )


def _host_notes(setup: Setup, lines: Sequence[Line]) -> list[str]:
    if not setup.offload_optimizer:
        return []
    words = join_words([f"{one.name}, {bytes_words(one.bytes)}" for one in lines])
    return [f"In the host's memory, for each device: {words}."]


def by_phase(lines: Sequence[Line]) -> dict[str, int]:
    """The bytes of some lines in each phase of a step."""
    sums = dict.fromkeys(PHASES, 0)
    for line in lines:
        for phase in line.when:
            sums[phase] += line.bytes
    return sums


def batch_line(setup: Setup) -> Line:
    """Rows and what they should become, in float32; images; or tokens, as int32."""
    if setup.is_mlp:
        rows = setup.parts * setup.tokens
        size = 2 * 4 * rows * setup.model.d_model
        formula = f"2 × 4 B × {rows} rows × {setup.model.d_model}"
    elif setup.reads_images:
        images = setup.parts * setup.batch
        pixels = setup.transformer.pixels
        size = 4 * images * ((setup.seq - 1) * pixels + 1)
        formula = f"4 B × {images} images × ({setup.seq - 1} × {pixels} + 1)"
    else:
        sequences = setup.parts * setup.batch
        size = 4 * sequences * (setup.seq + 1)
        formula = f"4 B × {sequences} × ({setup.seq} + 1) tokens"
    return Line("batch", formula, size, ALWAYS, "the step's arguments")


def _what(setup: Setup) -> str:
    model = setup.model
    layers = setup.stage * model.layers  # of all stages
    name = model.name or (
        f"{type(model).__name__} of {layers} layers, d_model {model.d_model}"
    )
    axes = {"data": setup.data, "fsdp": setup.fsdp, "model": setup.split}
    axes |= {"expert": setup.expert, "context": setup.context, "stage": setup.stage}
    mesh = mesh_words({axis: size for axis, size in axes.items() if size > 1})
    return f"{name} on {mesh or 'one device'}"


def _notes(setup: Setup) -> list[str]:
    notes = []
    model = setup.model
    if setup.assumed and setup.counting == "jax" and not setup.is_mlp:
        usual = " and ".join(f"{key}={getattr(setup, key)!r}" for key in setup.assumed)
        notes.append(f"As transformers are trained, unless you say otherwise: {usual}.")
    rounded = isinstance(model, Transformer) and setup.rows != model.vocab
    if setup.counting == "jax" and rounded:
        notes.append(
            f"The vocabulary of {setup.transformer.vocab} is rounded up to "
            f"{setup.rows}, which divides over the {setup.split} devices of model."
        )
    if setup.counting == "jax" and setup.gpu and setup.chip is not None:
        notes.append(
            f"Counted as the GPU compiler lays out the step for {setup.chip.name}."
        )
    if setup.stage > 1:
        kept = setup.chunks_kept
        what = "microbatches" if setup.interleave == 1 else "chunks of microbatches"
        notes.append(
            f"The first stage keeps activations of {kept} {what} at once, of "
            f"{setup.parts} microbatches."
        )
    if setup.model.moe_layers:
        notes.append(
            f"Each expert has room for {setup.room} rows of one device's tokens "
            f"(capacity_factor={setup.capacity_factor})."
        )
    if setup.counting == "megatron":
        notes.append(
            "Counted by published formulas: neither the logits nor what a layer needs "
            "while it runs."
        )
    return notes
