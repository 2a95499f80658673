"""What hands a value on, in every place that asks: see `_hlo.opcodes`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from spmd_helpers._hlo import opcodes
from spmd_helpers._hlo.collectives import KINDS, read_hlo
from spmd_helpers._hlo.dataflow import Place, parameter, passes_on, uses
from spmd_helpers._hlo.flops import product
from spmd_helpers._hlo.integers import Reader, Unknown, trips
from spmd_helpers._hlo.opcodes import AS_IT_IS, AS_NUMBERS, OPCODES, Does, does
from spmd_helpers._hlo.parser import parse
from spmd_helpers._hlo.work import Work, work
from tests.hlo.carriers import CARRIERS, carried
from tests.hlo.texts import DM, M42, applied, condition, entry
from tests.mutants import answers_all

CUT, LAID = "all-reduce + dynamic-slice", "dynamic-update-slice + all-reduce"
SUM = applied("add", "sum")


def rows(text, mesh=M42):
    return [
        (c.kind, c.operand_bytes, c.result_bytes, c.wire_bytes, c.axes, c.lowered_as)
        for c in read_hlo(text, mesh)
    ]


# --- A reduce-scatter in disguise -----------------------------------------------------


REDUCED = "%made = f32[64] all-reduce(%p), replica_groups={}, to_apply=%sum"
SCATTERED = ("reduce-scatter", 256, 32, 448, DM, CUT)
SUMMED = ("all-reduce", 256, 256, 448, DM, None)


def scatter(name, reduced=REDUCED, at="%at"):
    called, lines, on = carried(name, "f32[64]")
    part, size = on.replace("64", "8"), "dynamic_slice_sizes={8}"
    own = f"ROOT %own = {part} dynamic-slice(%on, {at}), {size}"
    return entry("f32[64]", SUM + called, reduced, lines, own)


@pytest.mark.parametrize("name", CARRIERS)
def test_a_slice_of_what_was_handed_on(name):
    assert rows(scatter(name)) == [SCATTERED]


@pytest.mark.parametrize("name", CARRIERS)
def test_over_one_axis_each_device_must_take_its_own_slice(name):
    # Over data, the parts of the two devices along model may be the same or not.
    over_data = REDUCED.replace("{}", "[2,4]<=[4,2]T(1,0)")
    row = ("reduce-scatter", 256, 64, 384, ("data",), CUT)
    assert rows(scatter(name, over_data)) == [row]
    by_data = [
        REDUCED.replace("{}", "[4,2]<=[8]"),
        "%one = u32[] constant(1)",
        "%half = u32[] shift-right-logical(%me, %one)",
        "%place = u32[] multiply(%half, %size)",
    ]
    assert rows(scatter(name, "\n  ".join(by_data), "%place")) == [
        ("all-reduce", 256, 256, 256, ("model",), None)
    ]


@pytest.mark.parametrize("name", CARRIERS)
def test_a_slice_that_all_take_is_none_of_their_own(name):
    assert rows(scatter(name, at="%size")) == [SUMMED]


@pytest.mark.parametrize("name", CARRIERS)
def test_what_also_goes_out_whole_is_no_slice(name):
    text = scatter(name).replace("ROOT %own", "%own")
    out = "  ROOT %out = (f32[8], f32[64]) tuple(%own, %on)\n}\n"
    assert rows(text.rstrip().removesuffix("}") + out) == [SUMMED]


@pytest.mark.parametrize("name", CARRIERS)
def test_without_its_row_a_carrier_uses_a_value_up(name, monkeypatch):
    monkeypatch.delitem(OPCODES, CARRIERS[name].opcode)
    assert rows(scatter(name)) == [SUMMED]


def test_the_end_of_a_pair_hands_on_what_its_start_began(monkeypatch):
    monkeypatch.setattr(opcodes, "base", lambda opcode: opcode)
    assert rows(scatter("copy-start")) == [SUMMED]


SLICING = """
%mine (q: f32[64], at: u32[]) -> f32[8] {
  %q = f32[64] parameter(0)
  %at = u32[] parameter(1)
  ROOT %own = f32[8] dynamic-slice(%q, %at), dynamic_slice_sizes={8}
}
"""


@pytest.mark.parametrize(
    "line",
    [
        "ROOT %r = f32[8] call(%made, %at), to_apply=%mine",
        "ROOT %r = f32[8] fusion(%made, %at), kind=kLoop, calls=%mine",
        "%s = ((f32[64], u32[]), f32[8]) async-start(%made, %at), calls=%mine\n"
        "  ROOT %r = f32[8] async-done(%s)",
    ],
)
def test_a_slice_in_what_is_called(line):
    assert rows(entry("f32[64]", SUM + SLICING, REDUCED, line)) == [SCATTERED]


def test_each_call_of_one_computation_is_looked_at():
    for first, second in (("%at", "%size"), ("%size", "%at")):
        lines = [
            f"%one = f32[8] call(%made, {first}), to_apply=%mine",
            f"ROOT %r = f32[8] call(%made, {second}), to_apply=%mine",
        ]
        assert rows(entry("f32[64]", SUM + SLICING, REDUCED, *lines)) == [SUMMED]


def test_what_lies_beside_it_in_a_tuple_may_go_anywhere():
    lines = [
        "%t = (f32[64], f32[64]) tuple(%made, %p)",
        "%mine = f32[64] get-tuple-element(%t), index=0",
        "%own = f32[8] dynamic-slice(%mine, %at), dynamic_slice_sizes={8}",
        "%other = f32[64] get-tuple-element(%t), index=1",
        "ROOT %out = (f32[8], f32[64]) tuple(%own, %other)",
    ]
    assert rows(entry("f32[64]", SUM, REDUCED, *lines)) == [SCATTERED]


def test_the_other_operands_of_a_slice_say_where():
    all_of_it = (
        "%n = s32[64] convert(%made)\n  %where = s32[] reduce(%n, %me), to_apply=%sum"
    )
    own = "ROOT %own = f32[8] dynamic-slice(%p, %where), dynamic_slice_sizes={8}"
    assert rows(entry("f32[64]", SUM, REDUCED, all_of_it, own)) == [SUMMED]
    one = "%one = s32[] all-reduce(%me), replica_groups={}, to_apply=%sum"
    own = "ROOT %own = f32[8] dynamic-slice(%p, %one), dynamic_slice_sizes={8}"
    assert [r[0] for r in rows(entry("f32[64]", SUM, one, own))] == ["all-reduce"]


LOOP = """
%body (t: (s32[], f32[64])) -> (s32[], f32[64]) {
  %t = (s32[], f32[64]) parameter(0)
  %n = s32[] get-tuple-element(%t), index=0
  %x = f32[64] get-tuple-element(%t), index=1
  %step = s32[] constant(1)
  %next = s32[] add(%n, %step)
  %id = u32[] partition-id()
  %own = f32[8] dynamic-slice(%x, %id), dynamic_slice_sizes={8}
  ROOT %o = (s32[], f32[64]) tuple(%next, %x)
}
""" + condition("(s32[], f32[64])")


def test_what_a_loop_carries_is_kept_whole():
    lines = [
        "%zero = s32[] constant(0)",
        "%t = (s32[], f32[64]) tuple(%zero, %made)",
        "ROOT %w = (s32[], f32[64]) while(%t), condition=%test, body=%body",
    ]
    assert rows(entry("f32[64]", SUM + LOOP, REDUCED, *lines)) == [SUMMED]


# --- An all-gather in disguise --------------------------------------------------------


def gather(name, base="0"):
    called, lines, on = carried(name, "f32[64]")
    laid = [
        f"%zero = f32[] constant({base})",
        "%zeros = f32[64] broadcast(%zero), dimensions={}",
        "%part = f32[8] slice(%p), slice={[0:8]}",
        "%made = f32[64] dynamic-update-slice(%zeros, %part, %at)",
    ]
    reduced = f"ROOT %all = {on} all-reduce(%on), replica_groups={{}}, to_apply=%sum"
    return entry("f32[64]", SUM + called, *laid, lines, reduced)


def size_of(name):
    return 128 if CARRIERS[name].dtype == "bf16" else 256


@pytest.mark.parametrize("name", CARRIERS)
def test_parts_laid_into_zeros_and_handed_on(name):
    size = size_of(name)
    row = ("all-gather", size // 8, size, 2 * 7 * size // 8, DM, LAID)
    assert rows(gather(name)) == [row]


@pytest.mark.parametrize("name", CARRIERS)
def test_minus_zero_is_a_zero_but_in_a_view_of_its_bits(name):
    kind = "all-reduce" if name == "bitcast-convert" else "all-gather"
    assert [c.kind for c in read_hlo(gather(name, "-0"), M42)] == [kind]


# --- Forwards and backwards -----------------------------------------------------------


@pytest.mark.parametrize("name", CARRIERS)
def test_both_ways_through_a_carrier(name):
    called, lines, on = carried(name, "f32[64]")
    producer, end = "%made = f32[64] copy(%p)", f"ROOT %end = {on} sine(%on)"
    module = parse(entry("f32[64]", called, producer, lines, end))
    place = Place(module.entry)
    assert parameter(module, place, "on") == 0
    start = place.computation.by_name["made"]
    taken = [(u.instruction.name, u.operand) for u in uses(module, [(place, start)])]
    assert taken == [("end", 0)]


EXACT = [n for n in CARRIERS if does(CARRIERS[n].opcode) not in {
    Does.MOVED, Does.ROUNDED, Does.VIEWED,
}]  # fmt: skip
STATE = """
%body (t: (s32[], f32[8])) -> (s32[], f32[8]) {{
  %t = (s32[], f32[8]) parameter(0)
  %n = s32[] get-tuple-element(%t), index=0
  %made = f32[8] get-tuple-element(%t), index=1
  {lines}
  ROOT %o = (s32[], f32[8]) tuple(%n, %on)
}}
"""


@pytest.mark.parametrize("name", CARRIERS)
def test_a_loop_passes_on_what_stays_exactly_the_same(name):
    """A reshape is another value: what a loop keeps must have the same elements."""
    called, lines, _ = carried(name, "f32[8]")
    loop = "ROOT %w = (s32[], f32[8]) while(%p), condition=%never, body=%body"
    body = STATE.format(lines=lines)
    module = parse(entry("(s32[], f32[8])", called + body, loop))
    assert passes_on(module, module.entry.root, 1) == (name in EXACT)


# --- As numbers -----------------------------------------------------------------------

# A float's bits are another number as an int, and rounding is for floats.
NOT_INTEGERS = ("bitcast-convert", "transpose", "convert", "reduce-precision")


@pytest.mark.parametrize("name", [n for n in CARRIERS if n not in NOT_INTEGERS])
def test_a_place_that_was_handed_on(name):
    called, lines, _ = carried(name, "u32[]")
    own = "ROOT %own = f32[8] dynamic-slice(%all, %on), dynamic_slice_sizes={8}"
    lines = [REDUCED.replace("%made", "%all"), "%made = u32[] copy(%at)", lines, own]
    assert rows(entry("f32[64]", SUM + called, *lines)) == [SCATTERED]


def number(*lines, device=3):
    module = parse(entry("f32[64]", "", *lines))
    return Reader(module, device).scalar(Place(module.entry), "on")


def test_an_integer_is_repeated_converted_but_not_viewed():
    # A broadcast number is that number, though not the array that was gathered.
    assert number("%on = u32[4] broadcast(%at), dimensions={}") == 24
    assert number("%on = s8[] convert(%at)") == 24
    assert number("%on = s8[] convert(%at)", device=17) == 17 * 8 - 256
    with pytest.raises(Unknown):
        number("%on = s32[] bitcast-convert(%at)")
    with pytest.raises(Unknown):
        number("%f = f32[] convert(%at)", "%on = s32[] convert(%f)")


def test_a_row_of_numbers_stays_one_only_as_a_row():
    table = "%table = u32[8] constant({7, 6, 5, 4, 3, 2, 1, 0})"
    taken = "%on = u32[1] dynamic-slice(%row, %me), dynamic_slice_sizes={1}"
    assert number(table, "%row = u32[8] reshape(%table)", taken) == 4
    with pytest.raises(Unknown):
        number(table, "%row = u32[2,4] reshape(%table)", taken)


COUNTER = """
%body (t: (s32[], s32[])) -> (s32[], s32[]) {{
  %t = (s32[], s32[]) parameter(0)
  %n = s32[] get-tuple-element(%t), index=0
  %limit = s32[] get-tuple-element(%t), index=1
  %step = s32[] constant(1)
  %made = s32[] add(%n, %step)
  {lines}
  ROOT %o = (s32[], s32[]) tuple(%on, %limit)
}}
"""


def count(name, order="LT"):
    called, lines, _ = carried(name, "s32[]")
    called += COUNTER.format(lines=lines)
    called += condition("(s32[], s32[])", "get-tuple-element(%t), index=1", order)
    start = "%zero = s32[] constant(0)\n  %five = s32[] constant(5)"
    state = "%state = (s32[], s32[]) tuple(%zero, %five)"
    loop = "ROOT %w = (s32[], s32[]) while(%state), condition=%test, body=%body"
    module = parse(entry("f32[64]", called, start, state, loop))
    return trips(module, Place(module.entry), module.entry.root)


@pytest.mark.parametrize("name", [n for n in CARRIERS if n not in NOT_INTEGERS])
def test_a_counter_that_was_handed_on(name):
    assert count(name) == 5


def test_a_loop_to_the_exact_number_may_miss_it():
    assert count("copy", "NE") is None


def test_a_place_may_be_chosen_by_an_exact_number():
    lines = [
        "%three = u32[] constant(3)",
        "%is = pred[] compare(%me, %three), direction=EQ",
    ]
    lines.append("%on = u32[] select(%is, %size, %me)")
    assert [number(*lines, device=d) for d in (2, 3)] == [2, 8]


# --- Work -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", [n for n in CARRIERS if n != "transpose"])
def test_who_holds_the_same_is_handed_on(name):
    called, lines, on = carried(name, "f32[8,8]")
    producer = "%made = f32[8,8] copy(%p)"
    dot = "lhs_contracting_dims={1}, rhs_contracting_dims={0}"
    text = entry(
        "f32[8,8]", called, producer, lines, f"ROOT %r = {on} dot(%on, %on), {dot}"
    )
    counted = work(parse(text), M42, {0: frozenset({"data"})})
    assert counted == Work(2 * 8**3, False, 2.0, ("model",), {"model": 1.0})


def test_a_product_in_what_gets_its_operands_later():
    dot = "lhs_contracting_dims={1}, rhs_contracting_dims={0}"
    called = f"""
