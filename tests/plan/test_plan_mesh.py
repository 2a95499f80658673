"""`plan_mesh`: order, memory and seconds of strategies, words, and what is refused."""

import copy
import pickle
import re
from collections import Counter
from dataclasses import replace
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import spmd_helpers as spmd
from spmd_helpers._plan import candidates, cluster, exchanges, seconds
from spmd_helpers._plan import plan_mesh as plan_module
from spmd_helpers._plan.plan_mesh import HOSTS, TPU_CHIPS
from spmd_helpers._plan.step import Step
from spmd_helpers._time.rates import rates_of
from spmd_helpers._training import many
from spmd_helpers._training.many import Counts

LLAMA = spmd.MODELS["llama-3-8b"]
SMALL = spmd.Transformer(
    *(4, 1024, 16),
    **{"kv_heads": 4, "d_ff": 4096, "vocab": 8192, "seq": 2048, "gated": True},
    **{"tied": False, "biases": False, "positions": "rotary", "norm": "rms"},
    name="small",
)
STACK = spmd.MLP(4, 1024, 4096, name="stack")


def plan(model=SMALL, topology="h100:1x8", batch=32, **more):
    return spmd.plan_mesh(model, topology, batch=batch, **more)


ARRAY, FSDP = np.array([1, 2]), {"axes": ("fsdp",)}
PLAN = plan()
LARGE = plan(LLAMA, seq=4096)


def shape(one):
    return one.step.mesh


def words_of(plan):
    """The table of a plan in one line."""
    return " ".join(plan.table.split())


# --- All strategies, by brute force ---------------------------------------------------


def test_every_mesh_that_divides_is_planned_and_no_other():
    """Counted by hand for four devices, a batch of 4, two heads of keys and values."""
    model = replace(SMALL, heads=2, kv_heads=2, head_dim=64, seq=4)
    planned = plan(model, "h100:1x4", 4)
    wanted = set()
    for data in (1, 2, 4):
        for fsdp in (1, 2, 4):
            for context in (1, 2, 4):
                for split in (1, 2, 4):
                    if data * fsdp * context * split != 4 or split > 2:
                        continue
                    for zero in (0, 1, 2) if data > 1 else (0,):
                        for policy in candidates.POLICIES:
                            mesh = (1, data, fsdp, 1, context, split)
                            wanted.add((*mesh, zero, policy, 1, 1))
    # Pipelines: stages, data, fsdp, model; with 2 or 4 microbatches of 2 layers, in
    # one chunk or two. Four stages have 4 microbatches of a layer each.
    for mesh, schedules in {
        (4, 1, 1, 1, 1, 1): [(4, 1)],
        (2, 2, 1, 1, 1, 1): [(2, 1), (2, 2)],
        (2, 1, 2, 1, 1, 1): [(2, 1), (2, 2)],
        (2, 1, 1, 1, 1, 2): [(4, 1), (4, 2), (2, 1), (2, 2)],
    }.items():
        for zero in (0, 1, 2) if mesh[1] > 1 else (0,):
            for schedule in schedules:
                wanted.add((*mesh, zero, "nothing_saveable", *schedule))
    ways = [
        (*shape(one).values(), one.zero, one.recompute, one.microbatches, one.chunks)
        for one in planned.strategies
    ]
    assert len(ways) == len(set(ways))
    assert set(ways) == wanted


MOE = replace(SMALL, experts=4, experts_per_token=2, expert_d_ff=2048, name="moe")


