"""The same for another chapter."""

from .ch90 import check_90_1 as check_91_1
from .ch90 import check_90_2 as check_91_2
from .ch90 import check_90_3 as check_91_3

__all__ = ["check_91_1", "check_91_2", "check_91_3"]
