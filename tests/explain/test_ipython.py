"""`%load_ext spmd_helpers`, in a real IPython and in a real kernel."""

import json
import re
import subprocess
import sys
import textwrap

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

# Runs cells in an IPython shell and prints, of each, what it showed.
SHELL = """
import json, sys
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
shell = InteractiveShell.instance(colors="nocolor")
shown = []
for cell in json.load(sys.stdin):
    with capture_output() as seen:
        shell.run_cell(cell)
    shown.append([seen.stdout + seen.stderr, [o.data for o in seen.outputs]])
print("RESULT" + json.dumps(shown))
"""
LOAD = "%load_ext spmd_helpers"
KNOWN = "raise NameError('unbound axis name: data')"
UNKNOWN = "{}['w']"


def run(*cells: str) -> list[tuple[str, list[dict]]]:
    """(text, displayed data) of each cell."""
    done = subprocess.run(
        [sys.executable, "-c", SHELL],
        input=json.dumps([textwrap.dedent(cell) for cell in cells]),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return [tuple(one) for one in json.loads(done.stdout.rpartition("RESULT")[2])]


@pytest.fixture(scope="module")
def session():
    """One shell: what each cell showed, by the names of the cells."""
    cells = {
        "known, before": KNOWN,
        "unknown, before": UNKNOWN,
        "unload first": "%unload_ext spmd_helpers",
        "load": LOAD,
        "known": KNOWN,
        "unknown": UNKNOWN,
        "fine": "1 + 1",
        "cause": "raise RuntimeError('step 3 failed') from"
        " NameError('unbound axis name: x')",
        "syntax": "x = = 1",
        "syntax inside": "exec('x = = 1')",
        "interrupt": "raise KeyboardInterrupt",
        "interrupt while handling": "raise KeyboardInterrupt from"
        " NameError('unbound axis name: x')",
        "syntax while handling": "raise SyntaxError('no') from"
        " NameError('unbound axis name: x')",
        "own": """
            import spmd_helpers as spmd
            spmd.sharding((6, 10), spec := None, mesh={'data': 2}, dtype='float33')
        """,
        "exercise": """
            from spmd_exercises import check
            check('6.2', 5)
        """,
        "answer": f"""
            devices = spmd.use_devices(8)
            def answer(x, w):
                {KNOWN}
            check('6.4', answer)
        """,
        "load again": LOAD,
        "known, loaded twice": KNOWN,
        "reload": "%reload_ext spmd_helpers",
        "known, reloaded": KNOWN,
        "call the hook twice": """
            from spmd_helpers._explain import ipython as _extension
            _extension.load_ipython_extension(get_ipython())
            _extension.load_ipython_extension(get_ipython())
        """,
        "known, hooked twice": KNOWN,
        "explain": "print(spmd.explain())",
        "break it": "_extension.explain = None",
        "known, broken": KNOWN,
        "raise in it": """
            def raising(error):
                raise MemoryError('no more')
            _extension.explain = raising
        """,
        "known, raising": KNOWN,
        "mend it": "from spmd_helpers._explain.explain import explain\n"
        "_extension.explain = explain",
        "known, mended": KNOWN,
        "unload": "%unload_ext spmd_helpers",
        "known, after": KNOWN,
    }
    return dict(zip(cells, run(*cells.values()), strict=True))


def same_traceback(text: str, other: str) -> bool:
    """Equal up to the number of the cell."""
    strip = lambda text: re.sub(r"In\[\d+\]|In \[\d+\]", "In[]", text)  # noqa: E731
    return strip(text) == strip(other)


def test_a_known_error_is_explained_below_its_traceback(session):
    before, nothing = session["known, before"]
    assert nothing == []
    assert before.rstrip().endswith("NameError: unbound axis name: data")
    text, [shown] = session["known"]
    assert same_traceback(text, before)
    assert set(shown) == {"text/plain", "text/html"}
    lines = shown["text/plain"].splitlines()
    assert 2 <= len(lines) <= 5
    assert lines[0].startswith("means    No axis named 'data' exists where this runs.")
    assert shown["text/html"].startswith('<table class="spmd-explain"')


def test_the_cause_is_explained(session):
    text, [shown] = session["cause"]
    assert "step 3 failed" in text
    assert "No axis named 'x'" in shown["text/plain"]


@pytest.mark.parametrize(
    "cell",
    [
        *("unload first", "load", "unknown", "fine", "syntax", "syntax inside"),
        *("syntax while handling", "interrupt", "interrupt while handling", "own"),
        *("exercise", "load again", "reload", "unload", "known, after"),
    ],
)
def test_nothing_is_shown(session, cell):
    assert session[cell][1] in ([], [{"text/plain": "2"}])


def test_other_errors_look_as_before(session):
    assert same_traceback(session["unknown"][0], session["unknown, before"][0])
    assert "SyntaxError" in session["syntax"][0]
    assert "SyntaxError" in session["syntax inside"][0]
    assert "KeyboardInterrupt" in session["interrupt"][0]
    assert "NotUnderstood" in session["own"][0]
    assert "Exercise 6.2, not yet: w_spec: 5 is not a P(...)" in session["exercise"][0]
    assert same_traceback(session["known, after"][0], session["known, before"][0])


def test_an_answer_that_raises_is_explained(session):
    text, shown = session["answer"]
    assert "Exercise 6.4, not yet: `answer` (line" in text
    assert "raised NameError: unbound axis name: data" in text
    assert len(shown) == 1


@pytest.mark.parametrize(
    "cell", ["known, loaded twice", "known, reloaded", "known, hooked twice"]
)
def test_loaded_twice_it_shows_once(session, cell):
    assert session[cell][1] == session["known"][1]


def test_explain_takes_the_last_error(session):
    text, _ = session["explain"]
    assert text == session["known"][1][0]["text/plain"] + "\n"


@pytest.mark.parametrize("cell", ["known, broken", "known, raising"])
def test_what_breaks_inside_covers_nothing(session, cell):
    text, shown = session[cell]
    assert shown == []
    assert same_traceback(text, session["known, before"][0])
    assert session["known, mended"][1] == session["known"][1]


# In a kernel, with JAX.

CELLS = {
    "jax": "import spmd_helpers as spmd\n"
    "spmd.use_devices(8)\n"
    "import jax, jax.numpy as jnp\n"
    "from jax import lax, P\n"
    "mesh = jax.make_mesh((8,), ('x',), (jax.sharding.AxisType.Auto,))\n"
    "f = jax.shard_map(lambda v: lax.psum(v, 'y'),\n"
    "                  mesh=mesh, in_specs=P('x'), out_specs=P())",
    "before": "f(jnp.arange(8.0))",
    "load": LOAD,
    "expected": "f(jnp.arange(8.0))",
    "last": "f(jnp.arange(8.0))",
}


def traceback_of(cell) -> list[str]:
    [error] = [out for out in cell.outputs if out.output_type == "error"]
    return [
        line.split("Cell In[")[-1].partition("]")[2] or line for line in error.traceback
    ]


@pytest.fixture(scope="module")
def notebook():
    """A notebook that was run until a cell failed; the cells by name."""
    cells = [nbformat.v4.new_code_cell(source) for source in CELLS.values()]
    by_name = dict(zip(CELLS, cells, strict=True))
    for name in ("before", "expected"):
        by_name[name].metadata["tags"] = ["raises-exception"]
    client = NotebookClient(
        nbformat.v4.new_notebook(cells=cells), timeout=240, kernel_name="python3"
    )
    with pytest.raises(CellExecutionError, match="AssertionError"):
        client.execute()
    return by_name


def test_in_a_kernel_the_explanation_follows_the_error(notebook):
    error, shown = notebook["last"].outputs
    assert (error.output_type, error.ename) == ("error", "AssertionError")
    assert shown.output_type == "display_data"
    assert shown.data["text/plain"].splitlines()[1:] == [
        "instead  lax.psum(x, mesh.axis_names[0])  # one of the mesh's own names",
        "chapter  2, jit sharding",
    ]
    assert "psum names an axis that the mesh does not have" in shown.data["text/html"]


def test_in_a_kernel_the_traceback_is_unchanged(notebook):
    assert traceback_of(notebook["last"]) == traceback_of(notebook["before"])


def test_in_a_kernel_an_expected_error_is_not_explained(notebook):
    assert [out.output_type for out in notebook["expected"].outputs] == ["error"]


def test_a_tag_that_the_front_end_sends(monkeypatch):
    """JupyterLab sends the tags of a cell with it."""
    import IPython

    from spmd_helpers._explain.ipython import _is_expected

    class Shell:
        def get_parent(self):
            return self.message

    shell = Shell()
    monkeypatch.setattr(IPython, "get_ipython", lambda: shell)
    for message, expected in (
        ({"metadata": {"tags": ["raises-exception"]}, "content": {}}, True),
        ({"metadata": {"tags": ["check-1.1"]}, "content": {}}, False),
        ({"metadata": {}, "content": {"stop_on_error": False}}, True),
        ({"metadata": {}, "content": {"stop_on_error": True}}, False),
        ({}, False),
    ):
        shell.message = message
        assert _is_expected() is expected
    monkeypatch.setattr(IPython, "get_ipython", lambda: None)
    assert _is_expected() is False
