"""What the package says of a state of the memory calculator.

A state is a dict of texts, as typed; `expected` is the answer that the page must give.
"""

import functools
import math
import re
import typing

from spmd_helpers._core.words import bytes_words
from spmd_helpers._errors import NotUnderstood, SpecError
from spmd_helpers._hardware.chips import HARDWARE, chip
from spmd_helpers._shardings.sharding import mesh_words
from spmd_helpers._training.dtypes import FLOATS
from spmd_helpers._training.model import MLP, Transformer
from spmd_helpers._training.models import MODELS
from spmd_helpers._training.recompute import RECOMPUTE
from spmd_helpers._training.report import when
from spmd_helpers._training.setup import ATTENTION, COUNTING, OPTIMIZERS
from spmd_helpers._training.state import PHASES
from spmd_helpers._training.training_memory import training_memory
from spmd_helpers._widgets import data as widgets_data
from spmd_helpers._widgets import source as widgets_source

_TYPES = typing.get_type_hints(Transformer)
SIZES = tuple(key for key, type_ in _TYPES.items() if type_ in (int, int | None))
MAY_LACK = tuple(key for key in SIZES if key not in ("layers", "d_model", "heads"))
SWITCHES = tuple(key for key, type_ in _TYPES.items() if type_ is bool)
MOST = 10**9


def _defaults() -> dict[str, str]:
    """The state that the page begins with, read from the widget's file."""
    text = widgets_source.source("memory_state").partition("memoryDefaults = {")[2]
    return dict(re.findall(r'^  (\w+): "(.*)",$', text.partition("};")[0], re.M))


DEFAULTS = _defaults()


class Refused(ValueError):
    """The page's own limits, which the package does not have."""


def read(state):
    """The model and the arguments of training_memory."""

    def text(key):
        if len(state[key]) > 200:
            raise Refused(f"{key} has more than 200 characters; give fewer.")
        return state[key]

    check_choices(text)

    def integer(key):
        typed = text(key).strip()
        if not re.fullmatch(r"[+-]?[0-9]+", typed):
            return typed
        if int(typed) >= MOST:
            raise Refused(
                f"{key}={int(typed)} is more than this page counts with; give less "
                f"than {MOST}."
            )
        return int(typed)

    def or_none(kind, key):
        return kind(key) if text(key).strip() else None

    def yes(key):
        return text(key) == "yes"

    def names(key):
        typed = text(key)
        return tuple(map(str.strip, typed.split(","))) if typed.strip() else ()

    model = read_model(text, integer, or_none, yes)
    grads = or_none(text, "grad_dtype")
    if grads is not None and "," in grads:
        grads = names("grad_dtype")
    more = {key: integer(key) for key in ("fsdp", "expert", "context", "stage")}
    mesh = {"data": integer("data"), "model": integer("model_axis")}
    mesh |= {key: size for key, size in more.items() if size != 1}
    own = state["model"] in ("custom", "mlp")
    how = {
        "zero": int(text("zero")),
        "batch": integer("batch"),
        "gradient_accumulation": integer("gradient_accumulation"),
        "interleave": integer("interleave"),
        "capacity_factor": or_none(lambda key: number(text(key)), "capacity_factor"),
        **{key: names(key) for key in NAMES},
        "seq": None if own else or_none(integer, "seq"),
        **{key: text(key) for key in ("param_dtype", "compute_dtype", "optimizer")},
        "grad_dtype": grads,
        "moment_dtype": or_none(text, "moment_dtype"),
        "mu_dtype": or_none(text, "mu_dtype"),
        "master_weights": yes("master_weights"),
        "recompute": text("recompute"),
        "lora_rank": or_none(integer, "lora_rank"),
        "lora_targets": names("lora_targets"),
        "base_dtype": or_none(text, "base_dtype"),
        "offload_optimizer": yes("offload_optimizer"),
        "counting": text("counting"),
        "chip": gpu(state["chip"]),
    }
    if not isinstance(model, MLP):
        how["attention"] = text("attention")
        how["sequence_parallel"] = yes("sequence_parallel")
    return model, {"mesh": mesh, **how}


