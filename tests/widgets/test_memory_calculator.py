"""The memory calculator of the page against `training_memory`, state by state."""

import ast
import contextlib
import dataclasses
import io
import json
import random
import re
import subprocess
import sys
from functools import partial

import pytest

import spmd_helpers as spmd
from spmd_helpers._core.words import bytes_words
from spmd_helpers._hardware.chips import HARDWARE
from spmd_helpers._training.model import Transformer
from spmd_helpers._training.models import FAMILIES, MODELS
from spmd_helpers._training.recompute import RECOMPUTE
from spmd_helpers._training.setup import OPTIMIZERS
from spmd_helpers._widgets import data
from spmd_helpers._widgets import source as widgets_source
from tests.training.memory_oracle import DEFAULTS, SIZES, counted, expected
from tests.training.memory_states import BAD, cases

from .widget_harness import answers, changed, is_clean, is_noticed

pytestmark = pytest.mark.long("widgets in a browser, each in hundreds of states")

NAME = "memory_calculator"
CASES = 6000
PARTS = {"parameters", "optimizer", "gradients", "kept", "work", "batch"}


def differences(browser, given, change=None):
    """The states of which browser and package do not say the same."""
    states = [state for state, _ in given]
    differing = []
    for (state, want), got in zip(
        given, answers(browser, NAME, states, change), strict=True
    ):
        assert is_clean(got), got
        assert {line.pop("part") for line in got.get("lines", [])} <= PARTS
        shown = {key: got.get(key) for key in want}
        if shown != want or ("error" in got) != ("error" in want):
            differing.append((state, shown, want))
    return differing


def test_it_says_what_the_package_says(browser):
    given = cases(1, CASES)
    assert len(given) > 5000
    wants = [want for _, want in given]
    refused = sum("error" in want for want in wants)
    assert 0.15 < refused / len(given) < 0.4
    assert sum(want.get("fits", False) for want in wants) > 1500
    assert sum(bool(want.get("changes")) for want in wants) > 200
    assert len({re.sub(r"\d+|'.*?'", "", w.get("error", "")) for w in wants}) > 25
    assert differences(browser, given) == []


