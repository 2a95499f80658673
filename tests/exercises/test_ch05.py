"""Chapter 5: its checks, judged by right and wrong answers."""

import jax
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from spmd_exercises._setting import devices, make_mesh, normal, on

from .judging import YES, Answers, AnswersAreJudged, imports


class TestChapter5(AnswersAreJudged):
    pass


def given():
    """What the chapter's cells have made where its answers stand."""
    explicit = make_mesh(AxisType.Explicit, data=4, model=2)
    return imports() | {
        "devices": devices(8),
        "names": ("data", "model"),
        "auto": make_mesh(data=4, model=2),
        "explicit": explicit,
        "on": on,
        "xe": jax.device_put(normal(0, 48, 40), on(explicit, "data", "model")),
    }


class TestModes:
    """What exercise 5.4 says of the modes is what JAX does."""

    zeros = np.zeros((48, 40), np.float32)

    def test_the_type_of_an_array(self):
        auto = make_mesh(data=4, model=2)
        explicit = make_mesh(AxisType.Explicit, data=4, model=2)
        by_rows = [jax.device_put(self.zeros, on(m, "data")) for m in (auto, explicit)]
        assert [str(jax.typeof(x)) for x in by_rows] == [
            "float32[48,40]",
            "float32[48@data,40]",
        ]

    def test_manual_mode_has_what_varies_and_the_index_of_the_axis(self):
        varying = []

        def body(x):
            varying.append(str(jax.typeof(x)))
            return x + lax.axis_index("data")

        mesh = make_mesh(data=4, model=2)
        mapped = jax.shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P("data"))
        mapped(self.zeros)
        assert varying == ["float32[12,40]{V:data}"]

    def test_explicit_mode_asks_for_out_sharding(self):
        mesh = make_mesh(AxisType.Explicit, data=4, model=2)
        left = jax.device_put(self.zeros, on(mesh, None, "data"))
        right = jax.device_put(self.zeros.T, on(mesh, "data"))
        with pytest.raises(Exception, match="out_sharding") as raised:
            left @ right
        assert raised.type.__name__ == "ShardingTypeError"


MLP = "def mlp(x, w1, w2):\n    h = jax.nn.relu(x @ w1)\n"
BODY = "def body(x, w):\n"
DROP = "def dropout(key, x):\n"
KEEP = "    return jnp.where(jax.random.bernoulli(key, 0.5, x.shape), 2 * x, 0)"

