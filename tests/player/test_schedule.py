"""The hops of a collective: nothing is lost, the bytes add up, JAX ends the same."""

from collections import Counter
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spmd_helpers._player import schedule
from tests.mutants import both_ways
from tests.properties import options

from .collectives import KINDS, columns, rows, run, written

REDUCES = ("all-reduce", "reduce-scatter")


@st.composite
def collectives(draw, kinds=KINDS, most=9):
    """Any kind, any size of group, neighbors or strided, sizes that need not divide."""
    kind = draw(st.sampled_from(kinds))
    m = draw(st.integers(1, 50))
    if kind == "collective-permute":
        devices = draw(st.integers(2, 12))
        sources = draw(st.permutations(range(devices)))
        targets = draw(st.permutations(range(devices)))
        pairs = list(zip(sources, targets, strict=True))
        pairs = pairs[: draw(st.integers(1, devices))]
        if all(a == b for a, b in pairs):
            pairs = [(0, 1)]
        return written(kind, pairs, m, {"x": devices})
    groups, size = draw(st.integers(1, 3)), draw(st.integers(2, most))
    if kind == "all-reduce":  # of fewer elements it has no hops
        m = max(m, size)
    spread = draw(st.sampled_from((rows, columns)))
    return written(kind, spread(groups, size), m, {"a": groups, "b": size})


def group_of(collective, device):
    return next(group for group in collective.groups if device in group)


def check_nothing_is_lost(collective, module=schedule):
    """In each frame all parts of all shards are there, and no part twice in a sum."""
    first, *others = frames = list(module.frames(collective))
    for frame in frames:
        by_shard: dict = {}
        for (device, _), block in frame.contents.items():
            assert len(block.parts) <= block.needs
            if collective.kind != "collective-permute":
                assert block.parts <= {*group_of(collective, device)}
            if not block.is_complete:
                by_shard.setdefault((block.key, block.index), []).append(block.parts)
        everything = {
            (block.key, block.index, part)
            for block in first.contents.values()
            for part in block.parts
        }
        there = {
            (block.key, block.index, part)
            for block in frame.contents.values()
            for part in block.parts
        }
        if collective.kind == "collective-permute":
            assert there <= everything
        else:
            assert there == everything
        for sums in by_shard.values():
            assert sum(map(len, sums)) == len(frozenset().union(*sums))
    assert others


def check_hops(collective, module=schedule):
    """A device sends one shard a hop and receives one, inside of its group."""
    before = None
    for frame in module.frames(collective):
        if frame.hop is not None:
            sends = frame.hop.sends
            senders = Counter(s.source[0] for s in sends)
            receivers = Counter(s.target[0] for s in sends)
            assert {*senders.values(), *receivers.values()} <= {1}
            assert frame.arrived == {s.target for s in sends if s.source != s.target}
            for send in sends:
                assert before.contents[send.source].parts or collective.lowered_as
                if collective.kind != "collective-permute":
                    assert send.target[0] in group_of(collective, send.source[0])
        before = frame


def check_bytes(collective, module=schedule):
    """The counter counts what is sent, and ends at `wire_bytes`."""
    count: Counter = Counter()
    each = Fraction(
        collective.result_bytes
        if collective.kind == "all-gather"
        else collective.operand_bytes,
        1 if collective.kind == "collective-permute" else len(collective.groups[0]),
    )
    frames = list(module.frames(collective))
    assert frames[0].sent_bytes == 0
    for frame in frames[1:]:
        count.update(s.source[0] for s in frame.hop.sends if s.source != s.target)
        most = max(count.values(), default=0)
        assert frame.hop.sent == most
        assert frame.sent_bytes == round(each * most)
    assert frames[-1].sent_bytes == collective.wire_bytes
    assert len(frames) == 1 + module.hop_count(collective) + (
        collective.kind == "reduce-scatter" and bool(collective.lowered_as)
    )


def check_end(collective, module=schedule):
    """What the kind promises."""
    (*_, last) = module.frames(collective)
    if collective.kind == "collective-permute":
        came = {b: a for a, b in collective.groups}
        for (device, _), block in last.contents.items():
            source = came.get(device)
            assert block.parts == (set() if source is None else {source})
        return
    for group in collective.groups:
        for number, device in enumerate(group):
            blocks = {s: b for (d, s), b in last.contents.items() if d == device}
            assert all(block.is_complete for block in blocks.values())
            own = (
                {number}
                if collective.kind == "reduce-scatter"
                else {*range(len(group))}
            )
            assert {*blocks} == own
            for slot, block in blocks.items():
                if collective.kind in REDUCES:
                    assert (block.index, block.parts) == (slot, {*group})
                else:
                    assert block.parts == {group[slot]}
                if collective.kind == "all-to-all":
                    assert block.index == number


