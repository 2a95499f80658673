"""Whether a result is an array that was gathered, in texts written for the purpose."""

import pytest

from spmd_helpers._findings.gathered import _gather_of
from spmd_helpers._hlo.parser import parse
from tests.hlo.carriers import CARRIERS, carried
from tests.hlo.texts import entry

GATHER = "%made = f32[64] all-gather(%p), replica_groups={}, dimensions={0}"
OTHER = "%other = f32[64] custom-call()"


def made_of(number, called, *lines):
    module = parse(entry("f32[8]", called, GATHER, OTHER, *lines))
    return _gather_of(module, number, {"made": "the gather"}) is not None


@pytest.mark.parametrize("name", CARRIERS)
def test_what_was_gathered_and_handed_on(name):
    called, lines, on = carried(name, "f32[64]")
    called = called.replace("custom-call()", "iota()")
    assert made_of(0, called, lines, f"ROOT %out = {on} negate(%on)")
    out = f"ROOT %out = (f32[64], {on}) tuple(%other, %on)"
    assert [made_of(n, called, lines, out) for n in (0, 1)] == [False, True]


def test_of_several_that_a_fusion_makes_only_the_one():
    called, lines, _ = carried("fusion of several", "f32[64]")
    called = called.replace("custom-call()", "iota()")
    first = lines.replace("index=1", "index=0")
    assert not made_of(0, called, first, "ROOT %out = f32[64] copy(%on)")


@pytest.mark.parametrize("inside", ["negate(%q)", "copy(%q)"])
@pytest.mark.parametrize(
    "calls", ["fusion(%made), calls=%f", "call(%made), to_apply=%f"]
)
def test_a_call_in_which_all_goes_element_by_element(inside, calls):
    called = """
%f (q: f32[64]) -> f32[64] {{
  %q = f32[64] parameter(0)
  {more}
  ROOT %r = f32[64] {inside}
}}
"""
    out = f"ROOT %out = f32[64] {calls}"
    assert made_of(0, called.format(more="", inside=inside), out)
    dot = "%d = f32[] dot(%q, %q), lhs_contracting_dims={0}, rhs_contracting_dims={0}"
    assert not made_of(0, called.format(more=dot, inside=inside), out)
