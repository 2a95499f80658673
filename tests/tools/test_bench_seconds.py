"""The predictions that `make bench` sets beside ours."""

import pytest

from tools.bench import seconds


def test_the_scaling_books_arithmetic_by_hand():
    setting = {"batch": 8, "seq": 2048, "d_model": 4096, "layers": 6}
    row = {"model_flops": 2e15, "devices": 2, "parameters": 1e9}
    math = 1e15 / 9.89e14
    for strategy, sent in (
        ("replicated", 4e9),
        ("fsdp constrained", 6e9),
        ("tensor parallel", 8 * 2 * 8 * 2048 * 4096 * 6),
    ):
        row["setting"] = setting | {"strategy": strategy}
        links = sent / 4.5e11
        assert seconds.scaling_book(row) == pytest.approx(
            (max(math, links), math + links)
        )


def test_the_part_without_others(monkeypatch):
    monkeypatch.setattr(seconds, "python_with", lambda name, packages: None)
    title, rows, _, notes = seconds.seconds()
    assert title == "seconds of a step, errors"
    names = [row[0] for row in rows[1:]]
    assert names[:2] == ["ours, kept out", "ours, step_time"]
    assert not any("llm" in name for name in names)
    assert sum("skipped: llm-analysis" in note for note in notes) == 2
    assert any("hespas does not install" in note for note in notes)
    ours = next(row for row in rows if row[0] == "ours, step_time")
    book = next(row for row in rows if row[0] == "scaling book, upper")
    assert float(ours[2].rstrip("%")) < 3 < float(book[2].rstrip("%"))
