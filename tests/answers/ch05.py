"""Chapter 05: right and wrong answers."""

from . import Answers
from .ch01 import YES

MLP = "def mlp(x, w1, w2):\n    h = jax.nn.relu(x @ w1)\n"
BODY = "def body(x, w):\n"
DROP = "def dropout(key, x):\n"
KEEP = "    return jnp.where(jax.random.bernoulli(key, 0.5, x.shape), 2 * x, 0)"

ANSWERS = {
    "5.1": Answers(
        right=[
            'turned, plus = P("model", "data"), P("data", "model")\n'
            'columns, split = P(("model",)), P("model")',
            "turned = P(*jax.typeof(xe.T).sharding.spec)\n"
            "plus = jax.typeof(xe).sharding.spec\n"
            "columns = jax.typeof(xe.max(axis=0)).sharding.spec\n"
            'split = P("model", None)',
        ],
        wrong=[
            (
                'turned = plus = P("data", "model")\n'
                'columns, split = P("model"), P("model")',
                "look again at turned",
            ),
            (  # the whole argument wins?
                'turned, plus = P("model", "data"), P()\n'
                'columns, split = P("model"), P("model")',
                "look again at plus",
            ),
            (  # the axis that was summed over is kept?
                'turned, plus = P("model", "data"), P("data", "model")\n'
                'columns, split = P("data"), P("model")',
                "look again at columns",
            ),
            (
                'turned, plus = P("model", "data"), P("data", "model")\n'
                'columns, split = P("model"), P(None, "model")',
                "look again at split",
            ),
            ("turned = plus = columns = split = P()", "turned, plus, columns, split"),
            (
                'turned, plus = ("model", "data"), P("data", "model")\n'
                'columns, split = P("model"), P("model")',
                "is not a P(...)",
            ),
            (YES + "turned = plus = columns = split = Yes()", "is not a P(...)"),
        ],
    ),
    "5.2": Answers(
        right=[
            MLP + '    return jnp.matmul(h, w2, out_sharding=P("data", None))',
            "@jax.jit\n" + MLP + '    return jnp.dot(h, w2, out_sharding=P("data"))',
            MLP + '    return jnp.einsum("bf,fd->bd", h, w2,\n'
            '                      out_sharding=on(explicit, "data"))',
            MLP + "    product = jax.sharding.auto_axes(lambda h, w: h @ w,\n"
            '        out_sharding=on(explicit, "data"))\n'
            "    return product(h, w2)",
            "def mlp(x, w1, w2):\n"
            "    def each(x, w1, w2):\n"
            '        return lax.psum(jax.nn.relu(x @ w1) @ w2, "model")\n'
            "    return jax.shard_map(each, mesh=explicit,\n"
            '        in_specs=(P("data", None), P(None, "model"), P("model", None)),\n'
            '        out_specs=P("data", None))(x, w1, w2)',
        ],
        wrong=[
            (MLP + "    return h @ w2", "ShardingTypeError"),
            (
                MLP + '    return jnp.matmul(h, w2, out_sharding=P("data", "model"))',
                "P('data', 'model')",
            ),
            (  # replicate everything first
                MLP + "    h, w2 = jax.reshard((h, w2), on(explicit))\n"
                '    return jax.reshard(h @ w2, on(explicit, "data"))',
                "all-gather",
            ),
            (  # gather the hidden layer: case 3 in place of case 2
                MLP + '    h = jax.reshard(h, on(explicit, "data"))\n'
                "    w2 = jax.reshard(w2, on(explicit))\n"
                "    return h @ w2",
                "all-gather",
            ),
            (MLP + "    return jnp.matmul(h, w2, out_sharding=P())", "result"),
            (  # the right numbers in half the bytes
                MLP + '    y = jnp.matmul(h, w2, out_sharding=P("data", None))\n'
                "    return y.astype(jnp.float16)",
                "the result is float16",
            ),
            (  # the second product in half the bytes
                MLP + "    y = jnp.matmul(h.astype(jnp.float16), "
                "w2.astype(jnp.float16),\n"
                '                   out_sharding=P("data", None))\n'
                "    return y.astype(jnp.float32)",
                "result",
            ),
            (  # scattered, then gathered
                MLP + '    y = jnp.matmul(h, w2, out_sharding=P("data", "model"))\n'
                '    return jax.reshard(y, P("data", None))',
                "all-gather",
            ),
            (  # the leftover is kept, and said where to lie
                MLP + '    y = jnp.matmul(h, w2, out_sharding=P("data", None))\n'
                "    return y.at[jnp.arange(48)].get(\n"
                '        out_sharding=P("data", None))',
                "all-gather",
            ),
            (  # no relu
                "def mlp(x, w1, w2):\n"
                '    return jnp.matmul(x @ w1, w2, out_sharding=P("data", None))',
                "result",
            ),
        ],
    ),
    "5.3": Answers(
        right=[
            BODY + "    part = x @ w\n"
            "    return lax.psum_scatter(part, axis_name='model',\n"
            "                            scatter_dimension=part.ndim - 1, tiled=True)",
            BODY + "    return jax.vmap(lambda row: lax.psum_scatter(\n"
            '        row @ w, ("model",), tiled=True))(x)',
            BODY + "    part = (x @ w).reshape(x.shape[0], 2, -1)\n"
            '    return lax.psum_scatter(part, "model", scatter_dimension=1)',
        ],
        wrong=[
            (  # the whole sum on everybody, then a slice of it
                BODY + '    full = lax.psum(x @ w, "model")\n'
                '    i, n = lax.axis_index("model"), full.shape[1] // 2\n'
                "    return lax.dynamic_slice_in_dim(full, i * n, n, 1)",
                "the whole sum travels",
            ),
            (BODY + '    return lax.psum(x @ w, "model")', "result|shape"),
            (BODY + "    return x @ w", "result|shape"),
            (  # the parts in half the bytes
                BODY + "    part = (x @ w).astype(jnp.float16)\n"
                '    part = lax.psum_scatter(part, "model", scatter_dimension=1,'
                " tiled=True)\n"
                "    return part.astype(jnp.float32)",
                "result",
            ),
            (  # not tiled
                BODY + '    return lax.psum_scatter(x @ w, "model", '
                "scatter_dimension=1)",
                "ValueError",
            ),
            (  # rows in place of columns
                BODY + '    return lax.psum_scatter(x @ w, "model", tiled=True)',
                "result|shape",
            ),
            (  # gather w and x: no sum left
                BODY + '    x = lax.all_gather(x, "model", axis=1, tiled=True)\n'
                '    w = lax.all_gather(w, "model", tiled=True)\n'
                '    i, n = lax.axis_index("model"), w.shape[1] // 2\n'
                "    return x @ lax.dynamic_slice_in_dim(w, i * n, n, 1)",
                "all-gather",
            ),
        ],
    ),
    "5.4": Answers(
        right=[
            'a = e = "manual"\nb = c = "explicit"\nd = "auto"',
            'a = e = "Manual"\nb = c = "Explicit"\nd = "Auto"',
            "a = e = AxisType.Manual\nb = c = AxisType.Explicit\nd = AxisType.Auto",
            # names that the chapter gave its meshes
            'auto, explicit, manual = "auto", "explicit", "manual"\n'
            "a = e = manual\nb = c = explicit\nd = auto",
        ],
        wrong=[
            ('a = b = c = d = e = "auto"', "look again at a, b, c, e"),
            (
                'a = b = c = "explicit"\nd = "auto"\ne = "manual"',
                "look again at a",
            ),
            (
                'a = e = "manual"\nb = "explicit"\nc = d = "auto"',
                "look again at c",
            ),
            (
                'a = e = "manual"\nb = c = d = "explicit"',
                "look again at d",
            ),
            (YES + "a = b = c = d = e = Yes()", "none of the three"),
        ],
    ),
    "5.5": Answers(
        right=[
            DROP + '    for axis in ("data", "model"):\n'
            "        key = jax.random.fold_in(key, lax.axis_index(axis))\n" + KEEP,
            DROP + '    place = lax.axis_index("data") * 2 + lax.axis_index("model")\n'
            "    key = jax.random.split(key, 8)[place]\n"
            "    keep = jax.random.uniform(key, x.shape) < 0.5\n"
            "    return 2 * x * keep",
            # one mask for all, and each device takes its own block of it
            DROP + "    (m, n), i, j = x.shape, *map(lax.axis_index, names)\n"
            "    whole = jax.random.bernoulli(key, 0.5, (4 * m, 2 * n))\n"
            "    return 2 * x * lax.dynamic_slice(whole, (i * m, j * n), (m, n))",
            "import flax.linen as nn\n" + DROP + "    i = lax.axis_index(names)\n"
            "    layer = nn.Dropout(0.5, deterministic=False)\n"
            "    keys = {'dropout': jax.random.fold_in(key, i)}\n"
            "    return layer.apply({}, x, rngs=keys)",
            DROP + '    where = ("model", "data")\n'
            "    key = jax.random.fold_in(key, lax.axis_index(where))\n"
            "    return jax.random.choice(key, jnp.array([0.0, 2.0]), x.shape) * x",
        ],
        wrong=[
            (DROP + KEEP, "has the mask of the one at"),
            (  # only along data
                DROP
                + '    key = jax.random.fold_in(key, lax.axis_index("data"))\n'
                + KEEP,
                "has the mask of the one at",
            ),
            (  # i + j: two places share a sum
                DROP + '    place = lax.axis_index("data") + lax.axis_index("model")\n'
                "    key = jax.random.fold_in(key, place)\n" + KEEP,
                "has the mask of the one at",
            ),
            (  # not doubled
                DROP
                + '    key = jax.random.fold_in(key, lax.axis_index(("data", "model")))'
                "\n    return jnp.where(jax.random.bernoulli(key, 0.5, x.shape), x, 0)",
                "only 0 and 2",
            ),
            (  # the key is ignored
                DROP + "    key = jax.random.fold_in(jax.random.key(0),"
                ' lax.axis_index(("data", "model")))\n' + KEEP,
                "with key 1 the block at (0, 0) has the mask of the one at (0, 0) with",
            ),
            (  # keeps nine of ten
                DROP
                + '    key = jax.random.fold_in(key, lax.axis_index(("data", "model")))'
                "\n    return jnp.where(jax.random.bernoulli(key, 0.9, x.shape),"
                " 2 * x, 0)",
                "half should be",
            ),
            (  # one value for all
                DROP
                + '    key = jax.random.fold_in(key, lax.axis_index(("data", "model")))'
                "\n    keep = jax.random.bernoulli(key, 0.5, x.shape)"
                "\n    return jnp.where(keep, 2 * x.mean(), 0)",
                "mapped|Exercise",
            ),
            (  # one mask, one number of it turned round
                DROP + '    i = lax.axis_index(("data", "model"))\n'
                "    keep = jax.random.bernoulli(key, 0.5, x.shape)\n"
                "    keep = keep.at[0, i].set(~keep[0, i])\n"
                "    return jnp.where(keep, 2 * x, 0)",
                "nearly the same mask",
            ),
            (  # one mask, turned further on each device
                DROP + '    i = lax.axis_index(("data", "model"))\n'
                "    keep = jax.random.bernoulli(key, 0.5, (x.size,))\n"
                "    return jnp.where(jnp.roll(keep, i).reshape(x.shape), 2 * x, 0)",
                "nearly the same mask",
            ),
            (  # columns as wholes
                DROP
                + '    key = jax.random.fold_in(key, lax.axis_index(("data", "model")))'
                "\n    keep = jax.random.bernoulli(key, 0.5, (1, x.shape[1]))"
                "\n    return jnp.where(keep, 2 * x, 0)",
                "whole columns|half should",
            ),
            (  # rows as wholes
                DROP
                + '    key = jax.random.fold_in(key, lax.axis_index(("data", "model")))'
                "\n    keep = jax.random.bernoulli(key, 0.5, (x.shape[0], 1))"
                "\n    return jnp.where(keep, 2 * x, 0)",
                "whole rows|half should",
            ),
            (DROP + "    return x", "only 0 and 2"),
        ],
    ),
}
