"""A loop in time: each lane does one thing at a time, and waits only when it must."""

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

import spmd_helpers as spmd
from spmd_helpers._figures import loop
from tests.mutants import both_ways
from tests.properties import options


@st.composite
def loops(draw):
    number = st.integers(1, 6)
    return draw(st.integers(1, 12)), {
        "call": draw(number), "step": draw(number), "fetch_every": draw(number),
        "save_every": draw(st.none() | number), "copy": draw(number),
        "write": draw(number),
    }  # fmt: skip


def check_lanes(case, module=loop):
    shown = module.LoopTimeline(case[0], **case[1])
    for name in ("host", "devices", "writer"):
        for one, following in itertools.pairwise(shown.lane(name)):
            assert one.stop <= following.start
    lengths = {"call": "call", "step": "step", "copy": "copy", "write": "write"}
    for span in shown.spans:
        if span.kind in lengths:
            assert span.stop - span.start == case[1][lengths[span.kind]]
        assert span.stop > span.start


def check_causes(case, module=loop):
    """Nothing begins before its causes, and nothing later than the last of them."""
    steps, more = case
    shown = module.LoopTimeline(steps, **more)
    ends = {(s.kind, s.step): s.stop for s in shown.spans}
    starts = {(s.kind, s.step): s.start for s in shown.spans}
    for n in range(steps):
        causes = [ends["call", n], ends.get(("step", n - 1), 0)]
        assert starts["step", n] == max(causes)
        free = [ends.get((kind, n - 1), 0) for kind in ("call", "wait", "copy")]
        assert starts["call", n] == max(free)
        saves = more["save_every"] and (n + 1) % more["save_every"] == 0
        assert (("copy", n) in starts) == (("write", n) in starts) == bool(saves)
        if saves:
            before = [v for (k, m), v in ends.items() if k == "write" and m < n]
            ready = [ends["call", n], ends["step", n], *before]
            assert starts["copy", n] == max(ready)
            assert starts["write", n] == ends["copy", n]
        elif (n + 1) % more["fetch_every"] == 0 or n == steps - 1:
            following = starts.get(("call", n + 1), ends.get(("wait", n), 0))
            assert max(following, ends["call", n]) >= ends["step", n]
        else:
            assert ("wait", n) not in starts


def check_facts(case, module=loop):
    shown = module.LoopTimeline(case[0], **case[1])
    done = shown.lane("devices")
    total = done[-1].stop - done[0].start
    assert shown.idle == pytest.approx(1 - case[0] * case[1]["step"] / total)
    called = [s.stop for s in shown.spans if s.kind == "call"]
    ahead = [
        sum(c <= t < d.stop for c, d in zip(called, done, strict=True)) for t in called
    ]
    assert shown.ahead == max(ahead)
    assert shown.duration == max(s.stop for s in shown.spans)


CHECKS = (check_lanes, check_causes, check_facts)


@options(60)
@given(loops())
def test_a_loop_has_its_properties(case):
    for check in CHECKS:
        check(case)


def test_closed_forms():
    """A fetch after each step costs a call a step; one in the end costs one call."""
    for steps, call, step in ((6, 1, 3), (9, 2, 5)):
        rare = spmd.LoopTimeline(steps, call=call, step=step, fetch_every=steps)
        often = spmd.LoopTimeline(steps, call=call, step=step)
        assert often.duration == steps * (call + step)
        assert rare.duration == call + steps * step
        assert rare.idle == 0
        assert often.ahead == 1 < rare.ahead
    slow = spmd.LoopTimeline(5, call=4, step=1, fetch_every=5)  # the host is the limit
    assert slow.duration == 5 * 4 + 1


def test_a_box_for_each_span():
    shown = spmd.LoopTimeline(6, fetch_every=6, save_every=3)
    svg = shown._diagram.svg
    boxes = re.findall(r'<rect class="(edge|bar|empty)" x="(\S+)" y="(\S+)" width', svg)
    assert len(boxes) == len(shown.spans)
    assert sorted({float(y) for *_, y in boxes}) == [44, 82, 120]
    steps = re.findall(r'class="edge" x="(\S+)" y="82" width="(\S+)"', svg)
    for span, (x, width) in zip(shown.lane("devices"), steps, strict=True):
        assert float(x) == loop._LEFT + span.start * loop._UNIT
        assert float(width) + 1 == (span.stop - span.start) * loop._UNIT


def test_a_wait_names_what_it_waits_for():
    shown = spmd.LoopTimeline(8, fetch_every=8, save_every=4, copy=2, write=20)
    waits = [(s.cause, s.start, s.stop) for s in shown.spans if s.kind == "wait"]
    assert waits == [("step", 4, 13), ("step", 19, 28), ("writer", 28, 35)]
    svg = shown._diagram.svg
    for words in ("waits for step 3", "waits for step 7", "for writer"):
        assert svg.count(f">{words}</text>") == 1
    assert str(shown).startswith("8 steps, the devices finish after 28 units, idle for")


@pytest.mark.parametrize("name", ["steps", "call", "step", "fetch_every", "save_every",
                                  "copy", "write"])  # fmt: skip
def test_bad_input_is_named(name):
    with pytest.raises(spmd.NotUnderstood, match=f"{name}=0"):
        spmd.LoopTimeline(**{"steps": 4, name: 0})


MUTANTS = [
    ("_figures.loop:LoopTimeline._run", "max($now, $done)", "$now",
     "$start = max($now, $done)"),
    ("_figures.loop:LoopTimeline._run", "[('writer', $written)] if $saves else []",
     "[]"),
    ("_figures.loop:LoopTimeline._run", "$n == self.steps - 1", "False"),
    ("_figures.loop:LoopTimeline._run", "$now += self._copy", "pass"),
    ("_figures.loop:LoopTimeline._run", "$now = $ready", "pass"),
]  # fmt: skip


def right(module):
    more = {"call": 1, "step": 3, "fetch_every": 4, "copy": 2, "write": 20}
    for case in ((7, {**more, "save_every": 3}), (6, {**more, "save_every": None})):
        for check in CHECKS:
            check(case, module)


test_a_broken_loop_is_noticed, test_an_unbroken_copy_is_right = both_ways(
    MUTANTS, right, "_figures.loop"
)
