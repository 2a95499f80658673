"""Checks of the small chapter that the tests of notebooks make."""

from spmd_exercises import CheckFailed


def check_80_1(answer):
    """Three."""
    if answer != 3:
        raise CheckFailed(f"{answer} is not one more than two")


def check_80_2(double):
    """Twice x."""
    if double(3) != 6:
        raise CheckFailed(f"double(3) is {double(3)}")
