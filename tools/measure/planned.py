"""Hold plans against compiled programs: memory, exchanges, seconds, order.

    PYTHONPATH=.venv/compilers/gpu:.venv/compilers/tpu \\
        .venv/bin/python -m tools.measure.planned [NAME ...]

Of each plan the first three strategies are compiled for the chips that it names, which
are not there, and one further down that is clearly slower. Each is the reference step
of `tools.measure.truth`. A row has what the compiler and `step_time` say of it; what
the plan says is computed where the row is read. A strategy that has its row already is
not compiled again; `--again` does.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path

from spmd_helpers._hardware.chips import HARDWARE
from spmd_helpers._hlo.ring import SHARE
from spmd_helpers._plan.exchanges import Exchange
from spmd_helpers._plan.plan import Plan
from spmd_helpers._plan.plan_mesh import plan_mesh
from spmd_helpers._plan.seconds import products
from spmd_helpers._plan.strategy import Strategy
from spmd_helpers._time.rates import Rates, rates_of
from spmd_helpers._training.model import MLP, Transformer
from spmd_helpers._training.models import MODELS
from tools.measure import runner
from tools.measure.truth import programs

STORED = runner.BOOKS / "plans.json"
SETTINGS = {
    **{"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1"},
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}
SLOWER = 1.3  # of the first one's seconds, so that the order can be judged
# Plans, and pipelines, that numbers of the formula were chosen with, or the comparison
# written.
CHOSEN_WITH = (
    *("mixtral h100", "llama v5p", "mlp v5e"),
    "llama h100: stage 4 × data 2, 8 microbatches, nothing_saveable",
    "llama h100: stage 4 × fsdp 2, 8 microbatches, 2 chunks each, nothing_saveable",
)


def _llama(layers: int, *shapes: int, name: str, **more) -> Transformer:
    return Transformer(
        layers,
        *shapes,
        **{"gated": True, "tied": False, "biases": False, "positions": "rotary"},
        **{"norm": "rms", "name": name, **more},
    )


LLAMA_3 = _llama(
    *(8, 4096, 32), kv_heads=8, d_ff=14336, vocab=32000, seq=4096, name="8 of Llama 3"
)
LARGE = _llama(
    *(4, 8192, 64), kv_heads=8, d_ff=28672, vocab=32000, seq=4096, name="4 of 70B"
)


@dataclass(frozen=True)
class Case:
    """One call of `plan_mesh`."""

    model: Transformer | MLP
    topology: str
    batch: int
    seq: int | None = None
    more: dict = field(default_factory=dict)

    def plan(self) -> Plan:
        """What is planned."""
        return plan_mesh(
            self.model, self.topology, batch=self.batch, seq=self.seq, **self.more
        )


# Attention by a kernel needs cuDNN to compile for GPUs, and `step_time` does not know
# the loops of a TPU's.
PLAIN = {"attention": "plain"}
MIXTRAL = replace(
    LLAMA_3, layers=4, experts=8, experts_per_token=2, name="4 of Mixtral"
)
FINE = replace(
    LLAMA_3,
    **{"d_model": 2048, "heads": 16, "kv_heads": 4, "experts": 32},
    **{"experts_per_token": 4, "expert_d_ff": 1024, "name": "8 of 32 experts"},
)
CASES = {
    "llama h100": Case(LLAMA_3, "h100:1x8", 16, 2048, PLAIN),
    "llama v5p": Case(LLAMA_3, "v5p:2x2x2", 16, 2048, PLAIN),
    "llama h100 two hosts": Case(LLAMA_3, "h100:2x8", 32, 2048, PLAIN),
    "mlp h100": Case(MLP(8, 8192, 32768), "h100:1x8", 16384),
    "gpt3-xl a100": Case(MODELS["gpt3-xl"], "a100-80gb:1x8", 32, 1024, PLAIN),
    "llama-3.2-1b h200": Case(MODELS["llama-3.2-1b"], "h200:1x4", 16, 2048, PLAIN),
    "large b200": Case(LARGE, "b200:1x8", 8, 2048, PLAIN),
    "mlp v5e": Case(MLP(12, 2048, 8192), "v5e:2x4", 32768),
    "gpt3-6.7b h200 two hosts": Case(MODELS["gpt3-6.7b"], "h200:2x8", 32, None, PLAIN),
    "large h100 four hosts": Case(LARGE, "h100:4x8", 16, 2048, PLAIN),
    "mlp a100 two hosts": Case(MLP(12, 4096, 16384), "a100-40gb:2x8", 32768),
    "llama-2-7b h100 four hosts": Case(
        MODELS["llama-2-7b"], "h100:4x8", 64, 2048, PLAIN
    ),
    "qwen2.5-7b h100 two hosts": Case(
        MODELS["qwen2.5-7b"], "h100:2x8", 16, 2048, PLAIN
    ),
    "gpt2-large h100": Case(MODELS["gpt2-large"], "h100:1x4", 16, None, PLAIN),
    "llama-3-8b b200 two hosts": Case(
        MODELS["llama-3-8b"], "b200:2x8", 16, 8192, PLAIN
    ),
    "few sequences h200": Case(LLAMA_3, "h200:1x8", 2, 4096, PLAIN),
    "mixtral h100": Case(MIXTRAL, "h100:1x8", 16, 2048, PLAIN),
    "mixtral h200 two hosts": Case(MIXTRAL, "h200:2x8", 16, 4096, PLAIN),
    "fine experts b200": Case(FINE, "b200:1x4", 16, 2048, PLAIN),
}


# Pipelines, which are not among the first three.
PIPELINES = {
    "llama h100": (
        "stage 4 × data 2, 8 microbatches, nothing_saveable",
        "stage 4 × fsdp 2, 8 microbatches, 2 chunks each, nothing_saveable",
    )
}


def chosen(plan: Plan, also: Sequence[str] = ()) -> list[Strategy]:
    """The first three, the first without stages that is clearly slower, and others."""
    first = [*plan.fitting[:3]]
    most = SLOWER * first[0].total_s
    others = [one for one in plan.fitting if "stage" not in one.mesh]
    slower = (one for one in others if one.total_s > most)
    first += [one for one in [next(slower, None)] if one and one not in first]
    return first + [one for one in plan.strategies if str(one) in also]


def key_of(name: str, one: Strategy) -> str:
    """What a strategy's row is called."""
    return f"{name}: {one}"


