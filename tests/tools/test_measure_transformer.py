"""What measures the transformer: one row rehearsed, the rest with rows made up."""

import argparse
import dataclasses
import functools
import json
from pathlib import Path

import pytest

from tests.tools.test_measure_gpu import run as rehearse
from tools.measure import plans
from tools.measure import transformer as tool
from tools.measure.model import STRATEGIES, Setting
from tools.measure.page import hardware_page
from tools.measure.page_log import FINER, changes, log_section, same_tokens, signs
from tools.measure.page_transformer import (
    attention_section,
    speeds_section,
    ways_section,
)
from tools.measure.predict import predict_again, predictions, sheet_of, zipped
from tools.measure.runner import BOOKS

pytestmark = [
    pytest.mark.long("rehearsals on CPU devices of what measures cards"),
    pytest.mark.once,
]

ROOT = Path(__file__).parents[2]
FIXTURES = ROOT / "tests" / "data" / "hlo"

SPEEDS = {
    **{"bf16_flops_per_s": 5e14, "f32_flops_per_s": 2e14, "memory_bytes_per_s": 2e12},
    "collectives": {"all-gather": {"start_s": 0.0, "bytes_per_s": 1e11}},
}
HERE = {"device": "a card", "devices": 2, "jax": "0.0", "driver": "1", "date": "today"}


run = functools.partial(rehearse, tool="transformer")


@pytest.fixture(scope="module")
def rehearsed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("measured")
    options = ("--only", "ways", "--rows", "fsdp constrained")
    done = run("--tiny", *options, "--out", folder, "--hlo", folder / "hlo.zip")
    assert done.returncode == 0, done.stderr
    return folder, json.loads((folder / "transformer_gpu.json").read_text("utf8"))


def test_a_rehearsed_row_says_what_it_is_and_where_it_comes_from(rehearsed):
    _, (row,) = rehearsed
    assert (row["name"], row["devices"], row["device"]) == (
        "fsdp constrained",
        2,
        "cpu",
    )
    assert row["command"] == "tools/measure/transformer.py --tiny"
    assert row["date"]
    assert "machine" in row
    assert row["jax"]
    assert Setting(**row["setting"]) == plans.ways(tiny=True)["fsdp constrained"]


def test_a_rehearsed_row_has_its_predictions_and_its_time(rehearsed):
    _, (row,) = rehearsed
    assert set(row["predicted"]) == {"sheet", "speeds"}
    assert all(sum(parts.values()) > 0 for parts in row["predicted"].values())
    assert row["least_s"] <= row["median_s"] <= row["most_s"]
    assert {c["kind"] for c in row["collectives"]} == {"all-gather", "all-reduce"}


def test_no_strategy_and_no_recompute_of_cheap_parts_multiplies_more(rehearsed):
    # 6.1 FLOPs: the products of the model, cut in two, and nothing twice.
    _, (row,) = rehearsed
    assert row["flops_per_device"] * 2 == row["model_flops"]
    assert row["first_loss"] == pytest.approx(4.16, abs=0.1)  # ln 64


def test_the_compiled_text_is_kept(rehearsed):
    texts = zipped(rehearsed[0] / "hlo.zip")
    assert list(texts) == ["ways/fsdp constrained"]
    assert texts["ways/fsdp constrained"].startswith("HloModule jit_step")


def test_a_row_that_is_not_there_is_told():
    done = run("--only", "log", "--rows", "startt")
    assert "--rows: there is no startt in log" in done.stderr
    done = run("--only", "logs")
    assert "--only logs: give some of attention, ways, log" in done.stderr
    done = run("--predict", "texts.zip", "--out", "nowhere")
    assert "nowhere has no speeds_gpu.json: which rows?" in done.stderr


def test_one_device_has_attention_and_no_strategies(tmp_path):
    options = ("--only", "attention,ways", "--rows", "plain")
    done = run("--tiny", *options, "--out", tmp_path, devices=1)
    assert done.returncode == 0, done.stderr
    assert "ways: 1 device, it needs two: left out" in done.stdout
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"speeds_gpu.json", "attention_gpu.json"}
    page = hardware_page(tmp_path)
    assert "## Attention" in page
    assert "| exchange |" not in page


