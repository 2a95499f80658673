"""The glossary plays each collective that it defines."""

import re
import sys
from pathlib import Path

import pytest

from .collectives import KINDS

BOOK = Path(__file__).parents[2] / "book"
sys.path.insert(0, str(BOOK / "_ext"))

from spmd_players import PLAYED, player  # noqa: E402

# What the glossary says that a device sends, of V bytes on a ring of four.
SENDS = {
    "all-gather": 3 / 4,
    "reduce-scatter": 3 / 4,
    "all-reduce": 2 * 3 / 4,
    "all-to-all": 3 / 4,
    "collective-permute": 1,
}


def entry_of(kind: str, text: str) -> str:
    """The term in whose definition a kind is played."""
    before = text[: text.index(f"{{player}} {kind}\n")]
    return re.findall(r"^(\S.*)\n: ", before, re.M)[-1]


def test_every_kind_is_played_in_its_entry():
    text = (BOOK / "glossary.md").read_text("utf8")
    assert [entry_of(kind, text) for kind in KINDS] == [*KINDS]
    assert {*KINDS} == {*PLAYED}


@pytest.mark.parametrize("kind", KINDS)
def test_it_sends_what_the_glossary_says(kind):
    given, got, _ = PLAYED[kind]
    sent = 4 * max(given, got) * SENDS[kind]
    assert f"sent per device: {sent:,.0f} B in all" in str(player(kind))
