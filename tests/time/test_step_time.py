"""How long a step takes: programs whose seconds are worked out by hand."""

import dataclasses
import itertools

import numpy as np
import pytest
import scipy.optimize
import scipy.sparse

import spmd_helpers as spmd
from spmd_helpers._errors import NotUnderstood
from spmd_helpers._hardware.chips import HARDWARE
from spmd_helpers._hardware.positions import Positions
from spmd_helpers._hlo.collectives import Collective, read_hlo
from spmd_helpers._time.links import price
from spmd_helpers._time.rates import rates_of
from tests.hlo.texts import archived
from tests.time.programs import (
    DOT,
    GPU,
    ONE_COPY,
    ONE_PRODUCT,
    argument,
    gathered,
    looped,
    module,
    product,
)

H200 = rates_of(HARDWARE["h200"])
FLOPS = 2 * 8192**3
STARTED = H200.kernel_s + H200.product_s
MULTIPLIED = FLOPS / H200.flops_per_s["bf16"] + STARTED
ARRAY = 2 * 8192**2  # bytes of [8192, 8192] in bfloat16
COPIED = 2 * ARRAY / H200.memory_bytes_per_s + H200.kernel_s
GATHERED = H200.start_s["nvlink"] + ARRAY / 2 / H200.of_link("nvlink", "all-gather")


def near(seconds):
    return pytest.approx(seconds, rel=1e-9)


# --- Kernels ------------------------------------------------------------------------


def test_a_product_takes_its_flops_over_the_rate_that_is_kept_up():
    step = spmd.step_time(ONE_PRODUCT, "h200")
    assert step.total_s == near(MULTIPLIED)
    assert step.flops_per_device == FLOPS
    assert (step.parts[0].kind, step.parts[0].limit) == ("matmul", "FLOPs")
    assert step.how == "predicted"
    (speeds,) = spmd.load_measured("gpu-speeds")
    assert H200.flops_per_s["bf16"] == speeds["bf16_flops_per_s"]


def test_a_cool_card_multiplies_at_the_rate_that_it_begins_with():
    (speeds,) = spmd.load_measured("gpu-speeds")
    step = spmd.step_time(ONE_PRODUCT, "h200", sustained=False)
    at_first = FLOPS / speeds["bf16_flops_per_s_at_first"]
    assert step.total_s == near(at_first + STARTED)


def test_a_product_of_float32_takes_the_rate_of_float32():
    text = module(f"{argument(dtype='f32')}\n{product(dtype='f32')}")
    step = spmd.step_time(text, "h200")
    assert step.compute_s == near(FLOPS / H200.flops_per_s["f32"])
    highest = text.replace(GPU, f"operand_precision={{highest,highest}}, {GPU}")
    slow = spmd.step_time(highest, "h200")
    assert slow.compute_s == near(8 * step.compute_s)


def test_a_copy_takes_what_it_reads_and_writes():
    step = spmd.step_time(ONE_COPY, "h200")
    assert step.total_s == near(COPIED)
    assert step.parts[0].nbytes == 2 * ARRAY
    assert (step.parts[0].kind, step.parts[0].limit) == ("elementwise", "memory")


@pytest.mark.parametrize(
    ("to", "ends"),
    [("{1,0:T(8,128)(2,1)S(1)}", 1), ("{1,0}", 2)],  # the fast memory, and HBM
)
def test_a_slice_that_hardware_of_its_own_copies_is_all_that_it_moves(to, ends):
    """A quarter of an array; its value has the full array beside the slice."""
    slice_ = f"bf16[2048,8192]{to}"
    text = module(
        f"{argument()}\n"
        f"  %s = ((bf16[8192,8192]{{1,0}}), {slice_}, s32[]{{:S(2)}}) slice-start(%x), "
        "slice={[0:2048], [0:8192]}\n"
        f"  ROOT %y = {slice_} slice-done(%s)"
    )
    step = spmd.step_time(text, "v5p")
    assert step.parts[0].nbytes == ends * ARRAY // 4
    copy = module(
        f"{argument()}\n"
        f"  %s = (bf16[8192,8192]{to}, bf16[8192,8192]{{1,0}}, u32[]{{:S(2)}}) "
        "copy-start(%x)\n"
        f"  ROOT %y = bf16[8192,8192]{to} copy-done(%s)"
    )
    assert spmd.step_time(copy, "v5p").parts[0].nbytes == ends * ARRAY


