"""The checks of the book's exercises: `from spmd_exercises import check`.

A chapter's are the module `chNN`. Another folder `spmd_exercises` on Python's path may
add chapters of an instructor's own, such as `ch90.py` with `check_90_1`.
"""

from pkgutil import extend_path

from spmd_helpers import CheckFailed as CheckFailed

from ._check import check as check

__path__ = extend_path(__path__, __name__)
__all__ = ["CheckFailed", "check"]
