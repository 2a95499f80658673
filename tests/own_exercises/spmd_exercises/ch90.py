"""Checks of the small release that the tests of grading use."""

import random

from spmd_exercises import CheckFailed


def check_90_1(a, double, limit):
    """Twice a is below the limit, and a is not below 0."""
    if double(a) >= limit:
        raise CheckFailed(f"{a} is too large: twice it is over")
    if abs(a) != a:
        raise CheckFailed(f"{a} is below 0")


def check_90_2(triple):
    """Three of them."""
    for x in (random.randint(2, 9), 11):
        result = triple(x)
        if result != 3 * x:
            raise CheckFailed(f"triple({x}) is {result}: three of them, not so")


def check_90_3(b):
    """The word."""
    if not isinstance(b, str) or b != "done":
        raise CheckFailed(f"b is {b!r}")
