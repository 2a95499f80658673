"""The minutes under a chapter's title: what is counted, and at which rate."""

import importlib.util
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SPEC = importlib.util.spec_from_file_location(
    "spmd_heads", ROOT / "book" / "_ext" / "spmd_heads.py"
)
heads = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(heads)


def markdown(text):
    return {"cell_type": "markdown", "metadata": {}, "source": text}


def code(lines, *outputs, tags=()):
    metadata, source = {"tags": list(tags)}, "x\n" * lines
    cell = {"cell_type": "code", "metadata": metadata, "source": source}
    return cell | {"outputs": list(outputs)}


PRINTED = {"output_type": "stream", "text": ["a\n"] * 30}
DRAWN = {"output_type": "display_data", "data": {"text/plain": "b\n" * 30}}
DRAWING = {
    "data": {"text/html": ['<svg class="spmd-drawing">'], "text/plain": "c\n" * 30}
}
FRAME = '<li class="spmd-play-frame">'
PLAYER = {
    "data": {"text/html": FRAME * 9 + 'class="spmd-drawing"', "text/plain": "c\n" * 30}
}
IMAGE = {"data": {"image/svg+xml": "<svg/>", "text/plain": "<Figure>"}}


@pytest.mark.parametrize(
    ("cells", "minutes"),
    [
        ([markdown("word " * 360)], (2, 0, 0)),
        ([code(45)], (3, 0, 0)),
        ([code(45, tags=["hide-input"])], (1, 0, 0)),
        ([code(0, PRINTED, DRAWN)], (2, 0, 0)),
        ([code(0, *[IMAGE] * 10)], (2, 0, 0)),
        ([code(0, *[DRAWING] * 10)], (2, 0, 0)),
        ([code(0, *[PLAYER] * 5)], (4, 0, 0)),
        ([markdown("*Read, 3 minutes.* Why?"), code(15)], (1, 0, 3)),
        (
            [code(30), markdown("## Further: more\n" + "word " * 360), code(15)],
            (2, 3, 0),
        ),
        ([markdown("## Further: x\n\n## Takeaways\n" + "word " * 360)], (2, 0, 0)),
    ],
)
def test_what_is_counted(cells, minutes):
    assert heads.minutes_of({"cells": cells}) == minutes


CHAPTERS = sorted((ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb"))


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_every_core_is_half_an_hour_at_most(path):
    core, _, _ = heads.minutes_of(json.loads(path.read_text("utf8")))
    assert 15 <= core <= 30
