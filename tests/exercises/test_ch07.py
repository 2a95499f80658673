"""Chapter 7: its checks, judged by right and wrong answers."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import spmd_helpers as spmd
from spmd_exercises import CheckFailed, ch07
from spmd_exercises._setting import abstract, make_mesh, on

from .judging import YES, Answers, AnswersAreJudged, imports


class TestChapter7(AnswersAreJudged):
    pass


def given():
    """What the chapter's cells have made where its answers stand."""
    mesh = make_mesh(data=4, model=2)

    return imports() | {
        "mesh": mesh,
        "make_mesh": lambda data, model: make_mesh(data=data, model=model),
        "abstract": lambda shape, *entries, mesh=mesh: abstract(
            shape, on(mesh, *entries)
        ),
        "layer": lambda x, w: x @ w,
    }


@pytest.mark.skipif(
    jax.device_count() < 64, reason="a pod of 64 devices: SPMD_TEST_DEVICES=64"
)
@pytest.mark.parametrize(
    "specs",
    [
        (P("data"), P(None, "model"), P("model")),
        (P("model"), P(None, "data"), P("data")),
        (P("data"), P(None, "model"), P("model", "data")),
        (P("data"), P(None, "model"), P("data", "model")),
        (P("data", "model"), P("model"), P("model")),
        (P("data", "model"), P("model", "data"), P("data", "model")),
        (P("model"), P(None, "model"), P("model")),
        (P(("data", "model")), P("data"), P(None, "model")),
    ],
    ids=str,
)
def test_four_devices_judge_specs_as_the_pod_does(specs):
    """7.5 is compiled for 2 × 2 devices in place of 8 × 8."""
    pod = make_mesh(data=8, model=8)
    args = [
        abstract(shape, on(pod, *spec))
        for shape, spec in zip(ch07._SHAPES.values(), specs, strict=True)
    ]
    report = spmd.xray(lambda x, w1, w2: jnp.tanh(x @ w1) @ w2, *args)
    sent = [(c.kind, c.result_bytes <= 64 * 1024) for c in report.collectives]
    if report.redundancy < 1.01 and sent == [("all-reduce", True)]:
        ch07.check_7_5(*specs)
    else:
        with pytest.raises(CheckFailed, match="with these specs"):
            ch07.check_7_5(*specs)


THRIFTY = "def thrifty(x, w1, w2):\n"
WASTED = "def wasted(f, *args):\n"
ON = "    on = lambda *e: NamedSharding(mesh, P(*e))\n"