def program_of(case: Case, one: Strategy) -> programs.Program:
    """The reference program of a strategy."""
    step = one.step
    return programs.Program(
        name=str(one),
        model=case.model,
        batch=case.batch,
        topology=case.topology,
        seq=case.seq,
        data=step.mesh["data"],
        fsdp=step.mesh["fsdp"],
        expert=step.mesh["expert"],
        context=step.mesh["context"],
        stage=step.mesh["stage"],
        model_axis=step.mesh["model"],
        gradient_accumulation=step.microbatches,
        interleave=step.chunks,
        capacity_factor=step.capacity_factor,
        zero=step.zero,
        recompute=step.recompute,
        attention=step.attention,
    )


def compiled(case: Case, one: Strategy) -> dict:
    """What the compiler and `step_time` say of a strategy."""
    import jax

    import spmd_helpers as spmd
    from tools.measure.truth import reference

    program = program_of(case, one)
    is_gpu = case.topology[0] in "ahb"
    make = spmd.gpu_mesh if is_gpu else spmd.tpu_mesh
    # The order of a plan's axes, of which the reference wants two always.
    sizes = one.step.mesh.items()
    sizes = {axis: n for axis, n in sizes if n > 1 or axis in reference.AXES}
    mesh = make(case.topology, **sizes)
    report = spmd.xray(*reference.train_step(program, mesh))
    step = spmd.step_time(report)
    sums: dict[tuple, list[int]] = {}
    for c in report.collectives:
        if c.count and c.count * c.wire_bytes > 1e6:
            pair = sums.setdefault((c.kind, c.axes), [0, 0])
            pair[0] += c.count
            pair[1] += c.count * c.wire_bytes
    moved = [[kind, list(axes), *pair] for (kind, axes), pair in sums.items()]
    return {
        "devices": mesh.size,
        "device": mesh.devices.flat[0].device_kind,
        "peak_bytes": report.peak_memory,
        "total_s": step.total_s,
        "compute_s": step.compute_s,
        "kernels_s": step.lanes.get("kernels"),
        "exposed_s": step.exposed_s,
        "slowed_s": step.slowed_s,
        "exposed": _by_exchange(step),
        "collectives": moved,
        "jax": jax.__version__,
        "date": runner.today(),
    }


def _by_exchange(step) -> dict:
    """Kind of collective → its seconds, and of these what the kernels wait."""
    sums: dict[str, list[float]] = {}
    for part in step.parts:
        if part.lane != "kernels":
            pair = sums.setdefault(part.kind, [0.0, 0.0])
            pair[0] += part.seconds
            pair[1] += part.exposed_s
    return sums


def ticks(one: Strategy) -> float:
    """Ticks of one jitted program's pipeline for each microbatch and chunk; else 1."""
    stages = one.step.mesh["stage"]
    if stages == 1:
        return 1.0
    work = one.microbatches * one.chunks
    return 2 * (work + stages - 1) / work


def in_lockstep(one: Strategy, rates: Rates) -> float:
    """The seconds of a strategy as `step_time` has to count those of a pipeline.

    All stages of one jitted program take each tick together, and `step_time` takes each
    as long as the longest it can be: a backward pass of a chunk, with the head.
    """
    stages, seconds = one.step.mesh["stage"], one.seconds
    if stages == 1:
        return one.total_s
    passes = seconds.bubble_s * one.microbatches * one.chunks / (stages - 1)
    of = {"forward": 0.0, "backward": 0.0, "update": 0.0}
    for each in one.exchanges:
        of[each.when] += each.exposed_s
    memory = passes - seconds.compute_s - of["forward"] - of["backward"]
    head = stages * products(one.step, rates)[2]
    layers = seconds.compute_s - seconds.recompute_s - head
    backward = 2 / 3 * layers + seconds.recompute_s + 3 / 4 * memory
    backward += one.chunks * head
    waiting = sum(
        _times(one, each) * each.exposed_s
        for each in one.exchanges
        if each.when == "backward"
    )
    update = one.total_s - passes - seconds.bubble_s
    return ticks(one) * backward + waiting + update


