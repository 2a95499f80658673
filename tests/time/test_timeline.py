"""The timeline of a step: its panels, its lanes, and the same in words."""

import itertools
import xml.etree.ElementTree as ET

import pytest

import spmd_helpers as spmd
from tests.hlo.texts import archived
from tests.time.programs import GPU, ONE_PRODUCT, gathered, looped
from tests.time.test_step_time import COPIED, GATHERED, H200, MULTIPLIED, near

LOST = H200.slowed * COPIED


def pieces(stretch):
    return [
        (p.lane, p.kind, pytest.approx(p.start_s), pytest.approx(p.end_s))
        for p in stretch.pieces
    ]


def test_kernels_and_collectives_have_a_lane_each_and_waiting_is_drawn():
    between = f"  %c = bf16[8192,8192]{{1,0}} copy(%x), {GPU}"
    (panel,) = spmd.step_time(gathered(between), "h200").timeline.stretches
    assert panel.seconds == near(GATHERED)
    assert panel.lanes == ["kernels", "memory", "nvlink"]
    assert pieces(panel) == [
        ("kernels", "elementwise", 0.0, COPIED),
        ("memory", "traffic", 0.0, COPIED - H200.kernel_s),
        ("nvlink", "all-gather", 0.0, GATHERED),
        ("kernels", "waiting", COPIED, GATHERED),
    ]
    assert LOST < GATHERED - COPIED  # what is lost is part of the wait


def test_a_loop_is_one_piece_and_an_iteration_of_it_has_a_panel():
    step, trip = spmd.step_time(looped(), "h200").timeline.stretches
    assert pieces(step) == [("kernels", "loop", 0.0, 5 * MULTIPLIED)]
    assert step.pieces[0].words == "a loop of 5 iterations"
    assert trip.title == "one iteration of loop, of 5"
    of_product = 3 * 2 * 8192**2 / H200.memory_bytes_per_s
    assert pieces(trip) == [
        ("kernels", "matmul", 0.0, MULTIPLIED),
        ("memory", "traffic", 0.0, of_product),
    ]
    assert trip.pieces[1].words == "traffic of 1 kernel"


def test_text_and_picture_say_the_same():
    text = archived("transformer.gpu_0.11.2")["ways/fsdp plain"]
    timeline = spmd.step_time(text, "h200").timeline
    assert len(timeline.stretches) == 3  # the step, and a trip of each of its loops
    words, drawn = str(timeline), timeline.svg
    root = ET.fromstring(drawn)
    name = "{http://www.w3.org/2000/svg}"
    boxes = [r for r in root.iter(f"{name}rect") if r.get("class") != "hatch"]
    count = sum(len(one.pieces) for one in timeline.stretches)
    assert len(boxes) == count + 6 + 1  # the legend, and the paper
    for one in timeline.stretches:
        assert one.title in words
        assert one.title in drawn
        assert all(0 <= p.start_s < p.end_s <= one.seconds * 1.001 for p in one.pieces)
        for lane in one.lanes:
            mine = [p for p in one.pieces if p.lane == lane]
            assert all(
                a.end_s <= b.start_s + 1e-12 for a, b in itertools.pairwise(mine)
            ), lane
    assert root.find(f"{name}desc").text == timeline.sentence
    assert timeline.sentence.count(" to ") == count


def test_an_unscheduled_program_has_a_timeline_too():
    text = ONE_PRODUCT.replace(f", {GPU}", "")
    assert "bounds" in str(spmd.step_time(text, "h200").timeline)