ANSWERS = {
    "7.1": Answers(
        right=[
            "a_times, b_times, c_times, d_times, e_times = 8, 2, 1, 1, 4",
            "a_times, b_times, e_times = 8.0, 2.0, 4.0\nc_times = d_times = 1.0",
            # looked up, on Explicit axes as well
            """
types = (AxisType.Explicit,) * 2
own = jax.make_mesh((4, 2), ("data", "model"), types, devices=jax.devices()[:8])

def times(x, w):
    args = abstract((96, 160), *x, mesh=own), abstract((160, 64), *w, mesh=own)
    return spmd.xray(layer, *args).redundancy

a_times, b_times = times(P(), P()), times(P("data"), P())
c_times = d_times = 1
e_times = times(P(), P(None, "model"))
""",
            "a_times, b_times, e_times = np.int64(8), jnp.float32(2), 4\n"
            "c_times = d_times = np.float64(1)",
        ],
        wrong=[
            (
                "a_times = b_times = c_times = d_times = e_times = 1",
                "a_times, b_times, e_times",
            ),
            (  # the axis that is used, not the one that idles
                "a_times, b_times, c_times, d_times, e_times = 8, 4, 1, 1, 2",
                "look again at b_times, e_times",
            ),
            (  # case 2 is not repeated work
                "a_times, b_times, c_times, d_times, e_times = 8, 2, 2, 1, 4",
                "look again at c",
            ),
            (
                "a_times, b_times, c_times, d_times, e_times = 8, 2, 1, 8, 4",
                "look again at d",
            ),
            (
                "a_times = b_times = c_times = d_times = e_times = float('nan')",
                "a_times, b_times, c_times, d_times, e_times",
            ),
            (  # shares in place of factors
                "a_times, b_times, c_times, d_times, e_times = .125, .5, 1, 1, .25",
                "a_times, b_times, e_times",
            ),
            (
                YES + "a_times = b_times = c_times = d_times = e_times = Yes()",
                "is not a number",
            ),
            (  # a number written as a text is refused, as in 6.1
                "a_times, b_times, c_times, d_times, e_times = 8, '2', 1, 1, 4",
                "b_times: '2' is not a number",
            ),
        ],
    ),
    "7.2": Answers(
        right=[
            THRIFTY
            + ON
            + '    h = lax.with_sharding_constraint(x @ w1, on("data", "model"))\n'
            '    return lax.with_sharding_constraint(jnp.tanh(h) @ w2, on("data"))',
            "@jax.jit\n" + THRIFTY + "    each = lambda row: jnp.tanh(row @ w1) @ w2\n"
            "    return jax.vmap(each)(x)",
            # the mesh is the answer's own
            "from functools import partial\n"
            "hidden = partial(jnp.dot, precision='highest')\n"
            "own = make_mesh(4, 2)\n" + THRIFTY + "    h = jnp.tanh(hidden(x, w1))\n"
            "    place = NamedSharding(own, P('data', 'model'))\n"
            "    return lax.with_sharding_constraint(h, place) @ w2",
            "thrifty = jax.jit(lambda x, w1, w2: jnp.einsum(\n"
            "    'mh,hn->mn', jnp.tanh(jnp.einsum('mk,kh->mh', x, w1)), w2))",
            THRIFTY + "    def body(x, w1, w2):\n"
            '        return lax.psum(jnp.tanh(x @ w1) @ w2, "model")\n'
            '    specs = (P("data"), P(None, "model"), P("model"))\n'
            "    return jax.shard_map(body, mesh=mesh, in_specs=specs,\n"
            '                         out_specs=P("data"))(x, w1, w2)',
        ],
        wrong=[
            (  # only on the sizes of the text
                THRIFTY + "    if x.shape == (192, 320):\n"
                "        return jnp.tanh(x @ w1) @ w2\n"
                + ON
                + '    h = lax.with_sharding_constraint(jnp.tanh(x @ w1), on("data"))\n'
                "    return h @ w2",
                "with x [96, 160], w1 [160, 240] and w2 [240, 80]: all-gather",
            ),
            (  # both operands of a product in half of the precision
                THRIFTY
                + "    x, w1 = x.astype(jnp.bfloat16), w1.astype(jnp.bfloat16)\n"
                "    return jnp.tanh((x @ w1).astype(jnp.float32)) @ w2",
                "a different precision",
            ),
            ("thrifty = jnp.zeros((192, 256))", "has to be a function"),
            (
                THRIFTY
                + ON
                + '    h = lax.with_sharding_constraint(x @ w1, on("data"))\n'
                "    return jnp.tanh(h) @ w2",
                "the average product is computed",
            ),
            (  # after the tanh is no better
                THRIFTY
                + ON
                + '    h = lax.with_sharding_constraint(jnp.tanh(x @ w1), on("data"))\n'
                "    return h @ w2",
                "all-gather",
            ),
            (  # everything replicated
                THRIFTY
                + ON
                + "    x, w1, w2 = lax.with_sharding_constraint((x, w1, w2), on())\n"
                "    return jnp.tanh(x @ w1) @ w2",
                "the average product is computed 8.00 times",
            ),
            (  # the columns cut too: one more exchange
                THRIFTY
                + ON
                + "    y = lax.with_sharding_constraint(jnp.tanh(x @ w1) @ w2, on())\n"
                "    return y",
                "the average product is computed",
            ),
            (THRIFTY + "    return (x @ w1) @ w2", "result"),
            (  # other values, less work
                THRIFTY + "    return jnp.tanh(x @ (w1 @ w2))",
                "the average product is computed",
            ),
            (
                THRIFTY + "    return jnp.zeros((192, 256))",
                "no matrix product in thrifty",
            ),
            (THRIFTY + "    y = jnp.tanh(x @ w1) @ w2", "no matrix product in thrifty"),
            (  # half of the precision
                THRIFTY + "    h, w2 = jax.tree.map(lambda a: a.astype(jnp.float16),"
                " (jnp.tanh(x @ w1), w2))\n"
                "    return h @ w2",
                "result",
            ),
            (THRIFTY + "    return jnp.tanh(x @ w1) @ w2 * jnp.nan", "not finite"),
            (  # the right share, and another sharding of the result
                THRIFTY + ON + "    y = jnp.tanh(x @ w1) @ w2\n"
                '    return lax.with_sharding_constraint(y, on("data", "model"))',
                "reduce-scatter",
            ),
        ],
    ),
    "7.3": Answers(
        right=[
            "redundancy, useful = 1.25, 0.8",
            "redundancy = 10 / 8\nuseful = 8 / 10",
            "from fractions import Fraction\n"
            "useful = Fraction(4, 5)\n"
            "redundancy = np.float64(1 / useful)",
            "redundancy, useful = jnp.array([1.25, 0.8])",
        ],
        wrong=[
            ("redundancy, useful = 2, 0.5", "all devices together"),
            ("redundancy, useful = 1.5, 2 / 3", "all devices together"),
            ("redundancy, useful = 1.0, 1.0", "all devices together"),
            ("redundancy, useful = None, 0.8", "redundancy: None is not a number"),
            ("redundancy, useful = [1.25], 0.8", "redundancy: [1.25] is not a number"),
            ("redundancy, useful = 1.25, True", "useful: True is not a number"),
            ("redundancy, useful = 1.25, 0.75", "how does the chapter get it"),
            ("redundancy, useful = 1.25, 80", "how does the chapter get it"),
            ("redundancy, useful = 7 / 4, 4 / 7", "all devices together"),
            ("redundancy = useful = float('nan')", "all devices together"),
            # a number written as a text is refused, as in 6.1 and 7.1
            ("redundancy, useful = 1.25, '0.8'", "'0.8' is not a number"),
        ],
    ),
    "7.4": Answers(
        right=[
            "import functools\n"
            "def share(scale, f, *args):\n"
            "    many = spmd.xray(f, *args).redundancy or scale\n"
            "    return (many - scale) / many\n"
            "wasted = functools.partial(share, 1)",
            """
class Meter:
    def __call__(self, f, *args):
        lowered = jax.jit(f).lower(*args)
        return 1 - 1 / (spmd.xray(lowered).redundancy or 1)

wasted = Meter()
""",
            WASTED + "    seen = spmd.xray(f, *args)\n"
            "    if not seen.flops_per_device:\n"
            "        return 0.0\n"
            "    return 1.0 - 1.0 / seen.redundancy",
            WASTED + "    many = spmd.xray(jax.jit(f), *args).redundancy\n"
            "    return jnp.float32(0 if many is None else (many - 1) / many)",
            WASTED + "    return 1 - 1 / (spmd.xray(f, *args).redundancy or 1)",
            "from fractions import Fraction\n" + WASTED + "    try:\n"
            "        return 1 - 1 / Fraction(spmd.xray(f, *args).redundancy)\n"
            "    except TypeError:\n"
            "        return 0",
        ],
        wrong=[
            (
                WASTED + "    return 1 - 1 / spmd.xray(f, *args).redundancy",
                "TypeError",
            ),
            (  # only whole axes
                WASTED + "    return float(bool(spmd.xray(f, *args).idle_axes))",
                "of the matrix work is repeated",
            ),
            (
                WASTED + "    return 1 / (spmd.xray(f, *args).redundancy or 1)",
                "of the matrix work is repeated",
            ),
            (
                WASTED + "    return (spmd.xray(f, *args).redundancy or 1) - 1",
                "of the matrix work is repeated",
            ),
            ("wasted = 0.5", "wasted is 0.5, but has to be a function"),
            (  # of the devices, not of the work
                WASTED + "    seen = spmd.xray(f, *args)\n"
                "    sizes = [seen.mesh_shape[axis] for axis in seen.idle_axes]\n"
                "    return 1 - 1 / np.prod([1, *sizes])",
                "of the matrix work is repeated",
            ),
            (WASTED + "    return 0.5", "of the matrix work is repeated"),
            (
                WASTED + "    share = 1 - 1 / (spmd.xray(f, *args).redundancy or 1)",
                'with x sharded as P("data"): None is not a number',
            ),
            (
                WASTED + "    times = spmd.xray(f, *args).redundancy or 1\n"
                '    return f"{1 - 1 / times:.3f}"',
                "'0.500' is not a number",
            ),
            (
                WASTED + "    times = spmd.xray(f, *args).redundancy\n"
                "    return None if times is None else 1 - 1 / times",
                "wasted of a function without products: None is not a number",
            ),
            (WASTED + "    return float('nan')", "of the matrix work is repeated"),
            (  # a table of the tried cases, in their order
                "told = iter([0.5, 7 / 8, 0.0, 0.0, 0.2])\n"
                + WASTED
                + "    return next(told)",
                "of the matrix work is repeated",
            ),
            (  # a table by specs
                WASTED + "    specs = str([a.sharding.spec for a in args])\n"
                "    if len(args) == 2:\n"
                "        one, two = 'data' in specs, 'model' in specs\n"
                "        return 0.0 if one and two else 0.5 if one else 7 / 8\n"
                "    return 0.0 if len(args) == 1 else 0.2",
                "of the matrix work is repeated",
            ),
            (  # runs it first
                WASTED + "    jax.jit(f)(*[jax.device_put(jnp.ones(a.shape, a.dtype),"
                " a.sharding) for a in args])\n"
                "    return 1 - 1 / (spmd.xray(f, *args).redundancy or 1)",
                "wasted runs f",
            ),
            (WASTED + "    f(*args)\n    return 0.0", "TypeError"),
            (  # a table of shares
                "def wasted(f, *args):\n"
                "    return {1: 0.0, 2: 0.5, 4: 0.75, 8: "
                "0.875}.get(round(spmd.xray(f, *args).redundancy or 1))",
                "0.364",
            ),
            (  # rounded
                "def wasted(f, *args):\n"
                "    return round(1 - 1 / (spmd.xray(f, *args).redundancy or 1), 1)",
                "0.900",
            ),
        ],
    ),
    "7.5": Answers(
        right=[
            'x_spec, w1_spec, w2_spec = P("data"), P(None, "model"), P("model")',
            'x_spec, w1_spec, w2_spec = P("model"), P(None, "data"), P("data")',
            "names = 'data', 'model'\n"
            "x_spec, w1_spec = (P(*[(n,) if n == axis else None for n in names])\n"
            "                   for axis in names)\n"
            'w2_spec = jax.P(("model",), None)',
        ],
        wrong=[
            ("x_spec = w1_spec = w2_spec = P()", "655,360 bytes per device"),
            (  # the example of the chapter, on the pod
                'x_spec = P("model")\nw1_spec = P(None, "model")\nw2_spec = P("model")',
                "computed more than once",
            ),
            (
                'x_spec = P("data")\nw1_spec = w2_spec = P(None, "model")',
                "all-gather|budget",
            ),
            (  # fully cut: fine for memory, and the weights have to travel
                'x_spec = P("data")\nw1_spec = P("data", "model")\n'
                'w2_spec = P("model", "data")',
                "all-gather",
            ),
            (
                'x_spec = P(("data", "model"))\nw1_spec = w2_spec = P("data")',
                "all-gather",
            ),
            (
                'x_spec = P(P.UNCONSTRAINED, "data")\n'
                'w1_spec, w2_spec = P(None, "model"), P("model")',
                "UNCONSTRAINED",
            ),
            (
                'x_spec, w1_spec, w2_spec = P("pod"), P(None, "model"), P("model")',
                "the mesh has no axis 'pod'",
            ),
            (  # an axis twice
                'x_spec = P("data", "data")\nw1_spec, w2_spec = P(None, "model"),'
                ' P("model")',
                "data",
            ),
            (  # everything cut in 64
                'both = "data", "model"\nx_spec = P(both)\n'
                "w1_spec = P(None, both)\nw2_spec = P(both)",
                "the program runs|more than once",
            ),
            (
                'x_spec = ("data",)\nw1_spec = P(None, "model")\nw2_spec = P("model")',
                "x_spec: ('data',) is not a P(...)",
            ),
        ],
    ),
}
