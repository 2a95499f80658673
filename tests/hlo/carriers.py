"""Each way in which a compiled program hands a value on, as lines of HLO text.

In the lines `%made` is the value, `{t}` its type, and `%on` what it is handed on as.
"""

from typing import NamedTuple

CALLED = """
%called (q: {t}) -> {t} {{
  %q = {t} parameter(0)
  ROOT %r = {t} copy(%q)
}}

%two (q: {t}) -> ({t}, {t}) {{
  %q = {t} parameter(0)
  %n = {t} custom-call()
  ROOT %r = ({t}, {t}) tuple(%n, %q)
}}

%taken (q: ({t}, {t})) -> {t} {{
  %q = ({t}, {t}) parameter(0)
  ROOT %r = {t} get-tuple-element(%q), index=1
}}

%outer (q: {t}) -> {t} {{
  %q = {t} parameter(0)
  ROOT %r = {t} fusion(%q), kind=kLoop, calls=%called
}}
"""


class Carrier(NamedTuple):
    """Lines that hand `%made` on, and the opcode whose row in the table they need."""

    opcode: str
    lines: str
    dtype: str | None = None  # of what comes out, where it is another


PAIR = "%pair = ({t}, {t}) tuple(%made, %made)\n"
CARRIERS = {
    "copy": Carrier("copy", "%on = {t} copy(%made)"),
    "copy of a tuple": Carrier(
        "copy",
        PAIR + "%c = ({t}, {t}) copy(%pair)\n%on = {t} get-tuple-element(%c), index=1",
    ),
    "copy-start": Carrier(
        "copy", "%c = ({t}, {t}, u32[]) copy-start(%made)\n%on = {t} copy-done(%c)"
    ),
    "opt-barrier": Carrier("opt-barrier", "%on = {t} opt-barrier(%made)"),
    "opt-barrier of a tuple": Carrier(
        "opt-barrier",
        PAIR + "%b = ({t}, {t}) opt-barrier(%pair)\n"
        "%on = {t} get-tuple-element(%b), index=0",
    ),
    "optimization-barrier": Carrier(
        "optimization-barrier", "%on = {t} optimization-barrier(%made)"
    ),
    "optimization-barrier of a tuple": Carrier(
        "optimization-barrier",
        PAIR + "%b = ({t}, {t}) optimization-barrier(%pair)\n"
        "%on = {t} get-tuple-element(%b), index=0",
    ),
    "add-dependency": Carrier(
        "add-dependency", "%k = token[] after-all()\n"
        "%on = {t} add-dependency(%made, %k)"
    ),
    "domain": Carrier("domain", "%on = {t} domain(%made)"),
    "bitcast": Carrier("bitcast", "%on = {t} bitcast(%made)"),
    "reshape": Carrier("reshape", "%on = {t} reshape(%made)"),
    "transpose": Carrier("transpose", "%on = {t} transpose(%made), dimensions={{0}}"),
    "convert": Carrier("convert", "%on = {t} convert(%made)", "bf16"),
    "reduce-precision": Carrier(
        "reduce-precision",
        "%on = {t} reduce-precision(%made), exponent_bits=5, mantissa_bits=10",
    ),
    "bitcast-convert": Carrier(
        "bitcast-convert", "%on = {t} bitcast-convert(%made)", "s32"
    ),
    "tuple": Carrier("tuple", PAIR + "%on = {t} get-tuple-element(%pair), index=1"),
    "get-tuple-element": Carrier(
        "get-tuple-element", PAIR + "%on = {t} get-tuple-element(%pair), index=0"
    ),
    "tuple in a tuple": Carrier(
        "tuple",
        PAIR + "%u = ({t}, ({t}, {t})) tuple(%made, %pair)\n"
        "%v = ({t}, {t}) get-tuple-element(%u), index=1\n"
        "%on = {t} get-tuple-element(%v), index=0",
    ),
    "fusion": Carrier("fusion", "%on = {t} fusion(%made), kind=kLoop, calls=%called"),
    "fusion of several": Carrier(
        "fusion",
        "%f = ({t}, {t}) fusion(%made), kind=kLoop, calls=%two\n"
        "%on = {t} get-tuple-element(%f), index=1",
    ),
    "fusion in a call": Carrier("call", "%on = {t} call(%made), to_apply=%outer"),
    "fusion-start": Carrier(
        "fusion",
        "%f = (({t}), {t}) fusion-start(%made), kind=kLoop, calls=%called\n"
        "%on = {t} fusion-done(%f)",
    ),
    "call": Carrier("call", "%on = {t} call(%made), to_apply=%called"),
    "call of a tuple": Carrier(
        "call", PAIR + "%on = {t} call(%pair), to_apply=%taken"
    ),
    "call-start": Carrier(
        "call",
        "%f = (({t}), {t}) call-start(%made), to_apply=%called\n"
        "%on = {t} call-done(%f)",
    ),
    # As TPU writes a lookup that runs beside other work.
    "call-start, its operands later": Carrier(
        "call",
        "%f = ((), (), (s32[1])) call-start(), to_apply=%called\n"
        "%g = (({t}), {t}) call-update(%f, %made)\n%on = {t} call-done(%g)",
    ),
    "async-start": Carrier(
        "async-start",
        "%f = (({t}), {t}) async-start(%made), calls=%called\n"
        "%g = (({t}), {t}) async-update(%f)\n%on = {t} async-done(%g)",
    ),
}  # fmt: skip


def carried(name, t):
    """The computations and the lines of a carrier, and the type that comes out."""
    carrier = CARRIERS[name]
    on = t if carrier.dtype is None else carrier.dtype + t[t.index("[") :]
    lines = carrier.lines.format(t=on).replace("\n", "\n  ")
    return CALLED.format(t=t), lines, on