def test_predictions_are_made_again_from_what_is_stored(rehearsed, tmp_path):
    folder, (row,) = rehearsed
    (speeds,) = json.loads((folder / "speeds_gpu.json").read_text("utf8"))
    card = "NVIDIA H200"
    twice = {**speeds, "device": card, "memory_bytes_per_s": 1.0}
    (tmp_path / "speeds_gpu.json").write_text(json.dumps([twice]), "utf8")
    rows = [{**row, "device": card}, {"name": "broke", "error": "so", "device": card}]
    (tmp_path / "transformer_gpu.json").write_text(json.dumps(rows), "utf8")
    said = predict_again(tmp_path, [folder / "hlo.zip"], tool.FILES)
    assert said == ["fsdp constrained: sheet, speeds"]
    again, broke = json.loads((tmp_path / "transformer_gpu.json").read_text("utf8"))
    assert broke == rows[1]
    # One byte a second: what is held takes as many seconds.
    assert again["predicted"]["speeds"]["memory_s"] == row["held_bytes"]
    unchanged = {key for key in row if again[key] == row[key]}
    assert set(row) - unchanged == {"device", "predicted"}


def test_a_program_for_the_card_is_timed_by_its_text_and_the_measured_speeds():
    text = (FIXTURES / "dp_scan8_step.gpu_0.11.2.hlo").read_text("utf8")
    row = {"flops_per_device": 1, "held_bytes": 1, "collectives": []}
    row |= {"setting": {"compute": "bfloat16"}}
    sheet = sheet_of("NVIDIA H200")
    slower = SPEEDS | {"memory_bytes_per_s": 1e12, "bf16_flops_per_s": 1e14}
    fast, slow = (
        predictions(row, sheet, speeds, text)["step_time"]["kernels_s"]
        for speeds in (SPEEDS, slower)
    )
    # Nothing else takes time in this program but what was made slower, and starts.
    assert 3 < slow / fast < 5
    assert set(predictions(row, None, SPEEDS, text)) == {"speeds"}


# --- The log, with what the child would have said ---------------------------------


class RunWithoutChildren(tool.Run):
    """A run whose children don't run: `say_of` a setting gives what they write."""

    def __init__(self, folder, say_of, **more):
        given = {"out": folder, "rows": [], "again": False, "tiny": True, "minutes": 9}
        given |= {"hlo": None, **more}
        super().__init__(argparse.Namespace(**given))
        self.about, self.speeds, self.say_of = dict(HERE), SPEEDS, say_of
        self.requests = []

    def child(self, request, flags=""):
        self.requests.append(request)
        return self.say_of(request)


def took(milliseconds):
    return {
        **{"median_s": milliseconds / 1e3, "model_flops": 1e12},
        **{"peak_flops_per_s": 1e15, "allocator_peak_bytes": 2**30},
        **{"peak_bytes": 2**30, "collectives": [], "parameters": 10},
        "predicted": {"speeds": {"compute_s": 1e-3}},
    }


def step_of(request):
    """Faster with bfloat16; fused attention breaks; a batch of 4 doesn't fit."""
    setting = request["setting"]
    if setting["attention"] == "cudnn":
        return None, "stopped with -6: a kernel broke"
    if setting["batch"] > 4:
        return {"error": "JaxRuntimeError: RESOURCE_EXHAUSTED: Out of memory"}, ""
    return {**took(5 if setting["compute"] == "bfloat16" else 10)}, ""


@pytest.fixture
def first_run(tmp_path):
    run = RunWithoutChildren(tmp_path, step_of)
    run.log()
    return run


def rows_of(folder):
    rows = json.loads((folder / "log_gpu.json").read_text("utf8"))
    return {row["name"]: row for row in rows}


