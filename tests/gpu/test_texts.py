"""Programs for 16 GPUs in two hosts, as two versions of the compiler print them.

`make gpu` writes the texts again, with the bytes that the compiler has for temporaries.
"""

import json
import lzma
from pathlib import Path

import pytest

from spmd_helpers._hlo.collectives import read_hlo
from spmd_helpers._hlo.live import live_at_peak
from spmd_helpers._hlo.parser import parse

TEXTS = Path(__file__).parents[1] / "data" / "gpu"
ABOUT = {
    (about["jax"], name): size
    for path in sorted(TEXTS.glob("texts_*.json"))
    for about in [json.loads(path.read_text("utf8"))]
    for name, size in about["temp_bytes"].items()
}


def text(version, name):
    return lzma.decompress((TEXTS / f"{name}_{version}.hlo.xz").read_bytes()).decode()


@pytest.mark.parametrize(("version", "name"), ABOUT, ids=str)
def test_temporaries_are_estimated_from_the_text(version, name):
    """What is smaller than 1 KiB is not counted, and the compiler rounds up."""
    live = sum(one.shape.nbytes for one in live_at_peak(parse(text(version, name))))
    assert live == pytest.approx(ABOUT[version, name], rel=0.12)


@pytest.mark.parametrize(("version", "name"), ABOUT, ids=str)
def test_what_is_exchanged(version, name):
    collectives = read_hlo(text(version, name), {"data": 16})
    assert {c.axes for c in collectives} == {("data",)}
    assert {c.upper_bound for c in collectives} == {False}
    moved = [(c.kind, c.count, c.result_bytes) for c in collectives]
    if name == "mlp":  # six weights of 64 · 64 floats, in one exchange each way
        assert moved == [
            ("all-gather", 1, 6 * 64 * 64 * 4),
            ("reduce-scatter", 1, 6 * 64 * 64 * 4 // 16),
            ("all-reduce", 1, 4),
        ]
    if name == "recurrent":  # eight steps, each with a state of rows · 64 floats
        counts = {c.count for c in collectives if c.phase == "forward"}
        assert counts <= {1, 8}
        assert 8 in counts
    if name == "embedding":  # the rows travel, the table of 1024 · 16 floats does not
        assert max(size for _, _, size in moved) < 1024 * 16 * 4


def test_there_are_texts_of_both_versions():
    assert {"0.10.2", "0.12.0.1"} <= {version for version, _ in ABOUT}
