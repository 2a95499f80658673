"""Steps that were predicted before four cards ran them, and their traces."""

from pathlib import Path

import jax
import pytest

import spmd_helpers as spmd
from spmd_helpers._hlo.validate import read_module
from spmd_helpers._time.matching import matched
from spmd_helpers._time.trace import read_runs
from tools.measure.page_ahead import ahead_section
from tools.measure.seconds import again

AHEAD = {row["name"]: row for row in spmd.load_measured("gpu-ahead")}
AGAIN = {row["name"]: row for row in spmd.load_measured("gpu-again")}
TRACED = spmd.load_measured("gpu-traced")
BOTH = [(AHEAD[row["name"]], row) for row in TRACED if row["name"] in AHEAD]
KEPT = [row for row in TRACED if "hlo" in row]
by_name = pytest.mark.parametrize("row", KEPT, ids=lambda row: row["name"])


def test_what_was_predicted_came_true():
    """Within 15 % of the clock, 3 % of the allocator's peak, all exchanges equal."""
    assert len(BOTH) >= 8
    for ahead, row in BOTH:
        assert ahead["date"] <= row["date"]
        assert abs(ahead["predicted_s"] / row["step_s"] - 1) < 0.15, row["name"]
        peak = row["allocator_peak_bytes"]
        assert abs(ahead["peak_bytes"] / peak - 1) < 0.03, row["name"]
    text = ahead_section([*AHEAD.values()], [*AGAIN.values()], TRACED)
    assert f"equal in {len(BOTH)} of {len(BOTH)} steps" in text
    assert "the faster is predicted to be faster" in text


@by_name
def test_a_stored_trace_is_read_again(row):
    step = spmd.read_trace(row["path"], row["hlo"], "h200")
    assert step.total_s == pytest.approx(row["traced_s"])
    assert step.exposed_s == pytest.approx(row["exposed_s"])
    assert dict(step.lanes) == pytest.approx(row["lanes"])
    # The profiler and the clock agree, and the parts are what the total is made of.
    assert step.total_s == pytest.approx(row["step_s"], rel=0.05)
    assert step.lanes["kernels"] + step.exposed_s >= 0.97 * step.total_s
    assert step.exposed_s <= step.lanes["nvlink"]
    assert all(part.exposed_s <= part.seconds + 1e-12 for part in step.parts)
    # The longest of the reader's lines is that of the products.
    assert max(step.lines, key=lambda line: line.kernel_s).source == "model.py:236"


@by_name
def test_nearly_all_of_a_real_trace_is_matched(row):
    module = read_module(row["hlo"])
    runs = read_runs(jax, Path(row["path"]), "jit_step")
    names = matched(module, spmd.step_time(row["hlo"], "h200").parts, runs)
    lost = sum(
        run.end_s - run.start_s for run, n in zip(runs, names, strict=True) if n is None
    )
    assert lost < 0.01 * sum(run.end_s - run.start_s for run in runs)


def test_products_are_matched_with_the_right_calls():
    """Each product takes about what its FLOPs need: none has another's kernels."""
    (row,) = [row for row in KEPT if row["name"] == "fsdp cudnn"]
    step = spmd.read_trace(row["path"], row["hlo"], "h200")
    said = {part.name: part.seconds for part in step.predicted.parts}
    large = [p for p in step.parts if p.kind == "matmul" and said[p.name] > 3e-3]
    assert len(large) > 10
    assert all(0.6 < part.seconds / said[part.name] < 2 for part in large)


def test_exposed_seconds_are_predicted_of_steps_whose_traces_were_not_read():
    unread = [row for row in TRACED if "trace" not in row]
    assert len(unread) == 8
    shares = [AGAIN[r["name"]]["predicted_exposed_s"] / r["exposed_s"] for r in unread]
    assert min(shares) > 0.5
    assert max(shares) < 1.1
    before = [AHEAD[r["name"]]["predicted_exposed_s"] / r["exposed_s"] for r in unread]
    assert sum(before) / 8 < 0.45 < 0.7 < sum(shares) / 8
    assert all(
        abs(AGAIN[r["name"]]["predicted_s"] / r["step_s"] - 1) < 0.1 for r in TRACED
    )


@pytest.mark.parametrize("name", ["replicated", "fsdp and tensor"])
def test_a_step_predicted_again_is_what_the_function_says_today(name):
    step = again.prediction(name, again.texts()[name])
    for key in ("predicted_s", "predicted_exposed_s"):
        assert step[key] == pytest.approx(AGAIN[name][key], rel=1e-9)


@pytest.mark.long("each of 11 texts is read")
@pytest.mark.once
def test_all_steps_predicted_again_are_what_the_function_says_today():
    texts = again.texts()
    assert texts.keys() == AGAIN.keys() == {row["name"] for row in TRACED}
    for name, text in texts.items():
        step = again.prediction(name, text)
        assert step["predicted_s"] == pytest.approx(AGAIN[name]["predicted_s"])