def test_a_change_starts_from_the_best_line_before_it(first_run):
    rows = rows_of(first_run.given.out)
    assert rows["start"]["kept"]
    assert rows["start"]["after"] is None
    assert rows["bfloat16 products"]["kept"]
    assert rows["bfloat16 products"]["after"] == "donate the state"
    # What broke is left out of what follows.
    assert not rows["fused attention"]["kept"]
    assert rows["fsdp plain"]["after"] == "bfloat16 products"
    # Meant for memory, so kept without being faster; another model never is.
    assert rows["fsdp constrained"]["kept"]
    assert not rows["heads of 64"]["kept"]
    assert rows["fsdp plain"]["setting"]["attention"] == "plain"
    # As fast as the best is not faster.
    assert not rows["fsdp plain"]["kept"]


def test_a_row_that_breaks_costs_no_other(first_run):
    rows = rows_of(first_run.given.out)
    assert "a kernel broke" in rows["fused attention"]["error"]
    assert "RESOURCE_EXHAUSTED" in rows["batch 32"]["error"]
    assert {"device", "driver", "jax", "date", "command"} <= set(rows["batch 32"])
    assert "median_s" in rows["sequences of 4096"]


def test_a_second_call_measures_only_what_is_missing(first_run):
    again = RunWithoutChildren(first_run.given.out, step_of)
    again.log()
    # What didn't fit won't fit; what broke is tried again.
    tried = {request["setting"]["attention"] for request in again.requests}
    assert tried == {"cudnn"}
    assert len(again.requests) == 1


def test_rows_of_another_card_are_not_gone_on_with(first_run):
    other = RunWithoutChildren(first_run.given.out, step_of)
    other.about["device"] = "another card"
    other.log()
    assert len(other.requests) == len(first_run.requests)
    assert {r["device"] for r in rows_of(first_run.given.out).values()} == {
        "another card"
    }
    aside = json.loads((first_run.given.out / "log_gpu.1.json").read_text("utf8"))
    assert {row["device"] for row in aside} == {"a card"}


def test_no_row_is_begun_without_time(tmp_path):
    run = RunWithoutChildren(tmp_path, step_of, tiny=False, minutes=0.5)
    run.log()
    assert not run.requests
    assert not list(tmp_path.iterdir())


def test_fused_attention_is_tried_once_more_under_shard_map(tmp_path):
    def only_mapped(request):
        if request["setting"]["attention"] == "cudnn":
            return {"error": "ValueError: no rule for this"}, ""
        return took(5), ""

    run = RunWithoutChildren(tmp_path, only_mapped, rows=["replicated"])
    run.ways()
    (row,) = json.loads((tmp_path / "transformer_gpu.json").read_text("utf8"))
    assert row["setting"]["attention"] == "cudnn mapped"
    assert row["at_first"] == "ValueError: no rule for this"
    assert "error" not in row


# --- The plans --------------------------------------------------------------------


def test_every_line_of_the_log_changes_what_a_setting_has():
    fields = {field.name for field in dataclasses.fields(Setting)}
    names = [change.name for change in plans.LOG]
    assert len(set(names)) == len(names)
    for change in plans.LOG[1:]:
        assert change.change
        assert set(change.change) <= fields
        assert plans.changed(Setting(), change) != Setting()


def test_flags_are_added_to_those_that_were_kept():
    wanted = [c for c in plans.LOG if c.name == "combined collectives"]
    flags = plans.changed(Setting(flags=plans.OVERLAP), wanted[0]).flags.split()
    assert flags.count(plans.OVERLAP) == 1
    assert len(flags) == 4


def test_the_six_ways_differ_in_the_strategy_only():
    ways = plans.ways()
    assert tuple(ways) == STRATEGIES
    alike = {w.but(strategy="", attention="") for w in ways.values()}
    assert len(alike) == 1


# --- The page ---------------------------------------------------------------------


def lines_of(section, start="| "):
    return [line for line in section.splitlines() if line.startswith(start)]


