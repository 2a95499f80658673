"""What the mesh planner knows: chips with their rates, the numbers of the formula.

Written from `_plan`, `_time`, `_gpu` and `_tpu`, so that nothing stands twice.
"""

from typing import Any

from .._errors import NotUnderstood
from .._gpu.cards import CARDS
from .._hardware.chips import HARDWARE, Chip
from .._plan import candidates, code, code_texts, plan_mesh, seconds
from .._plan.cluster import ORDER, read_chips
from .._plan.step import AXES_OF_BATCH
from .._time import links
from .._time.rates import NEAR, rates_of
from .._tpu.topology import GENERATIONS, Topology, usual_blocks
from .._training.model import Transformer
from .._training.models import MODELS

# The page plans for at most so many: a phone needs seconds for more.
_MOST_DEVICES = 1024


def plans() -> dict[str, Any]:
    """Constants of the planner's script."""
    return {
        "mostDevices": _MOST_DEVICES,
        "order": ORDER,
        "ofBatch": AXES_OF_BATCH,
        "policies": candidates.POLICIES,
        "forEachStage": candidates.FOR_EACH_STAGE,
        "chunks": candidates.CHUNKS,
        "many": plan_mesh.MANY,
        "far": plan_mesh.FAR,
        "error": plan_mesh.ERROR,
        "hosts": plan_mesh.HOSTS,
        "tpuChips": plan_mesh.TPU_CHIPS,
        "links": {**links.numbers(), "near": NEAR},
        "seconds": seconds.numbers(),
        "code": {
            "without": code.WITHOUT,
            "optimizers": code.OPTIMIZERS,
            "texts": code_texts.TEXTS,
        },
        "chips": {name: _chip(chip) for name, chip in HARDWARE.items()},
    }


def _chip(chip: Chip) -> dict[str, Any]:
    """What the script has of a chip beside its memory: speeds, hosts or blocks."""
    rates = rates_of(chip)
    known = {
        "kind": chip.kind,
        "margin": chip.margin,
        "bf16": chip.bf16_flops_per_s,
        "links": chip.links,
        "rates": {
            "flops": {key: rates.flops_per_s[key] for key in ("bf16", "f32")},
            "attention": rates.attention_per_s,
            "memory": rates.memory_bytes_per_s,
            "slowed": rates.slowed,
            "start": rates.start_s,
            "links": {
                f"{link} {kind}": rate
                for (link, kind), rate in rates.link_bytes_per_s.items()
            },
            "isMeasured": rates.error is not None,
        },
    }
    if chip.kind == "gpu":
        return known | {"dims": 0, "host": CARDS[chip.name].host}
    one = GENERATIONS[chip.name]
    blocks = [Topology(one, chips) for chips in usual_blocks(one)]
    return known | {
        "dims": one.dims,
        "cores": one.devices_per_chip,
        "slices": [
            block.name.partition(":")[2]
            for block in sorted(blocks, key=lambda block: block.devices)
            if block.devices <= _MOST_DEVICES
        ],
    }


# The controls of the planner with words, and what they have where nothing is given.
_CHOICES: dict[str, tuple[object, ...]] = {
    "recompute": (None, *candidates.POLICIES),
    "attention": (None, "flash", "plain"),
    "param_dtype": ("float32", "bfloat16"),
    "optimizer": ("adam", "adamw", "lion", "momentum", "sgd", "adafactor"),
}


def planner_state(
    model: Transformer | str,
    topology: str,
    *,
    batch: int,
    seq: int | None = None,
    **how: Any,
) -> dict[str, str]:
    """Arguments of `plan_mesh` as the planner's state.

    >>> state = planner_state("gemma-3-12b", "v5p:4x4x4", batch=64, axes=("fsdp",))
    >>> state["slice"], state["fsdp"], state["data"], state["seq"]
    ('4x4x4', 'yes', 'no', '')

    Args:
        model: one of MODELS, also by its name.
        topology: as `plan_mesh` has it.
        batch: as `plan_mesh` has it.
        seq: as `plan_mesh` has it.
        **how: its other arguments, of which some have a control.

    Raises:
        NotUnderstood: the planner has no control for an argument.
        UnknownTopology: there are no such chips.
    """
    name = model if isinstance(model, str) else model.name
    if not isinstance(model, str) and MODELS.get(name) != model:
        raise NotUnderstood(
            f"model={model!r:.60}: the mesh planner has the models of MODELS; give one "
            "of them, or plan with plan_mesh."
        )
    chips = read_chips(topology)
    if chips.devices > _MOST_DEVICES:
        raise NotUnderstood(
            f"topology={topology!r} has {chips.devices} devices, and the mesh planner "
            f"plans for {_MOST_DEVICES} at most; plan with plan_mesh."
        )
    known = _chip(chips.chip)
    kind, _, sizes = chips.name.partition(":")
    state = {"model": name, "chip": kind, "batch": str(batch), "seq": str(seq or "")}
    if not known["dims"]:
        hosts, _, per_host = sizes.partition("x")
        state |= {"hosts": hosts, "per_host": per_host}
    elif sizes in known["slices"]:
        state["slice"] = sizes
    else:
        raise NotUnderstood(
            f"topology={topology!r}: the mesh planner offers the slices "
            f"{', '.join(known['slices'])} of {kind}; give one of them, or plan with "
            "plan_mesh."
        )
    axes = how.pop("axes", None)
    if axes is not None:
        keys = {axis: "model_axis" if axis == "model" else axis for axis in ORDER}
        state |= {key: "yes" if axis in axes else "no" for axis, key in keys.items()}
    for key, value in how.items():
        if key not in _CHOICES or value not in _CHOICES[key]:
            raise NotUnderstood(
                f"{key}={value!r}: the mesh planner has no control for it; give it to "
                "plan_mesh."
            )
        state[key] = "" if value is None else str(value)
    return state
