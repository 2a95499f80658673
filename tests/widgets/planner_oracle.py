"""What the package says of a state of the mesh planner, and random states.

A state is a dict of texts, as typed; `expected` has what the page must answer.
"""

import functools
import random
import re

from spmd_helpers._errors import NotUnderstood, SpecError, UnknownTopology
from spmd_helpers._plan.plan import Plan, row
from spmd_helpers._plan.plan_mesh import plan_mesh
from spmd_helpers._training.models import MODELS
from spmd_helpers._widgets import source
from spmd_helpers._widgets.plans import plans

SCRIPT = plans()
CHIPS, ORDER, MOST = SCRIPT["chips"], SCRIPT["order"], SCRIPT["mostDevices"]
TOKENS = 2**32
OPTIMIZERS = ("adam", "adamw", "lion", "momentum", "sgd", "adafactor")
# Models of which the products or the exchanges are not timed, or a step not counted.
LEFT_OUT = ("llama-4-maverick", "deepseek-v3", "vit-b-16", "vit-l-16")
OFFERED = [name for name in MODELS if name not in LEFT_OUT]
BAD = ("", "0", "-1", "1.5", "abc", "99999999999999999", "9" * 40, " 8 ", "١", "x'y")


def _defaults() -> dict[str, str]:
    """The state that the page begins with, read from the widget's file."""
    text = source.source("mesh_planner").partition("plannerDefaults = {")[2]
    return dict(re.findall(r'^  (\w+): "(.*)",$', text.partition("};")[0], re.M))


DEFAULTS = _defaults()


class Refused(ValueError):
    """The page's own limits, which the package does not have."""


def _whole(state, key, what, most):
    typed = state[key].strip()
    if re.fullmatch("[0-9]{1,15}", typed) and 1 <= int(typed) <= most:
        return int(typed)
    value = int(typed) if re.fullmatch("[0-9]{1,15}", typed) else typed
    raise Refused(f"{key}={value!r} is not {what}; give an integer from 1 to {most}.")


def key_of(axis):
    """The state's key of an axis of the mesh."""
    return "model_axis" if axis == "model" else axis


def read(state):
    """The arguments of `plan_mesh`."""
    chip = CHIPS[state["chip"]]
    if chip["dims"]:
        usual = "8x8" if chip["dims"] == 2 else "4x4x4"
        sizes = state["slice"] if state["slice"] in chip["slices"] else usual
        devices = chip["cores"]
        for size in sizes.split("x"):
            devices *= int(size)
    else:
        hosts = _whole(state, "hosts", "a number of hosts", MOST)
        cards = _whole(state, "per_host", "a number of cards of a host", chip["host"])
        sizes, devices = f"{hosts}x{cards}", hosts * cards
    topology = f"{state['chip']}:{sizes}"
    if devices > MOST:
        raise Refused(
            f"{topology} has {devices} devices; this page plans for {MOST} at most, "
            "plan_mesh for more."
        )
    batch = _whole(state, "batch", "a number of sequences", TOKENS)
    model = MODELS[state["model"]]
    seq = model.seq
    if state["seq"].strip():
        seq = _whole(state, "seq", "a number of tokens", TOKENS)
    if batch * seq > TOKENS:
        raise Refused(
            f"batch={batch} of seq={seq} are more than {TOKENS} tokens, which this "
            "page plans for at most; make it smaller."
        )
    without = "stage" if model.moe_layers else "expert"
    useful = [axis for axis in ORDER if axis != without]
    axes = tuple(axis for axis in useful if state[key_of(axis)] == "yes")
    return {
        "model": model,
        "topology": topology,
        "batch": batch,
        "seq": seq,
        "axes": None if len(axes) == len(useful) else axes,
        "recompute": state["recompute"] or None,
        "attention": state["attention"] or None,
        "param_dtype": state["param_dtype"],
        "optimizer": state["optimizer"],
    }


def planned(state) -> Plan | str:
    """The plan, or the sentence that refuses it."""
    rest = {key: text for key, text in state.items() if key not in ("chosen", "shown")}
    return _planned(tuple(sorted(rest.items())))


@functools.cache
def _planned(items) -> Plan | str:
    try:
        return plan_mesh(**read(DEFAULTS | dict(items)))
    except (NotUnderstood, SpecError, UnknownTopology, Refused) as error:
        return str(error)