def _times(one: Strategy, each: Exchange) -> float:
    """How often all ticks of a pipeline have an exchange that the passes have once."""
    if each.when == "update":
        return 1.0
    is_end = each.what in ("head", "embedding")  # of every chunk, not of one
    return ticks(one) * (one.chunks if is_end else 1)


@dataclass(frozen=True)
class Compared:
    """A stored row beside what a plan says today.

    Attributes:
        row: what the compiler and `step_time` said.
        one: the strategy.
    """

    row: dict
    one: Strategy

    @property
    def memory_off(self) -> float:
        """By which part the planned memory is too large."""
        return self.one.memory_bytes / self.row["peak_bytes"] - 1

    @property
    def planned_s(self) -> float:
        """The planned seconds, of pipelines in lockstep."""
        name = CASES[self.row["plan"]].topology.partition(":")[0]
        return in_lockstep(self.one, rates_of(HARDWARE[name]))

    @property
    def seconds_off(self) -> float:
        """By which part the planned seconds are too long."""
        return self.planned_s / self.row["total_s"] - 1

    @property
    def exchanged(self) -> dict[str, tuple[float, float]]:
        """Axes of the mesh → bytes that a device sends: planned, compiled.

        All exchanges over one axis or more of those that shard the batch are together,
        and all over `model`: a reduce-scatter over two axes is two to another compiler.
        """
        sums = {"model": [0.0, 0.0], "others": [0.0, 0.0]}
        for each in self.one.exchanges:
            size = prod(self.row["mesh"].get(axis, 1) for axis in each.axes)
            sent = each.count * each.nbytes * float(SHARE[each.kind](size))
            sent *= _times(self.one, each)
            sums["model" if each.axes == ("model",) else "others"][0] += sent
        for _, axes, _, sent in self.row["collectives"]:
            sums["model" if axes == ["model"] else "others"][1] += sent
        return {name: (pair[0], pair[1]) for name, pair in sums.items()}


def compared(rows: list[dict]) -> list[Compared]:
    """Each row beside the strategy of the plan, as it is computed now."""
    plans = {name: CASES[name].plan() for name in {row["plan"] for row in rows}}
    by_name = {
        key_of(name, one): one
        for name, plan in plans.items()
        for one in plan.strategies
    }
    return [Compared(row, by_name[row["name"]]) for row in rows]


def main():
    if len(sys.argv) == 5 and sys.argv[1] == "--one":
        case = CASES[sys.argv[2]]
        (one,) = (s for s in case.plan().strategies if str(s) == sys.argv[3])
        Path(sys.argv[4]).write_text(json.dumps(compiled(case, one)), "utf8")
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--jobs", type=int, default=1, help="compiled at once")
    parser.add_argument("--out", type=Path, default=STORED)
    parser.add_argument("names", nargs="*")
    given = parser.parse_args()
    known = {row["name"] for row in runner.stored(given.out)}
    wanted = [
        (name, one)
        for name in given.names or CASES
        for one in chosen(CASES[name].plan(), PIPELINES.get(name, ()))
        if given.again or key_of(name, one) not in known
    ]
    with ThreadPoolExecutor(given.jobs) as pool:
        for row, words in pool.map(lambda pair: _row(*pair), wanted):
            print(words, flush=True)
            if row is not None:
                _store(given.out, row)


def _row(name: str, one: Strategy) -> tuple[dict | None, str]:
    """The row of a strategy, measured in a process of its own, and a line on it."""
    key = key_of(name, one)
    measured, ended = runner.run_child(
        *("planned", "--one", name, str(one)), settings=SETTINGS, quiet=True
    )
    if measured is None:
        return None, f"{key}: {ended}"
    row = {
        "name": key,
        "plan": name,
        "mesh": dict(one.step.mesh),
        "zero": one.zero,
        "recompute": one.recompute,
        "attention": one.attention,
        **measured,
        "kept_out": name not in CHOSEN_WITH and key not in CHOSEN_WITH,
        "command": f"python -m tools.measure.planned {name!r}",
    }
    words = (
        f"{key}: {measured['total_s']:.4f} s, planned {one.total_s:.4f}; "
        f"{measured['peak_bytes'] / 2**30:.2f} GiB, planned "
        f"{one.memory_bytes / 2**30:.2f}"
    )
    return row, words


def _store(path: Path, row: dict) -> None:
    """Stores a row, which is kept out only if one of its name was until now."""
    rows = {one["name"]: one for one in runner.stored(path)}
    kept_out = rows.get(row["name"], row)["kept_out"] and row["kept_out"]
    rows[row["name"]] = row | {"kept_out": kept_out}
    order = list(CASES)
    ordered = sorted(rows.values(), key=lambda one: order.index(one["plan"]))
    runner.write(path, ordered, aside=False)


if __name__ == "__main__":
    main()
