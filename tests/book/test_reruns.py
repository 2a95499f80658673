"""What outlives its cell works on when the notebook is run again in the same kernel."""

import symtable

import nbformat
import pytest

from tests.book.chapters import CHAPTERS

REGISTERED = "jax.monitoring.register_event_duration_secs_listener(listen)"


def globals_of(source: str, function: str) -> set[str]:
    """The names that a function reads from its module."""
    table = symtable.symtable(source, "cell", "exec")
    (one,) = [child for child in table.get_children() if child.get_name() == function]
    return set(one.get_globals())


CELLS = [
    pytest.param(cell.source, id=f"{path.stem[:2]} {cell.id}")
    for path in CHAPTERS
    for cell in nbformat.read(path, as_version=4).cells
    if cell.cell_type == "code" and REGISTERED in cell.source
]


def test_the_listeners_are_there():
    assert len(CELLS) == 3


@pytest.mark.parametrize("source", CELLS)
def test_a_listener_reads_no_name_that_a_later_cell_may_bind_again(source):
    """JAX calls it to the end of the process, whatever `compiled` is by then."""
    assert globals_of(source, "listen") == set()


def test_one_that_reads_such_a_name_is_seen():
    source = "found = []\ndef listen(event):\n    found.append(event)\n"
    assert globals_of(source, "listen") == {"found"}
