"""The stored programs that chapters 14 and 15 read."""

import ast
from pathlib import Path

import pytest

import spmd_helpers as spmd
from tests.book.chapters import ROOT, read

PROGRAMS = {row["name"]: row for row in spmd.load_measured("gpu-programs")}


def functions(text: str) -> dict[str, str]:
    """Name → code of the functions of a text, comments and line breaks aside."""
    return {
        node.name: ast.unparse(node)
        for node in ast.parse(text).body
        if isinstance(node, ast.FunctionDef)
    }


@pytest.mark.parametrize(
    ("file", "chapter", "names"),
    [
        ("mlp.py", "14", ["make_loss"]),
        ("gathered.py", "15", ["gather", "apply", "serial", "ahead"]),
    ],
)
def test_the_compiled_functions_are_those_of_the_chapter(file, chapter, names):
    here = functions((ROOT / "tools" / "measure" / file).read_text("utf8"))
    shown = {}
    for cell in read("solutions", chapter):
        if cell.cell_type == "code" and "def " in cell.source:
            shown |= functions(cell.source)
    assert {name: here[name] for name in names} == {n: shown[n] for n in names}


@pytest.mark.parametrize("name", PROGRAMS)
def test_each_is_a_schedule_that_has_a_total(name):
    row = PROGRAMS[name]
    step = spmd.step_time(row["hlo"], "h200")
    assert step.how == "predicted"
    assert step.devices == row["devices"]
    lanes = {"kernels"} | ({"network"} if row["hosts"] > 1 else {"nvlink"})
    assert set(step.lanes) >= lanes
    places = {
        Path(line.source.split(":")[0]).name for line in step.lines if line.source
    }
    own = {"mlp": "mlp.py", "transformer": "model.py", "layers": "gathered.py"}
    if name.split()[0] in own:
        assert own[name.split()[0]] in places


def test_one_layer_ahead_is_hidden_among_several_layers():
    before, alone, after = (
        spmd.step_time(PROGRAMS[f"layers {name}"]["hlo"], "h200")
        for name in ("serial", "ahead", "ahead, unroll 4")
    )
    assert before.exposed_s > 0.9 * before.lanes["nvlink"]
    assert alone.exposed_s > 0.9 * alone.lanes["nvlink"]
    assert after.exposed_s < 0.1 * after.lanes["nvlink"]
    assert after.total_s < before.total_s
    assert not after.is_tie(before)
