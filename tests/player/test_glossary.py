"""The glossary plays each collective that it defines."""

import re
import sys
from pathlib import Path
from types import SimpleNamespace

import docutils.core
import docutils.nodes
import pytest

from .collectives import KINDS

BOOK = Path(__file__).parents[2] / "book"
sys.path.insert(0, str(BOOK / "_ext"))

from spmd_players import (  # noqa: E402
    PLAYED,
    memory_timeline,
    play_terms,
    player,
    with_units,
)

# What the glossary says that a device sends, of V bytes on a ring of four.
SENDS = {
    "all-gather": 3 / 4,
    "reduce-scatter": 3 / 4,
    "all-reduce": 2 * 3 / 4,
    "all-to-all": 3 / 4,
    "collective-permute": 1,
}


def test_every_kind_is_a_term():
    text = (BOOK / "glossary.md").read_text("utf8")
    terms = re.findall(r"^(\S.*)\n: ", text, re.M)
    assert [term for term in terms if term in PLAYED] == sorted(KINDS)
    assert {*KINDS} == {*PLAYED}


def test_it_is_played_under_its_term():
    document = docutils.core.publish_doctree(
        "term\n  Words.\n\nall-gather\n  Each has all.\n"
    )
    play_terms(SimpleNamespace(env=SimpleNamespace(docname="book/other")), document)
    assert "spmd-play" not in document.pformat()
    play_terms(SimpleNamespace(env=SimpleNamespace(docname="book/glossary")), document)
    first, second = document.findall(docutils.nodes.definition)
    assert "spmd-play" not in first.pformat()
    assert "Play an all-gather" in second.pformat()
    assert second[0].astext() == "Each has all."


@pytest.mark.parametrize("kind", KINDS)
def test_it_sends_what_the_glossary_says(kind):
    given, got, _ = PLAYED[kind]
    sent = 4 * max(given, got) * SENDS[kind]
    assert f"sent per device: {sent:,.0f} B in all" in str(player(kind))


def test_a_step_is_played_that_fits_in_the_end():
    """What the calculator's page says of its figure."""
    replicated, sharded, recomputed = (c.memory for c in memory_timeline().courses)
    assert not replicated.fits("h100", margin=1.0)
    assert not sharded.fits("h100", margin=1.0)
    assert recomputed.fits("h100")
    gathered = [line for line in sharded.lines if line.name.startswith("gathered")]
    assert gathered


def test_a_number_stays_on_the_line_of_its_unit():
    page = player("all-gather")._repr_mimebundle_()["text/html"]
    kept = with_units(page)
    assert "has one shard, 256\N{NO-BREAK SPACE}B.</p>" in kept
    assert kept.replace("\N{NO-BREAK SPACE}", " ") == page
    written = "<p>Each device has 256 B.</p>"  # no player's
    assert with_units(written) == written