MUTANTS = {
    "not rounded up": ("formulaCounted", "up ? $bottom - 1n : 0n", "0n"),
    "gradients cut by ZeRO-1": (
        "stateLines",
        "$made.gradBytes, 2",
        "$made.gradBytes, 1",
    ),
    "a norm keeps one more": ("keptNorm", "3n", "4n"),
    "no grouped queries": ("transformerWeights", "$model.kv_heads", "$model.heads"),
    "the last of equal phases": (
        "trainingMemory",
        "> $phases[$peak]",
        ">= $phases[$peak]",
    ),
    "steps are not counted": ("stateOptimizer", "if (more &&", "if (!more &&"),
    "any batch divides": ("setupBatch", "if ($batch % $each)", "if (false)"),
    "no learned positions": ("setupBatch", "> $model.seq", ">= $model.seq"),
    "converted for longer": ("workConversion", '["forward"]', "keptPhases"),
    "the vocabulary is not padded": (
        "trainingSetup",
        "($model.vocab + $made.split - 1n)",
        "$model.vocab",
    ),
    "the whole chip": (
        "readMemoryChip",
        "Math.floor(Number($margin) * $usable)",
        "$usable",
    ),
    "a batch smaller by one more": (
        "changedBatch",
        "[$low, $found] = [$middle, $less]",
        "$low = $middle",
    ),
    "a first moment like the second": (
        "stateOptimizer",
        "$made.muBytes",
        "$made.momentBytes",
    ),
    "no stage of ZeRO tried": ("changedZero", "$stage > $how.zero", "$stage > 9n"),
    "a gate has no matrix": ("transformerMlp", "3n", "2n"),
    "fsdp shards no state": ("shards", "$fsdp * (", "1n * ("),
    "each device has all tokens": (
        "trainingSetup",
        "($batch * $seq) / $axes.context",
        "$batch * $seq",
    ),
    "a pipeline keeps one microbatch": ("chunksKept", "2n : 1n", "2n : 0n"),
    "an expert has less room": ("trainingSetup", "Math.ceil", "Math.floor"),
    "expert shards no experts": (
        "stateWithExperts",
        'over("expert", $expert)',
        "''",
    ),
    "a name is not saved": (
        "setupResults",
        "[those($how.names_which_can_be_saved)",
        "[[]",
    ),
    "a ring has all keys": ("trainingSetup", '=== "ring" ? 1n', '=== "ring" ? 2n'),
    "one part of the batch": ("trainingBatch", "$parts * $made.batch", "$made.batch"),
    "any number of chunks": ("setupStages", "$parts % $stage", "false"),
    "no sinks in the state": ("stateUnsharded", "$model.sinks", "false"),
    "adapters of rank 1": ("stateAdapters", "$rows, $made.lora.rank", "$rows, 1n"),
    "a frozen base in float32": ("setupLora", "?? $how.compute_dtype", "?? 'float32'"),
    "what is moved is free": ("gpuMoved", "if (!$made.onHost)", "if (true)"),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_broken_module_is_noticed(browser, mutant):
    # Of so many states the rarest mutant is seen in six: one that changes is no matter.
    differ = partial(differences, browser, change=MUTANTS[mutant])
    assert is_noticed(differ, cases(2, 1200))


def test_every_key_takes_bad_input(browser):
    """Each odd text for each key, the rest as it begins: a sentence, or sense."""
    states = [{key: text} for key in DEFAULTS for text in BAD]
    states += [{"model": "custom", **state} for state in states if "model" not in state]
    wants = [expected(DEFAULTS | state, with_changes=False) for state in states]
    assert differences(browser, list(zip(states, wants, strict=True))) == []
    for want in wants:
        assert "error" not in want or want["error"].endswith((".", "?"))


def test_the_code_counts_the_same(browser):
    given = [case for case in cases(1, CASES) if "error" not in case[1]][::12]
    for (state, want), answer in zip(
        given, answers(browser, NAME, [state for state, _ in given]), strict=True
    ):
        names: dict = {}
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            exec(answer["code"], names)
        _, _, memory, _ = counted(DEFAULTS | state)
        assert names["found"] == memory
        assert names["found"].phases == memory.phases
        last = said.getvalue().splitlines()[-1]
        assert ast.literal_eval(last) == want["fits"]
        assert max(map(len, answer["code"].splitlines())) <= 72


GPT3 = {"model": "gpt3-175b", "data": "8", "batch": "8", "zero": "0"}
MEGATRON = {
    **{"model": "gpt3-175b", "chip": "a100-80gb", "data": "8", "model_axis": "8"},
    **{"batch": "64", "zero": "1", "param_dtype": "bfloat16", "grad_dtype": "float32"},
    **{"master_weights": "yes", "recompute": "selective", "sequence_parallel": "yes"},
    "counting": "megatron",
}


def test_several_changes_where_no_single_one_does(browser):
    none, megatron = answers(browser, NAME, [GPT3, MEGATRON])
    first = none["changes"][0]
    assert first["set"] == {"data": "128", "batch": "128", "zero": "3"}
    assert first["words"].startswith(
        "data=128 × model=1, batch=128, zero=3 (128 devices, not 8): 2.55 TiB → "
    )
    assert f"One way to make it fit: {first['words']}." in none["sentence"]
    # A chip that is large enough is offered too: which, `expected` counts for all.
    others = [one for one in megatron["changes"] if "chip" not in one["set"]]
    assert megatron["changes"] == expected(DEFAULTS | MEGATRON)["changes"]
    assert [one["set"] for one in others] == [
        {"zero": "3", "recompute": "nothing_saveable"},
        {"model_axis": "64"},
    ]
    assert "(512 devices, not 64)" in others[1]["words"]


def test_where_the_count_was_short_by_more_than_is_free(browser):
    """Just below what may be filled, and far below it."""
    tight = {"model": "gpt3-xl", "chip": "a100-80gb", "data": "1", "attention": "plain"}
    states = [{**tight, "batch": f"{n}"} for n in range(1, 60)]
    states += [{**state, "margin": "1"} for state in states]
    near = data.measured()["near"]["gpu"]
    words = f"On GPUs it was up to {near['short']} % short"
    outcomes = set()
    for answer in answers(browser, NAME, states):
        if not answer["fits"]:
            continue
        real = int(answer["total_bytes"]) / (1 - near["short"] / 100)
        short = real > int(answer["usable_bytes"])
        outcomes.add(short)
        assert short == (words in answer["sentence"])
        assert short == answer["verdict"].startswith("Fits by this count, ")
    assert outcomes == {True, False}
    assert near["why"] == "attention written out"


def test_an_mlp_begins_with_an_answer(browser):
    (answer,) = answers(browser, NAME, [{"model": "mlp"}])
    assert "d_ff=16384" in answer["code"]


# States that together have every control.
SHOWING = [
    *({"model": model} for model in ("custom", "mlp", "gpt3-xl", "mixtral-8x7b")),
    {"stage": "2"}, {"recompute": "save_and_offload_only_these_names"},
    {"lora_rank": "8"},
]  # fmt: skip


def test_every_argument_is_named_where_it_is_set(browser):
    """An error names an argument of Python: so does the label of its control."""
    page = browser.new_page()
    script = widgets_source.joined(NAME)
    labels = page.evaluate(
        f"""() => {{ {script};
        return {json.dumps(SHOWING)}.flatMap((state) =>
          memoryCalculator.controls({{...memoryDefaults, ...state}}).map(
            ({{key, label}}) => [key, label])); }}"""
    )
    page.close()
    assert {key for key, _ in labels} == set(DEFAULTS)
    for key, label in labels:
        assert key.removesuffix("_axis") in label.lower(), (key, label)


# The shapes of a model, apart from what a training step takes.

COUNTED = """(given) => {
  const [script, models] = given;
  const twin = new Function(`${script}; return {
    makeTransformer, parameterParts, parameterCount, activeParameters, moeLayers,
    globalLayers, cacheBytes, forwardFlops };`)();
  const whole = (value) => (typeof value === "number" ? BigInt(value) : value);
  return models.map(([fields, seq]) => {
    const typed = {};
    for (const [key, value] of Object.entries(fields)) typed[key] = whole(value);
    try {
      const made = twin.makeTransformer(typed);
      const text = made.patch_size === null;
      const texts = (object) => Object.fromEntries(
        Object.entries(object).map(([key, value]) => [key, `${value}`]));
      return {
        parts: texts(twin.parameterParts(made)),
        parameters: `${twin.parameterCount(made)}`,
        active: `${twin.activeParameters(made)}`,
        layers: [`${twin.moeLayers(made)}`, `${twin.globalLayers(made)}`],
        flops: `${twin.forwardFlops(made, BigInt(text ? seq : made.seq))}`,
        cache: text ? `${twin.cacheBytes(made, BigInt(seq), 2n)}` : "",
        sizes: [`${made.head_dim}`, `${made.kv_heads}`, `${made.expert_d_ff}`],
      };
    } catch (error) {
      return { error: error.message };
    }
  });
}"""


def random_model(rng):
    """Fields of a Transformer, a third of them wrong somewhere."""
    layers, heads = rng.randint(1, 9), rng.choice([1, 2, 3, 4, 6, 8])
    fields = {"layers": layers, "d_model": heads * rng.randint(1, 9), "heads": heads}
    switches = ("gated", "tied", "biases", "qkv_biases", "qk_norm", "post_norms")
    fields |= {key: rng.random() < 0.4 for key in (*switches, "sinks")}
    fields |= {
        "positions": rng.choice(["learned", "rotary", "none"]),
        "norm": rng.choice(["layer", "rms"]),
        "seq": rng.randint(2, 50),
    }
    if rng.random() < 0.5:
        fields["d_ff"] = rng.randint(1, 40)
        fields["kv_heads"] = rng.choice([1, heads, rng.randint(1, heads)])
        fields["head_dim"] = rng.randint(1, 12)
    if rng.random() < 0.4:
        fields["window"] = rng.randint(1, 60)
        fields["global_every"] = rng.choice([None, 2, 3, 6])
    if rng.random() < 0.5:
        fields |= {
            "experts": rng.randint(2, 9),
            "experts_per_token": rng.randint(1, 4),
            "shared_experts": rng.randint(0, 2),
            "expert_d_ff": rng.choice([None, 5, 11]),
            "dense_layers": rng.choice([0, 0, 0, 1, 2]),
            "moe_every": rng.choice([1, 1, 1, 2]),
            "router_biases": rng.random() < 0.3,
        }
    if rng.random() < 0.35:
        fields |= {
            **{"kv_lora_rank": rng.randint(1, 9), "v_head_dim": rng.randint(1, 9)},
            "qk_nope_head_dim": rng.randint(1, 9),
            "qk_rope_head_dim": rng.choice([1, 2, 4, 4, 4, None]),
            "q_lora_rank": rng.choice([None, 7]),
        }
        for key in ("biases", "qkv_biases", "qk_norm", "sinks"):
            fields[key] = rng.random() < 0.05
        for key in ("kv_heads", "head_dim"):
            if rng.random() < 0.9:
                fields[key] = None
    if rng.random() < 0.2:
        fields["patch_size"] = rng.randint(1, 4)
        fields["tied"] = rng.random() < 0.2
    if rng.random() < 0.15:
        values = (0, -1, 1, 2, 3, 70, 10**12, "7", "learnd", True, False)
        sizes = [key for key in sorted(fields) if key in SIZES]
        fields[rng.choice(sizes)] = rng.choice(values)
    return {key: value for key, value in fields.items() if value is not None}


def shapes_of(fields, seq):
    """What the package says of a model, as the page's twin writes it."""
    try:
        model = Transformer(**fields)
    except spmd.NotUnderstood as error:
        return {"error": str(error)}
    text = model.patch_size is None
    seq = seq if text else model.seq
    open_ended = dataclasses.replace(model, positions="none")
    return {
        "parts": {key: str(value) for key, value in model.parts.items()},
        "parameters": str(model.parameters),
        "active": str(model.active_parameters),
        "layers": [str(model.moe_layers), str(model.global_layers)],
        "flops": str(
            model.forward_flops(1, seq)
            if not text
            else open_ended.forward_flops(1, seq)
        ),
        "cache": str(open_ended.kv_cache_bytes(1, seq)) if text else "",
        "sizes": [
            str(model.head_dim),
            str(model.kv_heads),
            str(model.expert_d_ff).replace("None", "null"),
        ],
    }


def shapes_apart(browser, given, change=None):
    """The models of which the page's twin and the package do not say the same."""
    script = widgets_source.joined(NAME)
    if change:
        script = changed(script, *change)
    page = browser.new_page()
    got = page.evaluate(COUNTED, [script, given])
    page.close()
    wants = [shapes_of(*one) for one in given]
    return [
        (one, want, answer)
        for one, want, answer in zip(given, wants, got, strict=True)
        if want != answer
    ]


def random_models(count):
    rngs = (random.Random(f"model {number}") for number in range(count))
    return [[random_model(rng), rng.randint(1, 80)] for rng in rngs]


def test_the_page_counts_models_as_the_package_does(browser):
    given = random_models(5000)
    wants = [shapes_of(*one) for one in given]
    errors = [want["error"] for want in wants if "error" in want]
    assert 0.2 < len(errors) / len(given) < 0.6
    assert len({re.sub(r"=\S+|\d+", "", error) for error in errors}) > 30
    assert sum(want.get("parameters") != want.get("active") for want in wants) > 500
    given += [[dataclasses.asdict(model), 33] for model in MODELS.values()]
    given = [
        [{k: v for k, v in one.items() if v is not None}, seq] for one, seq in given
    ]
    assert shapes_apart(browser, given) == []


SHAPE_MUTANTS = {
    "all experts are used": (
        "activeParameters",
        "- $model.experts_per_token",
        "- $model.experts",
    ),
    "no shared experts": ("parameterParts", "+ $model.shared_experts", "+ 0n"),
    "experts in the first layers": ("moeLayers", "- $model.dense_layers", "- 0n"),
    "every layer is global": ("globalLayers", "? 0n :", "? 1n :"),
    "a cache of all heads": ("cacheBytes", "$model.kv_heads", "$model.heads"),
    "no window": ("transformerReaches", "$seq < $model.window", "true"),
    "values as wide as keys": ("transformerValues", "$model.v_head_dim ??", ""),
    "two norms a layer": ("transformerNorms", "4n", "2n"),
    "no sinks": ("transformerAttention", "$model.sinks", "false"),
    "no class token": ("transformerEmbedding", "+ 2n", "+ 1n"),
    "any number of experts": (
        "transformerExperts",
        "1n, $model.experts)",
        "1n)",
    ),
    "every layer may be global": ("transformerWindow", "2n,", "1n,"),
}


@pytest.mark.parametrize("mutant", SHAPE_MUTANTS)
def test_a_twin_that_counts_wrongly_is_noticed(browser, mutant):
    differ = partial(shapes_apart, browser, change=SHAPE_MUTANTS[mutant])
    assert is_noticed(differ, random_models(800))


# The data that the page has.


def test_models_and_chips_come_from_python():
    lines = data.data_script().splitlines()
    values = {}
    for line in lines:
        name, value = re.fullmatch(r"const (\w+) = (.*);", line).groups()
        values[name] = json.loads(value)
    switches = dict.fromkeys(values["spmdChoices"]["transformerSwitches"], False)
    presets = {
        name: Transformer(**switches | each, name=name)
        for name, each in values["spmdModels"].items()
    }
    assert presets == dict(MODELS)
    sources = values["spmdSources"]
    assert [sources[name] for name in MODELS] == [[m.source] for m in MODELS.values()]
    for name, each in values["spmdHardware"].items():
        assert sources[name] == [HARDWARE[name].source, HARDWARE[name].date]
        for key, value in each.items():
            assert getattr(HARDWARE[name], key) == value
    assert set(values["spmdHardware"]) == set(HARDWARE)
    names = ["Choices", "Models", "Families", "Hardware", "Sources", "Measured", "Plan"]
    assert list(values) == [f"spmd{name}" for name in names]
    listed = list(values["spmdModels"])
    for family, names in FAMILIES.items():
        assert listed[: values["spmdFamilies"][family]] == list(names)
        del listed[: len(names)]
    assert not listed
    assert values["spmdChoices"]["recompute"] == [*RECOMPUTE]
    optimizers = values["spmdChoices"]["optimizer"].items()
    assert {name: tuple(counts) for name, counts in optimizers} == OPTIMIZERS


def test_the_data_need_no_jax():
    code = "import sys, spmd_helpers._widgets.data; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_arguments_become_a_state():
    for state, want in cases(3, 400):
        if "error" in want:
            continue
        model, how, memory, _ = counted(DEFAULTS | state)
        chip, margin = (DEFAULTS | state)["chip"], (DEFAULTS | state)["margin"]
        del how["chip"]  # it is the state's
        again = data.memory_state(model, chip=chip, margin=margin, **how)
        assert set(again) <= set(DEFAULTS)
        assert counted(DEFAULTS | again)[2] == memory
        assert expected(DEFAULTS | again, with_changes=False) == {
            key: value
            for key, value in want.items()
            if key not in ("changes", "sentence")
        }


def test_what_was_measured(browser):
    page = browser.new_page()
    script = widgets_source.joined(NAME)
    got = page.evaluate(f"() => {{ {script}; return memoryCompared(); }}")
    near = page.evaluate(f"() => {{ {script}; return memoryNear(); }}")
    page.close()
    stored = [
        row
        for kind in ("tpu-memory", "tpu-refused", "gpu-memory")
        for row in spmd.load_measured(kind)
    ]
    assert len(got) >= 6
    for one in got:
        (row,) = [
            r
            for r in stored
            if r["name"] == one["name"] and one["by"] == f"jax {r['jax']}, {r['date']}"
        ]
        size = row["needed_bytes" if one["verdict"] == "rejected" else "peak_bytes"]
        assert (one["verdict"] == "rejected") == bool(row.get("refused"))
        _, _, memory, left = counted(DEFAULTS | one["set"] | {"margin": "1"})
        assert (left >= 0) == (one["verdict"] == "accepted")
        assert one["bytes"] == str(memory.total_bytes)
        assert one["measured"] == bytes_words(size)
        assert one["where"] == f"{row['devices']} × {row['device']}"
        off = f"{memory.total_bytes / size - 1:+.0%}".replace("-", "−")
        assert one["off"] == off.replace("%", " %")
    assert re.findall(r"\d+ of \d+ .*? \((.*?)\)", near)