def all_of(plan):
    """Every strategy of a plan: what is exact, and what is a number with a point."""
    exact = [
        [
            *(one.mesh_words, one.recompute, one.attention, one.memory_bytes),
            *(one.left_bytes, one.zero, one.microbatches, one.chunks),
            *((each.what, each.name, each.when) for each in one.exchanges),
            *((each.count, each.nbytes, each.link) for each in one.exchanges),
        ]
        for one in plan.strategies
    ]
    timed = [
        [
            *(one.total_s, one.seconds.compute_s, one.seconds.recompute_s),
            *(one.seconds.memory_s, one.seconds.bubble_s, one.tokens_per_s, one.mfu),
            *(each.seconds for each in one.exchanges),
            *(each.exposed_s for each in one.exchanges),
        ]
        for one in plan.strategies
    ]
    return exact, timed


def ties_words(plan):
    """What the table of a plan says of strategies that are alike."""
    if not plan.fitting:
        return ""
    if plan.unchecked or len(plan.ties) < 2:
        return plan.unchecked
    return (
        f"The first {len(plan.ties)} are a tie: they differ by {plan.error:.0%} or "
        f"less, and at least nine of ten formula values were within {plan.error:.0%} "
        "of step_time, which has an error of its own."
    )


def expected(state):
    """What the answer says, as far as the package says it too."""
    plan = planned(state)
    if isinstance(plan, str):
        return {"error": plan}
    chosen = int((DEFAULTS | state)["chosen"])
    one = plan.strategies[chosen - 1 if chosen <= len(plan.strategies) else 0]
    listed = [*plan.strategies[:12], *([one] if one.rank > 12 else [])]
    try:
        code, refused = plan.code(one), ""
    except NotUnderstood as error:
        code, refused = None, str(error)
    keys = ("words", "recompute", "memory", "seconds", "tokens", "mfu", "limits")
    return {
        "what": plan.what,
        "count": len(plan.strategies),
        "fitting": len(plan.fitting),
        "rows": [
            {"rank": each.rank, "fits": each.fits}
            | dict(zip(keys, row(each)[1:], strict=True))
            for each in listed
        ],
        "ties": ties_words(plan),
        "notes": list(plan.notes),
        "chosen": one.rank,
        "fits": one.fits,
        "total_bytes": one.memory_bytes,
        "refused": refused,
        **({} if code is None else {"code": code}),
    }


def random_state(rng):
    """Mostly something that can be planned, on few devices more often than on many."""
    name = rng.choice(OFFERED)
    model = MODELS[name]
    state = {"model": name, "chip": rng.choice(list(CHIPS))}
    chip = CHIPS[state["chip"]]
    if chip["dims"]:
        state["slice"] = rng.choice(chip["slices"][:10])
    else:
        state["hosts"] = rng.choice(["1", "1", "2", "2", "3", "4", "5", "6", "8", "16"])
        most = chip["host"]
        state["per_host"] = str(rng.choice([most, most, most, rng.randint(1, most)]))
    sizes = [1, 2, 4, 6, 7, 8, 12, 16, 32, 64, 96, 128, 256, 512]
    state["batch"] = str(rng.choice(sizes))
    state["seq"] = rng.choice(["512", "1024", "1536", "2048", "4096", "8192"])
    if model.positions == "learned" and rng.random() < 0.9:
        state["seq"] = str(min(model.seq, int(state["seq"])))
    policies = ["", "", "", "everything_saveable", "nothing_saveable"]
    state["recompute"] = rng.choice(policies)
    state["attention"] = rng.choice(["", "", "", "plain", "flash"])
    state["param_dtype"] = rng.choice(["float32", "float32", "bfloat16"])
    state["optimizer"] = rng.choice(["adam", "adam", *OPTIMIZERS])
    state["chosen"] = str(rng.choice([1, 1, 2, 3, 7, 40, 999]))
    if rng.random() < 0.35:
        state |= {key_of(axis): rng.choice(["yes", "no"]) for axis in ORDER}
    if rng.random() < 0.08:
        key = rng.choice(["hosts", "per_host", "batch", "seq"])
        state[key] = rng.choice(BAD)
    return {key: text for key, text in state.items() if text != DEFAULTS[key]}


@functools.cache
def cases(seed, count):
    """So many random states."""
    return [random_state(random.Random(f"plan {seed} {i}")) for i in range(count)]
