"""Groups on the mesh: the lines join the devices of each group, and cross its hosts."""

import re
from collections import defaultdict

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import spmd_helpers as spmd
from spmd_helpers._figures import groups
from tests.mutants import both_ways

from ..player.collectives import columns, rows, written

MESH = {"data": 2, "model": 4}
CASES = [
    (rows(2, 4), MESH), (columns(4, 2), MESH), (rows(1, 8), MESH),
    (rows(1, 8), {"data": 8}), (rows(4, 2), {"data": 8}),
    (columns(2, 4), {"model": 4, "data": 2}), (rows(4, 2), {"model": 4, "data": 2}),
    (((0, 4), (1, 5), (2, 6), (3, 7)), {"model": 4, "data": 2}),
    (((0, 4), (1, 5), (2, 6), (3, 7)), {"a": 2, "b": 2, "c": 2}),
    (((0, 2), (1, 3), (4, 6), (5, 7)), MESH),
]  # fmt: skip


def drawn(shown, module=groups):
    """Which devices the lines join, and the widths of the lines, by their devices."""
    svg = shown.svg
    names = re.findall(r'<text class="(?:name|tiny)" x="(\S+)" y="(\S+)" '
                       r'text-anchor="middle">(\d+)', svg)  # fmt: skip
    middles = {(float(x), round(float(y))): int(d) for x, y, d in names}
    joined = defaultdict(set)
    kinds = {}
    for kind, path in re.findall(r'<path class="(\w+)[^"]*" d="M([^"]+)"', svg):
        numbers = [*map(float, path.split())]
        ends = [(numbers[0], numbers[1]), (numbers[-2], numbers[-1])]
        a, b = (_device(end, middles) for end in ends)
        joined[a].add(b)
        joined[b].add(a)
        kinds[a] = kinds[b] = kind
    return {frozenset(_reached(d, joined)) for d in joined}, kinds


def _device(place, middles):
    x, y = place
    return next(d for (a, b), d in middles.items() if abs(a - x) < 1 and abs(b - y) < 6)


def _reached(start, joined):
    known, new = set(), {start}
    while new:
        known |= new
        new = {b for a in new for b in joined[a]} - known
    return known


