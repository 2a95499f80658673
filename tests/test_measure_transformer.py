"""What measures the transformer: one row rehearsed, the rest with rows made up."""

import argparse
import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import _gpu_plans as plans
import measure_transformer as tool
import pytest
from _gpu_model import LAYOUTS, Setting
from _gpu_predict import predict_again
from _hardware_transformer import transformer_sections
from _kernel_roofline import Card, roofline, zipped

TOOLS = Path(__file__).parent.parent / "tools"
FIXTURES = Path(__file__).parent / "data" / "hlo"

SPEEDS = {
    **{"bf16_flops_per_s": 5e14, "f32_flops_per_s": 2e14, "memory_bytes_per_s": 2e12},
    "collectives": {"all-gather": {"start_s": 0.0, "bytes_per_s": 1e11}},
}
HERE = {"device": "a card", "devices": 2, "jax": "0.0", "driver": "1", "date": "today"}


def run(*arguments, devices=2):
    flags = f"--xla_force_host_platform_device_count={devices}"
    environment = {
        **os.environ,
        **{"JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags, "NPROC": "32"},
    }
    command = [sys.executable, str(TOOLS / "measure_transformer.py")]
    command += list(map(str, arguments))
    return subprocess.run(command, env=environment, capture_output=True, text=True)


@pytest.fixture(scope="module")
def rehearsed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("measured")
    asked = ("--only", "ways", "--rows", "fsdp constrained")
    done = run("--tiny", *asked, "--out", folder, "--hlo", folder / "hlo.zip")
    assert done.returncode == 0, done.stderr
    return folder, json.loads((folder / "transformer_gpu.json").read_text("utf8"))


def test_a_rehearsed_row_says_what_it_is_and_where_it_comes_from(rehearsed):
    _, (row,) = rehearsed
    assert (row["name"], row["devices"], row["device"]) == (
        "fsdp constrained",
        2,
        "cpu",
    )
    assert row["command"] == "tools/measure_transformer.py --tiny"
    assert row["date"]
    assert row["jax"]
    assert Setting(**row["setting"]) == plans.ways(tiny=True)["fsdp constrained"]


def test_a_rehearsed_row_has_its_predictions_and_its_time(rehearsed):
    _, (row,) = rehearsed
    assert set(row["predicted"]) == {"sheet", "speeds", "kernels"}
    assert all(sum(parts.values()) > 0 for parts in row["predicted"].values())
    assert row["least_s"] <= row["median_s"] <= row["most_s"]
    assert {c["kind"] for c in row["collectives"]} == {"all-gather", "all-reduce"}


def test_no_layout_and_no_recompute_of_cheap_parts_multiplies_more(rehearsed):
    # 6.1 FLOPs: the products of the model, cut in two, and nothing twice.
    _, (row,) = rehearsed
    assert row["flops_per_device"] * 2 == row["model_flops"]
    assert row["first_loss"] == pytest.approx(4.16, abs=0.1)  # ln 64


def test_the_compiled_text_is_kept(rehearsed):
    texts = zipped(rehearsed[0] / "hlo.zip")
    assert list(texts) == ["ways/fsdp constrained"]
    assert texts["ways/fsdp constrained"].startswith("HloModule jit_step")


def test_without_a_gpu_it_says_so_and_writes_nothing(tmp_path):
    done = run("--out", tmp_path)
    assert done.returncode == 1
    assert "There is no GPU here that JAX sees, only cpu" in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_row_that_is_not_there_is_told():
    done = run("--only", "log", "--rows", "startt")
    assert "--rows: there is no startt in log" in done.stderr
    done = run("--only", "logs")
    assert "--only logs: give some of attention, ways, log" in done.stderr


def test_predictions_are_made_again_from_what_is_stored(rehearsed, tmp_path):
    folder, (row,) = rehearsed
    (speeds,) = json.loads((folder / "speeds_gpu.json").read_text("utf8"))
    card = "NVIDIA H200"
    twice = {**speeds, "device": card, "memory_bytes_per_s": 1.0}
    (tmp_path / "speeds_gpu.json").write_text(json.dumps([twice]), "utf8")
    rows = [{**row, "device": card}, {"name": "broke", "error": "so", "device": card}]
    (tmp_path / "transformer_gpu.json").write_text(json.dumps(rows), "utf8")
    said = predict_again(tmp_path, [folder / "hlo.zip"], tool.FILES)
    assert said == ["fsdp constrained: sheet, speeds, kernels"]
    again, broke = json.loads((tmp_path / "transformer_gpu.json").read_text("utf8"))
    assert broke == rows[1]
    # One byte a second: what is held takes as many seconds.
    assert again["predicted"]["speeds"]["memory_s"] == row["held_bytes"]
    assert again["predicted"]["kernels"]["kernels_s"] > row["held_bytes"]
    unchanged = {key for key in row if again[key] == row[key]}
    assert set(row) - unchanged == {"device", "predicted"}


# --- The log, with what the child would have said ---------------------------------


class Told(tool.Run):
    """A run whose children don't run: `say_of` a setting gives what they write."""

    def __init__(self, folder, say_of, **more):
        given = {"out": folder, "rows": [], "again": False, "tiny": True, "minutes": 9}
        given |= {"hlo": None, "profile": None, **more}
        super().__init__(argparse.Namespace(**given))
        self.about, self.speeds, self.say_of = dict(HERE), SPEEDS, say_of
        self.asked = []

    def child(self, asked, flags=""):
        self.asked.append(asked)
        return self.say_of(asked)


def took(milliseconds):
    return {
        **{"median_s": milliseconds / 1e3, "model_flops": 1e12},
        **{"peak_flops_per_s": 1e15, "allocator_peak_bytes": 2**30},
        **{"peak_bytes": 2**30, "collectives": [], "parameters": 10},
        "predicted": {"speeds": {"compute_s": 1e-3}},
    }


def step_of(asked):
    """Faster with bfloat16; fused attention breaks; a batch of 4 doesn't fit."""
    setting = asked["setting"]
    if setting["attention"] == "cudnn":
        return None, "stopped with -6: a kernel broke"
    if setting["batch"] > 4:
        return {"error": "JaxRuntimeError: RESOURCE_EXHAUSTED: Out of memory"}, ""
    return {**took(5 if setting["compute"] == "bfloat16" else 10)}, ""


@pytest.fixture
def told(tmp_path):
    run = Told(tmp_path, step_of)
    run.log()
    return run


def rows_of(folder):
    rows = json.loads((folder / "log_gpu.json").read_text("utf8"))
    return {row["name"]: row for row in rows}


def test_a_change_starts_from_the_best_line_before_it(told):
    rows = rows_of(told.given.out)
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


def test_a_row_that_breaks_costs_no_other(told):
    rows = rows_of(told.given.out)
    assert "a kernel broke" in rows["fused attention"]["error"]
    assert "RESOURCE_EXHAUSTED" in rows["batch 32"]["error"]
    assert {"device", "driver", "jax", "date", "command"} <= set(rows["batch 32"])
    assert "median_s" in rows["sequences of 4096"]


def test_a_second_call_measures_only_what_is_missing(told):
    again = Told(told.given.out, step_of)
    again.log()
    # What didn't fit won't fit; what broke is tried again.
    tried = {asked["setting"]["attention"] for asked in again.asked}
    assert tried == {"cudnn"}
    assert len(again.asked) == 1


def test_rows_of_another_card_are_not_gone_on_with(told):
    other = Told(told.given.out, step_of)
    other.about["device"] = "another card"
    other.log()
    assert len(other.asked) == len(told.asked)
    assert {r["device"] for r in rows_of(told.given.out).values()} == {"another card"}


def test_no_row_is_begun_without_time(tmp_path):
    run = Told(tmp_path, step_of, tiny=False, minutes=0.5)
    run.log()
    assert not run.asked
    assert not list(tmp_path.iterdir())


def test_fused_attention_is_tried_once_more_under_shard_map(tmp_path):
    def only_mapped(asked):
        if asked["setting"]["attention"] == "cudnn":
            return {"error": "ValueError: no rule for this"}, ""
        return took(5), ""

    run = Told(tmp_path, only_mapped, rows=["replicated"])
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
    found = plans.changed(Setting(flags=plans.OVERLAP), wanted[0]).flags.split()
    assert found.count(plans.OVERLAP) == 1
    assert len(found) == 4


def test_the_six_ways_differ_in_the_layout_only():
    ways = plans.ways()
    assert tuple(ways) == LAYOUTS
    alike = {w.but(layout="", attention="") for w in ways.values()}
    assert len(alike) == 1


# --- The page ---------------------------------------------------------------------


def test_the_page_has_a_section_only_for_what_was_measured(told):
    assert transformer_sections([], [], []) == []
    (section,) = transformer_sections([], [], list(rows_of(told.given.out).values()))
    assert "## Faster, one change at a time" in section
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    start = next(line for line in lines if "| start |" in line)
    # 1e12 FLOPs in 10 ms are a tenth of 1e15.
    assert "| 10.0 ms | 10.0% | 1.00 GiB | yes |" in start
    assert any("| does not fit |" in line for line in lines)
    assert any("fused attention" in line and "| failed |" in line for line in lines)


# --- Kernel by kernel -------------------------------------------------------------

LOOP = """\
HloModule jit_step, is_scheduled=true, num_partitions=2

%slice (p0: f32[4,100,50], p1: s32[]) -> f32[100,50] {
  %p0 = f32[4,100,50] parameter(0)
  %p1 = s32[] parameter(1)
  %zero = s32[] constant(0)
  %one = f32[1,100,50] dynamic-slice(%p0, %p1, %zero, %zero)
  ROOT %flat = f32[100,50] bitcast(%one)
}

%body (state: (s32[], f32[4,100,50])) -> (s32[], f32[4,100,50]) {
  %state = (s32[], f32[4,100,50]) parameter(0)
  %i = s32[] get-tuple-element(%state), index=0
  %stack = f32[4,100,50] get-tuple-element(%state), index=1
  %w = f32[100,50] fusion(%stack, %i), kind=kLoop, calls=%slice
  ROOT %next = (s32[], f32[4,100,50]) tuple(%i, %stack)
}

%until (state: (s32[], f32[4,100,50])) -> pred[] {
  %state = (s32[], f32[4,100,50]) parameter(0)
  ROOT %no = pred[] constant(false)
}

ENTRY %main (i: s32[], stack: f32[4,100,50], x: bf16[1000,500]) -> bf16[1000,500] {
  %i = s32[] parameter(0)
  %stack = f32[4,100,50] parameter(1)
  %x = bf16[1000,500] parameter(2)
  %state = (s32[], f32[4,100,50]) tuple(%i, %stack)
  %gone = (s32[], f32[4,100,50]) while(%state), condition=%until, body=%body, \
backend_config={"known_trip_count":{"n":"4"}}
  %go = ((bf16[1000,500]), bf16[2000,500]) all-gather-start(%x), dimensions={0}
  %y = bf16[1000,500] copy(%x)
  %come = bf16[2000,500] all-gather-done(%go)
  ROOT %z = bf16[1000,500] copy(%y)
}
"""


def test_a_loop_takes_its_turns_and_reads_a_slice_of_its_stack():
    time = roofline(LOOP, Card(SPEEDS))
    # A slice of 100*50 float32 and a number are read, the slice is written, four
    # times; two copies of 1000*500 bfloat16, each read and written.
    turns, copies = 4 * (2 * 100 * 50 * 4 + 4), 2 * 2 * 1000 * 500 * 2
    assert time.read_bytes == turns + copies
    assert time.kernels == pytest.approx((turns + copies) / 2e12)


def test_an_exchange_costs_what_is_not_hidden():
    time = roofline(LOOP, Card(SPEEDS))
    # A million bytes are sent at 1e11 a second, beside one copy of two million.
    assert time.waiting == pytest.approx(1e6 / 1e11 - 2e6 / 2e12)


@pytest.mark.parametrize("name", ["dp", "fsdp_explicit", "tp"])
def test_kernels_have_the_flops_that_the_xray_counts(name):
    import spmd_helpers as spmd
    from spmd_helpers._hlo_flow import work
    from spmd_helpers._hlo_text import parse

    text = (FIXTURES / f"{name}_scan8_step.gpu_0.11.2.hlo").read_text("utf8")
    time = roofline(text, Card(SPEEDS))
    counted = work(parse(text), {"d": 2}).flops
    assert time.computing * SPEEDS["bf16_flops_per_s"] == pytest.approx(counted)
    moved = spmd.read_hlo(text, {"d": 2})
    longest = sum(c.total_wire_bytes for c in moved) / 1e11
    assert 0 <= time.waiting <= longest
