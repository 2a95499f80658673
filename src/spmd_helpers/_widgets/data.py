"""What the memory calculator knows of models, chips and measurements, as JavaScript.

Written from MODELS, HARDWARE and data/measured, so that nothing stands twice.
"""

import dataclasses
import functools
import inspect
import json
import math
import typing
from typing import Any

from .._core.validate import as_integer
from .._errors import NotUnderstood
from .._hardware.chips import HARDWARE, Chip
from .._hardware.chips import chip as _chip
from .._hardware.measured import load_measured
from .._shardings.sharding import itemsize
from .._training import setup
from .._training.axes import mesh_sizes
from .._training.dtypes import FLOATS, type_name
from .._training.model import MLP, Transformer
from .._training.models import FAMILIES, MODELS
from .._training.recompute import (
    RECOMPUTE,
    RESULTS,
    WITH_NAMES,
    WITH_WEIGHTS,
)
from .._training.setup import OPTIMIZERS, WITH_MU_DTYPE
from .._training.training_memory import training_memory
from .plans import plans

# The axes of the calculator's mesh, and the controls that they have.
_OF_BATCH = ("data", "fsdp", "expert")
AXES = {axis: "model_axis" if axis == "model" else axis for axis in setup.AXES}
_EXACT = 2**53  # integers of JavaScript are exact below
# What the page compares with: stored programs, by kind and name.
_COMPARED = (
    ("tpu-memory", "mlp fsdp"),
    ("tpu-memory", "llama-3-8b fsdp full flash"),
    ("tpu-memory", "gpt3-175b 2d full"),
    ("tpu-refused", "gpt3-175b replicated"),
    ("tpu-refused", "gpt3-175b 2d full v5e"),
    ("gpu-memory", "1 gpu: gpt3-medium selective"),
    ("gpu-memory", "2 gpu: gpt3-xl fsdp full"),
    ("gpu-memory", "2 gpu: llama8 fsdp"),
)
Row = dict[str, Any]  # a stored measurement, as JSON has it


@functools.cache
def data_script(*names: str) -> str:
    """Constants of JavaScript: choices, models, chips, measurements, plans.

    The models stand in the order of their families, of which the number is given.

    Args:
        names: the constants that are wanted; all if none is given.
    """
    values = {
        "spmdChoices": {
            "optimizer": OPTIMIZERS,
            "muDtype": WITH_MU_DTYPE,
            "recompute": tuple(RECOMPUTE),
            "transformerSizes": _fields(int, int | None),
            "transformerSwitches": _fields(bool, bool | None),
            "withNames": WITH_NAMES,
            "withWeights": WITH_WEIGHTS,
            "results": RESULTS,
            "floats": {name: itemsize(name) for name in FLOATS},
        },
        "spmdModels": models(),
        "spmdFamilies": {family: len(names) for family, names in FAMILIES.items()},
        "spmdHardware": hardware(),
        "spmdSources": sources(),
        "spmdMeasured": measured(),
        "spmdPlan": plans(),
    }
    return "".join(
        f"const {name} = {_compact(value)};\n"
        for name, value in values.items()
        if name in names or not names
    )