def test_the_log_says_what_was_kept_and_what_did_not_run(first_run):
    section = log_section(list(rows_of(first_run.given.out).values()))
    assert "## Faster, one change at a time" in section
    # 1e12 FLOPs in 10 ms are a tenth of 1e15.
    assert lines_of(section, "| 0 start | ")[0].endswith(
        "| 10.0 |  |  | 10.0% | yes | 1.00 |"
    )
    assert "| memory |" in lines_of(section, "| 1 donate")[0]
    assert any(
        "heads of 64" in line and "| what if |" in line for line in lines_of(section)
    )
    assert any("| does not fit |" in line for line in lines_of(section))
    assert "| failed |" in lines_of(section, "| 3 fused attention")[0]


def line(name, after, seconds, expected, machine="a", batch=2, **more):
    return {
        **{"name": name, "after": after, "why": "so", "chapter": 1, "keep": "faster"},
        **{"kept": True, "median_s": seconds, "model_flops": 1e12 * batch},
        **{"peak_flops_per_s": 1e15, "parameters": 10, "peak_bytes": 2**30},
        "setting": dataclasses.asdict(Setting(batch=batch)),
        "predicted": {
            by: {"compute_s": s} for by, s in zip(FINER, expected, strict=True)
        },
        **HERE,
        **{"command": "tool", "machine": machine},
        **more,
    }


def test_a_prediction_is_right_if_it_has_the_direction():
    rows = [
        line("start", None, 4, (3, 3)),
        line("one", "start", 3, (2, 4)),
        line("two", "one", 5, (2, 5)),
        line("larger", "two", 9, (2, 5), batch=4),
    ]
    assert [new["name"] for new, _ in same_tokens(rows)] == ["one", "two"]
    assert changes(rows[1], rows[0]) == {"measured": -1, "speeds": -1, "step_time": 1}
    # "two": no change expected is not right.
    assert signs(rows) == {"speeds": 1, "step_time": 1}
    section = log_section(rows)
    assert "Of these 2 changes" in section
    assert "| 2 two | 2000.0 | 5000.0 | 5000.0 | 0 | +1000.0 | +2000.0 |" in section


def test_what_ran_elsewhere_is_said():
    rows = [
        line("start", None, 4, (3, 3), least_s=3.5, most_s=4.5),
        line("more", "start", 9, (3, 3), machine="b", batch=4),
    ]
    section = log_section(rows)
    assert "Line 1 ran on machine b, the others on machine a." in section
    assert "| 4000.0 | 3500.0 | 4500.0 |" in section
    assert "More has 0.89 times the share" in section
    assert "and the other did not run there" in section
    alone = log_section(rows[:1])
    assert "machine a" in alone
    assert "the others" not in alone


def test_sections_of_what_the_book_has():
    def stored(name):
        return json.loads((BOOKS / name).read_text("utf8"))

    ways = ways_section(stored("transformer_gpu.json"))
    assert "(called inside `shard_map` in FSDP explicit)" in ways
    assert "One number: the allocator's peak" in attention_section(
        stored("attention_gpu.json")
    )
    speeds = stored("speeds_gpu.json")
    assert "chosen by people who had seen the times" in speeds_section(speeds, True)
    assert "chosen by people" not in speeds_section(speeds, False)
    assert "TF32" in speeds_section(speeds, False)


def test_a_card_without_a_data_sheet_has_times_and_no_share(tmp_path):
    row = line("start", None, 4, (3, 3), peak_flops_per_s=None)
    assert "| 4000.0 |  |  |  | yes |" in log_section([row])
    (tmp_path / "log_gpu.json").write_text(json.dumps([row]), "utf8")
    page = hardware_page(tmp_path)
    assert page.startswith("# Measured here")
    assert "## Faster" in page
    assert "## Attention" not in page


def test_the_books_log_is_that_of_the_plan():
    rows = json.loads((BOOKS / tool.FILES["log"]).read_text("utf8"))
    planned = [(c.name, c.why, c.chapter, c.keep) for c in plans.LOG]
    keys = ("name", "why", "chapter", "keep")
    assert [tuple(row[key] for key in keys) for row in rows] == planned
    whats = [row["name"] for row in rows if row["why"].startswith("what if")]
    assert whats == [row["name"] for row in rows if row["keep"] == "never"]
