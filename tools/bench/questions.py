"""Twenty questions of memory: ours and public calculators against the compiler's peak.

The programs are those of stored rows that no formula of ours was written with. The
others' formulas are written again here from where they are published; llm-analysis is
asked itself.
"""

import json
import statistics
import subprocess
from typing import Any

from tools.bench.clock import Part
from tools.bench.peers import python_with

# What llm-analysis needs. It asks for an old transformers, for other models' files,
# which it does not import.
LLM = ("--no-deps", "llm-analysis==0.2.2", "fire", "termcolor")
# Beside the programs that were kept out for GPUs: further ones that all can be asked.
_AXES = (
    "cards: gpt fsdp full",
    "cards: llama wide tp full",
    "cards: llama wide tp fsdp",
)
NEAR = 0.1
_LLM_CODE = """
import json, logging, sys
logging.disable(logging.CRITICAL)
from llm_analysis.analysis import ActivationRecomputation, DSZeRO, LLMAnalysis
from llm_analysis.config import GPUConfig, ModelConfig, ParallelismConfig
card = GPUConfig("large", 10**6, 3350, 450, 8e-6, 989)
zeros = [DSZeRO.NONE, DSZeRO.STAGE_1, DSZeRO.STAGE_2, DSZeRO.STAGE_3]
kinds = {"everything_saveable": "NONE", "selective": "SELECTIVE",
         "nothing_saveable": "FULL"}
parts = ["weight", "gradient", "optimizer_state", "activation"]
found = []
for q in json.load(sys.stdin):
    m = q["model"]
    model = ModelConfig("own", m["layers"], m["heads"], m["d_model"], m["vocab"],
                        q["seq"], m["kv_heads"], ffn_embed_dim=m["d_ff"],
                        expansion_ratio=m["d_ff"] / m["d_model"])
    cards = ParallelismConfig(tp_size=q["model_axis"], dp_size=q["data"])
    said = LLMAnalysis(model, card, parallelism_config=cards).training(
        batch_size_per_gpu=q["batch"] // q["data"], gradient_accumulation_steps=1,
        seq_len=q["seq"], total_num_tokens=1e9, ds_zero=zeros[q["zero"]],
        mlp_gated_linear_units=m["gated"],
        activation_recomputation=ActivationRecomputation[kinds[q["recompute"]]],
        flash_attn=False)
    found.append(sum(said[f"{part}_memory_per_gpu"] for part in parts))
print("ANSWER" + json.dumps(found))
"""
Question = dict[str, Any]


def questions() -> list[Question]:
    """The settings: a model as a dict, the mesh, and the peak that a compiler said."""
    import spmd_helpers as spmd
    from tools.measure.truth import programs

    kept_out = {*programs.KEPT_OUT_GPU, *_AXES}
    rows = [*spmd.load_measured("gpu-compiled"), *spmd.load_measured("memory-axes")]
    chosen = [_question(spmd, row) for row in rows if row["name"] in kept_out]
    assert all(programs.is_kept_out(name) for name in _AXES)
    return chosen


def _question(spmd: Any, row: dict[str, Any]) -> Question:
    """A row's program, with the defaults of what its program does not name."""
    model = getattr(spmd, row["kind"])(**row["program"]["model"])
    usual = {"seq": None, "data": 1, "model_axis": 1, "zero": 3, "attention": "plain"}
    usual |= {"recompute": "everything_saveable", "fsdp": 1}
    wanted = usual | row["program"]
    names = ("layers", "d_model", "heads", "kv_heads", "d_ff", "vocab", "gated")
    sizes = {name: getattr(model, name) for name in names}
    return wanted | {
        "name": row["name"],
        "made": model,
        "model": sizes | {"parameters": model.parameters},
        "seq": wanted["seq"] or model.seq,
        "data": wanted["data"] * wanted["fsdp"],
        "axes": {"data": wanted["data"], "fsdp": wanted["fsdp"]},
        "zero": 3 if wanted["fsdp"] > 1 else wanted["zero"],
        "peak": row["peak_bytes"],
        "chip": row["device"],
        "with": f"jax {row['jax']}",
    }


def ours(q: Question) -> float:
    from spmd_helpers import training_memory

    keys = ("param_dtype", "compute_dtype", "optimizer", "master_weights")
    more = {key: q[key] for key in (*keys, "sequence_parallel") if key in q}
    mesh = q["axes"] | {"model": q["model_axis"]}
    return training_memory(
        q["made"],
        mesh=mesh,
        zero=q["zero"] if q["axes"]["fsdp"] == 1 else 0,
        batch=q["batch"],
        seq=q["seq"],
        recompute=q["recompute"],
        attention=q["attention"],
        chip=q["chip"],
        **more,
    ).total_bytes


