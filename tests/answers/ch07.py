"""Chapter 07: right and wrong answers."""

from . import Answers
from .ch01 import YES

THRIFTY = "def thrifty(x, w1, w2):\n"
WASTED = "def wasted(f, *args):\n"
ON = "    on = lambda *e: NamedSharding(mesh, P(*e))\n"

ANSWERS = {
    "7.1": Answers(
        right=[
            "a_times, b_times, c_times, d_times, e_times = 8, 2, 1, 1, 4",
            "a_times, b_times, e_times = 8.0, 2.0, 4.0\nc_times = d_times = 1.0",
            "a_times, b_times, e_times = np.int64(8), jnp.float32(2), 4\n"
            "c_times = d_times = np.float64(1)",
        ],
        wrong=[
            ("a_times = b_times = c_times = d_times = e_times = 1", "a, b, e"),
            (  # the axis that is used, not the one that idles
                "a_times, b_times, c_times, d_times, e_times = 8, 4, 1, 1, 2",
                "look again at b, e",
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
                "a, b, c, d, e",
            ),
            (  # shares in place of factors
                "a_times, b_times, c_times, d_times, e_times = .125, .5, 1, 1, .25",
                "a, b, e",
            ),
            (
                YES + "a_times = b_times = c_times = d_times = e_times = Yes()",
                "is no number",
            ),
            (  # a number written as a text is refused, as in 6.1
                "a_times, b_times, c_times, d_times, e_times = 8, '2', 1, 1, 4",
                "b: '2' is no number",
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
            THRIFTY + "    def body(x, w1, w2):\n"
            '        return lax.psum(jnp.tanh(x @ w1) @ w2, "model")\n'
            '    specs = (P("data"), P(None, "model"), P("model"))\n'
            "    return jax.shard_map(body, mesh=mesh, in_specs=specs,\n"
            '                         out_specs=P("data"))(x, w1, w2)',
        ],
        wrong=[
            (
                THRIFTY
                + ON
                + '    h = lax.with_sharding_constraint(x @ w1, on("data"))\n'
                "    return jnp.tanh(h) @ w2",
                "each product is computed",
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
                "each product is computed|operations",
            ),
            (  # the columns cut too: one more exchange
                THRIFTY
                + ON
                + "    y = lax.with_sharding_constraint(jnp.tanh(x @ w1) @ w2, on())\n"
                "    return y",
                "each product is computed",
            ),
            (THRIFTY + "    return (x @ w1) @ w2", "result"),
            (  # other values, less work
                THRIFTY + "    return jnp.tanh(x @ (w1 @ w2))",
                "operations a device|each product",
            ),
            (THRIFTY + "    return jnp.zeros((192, 256))", "no matrix product in it"),
            (THRIFTY + "    y = jnp.tanh(x @ w1) @ w2", "no matrix product in it"),
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
        ],
        wrong=[
            ("redundancy, useful = 2, 0.5", "all devices together"),
            ("redundancy, useful = 1.5, 2 / 3", "all devices together"),
            ("redundancy, useful = 1.0, 1.0", "all devices together"),
            ("redundancy, useful = 1.25, 0.75", "1 over the redundancy"),
            ("redundancy, useful = 1.25, 80", "1 over the redundancy"),
            ("redundancy, useful = 7 / 4, 4 / 7", "all devices together"),
            ("redundancy = useful = float('nan')", "all devices together"),
            # a number written as a text is refused, as in 6.1 and 7.1
            ("redundancy, useful = 1.25, '0.8'", "'0.8' is no number"),
        ],
    ),
    "7.4": Answers(
        right=[
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
                "is wasted",
            ),
            (
                WASTED + "    return 1 / (spmd.xray(f, *args).redundancy or 1)",
                "is wasted",
            ),
            (
                WASTED + "    return (spmd.xray(f, *args).redundancy or 1) - 1",
                "is wasted",
            ),
            (WASTED + "    return 0.5", "is wasted"),
            (
                WASTED + "    share = 1 - 1 / (spmd.xray(f, *args).redundancy or 1)",
                "None came back",
            ),
            (
                WASTED + "    times = spmd.xray(f, *args).redundancy or 1\n"
                '    return f"{1 - 1 / times:.3f}"',
                "came back, and it is no number",
            ),
            (
                WASTED + "    times = spmd.xray(f, *args).redundancy\n"
                "    return None if times is None else 1 - 1 / times",
                "tanh: None came back",
            ),
            (WASTED + "    return float('nan')", "is wasted"),
            (  # a table of the tried cases, in their order
                "told = iter([0.5, 7 / 8, 0.0, 0.0, 0.2])\n"
                + WASTED
                + "    return next(told)",
                "is wasted",
            ),
            (  # a table by name and specs
                WASTED + "    specs = str([a.sharding.spec for a in args])\n"
                "    if f.__name__ == 'layer':\n"
                "        one, two = 'data' in specs, 'model' in specs\n"
                "        return 0.0 if one and two else 0.5 if one else 7 / 8\n"
                "    return {'tanh': 0.0, 'both': 0.27}[f.__name__]",
                "is wasted",
            ),
            (  # runs it first
                WASTED + "    jax.jit(f)(*[jax.device_put(jnp.ones(a.shape, a.dtype),"
                " a.sharding) for a in args])\n"
                "    return 1 - 1 / (spmd.xray(f, *args).redundancy or 1)",
                "it ran f",
            ),
            (WASTED + "    f(*args)\n    return 0.0", "TypeError"),
        ],
    ),
    "7.5": Answers(
        right=[
            'x_spec, w1_spec, w2_spec = P("data"), P(None, "model"), P("model")',
            'x_spec, w1_spec, w2_spec = P("model"), P(None, "data"), P("data")',
        ],
        wrong=[
            ("x_spec = w1_spec = w2_spec = P()", "bytes a device"),
            (  # the example of the chapter, on the pod
                'x_spec = P("model")\nw1_spec = P(None, "model")\nw2_spec = P("model")',
                "each product is computed",
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
                'x_spec = ("data",)\nw1_spec = P(None, "model")\nw2_spec = P("model")',
                "x: ('data',) is not a P(...)",
            ),
        ],
    ),
}
