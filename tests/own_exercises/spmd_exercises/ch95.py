"""The same for another chapter."""

from .ch90 import check_90_1 as check_95_1
from .ch90 import check_90_2 as check_95_2
from .ch90 import check_90_3 as check_95_3

__all__ = ["check_95_1", "check_95_2", "check_95_3"]