def eleuther(q: Question) -> float:
    """EleutherAI/cookbook, calc/calc_transformer_mem.py @069ae2e, without its misc.

    Low precision parameters, float32 gradients, 12 bytes of optimizer; ZeRO shards over
    all devices; buckets of 5e8 and 1e9 live parameters; activations are not sharded.
    """
    m, low = q["model"], 2
    devices = q["data"] * q["model_axis"]
    wide, layers, seq = m["d_model"], m["layers"], q["seq"]
    linears = 3 if m["gated"] else 2
    total = (2 * m["vocab"] + seq + 8 * layers + 2) * wide
    total += 2 * (1 + m["kv_heads"] / m["heads"]) * layers * wide**2
    total += linears * layers * wide * m["d_ff"]
    size = low * total / q["model_axis"] / (devices if q["zero"] == 3 else 1)
    size += 4 * total / (devices if q["zero"] >= 2 else 1)
    size += 12 * total / (devices if q["zero"] >= 1 else 1)
    if q["zero"] and devices > 1:
        size += low * (5e8 + (1e9 if q["zero"] == 3 else 0))
    each = 16 * low + 2
    if q["recompute"] != "nothing_saveable":
        each += (2 * low + 1) * m["heads"] * seq / wide
    return size + seq * q["batch"] / q["data"] * wide * layers * each


def deepspeed(q: Question) -> float:
    """DeepSpeed's estimate_zero2 and estimate_zero3_model_states_mem_needs, no offload.

    Of the stages 0 and 1 it has none; ZeRO-2's is taken for 1, and 16 bytes of each
    parameter for 0. Tensor parallelism is not asked for: its share is divided.
    """
    total = q["model"]["parameters"] / q["model_axis"]
    if q["zero"] == 3:
        largest = q["model"]["vocab"] * q["model"]["d_model"] / q["model_axis"]
        return 4 * largest + 18 * total / q["data"]
    return 4 * total + 16 * total / q["data"] if q["zero"] else 16 * total


def accelerate(q: Question) -> float:
    """Hugging Face `accelerate estimate-memory`: four times the model's float32 bytes.

    It is asked for a model on one device; its share of a mesh is divided as ZeRO does.
    """
    state = 4 * 4 * q["model"]["parameters"] / q["model_axis"]
    return state / (q["data"] if q["zero"] == 3 else 1)


def published(q: Question) -> float:
    """Korthikanti et al. 2022, arXiv:2205.05198, Table 2, with 16 bytes of state."""
    m, t = q["model"], q["model_axis"]
    state = 16 * m["parameters"] / t
    state /= q["data"] if q["zero"] == 3 else 1
    seq, wide = q["seq"], m["d_model"]
    tensor = seq * q["batch"] / q["data"] * wide * m["layers"]
    if q["recompute"] == "nothing_saveable":
        return state + 2 * tensor
    each = 34 / t if q.get("sequence_parallel") or t == 1 else 10 + 24 / t
    if q["recompute"] == "everything_saveable":
        each += 5 * m["heads"] * seq / wide / t
    return state + tensor * each


def llm_analysis(wanted: list[Question]) -> list[float] | None:
    python = python_with("llm-analysis", LLM)
    if python is None:
        return None
    plain = [{k: v for k, v in q.items() if k != "made"} for q in wanted]
    done = subprocess.run(
        [python, "-c", _LLM_CODE],
        input=json.dumps(plain),
        capture_output=True,
        text=True,
    )
    _, marker, answer = done.stdout.rpartition("ANSWER")
    return json.loads(answer) if marker else None


FORMULAS = {
    "ours, training_memory": ours,
    "Korthikanti et al., table 2": published,
    "EleutherAI's cookbook": eleuther,
    "DeepSpeed's estimators": deepspeed,
    "accelerate estimate-memory": accelerate,
}


def twenty() -> Part:
    wanted = questions()
    said = {name: [f(q) for q in wanted] for name, f in FORMULAS.items()}
    package = llm_analysis(wanted)
    if package:
        said["llm-analysis 0.2.2"] = package
    head = ("calculator", "questions", "within 10 %", "median off", "least", "most")
    rows: list[tuple] = [head]
    for name, sizes in said.items():
        off = [size / q["peak"] - 1 for size, q in zip(sizes, wanted, strict=True)]
        near = sum(abs(one) <= NEAR for one in off)
        median = statistics.median(map(abs, off))
        spread = [f"{one:+.0%}" for one in (min(off), max(off))]
        rows.append((name, len(off), near, f"{median:.1%}", *spread))
    notes = [
        "steps of transformers for GPUs that XLA's compiler laid out; its peak is what",
        "is right. No formula of ours was written with these programs. DeepSpeed and",
        "accelerate count the state alone, and say so; the programs also have",
        "activations, and float32 parameters, of 16 bytes with gradients and Adam.",
        f"Compiled with {', '.join(sorted({q['with'] for q in wanted}))}.",
    ]
    if not package:
        notes.append("skipped: llm-analysis does not install or does not run here.")
    return "memory of a step, twenty questions", rows, range(1, 6), notes