%product (q: f32[8,8]) -> f32[8,8] {{
  %q = f32[8,8] parameter(0)
  ROOT %r = f32[8,8] dot(%q, %q), {dot}
}}
"""
    lines = [
        "%f = ((), (), (s32[1])) call-start(), to_apply=%product",
        "%g = ((f32[8,8]), f32[8,8]) call-update(%f, %p)",
        f"%h = f32[8,8] call-done(%g)\n  ROOT %r = f32[8,8] dot(%h, %h), {dot}",
    ]
    counted = work(
        parse(entry("f32[8,8]", called, *lines)), M42, {0: frozenset({"data"})}
    )
    assert counted == Work(2 * 2 * 8**3, False, 2.0, ("model",), {"model": 1.0})


@pytest.mark.parametrize(
    "name", [n for n in CARRIERS if len(CARRIERS[n].lines.splitlines()) == 1]
)
def test_a_product_on_its_way_to_its_sum(name):
    called, lines, _ = carried(name, "f32[64]")
    producer = "%made = f32[64] multiply(%p, %p)"
    label = 'metadata={op_name="jit(f)/dot_general"}'
    end = f"ROOT %r = f32[] reduce(%on, %me), dimensions={{0}}, to_apply=%sum, {label}"
    module = parse(entry("f32[64]", SUM + called, producer, lines, end))
    counted = product(module, module.entry, module.entry.root)
    # Of a view of a product's bits the sum is none; a fusion's products are its own.
    plain = does(CARRIERS[name].opcode) in AS_NUMBERS
    assert (counted and counted.flops) == (2 * 64 if plain else None)


# --- What compilers write -------------------------------------------------------------

COMPILED = {
    "optimization_barrier": lax.optimization_barrier,
    "barrier of two": lambda y: lax.optimization_barrier((y + 1, y))[1],
    "call": jax.jit(lambda y: y * 2.0, inline=False),
    "bitcast_convert": lambda y: lax.bitcast_convert_type(y, jnp.int32),
    "reduce_precision": lambda y: lax.reduce_precision(y, 5, 10),
    "astype": lambda y: y.astype(jnp.bfloat16),
    "reshape": lambda y: y.reshape(64),
    "transpose": lambda y: y.T.reshape(16, 4),
}
STAYS = {"bitcast_convert": "bitcast-convert(", "reduce_precision": "reduce-precision("}


@pytest.mark.parametrize("name", COMPILED)
def test_what_cpu_compiles(name):
    mesh = Mesh(np.array(jax.devices()).reshape(4, 2), tuple(M42))

    def own(x):
        y = COMPILED[name](lax.psum(x, "data"))
        size = y.shape[0] // 4
        return lax.dynamic_slice_in_dim(y, lax.axis_index("data") * size, size)

    f = jax.shard_map(
        own, mesh=mesh, in_specs=P(), out_specs=P("data"), check_vma=False
    )
    text = jax.jit(f).lower(jnp.ones((16, 4))).compile().as_text()
    assert STAYS.get(name, "") in text
    assert rows(text) == [("reduce-scatter", 256, 64, 384, ("data",), CUT)]


def test_a_barrier_and_a_call_as_jax_hands_them_to_the_compiler():
    mesh = Mesh(np.array(jax.devices()).reshape(4, 2), tuple(M42))
    doubled = jax.jit(lambda y: y * 2.0, inline=False)

    def own(x):
        y = doubled(lax.optimization_barrier((lax.psum(x, "data"), x))[0])
        return lax.dynamic_slice_in_dim(y, lax.axis_index("data") * 4, 4)

    f = jax.shard_map(
        own, mesh=mesh, in_specs=P(), out_specs=P("data"), check_vma=False
    )
    lowered = jax.jit(f).lower(jnp.ones((16, 4)))
    text = lowered.compiler_ir("hlo").as_hlo_text()
    assert " opt-barrier(" in text
    assert " call(" in text
    assert rows(text) == [("reduce-scatter", 256, 64, 384, ("data",), CUT)]


# --- Broken walks ---------------------------------------------------------------------

WALKS = ("_hlo.collectives", "_hlo.integers", "_hlo.dataflow", "_hlo.parser")
MUTANTS = [
    ("_hlo.dataflow:Place.route",
     "(self.computation.name, self.caller.name, *self.parent.route)",
     "(self.computation.name,)"),
    ("_hlo.dataflow:_ahead", "yield Use($place, $i, None)", "return"),
    ("_hlo.dataflow:_handed_on", "$path and $path[0] != $user.index", "False"),
    ("_hlo.dataflow:_handed_on", "[($place, $user, ($n, *$path))]", "[]"),
    ("_hlo.dataflow:back", "($i.index, *$path)", "$path"),
    ("_hlo.dataflow:_handed_on", "$n and late($user)", "False"),
    ("_hlo.dataflow:_operand", "$user.operands[1:]", "$user.operands"),
    ("_hlo.disguised:is_scattered", "$use.operand != 0", "False"),
    ("_hlo.disguised:_takes_own_slice", "bool($indices) and _differ($starts)",
     "bool($indices)"),
    ("_hlo.disguised:is_gathered", "{*_ZERO, '-0'}", "_ZERO"),
    ("_hlo.disguised:is_gathered", "opcodes.CARRIES", "opcodes.AS_NUMBERS"),
    ("_hlo.disguised:is_gathered", "(opcodes.CARRIES, _ZERO)",
     "(opcodes.CARRIES, {*_ZERO, '-0'})"),
    ("_hlo.opcodes:AS_INTEGERS", "AS_NUMBERS", "CARRIES"),
    ("_hlo.integers:_evaluated", "does($i.opcode) in opcodes.AS_INTEGERS", "False"),
]  # fmt: skip
CHECKS = [
    *((check, (name,)) for name in CARRIERS for check in (
        test_a_slice_of_what_was_handed_on,
        test_a_slice_that_all_take_is_none_of_their_own,
        test_what_also_goes_out_whole_is_no_slice,
        test_minus_zero_is_a_zero_but_in_a_view_of_its_bits,
        test_parts_laid_into_zeros_and_handed_on,
    )),
    *((test_a_place_that_was_handed_on, (n,)) for n in ("bitcast", "copy", "reshape")),
    (test_an_integer_is_repeated_converted_but_not_viewed, ()),
    (test_each_call_of_one_computation_is_looked_at, ()),
    (test_what_lies_beside_it_in_a_tuple_may_go_anywhere, ()),
    (test_the_other_operands_of_a_slice_say_where, ()),
    (test_what_a_loop_carries_is_kept_whole, ()),
]  # fmt: skip


NAMES = ("read_hlo", "Reader", "Unknown", "Place", "parse")


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_broken_walk_is_noticed(broken_package, monkeypatch, mutant):
    copy = broken_package(mutant, *WALKS)
    assert not answers_all(monkeypatch, __name__, copy, NAMES, CHECKS)


def test_an_unbroken_copy_passes(broken_package, monkeypatch):
    copy = broken_package(None, *WALKS)
    assert answers_all(monkeypatch, __name__, copy, NAMES, CHECKS)


# --- The table ------------------------------------------------------------------------


def test_every_row_says_what_and_why():
    assert all(isinstance(what, Does) and why for what, why in OPCODES.values())
    assert {what for what, _ in OPCODES.values()} == set(Does)


def test_every_exchange_has_its_bytes():
    assert {o for o, row in OPCODES.items() if row[0] is Does.EXCHANGED} == set(KINDS)


@pytest.mark.parametrize(
    ("opcode", "what"),
    [
        ("all-gather-start", Does.EXCHANGED),
        ("all-gather-done", Does.SAME),
        ("async-start", Does.CALLS),
        ("async-update", Does.SAME),
        ("fusion-start", Does.CALLS),
        ("copy-start", Does.SAME),
        ("slice-start", Does.LAID),
        ("dynamic-update-slice", Does.LAID),
        ("rng-get-and-update-state", Does.ELSEWHERE),
        ("dot", None),
        ("dynamic-slice", None),  # a part that may be another on each device
        ("reverse", None),
        ("custom-call", None),
    ],
)
def test_what_opcodes_do(opcode, what):
    assert does(opcode) is what


def test_what_differs_on_purpose():
    """Each query leaves out what would make its answer wrong."""
    assert Does.VIEWED in opcodes.CARRIES - AS_NUMBERS  # bits, not numbers
    assert Does.REPEATED in opcodes.AS_INTEGERS - opcodes.CARRIES  # not the same array
    assert {Does.SAME} == AS_IT_IS  # a tuple is not reshaped
    assert Does.CALLS not in opcodes.BY_ELEMENT  # it depends on what is called
