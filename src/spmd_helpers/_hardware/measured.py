"""What compilers and real cards said, dated, as it lies in the package."""

import copy
import functools
import gzip
import json
import pathlib
from typing import Any

from .._core.registry import ByName
from .._errors import NotUnderstood

_FOLDER = pathlib.Path(__file__).with_name("measurements")
_FILES = {
    "tpu-memory": ("memory_tpu.json", "memory_tpu_newest.json"),
    "tpu-refused": ("memory_tpu_refused.json", "memory_tpu_newest_refused.json"),
    "gpu-memory": ("memory_gpu.json",),
    "gpu-compiled": ("memory_gpu_compiled.json",),
    "memory-axes": ("axes_tpu.json", "axes_gpu.json"),
    "inference-memory": ("serving_tpu.json", "serving_gpu.json"),
    "gpu-collectives": ("collectives_gpu.json",),
    "gpu-products": ("products_gpu.json",),
    "gpu-steps": ("steps_gpu.json",),
    "gpu-speeds": ("speeds_gpu.json",),
    "gpu-attention": ("attention_gpu.json",),
    "gpu-transformer": ("transformer_gpu.json",),
    "gpu-log": ("log_gpu.json",),
    "gpu-predicted": ("predicted_gpu.json",),
    "gpu-ahead": ("ahead_gpu.json",),
    "gpu-again": ("again_gpu.json",),
    "gpu-traced": ("traced_gpu.json",),
    "gpu-programs": ("programs_gpu.json",),
    "plans": ("plans.json",),
    "gpu-absent": ("absent_gpu.json", "absent_gpu_here.json"),
}


def load_measured(kind: str) -> list[dict[str, Any]]:
    """Stored measurements of one kind: what was run, on what, when, and what came out.

    Nothing is measured here. Each row is a dict that names its program and the
    `device`, `devices`, `jax`, `date` and `command` that it comes from, and where it
    was noted the `machine`, one name for the same cards; sizes end in `_bytes` and
    times in `_s`.

    >>> rows = load_measured("tpu-memory")
    >>> gpt3 = next(row for row in rows if row["name"] == "gpt3-175b 2d full")
    >>> gpt3["devices"], gpt3["device"], gpt3["program"]["topology"]
    (64, 'TPU v5', 'v5p:4x4x4')
    >>> round(load_measured("tpu-refused")[0]["available_bytes"] / 2**30, 2)  # a v5p
    95.74

    Args:
        kind: "tpu-memory", training steps as the TPU compiler laid them out (no TPU ran
            them); "tpu-refused", those that it refused for want of memory, with
            `needed_bytes` and `available_bytes`; "gpu-memory", the same steps run on
            GPUs; "gpu-compiled", steps compiled for GPUs that were not there;
            "memory-axes", small models compiled for both, over more axes, policies and
            optimizers; "inference-memory", prefill and decode compiled for both, and
            run on a GPU; "gpu-collectives", collectives by size and matrix products;
            "gpu-products", products by the card's own clock, kernel by kernel;
            "gpu-steps", one training step in several shardings; "gpu-speeds", what the
            predictions of the following divide by; "gpu-attention", attention alone;
            "gpu-transformer", a transformer's step in several shardings; "gpu-log", the
            same step made faster, one change at a time; "gpu-predicted", what
            `step_time` says of each of these rows, beside its time; "gpu-ahead", what
            it said of steps before a card ran them, "gpu-again", what it says of them
            today, and "gpu-traced", those steps run and traced: of some, `path` and
            `hlo` are the trace and the program, for `read_trace`; "gpu-programs",
            scheduled programs that were compiled for GPUs elsewhere, each with its
            text as `hlo`, for `step_time`; "plans", strategies of `plan_mesh` compiled
            for chips elsewhere, with what `step_time` says of each; "gpu-absent", steps
            of many kinds compiled for GPUs: with the `how` of "card" beside the cards
            and run, "hidden" by the same JAX without them, "here" without them by other
            versions, and "pool" how much of a card's memory programs get.

    Returns:
        A list of new dicts, yours to change; empty if nothing was measured yet.

    Raises:
        NotUnderstood: no measurements have that name.

    Used in chapters 9, 10, 14 and 15.
    """
    kinds = ByName("kind", _FILES)
    if not isinstance(kind, str) or kind not in kinds:
        raise NotUnderstood(kinds.unknown(kind)) from None
    rows = copy.deepcopy([row for name in _FILES[kind] for row in _stored(name)])
    for row in rows:
        if "trace" in row:
            stem = row["trace"]
            row["path"] = str(_FOLDER / f"{stem}.runs.json.gz")
            row["hlo"] = _text(stem)
        elif "text" in row:
            row["hlo"] = _text(row["text"])
    return rows


def _text(stem: str) -> str:
    packed = (_FOLDER / f"{stem}.hlo.gz").read_bytes()
    return gzip.decompress(packed).decode()


@functools.cache
def _stored(name: str) -> list[dict[str, Any]]:
    path = _FOLDER / name
    rows: list[dict[str, Any]] = []
    if path.exists():
        rows = json.loads(path.read_text("utf8"))
    return rows
