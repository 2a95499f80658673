"""The memory calculator of the page against `training_memory`, state by state."""

import ast
import contextlib
import io
import json
import re
import subprocess
import sys

import pytest

import spmd_helpers as spmd
from spmd_helpers._core.words import bytes_words
from spmd_helpers._hardware.chips import HARDWARE
from spmd_helpers._training.model import RECOMPUTE, Transformer
from spmd_helpers._training.models import MODELS
from spmd_helpers._training.setup import OPTIMIZERS
from spmd_helpers._widgets import data
from spmd_helpers._widgets import source as widgets_source
from tests.training.memory_oracle import DEFAULTS, counted, expected
from tests.training.memory_states import BAD, cases

from .widget_harness import answers, is_clean

pytestmark = pytest.mark.long("widgets in a browser, each in hundreds of states")

NAME = "memory_calculator"
CASES = 6000
PARTS = {"parameters", "optimizer", "gradients", "kept", "work", "batch"}


def differences(browser, given, change=None):
    """The states of which browser and package do not say the same."""
    states = [state for state, _ in given]
    found = []
    for (state, want), got in zip(
        given, answers(browser, NAME, states, change), strict=True
    ):
        assert is_clean(got), got
        assert {line.pop("part") for line in got.get("lines", [])} <= PARTS
        shown = {key: got.get(key) for key in want}
        if shown != want or ("error" in got) != ("error" in want):
            found.append((state, shown, want))
    return found


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
    "not rounded up": ("stateHeld", "+ $devices - 1n) / $devices", ") / $devices"),
    "gradients cut by ZeRO-1": ("stateLines", "$made.zero >= 2", "$made.zero >= 1"),
    "a norm keeps one more": ("keptNorm", "3n", "4n"),
    "no grouped queries": ("layerWeights", "$model.kv_heads", "$model.heads"),
    "the last of equal phases": (
        "trainingMemory",
        "> $phases[$peak]",
        ">= $phases[$peak]",
    ),
    "a step of 8 bytes": (
        "stateLines",
        "optimizer.bytes += 4n",
        "optimizer.bytes += 8n",
    ),
    "any batch divides": ("setupBatch", "if ($batch % $mesh.data)", "if (false)"),
    "no learned positions": ("setupBatch", "> $model.seq", ">= $model.seq"),
    "converted for longer": ("workConversion", '["forward"]', "keptPhases"),
    "the vocabulary is not padded": (
        "trainingSetup",
        "($model.vocab + $mesh.model - 1n)",
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
        "stateLines",
        "$made.muBytes",
        "$made.momentBytes",
    ),
    "no stage of ZeRO tried": ("changedZero", "$stage > $how.zero", "$stage > 9n"),
    "a gate has no matrix": ("transformerMlp", "3n", "2n"),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_broken_module_is_noticed(browser, mutant):
    # Of so many states the rarest mutant is seen in six: one that changes is no matter.
    assert differences(browser, cases(2, 1200), MUTANTS[mutant])


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
        _, _, found, _ = counted(DEFAULTS | state)
        assert names["found"] == found
        assert names["found"].phases == found.phases
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
    seen = set()
    for answer in answers(browser, NAME, states):
        if not answer["fits"]:
            continue
        real = int(answer["total_bytes"]) / (1 - near["short"] / 100)
        short = real > int(answer["usable_bytes"])
        seen.add(short)
        assert short == (words in answer["sentence"])
        assert short == answer["verdict"].startswith("Fits by this count, ")
    assert seen == {True, False}
    assert near["why"] == "attention written out"


def test_an_mlp_begins_with_an_answer(browser):
    (answer,) = answers(browser, NAME, [{"model": "mlp"}])
    assert "d_ff=16384" in answer["code"]


def test_every_argument_is_named_where_it_is_set(browser):
    """An error names an argument of Python: so does the label of its control."""
    page = browser.new_page()
    script = widgets_source.joined(NAME)
    labels = page.evaluate(
        f"""() => {{ {script};
        return ["custom", "mlp", "gpt3-xl"].flatMap((model) =>
          memoryCalculator.controls({{...memoryDefaults, model}}).map(
            ({{key, label}}) => [key, label])); }}"""
    )
    page.close()
    assert {key for key, _ in labels} == set(DEFAULTS)
    for key, label in labels:
        assert key.removesuffix("_axis") in label.lower(), (key, label)


# The data that the page has.


def test_models_and_chips_come_from_python():
    lines = data.data_script().splitlines()
    values = {}
    for line in lines:
        name, value = re.fullmatch(r"const (\w+) = (.*);", line).groups()
        values[name] = json.loads(value)
    made = {name: Transformer(**each) for name, each in values["spmdModels"].items()}
    assert made == dict(MODELS)
    assert [one.source for one in made.values()] == [m.source for m in MODELS.values()]
    for name, each in values["spmdHardware"].items():
        for key, value in each.items():
            assert getattr(HARDWARE[name], key) == value
    assert set(values["spmdHardware"]) == set(HARDWARE)
    names = ["spmdChoices", "spmdModels", "spmdHardware", "spmdMeasured"]
    assert list(values) == names
    assert values["spmdChoices"]["recompute"] == RECOMPUTE
    optimizers = values["spmdChoices"]["optimizer"].items()
    assert {name: tuple(counts) for name, counts in optimizers} == OPTIMIZERS


def test_the_data_need_no_jax():
    code = "import sys, spmd_helpers._widgets.data; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_arguments_become_a_state():
    for state, want in cases(3, 400):
        if "error" in want:
            continue
        model, how, found, _ = counted(DEFAULTS | state)
        chip, margin = (DEFAULTS | state)["chip"], (DEFAULTS | state)["margin"]
        del how["chip"]  # it is the state's
        again = data.memory_state(model, chip=chip, margin=margin, **how)
        assert set(again) <= set(DEFAULTS)
        assert counted(DEFAULTS | again)[2] == found
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
        size = row["needed_bytes" if one["verdict"] == "refused" else "peak_bytes"]
        assert (one["verdict"] == "refused") == bool(row.get("refused"))
        _, _, found, left = counted(DEFAULTS | one["set"] | {"margin": "1"})
        assert (left >= 0) == (one["verdict"] == "accepted")
        assert one["bytes"] == str(found.total_bytes)
        assert one["measured"] == bytes_words(size)
        assert one["where"] == f"{row['devices']} × {row['device']}"
        off = f"{found.total_bytes / size - 1:+.0%}".replace("-", "−")
        assert one["off"] == off.replace("%", " %")
    assert re.findall(r"\d+ of \d+ .*? \((.*?)\)", near)