def test_of_a_stack_only_the_slice_that_is_taken_is_read():
    text = module(
        "  %s = bf16[9,8192,8192]{2,1,0} parameter(0)\n"
        "  %i = s32[] parameter(1)\n"
        "  ROOT %y = bf16[1,8192,8192]{2,1,0} fusion(%s, %i), kind=kLoop, "
        f"calls=%taken, {GPU}",
        before=(
            "%taken (a: bf16[9,8192,8192], b: s32[]) -> bf16[1,8192,8192] {\n"
            "  %a = bf16[9,8192,8192]{2,1,0} parameter(0)\n"
            "  %b = s32[] parameter(1)\n"
            "  %zero = s32[] constant(0)\n"
            "  ROOT %d = bf16[1,8192,8192]{2,1,0} dynamic-slice(%a, %b, %zero, "
            "%zero), dynamic_slice_sizes={1,8192,8192}\n}"
        ),
    )
    (part,) = spmd.step_time(text, "h200").parts
    assert part.nbytes == 2 * ARRAY + 4  # the index too


def test_attention_counts_the_flops_that_a_causal_mask_leaves():
    texts = archived("seconds.gpu_0.11.2")
    (forward,) = spmd.step_time(texts["attention/cudnn forward 8192"], "h200").parts
    unmasked = 4 * 2 * 8192**2 * 32 * 128
    assert forward.kind == "attention"
    assert forward.flops == unmasked
    half = unmasked / 2 / H200.attention_per_s["forward"]
    assert forward.seconds == near(half + H200.attention_s + H200.kernel_s)


# --- Loops --------------------------------------------------------------------------


def test_a_loop_takes_its_trips():
    step = spmd.step_time(looped(), "h200")
    assert step.total_s == near(5 * MULTIPLIED)
    assert step.flops_per_device == 5 * FLOPS
    assert step.parts[0].count == 5
    loop = next(span for span in step.spans if span.kind == "loop")
    assert (loop.trips, loop.end_s) == (5, near(5 * MULTIPLIED))


def test_a_loop_of_unknown_trips_gives_no_total_and_says_what_one_trip_takes():
    step = spmd.step_time(looped(trips='"a":"b"'), "h200")
    assert step.how == "bounds"
    assert step.total_s is step.mfu is step.flops_per_device is None
    assert step.parts[0].count is None
    assert step.bounds_s == (near(MULTIPLIED), near(MULTIPLIED))
    assert "does not say how often the loop loop runs" in step.notes[0]
    assert "between" in str(step)


# --- Collectives beside kernels -----------------------------------------------------


def test_a_collective_that_nothing_hides_is_exposed():
    step = spmd.step_time(gathered(), "h200")
    assert step.lanes == {"kernels": 0.0, "nvlink": near(GATHERED)}
    assert step.exposed_s == step.total_s == near(GATHERED)
    (waited,) = step.exposed
    assert (waited.name, waited.kind) == ("start", "all-gather")
    assert waited.nbytes == ARRAY // 2


def copies(count):
    return "\n".join(
        f"  %c{n} = bf16[8192,8192]{{1,0}} copy(%x), {GPU}" for n in range(count)
    )


def test_a_collective_that_kernels_hide_is_not_exposed_and_slows_them():
    step = spmd.step_time(gathered(copies(6)), "h200")
    assert GATHERED < 6 * COPIED
    assert step.exposed_s == 0
    assert step.exposed == ()
    assert step.slowed_s == near(H200.slowed * GATHERED)
    assert step.total_s == near(6 * COPIED + H200.slowed * GATHERED)
    assert step.bounds_s == (near(6 * COPIED), near(6 * COPIED + GATHERED))