_YES_NO = ("sequence_parallel", "master_weights", "offload_optimizer")
NAMES = ("names_which_can_be_saved", "names_which_can_be_offloaded")
# What a control of words can have. The page refuses another text in its own words.
CHOICES = {
    "model": (*MODELS, "custom", "mlp"),
    "chip": tuple(HARDWARE),
    "zero": ("0", "1", "2", "3"),
    "recompute": tuple(RECOMPUTE),
    "attention": ATTENTION,
    **dict.fromkeys(("param_dtype", "compute_dtype"), FLOATS),
    "grad_dtype": ("", *FLOATS),
    **dict.fromkeys(("moment_dtype", "mu_dtype", "base_dtype"), ("", *FLOATS, "int8")),
    "optimizer": tuple(OPTIMIZERS),
    "counting": COUNTING,
    "positions": ("learned", "rotary", "none"),
    "norm": ("layer", "rms"),
    **dict.fromkeys((*SWITCHES, *_YES_NO), ("yes", "no")),
}


def check_choices(text):
    for key, choices in CHOICES.items():
        typed = text(key)
        several = typed.split(",") if key == "grad_dtype" and "," in typed else [typed]
        for one in several:
            name = one.strip() if len(several) > 1 else one
            if name not in choices:
                raise Refused(f"{key}={name!r} is none of the choices of this page.")


def gpu(name):
    """The name of the chip, if it is a GPU: its compiler lays out the step."""
    return name if HARDWARE[name].kind == "gpu" else None


def number(typed):
    """A number as typed: a whole one, one with a point, or else the text."""
    typed = typed.strip()
    if re.fullmatch(r"[0-9]{1,9}", typed):
        return int(typed)
    if re.fullmatch(r"[0-9]{1,9}\.[0-9]{0,17}|\.[0-9]{1,17}", typed):
        return float(typed)
    return typed


def read_model(text, integer, or_none, yes):
    if text("model") == "mlp":
        layers, wide = integer("layers"), integer("d_model")
        four = 4 * wide if isinstance(wide, int) else wide
        inner = or_none(integer, "d_ff")
        return MLP(layers, wide, four if inner is None else inner)
    if text("model") != "custom":
        return MODELS[text("model")]
    fields = {k: or_none(integer, k) if k in MAY_LACK else integer(k) for k in SIZES}
    fields = {k: v for k, v in fields.items() if v is not None}
    fields |= {key: yes(key) for key in SWITCHES}
    return Transformer(**fields, positions=text("positions"), norm=text("norm"))


def facts(model, seq):
    """What one token, or one image, takes of a transformer."""
    if isinstance(model, MLP):
        return ""
    if model.patch_size is not None:
        return f"An image takes {model.forward_flops(1, seq):,} FLOPs forward."
    return (
        f"A token uses {model.active_parameters:,} parameters and takes "
        f"{model.flops_per_token(seq):,} FLOPs forward in a sequence of "
        f"{seq or model.seq:,}; its keys and values take "
        f"{model.kv_cache_bytes_per_token():,} B in bfloat16."
    )


def read_margin(state):
    return number(state["margin"])


def counted(state):
    """The model, what is counted, and what is left of the chip."""
    model, how = read(state)
    if getattr(model, "patch_size", None) is not None:
        raise Refused(
            f"{model.name or 'a model'} with patch_size={model.patch_size} reads "
            "images, which this page does not count; training_memory counts it for "
            "GPUs."
        )
    memory = training_memory(model, **how)
    if memory.total_bytes >= 2**70:
        raise Refused(
            f"{memory.what}: {memory.total_bytes} bytes on each device are more than "
            "this page counts with; make it smaller."
        )
    if len(state["margin"]) > 200:
        raise Refused("margin has more than 200 characters; give fewer.")
    return model, how, memory, memory.left_bytes(state["chip"], read_margin(state))


REFUSALS = (Refused, NotUnderstood, SpecError)


