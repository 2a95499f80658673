"""Seconds of a training step: predicted by ours and by others, and measured."""

import json
import statistics
import subprocess

from tools.bench.clock import Part, ratio
from tools.bench.peers import python_with
from tools.bench.questions import LLM as _LLM

_SHEET = {"flops_per_s": 9.89e14, "link_bytes_per_s": 4.5e11}

_LLM_CODE = """
import json, logging, sys
logging.disable(logging.CRITICAL)
from llm_analysis.analysis import ActivationRecomputation, DSZeRO, LLMAnalysis
from llm_analysis.config import GPUConfig, ModelConfig, ParallelismConfig
rows, options = json.load(sys.stdin)
card = GPUConfig("h200", 141, 4800, 450, 8e-6, 989)
found = []
for s in rows:
    model = ModelConfig("own", s["layers"], s["heads"], s["d_model"], s["vocab"],
                        s["seq"], ffn_embed_dim=s["d_ff"])
    tensor = s["strategy"] == "tensor parallel"
    cards = ParallelismConfig(tp_size=2) if tensor else ParallelismConfig(dp_size=2)
    again = s["recompute"] == "nothing_saveable"
    recompute = ActivationRecomputation.FULL if again else ActivationRecomputation.NONE
    zero = DSZeRO.STAGE_3 if "fsdp" in s["strategy"] else DSZeRO.NONE
    analysis = LLMAnalysis(model, card, parallelism_config=cards, **options)
    said = analysis.training(
        batch_size_per_gpu=s["batch"] if tensor else s["batch"] // 2,
        gradient_accumulation_steps=1, seq_len=s["seq"], total_num_tokens=1e9,
        activation_recomputation=recompute, ds_zero=zero,
        flash_attn=s["attention"] == "cudnn")
    found.append(said["latency_per_iter"])
print("ANSWER" + json.dumps(found))
"""


def rows() -> list[dict]:
    """The measured steps of the transformer whose products are in bfloat16."""
    import spmd_helpers as spmd

    named = []
    for group, kind in (("ways", "gpu-transformer"), ("log", "gpu-log")):
        for row in spmd.load_measured(kind):
            if "median_s" in row and row["setting"]["compute"] == "bfloat16":
                named.append(row | {"name": f"{group}/{row['name']}"})
    return named


def ours(measured: list[dict]) -> list[dict]:
    """Our predictions of these rows, with whether they were kept out."""
    import spmd_helpers as spmd

    said = {row["name"]: row for row in spmd.load_measured("gpu-predicted")}
    return [said[row["name"]] for row in measured]


def scaling_book(row: dict) -> tuple[float, float]:
    """(lower, upper) of its arithmetic, at the sheet's rates.

    The larger of two times, and their sum: FLOPs over the cards' peak, and the bytes of
    the strategy over the link. Of P parameters in bfloat16 data parallelism sends 4 P
    bytes a step, FSDP 6 P, tensor parallelism activations in bfloat16, eight times a
    layer, forward and backward together.
    """
    s, cards = row["setting"], row["devices"]
    math = row["model_flops"] / cards / _SHEET["flops_per_s"]
    sent = 4.0 * row["parameters"]
    if "fsdp" in s["strategy"]:
        sent = 6.0 * row["parameters"]
    if s["strategy"] == "tensor parallel":
        sent = 8.0 * 2 * s["batch"] * s["seq"] * s["d_model"] * s["layers"]
    links = sent / _SHEET["link_bytes_per_s"]
    return max(math, links), math + links


def llm_analysis(measured: list[dict], options: dict) -> list[float] | None:
    python = python_with("llm-analysis", _LLM)
    if python is None:
        return None
    done = subprocess.run(
        [python, "-c", _LLM_CODE],
        input=json.dumps([[row["setting"] for row in measured], options]),
        capture_output=True,
        text=True,
    )
    _, marker, answer = done.stdout.rpartition("ANSWER")
    return json.loads(answer) if marker else None


def seconds() -> Part:
    measured = rows()
    took = [row["median_s"] for row in measured]
    book = [scaling_book(row) for row in measured]
    (speeds,) = _speeds()
    described = {
        "achieved_tflops": speeds["bf16_flops_per_s"] / 1e12,
        "achieved_memory_bandwidth_GBs": speeds["memory_bytes_per_s"] / 1e9,
    }
    own = ours(measured)
    every = {
        "ours, step_time": [row["predicted_s"] for row in own],
        "scaling book, lower": [low for low, _ in book],
        "scaling book, upper": [high for _, high in book],
        "llm-analysis": llm_analysis(measured, {}),
        "llm-analysis, our rates": llm_analysis(measured, described),
    }
    table = [("prediction", "steps", "median", "nine of ten", "most", "to ours")]
    skipped = [name for name, said in every.items() if said is None]
    best = _errors(every["ours, step_time"] or [], took)[0]
    kept_out = [row for row in own if row["kept_out"]]
    apart = [row["predicted_s"] for row in kept_out]
    table.append(
        _line("ours, kept out", apart, [r["measured_s"] for r in kept_out], best)
    )
    table += [_line(name, said, took, best) for name, said in every.items() if said]
    notes = [
        "steps of a transformer on two H200s, as they were measured; the error is how",
        "far predicted over measured is from 1. Our rates were chosen with other rows",
        "than those kept out. The scaling book's are bounds, at the sheet's rates;",
        "llm-analysis has its own efficiencies, and then the rates that ours has.",
        *(
            f"skipped: {name} does not install or does not run here."
            for name in skipped
        ),
    ]
    if python_with("hespas", ("hespas",)) is None:
        notes.append("skipped: hespas does not install from the package index.")
    else:
        notes.append("hespas installs here; nothing is asked of it yet.")
    return "seconds of a step, errors", table, range(1, 6), notes


def _speeds() -> list[dict]:
    import spmd_helpers as spmd

    return spmd.load_measured("gpu-speeds")


def _line(name: str, said: list[float], took: list[float], best: float) -> tuple:
    off = _errors(said, took)
    return (name, len(said), *(f"{share:.1%}" for share in off), ratio(off[0], best))


def _errors(said: list[float], took: list[float]) -> tuple[float, float, float]:
    off = sorted(abs(s / t - 1) for s, t in zip(said, took, strict=True))
    return statistics.median(off), off[-(-9 * len(off) // 10) - 1], off[-1]