def _compact(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _fields(kind: object, or_none: object) -> list[str]:
    """The fields of a Transformer of one type, or of that or None."""
    types = typing.get_type_hints(Transformer)
    return [key for key, type_ in types.items() if type_ in (kind, or_none)]


def models() -> dict[str, dict[str, object]]:
    """Name → shapes of each of MODELS, without what a model does not have.

    The script takes a switch that is missing for False, and a size for none.
    """
    return {
        name: {
            key: _exact(value)
            for key, value in dataclasses.asdict(model).items()
            if key not in ("name", "source")
            and value is not None
            and value is not False
        }
        for name, model in MODELS.items()
    }


def hardware() -> dict[str, dict[str, object]]:
    """Name → what a program can use of each chip of HARDWARE."""
    keys = ("kind", "generation", "program_bytes")
    return {
        name: {key: _exact(getattr(one, key)) for key in keys}
        for name, one in HARDWARE.items()
    }


def sources() -> dict[str, list[str]]:
    """Name → where its figures stand, of a chip also when they were read."""
    of_models = {name: [model.source] for name, model in MODELS.items()}
    return of_models | {
        name: [chip.source, chip.date] for name, chip in HARDWARE.items()
    }


def measured() -> dict[str, object]:
    """Some stored programs as states of the calculator, and how near all are.

    `rows` have the state and what was measured; `near` says of each kind how many are
    within a tenth, of how many, the least and the most that the count is off, how many
    percent it is short at most, and of what program.
    """
    stored = {kind: load_measured(kind) for kind, _ in _COMPARED}
    gpus = [*stored["gpu-memory"], *load_measured("gpu-compiled")]
    rows = [
        _row(row)
        for kind, name in _COMPARED
        for row in stored[kind]
        if row["name"] == name and row["jax"] == stored[kind][0]["jax"]
    ]
    near = {}
    for kind, compared in (("tpu", stored["tpu-memory"]), ("gpu", gpus)):
        off = [_counted(row) / row["peak_bytes"] - 1 for row in compared]
        short = min(range(len(off)), key=off.__getitem__)
        near[kind] = {
            "within": sum(abs(error) < 0.1 for error in off),
            "of": len(off),
            "least": f"{min(off):+.0%}",
            "most": f"{max(off):+.0%}",
            "short": max(0, round(-100 * off[short])),
            "why": _attention_words(compared[short]),
        }
    return {"rows": rows, "near": near}


def _exact(value: object) -> object:
    """Integers too large for JavaScript as text."""
    return value if as_integer(value, _EXACT) is None else str(value)


def _model(row: Row) -> MLP | Transformer:
    kind = MLP if row["kind"] == "MLP" else Transformer
    return kind(**row["program"]["model"])


def _how(row: Row) -> dict[str, Any]:
    """What training_memory takes beside the model."""
    how = dict(row["program"])
    mesh = {"data": how.pop("data"), "model": how.pop("model_axis")}
    del how["name"], how["topology"], how["model"]
    return {"mesh": mesh, **how}


def _counted(row: Row) -> int:
    return training_memory(_model(row), **_how(row), chip=row["device"]).total_bytes


def _attention_words(row: Row) -> str:
    """The attention of a stored program, if it is one that takes memory."""
    model = _model(row)
    if isinstance(model, MLP) or row["program"].get("attention") != "plain":
        return ""
    grouped = " with grouped queries" if model.kv_heads < model.heads else ""
    return f"attention written out{grouped}"


def _row(row: Row) -> dict[str, object]:
    refused = bool(row.get("refused"))
    return {
        "name": row["name"],
        "state": {key: value for key, value in _state(row).items() if value},
        "bytes": _exact(row["needed_bytes" if refused else "peak_bytes"]),
        "refused": refused,
        "devices": row["devices"],
        "device": row["device"],
        "jax": row["jax"],
        "date": row["date"],
    }


def memory_state(
    model: MLP | Transformer | str, *, chip: str | Chip, **how: Any
) -> dict[str, str]:
    """Arguments of `training_memory`, and of `fits`, as the calculator's state.

    >>> state = memory_state(MLP(2, 8, 32), chip="v5e", mesh={"data": 4}, batch=16)
    >>> state["model"], state["d_ff"], state["data"], state["zero"], state["mu_dtype"]
    ('mlp', '32', '4', '3', '')

    Args:
        model: a Transformer, an MLP, or one of MODELS, also by its name.
        chip: a name that `chip` knows, or a Chip.
        **how: arguments that `training_memory` takes by name, mesh at least, and
            `margin`.

    Raises:
        NotUnderstood: the calculator has no control for an argument.
    """
    model = MODELS[model] if isinstance(model, str) else model
    arguments = inspect.signature(training_memory).parameters.values()
    usual = {one.name: one.default for one in arguments}
    how = {k: v for k, v in usual.items() if v is not inspect.Parameter.empty} | how
    mesh, seq = mesh_sizes(how.pop("mesh")), how.pop("seq")
    meant = setup.usual(model, mesh, how["counting"])
    how |= {key: value for key, value in meant.items() if how[key] is None}
    _check_offered(how)
    how["chip"] = _chip(chip).name
    if how["batch"] is None:
        parts = how["gradient_accumulation"]
        how["batch"] = parts * math.prod(mesh.get(axis, 1) for axis in _OF_BATCH)
    state = _shapes(model, seq)
    state |= {key: mesh.get(axis, 1) for axis, key in AXES.items()} | how
    types = [key for key in state if key.endswith("_dtype")]
    state |= {key: _type(state[key]) for key in types}
    return {key: _typed(value) for key, value in state.items()}


def _type(given: Any) -> Any:
    """Types of NumPy or JAX by their names."""
    if isinstance(given, tuple | list):
        return tuple(map(_type, given))
    return None if given is None else type_name(given)


# What training_memory takes and the calculator has no control for, with what it is
# where it is not given.
_NOT_OFFERED: dict[str, Any] = {}


def _check_offered(how: dict[str, Any]) -> None:
    """Refuse what the calculator has no control for, and leave it out of `how`."""
    for key, plain in _NOT_OFFERED.items():
        given = how.pop(key)
        if given != plain:
            raise NotUnderstood(
                f"{key}={given!r}: the memory calculator has no control for it; "
                "give it to training_memory."
            )


def _shapes(model: MLP | Transformer, seq: int | None) -> dict[str, object]:
    if MODELS.get(model.name) == model:
        return {"model": model.name, "seq": seq}
    sizes = dataclasses.asdict(model)
    del sizes["name"], sizes["source"]
    if isinstance(model, MLP):
        return {"model": "mlp", **sizes}
    return {"model": "custom", **sizes, "seq": seq or model.seq}


def _typed(value: object) -> str:
    """A value as the calculator's controls have it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple | list):
        return ", ".join(value)
    return "" if value is None else str(value)


def _state(row: Row) -> dict[str, str]:
    """The program of a row as the calculator's state."""
    how = _how(row)
    place = row["program"]["topology"].partition(":")[0] or row["device"]
    return memory_state(_model(row), chip=place, **how)
