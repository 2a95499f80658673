"""What was measured, as the package hands it out."""

import datetime
import json
from pathlib import Path

import pytest

import spmd_helpers as spmd
from spmd_helpers._errors import NotUnderstood
from spmd_helpers._hardware.measured import _FILES, _FOLDER

KINDS = tuple(_FILES)
EVERY_ROW = ("name", "device", "devices", "jax", "date", "command")


def test_every_stored_file_belongs_to_one_kind():
    named = [name for names in _FILES.values() for name in names]
    there = {path.name for path in Path(str(_FOLDER)).glob("*.json")}
    assert len(set(named)) == len(named)
    assert there <= set(named)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.startswith("tpu")])
def test_rows_say_where_they_come_from(kind):
    rows = spmd.load_measured(kind)
    assert rows
    for row in rows:
        assert all(row[key] for key in EVERY_ROW)
        datetime.date.fromisoformat(row["date"])


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_those_of_the_files(kind):
    files = [Path(str(_FOLDER)) / name for name in _FILES[kind]]
    texts = [file.read_text("utf8") for file in files if file.exists()]
    stored = [row for text in texts for row in json.loads(text)]
    loaded = spmd.load_measured(kind)
    for row in loaded:  # of a trace and a program the files beside
        if "trace" in row:
            assert Path(row.pop("path")).is_file()
        if "trace" in row or "text" in row:
            assert row.pop("hlo").startswith("HloModule")
    assert loaded == stored


def test_refused_programs_say_how_much_they_need():
    rows = spmd.load_measured("tpu-refused")
    assert {row["jax"] for row in rows} >= {"0.10.2", "0.12.0.1"}
    assert all(row["needed_bytes"] > row["available_bytes"] for row in rows)
    assert not any("peak_bytes" in row for row in rows)
    assert all(row["peak_bytes"] for row in spmd.load_measured("tpu-memory"))


def test_rows_are_yours_to_change():
    first = spmd.load_measured("tpu-refused")
    first[0]["state"]["params"] = 0
    assert spmd.load_measured("tpu-refused")[0]["state"]["params"] > 0


@pytest.mark.parametrize("kind", ["tpu-memori", 3, None, ["tpu-memory"]])
def test_an_unknown_kind_is_told(kind):
    with pytest.raises(NotUnderstood, match=r"kind"):
        spmd.load_measured(kind)


def test_a_near_name_is_offered():
    with pytest.raises(NotUnderstood, match="Did you mean 'tpu-refused'"):
        spmd.load_measured("tpu-refuse")
