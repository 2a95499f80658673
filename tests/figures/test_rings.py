"""Rings: the blocks are where a run on eight devices has them in each iteration."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import spmd_helpers as spmd
from spmd_helpers._figures import rings
from tests.player.test_player import Read

WAYS = {"next": 1, "previous": -1, "third": 3}


def mesh(**axes):
    kinds = (AxisType.Auto,) * len(axes)
    return jax.make_mesh(tuple(axes.values()), tuple(axes), axis_types=kinds)


def recorded(step, over, iterations=None):
    """A loop that notes which block of keys each device has in each iteration."""
    n = over.shape["model"]
    pairs = [(i, (i + step) % n) for i in range(n)]

    def ring(k, v):
        def turn(i, state):
            k, v, log = state
            log = log.at[:, i].set((k[0] + v[0] - 0.5) / 2)
            k, v = lax.ppermute((k, v), "model", pairs)
            return k, v, log

        times = iterations or n
        log = lax.pcast(jnp.zeros((1, times)), "model", to="varying")
        return lax.fori_loop(0, times, turn, (k, v, log))[2]

    mapped = jax.shard_map(
        ring, mesh=over, in_specs=(P("model"), P("model")), out_specs=P("model")
    )
    blocks = jnp.arange(n, dtype=jnp.float32)
    place = NamedSharding(over, P("model"))
    args = [jax.device_put(blocks, place), jax.device_put(blocks + 0.5, place)]
    return jax.jit(mapped), args


def check(name, module=rings, iterations=None):
    """The record of a compiled ring against what the run notes."""
    f, args = recorded(WAYS[name], mesh(model=8), iterations)
    ring = module.read(spmd.xray(f, *args), True)
    noted = np.asarray(f(*args)).astype(int)  # [device, iteration]
    assert ring.iterations == (iterations or 8)
    for number in range(ring.iterations):
        has = dict(zip(ring.devices, ring.blocks[number], strict=True))
        assert [has[d] for d in range(8)] == noted[:, number].tolist()
        done = {
            (device, block): when
            for when in range(number + 1)
            for device, block in enumerate(noted[:, when].tolist())
        }
        assert ring.computed(number) == done
    assert ring.computed(ring.iterations) == ring.computed(ring.iterations - 1)
    assert ring.wire_bytes == 2 * 4  # one number of k and one of v
    for queries in range(8):
        for keys in range(8):
            assert ring.is_masked(queries, keys) == (keys > queries)


MORE = pytest.mark.long("the same ring, other pairs")


@pytest.mark.parametrize(
    "name", ["previous", *(pytest.param(n, marks=MORE) for n in ("next", "third"))]
)
def test_blocks_are_where_a_run_has_them(name):
    check(name)


def test_a_ring_may_stop_before_its_blocks_are_back():
    check("next", iterations=3)


def test_two_rings_are_one_drawn_and_both_counted():
    f, args = recorded(1, mesh(data=2, model=4))
    ring = rings.read(spmd.xray(f, *args), False)
    assert ring.rings == 2
    assert ring.devices == (0, 1, 2, 3)
    assert not ring.is_masked(0, 3)
    assert "one of 2 equal rings" in str(spmd.RingPlayer(spmd.xray(f, *args)))


@pytest.fixture(scope="module")
def four():
    f, args = recorded(1, mesh(data=2, model=4))
    return spmd.xray(f, *args)


def test_picture_and_text_say_the_same(four):
    shown = spmd.RingPlayer(four, causal=True)
    bundle = shown._repr_mimebundle_()
    read, text = Read(bundle["text/html"]), " ".join(str(shown).split())
    assert bundle["text/plain"] == str(shown)
    assert len(read.frames) == 5
    for words in read.words:
        assert " ".join(words.split()) in text
    assert "2 devices of 4 compute only scores that are discarded." in text
    assert "16 of 16 blocks of scores are computed, 6 of them only to be" in text
    assert "Each device has sent 32 B. Each block is back at its device" in text
    assert "discarded" not in str(spmd.RingPlayer(four))
    for number, frame in enumerate(read.frames):
        kinds = [a.get("class") for _, a in frame]
        assert kinds.count("spmd-ring-score") == 4 * min(number + 1, 4)
        assert kinds.count("spmd-play-new") == (4 if number < 4 else 0)
    assert len(set(read.ids)) == len(read.ids)


def test_a_flight_ends_where_the_next_frame_has_the_block(four):
    read = Read(spmd.RingPlayer(four)._repr_mimebundle_()["text/html"])
    places = [
        {
            a["href"]: (float(a["x"]), float(a["y"]), a.get("data-to"))
            for tag, a in frame
            if tag == "use" and "x" in a
        }
        for frame in read.frames
    ]
    for now, after in itertools.pairwise(places):
        for block, (x, y, to) in now.items():
            dx, dy = map(float, to.split())
            assert after[block][:2] == pytest.approx((x + dx, y + dy), abs=0.11)
    assert all(to is None for *_, to in places[-1].values())


def xray_of(body, over):
    spec = P("model")
    mapped = jax.shard_map(body, mesh=over, in_specs=spec, out_specs=spec)
    place = NamedSharding(over, spec)
    x = jax.ShapeDtypeStruct((over.size,), jnp.float32, sharding=place)
    return spmd.xray(mapped, x)


def permuted(*pairs):
    return lambda x: lax.ppermute(x, "model", pairs)


def both_ways(x):
    n = lax.axis_size("model")
    there = lax.ppermute(x, "model", [(i, (i + 1) % n) for i in range(n)])
    return there + lax.ppermute(x, "model", [((i + 1) % n, i) for i in range(n)])


def unknown_times(x):
    n = lax.axis_size("model")
    pairs = [(i, (i + 1) % n) for i in range(n)]
    return lax.while_loop(
        lambda x: lax.pmax(x.sum(), "model") < 9,
        lambda x: lax.ppermute(x, "model", pairs) + 1, x,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (lambda x: x + 1, "no collective-permute"),
        (permuted((0, 1), (1, 2), (2, 3)), "make no ring"),
        (permuted((0, 1), (1, 0), (2, 3), (3, 4), (4, 2)), "rings of"),
        (both_ways, "differ in their pairs"),
        (unknown_times, "unknown number of times"),
    ],
)
def test_what_is_no_ring_is_refused(body, words):
    with pytest.raises(spmd.NotUnderstood, match=words):
        spmd.RingPlayer(xray_of(body, mesh(model=8)))


def test_what_is_no_xray_is_refused():
    with pytest.raises(spmd.NotUnderstood, match=r"give what spmd\.xray returns"):
        spmd.RingPlayer(3)


MUTANTS = [
    ("_figures.rings:read", "$before[$place - 1]", "$before[$place]"),
    ("_figures.rings:read", "$order.index($device)", "$device * 0"),
    ("_figures.rings:read", "range($first.count)", "range($first.count + 1)"),
    ("_figures.rings:Ring.computed", "self.blocks[:$iteration + 1]", "self.blocks"),
    ("_figures.rings:Ring.computed", "$number < self.iterations", "True"),
    ("_figures.rings:Ring.is_masked", "$keys > queries", "$keys >= queries"),
]  # fmt: skip


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_broken_ring_is_noticed(broken_package, monkeypatch, mutant):
    (copy,) = broken_package(mutant, "_figures.rings")
    monkeypatch.setattr(copy, "XRay", spmd.XRay)
    assert not right(copy)


def right(module) -> bool:
    try:
        for name in WAYS:
            check(name, module)
        check("next", module, iterations=3)
    except AssertionError:
        return False
    return True