def expected(state, with_changes=True):
    """The whole answer, or {"error": ...}."""
    try:
        model, how, memory, left = counted(state)
    except REFUSALS as error:
        return {"error": str(error)}
    usable = chip(state["chip"]).program_bytes
    allowed = left + memory.total_bytes
    assert allowed == math.floor(read_margin(state) * usable)
    scale = max(memory.total_bytes, usable)
    short = too_short(state, memory, left)
    by_count = " by this count" if short else ""
    verdict = f"Fits{by_count}, {bytes_words(left)} free" if left >= 0 else ""
    verdict = verdict or f"Does not fit, {bytes_words(-left)} over"
    answer = {
        key: str(getattr(memory, key))
        for key in ("params_bytes", "grads_bytes", "optimizer_bytes")
    }
    answer |= {
        "activations_bytes": str(memory.activations_bytes),
        "total_bytes": str(memory.total_bytes),
        "total": bytes_words(memory.total_bytes),
        "what": memory.what,
        "parameters": str(model.parameters),
        "facts": facts(model, how.get("seq")),
        "sources": sources(model, chip(state["chip"])),
        "lines": [
            {
                "name": line.name,
                "formula": line.formula,
                "bytes": str(line.bytes),
                "words": bytes_words(line.bytes),
                "when": list(line.when),
                "shown": when(line.when),
                "source": line.source,
            }
            for line in memory.lines
        ],
        "peak_phase": memory.peak_phase,
        "notes": list(memory.notes),
        "bars": bars(memory, scale),
        "chip": chip(state["chip"]).name,
        "usable_bytes": str(usable),
        "usable": bytes_words(usable),
        "usable_share": share(usable, scale),
        "allowed_bytes": str(allowed),
        "allowed": bytes_words(allowed),
        "allowed_share": share(allowed, scale),
        "left_bytes": str(left),
        "fits": left >= 0,
        "verdict": verdict,
    }
    if with_changes:
        remedies = changes(state, model, how, memory) if left < 0 else []
        answer["changes"] = remedies
        answer["sentence"] = sentence(answer, memory, remedies, short)
    return answer


@functools.cache
def near():
    return widgets_data.measured()["near"]


def too_short(state, memory, left):
    """What is said where the largest miss is more than what is left free."""
    one = chip(state["chip"])
    short, why = near()[one.kind]["short"], near()[one.kind]["why"]
    if left < 0 or state["counting"] != "jax":
        return ""
    if memory.total_bytes * 100 <= one.program_bytes * (100 - short):
        return ""
    cause = f" ({why})" if why else ""
    return (
        f"On {one.kind.upper()}s it was up to {short} % short{cause}, more than the "
        "part left free. "
    )


def sources(model, one):
    shapes = f"Shapes of {model.name}: {model.source}. " if model.source else ""
    return f"{shapes}Memory of {one.name}: {one.source}, {one.date}."


def bars(memory, scale):
    def part(line, number):
        if number < 3:
            return ("parameters", "gradients", "optimizer")[number]
        if line.name == "gradients of one part":
            return "gradients"
        if line.name.startswith(("frozen parameters", "their scales")):
            return "parameters"
        if line.name == "batch":
            return "batch"
        return "work" if "buffers at the peak" in line.source else "kept"

    rows = []
    for phase in PHASES:
        sums = dict.fromkeys(
            ("parameters", "optimizer", "gradients", "kept", "work", "batch"), 0
        )
        for number, line in enumerate(memory.lines):
            if phase in line.when:
                sums[part(line, number)] += line.bytes
        rows.append(
            {
                "phase": phase,
                "bytes": str(memory.phases[phase]),
                "words": bytes_words(memory.phases[phase]),
                "most": phase == memory.peak_phase,
                "parts": [
                    {
                        "part": name,
                        "bytes": str(size),
                        "words": bytes_words(size),
                        "share": share(size, scale),
                    }
                    for name, size in sums.items()
                    if size
                ],
            }
        )
    return rows


def share(size, scale):
    return size * 10_000 // scale / 100


def sentence(answer, memory, remedies, short):
    there = [line for line in memory.lines if memory.peak_phase in line.when]
    most = max(there, key=lambda line: line.bytes)
    said = (
        f"{memory.what}: {answer['total']} on each device, most in "
        f"{memory.peak_phase}. {answer['verdict']}: a program on {answer['chip']} can "
        f"use {answer['usable']}, of which {answer['allowed']} may be filled. {short}"
        f"The largest part is {most.name}, {bytes_words(most.bytes)}."
    )
    if remedies:
        said += f" One way to make it fit: {remedies[0]['words']}."
    elif not answer["fits"]:
        said += (
            " Nothing tried here makes it fit: ZeRO, recompute and flash attention "
            "together, on more devices, or on another chip."
        )
    return said


# Which changes make it fit, tried by the package.