def test_a_collective_before_a_product_gets_no_processors_until_its_end():
    step = spmd.step_time(gathered(product(root=False)), "h200")
    assert step.total_s == near(MULTIPLIED + GATHERED)
    assert step.exposed_s == near(GATHERED)
    assert step.slowed_s == 0
    (sent,) = [span for span in step.spans if span.lane == "nvlink"]
    assert sent.start_s == near(MULTIPLIED)


def test_a_collective_that_has_its_processors_sends_beside_a_product():
    between = f"{copies(1)}\n{product(root=False)}"
    step = spmd.step_time(gathered(between), "h200")
    assert step.exposed_s == 0
    assert step.total_s == near(COPIED + MULTIPLIED + H200.slowed * GATHERED)


def test_a_collective_gets_the_processors_of_the_one_before():
    """The second was started before the product too, and needs no new ones."""
    start = next(x for x in gathered().split("\n") if "all-gather-start" in x)
    other = start.replace("%start", "%other").replace("channel_id=1", "channel_id=2")
    between = f"{copies(1)}\n{other}\n{product(root=False)}"
    end = "  %end = bf16[8192,8192]{1,0} all-gather-done(%other)"
    step = spmd.step_time(gathered(f"{between}\n{end}"), "h200")
    first, second = (span for span in step.spans if span.lane == "nvlink")
    assert second.start_s == near(first.end_s) == near(GATHERED)


def test_of_a_collective_that_is_longer_than_what_hides_it_the_rest_is_exposed():
    between = f"  %c = bf16[8192,8192]{{1,0}} copy(%x), {GPU}"
    step = spmd.step_time(gathered(between), "h200")
    assert COPIED * (1 + H200.slowed) < GATHERED
    assert step.total_s == near(GATHERED)
    assert step.exposed_s == near(GATHERED - COPIED * (1 + H200.slowed))


def test_two_collectives_follow_each_other_on_a_gpu():
    start = gathered().split("\n")
    twice = [line.replace("%start", "%other").replace("channel_id=1", "channel_id=2")
             for line in start if "all-gather-start" in line]  # fmt: skip
    wait = "  %end = bf16[8192,8192]{1,0} all-gather-done(%other)"
    step = spmd.step_time(gathered("\n".join([*twice, wait])), "h200")
    assert step.total_s == near(2 * GATHERED)


def test_what_the_host_needs_to_start_a_program_is_the_least():
    text = gathered(rows=8)
    step = spmd.step_time(text, "h200")
    assert step.total_s == H200.call_s[1]
    assert any("what the host needs to start it" in note for note in step.notes)


# --- Links --------------------------------------------------------------------------


def collective(kind, group, size=2**30):
    ring = {"all-gather": 1, "reduce-scatter": 1, "all-reduce": 2, "all-to-all": 1}
    n = len(group)
    sent = size if kind == "collective-permute" else ring[kind] * size * (n - 1) // n
    groups = (tuple(group),)
    if kind == "collective-permute":
        groups = tuple(zip(group, [*group[1:], group[0]], strict=True))
    return Collective(kind, ("a",), 1, "bfloat16", size, size, sent, None, None,
                      groups=groups)  # fmt: skip


TWO_HOSTS = Positions("h100", (0,) * 8 + (1,) * 8, (0,) * 8 + (1,) * 8)
H100 = rates_of(HARDWARE["h100"])
NIC = 5e10 / 1.025  # 400 Gb/s a card, of which 2.5 % are headers
SWITCH = H100.of_link("nvlink of 8 or more", "all-gather")
V = 2**30


@pytest.mark.parametrize(
    ("kind", "group", "lane", "sending"),
    [
        ("all-gather", range(8), "nvlink", V * 7 / 8 / SWITCH),
        # One card of each host: all bytes go through one network card.
        ("all-gather", (0, 8), "network", V / 2 / NIC),
        # A ring through eight network cards: the links within the hosts take longer.
        ("all-gather", range(16), "network", V * 15 / 16 / SWITCH),
        # Two of each host: three quarters of the array through two network cards.
        ("all-gather", (0, 1, 8, 9), "network", V * 3 / 4 / 2 / NIC),
        ("all-reduce", (0, 1, 8, 9), "network", 2 * V * 3 / 4 / 2 / NIC),
        # Of what each sends, half goes to the other host, by its own network card.
        ("all-to-all", (0, 1, 8, 9), "network", V / 2 / NIC),
        ("collective-permute", (7, 8), "network", V / NIC),
    ],
)
def test_a_group_is_priced_by_the_links_that_it_crosses(kind, group, lane, sending):
    cost = price(collective(kind, tuple(group)), H100, TWO_HOSTS)
    assert cost.lane == lane
    assert cost.sending_s == pytest.approx(sending, rel=1e-6)


