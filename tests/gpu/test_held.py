"""What `gpu_mesh` says beside what real H200s did: the stored rows, and their page."""

import pytest

import spmd_helpers as spmd

ROWS = spmd.load_measured("gpu-absent")
CARD = {(r["name"], r["devices"]): r for r in ROWS if r["how"] == "card"}
OTHER = [row for row in ROWS if row["how"] in ("hidden", "here")]


def test_ten_programs_ran_on_one_card_and_on_two():
    for count in (1, 2):
        assert len({name for name, devices in CARD if devices == count}) == 10
    assert {row["device"] for row in ROWS} == {"NVIDIA H200"}


@pytest.mark.parametrize("key", CARD, ids=str)
def test_the_peak_beside_the_card_is_the_allocators(key):
    row = CARD[key]
    assert row["allocator_peak_bytes"] == pytest.approx(row["peak_bytes"], rel=1e-4)


def test_exchanges_are_those_beside_the_card():
    assert len(OTHER) == 20 + 2 * 18  # two versions had no cuDNN
    for row in OTHER:
        beside = CARD[row["name"], row["devices"]]["collectives"]
        assert row["collectives"] == beside, (row["name"], row["jax"])
        assert (row["devices"] == 2) == bool(beside), row["name"]


# Programs whose kernels a card chooses otherwise, and by how much the peak differs.
TUNED = {"mlp": 0.025, "mixture_of_experts": 0.045, "recurrent": 0.15}


def test_the_peak_without_the_card_by_the_same_jax():
    for row in OTHER:
        if row["how"] == "hidden":
            used = CARD[row["name"], row["devices"]]["allocator_peak_bytes"]
            near = TUNED.get(row["name"], 0.01)
            assert row["peak_bytes"] == pytest.approx(used, rel=near), row["name"]


def test_the_difference_is_the_tuning():
    """Beside the card, without trying kernels out, the peak is that without it."""
    hidden = {(r["name"], r["devices"]): r for r in ROWS if r["how"] == "hidden"}
    untuned = [row for row in ROWS if row["how"] == "untuned"]
    assert {row["name"] for row in untuned} >= {*TUNED}
    for row in untuned:
        assert row["peak_bytes"] == hidden[row["name"], row["devices"]]["peak_bytes"]


def test_the_part_of_a_card_that_programs_get():
    """What is compared with a program's peak: a little less runs, a little more not."""
    from spmd_helpers._gpu.cards import CARDS
    from spmd_helpers._gpu.memory import _SHARE

    pools = [row for row in ROWS if row["how"] == "pool"]
    ours = _SHARE * CARDS["h200"].memory_bytes
    assert {row["runs"] for row in pools if row["part"] < 1} == {True}
    assert {row["runs"] for row in pools if row["part"] > 1} == {False}
    for row in (*pools, *CARD.values()):
        assert row["pool_bytes"] == pytest.approx(ours, rel=1e-4)
