"""A drawn product: the parts that devices compute, added up, are the product."""

import re

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import spmd_helpers as spmd
from spmd_helpers._figures import products
from tests.mutants import both_ways

MESH = {"data": 4, "model": 2}
SIZES = (48, 40, 96)
# The products of the chapter's layer: forward, and of its backward pass.
FORWARD = [
    (SIZES, ("data",), (None, "model"), None),
    ((48, 96, 40), ("data", "model"), ("model",), ("data",)),
]
BACKWARD = [
    ((48, 40, 96), ("data",), (None, "model"), None),  # dy · w2ᵀ
    ((96, 48, 40), ("model", "data"), ("data",), ("model",)),  # hiddenᵀ · dy
    ((40, 48, 96), (None, "data"), ("data", "model"), (None, "model")),  # xᵀ · dz
    ((48, 96, 40), ("data", "model"), ("model",), ("data",)),  # dz · w1ᵀ
]
OTHERS = [
    ((48, 96, 40), ("data", "model"), (None, "model"), None),
    ((48, 40, 96), (), ("data", "model"), None),
    ((48, 40, 96), ("data",), (), None),
]


def product(case):
    sizes, a, b, out = case
    return spmd.matmul(sizes, a, b, mesh=MESH, out=out)


def check_parts(case, module=products):
    """Each device multiplies its slices; what they add up to is C."""
    shown = module._View(product(case), ("A", "B", "C"), range(8))
    rng = np.random.default_rng(0)
    i, j, k = case[0]
    a, b = rng.normal(size=(i, j)), rng.normal(size=(j, k))
    total = np.zeros((i, k))
    for device in range(8):
        (rows, inner), (_, columns) = (
            shown.slices(device, dims) for dims in ("IJ", "JK")
        )
        assert shown.slices(device, "JK")[0] == inner
        assert shown.slices(device, "IK") == (rows, columns)
        block = slice(*rows), slice(*columns)
        total[block] += a[block[0], slice(*inner)] @ b[slice(*inner), block[1]]
        number, count = shown.parts(device)
        assert inner == (j // count * number, j // count * (number + 1))
    repeats = product(case).redundancy
    np.testing.assert_allclose(total / repeats, a @ b, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("case", [*FORWARD, *BACKWARD, *OTHERS])
def test_the_parts_add_up_to_the_product(case):
    check_parts(case)


@pytest.mark.parametrize("case", [*FORWARD, *BACKWARD, *OTHERS])
def test_the_shards_are_those_of_jax(case):
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    shown = product(case)
    for info, spec in ((shown.a, case[1]), (shown.b, case[2])):
        index = NamedSharding(mesh, P(*spec)).devices_indices_map(info.shape)
        for position, device in enumerate(mesh.devices.flat):
            place = zip(index[device], info.shape, strict=True)
            assert products._shard(info, position) == tuple(
                s.indices(n)[:2] for s, n in place
            )


@pytest.mark.long("the gradient of a layer, compiled")
def test_the_layer_moves_what_its_products_move():
    """Chapter 11: the three exchanges of a training step of the layer."""
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)

    def new(shape, *spec):
        return jax.ShapeDtypeStruct(
            shape, np.float32, sharding=NamedSharding(mesh, P(*spec))
        )

    def mlp(x, w1, w2):
        return jax.nn.relu(x @ w1) @ w2

    def loss(x, w1, w2):
        return (mlp(x, w1, w2) ** 2).sum()

    args = new((48, 40), "data"), new((40, 96), None, "model"), new((96, 40), "model")
    collectives = spmd.xray(jax.grad(loss, argnums=(0, 1, 2)), *args).collectives

    def by_axis(moves):
        return {
            axes: sum(m.result_bytes for m in moves if m.axes == axes)
            for axes in sorted({m.axes for m in moves})
        }

    moves = [m for case in [*FORWARD, *BACKWARD] for m in product(case).moves]
    assert {m.kind for m in moves} == {c.kind for c in collectives} == {"all-reduce"}
    assert by_axis(moves) == by_axis(collectives)


def colors(svg):
    return re.findall(r'style="fill: (#\w+)"/>', svg)


def test_partial_sums_are_hatched_and_the_rest_is_not():
    for case in [*FORWARD, *BACKWARD, *OTHERS]:
        shown = products.draw_product(product(case), devices=(0, 1, 2))
        view = products._View(product(case), ("A", "B", "C"), (0, 1, 2))
        parts = view.parts(0)[1]
        hatched = re.findall(r'<path style="stroke: #\w+; stroke-width: 3"', shown.svg)
        assert len(hatched) == (3 if parts > 1 else 0)
        assert ("part 1 of" in str(shown)) == (parts > 1)
    gathered = products.draw_product(product(OTHERS[0]))
    # Both have a received half, in the color of its owner.
    assert gathered.svg.count('class="ground"') == 1 + 2


def test_words_and_default_devices():
    text = str(spmd.draw_product(product(FORWARD[1]), names=("h", "w2", "y")))
    assert text.splitlines()[0] == (
        "h[48, 96] · w2[96, 40] = y[48, 40]: all-reduce of y over model, "
        "each sends 1,920 B"
    )
    assert [line.split("  ")[0] for line in text.splitlines()[1:]] == [
        "device 0", "device 1"
    ]  # fmt: skip
    tiny = spmd.matmul((1, 8, 1), ((), "x"), ("x",), mesh={"x": 4})
    assert "all-reduce of C over x, result 4 B" in str(spmd.draw_product(tiny))
    lone = spmd.matmul((4, 4, 4), (), (), mesh={"x": 1})
    assert "device 0" in str(spmd.draw_product(lone))


@pytest.mark.parametrize(
    ("given", "more", "words"),
    [
        (3, {}, "product=3 is no Matmul"),
        (None, {"names": "ABC"}, "names='ABC'"),
        (None, {"names": ("A", "B")}, "three names"),
        (None, {"devices": [8]}, "devices="),
        (None, {"devices": []}, "0 devices"),
    ],
)
def test_bad_input_is_named(given, more, words):
    with pytest.raises(spmd.NotUnderstood, match=words):
        spmd.draw_product(given or product(FORWARD[0]), **more)


MUTANTS = [
    ("_figures.products:_View._slice", "$block * $size + self._along($device, $axis)",
     "$block * $size"),
    ("_figures.products:_View._axes", "self.cuts.get($axis) == $dim", "False"),
    ("_figures.products:_View._along", "$device // $inner % self.mesh[$axis]",
     "$device % self.mesh[$axis]"),
    ("_figures.products:_View.parts", "$count *= self.mesh[$axis]", "pass"),
]  # fmt: skip


def right(module):
    module.Matmul = products.Matmul
    for case in [*FORWARD, *BACKWARD, *OTHERS]:
        check_parts(case, module)


test_a_broken_view_is_noticed, test_an_unbroken_copy_is_right = both_ways(
    MUTANTS, right, "_figures.products"
)