CHECKS = (check_nothing_is_lost, check_hops, check_bytes, check_end)


@options(60)
@given(collectives())
def test_every_frame_and_hop(collective):
    for check in CHECKS:
        check(collective)


@pytest.mark.parametrize("n", [2, 3, 8])
@pytest.mark.parametrize("kind", ["all-gather", "reduce-scatter"])
def test_what_is_compiled_as_an_all_reduce(kind, n):
    """It sends what an all-reduce sends, and ends as what it is."""
    full_size = {"all-gather": "result_bytes", "reduce-scatter": "operand_bytes"}[kind]
    one = written(kind, rows(2, n), 5, {"a": 2, "b": n})
    how = {
        "all-gather": "dynamic-update-slice + all-reduce",
        "reduce-scatter": "all-reduce + dynamic-slice",
    }[kind]
    wire_bytes = round(getattr(one, full_size) * 2 * (n - 1) / n)
    one = replace(one, lowered_as=how, wire_bytes=wire_bytes)
    for check in (check_nothing_is_lost, check_hops, check_end):
        check(one)
    frames = list(schedule.frames(one))
    assert frames[-1].sent_bytes == wire_bytes
    assert len(frames) == 1 + 2 * (n - 1) + (kind == "reduce-scatter")
    assert frames[-1].hop.drops == () or kind == "reduce-scatter"


@pytest.mark.parametrize("kind", [k for k in KINDS if k != "collective-permute"])
def test_some_slots_go_as_they_go_among_all(kind):
    collective = written(kind, columns(2, 6), 12, {"b": 6, "a": 2})
    slots = (0, 1, 5)
    some = schedule.frames(collective, collective.groups[:1], slots)
    for part, frame in zip(some, schedule.frames(collective), strict=True):
        group = collective.groups[0]
        for (device, slot), block in part.contents.items():
            if kind != "all-to-all" or group.index(device) in slots:
                assert frame.contents[device, slot] == block
        assert part.sent_bytes == frame.sent_bytes


def test_equal_values_are_one_shard():
    collective = written("all-gather", columns(2, 4), 3, {"data": 4, "model": 2})
    keys = {b.key for b in next(schedule.frames(collective)).contents.values()}
    assert len(keys) == 8
    known = replace(collective, alike=(0, 0, 1, 1, 2, 2, 3, 3))
    for frame in schedule.frames(known):
        for (device, slot), block in frame.contents.items():
            assert block.key == (slot,), device


def test_hundreds_of_devices_are_followed_in_part():
    collective = written("all-reduce", rows(1, 256), 256, {"x": 256})
    frames = list(schedule.frames(collective, slots=(0, 255)))
    assert len(frames) == 1 + 2 * 255
    assert frames[-1].sent_bytes == collective.wire_bytes
    assert all(len(block.parts) == 256 for block in frames[-1].contents.values())


# JAX runs the same collective.

QUICK = [
    ("all-gather", {"data": 4, "model": 2}, ("data",)),
    ("reduce-scatter", {"data": 4, "model": 2}, ("model",)),
    ("all-reduce", {"a": 2, "b": 2, "c": 2}, ("a", "c")),
    ("all-to-all", {"data": 4, "model": 2}, ("data",)),
    ("all-to-all", {"x": 6}, ("x",)),
]
MORE = [
    (kind, sizes, axes)
    for kind in KINDS[:4]
    for sizes, axes in [
        ({"x": 8}, ("x",)),
        ({"x": 7}, ("x",)),
        ({"x": 3, "y": 2}, ("x",)),
        ({"data": 2, "model": 4}, ("model",)),
        ({"data": 2, "model": 4}, ("data", "model")),
        ({"a": 2, "b": 2, "c": 2}, ("b",)),
        ({"a": 2, "b": 2, "c": 2}, ("a", "b")),
    ]
]
PAIRS = [
    ({"x": 8}, ("x",), [(i, (i + 1) % 8) for i in range(8)]),
    ({"x": 8}, ("x",), [(0, 5), (5, 0), (3, 4)]),
    ({"data": 4, "model": 2}, ("data",), [(0, 1), (1, 2), (2, 3)]),
    ({"data": 4, "model": 2}, ("model",), [(0, 1), (1, 0)]),
]


