"""What becomes of a value in a compiled program, in texts written for the purpose."""

import pytest

from spmd_helpers._hlo.dataflow import Place, elements, parameter, places, uses
from spmd_helpers._hlo.parser import parse

# A stack goes through a call and a conversion into a loop, which takes a slice of it
# in a fusion; beside it goes a table that the loop changes.
LOOP = """HloModule jit_f, num_partitions=8

slice_it (a.0: f32[8,4], a.1: s32[]) -> f32[1,4] {
  a.0 = f32[8,4] parameter(0)
  a.1 = s32[] parameter(1)
  zero = s32[] constant(0)
  ROOT sliced = f32[1,4] dynamic-slice(a.0, a.1, zero), dynamic_slice_sizes={1,4}
}

body (state: (s32[], f32[8,4], f32[8,4])) -> (s32[], f32[8,4], f32[8,4]) {
  state = (s32[], f32[8,4], f32[8,4]) parameter(0)
  n = s32[] get-tuple-element(state), index=0
  stack.in = f32[8,4] get-tuple-element(state), index=1
  table.in = f32[8,4] get-tuple-element(state), index=2
  row = f32[1,4] fusion(stack.in, n), kind=kLoop, calls=slice_it
  one = s32[] constant(1)
  more = s32[] add(n, one)
  changed = f32[8,4] negate(table.in)
  ROOT next = (s32[], f32[8,4], f32[8,4]) tuple(more, stack.in, changed)
}

test (state.1: (s32[], f32[8,4], f32[8,4])) -> pred[] {
  state.1 = (s32[], f32[8,4], f32[8,4]) parameter(0)
  n.1 = s32[] get-tuple-element(state.1), index=0
  eight = s32[] constant(8)
  ROOT less = pred[] compare(n.1, eight), direction=LT
}

widen (b.0: bf16[8,4]) -> f32[8,4] {
  b.0 = bf16[8,4] parameter(0)
  ROOT wide = f32[8,4] convert(b.0)
}

looped (c.0: (s32[], f32[8,4], f32[8,4])) -> (s32[], f32[8,4], f32[8,4]) {
  c.0 = (s32[], f32[8,4], f32[8,4]) parameter(0)
  ROOT loop = (s32[], f32[8,4], f32[8,4]) while(c.0), condition=test, body=body
}

ENTRY main (x: bf16[8,4], y: f32[8,4]) -> f32[8,4] {
  x = bf16[8,4] parameter(0)
  y = f32[8,4] parameter(1)
  start = s32[] constant(0)
  began = bf16[8,4] copy-start(x)
  ended = bf16[8,4] copy-done(began)
  stack = f32[8,4] fusion(ended), kind=kLoop, calls=widen
  given = (s32[], f32[8,4], f32[8,4]) tuple(start, stack, y)
  done = (s32[], f32[8,4], f32[8,4]) call(given), to_apply=looped
  kept = f32[8,4] get-tuple-element(done), index=1
  ROOT result = f32[8,4] multiply(kept, y)
}
"""

# A value goes into one of two branches, and through what started earlier.
BRANCHES = """HloModule jit_f, num_partitions=8

first (p.0: (f32[4], f32[4])) -> f32[4] {
  p.0 = (f32[4], f32[4]) parameter(0)
  p.1 = f32[4] get-tuple-element(p.0), index=1
  ROOT up = f32[4] exponential(p.1)
}

second (q.0: (f32[4], f32[4])) -> f32[4] {
  q.0 = (f32[4], f32[4]) parameter(0)
  q.1 = f32[4] get-tuple-element(q.0), index=1
  ROOT down = f32[4] negate(q.1)
}

later (r.0: f32[4]) -> f32[4] {
  r.0 = f32[4] parameter(0)
  ROOT same = f32[4] copy(r.0)
}

ENTRY main (which: pred[], x: f32[4], y: f32[4]) -> f32[4] {
  which = pred[] parameter(0)
  x = f32[4] parameter(1)
  y = f32[4] parameter(2)
  held = (f32[4], f32[4]) tuple(y, x)
  both = (f32[4], f32[4]) optimization-barrier(held)
  apart = (f32[4], f32[4]) tuple(y, y)
  branch = f32[4] conditional(which, both, apart), true_computation=first, \
false_computation=second
  began = ((f32[4]), f32[4]) fusion-start(x), kind=kLoop, calls=later
  ended = f32[4] fusion-done(began)
  ROOT result = f32[4] add(ended, branch)
}
"""