def changes(state, model, how, memory):
    def after(change):
        try:
            _, _, again, left = counted(state | change)
        except REFUSALS:
            return None
        return again if left >= 0 else None

    def first(tried):
        for change in tried:
            if again := after(change):
                return [(change, again)]
        return []

    mesh = how["mesh"]
    data, split = mesh["data"], mesh["model"]
    each = data * mesh.get("fsdp", 1) * mesh.get("expert", 1)
    each *= how["gradient_accumulation"]
    plain = not isinstance(model, MLP)
    recomputes = tuple(RECOMPUTE)
    later = recomputes[recomputes.index(how["recompute"]) + 1 :]
    sequence = plain and not how["sequence_parallel"]
    devices = data * split
    few = devices <= 2**16
    cuts = [n for n in range(1, devices + 1) if devices % n == 0] if few else []
    every = math.prod(mesh.values())
    more = [2**n for n in range(1, 11) if 2**n * every <= 2**16]
    usable = {name: one.program_bytes for name, one in HARDWARE.items()}
    larger = [n for n in usable if usable[n] > chip(state["chip"]).program_bytes]
    chips = [{"chip": name} for name in sorted(larger, key=usable.get)]
    wider = [{"data": str(data * n), **more_rows(how, each * n)} for n in more]
    deeper = [{"model_axis": str(split * n)} for n in more]
    here = [
        *first({"zero": str(n)} for n in range(how["zero"] + 1, 4)),
        *first([{"attention": "flash"}] if plain else []),
        *first({"recompute": word} for word in later),
        *first([{"sequence_parallel": "yes"}] if sequence else []),
        *first(
            {"data": str(devices // n), "model_axis": str(n)}
            for n in cuts
            if n != split
        ),
        *largest_batch(after, how["batch"], each),
    ]
    steps = [
        *([{"zero": "3"}] if how["zero"] < 3 else []),
        *([{"attention": "flash"}] if plain and how["attention"] == "plain" else []),
        *([{"recompute": "nothing_saveable"}] if later else []),
        *([{"sequence_parallel": "yes"}] if sequence else []),
    ]
    remedies = here or together(after, steps)
    remedies += [*first([*wider, *deeper]), *first(chips)]
    for machine in () if remedies else (wider, deeper, chips):
        some = [s for n in range(1, len(steps) + 1) for s in several(steps, n)]
        remedies += first(one | s for one in machine for s in some)
    return [said(state, change, memory, again) for change, again in remedies]


def more_rows(how, each):
    """The next batch that divides, where this one does not."""
    batch = how["batch"]
    return {"batch": str((batch // each + 1) * each)} if batch % each else {}


def largest_batch(after, batch, each):
    """By halving, and held against the next one."""
    low, high = 0, batch // each
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (
            (middle, high) if after({"batch": str(middle * each)}) else (low, middle)
        )
    if not low:
        return []
    assert not after({"batch": str((low + 1) * each)})
    change = {"batch": str(low * each)}
    return [(change, after(change))]


def together(after, steps):
    for count in range(2, len(steps) + 1):
        chosen = several(steps, count)
        pairs = [(change, again) for change in chosen if (again := after(change))]
        if pairs:
            return pairs
    return []


def several(steps, count):
    """So many of them at once, in the order of a count in binary."""
    return [
        functools.reduce(dict.__or__, some)
        for number in range(2 ** len(steps))
        if len(some := [s for i, s in enumerate(steps) if number >> i & 1]) == count
    ]


def said(state, change, memory, again):
    names = [
        f"{key}={'True' if value == 'yes' else value}"
        for key, value in change.items()
        if key not in ("data", "model_axis")
    ]
    after = state | change
    old, now = (math.prod(read(one)[1]["mesh"].values()) for one in (state, after))
    if "data" in change or "model_axis" in change:
        names.insert(0, mesh_words(read(after)[1]["mesh"]))
    name = ", ".join(names) + ("" if old == now else f" ({now} devices, not {old})")
    words = []
    if set(change) != {"chip"}:
        both = bytes_words(memory.total_bytes), bytes_words(again.total_bytes)
        words.append(" → ".join(both))
    if "chip" in change:
        room = math.floor(read_margin(state) * HARDWARE[change["chip"]].program_bytes)
        words.append(f"room for {bytes_words(room)}")
    total = str(again.total_bytes)
    words = f"{name}: {', '.join(words)}"
    return {"change": name, "words": words, "set": change, "bytes": total}
