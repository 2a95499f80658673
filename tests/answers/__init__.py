"""Answers people give, right and wrong, by exercise: the measure of the checkers.

A module per chapter holds `ANSWERS`: exercise number to an `Answers`. The solution
in the book and the untouched stub are tried without being listed here.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Answers:
    """Texts of an exercise cell.

    `right` are other right answers than the book's. `wrong` pairs each wrong answer
    with words that its reader has to be told; an answer that raises by itself pairs
    with the name of what it raises.
    """

    right: list[str]
    wrong: list[tuple[str, str]]