def test_experts_are_planned_over_their_axis_and_no_stage():
    """Four experts over four devices, by hand: no policy that saves some products."""
    planned = plan(MOE, "h100:1x4", 4, seq=2)
    meshes = {tuple(shape(one).items()) for one in planned.strategies}
    sizes = [dict(mesh) for mesh in meshes]
    assert {mesh["expert"] for mesh in sizes} == {1, 2, 4}
    assert {mesh["stage"] for mesh in sizes} == {1}
    wanted = {
        (data, fsdp, expert, context, 4 // (data * fsdp * expert * context))
        for data in (1, 2, 4)
        for fsdp in (1, 2, 4)
        for expert in (1, 2, 4)
        for context in (1, 2)
        if 4 % (data * fsdp * expert * context) == 0
    }
    names = ("data", "fsdp", "expert", "context", "model")
    assert {tuple(mesh[name] for name in names) for mesh in sizes} == wanted
    assert {one.recompute for one in planned.strategies} == {
        "everything_saveable",
        "nothing_saveable",
    }


def test_every_size_multiplies_to_the_devices():
    assert all(prod(shape(one).values()) == 8 for one in PLAN.strategies)
    assert [one.rank for one in PLAN.strategies] == [
        *range(1, len(PLAN.strategies) + 1)
    ]


@pytest.mark.parametrize("model", [SMALL, STACK, LLAMA, MOE], ids=lambda m: m.name)
@pytest.mark.parametrize("chips", ["h100:1x8", "v5p:2x2x2"])
def test_memory_is_that_of_training_memory(model, chips):
    planned = plan(model, chips, 8)
    for one in planned.strategies[::5]:
        memory = spmd.training_memory(
            model,
            mesh=shape(one),
            zero=one.zero,
            batch=8,
            recompute=one.recompute,
            attention=one.attention,
            gradient_accumulation=one.microbatches,
            interleave=one.chunks,
            chip=chips.partition(":")[0],
        )
        assert one.memory_bytes == memory.total_bytes
        assert one.left_bytes == memory.left_bytes(chips.partition(":")[0])
        assert one.fits == memory.fits(chips.partition(":")[0])


@pytest.mark.parametrize(
    ("model", "chips", "more"),
    [
        (replace(SMALL, tied=True, layers=8), "h100:3x4", {}),
        (SMALL, "a100-80gb:2x8", {"attention": "plain"}),
        (MOE, "h100:2x8", {"param_dtype": "bfloat16", "capacity_factor": 1.5}),
        (replace(SMALL, qk_norm=True), "b200:2x8", {"master_weights": True}),
        (replace(SMALL, qk_norm=True, head_dim=8), "h100:2x8", {}),
        (STACK, "h100:4x8", {"optimizer": "adafactor"}),
        (LLAMA, "v5p:2x4x4", {"grad_dtype": "float32", "compute_dtype": "float32"}),
    ],
)
def test_what_meshes_share_of_their_memory_is_that_of_each(model, chips, more):
    """All numbers, of every third strategy: parts of a count are counted once."""
    planned, chip = plan(model, chips, 96, **more), chips.partition(":")[0]
    training = {key: one for key, one in more.items() if key != "attention"}
    counts = Counts(model, 96, None, {**training, "chip": chip})
    for one in planned.strategies[::3]:
        how = one.zero, one.recompute, one.attention, one.microbatches, one.chunks
        memory = spmd.training_memory(
            model,
            mesh=shape(one),
            zero=one.zero,
            batch=96,
            recompute=one.recompute,
            attention=one.attention,
            gradient_accumulation=one.microbatches,
            interleave=one.chunks,
            chip=chip,
            **training,
        )
        state = memory.params_bytes, memory.grads_bytes, memory.optimizer_bytes
        assert counts.of(shape(one), *how) == (*state, memory.total_bytes)
        assert one.memory_bytes == memory.total_bytes


# --- Order ----------------------------------------------------------------------------


@pytest.mark.parametrize("plan", [PLAN, LARGE], ids=["small", "large"])
def test_those_that_fit_come_first_the_fastest_before(plan):
    fits = [one.fits for one in plan.strategies]
    assert fits == sorted(fits, reverse=True)
    times = [one.total_s for one in plan.fitting]
    assert times == sorted(times)
    others = [one.memory_bytes for one in plan.strategies[len(times) :]]
    assert others == sorted(others)
    assert plan.best.total_s == min(times)


def test_some_fit_and_some_do_not():
    assert 0 < len(LARGE.fitting) < len(LARGE.strategies)


def test_a_tie_is_within_the_error():
    ties, rest = LARGE.ties, LARGE.fitting[len(LARGE.ties) :]
    most = LARGE.best.total_s * (1 + LARGE.error)
    assert ties == LARGE.fitting[: len(ties)]
    assert all(one.total_s <= most for one in ties)
    assert all(one.total_s > most for one in rest)


def test_a_plan_is_the_same_each_time():
    assert str(plan(LLAMA, seq=4096)) == str(LARGE)
    assert plan(LLAMA, seq=4096).strategies == LARGE.strategies


def test_the_order_of_the_axes_does_not_matter():
    names = ("stage", "data", "fsdp", "context", "model")
    assert plan(axes=names[::-1]).strategies == PLAN.strategies
    policies = candidates.POLICIES
    assert plan(recompute=policies[::-1]).strategies == PLAN.strategies


def test_axes_and_policies_can_be_left_out():
    planned = plan(axes=("fsdp", "model"), recompute="nothing_saveable")
    assert {axis for one in planned.strategies for axis in one.mesh} == {
        "fsdp",
        "model",
    }
    assert {one.recompute for one in planned.strategies} == {"nothing_saveable"}
    every = [(dict(one.mesh), one.zero, one.recompute) for one in PLAN.strategies]
    for one in planned.strategies:
        assert (dict(one.mesh), one.zero, one.recompute) in every


@settings(max_examples=6, deadline=None, derandomize=True)
@given(
    hosts=st.sampled_from([1, 2, 4]),
    card=st.sampled_from(["h200", "b200"]),
    layers=st.sampled_from([4, 8]),
)
def test_twice_the_cards_are_not_slower_at_one_batch(hosts, card, layers):
    """Where each device has many tokens left, as they are here."""
    model = replace(LLAMA, layers=layers)
    few = plan(model, f"{card}:{hosts}x8", 128, seq=4096).best
    many = plan(model, f"{card}:{2 * hosts}x8", 128, seq=4096).best
    assert many.total_s < few.total_s


@settings(max_examples=6, deadline=None, derandomize=True)
@given(
    model=st.sampled_from([SMALL, STACK]),
    chips=st.sampled_from(["h100:1x8", "a100-80gb:2x4", "v5e:2x4", "v5p:2x2x4"]),
    batch=st.sampled_from([8, 16, 48, 128]),
)
def test_the_best_is_beaten_by_none_that_fits(model, chips, batch):
    planned = plan(model, chips, batch)
    assert all(planned.best.total_s <= one.total_s for one in planned.fitting)
    for one in planned.strategies:
        assert 0 < one.mfu < 1
        share = sum(part for _, part in one.limits)
        assert share == pytest.approx(1)


# --- Seconds --------------------------------------------------------------------------


def step(
    model=LLAMA, *, zero=0, recompute="nothing_saveable", batch=16, schedule=(), **axes
):
    axes["model"] = axes.pop("split", 1)
    mesh = {axis: axes.get(axis, 1) for axis in cluster.ORDER}
    attention = "plain" if isinstance(model, spmd.MLP) else "flash"
    attention = "ring" if mesh["context"] > 1 else attention
    seq = 1 if isinstance(model, spmd.MLP) else 4096
    types = "float32", "bfloat16"
    return Step(model, mesh, zero, recompute, attention, batch, seq, *types, *schedule)


def sent(one):
    """(what, kind, axes, when) → count × bytes."""
    sums = {}
    for each in exchanges.exchanges(one):
        key = (each.what, each.kind, each.axes, each.when)
        sums[key] = sums.get(key, 0) + each.count * each.nbytes
    return sums


LAYER = 2 * 4096 * (4096 + 1024) + 3 * 4096 * 14336  # q, o, k, v and the mlp
HEAD = 128256 * 4096


def near(size):
    return pytest.approx(size, rel=1e-6)


def test_fsdp_gathers_weights_twice_and_scatters_gradients_once():
    bytes_sent = sent(step(fsdp=8))
    for when in ("forward", "backward"):
        weights = bytes_sent["weights", "all-gather", ("fsdp",), when]
        assert weights == near(32 * 2 * LAYER)
        assert bytes_sent["head", "all-gather", ("fsdp",), when] == 2 * HEAD
    gradients = bytes_sent["gradients", "reduce-scatter", ("fsdp",), "backward"]
    assert gradients == near(32 * 2 * LAYER)
    assert bytes_sent["head", "reduce-scatter", ("fsdp",), "backward"] == 4 * HEAD
    assert not [key for key in bytes_sent if key[1] == "all-reduce"]


def test_data_parallelism_sums_gradients():
    bytes_sent = sent(step(data=8))
    gradients = bytes_sent["gradients", "all-reduce", ("data",), "backward"]
    assert gradients == near(32 * 2 * LAYER)
    assert not [key for key in bytes_sent if key[0] == "weights"]


def test_zero_scatters_gradients_and_gathers_new_parameters():
    one, two = sent(step(data=8, zero=1)), sent(step(data=8, zero=2))
    assert ("gradients", "all-reduce", ("data",), "backward") in one
    assert ("gradients", "reduce-scatter", ("data",), "backward") in two
    for sends in (one, two):
        new = sends["new parameters", "all-gather", ("data",), "update"]
        assert new == 4 * (32 * LAYER + 2 * HEAD)


def test_hsdp_sums_what_is_left_over_data():
    bytes_sent = sent(step(data=2, fsdp=4))
    left = bytes_sent["gradients", "all-reduce", ("data",), "backward"]
    assert left == near(32 * 2 * LAYER // 4)


def test_tensor_parallelism_sums_four_times_a_layer_and_once_more_to_recompute():
    tokens = 16 * 4096
    stream = 2 * tokens * 4096
    for recompute, backward in (("everything_saveable", 2), ("nothing_saveable", 3)):
        bytes_sent = sent(step(split=8, recompute=recompute))
        key = ("activations", "all-reduce", ("model",))
        assert bytes_sent[*key, "forward"] == 2 * 32 * stream
        assert bytes_sent[*key, "backward"] == backward * 32 * stream


def test_a_ring_sends_keys_and_values_around():
    bytes_sent = sent(step(context=4))
    both = 2 * 2 * (16 * 4096 // 4) * 8 * 128
    key = ("keys and values", "collective-permute", ("context",))
    assert bytes_sent[*key, "forward"] == 4 * 32 * both
    # Forward once more, and back with gradients in float32.
    assert bytes_sent[*key, "backward"] == 4 * 32 * (2 * both + 2 * both)


MIXTRAL = spmd.MODELS["mixtral-8x7b"]
EXPERTS = 8 * 3 * 4096 * 14336  # of one layer


def test_tokens_go_to_their_experts_and_back():
    """Two rows of each token, there and back; once more to recompute."""
    rows = 2 * 2 * (16 * 4096 // 8) * 4096
    for recompute, backward in (("everything_saveable", 2), ("nothing_saveable", 4)):
        bytes_sent = sent(step(MIXTRAL, expert=8, recompute=recompute))
        key = ("tokens", "all-to-all", ("expert",))
        assert bytes_sent[*key, "forward"] == 2 * 32 * rows
        assert bytes_sent[*key, "backward"] == backward * 32 * rows
    # The batch is sharded over expert: all else of the model is summed over it.
    gradients = bytes_sent["gradients", "all-reduce", ("expert",), "backward"]
    assert gradients == near(32 * 2 * 2 * 4096 * (4096 + 1024))
    assert not [key for key in sent(step(MIXTRAL, fsdp=8)) if key[0] == "tokens"]


def test_room_for_more_rows_is_sent_and_multiplied():
    one, more = (
        step(MIXTRAL, expert=8, schedule=(1, 1, factor)) for factor in (1.0, 1.5)
    )
    key = ("tokens", "all-to-all", ("expert",), "forward")
    assert sent(more)[key] == 1.5 * sent(one)[key]
    rates = rates_of(spmd.HARDWARE["h100"])
    first, again, _ = (
        b - a
        for a, b in zip(*(seconds.products(x, rates) for x in (one, more)), strict=True)
    )
    forward = 2 * (16 * 4096 * 2 // 2) * 32 * 3 * 4096 * 14336 / 8
    assert first == near(3 * forward / rates.flops_per_s["bf16"])
    assert again == near(forward / rates.flops_per_s["bf16"])


def test_fsdp_gathers_experts_wide_to_recompute():
    """As XLA does: before the cast, in the type of the parameters."""
    other = 2 * 4096 * (4096 + 1024)
    for recompute, wide in (("everything_saveable", 2), ("nothing_saveable", 4)):
        bytes_sent = sent(step(MIXTRAL, fsdp=4, expert=2, recompute=recompute))
        key = ("weights", "all-gather", ("fsdp",))
        assert bytes_sent[*key, "forward"] == near(32 * (2 * other + 2 * EXPERTS // 2))
        assert bytes_sent[*key, "backward"] == near(
            32 * (2 * other + wide * EXPERTS // 2)
        )
        key = ("gradients", "reduce-scatter", ("fsdp",), "backward")
        assert bytes_sent[key] == near(32 * 2 * (other + EXPERTS // 2))


def test_a_sum_behind_the_experts_is_one_in_both_passes():
    stream = 2 * (16 * 4096 // 4) * 4096
    bytes_sent = sent(step(MIXTRAL, expert=4, split=2))
    key = ("activations", "all-reduce", ("model",))
    assert bytes_sent[*key, "forward"] == 2 * 32 * stream
    assert bytes_sent[*key, "backward"] == 4 * 32 * stream


def test_stages_send_each_microbatch_on():
    """Over 4 stages and 2 of data: 8 microbatches of one sequence, in 2 chunks."""
    bytes_sent = sent(step(stage=4, data=2, schedule=(8, 2)))
    stream = 2 * 4096 * 4096
    for when in ("forward", "backward"):
        key = ("activations", "collective-permute", ("stage",), when)
        assert bytes_sent[key] == 8 * 2 * stream
    # Gradients of 8 of 32 layers are summed for each microbatch.
    gradients = bytes_sent["gradients", "all-reduce", ("data",), "backward"]
    assert gradients == near(8 * 8 * 2 * LAYER)
    ends = bytes_sent["embedding", "all-reduce", ("stage",), "update"]
    assert ends == 4 * 2 * HEAD


def test_a_tied_embedding_is_one_matrix_for_all_stages():
    """Its gradients are summed over stage once, and added up once."""
    tied = replace(LLAMA, tied=True)
    bytes_sent = sent(step(tied, stage=4, data=2, schedule=(8, 1)))
    assert bytes_sent["embedding", "all-reduce", ("stage",), "update"] == 4 * HEAD
    rates = rates_of(spmd.HARDWARE["h100"])
    of = {}
    for model in (LLAMA, tied):
        for zero in (0, 2):
            one = step(model, stage=4, data=2, schedule=(8, 1), zero=zero)
            shares = seconds.products(one, rates)
            of[model.tied, zero] = seconds.seconds_of(
                one, 0, shares, [], rates
            ).memory_s
    # Read, read, written, in float32, 8 times: of the head ZeRO-2 has half.
    once = 8 * 3 * 4 * HEAD / rates.memory_bytes_per_s
    assert of[False, 0] - of[True, 0] == near(once)
    assert of[False, 2] - of[True, 2] == near(once / 2)


@pytest.mark.parametrize("when", ["forward", "backward", "update"])
def test_no_more_is_hidden_in_a_pass_than_there_is_work(when):
    """Twenty exchanges that are each shorter than the pass, and together longer."""
    rates = rates_of(spmd.HARDWARE["h100"])
    one = step(data=8)
    shares = layers, again, head = seconds.products(one, rates)
    state = 10**9
    alone = seconds.seconds_of(one, state, shares, [], rates)
    memory = alone.total_s - alone.compute_s - 0.8 * state / rates.memory_bytes_per_s
    forward = (layers + head) / 3 + memory / 4  # a forward pass runs again
    work = {
        "forward": forward,
        "backward": layers + again + head + memory - forward,
        "update": state / rates.memory_bytes_per_s,
    }[when]
    kind, each = "all-gather", work / 5
    many = [
        exchanges.Exchange(str(n), kind, ("data",), when, 1, 1, each) for n in range(20)
    ]
    for count in (2, 20):
        seconds_each = seconds.seconds_of(one, state, shares, many[:count], rates)
        total = sum(x.seconds for x in seconds_each.exchanges)
        # What is hidden slows the kernels by a part of it, which is exposed.
        hidden = (total - seconds_each.exposed_s) / (1 - rates.slowed)
        free = count * each * (1 - 0.45)
        assert hidden == near(min(free, work))


def test_a_pipeline_adds_up_the_gradients_of_its_microbatches():
    """Read, read, written, in float32: of 8 of 32 layers and both ends, 8 times."""
    rates = rates_of(spmd.HARDWARE["h100"])

    def memory(**more):
        one = step(stage=4, data=2, schedule=(8, 1), **more)
        shares = seconds.products(one, rates)
        return seconds.seconds_of(one, 0, shares, [], rates)

    all_of_it = 8 * 3 * 4 * (8 * LAYER + 2 * HEAD) / rates.memory_bytes_per_s
    more = memory().memory_s - memory(zero=2).memory_s
    assert more == near(all_of_it / 2)  # ZeRO-2 has half of them on each


@pytest.mark.parametrize(
    ("schedule", "share"), [((8, 1), 3 / 8), ((16, 1), 3 / 16), ((8, 2), 3 / 16)]
)
def test_a_bubble_is_that_of_1f1b(schedule, share):
    """(p - 1) / (v m) of the passes, without the update (Narayanan et al. 2021)."""
    rates = rates_of(spmd.HARDWARE["h100"])
    one = step(stage=4, data=2, schedule=schedule, batch=32)
    shares = seconds.products(one, rates)
    seconds_each = seconds.seconds_of(one, 0, shares, [], rates)
    work = seconds_each.compute_s + seconds_each.memory_s
    assert seconds_each.bubble_s == near(share * work)
    assert seconds_each.total_s == near(work + seconds_each.bubble_s)
    layers, again, head = shares
    assert seconds_each.compute_s == near(layers + again + 4 * head)


def price(kind, nbytes, topology, mesh, axes):
    chips = cluster.read_chips(topology)
    prices = exchanges.Prices(chips, rates_of(chips.chip))
    one = exchanges.Exchange("x", kind, axes, "forward", 1, nbytes)
    full = {axis: mesh.get(axis, 1) for axis in cluster.ORDER}
    return prices.on(full)(one)


def test_a_price_is_the_one_of_step_time():
    """Eight cards of one host: 50 µs, and 7/8 of the bytes over the table's rate."""
    rates = rates_of(spmd.HARDWARE["h100"])
    seconds_, link = price("all-gather", 8e9, "h100:1x8", {"fsdp": 8}, ("fsdp",))
    rate = rates.of_link("nvlink of 8 or more", "all-gather")
    assert link == "nvlink"
    assert seconds_ == pytest.approx(5e-5 + 7e9 / rate)


def test_between_hosts_the_network_decides():
    seconds_, link = price(
        "all-reduce", 1e9, "h100:2x8", {"data": 2, "model": 8}, ("data",)
    )
    assert link == "network"
    rate = spmd.HARDWARE["h100"].network_bytes_per_s
    assert seconds_ > 1e9 / rate  # 2 · 1/2 of the bytes, each card for itself
    inside, link = price(
        "all-reduce", 1e9, "h100:2x8", {"data": 2, "model": 8}, ("model",)
    )
    assert link == "nvlink"
    assert inside < seconds_ / 3


def test_the_slowest_of_an_axis_groups_decides():
    """Of 24 cards in threes (0, 1, 2) is in a host; (6, 7, 8) is in two."""
    shape = {"data": 8, "model": 3}
    seconds, link = price("all-reduce", 1e9, "h100:3x8", shape, ("model",))
    assert link == "network"
    # One card of the other host: all that a ring sends goes through its card.
    rates = rates_of(spmd.HARDWARE["h100"])
    sent = 2 * 1e9 * 2 / 3 / rates.of_link("network", "all-reduce")
    trips = 2 * (3 - 1) / (3 / 2)
    waits = rates.start_s["nvlink"] + trips * rates.start_s["network"]
    assert seconds == pytest.approx(sent + waits, rel=1e-6)
    inside, link = price(
        "all-reduce", 1e9, "h100:3x8", {"data": 6, "model": 4}, ("model",)
    )
    assert link == "nvlink"
    assert inside < seconds / 5


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    shape=st.lists(st.integers(1, 6), min_size=6, max_size=6),
    axes=st.sets(st.integers(0, 5), min_size=1),
    per_host=st.sampled_from([2, 3, 4, 8]),
)
def test_groups_stand_as_the_devices_of_a_mesh_do(shape, axes, per_host):
    """Against every group of a mesh, counted device by device."""
    axes = tuple(sorted(axes))
    mesh = np.arange(prod(shape)).reshape(shape)
    size = prod(shape[axis] for axis in axes)
    groups = np.moveaxis(mesh, axes, range(len(axes))).reshape(size, -1).T // per_host
    wanted = {tuple(sorted(np.unique(one, return_counts=True)[1])) for one in groups}
    chips = cluster.Chips("", spmd.HARDWARE["h100"], mesh.size, per_host)
    group_hosts = [one.per_host for one in chips.groups(shape, axes)]
    assert len(group_hosts) == len(set(group_hosts))
    assert set(group_hosts) == wanted


def test_on_a_tpu_an_axis_uses_the_links_of_its_directions():
    one, link = price(
        "all-gather", 64e9, "v5p:4x4x4", {"fsdp": 16, "model": 4}, ("model",)
    )
    two, _ = price("all-gather", 64e9, "v5p:4x4x4", {"fsdp": 16, "model": 4}, ("fsdp",))
    assert link == "ici"
    assert one / two == pytest.approx((3 / 4) / (15 / 16) * 2, rel=1e-3)


def test_meshes_of_a_tpu_lie_on_its_torus():
    planned = plan(SMALL, "v5p:4x4x4", 64)
    assert {size for one in planned.strategies for size in one.mesh.values()} <= {
        4,
        16,
        64,
    }


def test_recomputation_costs_seconds_and_saves_memory():
    by_policy = {
        one.recompute: one for one in LARGE.strategies if dict(one.mesh) == {"fsdp": 8}
    }
    every, dots, nothing = (by_policy[name] for name in candidates.POLICIES)
    assert every.memory_bytes > dots.memory_bytes > nothing.memory_bytes
    assert 0 == every.seconds.recompute_s < dots.seconds.recompute_s
    assert dots.seconds.recompute_s < nothing.seconds.recompute_s


def test_what_the_model_needs_is_mfu_and_nothing_else():
    one = LARGE.best
    peak = 8 * spmd.HARDWARE["h100"].bf16_flops_per_s
    assert one.mfu == pytest.approx(LLAMA.flops(32, 4096) / peak / one.total_s)
    assert one.tokens_per_s == pytest.approx(32 * 4096 / one.total_s)


def test_own_rates_count():
    slow = plan(rates={"bf16_flops_per_s": 1e14}).best
    assert slow.seconds.compute_s > 3 * PLAN.best.seconds.compute_s


def test_of_many_meshes_only_what_is_far_slower_or_too_large_is_left_out(monkeypatch):
    """Against all of them, and the notes say how many are left out."""
    given = (LLAMA, "h100:4x8", 64)
    every = plan(*given, seq=4096)
    monkeypatch.setattr(plan_module, "MANY", 5)
    few = plan(*given, seq=4096)
    assert few.best == every.best
    assert few.ties == every.ties
    known = {str(one): one for one in few.strategies}
    most = plan_module.FAR * every.best.total_s
    lost = [one for one in every.strategies if str(one) not in known]
    assert lost
    assert all(one.total_s > most or not one.fits for one in lost)
    assert [one for one in lost if not one.fits and one.total_s < most]
    assert {s: o.total_s for s, o in known.items()}.items() <= {
        str(o): o.total_s for o in every.strategies
    }.items()
    words = " ".join(few.table.split())
    assert re.search(r"\d+ more meshes are left out", words)
    assert re.search(r"\d+ strategies more are left out", words)
    assert "left out" not in every.table


@settings(max_examples=12, deadline=None, derandomize=True)
@given(
    model=st.sampled_from([SMALL, STACK, MOE, replace(SMALL, tied=True, layers=8)]),
    chips=st.sampled_from(["h100:1x8", "h100:2x8", "h100:3x4", "v5p:2x2x2"]),
    batch=st.sampled_from([24, 48, 96]),
    policies=st.sampled_from([None, "nothing_saveable", "everything_saveable"]),
)
def test_no_mesh_that_is_left_out_has_a_strategy_near_the_best(
    model, chips, batch, policies
):
    """Against all meshes of a small cluster, pipelines and experts among them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan_module, "MANY", 10**6)
        every = plan(model, chips, batch, recompute=policies)
        patch.setattr(plan_module, "MANY", 0)
        few = plan(model, chips, batch, recompute=policies)
        known = {str(one) for one in few.strategies}
        lost = [one for one in every.strategies if str(one) not in known]
        assert few.best == every.best
        assert few.ties == every.ties
        most = plan_module.FAR * every.best.total_s
        assert all(one.total_s > most for one in lost if one.fits)
        # Of what is said to be far there are as many meshes.
        far = {tuple(one.mesh.items()) for one in lost if one.fits}
        words = re.search(r"(\d+) more mesh(es are|is) left out", words_of(few))
        assert len(far) <= (int(words[1]) if words else 0)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    model=st.sampled_from([SMALL, LLAMA, STACK, MOE]),
    chips=st.sampled_from(["h100:1x8", "h100:2x8", "a100-80gb:4x8", "v5p:4x4x4"]),
    batch=st.sampled_from([64, 128, 1024]),
    data=st.data(),
)
def test_no_strategy_is_faster_than_the_bound_of_its_mesh(model, chips, batch, data):
    cluster_ = cluster.read_chips(chips)
    planner = plan_module._Planner(
        *(model, cluster_, batch, None, None, rates_of(cluster_.chip), 10**15, (0, 0)),
        {},
    )
    axes, policies = candidates.useful_axes(model), candidates.policies_of(model)
    each = list(candidates.meshes(model, cluster_, axes, batch, planner.seq))
    mesh = data.draw(st.sampled_from(each))
    strategies = list(planner._on(mesh, policies))
    if strategies:
        bound = planner._least(mesh, policies[0])
        assert 0 < bound < min(one.total_s for one in strategies)


def test_a_pipeline_that_gathers_little_is_not_bound_by_its_longest_schedule():
    """Weights are gathered for each microbatch: more of them can take longer."""
    chips = cluster.read_chips("a100-40gb:16x8")
    planner = plan_module._Planner(
        *(LLAMA, chips, 1024, 64, None, rates_of(chips.chip), 10**15, (0, 0)), {}
    )
    mesh = dict(zip(cluster.ORDER, (2, 1, 64, 1, 1, 1), strict=True))
    by = {
        (one.microbatches, one.chunks): one.total_s
        for one in planner._on(mesh, candidates.POLICIES)
    }
    assert min(by, key=by.get) != max(by)
    assert planner._least(mesh, candidates.POLICIES[0]) < min(by.values())


def test_meshes_without_a_strategy_are_not_said_to_be_slow(monkeypatch):
    """Pipelines have one policy: without it no mesh over stage is planned."""
    monkeypatch.setattr(plan_module, "MANY", 0)
    given_ = {"recompute": "everything_saveable", "axes": ("data", "stage")}
    planned = plan(replace(SMALL, layers=8), "h200:1x8", **given_)
    assert {tuple(one.mesh) for one in planned.strategies} == {("data",)}
    assert "left out" not in planned.table


def test_of_many_meshes_none_is_left_out_where_nothing_fits(monkeypatch):
    given = (spmd.MODELS["llama-3-70b"], "h100:1x8", 8)
    every = plan(*given, seq=2048)
    monkeypatch.setattr(plan_module, "MANY", 5)
    assert plan(*given, seq=2048).strategies == every.strategies


def test_four_thousand_chips():
    planned = plan(LLAMA, "h100:512x8", 1024, seq=8192, axes=("data", "fsdp", "model"))
    assert 0.2 < planned.best.mfu < 0.7  # 512 round trips before each would leave 0.05
    assert planned.best.total_s < min(
        one.total_s for one in planned.fitting if one.mesh.get("fsdp", 1) > 512
    )


def counting(monkeypatch, module, *names):
    """How often each of these functions is called from now on."""
    calls = Counter()

    def counted(name, right):
        def wrapper(*args, **kwargs):
            calls[name] += 1
            return right(*args, **kwargs)

        return wrapper

    for name in names:
        monkeypatch.setattr(module, name, counted(name, getattr(module, name)))
    return calls


@pytest.mark.parametrize("name", ["llama-3-8b", "gpt-oss-20b"])
def test_of_four_thousand_chips_what_strategies_share_is_counted_once(
    name, monkeypatch
):
    """Arguments are checked once for meshes with the same axes.

    State is counted once for meshes that shard it alike, and what the passes need once
    for all meshes that give a device as much.
    """
    names = "training_memory", "_of_state", "kept_of_passes", "copies"
    given_ = (spmd.MODELS[name], "h100:512x8", 1024)
    assert len(plan(*given_, seq=8192).strategies) < 1000
    monkeypatch.setattr(plan_module, "FAR", 5)  # and of more what they share
    calls = counting(monkeypatch, many, *names)
    planned = plan(*given_, seq=8192)
    meshes = {(tuple(one.mesh.items()), one.zero) for one in planned.strategies}
    states = {
        (
            *(one.mesh.get(axis, 1) for axis in ("stage", "fsdp", "expert", "model")),
            *(one.zero, one.mesh.get("data", 1) if one.zero else 0),
            one.mesh.get("stage", 1) > 1 or one.microbatches > 1,
        )
        for one in planned.strategies
    }
    assert len(meshes) > 600
    assert calls["training_memory"] < len(planned.strategies) / 10
    assert calls["_of_state"] == len(states) < len(meshes)
    assert calls["kept_of_passes"] < len(planned.strategies) / 2
    copied = {
        tuple(one.mesh.items())
        for one in planned.strategies
        if one.recompute == "everything_saveable"
    }
    assert calls["copies"] == len(copied)


def test_where_nothing_fits_a_strategy_is_timed_when_it_is_read(monkeypatch):
    """Its place is that of its memory: only of equal ones the seconds decide."""
    monkeypatch.setattr(plan_module, "MANY", 5)
    calls = counting(monkeypatch, plan_module, "seconds_of")
    planned = plan(spmd.MODELS["llama-3-70b"], "h100:1x8", 8, seq=2048)
    assert not planned.fitting
    memory = Counter(one.memory_bytes for one in planned.strategies)
    alike = sum(n for n in memory.values() if n > 1)
    assert calls["seconds_of"] == alike < len(memory)
    for _ in range(2):
        assert min(one.total_s for one in planned.strategies) > 0
        assert calls["seconds_of"] == len(planned.strategies)


def test_a_strategy_that_does_not_fit_is_copied_and_compared_with_its_seconds():
    model = spmd.MODELS["llama-3-70b"]

    def untimed():
        """The same strategy of a new plan, whose seconds nobody has read."""
        strategies = plan(model, "h100:1x8", 8, seq=2048).strategies
        return next(one for one in strategies if "_timed" in vars(one))

    one = untimed()
    assert one.total_s > 0
    assert "_timed" not in vars(one)
    assert pickle.loads(pickle.dumps(untimed())) == one
    assert copy.deepcopy(untimed()) == one
    assert copy.copy(untimed()) == one
    assert untimed() == untimed() == one
    assert hash(untimed()) == hash(one)
    assert repr(untimed()) == repr(one)
    assert f"total_s={one.total_s!r}" in repr(one)
    slow = plan(model, "h100:1x8", 8, seq=2048, rates={"bf16_flops_per_s": 1e14})
    assert one.memory_bytes in {each.memory_bytes for each in slow.strategies}
    assert one not in slow.strategies
    with pytest.raises(AttributeError, match="'speed'"):
        str(one.speed)


# --- Words ----------------------------------------------------------------------------


def test_the_table_has_the_best_first_and_says_ties():
    lines = LARGE.table.splitlines()
    assert lines[0].startswith("Plan for llama-3-8b, 32 sequences of 4096 tokens")
    assert re.match(rf" *1  {re.escape(LARGE.best.mesh_words)} ", lines[2])
    assert f"The first {len(LARGE.ties)} are a tie" in LARGE.table
    assert "nine of ten formula values were within 10% of" in words_of(LARGE)
    assert "fractions of the published figures" in " ".join(LARGE.table.split())
    assert "published" not in plan(topology="h200:1x8").table
    assert "<table" in LARGE._repr_html_()
    assert repr(LARGE).startswith("Plan(llama-3-8b")


def test_why_says_a_tie_and_a_difference():
    tied = LARGE.why(1, 2)
    assert re.search(r"a tie: they differ by \d\.\d%, and .* of step_time, which", tied)
    last = LARGE.fitting[-1]
    words = LARGE.why(1, last)
    assert "% more" in words
    assert "a tie" not in words
    assert "% less" in LARGE.why(last, 1)
    far = LARGE.strategies[-1]
    assert f"are missing for {far.rank}" in LARGE.why(1, far)
    assert LARGE.why(1, 1).startswith("Both are number 1")


def test_why_names_the_largest_difference():
    by = {str(one): one for one in LARGE.strategies}
    one = by["fsdp 8, dots_with_no_batch_dims_saveable"]
    other = by["fsdp 8, nothing_saveable"]
    assert re.search(r"more for recomputation", LARGE.why(one, other))


# --- What is refused ------------------------------------------------------------------


def test_a_model_whose_seconds_would_be_no_number_is_not_made():
    with pytest.raises(spmd.NotUnderstood, match=r"^d_model has an integer"):
        spmd.MLP(4, 10**400, 16)


@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        ({"topology": "x100:8"}, spmd.UnknownTopology, "names no card.*v5p:4x4x4"),
        ({"topology": "v5p-128"}, spmd.UnknownTopology, "v5p:4x4x4"),
        ({"topology": "gb200:2x4"}, spmd.NotUnderstood, "no speeds of gb200"),
        ({"topology": 8}, spmd.UnknownTopology, "is not a name"),
        ({"model": "llama3-8b"}, spmd.NotUnderstood, "Did you mean 'llama-3-8b'"),
        ({"model": 8}, spmd.NotUnderstood, "is not a model"),
        ({"batch": 0}, spmd.NotUnderstood, "batch=0"),
        ({"seq": 2.5}, spmd.NotUnderstood, "seq=2.5"),
        ({"axes": ("data", "modle")}, spmd.UnknownAxis, "Did you mean 'model'"),
        ({"axes": "data"}, spmd.NotUnderstood, r"\('data', 'model'\)"),
        ({"axes": ()}, spmd.NotUnderstood, "is no tuple of axes"),
        (
            {"model": STACK, "axes": ("data", "context")},
            spmd.NotUnderstood,
            "an MLP has no sequences that context could shard; leave 'context' out",
        ),
        ({"model": STACK, "seq": 8}, spmd.NotUnderstood, "an MLP has no sequences"),
        ({"recompute": "full"}, spmd.NotUnderstood, "recompute='full'"),
        ({"recompute": ()}, spmd.NotUnderstood, "is no policy"),
        ({"attention": "flsh"}, spmd.NotUnderstood, "Did you mean 'flash'"),
        ({"mesh": {"data": 8}}, spmd.NotUnderstood, "what a plan decides"),
        (
            {"counting": "jax"},
            spmd.NotUnderstood,
            "counting='jax' has no use in a plan; leave counting out",
        ),
        ({"optimiser": "adam"}, spmd.NotUnderstood, "Did you mean 'optimizer'"),
        (
            {"gradient_accumulation": 2},
            spmd.NotUnderstood,
            "plan for the batch of one part, and count the update and the",
        ),
        ({"optimizer": "adm"}, spmd.NotUnderstood, "Did you mean 'adam'"),
        ({"rates": {}}, spmd.NotUnderstood, "rates="),
        ({"interleave": 2}, spmd.NotUnderstood, "device of stage.*leave interleave"),
        ({"interleave": True}, spmd.NotUnderstood, "leave interleave out"),
        ({"xyzzy": 1}, spmd.NotUnderstood, r"training_memory\. Leave it out\.$"),
        ({"rate": {}}, spmd.NotUnderstood, "Did you mean 'rates'[?]$"),
        ({"optimiser": 1}, spmd.NotUnderstood, "Did you mean 'optimizer'[?]$"),
        (
            {"model": STACK, "attention": "ring"},
            spmd.NotUnderstood,
            "an MLP has neither attention nor sequences; leave attention out",
        ),
        (
            {"compute_dtype": "float8_e4m3fn"},
            spmd.NotUnderstood,
            "compute_dtype='float8_e4m3fn': .*bfloat16, float16 and float32 only; give",
        ),
        ({"compute_dtype": "float64"}, spmd.NotUnderstood, "compute_dtype='float64'"),
        ({"compute_dtype": None}, spmd.NotUnderstood, "compute_dtype=None"),
        ({"compute_dtype": ARRAY}, spmd.NotUnderstood, "compute_dtype=array"),
        ({"moment_dtype": ARRAY}, spmd.NotUnderstood, "moment_dtype=array"),
        ({"grad_dtype": ARRAY}, spmd.NotUnderstood, "grad_dtype=array"),
        ({"gradient_accumulation": ARRAY}, spmd.NotUnderstood, "lation=array.*one pas"),
        ({"attention": ARRAY}, spmd.NotUnderstood, "attention=array.*Give 'plain'"),
        ({"axes": [ARRAY]}, spmd.UnknownAxis, "has array.* is no axis"),
        ({"axes": ARRAY}, spmd.NotUnderstood, "is no tuple of axes"),
        ({"axes": ["tp"]}, spmd.UnknownAxis, "Did you mean 'model'"),
        ({"axes": ["DP"]}, spmd.UnknownAxis, "Did you mean 'data'"),
        ({"axes": ["pp"]}, spmd.UnknownAxis, "Did you mean 'stage'"),
        ({"axes": ["ep"]}, spmd.UnknownAxis, "Did you mean 'expert'"),
        ({"axes": ["q"]}, spmd.UnknownAxis, r"no axis of a plan\. Give some"),
        (
            {"axes": ("data", "expert")},
            spmd.NotUnderstood,
            "small has no experts that expert could shard; leave 'expert' out",
        ),
        (
            {"model": STACK, "axes": ("data", "stage")},
            spmd.NotUnderstood,
            "for transformers, not for an MLP; leave 'stage' out",
        ),
        (
            {"model": MOE, "axes": ("data", "stage")},
            spmd.NotUnderstood,
            "not counted for the experts of moe; leave 'stage' out",
        ),
        (
            {"model": MOE, "recompute": "dots_with_no_batch_dims_saveable"},
            spmd.NotUnderstood,
            "with experts; give 'everything_saveable' or 'nothing_saveable'",
        ),
        (
            {"axes": ("stage",), "recompute": "everything_saveable"},
            spmd.NotUnderstood,
            "counted with recompute='nothing_saveable' alone; give that, or other axes",
        ),
        (
            {"capacity_factor": 2},
            spmd.NotUnderstood,
            "which small is not; leave it out",
        ),
        (
            {"model": MOE, "capacity_factor": 0},
            spmd.NotUnderstood,
            "capacity_factor=0 is no share of rows; give a number above 0",
        ),
        (
            {"model": MOE, "capacity_factor": 3},
            spmd.NotUnderstood,
            "capacity_factor=3 makes an expert's room larger",
        ),
        (
            {"model": MOE, "topology": "h100:1x8", "batch": 8, "axes": ("expert",)},
            spmd.NotDivisible,
            "divides batch=8 and experts=4; take another number of chips",
        ),
        (
            {"topology": "h100:1x8", "axes": ("stage",)},
            spmd.NotDivisible,
            "divides batch=32 and layers=4; take another number of chips",
        ),
        (
            {"model": LLAMA, "batch": 2, "axes": ("stage",)},
            spmd.NotDivisible,
            "divides batch=2 and layers=32; make batch=8, or take another number",
        ),
        ({"batch": 10**400}, spmd.NotUnderstood, "is not a size; give an integer from"),
        ({"seq": 10**400}, spmd.NotUnderstood, "is not a size; give an integer from"),
        ({"lora_rank": 8}, spmd.NotUnderstood, "lora_rank=8 changes what a step runs"),
        (
            {"offload_optimizer": True},
            spmd.NotUnderstood,
            "offload_optimizer=True changes what a step runs, which a plan does not",
        ),
        (
            {"sequence_parallel": True},
            spmd.NotUnderstood,
            "sequence_parallel=True changes what a step runs, .* with training_memory",
        ),
        (
            {"sequence_parallel": ARRAY},
            spmd.NotUnderstood,
            "sequence_parallel=array.* changes what a step runs",
        ),
        (
            {"optimizer": "muon"},
            spmd.NotUnderstood,
            "optimizer='muon' multiplies matrices .*plan with 'adam', or count one",
        ),
        ({"seq": np.float64(2048)}, spmd.NotUnderstood, "seq=np.float64"),
        (
            {"rates": {"bf16_flops_per_s": 5e14, "f32_flop_per_s": 3e14}},
            spmd.NotUnderstood,
            "has 'f32_flop_per_s'.*Did you mean 'f32_flops_per_s'",
        ),
        (
            {"rates": {"bf16_flops_per_s": 10**400}},
            spmd.NotUnderstood,
            "is not a positive number",
        ),
        (
            {"topology": "h100:1x7", "batch": 16},
            spmd.NotDivisible,
            r"no mesh of 7 devices.*make batch=21, or take another number of chips",
        ),
        (
            {"topology": "h100:1x7", "batch": 16, "axes": ("model",)},
            spmd.NotDivisible,
            "divides d_ff=4096 and heads=16; take another number of chips",
        ),
        (
            {"model": "gpt2-small", "topology": "h100:5x8", "batch": 40, **FSDP},
            spmd.NotDivisible,
            "fsdp divides the model: fsdp shards d_model=768 over 40 .*; take another",
        ),
        # Another batch would not help.
        (
            {"model": "gpt2-small", "topology": "h100:5x8", "batch": 41, **FSDP},
            spmd.NotDivisible,
            "divides batch=41; take another number of chips",
        ),
        (
            {"model": "gemma-3-1b", "topology": "h100:32x8", "batch": 256, **FSDP},
            spmd.NotDivisible,
            "divides the model: fsdp shards d_model=1152 over 256 .*; take another",
        ),
        (
            {"topology": "v5p:4x4x4", "batch": 2, "axes": ("data", "model")},
            spmd.NotDivisible,
            "heads=16 and lies on the torus; make batch=64, or take another",
        ),
    ],
)
def test_bad_input_is_refused_in_a_sentence(arguments, kind, words):
    given = {"model": SMALL, "topology": "h100:1x8", "batch": 32} | arguments
    with pytest.raises(kind, match=words) as raised:
        spmd.plan_mesh(given.pop("model"), given.pop("topology"), **given)
    assert "\n" not in str(raised.value)


def test_a_norm_that_an_axis_does_not_divide_is_planned():
    """A head_dim of 128 over 256 devices: its norms are replicated."""
    planned = plan("qwen3-8b", "h100:32x8", 256, seq=2048, **FSDP)
    assert {tuple(one.mesh.items()) for one in planned.strategies} == {(("fsdp", 256),)}


def test_sizes_of_thirty_digits_are_planned():
    planned = plan(spmd.MLP(10**29, 10**29, 10**29), batch=8 * 10**11)
    assert not planned.fitting
    assert 1e50 < planned.strategies[0].total_s < 1e200


def test_the_remedy_for_chips_that_do_not_divide_works():
    assert plan(topology="h100:1x7", batch=21).strategies


def test_numpys_numbers_are_numbers():
    planned = plan(batch=np.int32(32), seq=np.int16(2048), interleave=np.int64(1))
    assert planned.strategies == plan(seq=2048).strategies
    assert type(planned.best.total_s) is type(planned.best.tokens_per_s) is float
    own = {"bf16_flops_per_s": 2**48, "memory_bytes_per_s": 2**41}
    lines = {"all-gather": {"bytes_per_s": 2**38}}
    one, other = (
        plan(rates={k: kind(x) for k, x in own.items()} | {"collectives": some}).best
        for kind, some in (
            (float, lines),
            (np.float32, {"all-gather": {"bytes_per_s": np.float32(2**38)}}),
        )
    )
    assert one == other
    assert type(other.total_s) is float


def test_a_measured_row_can_be_given_whole():
    (row,) = spmd.load_measured("gpu-speeds")
    assert plan(rates=row).strategies


def test_plans_and_strategies_can_be_in_a_set():
    again = plan()
    assert len({*PLAN.strategies, *again.strategies}) == len(PLAN.strategies)
    assert hash(PLAN) == hash(again)
    assert hash(PLAN.best.step) == hash(again.best.step)
    assert {PLAN.best: 1}[again.best] == 1


def test_a_mesh_for_the_names_of_axes():
    class Mesh:
        axis_names = ("data", "model")

    with pytest.raises(
        spmd.NotUnderstood, match=r"give its names, axes=\('data', 'model'\)"
    ):
        plan(axes=Mesh())


# --- Many hosts -----------------------------------------------------------------------


def test_the_hosts_and_chips_that_rows_cover_are_known():
    from tools.measure import planned

    rows = spmd.load_measured("plans")
    chips = {cluster.read_chips(planned.CASES[row["plan"]].topology) for row in rows}
    assert max(-(-c.devices // c.per_host) for c in chips if not c.torus) == HOSTS
    assert max(c.devices for c in chips if c.torus) == TPU_CHIPS


@pytest.mark.parametrize("hosts", [1, 2, 4])
def test_up_to_four_hosts_a_plan_has_an_error(hosts):
    planned = plan(topology=f"h100:{hosts}x8", axes=("data", "fsdp"))
    assert planned.error == 0.1
    assert not planned.unchecked
    assert "nothing was timed" not in words_of(planned)


def test_over_more_hosts_no_plan_claims_an_error():
    planned = plan(LLAMA, "h100:64x8", 512, seq=4096, axes=("data", "fsdp"))
    assert planned.error is None
    assert planned.ties == planned.fitting
    both = (planned.why(1, 2), planned.why(1, planned.fitting[-1]), words_of(planned))
    for words in both:
        assert "programs over up to 4 hosts; none ran over more than one" in words
        assert "Beyond 4 hosts nothing was timed, and these are 64" in words
        assert "grows as in NCCL's model of rings and trees" in words
        assert not re.search(NO_ERROR, words)
    assert "Both are number 1" in planned.why(1, 1)


NO_ERROR = r"10%|within \d+%|\btie\b|nine of ten|% more|% less"


def test_for_more_chips_of_a_tpu_no_plan_claims_an_error():
    planned = plan(topology="v5p:2x2x4")
    assert planned.error is None
    assert planned.ties == planned.fitting
    for words in (
        words_of(planned),
        planned.why(1, 2),
        planned.why(1, planned.fitting[-1]),
    ):
        assert "a program for more than 8 TPUs, and these are 16" in words
        assert not re.search(NO_ERROR, words)
    few = plan(topology="v5p:2x2x2")
    assert few.error == 0.2
    assert "more than 8 TPUs" not in words_of(few)


def test_what_was_held_against_nothing_is_noted():
    kernels = "'flash' and 'ring' were never compared"
    pipelines = "The seconds of a pipeline over stage were not checked"
    assert kernels in words_of(PLAN)
    assert pipelines in words_of(PLAN)
    plain = words_of(plan(attention="plain", axes=("data", "fsdp")))
    for words in (plain, words_of(plan(STACK))):
        assert kernels not in words
        assert pipelines not in words


def test_nothing_that_fits_says_the_nearest_and_what_is_missing():
    planned = plan(spmd.MODELS["llama-3-70b"], "h100:1x8", 8, seq=2048)
    assert planned.fitting == planned.ties == ()
    with pytest.raises(spmd.NothingFits, match="are missing") as raised:
        _ = planned.best
    nearest = planned.strategies[0]
    assert str(nearest) in str(raised.value)
    assert nearest.memory_bytes == min(one.memory_bytes for one in planned.strategies)
    assert str(raised.value)[:40] in planned.table.replace("\n  ", " ")
    # What the sentence offers works.
    assert plan(spmd.MODELS["llama-3-70b"], "h100:8x8", 64, seq=2048).fitting


@pytest.mark.parametrize(
    ("model", "more", "words"),
    [
        (
            "llama-3-70b",
            {},
            "shorter sequences, or state .*'bfloat16', which makes Adam's moments bf",
        ),
        (
            "llama-3-70b",
            {"moment_dtype": "float32"},
            r"such as param_dtype='bfloat16'\.$",
        ),
        (
            "llama-3-70b",
            {"param_dtype": "bfloat16"},
            "fewer bytes, such as optimizer='lion'",
        ),
        (
            "llama-3-70b",
            {"param_dtype": "bfloat16", "optimizer": "sgd"},
            r"Take more chips, a smaller batch or shorter sequences\.$",
        ),
        (
            spmd.MLP(80, 16384, 65536),
            {},
            "Take more chips or a smaller batch, or state",
        ),
    ],
)
def test_what_is_changed_already_is_not_advised(model, more, words):
    with pytest.raises(spmd.NothingFits, match=words):
        _ = plan(model, "h100:1x8", 8, **more).best


@pytest.mark.parametrize("number", [0, 1000, "1", 1.0, None])
def test_no_such_number(number):
    with pytest.raises(spmd.NotUnderstood, match="give one from 1 to"):
        PLAN.why(1, number)


def test_a_strategy_of_another_plan():
    with pytest.raises(spmd.NotUnderstood, match="not of this plan"):
        PLAN.why(1, LARGE.best)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("vit-b-16", "has patch_size=16"),
        ("deepseek-v3", "has kv_lora_rank=512"),
    ],
)
def test_a_model_that_is_not_timed_is_not_planned(name, words):
    with pytest.raises(spmd.NotUnderstood, match=f"{words}, whose products and"):
        plan(name, "h100:8x8", 64)


def test_a_model_can_be_named():
    assert plan("llama-3-8b", seq=4096).strategies == LARGE.strategies


def test_no_jax_is_needed():
    import subprocess
    import sys

    code = (
        "import sys, spmd_helpers as s; "
        "s.plan_mesh(s.MODELS['gpt3-xl'], 'v5p:2x2x2', batch=8).table; "
        "sys.exit('jax' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


# --- Faults that the tests notice -----------------------------------------------------


MUTANTS = {
    "recompute's sum forgotten": (exchanges, "_of_activations"),
    "weights gathered once": (exchanges, "_of_weights"),
    "gradients forgotten": (exchanges, "of_gradients"),
    "keys forgotten": (exchanges, "_of_keys"),
    "tokens stay": (exchanges, "_of_tokens"),
    "stages keep the gradient": (exchanges, "_of_stages"),
}
CHECKS = {
    "_of_activations": (
        test_tensor_parallelism_sums_four_times_a_layer_and_once_more_to_recompute
    ),
    "_of_weights": test_fsdp_gathers_weights_twice_and_scatters_gradients_once,
    "of_gradients": test_data_parallelism_sums_gradients,
    "_of_keys": test_a_ring_sends_keys_and_values_around,
    "_of_tokens": test_tokens_go_to_their_experts_and_back,
    "_of_stages": test_stages_send_each_microbatch_on,
}


@pytest.mark.mutant
@pytest.mark.parametrize("fault", MUTANTS)
def test_a_missing_exchange_is_noticed(fault, monkeypatch):
    module, name = MUTANTS[fault]
    right = getattr(module, name)
    monkeypatch.setattr(module, name, lambda one: list(right(one))[:-1])
    if name == "_of_weights":
        monkeypatch.setattr(
            module, name, lambda one: [x for x in right(one) if x.when == "forward"]
        )
    if name == "of_gradients":
        monkeypatch.setattr(module, name, lambda one: list(right(one))[1:])
    if name == "_of_activations":
        monkeypatch.setattr(
            module,
            name,
            lambda one: [
                x for x in right(replace(one, recompute="everything_saveable"))
            ],
        )
    with pytest.raises((AssertionError, KeyError)):
        CHECKS[name]()


@pytest.mark.mutant
def test_a_wrong_order_is_noticed(monkeypatch):
    from spmd_helpers._plan import plan_mesh as module

    right = module._ordered
    monkeypatch.setattr(module, "_ordered", lambda given_: right(given_)[::-1])
    planned = plan(LLAMA, seq=4096)
    with pytest.raises(AssertionError):
        test_those_that_fit_come_first_the_fastest_before(planned)


@pytest.mark.mutant
def test_a_wrong_part_of_the_memory_traffic_is_noticed(monkeypatch):
    from tests.plan.test_truth import ROWS, check_seconds, on_gpus
    from tools.measure import planned

    monkeypatch.setattr(seconds, "_SCORES", 2.0)
    with pytest.raises(AssertionError):
        check_seconds(planned.compared(on_gpus(ROWS)))
