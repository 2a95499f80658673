"""What generating text needs on each device, by plain arithmetic."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from .._core.words import bytes_words
from .._errors import NotUnderstood, SpecError
from .._hardware.chips import Chip
from .._shardings.sharding import mesh_words
from .axes import known_mesh
from .counted import CountedMemory
from .model import Transformer
from .serving import (
    AXES,
    PHASES,
    Serving,
    cache_lines,
    checked_serving,
    unfilled_bytes,
    weight_lines,
)
from .serving_work import work_lines
from .state import Line

if TYPE_CHECKING:
    from jax.typing import DTypeLike

    from .axes import MeshLike


@dataclass(frozen=True, repr=False)
class InferenceMemory(CountedMemory):
    """Bytes on each device while a model generates, and how they come about.

    Made by `inference_memory`. `str()` of it is a table, and so is its view in a
    notebook.

    Attributes:
        weights_bytes: the weights, with the scales of int8, exactly.
        cache_bytes: the cache of keys and values, exactly.
        unfilled_bytes: of a paged cache, the most that its last pages leave empty.
        total_bytes: the peak: the more of both phases.
        lines: what there is: each with `name`, `formula` (with the numbers in it),
            `bytes`, `when` (in which phases) and `source`.
        phases: the bytes of 'prefill', which reads prompts, and of 'decode', which
            makes one token for each sequence.
        peak_phase: the phase with the most.
        what: the model and the mesh, in words.
        notes: what else there is to know, a sentence each.
    """

    weights_bytes: int
    cache_bytes: int
    unfilled_bytes: int
    total_bytes: int
    lines: tuple[Line, ...]
    phases: Mapping[str, int] = field(compare=False)
    peak_phase: str
    what: str
    notes: tuple[str, ...] = ()
    _of = "of inference"
    _serving: Serving | None = field(default=None, compare=False)

    def _counted_for(self, chip: Chip) -> "InferenceMemory":
        if self._serving is None:
            return self
        return _count(replace(self._serving, chip=chip))


def inference_memory(
    model: Transformer | str,
    *,
    mesh: "MeshLike",
    batch: int,
    seq: int | None = None,
    prompt: int | None = None,
    prefill_batch: int | None = None,
    param_dtype: "DTypeLike" = "bfloat16",
    compute_dtype: "DTypeLike" = "bfloat16",
    cache_dtype: "DTypeLike | None" = None,
    attention: str | None = None,
    page_size: int | None = None,
    chip: str | Chip | None = None,
) -> InferenceMemory:
    """Count what generating text with `model` takes on each device of `mesh`.

    Plain arithmetic: nothing is compiled and JAX is not needed. Weights and cache are
    exact. The rest is what the compilers for TPUs and GPUs need beside them for a
    plainly written prefill and decode, with the layers under one `jax.lax.scan` that
    carries the cache, which is donated and stays in the order of its dimensions.

    Llama 3 8B on four devices, 32 sequences of up to 4,096 tokens:

    >>> from spmd_helpers import MODELS
    >>> found = inference_memory(
    ...     MODELS["llama-3-8b"], mesh={"model": 4}, batch=32, seq=4096
    ... )
    >>> found.cache_bytes   # 32 layers * 32 * 4096 tokens * 2 * 8 heads / 4 * 128 * 2 B
    4294967296
    >>> found.peak_phase
    'decode'

    Args:
        model: a Transformer, or one of MODELS or its name, without experts.
        mesh: sizes of the axes 'data' and 'model'; one that is missing has size 1. A
            JAX mesh is taken, too.
            `data` shards the sequences and replicates the weights. `model` shards
            heads, d_ff and vocabulary (rounded up to divide). Keys and values are
            replicated over `model` where it is a multiple of their heads, and latent
            attention's cache always is.
        batch: sequences that the cache has room for, over all devices.
        seq: tokens of a sequence, prompt and answer together; the model's own if not
            given. A layer with a window keeps the last `window` of them.
        prompt: tokens of the prompts that are read at once; `seq` if not given.
        prefill_batch: how many of them are read at once, over all devices; one on each
            device of `data` if not given.
        param_dtype: type of the weights, by name or as NumPy's or JAX's type; so are
            the other types. 'int8' has a float32 scale for each
            column of a matrix and each row of the embedding; norms and biases are then
            in `compute_dtype`.
        compute_dtype: type of the products and of what flows between the layers.
        cache_dtype: type of the cache; `compute_dtype` if not given.
        attention: 'plain' writes the scores of a prompt; 'flash' is a kernel that does
            not. Not given, 'flash', or 'plain' for latent attention.
        page_size: tokens of a page, where the cache is paged. Each sequence has whole
            pages for `seq` tokens. Decode gathers one layer's pages at a time; a kernel
            that reads pages in place needs less.
        chip: the chip whose compiler lays out the programs, by a name in HARDWARE, or a
            Chip; a TPU if not given. `fits` and `left_bytes` count for theirs.

    Returns:
        An InferenceMemory.

    Raises:
        NotUnderstood: an argument is not of its kind, or the model has experts or reads
            images.
        UnknownAxis: the mesh has another axis.
        NotDivisible: the mesh does not divide the model or the sequences.

    Measured against both compilers in tests/training/test_inference_truth.py: within a
    tenth but for one stored prefill, of a model with a window on a TPU, which is
    counted 13 % too high. The 14 programs that were compiled after the formulas stood
    are within 3 %.

    Used in chapter 09 (windows, latent attention and prefill).
    """
    try:
        check = partial(
            checked_serving,
            model,
            batch=batch,
            seq=seq,
            prompt=prompt,
            prefill_batch=prefill_batch,
            param_dtype=param_dtype,
            compute_dtype=compute_dtype,
            cache_dtype=cache_dtype,
            attention=attention,
            page_size=page_size,
            chip=chip,
        )
        words = "a mesh that serves has"
        return _count(check(known_mesh(mesh, AXES, words, check)))
    except (NotUnderstood, SpecError) as error:
        raise error.with_traceback(None) from None


def _count(serving: Serving) -> InferenceMemory:
    weights, cache = weight_lines(serving), cache_lines(serving)
    lines = [*weights, *cache, *work_lines(serving)]
    sums = {
        phase: sum(line.bytes for line in lines if phase in line.when)
        for phase in PHASES
    }
    peak = max(sums, key=sums.__getitem__)
    return InferenceMemory(
        weights_bytes=sum(one.bytes for one in weights),
        cache_bytes=sum(one.bytes for one in cache),
        unfilled_bytes=unfilled_bytes(serving),
        total_bytes=sums[peak],
        lines=tuple(lines),
        phases=sums,
        peak_phase=peak,
        what=_what(serving),
        notes=tuple(_notes(serving)),
        _serving=serving,
    )


def _what(serving: Serving) -> str:
    model = serving.model
    shapes = f"Transformer of {model.layers} layers, d_model {model.d_model}"
    axes = {"data": serving.data, "model": serving.split}
    mesh = mesh_words({axis: size for axis, size in axes.items() if size > 1})
    return f"{model.name or shapes} on {mesh or 'one device'}"


def _notes(serving: Serving) -> list[str]:
    notes, model = [], serving.model
    if serving.keys_split < serving.split and not serving.latent:
        notes.append(
            f"The {model.kv_heads} heads of keys and values do not divide over the "
            f"{serving.split} devices of model: each device has all of them."
        )
    if serving.latent and serving.split > 1:
        notes.append(
            "Latent attention keeps one vector for all heads: each device of model has "
            "the whole cache."
        )
    if serving.page_size is not None:
        empty = bytes_words(unfilled_bytes(serving))
        notes.append(
            f"The last page of each sequence can be empty but for one token: at most "
            f"{empty} of the cache."
        )
    if serving.gpu and serving.chip is not None:
        notes.append(
            f"Counted as the GPU compiler lays out the programs for "
            f"{serving.chip.name}."
        )
    return notes
