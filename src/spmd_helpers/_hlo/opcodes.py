"""What each opcode of HLO does to the values that it is given: the one table of it.

What isn't named here makes something new of its operands, nothing else being known.
"""

from enum import Enum, auto


class Does(Enum):
    """What an instruction does to its first operand, or to all of them."""

    SAME = auto()  # hands it on as it is, tuples too
    MOVED = auto()  # the same elements, in other places
    ROUNDED = auto()  # the same elements in the same places, as another type
    VIEWED = auto()  # the same bits, read as another type
    REPEATED = auto()  # each element several times
    PACKED = auto()  # all operands, as the elements of a tuple
    PICKED = auto()  # one element of a tuple
    EACH = auto()  # of one element of each operand an element of the result
    LAID = auto()  # each element of the result is one of an operand
    CONSTANT = auto()  # needs no operand, and is the same each time
    CALLS = auto()  # runs a computation on all operands: the result is its root
    LOOPS = auto()  # runs computations on a state, again and again
    BRANCHES = auto()  # runs one of several computations
    EXCHANGED = auto()  # brings in what other devices hold
    ELSEWHERE = auto()  # comes from outside, or from a state that isn't shown


def _all(names: str, does: Does, why: str) -> dict[str, tuple[Does, str]]:
    return dict.fromkeys(names.split(), (does, why))


# An asynchronous pair has the row of what it does: see `does`.
OPCODES: dict[str, tuple[Does, str]] = {
    "copy": (Does.SAME, "into another buffer"),
    "opt-barrier": (Does.SAME, "only keeps the compiler from moving it"),
    "optimization-barrier": (Does.SAME, "the same, by StableHLO's name"),
    "add-dependency": (Does.SAME, "only says what must be done before"),
    "domain": (Does.SAME, "only marks where a sharding begins"),
    "bitcast": (Does.MOVED, "the same memory with other dimensions"),
    "reshape": (Does.MOVED, "other dimensions"),
    "transpose": (Does.MOVED, "dimensions in another order"),
    "convert": (Does.ROUNDED, "each number as near as the other type has it"),
    "reduce-precision": (Does.ROUNDED, "as a smaller type would hold it"),
    "bitcast-convert": (Does.VIEWED, "a float's bits are another number as an int"),
    "broadcast": (Does.REPEATED, "along new dimensions"),
    "tuple": (Does.PACKED, "operand n is element n"),
    "get-tuple-element": (Does.PICKED, "the element of this index"),
    **_all(
        "abs add and clamp compare cosine divide exponential log maximum minimum "
        "multiply negate or power rsqrt select sine sqrt subtract tanh",
        *(Does.EACH, "element by element"),
    ),
    "concatenate": (Does.LAID, "side by side"),
    "dynamic-update-slice": (Does.LAID, "one over a part of the other"),
    "pad": (Does.LAID, "with a border"),
    "slice": (Does.LAID, "a part, the same on every device"),
    "constant": (Does.CONSTANT, "written in the text"),
    "iota": (Does.CONSTANT, "0, 1, 2, …"),
    "fusion": (Does.CALLS, "one kernel for several instructions"),
    "call": (Does.CALLS, "a function that was not inlined"),
    "async-start": (Does.CALLS, "runs beside what follows, to its async-done"),
    "while": (Does.LOOPS, "the state goes through its body"),
    "conditional": (Does.BRANCHES, "operand 0 chooses, one operand for each branch"),
    "all-gather": (Does.EXCHANGED, "the parts of all, side by side"),
    "all-reduce": (Does.EXCHANGED, "the sum of all"),
    "all-to-all": (Does.EXCHANGED, "one part from each"),
    "collective-broadcast": (Does.EXCHANGED, "that of one"),
    "collective-permute": (Does.EXCHANGED, "that of another"),
    "ragged-all-to-all": (Does.EXCHANGED, "one part from each, of many sizes"),
    "reduce-scatter": (Does.EXCHANGED, "one part of the sum of all"),
    "infeed": (Does.ELSEWHERE, "what the host sends"),
    "recv": (Does.ELSEWHERE, "what another program sends"),
    "rng": (Does.ELSEWHERE, "random numbers, of a state of the device"),
    "rng-get-and-update-state": (Does.ELSEWHERE, "that state"),
}

# The attributes that name the computations an opcode runs, in the order it runs them.
ENTERS: dict[str, tuple[str, ...]] = {
    "fusion": ("calls",),
    "call": ("to_apply", "calls"),
    "async-start": ("calls", "called_computations"),
    "custom-call": ("called_computations", "calls"),
    "while": ("condition", "body"),
    "conditional": ("branch_computations", "true_computation", "false_computation"),
}

# What hands an array on: its elements are those of the first operand. Of a view of
# another type that is true of the bits alone: see what goes without it.
CARRIES = frozenset({Does.SAME, Does.MOVED, Does.ROUNDED, Does.VIEWED})
# As numbers: the bits of a float are another number as an int. -0 is not zero there.
AS_NUMBERS = CARRIES - {Does.VIEWED}
# As a row of numbers on each device: a number that is repeated is that number.
AS_INTEGERS = AS_NUMBERS | {Does.REPEATED}
# Tuples too, and as exactly the same value: what a loop hands on unchanged.
AS_IT_IS = frozenset({Does.SAME})
# What leaves of an array that was gathered still that array: no element of the result
# needs more than one element of each operand.
BY_ELEMENT = AS_INTEGERS | {Does.VIEWED, Does.EACH, Does.LAID, Does.CONSTANT}


def base(opcode: str) -> str:
    """The opcode without what marks the start of an asynchronous pair."""
    return opcode if opcode in OPCODES else opcode.removesuffix("-start")


def does(opcode: str) -> Does | None:
    """What an opcode does; None if something new.

        >>> does("all-gather-start"), does("all-gather-done"), does("dot")
        (<Does.EXCHANGED: 14>, <Does.SAME: 1>, None)

    A `-start` does what its opcode says; `-update` and `-done` hand that on.
    """
    if opcode.endswith(("-done", "-update")):
        return Does.SAME
    row = OPCODES.get(base(opcode))
    return row[0] if row else None


def enters(opcode: str) -> tuple[str, ...]:
    """The attributes that name the computations which an instruction runs."""
    return ENTERS.get(base(opcode), ())