ANSWERS = {
    "5.1": Answers(
        right=[
            'turned, plus = P("model", "data"), P("data", "model")\n'
            'columns, split = P(("model",)), P("model")',
            'turned, plus = P("model", ("data",)), P(*xe.sharding.spec)\n'
            'columns, split = jax.P("model"), P("model", None, None)',
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
            (
                "turned = plus = columns = split = P()",
                "at plus, which is P(); at columns",
            ),
            (
                'turned, plus = ("model", "data"), P("data", "model")\n'
                'columns, split = P("model"), P("model")',
                "is not a P(...)",
            ),
            (YES + "turned = plus = columns = split = Yes()", "is not a P(...)"),
            ("turned = plus = columns = split = None", "turned: None is not a P(...)"),
            (  # more entries than dimensions
                'turned, plus = P("model", "data"), P("data", "model")\n'
                'columns, split = P(None, "model"), P("model")',
                "look again at columns, which is P(None, 'model')",
            ),
            (
                'turned, plus = P("model", "data"), P("data", P.UNCONSTRAINED)\n'
                'columns, split = P("model"), P("model")',
                "look again at plus",
            ),
            (  # the parts of a maximum are no parts of a sum
                'turned, plus = P("model", "data"), P("data", "model")\n'
                'columns, split = P("model", unreduced={"data"}), P("model")',
                "look again at columns",
            ),
            (  # the array itself
                "turned = plus = columns = split = xe",
                "turned: a value of type jax.Array of shape (48, 40) is not a P(...)",
            ),
        ],
    ),
    "5.2": Answers(
        right=[
            MLP + '    return jnp.matmul(h, w2, out_sharding=P("data", None))',
            "@jax.jit\n" + MLP + '    return jnp.dot(h, w2, out_sharding=P("data"))',
            # compiled before, and its first argument donated
            MLP + "    return jnp.matmul(h, w2, out_sharding=on(explicit, 'data'))\n"
            "places = [on(explicit, *spec) for spec in"
            " (('data',), (None, 'model'), ('model',))]\n"
            "args = [jax.ShapeDtypeStruct(shape, jnp.float32, sharding=place)\n"
            "        for shape, place in zip([(48, 40), (40, 96), (96, 40)], places)]\n"
            "mlp = jax.jit(mlp, donate_argnums=0).lower(*args).compile()",
            # the partial sums as a type of their own, then added
            MLP + "    parts = jnp.matmul(\n"
            "        h, w2, out_sharding=P('data', None, unreduced={'model'}))\n"
            "    return jax.reshard(parts, P('data', None))",
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
                "the result is float32[48@data,40@model]",
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
            (  # on the Auto mesh
                MLP + "    return jnp.matmul(h, w2, out_sharding=P('data', None))\n"
                "mlp = jax.jit(mlp, out_shardings=on(auto, 'data'))",
                "the result is float32[48,40]",
            ),
            (  # nobody adds up
                MLP + "    return jnp.matmul(\n"
                "        h, w2, out_sharding=P('data', None, unreduced={'model'}))",
                "the result is float32[48@data,40]{U:model}",
            ),
            (  # an exchange for nothing
                MLP + "    y = jnp.matmul(h, w2, out_sharding=P('data', None))\n"
                "    return y + 0 * x.sum(axis=1).max()",
                "all-reduce runs 2 times",
            ),
            (  # the relu of the other product
                "def mlp(x, w1, w2):\n"
                "    y = jnp.matmul(x @ w1, w2, out_sharding=P('data', None))\n"
                "    return jax.nn.relu(y)",
                "which step of yours differs",
            ),
            (
                MLP + "    jnp.matmul(h, w2, out_sharding=P('data', None))",
                "returned None",
            ),
            ("mlp = on(explicit, 'data')", "has to be a function"),
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
            "from functools import partial\n"
            "@partial(jax.jit, static_argnums=0)\n"
            "def scattered(axis, x, w):\n"
            "    part = jnp.einsum('ij,jk->ki', x, w)\n"
            "    return lax.psum_scatter(part, axis, tiled=True).T\n"
            "body = partial(scattered, 'model')",
        ],
        wrong=[
            (  # the whole sum on everybody, then a slice of it
                BODY + '    full = lax.psum(x @ w, "model")\n'
                '    i, n = lax.axis_index("model"), full.shape[1] // 2\n'
                "    return lax.dynamic_slice_in_dim(full, i * n, n, 1)",
                "the full sum is communicated",
            ),
            (BODY + '    return lax.psum(x @ w, "model")', "result|shape"),
            (  # the columns of one size
                BODY + "    part = (x @ w).reshape(12, 2, 12)\n"
                '    return lax.psum_scatter(part, "model", scatter_dimension=1)',
                "TypeError",
            ),
            (  # the parts are exchanged and added afterwards
                BODY + "    part = (x @ w).reshape(x.shape[0], 2, -1)\n"
                '    return lax.all_to_all(part, "model", 1, 1).sum(axis=1)',
                "all-to-all runs 1 time",
            ),
            (  # along the other axis too
                BODY + '    y = lax.psum_scatter(x @ w, "model",'
                " scatter_dimension=1, tiled=True)\n"
                '    return y + 0 * lax.psum(y, "data")',
                "all-reduce runs 1 time",
            ),
            (  # each sum twice
                BODY + "    parts = jnp.stack([x @ w, x @ w + 1])\n"
                "    sums = lax.psum_scatter(parts, 'model',"
                " scatter_dimension=2, tiled=True)\n"
                "    return sums.mean(axis=0) - 1",
                "1,152 bytes are communicated, but the budget is 576",
            ),
            (  # the columns of the other device
                BODY + "    i, n = lax.axis_index('model'), w.shape[1] // 2\n"
                "    part = jnp.roll(x @ w, n, axis=1)\n"
                "    return lax.psum_scatter(part, 'model',"
                " scatter_dimension=1, tiled=True)",
                "which columns of the full sum",
            ),
            (  # scattered along data
                BODY + "    return lax.psum_scatter(x @ w, ('data', 'model'),"
                " scatter_dimension=1, tiled=True)",
                "shape|ValueError",
            ),
            (BODY + "    lax.psum_scatter(x @ w, 'model')", "ValueError|NoneType"),
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
            "a, b, c, d, e = np.array('MANUAL explicit explicit auto manual'.split())",
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
            (YES + "a = b = c = d = e = Yes()", "which is not one of"),
            ("a = b = c = d = e = None", "a is None, which is not one of"),
            (
                'a = b = c = d = e = "shard_map"',
                "a is 'shard_map', which is not one of",
            ),
            ("a, b, c, d, e = [AxisType.Auto] * 5", "look again at a, b, c, e"),
            (
                'a = "manual"\nb = c = e = "explicit"\nd = "auto"',
                "look again at e",
            ),
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
            DROP + "    i, j = map(lax.axis_index, names)\n"
            "    key = jax.random.split(key, (4, 2))[i, j]\n"
            "    return jnp.where(jax.random.bits(key, x.shape) % 2 == 0, x + x, 0)",
            # exactly half of each block, in an order of its own
            "@jax.jit\n" + DROP + "    place = lax.axis_index(names)\n"
            "    half = jnp.arange(x.size).reshape(x.shape) % 2\n"
            "    key = jax.random.fold_in(key, place)\n"
            "    return 2 * x * jax.random.permutation(\n"
            "        key, half.ravel()).reshape(x.shape)",
            # a key for each block, by position
            "def dropout(key, x):\n"
            "    mine = jax.random.split(key, (4, 2))[lax.axis_index('data'), "
            "lax.axis_index('model')]\n"
            "    return x * jax.random.bernoulli(mine, shape=x.shape) / 0.5",
            # the mask of the full array, and a block of it
            "def dropout(key, x):\n"
            "    rows, cols = x.shape\n"
            "    keep = jax.random.bernoulli(key, 0.5, (4 * rows, 2 * cols))\n"
            "    at = lax.axis_index('data') * rows, lax.axis_index('model') * cols\n"
            "    return jnp.where(lax.dynamic_slice(keep, at, x.shape), 2 * x, 0)",
        ],
        wrong=[
            (DROP + KEEP, "has the same mask as shard"),
            (  # only along data
                DROP
                + '    key = jax.random.fold_in(key, lax.axis_index("data"))\n'
                + KEEP,
                "has the same mask as shard",
            ),
            (  # i + j: two places share a sum
                DROP + '    place = lax.axis_index("data") + lax.axis_index("model")\n'
                "    key = jax.random.fold_in(key, place)\n" + KEEP,
                "has the same mask as shard",
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
                "shard (0, 0) with jax.random.key(1) has the same mask as shard (0, 0)",
            ),
            (  # keeps nine of ten
                DROP
                + '    key = jax.random.fold_in(key, lax.axis_index(("data", "model")))'
                "\n    return jnp.where(jax.random.bernoulli(key, 0.9, x.shape),"
                " 2 * x, 0)",
                "90% of the numbers are kept",
            ),
            (  # one value for all
                DROP
                + '    key = jax.random.fold_in(key, lax.axis_index(("data", "model")))'
                "\n    keep = jax.random.bernoulli(key, 0.5, x.shape)"
                "\n    return jnp.where(keep, 2 * x.mean(), 0)",
                "each kept number doubled",
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
                "the numbers of some columns",
            ),
            (  # rows as wholes
                DROP
                + '    key = jax.random.fold_in(key, lax.axis_index(("data", "model")))'
                "\n    keep = jax.random.bernoulli(key, 0.5, (x.shape[0], 1))"
                "\n    return jnp.where(keep, 2 * x, 0)",
                "the numbers of some rows",
            ),
            (DROP + "    return x", "only 0 and 2"),
            (  # one mask, mirrored on every other device
                DROP + '    i, j = lax.axis_index("data"), lax.axis_index("model")\n'
                "    key = jax.random.fold_in(key, i)\n"
                "    keep = jax.random.bernoulli(key, 0.5, x.shape)\n"
                "    keep = jnp.where(j == 0, keep, keep[:, ::-1])\n"
                "    return jnp.where(keep, 2 * x, 0)",
                "nearly the same mask",
            ),
            (  # eight ways to turn and mirror one mask
                DROP + "    place = lax.axis_index(names)\n"
                "    keep = jax.random.bernoulli(key, 0.5, x.shape)\n"
                "    ways = [lambda m, k=k, t=t: jnp.rot90(m, k).T if t else"
                " jnp.rot90(m, k)\n"
                "            for t in (False, True) for k in range(4)]\n"
                "    return jnp.where(lax.switch(place, ways, keep), 2 * x, 0)",
                "mirrored",
            ),
            (  # what one device keeps, its neighbor drops
                DROP + '    i, j = lax.axis_index("data"), lax.axis_index("model")\n'
                "    key = jax.random.fold_in(key, i)\n"
                "    keep = jax.random.bernoulli(key, 0.5, x.shape)\n"
                "    return jnp.where(keep ^ (j == 1), 2 * x, 0)",
                "0 and 2 swapped",
            ),
            (  # half of each mask is shared
                DROP + "    own = jax.random.fold_in(key, lax.axis_index(names) + 1)\n"
                "    m, n = x.shape\n"
                "    keep = jnp.concatenate([\n"
                "        jax.random.bernoulli(k, 0.5, (m // 2, n)) for k in (key, own)"
                "])\n"
                "    return jnp.where(keep, 2 * x, 0)",
                "nearly the same mask",
            ),
            (  # a small mask, repeated
                DROP + "    key = jax.random.fold_in(key, lax.axis_index(names))\n"
                "    keep = jax.random.bernoulli(key, 0.5, (x.shape[0] // 4,"
                " x.shape[1]))\n"
                "    return jnp.where(jnp.tile(keep, (4, 1)), 2 * x, 0)",
                "nearly the same mask",
            ),
            (  # half on average, and on no device
                DROP + "    place = lax.axis_index(names)\n"
                "    key = jax.random.fold_in(key, place)\n"
                "    p = jnp.where(place % 2 == 0, 0.35, 0.65)\n"
                "    return jnp.where(jax.random.bernoulli(key, p, x.shape), 2 * x, 0)",
                "of its numbers, but has to keep half",
            ),
            (  # in half the bytes
                DROP + "    key = jax.random.fold_in(key, lax.axis_index(names))\n"
                "    x = x.astype(jnp.bfloat16)\n" + KEEP,
                "in float32",
            ),
            (  # the number of the device comes from an exchange
                DROP + '    key = jax.random.fold_in(key, lax.axis_index("data"))\n'
                '    i = lax.all_gather(lax.axis_index("model"), "model")\n'
                '    key = jax.random.fold_in(key, i[lax.axis_index("model")])\n'
                "    twice = lax.ppermute(2 * x, 'data', [(i, (i + 1) % 4)"
                " for i in range(4)])\n"
                "    twice = lax.ppermute(twice, 'data', [((i + 1) % 4, i)"
                " for i in range(4)])\n"
                "    keep = jax.random.bernoulli(key, 0.5, x.shape)\n"
                "    return jnp.where(keep, twice, 0)",
                "Which numbers does a device need",
            ),
            (  # a key of its own, in place of the one it is given
                DROP + "    i = lax.axis_index(names)\n"
                "    seed = jax.random.key_data(key)[-1] * 0 + 5\n"
                "    key = jax.random.fold_in(jax.random.key(0), seed + i)\n" + KEEP,
                "has the same mask as shard",
            ),
            (DROP + "    2 * x", "dropout returned None"),
            ("dropout = 0.5", "dropout is 0.5, but has to be a function"),
            (  # not doubled
                "def dropout(key, x):\n"
                "    key = jax.random.fold_in(key, lax.axis_index(('model', 'data')))\n"
                "    return jnp.where(jax.random.normal(key, x.shape) > 0, x, 0)",
                "only 0 and 2 may occur",
            ),
        ],
    ),
}
