"""The checks of the book's exercises: `from spmd_exercises import check`."""

from spmd_helpers import CheckFailed as CheckFailed

from ._check import check as check

__all__ = ["CheckFailed", "check"]