HOSTS = Positions("h100", *(tuple(n // 8 for n in range(4096)),) * 2)


def started(kind, size, nbytes=V, every=1):
    """The price of a group of so many devices, each so many after the one before."""
    group = tuple(range(0, size * every, every))
    return price(collective(kind, group, nbytes), H100, HOSTS)


def spread(kind, hosts, each, nbytes=V):
    """The price of a group with so many devices in each of so many hosts."""
    group = tuple(8 * host + n for host in range(hosts) for n in range(each))
    return price(collective(kind, group, nbytes), H100, HOSTS)


ROUND_TRIP = 68.89e-6 * 0.45  # of an H100 in XLA's model


@pytest.mark.parametrize("hosts", [2, 3, 4])
@pytest.mark.parametrize("each", [1, 2, 4, 8])
def test_between_hosts_a_collective_takes_what_xlas_model_says(hosts, each):
    """RingLatency and AllToAllLatency, by hand, but for the chunks' preparation."""
    n = hosts * each
    for kind, rounds in (("all-gather", 1), ("reduce-scatter", 1), ("all-reduce", 2)):
        pieces = rounds * (n - 1) / each
        errors = spread(kind, hosts, each)
        assert errors.start_s == pytest.approx(5e-5 + pieces * ROUND_TRIP, rel=1e-3)
        through_the_card = pieces * V / n / NIC
        if each < 8:  # otherwise the links within a host take longer
            assert errors.sending_s == pytest.approx(through_the_card, rel=1e-6)
        assert errors.sending_s >= 0.999999 * through_the_card
    errors = spread("all-to-all", hosts, each)
    others = (hosts - 1) * each
    assert errors.start_s == pytest.approx(5e-5 + others * ROUND_TRIP, rel=1e-3)
    assert errors.sending_s == pytest.approx(others * V / n / NIC, rel=1e-6)


@pytest.mark.parametrize(("hosts", "each"), [(2, 2), (2, 4), (3, 2), (4, 1)])
def test_the_bytes_between_hosts_are_those_of_rings_gone_around(hosts, each):
    """As many rings as devices of a host, each entering the hosts by another one."""
    n, sent = hosts * each, {}
    for ring in range(each):
        order = [
            8 * host + (ring + place) % each
            for host in range(hosts)
            for place in range(each)
        ]
        blocks = {device: {place} for place, device in enumerate(order)}
        for step in range(n - 1):  # each sends on what it got last
            for place, device in enumerate(order):
                to, part = order[(place + 1) % n], (place - step) % n
                assert part in blocks[device]
                blocks[to].add(part)
                if device // 8 != to // 8:
                    sent[device] = sent.get(device, 0) + V / n / each
        assert all(parts == set(range(n)) for parts in blocks.values())
    errors = spread("all-gather", hosts, each)
    assert errors.sending_s == pytest.approx(max(sent.values()) / NIC, rel=1e-6)


def test_a_message_to_each_device_of_further_hosts_is_started():
    """Of 6 hosts with 8: 16 more messages than of 4, of 3 µs each."""
    four, six = (started("all-to-all", n) for n in (32, 48))
    assert six.start_s - four.start_s == near(16 * 3e-6)


def test_a_blackwell_waits_for_the_round_trips_that_xla_has_for_it():
    assert rates_of(HARDWARE["b200"]).start_s["network"] == pytest.approx(
        46.67e-6 * 0.45, rel=1e-3
    )


def test_a_ring_over_more_hosts_takes_a_step_more_of_each():
    """One card of each of six hosts: two steps more, by the protocol of large ones."""
    four, six = (started("all-gather", n, 2**40, every=8) for n in (4, 6))
    assert six.start_s - four.start_s == near(2 * 14e-6)
    # A short message waits less: 1 µs for each step inside, which starts a message.
    four, six = (started("all-gather", n, 2**10) for n in (32, 48))
    assert six.start_s - four.start_s == near(2 * 2.7e-6 + 14 * 1e-6)
    # Eight of each: two steps between hosts, and 14 of the two hosts more inside.
    four, six = (started("all-gather", n, 2**40) for n in (32, 48))
    assert six.start_s - four.start_s == near(2 * 14e-6 + 14 * 3.4e-6)


def test_a_short_message_goes_with_what_waits_less():
    """A ring of 512 hosts: 508 steps of 2.7 µs between them, and half of the speed."""
    four, short = (started("all-gather", n, 2**20, every=8) for n in (4, 512))
    assert short.start_s - four.start_s == near(508 * 2.7e-6)
    assert short.sending_s == near(2 * 2**20 * 511 / 512 / NIC)
    long = started("all-gather", 512, 2**40, every=8)
    assert long.start_s - four.start_s == near(508 * 14e-6)


def test_an_all_reduce_is_a_tree_where_a_ring_waits_longer():
    """Of 512 hosts a tree has seven levels more than of four, each there and back."""
    four, tree = (started("all-reduce", n, 2**28, every=8) for n in (4, 512))
    assert tree.start_s - four.start_s == near(14 * 14e-6)
    assert tree.start_s < started("all-gather", 512, 2**28, every=8).start_s
    # Seven hosts have no more levels than four, and a tree of 511 has one less.
    less = started("all-reduce", 511, 2**28, every=8)
    assert less.start_s - four.start_s == near(12 * 14e-6)
    ring = started("all-reduce", 512, 2**40, every=8)
    assert ring.start_s - four.start_s == near(2 * 508 * 14e-6)


@pytest.mark.parametrize("kind", ["all-gather", "reduce-scatter", "all-reduce"])
def test_no_size_costs_less_than_a_smaller_one(kind):
    sizes = [started(kind, 4096, 2**n).seconds for n in range(10, 40, 2)]
    assert sizes == sorted(sizes)
    hosts = [started(kind, 8 * 2**n, 2**28).seconds for n in range(10)]
    assert hosts == sorted(hosts)


V5P = rates_of(HARDWARE["v5p"])
ICI = 9e10 * 0.9
CUBE = Positions(
    "TPU v5", (0,) * 64, (0,) * 64,
    tuple((x, y, z, 0) for x in range(4) for y in range(4) for z in range(4)),
)  # fmt: skip


@pytest.mark.parametrize(
    ("group", "ways"),
    [
        (range(4), 2),  # along z, which closes to a ring: both ways
        (range(16), 4),  # y and z
        (range(64), 6),
        ((0, 1), 1),  # two neighbors
    ],
)
def test_on_a_torus_a_group_uses_the_links_of_its_directions(group, ways):
    cost = price(collective("all-gather", tuple(group)), V5P, CUBE)
    n = len(group)
    assert cost.sending_s == pytest.approx(V * (n - 1) / n / (ways * ICI), rel=1e-6)
    assert cost.lane == "ici"


def busiest(sizes, closed):
    """The least that the busiest link carries in an all-to-all, by linear programming.

    Of all ways to send, along any paths: how much of what comes from each device goes
    over each link.
    """
    places = list(itertools.product(*map(range, sizes)))
    links = set()
    for place in places:
        for way, (size, is_ring) in enumerate(zip(sizes, closed, strict=True)):
            to = place[way] + 1
            if to < size or (is_ring and size > 2):
                there = (*place[:way], to % size, *place[way + 1 :])
                links |= {(place, there), (there, place)}
    links, n = sorted(links), len(places)
    of = {pair: number for number, pair in enumerate(itertools.product(places, links))}
    flows = scipy.sparse.lil_matrix((n * n, len(of) + 1))
    loads = scipy.sparse.lil_matrix((len(links), len(of) + 1))
    wanted = []
    for row, (source, place) in enumerate(itertools.product(places, places)):
        for link in links:
            if place in link:
                flows[row, of[source, link]] = 1 if link[1] == place else -1
        wanted.append((1 - n) / n if source == place else 1 / n)
    for row, link in enumerate(links):
        for source in places:
            loads[row, of[source, link]] = 1
        loads[row, len(of)] = -1
    cost = np.zeros(len(of) + 1)
    cost[-1] = 1
    optimum = scipy.optimize.linprog(
        cost, loads.tocsr(), np.zeros(len(links)), flows.tocsr(), np.array(wanted)
    )
    return optimum.fun


@pytest.mark.parametrize(
    ("chip", "sizes"),
    [
        *(("v5p", (2, 1, 1)), ("v5p", (6, 1, 1)), ("v5p", (4, 1, 1))),
        *(("v5p", (8, 1, 1)), ("v5p", (2, 2, 1)), ("v5p", (2, 4, 1))),
        *(("v5p", (4, 4, 1)), ("v5p", (2, 2, 4))),
        *(("v5e", (4, 1)), ("v5e", (2, 4)), ("v5e", (4, 4)), ("v5e", (16, 1))),
    ],
)
def test_an_all_to_all_on_a_torus_is_bound_by_its_busiest_link(chip, sizes):
    """A direction closes to a ring with a multiple of 4 chips, of a v5e of 16."""
    coords = tuple((*place, 0) for place in itertools.product(*map(range, sizes)))
    n, closes = len(coords), {"v5p": 4, "v5e": 16}[chip]
    at, rates = Positions("TPU", (0,) * n, (0,) * n, coords), rates_of(HARDWARE[chip])
    cost = price(collective("all-to-all", tuple(range(n))), rates, at)
    least = busiest(sizes, [size % closes == 0 for size in sizes])
    link = rates.of_link("ici", "all-to-all")
    assert cost.sending_s == pytest.approx(V * least / link, rel=1e-6)


def test_an_all_to_all_in_a_part_of_a_direction_has_no_ring():
    cost = price(collective("all-to-all", (0, 1)), V5P, CUBE)
    assert cost.sending_s == pytest.approx(V * busiest((2,), (False,)) / ICI, rel=1e-6)


def test_a_row_of_a_v5e_that_is_no_ring_sends_one_way():
    row = Positions(
        "TPU v5 lite", (0,) * 4, (0,) * 4, tuple((x, 0, 0, 0) for x in range(4))
    )
    rates = rates_of(HARDWARE["v5e"])
    cost = price(collective("all-gather", (0, 1, 2, 3)), rates, row)
    assert cost.sending_s == pytest.approx(V * 3 / 4 / (4.5e10 * 0.9), rel=1e-6)


def test_between_slices_each_chip_sends_its_part_over_the_network():
    slices = Positions("TPU v5", (0, 0, 1, 1), (0, 0, 1, 1))
    cost = price(collective("all-gather", (0, 1, 2, 3)), V5P, slices)
    assert cost.lane == "dcn"
    assert cost.sending_s == pytest.approx(V / 2 / 2 / (6.25e9 * 0.9), rel=1e-6)


def test_hosts_of_a_text_are_those_of_the_chip_or_of_the_argument():
    text = gathered(groups="{{0,8}}", devices=16)
    far = spmd.step_time(text, "h200")
    near_by = spmd.step_time(text, "h200", host_devices=16)
    assert set(far.lanes) == {"kernels", "network"}
    assert set(near_by.lanes) == {"kernels", "nvlink"}
    assert any("that no measured row tests" in note for note in far.notes)
    title, inside = (str(step).splitlines()[0] for step in (far, near_by))
    assert title.endswith("(error unknown: see below)")
    assert inside.endswith(f"± {near_by.error:.0%}")


def test_a_network_whose_speed_no_source_says_is_left_out_and_that_is_said():
    chip = dataclasses.replace(HARDWARE["h200"], network_bytes_per_s=None)
    text = gathered(groups="{{0,8}}", devices=16)
    step = spmd.step_time(text, chip)
    assert step.lanes["network"] == 0
    assert any("no source says how fast the network" in note for note in step.notes)
    own = {"collectives": {"network": {"bytes_per_s": 1e9}}}
    known = spmd.step_time(text, chip, rates=own)
    assert known.lanes["network"] > ARRAY / 2 / 1e9


# --- What else is given -------------------------------------------------------------


def test_own_rates_take_the_place_of_the_packages():
    own = {"bf16_flops_per_s": 1e14, "kernel_s": 1e-6}
    step = spmd.step_time(ONE_PRODUCT, "h200", rates=own)
    assert step.total_s == near(FLOPS / 1e14 + 1e-6 + H200.product_s)
    assert step.rates["products bf16"] == (1e14, "FLOP/s", "yours")
    assert step.error is None  # nobody held these against anything
    own = {"collectives": {"all-gather": {"bytes_per_s": 1e11, "start_s": 1e-3}}}
    for devices in (2, 4, 8):  # of every size of a group within a host
        ids = ",".join(map(str, range(devices)))
        text = gathered(groups=f"{{{{{ids}}}}}", devices=devices)
        sent = (devices - 1) * ARRAY / 2
        assert spmd.step_time(text, "h200", rates=own).total_s == near(
            1e-3 + sent / 1e11
        )
    (row,) = spmd.load_measured("gpu-speeds")
    same = spmd.step_time(ONE_PRODUCT, "h200", rates=row)
    assert same.total_s == near(MULTIPLIED)


def test_every_rate_names_its_source():
    for chip in HARDWARE.values():
        for name, (value, unit, source) in rates_of(chip).listed().items():
            assert value >= 0, (chip.name, name)
            assert unit, (chip.name, name)
            assert source, (chip.name, name)


def test_a_rate_of_larger_groups_has_the_source_of_that_figure_not_of_pairs():
    listed = rates_of(HARDWARE["h200"]).listed()
    pair, larger, largest = (
        listed[f"{link} all-gather"]
        for link in ("nvlink", "nvlink of 4 or more", "nvlink of 8 or more")
    )
    assert larger[0] != pair[0]
    assert "sm_90" in larger[2]
    assert larger[2] == largest[2] != pair[2]
    assert listed["products bf16"][2] == listed["products f32"][2]


def test_tokens_and_model_flops_give_a_rate_and_a_utilization():
    step = spmd.step_time(ONE_PRODUCT, "h200", tokens=8192, model_flops=FLOPS / 2)
    assert step.tokens_per_s == near(8192 / MULTIPLIED)
    assert step.mfu == near(FLOPS / 2 / MULTIPLIED / 9.89e14)
    own = spmd.step_time(ONE_PRODUCT, "h200")
    assert own.mfu == near(2 * step.mfu)
    assert own.tokens_per_s is None


def test_the_table_has_a_line_for_each_line_of_code_and_what_is_exposed():
    names = archived("programs.gpu_0.11.2")
    text = names["fsdp_grad"]
    step = spmd.step_time(text, "h100")
    shown = str(step)
    assert shown.startswith(f"`{step.name}` on 8 × h100, predicted: ")
    assert "line" in shown
    assert "exposed: kernels wait" in shown
    assert "<table" in step._repr_mimebundle_()["text/html"]
    sources = {line.source for line in step.lines}
    collectives = read_hlo(text, {"data": 4, "model": 2})
    assert {c.source for c in collectives} <= sources
    lines = step.lines
    assert sum(line.link_s for line in lines) == near(
        sum(s for lane, s in step.lanes.items() if lane != "kernels")
    )
    assert sum(line.exposed_s for line in lines) == near(step.exposed_s)


@pytest.mark.parametrize("archive", ["programs.gpu_0.11.2", "programs.v5p_0.12.0.1"])
def test_every_program_is_gone_through_and_its_parts_add_up(archive):
    chip = "h100" if "gpu" in archive else "v5p"
    for name, text in archived(archive).items():
        step = spmd.step_time(text, chip)
        sums = sum(step.lanes.values())
        assert sum(part.seconds for part in step.parts) == near(sums), name
        least, most = step.bounds_s
        assert least <= most, name
        if step.total_s is not None and step.total_s > H100.call_s[1]:
            assert step.total_s <= most + step.slowed_s + 1e-12, name


# --- Programs of another compiler ---------------------------------------------------


def test_a_text_of_the_cpu_compiler_gives_bounds_and_says_why():
    text = ONE_PRODUCT.replace(f", {GPU}", "")
    step = spmd.step_time(text, "h200")
    assert step.total_s is None
    assert step.how == "bounds"
    assert step.bounds_s == (near(MULTIPLIED - STARTED), near(MULTIPLIED))
    assert "the CPU compiler made this program" in step.notes[0]
    assert "spmd.gpu_mesh" in step.notes[0]


def test_a_gpus_program_gives_bounds_for_a_tpu():
    step = spmd.step_time(ONE_PRODUCT, "v5p")
    assert step.total_s is None
    assert "the GPU compiler made this program" in step.notes[0]
    assert "spmd.tpu_mesh" in step.notes[0]


def test_a_program_without_a_schedule_gives_bounds():
    text = module(f"{argument()}\n{product()}", scheduled=False)
    step = spmd.step_time(text, "h200")
    assert step.total_s is None
    assert "has no schedule" in step.notes[0]


def test_a_kernel_that_does_not_state_its_flops_is_named():
    text = module(
        f"{argument()}\n  ROOT %mine = bf16[8192,8192]{{1,0}} custom-call(%x), "
        f'custom_call_target="__gpu$xla.gpu.triton", {GPU}'
    )
    step = spmd.step_time(text, "h200")
    assert step.flops_per_device is None
    assert step.total_s == near(COPIED)
    assert "the kernel mine does not state its FLOPs" in step.notes[0]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((ONE_PRODUCT,), "chip=None, and the program is a text"),
        ((ONE_PRODUCT, "h300"), "h300"),
        ((3, "h200"), "report=3 is neither an XRay nor the text"),
        (("no program", "h200"), "is not HLO"),
    ],
)
def test_what_is_no_program_or_no_chip_is_told(arguments, said):
    with pytest.raises(NotUnderstood, match=said):
        spmd.step_time(*arguments)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"tokens": 0}, "tokens=0 is not a positive number"),
        ({"tokens": True}, "tokens=True"),
        ({"model_flops": "7"}, "model_flops='7'"),
        ({"tokens": float("nan")}, "tokens=nan is not a positive number"),
        ({"host_devices": -8}, "host_devices=-8 is not an integer of 1 or more"),
        ({"host_devices": 0.4}, "host_devices=0.4 is not an integer"),
        ({"rates": {"kernel_s": float("inf")}}, "kernel_s=inf is not a positive"),
        ({"rates": {"collectives": [1]}}, r"collectives=\[1\] is no dict"),
        (
            {"rates": {"collectives": {"all-gather": 3e11}}},
            r"collectives\['all-gather'\]=300000000000.0 is no dict",
        ),
        (
            {"rates": {"collectives": {"allgather": {"bytes_per_s": 3e11}}}},
            "has 'allgather', which is no kind of collective",
        ),
        (
            {"rates": {"collectives": {"network": {"bytes_per_s": 1, "start_s": -1}}}},
            r"\['start_s'\]=-1 is not a positive",
        ),
        ({"rates": {}}, "has none of bf16_flops_per_s"),
        ({"rates": {"bf16_flops_per_s": -1}}, "bf16_flops_per_s=-1 is not a positive"),
        ({"rates": {"collectives": {"all-gather": {}}}}, "bytes_per_s"),
    ],
)
def test_a_figure_that_is_of_no_use_is_told(options, said):
    with pytest.raises(NotUnderstood, match=said):
        spmd.step_time(ONE_PRODUCT, "h200", **options)


def test_steps_within_the_error_are_ties():
    one = spmd.step_time(ONE_PRODUCT, "h200")
    little = dataclasses.replace(one, total_s=one.total_s * (1 + one.error / 2))
    much = dataclasses.replace(one, total_s=one.total_s * 2)
    assert one.is_tie(little)
    assert not one.is_tie(much)
    assert one.is_tie(dataclasses.replace(one, total_s=None))


assert DOT