def check_groups(members, mesh, per_host=4, absent=(), module=groups):
    collective = written("all-reduce", members, 24, mesh)
    shown = module.draw_groups(
        collective, mesh=mesh, devices_per_host=per_host, absent=absent
    )
    sets, kinds = drawn(shown)
    assert sets == {frozenset(g) for g in members}
    for group in members:
        hosts = {d // per_host for d in group}
        kind = "thick" if len(hosts) > 1 else "thin"
        if hosts & {*absent}:
            kind = "waits"
        assert {kinds[d] for d in group} == {kind}
    gone = [d for d in range(8) if d // per_host in absent]
    assert shown.svg.count('class="empty"') == len(gone)
    waiting = {
        d for g in members if {x // per_host for x in g} & {*absent} for d in g
    } - {*gone}
    assert shown.svg.count(" waits</text>") == len(waiting)
    return shown


@pytest.mark.parametrize(("members", "mesh"), CASES)
def test_lines_join_each_group(members, mesh):
    for absent in ((), (1,)):
        shown = check_groups(members, mesh, absent=absent)
        lines = str(shown).splitlines()[1:]
        assert len(lines) == len(members)
        for group, line in zip(members, lines, strict=True):
            assert ("crosses" in line) == (len({d // 4 for d in group}) > 1)


def test_two_lines_of_different_groups_never_cover_each_other():
    for members, mesh in CASES:
        collective = written("all-reduce", members, 24, mesh)
        svg = groups.draw_groups(collective, mesh=mesh).svg
        paths = re.findall(r'<path class="thin[^"]*" d="([^"]+)"', svg)
        assert len(set(paths)) == len(paths)


@pytest.mark.parametrize(
    ("outer", "inner"),
    [
        ("data", "model"),
        pytest.param("model", "data", marks=pytest.mark.long("another mesh, compiled")),
    ],
)
def test_groups_of_a_compiled_program_cross_as_its_bytes_do(outer, inner):
    """The figure of the chapter: what crosses are gradients, or activations."""
    size = {"data": 2, "model": 4}
    mesh = jax.make_mesh((size[outer], size[inner]), (outer, inner),
                         axis_types=(AxisType.Auto,) * 2)  # fmt: skip

    def new(shape, *spec):
        return jax.ShapeDtypeStruct(
            shape, jnp.float32, sharding=NamedSharding(mesh, P(*spec))
        )

    args = new((10, 64), None, "model"), new((64, 6), "model"), new((24, 10), "data")

    def loss(w1, w2, x):
        return ((jnp.tanh(x @ w1) @ w2) ** 2).mean()

    collectives = spmd.xray(jax.grad(loss, (0, 1)), *args).collectives
    crossing = set()
    for one in collectives:
        shown = spmd.draw_groups(one, mesh=mesh, devices_per_host=4)
        thick = 'class="thick' in shown.svg
        assert thick == any(len({d // 4 for d in g}) > 1 for g in one.groups)
        crossing |= {*one.axes} if thick else set()
    assert crossing == {outer}


def test_a_line_has_the_color_of_its_axis():
    for members, hue in ((columns(4, 2), "axis-0"), (rows(2, 4), "axis-1")):
        shown = groups.draw_groups(written("all-gather", members, 4, MESH), mesh=MESH)
        assert {*re.findall(r'class="thin (axis-\d)"', shown.svg)} == {hue}


@pytest.mark.parametrize(
    ("more", "error", "words"),
    [
        ({"mesh": {"x": 4}}, spmd.MeshMismatch, "position 7"),
        ({"mesh": {"x": 65}}, spmd.NotUnderstood, "65 devices"),
        ({"devices_per_host": 3}, spmd.NotUnderstood, "devices_per_host=3"),
        ({"devices_per_host": 4, "absent": [2]}, spmd.NotUnderstood, "absent="),
        ({"absent": [0]}, spmd.NotUnderstood, "absent="),
    ],
)
def test_bad_input_is_named(more, error, words):
    collective = written("all-reduce", rows(2, 4), 24, MESH)
    with pytest.raises(error, match=words):
        spmd.draw_groups(collective, **{"mesh": MESH, **more})


def test_less_than_an_element_each_is_not_said_to_be_sent():
    for size, words in ((1, "result 4 B"), (7, "result 28 B"), (8, "sends 56 B")):
        shown = groups.draw_groups(
            written("all-reduce", rows(1, 8), size, MESH), mesh=MESH
        )
        assert str(shown).splitlines()[0].endswith(words)


def test_only_a_collective_is_drawn():
    with pytest.raises(spmd.NotUnderstood, match="is no Collective"):
        spmd.draw_groups("all-reduce", mesh=MESH)


MUTANTS = [
    ("_figures.groups:_items", "len({$host_of.get($d, 0) for $d in $group}) > 1",
     "False"),
    ("_figures.groups:_items",
     "if $gone and not $gone.isdisjoint($group): $kind = 'waits'", "pass"),
    ("_figures.groups:_lines", "sorted($group)", "sorted($group)[:-1]"),
    ("_figures.groups:_hosts", "range($start, $start + $each)", "range($start)"),
]  # fmt: skip


def right(module):
    # The copy has its own Collective; what is drawn is told by its attributes.
    module.Collective = groups.Collective
    for members, mesh in CASES:
        check_groups(members, mesh, module=module)
        check_groups(members, mesh, absent=(1,), module=module)


test_a_broken_drawing_is_noticed, test_an_unbroken_copy_is_right = both_ways(
    MUTANTS, right, "_figures.groups"
)
