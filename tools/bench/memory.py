"""Memory arithmetic: what other calculators printed, and ours, beside what is true."""

import json
from collections import Counter
from typing import Any

from tools.bench.clock import ROOT, Part, ratio

PEERS = ROOT / "tests" / "data" / "peers.json"
UNITS = {"GiB": 2**30, "MiB": 2**20, "count": 1, "ZFLOP": 10**21}
PARTS = {
    "params": ("params_bytes",),
    "grads": ("grads_bytes",),
    "optimizer": ("optimizer_bytes",),
    "activations": ("activations_bytes",),
    "params + grads + optimizer": ("params_bytes", "grads_bytes", "optimizer_bytes"),
    "total": ("params_bytes", "grads_bytes", "optimizer_bytes", "activations_bytes"),
}
NEAR = 0.01
VERDICTS = ("right", "wrong", "other convention", "no such setting")


def memory() -> Part:
    answer = json.loads(PEERS.read_text("utf8"))
    verdicts: dict[str, Counter] = {}
    ours, missed = Counter(), []
    for row in answer["rows"]:
        value = our_answer(answer["cases"][row["case"]], row)
        if value is None:
            continue
        peer, truth = row["peer"], row["truth"]
        verdicts.setdefault(peer, Counter())[row["verdict"]] += 1
        ours[peer] += near(value, truth)
        if not near(value, truth):
            missed.append(
                f"ours: {row['case']}, {row['quantity']}, as {peer} {row['setting']}: "
                f"{value:.4g} for {truth:.4g} {row['unit']}"
            )
    rows = [("calculator", "questions", *VERDICTS, "ours right")]
    for peer, verdict in verdicts.items():
        rows.append(
            (peer, verdict.total(), *(verdict[v] for v in VERDICTS), ours[peer])
        )
    verdict = sum(verdicts.values(), Counter())
    rows.append(("all", verdict.total(), *(verdict[v] for v in VERDICTS), ours.total()))
    notes = [
        "right: within 1 percent of what is true, in the unit meant; peers.json says",
        "what each printed, and why it is what it is. Activations are asked by the",
        "published formulas, of ours with counting='megatron'. Right answers, ours to",
        f"theirs: {ratio(ours.total(), verdict['right'])}",
        *missed,
    ]
    return "memory arithmetic, right answers", rows, range(1, 7), notes


def near(value: float, truth: float) -> bool:
    return abs(value - truth) <= NEAR * truth


def our_answer(case: dict[str, Any], row: dict[str, Any]) -> float | None:
    """In the row's unit; None where it asks what ours is not for."""
    from spmd_helpers import MODELS, training_memory

    if case["model"] is None or row["peer"] == "XLA" or row["truth"] is None:
        return None
    model, quantity = MODELS[case["model"]], row["quantity"]
    if quantity == "parameters":
        value = model.parameters
    elif quantity == "KV cache":
        value = model.kv_cache_bytes(16, 8192)
    elif quantity == "training FLOPs":
        plain = "no checkpointing" in row["setting"]
        again = "everything_saveable" if plain else "nothing_saveable"
        value = model.flops(1, case["seq"], again) * 300e9 / case["seq"]
    elif "ours" in row:
        formula = {"counting": "megatron"} if "activations" in row else {}
        answer = training_memory(
            model,
            mesh=case["mesh"],
            batch=case["batch"],
            seq=case["seq"],
            **row["ours"],
            **formula,
        )
        value = sum(getattr(answer, part) for part in PARTS[quantity])
    else:
        return None
    return value / UNITS[row["unit"]]