def check_like_jax(ran, module=schedule):
    (*_, last) = module.frames(ran.collective)
    for check in (check_bytes, check_nothing_is_lost):
        check(ran.collective, module)
    for device, after in ran.after.items():
        blocks = {s: b for (d, s), b in last.contents.items() if d == device}
        came = [
            {(part, block.index) for part in block.parts}
            for _, block in sorted(blocks.items())
        ]
        assert (came or [set()]) == after, device


def every_device_takes_part(ran):
    return {d for group in ran.collective.groups for d in group} == {*ran.after}


@pytest.mark.parametrize(("kind", "sizes", "axes"), QUICK)
def test_a_run_ends_the_same(kind, sizes, axes):
    ran = run(kind, sizes, axes)
    assert ran.collective.kind == kind
    assert every_device_takes_part(ran)
    check_like_jax(ran)


@pytest.mark.long("collectives over other meshes, compiled and run")
@pytest.mark.parametrize(("kind", "sizes", "axes"), MORE)
def test_a_run_over_other_meshes_ends_the_same(kind, sizes, axes):
    ran = run(kind, sizes, axes)
    assert every_device_takes_part(ran)
    check_like_jax(ran)


@pytest.mark.parametrize(("sizes", "axes", "pairs"), PAIRS)
def test_a_permute_ends_the_same(sizes, axes, pairs):
    ran = run("collective-permute", sizes, axes, pairs)
    assert ran.collective.kind == "collective-permute"
    check_like_jax(ran)


# Broken schedules are noticed.

MUTANTS = [
    ("_player.schedule:_sends", "($slot + $number + $scatters) % $n",
     "($slot + $number) % $n"),
    ("_player.schedule:_sends", "$group[($sender + 1) % $n]",
     "$group[($sender + 2) % $n]"),
    ("_player.schedule:_sends", "Send(($source, $slot), ($target, $slot), $scatters, "
     "not $scatters)", "Send(($source, $slot), ($target, $slot), $scatters, True)"),
    ("_player.schedule:_sends", "Send(($source, $slot), ($target, $slot), $scatters, "
     "not $scatters)", "Send(($source, $slot), ($target, $slot), False, True)"),
    ("_player.schedule:_sends",
     "Send(($group[$slot], $other), ($group[$other], $slot))",
     "Send(($group[$slot], $other), ($group[$other], $other))"),
    ("_player.schedule:_partner", "($number - $member) % $n",
     "($number + $member) % $n"),
    ("_player.schedule:_partner", "$member ^ $number + 1", "$member ^ $number"),
    ("_player.schedule:_hop_count", "$n & $n - 1", "False"),
    ("_player.schedule:_sent", "$number >= max($idle) and $n > 1", "False"),
    ("_player.schedule:hops", "$before += $size - 1", "pass"),
    ("_player.schedule:hops", "range(_hop_count($phase, $size))",
     "range(_hop_count($phase, $size) - 1)"),
    ("_player.schedule:after", "$block.parts | $held[$send.target].parts",
     "$held[$send.target].parts"),
    ("_player.schedule:after", "not $send.keeps", "False"),
    ("_player.schedule:_PHASES['all-reduce']", "(RING_SCATTER, RING_GATHER)",
     "(RING_SCATTER,)"),
    ("_player.schedule:start", "frozenset({$device} & {$owner})",
     "frozenset({$device})"),
    ("_player.schedule:shard_bytes", "group_size($collective)", "1"),
]  # fmt: skip


def samples():
    yield written("all-gather", columns(2, 4), 5, {"x": 4, "y": 2})
    yield written("reduce-scatter", rows(2, 4), 5, {"x": 2, "y": 4})
    yield written("all-reduce", rows(1, 5), 3, {"x": 5})
    yield written("all-to-all", rows(1, 6), 3, {"x": 6})
    yield written("all-to-all", rows(2, 4), 3, {"x": 2, "y": 4})
    yield written("collective-permute", ((0, 1), (1, 2)), 3, {"x": 4})


def right(module):
    for collective in samples():
        for check in CHECKS:
            check(collective, module)


test_a_broken_schedule_is_noticed, test_an_unbroken_copy_is_right = both_ways(
    MUTANTS, right, "_player.schedule"
)


def test_the_samples_have_all_kinds():
    assert {collective.kind for collective in samples()} == {*KINDS}