# A fusion makes several arrays: of one a value is changed, of others it is handed on.
SEVERAL = """HloModule jit_f, num_partitions=8

many (a.0: f32[4], a.1: f32[4]) -> (f32[4], bf16[4], f32[4]) {
  a.0 = f32[4] parameter(0)
  a.1 = f32[4] parameter(1)
  up = f32[4] add(a.0, a.1)
  thin = bf16[4] convert(a.0)
  ROOT all = (f32[4], bf16[4], f32[4]) tuple(up, thin, a.1)
}

later (b.0: f32[4], b.1: f32[4]) -> (f32[4], f32[4]) {
  b.0 = f32[4] parameter(0)
  b.1 = f32[4] parameter(1)
  down = f32[4] negate(b.0)
  ROOT kept = (f32[4], f32[4]) tuple(down, b.1)
}

ENTRY main (x: f32[4], y: f32[4]) -> f32[4] {
  x = f32[4] parameter(0)
  y = f32[4] parameter(1)
  made = (f32[4], bf16[4], f32[4]) fusion(x, y), kind=kLoop, calls=many
  sum = f32[4] get-tuple-element(made), index=0
  same = bf16[4] get-tuple-element(made), index=1
  other = f32[4] get-tuple-element(made), index=2
  began = ((f32[4], f32[4]), (f32[4], f32[4])) fusion-start(sum, other), \
kind=kLoop, calls=later
  ended = (f32[4], f32[4]) fusion-done(began)
  again = f32[4] get-tuple-element(ended), index=1
  below = bf16[4] negate(same)
  ROOT result = f32[4] subtract(again, sum)
}
"""


def uses_of(text, name, place=None):
    module = parse(text)
    place = place or Place(module.entry)
    i = place.computation.by_name[name]
    return sorted((u.instruction.name, u.operand) for u in uses(module, [(place, i)]))


@pytest.mark.parametrize(
    ("text", "name", "expected"),
    [
        # Through the call and the loop's state to the slice, and out with the root.
        (LOOP, "stack", [("sliced", 0)]),
        (LOOP, "x", [("sliced", 0)]),
        (LOOP, "y", [("changed", 0), ("result", 1)]),
        (LOOP, "kept", [("result", 0)]),
        (LOOP, "start", [("less", 0), ("more", 0), ("sliced", 1)]),
        (BRANCHES, "x", [("result", 0), ("up", 0)]),
        (BRANCHES, "y", [("down", 0)]),
        (BRANCHES, "which", [("branch", 0)]),
        (BRANCHES, "branch", [("result", 1)]),
        (SEVERAL, "x", [("below", 0), ("up", 0)]),
        (SEVERAL, "y", [("result", 0), ("up", 1)]),
        (SEVERAL, "sum", [("down", 0), ("result", 1)]),
    ],
)
def test_uses(text, name, expected):
    assert uses_of(text, name) == expected


def test_the_shape_in_which_it_is_used():
    module = parse(LOOP)
    place = Place(module.entry)
    (use,) = uses(module, [(place, place.computation.by_name["x"])])
    assert (use.shape.dtype, use.shape.dims) == ("f32", (8, 4))
    assert [p.computation.name for p in around(use.place)] == [
        "slice_it", "body", "looped", "main",
    ]  # fmt: skip


def around(place):
    while place is not None:
        yield place
        place = place.parent


def place_of(text, name):
    module = parse(text)
    return module, next(p for p in places(module) if p.computation.name == name)


def test_every_computation_is_reached():
    names = [p.computation.name for p in places(parse(LOOP))]
    assert sorted(names) == ["body", "looped", "main", "slice_it", "test", "widen"]
    names = [p.computation.name for p in places(parse(BRANCHES))]
    assert sorted(names) == ["first", "later", "main", "second"]


@pytest.mark.parametrize(
    ("text", "computation", "name", "number"),
    [
        (LOOP, "main", "x", 0),
        (LOOP, "main", "stack", 0),
        (LOOP, "body", "stack.in", 0),
        (LOOP, "slice_it", "a.0", 0),
        (LOOP, "slice_it", "sliced", 0),
        (LOOP, "body", "row", 0),
        (LOOP, "main", "kept", 0),  # comes out of a call, and a loop that keeps it
        (LOOP, "body", "table.in", None),  # the loop changes it
        (LOOP, "body", "n", None),
        (LOOP, "main", "result", None),
        (LOOP, "main", "start", None),
        (LOOP, "main", "nowhere", None),
        (BRANCHES, "main", "ended", 1),
        (BRANCHES, "later", "same", 1),
        (BRANCHES, "first", "p.1", None),  # of one branch, not followed back
        (SEVERAL, "main", "sum", None),
        (SEVERAL, "main", "same", 0),
        (SEVERAL, "main", "other", 1),
        (SEVERAL, "main", "again", 1),
        (SEVERAL, "many", "thin", 0),
    ],
)
def test_which_argument_it_is(text, computation, name, number):
    module, place = place_of(text, computation)
    assert parameter(module, place, name) == number


def test_elements_of_a_tuple_that_nobody_takes():
    module = parse(BRANCHES)
    place = Place(module.entry)
    both = place.computation.by_name["held"]
    taken = [(p.computation.name, i.name) for p, i in elements(module, place, both, 0)]
    assert taken == []
    taken = [(p.computation.name, i.name) for p, i in elements(module, place, both, 1)]
    assert taken == [("first", "p.1")]
